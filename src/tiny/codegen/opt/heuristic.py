"""A list of Opts for a kernel: candidates, of which a model of the costs picks the cheapest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from tiny.codegen.opt.cost import (
    CYCLE,
    Level,
    NestCost,
    Tile,
    fill_cost,
    moved,
    registers_of,
)
from tiny.codegen.opt.nests import Access, Nest, axes_of, find_nests
from tiny.codegen.opt.opts import KernelOptError, Opt, OptOps
from tiny.codegen.opt.splits import SplitKernel

__all__ = ["choose_opts"]

VECTORS = (1, 2, 3, 4)  # side by side; more are bound by their loads
WIDEST = 16  # lanes of a vector where a target has no registers to fill
MOST_ROWS = 28
ROWS = 12  # that axes should have together to be enough
OVERLAP = 0.2  # part of the time to move data that shows beside the arithmetic
CLOSER = 2  # pairs of axes, for lanes and rows, that are looked at closer
SMALL_BODY = 96  # instructions that unrolling may make of a body
STEPS = 4  # that a reduction is unrolled to: worth 3 to 8 %, more costs compile time only
TRANSPOSED_ROWS = 16  # that are loaded as vectors, and transposed in registers
COPIED_BLOCK = 64  # elements each way, of a copy that transposes: lines of both stay in L1
WORTH_ARRANGING = 2e-5  # seconds of work, from which on loops are put in order and operands packed
WORTH_THREADS = 1e-5  # seconds of work, from which on threads share it
BYTES_PER_SECOND = 2e10
FEW = 4  # iterations that are too few to share evenly
SPLIT_SUM = 1e-4  # seconds of work, from which on threads share a sum of few outputs
SPLIT_PARTS = 32  # that such a sum is split into, at most
MOST_SHARED_SUMS = 1 << 16  # elements of all its parts together


def choose_opts(kernel: SplitKernel) -> tuple[Opt, ...]:
    """Opts for each loop nest, the one with most work first; the kernel is left as it is.

    They do not depend on the number of threads, but for whether threads share an output loop.
    """
    kernel = kernel.copy()
    return _Choice(kernel).opts()


def _try(kernel: SplitKernel, opt: Opt) -> bool:
    try:
        kernel.apply_opt(opt)
    except KernelOptError:
        return False
    return True


_by_cost = attrgetter("cost")


@dataclass(frozen=True)
class _Plan:
    """An order of loops, and where operands are packed: (load, number of an axis or None)."""

    levels: tuple[Level, ...]
    entries: tuple[int, ...]  # the numbers of the axes, or of their blocks
    staged: tuple[tuple[int, int | None], ...]
    block: int  # elements of the first reduced axis, 0 for none
    cost: float


class _Choice:
    """The choices for one kernel, made one after the other."""

    def __init__(self, kernel: SplitKernel) -> None:
        self.kernel = kernel
        self.nests = find_nests(kernel)
        self.sizes = [int(a.range.src[0].vmax) for a in kernel.axes]
        self.full = [min(kernel.vector_lanes(k), WIDEST) for k in range(len(kernel.axes))]
        self.costs = {n: NestCost(n, kernel.nest_order, self.sizes, self.full) for n in self.nests}
        self.has_masks = kernel.target.vector_bytes >= 64

    def opts(self) -> tuple[Opt, ...]:
        """All of them, in the order in which they are applied."""
        tiles: dict[Nest, Tile] = {}
        plain = {n: self.costs[n].seconds(Tile()) for n in self.nests}
        for nest in sorted(self.nests, key=plain.__getitem__, reverse=True):
            tiles[nest] = self.tile(nest, plain)
        for nest in self.nests:
            if nest.sums:
                self.unroll(nest)
        seconds = sum(self.costs[n].seconds(tiles[n]) for n in self.nests)
        main = self.nests[0]
        sums = [n for n in self.nests if n.sums]
        if len(self.nests) == 2 and sums and seconds > WORTH_ARRANGING and self.may_arrange():
            self.arrange(main, tiles[main], seconds)
        elif sums and seconds > WORTH_ARRANGING:
            for nest in sums:
                self.pack(nest, tiles[nest])
        elif len(self.nests) == 1 and seconds > WORTH_ARRANGING:
            self.block_copy(main, tiles[main])
        if not any(o.op is OptOps.THREAD for o in self.kernel.applied_opts):
            self.share(seconds)
        return self.kernel.applied_opts

    # ------------------------------------------------------------ tiles

    def tile(self, nest: Nest, plain: dict[Nest, float]) -> Tile:
        """Apply the cheapest tile of a nest: lanes first, then rows along one or two axes.

        Lanes and rows of outputs are those of all nests that depend on them.
        """
        axes = self.kernel.axes
        taken = [k for k in axes_of(nest.mask) if axes[k].lanes > 1]
        if taken:
            return Tile(taken[0], axes[taken[0]].lanes, self.rows_so_far(nest))
        others = [n for n in self.nests if n is not nest]

        def priced(tile: Tile) -> Tile:
            cost = self.costs[nest].seconds(tile)
            for n in others:
                concerned = [k for k in (tile.lane, *[r for r, _ in tile.rows]) if k >= 0]
                if any(n.mask >> k & 1 for k in concerned):
                    cost += self.costs[n].seconds(tile)
                elif tile.lane >= 0 or not nest.own:
                    cost += plain[n] / WIDEST  # it will have lanes of its own
                else:
                    cost += plain[n]
            return tile._replace(cost=cost)

        best = priced(Tile())
        rows = self.row_axes(nest)
        # each axis for the lanes, in few widths and with few rows, tells which ones to look at
        found: list[Tile] = []
        for lane in axes_of(nest.mask):
            widths = self.lane_counts(lane)
            if not widths or not self.kernel.allows(Opt(OptOps.VEC, lane, widths[0])):
                continue
            for n in widths[:2]:
                plain_tile = priced(Tile(lane, n))
                found.append(plain_tile)
                found += [
                    priced(plain_tile._replace(rows=((row, count),)))
                    for row in rows
                    if row != lane
                    for count in self.row_counts(nest, plain_tile, row)[:2]
                ]
        found.sort(key=_by_cost)
        seen: set[tuple[int, int]] = set()
        for tile in found:
            best = min(best, tile, key=_by_cost)
            key = tile.lane, tile.rows[0][0] if tile.rows else -1
            if key in seen or len(seen) == CLOSER:
                continue
            seen.add(key)
            for n in self.lane_counts(tile.lane):
                wide = tile._replace(lanes=n, rows=())
                if not tile.rows:
                    best = min(best, priced(wide), key=_by_cost)
                    continue
                for count in self.row_counts(nest, wide, key[1]):
                    best = min(best, priced(wide._replace(rows=((key[1], count),))), key=_by_cost)
        if best.rows:
            ((row, most),) = best.rows
            for second in rows:
                for a in sorted({most, *[n for n in (2, 3, 4, 5, 7, 8) if n < most]}):
                    tile = best._replace(rows=((row, a),))
                    for b in (
                        self.row_counts(nest, tile, second)[:2]
                        if second not in (row, best.lane)
                        else ()
                    ):
                        both = priced(best._replace(rows=((row, a), (second, b))))
                        best = min(best, both, key=_by_cost)
        if best.lane >= 0:
            _try(self.kernel, Opt(OptOps.VEC, best.lane, best.lanes))
        for axis, count in best.rows:
            _try(self.kernel, Opt(OptOps.UPCAST, axis, count))
        return best

    def rows_so_far(self, nest: Nest) -> tuple[tuple[int, int], ...]:
        axes = self.kernel.axes
        return tuple([(k, axes[k].tile) for k in axes_of(nest.mask) if axes[k].tile > 1])

    def lane_counts(self, number: int) -> list[int]:
        """Lanes that an axis can have: whole vectors, the last one with idle lanes if need be.

        Parts of a vector are powers of two: others are taken apart by the compiler, one by one.
        """
        axis, full = self.kernel.axes[number], self.full[number]
        if axis.size is None or axis.step > 1 or axis.size < 2:
            return []
        must_divide = self.kernel.is_in_place and not axis.is_reduce and not self.has_masks
        counts = [
            v * full
            for v in VECTORS
            if v * full <= axis.size or (self.has_masks and (v - 1) * full < axis.size)
        ]
        size = axis.size
        parts = [
            n for n in (8, 4, 2) if n < full and (n <= size or (self.has_masks and n < 2 * size))
        ]
        if size <= full // 2:
            counts = [n for n in counts if n <= size]
        counts += parts
        counts = [n for n in counts if not (must_divide and size % n)]
        # least waste first, then widest
        return sorted(counts, key=lambda n: (-(-size // n) * max(n, full), -n))

    def row_axes(self, nest: Nest) -> list[int]:
        """Output axes along which neighbours use something that is loaded once for them.

        For a copy those along which it reads: its tile is transposed.
        """
        outputs = nest.mask & ~nest.own
        if nest.sums:
            # of those that share the same loads, the two whose neighbours are the nearest
            alike: dict[int, list[int]] = {}
            for k in axes_of(outputs):
                shared = sum(1 << n for n, x in enumerate(nest.loads) if not x.mask >> k & 1)
                if shared and self.sizes[k] > 1:
                    alike.setdefault(shared, []).append(k)
            found = []
            for axes in alike.values():
                axes.sort(key=lambda k: sum(abs(x.strides.get(k, 0) or 0) for x in nest.loads))
                found += axes[: 2 if math.prod(self.sizes[k] for k in axes[:2]) >= ROWS else 3]
            return found
        stores = [s for s in nest.stores if s.number < 0]
        return [
            k
            for k in axes_of(outputs)
            if any(x.is_contiguous(k) for x in nest.loads)
            and not any(s.is_contiguous(k) for s in stores)
        ]

    def row_counts(self, nest: Nest, tile: Tile, number: int) -> list[int]:
        """How many rows there may be: as many as registers hold, or few less without waste."""
        axis = self.kernel.axes[number]
        size = axis.size
        if size is None or axis.step > 1 or size < 2:
            return []
        if not nest.sums:
            return [n for n in (TRANSPOSED_ROWS,) if n <= size]
        free = registers_of(self.kernel.target) - 1
        most = min(self.costs[nest].most_rows(tile, free), size, MOST_ROWS)
        # the largest of those that cover the axis in as many tiles
        counts = {-(-size // -(-size // n)) for n in range(max(2, most // 2), most + 1)}
        if self.kernel.is_in_place:
            counts = {n for n in counts if size % n == 0}
        return sorted(counts, reverse=True)[:6]

    # ------------------------------------------------------------ unrolling

    def unroll(self, nest: Nest) -> None:
        """Unroll the innermost loops of a reduction: short ones whole, long ones a few steps."""
        kernel = self.kernel
        copies = 1
        for number in axes_of(nest.mask):
            axis = kernel.axes[number]
            copies *= axis.tile * -(-axis.lanes // self.full[number])
        body = copies * (sum(nest.work.values()) + len(nest.loads))
        steps = 1
        for number in reversed(kernel.nest_order):
            axis = kernel.axes[number]
            if not nest.own >> number & 1 or axis.lanes > 1:
                continue
            if axis.size is None or axis.step > 1:
                return
            whole = axis.size <= 9 and steps * axis.size * body <= SMALL_BODY * 2
            some = [n for n in (STEPS, 3, 2) if axis.size % n == 0 or axis.size >= 8 * n]
            some = [n for n in some if steps * n * body <= SMALL_BODY]
            n = axis.size if whole else next(iter(some), 1)
            if n == 1 or not _try(kernel, Opt(OptOps.UNROLL, number - kernel.first_reduce, n)):
                return
            steps *= n
            if n < axis.size or steps >= STEPS:
                return

    # ------------------------------------------------------------ order, blocks, packing

    def levels(self, nest: Nest) -> list[Level]:
        """The loops of a nest as they are now."""
        found = []
        for k in self.kernel.nest_order:
            axis = self.kernel.axes[k]
            if nest.mask >> k & 1 and self.sizes[k] > axis.step:
                found.append(Level(k, -(-self.sizes[k] // axis.step), axis.step))
        return found

    def arrange(self, nest: Nest, tile: Tile, seconds: float) -> None:
        """Put the loops of a contraction in order, split a long reduction, and pack operands."""
        kernel = self.kernel
        best = min(self.plans(nest, tile, seconds), key=_by_cost, default=None)
        if best is None:
            return
        if best.block:
            first = next(k for k in best.entries if k >= len(self.sizes))
            blocked = self.blocked_axis(nest)
            if not _try(kernel, Opt(OptOps.BLOCK, blocked, best.block)):
                return
            assert first == len(kernel.axes) - 1
        self.order_loops(best.entries)
        if kernel.target.threads > 1 and seconds > WORTH_THREADS:
            first = best.entries[0]
            if not kernel.axes[first].is_reduce:
                _try(kernel, Opt(OptOps.THREAD, first))
        for number, axis in best.staged:
            _try(kernel, Opt(OptOps.STAGE, axis, number))

    def may_arrange(self) -> bool:
        """Whether loops may change places: nothing is read that is written, sums need no order."""
        return not self.kernel.is_in_place and not self.kernel.strict

    def pack(self, nest: Nest, tile: Tile) -> None:
        """Pack the operands of a nest whose loops stay as they are."""
        levels = self.levels(nest)
        for load in nest.loads:
            if self.costs[nest].is_packed(load, tile.lane):
                at, _ = self.place(nest, load, tile, levels)
                if at is not None:
                    axis = None if at < 0 else levels[at].axis
                    _try(self.kernel, Opt(OptOps.STAGE, axis, load.number))

    def order_loops(self, entries: Sequence[int]) -> None:
        """Exchange loops until these are in order, in the places that they have together."""
        kernel = self.kernel
        places = sorted(kernel.nest_order.index(e) for e in entries)
        for place, entry in zip(places, entries, strict=True):
            there = kernel.nest_order[place]
            if there != entry and not _try(kernel, Opt(OptOps.SWAP, there, entry)):
                return

    def blocked_axis(self, nest: Nest) -> int:
        """The outermost loop of a reduction."""
        return next(k for k in self.kernel.nest_order if nest.own >> k & 1 and self.sizes[k] > 1)

    def plans(self, nest: Nest, tile: Tile, seconds: float) -> Iterator[_Plan]:
        """Orders of the loops that may be good."""
        levels = self.levels(nest)
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
            shared = next((x for x in order if x.count >= FEW), None)
            if shared is not None and order[0] is not shared:
                order = [shared, *[x for x in order if x is not shared]]
            if order not in found:
                found.append(order)
        first = self.blocked_axis(nest) if reduces else -1
        for order in found:
            yield self.plan(nest, tile, [*order, *reduces], 0, seconds)
            if not reduces or reduces[0].axis != first or not order:
                continue
            axis = self.kernel.axes[first]
            if axis.size is None:
                continue
            # the sums are carried from step to step of the outermost loop, or from block to block
            yield self.plan(
                nest, tile, [order[0], reduces[0], *order[1:], *reduces[1:]], 0, seconds
            )
            for block in (2048, 512, 128, 32, 8):
                if block < axis.size and block % axis.step == 0:
                    outer = Level(first, -(-axis.size // block), block)
                    inner = Level(first, block // axis.step, axis.step)
                    left = [inner, *reduces[1:]] if inner.count > 1 else reduces[1:]
                    yield self.plan(
                        nest, tile, [order[0], outer, *order[1:], *left], block, seconds
                    )

    def plan(
        self, nest: Nest, tile: Tile, levels: list[Level], block: int, seconds: float
    ) -> _Plan:
        """Where operands are packed with loops in an order, and what all of that costs."""
        kernel, cost = self.kernel, 0.0
        entries, seen = [], False
        for x in levels:
            is_outer = block and x.axis == self.blocked_axis(nest) and not seen
            seen = seen or bool(is_outer)
            entries.append(len(self.sizes) if is_outer else x.axis)
        sizes = dict(enumerate(self.sizes))
        staged: list[tuple[int, int | None]] = []
        for load in nest.loads:
            if self.costs[nest].is_packed(load, tile.lane):
                at, price = self.place(nest, load, tile, levels)
                cost += price
                if at is not None:
                    staged.append((load.number, None if at < 0 else entries[at]))
        cost += self.carried(nest, tile, levels)
        # what is moved is moved while something is computed
        moving = moved(nest.loads, levels, sizes, kernel.target)
        cost += max(moving, seconds / CYCLE) + OVERLAP * moving
        return _Plan(tuple(levels), tuple(entries), tuple(staged), block, cost * CYCLE)

    def place(
        self, nest: Nest, load: Access, tile: Tile, levels: list[Level]
    ) -> tuple[int | None, float]:
        """The loop at which an operand is packed, -1 for outside all, None for not at all.

        Where it is filled least; of equal ones at the innermost, where it is smallest.
        """
        has_lanes = tile.lane >= 0 and load.mask >> tile.lane & 1
        lanes = min(tile.lanes, self.full[tile.lane]) if has_lanes else 1
        reads = 1.0  # in a run of the kernel
        last = max([k for k, x in enumerate(levels) if load.mask >> x.axis & 1], default=-1)
        for x in levels[: last + 1]:
            reads *= x.count
        for axis in axes_of(load.mask):
            a = self.kernel.axes[axis]
            reads *= a.tile * -(-a.lanes // self.full[axis])
        per_read = 1.0 if load.is_contiguous(tile.lane) or not has_lanes else 3.0 * lanes
        inside = dict(enumerate(self.sizes))
        fills, best, price = 1, None, reads * (per_read - 0.5) / 2 if per_read > 1 else 0.0
        is_needed = per_read > 1 or bool(load.gate)
        least = reads * lanes / REUSE_OF_PACKED
        capacity = self.kernel.target.l2_bytes // 2
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
            if nbytes > (capacity if depends else 64 * capacity) or filled > least:
                continue
            cost = filled * fill_cost(load, tile.lane)
            if best is None or cost <= price * 1.05:
                best, price = k, cost
        if best is None and is_needed:
            price += reads
        return best, price

    def carried(self, nest: Nest, tile: Tile, levels: list[Level]) -> float:
        """Cycles to keep sums in memory where a loop of a reduction is outside of outputs'."""
        outside = [k for k, x in enumerate(levels) if not nest.own >> x.axis & 1]
        last = outside[-1] if outside else -1
        times = math.prod([x.count for x in levels[:last] if nest.own >> x.axis & 1])
        if times == 1 and not any(nest.own >> x.axis & 1 for x in levels[:last]):
            return 0.0
        first = next(k for k, x in enumerate(levels) if nest.own >> x.axis & 1)
        inside = math.prod([self.sizes[k] for k in axes_of(nest.outputs)])
        for x in levels[:first]:
            inside = inside * x.step // self.sizes[x.axis]
        if 4 * inside * nest.sums > self.kernel.target.l2_bytes // 2:
            return math.inf
        sums = math.prod([self.sizes[k] for k in axes_of(nest.outputs)]) * nest.sums * times
        if tile.lane >= 0 and nest.own >> tile.lane & 1:
            return 6.0 * sums  # each time the lanes are added up
        return 3.0 * sums / self.full[tile.lane] if tile.lane >= 0 else 3.0 * sums

    # ------------------------------------------------------------ copies

    def block_copy(self, nest: Nest, tile: Tile) -> None:
        """Go block by block through a copy that transposes, so that lines are used whole."""
        kernel = self.kernel
        rows = [k for k, n in tile.rows if n == TRANSPOSED_ROWS]
        if not rows or tile.lane < 0:
            return
        lane, row = tile.lane, rows[0]
        blocks = []
        for axis in (row, lane):
            a = kernel.axes[axis]
            is_long = self.sizes[axis] > 2 * COPIED_BLOCK and COPIED_BLOCK % a.step == 0
            if is_long and _try(kernel, Opt(OptOps.BLOCK, axis, COPIED_BLOCK)):
                blocks.append(len(kernel.axes) - 1)
        if blocks:
            places = [k for k in kernel.nest_order if k in (row, lane, *blocks)]
            inner = [k for k in places if k not in blocks]
            self.order_loops([*[k for k in places if k in blocks], *inner])

    # ------------------------------------------------------------ threads

    def share(self, seconds: float) -> None:
        """Let threads share the outermost loop that all depends on, or a sum of few outputs."""
        kernel = self.kernel
        read = sum(x.size * x.itemsize for n in self.nests for x in (*n.loads, *n.stores))
        seconds += read / BYTES_PER_SECOND
        if seconds < WORTH_THREADS:
            return
        # what does not depend on the axis would be computed again in each iteration
        common = ~0
        for nest in self.nests:
            common &= nest.mask
        counts: dict[int, int] = {}
        for k in kernel.nest_order:
            axis = kernel.axes[k]
            base = k if axis.blocks_of < 0 else axis.blocks_of
            if not axis.is_reduce and common >> base & 1:
                size = axis.inner_size if axis.blocks_of < 0 else axis.size
                step = axis.step if axis.blocks_of < 0 else 1
                counts[k] = 1 << 20 if size is None else -(-size // step)
        outer = next((k for k, n in counts.items() if n >= FEW), None)
        main = self.nests[0]
        results = math.prod([self.sizes[k] for k in axes_of(main.outputs)])
        is_long = seconds > SPLIT_SUM and results * SPLIT_PARTS <= MOST_SHARED_SUMS
        is_one_sum = outer is None and len(self.nests) == 2 and main.sums
        if is_one_sum and is_long and self.split_sum(main):
            return
        if kernel.target.threads > 1 and counts:
            outer = max(counts, key=counts.__getitem__) if outer is None else outer
            if counts[outer] > 1:
                _try(kernel, Opt(OptOps.THREAD, outer))

    def split_sum(self, nest: Nest) -> bool:
        """Share the outermost loop of a reduction in blocks, whose sums are added up later."""
        kernel = self.kernel
        number = max(axes_of(nest.own), key=lambda k: self.levels_count(k))
        axis = kernel.axes[number]
        if axis.size is None:
            return False
        steps = self.levels_count(number)
        block = -(-steps // SPLIT_PARTS) * axis.step
        if block < 2 or block >= axis.size or not _try(kernel, Opt(OptOps.BLOCK, number, block)):
            return False
        return _try(kernel, Opt(OptOps.THREAD, len(kernel.axes) - 1))

    def levels_count(self, number: int) -> int:
        """How many iterations the loop of an axis has."""
        return -(-self.sizes[number] // self.kernel.axes[number].step)


REUSE_OF_PACKED = 4  # reads of an element, from which on packing pays
