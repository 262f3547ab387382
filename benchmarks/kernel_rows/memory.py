"""What memory takes: rows and their norms, sums, elementwise chains, updates, indexing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from kernel_rows.cases import Case, Row, Step, StepCase, below, distinct, floats, with_gradients
from kernel_rows.convolutions import resnet50_shapes

__all__ = ["ROWS"]


# ---------------------------------------------------------------- norms of rows


def _rms_norm(x: Any, w: Any) -> Any:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w


NORMS: dict[str, tuple[int, Callable[..., Any], Callable[..., Any]]] = {
    # how many inputs have gradients
    "softmax": (1, lambda x: x.softmax(-1), lambda x: functional.softmax(x, -1)),
    "layer norm": (
        3,
        lambda x, w, b: x.layernorm() * w + b,
        lambda x, w, b: functional.layer_norm(x, w.shape, w, b),
    ),
    "RMS norm": (2, _rms_norm, lambda x, w: functional.rms_norm(x, w.shape, w, 1e-6)),
    "cross-entropy": (1, lambda x, y: x.cross_entropy(y), functional.cross_entropy),
}


def norm(kind: str, rows: int, columns: int, backward: bool) -> Case:
    """A norm of rows; with `backward` its value and all gradients."""
    count, ours, peer = NORMS[kind]
    is_loss = kind == "cross-entropy"
    inputs = (floats(rows, columns), *[floats(columns) for _ in range(count - 1)])
    if is_loss:
        inputs = (*inputs, below(columns, rows))
    name = f"{kind} {rows}x{columns}"
    if not backward:
        return Case(name, inputs, ours, peer)
    both = with_gradients(ours, peer, count, is_loss)
    given = () if is_loss else (floats(rows, columns),)
    return Case(f"{name}, gradients", (*inputs, *given), *both, trains=True)


def norms() -> list[Case]:
    return [
        norm(kind, *shape, backward)
        for kind in NORMS
        for shape in ((4096, 1024), (128, 50257))
        for backward in (False, True)
    ]


def draw_norm(rng: np.random.Generator) -> Case:
    kind = list(NORMS)[rng.integers(len(NORMS))]
    columns = int(2 ** rng.uniform(6, 15))
    rows = int(min(2 ** rng.uniform(5, 13), (1 << 23) // columns)) + 1
    return norm(kind, rows, columns, bool(rng.integers(2)))


# ---------------------------------------------------------------- sums and copies


def reduction(kind: str, rows: int, columns: int, axis: int | None) -> Case:
    """A sum, mean or max of a matrix along an axis, None for all."""
    along = {None: "all", 0: "first axis", 1: "last axis"}[axis]

    def peer(x: torch.Tensor) -> torch.Tensor:
        if kind == "max":
            return x.amax(axis) if axis is not None else x.max()
        return getattr(x, kind)() if axis is None else getattr(x, kind)(axis)

    name = f"{kind} {rows}x{columns} {along}"
    return Case(name, (floats(rows, columns),), lambda x: getattr(x, kind)(axis), peer)


def argmax(rows: int, columns: int, axis: int | None) -> Case:
    along = {None: "all", 0: "first axis", 1: "last axis"}[axis]
    name = f"argmax {rows}x{columns} {along}"
    inputs = (distinct(rows, columns),)
    return Case(name, inputs, lambda x: x.argmax(axis), lambda x: x.argmax(axis))


def cumsum(rows: int, columns: int, axis: int) -> Case:
    name = f"cumsum {rows}x{columns} {('first', 'last')[axis]} axis"
    return Case(name, (floats(rows, columns),), lambda x: x.cumsum(axis), lambda x: x.cumsum(axis))


def transposed_copy(rows: int, columns: int) -> Case:
    name = f"transposed copy {rows}x{columns}"
    inputs = (floats(rows, columns),)
    return Case(name, inputs, lambda x: x.transpose(0, 1).contiguous(), lambda x: x.T.contiguous())


def reductions() -> list[Case]:
    n = 4096
    return [
        *[reduction(kind, n, n, axis) for kind in ("sum", "mean", "max") for axis in (None, 0, 1)],
        *[argmax(n, n, axis) for axis in (None, 0, 1)],
        *[cumsum(n, n, axis) for axis in (0, 1)],
        transposed_copy(n, n),
    ]


def draw_reduction(rng: np.random.Generator) -> Case:
    rows, columns = (int(2 ** rng.uniform(6, 12)) for _ in range(2))
    axis = (None, 0, 1)[rng.integers(3)]
    kind = ("sum", "mean", "max", "argmax", "cumsum", "transpose")[rng.integers(6)]
    if kind == "argmax":
        return argmax(rows, columns, axis)
    if kind == "cumsum":
        return cumsum(rows, columns, int(axis or 0))
    if kind == "transpose":
        return transposed_copy(rows, columns)
    return reduction(kind, rows, columns, axis)


# ---------------------------------------------------------------- elementwise


def gelu(rows: int, columns: int) -> Case:
    """What follows a layer of a transformer."""
    return Case(
        f"{rows}x{columns}",
        (floats(rows, columns), floats(columns), floats(rows, columns)),
        lambda x, b, r: (x + b).gelu() + r,
        lambda x, b, r: functional.gelu(x + b, approximate="tanh") + r,
    )


def draw_gelu(rng: np.random.Generator) -> Case:
    columns = int(2 ** rng.uniform(6, 13))
    return gelu(int(2 ** rng.uniform(18, 24)) // columns, columns)


def adam(name: str, shapes: list[tuple[int, ...]]) -> StepCase:
    """An update of parameters whose gradients are there."""
    total = sum(int(np.prod(shape)) for shape in shapes)

    def values() -> list[tuple[np.ndarray, np.ndarray]]:
        rng = np.random.default_rng(0)
        drawn = [rng.random((2, *shape), np.float32) - np.float32(0.5) for shape in shapes]
        return [(p, g) for p, g in drawn]

    def ours(lib: Any) -> Step:
        given = [(lib.Tensor(p).realize(), lib.Tensor(g).realize()) for p, g in values()]
        params = [p for p, _ in given]
        optimizer = lib.nn.optim.Adam(params, lr=1e-3)
        for p in params:
            p.requires_grad = True

        def step(*gradients: Any) -> Any:
            with lib.Context(TRAINING=1):
                for p, g in zip(params, gradients, strict=True):
                    p.grad = g
                optimizer.step()
            return params[0]

        return Step(step, tuple([g for _, g in given]))

    def peer(precise: bool) -> Step:
        params, dtype = [], torch.float64 if precise else torch.float32
        for p, g in values():
            params.append(torch.from_numpy(p).to(dtype).requires_grad_())
            params[-1].grad = torch.from_numpy(g).to(dtype)
        optimizer = torch.optim.Adam(params, lr=1e-3)

        def step() -> torch.Tensor:
            optimizer.step()
            return params[0].detach()

        return Step(step)

    # parameters and two moments are read and written, gradients are read
    return StepCase(name, ours, peer, nbytes=28.0 * total, trains=True)


def adams() -> list[StepCase]:
    layers = [shape for s in resnet50_shapes() for shape in _layer(s)]
    return [
        adam("one tensor of 25 M", [(5000, 5000)]),
        adam("5 tensors of 5 M", [(2500, 2000)] * 5),
        adam("layers of ResNet-50, 13 M in 69 tensors", layers),
    ]


def _layer(s: Any) -> list[tuple[int, ...]]:
    """The parameters of a convolution and the batch norm after it."""
    return [(s.filters, s.channels, s.kernel, s.kernel), (s.filters,), (s.filters,)]


# ---------------------------------------------------------------- indexing


def embedding(words: int, width: int, count: int, backward: bool = False) -> Case:
    """Rows of a table; with `backward` only the gradient of the table."""
    name = f"embedding {words}x{width}, {count} rows"
    if not backward:
        return Case(
            name,
            (floats(words, width), below(words, count)),
            lambda w, i: w[i],
            lambda w, i: functional.embedding(i, w),
            nbytes=8.0 * count * width,
        )

    def peer(w: torch.Tensor, i: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        w = w.detach().requires_grad_()
        (found,) = torch.autograd.grad(functional.embedding(i, w), w, g)
        return found

    return Case(
        f"{name}, gradient",
        (floats(words, width), below(words, count), floats(count, width)),
        lambda w, i, g: w[i].gradient(w, gradient=g)[0],
        peer,
        nbytes=4.0 * words * width + 8.0 * count * width,
        trains=True,
    )


def gather(rows: int, columns: int, count: int) -> Case:
    return Case(
        f"gather {count} of {columns} in {rows} rows",
        (floats(rows, columns), below(columns, rows, count)),
        lambda x, i: x.gather(1, i),
        lambda x, i: x.gather(1, i),
    )


def scatter_add(rows: int, columns: int, count: int) -> Case:
    return Case(
        f"scatter-add {count} to {columns} in {rows} rows",
        (floats(rows, columns), below(columns, rows, count), floats(rows, count)),
        lambda x, i, v: x.scatter(1, i, v, reduce="add"),
        lambda x, i, v: x.scatter_add(1, i, v),
    )


def sort(rows: int, columns: int) -> Case:
    name = f"sort {rows}x{columns}"
    return Case(name, (distinct(rows, columns),), lambda x: x.sort(-1), lambda x: x.sort(-1))


def topk(rows: int, columns: int, count: int = 50) -> Case:
    name = f"top {count} of {rows}x{columns}"
    inputs = (distinct(rows, columns),)
    return Case(name, inputs, lambda x: x.topk(count, -1), lambda x: x.topk(count, -1))


def indexing() -> list[Case]:
    return [
        embedding(50_000, 768, 4096),
        embedding(50_000, 768, 4096, backward=True),
        gather(1024, 4096, 1024),
        scatter_add(1024, 4096, 1024),
        sort(64, 8192),
        topk(64, 8192),
    ]


def draw_indexing(rng: np.random.Generator) -> Case:
    rows, columns, count = (int(2 ** rng.uniform(*s)) for s in ((4, 10), (6, 12), (5, 11)))
    kind = rng.integers(6)
    if kind < 2:
        return embedding(int(2 ** rng.uniform(8, 15)), rows + 1, count, bool(kind))
    if kind < 4:
        return (gather, scatter_add)[kind - 2](rows, columns, count)
    return sort(rows // 8 + 1, columns) if kind == 4 else topk(rows // 8 + 1, columns, 16)


ROWS = [
    Row("norms", "norms of rows and losses, forward and backward", 1.3, norms, 1.0, draw_norm),
    Row("gelu", "bias + gelu + residual", 4.0, lambda: [gelu(4096, 4096)], 4.0, draw_gelu),
    Row("adam", "update of parameters by Adam", 1.5, adams, 1.5),
    Row("reductions", "sums along axes, copies", 1.0, reductions, 1.0, draw_reduction),
    Row("indexing", "embedding, gather, scatter, sort", 0.8, indexing, 0.8, draw_indexing),
]
