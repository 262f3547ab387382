"""Results in the memory of arguments that are given away.

The memory of a donated argument may hold a result of the same size and dtype, once nothing reads
the argument any more. A kernel that reads it last and writes the result can do so in place if it
only reads the element that it writes: then it is compiled anew as an update in place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tiny.engine.realize import Step, compile_kernel
from tiny.schedule import Slot
from tiny.uop.ops import Ops, UOp
from tiny.uop.spec import SpecError
from tiny.uop.structure import check_kernel
from tiny.uop.written import is_by_hand

__all__ = ["reuse_memory"]


def reuse_memory(
    steps: Sequence[Step], slots: Sequence[Slot], outputs: Sequence[int], donated: Collection[int]
) -> tuple[list[Step], dict[int, int]]:
    """Let outputs live in the memory of donated parameters.

    `slots` says what each cell is, `outputs` and `donated` are numbers of cells. The steps, and
    for each output that was placed (by its number among the outputs) the cell whose memory it has.
    """
    changed = list(steps)
    placed = {n: cell for n, cell in enumerate(outputs) if cell in donated}  # returned as they are
    free = [k for k in donated if k not in placed.values()]
    for n, output in enumerate(outputs):
        if n in placed or outputs.count(output) > 1:
            continue
        for param in free:
            if _is_like(slots[param], slots[output]):
                moved = _moved(changed, param, output)
                if moved is not None:
                    changed, placed[n] = moved, param
                    free.remove(param)
                    break
    return changed, placed


def _is_like(a: Slot, b: Slot) -> bool:
    return a.nbytes == b.nbytes and a.dtype is b.dtype and a.device == b.device


def _moved(steps: Sequence[Step], param: int, output: int) -> list[Step] | None:
    """The steps with the output in the parameter's memory; None if something still reads that."""
    last = max([n for n, step in enumerate(steps) if param in step.slots], default=-1)
    first = min([n for n, step in enumerate(steps) if output in step.slots], default=len(steps))
    if first < last or any(param in step.written for step in steps):
        return None
    changed = list(steps)
    if first == last:
        in_place = _in_place(steps[first], param, output)
        if in_place is None:
            return None
        changed[first] = in_place
    cells = {output: param}
    for n in range(first, len(changed)):
        if output in changed[n].slots:
            numbers = {k: cells.get(k, k) for k in changed[n].slots}
            changed[n] = changed[n].over(numbers, {k: k for k in changed[n].variables})
    return changed


def _in_place(step: Step, param: int, output: int) -> Step | None:
    """A step that reads the parameter from the output's memory; None if it can not."""
    program, item = step.program, step.item
    if program is None or item is None or item.kernel.op is not Ops.SINK:
        return None
    cells = {p.slot: cell for p, cell in zip(program.params, step.slots, strict=True)}
    numbers = [number for number, cell in cells.items() if cell == param]
    targets = [number for number, cell in cells.items() if cell == output]
    if len(numbers) != 1 or len(targets) != 1:
        return None
    kernel = _joined(item.kernel, numbers[0], targets[0])
    if kernel is None:
        return None
    compiled = compile_kernel(kernel, step.device)
    values = {v.arg.name: k for v, k in zip(program.variables, step.variables, strict=True)}
    new_number = {n: n - (n > numbers[0]) for n in cells if n != numbers[0]}
    cell_of = {new: cells[old] for old, new in new_number.items()}
    written = tuple([cell_of[n] for n in range(item.outputs)])
    slots = tuple([slot for n, slot in enumerate(item.slots) if n != numbers[0]])
    return step._replace(
        call=compiled.call,
        slots=tuple([cell_of[n] for n in compiled.slots]),
        variables=tuple([values[name] for name in compiled.variables]),
        written=written,
        name=compiled.program.name,
        item=item._replace(kernel=kernel, slots=slots),
        program=compiled.program,
    )


def _joined(kernel: UOp, number: int, target: int) -> UOp | None:
    """A kernel with two of its buffers one; None if it reads another element than it writes."""
    if is_by_hand(kernel):
        return None
    params = {n.arg.slot: n for n in kernel.postorder() if n.op is Ops.PARAM}
    if params[number].shape != params[target].shape:
        return None
    changes = {params[number]: params[target]}
    for n, param in params.items():
        if n > number:
            changes[param] = param.replace(arg=param.arg._replace(slot=n - 1))
    joined = kernel.substitute(changes, walk=True)
    try:
        check_kernel(joined)
    except SpecError:
        return None
    return joined
