"""Nodes of what Python and NumPy hold: numbers, nested lists, arrays, bytes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from tiny.dtype import DType, _from_np_dtype, _to_np_dtype, dtypes, truncate
from tiny.uop.ops import Ops, UOp
from tiny.uop.runtime import runtime

if TYPE_CHECKING:
    import numpy as np

_uniques = itertools.count()


def is_data(x: Any) -> bool:
    """Whether x is an array of NumPy or one of its scalars, told without importing it."""
    return hasattr(x, "__array_interface__") and hasattr(x, "dtype")


def rounded(value: Any, dtype: DType) -> Any:
    """A Python number as a value of a dtype."""
    if dtypes.is_float(dtype) and dtype is not dtypes.weakfloat:
        return truncate[dtype](value)
    return dtype.const(value)


def constant(value: Any, dtype: DType | None) -> UOp:
    to = dtypes.from_py(value) if dtype is None else dtype
    return UOp(Ops.CONST, to, (), rounded(value, to))


def leaf(value: Any, dtype: DType | None) -> UOp:
    """A constant that is like no other, though equal: a target for gradients."""
    to = dtypes.from_py(value) if dtype is None else dtype
    mark = UOp(Ops.UNIQUE, arg=next(_uniques))
    return UOp(Ops.CONST, to, (mark,), rounded(value, to))


def place_of(device: Any) -> str:
    """The one spelling of a device's name. NotImplementedError for several devices."""
    if isinstance(device, tuple | list):
        raise NotImplementedError(
            f"a tensor over several devices, here {tuple(device)}, comes with shard, which is not "
            "there yet; name one device"
        )
    return runtime().canonicalize_device(device)


def from_data(data: Any, device: str | None, dtype: DType | None) -> UOp:
    """Memory with the contents of an array, of bytes or of lists."""
    import numpy as np

    place = place_of(device)
    if isinstance(data, bytes | bytearray | memoryview):
        to = dtype or dtypes.uint8
        raw = memoryview(data).cast("B")
        if raw.nbytes % to.itemsize:
            raise ValueError(
                f"Tensor: {raw.nbytes} bytes are no whole number of items of {to}, which has "
                f"{to.itemsize}"
            )
        return runtime().from_host(np.frombuffer(raw, _to_np_dtype(to)), place)
    if is_data(data):
        array = np.ascontiguousarray(data)
        array = array.astype(array.dtype.newbyteorder("="), copy=False).reshape(data.shape)
        _from_np_dtype(array.dtype)  # names a dtype that is not known
        uop = runtime().from_host(array, place)
        return uop if dtype is None or dtype is uop.dtype else uop.cast(dtype)
    if not isinstance(data, list | tuple | range):
        raise TypeError(
            "Tensor: a number, a list of numbers, a NumPy array, bytes or a Path are expected, got "
            f"{type(data).__name__}"
        )
    _refuse_strangers(data)
    return runtime().from_host(_from_lists(data, dtype), place)


def _refuse_strangers(data: Any) -> None:
    """TypeError naming what is no number in nested lists."""
    todo = [data]
    while todo:
        values = todo.pop()
        kinds = set(map(type, values))
        if any(issubclass(kind, list | tuple | range) for kind in kinds):
            todo += [v for v in values if isinstance(v, list | tuple | range)]
        for kind in kinds:
            if issubclass(kind, _NUMBERS) or hasattr(kind, "__array_interface__"):
                continue
            found = next(v for v in values if type(v) is kind)
            if hasattr(kind, "uop") or kind is UOp:
                raise TypeError(
                    "Tensor: the lists hold a Tensor, whose values are not known before it runs; "
                    "join tensors with Tensor.stack or Tensor.cat"
                )
            raise TypeError(f"Tensor: the lists must hold numbers only, got {found!r} among them")


_NUMBERS = (bool, int, float, list, tuple, range)


def number(what: str, value: Any) -> Any:
    """A number of Python, or an expression of Variables. TypeError for anything else."""
    if isinstance(value, bool | int | float | UOp):
        return value
    if is_data(value) and value.shape == () and value.dtype.kind in "biufV":
        return float(value) if value.dtype.kind in "fV" else value.item()
    raise TypeError(f"{what}: a number is expected, got {type(value).__name__} {value!r}")


def _from_lists(data: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    """Nested lists as an array of a dtype, by default that of their kind of numbers."""
    import numpy as np

    try:
        array = np.array(data)
    except ValueError:
        raise ValueError(
            "Tensor: the lists are ragged; all lists of one level must have one length"
        ) from None
    if array.dtype == np.float64 and np.any((abs(array) >= 1 << 53) & np.isfinite(array)):
        # ints of which some need uint64, or beside floats: NumPy has rounded them
        as_given = np.array(data, dtype=object)
        array = as_given if any(type(v) is int for v in as_given.flat) else array
    first = data
    while isinstance(first, list | tuple | range) and first:
        first = first[0]
    if array.dtype.kind not in "biuf" and not (array.dtype == object and _all_numbers(array)):
        _from_np_dtype(array.dtype)  # names a dtype that is not known
    if is_data(first):  # arrays of NumPy, or its scalars: their dtype says what is meant
        to = dtype or _from_np_dtype(array.dtype)
    else:
        kinds = {"b": dtypes.bool, "f": dtypes.default_float}
        kind = array.dtype.kind
        if kind == "O" and any(isinstance(v, float) for v in array.flat):
            kind = "f"
        to = dtype or kinds.get(kind, dtypes.default_int)
        whole = dtype is None and dtypes.is_int(to) and array.size
        if whole and not (to.min <= array.min() and array.max() <= to.max):
            raise ValueError(
                f"Tensor: {array.min()} to {array.max()} does not fit into {to}; pass dtype=int64"
            )
    np_dtype = _to_np_dtype(to)
    plain = array.dtype.kind in "biu" and not dtypes.is_float(to)
    if plain or (array.dtype.kind in "biuf" and to.kind == "f"):
        with np.errstate(over="ignore"):
            if to is dtypes.bfloat16:  # ml_dtypes would round to float32 first
                array = _to_odd_float32(array)
            return array.astype(np_dtype)
    if to is dtypes.bool:
        return array != 0
    values = [truncate[to](v) for v in array.ravel().tolist()]
    return np.array(values, dtype=np_dtype).reshape(array.shape)


def _to_odd_float32(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers as float32 to be rounded further: where one is not exact, its last bit is 1.

    Rounding that to fewer bits is as good as rounding the number (Boldo and Melquiond, 2008).
    """
    import numpy as np

    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        # the low bits of a large one become a single bit, which float64 holds
        low = ((array & 0xFFF != 0) * 0x800).astype(array.dtype)
        array = np.where(abs(array >> 1) > 1 << 52, (array >> 12 << 12) | low, array)
    exact = array.astype(np.float64)
    near = exact.astype(np.float32)
    back = near.astype(np.float64)
    odd = (near.view(np.int32) - (abs(back) > abs(exact)) | 1).view(np.float32)
    return np.where(back != exact, odd, near)


def _all_numbers(array: np.ndarray[Any, Any]) -> bool:
    return all(isinstance(v, int | float) for v in array.flat)
