"""Bits of an index that are added up again: an arange is the loop's number.

The front end counts by bits (`_places`): place k is the sum of the powers of two whose bit is set
in it, each chosen where a padded constant is not the padding. Once there are loops, each choice is
a comparison of an index, and such sums are joined here.
"""

from __future__ import annotations

from typing import NamedTuple

from tiny._core.symbolic import simplify
from tiny.dtype import DType, dtypes
from tiny.uop.ops import Ops, UOp

__all__ = ["join_bits"]

MOST_TERMS = 128  # of a sum: bits of a few indices


def join_bits(sink: UOp) -> UOp:
    """The kernel with sums of an index's bits as that index, cast; exact, as no sum wraps.

    It is done where the index has fewer terms than the sum, so each step leaves a smaller graph.
    """
    nodes = sink.postorder()
    if not any(_is_sum(node) for node in nodes):
        return sink
    new: dict[UOp, UOp] = {}
    sums: dict[UOp, _Parts] = {}
    for node in nodes:
        src = tuple([new[s] for s in node.src])
        made = node if src == node.src else node.replace(src=src)
        if _is_sum(node):
            parts = _added(*[sums.get(s) or _parts_of(new[s]) for s in node.src])
            if parts is not None:
                sums[node] = parts
                joined = _joined(parts, node.dtype)
                made = made if joined is None else joined
        new[node] = made
    return new[sink]


class _Parts(NamedTuple):
    """A sum of integers: an index, made of so many terms, and the rest."""

    number: UOp | None
    terms: int
    rest: UOp | None


def _is_sum(node: UOp) -> bool:
    """Whether an integer sum has a term that may be a bit of an index."""
    return (
        node.op is Ops.ADD
        and node.dtype.kind in "iu"
        and (_is_choice(node.src[0]) or _is_choice(node.src[1]))
    )


def _is_choice(x: UOp) -> bool:
    """Whether this is a condition ? w : v, or a multiple of that."""
    if x.op is Ops.MUL and x.src[1].op is Ops.CONST:
        x = x.src[0]
    return x.op is Ops.WHERE and x.src[0].op in (Ops.CMPLT, Ops.AND) and x.src[1].op is Ops.CONST


def _parts_of(x: UOp) -> _Parts:
    index = _as_index(x)
    if index is None:
        return _Parts(None, 0, x)
    return _Parts(index, 1, None)


def _added(a: _Parts, b: _Parts) -> _Parts | None:
    rest = a.rest if b.rest is None else b.rest if a.rest is None else a.rest + b.rest
    if a.number is None or b.number is None:
        return _Parts(a.number if b.number is None else b.number, a.terms + b.terms, rest)
    index = simplify(a.number + b.number)
    # nodes of an index stay few: what can not be joined is given up before it grows
    return _Parts(index, a.terms + b.terms, rest) if a.terms + b.terms <= MOST_TERMS else None


def _joined(parts: _Parts, dtype: DType) -> UOp | None:
    index = parts.number
    if index is None or not (dtype.min <= index.vmin and index.vmax <= dtype.max):
        return None
    count = sum(t.op is not Ops.CONST for t in index.split_uop(Ops.ADD))
    if parts.terms < 2 or count >= parts.terms:
        return None
    return index.cast(dtype) if parts.rest is None else index.cast(dtype) + parts.rest


def _as_index(x: UOp) -> UOp | None:
    """An integer as an index: c < i ? w : 0, for i below 2c + 2, is w * (i // (c + 1)).

    So is c < i < 2c + 2 ? w : 0, for i below 3c + 3, but for an i // (c + 1) of 2. None where it
    may be another number. Of constants only 0 is taken, at which sums of bits begin.
    """
    if x.op is Ops.CONST:
        return UOp.const(0, dtypes.index) if x.arg == 0 else None
    if x.op is Ops.CAST and x.src[0].dtype is dtypes.index:
        index = x.src[0]
    elif x.op is Ops.MUL and x.src[1].op is Ops.CONST:
        bit = _as_index(x.src[0])
        if bit is None:
            return None
        index = bit * x.src[1].arg
    elif not _is_choice(x):
        return None
    else:
        condition, chosen, other = x.src
        times = 2
        if condition.op is Ops.AND:
            ends = [c for c in condition.src if c.op is Ops.CMPLT and c.src[1].op is Ops.CONST]
            starts = [c for c in condition.src if c not in ends]
            if len(starts) != 1:
                return None
            condition, times = starts[0], 3
        if condition.op is not Ops.CMPLT:
            return None
        low, place = condition.src
        step = low.arg + 1 if low.op is Ops.CONST and low.dtype is dtypes.index else 0
        if other.op is not Ops.CONST or other.arg or place.dtype is not dtypes.index or step < 1:
            return None
        if place.vmin < 0 or place.vmax >= times * step:
            return None
        index = place // step
        if times == 3:
            if ends[0].src[0] is not place or ends[0].src[1].arg != 2 * step:
                return None
            index = index % 2
        index = index * chosen.arg
    return index if x.dtype.min <= index.vmin and index.vmax <= x.dtype.max else None
