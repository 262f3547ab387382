"""SIN, cos, tan and their inverses, of float32 and float64, as `transcendental` makes others.

The argument of a sine is reduced exactly, however large it is: by a window of the binary digits
of 1 / pi (Payne and Hanek, 1983). For float32 all is computed in float64 and rounded once.
"""

from __future__ import annotations

import math
import struct

from tiny.codegen.lower.floats import LAYOUTS, absolute, high_half, polynomial, sign_of, with_sign
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp

__all__ = ["acos", "asin", "atan", "cos", "largest_magnitude", "sin", "tan"]

# (sin(r) / r - 1) / r**2 in r**2, for r in [0, pi / 2]
SIN_FLOAT32 = (
    float.fromhex("-0x1.555555476794ep-3"),
    float.fromhex("0x1.11110c498207ap-7"),
    float.fromhex("-0x1.a017d9758c5cfp-13"),
    float.fromhex("0x1.71707a84921d2p-19"),
    float.fromhex("-0x1.9a6805e1f9e73p-26"),
)
# the same for r in [0, 1]
SIN_FLOAT64 = (
    float.fromhex("-0x1.5555555555555p-3"),
    float.fromhex("0x1.1111111111093p-7"),
    float.fromhex("-0x1.a01a01a009c1dp-13"),
    float.fromhex("0x1.71de3a454be85p-19"),
    float.fromhex("-0x1.ae64453ae8bf1p-26"),
    float.fromhex("0x1.611a2972b5de8p-33"),
    float.fromhex("-0x1.a8335ccd3817ap-41"),
)
# (cos(r) - 1 + r**2 / 2) / r**4 in r**2, for r in [0, 1]
COS_FLOAT64 = (
    float.fromhex("0x1.5555555555555p-5"),
    float.fromhex("-0x1.6c16c16c16b70p-10"),
    float.fromhex("0x1.a01a01a00a18ap-16"),
    float.fromhex("-0x1.27e4fb6afe9c8p-22"),
    float.fromhex("0x1.1eed83cec4a72p-29"),
    float.fromhex("-0x1.938be0846d021p-37"),
    float.fromhex("0x1.a84832ec8c3c4p-45"),
)
# (atan(t) / t - 1) / t**2 in t**2, for t in [0, 7 / 16]
ATAN_FLOAT64 = (
    float.fromhex("-0x1.555555555550ap-2"),
    float.fromhex("0x1.999999998e5efp-3"),
    float.fromhex("-0x1.2492491fe836bp-3"),
    float.fromhex("0x1.c71c6fd7355d2p-4"),
    float.fromhex("-0x1.745cdb3e9bf4fp-4"),
    float.fromhex("0x1.3b0f19e9a94d8p-4"),
    float.fromhex("-0x1.10d5bec286cedp-4"),
    float.fromhex("0x1.ddda37e191c5dp-5"),
    float.fromhex("-0x1.979252595034ap-5"),
    float.fromhex("0x1.2af6d8daf7098p-5"),
    float.fromhex("-0x1.0a3d44eafefd7p-6"),
)
# the same for t in [0, sqrt(2) - 1], good for a float32
ATAN_SHORT = (
    float.fromhex("-0x1.555554c53968fp-2"),
    float.fromhex("0x1.9999180abb325p-3"),
    float.fromhex("-0x1.247ec8a669e71p-3"),
    float.fromhex("0x1.c4623080f8804p-4"),
    float.fromhex("-0x1.5b25a0a52cb76p-4"),
    float.fromhex("0x1.8474a432cd056p-5"),
)
# (asin(s) / s - 1) / s**2 in s**2, for s in [0, 1 / 2]
ASIN_FLOAT64 = (
    float.fromhex("0x1.555555555538ep-3"),
    float.fromhex("0x1.333333336ec3bp-4"),
    float.fromhex("0x1.6db6db424bc6ap-5"),
    float.fromhex("0x1.f1c72c48dccaep-6"),
    float.fromhex("0x1.6e89f2b16cac9p-6"),
    float.fromhex("0x1.1c6bfa0cff43fp-6"),
    float.fromhex("0x1.c6fbcf86578ffp-7"),
    float.fromhex("0x1.8ed02382e29eep-7"),
    float.fromhex("0x1.ab5a9a87558aep-8"),
    float.fromhex("0x1.404675c04e193p-6"),
    float.fromhex("-0x1.0a5658a55745ap-6"),
    float.fromhex("0x1.059b4e8140ae4p-5"),
)
# the same, good for a float32
ASIN_SHORT = (
    float.fromhex("0x1.55554c5950053p-3"),
    float.fromhex("0x1.33387fd1da430p-4"),
    float.fromhex("0x1.6cae4e080f343p-5"),
    float.fromhex("0x1.049636bb599c5p-5"),
    float.fromhex("0x1.d8d65b0eed31ap-7"),
    float.fromhex("0x1.3370c95159926p-5"),
)

