"""Exponentials, logarithms and what is made of them, of float32 and float64.

They are plain integer and float operations without branches, so a kernel stays vectorised. Where
a target has fused multiply-add, polynomials use it: all that have it compute the same bits. The
special values are exact: overflow, underflow, subnormals, signed zeros, infinities and NaN. What is
seldom the time of a program is computed in float64 for float32, and rounded once. The errors stand
in `docs/accuracy.md`, and `tests/test_accuracy.py` holds the functions to them.

The polynomials are minimax fits of our own (`benchmarks/minimax.py` derives them); each is
written so that its leading term is exact and only a correction is rounded.
"""

from __future__ import annotations

import math

from tiny.codegen.lower.floats import (
    LAYOUTS,
    absolute,
    at_least,
    at_most,
    fused,
    polynomial,
    sign_of,
    with_sign,
)
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp

__all__ = [
    "acosh",
    "asinh",
    "atanh",
    "cosh",
    "exp",
    "exp2",
    "exp_short",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "log_short",
    "scaled_power",
    "sigmoid",
    "sinh",
    "split_float",
    "tanh",
]

# (2**f - 1) / f on [-1/2, 1/2]
EXP2_FLOAT32 = (
    float.fromhex("0x1.62e430p-1"),
    float.fromhex("0x1.ebfbd8p-3"),
    float.fromhex("0x1.c6af76p-5"),
    float.fromhex("0x1.3b30a0p-7"),
    float.fromhex("0x1.5f0b84p-10"),
    float.fromhex("0x1.3fa220p-13"),
)
EXP2_FLOAT64 = (
    float.fromhex("0x1.62e42fefa39efp-1"),
    float.fromhex("0x1.ebfbdff82c5a4p-3"),
    float.fromhex("0x1.c6b08d704a122p-5"),
    float.fromhex("0x1.3b2ab6fba01b2p-7"),
    float.fromhex("0x1.5d87fe78a11e9p-10"),
    float.fromhex("0x1.4309130ebe9c9p-13"),
    float.fromhex("0x1.ffcbfc58ec9b1p-17"),
    float.fromhex("0x1.62bfc7d7c5865p-20"),
    float.fromhex("0x1.b5254092dec9fp-24"),
    float.fromhex("0x1.e61af407685a4p-28"),
    float.fromhex("0x1.e944fd24a6770p-32"),
)
# (e**f - 1 - f) / f**2 on [-ln(2) / 2, ln(2) / 2]
EXP_FLOAT32 = (
    float.fromhex("0x1.fffffcp-2"),
    float.fromhex("0x1.555492p-3"),
    float.fromhex("0x1.5558acp-5"),
    float.fromhex("0x1.12397cp-7"),
    float.fromhex("0x1.6a518ep-10"),
)
EXP_FLOAT64 = (
    float.fromhex("0x1.000000000000ap-1"),
    float.fromhex("0x1.55555555554fdp-3"),
    float.fromhex("0x1.55555555506b5p-5"),
    float.fromhex("0x1.1111111126e69p-7"),
    float.fromhex("0x1.6c16c18478bfbp-10"),
    float.fromhex("0x1.a01a012f052cdp-13"),
    float.fromhex("0x1.a019995acd9eap-16"),
    float.fromhex("0x1.71df1ab774481p-19"),
    float.fromhex("0x1.28adfff2dfc53p-22"),
    float.fromhex("0x1.ad905eb9a9f09p-26"),
)
# the same in float64, good for a float32
EXP_SHORT = (
    float.fromhex("0x1.0000003a1ad63p-1"),
    float.fromhex("0x1.55555443638b1p-3"),
    float.fromhex("0x1.55548dd87133cp-5"),
    float.fromhex("0x1.11127091fcff9p-7"),
    float.fromhex("0x1.6d8cf425c4b23p-10"),
    float.fromhex("0x1.9f08a0d6d0e39p-13"),
)
# (tanh(t) / t - 1) / t**2 in t**2, for t in [0, 9 / 16]
TANH_FLOAT32 = (
    float.fromhex("-0x1.555548p-2"),
    float.fromhex("0x1.110c64p-3"),
    float.fromhex("-0x1.b90754p-5"),
    float.fromhex("0x1.5821fap-6"),
    float.fromhex("-0x1.94bbfap-8"),
)
TANH_FLOAT64 = (
    float.fromhex("-0x1.5555555555555p-2"),
    float.fromhex("0x1.111111111107ep-3"),
    float.fromhex("-0x1.ba1ba1ba10ae5p-5"),
    float.fromhex("0x1.664f487f7de33p-6"),
    float.fromhex("-0x1.226e34cca7e68p-7"),
    float.fromhex("0x1.d6d3b0713f54bp-9"),
    float.fromhex("-0x1.7da0fa69a3842p-10"),
    float.fromhex("0x1.35389ccd1b808p-11"),
    float.fromhex("-0x1.f3443c7a4f301p-13"),
    float.fromhex("0x1.88bf4bf4094abp-14"),
    float.fromhex("-0x1.10f5a6318e350p-15"),
    float.fromhex("0x1.e3af209f57aafp-18"),
)
# log2(1 + f) / f - 1 on [sqrt(1/2) - 1, sqrt(2) - 1]
LOG2_FLOAT32 = (
    float.fromhex("0x1.c551dap-2"),
    float.fromhex("-0x1.715470p-1"),
    float.fromhex("0x1.ec7034p-2"),
    float.fromhex("-0x1.715a9cp-2"),
    float.fromhex("0x1.278cdep-2"),
    float.fromhex("-0x1.eacb5ep-3"),
    float.fromhex("0x1.a16062p-3"),
    float.fromhex("-0x1.85672cp-3"),
    float.fromhex("0x1.8552e8p-3"),
    float.fromhex("-0x1.dca742p-4"),
)
# (log(1 + f) - f) / f**2 on the same
LOG_FLOAT32 = (
    float.fromhex("-0x1.fffff8p-2"),
    float.fromhex("0x1.555550p-2"),
    float.fromhex("-0x1.000434p-2"),
    float.fromhex("0x1.99a43cp-3"),
    float.fromhex("-0x1.542540p-3"),
    float.fromhex("0x1.226920p-3"),
    float.fromhex("-0x1.0f3f72p-3"),
    float.fromhex("0x1.088aa8p-3"),
    float.fromhex("-0x1.38bd96p-4"),
)
# log2(e) * (2 atanh(s) / s - 2) / s**2 in s**2, for s = f / (2 + f) and f as above
LOG2_FLOAT64 = (
    float.fromhex("0x1.ec709dc3a0455p-1"),
    float.fromhex("0x1.2776c50ee740fp-1"),
    float.fromhex("0x1.a61762d1ee4b0p-2"),
    float.fromhex("0x1.484afcfe36c5cp-2"),
    float.fromhex("0x1.0ca11cd4b44f3p-2"),
    float.fromhex("0x1.c47a0c6abcf6dp-3"),
    float.fromhex("0x1.b526532a714f1p-3"),
)
# the same without log2(e)
LOG_FLOAT64 = (
    float.fromhex("0x1.5555555555592p-1"),
    float.fromhex("0x1.999999997ff69p-2"),
    float.fromhex("0x1.24924941dad55p-2"),
    float.fromhex("0x1.c71c521a80d9ap-3"),
    float.fromhex("0x1.74663b8d63177p-3"),
    float.fromhex("0x1.39a20ddd353adp-3"),
    float.fromhex("0x1.2f023b46aecd8p-3"),
)
# and good for a float32
LOG_SHORT = (
    float.fromhex("0x1.555554fde2e6ep-1"),
    float.fromhex("0x1.999a7a1a120e6p-2"),
    float.fromhex("0x1.2438f164c0a91p-2"),
    float.fromhex("0x1.e2f2d3328f7c7p-3"),
)
LOG2E = float.fromhex("0x1.71547652b82fep+0")
LOG2E_LESS_1 = float.fromhex("0x1.c551d94ae0bf8p-2")
# log10(e) and log10(2): the products of the first parts with 27 bits, or an exponent, are exact
LOG10E_26, LOG10E_AFTER_26 = (
    float.fromhex("0x1.bcb7b10000000p-2"),
    float.fromhex("0x1.49b9438ca9aaep-28"),
)
LOG10_2_40, LOG10_2_AFTER_40 = (
    float.fromhex("0x1.34413509f6000p-2"),
    float.fromhex("0x1.9fef311f12b36p-42"),
)


