"""The order of kernels and copies, when buffers are written that others still read.

Every STORE makes a version of its buffer. A read of version v comes after the store that made it
and before the one that makes v + 1. Where that closes a circle (a swap, old and new read
together), the old version is copied and the waiting readers read the copy: nothing is refused.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tiny.dtype import DType, dtypes
from tiny.schedule.graph import CALL, TRANSFER, TensorGraph, argument_memory, whole_memory
from tiny.schedule.kernels import Access, Draft, Memory, Versions, any_of, overlaps
from tiny.schedule.nests import Index
from tiny.uop.ops import AxisType, KernelInfo, Ops, ParamArg, RangeArg, UOp
from tiny.uop.passes import compiler_pass

# A store is compared with this many later ones to find the first that it must precede.
MOST_COMPARED = 8


@dataclass
class Step:
    """A kernel or a copy between devices: `memory[k]` is what its PARAM k names.

    The first `outputs` of them are written. `joined` says which other kernels became part of it:
    why, and the memory that they share with it.
    """

    kernel: UOp
    memory: list[Memory]
    device: str
    reason: str
    target: tuple[UOp, ...] = ()
    accesses: list[Access] = field(default_factory=list)
    outputs: int = 1
    joined: list[tuple[str, Memory | None]] = field(default_factory=list)
    by_hand: bool = False  # a kernel that a user wrote: it stays as it is
    in_order: bool = False  # steps of some loop come one after the other

    @property
    def written(self) -> Memory:
        """What the step writes, or the first of it."""
        return self.memory[0]


class Steps(NamedTuple):
    """Steps in an order in which they may run; `before[k]` are those that step k comes after.

    `copies` are the BUFFER cells of which an old version is kept, by the number of the copy.
    """

    steps: list[Step]
    before: list[list[int]]
    copies: dict[int, int]


@compiler_pass("order steps", "kernels", "steps after those that they read")
def order_steps(g: TensorGraph, drafts: Iterable[Draft], versions: Versions) -> Steps:
    """The steps in an order to run them, and why; with copies where none would do otherwise."""
    steps = [(d.cell, _step_of(d)) for d in drafts]
    for i, kind in enumerate(g.kind):
        if kind == TRANSFER and g.numel[i]:
            steps.append((i, _transfer(g, i, versions)))
        elif kind == CALL:
            steps.append((i, _call(g, i, versions)))
    steps.sort(key=lambda pair: pair[0])
    return _Order(g, [s for _, s in steps], versions).run()


def _step_of(d: Draft) -> Step:
    return Step(d.sink, d.params, d.device, d.reason, d.target, d.accesses, in_order=d.in_order)


def _transfer(g: TensorGraph, i: int, versions: Versions) -> Step:
    node, source = g.nodes[i], whole_memory(g, g.src[i][0])
    assert source is not None
    memory, after = versions.read(source)
    shape = g.shape[memory[0]]
    kernel = UOp(
        Ops.COPY, node.dtype, (UOp(Ops.PARAM, node.dtype, (), ParamArg(1, shape)),), node.arg
    )
    everything = tuple([any_of(size) for size in shape])
    reads = Access(memory, everything, after)
    return Step(kernel, [(i, 0), memory], g.device[i], g.stored[i], (), [reads])


def _call(g: TensorGraph, i: int, versions: Versions) -> Step:
    """A kernel written by hand, with the memory of its PARAMs. It may write all that it can."""
    arg = g.nodes[i].arg
    memory, accesses = list(versions.written_by[i]), []
    for s in g.src[i][arg.outputs :]:
        source = argument_memory(g, s)
        assert source is not None
        read, after = versions.read(source)
        memory.append(read)
        everything = tuple([any_of(size) for size in g.shape[read[0]]])
        accesses.append(Access(read, everything, after))
    device = g.device[g.src[i][0]]
    return Step(
        arg.kernel, memory, device, "written by hand", (), accesses, arg.outputs, by_hand=True
    )


def copy_kernel(dtype: DType, shape: tuple[int, ...]) -> UOp:
    """PARAM 1 copied to PARAM 0, all of it."""
    loops: list[UOp] = []
    for size in shape:
        axis = sum(loop.op is Ops.RANGE for loop in loops)
        end = UOp.const(size, dtypes.index)
        loop = UOp(Ops.RANGE, dtypes.index, (end,), RangeArg(axis, AxisType.LOOP))
        loops.append(UOp.const(0, dtypes.index) if size == 1 else loop)
    to, source = (
        UOp(Ops.INDEX, dtype, (UOp(Ops.PARAM, dtype, (), ParamArg(k, shape)), *loops))
        for k in (0, 1)
    )
    name = "_".join(["copy", *map(str, shape)])
    return UOp(
        Ops.SINK, dtypes.void, (UOp(Ops.STORE, dtypes.void, (to, source)),), KernelInfo(name)
    )


class _Order:
    """Kahn's algorithm with a heap in program order; hard edges are data, soft ones overwriting."""

    def __init__(self, g: TensorGraph, steps: list[Step], versions: Versions) -> None:
        self.g = g
        self.steps = steps
        n = len(steps)
        self.before: list[dict[int, None]] = [{} for _ in range(n)]
        self.hard, self.soft = [0] * n, [0] * n
        self.hard_users: list[list[int]] = [[] for _ in range(n)]
        self.soft_users: list[list[int]] = [[] for _ in range(n)]
        # by writer: the steps that read what it overwrites, and as what they know that
        self.readers: list[list[tuple[int, Memory]]] = [[] for _ in range(n)]
        self.copies: dict[int, int] = {}
        self.producer = {m: k for k, s in enumerate(steps) for m in s.memory[: s.outputs]}
        for k, step in enumerate(steps):
            self._draw_edges(k, step, versions)

    def _draw_edges(self, k: int, step: Step, versions: Versions) -> None:
        producer = self.producer
        before = {producer.get(a.memory): None for a in step.accesses}
        for a in step.accesses:
            before.update((producer.get(versions.made_by[s]), None) for s in a.after)
        overwrites = set()
        for buffer, version in step.memory[: step.outputs]:
            if buffer in versions.writers and version > 0:
                overwrites.add((buffer, version - 1))
                before[producer.get((buffer, version - 1))] = None
        for b in before:
            if b is not None and b != k:
                self.hard[k] += 1
                self.hard_users[b].append(k)
                self.before[k][b] = None
        regions: dict[Memory, list[Index]] = {}
        for a in step.accesses:
            if a.memory[0] in versions.writers and a.memory not in overwrites:
                regions.setdefault(a.memory, []).append(a.index)
        for memory, indices in regions.items():
            self._before_overwriting(k, memory, indices)

    def _before_overwriting(self, k: int, memory: Memory, indices: list[Index]) -> None:
        """Step k reads a version: it precedes the next writer of what it reads of that."""
        buffer, version = memory
        for ahead in range(1, MOST_COMPARED + 1):
            writer = self.producer.get((buffer, version + ahead))
            if writer is None:
                return
            if writer == k:
                continue
            target = self.steps[writer].target
            far = ahead == MOST_COMPARED or self.steps[writer].by_hand  # taken to overlap
            if far or any(overlaps(index, target) for index in indices):
                self.soft[writer] += 1
                self.soft_users[k].append(writer)
                self.before[writer][k] = None
                self.readers[writer].append((k, memory))
                return

    def run(self) -> Steps:
        """The order; see `order_steps`."""
        n = len(self.steps)
        done = [False] * n
        order: list[int] = []
        ready = [k for k in range(n) if not self.hard[k] and not self.soft[k]]
        blocked = [k for k in range(n) if not self.hard[k] and self.soft[k]]
        while ready or blocked:
            if not ready:
                # nothing can run: the earliest writer that waits for readers only
                k = heapq.heappop(blocked)
                if done[k]:
                    continue
                order += self._copies_for_readers(k, done)
                self.soft[k] = 0
                ready.append(k)
            k = heapq.heappop(ready)
            if done[k]:
                continue
            done[k] = True
            order.append(k)
            for user in self.hard_users[k]:
                self.hard[user] -= 1
                if not self.hard[user]:
                    heapq.heappush(blocked if self.soft[user] else ready, user)
            for user in self.soft_users[k]:
                self.soft[user] -= 1
                if not self.soft[user] and not self.hard[user] and not done[user]:
                    heapq.heappush(ready, user)
        assert all(done), "the steps of a schedule wait for each other"
        place = {k: at for at, k in enumerate(order)}
        before = [[place[b] for b in self.before[k]] for k in order]
        return Steps([self.steps[k] for k in order], before, self.copies)

    def _copies_for_readers(self, k: int, done: list[bool]) -> list[int]:
        """Steps that keep what step k is about to overwrite, for those still to read it."""
        waiting: dict[int, list[tuple[int, Memory]]] = {}
        for reader, memory in self.readers[k]:
            if not done[reader]:
                waiting.setdefault(memory[0], []).append((reader, memory))
        return [self._copy_for(k, buffer, readers) for buffer, readers in waiting.items()]

    def _copy_for(self, k: int, buffer: int, readers: list[tuple[int, Memory]]) -> int:
        """A step that keeps a buffer that step k is about to overwrite, for its readers."""
        version = next(v for b, v in self.steps[k].memory if b == buffer)
        number = -1 - len(self.copies)
        self.copies[number] = buffer
        copy = len(self.steps)
        for reader, memory in readers:
            step = self.steps[reader]
            step.memory = [(number, 0) if m == memory else m for m in step.memory]
            self.soft_users[reader].remove(k)
            self.before[reader][copy] = None
            self.before[k].pop(reader, None)  # it may read two versions
        node = self.g.nodes[buffer]
        step = Step(
            copy_kernel(node.dtype, self.g.shape[buffer]),
            [(number, 0), (buffer, version - 1)],
            self.g.device[buffer],
            "the old value of a buffer, read after it is overwritten",
        )
        self.steps.append(step)
        maker = self.producer.get((buffer, version - 1))
        self.before.append({} if maker is None else {maker: None})
        self.before[k][copy] = None
        return copy
