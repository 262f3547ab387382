"""Tensor graphs to schedules: what runs in which order, on which pieces of memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tiny._core.graph import canonical_key, open_key
from tiny.dtype import DType
from tiny.helpers import DEBUG, NO_MEMORY_PLANNER, SPEC, STRICT_REDUCE, disable_gc
from tiny.schedule.constants import SPECIAL, with_variables
from tiny.schedule.graph import MEMORY, TensorGraph, canonicalise, read_graph
from tiny.schedule.joins import join_steps
from tiny.schedule.kernels import Versions, build_kernels
from tiny.schedule.liveness import Needs, order_by_memory
from tiny.schedule.memory import Lifetime, plan_memory
from tiny.schedule.order import Step, order_steps
from tiny.schedule.partial import store_what_is_read
from tiny.schedule.pitches import spread_rows
from tiny.schedule.ranges import plan_kernels
from tiny.shared import Cache
from tiny.uop.ops import Ops, UOp
from tiny.uop.passes import compiler_pass
from tiny.uop.spec import spec_tensor, verify
from tiny.uop.structure import check_kernel
from tiny.uop.target import Target

MOST_SCHEDULES = 1024


class Slot(NamedTuple):
    """A piece of memory of a schedule.

    role: 'input' (a BUFFER of the graph, possibly written), 'output' (made anew by each run) or
    'temp' (at `offset` bytes in the arena of its device).
    """

    dtype: DType
    shape: tuple[int, ...]
    device: str
    role: str
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class ScheduleItem(NamedTuple):
    """A kernel (SINK), or a copy between devices (COPY over PARAM 1).

    PARAM k is slots[k]; the first `outputs` of them are written. `reason` says why its results
    are stored.
    """

    kernel: UOp
    slots: tuple[int, ...]
    device: str
    reason: str
    outputs: int = 1


class View(NamedTuple):
    """Where an output is: a slot, and the movement operations over it, innermost first."""

    slot: int
    moves: tuple[UOp, ...]

    def over(self, node: UOp, values: Mapping[str, Any] | None = None) -> UOp:
        """The view of `node`, the BUFFER that holds the slot; its Variables bound to `values`."""
        for move in self.moves:
            node = UOp(
                move.op,
                node.dtype if move.op is not Ops.BITCAST else move.dtype,
                (node, *[_bound(size, values or {}) for size in move.src[1:]]),
                move.arg,
            )
        return node


def _bound(size: UOp, values: Mapping[str, Any]) -> UOp:
    """A size with a value for each Variable in it."""
    return size.substitute({v: v.bind(values[v.arg.name]) for v in size.variables()}, walk=True)


class ScheduleStats(NamedTuple):
    """What it took, and what it came to."""

    nodes: int
    visits: int
    rounds: int
    kernels: int
    stored_nbytes: int  # written by kernels and copies to neither outputs nor inputs
    merge_visits: int = 0  # edges between kernels looked at to join them
    copies: int = 0  # of old versions of buffers


@dataclass(frozen=True)
class Schedule:
    """Items in order over numbered slots. Plain data: it holds no memory and no user's node."""

    items: tuple[ScheduleItem, ...]
    slots: tuple[Slot, ...]
    arena: dict[str, int]
    outputs: tuple[View, ...]
    variables: tuple[str, ...]
    stats: ScheduleStats


class BoundSchedule(NamedTuple):
    """A schedule with this call's memory and values: slot k is buffers[k], as far as they go.

    A value is an int, or a float where a constant became a variable.
    """

    schedule: Schedule
    buffers: tuple[UOp, ...]
    values: dict[str, Any]


class _Family:
    """Graphs equal but for float constants: those of the first, and the places that varied."""

    def __init__(self, first: tuple[float, ...]) -> None:
        self.first = first
        self.varied: frozenset[int] = frozenset()


_cache: Cache[tuple[object, ...], Schedule] = Cache("schedules", MOST_SCHEDULES)
_families: Cache[tuple[object, ...], _Family] = Cache("families of graphs", MOST_SCHEDULES)


