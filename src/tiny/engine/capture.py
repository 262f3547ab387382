"""Recording what a step of a program runs, and running that again as one list.

While a Recording is the recorder of a thread, schedules run as ever and are noted. From them
follows a Capture: all their kernels in one StepList, over cells of memory that are

- parameters: the memory of the tensors that the step is called with,
- bound: memory of tensors from outside, read and perhaps written, the same in each replay,
- fresh: what is returned, new in each replay,
- temporary: born and dead in a replay, in arenas that a run borrows.

Kernels that only compute what nobody can read afterwards are left out.
"""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tiny import random
from tiny._core.memory import HostMemory
from tiny._core.replay import QuickStep
from tiny.device import Buffer, Device
from tiny.engine.donation import reuse_memory
from tiny.engine.memory import buffer_node, buffer_of
from tiny.engine.packed import PackedSteps
from tiny.engine.realize import CompiledSchedule, Part, Step, StepList, copy_program
from tiny.helpers import JIT, NO_MEMORY_PLANNER
from tiny.schedule import Slot
from tiny.schedule.memory import Lifetime, plan_memory
from tiny.shared import make_lock
from tiny.uop.ops import Ops, UOp, sym_infer
from tiny.uop.runtime import JitError, recorders

__all__ = ["Capture", "Plan", "Recording", "Replay"]


class _Run(NamedTuple):
    """A schedule that ran: the uid of the BUFFER of each slot that has one, and its values."""

    compiled: CompiledSchedule
    uids: dict[int, int]
    values: tuple[tuple[str, float], ...]  # ("number" | "draw" | "constant", which or what)


class Recording:
    """The recorder of a step: `with` it, all that the thread runs is noted.

    `params` are the BUFFERs that stand for the tensors given to the step, `numbers` the values of
    its Variables by name.
    """

    def __init__(self, params: Sequence[UOp], numbers: dict[str, float]) -> None:
        self.token = object()
        self.params = {node.arg.uid: k for k, node in enumerate(params)}
        self.numbers = {name: (k, value) for k, (name, value) in enumerate(numbers.items())}
        self.draws: list[tuple[str, int | UOp]] = []
        self.runs: list[_Run] = []
        self.constants: set[UOp] = set()
        self._written: list[weakref.ref[Any]] = []
        self.slots: dict[int, Slot] = {}  # of every BUFFER that was seen, by uid
        for node in params:
            self._see(node)
        self.born: set[int] = set()  # made by the step
        self.contents: dict[int, UOp] = {}  # of those filled from the host: a BUFFER with the same
        self.bound: dict[int, UOp] = {}
        self._keys: dict[str, tuple[int, int]] = {}
        self._is_paused = False

    def __enter__(self) -> Recording:
        recorders[threading.get_ident()] = self
        return self

    def __exit__(self, *exc: object) -> None:
        del recorders[threading.get_ident()]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What runs in its body is done once, and is no part of the step."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def refuse(self, what: str) -> None:
        """JitError."""
        raise JitError(what)

    def wrote(self, storage: Any) -> None:
        """Note a storage that the step writes to: this must be done when it ends."""
        self._written.append(weakref.ref(storage))

    @property
    def written(self) -> list[Any]:
        """The storages written to that are still there."""
        return [s for s in (found() for found in self._written) if s is not None]

    def drew(self, device: str, words: int | UOp, name: str, key: int) -> None:
        """Note a draw of random numbers, which each replay makes anew."""
        self._keys[name] = len(self.draws), key
        self.draws.append((device, words))

    def made(self, node: UOp) -> None:
        """Note a BUFFER that the step makes for itself."""
        if not self._is_paused:
            self._see(node)
            self.born.add(node.arg.uid)

    def loaded(self, node: UOp) -> None:
        """Keep what a BUFFER was filled with: the step may write to it."""
        if self._is_paused:
            return
        original = buffer_of(node)
        copy = Buffer(original.device, original.size, original.dtype)
        device = Device[original.device]
        copy_program(device, device, original.nbytes)((copy.memory, original.memory))
        self.contents[node.arg.uid] = buffer_node(copy, node.arg.shape)

    def ran(
        self, compiled: CompiledSchedule, made: dict[int, UOp], values: Mapping[str, float]
    ) -> None:
        """Note a schedule that has run."""
        if self._is_paused:
            return
        slots = compiled.schedule.slots
        for k, node in made.items():
            if node.arg.uid not in self.slots:
                self._see(node)
            if slots[k].role == "output":
                self.born.add(node.arg.uid)
            elif node.arg.uid not in self.born and node.arg.uid not in self.params:
                self.bound[node.arg.uid] = node
        sources = tuple([self._source(name, values[name]) for name in compiled.schedule.variables])
        self.runs.append(_Run(compiled, {k: n.arg.uid for k, n in made.items()}, sources))

    def computed(self, graph: UOp) -> None:
        """Note which constants are in it, each by its mark."""
        if not self._is_paused:
            self.constants |= {
                node.src[0] for node in graph.postorder() if node.op is Ops.CONST and node.src
            }

    def _see(self, node: UOp) -> None:
        self.slots[node.arg.uid] = Slot(node.dtype, node.arg.shape, node.arg.device, "")

    def _source(self, name: str, value: float) -> tuple[str, float]:
        for kind, known in (("number", self.numbers), ("draw", self._keys)):
            if name in known and (known[name][1] == value or value != value):  # NaN is not equal
                return kind, known[name][0]
        return "constant", value


