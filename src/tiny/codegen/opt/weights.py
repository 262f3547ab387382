"""How much work an operation is."""

from __future__ import annotations

from tiny.uop.ops import Ops, UOp

__all__ = ["weight_of"]

# Instructions an operation is made of. Of functions without a weight: so many.
OTHER_FUNCTIONS = 60
WEIGHTS = {
    Ops.EXP2: 20,
    Ops.LOG2: 24,
    Ops.SIN: 60,
    Ops.THREEFRY: 100,
    Ops.FDIV: 5,
    Ops.RECIPROCAL: 5,
    Ops.SQRT: 6,
    Ops.FLOORDIV: 20,
    Ops.FLOORMOD: 20,
    Ops.CDIV: 20,
    Ops.CMOD: 20,
}
FUNCTION_WEIGHTS = {
    "abs": 1,
    "round": 6,
    "copysign": 3,
    "exp": 21,
    "log": 25,
    "sigmoid": 30,
    "tanh": 30,
    "expm1": 22,
    "log1p": 32,
}


def weight_of(node: UOp) -> int:
    """How many instructions an operation is made of."""
    if node.op is Ops.MATH:
        return FUNCTION_WEIGHTS.get(node.arg, OTHER_FUNCTIONS)
    return WEIGHTS.get(node.op, 1)