# ---------------------------------------------------------------- exponentials


def exp2(x: UOp) -> UOp:
    """2**x: 2**n * 2**f, where n is the integer nearest to x."""
    layout = LAYOUTS[x.dtype]
    x = at_least(x, layout.min_exponent - layout.mantissa_bits - 2.0)
    rounded = x + layout.rounder
    f = x - (rounded - layout.rounder)  # exact
    fraction = polynomial(f, EXP2_FLOAT32 if x.dtype is dtypes.float32 else EXP2_FLOAT64)
    is_finite = x < float(layout.max_exponent)
    return scaled_power(x, fused(f, fraction, 1.0), rounded, layout.min_exponent, is_finite)


def exp(x: UOp, rest: UOp | None = None) -> UOp:
    """e**x, or e**(x + rest) with a rest below the unit of x: 2**n * e**f."""
    layout = LAYOUTS[x.dtype]
    x = at_least(x, (layout.min_exponent - layout.mantissa_bits - 2) * math.log(2))
    part, rounded = _exp_less_1_reduced(x, rest)
    low = (layout.min_exponent + 2) * math.log(2)
    return scaled_power(x, part + 1.0, rounded, low, x < layout.exp_overflows)


def exp_short(x: UOp) -> UOp:
    """e**x of a float64 to somewhat more than a float32 holds, where that is a normal number."""
    part, rounded = _exp_less_1_reduced(x, None, EXP_SHORT)
    return _two_to(rounded, 0) * (part + 1.0)


