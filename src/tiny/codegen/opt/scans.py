"""Lanes and steps of a kernel with SCANs, whose loop is innermost and goes in order."""

from __future__ import annotations

from tiny.codegen.opt.cost import Tile
from tiny.codegen.opt.nests import Nest, axes_of
from tiny.codegen.opt.splits import SplitKernel

__all__ = ["scan_tile"]

VECTORS = 2  # of one row, whose lanes are combined by themselves: a line at once
ROWS = 4  # vectors of neighbours beside each other, each with a chain of its own
STEPS = 4  # of such chains at once: one operation for all of them is in the wide dtype


def scan_tile(kernel: SplitKernel, nest: Nest) -> Tile:
    """Lanes along the axis where most of what is read and written has neighbours in memory.

    That may be the axis of the SCANs itself. Where it has to go step by step, lanes go along
    another axis, and what is read and written is transposed in registers.
    """
    own = kernel.scanned
    accesses = [*nest.loads, *nest.stores]
    near = {k: sum(x.is_contiguous(k) for x in accesses) for k in axes_of(nest.mask)}
    lane = max(near, key=lambda k: (near[k], k == own))
    across = lane == own and not kernel.scans_lanes
    if across:
        lane = max(near, key=lambda k: (k != own, kernel.points(1 << k)))
        if lane == own:
            return Tile()
    size, full = kernel.axes[lane].size, kernel.vector_lanes(lane)
    if across and full > 1 and size is not None and size >= full:
        return Tile(lane, full, ((own, full),))
    if not near[lane] or full < 2 or full > 1 << 20:
        return Tile()
    vectors = VECTORS if lane == own else ROWS
    while vectors > 1 and size is not None and size < vectors * full:
        vectors //= 2
    steps = kernel.axes[own].size
    if lane == own or steps is None or steps < STEPS:
        return Tile(lane, vectors * full)
    return Tile(lane, vectors * full, ((own, STEPS),))
