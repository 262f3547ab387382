"""EXP2, LOG2 and SIN of float32 and float64, made of plain integer and float operations.

For targets without them. e**x and cos(x), which the front end writes as EXP2(x / ln 2) and
1 - 2 SIN(x / 2)**2, have functions of their own: written so they lose digits.

There are no branches and no fused operations, so a kernel stays vectorised and every target
computes the same bits. The special values are exact: overflow, underflow, subnormals, signed
zeros, infinities and NaN. Bounds of the errors, in units in the last place of the result, that
`tests/test_transcendental.py` holds them to:

            float32   float64
    EXP2      1.10      1.10
    e**x      1.00      1.00
    LOG2      1.35      1.35
    SIN, cos  0.51      0.90

The polynomials are minimax fits of our own (`benchmarks/minimax.py` derives them); each is
written so that its leading term is exact and only a correction is rounded.
"""

from __future__ import annotations

import math
import struct

from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp

__all__ = ["cos", "exp", "exp2", "largest_magnitude", "log2", "sin"]

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
LOG2E = float.fromhex("0x1.71547652b82fep+0")
LOG2E_LESS_1 = float.fromhex("0x1.c551d94ae0bf8p-2")

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


class _Layout:
    """How the bits of a float dtype lie, and a number that, added, rounds to an integer."""

    def __init__(self, mantissa_bits: int, exponent_bits: int) -> None:
        self.mantissa_bits = mantissa_bits
        self.max_exponent = 1 << (exponent_bits - 1)  # 2**this overflows
        self.min_exponent = 2 - self.max_exponent  # of the smallest normal number
        self.sign = 1 << (mantissa_bits + exponent_bits)
        self.mantissa_mask = (1 << mantissa_bits) - 1
        self.uint = dtypes.uint32 if mantissa_bits == 23 else dtypes.uint64
        self.int = dtypes.int32 if mantissa_bits == 23 else dtypes.int64
        # The sum's unit is 1, and its lowest bits are the integer in two's complement.
        self.rounder = 1.5 * 2.0**mantissa_bits

        # ln(2) in two parts: the products of the first with exponents are exact
        wide = mantissa_bits == 52
        self.ln2 = float.fromhex("0x1.62e42fefa4p-1" if wide else "0x1.62e4p-1")
        self.ln2_rest = float.fromhex("-0x1.8432a1b0e2634p-43" if wide else "0x1.7f7d1cp-20")
        self.exp_overflows = 709.7827128933841 if wide else float.fromhex("0x1.62e43p+6")

    def bits(self, value: float) -> int:
        """The bits of a number of this layout, as an integer."""
        wide = self.mantissa_bits == 52
        packed = struct.pack("<d" if wide else "<f", value)
        return int.from_bytes(packed, "little", signed=True)


_LAYOUTS = {dtypes.float32: _Layout(23, 8), dtypes.float64: _Layout(52, 11)}


def _polynomial(x: UOp, coefficients: tuple[float, ...]) -> UOp:
    """Horner's scheme, the coefficient of degree 0 first."""
    total = x.const_like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * x + x.const_like(c)
    return total


def exp2(x: UOp) -> UOp:
    """2**x of a float32 or float64: 2**n * 2**f, where n is the integer nearest to x."""
    layout = _LAYOUTS[x.dtype]
    rounded = x + layout.rounder
    f = x - (rounded - layout.rounder)  # exact
    power = f * _polynomial(f, EXP2_FLOAT32 if x.dtype is dtypes.float32 else EXP2_FLOAT64) + 1.0
    least = layout.min_exponent - layout.mantissa_bits
    return _scaled_power(x, power, rounded, (least - 2, layout.min_exponent, layout.max_exponent))


def exp(x: UOp) -> UOp:
    """e**x of a float32 or float64: 2**n * e**f, where n is the integer nearest to x / ln(2)."""
    layout = _LAYOUTS[x.dtype]
    rounded = x * LOG2E + layout.rounder
    n = rounded - layout.rounder
    f = (x - n * layout.ln2) - n * layout.ln2_rest
    tail = _polynomial(f, EXP_FLOAT32 if x.dtype is dtypes.float32 else EXP_FLOAT64)
    power = (f + f * f * tail) + 1.0
    least = layout.min_exponent - layout.mantissa_bits
    ends = (least - 2) * math.log(2), (layout.min_exponent + 2) * math.log(2), layout.exp_overflows
    return _scaled_power(x, power, rounded, ends)


def _scaled_power(x: UOp, power: UOp, rounded: UOp, ends: tuple[float, float, float]) -> UOp:
    """power * 2**n, n in the low bits of `rounded`; and what x gives beyond the ends.

    `ends`: below the first x the result is 0, below the second it may be subnormal, from the
    third on it is infinite.
    """
    layout, shift = _LAYOUTS[x.dtype], 64
    under, low, over = ends
    # What may be subnormal is computed 2**64 times as large and scaled down: one rounding.
    is_low = x < low
    bits = rounded.bitcast(layout.uint)
    n = bits + is_low.where(bits.const_like(shift), bits.const_like(0))
    result = (power.bitcast(layout.uint) + (n << layout.mantissa_bits)).bitcast(x.dtype)
    result = result * is_low.where(x.const_like(2.0**-shift), x.const_like(1.0))
    not_zero = x.const_like(under).alu(Ops.CMPLT, x)
    # x + infinity is NaN for NaN
    return (x < over).where(not_zero.where(result, x.const_like(0.0)), x + math.inf)


