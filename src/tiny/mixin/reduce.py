"""Reductions, and the functions of a row that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from tiny._core.args import ReduceArg
from tiny._core.ops import Ops
from tiny.dtype import DTypeLike, dtypes, strong_dtype, sum_acc_dtype
from tiny.helpers import make_tuple
from tiny.mixin.activations import ActivationsMixin
from tiny.mixin.elementwise import in_float32
from tiny.mixin.sizes import difference, is_at_most, most, product

Axis = int | Sequence[int] | None


class ReduceMixin(ActivationsMixin):
    """Reductions along `axis` (None: all); with `keepdim` the dimensions stay, with size 1."""

    __slots__ = ()

    def _axes(self, axis: Axis) -> tuple[int, ...]:
        """The dimensions to reduce, from the front. IndexError or ValueError where impossible."""
        given = range(self.ndim) if axis is None else make_tuple(axis, 1)
        axes = [self._resolve_dim(a) for a in given]
        if len(set(axes)) != len(axes):
            raise ValueError(f"a dimension of {self.shape} is named twice in {axis}")
        return tuple(sorted(axes)) if self.ndim else ()

    def _reduce(self, op: Ops, axis: Axis, keepdim: bool) -> Self:
        axes, x = self._axes(axis), self._strong()
        if axes:
            x = x._node(Ops.REDUCE, x.dtype, (), ReduceArg(op, axes))
        return x if keepdim else x._drop(axes)

    def _drop(self, axes: tuple[int, ...]) -> Self:
        """Without dimensions, which have size 1."""
        return self.reshape(tuple(s for k, s in enumerate(self.shape) if k not in axes))

    def sum(self, axis: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None) -> Self:
        """The sum. Integers accumulate in 32 bits at least, float16 and narrower in float32.

        The result has the dtype of the accumulation for integers and bools, that of this value
        for floats; with `dtype`, that one throughout.
        """
        if dtype is not None:
            return self.cast(dtype)._reduce(Ops.ADD, axis, keepdim)
        own = strong_dtype(self.dtype)
        total = self.cast(sum_acc_dtype(own))._reduce(Ops.ADD, axis, keepdim)
        return total.cast(own) if dtypes.is_float(own) else total

    def prod(
        self, axis: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None
    ) -> Self:
        """The product, in the dtype of this value or in `dtype`; of bools: whether all are true."""
        x = self if dtype is None else self.cast(dtype)
        if x.dtype is dtypes.bool:
            return x.all(axis, keepdim)
        if dtypes.is_float(x.dtype) and x.dtype.itemsize < 4:
            return x.cast(dtypes.float32)._reduce(Ops.MUL, axis, keepdim).cast(x.dtype)
        return x._reduce(Ops.MUL, axis, keepdim)

    def max(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """The largest element; NaN if one is. Of none: the smallest value of the dtype."""
        return self._reduce(Ops.MAX, axis, keepdim)

    def min(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """The smallest element; NaN if one is. Of none: the largest value of the dtype."""
        return self._strong()._inverse_order().max(axis, keepdim)._inverse_order()

    def any(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Whether an element is true."""
        return self.cast(dtypes.bool).max(axis, keepdim)

    def all(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Whether all elements are true."""
        return self.cast(dtypes.bool).min(axis, keepdim)

    def _count(self, axes: tuple[int, ...]) -> Any:
        return product(self.shape[a] for a in axes)

    @in_float32
    def mean(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """The mean; NaN of no elements."""
        count = self._count(self._axes(axis))
        return self._reduce(Ops.ADD, axis, keepdim) / self._size_value(count)

    def _size_value(self, size: Any) -> Any:
        """A number of elements as an operand: symbolic ones as a value of this dtype."""
        return float(size) if isinstance(size, int) else self._scalar(size).cast(self.dtype)

    @in_float32
    def var(self, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> Self:
        """The variance: squared distances to the mean over the count less `correction`."""
        axes = self._axes(axis)
        squares = (self - self.mean(axes, keepdim=True)).square()
        count = difference(self._count(axes), correction)
        if isinstance(count, int):
            count = max(count, 0)
        elif not is_at_most(0, count):
            count = count.maximum(0)
        return squares._reduce(Ops.ADD, axes, keepdim) / self._size_value(count)

    @in_float32
    def std(self, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> Self:
        """The standard deviation."""
        return self.var(axis, keepdim, correction).sqrt()

    def var_mean(
        self, axis: Axis = None, keepdim: bool = False, correction: int = 1
    ) -> tuple[Self, Self]:
        """The variance and the mean."""
        return self.var(axis, keepdim, correction), self.mean(axis, keepdim)

    def std_mean(
        self, axis: Axis = None, keepdim: bool = False, correction: int = 1
    ) -> tuple[Self, Self]:
        """The standard deviation and the mean."""
        return self.std(axis, keepdim, correction), self.mean(axis, keepdim)

    # ------------------------------------------------------------ places

    def argmax(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """The place of the first largest element, int32; NaN counts as the largest.

        Without an axis the place in the flattened value. ValueError if there are no elements.
        """
        if axis is None:
            return self.flatten().argmax(0).reshape((1,) * self.ndim if keepdim else ())
        x = self._strong()
        if x.ndim == 0:
            x._axes(axis)
            return x._scalar(0, dtypes.int32)
        axis = x._resolve_dim(axis)
        size = x.shape[axis]
        if size == 0:
            raise ValueError(f"argmax: dimension {axis} of {x.shape} has no elements")
        if not is_at_most(1, size):
            raise ValueError(f"argmax: dimension {axis} of {x.shape} may have no elements")
        largest = x.eq(x.max(axis, keepdim=True))
        if dtypes.is_float(x.dtype):
            largest = largest | x.isnan()
        # counted from the end, so that the first place is the largest number
        places = x._places(size)
        count = size if isinstance(size, int) else x._scalar(size, places.dtype)
        from_end = (count - places).reshape([size] + [1] * (x.ndim - 1 - axis))
        found = count - largest.where(from_end, 0).max(axis, keepdim)
        return found.cast(dtypes.int32 if most(size) < 2**31 else dtypes.int64)

    def argmin(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """The place of the first smallest element, int32; NaN counts as the smallest."""
        return self._strong()._inverse_order().argmax(axis, keepdim)

    # ------------------------------------------------------------ rows

    @in_float32
    def _softmax(self, axis: int) -> Self:
        # an infinite maximum makes NaN here: a row of -inf alone has no shares
        e = (self - self.max(axis, keepdim=True).detach()).exp()
        return e / e.sum(axis, keepdim=True)

    def softmax(self, axis: int = -1, dtype: DTypeLike | None = None) -> Self:
        """exp(x) over its sum along `axis`, without overflow."""
        return (self if dtype is None else self.cast(dtype))._softmax(axis)

    def softmin(self, axis: int = -1, dtype: DTypeLike | None = None) -> Self:
        """softmax of -x."""
        return (-self).softmax(axis, dtype)

    @in_float32
    def _log_softmax(self, axis: int) -> Self:
        x = self - self.max(axis, keepdim=True).detach()
        return x - x.exp().sum(axis, keepdim=True).log()

    def log_softmax(self, axis: int = -1, dtype: DTypeLike | None = None) -> Self:
        """The logarithm of softmax, without overflow."""
        return (self if dtype is None else self.cast(dtype))._log_softmax(axis)

    @in_float32
    def logsumexp(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """log(sum(exp(x))), without overflow.

        Method: subtract the maximum first (Blanchard, Higham & Higham, IMA J. Numer. Anal. 2021).
        """
        axes = self._axes(axis)
        top = self.max(axes, keepdim=True).detach()
        # of a row of -inf, or with an inf in it, nothing finite can be taken off
        top = top.isinf().where(0, top)
        total = (self - top).exp().sum(axes, keepdim=True).log() + top
        return total if keepdim else total._drop(axes)
