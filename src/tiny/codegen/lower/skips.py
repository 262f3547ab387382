"""Loops of a masked sum that need not run: where loops outside of them say that nothing is added.

What is left over of a strided window, and the rows beyond an image's edge, are conditions on loops
of the sum and of its user alone. Such a condition becomes one on how often the next loop inside
runs, and masks are left to those that tell tiles or lanes apart.
"""

from __future__ import annotations

from tiny.codegen.lower.indices import all_of
from tiny.codegen.lower.tiled import TiledKernel
from tiny.dtype import dtypes
from tiny.uop.ops import GroupOp, Ops, UOp
from tiny.uop.passes import compiler_pass

__all__ = ["skip_masked_loops"]


@compiler_pass("skip masked loops", "tiled kernel", "kernel, loops counted by conditions")
def skip_masked_loops(kernel: TiledKernel, sink: UOp) -> UOp:
    """The graph of a tiled kernel, where a sum of WHERE(terms, value, 0) that has such terms is
    REDUCE(WHERE(others, value, 0), its leaves…, terms…)."""
    place: dict[UOp, int] = {}  # of the leaves of loops, in nesting order
    for k, loop in enumerate(kernel.loops):
        place[loop.leaf] = k
        if loop.position is not None:
            place[loop.position] = k
    new: dict[UOp, UOp] = {}
    for node in sink.postorder():
        src = tuple([new[s] for s in node.src])
        value = node.src[0] if node.op is Ops.REDUCE else None
        if value is not None and node.arg.op is Ops.ADD and _is_masked(value):
            innermost = max([place.get(r, -1) for r in node.src[1:]], default=-1)
            terms = list(value.src[0].split_uop(Ops.AND))
            outer = [t for t in terms if innermost >= 0 and _is_outer(t, place, innermost)]
            if outer:
                inner = [new[t] for t in terms if t not in outer]
                added = new[value.src[1]]
                if inner:
                    added = all_of(inner).where(added, new[value.src[2]])
                src = (added, *src[1:], *[new[t] for t in outer])
        new[node] = node if src == node.src else node.replace(src=src)
    return new[sink]


def _is_masked(value: UOp) -> bool:
    return value.op is Ops.WHERE and value.src[2].op is Ops.CONST and value.src[2].arg == 0


def _is_outer(term: UOp, place: dict[UOp, int], innermost: int) -> bool:
    """Whether loops alone determine a condition, the innermost one of the sum not among them."""
    parts = GroupOp.ALU | {Ops.CONST, Ops.DEFINE_VAR}
    return all(
        place.get(n, innermost) < innermost
        if n.op is Ops.RANGE
        else n.op in parts and n.dtype in (dtypes.index, dtypes.bool)
        for n in term.postorder()
    )
