"""A kernel with its axes, and the Opts that split and order them."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Self

from tiny.codegen.lower.conditions import place_conditions
from tiny.codegen.lower.indices import linear_form
from tiny.codegen.lower.tiled import Loop, TiledKernel, axis_masks
from tiny.codegen.opt.opts import KernelOptError, Opt, OptOps
from tiny.dtype import dtypes
from tiny.helpers import STRICT_REDUCE, colored
from tiny.uop.ops import AxisType, Ops, RangeArg, UOp
from tiny.uop.target import Target

__all__ = ["Axis", "Kernel"]

# more copies of one body than this are never faster, and take minutes to compile
MAX_COPIES = 1024

_COLORS = {
    AxisType.LOOP: "WHITE",
    AxisType.REDUCE: "red",
    AxisType.UPCAST: "yellow",
    AxisType.UNROLL: "magenta",
    AxisType.VEC: "BLUE",
}


@dataclass(frozen=True)
class Axis:
    """An axis of a kernel and how it is split: `tile` neighbours in registers, or `lanes`.

    `size` is None if it is known only at run time. `lanes` may be more than a vector holds: then
    the axis has several vectors side by side.
    """

    range: UOp
    size: int | None
    is_reduce: bool
    tile: int = 1
    lanes: int = 1

    @property
    def step(self) -> int:
        """How many elements one iteration of the loop computes."""
        return self.tile * self.lanes


class Kernel:
    """A kernel and the Opts applied to it, in order.

    `ast` is a SINK of stores over scalars and ranges (level 2), its conditions placed by
    `place_conditions`. `axes` are its ranges: those of the outputs first, outermost dimension of
    what is stored first; then those of the reductions, by number. An Opt changes an axis, or
    the order in which loops nest; it never changes what the kernel computes but for the order in
    which a reduction adds up.
    """

    def __init__(self, ast: UOp, target: Target) -> None:
        self.strict = bool(STRICT_REDUCE)
        self.ast, self.target = place_conditions(ast, self.strict), target
        order = self.ast.postorder()
        reduced = {r for n in order if n.op is Ops.REDUCE for r in n.src[1:]}
        ranges = [n for n in order if n.op is Ops.RANGE]
        for r in ranges:
            if r.src[0].vmax < 1:
                raise ValueError(f"axis {r.arg.axis} is empty; a kernel has at least one element")
        place = _places_in_stores(order)
        ranges.sort(key=lambda r: (r in reduced, place.get(r, len(place)), r.arg.axis))
        self.axes = [Axis(r, _constant(r.src[0]), r in reduced) for r in ranges]
        self.first_reduce = sum(not a.is_reduce for a in self.axes)
        self.masks = axis_masks(order, {r: 1 << k for k, r in enumerate(ranges)})
        self.nest_order = self._default_order()
        self._vector_lanes = self._count_vector_lanes()
        self.applied_opts: tuple[Opt, ...] = ()
        self.written = {n.src[0].src[0] for n in order if n.op is Ops.STORE}
        loads = {
            s
            for n in order
            for k, s in enumerate(n.src)
            if s.op is Ops.INDEX and not (n.op is Ops.STORE and k == 0)
        }
        self.loads = [n for n in order if n in loads]
        self.is_in_place = any(n.src[0] in self.written for n in self.loads)

    def _default_order(self) -> list[int]:
        """Axes in order, but the more work of reductions depends on an output axis the further out.

        So a sum over rows is made once a column, and not again for each row of its users.
        """
        work = [0] * self.first_reduce
        for node, mask in self.masks.items():
            if node.op is Ops.REDUCE:
                points = self.points(self.masks[node.src[0]])
                for k in range(self.first_reduce):
                    work[k] += points if mask >> k & 1 else 0
        outputs = sorted(range(self.first_reduce), key=lambda k: -work[k])
        return [*outputs, *range(self.first_reduce, len(self.axes))]

    def points(self, mask: int) -> int:
        """How many elements a set of axes has; sizes known at run time count as their largest."""
        return math.prod(a.range.src[0].vmax for k, a in enumerate(self.axes) if mask >> k & 1)

    def copy(self) -> Self:
        """A kernel that can go another way from here."""
        other = copy.copy(self)
        other.axes, other.nest_order = list(self.axes), list(self.nest_order)
        return other

    # ------------------------------------------------------------ Opts

    def apply_opt(self, opt: Opt) -> None:
        """Apply an Opt. KernelOptError naming the rule if it is not legal; nothing changes then."""
        number = opt.axis + (self.first_reduce if opt.op is OptOps.UNROLL else 0)
        self._check(opt.axis >= 0 and number < len(self.axes), opt, "there is no such axis")
        if opt.op is OptOps.SWAP:
            self._swap(opt)
        else:
            self._split(opt, number)
        self.applied_opts = (*self.applied_opts, opt)

    def allows(self, opt: Opt) -> bool:
        """Whether an Opt is legal now."""
        try:
            self.copy().apply_opt(opt)
        except KernelOptError:
            return False
        return True

    def _check(self, holds: bool, opt: Opt, rule: str) -> None:
        if not holds:
            shape = ", ".join(
                f"{'reduce ' if a.is_reduce else ''}{'?' if a.size is None else a.size}"
                for a in self.axes
            )
            raise KernelOptError(f"{opt.op.name}({opt.axis}, {opt.arg}): {rule}; axes: {shape}")

    def _swap(self, opt: Opt) -> None:
        self._check(0 <= opt.arg < len(self.axes), opt, "there is no axis to exchange it with")
        self._check(opt.arg != opt.axis, opt, "an axis is exchanged with another one")
        same = self.axes[opt.axis].is_reduce == self.axes[opt.arg].is_reduce
        self._check(same, opt, "an output axis and a reduction do not change places")
        i, j = self.nest_order.index(opt.axis), self.nest_order.index(opt.arg)
        self.nest_order[i], self.nest_order[j] = opt.arg, opt.axis

    def _split(self, opt: Opt, number: int) -> None:
        axis, n = self.axes[number], opt.arg
        check = self._check
        check(axis.size is not None, opt, "a size known only at run time is not split")
        assert axis.size is not None
        check(n >= 2, opt, "the number of elements is at least 2")
        check(n <= axis.size, opt, f"more elements than the {axis.size} of the axis")
        check(axis.step == 1, opt, f"the axis is split already, by {axis.step}")
        divides = axis.size % n == 0
        check(divides or not axis.is_reduce, opt, f"it does not divide the reduction {axis.size}")
        check(
            divides or not self.is_in_place,
            opt,
            f"it does not divide {axis.size}, and a kernel that changes a buffer it reads "
            "computes each element once",
        )
        if opt.op is OptOps.VEC:
            check(not (self.strict and axis.is_reduce), opt, "STRICT_REDUCE adds up in order")
            self._check_lanes(opt, number)
            split = replace(axis, lanes=n)
        else:
            check(opt.op is OptOps.UNROLL or not axis.is_reduce, opt, "a reduction is UNROLLed")
            split = replace(axis, tile=n)
        copies = math.prod(_copies(a, self.vector_lanes(k)) for k, a in enumerate(self.axes))
        copies *= _copies(split, self.vector_lanes(number))
        check(copies <= MAX_COPIES, opt, f"{copies} copies of the body, {MAX_COPIES} are allowed")
        self.axes[number] = split

    def _check_lanes(self, opt: Opt, number: int) -> None:
        """No node may depend on two axes of lanes."""
        bits = {a.range: 1 << k for k, a in enumerate(self.axes)}
        bit, others = 1 << number, sum(bits[a.range] for a in self.axes if a.lanes > 1)
        clash = False
        for node, mask in self.masks.items():
            if node.op is Ops.SINK:
                continue
            if node.op is Ops.REDUCE:  # the accumulator has the lanes of what it adds up
                mask |= self.masks[node.src[0]] | sum(bits[r] for r in node.src[1:])
            clash = clash or bool(mask & bit and mask & others)
        self._check(not clash, opt, "a value would have lanes along two axes")

    def vector_lanes(self, number: int) -> int:
        """How many elements a vector along an axis holds: of the widest dtype that is computed."""
        return self._vector_lanes[number]

    def _count_vector_lanes(self) -> list[int]:
        nbytes = self.target.vector_bytes
        if nbytes <= 0:
            return [1 << 30] * len(self.axes)  # no registers to fill: one vector, however long
        widest = [0] * len(self.axes)
        for dtype, mask in {(n.dtype, m) for n, m in self.masks.items()}:
            # narrow floats are computed as float32
            size = max(dtype.itemsize, 4) if dtype.kind in "f8" else dtype.itemsize
            for k in range(len(widest)) if dtype.kind in "iuf8" else ():
                if mask >> k & 1:
                    widest[k] = max(widest[k], size)
        return [max(1, nbytes // (size or 4)) for size in widest]

    # ------------------------------------------------------------ what came of it

    def _parts(self) -> list[tuple[int | None, AxisType]]:
        """(size, kind) of loops in nesting order, then tiles, then lanes."""
        loops: list[tuple[int | None, AxisType]] = []
        tiles: list[tuple[int | None, AxisType]] = []
        lanes: list[tuple[int | None, AxisType]] = []
        for a in (self.axes[k] for k in self.nest_order):
            kind = AxisType.REDUCE if a.is_reduce else AxisType.LOOP
            count = None if a.size is None else -(-a.size // a.step)
            if count != 1 or a.step == 1:
                loops.append((count, kind))
            if a.tile > 1:
                tiles.append((a.tile, AxisType.UNROLL if a.is_reduce else AxisType.UPCAST))
            if a.lanes > 1:
                lanes.append((a.lanes, AxisType.VEC))
        return loops + tiles + lanes

    @property
    def full_shape(self) -> tuple[int | None, ...]:
        """Sizes of loops, tiles and lanes; None for one known only at run time."""
        return tuple(size for size, _ in self._parts())

    @property
    def axis_types(self) -> tuple[AxisType, ...]:
        """What each number of `full_shape` is."""
        return tuple(kind for _, kind in self._parts())

    def colored_shape(self) -> str:
        """`full_shape` for a terminal, a colour for each kind of axis."""
        return " ".join(
            colored("?" if size is None else size, _COLORS[kind]) for size, kind in self._parts()
        )

    @property
    def name(self) -> str:
        """`r_` for a reduction, `e_` for elementwise, then the sizes: r_128_32_5_5."""
        kind = "r" if self.first_reduce < len(self.axes) else "e"
        sizes = ["n" if size is None else str(size) for size in self.full_shape]
        return "_".join([kind, *sizes])

    def tiled(self) -> TiledKernel:
        """The kernel over loops, tiles and lanes."""
        numbers = iter(range(4 * len(self.axes)))

        def leaf(size: int | UOp, kind: AxisType) -> UOp:
            count = size if isinstance(size, UOp) else UOp.const(size, dtypes.index)
            return UOp(Ops.RANGE, dtypes.index, (count,), RangeArg(next(numbers), kind))

        loops: list[Loop] = []
        unrolled: list[UOp] = []
        rows: list[UOp] = []
        vectors: list[UOp] = []
        values: dict[UOp, UOp] = {}  # each old range as an expression of its parts
        parts: dict[UOp, tuple[UOp, ...]] = {}
        for number in self.nest_order:
            axis = self.axes[number]
            mine = list[UOp]()
            value = UOp.const(0, dtypes.index)
            if axis.size is None:
                loop = Loop(leaf(axis.range.src[0], axis.range.arg.kind), axis.range.src[0])
                loops.append(loop)
                mine.append(loop.leaf)
                value = loop.leaf
            elif axis.size > axis.step:
                kind = AxisType.REDUCE if axis.is_reduce else AxisType.LOOP
                count = UOp.const(-(-axis.size // axis.step), dtypes.index)
                if axis.size % axis.step:
                    last = axis.size - axis.step
                    loop = Loop(leaf(last + 1, kind), count, axis.step, last)
                    value = loop.leaf
                else:
                    loop = Loop(leaf(count, kind), count)
                    value = loop.leaf * axis.step
                loops.append(loop)
                mine.append(loop.leaf)
            copies = _copies(axis, self.vector_lanes(number))
            lanes = axis.step // copies
            if copies > 1:
                tile = leaf(copies, AxisType.UNROLL if axis.is_reduce else AxisType.UPCAST)
                mine.append(tile)
                value = value + tile * lanes
                if axis.lanes > 1:
                    vectors.append(tile)
                else:
                    (unrolled if axis.is_reduce else rows).append(tile)
            if lanes > 1:
                mine.append(leaf(lanes, AxisType.VEC))
                value = value + mine[-1]
            values[axis.range], parts[axis.range] = value, tuple(mine)
        sink = _with_ranges(self.ast, values, parts)
        return TiledKernel(sink, tuple(loops), (*unrolled, *rows, *vectors), self.strict)


def _places_in_stores(order: list[UOp]) -> dict[UOp, int]:
    """Ranges in the order of the dimensions of what is stored; in one dimension by stride."""
    found: dict[UOp, int] = {}
    for store in (n for n in order if n.op is Ops.STORE):
        for index in store.src[0].src[1:]:
            for term, _ in sorted(linear_form(index).terms, key=lambda t: -abs(t[1])):
                for r in term.postorder():
                    if r.op is Ops.RANGE:
                        found.setdefault(r, len(found))
    return found


def _constant(size: UOp) -> int | None:
    """The value of a size that is known."""
    return size.arg if size.op is Ops.CONST else None


def _copies(axis: Axis, vector_lanes: int) -> int:
    """How many registers lie side by side along an axis."""
    if axis.lanes > vector_lanes and axis.lanes % vector_lanes == 0:
        return axis.tile * axis.lanes // vector_lanes
    return axis.tile


def _with_ranges(sink: UOp, values: dict[UOp, UOp], parts: dict[UOp, tuple[UOp, ...]]) -> UOp:
    """The graph with each range as an expression; a REDUCE goes over all parts of its ranges."""
    new: dict[UOp, UOp] = dict(values)
    for node in sink.postorder():
        if node in values:
            continue
        if node.op is Ops.REDUCE:
            over = [p for r in node.src[1:] for p in parts[r]]
            new[node] = node.replace(src=(new[node.src[0]], *over))
            continue
        src = tuple([new[s] for s in node.src])
        new[node] = node if src == node.src else node.replace(src=src)
    return new[sink]
