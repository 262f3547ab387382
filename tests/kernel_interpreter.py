"""Kernels (SINK over STOREs of scalars over RANGEs) run with NumPy: what a schedule computes.

Every loop is an axis of an array, so a kernel runs in one step, and what depends on the order of
steps is checked: indices must be in bounds wherever their gate is true, and a kernel that reads
memory it also writes must read each place in the very step that writes it. A kernel with STAGEs
runs a second time, its outer loops nested as they are written and each STAGE one piece of memory
that begins as garbage whenever its scope is entered: both runs must give the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evaluate import bits_as, constant, elementwise, evaluate, move, np_dtype, reduce, scan
from tiny.schedule import BoundSchedule, ScheduleItem
from tiny.uop.ops import AxisType, GroupOp, Ops, UOp

Array = np.ndarray[Any, Any]


def run_schedule(
    bound: BoundSchedule, memory: Mapping[UOp, Array], roots: Sequence[UOp] = ()
) -> tuple[list[Array], dict[UOp, Array]]:
    """The outputs of a schedule, and the contents of its BUFFERs after it has run.

    Temporary buffers lie in one arena a device, as planned, and begin as garbage.
    """
    schedule = bound.schedule
    arenas = {d: np.full(n, 0xA5, np.uint8) for d, n in schedule.arena.items()}
    slots: list[Array] = []
    for k, slot in enumerate(schedule.slots):
        dtype = np_dtype(slot.dtype)
        if slot.role == "input":
            slots.append(np.array(memory[bound.buffers[k]], dtype).reshape(slot.shape))
        elif slot.role == "temp":
            raw = arenas[slot.device][slot.offset : slot.offset + slot.nbytes]
            assert slot.offset % 64 == 0
            slots.append(raw.view(dtype).reshape(slot.shape))
        else:
            slots.append(garbage(slot.shape, dtype))
    for item in schedule.items:
        run_item(item, slots, bound.values)
    outputs = [see(slots[view.slot], view.moves, bound.values) for view in schedule.outputs]
    return outputs, {b: slots[k] for k, b in enumerate(bound.buffers)}


def garbage(shape: Sequence[int], dtype: Any) -> Array:
    """Memory that nothing was written to."""
    dtype = np.dtype(dtype)
    n = int(np.prod(shape, dtype=int)) * dtype.itemsize
    return np.frombuffer(bytes([0xA5]) * n, dtype).reshape(tuple(shape)).copy()


def see(x: Array, moves: Sequence[UOp], variables: Mapping[str, int]) -> Array:
    """A slot through the movement operations of a view."""
    for node in moves:
        sizes = {size: evaluate(size, None, variables) for size in node.src[1:]}
        x = bits_as(x, np_dtype(node.dtype)) if node.op is Ops.BITCAST else move(node, x, sizes)
    return x


def run_item(item: ScheduleItem, slots: list[Array], values: Mapping[str, int]) -> None:
    """One kernel or copy."""
    memory = [slots[k] for k in item.slots]
    if item.kernel.op is Ops.COPY:
        np.copyto(memory[0], memory[1].reshape(memory[0].shape))
        return
    # the same memory under several numbers is one
    first = {k: item.slots.index(s) for k, s in enumerate(item.slots)}
    run_kernel(item.kernel, memory, values, first)
    stores = [s.src[0].src[0].arg.slot for s in item.kernel.src]
    assert stores == list(range(item.outputs)), "what is written comes first, in order"
    assert len({item.slots[k] for k in stores}) == item.outputs, "memory is written twice"


def run_kernel(
    sink: UOp,
    memory: Sequence[Array],
    variables: Mapping[str, int],
    same: Mapping[int, int] | None = None,
) -> None:
    """One kernel, PARAM k being memory[k]. All is read before anything is written."""
    loops = sorted(n.arg.axis for n in sink.postorder() if n.op is Ops.RANGE)
    assert loops == list(range(len(loops))), "axes are numbered once each, without gaps"
    nests = nests_of(sink)
    check_apart(nests)
    results = [run_nest(nest, memory, variables, same or {}) for nest in nests]
    for nest, written in zip(nests, results, strict=True):
        for store, (at, new) in zip(nest.src, written, strict=True):
            memory[store.src[0].src[0].arg.slot].reshape(-1)[at] = new


def nests_of(sink: UOp) -> list[UOp]:
    """A kernel for the stores over each set of loops, which may share none with the others."""
    groups: dict[tuple[UOp, ...], list[UOp]] = {}
    for store in sink.src:
        loops = [r for i in store.src[0].src[1:] for r in i.postorder() if r.op is Ops.RANGE]
        groups.setdefault(tuple(sorted(set(loops), key=lambda r: r.arg.axis)), []).append(store)
    if len(groups) == 1:
        return [sink]
    nests = []
    for stores in groups.values():
        nest = UOp.sink(*stores)
        loops = sorted((n for n in nest.postorder() if n.op is Ops.RANGE), key=lambda r: r.arg.axis)
        new = {r: r.replace(arg=r.arg._replace(axis=k)) for k, r in enumerate(loops)}
        for node in nest.postorder():
            if node not in new:
                new[node] = node.replace(src=tuple([new[s] for s in node.src]))
        nests.append(new[nest])
    return nests


def check_apart(nests: list[UOp]) -> None:
    """No nest of a kernel touches what another one writes."""
    for a, b in itertools.permutations(nests, 2):
        written = {s.src[0].src[0].arg.slot for s in a.src}
        used = {n.arg.slot for n in b.postorder() if n.op is Ops.PARAM}
        assert not written & used, "one nest writes what another one uses"


def run_nest(
    sink: UOp, memory: Sequence[Array], variables: Mapping[str, int], same: Mapping[int, int]
) -> list[tuple[Array, Array]]:
    """(addresses, values) of the stores of a kernel that is one loop nest."""
    kernel = _Kernel(sink, memory, variables, same)
    with np.errstate(all="ignore"):
        written = [kernel.store(s, kernel.known) for s in sink.src]
        kernel.check_writes(written)
        if kernel.stages:
            for store, (at, new) in zip(sink.src, written, strict=True):
                order = np.argsort(at)
                again_at, again = kernel.store_nested(store)
                nested = np.argsort(again_at)
                np.testing.assert_array_equal(at[order], again_at[nested])
                # bit for bit unless a sum over fewer axes at a time adds in another order
                np.testing.assert_allclose(
                    new[order], again[nested], rtol=1e-5, atol=1e-5, err_msg="nested loops differ"
                )
    return written


class _Kernel:
    """A kernel about to run: its loops as axes of arrays, and what its nodes depend on."""

    def __init__(
        self,
        sink: UOp,
        memory: Sequence[Array],
        variables: Mapping[str, int],
        same: Mapping[int, int],
    ) -> None:
        self.memory, self.variables, self.same = memory, variables, same
        self.nodes = sink.postorder()
        loops = [n for n in self.nodes if n.op is Ops.RANGE]
        self.loops = sorted(loops, key=lambda n: n.arg.axis)
        numbers = [n.arg.axis for n in self.loops]
        assert numbers == list(range(len(loops))), "axes are numbered once each, without gaps"
        self.depends = dependence(self.nodes)
        self.stages = [n for n in self.nodes if n.op is Ops.STAGE]
        self.known: dict[UOp, Array] = {}
        self.check_binding(sink)

    def check_binding(self, sink: UOp) -> None:
        """Loops of a STAGE are its own; scopes of what is computed ahead are nested."""
        bound: dict[UOp, UOp] = {}
        for n in self.nodes:
            if n.op is Ops.REDUCE:
                assert all(r.arg.kind is AxisType.REDUCE for r in n.src[1:])
            elif n.op is Ops.STAGE:
                assert len(n.src) > 1 and len(n.arg.shape) == len(n.src) - 1
                for r, size in zip(n.src[1:], n.arg.shape, strict=True):
                    assert r.arg.kind is AxisType.LOOP, "a loop of a STAGE that is no LOOP"
                    assert r not in bound, "a loop of two STAGEs"
                    assert size == r.src[0].vmax
                    bound[r] = n
        for store in sink.src:
            free = self.depends[store]
            assert not free & bound.keys(), "the loop of a STAGE is used outside of it"
            assert all(r.arg.kind is AxisType.LOOP for r in free)
            scopes = [self.depends[n] for n in store.postorder() if n.op in (Ops.REDUCE, Ops.STAGE)]
            scopes = [s for s in scopes if s <= free]
            for a, b in itertools.combinations(set(scopes), 2):
                assert a <= b or b <= a, "two scopes of which neither is in the other"
        for stage in self.stages:
            assert self.depends[stage], "a STAGE of the thread without a scope"
            assert not self.depends[stage] & bound.keys(), "a STAGE filled inside another"

    def size_of(self, loop: UOp) -> int:
        return int(self.value(loop.src[0], self.known))

    def value(self, root: UOp, known: dict[UOp, Array]) -> Array:
        """The value of a node; all that it needs is put into `known`."""
        if root not in known:
            for node in root.postorder():
                if node not in known:
                    known[node] = self.compute(node, known)
        return known[root]

    def compute(self, node: UOp, known: dict[UOp, Array]) -> Array:
        """The value of one node from those of its sources: an array with an axis for each loop."""
        op = node.op
        if op is Ops.CONST:
            return constant(node.arg, node.dtype)
        if op is Ops.DEFINE_VAR:
            return constant(self.variables[node.arg.name], node.dtype)
        if op is Ops.RANGE:
            shape = [1] * len(self.loops)
            shape[node.arg.axis] = self.size_of(node)
            return np.arange(shape[node.arg.axis]).reshape(shape)
        if op is Ops.INDEX:
            at, ok = address(node, known)
            return load(self.contents(node.src[0], known), at, ok)
        if op is Ops.REDUCE:
            axes = tuple(r.arg.axis for r in node.src[1:])
            x = self.spread(known[node.src[0]], node.src[1:])
            return reduce(x, node.arg.op, axes, node.dtype)
        if op is Ops.SCAN:
            loop = node.src[-1]
            shape = np.broadcast_shapes(*[known[s].shape for s in node.src])
            src = [np.broadcast_to(known[s], shape) for s in node.scanned]
            return scan(src, node.arg.op, loop.arg.axis, node.dtype)
        if op is Ops.STAGE:
            # the loops that it depends on stay axes; its own become the memory behind them
            x = self.spread(known[node.src[0]], node.src[1:])
            own = [r.arg.axis for r in node.src[1:]]
            kept = [k for k in range(len(self.loops)) if k not in own]
            sizes = [self.size_of(r) for r in node.src[1:]]
            box = garbage([*[x.shape[k] for k in kept], *node.arg.shape], x.dtype)
            box[(..., *[slice(0, n) for n in sizes])] = x.transpose(*kept, *own)
            return box
        if op is Ops.PARAM:
            return self.memory[node.arg.slot]
        assert op in GroupOp.Elementwise, op
        src = [known[s] for s in node.src]
        return elementwise(op, src, node.dtype, node.src[0].dtype, node.arg)

    def contents(self, buffer: UOp, known: dict[UOp, Array]) -> Array:
        """The memory of a PARAM or STAGE, its elements in the last dimension."""
        x = known[buffer]
        if buffer.op is Ops.PARAM:
            assert x.size == np.prod(buffer.arg.shape, dtype=int), (buffer, x.shape)
            return x.reshape(-1)
        if x.ndim == len(buffer.arg.shape):  # in a nested run: the memory of this step
            return x.reshape(-1)
        rank = len(buffer.arg.shape)
        shape = [1] * len(self.loops) + [-1]
        own = [r.arg.axis for r in buffer.src[1:]]
        kept = [k for k in range(len(self.loops)) if k not in own]
        for k, n in zip(kept, x.shape[: x.ndim - rank], strict=True):
            shape[k] = n
        return x.reshape(shape)

    def spread(self, x: Array, over: Sequence[UOp]) -> Array:
        """x with all axes, those of the given loops in full."""
        shape = list(x.reshape((1,) * (len(self.loops) - x.ndim) + x.shape).shape)
        for r in over:
            shape[r.arg.axis] = self.size_of(r)
        return np.broadcast_to(x, shape)

    def store(self, store: UOp, known: dict[UOp, Array]) -> tuple[Array, Array]:
        """(flat addresses, values) of a STORE."""
        target, value = store.src[:2]
        if store.arg == "ordered":
            return self.store_in_order(store, known)
        for s in (*target.src, value, *store.src[2:]):
            self.value(s, known)
        at, ok = address(target, known)
        assert np.all(ok), "a store without bounds"
        loops = [r for r in self.depends[target] if r not in known or known[r].ndim]
        at = self.spread(at, loops) if self.loops else at
        new = np.broadcast_to(known[value], at.shape)
        if store.arg == "partial":  # nobody reads the rest
            rest = math.nan if new.dtype.kind == "f" else 1
            new = np.where(known[store.src[2]], new, np.asarray(rest, new.dtype))
        return at.reshape(-1), new.reshape(-1)

    def store_in_order(self, store: UOp, known: dict[UOp, Array]) -> tuple[Array, Array]:
        """(flat addresses, values) in the order of the loops: the last one stays there."""
        target, value = store.src[:2]
        new = value.src[1] if target in value.src else value
        for s in (*target.src, new):
            self.value(s, known)
        loops = list(self.depends[store])
        arrays = (*address(target, known), known[new])
        at, ok, written = (self.spread(x, loops) if self.loops else x for x in arrays)
        at, written = at[ok], written[ok]
        if new is not value:  # combined with what is there, one after the other
            memory = self.memory[target.src[0].arg.slot].reshape(-1).copy()
            written = written.copy()
            for k, place in enumerate(at):
                src = [memory[place : place + 1], written[k : k + 1]]
                memory[place] = elementwise(value.op, src, value.dtype, value.dtype)[0]
                written[k] = memory[place]
        return at, written

    def store_nested(self, store: UOp) -> tuple[Array, Array]:
        """The same, with the loops outside of and around its STAGEs run one step at a time."""
        cone = store.postorder()
        stages = [n for n in cone if n.op is Ops.STAGE]
        nest = sorted(self.depends[store], key=lambda r: r.arg.axis)
        depth = {s: 1 + max(nest.index(r) for r in self.depends[s]) for s in stages}
        outer = nest[: max(depth.values(), default=0)]
        fixed = {n: x for n, x in self.known.items() if not self.depends[n] & set(outer)}
        memory: dict[UOp, Array] = {}
        found: list[tuple[Array, Array]] = []
        before: tuple[int, ...] | None = None
        for step in itertools.product(*[range(self.size_of(r)) for r in outer]):
            known = {n: x for n, x in fixed.items() if n.op is not Ops.STAGE}
            known |= {r: np.array(k) for r, k in zip(outer, step, strict=True)}
            for s in stages:
                if before is None or before[: depth[s]] != step[: depth[s]]:
                    self.fill(s, known, memory)
                known[s] = memory[s]
            found.append(self.store(store, known))
            before = step
        return (
            tuple(np.concatenate(x) for x in zip(*found, strict=True))
            if found
            else (
                np.zeros(0, int),
                np.zeros(0),
            )
        )

    def fill(self, stage: UOp, known: dict[UOp, Array], memory: dict[UOp, Array]) -> None:
        """Compute a STAGE into its memory, which holds nothing before."""
        value, *own = stage.src
        box = memory[stage] = garbage(stage.arg.shape, np_dtype(stage.dtype))
        x = self.spread(self.value(value, known), own)
        x = x.transpose(
            *[k for k in range(len(self.loops)) if k not in {r.arg.axis for r in own}],
            *[r.arg.axis for r in own],
        )
        sizes = [self.size_of(r) for r in own]
        box[tuple(slice(0, n) for n in sizes)] = x.reshape(sizes)

    def check_writes(self, written: list[tuple[Array, Array]]) -> None:
        """Nothing is written twice; what is read of written memory is read in the same step."""
        writers: dict[int, tuple[UOp, Array]] = {}
        sink = self.nodes[-1]
        for store, (at, _) in zip(sink.src, written, strict=True):
            slot = store.src[0].src[0].arg.slot
            slot = self.same.get(slot, slot)
            assert slot not in writers, "one buffer is written by two stores"
            is_ordered = store.arg == "ordered"
            assert is_ordered or len(np.unique(at)) == at.size, "a place is written twice"
            writers[slot] = store, at
        for node in self.nodes:
            if node.op is not Ops.INDEX or node.src[0].op is not Ops.PARAM:
                continue
            slot = node.src[0].arg.slot
            found = writers.get(self.same.get(slot, slot))
            if found is None:
                continue
            store, at = found
            if store.arg == "ordered":
                assert node is store.src[0], "what is written in order is not read"
                continue
            target = store.src[0]
            full = self.spread(address(target, self.known)[0], list(self.depends[target]))
            writer = np.full(self.memory[slot].size, -1)
            writer[at] = np.arange(at.size)
            read, ok = address(node, self.known)
            by = writer[np.where(ok, read, 0)]
            by, now, ok = np.broadcast_arrays(by, np.arange(at.size).reshape(full.shape), ok)
            assert np.all((by == -1) | (by == now) | ~ok), "reads what another step writes"


def dependence(nodes: Sequence[UOp]) -> dict[UOp, frozenset[UOp]]:
    """The loops that each node depends on; those that a REDUCE or STAGE runs itself left out."""
    found: dict[UOp, frozenset[UOp]] = {}
    for n in nodes:
        loops = frozenset((n,)) if n.op is Ops.RANGE else frozenset()
        own = n.src[1:] if n.op in (Ops.REDUCE, Ops.STAGE) else ()
        for s in n.src:
            loops |= found[s]
        found[n] = loops - frozenset(own)
    return found


def address(index: UOp, known: Mapping[UOp, Array]) -> tuple[Array, Array]:
    """(flat element numbers, where the gate holds)."""
    shape = index.src[0].arg.shape
    exprs = index.src[1:]
    assert len(exprs) in (len(shape), len(shape) + 1), index
    gate = known[exprs[-1]] if len(exprs) > len(shape) else np.array(True)
    flat: Array = np.array(0)
    for e, size in zip(exprs[: len(shape)], shape, strict=True):
        i, ok = np.broadcast_arrays(known[e], gate)
        assert np.all((i >= 0) & (i < size) | ~ok), f"out of bounds: {e}"
        flat = flat * size + np.where(ok, i, 0)
    return np.broadcast_arrays(flat, gate)


def load(x: Array, at: Array, ok: Array) -> Array:
    """The elements at flat numbers of the last dimension of x, 0 where not ok."""
    if not x.size:
        return np.zeros(at.shape, x.dtype)
    at = np.where(ok, at, 0)
    if x.ndim == 1:
        return np.where(ok, x[at], x.dtype.type(0))
    at = at.reshape((1,) * (x.ndim - 1 - at.ndim) + at.shape)
    places = np.ogrid[tuple(slice(0, n) for n in x.shape[:-1])]
    return np.where(ok, x[(*places, at)], x.dtype.type(0))
