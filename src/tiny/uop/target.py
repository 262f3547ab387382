"""What passes know of the machine that a kernel is compiled for: plain data, and no code."""

from __future__ import annotations

from dataclasses import dataclass

from tiny._core.ops import Ops
from tiny._core.types import DType
from tiny.uop.units import MatrixUnit

__all__ = ["Target"]


@dataclass(frozen=True)
class Target:
    """A machine, as the scheduler and the code generator see it.

    `features` are instruction sets or extensions by the names that the compiler uses, only those
    that code may use. `dtypes` can be loaded, stored and converted; what is not in `native_ops`
    is made of other operations before rendering. `vector_bytes` is the width of a register,
    `threads` how many may run a kernel, `max_buffers` how many buffers a kernel may have,
    `llc_bytes` the size of the last cache, which all share.
    `has_local`: there are work-items that share `local_bytes` of memory. `units` multiply
    matrices, those first that are worth most.
    """

    device: str
    arch: str
    features: frozenset[str]
    vector_bytes: int
    dtypes: frozenset[DType]
    native_ops: frozenset[Ops]
    max_buffers: int
    threads: int = 1
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    llc_bytes: int = 16 << 20
    has_local: bool = False
    local_bytes: int = 0
    units: tuple[MatrixUnit, ...] = ()
