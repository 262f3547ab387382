"""`simplify`: integers by the canonical form of `tiny._core`, the rest by the rules here.

All rules are exact, for NaN, infinities, -0.0 and integers that wrap: a simplified graph computes
the same bits. What a target computes in its own way (EXP2, LOG2, SIN) is not folded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tiny._core import symbolic as _native
from tiny.dtype import DType, dtypes, truncate
from tiny.uop.ops import GroupOp, Ops, UOp
from tiny.uop.upat import PatternMatcher, UPat, graph_rewrite

__all__ = ["fold_constants", "pm_simplify", "pm_symbolic", "simplify"]

_INTS = tuple(dtypes.ints)
_FLOATS = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)

# ---------------------------------------------------------------- arithmetic of the machine


def _divide(a: float, b: float) -> float:
    if b:
        return a / b
    sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, sign)


def _maximum(a: float, b: float) -> float | None:
    if a != a or b != b:
        return math.nan
    if a == b == 0.0 and math.copysign(1.0, a) != math.copysign(1.0, b):
        return None  # targets differ in which zero they give
    return max(a, b)


def _truncating(a: int, b: int) -> int:
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else 0


_FLOAT_OPS: dict[Ops, Callable[..., Any]] = {
    Ops.ADD: lambda a, b: a + b,
    Ops.SUB: lambda a, b: a - b,
    Ops.MUL: lambda a, b: a * b,
    Ops.FDIV: _divide,
    Ops.NEG: lambda a: -a,
    Ops.RECIPROCAL: lambda a: _divide(1.0, a),
    Ops.SQRT: lambda a: math.sqrt(a) if a >= 0 else a if a == 0 else math.nan,
    Ops.TRUNC: lambda a: math.copysign(math.trunc(a), a) if math.isfinite(a) else a,
    Ops.MAX: _maximum,
    Ops.CMPLT: lambda a, b: a < b,
    Ops.CMPNE: lambda a, b: a != b,
    Ops.CMPEQ: lambda a, b: a == b,
}

_INT_OPS: dict[Ops, Callable[..., Any]] = {
    Ops.ADD: lambda a, b: a + b,
    Ops.SUB: lambda a, b: a - b,
    Ops.MUL: lambda a, b: a * b,
    Ops.NEG: lambda a: -a,
    Ops.FLOORDIV: lambda a, b: a // b if b else 0,
    Ops.FLOORMOD: lambda a, b: a % b if b else 0,
    Ops.CDIV: _truncating,
    Ops.CMOD: lambda a, b: a - b * _truncating(a, b) if b else 0,
    Ops.MAX: max,
    Ops.CMPLT: lambda a, b: a < b,
    Ops.CMPNE: lambda a, b: a != b,
    Ops.CMPEQ: lambda a, b: a == b,
    Ops.AND: lambda a, b: a & b,
    Ops.OR: lambda a, b: a | b,
    Ops.XOR: lambda a, b: a ^ b,
}


def _shifted(op: Ops, a: int, b: int, dtype: DType) -> int:
    if 0 <= b < dtype.bitsize:
        return a << b if op is Ops.SHL else a >> b
    return -1 if op is Ops.SHR and a < 0 else 0


def _computed(op: Ops, values: list[Any], source: DType, dtype: DType) -> Any:
    """The value of one operation on constants of dtype `source`, or None where it is not folded."""
    if op is Ops.CAST:
        return truncate[dtype](values[0])
    if op in (Ops.SHL, Ops.SHR) and source in _INTS:
        return truncate[dtype](_shifted(op, values[0], values[1], dtype))
    if source in _FLOATS and (compute := _FLOAT_OPS.get(op)) is not None:
        value = compute(*values)
        if value is None or dtype is dtypes.bool:
            return value
        # short floats are computed in float32, and rounded once more
        return truncate[dtype](
            value if dtype is dtypes.float64 else truncate[dtypes.float32](value)
        )
    if source in _INTS and (compute := _INT_OPS.get(op)) is not None:
        return truncate[dtype](compute(*values))
    return None


def fold_constants(x: UOp) -> UOp | None:
    """An operation on constants -> the constant that every target would compute."""
    if not x.src or x.dtype not in truncate or x._shape != ():
        return None
    values = []
    for s in x.src:
        if s.op is not Ops.CONST or s.src:
            return None
        values.append(s.arg)
    value = _computed(x.op, values, x.src[0].dtype, x.dtype)
    return None if value is None else UOp(Ops.CONST, x.dtype, (), value)


# ---------------------------------------------------------------- rules


def _in_place_of(node: UOp, x: UOp) -> UOp | None:
    """x instead of `node`, unless `node` broadcasts it."""
    return x if x._shape == node._shape else None


def _zero_of(node: UOp) -> UOp | None:
    return node.const_like(0) if node._shape == () else None


def combine_constants(node: UOp, x: UOp, c: UOp, d: UOp) -> UOp:
    """(x op c) op d -> x op (c op d), modulo 2**bits."""
    value = _INT_OPS[node.op](c.arg, d.arg)
    return UOp(node.op, node.dtype, (x, UOp.const(value, node.dtype)))


def divide_by_power_of_two(node: UOp, x: UOp, c: UOp) -> UOp | None:
    """x / 2**k -> x * 2**-k. Both round the same real number, so no bit differs."""
    if c.arg == 0 or not math.isfinite(c.arg) or abs(math.frexp(c.arg)[0]) != 0.5:
        return None
    inverse = 1.0 / c.arg
    # where the inverse is not a normal number of the dtype, a product may lose bits
    smallest = 2.0**-14 if node.dtype is dtypes.float16 else 2.0**-126
    largest = 2.0**15 if node.dtype is dtypes.float16 else 2.0**127
    if not smallest <= abs(inverse) <= largest:
        return None
    return UOp(Ops.MUL, node.dtype, (x, UOp.const(inverse, node.dtype)))


def _holds_all_of(wide: DType, narrow: DType) -> bool:
    """Whether each value of `narrow` is one of `wide`."""
    if wide is narrow or narrow is dtypes.bool:
        return wide is not dtypes.void
    if narrow in _INTS and wide in _INTS:
        signed = wide.kind == "i"
        if narrow.kind == "i":
            return signed and wide.bitsize >= narrow.bitsize
        return wide.bitsize > narrow.bitsize if signed else wide.bitsize >= narrow.bitsize
    if wide not in _FLOATS:
        return False
    digits, _ = _precision(wide)
    if narrow in _INTS:
        return narrow.bitsize - (narrow.kind == "i") <= min(digits, 15)
    if narrow not in _FLOATS:
        return False
    return all(a >= b for a, b in zip(_precision(wide), _precision(narrow), strict=True))


def _precision(dtype: DType) -> tuple[int, int]:
    """Bits of the significand, the hidden one counted, and of the exponent."""
    exponent, fraction = dtypes.finfo(dtype)
    return fraction + 1, exponent


def merge_casts(node: UOp, x: UOp, middle: UOp) -> UOp | None:
    """cast(cast(x)) -> cast(x), where the dtype between holds every value of x."""
    if not _holds_all_of(middle.dtype, x.dtype):
        return None
    return x if node.dtype is x.dtype else UOp(Ops.CAST, node.dtype, (x,))


_x, _y, _c, _d = UPat.var("x"), UPat.var("y"), UPat.cvar("c"), UPat.cvar("d")
_i = UPat.var("x", _INTS)
_ci, _di = UPat.cvar("c", _INTS), UPat.cvar("d", _INTS)
_f = UPat.var("x", _FLOATS)


def _keep(node: UOp, x: UOp) -> UOp | None:
    return _in_place_of(node, x)


def _zero(node: UOp, x: UOp) -> UOp | None:
    return _zero_of(node)


# Exact: constants by the arithmetic that every target shares. Each rule removes a node.
pm_constants = PatternMatcher(
    [(UPat(GroupOp.Elementwise, src=UPat(Ops.CONST), name="x"), fold_constants)],
    name="pm_constants",
)

# Integers of any width, wrapping included. Each rule removes an operation, or joins constants.
pm_integers = PatternMatcher(
    [
        ((_i + 0).named("node"), _keep),  # x + 0 -> x
        ((_i - 0).named("node"), _keep),  # x - 0 -> x
        ((_i * 1).named("node"), _keep),  # x * 1 -> x
        ((_i * 0).named("node"), _zero),  # x * 0 -> 0
        ((_i // 1).named("node"), _keep),  # x // 1 -> x
        ((_i % 1).named("node"), _zero),  # x % 1 -> 0
        ((_i - _i).named("node"), _zero),  # x - x -> 0
        ((_i ^ _i).named("node"), _zero),  # x ^ x -> 0
        ((_i ^ 0).named("node"), _keep),  # x ^ 0 -> x
        ((_i | 0).named("node"), _keep),  # x | 0 -> x
        ((_i & 0).named("node"), _zero),  # x & 0 -> 0
        ((_i & -1).named("node"), _keep),  # x & -1 -> x, signed
        ((_i & _i).named("node"), _keep),  # x & x -> x
        ((_i | _i).named("node"), _keep),  # x | x -> x
        ((_i << 0).named("node"), _keep),  # x << 0 -> x
        ((_i >> 0).named("node"), _keep),  # x >> 0 -> x
        (((_i + _ci) + _di).named("node"), combine_constants),  # (x + c) + d -> x + (c + d)
        (((_i * _ci) * _di).named("node"), combine_constants),  # (x * c) * d -> x * (c * d)
        (((_i & _ci) & _di).named("node"), combine_constants),  # (x & c) & d -> x & (c & d)
        (((_i | _ci) | _di).named("node"), combine_constants),  # (x | c) | d -> x | (c | d)
        (((_i ^ _ci) ^ _di).named("node"), combine_constants),  # (x ^ c) ^ d -> x ^ (c ^ d)
    ],
    name="pm_integers",
    ints_only=True,
)

# Floats, to the bit: NaN stays NaN, and no rule takes -0.0 for 0.0. Each removes an operation
# or, for the division, makes it cheaper.
pm_floats = PatternMatcher(
    [
        ((_f * 1.0).named("node"), _keep),  # x * 1 -> x
        ((_f / 1.0).named("node"), _keep),  # x / 1 -> x
        ((_f + UPat.cvar(arg=-0.0)).named("node"), _keep),  # x + -0.0 -> x; 0.0 would lose a -0.0
        ((_f - UPat.cvar(arg=0.0)).named("node"), _keep),  # x - 0.0 -> x
        ((_f / UPat.cvar("c", _FLOATS)).named("node"), divide_by_power_of_two),  # x / 2**k
        (_f.maximum(UPat.cvar(arg=-math.inf)).named("node"), _keep),  # max(x, -inf) -> x
    ],
    name="pm_floats",
)

# Any dtype: no arithmetic. Each rule removes a node.
pm_structure = PatternMatcher(
    [
        (_x.maximum(_x).named("node"), _keep),  # max(x, x) -> x
        (UPat(Ops.NEG, src=(UPat(Ops.NEG, src=(_x,)),), name="node"), _keep),  # -(-x) -> x
        (UPat.var().where(_x, _x).named("node"), _keep),  # c ? x : x -> x
        (UPat.cvar(arg=True).where(_x, _y).named("node"), lambda node, x, y: _keep(node, x)),
        (UPat.cvar(arg=False).where(_x, _y).named("node"), lambda node, x, y: _keep(node, y)),
        (UPat(Ops.CAST, src=(UPat(Ops.CAST, src=(_x,), name="middle"),), name="node"), merge_casts),
        (
            UPat(Ops.BITCAST, src=(UPat(Ops.BITCAST, src=(_x,)),), name="node"),
            lambda node, x: x.bitcast(node.dtype),  # bitcast(bitcast(x)) -> bitcast(x)
        ),
    ],
    name="pm_structure",
)

#: what holds for every dtype beside the canonical form of exact integers
pm_simplify = pm_constants + pm_integers + pm_floats + pm_structure


def canonical_integers(x: UOp) -> UOp | None:
    """An integer expression or a condition -> its canonical form."""
    s = _native.simplify(x)
    return None if s is x else s


#: the same with the canonical form as its first rule, to be joined with the rules of a pass
pm_symbolic = (
    PatternMatcher(
        [
            (
                UPat(GroupOp.ALU | {Ops.CAST}, (*_INTS, dtypes.index, dtypes.bool), name="x"),
                canonical_integers,
            )
        ],
        name="pm_canonical",
        ints_only=True,
    )
    + pm_simplify
)


def simplify(x: UOp) -> UOp:
    """x with its integers and conditions in canonical form and constants folded; same values.

    x is any graph: an expression, or the SINK of a kernel.
    """
    while True:
        canonical = _native.simplify(x)
        x = graph_rewrite(canonical, pm_simplify, name="simplify")
        if x is canonical:
            return x
