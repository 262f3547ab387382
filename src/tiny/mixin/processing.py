"""Products of matrices, and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from tiny._core.ops import Ops
from tiny.dtype import (
    DType,
    DTypeLike,
    dtypes,
    least_upper_dtype,
    strong_dtype,
    sum_acc_dtype,
    to_dtype,
)
from tiny.helpers import WINO, ceildiv, make_tuple
from tiny.mixin.einsum import EinsumMixin
from tiny.mixin.movement import broadcast_shape
from tiny.mixin.sizes import why_unequal

Sizes = int | Sequence[int]


class ProcessingMixin(EinsumMixin):
    """Products of matrices, and convolutions in any number of dimensions."""

    __slots__ = ()

    # ------------------------------------------------------------ products

    def dot(self, w: Self, dtype: DTypeLike | None = None) -> Self:
        """The product of matrices (..., m, k) @ (..., k, n), or of vectors.

        Leading dimensions broadcast; a side of one dimension is a vector. Accumulates in `dtype`,
        which is then the result's, by default as `sum` does, with a result of the promoted dtype;
        of bools: whether any product is true. ValueError if sizes do not fit.

        >>> x = Tensor([[1, 2], [3, 4]])
        >>> x.dot(x).tolist()
        [[7, 10], [15, 22]]
        >>> x.dot(Tensor([10, 1])).tolist()
        [12, 34]
        """
        result = strong_dtype(least_upper_dtype(self.dtype, w.dtype))
        if dtype is not None:
            return self._product(w, to_dtype(dtype))
        return self._product(w, sum_acc_dtype(result)).cast(result)

    def _product(self, w: Self, wide: DType) -> Self:
        """`dot` in one dtype."""
        x = self
        if not x.ndim or not w.ndim:
            raise ValueError(
                f"matmul: both sides need a dimension, got {x.shape} @ {w.shape}; multiply with *"
            )
        inner = w.shape[-min(w.ndim, 2)]
        if x.shape[-1] != inner:
            raise ValueError(
                f"matmul: inner sizes differ, got {x.shape} @ {w.shape}; transpose or reshape one"
                f"{why_unequal((x.shape[-1], inner))}"
            )
        if x.ndim > 2 and w.ndim > 2 and x.shape[:-2] != w.shape[:-2]:
            broadcast_shape("matmul, of the leading dimensions", x.shape[:-2], w.shape[:-2])
        if w.ndim > 1:
            w = w.transpose(-1, -2)
            if x.ndim > 1:
                x, w = x.unsqueeze(-2), w.unsqueeze(-3)
        return (x.cast(wide) * w.cast(wide)).sum(-1, dtype=wide)

    def matmul(self, x: Self, reverse: bool = False, dtype: DTypeLike | None = None) -> Self:
        """self @ x, or x @ self; see `dot`.

        >>> Tensor([1.0, 2.0]).matmul(Tensor([[1.0, 2.0], [3.0, 4.0]]), reverse=True).tolist()
        [5.0, 11.0]
        """
        return x.dot(self, dtype) if reverse else self.dot(x, dtype)

    def __matmul__(self, x: Self) -> Self:
        return self.dot(x)

    def __rmatmul__(self, x: Self) -> Self:
        return self.matmul(x, True)

    def linear(
        self, weight: Self, bias: Self | None = None, dtype: DTypeLike | None = None
    ) -> Self:
        """x @ weight + bias; a weight of one dimension multiplies elements.

        x is (..., k), the weight (k, n) and the bias (n,). Narrow floats are rounded once, after
        the bias. With `dtype` all are cast to it first.

        >>> x, weight = Tensor([[1.0, 2.0]]), Tensor([[1.0, 10.0], [2.0, 20.0]])
        >>> x.linear(weight, Tensor([0.5, 0.0])).tolist()
        [[5.5, 50.0]]
        """
        if dtype is not None:
            bias = None if bias is None else bias.cast(dtype)
            return self.cast(dtype).linear(weight.cast(dtype), bias)
        if weight.ndim == 1 or bias is None:
            x = self * weight if weight.ndim == 1 else self.dot(weight)
            return x if bias is None else x + bias
        result = strong_dtype(least_upper_dtype(self.dtype, weight.dtype, bias.dtype))
        if not dtypes.is_float(result):
            return self.dot(weight) + bias
        wide = sum_acc_dtype(result)
        return (self._product(weight, wide) + bias.cast(wide)).cast(result)

    def image_dot(self, w: Self, dtype: DTypeLike | None = None) -> Self:
        """`dot`: no device here keeps tensors as images, whose layout this would choose.

        >>> Tensor([[1, 2]]).image_dot(Tensor([[3], [4]])).tolist()
        [[11]]
        """
        return self.dot(w, dtype)

    def image_conv2d(
        self,
        weight: Self,
        bias: Self | None = None,
        groups: int = 1,
        stride: Sizes = 1,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        dtype: DTypeLike | None = None,
    ) -> Self:
        """`conv2d`: no device here keeps tensors as images, whose layout this would choose.

        >>> Tensor.ones(1, 1, 2, 2).image_conv2d(Tensor.ones(1, 1, 2, 2)).item()
        4.0
        """
        return self.conv2d(weight, bias, groups, stride, dilation, padding, dtype)

    def conv2d(
        self,
        weight: Self,
        bias: Self | None = None,
        groups: int = 1,
        stride: Sizes = 1,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        dtype: DTypeLike | None = None,
    ) -> Self:
        """Cross-correlation over the last dimensions, of which the weight says how many.

        x (N, C_in, *sizes) with weight (C_out, C_in / groups, *kernel) and bias (C_out,) gives
        (N, C_out, *outputs). `padding` is a size, one for each dimension, or (before, after) for
        each, the last dimension first; a negative one cuts off. Accumulates in `dtype`, by default
        as `sum` does; the result is of `dtype`, by default of the promoted one (of integers that of
        `sum`), or what that promotes to with the bias. ValueError if shapes or groups do not fit,
        or if the window is larger than what it moves over.

        With WINO=1, windows of 3 in each dimension that move by 1 (those that `conv_transpose2d`
        comes to as well) are computed in tiles of 4, in two dimensions with a quarter of the
        products: F(4x4, 3x3) of Lavin & Gray, CVPR 2016. Errors are then up to 32 units of rounding
        of the accumulation (4e-6 of float32), 64 in three dimensions, times the largest sum of
        magnitudes of products; direct ones up to 16. It takes memory for some times the elements,
        and is of use where channels are some tens.

        >>> Tensor([[[1.0, 2, 3, 4]]]).conv2d(Tensor([[[1.0, 0, -1]]])).tolist()
        [[[-2.0, -2.0]]]
        >>> Tensor.ones(1, 4, 8, 8).conv2d(Tensor.ones(6, 2, 3, 3), groups=2, stride=2).shape
        (1, 6, 3, 3)
        """
        kernel = self._check_channels("conv2d", weight, bias, groups)
        (n, inner), outputs, k = (self.shape[0], weight.shape[1]), weight.shape[0], len(kernel)
        result = strong_dtype(least_upper_dtype(self.dtype, weight.dtype))
        wide = sum_acc_dtype(result) if dtype is None else to_dtype(dtype)
        if dtype is not None or not dtypes.is_float(result):
            result = wide
        strides = per_dimension("conv2d", "stride", stride, k, 1)
        dilations = per_dimension("conv2d", "dilation", dilation, k, 1)
        x = self.pad(self._window_padding("conv2d", padding, k))
        if (
            WINO
            and dtypes.is_float(wide)
            and set(kernel) == {3}
            and set(strides + dilations) == {1}
        ):
            total = x._winograd(weight, groups, wide)
        else:
            x = x._pool(kernel, strides, dilations)
            out = x.shape[2 : 2 + k]
            # (N, g, C_in/g, 1, *out, *kernel) with (g, C_out/g, C_in/g, 1…, *kernel)
            x = x.reshape(n, groups, 1, inner, *out, *kernel)
            x = x.permute([0, 1, 2, *range(4, 4 + k), 3, *range(4 + k, 4 + 2 * k)])
            w = weight.reshape(1, groups, outputs // groups, *[1] * k, inner, *kernel)
            product = x.cast(wide) * w.cast(wide)
            total = product.sum(tuple(range(-1 - k, 0)), dtype=wide).reshape(n, outputs, *out)
        return total._with_bias(bias, result)

    def conv_transpose2d(
        self,
        weight: Self,
        bias: Self | None = None,
        groups: int = 1,
        stride: Sizes = 1,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
    ) -> Self:
        """The transpose of `conv2d`: each element adds the weight, scaled, to a window.

        x (N, C_in, *sizes) with weight (C_in, C_out / groups, *kernel) and bias (C_out,) gives
        (N, C_out, *outputs), a size of (size - 1) * stride - before - after + dilation *
        (kernel - 1) + output_padding + 1. `padding` has the forms of `conv2d`, and is cut off the
        result; `output_padding` is added at the end. Method: a convolution with the kernel turned
        round; elements of the result whose places have one remainder by the stride see the same
        part of the kernel, and are channels of their own (Shi et al., 2016).

        >>> Tensor([[[1.0, 2]]]).conv_transpose2d(Tensor([[[1.0, 10, 100]]]), stride=2).tolist()
        [[[1.0, 10.0, 102.0, 20.0, 200.0]]]
        """
        kernel = self._check_channels("conv_transpose2d", weight, bias, groups, turned=True)
        k = len(kernel)
        strides = per_dimension("conv_transpose2d", "stride", stride, k, 1)
        dilations = per_dimension("conv_transpose2d", "dilation", dilation, k, 1)
        added = per_dimension("conv_transpose2d", "output_padding", output_padding, k, 0)
        cut = self._window_padding("conv_transpose2d", padding, k)[2:]
        outs = []
        for size, w, step, d, more, (before, after) in zip(
            self.shape[2:], kernel, strides, dilations, added, cut, strict=True
        ):
            outs.append((size - 1) * step + d * (w - 1) + 1 + more - before - after)
            if outs[-1] < 1 or size < 1:
                raise ValueError(
                    f"conv_transpose2d: nothing is left of {self.shape} with a window of "
                    f"{kernel}, stride {stride}, dilation {dilation}, padding {padding}; "
                    "pad less"
                )
        w = weight.unflatten(0, (groups, -1)).transpose(1, 2)._by_phases(strides, dilations)
        phases = [step for step in strides if step > 1]
        w = w.flatten(0, 1 + len(phases)).flip(tuple(range(2, 2 + k)))
        steps = [1 if step > 1 else d for step, d in zip(strides, dilations, strict=True)]
        full = [d * (rows - 1) for d, rows in zip(steps, w.shape[2:], strict=True)]
        result = strong_dtype(least_upper_dtype(self.dtype, weight.dtype))
        wide = sum_acc_dtype(result)
        result = result if dtypes.is_float(result) else wide
        around = [p for p in reversed(full) for _ in range(2)]
        x = self.conv2d(w, None, groups, dilation=steps, padding=around, dtype=wide)
        if phases:  # (N, C_out, *phases, *sizes), where a phase belongs behind its size
            # stored, since neighbours come from different channels: sums would be one at a time
            x = x._stored().unflatten(1, (-1, *phases))
            order, phase = [0, 1], iter(range(2, 2 + len(phases)))
            for axis, step in enumerate(strides):
                order += [2 + len(phases) + axis, *([next(phase)] if step > 1 else [])]
            long = [s * step for s, step in zip(x.shape[2 + len(phases) :], strides, strict=True)]
            x = x.permute(order).reshape(*x.shape[:2], *long)
        ends = [
            (-before, out + before - size)
            for (before, _), out, size in zip(cut, outs, x.shape[2:], strict=True)
        ]
        return x.pad([(0, 0), (0, 0), *ends])._with_bias(bias, result)

    def _by_phases(self, strides: Sequence[int], dilations: Sequence[int]) -> Self:
        """(g, C_out / g, C_in / g, *kernel) -> (g, C_out / g, *phases, C_in / g, *rows).

        Where the stride is more than 1, element row * stride + phase of the kernel, with what its
        dilation makes of it, is element `row` of that phase.
        """
        w, k = self, len(strides)
        for axis, (step, d) in enumerate(zip(strides, dilations, strict=True), start=3):
            if step > 1:
                w = w._spread(axis, d)
                rows = ceildiv(w.shape[axis], step)
                grown = [(0, rows * step - s if a == axis else 0) for a, s in enumerate(w.shape)]
                w = w.pad(grown).unflatten(axis, (rows, step))
                w = w.permute([*range(axis + 1), *range(axis + 2, w.ndim), axis + 1])
        return w.permute([0, 1, *range(3 + k, w.ndim), 2, *range(3, 3 + k)])

    def _spread(self, axis: int, step: int) -> Self:
        """With step - 1 zeros between the elements of a dimension: rows with one element each."""
        if step == 1:
            return self
        x = self.unsqueeze(axis + 1)
        x = x.pad([(0, step - 1 if a == axis + 1 else 0) for a in range(x.ndim)])
        x = x.flatten(axis, axis + 1)
        return x._cut(axis, 0, x.shape[axis] - step + 1)

    def _with_bias(self, bias: Self | None, result: DType) -> Self:
        """A number added to each channel, and rounded once, to a dtype or what that promotes to."""
        if bias is None:
            return self.cast(result)
        result = strong_dtype(least_upper_dtype(result, bias.dtype))
        wide = least_upper_dtype(self.dtype, bias.dtype)
        x = self.cast(wide) + bias.cast(wide).reshape(1, -1, *[1] * (self.ndim - 2))
        return x.cast(result)

    def _check_channels(
        self, what: str, weight: Self, bias: Self | None, groups: int, turned: bool = False
    ) -> tuple[int, ...]:
        """The sizes of the window. ValueError if the channels of a convolution do not fit."""
        form = "(C_in, C_out / groups, *kernel)" if turned else "(C_out, C_in / groups, *kernel)"
        if self.ndim != weight.ndim or self.ndim < 3:
            raise ValueError(
                f"{what}: x is (N, C_in, *sizes) and the weight {form}, got {self.shape} and "
                f"{weight.shape}"
            )
        channels, (first, second) = self.shape[1], weight.shape[:2]
        if not isinstance(groups, int) or groups < 1:
            raise ValueError(f"{what}: groups is an int of at least 1, got {groups!r}")
        if turned:
            if channels != first or first % groups:
                raise ValueError(
                    f"{what}: x has {channels} channels, the weight {weight.shape} takes {first}, "
                    f"in {groups} groups; C_in must be equal, and a multiple of groups"
                )
            outputs = second * groups
        else:
            if channels != groups * second or first % groups:
                raise ValueError(
                    f"{what}: x has {channels} channels, the weight {weight.shape} takes {second} "
                    f"in each of {groups} groups and gives {first}; C_in must be groups times the "
                    "weight's, and groups divide C_out"
                )
            outputs = first
        if bias is not None and bias.shape != (outputs,):
            raise ValueError(
                f"{what}: a bias has one number a channel, shape ({outputs},), got {bias.shape}"
            )
        kernel: tuple[int, ...] = weight.shape[2:]
        return kernel

    def _window_padding(self, what: str, padding: Sizes, k: int) -> list[tuple[int, int]]:
        """(before, after) for every dimension of this, none for the leading ones."""
        sizes = make_tuple(padding, k)
        if all(isinstance(size, int) for size in sizes):
            if len(sizes) == k:
                return [(0, 0)] * (self.ndim - k) + [(p, p) for p in sizes]
            if len(sizes) == 2 * k:
                pairs = list(zip(sizes[::2], sizes[1::2], strict=True))[::-1]
                return [(0, 0)] * (self.ndim - k) + pairs
        raise ValueError(
            f"{what}: padding is a number, {k} of them or {2 * k} (before and after, the last "
            f"dimension first), got {padding!r}"
        )

    def _winograd(self, weight: Self, groups: int, wide: DType) -> Self:
        """A convolution with windows of 3, stride 1 and no padding, in tiles of 4.

        F(4x4, 3x3) of Lavin & Gray, in any number of dimensions: tiles of 6 and the weights are
        transformed along each, multiplied, and transformed back to 4 results.
        """
        n, inner, k = self.shape[0], weight.shape[1], weight.ndim - 2
        out = [size - 2 for size in self.shape[2:]]
        if min(out) < 1:
            self._pool((3,) * k)  # says what does not fit
        tiles = [ceildiv(size, 4) for size in out]
        x = self.pad([(0, 0)] * 2 + [(0, 4 * t - o) for t, o in zip(tiles, out, strict=True)])
        x = (
            x.cast(wide)
            ._pool((6,) * k, 4)
            .permute([*range(2 + k, 2 + 2 * k), 1, 0, *range(2, 2 + k)])
        )
        x = x._transformed(_INPUT, k).flatten(k + 1)
        x = x.unflatten(k, (groups, inner))  # (*6, g, C_in/g, N tiles)
        w = weight.cast(wide).permute([*range(2, 2 + k), 0, 1])._transformed(_WEIGHT, k)
        w = w.unflatten(k, (groups, -1))  # (*6, g, C_out/g, C_in/g)
        y = w._stored().dot(x._stored(), wide).flatten(k, k + 1)
        y = y._transformed(_OUTPUT, k).unflatten(-1, (n, *tiles))  # (*4, C_out, N, *tiles)
        order = [k + 1, k, *[axis for d in range(k) for axis in (k + 2 + d, d)]]
        y = y.permute(order).reshape(n, weight.shape[0], *[4 * t for t in tiles])
        return y._shrink([(0, s) for s in (n, weight.shape[0], *out)])

    def _stored(self) -> Self:
        """These values in memory."""
        return self._node(Ops.CONTIGUOUS, self.dtype)

    def _transformed(self, matrix: tuple[tuple[float, ...], ...], count: int) -> Self:
        """Each of the first dimensions multiplied by a matrix of numbers."""
        x, size = self, len(matrix[0])
        place = self._places(len(matrix) * size)
        numbers = self._scalar(0.0, self.dtype)
        for k, value in enumerate(value for row in matrix for value in row):
            if value:
                numbers = place.eq(k).where(self._scalar(value, self.dtype), numbers)
        weights = numbers._broadcast(place.shape).reshape(len(matrix), size)._stored()
        for axis in range(count):
            shape = [1] * (self.ndim + 1)
            shape[axis : axis + 2] = [len(matrix), size]
            x = x._stored() if axis else x  # else all sums would be one, of 6**count products
            x = (weights.reshape(shape) * x.unsqueeze(axis))._reduce(Ops.ADD, axis + 1, False)
        return x


def per_dimension(what: str, name: str, given: Sizes, k: int, lowest: int) -> tuple[int, ...]:
    """A number for each of k dimensions. ValueError if there are others, or one is too small."""
    sizes = make_tuple(given, k)
    if len(sizes) != k or not all(isinstance(size, int) and size >= lowest for size in sizes):
        raise ValueError(
            f"{what}: {name} is a number of at least {lowest}, or {k} of them, got {given!r}"
        )
    return sizes


# The transforms of F(4x4, 3x3): B^T, G and A^T of Lavin & Gray, Fast Algorithms for Convolutional
# Neural Networks, section 4.3. They interpolate at 0, 1, -1, 2, -2 and infinity.
_INPUT = (
    (4.0, 0.0, -5.0, 0.0, 1.0, 0.0),
    (0.0, -4.0, -4.0, 1.0, 1.0, 0.0),
    (0.0, 4.0, -4.0, -1.0, 1.0, 0.0),
    (0.0, -2.0, -1.0, 2.0, 1.0, 0.0),
    (0.0, 2.0, -1.0, -2.0, 1.0, 0.0),
    (0.0, 4.0, 0.0, -5.0, 0.0, 1.0),
)
_WEIGHT = (
    (1 / 4, 0.0, 0.0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0.0, 0.0, 1.0),
)
_OUTPUT = (
    (1.0, 1.0, 1.0, 1.0, 1.0, 0.0),
    (0.0, 1.0, -1.0, 2.0, -2.0, 0.0),
    (0.0, 1.0, 1.0, 4.0, 4.0, 0.0),
    (0.0, 1.0, -1.0, 8.0, -8.0, 1.0),
)
