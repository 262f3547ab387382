"""Float constants that change from one graph to the next, and nothing else does.

A constant is compiled in the first time. When a graph comes again equal but for some of them,
those become variables of its kernels, so that a third value costs a look-up: a decaying learning
rate, a temperature, the step of a schedule.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from tiny.uop.ops import Ops, UOp, VarArg

# What rules know by heart, so that a kernel may be another one with them. All other finite ones of
# float32 and float64, of which the ABI takes variables, may become such: see open_key.
SPECIAL = frozenset((0.0, 1.0, -1.0, 2.0, 0.5))


def variable(number: int, constant: UOp) -> UOp:
    """What stands for the constant of that number: it may be anything."""
    arg = VarArg(f"~{number}", -math.inf, math.inf)
    return UOp(Ops.DEFINE_VAR, constant.dtype, (), arg)


def with_variables(sink: UOp, constants: Sequence[UOp], which: Collection[int]) -> UOp:
    """The graph with those of its constants, by their places in the list, made variables."""
    new = {constants[k]: variable(k, constants[k]) for k in which}
    for node in sink.postorder():
        if node not in new:
            src = tuple([new[s] for s in node.src])
            same = all(a is b for a, b in zip(src, node.src, strict=True))
            new[node] = node if same else UOp(node.op, node.dtype, src, node.arg)
    return new[sink]
