"""Sizes of dimensions: ints, or integer expressions of Variables where they are symbolic.

A symbolic size is canonical, so that equal sizes are one node, and one that can have a single
value is an int. What a shape asks of sizes must hold for every value of their Variables: it is
proved from the bounds of a canonical difference, or by trying all values if these are few; what
can not be proved is refused where the operation is written. Values that are bound do not count:
one graph serves them all.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
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
    distance = difference(b, a)
    return least(distance) >= 0 or (most(distance) >= 0 and _least_tried(distance) >= 0)


def _least_tried(size: Node) -> int:
    """The smallest value of a size for all values of its Variables, tried one by one.

    Its lower bound if they are too many, or if it is no sum or product of them.
    """
    order = size.postorder()
    if _is_bound_exact(order):
        return least(size)
    import numpy as np

    variables = [n for n in order if n.op is Ops.DEFINE_VAR]
    counts = [n.vmax - n.vmin + 1 for n in variables]
    if prod(counts) > MOST_TRIED:
        return least(size)
    values: dict[Node, Any] = {}
    for n in order:
        if n.op is Ops.CONST:
            values[n] = np.int64(n.arg)
        elif n.op is Ops.DEFINE_VAR:
            shape = [-1 if v is n else 1 for v in variables]
            values[n] = np.arange(n.vmin, n.vmax + 1).reshape(shape)
        elif n.op is Ops.BIND:
            values[n] = values[n.src[0]]
        elif n.op in _ARITHMETIC:
            values[n] = _ARITHMETIC[n.op](*[values[s] for s in n.src])
        else:
            return least(size)
    return int(np.min(values[size]))


def _is_bound_exact(order: Sequence[Node]) -> bool:
    """Whether a size, given as its nodes, is a sum of multiples of Variables, each there once."""
    used: set[Node] = set()
    for n in order:
        if n.op not in _LINEAR or (n.op is Ops.MUL and Ops.CONST not in (s.op for s in n.src)):
            return False
        for s in n.src:
            if s.op is not Ops.CONST:
                if s in used:
                    return False
                used.add(s)
    return True


_LINEAR = frozenset({Ops.CONST, Ops.DEFINE_VAR, Ops.BIND, Ops.ADD, Ops.MUL})

MOST_TRIED = 1 << 14  # values of Variables, in a proof


def _floordiv(a: Any, b: Any) -> Any:
    return a // (b + (b == 0)) * (b != 0)


def _floormod(a: Any, b: Any) -> Any:
    return a % (b + (b == 0)) * (b != 0)


def _maximum(a: Any, b: Any) -> Any:
    return a + (b - a) * (b > a)


_ARITHMETIC: dict[Ops, Callable[..., Any]] = {
    Ops.ADD: operator.add,
    Ops.MUL: operator.mul,
    Ops.FLOORDIV: _floordiv,
    Ops.FLOORMOD: _floormod,
    Ops.MAX: _maximum,
}


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


def quotient(sizes: Sequence[Any], by: Sequence[Any]) -> Any:
    """The number which, times `by`, makes up as many elements as `sizes`; None if none does."""
    whole, left, rest = product(sizes), list(sizes), []
    for size in by:  # what is on both sides cancels out, whatever its value
        if isinstance(size, Node) and size in left:
            left.remove(size)
        else:
            rest.append(size)
    part = product(rest)
    if isinstance(part, int) and part == 0:
        return None
    found = settled(product(left) // part)
    return found if product((found, *by)) == whole else None


def for_all_values(*sizes: Any) -> str:
    """What to add to a message about sizes that do not hold for all values of a Variable."""
    names = dict.fromkeys(
        f"{v.arg.name!r} (from {v.arg.vmin} to {v.arg.vmax})"
        for size in sizes
        if isinstance(size, Node)
        for v in size.postorder()
        if v.op is Ops.DEFINE_VAR
    )
    if not names:
        return ""
    return f" for all values of {' and '.join(names)}; give it narrower bounds"
