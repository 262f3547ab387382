"""Kernels that share a loop body: what they read and write there, and the kernel they make.

The loops of a body are pieces. A kernel that joins has its ranges as sums of pieces, and a piece
is cut in two where a range is shorter, so that loops meet that were merged in one kernel and not
in another. Indices are compared as numbers of elements, linear in pieces.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from tiny._core.symbolic import simplify
from tiny.dtype import dtypes
from tiny.schedule.bounds import sum_of_loops
from tiny.schedule.kernels import Memory
from tiny.schedule.order import Step
from tiny.uop.ops import AxisType, KernelInfo, Ops, ParamArg, RangeArg, UOp

MOST_IN_BODY = 16  # stores in one loop body: all their values may be alive at once
MOST_NODES = 1000  # of the kernels of one body, together
LEAST_CUT = 16  # steps of an inner loop that another may be cut to: a vector needs as many

# An index as a constant and a factor for each loop; of a kernel's ranges, or of a body's pieces.
Form = tuple[int, dict[UOp, int]]
Terms = tuple[int, dict["Piece", int]]


class Piece:
    """A loop of a body. Once it is cut in two, `parts` are the outer and the inner one."""

    __slots__ = ("kind", "parts", "size")

    def __init__(self, size: UOp, kind: AxisType) -> None:
        self.size = size
        self.kind = kind
        self.parts: tuple[Piece, Piece] | None = None

    def leaves(self) -> list[tuple[Piece, int]]:
        """What it is made of, outermost first, each with its factor."""
        if self.parts is None:
            return [(self, 1)]
        outer, inner = self.parts
        steps = inner.size.arg
        return [*[(p, f * steps) for p, f in outer.leaves()], *inner.leaves()]


# Each range of a kernel as a sum of pieces.
Where = dict[UOp, list[tuple[Piece, int]]]


class Read(NamedTuple):
    """A load of a kernel: whether it has a gate, and whether it is part of a reduction."""

    memory: Memory
    load: UOp
    is_gated: bool
    is_nested: bool

    @property
    def is_plain(self) -> bool:
        """Whether it is done once for an element of the output, whatever that is."""
        return not self.is_gated and not self.is_nested


class Part:
    """A step as joining sees it."""

    def __init__(self, number: int, step: Step) -> None:
        self.number, self.step = number, step
        self.nodes = step.kernel.postorder()
        (self.store,) = step.kernel.src
        address = self.store.src[0]
        nested: set[UOp] = set()
        loads: dict[UOp, None] = {}
        for n in reversed(self.nodes):
            if n.op in (Ops.REDUCE, Ops.STAGE) or n in nested:
                nested.update(n.src)
            for k, s in enumerate(n.src):
                if s.op is Ops.INDEX and (n is not self.store or k):
                    loads[s] = None
        self.has_stage = any(n.op is Ops.STAGE for n in self.nodes)
        self.has_reduce = any(n.op is Ops.REDUCE for n in self.nodes)
        buffer, version = step.written
        self.reads: list[Read] = []
        for n in reversed(loads):
            if n.src[0].op is Ops.PARAM:
                slot, rank = n.src[0].arg.slot, len(n.src[0].arg.shape)
                memory = step.memory[slot] if slot else (buffer, version - 1)
                self.reads.append(Read(memory, n, len(n.src) > 1 + rank, n in nested))
        ranges = sorted((n for n in self.nodes if n.op is Ops.RANGE), key=lambda n: n.arg.axis)
        outer = {n for n in address.postorder() if n.op is Ops.RANGE}
        self.loops = [r for r in ranges if r in outer]
        self.inner = [r for r in ranges if r not in outer]
        self.numel = math.prod(r.src[0].vmax for r in self.loops)
        self.cells = dict.fromkeys([step.written[0], *[r.memory[0] for r in self.reads]])
        self.is_in_place = any(r.memory[0] == buffer for r in self.reads)
        self._forms: dict[UOp, Form | None] = {}

    def form(self, index: UOp) -> Form | None:
        """The element that an INDEX names; None if it is not linear in the ranges."""
        if index not in self._forms:
            found = sum_of_loops(flat_index(index))
            self._forms[index] = None if found is None else (found[1], found[0])
        return self._forms[index]

    @property
    def target(self) -> Form | None:
        """Where it stores."""
        return self.form(self.store.src[0])

    def row_major(self) -> list[UOp] | None:
        """The loops in the order of what is stored, None if it is not linear in them."""
        target = self.target
        return None if target is None else sorted(self.loops, key=lambda r: -abs(target[1][r]))

    @cached_property
    def is_contraction(self) -> bool:
        """Whether a reduction has no operand with an element for each of its steps.

        Then its operands are used again and again, and how it is tiled is what counts.
        """
        if not self.has_reduce:
            return False
        ranges: dict[UOp, frozenset[UOp]] = {}
        widest: dict[UOp, int] = {}  # the most ranges that one load below a node depends on
        for n in self.nodes:
            used = frozenset((n,)) if n.op is Ops.RANGE else frozenset()
            ranges[n] = used.union(*[ranges[s] for s in n.src])
            widest[n] = max([widest[s] for s in n.src], default=0)
            if n.op is Ops.INDEX:
                widest[n] = len(ranges[n])
            elif n.op is Ops.REDUCE:
                if widest[n] < len(ranges[n]):
                    return True
                # what it gives has fewer loops than what it loads
                ranges[n] -= set(n.src[1:])
                widest[n] = 0
        return False


def flat_index(index: UOp) -> UOp:
    """The number of the element that an INDEX names."""
    memory = index.src[0]
    flat: UOp = UOp.const(0, dtypes.index)
    for i, size in zip(index.src[1:], memory.arg.shape, strict=False):
        flat = flat * size + i
    return simplify(flat)


class Made(NamedTuple):
    """What a body stores: a version of a buffer, by which of its parts."""

    memory: Memory
    part: Part
    where: Where


class Body:
    """Kernels that share their output loops: one loop body with several stores."""

    def __init__(self, part: Part, level: int) -> None:
        self.level = level
        self.least_after: float = math.inf  # the lowest level of what depends on it
        self.device = part.step.device
        self.parts: list[tuple[Part, Where]] = []
        self.loops = [Piece(r.src[0], r.arg.kind) for r in part.loops]
        self.inner: list[list[Piece]] = []  # by kernels that share them
        self.made: dict[int, Made] = {}  # by cell
        self.reads: dict[int, list[tuple[Part, Where, Read]]] = {}  # by cell
        self.cells: dict[int, None] = {}
        self.nodes = 0
        self.joined: list[tuple[str, Memory | None]] = []
        where = {r: [(p, 1)] for r, p in zip(part.loops, self.loops, strict=True)}
        where.update(self.open_inner(part))
        order = part.row_major() or part.loops
        self.row_major = [where[r][0][0] for r in order]
        self.has_reduce, self.has_stage = part.has_reduce, part.has_stage
        self.is_contraction = part.is_contraction
        self.add(part, where)

    def open_inner(self, part: Part) -> Where:
        """New pieces for the loops of a kernel's reductions and stages, if it has any."""
        if not part.inner:
            return {}
        self.inner.append([Piece(r.src[0], r.arg.kind) for r in part.inner])
        return {r: [(p, 1)] for r, p in zip(part.inner, self.inner[-1], strict=True)}

    def open_columns(self, pieces: Sequence[Piece]) -> None:
        """Loops inside of those that it has, for what is stored along each row."""
        self.loops += pieces
        self.row_major += pieces

    def add(self, part: Part, where: Where) -> None:
        """Make a kernel part of it; its ranges are these pieces."""
        self.parts.append((part, where))
        self.nodes += len(part.nodes)
        self.cells.update(part.cells)
        for r in part.reads:
            self.reads.setdefault(r.memory[0], []).append((part, where, r))
        memory = part.step.written
        self.made[memory[0]] = Made(memory, part, where)

    @property
    def first(self) -> Part:
        """The kernel that it began with."""
        return self.parts[0][0]

    def has_room(self, part: Part, most_buffers: int) -> bool:
        """Whether another kernel stays within the limits of one."""
        new = sum(c not in self.cells for c in part.cells)
        return (
            len(self.made) < MOST_IN_BODY
            and self.nodes + len(part.nodes) <= MOST_NODES
            and len(self.cells) + new <= most_buffers
        )


