"""The passes between a tiled kernel and a linear program, in their order."""

from __future__ import annotations

from tiny._core.expand import expand
from tiny.codegen.lower.decompose import decompose
from tiny.codegen.lower.indices import flatten_indices, lower_index_division
from tiny.codegen.lower.masks import narrow_masks
from tiny.codegen.lower.skips import skip_masked_loops
from tiny.codegen.lower.sums import SumRules
from tiny.codegen.lower.tiled import TiledKernel
from tiny.codegen.program import Phase
from tiny.dtype import dtypes
from tiny.uop.passes import compiler_pass
from tiny.uop.target import Target

__all__ = ["linearize"]

_expand = compiler_pass("expand", "tiled kernel", "phases: operations in order")(expand)


def linearize(kernel: TiledKernel, target: Target) -> tuple[Phase, ...]:
    """The operations of a kernel phase by phase, all of them ones that the target has."""
    # conditions of loops go along, so that they stay the nodes that they are in the kernel
    sink = kernel.sink.replace(src=(*kernel.sink.src, *kernel.conditions))
    sink = narrow_masks(kernel, skip_masked_loops(kernel, flatten_indices(sink)))
    sink = decompose(sink, target)
    sink = lower_index_division(sink)
    stores = len(kernel.sink.src)
    conditions, sink = sink.src[stores:], sink.replace(src=sink.src[:stores])
    rules = SumRules(kernel.strict, dtypes.float64 in target.dtypes)
    phases = _expand(kernel, sink, rules, conditions)
    return tuple(Phase(uops, count) for uops, count in phases)
