"""Ranges pushed from the stores back to the loads: which loops compute what, and what is stored.

One walk in reverse topological order. A cell is visited when all its users are, so that it knows
every request for it: a kernel and an index expression for each dimension. Movement operations
rewrite requests; where requests disagree, a value is computed again or stored (SCHEDULE.md has
the measurements behind each rule).
"""

from __future__ import annotations

from collections.abc import Iterable

from tiny._core.index import apply_movement
from tiny._core.symbolic import simplify
from tiny.dtype import dtypes
from tiny.schedule.costs import WORK, Costs, estimate_costs
from tiny.schedule.graph import (
    COMPUTE,
    EFFECT,
    MEMORY,
    REDUCE,
    SCALAR,
    TRANSFER,
    VERSION,
    VIEW,
    TensorGraph,
    resolved_arg,
)
from tiny.uop.ops import AxisType, Ops, RangeArg, UOp
from tiny.uop.target import Target

MOST_ROUNDS = 4
MOST_REQUESTS = 16
MOST_CELLS = 1000  # values computed in one kernel
MOST_SCOPES = 32
OPERATIONS_A_BYTE = 8
LEAST_ITEMSIZE = 4  # a mask of bytes is not worth a kernel of its own because it is small
FREE_WORK = 64  # a value that loads nothing is computed again below this work
PROLOGUE_WORK = 16  # an operand of a contraction may do this much work for each use
BROADCAST_WORK, BROADCAST_COUNT = 16, 8  # more work, repeated more often, in an inner loop
LOOSE_RATIO = 2.5  # points evaluated for each element needed; gated points count in part
REDUCE_RATIO = 1.25
NESTED_REDUCE = 16  # a reduction this long may run in the loop of another, or more than once
ROW_NBYTES = 256 << 10  # a row this long stays in the cache between the loops over it
FEWEST_ROWS = 4

Index = tuple[UOp, ...]
Clauses = tuple[UOp, ...]

_ZERO = UOp.const(0, dtypes.index)
_NO_CLAUSES: Clauses = ()


class Kernel:
    """A nest of loops about to compute one store: numbered axes, output loops first."""

    __slots__ = (
        "buffers",
        "cells",
        "continued",
        "device",
        "index",
        "most_buffers",
        "outer",
        "output_loops",
        "pending",
        "products",
        "reason",
        "reduces",
        "root",
        "scopes",
        "sizes",
    )

    def __init__(self, root: int, g: TensorGraph, most_buffers: int, reason: str) -> None:
        self.root = root
        self.reason = reason
        self.device = g.device[root]
        self.most_buffers = most_buffers
        self.sizes: list[int] = []  # by axis
        self.outer: list[int] = []  # by axis: the mask of the loops outside it
        self.index = self.open_loops(_symbolic_shape(g, root), AxisType.LOOP, 0)
        self.output_loops = (1 << len(self.sizes)) - 1
        self.scopes: list[int] = []  # masks of the loops at which something is computed once
        self.reduces: dict[tuple[object, ...], Index] = {}
        self.products: dict[int, int] = {0: 1}
        self.continued: set[int] = set()  # reductions that another, of the same kind, goes on with
        self.cells = 0
        self.buffers = {root}
        self.pending: set[int] = set()  # asked of, not yet decided: each may become a buffer

    def open_loops(self, sizes: Iterable[int | UOp], kind: AxisType, outer: int) -> Index:
        """A new loop for each size; 0 in place of one that would run once."""
        index = []
        for size in sizes:
            if isinstance(size, int) and size == 1:
                index.append(_ZERO)
            else:
                # settled, since simplifying what the loop is used in must find nothing to change
                end = simplify(size) if isinstance(size, UOp) else UOp.const(size, dtypes.index)
                arg = RangeArg(len(self.sizes), kind)
                index.append(UOp(Ops.RANGE, dtypes.index, (end,), arg))
                self.sizes.append(int(end.vmax))
                self.outer.append(outer)
        return tuple(index)

    def product(self, mask: int) -> int:
        """How often the body of these loops runs."""
        found = self.products.get(mask)
        if found is None:
            found = 1
            for axis, size in enumerate(self.sizes):
                if mask >> axis & 1:
                    found *= size
            self.products[mask] = found
        return found


