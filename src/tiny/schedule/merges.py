"""Loops that only walk memory in step are one loop.

Where every access of a kernel moves on by the same number of elements at the end of loop b as one
step of the loop a around it moves, (a, b) is one loop of size(a) * size(b) steps: an elementwise
kernel over contiguous memory is a single loop whatever the shape, and a vector need not end with
a short last dimension. Where several loops walk one buffer (those of a mean, of a variance and of
what is stored), their pairs are merged together, or none is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tiny._core.symbolic import simplify
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, ParamArg, StageArg, UOp

_ZERO = UOp.const(0, dtypes.index)
Pair = tuple[UOp, UOp]  # a loop, and the one inside it
_BINDERS = (Ops.REDUCE, Ops.STAGE)  # they run loops of their own


class _Access:
    """An INDEX, its index expressions as linear forms: factors of loops, and other terms.

    Or a STAGE, which is written at its own loops.
    """

    def __init__(self, node: UOp) -> None:
        self.node = node
        self.buffer = node if node.op is Ops.STAGE else node.src[0]
        self.rank = len(self.buffer.shape)
        self.dims = list(node.src[1 : 1 + self.rank])
        self.gate = node.src[1 + self.rank :]
        self.forms = [_form(e) for e in self.dims]

    def dims_of(self, loop: UOp) -> list[int] | None:
        """The dimensions whose index uses a loop; None if one is not linear in it."""
        found = []
        for k, (factors, others) in enumerate(self.forms):
            if loop in others:
                return None
            if loop in factors:
                found.append(k)
        return found

    def loops_at(self, p: int, q: int) -> Pair | None:
        """The loops that two dimensions follow, if each follows one."""
        pair: list[UOp] = []
        for factors, others in (self.forms[p], self.forms[q]):
            if others or len(factors) != 1:
                return None
            pair += factors
        return pair[0], pair[1]


def _form(expr: UOp) -> tuple[dict[UOp, int], set[UOp]]:
    """(factor by loop, the loops that other terms use)."""
    factors: dict[UOp, int] = {}
    others: set[UOp] = set()
    for term in expr.split_uop(Ops.ADD):
        atom, factor = term, 1
        if term.op is Ops.MUL and term.src[1].op is Ops.CONST:
            atom, factor = term.src[0], term.src[1].arg
        if atom.op is Ops.RANGE:
            factors[atom] = factors.get(atom, 0) + factor
        elif atom.op is not Ops.CONST:
            others.update(n for n in atom.postorder() if n.op is Ops.RANGE)
    return factors, others


def merge_loops(sink: UOp) -> UOp:
    """The kernel with loops merged where all accesses allow it. Axes keep the outer's number."""
    nodes = sink.postorder()
    loops = sorted((n for n in nodes if n.op is Ops.RANGE), key=lambda r: r.arg.axis)
    if len(loops) < 2:
        return sink
    accesses = {n: _Access(n) for n in nodes if n.op in (Ops.INDEX, Ops.STAGE)}
    shapes = {x.buffer: list(x.buffer.shape) for x in accesses.values()}
    fixed = _used_otherwise(nodes)
    owners: dict[UOp, list[UOp]] = {}
    for n in nodes:
        for loop in n.src[1:] if n.op in _BINDERS else ():
            owners.setdefault(loop, []).append(n)
    dropped: dict[UOp, UOp | None] = {}  # loops that are gone: None, or the one instead

    def follows(a: UOp, b: UOp) -> bool:
        """Whether b is the next loop after a, in the same nest, and both may change."""
        at = loops.index(a)
        return (
            loops[at + 1 : at + 2] == [b]
            and not {a, b} & fixed
            and a.arg.kind is b.arg.kind
            and owners.get(a, []) == owners.get(b, [])
        )

    at = 0
    while at + 1 < len(loops):
        pair = loops[at], loops[at + 1]
        merged = None
        if follows(*pair):
            merged = _merge(pair, list(accesses.values()), shapes, follows)
        if not merged:
            at += 1
            continue
        for (a, b), loop in merged.items():
            owners[loop] = owners.get(a, [])
            dropped[a], dropped[b] = None, loop
            k = loops.index(a)
            loops[k : k + 2] = [loop]
    return _rebuilt(nodes, accesses, shapes, dropped) if dropped else sink


def _used_otherwise(nodes: Sequence[UOp]) -> set[UOp]:
    """Loops of symbolic size, and those whose number is used for more than an address."""
    fixed: set[UOp] = set()
    for n in nodes:
        if n.op is Ops.RANGE:
            if n.src[0].op is not Ops.CONST:
                fixed.add(n)
        elif n.op is Ops.INDEX:
            for gate in n.src[1 + len(n.src[0].shape) :]:
                fixed.update(u for u in gate.postorder() if u.op is Ops.RANGE)
            for at in n.src[1 : 1 + len(n.src[0].shape)]:
                inside = at.postorder()
                if any(u.op is Ops.INDEX for u in inside):  # at an index that is loaded
                    fixed.update(u for u in inside if u.op is Ops.RANGE)
        elif n.dtype is not dtypes.index and n.op not in _BINDERS:
            for s in n.src:
                if s.dtype is dtypes.index:
                    fixed.update(u for u in s.postorder() if u.op is Ops.RANGE)
    return fixed


