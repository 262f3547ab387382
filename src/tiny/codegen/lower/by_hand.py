"""From a kernel that runs as it is written to a linear program: one phase, in one thread."""

from __future__ import annotations

import math
from typing import NamedTuple

from tiny.codegen.lower.decompose import decompose
from tiny.codegen.lower.indices import flatten_indices, lower_index_division
from tiny.codegen.program import LinearProgram, Phase, ProgramParam, is_arithmetic
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, RegArg, UOp
from tiny.uop.target import Target
from tiny.uop.written import address_of, loops_in, nesting, open_loops, stores_of

__all__ = ["lower_by_hand"]

_IDENTITY = {Ops.ADD: 0, Ops.MUL: 1}
_VOID = dtypes.void


class _Loops(NamedTuple):
    """Loops in a list of operations: their ranges, outermost first."""

    ranges: tuple[UOp, ...]


class _Listing:
    """The operations of a kernel, in lists, one for the body of each loop."""

    def __init__(self, sink: UOp) -> None:
        self.order = sink.postorder()
        self.around = nesting(sink)
        self.inside = open_loops(self.order)
        self.loops = [n for n in self.order if n.op is Ops.RANGE]
        self.bodies: dict[UOp | None, list[UOp | _Loops]] = {None: []}
        self.bodies.update((r, []) for r in self.loops)
        self.new: dict[UOp, UOp] = {}
        self.listed: set[tuple[UOp | None, UOp]] = set()
        # elements that are only written, or read by an AFTER alone, are not loaded as they are
        self.addresses = {address_of(n) for n in self.order if n.op is Ops.STORE}
        self.loaded = {
            s
            for n in self.order
            for k, s in enumerate(n.src)
            if s.op is Ops.INDEX and not (k == 0 and n.op in (Ops.AFTER, Ops.STORE))
        }
        self.read_after = {
            s
            for n in self.order
            for k, s in enumerate(n.src)
            if s.op is Ops.AFTER and not (k == 0 and n.op is Ops.STORE)
        }
        self.registers = 0
        self.count = 0

    def body_of(self, mask: int) -> UOp | None:
        """The innermost loop around what is inside of the loops of a mask."""
        found = loops_in(mask, self.loops)
        return max(found, key=lambda r: len(self.around[r]), default=None)

    def add(self, where: UOp | None, *nodes: UOp) -> None:
        """List nodes in the body of a loop, each once."""
        for node in nodes:
            if (where, node) not in self.listed:
                self.listed.add((where, node))
                self.bodies[where].append(node)

    def address(self, element: UOp) -> tuple[UOp, tuple[UOp, ...]]:
        """The INDEX of an element and its gate."""
        memory, at, *gates = [self.new.get(s, s) for s in element.src]
        index = UOp(Ops.INDEX, element.dtype, (memory, at))
        self.add(self.body_of(self.inside[element]), index)
        return index, tuple(gates)

    def load(self, element: UOp, where: UOp | None) -> UOp:
        """An element as it is at this place: not the same node as at another place."""
        index, gates = self.address(element)
        self.count += 1
        value = UOp(Ops.LOAD, element.dtype, (index, *gates), 1, tag=self.count)
        self.add(where, value)
        return value

    def run(self) -> tuple[UOp, ...]:
        """The list of all operations."""
        for node in self.order:
            self.node(node)
        return tuple(self.flat(None))

    def node(self, node: UOp) -> None:
        """List one node, its sources being listed."""
        op, where = node.op, self.body_of(self.inside[node])
        if op in (Ops.SINK, Ops.GROUP, Ops.RANGE):
            self.new[node] = node
        elif op in (Ops.CONST, Ops.PARAM, Ops.DEFINE_VAR, Ops.DEFINE_LOCAL):
            self.new[node] = node
            self.add(None, node)
        elif op is Ops.INDEX:
            if node in self.loaded:
                self.new[node] = self.load(node, where)
        elif op is Ops.AFTER:
            if node in self.read_after:
                self.new[node] = self.load(node.src[0], where)
        elif op is Ops.STORE:
            index, gates = self.address(address_of(node))
            self.count += 1
            value = self.new[node.src[1]]
            new = UOp(Ops.STORE, node.dtype, (index, value, *gates), tag=self.count)
            self.new[node] = new
            self.add(where, new)
        elif op is Ops.END:
            self.new[node] = node
            self.bodies[where].append(_Loops(node.src[1:]))
        elif op is Ops.REDUCE:
            self.new[node] = self.reduce(node, where)
        else:
            new = node.replace(src=tuple([self.new[s] for s in node.src]))
            self.new[node] = new
            self.add(where, new)

    def reduce(self, node: UOp, where: UOp | None) -> UOp:
        """A register that starts with the identity and is combined with the value in each step."""
        value, *ranges = node.src
        dtype, op = node.dtype, node.arg.op
        start = UOp.const(_IDENTITY.get(op, dtype.min), dtype)
        register = UOp(Ops.DEFINE_REG, dtype, (start,), RegArg(self.registers, 1))
        self.registers += 1
        combined = UOp(op, dtype, (register, self.new[value]))
        update = UOp(Ops.STORE, _VOID, (register, combined))
        after = UOp(Ops.AFTER, dtype, (register, UOp(Ops.END, _VOID, (ranges[0],))))
        self.add(None, start)
        self.add(where, register)
        self.add(ranges[-1], combined, update)
        self.bodies[where].append(_Loops(tuple(ranges)))
        self.add(where, after)
        return after

    def flat(self, loop: UOp | None) -> list[UOp]:
        """The body of a loop with the loops in it written out."""
        found: list[UOp] = []
        for x in self.bodies[loop]:
            if not isinstance(x, _Loops):
                found.append(x)
                continue
            inner = [self.flat(r) for r in x.ranges]
            if not any(inner):
                continue  # what is said to be inside of it does not depend on it
            for r, body in zip(x.ranges, inner, strict=True):
                found += [r, *body]
            found += [UOp(Ops.END, _VOID, (r,)) for r in reversed(x.ranges)]
        return found


