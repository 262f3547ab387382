"""The UNet of Stable Diffusion 1.5 (Rombach et al., 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .networks import Norm


class GroupNorm:
    """Mean 0 and variance 1 of each group of channels (Wu and He, 2018), scaled and shifted."""

    def __init__(self, lib: Any, channels: int, groups: int, eps: float = 1e-5) -> None:
        self.groups, self.eps = groups, eps
        self.weight, self.bias = lib.Tensor.ones(channels), lib.Tensor.zeros(channels)

    def __call__(self, x: Any) -> Any:
        y = x.reshape(x.shape[0], self.groups, -1).layernorm(eps=self.eps).reshape(x.shape)
        shape = (1, -1, *[1] * (x.ndim - 2))
        return y * self.weight.reshape(shape) + self.bias.reshape(shape)


class ResidualBlock:
    """Two convolutions beside a shortcut, the time added between them."""

    def __init__(self, lib: Any, inputs: int, outputs: int, time: int, groups: int) -> None:
        nn = lib.nn
        self.norm, self.conv = GroupNorm(lib, inputs, groups), nn.Conv2d(inputs, outputs, 3, 1, 1)
        self.time = nn.Linear(time, outputs)
        self.outer_norm = GroupNorm(lib, outputs, groups)
        self.outer_conv = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = [nn.Conv2d(inputs, outputs, 1)] if inputs != outputs else []

    def __call__(self, x: Any, time: Any) -> Any:
        y = self.conv(self.norm(x).silu())
        y = y + self.time(time.silu()).reshape(x.shape[0], -1, 1, 1)
        y = self.outer_conv(self.outer_norm(y).silu())
        for layer in self.shortcut:
            x = layer(x)
        return x + y


class CrossAttention:
    """Attention of (N, length, width) to (N, others, context)."""

    def __init__(self, lib: Any, width: int, context: int, heads: int) -> None:
        nn, self.heads = lib.nn, heads
        self.query = nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(context, width, bias=False) for _ in range(2))
        self.outputs = nn.Linear(width, width)

    def __call__(self, x: Any, context: Any) -> Any:
        batch, length, width = x.shape
        query, key, value = (
            t.reshape(batch, -1, self.heads, width // self.heads).transpose(1, 2)
            for t in (self.query(x), self.key(context), self.value(context))
        )
        attended = query.scaled_dot_product_attention(key, value)
        return self.outputs(attended.transpose(1, 2).reshape(batch, length, width))


class Transformer:
    """Attention between pixels, then to the words, then gated layers (Shazeer, 2020)."""

    def __init__(self, lib: Any, width: int, context: int, heads: int, groups: int) -> None:
        nn = lib.nn
        self.norm = GroupNorm(lib, width, groups, eps=1e-6)
        self.inputs, self.outputs = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norms = [Norm(lib, width) for _ in range(3)]
        self.to_pixels = CrossAttention(lib, width, width, heads)
        self.to_words = CrossAttention(lib, width, context, heads)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def __call__(self, image: Any, context: Any) -> Any:
        batch, width, height, columns = image.shape
        x = self.inputs(self.norm(image)).reshape(batch, width, -1).transpose(1, 2)
        y = self.norms[0](x)
        x = x + self.to_pixels(y, y)
        x = x + self.to_words(self.norms[1](x), context)
        values, gate = self.up(self.norms[2](x)).chunk(2, dim=-1)
        x = x + self.down(values * (0.5 * gate * (1 + (gate * math.sqrt(0.5)).erf())))
        return image + self.outputs(x.transpose(1, 2).reshape(batch, width, height, columns))


class UNet:
    """A noisy latent image, a step and words -> the noise.

    (N, 4, H, W), (N,) and (N, words, context) -> (N, 4, H, W). At each level but the last
    there is attention.
    """

    def __init__(
        self,
        lib: Any,
        width: int = 320,
        growth: Sequence[int] = (1, 2, 4, 4),
        blocks: int = 2,
        heads: int = 8,
        context: int = 768,
        groups: int = 32,
    ) -> None:
        nn, time, last = lib.nn, 4 * width, len(growth) - 1
        self.tensor, self.width = lib.Tensor, width
        self.time = [nn.Linear(width, time), nn.Linear(time, time)]
        self.first = nn.Conv2d(4, width, 3, padding=1)

        def residual(inputs: int, outputs: int) -> ResidualBlock:
            return ResidualBlock(lib, inputs, outputs, time, groups)

        def attention(channels: int, level: int) -> list[Transformer]:
            if level == last:
                return []
            return [Transformer(lib, channels, context, heads, groups)]

        self.down: list[list[Any]] = []  # each group of layers leaves what goes across
        across, channels = [width], width
        for level, factor in enumerate(growth):
            for _ in range(blocks):
                outputs = width * factor
                self.down.append([residual(channels, outputs), *attention(outputs, level)])
                across.append(channels := outputs)
            if level != last:
                self.down.append([nn.Conv2d(channels, channels, 3, stride=2, padding=1)])
                across.append(channels)
        self.middle = [
            residual(channels, channels),
            Transformer(lib, channels, context, heads, groups),
            residual(channels, channels),
        ]
        self.up: list[list[Any]] = []
        for level, factor in reversed(list(enumerate(growth))):
            for k in range(blocks + 1):
                outputs = width * factor
                layers: list[Any] = [residual(channels + across.pop(), outputs)]
                layers += attention(outputs, level)
                if level and k == blocks:
                    layers += [twice_as_large, nn.Conv2d(outputs, outputs, 3, padding=1)]
                self.up.append(layers)
                channels = outputs
        self.norm = GroupNorm(lib, width, groups)
        self.last = nn.Conv2d(width, 4, 3, padding=1)

    def __call__(self, x: Any, step: Any, context: Any) -> Any:
        time = self.time[1](self.time[0](self._waves(step)).silu())
        x = self.first(x)
        across = [x]
        for layers in self.down:
            x = _through(layers, x, time, context)
            across.append(x)
        x = _through(self.middle, x, time, context)
        for layers in self.up:
            x = _through(layers, x.cat(across.pop(), dim=1), time, context)
        return self.last(self.norm(x).silu())

    def _waves(self, step: Any) -> Any:
        """(N,) -> (N, width): the sinusoids of Vaswani et al., 2017, cosines first."""
        half = self.width // 2
        rates = (self.tensor.arange(half) * (-math.log(10000) / half)).exp()
        angles = step.reshape(-1, 1) * rates.reshape(1, -1)
        return angles.cos().cat(angles.sin(), dim=-1)


def twice_as_large(x: Any) -> Any:
    """Each pixel four times: (N, C, H, W) -> (N, C, 2 H, 2 W)."""
    batch, channels, height, width = x.shape
    x = x.reshape(batch, channels, height, 1, width, 1)
    x = x.expand(batch, channels, height, 2, width, 2)
    return x.reshape(batch, channels, 2 * height, 2 * width)


def _through(layers: Sequence[Any], x: Any, time: Any, context: Any) -> Any:
    for layer in layers:
        if isinstance(layer, ResidualBlock):
            x = layer(x, time)
        elif isinstance(layer, Transformer):
            x = layer(x, context)
        else:
            x = layer(x)
    return x
