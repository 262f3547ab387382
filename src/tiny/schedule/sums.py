"""Sums over loops that need no loop: counting the steps at which conditions hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tiny._core.symbolic import simplify
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp


def closed_sum(value: UOp, loops: Sequence[UOp]) -> tuple[UOp, list[UOp]]:
    """The sum of a value over loops, as far as counting does it; with the loops left.

    Expects no load in `value`. where(a <= loop < b, x, 0) sums to x times the number of steps,
    which is what aranges and triangles are made of.
    """
    left: list[UOp] = []
    for loop in reversed(loops):
        summed = _sum_over(value, loop)
        if summed is None:
            left.append(loop)
        else:
            value = summed
    return value, left[::-1]


def _sum_over(value: UOp, loop: UOp) -> UOp | None:
    """The sum over one loop, or None if counting does not do it."""
    clauses, x = _conditions(value)
    if _uses(x, loop):
        return None
    low, high = UOp.const(0, dtypes.index), loop.src[0]
    others: list[UOp] = []
    for c in clauses:
        if not _uses(c, loop):
            others.append(c)
            continue
        limits = _limits(c, loop)
        if limits is None:
            return None
        at_least, below = limits
        if at_least is not None:
            low = low.maximum(at_least)
        if below is not None:
            high = high.minimum(below)
    count = simplify((high - low).maximum(0))
    total = times(x, count)
    for c in others:
        total = c.where(total, 0)
    return total


def times(x: UOp, count: UOp) -> UOp:
    """x added up `count` times; count is a number of steps, at least 0."""
    if count.op is Ops.CONST and count.arg in (0, 1):
        return x if count.arg else x.const_like(0)
    if x.dtype is dtypes.bool:
        return x & (count.ne(0))
    scale = UOp.const(count.arg, x.dtype) if count.op is Ops.CONST else count.cast(x.dtype)
    return scale if x.op is Ops.CONST and x.arg == 1 else x.alu(Ops.MUL, scale)


def _conditions(value: UOp) -> tuple[list[UOp], UOp]:
    """The conditions outside of which a value is 0, and the value where all hold."""
    clauses: list[UOp] = []
    while value.op is Ops.WHERE and _is_zero(value.src[2]):
        clauses += value.src[0].split_uop(Ops.AND)
        value = value.src[1]
    return clauses, value


def _is_zero(x: UOp) -> bool:
    # not -0.0: x + -0.0 is another thing where x is -0.0
    return x.op is Ops.CONST and x.arg == 0 and math.copysign(1, x.arg) > 0


def _uses(x: UOp, loop: UOp) -> bool:
    return loop in x.postorder()


def _limits(clause: UOp, loop: UOp) -> tuple[UOp | None, UOp | None] | None:
    """(first step at which a condition holds, first at which it no longer does), or None.

    A limit is None where there is none. The condition is a comparison of integer expressions
    in which the loop stands alone with a factor of 1 or -1.
    """
    negated = False
    while clause.op is Ops.CMPNE and clause.src[1].op is Ops.CONST and clause.src[1].arg is True:
        negated, clause = not negated, clause.src[0]
    if clause.op is not Ops.CMPLT or clause.src[0].dtype is not dtypes.index:
        return None
    # a < b, or b - a - 1 >= 0; negated, a - b >= 0
    a, b = clause.src
    form = _around(simplify(a - b if negated else b - a - 1), loop)
    if form is None:
        return None
    factor, rest = form
    if factor == 1:  # loop >= -rest
        return simplify(-rest), None
    return None, simplify(rest + 1)  # loop <= rest


def _around(x: UOp, loop: UOp) -> tuple[int, UOp] | None:
    """x as factor * loop + rest, the factor 1 or -1; None if it is not of that form."""
    factor = 0
    rest = UOp.const(0, dtypes.index)
    for term in x.split_uop(Ops.ADD):
        if term is loop:
            factor += 1
        elif term.op is Ops.MUL and term.src[0] is loop and term.src[1].op is Ops.CONST:
            factor += term.src[1].arg
        elif _uses(term, loop):
            return None
        else:
            rest = rest + term
    return (factor, rest) if factor in (1, -1) else None
