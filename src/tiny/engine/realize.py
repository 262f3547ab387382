"""Compiling the kernels of schedules, and running lists of them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tiny._core.launch import HostCopy, HostKernel, HostReplay, publish
from tiny.codegen import LinearProgram, Packing, lower
from tiny.codegen.opt import Kernel
from tiny.device import (
    Allocator,
    Arena,
    Buffer,
    Compiled,
    CompileError,
    Device,
    HostAllocator,
    Program,
)
from tiny.dtype import DType, dtypes
from tiny.engine.kept import KERNELS, Made, find_made, keep_made, key_of, lowering_settings
from tiny.function import Linear
from tiny.helpers import (
    DEBUG,
    DEV,
    JIT,
    GlobalCounters,
    colored,
    nbytes_text,
)
from tiny.schedule import Schedule, ScheduleItem, Slot
from tiny.shared import Cache
from tiny.uop.ops import Ops, UOp
from tiny.uop.printing import graph_text, list_text
from tiny.uop.runtime import Setting

__all__ = [
    "CompiledKernel",
    "CompiledSchedule",
    "Part",
    "Step",
    "StepList",
    "compile_kernel",
    "compile_linear",
    "forget_kernels",
    "load_made",
    "make",
    "run_linear",
]

Numbers = Sequence[int] | Mapping[int, int]

MOST_KERNELS = 2048  # 60 KB each, most of it pages of machine code
MOST_SCHEDULES = 1024
LINES_SHOWN = 2000  # of a graph or a program


class CompiledKernel(NamedTuple):
    """A kernel ready to run: called with the memory of `slots`, by number of PARAM, in order."""

    call: Program
    program: LinearProgram
    slots: tuple[int, ...]
    variables: tuple[str, ...]


# The kernel itself is part of the key: nodes are unique, so a hit is the same graph. Its machine
# code is freed with the entry, or with the last who still runs it.
_kernels: Cache[tuple[Any, ...], CompiledKernel] = Cache("kernels", MOST_KERNELS)
# By the number of the schedule, which the entry keeps alive, and what its kernels depend on.
_schedules: Cache[tuple[Any, ...], CompiledSchedule] = Cache("compiled schedules", MOST_SCHEDULES)


def compile_kernel(kernel: UOp, device: Compiled) -> CompiledKernel:
    """A kernel (a SINK of level 2) compiled and loaded on a device; equal ones once.

    CompileError says which kernel and carries its source; TypeError names a dtype that the device
    lacks, and the devices that have it.
    """
    key = (kernel, device, *lowering_settings())
    return _kernels.get(key) or _kernels.put(key, _compile(kernel, device))


def forget_kernels() -> None:
    """Empty the caches of compiled kernels and schedules."""
    _kernels.clear()
    _schedules.clear()


def _compile(kernel: UOp, device: Compiled) -> CompiledKernel:
    for node in kernel.postorder():
        check_dtype(node.dtype, device)
    if DEBUG >= 5:
        print(graph_text(kernel, LINES_SHOWN))
    ((call, made),) = load_made(
        kernel, device, lambda: [make(lower(kernel, device.target), device)]
    )
    program = made.program
    return CompiledKernel(
        call,
        program,
        tuple([p.slot for p in program.params]),
        tuple([v.arg.name for v in program.variables]),
    )


def load_made(
    kernel: UOp,
    device: Compiled,
    make_all: Callable[[], list[Made]],
    slots: Collection[int] = (),
) -> list[tuple[Program, Made]]:
    """Load what was kept of a kernel on disk; without that, what `make_all` makes is, and kept."""
    key = key_of(kernel, device, slots)
    kept = None if key is None else find_made(key, kernel)
    if kept is not None and key is not None:
        try:
            return _load_all(kept, device)
        except CompileError:
            KERNELS.drop(key)
    made = make_all()
    loaded = _load_all(made, device)
    if key is not None:
        keep_made(key, made)
    return loaded


def _load_all(made: Sequence[Made], device: Compiled) -> list[tuple[Program, Made]]:
    return [(device.load(m.program.name, m.binary, m.program), m) for m in made]


def make(program: LinearProgram, device: Compiled, packing: Packing | None = None) -> Made:
    """A linear program compiled for a device. CompileError carries its source."""
    if DEBUG >= 6:
        _print_program(program)
    source = device.renderer.render(program)
    if DEBUG >= 4:
        print(source)
    binary = device.compiler.compile(source, program.name)
    if DEBUG >= 7:
        print(device.compiler.disassemble(source, program.name))
    return Made(program, binary, packing)


def check_dtype(dtype: DType, device: Compiled) -> None:
    """TypeError if values of a dtype cannot live on a device."""
    if dtype in device.target.dtypes or dtype is dtypes.void or dtype.kind == "x":
        return
    able = []
    for name in Device.names():
        try:
            if dtype in Device[name].target.dtypes:
                able.append(name)
        except (ImportError, OSError, RuntimeError, ValueError):
            continue  # not usable here
    raise TypeError(
        f"{device.name} has no {dtype.name}; "
        f"{', '.join(able) or 'no other device here'} has: cast it, or move it there"
    )


# ---------------------------------------------------------------- lists of steps


class Step(NamedTuple):
    """One kernel or copy: `call` takes the memory of `slots` and the values of `variables`.

    Both are numbers in the list that the step is in. The slots `written` are those it writes,
    each of them whole unless it is read as well.
    """

    call: Program
    slots: tuple[int, ...]
    variables: tuple[int, ...]
    written: tuple[int, ...]
    device: Compiled
    name: str
    flops: int
    nbytes: int
    item: ScheduleItem | None = None
    program: LinearProgram | None = None

    def over(self, slots: Numbers, variables: Numbers) -> Step:
        """This step with other numbers: `slots[k]` for slot k."""
        return self._replace(
            slots=tuple([slots[k] for k in self.slots]),
            variables=tuple([variables[k] for k in self.variables]),
            written=tuple([slots[k] for k in self.written]),
        )

    def pick(
        self, memory: tuple[Any, ...], values: tuple[float, ...]
    ) -> tuple[tuple[Any, ...], tuple[float, ...]]:
        """What it is called with, of the memory and the values of its list."""
        return tuple([memory[k] for k in self.slots]), tuple([values[k] for k in self.variables])


def copy_program(writer: Compiled, reader: Compiled, nbytes: int) -> Program:
    """A copy of `nbytes` from one device to another, called with (destination, source)."""
    if isinstance(writer.allocator, HostAllocator) and isinstance(reader.allocator, HostAllocator):
        return HostCopy(nbytes)
    return Transfer(writer, reader, nbytes)


class Transfer:
    """A copy where one side is not the host's memory."""

    def __init__(self, writer: Compiled, reader: Compiled, nbytes: int) -> None:
        self.writer, self.reader, self.nbytes = writer, reader, nbytes

    def __call__(self, buffers: tuple[Any, ...], variables: tuple[int | float, ...] = ()) -> None:
        """Copy."""
        into, out_of = buffers
        self.reader.synchronize()
        view = self.reader.allocator._as_buffer(out_of)
        if view is None:
            view = memoryview(bytearray(self.nbytes))
            self.reader.allocator._copyout(view, out_of)
        self.writer.allocator._copyin(into, view[: self.nbytes])


