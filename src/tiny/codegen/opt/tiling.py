"""From a kernel and its split axes to one over loops, tiles and lanes; what is staged for it.

Three things become STAGEs here, with the memory that they need, so that lowering knows one way of
keeping values: an operand that an Opt packs; the sums that a loop over a reduction carries from
block to block, where that loop is outside of outputs'; and the partial sums of blocks that
threads share, which a later phase adds up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tiny._core.symbolic import simplify
from tiny.codegen.lower.indices import flat_offset, linear_form
from tiny.codegen.lower.sums import SumRules
from tiny.codegen.lower.tiled import Head, Loop, TiledAxis, TiledKernel
from tiny.codegen.opt.axes import Axis, Part, Split, copies_of
from tiny.codegen.opt.epilogues import rolled_epilogue, unit_epilogue
from tiny.codegen.opt.idle import find_needs
from tiny.codegen.opt.lodging import Lodging, find_lodging
from tiny.codegen.opt.opts import KernelOptError
from tiny.codegen.opt.packing import ALIGNMENT, Boxes
from tiny.codegen.opt.prologues import Prologue, function_of
from tiny.codegen.opt.units import UnitUse
from tiny.dtype import dtypes
from tiny.uop.ops import AxisType, Ops, ReduceArg, UOp
from tiny.uop.target import Target

__all__ = ["Tiling"]

FEW_ROWS = 32


class Tiling(Boxes):
    """The splitting of one kernel: `kernel` is it over the parts of its axes.

    `masks` are the axes that each node depends on. `staged` are the loads to be packed, each with
    the number of the axis at the head of whose body that happens, None for outside all loops; what
    is made of them first stands in `prologues`, where it is made of others too. Those in `kept` are
    packed before the kernel runs, by `fills`, in memory that it gets as a PARAM. What is stored at
    `streamed`, INDEXes, is so in whole lines, wherever its rows begin.
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
        streamed: Sequence[UOp] = (),
    ) -> None:
        super().__init__(ast, split, kept, target, unit)
        # what is packed lies by the numbers of iterations, whatever elements those are about
        self.heads = {} if staged else self.find_heads(streamed)
        self.lodged = None if is_in_place or streamed else self.find_lodged()
        self.masks, self.staged = masks, staged
        self.scanned = {n.src[-1] for n in masks if n.op is Ops.SCAN}
        self.is_in_place, self.prologues = is_in_place, prologues
        self.values: dict[UOp, UOp] = {}  # each range as an expression of its leaves
        self.outer: dict[int, UOp] = {}  # by axis: the part of it that loops make
        self.inner: dict[int, UOp] = {}  # and that of the tile and the lanes
        self.leaves: dict[UOp, tuple[UOp, ...]] = {}  # of each range
        self.kept_sums: set[UOp] = set()  # the STAGEs of sums that loops carry
        self.carrying: set[int] = set()  # axes that sums are carried along, or shared
        # what an INDEX into a STAGE has in front of and behind its own indices
        self.around: dict[UOp, tuple[tuple[UOp, ...], tuple[UOp, ...]]] = {}
        base = [k for k in split.order if split.axes[k].blocks_of < 0]
        for k in base:
            self.split_axis(k, split.axes[k])
        # in what threads share, theirs is the outermost loop
        self.nest_order = sorted(split.order, key=lambda k: not split.axes[k].is_thread)
        self.loops = {k: self.loops[k] for k in self.nest_order if k in self.loops}

    # ------------------------------------------------------------ leaves

    def find_heads(self, streamed: Sequence[UOp]) -> dict[int, UOp]:
        """By axis, along which rows of memory begin anywhere in a line: where they are stored."""
        numbers = {a.range: k for k, a in enumerate(self.split.axes) if a.lanes > 1}
        found: dict[int, UOp] = {}
        for index in streamed:
            memory, *at = index.src
            shape, line = memory.arg.shape, ALIGNMENT // index.dtype.itemsize
            constant, terms = linear_form(flat_offset(at[: len(shape)], shape))
            along = [numbers[r] for r, factor in terms if factor == 1 and r in numbers]
            others = [factor for _, factor in terms if factor != 1]
            is_split = len(along) == 1 and len(others) + 1 == len(terms)
            if is_split and any(x % line for x in (constant, *others)):
                found.setdefault(along[0], index)
        return found

    def find_lodged(self) -> Lodging | None:
        """The STAGE that is kept where results will be: all is done with a row, then the next."""
        axes, order = self.split.axes, self.split.order
        plain = {a.range for a in axes if a.step == 1 and a.blocks_of < 0}
        found = find_lodging(self.ast, plain)
        if found is None:
            return None
        rows = set(found.address.src[1:-1])
        last = max(k for k, e in enumerate(order) if axes[e].range in rows)
        first = min(k for k, e in enumerate(order) if axes[e].range is found.along)
        is_shared = any(a.is_thread for a in axes if a.range is found.along)
        return found if last < first and not is_shared else None

    def head(self, number: int) -> Head:
        """Where in a line the rows along an axis begin, as loops around it determine it."""
        index = self.heads[number]
        memory, *at = index.src
        shape, line = memory.arg.shape, ALIGNMENT // index.dtype.itemsize
        offset = flat_offset([self.new[i] for i in at[: len(shape)]], shape)
        constant, terms = linear_form(simplify(offset))
        around = [
            (leaf, factor % line)
            for leaf, factor in terms
            if leaf in self.parts and factor % line
            if self.parts[leaf].axis != number and self.parts[leaf].entry is not None
        ]
        return Head(line, constant % line, tuple(around))

    def split_axis(self, number: int, axis: Axis) -> None:
        """The loops, tile and lanes of an axis, and its range as an expression of them."""
        size: int | UOp = axis.range.src[0] if axis.size is None else axis.size
        most = axis.range.src[0].vmax
        copies = copies_of(axis, self.split.vector_lanes[number])
        lanes = axis.step // copies
        shifts = not (axis.is_reduce or self.is_in_place or axis.range in self.scanned)
        if self.lodged is not None and self.lodged.along is axis.range:
            shifts = False  # what is stored takes the place of what it is made of
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
            exact = isinstance(size, int) and most % step == 0
            reach = most
            is_known = isinstance(size, int) and not axis.block
            if shifts and is_known and not exact and number in self.heads:
                reach += ALIGNMENT // self.heads[number].dtype.itemsize - 1
            # one that counts to 1 would be taken for the constant 0, and the loop for none
            loop = Loop(
                self.leaf(max(2, -(-reach // step)), kind),
                number,
                step,
                is_thread=self.split.axes[entry].is_thread,
            )
            self.parts[loop.leaf] = Part(number, step, entry)
            mine.append(loop.leaf)
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
            elif node.op is Ops.STORE and node.arg == "partial":
                new[node] = node.replace(src=src[:2], arg=None)  # `needs` say where it is wanted
            elif node.op is Ops.REDUCE:
                new[node] = self.reduce(node, src[0])
            elif node.op is Ops.SCAN:
                new[node] = node.replace(src=(*src[:-1], *self.leaves[node.src[-1]]))
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
        for number in () if self.carrying else self.heads:  # so do sums that are kept in memory
            loop = self.loops.get(number)
            is_known = isinstance(self.axes[number].size, int) and not self.split.axes[number].block
            if loop is not None and loop.position is not None and is_known and not loop.needs:
                self.loops[number] = replace(loop, head=self.head(number))
        axes = tuple([self.axes[k] for k in range(len(self.axes))])
        return TiledKernel(
            new[self.ast] if sink is None else sink,
            (*self.loops.values(), *self.more_loops),
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

    def inner_leaves(self, mask: int) -> tuple[list[UOp], list[UOp]]:
        """The tiles and the lanes of a set of axes."""
        axes = [self.axes[k] for k in range(mask.bit_length()) if mask >> k & 1]
        tiles = [a.tile for a in axes if a.tile is not None]
        return tiles, [a.lane for a in axes if a.lane is not None]

    def stage(self, node: UOp, value: UOp) -> UOp:
        """A STAGE of the kernel: for each tile and lane of the axes around it one of its own."""
        if self.lodged is not None and self.lodged.stage is node:
            return self.lodge(node, value, self.lodged)
        tiles, lanes = self.inner_leaves(self.masks[node])
        shape = [*_sizes(tiles), *node.arg.shape, *_sizes(lanes)]
        memory = self.memory(shape, node.dtype, node.arg.shared or not self.masks[node])
        at = [*tiles, *[self.values[r] for r in node.src[1:]], *lanes]
        self.around[node] = tuple(tiles), tuple(lanes)
        return self.filled(memory, at, value, [p for r in node.src[1:] for p in self.leaves[r]])

    def lodge(self, node: UOp, value: UOp, lodging: Lodging) -> UOp:
        """A STAGE in the memory where what is made of it will be."""
        memory, *at = lodging.address.src
        place = at.index(lodging.along)
        places = [self.values[r] for r in at]
        self.around[node] = tuple(places[:place]), tuple(places[place + 1 :])
        places[place] = self.values[node.src[1]]
        return self.filled(memory, places, value, self.leaves[node.src[1]])

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
            # what threads add up goes inside of all outputs, whatever the order of loops
            if set(carried) - set(shared) and not self.kept_sums.isdisjoint(value.postorder()):
                raise KernelOptError(
                    "sums that are kept in memory are added up again by threads, in loops outside "
                    "of those over outputs"
                )
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
        stage = self.filled(memory, at, total, own)
        self.kept_sums.add(stage)
        kept = UOp(Ops.INDEX, value.dtype, (stage, *at))
        return kept.cast(dtype) if kept.dtype is not dtype else kept


def _sizes(leaves: Sequence[UOp]) -> list[int]:
    return [p.src[0].arg for p in leaves]