def log2(x: UOp) -> UOp:
    """The binary logarithm of a float32 or float64: k + log2(1 + f), 1 + f near 1."""
    layout = _LAYOUTS[x.dtype]
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
    f = ((above & layout.mantissa_mask) + first).bitcast(x.dtype) - 1.0  # exact
    if x.dtype is dtypes.float32:
        correction = f * _polynomial(f, LOG2_FLOAT32)
    else:
        s = f / (f + 2.0)
        z = s * s
        half_square = f * f * (LOG2E / 2)
        tail = half_square + z * _polynomial(z, LOG2_FLOAT64)
        correction = f * LOG2E_LESS_1 - (half_square - s * tail)
    result = k + (f + correction)
    at_most_zero = x.eq(0.0).where(x.const_like(-math.inf), x.const_like(math.nan))
    result = x.const_like(0.0).alu(Ops.CMPLT, x).where(result, at_most_zero)
    return (x < math.inf).where(result, x)  # infinity and NaN are their own logarithms


def sin(x: UOp, largest: float = math.inf, cosine: bool = False) -> UOp:
    """The sine of a float32 or float64, its argument reduced exactly however large it is.

    `largest` bounds |x| where that is known: a float32 up to 2**20 takes a short path. For
    float32 the target must have float64.
    """
    if x.dtype is dtypes.float64:
        return _sin_float64(x, cosine)
    return _sin_moderate(x, cosine) if largest <= 2.0**20 else _sin_float32(x, cosine)


def cos(x: UOp, largest: float = math.inf) -> UOp:
    """The cosine of a float32 or float64, as `sin`."""
    return sin(x, largest, cosine=True)


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
    """The sine of a float32 up to 2**20: as below, but n pi is subtracted in two exact steps."""
    float64, uint64 = dtypes.float64, dtypes.uint64
    wide, rounder = x.cast(float64), _LAYOUTS[float64].rounder
    turns = wide * (1 / math.pi)
    rounded = (turns + 0.5 if cosine else turns) + rounder  # cos(x) = sin(x + pi/2)
    n = rounded - rounder
    n = n - 0.5 if cosine else n
    value = _sin_of_reduced((wide - n * PI_33) - n * PI_AFTER_33)
    odd = rounded.bitcast(uint64) << 63
    return (value.bitcast(uint64) ^ odd).bitcast(float64).cast(dtypes.float32)


def _sin_float32(x: UOp, cosine: bool) -> UOp:
    """+-sin(r) with r = |x| - n pi, n the integer nearest to |x| / pi: in float64, rounded once."""
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
    value = _sin_of_reduced(r).cast(dtypes.float32)
    result = (value.bitcast(uint32) ^ sign).bitcast(dtypes.float32)
    return (positive < math.inf).where(result, x.const_like(math.nan))


def _sin_of_reduced(r: UOp) -> UOp:
    """sin(r) of a float64 in [-pi/2, pi/2], good for float32."""
    z = r * r
    return r * (z * _polynomial(z, SIN_FLOAT32) + 1.0)  # a product, so that -0.0 stays


def _sin_float64(x: UOp, cosine: bool) -> UOp:
    """+-sin(r) or +-cos(r) with r = |x| - n pi/2 in two parts, n the integer nearest to 2|x|/pi."""
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
    zero = bits.const_like(0)
    error = direct.where(r.const_like(0.0), following - (r - leading))
    r = direct.where(positive, r)
    # n modulo 4 in the first two bits; cos(x) = sin(x + pi/2)
    n = direct.where(zero, high + (1 << 61)) + (cosine << 62)
    z = r * r
    sine = r + (error * (z * -0.5 + 1.0) + (r * z) * _polynomial(z, SIN_FLOAT64))
    half_square = z * 0.5
    above = half_square.const_like(1.0) - half_square
    lost = (above.const_like(1.0) - above) - half_square
    other = above + (lost + ((z * z) * _polynomial(z, COS_FLOAT64) - r * error))
    is_odd = (n & (1 << 62)).ne(0)
    value = is_odd.where(other, sine)
    sign = n ^ (is_odd | direct).where(zero, mask)  # its first bit
    if not cosine:
        sign = sign ^ bits
    result = (value.bitcast(uint64) ^ (sign & sign_bit)).bitcast(float64)
    return (positive < math.inf).where(result, x.const_like(math.nan))


def _multiply_high(a: UOp, b: UOp) -> UOp:
    """The high word of the product of two uint64, the first below 2**53."""
    a_high, a_low = a >> 32, a & 0xFFFFFFFF
    b_high, b_low = b >> 32, b & 0xFFFFFFFF
    across = a_high * b_low + ((a_low * b_low) >> 32)
    other = a_low * b_high + (across & 0xFFFFFFFF)
    return a_high * b_high + (across >> 32) + (other >> 32)


def _small_to_float64(x: UOp) -> UOp:
    """A uint64 below 2**52 as a float64: many targets have no vector conversion."""
    return (x | _LAYOUTS[dtypes.float64].bits(2.0**52)).bitcast(dtypes.float64) - 2.0**52


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
