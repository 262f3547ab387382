"""From the requests of a plan to kernels: expressions over ranges, one SINK for each store."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from tiny._core.index import apply_movement
from tiny._core.symbolic import simplify
from tiny.dtype import DType, dtypes
from tiny.helpers import STRICT_REDUCE
from tiny.schedule.graph import (
    CALL,
    COMPUTE,
    EFFECT,
    MEMORY,
    PICK,
    REDUCE,
    SCALAR,
    SCAN,
    TRANSFER,
    VERSION,
    VIEW,
    TensorGraph,
    is_ordered,
    resolved_arg,
)
from tiny.schedule.nests import (
    NO_CLAUSES,
    Clauses,
    Index,
    Kernel,
    Request,
    Stage,
    connected,
    is_place,
    loop_of,
)
from tiny.schedule.ranges import Plan, plan_kernels
from tiny.schedule.splits import settle_loops
from tiny.schedule.sums import as_index, closed_sum, picked_sum
from tiny.uop.ops import (
    AxisType,
    KernelInfo,
    Ops,
    ParamArg,
    RangeArg,
    ReduceArg,
    StageArg,
    UOp,
)
from tiny.uop.passes import compiler_pass

# Memory as a kernel names it: a cell, and which version of it (0: as stored or handed in).
Memory = tuple[int, int]


@dataclass
class Access:
    """One load of a kernel: where, under which clauses."""

    memory: Memory
    index: Index
    after: tuple[int, ...] = ()  # STORE cells that must have run, beyond those of the version


@dataclass
class Draft:
    """A kernel, its buffers not yet bound to slots: `params[k]` is what PARAM k names."""

    cell: int
    sink: UOp
    params: list[Memory]
    device: str
    reason: str
    target: Index = ()  # where an assignment writes
    accesses: list[Access] = field(default_factory=list)
    in_order: bool = False  # steps of some loop come one after the other


class Versions:
    """Assignments in program order: each STORE makes the next version of its buffer."""

    def __init__(self, g: TensorGraph) -> None:
        self.writers: dict[int, list[int]] = {}  # by BUFFER cell: its STORE cells, in order
        self.made_by: dict[int, Memory] = {}  # by STORE cell: what it writes
        self.written_by: dict[int, list[Memory]] = {}  # by CALL cell: what its kernel writes
        self._seen: dict[int, tuple[Memory, tuple[int, ...]]] = {}  # by AFTER cell
        for i, kind in enumerate(g.kind):
            if kind == EFFECT:
                *_, buffer = g.chain_to_memory(g.src[i][0])
                stores = self.writers.setdefault(buffer, [])
                if g.numel[i]:  # else nothing is written
                    stores.append(i)
                self.made_by[i] = (buffer, len(stores))
            elif kind == CALL:
                made = self.written_by[i] = []
                for s in g.src[i][: g.nodes[i].arg.outputs]:
                    *_, buffer = g.chain_to_memory(s)
                    stores = self.writers.setdefault(buffer, [])
                    stores.append(i)
                    made.append((buffer, len(stores)))
            elif kind == VERSION:
                x, *stores = g.src[i]
                buffer, version = self._below(g, x)
                others = []
                for s in _flattened(g, stores):
                    if s in self.written_by:  # an AFTER of a CALL is of memory that it writes
                        version = max([version, *[n for b, n in self.written_by[s] if b == buffer]])
                        continue
                    written, new = self.made_by[s]
                    if written == buffer:
                        version = max(version, new)
                    else:
                        others.append(s)
                self._seen[i] = ((buffer, version), tuple(others))

    def _below(self, g: TensorGraph, i: int) -> Memory:
        while g.kind[i] != MEMORY:
            if i in self._seen:
                return self._seen[i][0]
            i = g.src[i][0]
        return (i, 0)

    def read(self, i: int) -> tuple[Memory, tuple[int, ...]]:
        """What a load of a BUFFER or AFTER cell reads, and the STOREs of other buffers before."""
        return self._seen.get(i) or ((i, 0), ())


def _flattened(g: TensorGraph, effects: Sequence[int]) -> list[int]:
    """The STOREs among effects, those of GROUPs included."""
    found, left = [], list(effects)[::-1]
    while left:
        i = left.pop()
        if g.kind[i] in (EFFECT, CALL):
            found.append(i)
        else:
            left += g.src[i][::-1]
    return found


@compiler_pass("build kernels", "requests", "kernels over ranges")
def build_kernels(g: TensorGraph, plan: Plan, versions: Versions) -> list[Draft]:
    """All kernels of a plan, in the order of the cells they store.

    Values may depend on fewer loops than was to be seen from the requests for them. Where no order
    of loops makes each of them once, one is stored after all, and the plan made again. Each time
    another cell is, so that comes to an end.
    """
    while True:
        builder = _Builder(g, plan, versions)
        drafts = builder.run()
        if not builder.broken:
            return drafts
        more = {i: why for i, why in builder.broken.items() if i not in g.stored}
        more = more or builder.made_inside()
        assert more, "a kernel that makes one value alone can not make it once"
        g.stored.update(more)
        plan, _, _ = plan_kernels(g, plan.targets)


class _Builder:
    def __init__(self, g: TensorGraph, plan: Plan, versions: Versions) -> None:
        self.g = g
        self.plan = plan
        self.versions = versions
        self.loops = plan.loops
        self.drafts: dict[Kernel, Draft] = {}
        self.slots: dict[Kernel, dict[Memory, int]] = {}
        self.broken: dict[int, str] = {}  # cells that can not be made once in their kernel, and why
        self.named: dict[UOp, UOp] = {}  # by the name of a computed place, or of that it is there
        # by the number of a place: the requests that wait for it, in the order to build them
        self.waiting: dict[UOp, list[tuple[int, int, int, Request]]] = {}
        self.numbers = itertools.count()

    def run(self) -> list[Draft]:
        """Build the values of all requests, sources first."""
        done: list[Draft] = []
        for i in range(len(self.g)):
            self.build_all(i)
            kernel = self.plan.kernels.get(i)
            if kernel is not None:
                done += self.finish(i, kernel)
        assert not self.waiting, "places that an index names were never computed"
        return done

    def made_inside(self) -> dict[int, str]:
        """What kernels that are broken in the cell they store make on the way, and why it goes."""
        g, plan = self.g, self.plan
        kernels = {plan.kernels[i] for i in self.broken if i in plan.kernels}
        return {
            i: "made over other loops than what its kernel stores"
            for i, kind in enumerate(g.kind)
            if (kind == REDUCE or i in plan.stages)
            and i not in g.stored
            and any(r.kernel in kernels for r in plan.requests[i].values())
        }

    def build_all(self, i: int) -> None:
        """Build the requests for cell i, and those for earlier ones that waited for a value here.

        What is read at computed places has its cell before or after that of the places. Whoever
        wants a request waits for all that it waits for, so building by cells is in order.
        """
        plan = self.plan
        merged = plan.merged.get(i, ())
        fill = [stage.fill for stage in plan.stages.get(i, {}).values()]
        groups = (fill, plan.requests[i].values(), merged)  # in this order, where all are known
        if not self.loops.places:
            for k, group in enumerate(groups):
                for r in group:
                    self.build(i, r, k == 2)
            return
        left = [(i, k, next(self.numbers), r) for k, group in enumerate(groups) for r in group]
        while left:
            cell, k, number, r = heapq.heappop(left)
            name = self.place_missing(r)
            if name is not None:
                self.waiting.setdefault(name, []).append((cell, k, number, r))
                continue
            self.build(cell, r, k == 2)
            for size, *names in plan.places.get(r, ()):
                place = as_index(r.built())
                self.named.update(zip(names, (place, is_place(place, size)), strict=True))
                for waiter in self.waiting.pop(names[0], ()):
                    heapq.heappush(left, waiter)

    def build(self, i: int, r: Request, is_merged: bool) -> None:
        """Build one request for cell i: it is loaded, read back, or computed."""
        stage, kind = self.plan.stages.get(i, {}).get(r.kernel), self.g.kind[i]
        if is_merged:
            r.value, r.gate, r.free = r.src[0].value, r.src[0].gate, r.src[0].free
            return
        guards = self.name_places(r) if self.loops.places else NO_CLAUSES
        if stage is not None and r is not stage.fill:
            self.read_stage(i, r, stage, guards)
        elif kind in (MEMORY, VERSION, TRANSFER) or (i in self.plan.kernels and not self.g.fill[i]):
            self.load(i, r, guards)
        else:
            self.compute(i, r)

    # ------------------------------------------------------------ computed places

    def place_missing(self, r: Request) -> UOp | None:
        """The number of a computed place in a request that is not known yet."""
        loops = self.loops
        clauses = (*r.clauses, *(r.extra or ()))
        wanted = [loops.number_of[c] for c in clauses if c in loops.number_of]
        for number in (*wanted, *loops.named_in((*r.index, *clauses))):
            if number not in self.named:
                return number
        return None

    def name_places(self, r: Request) -> Clauses:
        """Put computed places where a request has names for them: the clauses that have some.

        Of what says that a place is there, the parts that are always true go.
        """
        loops, guards = self.loops, []
        others = []
        for c in connected(loops, r.index, r.clauses):
            if c in loops.number_of or loops.named_in((c,)):
                guards += self.clauses_of(c)
            else:
                others.append(c)
        r.index = tuple([self.placed(e) for e in r.index])
        r.clauses = (*others, *guards)
        if r.extra and any(c in loops.number_of or loops.named_in((c,)) for c in r.extra):
            r.extra = tuple([new for c in r.extra for new in self.clauses_of(c)])
        return tuple(guards)

    def placed(self, e: UOp) -> UOp:
        """An expression with computed places for their names."""
        return simplify(e.substitute(self.named, walk=True)) if self.loops.named_in((e,)) else e

    def clauses_of(self, clause: UOp) -> list[UOp]:
        """A clause with computed places for their names, as the clauses that it comes to."""
        new = self.named[clause] if clause in self.named else self.placed(clause)
        return [c for c in new.split_uop(Ops.AND) if not (c.op is Ops.CONST and c.arg)]

    # ------------------------------------------------------------ values

    def draft(self, kernel: Kernel) -> Draft:
        """The draft of a kernel; slot 0 is what it writes."""
        found = self.drafts.get(kernel)
        if found is None:
            i = kernel.root
            memory = self.versions.made_by.get(i, (i, 0))
            reason = "; ".join([kernel.reason, *[f"LOCAL: {note}" for note in kernel.notes]])
            found = Draft(i, self.g.nodes[i], [memory], kernel.device, reason)
            self.drafts[kernel] = found
            slots = self.slots[kernel] = {memory: 0}
            if self.g.kind[i] == EFFECT:  # an update in place reads what it overwrites
                slots[memory[0], memory[1] - 1] = 0
        return found

    def load(self, i: int, r: Request, guards: Clauses) -> None:
        """The value of a request for something in memory."""
        g = self.g
        node, index, cast = g.nodes[i], r.index, None
        if g.kind[i] in (MEMORY, VERSION):
            memory, after = self.versions.read(i)
            for j in list(g.chain_to_memory(i))[:-1] if i in g.under else ():
                # an AFTER of a view: the rest of the way down
                node = g.nodes[j]
                if node.op is Ops.BITCAST:
                    cast = cast or node.dtype
                else:
                    index, _ = apply_movement(
                        node.op, resolved_arg(node), node.src[0].shape, node.shape, index, None
                    )
            node = g.nodes[memory[0]]
        else:
            memory, after = (i, 0), ()
        shape = g.shape[memory[0]]
        draft = self.draft(r.kernel)
        slots = self.slots[r.kernel]
        slot = slots.get(memory)
        if slot is None:
            slot = slots[memory] = len(draft.params)
            draft.params.append(memory)
        r.gate = self.needed_clauses(index, shape, r.clauses, guards)
        param = UOp(Ops.PARAM, node.dtype, (), ParamArg(slot, shape))
        r.value = UOp(Ops.INDEX, node.dtype, (param, *index, *condition_of(r.gate)))
        r.free = self.loops.of_all(index) | self.loops.of_all(r.gate)
        if cast is not None:
            r.value = UOp(Ops.BITCAST, cast, (r.value,))
            r.gate = ()
        draft.accesses.append(Access(memory, index, after))

    def read_stage(self, i: int, r: Request, stage: Stage, guards: Clauses) -> None:
        """The value of a request for something that is kept in memory of the thread."""
        node = self.g.nodes[i]
        shape = tuple([self.g.shape[i][d] for d in stage.dims])
        index = tuple([r.index[d] for d in stage.dims])
        gate = self.needed_clauses(index, shape, r.clauses, guards)
        # settled, or simplifying one condition that reads it would make another STAGE of it
        value = simplify(stage.fill.built())
        scope = self.loops.of(value) & r.kernel.output_loops
        if not scope:
            # the same in every step of its scope, against all appearances: nothing to keep
            r.free = self.loops.of_all(index) | self.loops.of_all(gate)
            r.value = computed_again(
                r.kernel, value, dict(zip(stage.own, index, strict=True)), gate
            )
            return
        kept = UOp(Ops.STAGE, node.dtype, (value, *stage.own), StageArg(False, shape))
        if not r.kernel.make_ahead(scope, r.kernel.built):
            self.broken[i] = "row over other loops than one in the same kernel"
        r.gate = gate
        r.free = scope | self.loops.of_all(index) | self.loops.of_all(gate)
        r.value = UOp(Ops.INDEX, node.dtype, (kept, *index, *condition_of(gate)))

    def needed_clauses(
        self, index: Index, shape: tuple[int, ...], clauses: Clauses, guards: Clauses
    ) -> Clauses:
        """The clauses without which an index may be out of bounds; all that guard its places."""
        if not clauses:
            return clauses
        outside = [i for i, size in zip(index, shape, strict=True) if i.vmin < 0 or i.vmax >= size]
        needed = connected(self.loops, outside, clauses)
        return needed + tuple([c for c in guards if c not in needed])

    def compute(self, i: int, r: Request) -> None:
        """The value of a request from those of its sources."""
        g = self.g
        node, kind = g.nodes[i], g.kind[i]
        if kind == COMPUTE:
            src = tuple([s.built() for s in r.src])
            r.value = UOp(node.op, node.dtype, src, node.arg)
            for s in r.src:
                r.free |= s.free
        elif kind == SCAN:
            loop = loop_of(r.index[node.arg.axes[0]])
            r.value, r.free = r.src[0].built(), r.src[0].free
            if loop is not None:  # else of one element
                src = (*[s.built() for s in r.src], loop)
                r.value = UOp(Ops.SCAN, node.dtype, src, ReduceArg(node.arg.op, ()))
                for s in r.src:
                    r.free |= s.free
                r.free |= self.loops.of(loop)
        elif kind == REDUCE:
            r.value = self.reduce(node, r)
            if r.src:
                r.free = r.src[0].free & ~self.loops.of_all(r.extra or ())
            if r.value.op is Ops.REDUCE and not r.kernel.make_ahead(r.free, r.kernel.built):
                self.broken[i] = "reduction over other loops than one in the same kernel"
        elif not r.src:  # all padding, or nothing is there
            r.value = UOp.const(0, node.dtype) if kind in (VIEW, PICK) else node
        else:
            source = r.src[-1]
            r.value, r.gate, r.free = source.value, source.gate, source.free
            if r.extra and not set(r.extra) <= set(r.gate):
                r.gate, r.value = (), gated(conjunction(r.extra), source.built())
                r.free |= self.loops.of_all(r.extra)

    def reduce(self, node: UOp, r: Request) -> UOp:
        """The expression of a REDUCE; by counting, or a constant, where that does it."""
        op = node.arg.op
        if not r.src:
            return identity_of(op, node.dtype)
        value = r.src[0].built()
        assert r.extra is not None
        loops: Sequence[UOp] = r.extra
        if STRICT_REDUCE and dtypes.is_float(node.dtype):  # term by term, as it is written
            return (
                UOp(Ops.REDUCE, node.dtype, (value, *loops), ReduceArg(op, ())) if loops else value
            )
        if op is Ops.ADD and not any(n.op is Ops.INDEX for n in value.postorder()):
            value, loops = closed_sum(value, loops)
        elif op is Ops.ADD:
            value, loops = picked_sum(value, loops)
        if not loops:
            return value
        value, loops = joined(op, value, loops)
        return UOp(Ops.REDUCE, node.dtype, (value, *loops), ReduceArg(op, ()))

    def finish(self, i: int, kernel: Kernel) -> list[Draft]:
        """The kernel that stores cell i, all its values built; or two, if it must be staged."""
        g, root, draft = self.g, self.plan.roots[i], self.draft(kernel)
        buffer = g.nodes[i]
        shape, index = g.shape[i], kernel.index
        gates: Clauses = ()
        if g.kind[i] == EFFECT:
            value = root.src[0].built()
            *views, memory = g.chain_to_memory(g.src[i][0])
            if is_ordered(buffer):
                places = [as_index(p.built()) for p in root.src[1:]]
                sizes = buffer.src[0].shape
                loops = index[: len(index) - len(sizes) + len(places)]
                index = (*places, *index[len(loops) :])
                gates = tuple([is_place(p, n) for p, n in zip(places, sizes, strict=False)])
            for j in views:
                node = g.nodes[j]
                if node.op is Ops.BITCAST:
                    value = UOp(Ops.BITCAST, node.src[0].dtype, (value,))
                else:
                    index, gate = apply_movement(
                        node.op, resolved_arg(node), node.src[0].shape, node.shape, index, None
                    )
                    assert gate is None or gates, "a padded view can not be assigned to"
                    gates += () if gate is None else (gate,)
            buffer, shape = g.nodes[memory], g.shape[memory]
            if is_ordered(g.nodes[i]):
                return [self.ordered(draft, value, index, gates, loops)]
        elif g.kind[i] == SCALAR:
            value = buffer
        else:
            if self.loops.places:
                self.name_places(root)
            self.compute(i, root)
            value = root.built()
        draft.target = index
        if g.kind[i] == EFFECT and _reads_what_it_overwrites(draft):
            return self.staged(kernel, draft, value)
        sink = _store(buffer.dtype, shape, index, value)
        draft.in_order = bool(kernel.scanned)
        for loop, is_backwards in kernel.scanned.items():
            if is_backwards:
                sink = _from_the_end(sink, loop)
        draft.sink = _settled(sink, kernel.scopes())
        return [draft]

    def ordered(
        self, draft: Draft, value: UOp, index: Index, gates: Clauses, loops: Index
    ) -> Draft:
        """A kernel that writes to computed places, one after the other, in the order of loops.

        So the last one wins, or is combined with what is there already.
        ValueError if what it writes, or where, is read from the memory it writes to.
        """
        g = self.g
        memory, _ = draft.params[0]
        reduction = g.nodes[draft.cell].arg
        if any(a.memory[0] == memory for a in draft.accesses):
            raise ValueError(
                "an ordered STORE reads the memory that it writes; make what it reads CONTIGUOUS"
            )
        buffer, shape = g.nodes[memory], g.shape[memory]
        param = UOp(Ops.PARAM, buffer.dtype, (), ParamArg(0, shape))
        address = [simplify(s) for s in (*index, conjunction(gates))]
        at = UOp(Ops.INDEX, buffer.dtype, (param, *address))
        if reduction is not None:
            value = at.alu(reduction, value)
        order = [r for r in loops if r.op is Ops.RANGE]
        store = UOp(Ops.STORE, dtypes.void, (at, value, *order), "ordered")
        # the loops stay as they are: their order says which element is the last
        draft.sink = _named(UOp(Ops.SINK, dtypes.void, (store,), KernelInfo()))
        draft.target = tuple([any_of(size) for size in shape])  # anywhere
        draft.in_order = True
        return draft

    def staged(self, kernel: Kernel, draft: Draft, value: UOp) -> list[Draft]:
        """A kernel that computes what is to be assigned, and one that then assigns it."""
        g, i = self.g, kernel.root
        written = draft.params[0]
        shape, dtype = g.shape[i], value.dtype
        # what was overwritten in place is now one of the buffers that are read
        before = UOp(Ops.PARAM, dtype, (), ParamArg(0, g.shape[written[0]]))
        slot = len(draft.params)
        now = UOp(Ops.PARAM, dtype, (), ParamArg(slot, g.shape[written[0]]))
        value = _replaced(value, before, now)
        params = [(i, 0), *draft.params[1:], (written[0], written[1] - 1)]
        sink = _settled(_store(dtype, shape, kernel.index, value), kernel.scopes())
        first = Draft(i, sink, params, draft.device, STAGED, (), draft.accesses)
        source = UOp(Ops.PARAM, dtype, (), ParamArg(1, shape))
        load = UOp(Ops.INDEX, dtype, (source, *kernel.index))
        sink = _store(dtype, g.shape[written[0]], draft.target, load)
        second = Draft(
            i,
            _settled(sink, ()),
            [written, (i, 0)],
            draft.device,
            draft.reason,
            draft.target,
            [Access((i, 0), kernel.index)],
        )
        return [first, second]


def any_of(size: int) -> UOp:
    """An index that may be any from 0 to size - 1."""
    return UOp(
        Ops.RANGE,
        dtypes.index,
        (UOp.const(size, dtypes.index),),
        RangeArg(0, AxisType.LOOP),
    )


STAGED = "assigned value that reads what it overwrites at other indices"


def overlaps(a: Index, b: Index) -> bool:
    """Whether the bounds of two indices of a buffer meet in every dimension."""
    return all(x.vmin <= y.vmax and y.vmin <= x.vmax for x, y in zip(a, b, strict=True))


def _reads_what_it_overwrites(draft: Draft) -> bool:
    buffer, version = draft.params[0]
    return any(
        a.memory[0] == buffer
        and a.memory[1] < version
        and a.index != draft.target
        and overlaps(a.index, draft.target)
        for a in draft.accesses
    )


def _store(dtype: DType, shape: tuple[int, ...], index: Index, value: UOp) -> UOp:
    """The kernel that writes a value to PARAM 0."""
    param = UOp(Ops.PARAM, dtype, (), ParamArg(0, shape))
    store = UOp(Ops.STORE, dtypes.void, (UOp(Ops.INDEX, dtype, (param, *index)), value))
    return UOp(Ops.SINK, dtypes.void, (store,), KernelInfo())


def _settled(sink: UOp, scopes: Sequence[int]) -> UOp:
    """The kernel with its loops as they will be, and named after them."""
    return _named(_with_one_stage_each(settle_loops(sink, scopes)))


def _named(sink: UOp) -> UOp:
    """The kernel with its name: r or E, and the sizes of the loops."""
    nodes = sink.postorder()
    loops = sorted((n for n in nodes if n.op is Ops.RANGE), key=lambda n: n.arg.axis)
    kind = "r" if any(n.op is Ops.REDUCE for n in nodes) else "E"
    name = "_".join([kind, *[str(loop.src[0].vmax) for loop in loops]])
    return UOp(Ops.SINK, dtypes.void, sink.src, KernelInfo(name))


def _with_one_stage_each(sink: UOp) -> UOp:
    """The kernel with STAGEs over the same loops made one: they differ only in how far simplified.

    A value is simplified where a condition reads it, and not where another value does.
    """
    nodes = sink.postorder()
    stages = [n for n in nodes if n.op is Ops.STAGE]
    if len({n.src[1:] for n in stages}) == len(stages):
        return sink
    new: dict[UOp, UOp] = {}
    by_loops: dict[tuple[UOp, ...], UOp] = {}
    for n in nodes:
        src = tuple([new[s] for s in n.src])
        new[n] = n if src == n.src else UOp(n.op, n.dtype, src, n.arg)
        if n.op is Ops.STAGE:
            new[n] = by_loops.setdefault(n.src[1:], new[n])
    return new[sink]


def _replaced(root: UOp, old: UOp, by: UOp) -> UOp:
    """The graph with one node replaced."""
    new = {old: by}
    for node in root.postorder():
        if node not in new:
            src = tuple([new[s] for s in node.src])
            new[node] = node if src == node.src else UOp(node.op, node.dtype, src, node.arg)
    return new[root]


def _from_the_end(sink: UOp, loop: UOp) -> UOp:
    """The kernel with a loop that counts from its other end; SCANs go along it as before."""
    new = {loop: loop.src[0] - 1 - loop}
    for node in sink.postorder():
        if node not in new:
            src = tuple([s if s is loop and node.op is Ops.SCAN else new[s] for s in node.src])
            new[node] = node if src == node.src else UOp(node.op, node.dtype, src, node.arg)
    return simplify(new[sink])


def gated(condition: UOp, value: UOp) -> UOp:
    """The value where the condition holds, 0 elsewhere."""
    if value.dtype is dtypes.bool:
        return simplify(condition & value)
    zero = UOp.const(0, value.dtype)
    if value is zero:
        return zero
    if value.op is Ops.WHERE and value.src[2] is zero:
        condition, value = simplify(condition & value.src[0]), value.src[1]
    return UOp(Ops.WHERE, value.dtype, (condition, value, zero))


def joined(op: Ops, value: UOp, loops: Sequence[UOp]) -> tuple[UOp, Sequence[UOp]]:
    """A reduction of a reduction by the same operation, as one over the loops of both.

    A sum of sums under a condition is one sum too: the order of a REDUCE is free, and what the
    condition leaves out adds 0. Left alone if the inner one does not depend on the outer loops.
    """
    inner, condition = value, None
    if op is Ops.ADD and value.op is Ops.WHERE and value.src[2] is UOp.const(0, value.dtype):
        condition, inner = value.src[0], value.src[1]
    if inner.op is not Ops.REDUCE or inner.arg.op is not op:
        return value, loops
    if not set(loops) <= set(inner.postorder()):
        return value, loops
    body = inner.src[0]
    if condition is not None:
        body = gated(condition, body)
    return body, (*loops, *inner.src[1:])


def conjunction(clauses: Clauses) -> UOp:
    """All of the clauses as one condition."""
    gate = clauses[0]
    for c in clauses[1:]:
        gate = gate & c
    return simplify(gate)


def condition_of(clauses: Clauses) -> tuple[UOp, ...]:
    """The gate of a load as its last source, if it has any."""
    return (conjunction(clauses),) if clauses else ()


def computed_again(kernel: Kernel, value: UOp, loops: dict[UOp, UOp], gate: Clauses) -> UOp:
    """A value of some loops at an index instead, its reductions in loops of their own.

    Off the gate it loads nothing, and is anything.
    """
    new = dict(loops)
    for node in value.postorder():
        if node in new:
            continue
        if node.op is Ops.RANGE:
            if node.arg.kind is AxisType.REDUCE:
                outer = kernel.outer[node.arg.axis]
                (new[node],) = kernel.open_loops(node.src, AxisType.REDUCE, outer)
            else:
                new[node] = node
            continue
        src = tuple([new[s] for s in node.src])
        if node.op is Ops.INDEX and gate and src != node.src:
            rank = len(node.src[0].shape)
            clauses = (*gate, *[c for g in src[1 + rank :] for c in g.split_uop(Ops.AND)])
            src = (*src[: 1 + rank], conjunction(clauses))
        new[node] = node if src == node.src else UOp(node.op, node.dtype, src, node.arg)
    return new[value]


def identity_of(op: Ops, dtype: DType) -> UOp:
    """What a reduction of nothing gives."""
    return UOp.const({Ops.ADD: 0, Ops.MUL: 1}.get(op, dtype.min), dtype)