# floor(2**1163 / pi) as 19 words of 64 bits: the first bit has weight 2**52
INVERSE_PI = (
    "000000000000028be60db9391054a7f09d5f47d4d377036d8a5664f10e4107f9"
    "458eaf7aef1586dc91b8e909374b801924bba827464873f877ac72c4a69cfba2"
    "08d7d4baed1213a671c09ad17df904e64758e60d4ce7d272117e2ef7e4a0ec7f"
    "e25fff7816603fbcbc462d6829b47db4d9fb3c9f2c26dd3d18fd9a797fa8b5d4"
    "9eeb1faf97c5ecf41ce7de294a4ba9afed7ec47e35742158"
)
# pi in two parts: the products of the first with integers of 20 bits, and of the second one's
# first with numbers of 26 bits, are exact
PI_33, PI_AFTER_33 = float.fromhex("0x1.921fb544p+1"), float.fromhex("0x1.0b4611a626331p-33")
PI_27, PI_AFTER_27 = float.fromhex("0x1.921fb54p+1"), float.fromhex("0x1.10b4611a62633p-29")
HALF_PI, HALF_PI_REST = (
    float.fromhex("0x1.921fb54442d18p+0"),
    float.fromhex("0x1.1a62633145c07p-54"),
)
PI, PI_REST = float.fromhex("0x1.921fb54442d18p+1"), float.fromhex("0x1.1a62633145c07p-53")
# a number between those where atan is reduced to it, its arc tangent in two parts
ATAN_FROM = (
    (7 / 16, 0.5, float.fromhex("0x1.dac670561bb4fp-2"), float.fromhex("0x1.a2b7f222f65e2p-56")),
    (11 / 16, 1.0, float.fromhex("0x1.921fb54442d18p-1"), float.fromhex("0x1.1a62633145c07p-55")),
    (19 / 16, 1.5, float.fromhex("0x1.f730bd281f69bp-1"), float.fromhex("0x1.007887af0cbbdp-56")),
)


def sin(x: UOp, largest: float = math.inf) -> UOp:
    """The sine of an angle in radians, its argument reduced exactly however large it is.

    `largest` bounds |x| where that is known: a float32 up to 2**20 takes a short path. For
    float32 the target must have float64.
    """
    return _sin_or_cos(x, largest, False)


def cos(x: UOp, largest: float = math.inf) -> UOp:
    """The cosine, as `sin`."""
    return _sin_or_cos(x, largest, True)


def _sin_or_cos(x: UOp, largest: float, cosine: bool) -> UOp:
    if x.dtype is dtypes.float64:
        r, error, n, direct, mask = _reduce_float64(x)
        return _signed_sine(x, _sine_and_cosine(r, error), n, direct, mask, cosine)
    if largest <= 2.0**20:
        return _sin_moderate(x, cosine).cast(dtypes.float32)
    value, sign = _sin_float32(x, cosine)
    value = value.cast(dtypes.float32)
    result = (value.bitcast(dtypes.uint32) ^ sign).bitcast(dtypes.float32)
    return (absolute(x) < math.inf).where(result, x.const_like(math.nan))


