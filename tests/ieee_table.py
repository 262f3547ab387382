"""What operations give for NaN, infinities, zeros of both signs, subnormals and integers' ends.

The table is data: `docs/ieee.md` is made of it, and `tests/test_ieee.py` checks each entry folded
and run. `PYTHONPATH=src:tests python -m ieee_table > docs/ieee.md` writes the page.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from tiny import Tensor
from tiny.dtype import DType, dtypes

INF, NAN = math.inf, math.nan
LEAST, NORMAL, LARGEST = "least", "normal", "largest"  # subnormal, normal and finite, by dtype
ANY_ZERO = "±0"  # a zero, of which the sign is not said
HALF_PI = "π/2"
FLOATS = (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16)
INTS = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)

Value = Any  # a number, or one of the names above; "min" and "max" of integers


class Rows(NamedTuple):
    """An operation: its text on the page, the call, and for operands the value that it gives.

    `folds` says whether the rewriter computes it of constants; other operations of constants are
    computed by the device. `says` is a note below the rows.
    """

    text: str
    run: Callable[..., Tensor]
    rows: tuple[tuple[tuple[Value, ...], Value], ...]
    folds: bool = False
    dtypes: tuple[DType, ...] = FLOATS
    says: str = ""


def _one(*pairs: tuple[Value, Value]) -> tuple[tuple[tuple[Value, ...], Value], ...]:
    return tuple([((x,), y) for x, y in pairs])


def _two(*triples: tuple[Value, Value, Value]) -> tuple[tuple[tuple[Value, ...], Value], ...]:
    return tuple([((x, y), z) for x, y, z in triples])


ZEROS = ((0.0, 0.0), (-0.0, -0.0))
ODD = (*ZEROS, (INF, INF), (-INF, -INF), (NAN, NAN))
WHOLE = (*ODD, (LEAST, 0.0), (1.0, 1.0))

ARITHMETIC = (
    Rows(
        "x + y",
        operator.add,
        _two(
            (INF, -INF, NAN), (INF, 1.0, INF), (0.0, -0.0, 0.0), (-0.0, -0.0, -0.0),
            (1.0, -1.0, 0.0), (-0.0, 1.0, 1.0), (LARGEST, LARGEST, INF), (LEAST, 0.0, LEAST),
            (NAN, 1.0, NAN),
        ),
        True,
    ),
    Rows(
        "x - y",
        operator.sub,
        _two(
            (INF, INF, NAN), (INF, -INF, INF), (0.0, 0.0, 0.0), (-0.0, 0.0, -0.0),
            (0.0, -0.0, 0.0), (1.0, 1.0, 0.0), (-0.0, -0.0, 0.0), (1.0, NAN, NAN),
        ),
        True,
    ),
    Rows(
        "x * y",
        operator.mul,
        _two(
            (0.0, INF, NAN), (-0.0, 1.0, -0.0), (-1.0, 0.0, -0.0), (-0.0, -1.0, 0.0),
            (INF, -2.0, -INF), (LARGEST, 2.0, INF), (LEAST, 0.5, 0.0), (LEAST, -0.5, -0.0),
            (LEAST, 1.0, LEAST), (NAN, 0.0, NAN),
        ),
        True,
        says="Nothing times 0 is taken for 0 by the rewriter, nor x / x for 1.",
    ),
    Rows(
        "x / y",
        operator.truediv,
        _two(
            (1.0, 0.0, INF), (1.0, -0.0, -INF), (-1.0, 0.0, -INF), (0.0, 0.0, NAN),
            (INF, INF, NAN), (1.0, INF, 0.0), (-1.0, INF, -0.0), (0.0, -1.0, -0.0),
            (INF, 0.0, INF), (LEAST, 2.0, 0.0), (LARGEST, 0.5, INF), (NAN, 1.0, NAN),
        ),
        True,
    ),
    Rows(
        "x // y",
        operator.floordiv,
        _two(
            (1.0, 0.0, INF), (-1.0, 0.0, -INF), (0.0, 0.0, NAN), (INF, 2.0, NAN),
            (5.5, 2.0, 2.0), (-5.5, 2.0, -3.0), (5.5, -2.0, -3.0), (-5.5, -2.0, 2.0),
            (0.0, 3.0, 0.0), (-0.0, 3.0, -0.0), (0.0, -3.0, -0.0), (3.0, INF, 0.0),
            (-3.0, INF, -1.0), (NAN, 1.0, NAN),
        ),
        says="The floor of the exact quotient, so that x == (x // y) * y + x % y but for rounding.",
    ),
    Rows(
        "x % y",
        operator.mod,
        _two(
            (5.5, 2.0, 1.5), (-5.5, 2.0, 0.5), (5.5, -2.0, -0.5), (-5.5, -2.0, -1.5),
            (0.0, 3.0, 0.0), (-0.0, 3.0, 0.0), (0.0, -3.0, -0.0), (6.0, -3.0, -0.0),
            (1.0, 0.0, NAN), (INF, 2.0, NAN), (3.0, INF, 3.0), (-3.0, INF, INF), (3.0, -INF, -INF),
            (NAN, 1.0, NAN),
        ),
        says="The sign is that of y, also of a zero.",
    ),
    Rows(
        "fmod(x, y)",
        Tensor.fmod,
        _two(
            (5.5, 2.0, 1.5), (-5.5, 2.0, -1.5), (5.5, -2.0, 1.5), (0.0, 3.0, 0.0),
            (-0.0, 3.0, -0.0), (-6.0, 3.0, -0.0), (1.0, 0.0, NAN), (INF, 2.0, NAN),
            (3.0, INF, 3.0), (LARGEST, LEAST, 0.0), (LEAST, LARGEST, LEAST), (NAN, 1.0, NAN),
        ),
        says="The sign is that of x, also of a zero. Exact, however large the quotient.",
    ),
    Rows("-x", operator.neg, _one((0.0, -0.0), (-0.0, 0.0), (INF, -INF), (NAN, NAN)), True),
    Rows(
        "reciprocal(x)",
        Tensor.reciprocal,
        _one((0.0, INF), (-0.0, -INF), (INF, 0.0), (-INF, -0.0), (NAN, NAN)),
        True,
    ),
    Rows(
        "sqrt(x)",
        Tensor.sqrt,
        _one((0.0, 0.0), (-0.0, -0.0), (INF, INF), (-1.0, NAN), (-INF, NAN), (NAN, NAN)),
        True,
    ),
    Rows(
        "rsqrt(x)",
        Tensor.rsqrt,
        _one((0.0, INF), (-0.0, -INF), (INF, 0.0), (-1.0, NAN), (NAN, NAN), (4.0, 0.5)),
    ),
    Rows(
        "max(x, y)",
        Tensor.maximum,
        _two(
            (NAN, 1.0, NAN), (1.0, NAN, NAN), (NAN, INF, NAN), (1.0, INF, INF), (-INF, 1.0, 1.0),
            (0.0, -0.0, ANY_ZERO), (-0.0, 0.0, ANY_ZERO), (-0.0, -0.0, -0.0),
        ),
        says="`maximum`. Which of two zeros it is, is not said; so for min.",
    ),
    Rows(
        "min(x, y)",
        Tensor.minimum,
        _two(
            (NAN, 1.0, NAN), (1.0, NAN, NAN), (1.0, INF, 1.0), (-INF, 1.0, -INF),
            (0.0, -0.0, ANY_ZERO), (-0.0, -0.0, -0.0),
        ),
    ),
    Rows(
        "clamp(x, -1, 1)",
        lambda x: x.clamp(-1.0, 1.0),
        _one((NAN, NAN), (INF, 1.0), (-INF, -1.0), (-0.0, -0.0)),
        True,
    ),
)  # fmt: skip

SIGNS = (
    Rows("abs(x)", Tensor.abs, _one((-0.0, 0.0), (0.0, 0.0), (-INF, INF), (NAN, NAN))),
    Rows(
        "sign(x)",
        Tensor.sign,
        _one((NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (LEAST, 1.0)),
    ),
    Rows(
        "copysign(x, y)",
        Tensor.copysign,
        _two((1.0, -0.0, -1.0), (-1.0, 0.0, 1.0), (0.0, -1.0, -0.0), (INF, -1.0, -INF),
             (1.0, INF, 1.0), (NAN, -1.0, NAN)),
    ),
    Rows("trunc(x)", Tensor.trunc, _one(*WHOLE, (0.9, 0.0), (-0.9, -0.0), (-2.5, -2.0)), True),
    Rows("floor(x)", Tensor.floor, _one(*WHOLE, (0.9, 0.0), (-0.9, -1.0), (-2.0, -2.0)), True),
    Rows("ceil(x)", Tensor.ceil, _one(*ODD, (LEAST, 1.0), (-0.9, -0.0), (2.5, 3.0)), True),
    Rows(
        "round(x)",
        Tensor.round,
        _one(*WHOLE, (0.5, 0.0), (-0.5, -0.0), (1.5, 2.0), (2.5, 2.0), (-2.5, -2.0)),
        says="A half is rounded to the even number.",
    ),
)  # fmt: skip


_PAIRS = ((NAN, NAN), (NAN, 1.0), (1.0, NAN), (0.0, -0.0), (INF, INF), (-INF, INF), (1.0, 2.0))
COMPARISONS = tuple(
    Rows(
        f"x {sign} y",
        call,
        tuple([((x, y), bool(call(x, y))) for x, y in _PAIRS]),
        True,
    )
    for sign, call in {
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
        "==": operator.eq,
        "!=": operator.ne,
    }.items()
) + (
    Rows("isnan(x)", Tensor.isnan, _one((NAN, True), (INF, False), (-0.0, False)), True),
    Rows("isinf(x)", Tensor.isinf, _one((NAN, False), (INF, True), (-INF, True)), True),
    Rows(
        "isfinite(x)",
        Tensor.isfinite,
        _one((NAN, False), (INF, False), (-INF, False), (LARGEST, True), (0.0, True)),
    ),
    Rows(
        "logical_not(x)",
        Tensor.logical_not,
        _one((NAN, False), (0.0, True), (-0.0, True), (LEAST, False)),
        True,
    ),
    Rows(
        "where(x > 0, x, y)",
        lambda x, y: (x > 0).where(x, y),
        _two((1.0, NAN, 1.0), (NAN, 2.0, 2.0), (-0.0, -0.0, -0.0), (INF, NAN, INF)),
        True,
        says="What is not chosen matters neither for the value nor for the gradient.",
    ),
)

_GROWING = _one((INF, INF), (-INF, 0.0), (0.0, 1.0), (-0.0, 1.0), (LEAST, 1.0), (NAN, NAN))
_LOGS = _one(
    (0.0, -INF), (-0.0, -INF), (-1.0, NAN), (1.0, 0.0), (INF, INF), (-INF, NAN), (NAN, NAN)
)  # fmt: skip
_FROM_ZERO = (*ZEROS, (NAN, NAN))
FUNCTIONS = (
    Rows("exp(x)", Tensor.exp, _GROWING),
    Rows("exp2(x)", Tensor.exp2, (*_GROWING, ((3.0,), 8.0), ((-1.0,), 0.5))),
    Rows("log(x)", Tensor.log, _LOGS),
    Rows("log2(x)", Tensor.log2, (*_LOGS, ((8.0,), 3.0))),
    Rows("log10(x)", Tensor.log10, (*_LOGS, ((1000.0,), 3.0))),
    Rows("sin(x)", Tensor.sin, _one(*_FROM_ZERO, (INF, NAN), (-INF, NAN))),
    Rows("cos(x)", Tensor.cos, _one((0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (NAN, NAN))),
    Rows("tan(x)", Tensor.tan, _one(*_FROM_ZERO, (INF, NAN), (-INF, NAN))),
    Rows("asin(x)", Tensor.asin, _one(*_FROM_ZERO, (1.5, NAN), (INF, NAN))),
    Rows("acos(x)", Tensor.acos, _one((1.0, 0.0), (1.5, NAN), (-INF, NAN), (NAN, NAN))),
    Rows("atan(x)", Tensor.atan, _one(*_FROM_ZERO, (INF, HALF_PI))),
    Rows("sinh(x)", Tensor.sinh, _one(*ODD, (LARGEST, INF))),
    Rows("cosh(x)", Tensor.cosh,
         _one((0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (NAN, NAN))),
    Rows("tanh(x)", Tensor.tanh, _one(*_FROM_ZERO, (INF, 1.0), (-INF, -1.0), (LARGEST, 1.0))),
    Rows("asinh(x)", Tensor.asinh, _one(*ODD)),
    Rows("acosh(x)", Tensor.acosh,
         _one((1.0, 0.0), (0.5, NAN), (-INF, NAN), (INF, INF), (NAN, NAN))),
    Rows("atanh(x)", Tensor.atanh,
         _one(*_FROM_ZERO, (1.0, INF), (-1.0, -INF), (2.0, NAN), (INF, NAN))),
    Rows("erf(x)", Tensor.erf, _one(*_FROM_ZERO, (INF, 1.0), (-INF, -1.0))),
)  # fmt: skip

POWERS = (
    Rows(
        "x ** y",
        operator.pow,
        _two(
            *[(x, y, 1.0) for x in (NAN, INF, -INF, 0.0, -1.0) for y in (0.0, -0.0)],
            *[(1.0, y, 1.0) for y in (NAN, INF, -INF, -3.0)],
            (-1.0, INF, 1.0), (-1.0, -INF, 1.0),
            (0.0, -1.0, INF), (-0.0, -1.0, -INF), (0.0, -2.0, INF), (-0.0, -2.0, INF),
            (-0.0, -0.5, INF), (0.0, -INF, INF), (-0.0, -INF, INF),
            (0.0, 3.0, 0.0), (-0.0, 3.0, -0.0), (-0.0, 2.0, 0.0), (-0.0, 0.5, 0.0),
            (-0.0, INF, 0.0), (INF, 0.5, INF), (INF, -0.5, 0.0), (-INF, 3.0, -INF),
            (-INF, 2.0, INF), (-INF, 0.5, INF), (-INF, -3.0, -0.0), (-INF, -2.0, 0.0),
            (-2.0, 0.5, NAN), (-2.0, 3.0, -8.0), (-2.0, -1.0, -0.5),
            (0.5, INF, 0.0), (0.5, -INF, INF), (2.0, INF, INF), (2.0, -INF, 0.0),
            (-0.5, INF, 0.0), (-2.0, INF, INF), (LARGEST, 2.0, INF), (LEAST, 2.0, 0.0),
            (NAN, 1.0, NAN), (2.0, NAN, NAN),
        ),
    ),
    Rows(
        "x ** 2, the number",
        lambda x: x**2,
        _one((0.0, 0.0), (-0.0, 0.0), (-INF, INF), (NAN, NAN)),
        True,
    ),
    Rows(
        "x ** 0, the number",
        lambda x: x**0,
        _one((0.0, 1.0), (-0.0, 1.0), (-INF, 1.0), (NAN, 1.0)),
        True,
    ),
    Rows(
        "x ** 0.5, the number",
        lambda x: x**0.5,
        _one((0.0, 0.0), (-0.0, -0.0), (-INF, NAN), (INF, INF), (-1.0, NAN), (NAN, NAN)),
        True,
        says="It is sqrt, as in NumPy and PyTorch: a computed power differs for -0.0 and -inf.",
    ),
)  # fmt: skip

ACTIVATIONS = (
    Rows("relu(x)", Tensor.relu, _one((NAN, NAN), (-0.0, 0.0), (INF, INF), (-INF, 0.0)), True),
    Rows("relu6(x)", Tensor.relu6, _one((NAN, NAN), (-0.0, 0.0), (INF, 6.0), (-INF, 0.0)), True),
    Rows("leaky_relu(x)", Tensor.leaky_relu, _one(*ODD), True),
    Rows("sigmoid(x)", Tensor.sigmoid,
         _one((0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (NAN, NAN))),
    Rows("logsigmoid(x)", Tensor.logsigmoid, _one((INF, -0.0), (-INF, -INF), (NAN, NAN))),
    Rows("silu(x)", Tensor.silu, _one(*ZEROS, (INF, INF), (-INF, NAN), (NAN, NAN)),
         says="inf times 0, as in PyTorch; so for gelu, mish and hardswish."),
    Rows("gelu(x)", Tensor.gelu, _one(*ZEROS, (INF, INF), (-INF, NAN), (NAN, NAN))),
    Rows("mish(x)", Tensor.mish, _one(*ZEROS, (INF, INF), (-INF, NAN), (NAN, NAN))),
    Rows("hardswish(x)", Tensor.hardswish, _one(*ZEROS, (INF, INF), (-INF, NAN), (NAN, NAN))),
    Rows("softplus(x)", Tensor.softplus, _one((INF, INF), (-INF, 0.0), (NAN, NAN))),
    Rows("elu(x)", Tensor.elu, _one(*ZEROS, (INF, INF), (-INF, -1.0), (NAN, NAN))),
    Rows("celu(x)", Tensor.celu, _one(*ZEROS, (INF, INF), (-INF, -1.0), (NAN, NAN))),
    Rows("hardtanh(x)", Tensor.hardtanh, _one(*ZEROS, (INF, 1.0), (-INF, -1.0), (NAN, NAN)), True),
    Rows("hardsigmoid(x)", Tensor.hardsigmoid, _one((INF, 1.0), (-INF, 0.0), (NAN, NAN))),
    Rows("softsign(x)", Tensor.softsign, _one(*ZEROS, (INF, NAN), (NAN, NAN))),
)  # fmt: skip


def _reduced(name: str) -> Callable[..., Tensor]:
    return lambda *x: getattr(Tensor.stack(*x, dim=-1), name)(-1)


REDUCTIONS = (
    Rows("sum of x, y", _reduced("sum"), _two((INF, -INF, NAN), (INF, 1.0, INF), (NAN, 1.0, NAN),
         (0.0, -0.0, 0.0), (-0.0, -0.0, 0.0)),
         says="A sum begins with 0.0, so one of -0.0 is 0.0. The sum of no elements is 0.0, the "
         "product 1.0, the mean NaN, the maximum -inf and the minimum inf."),
    Rows("prod of x, y", _reduced("prod"), _two((0.0, INF, NAN), (-0.0, 1.0, -0.0),
         (NAN, 0.0, NAN), (LARGEST, 2.0, INF))),
    Rows("max of x, y", _reduced("max"), _two((NAN, 1.0, NAN), (1.0, NAN, NAN), (-INF, 1.0, 1.0),
         (-INF, -INF, -INF), (0.0, -0.0, ANY_ZERO))),
    Rows("min of x, y", _reduced("min"), _two((NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, 1.0, 1.0),
         (INF, INF, INF))),
)  # fmt: skip


def _to(name: str) -> Callable[[Tensor], Tensor]:
    return lambda x: x.cast(name)


_WIDE = (dtypes.float32, dtypes.float64)
CASTS = (
    Rows("to int32", _to("int32"), _one((NAN, 0), (INF, 2**31 - 1), (-INF, -(2**31)), (2.9, 2),
         (-2.9, -2), (-0.0, 0), (1e10, 2**31 - 1)), True, _WIDE),
    Rows("to int64", _to("int64"), _one((NAN, 0), (INF, 2**63 - 1), (-INF, -(2**63)),
         (1e30, 2**63 - 1)), True, _WIDE),
    Rows("to int8", _to("int8"), _one((NAN, 0), (300.0, 44), (-129.0, 127), (INF, -1),
         (-INF, 0)), True, _WIDE,
         says="Integers of 8 and 16 bits by way of int32: saturated there, then its low bits."),
    Rows("to uint8", _to("uint8"), _one((NAN, 0), (-1.0, 255), (256.0, 0), (INF, 255)), True,
         _WIDE),
    Rows("to uint32", _to("uint32"), _one((NAN, 0), (-1.0, 2**32 - 1), (INF, 2**32 - 1),
         (-INF, 0)), True, _WIDE, says="By way of int64."),
    Rows("to uint64", _to("uint64"), _one((NAN, 0), (-1.0, 2**64 - 1), (INF, 2**64 - 1),
         (-INF, 2**63)), True, _WIDE, says="What is negative by way of int64."),
    Rows("to bool", _to("bool"), _one((NAN, True), (-0.0, False), (0.5, True), (INF, True)), True,
         _WIDE),
    Rows("to float16", _to("float16"), _one((1e6, INF), (65519.0, 65504.0), (65520.0, INF),
         (-1e-9, -0.0), (NAN, NAN), (INF, INF)), True, _WIDE),
    Rows("to bfloat16", _to("bfloat16"), _one((1e-40, 9.183549615799121e-41), (NAN, NAN),
         (-0.0, -0.0), (1.00390625, 1.0), (1.01171875, 1.015625)), True, _WIDE,
         says="Subnormals are kept; ties go to the even number."),
)  # fmt: skip

INTEGERS = (
    Rows("x // y", operator.floordiv, _two((7, 0, 0), (-7, 0, 0), (-7, 2, -4), (7, -2, -4),
         ("min", -1, "min")), True, INTS, says="By zero 0."),
    Rows("x % y", operator.mod, _two((7, 0, 0), (-7, 2, 1), (7, -2, -1), ("min", -1, 0)), True,
         INTS),
    Rows("fmod(x, y)", Tensor.fmod, _two((7, 0, 0), (-7, 2, -1), (7, -2, 1), ("min", -1, 0)), True,
         INTS),
    Rows('div(x, y, rounding_mode="trunc")', lambda x, y: x.div(y, rounding_mode="trunc"),
         _two((7, 0, 0), (-7, 2, -3), ("min", -1, "min")), True, INTS),
    Rows("x / y", operator.truediv, _two((1, 0, INF), (-1, 0, -INF), (0, 0, NAN)), True, INTS,
         says="As floats."),
    Rows("x + y", operator.add, _two(("max", 1, "min"), ("min", -1, "max")), True, INTS),
    Rows("x * y", operator.mul, _two(("max", 2, -2), ("min", -1, "min")), True, INTS),
    Rows("-x", operator.neg, _one(("min", "min"), (0, 0)), True, INTS),
    Rows("abs(x)", Tensor.abs, _one(("min", "min"), (-3, 3)), True, INTS),
    Rows("x << y", operator.lshift, _two((1, 64, 0), (-1, 64, 0), (1, -1, 0), (-3, 2, -12)), True,
         INTS, says="Counts of the width or more, or negative, leave nothing."),
    Rows("x >> y", operator.rshift, _two((5, 64, 0), (-5, 64, -1), (5, -1, 0), (-5, -1, -1),
         (-5, 1, -3)), True, INTS),
    Rows("x ** y", operator.pow, _two((0, 0, 1), (2, -1, 0), (-1, -3, -1), (1, -5, 1), (0, -1, 0),
         (-2, 3, -8)), False, INTS),
)  # fmt: skip

SECTIONS: dict[str, tuple[Rows, ...]] = {
    "Arithmetic of floats": ARITHMETIC,
    "Signs and rounding": SIGNS,
    "Comparisons and choice": COMPARISONS,
    "Functions": FUNCTIONS,
    "Powers": POWERS,
    "Activations": ACTIVATIONS,
    "Reductions": REDUCTIONS,
    "Casts of floats": CASTS,
    "Integers": INTEGERS,
}


def number(value: Value, dtype: DType) -> Any:
    """The number that a value of the table stands for in a dtype."""
    if not isinstance(value, str):
        return value
    if value == ANY_ZERO:
        return 0.0
    if value == HALF_PI:
        return math.pi / 2
    if value in ("min", "max"):
        return getattr(dtype, value)
    exponent, mantissa = dtypes.finfo(dtype)
    bias = (1 << (exponent - 1)) - 1
    if value == LEAST:
        return 2.0 ** (1 - bias - mantissa)
    return 2.0 ** (1 - bias) if value == NORMAL else (2.0 - 2.0**-mantissa) * 2.0**bias


def _text(value: Value) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return repr(value)


def page() -> str:
    """The text of docs/ieee.md."""
    lines = [
        "# NaN, infinities, zeros, and the ends of integers",
        "",
        "What each operation gives where floats are not ordinary numbers: as IEEE 754 has it,",
        "on every device, and for constants computed by the rewriter as for values from memory.",
        "This page is made from `tests/ieee_table.py`, and `tests/test_ieee.py` checks each entry:",
        "run on the devices CPU and PYTHON, and folded. The bits and sign of a NaN are not said.",
        "",
        "`least` is the smallest subnormal number, `largest` the largest finite one, `min` and",
        "`max` the ends of an integer. Subnormal numbers are numbers as others; none is flushed to",
        "zero. Floats are float32, float64, float16 and bfloat16, the last two computed in float32",
        "and rounded. In sums of bfloat16 products that a matrix unit adds up (`TC=0` uses none)",
        "numbers below 2^-126 count as 0. How exact functions are stands in `accuracy.md`.",
    ]
    for title, operations in SECTIONS.items():
        lines += ["", f"## {title}", "", "| operation | gives |", "| --- | --- |"]
        for entry in operations:
            text = entry.text.replace("|", "\\|")
            cells = [
                f"({', '.join(map(_text, operands))}) → {_text(result)}"
                for operands, result in entry.rows
            ]
            note = f" {entry.says}" if entry.says else ""
            lines.append(f"| `{text}` | {', '.join(cells)}.{note} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
