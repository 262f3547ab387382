"""The tensor graph as the scheduler reads it: canonical, then as lists indexed by position.

Positions are a topological order: sources stand before users.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tiny.uop.ops import BufferArg, GroupOp, Ops, UOp
from tiny.uop.passes import compiler_pass

# What a cell is to the scheduler.
IGNORED = 0  # a GROUP of effects
SCALAR = 1  # a constant or a Variable: written into every kernel that wants it
MEMORY = 2  # a BUFFER
VERSION = 3  # an AFTER: the memory below it, once its STOREs have run
VIEW = 4  # a movement operation, or the identity: only indices change
COMPUTE = 5  # elementwise
REDUCE = 6
EFFECT = 7  # a STORE
TRANSFER = 8  # a COPY between devices
PICK = 9  # an INDEX: elements at computed places
CALL = 10  # a kernel written by hand: it reads and writes memory
SCAN = 11  # a reduction of each element and all before it
VALUES = (COMPUTE, REDUCE, PICK, SCAN)  # what is computed, where it is wanted or once

_IDENTITIES = (Ops.CONTIGUOUS, Ops.COPY)
_VANISHING = (Ops.DETACH, Ops.CONTIGUOUS_BACKWARD, Ops.NOOP)


@compiler_pass("canonicalise", "tensor graph", "the same, buffers numbered")
def canonicalise(sink: UOp, buffers: Sequence[UOp]) -> UOp:
    """The graph without what tells equal computations apart.

    BUFFERs are renumbered by their place in `buffers` and lose their memory, UNIQUE marks and the
    values of Variables go, and so do DETACH, CONTIGUOUS_BACKWARD and NOOP, which say how gradients
    pass and mean nothing here.
    """
    # negative, so that none is the number of a user's buffer
    number = {b: -1 - k for k, b in enumerate(buffers)}
    new: dict[UOp, UOp] = {}
    for node in sink.postorder():
        op = node.op
        if op is Ops.BUFFER:
            arg = BufferArg(number[node], node.arg.shape, node.arg.device)
            new[node] = UOp(Ops.BUFFER, node.dtype, (), arg)
        elif op is Ops.CONST:
            new[node] = UOp(Ops.CONST, node.dtype, (), node.arg) if node.src else node
        elif op is Ops.BIND or op in _VANISHING:
            new[node] = new[node.src[0]]
        elif op is Ops.UNIQUE:
            continue
        else:
            src = tuple([new[s] for s in node.src if s.op is not Ops.UNIQUE])
            new[node] = node if src == node.src else UOp(op, node.dtype, src, node.arg)
    return new[sink]


def upper(size: int | UOp) -> int:
    """A size of a shape; of a symbolic one its upper bound."""
    return size if isinstance(size, int) else int(size.vmax)


def resolved_arg(node: UOp) -> object:
    """The arg of a movement operation, symbolic sizes put where it says None."""
    if len(node.src) == 1:
        return node.arg
    sizes = iter(node.src[1:])
    if node.op in (Ops.PAD, Ops.SHRINK):
        return tuple(tuple(next(sizes) if s is None else s for s in pair) for pair in node.arg)
    return tuple(next(sizes) if s is None else s for s in node.arg)


def stored_shape(store: UOp) -> tuple[int | UOp, ...]:
    """The shape of what a STORE writes: of its view, or of places and what is there."""
    view, _, *places = store.src
    return places[0].shape + view.shape[len(places) :] if places else view.shape


def is_ordered(store: UOp) -> bool:
    """Whether a STORE of a tensor graph writes to computed places, one after the other."""
    return store.op is Ops.STORE and len(store.src) > 2


@dataclass
class Output:
    """What was asked for: a cell that is in memory, and the movement operations over it."""

    cell: int
    moves: tuple[UOp, ...]


@dataclass
class TensorGraph:
    """A canonical graph. Every list is indexed by position."""

    nodes: list[UOp]
    kind: list[int]
    src: list[tuple[int, ...]]  # positions of the operands; not of symbolic sizes
    shape: list[tuple[int, ...]]  # upper bounds
    numel: list[int]
    device: list[str]
    fill: list[bool]  # a constant or a view of one: nothing needs to load it
    stored: dict[int, str] = field(default_factory=dict)  # cells that must be stored, and why
    outputs: list[Output] = field(default_factory=list)
    # of VERSION and MEMORY cells: the nearest cell below that is no AFTER
    under: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.nodes)

    def is_identity(self, i: int) -> bool:
        """Whether cell i is the value of its source, unchanged."""
        return self.nodes[i].op in _IDENTITIES

    def chain_to_memory(self, i: int) -> Iterator[int]:
        """The cells from a view of memory (i) down to its BUFFER, AFTERs left out."""
        while True:
            i = self.under.get(i, i)
            yield i
            if self.kind[i] == MEMORY:
                return
            i = self.src[i][0]


@compiler_pass("read graph", "tensor graph", "arrays by node: kinds, shapes, devices")
def read_graph(sink: UOp, default_device: str) -> TensorGraph:
    """The lists for a canonical graph. ValueError if operands live on two devices."""
    nodes = sink.postorder()[:-1]
    position = {node: i for i, node in enumerate(nodes)}
    g = TensorGraph(nodes, [], [], [], [], [], [])
    devices: list[str | None] = []
    for i, node in enumerate(nodes):
        op = node.op
        kind = _KINDS.get(op)
        if op is Ops.CUSTOM:
            raise NotImplementedError(f"{node.arg}: no device here can do this; do it elsewhere")
        if kind is None:
            raise TypeError(f"schedule: {op!r} is not part of a tensor graph; expand it before")
        if kind == TRANSFER:
            moved = devices[position[node.src[0]]]
            if moved is None or moved == node.arg:
                kind = VIEW  # of nothing that lives anywhere: computed where it is wanted
        many = kind in (COMPUTE, EFFECT, VERSION, IGNORED, PICK, SCAN)
        if kind == CALL:
            operands = node.src[: node.arg.buffers]
        else:
            operands = node.src if many else node.src[:1]
        src = tuple([position[s] for s in operands])
        shape = node._shape
        if shape is None:
            shape = stored_shape(node) if kind == EFFECT else ()
        shape = tuple([upper(s) for s in shape])
        g.kind.append(kind)
        g.src.append(src)
        g.shape.append(shape)
        g.numel.append(math.prod(shape))
        g.fill.append(kind == SCALAR or (kind == VIEW and op is not Ops.PAD and g.fill[src[0]]))
        devices.append(_device_of(node, [devices[s] for s in src]))
        if kind == VERSION:
            g.under[i] = g.under.get(src[0], src[0])
    # what has no device of its own goes where it is used
    for i in range(len(nodes) - 1, -1, -1):
        if g.kind[i] != TRANSFER:
            for s in g.src[i]:
                if devices[s] is None:
                    devices[s] = devices[i]
    g.device = [d or default_device for d in devices]
    _mark_stored(g)
    wanted = [position[o] for o in sink.src]
    for i in wanted:  # values first: what is a view of one then stays a view
        if g.kind[i] in VALUES:
            g.stored.setdefault(i, "output")
    g.outputs = [_find_output(g, i) for i in wanted]
    return g


def _device_of(node: UOp, sources: list[str | None]) -> str | None:
    if node.op is Ops.BUFFER:
        return node.arg.device
    if node.op is Ops.COPY:
        return node.arg
    found: str | None = None
    for d in sources:
        if found is not None and d is not None and d != found:
            raise ValueError(
                f"{node.op!r}: its operands live on two devices, {found} and {d}; "
                f"copy one with .to({found!r})"
            )
        found = found or d
    return found


def _mark_stored(g: TensorGraph) -> None:
    """Mark what the graph itself asks to be stored: CONTIGUOUS, copies and what they copy."""
    for i, node in enumerate(g.nodes):
        if node.op is Ops.CONTIGUOUS:
            s = g.src[i][0]
            # the value itself is stored, and this is a name for it
            g.stored[s if g.kind[s] in VALUES or s in g.stored else i] = "contiguous"
        elif g.kind[i] == TRANSFER:
            g.stored[i] = f"copy to {node.arg}"
            source = whole_memory(g, g.src[i][0])
            if source is None:
                g.stored[g.src[i][0]] = f"copied to {node.arg}"
        elif node.op is Ops.COPY:
            g.stored[i] = f"computed on {node.arg}"
        elif g.kind[i] == CALL:
            for s in g.src[i]:
                if argument_memory(g, s) is None:
                    g.stored[s] = f"argument of {node.arg.kernel.arg.name}"


def whole_memory(g: TensorGraph, i: int) -> int | None:
    """The BUFFER or stored cell that cell i is, element for element in order, or None."""
    while g.kind[i] == VIEW and i not in g.stored and g.nodes[i].op is Ops.RESHAPE:
        i = g.src[i][0]
    in_memory = g.kind[g.under.get(i, i)] == MEMORY or i in g.stored
    return i if in_memory else None


def argument_memory(g: TensorGraph, i: int) -> int | None:
    """As `whole_memory`, also through a CONTIGUOUS of what is stored."""
    while g.kind[i] == VIEW and i not in g.stored and g.is_identity(i):
        i = g.src[i][0]
    return whole_memory(g, i)


def _find_output(g: TensorGraph, i: int) -> Output:
    """Where an output will be found; stores it if it is in no memory yet.

    A view of something stored stays a view. A RESHAPE or PERMUTE of a value stores the value; but
    what is picked has its places first for no reason of its own, so it is stored as it is wanted.
    """
    moves: list[UOp] = []
    at, plain = i, True
    while g.kind[at] not in (MEMORY, VERSION) and at not in g.stored:
        node = g.nodes[at]
        if g.kind[at] != VIEW or node.op is Ops.PAD:
            turned = g.kind[at] == PICK and any(m.op is Ops.PERMUTE for m in moves)
            if not plain or turned or g.kind[at] not in VALUES:
                at, moves = i, []
            g.stored[at] = "output"
            break
        if not g.is_identity(at):
            moves.append(node)
            plain = plain and node.op in (Ops.RESHAPE, Ops.PERMUTE)
        at = g.src[at][0]
    if at not in g.stored:
        *views, at = g.chain_to_memory(at)
        moves += [g.nodes[k] for k in views]
    elif g.shape[at] != g.nodes[at].shape:
        # of memory of the upper bounds: what it is over here does not matter
        moves.append(UOp.placeholder(g.shape[at], g.nodes[at].dtype, 0).front(g.nodes[at].shape))
    return Output(at, tuple(reversed(moves)))


_KINDS = {
    **dict.fromkeys(GroupOp.Elementwise, COMPUTE),
    **dict.fromkeys(GroupOp.Movement, VIEW),
    Ops.CONST: SCALAR,
    Ops.DEFINE_VAR: SCALAR,
    Ops.BUFFER: MEMORY,
    Ops.AFTER: VERSION,
    Ops.CONTIGUOUS: VIEW,
    Ops.COPY: TRANSFER,
    Ops.REDUCE: REDUCE,
    Ops.SCAN: SCAN,
    Ops.INDEX: PICK,
    Ops.STORE: EFFECT,
    Ops.GROUP: IGNORED,
    Ops.UNIQUE: IGNORED,
    Ops.TUPLE: IGNORED,
    Ops.CALL: CALL,
}