def tan(x: UOp, largest: float = math.inf) -> UOp:
    """The tangent, as `sin`: sine over cosine, of a float32 rounded once."""
    if x.dtype is dtypes.float64:
        r, error, n, direct, mask = _reduce_float64(x)
        sine, cosine = _sine_and_cosine(r, error)
        is_odd = ((n & (1 << 62)).ne(0)) & direct.logical_not()
        above, below = is_odd.where(cosine, sine), is_odd.where(sine, cosine)
        # r is negative where the mask is set, and a quarter turn further it is -1 / tan(r)
        sign = sign_of(x) ^ (direct.where(mask.const_like(0), mask ^ ((n & (1 << 62)) << 1)))
        result = with_sign(absolute(above / below), sign & (1 << 63))
        return (absolute(x) < math.inf).where(result, x.const_like(math.nan))
    if largest <= 2.0**20:
        return (_sin_moderate(x, False) / _sin_moderate(x, True)).cast(dtypes.float32)
    (sine, sign), (cosine, other) = _sin_float32(x, False), _sin_float32(x, True)
    value = (sine / cosine).cast(dtypes.float32)
    result = (value.bitcast(dtypes.uint32) ^ sign ^ other).bitcast(dtypes.float32)
    return (absolute(x) < math.inf).where(result, x.const_like(math.nan))


def _inverse_pi_words(first_weight: int, count: int) -> list[int]:
    """1 / pi as words of 64 bits, the first bit of the first having weight 2**first_weight."""
    digits = int(INVERSE_PI, 16)
    kept = digits >> (1163 - (64 * count - 1 - first_weight))
    return [(kept >> (64 * (count - 1 - i))) & 0xFFFFFFFFFFFFFFFF for i in range(count)]


def _window(words: list[int], position: UOp, count: int) -> list[UOp]:
    """`count` words of 64 bits, from bit `position` (uint64) of the constant `words` on."""
    level = [position.const_like(word) for word in words]
    step = 1
    while step * 2 <= len(words) - count:
        step *= 2
    while step:  # so many words further, or not
        needed = count + 1 + step - 1  # words that the steps after this one can still reach
        far = (position & (64 * step)).ne(0)
        level = [
            far.where(level[i + step], level[i]) if i + step < len(level) else level[i]
            for i in range(min(needed, len(level)))
        ]
        step //= 2
    shift = position & 63
    # a shift by 64 less 0 would be out of range: by 1 and by 63 less 0 instead
    rest = shift.const_like(63) - shift
    return [(level[i] << shift) | ((level[i + 1] >> 1) >> rest) for i in range(count)]


def _sin_moderate(x: UOp, cosine: bool) -> UOp:
    """The sine of a float32 up to 2**20, as float64: n pi is subtracted in two exact steps."""
    float64, uint64 = dtypes.float64, dtypes.uint64
    wide, rounder = x.cast(float64), LAYOUTS[float64].rounder
    turns = wide * (1 / math.pi)
    rounded = (turns + 0.5 if cosine else turns) + rounder  # cos(x) = sin(x + pi/2)
    n = rounded - rounder
    n = n - 0.5 if cosine else n
    value = _sin_of_reduced((wide - n * PI_33) - n * PI_AFTER_33)
    odd = rounded.bitcast(uint64) << 63
    return (value.bitcast(uint64) ^ odd).bitcast(float64)