class Request:
    """A cell wanted in a kernel at an index, where clauses hold (elsewhere: anything)."""

    __slots__ = ("clauses", "extra", "fraction", "gate", "index", "kernel", "mask", "src", "value")

    def __init__(self, kernel: Kernel, index: Index, clauses: Clauses, fraction: float) -> None:
        self.kernel = kernel
        self.index = index
        self.clauses = clauses
        self.fraction = fraction  # of the points, those where the clauses hold, about
        self.mask = 0  # the loops that the index and the clauses depend on
        self.src: list[Request] = []  # what its value is made of
        self.extra: tuple[UOp, ...] | None = None  # a PAD's clauses, a REDUCE's ranges
        self.value: UOp | None = None  # the expression, once built
        self.gate: Clauses = _NO_CLAUSES  # of a load: off these the value is 0

    def built(self) -> UOp:
        """The expression of the value."""
        assert self.value is not None, "a value is used before it is built"
        return self.value


def _symbolic_shape(g: TensorGraph, i: int) -> tuple[int | UOp, ...]:
    node = g.nodes[i]
    return node.src[0].shape if g.kind[i] == EFFECT else node.shape


class Loops:
    """Which loops an index expression depends on, as bit masks, remembered by node.

    Axes are numbered within a kernel, so that the answers hold for every kernel.
    """

    def __init__(self) -> None:
        self._masks: dict[UOp, int] = {_ZERO: 0}
        self._relevant: dict[tuple[Index, Clauses], Clauses] = {}

    def of(self, expr: UOp) -> int:
        """The mask of one expression."""
        masks = self._masks
        found = masks.get(expr)
        if found is None:
            for node in expr.postorder():
                if node not in masks:
                    mask = 1 << node.arg.axis if node.op is Ops.RANGE else 0
                    for s in node.src:
                        mask |= masks[s]
                    masks[node] = mask
            found = masks[expr]
        return found

    def of_all(self, exprs: Iterable[UOp]) -> int:
        """The mask of several."""
        mask = 0
        masks = self._masks
        for e in exprs:
            m = masks.get(e)
            mask |= self.of(e) if m is None else m
        return mask

    def relevant(self, index: Index, clauses: Clauses) -> Clauses:
        """The clauses that can say whether an index is in bounds.

        They share a loop with it, or with another one that does. The rest say when a value is
        wanted, which whoever asked knows.
        """
        key = (index, clauses)
        found = self._relevant.get(key)
        if found is None:
            kept = connected(self, self.of_all(index), clauses)
            found = self._relevant[key] = clauses if len(kept) == len(clauses) else kept
        return found


def connected(loops: Loops, mask: int, clauses: Clauses) -> Clauses:
    """The clauses that share a loop with `mask`, or with another such clause."""
    kept: set[UOp] = set()
    grew = True
    while grew:
        grew = False
        for c in clauses:
            m = loops.of(c)
            if c not in kept and m & mask:
                kept.add(c)
                mask |= m
                grew = True
    return tuple([c for c in clauses if c in kept])


def split_clauses(gate: UOp | None) -> Clauses | None:
    """The operands of a chain of ANDs; None if it is never true."""
    if gate is None:
        return _NO_CLAUSES
    clauses: dict[UOp, None] = {}
    for c in gate.split_uop(Ops.AND):
        if c.vmin == c.vmax:
            if not c.vmin:
                return None
        else:
            clauses[c] = None
    return tuple(clauses)


class Plan:
    """The outcome of one walk: what is stored, and every request made on the way."""

    def __init__(self, n: int) -> None:
        self.kernels: dict[int, Kernel] = {}  # by the cell they store
        self.roots: dict[int, Request] = {}  # by that cell: its value in that kernel
        self.requests: list[dict[tuple[Kernel, Index, Clauses], Request]] = [{} for _ in range(n)]
        # dropped by a cell for a request of the same index without clauses
        self.merged: dict[int, list[Request]] = {}
        self.cost = 0.0  # bytes stored and loaded, and work
        self.visits = 0


def plan_kernels(g: TensorGraph, targets: dict[str, Target]) -> tuple[Plan, int, int]:
    """The cheapest plan of a few walks; with the number of walks and of visits in all.

    Each walk takes the cells that the one before stored for loads: over a stored value, much is
    cheap to compute again. Walks may alternate between two plans, hence the best is kept.
    """
    best: Plan | None = None
    stored = frozenset(g.stored)
    visits = rounds = 0
    while rounds < MOST_ROUNDS:
        plan = _Walk(g, targets, stored).run()
        rounds += 1
        visits += plan.visits
        if best is None or plan.cost < best.cost:
            best = plan
        if plan.kernels.keys() == stored:
            break
        stored = frozenset(plan.kernels)
    assert best is not None
    return best, rounds, visits


