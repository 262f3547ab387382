"""From a tiled kernel to lists of operations: copies of tiles, vectors of lanes, registers.

Every node is computed once for each combination of the tiles that it depends on, as a scalar or
as a vector of the lanes that it depends on.

Method: the recipe of register tiling by outer products (Goto and van de Geijn, ACM TOMS 2008),
generalised to any graph: reduction tiles are outermost, then rows, copies of vectors innermost,
so that what is broadcast meets all its vectors at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from tiny.codegen.lower.emit import Emitter, Scope, constants_of
from tiny.codegen.lower.indices import LinearForm, is_linear, linear_form
from tiny.codegen.lower.tiled import Loop, TiledKernel, axis_masks
from tiny.codegen.program import Phase
from tiny.dtype import DType, dtypes
from tiny.uop.ops import AxisType, GroupOp, Ops, RangeArg, RegArg, UOp

__all__ = ["expand"]

Combo = tuple[int, ...]  # a position along each tile of the kernel

# A chain of dependent additions waits for each one's result; with this many chains side by side
# the units are busy. More only cost registers.
ENOUGH_ACCUMULATORS = 8

# How many steps a sum of floats takes before it goes into another one: see _levels.
LONG_SUM = 16  # at least, in a contraction
SHORT_SUM = 64  # at most, in float32, before one in float64

# a tile of as many neighbours in memory is loaded as vectors, and transposed
WORTH_TRANSPOSING = 4

_COMBINE = {Ops.ADD: Ops.ADD, Ops.MUL: Ops.MUL, Ops.MAX: Ops.MAX}
_COMBINE_BOOL = {Ops.ADD: Ops.OR, Ops.MUL: Ops.AND, Ops.MAX: Ops.OR}


def expand(kernel: TiledKernel, sink: UOp, has_double: bool = False) -> tuple[Phase, ...]:
    """The operations of a kernel in execution order (level 4), phase by phase.

    `sink` is the kernel's graph with flat offsets and nothing that the target lacks. With
    `has_double`, long sums of float32 that are no contractions are carried on in float64.
    """
    return _Expansion(kernel, sink, has_double).run()


@dataclass(slots=True)
class _Node:
    """What is known of a node before anything is expanded.

    `mask`: the axes that it depends on. `lane`: the one of them that is a vector's. `tiles`: the
    places in a combination of those that are tiles; `key` picks them out. `needs`: the nodes
    whose values its own is made of. `hoists`: the REDUCEs and STAGEs below it, a set of their
    numbers.
    """

    mask: int
    lane: UOp | None
    tiles: tuple[int, ...]
    key: Callable[[Combo], object]
    needs: tuple[UOp, ...] = ()
    form: LinearForm | None = None
    hoists: int = 0


@dataclass(slots=True)
class _Accumulator:
    """One register of a reduction: for a combination of outer tiles, and one of its own."""

    outer: Combo
    separate: Combo
    value: UOp  # what it holds now


@dataclass(slots=True)
class _Sums:
    """Reductions in the same loops: their accumulators, and what is known of their tiles."""

    group: list[UOp]
    own: list[int]  # tiles that they reduce over
    separate: list[int]  # those of them that have accumulators of their own
    lane: UOp | None  # the axis of lanes that they reduce over
    levels: list[Loop]  # see _levels
    accumulators: list[dict[tuple[Combo, Combo], _Accumulator]]

    def each(self) -> Iterator[tuple[UOp, dict[tuple[Combo, Combo], _Accumulator]]]:
        """Each REDUCE with its accumulators."""
        return zip(self.group, self.accumulators, strict=True)


@dataclass(slots=True)
class _Aside:
    """Loops that are set aside, and what holds inside of them."""

    sizes: list[int | UOp]
    counts: list[int]
    running: dict[int, UOp]
    scopes: list[Scope] = field(default_factory=list)


@dataclass(slots=True)
class _Body:
    """One of the bodies of a loop: it runs `count` times, or once if that is None.

    `at` is what the number of the iteration is where it is not that of the loop, `size` how many
    elements of the axis an iteration has to cover. If `runs_tiles`, the loop goes over the tile
    of the axis as well, one after the other.
    """

    count: UOp | None
    size: int | UOp
    at: UOp | None = None
    runs_tiles: bool = False


class _Expansion(Emitter):
    """The expansion of one kernel: values by node and combination, known where they are placed.

    A value is remembered in the innermost open loop that its node depends on, and forgotten when
    that closes. While a reduction is computed further out, the loops inside are set aside.
    """

    def __init__(self, kernel: TiledKernel, sink: UOp, has_double: bool) -> None:
        super().__init__()
        self.kernel, self.sink = kernel, sink
        self.has_double = has_double and not kernel.strict
        order = sink.postorder()
        # passes may have made the nodes of ranges anew, so these go by number
        self.leaves = {n.arg.axis: n for n in order if n.op is Ops.RANGE}
        self.bits: dict[int, int] = {}  # number of a leaf -> bit; a loop's two have one
        for k in self.leaves:
            self.bits[k] = 1 << k
        for loop in kernel.loops:
            self.bits[loop.leaf.arg.axis] = 1 << loop.leaf.arg.axis
            if loop.position is not None:
                self.bits[loop.position.arg.axis] = 1 << loop.leaf.arg.axis
        self.loop_mask = 0
        for loop in kernel.loops:
            self.loop_mask |= 1 << loop.leaf.arg.axis
        self.tile_numbers = [t.arg.axis for t in kernel.tiles]
        self.tile_bits = [1 << t for t in self.tile_numbers]
        self.tile_place = {t: k for k, t in enumerate(self.tile_numbers)}
        self.tile_sizes = [t.src[0].arg for t in kernel.tiles]
        self.counts = list(self.tile_sizes)  # in the loops that are open now
        self.sizes: list[int | UOp] = [a.size for a in kernel.axes]  # for what is inside of those
        self.axis_of_lane = {
            a.lane.arg.axis: k for k, a in enumerate(kernel.axes) if a.lane is not None
        }
        self.lane_mask = sum(1 << k for k in self.axis_of_lane)
        for k in range(len(kernel.axes)):
            self._count_tiles(k)
        self.innermost = {loop.axis: loop for loop in kernel.loops}
        for loop in kernel.loops:
            if loop.step < self.innermost[loop.axis].step:
                self.innermost[loop.axis] = loop
        self.no_tiles: Combo = (0,) * len(self.tile_bits)
        self.stores = list(sink.src)
        self.hoisted = [n for n in order if n.op is Ops.REDUCE or n.op is Ops.STAGE]
        self.fills: dict[UOp, int] = {}  # STAGE -> how often it has been filled
        self.filled_before: set[UOp] = set()  # in earlier phases
        self.running: dict[int, UOp] = {}  # tiles that are gone through one by one, in loops
        self.fresh = 0  # for reads that are like no other
        self.nodes: dict[UOp, _Node] = {}
        self._describe(order)

        self.next_axis = self.next_register = 0

    # ------------------------------------------------------------ what is known beforehand

    def _describe(self, order: Sequence[UOp]) -> None:
        bit_of = {leaf: self.bits[k] for k, leaf in self.leaves.items()}
        masks = axis_masks(order, bit_of)
        getters: dict[int, tuple[tuple[int, ...], Callable[[Combo], object]]] = {}
        numbers = {n: k for k, n in enumerate(self.hoisted)}
        for node in order:
            mask = masks[node]
            if mask not in getters:
                tiles = tuple([k for k, b in enumerate(self.tile_bits) if b & mask])
                getters[mask] = tiles, itemgetter(*tiles) if tiles else _no_tiles
            lane_bit = mask & self.lane_mask
            if node.op is Ops.SINK:
                continue
            if lane_bit & (lane_bit - 1):
                raise ValueError(
                    f"{node.op!r} depends on two axes of lanes; make one of them a loop"
                )
            lane = self.leaves[lane_bit.bit_length() - 1] if lane_bit else None
            info = _Node(mask, lane, *getters[mask])
            for s in node.src:
                if s.op is not Ops.RANGE:
                    info.hoists |= self.nodes[s].hoists
            if node in numbers:
                info.hoists |= 1 << numbers[node]
            elif node.op is Ops.INDEX:
                info.form = linear_form(node.src[1])
                info.needs = (*_terms(info.form), *node.src[2:])
            elif is_linear(node):
                info.form = linear_form(node)
                info.needs = _terms(info.form)
            elif node.op in GroupOp.Elementwise:
                info.needs = node.src
            self.nodes[node] = info

    # ------------------------------------------------------------ loops

    def _count_tiles(self, axis: int) -> None:
        """How many copies of a tile there are to cover what is left of an axis."""
        a, size = self.kernel.axes[axis], self.sizes[axis]
        if a.tile is not None:
            place = self.tile_place[a.tile.arg.axis]
            most = self.tile_sizes[place]
            if isinstance(size, int):
                lanes = 1 if a.lane is None else a.lane.src[0].arg
                most = min(most, -(-size // lanes))
            self.counts[place] = most

    def _emit_all(self, node: UOp) -> UOp:
        """A node over variables and constants, and all that it is made of."""
        for n in node.postorder():
            self.emit(n)
        return node

    def _size(self, size: int | UOp) -> UOp:
        return self.const(size) if isinstance(size, int) else self._emit_all(size)

    def _bodies(self, loop: Loop) -> list[_Body]:
        """The main body of a loop, and one for what is left over, if anything is or may be."""
        size, step = self.sizes[loop.axis], loop.step
        if self.kernel.axes[loop.axis].shifts:
            if isinstance(size, int):
                return [_Body(self.const(-(-size // step)), step)]
            more = self._emit_all((size + (step - 1)) // step) if step > 1 else self._size(size)
            return [_Body(more, step)]
        if isinstance(size, int):
            times, left = divmod(size, step)
            bodies = [_Body(self.const(times), step)] if times else []
            if left:
                bodies.append(_Body(None, left, self.const(times)))
            return bodies
        self._emit_all(size)
        if step == 1:
            return [_Body(size, 1)]
        whole = self._emit_all(size // step)
        bodies = [_Body(whole, step)] if size.vmax >= step else []
        rest = self._emit_all(size % step)
        if loop is self.innermost[loop.axis]:
            lane = self.kernel.axes[loop.axis].lane
            lanes = 1 if lane is None else lane.src[0].arg
            count = rest if lanes == 1 else self._emit_all((rest + (lanes - 1)) // lanes)
            bodies.append(_Body(count, rest, whole, runs_tiles=True))
        else:
            some = self.emit(UOp(Ops.CMPLT, dtypes.bool, (self.const(0), rest)))
            bodies.append(_Body(self._number(some), rest, whole))
        return bodies

    def _number(self, condition: UOp) -> UOp:
        """1 or 0: how often a loop runs that does so if a condition holds."""
        src = (condition, self.const(1), self.const(0))
        return self.emit(UOp(Ops.WHERE, dtypes.index, src))

    def _range(self, count: UOp, kind: AxisType) -> UOp:
        self.next_axis += 1
        return UOp(Ops.RANGE, dtypes.index, (count,), RangeArg(self.next_axis - 1, kind))

    def _enter(self, loop: Loop, body: _Body) -> None:
        """Open a body of a loop."""
        number, axis = loop.leaf.arg.axis, loop.axis
        tile = self.kernel.axes[axis].tile
        scope = Scope(1 << number)
        if body.count is not None:
            kind = AxisType.THREAD if loop.is_thread and body.at is None else loop.leaf.arg.kind
            scope.range = self._range(body.count, kind)
        self.open(scope)
        iteration = scope.range if body.at is None else body.at
        assert iteration is not None
        scope.places[number] = iteration
        if loop.position is not None:
            start = self.times(iteration, loop.step)
            last = self._size(self.sizes[axis])
            last = (
                self._emit_all(UOp(Ops.SUB, dtypes.index, (last, self.const(loop.step))))
                if last.op is not Ops.CONST
                else self.const(last.arg - loop.step)
            )
            inside = self.emit(UOp(Ops.CMPLT, dtypes.bool, (start, last)))
            start = self.emit(UOp(Ops.WHERE, dtypes.index, (inside, start, last)))
            scope.places[loop.position.arg.axis] = start
        scope.before = axis, self.sizes[axis]
        self.sizes[axis] = body.size
        self._count_tiles(axis)
        if body.runs_tiles and tile is not None:
            assert scope.range is not None
            scope.bits |= 1 << tile.arg.axis
            self.running[tile.arg.axis] = scope.places[tile.arg.axis] = scope.range
            self.counts[self.tile_place[tile.arg.axis]] = 1
            self.depths.clear()

    def _leave(self) -> UOp | None:
        """Close the innermost body of a loop; its END."""
        self._restore(self.scopes[-1])
        return self.close()

    def _restore(self, scope: Scope) -> None:
        """What is known of an axis outside of a body of its loop."""
        if scope.before is not None:
            axis, size = scope.before
            self.sizes[axis] = size
            self._count_tiles(axis)
            if (tile := self.kernel.axes[axis].tile) is not None:
                self.running.pop(tile.arg.axis, None)

    def _nested(self, loops: Sequence[Loop], body: Callable[[], None]) -> None:
        """Write a body inside of loops, and again for what each of them leaves over."""
        if not loops:
            body()
            return
        loop, inner = loops[0], loops[1:]
        bodies = self._bodies(loop)
        first = bodies[0].count
        is_plain = len(bodies) == 1 and first is not None and first.op is Ops.CONST
        if loop.is_thread and not is_plain:
            self._shared(loop, bodies, inner, body)
            return
        for b in bodies:
            self._enter(loop, b)
            self._nested(inner, body)
            self._leave()

    def _shared(
        self, loop: Loop, bodies: list[_Body], inner: Sequence[Loop], body: Callable[[], None]
    ) -> None:
        """A loop of threads, of a size that is known: each iteration runs the body it is for."""
        size = self.sizes[loop.axis]
        most = size if isinstance(size, int) else size.vmax
        iteration = self._range(self.const(-(-most // loop.step)), AxisType.THREAD)
        self.open(Scope(range=iteration))
        for b in bodies:
            if b.at is None:
                assert b.count is not None
                mine = self.emit(UOp(Ops.CMPLT, dtypes.bool, (iteration, b.count)))
                b = _Body(self._number(mine), b.size, iteration)
            else:
                mine = self.emit(UOp(Ops.CMPEQ, dtypes.bool, (iteration, b.at)))
                count = self.const(1) if b.count is None else b.count
                src = (mine, count, self.const(0))
                b.count = self.emit(UOp(Ops.WHERE, dtypes.index, src))
            self._enter(loop, b)
            self._nested(inner, body)
            self._leave()
        self.close()

    def _loops_of(self, mask: int) -> list[Loop]:
        return [loop for loop in self.kernel.loops if 1 << loop.leaf.arg.axis & mask]

    # ------------------------------------------------------------ the whole

    def run(self) -> tuple[Phase, ...]:
        """A phase for each STAGE that threads share, then one for the stores."""
        phases = []
        for node in self.hoisted:
            if node.op is Ops.STAGE and node.arg.shared:
                self._fill(node)
                self.filled_before.add(node)
                phases.append(self._phase())
        self._store_all()
        phases.append(self._phase())
        return tuple(phases)

    def _phase(self) -> Phase:
        """What has been written, as a phase; the next one begins with nothing."""
        lines = tuple(self.scopes[0].lines)
        counts = [u.src[0].arg for u in lines if _is_thread_loop(u)]
        self.scopes = [Scope()]
        self.home.clear()
        self.depths.clear()
        return Phase(lines, counts[0] if counts else 1)

    def _store_all(self) -> None:
        """Expand the stores, those over the same loops together."""
        written: set[UOp] = set()
        for mask, group in itertools.groupby(
            self.stores, key=lambda s: self.nodes[s].mask & self.loop_mask
        ):
            stores = list(group)
            loads = {
                n.src[0]
                for s in stores
                for part in (s.src[1], *s.src[0].src[1:])
                for n in part.postorder()
                if n.op is Ops.INDEX
            }
            if loads & written:
                slots = sorted(p.arg.slot for p in loads & written)
                raise ValueError(
                    f"the kernel reads buffers {slots} in one loop nest after writing them in "
                    "another; it has to be two kernels"
                )
            in_place = bool(loads & {s.src[0].src[0] for s in stores})
            self._nested(self._loops_of(mask), lambda: self._store_body(stores, in_place))  # noqa: B023
            written |= {s.src[0].src[0] for s in stores}

    def _store_body(self, stores: list[UOp], in_place: bool) -> None:
        """Compute and store values, inside of the loops that are theirs."""
        hoists = 0
        for store in stores:
            hoists |= self.nodes[store].hoists
        self._hoist_all(hoists)
        late: list[tuple[UOp, Combo]] = []
        for store in stores:
            if in_place:  # all is read before anything is written
                for combo in self._combos(self.nodes[store].tiles):
                    self.value(store.src[1], combo)
                    self._address_values(store.src[0], combo)
                    late.append((store, combo))
            else:
                self._store_tiles(store)
        for store, combo in late:
            self._store(store, combo)

    def _store_tiles(self, store: UOp) -> None:
        """Store a value for all tiles; through a transposition, where that makes vectors."""
        info = self.nodes[store]
        across = self._across(store.src[0], info.lane, info.tiles)
        if across is None:
            for combo in self._combos(info.tiles):
                self.value(store.src[1], combo)
                self._store(store, combo)
            return
        assert info.lane is not None
        lanes, count = info.lane.src[0].arg, self.counts[across]
        for combo in self._combos([k for k in info.tiles if k != across]):
            for first in range(0, count, lanes):
                some = min(lanes, count - first)
                places = [_at(combo, across, first + k) for k in range(some)]
                if some < WORTH_TRANSPOSING:
                    for place in places:
                        self.value(store.src[1], place)
                        self._store(store, place)
                    continue
                columns = [self.wide(self.value(store.src[1], p), lanes) for p in places]
                columns += [columns[0]] * (lanes - some)
                self._address_values(store.src[0], places[0])
                form = self.nodes[store.src[0]].form
                assert form is not None
                gate = None if some == lanes else self._prefix(some, lanes)
                rows = self.transposed(columns)
                for k in range(self._valid_lanes(info.lane, combo)):
                    at = self._offset(form, places[0], k)
                    self._write(store.src[0], at, rows[k], gate)

    def _combos(self, tiles: Sequence[int], base: Combo | None = None) -> Iterator[Combo]:
        """All positions along these tiles, the last one fastest; `base` gives the others'."""
        combo = list(self.no_tiles if base is None else base)
        for at in itertools.product(*[range(self.counts[k]) for k in tiles]):
            for k, position in zip(tiles, at, strict=True):
                combo[k] = position
            yield tuple(combo)

    # ------------------------------------------------------------ values
    def _known(self, node: UOp, combo: Combo) -> UOp | None:
        info = self.nodes[node]
        return self.scopes[self.depth(info.mask)].memo.get((node, info.key(combo)))

    def _remember(self, node: UOp, combo: Combo, value: UOp) -> None:
        info = self.nodes[node]
        self.scopes[self.depth(info.mask)].memo[node, info.key(combo)] = value

    def value(self, root: UOp, combo: Combo) -> UOp:
        """The operation that computes a node at a combination, and all it needs, placed.

        Its shape is () where all lanes have one value.
        """
        stack = [root]
        while stack:
            node = stack[-1]
            if self._known(node, combo) is not None:
                stack.pop()
                continue
            missing = [n for n in self.nodes[node].needs if self._known(n, combo) is None]
            if missing:
                stack += reversed(missing)
            else:
                stack.pop()
                self._remember(node, combo, self._compute(node, combo))
        found = self._known(root, combo)
        assert found is not None
        return found

    def _compute(self, node: UOp, combo: Combo) -> UOp:
        """A node whose needs are computed."""
        info, op = self.nodes[node], node.op
        if op is Ops.INDEX:
            return self._load(node, combo)
        if op is Ops.RANGE:
            number = node.arg.axis
            place = self.scopes[self.depth(self.bits[number])].places.get(number)
            if place is not None:
                return place
            if 1 << number & self.lane_mask:
                return self.constants(range(node.src[0].arg), dtypes.index)
            return self.const(combo[self.tile_place[number]])
        if info.form is not None:
            return self._index_value(info, combo)
        if op in (Ops.CONST, Ops.DEFINE_VAR, Ops.PARAM):
            return self.emit(node)
        if op not in GroupOp.Elementwise:
            raise ValueError(f"{op!r} is no part of a kernel; the schedule has to remove it")
        return self.alu(node, [self._value_of(s, combo) for s in node.src])

    def _value_of(self, node: UOp, combo: Combo) -> UOp:
        found = self._known(node, combo)
        assert found is not None, f"{node.op!r} is not computed yet"
        return found

    # ------------------------------------------------------------ indices

    def _base(self, form: LinearForm, combo: Combo, lane: int = 0) -> tuple[UOp | None, int]:
        """(sum over loops, constant) of an index in one lane: outer loops are added up first."""
        constant = form.constant
        parts: list[tuple[int, UOp, int]] = []
        for term, factor in form.terms:
            if term.op is Ops.RANGE:
                number = term.arg.axis
                if 1 << number & self.lane_mask:
                    constant += factor * lane
                    continue
                if number in self.tile_place and number not in self.running:
                    constant += factor * combo[self.tile_place[number]]
                    continue
                x = self.running[number] if number in self.running else self._value_of(term, combo)
            else:
                x = self.lane(self._value_of(term, combo), lane)
            if x.op is Ops.CONST:
                constant += factor * x.arg
            else:
                parts.append((self.home[x], x, factor))
        parts.sort(key=itemgetter(0))
        total: UOp | None = None
        for _, x, factor in parts:
            part = self.times(x, factor)
            total = part if total is None else self.emit(total + part)
        return total, constant

    def _offset(self, form: LinearForm, combo: Combo, lane: int = 0) -> UOp:
        """The value of an index in one lane."""
        base, constant = self._base(form, combo, lane)
        if base is None:
            return self.const(constant)
        return self.emit(base + self.const(constant)) if constant else base

    def _stride(self, form: LinearForm, lane: UOp | None) -> int | None:
        """How far apart neighbouring lanes of an index are; None if not evenly."""
        stride = 0
        if lane is not None:
            bit = 1 << lane.arg.axis
            for term, factor in form.terms:
                if term is lane:
                    stride = factor
                elif self.nodes[term].mask & bit:
                    return None
        return stride

    def _index_value(self, info: _Node, combo: Combo) -> UOp:
        """An index used as a number."""
        assert info.form is not None
        stride = self._stride(info.form, info.lane)
        if info.lane is None or stride == 0:
            return self._offset(info.form, combo)
        return self._offsets(info.form, info.lane, combo)

    def _offsets(self, form: LinearForm, lane: UOp, combo: Combo) -> UOp:
        """The value of an index in all lanes."""
        bit, lanes = 1 << lane.arg.axis, lane.src[0].arg
        same = [(t, f) for t, f in form.terms if not self.nodes[t].mask & bit]
        base, constant = self._base(LinearForm(form.constant, tuple(same)), combo)
        total = [constant] * lanes  # of the lanes' constant parts
        parts = [] if base is None else [self.wide(base, lanes)]
        for term, factor in form.terms:
            if term is lane:
                total = [c + factor * k for k, c in enumerate(total)]
            elif self.nodes[term].mask & bit:
                x = self._value_of(term, combo)
                known = constants_of(x, lanes)
                if known is not None:
                    total = [c + factor * v for c, v in zip(total, known, strict=True)]
                    continue
                x = self.wide(x, lanes)
                if factor != 1:
                    x = self.index_op(Ops.MUL, x, self.wide(self.const(factor), lanes))
                parts.append(x)
        if not parts or any(total):
            parts.append(self.wide(self.constants(total, dtypes.index), lanes))
        for part in parts[1:]:
            parts[0] = self.index_op(Ops.ADD, parts[0], part)
        return parts[0]

    # ------------------------------------------------------------ lanes that are idle

    def _valid_lanes(self, lane: UOp, combo: Combo) -> int:
        """How many lanes of a vector are inside of its axis."""
        axis = self.axis_of_lane[lane.arg.axis]
        size, lanes = self.sizes[axis], lane.src[0].arg
        if not isinstance(size, int):
            return lanes
        tile = self.kernel.axes[axis].tile
        first = 0 if tile is None else combo[self.tile_place[tile.arg.axis]] * lanes
        return min(lanes, size - first)

    def _idle(self, lane: UOp | None, combo: Combo) -> UOp | None:
        """The condition under which a lane is inside of its axis; None if all are."""
        if lane is None:
            return None
        axis = self.axis_of_lane[lane.arg.axis]
        size, lanes = self.sizes[axis], lane.src[0].arg
        if isinstance(size, int):
            valid = self._valid_lanes(lane, combo)
            return None if valid == lanes else self._prefix(valid, lanes)
        tile = self.kernel.axes[axis].tile
        if all(1 << lo.leaf.arg.axis & ~self._open_bits() for lo in self._loops_of_axis(axis)):
            return None  # in front of its loops
        left = self._emit_all(size)
        if tile is not None and (at := self.running.get(tile.arg.axis)) is not None:
            done = self.times(at, lanes)
            left = self.emit(UOp(Ops.SUB, dtypes.index, (left, done)))
        here = self.constants(range(lanes), dtypes.index)
        return self.emit(UOp(Ops.CMPLT, dtypes.bool, (here, self.wide(left, lanes))))

    def _open_bits(self) -> int:
        bits = 0
        for scope in self.scopes:
            bits |= scope.bits
        return bits

    def _loops_of_axis(self, axis: int) -> list[Loop]:
        return [loop for loop in self.kernel.loops if loop.axis == axis]

    def _prefix(self, count: int, lanes: int) -> UOp:
        """True in the first lanes."""
        return self.constants([k < count for k in range(lanes)], dtypes.bool)

    # ------------------------------------------------------------ memory

    def _memory(self, index: UOp) -> UOp:
        """What an INDEX is into: a PARAM or scratch memory."""
        memory = index.src[0]
        if memory.op is Ops.STAGE:
            memory = memory.src[0].src[0].src[0]
        return self.emit(memory)

    def _address(self, index: UOp, offset: UOp) -> UOp:
        return self.emit(UOp(Ops.INDEX, index.dtype, (self._memory(index), offset)))

    def _gate(self, index: UOp, combo: Combo) -> UOp | None:
        """The condition of an access; None if it always holds."""
        if len(index.src) < 3:
            return None
        gate = self._value_of(index.src[2], combo)
        return None if gate.op is Ops.CONST and gate.arg else gate

    def _both(self, a: UOp | None, b: UOp | None) -> UOp | None:
        """Two conditions at once."""
        if a is None or b is None:
            return b if a is None else a
        lanes = max(x.shape[0] if x.shape else 1 for x in (a, b))
        known = [constants_of(x, lanes) for x in (a, b)]
        if known[0] is not None and known[1] is not None:
            both = [bool(p and q) for p, q in zip(*known, strict=True)]
            return self.constants(both, dtypes.bool)
        a, b = self.wide(a, lanes), self.wide(b, lanes)
        return self.emit(UOp(Ops.AND, dtypes.bool, (a, b)))

    def _read(self, index: UOp, offset: UOp, lanes: int, gate: UOp | None) -> UOp:
        """A LOAD, in the innermost loop that its node depends on."""
        gated = () if gate is None else (gate,)
        memory = index.src[0]
        tag = None
        if memory.op is Ops.STAGE:
            tag = self.fills.get(memory)
        elif memory.op is Ops.DEFINE_LOCAL:
            self.fresh += 1
            tag = -self.fresh
        address = self._address(index, offset)
        load = UOp(Ops.LOAD, index.dtype, (address, *gated), lanes, tag)
        return self.emit_in(load, self.depth(self.nodes[index].mask))

    def _load(self, index: UOp, combo: Combo) -> UOp:
        """The elements of a buffer: a vector, a scalar for all lanes, or one lane at a time."""
        info = self.nodes[index]
        assert info.form is not None
        gate = self._gate(index, combo)
        if gate is not None and gate.op is Ops.CONST and index.dtype.kind in "biu":
            return self.emit(UOp.const(0, index.dtype))
        if gate is not None and gate.op is Ops.CONST and index.dtype.bitsize >= 32:
            return self.emit(UOp.const(0.0, index.dtype))
        stride = self._stride(info.form, info.lane)
        lanes = 1 if info.lane is None else info.lane.src[0].arg
        if stride == 0 and (gate is None or not gate.shape):
            return self._read(index, self._offset(info.form, combo), 1, gate)
        gate = self._both(gate, self._idle(info.lane, combo))
        if stride == 1:
            return self._read(index, self._offset(info.form, combo), lanes, gate)
        if stride == -1 and (gate is None or not gate.shape):
            at = self._offset(info.form, combo, lanes - 1)
            return self.reversed(self._read(index, at, lanes, gate))
        across = self._across(index, info.lane, info.tiles)
        if across is not None:
            return self._load_across(index, combo, across)
        parts = []
        zero = None
        for lane, at in enumerate(self._lane_offsets(info.form, info.lane, combo)):
            one = None if gate is None else self.lane(gate, lane)
            if one is not None and one.op is Ops.CONST and not one.arg:
                if zero is None:
                    zero = self._read(index, at, 1, one)
                parts.append(zero)
                continue
            if one is not None and one.op is Ops.CONST:
                one = None
            parts.append(self._read(index, at, 1, one))
        return self.emit(UOp(Ops.STACK, index.dtype, tuple(parts)))

    def _across(self, index: UOp, lane: UOp | None, tiles: tuple[int, ...]) -> int | None:
        """The tile whose neighbours are neighbours in memory, where those of lanes are not.

        None where transposing is not possible or not worth it.
        """
        info = self.nodes[index]
        if lane is None or len(index.src) > 2 or info.form is None:
            return None
        lanes = lane.src[0].arg
        nbytes = lanes * index.dtype.itemsize
        if lanes < WORTH_TRANSPOSING or lanes & (lanes - 1) or nbytes > 64:
            return None
        if self._stride(info.form, lane) in (None, 0, 1, -1):
            return None
        axis = self.axis_of_lane[lane.arg.axis]
        if not isinstance(self.sizes[axis], int):
            return None
        for term, factor in info.form.terms:
            if term.op is Ops.RANGE and factor == 1:
                place = self.tile_place.get(term.arg.axis)
                if place in tiles and term.arg.axis not in self.running:
                    bit = 1 << term.arg.axis
                    alone = all(
                        t is term or not self.nodes[t].mask & bit for t, _ in info.form.terms
                    )
                    if alone and self.counts[place] >= WORTH_TRANSPOSING:
                        return place
        return None

    def _load_across(self, index: UOp, combo: Combo, across: int) -> UOp:
        """Lanes that are far apart: vectors along the tile, for each lane, transposed."""
        info = self.nodes[index]
        assert info.form is not None and info.lane is not None
        lanes = info.lane.src[0].arg
        first = combo[across] // lanes * lanes
        some = min(lanes, self.counts[across] - first)
        base = _at(combo, across, first)
        gate = None if some == lanes else self._prefix(some, lanes)
        valid = self._valid_lanes(info.lane, combo)
        starts = [self._offset(info.form, base, k) for k in range(valid)]
        rows = [self._read(index, at, lanes, gate) for at in starts]
        rows += [rows[0]] * (lanes - valid)
        columns = self.transposed(rows)
        for k in range(some):
            self._remember(index, _at(combo, across, first + k), columns[k])
        return columns[combo[across] - first]

    def _lane_offsets(self, form: LinearForm, lane: UOp | None, combo: Combo) -> list[UOp]:
        """The value of an index in each lane, by itself."""
        assert lane is not None
        lanes = lane.src[0].arg
        if self._stride(form, lane) is None:
            offsets = self._offsets(form, lane, combo)
            return [self.lane(offsets, k) for k in range(lanes)]
        return [self._offset(form, combo, k) for k in range(lanes)]

    def _address_values(self, index: UOp, combo: Combo) -> None:
        """Compute what an address and its gate are made of."""
        for node in self.nodes[index].needs:
            self.value(node, combo)

    def _store(self, store: UOp, combo: Combo) -> None:
        """Write the lanes of a value: as a vector where they are neighbours, else one by one."""
        index, lane = store.src[0], self.nodes[store].lane
        info = self.nodes[index]
        assert info.form is not None
        self._address_values(index, combo)
        value, gate = self._value_of(store.src[1], combo), self._gate(index, combo)
        if gate is not None and gate.op is Ops.CONST:
            return
        stride = self._stride(info.form, lane)
        if lane is None:
            self._write(index, self._offset(info.form, combo), value, gate)
            return
        lanes = lane.src[0].arg
        if stride == 0:
            raise ValueError("the lanes of a vector are all stored to one address")
        gate = self._both(gate, self._idle(lane, combo))
        if stride == 1:
            self._write(index, self._offset(info.form, combo), self.wide(value, lanes), gate)
        elif stride == -1 and (gate is None or not gate.shape):
            backward = self.reversed(self.wide(value, lanes))
            self._write(index, self._offset(info.form, combo, lanes - 1), backward, gate)
        else:
            for k, at in enumerate(self._lane_offsets(info.form, lane, combo)):
                one = None if gate is None else self.lane(gate, k)
                if one is not None and one.op is Ops.CONST:
                    if not one.arg:
                        continue
                    one = None
                self._write(index, at, self.lane(value, k), one)

    def _write(self, index: UOp, offset: UOp, value: UOp, gate: UOp | None) -> None:
        """A STORE, in the innermost loop."""
        address = self._address(index, offset)
        src = (address, value) if gate is None else (address, value, gate)
        self.scopes[-1].lines.append(UOp(Ops.STORE, dtypes.void, src))

    # ------------------------------------------------------------ what is done ahead

    def _hoist_all(self, wanted: int) -> None:
        """Compute the REDUCEs and fill the STAGEs of a set, in order.

        Only as far as the loops around them are open. REDUCEs over the same ranges in the same
        loops share the new loops, unless one needs the other.
        """
        open_bits = self._open_bits()
        ready = []
        for number in _bits(wanted):
            node = self.hoisted[number]
            if not self.nodes[node].mask & self.loop_mask & ~open_bits:
                ready.append(number)
        for number in ready:
            first = self.hoisted[number]
            if self._is_there(first):
                continue
            if first.op is Ops.STAGE:
                self._fill(first)
                continue
            group, members = [first], 1 << number
            outer = self.nodes[first].mask & self.loop_mask
            for other in ready:
                node = self.hoisted[other]
                info = self.nodes[node]
                if (
                    other > number
                    and node.op is Ops.REDUCE
                    and node.src[1:] == first.src[1:]
                    and info.mask & self.loop_mask == outer
                    and not info.hoists & members
                    and not self._is_there(node)
                    and self._is_ready(info.hoists & ~(1 << other))
                ):
                    group.append(node)
                    members |= 1 << other
            self._reduce(group)

    def _is_there(self, node: UOp) -> bool:
        """Whether a REDUCE is computed, or a STAGE filled, for the loops as they are now."""
        if node.op is Ops.REDUCE:
            return self._known(node, self.no_tiles) is not None
        depth = self._fill_depth(node)
        return node in self.filled_before or (node, ()) in self.scopes[depth].memo

    def _fill_depth(self, stage: UOp) -> int:
        """The depth of the loop in which a STAGE is filled: inside of the one of threads."""
        depth = self.depth(self.nodes[stage].mask)
        if not depth and len(self.scopes) > 1 and not stage.arg.shared:
            loop = self.scopes[1].range
            if loop is not None and loop.arg.kind is AxisType.THREAD:
                return 1
        return depth

    def _is_ready(self, needed: int) -> bool:
        """Whether the members of a set are there, or can be inside of the loops about to open.

        The order of numbers is one of dependence, so a later member of a group may need one that
        comes between; then it waits for its own turn.
        """
        open_bits = self._open_bits()
        for number in _bits(needed):
            node = self.hoisted[number]
            outside = self.nodes[node].mask & self.loop_mask & ~open_bits
            if not outside and not self._is_there(node):
                return False
        return True

    def _fill(self, stage: UOp) -> None:
        """Fill the memory of a STAGE, in loops of its own."""
        store = stage.src[0]
        depth = self._fill_depth(stage)
        aside = self._go_back(depth)
        own = 0
        for r in stage.src[1:]:
            if r.op is Ops.RANGE:
                own |= self.bits[r.arg.axis]

        def body() -> None:
            self._hoist_all(self.nodes[store].hoists)
            self._store_tiles(store)

        self._nested(self._loops_of(own & self.loop_mask), body)
        self.fills[stage] = self.fills.get(stage, 0) + 1
        self.scopes[depth].memo[stage, ()] = store
        self._go_on(aside)

    def _go_back(self, depth: int) -> _Aside:
        """Set aside the loops inside of a depth, and what is known of axes in them."""
        aside = _Aside(list(self.sizes), list(self.counts), dict(self.running))
        aside.scopes = self.set_aside(depth)
        for scope in reversed(aside.scopes):
            self._restore(scope)
        return aside

    def _go_on(self, aside: _Aside) -> None:
        self.resume(aside.scopes)
        self.sizes, self.counts, self.running = aside.sizes, aside.counts, aside.running

    # ------------------------------------------------------------ reductions

    def _reduce(self, group: list[UOp]) -> None:
        """Compute REDUCEs over the same ranges: registers, loops, and what is left in the end."""
        over = [r for r in group[0].src[1:] if r.op is Ops.RANGE]
        bits = 0
        for r in over:
            bits |= self.bits[r.arg.axis]
        loops = self._loops_of(bits)
        own = [k for k, b in enumerate(self.tile_bits) if b & bits]
        lane = next((r for r in over if r.arg.kind is AxisType.VEC), None)
        depth = self.depth(self.nodes[group[0]].mask)
        aside = self._go_back(depth)

        counts = [math.prod(self.counts[k] for k in self.nodes[q].tiles) for q in group]
        separate = self._separate(own, sum(counts))
        accumulators: list[dict[tuple[Combo, Combo], _Accumulator]] = []
        levels = self._levels(group, loops)
        for q in group:
            start = self._identity(q, lane, self._level_dtype(q, levels, 0))
            mine: dict[tuple[Combo, Combo], _Accumulator] = {}
            for outer in self._combos(self.nodes[q].tiles):
                for at in self._combos(separate):
                    mine[outer, at] = _Accumulator(outer, at, start)
            accumulators.append(mine)
        sums = _Sums(group, own, separate, lane, levels, accumulators)
        self._sum_loops(sums, loops, 0)
        for q, mine in zip(group, accumulators, strict=True):
            for outer in self._combos(self.nodes[q].tiles):
                values = [mine[outer, at].value for at in self._combos(separate)]
                total = self._tree(q, values)
                if lane is not None:
                    total = self._horizontal(q, total)
                self._remember(q, outer, self.as_dtype(total, q.dtype))
        self._go_on(aside)

    def _sum_loops(self, sums: _Sums, loops: Sequence[Loop], level: int) -> None:
        """The loops of a reduction from here on; accumulators hold the result afterwards."""
        if not loops:
            self._sum_body(sums)
            return
        every = [(q, a) for q, mine in sums.each() for a in mine.values()]
        if level < len(sums.levels) and loops[0] is sums.levels[level] and level:
            totals = [a.value for _, a in every]
            for q, a in every:
                a.value = self._identity(q, sums.lane, self._level_dtype(q, sums.levels, level))
            self._sum_loops(sums, loops, level + 1)
            for (q, a), total in zip(every, totals, strict=True):
                a.value = self._combine(q, total, self.as_dtype(a.value, total.dtype))
            return
        level = max(level, 1)
        for body in self._bodies(loops[0]):
            registers: list[UOp] = []
            if body.count is not None:
                for _, a in every:
                    arg = RegArg(self.next_register, a.value.shape[0] if a.value.shape else 1)
                    register = UOp(Ops.DEFINE_REG, a.value.dtype, (a.value,), arg)
                    self.next_register += 1
                    self.scopes[-1].lines.append(register)
                    registers.append(register)
            self._enter(loops[0], body)
            for (_, a), register in zip(every, registers, strict=False):
                a.value = register  # another value in each iteration
                self.home[register] = len(self.scopes) - 1
            self._sum_loops(sums, loops[1:], level)
            for (_, a), register in zip(every, registers, strict=False):
                update = UOp(Ops.STORE, dtypes.void, (register, a.value))
                self.scopes[-1].lines.append(update)
            end = self._leave()
            for (_, a), register in zip(every, registers, strict=False):
                assert end is not None
                a.value = UOp(Ops.AFTER, register.dtype, (register, end))
                self.home[a.value] = len(self.scopes) - 1
                self.scopes[-1].lines.append(a.value)
            if not registers:  # what stands there is part of the loop around
                for _, a in every:
                    self.home[a.value] = len(self.scopes) - 1

    def _sum_body(self, sums: _Sums) -> None:
        """One step of all sums of a group, inside of their loops."""
        below = 0
        for q in sums.group:
            below |= self.nodes[q.src[0]].hoists
        self._hoist_all(below)
        for step in self._combos(sums.own):
            at = tuple([p if k in sums.separate else 0 for k, p in enumerate(step)])
            for q, mine in sums.each():
                for combo in self._combos(self.nodes[q].tiles, step):
                    outer = tuple([0 if k in sums.own else p for k, p in enumerate(combo)])
                    a = mine[outer, at]
                    a.value = self._accumulate(q, combo, a.value, sums.lane)

    def _levels(self, group: list[UOp], loops: list[Loop]) -> list[Loop]:
        """The loops of a reduction at which another sum begins, the outermost loop first.

        A long sum of floats is a sum of sums: its error grows with the length of the longest of
        them, not with that of the whole (Higham, SIAM J. Sci. Comput. 1993). A sum that is no
        contraction, such as a mean or a variance, is carried on in float64, which costs little
        beside what it loads; it has two levels, the inner one short and in float32.
        """
        if not loops:
            return []
        if self.kernel.strict or not any(
            q.arg.op is Ops.ADD and q.dtype.kind == "f" for q in group
        ):
            return [loops[0]]
        if any(self._is_statistic(q) for q in group):
            inner = len(loops)
            while inner and self._is_short(loops[inner - 1 :]):
                inner -= 1
            return [loops[k] for k in dict.fromkeys((0, inner)) if k < len(loops)]
        starts = [len(loops) - 1]
        for k in reversed(range(len(loops) - 1)):
            if _steps(loops[starts[0] :]) >= LONG_SUM:
                starts.insert(0, k)
            else:
                starts[0] = k
        return [loops[k] for k in starts]

    def _level_dtype(self, q: UOp, levels: list[Loop], level: int) -> DType:
        """What sums of a level are held in."""
        if not self._is_statistic(q):
            return q.dtype
        is_last = level + 1 >= len(levels)
        loops = [lo for lo in self.kernel.loops if lo in levels[level:]] if levels else []
        is_short = is_last and self._is_short(self._inner_loops(q, loops))
        return q.dtype if is_short else dtypes.float64

    def _inner_loops(self, q: UOp, loops: list[Loop]) -> list[Loop]:
        """The loops of a REDUCE from the first of these on."""
        if not loops:
            return []
        bits = 0
        for r in q.src[1:]:
            bits |= self.bits[r.arg.axis] if r.op is Ops.RANGE else 0
        mine = self._loops_of(bits)
        return mine[mine.index(loops[0]) :]

    def _is_statistic(self, q: UOp) -> bool:
        """Whether a REDUCE adds up float32 values or squares: no product of two things."""
        value = q.src[0]
        if value.op is Ops.WHERE and _is_zero(value.src[2]):
            value = value.src[1]
        return (
            self.has_double
            and q.arg.op is Ops.ADD
            and q.dtype is dtypes.float32
            and not (value.op is Ops.MUL and value.src[0] is not value.src[1])
        )

    @staticmethod
    def _is_short(loops: Sequence[Loop]) -> bool:
        return _steps(loops) <= SHORT_SUM

    def _separate(self, own: list[int], accumulators: int) -> list[int]:
        """The tiles of a reduction that get accumulators of their own."""
        found: list[int] = []
        if not self.kernel.strict:
            for k in reversed(own):
                if accumulators * self.tile_sizes[k] <= ENOUGH_ACCUMULATORS:
                    found.insert(0, k)
                    accumulators *= self.tile_sizes[k]
        return found

    def _identity(self, q: UOp, lane: UOp | None, dtype: DType) -> UOp:
        """What a reduction starts from, in as many lanes as it has."""
        value = {Ops.ADD: 0, Ops.MUL: 1, Ops.MAX: q.dtype.min}[q.arg.op]
        start = self.emit(UOp.const(value, dtype))
        lane = self.nodes[q.src[0]].lane if lane is None else lane
        return start if lane is None else self.wide(start, lane.src[0].arg)

    def _combine(self, q: UOp, a: UOp, b: UOp) -> UOp:
        op = (_COMBINE_BOOL if q.dtype is dtypes.bool else _COMBINE)[q.arg.op]
        return self.emit(UOp(op, a.dtype, (a, b)))

    def _accumulate(self, q: UOp, combo: Combo, total: UOp, lane: UOp | None) -> UOp:
        """One step of a reduction. The product and the sum of a float are fused.

        Where a sum adds a value under a condition, it stays as it is if that does not hold.
        """
        value, lanes = q.src[0], total.shape[0] if total.shape else 1

        def get(node: UOp) -> UOp:
            x = self.value(node, combo)
            return self.wide(x, lanes) if lanes > 1 else x

        condition: UOp | None = None
        is_sum = q.arg.op is Ops.ADD
        if is_sum and value.op is Ops.WHERE and _is_zero(value.src[2]):
            condition, value = self.value(value.src[0], combo), value.src[1]
            if condition.op is Ops.CONST:
                if not condition.arg:
                    return total
                condition = None
        condition = self._both(condition, self._idle(lane, combo))
        if is_sum and value.op is Ops.MUL and total.dtype is q.dtype and q.dtype in _FUSED:
            a, b = get(value.src[0]), get(value.src[1])
            new = self.emit(UOp(Ops.MULACC, q.dtype, (a, b, total)))
        else:
            new = self._combine(q, total, self.as_dtype(get(value), total.dtype))
        if condition is None:
            return new
        condition = self.wide(condition, lanes) if lanes > 1 else condition
        return self.emit(UOp(Ops.WHERE, new.dtype, (condition, new, total)))

    def _tree(self, q: UOp, values: list[UOp]) -> UOp:
        """Several values combined two by two."""
        while len(values) > 1:
            pairs = [
                self._combine(q, a, b) for a, b in zip(values[::2], values[1::2], strict=False)
            ]
            values = pairs + values[2 * len(pairs) :]
        return values[0]

    def _horizontal(self, q: UOp, x: UOp) -> UOp:
        """The lanes of a vector combined: its two halves as vectors, again and again."""
        rest: list[UOp] = []
        while x.shape:
            count = x.shape[0]
            half = count // 2
            if count % 2:
                rest.append(self.lane(x, count - 1))
            if half == 1:
                x = self._combine(q, self.lane(x, 0), self.lane(x, 1))
            else:
                low, high = self.shuffle(range(half), x), self.shuffle(range(half, 2 * half), x)
                x = self._combine(q, low, high)
        return self._tree(q, [x, *rest])