class Part(NamedTuple):
    """A slot for what is born and dead in one run: so many bytes in the arena of a device."""

    device: str
    offset: int
    nbytes: int


class StepList:
    """Steps that run in order, called with a piece of memory a slot and a value a variable.

    `slots` are Parts of arenas, which a run borrows; None for memory that a run is given to fill;
    and else what the memory is that it is given. Where all steps are code of the host they run in
    one native call, unless DEBUG asks for a line about each, or JIT=2.

    A run is complete, with all `settings` published, or has changed nothing: where Python comes
    between steps, copies are kept of what they overwrite, and put back when something is raised.
    """

    def __init__(
        self, steps: Sequence[Step], slots: Sequence[Part | Slot | None], variables: int
    ) -> None:
        self.steps = tuple(steps)
        self.flops = sum(s.flops for s in steps)
        self.nbytes = sum(s.nbytes for s in steps)
        self._slots = tuple(slots)
        self._arenas: dict[str, int] = {}  # of each device, how many bytes a run needs
        for part in slots:
            if isinstance(part, Part):
                end = part.offset + part.nbytes
                self._arenas[part.device] = max(end, self._arenas.get(part.device, 0))
        self._allocators: list[Allocator[Any]] = [Device[name].allocator for name in self._arenas]
        self.native: HostReplay | None = None
        if all(isinstance(s.call, HostKernel | HostCopy) for s in steps):
            self.native = self._make_native(variables)

    @property
    def arenas(self) -> list[tuple[Allocator[Any], int]]:
        """Which arenas a run borrows: from whom, and how many bytes."""
        return list(zip(self._allocators, self._arenas.values(), strict=True))

    def _make_native(self, variables: int) -> HostReplay:
        """All steps as one call, given memory, then arenas."""
        given = sum(not isinstance(slot, Part) for slot in self._slots)
        arenas = {name: given + k for k, name in enumerate(self._arenas)}
        parts = [(arenas[p.device], p.offset, p.nbytes) for p in self._slots if isinstance(p, Part)]
        wholes, others = itertools.count(), itertools.count(given + len(arenas))
        number = [next(others if isinstance(s, Part) else wholes) for s in self._slots]
        native: Any = [
            (s.call, tuple([number[k] for k in s.slots]), s.variables) for s in self.steps
        ]
        return HostReplay(native, given + len(arenas), variables, parts)

    def __call__(
        self,
        memory: tuple[Any, ...],
        values: tuple[float, ...],
        settings: list[Setting] | None = None,
    ) -> None:
        """Run them, then publish the settings; on some devices they may be under way still."""
        arenas = [Arena(allocator, nbytes) for allocator, nbytes in self.arenas]
        if self.native is None or DEBUG >= 2 or JIT.value == 2:
            self._run_apart(self._pieces(memory, arenas), values, settings or [])
            return
        self.native((*memory, *[arena.memory for arena in arenas]), values, False, settings)
        _count(len(self.steps), self.flops, self.nbytes)

    def _run_apart(
        self, memory: tuple[Any, ...], values: tuple[float, ...], settings: list[Setting]
    ) -> None:
        """Run the steps one by one."""
        before: list[tuple[Compiled, Any, bytearray]] = []
        done: dict[str, bool] = {}
        try:
            for k in sorted({k for step in self.steps for k in step.written}):
                slot = self._slots[k]
                if isinstance(slot, Slot) and Device[slot.device].allocator.keeps_contents:
                    device, kept = Device[slot.device], bytearray(slot.nbytes)
                    device.synchronize()
                    device.allocator._copyout(memoryview(kept), memory[k])
                    before.append((device, memory[k], kept))
            for step in self.steps:
                if DEBUG >= 2:
                    _run_timed(step, *step.pick(memory, values))
                else:
                    step.call(*step.pick(memory, values))
                    _count(1, step.flops, step.nbytes)
            publish([*settings, (done, "all", True)])
        except BaseException:
            if not done:
                for device, piece, kept in before:
                    device.synchronize()
                    device.allocator._copyin(piece, memoryview(kept))
            raise

    def _pieces(self, memory: tuple[Any, ...], arenas: Sequence[Arena]) -> tuple[Any, ...]:
        """The memory of all slots."""
        given, of = iter(memory), dict(zip(self._arenas, arenas, strict=True))
        return tuple(
            [
                Device[slot.device].allocator._offset(
                    of[slot.device].memory, slot.nbytes, slot.offset
                )
                if isinstance(slot, Part)
                else next(given)
                for slot in self._slots
            ]
        )


