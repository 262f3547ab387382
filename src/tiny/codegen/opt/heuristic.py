"""A list of Opts for a kernel: candidates, of which a model of the costs picks the cheapest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

from tiny.codegen.opt.columns import column_opts
from tiny.codegen.opt.cost import LINE, REUSE, Tile, registers_of
from tiny.codegen.opt.lodging import find_lodging
from tiny.codegen.opt.loops import Loops, Plan, shares_evenly
from tiny.codegen.opt.nests import Access, Nest, axes_of
from tiny.codegen.opt.opts import Opt, OptOps
from tiny.codegen.opt.ordered import in_order
from tiny.codegen.opt.scans import scan_tile
from tiny.codegen.opt.splits import SplitKernel
from tiny.codegen.opt.streams import find_stream, plan_stream
from tiny.codegen.opt.tiles import TRANSPOSED_ROWS, Tiles
from tiny.helpers import TC, TC_OPT, TC_SELECT
from tiny.uop.ops import Ops, UOp
from tiny.uop.passes import compiler_pass

__all__ = ["choose_opts", "opts_beside_unit", "with_chosen_opts"]

SMALL_BODY = 150  # instructions that unrolling may make of a body
ENOUGH_COPIES = 8  # sums side by side, that need no unrolling to keep the arithmetic busy
ROWS_OF_WINDOW = 32  # and vectors, up to which all steps of a window are unrolled
SHORT_LOOP = 3  # iterations, of a loop that is better none
STEPS = 4  # that a reduction is unrolled to: worth 3 to 8 %, more costs compile time only
COPIED_BLOCK = 64  # elements each way, of a copy that transposes: lines of both stay in L1
NEARLY = 1.5  # times the cost of the best tile, up to which others are planned as well
NEARLY_SMALL = 1.7  # the same of small kernels, where packing costs as much as the sums
ALIKE = 0.999  # times the cost of a plan, that another has to be below
MOST_PLANNED = 3
# Bytes of a row both ends of which are no whole lines: to store to one that has just gone past the
# caches takes half a microsecond, as long as 10 KB.
LONG_ROW = 1 << 16
SHARED = 2  # threads at least share the arithmetic of much memory, which is not faster for them
PHASES = 3  # times the work that is worth threads, which wait for each other between phases
SPLIT_PARTS = 32  # that such a sum is split into, at most
MOST_SHARED_SUMS = 1 << 16  # elements of all its parts together

_by_cost = attrgetter("cost")


def choose_opts(kernel: SplitKernel) -> tuple[Opt, ...]:
    """Opts for each loop nest, the one with most work first; the kernel is left as it is.

    They do not depend on the number of threads, but for whether threads share an output loop, and
    for the blocks that they share of writes to computed places. Values do not depend on it.
    """
    return with_chosen_opts(kernel).applied_opts


@compiler_pass("choose Opts", "axes", "a list of Opts, applied")
def with_chosen_opts(kernel: SplitKernel) -> SplitKernel:
    """A copy of a kernel to which those Opts have been applied."""
    if kernel.is_ordered:
        return in_order(kernel)
    choice = _Choice(kernel)
    return choice.with_unit() or choice.with_opts()


def opts_beside_unit(kernel: SplitKernel) -> tuple[Opt, ...]:
    """Opts for a kernel whose sum a matrix unit computes, which is the only Opt that it has."""
    choice = _Choice(kernel)
    if not (choice.is_contraction and choice.multiplication(choice.nests[0])):
        return ()
    return choice.kernel.applied_opts[len(kernel.applied_opts) :]


def _split(kernel: SplitKernel, tile: Tile) -> None:
    """Apply a tile."""
    if tile.lane >= 0:
        kernel.try_opt(Opt(OptOps.VEC, tile.lane, tile.lanes))
    for axis, count in tile.rows:
        kernel.try_opt(Opt(OptOps.UPCAST, axis, count))


def _has_reuse(nest: Nest) -> bool:
    """Whether it sums products of operands, each of which has an axis that another lacks."""
    masks = [x.mask & nest.mask for x in nest.loads]
    return len(masks) > 1 and all(any(m & ~other for m in masks) for other in masks)


class _Choice:
    """The choices for one kernel, made one after the other."""

    def __init__(self, kernel: SplitKernel) -> None:
        self.kernel = kernel.copy()
        self.known = Tiles(self.kernel)
        self.nests, self.sizes, self.full = self.known.nests, self.known.sizes, self.known.full
        self.costs = self.known.constants

    @property
    def is_contraction(self) -> bool:
        """Whether there is one sum, nothing is read that is written, and sums need no order."""
        main = self.nests[0]
        is_one_sum = len(self.nests) == 2 and sum(n.sums > 0 for n in self.nests) == 1
        # one whose users have loops of their own gets lanes for those as well
        is_one_sum = is_one_sum and (not self.nests[1].mask & ~main.mask or _has_reuse(main))
        return is_one_sum and not self.kernel.is_in_place and not self.kernel.strict

    def with_unit(self) -> SplitKernel | None:
        """The kernel with those for a matrix unit; None where there is none that pays."""
        if not (TC and self.kernel.target.units and self.is_contraction):
            return None
        cost = self.known.costs[self.nests[0]]
        if TC == 1 and cost.is_bound_by_memory:
            return None
        use = int(TC_SELECT), int(TC_OPT), int(TC)
        best, axis, choices = None, 0, 1
        least = math.inf
        while axis < choices:  # the first, and the last one: lanes along the reduction
            trial = self.kernel.copy()
            if not trial.try_opt(Opt(OptOps.TC, axis, use)):
                break
            if axis == 0 and TC != 2:
                least = self.known.tiles(self.nests[0], self.kernel)[0].cost
            choices = trial.unit_choices
            axis = choices - 1 if axis < choices - 1 else choices
            other = _Choice(trial)
            nest = other.nests[0]
            points = other.known.costs[nest].points
            # words are made of elements for those that use them several times
            if TC == 1 and any(x.is_made and points < REUSE * x.size for x in nest.loads):
                continue
            price = other.known.tiles(nest, trial)[0].cost
            if other.is_contraction and price < least:
                best, least = other, price
        if best is None or not best.multiplication(best.nests[0]):
            return None
        return best.kernel

    def multiplication(self, nest: Nest) -> bool:
        """Choose all else for a sum that a matrix unit computes. False if it is small."""
        use = self.kernel.unit
        if use is None or not use.registers:
            return self.contraction(nest)
        kernel, unit = self.kernel, use.unit
        seconds = self.known.costs[nest].seconds(Tile(use.n, unit.n))
        length = kernel.plain.axes[use.m].range.src[0].vmax
        if seconds < self.costs.worth_arranging or 2 * length <= unit.m:
            return False
        # as many sums as there are registers for, beside a row of operands and one more
        rows, columns = max(
            [
                (r, c)
                for r in range(1, unit.registers)
                for c in range(1, unit.registers)
                if r * c + r + c <= unit.registers
            ],
            key=lambda x: (x[0] * x[1] / (x[0] + x[1]), x[0]),
        )
        for axis, n in ((use.m, rows), (use.n, columns)):
            while n > 1 and not kernel.try_opt(Opt(OptOps.UPCAST, axis, n)):
                n -= 1
        outputs = [k for k in kernel.nest_order if not nest.own >> k & 1]
        self.order_loops(sorted(outputs, key=lambda k: (k == use.m, k == use.n)))
        self.share(seconds)
        return True

    def with_opts(self) -> SplitKernel:
        """The kernel with all of them, in the order in which they are applied."""
        if self.kernel.scanned >= 0:
            return self.scan()
        main = self.nests[0]
        may_arrange = not self.kernel.is_in_place and not self.kernel.strict
        if self.is_contraction and (self.columns(main) or self.contraction(main)):
            return self.kernel
        seconds = 0.0
        # for rows that all nests share: once it is known which loop threads share
        packed: list[tuple[Nest, Tile]] = []
        rows = self.known.shared_rows(self.kernel) if may_arrange else None
        if rows is not None:
            self.kernel.try_opt(Opt(OptOps.UPCAST, *rows))
        for nest in sorted(self.nests, key=self.known.plain.__getitem__, reverse=True):
            tile = self.tile(nest)
            if nest.sums:
                self.unroll(self.kernel, nest)
            cost = self.known.costs[nest].seconds(tile)
            seconds += cost
            if nest.sums and cost > self.costs.worth_arranging:
                if rows is None:
                    self.pack(nest, tile)
                else:
                    packed.append((nest, tile))
            if len(self.nests) == 1 and cost > self.costs.worth_arranging:
                self.block_copy(nest, tile)
        self.fill_gaps()
        self.share(seconds)
        for nest, tile in packed:
            self.pack(nest, tile)
        self.stream(seconds)
        return self.kernel

    def scan(self) -> SplitKernel:
        """The kernel with those for SCANs."""
        nest = self.nests[-1]
        tile = scan_tile(self.kernel, nest)
        _split(self.kernel, tile)
        seconds = self.known.costs[nest].seconds(tile)
        self.share(seconds)
        self.stream(seconds)
        return self.kernel

    def fill_gaps(self) -> None:
        """Two neighbours at once where stores along lanes would leave out every other one."""
        axes = self.kernel.axes
        for store in self.nests[-1].stores:
            lanes = [k for k, step in store.strides.items() if axes[k].lanes > 1 and step == 2]
            between = [k for k, step in store.strides.items() if step == 1 and axes[k].size == 2]
            if lanes and between and axes[between[0]].step == 1:
                self.kernel.try_opt(Opt(OptOps.UPCAST, between[0], 2))

    def tile(self, nest: Nest) -> Tile:
        """Apply the cheapest tile of a nest, unless it has got lanes from another one."""
        axes = self.kernel.axes
        taken = [k for k in axes_of(nest.mask) if axes[k].lanes > 1]
        if taken:
            rows = tuple([(k, axes[k].tile) for k in axes_of(nest.mask) if axes[k].tile > 1])
            return Tile(taken[0], axes[taken[0]].lanes, rows)
        best = self.known.tiles(nest, self.kernel)[0]
        _split(self.kernel, best)
        return best

    # ------------------------------------------------------------ unrolling

    def unroll(self, kernel: SplitKernel, nest: Nest) -> None:
        """Unroll the innermost loops of a reduction: short ones whole, long ones a few steps.

        Enough sums side by side keep the arithmetic busy by themselves. Then it is worth it for a
        loop of very few iterations, whose end is hard to foresee, and for one that is alone.
        """
        own = [k for k in kernel.nest_order if nest.own >> k & 1 and self.sizes[k] > 1]
        copies = 1
        for number in axes_of(nest.mask):
            axis = kernel.axes[number]
            copies *= axis.tile * -(-axis.lanes // self.full[number])
        axes = [kernel.axes[k] for k in own]
        is_known = all(a.step == 1 and a.size is not None for a in axes)
        if self.known.costs[nest].is_window and is_known and copies <= ROWS_OF_WINDOW:
            for number in own:
                size = self.sizes[number]
                kernel.try_opt(Opt(OptOps.UNROLL, number - kernel.first_reduce, size))
            return
        is_short = own and self.sizes[own[-1]] <= SHORT_LOOP
        if copies >= ENOUGH_COPIES and (len(nest.loads) == 1 or not (is_short or len(own) == 1)):
            return
        body = copies * sum(nest.work.values()) + sum(
            math.prod([kernel.axes[k].tile for k in axes_of(x.mask)]) for x in nest.loads
        )
        most = STEPS if copies >= ENOUGH_COPIES else ENOUGH_COPIES // copies
        steps = 1
        for number in reversed(own):
            axis = kernel.axes[number]
            if axis.lanes > 1:
                continue
            if axis.step > 1:
                return
            size = self.sizes[number]
            divides = axis.size or 1  # not, if it is known only at run time
            whole = axis.size is not None and size <= 9 and steps * size * body <= SMALL_BODY * 2
            some = [n for n in (4, 3, 2) if divides % n == 0 or size >= 8 * n]
            some = [n for n in some if n <= most and steps * n * body <= SMALL_BODY]
            n = size if whole else next(iter(some), 1)
            if copies + self.kept(kernel, nest, number, n) > registers_of(kernel.target) - 4:
                return
            if n == 1 or not kernel.try_opt(Opt(OptOps.UNROLL, number - kernel.first_reduce, n)):
                return
            steps *= n
            if n < size or steps >= STEPS or copies >= ENOUGH_COPIES:
                return

    def kept(self, kernel: SplitKernel, nest: Nest, number: int, steps: int) -> int:
        """How many values steps of a window share with neighbours, which keep them in registers."""
        rows = sum(1 << k for k, a in enumerate(kernel.axes) if a.tile > 1)
        return sum(
            steps - 1 + max(kernel.axes[k].tile for k in axes_of(rows & x.mask))
            for x in nest.loads
            if x.shares_dim(number, rows)
        )

    # ------------------------------------------------------------ order, blocks, packing

    def columns(self, nest: Nest) -> bool:
        """Sum columns up row by row, if that is what it is. False if it is not."""
        trial, target = self.kernel.copy(), self.kernel.target
        opts = column_opts(nest, self.sizes, self.full, self.costs.far, target.l2_bytes)
        if not opts or not all(trial.try_opt(opt) for opt in opts):
            return False
        if target.threads > 1:
            trial.try_opt(Opt(OptOps.THREAD, len(self.sizes)))
        self.kernel = trial
        return True

    def contraction(self, nest: Nest) -> bool:
        """Choose tile, order, blocks and packing of one sum together. False if it is small."""
        tiles = self.known.tiles(nest, self.kernel)
        if tiles[0].cost < self.costs.worth_arranging:
            return False
        if tiles[0].cost < self.costs.worth_planning:
            tiles = tiles[:1]
        cost = self.known.costs[nest]
        # where operands are packed, and what that costs, is part of the plan
        seconds = {tile: tile.cost - cost.packing(tile) - cost.jumping(tile) for tile in tiles}
        least = min(seconds.values())
        most = (NEARLY if least >= self.costs.worth_blocking else NEARLY_SMALL) * least
        beside = [x for n in self.nests if n is not nest for x in (*n.loads, *n.stores)]
        best: tuple[Loops, Plan] | None = None
        planned = MOST_PLANNED + bool(cost.idle)  # for rows that are apart
        for tile in [t for t in tiles if seconds[t] <= most][:planned]:
            trial = self.kernel.copy()
            _split(trial, tile)
            self.unroll(trial, nest)
            loops = Loops(trial, nest, cost, tile, self.sizes, beside)
            apart = self.costs.apart if cost.are_apart(tile) else 1.0
            for plan in loops.plans(apart * seconds[tile]):
                # of those that are about alike the first: whole batches go to threads
                if best is None or plan.cost < ALIKE * best[1].cost:
                    best = loops, plan
        streamed = self.streamed(nest, beside)
        if streamed is not None and (best is None or streamed[1].cost < best[1].cost):
            best = streamed
        if best is None:
            return False
        loops, plan = best
        self.kernel = loops.kernel
        if plan.block:
            self.kernel.try_opt(Opt(OptOps.BLOCK, plan.blocked, plan.block))
        self.order_loops(plan.entries)
        self.share(plan.cost)
        for number, axis in plan.staged:
            self.kernel.try_opt(Opt(OptOps.STAGE, axis, number))
        return True

    def streamed(self, nest: Nest, beside: list[Access]) -> tuple[Loops, Plan] | None:
        """A plan that reads an operand which no cache holds in long pieces."""
        stream = find_stream(self.kernel, nest, self.known.costs[nest], self.sizes)
        if stream is None:
            return None
        trial = self.kernel.copy()
        _split(trial, stream.tile)
        trial.try_opt(Opt(OptOps.UNROLL, stream.axis - trial.first_reduce, stream.steps))
        cost = self.known.costs[nest]
        loops = Loops(trial, nest, cost, stream.tile, self.sizes, beside)
        seconds = cost.seconds(stream.tile) - cost.packing(stream.tile) - cost.jumping(stream.tile)
        plan = plan_stream(loops, seconds)
        return None if plan is None else (loops, plan)

    def pack(self, nest: Nest, tile: Tile) -> None:
        """Pack the operands of a nest whose loops stay as they are."""
        cost = self.known.costs[nest]
        loops = Loops(self.kernel, nest, cost, tile, self.sizes)
        for load in nest.loads:
            if cost.is_packed(load, tile.lane):
                at, _ = loops.place(load, loops.levels)
                if at is not None:
                    axis = None if at < 0 else loops.levels[at].axis
                    self.kernel.try_opt(Opt(OptOps.STAGE, axis, load.number))

    def order_loops(self, entries: Sequence[int]) -> None:
        """Exchange loops until these are in order, in the places that they have together."""
        kernel = self.kernel
        places = sorted(kernel.nest_order.index(e) for e in entries)
        for place, entry in zip(places, entries, strict=True):
            there = kernel.nest_order[place]
            if there != entry and not kernel.try_opt(Opt(OptOps.SWAP, there, entry)):
                return

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
            if is_long and kernel.try_opt(Opt(OptOps.BLOCK, axis, COPIED_BLOCK)):
                blocks.append(len(kernel.axes) - 1)
        if blocks:
            places = [k for k in kernel.nest_order if k in (row, lane, *blocks)]
            inner = [k for k in places if k not in blocks]
            self.order_loops([*[k for k in places if k in blocks], *inner])

    def stream(self, seconds: float) -> None:
        """Let results go past the caches where they would only drive out what is there.

        Only where memory is what takes the time, and something is read as well: cores fill whole
        lines without reading them first, if they do nothing else.
        """
        kernel, main = self.kernel, self.nests[-1]
        read = {n.src[0] for n in kernel.loads if n.src[0].op is Ops.PARAM}
        sizes = {p: math.prod(p.arg.shape) for p in (*read, *kernel.written)}
        looked_up: dict[UOp, int] = {}  # of tables no more than that is read
        for x in [x for nest in self.nests for x in nest.loads if x.number >= 0]:
            memory = kernel.loads[x.number].src[0]
            points = math.prod([self.sizes[k] for k in axes_of(x.mask)])
            looked_up[memory] = max(points, looked_up.get(memory, 0))
        read_bytes, stored_bytes = (
            sum(min(sizes[p], looked_up.get(p, sizes[p])) * p.dtype.itemsize for p in memory)
            for memory in (read, kernel.written - read)
        )
        total = read_bytes + stored_bytes
        if total <= self.costs.keeping * kernel.target.llc_bytes:
            return
        if seconds > SHARED * total / self.costs.bytes_per_second:
            return
        if 4 * read_bytes < stored_bytes:
            return
        # rows that lodge where they are stored are in a cache by then
        if find_lodging(kernel.ast, {a.range for a in kernel.axes if a.step == 1}):
            return
        for number, store in enumerate(main.stores):
            near = [k for k in axes_of(store.mask) if store.strides.get(k) == 1]
            others = [s for k, s in store.strides.items() if k not in near]
            if len(near) != 1 or None in others:
                continue
            # whole lines, each in one go; of rows that begin anywhere in a line all but their ends
            line, lane = LINE // store.itemsize, kernel.axes[near[0]]
            is_even = not any(s % line for s in others if s is not None)
            is_long = lane.size is not None and lane.size * store.itemsize >= LONG_ROW
            if lane.step % line == 0 and (is_even or (is_long and not lane.block)):
                kernel.try_opt(Opt(OptOps.STREAM, number))

    # ------------------------------------------------------------ threads

    def share(self, seconds: float) -> None:
        """Let threads share the outermost loop that all depends on, or a sum of few outputs."""
        kernel = self.kernel
        read = sum(x.size * x.itemsize for n in self.nests for x in (*n.loads, *n.stores))
        seconds += read / self.costs.bytes_per_second
        if seconds < self.costs.worth_threads:
            return
        # what does not depend on the axis would be computed again in each iteration
        common = ~0
        for nest in self.nests:
            common &= nest.mask
        counts: dict[int, int] = {}
        for k in kernel.nest_order:
            axis = kernel.axes[k]
            base = k if axis.blocks_of < 0 else axis.blocks_of
            if not axis.is_reduce and common >> base & 1 and k != kernel.scanned:
                size = axis.inner_size if axis.blocks_of < 0 else axis.size
                step = axis.step if axis.blocks_of < 0 else 1
                counts[k] = 1 << 20 if size is None else -(-size // step)
        # inside of a loop that threads do not share, what is packed there would be packed again
        places = {k: n for n, k in enumerate(kernel.nest_order)}
        last = min(
            [places[k] for k in kernel.staged.values() if k is not None], default=len(places)
        )
        counts = {k: n for k, n in counts.items() if places[k] <= last}
        if not counts and seconds > PHASES * self.costs.worth_threads and self.share_phases():
            return
        evenly = [k for k, n in counts.items() if shares_evenly(n)]
        main = self.nests[0]
        if main.sums:  # of a size known at run time, threads would share steps that are not there
            evenly.sort(key=lambda k: kernel.axes[k].size is None)
        outer = evenly[0] if evenly else None
        results = math.prod([self.sizes[k] for k in axes_of(main.outputs)])
        is_long = seconds > self.costs.worth_splitting and results * SPLIT_PARTS <= MOST_SHARED_SUMS
        is_one_sum = outer is None and len(self.nests) == 2 and main.sums
        if is_one_sum and is_long and self.split_sum(main):
            return
        if kernel.target.threads > 1 and counts:
            outer = max(counts, key=counts.__getitem__) if outer is None else outer
            if counts[outer] > 1:
                kernel.try_opt(Opt(OptOps.THREAD, outer))

    def share_phases(self) -> bool:
        """Share each sum of a single row, then what it is needed for. False if there is none."""
        kernel, stores = self.kernel, self.nests[-1]
        sums = [n for n in self.nests if n.sums]
        outer = next((k for k in kernel.nest_order if stores.mask >> k & 1), None)
        if outer is None or not sums or any(n.outputs for n in sums):
            return False
        for nest in sums:
            self.split_sum(nest)
        if kernel.target.threads > 1:
            kernel.try_opt(Opt(OptOps.THREAD, outer))
        return True

    def split_sum(self, nest: Nest) -> bool:
        """Share the outermost loop of a reduction in blocks, whose sums are added up later."""
        kernel = self.kernel
        number = max(axes_of(nest.own), key=lambda k: self.iterations(k))
        axis = kernel.axes[number]
        if axis.size is None:
            return False
        steps = self.iterations(number)
        block = -(-steps // SPLIT_PARTS) * axis.step
        if block < 2 or block >= axis.size or not kernel.try_opt(Opt(OptOps.BLOCK, number, block)):
            return False
        return kernel.try_opt(Opt(OptOps.THREAD, len(kernel.axes) - 1))

    def iterations(self, number: int) -> int:
        """How many iterations the loop of an axis has."""
        return -(-self.sizes[number] // self.kernel.axes[number].step)
