"""Compiling the kernels of a schedule, and running it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from tiny.codegen import LinearProgram, lower
from tiny.codegen.opt import Kernel
from tiny.device import Buffer, Compiled, Device, Program
from tiny.dtype import DType, dtypes
from tiny.helpers import DEBUG, NOOPT, SPEC, STRICT_REDUCE, GlobalCounters, colored, nbytes_text
from tiny.schedule import Schedule, ScheduleItem
from tiny.uop.ops import Ops, UOp
from tiny.uop.printing import graph_text, list_text
from tiny.uop.spec import spec_program, verify

__all__ = ["CompiledKernel", "compile_kernel", "forget_kernels", "run_schedule"]

MOST_KERNELS = 4096
LINES_SHOWN = 2000  # of a graph or a program


class CompiledKernel(NamedTuple):
    """A kernel ready to run: called with the memory of `slots`, by number of PARAM, in order."""

    call: Program
    program: LinearProgram
    slots: tuple[int, ...]
    variables: tuple[str, ...]


# The kernel itself is part of the key: nodes are unique, so a hit is the same graph. Its machine
# code is freed with the entry, or with the last who still runs it.
_kernels: OrderedDict[tuple[Any, ...], CompiledKernel] = OrderedDict()
_lock = threading.Lock()


def compile_kernel(kernel: UOp, device: Compiled) -> CompiledKernel:
    """A kernel (a SINK of level 2) compiled and loaded on a device; equal ones once.

    CompileError says which kernel and carries its source; TypeError names a dtype that the device
    lacks, and the devices that have it.
    """
    key = (kernel, device, bool(NOOPT), bool(STRICT_REDUCE))
    with _lock:
        found = _kernels.get(key)
        if found is not None:
            _kernels.move_to_end(key)
            return found
    found = _compile(kernel, device)
    with _lock:
        _kernels[key] = found
        if len(_kernels) > MOST_KERNELS:
            _kernels.popitem(last=False)
    return found


def forget_kernels() -> None:
    """Empty the cache of compiled kernels."""
    with _lock:
        _kernels.clear()


def _compile(kernel: UOp, device: Compiled) -> CompiledKernel:
    for node in kernel.postorder():
        check_dtype(node.dtype, device)
    if DEBUG >= 5:
        print(graph_text(kernel, LINES_SHOWN))
    program = lower(kernel, device.target)
    if DEBUG >= 6:
        print(list_text(program.uops, LINES_SHOWN))
    if SPEC:
        verify(program.uops, spec_program, f"program {program.name}")
    source = device.renderer.render(program)
    if DEBUG >= 4:
        print(source)
    binary = device.compiler.compile(source, program.name)
    if DEBUG >= 7:
        print(device.compiler.disassemble(source, program.name))
    return CompiledKernel(
        device.load(program.name, binary, program),
        program,
        tuple([p.slot for p in program.params]),
        tuple([v.arg.name for v in program.variables]),
    )


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


# ---------------------------------------------------------------- running


def run_schedule(
    schedule: Schedule, inputs: Sequence[Buffer], values: dict[str, int]
) -> list[Buffer | None]:
    """Run all items. The buffers of the slots: `inputs`, then new ones; None for temporaries.

    `values` are those of the schedule's variables. Temporaries share an arena for each device,
    which is given back at the end.
    """
    devices = {name: Device[name] for name in {slot.device for slot in schedule.slots}}
    arenas = {name: Buffer(name, nbytes, dtypes.uint8) for name, nbytes in schedule.arena.items()}
    buffers: list[Buffer | None] = list(inputs)
    memory: list[Any] = [buffer.memory for buffer in inputs]  # of each slot
    for slot in schedule.slots[len(inputs) :]:
        if slot.role == "temp":
            arena, allocator = arenas[slot.device], devices[slot.device].allocator
            memory.append(allocator._offset(arena.memory, slot.nbytes, slot.offset))
            buffers.append(None)
        else:
            buffer = Buffer(slot.device, slot.nbytes // slot.dtype.itemsize, slot.dtype)
            memory.append(buffer.memory)
            buffers.append(buffer)
    for item in schedule.items:
        if not schedule.slots[item.slots[0]].nbytes:
            continue  # nothing to compute, and loops must not be empty
        if item.kernel.op is Ops.COPY:
            _copy(schedule, item, memory)
        else:
            _launch(item, devices[item.device], memory, values)
    memory.clear()  # parts before their arenas, or these would still be in use when given back
    return buffers


def _launch(
    item: ScheduleItem, device: Compiled, memory: list[Any], values: dict[str, int]
) -> None:
    kernel = compile_kernel(item.kernel, device)
    buffers = tuple([memory[item.slots[k]] for k in kernel.slots])
    variables = tuple([values[name] for name in kernel.variables])
    program, seconds = kernel.program, None
    if DEBUG >= 2:
        device.synchronize()
        start = time.perf_counter()
        kernel.call(buffers, variables)
        device.synchronize()
        seconds = time.perf_counter() - start
    else:
        kernel.call(buffers, variables)
    _count(program.flops, program.nbytes, seconds)
    if seconds is not None:
        _print_line(item.device, program.name, seconds, program.flops, program.nbytes)
        if DEBUG >= 3:
            _print_opts(item, program, device)


def _copy(schedule: Schedule, item: ScheduleItem, memory: list[Any]) -> None:
    to, source = (schedule.slots[k] for k in item.slots)
    into, out_of = (memory[k] for k in item.slots)
    writer, reader = Device[to.device], Device[source.device]
    start = time.perf_counter()
    reader.synchronize()
    view = reader.allocator._as_buffer(out_of)
    if view is None:
        view = memoryview(bytearray(source.nbytes))
        reader.allocator._copyout(view, out_of)
    writer.allocator._copyin(into, view[: to.nbytes])
    seconds = None
    if DEBUG >= 2:
        writer.synchronize()
        seconds = time.perf_counter() - start
        _print_line(to.device, f"copy from {source.device}", seconds, 0, to.nbytes)
    _count(0, to.nbytes, seconds)


def _count(flops: int, nbytes: int, seconds: float | None) -> None:
    GlobalCounters.kernel_count += 1
    GlobalCounters.global_ops += flops
    GlobalCounters.global_mem += nbytes
    GlobalCounters.time_sum_s += seconds or 0.0


def _print_line(device: str, name: str, seconds: float, flops: int, nbytes: int) -> None:
    """The line of DEBUG=2: device, number, name, memory in use, time, speed."""
    speed = f"{flops / seconds * 1e-9:9.2f} GFLOPS {nbytes / seconds * 1e-9:8.2f} GB/s"
    print(
        f"*** {device:<7} {GlobalCounters.kernel_count:5d} {colored(f'{name:<32}', 'cyan')} "
        f"mem {nbytes_text(GlobalCounters.mem_used):>10} tm {seconds * 1e6:10.2f} us / "
        f"{GlobalCounters.time_sum_s * 1e3:9.2f} ms {speed}"
    )


def _print_opts(item: ScheduleItem, program: LinearProgram, device: Compiled) -> None:
    """The lines of DEBUG=3: the axes, the Opts, and why the result is stored."""
    kernel = Kernel(item.kernel, device.target)
    for opt in program.applied_opts:
        kernel.apply_opt(opt)
    opts = ", ".join(map(str, program.applied_opts)) or "none"
    print(f"    axes {kernel.colored_shape()}; opts {opts}\n    stored: {item.reason}")
