"""What a loop nest costs, by counting: instructions of its bodies, bytes moved between caches.

The constants are those of `constants`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tiny.codegen.opt.constants import Costs, costs_of
from tiny.codegen.opt.epilogues import LONG_SUM, SHORT, has_lanes_later, is_rolled
from tiny.codegen.opt.idle import MOST_STEPS, IdleSteps
from tiny.codegen.opt.nests import Access, Nest, axes_of
from tiny.uop.target import Target

__all__ = [
    "LINE",
    "REUSE",
    "Level",
    "NestCost",
    "Operand",
    "Tile",
    "fill_cost",
    "moved",
    "registers_of",
]

WORTH_TRANSPOSING = 4  # rows, from which on lowering does so
REUSE = 4  # vectors loaded of an element, from which on packing it may pay
WIDEST_TILE = 16  # points that use what is loaded once
WIDEST_STRIDE = 4  # of lanes that are taken out of vectors beside each other
WINDOW = 9  # steps of a reduction, up to which all are unrolled
SHUFFLED_ROWS = 6  # registers for those
MOST_BOUNDS, SAMPLES = 3, 8  # axes of an inequality whose steps are counted, and places along each
MASKS = 7  # registers for conditions
LINE = 64  # bytes
WAY = 4096  # bytes of the sets of L1, each with a line


@dataclass(frozen=True)
class Level:
    """A loop: `count` iterations of `step` elements of an axis."""

    axis: int
    count: int
    step: int


class Tile(NamedTuple):
    """What an iteration computes: lanes along an axis (-1 for none), rows along others."""

    lane: int = -1
    lanes: int = 1
    rows: tuple[tuple[int, int], ...] = ()
    cost: float = math.inf


class NestCost:
    """Prices the tiles of a nest whose loops are in a given order."""

    def __init__(
        self,
        nest: Nest,
        order: Sequence[int],
        sizes: Sequence[int],
        full: Sequence[int],
        costs: Costs,
        target: Target,
        idle: Sequence[IdleSteps] = (),
    ) -> None:
        self.nest, self.full, self.costs, self.target = nest, full, costs, target
        # those of loops: what is unrolled does all of them
        self.idle = [
            x
            for x in idle
            if nest.outputs >> x.output & 1 and (x.reduced < 0 or nest.own >> x.reduced & 1)
        ]
        self._needed: dict[tuple[IdleSteps, int], float] = {}
        self.sizes = sizes
        self.steps = 0  # of the sum that these stores are an epilogue of
        self.loops = [(k, sizes[k]) for k in order if k < len(sizes) and nest.mask >> k & 1]
        self.points = math.prod([n for _, n in self.loops])
        self.inner = math.prod([n for k, n in self.loops if nest.own >> k & 1])
        # what comes from memory, each element for few uses: no cache holds it
        self.streams = [
            x
            for x in nest.loads
            if nest.sums
            and x.size * x.itemsize > target.l2_bytes
            and self.points < REUSE * WIDEST_TILE * x.size
            and not x.is_kept
        ]
        # a short window is unrolled whole, and what neighbours share of it is loaded once
        self.is_window = nest.sums > 0 and 1 < self.inner <= WINDOW
        if self.is_window:
            self.idle = []
        self.extents = dict(self.loops)
        self._bodies: dict[tuple[int, int], _Body] = {}
        # the same is asked of tile after tile
        self._seconds: dict[tuple[int, int, tuple[tuple[int, int], ...]], float] = {}
        self._packed: dict[tuple[int, int], bool] = {}  # by id of an access, and lane

    def needed(self, tiles: Sequence[tuple[int, int]]) -> float:
        """The part of the steps of its sums that is run, with so many elements along axes."""
        extents, part = dict(tiles), 1.0
        for x in self.idle:
            key = x, extents.get(x.output, 1)
            found = self._needed.get(key)
            if found is None:
                found = self._needed[key] = x.needed(self.sizes, key[1])
            part *= found
        return part

    @cached_property
    def bounded(self) -> float:
        """The part of the steps of its sums that a condition leaves, which bounds a long loop."""
        bound = self.nest.bound
        own, size = next((x for x in reversed(self.loops) if self.nest.own >> x[0] & 1), (-1, 0))
        if own not in bound or size <= MOST_STEPS or len(bound) > MOST_BOUNDS:
            return 1.0
        places = [
            [factor * ((2 * n + 1) * self.extents[k] / (2 * SAMPLES) - 0.5) for n in range(SAMPLES)]
            for k, factor in bound.items()
        ]
        found = [sum(x) + self.nest.offset < 0 for x in itertools.product(*places)]
        return max(1, sum(found)) / len(found)

    def asking(self, tile: Sequence[tuple[int, int]], lane: int) -> float:
        """The part of the steps of its sums, of those that run, that ask for their condition.

        Where that bounds their loop, those do at which it holds in a part of a tile only.
        """
        bound, part = self.nest.bound, self.bounded
        if part == 1 or lane in bound:
            return 1.0
        own = next(k for k, _ in reversed(self.loops) if self.nest.own >> k & 1)
        apart = sum(abs(bound[k]) * (n - 1) for k, n in tile if k in bound)
        return min(1.0, (1 + apart / abs(bound[own])) / (part * self.extents[own]))

    @cached_property
    def beside(self) -> int:
        """The output axes along which neighbours need different steps."""
        return sum({1 << x.output for x in self.idle})

    def are_apart(self, tile: Tile) -> bool:
        """Whether rows of a sum with idle steps are such that all need the same steps.

        They lie further from each other than those which share what is beside them.
        """
        return bool(self.beside) and any(not self.beside >> k & 1 for k, _ in tile.rows)

    def jumps_far(self, access: Access, tile: Tile) -> bool:
        """Whether rows that are apart are each read in steps too far, if they are not packed."""
        rows = [k for k, _ in tile.rows if access.mask >> k & 1 and not self.beside >> k & 1]
        has_lanes = tile.lane >= 0 and access.mask >> tile.lane & 1
        if not (rows and access.mask & self.beside) or has_lanes:
            return False
        steps = [access.strides.get(k, 0) or 0 for k, _ in self.loops if self.nest.own >> k & 1]
        return max(map(abs, steps), default=0) * access.itemsize >= self.costs.far_apart

    @property
    def is_bound_by_memory(self) -> bool:
        """Whether what comes from memory is used so seldom that arithmetic need not be fast."""
        return any(self.points < WIDEST_TILE * x.size for x in self.streams)

    def most_lines(self, axis: int, lane: int) -> int:
        """How many rows along an axis have a line each in L1, where all are gone through at once.

        Lines that are as far apart as the sets of a cache reach fall into one of them.
        """
        most = 1 << 20
        for x in self.nest.loads:
            step = abs(x.strides.get(axis, 0) or 0) * x.itemsize
            has_lanes = lane >= 0 and x.mask >> lane & 1  # then it reads a line at once
            if step < LINE or has_lanes or self.is_packed(x, lane):
                continue
            sets = max(1, WAY // math.gcd(step, WAY))
            most = min(most, max(1, self.target.l1_bytes // WAY) * min(sets, WAY // LINE))
        return most

    def piece(self, load: Access, extents: dict[int, int]) -> int:
        """How many elements lie side by side among so many along each axis."""
        piece = 1
        near = [(abs(s), k) for k, s in load.strides.items() if s]
        for stride, axis in sorted(near):
            if stride > piece:
                break
            piece = max(piece, stride * min(extents.get(axis, 1), self.sizes[axis]))
            if extents.get(axis, 1) < self.sizes[axis]:
                break
        return piece

    def jumping(self, tile: Tile) -> float:
        """The part of the time to run it in which streams begin anew, in the loops as they are."""
        total, costs = 0.0, self.costs
        for load in self.streams:
            extents = dict(tile.rows) | {tile.lane: tile.lanes}
            piece = self.piece(load, extents)
            for axis, size in reversed(self.loops):
                if load.mask >> axis & 1 and extents.get(axis, 1) < size:
                    extents[axis] = size
                    longer = self.piece(load, extents)
                    if longer == piece:
                        break
                    piece = longer
            is_far = load.size * load.itemsize > costs.beyond * self.target.l2_bytes
            total += load.size / piece * (costs.far_piece if is_far else costs.piece)
        return costs.cycle * total

    def vectors(self, tile: Tile) -> int:
        """How many vectors the lanes of a tile are."""
        if tile.lane < 0 or not self.nest.mask >> tile.lane & 1:
            return 1
        return -(-tile.lanes // self.full[tile.lane])

    def most_rows(self, tile: Tile, registers: int) -> int:
        """How many rows more there may be: their sums, a row of lanes, a broadcast in registers."""
        vectors = self.vectors(tile)
        rows = math.prod([n for k, n in tile.rows if self.nest.outputs >> k & 1])
        if self.is_window:  # half of them are for rows that are loaded
            return registers // (2 * vectors * rows * max(1, self.nest.sums))
        if any(self.strided(x, tile.lane) for x in self.nest.loads):
            registers -= SHUFFLED_ROWS  # these are no operands in memory
        return (registers - vectors - 1) // (vectors * rows * max(1, self.nest.sums))

    def seconds(self, tile: Tile) -> float:
        """To run it, and its share of the time to compile it."""
        key = tile.lane, tile.lanes, tile.rows
        found = self._seconds.get(key)
        if found is None:
            found = self._body(tile).seconds(tile.rows) + self.jumping(tile)
            self._seconds[key] = found
        return found

    def _body(self, tile: Tile) -> _Body:
        """What is counted for its lanes, whatever its rows."""
        key = tile.lane, tile.lanes
        body = self._bodies.get(key)
        if body is None:
            body = self._bodies[key] = _Body(self, tile)
        return body

    def packing(self, tile: Tile) -> float:
        """The part of it that packs operands once."""
        return self.costs.cycle * self._body(tile).packing

    def is_far(self, access: Access) -> bool:
        """Whether it is gone through in rows that fall into few sets of a cache."""
        steps = [access.strides.get(k, 0) or 0 for k in axes_of(self.nest.own)]
        return max(map(abs, steps), default=0) * access.itemsize >= self.costs.far

    def has_gaps(self, access: Access) -> bool:
        """Whether an operand that is read often may be packed, and a part of each line is read."""
        if not (access.is_packable and self.nest.sums):
            return False
        is_often = self.points >= REUSE * WIDEST_TILE * access.size
        last = access.dims[-1] if access.dims else {}
        return is_often and len(last) == 1 and abs(*last.values()) > 1

    def is_packed(self, access: Access, lane: int) -> bool:
        """Whether an operand is better read from memory of its own, being read often enough."""
        key = id(access), lane
        found = self._packed.get(key)
        if found is None:
            found = self._packed[key] = self._pays_packed(access, lane)
        return found

    def _pays_packed(self, access: Access, lane: int) -> bool:
        if access.is_made:
            return True
        if not access.is_packable or not self.nest.sums:
            return False
        if self.points < WIDEST_TILE * access.size and not access.is_kept:
            return False
        has_lanes = lane >= 0 and access.mask >> lane & 1
        is_apart = has_lanes and not access.is_contiguous(lane)
        if is_apart and access.box_step(lane) == 1:
            return True
        if self.points < REUSE * WIDEST_TILE * access.size and not access.is_kept:
            return False
        is_padded = access.gate and self.nest.condition & access.gate != access.gate
        if access.work or is_padded:
            return True
        if is_apart:
            return False
        if has_lanes:
            return not self.nest.own >> lane & 1 and self.is_far(access)
        # rows whose innermost loop jumps to lines that fall into few sets of a cache
        inner = [k for k, n in self.loops if n > 1 and self.nest.own >> k & 1][-1:]
        for k in inner:
            step = abs(access.strides.get(k, 0) or 0) * access.itemsize
            if step >= self.costs.far:
                return crowding(access, {k: self.extents[k]}) > self.costs.crowd
        return False

    def strided(self, access: Access, lane: int) -> int:
        """How many vectors the lanes of one are taken out of, being a few elements apart; or 0."""
        if lane < 0 or not access.mask >> lane & 1 or access.itemsize < 4:
            return 0
        is_packed = self.is_packed(access, lane)
        step = access.box_step(lane) if is_packed else access.strides.get(lane) or 0
        return step if 2 <= step <= WIDEST_STRIDE else 0

    def masked(self, access: Access, lane: int, vectors: int) -> float:
        """Instructions for the conditions of lanes; constants, where these are the whole axis."""
        is_whole = vectors * self.full[lane] >= self.extents[lane]
        if is_whole or not access.gate >> lane & 1 or self.is_packed(access, lane):
            return 0.0
        return self.costs.masked

    def slots(self, access: Access, lane: int, lanes: int, vectors: int) -> float:
        """Instructions to load or store one vector, or one value for all of its lanes."""
        if lane < 0 or not access.mask >> lane & 1:
            return 1.0
        is_packed = self.is_packed(access, lane)
        if is_packed:
            is_near = abs(access.box_step(lane)) == 1
        else:  # lanes that have conditions of their own are not loaded backwards at once
            is_near = access.is_contiguous(lane) and (
                not access.gate >> lane & 1 or access.strides[lane] == 1
            )
        if is_near:
            if not self.nest.sums:
                return 1.0
            if self.nest.own >> lane & 1:
                # rows of no whole vectors, read again and again
                steps = [s or 0 for k, s in access.strides.items() if k != lane]
                is_even = all(s % self.full[lane] == 0 for s in steps)
                is_read_once = len(self.nest.loads) == 1 or any(access is x for x in self.streams)
                return 1.0 if is_even or is_packed or is_read_once else self.costs.uneven
            if access.shares_dim(lane, self.nest.own):
                return self.costs.shifted + self.masked(access, lane, vectors)
            if self.is_far(access) and not is_packed:
                if any(access is x for x in self.streams):  # see `jumping`
                    return 1.0
                is_often = self.points >= REUSE * WIDEST_TILE * access.size
                return self.costs.far_read if is_often else 1 + self.costs.far_jump / vectors
            return 1.0
        if access.number >= 0:
            if step := self.strided(access, lane):
                return self.costs.strided * step + self.masked(access, lane, vectors)
        elif access.strides.get(lane) == 2 and 2 in [
            n for k, n in self.extents.items() if access.strides.get(k) == 1
        ]:
            return self.costs.strided  # what lies between is stored in turns with it
        size = self.extents[lane]
        # lanes by themselves cost as ever
        part = self.costs.part if 2 * lanes <= self.full[lane] else 1.0
        return self.costs.one_by_one * size / -(-size // lanes) / part  # idle lanes are left out


class _Body:
    """The body of a nest with given lanes, for any rows: what is counted, by axes."""

    def __init__(self, cost: NestCost, tile: Tile) -> None:
        nest = self.nest = cost.nest
        self.cost, self.lane_extent = cost, tile.lanes
        costs = self.costs = cost.costs
        self.target = cost.target
        self.lane = tile.lane if tile.lane >= 0 and nest.mask >> tile.lane & 1 else -1
        self.vectors = cost.vectors(tile)
        self.points, self.length = cost.points, cost.steps
        self.extents = cost.extents
        self.steps = cost.inner if cost.is_window else 1  # in one iteration
        self.inner, self.sizes = cost.inner, [n for _, n in cost.loops]
        self.axes = [k for k, _ in cost.loops]
        if self.lane >= 0:
            place = self.axes.index(self.lane)
            self.sizes[place] = -(-self.sizes[place] // tile.lanes)
        lanes = min(tile.lanes, cost.full[self.lane]) if self.lane >= 0 else 1
        # some machines take two steps for a whole vector
        self.width = costs.part if self.lane >= 0 and 2 * lanes <= cost.full[self.lane] else 1.0
        # by axes: arithmetic, loads, stores, and how much more or less they are in code
        counts: dict[int, list[float]] = {}
        # what rows may make a transposition of: a load or (False) a store, and its instructions
        self.apart: dict[int, list[tuple[Access, bool, float]]] = {}

        def count(mask: int, kind: int, instructions: float) -> None:
            counts.setdefault(mask, [0.0, 0.0, 0.0, 0.0])[kind] += instructions

        for mask, instructions in nest.work.items():
            count(mask, 0, instructions)
        self.packing = self.code = 0.0
        self.along: list[tuple[Access, float, bool]] = []  # lanes that are added up
        # by axis of rows: how many there may be before lines of their loads drive out each other
        self.most_rows = {k: cost.most_lines(k, self.lane) for k in axes_of(nest.outputs)}
        self.streaming = sum(x.size * x.itemsize for x in cost.streams) / costs.l2_rate
        self.streamed = 0
        for load in cost.streams:
            self.streamed |= load.mask
        # of what is loaded by axes: (row axis, how far its neighbours are, steps of a window)
        self.windows: dict[int, list[tuple[int, int, int]]] = {}
        self.gates: dict[int, int] = {}  # the rows that conditions of those depend on
        for load in nest.loads:
            if cost.is_window:
                found = self.windows.setdefault(load.mask, [])
                found += _windows(load, nest, cost.extents)
                gates = load.gate & nest.outputs & ~(1 << max(self.lane, 0))
                self.gates[load.mask] = self.gates.get(load.mask, 0) | gates
            slots = cost.slots(load, self.lane, lanes, self.vectors)
            count(load.mask, 1, slots)
            if self.lane >= 0 and (nest.own & load.mask) >> self.lane & 1:
                apart = 1.0 if slots == costs.uneven else slots  # as many lines, however they lie
                self.along.append((load, apart, any(load is x for x in cost.streams)))
            if step := cost.strided(load, self.lane):
                count(load.mask, 0, step - 1.0)  # shuffles
                count(load.mask, 3, step - slots)
            if slots > costs.far_jump + 1:
                self.apart.setdefault(load.mask, []).append((load, True, slots))
            if cost.is_packed(load, self.lane):
                self.packing += load.size * fill_cost(load, self.lane, costs)
                if load.is_kept:
                    continue
                is_plain = fill_cost(load, self.lane, costs) == costs.fill
                self.code += costs.fill_code if is_plain else costs.fill_apart_code
            elif load.work:
                count(load.mask, 0, load.work)
        self.is_across = False  # of what is stored
        self.near = nest.mask if self.length else 0  # axes along which all stores are in order
        for store in nest.stores:
            self.near &= sum(1 << k for k in store.strides if store.strides[k] == 1)
            self.is_across |= self.lane >= 0 and not store.is_contiguous(self.lane)
            slots = cost.slots(store, self.lane, lanes, self.vectors)
            count(store.mask, 2, 2 * slots)
            if slots > costs.far_jump + 1:
                self.apart.setdefault(store.mask, []).append((store, False, 2 * slots))
        if self.lane >= 0 and nest.sums and nest.own >> self.lane & 1:
            # lanes are added up in the end
            added = self.vectors + 2 * math.log2(max(2, lanes))
            count(nest.outputs, 2, nest.sums * added)
        self.lanes = lanes
        self.counts = [
            (
                mask,
                [p for p in reversed(range(len(self.axes))) if mask >> self.axes[p] & 1],
                (c[0], c[1], c[2], c[3]),
            )
            for mask, c in counts.items()
        ]

    def seconds(self, rows: Sequence[tuple[int, int]]) -> float:
        nest, costs, counts = self.nest, self.costs, list(self.sizes)
        tiles = [(k, n) for k, n in rows if nest.mask >> k & 1]
        for k, n in tiles:
            place = self.axes.index(k)
            counts[place] = -(-counts[place] // n)
        total, runs = 1, []  # how often the body of each loop runs
        for n in counts:
            total *= n
            runs.append(total)
        crowds = [(k, n / self.most_rows.get(k, 1 << 20)) for k, n in tiles]
        crowded = sum(1 << k for k, much in crowds if much > 1)
        crowd = 1 + costs.crowded * max([much for _, much in crowds], default=0.0)
        work = loads = stores = 0.0
        needed = self.cost.bounded
        if self.cost.idle:
            needed *= self.cost.needed([*tiles, (self.lane, self.lane_extent)])
        once, code, made = 0.0, self.code, 0.0
        for mask, places, (arithmetic, loaded, stored, more) in self.counts:
            has_lanes = self.lane >= 0 and mask >> self.lane & 1
            times = float(self.vectors) if has_lanes else 1.0
            for k, n in tiles:
                if mask >> k & 1:
                    times *= n
            for access, is_load, slots in self.apart.get(mask, ()):
                saved = slots - self._transposed(access, tiles) * (1 if is_load else 2)
                if saved > 0:
                    loaded, stored = loaded - saved * is_load, stored - saved * (not is_load)
            if mask in self.windows:
                whole = sum(1 << k for k, n in tiles if n >= self.extents[k])
                if self.gates[mask] & ~whole:
                    loaded += costs.masked / 2
                for k, step, count in self.windows[mask]:
                    n = next((n for axis, n in tiles if axis == k), 1)
                    loaded *= min(1.0, (step * (n - 1) + count) / (n * count))
            steps = self.steps if mask & nest.own else 1
            once += arithmetic + loaded + stored + more
            code += (arithmetic + loaded + stored + more) * times * steps
            made += arithmetic * times
            if has_lanes:
                times *= self.width
            for p in places:
                if counts[p] > 1:
                    times *= runs[p]
                    break
            if mask & nest.own:
                times *= needed
            work += arithmetic * times
            loads += loaded * times * (crowd if mask & crowded else 1.0)
            stores += stored * times
        again = self.beyond_l1(tiles) if self.along else 0.0
        loads += again
        copies = self.vectors * math.prod([n for _, n in tiles])
        rolling = 0.0
        near = math.prod([n for k, n in tiles if self.near >> k & 1])
        if made <= SHORT * copies:
            code = once if self.length >= LONG_SUM else code
        elif self.length and self.lane < 0 and near > 1 and has_lanes_later(0, copies, made):
            # sums of which lanes have been added up
            code, rolling = once, costs.rolled * copies * total
            work, loads, stores = work / near, loads / near, stores / near
        elif self.length and is_rolled(self.length, made, copies if self.is_across else 0):
            code = once
            rolling = costs.rolled_across if self.is_across else costs.rolled
            rolling *= copies * total
        if nest.sums and self.inner > 1:
            # sums wait for themselves where there are few of them, and no steps to unroll
            chains = copies * nest.sums * min(4, self.inner)
            work *= max(1.0, costs.latency / chains)
        conditions = math.prod([n for k, n in tiles if nest.condition >> k & 1])
        # conditions that differ within a tile; others are asked once for it
        if conditions > 1 or (self.lane >= 0 and nest.condition >> self.lane & 1):
            more = 1 + costs.choice
            if conditions > MASKS:
                more *= 1.5 - 0.5 * MASKS / conditions
            work *= 1 + (more - 1) * self.cost.asking(tiles, self.lane)
        cycles = (max(loads, work) + stores) / costs.per_cycle + rolling
        # counting and jumping, which unrolling makes rarer, and what does not overlap
        cycles += needed * total / self.steps * (costs.loop if nest.own else costs.store_loop)
        cycles += (1 - costs.overlap) * (loads + work)
        if self.streaming:
            several = math.prod([n for k, n in tiles if self.streamed >> k & 1])
            streaming = self.streaming * costs.several ** (math.log2(several) / 3)
            streaming += costs.apart_rate * again  # has the way into L1 in common with it
            cycles = max(cycles, streaming) + 0.1 * min(cycles, streaming)
        cycles += self.packing
        return costs.cycle * cycles + costs.compiling / costs.runs * code

    def beyond_l1(self, tiles: Sequence[tuple[int, int]]) -> float:
        """How many more loads it is worth that a tile reads more along its lanes than L1 holds.

        What the next tile reads again comes from L2 then.
        """
        again = tile = 0.0
        most = math.inf  # of an operand that is there whole, less its part of a tile
        for load, slots, is_stream in self.along:
            rows = math.prod([n for k, n in tiles if load.mask >> k & 1])
            others = math.prod([n for k, n in tiles if not load.mask >> k & 1])
            nbytes = max(4, load.itemsize) if load.work else load.itemsize  # packed as float32
            tile += nbytes * self.inner * rows
            most = min(most, nbytes * (load.size - self.inner * rows))
            if not is_stream or self.points > others * load.size:
                again += slots * self.points / others
        tile += max(0.0, most)
        beyond = min(1.0, max(0.0, 4 * (tile / self.target.l1_bytes - 1)))
        slower = self.costs.per_cycle * self.target.vector_bytes / self.costs.l1_rate - 1
        return beyond * slower * again / self.lanes

    def _transposed(self, access: Access, tiles: Sequence[tuple[int, int]]) -> float:
        """Instructions for a vector, if rows of it lie side by side in memory."""
        least = 2 if self.length >= LONG_SUM else WORTH_TRANSPOSING
        for k, n in tiles:
            if n >= least and access.is_contiguous(k) and not access.gate:
                return self.costs.transposed * self.lanes / min(n, self.lanes)
        return math.inf


def _windows(load: Access, nest: Nest, sizes: dict[int, int]) -> Iterator[tuple[int, int, int]]:
    """(output axis, how far its neighbours are apart, steps of a window) of a load."""
    for dim in load.dims:
        own = [k for k in dim if nest.own >> k & 1]
        rows = [k for k in dim if not nest.own >> k & 1]
        if len(own) == 1 and len(rows) == 1 and dim[rows[0]] % dim[own[0]] == 0:
            yield rows[0], abs(dim[rows[0]] // dim[own[0]]), sizes.get(own[0], 1)


def fill_cost(access: Access, lane: int, costs: Costs) -> float:
    """Cycles to pack an element: vectors of it, or a transposition, or one by one."""
    if access.is_kept:
        return 0.0
    if access.is_made:
        return costs.fill_made
    if lane < 0 or not access.mask >> lane & 1 or access.is_contiguous(lane):
        return costs.fill
    is_across = not access.gate and any(access.is_contiguous(k) for k in access.strides)
    return costs.fill_across if is_across else costs.fill_apart


# ---------------------------------------------------------------- caches


class Operand(NamedTuple):
    """What a nest reads or writes, for `moved`.

    `tight` is what is packed for lanes: it has no lines that are read in part. What else is packed
    has in `kept` the extents of axes that it is of. `apart` are axes whose loops it is not in.
    """

    access: Access
    tight: bool = False
    kept: dict[int, int] | None = None
    apart: int = 0


def moved(
    operands: Sequence[Operand],
    levels: Sequence[Level],
    sizes: dict[int, int],
    target: Target,
    parts: dict[tuple[object, ...], tuple[int, float]],
) -> float:
    """Cycles to move operands into L1 or L2, with loops in this order, outermost first.

    Where all that a loop needs fits, it is moved once for all of its iterations. Where it does
    not, only an operand that the loop does not change stays; what only just fits is in between.
    For a piece of memory that begins far from the last one there is some waiting, but not where a
    loop goes on along a line. `parts` are bytes of parts of operands that have been counted before.
    """
    insides = [dict(sizes)]  # how far each axis goes inside of the first loops
    for level in levels:
        insides.append({**insides[-1], level.axis: level.step})
    bytes_at: list[list[int]] = []
    kept_at: list[float] = []  # what they take of a cache, all together
    for inside in insides:
        bytes_at.append([])
        kept_at.append(0.0)
        for x, tight, _, _ in operands:
            key = id(x), tight, *[inside.get(k, 1) for k in x.axes]
            part = parts.get(key)
            if part is None:
                nbytes = x.itemsize * x.box(inside, 1 if tight else LINE // x.itemsize)
                part = nbytes, nbytes * (1.0 if tight else crowding(x, inside))
                parts[key] = part
            bytes_at[-1].append(part[0])
            kept_at[-1] += part[1]
    costs = costs_of(target)

    def cycles_of(fits: int, rate: float, piece: float) -> float:
        """Cycles, where the cache holds what is inside of the first `fits` loops."""
        total = 0.0
        for (access, tight, kept, apart), nbytes in zip(operands, bytes_at[fits], strict=True):
            around = [x for x in levels[:fits] if not apart >> x.axis & 1]
            times = math.prod([x.count for x in around[:-1]])
            cost = nbytes / rate
            last = around[-1] if around and access.mask >> around[-1].axis & 1 else None
            cost *= last.count if last else 1
            if piece and not tight:
                pitches = access.pitches(kept)
                waiting = piece * access.pieces(insides[fits], pitches)
                if last:
                    step = access.distance(last.axis, pitches) * last.step * access.itemsize
                    waiting *= last.count if step > costs.stream else 1
                cost += waiting
            total += cost * times
        return total

    cycles = 0.0
    for capacity, rate, piece in (
        (target.l1_bytes, costs.l1_rate, 0.0),
        (target.l2_bytes, costs.l2_rate, costs.piece),
        (target.l2_bytes * costs.beyond, costs.l2_rate, costs.far_piece),
        (target.llc_bytes // 2, costs.memory_rate, 0.0),  # others have a part of it
    ):
        # a quarter of a cache is left to the rest; of what takes a part of that, a part is lost
        sure = capacity // 4 * 3
        fits = next((k for k, b in enumerate(kept_at) if b <= sure), len(levels))
        total = cycles_of(fits, rate, piece)
        if fits and kept_at[fits - 1] < capacity:
            lost = (kept_at[fits - 1] - sure) / (capacity - sure)
            total = lost * total + (1 - lost) * cycles_of(fits - 1, rate, piece)
        cycles = max(cycles, total)
    return cycles


def crowding(load: Access, extents: dict[int, int]) -> float:
    """How many times its size a piece of an operand takes of a cache.

    Rows that are as far apart as the sets of a cache reach share the sets that one row falls into.
    """
    covered = lines = 1  # of one way of a cache, and of what is read
    for axis, stride in load.strides.items():
        extent, step = extents.get(axis, 1), abs(stride or 0) * load.itemsize
        if extent == 1 or not step:
            continue
        if step < LINE:
            extent = -(-extent * step // LINE)
        lines *= extent
        covered *= min(extent, WAY // max(math.gcd(step, WAY), LINE))
    return max(1.0, min(lines, WAY // LINE) / covered)


def registers_of(target: Target) -> int:
    """How many vector registers there are: those of AVX-512, or of what came before."""
    return 32 if target.vector_bytes >= 64 else 16
