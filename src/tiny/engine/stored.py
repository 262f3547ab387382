"""Captured steps as plain data: what an exported step is made of, and what is checked of it.

Nothing here holds memory. A StoredCall is one capture: cells, the kernels over them with the Opts
that they were compiled with, and how arguments and results are built up. `check_call` refuses
whatever could reach outside of the memory of its cells; `linked` compiles it for this machine.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tiny.codegen import KernelOptError, Opt
from tiny.device import Compiled, Device
from tiny.dtype import DType, dtypes
from tiny.engine.capture import Plan
from tiny.engine.realize import Step, check_dtype, compile_kernel, copy_program
from tiny.engine.signature import is_dataclass
from tiny.helpers import Context
from tiny.schedule import ScheduleItem, Slot
from tiny.uop.bounds import AccessError, check_accesses
from tiny.uop.ops import KernelInfo, Ops, UOp
from tiny.uop.spec import SpecError, spec_tensor, verify
from tiny.uop.structure import check_kernel
from tiny.uop.target import Target

__all__ = [
    "Argument",
    "Content",
    "ExportError",
    "NumberLeaf",
    "PlainLeaf",
    "ResultLeaf",
    "StoredCall",
    "StoredCopy",
    "StoredKernel",
    "StoredOutput",
    "StoredResult",
    "StoredValue",
    "TensorLeaf",
    "check_call",
    "check_content",
    "children",
    "each_leaf",
    "linked",
    "map_stored",
    "over",
    "result_views",
    "stored_steps",
    "target_record",
    "written_cells",
]

ROLES = ("param", "fresh", "bound", "temp")


class ExportError(ValueError):
    """A step can not be stored, or what was stored can not be run here. The message says why."""


# ---------------------------------------------------------------- what it is made of


class TensorLeaf(NamedTuple):
    """A tensor in an argument: the number of its parameter (None without elements)."""

    param: int | None
    shape: tuple[int, ...]
    dtype: DType
    device: str


class NumberLeaf(NamedTuple):
    """A number in an argument that is given anew in each call: its place among the numbers."""

    number: int
    name: str
    dtype: DType
    low: float
    high: float


class PlainLeaf(NamedTuple):
    """Any other value in an argument: a call has the same one, or leaves it out."""

    value: Any


class Argument(NamedTuple):
    """An argument by name: `given` is a structure of lists, tuples and dicts with the leaves
    above. A `positional` one may be given by its place."""

    name: str
    given: Any
    positional: bool


class StoredKernel(NamedTuple):
    """A kernel (level 2), the Opts that it had, and what it runs on: the cell of each PARAM by its
    slot, the number of the value of each variable by name."""

    kernel: UOp
    opts: tuple[Opt, ...]
    device: str
    cells: tuple[tuple[int, int], ...]
    values: tuple[tuple[str, int], ...]


class StoredCopy(NamedTuple):
    """A copy of one cell to another."""

    to: int
    source: int


# movement over memory, innermost first: what a view is
Moves = tuple[tuple[Ops, DType, Any], ...]


class StoredValue(NamedTuple):
    """A value that a call returns: movement over the n-th output, or over a constant."""

    output: int | None
    constant: float
    dtype: DType  # of what the movement is over
    moves: Moves
    device: str | None


class StoredResult(NamedTuple):
    """A tensor that a call returns: a view of one of its values, or of some state."""

    value: int | None
    state: int | None
    moves: Moves
    requires_grad: bool | None


class StoredOutput(NamedTuple):
    """Memory that a call returns: the next fresh cell, or that of a parameter which is spent."""

    shape: tuple[int, ...]
    dtype: DType
    param: int | None


class StoredCall(NamedTuple):
    """A captured call.

    `result` is a structure with a ResultLeaf for each of the `results`. `state` says of each bound
    cell which state it is. `numbers` are the names of the values that a call gives, `draws` the
    random keys that it takes (device, words), then come `constants`: this is the order in which
    values are numbered. `outputs` is the memory of what is returned, which `values` are views of;
    the parameters in `spent` are used up.
    """

    arguments: tuple[Argument, ...]
    result: Any
    results: tuple[StoredResult, ...]
    values: tuple[StoredValue, ...]
    cells: tuple[Slot, ...]
    steps: tuple[StoredKernel | StoredCopy, ...]
    numbers: tuple[str, ...]
    draws: tuple[tuple[str, int], ...]
    constants: tuple[float, ...]
    state: tuple[int, ...]
    outputs: tuple[StoredOutput, ...]
    spent: tuple[int, ...]

    def leaves(self) -> list[tuple[str, TensorLeaf | NumberLeaf]]:
        """What a call is given, by name: `x`, `batch.0`, `batch.label`."""
        found: list[tuple[str, TensorLeaf | NumberLeaf]] = []

        def note(leaf: Any, path: str) -> None:
            if isinstance(leaf, TensorLeaf | NumberLeaf):
                found.append((path, leaf))

        for argument in self.arguments:
            each_leaf(argument.given, argument.name, note)
        return found


class ResultLeaf(NamedTuple):
    """The place of a tensor in what is returned."""

    result: int


class Content(NamedTuple):
    """An exported step as data, without the contents of its `state`, which are `slots` by `names`.

    `targets` are the records of the devices that it was compiled for. `strict`: sums are added up
    in order.
    """

    name: str
    strict: bool
    targets: dict[str, list[Any]]
    names: tuple[str, ...]
    slots: tuple[Slot, ...]
    calls: tuple[StoredCall, ...]


LEAVES = (TensorLeaf, NumberLeaf, PlainLeaf, ResultLeaf)


def children(x: Any) -> list[tuple[Any, Any]] | None:
    """What a list, tuple, dict or dataclass holds, by name or place; None of anything else."""
    if isinstance(x, dict):
        return list(x.items())
    if isinstance(x, list | tuple):
        return list(zip(getattr(x, "_fields", range(len(x))), x, strict=True))
    if is_dataclass(x):
        return [(f.name, getattr(x, f.name)) for f in dataclasses.fields(x)]
    return None


def map_stored(
    x: Any, change: Callable[[Any], Any], leaves: tuple[type, ...] | type = LEAVES
) -> Any:
    """A structure with its leaves changed: objects of the classes `leaves`, and what holds none."""
    items = None if isinstance(x, leaves) else children(x)
    if items is None:
        return change(x)
    new = {key: map_stored(item, change, leaves) for key, item in items}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(**new)
    if isinstance(x, list | tuple):
        return type(x)(new.values())
    made = copy.copy(x)
    for key, item in new.items():
        if isinstance(x, dict):
            made[key] = item
        else:
            object.__setattr__(made, key, item)
    return made


def each_leaf(
    x: Any,
    path: str,
    visit: Callable[[Any, str], None],
    leaves: tuple[type, ...] | type = LEAVES,
) -> None:
    """Call `visit(leaf, path)` for each leaf of a structure: `x`, `batch.0`, `batch.label`."""
    items = None if isinstance(x, leaves) else children(x)
    if items is None:
        visit(x, path)
        return
    for key, item in items:
        each_leaf(item, f"{path}.{key}" if path else str(key), visit, leaves)


def target_record(target: Target) -> list[Any]:
    """What of a target decides which Opts suit it. The number of threads is not among it."""
    return [
        target.arch,
        sorted(target.features),
        target.vector_bytes,
        target.l1_bytes,
        target.l2_bytes,
        target.has_local,
        target.local_bytes,
        target.max_buffers,
        sorted(op.name for op in target.native_ops),
    ]


def stored_steps(plan: Plan) -> tuple[StoredKernel | StoredCopy, ...]:
    """The steps of a plan as data."""
    steps: list[StoredKernel | StoredCopy] = []
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


def written_cells(call: StoredCall) -> set[int]:
    """The cells that the steps of a call write."""
    found = set()
    for step in call.steps:
        if isinstance(step, StoredCopy):
            found.add(step.to)
        else:
            cells = dict(step.cells)
            found |= {cells[store.src[0].src[0].arg.slot] for store in step.kernel.src}
    return found


def over(moves: Moves, node: UOp) -> UOp:
    """A view: movement over a node."""
    for op, dtype, arg in moves:
        node = UOp(op, dtype, (node,), arg)
    return node


# ---------------------------------------------------------------- checks


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
        try:
            check_kernel(step.kernel)
        except SpecError as error:
            raise ExportError(str(error)) from error
        written = [s.src[0].src[0].arg.slot for s in step.kernel.src]
        cells = dict(step.cells)
        _refuse(len(cells) == len(step.cells), f"kernel {name} has two buffers of one number")
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
        stored = {node.src[0] for node in step.kernel.src}
        for node in order:
            if node.op is Ops.INDEX and node.src[0].op is Ops.PARAM and node not in stored:
                slot = node.src[0].arg.slot
                if slot in cells:
                    self._read(cells[slot], f"kernel {name}")
        changed = {cells[slot] for slot in written}
        try:
            check_accesses(step.kernel, {slot for slot, k in cells.items() if k in changed})
        except AccessError as error:
            raise ExportError(str(error)) from None
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


# ---------------------------------------------------------------- making it ready to run


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
    except (TypeError, ValueError) as error:  # of a dtype that is not there, of an empty loop
        raise ExportError(f"kernel {info.name} can not be compiled here: {error}") from error
    except KernelOptError as error:
        raise ExportError(f"kernel {info.name} has Opts that are not legal: {error}") from error
    cells, values, program = dict(step.cells), dict(step.values), compiled.program
    for slot in compiled.slots:
        _refuse(slot in cells, f"kernel {info.name} has no memory for PARAM {slot}")
    for name in compiled.variables:
        _refuse(name in values, f"kernel {info.name} has no value for {name}")
    written = [s.src[0].src[0].arg.slot for s in step.kernel.src]
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