def _exp_less_1_reduced(
    x: UOp, rest: UOp | None = None, coefficients: tuple[float, ...] | None = None
) -> tuple[UOp, UOp]:
    """e**f - 1, for f = x - n ln(2); and n, the integer nearest to x / ln(2), in its low bits."""
    layout = LAYOUTS[x.dtype]
    if coefficients is None:
        coefficients = EXP_FLOAT32 if x.dtype is dtypes.float32 else EXP_FLOAT64
    rounded = fused(x, x.const_like(LOG2E), layout.rounder)
    n = rounded - layout.rounder
    f = fused(n, n.const_like(-layout.ln2_rest), fused(n, n.const_like(-layout.ln2), x))
    if rest is not None:
        f = f + rest
    return fused(f * f, polynomial(f, coefficients), f), rounded


def scaled_power(x: UOp, power: UOp, rounded: UOp, low: float, is_finite: UOp) -> UOp:
    """power * 2**n, n in the low bits of `rounded`; and what a large x gives.

    Below `low` it may be subnormal. It is 0 down to 64 below the exponents of normal numbers, and
    n goes no further. Where the result is not finite it is infinite, or NaN as x.
    """
    layout, shift = LAYOUTS[x.dtype], 64
    # What may be subnormal is computed 2**64 times as large and scaled down: one rounding.
    is_low = x < low
    bits = rounded.bitcast(layout.uint)
    n = bits + is_low.where(bits.const_like(shift), bits.const_like(0))
    result = (power.bitcast(layout.uint) + (n << layout.mantissa_bits)).bitcast(x.dtype)
    result = result * is_low.where(x.const_like(2.0**-shift), x.const_like(1.0))
    # x + infinity is NaN for NaN
    return is_finite.where(result, x + math.inf)


def _two_to(rounded: UOp, less: int) -> UOp:
    """2**(n - less), n in the low bits of `rounded`."""
    layout = LAYOUTS[rounded.dtype]
    exponent = rounded.bitcast(layout.uint) + (layout.bias - less)
    return (exponent << layout.mantissa_bits).bitcast(rounded.dtype)


def _expm1_of(x: UOp, less: int = 0, coefficients: tuple[float, ...] | None = None) -> UOp:
    """(e**x - 1) / 2**less, where that and 2**n are normal numbers and the sign of 0 is no matter.

    As 2**n (e**f - 1) + (2**n - 1): both terms have one rounding, and neither is large where
    the sum is small.
    """
    part, rounded = _exp_less_1_reduced(x, None, coefficients)
    scale = _two_to(rounded, less)
    return scale * part + (scale - 2.0**-less)


def expm1(x: UOp) -> UOp:
    """e**x - 1, without loss for a small x."""
    layout = LAYOUTS[x.dtype]
    lowest, highest = -layout.mantissa_bits - 2.0, layout.exp_overflows + 0.1
    inside = at_most(at_least(x, lowest), highest)
    result = _expm1_of(inside, 1) * 2.0
    return _or_itself(x, result)


def _or_itself(x: UOp, result: UOp) -> UOp:
    """`result`, but x itself where that is a zero or NaN."""
    positive = x.const_like(0.0).alu(Ops.CMPLT, absolute(x))
    return positive.where(result, x)


def sigmoid(x: UOp) -> UOp:
    """1 / (1 + e**-x), of a negative x as e**x / (1 + e**x): no overflow, no loss."""
    power = exp(
        with_sign(absolute(x), x.bitcast(LAYOUTS[x.dtype].uint).const_like(LAYOUTS[x.dtype].sign))
    )
    return (x < 0).where(power, x.const_like(1.0)) / (power + 1.0)


