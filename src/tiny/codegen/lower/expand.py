"""From a tiled kernel to a list of operations: copies of tiles, vectors of lanes, registers.

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
from tiny.dtype import DType, dtypes
from tiny.uop.ops import AxisType, GroupOp, Ops, RangeArg, RegArg, UOp

__all__ = ["expand"]

Combo = tuple[int, ...]  # a position along each tile of the kernel
_OpenLoop = tuple[int, Loop]  # with the bit of its axis

# A chain of dependent additions waits for each one's result; with this many chains side by side
# the units are busy. More only cost registers.
ENOUGH_ACCUMULATORS = 8

# How many steps a sum of floats takes before it goes into another one: see _levels.
LONG_SUM = 16  # at least, in a contraction
SHORT_SUM = 64  # at most, in float32, before one in float64

_COMBINE = {Ops.ADD: Ops.ADD, Ops.MUL: Ops.MUL, Ops.MAX: Ops.MAX}
_COMBINE_BOOL = {Ops.ADD: Ops.OR, Ops.MUL: Ops.AND, Ops.MAX: Ops.OR}


def expand(kernel: TiledKernel, sink: UOp, has_double: bool = False) -> tuple[UOp, ...]:
    """The operations of a kernel in execution order (level 4).

    `sink` is the kernel's graph with flat offsets and nothing that the target lacks. With
    `has_double`, long sums of float32 that are no contractions are carried on in float64.
    """
    return _Expansion(kernel, sink, has_double).run()


@dataclass(slots=True)
class _Node:
    """What is known of a node before anything is expanded.

    `mask`: the axes that it depends on. `lane`: the one of them that is a vector's. `tiles`: the
    places in a combination of those that are tiles; `key` picks them out. `needs`: the nodes
    whose values its own is made of. `reduces`: the REDUCEs below it, a set of their numbers.
    """

    mask: int
    lane: UOp | None
    tiles: tuple[int, ...]
    key: Callable[[Combo], object]
    needs: tuple[UOp, ...] = ()
    form: LinearForm | None = None
    reduces: int = 0


@dataclass(slots=True)
class _Accumulator:
    """One register of a reduction: for a combination of outer tiles, and one of its own."""

    outer: Combo
    separate: Combo
    value: UOp  # what it holds now
    registers: list[UOp] = field(default_factory=list)  # outermost loops first


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
        # passes may have rewritten the sizes of ranges, so these go by number
        self.leaves = {1 << n.arg.axis: n for n in order if n.op is Ops.RANGE}
        self.loops = [(1 << loop.leaf.arg.axis, loop) for loop in kernel.loops]
        self.tile_bits = [1 << t.arg.axis for t in kernel.tiles]
        self.tile_sizes = [t.src[0].arg for t in kernel.tiles]
        self.loop_mask = sum(bit for bit, _ in self.loops)
        self.lane_mask = sum(b for b, n in self.leaves.items() if n.arg.kind is AxisType.VEC)
        self.no_tiles: Combo = (0,) * len(self.tile_bits)
        self.stores = list(sink.src)
        self.reductions = [n for n in order if n.op is Ops.REDUCE]
        self.nodes: dict[UOp, _Node] = {}
        self._describe(order)

        self.next_axis = self.next_register = 0

    # ------------------------------------------------------------ what is known beforehand

    def _describe(self, order: Sequence[UOp]) -> None:
        bit_of = {leaf: bit for bit, leaf in self.leaves.items()}
        masks = axis_masks(order, bit_of)
        getters: dict[int, tuple[tuple[int, ...], Callable[[Combo], object]]] = {}
        numbers = {n: k for k, n in enumerate(self.reductions)}
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
            info = _Node(mask, self.leaves.get(lane_bit), *getters[mask])
            for s in node.src:
                info.reduces |= self.nodes[s].reduces
            if node.op is Ops.REDUCE:
                info.reduces |= 1 << numbers[node]
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

    def _open(self, bit: int, loop: Loop) -> None:
        count = loop.count
        if loop.limit is None:
            count = self.value(self.leaves[bit].src[0], self.no_tiles)
        count = self.emit(count)
        arg = RangeArg(self.next_axis, loop.leaf.arg.kind)
        self.next_axis += 1
        iteration = UOp(Ops.RANGE, dtypes.index, (count,), arg)
        scope = Scope(bit, iteration, position=iteration)
        self.scopes.append(scope)
        self.depths.clear()
        self.home[iteration] = len(self.scopes) - 1
        if loop.limit is not None:
            start = self.times(iteration, loop.step)
            limit = self.const(loop.limit)
            inside = self.emit(UOp(Ops.CMPLT, dtypes.bool, (start, limit)))
            scope.position = self.emit(UOp(Ops.WHERE, dtypes.index, (inside, start, limit)))

    # ------------------------------------------------------------ the whole

    def run(self) -> tuple[UOp, ...]:
        """Expand the stores, those over the same loops together."""
        written: set[UOp] = set()
        for _, group in itertools.groupby(
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
            self._nest(stores, bool(loads & {s.src[0].src[0] for s in stores}))
            written |= {s.src[0].src[0] for s in stores}
        while len(self.scopes) > 1:
            self.close()
        return tuple(self.scopes[0].lines)

    def _nest(self, stores: list[UOp], in_place: bool) -> None:
        """Open the loops of these stores, all the same, and compute and store their values."""
        mask = self.nodes[stores[0]].mask
        loops = [(bit, loop) for bit, loop in self.loops if bit & mask]
        shared = 0
        for scope, (bit, _) in zip(self.scopes[1:], loops, strict=False):
            if scope.bit != bit:
                break
            shared += 1
        while len(self.scopes) - 1 > shared:
            self.close()
        for bit, loop in loops[shared:]:
            self._open(bit, loop)
        reduces = 0
        for store in stores:
            reduces |= self.nodes[store].reduces
        self._reduce_all(reduces)
        late: list[tuple[UOp, Combo]] = []
        for store in stores:
            for combo in self._combos(self.nodes[store].tiles):
                self.value(store.src[1], combo)
                if in_place:  # all is read before anything is written
                    self._address_values(store.src[0], combo)
                    late.append((store, combo))
                else:
                    self._store(store, combo)
        for store, combo in late:
            self._store(store, combo)

    def _combos(self, tiles: Sequence[int], base: Combo | None = None) -> Iterator[Combo]:
        """All positions along these tiles, the last one fastest; `base` gives the others'."""
        combo = list(self.no_tiles if base is None else base)
        for at in itertools.product(*[range(self.tile_sizes[k]) for k in tiles]):
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
            bit = 1 << node.arg.axis
            if bit & self.loop_mask:
                position = self.scopes[self.depth(bit)].position
                assert position is not None
                return position
            if bit & self.lane_mask:
                return self.constants(range(node.src[0].arg), dtypes.index)
            return self.const(combo[self.tile_bits.index(bit)])
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
                bit = 1 << term.arg.axis
                if bit & self.lane_mask:
                    constant += factor * lane
                    continue
                if not bit & self.loop_mask:
                    constant += factor * combo[self.tile_bits.index(bit)]
                    continue
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

    # ------------------------------------------------------------ memory

    def _address(self, index: UOp, offset: UOp) -> UOp:
        return self.emit(UOp(Ops.INDEX, index.dtype, (self.emit(index.src[0]), offset)))

    def _gate(self, index: UOp, combo: Combo) -> UOp | None:
        """The condition of an access; None if it always holds."""
        if len(index.src) < 3:
            return None
        gate = self._value_of(index.src[2], combo)
        return None if gate.op is Ops.CONST and gate.arg else gate

    def _load(self, index: UOp, combo: Combo) -> UOp:
        """The elements of a buffer: a vector, a scalar for all lanes, or one lane at a time."""
        info = self.nodes[index]
        assert info.form is not None
        gate = self._gate(index, combo)
        if gate is not None and gate.op is Ops.CONST and index.dtype.kind in "biu":
            return self.emit(UOp.const(0, index.dtype))
        if gate is not None and gate.op is Ops.CONST and index.dtype.bitsize >= 32:
            return self.emit(UOp.const(0.0, index.dtype))
        gated = () if gate is None else (gate,)
        stride = self._stride(info.form, info.lane)
        lanes = 1 if info.lane is None else info.lane.src[0].arg
        if stride == 0 and (gate is None or not gate.shape):
            address = self._address(index, self._offset(info.form, combo))
            return self.emit(UOp(Ops.LOAD, index.dtype, (address, *gated), 1))
        if stride == 1:
            address = self._address(index, self._offset(info.form, combo))
            return self.emit(UOp(Ops.LOAD, index.dtype, (address, *gated), lanes))
        if stride == -1 and (gate is None or not gate.shape):
            address = self._address(index, self._offset(info.form, combo, lanes - 1))
            backward = self.emit(UOp(Ops.LOAD, index.dtype, (address, *gated), lanes))
            return self.reversed(backward)
        parts = []
        for lane, at in enumerate(self._lane_offsets(info.form, info.lane, combo)):
            address = self._address(index, at)
            gated = () if gate is None else (self.lane(gate, lane),)
            parts.append(self.emit(UOp(Ops.LOAD, index.dtype, (address, *gated), 1)))
        return self.emit(UOp(Ops.STACK, index.dtype, tuple(parts)))

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
        if stride == 1:
            self._write(index, self._offset(info.form, combo), self.wide(value, lanes), gate)
        elif stride == -1 and (gate is None or not gate.shape):
            backward = self.reversed(self.wide(value, lanes))
            self._write(index, self._offset(info.form, combo, lanes - 1), backward, gate)
        else:
            for k, at in enumerate(self._lane_offsets(info.form, lane, combo)):
                one = None if gate is None else self.lane(gate, k)
                self._write(index, at, self.lane(value, k), one)

    def _write(self, index: UOp, offset: UOp, value: UOp, gate: UOp | None) -> None:
        """A STORE, in the innermost loop."""
        address = self._address(index, offset)
        src = (address, value) if gate is None else (address, value, gate)
        self.scopes[-1].lines.append(UOp(Ops.STORE, dtypes.void, src))

    # ------------------------------------------------------------ reductions

    def _reduce_all(self, wanted: int) -> None:
        """Compute the REDUCEs of a set, as far as the loops around them are open, in order.

        Those that go over the same ranges in the same loops share the new loops, unless one needs
        the other.
        """
        open_bits = sum(scope.bit for scope in self.scopes)
        ready = []
        for number in _bits(wanted):
            info = self.nodes[self.reductions[number]]
            if not info.mask & self.loop_mask & ~open_bits:
                ready.append(number)
        for number in ready:
            first = self.reductions[number]
            if self._known(first, self.no_tiles) is not None:
                continue
            group, members = [first], 1 << number
            outer = self.nodes[first].mask & self.loop_mask
            for other in ready:
                node = self.reductions[other]
                info = self.nodes[node]
                if (
                    other > number
                    and node.src[1:] == first.src[1:]
                    and info.mask & self.loop_mask == outer
                    and not info.reduces & members
                    and self._known(node, self.no_tiles) is None
                    and self._is_ready(info.reduces & ~(1 << other))
                ):
                    group.append(node)
                    members |= 1 << other
            self._reduce(group)

    def _is_ready(self, needed: int) -> bool:
        """Whether the REDUCEs of a set are computed, or can be inside of the loops about to open.

        The order of numbers is one of dependence, so a later member of a group may need one that
        comes between; then it waits for its own turn.
        """
        open_bits = sum(scope.bit for scope in self.scopes)
        for number in _bits(needed):
            node = self.reductions[number]
            outside = self.nodes[node].mask & self.loop_mask & ~open_bits
            if not outside and self._known(node, self.no_tiles) is None:
                return False
        return True

    def _reduce(self, group: list[UOp]) -> None:
        """Compute REDUCEs over the same ranges: registers, loops, and what is left in the end."""
        over = [r for r in group[0].src[1:] if r.op is Ops.RANGE]
        bits = sum(1 << r.arg.axis for r in over)
        loops = [(bit, loop) for bit, loop in self.loops if bit & bits]
        own = [k for k, b in enumerate(self.tile_bits) if b & bits]
        lane = next((r for r in over if r.arg.kind is AxisType.VEC), None)
        depth = self.depth(self.nodes[group[0]].mask)
        inner, self.scopes = self.scopes[depth + 1 :], self.scopes[: depth + 1]
        self.depths.clear()

        counts = [math.prod(self.tile_sizes[k] for k in self.nodes[q].tiles) for q in group]
        separate = self._separate(own, sum(counts))
        registers: list[dict[tuple[Combo, Combo], _Accumulator]] = []
        for q in group:
            mine: dict[tuple[Combo, Combo], _Accumulator] = {}
            for outer in self._combos(self.nodes[q].tiles):
                for at in self._combos(separate):
                    mine[outer, at] = _Accumulator(outer, at, self._identity(q, lane, q.dtype))
            registers.append(mine)
        accumulators = [
            (q, a) for q, mine in zip(group, registers, strict=True) for a in mine.values()
        ]
        levels = self._levels(group, loops)
        for n, level in enumerate(levels):
            for q, a in accumulators:
                is_wide = self._is_statistic(q) and (
                    n + 1 < len(levels) or not self._is_short(level)
                )
                start = self._identity(q, lane, dtypes.float64 if is_wide else q.dtype)
                arg = RegArg(self.next_register, start.shape[0] if start.shape else 1)
                a.value = UOp(Ops.DEFINE_REG, start.dtype, (start,), arg)
                a.registers.append(a.value)
                self.next_register += 1
                self.scopes[-1].lines.append(a.value)
            for bit, loop in level:
                self._open(bit, loop)
            for _, a in accumulators:  # what it holds is another value in each iteration
                self.home[a.value] = len(self.scopes) - 1
        below = 0
        for q in group:
            below |= self.nodes[q.src[0]].reduces
        self._reduce_all(below)
        for step in self._combos(own):
            at = tuple([p if k in separate else 0 for k, p in enumerate(step)])
            for q, mine in zip(group, registers, strict=True):
                for combo in self._combos(self.nodes[q].tiles, step):
                    outer = tuple([0 if k in own else p for k, p in enumerate(combo)])
                    a = mine[outer, at]
                    a.value = self._accumulate(q, combo, a.value)
        for n, level in reversed(list(enumerate(levels))):
            for _, a in accumulators:
                update = UOp(Ops.STORE, dtypes.void, (a.registers[n], a.value))
                self.scopes[-1].lines.append(update)
            for _ in level:
                end = self.close()
            for q, a in accumulators:
                a.value = UOp(Ops.AFTER, a.registers[n].dtype, (a.registers[n], end))
                self.home[a.value] = len(self.scopes) - 1
                self.scopes[-1].lines.append(a.value)
                if n:
                    total = a.registers[n - 1]
                    a.value = self._combine(q, total, self.as_dtype(a.value, total.dtype))
        for q, mine in zip(group, registers, strict=True):
            for outer in self._combos(self.nodes[q].tiles):
                values = [mine[outer, at].value for at in self._combos(separate)]
                total = self._tree(q, values)
                if lane is not None:
                    total = self._horizontal(q, total)
                self._remember(q, outer, self.as_dtype(total, q.dtype))
        self.scopes += inner
        self.depths.clear()

    def _levels(self, group: list[UOp], loops: list[_OpenLoop]) -> list[list[_OpenLoop]]:
        """The loops of a reduction, outermost first, cut where the sum so far is put aside.

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
            return [loops]
        if any(self._is_statistic(q) for q in group):
            inner = len(loops)
            while inner and self._is_short(loops[inner - 1 :]):
                inner -= 1
            return [level for level in (loops[:inner], loops[inner:]) if level]
        levels: list[list[_OpenLoop]] = [[]]
        for bit, loop in reversed(loops):
            if _steps(levels[0]) >= LONG_SUM:
                levels.insert(0, [])
            levels[0].insert(0, (bit, loop))
        return levels

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
    def _is_short(loops: list[_OpenLoop]) -> bool:
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

    def _accumulate(self, q: UOp, combo: Combo, total: UOp) -> UOp:
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
            lanes = [self.lane(x, k) for k in range(2 * half)]
            if half == 1:
                x = self._combine(q, *lanes)
            else:
                low, high = (
                    self.emit(UOp(Ops.STACK, x.dtype, tuple(part)))
                    for part in (lanes[:half], lanes[half:])
                )
                x = self._combine(q, low, high)
        return self._tree(q, [x, *rest])


_FUSED = (dtypes.float32, dtypes.float64)


def _is_zero(x: UOp) -> bool:
    return x.op is Ops.CONST and x.arg == 0


def _steps(loops: list[_OpenLoop]) -> int:
    """How often the body of loops runs, at most."""
    return math.prod(int(loop.count.vmax) for _, loop in loops)


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
