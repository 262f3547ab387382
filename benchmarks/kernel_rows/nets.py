"""Whole models: a step of each, with the weights that both libraries have."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import torch_models
from kernel_rows.cases import Row, Step, StepCase
from tiny.bench import models

__all__ = ["ROWS", "encoding", "inference", "llama_step", "training"]

LLAMA_1B = {"blocks": 16, "width": 2048, "heads": 32, "groups": 8, "hidden": 8192}
VOCABULARY = 128256
CACHED = 128  # tokens


def training(name: str, make: Callable[[Any], Any], twin: Callable[[], Any]) -> StepCase:
    """A training step of a network of images; the loss."""

    def ours(lib: Any) -> Step:
        net = make(lib)
        models.set_weights(lib, net)
        return Step(*models.training_function(lib, net, *models.images()))

    def peer(precise: bool) -> Step:
        net = twin().to(torch.float64 if precise else torch.float32)
        torch_models.set_weights(net)
        step = torch_models.training_step(net, *models.images())
        return Step(lambda: torch.tensor(step(), dtype=torch.float64))

    return StepCase(name, ours, peer, trains=True)


def inference(
    name: str, make: Callable[[Any], Any], twin: Callable[[], Any], given: np.ndarray
) -> StepCase:
    """What a network makes of float or integer inputs."""

    def ours(lib: Any) -> Step:
        net = make(lib)
        models.set_weights(lib, net)
        for tensor in lib.nn.state.get_state_dict(net).values():
            tensor.replace(tensor.contiguous().realize())  # as loaded: nothing is known of it
        return Step(net, (lib.Tensor(given).realize(),))

    def peer(precise: bool) -> Step:
        dtype = torch.float64 if precise else torch.float32
        net = twin().to(dtype).eval()
        torch_models.set_weights(net)
        x = torch.from_numpy(given)
        return Step(net, (x.to(dtype) if x.is_floating_point() else x.long(),))

    return StepCase(name, ours, peer)


def resnet() -> StepCase:
    given = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    return inference("ResNet-50, one image", models.resnet50, torch_models.resnet50, given)


def encoding(sizes: dict[str, int] | None = None, length: int = 128) -> StepCase:
    """BERT-base on some words."""
    given = np.random.default_rng(0).integers(0, 1000, (1, length)).astype(np.int32)
    sizes = sizes or {}
    return inference(
        f"BERT, {length} words",
        lambda lib: models.bert(lib, **sizes),
        lambda: torch_models.bert(**sizes),
        given,
    )


# ---------------------------------------------------------------- Llama


_DRAWN = np.random.default_rng(0).uniform(-1, 1, 1 << 20).astype(np.float32)


def drawn_weight(name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Random weights without much ado, float32 as bfloat16 has them; None for other tensors."""
    if len(shape) != 2 or name in ("cos", "sin"):
        return None
    turned = np.roll(_DRAWN, zlib.crc32(name.encode()) % _DRAWN.size)
    values = np.resize(turned * np.float32(shape[1] ** -0.5), shape)
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def drawn_cache(shape: tuple[int, ...]) -> np.ndarray:
    """Keys and values of tokens so far."""
    values = np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def _put(net: Any, name: str, tensor: Any) -> None:
    """Give a network another tensor, of another dtype, by its name in the state dict."""
    *path, last = name.split(".")
    for part in path:
        net = net[int(part)] if part.isdigit() else getattr(net, part)
    setattr(net, last, tensor.realize())


def llama_step(sizes: dict[str, int], vocabulary: int, cached: int) -> StepCase:
    """The next token after so many, of a transformer whose weights are bfloat16.

    What is compared is what the last block puts into its cache: a token says little.
    """
    shape = {**sizes, "vocabulary": vocabulary, "length": 2 * cached}

    def ours(lib: Any) -> Step:
        net = models.Llama(lib, **shape)
        state = lib.nn.state.get_state_dict(net)
        for name, tensor in state.items():
            if name.endswith("cache"):
                tensor = lib.Tensor(drawn_cache(tuple(tensor.shape)))
            values = drawn_weight(name, tensor.shape)
            tensor = tensor if values is None else lib.Tensor(values)
            is_angle = name in ("cos", "sin")
            _put(net, name, (tensor if is_angle else tensor.cast("bfloat16")).contiguous())
        position = lib.Variable("position", 0, 2 * cached - 1).bind(cached)
        token = lib.Tensor(np.array([[1]], np.int32)).realize()

        def look() -> Any:
            return net.layers[-1].cache.float()[:, :, cached].contiguous().realize()

        return Step(lambda token, position: net(token, position), (token, position), look)

    def peer(precise: bool) -> Step:
        with torch.device("meta"):
            net = torch_models.Llama(**shape)
        dtype = torch.float32 if precise else torch.bfloat16
        # float32 tells enough, beside bfloat16
        net = net.to(dtype).to_empty(device="cpu")
        state = net.state_dict()
        for name, tensor in state.items():
            values = drawn_weight(name, tuple(tensor.shape))
            if values is not None:
                tensor.copy_(torch.from_numpy(values))
            elif name.endswith("cache"):
                tensor.copy_(torch.from_numpy(drawn_cache(tuple(tensor.shape))))
            elif tensor.dim() == 1:
                tensor.fill_(1)
        angles = torch.from_numpy(models.rotations(net.length, shape["width"] // shape["heads"]))
        net.cos, net.sin = angles.cos(), angles.sin()
        return Step(
            net, (torch.tensor([[1]]), cached), lambda: net.layers[-1].cache[:, :, cached].float()
        )

    nbytes = 2.0 * (vocabulary * sizes["width"] + sizes["blocks"] * _block(**sizes))
    return StepCase(f"{sizes['blocks']} blocks, {cached} tokens cached", ours, peer, nbytes=nbytes)


def _block(width: int, heads: int, groups: int, hidden: int, **_: int) -> int:
    """How many weights a block has."""
    return 2 * width * width + 2 * width * groups * (width // heads) + 3 * width * hidden


ROWS = [
    Row(
        "conv_net",
        "a training step of conv_net, batch 128",
        1.1,
        lambda: [training("conv_net", models.conv_net, torch_models.conv_net)],
        1.1,
    ),
    Row(
        "decode",
        "a step of a Llama-1B, bfloat16",
        1.1,
        lambda: [llama_step(LLAMA_1B, VOCABULARY, CACHED)],
        1.1,
    ),
    Row("resnet50", "ResNet-50, forward, batch 1", 1.0, lambda: [resnet()], 1.0),
    Row("bert", "BERT-base, forward, 1x128", 1.0, lambda: [encoding()], 1.0),
]
