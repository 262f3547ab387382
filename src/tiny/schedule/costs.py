"""What an element of each cell costs: operations and bytes loaded, counted over sets of cells.

A set counts what is used twice once; a sum over the tree would not (a diamond would count double,
and a chain of them explode).
"""

from __future__ import annotations

from dataclasses import dataclass

from tiny.schedule.graph import (
    COMPUTE,
    EFFECT,
    MEMORY,
    REDUCE,
    TRANSFER,
    VERSION,
    VIEW,
    TensorGraph,
)
from tiny.uop.ops import Ops

# Operations an element, in additions.
WORK = {
    Ops.EXP2: 10,
    Ops.LOG2: 10,
    Ops.SIN: 10,
    Ops.SQRT: 4,
    Ops.RECIPROCAL: 4,
    Ops.FDIV: 4,
    Ops.FLOORDIV: 4,
    Ops.FLOORMOD: 4,
    Ops.CDIV: 4,
    Ops.CMOD: 4,
    Ops.THREEFRY: 100,
}
# Above this many cells evaluated for one element, users take a value for a stored one.
LARGEST_SET = 96
# A value expanded this often or more costs its users what loading it would.
EXPANDED = 8
# A reduction over this much work an element or less, loading nothing, is a closed form.
CLOSED_FORM_WORK = 16


@dataclass
class Costs:
    """By cell, for one element of it: operations, bytes loaded, and the reductions below it.

    `foot` is the product of the sizes of nested reductions below, up to what is stored; `depth`
    is how many are nested, whether stored or not: of two of one depth none needs the other.
    """

    work: list[float]
    nbytes: list[float]
    foot: list[int]
    depth: list[int]


_NOTHING: frozenset[int] = frozenset()


def estimate_costs(g: TensorGraph, stored: frozenset[int]) -> Costs:
    """The costs of all cells, those in `stored` seen as loads by their users."""
    n = len(g)
    work, nbytes, foot, depth = [0.0] * n, [0.0] * n, [1] * n, [0] * n
    # What a user of a cell evaluates: a set of cells, and the sums over it.
    seen: list[frozenset[int]] = [_NOTHING] * n
    seen_work, seen_nbytes, seen_foot = [0.0] * n, [0.0] * n, [1] * n
    entry_work, entry_nbytes = [0.0] * n, [0.0] * n
    users = [0] * n
    for sources in g.src:
        for s in sources:
            users[s] += 1
    for i in range(n):
        kind, sources = g.kind[i], g.src[i]
        itemsize = g.nodes[i].dtype.itemsize
        is_load = i in stored or kind in (MEMORY, VERSION, TRANSFER)
        if sources and kind in (VIEW, COMPUTE, REDUCE, EFFECT):
            largest = max(sources, key=lambda s: len(seen[s]))
            cells, w, b = seen[largest], seen_work[largest], seen_nbytes[largest]
            for s in sources:
                if s != largest:
                    new = seen[s] - cells
                    if new:
                        cells |= new
                        w += sum([entry_work[c] for c in new])
                        b += sum([entry_nbytes[c] for c in new])
            foot[i] = max([seen_foot[s] for s in sources])
            depth[i] = max([depth[s] for s in sources])
            if kind == REDUCE:
                count = max(g.numel[sources[0]] // max(g.numel[i], 1), 1)
                depth[i] += 1
                foot[i] *= count
                if b == 0 and w <= CLOSED_FORM_WORK:
                    foot[i] = count = 1
                entry_work[i], entry_nbytes[i] = w, b = count * (w + 1), count * b
                cells = frozenset((i,))
            elif kind == COMPUTE:
                entry_work[i] = WORK.get(g.nodes[i].op, 1)
                w += entry_work[i]
                cells |= {i}
            elif kind == VIEW and b and g.numel[i] >= EXPANDED * g.numel[sources[0]] > 0:
                # hoisted out of the loops it is repeated over
                entry_nbytes[i] = b = itemsize * g.numel[sources[0]] / g.numel[i]
                w, cells = 0.0, frozenset((i,))
                foot[i] = 1
            work[i], nbytes[i] = w, b
            if kind != VIEW and len(cells) > LARGEST_SET:
                is_load = True
            seen[i], seen_work[i], seen_nbytes[i], seen_foot[i] = cells, w, b, foot[i]
        if is_load:
            seen[i] = frozenset((i,))
            seen_work[i] = entry_work[i] = 0.0
            seen_nbytes[i] = entry_nbytes[i] = itemsize
            seen_foot[i] = 1
        for s in sources:
            users[s] -= 1
            if not users[s]:
                seen[s] = _NOTHING  # sets are short-lived: a long chain holds few of them
    return Costs(work, nbytes, foot, depth)
