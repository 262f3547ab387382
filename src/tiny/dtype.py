"""The dtypes: names, promotion, rounding to a dtype, and NumPy's and PyTorch's names for them."""

from __future__ import annotations

import builtins
import ctypes
import functools
import math
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from tiny._core.types import DType
from tiny.helpers import DEFAULT_FLOAT, DEFAULT_INT

if TYPE_CHECKING:
    import numpy
    import torch

__all__ = [
    "DTYPES_DICT",
    "AddrSpace",
    "ConstType",
    "DType",
    "DTypeLike",
    "Invalid",
    "dtypes",
    "float_to_fp8",
    "fp8_to_float",
    "least_upper_dtype",
    "least_upper_float",
    "strong_dtype",
    "sum_acc_dtype",
    "to_dtype",
    "truncate",
]


class InvalidType:
    """The type of `Invalid`: what stands where no value is, an index off the end, say."""

    def __repr__(self) -> str:
        return "Invalid"

    def __reduce__(self) -> str:
        return "Invalid"  # by name: there is only one


Invalid = InvalidType()
PyConst = bool | int | float
ConstType = bool | int | float | InvalidType
DTypeLike = str | DType


class AddrSpace(IntEnum):
    """Where memory is: seen by all, by a work-group, by one thread, or in the arithmetic unit."""

    GLOBAL = 1
    LOCAL = 2
    REG = 3
    ALU = 4

    def __repr__(self) -> str:
        return f"AddrSpace.{self.name}"

    __str__ = __repr__


