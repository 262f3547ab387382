"""PyTorch twins of `tiny.bench.models`: the same layers at the same places, the same numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from tiny.bench.models import rotations, weights


def digits_net() -> nn.Sequential:
    """`tiny.bench.models.digits_net`."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.BatchNorm2d(32),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.BatchNorm2d(64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def conv_net() -> nn.Sequential:
    """`tiny.bench.models.conv_net`."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.Conv2d(32, 32, 5),
        nn.ReLU(),
        nn.BatchNorm2d(32),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.BatchNorm2d(64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(576, 10),
    )


class Residual(nn.Module):
    """`tiny.bench.models.Residual`."""

    def __init__(self, layers: Sequence[nn.Module], inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers, self.shortcut = nn.Sequential(*layers), nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.layers(x) + self.shortcut(x), inplace=True)


def basic_block(inputs: int, width: int, stride: int) -> Residual:
    """`tiny.bench.models.basic_block`."""
    layers = [
        nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
    ]
    return Residual(layers, inputs, width, stride)


def bottleneck(inputs: int, width: int, stride: int) -> Residual:
    """`tiny.bench.models.bottleneck`."""
    layers = [
        nn.Conv2d(inputs, width, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, 4 * width, 1, bias=False),
        nn.BatchNorm2d(4 * width),
    ]
    return Residual(layers, inputs, 4 * width, stride)


def resnet(
    block: Callable[[int, int, int], Residual], growth: int, counts: Sequence[int]
) -> nn.Sequential:
    """`tiny.bench.models.resnet`. What can be done in place is, as users of PyTorch write it."""
    blocks, inputs = [], 64
    for stage, count in enumerate(counts):
        width = 64 << stage
        for k in range(count):
            blocks.append(block(inputs, width, 2 if stage and k == 0 else 1))
            inputs = growth * width
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
        *blocks,
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(inputs, 1000),
    )


def resnet18() -> nn.Sequential:
    """`tiny.bench.models.resnet18`."""
    return resnet(basic_block, 1, (2, 2, 2, 2))


def resnet50() -> nn.Sequential:
    """`tiny.bench.models.resnet50`."""
    return resnet(bottleneck, 4, (3, 4, 6, 3))


class EncoderBlock(nn.Module):
    """`tiny.bench.models.EncoderBlock`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm, self.outer_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.inputs(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        attended = attended.transpose(1, 2).reshape(batch, length, width)
        x = self.norm(x + self.outputs(attended))
        return self.outer_norm(x + self.down(nn.functional.gelu(self.up(x))))


class Encoder(nn.Module):
    """`tiny.bench.models.Encoder`."""

    def __init__(self, blocks: int, width: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList([EncoderBlock(width, heads) for _ in range(blocks)])

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(words) + self.places.weight[: words.shape[1]])
        for block in self.layers:
            x = block(x)
        return x


def bert(
    blocks: int = 12, width: int = 768, heads: int = 12, words: int = 30522, length: int = 512
) -> Encoder:
    """`tiny.bench.models.bert`."""
    return Encoder(blocks, width, heads, words, length)


class DecoderBlock(nn.Module):
    """`tiny.bench.models.DecoderBlock`."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.inner_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.cache = torch.zeros(2, 1, heads, length, width // heads)

    def forward(self, x: torch.Tensor, position: int) -> torch.Tensor:
        width = x.shape[-1]
        split = self.inputs(self.norm(x)).view(1, 1, 3, self.heads, width // self.heads)
        query, keys, values = split.permute(2, 0, 3, 1, 4)
        self.cache[0, :, :, position : position + 1] = keys
        self.cache[1, :, :, position : position + 1] = values
        keys, values = self.cache[:, :, :, : position + 1]
        attended = nn.functional.scaled_dot_product_attention(query, keys, values)
        x = x + self.outputs(attended.transpose(1, 2).reshape(1, 1, width))
        inner = nn.functional.gelu(self.up(self.inner_norm(x)), approximate="tanh")
        return x + self.down(inner)


class Decoder(nn.Sequential):
    """`tiny.bench.models.Decoder`, whose last norm is here without its ones and zeros."""

    def __init__(self, blocks: int, width: int, heads: int, length: int) -> None:
        super().__init__(*[DecoderBlock(width, heads, length) for _ in range(blocks)])
        self.length, self.width = length, width

    def forward(self, x: torch.Tensor, position: int) -> torch.Tensor:
        for block in self:
            x = block(x, position)
        return nn.functional.layer_norm(x, (self.width,))


def decoder(blocks: int = 12, width: int = 768, heads: int = 12, length: int = 512) -> Decoder:
    """`tiny.bench.models.decoder`."""
    return Decoder(blocks, width, heads, length)


def decoding_step(net: Decoder, start: int | None = None) -> Callable[[], float]:
    """`tiny.bench.models.decoding_step`."""
    first = net.length // 2 if start is None else start
    positions = itertools.cycle(range(first, net.length))
    states = np.random.default_rng(0).standard_normal((1, 1, net.width)).astype(np.float32)
    x = torch.from_numpy(states)

    def step() -> float:
        with torch.inference_mode():
            return float(net(x, next(positions))[0, 0, 0])

    return step


class RootNorm(nn.Module):
    """`tiny.bench.models.RootNorm`."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class LlamaBlock(nn.Module):
    """`tiny.bench.models.LlamaBlock`."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int, length: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm, self.inner_norm = RootNorm(width), RootNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.outputs = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.register_buffer("cache", torch.zeros(2, groups, length, self.size))

    def forward(
        self, x: torch.Tensor, position: int, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        y = self.norm(x)
        query = turned(self.query(y).view(1, self.heads, 1, self.size), turn)
        self.cache[0, :, position] = turned(self.key(y).view(self.groups, self.size), turn)
        self.cache[1, :, position] = self.value(y).view(self.groups, self.size)
        keys, values = self.cache[:, None, :, : position + 1]
        attended = nn.functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
        x = x + self.outputs(attended.reshape(1, 1, -1))
        y = self.inner_norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def turned(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """`tiny.bench.models.turned`."""
    cos, sin = turn
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Llama(nn.Module):
    """`tiny.bench.models.Llama`."""

    def __init__(
        self,
        blocks: int = 16,
        width: int = 2048,
        heads: int = 32,
        groups: int = 8,
        hidden: int = 8192,
        vocabulary: int = 128256,
        length: int = 256,
    ) -> None:
        super().__init__()
        self.length = length
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            [LlamaBlock(width, heads, groups, hidden, length) for _ in range(blocks)]
        )
        self.norm = RootNorm(width)
        angles = torch.from_numpy(rotations(length, width // heads))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, token: torch.Tensor, position: int) -> torch.Tensor:
        x = self.embedding(token)
        turn = self.cos[position].to(x.dtype), self.sin[position].to(x.dtype)
        for block in self.layers:
            x = block(x, position, turn)
        return nn.functional.linear(self.norm(x), self.embedding.weight).argmax(-1)


def set_weights(net: nn.Module, seed: int = 0) -> None:
    """Give a network the weights that its twin gets."""
    state = net.state_dict()
    drawn = weights({f"layers.{name}": tuple(t.shape) for name, t in state.items()}, seed)
    for name, values in drawn.items():
        state[name.removeprefix("layers.")].copy_(torch.from_numpy(values))


def training_step(
    net: nn.Sequential,
    x: np.ndarray,
    y: np.ndarray,
    lr: float = 1e-3,
    momentum: float | None = None,
) -> Callable[[], float]:
    """A function that trains one step on the cross-entropy of a batch; the loss.

    The optimizer is Adam, or with `momentum` SGD.
    """
    optimizer: torch.optim.Optimizer
    if momentum is None:
        optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)
    images = torch.from_numpy(x).to(next(net.parameters()).dtype)
    labels = torch.from_numpy(y).long()

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
