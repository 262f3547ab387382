"""What is checked of exported steps before they are compiled: nothing in a file is trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tiny.device import Device
from tiny.dtype import dtypes
from tiny.engine.realize import check_dtype
from tiny.engine.stored import (
    Content,
    ExportError,
    Moves,
    NumberLeaf,
    ResultLeaf,
    StoredCall,
    StoredCopy,
    StoredKernel,
    each_leaf,
    over,
)
from tiny.schedule import Slot
from tiny.uop.bounds import AccessError, check_accesses
from tiny.uop.ops import Ops, UOp
from tiny.uop.spec import spec_tensor, verify
from tiny.uop.structure import check_kernel
from tiny.uop.written import reads_of, written_slots

__all__ = ["check_call", "check_content", "result_views"]

ROLES = ("param", "fresh", "bound", "temp")


def check_call(call: StoredCall, state: Sequence[Slot]) -> None:
    """ExportError if running the call could touch memory that is not its own.

    Each kernel must be one by its spec, each access proved to be inside of its memory, buffers
    must be as large as kernels take them for, what is read must have been written, and variables
    must have values within the bounds that they declare. `state` are the dtype, shape and device
    of the bound memory.
    """
    _check_cells(call, state)
    _Steps(call).check()
    _check_outputs(call)
    _check_results(call, state)


def check_content(content: Content) -> None:
    """ExportError if what was read is for devices that are not here, or could reach outside of
    its memory: see `check_call`."""
    if not content.calls:
        raise ExportError("it holds no captures")
    devices = {c.device for call in content.calls for c in call.cells}
    devices |= {s.device for s in content.slots}
    for name in sorted(devices):
        try:
            if Device.canonicalize(name) != name:
                raise ExportError(f"it has a device called {name!r}")
            Device[name]
        except ExportError:
            raise
        except (ValueError, ImportError, OSError, RuntimeError) as error:
            raise ExportError(f"it is for the device {name}, not usable here: {error}") from error
    for call in content.calls:
        check_call(call, content.slots)


def _refuse(holds: bool, why: str) -> None:
    if not holds:
        raise ExportError(why)


def _check_cells(call: StoredCall, state: Sequence[Slot]) -> None:
    roles = [cell.role for cell in call.cells]
    _refuse(roles == sorted(roles, key=ROLES.index), "its memory is not in order")
    for cell in call.cells:
        try:
            check_dtype(cell.dtype, Device[cell.device])
        except TypeError as error:
            raise ExportError(str(error)) from None
    bound = [cell for cell in call.cells if cell.role == "bound"]
    _refuse(len(bound) == len(call.state), "not all of its memory is stored")
    for cell, k in zip(bound, call.state, strict=True):
        _refuse(0 <= k < len(state), "some of its memory is not stored")
        _refuse(
            (cell.dtype, cell.shape, cell.device)
            == (state[k].dtype, state[k].shape, state[k].device),
            f"what is stored is {state[k].shape} {state[k].dtype} on {state[k].device}, and it is "
            f"used as {cell.shape} {cell.dtype} on {cell.device}",
        )
    params = [cell for cell in call.cells if cell.role == "param"]
    given: set[int] = set()
    for name, leaf in call.leaves():
        if isinstance(leaf, NumberLeaf):
            _refuse(0 <= leaf.number < len(call.numbers), f"the number {name} has no place")
        elif leaf.param is None:
            _refuse(0 in leaf.shape, f"{name} has elements and no place")
        else:
            _refuse(0 <= leaf.param < len(params), f"{name} has no place")
            cell = params[leaf.param]
            given.add(leaf.param)
            _refuse(
                math.prod(cell.shape) == math.prod(leaf.shape)
                and (cell.dtype, cell.device) == (leaf.dtype, leaf.device),
                f"{name} is not what the step is given",
            )
    _refuse(len(given) == len(params), "an argument is missing")


class _Steps:
    """The check of the steps of a call, in order."""

    def __init__(self, call: StoredCall) -> None:
        self.call = call
        self.first_draw = len(call.numbers)
        self.first_constant = self.first_draw + len(call.draws)
        self.filled = {k for k, cell in enumerate(call.cells) if cell.role in ("param", "bound")}

    def check(self) -> None:
        for device, words in self.call.draws:
            _refuse(device in {c.device for c in self.call.cells}, f"it draws on {device}")
            _refuse(0 <= words < 2**64, "it draws no number of random words")
        for step in self.call.steps:
            if isinstance(step, StoredCopy):
                self._copy(step)
            else:
                self._kernel(step)
        _refuse(
            all(k in self.filled for k, c in enumerate(self.call.cells) if c.role == "fresh"),
            "it returns what it does not compute",
        )

    def _cell(self, k: int) -> Slot:
        _refuse(0 <= k < len(self.call.cells), "a step uses memory that is not there")
        return self.call.cells[k]

    def _read(self, k: int, what: str) -> None:
        _refuse(k in self.filled, f"{what} reads memory that nothing was written to")

    def _copy(self, step: StoredCopy) -> None:
        to, source = self._cell(step.to), self._cell(step.source)
        _refuse(to.nbytes == source.nbytes, "a copy is of another size than where it goes")
        self._read(step.source, "a copy")
        self.filled.add(step.to)

    def _kernel(self, step: StoredKernel) -> None:
        name = step.kernel.arg.name
        _refuse(
            any(cell.device == step.device for cell in self.call.cells),
            f"kernel {name} is for {step.device}, where it has no memory",
        )
        try:
            check_kernel(step.kernel)
        except Exception as error:  # a SpecError, or whatever a graph from outside makes of it
            raise ExportError(f"kernel {name} is none: {error}") from error
        written = written_slots(step.kernel)
        cells = dict(step.cells)
        _refuse(len(cells) == len(step.cells), f"kernel {name} has two buffers of one number")
        most = Device[step.device].target.max_buffers
        _refuse(len(cells) <= most, f"kernel {name} has {len(cells)} buffers, {most} are allowed")
        order = step.kernel.postorder()
        for node in order:
            if node.op is not Ops.PARAM or node.arg.slot not in cells:
                continue  # what is not accessed has no memory
            cell = self._cell(cells[node.arg.slot])
            _refuse(
                math.prod(node.shape) == math.prod(cell.shape)
                and node.dtype is cell.dtype
                and cell.device == step.device,
                f"kernel {name}, on {step.device}, takes PARAM {node.arg.slot} for {node.shape} "
                f"{node.dtype}, and it is {cell.shape} {cell.dtype} on {cell.device}",
            )
        _refuse(all(slot in cells for slot in written), f"kernel {name} writes to no memory")
        for slot in sorted({node.src[0].arg.slot for node in reads_of(step.kernel)}):
            if slot in cells:
                self._read(cells[slot], f"kernel {name}")
        changed = {cells[slot] for slot in written}
        try:
            check_accesses(step.kernel, {slot for slot, k in cells.items() if k in changed})
        except AccessError as error:
            raise ExportError(str(error)) from None
        except (ArithmeticError, RecursionError) as error:
            raise ExportError(f"kernel {name} can not be proved: {error}") from error
        values = dict(step.values)
        for variable in step.kernel.variables():
            if variable.arg.name in values:
                self._value(variable, values[variable.arg.name], name)
        self.filled |= changed

    def _value(self, variable: UOp, number: int, kernel: str) -> None:
        """A variable has a value of its kind and within its bounds; of numbers, when called."""
        dtype, what = variable.dtype, f"kernel {kernel}, variable {variable.arg.name}:"
        low, high = variable.arg.vmin, variable.arg.vmax
        is_float = dtypes.is_float(dtype)
        if 0 <= number < self.first_draw:
            leaves = [n for _, n in self.call.leaves() if isinstance(n, NumberLeaf)]
            mine = [n for n in leaves if n.number == number]
            _refuse(bool(mine), f"{what} nothing gives it a value")
            _refuse(
                all(n.dtype is dtype and low <= n.low and n.high <= high for n in mine),
                f"{what} it may be given a value that is not from {low} to {high}",
            )
        elif self.first_draw <= number < self.first_constant:
            _refuse(
                dtype is dtypes.uint64 and low <= 0 and high >= 2**64 - 1,
                f"{what} it can not be any random key",
            )
        else:
            k = number - self.first_constant
            _refuse(0 <= k < len(self.call.constants), f"{what} it has no value")
            value = self.call.constants[k]
            _refuse(isinstance(value, float) == is_float, f"{what} {value!r} is not of {dtype}")
            _refuse(is_float or low <= value <= high, f"{what} {value} is not from {low} to {high}")


def _check_outputs(call: StoredCall) -> None:
    """What is returned is the fresh memory, in order, and memory that was given up."""
    params = [cell for cell in call.cells if cell.role == "param"]
    fresh = iter([cell for cell in call.cells if cell.role == "fresh"])
    spent = set(call.spent)
    _refuse(spent <= set(range(len(params))), "it uses up what it is not given")
    placed: list[int] = []
    for output in call.outputs:
        if output.param is None:
            cell = next(fresh, None)
        else:
            _refuse(output.param in spent, "it returns what it is given")
            placed.append(output.param)
            cell = params[output.param]
        _refuse(
            cell is not None
            and math.prod(cell.shape) == math.prod(output.shape)
            and cell.dtype is output.dtype,
            "it returns memory of another size",
        )
    _refuse(next(fresh, None) is None and len(set(placed)) == len(placed), "memory is left over")


def result_views(call: StoredCall, state: Sequence[Slot]) -> list[UOp]:
    """What each result is a view of, over stand-ins for memory: its shape and dtype.

    ExportError if one is a view of what is not there.
    """
    values: list[UOp] = []
    for value in call.values:
        base = UOp.const(0, value.dtype)
        if value.output is not None:
            _refuse(0 <= value.output < len(call.outputs), "it returns what it does not compute")
            output = call.outputs[value.output]
            _refuse(output.dtype is value.dtype, "a result is of another dtype")
            base = UOp.placeholder(output.shape, output.dtype, 0)
        values.append(_view(value.moves, base))
    views: list[UOp] = []
    for result in call.results:
        if result.state is not None:
            _refuse(0 <= result.state < len(state), "it returns state that is not stored")
            base = UOp.placeholder(state[result.state].shape, state[result.state].dtype, 0)
        else:
            k = -1 if result.value is None else result.value
            _refuse(0 <= k < len(values), "it returns what it does not compute")
            base = values[k]
        views.append(_view(result.moves, base))
    return views


def _check_results(call: StoredCall, state: Sequence[Slot]) -> None:
    """What is returned are views of memory that is there."""
    result_views(call, state)
    leaves: list[int] = []
    each_leaf(call.result, "", lambda x, _: leaves.append(x.result) if _is_result(x) else None)
    _refuse(sorted(leaves) == list(range(len(call.results))), "its results have no place")


def _is_result(leaf: Any) -> bool:
    return isinstance(leaf, ResultLeaf)


def _view(moves: Moves, base: UOp) -> UOp:
    try:
        view = over(moves, base)
        verify(view, spec_tensor, "a result")
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise ExportError(f"a result is no view of what is computed: {error}") from error
    return view