class DTypes:
    """The namespace `dtypes`: every dtype under its name, groups of them, and questions.

    The weak dtypes are those of Python scalars: they give way to whatever they meet of their own
    kind. `index` is the dtype of index arithmetic and of loop variables: exact 64-bit integers.
    """

    # the numbers order the dtypes for promotion: a result is the lowest one that holds both
    void = DType("void", -1, 0, None, "v")
    bool = DType("bool", 0, 1, "?", "b")
    weakint = DType("weakint", 1, 64, None, "w")
    int8 = DType("int8", 2, 8, "b", "i")
    uint8 = DType("uint8", 3, 8, "B", "u")
    int16 = DType("int16", 4, 16, "h", "i")
    uint16 = DType("uint16", 5, 16, "H", "u")
    int32 = DType("int32", 6, 32, "i", "i")
    uint32 = DType("uint32", 7, 32, "I", "u")
    int64 = DType("int64", 8, 64, "q", "i")
    uint64 = DType("uint64", 9, 64, "Q", "u")
    index = DType("index", 10, 64, "q", "x")
    weakfloat = DType("weakfloat", 11, 64, None, "w")
    fp8e4m3 = DType("fp8e4m3", 12, 8, None, "8")
    fp8e5m2 = DType("fp8e5m2", 13, 8, None, "8")
    fp8e4m3fnuz = DType("fp8e4m3fnuz", 14, 8, None, "8")
    fp8e5m2fnuz = DType("fp8e5m2fnuz", 15, 8, None, "8")
    float16 = DType("float16", 16, 16, "e", "f")
    bfloat16 = DType("bfloat16", 17, 16, None, "f")
    float32 = DType("float32", 18, 32, "f", "f")
    float64 = DType("float64", 19, 64, "d", "f")

    half, float, double = float16, float32, float64
    char, short, int, long = int8, int16, int32, int64
    uchar, ushort, uint, ulong = uint8, uint16, uint32, uint64

    fp8_ocp = (fp8e4m3, fp8e5m2)
    fp8_fnuz = (fp8e4m3fnuz, fp8e5m2fnuz)
    fp8s = fp8_ocp + fp8_fnuz
    floats = (*fp8s, float16, bfloat16, float32, float64)
    uints = (uint8, uint16, uint32, uint64)
    sints = (int8, int16, int32, int64)
    ints = uints + sints
    int8s, int16s, int32s, int64s = zip(uints, sints, strict=True)
    weaks = (weakint, weakfloat)
    all = (*floats, *ints, bool)

    @property
    def default_float(self) -> DType:
        """The dtype of Python floats where they are stored, set by DEFAULT_FLOAT.

        ValueError if that names no float.
        """
        found = to_dtype(DEFAULT_FLOAT.value)
        if found.kind not in "f8":
            raise ValueError(f"DEFAULT_FLOAT={DEFAULT_FLOAT.value}: {found} is no float")
        return found

    @property
    def default_int(self) -> DType:
        """The dtype of Python ints where they are stored, set by DEFAULT_INT.

        ValueError if that names no integer.
        """
        found = to_dtype(DEFAULT_INT.value)
        if found.kind not in "iu":
            raise ValueError(f"DEFAULT_INT={DEFAULT_INT.value}: {found} is no integer")
        return found

    @staticmethod
    def is_float(dtype: DType) -> builtins.bool:
        """Whether the values are floating point numbers, of eight bits or weak ones included."""
        return dtype.kind in "f8" or dtype is dtypes.weakfloat

    @staticmethod
    def is_int(dtype: DType) -> builtins.bool:
        """Whether the values are integers, signed, unsigned, weak or indices; not bool."""
        return dtype.kind in "iux" or dtype is dtypes.weakint

    @staticmethod
    def is_unsigned(dtype: DType) -> builtins.bool:
        """Whether the values are unsigned integers."""
        return dtype.kind == "u"

    @staticmethod
    def is_bool(dtype: DType) -> builtins.bool:
        """Whether the values are truth values."""
        return dtype.kind == "b"

    @staticmethod
    def from_py(x: Any) -> DType:
        """The dtype of a Python scalar (weak), or of a list of them (the default of its kind).

        TypeError for anything else.
        """
        if isinstance(x, builtins.bool | InvalidType):
            return dtypes.bool
        if isinstance(x, builtins.float):
            return dtypes.weakfloat
        if isinstance(x, builtins.int):
            return dtypes.weakint
        if isinstance(x, list | tuple):
            if not x:
                return dtypes.default_float
            return strong_dtype(max((dtypes.from_py(v) for v in x), key=lambda d: d.priority))
        raise TypeError(
            f"no dtype is known for {x!r} of type {type(x).__name__}; "
            "pass a bool, an int, a float or a list of them"
        )

    @staticmethod
    def finfo(dtype: DType) -> tuple[builtins.int, builtins.int]:
        """(bits of the exponent, bits of the mantissa) of a float. ValueError for other dtypes."""
        if dtype not in _FLOAT_BITS:
            raise ValueError(f"finfo: {dtype} is not a float of a fixed size; cast to one first")
        return _FLOAT_BITS[dtype]

    @staticmethod
    def min(dtype: DType) -> ConstType:
        """The smallest value: -inf for floats."""
        return dtype.min

    @staticmethod
    def max(dtype: DType) -> ConstType:
        """The largest value: inf for floats."""
        return dtype.max

    @staticmethod
    def fields() -> dict[str, DType]:
        """All dtypes that memory can hold, by name, short names included."""
        return DTYPES_DICT


dtypes = DTypes()

_BY_NAME = {name: dtype for name, dtype in vars(DTypes).items() if isinstance(dtype, DType)}
DTYPES_DICT = {name: dtype for name, dtype in _BY_NAME.items() if dtype.kind not in "vwx"}

_FLOAT_BITS = {
    dtypes.fp8e4m3: (4, 3),
    dtypes.fp8e5m2: (5, 2),
    dtypes.fp8e4m3fnuz: (4, 3),
    dtypes.fp8e5m2fnuz: (5, 2),
    dtypes.float16: (5, 10),
    dtypes.bfloat16: (8, 7),
    dtypes.float32: (8, 23),
    dtypes.float64: (11, 52),
}


