"""Gradients of what moves by more than one step: each remainder of an index by the step, a phase.

An element of the gradient of a strided window sees only those elements of the window from which
whole steps lead to it: a sum over all of them under conditions (y - k + c) % s == 0. With
y = s * y' + phase, k = s * k' + what the phase asks for, the conditions hold always, the loop
over k' is shorter by the step, and indices that were quotients are sums.

Exact, in the order in which the sums added up before.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from tiny._core.symbolic import simplify
from tiny.codegen.lower.indices import all_of, inside, linear_form, without_true_gates
from tiny.dtype import dtypes
from tiny.helpers import ceildiv
from tiny.uop.ops import Ops, RangeArg, UOp
from tiny.uop.passes import compiler_pass

__all__ = ["split_phases"]


class _Steps(NamedTuple):
    """(factor * output + more * reduced + constant) % step == 0; `reduced` None for none."""

    output: UOp
    factor: int
    reduced: UOp | None
    more: int
    constant: int
    step: int


@compiler_pass("split phases", "kernel", "kernel, strided windows as remainders")
def split_phases(sink: UOp) -> UOp:
    """A kernel (level 2, its conditions placed) whose strided sums are split into phases.

    An output range is split where its size is a multiple of the step, or where the condition is
    about all of a sum: phases that see nothing are then only stores, and the last elements of
    those that are shorter are not stored. Of sums that share steps of a window rows may go through
    those that are needed by themselves, which costs less than conditions at the end.
    """
    order = sink.postorder()
    sums = [n for n in order if n.op is Ops.REDUCE]
    if not sums or not any(n.op is Ops.FLOORMOD for n in order):
        return sink
    stores = [n for n in order if n.op is Ops.STORE]
    kept = {r for n in order if n.op in (Ops.STAGE, Ops.SCAN) for r in n.src[1:]}
    uses = Counter(r for n in sums for r in n.src[1:])
    last = max(n.arg.axis for n in order if n.op is Ops.RANGE)
    phases: dict[UOp, tuple[UOp, int]] = {}  # of output ranges: the phase, and the step
    new: dict[UOp, UOp] = {}  # what stands for a range
    left: dict[UOp, tuple[UOp, ...]] = {}  # of a reduced range: the one that is summed over now
    for s in (s for node in (*sums, *stores) for s in _conditions(node, uses)):
        if s.output not in phases:
            size = s.output.src[0].arg
            is_uneven = size % s.step != 0 and s.reduced is not None
            if size <= s.step or is_uneven or s.output in kept:
                continue
            last += 1
            phase = _shorter(s.output, s.step, last)
            outer = _shorter(s.output, ceildiv(size, s.step))
            phases[s.output] = phase, s.step
            new[s.output] = outer * s.step + phase
        phase, step = phases[s.output]
        if s.reduced is None or s.reduced in new or step != s.step or math.gcd(s.more, step) > 1:
            continue
        count = -(-s.reduced.src[0].arg // step)
        left[s.reduced] = (_shorter(s.reduced, count),) if count > 1 else ()
        new[s.reduced] = _start(s, phase)
        for r in left[s.reduced]:
            new[s.reduced] = new[s.reduced] + r * step
    return without_true_gates(simplify(_over(order, new, left))) if phases else sink


def _shorter(r: UOp, size: int, number: int = -1) -> UOp:
    """A range of another size, perhaps with another number."""
    end = UOp.const(size, dtypes.index)
    return r.replace(src=(end,), arg=r.arg if number < 0 else RangeArg(number, r.arg.kind))


def _conditions(node: UOp, uses: Counter[UOp]) -> list[_Steps]:
    """Those of a masked sum that ask for whole steps, of one output and at most one own range.

    `node` is the sum, or a store of what is 0 where the condition does not hold.
    """
    found: list[_Steps] = []
    if node.op is Ops.REDUCE and node.arg.op is not Ops.ADD:
        return found
    value, loops = (node.src[1], ()) if node.op is Ops.STORE else (node.src[0], node.src[1:])
    for term in _terms_of(value):
        if term.op is not Ops.CMPLT or term.src[0].op is not Ops.FLOORMOD:
            continue
        (place, step), limit = term.src[0].src, term.src[1]
        if step.op is not Ops.CONST or limit.op is not Ops.CONST or limit.arg != 1:
            continue
        form = linear_form(place)
        ranges = dict(form.terms)
        if any(r.op is not Ops.RANGE or r.src[0].op is not Ops.CONST for r in ranges):
            continue
        reduced = [r for r in ranges if r in uses]
        outputs = [r for r in ranges if r not in uses]
        if len(outputs) != 1 or len(reduced) > 1 or any(uses[r] > 1 for r in reduced):
            continue
        own = reduced[0] if reduced else None
        if own is not None and own not in loops:
            continue
        more = 0 if own is None else ranges[own]
        found.append(_Steps(outputs[0], ranges[outputs[0]], own, more, form.constant, step.arg))
    return found


def _terms_of(value: UOp) -> list[UOp]:
    """Conditions without each of which a value is 0."""
    terms: list[UOp] = []
    while value.op is Ops.WHERE and value.src[2].op is Ops.CONST and value.src[2].arg == 0:
        terms += value.src[0].split_uop(Ops.AND)
        value = value.src[1]
    if value.op is Ops.INDEX and len(value.src) > 1 + len(value.src[0].shape):
        terms += value.src[-1].split_uop(Ops.AND)
    return terms


def _start(s: _Steps, phase: UOp) -> UOp:
    """The first element of the reduced range from which whole steps lead to a phase."""
    back = pow(-s.more, -1, s.step)
    starts = [back * (s.factor * k + s.constant) % s.step for k in range(s.step)]
    rise = starts[1] - starts[0]
    if all(starts[k] == starts[0] + rise * k for k in range(s.step)):
        return phase * rise + starts[0]
    return (phase * (back * s.factor % s.step) + back * s.constant % s.step) % s.step


def _over(order: list[UOp], new: dict[UOp, UOp], left: dict[UOp, tuple[UOp, ...]]) -> UOp:
    """The kernel over the new ranges. What lies beyond the end of an old one counts for nothing."""
    done = dict(new)
    written = {n.src[0] for n in order if n.op is Ops.STORE}
    for node in order:
        if node in new:
            continue
        src = tuple([done[s] for s in node.src])
        if node.op is Ops.INDEX and src != node.src:
            memory, *at = [simplify(s) for s in src]
            rank = len(memory.shape)
            bounds = inside(at[:rank], memory.shape)
            gate = _both(at[rank] if len(at) > rank else None, bounds)
            if node in written:  # there may be elements of others
                gate = _both(gate, _before_ends(node, new))
            src = (memory, *at[:rank], *([] if gate is None else [gate]))
        elif node.op is Ops.REDUCE:
            value = _without_idle_gates(simplify(src[0])) if src[0] is not node.src[0] else src[0]
            own = [r for old in node.src[1:] for r in left.get(old, (old,))]
            beyond = [r for r in node.src[1:] if r in new and new[r].vmax >= r.src[0].arg]
            if beyond:
                short = all_of([simplify(new[r] < r.src[0].arg) for r in beyond])
                if value.op is Ops.WHERE:
                    value = value.replace(src=(value.src[0] & short, *value.src[1:]))
                else:
                    value = short.where(value, value.const_like(0))
            if not own:
                done[node] = value
                continue
            src = (value, *own)
        done[node] = node if src == node.src else node.replace(src=src)
    return done[order[-1]]


def _before_ends(index: UOp, new: dict[UOp, UOp]) -> UOp | None:
    """The condition that what stands for the ranges of an index is not beyond their ends."""
    ranges = [n for n in index.postorder() if n.op is Ops.RANGE and n in new]
    beyond = [r for r in ranges if new[r].vmax >= r.src[0].arg]
    return all_of([simplify(new[r] < r.src[0].arg) for r in beyond]) if beyond else None


def _without_idle_gates(value: UOp) -> UOp:
    """A masked value whose loads have only those of its conditions that their addresses need.

    What they load where it is 0 anyway does not matter.
    """
    terms = set(_terms_of(value))
    new: dict[UOp, UOp] = {}
    for node in value.postorder() if terms else ():
        if node.op is not Ops.INDEX or len(node.src) == 1 + len(node.src[0].shape):
            continue
        memory, *at, gate = node.src
        bounds = inside(at, memory.shape)
        needed = set() if bounds is None else set(simplify(bounds).split_uop(Ops.AND))
        gates = gate.split_uop(Ops.AND)
        kept = [t for t in gates if t in needed or t not in terms]
        if len(kept) < len(list(gate.split_uop(Ops.AND))) and node is not _innermost(value):
            new[node] = node.replace(src=(memory, *at, *([all_of(kept)] if kept else [])))
    return value.substitute(new, walk=True) if new else value


def _innermost(value: UOp) -> UOp:
    """What is selected where all conditions hold."""
    while value.op is Ops.WHERE:
        value = value.src[1]
    return value


def _both(gate: UOp | None, bounds: UOp | None) -> UOp | None:
    """Two conditions, each part of them once."""
    terms = dict.fromkeys(
        [t for g in (gate, bounds) if g is not None for t in g.split_uop(Ops.AND)]
    )
    return all_of(list(terms)) if terms else None
