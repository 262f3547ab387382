"""Sizes of dimensions: ints, or integer expressions of Variables where they are symbolic.

A symbolic size is canonical, so that equal sizes are one node, and one that can have a single
value is an int. What a shape asks of sizes must hold for every value of their Variables: it is
proved from the bounds of a canonical difference, and what can not be proved is refused where the
operation is written. Values that are bound do not count: one graph serves them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tiny._core.graph import Node, register_settle_size
from tiny._core.ops import Ops
from tiny._core.symbolic import simplify
from tiny.helpers import prod

Size = Any  # int or Node: what shapes are made of


def settled(size: Size) -> Size:
    """A size in its one form: an int where it is a constant."""
    if not isinstance(size, Node):
        return size
    canonical = simplify(size)
    return canonical.arg if canonical.op is Ops.CONST else canonical


# shapes that movement makes by arithmetic are settled too
register_settle_size(settled)


def settled_all(sizes: Iterable[Size]) -> tuple[Size, ...]:
    """A shape of such sizes."""
    return tuple([s if type(s) is int else settled(s) for s in sizes])


def product(sizes: Iterable[Size]) -> Size:
    """How many elements dimensions have together."""
    return settled(prod(sizes))


def total(sizes: Iterable[Size]) -> Size:
    """The sum of sizes."""
    return settled(sum(sizes))


def most(size: Size) -> int:
    """The largest value that a size can have."""
    return size if isinstance(size, int) else int(size.vmax)


def least(size: Size) -> int:
    """The smallest value that a size can have."""
    return size if isinstance(size, int) else int(size.vmin)


def difference(a: Size, b: Size) -> Size:
    """a - b."""
    return settled(a - b)


def is_at_most(a: Size, b: Size) -> bool:
    """Whether a <= b is proved for all values of the Variables."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    return least(difference(b, a)) >= 0


def split_sizes(sizes: Sequence[Size]) -> tuple[tuple[int | None, ...], tuple[Any, ...]]:
    """Sizes as a node holds them: the ints, None where one is symbolic; and the symbolic ones."""
    for size in sizes:
        if type(size) is not int:
            break
    else:
        return tuple(sizes), ()
    known = settled_all(sizes)
    symbolic = tuple([s for s in known if isinstance(s, Node)])
    return tuple([None if isinstance(s, Node) else s for s in known]), symbolic


def bindings(sizes: Iterable[Size]) -> dict[str, set[int]]:
    """The values that the Variables of sizes are bound to, by name."""
    found: dict[str, set[int]] = {}
    for size in sizes:
        if isinstance(size, Node):
            for node in size.postorder():
                if node.op is Ops.BIND:
                    found.setdefault(node.src[0].arg.name, set()).add(node.src[1].arg)
    return found


def why_unequal(sizes: Iterable[Size]) -> str:
    """What to add to a message about sizes that should be equal: a Variable with two values."""
    for name, values in bindings(sizes).items():
        if len(values) > 1:
            listed = " and to ".join(map(str, sorted(values)))
            return f"; variable {name!r} is bound to {listed}: realize what has one of them first"
    return ""