def to_dtype(dtype: DTypeLike) -> DType:
    """The dtype of values, given as itself or by name.

    ValueError for a name that no dtype has, TypeError for void and for what is no dtype.
    """
    found = dtype if isinstance(dtype, DType) else None
    if found is None:
        if not isinstance(dtype, str):
            raise TypeError(f"a dtype or its name is expected, got {dtype!r}; write dtypes.float32")
        found = _BY_NAME.get(dtype.lower())
    if found is None:
        raise ValueError(f"no dtype is named {dtype!r}; there are {', '.join(DTYPES_DICT)}")
    if found is dtypes.void:
        raise TypeError(f"void is the dtype of no value; there are {', '.join(DTYPES_DICT)}")
    return found


# ---------------------------------------------------------------- promotion

# What each dtype gives way to, as in JAX (its JEP 9407) without complex numbers. Two differences,
# both tinygrad's: eight-bit floats meet at float16, and Python scalars have places of their own.
_GIVES_WAY_TO = {
    dtypes.bool: (dtypes.weakint,),
    dtypes.weakint: (dtypes.int8, dtypes.uint8),
    dtypes.int8: (dtypes.int16,),
    dtypes.int16: (dtypes.int32,),
    dtypes.int32: (dtypes.int64,),
    dtypes.int64: (dtypes.index,),
    dtypes.uint8: (dtypes.int16, dtypes.uint16),
    dtypes.uint16: (dtypes.int32, dtypes.uint32),
    dtypes.uint32: (dtypes.int64, dtypes.uint64),
    dtypes.uint64: (dtypes.weakfloat,),
    dtypes.index: (dtypes.weakfloat,),
    dtypes.weakfloat: dtypes.fp8s,
    dtypes.fp8e4m3: (dtypes.float16, dtypes.bfloat16),
    dtypes.fp8e5m2: (dtypes.float16, dtypes.bfloat16),
    dtypes.fp8e4m3fnuz: (dtypes.float16, dtypes.bfloat16),
    dtypes.fp8e5m2fnuz: (dtypes.float16, dtypes.bfloat16),
    dtypes.float16: (dtypes.float32,),
    dtypes.bfloat16: (dtypes.float32,),
    dtypes.float32: (dtypes.float64,),
    dtypes.float64: (),
}


@functools.cache
def _at_least(dtype: DType) -> frozenset[DType]:
    """The dtypes that a value of this one can be promoted to, itself included."""
    if dtype not in _GIVES_WAY_TO:
        raise TypeError(f"{dtype} takes no part in arithmetic")
    return frozenset({dtype}).union(*map(_at_least, _GIVES_WAY_TO[dtype]))


@functools.cache
def least_upper_dtype(*ds: DType) -> DType:
    """The dtype in which values of all these dtypes meet.

    TypeError for void, and for no dtypes at all.

    >>> from tiny.dtype import least_upper_dtype
    >>> least_upper_dtype(dtypes.int8, dtypes.uint8), least_upper_dtype(dtypes.int64, dtypes.half)
    (dtypes.int16, dtypes.float16)
    """
    if not ds:
        raise TypeError("least_upper_dtype: of no dtypes; pass one at least")
    return min(frozenset.intersection(*map(_at_least, ds)), key=lambda d: d.priority)


def least_upper_float(dtype: DType) -> DType:
    """The float dtype for the result of exp, division and their like: a float stays itself."""
    if dtypes.is_float(dtype):
        return dtype
    if dtype is dtypes.weakint:
        return dtypes.weakfloat
    return least_upper_dtype(dtype, dtypes.default_float)


def strong_dtype(dtype: DType) -> DType:
    """The dtype in which a value is stored: the default of its kind for a weak one."""
    if dtype is dtypes.weakint:
        return dtypes.default_int
    return dtypes.default_float if dtype is dtypes.weakfloat else dtype


def sum_acc_dtype(dtype: DType) -> DType:
    """The dtype in which a sum accumulates: at least 32 bits of the same kind."""
    if dtypes.is_unsigned(dtype):
        return least_upper_dtype(dtype, dtypes.uint32)
    if dtypes.is_float(dtype):
        return least_upper_dtype(dtype, dtypes.float32)
    return least_upper_dtype(dtype, dtypes.int32)


# ---------------------------------------------------------------- eight-bit floats

