"""Where the values of a kernel matter: what inequalities of its loops hold wherever they do.

A sum of what a condition chooses wants its terms where that holds, and 0 elsewhere; so does all
that such terms are made of. A "partial" STORE wants its value where its condition holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tiny._core.expand import linear_form
from tiny._core.symbolic import simplify
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp

__all__ = ["MOST_KNOWN", "NOTHING", "Inequality", "Known", "inequality_of", "is_masked", "needs_of"]


class Inequality(NamedTuple):
    """sum(factor * range) + constant < 0."""

    terms: frozenset[tuple[UOp, int]]
    constant: int

    def renamed(self, names: Mapping[UOp, UOp]) -> Inequality:
        """The same of other ranges."""
        return Inequality(frozenset([(names.get(r, r), f) for r, f in self.terms]), self.constant)

    def condition(self) -> UOp:
        """It as a node."""
        total = UOp.const(0, dtypes.index)
        for r, factor in sorted(self.terms, key=lambda t: t[0].arg.axis):
            total = total + r * factor
        return simplify(total < UOp.const(-self.constant, dtypes.index))

    def ranges(self) -> set[UOp]:
        """What it depends on."""
        return {r for r, _ in self.terms}


Known = frozenset[Inequality]
NOTHING: Known = frozenset()
MOST_KNOWN = 16  # that are told of a node: to know less is right as well, and no chain is quadratic


def needs_of(nodes: Sequence[UOp]) -> tuple[dict[UOp, Known], dict[UOp, Known]]:
    """What holds wherever the value of a node matters; and at the steps of ranges that do.

    `nodes` are a kernel, sources first.
    """
    wanted: dict[UOp, Known] = {}
    steps: dict[UOp, Known] = {}
    ranges: dict[UOp, set[UOp]] = {}  # that a STAGE is in, with its own
    terms = _Terms()
    ops = {n.op for n in nodes}
    is_partial = any(n.op is Ops.STORE and n.arg == "partial" for n in nodes)
    if Ops.SCAN in ops or (not is_partial and not ops >= {Ops.WHERE, Ops.REDUCE}):
        return wanted, steps  # of a SCAN all steps before the one at hand matter too

    def want(node: UOp, known: Known) -> None:
        wanted[node] = known & wanted[node] if node in wanted else known

    for node in reversed(nodes):
        known = wanted.get(node, NOTHING)
        if node.op is Ops.WHERE:
            condition, chosen, other = node.src
            want(condition, known)
            more = known | terms.of(condition)
            want(chosen, more if len(more) <= MOST_KNOWN else known)
            want(other, known)
            continue
        if node.op is Ops.STORE:
            only = terms.of(node.src[2]) if node.arg == "partial" else NOTHING
            for r in node.src[0].postorder():
                if r.op is Ops.RANGE:
                    steps[r] = steps[r] & only if r in steps else only
            want(node.src[1], only)
            for s in (node.src[0], *node.src[2:]):
                want(s, NOTHING)
            continue
        if node.op is Ops.REDUCE:
            # a reduction around this one may go over the same ranges: what it knows is of its own
            known = frozenset([x for x in known if x.ranges().isdisjoint(node.src[1:])])
            only = known | (terms.of(node.src[0].src[0]) if is_masked(node) else NOTHING)
            for r in node.src[1:]:
                steps[r] = steps[r] & only if r in steps else only
        elif node.op is Ops.STAGE:
            for r in node.src[1:]:
                steps[r] = steps[r] & known if r in steps else known
        elif node.op is Ops.INDEX and node.src[0].op is Ops.STAGE:
            stage, *at = node.src
            own = stage.src[1:]
            if stage not in ranges:
                ranges[stage] = {n for n in stage.postorder() if n.op is Ops.RANGE}
            names = {i: r for i, r in zip(at, own, strict=False) if i.op is Ops.RANGE}
            # of the ranges of the reader only those are known there that it reads at
            lost = {n for i in at for n in i.postorder() if n.op is Ops.RANGE} - set(names)
            inside = ranges[stage].difference(own)
            found = [x for x in known if not x.ranges() & lost]
            found = [x.renamed(names) for x in found if x.ranges() <= inside | set(names)]
            want(stage, frozenset(found))
            for i in at:
                want(i, NOTHING)
            continue
        for s in node.src:
            want(s, known)
    return wanted, steps


def is_masked(node: UOp) -> bool:
    """Whether a reduction is of what a condition chooses, and of what changes nothing elsewhere."""
    value, op = node.src[0], node.arg.op
    if value.op is not Ops.WHERE or value.src[2].op is not Ops.CONST:
        return False
    other = value.src[2].arg
    if op is Ops.ADD:
        return other == 0 and math.copysign(1, other) > 0
    return op is Ops.MAX and other == node.dtype.min


class _Terms:
    """The inequalities that conjunctions say, MOST_KNOWN of each at most."""

    def __init__(self) -> None:
        self.found: dict[UOp, Known] = {}

    def of(self, condition: UOp) -> Known:
        """Those of one; what several share is looked at once."""
        found = self.found
        stack = [condition]
        while stack:
            node = stack.pop()
            if node in found:
                continue
            if node.op is not Ops.AND:
                one = inequality_of(node)
                found[node] = NOTHING if one is None else frozenset([one])
                continue
            todo = [s for s in node.src if s not in found]
            if todo:
                stack += [node, *todo]
                continue
            low, high = [found[s] for s in node.src]
            both = low | high
            found[node] = both if len(both) <= MOST_KNOWN else max(low, high, key=len)
        return found[condition]


def inequality_of(condition: UOp) -> Inequality | None:
    """A comparison of indices, perhaps as integers, or its negation; None if it is no such."""
    is_not = condition.op is Ops.CMPNE and condition.src[1].op is Ops.CONST
    if is_not and condition.src[1].dtype is dtypes.bool and condition.src[1].arg:
        condition = condition.src[0]
    elif is_not:
        return None
    if condition.op is not Ops.CMPLT:
        return None
    low, high = (_as_index(s) for s in condition.src)
    if low is None or high is None:
        return None
    # not a < b: b - a - 1 < 0
    difference = high - low - 1 if is_not else low - high
    constant, terms = linear_form(simplify(difference))
    if not terms or any(t.op is not Ops.RANGE for t, _ in terms):
        return None
    return Inequality(frozenset(terms), constant)


def _as_index(x: UOp) -> UOp | None:
    """An integer as an index, where it is made of one."""
    if x.dtype is dtypes.index:
        return x
    if x.op is Ops.CONST and x.dtype.kind in "iu":
        return UOp.const(int(x.arg), dtypes.index)
    if x.op is Ops.CAST and x.src[0].dtype is dtypes.index and x.dtype.kind in "iu":
        index = x.src[0]
        return index if x.dtype.min <= index.vmin and index.vmax <= x.dtype.max else None
    if x.op is Ops.ADD or x.op is Ops.MUL:
        if x.dtype.kind not in "iu":
            return None
        a, b = (_as_index(s) for s in x.src)
        if a is None or b is None or (x.op is Ops.MUL and b.op is not Ops.CONST):
            return None
        index = a + b if x.op is Ops.ADD else a * b
        return index if x.dtype.min <= index.vmin and index.vmax <= x.dtype.max else None
    return None