def _sin_float32(x: UOp, cosine: bool) -> tuple[UOp, UOp]:
    """sin(r) as float64, and what to flip its sign with as a float32.

    r = |x| - n pi, n the integer nearest to |x| / pi.
    """
    float64, uint32, uint64 = dtypes.float64, dtypes.uint32, dtypes.uint64
    bits = x.bitcast(uint32)
    positive = (bits & 0x7FFFFFFF).bitcast(dtypes.float32)
    mantissa = ((bits & 0x7FFFFF) | 0x800000).cast(uint64)
    # |x| = mantissa * 2**(exponent - 23); for |x| >= 1 the window begins at the bit of 1 / pi
    # whose product with the mantissa's last bit is 1: those before it give multiples of 2.
    exponent = (((bits >> 23) & 0xFF) - 127).cast(uint64)
    high, low = _window(_inverse_pi_words(23, 4), exponent, 2)
    # n and the rest as a number modulo 2, its unit 2**-63
    turns = mantissa * high + ((mantissa * (low >> 32)) >> 32)
    if cosine:  # cos(x) = sin(|x| + pi/2)
        turns = turns + (1 << 62)
    rest = (turns << 1).bitcast(dtypes.int64).cast(float64) * (math.pi * 2.0**-64)
    odd = (((turns + (1 << 62)) >> 32) & 0x80000000).cast(uint32)
    direct = positive < 1.0  # r is |x| itself
    wide = positive.cast(float64)
    r = direct.where(wide.const_like(math.pi / 2) - wide if cosine else wide, rest)
    sign = direct.where(odd.const_like(0), odd)
    if not cosine:
        sign = sign ^ (bits & 0x80000000)
    return _sin_of_reduced(r), sign


def _sin_of_reduced(r: UOp) -> UOp:
    """sin(r) of a float64 in [-pi/2, pi/2], good for float32."""
    z = r * r
    return r * (z * polynomial(z, SIN_FLOAT32) + 1.0)  # a product, so that -0.0 stays


def _reduce_float64(x: UOp) -> tuple[UOp, UOp, UOp, UOp, UOp]:
    """r in [0, pi/4] of |x| = n pi/2 +- r, and what r lost; n as bits 62 and 63; two masks.

    `direct`: |x| is below 1, r is |x| itself and n is to be taken for 0. The other mask is all
    ones where the sign of r is negative.
    """
    float64, uint64 = dtypes.float64, dtypes.uint64
    sign_bit = 1 << 63
    bits = x.bitcast(uint64)
    positive = (bits & (sign_bit - 1)).bitcast(float64)
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    exponent = (((bits >> 52) & 0x7FF) - 1023) & 1023
    w0, w1, w2 = _window(_inverse_pi_words(52, 19), exponent, 3)
    # |x| / pi modulo 2, in units of 2**-127: two words
    middle = mantissa * w1
    low = middle + _multiply_high(mantissa, w2)
    carry = (low < middle).cast(uint64)
    high = mantissa * w0 + _multiply_high(mantissa, w1) + carry
    # less n halves, then its magnitude (ones' complement is near enough)
    rest = (high << 2).bitcast(dtypes.int64) >> 2
    mask = (rest >> 63).bitcast(uint64)
    rest_high, rest_low = rest.bitcast(uint64) ^ mask, low ^ mask
    # as a sum of two float64
    first = _small_to_float64(rest_high >> 32) * 2.0**-31
    second = _small_to_float64(rest_high & 0xFFFFFFFF) * 2.0**-63
    third = _small_to_float64(rest_low >> 32) * 2.0**-95
    fourth = _small_to_float64(rest_low & 0xFFFFFFFF) * 2.0**-127
    top = first + second
    bottom = (second - (top - first)) + (third + fourth)
    # times pi: the leading product is exact
    t = (top.bitcast(uint64) & 0xFFFFFFFFF8000000).bitcast(float64)
    leading = t * PI_27
    following = t * PI_AFTER_27 + ((top - t) + bottom) * math.pi
    r = leading + following
    direct = positive < 1.0  # r is |x| itself, and n is 0
    error = direct.where(r.const_like(0.0), following - (r - leading))
    r = direct.where(positive, r)
    # n modulo 4 in the first two bits
    return r, error, high + (1 << 61), direct, mask


