"""Casts, arithmetic, comparisons and functions of one element at a time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from tiny._core.graph import Node
from tiny._core.ops import Ops
from tiny.dtype import (
    DTypeLike,
    dtypes,
    least_upper_dtype,
    least_upper_float,
    strong_dtype,
    to_dtype,
)
from tiny.mixin.movement import MovementMixin, broadcast_shape
from tiny.mixin.sizes import most, settled

P = ParamSpec("P")
V = TypeVar("V", bound="ElementwiseMixin")

# arithmetic on truth values, so that no device needs to add or multiply them
_OF_BOOLS = {Ops.ADD: Ops.OR, Ops.MUL: Ops.AND, Ops.MAX: Ops.OR, Ops.SUB: Ops.XOR}
# tanh(x) / x in powers of x², highest first: below 0.125 what follows is under 2**-60
_TANH_SERIES = (
    6404582 / 10854718875,
    -929569 / 638512875,
    21844 / 6081075,
    -1382 / 155925,
    62 / 2835,
    -17 / 315,
    2 / 15,
    -1 / 3,
    1.0,
)
_COMPARISONS = (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ)


def in_float32(
    method: Callable[Concatenate[V, P], V],
) -> Callable[Concatenate[V, P], V]:
    """A function of floats; of float16 and narrower ones in float32, rounded once at the end.

    Integers become the default float first.
    """

    def wrapper(self: V, /, *args: P.args, **kwargs: P.kwargs) -> V:
        if self.dtype is dtypes.float32:
            return method(self, *args, **kwargs)
        x = self._as_float()
        if x.dtype.itemsize >= 4:
            return method(x, *args, **kwargs)
        return method(x.cast(dtypes.float32), *args, **kwargs).cast(x.dtype)

    functools.update_wrapper(wrapper, method)
    return wrapper


class ElementwiseMixin(MovementMixin):
    """Elementwise methods. Operands are promoted to one dtype and broadcast to one shape."""

    __slots__ = ()

    # ------------------------------------------------------------ casts

    def cast(self, dtype: DTypeLike) -> Self:
        """This value as another dtype.

        To a float: the nearest one, ties to even, rounded once from whatever it was; too large a
        number becomes infinity, in an eight-bit float the largest. A float to an integer: its
        fraction is cut off, NaN is 0, and what is out of range is taken to the nearest end of
        int32 for integers of 8 and 16 bits, of int64 for uint32, and of their own range for
        others (negative to uint64: of int64). An integer to a shorter one: its low bits. To bool:
        whether it is not 0; NaN is true. ValueError or TypeError for what is no dtype of values.

        >>> Tensor([2.9, -2.9, float("nan"), 1e10]).cast("int32").tolist()
        [2, -2, 0, 2147483647]
        >>> Tensor([300, -1]).cast(dtypes.uint8).tolist()
        [44, 255]
        """
        own = self.dtype
        if dtype is own:
            return self
        to = to_dtype(dtype)
        if to in dtypes.weaks and own not in dtypes.weaks:
            to = strong_dtype(to)  # a weak dtype is one of Python numbers
        if to is own:
            return self
        constant = self._retyped(to) if own in dtypes.weaks else None
        return self._node(Ops.CAST, to) if constant is None else constant

    def bitcast(self, dtype: DTypeLike) -> Self:
        """The bits read as another dtype. Between sizes the last dimension is split or joined.

        (..., n) items of k bytes become (..., n * k / m) of m bytes, the lowest bytes first, as in
        the memory of the host. As a bool any byte but 0 is true. No gradient flows through.
        ValueError if the last dimension does not hold a whole number of the larger items, or if
        there is none; TypeError for a Python number, whose size is not fixed.

        >>> Tensor([1.0, -2.0]).bitcast("int32").tolist()
        [1065353216, -1073741824]
        >>> Tensor([258], dtype="int32").bitcast(dtypes.uint8).tolist()
        [2, 1, 0, 0]
        """
        to, own = to_dtype(dtype), self.dtype
        if to in dtypes.weaks or own in dtypes.weaks:
            raise TypeError(f"bitcast: {own} to {to} has no bits of a fixed size; cast first")
        if to is own:
            return self
        if own is dtypes.bool:  # whose byte is 0 or 1
            return self.cast(dtypes.uint8).bitcast(to)
        if to is dtypes.bool:
            return self.bitcast(dtypes.uint8).ne(0)
        if to.itemsize == own.itemsize:
            return self._node(Ops.BITCAST, to)
        if not self.shape:
            raise ValueError(f"bitcast: {own} to {to} needs a dimension to split; reshape to (1,)")
        unsigned = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
        x = self.bitcast(unsigned[own.itemsize])
        small, large = unsigned[min(own.itemsize, to.itemsize)], max(own.itemsize, to.itemsize)
        count = large // small.itemsize
        steps = self._places(count).cast(unsigned[large]) * small.bitsize
        if to.itemsize < own.itemsize:  # the lowest bits come first in memory
            x = (x.unsqueeze(-1) >> steps).cast(small).flatten(-2)
            return x.bitcast(to)
        if settled(self.shape[-1] % count) != 0:
            raise ValueError(
                f"bitcast: {own} to {to} joins {count} items, and the last dimension of "
                f"{self.shape} is no multiple of that; pad it"
            )
        x = x.reshape(*self.shape[:-1], self.shape[-1] // count, count)
        x = x.cast(unsigned[large])
        return (x << steps)._combine(Ops.ADD).bitcast(to)

    def _places(self, count: Any) -> Self:
        """0 to count - 1 as int32 (int64 if they need it), shape (count,).

        Bit by bit: place k has bit j where k // 2**j is odd, and a padded constant of shape (2,)
        is such a bit. So the cost is the logarithm of the count, and there is no reduction.
        """
        bits = max(most(count) - 1, 0).bit_length()
        bit = self._scalar(True).reshape(1).pad(((1, 0),))
        dtype = dtypes.int32 if bits < 32 else dtypes.int64
        total = self._scalar(0, dtype).reshape((1,) * max(bits, 1))
        for j in range(bits):
            shape = tuple(2 if axis == j else 1 for axis in range(bits))
            weight = self._scalar(1 << (bits - 1 - j), dtype)
            total = total + bit.reshape(shape).where(weight, 0)
        return total.reshape(1 << bits)._shrink(((0, count),))

    def _combine(self, op: Ops) -> Self:
        """Fold the last dimension, which is short, by an elementwise operation."""
        parts = [
            self.shrink((*[None] * (self.ndim - 1), (k, k + 1))).squeeze(-1)
            for k in range(self.shape[-1])
        ]
        return functools.reduce(lambda a, b: a._binop(op, b, False), parts)

    def _as_float(self) -> Self:
        """A float of a fixed size stays as it is; anything else becomes the default float."""
        if self.dtype.kind == "f":
            return self
        return self.cast(strong_dtype(least_upper_float(self.dtype)))

    def is_floating_point(self) -> bool:
        """Whether the elements are floats, those of eight bits included.

        >>> Tensor([1.0]).is_floating_point(), Tensor([1]).is_floating_point()
        (True, False)
        """
        return dtypes.is_float(self.dtype)

    def element_size(self) -> int:
        """The size of an element in bytes.

        >>> Tensor([1, 2], dtype="int64").element_size()
        8
        """
        return strong_dtype(self.dtype).itemsize

    # ------------------------------------------------------------ operands

    def _operand(self, x: Any) -> Self:
        """The other side of an operator as a value of this class."""
        return x if isinstance(x, type(self)) else self._scalar(x)

    def _strong(self) -> Self:
        """A Python number as the default dtype of its kind; anything else as it is."""
        if self.dtype not in dtypes.weaks:
            return self
        return self.cast(strong_dtype(self.dtype))

    def _broadcast(self, shape: tuple[Any, ...]) -> Self:
        """This value with that shape; a scalar stays one, it fits every shape."""
        return self if not self.shape or self.shape == shape else self._broadcast_to(shape)

    def _binop(self, op: Ops, x: Any, reverse: bool) -> Self:
        """An operation of two operands: promoted, broadcast, and checked."""
        other = self._operand(x)
        dtype = least_upper_dtype(self.dtype, other.dtype)
        if op in _COMPARISONS and dtypes.is_int(dtype):
            decided = self._compared_out_of_range(op, other, reverse)
            if decided is not None:
                return decided
        dtype = strong_dtype(dtype)
        if dtype is dtypes.bool and not (op in _COMPARISONS or op in _OF_BOOLS.values()):
            if op not in _OF_BOOLS:
                raise TypeError(f"{op.name.lower()}: not defined for bool; cast to an integer")
            op = _OF_BOOLS[op]
        a, b = self.cast(dtype), other.cast(dtype)
        if reverse:
            a, b = b, a
        shape = broadcast_shape(op.name.lower(), a.shape, b.shape)
        result = dtypes.bool if op in _COMPARISONS else dtype
        return a._broadcast(shape)._node(op, result, (b._broadcast(shape),))

    def _compared_out_of_range(self, op: Ops, other: Self, reverse: bool) -> Self | None:
        """The comparison with a Python int that this dtype can not hold: known at once."""
        if other.dtype is not dtypes.weakint or self.dtype in dtypes.weaks:
            return None
        low, high = other._number_bounds()
        if self.dtype is dtypes.bool or (self.dtype.min <= low and high <= self.dtype.max):
            return None
        if low != high:
            return self.cast(dtypes.int64)._binop(op, other.cast(dtypes.int64), reverse)
        above = low > self.dtype.max
        holds = op is Ops.CMPNE or (op is Ops.CMPLT and above != reverse)
        return self._node(Ops.CMPEQ if holds else Ops.CMPNE, dtypes.bool, (self,))

    def _number_bounds(self) -> tuple[Any, Any]:
        """The least and the greatest value of a Python number or an expression of Variables."""
        raise TypeError("not a number")

    def _integers(self, op: Ops, x: Any, reverse: bool, allow_bool: bool = True) -> Self:
        """An operation that only integers have."""
        other = self._operand(x)
        for side in (self, other):
            if dtypes.is_float(side.dtype) or (side.dtype is dtypes.bool and not allow_bool):
                raise TypeError(
                    f"{op.name.lower()}: the operands must be integers, "
                    f"got {self.dtype} and {other.dtype}; cast one"
                )
        return self._binop(op, other, reverse)

    # ------------------------------------------------------------ arithmetic

    def add(self, x: Any, reverse: bool = False) -> Self:
        """x + y."""
        return self._binop(Ops.ADD, x, reverse)

    def sub(self, x: Any, reverse: bool = False) -> Self:
        """x - y."""
        return self._binop(Ops.SUB, x, reverse)

    def mul(self, x: Any, reverse: bool = False) -> Self:
        """x * y."""
        return self._binop(Ops.MUL, x, reverse)

    def div(self, x: Any, reverse: bool = False, rounding_mode: str | None = None) -> Self:
        """x / y as floats; with `rounding_mode` "floor" or "trunc" rounded, integers exactly.

        An integer divided by zero gives zero.
        """
        if rounding_mode is None and self.dtype.kind == "f" and isinstance(x, int | float):
            return self._binop(Ops.FDIV, x, reverse)
        other = self._operand(x)
        if rounding_mode not in (None, "floor", "trunc"):
            raise ValueError(
                f'div: rounding_mode is "floor", "trunc" or None, got {rounding_mode!r}'
            )
        dtype = strong_dtype(least_upper_dtype(self.dtype, other.dtype))
        if rounding_mode and not dtypes.is_float(dtype):
            if dtype is dtypes.bool:
                dtype = dtypes.default_int
            op = Ops.FLOORDIV if rounding_mode == "floor" else Ops.CDIV
            return self.cast(dtype)._binop(op, other.cast(dtype), reverse)
        dtype = least_upper_float(dtype)
        quotient = self.cast(dtype)._binop(Ops.FDIV, other.cast(dtype), reverse)
        if rounding_mode is None:
            return quotient
        return quotient.floor() if rounding_mode == "floor" else quotient.trunc()

    def mod(self, x: Any, reverse: bool = False) -> Self:
        """x % y, with the sign of y."""
        return self._remainder(x, reverse, Ops.FLOORMOD, "floor")

    def fmod(self, x: Any) -> Self:
        """The remainder of x / y with the sign of x."""
        return self._remainder(x, False, Ops.CMOD, "trunc")

    def _remainder(self, x: Any, reverse: bool, op: Ops, rounding_mode: str) -> Self:
        other = self._operand(x)
        dtype = strong_dtype(least_upper_dtype(self.dtype, other.dtype))
        if dtype is dtypes.bool:
            dtype = dtypes.default_int
        a, b = self.cast(dtype), other.cast(dtype)
        if not dtypes.is_float(dtype):
            return a._binop(op, b, reverse)
        if reverse:
            a, b = b, a
        return a - a.div(b, rounding_mode=rounding_mode) * b

    def neg(self) -> Self:
        """-x; of a bool: not x."""
        if self.dtype is dtypes.bool:
            return self.logical_not()
        return self._strong()._node(Ops.NEG, strong_dtype(self.dtype))

    def pow(self, x: Any, reverse: bool = False) -> Self:
        """x ** y. An integer to a negative power is a ValueError where the power is a number."""
        other = self._operand(x)
        base, exponent = (other, self) if reverse else (self, other)
        dtype = strong_dtype(least_upper_dtype(base.dtype, exponent.dtype))
        if dtype is dtypes.bool:
            dtype = dtypes.default_int
        if not reverse and not isinstance(x, type(self) | Node):
            return base.cast(dtype)._constant_power(x)
        if not dtypes.is_float(dtype):
            return base.cast(dtype)._integer_power(exponent.cast(dtype))
        return base.cast(dtype)._float_power(exponent.cast(dtype))

    def _constant_power(self, exponent: float) -> Self:
        if not dtypes.is_float(self.dtype) and exponent < 0:
            raise ValueError(
                f"pow: an integer ({self.dtype}) to the power of {exponent} is no integer; "
                "cast to a float first"
            )
        if math.isfinite(exponent) and exponent == int(exponent):
            if exponent < 0:
                return self._constant_power(-exponent).reciprocal()
            if exponent <= 64:
                return self._repeated_product(int(exponent))
        elif exponent == 0.5:
            return self.sqrt()
        if dtypes.is_float(self.dtype):
            return self._float_power(self._scalar(exponent, self.dtype))
        return self._integer_power(self._scalar(int(exponent), self.dtype))

    def _repeated_product(self, exponent: int) -> Self:
        """x ** n by squaring: as many products as n has bits, twice at most."""
        if exponent == 0:
            return self.ne(self).where(1, 1).cast(self.dtype)
        result, square = None, self
        while True:
            if exponent & 1:
                result = square if result is None else result * square
            exponent >>= 1
            if not exponent:
                assert result is not None
                return result
            square = square * square

    def _integer_power(self, exponent: Self) -> Self:
        """x ** n in wrapping integers; below zero only 1 and -1 have a power, others give 0."""
        if dtypes.is_unsigned(self.dtype):
            power, n = self, exponent
        else:
            power, n = (
                (exponent < 0).where(self.square().eq(1).where(self, 0), self),
                exponent.abs(),
            )
        result = (n & 1).cast(dtypes.bool).where(power, 1)
        for bit in range(1, self.dtype.bitsize - (not dtypes.is_unsigned(self.dtype))):
            power = power * power
            result = ((n >> bit) & 1).cast(dtypes.bool).where(result * power, result)
        return result

    @in_float32
    def _float_power(self, exponent: Self) -> Self:
        """x ** y = 2 ** (y log2 |x|), with the sign and the special cases of IEEE 754's pow."""
        exponent = exponent.cast(self.dtype)
        size = self.abs()
        size = size.eq(1).where(1.0, (exponent * size.log2()).exp2())
        whole = exponent.trunc().eq(exponent)
        odd = whole & ((exponent * 0.5).trunc() * 2).ne(exponent)
        # no sign bit is read: -0.0 to an odd power gives 0.0
        defined = whole | self.eq(-math.inf)
        signed = (self < 0).where(odd.where(-size, defined.where(size, math.nan)), size)
        return (exponent.eq(0) | self.eq(1)).where(1.0, signed)

    def maximum(self, x: Any) -> Self:
        """The larger of two; NaN if one is."""
        return self._binop(Ops.MAX, x, False)

    def minimum(self, x: Any) -> Self:
        """The smaller of two; NaN if one is."""
        other = self._operand(x)
        dtype = strong_dtype(least_upper_dtype(self.dtype, other.dtype))
        return (
            self.cast(dtype)
            ._inverse_order()
            .maximum(other.cast(dtype)._inverse_order())
            ._inverse_order()
        )

    def _inverse_order(self) -> Self:
        """A value that is the smaller the larger this one is; undone by itself. Exact."""
        return -self if dtypes.is_float(self.dtype) else ~self

    def clamp(self, min_: Any = None, max_: Any = None) -> Self:
        """Between two bounds, of which one may be None. NaN stays NaN."""
        if min_ is None and max_ is None:
            raise ValueError("clamp: at least one of min_ and max_ is needed, got None twice")
        x = self if min_ is None else self.maximum(min_)
        return x if max_ is None else x.minimum(max_)

    def clip(self, min_: Any = None, max_: Any = None) -> Self:
        """Another name of clamp."""
        return self.clamp(min_, max_)

    # ------------------------------------------------------------ bits and truth

    def bitwise_and(self, x: Any, reverse: bool = False) -> Self:
        """x & y of integers or bools."""
        return self._integers(Ops.AND, x, reverse)

    def bitwise_or(self, x: Any, reverse: bool = False) -> Self:
        """x | y of integers or bools."""
        return self._integers(Ops.OR, x, reverse)

    def bitwise_xor(self, x: Any, reverse: bool = False) -> Self:
        """x ^ y of integers or bools."""
        return self._integers(Ops.XOR, x, reverse)

    def bitwise_not(self) -> Self:
        """~x of integers or bools."""
        if self.dtype is dtypes.bool:
            return self.logical_not()
        return self._integers(Ops.XOR, -1, False)

    def lshift(self, x: Any, reverse: bool = False) -> Self:
        """x << y of integers; 0 where y is the width or more."""
        return self._integers(Ops.SHL, x, reverse, allow_bool=False)

    def rshift(self, x: Any, reverse: bool = False) -> Self:
        """x >> y of integers, keeping the sign."""
        return self._integers(Ops.SHR, x, reverse, allow_bool=False)

    def logical_not(self) -> Self:
        """True where this is false or zero."""
        return self.cast(dtypes.bool)._binop(Ops.CMPNE, True, False)

    # ------------------------------------------------------------ comparisons

    def eq(self, x: Any) -> Self:
        """x == y; false where one is NaN."""
        return self._binop(Ops.CMPEQ, x, False)

    def ne(self, x: Any) -> Self:
        """x != y; true where one is NaN."""
        return self._binop(Ops.CMPNE, x, False)

    def _less_equal(self, x: Any, reverse: bool) -> Self:
        """x <= y. Of floats not the opposite of y < x: with a NaN both are false."""
        other = self._operand(x)
        if dtypes.is_float(least_upper_dtype(self.dtype, other.dtype)):
            return self._binop(Ops.CMPLT, other, reverse) | self._binop(Ops.CMPEQ, other, reverse)
        return self._binop(Ops.CMPLT, other, not reverse).logical_not()

    def isnan(self) -> Self:
        """True where this is NaN."""
        return self.ne(self)

    def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
        """True where this is an infinity of a sign asked for."""
        if not dtypes.is_float(self.dtype):
            return self.ne(self)
        return (self.eq(math.inf) & detect_positive) | (self.eq(-math.inf) & detect_negative)

    def isfinite(self) -> Self:
        """True where this is neither NaN nor an infinity."""
        return (self.isnan() | self.isinf()).logical_not()

    def isclose(
        self, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> Self:
        """True where |x - y| <= atol + rtol |y|, or both are the same infinity."""
        y = self._operand(other)
        near = (self - y).abs() <= atol + rtol * y.abs()
        close = (self.isfinite() & y.isfinite() & near) | self.eq(y)
        return close | (self.isnan() & y.isnan()) if equal_nan else close

    def where(self, x: Any, y: Any) -> Self:
        """x where this condition is true, y elsewhere. TypeError if the condition is not bool."""
        if self.dtype is not dtypes.bool:
            raise TypeError(
                f"where: the condition must be bool, got {self.dtype}; compare it with 0"
            )
        a, b = self._operand(x), self._operand(y)
        dtype = strong_dtype(least_upper_dtype(a.dtype, b.dtype))
        a, b = a.cast(dtype), b.cast(dtype)
        shape = broadcast_shape("where", self.shape, a.shape, b.shape)
        return self._broadcast(shape)._node(
            Ops.WHERE, dtype, (a._broadcast(shape), b._broadcast(shape))
        )

    def masked_fill(self, mask: Self, value: Any) -> Self:
        """`value` where the mask is true, this elsewhere."""
        return mask.where(value, self)

    # ------------------------------------------------------------ rounding and signs

    def trunc(self) -> Self:
        """Rounded towards zero."""
        return self._node(Ops.TRUNC, self.dtype) if self._rounds() else self._same()

    def _rounds(self) -> bool:
        return dtypes.is_float(self.dtype) and self.dtype not in dtypes.weaks

    def floor(self) -> Self:
        """Rounded down."""
        if not self._rounds():
            return self._same()
        whole = self.trunc()
        return (self < whole).where(whole - 1, whole)

    def ceil(self) -> Self:
        """Rounded up."""
        if not self._rounds():
            return self._same()
        whole = self.trunc()
        return (whole < self).where(whole + 1, whole)

    def round(self) -> Self:
        """Rounded to the nearest whole number, a half to the even one."""
        if not self._rounds():
            return self._same()
        whole = self.trunc()
        rest = (self - whole).abs()  # exact
        odd = ((whole * 0.5).trunc() * 2).ne(whole)
        up = (rest > 0.5) | (rest.eq(0.5) & odd)
        return up.where(whole + (self < 0).where(-1, 1).cast(self.dtype), whole)

    def sign(self) -> Self:
        """1, 0 or -1; NaN of NaN, and a zero keeps its sign."""
        if self.dtype is dtypes.bool:
            return self._same()
        x = self._strong()
        positive = (x > 0).where(x._scalar(1, x.dtype), x.detach())
        return positive if dtypes.is_unsigned(x.dtype) else (x < 0).where(-1, positive)

    def abs(self) -> Self:
        """Without its sign."""
        if self.dtype is dtypes.bool or dtypes.is_unsigned(self.dtype):
            return self._same()
        return self.maximum(-self)

    def copysign(self, other: Any) -> Self:
        """The size of this with the sign of `other`, that of a zero included."""
        y = self._operand(other)._as_float()
        negative = (y < 0) | (y.eq(0) & (y.reciprocal() < 0))
        size = self._as_float().abs()
        return negative.where(-size, size)

    # ------------------------------------------------------------ powers and exponentials

    def square(self) -> Self:
        """x * x."""
        return self * self

    def sqrt(self) -> Self:
        """The square root; NaN below zero."""
        return self._as_float()._unary(Ops.SQRT)

    def rsqrt(self) -> Self:
        """1 / sqrt(x)."""
        return self.sqrt().reciprocal()

    def reciprocal(self) -> Self:
        """1 / x."""
        return self._as_float()._unary(Ops.RECIPROCAL)

    def _unary(self, op: Ops) -> Self:
        return self._node(op, self.dtype)

    def exp2(self) -> Self:
        """2 ** x."""
        return self._as_float()._unary(Ops.EXP2)

    def log2(self) -> Self:
        """The logarithm to base 2."""
        return self._as_float()._unary(Ops.LOG2)

    def sin(self) -> Self:
        """The sine of an angle in radians."""
        return self._as_float()._unary(Ops.SIN)

    @in_float32
    def exp(self) -> Self:
        """e ** x."""
        return (self * (1 / math.log(2))).exp2()

    @in_float32
    def log(self) -> Self:
        """The natural logarithm."""
        return self.log2() * math.log(2)

    @in_float32
    def log10(self) -> Self:
        """The logarithm to base 10."""
        return self.log2() * math.log10(2)

    @in_float32
    def cos(self) -> Self:
        """The cosine of an angle in radians, as 1 - 2 sin²(x / 2): no large angle is rounded."""
        return 1 - (self * 0.5).sin().square() * 2

    @in_float32
    def tan(self) -> Self:
        """The tangent of an angle in radians."""
        return self.sin() / self.cos()

    @in_float32
    def sinh(self) -> Self:
        """The hyperbolic sine."""
        return (self.exp() - (-self).exp()) * 0.5

    @in_float32
    def cosh(self) -> Self:
        """The hyperbolic cosine."""
        return (self.exp() + (-self).exp()) * 0.5

    @in_float32
    def tanh(self) -> Self:
        """The hyperbolic tangent: (1 - e) / (1 + e) with e = exp(-2|x|), near 0 by its series."""
        size = self.abs()
        e = (size * -2).exp()
        ratio = (1 - e) / (1 + e)
        x2, series = self.square(), self._scalar(_TANH_SERIES[0], self.dtype)
        for c in _TANH_SERIES[1:]:
            series = series * x2 + c
        return (size < 0.125).where(self * series, (self < 0).where(-ratio, ratio))

    @in_float32
    def erf(self) -> Self:
        """The error function, to 1.5e-7 (Abramowitz & Stegun, 1964, 7.1.26)."""
        t = (1 + 0.3275911 * self.abs()).reciprocal()
        series = self._scalar(0.0, self.dtype)
        for c in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
            series = (series + c) * t
        size = 1 - series * (-self.square()).exp()
        return (self < 0).where(-size, size)

    @in_float32
    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x))."""
        return (1 + (self * (-1 / math.log(2))).exp2()).reciprocal()

    # ------------------------------------------------------------ activations

    def relu(self) -> Self:
        """max(x, 0), with gradient 0 at 0; NaN stays NaN."""
        return (self <= 0).where(0, self)

    def relu6(self) -> Self:
        """min(max(x, 0), 6)."""
        return self.relu() - (self - 6).relu()

    def leaky_relu(self, neg_slope: float = 0.01) -> Self:
        """x where positive, else neg_slope * x."""
        return (self < 0).where(neg_slope * self, self)

    @in_float32
    def silu(self) -> Self:
        """x * sigmoid(x) (Elfwing et al., 2018)."""
        return self * self.sigmoid()

    def swish(self) -> Self:
        """Another name of silu."""
        return self.silu()

    @in_float32
    def gelu(self, approximate: str = "tanh") -> Self:
        """x times the normal distribution's share below x (Hendrycks & Gimpel, 2016)."""
        if approximate == "tanh":
            inner = math.sqrt(8 / math.pi) * self * (1 + 0.044715 * self.square())
            return self * inner.sigmoid()  # (1 + tanh(u)) / 2 = sigmoid(2u)
        if approximate != "none":
            raise ValueError(f'gelu: approximate is "tanh" or "none", got {approximate!r}')
        return 0.5 * self * (1 + (self * math.sqrt(0.5)).erf())

    @in_float32
    def quick_gelu(self) -> Self:
        """x * sigmoid(1.702 x)."""
        return self * (self * 1.702).sigmoid()

    @in_float32
    def softplus(self, beta: float = 1.0) -> Self:
        """log(1 + exp(beta x)) / beta, without overflow."""
        bx = self * beta
        return (bx.maximum(0) + (1 + (-bx.abs()).exp()).log()) * (1 / beta)

    @in_float32
    def logsigmoid(self) -> Self:
        """log(sigmoid(x)), without overflow."""
        return -(-self).softplus()

    @in_float32
    def mish(self) -> Self:
        """x * tanh(softplus(x)) (Misra, 2019)."""
        return self * self.softplus().tanh()

    @in_float32
    def elu(self, alpha: float = 1.0) -> Self:
        """x where positive, else alpha * (exp(x) - 1)."""
        return (self > 0).where(self, alpha * (self.minimum(0).exp() - 1))

    def hardtanh(self, min_val: float = -1, max_val: float = 1) -> Self:
        """Between two bounds."""
        return self.clamp(min_val, max_val)

    def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
        """alpha x + beta, between 0 and 1."""
        x = alpha * self + beta
        return x.relu() - (x - 1).relu()

    def hardswish(self) -> Self:
        """x * relu6(x + 3) / 6."""
        return self * (self + 3).relu6() * (1 / 6)

    def softsign(self) -> Self:
        """x / (1 + |x|)."""
        return self / (1 + self.abs())

    def lerp(self, end: Any, weight: Any) -> Self:
        """The way from this to `end`, a share `weight` of it."""
        return self + (self._operand(end) - self) * weight

    # ------------------------------------------------------------ operators

    def __add__(self, x: Any) -> Self:
        return self.add(x)

    def __radd__(self, x: Any) -> Self:
        return self.add(x, True)

    def __sub__(self, x: Any) -> Self:
        return self.sub(x)

    def __rsub__(self, x: Any) -> Self:
        return self.sub(x, True)

    def __mul__(self, x: Any) -> Self:
        return self.mul(x)

    def __rmul__(self, x: Any) -> Self:
        return self.mul(x, True)

    def __truediv__(self, x: Any) -> Self:
        return self.div(x)

    def __rtruediv__(self, x: Any) -> Self:
        return self.div(x, True)

    def __floordiv__(self, x: Any) -> Self:
        return self.div(x, rounding_mode="floor")

    def __rfloordiv__(self, x: Any) -> Self:
        return self.div(x, True, rounding_mode="floor")

    def __mod__(self, x: Any) -> Self:
        return self.mod(x)

    def __rmod__(self, x: Any) -> Self:
        return self.mod(x, True)

    def __pow__(self, x: Any) -> Self:
        return self.pow(x)

    def __rpow__(self, x: Any) -> Self:
        return self.pow(x, True)

    def __and__(self, x: Any) -> Self:
        return self.bitwise_and(x)

    def __rand__(self, x: Any) -> Self:
        return self.bitwise_and(x, True)

    def __or__(self, x: Any) -> Self:
        return self.bitwise_or(x)

    def __ror__(self, x: Any) -> Self:
        return self.bitwise_or(x, True)

    def __xor__(self, x: Any) -> Self:
        return self.bitwise_xor(x)

    def __rxor__(self, x: Any) -> Self:
        return self.bitwise_xor(x, True)

    def __lshift__(self, x: Any) -> Self:
        return self.lshift(x)

    def __rlshift__(self, x: Any) -> Self:
        return self.lshift(x, True)

    def __rshift__(self, x: Any) -> Self:
        return self.rshift(x)

    def __rrshift__(self, x: Any) -> Self:
        return self.rshift(x, True)

    def __neg__(self) -> Self:
        return self.neg()

    def __invert__(self) -> Self:
        return self.bitwise_not()

    def __abs__(self) -> Self:
        return self.abs()

    def __lt__(self, x: Any) -> Self:
        return self._binop(Ops.CMPLT, x, False)

    def __gt__(self, x: Any) -> Self:
        return self._binop(Ops.CMPLT, x, True)

    def __le__(self, x: Any) -> Self:
        return self._less_equal(x, False)

    def __ge__(self, x: Any) -> Self:
        return self._less_equal(x, True)