# (bits of the mantissa, bias of the exponent, code of the largest finite value)
_FP8_FORMATS = {
    dtypes.fp8e4m3: (3, 7, 0x7E),
    dtypes.fp8e5m2: (2, 15, 0x7B),
    dtypes.fp8e4m3fnuz: (3, 8, 0x7F),
    dtypes.fp8e5m2fnuz: (2, 16, 0x7F),
}


def float_to_fp8(x: float, dtype: DType) -> int:
    """The eight bits nearest to `x`, ties to even; too large a number becomes the largest.

    Infinity stays one in e5m2, becomes NaN where the format has none. fnuz has no -0.
    """
    if dtype not in _FP8_FORMATS:
        raise ValueError(f"float_to_fp8: {dtype} is not an eight-bit float")
    mantissa_bits, bias, largest = _FP8_FORMATS[dtype]
    sign = 0x80 if math.copysign(1.0, x) < 0 else 0
    if not math.isfinite(x):
        if dtype in dtypes.fp8_fnuz:
            return 0x80
        if dtype is dtypes.fp8e5m2 and math.isinf(x):
            return sign | 0x7C
        return sign | 0x7F
    exponent = max(math.frexp(x)[1] - 1, 1 - bias) if x else 1 - bias
    steps = round(math.ldexp(abs(x), mantissa_bits - exponent))
    # The implicit bit of `steps` adds one to the exponent's field, and so does a carry.
    code = min(((exponent + bias - 1) << mantissa_bits) + steps, largest)
    return code if code == 0 and dtype in dtypes.fp8_fnuz else sign | code


def fp8_to_float(x: int, dtype: DType) -> float:
    """The value of the eight bits `x`."""
    if dtype not in _FP8_FORMATS:
        raise ValueError(f"fp8_to_float: {dtype} is not an eight-bit float")
    mantissa_bits, bias, largest = _FP8_FORMATS[dtype]
    sign, code = (-1.0 if x & 0x80 else 1.0), x & 0x7F
    if dtype in dtypes.fp8_fnuz:
        if x == 0x80:
            return math.nan
    elif code > largest:
        infinite = dtype is dtypes.fp8e5m2 and code == largest + 1
        return math.copysign(math.inf if infinite else math.nan, sign)
    field, fraction = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    steps = fraction + (1 << mantissa_bits) if field else fraction
    return sign * math.ldexp(steps, max(field, 1) - bias - mantissa_bits)


# ---------------------------------------------------------------- rounding to a dtype


def _to_odd_float64(x: PyConst) -> float:
    """A number as float64, to be rounded further: of a large integer the last bit is 1 if it is
    not exact, so that rounding again is rounding the integer (Boldo and Melquiond, 2008).
    """
    near = float(x)  # OverflowError where that is too large
    if not isinstance(x, int) or (excess := x.bit_length() - 53) <= 0:
        return near
    kept = abs(x) >> excess
    odd = kept | (kept << excess != abs(x))
    return math.copysign(math.ldexp(odd, excess), x)


def _to_float16(x: PyConst) -> float:
    try:
        rounded: float = struct.unpack("<e", struct.pack("<e", float(x)))[0]
        return rounded
    except OverflowError:
        return math.copysign(math.inf, x)


def _to_float32(x: PyConst) -> float:
    return ctypes.c_float(_to_odd_float64(x)).value


def _to_bfloat16(x: PyConst) -> float:
    x = _to_odd_float64(x)
    if not 0 < abs(x) < 2.0**128:
        return x if x == 0 or math.isnan(x) else math.copysign(math.inf, x)
    exponent = max(math.frexp(x)[1] - 1, -126)
    steps = round(math.ldexp(abs(x), 7 - exponent))  # ties to even
    size = math.ldexp(steps, exponent - 7)
    return math.copysign(size if size < 2.0**128 else math.inf, x)


def _to_fp8(x: PyConst, dtype: DType) -> float:
    return fp8_to_float(float_to_fp8(float(x), dtype), dtype)