def _sine_and_cosine(r: UOp, error: UOp) -> tuple[UOp, UOp]:
    """Those of r + error, r in [0, 1]."""
    z = r * r
    sine = r + (error * (z * -0.5 + 1.0) + (r * z) * polynomial(z, SIN_FLOAT64))
    half_square = z * 0.5
    above = half_square.const_like(1.0) - half_square
    lost = (above.const_like(1.0) - above) - half_square
    return sine, above + (lost + ((z * z) * polynomial(z, COS_FLOAT64) - r * error))


def _signed_sine(
    x: UOp, pair: tuple[UOp, UOp], n: UOp, direct: UOp, mask: UOp, cosine: bool
) -> UOp:
    """+-sin(r) or +-cos(r), by the quarter turns n; cos(x) = sin(x + pi/2)."""
    sine, other = pair
    zero = mask.const_like(0)
    n = direct.where(zero, n) + (cosine << 62)
    is_odd = (n & (1 << 62)).ne(0)
    value = is_odd.where(other, sine)
    sign = n ^ (is_odd | direct).where(zero, mask)  # its first bit
    if not cosine:
        sign = sign ^ x.bitcast(dtypes.uint64)
    result = (value.bitcast(dtypes.uint64) ^ (sign & (1 << 63))).bitcast(dtypes.float64)
    return (absolute(x) < math.inf).where(result, x.const_like(math.nan))


def _multiply_high(a: UOp, b: UOp) -> UOp:
    """The high word of the product of two uint64, the first below 2**53."""
    a_high, a_low = a >> 32, a & 0xFFFFFFFF
    b_high, b_low = b >> 32, b & 0xFFFFFFFF
    across = a_high * b_low + ((a_low * b_low) >> 32)
    other = a_low * b_high + (across & 0xFFFFFFFF)
    return a_high * b_high + (across >> 32) + (other >> 32)


def _small_to_float64(x: UOp) -> UOp:
    """A uint64 below 2**52 as a float64: many targets have no vector conversion."""
    return (x | LAYOUTS[dtypes.float64].bits(2.0**52)).bitcast(dtypes.float64) - 2.0**52


def largest_magnitude(x: UOp) -> float:
    """A bound of |x| that the few nodes above show, NaN left out; infinity if they do not."""
    scale, offset = 1.0, 0.0
    while True:
        kind = x.dtype.kind
        if x.op is Ops.CONST:
            return abs(float(x.arg)) * scale + offset
        if kind in "biux":
            return max(abs(float(x.vmin)), abs(float(x.vmax))) * scale + offset
        if x.op is Ops.BITCAST and x.dtype is dtypes.float32:
            return _largest_of_bits(x.src[0]) * scale + offset
        if x.dtype is dtypes.float16 or (kind == "8" and x.op is not Ops.CAST):
            # an infinite one does not matter: its sine is NaN with either reduction
            return 65504.0 * scale + offset
        if x.op in (Ops.CAST, Ops.NEG):
            x = x.src[0]
        elif x.op in (Ops.ADD, Ops.SUB, Ops.MUL) and Ops.CONST in (x.src[0].op, x.src[1].op):
            constant, other = x.src if x.src[0].op is Ops.CONST else x.src[::-1]
            if x.op is Ops.MUL:
                scale *= abs(float(constant.arg))
            else:
                offset += abs(float(constant.arg)) * scale
            x = other
        else:
            return math.inf


def _largest_of_bits(bits: UOp) -> float:
    """The largest float32 that an integer's bits can be, if its bounds show that it is positive."""
    high = int(bits.vmax)
    if bits.op is Ops.OR and bits.src[0].vmin >= 0 and bits.src[1].vmin >= 0:
        high = (1 << max(int(s.vmax).bit_length() for s in bits.src)) - 1
    if bits.vmin < 0 or high >= 0x7F800000:
        return math.inf
    value: float = struct.unpack("<f", struct.pack("<I", high))[0]
    return value


