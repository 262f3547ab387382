"""Captured steps as plain data: what an exported step is made of.

Nothing here holds memory. A StoredCall is one capture: cells, the kernels over them with the Opts
that they were compiled with, and how arguments and results are built up.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from tiny.codegen import Opt
from tiny.dtype import DType
from tiny.engine.signature import is_dataclass
from tiny.schedule import Slot
from tiny.uop.ops import Ops, UOp
from tiny.uop.written import written_slots

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
    "StoredStep",
    "StoredValue",
    "TensorLeaf",
    "children",
    "each_leaf",
    "map_stored",
    "over",
    "written_cells",
]


class ExportError(ValueError):
    """A step can not be stored, or what was stored can not be run here. The message says why."""


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


StoredStep = StoredKernel | StoredCopy

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
    steps: tuple[StoredStep, ...]
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


def written_cells(call: StoredCall) -> set[int]:
    """The cells that the steps of a call write."""
    found = set()
    for step in call.steps:
        if isinstance(step, StoredCopy):
            found.add(step.to)
        else:
            cells = dict(step.cells)
            found |= {cells[slot] for slot in written_slots(step.kernel)}
    return found


def over(moves: Moves, node: UOp) -> UOp:
    """A view: movement over a node."""
    for op, dtype, arg in moves:
        node = UOp(op, dtype, (node,), arg)
    return node
