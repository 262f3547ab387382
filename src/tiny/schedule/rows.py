"""What several loops over a row compute alike is computed once, and kept for the row.

Kernels that were joined each brought what they need: of softmax and its gradient the sum, the
gradient's sum and what is stored all have the same exponentials, over loops of their own.
"""

from __future__ import annotations

from tiny.dtype import dtypes
from tiny.schedule.costs import work_of
from tiny.schedule.placement import LOCAL_WORK, ROW_NBYTES, amount
from tiny.uop.ops import AxisType, Ops, RangeArg, StageArg, UOp

__all__ = ["keep_rows"]

Ranges = frozenset[UOp]
_NONE: Ranges = frozenset()


def keep_rows(sink: UOp, most: int) -> tuple[UOp, str]:
    """The kernel with what is costly and computed in several loops over a row kept, and a reason.

    Expects a kernel without STAGEs; at most so many bytes are kept. Of loops inside of others
    only those are looked at that no other is around, but for those of the output.
    """
    nodes = sink.postorder()
    free = _free_ranges(nodes)
    inner = _inner_loops(nodes, free)
    if len(inner) < 2:
        return sink, ""
    first = max(n.arg.axis for n in nodes if n.op is Ops.RANGE) + 1
    alike = _alike(nodes, free, inner, first)
    stages: dict[UOp, UOp] = {}  # by what is the same for all that are alike
    kept = 0
    new: dict[UOp, UOp] = {}
    for n in nodes:
        src = tuple([new[s] for s in n.src])
        node = n if src == n.src else UOp(n.op, n.dtype, src, n.arg)
        key = alike.get(n)
        if key is not None:
            (loop,) = free[n] & inner
            size = loop.src[0].arg
            stage = stages.get(key)
            if stage is None and kept + size * n.dtype.itemsize <= min(most, ROW_NBYTES):
                kept += size * n.dtype.itemsize
                own = UOp(
                    Ops.RANGE, dtypes.index, loop.src, RangeArg(first + len(stages), AxisType.LOOP)
                )
                value = _at(node, loop, own)
                stage = UOp(Ops.STAGE, n.dtype, (value, own), StageArg(False, (size,)))
                stages[key] = stage
            if stage is not None:
                node = UOp(Ops.INDEX, n.dtype, (stage, loop))
        new[n] = node
    if not stages:
        return sink, ""
    return new[sink], f"a row of {amount(kept, 'B')} kept that several loops had computed"


def _free_ranges(nodes: list[UOp]) -> dict[UOp, Ranges]:
    """The loops that each node depends on, but for those that it runs itself."""
    free: dict[UOp, Ranges] = {}
    for n in nodes:
        found = frozenset((n,)) if n.op is Ops.RANGE else _NONE
        found = found.union(*[free[s] for s in n.src])
        free[n] = found.difference(n.src[1:]) if n.op is Ops.REDUCE else found
    return free


def _inner_loops(nodes: list[UOp], free: dict[UOp, Ranges]) -> Ranges:
    """Loops of known size inside of loops of the output: of reductions, and of what is stored."""
    stores = [n for n in nodes if n.op is Ops.STORE]
    outer: Ranges = frozenset.intersection(*[free[n.src[0]] for n in stores])
    sums = [n for n in nodes if n.op is Ops.REDUCE]
    for n in sums:
        outer &= free[n]
    found = {n.src[1] for n in sums if len(n.src) == 2 and outer}
    for n in stores:
        rest = free[n.src[0]] - outer
        found |= rest if len(rest) == 1 and outer else _NONE
    return frozenset([r for r in found if r.src[0].op is Ops.CONST])


def _alike(nodes: list[UOp], free: dict[UOp, Ranges], inner: Ranges, axis: int) -> dict[UOp, UOp]:
    """Costly values of one inner loop that another has as well: each with what stands for all."""
    general: dict[UOp, UOp | None] = {}  # with one loop instead of whichever it depends on
    found: dict[UOp, dict[UOp, None]] = {}
    for n in nodes:
        mine = free[n] & inner
        if not mine:
            general[n] = n
        elif len(mine) > 1:
            general[n] = None
        elif n.op is Ops.RANGE:
            general[n] = UOp(Ops.RANGE, n.dtype, n.src, RangeArg(axis, AxisType.LOOP))
        else:
            src = [s for s in map(general.__getitem__, n.src) if s is not None]
            if len(src) < len(n.src):
                general[n] = None
                continue
            general[n] = key = UOp(n.op, n.dtype, tuple(src), n.arg)
            if n.dtype.kind == "f" and work_of(n) > LOCAL_WORK and free[n] - mine:
                found.setdefault(key, {})[n] = None
    return {
        n: key
        for key, group in found.items()
        if len({loop for n in group for loop in free[n] & inner}) > 1
        for n in group
    }


def _at(value: UOp, loop: UOp, own: UOp) -> UOp:
    """A value with another loop in place of one."""
    new = {loop: own}
    for n in value.postorder():
        if n not in new:
            src = tuple([new[s] for s in n.src])
            new[n] = n if src == n.src else UOp(n.op, n.dtype, src, n.arg)
    return new[value]
