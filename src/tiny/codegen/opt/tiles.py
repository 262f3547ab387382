"""Tiles that a nest may have: lanes along an axis, rows along others, cheapest first."""

from __future__ import annotations

import itertools
import math
from operator import attrgetter

from tiny.codegen.opt.constants import costs_of
from tiny.codegen.opt.cost import NestCost, Tile, registers_of
from tiny.codegen.opt.idle import idle_steps
from tiny.codegen.opt.nests import Nest, axes_of, find_nests
from tiny.codegen.opt.opts import Opt, OptOps
from tiny.codegen.opt.splits import SplitKernel
from tiny.uop.passes import compiler_pass

__all__ = ["Tiles"]

VECTORS = (1, 2, 3, 4)  # side by side; more are bound by their loads
WHOLE_ROW = 8  # of a window that moves along it: the conditions of its padding are constants then
STREAMS = (6, 8)  # more of them, where each row is far from the last, and nothing is used again
WIDEST = 16  # lanes of a vector where a target has no registers to fill
MOST_ROWS = 28
ROWS = 12  # that axes should have together to be enough
CLOSER = 3  # axes for lanes that are looked at closer
WIDTHS = 2  # of lanes that tell which axes to look at
WIDER = 4  # of those that are looked at then
PARTS = (2, 3, 4, 5, 7)  # of the rows along one axis, so that others go along another
MANY_ROWS = 8
WORTH_APART = 1.03  # times the steps that so many rows beside each other run, before others may pay
SHARED_ROWS = (1, 2, 4, 6, 8, 12)  # that all nests of a kernel may have
TRANSPOSED_ROWS = 16  # that are loaded as vectors, and transposed in registers

_by_cost = attrgetter("cost")


