"""Values as others have them: numbers of Python, arrays of NumPy, files, and text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tiny.creation import checked_sizes
from tiny.dtype import DType, DTypeLike, _to_np_dtype, dtypes, strong_dtype, to_dtype
from tiny.helpers import all_int, fetch, prod
from tiny.mixin.sizes import most
from tiny.randomness import RandomMixin
from tiny.storage import pending_storages, read_files
from tiny.uop.ops import Ops, UOp, sym_infer
from tiny.uop.runtime import files, is_file, recorder, recorders, refuse_reading, runtime
from tiny.values import leaf
from tiny.views import layout, split_view

if TYPE_CHECKING:
    import numpy as np

MOST_SHOWN = 64  # elements in a repr


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
            return np.array(self._strong().uop.arg, dtype=np_dtype)
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

        To be read only, since other values may be read from it; `np.from_dlpack` gives memory to
        write to. Of bfloat16 and eight-bit floats: their bytes.

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
        if not strong_dtype(self.dtype).fmt:  # ml_dtypes have no format of their own
            array = np.atleast_1d(array).view(np.uint8)
        return array.data.toreadonly()

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

    def _as_array(
        self, memory: Any, where: tuple[int, list[tuple[int, int]]]
    ) -> np.ndarray[Any, Any]:
        """Memory as an array of this shape and dtype; `where` is what `layout` says."""
        import numpy as np

        flat = np.frombuffer(memory, _to_np_dtype(self.dtype))[where[0] :]
        strides = [s * self.dtype.itemsize for _, s in where[1]]
        return np.lib.stride_tricks.as_strided(flat, self.shape, strides)

    # ------------------------------------------------------------ files and frames

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
