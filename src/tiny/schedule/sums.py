"""Sums over loops that need no loop.

Counting the steps at which conditions hold does for aranges and triangles. Of a sum in which one
step counts, that whose number a value has (an embedding, the label in a loss), that step is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tiny._core.symbolic import simplify
from tiny.dtype import dtypes
from tiny.uop.ops import GroupOp, Ops, UOp


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


def picked_sum(value: UOp, loops: Sequence[UOp]) -> tuple[UOp, list[UOp]]:
    """The sum over loops of a value that is 0 but in one step, without the loops that say which.

    where(k == loop, x, 0) sums to x in step k, and to 0 if there is no such step: a load at an
    index that was loaded, behind a gate.
    """
    left: list[UOp] = []
    for loop in reversed(loops):
        picked = _pick(value, loop)
        if picked is None:
            left.append(loop)
        else:
            value = picked
    return value, left[::-1]


def _pick(value: UOp, loop: UOp) -> UOp | None:
    clauses, x = _conditions(value)
    for c in clauses:
        step = _step_of(c, loop)
        if step is None:
            continue
        there = simplify((step < 0).ne(True) & (step < loop.src[0]))
        others = [o for o in clauses if o is not c]
        parts = _at_step([x, *others], loop, step, there)
        if parts is None:
            return None
        picked, conditions = parts[0], parts[1:]
        if conditions or picked.op is not Ops.INDEX or picked.src[-1] is not there:
            picked = there.where(picked, UOp.const(0, value.dtype))
        for condition in reversed(conditions):
            picked = condition.where(picked, UOp.const(0, value.dtype))
        return picked
    return None


def _step_of(clause: UOp, loop: UOp) -> UOp | None:
    """The step at which k == loop holds, or None if the condition is not of that form."""
    if clause.op is not Ops.CMPEQ or not dtypes.is_int(clause.src[0].dtype):
        return None
    a, b = clause.src
    if _uses(a, loop):
        a, b = b, a
    if _uses(a, loop) or not _uses(b, loop):
        return None
    place = place_of(b)
    form = None if place is None else _around(place, loop)
    if form is None:
        return None
    factor, rest = form
    wanted = a.cast(dtypes.index) - rest
    return simplify(wanted if factor == 1 else -wanted)


def place_of(x: UOp) -> UOp | None:
    """An integer value that is a function of loops alone, as an index expression; or None.

    A number put together of its bits comes out as the loop that it is.
    """
    return _as_indices(x)[x]


def as_index(x: UOp) -> UOp:
    """An integer value as an index: what in it is a function of loops alone, is an expression."""
    known = _as_indices(x)
    new: dict[UOp, UOp] = {}
    for node in x.postorder():
        place = known[node]
        if place is not None and node.op is not Ops.CONST:
            new[node] = place if place.dtype is node.dtype else place.cast(node.dtype)
        elif node.op in _LEAVES:
            new[node] = node
        else:
            src = tuple([new[s] for s in node.src])
            new[node] = node if src == node.src else UOp(node.op, node.dtype, src, node.arg)
    place = known[x]
    return simplify(new[x].cast(dtypes.index)) if place is None else place


_LEAVES = frozenset({Ops.INDEX, Ops.REDUCE, Ops.STAGE, Ops.PARAM, Ops.RANGE, Ops.CONST})


def _as_indices(x: UOp) -> dict[UOp, UOp | None]:
    """By node: the index expression that it equals, or a condition on such; None if it has none."""
    new: dict[UOp, UOp | None] = {}
    for node in x.postorder():
        found: UOp | None = None
        if node.dtype is dtypes.index:
            found = node
        elif node.dtype is dtypes.bool:
            a, b = (new[s] for s in node.src[:2]) if len(node.src) == 2 else (None, None)
            if node.op in GroupOp.Comparison and a is not None and b is not None:
                found = a.alu(node.op, b) if a.dtype is b.dtype else None
            found = simplify(node if found is None else found)
        elif node.op is Ops.CONST and dtypes.is_int(node.dtype) and node.arg < 1 << 63:
            found = UOp.const(node.arg, dtypes.index)
        elif node.op is Ops.CAST and dtypes.is_int(node.src[0].dtype):
            found = new[node.src[0]]
        elif node.op in _OF_INDICES and dtypes.is_int(node.dtype):
            operands = [s for s in (new[s] for s in node.src) if s is not None]
            divides = node.op in (Ops.FLOORDIV, Ops.FLOORMOD)
            if len(operands) == len(node.src) and not (divides and operands[1].vmin <= 0):
                found = operands[0].alu(node.op, *operands[1:])
        elif node.op is Ops.WHERE:
            condition, a, b = (new[s] for s in node.src)
            if condition is not None and condition.op is Ops.CONST:
                found = a if condition.arg else b
            elif a is not None and b is not None and a.dtype is b.dtype is dtypes.index:
                bit = None if condition is None else _bit(condition)
                found = None if bit is None else b + bit * (a - b)
        if found is not None and found.dtype is dtypes.index and node.dtype is not dtypes.index:
            found = simplify(found)
            if found.vmin < node.dtype.min or found.vmax > node.dtype.max:
                found = None  # it may wrap
        new[node] = found
    return new


_OF_INDICES = frozenset({Ops.ADD, Ops.SUB, Ops.MUL, Ops.FLOORDIV, Ops.FLOORMOD, Ops.MAX})


def _bit(condition: UOp) -> UOp | None:
    """A condition that is a bit of an index expression e of few values, as 0 or 1.

    low <= e is e // low where e stays below 2 * low, and with e < 2 * low it is e // low % 2 where
    e stays below 3 * low.
    """
    low, high = 0, None
    e: UOp | None = None
    for c in condition.split_uop(Ops.AND):
        if c.op is Ops.CMPEQ and c.src[0].dtype is dtypes.index and e is None:  # the bit of 1
            low, high, e = 1, 2, c.src[0]
            if c.src[1].op is not Ops.CONST or c.src[1].arg != 1:
                return None
            continue
        if c.op is not Ops.CMPLT or c.src[0].dtype is not dtypes.index:
            return None
        a, b = c.src
        if a.op is Ops.CONST and e in (None, b):
            low, e = a.arg + 1, b
        elif b.op is Ops.CONST and e in (None, a):
            high, e = b.arg, a
        else:
            return None
    if e is None or low < 1 or e.vmin < 0:
        return None
    if high is None:
        return e // low if e.vmax < 2 * low else None
    return e // low % 2 if high == 2 * low and e.vmax < 3 * low else None


def _at_step(values: Iterable[UOp], loop: UOp, step: UOp, there: UOp) -> list[UOp] | None:
    """Values in one step of a loop, loading nothing if it is not there.

    None if a reduction among them depends on the loop: its own loops would be shared by two.
    """
    new: dict[UOp, UOp] = {loop: step}
    results = []
    for value in values:
        for node in value.postorder():
            if node in new:
                continue
            src = tuple([new[s] for s in node.src])
            if src == node.src:
                new[node] = node
                continue
            if node.op in (Ops.REDUCE, Ops.STAGE):
                return None
            if node.op is Ops.INDEX:
                rank = len(node.src[0].shape)
                gate = there
                for g in src[1 + rank :]:
                    gate = simplify(gate & g)
                index = [simplify(i) for i in src[1 : 1 + rank]]
                src = (src[0], *index, gate)
            new[node] = UOp(node.op, node.dtype, src, node.arg)
        results.append(new[value])
    return results
