"""The models that are measured, each defined once over a library passed in.

`lib` is a module that has `Tensor` and `nn`: `tiny`, or a peer with the same names. Weights and
data come from NumPy, so that every library starts from the same numbers.
"""

from __future__ import annotations

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
            _flatten,
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
            _flatten,
            nn.Linear(576, 10),
        ]
    )


def _flatten(x: Any) -> Any:
    return x.reshape(x.shape[0], -1)


def images(batch: int = BATCH, size: int = 28, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Fixed random images (batch, 1, size, size) in float64, and their labels, int32 below 10."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, 1, size, size))
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


def training_step(
    lib: Any, net: Any, x: np.ndarray, y: np.ndarray, lr: float = 1e-3, jit: bool = False
) -> Callable[[], float]:
    """A function that trains one step with Adam on the cross-entropy of a batch; the loss.

    The images take the dtype of the first parameter. All that the step changes is realized
    with the loss: parameters, the optimizer's state, running statistics. With `jit` the library's
    TinyJit runs it, given images and labels.
    """
    parameters = lib.nn.state.get_parameters(net)
    optimizer = lib.nn.optim.Adam(parameters, lr=lr)
    state = lib.nn.state.get_state_dict(net).values()
    statistics = [t for t in state if not any(t is p for p in optimizer.params)]
    images_ = lib.Tensor(x).cast(optimizer.params[0].dtype).realize()
    labels_ = lib.Tensor(y).realize()

    def train(images: Any, labels: Any) -> Any:
        with lib.Context(TRAINING=1):
            optimizer.zero_grad()
            loss = net(images).sparse_categorical_crossentropy(labels).backward()
            return loss.realize(*optimizer.schedule_step(), *statistics)

    run = lib.TinyJit(train) if jit else train
    return lambda: float(run(images_, labels_).item())
