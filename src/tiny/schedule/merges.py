"""Loops that only walk memory in step are one loop.

Where every access of a kernel moves on by the same number of elements at the end of loop b as one
step of the loop a around it moves, (a, b) is one loop of size(a) * size(b) steps: an elementwise
kernel over contiguous memory is a single loop whatever the shape, and a vector need not end with
a short last dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiny._core.symbolic import simplify
from tiny.dtype import dtypes
from tiny.uop.ops import AxisType, Ops, ParamArg, RangeArg, UOp

_ZERO = UOp.const(0, dtypes.index)
_BINDERS = (Ops.REDUCE, Ops.STAGE)  # they run loops of their own


class _Access:
    """An INDEX, its index expressions as linear forms: factors of loops, and other terms."""

    def __init__(self, node: UOp) -> None:
        self.node = node
        self.rank = len(node.src[0].shape)
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
    accesses = {n: _Access(n) for n in nodes if n.op is Ops.INDEX}
    shapes = {n.src[0]: list(n.src[0].shape) for n in accesses}
    fixed = _used_otherwise(nodes)
    reductions: dict[UOp, list[UOp]] = {}
    for n in nodes:
        for loop in n.src[1:] if n.op in _BINDERS else ():
            reductions.setdefault(loop, []).append(n)
    dropped: dict[UOp, UOp | None] = {}  # loops that are gone: None, or the one instead
    kept: list[UOp] = []
    for loop in loops:
        if kept and not {loop, kept[-1]} & fixed:
            outer = kept[-1]
            merged = None
            if outer.arg.kind is loop.arg.kind and _of(reductions, outer) == _of(reductions, loop):
                merged = _merge(outer, loop, list(accesses.values()), shapes)
            if merged is not None:
                reductions[merged] = _of(reductions, loop)
                dropped[outer], dropped[loop] = None, merged
                kept[-1] = merged
                continue
        kept.append(loop)
    if not dropped:
        return sink
    return _rebuilt(nodes, accesses, shapes, dropped)


def _of(reductions: dict[UOp, list[UOp]], loop: UOp) -> list[UOp]:
    return reductions.get(loop, [])


def _used_otherwise(nodes: Sequence[UOp]) -> set[UOp]:
    """Loops of symbolic size, and those whose number is used for more than an address."""
    fixed: set[UOp] = set()
    for n in nodes:
        if n.op is Ops.STAGE:
            fixed.update(n.src[1:])  # what is read of it has dimensions of its own
        elif n.op is Ops.RANGE:
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


def _merge(a: UOp, b: UOp, accesses: list[_Access], shapes: dict[UOp, list[int]]) -> UOp | None:
    """The loop that does what loop b in loop a did, put into all accesses; None if none does."""
    size = b.src[0].arg
    joins: dict[UOp, tuple[int, int]] = {}  # by buffer: the dimensions that become one
    users: dict[_Access, tuple[int, int]] = {}
    for x in accesses:
        of_a, of_b = x.dims_of(a), x.dims_of(b)
        if of_a is None or of_b is None or len(of_a) > 1 or len(of_a) != len(of_b):
            return None
        if not of_a:
            continue
        p, q = of_a[0], of_b[0]
        shape = shapes[x.node.src[0]]
        stride = x.forms[p][0][a]
        if p > q or any(shape[k] != 1 for k in range(p + 1, q)):
            return None
        if p < q:
            stride *= shape[q]
            if x.node.src[0].op is Ops.STAGE:
                return None  # its own loops stay two
            if joins.setdefault(x.node.src[0], (p, q)) != (p, q):
                return None
        if stride != x.forms[q][0][b] * size:
            return None
        users[x] = p, q
    if not users:
        return None
    for x in accesses:  # a buffer has one shape for all that access it
        join = joins.get(x.node.src[0])
        if join is not None and (users.get(x) != join or x.gate):
            return None
    kind: AxisType = a.arg.kind
    end = UOp.const(a.src[0].arg * size, dtypes.index)
    merged = UOp(Ops.RANGE, dtypes.index, (end,), RangeArg(a.arg.axis, kind))
    for x, (p, q) in users.items():
        if p < q:
            shape = shapes[x.node.src[0]]
            flat: UOp = x.dims[p]
            for k in range(p + 1, q + 1):
                flat = flat * shape[k] + x.dims[k]
            x.dims[p : q + 1] = [flat]
            x.forms[p : q + 1] = [({}, set())]
        x.dims[p] = simplify(_replaced(x.dims[p], {a: _ZERO, b: merged}))
        x.forms[p] = _form(x.dims[p])
    for buffer, (p, q) in joins.items():
        shape = shapes[buffer]
        total = 1
        for n in shape[p : q + 1]:
            total *= n
        shape[p : q + 1] = [total]
    return merged


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
            x, buffer = accesses[n], n.src[0]
            memory = new[buffer]
            if buffer.op is Ops.PARAM:
                arg = ParamArg(buffer.arg.slot, tuple(shapes[buffer]))
                memory = UOp(Ops.PARAM, buffer.dtype, (), arg)
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
        new[n] = n if same else UOp(n.op, n.dtype, tuple(src), n.arg)
    return new[nodes[-1]]
