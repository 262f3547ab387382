"""The steps that are compiled, and not run, to see how long that takes.

Each is a function of a library that sets up, with empty weights and data, and returns the function
that builds the graph: the tensors that the step would compute.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .language import GPT2, LSTM, BertModel
from .networks import (
    Llama,
    conv_net,
    digits_net,
    resnet18,
    resnet50,
    trained,
)
from .scaling import SCALING, SIZES
from .unet import UNet
from .vision import efficientnet_b0, vit

Build = Callable[[], list[Any]]


def emptied(lib: Any, net: Any) -> Any:
    """The network with weights that nothing computes: memory with whatever is in it."""
    for tensor in lib.nn.state.get_state_dict(net).values():
        tensor.replace(lib.Tensor.empty(*tensor.shape, dtype=tensor.dtype))
    return net


def _training(
    lib: Any,
    make: Callable[[Any], Any],
    shape: tuple[int, ...],
    momentum: float | None = None,
) -> Build:
    """A step on the cross-entropy of a batch, with Adam, or with momentum SGD."""
    net = emptied(lib, make(lib))
    parameters = lib.nn.state.get_parameters(net)
    if momentum is None:
        optimizer = lib.nn.optim.Adam(parameters, lr=1e-3)
    else:
        optimizer = lib.nn.optim.SGD(parameters, lr=1e-3, momentum=momentum)
    emptied(lib, optimizer)
    state = lib.nn.state.get_state_dict(net).values()
    statistics = [x for x in state if not any(x is p for p in optimizer.params)]
    images = lib.Tensor.empty(*shape)
    labels = lib.Tensor.empty(shape[0], dtype="int32")

    def build() -> list[Any]:
        with lib.Context(TRAINING=1):
            return trained(net, optimizer, statistics, images, labels)

    return build


def _forward(lib: Any, make: Callable[[Any], Any], *given: tuple[Any, ...]) -> Build:
    """What a network makes of data: a shape for each input, and perhaps a dtype in front."""
    net = emptied(lib, make(lib))
    inputs = [
        lib.Tensor.empty(*s[1:], dtype=s[0]) if isinstance(s[0], str) else lib.Tensor.empty(*s)
        for s in given
    ]

    def build() -> list[Any]:
        result = net(*inputs)
        return list(result) if isinstance(result, tuple) else [result]

    return build


def _decoding(lib: Any, make: Callable[[Any], Any] = Llama) -> Build:
    """The next token after one at a position that is bound, its cache as large as it may get."""
    net = emptied(lib, make(lib))
    token = lib.Tensor.empty(1, 1, dtype="int32")

    def build() -> list[Any]:
        position = lib.Variable("position", 0, net.length - 1).bind(net.length // 2)
        return [net(token, position)]

    return build


def _scaling(lib: Any, graph: Callable[[Any, int], list[Any]], n: int) -> Build:
    return lambda: graph(lib.Tensor, n)


MODELS: dict[str, Callable[[Any], Build]] = {
    "digits_net": lambda lib: _training(lib, digits_net, (128, 1, 8, 8)),
    "conv_net": lambda lib: _training(lib, conv_net, (128, 1, 28, 28)),
    "resnet18": lambda lib: _training(lib, resnet18, (4, 3, 224, 224), momentum=0.9),
    "resnet50": lambda lib: _forward(lib, resnet50, (64, 3, 224, 224)),
    "efficientnet_b0": lambda lib: _forward(lib, efficientnet_b0, (1, 3, 224, 224)),
    "bert_base": lambda lib: _forward(lib, BertModel, ("int32", 1, 128), ("int32", 1, 128)),
    "gpt2": lambda lib: _forward(lib, GPT2, ("int32", 1, 128)),
    "llama_1b": _decoding,
    "vit_b16": lambda lib: _training(lib, vit, (4, 3, 224, 224), momentum=0.9),
    "unet_sd15": lambda lib: _forward(lib, UNet, (1, 4, 64, 64), (1,), (1, 77, 768)),
    "lstm": lambda lib: _forward(
        lib, partial(LSTM, inputs=128, width=256), (100, 8, 128), (8, 256), (8, 256)
    ),
}
GRAPHS: dict[str, Callable[[Any], Build]] = {
    f"{name}_{n}": partial(_scaling, graph=graph, n=n)
    for name, graph in SCALING.items()
    for n in SIZES
}
