"""Operations that a target lacks, made of those that it has.

- Arithmetic of float16, bfloat16 and the eight-bit floats: in float32, each result rounded to
  nearest even. Values stay in their storage type between a load and a store.
- MATH, EXP2, LOG2, SIN, THREEFRY, RECIPROCAL, where they are not among `Target.native_ops`.
- Division and modulo of integers by a power of two. Those of dtype `index` are left as they are,
  since passes over index expressions follow: `lower_division` is for after them.

Nothing here changes a result: these are what the operations mean.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tiny.codegen.lower.functions import IN_FLOAT32, LOWERED, PERIODIC
from tiny.codegen.lower.trigonometry import largest_magnitude
from tiny.dtype import DType, dtypes, truncate
from tiny.uop.ops import GroupOp, Ops, UOp
from tiny.uop.passes import compiler_pass

if TYPE_CHECKING:
    from tiny.uop.target import Target

__all__ = ["decompose", "lower_division", "threefry"]


@compiler_pass("decompose", "tiled kernel", "kernel of operations that the target has")
def decompose(sink: UOp, target: Target) -> UOp:
    """The graph with every operation that the target lacks made of others, in one walk.

    It takes a kernel of scalars (level 2), or any graph of elementwise operations.
    """
    lowered: dict[UOp, UOp] = {}
    for node in sink.postorder():
        lowered[node] = _lower_node(node, tuple([lowered[s] for s in node.src]), target)
    return lowered[sink]


def _lower_node(node: UOp, src: tuple[UOp, ...], target: Target) -> UOp:
    """One node over sources that are lowered already."""
    op, dtype = node.op, node.dtype
    if op is Ops.CAST:
        return _cast(src[0], dtype, target)
    if op is Ops.CONST:
        return _constant(node) if dtype in _FORMATS else node
    if op in (Ops.REDUCE, Ops.SCAN) and dtype in _FORMATS:
        # the accumulator is a float32, rounded once
        values = [_widen(s, target) if s.dtype is dtype else s for s in src]
        wide = node.replace(dtype=dtypes.float32, src=tuple(values))
        return _narrow(wide, dtype, target)
    if op not in _ARITHMETIC:
        return node if src == node.src else node.replace(src=src)
    if src[0].dtype not in _FORMATS:
        return _lower_operation(node, op, dtype, src, target)
    src = tuple([_widen(s, target) for s in src])
    if dtype not in _FORMATS:  # a comparison
        return UOp(op, dtype, src)
    return _narrow(_lower_operation(node, op, dtypes.float32, src, target), dtype, target)


_ARITHMETIC = GroupOp.ALU - {Ops.WHERE}


def _lower_operation(node: UOp, op: Ops, dtype: DType, src: tuple[UOp, ...], target: Target) -> UOp:
    """An operation whose operands are of a dtype that the target computes with."""
    if op not in target.native_ops:
        if (name := _NAMES.get(op) or node.arg if op in _FUNCTIONS else None) is not None:
            return _function(name, node.src[0], src, target)
        if (make := _MADE_OF_OTHERS.get(op)) is not None:
            return make(*src)
    if dtype.kind in "iu" and (shifted := _divide_by_shift(op, src)) is not None:
        return shifted
    if op is Ops.FDIV and (product := _divide_by_power_of_two(*src)) is not None:
        return product
    if op is node.op and dtype is node.dtype and src == node.src:
        return node
    return UOp(op, dtype, src, node.arg)


# ---------------------------------------------------------------- functions

_NAMES = {Ops.EXP2: "exp2", Ops.LOG2: "log2", Ops.SIN: "sin"}
_FUNCTIONS = {*_NAMES, Ops.MATH}


def _function(name: str, before: UOp, src: tuple[UOp, ...], target: Target) -> UOp:
    """A function of float32 or float64, `before` being its operand before it was lowered."""
    if (
        src[0].dtype is dtypes.float32
        and name not in IN_FLOAT32
        and dtypes.float64 not in target.dtypes
    ):
        raise TypeError(
            f"{target.device}: {name} is made of float64 arithmetic there, which it lacks; "
            "compute it on another device"
        )
    if name in PERIODIC:
        return PERIODIC[name](src[0], largest_magnitude(before))
    return LOWERED[name](*src)


# ---------------------------------------------------------------- division


def _divide_by_power_of_two(x: UOp, y: UOp) -> UOp | None:
    """x / 2**k -> x * 2**-k: exact, where 2**-k is a number of that dtype."""
    if y.op is not Ops.CONST or not math.isfinite(y.arg) or abs(math.frexp(y.arg)[0]) != 0.5:
        return None
    inverse = 1.0 / y.arg if abs(y.arg) > 2.0**-1022 else math.inf
    if truncate[y.dtype](inverse) != inverse or math.isinf(inverse):
        return None
    return x * y.const_like(inverse)


def _divide_by_shift(op: Ops, src: tuple[UOp, ...]) -> UOp | None:
    """Division or modulo of integers by 2**k as shifts and masks."""
    if op not in (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD) or src[1].op is not Ops.CONST:
        return None
    x, divisor = src[0], src[1].arg
    if divisor <= 0 or divisor & (divisor - 1):
        return None
    shift, mask = x.const_like(divisor.bit_length() - 1), x.const_like(divisor - 1)
    if op in (Ops.CDIV, Ops.CMOD) and x.vmin < 0:
        # towards zero: a negative x is rounded up
        sign = x.alu(Ops.SHR, x.const_like(8 * x.dtype.itemsize - 1))
        above = x + sign.alu(Ops.AND, mask)
        if op is Ops.CDIV:
            return above.alu(Ops.SHR, shift)
        return x - above.alu(Ops.AND, x.const_like(-divisor))
    return x.alu(Ops.SHR, shift) if op in (Ops.FLOORDIV, Ops.CDIV) else x.alu(Ops.AND, mask)


def lower_division(node: UOp) -> UOp | None:
    """x // 2**k -> x >> k, x % 2**k -> x & (2**k - 1), truncating ones too, for any integers.

    None if the node is no such thing.
    """
    return _divide_by_shift(node.op, node.src) if node.dtype.kind in "iux" else None


# ---------------------------------------------------------------- random bits


def threefry(x: UOp, key: UOp) -> UOp:
    """Threefry-2x32 with 20 rounds of the two words of `x`, keyed by those of `key`: uint64 each.

    Method: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    uint32, uint64 = dtypes.uint32, dtypes.uint64
    a, b = x.cast(uint32), (x >> 32).cast(uint32)
    first, second = key.cast(uint32), (key >> 32).cast(uint32)
    keys = (first, second, first ^ second ^ 0x1BD11BDA)
    a, b = a + keys[0], b + keys[1]
    for group in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            a = a + b
            b = ((b << turn) | (b >> (32 - turn))) ^ a
        a = a + keys[(group + 1) % 3]
        b = b + keys[(group + 2) % 3] + (group + 1)
    return (b.cast(uint64) << 32) | a.cast(uint64)


