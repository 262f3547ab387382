"""Conditions that tell lanes apart, as comparisons of 32-bit integers: one for a vector of floats.

An index takes 64 bits, so a vector of them is twice as wide as one of floats, and what comes of
comparing it is packed by many instructions. But the lane at which a condition changes is a small
number, which is known outside of the lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiny.codegen.lower.indices import all_of, linear_form
from tiny.codegen.lower.tiled import TiledKernel, axis_masks
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp

__all__ = ["narrow_masks"]

LANE, LOOP = 1, 2


@dataclass(frozen=True)
class _Edge:
    """A condition on lanes: step * lane < limit, or `is_above` limit < step * lane."""

    lane: UOp
    step: int
    limit: UOp
    is_above: bool

    def condition(self, others: list[UOp]) -> UOp:
        """It, and others that all lanes have in common: where they do not hold, no lane is in."""
        at, limit = (self.lane * self.step).cast(dtypes.int32), self.limit.cast(dtypes.int32)
        if others:
            off = self.step * (self.lane.src[0].arg - 1) if self.is_above else 0
            limit = all_of(others).where(limit, limit.const_like(off))
        return limit < at if self.is_above else at < limit


def narrow_masks(kernel: TiledKernel, sink: UOp) -> UOp:
    """The graph of a tiled kernel, whose loops and lanes are compared in 32 bits.

    What tiles and lanes alone determine stays: it becomes constants. A condition on a load that
    all lanes have in common becomes a part of one that tells them apart.
    """
    lanes = {a.lane for a in kernel.axes if a.lane is not None}
    kinds = dict.fromkeys(lanes, LANE)
    for loop in kernel.loops:
        kinds[loop.leaf] = LOOP
        if loop.position is not None:
            kinds[loop.position] = LOOP
    order = sink.postorder()
    depends = axis_masks(order, kinds)
    edges = {
        n: edge
        for n in order
        if n.op is Ops.CMPLT and depends[n] == LANE | LOOP and (edge := _edge(n, lanes))
    }
    if not edges:
        return sink
    new: dict[UOp, UOp] = {}
    for node in order:
        src = tuple([new[s] for s in node.src])
        if node in edges:
            new[node] = edges[node].condition([])
            continue
        if node.op is Ops.INDEX and len(src) > 2:
            terms = node.src[2].split_uop(Ops.AND)
            common = [new[t] for t in terms if not depends[t] & LANE]
            apart = [t for t in terms if depends[t] & LANE]
            at = next((k for k, t in enumerate(apart) if t in edges), None)
            if common and at is not None:
                first = edges[apart[at]].condition(common)
                src = (*src[:2], all_of([first, *[new[t] for k, t in enumerate(apart) if k != at]]))
        new[node] = node if src == node.src else node.replace(src=src)
    return new[sink]


def _edge(node: UOp, lanes: set[UOp]) -> _Edge | None:
    """Where lanes change a comparison of indices; None if they do so in no simple way."""
    a, b = node.src
    if a.dtype is not dtypes.index:
        return None
    constant, terms = linear_form(a - b)
    mine = [(t, factor) for t, factor in terms if t in lanes]
    if len(mine) != 1:
        return None
    lane, step = mine[0]
    sign = -1 if step > 0 else 1
    limit = UOp.const(sign * constant, dtypes.index)
    for t, factor in terms:
        if t is not lane:
            limit = limit + t * (sign * factor)
    most = abs(step) * lane.src[0].arg
    is_small = dtypes.int32.min <= limit.vmin and max(limit.vmax, most) <= dtypes.int32.max
    is_same = not any(r in lanes for r in limit.postorder() if r.op is Ops.RANGE)
    return _Edge(lane, abs(step), limit, step < 0) if is_small and is_same else None
