"""Memory that tensors share with others: by DLPack, with NumPy, at addresses."""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any, Self

from tiny._core.dlpack import Foreign, give
from tiny.creation import checked_sizes
from tiny.dtype import DTypeLike, _to_np_dtype, dtypes, strong_dtype, to_dtype
from tiny.helpers import all_int, argfix, prod
from tiny.interchange import InterchangeMixin
from tiny.storage import compute_readers, give_memory, in_turn
from tiny.uop.ops import Ops
from tiny.uop.runtime import refuse_reading, runtime
from tiny.views import layout, split_view, strides_of

if TYPE_CHECKING:
    import numpy as np

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


class SharingMixin(InterchangeMixin):
    """A Tensor's memory for others, and that of others as a Tensor, not copied.

    Both sides see what the other one writes: an assignment to a tensor when it is carried out, and
    what the other side writes at once. A value that is built on shared memory reads it when it is
    computed. (`Tensor(array)`, `numpy` and `np.asarray` copy, and share nothing.)
    """

    __slots__ = ()

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
            _check_host(x.__dlpack_device__()[0])
            try:
                capsule = x.__dlpack__(max_version=(1, 0))
            except TypeError:  # from before there were versions
                capsule = x.__dlpack__()
        else:
            capsule = x
        foreign = Foreign(capsule)
        _check_host(foreign.device[0])  # a capsule alone says it only here
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
        if nbytes > sys.maxsize - max(ptr, 0):
            raise ValueError(f"from_blob: no memory at {ptr:#x} has the {nbytes} bytes of {sizes}")
        if ptr <= 0 or ptr % to.itemsize:
            raise ValueError(
                f"from_blob: {ptr:#x} is no address of elements of {to}; it is a multiple of "
                f"{to.itemsize}"
            )
        memory = (ctypes.c_char * nbytes).from_address(ptr)
        place = runtime().canonicalize_device(device)
        return cls(runtime().from_memory(memory, sizes, to, place), requires_grad=requires_grad)


def _check_host(kind: int) -> None:
    """BufferError unless DLPack's kind of a device is one whose memory the host reads."""
    if kind not in (1, 3, 11):  # some of it pinned for a device
        raise BufferError(
            f"from_dlpack: the array is on a device of DLPack's kind {kind}; move it to the host "
            "first"
        )