_MADE_OF_OTHERS: dict[Ops, Callable[..., UOp]] = {
    Ops.THREEFRY: threefry,
    Ops.RECIPROCAL: lambda x: x.const_like(1.0).alu(Ops.FDIV, x),
}


# ---------------------------------------------------------------- narrow floats


class _Format(NamedTuple):
    """How the bits of a float narrower than 32 bits are read."""

    uint: DType  # the integer of its size
    mantissa_bits: int
    bias: int
    largest: int  # code of the largest finite number
    overflow: int  # code of what is too large: infinity, or the largest in eight bits
    infinity: int  # code that infinity becomes
    nan: int  # code of NaN
    signed_zero: bool = True


_FORMATS = {
    dtypes.float16: _Format(dtypes.uint16, 10, 15, 0x7BFF, 0x7C00, 0x7C00, 0x7E00),
    dtypes.bfloat16: _Format(dtypes.uint16, 7, 127, 0x7F7F, 0x7F80, 0x7F80, 0x7FC0),
    dtypes.fp8e4m3: _Format(dtypes.uint8, 3, 7, 0x7E, 0x7E, 0x7F, 0x7F),
    dtypes.fp8e5m2: _Format(dtypes.uint8, 2, 15, 0x7B, 0x7B, 0x7C, 0x7F),
    dtypes.fp8e4m3fnuz: _Format(dtypes.uint8, 3, 8, 0x7F, 0x7F, 0x80, 0x80, False),
    dtypes.fp8e5m2fnuz: _Format(dtypes.uint8, 2, 16, 0x7F, 0x7F, 0x80, 0x80, False),
}

