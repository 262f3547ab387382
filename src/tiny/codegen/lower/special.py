"""The error function, powers, remainders, rounding and signs, as `transcendental` makes others."""

from __future__ import annotations

import math

from tiny.codegen.lower.floats import (
    LAYOUTS,
    absolute,
    at_least,
    at_most,
    exact_product,
    exact_sum,
    high_half,
    polynomial,
    sign_of,
    with_sign,
)
from tiny.codegen.lower.transcendental import (
    EXP2_FLOAT64,
    exp,
    exp_short,
    log_short,
    scaled_power,
    split_float,
)
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp

__all__ = ["copysign", "erf", "erfc", "floor_divide", "floor_modulo", "fmod", "power", "round_"]

# erf(a) / a - 1 in a**2, for a in [0, 1]
ERF_FLOAT64 = (
    float.fromhex("0x1.06eba8214db69p-3"),
    float.fromhex("-0x1.812746b0379fdp-2"),
    float.fromhex("0x1.ce2f21a043610p-4"),
    float.fromhex("-0x1.b82ce312ab11bp-6"),
    float.fromhex("0x1.565bcd126ed46p-8"),
    float.fromhex("-0x1.c02db492714c2p-11"),
    float.fromhex("0x1.f9a3342a05cacp-14"),
    float.fromhex("-0x1.f4d31e33944dbp-17"),
    float.fromhex("0x1.b9ed7ae812414p-20"),
    float.fromhex("-0x1.5f8e99e75c668p-23"),
    float.fromhex("0x1.fc109c48a0063p-27"),
    float.fromhex("-0x1.4534d8d75d5bap-30"),
    float.fromhex("0x1.26077bf6af358p-34"),
)
# the same, good for a float32
ERF_SHORT = (
    float.fromhex("0x1.06eba7f24595dp-3"),
    float.fromhex("-0x1.81273de9477b0p-2"),
    float.fromhex("0x1.ce2cf73f92a63p-4"),
    float.fromhex("-0x1.b7f90d0888716p-6"),
    float.fromhex("0x1.5405b1eadcef3p-8"),
    float.fromhex("-0x1.a3f7010bbb3abp-11"),
    float.fromhex("0x1.496a354187ba6p-14"),
)
# (1 + 2 a) exp(a**2) erfc(a) in (a - 2) / (a + 2), for a in [1/2, 28]
ERFC_FLOAT64 = (
    float.fromhex("0x1.46e80e2277953p+0"),
    float.fromhex("-0x1.7bf5ec170061dp-4"),
    float.fromhex("-0x1.5407bebf3214fp-3"),
    float.fromhex("0x1.4ffa1e14e2014p-3"),
    float.fromhex("-0x1.bc2b9561c797ap-5"),
    float.fromhex("-0x1.07423402d2bc0p-7"),
    float.fromhex("0x1.1dd2eca4e8fe8p-7"),
    float.fromhex("0x1.4d461bc45fe19p-10"),
    float.fromhex("-0x1.7de52a33dbbe1p-10"),
    float.fromhex("-0x1.dc68de4b07ca4p-12"),
    float.fromhex("0x1.b0caf1c7abf57p-13"),
    float.fromhex("0x1.3cbab27293c62p-13"),
    float.fromhex("-0x1.9b28b2b14dd02p-20"),
    float.fromhex("-0x1.31045f402286bp-15"),
    float.fromhex("-0x1.c2c44f4e63ae9p-17"),
    float.fromhex("0x1.d3a6a76a97269p-19"),
    float.fromhex("0x1.5aab4f52eef9cp-18"),
    float.fromhex("0x1.0d667cc6de5d6p-19"),
    float.fromhex("-0x1.aebb992c18173p-21"),
    float.fromhex("-0x1.88dd4732279dfp-20"),
    float.fromhex("0x1.6f6f4ede3c7b7p-24"),
    float.fromhex("0x1.05664ff7ab4fep-21"),
    float.fromhex("-0x1.17adb6531bdd3p-23"),
)
# the same for a in [1/2, 10.6], good for a float32
ERFC_SHORT = (
    float.fromhex("0x1.46e80e20d6471p+0"),
    float.fromhex("-0x1.7bf5e8eed37dep-4"),
    float.fromhex("-0x1.5407b758c864ap-3"),
    float.fromhex("0x1.4ff9cf28adceep-3"),
    float.fromhex("-0x1.bc2e2fc104e75p-5"),
    float.fromhex("-0x1.06fbda9680f53p-7"),
    float.fromhex("0x1.1e228838634bfp-7"),
    float.fromhex("0x1.40293db3ecc9cp-10"),
    float.fromhex("-0x1.855a5fb648be1p-10"),
    float.fromhex("-0x1.4dd7965f9a82bp-12"),
    float.fromhex("0x1.e9944b227c644p-13"),
)
# (atanh(s) / s - 1 - s**2 / 3) / s**4 in s**2, for s = (m - 1) / (m + 1), m up to sqrt(2)
ATANH_FLOAT64 = (
    float.fromhex("0x1.9999999999996p-3"),
    float.fromhex("0x1.2492492492f7cp-3"),
    float.fromhex("0x1.c71c71c58e918p-4"),
    float.fromhex("0x1.745d182df9203p-4"),
    float.fromhex("0x1.3b13636d3a7d4p-4"),
    float.fromhex("0x1.1120a627f6ab3p-4"),
    float.fromhex("0x1.de34827c13f39p-5"),
    float.fromhex("0x1.eb10bcdeebf51p-5"),
)
THIRD, THIRD_REST = float.fromhex("0x1.5555555555555p-2"), float.fromhex("0x1.5555555555555p-56")
# 2 / ln(2)
TWO_LOG2E, TWO_LOG2E_REST = (
    float.fromhex("0x1.71547652b82fep+1"),
    float.fromhex("0x1.777d0ffda0d24p-55"),
)


