"""The functions of MATH by name, and EXP2, LOG2 and SIN, as plain operations."""

from __future__ import annotations

from collections.abc import Callable

from tiny.codegen.lower.floats import absolute
from tiny.codegen.lower.special import (
    copysign,
    erf,
    erfc,
    floor_divide,
    floor_modulo,
    fmod,
    power,
    round_,
)
from tiny.codegen.lower.transcendental import (
    acosh,
    asinh,
    atanh,
    cosh,
    exp,
    exp2,
    expm1,
    log,
    log1p,
    log2,
    log10,
    sigmoid,
    sinh,
    tanh,
)
from tiny.codegen.lower.trigonometry import acos, asin, atan, cos, sin, tan
from tiny.uop.ops import UOp

__all__ = ["IN_FLOAT32", "LOWERED", "PERIODIC"]

#: name -> what it is made of; the operands are float32 or float64, and so is the result
LOWERED: dict[str, Callable[..., UOp]] = {
    "exp2": exp2,
    "log2": log2,
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "log10": log10,
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
    "erf": erf,
    "erfc": erfc,
    "sigmoid": sigmoid,
    "pow": power,
    "fmod": fmod,
    "mod": floor_modulo,
    "floordiv": floor_divide,
    "round": round_,
    "abs": absolute,
    "copysign": copysign,
}
#: those with a shorter way where the size of the operand has a known bound
PERIODIC: dict[str, Callable[[UOp, float], UOp]] = {"sin": sin, "cos": cos, "tan": tan}
#: those of a float32 that need no float64
IN_FLOAT32 = frozenset(
    {"exp2", "log2", "exp", "expm1", "log", "log1p", "tanh", "sigmoid", "round", "abs", "copysign"}
)