class Tiles:
    """What is known of a kernel without Opts, and the tiles that its nests may have."""

    def __init__(self, kernel: SplitKernel) -> None:
        self.kernel = kernel
        self.nests = find_nests(kernel)
        self.sizes = [int(a.range.src[0].vmax) for a in kernel.axes]
        self.full = [min(kernel.vector_lanes(k), WIDEST) for k in range(len(kernel.axes))]
        self.constants = costs_of(kernel.target)
        has_masks = any(n.condition for n in self.nests)
        self.idle = idle_steps(kernel.ast, kernel.number_of) if has_masks else []
        order, target = kernel.nest_order, kernel.target
        self.costs = {
            n: NestCost(n, order, self.sizes, self.full, self.constants, target, self.idle)
            for n in self.nests
        }
        if len(self.nests) == 2 and self.nests[0].sums:
            self.costs[self.nests[1]].steps = self.costs[self.nests[0]].inner
        self.plain = {n: self.costs[n].seconds(Tile()) for n in self.nests}
        self._tiles: dict[tuple[Nest, tuple[Opt, ...]], list[Tile]] = {}
        self.has_masks = kernel.target.vector_bytes >= 64

    def priced(self, nest: Nest, tile: Tile) -> Tile:
        """A tile with what the kernel costs: lanes and rows are those of all nests that have them.

        Nests that have none of its axes count with what they cost, or will with lanes of their own,
        which they can have along axes that this nest does not have.
        """
        cost = self.costs[nest].seconds(tile)
        axes = 1 << tile.lane if tile.lane >= 0 else 0
        for row, _ in tile.rows:
            axes |= 1 << row
        for n in self.nests:
            if n is nest:
                continue
            if n.mask & axes:
                cost += self.costs[n].seconds(tile)
            else:
                may_have_lanes = n.mask & ~nest.mask and (tile.lane >= 0 or not nest.own)
                cost += self.plain[n] / (WIDEST if may_have_lanes else 1)
        return tile._replace(cost=cost)

    def tiles(self, nest: Nest, kernel: SplitKernel) -> list[Tile]:
        """The best tile for each axis that may have the lanes, cheapest first.

        `kernel` tells which axes have been split already.
        """
        key = nest, kernel.applied_opts
        found = self._tiles.get(key)
        if found is None:
            found = self._tiles[key] = self._find_tiles(nest, kernel)
        return found

    @compiler_pass("price tiles", "a nest's loads and stores", "tiles, cheapest first")
    def _find_tiles(self, nest: Nest, kernel: SplitKernel) -> list[Tile]:
        fixed = tuple([(k, kernel.axes[k].tile) for k in axes_of(nest.mask)])
        fixed = tuple([(k, n) for k, n in fixed if n > 1])
        if fixed:
            return [
                t
                for t in self.lanes_for(nest, kernel, fixed)
                if t.lane < 0 or kernel.allows(Opt(OptOps.VEC, t.lane, t.lanes))
            ]
        rows = self.row_axes(nest, kernel)
        # each axis for the lanes, in few widths and with few rows, tells which to look at
        found: list[Tile] = []
        for lane in axes_of(nest.mask):
            widths = self.lane_counts(nest, kernel, lane)
            if not widths or not kernel.allows(Opt(OptOps.VEC, lane, widths[0])):
                continue
            for n in widths[:WIDTHS]:
                plain = self.priced(nest, Tile(lane, n))
                found.append(plain)
                found += [
                    self.priced(nest, plain._replace(rows=((row, count),)))
                    for row in rows
                    if row != lane
                    for count in self.row_counts(nest, kernel, plain, row)[:1]
                ]
        found.sort(key=_by_cost)
        # by lane, and whether its rows are apart: which are better, orders of loops tell
        best: dict[tuple[int, bool], Tile] = {(-1, False): self.priced(nest, Tile())}

        def consider(tile: Tile) -> None:
            tile = self.priced(nest, tile)
            key = tile.lane, self.costs[nest].are_apart(tile)
            if key not in best or tile.cost < best[key].cost:
                best[key] = tile

        seen: dict[int, set[int]] = {}  # lanes, and their rows
        for tile in found:
            row = tile.rows[0][0] if tile.rows else -1
            mine = seen.setdefault(tile.lane, set())
            # for the most promising axis two kinds of rows, for others one
            is_apart = len(seen) == 1 and self.costs[nest].are_apart(tile)
            if row in mine or len(seen) > CLOSER:
                continue
            if len(mine) > (len(seen) == 1) and not is_apart:
                continue
            mine.add(row)
            for n in self.lane_counts(nest, kernel, tile.lane)[:WIDER]:
                wide = tile._replace(lanes=n, rows=())
                counts = self.row_counts(nest, kernel, wide, row) if tile.rows else []
                for count in counts:
                    consider(wide._replace(rows=((row, count),)))
                if not tile.rows:
                    consider(wide)
        for tile in sorted(best.values(), key=_by_cost)[:CLOSER]:
            if kernel.unit is not None and nest.own >> max(tile.lane, 0) & 1:
                # along a reduction rows of one axis alone may not pay where those of two do
                tile = tile._replace(lanes=min(tile.lanes, self.full[tile.lane]), rows=())
                for row, second in itertools.permutations(rows, 2):
                    for a in self.row_counts(nest, kernel, tile, row):
                        one = tile._replace(rows=((row, a),))
                        for b in self.row_counts(nest, kernel, one, second):
                            consider(tile._replace(rows=((row, a), (second, b))))
                continue
            if not tile.rows:
                continue
            ((row, most),) = tile.rows
            # sums of which lanes are added up leave more registers for rows where they are narrow
            is_added = nest.own >> tile.lane & 1
            for lanes in {tile.lanes, self.full[tile.lane] if is_added else tile.lanes}:
                wide = tile._replace(lanes=lanes, rows=())
                for second in rows:
                    if second in (row, tile.lane):
                        continue
                    for a in {most, *[n for n in PARTS if n < most]}:
                        one = wide._replace(rows=((row, a),))
                        for b in self.row_counts(nest, kernel, one, second)[:1]:
                            consider(wide._replace(rows=((row, a), (second, b))))
        return sorted(best.values(), key=_by_cost)

    def lanes_for(
        self, nest: Nest, kernel: SplitKernel, rows: tuple[tuple[int, int], ...]
    ) -> list[Tile]:
        """The best lanes along each axis where it is known which rows there are, cheapest first."""
        cost, free = self.costs[nest], registers_of(kernel.target) - 1
        taken = {k for k, _ in rows}
        found = [Tile(rows=rows, cost=cost.seconds(Tile(rows=rows)))]
        for lane in axes_of(nest.mask):
            if lane in taken:
                continue
            tiles = [Tile(lane, n, rows) for n in self.lane_counts(nest, kernel, lane)[:WIDER]]
            if nest.sums:
                tiles = [t for t in tiles if cost.most_rows(t, free)]
            if tiles:
                found.append(min([t._replace(cost=cost.seconds(t)) for t in tiles], key=_by_cost))
        return sorted(found, key=_by_cost)

    def shared_rows(self, kernel: SplitKernel) -> tuple[int, int] | None:
        """Rows along an axis that all nests have, where some are contractions: of kept rows.

        (axis, rows); None where there is no such axis, or rows by themselves are as fast.
        """
        if len(self.nests) < 3 or not any(n.sums and len(n.loads) > 1 for n in self.nests):
            return None
        common = ~0
        for nest in self.nests:
            common &= nest.mask & ~nest.own
        sizes = {k: n for k, n in enumerate(self.sizes) if not common >> k & 1}
        best, least, costs = (-1, 1), math.inf, self.constants
        kept, most = kernel.kept_nbytes(), kernel.target.l2_bytes // 2
        for axis in axes_of(common):
            # what a product has along outputs of its own; not the weights of a row's elements
            again = [
                self.costs[n].bounded * x.itemsize * x.box(sizes)
                for n in self.nests
                if n.sums
                for x in n.loads
                if not x.mask >> axis & 1 and x.mask & n.outputs
            ]
            if kernel.axes[axis].step > 1 or not again:
                continue
            nbytes = sum(again)
            if nbytes <= kernel.target.l2_bytes // 4 * 3:
                nbytes = 0  # comes from L2 while something is computed
            points = kernel.points(common)
            for count in SHARED_ROWS:
                if count > self.sizes[axis] or (count > 1 and count * kept > most):
                    break
                rows = ((axis, count),) if count > 1 else ()
                cost = sum(self.lanes_for(n, kernel, rows)[0].cost for n in self.nests)
                moving = nbytes / costs.l2_rate * points / count
                cost += costs.cycle * costs.showing * moving
                if cost < least:
                    best, least = (axis, count), cost
        return best if best[1] > 1 else None

    def lane_counts(self, nest: Nest, kernel: SplitKernel, number: int) -> list[int]:
        """Lanes that an axis can have: whole vectors, the last one with idle lanes if need be.

        Parts of a vector are powers of two: others are taken apart by the compiler, one by one.
        A size that is known only at run time counts as its largest.
        """
        axis, full, size = kernel.axes[number], self.full[number], self.sizes[number]
        if axis.step > kernel.unit_lanes(number) or size < 2:
            return []
        must_divide = kernel.is_in_place and not axis.is_reduce and not self.has_masks
        # a sum of rows, each far from the last
        is_stream = nest.sums and not nest.own >> number & 1 and len(nest.loads) == 1
        more = STREAMS if is_stream and self.costs[nest].is_far(nest.loads[0]) else ()
        if self.costs[nest].is_window and VECTORS[-1] < -(-size // full) <= WHOLE_ROW:
            more = (*more, -(-size // full))
        counts = [
            v * full
            for v in (*VECTORS, *more)
            if v * full <= size or (self.has_masks and (v - 1) * full < size)
        ]
        parts = [
            n for n in (8, 4, 2) if n < full and (n <= size or (self.has_masks and n < 2 * size))
        ]
        if size <= full // 2:
            counts = [n for n in counts if n <= size]
        counts += parts
        counts = [n for n in counts if n % kernel.unit_lanes(number) == 0]
        counts = [n for n in counts if not (must_divide and (size % n or axis.size is None))]
        # least waste first, then widest
        return sorted(counts, key=lambda n: (-(-size // n) * max(n, full), -n))

    def row_axes(self, nest: Nest, kernel: SplitKernel) -> list[int]:
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
            cost, beside = self.costs[nest], self.costs[nest].beside
            for axes in alike.values():
                axes.sort(key=lambda k: sum(abs(x.strides.get(k, 0) or 0) for x in nest.loads))
                most = 2 if math.prod(self.sizes[k] for k in axes[:2]) >= ROWS else 3
                found += axes[:most]
                together = [
                    (k, min(MANY_ROWS, self.sizes[k])) for k in axes[:most] if beside >> k & 1
                ]
                is_idle = together and cost.needed(together) > WORTH_APART * cost.needed(())
                # neighbours whose steps have conditions of their own, each an instruction more
                has_choices = self.constants.choice > 0 and nest.condition >> axes[0] & 1
                if is_idle or has_choices:
                    # and one whose neighbours all need the same steps
                    found += [k for k in axes[most:] if not beside >> k & 1][:1]
            return found
        stores = [s for s in nest.stores if s.number < 0]
        lanes = sum(1 << k for k in axes_of(outputs) if any(s.is_contiguous(k) for s in stores))
        # what has the lanes as well: a value of a row, or its place, is read once anyway
        loads = [x for x in nest.loads if x.mask & lanes]
        return [k for k in axes_of(outputs & ~lanes) if any(x.is_contiguous(k) for x in loads)]

    def row_counts(self, nest: Nest, kernel: SplitKernel, tile: Tile, number: int) -> list[int]:
        """How many rows there may be: as many as registers hold, or few less without waste."""
        axis, size = kernel.axes[number], self.sizes[number]
        if axis.step > 1 or size < 2:
            return []
        if not nest.sums:
            return [n for n in (TRANSPOSED_ROWS,) if n <= size]
        free = registers_of(kernel.target) - 1
        most = min(self.costs[nest].most_rows(tile, free), size, MOST_ROWS)
        # the largest of those that cover the axis in as many tiles
        least = 2 if self.costs[nest].is_window else max(2, most // 2)
        counts = {-(-size // -(-size // n)) for n in range(least, most + 1)}
        if kernel.is_in_place:
            counts = {n for n in counts if axis.size is not None and size % n == 0}
        return sorted(counts, reverse=True)[:4]
