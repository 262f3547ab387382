"""From a kernel and its split axes to one over loops, tiles and lanes; what is staged for it.

Three things become STAGEs here, with the memory that they need, so that lowering knows one way of
keeping values: an operand that an Opt packs; the sums that a loop over a reduction carries from
block to block, where that loop is outside of outputs'; and the partial sums of blocks that
threads share, which a later phase adds up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tiny._core.symbolic import simplify
from tiny.codegen.lower.indices import all_of, inside, linear_form
from tiny.codegen.lower.sums import SumRules
from tiny.codegen.lower.tiled import Loop, TiledAxis, TiledKernel
from tiny.codegen.opt.axes import Axis, Part, Split, copies_of
from tiny.codegen.opt.epilogues import rolled_epilogue, unit_epilogue
from tiny.codegen.opt.idle import find_needs
from tiny.codegen.opt.opts import KernelOptError
from tiny.codegen.opt.prologues import Prologue, conditions_of, function_of
from tiny.codegen.opt.units import UnitUse
from tiny.dtype import DType, dtypes
from tiny.uop.ops import (
    AxisType,
    LocalArg,
    Ops,
    ParamArg,
    RangeArg,
    ReduceArg,
    StageArg,
    UOp,
)
from tiny.uop.target import Target

__all__ = ["Fill", "Tiling"]

MOST_SHARED = 1 << 28  # bytes of scratch that all threads have in common
ALIGNMENT = 64
SQUARE = 8  # rows and lanes that are transposed at once: more cost more to compile, and save none
FEW_ROWS = 32


@dataclass(frozen=True)
class Fill:
    """What packs an operand before a kernel runs: `kernel` fills the PARAM `memory`."""

    memory: UOp
    kernel: TiledKernel


@dataclass
class _Dim:
    """A dimension of a staged box: who reads it where, and what it adds to a source's index."""

    extent: int
    reader: UOp
    dim: int  # of the source
    factor: int  # of the source's index, for one step along this dimension
    limit: int | UOp | None  # the source's index reaches no further than this, if it is shifted
    rank: tuple[int, int]  # outer to inner


