"""What the rows of the table are made of: cases, their inputs, and what a row asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tiny.codegen.opt import Opt
from tiny.uop.ops import UOp

__all__ = [
    "AnyCase",
    "Case",
    "Input",
    "KernelCase",
    "Row",
    "Step",
    "StepCase",
    "below",
    "distinct",
    "floats",
    "with_gradients",
]


@dataclass(frozen=True)
class Input:
    """An array that a case is given: floats of ±0.5, integers from 0 to `below`, or a shuffle."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    below: int = 0
    is_distinct: bool = False  # all elements differ, so that an order of them is the only one

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """The array; bfloat16 as float32 that has no more digits."""
        if self.dtype == "int8":
            return rng.integers(-127, 128, self.shape).astype(np.int8)
        if self.below:
            return rng.integers(0, self.below, self.shape).astype(np.int32)
        if self.is_distinct:
            size = int(np.prod(self.shape))
            return (rng.permutation(size).astype(np.float32) / size - 0.5).reshape(self.shape)
        values = rng.random(self.shape, np.float32) - np.float32(0.5)
        if self.dtype == "bfloat16":
            values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        return values


def floats(*shape: int, dtype: str = "float32") -> Input:
    """Uniform floats."""
    return Input(shape, dtype)


def below(limit: int, *shape: int) -> Input:
    """Integers, which are int32 for us and int64 for PyTorch."""
    return Input(shape, "int32", limit)


def distinct(*shape: int) -> Input:
    """Floats that all differ."""
    return Input(shape, is_distinct=True)


@dataclass(frozen=True)
class Case:
    """What a user writes with tensors, here and in PyTorch: one or several results of inputs.

    `flops` is the arithmetic that the mathematics asks for, 0 where memory is what it takes;
    `nbytes` what is read and written, 0 for all inputs and results. `trains`: PyTorch runs as it
    does in training, and else under `inference_mode`.
    """

    name: str
    inputs: tuple[Input, ...]
    ours: Callable[..., Any]
    peer: Callable[..., Any]
    flops: float = 0.0
    nbytes: float = 0.0
    trains: bool = False


@dataclass(frozen=True)
class Step:
    """A function and its arguments; after some calls `look` tells what to compare, if given.

    Else the result of the last call is compared.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    look: Callable[[], Any] | None = None


@dataclass(frozen=True)
class StepCase:
    """A step of a program that has a state of its own: a model, an optimizer.

    `ours` makes the function to capture and its arguments, of a library with the names of `tiny`;
    `peer` makes the step of PyTorch, which with True is a more precise one to compare with.
    """

    name: str
    ours: Callable[[Any], Step]
    peer: Callable[[bool], Step]
    flops: float = 0.0
    nbytes: float = 0.0
    trains: bool = False


@dataclass(frozen=True)
class KernelCase:
    """A kernel, what PyTorch does instead, and Opts by hand. PARAM k + 1 has the k-th shape."""

    name: str
    ast: UOp
    shapes: list[tuple[int, ...]]
    peer: Callable[..., torch.Tensor]
    by_hand: list[Opt]
    flops: float = 0.0


AnyCase = Case | StepCase | KernelCase


@dataclass(frozen=True)
class Row:
    """Cases that have a target together.

    `target` is for the geometric mean of their ratios to PyTorch, `least` for each of them.
    `draw` makes a case of a shape that nobody has looked at.
    """

    name: str
    about: str
    target: float
    cases: Callable[[], Sequence[AnyCase]]
    least: float = 0.0
    draw: Callable[[np.random.Generator], AnyCase] | None = None


# ---------------------------------------------------------------- gradients


def with_gradients(
    ours: Callable[..., Any], peer: Callable[..., Any], count: int, is_loss: bool = False
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two functions that give the value and the gradients of the first `count` inputs as well.

    The last input is the gradient of the value, but for a loss, which has none.
    """

    def our_step(*xs: Any) -> tuple[Any, ...]:
        given = () if is_loss else xs[-1:]
        value = ours(*(xs if is_loss else xs[:-1]))
        named = {"gradient": given[0]} if given else {}
        return value, *value.gradient(*xs[:count], **named)

    def peer_step(*xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = () if is_loss else xs[-1:]
        leaves = [x.detach().requires_grad_() for x in xs[:count]]
        value = peer(*leaves, *xs[count : len(xs) - len(given)])
        return value.detach(), *torch.autograd.grad(value, leaves, *given)

    return our_step, peer_step
