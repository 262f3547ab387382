"""Contractions that go once through an operand that no cache holds: a matrix and few rows.

They take as long as that operand takes to come from memory, if it is read in long pieces: reading
begins anew at each jump. Where neighbours are neighbours along an output, the loop over the sum
goes outside, a few of its steps at a time, and the sums of a block of outputs are kept.
"""

from __future__ import annotations

from typing import NamedTuple

from tiny.codegen.opt.cost import NestCost, Tile
from tiny.codegen.opt.loops import Loops, Plan, shares_evenly
from tiny.codegen.opt.nests import Access, Nest, axes_of
from tiny.codegen.opt.splits import SplitKernel

__all__ = ["Stream", "find_stream", "plan_stream"]

STEPS = 8  # of the sum for each time that sums are loaded and stored
MOST_ROWS = 5  # that are computed side by side, with two vectors each
VECTORS_OF_ONE = 4  # of a row by itself
BLOCKS = (4096, 2048, 1024, 512, 256)  # outputs whose sums are kept


class Stream(NamedTuple):
    """How to go through an operand: a tile, and steps along an axis of the reduction."""

    tile: Tile
    axis: int
    steps: int


def find_stream(kernel: SplitKernel, nest: Nest, cost: NestCost, sizes: list[int]) -> Stream | None:
    """What to try where an operand is better read along an output; None for other nests."""
    load = max(cost.streams, key=lambda x: x.size, default=None)
    if load is None or len(nest.loads) < 2:  # see `columns` for what only adds up
        return None
    lanes = [k for k in axes_of(nest.outputs) if load.strides.get(k) == 1]
    own = [k for k in axes_of(nest.own) if sizes[k] >= 4 * STEPS and _jumps(load, k)]
    if not lanes or not own or sizes[lanes[0]] <= BLOCKS[-1]:
        return None
    lane = lanes[0]
    rows = [k for k in axes_of(nest.outputs) if not load.mask >> k & 1 and sizes[k] > 1]
    tile = Tile(lane, VECTORS_OF_ONE * cost.full[lane])
    if rows:
        most = max(rows, key=lambda k: sizes[k])
        # with least work done twice, then as many as there may be
        counts = range(1, min(MOST_ROWS, sizes[most]) + 1)
        count = min(counts, key=lambda n: (-(-sizes[most] // n) * (n + 1), -n))
        tile = Tile(lane, 2 * cost.full[lane], ((most, count),))
    return Stream(tile, own[-1], STEPS)


def _jumps(load: Access, axis: int) -> bool:
    stride = load.strides.get(axis, 0)
    return stride is not None and abs(stride) > 1


def plan_stream(loops: Loops, seconds: float) -> Plan | None:
    """The order of the loops of a stream, and how many outputs are a block. None if too few."""
    nest, tile, sizes = loops.nest, loops.tile, loops.sizes
    step = loops.kernel.axes[tile.lane].step
    size = sizes[tile.lane]
    kept = nest.sum_bytes
    for k in axes_of(nest.outputs & ~(1 << tile.lane)):
        if any(not x.mask >> k & 1 for x in nest.loads):
            kept *= sizes[k]
    most = loops.kernel.target.l2_bytes // 4 // kept
    for block in BLOCKS:
        fits = block <= most and block < size and block % step == 0
        if fits and shares_evenly(-(-size // block)):
            return loops.blocked(tile.lane, block, seconds)
    return None
