"""The loops of a finished kernel: their order and their numbers, and loops split at divisions.

A loop r of 576 steps that is read back as (r // 9, r // 3 % 3, r % 3) becomes three loops, so
that no division is left. One whose pieces are put together again in a flat address stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tiny._core.symbolic import simplify
from tiny.dtype import dtypes
from tiny.schedule.bounds import shorter_loops, without_needless_gates
from tiny.schedule.counts import join_bits
from tiny.schedule.merges import merge_loops
from tiny.uop.ops import Ops, RangeArg, UOp

_DIVISIONS = (Ops.FLOORDIV, Ops.FLOORMOD)


def settle_loops(sink: UOp, scopes: Sequence[int]) -> UOp:
    """The kernel with its axes numbered 0, 1, … from the outermost in.

    Output loops come first, those of a smaller scope outside, so that whatever is computed once
    for a scope has its loops as a prefix; then the reduce loops in the order they were opened.
    """
    nodes = merge_loops(join_bits(sink)).postorder()
    loops = [n for n in nodes if n.op is Ops.RANGE]
    cuts = _find_cuts(nodes) if any(n.op in _DIVISIONS for n in nodes) else {}
    shorter = shorter_loops(nodes)

    def place(loop: UOp) -> tuple[int, float, int]:
        axis, kind = loop.arg
        around = [s.bit_count() for s in scopes if s >> axis & 1]
        return (int(kind), min(around, default=math.inf), axis)

    loops.sort(key=place)
    pieces: dict[UOp, tuple[list[UOp], UOp]] = {}  # by loop: the loops it becomes, its value
    axis = 0
    changed = False
    for loop in loops:
        sizes, step = [loop.src[0]], 1  # the outermost first; a step of that in the old loop
        if loop in shorter:
            sizes = [UOp.const(shorter[loop], dtypes.index)]
        elif loop in cuts:
            ends = [*cuts[loop], loop.src[0].arg]
            inner = [b // a for a, b in zip([1, *ends], ends, strict=False)]
            sizes, step = [UOp.const(n, dtypes.index) for n in reversed(inner)], ends[-2]
        parts: list[UOp] = []
        value: UOp = UOp.const(0, dtypes.index)
        for k, size in enumerate(sizes):
            part = UOp(Ops.RANGE, dtypes.index, (size,), RangeArg(axis, loop.arg.kind))
            axis += 1
            parts.append(part)
            value = value + part * step
            if k + 1 < len(sizes):
                step //= sizes[k + 1].arg
        pieces[loop] = (parts, simplify(value))
        changed = changed or pieces[loop][1] is not loop
    return _with_loops(nodes, pieces, shorter) if changed else nodes[-1]


def _with_loops(
    nodes: list[UOp], pieces: dict[UOp, tuple[list[UOp], UOp]], shorter: dict[UOp, int]
) -> UOp:
    """The graph of `nodes` (sources first, root last) with loops replaced."""
    new: dict[UOp, UOp] = {}
    for node in nodes:
        if node in pieces:
            new[node] = pieces[node][1]
            continue
        src: list[UOp] = []
        for k, s in enumerate(node.src):
            if node.op in (Ops.REDUCE, Ops.STAGE) and k > 0:
                src += pieces[s][0]
            elif new[s] is not s and node.dtype not in (dtypes.index, dtypes.bool):
                src.append(simplify(new[s]) if s.dtype in (dtypes.index, dtypes.bool) else new[s])
            else:
                src.append(new[s])
        if node.op is Ops.REDUCE and any(loop in shorter for loop in node.src[1:]):
            src[0] = without_needless_gates(src[0])
        same = len(src) == len(node.src) and all(a is b for a, b in zip(src, node.src, strict=True))
        new[node] = node if same else UOp(node.op, node.dtype, tuple(src), node.arg)
    return new[nodes[-1]]


def _find_cuts(nodes: list[UOp]) -> dict[UOp, list[int]]:
    """By loop, the step counts at which it is worth splitting, ascending."""
    found: dict[UOp, set[int]] = {}
    for node in nodes:
        if node.op is Ops.INDEX:
            shape = node.src[0].shape
            exprs = node.src[1 : 1 + len(shape)]
            if all(isinstance(s, int) for s in shape) and _divisions(exprs):
                exprs = (_flat(exprs, shape),)
            for division in _divisions((*exprs, *node.src[1 + len(shape) :])):
                _cuts_of(division, found)
    whole = (Ops.STAGE, Ops.SCAN)
    kept = {loop for node in nodes if node.op in whole for loop in node.src[1:]}
    cuts = {}
    for loop, points in found.items():
        chain = sorted(points)
        size = loop.src[0]
        if size.op is not Ops.CONST or 0 in points or loop in kept:
            continue
        if all(b % a == 0 for a, b in zip(chain, [*chain[1:], size.arg], strict=True)):
            cuts[loop] = [c for c in chain if 1 < c < size.arg]
    return cuts


def _divisions(exprs: Sequence[UOp]) -> list[UOp]:
    return [n for e in exprs for n in e.postorder() if n.op in _DIVISIONS]


def _flat(index: Sequence[UOp], shape: Sequence[int]) -> UOp:
    flat: UOp = UOp.const(0, dtypes.index)
    for i, size in zip(index, shape, strict=True):
        flat = flat * size + i
    return simplify(flat)


def _cuts_of(division: UOp, found: dict[UOp, set[int]]) -> None:
    """Note the step counts of a loop at which nested divisions of it change; 0 if they may not."""
    divisors = []
    node = division
    while node.op in _DIVISIONS and node.src[1].op is Ops.CONST:
        divisors.append((node.op, node.src[1].arg))
        node = node.src[0]
    if node.op is not Ops.RANGE:
        return
    points = found.setdefault(node, set())
    scale = 1
    for op, divisor in reversed(divisors):
        points.add(max(scale * divisor, 0))
        if op is Ops.FLOORDIV:
            scale *= divisor
