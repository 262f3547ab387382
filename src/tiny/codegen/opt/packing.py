"""Operands in memory of their own: what the leaves of loops, tiles and lanes read, packed for them.

A box holds what is read inside of a loop, laid out as it is read, and is filled over leaves of its
own: in the kernel, in a phase before it, or by a kernel that runs before.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tiny._core.symbolic import simplify
from tiny.codegen.lower.indices import all_of, inside, linear_form
from tiny.codegen.lower.tiled import Loop, TiledAxis, TiledKernel
from tiny.codegen.opt.axes import Part, Split
from tiny.codegen.opt.opts import KernelOptError
from tiny.codegen.opt.prologues import Prologue, conditions_of
from tiny.codegen.opt.units import UnitUse
from tiny.dtype import DType, dtypes
from tiny.uop.ops import AxisType, LocalArg, Ops, ParamArg, RangeArg, StageArg, UOp
from tiny.uop.target import Target

__all__ = ["SQUARE", "Boxes", "Fill"]

MOST_SHARED = 1 << 28  # bytes of scratch that all threads have in common
ALIGNMENT = 64
SQUARE = 8  # rows and lanes that are transposed at once: more cost more to compile, and save none


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


class Boxes:
    """The leaves of one kernel, the memory that it gets, and what fills that.

    Whoever tiles the kernel says what its loops, axes and ranges become (`loops`, `axes`, `new`).
    Operands in `kept` are packed before the kernel runs, by `fills`, in memory that it gets as a
    PARAM.
    """

    def __init__(
        self,
        ast: UOp,
        split: Split,
        kept: Collection[UOp],
        target: Target,
        unit: UnitUse | None,
    ) -> None:
        self.ast, self.split, self.kept = ast, split, kept
        self.target, self.unit = target, unit
        self.fills: list[Fill] = []
        self.numbers = 0  # of leaves
        self.parts: dict[UOp, Part] = {}  # by leaf
        self.loops: dict[int, Loop] = {}  # by number of the axis or blocks, as they nest
        self.nest_order: list[int] = []  # of those that have a loop and others
        self.more_loops: list[Loop] = []  # of fills, each in nesting order
        self.axes: dict[int, TiledAxis] = {}
        self.unrolled: list[UOp] = []
        self.rows: list[UOp] = []
        self.vectors: list[UOp] = []
        self.scratch = self.shared = 0  # bytes
        self.new: dict[UOp, UOp] = {}

    def leaf(self, count: int, kind: AxisType) -> UOp:
        """A new RANGE over a number of steps."""
        self.numbers += 1
        arg = RangeArg(self.numbers - 1, kind)
        return UOp(Ops.RANGE, dtypes.index, (UOp.const(count, dtypes.index),), arg)

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
        arg = StageArg(memory.op is Ops.DEFINE_LOCAL and memory.arg.shared, memory.arg.shape)
        return UOp(Ops.STAGE, memory.dtype, (store, *own), arg)

    def packed(self, node: UOp, axis: int | None, made: Prologue) -> UOp:
        """An operand, or what is made of it, in memory of its own filled inside of a loop.

        The box holds what the leaves inside read, laid out with the lanes innermost, tiles
        around them, then loops as they nest: what is read next to each other is next to each
        other. Padding is put in when it is filled, so that a read needs no condition.
        """
        memory, *at = node.src
        value, rank = made.value, len(memory.arg.shape)
        order = list(self.loops)
        places = {e: k for k, e in enumerate(self.nest_order)}
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
                    return start, self.reduced_dims(axis, terms, d, stride, outside)
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

    def reduced_dims(
        self, axis: int, terms: list[tuple[UOp, int]], d: int, stride: int, outside: set[int]
    ) -> list[_Dim]:
        """The dimension of an axis that is reduced; its lanes are one of their own, innermost.

        Else what is read in a step would be as far apart as the axis is long.
        """
        extent = self.extent(axis, outside)
        lanes = [t for t, _ in terms if t.arg.kind is AxisType.VEC]
        others = [(t, factor) for t, factor in terms if t not in lanes]
        if not (lanes and others):
            return [_Dim(extent, _sum(terms, stride), d, stride, None, self.rank(terms))]
        width = lanes[0].src[0].arg
        outer, unit = -(-extent // width), stride * width
        return [
            _Dim(outer, _sum(others, unit), d, unit, None, self.rank(others)),
            _Dim(width, lanes[0], d, stride, None, self.rank([(lanes[0], stride)])),
        ]

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