# ---------------------------------------------------------------- the error function


def erf(x: UOp) -> UOp:
    """The error function: a series near 0, from 1 on one less `erfc`."""
    size = absolute(x)
    a, coefficients = _for_erf(size)
    near = a + a * polynomial(a * a, coefficients)
    result = (
        (a < 1.0)
        .where(near, a.const_like(1.0) - _erfc_far(a, x.dtype is dtypes.float32))
        .cast(x.dtype)
    )
    return with_sign(absolute(result), sign_of(x))


def erfc(x: UOp) -> UOp:
    """1 - erf(x), without loss for a large x."""
    a, coefficients = _for_erf(absolute(x))
    wide = x.cast(dtypes.float64)
    near = wide + wide * polynomial(a * a, coefficients)
    far = _erfc_far(a, x.dtype is dtypes.float32)
    negative = wide.const_like(2.0) - far
    result = (a < 0.5).where(wide.const_like(1.0) - near, (x < 0.0).where(negative, far))
    return result.cast(x.dtype)


def _for_erf(size: UOp) -> tuple[UOp, tuple[float, ...]]:
    """|x| as float64, no larger than where erfc is 0; and the series near 0."""
    if size.dtype is dtypes.float32:
        return at_most(size, 10.5).cast(dtypes.float64), ERF_SHORT
    return at_most(size, 27.5), ERF_FLOAT64


def _erfc_far(a: UOp, short: bool) -> UOp:
    """erfc(a) of a float64 from 1/2 on: exp(-a**2) p((a - 2) / (a + 2)) / (1 + 2 a).

    Method: Shepherd and Laframboise, "Chebyshev approximation of (1 + 2x) exp(x**2) erfc(x)",
    Math. Comp. 1981, with a fit of our own.
    """
    share = polynomial((a - 2.0) / (a + 2.0), ERFC_SHORT if short else ERFC_FLOAT64)
    share = share / (a * 2.0 + 1.0)
    if short:
        return exp_short(-(a * a)) * share
    high = high_half(a)  # its square is exact
    return exp(-(high * high), (high - a) * (high + a)) * share


# ---------------------------------------------------------------- powers


