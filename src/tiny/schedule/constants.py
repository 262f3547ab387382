"""Float constants that change from one graph to the next, and nothing else does.

A constant is compiled in the first time. When a graph comes again equal but for some of them,
those become variables of its kernels, so that a third value costs a look-up: a decaying learning
rate, a temperature, the step of a schedule.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp, VarArg

# What rules know by heart, so that a kernel may be another one with them.
SPECIAL = frozenset((0.0, 1.0, -1.0, 2.0, 0.5))
# Of these the ABI takes variables.
_DTYPES = (dtypes.float32, dtypes.float64)


def float_constants(sink: UOp) -> list[UOp]:
    """The constants of a graph that may become variables, in the order of its nodes."""
    return [
        n
        for n in sink.postorder()
        if n.op is Ops.CONST
        and n.dtype in _DTYPES
        and math.isfinite(n.arg)
        and n.arg not in SPECIAL
    ]


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
