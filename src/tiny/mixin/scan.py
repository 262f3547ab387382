"""Scans: what a reduction gives of each element of a row and all before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

from tiny._core.args import ReduceArg
from tiny._core.ops import Ops
from tiny.dtype import dtypes, strong_dtype, sum_acc_dtype
from tiny.helpers import ceildiv
from tiny.mixin.elementwise import in_float32
from tiny.mixin.reduce import ReduceMixin
from tiny.mixin.sizes import difference, most

# A row of up to _SHORT elements is folded for each of its places at once. A longer one is cut into
# blocks: what is before a block comes from a scan of the blocks. The work of an element is then
# about _BLOCK steps side by side in lanes, whatever the length; blocks of 16 were the fastest.
_BLOCK = 16
_SHORT = 64


class ScanMixin(ReduceMixin):
    """Scans along one dimension, by default the first; the shape stays.

    Work grows with the length n, and kernels with its logarithm. IndexError if there is no such
    dimension. Method: blocks, and a scan of the blocks (Blelloch, "Prefix sums and their
    applications", 1990).
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
        if own is dtypes.bool:
            return self._scan(axis, True, lambda x: x.min(-1), lambda a, b: a & b)
        wide = sum_acc_dtype(own) if dtypes.is_float(own) else own
        product = self.cast(wide)._scan(
            axis, 1, lambda x: x._reduce(Ops.MUL, -1, False), lambda a, b: a * b
        )
        return product.cast(own)

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
        return self._scan(axis, -math.inf, lambda x: x.logsumexp(-1), _log_add)

    # ------------------------------------------------------------ the method

    def _running(self, op: Ops, axis: int) -> Self:
        """Each element along a dimension combined with all before it."""
        axis, x = self._resolve_dim(axis), self._strong()
        if not x.ndim or 0 in x.shape:
            return x._same()
        return x._node(Ops.SCAN, x.dtype, (), ReduceArg(op, (axis,)))

    def _scan(
        self,
        axis: int,
        start: float,
        fold: Callable[[Self], Self],
        join: Callable[[Self, Self], Self],
    ) -> Self:
        """The fold of each element along a dimension and all before it.

        `fold` reduces the last dimension, `join` folds two folds, and `start` is the fold of
        nothing. A symbolic length is padded to its upper bound: what follows does not matter.
        """
        axis, x = self._resolve_dim(axis), self._strong()
        if not x.ndim or 0 in x.shape:
            return x._same()
        size = x.shape[axis]
        if not isinstance(size, int):
            rest = [difference(most(size), size) if k == axis else 0 for k in range(x.ndim)]
            padded = x._pad([n for after in rest for n in (0, after)])
            return padded._scan(axis, start, fold, join)._cut(axis, 0, size)
        return x._to_last(axis)._scan_rows(start, fold, join)._from_last(axis)

    def _scan_rows(
        self,
        start: float,
        fold: Callable[[Self], Self],
        join: Callable[[Self, Self], Self],
    ) -> Self:
        """Along the last dimension, whose length is known."""
        *rows, size = self.shape
        if size <= _SHORT:
            return self._fold_prefixes(start, fold)
        count, last = ceildiv(size, _BLOCK), self.ndim - 1
        blocks = self._grown(count * _BLOCK - size)
        if blocks.shape != self.shape:
            # Each element is read _BLOCK times; only here is it asked whether it is there. And the
            # result is stored before it is cut, so that its loops are over blocks.
            blocks = blocks.contiguous()
        blocks = blocks.reshape(*rows, count, _BLOCK)
        # the last block is followed by none
        ends = fold(blocks._cut(last, 0, count - 1))._scan_rows(start, fold, join)
        before = ends.pad([(0, 0)] * last + [(1, 0)], value=start).unsqueeze(-1)
        inside = blocks._fold_prefixes(start, fold)
        whole = join(before, inside).reshape(*rows, count * _BLOCK)
        return whole if whole.shape == self.shape else whole.contiguous()._cut(last, 0, size)

    def _grown(self, count: int) -> Self:
        """With so many zeros at the end of the last dimension."""
        return self.pad([(0, 0)] * (self.ndim - 1) + [(0, count)]) if count else self

    def _fold_prefixes(self, start: float, fold: Callable[[Self], Self]) -> Self:
        """Along the last dimension, each prefix by itself."""
        places = self._places(self.shape[-1])
        is_before = places <= places.unsqueeze(-1)
        return fold(is_before.where(self.unsqueeze(-2), self._scalar(start, self.dtype)))

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
        top = x._running(Ops.MAX, axis).contiguous()
        # a record is larger than all before it; of NaNs, which nothing exceeds, the first is one
        before = [(0, 0)] * self.ndim
        before[axis] = (1, 0)
        last = top.pad(before)._cut(axis, 0, size)
        is_record = last < x
        if dtypes.is_float(x.dtype):
            is_record = is_record | (x.isnan() & last.isnan().logical_not())
        places = x._places(size).reshape([size] + [1] * (self.ndim - 1 - axis))
        # the first element may not exceed the padding: its place is 0 all the same
        found = is_record.where(places, 0)._running(Ops.MAX, axis)
        return self.gather(axis, found), found


def _log_add(a: Any, b: Any) -> Any:
    """log(exp(a) + exp(b)), without overflow."""
    top = a.maximum(b).detach()
    top = top.isinf().where(0, top)  # nothing finite can be taken off of an infinity
    return ((a - top).exp() + (b - top).exp()).log() + top
