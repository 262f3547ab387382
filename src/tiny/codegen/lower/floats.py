"""Parts that functions of floats are made of: bits, signs, polynomials, products in two parts."""

from __future__ import annotations

import struct

from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp

__all__ = [
    "LAYOUTS",
    "Layout",
    "absolute",
    "at_least",
    "at_most",
    "exact_product",
    "exact_sum",
    "fused",
    "high_half",
    "polynomial",
    "sign_of",
    "with_sign",
]


class Layout:
    """How the bits of a float dtype lie, and a number that, added, rounds to an integer."""

    def __init__(self, mantissa_bits: int, exponent_bits: int) -> None:
        wide = mantissa_bits == 52
        self.mantissa_bits = mantissa_bits
        self.bias = (1 << (exponent_bits - 1)) - 1
        self.max_exponent = self.bias + 1  # 2**this overflows
        self.min_exponent = 1 - self.bias  # of the smallest normal number
        self.sign = 1 << (mantissa_bits + exponent_bits)
        self.mantissa_mask = (1 << mantissa_bits) - 1
        self.uint = dtypes.uint64 if wide else dtypes.uint32
        self.int = dtypes.int64 if wide else dtypes.int32
        # The sum's unit is 1, and its lowest bits are the integer in two's complement.
        self.rounder = 1.5 * 2.0**mantissa_bits
        # ln(2) in two parts: the products of the first with exponents are exact
        self.ln2 = float.fromhex("0x1.62e42fefa4p-1" if wide else "0x1.62e4p-1")
        self.ln2_rest = float.fromhex("-0x1.8432a1b0e2634p-43" if wide else "0x1.7f7d1cp-20")
        self.exp_overflows = 709.7827128933841 if wide else float.fromhex("0x1.62e43p+6")

    def bits(self, value: float) -> int:
        """The bits of a number of this layout, as an integer."""
        packed = struct.pack("<d" if self.mantissa_bits == 52 else "<f", value)
        return int.from_bytes(packed, "little", signed=True)


LAYOUTS = {dtypes.float32: Layout(23, 8), dtypes.float64: Layout(52, 11)}


def polynomial(x: UOp, coefficients: tuple[float, ...]) -> UOp:
    """Horner's scheme, the coefficient of degree 0 first."""
    total = x.const_like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = fused(total, x, x.const_like(c))
    return total


def fused(a: UOp, b: UOp, c: UOp | float) -> UOp:
    """a * b + c, rounded once where the target does that, which is faster, or twice."""
    return a.alu(Ops.MULACC, b, a.const_like(c) if isinstance(c, float) else c)


def absolute(x: UOp) -> UOp:
    """|x|: the sign's bit cleared, also of NaN and -0.0."""
    layout = LAYOUTS[x.dtype]
    return (x.bitcast(layout.uint) & (layout.sign - 1)).bitcast(x.dtype)


def sign_of(x: UOp) -> UOp:
    """The sign's bit of x, as an unsigned integer."""
    layout = LAYOUTS[x.dtype]
    return x.bitcast(layout.uint) & layout.sign


def with_sign(size: UOp, sign: UOp) -> UOp:
    """A number whose sign's bit is clear, with that of `sign_of` another one."""
    return (size.bitcast(sign.dtype) | sign).bitcast(size.dtype)


def at_most(x: UOp, bound: float) -> UOp:
    """The smaller of x and a bound; NaN stays NaN."""
    most = x.const_like(bound)
    return most.alu(Ops.CMPLT, x).where(most, x)


def at_least(x: UOp, bound: float) -> UOp:
    """The larger of x and a bound; NaN stays NaN."""
    return (x < bound).where(x.const_like(bound), x)


def high_half(x: UOp) -> UOp:
    """A float64 with the last 27 bits of its mantissa cleared: products of two such are exact."""
    return (x.bitcast(dtypes.uint64) & 0xFFFFFFFFF8000000).bitcast(dtypes.float64)


def exact_product(a: UOp, b: UOp) -> tuple[UOp, UOp]:
    """a * b of float64 rounded, and what was lost, by halves (Dekker, 1971); 2**-105 is not kept.

    The sizes must be such that nothing overflows, or falls below the normal numbers.
    """
    a_high, b_high = high_half(a), high_half(b)
    a_low, b_low = a - a_high, b - b_high
    product = a * b
    lost = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, lost


def exact_sum(a: UOp, b: UOp) -> tuple[UOp, UOp]:
    """a + b rounded, and what was lost, where |a| >= |b| or a is 0 (Dekker, 1971)."""
    total = a + b
    return total, b - (total - a)
