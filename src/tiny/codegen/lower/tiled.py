"""A kernel whose ranges have been split into loops, tiles and lanes: what lowering starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tiny.uop.ops import Ops, UOp

__all__ = ["Head", "Loop", "Need", "TiledAxis", "TiledKernel", "axis_masks"]


@dataclass(frozen=True)
class Need:
    """An inequality that holds where an iteration of a loop is needed: part + rest < 0.

    `part` is `factor` times the number of the iteration; with 0 it is about the whole loop. The
    rest is between `low` and `high` but for multiples of `others`, leaves of other loops: (leaf,
    factor, least, most), the last two for where that loop is not open. Where the rest can not be
    more than it needs to be, all of `conditions` hold, places in `TiledKernel.conditions`.
    """

    factor: int
    low: int
    high: int
    others: tuple[tuple[UOp, int, int, int], ...]
    conditions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Head:
    """Where in a line of memory a row begins: at constant + sum(factor * leaf) modulo `line`.

    All are in elements, `line` is a power of two, and the leaves are those of loops.
    """

    line: int
    constant: int
    terms: tuple[tuple[UOp, int], ...]


@dataclass(frozen=True)
class Loop:
    """One loop of an axis; an iteration covers `step` elements of it.

    In the expressions of the kernel the RANGE `leaf` stands for the number of the iteration, and
    `position`, another one, for where it starts if its axis shifts back what would reach beyond
    the end. `axis` is the number of a TiledAxis. Threads share the iterations if `is_thread`.
    Iterations for which one of `needs` does not hold may be left out. With a `head`, iterations
    start where lines of memory do: each that much earlier, but not before the axis does.
    """

    leaf: UOp
    axis: int
    step: int
    position: UOp | None = None
    is_thread: bool = False
    needs: tuple[Need, ...] = ()
    head: Head | None = None


@dataclass(frozen=True)
class TiledAxis:
    """An axis: its size (a node if it is known only at run time), and its leaves inside loops.

    `tile` counts copies side by side, `lane` the lanes of each; an iteration of the innermost
    loop covers all of them. If the axis `shifts`, the last iteration of a loop starts where it
    ends with the axis; else what is left over is done after the loop, by a body of its own.
    """

    size: int | UOp
    shifts: bool
    tile: UOp | None = None
    lane: UOp | None = None


@dataclass(frozen=True)
class TiledKernel:
    """A kernel over three kinds of RANGE, after the Opts: loops, tiles and lanes.

    `loops` are in nesting order. `tiles` (UPCAST and UNROLL, each of a constant size) are in order
    of expansion, outermost first. A VEC range is the lanes of what depends on it; nothing depends
    on two. `strict` keeps each reduction in index order.

    A STAGE is `STAGE(STORE(INDEX(DEFINE_LOCAL, …), value), its loops, tiles and lanes…)`: it
    stands for the memory after the STORE has run for all of those. An INDEX of a DEFINE_LOCAL
    itself reads what an earlier iteration left there. A `SCAN(values…, loop, tile, lane)` names the
    parts of one axis, those that there are; the loop is inside of all others that it depends on.
    """

    sink: UOp
    loops: tuple[Loop, ...]
    axes: tuple[TiledAxis, ...]
    tiles: tuple[UOp, ...]
    strict: bool = False
    scratch_nbytes: int = 0
    shared_nbytes: int = 0
    conditions: tuple[UOp, ...] = ()


def axis_masks(order: Sequence[UOp], bit_of: Mapping[UOp, int]) -> dict[UOp, int]:
    """For each node of a graph, sources first, the set of axes that its value depends on.

    A set is an integer with the bits that `bit_of` gives to RANGEs. A REDUCE does not depend on
    the axes that it reduces, nor a STAGE on those that it is filled over.
    """
    masks: dict[UOp, int] = {}
    for node in order:
        mask = bit_of.get(node, 0)
        for s in node.src:
            mask |= masks[s]
        if node.op is Ops.REDUCE or node.op is Ops.STAGE:
            for r in node.src[1:]:
                mask &= ~bit_of.get(r, 0)
        masks[node] = mask
    return masks
