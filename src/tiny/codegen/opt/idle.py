"""Steps of loops that nobody needs: what inequalities say of sums, and of what is kept for them.

A sum over columns of what a condition chooses needs the columns where that may hold; what is kept
for such sums alone is not filled elsewhere. So a loop over columns may begin late or end early,
depending on the loops around it: of a causal mask half of the work is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tiny.codegen.lower.indices import linear_form
from tiny.codegen.lower.tiled import Loop, Need
from tiny.codegen.opt.axes import Part
from tiny.uop.needs import NOTHING, Inequality, Known, inequality_of, is_masked, needs_of
from tiny.uop.ops import AxisType, Ops, UOp
from tiny.uop.passes import compiler_pass

__all__ = [
    "MOST_STEPS",
    "IdleSteps",
    "find_needs",
    "idle_steps",
    "needed_steps",
    "without_implied",
]

MOST_STEPS = 64  # of a reduced axis whose needed steps are counted


class IdleSteps(NamedTuple):
    """Steps of a reduced axis that are not needed everywhere along an output axis, by number.

    Needed are those where factor * output + more * reduced + constant < 0, for each (factor, more,
    constant, 0) of `terms`, and is a multiple of the last one, where that is not 0. A condition
    on the output alone has -1 for `reduced`: it is about the whole sum.
    """

    output: int
    reduced: int
    terms: tuple[tuple[int, int, int, int], ...]

    def needed(self, sizes: Sequence[int], extent: int) -> float:
        """The part of the steps that is run where so many elements go through them together."""
        size, count = sizes[self.output], 0
        steps = sizes[self.reduced] if self.reduced >= 0 else 1
        for step in range(steps):
            low, high, whole = 0, size - 1, []
            for factor, more, constant, multiple in self.terms:
                rest = more * step + constant
                if multiple:
                    whole.append((factor, rest, multiple))
                elif factor > 0:
                    high = min(high, (-rest - 1) // factor)
                else:
                    low = max(low, rest // -factor + 1)
            if not whole:
                count += max(0, high // extent - low // extent + 1)
                continue
            found = [
                place
                for place in range(low, high + 1)
                if all((factor * place + rest) % multiple == 0 for factor, rest, multiple in whole)
            ]
            count += len({place // extent for place in found})
        return count / (steps * -(-size // extent))


def needed_steps(order: Iterable[UOp]) -> dict[UOp, Known]:
    """For ranges of reductions and STAGEs: what holds at each of their steps that is needed.

    `order` is a kernel (level 2), sources first.
    """
    _, steps = needs_of(list(order))
    return {r: frozenset([x for x in known if r in x.ranges()]) for r, known in steps.items()}


def idle_steps(sink: UOp, numbers: Mapping[UOp, int]) -> list[IdleSteps]:
    """Those of the short loops of masked sums of a kernel, with the numbers of its axes."""
    terms: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
    for node in sink.postorder():
        if node.op is not Ops.REDUCE or not is_masked(node):
            continue
        for term in node.src[0].src[0].split_uop(Ops.AND):
            found, multiple = inequality_of(term), 0
            if found is None and (steps := _whole_steps(term)) is not None:
                found, multiple = steps
            factors = {} if found is None else dict(found.terms)
            own = [r for r in factors if r in node.src[1:]]
            others = [r for r in factors if r not in own]
            if found is None or len(own) > 1 or len(others) != 1:
                continue
            if all(r.src[0].vmax <= MOST_STEPS for r in factors if own):
                pair = numbers[others[0]], numbers[own[0]] if own else -1
                more = factors[own[0]] if own else 0
                one = factors[others[0]], more, found.constant, multiple
                terms.setdefault(pair, []).append(one)
    return [IdleSteps(*pair, tuple(found)) for pair, found in terms.items()]


def _whole_steps(condition: UOp) -> tuple[Inequality, int] | None:
    """What has to be a multiple of which number, for a condition that asks for that."""
    if condition.op is not Ops.CMPLT or condition.src[0].op is not Ops.FLOORMOD:
        return None
    (place, step), limit = condition.src[0].src, condition.src[1]
    if step.op is not Ops.CONST or limit.op is not Ops.CONST or limit.arg != 1:
        return None
    form = linear_form(place)
    if any(r.op is not Ops.RANGE for r, _ in form.terms):
        return None
    return Inequality(frozenset(form.terms), form.constant), step.arg


@compiler_pass("drop implied conditions", "kernel", "kernel, loops with fewer conditions")
def without_implied(sink: UOp) -> UOp:
    """The kernel less the choices whose conditions hold wherever they matter."""
    nodes = sink.postorder()
    wanted, _ = needs_of(nodes)
    new: dict[UOp, UOp] = {}
    for node in nodes:
        src = tuple([new[s] for s in node.src])
        new[node] = node if src == node.src else node.replace(src=src)
        known = wanted.get(node, NOTHING)
        if node.op is Ops.WHERE and known:
            terms = [inequality_of(t) for t in node.src[0].split_uop(Ops.AND)]
            if all(x is not None and x in known for x in terms):
                new[node] = src[1]
    return new[sink]


def find_needs(
    order: Sequence[UOp],
    new: Mapping[UOp, UOp],
    ranges: Sequence[UOp],
    values: Mapping[UOp, UOp],
    parts: Mapping[UOp, Part],
    loops: Mapping[int, Loop],
) -> tuple[dict[int, tuple[Need, ...]], tuple[UOp, ...]]:
    """By loop: which iterations are needed; and the conditions that hold in some of them all over.

    `new` is what the nodes of `order` have become, `values` the ranges of the axes (`ranges`, by
    number) as expressions of leaves, which `parts` describes.
    """
    _, every = needs_of(list(order))
    if not any(every.values()):
        return {}, ()
    # those of loops around are not asked for again inside
    bounded = {x for r, known in every.items() for x in known if r in x.ranges()}
    steps = {
        r: frozenset([x for x in known if r in x.ranges() or x not in bounded])
        for r, known in every.items()
    }
    conditions: dict[UOp, int] = {}
    places: dict[Inequality, set[int]] = {}
    for node in order:
        if node.op is Ops.REDUCE and node.src[0].op is Ops.WHERE:
            for term in node.src[0].src[0].split_uop(Ops.AND):
                found = inequality_of(term)
                if found is not None:
                    number = conditions.setdefault(new[term], len(conditions))
                    places.setdefault(found, set()).add(number)
    needs: dict[int, tuple[Need, ...]] = {}
    for entry, loop in loops.items():
        known = steps.get(ranges[loop.axis])
        if not known or loop.is_thread:
            continue
        mine = []
        for x in sorted(known, key=lambda x: (x.constant, len(x.terms))):
            leaves = [p for r in x.ranges() for p, _ in linear_form(values[r]).terms]
            has_lanes = any(p.arg.kind is AxisType.VEC for p in leaves)
            at = set() if has_lanes else places.get(x, set())
            mine.append(_need(x, entry, loop.step, values, parts, tuple(sorted(at))))
        needs[entry] = tuple(mine)
    return needs, tuple(conditions)


def _need(
    x: Inequality,
    entry: int,
    step: int,
    values: Mapping[UOp, UOp],
    parts: Mapping[UOp, Part],
    conditions: tuple[int, ...],
) -> Need:
    """What an inequality says of the iterations of a loop."""
    low = high = x.constant
    factor = 0
    others: dict[int, tuple[UOp, int, int, int]] = {}
    for r, times in x.terms:
        for leaf, size in linear_form(values[r]).terms:
            part, far = parts[leaf], times * size * (leaf.src[0].arg - 1)
            if part.entry == entry:
                factor = times * step
            elif part.entry is None:
                low, high = low + min(far, 0), high + max(far, 0)
            else:
                others[leaf.arg.axis] = (leaf, times * size, min(far, 0), max(far, 0))
    return Need(factor, low, high, tuple([others[k] for k in sorted(others)]), conditions)
