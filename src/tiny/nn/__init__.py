"""Layers. A layer is an object with tensors as attributes and a `__call__`."""

from __future__ import annotations

import math

from tiny.helpers import TRAINING
from tiny.tensor import Tensor

from . import datasets, optim, state

__all__ = [
    "BatchNorm",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "Linear",
    "datasets",
    "optim",
    "state",
]


class Linear:
    """y = x @ weight.T + bias: (..., in_features) -> (..., out_features).

    weight (out_features, in_features) and bias (out_features,) are drawn uniformly from
    ±1/sqrt(in_features) (LeCun et al., Efficient BackProp, 1998).
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        bound = 1 / math.sqrt(in_features)
        self.weight = Tensor.uniform(out_features, in_features, low=-bound, high=bound)
        self.bias = Tensor.uniform(out_features, low=-bound, high=bound) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return x.linear(self.weight.transpose(), self.bias)


class Conv2d:
    """Cross-correlation over the trailing dimensions: (N, C_in, H, W) -> (N, C_out, H', W').

    `kernel_size` is an int (square) or a tuple with a size for each spatial dimension, of which
    there may be one to three. `padding` is an int, a tuple, or "same" (output as large as the
    input; needs stride 1) or "valid". weight (C_out, C_in/groups, *kernel_size) and bias
    (C_out,) are drawn uniformly from ±1/sqrt(inputs of one output).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"Conv2d: {groups} groups divide neither or one of {in_channels} input and "
                f"{out_channels} output channels; choose a common divisor"
            )
        self.kernel_size = (kernel_size,) * 2 if isinstance(kernel_size, int) else kernel_size
        self.stride, self.dilation, self.groups = stride, dilation, groups
        self.padding = self._explicit(padding) if isinstance(padding, str) else padding
        bound = 1 / math.sqrt(in_channels // groups * math.prod(self.kernel_size))
        self.weight = Tensor.uniform(
            out_channels, in_channels // groups, *self.kernel_size, low=-bound, high=bound
        )
        self.bias = Tensor.uniform(out_channels, low=-bound, high=bound) if bias else None

    def _explicit(self, padding: str) -> int | tuple[int, ...]:
        """ "same" or "valid" as sizes: (before, after) of the last dimension first."""
        if padding == "valid":
            return 0
        if padding != "same":
            raise ValueError(f'Conv2d: padding is a size, "same" or "valid", got {padding!r}')
        if self.stride != 1 and self.stride != (1,) * len(self.kernel_size):
            raise ValueError(f'Conv2d: padding "same" needs stride 1, got {self.stride}')
        dilation = self.dilation
        if isinstance(dilation, int):
            dilation = (dilation,) * len(self.kernel_size)
        total = [d * (k - 1) for d, k in zip(dilation, self.kernel_size, strict=True)]
        return tuple(p for t in reversed(total) for p in (t // 2, t - t // 2))

    def __call__(self, x: Tensor) -> Tensor:
        return x.conv2d(
            self.weight, self.bias, self.groups, self.stride, self.dilation, self.padding
        )


def Conv1d(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    stride: int = 1,
    padding: int | str = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = True,
) -> Conv2d:
    """A Conv2d with one spatial dimension: (N, C_in, L) -> (N, C_out, L')."""
    return Conv2d(
        in_channels, out_channels, (kernel_size,), stride, padding, dilation, groups, bias
    )


class BatchNorm:
    """Each channel with mean 0 and variance 1 over the batch, then scaled and shifted.

    x is (N, `sz`, ...). Under TRAINING=1 the statistics are the batch's, and the running ones
    move towards them by `momentum`; else the running ones are used. `affine` adds a weight and a
    bias a channel. Without `track_running_stats` the batch's statistics are always used.
    Method: Ioffe & Szegedy, 2015. The running variance is unbiased, as PyTorch's.
    """

    def __init__(
        self,
        sz: int,
        eps: float = 1e-5,
        affine: bool = True,
        track_running_stats: bool = True,
        momentum: float = 0.1,
    ) -> None:
        self.eps, self.track_running_stats, self.momentum = eps, track_running_stats, momentum
        self.weight = Tensor.ones(sz) if affine else None
        self.bias = Tensor.zeros(sz) if affine else None
        self.num_batches_tracked = Tensor.zeros(dtype="long", requires_grad=False)
        if track_running_stats:
            self.running_mean = Tensor.zeros(sz, requires_grad=False)
            self.running_var = Tensor.ones(sz, requires_grad=False)

    def calc_stats(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of each channel, (sz,) each: the batch's or the running ones."""
        if self.track_running_stats and not TRAINING:
            return self.running_mean, self.running_var
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        return x.mean(axes), x.var(axes, correction=0)

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim < 2:
            raise ValueError(f"BatchNorm: x is (N, channels, ...), got shape {x.shape}")
        mean, var = self.calc_stats(x)
        if self.track_running_stats and TRAINING:
            count = x.numel() // x.shape[1]
            keep, new = 1 - self.momentum, self.momentum
            unbiased = var.detach() * (count / max(count - 1, 1))
            self.running_mean.assign(keep * self.running_mean + new * mean.detach())
            self.running_var.assign(keep * self.running_var + new * unbiased)
            self.num_batches_tracked.assign(self.num_batches_tracked + 1)
        return x.batchnorm(self.weight, self.bias, mean, (var + self.eps).rsqrt())


BatchNorm2d = BatchNorm3d = BatchNorm