def terms_of(part: Part, where: Where, index: UOp) -> Terms | None:
    """An index over the pieces that are loops now; None if it is not linear in them."""
    form = part.form(index)
    if form is None:
        return None
    constant, factors = form
    terms: dict[Piece, int] = {}
    for r, factor in factors.items():
        if r not in where:
            return None
        for piece, scale in where[r]:
            for leaf, f in piece.leaves():
                terms[leaf] = terms.get(leaf, 0) + factor * scale * f
    return constant, terms


class Cuts:
    """Pieces that were cut on trial."""

    def __init__(self) -> None:
        self._cut: list[Piece] = []

    def cut(self, piece: Piece, steps: int) -> tuple[Piece, Piece]:
        """The outer and inner part of a piece, the inner one of so many steps."""
        outer = Piece(UOp.const(piece.size.arg // steps, dtypes.index), piece.kind)
        piece.parts = outer, Piece(UOp.const(steps, dtypes.index), piece.kind)
        self._cut.append(piece)
        return piece.parts

    def undo(self) -> None:
        """Put them together again."""
        for piece in self._cut:
            piece.parts = None


def align(
    ours: Sequence[tuple[Piece, int]], theirs: Sequence[tuple[UOp, int]], cuts: Cuts
) -> Where | None:
    """Each range as a sum of pieces, such that both walk through the same numbers; None if none.

    Both are given with the factors of one linear form. Pieces are cut where ranges are shorter.
    """
    left = sorted(ours, key=lambda t: -abs(t[1]))  # the innermost last
    right = [(r, f, r.src[0], 1) for r, f in sorted(theirs, key=lambda t: -abs(t[1]))]
    where: Where = {r: [] for r, _ in theirs}
    while left and right:
        piece, factor = left.pop()
        r, other, size, scale = right.pop()
        if factor != other:
            return None
        if piece.size is size:
            where[r].append((piece, scale))
            continue
        if piece.size.op is not Ops.CONST or size.op is not Ops.CONST:
            return None
        a, b = piece.size.arg, size.arg
        if b % a == 0:
            where[r].append((piece, scale))
            right.append((r, factor * a, UOp.const(b // a, dtypes.index), scale * a))
        elif a % b == 0 and b >= LEAST_CUT:
            outer, inner = cuts.cut(piece, b)
            where[r].append((inner, scale))
            left.append((outer, factor * b))
        else:
            return None
    return None if left or right else where


def leaves_of(pieces: Sequence[Piece]) -> list[Piece]:
    return [leaf for p in pieces for leaf, _ in p.leaves()]


# ---------------------------------------------------------------- building


def build(bodies: Sequence[Body], stored: Collection[Memory]) -> Step:
    """The kernel of some bodies, each a loop nest of its own, that stores these versions."""
    return _Builder(bodies, stored).run()


class _Builder:
    def __init__(self, bodies: Sequence[Body], stored: Collection[Memory]) -> None:
        self.bodies = bodies
        self.stored = stored
        self.slots: dict[int, int] = {}  # by cell
        self.memory: list[Memory] = []
        self.shapes: dict[int, tuple[int, ...]] = {}  # by cell: one for all that access it
        self.ranges: dict[Piece, UOp] = {}

    def run(self) -> Step:
        """Stores in the order of the steps, over axes numbered from 0, output loops first."""
        parts = [p for body in self.bodies for p, _ in body.parts]
        for part in parts:
            if part.step.written in self.stored:
                self._give_slot(part.step.written)
        outputs = len(self.memory)
        for body in self.bodies:
            for part, _ in body.parts:
                for r in part.reads:
                    if not self._in_hand(body, part, r):
                        self._give_slot(r.memory)
                for n in part.nodes:
                    if n.op is Ops.PARAM:
                        cell, shape = part.step.memory[n.arg.slot][0], n.arg.shape
                        if self.shapes.setdefault(cell, shape) != shape:
                            self.shapes[cell] = (math.prod(shape),)
        for piece in leaves_of([p for body in self.bodies for p in body.loops]):
            self._give_axis(piece)
        inner = [p for body in self.bodies for group in body.inner for p in group]
        for piece in sorted(inner, key=lambda p: p.kind):
            self._give_axis(piece)
        stores: list[UOp] = []
        for body in self.bodies:
            stores += self._stores(body)
        sink = UOp(Ops.SINK, dtypes.void, tuple(stores), KernelInfo(self._name()))
        first = parts[0].step
        joined = [j for body in self.bodies for j in body.joined]
        if len(self.bodies) > 1:
            joined.append((f"{len(self.bodies)} small kernels", None))
        return Step(sink, self.memory, first.device, first.reason, (), [], outputs, joined)

    def _give_slot(self, memory: Memory) -> None:
        if memory[0] not in self.slots:
            self.slots[memory[0]] = len(self.memory)
            self.memory.append(memory)

    def _give_axis(self, piece: Piece) -> None:
        arg = RangeArg(len(self.ranges), piece.kind)
        self.ranges[piece] = UOp(Ops.RANGE, dtypes.index, (piece.size,), arg)

    @staticmethod
    def _in_hand(body: Body, part: Part, read: Read) -> bool:
        """Whether a value that is read was computed in the same body before."""
        return any(p.step.written == read.memory and p.number < part.number for p, _ in body.parts)

    def _name(self) -> str:
        kind = "r" if any(body.has_reduce for body in self.bodies) else "E"
        if len(self.bodies) > 1:
            return f"{kind}_batch_{len(self.bodies)}"
        return "_".join([kind, *[str(r.src[0].vmax) for r in self.ranges.values()]])

    def _stores(self, body: Body) -> list[UOp]:
        values: dict[Memory, UOp] = {}
        stores: list[UOp] = []
        for part, where in body.parts:
            new: dict[UOp, UOp] = {}
            reads = {r.load: r.memory for r in part.reads}
            for n in part.nodes:
                new[n] = self._rebuilt(n, part, where, new, values, reads)
            store = new[part.store]
            values[part.step.written] = store.src[1]
            if part.step.written in self.stored:
                stores.append(store)
        return stores

    def _rebuilt(
        self,
        n: UOp,
        part: Part,
        where: Where,
        new: Mapping[UOp, UOp],
        values: Mapping[Memory, UOp],
        reads: Mapping[UOp, Memory],
    ) -> UOp:
        """A node of a part as it is in the joined kernel."""
        if n.op is Ops.RANGE:
            total: UOp = UOp.const(0, dtypes.index)
            for piece, scale in where[n]:
                for leaf, factor in piece.leaves():
                    total = total + self.ranges[leaf] * (scale * factor)
            return simplify(total)
        if n.op is Ops.PARAM:
            cell = part.step.memory[n.arg.slot][0]
            # what stays in registers needs no number; nothing refers to it in the end
            arg = ParamArg(self.slots.get(cell, -1), self.shapes[cell])
            return UOp(Ops.PARAM, n.dtype, (), arg)
        if n.op is Ops.INDEX and n.src[0].op is Ops.PARAM:
            memory = reads.get(n)
            value = None if memory is None else values.get(memory)
            return self._access(n, new) if value is None else value
        if n.op is Ops.STORE:
            return UOp(n.op, n.dtype, (self._access(n.src[0], new), new[n.src[1]]))
        src = tuple([self._source(n, s, new[s]) for s in n.src])
        same = all(a is b for a, b in zip(src, n.src, strict=True))
        return n if same else UOp(n.op, n.dtype, src, n.arg)

    @staticmethod
    def _source(n: UOp, old: UOp, s: UOp) -> UOp:
        """A source; index arithmetic is settled where something else uses it."""
        is_index = s.dtype in (dtypes.index, dtypes.bool)
        if s is not old and is_index and n.dtype not in (dtypes.index, dtypes.bool):
            return s if n.op is Ops.REDUCE else _settled(s)
        return s

    def _access(self, n: UOp, new: Mapping[UOp, UOp]) -> UOp:
        param, rank = new[n.src[0]], len(n.src[0].arg.shape)
        at = [new[s] for s in n.src[1 : 1 + rank]]
        if param.arg.shape != n.src[0].arg.shape:
            flat: UOp = UOp.const(0, dtypes.index)
            for i, size in zip(at, n.src[0].arg.shape, strict=True):
                flat = flat * size + i
            at = [flat]
        gate = [new[s] for s in n.src[1 + rank :]]
        return UOp(Ops.INDEX, n.dtype, (param, *[_settled(e) for e in (*at, *gate)]))


def _settled(expr: UOp) -> UOp:
    """An index or a condition, simplified; as it is if it needs what is computed ahead.

    That has to stay the one node that all its users share, also those that are not simplified.
    """
    if any(n.op in (Ops.STAGE, Ops.REDUCE) for n in expr.postorder()):
        return expr
    return simplify(expr)
