"""Opts for a kernel that writes to computed places one after the other.

Steps may change places only along an axis that tells the places apart, so no more than two things
can be chosen: lanes along such an axis where neighbours are neighbours in memory, and threads that
each go through all steps in order, for a part of the places that is theirs.
"""

from __future__ import annotations

from tiny.codegen.opt.constants import costs_of
from tiny.codegen.opt.nests import access_of
from tiny.codegen.opt.opts import Opt, OptOps
from tiny.codegen.opt.splits import SplitKernel

__all__ = ["in_order"]

VECTORS = 4  # side by side
PART = 768  # bytes of a row that a thread takes, at least: so that lines are read in a row
MOST_PARTS = 16


def in_order(kernel: SplitKernel) -> SplitKernel:
    """A copy of an ordered kernel with lanes and threads."""
    kernel = kernel.copy()
    strides = access_of(kernel.ast.src[0].src[0], kernel, -1).strides
    itemsize = kernel.ast.src[0].src[1].dtype.itemsize
    near = [k for k in kernel.free_axes if strides.get(k) == 1]
    steps = kernel.points((1 << len(kernel.axes)) - 1)
    if near:
        steps //= _lanes(kernel, near[0], itemsize)
    costs = costs_of(kernel.target)
    if kernel.target.threads > 1 and steps * costs.place > costs.worth_threads:
        _threads(kernel, near or kernel.free_axes, itemsize)
    return kernel


def _lanes(kernel: SplitKernel, axis: int, itemsize: int) -> int:
    """Choose lanes along an axis; how many a vector has."""
    size, lanes = kernel.axes[axis].size, kernel.target.vector_bytes // itemsize
    if size is None or lanes < 2:
        return 1
    counts = [lanes * n for n in range(VECTORS, 0, -1)]
    for n in [n for n in counts if size % n == 0 or size >= 4 * n or lanes == n <= size]:
        if kernel.try_opt(Opt(OptOps.VEC, axis, n)):
            return lanes
    return 1


def _threads(kernel: SplitKernel, axes: list[int], itemsize: int) -> None:
    """Share the outermost loop if no two of its steps write to one place, else parts of a row."""
    loops = [k for k in kernel.nest_order if kernel.axes[k].has_loop]
    if loops and loops[0] in kernel.free_axes:
        kernel.try_opt(Opt(OptOps.THREAD, loops[0]))
        return
    for axis in axes:
        size, step = kernel.axes[axis].size, kernel.axes[axis].step
        if size is None:
            continue
        parts = min(MOST_PARTS, max(2, size * itemsize // PART))
        parts = 1 << (parts.bit_length() - 1)  # to be shared evenly
        block = -(-size // (parts * step)) * step
        if step <= block < size and kernel.try_opt(Opt(OptOps.BLOCK, axis, block)):
            kernel.try_opt(Opt(OptOps.THREAD, len(kernel.axes) - 1))
            return
