"""Scans: what a reduction gives of each element of a row and all before it."""

from __future__ import annotations

from typing import Self

from tiny._core.args import ReduceArg
from tiny._core.ops import Ops
from tiny.dtype import dtypes, strong_dtype, sum_acc_dtype
from tiny.mixin.elementwise import in_float32
from tiny.mixin.reduce import ReduceMixin


class ScanMixin(ReduceMixin):
    """Scans along one dimension, by default the first; the shape stays.

    Each is one pass over memory (`logcumsumexp`: two), whatever the length. IndexError if there is
    no such dimension.
    """

    __slots__ = ()

    def cumsum(self, axis: int = 0) -> Self:
        """The running sum, in the dtype of `sum`: integers in 32 bits at least, which wrap.

        float16 and narrower floats are added in float32 and rounded once.

        >>> Tensor([1, 2, 3]).cumsum().tolist()
        [1, 3, 6]
        >>> Tensor([[1, 2], [3, 4]]).cumsum(axis=1).tolist()
        [[1, 3], [3, 7]]
        """
        own = strong_dtype(self.dtype)
        total = self.cast(sum_acc_dtype(own))._running(Ops.ADD, axis)
        return total.cast(own) if dtypes.is_float(own) else total

    def cumprod(self, axis: int) -> Self:
        """The running product, in the dtype of this value; of bools: whether all were true.

        float16 and narrower floats are multiplied in float32 and rounded once. The gradient is
        exact where elements are zero: nothing is divided by them.

        >>> Tensor([1, 2, 3, 4]).cumprod(axis=0).tolist()
        [1, 2, 6, 24]
        """
        own = strong_dtype(self.dtype)
        wide = sum_acc_dtype(own) if dtypes.is_float(own) else own
        return self.cast(wide)._running(Ops.MUL, axis).cast(own)

    def cummax(self, axis: int = 0) -> tuple[Self, Self]:
        """The largest element so far, and its place (int32).

        Of equal ones it is the first, and NaN counts as the largest, as in `argmax`. The gradient
        goes to the elements at these places.

        >>> values, places = Tensor([1, 3, 2, 3]).cummax()
        >>> values.tolist(), places.tolist()
        ([1, 3, 3, 3], [0, 1, 1, 1])
        """
        x = self._strong()
        return x._at_records(x, axis)

    def cummin(self, axis: int = 0) -> tuple[Self, Self]:
        """The smallest element so far, and its place (int32).

        Of equal ones it is the first, and NaN counts as the smallest, as in `argmin`. The gradient
        goes to the elements at these places.

        >>> values, places = Tensor([3, 1, 2, 1]).cummin()
        >>> values.tolist(), places.tolist()
        ([3, 1, 1, 1], [0, 1, 1, 1])
        """
        x = self._strong()
        return x._at_records(x._inverse_order(), axis)

    @in_float32
    def logcumsumexp(self, axis: int = 0) -> Self:
        """The logarithm of the running sum of exp(x), without overflow.

        Integers become the default float. Each sum is of exponentials of distances to its own
        largest element, so that it is right wherever the elements lie.

        >>> Tensor([0.0, 0.0, -math.inf]).logcumsumexp().exp().tolist()
        [1.0, 2.0, 2.0]
        """
        axis, x = self._resolve_dim(axis), self._strong()
        if not x.ndim or 0 in x.shape:
            return x._same()
        # the largest so far, one place late: of nothing, of the first element, and so on
        tops = x.detach()._one_late(axis)._running(Ops.MAX, axis).contiguous()
        size = x.shape[axis]
        before, top = tops._cut(axis, 0, size), tops._cut(axis, 1, size + 1)
        factors = before.eq(top).where(1.0, (before - top).exp())  # 1: of two infinities
        top = top.isinf().where(0.0, top)  # nothing finite can be taken off of an infinity
        sums = (x - top).exp()
        arg = ReduceArg(Ops.MULACC, (axis,))
        return sums._node(Ops.SCAN, sums.dtype, (factors,), arg).log() + top

    # ------------------------------------------------------------ the method

    def _running(self, op: Ops, axis: int) -> Self:
        """Each element along a dimension combined with all before it."""
        axis, x = self._resolve_dim(axis), self._strong()
        if not x.ndim or 0 in x.shape:
            return x._same()
        return x._node(Ops.SCAN, x.dtype, (), ReduceArg(op, (axis,)))

    def _one_late(self, axis: int) -> Self:
        """With the least value of its dtype in front, along a dimension."""
        front = [(int(k == axis), 0) for k in range(self.ndim)]
        return self.pad(front, value=self.dtype.min)

    # ------------------------------------------------------------ records

    def _at_records(self, x: Self, axis: int) -> tuple[Self, Self]:
        """The elements of this value where x was at its largest so far, and their places."""
        axis = self._resolve_dim(axis)
        if not self.ndim:
            return self._same(), self._scalar(0, dtypes.int32)
        size = self.shape[axis]
        if 0 in self.shape:
            return self._same(), self.ne(self).cast(dtypes.int32)
        x = x.detach()
        # a record is larger than all before it; of NaNs, which nothing exceeds, the first is one
        last = x._one_late(axis)._cut(axis, 0, size)._running(Ops.MAX, axis)
        is_record = last < x
        if dtypes.is_float(x.dtype):
            is_record = is_record | (x.isnan() & last.isnan().logical_not())
        places = x._places(size).reshape([size] + [1] * (self.ndim - 1 - axis))
        # the first element may not exceed the padding: its place is 0 all the same
        found = is_record.where(places, 0)._running(Ops.MAX, axis)
        return self.gather(axis, found), found
