"""Networks on images: EfficientNet and the vision transformer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .language import Attention
from .networks import Network, Norm

# (growth, kernel, stride, channels, repeats) of each stage, table 1 of Tan and Le
B0 = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


class MobileBlock:
    """Channels made more, a convolution of each, a gate of each, channels made fewer.

    (N, inputs, H, W) -> (N, outputs, H / stride, W / stride): the inverted bottleneck of Sandler et
    al., 2018, with the squeeze-and-excitation of Hu et al., 2018. A shortcut is where sizes agree.
    """

    def __init__(
        self, lib: Any, inputs: int, outputs: int, growth: int, kernel: int, stride: int
    ) -> None:
        nn, inner, silu = lib.nn, inputs * growth, lib.Tensor.silu
        self.before: list[Callable[[Any], Any]] = []
        if growth > 1:
            self.before = [nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm(inner), silu]
        depthwise = nn.Conv2d(
            inner, inner, kernel, stride=stride, padding=kernel // 2, groups=inner, bias=False
        )
        self.before += [depthwise, nn.BatchNorm(inner), silu]
        self.squeeze = nn.Conv2d(inner, max(1, inputs // 4), 1)
        self.excite = nn.Conv2d(max(1, inputs // 4), inner, 1)
        self.after = [nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm(outputs)]
        self.is_residual = stride == 1 and inputs == outputs

    def __call__(self, x: Any) -> Any:
        y = x
        for layer in self.before:
            y = layer(y)
        gate = self.excite(self.squeeze(y.mean((2, 3), keepdim=True)).silu()).sigmoid()
        y = y * gate
        for layer in self.after:
            y = layer(y)
        return x + y if self.is_residual else y


def efficientnet_b0(
    lib: Any, stages: Sequence[tuple[int, int, int, int, int]] = B0, classes: int = 1000
) -> Network:
    """EfficientNet-B0 (Tan and Le, 2019): (N, 3, H, W) -> (N, classes), 5.3 million weights."""
    nn, silu = lib.nn, lib.Tensor.silu
    blocks, inputs = [], 32
    for growth, kernel, stride, channels, repeats in stages:
        for k in range(repeats):
            blocks.append(MobileBlock(lib, inputs, channels, growth, kernel, 1 if k else stride))
            inputs = channels
    return Network(
        [
            nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm(32),
            silu,
            *blocks,
            nn.Conv2d(inputs, 1280, 1, bias=False),
            nn.BatchNorm(1280),
            silu,
            lambda x: x.mean((2, 3)),
            nn.Linear(1280, classes),
        ]
    )


class VisionBlock:
    """Attention between all places, then two layers, a norm before each: (N, places, width)."""

    def __init__(self, lib: Any, width: int, heads: int) -> None:
        self.norm, self.inner_norm = Norm(lib, width), Norm(lib, width)
        self.attention = Attention(lib, width, heads)
        self.up, self.down = lib.nn.Linear(width, 4 * width), lib.nn.Linear(4 * width, width)

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(self.norm(x))
        inner = self.up(self.inner_norm(x))
        return x + self.down(0.5 * inner * (1 + (inner * math.sqrt(0.5)).erf()))


class VisionTransformer:
    """Patches of images as words (Dosovitskiy et al., 2020): (N, 3, size, size) -> (N, classes)."""

    def __init__(
        self,
        lib: Any,
        blocks: int,
        width: int,
        heads: int,
        patch: int,
        size: int,
        classes: int,
    ) -> None:
        self.patches = lib.nn.Conv2d(3, width, patch, stride=patch)
        self.summary = lib.Tensor.zeros(1, 1, width)
        self.places = lib.Tensor.zeros(1, (size // patch) ** 2 + 1, width)
        self.layers = [VisionBlock(lib, width, heads) for _ in range(blocks)]
        self.norm = Norm(lib, width)
        self.head = lib.nn.Linear(width, classes)

    def __call__(self, x: Any) -> Any:
        x = self.patches(x)
        batch, width = x.shape[:2]
        x = x.reshape(batch, width, -1).transpose(1, 2)
        x = self.summary.expand(batch, 1, width).cat(x, dim=1) + self.places
        for block in self.layers:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def vit(
    lib: Any,
    blocks: int = 12,
    width: int = 768,
    heads: int = 12,
    patch: int = 16,
    size: int = 224,
    classes: int = 1000,
) -> VisionTransformer:
    """ViT-B/16: 87 million weights."""
    return VisionTransformer(lib, blocks, width, heads, patch, size, classes)
