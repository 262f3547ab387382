"""Between the plan of a captured step and data: kernels with their Opts, compiled or stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiny.codegen import KernelOptError
from tiny.device import Compiled, Device
from tiny.engine.capture import Plan
from tiny.engine.realize import Step, compile_kernel, copy_program
from tiny.engine.stored import ExportError, StoredCall, StoredCopy, StoredKernel, StoredStep
from tiny.helpers import Context
from tiny.schedule import ScheduleItem
from tiny.uop.ops import KernelInfo
from tiny.uop.target import Target
from tiny.uop.written import written_slots

__all__ = ["linked", "stored_steps", "target_record"]


def target_record(target: Target) -> list[Any]:
    """What of a target decides which Opts suit it. The number of threads is not among it."""
    return [
        target.arch,
        sorted(target.features),
        target.vector_bytes,
        target.l1_bytes,
        target.l2_bytes,
        target.llc_bytes,
        target.has_local,
        target.local_bytes,
        target.max_buffers,
        sorted(op.name for op in target.native_ops),
        [unit.name for unit in target.units],
    ]


def stored_steps(plan: Plan) -> tuple[StoredStep, ...]:
    """The steps of a plan as data."""
    steps: list[StoredStep] = []
    for step in plan.steps:
        program = step.program
        if program is None or step.item is None:
            to, source = step.slots
            steps.append(StoredCopy(to, source))
            continue
        kernel = step.item.kernel
        steps.append(
            StoredKernel(
                kernel.replace(arg=KernelInfo(kernel.arg.name)),
                program.applied_opts,
                step.device.name,
                tuple([(p.slot, k) for p, k in zip(program.params, step.slots, strict=True)]),
                tuple(
                    [
                        (v.arg.name, k)
                        for v, k in zip(program.variables, step.variables, strict=True)
                    ]
                ),
            )
        )
    return tuple(steps)


def linked(call: StoredCall, known: Mapping[str, list[Any]], strict: bool) -> Plan:
    """A call that was checked, compiled for the devices of this machine.

    Where a device's target is that of its record in `known`, kernels get the Opts that they had,
    elsewhere others are chosen. `strict`: sums are added up in order, as when it was captured.
    ExportError if a kernel can not be compiled here.
    """
    steps = []
    with Context(STRICT_REDUCE=int(strict)):
        for step in call.steps:
            if isinstance(step, StoredCopy):
                to, source = call.cells[step.to], call.cells[step.source]
                copy = copy_program(Device[to.device], Device[source.device], to.nbytes)
                name = "copy" if to.device == source.device else f"copy from {source.device}"
                device = Device[to.device]
                ends = (step.to, step.source)
                steps.append(Step(copy, ends, (), ends[:1], device, name, 0, to.nbytes))
            else:
                same = known.get(step.device) == target_record(Device[step.device].target)
                steps.append(_linked_kernel(step, Device[step.device], same))
    return Plan(call.cells, tuple(steps), call.numbers, call.draws, call.constants)


def _linked_kernel(step: StoredKernel, device: Compiled, with_opts: bool) -> Step:
    info = step.kernel.arg
    asking = step.kernel.replace(arg=info._replace(opts_to_apply=step.opts if with_opts else None))
    try:
        compiled = compile_kernel(asking, device)
    except KernelOptError as error:
        raise ExportError(f"kernel {info.name} has Opts that are not legal: {error}") from error
    except MemoryError:
        raise
    except Exception as error:  # whatever a kernel from outside makes of it
        raise ExportError(f"kernel {info.name} can not be compiled here: {error}") from error
    cells, values, program = dict(step.cells), dict(step.values), compiled.program
    for slot in compiled.slots:
        if slot not in cells:
            raise ExportError(f"kernel {info.name} has no memory for PARAM {slot}")
    for name in compiled.variables:
        if name not in values:
            raise ExportError(f"kernel {info.name} has no value for {name}")
    written = written_slots(step.kernel)
    return Step(
        compiled.call,
        tuple([cells[slot] for slot in compiled.slots]),
        tuple([values[name] for name in compiled.variables]),
        tuple([cells[slot] for slot in written]),
        device,
        program.name,
        program.flops,
        program.nbytes,
        ScheduleItem(asking, (), device.name, "stored", len(written)),
        program,
    )