_FUSED = (dtypes.float32, dtypes.float64)


def _is_zero(x: UOp) -> bool:
    return x.op is Ops.CONST and x.arg == 0


def _steps(loops: Sequence[Loop]) -> int:
    """How often the body of loops runs, at most."""
    return math.prod(loop.leaf.src[0].arg for loop in loops)


def _at(combo: Combo, tile: int, position: int) -> Combo:
    """A combination with another position along one tile."""
    return (*combo[:tile], position, *combo[tile + 1 :])


def _is_thread_loop(uop: UOp) -> bool:
    return uop.op is Ops.RANGE and uop.arg.kind is AxisType.THREAD


def _no_tiles(combo: Combo) -> object:
    return ()


def _terms(form: LinearForm) -> tuple[UOp, ...]:
    """The terms of a form that need computing: a tile is a constant, a lane a number."""
    return tuple(
        [t for t, _ in form.terms if t.op is not Ops.RANGE or t.arg.kind not in _POSITIONAL]
    )


_POSITIONAL = (AxisType.UPCAST, AxisType.UNROLL, AxisType.VEC)


def _bits(numbers: int) -> list[int]:
    """The members of a set, smallest first."""
    found = []
    while numbers:
        low = numbers & -numbers
        found.append(low.bit_length() - 1)
        numbers ^= low
    return found
