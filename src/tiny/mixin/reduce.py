"""Reductions, and the functions of a row that are made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from tiny._core.args import ReduceArg
from tiny._core.ops import Ops
from tiny.dtype import DTypeLike, dtypes, strong_dtype, sum_acc_dtype, to_dtype
from tiny.helpers import make_tuple
from tiny.mixin.activations import ActivationsMixin
from tiny.mixin.elementwise import in_float32
from tiny.mixin.sizes import difference, is_at_most, most, product

Axis = int | Sequence[int] | None


class ReduceMixin(ActivationsMixin):
    """Reductions along `axis`: a dimension, several in a tuple or list, or None for all.

    A negative dimension is counted from the end; () reduces nothing. With `keepdim` the dimensions
    stay, with size 1. IndexError if there is no such dimension, ValueError if one is named twice.
    float16 and narrower floats are computed in float32, and rounded once.
    """

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
        """The sum; 0 of no elements.

        Integers and bools are added in 32 bits at least, which wrap, and the result has that
        dtype; that of floats has theirs. With `dtype` the elements are cast first, and the result
        has that one.

        >>> Tensor([[1, 2], [3, 4]]).sum(axis=0).tolist()
        [4, 6]
        >>> Tensor([200, 100], dtype="uint8").sum().dtype
        dtypes.uint32
        """
        own = strong_dtype(self.dtype if dtype is None else to_dtype(dtype))
        if dtypes.is_float(own):
            # the elements are rounded to `dtype` before they are added in a wider one
            x = self.cast(own).cast(sum_acc_dtype(own))
            return x._reduce(Ops.ADD, axis, keepdim).cast(own)
        wide = sum_acc_dtype(own) if dtype is None else own
        return self.cast(wide)._reduce(Ops.ADD, axis, keepdim)

    def prod(
        self, axis: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None
    ) -> Self:
        """The product, in the dtype of this value or in `dtype`; 1 of no elements.

        Integers wrap. Of bools it is whether all are true. The gradient is exact where elements
        are zero: nothing is divided by them.

        >>> Tensor([2, 3, 4]).prod().item()
        24
        """
        x = self._strong() if dtype is None else self.cast(dtype)
        if x.dtype is dtypes.bool:
            return x.all(axis, keepdim)
        if dtypes.is_float(x.dtype) and x.dtype.itemsize < 4:
            return x.cast(dtypes.float32)._reduce(Ops.MUL, axis, keepdim).cast(x.dtype)
        return x._reduce(Ops.MUL, axis, keepdim)

    def max(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """The largest element; NaN if one is. Of none: the smallest value of the dtype.

        The gradient is shared by all that are largest.

        >>> Tensor([[1, 5], [4, 3]]).max(axis=1).tolist()
        [5, 4]
        """
        return self._reduce(Ops.MAX, axis, keepdim)

    def min(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """The smallest element; NaN if one is. Of none: the largest value of the dtype.

        The gradient is shared by all that are smallest.

        >>> Tensor([[1, 5], [4, 3]]).min(axis=1).tolist()
        [1, 3]
        """
        return self._strong()._inverse_order().max(axis, keepdim)._inverse_order()

    def any(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Whether an element is true, or not 0; False of no elements. NaN is not 0.

        >>> Tensor([[0, 1], [0, 0]]).any(axis=1).tolist()
        [True, False]
        """
        return self.cast(dtypes.bool).max(axis, keepdim)

    def all(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """Whether all elements are true, or not 0; True of no elements. NaN is not 0.

        >>> Tensor([[1, 1], [0, 1]]).all(axis=1).tolist()
        [True, False]
        """
        return self.cast(dtypes.bool).min(axis, keepdim)

    def allclose(
        self, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> Self:
        """Whether all elements are close, as `isclose` has it: a bool of shape ().

        >>> Tensor([1.0, 2.0]).allclose(Tensor([1.0, 2.0 + 1e-6])).item()
        True
        >>> Tensor([1.0]).allclose(Tensor([1.1])).item()
        False
        """
        return self.isclose(other, rtol, atol, equal_nan).all()

    # ------------------------------------------------------------ means and variances

    def _count(self, axes: tuple[int, ...]) -> Any:
        return product(self.shape[a] for a in axes)

    @in_float32
    def mean(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """The mean, a float; NaN of no elements.

        >>> Tensor([1, 2, 6]).mean().item()
        3.0
        """
        count = self._count(self._axes(axis))
        return self._reduce(Ops.ADD, axis, keepdim) / self._size_value(count)

    def _size_value(self, size: Any) -> Any:
        """A number of elements as an operand: symbolic ones as a value of this dtype."""
        return float(size) if isinstance(size, int) else self._scalar(size).cast(self.dtype)

    @in_float32
    def var(self, axis: Axis = None, keepdim: bool = False, correction: float = 1) -> Self:
        """The variance: squared distances to the mean over the count less `correction`.

        A count of no more than that counts as 0: the result is then inf, or NaN if all distances
        are 0.

        >>> Tensor([1.0, 2.0, 3.0, 4.0]).var(correction=0).item()
        1.25
        """
        axes = self._axes(axis)
        squares = (self - self.mean(axes, keepdim=True)).square()
        count, less = self._count(axes), correction
        if isinstance(correction, int):
            count, less = difference(count, correction), 0
        divisor = self._size_value(count)
        if isinstance(count, int):
            divisor = max(divisor - less, 0.0)
        elif less or not is_at_most(0, count):
            divisor = (divisor - less).maximum(0)
        return squares._reduce(Ops.ADD, axes, keepdim) / divisor

    @in_float32
    def std(self, axis: Axis = None, keepdim: bool = False, correction: float = 1) -> Self:
        """The standard deviation, the square root of `var`. Where it is 0 so is its gradient.

        >>> Tensor([1.0, 3.0]).std(correction=0).item()
        1.0
        """
        variance = self.var(axis, keepdim, correction)
        return variance.eq(0).where(0.0, variance).sqrt()

    def var_mean(
        self, axis: Axis = None, keepdim: bool = False, correction: float = 1
    ) -> tuple[Self, Self]:
        """The variance and the mean.

        >>> [t.item() for t in Tensor([1.0, 3.0]).var_mean()]
        [2.0, 2.0]
        """
        return self.var(axis, keepdim, correction), self.mean(axis, keepdim)

    def std_mean(
        self, axis: Axis = None, keepdim: bool = False, correction: float = 1
    ) -> tuple[Self, Self]:
        """The standard deviation and the mean.

        >>> [t.item() for t in Tensor([1.0, 3.0]).std_mean(correction=0)]
        [1.0, 2.0]
        """
        return self.std(axis, keepdim, correction), self.mean(axis, keepdim)

    # ------------------------------------------------------------ places

    def argmax(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """The place of the first largest element, int32; NaN counts as the largest.

        Without an axis it is the place in the flattened value. ValueError if there are no elements.

        >>> Tensor([[1, 5, 5], [7, 2, 3]]).argmax(axis=1).tolist()
        [1, 0]
        >>> Tensor([[1, 5, 5], [7, 2, 3]]).argmax().item()
        3
        """
        return self._strong()._place_of_most("argmax", axis, keepdim)

    def argmin(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """The place of the first smallest element, int32; NaN counts as the smallest.

        Without an axis it is the place in the flattened value. ValueError if there are no elements.

        >>> Tensor([[1, 5, 5], [7, 2, 3]]).argmin(axis=1).tolist()
        [0, 1]
        """
        return self._strong()._inverse_order()._place_of_most("argmin", axis, keepdim)

    def _place_of_most(self, what: str, axis: int | None, keepdim: bool) -> Self:
        """The first place of the largest."""
        if axis is None:
            flat = self.flatten()._place_of_most(what, 0, False)
            return flat.reshape((1,) * self.ndim if keepdim else ())
        if self.ndim == 0:
            self._axes(axis)
            return self._scalar(0, dtypes.int32)
        axis = self._resolve_dim(axis)
        size = self.shape[axis]
        if size == 0:
            raise ValueError(f"{what}: dimension {axis} of {self.shape} has no elements")
        if not is_at_most(1, size):
            raise ValueError(f"{what}: dimension {axis} of {self.shape} may have no elements")
        largest = self.eq(self.max(axis, keepdim=True))
        if dtypes.is_float(self.dtype):
            largest = largest | self.isnan()
        # counted from the end, so that the first place is the largest number
        places = self._places(size)
        count = size if isinstance(size, int) else self._scalar(size, places.dtype)
        from_end = (count - places).reshape([size] + [1] * (self.ndim - 1 - axis))
        found = count - largest.where(from_end, 0).max(axis, keepdim)
        return found.cast(dtypes.int32 if most(size) < 2**31 else dtypes.int64)

    # ------------------------------------------------------------ rows

    @in_float32
    def _softmax(self, axis: Axis) -> Self:
        # an infinite maximum makes NaN here: a row of -inf alone has no shares
        e = (self - self.max(axis, keepdim=True).detach()).exp()
        return e * e.sum(axis, keepdim=True).reciprocal()  # one division a row

    def softmax(self, axis: Axis = -1, dtype: DTypeLike | None = None) -> Self:
        """exp(x) over its sum along `axis`, without overflow; cast to `dtype` first, if given.

        NaN where a row is of -inf alone, or holds inf.

        >>> Tensor([0.0, 0.0, -math.inf]).softmax().tolist()
        [0.5, 0.5, 0.0]
        """
        return (self if dtype is None else self.cast(dtype))._softmax(axis)

    def softmin(self, axis: Axis = -1, dtype: DTypeLike | None = None) -> Self:
        """softmax of -x: the smallest element has the largest share.

        >>> Tensor([0.0, 0.0, math.inf]).softmin().tolist()
        [0.5, 0.5, 0.0]
        """
        return (-(self if dtype is None else self.cast(dtype))._as_float())._softmax(axis)

    @in_float32
    def _log_softmax(self, axis: Axis) -> Self:
        x = self - self.max(axis, keepdim=True).detach()
        return x - x.exp().sum(axis, keepdim=True).log()

    def log_softmax(self, axis: Axis = -1, dtype: DTypeLike | None = None) -> Self:
        """The logarithm of softmax, without overflow; cast to `dtype` first, if given.

        >>> Tensor([0.0, 10000.0]).log_softmax().tolist()
        [-10000.0, 0.0]
        """
        return (self if dtype is None else self.cast(dtype))._log_softmax(axis)

    @in_float32
    def logsumexp(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """log(sum(exp(x))), without overflow; -inf of no elements, or of -inf alone.

        Method: subtract the maximum first (Blanchard, Higham & Higham, IMA J. Numer. Anal. 2021).

        >>> Tensor([-math.inf, 10000.0]).logsumexp().item()
        10000.0
        """
        axes = self._axes(axis)
        top = self.max(axes, keepdim=True).detach()
        # of a row of -inf, or with an inf in it, nothing finite can be taken off
        top = top.isinf().where(0, top)
        total = (self - top).exp().sum(axes, keepdim=True).log() + top
        return total if keepdim else total._drop(axes)

    @in_float32
    def normalize(self, p: float = 2.0, dim: Axis = 1, eps: float = 1e-12) -> Self:
        """This over its p-norm along `dim`, or over `eps` where that is larger: of length 1.

        The norm is (sum |x|^p)^(1/p); with p = 0 the number of elements other than 0, with
        p = math.inf the largest |x|.

        >>> Tensor([[3.0, 4.0], [0.0, 0.0]]).normalize(p=math.inf).tolist()
        [[0.75, 1.0], [0.0, 0.0]]
        """
        return self / self._norm(p, dim).maximum(eps)

    def _norm(self, p: float, dim: Axis) -> Self:
        """The p-norm of floats along dimensions, which stay."""
        if p == 0:
            return self.ne(0).cast(self.dtype)._reduce(Ops.ADD, dim, True)
        if p == 2:
            return self.square()._reduce(Ops.ADD, dim, True).sqrt()
        size = self.abs()
        if math.isinf(p):
            return size.max(dim, True) if p > 0 else size.min(dim, True)
        if p == 1:
            return size._reduce(Ops.ADD, dim, True)
        return size.pow(p)._reduce(Ops.ADD, dim, True).pow(1 / p)
