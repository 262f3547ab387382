"""The functions of floats that MATH names: how many operands each has, and its gradient.

What they are made of stands in `codegen/lower/functions.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tiny._core.ops import Ops
from tiny.uop.ops import UOp

__all__ = ["ARITY", "UNBOUNDED", "function", "function_gradient"]


def function(name: str, *operands: UOp) -> UOp:
    """The function of that name; all operands have one float dtype."""
    return UOp(Ops.MATH, operands[0].dtype, operands, name)


def _pow(g: UOp, y: UOp, a: UOp, b: UOp) -> tuple[UOp, UOp]:
    """By selection where a factor may be infinite and the product is none: a**0, and 0**b."""
    slope = g * (b * function("pow", a, b - 1))
    other = g * (y * function("log", a))
    return (
        b.ne(0).where(slope, g.const_like(0)),
        (a.eq(0) & (b >= 0)).where(g.const_like(0), other),
    )


def _abs(g: UOp, y: UOp, x: UOp) -> UOp:
    """0 at 0."""
    zero = g.const_like(0)
    return (x > 0).where(g, (x < 0).where(-g, zero))


def _copysign(g: UOp, y: UOp, a: UOp, b: UOp) -> tuple[UOp | None, ...]:
    same = (y < 0).eq(a < 0)
    return a.eq(0).where(g.const_like(0), same.where(g, -g)), None


# name -> from the gradient of the result, the result and the operands: that of each operand
_GRADIENTS: dict[str, Callable[..., Any]] = {
    "exp": lambda g, y, x: g * y,
    "expm1": lambda g, y, x: g * (y + 1),
    "log": lambda g, y, x: g / x,
    "log1p": lambda g, y, x: g / (x + 1),
    "log10": lambda g, y, x: g / (x * math.log(10)),
    "cos": lambda g, y, x: -(g * x.alu(Ops.SIN)),
    "tan": lambda g, y, x: g * (y * y + 1),
    "asin": lambda g, y, x: g / ((1 - x) * (1 + x)).alu(Ops.SQRT),
    "acos": lambda g, y, x: -(g / ((1 - x) * (1 + x)).alu(Ops.SQRT)),
    "atan": lambda g, y, x: g / (x * x + 1),
    "sinh": lambda g, y, x: g * function("cosh", x),
    "cosh": lambda g, y, x: g * function("sinh", x),
    "tanh": lambda g, y, x: g * (1 - y * y),
    "asinh": lambda g, y, x: g / (x * x + 1).alu(Ops.SQRT),
    "acosh": lambda g, y, x: g / ((x - 1).alu(Ops.SQRT) * (x + 1).alu(Ops.SQRT)),
    "atanh": lambda g, y, x: g / ((1 - x) * (1 + x)),
    "erf": lambda g, y, x: g * (function("exp", -(x * x)) * (2 / math.sqrt(math.pi))),
    "erfc": lambda g, y, x: g * (function("exp", -(x * x)) * (-2 / math.sqrt(math.pi))),
    "sigmoid": lambda g, y, x: g * (y * (1 - y)),
    "pow": _pow,
    "fmod": lambda g, y, a, b: (g, -(g * (a / b).alu(Ops.TRUNC))),
    "mod": lambda g, y, a, b: (g, -(g * function("floordiv", a, b))),
    "floordiv": lambda g, y, a, b: (None, None),
    "round": lambda g, y, x: (None,),
    "abs": _abs,
    "copysign": _copysign,
}

#: the names, and how many operands each has
ARITY: dict[str, int] = {
    name: 2 if name in ("pow", "fmod", "mod", "floordiv", "copysign") else 1 for name in _GRADIENTS
}

#: Functions whose slope may be infinite or NaN where their operand is not: nothing times it is
#: nothing only by selection.
UNBOUNDED = frozenset(
    {
        "exp",
        "expm1",
        "log",
        "log1p",
        "log10",
        "tan",
        "asin",
        "acos",
        "sinh",
        "cosh",
        "acosh",
        "atanh",
        "pow",
        "fmod",
        "mod",
    }
)


def function_gradient(node: UOp, gradient: UOp) -> tuple[UOp | None, ...]:
    """The gradient of each operand of a MATH, from that of its value.

    At a pole or an end of the domain it is what the formula gives: infinite or NaN.
    """
    found = _GRADIENTS[node.arg](gradient, node, *node.src)
    return found if isinstance(found, tuple) else (found,)