def lower_by_hand(kernel: UOp, target: Target) -> LinearProgram:
    """The linear program of a kernel (`uop/written.py`): its loops, in one thread."""
    sink = lower_index_division(decompose(flatten_indices(kernel), target))
    listing = _Listing(sink)
    uops = listing.run()
    nodes = kernel.postorder()
    written = {address_of(s).src[0] for s in stores_of(kernel)}
    params = sorted((n for n in nodes if n.op is Ops.PARAM), key=lambda n: n.arg.slot)
    pieces = [n for n in nodes if n.op is Ops.DEFINE_LOCAL]
    # what is written may be written in part, so all of it counts as read
    found = tuple([ProgramParam(p.arg.slot, p.dtype, p.shape, True, p in written) for p in params])
    return LinearProgram(
        name=kernel.arg.name,
        phases=(Phase(uops),),
        params=found,
        variables=tuple(kernel.variables()),
        flops=_count_flops(kernel),
        nbytes=sum(math.prod(p.shape) * p.dtype.itemsize for p in found),
        scratch_nbytes=max(
            [p.arg.offset + math.prod(p.shape) * p.dtype.itemsize for p in pieces], default=0
        ),
    )


def _count_flops(kernel: UOp) -> int:
    """Arithmetic on data, each node once for each step of the loops that it is in."""
    order = kernel.postorder()
    inside = open_loops(order)
    loops = [n for n in order if n.op is Ops.RANGE]
    total = 0
    for node in order:
        if node.op is Ops.REDUCE:
            mask = inside[node.src[0]]
        elif is_arithmetic(node):
            mask = inside[node]
        else:
            continue
        total += math.prod(int(r.src[0].vmax) for r in loops_in(mask, loops))
    return total
