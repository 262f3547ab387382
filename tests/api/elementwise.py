"""Elementwise functions and activations beside PyTorch's and NumPy's: values, gradients, kinks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from api.case import Case, array, bools, integers, torch, values

INF, NAN = math.inf, math.nan
WIDE = ("float32", "float64")
FLOATS = (*WIDE, "float16", "bfloat16")
INTEGERS = ("int32", "int8", "uint8", "int64")
# the end of what is regular: both zeros, infinities, NaN
EDGES = values([0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 0.5, -2.5, 1e-3, 30.0, -30.0])

CASES: list[Case] = []


# ---------------------------------------------------------------- functions of one operand

# name -> PyTorch's, where it is drawn from, its own name there
_FUNCTIONS: dict[str, tuple[float, float]] = {
    "abs": (-2, 2),
    "acos": (-0.95, 0.95),
    "acosh": (1.1, 5),
    "asin": (-0.95, 0.95),
    "asinh": (-4, 4),
    "atan": (-4, 4),
    "atanh": (-0.9, 0.9),
    "cos": (-9, 9),
    "cosh": (-4, 4),
    "erf": (-3, 3),
    "exp": (-4, 4),
    "exp2": (-4, 4),
    "log": (0.1, 9),
    "log10": (0.1, 9),
    "log2": (0.1, 9),
    "neg": (-2, 2),
    "reciprocal": (0.3, 4),
    "rsqrt": (0.3, 4),
    "sigmoid": (-5, 5),
    "sin": (-9, 9),
    "sinh": (-4, 4),
    "sqrt": (0.3, 4),
    "square": (-3, 3),
    "tan": (-1.2, 1.2),
    "tanh": (-3, 3),
}


def _theirs(name: str) -> Callable[..., Any]:
    return lambda x, *more: getattr(torch, name)(x, *more)


def _ours(name: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    return lambda x, *more: getattr(x, name)(*more, *args, **kwargs)


for _name, (_low, _high) in _FUNCTIONS.items():
    _call, _peer = _ours(_name), _theirs(_name)
    # the slope at a pole or an end of the domain is infinite or NaN, and so is PyTorch's
    _at_edges = None if _name not in ("acosh", "rsqrt", "square") else False
    CASES += [
        Case(_name, _call, _peer, [array(2, 1, 7, low=_low, high=_high)], FLOATS),
        Case(_name, _call, _peer, [array(0, 3, low=_low, high=_high)], ("float32",)),
        Case(_name, _call, _peer, [array(low=_low, high=_high)], ("float32",), label="scalar"),
        Case(_name, _call, _peer, [EDGES], WIDE, grad=_at_edges, label="edges"),
    ]
    if _name not in ("neg", "abs", "square", "rsqrt"):
        CASES.append(
            Case(
                _name,
                _call,
                lambda x, n=_name: getattr(torch, n)(x.float()),
                [values([1, 2, 5] if _name not in ("asin", "acos", "atanh") else [0, 1])],
                ("int32", "uint8"),
                label="integers",
            )
        )

CASES += [
    Case("abs", _ours("abs"), np.abs, [integers(11, low=-9, dtype="int32")], peer="numpy"),
    Case("abs", _ours("abs"), np.abs, [integers(11, dtype="uint8")], peer="numpy"),
    Case("neg", _ours("neg"), np.negative, [integers(7, dtype="uint8")], peer="numpy"),
    Case("neg", _ours("neg"), np.logical_not, [bools(7)], peer="numpy"),
    Case("square", _ours("square"), np.square, [integers(7, low=-9)], peer="numpy"),
    Case("rsqrt", _ours("rsqrt"), lambda x: 1 / np.sqrt(x), [values([1, 4, 9], "int32")],
         peer="numpy", grad=False),
    # where slopes are infinite at an end, as PyTorch's
    Case("sqrt", _ours("sqrt"), _theirs("sqrt"), [values([0.0, 4.0])], label="slope at 0"),
    Case("asin", _ours("asin"), _theirs("asin"), [values([1.0, -1.0])], label="slope at 1"),
    Case("atanh", _ours("atanh"), _theirs("atanh"), [values([1.0, -1.0])], label="slope at 1"),
    Case("log", _ours("log"), _theirs("log"), [values([0.0])], label="slope at 0"),
    # angles of any size, and exponentials to where they end
    Case("sin", _ours("sin"), np.sin, [values([1e4, 1e6, -3e7, 1e30, 355])], WIDE, peer="numpy",
         grad=False, label="large"),
    Case("cos", _ours("cos"), np.cos, [values([1e4, 1e6, -3e7, 1e30, 355])], WIDE, peer="numpy",
         grad=False, label="large"),
    Case("tan", _ours("tan"), np.tan, [values([1e4, 1e6, -3e7, 1e30, 355])], WIDE, peer="numpy",
         grad=False, label="large"),
    Case("exp", _ours("exp"), _theirs("exp"), [values([88.5, 89.0, -87.5, -104.0, -100.0])], WIDE,
         atol=0, label="ends"),
]  # fmt: skip


# ---------------------------------------------------------------- rounding and kinds of numbers

_HALVES = values(
    [0.5, 1.5, 2.5, -0.5, -1.5, 0.49, -0.51, 2.7, -2.7, 1e10, 0.0, -0.0, INF, -INF, NAN]
)
for _name, _peer in {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.round,
}.items():
    CASES += [
        Case(_name, _ours(_name), _peer, [_HALVES], FLOATS, peer="numpy", exact=True, grad=False),
        Case(_name, _ours(_name), _peer, [array(3, 1, 5, low=-9, high=9)], FLOATS, peer="numpy",
             exact=True, grad=False),
        Case(_name, _ours(_name), lambda x: x, [integers(7, low=-9)], peer="numpy"),
        Case(_name, _ours(_name), _peer, [array(0, 2)], ("float32",), peer="numpy", grad=False),
        Case(_name, _ours(_name), lambda x, n=_name: getattr(torch, n)(x),
             [values([0.3, -1.7, 2.2])], WIDE, label="flat"),
    ]  # fmt: skip
CASES += [
    Case("sign", _ours("sign"), np.sign, [array(3, 5)], FLOATS, peer="numpy"),
    Case("sign", _ours("sign"), np.sign, [EDGES], FLOATS, peer="numpy", grad=False),
    Case("sign", _ours("sign"), np.sign, [integers(9, low=-4, high=4)], peer="numpy"),
    Case("sign", _ours("sign"), np.sign, [integers(9, dtype="uint8")], peer="numpy"),
    Case("sign", _ours("sign"), lambda x: x, [bools(5)], peer="numpy"),
    Case("isnan", _ours("isnan"), np.isnan, [EDGES], FLOATS, peer="numpy"),
    Case("isnan", _ours("isnan"), np.isnan, [integers(3)], peer="numpy"),
    Case("isinf", _ours("isinf"), np.isinf, [EDGES], FLOATS, peer="numpy"),
    Case("isinf", _ours("isinf"), np.isinf, [integers(3)], peer="numpy"),
    Case("isinf", lambda x: x.isinf(detect_negative=False), np.isposinf, [EDGES], WIDE,
         peer="numpy"),
    Case("isinf", lambda x: x.isinf(False), np.isneginf, [EDGES], WIDE, peer="numpy"),
    Case("isinf", lambda x: x.isinf(False, False), lambda x: np.zeros(x.shape, bool),
         [EDGES], WIDE, peer="numpy"),
    Case("isfinite", _ours("isfinite"), np.isfinite, [EDGES], FLOATS, peer="numpy"),
    Case("isfinite", _ours("isfinite"), np.isfinite, [integers(3)], peer="numpy"),
    Case("logical_not", _ours("logical_not"), np.logical_not, [EDGES], FLOATS, peer="numpy"),
    Case("logical_not", _ours("logical_not"), np.logical_not, [integers(5, high=1)], peer="numpy"),
    Case("logical_not", _ours("logical_not"), np.logical_not, [bools(5)], peer="numpy"),
]  # fmt: skip


# ---------------------------------------------------------------- two operands

_A = array(3, 1, 5)
_B = array(2, 5, low=0.3, seed=1)
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
}
for _name, _peer in _ARITHMETIC.items():
    _call = _ours(_name)
    CASES += [
        Case(_name, _call, _peer, [_A, _B], ("float32",), peer="numpy"),
        Case(_name, _call, lambda x, y, n=_name: getattr(torch, n)(x, y), [_A, _B], FLOATS),
        Case(_name, lambda x, n=_name: getattr(x, n)(2.5), lambda x, f=_peer: f(x, 2.5), [_B],
             WIDE, peer="numpy"),
        Case(_name, lambda x, n=_name: getattr(x, n)(2.5, reverse=True),
             lambda x, f=_peer: f(2.5, x), [_B], WIDE, peer="numpy"),
        Case(_name, _call, lambda x, y, n=_name: getattr(torch, n)(x, y), [array(0, 3), array(3)],
             ("float32",)),
        Case(_name, _call, _peer, [integers(3, 5, low=-9), integers(5, low=1, seed=1)],
             peer="numpy", label="integers"),
    ]  # fmt: skip
CASES += [
    Case("add", _ours("add"), np.logical_or, [bools(9), bools(9, seed=1)], peer="numpy"),
    Case("mul", _ours("mul"), np.logical_and, [bools(9), bools(9, seed=1)], peer="numpy"),
    Case("sub", _ours("sub"), np.logical_xor, [bools(9), bools(9, seed=1)], peer="numpy"),
    # operands of two dtypes
    Case("add", _ours("add"), np.add, [array(5), integers(5, dtype="int64")], WIDE, peer="numpy"),
    Case("add", _ours("add"), np.add, [integers(4, dtype="uint8"), integers(4, low=-9,
         dtype="int8")], peer="numpy"),
    Case("mul", _ours("mul"), lambda x, y: x * y, [array(5), bools(5)], WIDE, peer="numpy"),
]  # fmt: skip
for _mode in ("floor", "trunc"):
    CASES += [
        Case("div", _ours("div", rounding_mode=_mode),
             lambda x, y, m=_mode: torch.div(x, y, rounding_mode=m),
             [values([7, -7, 7, -7, 0, 9]), values([2, 2, -2, -2, 5, 9])],
             ("int32", "int8", "int64"), label=_mode),
        Case("div", _ours("div", rounding_mode=_mode),
             lambda x, y, m=_mode: torch.div(x, y, rounding_mode=m),
             [array(3, 7, low=-9, high=9), array(7, low=0.3, seed=1)], WIDE, grad=False,
             label=_mode),
        Case("div", _ours("div", rounding_mode=_mode),
             lambda x, y, m=_mode: torch.div(x, y, rounding_mode=m),
             [values([1.0, -1.0, 1.0, 7.5, -5.5, 3.0]), values([0.1, 0.1, -0.1, 2.0, INF, -INF])],
             ("float64",), grad=False, label=f"{_mode}, exact"),
    ]  # fmt: skip
_SIGNS = [values([7, -7, 7, -7, 0, 9, -8]), values([3, 3, -3, -3, 5, 9, 8])]
_QUOTIENTS = [
    values([5.5, -5.5, 5.5, -5.5, 1.0, 0.0, -0.0, 1e30, INF, 3.0, NAN]),
    values([2.0, 2.0, -2.0, -2.0, 0.1, 3.0, 3.0, 7.0, 2.0, INF, 1.0]),
]
for _name, _peer in {"mod": np.remainder, "fmod": np.fmod}.items():
    _in_torch = {"mod": "remainder", "fmod": "fmod"}[_name]
    CASES += [
        Case(_name, _ours(_name), _peer, _SIGNS, ("int32", "int8", "int64"), peer="numpy"),
        Case(_name, _ours(_name), _peer, _SIGNS, WIDE, peer="numpy", exact=True, grad=False),
        Case(_name, _ours(_name), _peer, _QUOTIENTS, WIDE, peer="numpy", exact=True, grad=False,
             wide=False, label="edges"),
        Case(_name, _ours(_name), lambda x, y, n=_in_torch: getattr(torch, n)(x, y),
             [array(2, 7, low=-9, high=9), array(2, 7, low=0.5, seed=1)], WIDE),
        Case(_name, _ours(_name, 2.5), lambda x, n=_in_torch: getattr(torch, n)(x, 2.5),
             [array(7, low=-9, high=9)], WIDE),
        Case(_name, _ours(_name), _peer, [array(0, 3), array(3, low=1)], ("float32",),
             peer="numpy", grad=False),
    ]  # fmt: skip
CASES += [
    Case("mod", lambda x: x.mod(7, reverse=True), lambda x: np.remainder(7, x),
         [values([2, -3, 5])], ("int32", "float32"), peer="numpy", grad=False),
    Case("mod", lambda x: x.mod(2.5), lambda x: np.remainder(x, np.float32(2.5)).astype("float32"),
         [integers(5, low=-9)], peer="numpy"),
]  # fmt: skip

_BASES = array(3, 5, low=0.2, high=3)
for _exponent in (0, 1, 2, 3, 4, 7, -1, -2, 0.5, -0.5, 1.7):
    CASES.append(
        Case("pow", _ours("pow", _exponent), lambda x, n=_exponent: torch.pow(x, n), [_BASES],
             (*WIDE, "float16"), label=f"{_exponent}")
    )  # fmt: skip
CASES += [
    Case("pow", _ours("pow"), _theirs("pow"), [_BASES, array(5, seed=1)], FLOATS),
    Case("pow", _ours("pow"), _theirs("pow"), [array(0, 3), array(3, seed=1)], ("float32",)),
    Case("pow", lambda x: x.pow(3.0, reverse=True), lambda x: torch.pow(3.0, x), [array(7)], WIDE),
    Case("pow", lambda x: x.pow(2, reverse=True), lambda x: torch.pow(2, x), [array(7)], WIDE),
    # the gradients of 0 ** y and x ** 0 are 0
    Case("pow", _ours("pow"), _theirs("pow"),
         [values([0.0, 0.0, 2.0, -2.0, 0.0]), values([0.0, 2.0, 0.0, 0.0, 1.0])], WIDE,
         label="at 0"),
    Case("pow", _ours("pow"), _theirs("pow"), [values([-8.0, -8.0, -2.0, -0.5]),
         values([3.0, 2.0, -1.0, -2.0])], WIDE, grad=False, label="negative"),
    Case("pow", _ours("pow", 0), lambda x: torch.pow(x, 0), [values([0.0, NAN, INF, -1.0])], WIDE,
         label="0 at edges"),
    Case("pow", _ours("pow", 2), lambda x: torch.pow(x, 2), [values([0.0, -0.0, INF, -1.0])], WIDE,
         label="2 at edges"),
    Case("pow", _ours("pow"), np.power, [values([2, -3, 5, 0, -1]), values([3, 5, 2, 0, 9])],
         ("int32", "int64"), peer="numpy"),
    Case("pow", _ours("pow", 5), lambda x: np.power(x, 5), [values([2, -3, 100, 0])],
         ("int32", "int16"), peer="numpy"),
    Case("pow", _ours("pow", 0.5), lambda x: np.power(x, np.float32(0.5)).astype("float32"),
         [values([4, 9])], ("int32",), peer="numpy"),
]  # fmt: skip

for _name, _peer in {"maximum": np.maximum, "minimum": np.minimum}.items():
    CASES += [
        Case(_name, _ours(_name), lambda x, y, n=_name: getattr(torch, n)(x, y),
             [_A, array(2, 5, seed=1)], FLOATS),
        Case(_name, _ours(_name), _peer, [values([1.0, NAN, INF, -INF, 0.5]),
             values([NAN, 1.0, 0.0, NAN, 0.5])], FLOATS, peer="numpy", grad=False, label="edges"),
        Case(_name, _ours(_name), lambda x, y, n=_name: getattr(torch, n)(x, y),
             [values([1.0, 2.0, 3.0]), values([1.0, 3.0, 3.0])], WIDE, label="ties"),
        Case(_name, _ours(_name), _peer, [integers(9, low=-9), integers(9, low=-9, seed=1)],
             peer="numpy"),
        Case(_name, _ours(_name), _peer, [integers(9, dtype="uint8", high=255),
             integers(9, dtype="uint8", high=255, seed=1)], peer="numpy"),
        Case(_name, _ours(_name), _peer, [bools(9), bools(9, seed=1)], peer="numpy"),
        Case(_name, _ours(_name, 0.5), lambda x, f=_peer: f(x, 0.5), [array(7)], WIDE,
             peer="numpy"),
        Case(_name, _ours(_name), _peer, [array(0, 2), array(2)], ("float32",), peer="numpy"),
    ]  # fmt: skip
for _name in ("clamp", "clip"):
    _call = _ours(_name)
    CASES += [
        Case(_name, lambda x, n=_name: getattr(x, n)(-0.5, 1), lambda x: torch.clamp(x, -0.5, 1),
             [array(3, 7)], FLOATS),
        Case(_name, lambda x, n=_name: getattr(x, n)(min_=0.25), lambda x: torch.clamp(x, min=0.25),
             [array(7)], WIDE),
        Case(_name, lambda x, n=_name: getattr(x, n)(max_=0.25), lambda x: torch.clamp(x, max=0.25),
             [array(7)], WIDE),
        Case(_name, lambda x, n=_name: getattr(x, n)(2, -1), lambda x: torch.clamp(x, 2, -1),
             [array(7)], WIDE, label="min above max"),
        Case(_name, lambda x, a, b, n=_name: getattr(x, n)(a, b), torch and torch.clamp,
             [array(3, 5), array(5, low=-1, high=0, seed=1), array(5, low=0, high=1, seed=2)],
             WIDE, label="tensors"),
        Case(_name, lambda x, n=_name: getattr(x, n)(-1.0, 1.0),
             lambda x: torch.clamp(x, -1.0, 1.0), [values([-1.0, 1.0, INF, 0.0])], WIDE,
             label="at the bounds"),
        Case(_name, lambda x, n=_name: getattr(x, n)(2, 5), lambda x: np.clip(x, 2, 5),
             [integers(9)], peer="numpy"),
    ]  # fmt: skip
CASES += [
    Case("copysign", _ours("copysign"), np.copysign,
         [values([1.0, -1.0, 0.0, INF, NAN, 2.0]), values([-0.0, 0.0, -1.0, -2.0, -1.0, -NAN])],
         WIDE, peer="numpy", exact=True, grad=False),
    Case("copysign", _ours("copysign"), lambda x, y: torch.copysign(x, y),
         [_A, array(2, 5, seed=1)], (*WIDE, "float16")),
    Case("copysign", _ours("copysign", -1.0), lambda x: torch.copysign(x, -1.0),
         [values([0.0, 2.0, -2.0])], WIDE),
    Case("copysign", _ours("copysign"), lambda x, y: np.copysign(x, y).astype(x.dtype),
         [values([3, -4, 5]), values([-1, 1, 0])], ("int32", "int8"), peer="numpy"),
    Case("logaddexp", _ours("logaddexp"), lambda x, y: torch.logaddexp(x, y),
         [_A, array(2, 5, seed=1)], WIDE),
    Case("logaddexp", _ours("logaddexp"), np.logaddexp, [array(5), array(5, seed=1)],
         ("float16", "float32"), peer="numpy"),
    Case("logaddexp", _ours("logaddexp"), lambda x, y: torch.logaddexp(x, y),
         [values([1000.0, -1000.0, 1000.0, 3.0]), values([1000.0, -1000.0, -1000.0, 3.0])], WIDE,
         label="large"),
    Case("logaddexp", _ours("logaddexp"), np.logaddexp,
         [values([INF, -INF, INF, -INF, NAN]), values([INF, -INF, -INF, 1.0, 1.0])], WIDE,
         peer="numpy", grad=False, label="edges"),
    Case("lerp", _ours("lerp"), lambda x, y, w: torch.lerp(x, y, w),
         [array(3, 5), array(5, seed=1), array(3, 1, low=0, high=1, seed=2)], WIDE),
    Case("lerp", lambda x, y: x.lerp(y, 0.25), lambda x, y: torch.lerp(x, y, 0.25),
         [array(3, 5), array(3, 5, seed=1)], (*WIDE, "float16")),
    # bytes: in steps of 1/128, rounded
    Case("lerp", lambda x, y, w: x.lerp(y, w), lambda x, y, w: np.floor(
         x + (y.astype(int) - x) * np.floor(w * 128 + 0.5) / 128 + 0.5).astype(np.uint8),
         [values([10, 200, 0, 255], "uint8"), values([20, 100, 255, 0], "uint8"),
          values([0.3, 0.3, 0.3, 0.7], "float32")], peer="numpy"),
    Case("isclose", _ours("isclose"), np.isclose,
         [values([1.0, 1.0, NAN, INF, INF, 0.0, 1e-9]), values([1.0, 1.1, NAN, INF, -INF, 1e-9,
          0.0])], WIDE, peer="numpy"),
    Case("isclose", lambda x, y: x.isclose(y, rtol=0.1, atol=0.5, equal_nan=True),
         lambda x, y: np.isclose(x, y, 0.1, 0.5, True),
         [values([1.0, 1.0, NAN, INF, 9.0]), values([1.0, 1.55, NAN, 3.0, 11.0])], WIDE,
         peer="numpy"),
    Case("isclose", _ours("isclose"), np.isclose, [integers(9, dtype="uint8", high=2),
         integers(9, dtype="uint8", high=2, seed=1)], peer="numpy"),
    Case("where", lambda c, x, y: c.where(x, y), lambda c, x, y: torch.where(c, x, y),
         [bools(3, 1), array(1, 5), array(3, 5, seed=1)], FLOATS),
    Case("where", lambda c, x: c.where(x, 1.5), lambda c, x: np.where(c, x, np.float32(1.5)),
         [bools(5), integers(5)], ("float32",), peer="numpy", label="a number"),
    Case("where", lambda c, x: (c.where(1, x), c.where(x, x)),
         lambda c, x: (torch.where(c, 1, x), torch.where(c, x, x)), [bools(5), array(5)], WIDE),
    Case("where", lambda c, x, y: c.where(x, y), np.where, [bools(0, 2), array(2), array(0, 1)],
         ("float32",), peer="numpy"),
    # what is not chosen passes no gradient on, though its slope is infinite
    Case("where", lambda x: (x > 0).where(x.log(), 0), lambda x: torch.where(
         x > 0, torch.where(x > 0, x, 1).log(), 0), [values([0.0, 2.0, -1.0])], WIDE,
         label="poles"),
    Case("eq", _ours("eq"), np.equal, [EDGES, EDGES], FLOATS, peer="numpy"),
    Case("ne", _ours("ne"), np.not_equal, [EDGES, EDGES], FLOATS, peer="numpy"),
    Case("eq", _ours("eq"), np.equal, [integers(3, 5, high=2), integers(5, high=2, seed=1)],
         peer="numpy"),
    Case("ne", _ours("ne"), np.not_equal, [integers(3, 5, high=2), integers(5, high=2, seed=1)],
         peer="numpy"),
    Case("eq", _ours("eq", -1), lambda x: x.astype(int) == -1, [integers(9, high=255,
         dtype="uint8")], peer="numpy", label="out of range"),
    Case("ne", _ours("ne", 300), lambda x: x.astype(int) != 300, [integers(9, high=255,
         dtype="uint8")], peer="numpy", label="out of range"),
    Case("eq", _ours("eq"), np.equal, [array(0, 2), array(2)], ("float32",), peer="numpy"),
]  # fmt: skip


# ---------------------------------------------------------------- bits

for _name, _peer in {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}.items():
    CASES += [
        *[
            Case(_name, _ours(_name), _peer, [integers(3, 5, low=-99, high=99, dtype=d),
                 integers(5, low=-99, high=99, dtype=d, seed=1)], peer="numpy", label=d)
            for d in INTEGERS
        ],
        Case(_name, _ours(_name), _peer, [bools(9), bools(9, seed=1)], peer="numpy"),
        Case(_name, _ours(_name, 6), lambda x, f=_peer: f(x, 6), [integers(9)], peer="numpy"),
        Case(_name, _ours(_name, 6, reverse=True), lambda x, f=_peer: f(6, x), [integers(9)],
             peer="numpy"),
    ]  # fmt: skip
CASES += [
    *[
        Case("bitwise_not", _ours("bitwise_not"), np.invert, [integers(9, high=99, dtype=d)],
             peer="numpy", label=d)
        for d in INTEGERS
    ],
    Case("bitwise_not", _ours("bitwise_not"), np.invert, [bools(9)], peer="numpy"),
]  # fmt: skip
for _name, _peer in {"lshift": np.left_shift, "rshift": np.right_shift}.items():
    CASES += [
        *[
            Case(_name, _ours(_name), _peer, [integers(3, 5, low=-99, high=99, dtype=d),
                 integers(5, high=7, dtype=d, seed=1)], peer="numpy", label=d)
            for d in INTEGERS
        ],
        Case(_name, _ours(_name, 2), lambda x, f=_peer: f(x, 2), [integers(9, low=-9)],
             peer="numpy"),
        Case(_name, _ours(_name, 99, reverse=True), lambda x, f=_peer: f(99, x), [integers(9)],
             peer="numpy"),
        # all bits are gone from the width on, and for negative counts
        Case(_name, _ours(_name), lambda x, y, left=_name == "lshift": np.where(
             left, 0, np.where(x < 0, -1, 0)).astype(x.dtype),
             [values([5, -5, 1, -1], "int32"), values([32, 40, -1, -40], "int32")], peer="numpy",
             label="beyond the width"),
        Case(_name, lambda x, n=_name: getattr(x, n)(1), lambda x, f=_peer: f(x.astype("int32"), 1),
             [bools(5)], peer="numpy", label="bools"),
    ]  # fmt: skip


# ---------------------------------------------------------------- activations


def _nn(name: str, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return lambda x: getattr(torch.nn.functional, name)(x, *args, **kwargs)


# name -> PyTorch's, our arguments, the values at which it has kinks that PyTorch treats alike
_ACTIVATIONS: list[tuple[str, Callable[[Any], Any], dict[str, Any], list[float]]] = [
    ("relu", _nn("relu"), {}, [0.0, NAN]),
    ("relu6", _nn("relu6"), {}, [0.0, 6.0, INF]),
    ("leaky_relu", _nn("leaky_relu"), {}, []),
    ("leaky_relu", _nn("leaky_relu", 0.3), {"neg_slope": 0.3}, []),
    ("silu", _nn("silu"), {}, [0.0]),
    ("swish", _nn("silu"), {}, [0.0]),
    ("gelu", _nn("gelu", approximate="tanh"), {}, [0.0]),
    ("gelu", _nn("gelu"), {"approximate": "none"}, [0.0]),
    ("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x), {}, [0.0]),
    ("softplus", _nn("softplus", threshold=1e9), {}, [0.0, 50.0, -50.0]),
    ("softplus", _nn("softplus", 2.5, threshold=1e9), {"beta": 2.5}, [0.0, 50.0, -50.0]),
    ("logsigmoid", _nn("logsigmoid"), {}, [0.0, 100.0, -100.0]),
    ("mish", _nn("mish"), {}, [0.0, 50.0, -50.0]),
    ("elu", _nn("elu"), {}, [0.0, 50.0, -50.0]),
    ("elu", _nn("elu", 0.5), {"alpha": 0.5}, [0.0]),
    ("celu", _nn("celu"), {}, [0.0, -50.0]),
    ("celu", _nn("celu", 0.5), {"alpha": 0.5}, [0.0, -50.0]),
    ("selu", lambda x: 1.0507 * torch.where(x > 0, x, 1.67326 * torch.expm1(
        torch.where(x > 0, 0, x))), {}, [0.0, -50.0]),
    ("selu", lambda x: 2 * torch.where(x > 0, x, torch.expm1(torch.where(x > 0, 0, x))),
     {"alpha": 1.0, "gamma": 2.0}, [-50.0]),
    ("hardtanh", _nn("hardtanh"), {}, [5.0, -5.0]),
    ("hardtanh", _nn("hardtanh", -0.5, 2.5), {"min_val": -0.5, "max_val": 2.5}, [5.0]),
    ("hardsigmoid", lambda x: torch.clamp(x / 6 + 0.5, 0, 1), {}, [5.0, -5.0]),
    ("hardsigmoid", lambda x: torch.clamp(0.2 * x + 0.4, 0, 1), {"alpha": 0.2, "beta": 0.4},
     [9.0]),
    ("hardswish", _nn("hardswish"), {}, [5.0, -5.0]),
    ("softsign", _nn("softsign"), {}, [0.0]),
]  # fmt: skip
for _name, _peer, _kwargs, _kinks in _ACTIVATIONS:
    _call = _ours(_name, **_kwargs)
    _label = ",".join(f"{k}={v}" for k, v in _kwargs.items())
    CASES += [
        Case(_name, _call, _peer, [array(2, 1, 7, low=-4, high=4)], FLOATS, label=_label),
        Case(_name, _call, _peer, [array(11, low=-12, high=12)], WIDE, label=f"{_label} far"),
        Case(_name, _call, _peer, [array(0, 3)], ("float32",), label=_label),
    ]
    if _kinks:
        CASES.append(Case(_name, _call, _peer, [values(_kinks)], WIDE, label=f"{_label} kinks"))
CASES += [
    Case("relu", _ours("relu"), lambda x: np.maximum(x, 0), [integers(9, low=-9)], peer="numpy"),
    Case("relu6", _ours("relu6"), lambda x: np.clip(x, 0, 6), [integers(9, low=-9, high=9)],
         peer="numpy"),
    Case("sigmoid", _ours("sigmoid"), _theirs("sigmoid"), [values([-88.0, -100.0, 100.0, 0.0])],
         WIDE, atol=0, label="ends", grad=False),
    # NumPy's remainder of 1 + erf is 0 there
    Case("gelu", _ours("gelu", "none"), lambda x: 0.5 * x * torch.erfc(-x * 0.5**0.5),
         [values([-5.0, -6.0, -8.0])], WIDE, rtol=1e-4, atol=0, label="tail"),
]  # fmt: skip
