"""Proofs that a kernel reads and writes inside of its memory.

An index is proved to be inside of a dimension from what is known where the access is made: loops
run from 0 to their sizes, variables keep to their bounds, and where there is a gate, it holds.
Conditions are taken as inequalities between linear forms over *atoms* (loops, variables, what is
loaded, quotients, …). They narrow the range of each atom; then those that share an atom with the
index are subtracted from it (Fourier and Motzkin's elimination, a few steps of it); then cases
are told apart; and if all that is left are a few loops, every step of them is tried.

What is proved is about the numbers that the machine computes: a sum or a product is looked into
only where it can not leave the range of its dtype.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from tiny._core.ops import Ops
from tiny._core.symbolic import simplify
from tiny.dtype import DType, dtypes
from tiny.uop.ops import UOp
from tiny.uop.printing import SIGNS
from tiny.uop.written import written_slots

__all__ = ["AccessError", "check_accesses", "formula"]

ROUNDS = 4  # in which conditions narrow ranges
STEPS = 3  # conditions that are subtracted, one after the other
TRIES = 400  # of subtracting
CASES = 5  # one in another
MOST_CHOICES = 4  # of a case
MOST_ATOMS = 64  # that have inequalities of their own
MOST_POINTS = 1 << 20  # that are tried one by one
MOST_VALUES = 512  # of Variables, for each of which a proof is tried


class AccessError(ValueError):
    """An access of a kernel is not proved to be inside of its memory."""


def check_accesses(sink: UOp, changing: Collection[int] | None = None) -> None:
    """AccessError if an INDEX of a kernel (level 2) may be outside of its PARAM or STAGE.

    `changing` are the slots of PARAMs whose memory is written while the kernel runs, by default
    those that it stores to. A gate that reads them proves nothing: it may be another value that
    is used as the index.
    """
    sink = simplify(sink)
    order = sink.postorder()
    if changing is None:
        changing = set(written_slots(sink))
    for node in order:
        if node.op is not Ops.INDEX:
            continue
        memory, *at = node.src
        shape = memory.shape
        gates = at[len(shape) :]
        for axis, (index, size) in enumerate(zip(at, shape, strict=False)):
            if index.vmin >= 0 and index.vmax < size:
                continue
            terms = [t for g in gates for t in _terms(g) if not _reads_any(t, changing)]
            if not _is_inside(index, size, terms):
                raise AccessError(_message(sink, node, axis))


def _message(sink: UOp, node: UOp, axis: int) -> str:
    memory, *at = node.src
    rank = len(memory.shape)
    name = getattr(sink.arg, "name", "")
    what = "a STAGE" if memory.op is Ops.STAGE else "memory of its own"
    if memory.op is Ops.PARAM:
        what = f"PARAM {memory.arg.slot}"
    gate = f" where {formula(at[rank])}" if len(at) > rank else ""
    index = at[axis]
    return (
        f"kernel {name}: an access to {what} of shape {memory.shape} can not be proved to be "
        f"inside: index {axis} is {formula(index)}{gate}, which is known to be from "
        f"{index.vmin} to {index.vmax}"
    )


def _terms(condition: UOp) -> list[UOp]:
    """The conditions that hold if a conjunction does."""
    return condition.split_uop(Ops.AND) if condition.dtype is dtypes.bool else []


def _reads_any(node: UOp, slots: Collection[int]) -> bool:
    """Whether a condition reads one of these PARAMs when it is evaluated."""
    return any(
        n.op is Ops.INDEX and n.src[0].op is Ops.PARAM and n.src[0].arg.slot in slots
        for n in _expression(node)
    )


_LEAVES = frozenset({Ops.RANGE, Ops.INDEX, Ops.REDUCE, Ops.SCAN, Ops.DEFINE_VAR, Ops.CONST})


def _expression(*roots: UOp) -> list[UOp]:
    """What is computed of leaves (loops, variables, loads, sums), sources first."""
    seen: set[UOp] = set()
    found: list[UOp] = []
    stack: list[tuple[UOp, bool]] = [(r, False) for r in roots]
    while stack:
        node, done = stack.pop()
        if done:
            found.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            if node.op not in _LEAVES:
                stack += [(s, False) for s in node.src]
    return found


# ---------------------------------------------------------------- linear forms


class _Form(NamedTuple):
    """sum(factor * atom) + constant."""

    terms: dict[UOp, int]
    constant: int

    def plus(self, other: _Form, mine: int, theirs: int) -> _Form:
        """mine * this + theirs * other."""
        terms = {a: mine * f for a, f in self.terms.items()}
        for atom, factor in other.terms.items():
            terms[atom] = terms.get(atom, 0) + theirs * factor
        return _Form(
            {a: f for a, f in terms.items() if f}, mine * self.constant + theirs * other.constant
        )

    def add(self, number: int) -> _Form:
        """This and a number."""
        return _Form(self.terms, self.constant + number)


_Range = tuple[int, int]


class _Contradiction(Exception):
    """The conditions can not hold together: the access is never made."""


class _Known:
    """What is known where an access is made: ranges of nodes, and inequalities `form <= 0`."""

    def __init__(self) -> None:
        self.ranges: dict[UOp, _Range] = {}
        self.conditions: list[tuple[UOp, bool]] = []
        self.choices: list[list[tuple[UOp, bool]]] = []  # of each, one holds
        self.limits: list[_Form] = []
        self._seen: dict[UOp, _Range] = {}
        self._forms: dict[UOp, _Form] = {}

    def copy(self) -> _Known:
        """The same, to add to."""
        other = _Known()
        other.ranges = dict(self.ranges)
        other.conditions, other.choices = list(self.conditions), list(self.choices)
        return other

    # ------------------------------------------------------------ conditions

    def add(self, condition: UOp, holds: bool) -> None:
        """A condition that holds, or that does not."""
        stack = [(condition, holds)]
        while stack:
            node, truth = stack.pop()
            self.narrow(node, (int(truth), int(truth)))
            if node.op is Ops.AND or node.op is Ops.OR:
                parts = [(s, truth) for s in node.src]
                if (node.op is Ops.AND) == truth:
                    stack += parts
                else:
                    self.choices.append(parts)
            elif node.op is Ops.CMPNE and _is_true(node.src[1]):
                stack.append((node.src[0], not truth))
            else:
                self.conditions.append((node, truth))

    def narrow(self, node: UOp, to: _Range) -> None:
        """The value of a node is in a range."""
        low, high = self.ranges.get(node) or (int(node.vmin), int(node.vmax))
        low, high = max(low, to[0]), min(high, to[1])
        if low > high:
            raise _Contradiction
        self.ranges[node] = low, high

    def settle(self, roots: Sequence[UOp]) -> None:
        """Narrow the ranges of atoms by all conditions and by what atoms mean.

        The loops of `roots`, the index and its conditions, are being run.
        """
        loops = [
            n for n in _expression(*roots) if n.op is Ops.RANGE and n.src[0].op is not Ops.CONST
        ]
        for _ in range(ROUNDS):
            self._seen.clear()
            self._forms.clear()
            self.limits = []
            for r in loops:
                self.limits.append(self.form(r).plus(self.form(r.src[0]), 1, -1).add(1))
            for node, truth in self.conditions:
                self.limits += self._limits(node, truth)
            self._define(roots)
            before = dict(self.ranges)
            for limit in self.limits:
                self._narrow_by(limit)
            if before == self.ranges:
                return

    def _limits(self, node: UOp, truth: bool) -> list[_Form]:
        """A comparison of integers as inequalities."""
        if node.op not in (Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE) or not _is_integer(node.src[0].dtype):
            return []
        a, b = (self.form(s) for s in node.src)
        if node.op is Ops.CMPLT:
            return [a.plus(b, 1, -1).add(1)] if truth else [b.plus(a, 1, -1)]
        if (node.op is Ops.CMPEQ) == truth:
            return [a.plus(b, 1, -1), b.plus(a, 1, -1)]
        difference = a.plus(b, 1, -1)
        low, high = self.reach(difference)
        if low == 0:
            return [b.plus(a, 1, -1).add(1)]  # unequal, and not less: greater
        if high == 0:
            return [difference.add(1)]
        return []

    def _define(self, roots: Sequence[UOp]) -> None:
        """What quotients are: c * (x // c) <= x <= c * (x // c) + c - 1."""
        for root in roots:
            if _is_integer(root.dtype):
                self.form(root)
        done: set[UOp] = set()
        waiting = [a for f in (*self.limits, *self._forms.values()) for a in f.terms]
        while waiting and len(done) < MOST_ATOMS:
            atom = waiting.pop()
            if atom in done:
                continue
            done.add(atom)
            if atom.op is Ops.FLOORDIV and atom.src[1].op is Ops.CONST and atom.src[1].arg > 0:
                by, x = atom.src[1].arg, self.form(atom.src[0])
                rest = x.plus(_Form({atom: 1}, 0), -1, by)
                self.limits += [rest, rest.plus(_ZERO, -1, 0).add(1 - by)]
                waiting += x.terms
            elif atom.op is Ops.MAX:
                for s in atom.src:
                    x = self.form(s)
                    self.limits.append(x.plus(_Form({atom: 1}, 0), 1, -1))
                    waiting += x.terms

    def _narrow_by(self, limit: _Form) -> None:
        """Each atom of an inequality is bounded by the least that the others can be."""
        lows = {a: f * self.range(a)[0 if f > 0 else 1] for a, f in limit.terms.items()}
        total = limit.constant + sum(lows.values())
        if total > 0:
            raise _Contradiction
        for atom, factor in limit.terms.items():
            rest = total - lows[atom]  # factor * atom <= -rest
            low, high = self.range(atom)
            if factor > 0:
                high = min(high, -rest // factor)
            else:
                low = max(low, -(-rest // -factor))
            if (low, high) != self.range(atom):
                self.narrow(atom, (low, high))
                self._seen[atom] = self.ranges[atom]

    # ------------------------------------------------------------ ranges and forms

    def range(self, node: UOp) -> _Range:
        """Bounds of the value of a node of integers or bool."""
        if node not in self._seen:
            for n in _expression(node):
                if n not in self._seen:
                    self._seen[n] = self._range(n)
        return self._seen[node]

    def _range(self, node: UOp) -> _Range:
        if not _is_integer(node.dtype) and node.dtype is not dtypes.bool:
            return 0, 0  # of no meaning, and read by nobody
        low, high = int(node.vmin), int(node.vmax)
        found = None if node.op in _LEAVES else _result(node, [self._seen[s] for s in node.src])
        if found is not None and _fits(found, node.dtype):
            low, high = max(low, found[0]), min(high, found[1])
        if (known := self.ranges.get(node)) is not None:
            low, high = max(low, known[0]), min(high, known[1])
        if low > high:
            raise _Contradiction
        return low, high

    def form(self, node: UOp) -> _Form:
        """A node of integers as a linear form that has the value which the machine computes."""
        if node in self._forms:
            return self._forms[node]
        for n in _expression(node):
            if n not in self._forms and _is_integer(n.dtype):
                self._forms[n] = self._form(n)
        return self._forms[node]

    def _form(self, node: UOp) -> _Form:
        op, src = node.op, node.src
        low, high = self.range(node)
        if low == high:
            return _Form({}, low)
        if op is Ops.CAST and _is_integer(src[0].dtype) and _fits(self.range(src[0]), node.dtype):
            return self._forms[src[0]]
        if op is Ops.WHERE:
            never, always = self.range(src[0])
            if never == always:
                return self._forms[src[1] if always else src[2]]
        if op in (Ops.ADD, Ops.SUB, Ops.NEG, Ops.MUL):
            exact = _result(node, [self.range(s) for s in src])
            if exact is not None and _fits(exact, node.dtype):
                if op is Ops.NEG:
                    return self._forms[src[0]].plus(_ZERO, -1, 0)
                a, b = (self._forms[s] for s in src)
                if op is not Ops.MUL:
                    return a.plus(b, 1, 1 if op is Ops.ADD else -1)
                if not b.terms:
                    return a.plus(_ZERO, b.constant, 0)
                if not a.terms:
                    return b.plus(_ZERO, a.constant, 0)
        return _Form({node: 1}, 0)

    def reach(self, form: _Form) -> _Range:
        """Bounds of a form, by those of its atoms alone."""
        low = high = form.constant
        for atom, factor in form.terms.items():
            a, b = self.range(atom)
            low += factor * (a if factor > 0 else b)
            high += factor * (b if factor > 0 else a)
        return low, high

    # ------------------------------------------------------------ proofs

    def is_at_most_zero(self, form: _Form) -> bool:
        """Whether a form is at most 0, by ranges and by subtracting inequalities."""
        if self.reach(form)[1] <= 0:
            return True
        tries = TRIES
        waiting = deque([(form, 1, STEPS)])  # so many times the form, less what is at most 0
        while waiting:
            form, times, steps = waiting.popleft()
            for limit in self.limits:
                ratios = dict.fromkeys(
                    (abs(theirs) // g, abs(factor) // g)
                    for atom, factor in form.terms.items()
                    if (theirs := limit.terms.get(atom, 0)) * factor > 0
                    for g in (math.gcd(theirs, factor),)
                )
                for theirs, factor in ratios:
                    less, more = form.plus(limit, theirs, -factor), times * theirs
                    if self.reach(less)[1] < more:  # it is whole: less than 1 is at most 0
                        return True
                    tries -= 1
                    if tries < 0:
                        return False
                    if steps > 1:
                        waiting.append((less, more, steps - 1))
        return False


_ZERO = _Form({}, 0)


def _result(node: UOp, sources: Sequence[_Range]) -> _Range | None:
    """The range of an operation on exact integers from those of its operands, if it has one."""
    op = node.op
    if not all(_is_integer(s.dtype) or s.dtype is dtypes.bool for s in (node, *node.src)):
        return None
    if op is Ops.WHERE:
        (never, always), yes, no = sources
        if never == always:
            return yes if always else no
        return min(yes[0], no[0]), max(yes[1], no[1])
    if node.dtype is dtypes.bool:
        return None
    if op is Ops.CAST:
        return sources[0]
    if op is Ops.NEG:
        return -sources[0][1], -sources[0][0]
    if len(sources) != 2:
        return None
    (a, b), (c, d) = sources
    if op is Ops.ADD:
        return a + c, b + d
    if op is Ops.SUB:
        return a - d, b - c
    if op is Ops.MUL:
        corners = (a * c, a * d, b * c, b * d)
        return min(corners), max(corners)
    if op is Ops.MAX:
        return max(a, c), max(b, d)
    if op is Ops.FLOORDIV and c > 0:
        corners = (a // c, a // d, b // c, b // d)
        return min(corners), max(corners)
    if op is Ops.FLOORMOD and c > 0:
        if c == d and a // c == b // c:
            return a % c, b % c
        return 0, min(d - 1, b) if a >= 0 else d - 1
    return None


def _is_integer(dtype: DType) -> bool:
    return dtype.kind in "iux" or dtype is dtypes.weakint


def _fits(bounds: _Range, dtype: DType) -> bool:
    return dtype.min <= bounds[0] and bounds[1] <= dtype.max


def _is_true(x: UOp) -> bool:
    return x.op is Ops.CONST and x.dtype is dtypes.bool and x.arg is True


def _is_inside(index: UOp, size: int, terms: Sequence[UOp]) -> bool:
    """Whether 0 <= index < size wherever all terms hold."""
    known = _Known()
    try:
        for term in terms:
            known.add(term, True)
    except _Contradiction:
        return True
    return (
        _holds_in_all_cases(known, index, size, terms, CASES)
        or _holds_at_all_points(index, size, terms)
        or _holds_for_all_values(index, size, terms)
    )


def _holds_in_all_cases(
    known: _Known, index: UOp, size: int, terms: Sequence[UOp], depth: int
) -> bool:
    try:
        known.settle([index, *terms])
        form = known.form(index)
        if known.is_at_most_zero(form.plus(_ZERO, -1, 0)) and known.is_at_most_zero(
            form.add(1 - size)
        ):
            return True
        cases = _cases(known, index) if depth else []
    except _Contradiction:
        return True
    for condition, truth in cases:
        case = known.copy()
        try:
            case.add(condition, truth)
        except _Contradiction:
            continue
        if not _holds_in_all_cases(case, index, size, terms, depth - 1):
            return False
    return bool(cases)


def _cases(known: _Known, index: UOp) -> list[tuple[UOp, bool]]:
    """Conditions of which at least one holds, to look at one after the other."""
    for n in _expression(index):
        if n.op is Ops.WHERE:
            low, high = known.range(n.src[0])
            if low != high:
                return [(n.src[0], True), (n.src[0], False)]
    for choice in known.choices:
        if len(choice) <= MOST_CHOICES and all(
            known.range(c)[0] != known.range(c)[1] for c, _ in choice
        ):
            return choice
    return []


# ---------------------------------------------------------------- trying all steps


def _holds_at_all_points(index: UOp, size: int, terms: Sequence[UOp]) -> bool:
    """Whether 0 <= index < size at every step of its loops where all terms hold.

    Only for an index of loops and variables that have few values together. Terms that depend on
    something else are left out.
    """
    free = _free(index)
    if free is None:
        return False
    of_terms = [(t, _free(t)) for t in terms]
    mine = [t for t, theirs in of_terms if theirs is not None and theirs <= free]
    points = math.prod([int(v.vmax - v.vmin + 1) for v in free])
    if not 0 < points <= MOST_POINTS:
        return False
    grids: dict[UOp, Any] = {}
    for axis, v in enumerate(free):
        shape = [-1 if k == axis else 1 for k in range(len(free))]
        grids[v] = np.arange(v.vmin, v.vmax + 1, dtype=np.int64).reshape(shape)
    values = _evaluate([index, *mine], grids)
    if values is None:
        return False
    at, *conditions = values
    outside = (at < 0) | (at >= size)
    for holds in conditions:
        outside = outside & holds
    return not np.any(outside)


def _holds_for_all_values(index: UOp, size: int, terms: Sequence[UOp]) -> bool:
    """Whether it is proved for each value of the Variables of an index, if those are few.

    So an index divided by a Variable is linear, and a loop as long as a product has a length.
    """
    variables = [v for v in index.variables() if _is_integer(v.dtype)]
    ranges = [range(int(v.vmin), int(v.vmax) + 1) for v in variables]
    if not variables or math.prod(map(len, ranges)) > MOST_VALUES:
        return False
    all_of = UOp.sink(index, *terms)
    for values in itertools.product(*ranges):
        pairs = zip(variables, values, strict=True)
        at, *conditions = simplify(
            all_of.substitute({v: v.const_like(value) for v, value in pairs}, walk=True)
        ).src
        if any(n.op is Ops.RANGE and n.src[0].vmax < 1 for n in _expression(at)):
            continue  # no step of that loop is run
        if not _is_inside(at, size, [t for c in conditions for t in _terms(c)]):
            return False
    return True


def _free(node: UOp) -> set[UOp] | None:
    """The loops and variables that a value is computed of; None if there is anything else."""
    found = set()
    for n in _expression(node):
        if n.op is Ops.RANGE:
            if n.src[0].op is not Ops.CONST:
                return None
            found.add(n)
        elif n.op is Ops.DEFINE_VAR and _is_integer(n.dtype):
            found.add(n)
        elif n.op is not Ops.CONST and n.op not in _EXACT:
            return None
    return found


_EXACT: dict[Ops, Callable[..., Any]] = {
    Ops.ADD: lambda a, b: a + b,
    Ops.SUB: lambda a, b: a - b,
    Ops.MUL: lambda a, b: a * b,
    Ops.NEG: lambda a: -a,
    Ops.MAX: np.maximum,
    Ops.FLOORDIV: lambda a, b: a // b,
    Ops.FLOORMOD: lambda a, b: a % b,
    Ops.CMPLT: lambda a, b: a < b,
    Ops.CMPEQ: lambda a, b: a == b,
    Ops.CMPNE: lambda a, b: a != b,
    Ops.WHERE: np.where,
    Ops.CAST: lambda a: np.asarray(a, dtype=np.int64),
    Ops.AND: lambda a, b: a & b,
    Ops.OR: lambda a, b: a | b,
}


def _evaluate(roots: Sequence[UOp], values: dict[UOp, Any]) -> list[Any] | None:
    """The values of expressions at all points; None where one might leave its dtype."""
    for node in _expression(*roots):
        if node in values:
            continue
        if node.op is Ops.CONST:
            values[node] = np.asarray(node.arg)
        elif _is_exact(node):
            values[node] = _EXACT[node.op](*[values[s] for s in node.src])
        else:
            return None
    return [values[r] for r in roots]


_CONDITIONS = frozenset({Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE, Ops.AND, Ops.OR})


def _is_exact(node: UOp) -> bool:
    """Whether bounds show that the value neither wraps nor outgrows the arithmetic of NumPy."""
    if node.dtype is dtypes.bool:
        return node.op in _CONDITIONS
    exact = _result(node, [(int(s.vmin), int(s.vmax)) for s in node.src])
    return (
        exact is not None and _fits(exact, node.dtype) and -(2**62) < exact[0] <= exact[1] < 2**62
    )


# ---------------------------------------------------------------- text


def formula(node: UOp, width: int = 200) -> str:
    """An expression as people write it; loops are r0, r1, …, what is loaded is named after its
    PARAM. What is longer than `width` is cut."""
    texts: dict[UOp, tuple[str, int]] = {}
    for n in _expression(node):
        text, strength = _text(n, texts)
        texts[n] = text[: width + 1], strength
    text = texts[node][0]
    return text if len(text) <= width else f"{text[:width]}…"


def _text(n: UOp, texts: dict[UOp, tuple[str, int]]) -> tuple[str, int]:
    if n.op is Ops.CONST:
        return str(n.arg), 9
    if n.op is Ops.RANGE:
        return f"r{n.arg.axis}", 9
    if n.op is Ops.DEFINE_VAR:
        return str(n.arg.name), 9
    if n.op is Ops.INDEX:
        memory = n.src[0]
        name = f"PARAM {memory.arg.slot}" if memory.op is Ops.PARAM else "STAGE"
        return f"<{n.dtype.name} of {name}>", 9
    if n.op in _LEAVES:
        return f"<{n.op.name.lower()}>", 9
    if n.op is Ops.CAST and n.dtype is dtypes.index:
        return texts[n.src[0]]
    if n.op in SIGNS:
        sign, strength = SIGNS[n.op]
        (a, left), (b, right) = (texts[s] for s in n.src)
        if n.op is Ops.ADD and b.startswith("-") and right > strength:
            sign, b = "-", b[1:]
        # comparisons are in no row
        a = a if left > strength or (left == strength and strength != 3) else f"({a})"
        return f"{a} {sign} {b if right > strength else f'({b})'}", strength
    name = n.dtype.name if n.op is Ops.CAST else n.op.name.lower()
    return f"{name}({', '.join([texts[s][0] for s in n.src])})", 9