@compiler_pass("schedule", "tensor graph", "schedule, by its key if it is known")
def create_schedule(
    sink: UOp, target_of: Callable[[str], Target], default_device: str
) -> BoundSchedule:
    """How to compute the sources of `sink`, a tensor graph, and run the STOREs in it.

    `target_of` describes a device by name; what has no device of its own goes to
    `default_device`. A graph that was seen before, up to the identity of its buffers and the
    values of its Variables, costs a walk for its key; one that was seen with other float constants,
    one more. ValueError if one Variable has two values or if operands live on two devices.
    """
    key, buffers, binds = canonical_key(sink)
    values: dict[str, Any] = {}
    for bind in binds:
        variable, value = bind.unbind()
        if values.setdefault(variable.arg.name, value) != value:
            raise ValueError(
                f"variable {variable.arg.name!r} is bound to {values[variable.arg.name]} and to "
                f"{value} in one computation; realize one of them first"
            )
    devices = dict.fromkeys((default_device, *[b.arg.device for b in buffers]))
    targets = tuple([target_of(device) for device in devices])
    settings = (default_device, targets, bool(NO_MEMORY_PLANNER), bool(STRICT_REDUCE))
    schedule = _cache.get((key, *settings))
    if schedule is None:
        # without their constants many graphs are one
        family, constants = open_key(sink, SPECIAL)
        place: tuple[object, ...] = (key, *settings)
        varied = _what_varied((family, *settings), constants)
        if varied is not None:
            place = varied
            schedule = _cache.get(place)
            values.update((f"~{k}", constants[k].arg) for k in varied.places)
        if schedule is None:
            graph = canonicalise(sink, buffers)
            if varied is not None:
                graph = with_variables(graph, constants, varied.places)
            schedule = _make_schedule(graph, buffers, target_of, default_device)
            _cache.put(place, schedule)
    for name in schedule.variables:
        if name not in values:
            raise ValueError(
                f"variable {name!r} has no value: bind it, with .bind(value), where it enters"
            )
    return BoundSchedule(schedule, tuple(buffers), values)


class _Varied(NamedTuple):
    """A family of graphs, the values that its first one had, and the places that varied since."""

    key: tuple[object, ...]
    first: tuple[float, ...]
    places: frozenset[int]


def _what_varied(key: tuple[object, ...], constants: Sequence[UOp]) -> _Varied | None:
    """Which constants of a family of graphs have had other values; None if none has."""
    if not constants:
        return None
    now = tuple([c.arg for c in constants])
    family = _families.get(key)
    if family is None:
        _families.put(key, _Family(now))
        return None
    pairs = enumerate(zip(now, family.first, strict=True))
    # if another thread adds places meanwhile, they are found again
    family.varied |= {k for k, (a, b) in pairs if a != b}
    return _Varied(key, family.first, family.varied) if family.varied else None


def forget_schedules() -> None:
    """Empty the cache of schedules."""
    _cache.clear()
    _families.clear()


def cached_schedules() -> int:
    """How many schedules are kept."""
    return len(_cache)


def known_families() -> int:
    """How many graphs are known by all but their float constants."""
    return len(_families)


# a collection in between looks at all requests, and none of them is in a cycle
@disable_gc()
def _make_schedule(
    sink: UOp, buffers: list[UOp], target_of: Callable[[str], Target], default_device: str
) -> Schedule:
    if SPEC:
        verify(sink, spec_tensor, "tensor graph")
    g = read_graph(sink, default_device)
    targets = {device: target_of(device) for device in dict.fromkeys(g.device)}
    plan, rounds, visits = plan_kernels(g, targets)
    versions = Versions(g)
    ordered = order_steps(g, build_kernels(g, plan, versions), versions)
    kept = {i for i, kind in enumerate(g.kind) if kind == MEMORY} | {o.cell for o in g.outputs}
    steps, before, merge_visits = join_steps(ordered, kept, targets)
    slots, slot_of = _make_slots(g, buffers, steps, ordered.copies)
    # all versions of a buffer are one slot
    numbers = [tuple([slot_of[cell] for cell, _ in step.memory]) for step in steps]
    temporary = {k: s.shape for k, s in enumerate(slots) if s.role == "temp"}
    written = [step.outputs for step in steps]
    kernels = store_what_is_read([step.kernel for step in steps], numbers, written, temporary)
    kernels, temporary = spread_rows(kernels, numbers, temporary)
    for n, shape in temporary.items():
        slots[n] = slots[n]._replace(shape=shape)
    items = []
    for k in order_by_memory(before, *_temporaries(slots, steps, numbers)):
        step = steps[k]
        for n in numbers[k] if step.kernel.op is Ops.SINK else ():
            if slots[n].device != step.device:
                raise ValueError(
                    f"a kernel on {step.device} uses memory of {slots[n].device}; "
                    f"copy it with .to({step.device!r})"
                )
        reason = _reason(step, slot_of)
        items.append(ScheduleItem(kernels[k], numbers[k], step.device, reason, step.outputs))
    arena = _place_temporaries(slots, items)
    outputs = tuple([View(slot_of[o.cell], o.moves) for o in g.outputs])
    variables = {n.arg.name for i in items for n in i.kernel.postorder() if n.op is Ops.DEFINE_VAR}
    stored = sum(s.nbytes for s in slots if s.role == "temp")
    copies = sum(number in slot_of for number in ordered.copies)
    stats = ScheduleStats(len(g), visits, rounds, len(items), stored, merge_visits, copies)
    schedule = Schedule(tuple(items), tuple(slots), arena, outputs, tuple(sorted(variables)), stats)
    if SPEC:
        for item in items:
            if item.kernel.op is Ops.SINK:
                check_kernel(item.kernel)
    if DEBUG >= 3:
        _explain(schedule)
    return schedule


