"""Casts, arithmetic, comparisons and rounding of one element at a time.

What each gives for NaN, infinities, -0.0 and subnormals stands in docs/ieee.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from tiny._core.graph import Node
from tiny._core.ops import Ops
from tiny.dtype import (
    DType,
    DTypeLike,
    dtypes,
    least_upper_dtype,
    least_upper_float,
    strong_dtype,
    to_dtype,
)
from tiny.mixin.movement import broadcast_shape
from tiny.mixin.padding import PaddingMixin
from tiny.mixin.sizes import most, settled

P = ParamSpec("P")
V = TypeVar("V", bound="ElementwiseMixin")

# arithmetic on truth values, so that no device needs to add or multiply them
_OF_BOOLS = {Ops.ADD: Ops.OR, Ops.MUL: Ops.AND, Ops.MAX: Ops.OR, Ops.SUB: Ops.XOR}
# by size in bytes: integers of which the bits are those of other dtypes
UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
_COMPARISONS = (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ)


def _check_fits(what: str, x: Any, dtype: DType) -> None:
    """ValueError if x is a Python int that an integer dtype can not hold."""
    if type(x) is int and dtype.kind in "iu" and not dtype.min <= x <= dtype.max:
        raise ValueError(f"{what}: {x} is no value of {dtype}; cast the tensor to a wider dtype")


def _wrapped_exponent(exponent: int, bits: int) -> int:
    """A smaller exponent with the same powers of all integers of a width, which wrap.

    From the width on those of even numbers are 0, and those of odd ones repeat after a quarter of
    the numbers there are (Carmichael's function of a power of two).
    """
    return exponent if exponent < bits else bits + (exponent - bits) % (1 << (bits - 2))


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


class ElementwiseMixin(PaddingMixin):
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
        x = self.bitcast(UNSIGNED[own.itemsize])
        small, large = UNSIGNED[min(own.itemsize, to.itemsize)], max(own.itemsize, to.itemsize)
        count = large // small.itemsize
        steps = self._places(count).cast(UNSIGNED[large]) * small.bitsize
        if to.itemsize < own.itemsize:  # the lowest bits come first in memory
            x = (x.unsqueeze(-1) >> steps).cast(small).flatten(-2)
            return x.bitcast(to)
        if settled(self.shape[-1] % count) != 0:
            raise ValueError(
                f"bitcast: {own} to {to} joins {count} items, and the last dimension of "
                f"{self.shape} is no multiple of that; pad it"
            )
        x = x.reshape(*self.shape[:-1], self.shape[-1] // count, count)
        x = x.cast(UNSIGNED[large])
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

    def _nearest(self, x: Any) -> Any:
        """A Python int as the nearest one that this dtype holds, if it is one of integers.

        For operations of which the low bits of a number do not say what it does. Sums, products
        and bits are right modulo the width, whatever the number.
        """
        if type(x) is int and self.dtype.kind in "iu":
            return min(max(x, self.dtype.min), self.dtype.max)
        return x

    def _strong(self) -> Self:
        """A Python number as the default dtype of its kind; anything else as it is.

        ValueError for an int that the default can not hold.
        """
        if self.dtype not in dtypes.weaks:
            return self
        to = strong_dtype(self.dtype)
        if self.dtype is dtypes.weakint:
            low, high = self._number_bounds()
            if low == high and not to.min <= low <= to.max:
                raise ValueError(f"{low} does not fit into {to}; write Tensor({low}, dtype=int64)")
        return self.cast(to)

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
        if dtype is dtypes.weakint:
            self, other = self._strong(), other._strong()
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

    def _integers(self, op: Ops, x: Any, reverse: bool) -> Self:
        """An operation that floats do not have."""
        other = self._operand(x)
        for side in (self, other):
            if dtypes.is_float(side.dtype):
                raise TypeError(
                    f"{op.name.lower()}: the operands must be integers, "
                    f"got {self.dtype} and {other.dtype}; cast one"
                )
        return self._binop(op, other, reverse)

    def _math(self, name: str, *others: Self) -> Self:
        """A function of floats by name, of operands of one float dtype, broadcast."""
        if not others:
            return self._node(Ops.MATH, self.dtype, (), name)
        (other,) = others
        shape = broadcast_shape(name, self.shape, other.shape)
        return self._broadcast(shape)._node(Ops.MATH, self.dtype, (other._broadcast(shape),), name)

    # ------------------------------------------------------------ arithmetic

    def add(self, x: Any, reverse: bool = False) -> Self:
        """x + y. Operands of any dtypes and shapes: promoted and broadcast; integers wrap.

        Of bools: either. ValueError if the shapes do not fit.

        >>> Tensor([1, 2]).add(0.5).tolist()
        [1.5, 2.5]
        """
        return self._binop(Ops.ADD, x, reverse)

    def sub(self, x: Any, reverse: bool = False) -> Self:
        """x - y; with `reverse` y - x. Of bools: whether they differ.

        >>> Tensor([1, 2]).sub(3).tolist(), Tensor([1, 2]).sub(3, reverse=True).tolist()
        ([-2, -1], [2, 1])
        """
        return self._binop(Ops.SUB, x, reverse)

    def mul(self, x: Any, reverse: bool = False) -> Self:
        """x * y. Of bools: both.

        >>> Tensor([1.5, -2.0]).mul(2).tolist()
        [3.0, -4.0]
        """
        return self._binop(Ops.MUL, x, reverse)

    def div(self, x: Any, reverse: bool = False, rounding_mode: str | None = None) -> Self:
        """x / y; `rounding_mode` "floor" or "trunc" rounds the quotient. `reverse`: y / x.

        Without rounding the result is a float. Rounded, integers stay integers and are exact;
        divided by zero they give 0. Of floats "floor" is the floor of the exact quotient
        (1.0 // 0.1 is 9), and "trunc" cuts off the quotient as it is rounded. ValueError for
        another mode.

        >>> Tensor([7, -7]).div(2).tolist()
        [3.5, -3.5]
        >>> Tensor([7, -7]).div(2, rounding_mode="floor").tolist()
        [3, -4]
        >>> Tensor([7, -7]).div(2, rounding_mode="trunc").tolist()
        [3, -3]
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
            _check_fits("div", x, dtype)
            return self.cast(dtype)._binop(op, other.cast(dtype), reverse)
        dtype = least_upper_float(dtype)
        a, b = self.cast(dtype), other.cast(dtype)
        if reverse:
            a, b = b, a
        if rounding_mode == "floor":
            return a._math("floordiv", b)
        quotient = a._binop(Ops.FDIV, b, False)
        return quotient if rounding_mode is None else quotient.trunc()

    def mod(self, x: Any, reverse: bool = False) -> Self:
        """x % y, with the sign of y: what is left over by x // y. `reverse`: y % x.

        Of integers exact, and 0 where y is 0. Of floats exact but for one rounding where the sign
        is changed, however large the quotient; NaN where y is 0 or x infinite.

        >>> Tensor([7, -7]).mod(3).tolist(), Tensor([5.5, -5.5]).mod(-2).tolist()
        ([1, 2], [-0.5, -1.5])
        """
        return self._remainder(x, reverse, Ops.FLOORMOD, "mod")

    def fmod(self, x: Any) -> Self:
        """The remainder of x / y cut off, with the sign of x. Exact, however large the quotient.

        Of integers 0 where y is 0; of floats NaN where y is 0 or x infinite.

        >>> Tensor([7, -7]).fmod(3).tolist(), Tensor([1e30]).fmod(7).tolist()
        ([1, -1], [1.0])
        """
        return self._remainder(x, False, Ops.CMOD, "fmod")

    def _remainder(self, x: Any, reverse: bool, op: Ops, name: str) -> Self:
        other = self._operand(x)
        dtype = strong_dtype(least_upper_dtype(self.dtype, other.dtype))
        if dtype is dtypes.bool:
            dtype = dtypes.default_int
        a, b = self.cast(dtype), other.cast(dtype)
        if not dtypes.is_float(dtype):
            _check_fits("mod" if op is Ops.FLOORMOD else "fmod", x, dtype)
            return a._binop(op, b, reverse)
        return b._math(name, a) if reverse else a._math(name, b)

    def neg(self) -> Self:
        """-x; of a bool: not x.

        >>> Tensor([1.0, -2.0]).neg().tolist()
        [-1.0, 2.0]
        """
        if self.dtype is dtypes.bool:
            return self.logical_not()
        return self._strong()._node(Ops.NEG, strong_dtype(self.dtype))

    def pow(self, x: Any, reverse: bool = False) -> Self:
        """x ** y as IEEE 754 has it: x ** 0 and 1 ** y are 1, also for NaN. `reverse`: y ** x.

        The number 0.5 as a power is sqrt, which differs for -0.0 and -inf.

        Integers stay integers and wrap; to a negative power only 1 and -1 have one, others give
        0. ValueError if such a power is a number. The gradient is 0 for x where y is 0, and for y
        where x is 0 and y not negative.

        >>> Tensor([2.0, 9.0]).pow(0.5).tolist(), Tensor([2, -3]).pow(3).tolist()
        ([1.4142135381698608, 3.0], [8, -27])
        >>> Tensor([1, 2, 3]).pow(2.0, reverse=True).tolist()
        [2.0, 4.0, 8.0]
        """
        other = self._operand(x)
        base, exponent = (other, self) if reverse else (self, other)
        dtype = strong_dtype(least_upper_dtype(base.dtype, exponent.dtype))
        if dtype is dtypes.bool:
            dtype = dtypes.default_int
        number = not isinstance(x, type(self) | Node)
        if number and not reverse:
            return base.cast(dtype)._constant_power(x)
        if not dtypes.is_float(dtype):
            return base.cast(dtype)._integer_power(exponent.cast(dtype))
        if number and x == 2:
            return exponent.cast(dtype)._unary(Ops.EXP2)
        return base.cast(dtype)._math("pow", exponent.cast(dtype))

    def _constant_power(self, exponent: float) -> Self:
        if not dtypes.is_float(self.dtype):
            if exponent < 0:
                raise ValueError(
                    f"pow: an integer ({self.dtype}) to the power of {exponent} is no integer; "
                    "cast to a float first"
                )
            return self._repeated_product(_wrapped_exponent(int(exponent), self.dtype.bitsize))
        if exponent in (0, 1, 2, 3):  # more products would be less exact than the function
            return self._repeated_product(int(exponent))
        if exponent == -1:
            return self.reciprocal()
        if exponent == 0.5:
            return self.sqrt()
        return self._math("pow", self._scalar(exponent, self.dtype))

    def _repeated_product(self, exponent: int) -> Self:
        """x ** n by squaring: as many products as n has bits, twice at most."""
        if exponent == 0:
            return self.ne(self).where(1, 1).cast(self.dtype)
        if exponent == 1:
            return self._same()
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

    def maximum(self, x: Any) -> Self:
        """The larger of two; NaN if one is. Of two equal ones each gets half of the gradient.

        >>> Tensor([1.0, float("nan")]).maximum(2).tolist()
        [2.0, nan]
        """
        return self._binop(Ops.MAX, self._nearest(x), False)

    def minimum(self, x: Any) -> Self:
        """The smaller of two; NaN if one is. Of two equal ones each gets half of the gradient.

        >>> Tensor([1, 5]).minimum(3).tolist()
        [1, 3]
        """
        other = self._operand(self._nearest(x))
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
        """Between two bounds, numbers or tensors, of which one may be None. NaN stays NaN.

        Where min_ is above max_ the result is max_. At a bound the gradient is that of x. An int
        that an integer dtype can not hold is the nearest one that it can.
        ValueError if both are None.

        >>> Tensor([-1, 2, 9]).clamp(0, 5).tolist()
        [0, 2, 5]
        """
        if min_ is None and max_ is None:
            raise ValueError("clamp: at least one of min_ and max_ is needed, got None twice")
        x = self if min_ is None else (self < min_).where(self._nearest(min_), self)
        return x if max_ is None else (x > max_).where(x._nearest(max_), x)

    def clip(self, min_: Any = None, max_: Any = None) -> Self:
        """Another name of clamp.

        >>> Tensor([-1, 2, 9]).clip(max_=5).tolist()
        [-1, 2, 5]
        """
        return self.clamp(min_, max_)

    # ------------------------------------------------------------ bits and truth

    def bitwise_and(self, x: Any, reverse: bool = False) -> Self:
        """x & y of integers or bools. TypeError for floats.

        >>> Tensor([6, 5]).bitwise_and(3).tolist()
        [2, 1]
        """
        return self._integers(Ops.AND, x, reverse)

    def bitwise_or(self, x: Any, reverse: bool = False) -> Self:
        """x | y of integers or bools. TypeError for floats.

        >>> Tensor([6, 5]).bitwise_or(3).tolist()
        [7, 7]
        """
        return self._integers(Ops.OR, x, reverse)

    def bitwise_xor(self, x: Any, reverse: bool = False) -> Self:
        """x ^ y of integers or bools. TypeError for floats.

        >>> Tensor([6, 5]).bitwise_xor(3).tolist()
        [5, 6]
        """
        return self._integers(Ops.XOR, x, reverse)

    def bitwise_not(self) -> Self:
        """~x of integers or bools. TypeError for floats.

        >>> Tensor([0, 5]).bitwise_not().tolist(), Tensor([True]).bitwise_not().tolist()
        ([-1, -6], [False])
        """
        if self.dtype is dtypes.bool:
            return self.logical_not()
        return self._integers(Ops.XOR, -1, False)

    def lshift(self, x: Any, reverse: bool = False) -> Self:
        """x << y of integers; a bool counts as 0 or 1. TypeError for floats.

        All bits are gone, so it is 0, where y is the width of x or more, or negative.

        >>> Tensor([1, -3]).lshift(2).tolist(), Tensor([1]).lshift(32).tolist()
        ([4, -12], [0])
        """
        return self._shift(Ops.SHL, x, reverse)

    def rshift(self, x: Any, reverse: bool = False) -> Self:
        """x >> y of integers, keeping the sign; a bool counts as 0 or 1. TypeError for floats.

        Where y is the width of x or more, or negative, it is 0, and -1 of a negative x.

        >>> Tensor([9, -9]).rshift(2).tolist(), Tensor([9, -9]).rshift(32).tolist()
        ([2, -3], [0, -1])
        """
        return self._shift(Ops.SHR, x, reverse)

    def _shift(self, op: Ops, x: Any, reverse: bool) -> Self:
        other = self._operand(x if reverse else self._nearest(x))
        if least_upper_dtype(self.dtype, other.dtype) is dtypes.bool:
            return self.cast(dtypes.default_int)._integers(op, other, reverse)
        return self._integers(op, other, reverse)

    def logical_not(self) -> Self:
        """True where this is false or zero; NaN is neither.

        >>> Tensor([0.0, -0.0, 2.0, float("nan")]).logical_not().tolist()
        [True, True, False, False]
        """
        return self.cast(dtypes.bool)._binop(Ops.CMPNE, True, False)

    # ------------------------------------------------------------ comparisons

    def eq(self, x: Any) -> Self:
        """x == y; false where one is NaN. Integers of different dtypes meet as in arithmetic.

        A Python int that the dtype can not hold is compared by its value.

        >>> Tensor([1, 2]).eq(2.0).tolist(), Tensor([255], dtype="uint8").eq(-1).tolist()
        ([False, True], [False])
        """
        return self._binop(Ops.CMPEQ, x, False)

    def ne(self, x: Any) -> Self:
        """x != y; true where one is NaN.

        >>> Tensor([1.0, float("nan")]).ne(1).tolist()
        [False, True]
        """
        return self._binop(Ops.CMPNE, x, False)

    def _less_equal(self, x: Any, reverse: bool) -> Self:
        """x <= y. Of floats not the opposite of y < x: with a NaN both are false."""
        other = self._operand(x)
        if dtypes.is_float(least_upper_dtype(self.dtype, other.dtype)):
            return self._binop(Ops.CMPLT, other, reverse) | self._binop(Ops.CMPEQ, other, reverse)
        return self._binop(Ops.CMPLT, other, not reverse).logical_not()

    def isnan(self) -> Self:
        """True where this is NaN.

        >>> Tensor([1.0, float("nan")]).isnan().tolist()
        [False, True]
        """
        return self.ne(self)

    def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
        """True where this is an infinity of a sign asked for.

        >>> Tensor([math.inf, -math.inf]).isinf(detect_negative=False).tolist()
        [True, False]
        """
        if not dtypes.is_float(self.dtype):
            return self.ne(self)
        return (self.eq(math.inf) & detect_positive) | (self.eq(-math.inf) & detect_negative)

    def isfinite(self) -> Self:
        """True where this is neither NaN nor an infinity.

        >>> Tensor([1.0, math.inf, math.nan]).isfinite().tolist()
        [True, False, False]
        """
        if not dtypes.is_float(self.dtype):
            return self.eq(self)
        return self._strong().abs() < math.inf

    def isclose(
        self, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> Self:
        """True where |x - y| <= atol + rtol |y|, or both are the same infinity.

        NaN is close to nothing, or with `equal_nan` to NaN.

        >>> Tensor([1.0, 1.1, math.inf]).isclose(Tensor([1.000001, 1.0, math.inf])).tolist()
        [True, False, True]
        """
        y = self._operand(other)
        distance = self.maximum(y) - self.minimum(y)
        if dtypes.is_int(distance.dtype):  # up to twice the largest number of a signed one
            distance = distance.cast(UNSIGNED[distance.dtype.itemsize])
        near = distance <= atol + (rtol * y).abs()
        close = (self.isfinite() & y.isfinite() & near) | self.eq(y)
        return close | (self.isnan() & y.isnan()) if equal_nan else close

    def where(self, x: Any, y: Any) -> Self:
        """x where this condition is true, y elsewhere: numbers or tensors, promoted, broadcast.

        The gradient of what was not chosen is 0, also where it is infinite or NaN. TypeError if
        the condition is not bool.

        >>> (Tensor([1, 5]) > 3).where(Tensor([10, 20]), -1.5).tolist()
        [-1.5, 20.0]
        """
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
        """`value` where the mask is true, this elsewhere; the three are broadcast.

        TypeError if the mask is not bool.

        >>> Tensor([1, 2, 3]).masked_fill(Tensor([True, False, True]), 0).tolist()
        [0, 2, 0]
        """
        return mask.where(value, self)

    # ------------------------------------------------------------ rounding and signs

    def trunc(self) -> Self:
        """Rounded towards zero. Integers stay as they are.

        >>> Tensor([2.7, -2.7]).trunc().tolist()
        [2.0, -2.0]
        """
        return self._node(Ops.TRUNC, self.dtype) if self._rounds() else self._same()

    def _rounds(self) -> bool:
        return dtypes.is_float(self.dtype) and self.dtype not in dtypes.weaks

    def floor(self) -> Self:
        """Rounded down. Integers stay as they are.

        >>> Tensor([2.7, -2.2]).floor().tolist()
        [2.0, -3.0]
        """
        if not self._rounds():
            return self._same()
        whole = self.trunc()
        return (self < whole).where(whole - 1, whole)

    def ceil(self) -> Self:
        """Rounded up. Integers stay as they are.

        >>> Tensor([2.2, -2.7]).ceil().tolist()
        [3.0, -2.0]
        """
        if not self._rounds():
            return self._same()
        whole = self.trunc()
        return (whole < self).where(whole + 1, whole)

    def round(self) -> Self:
        """Rounded to the nearest whole number, a half to the even one. Integers stay as they are.

        >>> Tensor([0.5, 1.5, 2.6, -2.5]).round().tolist()
        [0.0, 2.0, 3.0, -2.0]
        """
        return self._math("round") if self._rounds() else self._same()

    def sign(self) -> Self:
        """1, 0 or -1; NaN of NaN, and a zero keeps its sign. The gradient is 0.

        >>> Tensor([3.0, 0.0, -2.0]).sign().tolist()
        [1.0, 0.0, -1.0]
        """
        if self.dtype is dtypes.bool:
            return self._same()
        x = self._strong()
        positive = (x > 0).where(x._scalar(1, x.dtype), x.detach())
        return positive if dtypes.is_unsigned(x.dtype) else (x < 0).where(-1, positive)

    def abs(self) -> Self:
        """Without its sign. The smallest integer has no other and stays. The gradient at 0 is 0.

        >>> Tensor([1.5, -2.5]).abs().tolist()
        [1.5, 2.5]
        """
        if self.dtype is dtypes.bool or dtypes.is_unsigned(self.dtype):
            return self._same()
        x = self._strong()
        return x._math("abs") if dtypes.is_float(x.dtype) else x.maximum(-x)

    def copysign(self, other: Any) -> Self:
        """The size of this with the sign of `other`, that of -0.0 and of a NaN included.

        >>> Tensor([1.0, -2.0]).copysign(Tensor([-0.0, 3.0])).tolist()
        [-1.0, 2.0]
        """
        y = self._operand(other)
        dtype = strong_dtype(least_upper_dtype(self.dtype, y.dtype))
        if dtypes.is_float(dtype):
            return self.cast(dtype)._math("copysign", y.cast(dtype))
        if dtype is dtypes.bool:
            dtype = dtypes.default_int
        size = self.cast(dtype).abs()
        return (y.cast(dtype) < 0).where(-size, size)

    # ------------------------------------------------------------ powers

    def square(self) -> Self:
        """x * x.

        >>> Tensor([3, -4]).square().tolist()
        [9, 16]
        """
        return self * self

    def sqrt(self) -> Self:
        """The square root; NaN below zero, -0.0 of -0.0. Its slope at 0 is infinite.

        >>> Tensor([4.0, 2.25]).sqrt().tolist()
        [2.0, 1.5]
        """
        return self._unary(Ops.SQRT)

    @in_float32
    def rsqrt(self) -> Self:
        """1 / sqrt(x).

        >>> Tensor([4.0, 0.25]).rsqrt().tolist()
        [0.5, 2.0]
        """
        return self.sqrt().reciprocal()

    def reciprocal(self) -> Self:
        """1 / x; an infinity of a zero, with its sign.

        >>> Tensor([4.0, -0.0]).reciprocal().tolist()
        [0.25, -inf]
        """
        return self._unary(Ops.RECIPROCAL)

    def _unary(self, op: Ops) -> Self:
        x = self._as_float()
        return x._node(op, x.dtype)

    def lerp(self, end: Any, weight: Any) -> Self:
        """The way from this to `end`, a share `weight` of it: a number or a tensor.

        Of bytes (uint8) with a tensor of weights: in steps of 1/128, rounded to a byte.

        >>> Tensor([1.0, 2.0]).lerp(Tensor([3.0, 4.0]), 0.25).tolist()
        [1.5, 2.5]
        """
        if self.dtype is dtypes.uint8 and isinstance(weight, type(self)):
            share = (weight * 128 + 0.5).cast(dtypes.int32)
            a = self.cast(dtypes.int32)
            way = (self._operand(end).cast(dtypes.int32) - a) * share
            return (a + ((way + 64) >> 7)).cast(dtypes.uint8)
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
