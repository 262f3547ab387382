"""Sums of columns: rows are read as they lie in memory, and the sums are kept in L1.

A sum along the first axis of a big matrix, such as the gradient of a bias or of the weight of a
layer norm, reads each element once. By panels of columns it would jump from row to row for each
few lines; by rows it reads thousands of bytes in a row, at the speed of memory.
"""

from __future__ import annotations

from tiny.codegen.opt.nests import Nest, axes_of
from tiny.codegen.opt.opts import Opt, OptOps

__all__ = ["column_opts"]

LEAST_ROWS = 64  # fewer are soon summed up, however they are read
STEPS = 8  # rows that are added up in registers before the sum in memory
MOST_LINES = 256  # of the body
WIDEST = 8  # vectors side by side
BLOCKS = (1024, 512, 256)  # columns that threads take at once: sums stay in L1


def column_opts(
    nest: Nest, sizes: list[int], full: list[int], far: int, l2_bytes: int
) -> list[Opt]:
    """Opts for a kernel of sums over one axis whose operands are read once; [] if it is no such.

    `full` are the lanes of a vector along each axis, `far` the bytes that rows are apart. The
    blocks of columns, which threads may share, are axis len(sizes).
    """
    own = [k for k in axes_of(nest.own) if sizes[k] > 1]
    whole = [x for x in nest.loads if x.mask == nest.mask]
    if len(own) != 1 or not whole or sizes[own[0]] < LEAST_ROWS:
        return []
    if len(nest.loads) == 2 and len(whole) == 1:  # a row and a matrix: see `streams`
        return []
    (row,) = own
    lanes = [k for k in axes_of(nest.outputs) if whole[0].strides.get(k) == 1]
    if not lanes:
        return []
    column = lanes[0]
    for x in nest.loads:
        is_along = not x.mask >> column & 1 or x.strides.get(column) == 1
        is_far = x.mask != nest.mask or abs(x.strides.get(row) or 0) * x.itemsize >= far
        if not is_along or not is_far or x.gate:
            return []
    if sum(x.size * x.itemsize for x in whole) <= l2_bytes:
        return []
    block = next((n for n in BLOCKS if sizes[column] >= 2 * n), 0)
    if not block:
        return []
    lines = STEPS * (len(nest.loads) + nest.sums + sum(nest.work.values()))
    vectors = WIDEST
    while vectors > 1 and (vectors * lines > MOST_LINES or vectors * nest.sums > WIDEST):
        vectors //= 2
    return [
        Opt(OptOps.VEC, column, vectors * full[column]),
        Opt(OptOps.UNROLL, 0, STEPS),
        Opt(OptOps.BLOCK, column, block),
        Opt(OptOps.SWAP, column, row),
    ]
