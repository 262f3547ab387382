"""Networks that are trained and run: convolutional ones, an encoder, decoders; and their steps.

Weights and data come from NumPy, so that every library starts from the same numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

BATCH = 128


class Network:
    """Layers applied one after the other. Entry i of its state dict is `layers.i.<name>`."""

    def __init__(self, layers: Sequence[Callable[[Any], Any]]) -> None:
        self.layers = list(layers)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def digits_net(lib: Any) -> Network:
    """A small convolutional network on 8x8 images: (N, 1, 8, 8) -> (N, 10), 20 thousand weights."""
    nn, tensor = lib.nn, lib.Tensor
    return Network(
        [
            nn.Conv2d(1, 32, 3, padding=1),
            tensor.relu,
            nn.BatchNorm(32),
            tensor.max_pool2d,
            nn.Conv2d(32, 64, 3),
            tensor.relu,
            nn.BatchNorm(64),
            tensor.max_pool2d,
            flatten,
            nn.Linear(64, 10),
        ]
    )


def conv_net(lib: Any) -> Network:
    """A convolutional network on 28x28 images: (N, 1, 28, 28) -> (N, 10), 88 thousand weights."""
    nn, tensor = lib.nn, lib.Tensor
    return Network(
        [
            nn.Conv2d(1, 32, 5),
            tensor.relu,
            nn.Conv2d(32, 32, 5),
            tensor.relu,
            nn.BatchNorm(32),
            tensor.max_pool2d,
            nn.Conv2d(32, 64, 3),
            tensor.relu,
            nn.Conv2d(64, 64, 3),
            tensor.relu,
            nn.BatchNorm(64),
            tensor.max_pool2d,
            flatten,
            nn.Linear(576, 10),
        ]
    )


class Residual:
    """Layers beside a shortcut, added and cut off below 0 (He et al., 2015).

    (N, inputs, H, W) -> (N, outputs, H / stride, W / stride). Where sizes differ the shortcut is a
    1x1 convolution.
    """

    def __init__(
        self,
        lib: Any,
        layers: Sequence[Callable[[Any], Any]],
        inputs: int,
        outputs: int,
        stride: int,
    ) -> None:
        self.layers = list(layers)
        self.shortcut: list[Callable[[Any], Any]] = []
        if stride != 1 or inputs != outputs:
            self.shortcut = [
                lib.nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
                lib.nn.BatchNorm(outputs),
            ]

    def __call__(self, x: Any) -> Any:
        y, beside = x, x
        for layer in self.layers:
            y = layer(y)
        for layer in self.shortcut:
            beside = layer(beside)
        return (y + beside).relu()


def basic_block(lib: Any, inputs: int, width: int, stride: int) -> Residual:
    """Two 3x3 convolutions beside a shortcut. The stride is in the first."""
    nn = lib.nn
    layers = [
        nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm(width),
        lib.Tensor.relu,
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm(width),
    ]
    return Residual(lib, layers, inputs, width, stride)


def bottleneck(lib: Any, inputs: int, width: int, stride: int) -> Residual:
    """1x1, 3x3 and 1x1 convolutions to 4 * width beside a shortcut. The 3x3 one has the stride."""
    nn, relu = lib.nn, lib.Tensor.relu
    layers = [
        nn.Conv2d(inputs, width, 1, bias=False),
        nn.BatchNorm(width),
        relu,
        nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm(width),
        relu,
        nn.Conv2d(width, 4 * width, 1, bias=False),
        nn.BatchNorm(4 * width),
    ]
    return Residual(lib, layers, inputs, 4 * width, stride)


def resnet(
    lib: Any, block: Callable[[Any, int, int, int], Residual], growth: int, counts: Sequence[int]
) -> Network:
    """So many blocks of each width; one of width w has growth * w outputs."""
    nn = lib.nn
    blocks, inputs = [], 64
    for stage, count in enumerate(counts):
        width = 64 << stage
        for k in range(count):
            blocks.append(block(lib, inputs, width, 2 if stage and k == 0 else 1))
            inputs = growth * width
    return Network(
        [
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm(64),
            lib.Tensor.relu,
            lambda x: x.max_pool2d(kernel_size=(3, 3), stride=2, padding=1),
            *blocks,
            lambda x: x.mean((2, 3)),
            nn.Linear(inputs, 1000),
        ]
    )


def resnet18(lib: Any) -> Network:
    """ResNet-18 (He et al., 2015): (N, 3, 224, 224) -> (N, 1000), 11.7 million weights."""
    return resnet(lib, basic_block, 1, (2, 2, 2, 2))


def resnet50(lib: Any) -> Network:
    """ResNet-50 (He et al., 2015): (N, 3, 224, 224) -> (N, 1000), 25.6 million weights."""
    return resnet(lib, bottleneck, 4, (3, 4, 6, 3))


class Norm:
    """Mean 0 and variance 1 along the last dimension, scaled and shifted."""

    def __init__(self, lib: Any, width: int) -> None:
        self.weight, self.bias = lib.Tensor.ones(width), lib.Tensor.zeros(width)

    def __call__(self, x: Any) -> Any:
        return x.layernorm() * self.weight + self.bias


class EncoderBlock:
    """Attention between all positions, then two layers, a norm after each (Devlin et al., 2018).

    (N, length, width) -> the same.
    """

    def __init__(self, lib: Any, width: int, heads: int) -> None:
        nn, self.heads = lib.nn, heads
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm, self.outer_norm = Norm(lib, width), Norm(lib, width)

    def __call__(self, x: Any) -> Any:
        batch, length, width = x.shape
        split = self.inputs(x).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = (split[:, :, k].transpose(1, 2) for k in range(3))
        attended = query.scaled_dot_product_attention(key, value)
        x = self.norm(x + self.outputs(attended.transpose(1, 2).reshape(batch, length, width)))
        inner = self.up(x)
        inner = 0.5 * inner * (1 + (inner * 0.5**0.5).erf())
        return self.outer_norm(x + self.down(inner))


class Encoder:
    """Embeddings of words and of places, then blocks: (N, length) words -> (N, length, width)."""

    def __init__(
        self, lib: Any, blocks: int, width: int, heads: int, words: int, length: int
    ) -> None:
        self.words, self.places = Table(lib, words, width), Table(lib, length, width)
        self.norm = Norm(lib, width)
        self.layers = [EncoderBlock(lib, width, heads) for _ in range(blocks)]

    def __call__(self, words: Any) -> Any:
        x = self.norm(self.words(words) + self.places.weight[: words.shape[1]])
        for block in self.layers:
            x = block(x)
        return x


def bert(
    lib: Any,
    blocks: int = 12,
    width: int = 768,
    heads: int = 12,
    words: int = 30522,
    length: int = 512,
) -> Encoder:
    """The encoder of BERT-base (Devlin et al., 2018): 109 million weights."""
    return Encoder(lib, blocks, width, heads, words, length)


class DecoderBlock:
    """Attention to all positions so far, then two layers, a norm before each (Radford et al.).

    (1, 1, width) at a position -> (1, 1, width). `cache` holds the keys and the values of the
    positions so far, (2, 1, heads, length, width / heads).
    """

    def __init__(self, lib: Any, width: int, heads: int, length: int) -> None:
        nn, self.heads = lib.nn, heads
        self.norm, self.inner_norm = Norm(lib, width), Norm(lib, width)
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.cache = lib.Tensor.zeros(2, 1, heads, length, width // heads).contiguous()

    def __call__(self, x: Any, position: Any) -> Any:
        width = x.shape[-1]
        split = self.inputs(self.norm(x)).reshape(1, 1, 3, self.heads, width // self.heads)
        query, *new = split.permute(2, 0, 3, 1, 4).split(1)
        self.cache[:, :, :, position : position + 1].assign(new[0].cat(new[1]))
        keys = self.cache[0, :, :, : position + 1]
        values = self.cache[1, :, :, : position + 1]
        scores = query[0] @ keys.transpose(-2, -1) * (width // self.heads) ** -0.5
        attended = scores.softmax(-1) @ values
        x = x + self.outputs(attended.transpose(1, 2).reshape(1, 1, width))
        return x + self.down(self.up(self.inner_norm(x)).gelu())


class Decoder:
    """Blocks and a last norm: the next state of one sequence, from its last one."""

    def __init__(self, lib: Any, blocks: int, width: int, heads: int, length: int) -> None:
        self.length, self.width = length, width
        self.layers = [DecoderBlock(lib, width, heads, length) for _ in range(blocks)]
        self.norm = Norm(lib, width)

    def __call__(self, x: Any, position: Any) -> Any:
        for block in self.layers:
            x = block(x, position)
        return self.norm(x)


def decoder(
    lib: Any, blocks: int = 12, width: int = 768, heads: int = 12, length: int = 512
) -> Decoder:
    """The blocks of GPT-2 (Radford et al., 2019) without its vocabulary: 85 million weights."""
    return Decoder(lib, blocks, width, heads, length)


class RootNorm:
    """A root mean square of 1 along the last dimension, scaled (Zhang and Sennrich, 2019)."""

    def __init__(self, lib: Any, width: int, eps: float = 1e-5) -> None:
        self.weight, self.eps = lib.Tensor.ones(width), eps

    def __call__(self, x: Any) -> Any:
        y = x.float()
        y = y * (y.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return y.cast(x.dtype) * self.weight


class LlamaBlock:
    """Attention of grouped heads to positions so far, then a gated layer (Touvron et al., 2023).

    (1, 1, width) at a position -> (1, 1, width). `cache` holds the keys and the values of the
    positions so far, (2, groups, length, width / heads).
    """

    def __init__(
        self, lib: Any, width: int, heads: int, groups: int, hidden: int, length: int
    ) -> None:
        nn, self.heads, self.groups, self.size = lib.nn, heads, groups, width // heads
        self.norm, self.inner_norm = RootNorm(lib, width), RootNorm(lib, width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.outputs = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)
        self.cache = lib.Tensor.zeros(2, groups, length, self.size).contiguous()

    def __call__(self, x: Any, position: Any, turn: tuple[Any, Any]) -> Any:
        y = self.norm(x)
        query = turned(self.query(y).reshape(self.groups, self.heads // self.groups, -1), turn)
        key = turned(self.key(y).reshape(self.groups, 1, self.size), turn)
        value = self.value(y).reshape(self.groups, 1, self.size)
        self.cache[:, :, position : position + 1].assign(key.stack(value).cast(self.cache.dtype))
        keys, values = (self.cache[k, :, : position + 1] for k in (0, 1))
        scores = (query @ keys.transpose(1, 2)).float() * self.size**-0.5
        attended = scores.softmax(-1).cast(x.dtype) @ values
        x = x + self.outputs(attended.reshape(1, 1, -1))
        y = self.inner_norm(x)
        return x + self.down(self.gate(y).silu() * self.up(y))


class Table:
    """A row for each number: (...) -> (..., width)."""

    def __init__(self, lib: Any, rows: int, width: int) -> None:
        self.weight = lib.Tensor.zeros(rows, width)

    def __call__(self, numbers: Any) -> Any:
        return self.weight[numbers]


def turned(x: Any, turn: tuple[Any, Any]) -> Any:
    """Halves of the last dimension turned against each other (Su et al., 2021)."""
    cos, sin = turn
    a, b = x.split(x.shape[-1] // 2, -1)
    return (a * cos - b * sin).cat(b * cos + a * sin, dim=-1)


class Llama:
    """An embedding, blocks, a last norm and the embedding again: (1, 1) tokens -> the next one."""

    def __init__(
        self,
        lib: Any,
        blocks: int = 16,
        width: int = 2048,
        heads: int = 32,
        groups: int = 8,
        hidden: int = 8192,
        vocabulary: int = 128256,
        length: int = 256,
    ) -> None:
        self.length = length
        self.embedding = Table(lib, vocabulary, width)
        self.layers = [LlamaBlock(lib, width, heads, groups, hidden, length) for _ in range(blocks)]
        self.norm = RootNorm(lib, width)
        angles = rotations(length, width // heads)
        self.cos, self.sin = lib.Tensor(np.cos(angles)), lib.Tensor(np.sin(angles))

    def __call__(self, token: Any, position: Any) -> Any:
        x = self.embedding(token)
        turn = tuple([t[position : position + 1].cast(x.dtype) for t in (self.cos, self.sin)])
        for block in self.layers:
            x = block(x, position, turn)
        return self.norm(x).linear(self.embedding.weight.T).argmax(-1)


def rotations(length: int, size: int, base: float = 500_000.0) -> np.ndarray:
    """The angles of rotary embeddings: (length, size / 2), float32."""
    rates = base ** (-np.arange(0, size, 2) / size)
    return np.outer(np.arange(length), rates).astype(np.float32)


def flatten(x: Any) -> Any:
    """All dimensions but the first as one."""
    return x.reshape(x.shape[0], -1)


def images(
    batch: int = BATCH, size: int = 28, seed: int = 0, channels: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Fixed random images (batch, channels, size, size), float64, and labels, int32 below 10."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, channels, size, size))
    return x, rng.integers(0, 10, batch).astype(np.int32)


def weights(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    """Initial weights in float64 for the convolutions and linear layers among named shapes.

    Uniform within ±1/sqrt(inputs of one output), biases too. Drawn in the order of the names.
    """
    rng, drawn = np.random.default_rng(seed), {}
    for name in sorted(shapes):
        layer, _, part = name.rpartition(".")
        if part == "weight" and len(shapes[name]) >= 2:
            bound = np.prod(shapes[name][1:]) ** -0.5
            for other in (name, f"{layer}.bias"):
                if other in shapes:
                    drawn[other] = rng.uniform(-bound, bound, shapes[other])
    return drawn


def set_weights(lib: Any, net: Any, seed: int = 0) -> None:
    """Give a network the weights that `weights` draws, in the dtypes that it has."""
    state = lib.nn.state.get_state_dict(net)
    for name, values in weights({k: t.shape for k, t in state.items()}, seed).items():
        # realized here: they count as the set-up of a step, not as a part of it
        state[name].assign(lib.Tensor(values).cast(state[name].dtype)).realize()
    for name, tensor in state.items():
        if name.endswith("cache"):
            tensor.realize()


def training_function(
    lib: Any,
    net: Any,
    x: np.ndarray,
    y: np.ndarray,
    lr: float = 1e-3,
    momentum: float | None = None,
) -> tuple[Callable[[Any, Any], Any], tuple[Any, Any]]:
    """A function that trains one step on images and labels, and those; it returns the loss.

    The optimizer is Adam, or with `momentum` SGD. The images take the dtype of the first
    parameter. All that the step changes is realized with the loss: parameters, the optimizer's
    state, running statistics.
    """
    parameters = lib.nn.state.get_parameters(net)
    if momentum is None:
        optimizer = lib.nn.optim.Adam(parameters, lr=lr)
    else:
        optimizer = lib.nn.optim.SGD(parameters, lr=lr, momentum=momentum)
    state = lib.nn.state.get_state_dict(net).values()
    statistics = [t for t in state if not any(t is p for p in optimizer.params)]
    images_ = lib.Tensor(x).cast(optimizer.params[0].dtype).realize()
    labels_ = lib.Tensor(y).realize()

    def train(images: Any, labels: Any) -> Any:
        with lib.Context(TRAINING=1):
            loss, *others = trained(net, optimizer, statistics, images, labels)
            return loss.realize(*others)

    return train, (images_, labels_)


def trained(
    net: Any, optimizer: Any, statistics: Sequence[Any], images: Any, labels: Any
) -> list[Any]:
    """The loss of a training step, then all that the step changes, nothing of it computed yet."""
    optimizer.zero_grad()
    loss = net(images).sparse_categorical_crossentropy(labels).backward()
    return [loss, *optimizer.schedule_step(), *statistics]


def training_step(
    lib: Any,
    net: Any,
    x: np.ndarray,
    y: np.ndarray,
    lr: float = 1e-3,
    jit: bool = False,
    momentum: float | None = None,
) -> Callable[[], float]:
    """`training_function` as a step without arguments; `jit`: by the library's TinyJit."""
    train, given = training_function(lib, net, x, y, lr, momentum)
    run = lib.TinyJit(train) if jit else train
    return lambda: float(run(*given).item())


def decoding_step(
    lib: Any, net: Decoder, jit: bool = False, start: int | None = None
) -> Callable[[], float]:
    """A function that takes a decoder one position on, from `start` (the middle);
    the first element of the state.

    After the last position it goes on at `start`. The position is a bound Variable, so that all
    positions are one graph. With `jit` the library's TinyJit runs it.
    """
    first = net.length // 2 if start is None else start
    positions = itertools.cycle(range(first, net.length))
    states = np.random.default_rng(0).standard_normal((1, 1, net.width)).astype(np.float32)
    x = lib.Tensor(states).realize()

    def decode(x: Any, position: Any) -> Any:
        return net(x, position).realize()

    run = lib.TinyJit(decode) if jit else decode

    def step() -> float:
        position = lib.Variable("position", 0, net.length - 1).bind(next(positions))
        return float(run(x, position).numpy()[0, 0, 0])

    return step
