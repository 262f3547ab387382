"""Functions of floats by name on NumPy arrays, in the widest float: what all devices come close to.

`erf` and `erfc` are the C library's, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


#: in the float type of what they are given
PLAIN: dict[str, Callable[..., Any]] = {
    "exp2": np.exp2,
    "log2": np.log2,
    "sin": np.sin,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "log10": np.log10,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
    "sigmoid": sigmoid,
    "pow": np.power,
    "fmod": np.fmod,
    "mod": np.remainder,
    "floordiv": np.floor_divide,
    "round": np.rint,
    "abs": np.abs,
    "copysign": np.copysign,
}


def rounded(function: Callable[..., Any]) -> Callable[..., Array]:
    """The function computed wider than its operands, and rounded to their type."""

    def compute(*operands: Array) -> Array:
        with np.errstate(all="ignore"):
            wide = function(*[np.asarray(x).astype(np.longdouble) for x in operands])
            return np.asarray(wide).astype(np.asarray(operands[0]).dtype)

    return compute


FUNCTIONS = {name: rounded(function) for name, function in PLAIN.items()}
