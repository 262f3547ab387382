"""Graphs that grow with n: what a compiler does must grow in proportion.

Each function takes the Tensor class of a library and n, and gives the tensors to compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WIDTH = 16


def chain(t: Any, n: int) -> list[Any]:
    """n operations one after the other, all in one kernel."""
    x, a, b = t.empty(WIDTH), t.empty(WIDTH), t.empty(WIDTH)
    for k in range(n):
        x = x * a if k % 2 else x + b
    return [x]


def diamond(t: Any, n: int) -> list[Any]:
    """n operations, each of two that read one: 2^(n / 3) paths."""
    x, a, b = t.empty(WIDTH), t.empty(WIDTH), t.empty(WIDTH)
    for _ in range(n // 3):
        x = (x + a) * (x * b)
    return [x]


def fan_in(t: Any, n: int) -> list[Any]:
    """A tree of sums over n tensors."""
    level = [t.empty(WIDTH) for _ in range(n)]
    while len(level) > 1:
        pairs = [a + b for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return level


def reduce_chain(t: Any, n: int) -> list[Any]:
    """n reductions, each over what the one before made."""
    x = t.empty(WIDTH, WIDTH)
    for _ in range(n):
        x = x + x.sum(-1, keepdim=True)
    return [x]


def concat(t: Any, n: int) -> list[Any]:
    """n tensors beside each other."""
    first, *others = [t.empty(WIDTH) for _ in range(n)]
    return [first.cat(*others)]


def assign_chain(t: Any, n: int) -> list[Any]:
    """n updates of one tensor in place."""
    x, y = t.empty(WIDTH), t.empty(WIDTH)
    for _ in range(n):
        x.assign(x * y)
    return [x]


SCALING: dict[str, Callable[[Any, int], list[Any]]] = {
    f.__name__: f for f in (chain, diamond, fan_in, reduce_chain, concat, assign_chain)
}
SIZES = (1_000, 10_000)
