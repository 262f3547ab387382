"""Expressions drawn at random, and their values at every point of their variables."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp

BOUNDS = [(-3, 4), (0, 5), (-6, -1), (0, 1)]
VARIABLES = [UOp.variable(name, *bounds) for name, bounds in zip("abcd", BOUNDS, strict=True)]
POINTS = dict(
    zip(
        VARIABLES,
        np.meshgrid(*[np.arange(lo, hi + 1) for lo, hi in BOUNDS], indexing="ij"),
        strict=True,
    )
)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, 0, a // np.where(b == 0, 1, b))


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, 0, a % np.where(b == 0, 1, b))


_VALUES = {
    Ops.ADD: np.add,
    Ops.SUB: np.subtract,
    Ops.MUL: np.multiply,
    Ops.NEG: np.negative,
    Ops.FLOORDIV: _divide,
    Ops.FLOORMOD: _remainder,
    Ops.MAX: np.maximum,
    Ops.CMPLT: np.less,
    Ops.CMPNE: np.not_equal,
    Ops.CMPEQ: np.equal,
    Ops.AND: np.bitwise_and,
    Ops.OR: np.bitwise_or,
    Ops.XOR: np.bitwise_xor,
    Ops.SHL: np.left_shift,
    Ops.SHR: np.right_shift,
    Ops.WHERE: np.where,
}


def values(x: UOp, points: dict[UOp, np.ndarray]) -> np.ndarray:
    """The values of an integer expression or condition, its leaves given as arrays."""
    known: dict[UOp, Any] = dict(points)
    for node in x.postorder():
        if node in known:
            continue
        if node.op is Ops.CONST:
            known[node] = np.asarray(node.arg)
        elif node.op is Ops.CAST:
            known[node] = known[node.src[0]].astype(
                np.int64 if node.dtype is dtypes.index else np.dtype(node.dtype.name)
            )
        else:
            known[node] = _VALUES[node.op](*[known[s] for s in node.src])
    return np.broadcast_to(known[x], np.broadcast_shapes(*[p.shape for p in points.values()]))


@st.composite
def expressions(draw: st.DrawFn, most: int = 12) -> UOp:
    """An expression of up to `most` operators over VARIABLES, an integer or a condition."""
    ints = list(VARIABLES)
    conditions: list[UOp] = []
    last: UOp = ints[0]

    def an_int() -> UOp:
        if draw(st.booleans()):
            return ints[draw(st.integers(0, len(ints) - 1))]
        if draw(st.booleans()):
            return ints[-1]
        return UOp.const(draw(st.integers(-8, 12)), dtypes.index)

    def a_condition() -> UOp:
        if not conditions:
            conditions.append(an_int() < an_int())
        return conditions[draw(st.integers(0, len(conditions) - 1))]

    for _ in range(draw(st.integers(1, most))):
        kind = draw(st.sampled_from("+++-***///%%%%<<!=><mMwwww&|~"))
        if kind in "<!=>":
            a, b = an_int(), an_int()
            last = {"<": a < b, "!": a.ne(b), "=": a.eq(b), ">": a >= b}[kind]
            conditions.append(last)
        elif kind in "&|~":
            a = a_condition()
            last = {"&": a & a_condition(), "|": a | a_condition(), "~": a.logical_not()}[kind]
            conditions.append(last)
        else:
            a, b = an_int(), an_int()
            if kind in "/%*" and draw(st.booleans()):
                b = UOp.const(draw(st.integers(-6, 12)), dtypes.index)
            last = {
                "+": lambda a, b: a + b,
                "-": lambda a, b: a - b,
                "*": lambda a, b: a * b,
                "/": lambda a, b: a // b,
                "%": lambda a, b: a % b,
                "m": lambda a, b: a.minimum(b),
                "M": lambda a, b: a.maximum(b),
                "w": lambda a, b: a_condition().where(a, b),
            }[kind](a, b)
            ints.append(last)
    return last