def tanh(x: UOp) -> UOp:
    """The hyperbolic tangent: 1 - 2 / (e**(2 |x|) + 1), near 0 by a polynomial."""
    size = absolute(x)
    is_short = x.dtype is dtypes.float32
    part, rounded = _exp_less_1_reduced(at_most(size, 10.0 if is_short else 20.0) * 2.0)
    power = _two_to(rounded, 0) * (part + 1.0)
    far = x.const_like(1.0) - x.const_like(2.0) / (power + 1.0)
    z = x * x
    near = size + size * (z * polynomial(z, TANH_FLOAT32 if is_short else TANH_FLOAT64))
    return with_sign((size < 0.5625).where(near, far), sign_of(x))


def sinh(x: UOp) -> UOp:
    """The hyperbolic sine: (m + m / (m + 1)) / 2 with m = e**|x| - 1, in quarters."""
    if x.dtype is dtypes.float32:
        size = at_most(absolute(x), 100.0).cast(dtypes.float64)
        m = _expm1_of(size, 0, EXP_SHORT)
        result = ((m + m / (m + 1.0)) * 0.5).cast(dtypes.float32)
    else:
        size = at_most(absolute(x), 710.6)  # where it has overflowed; e**size / 4 has not
        m = _expm1_of(size, 2)
        result = (m + m / (m * 4.0 + 1.0)) * 2.0
    return with_sign(absolute(result), sign_of(x))


def cosh(x: UOp) -> UOp:
    """The hyperbolic cosine: (p + 1 / p) / 2 with p = e**|x|, in quarters."""
    if x.dtype is dtypes.float32:
        power = exp_short(at_most(absolute(x), 100.0).cast(dtypes.float64))
        return ((power + power.const_like(1.0) / power) * 0.5).cast(dtypes.float32)
    part, rounded = _exp_less_1_reduced(at_most(absolute(x), 710.6))
    quarter = _two_to(rounded, 2) * (part + 1.0)
    return (quarter + quarter.const_like(1 / 16) / quarter) * 2.0


# ---------------------------------------------------------------- logarithms


def split_float(x: UOp) -> tuple[UOp, UOp]:
    """(k, f) of a positive finite x = 2**k (1 + f), 1 + f from sqrt(1/2) to sqrt(2); f is exact."""
    layout = LAYOUTS[x.dtype]
    scale = layout.mantissa_bits + 2
    small = x < 2.0**layout.min_exponent
    bits = small.where(x * 2.0**scale, x).bitcast(layout.int)
    first = layout.bits(math.sqrt(0.5))
    above = bits - first
    exponent = above >> layout.mantissa_bits
    # the exponent as a float, without a conversion: it is put into the low bits of `rounder`
    k = (exponent + layout.bits(layout.rounder)).bitcast(x.dtype) - small.where(
        x.const_like(layout.rounder + scale), x.const_like(layout.rounder)
    )
    return k, ((above & layout.mantissa_mask) + first).bitcast(x.dtype) - 1.0


def _finish_log(x: UOp, result: UOp) -> UOp:
    """The logarithm of x, `result` where x is positive and finite."""
    at_most_zero = x.eq(0.0).where(x.const_like(-math.inf), x.const_like(math.nan))
    result = x.const_like(0.0).alu(Ops.CMPLT, x).where(result, at_most_zero)
    return (x < math.inf).where(result, x)  # infinity and NaN are their own logarithms


def log2(x: UOp) -> UOp:
    """The binary logarithm: k + log2(1 + f), 1 + f near 1."""
    k, f = split_float(x)
    if x.dtype is dtypes.float32:
        correction = f * polynomial(f, LOG2_FLOAT32)
    else:
        s = f / (f + 2.0)
        z = s * s
        half_square = f * f * (LOG2E / 2)
        tail = half_square + z * polynomial(z, LOG2_FLOAT64)
        correction = f * LOG2E_LESS_1 - (half_square - s * tail)
    return _finish_log(x, k + (f + correction))


def _log_tail(f: UOp, coefficients: tuple[float, ...] | None = None) -> tuple[UOp, UOp]:
    """f**2 / 2, and log(1 + f) - f + that: of 2 atanh(f / (2 + f))."""
    s = f / (f + 2.0)
    z = s * s
    half_square = f * f * 0.5
    return half_square, s * (half_square + z * polynomial(z, coefficients or LOG_FLOAT64))


def log(x: UOp) -> UOp:
    """The natural logarithm: k ln(2) + log(1 + f)."""
    return _finish_log(x, _log_of(x, None))