# ---------------------------------------------------------------- inverse functions


def atan(x: UOp) -> UOp:
    """The arc tangent: atan(c) + atan((a - c) / (1 + c a)) for the nearest of a few c, a = |x|."""
    a = absolute(x).cast(dtypes.float64)
    short = x.dtype is dtypes.float32
    one, zero = a.const_like(1.0), a.const_like(0.0)
    above, below, base, rest = a, one, zero, zero
    if short:  # to [0, tan(pi/8)]
        steps: tuple[tuple[float, float, float, float], ...] = (
            (math.sqrt(2) - 1, 1.0, math.pi / 4, 0.0),
        )
        last = math.sqrt(2) + 1
    else:
        steps, last = ATAN_FROM, 39 / 16
    for least, c, value, value_rest in steps:
        far = a.const_like(least).alu(Ops.CMPLT, a)
        above, below = far.where(a - c, above), far.where(a * c + 1.0, below)
        base, rest = far.where(a.const_like(value), base), far.where(a.const_like(value_rest), rest)
    far = a.const_like(last).alu(Ops.CMPLT, a)
    above, below = far.where(a.const_like(-1.0), above), far.where(a, below)
    base = far.where(a.const_like(HALF_PI), base)
    rest = far.where(a.const_like(HALF_PI_REST), rest)
    t = above / below
    z = t * t
    tail = (t * z) * polynomial(z, ATAN_SHORT if short else ATAN_FLOAT64)
    result = base + (t + (tail if short else tail + rest))
    return with_sign(absolute(result.cast(x.dtype)), sign_of(x))


def _arc(x: UOp) -> tuple[UOp, UOp, UOp, UOp, UOp]:
    """Of a = |x| as float64: whether it is above 1/2, s, asin(s) - s, s**2, and a.

    s is a itself, or sqrt((1 - a) / 2): asin(a) = pi/2 - 2 asin(s).
    """
    a = absolute(x).cast(dtypes.float64)
    large = a.const_like(0.5).alu(Ops.CMPLT, a)
    z = large.where((a.const_like(1.0) - a) * 0.5, a * a)
    s = large.where(z.alu(Ops.SQRT), a)
    tail = s * (z * polynomial(z, ASIN_SHORT if x.dtype is dtypes.float32 else ASIN_FLOAT64))
    return large, s, tail, z, a


def _root(s: UOp, z: UOp) -> tuple[UOp, UOp]:
    """sqrt(z) in two parts, s being it rounded; the first has 26 bits."""
    high = high_half(s)
    return high, (z - high * high) / (s + high + 2.0**-1000)  # which matters for 0 only


def asin(x: UOp) -> UOp:
    """The arc sine; NaN beyond 1."""
    large, s, tail, z, _ = _arc(x)
    if x.dtype is dtypes.float32:
        far = s.const_like(HALF_PI) - (s + tail) * 2.0
    else:
        high, low = _root(s, z)
        far = (s.const_like(HALF_PI) - high * 2.0) - ((low + tail) * 2.0 - HALF_PI_REST)
    result = large.where(far, s + tail).cast(x.dtype)
    return with_sign(absolute(result), sign_of(x))


def acos(x: UOp) -> UOp:
    """The arc cosine; NaN beyond 1."""
    large, s, tail, z, _ = _arc(x)
    wide, negative = x.cast(dtypes.float64), x < 0.0
    # with the sign of x for a small one
    signed_tail = with_sign(absolute(tail), sign_of(wide))
    near = wide.const_like(HALF_PI) - (wide + (signed_tail - HALF_PI_REST))
    below = wide.const_like(PI) - (s + (tail - PI_REST / 2)) * 2.0
    if x.dtype is dtypes.float32:
        above = (s + tail) * 2.0
    else:
        high, low = _root(s, z)
        above = (high + (low + tail)) * 2.0
    return large.where(negative.where(below, above), near).cast(x.dtype)
