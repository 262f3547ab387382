"""Steps of a summing loop at which its conditions can never hold, cut off at its end.

The gradient of a convolution of 5 taps comes as windows of 6, the last of which is padding
wherever one looks: no single condition says so, but all of them together do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiny._core.symbolic import simplify
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp

MOST_CUT = 8  # steps tried for a loop
SWEEPS = 3  # of the bounds through all conditions

# sum(factor * loop) + constant >= 0
Inequality = tuple[dict[UOp, int], int]


def shorter_loops(nodes: Iterable[UOp]) -> dict[UOp, int]:
    """The loops of a kernel's sums that can end sooner, with the steps they need."""
    steps: dict[UOp, int] = {}
    for node in nodes:
        if node.op is not Ops.REDUCE:
            continue
        needed = dict.fromkeys(node.src[1:])
        known = _conditions(node) if node.arg.op is Ops.ADD else []
        for loop in needed:
            size = loop.src[0]
            if size.op is not Ops.CONST:
                continue
            most = _last_step(loop, known) + 1 if known else size.arg
            steps[loop] = max(steps.get(loop, 1), most)
    return {loop: n for loop, n in steps.items() if n < loop.src[0].arg}


def _conditions(node: UOp) -> list[Inequality]:
    """What must hold for the body of a sum not to be 0, as far as it is linear in loops."""
    body = node.src[0]
    if body.op is not Ops.WHERE or body.src[2].op is not Ops.CONST or body.src[2].arg != 0:
        return []
    found = [inequality(c) for c in body.src[0].split_uop(Ops.AND)]
    return [c for c in found if c is not None]


def inequality(clause: UOp) -> Inequality | None:
    """A comparison of integers as a linear form that is at least 0, or None."""
    negated = False
    while clause.op is Ops.CMPNE and clause.src[1].op is Ops.CONST and clause.src[1].arg is True:
        negated, clause = not negated, clause.src[0]
    if clause.op is not Ops.CMPLT or clause.src[0].dtype is not dtypes.index:
        return None
    a, b = clause.src
    # a < b is b - a - 1 >= 0
    return sum_of_loops(simplify(a - b if negated else b - a - 1))


def sum_of_loops(expr: UOp) -> tuple[dict[UOp, int], int] | None:
    """An index as (factor of each loop, constant); None if it is no sum of multiples of loops."""
    factors: dict[UOp, int] = {}
    constant = 0
    for term in expr.split_uop(Ops.ADD):
        atom, factor = term, 1
        if term.op is Ops.MUL and term.src[1].op is Ops.CONST:
            atom, factor = term.src[0], term.src[1].arg
        if atom.op is Ops.CONST:
            constant += atom.arg * factor
        elif atom.op is Ops.RANGE:
            factors[atom] = factors.get(atom, 0) + factor
        else:
            return None
    return factors, constant


def _last_step(loop: UOp, conditions: Sequence[Inequality]) -> int:
    """The last step of a loop at which the conditions may hold; later ones were looked at."""
    last = int(loop.vmax)
    if not any(loop in factors for factors, _ in conditions):
        return last
    for step in range(last, max(last - MOST_CUT, 0), -1):
        if _may_hold(conditions, {loop: (step, step)}):
            return step
    return max(last - MOST_CUT, 0)


def _may_hold(conditions: Sequence[Inequality], bounds: dict[UOp, tuple[int, int]]) -> bool:
    """Whether narrowing the bounds of all loops by the conditions leaves some of each."""
    for _ in range(SWEEPS):
        for factors, constant in conditions:
            ends = {}
            for x, f in factors.items():
                low, high = bounds.setdefault(x, (int(x.vmin), int(x.vmax)))
                ends[x] = f * (high if f > 0 else low)
            most = constant + sum(ends.values())
            if most < 0:
                return False
            for x, f in factors.items():
                # f * x >= -(the most that the rest can be)
                rest = most - ends[x]
                low, high = bounds[x]
                if f > 0:
                    low = max(low, -(rest // f))
                else:
                    high = min(high, rest // -f)
                if low > high:
                    return False
                bounds[x] = (low, high)
    return True


def without_needless_gates(body: UOp) -> UOp:
    """where(condition, x, 0) with no gate on what x loads in bounds.

    Where the condition is false x may be anything, so a gate that only repeats it is not needed.
    """
    if body.op is not Ops.WHERE:
        return body
    condition, value, zero = body.src
    holds = set(condition.split_uop(Ops.AND))
    new: dict[UOp, UOp] = {}
    for node in value.postorder():
        if node.op is Ops.STAGE:
            new[node] = node  # others may read it, under other conditions
            continue
        src = tuple([new[s] for s in node.src])
        if node.op is Ops.INDEX and len(src) == len(src[0].shape) + 2:
            inside = all(
                i.vmin >= 0 and i.vmax < n for i, n in zip(src[1:-1], src[0].shape, strict=True)
            )
            if inside and holds.issuperset(src[-1].split_uop(Ops.AND)):
                src = src[:-1]
        new[node] = node if src == node.src else UOp(node.op, node.dtype, src, node.arg)
    return UOp(Ops.WHERE, body.dtype, (condition, new[value], zero))
