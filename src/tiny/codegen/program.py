"""What code generation hands to a renderer: a linear program and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tiny.dtype import DType
from tiny.uop.ops import UOp

__all__ = ["LinearProgram", "ProgramParam"]


@dataclass(frozen=True)
class ProgramParam:
    """One buffer of a program: its slot, element type, shape, and how it is used."""

    slot: int
    dtype: DType
    shape: tuple[int, ...]
    read: bool
    written: bool


@dataclass(frozen=True)
class LinearProgram:
    """A kernel as a list of operations in execution order.

    `params` are sorted by slot, `variables` (DEFINE_VAR nodes) by name. `flops` counts the
    arithmetic of the kernel before it was decomposed, `nbytes` the memory of its buffers; sizes
    known only at run time count with their upper bounds. `applied_opts` is the list of Opts that
    makes the same program again.
    """

    name: str
    uops: tuple[UOp, ...]
    params: tuple[ProgramParam, ...]
    variables: tuple[UOp, ...]
    applied_opts: tuple[Any, ...] = ()
    flops: int = 0
    nbytes: int = 0