# ---------------------------------------------------------------- from schedules to one list


class _Cells:
    """The pieces of memory of a recording, numbered, and its steps over them."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.slots: list[Slot] = []
        self.of_uid: dict[int, int] = {}
        for uid in recording.params:
            self.of(uid)

    def of(self, uid: int) -> int:
        """The cell of a BUFFER."""
        if uid not in self.of_uid:
            self.of_uid[uid] = self.add(self.recording.slots[uid])
        return self.of_uid[uid]

    def add(self, slot: Slot) -> int:
        """A new cell."""
        self.slots.append(slot)
        return len(self.slots) - 1

    def steps(self) -> list[Step]:
        """All steps of all schedules. Their variables are numbers, then draws, then constants."""
        recording = self.recording
        self.constants: list[float] = []
        first = {"number": 0, "draw": len(recording.numbers)}
        before_constants = len(recording.numbers) + len(recording.draws)

        def number(kind: str, which: float) -> int:
            if kind != "constant":
                return first[kind] + int(which)
            # one for each use: two of equal values may be of different dtypes
            self.constants.append(which)
            return before_constants + len(self.constants) - 1

        steps = []
        for run in recording.runs:
            cells = [
                self.of(run.uids[k]) if k in run.uids else self.add(slot)
                for k, slot in enumerate(run.compiled.schedule.slots)
            ]
            values = [number(kind, which) for kind, which in run.values]
            steps += [
                step.over(cells, values)  # of this schedule's numbers
                for step in run.compiled.steps.steps
            ]
        return steps


def _needed(steps: Sequence[Step], wanted: set[int]) -> list[Step]:
    """The steps without those whose results nobody reads; `wanted` are the cells read at the end.

    A cell may be written in parts, so its first write matters as much as its last.
    """
    read = set(wanted)
    kept = []
    for step in reversed(steps):
        if not read.isdisjoint(step.written):
            read.update(step.slots)
            kept.append(step)
    return kept[::-1]


class Plan(NamedTuple):
    """What a run does: steps over numbered cells of memory and numbered values.

    The roles of the cells are, in this order: 'param', 'fresh', 'bound' and 'temp'. The values are
    those of the Variables called `numbers`, a key for each of the `draws` (device and words, which
    may be an expression of those Variables), and
    the `constants`.
    """

    cells: tuple[Slot, ...]
    steps: tuple[Step, ...]
    numbers: tuple[str, ...]
    draws: tuple[tuple[str, int | UOp], ...]
    constants: tuple[float, ...]

    def of_role(self, role: str) -> list[int]:
        """The numbers of the cells that have a role."""
        return [k for k, cell in enumerate(self.cells) if cell.role == role]


class Replay:
    """A plan and the BUFFERs that its bound cells are, to be run again and again.

    `outputs` are what is returned, by default the fresh cells; `placed` says which of them has the
    memory of which parameter, and `spent` which parameters are used up. `written` and `read` are
    the BUFFERs that a run writes, and those that it only reads; `written_params` the numbers of the
    parameters that it writes, and does not use up.
    """

    def __init__(
        self,
        plan: Plan,
        bound: Sequence[UOp],
        outputs: Sequence[Slot] | None = None,
        placed: Mapping[int, int] | None = None,
        donated: Collection[int] = (),
    ) -> None:
        self.plan = plan
        self.bound = tuple(bound)  # they live as long as this does
        self.fresh = [plan.cells[k] for k in plan.of_role("fresh")]
        self.outputs = list(self.fresh if outputs is None else outputs)
        self.placed = dict(placed or {})
        written = {k for step in plan.steps for k in step.written}
        self.spent = [k for k in donated if k in self.placed.values()]
        self.returned: list[int] = []  # of the spent ones, those that are results as they are
        params = plan.of_role("param")
        self.written_params = [k for k in params if k in written and k not in self.spent]
        cells = list(zip(plan.of_role("bound"), self.bound, strict=True))
        self.written = [node for k, node in cells if k in written]
        self.read = [node for k, node in cells if k not in written]
        self.written_buffers = {id(buffer_of(node)) for node in self.written}
        self.read_buffers = {id(buffer_of(node)) for node in self.bound}
        parts = _place(plan.of_role("temp"), plan.cells, plan.steps)
        values = len(plan.numbers) + len(plan.draws) + len(plan.constants)
        slots = [
            parts.get(k) or (cell if cell.role in ("param", "bound") else None)
            for k, cell in enumerate(plan.cells)
        ]
        self._steps = StepList(plan.steps, slots, values)
        self._memory = tuple([buffer_of(node).memory for node in self.bound])
        read_only = {k: buffer_of(node) for k, node in cells if k not in written}
        sources = {
            k: b.memory
            for k, b in read_only.items()
            if b.is_own() and isinstance(b.memory, HostMemory)
        }
        packed = PackedSteps(plan.steps, sources, len(slots))
        self._packed: tuple[PackedSteps, StepList, tuple[Any, ...]] | None = None
        if packed:
            more = [Slot(b.dtype, (b.size,), b.device, "bound") for b in packed.buffers]
            steps = StepList(packed.steps, [*slots, *more], values)
            self._packed = packed, steps, tuple([b.memory for b in packed.buffers])
        self._lock = make_lock(1)  # what it writes is one run's at a time

    def __len__(self) -> int:
        """How many kernels and copies a run is."""
        return len(self.plan.steps)

    def run(self, params: Sequence[Any], numbers: Sequence[float]) -> list[Buffer]:
        """Run the steps on the memory of the parameters; the buffers of what is returned."""
        made = [Buffer(s.device, math.prod(s.shape), s.dtype) for s in self.fresh]
        memory = (*params, *[b.memory for b in made], *self._memory)  # or nothing is drawn
        keys = self._draw(numbers)
        with self._lock:
            steps = self._steps
            # JIT=3 compares bits, and other kernels may add up in another order
            if self._packed is not None and JIT.value != 3 and self._packed[0].is_current():
                _, steps, packed = self._packed
                memory = *memory, *packed
            steps(memory, (*numbers, *keys, *self.plan.constants))
        return made

    def _draw(self, numbers: Sequence[float]) -> list[int]:
        """The keys of the random numbers of a run."""
        named = dict(zip(self.plan.numbers, numbers, strict=True))
        return [
            random.generator(device).draw(sym_infer(words, named))
            for device, words in self.plan.draws
        ]

    def quick(self, step: Any, storages: Any, tensors: Any) -> QuickStep | None:
        """What does the same as `run` for a captured step, in native code; None if it can not."""
        kernels = self._steps.native
        if kernels is None:
            return None
        fresh = [
            (Device[s.device].allocator, math.prod(s.shape), s.dtype, s.device, s.shape)
            for s in self.fresh
        ]
        more: tuple[Any, ...] = ()
        if self._packed is not None:
            packed, steps, memory = self._packed
            more = packed, steps.native, memory
        is_shared = self._packed is not None or self.written
        return QuickStep(
            step,
            kernels,
            (len(self.plan.steps), self._steps.flops, self._steps.nbytes),
            fresh,
            self._memory,
            self._steps.arenas,
            self.plan.constants,
            storages,
            tensors,
            self.written_buffers,
            self._lock if is_shared else None,
            self._draw if self.plan.draws else None,
            *more,
        )


class Capture(Replay):
    """The steps of a recording, to be run again and again.

    `outputs` are the uids of the BUFFERs that are returned; each run makes new ones. What the step
    filled from the host is neither in `written` nor in `read`. Of the `donated` parameters those
    are spent that have results in their memory.
    """

    def __init__(
        self, recording: Recording, outputs: Sequence[int], donated: Collection[int] = ()
    ) -> None:
        cells = _Cells(recording)
        steps = cells.steps()
        outside = {cells.of(uid) for uid in (*recording.params, *recording.bound)}
        fresh = [cells.of(uid) for uid in outputs]
        steps = _needed(steps, {*outside, *fresh})
        used = {k for step in steps for k in step.slots}
        written = {k for step in steps for k in step.written}
        bound = {cells.of(uid): node for uid, node in recording.bound.items()}
        filled: list[Step] = []
        for uid, contents in recording.contents.items():
            cell = cells.of(uid)
            if cell in written or cell in fresh:  # it begins with the same contents each time
                original = cells.add(cells.slots[cell])
                bound[original] = contents
                filled.append(_copy_step(cells.slots[cell], cell, original))
            elif cell in used:
                bound[cell] = contents
        results = [cells.slots[k] for k in fresh]
        steps, placed = reuse_memory([*filled, *steps], cells.slots, fresh, donated)
        fresh = [k for n, k in enumerate(fresh) if n not in placed]
        params = range(len(recording.params))
        used = {k for step in steps for k in step.slots} - {*params, *fresh}
        kept = [k for k in bound if k in used]
        temporary = [k for k in range(len(cells.slots)) if k in used and k not in bound]
        roles = {"param": params, "fresh": fresh, "bound": kept, "temp": temporary}
        order = {k: n for n, k in enumerate(k for of in roles.values() for k in of)}
        values = range(len(recording.numbers) + len(recording.draws) + len(cells.constants))
        plan = Plan(
            tuple([cells.slots[k]._replace(role=role) for role, of in roles.items() for k in of]),
            tuple([step.over(order, values) for step in steps]),
            tuple(recording.numbers),
            tuple(recording.draws),
            tuple(cells.constants),
        )
        super().__init__(plan, [bound[k] for k in kept], results, placed, donated)
        self.returned = [k for n, k in placed.items() if outputs[n] in recording.params]
        outer = set(recording.bound.values())
        self.written = [node for node in self.written if node in outer]
        self.read = [node for node in self.read if node in outer]


def _copy_step(slot: Slot, to: int, source: int) -> Step:
    """A step that copies a cell."""
    device = Device[slot.device]
    call = copy_program(device, device, slot.nbytes)
    return Step(call, (to, source), (), (to,), device, "copy", 0, slot.nbytes)


def _place(
    temporaries: Sequence[int], slots: Sequence[Slot], steps: Sequence[Step]
) -> dict[int, Part]:
    """Where cells that are born and dead in a run lie in the arena of their device."""
    lives: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        for k in step.slots:
            lives.setdefault(k, []).append(number)
    parts = {}
    for device in dict.fromkeys(slots[k].device for k in temporaries):
        mine = [k for k in temporaries if slots[k].device == device]
        offsets, _ = plan_memory(
            [Lifetime(slots[k].nbytes, lives[k][0], lives[k][-1]) for k in mine],
            reuse=not NO_MEMORY_PLANNER,
        )
        for k, offset in zip(mine, offsets, strict=True):
            parts[k] = Part(device, offset, slots[k].nbytes)
    return parts
