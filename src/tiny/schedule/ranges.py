"""Ranges pushed from the stores back to the loads: which loops compute what, and what is stored.

One walk in reverse topological order. A cell is visited when all its users are, so that it knows
every request for it: a kernel and an index expression for each dimension. Movement operations
rewrite requests; where requests disagree, a value is computed again or stored (SCHEDULE.md has
the measurements behind each rule).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiny._core.index import apply_movement
from tiny._core.symbolic import simplify
from tiny.dtype import dtypes
from tiny.schedule.costs import Costs, estimate_costs, work_of
from tiny.schedule.graph import (
    COMPUTE,
    EFFECT,
    PICK,
    REDUCE,
    SCALAR,
    SCAN,
    TRANSFER,
    VALUES,
    VIEW,
    TensorGraph,
    resolved_arg,
    upper,
)
from tiny.schedule.nests import (
    NO_CLAUSES,
    ZERO,
    Clauses,
    Index,
    Kernel,
    Loops,
    Request,
    Stage,
    is_place,
    loop_of,
    split_clauses,
)
from tiny.schedule.placement import OPERATIONS_A_BYTE, Placement, Verdict, Where
from tiny.uop.ops import AxisType, Ops, UOp
from tiny.uop.passes import compiler_pass
from tiny.uop.target import Target

MOST_ROUNDS = 4


class Plan:
    """The outcome of one walk: what is stored, and every request made on the way."""

    def __init__(self, n: int, targets: dict[str, Target]) -> None:
        self.targets = targets
        self.kernels: dict[int, Kernel] = {}  # by the cell they store
        self.roots: dict[int, Request] = {}  # by that cell: its value in that kernel
        self.requests: list[dict[tuple[Kernel, Index, Clauses], Request]] = [{} for _ in range(n)]
        self.stages: dict[int, dict[Kernel, Stage]] = {}  # by the cell they keep
        # dropped by a cell for a request of the same index without clauses
        self.merged: dict[int, list[Request]] = {}
        # by request: the places that it is the value of, as (size, number, whether it is there)
        self.places: dict[Request, list[tuple[int | UOp, UOp, UOp]]] = {}
        self.loops = Loops()
        self.cost = 0.0  # bytes stored and loaded, and work
        self.visits = 0
        self.stores_huge = False  # what could be computed again instead


@compiler_pass("plan kernels", "arrays by node", "requests: which kernel wants what where")
def plan_kernels(g: TensorGraph, targets: dict[str, Target]) -> tuple[Plan, int, int]:
    """The cheapest plan of a few walks; with the number of walks and of visits in all.

    Where that stores what is huge it is made again, with such values computed in each kernel that
    wants them: not before, since one kernel may do with them in hand.
    """
    best, rounds, visits = _cheapest(g, targets, False)
    if best.stores_huge:
        best, more, again = _cheapest(g, targets, True)
        rounds, visits = rounds + more, visits + again
    return best, rounds, visits


def _cheapest(g: TensorGraph, targets: dict[str, Target], is_again: bool) -> tuple[Plan, int, int]:
    """The cheapest plan, with or without huge values that are computed again.

    Each walk takes the cells that the one before stored for loads: over a stored value, much is
    cheap to compute again. Walks may alternate between two plans, hence the best is kept.
    """
    best: Plan | None = None
    stored = frozenset(g.stored)
    visits = rounds = 0
    while rounds < MOST_ROUNDS:
        plan = _Walk(g, targets, stored, is_again).run()
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
        self,
        g: TensorGraph,
        targets: dict[str, Target],
        stored_before: frozenset[int],
        is_again: bool,
    ) -> None:
        self.g = g
        self.is_again = is_again  # whether huge values are computed in each kernel, if they can be
        self.targets = targets
        self.costs: Costs = estimate_costs(g, stored_before)
        self.plan = Plan(len(g), targets)
        self.loops = self.plan.loops
        self.placement = Placement(g, self.costs, self.loops, targets)
        self.origin, self.is_load = self.placement.origin, self.placement.is_load
        self.scalars: dict[int, Request] = {}

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
        verdict = self.placement.decide(i, list(requests.values()))
        stored = verdict.where is Where.GLOBAL
        if stored and self.placement.is_huge(i):
            if self.is_again and self.compute_in_each(i, requests.values()):
                return
            self.plan.stores_huge = True
        for r in requests.values():
            r.kernel.pending.discard(i)
            if stored:
                r.kernel.buffers.add(i)
        if stored:
            self.open_kernel(i, verdict.reason)
            self.count_loads(i, requests.values())
        else:
            self.compute(i, list(requests.values()), verdict)

    def compute_in_each(self, i: int, requests: Iterable[Request]) -> bool:
        """Compute a cell in each kernel that wants it, if none of them would have it stored."""
        groups: dict[Kernel, list[Request]] = {}
        for r in requests:
            groups.setdefault(r.kernel, []).append(r)
        if len(groups) == 1:
            return False
        plans = [(kernel, kernel.plan_so_far()) for kernel in groups]
        verdicts = [self.placement.decide(i, group) for group in groups.values()]
        if any(v.where is Where.GLOBAL for v in verdicts):
            for kernel, plan in plans:
                kernel.go_back(plan)
            return False
        for (kernel, group), verdict in zip(groups.items(), verdicts, strict=True):
            kernel.pending.discard(i)
            self.compute(i, group, verdict)
        return True

    def compute(self, i: int, requests: Sequence[Request], verdict: Verdict) -> None:
        """Compute a cell for requests of one kernel, or at each of them."""
        if verdict.where is Where.LOCAL:
            self.open_stage(i, requests[0], verdict)
        else:
            for r in requests:
                self.count_work(i, r)
                self.expand(i, r)

    def merge_gated(self, i: int, requests: dict[tuple[Kernel, Index, Clauses], Request]) -> None:
        """Drop requests that hold under clauses where the same index is wanted without."""
        for key in list(requests):
            kernel, index, clauses = key
            if clauses:
                whole = requests.get((kernel, index, NO_CLAUSES))
                if whole is not None:
                    dropped = requests.pop(key)
                    dropped.src.append(whole)
                    self.plan.merged.setdefault(i, []).append(dropped)

    # ------------------------------------------------------------ requests

    def open_kernel(self, i: int, reason: str) -> None:
        """Start the kernel that stores cell i."""
        g = self.g
        if not g.numel[i]:
            return
        limit = self.targets[g.device[i]].max_buffers
        kernel = self.plan.kernels[i] = Kernel(i, g, limit, reason)
        root = self.plan.roots[i] = Request(kernel, kernel.index, NO_CLAUSES, 1.0)
        root.mask = kernel.output_loops
        self.plan.cost += g.numel[i] * g.nodes[i].dtype.itemsize
        self.count_work(i, root)
        self.expand(i, root)

    def open_stage(self, i: int, r: Request, verdict: Verdict) -> None:
        """Keep cell i, which only r's kernel wants, in memory of the thread."""
        kernel, shape = r.kernel, self.g.nodes[i].shape
        kernel.notes.append(verdict.reason)
        # in a dimension of one element requests may differ, each right where it is wanted only
        index = [ZERO if n == 1 else e for n, e in zip(self.g.shape[i], r.index, strict=True)]
        own = kernel.open_loops([shape[d] for d in verdict.dims], AxisType.LOOP, verdict.scope)
        for d, loop in zip(verdict.dims, own, strict=True):
            index[d] = loop
        fill = Request(kernel, tuple(index), NO_CLAUSES, 1.0)
        fill.mask = verdict.scope | self.loops.of_all(own)
        kernel.nests.add(fill.mask)
        self.plan.stages.setdefault(i, {})[kernel] = Stage(fill, verdict.dims, own)
        self.count_work(i, fill)
        self.expand(i, fill)

    def ask(
        self, i: int, kernel: Kernel, index: Index, clauses: Clauses, fraction: float
    ) -> Request:
        """Want cell i in a kernel at an index. Equal requests are one."""
        self.plan.visits += 1
        if self.g.kind[i] == SCALAR:
            scalar = self.scalars.get(i)
            if scalar is None:
                scalar = self.scalars[i] = Request(kernel, (), NO_CLAUSES, 1.0)
                scalar.value = self.g.nodes[i]
            return scalar
        if clauses and self.g.kind[i] in VALUES:
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

    def ask_value(
        self, i: int, r: Request, index: Index, clauses: Clauses | None = None
    ) -> Request:
        """Want cell i as an operand of a value in r's kernel, by default under r's clauses."""
        kernel = r.kernel
        o = self.origin[i]
        if self.is_load[o]:
            kernel.buffers.add(o)
        elif self.g.kind[o] != SCALAR:
            kernel.pending.add(o)
        wanted = r.clauses if clauses is None else clauses
        operand = self.ask(i, kernel, index if self.g.shape[i] else (), wanted, r.fraction)
        r.src.append(operand)
        return operand

    def expand(self, i: int, r: Request) -> None:
        """Want the sources of cell i for a request."""
        g = self.g
        kind, node, kernel = g.kind[i], g.nodes[i], r.kernel
        if kind == COMPUTE:
            kernel.cells += 1
            for s in g.src[i]:
                self.ask_value(s, r, r.index)
        elif kind == SCAN:
            kernel.cells += 1
            at = r.index[node.arg.axes[0]]
            loop = loop_of(at)
            if loop is not None:
                kernel.scanned[loop] = at is not loop
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
                if self.costs.is_contraction[i]:
                    kernel.contracting |= self.loops.of_all(ranges)
                index = list(r.index)
                for axis, loop in zip(axes, ranges, strict=True):
                    index[axis] = loop
                r.extra = tuple([loop for loop in ranges if loop is not ZERO])
                o = self.origin[s]
                if g.kind[o] == REDUCE and g.nodes[o].arg.op is node.arg.op:
                    kernel.continued.add(o)
                self.ask_value(s, r, tuple(index))
        elif kind == EFFECT:
            _, value, *places = g.src[i]
            self.ask_value(value, r, r.index)
            for p in places:  # computed ones, for all that is written at each
                self.ask_value(p, r, r.index[: len(g.shape[p])])
        elif kind == VIEW:
            self.expand_view(i, r)
        elif kind == PICK:
            kernel.cells += 1
            self.expand_pick(i, r)

    def expand_pick(self, i: int, r: Request) -> None:
        """Want the places of an INDEX, and at them, where they are there, what it reads."""
        g = self.g
        s, *named = g.src[i]
        sizes = g.nodes[i].src[0].shape[: len(named)]
        rank = len(g.shape[s]) - len(named)
        outer, rest = r.index[: len(r.index) - rank], r.index[len(r.index) - rank :]
        if not g.numel[s]:
            return  # nothing is there
        index, there = [], []
        for size, p in zip(sizes, named, strict=True):
            at = self.ask_value(p, r, outer)
            if at.value is not None:  # a constant or a Variable
                place = simplify(at.value.cast(dtypes.index))
                clauses = split_clauses(is_place(place, size))
                if clauses is None:
                    r.src.clear()
                    return
            else:
                place, is_there = self.place(at, size)
                clauses = (is_there,)
            index.append(place)
            there += [c for c in clauses if c not in there]
        r.extra = tuple(there)
        wanted = r.clauses + tuple([c for c in there if c not in r.clauses])
        self.ask_value(s, r, (*index, *rest), wanted)

    def place(self, at: Request, size: int | UOp) -> tuple[UOp, UOp]:
        """Names for the value of a request as a place in a dimension; see `Loops`."""
        known = self.plan.places.setdefault(at, [])
        for n, number, is_there in known:
            if n is size or n == size:
                return number, is_there
        number, is_there = self.loops.new_place(upper(size), self.loops.of_all(at.index))
        known.append((size, number, is_there))
        return number, is_there

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
        if g.kind[i] in (COMPUTE, PICK, SCAN):
            work: float = work_of(g.nodes[i])
        elif g.kind[i] == REDUCE:
            work = g.numel[g.src[i][0]] / g.numel[i]
        else:
            return
        self.plan.cost += r.kernel.product(r.mask) * r.fraction * work / OPERATIONS_A_BYTE
