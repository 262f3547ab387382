"""The passes between a tiled kernel and a linear program, in their order."""

from __future__ import annotations

from tiny.codegen.lower.decompose import decompose
from tiny.codegen.lower.expand import expand
from tiny.codegen.lower.indices import flatten_indices, lower_index_division
from tiny.codegen.lower.tiled import TiledKernel
from tiny.codegen.program import Phase
from tiny.dtype import dtypes
from tiny.uop.target import Target

__all__ = ["linearize"]


def linearize(kernel: TiledKernel, target: Target) -> tuple[Phase, ...]:
    """The operations of a kernel phase by phase, all of them ones that the target has."""
    sink = flatten_indices(kernel.sink)
    sink = decompose(sink, target)
    sink = lower_index_division(sink)
    return expand(kernel, sink, has_double=dtypes.float64 in target.dtypes)