class Tiling:
    """The splitting of one kernel: `kernel` is it over the parts of its axes.

    `masks` are the axes that each node depends on. `staged` are the loads to be packed, each with
    the number of the axis at the head of whose body that happens, None for outside all loops; what
    is made of them first stands in `prologues`, where it is made of others too. Those in `kept` are
    packed before the kernel runs, by `fills`, in memory that it gets as a PARAM.
    """

    def __init__(
        self,
        ast: UOp,
        masks: Mapping[UOp, int],
        split: Split,
        staged: Mapping[UOp, int | None],
        kept: Collection[UOp],
        prologues: Mapping[UOp, Prologue],
        is_in_place: bool,
        target: Target,
        unit: UnitUse | None = None,
    ) -> None:
        self.ast, self.masks, self.split, self.staged = ast, masks, split, staged
        self.is_in_place, self.kept, self.prologues = is_in_place, kept, prologues
        self.target, self.unit = target, unit
        self.fills: list[Fill] = []
        self.numbers = 0  # of leaves
        self.parts: dict[UOp, Part] = {}  # by leaf
        self.loops: dict[int, Loop] = {}  # by number of the axis or blocks, as they nest
        self.more_loops: list[Loop] = []  # of fills, each in nesting order
        self.axes: dict[int, TiledAxis] = {}
        self.values: dict[UOp, UOp] = {}  # each range as an expression of its leaves
        self.outer: dict[int, UOp] = {}  # by axis: the part of it that loops make
        self.inner: dict[int, UOp] = {}  # and that of the tile and the lanes
        self.leaves: dict[UOp, tuple[UOp, ...]] = {}  # of each range
        self.unrolled: list[UOp] = []
        self.rows: list[UOp] = []
        self.vectors: list[UOp] = []
        self.scratch = self.shared = 0  # bytes
        self.carrying: set[int] = set()  # axes that sums are carried along, or shared
        self.new: dict[UOp, UOp] = {}
        # what an INDEX into a STAGE has in front of and behind its own indices
        self.around: dict[UOp, tuple[tuple[UOp, ...], tuple[UOp, ...]]] = {}
        base = [k for k in split.order if split.axes[k].blocks_of < 0]
        for k in base:
            self.split_axis(k, split.axes[k])
        self.loops = {k: self.loops[k] for k in split.order if k in self.loops}

    # ------------------------------------------------------------ leaves

    def leaf(self, count: int, kind: AxisType) -> UOp:
        """A new RANGE over a number of steps."""
        self.numbers += 1
        arg = RangeArg(self.numbers - 1, kind)
        return UOp(Ops.RANGE, dtypes.index, (UOp.const(count, dtypes.index),), arg)

    def split_axis(self, number: int, axis: Axis) -> None:
        """The loops, tile and lanes of an axis, and its range as an expression of them."""
        size: int | UOp = axis.range.src[0] if axis.size is None else axis.size
        most = axis.range.src[0].vmax
        copies = copies_of(axis, self.split.vector_lanes[number])
        lanes = axis.step // copies
        shifts = not axis.is_reduce and not self.is_in_place
        if isinstance(size, UOp):
            shifts = shifts and size.vmin >= (axis.block or axis.step)
        kind = AxisType.REDUCE if axis.is_reduce else AxisType.LOOP
        mine: list[UOp] = []
        value = UOp.const(0, dtypes.index)
        steps = [(k, axis.block) for k, a in enumerate(self.split.axes) if a.blocks_of == number]
        steps.append((number, axis.step))
        for entry, step in steps:
            if isinstance(size, int) and most <= step:
                continue
            # one that counts to 1 would be taken for the constant 0, and the loop for none
            loop = Loop(
                self.leaf(max(2, -(-most // step)), kind),
                number,
                step,
                is_thread=self.split.axes[entry].is_thread,
            )
            self.parts[loop.leaf] = Part(number, step, entry)
            mine.append(loop.leaf)
            exact = isinstance(size, int) and most % step == 0
            if shifts and not exact and step > 1:
                position = self.leaf(most - step + 1, kind)
                loop = replace(loop, position=position)
                self.parts[position] = Part(number, 1, entry)
                mine.append(position)
                value = value + position
            else:
                value = value + loop.leaf * step
            self.loops[entry] = loop
            if entry != number:
                size = most = step
        tile = lane = None
        inside = UOp.const(0, dtypes.index)
        if copies > 1:
            tile = self.leaf(copies, AxisType.UNROLL if axis.is_reduce else AxisType.UPCAST)
            self.parts[tile] = Part(number, lanes)
            mine.append(tile)
            inside = tile * lanes
            self.tiles_of(axis.is_reduce, axis.lanes > 1).append(tile)
        if lanes > 1:
            lane = self.leaf(lanes, AxisType.VEC)
            self.parts[lane] = Part(number, 1)
            mine.append(lane)
            inside = inside + lane
        self.outer[number], self.inner[number] = value, inside
        whole: int | UOp = axis.range.src[0] if axis.size is None else axis.size
        self.axes[number] = TiledAxis(whole, shifts, tile, lane)
        self.values[axis.range], self.leaves[axis.range] = value + inside, tuple(mine)

    def tiles_of(self, is_reduce: bool, has_lanes: bool) -> list[UOp]:
        """The list of tiles that one belongs to, for the order of expansion."""
        return self.vectors if has_lanes else self.unrolled if is_reduce else self.rows

    # ------------------------------------------------------------ the walk

    def kernel(self) -> TiledKernel:
        """The tiled kernel. KernelOptError if a load can not be packed, or all needs too much."""
        new = self.new
        new.update(self.values)
        order = self.ast.postorder()
        packed: dict[UOp, tuple[UOp, int | None, Prologue]] = {}
        for load, axis in self.staged.items():
            is_narrow = self.stays_narrow(load)
            made = Prologue(load) if is_narrow else function_of(load, order, self.prologues)
            # others that are packed themselves, or of which a packed weight would be no more one
            if made.others and (
                load in self.kept or not self.staged.keys().isdisjoint(made.others)
            ):
                made = Prologue(load)
            packed[made.value] = load, axis, made
        for node in order:
            if node in self.values:
                continue
            if node in packed:
                new[node] = self.packed(*packed[node])
                continue
            src = tuple([new[s] for s in node.src])
            if node.op is Ops.WMMA and node.arg.registers:
                new[node] = node.replace(src=(*src, self.register_lanes(node.arg.m * node.arg.n)))
            elif node.op is Ops.REDUCE:
                new[node] = self.reduce(node, src[0])
            elif node.op is Ops.STAGE:
                new[node] = self.stage(node, src[0])
            elif node.op is Ops.INDEX and node.src[0].op is Ops.STAGE:
                front, back = self.around[node.src[0]]
                rank = 1 + len(node.src[0].arg.shape)
                src = (src[0], *front, *src[1:rank], *back, *src[rank:])
                new[node] = node.replace(src=src)
            elif self.unit is not None and node.op is Ops.INDEX and node.src[0] in self.unit.words:
                rank = 1 + len(node.src[0].arg.shape)
                gate = src[rank] if len(src) > rank else None
                new[node] = self.unit.words[node.src[0]].read(src[1:rank], gate)
            else:
                new[node] = node if src == node.src else node.replace(src=src)
        has_registers = self.unit is not None and self.unit.registers
        sink = unit_epilogue(self) if has_registers else rolled_epilogue(self)
        ranges = [a.range for a in self.split.axes]
        needs, conditions = find_needs(order, new, ranges, self.values, self.parts, self.loops)
        for entry, found in needs.items():
            if self.loops[entry].axis not in self.carrying:
                self.loops[entry] = replace(self.loops[entry], needs=found)
        # in what threads share, theirs is the outermost loop
        loops = sorted(self.loops.values(), key=lambda loop: not loop.is_thread)
        axes = tuple([self.axes[k] for k in range(len(self.axes))])
        return TiledKernel(
            new[self.ast] if sink is None else sink,
            (*loops, *self.more_loops),
            axes,
            (*self.unrolled, *self.rows, *self.vectors),
            self.split.strict,
            self.scratch,
            self.shared,
            conditions,
        )

    def stays_narrow(self, load: UOp) -> bool:
        """Whether an operand that is packed for good is best kept in its own, small dtype.

        It is read from memory in each run: for few rows that takes longer than to convert it.
        """
        if load not in self.kept or load.dtype.itemsize >= 4:
            return False
        others = [a for k, a in enumerate(self.split.axes) if not self.masks[load] >> k & 1]
        rows = math.prod([a.range.src[0].vmax for a in others if a.blocks_of < 0])
        return rows <= FEW_ROWS

    def memory(self, shape: Sequence[int], dtype: DType, shared: bool) -> UOp:
        """A new piece of scratch memory."""
        nbytes = math.prod(shape) * dtype.itemsize
        start = self.shared if shared else self.scratch
        end = -(-(start + nbytes) // ALIGNMENT) * ALIGNMENT
        most = MOST_SHARED if shared else self.target.l2_bytes
        if end > most:
            raise KernelOptError(f"{end} bytes are kept, {most} are allowed")
        if shared:
            self.shared = end
        else:
            self.scratch = end
        return UOp(Ops.DEFINE_LOCAL, dtype, (), LocalArg(start, tuple(shape), shared))

    @staticmethod
    def filled(memory: UOp, at: Sequence[UOp], value: UOp, own: Sequence[UOp]) -> UOp:
        """The STAGE that fills memory over its own leaves."""
        address = UOp(Ops.INDEX, memory.dtype, (memory, *at))
        store = UOp(Ops.STORE, dtypes.void, (address, value))
        arg = StageArg(memory.arg.shared, memory.arg.shape)
        return UOp(Ops.STAGE, memory.dtype, (store, *own), arg)

    def inner_leaves(self, mask: int) -> tuple[list[UOp], list[UOp]]:
        """The tiles and the lanes of a set of axes."""
        axes = [self.axes[k] for k in range(mask.bit_length()) if mask >> k & 1]
        tiles = [a.tile for a in axes if a.tile is not None]
        return tiles, [a.lane for a in axes if a.lane is not None]

    def stage(self, node: UOp, value: UOp) -> UOp:
        """A STAGE of the kernel: for each tile and lane of the axes around it one of its own."""
        tiles, lanes = self.inner_leaves(self.masks[node])
        shape = [*_sizes(tiles), *node.arg.shape, *_sizes(lanes)]
        memory = self.memory(shape, node.dtype, node.arg.shared or not self.masks[node])
        at = [*tiles, *[self.values[r] for r in node.src[1:]], *lanes]
        self.around[node] = tuple(tiles), tuple(lanes)
        return self.filled(memory, at, value, [p for r in node.src[1:] for p in self.leaves[r]])

    # ------------------------------------------------------------ sums

    def reduce(self, node: UOp, value: UOp) -> UOp:
        """A REDUCE over all parts of its ranges; what loops outside of outputs' carry is staged."""
        over = [p for r in node.src[1:] for p in self.leaves[r]]
        mask = self.masks[node]
        reduced = {self.parts[p].axis for p in over}
        entries = list(self.loops)
        around = [k for k, e in enumerate(entries) if mask >> self.loops[e].axis & 1]
        carried = [
            e
            for k, e in enumerate(entries)
            if self.loops[e].axis in reduced and around and k < around[-1]
        ]
        shared = [e for e in entries if self.loops[e].axis in reduced and self.loops[e].is_thread]
        if not (carried or shared):
            return node.replace(src=(value, *over))
        if value.op is Ops.WMMA and value.arg.registers:
            raise KernelOptError(
                "the sums stay in registers of the unit, so loops of a reduction "
                "are inside of those over outputs"
            )
        self.carrying |= reduced
        dtype = dtypes.float32 if node.dtype.kind in "f8" and node.dtype.itemsize < 4 else None
        if dtype is not None:  # rounded once, in the end
            value = value.cast(dtype)
        if shared:
            result = self.shared_sum(node, value, over, shared)
        else:
            outputs = [e for k, e in enumerate(entries) if k in around]
            first = entries.index(carried[0])
            outputs = [e for e in outputs if entries.index(e) > first]
            result = self.carried_sum(node, value, over, carried, outputs)
        return result if dtype is None else result.cast(node.dtype)

    def leaves_of(self, entries: Sequence[int]) -> list[UOp]:
        """The leaves of loops."""
        loops = [self.loops[e] for e in entries]
        return [p for loop in loops for p in (loop.leaf, loop.position) if p is not None]

    def inner_sum(self, node: UOp, value: UOp, over: list[UOp], outside: list[UOp]) -> UOp:
        """What is added up in registers: the REDUCE over the leaves that no loop outside has."""
        inside = [p for p in over if p not in outside]
        if not inside:
            return value
        return UOp(Ops.REDUCE, value.dtype, (value, *inside), ReduceArg(node.arg.op, ()))

    def shared_sum(self, node: UOp, value: UOp, over: list[UOp], entries: list[int]) -> UOp:
        """Sums of blocks, that threads share, kept until all are there and can be added up."""
        if any(isinstance(self.axes[self.loops[e].axis].size, UOp) for e in entries):
            raise KernelOptError("threads share no sum of a size known only at run time")
        mask = self.masks[node]
        outputs = [e for e, loop in self.loops.items() if mask >> loop.axis & 1]
        blocks = self.leaves_of(entries)
        part = self.inner_sum(node, value, over, blocks)
        tiles, lanes = self.inner_leaves(mask)
        at = [*blocks, *[self.loops[e].leaf for e in outputs], *tiles, *lanes]
        memory = self.memory(_sizes(at), value.dtype, shared=True)
        own = [*blocks, *self.leaves_of(outputs), *tiles, *lanes]
        stage = self.filled(memory, at, part, own)
        again = []
        for block in blocks:
            count = block.src[0].arg
            number = len(self.axes)
            loop = Loop(self.leaf(count, AxisType.REDUCE), number, 1)
            self.axes[number] = TiledAxis(count, shifts=False)
            self.more_loops.append(loop)
            again.append(loop.leaf)
        read = UOp(Ops.INDEX, value.dtype, (stage, *again, *at[len(blocks) :]))
        return UOp(Ops.REDUCE, value.dtype, (read, *again), ReduceArg(node.arg.op, ()))

    def carried_sum(
        self, node: UOp, value: UOp, over: list[UOp], carried: list[int], outputs: list[int]
    ) -> UOp:
        """Sums in memory: each iteration of the loops that carry them adds to what is there."""
        for e in carried:
            axis = self.axes[self.loops[e].axis]
            if isinstance(axis.size, UOp) and (self.loops[e].step > 1 or axis.size.vmin < 1):
                raise KernelOptError(
                    "a loop of unknown size carries no sums if it may be empty or has a tile"
                )
        outside, dtype = self.leaves_of(carried), value.dtype
        part = self.inner_sum(node, value, over, outside)
        has_double = dtypes.float64 in self.target.dtypes
        if SumRules(self.split.strict, has_double).is_statistic(node):
            value = part = part.cast(dtypes.float64)  # as it would be in registers
        tiles, lanes = self.inner_leaves(self.masks[node])
        at = [*[self.loops[e].leaf for e in outputs], *tiles, *lanes]
        memory = self.memory(_sizes(at) or [1], value.dtype, shared=False)
        at = at or [UOp.const(0, dtypes.index)]
        is_later = UOp.const(False, dtypes.bool)
        for e in carried:
            is_later = is_later | (UOp.const(0, dtypes.index) < self.loops[e].leaf)
        before = UOp(Ops.INDEX, value.dtype, (memory, *at, is_later))
        op = node.arg.op
        if value.dtype is dtypes.bool:
            op = {Ops.ADD: Ops.OR, Ops.MUL: Ops.AND, Ops.MAX: Ops.OR}[op]
        if op is not Ops.ADD and op is not Ops.OR:
            nothing = UOp.const(1 if node.arg.op is Ops.MUL else value.dtype.min, value.dtype)
            before = is_later.where(before, nothing)
        total = UOp(op, value.dtype, (before, part))
        own = [*outside, *self.leaves_of(outputs), *tiles, *lanes]
        kept = UOp(Ops.INDEX, value.dtype, (self.filled(memory, at, total, own), *at))
        return kept.cast(dtype) if kept.dtype is not dtype else kept

    # ------------------------------------------------------------ operands

    def packed(self, node: UOp, axis: int | None, made: Prologue) -> UOp:
        """An operand, or what is made of it, in memory of its own filled inside of a loop.

        The box holds what the leaves inside read, laid out with the lanes innermost, tiles
        around them, then loops as they nest: what is read next to each other is next to each
        other. Padding is put in when it is filled, so that a read needs no condition.
        """
        memory, *at = node.src
        value, rank = made.value, len(memory.arg.shape)
        order = list(self.loops)
        places = {e: k for k, e in enumerate(self.split.order)}
        limit = -1 if axis is None else places[axis]
        outside = {e for e in order if places[e] <= limit}
        use = self.unit
        words = None if use is None else use.words.get(memory)
        in_registers = use is not None and words is not None and use.registers > 0
        base: list[UOp] = []
        dims: list[_Dim] = []
        for d, index in enumerate(at[:rank]):
            place = self.new[index]
            if words is not None and use is not None and d == words.dim:
                place = place * use.step
            start, found = self.box(simplify(place), d, outside)
            base.append(start)
            dims += found
        dims.sort(key=lambda x: x.rank)
        if words is not None and use is not None:
            memory = words.memory
            dims = self.register_dims(dims, words.dim, use) if in_registers else dims
        if not dims:
            one = UOp.const(0, dtypes.index)
            dims = [_Dim(1, one, 0, 0, None, (0, 0))]
        if not made.others and words is None:  # those go by the indices of all dimensions
            dims, base, memory = _merged(dims, base, memory)
        # what no loop outside changes is filled once, in a phase of its own
        shared = not any(n.op is Ops.RANGE for start in base for n in start.postorder())
        is_kept = node in self.kept
        extents = [x.extent for x in dims]
        readers = [x.reader for x in dims]
        if in_registers:  # the two dimensions of a register are one
            size = extents[-2] * extents[-1]
            extents, readers = [*extents[:-2], size], [*readers[:-2], self.register_lanes(size)]
        box = (
            self.given(extents, value.dtype)
            if is_kept
            else self.memory(extents, value.dtype, shared)
        )
        before = len(self.more_loops)
        indices, own = self.fill_loops(dims, memory, shared)
        # each index of the box, whose bounds are exact: idle lanes never reach beyond it
        steps = [self.leaf(x.extent, AxisType.LOOP) for x in dims]
        source = list(base)
        for x, at_step in zip(dims, steps, strict=True):
            step = at_step * x.factor
            if x.limit is not None:
                step = x.limit - (x.limit - step).alu(Ops.MAX, UOp.const(0, dtypes.index))
            source[x.dim] = source[x.dim] + step
        source = [simplify(i) for i in source]
        gate = inside(source, memory.arg.shape)
        filling = dict(zip(steps, indices, strict=True))
        source = [i.substitute(filling) for i in source]
        gate = None if gate is None else gate.substitute(filling)
        filling_value = (
            made.moved(node, memory, source, gate)
            if words is None
            else value.substitute({node: words.read(source, gate)}, walk=True)
        )
        if in_registers:
            indices = [*indices[:-2], indices[-2] * dims[-1].extent + indices[-1]]
        if is_kept:
            inputs = [n for n in filling_value.postorder() if n.op in (Ops.PARAM, Ops.DEFINE_VAR)]
            if not shared or len(inputs) > 1:
                raise KernelOptError("what a run of the kernel determines is not packed before it")
            self.fill_before(box, indices, filling_value, before)
        stage = box if is_kept else self.filled(box, indices, filling_value, own)
        rest = self.other_conditions(node)
        return UOp(Ops.INDEX, value.dtype, (stage, *readers, *rest))

    def register_lanes(self, count: int) -> UOp:
        """A new leaf for all that a register of a unit holds."""
        leaf = self.leaf(count, AxisType.VEC)
        self.axes[len(self.axes)] = TiledAxis(count, shifts=False, lane=leaf)
        return leaf

    def register_dims(self, dims: list[_Dim], dim: int, use: UnitUse) -> list[_Dim]:
        """Those of an operand, the last two of them what a register holds: words along `dim`."""
        *outer, side = dims
        if side.rank[0] != 2:
            raise KernelOptError("an index of the operand is no sum of multiples of axes")
        along = _Dim(use.step, UOp.const(0, dtypes.index), dim, 1, None, (3, 0))
        is_rows = self.parts[side.reader].axis == use.m
        return [*outer, side, along] if is_rows else [*outer, along, side]

    def given(self, shape: Sequence[int], dtype: DType) -> UOp:
        """A new PARAM of the kernel."""
        found = [n for n in self.ast.postorder() if n.op is Ops.PARAM]
        words = {} if self.unit is None else self.unit.words
        params = [words[n].load.src[0].arg.slot if n in words else n.arg.slot for n in found]
        slot = max(params) + 1 + len(self.fills)
        return UOp(Ops.PARAM, dtype, (), ParamArg(slot, tuple(shape)))

    def fill_before(self, memory: UOp, at: Sequence[UOp], value: UOp, first_loop: int) -> None:
        """Fill memory by a kernel of its own, which has the loops from `first_loop` on."""
        loops, self.more_loops = self.more_loops[first_loop:], self.more_loops[:first_loop]
        address = UOp(Ops.INDEX, memory.dtype, (memory, *at))
        sink = UOp(Ops.SINK, dtypes.void, (UOp(Ops.STORE, dtypes.void, (address, value)),))
        axes = tuple([self.axes[k] for k in range(len(self.axes))])
        tiles = (*self.unrolled, *self.rows, *self.vectors)
        self.fills.append(Fill(memory, TiledKernel(sink, tuple(loops), axes, tiles)))

    def other_conditions(self, node: UOp) -> list[UOp]:
        """The gate of a load less the conditions that its indices are inside of the buffer."""
        rest = [self.new[t] for t in conditions_of(node)]
        return [all_of(rest)] if rest else []

    def box(self, index: UOp, d: int, outside: set[int]) -> tuple[UOp, list[_Dim]]:
        """An index as a start, that loops outside determine, and dimensions for those inside."""
        form = linear_form(index)
        start = UOp.const(form.constant, dtypes.index)
        inner: dict[int, list[tuple[UOp, int]]] = {}
        for term, factor in form.terms:
            part = self.parts.get(term)
            if part is not None and part.entry not in outside:
                inner.setdefault(part.axis, []).append((term, factor))
            elif part is not None or self.is_outside(term, outside):
                start = start + term * factor
            else:
                raise KernelOptError("an index of the operand is no sum of multiples of axes")
        strides = {a: self.stride(a, terms, outside) for a, terms in inner.items()}
        if len(inner) == 1:
            ((axis, terms),) = inner.items()
            stride = strides[axis]
            if stride is not None and stride > 0:
                if self.split.axes[axis].is_reduce:
                    reader = _sum(terms, stride)
                    return start, [
                        _Dim(self.extent(axis, outside), reader, d, stride, None, self.rank(terms))
                    ]
                return start, [self.split_dim(t, d, stride) for t, _ in terms]
        if not inner:
            return start, []
        low = reach = 0
        for axis, terms in inner.items():
            stride = strides[axis]
            if stride is not None:
                far = stride * (self.extent(axis, outside) - 1)
                low, reach = low + min(far, 0), reach + abs(far)
            else:
                for term, factor in terms:
                    far = factor * (term.src[0].arg - 1)
                    low, reach = low + min(far, 0), reach + abs(far)
        every = [t for terms in inner.values() for t in terms]
        reader = _sum(every, 1) - low
        return start + low, [_Dim(reach + 1, reader, d, 1, None, self.rank(every))]

    def is_outside(self, term: UOp, outside: set[int]) -> bool:
        """Whether loops outside determine a term, that is no leaf."""
        ranges = [self.parts.get(n) for n in term.postorder() if n.op is Ops.RANGE]
        return all(part is not None and part.entry in outside for part in ranges)

    def stride(self, axis: int, terms: list[tuple[UOp, int]], outside: set[int]) -> int | None:
        """How far apart neighbours along an axis are; None if its leaves do not agree."""
        found = {factor / self.parts[t].size for t, factor in terms}
        leaves = {t for t, _ in terms}
        wanted = {
            p
            for p, part in self.parts.items()
            if part.axis == axis and part.entry not in outside and not self.is_counter(p)
        }
        if len(found) > 1 or leaves != wanted:
            return None
        stride = found.pop()
        return int(stride) if stride == int(stride) else None

    def is_counter(self, leaf: UOp) -> bool:
        """Whether another leaf stands for where the iterations of its loop are."""
        entry = self.parts[leaf].entry
        if entry is None:
            return False
        loop = self.loops[entry]
        return loop.position is not None and loop.leaf is leaf

    def extent(self, axis: int, outside: set[int]) -> int:
        """How many elements of an axis the leaves inside reach."""
        a = self.split.axes[axis]
        loops = [e for e, loop in self.loops.items() if loop.axis == axis]
        size = int(a.range.src[0].vmax)
        for e in loops:
            if e in outside:
                size = self.loops[e].step
        return size

    def rank(self, terms: list[tuple[UOp, int]]) -> tuple[int, int]:
        """Where a dimension that these leaves read is put: by the innermost of its loops.

        An axis that is unrolled whole is inside of all loops.
        """
        order = list(self.loops)
        places: dict[int, list[int]] = {}  # by axis
        for t, _ in terms:
            part = self.parts[t]
            mine = places.setdefault(part.axis, [])
            mine += [order.index(part.entry)] if part.entry is not None else []
        inner = [max(mine, default=len(order)) for mine in places.values()]
        has_lanes = any(t.arg.kind is AxisType.VEC for t, _ in terms)
        return (2 if has_lanes else 0, max(inner, default=-1))

    def split_dim(self, leaf: UOp, d: int, stride: int) -> _Dim:
        """A dimension for one part of an output axis."""
        part = self.parts[leaf]
        if part.entry is None:
            kind = 2 if leaf.arg.kind is AxisType.VEC else 1
            place = 0
            if kind == 1:
                tiles = (*self.unrolled, *self.rows, *self.vectors)
                place = tiles.index(leaf)
            return _Dim(leaf.src[0].arg, leaf, d, stride * part.size, None, (kind, place))
        loop = self.loops[part.entry]
        order = list(self.loops)
        limit: int | UOp | None = None
        if loop.position is not None:
            # where the last tile is shifted back to; of a loop inside of blocks their size is known
            axis = self.split.axes[part.axis]
            if axis.size is None and not (axis.block and part.entry == part.axis):
                limit = (axis.range.src[0] - loop.step) * stride
            else:
                limit = stride * (loop.position.src[0].arg - 1)
        count = loop.leaf.src[0].arg
        return _Dim(count, loop.leaf, d, stride * loop.step, limit, (0, order.index(part.entry)))

    def fill_loops(
        self, dims: list[_Dim], source: UOp, shared: bool
    ) -> tuple[list[UOp], list[UOp]]:
        """An index for each dimension of a box while it is filled, and the leaves of all.

        Lanes go along the innermost dimension. If neighbours along another one are neighbours
        in the source, a tile of those is loaded instead and transposed. Loops are in the order
        of the source.
        """
        strides = [math.prod(source.arg.shape[x.dim + 1 :]) * x.factor for x in dims]
        vector = max(1, self.target.vector_bytes // source.dtype.itemsize)
        last = len(dims) - 1
        lanes = 1 << (min(dims[last].extent, vector) - 1).bit_length()
        across = None
        if strides[last] != 1 and lanes >= 4:
            near = [k for k in range(last) if strides[k] == 1 and dims[k].extent >= 4]
            across = near[-1] if near and dims[near[-1]].limit is None else None
        if across is not None:
            lanes = min(lanes, SQUARE)
        indices: list[UOp] = []
        own: list[UOp] = []
        loops: list[tuple[int, Loop]] = []
        for k, x in enumerate(dims):
            width = lanes if k == last else 1
            copies = lanes if k == across else 1
            if k == last - 1 and across is None and x.rank[0] == 1 and x.extent <= 4:
                copies = x.extent
            index, mine, loop = self.fill_axis(x.extent, copies, width, k == across)
            indices.append(index)
            own += mine
            if loop is not None:
                loops.append((strides[k] * loop.step, loop))
        loops.sort(key=lambda x: -abs(x[0]))
        if shared and loops:
            stride, first = loops[0]
            loops[0] = stride, replace(first, is_thread=True)
        self.more_loops += [loop for _, loop in loops]
        return indices, own

    def fill_axis(
        self, size: int, copies: int, lanes: int, is_row: bool
    ) -> tuple[UOp, list[UOp], Loop | None]:
        """One axis of a fill: its index, its leaves, and its loop."""
        number, step = len(self.axes), copies * lanes
        index, own, loop = UOp.const(0, dtypes.index), list[UOp](), None
        tile = lane = None
        if size > step:
            loop = Loop(self.leaf(-(-size // step), AxisType.LOOP), number, step)
            own.append(loop.leaf)
            index = index + loop.leaf * step
            if size % step:  # to fill an element twice does no harm
                position = self.leaf(size - step + 1, AxisType.LOOP)
                loop = replace(loop, position=position)
                own.append(position)
                index = position
        if copies > 1:
            tile = self.leaf(copies, AxisType.UPCAST)
            own.append(tile)
            index = index + tile * lanes
            (self.rows if is_row else self.vectors).append(tile)
        if lanes > 1:
            lane = self.leaf(lanes, AxisType.VEC)
            own.append(lane)
            index = index + lane
        self.axes[number] = TiledAxis(size, size > step, tile, lane)
        return index, own, loop


def _sizes(leaves: Sequence[UOp]) -> list[int]:
    return [p.src[0].arg for p in leaves]


def _merged(dims: list[_Dim], base: list[UOp], source: UOp) -> tuple[list[_Dim], list[UOp], UOp]:
    """Dimensions that are kept whole, one inside the other, as one, of the box and of its source.

    Such as the channels and the window of a weight: what is then long enough is filled in vectors.
    """
    dims, base, shape = list(dims), list(base), list(source.arg.shape)
    for d in reversed(range(1, len(shape))):
        outer = [k for k, x in enumerate(dims) if x.dim == d - 1]
        inner = [k for k, x in enumerate(dims) if x.dim == d]
        if len(outer) > 1 or len(inner) > 1 or _constant(base[d]) != 0:
            continue
        k = inner[0] if inner else -1
        if (dims[k].extent if inner else 1) != shape[d]:
            continue
        if inner and outer:
            x, y = dims[k - 1], dims[k]
            is_whole = y.factor == 1 and y.limit is None
            if outer[0] != k - 1 or not is_whole or x.factor != 1 or x.limit is not None:
                continue
            reader = x.reader * y.extent + y.reader
            dims[k - 1 : k + 1] = [_Dim(x.extent * y.extent, reader, d - 1, 1, None, y.rank)]
        elif inner:
            if dims[k].factor != 1 or dims[k].limit is not None:
                continue
            dims[k] = replace(dims[k], dim=d - 1)
        base[d - 1] = base[d - 1] * shape[d]
        shape[d - 1] *= shape[d]
        del shape[d], base[d]
        dims = [replace(x, dim=x.dim - 1) if x.dim > d else x for x in dims]
    arg = source.arg._replace(shape=tuple(shape))
    return dims, base, source.replace(arg=arg)


def _constant(x: UOp) -> int | None:
    return x.arg if x.op is Ops.CONST else None


def _sum(terms: list[tuple[UOp, int]], unit: int) -> UOp:
    """The sum of multiples, in units."""
    total = UOp.const(0, dtypes.index)
    for term, factor in terms:
        total = total + term * (factor // unit)
    return total
