"""Conditions on loads and sums: put where they cost least, before a kernel is tiled.

What the gradient of a convolution looks like: sums over parts of a window, one in another, each
with a condition of its own, over a product of two loads that have all conditions as gates. It
becomes one sum over all ranges, of a product under one condition, and loads that are gated only
where their own address needs it. So a load is shared by all neighbours that use it, and a fused
multiply-add is masked as a whole.

Exact, but for the order in which a sum adds up and the sign of a sum of nothing but zeros.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from tiny._core.symbolic import simplify
from tiny.codegen.lower.indices import all_of, bounds, without_true_gates
from tiny.codegen.lower.tiled import axis_masks
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp
from tiny.uop.passes import compiler_pass

__all__ = ["place_conditions"]

Terms = frozenset[UOp]  # conditions that hold together


@compiler_pass("place conditions", "kernel", "kernel, each condition where it is needed")
def place_conditions(sink: UOp, strict: bool = False) -> UOp:
    """The kernel (level 2) with canonical indices, merged sums, and gates only on addresses.

    With `strict`, sums are not merged: each adds up in its own order.
    """
    sink = _without_idle_steps(simplify(_Placing(simplify(sink), strict).sink()))
    return without_true_gates(sink)


class _Placing:
    """One walk. `masked` says of a new node that it is `inner` where all terms hold, else 0."""

    def __init__(self, sink: UOp, strict: bool) -> None:
        self.strict = strict
        self.order = sink.postorder()
        ranges = [n for n in self.order if n.op is Ops.RANGE]
        self.axes = axis_masks(self.order, {r: 1 << k for k, r in enumerate(ranges)})
        self.uses = Counter(s for n in self.order for s in n.src)
        self.new: dict[UOp, UOp] = {}
        self.masked: dict[UOp, tuple[Terms, UOp]] = {}
        # gated loads that are no addresses of stores
        self.targets = {n.src[0] for n in self.order if n.op is Ops.STORE}

    def sink(self) -> UOp:
        for node in self.order:
            src = tuple([self.new[s] for s in node.src])
            self.new[node] = self.place(node, node if src == node.src else node.replace(src=src))
        return self.new[self.order[-1]]

    def place(self, old: UOp, node: UOp) -> UOp:
        if node.op is Ops.INDEX and old not in self.targets:
            return self.load(old, node)
        if node.op is Ops.MUL and not (node.src[0].op is Ops.CONST or node.src[1].op is Ops.CONST):
            return self.product(node)
        if node.op is Ops.WHERE and _is_zero(node.src[2]):
            terms, inner = self.masked.get(node.src[1], (frozenset(), node.src[1]))
            return self.mask(terms.union(_terms(node.src[0])), inner)
        if node.op is Ops.REDUCE and node.arg.op is Ops.ADD:
            return self.sum(old, node)
        return node

    def mask(self, terms: Terms, inner: UOp) -> UOp:
        """`inner` where the terms hold; those that it is masked by already are left out."""
        known, _ = self.masked.get(inner, (frozenset(), inner))
        rest = terms - known
        node = _all_of(rest).where(inner, inner.const_like(0)) if rest else inner
        self.masked[node] = (terms, inner)
        return node

    def load(self, old: UOp, node: UOp) -> UOp:
        """A gate on the axes of the address stays one; conditions on others follow the load."""
        memory, *at = node.src
        rank = len(memory.shape)
        if len(at) == rank:
            return node
        mine = 0
        for i in old.src[1 : 1 + rank]:
            mine |= self.axes[i]
        before = {self.new[t]: self.axes[t] for t in _terms(old.src[-1])}
        terms = _terms(at[-1])
        moved = [t for t in terms if before.get(t, ~0) & ~mine]
        if not moved:
            self.masked[node] = (terms, node)
            return node
        kept = terms.difference(moved)
        gate = [*kept, *bounds(at[:rank], memory.shape)]
        src = (memory, *at[:rank], _all_of(gate)) if gate else (memory, *at[:rank])
        inner = node.replace(src=src)
        if kept:
            self.masked[inner] = (kept, inner)
        return self.mask(terms, inner)

    def product(self, node: UOp) -> UOp:
        """Two factors under the same terms: their product under them."""
        (a_terms, a), (b_terms, b) = (self.masked.get(s, (None, s)) for s in node.src)
        if a_terms is None or a_terms != b_terms or (a is node.src[0] and b is node.src[1]):
            return node
        return self.mask(a_terms, a * b)

    def sum(self, old: UOp, node: UOp) -> UOp:
        """A sum of sums, each under conditions that do not depend on its own ranges: one sum."""
        terms, inner = self.masked.get(node.src[0], (frozenset(), node.src[0]))
        if self.strict or inner.op is not Ops.REDUCE or inner.arg.op is not Ops.ADD:
            return node
        below = old.src[0]
        while below.op is not Ops.REDUCE:  # all of it is for this sum only
            if self.uses[below] > 1 or below.op is not Ops.WHERE:
                return node
            below = below.src[1]
        if self.uses[below] > 1:
            return node
        inner_terms, value = self.masked.get(inner.src[0], (frozenset(), inner.src[0]))
        ranges = sorted((*node.src[1:], *inner.src[1:]), key=lambda r: r.arg.axis)
        if len(set(ranges)) < len(ranges):
            return node
        return node.replace(src=(self.mask(terms | inner_terms, value), *ranges))


def _is_zero(x: UOp) -> bool:
    """Whether this is the 0 that a load which is off gives, and not -0.0."""
    is_zero = x.op is Ops.CONST and x.arg == 0 and x.dtype is not dtypes.bool
    return is_zero and math.copysign(1, x.arg) > 0


def _terms(condition: UOp) -> Terms:
    """The conditions that a conjunction is made of."""
    return frozenset(condition.split_uop(Ops.AND))


def _all_of(terms: Iterable[UOp]) -> UOp:
    """Their conjunction, in an order that does not depend on addresses."""
    return all_of(sorted(terms, key=lambda t: t.key))


def _without_idle_steps(sink: UOp) -> UOp:
    """Ranges of a masked sum shortened by last steps in which the mask never holds."""
    order = sink.postorder()
    sums = [n for n in order if n.op is Ops.REDUCE]
    uses = Counter(r for n in sums for r in n.src[1:])
    shorter: dict[UOp, UOp] = {}
    for node in sums:
        value = node.src[0]
        if node.arg.op is not Ops.ADD or value.op is not Ops.WHERE or not _is_zero(value.src[2]):
            continue
        for r in node.src[1:]:
            size = n = r.src[0].arg if r.src[0].op is Ops.CONST else 0
            while n > 1 and uses[r] == 1 and _is_never(value.src[0], r, n - 1):
                n -= 1
            if n < size:
                shorter[r] = r.replace(src=(r.src[0].const_like(n),))
    return simplify(sink.substitute(shorter)) if shorter else sink


def _is_never(condition: UOp, r: UOp, at: int) -> bool:
    """Whether a condition is false whenever `r` is `at`."""
    there = simplify(condition.substitute({r: r.const_like(at)}))
    return there.op is Ops.CONST and not there.arg
