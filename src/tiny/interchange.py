"""Values as others have them: numbers of Python, arrays of NumPy, files, and text."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tiny._core.dlpack import Foreign, give
from tiny.creation import checked_sizes
from tiny.dtype import DType, DTypeLike, _to_np_dtype, dtypes, strong_dtype, to_dtype
from tiny.helpers import all_int, argfix, fetch, prod
from tiny.mixin.sizes import most
from tiny.randomness import RandomMixin
from tiny.storage import (
    compute_readers,
    give_memory,
    in_turn,
    layout,
    pending_storages,
    read_files,
    split_view,
    strides_of,
)
from tiny.uop.ops import Ops, UOp, sym_infer
from tiny.uop.runtime import files, is_file, recorder, recorders, refuse_reading, runtime
from tiny.values import leaf

if TYPE_CHECKING:
    import numpy as np


MOST_SHOWN = 64  # elements in a repr
OF_HOST = (1, 0)  # the device of host memory, as DLPack numbers them
# what DLPack calls a dtype: (code, bits)
_DLPACK_CODES = {
    **{d: (0, d.bitsize) for d in dtypes.sints},
    **{d: (1, d.bitsize) for d in dtypes.uints},
    **{d: (2, d.bitsize) for d in (dtypes.float16, dtypes.float32, dtypes.float64)},
    dtypes.bfloat16: (4, 16),
    dtypes.bool: (6, 8),
    dtypes.fp8e4m3: (10, 8),
    dtypes.fp8e4m3fnuz: (11, 8),
    dtypes.fp8e5m2: (12, 8),
    dtypes.fp8e5m2fnuz: (13, 8),
}
_DLPACK_DTYPES = {code: dtype for dtype, code in _DLPACK_CODES.items()}


class InterchangeMixin(RandomMixin):
    """Values of a Tensor for others, and tensors over what others have.

    A file is a device: `Tensor(Path("x"))` is its bytes, on `DISK:/path/x`. Nothing is read until
    something is moved off it, with `to`, or its values are asked for, and then only the part that
    was asked for. Slices, reshapes and bitcasts are views of the file. Nothing is computed on it.
    `Tensor.empty(…, device="disk:x")` is the first bytes of a file that may also be written;
    a write is done at once, once its value is computed.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def realize(self, *lst: Any) -> Self:
            """Compute it; in Tensor."""

        def to(self, device: str | None) -> Self:
            """It on a device; in Tensor."""

        def clone(self, device: str | None = None) -> Self:
            """A copy; in Tensor."""

    # ------------------------------------------------------------ numbers and arrays

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a NumPy array, copied; ml_dtypes' where NumPy lacks the dtype.

        >>> Tensor([[1, 2], [3, 4]]).numpy()
        array([[1, 2],
               [3, 4]], dtype=int32)
        """
        import numpy as np

        np_dtype, shape = _to_np_dtype(self.dtype), self._sizes_now()
        if self.uop.op is Ops.CONST:
            return np.array(self.uop.arg, dtype=np_dtype)
        if 0 in self.shape:
            return np.empty(shape, dtype=np_dtype)
        memory = self._in_order()
        if memory.shape == shape:
            return runtime().to_host(memory)
        return runtime().to_host(memory)[tuple([slice(0, n) for n in shape])].copy()

    def _sizes_now(self) -> tuple[int, ...]:
        """The shape, symbolic sizes by what their Variables are bound to.

        ValueError if one is bound to nothing.
        """
        try:
            return tuple([s if isinstance(s, int) else sym_infer(s, {}) for s in self.shape])
        except KeyError as e:
            raise ValueError(
                f"{e.args[0]}, so a tensor of shape {self.shape} has no size; bind it where it "
                "enters the shape"
            ) from None

    def _in_order(self) -> UOp:
        """A realised BUFFER with these values, or a reshape of one.

        Of a symbolic shape: a BUFFER of the upper bounds, at the front of which they are.
        """
        refuse_reading()
        if is_file(self.device):
            return self.to(None)._in_order()
        if self._is_small_part():
            return self.clone()._in_order()
        self.realize()
        node = self.uop
        if not all_int(self.shape):
            if node.op is not Ops.SHRINK or node is not _front_of_memory(node.src[0], self.shape):
                copy = UOp(Ops.CONTIGUOUS, self.dtype, (node,))
                node = runtime().realize([copy])[copy]
            return node.src[0]
        while node.op in (Ops.RESHAPE, Ops.DETACH):
            node = node.src[0]
        if node.op is Ops.BUFFER:
            return (
                node
                if node.shape == self.shape
                else UOp(Ops.RESHAPE, node.dtype, (node,), self.shape)
            )
        copy = UOp(Ops.CONTIGUOUS, self.dtype, (self.uop,))
        return runtime().realize([copy])[copy]

    def data(self) -> memoryview:
        """The memory of the values, shared, in the order of the elements; it keeps it alive.

        Of bfloat16 and eight-bit floats: their bytes.

        >>> Tensor([1, 2, 3]).data().tolist()
        [1, 2, 3]
        """
        import numpy as np

        shape = self._sizes_now()
        if self.uop.op is Ops.CONST or 0 in self.shape:
            array = self.numpy()
        else:
            node = self._in_order()
            array = np.frombuffer(runtime().host_view(node), _to_np_dtype(self.dtype))
            array = array.reshape(node.shape)[tuple([slice(0, n) for n in shape])]
        # ml_dtypes have no format of their own
        return array.data if strong_dtype(self.dtype).fmt else array.view(np.uint8).data

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers; of a scalar the number.

        >>> Tensor([[1.5, 2.0]]).tolist()
        [[1.5, 2.0]]
        """
        array = self.numpy()
        if self.dtype.kind == "8" or self.dtype is dtypes.bfloat16:
            array = array.astype("float32")
        return array.tolist()

    def item(self) -> Any:
        """The one value of a tensor with one element, as a Python number.

        ValueError if it has more or fewer.

        >>> Tensor([[7]]).item()
        7
        """
        numel = prod(self._sizes_now())
        if numel != 1:
            raise ValueError(
                f"item: the tensor must have one element, this one of shape {self.shape} has "
                f"{numel}; use tolist"
            )
        value = self.tolist()
        while isinstance(value, list):
            value = value[0]
        return value

    # ------------------------------------------------------------ memory that is shared

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The values for `np.asarray(t)`: a copy, so that neither side sees what the other writes.

        With copy=False it is the memory itself, to be read only. ValueError where that is no
        array of NumPy's without copying.

        >>> np.asarray(Tensor([1, 2]))
        array([1, 2], dtype=int32)
        """
        import numpy as np

        if copy is not False:
            array = self.numpy()
            return array if dtype is None else array.astype(dtype, copy=False)
        if dtype is not None and np.dtype(dtype) != _to_np_dtype(self.dtype):
            raise ValueError(f"a tensor of {self.dtype} is an array of {dtype} only by copying")
        if self.device is not None and not runtime().is_host(self.device):
            raise ValueError(f"a tensor on {self.device} is an array only by copying")
        refuse_reading()
        found = self._shared_memory()
        if found is None:
            raise ValueError(
                f"this tensor of shape {self.shape} does not lie in memory as an array; it is one "
                "only by copying"
            )
        array = self._as_array(found[0], found[2])
        array.flags.writeable = False
        return array

    def _as_array(
        self, memory: Any, where: tuple[int, list[tuple[int, int]]]
    ) -> np.ndarray[Any, Any]:
        """Memory as an array of this shape and dtype; `where` is what `layout` says."""
        import numpy as np

        flat = np.frombuffer(memory, _to_np_dtype(self.dtype))[where[0] :]
        strides = [s * self.dtype.itemsize for _, s in where[1]]
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's name of the device: (1, 0), memory of the host. BufferError for another one."""
        self._check_shared()
        return OF_HOST

    def _check_shared(self) -> None:
        if self.device is not None and not runtime().is_host(self.device):
            raise BufferError(
                f"the memory of {self.device} can not be shared; move the tensor to the host's "
                'first, with .to("CPU")'
            )

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The memory of now as a capsule: `torch.from_dlpack(t)` and `np.from_dlpack(t)` share it.

        It is computed first, and so is every value that was built on what this memory holds now.
        From then on both sides see what the other one writes: an assignment to this tensor or a
        view of it when it is carried out, and what the other writes at once; a value that is built
        later reads the memory when it is computed. Gradients do not go along.

        Strided views are shared as they are. What is padded, expanded, flipped, a constant or of
        symbolic size is copied, or a BufferError with copy=False; copy=True always copies.
        BufferError for memory that is not the host's, or a dtype that DLPack lacks.
        """
        if stream is not None:
            raise ValueError(f"__dlpack__: memory of the host has no stream, got {stream!r}")
        if dl_device is not None and tuple(dl_device) != OF_HOST:
            raise BufferError(f"__dlpack__: the memory is the host's, (1, 0), and not {dl_device}")
        self._check_shared()
        refuse_reading()
        dtype = strong_dtype(self.dtype)
        found = None if copy else self._shared_memory()
        copied = found is None
        if found is None:
            if copy is False:
                raise BufferError(
                    f"__dlpack__: this tensor of shape {self.shape} does not lie in memory as an "
                    "array; it can only be copied"
                )
            array = self.numpy()
            dims = list(zip(array.shape, strides_of(array.shape), strict=True))
            found = array, array.ctypes.data, (0, dims)
        owner, address, (begin, dims) = found
        versioned = max_version is not None and max_version[0] >= 1
        shape, strides_now = tuple([n for n, _ in dims]), tuple([s for _, s in dims])
        code, bits = _DLPACK_CODES[dtype]
        address += begin * dtype.itemsize
        return give(owner, address, shape, strides_now, code, bits, versioned, copied=copied)

    @in_turn
    def _shared_memory(self) -> tuple[Any, int, tuple[int, list[tuple[int, int]]]] | None:
        """What keeps the memory, its address, and where in it this tensor is, as `layout` says.

        None where that is not all there is to say. The memory is this storage's alone then.
        """
        if not all_int(self.shape) or self.uop.op is Ops.CONST or 0 in self.shape:
            return None
        if self.device is None:  # of nothing that lives anywhere
            return None
        self.realize()
        root = split_view(self.uop)
        where = layout(self.uop, root)
        if root.op is not Ops.BUFFER or where is None:
            return None
        if any(stride < 0 or (stride == 0 and n > 1) for n, stride in where[1]):
            return None
        if not self._storage.owner:
            give_memory(self._storage)
            self.realize()
            root = split_view(self.uop)
        compute_readers([root])
        return runtime().host_view(root), runtime().address(root), where

    @classmethod
    def from_dlpack(cls, x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Self:
        """A tensor over the memory of an array: of NumPy's, PyTorch's, or of a capsule.

        Nothing is copied: both sides see what the other one writes, as with `__dlpack__`. What may
        only be read is copied when it is first written. Arrays with gaps, and those that are not
        aligned to their elements, are copied, or a BufferError with copy=False; copy=True always
        copies. BufferError for memory that is not the host's, or a dtype that is not known here.

        >>> a = np.zeros(3, dtype=np.float32)
        >>> t = Tensor.from_dlpack(a)
        >>> a[1] = 5
        >>> t.tolist()
        [0.0, 5.0, 0.0]
        """
        if hasattr(x, "__dlpack__"):
            kind = x.__dlpack_device__()[0]
            if kind not in (1, 3, 11):  # of the host, some of it pinned for a device
                raise BufferError(
                    f"from_dlpack: the array is on a device of DLPack's kind {kind}; move it to "
                    "the host first"
                )
            try:
                capsule = x.__dlpack__(max_version=(1, 0))
            except TypeError:  # from before there were versions
                capsule = x.__dlpack__()
        else:
            capsule = x
        foreign = Foreign(capsule)
        code, bits, lanes = foreign.dtype
        dtype = _DLPACK_DTYPES.get((code, bits)) if lanes == 1 else None
        if dtype is None:
            raise BufferError(
                f"from_dlpack: DLPack's dtype of code {code} with {bits} bits in {lanes} lanes is "
                "not known here; convert the array first"
            )
        place = runtime().canonicalize_device(device)
        shape = foreign.shape
        steps = zip(shape, foreign.strides, strides_of(shape), strict=True)
        is_plain = all(n == 1 or s == t for n, s, t in steps)
        is_plain = is_plain and foreign.address % dtype.itemsize == 0 and runtime().is_host(place)
        if copy is not True and is_plain and 0 not in shape:
            return cls(runtime().from_memory(foreign, shape, dtype, place))
        if copy is False and 0 not in shape:
            raise BufferError(
                f"from_dlpack: an array of shape {shape} and strides {foreign.strides} at "
                f"{foreign.address:#x} is a tensor on {place} only by copying"
            )
        import numpy as np

        np_dtype = np.dtype(_to_np_dtype(dtype))
        strides = tuple([s * dtype.itemsize for s in foreign.strides])
        buffer = memoryview(foreign) if foreign.nbytes else None
        array = np.ndarray(shape, np_dtype, buffer, foreign.begin, strides if buffer else None)
        return cls(runtime().from_host(array, place))

    @classmethod
    def from_blob(
        cls,
        ptr: int,
        shape: Any,
        dtype: DTypeLike | None = None,
        device: str | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """A tensor over the memory at an address, which is not copied.

        Whoever owns the memory keeps it until the tensor, its views, and what was built on them
        and is not computed yet are gone; what is written to the tensor is written there. The
        elements lie side by side, of `dtype` (by default the default float). ValueError for an
        address that is not aligned to the dtype, or if the device's memory is not the host's.

        >>> a = np.arange(4, dtype=np.float32)
        >>> Tensor.from_blob(a.ctypes.data, (2, 2)).tolist()
        [[0.0, 1.0], [2.0, 3.0]]
        """
        to = dtypes.default_float if dtype is None else strong_dtype(to_dtype(dtype))
        sizes = checked_sizes("from_blob", argfix(shape))
        nbytes = prod(sizes) * to.itemsize
        if not isinstance(nbytes, int):
            raise ValueError(f"from_blob: sizes are ints, got {sizes}; cut the tensor afterwards")
        if not nbytes:
            return cls.empty(*sizes, dtype=to, device=device, requires_grad=requires_grad)
        if ptr <= 0 or ptr % to.itemsize:
            raise ValueError(
                f"from_blob: {ptr:#x} is no address of elements of {to}; it is a multiple of "
                f"{to.itemsize}"
            )
        memory = (ctypes.c_char * nbytes).from_address(ptr)
        place = runtime().canonicalize_device(device)
        return cls(runtime().from_memory(memory, sizes, to, place), requires_grad=requires_grad)

    @classmethod
    def from_url(cls, url: str, gunzip: bool = False, **kwargs: Any) -> Self:
        """The bytes of what is at `url`, downloaded once to the user's cache; see `tiny.fetch`.

        It is a tensor on that file, to be read. `gunzip` unpacks it first. `sha256`, `name`,
        `subdir`, `headers` and `allow_caching` are those of fetch, others those of a Tensor.

        >>> import pathlib
        >>> path = pathlib.Path("greeting").absolute()
        >>> path.write_bytes(b"hi")
        2
        >>> Tensor.from_url(path.as_uri(), name="kept/greeting").tolist()
        [104, 105]
        """
        ours = ("sha256", "name", "subdir", "headers", "allow_caching")
        path = fetch(url, gunzip=gunzip, **{k: kwargs.pop(k) for k in ours if k in kwargs})
        return cls(Path(path), **kwargs)

    def decode_hevc_frame(
        self,
        frame_pos: UOp,
        shape: tuple[int, ...],
        state: Self,
        ref_frames: list[Self] | None = None,
    ) -> Self:
        """The frame at a place of a video stream (HEVC), decoded by the device; uint8 of a shape.

        This tensor holds the stream's bytes, `frame_pos` is a bound Variable, `state` what a
        decoder knows of the stream, and `ref_frames` are frames that were decoded before. TypeError
        for what is not uint8, or a place that is not bound; ValueError for a shape or a device
        that is none. To compute it is NotImplementedError: no device here has a decoder.

        >>> stream, state = Tensor(bytes(100)), Tensor(bytes(64))
        >>> pos = Variable("pos", 0, 9).bind(3)
        >>> stream.decode_hevc_frame(pos, (1080, 1920), state).shape
        (1080, 1920)
        """
        what, parts = "decode_hevc_frame", [self, state, *(ref_frames or ())]
        if not isinstance(frame_pos, UOp) or frame_pos.op is not Ops.BIND:
            raise TypeError(
                f"{what}: frame_pos is a bound Variable, got {frame_pos!r}; write "
                'Variable("pos", 0, most).bind(place)'
            )
        for part in parts:
            if part.dtype is not dtypes.uint8:
                raise TypeError(f"{what}: streams, states and frames are uint8, got {part.dtype}")
            if part.device != self.device:
                raise ValueError(
                    f"{what}: one tensor is on {self.device} and one on {part.device}; move one"
                )
        sizes = checked_sizes(what, tuple(shape))
        if not sizes or not all(isinstance(n, int) and n for n in sizes):
            raise ValueError(f"{what}: the shape of a frame has sizes of at least 1, got {shape}")
        place = runtime().canonicalize_device(self.device)
        memory = runtime().empty(sizes, dtypes.uint8, place)
        sources = [UOp(Ops.CONTIGUOUS, dtypes.uint8, (part.uop,)) for part in parts]
        decoded = UOp(Ops.CUSTOM, dtypes.void, (*sources, frame_pos), what)
        return self._value(UOp(Ops.AFTER, dtypes.uint8, (memory, decoded)), place)

    # ------------------------------------------------------------ text and copies

    def __repr__(self) -> str:
        """Shape, dtype and device; and the values, where they are in memory and few.

        Nothing is computed or read from a device or a file for it. Of what is not computed yet
        it says which operation it is.
        """
        about = f"<Tensor {self.shape} {self.dtype.name} on {self.device}"
        shown = self._shown()
        return f"{about}>" if shown is None else f"{about}: {shown}>"

    def _shown(self) -> str | None:
        """The values as text, or what is to be computed."""
        import numpy as np

        uop = self.uop
        if uop.op is Ops.CONST:
            return str(uop.arg)
        root = split_view(uop)
        if root.op is not Ops.BUFFER:
            what = "written" if root.op is Ops.AFTER else root.op.name.lower()
            return f"{what}, not computed"
        if recorders or not all_int(self.shape) or prod(self.shape) > MOST_SHOWN:
            return None
        where = layout(uop, root)
        if where is None or is_file(self.device) or not runtime().is_realized(root):
            return None
        if 0 in self.shape or not runtime().is_host(root.arg.device):
            return None
        array = self._as_array(runtime().host_view(root), where)
        return " ".join(np.array2string(array, separator=", ").split())

    def __copy__(self) -> Self:
        """Another tensor of the same memory: each sees what is written to the other."""
        root = self._root
        copy = self._view(self._storage, root, self._uop)
        copy.requires_grad, copy.grad = self.requires_grad, self.grad
        return copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy with memory of its own, and its gradient; of a number another number."""
        if self.uop.op is Ops.CONST:
            copy = self._value(leaf(self.uop.arg, self.dtype), self.device)
            copy.requires_grad = self.requires_grad
        else:
            copy = self.clone()
        memo[id(self)] = copy
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        """By value: it is computed to be pickled, and nothing is computed to load it.

        Views come back apart from each other, and without gradients; what was on a file in memory.
        """
        if self.uop.op is Ops.CONST:
            return type(self), (self.uop.arg, None, self.dtype, self.requires_grad)
        place = None if is_file(self.device) else self.device
        return type(self), (self.numpy(), place, None, self.requires_grad)

    # ------------------------------------------------------------ files

    def bitcast(self, dtype: DTypeLike) -> Self:
        to, old = to_dtype(dtype), self.dtype
        is_view = to.itemsize == old.itemsize and dtypes.bool not in (to, old)
        if not is_file(self.device) or is_view or to is old:
            return super().bitcast(dtype)
        return self._bytes_as(to)

    bitcast.__doc__ = RandomMixin.bitcast.__doc__

    def _bytes_as(self, to: DType) -> Self:
        """What is in the file, as another dtype: the last dimension becomes longer or shorter."""
        nbytes = self.shape[-1] * self.dtype.itemsize if self.shape else -1
        if nbytes % to.itemsize:
            raise ValueError(
                f"bitcast: the last dimension of {self.shape} of {self.dtype} is no whole number "
                f"of elements of {to}, which have {to.itemsize} bytes"
            )
        shape = (*self.shape[:-1], nbytes // to.itemsize)
        return self._value(runtime().file_part(self.uop, shape, to), self.device)

    def _write_file(self, value: InterchangeMixin) -> None:
        """Write a value of this shape and dtype to the file that this tensor is on.

        What was to be read from files is read before. The value is computed first, so that the
        file is as it was where that fails.
        """
        if (watching := recorder()) is not None:
            watching.refuse(
                "a file was written while the step was captured: a replay would not write it "
                "again; return the value, and write it outside"
            )
        if 0 in self.shape:
            return
        if files.unread:
            pending = pending_storages()
            read_files(pending, pending)
        runtime().write_file(self.uop, value._bytes())

    def _bytes(self) -> memoryview:
        """The bytes of the values, in the order of the elements; shared where there is memory."""
        import numpy as np

        if self.uop.op is Ops.CONST or 0 in self.shape:
            return self.numpy().reshape(-1).view(np.uint8).data
        return np.frombuffer(runtime().host_view(self._in_order()), np.uint8).data


def opened_file(path: os.PathLike[str], dtype: DType | None) -> UOp:
    """The bytes of a file, or what they are as another dtype."""
    uop = runtime().open_file(os.fspath(path))
    if dtype is None or dtype is dtypes.uint8:
        return uop
    size = uop.shape[0]
    if size % dtype.itemsize:
        raise ValueError(
            f"Tensor: the {size} bytes of {os.fspath(path)} are no whole number of items of "
            f"{dtype}, which has {dtype.itemsize}"
        )
    return runtime().file_part(uop, (size // dtype.itemsize,), dtype)


def _front_of_memory(node: UOp, shape: tuple[Any, ...]) -> UOp | None:
    """The front of a BUFFER of the upper bounds of these sizes; None of anything else."""
    whole = tuple([most(size) for size in shape])
    return node.front(shape) if node.op is Ops.BUFFER and node.shape == whole else None
