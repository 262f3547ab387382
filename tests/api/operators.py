"""Operators beside NumPy's and PyTorch's."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from api.case import Case, Input, array, bools, integers

FLOATS = ("float32", "float64", "float16")
# away from zero, and where a power of a base is a number
_DIVISOR = array(3, 1, 5, low=0.3, high=2.0, seed=1)
_BASE = array(2, 5, low=0.2, high=2.0, seed=2)

_OF_FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "pow": operator.pow,
    "mod": operator.mod,
    "floordiv": operator.floordiv,
}
_OF_INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    """`x += y` on a copy of x, whose gradient is wanted."""
    call = getattr(operator, f"i{name}")

    return lambda x, y: call(x.clone(), y)


def _float_cases(name: str, call: Callable[[Any, Any], Any]) -> list[Case]:
    left = _BASE if name == "pow" else array(2, 5)
    # at a multiple of the divisor the remainder jumps: rounding decides on which side it is
    kinds = ("float32", "float64") if name in ("mod", "floordiv") else FLOATS
    grad = False if name == "floordiv" else None  # it is flat; PyTorch has none
    # PyTorch has no gradient of a remainder of a number
    peer = "numpy" if name == "mod" else "torch"

    def case(
        text: str, run: Any, inputs: list[Input], dtypes: Any = kinds, label: str = ""
    ) -> Case:
        return Case(text, run, run, inputs, dtypes, grad, peer, label=label)

    return [
        case(f"__{name}__", call, [left, _DIVISOR]),
        case(f"__{name}__", call, [left, array(1, low=0.5, high=1.5)]),
        case(f"__{name}__", call, [array(0, 3, low=1), array(3, low=1)], ("float32",)),
        case(f"__{name}__", lambda x: call(x, 3), [left], label="a number"),
        case(f"__r{name}__", lambda x: call(3, x), [_DIVISOR]),
        case(f"__r{name}__", lambda x: call(0.75, x), [_BASE]),
        Case(f"__i{name}__", _in_place(name), call, [_with(left, (3, 5)), _DIVISOR_3x5], kinds,
             grad, peer),
    ]  # fmt: skip


def _with(spec: Input, shape: tuple[int, ...]) -> Input:
    return Input(shape, spec.low, spec.high, spec.dtype, spec.seed)


_DIVISOR_3x5 = _with(_DIVISOR, (3, 5))


def _whole_cases(name: str, call: Callable[[Any, Any], Any]) -> list[Case]:
    """Of integers: small numbers, and divisors and counts that are defined."""
    low, high = (0, 4) if name == "pow" else (0, 7) if "shift" in name else (1, 7)
    found = []
    for dtype in ("int32", "uint8", "int64"):
        x = integers(3, 7, low=-9, high=9, dtype=dtype)
        y = integers(3, 7, low=low, high=high, dtype=dtype, seed=1)
        found += [
            _of_its_own(f"__{name}__", call, call, [x, y], dtype),
            _of_its_own(f"__{name}__", lambda x: call(x, 3), lambda x: call(x, 3), [x], dtype),
            _of_its_own(f"__r{name}__", lambda x: call(5, x), lambda x: call(5, x), [y], dtype),
            _of_its_own(f"__i{name}__", _in_place(name), call, [x, y], dtype),
        ]
    return found


def _of_its_own(name: str, run: Any, reference: Any, inputs: list[Input], label: str = "") -> Case:
    """A case of which no input follows the dtype."""
    return Case(name, run, reference, inputs, ("float32",), peer="numpy", label=label)


CASES: list[Case] = []
for _name, _call in _OF_FLOATS.items():
    CASES += _float_cases(_name, _call)
    if _name != "truediv":
        CASES += _whole_cases(_name, _call)
for _name, _call in _OF_INTEGERS.items():
    CASES += _whole_cases(_name, _call)
    if "shift" not in _name:
        CASES += [
            _of_its_own(f"__{_name}__", _call, _call, [bools(3, 5), bools(5, seed=1)], "bools"),
            _of_its_own(f"__r{_name}__", lambda x, c=_call: c(True, x),
                        lambda x, c=_call: c(True, x), [bools(4)], "bools"),
        ]  # fmt: skip
_KINDS = ("float32", "float64", "float16", "int32", "uint8")
for _name, _call in _COMPARISONS.items():
    CASES += [
        Case(f"__{_name}__", _call, _call, [array(3, 5), array(5, seed=1)], _KINDS, peer="numpy"),
        Case(f"__{_name}__", lambda x, c=_call: c(x, 1), lambda x, c=_call: c(x, 1),
             [array(7, low=0)], _KINDS, peer="numpy", label="a number"),
        Case(f"__{_name}__", lambda x, c=_call: c(x, x), lambda x, c=_call: c(x, x),
             [array(0, 2)], ("float32",), peer="numpy"),
    ]  # fmt: skip

_MATRICES = [
    ((3, 5), (5, 2)), ((5,), (5,)), ((5,), (5, 3)), ((2, 3, 5), (5,)), ((2, 1, 3, 5), (7, 5, 1)),
    ((1, 1), (1, 1)), ((3, 0), (0, 2)), ((0, 3), (3, 2)),
]  # fmt: skip
CASES += [
    Case("__matmul__", operator.matmul, operator.matmul, [array(*a), array(*b, seed=1)], FLOATS)
    for a, b in _MATRICES
]
CASES += [
    Case("__rmatmul__", lambda x, y: y.__rmatmul__(x), lambda x, y: x @ y,
         [array(3, 5), array(5, 2, seed=1)]),
    Case("__imatmul__", _in_place("matmul"), operator.matmul,
         [array(3, 5), array(5, 5, seed=1)]),
    Case("__neg__", operator.neg, operator.neg, [array(3, 5)], (*FLOATS, "bfloat16")),
    Case("__neg__", operator.neg, operator.neg, [array(7)], ("int32", "int8", "uint16"),
         peer="numpy"),
    Case("__invert__", operator.invert, operator.invert, [integers(7, low=-5, dtype="int16")],
         ("float32",), peer="numpy"),
    Case("__invert__", operator.invert, operator.invert, [bools(7)], ("float32",), peer="numpy"),
    Case("__len__", len, len, [array(3, 5)], ("float32", "int32"), peer="numpy"),
    Case("__len__", len, len, [array(0, 5)], ("float32",), peer="numpy"),
    Case("__hash__", lambda x: hash(x) == id(x), lambda x: True, [array(3)], ("float32",),
         peer="numpy"),
]  # fmt: skip


def _refusal(call: Callable[[Any], Any]) -> Callable[[Any], str]:
    """The name of the error that a call raises, or that there was none."""

    def run(x: Any) -> str:
        try:
            call(x)
        except Exception as e:
            return type(e).__name__
        return "none"

    return run


CASES += [
    _of_its_own("__bool__", _refusal(bool), lambda x: "TypeError", [array(1)]),
    _of_its_own("__delitem__", _refusal(lambda x: operator.delitem(x, 0)), lambda x: "TypeError",
                [array(1)]),
]  # fmt: skip