def _log_of(x: UOp, rest: UOp | None) -> UOp:
    """The logarithm of a positive finite x, `rest` being a small number to be added to it."""
    layout = LAYOUTS[x.dtype]
    k, f = split_float(x)
    low = k * layout.ln2_rest
    if rest is not None:
        low = low + rest
    if x.dtype is dtypes.float32:
        return k * layout.ln2 + (f + (f * f * polynomial(f, LOG_FLOAT32) + low))
    half_square, tail = _log_tail(f)
    return k * layout.ln2 - ((half_square - (tail + low)) - f)


def log_short(x: UOp) -> UOp:
    """The logarithm of a positive finite float64, to somewhat more than a float32 holds."""
    k, f = split_float(x)
    half_square, tail = _log_tail(f, LOG_SHORT)
    return k * math.log(2) + (f - (half_square - tail))


def log1p(x: UOp) -> UOp:
    """log(1 + x), without loss for a small x: what 1 + x rounds away is put back."""
    total = x + 1.0
    part = total - 1.0
    lost = (total.const_like(1.0) - (total - part)) + (x - part)
    result = _finish_log(total, _log_of(total, lost / total))
    return _or_itself(x, result)


def log10(x: UOp) -> UOp:
    """The logarithm to base 10: of a float64 k log10(2) + log10(e) log(1 + f), in two parts."""
    if x.dtype is dtypes.float32:
        result = log_short(x.cast(dtypes.float64)) * (1 / math.log(10))
        return _finish_log(x, result.cast(dtypes.float32))
    k, f = split_float(x)
    half_square, tail = _log_tail(f)
    near = f - half_square
    high = (near.bitcast(dtypes.uint64) & 0xFFFFFFFF00000000).bitcast(dtypes.float64)
    low = ((f - high) - half_square) + tail
    small = low * LOG10E_26 + (low + high) * LOG10E_AFTER_26 + k * LOG10_2_AFTER_40
    leading = k * LOG10_2_40
    product = high * LOG10E_26
    total = leading + product
    lost = product - (total - leading)
    return _finish_log(x, total + (lost + small))


# ---------------------------------------------------------------- inverse hyperbolic functions


def asinh(x: UOp) -> UOp:
    """The inverse hyperbolic sine: log1p(a + a**2 / (1 + sqrt(1 + a**2))), a = |x|."""
    wide = absolute(x).cast(dtypes.float64)
    result = _log1p_or_log(wide, _sqrt_less_1(wide) + wide, x.dtype)
    return with_sign(absolute(result.cast(x.dtype)), sign_of(x))


def _sqrt_less_1(a: UOp) -> UOp:
    """sqrt(1 + a**2) - 1 of a float64."""
    square = a * a
    return square / ((square + 1.0).alu(Ops.SQRT) + 1.0)


def _log1p_or_log(a: UOp, less_1: UOp, dtype: object) -> UOp:
    """log(1 + less_1) of float64; of a large a, where less_1 may overflow, log(2 a)."""
    large = a.const_like(2.0**60).alu(Ops.CMPLT, a)
    inside = large.where(a, less_1)
    total = inside + 1.0
    part = total - 1.0
    lost = ((total.const_like(1.0) - (total - part)) + (inside - part)) / total
    log_2 = large.where(a.const_like(math.log(2)), a.const_like(0.0))
    if dtype is dtypes.float32:
        result = log_short(total) + (lost + log_2)
    else:
        result = _log_of(total, lost + log_2)
    # infinity and NaN are their own; below 1 acosh has no value, and less_1 is NaN there
    return _or_itself(inside, (inside < math.inf).where(result, inside))


def acosh(x: UOp) -> UOp:
    """The inverse hyperbolic cosine: log1p(t + sqrt(2 t + t**2)), t = x - 1; NaN below 1."""
    wide = x.cast(dtypes.float64)
    t = wide - 1.0
    less_1 = t + (t * 2.0 + t * t).alu(Ops.SQRT)
    result = _log1p_or_log(wide, less_1, x.dtype)
    return (x < 1.0).where(x.const_like(math.nan), result.cast(x.dtype))


def atanh(x: UOp) -> UOp:
    """The inverse hyperbolic tangent: log1p(2 a / (1 - a)) / 2, a = |x|; NaN beyond 1."""
    a = absolute(x).cast(dtypes.float64)
    inside = a * 2.0 / (a.const_like(1.0) - a)
    total = inside + 1.0
    part = total - 1.0
    lost = ((total.const_like(1.0) - (total - part)) + (inside - part)) / total
    value = log_short(total) + lost if x.dtype is dtypes.float32 else _log_of(total, lost)
    value = (inside < math.inf).where(value * 0.5, inside)
    value = (inside < 0.0).where(a.const_like(math.nan), value)
    result = with_sign(absolute(value.cast(x.dtype)), sign_of(x))
    return _or_itself(x, result)
