"""Bits of an index that are added up again: an arange is the loop's number.

The front end counts by bits (`_places`): place k is the sum of the powers of two whose bit is set
in it, each chosen where a padded constant is not the padding. Once there are loops, each choice is
a comparison of an index, and such sums are joined here, two terms at a time.
"""

from __future__ import annotations

from tiny._core.symbolic import simplify
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp

__all__ = ["join_bits"]


def join_bits(sink: UOp) -> UOp:
    """The kernel with sums of an index's bits as that index, cast; exact, as no sum wraps.

    Two terms become one only where they are one term then, so each step leaves a smaller graph.
    """
    nodes = sink.postorder()
    if not any(_is_sum(node) for node in nodes):
        return sink
    new: dict[UOp, UOp] = {}
    for node in nodes:
        src = tuple([new[s] for s in node.src])
        made = node if src == node.src else node.replace(src=src)
        joined = _joined(made) if _is_sum(node) else None
        new[node] = made if joined is None else joined
    return new[sink]


def _is_sum(node: UOp) -> bool:
    """Whether an integer sum has a term that may be a bit of an index."""
    return (
        node.op is Ops.ADD
        and node.dtype.kind in "iu"
        and (_is_choice(node.src[0]) or _is_choice(node.src[1]))
    )


def _is_choice(x: UOp) -> bool:
    """Whether this is c < i ? w : v, or a multiple of that."""
    if x.op is Ops.MUL and x.src[1].op is Ops.CONST:
        x = x.src[0]
    return x.op is Ops.WHERE and x.src[0].op is Ops.CMPLT and x.src[1].op is Ops.CONST


def _joined(total: UOp) -> UOp | None:
    a, b = (_as_index(s) for s in total.src)
    if a is None or b is None:
        return None
    index = simplify(a + b)
    low, high = total.dtype.min, total.dtype.max
    if index.op is Ops.ADD or not (low <= index.vmin and index.vmax <= high):
        return None
    return index.cast(total.dtype)


def _as_index(x: UOp) -> UOp | None:
    """An integer as an index: c < i ? w : 0, for i below 2c + 2, is w * (i // (c + 1)).

    None where it may be another number. Of constants only 0 is taken, at which sums of bits begin.
    """
    if x.op is Ops.CONST:
        return UOp.const(0, dtypes.index) if x.arg == 0 else None
    if x.op is Ops.CAST and x.src[0].dtype is dtypes.index:
        index = x.src[0]
    elif not _is_choice(x):
        return None
    elif x.op is Ops.MUL:
        bit = _as_index(x.src[0])
        if bit is None:
            return None
        index = bit * x.src[1].arg
    else:
        (low, place), (chosen, other) = x.src[0].src, x.src[1:]
        step = low.arg + 1 if low.op is Ops.CONST else 0
        if other.op is not Ops.CONST or other.arg or place.dtype is not dtypes.index or step < 1:
            return None
        if place.vmin < 0 or place.vmax >= 2 * step:
            return None
        index = place // step * chosen.arg
    return index if x.dtype.min <= index.vmin and index.vmax <= x.dtype.max else None
