"""Convolutions of ResNet-50 and MobileNetV2, all distinct shapes, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from kernel_rows.cases import Case, Row, floats

__all__ = ["ROWS"]


@dataclass(frozen=True)
class Shape:
    """A square convolution that keeps the size, but for its stride."""

    channels: int
    filters: int
    size: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1

    @property
    def pad(self) -> int:
        return self.kernel // 2

    @property
    def after(self) -> int:
        """The size of the result."""
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1

    @property
    def name(self) -> str:
        how = "depthwise " if self.groups > 1 else ""
        stride = f" stride {self.stride}" if self.stride > 1 else ""
        sizes = f"{self.channels}->{self.filters}" if self.groups == 1 else f"{self.channels}"
        return f"{how}{self.kernel}x{self.kernel} {sizes} {self.size}²{stride}"


def resnet50_shapes() -> list[Shape]:
    """The stem and what four stages of bottlenecks have; the stride is in the 3x3 convolution."""
    found = [Shape(3, 64, 224, 7, 2)]
    inputs, size = 64, 56
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        after, outputs = size // stride, 4 * width
        found += [
            Shape(inputs, width, size, 1),
            Shape(width, width, size, 3, stride),
            Shape(width, outputs, after, 1),
            Shape(inputs, outputs, size, 1, stride),  # the shortcut
            Shape(outputs, width, after, 1),
            Shape(width, width, after, 3),
        ]
        inputs, size = outputs, after
    return list(dict.fromkeys(found))


def mobilenet_v2_shapes() -> list[Shape]:
    """Depthwise ones and those around them: widened, filtered, narrowed (Sandler et al., 2018)."""
    found: list[Shape] = []
    inputs, size = 32, 112
    for wider, outputs, repeats, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for n in range(repeats):
            step, wide = stride if n == 0 else 1, wider * inputs
            if wider > 1:
                found.append(Shape(inputs, wide, size, 1))
            found.append(Shape(wide, wide, size, 3, step, wide))
            size //= step
            found.append(Shape(wide, outputs, size, 1))
            inputs = outputs
    return list(dict.fromkeys([*found, Shape(inputs, 1280, size, 1)]))


# ---------------------------------------------------------------- cases


def conv(shape: Shape, batch: int, wanted: str = "") -> Case:
    """The convolution, or its gradient to "data" or "weights"."""
    s = shape
    image = (batch, s.channels, s.size, s.size)
    weight = (s.filters, s.channels // s.groups, s.kernel, s.kernel)
    result = (batch, s.filters, s.after, s.after)
    flops = 2.0 * batch * s.filters * s.after**2 * weight[1] * s.kernel**2
    how: dict[str, Any] = {"stride": s.stride, "padding": s.pad, "groups": s.groups}

    def ours(x: Any, w: Any) -> Any:
        return x.conv2d(w, **how)

    if not wanted:
        return Case(
            s.name,
            (floats(*image), floats(*weight)),
            ours,
            lambda x, w: functional.conv2d(x, w, **how),
            flops,
        )
    is_data = wanted == "data"
    return Case(
        f"{s.name} {wanted}",
        (floats(*image), floats(*weight), floats(*result)),
        lambda x, w, g: ours(x, w).gradient(x if is_data else w, gradient=g)[0],
        (lambda x, w, g: conv2d_input(x.shape, w, g, **how))
        if is_data
        else (lambda x, w, g: conv2d_weight(x, w.shape, g, **how)),
        flops,
        trains=True,
    )


def backward() -> list[Case]:
    shapes = resnet50_shapes()  # of images nobody asks for the gradient
    return [
        *[conv(s, 16, "data") for s in shapes[1:]],
        *[conv(s, 16, "weights") for s in shapes],
    ]


def draw_shape(rng: np.random.Generator) -> Shape:
    kernel = (1, 1, 3, 3, 5)[rng.integers(5)]
    channels, filters = (int(2 ** rng.uniform(4, 9)) // 8 * 8 for _ in range(2))
    return Shape(channels, filters, int(rng.integers(7, 64)), kernel, int(rng.integers(1, 3)))


def draw_forward(rng: np.random.Generator, batch: int) -> Case:
    return conv(draw_shape(rng), batch)


def draw_backward(rng: np.random.Generator) -> Case:
    return conv(draw_shape(rng), 16, ("data", "weights")[rng.integers(2)])


def draw_mobile(rng: np.random.Generator) -> Case:
    channels, size = int(rng.integers(2, 120)) * 8, int(rng.integers(7, 80))
    if rng.integers(2):
        return conv(Shape(channels, channels, size, 3, int(rng.integers(1, 3)), channels), 1)
    return conv(Shape(channels, int(rng.integers(2, 80)) * 8, size // 2 + 4, 1), 1)


ROWS = [
    Row(
        "conv",
        "convolutions of ResNet-50, batch 1",
        1.05,
        lambda: [conv(s, 1) for s in resnet50_shapes()],
        0.85,
        lambda rng: draw_forward(rng, 1),
    ),
    Row(
        "conv 16",
        "convolutions of ResNet-50, batch 16",
        1.05,
        lambda: [conv(s, 16) for s in resnet50_shapes()],
        0.85,
        lambda rng: draw_forward(rng, 16),
    ),
    Row(
        "conv backward",
        "gradients of the same to data and weights, batch 16",
        0.9,
        backward,
        0.0,
        draw_backward,
    ),
    Row(
        "mobilenet",
        "depthwise and 1x1 convolutions of MobileNetV2, batch 1",
        1.2,
        lambda: [conv(s, 1) for s in mobilenet_v2_shapes()],
        0.0,
        draw_mobile,
    ),
]