def _count(kernels: int, flops: int, nbytes: int) -> None:
    GlobalCounters.kernel_count += kernels
    GlobalCounters.global_ops += flops
    GlobalCounters.global_mem += nbytes


def _run_timed(step: Step, buffers: tuple[Any, ...], variables: tuple[float, ...]) -> None:
    """Run one step and print its line of DEBUG=2."""
    step.device.synchronize()
    start = time.perf_counter()
    step.call(buffers, variables)
    step.device.synchronize()
    seconds = time.perf_counter() - start
    _count(1, step.flops, step.nbytes)
    GlobalCounters.time_sum_s += seconds
    _print_line(step, seconds)
    if DEBUG >= 3 and step.item is not None and step.program is not None:
        _print_opts(step.item, step.program, step.device)


# ---------------------------------------------------------------- schedules


class CompiledSchedule:
    """A schedule and its kernels, ready to run."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        numbers = {name: k for k, name in enumerate(schedule.variables)}
        steps = [
            self._step(item, numbers)
            for item in schedule.items
            # with nothing to write there is nothing to compute, and loops must not be empty
            if any(schedule.slots[k].nbytes for k in item.slots[: item.outputs])
        ]
        slots: list[Part | Slot | None] = [
            Part(slot.device, slot.offset, slot.nbytes)
            if slot.role == "temp"
            else (slot if slot.role == "input" else None)
            for slot in schedule.slots
        ]
        self.steps = StepList(steps, slots, len(schedule.variables))

    def _step(self, item: ScheduleItem, numbers: dict[str, int]) -> Step:
        device, written = Device[item.device], item.slots[: item.outputs]
        if item.kernel.op is Ops.COPY:
            to, source = (self.schedule.slots[k] for k in item.slots)
            call = copy_program(Device[to.device], Device[source.device], to.nbytes)
            name = f"copy from {source.device}"
            return Step(call, item.slots, (), written, device, name, 0, to.nbytes, item)
        kernel = compile_kernel(item.kernel, device)
        return Step(
            kernel.call,
            tuple([item.slots[k] for k in kernel.slots]),
            tuple([numbers[name] for name in kernel.variables]),
            written,
            device,
            kernel.program.name,
            kernel.program.flops,
            kernel.program.nbytes,
            item,
            kernel.program,
        )

    def buffers(self, inputs: Sequence[Buffer]) -> list[Buffer | None]:
        """The buffers of all slots for a run: `inputs`, then new ones; None for temporaries."""
        buffers: list[Buffer | None] = list(inputs)
        for slot in self.schedule.slots[len(inputs) :]:
            if slot.role == "temp":
                buffers.append(None)
            else:
                buffer = Buffer(slot.device, math.prod(slot.shape), slot.dtype)
                buffers.append(buffer.allocate())
        return buffers

    def __call__(
        self,
        buffers: Sequence[Buffer | None],
        values: Mapping[str, float],
        settings: list[Setting] | None = None,
    ) -> None:
        """Run all items on `buffers`, then publish the settings."""
        memory = tuple([buffer.memory for buffer in buffers if buffer is not None])
        given = tuple([values[name] for name in self.schedule.variables])
        self.steps(memory, given, settings)


def compile_linear(schedule: Schedule | Linear) -> CompiledSchedule:
    """A schedule with all its kernels compiled for the devices as they are now; equal ones once.

    Errors as `compile_kernel`'s; nothing has run then.
    """
    if isinstance(schedule, Linear):
        return compile_linear(schedule.schedule)
    key = (id(schedule), DEV.value, *lowering_settings())
    return _schedules.get(key) or _schedules.put(key, CompiledSchedule(schedule))


def run_linear(
    linear: CompiledSchedule | Schedule | Linear,
    inputs: Sequence[Buffer] | Mapping[str, float] = (),
    values: Mapping[str, float] | None = None,
) -> list[Buffer | None]:
    """Run a compiled schedule on the buffers of its input slots and the values of its variables.

    The buffers of all slots: `inputs`, then new ones; None for temporaries, which are gone. Of
    what `Tensor.schedule_linear` gave only values are taken, as the second argument too: its
    memory is that of the tensors, which are computed then.
    """
    if isinstance(linear, Linear):
        linear.run(values or (inputs if isinstance(inputs, Mapping) else None))
        return []
    assert not isinstance(inputs, Mapping), "a schedule runs on buffers"
    compiled = linear if isinstance(linear, CompiledSchedule) else compile_linear(linear)
    buffers = compiled.buffers(inputs)
    compiled(buffers, values or {})
    return buffers


# ---------------------------------------------------------------- what DEBUG prints


def _print_program(program: LinearProgram) -> None:
    """The lines of DEBUG=6: the operations of each phase."""
    for number, phase in enumerate(program.phases):
        if len(program.phases) > 1:
            print(f"phase {number} of {program.name}, {phase.count} steps")
        print(list_text(phase.uops, LINES_SHOWN))


def _print_line(step: Step, seconds: float) -> None:
    """The line of DEBUG=2: device, number, name, memory in use, time, speed."""
    flops, nbytes = step.flops / seconds * 1e-9, step.nbytes / seconds * 1e-9
    print(
        f"*** {step.device.name:<7} {GlobalCounters.kernel_count:5d} "
        f"{colored(f'{step.name:<32}', 'cyan')} "
        f"mem {nbytes_text(GlobalCounters.mem_used):>10} tm {seconds * 1e6:10.2f} us / "
        f"{GlobalCounters.time_sum_s * 1e3:9.2f} ms {flops:9.2f} GFLOPS {nbytes:8.2f} GB/s"
    )


def _print_opts(item: ScheduleItem, program: LinearProgram, device: Compiled) -> None:
    """The lines of DEBUG=3: the axes, the Opts, and why the result is stored."""
    kernel = Kernel(item.kernel, device.target)
    for opt in program.applied_opts:
        kernel.apply_opt(opt)
    opts = ", ".join(map(str, program.applied_opts)) or "none"
    print(f"    axes {kernel.colored_shape()}; opts {opts}\n    stored: {item.reason}")