def power(x: UOp, y: UOp) -> UOp:
    """x**y as 2**(y log2 |x|), with the special cases of IEEE 754's pow.

    For float64 the logarithm and its product with y are sums of two numbers.
    """
    size = absolute(x)
    # beyond that only infinity and 0 are left
    bounded = with_sign(at_most(absolute(y), 2.0**70), sign_of(y))
    if x.dtype is dtypes.float32:
        result = _power_short(size.cast(dtypes.float64), bounded.cast(dtypes.float64))
    else:
        result = _power_float64(size, bounded)
    zero, inf, nan = x.const_like(0.0), x.const_like(math.inf), x.const_like(math.nan)
    is_zero, is_inf, goes_down = size.eq(0.0), size.eq(math.inf), y < 0.0
    result = (is_zero | is_inf).where(is_zero.eq(goes_down).where(inf, zero), result)
    is_whole = y.alu(Ops.TRUNC).eq(y)
    is_odd = is_whole & ((y * 0.5).alu(Ops.TRUNC) * 2.0).ne(y)
    sign = sign_of(x)
    result = with_sign(result, is_odd.where(sign, sign.const_like(0)))
    undefined = (x < 0.0) & is_whole.logical_not() & is_inf.logical_not()
    result = (undefined | x.ne(x) | y.ne(y)).where(nan, result)
    return (y.eq(0.0) | x.eq(1.0)).where(x.const_like(1.0), result)


def _power_short(a: UOp, y: UOp) -> UOp:
    """a**y of positive float64, rounded to float32."""
    exponent = y * log_short(a)
    bounded = at_most(at_least(exponent, -200.0), 200.0)
    return exp_short(bounded).cast(dtypes.float32)


def _power_float64(a: UOp, y: UOp) -> UOp:
    """a**y of positive float64."""
    high, low = _log2_in_two_parts(a)
    exponent, lost = exact_product(y, high)
    low = lost + y * low
    rounder = LAYOUTS[dtypes.float64].rounder
    rounded = exponent + rounder
    f = (exponent - (rounded - rounder)) + low
    part = f * polynomial(f, EXP2_FLOAT64)
    # the end is that of the sum: 1024 less what is lost is finite
    end = ((exponent - 1024.0) + low) < 0.0
    result = scaled_power(exponent, part + 1.0, rounded, -1022.0, end)
    return (exponent < -1076.0).where(exponent.const_like(0.0), result)


def _log2_in_two_parts(a: UOp) -> tuple[UOp, UOp]:
    """log2(a) of a positive float64 to 2**-66 or so: k + 2 log2(e) atanh(f / (2 + f))."""
    k, f = split_float(a)
    below, below_rest = exact_sum(f.const_like(2.0), f)
    s = f / below
    back, back_rest = exact_product(s, below)
    s_rest = (((f - back) - back_rest) - s * below_rest) / below
    z, z_rest = exact_product(s, s)
    z_rest = z_rest + s * s_rest * 2.0
    third, third_rest = exact_product(z, z.const_like(THIRD))
    third_rest = third_rest + (z * THIRD_REST + z_rest * THIRD)
    tail, tail_rest = exact_sum(third, third_rest + z * z * polynomial(z, ATANH_FLOAT64))
    more, more_rest = exact_product(s, tail)
    more_rest = more_rest + (s * tail_rest + s_rest * tail)
    total, total_rest = exact_sum(s, more)
    total_rest = total_rest + (s_rest + more_rest)
    m, m_rest = exact_product(total, total.const_like(TWO_LOG2E))
    m_rest = m_rest + (total * TWO_LOG2E_REST + total_rest * TWO_LOG2E)
    high, high_rest = exact_sum(k, m)
    return exact_sum(high, high_rest + m_rest)


# ---------------------------------------------------------------- remainders


