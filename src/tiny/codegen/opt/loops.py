"""How the loops of a contraction nest: their order, blocks of a reduction, what is packed where."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from tiny.codegen.opt.cost import Level, NestCost, Operand, Tile, fill_cost, moved
from tiny.codegen.opt.nests import Access, Nest, axes_of
from tiny.codegen.opt.packing import SQUARE
from tiny.codegen.opt.splits import SplitKernel
from tiny.uop.passes import compiler_pass

__all__ = ["Loops", "Plan", "shares_evenly"]

MANY = 16  # iterations that threads share evenly enough, whatever their number
WORTH_CARRYING = 1.2  # times its arithmetic that the best plan takes, before sums are carried
BLOCKS = (2048, 512, 128, 32, 8)  # steps of a reduction between which sums are kept in memory
LEAST_GATED = 1.5  # reads of an element under a condition, from which on packing pays
MOST_OUTSIDE = 48 << 20  # bytes that are packed outside of all loops
LEAST_READS = 4  # of an element, from which on packing pays


def shares_evenly(iterations: int) -> bool:
    """Whether a few threads get about as many iterations each."""
    return iterations >= MANY or (iterations >= 4 and iterations % 2 == 0)


@dataclass(frozen=True)
class Plan:
    """An order of loops, and where operands are packed: (load, number of an axis or None).

    `entries` are the numbers of axes, or of the blocks of one of them: `block` elements of the
    axis `blocked`, 0 for none.
    """

    entries: tuple[int, ...]
    staged: tuple[tuple[int, int | None], ...]
    blocked: int
    block: int
    cost: float  # seconds


class Loops:
    """The loops of a nest whose axes have been split into tiles and lanes."""

    def __init__(
        self,
        kernel: SplitKernel,
        nest: Nest,
        cost: NestCost,
        tile: Tile,
        sizes: list[int],
        beside: Sequence[Access] = (),
    ) -> None:
        self.kernel, self.nest, self.cost, self.tile = kernel, nest, cost, tile
        self.sizes, self.full, self.costs = sizes, cost.full, cost.costs
        self.beside = beside  # what is loaded and stored with its results
        self.parts: dict[tuple[object, ...], tuple[int, float]] = {}  # see `moved`
        self.levels: list[Level] = []  # as they are now
        for k in kernel.nest_order:
            axis = kernel.axes[k]
            if nest.mask >> k & 1 and sizes[k] > axis.step:
                self.levels.append(Level(k, -(-sizes[k] // axis.step), axis.step))
        # lanes that are added up go on along memory, in the innermost loop
        self.levels.sort(key=lambda x: x.axis == tile.lane and bool(nest.own >> x.axis & 1))
        # rows between which memory has what nobody reads take less of a cache where they are packed
        self.with_gaps = frozenset(
            [x.number for x in nest.loads if cost.has_gaps(x) and not cost.is_packed(x, tile.lane)]
        )
        # the outermost loop of the reduction
        self.blocked_axis = next((x.axis for x in self.levels if nest.own >> x.axis & 1), -1)

    def plans(self, seconds: float) -> Iterator[Plan]:
        """Orders of the loops that may be good."""
        nest, tile, levels = self.nest, self.tile, self.levels
        outputs = [x for x in levels if not nest.own >> x.axis & 1]
        reduces = [x for x in levels if nest.own >> x.axis & 1]
        batch = [x for x in outputs if all(load.mask >> x.axis & 1 for load in nest.loads)]
        rest = [x for x in outputs if x not in batch]
        panels = [x for x in rest if x.axis == tile.lane]
        rows = [x for x in rest if x.axis != tile.lane]
        orders = [[*batch, *rest], [*batch, *panels, *rows]]
        orders += [[*batch, *rest[k:], *rest[:k]] for k in range(1, len(rest))]
        found: list[list[Level]] = []
        for order in orders:
            evenly = [x for x in order if shares_evenly(x.count)]
            # of a size known at run time, threads would share steps that are not there
            evenly.sort(key=lambda x: self.kernel.axes[x.axis].size is None)
            # the one that threads will share
            shared = evenly[0] if evenly else max(order, key=lambda x: x.count, default=None)
            if shared is not None and order[0] is not shared:
                order = [shared, *[x for x in order if x is not shared]]
            if order not in found:
                found.append(order)
        plain = [self.plan([*order, *reduces], 0, seconds) for order in found]
        yield from plain
        axis = self.kernel.axes[self.blocked_axis]
        is_first = reduces and reduces[0].axis == self.blocked_axis and axis.size is not None
        is_small = seconds < self.costs.worth_blocking
        if is_small or not is_first or min(p.cost for p in plain) < WORTH_CARRYING * seconds:
            return
        # bytes of a step of a packed panel, a block of which takes a quarter of L2 at most
        panel = tile.lanes * max([x.itemsize for x in nest.loads], default=4)
        for order in found:
            if not order:
                continue
            # the sums are carried from step to step of the outermost loop, or from block to block
            yield self.plan([order[0], reduces[0], *order[1:], *reduces[1:]], 0, seconds)
            for block in BLOCKS:
                if block > BLOCKS[-1] and block * panel > self.kernel.target.l2_bytes // 4:
                    continue
                if block < self.sizes[self.blocked_axis] and block % axis.step == 0:
                    outer = Level(
                        self.blocked_axis, -(-self.sizes[self.blocked_axis] // block), block
                    )
                    inner = Level(self.blocked_axis, block // axis.step, axis.step)
                    left = [inner, *reduces[1:]] if inner.count > 1 else reduces[1:]
                    yield self.plan([order[0], outer, *order[1:], *left], block, seconds)

    def blocked(self, axis: int, block: int, seconds: float) -> Plan:
        """The plan with blocks of an output axis outermost, and what is in one innermost."""
        size, step = self.sizes[axis], self.kernel.axes[axis].step
        outer, inner = Level(axis, -(-size // block), block), Level(axis, block // step, step)
        others = [x for x in self.levels if x.axis != axis]
        reduces = [x for x in others if self.nest.own >> x.axis & 1]
        others = [x for x in others if x not in reduces]
        batch = [x for x in others if all(load.mask >> x.axis & 1 for load in self.nest.loads)]
        rows = [x for x in others if x not in batch]
        return self.plan([*batch, outer, *reduces, *rows, inner], block, seconds, axis)

    @compiler_pass("plan loops", "tile, order of loops", "where operands are packed, and the cost")
    def plan(self, levels: list[Level], block: int, seconds: float, blocked: int = -1) -> Plan:
        """Where operands are packed with loops in an order, and what all of that costs.

        `block` elements are a block of the axis `blocked`, by default of the reduction's.
        """
        blocked = self.blocked_axis if blocked < 0 else blocked
        plan = self.plan_packed(levels, block, seconds, blocked, frozenset())
        if not self.with_gaps:
            return plan
        other = self.plan_packed(levels, block, seconds, blocked, self.with_gaps)
        return min(plan, other, key=attrgetter("cost"))

    def plan_packed(
        self, levels: list[Level], block: int, seconds: float, blocked: int, more: Collection[int]
    ) -> Plan:
        """That plan, with the loads numbered `more` packed besides those that are in any case."""
        kernel, nest, tile, costs, cost = self.kernel, self.nest, self.tile, self.costs, 0.0
        entries, seen = [], False
        for x in levels:
            is_outer = block and x.axis == blocked and not seen
            seen = seen or bool(is_outer)
            entries.append(len(self.sizes) if is_outer else x.axis)
        sizes = dict(enumerate(self.sizes))
        staged: list[tuple[int, int | None]] = []
        operands: list[Operand] = []
        for load in nest.loads:
            at, is_needed = None, self.cost.jumps_far(load, tile)
            if is_needed or load.number in more or self.cost.is_packed(load, tile.lane):
                at, price = self.place(load, levels)
                cost += math.inf if is_needed and at is None else price
                if at is not None:
                    staged.append((load.number, None if at < 0 else entries[at]))
            has_lanes = tile.lane >= 0 and bool(load.mask >> tile.lane & 1)
            is_tight = at is not None and (has_lanes or load.number in more)
            operands.append(Operand(load, is_tight, self.inside(levels, at)))
        operands += [Operand(x, apart=nest.own) for x in self.beside]
        carried = self.carried(levels)
        cost += carried
        # what is moved is moved while something is computed
        moving = moved(operands, levels, sizes, kernel.target, self.parts)
        if carried:  # no condition bounds a loop that carries sums
            seconds /= self.cost.bounded
        else:
            moving *= self.cost.bounded
        cost += max(moving, seconds / costs.cycle) + costs.showing * moving
        if levels and levels[0].count % 2 and not nest.own >> levels[0].axis & 1:
            cost *= 1 + 1 / levels[0].count  # threads seldom are an odd number
        cost *= costs.caution if carried and blocked == self.blocked_axis else 1.0
        return Plan(tuple(entries), tuple(staged), blocked, block, cost * costs.cycle)

    def inside(self, levels: list[Level], at: int | None) -> dict[int, int] | None:
        """How far axes go inside of a loop, None without one."""
        if at is None:
            return None
        extents = dict(enumerate(self.sizes))
        extents.update({x.axis: x.step for x in levels[: at + 1]})
        return extents

    def place(self, load: Access, levels: list[Level]) -> tuple[int | None, float]:
        """The loop at which an operand is packed, -1 for outside all, None for not at all.

        Where it is filled least; of equal ones at the innermost, where it is smallest.
        """
        if load.is_kept:
            return -1, 0.0
        tile = self.tile
        has_lanes = tile.lane >= 0 and load.mask >> tile.lane & 1
        lanes = min(tile.lanes, self.full[tile.lane]) if has_lanes else 1
        reads = 1.0  # in a run of the kernel
        last = max([k for k, x in enumerate(levels) if load.mask >> x.axis & 1], default=-1)
        for x in levels[: last + 1]:
            reads *= x.count
        for axis in axes_of(load.mask):
            a = self.kernel.axes[axis]
            reads *= a.tile * -(-a.lanes // self.full[axis])
        per_read = (
            1.0 if load.is_contiguous(tile.lane) or not has_lanes else self.costs.in_place * lanes
        )
        inside = dict(enumerate(self.sizes))
        fills, best, price = 1, None, reads * (per_read - 0.5) / 2 if per_read > 1 else 0.0
        is_needed = per_read > 1 or bool(load.gate)
        # lanes that lie apart are worth packing even if they are read once
        least = reads * lanes / (1 if per_read > 1 else LEAST_GATED if is_needed else LEAST_READS)
        least = math.inf if load.is_made else least  # those are packed in any case
        capacity = self.kernel.target.l2_bytes // 4 * 3
        depends = False
        for k in range(-1, len(levels)):
            if k >= 0:
                inside[levels[k].axis] = levels[k].step
                fills *= levels[k].count
                depends = depends or bool(load.mask >> levels[k].axis & 1)
                if not depends:
                    continue  # it would be filled outside
            box = load.box(inside)
            filled = box * (fills if depends else 1)
            nbytes = box * load.itemsize
            if nbytes > (capacity if depends else MOST_OUTSIDE) or filled > least:
                continue
            price_of = fill_cost(load, tile.lane, self.costs)
            if price_of == self.costs.fill_across and self.cost.piece(load, inside) < SQUARE:
                price_of = self.costs.fill_apart  # too few to be transposed
            cost = filled * price_of
            if k < 0 and self.kernel.unit is not None:
                cost += nbytes * self.costs.words_handed_over
            elif k < 0:  # as if there were several threads: their number chooses nothing
                cost += self.costs.phase
                if nbytes <= capacity // 2:  # else it lies behind L2 for all of them
                    cost += nbytes * self.costs.handed_over
            if best is None or cost <= price * 1.05:
                best, price = k, cost
        far = (self.costs.far_read - 1) / self.costs.per_cycle * reads
        if best == -1 and not (is_needed or has_lanes or load.is_made) and price > far:
            return None, far  # sooner read from where it lies than from another thread's cache
        if best is None and is_needed:
            price += 2 * reads
        return best, price

    def carried(self, levels: list[Level]) -> float:
        """Cycles to keep sums in memory where a loop of a reduction is outside of outputs'."""
        nest, tile = self.nest, self.tile
        outside = [k for k, x in enumerate(levels) if not nest.own >> x.axis & 1]
        last = outside[-1] if outside else -1
        times = math.prod([x.count for x in levels[:last] if nest.own >> x.axis & 1])
        if times == 1 and not any(nest.own >> x.axis & 1 for x in levels[:last]):
            return 0.0
        first = next(k for k, x in enumerate(levels) if nest.own >> x.axis & 1)
        inside = math.prod([self.sizes[k] for k in axes_of(nest.outputs)])
        for x in levels[:first]:
            inside = inside * x.step // self.sizes[x.axis]
        if nest.sum_bytes * inside * nest.sums > self.kernel.target.l2_bytes // 2:
            return math.inf
        sums = math.prod([self.sizes[k] for k in axes_of(nest.outputs)]) * nest.sums * times
        if tile.lane >= 0 and nest.own >> tile.lane & 1:
            return self.costs.carried_lanes * sums  # each time the lanes are added up
        return self.costs.carried * sums / (self.full[tile.lane] if tile.lane >= 0 else 1)
