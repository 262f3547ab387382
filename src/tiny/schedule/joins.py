"""Kernels that become one: values read where they were stored, operands read once, small kernels.

Three ways, in the order of the steps: a kernel that reads what another has just stored, at the
very index, goes on in its loops (the value stays in a register, and is not stored at all if
nobody else wants it); kernels over the same loops that read an operand in common share them; and
small elementwise kernels that do not depend on each other are loop nests of one kernel.

A group of kernels has a level, above those of all that it depends on. A step joins a group only
where everything else that it needs is on a lower level, so that no circle can arise; a group may
rise as long as it stays below what depends on it. Each edge is looked at a fixed number of times.

Within a body, everything of one element is read before it is written. So memory that a body
writes may be read in it at the index of the store only, and nowhere else in its kernel.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from tiny.schedule.bodies import (
    Body,
    Cuts,
    Form,
    Part,
    Piece,
    Terms,
    Where,
    align,
    build,
    leaves_of,
    terms_of,
)
from tiny.schedule.kernels import Memory
from tiny.schedule.order import Step, Steps
from tiny.schedule.rows import keep_rows
from tiny.uop.ops import Ops, UOp
from tiny.uop.passes import compiler_pass
from tiny.uop.target import Target

MOST_STORES = 64  # of a kernel
MOST_BATCHED = 64 << 10  # elements of small kernels together: above, a launch is nothing
FEWEST_ROWS = 4  # of reductions one after the other: fewer are better shared by all threads
MOST_TRIED = 4  # groups that a step is compared with, in each way

_Loop = TypeVar("_Loop")
_Group = Body | int  # a body, or the number of a step that is a copy between devices

CONTIGUOUS = "contiguous"  # why something is stored that stays a boundary, as the user asked


@compiler_pass("join kernels", "steps", "fewer steps, and which precede them")
def join_steps(
    steps: Steps, kept: Collection[int], targets: Mapping[str, Target]
) -> tuple[list[Step], list[list[int]], int]:
    """Steps with kernels joined, by step those that it comes after, and the edges looked at.

    `kept` are the cells that are wanted in memory in the end: what else is stored may stay in
    registers. The steps are in no particular order.
    """
    joiner = _Joiner(steps, kept, targets)
    return (*joiner.run(), joiner.visits)


class _Joiner:
    def __init__(self, steps: Steps, kept: Collection[int], targets: Mapping[str, Target]) -> None:
        self.steps, self.before, _ = steps
        self.kept, self.targets = kept, targets
        self.visits = 0
        self.bodies: list[Body] = []
        # of steps that stay alone, copies between devices and what goes in order: their level
        self.singles: dict[int, int] = {}
        self.body_of: dict[int, Body] = {}  # by number of the step
        self.maker: dict[Memory, Body] = {}
        self.readers: dict[Memory, dict[_Group, None]] = {}  # bodies, or numbers of copies
        # the latest body that reads some memory over so many elements
        self.reading: dict[tuple[Memory, int], Body] = {}

    def run(self) -> tuple[list[Step], list[list[int]]]:
        """Join in one pass over the steps, then put small kernels together."""
        for k, step in enumerate(self.steps):
            if step.by_hand or step.in_order or step.kernel.op is not Ops.SINK:
                self._place_alone(k, step)
            else:
                self._place(Part(k, step))
        return self._finish(self._batches())

    # ------------------------------------------------------------ one body

    def _levels_before(self, k: int) -> dict[_Group, int]:
        """The groups that a step depends on, with their levels."""
        self.visits += len(self.before[k])
        found: dict[_Group, int] = {}
        for b in self.before[k]:
            body = self.body_of.get(b)
            if body is None:
                found[b] = self.singles[b]
            else:
                found[body] = body.level
        return found

    def _place_alone(self, k: int, step: Step) -> None:
        before = self._levels_before(k)
        level = self.singles[k] = 1 + max(before.values(), default=-1)
        self._note_before(before, level, None)
        for memory in step.memory[step.outputs :]:
            self.readers.setdefault(memory, {})[k] = None

    @staticmethod
    def _note_before(before: dict[_Group, int], level: int, body: Body | None) -> None:
        for b in before:
            if isinstance(b, Body) and b is not body:
                b.least_after = min(b.least_after, level)

    def _place(self, part: Part) -> None:
        """Let a kernel join a body, or begin one."""
        before = self._levels_before(part.number)
        level = 1 + max(before.values(), default=-1)
        body = self._go_on(part, before) or self._go_along(part, level)
        if body is None:
            body = Body(part, level)
            self.bodies.append(body)
        self._note_before(before, body.level, body)
        self.body_of[part.number] = body
        self.maker[part.step.written] = body
        for r in part.reads:
            self.readers.setdefault(r.memory, {})[body] = None
            if not body.is_contraction and not body.has_stage:
                self.reading[r.memory, part.numel] = body

    def _most_buffers(self, device: str) -> int:
        return self.targets[device].max_buffers

    def _go_on(self, part: Part, before: dict[_Group, int]) -> Body | None:
        """The body that a kernel joined because it reads or overwrites what that has in hand."""
        if part.has_stage or part.target is None or not before or part.is_contraction:
            return None
        if part.has_reduce and part.numel < FEWEST_ROWS:
            return None
        top = max(before.values())
        at_top = sum(level == top for level in before.values())
        second = max((level for level in before.values() if level < top), default=-1)
        # those that it reads first; then those that it may overwrite what they read
        known: dict[Body, None] = {}
        for memory in [r.memory for r in part.reads]:
            maker = self.maker.get(memory)
            if maker is not None and maker in before:
                known[maker] = None
        known.update(dict.fromkeys(b for b in before if isinstance(b, Body)))
        for body in sorted(known, key=lambda b: -b.level)[:MOST_TRIED]:
            # all else that it needs is below: the body may have to rise
            others = second if body.level == top and at_top == 1 else top
            level = max(body.level, others + 1)
            if level > body.level and level >= body.least_after:
                continue
            if body.device != part.step.device:
                continue
            if not body.has_room(part, self._most_buffers(body.device)):
                continue
            if part.has_reduce and not self._reduces_the_same(body, part):
                continue
            written = part.step.written[0]
            if body.is_contraction and (written in body.reads or part.is_in_place):
                continue  # it is cut into blocks, and computed again at their edges
            cuts = Cuts()
            found = self._where_it_goes_on(body, part, cuts)
            if found is None:
                cuts.undo()
                continue
            where, memory, columns = found
            body.open_columns(columns)
            where.update(body.open_inner(part))
            body.joined.append((f"{part.step.reason}, in the same loops, has in hand", memory))
            body.level = level
            body.add(part, where)
            return body
        return None

    @staticmethod
    def _reduces_the_same(body: Body, part: Part) -> bool:
        """Whether the second reads what the first reduces over, which it then finds in the cache.

        A mean and a variance, or a maximum and a sum of exponentials; and what is made of a row.
        """
        if not body.has_reduce or body.has_stage or body.is_contraction:
            return False
        return any(s.is_nested for r in part.reads for _, _, s in body.reads.get(r.memory[0], ()))

    def _where_it_goes_on(
        self, body: Body, part: Part, cuts: Cuts
    ) -> tuple[Where, Memory, list[Piece]] | None:
        """Where the loops of a kernel are in a body, if all that they both use, one of them
        written, they use at the same place in each step; what told so; and loops that are new.

        New loops are those of columns: what is reduced in each row is used along the row.
        """
        target = part.target
        assert target is not None
        written = part.step.written
        anchor: tuple[Terms | None, Form | None, Memory] | None = None
        for r in part.reads:
            made = body.made.get(r.memory[0])
            if made is None:
                continue
            stays = made.part.step.reason == CONTIGUOUS
            # a reduction may use it in each of its steps
            if made.memory != r.memory or r.is_gated or stays:
                return None
            index = made.part.store.src[0]
            anchor = terms_of(made.part, made.where, index), part.form(r.load), r.memory
        for other, other_where, r in body.reads.get(written[0], ()):
            if not r.is_plain:
                return None
            anchor = anchor or (terms_of(other, other_where, r.load), target, r.memory)
        if anchor is None:
            return None
        ours, theirs, memory = anchor
        if ours is None or theirs is None or ours[0] != theirs[0]:
            return None
        where = align(list(ours[1].items()), list(theirs[1].items()), cuts)
        if where is None:
            return None
        order, nest, columns = leaves_of(body.row_major), leaves_of(body.loops), list[Piece]()
        rows = {leaf for r in theirs[1] for p, _ in where[r] for leaf in leaves_of([p])}
        left = [p for p in order if p not in rows]
        mine_left = [r for r in part.loops if r not in theirs[1]]
        if left or mine_left:
            if not self._are_rows(body, rows, order, nest):
                return None
            if not left:
                columns = [Piece(r.src[0], r.arg.kind) for r in mine_left]
                where.update({r: [(p, 1)] for r, p in zip(mine_left, columns, strict=True)})
                order, nest = [*order, *columns], [*nest, *columns]
            elif not mine_left:
                order, nest = order[: len(rows)], nest[: len(rows)]
            else:
                more = align(
                    _dense([(p, p.size) for p in left]),
                    _dense([(r, r.src[0]) for r in part.row_major() or () if r in mine_left]),
                    cuts,
                )
                if more is None:
                    return None
                where.update(more)
                order, nest = leaves_of(body.row_major), leaves_of(body.loops)
        if not self._agree(body, part, where):
            return None
        # not transposed: the memory of both is walked through in one order
        mine = terms_of(part, where, part.store.src[0])
        if mine is None:
            return None
        if sorted(mine[1], key=lambda p: -abs(mine[1][p])) != order:
            return None
        if part.has_reduce and _nest_of(part, where) != nest:
            return None
        return where, memory, columns

    @staticmethod
    def _are_rows(
        body: Body, rows: Collection[Piece], order: Sequence[Piece], nest: Sequence[Piece]
    ) -> bool:
        """Whether some loops are the outer ones of a body, that reduces in each of several."""
        if body.is_contraction or body.has_stage or not body.has_reduce:
            return False
        count = math.prod(int(p.size.vmax) for p in rows)
        first = len(rows)
        return count >= FEWEST_ROWS and set(order[:first]) == set(nest[:first]) == set(rows)

    @staticmethod
    def _agree(body: Body, part: Part, where: Where) -> bool:
        """Whether whatever one of them writes, the other uses at that very index."""
        for r in part.reads:
            made = body.made.get(r.memory[0])
            if made is not None:
                there = terms_of(made.part, made.where, made.part.store.src[0])
                if there is None or terms_of(part, where, r.load) != there:
                    return False
        cell = part.step.written[0]
        here = terms_of(part, where, part.store.src[0])
        made = body.made.get(cell)
        if made is not None and terms_of(made.part, made.where, made.part.store.src[0]) != here:
            return False
        return here is not None and all(
            terms_of(other, other_where, r.load) == here
            for other, other_where, r in body.reads.get(cell, ())
        )

    def _go_along(self, part: Part, level: int) -> Body | None:
        """The body that a kernel joined because it reads an operand in the same loops."""
        if part.has_stage or part.target is None:
            return None
        if part.is_contraction:
            return None
        tried: dict[Body, Memory] = {}
        for r in part.reads:
            body = self.reading.get((r.memory, part.numel))
            if body is not None and len(tried) < MOST_TRIED:
                tried.setdefault(body, r.memory)
        for body in tried:
            risen = max(level, body.level)
            if risen > body.level and risen >= body.least_after:
                continue
            if body.device != part.step.device:
                continue
            if body.is_contraction or body.has_stage:
                continue
            if not body.has_room(part, self._most_buffers(body.device)):
                continue
            if part.step.written[0] in body.cells or any(c in body.made for c in part.cells):
                continue
            cuts = Cuts()
            before = body.loops, len(body.inner)
            where = self._where_it_goes_along(body, part, cuts)
            memory = None if where is None else self._common(body, part, where)
            if where is None or memory is None:
                cuts.undo()
                body.loops = before[0]
                del body.inner[before[1] :]
                continue
            body.has_reduce = body.has_reduce or part.has_reduce
            body.joined.append((f"{part.step.reason}, over the same loops, reads", memory))
            body.level = risen
            body.add(part, where)
            return body
        return None

    @staticmethod
    def _where_it_goes_along(body: Body, part: Part, cuts: Cuts) -> Where | None:
        """Where the loops of a kernel over as many elements are in a body, by their order."""
        order = part.row_major()
        assert order is not None
        ours = _dense([(p, p.size) for p in leaves_of(body.row_major)])
        theirs = _dense([(r, r.src[0]) for r in order])
        where = align(ours, theirs, cuts)
        if where is None:
            return None
        if part.has_reduce:
            # what is computed once for some of the loops has those outermost, in both
            nest = _nest_of(part, where)
            if body.has_reduce and nest != leaves_of(body.loops):
                return None
            body.loops = nest
        if not part.inner:
            return where
        if not body.inner:
            return {**where, **body.open_inner(part)}
        sizes = [(r.src[0], r.arg.kind) for r in part.inner]
        for group in body.inner:
            if sizes == [(p.size, p.kind) for p in group]:
                shared = zip(part.inner, group, strict=True)
                return {**where, **{r: [(p, 1)] for r, p in shared}}
        return None

    @staticmethod
    def _common(body: Body, part: Part, where: Where) -> Memory | None:
        """An operand that both read at the same index, a scalar apart; in reductions, if both."""
        both = part.has_reduce and body.has_reduce
        inner = {piece for r in part.inner for piece, _ in where[r]} if both else set()
        for r in part.reads:
            mine = terms_of(part, where, r.load)
            if not mine or not mine[1] or (inner and not inner & mine[1].keys()):
                continue
            for other, other_where, s in body.reads.get(r.memory[0], ())[:MOST_TRIED]:
                if s.memory == r.memory and terms_of(other, other_where, s.load) == mine:
                    return r.memory
        return None

    # ------------------------------------------------------------ several bodies

    def _edges(self) -> dict[_Group, dict[_Group, None]]:
        """By group, the groups that come before it."""
        before: dict[_Group, dict[_Group, None]] = {}
        for k, numbers in enumerate(self.before):
            group = self.body_of.get(k, k)
            mine = before.setdefault(group, {})
            for b in numbers:
                other = self.body_of.get(b, b)
                if other is not group:
                    mine[other] = None
        return before

    def _is_small(self, group: _Group) -> bool:
        return (
            isinstance(group, Body)
            and not group.has_reduce
            and not group.has_stage
            and group.first.numel <= MOST_BATCHED
        )

    def _batches(self) -> list[list[Body]]:
        """Bodies by kernel: small ones that are on one level together.

        Those that only small ones wait for, such as the updates of an optimiser, are put off as
        long as may be, so that they meet; the others go as early as can be.
        """
        before = self._edges()
        level_of = {g: self.singles[g] if isinstance(g, int) else g.level for g in before}
        order = sorted(before, key=level_of.__getitem__)
        early: dict[_Group, int] = {}
        for g in order:
            early[g] = 1 + max([early[b] for b in before[g]], default=-1)
        end = max(early.values(), default=0)
        late = dict.fromkeys(order, end)
        may_wait = {g: self._is_small(g) for g in order}
        for g in reversed(order):
            for b in before[g]:
                self.visits += 1
                late[b] = min(late[b], late[g] - 1)
                may_wait[b] = may_wait[b] and may_wait[g]
        kernels: list[list[Body]] = []
        open_batches: dict[tuple[str, int], _Batch] = {}
        for body in self.bodies:
            if not self._is_small(body):
                kernels.append([body])
                continue
            key = body.device, late[body] if may_wait[body] else early[body]
            batch = open_batches.get(key)
            if batch is None or not batch.has_room(body, self._most_buffers(body.device)):
                batch = open_batches[key] = _Batch()
                kernels.append(batch.bodies)
            batch.add(body)
        return kernels

    # ------------------------------------------------------------ what came of it

    def _finish(self, kernels: list[list[Body]]) -> tuple[list[Step], list[list[int]]]:
        # by the last step of each, as the program goes
        found = [(max(p.number for b in bodies for p, _ in b.parts), bodies) for bodies in kernels]
        found += [(k, []) for k in self.singles]
        found.sort(key=lambda t: t[0])
        number: dict[_Group, int] = {}
        steps: list[Step] = []
        for k, bodies in found:
            members: list[_Group] = [*bodies] if bodies else [k]
            number.update(dict.fromkeys(members, len(steps)))
            steps.append(self._built(bodies) if bodies else self.steps[k])
        before: list[dict[int, None]] = [{} for _ in steps]
        for group, others in self._edges().items():
            for b in others:
                self.visits += 1
                if number[b] != number[group]:
                    before[number[group]][number[b]] = None
        return steps, [list(b) for b in before]

    def _built(self, bodies: list[Body]) -> Step:
        if len(bodies) == 1 and len(bodies[0].parts) == 1:
            return bodies[0].first.step
        stored = {
            made.memory
            for body in bodies
            for made in body.made.values()
            if made.memory[0] in self.kept or self.readers.get(made.memory, {}).keys() != {body}
        }
        step = build(bodies, stored)
        body = bodies[0]
        if len(bodies) == 1 and body.has_reduce and not (body.is_contraction or body.has_stage):
            most = self.targets[body.device].l2_bytes // 2
            step.kernel, reason = keep_rows(step.kernel, most)
            if reason:
                step.joined.append((reason, None))
        return step


class _Batch:
    """Bodies that become loop nests of one kernel: none uses what another writes."""

    def __init__(self) -> None:
        self.bodies: list[Body] = []
        self.cells: dict[int, None] = {}
        self.made: set[int] = set()
        self.numel = self.stores = 0

    def has_room(self, body: Body, most_buffers: int) -> bool:
        """Whether a body fits in, and uses nothing that the others write, nor they its."""
        return (
            self.numel + body.first.numel <= MOST_BATCHED
            and self.stores + len(body.made) <= MOST_STORES
            and len(self.cells) + sum(c not in self.cells for c in body.cells) <= most_buffers
            and not any(c in self.made for c in body.cells)
            and not any(c in self.cells for c in body.made)
        )

    def add(self, body: Body) -> None:
        """Take a body in."""
        self.bodies.append(body)
        self.cells.update(body.cells)
        self.made.update(body.made)
        self.numel += body.first.numel
        self.stores += len(body.made)


def _nest_of(part: Part, where: Where) -> list[Piece]:
    """The pieces of a kernel's output loops, outermost first."""
    return [
        leaf
        for r in part.loops
        for piece, _ in sorted(where[r], key=lambda t: -t[1])
        for leaf in leaves_of([piece])
    ]


def _dense(loops: Sequence[tuple[_Loop, UOp]]) -> list[tuple[_Loop, int]]:
    """Loops with the factors of their steps in a row, the last one fastest."""
    found: list[tuple[_Loop, int]] = []
    factor = 1
    for loop, size in reversed(loops):
        found.append((loop, factor))
        factor *= int(size.vmax)
    return found[::-1]