class _Walk:
    """One walk from the stores to the loads."""

    def __init__(
        self, g: TensorGraph, targets: dict[str, Target], stored_before: frozenset[int]
    ) -> None:
        self.g = g
        self.targets = targets
        self.costs: Costs = estimate_costs(g, stored_before)
        self.plan = Plan(len(g))
        self.loops = Loops()
        self.origin, self.is_load = self._origins()
        self.scalars: dict[int, Request] = {}

    def _origins(self) -> tuple[list[int], list[bool]]:
        """By cell: the cell below its movement operations, and whether that is in memory."""
        g = self.g
        origin = list(range(len(g)))
        is_load = [False] * len(g)
        for i, kind in enumerate(g.kind):
            if kind in (MEMORY, VERSION, TRANSFER) or (i in g.stored and not g.fill[i]):
                is_load[i] = True
            elif kind == VIEW:
                s = g.src[i][0]
                origin[i], is_load[i] = origin[s], is_load[s]
        return origin, is_load

    def run(self) -> Plan:
        """Visit every cell once, users before sources."""
        g, plan = self.g, self.plan
        for i in range(len(g) - 1, -1, -1):
            kind = g.kind[i]
            requests = plan.requests[i]
            if kind == EFFECT or (i in g.stored and kind != TRANSFER):
                self.open_kernel(i, g.stored.get(i, "assignment"))
            if not requests:
                continue
            if self.is_load[i] and self.origin[i] == i:
                self.count_loads(i, requests.values())
            elif kind == VIEW:
                for r in requests.values():
                    self.expand(i, r)
            else:
                self.decide(i, requests)
        return plan

    def decide(self, i: int, requests: dict[tuple[Kernel, Index, Clauses], Request]) -> None:
        """Compute a cell where it is wanted, or store it."""
        if len(requests) > 1:
            self.merge_gated(i, requests)
        for r in requests.values():
            r.mask = self.loops.of_all(r.index) | self.loops.of_all(r.clauses)
        reason = self.why_stored(i, list(requests.values()))
        for r in requests.values():
            r.kernel.pending.discard(i)
            if reason:
                r.kernel.buffers.add(i)
        if reason:
            self.open_kernel(i, reason)
            self.count_loads(i, requests.values())
        else:
            for r in requests.values():
                self.count_work(i, r)
                self.expand(i, r)

    def merge_gated(self, i: int, requests: dict[tuple[Kernel, Index, Clauses], Request]) -> None:
        """Drop requests that hold under clauses where the same index is wanted without."""
        for key in list(requests):
            kernel, index, clauses = key
            if clauses:
                whole = requests.get((kernel, index, _NO_CLAUSES))
                if whole is not None:
                    dropped = requests.pop(key)
                    dropped.src.append(whole)
                    self.plan.merged.setdefault(i, []).append(dropped)

    # ------------------------------------------------------------ the rules

    def why_stored(self, i: int, requests: list[Request]) -> str:
        """Why a cell is stored rather than computed where it is wanted; "" if it is not."""
        g, costs = self.g, self.costs
        for r in requests:
            reason = self.over_a_limit(i, r.kernel)
            if reason:
                return reason
        work, nbytes = costs.work[i], costs.nbytes[i]
        if nbytes == 0 and work <= FREE_WORK:
            return ""
        wanted = len(requests)
        points = 0.0
        reused = False
        for r in requests:
            points += r.kernel.product(r.mask) * r.fraction
            reused = reused or is_reused(r)
        ratio = points / g.numel[i]
        if wanted == 1 and not reused:
            r = requests[0]
            if g.kind[i] == REDUCE:
                if ratio <= REDUCE_RATIO:
                    return self.why_reduce_apart(i, r)
            elif ratio <= LOOSE_RATIO:
                return self.why_broadcast_apart(i, r)
        bound = max(g.nodes[i].dtype.itemsize, LEAST_ITEMSIZE) * (1 + wanted)
        again = (wanted - 1) * nbytes
        if wanted <= MOST_REQUESTS and costs.foot[i] <= NESTED_REDUCE:
            if reused:
                if work <= PROLOGUE_WORK and again <= bound:
                    return ""
            elif again + (max(ratio, wanted) - 1) * work / OPERATIONS_A_BYTE <= bound:
                return ""
        kernels = len({r.kernel for r in requests})
        if reused:
            return f"operand used again in a loop, {work:.0f} operations to compute it"
        if g.kind[i] == REDUCE:
            return f"reduction wanted by {kernels} kernels at {wanted} indices"
        return (
            f"wanted by {kernels} kernels at {wanted} indices, {ratio:.1f} times an element: "
            f"again {again:.0f} bytes and {work:.0f} operations against {bound} bytes stored"
        )

    def over_a_limit(self, i: int, kernel: Kernel) -> str:
        """Why this cell's sources can not be part of a kernel."""
        if kernel.cells >= MOST_CELLS:
            return f"its kernel has {MOST_CELLS} operations"
        new = 0
        for s in self.g.src[i]:
            o = self.origin[s]
            if o not in kernel.buffers and o not in kernel.pending and self.g.kind[o] != SCALAR:
                new += 1
        if new > 1 and len(kernel.buffers) + len(kernel.pending) - 1 + new > kernel.most_buffers:
            return f"its kernel reads {kernel.most_buffers} buffers"
        return ""

    def why_reduce_apart(self, i: int, r: Request) -> str:
        """Why a reduction wanted once is not computed inside the kernel that wants it."""
        kernel, mask = r.kernel, r.mask
        inner = mask & ~kernel.output_loops
        foot = self.costs.foot[i]
        if inner:
            if foot <= NESTED_REDUCE or i in kernel.continued:
                return ""
            return f"reduction of {foot} inside the loop of another"
        if mask == kernel.output_loops:
            return ""
        row = kernel.product(kernel.output_loops & ~mask) * self.g.nodes[kernel.root].dtype.itemsize
        rows = kernel.product(mask)
        if row > ROW_NBYTES or 4 * foot > ROW_NBYTES:
            return f"reduction whose row of {max(row, 4 * foot)} bytes leaves the cache"
        if rows < FEWEST_ROWS:
            return f"reduction of only {rows} rows, expanded"
        for s in kernel.scopes:
            if mask & s not in (mask, s):
                return "reduction over other loops than one in the same kernel"
        if mask not in kernel.scopes:
            if len(kernel.scopes) == MOST_SCOPES:
                return f"its kernel has {MOST_SCOPES} nested scopes"
            kernel.scopes.append(mask)
        return ""

    def why_broadcast_apart(self, i: int, r: Request) -> str:
        """Why an elementwise value wanted once is not computed inside the kernel."""
        kernel, mask = r.kernel, r.mask
        missing = kernel.output_loops & ~mask
        # not where the innermost loop does not need it: there it is computed outside of that,
        # nor inside a reduction, whose loops are outside of it
        if (
            missing
            and missing < mask <= kernel.output_loops
            and self.costs.work[i] > BROADCAST_WORK
        ):
            times = kernel.product(missing)
            if times >= BROADCAST_COUNT:
                return f"{self.costs.work[i]:.0f} operations repeated {times} times by a broadcast"
        return ""

    # ------------------------------------------------------------ requests

    def open_kernel(self, i: int, reason: str) -> None:
        """Start the kernel that stores cell i."""
        g = self.g
        if not g.numel[i]:
            return
        limit = self.targets[g.device[i]].max_buffers
        kernel = self.plan.kernels[i] = Kernel(i, g, limit, reason)
        root = self.plan.roots[i] = Request(kernel, kernel.index, _NO_CLAUSES, 1.0)
        root.mask = kernel.output_loops
        self.plan.cost += g.numel[i] * g.nodes[i].dtype.itemsize
        self.count_work(i, root)
        self.expand(i, root)

    def ask(
        self, i: int, kernel: Kernel, index: Index, clauses: Clauses, fraction: float
    ) -> Request:
        """Want cell i in a kernel at an index. Equal requests are one."""
        self.plan.visits += 1
        if self.g.kind[i] == SCALAR:
            scalar = self.scalars.get(i)
            if scalar is None:
                scalar = self.scalars[i] = Request(kernel, (), _NO_CLAUSES, 1.0)
                scalar.value = self.g.nodes[i]
            return scalar
        if clauses and self.g.kind[i] in (COMPUTE, REDUCE):
            clauses = self.loops.relevant(index, clauses)
            if not clauses:
                fraction = 1.0
        requests = self.plan.requests[i]
        key = (kernel, index, clauses)
        found = requests.get(key)
        if found is None:
            found = requests[key] = Request(kernel, index, clauses, fraction)
        else:
            found.fraction = max(found.fraction, fraction)
        return found

    def ask_value(self, i: int, r: Request, index: Index) -> None:
        """Want cell i as an operand of a value in r's kernel."""
        kernel = r.kernel
        o = self.origin[i]
        if self.is_load[o]:
            kernel.buffers.add(o)
        elif self.g.kind[o] != SCALAR:
            kernel.pending.add(o)
        r.src.append(self.ask(i, kernel, index if self.g.shape[i] else (), r.clauses, r.fraction))

    def expand(self, i: int, r: Request) -> None:
        """Want the sources of cell i for a request."""
        g = self.g
        kind, node, kernel = g.kind[i], g.nodes[i], r.kernel
        if kind == COMPUTE:
            kernel.cells += 1
            for s in g.src[i]:
                self.ask_value(s, r, r.index)
        elif kind == REDUCE:
            kernel.cells += 1
            s = g.src[i][0]
            if g.numel[s]:
                axes = node.arg.axes
                sizes = tuple([node.src[0].shape[a] for a in axes])
                # of one depth, none can need the other: they share loops
                key = (r.index, axes, sizes, self.costs.depth[i])
                ranges = kernel.reduces.get(key)
                if ranges is None:
                    ranges = kernel.open_loops(sizes, AxisType.REDUCE, r.mask)
                    kernel.reduces[key] = ranges
                index = list(r.index)
                for axis, loop in zip(axes, ranges, strict=True):
                    index[axis] = loop
                r.extra = tuple([loop for loop in ranges if loop is not _ZERO])
                o = self.origin[s]
                if g.kind[o] == REDUCE and g.nodes[o].arg.op is node.arg.op:
                    kernel.continued.add(o)
                self.ask_value(s, r, tuple(index))
        elif kind == EFFECT:
            self.ask_value(g.src[i][1], r, r.index)
        elif kind == VIEW:
            self.expand_view(i, r)

    def expand_view(self, i: int, r: Request) -> None:
        """Want the source of a movement operation, at the index rewritten."""
        g = self.g
        node, s = g.nodes[i], g.src[i][0]
        index, clauses, fraction = r.index, r.clauses, r.fraction
        if not g.is_identity(i):
            shape = node.src[0].shape
            index, gate = apply_movement(
                node.op, resolved_arg(node), shape, node.shape, index, None
            )
            if node.op is Ops.PAD:
                mine = split_clauses(gate)
                if mine is None or not g.numel[s]:
                    return  # never inside: it is 0, and wants nothing
                r.extra = mine
                clauses = clauses + tuple([c for c in mine if c not in clauses])
                fraction *= g.numel[s] / g.numel[i]
        r.src.append(self.ask(s, r.kernel, index, clauses, fraction))
        if (
            self.plan.roots.get(r.kernel.root) is r
        ):  # a view is stored: its kernel reads what is below
            o = self.origin[s]
            if self.is_load[o]:
                r.kernel.buffers.add(o)
            elif g.kind[o] != SCALAR:
                r.kernel.pending.add(o)

    # ------------------------------------------------------------ counting

    def count_loads(self, i: int, requests: Iterable[Request]) -> None:
        """Add the bytes that requests for a stored cell load."""
        g = self.g
        for r in requests:
            points = r.kernel.product(self.loops.of_all(r.index)) * r.fraction
            self.plan.cost += min(points, g.numel[i]) * g.nodes[i].dtype.itemsize

    def count_work(self, i: int, r: Request) -> None:
        """Add the operations of a cell that is computed at a request."""
        g = self.g
        if g.kind[i] == COMPUTE:
            work: float = WORK.get(g.nodes[i].op, 1)
        elif g.kind[i] == REDUCE:
            work = g.numel[g.src[i][0]] / g.numel[i]
        else:
            return
        self.plan.cost += r.kernel.product(r.mask) * r.fraction * work / OPERATIONS_A_BYTE


def is_reused(r: Request) -> bool:
    """Whether a value of a reduce loop stays the same in a loop outside of that."""
    kernel = r.kernel
    inner = r.mask & ~kernel.output_loops
    while inner:
        axis = inner.bit_length() - 1
        if kernel.outer[axis] & ~r.mask:
            return True
        inner ^= 1 << axis
    return False
