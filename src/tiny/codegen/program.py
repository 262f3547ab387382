"""What code generation hands to a renderer: a linear program and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tiny.dtype import DType
from tiny.uop.ops import GroupOp, UOp

__all__ = ["LinearProgram", "PackedProgram", "Packing", "Phase", "ProgramParam", "is_arithmetic"]


@dataclass(frozen=True)
class ProgramParam:
    """One buffer of a program: its slot, element type, shape, and how it is used."""

    slot: int
    dtype: DType
    shape: tuple[int, ...]
    read: bool
    written: bool


@dataclass(frozen=True)
class Phase:
    """A part of a program that runs when all of the part before it has run.

    Its outermost loop is of kind THREAD if `count` may be more than 1: those are `count` steps,
    which threads may share among them in any order.
    """

    uops: tuple[UOp, ...]
    count: int = 1


@dataclass(frozen=True)
class LinearProgram:
    """A kernel as lists of operations in execution order, one for each of its phases.

    `params` are sorted by slot, `variables` (DEFINE_VAR nodes) by name. `flops` counts the
    arithmetic of the kernel before it was decomposed, `nbytes` the memory of its buffers; sizes
    known only at run time count with their upper bounds. `applied_opts` is the list of Opts that
    makes the same program again. DEFINE_LOCAL nodes are pieces of `scratch_nbytes` that each
    thread has of its own, or of `shared_nbytes` that all have in common; what is in them is lost
    when the program ends.
    """

    name: str
    phases: tuple[Phase, ...]
    params: tuple[ProgramParam, ...]
    variables: tuple[UOp, ...]
    applied_opts: tuple[Any, ...] = ()
    flops: int = 0
    nbytes: int = 0
    scratch_nbytes: int = 0
    shared_nbytes: int = 0

    @property
    def uops(self) -> tuple[UOp, ...]:
        """The operations of all phases."""
        return tuple(u for phase in self.phases for u in phase.uops)


class Packing(NamedTuple):
    """A program that packs the contents of one buffer into another.

    Its params are slot `source` of the kernel that reads them, and what it fills: slot `slot`, with
    `size` elements.
    """

    program: LinearProgram
    source: int
    slot: int
    size: int
    dtype: DType


class PackedProgram(NamedTuple):
    """A kernel some of whose operands are packed before it runs, by `packings`.

    Slots that no packing fills are those of the kernel.
    """

    program: LinearProgram
    packings: tuple[Packing, ...]


def is_arithmetic(node: UOp) -> bool:
    """Whether `flops` counts an operation: arithmetic on data, and comparisons of it."""
    dtype = node.src[0].dtype if node.op in GroupOp.Comparison else node.dtype
    return node.op in GroupOp.ALU and dtype.kind in "iuf8"