def fmod(x: UOp, y: UOp) -> UOp:
    """x - n y, exact, with n = x / y cut off: the sign is that of x. NaN for y = 0 or infinite x.

    |x| = a 2**(n + j) and |y| = b 2**j with integers a and b: the remainder is a 2**n modulo b,
    the power by squaring. So the work does not depend on the quotient.
    """
    wide_x, wide_y = absolute(x).cast(dtypes.float64), absolute(y).cast(dtypes.float64)
    short = x.dtype is dtypes.float32
    (a, i), (b, j) = _whole(wide_x, short), _whole(wide_y, short)
    difference = i - j
    n = (difference < 0).where(difference.const_like(0), difference)
    steps = 4 if short else 6
    # the first digits of n as an exponent; 2**that is below b
    t = (((n >> steps) + 1023) << 52).bitcast(dtypes.float64)
    for step in reversed(range(steps)):
        twice = ((n >> step) & 1).ne(0).where(t + t, t)
        t = _product_modulo(t, twice, b, short)
    rest = _product_modulo(a, t, b, short)
    rest = (rest < 0.0).where(rest + b, rest)
    half = j >> 1
    for exponent in (half, j - half):
        rest = rest * ((exponent + 1023) << 52).bitcast(dtypes.float64)
    rest = (wide_x < wide_y).where(wide_x, rest)
    defined = (wide_x < math.inf) & wide_y.const_like(0.0).alu(Ops.CMPLT, wide_y)
    defined = defined & wide_y.eq(wide_y)
    result = defined.where(rest, rest.const_like(math.nan)).cast(x.dtype)
    return with_sign(absolute(result), sign_of(x))


def floor_modulo(x: UOp, y: UOp) -> UOp:
    """x - n y with n = floor(x / y), rounded once: the sign is that of y, also of 0."""
    rest = fmod(x, y)
    off = rest.ne(0.0) & (rest < 0.0).ne(y < 0.0)
    result = off.where(rest + y, rest)
    return result.eq(0.0).where(with_sign(x.const_like(0.0), sign_of(y)), result)


def floor_divide(x: UOp, y: UOp) -> UOp:
    """floor(x / y), of the exact quotient; of y = 0 what x / y is.

    Of a float64 beyond 2**53 it may be one unit off.
    """
    rest = fmod(x, y)
    off = rest.ne(0.0) & (rest < 0.0).ne(y < 0.0)
    wide, divisor = x.cast(dtypes.float64), y.cast(dtypes.float64)
    quotient = (wide - rest.cast(dtypes.float64)) / divisor
    quotient = off.where(quotient - 1.0, quotient)
    # it is a whole number but for the roundings, of which half a unit may be left
    whole = quotient.alu(Ops.TRUNC)
    whole = (quotient < whole).where(whole - 1.0, whole)
    whole = (quotient - whole < 0.75).where(whole, whole + 1.0)
    plain = wide / divisor
    whole = whole.eq(0.0).where(with_sign(absolute(whole), sign_of(plain)), whole)
    return y.eq(0.0).where(plain, whole).cast(x.dtype)


def round_(x: UOp) -> UOp:
    """The nearest whole number, of two the even one: what the adder does above 2**23, or 2**52."""
    size, limit = absolute(x), 2.0 ** LAYOUTS[x.dtype].mantissa_bits
    whole = (size + limit) - limit
    return with_sign((size < limit).where(whole, size), sign_of(x))


def copysign(x: UOp, y: UOp) -> UOp:
    """|x| with the sign's bit of y."""
    return with_sign(absolute(x), sign_of(y))


def _whole(x: UOp, short: bool) -> tuple[UOp, UOp]:
    """(a, i) of a positive float64: x = a 2**i, a an integer of 53 bits, or 24; i as int64."""
    small = x < 2.0**-1022
    bits = small.where(x * 2.0**54, x).bitcast(dtypes.int64)
    digits = 23 if short else 52
    less = small.where(bits.const_like(1023 + digits + 54), bits.const_like(1023 + digits))
    mantissa = (bits & ((1 << 52) - 1)) | ((1023 + digits) << 52)
    return mantissa.bitcast(dtypes.float64), ((bits >> 52) & 0x7FF) - less


def _product_modulo(s: UOp, t: UOp, b: UOp, short: bool) -> UOp:
    """s * t modulo b, between -b / 2 and b / 2 or one more: integers, and |s * t| <= b**2."""
    rounder = LAYOUTS[dtypes.float64].rounder
    if short:
        product = s * t
        quotient = (product / b + rounder) - rounder
        return product - quotient * b
    product, low = exact_product(s, t)
    quotient = (product / b).alu(Ops.TRUNC)  # right to 1 or 2
    back, back_low = exact_product(quotient, b)
    high, low = product - back, low - back_low
    more = ((high + low) / b + rounder) - rounder
    return (high - more * b) + low