def _make_slots(
    g: TensorGraph, buffers: list[UOp], steps: list[Step], copies: dict[int, int]
) -> tuple[list[Slot], dict[int, int]]:
    """The slots, and which of them each cell (or copy, by its negative number) has."""
    slots = [Slot(b.dtype, b.arg.shape, b.arg.device, "input") for b in buffers]
    slot_of: dict[int, int] = {}
    for i, node in enumerate(g.nodes):
        if node.op is Ops.BUFFER:
            slot_of[i] = -1 - node.arg.uid
    for o in g.outputs:
        if o.cell not in slot_of:
            slot_of[o.cell] = len(slots)
            slots.append(Slot(g.nodes[o.cell].dtype, g.shape[o.cell], g.device[o.cell], "output"))
    for step in steps:
        for k, (i, _) in enumerate(step.memory[: step.outputs]):
            if i not in slot_of:
                of = copies.get(i, i)
                dtype = g.nodes[of].dtype
                if g.nodes[of].op is Ops.STORE:  # the staged value of an assignment
                    dtype = step.kernel.src[k].src[1].dtype
                slot_of[i] = len(slots)
                slots.append(Slot(dtype, g.shape[of], step.device, "temp"))
    return slots, slot_of


def _temporaries(
    slots: list[Slot], steps: list[Step], numbers: list[tuple[int, ...]]
) -> tuple[list[Needs], dict[int, int]]:
    """What each step makes and reads of the temporary slots, and their sizes."""
    nbytes = {k: s.nbytes for k, s in enumerate(slots) if s.role == "temp"}
    needs = []
    for step, mine in zip(steps, numbers, strict=True):
        made = tuple([k for k in mine[: step.outputs] if k in nbytes])
        read = tuple(dict.fromkeys(k for k in mine[step.outputs :] if k in nbytes))
        needs.append(Needs(made, read))
    return needs, nbytes


def _reason(step: Step, slot_of: dict[int, int]) -> str:
    """Why what a step makes is stored, and which other kernels became part of it."""
    reasons = [step.reason]
    for why, memory in step.joined:
        if memory is None:
            reasons.append(f"joined: {why}")
        elif memory[0] in slot_of:
            reasons.append(f"joined: {why} slot {slot_of[memory[0]]}")
        else:
            reasons.append(f"joined: {why} what is stored no more")
    return "; ".join(reasons)


def _place_temporaries(slots: list[Slot], items: list[ScheduleItem]) -> dict[str, int]:
    """Give the temporary slots their offsets; the bytes of the arena of each device."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step, item in enumerate(items):
        for k in item.slots:
            first.setdefault(k, step)
            last[k] = step
    arena: dict[str, int] = {}
    for device in dict.fromkeys(s.device for s in slots if s.role == "temp"):
        mine = [k for k, s in enumerate(slots) if s.role == "temp" and s.device == device]
        lives = [Lifetime(slots[k].nbytes, first[k], last[k]) for k in mine]
        offsets, arena[device] = plan_memory(lives, reuse=not NO_MEMORY_PLANNER)
        for k, offset in zip(mine, offsets, strict=True):
            slots[k] = slots[k]._replace(offset=offset)
    return arena


def _explain(schedule: Schedule) -> None:
    """Print what is stored, and why."""
    for item in schedule.items:
        name = item.kernel.arg.name if item.kernel.op is Ops.SINK else "copy"
        written = []
        for slot in [schedule.slots[k] for k in item.slots[: item.outputs]]:
            where = "GLOBAL" if slot.role == "temp" else slot.role
            written.append(f"{slot.shape} {slot.dtype} {where}")
        print(f"schedule {name:<28} {', '.join(written)}: {item.reason}")