def _merge(
    first: Pair,
    accesses: list[_Access],
    shapes: dict[UOp, list[int]],
    follows: Callable[[UOp, UOp], bool],
) -> dict[Pair, UOp] | None:
    """The loop that does what a pair of them did, put into all accesses; None if none does.

    A buffer has one shape for all that access it, so other pairs may have to be merged as well.
    """
    pairs = [first]
    joins: dict[UOp, tuple[int, int]] = {}  # by buffer: the dimensions that become one
    users: dict[_Access, list[tuple[Pair, int, int]]] = {}
    for pair in pairs:  # grows on the way
        places = _places(pair, accesses, shapes)
        if places is None:
            return None
        for x, (p, q) in places.items():
            users.setdefault(x, []).append((pair, p, q))
            if p < q and joins.setdefault(x.buffer, (p, q)) != (p, q):
                return None
        for x in accesses:
            join = joins.get(x.buffer)
            if join is None or places.get(x) == join:
                continue
            other = x.loops_at(*join)
            if other is None:
                return None
            if other not in pairs:
                if any(set(other) & set(known) for known in pairs) or not follows(*other):
                    return None
                pairs.append(other)
    if not users:
        return None
    for x in accesses:
        join = joins.get(x.buffer)
        if join is not None and (x.gate or join not in [(p, q) for _, p, q in users.get(x, ())]):
            return None
        if len(users.get(x, ())) > 1:
            return None  # dimensions would move while others are put together
    merged: dict[Pair, UOp] = {}
    for a, b in pairs:
        end = UOp.const(a.src[0].arg * b.src[0].arg, dtypes.index)
        merged[a, b] = UOp(Ops.RANGE, dtypes.index, (end,), a.arg)
    for x, ((pair, p, q),) in users.items():
        if p < q:
            shape = shapes[x.buffer]
            flat: UOp = x.dims[p]
            for k in range(p + 1, q + 1):
                flat = flat * shape[k] + x.dims[k]
            x.dims[p : q + 1] = [flat]
            x.forms[p : q + 1] = [({}, set())]
        x.dims[p] = simplify(_replaced(x.dims[p], {pair[0]: _ZERO, pair[1]: merged[pair]}))
        x.forms[p] = _form(x.dims[p])
    for buffer, (p, q) in joins.items():
        shapes[buffer][p : q + 1] = [math.prod(shapes[buffer][p : q + 1])]
    return merged


def _places(
    pair: Pair, accesses: list[_Access], shapes: dict[UOp, list[int]]
) -> dict[_Access, tuple[int, int]] | None:
    """The dimensions in which each access follows a pair of loops; None if not in step."""
    a, b = pair
    size = b.src[0].arg
    places = {}
    for x in accesses:
        of_a, of_b = x.dims_of(a), x.dims_of(b)
        if of_a is None or of_b is None or len(of_a) > 1 or len(of_a) != len(of_b):
            return None
        if not of_a:
            continue
        p, q = of_a[0], of_b[0]
        shape = shapes[x.buffer]
        if p > q or any(shape[k] != 1 for k in range(p + 1, q)):
            return None
        stride = x.forms[p][0][a] * (shape[q] if p < q else 1)
        if stride != x.forms[q][0][b] * size:
            return None
        places[x] = p, q
    return places


def _replaced(expr: UOp, new: dict[UOp, UOp]) -> UOp:
    known = dict(new)
    for n in expr.postorder():
        if n not in known:
            src = tuple([known[s] for s in n.src])
            known[n] = n if src == n.src else UOp(n.op, n.dtype, src, n.arg)
    return known[expr]


def _rebuilt(
    nodes: list[UOp],
    accesses: dict[UOp, _Access],
    shapes: dict[UOp, list[int]],
    dropped: dict[UOp, UOp | None],
) -> UOp:
    new: dict[UOp, UOp] = {}
    for n in nodes:
        if n.op is Ops.INDEX:
            x = accesses[n]
            buffer = x.buffer
            memory = new[buffer]
            if buffer.op is Ops.PARAM:
                memory = UOp(
                    Ops.PARAM,
                    buffer.dtype,
                    (),
                    ParamArg(buffer.arg.slot, tuple(shapes[buffer])),
                )
            new[n] = UOp(Ops.INDEX, n.dtype, (memory, *x.dims, *x.gate))
            continue
        src: list[UOp] = []
        for k, s in enumerate(n.src):
            loop: UOp | None = s
            if n.op in _BINDERS and k:
                while loop is not None and loop in dropped:
                    loop = dropped[loop]
                if loop is not None:
                    src.append(loop)
            else:
                src.append(new[s])
        same = len(src) == len(n.src) and all(a is b for a, b in zip(src, n.src, strict=True))
        arg = StageArg(n.arg.shared, tuple(shapes[n])) if n.op is Ops.STAGE else n.arg
        new[n] = n if same else UOp(n.op, n.dtype, tuple(src), arg)
    return new[nodes[-1]]
