"""A kernel with its axes, and the Opts that split and order them."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection
from dataclasses import replace
from typing import Self

from tiny.codegen.lower.conditions import place_conditions
from tiny.codegen.lower.indices import linear_form
from tiny.codegen.lower.phases import split_phases
from tiny.codegen.lower.tiled import TiledKernel, axis_masks
from tiny.codegen.opt.axes import Axis, Split, copies_of
from tiny.codegen.opt.idle import without_implied
from tiny.codegen.opt.opts import KernelOptError, Opt, OptOps
from tiny.codegen.opt.packing import Fill
from tiny.codegen.opt.prologues import find_prologues
from tiny.codegen.opt.tiling import Tiling
from tiny.codegen.opt.units import UnitUse, unit_uses
from tiny.helpers import STRICT_REDUCE, colored
from tiny.uop.ops import AxisType, Ops, UOp
from tiny.uop.passes import compiler_pass
from tiny.uop.target import Target

__all__ = ["SplitKernel"]

# more copies of one body than this are never faster, and take minutes to compile
MAX_COPIES = 1024

_COLORS = {
    AxisType.LOOP: "WHITE",
    AxisType.THREAD: "cyan",
    AxisType.REDUCE: "red",
    AxisType.UPCAST: "yellow",
    AxisType.UNROLL: "magenta",
    AxisType.VEC: "BLUE",
}


class SplitKernel:
    """A kernel and the Opts applied to it, in order.

    `ast` is a SINK of stores over scalars and ranges (level 2), its conditions placed by
    `place_conditions`. `axes` are its ranges: those of the outputs first, outermost dimension of
    what is stored first, then those of STAGEs; then those of the reductions, by number; then the
    blocks, as they were made. An Opt changes an axis, or the order in which loops nest; it never
    changes what the kernel computes but for the order in which a reduction adds up.

    What the PARAMs numbered `kept` hold is the same in many runs, as weights are: where it is
    packed, that is done once before the kernel runs, and not by it.
    """

    def __init__(self, ast: UOp, target: Target, kept: Collection[int] = ()) -> None:
        self.strict = bool(STRICT_REDUCE)
        self.target = target
        self.unit: UnitUse | None = None
        self.unit_choices = 0  # of axes, for the unit
        self.before: SplitKernel | None = None  # as it was before a unit was chosen
        self.made_words: frozenset[int] = frozenset()  # of its operands, by themselves
        self.applied_opts: tuple[Opt, ...] = ()
        self._kept_slots = frozenset(kept)
        self._read(without_implied(split_phases(place_conditions(ast, self.strict))))

    @compiler_pass("read axes", "kernel", "axes, nests, loads of it")
    def _read(self, ast: UOp) -> None:
        """Find the axes of a kernel, none of them split."""
        self.ast = ast
        order = ast.postorder()
        reduced = {r for n in order if n.op is Ops.REDUCE for r in n.src[1:]}
        ranges = [n for n in order if n.op is Ops.RANGE]
        for r in ranges:
            if r.src[0].vmax < 1:
                raise ValueError(f"axis {r.arg.axis} is empty; a kernel has at least one element")
        # writes to computed places: the last one wins, so all loops stay, and in their order
        self.is_ordered = self.ast.src[0].arg == "ordered"
        place = {} if self.is_ordered else _places_in_stores(order)
        ranges.sort(key=lambda r: (r in reduced, place.get(r, len(place)), r.arg.axis))
        self.axes = [Axis(r, _constant(r.src[0]), r in reduced) for r in ranges]
        self.first_reduce = sum(not a.is_reduce for a in self.axes)
        # of such a kernel: those whose order does not matter, as no two steps write to one place
        fixed = set(self.ast.src[0].src[2:]) if self.is_ordered else set()
        if self.is_ordered:
            fixed -= _told_apart(self.ast.src[0].src[0])
        self.free_axes = [
            k for k, a in enumerate(self.axes) if not a.is_reduce and a.range not in fixed
        ]
        self.number_of = {a.range: k for k, a in enumerate(self.axes)}
        # the axis that SCANs go along, -1 if there are none: inside of all others, and in order
        scans = [n for n in order if n.op is Ops.SCAN]
        self.scanned = self.number_of[scans[0].src[-1]] if scans else -1
        # lanes along it would change the order, and factors may overflow where what they are for
        # is 0
        self.scans_lanes = not (self.strict or any(n.arg.op is Ops.MULACC for n in scans))
        self.masks = axis_masks(order, {r: 1 << k for k, r in enumerate(ranges)})
        # of each reduction: its own axes, and those that its result depends on
        self._sums = [
            (sum(1 << self.number_of[r] for r in n.src[1:]), mask)
            for n, mask in self.masks.items()
            if n.op is Ops.REDUCE
        ]
        self.nest_masks = self._find_nests(order)
        self.nest_order = self._default_order()
        self._vector_lanes = self._count_vector_lanes()
        self.staged: dict[int, int | None] = {}  # number of a load: the axis that it is staged at
        # what the scheduler keeps: bytes for each point of these axes, whose tiles have their own
        self._rows_kept = [
            (-(-math.prod(n.arg.shape) * n.dtype.itemsize // 64) * 64, mask)
            for n, mask in self.masks.items()
            if n.op is Ops.STAGE and mask and not n.arg.shared
        ]
        self.written = {n.src[0].src[0] for n in order if n.op is Ops.STORE}
        loads = {
            s
            for n in order
            for k, s in enumerate(n.src)
            if s.op is Ops.INDEX and not (n.op is Ops.STORE and k == 0)
        }
        self.loads = [n for n in order if n in loads]
        params = [(k, n.src[0]) for k, n in enumerate(self.loads) if n.src[0].op is Ops.PARAM]
        # numbers of loads
        self.kept = frozenset([k for k, p in params if p.arg.slot in self._kept_slots])
        self.is_in_place = any(n.src[0] in self.written for n in self.loads)
        self.prologues = find_prologues(order, self.written)
        self.streamed: frozenset[int] = frozenset()  # numbers of stores
        self._tiled: TiledKernel | None = None
        self.fills: tuple[Fill, ...] = ()  # of what is tiled

    def _find_nests(self, order: list[UOp]) -> list[int]:
        """The sets of axes that loop nests go over: of stores, of reductions, of STAGEs."""
        nests: dict[int, None] = {}
        for n in order:
            if n.op in (Ops.STORE, Ops.REDUCE, Ops.STAGE):
                mask = self.masks[n.src[0]] | self.masks[n]
                for r in n.src[1:] if n.op is not Ops.STORE else ():
                    mask |= 1 << self.number_of[r] if r in self.number_of else 0
                nests[mask] = None
        return list(nests)

    def _default_order(self) -> list[int]:
        """Axes in order, but the more hoisted work depends on an output axis the further out.

        So a sum over rows is made once a column, and not again for each row of its users.
        """
        work = [0] * self.first_reduce
        for node, mask in self.masks.items():
            if node.op is Ops.REDUCE or node.op is Ops.STAGE:
                points = self.points(self.masks[node.src[0]])
                for k in range(self.first_reduce):
                    work[k] += points if mask >> k & 1 else 0
        outputs = sorted(
            range(self.first_reduce),
            key=lambda k: (k == self.scanned, 0 if self.is_ordered else -work[k]),
        )
        around: dict[int, int] = {}  # the axes that reductions over an axis are made for
        for node, mask in self.masks.items():
            for r in node.src[1:] if node.op is Ops.REDUCE else ():
                if r in self.number_of:
                    k = self.number_of[r]
                    around[k] = around.get(k, 0) | mask
        reduces: list[int] = []
        left = list(around)
        while left:  # in order, but each after those around it
            unplaced = sum(1 << k for k in left)
            k = min(k for k in left if not around[k] & unplaced & ~(1 << k))
            left.remove(k)
            reduces.append(k)
        return [*outputs, *reduces]

    def points(self, mask: int) -> int:
        """How many elements a set of axes has; sizes known at run time count as their largest."""
        return math.prod(
            a.range.src[0].vmax
            for k, a in enumerate(self.axes)
            if a.blocks_of < 0 and mask >> k & 1
        )

    def copy(self) -> Self:
        """A kernel that can go another way from here."""
        other = copy.copy(self)
        other.axes, other.nest_order = list(self.axes), list(self.nest_order)
        other.staged = dict(self.staged)
        return other

    # ------------------------------------------------------------ Opts

    def apply_opt(self, opt: Opt) -> None:
        """Apply an Opt. KernelOptError naming the rule if it is not legal; nothing changes then."""
        trial = self.copy()
        trial._apply(opt)
        trial.applied_opts = (*self.applied_opts, opt)
        trial._tiled = None
        if trial.staged or trial._keeps_sums():  # whether it fits is known when all is tiled
            try:
                trial.tiled()
            except KernelOptError as e:
                raise KernelOptError(f"{self._text(opt)}: {e}") from None
        self.__dict__.update(trial.__dict__)

    def _keeps_sums(self) -> bool:
        """Whether sums are kept in memory: of loops outside of users', of blocks of threads."""
        if any(a.is_thread and a.is_reduce for a in self.axes):
            return True
        bits = [1 << self._base(k) for k in self.nest_order]
        for own, around in self._sums:
            first = next((n for n, bit in enumerate(bits) if bit & own), len(bits))
            if any(bit & around for bit in bits[first:]):
                return True
        return False

    def try_opt(self, opt: Opt) -> bool:
        """Apply an Opt if it is legal now; whether it was."""
        try:
            self.apply_opt(opt)
        except KernelOptError:
            return False
        return True

    def allows(self, opt: Opt) -> bool:
        """Whether an Opt is legal now."""
        return self.copy().try_opt(opt)

    @staticmethod
    def _number(opt: Opt) -> int:
        if not isinstance(opt.arg, int):
            raise KernelOptError(f"{opt.op.name}({opt.axis}, {opt.arg}): it takes one number")
        return opt.arg

    def _text(self, opt: Opt) -> str:
        return f"{opt.op.name}({opt.axis}, {opt.arg})"

    def _check(self, holds: bool, opt: Opt, rule: str) -> None:
        if not holds:
            shape = ", ".join(
                f"{'reduce ' if a.is_reduce else ''}{'?' if a.size is None else a.size}"
                for a in self.axes
            )
            raise KernelOptError(f"{self._text(opt)}: {rule}; axes: {shape}")

    def _apply(self, opt: Opt) -> None:
        if opt.op is OptOps.TC:
            self._use_unit(opt)
            return
        if self.is_ordered:
            rule = "the kernel writes to computed places in the order of its loops"
            kinds = (OptOps.VEC, OptOps.BLOCK, OptOps.THREAD)
            known = opt.op in kinds and opt.axis is not None and 0 <= opt.axis < len(self.axes)
            self._check(known and self._base(opt.axis or 0) in self.free_axes, opt, rule)
        if self.scanned >= 0:
            self._check_order(opt)
        if opt.op is OptOps.STAGE:
            self._stage(opt)
            return
        number = -1 if opt.axis is None else opt.axis
        if opt.op is OptOps.UNROLL and number >= 0:
            number += self.first_reduce
        self._check(number >= 0, opt, "there is no such axis")
        if opt.op is OptOps.STREAM:
            self._stream(opt, number)
            return
        self._check(number < len(self.axes), opt, "there is no such axis")
        if opt.op is OptOps.SWAP:
            self._swap(opt, number)
        elif opt.op is OptOps.THREAD:
            self._thread(opt, number)
        elif opt.op is OptOps.BLOCK:
            self._block(opt, number)
        else:
            self._split(opt, number)

    def _check_order(self, opt: Opt) -> None:
        """What SCANs go along stays in order, and inside of all other loops."""
        numbers = (opt.axis, opt.arg if opt.op is OptOps.SWAP else None)
        splits = opt.op is OptOps.UPCAST or (opt.op is OptOps.VEC and self.scans_lanes)
        is_free = splits or opt.op is OptOps.STREAM or self.scanned not in numbers
        rule = "the steps of a SCAN go in order, inside of all others"
        self._check(is_free and opt.op is not OptOps.STAGE, opt, rule)

    def _base(self, number: int) -> int:
        """The number of the axis itself, for that of its blocks."""
        blocks_of = self.axes[number].blocks_of
        return number if blocks_of < 0 else blocks_of

    def _use_unit(self, opt: Opt) -> None:
        """Have a matrix unit compute a reduction: the kernel becomes one over words."""
        check, arg = self._check, opt.arg
        if not (isinstance(arg, tuple) and len(arg) == 3):
            raise KernelOptError(f"{self._text(opt)}: it takes (unit, level, use)")
        select, level, use = arg
        check(not self.applied_opts, opt, "a unit is chosen before anything else")
        check(not self.is_ordered, opt, "the kernel writes to computed places in order")
        check(use in (1, 2), opt, "it is used (1) or its shape is (2)")
        check(0 <= level <= 2, opt, "its level is 0, 1 or 2")
        units = self.target.units
        check(-1 <= select < len(units), opt, f"no such unit, the target has {len(units)}")
        units = units if select < 0 else units[select : select + 1]
        try:
            ways = unit_uses(
                self.ast,
                self.masks,
                self.number_of,
                self.nest_order[: self.first_reduce],
                units,
                level,
                use == 2,
                self.strict,
            )
        except KernelOptError as e:
            raise KernelOptError(f"{self._text(opt)}: {e}") from None
        check(opt.axis is not None and 0 <= opt.axis < len(ways), opt, "no such choice of axes")
        way = ways[opt.axis or 0]
        rule = "the kernel writes the operand's buffer"
        check(all(w.load.src[0] not in self.written for w in way.words.values()), opt, rule)
        self.unit_choices = len(ways)
        self.before = copy.copy(self)
        self._read(way.ast)
        self.unit = way
        n, lanes = way.n, way.unit.n
        have = self.vector_lanes(n)
        rule = f"vectors along the axis hold {have} elements, the unit's {lanes}"
        check(have == lanes or (use == 2 and have > 1 << 20), opt, rule)
        for number, size in ((n, lanes), (way.m, way.unit.m if way.registers else 1)):
            if size > 1:
                self.axes[number] = replace(self.axes[number], lanes=size)
        if way.registers:
            check(not self.is_in_place, opt, "the kernel changes a buffer that it reads")
        # what is no memory of words is made such when it is packed
        slots = {p: words.load.src[0].arg.slot for p, words in way.words.items()}
        numbers = [k for k, load in enumerate(self.loads) if load.src[0] in slots]
        self.kept |= {k for k in numbers if slots[self.loads[k].src[0]] in self._kept_slots}
        for number, load in enumerate(self.loads):
            words = way.words.get(load.src[0])
            if words is not None and (way.registers or not words.is_memory):
                self.staged[number] = None
        self.made_words = frozenset(self.staged)

    @property
    def plain(self) -> SplitKernel:
        """The kernel without a unit: what it reads and computes in fact."""
        return self.before or self

    def _swap(self, opt: Opt, number: int) -> None:
        other = self._number(opt)
        self._check(0 <= other < len(self.axes), opt, "there is no axis to exchange it with")
        self._check(other != number, opt, "an axis is exchanged with another one")
        a, b = self.axes[number], self.axes[other]
        self._check(not (a.is_thread or b.is_thread), opt, "the loop of threads stays outermost")
        mine, others = self._base(number), self._base(other)
        self._check(
            mine == others or any(m >> mine & 1 and m >> others & 1 for m in self.nest_masks),
            opt,
            "the two are loops of different nests",
        )
        i, j = self.nest_order.index(number), self.nest_order.index(other)
        self.nest_order[i], self.nest_order[j] = other, number
        for k, axis in enumerate(self.axes):
            outside = axis.blocks_of < 0 or (
                self.nest_order.index(k) < self.nest_order.index(axis.blocks_of)
            )
            self._check(outside, opt, "the blocks of an axis go outside of what is in them")
        if self.strict:
            sums = [k for k in self.nest_order if self.axes[k].is_reduce]
            self._check(sums == sorted(sums), opt, "STRICT_REDUCE adds up in order")
        reduces = a.is_reduce != b.is_reduce
        self._check(not (reduces and self.strict), opt, "STRICT_REDUCE adds up in order")
        self._check(
            not (reduces and self.is_in_place),
            opt,
            "a kernel that changes a buffer it reads carries no sums in memory",
        )

    def _thread(self, opt: Opt, number: int) -> None:
        axis = self.axes[number]
        check = self._check
        check(not self.target.has_local, opt, "this target has work-items instead of threads")
        check(not axis.block, opt, "it is split in blocks; share those")
        base = self._base(number)
        if axis.is_reduce:
            check(axis.blocks_of >= 0, opt, "of a reduction only blocks are shared")
            check(not self.axes[number].is_thread, opt, "threads share it already")
        else:
            others = [a for a in self.axes if a.is_thread and not a.is_reduce]
            check(not others, opt, "threads share another loop already")
            stores = [m for n, m in self.masks.items() if n.op is Ops.STORE]
            check(all(m >> base & 1 for m in stores), opt, "not everything stored depends on it")
            place = self.nest_order.index(number)
            moved = [k for k in self.nest_order[:place] if self._base(k) != base]
            # what it needs inside of another loop it would have to bring along
            check(len(moved) == place, opt, "it is inside of its own blocks")
            self.nest_order.remove(number)
            self.nest_order.insert(0, number)
        self.axes[number] = replace(axis, is_thread=True)

    def _block(self, opt: Opt, number: int) -> None:
        axis, n = self.axes[number], self._number(opt)
        check = self._check
        check(n >= 2, opt, "the number of elements is at least 2")
        check(axis.blocks_of < 0 and not axis.block, opt, "it is split in blocks already")
        check(not axis.is_thread, opt, "threads share it already")
        check(axis.size is None or n < axis.size, opt, f"a block of all {axis.size} elements")
        check(n % axis.step == 0, opt, f"{n} is no multiple of its tile, {axis.step}")
        check(not (self.strict and axis.is_reduce), opt, "STRICT_REDUCE adds up in order")
        self.axes[number] = replace(axis, block=n)
        self.axes.append(Axis(axis.range, None, axis.is_reduce, blocks_of=number))
        blocks = -(-axis.size // n) if axis.size is not None else None
        self.axes[-1] = replace(self.axes[-1], size=blocks)
        self.nest_order.insert(self.nest_order.index(number), len(self.axes) - 1)

    def _stage(self, opt: Opt) -> None:
        check, number = self._check, self._number(opt)
        check(0 <= number < len(self.loads), opt, "there is no such operand")
        load = self.loads[number]
        check(opt.axis is None or 0 <= opt.axis < len(self.axes), opt, "there is no such axis")
        check(load.src[0].op is Ops.PARAM, opt, "the operand is staged already")
        is_staged = number in self.staged and number not in self.made_words
        check(not is_staged, opt, "the operand is staged already")
        check(load.src[0] not in self.written, opt, "the kernel writes the operand's buffer")
        is_outside = opt.axis is None or number not in self.kept
        check(is_outside, opt, "what is packed before the kernel runs is so outside of all loops")
        self.made_words -= {number}
        self.staged[number] = opt.axis

    def _stream(self, opt: Opt, number: int) -> None:
        check, stores = self._check, self.ast.src
        check(number < len(stores), opt, "there is no such store")
        memory = stores[number].src[0].src[0]
        check(number not in self.streamed, opt, "it goes past the caches already")
        check(all(n.src[0] is not memory for n in self.loads), opt, "it is read here as well")
        self.streamed |= {number}

    def _split(self, opt: Opt, number: int) -> None:
        axis, n = self.axes[number], self._number(opt)
        check = self._check
        check(axis.blocks_of < 0, opt, "blocks are not split again")
        check(n >= 2, opt, "the number of elements is at least 2")
        lanes = self.unit_lanes(number)
        check(axis.step == lanes, opt, f"the axis is split already, by {axis.step}")
        if lanes > 1:
            check(opt.op is not OptOps.VEC or n % lanes == 0, opt, f"no multiple of {lanes} lanes")
            n = n if opt.op is OptOps.VEC else n * lanes
        most = axis.size
        if most is not None and opt.op is OptOps.VEC:  # the last vector may have idle lanes
            full = self.vector_lanes(number)
            most = max(most, -(-most // full) * full) if full < 1 << 20 else most
        check(most is None or n <= most, opt, f"more elements than the {axis.size} of the axis")
        check(axis.block % n == 0, opt, f"its blocks of {axis.block} are no multiple")
        if opt.op is OptOps.VEC:
            check(not (self.strict and axis.is_reduce), opt, "STRICT_REDUCE adds up in order")
            self._check_lanes(opt, number)
            split = replace(axis, lanes=n)
        else:
            check(opt.op is OptOps.UNROLL or not axis.is_reduce, opt, "a reduction is UNROLLed")
            split = replace(axis, tile=n // lanes)
        mine = copies_of(split, self.vector_lanes(number))
        for nest in self.nest_masks:
            if nest >> number & 1:
                copies = mine * math.prod(
                    copies_of(a, self.vector_lanes(k))
                    for k, a in enumerate(self.axes)
                    if nest >> k & 1 and a.blocks_of < 0
                )
                rule = f"{copies} copies of the body, {MAX_COPIES} are allowed"
                check(copies <= MAX_COPIES, opt, rule)
        self.axes[number] = split
        if lanes > 1 and self.unit is not None and self.unit.registers:
            sums = [self.axes[k].step // self.unit_lanes(k) for k in (self.unit.m, self.unit.n)]
            rule = f"more sums than the {self.unit.registers} registers of the unit hold"
            check(math.prod(sums) + 2 <= self.unit.registers, opt, rule)
        kept, most = self.kept_nbytes(), self.target.l2_bytes
        check(kept <= most, opt, f"{kept} bytes are kept, {most} are allowed")

    def kept_nbytes(self) -> int:
        """How much memory what the scheduler keeps takes, for all of a tile."""
        return sum(
            nbytes * math.prod([a.step for k, a in enumerate(self.axes) if mask >> k & 1])
            for nbytes, mask in self._rows_kept
        )

    def _check_lanes(self, opt: Opt, number: int) -> None:
        """No node may depend on two axes of lanes: no nest has two."""
        bit = 1 << number
        free = {number}  # what a unit holds in registers of its own are no lanes
        if self.unit is not None and self.unit.registers:
            free |= {self.unit.m, self.unit.n} if number in (self.unit.m, self.unit.n) else set()
        others = sum(1 << k for k, a in enumerate(self.axes) if a.lanes > 1 and k not in free)
        clash = any(nest & bit and nest & others for nest in self.nest_masks)
        self._check(not clash, opt, "a value would have lanes along two axes")

    def unit_lanes(self, number: int) -> int:
        """How many neighbours along an axis a unit takes at once."""
        if self.unit is None:
            return 1
        if number == self.unit.m and self.unit.registers:
            return self.unit.unit.m
        return self.unit.unit.n if number == self.unit.n else 1

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

    # ------------------------------------------------------------ how it looks

    def _parts(self) -> list[tuple[int | None, AxisType]]:
        """What the axes are split into: loops as they nest, tiles, then lanes."""
        loops: list[tuple[int | None, AxisType]] = []
        tiles: list[tuple[int | None, AxisType]] = []
        lanes: list[tuple[int | None, AxisType]] = []
        for k in self.nest_order:
            axis = self.axes[k]
            kind = AxisType.REDUCE if axis.is_reduce else AxisType.LOOP
            kind = AxisType.THREAD if axis.is_thread else kind
            if axis.inner_size is None:
                loops.append((None, kind))
            elif axis.has_loop:
                loops.append((-(-axis.inner_size // axis.step), kind))
            if axis.blocks_of >= 0:
                continue
            copies = copies_of(axis, self.vector_lanes(k))
            if copies > 1:
                tiles.append((copies, AxisType.UNROLL if axis.is_reduce else AxisType.UPCAST))
            if axis.step > copies:
                lanes.append((axis.step // copies, AxisType.VEC))
        return [*loops, *tiles, *lanes]

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

    # ------------------------------------------------------------ what it becomes

    @compiler_pass("tile", "kernel, Opts", "kernel over loops, tiles and lanes")
    def tiled(self) -> TiledKernel:
        """The kernel over loops, tiles and lanes. KernelOptError if what is staged is not legal."""
        if self._tiled is None:
            split = Split(
                tuple(self.axes), tuple(self.nest_order), tuple(self._vector_lanes), self.strict
            )
            staged = {self.loads[k]: axis for k, axis in self.staged.items()}
            kept = [self.loads[k] for k in self.kept]
            tiling = Tiling(
                self.ast,
                self.masks,
                split,
                staged,
                kept,
                self.prologues,
                self.is_in_place,
                self.target,
                self.unit,
                [self.ast.src[k].src[0] for k in sorted(self.streamed)],
            )
            self._tiled = self._with_streams(tiling.kernel())
            self.fills = tuple(tiling.fills)
        return self._tiled

    def _with_streams(self, tiled: TiledKernel) -> TiledKernel:
        """With the stores marked that go past the caches."""
        if not self.streamed:
            return tiled
        memory = {self.ast.src[k].src[0].src[0] for k in self.streamed}
        stores = tiled.sink.src
        marked = [s.replace(arg="nontemporal") if s.src[0].src[0] in memory else s for s in stores]
        return replace(tiled, sink=tiled.sink.replace(src=tuple(marked)))


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


def _told_apart(index: UOp) -> set[UOp]:
    """The ranges that an index tells apart: of any two values of one it names two places."""
    found: set[UOp] = set()
    for dim in index.src[1 : 1 + len(index.src[0].arg.shape)]:
        terms = linear_form(dim).terms
        if all(r.op is Ops.RANGE for r, _ in terms):
            reach = 0  # of all terms so far; the next one goes further with each step
            for r, factor in sorted(terms, key=lambda t: abs(t[1])):
                if abs(factor) <= reach:
                    break
                reach += abs(factor) * r.vmax
            else:
                found.update(r for r, _ in terms)
    return found


def _constant(size: UOp) -> int | None:
    """The value of a size that is known."""
    return size.arg if size.op is Ops.CONST else None
