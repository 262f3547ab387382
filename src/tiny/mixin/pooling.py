"""Pooling: the mean or the maximum of windows over the last dimensions, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, overload

from tiny._core.ops import Ops
from tiny.dtype import dtypes
from tiny.helpers import make_tuple, prod
from tiny.mixin.elementwise import in_float32
from tiny.mixin.losses import LossesMixin
from tiny.mixin.processing import Sizes, per_dimension


class _Windows(NamedTuple):
    """What windows of a size, moved by steps, see of a dimension with padding around it."""

    size: int  # of the dimension
    kernel: int
    stride: int
    dilation: int
    before: int  # the padding; a negative one cuts off
    after: int
    more: int  # what ceil mode adds, so that a window that begins inside ends inside
    windows: int  # how many there are

    def counted(self, with_padding: bool) -> tuple[int, int]:
        """From where to where elements count."""
        begin, end = -self.before, self.size + self.after
        return (begin, end) if with_padding else (max(begin, 0), min(end, self.size))


class PoolingMixin(LossesMixin):
    """Pools over as many dimensions, the last ones, as the window has sizes; a number means 2."""

    __slots__ = ()

    if TYPE_CHECKING:

        def scatter(self, dim: int, index: Self, src: Any, reduce: str | None = None) -> Self:
            """Values put at places along a dimension."""

    def _windows_of(
        self,
        what: str,
        kernel_size: Sizes,
        stride: Sizes | None,
        dilation: Sizes,
        padding: Sizes,
        ceil_mode: bool,
    ) -> list[_Windows]:
        """The windows of each pooled dimension. ValueError if they do not fit."""
        k = len(make_tuple(kernel_size, 2))
        kernel = per_dimension(what, "kernel_size", kernel_size, k, 1)
        steps = (
            per_dimension(what, "stride", kernel if stride is None else stride, k, 1),
            per_dimension(what, "dilation", dilation, k, 1),
        )
        if self.ndim < k:
            raise ValueError(f"{what}: a window of {kernel} needs {k} dimensions, got {self.shape}")
        pads = self._window_padding(what, padding, k)[self.ndim - k :]
        found = []
        for size, w, s, d, (before, after) in zip(
            self.shape[self.ndim - k :], kernel, *steps, pads, strict=True
        ):
            if not isinstance(size, int):
                raise ValueError(
                    f"{what}: windows over the last {k} dimensions of {self.shape} need sizes that "
                    "are known; pad what is symbolic to its upper bound"
                )
            free = size + before + after - d * (w - 1) - 1
            count = free // s + 1
            # one more, unless it would begin in the padding after the end
            if ceil_mode and free % s and count * s < size + before:
                count += 1
            if count < 1:
                raise ValueError(
                    f"{what}: a window of {kernel} with dilation {dilation} does not fit into "
                    f"{self.shape} with padding {padding}; pad more"
                )
            more = max((count - 1) * s - free, 0)
            found.append(_Windows(size, w, s, d, before, after, more, count))
        return found

    def _seen(self, windows: Sequence[_Windows], value: Any = 0) -> Self:
        """(..., *counts, *kernel), with `value` in the padding."""
        lead = [(0, 0)] * (self.ndim - len(windows))
        x = self.pad([*lead, *[(w.before, w.after + w.more) for w in windows]], value=value)
        return x._pool(*zip(*[(w.kernel, w.stride, w.dilation) for w in windows], strict=True))

    @in_float32
    def avg_pool2d(
        self,
        kernel_size: Sizes = (2, 2),
        stride: Sizes | None = None,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Self:
        """The mean of each window; the windows do not overlap where no stride is given.

        `padding`, in the forms of `conv2d`, counts as zeros, or not at all. With `ceil_mode`
        windows may reach over the end, if they begin inside of it; what lies there never counts.
        Integers become floats. ValueError if no window fits.

        >>> Tensor([[1, 2, 3, 4, 5]]).avg_pool2d((2,), ceil_mode=True).tolist()
        [[1.5, 3.5, 5.0]]
        """
        windows = self._windows_of("avg_pool2d", kernel_size, stride, dilation, padding, ceil_mode)
        axes = tuple(range(-len(windows), 0))
        count: Any = 1
        for place, w in enumerate(windows):
            begin, end = w.counted(count_include_pad)
            starts = range(-w.before, w.windows * w.stride - w.before, w.stride)
            if all(begin <= at and at + w.dilation * (w.kernel - 1) < end for at in starts):
                count = count * w.kernel
                continue
            # element j of a window lies at start + j * dilation: those before the end less those
            # before the begin
            start = self._places(w.windows) * w.stride - w.before
            inside = _steps(start, end, w) - _steps(start, begin, w)
            count = count * inside.reshape(w.windows, *[1] * (len(windows) - 1 - place))
        total = self._seen(windows)._reduce(Ops.ADD, axes, False)
        return total / (count if isinstance(count, int) else count.cast(self.dtype))

    @overload
    def max_pool2d(
        self,
        kernel_size: Sizes = (2, 2),
        stride: Sizes | None = None,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        return_indices: Literal[False] = False,
    ) -> Self: ...

    @overload
    def max_pool2d(
        self,
        kernel_size: Sizes = (2, 2),
        stride: Sizes | None = None,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        *,
        return_indices: Literal[True],
    ) -> tuple[Self, Self]: ...

    @overload
    def max_pool2d(
        self,
        kernel_size: Sizes = (2, 2),
        stride: Sizes | None = None,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Self | tuple[Self, Self]: ...

    def max_pool2d(
        self,
        kernel_size: Sizes = (2, 2),
        stride: Sizes | None = None,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Self | tuple[Self, Self]:
        """The maximum of each window; NaN if one is in it. Padding is smaller than all.

        See `avg_pool2d` for the windows. With `return_indices` also where each maximum is, as
        places in the pooled dimensions flattened: the first of equal ones, the first NaN; of a
        window of padding alone, one beyond the last. The gradient is shared by equal ones, as that
        of `max`.

        >>> x = Tensor([[1.0, 5, 2, 2]])
        >>> x.max_pool2d((2,)).tolist()
        [[5.0, 2.0]]
        >>> x.max_pool2d((2,), return_indices=True)[1].tolist()
        [[1, 2]]
        """
        x = self._strong()
        windows = x._windows_of("max_pool2d", kernel_size, stride, dilation, padding, ceil_mode)
        axes = tuple(range(-len(windows), 0))
        seen = x._seen(windows, x.dtype.min)
        largest = seen.max(axes)
        if not return_indices:
            return largest
        whole = prod(w.size for w in windows)
        # a place in a window comes later than another where it does in the whole
        places = x._places(whole).reshape(tuple(w.size for w in windows))._seen(windows, whole)
        wide = largest.reshape(largest.shape + (1,) * len(windows))
        found = seen.eq(wide)
        if dtypes.is_float(x.dtype):
            found = found | seen.isnan()
        return largest, found.where(places, whole).cast(places.dtype).min(axes)

    def max_unpool2d(
        self,
        indices: Self,
        kernel_size: Sizes = (2, 2),
        stride: Sizes | None = None,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        output_size: Sequence[int] | None = None,
    ) -> Self:
        """Each element put where an index of `max_pool2d` says, with zeros around.

        The sizes are those for which the windows leave nothing over, or the last ones of
        `output_size`. Of equal indices one wins; one that is out of range is left out.

        >>> x, places = Tensor([[1.0, 5, 2, 2]]).max_pool2d((2,), return_indices=True)
        >>> x.max_unpool2d(places, (2,)).tolist()
        [[0.0, 5.0, 2.0, 0.0]]
        """
        k = len(make_tuple(kernel_size, 2))
        kernel = per_dimension("max_unpool2d", "kernel_size", kernel_size, k, 1)
        if indices.shape != self.shape or not dtypes.is_int(indices.dtype):
            raise ValueError(
                f"max_unpool2d: an integer index for each element is needed, of shape "
                f"{self.shape}, got {indices.dtype} of shape {indices.shape}"
            )
        if self.ndim < k:
            raise ValueError(
                f"max_unpool2d: a window of {kernel} needs {k} dimensions, got {self.shape}"
            )
        lead, sizes = self.shape[: self.ndim - k], self.shape[self.ndim - k :]
        if output_size is None:
            pads = self._window_padding("max_unpool2d", padding, k)[-k:]
            steps = (
                per_dimension("max_unpool2d", "stride", kernel if stride is None else stride, k, 1),
                per_dimension("max_unpool2d", "dilation", dilation, k, 1),
            )
            outputs = [
                (size - 1) * s - before - after + d * (w - 1) + 1
                for size, w, s, d, (before, after) in zip(sizes, kernel, *steps, pads, strict=True)
            ]
        else:
            outputs = list(output_size[-k:])
        if len(outputs) != k or min(outputs) < 0 or len(output_size or lead) > self.ndim:
            raise ValueError(
                f"max_unpool2d: {self.shape} with a window of {kernel} gives the sizes {outputs}; "
                f"output_size holds {k} sizes, or all of {self.ndim}"
            )
        flat = self.reshape(*lead, prod(sizes))
        places = indices.reshape(*lead, prod(sizes))
        zeros = flat._scalar(0, flat.dtype)._broadcast_to((*lead, prod(outputs)))
        return zeros.scatter(-1, places, flat).reshape(*lead, *outputs)


def _steps(start: Any, end: int, w: _Windows) -> Any:
    """How many elements of a window that begins at `start` lie before `end`."""
    return ((end + w.dilation - 1 - start) // w.dilation).clamp(0, w.kernel)