# any of these converts between float16 and float32 in vectors, without a library
_CONVERTS_FLOAT16 = frozenset({"f16c", "avx512fp16", "neon", "fp16", "cl_khr_fp16"})


def _cast(x: UOp, dtype: DType, target: Target) -> UOp:
    """A conversion, by way of float32 where either end is narrow."""
    if x.dtype is dtype:
        return x
    if x.dtype in _FORMATS:
        return _cast(_widen(x, target), dtype, target)
    if dtype not in _FORMATS:
        return x.cast(dtype)
    # What is rounded twice may be rounded wrong, and here it would be often.
    if x.dtype is dtypes.float64:
        return _narrow(_to_odd_float32(x), dtype, target)
    if dtype is dtypes.bfloat16 and (x.vmin < -(1 << 24) or x.vmax > 1 << 24):
        return _narrow(_to_odd_float32(_integer_to_odd_float64(x)), dtype, target)
    # integers beyond 2**24, where float32 is not exact, are too large for the other formats
    return _narrow(x.cast(dtypes.float32), dtype, target)


def _integer_to_odd_float64(x: UOp) -> UOp:
    """An integer as float64; beyond 2**53 its 12 lowest bits are one, which says if any is set."""
    if x.dtype.itemsize == 8:
        low = x.alu(Ops.AND, x.const_like(0xFFF))
        kept = x.alu(Ops.SUB, low)
        some = low.ne(low.const_like(0)).where(x.const_like(0x800), x.const_like(0))
        inside = x.alu(Ops.CMPLT, x.const_like(1 << 53))
        if x.dtype.kind != "u":
            inside = inside.alu(Ops.AND, x.const_like(-(1 << 53)).alu(Ops.CMPLT, x))
        x = inside.where(x, kept.alu(Ops.OR, some))
    return x.cast(dtypes.float64)


def _to_odd_float32(x: UOp) -> UOp:
    """A float64 as float32: its last bit is 1 where the number is not exact.

    Rounding that to fewer bits is as good as rounding x itself (Boldo and Melquiond, 2008).
    """
    near = x.cast(dtypes.float32)
    bits, back = near.bitcast(dtypes.uint32), near.cast(dtypes.float64)
    away = _magnitude(x).alu(Ops.CMPLT, _magnitude(back)).cast(dtypes.uint32)
    odd = ((bits - away) | 1).bitcast(dtypes.float32)
    return back.ne(x).where(odd, near)


def _magnitude(x: UOp) -> UOp:
    return (x.bitcast(dtypes.uint64) & ((1 << 63) - 1)).bitcast(dtypes.float64)


def _bits(x: UOp, uint: DType) -> UOp:
    """The bits of a narrow float, which it may have been made from."""
    return x.src[0] if x.op is Ops.BITCAST and x.src[0].dtype is uint else x.bitcast(uint)


def _constant(node: UOp) -> UOp:
    """A constant of a narrow dtype, as its bits."""
    value = truncate[node.dtype](node.arg)
    form = _FORMATS[node.dtype]
    return UOp.const(_code(value, form), form.uint).bitcast(node.dtype)


def _code(value: float, form: _Format) -> int:
    """The bits of a number that a format holds."""
    negative = math.copysign(1.0, value) < 0
    if math.isnan(value):
        return form.nan
    if math.isinf(value):
        code = form.infinity
    else:
        exponent = max(math.frexp(value)[1] - 1, 1 - form.bias) if value else 1 - form.bias
        steps = int(math.ldexp(abs(value), form.mantissa_bits - exponent))
        # the leading bit of `steps` adds one to the exponent's field
        code = ((exponent + form.bias - 1) << form.mantissa_bits) + steps
    if not negative or code == form.nan or (code == 0 and not form.signed_zero):
        return code
    return code | (1 << (8 * form.uint.itemsize - 1))


