"""How far apart rows of temporaries lie: not as far as sets of a cache reach.

A kernel that sums down the columns of such a matrix reads from row to row. Where rows begin a
multiple of a page apart, all these lines fall into one set of L1, and a few of L2: what the next
tile would find there is gone. A line more for each row spreads them over all sets.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiny.schedule.bounds import sum_of_loops
from tiny.uop.ops import AxisType, Ops, UOp

__all__ = ["spread_rows"]

LINE = 64  # bytes
REACH = 4096  # bytes: the sets of L1, each with a line
LEAST_ROWS = 16  # more than a set has room for


def spread_rows(
    kernels: Sequence[UOp],
    numbers: Sequence[tuple[int, ...]],
    shapes: dict[int, tuple[int, ...]],
) -> tuple[list[UOp], dict[int, tuple[int, ...]]]:
    """The kernels, and the shapes of what memory they name: rows that are read across get padding.

    `numbers` says for each kernel which memory PARAM k is, `shapes` what may be padded.
    """
    refused: set[int] = set()
    read_across: set[int] = set()
    for kernel, mine in zip(kernels, numbers, strict=True):
        candidates = {k: n for k, n in enumerate(mine) if n in shapes}
        if not candidates:
            continue
        if kernel.op is not Ops.SINK:
            refused.update(candidates.values())
            continue
        for node in kernel.postorder():
            if node.op is Ops.PARAM and node.arg.slot in candidates:
                number = candidates[node.arg.slot]
                if node.arg.shape != shapes[number] or _padded(node) is None:
                    refused.add(number)
            elif node.op is Ops.INDEX and node.src[0].op is Ops.PARAM:
                number = candidates.get(node.src[0].arg.slot, -1)
                if number >= 0:
                    at = node.src[1 : 1 + len(shapes[number])]
                    if any(sum_of_loops(i) is None for i in at):  # places in a row of rows
                        refused.add(number)
                    elif _is_across(at):
                        read_across.add(number)
    chosen = read_across - refused
    if not chosen:
        return list(kernels), shapes
    found, new_shapes = [], dict(shapes)
    for kernel, mine in zip(kernels, numbers, strict=True):
        slots = {k for k, n in enumerate(mine) if n in chosen}
        new: dict[UOp, UOp] = {}
        for node in kernel.postorder() if slots else ():
            src = tuple([new[s] for s in node.src])
            new[node] = node if src == node.src else node.replace(src=src)
            if node.op is Ops.PARAM and node.arg.slot in slots:
                shape = _padded(node)
                assert shape is not None, "only what can be padded is"
                new[node] = node.replace(arg=node.arg._replace(shape=shape))
                new_shapes[mine[node.arg.slot]] = shape
        found.append(new.get(kernel, kernel))
    return found, new_shapes


def _is_across(at: Sequence[UOp]) -> bool:
    """Whether a sum goes from row to row."""
    return any(
        r.op is Ops.RANGE and r.arg.kind is AxisType.REDUCE for i in at[:-1] for r in i.postorder()
    )


def _padded(param: UOp) -> tuple[int, ...] | None:
    """The shape of a matrix with a line more a row; None where rows are not a page apart."""
    *rows, columns = param.arg.shape or (1,)
    itemsize = param.dtype.itemsize
    if max(rows, default=1) < LEAST_ROWS or columns * itemsize % REACH or not columns:
        return None
    return (*rows, columns + LINE // itemsize)
