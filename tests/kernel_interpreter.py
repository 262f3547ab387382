"""Kernels (SINK over STOREs of scalars over RANGEs) run with NumPy: what a schedule computes.

Every loop is an axis of an array, so a kernel runs in one step; loops are not nested, and what
depends on their order is checked: indices must be in bounds wherever their gate is true, and a
kernel that reads memory it also writes must read each place in the very step that writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evaluate import bits_as, constant, elementwise, move, np_dtype, reduce
from tiny.schedule import BoundSchedule, ScheduleItem
from tiny.uop.ops import GroupOp, Ops, UOp

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
            slots.append(
                np.frombuffer(bytes([0xA5]) * slot.nbytes, dtype).reshape(slot.shape).copy()
            )
    for item in schedule.items:
        run_item(item, slots, bound.values)
    outputs = [see(slots[view.slot], view.moves) for view in schedule.outputs]
    return outputs, {b: slots[k] for k, b in enumerate(bound.buffers)}


def see(x: Array, moves: Sequence[UOp]) -> Array:
    """A slot through the movement operations of a view."""
    for node in moves:
        x = bits_as(x, np_dtype(node.dtype)) if node.op is Ops.BITCAST else move(node, x, {})
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


def run_kernel(
    sink: UOp,
    memory: Sequence[Array],
    variables: Mapping[str, int],
    same: Mapping[int, int] | None = None,
) -> None:
    """One kernel, PARAM k being memory[k]."""
    nodes = sink.postorder()
    loops = {n.arg.axis: n for n in nodes if n.op is Ops.RANGE}
    assert len(loops) == sum(n.op is Ops.RANGE for n in nodes), "two loops have one axis number"
    assert sorted(loops) == list(range(len(loops))), "axes are numbered without gaps"
    outputs = {
        r for s in sink.src for i in s.src[0].src[1:] for r in i.postorder() if r in loops.values()
    }
    known: dict[UOp, Array] = {}
    place = {axis: k for k, axis in enumerate(sorted(loops))}
    same = same or {}

    def size_of(loop: UOp) -> int:
        return int(known[loop.src[0]])

    with np.errstate(all="ignore"):
        for node in nodes:
            if node.op is Ops.CONST:
                known[node] = constant(node.arg, node.dtype)
            elif node.op is Ops.DEFINE_VAR:
                known[node] = constant(variables[node.arg.name], node.dtype)
            elif node.op is Ops.RANGE:
                shape = [1] * len(loops)
                shape[place[node.arg.axis]] = size_of(node)
                known[node] = np.arange(size_of(node)).reshape(shape)
            elif node.op is Ops.INDEX:
                at, ok = address(node, known, memory)
                known[node] = load(memory[node.src[0].arg.slot], at, ok)
            elif node.op is Ops.REDUCE:
                known[node] = run_reduce(node, known, place, len(loops), size_of)
            elif node.op in GroupOp.Elementwise:
                src = [known[s] for s in node.src]
                known[node] = elementwise(node.op, src, node.dtype, node.src[0].dtype)
            elif node.op is Ops.STORE:
                target, value = node.src
                slot = target.src[0].arg.slot
                at, ok = address(target, known, memory)
                assert np.all(ok), "a store without bounds"
                steps = [size_of(loops[a]) if loops[a] in outputs else 1 for a in sorted(loops)]
                at = np.broadcast_to(at, steps or at.shape)
                new = np.broadcast_to(known[value], at.shape)
                assert len(np.unique(at)) == at.size, "a place is written twice"
                check_in_place(nodes, target, at, known, memory, same)
                flat = memory[slot].reshape(-1)
                flat[at.reshape(-1)] = new.reshape(-1)
            else:
                assert node.op in (Ops.PARAM, Ops.SINK), node.op


def run_reduce(
    node: UOp, known: dict[UOp, Array], place: Mapping[int, int], ndim: int, size_of: Any
) -> Array:
    x = known[node.src[0]]
    x = x.reshape((1,) * (ndim - x.ndim) + x.shape)
    axes = tuple(place[r.arg.axis] for r in node.src[1:])
    shape = list(x.shape)
    for r in node.src[1:]:
        shape[place[r.arg.axis]] = size_of(r)
    return reduce(np.broadcast_to(x, shape), node.arg.op, axes, node.dtype)


def address(index: UOp, known: dict[UOp, Array], memory: Sequence[Array]) -> tuple[Array, Array]:
    """(flat element numbers, where the gate holds)."""
    param = index.src[0]
    shape = param.arg.shape
    exprs = index.src[1:]
    assert len(exprs) in (len(shape), len(shape) + 1), index
    gate = known[exprs[-1]] if len(exprs) > len(shape) else np.array(True)
    assert memory[param.arg.slot].size == np.prod(shape, dtype=int), (
        param,
        memory[param.arg.slot].shape,
    )
    flat: Array = np.array(0)
    for e, size in zip(exprs[: len(shape)], shape, strict=True):
        i, ok = np.broadcast_arrays(known[e], gate)
        assert np.all((i >= 0) & (i < size) | ~ok), f"out of bounds: {e}"
        flat = flat * size + np.where(ok, i, 0)
    return np.broadcast_arrays(flat, gate)


def load(x: Array, at: Array, ok: Array) -> Array:
    if not x.size:
        return np.zeros(at.shape, x.dtype)
    return np.where(ok, x.reshape(-1)[np.where(ok, at, 0)], x.dtype.type(0))


def check_in_place(
    nodes: list[UOp],
    target: UOp,
    at: Array,
    known: dict[UOp, Array],
    memory: Sequence[Array],
    same: Mapping[int, int],
) -> None:
    """What is read of the memory being written is read in the step that writes it."""
    slot = target.src[0].arg.slot
    writer = np.full(memory[slot].size, -1)
    writer[at.reshape(-1)] = np.arange(at.size)
    step = np.arange(at.size).reshape(at.shape)
    for node in nodes:
        if node.op is Ops.INDEX and node is not target:
            other = node.src[0].arg.slot
            if same.get(other, other) == same.get(slot, slot):
                read, ok = address(node, known, memory)
                by = writer[np.where(ok, read, 0)]
                by, now, ok = np.broadcast_arrays(by, step, ok)
                assert np.all((by == -1) | (by == now) | ~ok), "reads what another step writes"
