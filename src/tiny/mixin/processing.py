"""Products of matrices, convolutions, pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from tiny.dtype import (
    DTypeLike,
    least_upper_dtype,
    strong_dtype,
    sum_acc_dtype,
    to_dtype,
)
from tiny.helpers import ceildiv, make_tuple
from tiny.mixin.einsum import EinsumMixin
from tiny.mixin.sizes import why_unequal

Sizes = int | Sequence[int]



class ProcessingMixin(EinsumMixin):
    """What is made of the other mixins' methods."""

    __slots__ = ()

    # ------------------------------------------------------------ products

    def dot(self, w: Self, dtype: DTypeLike | None = None) -> Self:
        """The product of matrices (..., m, k) @ (..., k, n), or of vectors.

        Accumulates in `dtype`, by default as `sum` does; the result has the promoted dtype.
        """
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
        result = strong_dtype(least_upper_dtype(x.dtype, w.dtype))
        wide = sum_acc_dtype(result) if dtype is None else to_dtype(dtype)
        if w.ndim > 1:
            w = w.transpose(-1, -2)
            if x.ndim > 1:
                x, w = x.unsqueeze(-2), w.unsqueeze(-3)
        total = (x.cast(wide) * w.cast(wide)).sum(-1, dtype=wide)
        return total.cast(result) if dtype is None else total

    def matmul(self, x: Self, reverse: bool = False, dtype: DTypeLike | None = None) -> Self:
        """self @ x, or x @ self."""
        return x.dot(self, dtype) if reverse else self.dot(x, dtype)

    def __matmul__(self, x: Self) -> Self:
        return self.dot(x)

    def __rmatmul__(self, x: Self) -> Self:
        return self.matmul(x, True)

    def linear(
        self, weight: Self, bias: Self | None = None, dtype: DTypeLike | None = None
    ) -> Self:
        """x @ weight + bias; a weight of one dimension multiplies elements."""
        if dtype is not None:
            bias = None if bias is None else bias.cast(dtype)
            return self.cast(dtype).linear(weight.cast(dtype), bias)
        x = self * weight if weight.ndim == 1 else self.dot(weight)
        return x if bias is None else x + bias

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
        each, the last dimension first. Accumulates in `dtype`, by default as `sum` does.
        """
        if self.ndim != weight.ndim or self.ndim < 3:
            raise ValueError(
                "conv2d: x is (N, C_in, *sizes) and the weight (C_out, C_in / groups, *kernel), "
                f"got {self.shape} and {weight.shape}"
            )
        (n, channels), (outputs, inner) = self.shape[:2], weight.shape[:2]
        kernel = weight.shape[2:]
        if groups < 1 or channels != groups * inner or outputs % groups:
            raise ValueError(
                f"conv2d: x has {channels} channels, the weight {weight.shape} takes {inner} in "
                f"each of {groups} groups and gives {outputs}; C_in must be groups times the "
                "weight's, and groups divide C_out"
            )
        result = strong_dtype(least_upper_dtype(self.dtype, weight.dtype))
        wide = sum_acc_dtype(result) if dtype is None else to_dtype(dtype)
        k = len(kernel)
        x = self.pad(self._window_padding("conv2d", padding, k))._pool(kernel, stride, dilation)
        out = x.shape[2 : 2 + k]
        # (N, g, C_in/g, 1, *out, *kernel) with (g, C_out/g, C_in/g, 1…, *kernel)
        x = x.reshape(n, groups, 1, inner, *out, *kernel)
        order = [0, 1, 2, *range(4, 4 + k), 3, *range(4 + k, 4 + 2 * k)]
        x = x.permute(order)
        w = weight.reshape(1, groups, outputs // groups, *[1] * k, inner, *kernel)
        product = x.cast(wide) * w.cast(wide)
        total = product.sum(tuple(range(-1 - k, 0)), dtype=wide).reshape(n, outputs, *out)
        total = total.cast(result) if dtype is None else total
        return total if bias is None else total + bias.reshape(1, -1, *[1] * k)

    def _window_padding(self, what: str, padding: Sizes, k: int) -> list[tuple[int, int]]:
        """(before, after) for every dimension of this, none for the leading ones."""
        sizes = make_tuple(padding, k)
        if len(sizes) == k:
            pairs = [(p, p) for p in sizes]
        elif len(sizes) == 2 * k:
            pairs = list(zip(sizes[::2], sizes[1::2], strict=True))[::-1]
        else:
            raise ValueError(
                f"{what}: padding is a number, {k} of them or {2 * k} (before and after, the last "
                f"dimension first), got {padding}"
            )
        return [(0, 0)] * (self.ndim - k) + pairs

    # ------------------------------------------------------------ pooling

    def _pool_padding(
        self,
        what: str,
        kernel: tuple[int, ...],
        stride: tuple[int, ...],
        dilation: Sizes,
        padding: Sizes,
        ceil_mode: bool,
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """The padding asked for, and what ceil mode adds: room for windows that begin inside."""
        k = len(kernel)
        if self.ndim < k:
            raise ValueError(f"{what}: a window of {kernel} needs {k} dimensions, got {self.shape}")
        pads = self._window_padding(what, padding, k)
        extra = [(0, 0)] * self.ndim
        if ceil_mode:
            dilations = make_tuple(dilation, k)
            for axis, (w, s, d) in enumerate(
                zip(kernel, stride, dilations, strict=True), start=self.ndim - k
            ):
                before, after = pads[axis]
                free = self.shape[axis] + before + after - d * (w - 1) - 1
                windows = ceildiv(free, s) + 1
                if (windows - 1) * s >= self.shape[axis] + before:
                    windows -= 1  # it would begin in the padding after the end
                extra[axis] = (0, max(0, (windows - 1) * s - free))
        return pads, extra

    def max_pool2d(
        self,
        kernel_size: Sizes = (2, 2),
        stride: Sizes | None = None,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        ceil_mode: bool = False,
    ) -> Self:
        """The maximum of each window over the last dimensions; the stride is the window's size."""
        kernel = make_tuple(kernel_size, 2)
        strides = kernel if stride is None else make_tuple(stride, len(kernel))
        x = self._strong()
        pads, extra = x._pool_padding("max_pool2d", kernel, strides, dilation, padding, ceil_mode)
        both = [(lo, hi + more) for (lo, hi), (_, more) in zip(pads, extra, strict=True)]
        x = x.pad(both, value=x.dtype.min)
        return x._pool(kernel, strides, dilation).max(tuple(range(-len(kernel), 0)))

    def avg_pool2d(
        self,
        kernel_size: Sizes = (2, 2),
        stride: Sizes | None = None,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Self:
        """The mean of each window; padding counts as zeros, or not at all.

        What `ceil_mode` adds beyond the padding never counts.
        """
        kernel = make_tuple(kernel_size, 2)
        strides = kernel if stride is None else make_tuple(stride, len(kernel))
        axes = tuple(range(-len(kernel), 0))
        x = self._as_float()
        pads, extra = x._pool_padding("avg_pool2d", kernel, strides, dilation, padding, ceil_mode)
        padded = x.pad(pads)
        windows = padded.pad(extra)._pool(kernel, strides, dilation)
        uncounted = [*extra, *([] if count_include_pad else pads)]
        if not any(lo or hi for lo, hi in uncounted):
            return windows.mean(axes)
        one = x._scalar(1.0, x.dtype)
        counted = one._broadcast_to(padded.shape)
        if not count_include_pad:
            counted = one._broadcast_to(x.shape).pad(pads)
        counts = counted.pad(extra)._pool(kernel, strides, dilation).sum(axes)
        return windows.sum(axes) / counts