def _to_integer(x: PyConst, dtype: DType) -> int:
    if isinstance(x, float):
        if math.isnan(x):
            return 0
        # As every device converts: narrow integers by way of int32, uint32 by way of int64.
        if dtype.bitsize < 32:
            low, high = dtypes.int32.min, dtypes.int32.max
        elif dtype in (dtypes.uint32, dtypes.uint64):
            low, high = dtypes.int64.min, dtypes.int64.max if dtype.bitsize == 32 else dtype.max
        else:
            low, high = dtype.min, dtype.max
        x = high if x >= high else low if x <= low else int(x)
    wrapped = int(x) & ((1 << dtype.bitsize) - 1)
    if dtype.kind != "u" and wrapped >> (dtype.bitsize - 1):
        wrapped -= 1 << dtype.bitsize
    return wrapped


#: truncate[dtype](x): the Python scalar `x` as a value of that dtype, as the machine converts it
truncate: dict[DType, Callable[[Any], Any]] = {
    dtypes.bool: bool,
    dtypes.float16: _to_float16,
    dtypes.bfloat16: _to_bfloat16,
    dtypes.float32: _to_float32,
    dtypes.float64: float,
    **{dtype: functools.partial(_to_fp8, dtype=dtype) for dtype in dtypes.fp8s},
    **{
        dtype: functools.partial(_to_integer, dtype=dtype) for dtype in (*dtypes.ints, dtypes.index)
    },
}


# ---------------------------------------------------------------- NumPy and PyTorch


@functools.cache
def _np_types() -> dict[DType, type]:
    import ml_dtypes
    import numpy as np

    return {
        **{d: np.dtype(d.fmt).type for d in (*DTYPES_DICT.values(), dtypes.index) if d.fmt},
        dtypes.bfloat16: ml_dtypes.bfloat16,
        dtypes.fp8e4m3: ml_dtypes.float8_e4m3fn,
        dtypes.fp8e5m2: ml_dtypes.float8_e5m2,
        dtypes.fp8e4m3fnuz: ml_dtypes.float8_e4m3fnuz,
        dtypes.fp8e5m2fnuz: ml_dtypes.float8_e5m2fnuz,
    }


def _to_np_dtype(dtype: DType) -> type | None:
    """NumPy's scalar type for a dtype, ml_dtypes' where NumPy has none; None for void."""
    return _np_types().get(strong_dtype(dtype))


@functools.cache
def _from_np_types() -> dict[Any, DType]:
    import numpy as np

    return {np.dtype(t): d for d, t in _np_types().items() if d is not dtypes.index}


def _from_np_dtype(npdtype: numpy.dtype[Any] | type) -> DType:
    """The dtype for NumPy's (or ml_dtypes'). TypeError if there is none, for complex say."""
    import numpy as np

    found = _from_np_types().get(np.dtype(npdtype).newbyteorder("="))
    if found is None:
        raise TypeError(
            f"NumPy's {np.dtype(npdtype)} has no counterpart here; "
            f"convert the array with .astype to one of {', '.join(d.name for d in dtypes.all)}"
        )
    return found


@functools.cache
def _torch_types() -> dict[DType, torch.dtype]:
    import torch

    names = {
        dtypes.fp8e4m3: "float8_e4m3fn",
        dtypes.fp8e5m2: "float8_e5m2",
        dtypes.fp8e4m3fnuz: "float8_e4m3fnuz",
        dtypes.fp8e5m2fnuz: "float8_e5m2fnuz",
    }
    return {d: getattr(torch, names.get(d, d.name)) for d in dtypes.all}


def _to_torch_dtype(dtype: DType) -> torch.dtype | None:
    """PyTorch's dtype for a dtype; None if it has none."""
    return _torch_types().get(strong_dtype(dtype))


def _from_torch_dtype(torchdtype: torch.dtype) -> DType:
    """The dtype for PyTorch's. TypeError if there is none."""
    for dtype, theirs in _torch_types().items():
        if theirs is torchdtype:
            return dtype
    raise TypeError(f"PyTorch's {torchdtype} has no counterpart here; convert the tensor first")