def _value(code: int, form: _Format) -> float:
    """The number that the bits stand for."""
    sign_bit = 1 << (8 * form.uint.itemsize - 1)
    sign, magnitude = (-1.0 if code & sign_bit else 1.0), code & (sign_bit - 1)
    if magnitude > form.largest or (code == sign_bit and not form.signed_zero):
        infinite = magnitude == form.infinity != form.nan
        return sign * (math.inf if infinite else math.nan)
    field, fraction = magnitude >> form.mantissa_bits, magnitude & ((1 << form.mantissa_bits) - 1)
    steps = fraction + (1 << form.mantissa_bits) if field else fraction
    return sign * math.ldexp(steps, max(field, 1) - form.bias - form.mantissa_bits)


def _widen(x: UOp, target: Target) -> UOp:
    """A narrow float as float32; all values are exact."""
    form, float32, uint32 = _FORMATS[x.dtype], dtypes.float32, dtypes.uint32
    code = _bits(x, form.uint)
    if code.op is Ops.CONST:
        return UOp.const(_value(code.arg, form), float32)
    if x.dtype is dtypes.float16 and target.features & _CONVERTS_FLOAT16:
        return x.cast(float32)
    bits = code.cast(uint32)
    if x.dtype is dtypes.bfloat16:
        return (bits << 16).bitcast(float32)
    width = 8 * form.uint.itemsize
    magnitude = bits & ((1 << (width - 1)) - 1)
    # The fields are put where float32 has them; that is 2**(bias - 127) times the value, be it
    # normal or subnormal.
    scaled = (magnitude << (23 - form.mantissa_bits)).bitcast(float32) * 2.0 ** (127 - form.bias)
    sign = (bits >> (width - 1)) << 31
    value = scaled.bitcast(uint32)
    if form.signed_zero:
        # what is not finite gets the exponent of that; the fraction stays
        finite = magnitude < form.largest + 1
        return (finite.where(value, value | 0x7F800000) | sign).bitcast(float32)
    not_number = bits.eq(form.nan)
    return not_number.where(value.const_like(0x7FC00000), value | sign).bitcast(float32)


def _narrow(x: UOp, dtype: DType, target: Target) -> UOp:
    """A float32 as a narrow float: rounded to nearest, ties to even.

    Too large a number becomes infinity; in eight bits the largest number, infinity itself NaN if
    the format has no other.
    """
    form, float32, uint32 = _FORMATS[dtype], dtypes.float32, dtypes.uint32
    if dtype is dtypes.float16 and target.features & _CONVERTS_FLOAT16:
        return x.cast(dtype)
    if x.op is Ops.CONST:
        return UOp.const(_code(truncate[dtype](x.arg), form), form.uint).bitcast(dtype)
    bits = x.bitcast(uint32)
    magnitude = bits & 0x7FFFFFFF
    drop = 23 - form.mantissa_bits
    # to nearest even: half a unit less one bit, and one more if the unit's bit is set
    rebias = ((127 - form.bias) << 23) & 0xFFFFFFFF
    half = (1 << (drop - 1)) - 1
    code = (magnitude + (half - rebias) + ((magnitude >> drop) & 1)) >> drop
    if dtype is not dtypes.bfloat16:
        # Below the smallest normal number: the sum with a power of two whose unit is that of
        # the subnormals is rounded by the adder, and its low bits are the code.
        smallest = 2.0 ** (1 - form.bias)
        adder = 2.0 ** (24 - form.bias - form.mantissa_bits)
        subnormal = (magnitude.bitcast(float32) + adder).bitcast(uint32) - _float32_bits(adder)
        code = (magnitude < _float32_bits(smallest)).where(subnormal, code)
        if form.overflow != form.infinity:
            code = (code < form.largest + 1).where(code, code.const_like(form.overflow))
            infinite = magnitude.eq(0x7F800000)
            code = infinite.where(code.const_like(form.infinity), code)
        else:
            code = (code < form.infinity).where(code, code.const_like(form.infinity))
    code = (magnitude < 0x7F800001).where(code, code.const_like(form.nan))
    sign = (bits >> 31) << (8 * form.uint.itemsize - 1)
    if not form.signed_zero:
        sign = code.eq(0).where(sign.const_like(0), sign)
    return (code | sign).cast(form.uint).bitcast(dtype)


def _float32_bits(value: float) -> int:
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits
