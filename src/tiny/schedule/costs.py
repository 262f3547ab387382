"""What an element of each cell costs: operations and bytes loaded, counted over sets of cells.

A set counts what is used twice once; a sum over the tree would not (a diamond would count double,
and a chain of them explode).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiny.dtype import dtypes
from tiny.schedule.graph import (
    COMPUTE,
    EFFECT,
    MEMORY,
    PICK,
    REDUCE,
    SCAN,
    TRANSFER,
    VERSION,
    VIEW,
    TensorGraph,
)
from tiny.uop.ops import Ops, UOp

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
# the same of functions by name
FUNCTION_WORK = {"abs": 1, "round": 5, "copysign": 3, "exp": 11, "log": 11, "sigmoid": 16}
OTHER_FUNCTION_WORK = 30
# Above this many cells evaluated for one element, users take a value for a stored one.
LARGEST_SET = 96
# A value expanded this often or more costs its users what loading it would.
EXPANDED = 8
# A reduction over this much work an element or less, loading nothing and holding no other
# reduction, is a closed form.
CLOSED_FORM_WORK = 16
# A reduction of so few elements is no contraction, whatever it reads.
HANDFUL = 16
# Operands told apart below one value.
MOST_OPERANDS = 4


def work_of(node: UOp) -> int:
    """What an operation costs, in additions."""
    if node.op is Ops.MATH:
        return FUNCTION_WORK.get(node.arg, OTHER_FUNCTION_WORK)
    return WORK.get(node.op, 1)


# Bit masks of dimensions: along which of them each operand of a value varies.
Operands = tuple[int, ...]


@dataclass
class Costs:
    """By cell, for one element of it: operations, bytes loaded, and the reductions below it.

    `foot` is the product of the sizes of nested reductions below, up to what is stored; `depth`
    is how many are nested, whether stored or not: of two of one depth none needs the other.
    `is_contraction`: a long reduction of two operands, each of which is used again along a
    dimension that the other varies in (a matmul, a convolution); `contracts`: one of the
    reductions below is such. `picks` is how many reads at computed places are in one another.
    """

    work: list[float]
    nbytes: list[float]
    foot: list[int]
    depth: list[int]
    contracts: list[bool]
    is_contraction: list[bool]
    operands: list[Operands]
    picks: list[int]

    def varies(self, i: int, d: int) -> bool:
        """Whether a value can differ along a dimension."""
        return not self.operands or any(m >> d & 1 for m in self.operands[i])


_NOTHING: frozenset[int] = frozenset()


def estimate_costs(g: TensorGraph, stored: frozenset[int]) -> Costs:
    """The costs of all cells, those in `stored` seen as loads by their users."""
    n = len(g)
    work, nbytes, foot, depth = [0.0] * n, [0.0] * n, [1] * n, [0] * n
    # What a user of a cell evaluates: a set of cells, and the sums over it.
    seen: list[frozenset[int]] = [_NOTHING] * n
    seen_work, seen_nbytes, seen_foot = [0.0] * n, [0.0] * n, [1] * n
    entry_work, entry_nbytes = [0.0] * n, [0.0] * n
    contracts, seen_contracts, is_contraction = [False] * n, [False] * n, [False] * n
    operands = find_operands(g, stored)
    picks, seen_picks = [0] * n, [0] * n
    users = [0] * n
    for sources in g.src:
        for s in sources:
            users[s] += 1
    for i in range(n):
        kind, sources = g.kind[i], g.src[i]
        itemsize = g.nodes[i].dtype.itemsize
        is_load = i in stored or kind in (MEMORY, VERSION, TRANSFER, SCAN)
        if sources and kind in (VIEW, COMPUTE, REDUCE, EFFECT, PICK, SCAN):
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
            contracts[i] = any(seen_contracts[s] for s in sources)
            picks[i] = max([seen_picks[s] for s in sources]) + (kind == PICK)
            if kind == REDUCE:
                count = max(g.numel[sources[0]] // max(g.numel[i], 1), 1)
                depth[i] += 1
                foot[i] *= count
                if count > HANDFUL and operands and _is_contraction(g, i, operands[sources[0]]):
                    contracts[i] = is_contraction[i] = True
                if b == 0 and w <= CLOSED_FORM_WORK and depth[i] == 1:
                    foot[i] = count = 1
                entry_work[i], entry_nbytes[i] = w, b = count * (w + 1), count * b
                cells = frozenset((i,))
            elif kind in (PICK, SCAN):
                entry_work[i] = 1.0
                w += 1.0
                cells |= {i}
            elif kind == COMPUTE:
                entry_work[i] = work_of(g.nodes[i])
                w += entry_work[i]
                cells |= {i}
                if b == 0 and w < WORK[Ops.THREEFRY] and dtypes.is_int(g.nodes[i].dtype):
                    # a number made of loop numbers, as an arange is, comes down to an index
                    entry_work[i] = w = 1.0
                    cells = frozenset((i,))
            elif kind == VIEW and b and g.numel[i] >= EXPANDED * g.numel[sources[0]] > 0:
                # hoisted out of the loops it is repeated over
                entry_nbytes[i] = b = itemsize * g.numel[sources[0]] / g.numel[i]
                w, cells = 0.0, frozenset((i,))
                foot[i] = 1
            elif kind == VIEW and foot[i] > 1 and g.numel[i] > g.numel[sources[0]] > 0:
                # a reduction too, and seen as what it costs for each element of what it is used in
                share = g.numel[sources[0]] / g.numel[i]
                entry_work[i], entry_nbytes[i] = w, b = w * share, b * share
                cells = frozenset((i,))
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
        else:
            seen_contracts[i], seen_picks[i] = contracts[i], picks[i]
        for s in sources:
            users[s] -= 1
            if not users[s]:
                seen[s] = _NOTHING  # sets are short-lived: a long chain holds few of them
    return Costs(work, nbytes, foot, depth, contracts, is_contraction, operands, picks)


def find_operands(g: TensorGraph, stored: frozenset[int]) -> list[Operands]:
    """By cell: the dimensions in which each operand below it varies. Empty if nothing is reduced.

    Only the widest are kept: what varies in fewer dimensions than another is small beside it.
    """
    if not any(kind == REDUCE for kind in g.kind):
        return []
    found: list[Operands] = [()] * len(g)
    for i, kind in enumerate(g.kind):
        sources = g.src[i]
        if i in stored or kind in (MEMORY, VERSION, TRANSFER, PICK, SCAN):
            found[i] = (_dimensions(g.shape[i]),)
        elif kind == VIEW:
            node, s = g.nodes[i], sources[0]
            if found[s]:
                found[i] = _widest([_moved(node, g.shape[s], g.shape[i], m) for m in found[s]])
        elif kind == REDUCE:
            mask = 0
            for m in found[sources[0]]:
                mask |= m
            for a in g.nodes[i].arg.axes:
                mask &= ~(1 << a)
            found[i] = (mask,)
        elif kind == COMPUTE:
            first = found[sources[0]]
            if all(found[s] is first or not found[s] for s in sources[1:]):
                found[i] = first
            else:
                found[i] = _widest([m for s in sources for m in found[s]])
    return found


def _dimensions(shape: Sequence[int]) -> int:
    return sum([1 << d for d, size in enumerate(shape) if size > 1])


def _widest(masks: Iterable[int]) -> Operands:
    """The masks that are part of no other, the first few."""
    kept: list[int] = []
    for m in masks:
        if not any(m & k == m for k in kept):
            kept = [k for k in kept if k & m != k] + [m]
    return tuple(kept[:MOST_OPERANDS])


def _moved(node: UOp, old: Sequence[int], new: Sequence[int], mask: int) -> int:
    """A mask of dimensions, seen through a movement operation."""
    if node.op is Ops.PERMUTE:
        return sum([1 << k for k, d in enumerate(node.arg) if mask >> d & 1])
    if node.op is not Ops.RESHAPE:
        if node.op is Ops.EXPAND and len(old) == len(new):
            return mask & sum([1 << d for d in range(len(old)) if old[d] == new[d]])
        return mask if len(old) == len(new) else 0
    found = 0
    i = j = 0
    while i < len(old) and j < len(new):
        # the smallest groups of dimensions of equal product
        first_i, first_j, a, b = i, j, old[i], new[j]
        i, j = i + 1, j + 1
        while a != b and (i < len(old) or j < len(new)):
            if (a < b and i < len(old)) or j == len(new):
                a, i = a * old[i], i + 1
            else:
                b, j = b * new[j], j + 1
        if mask >> first_i & (1 << i - first_i) - 1:
            found |= (1 << j) - (1 << first_j)
    return found & _dimensions(new)


def _is_contraction(g: TensorGraph, i: int, operands: Operands) -> bool:
    """Whether reduction i sums over two operands, neither of which varies in all the other does."""
    reduced = sum([1 << a for a in g.nodes[i].arg.axes])
    return len([m for m in operands if m & reduced]) > 1
