"""Kernels written by hand: what users build of UOps, brought to a form that code generation takes.

There are two forms. A kernel whose stores each write an element once, and read nothing that
another step writes, is a kernel as the scheduler makes them (level 2): Opts apply to it, and
heuristics choose some. Any other one runs as it is written, its loops one in the other, in one
thread: `SINK(GROUP(effects…))`, an effect being a STORE, or the END of loops over effects.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tiny._core.args import AxisType, KernelInfo, LocalArg, ParamArg, RangeArg, ReduceArg
from tiny._core.index import apply_movement
from tiny._core.ops import Ops
from tiny._core.symbolic import simplify
from tiny.dtype import dtypes, least_upper_dtype, strong_dtype
from tiny.uop.bounds import check_accesses
from tiny.uop.ops import GroupOp, UOp
from tiny.uop.spec import SpecError, is_integral
from tiny.uop.structure import check_kernel
from tiny.uop.written import EFFECTS, address_of, check_by_hand, open_loops

__all__ = ["HandKernel", "read_kernel"]

_MEMORY = frozenset({Ops.PARAM, Ops.DEFINE_LOCAL})
_IDENTITY = {Ops.ADD: 0, Ops.MUL: 1}


class HandKernel(NamedTuple):
    """A kernel, and which arguments its PARAMs are: PARAM k is argument `arguments[k]`.

    The first `outputs` of them are written, or would be: the kernel is empty if all loops around
    its stores are. `binds` are its Variables with their values.
    """

    kernel: UOp
    arguments: tuple[int, ...]
    outputs: int
    binds: tuple[UOp, ...]


# ---------------------------------------------------------------- reading what a user wrote


def read_kernel(sink: UOp, placeholders: Sequence[UOp]) -> HandKernel:
    """The kernel that a user's function returned for its placeholders, checked.

    TypeError or ValueError, saying what to write, if it is none; AccessError if an access is not
    proved to be inside of its memory.
    """
    if not isinstance(sink, UOp) or sink.op is not Ops.SINK:
        got = sink.op if isinstance(sink, UOp) else type(sink).__name__
        raise TypeError(
            f"custom_kernel: fxn returns the stores of the kernel as UOp.sink(…), got {got!r}"
        )
    info = sink.arg if isinstance(sink.arg, KernelInfo) else KernelInfo("custom")
    info = info._replace(name=re.sub(r"\W+", "_", info.name, flags=re.ASCII) or "custom")
    reader = _Reader(info.name, placeholders)
    effects = reader.read(sink)
    body = UOp(Ops.GROUP, dtypes.void, effects)
    nodes = body.postorder()
    _check_own_memory(reader, nodes)
    stored = {address_of(n).src[0] for n in nodes if n.op is Ops.STORE}
    written = [k for k, p in enumerate(placeholders) if p in stored]
    if not written and reader.has_empty_loops:
        meant = {_memory_of(n.src[0]) for n in sink.postorder() if n.op is Ops.STORE}
        would = tuple([k for k, p in enumerate(placeholders) if p in meant])
        return HandKernel(UOp.sink(arg=info), would, len(would), ())
    if not written:
        raise ValueError(
            f"kernel {info.name}: it stores to none of its buffers, so it does nothing"
        )
    used = {n for n in nodes if n.op is Ops.PARAM}
    read = [k for k, p in enumerate(placeholders) if p in used and p not in stored]
    arguments = (*written, *read)
    names = {
        placeholders[k]: placeholders[k].replace(arg=ParamArg(n, placeholders[k].arg.shape))
        for n, k in enumerate(arguments)
    }
    body = body.substitute(names, walk=True)
    scheduled = _as_scheduled(body, info, len(written))
    kernel = _as_written(body, info) if scheduled is None else scheduled
    check_accesses(kernel, set(range(len(written))))
    kernel, arguments = _without_unused(kernel, arguments)
    return HandKernel(kernel, arguments, len(written), tuple(reader.binds))


def _memory_of(address: UOp) -> UOp:
    while address.op not in _MEMORY:
        address = address.src[0]
    return address


def _without_unused(kernel: UOp, arguments: tuple[int, ...]) -> tuple[UOp, tuple[int, ...]]:
    """A kernel and its arguments, without those that it does not read once it is simplified."""
    params = sorted(
        (n for n in kernel.postorder() if n.op is Ops.PARAM), key=lambda n: int(n.arg.slot)
    )
    if len(params) == len(arguments):
        return kernel, arguments
    names = {p: p.replace(arg=ParamArg(k, p.arg.shape)) for k, p in enumerate(params)}
    return kernel.substitute(names, walk=True), tuple([arguments[p.arg.slot] for p in params])


class _Reader:
    """One walk over a kernel as it was written, to a graph of INDEX, STORE, END and AFTER."""

    def __init__(self, name: str, placeholders: Sequence[UOp]) -> None:
        self.name = name
        self.placeholders = set(placeholders)
        self.binds: dict[UOp, None] = {}
        self.has_empty_loops = False  # of no steps
        # what was read of memory of a shape: the memory, and the movement over it
        self.new: dict[UOp, UOp] = {}

    def refuse(self, what: str) -> ValueError:
        """An error about this kernel."""
        return ValueError(f"kernel {self.name}: {what}")

    def read(self, sink: UOp) -> tuple[UOp, ...]:
        """The effects of the kernel, each node once."""
        for node in sink.postorder():
            if node is not sink:
                self.new[node] = self._node(node, tuple([self.new[s] for s in node.src]))
        effects = list(dict.fromkeys(e for s in sink.src for e in self.effects(self.new[s])))
        _check_ended(self, effects)
        return tuple(effects)

    def effects(self, x: UOp) -> list[UOp]:
        """The STOREs and ENDs that a node stands for, in order."""
        found: dict[UOp, None] = {}
        stack, seen = [x], {x}
        while stack:
            node = stack.pop()
            if node.op in (Ops.STORE, Ops.END):
                found[node] = None
            elif node.op in (Ops.GROUP, Ops.AFTER):
                inner = node.src if node.op is Ops.GROUP else node.src[1:]
                stack += [s for s in reversed(inner) if s not in seen and s.op is not Ops.RANGE]
                seen.update(inner)
            else:
                raise self.refuse(
                    f"{node.op!r} computes a value and has no effect; store it: C[i].store(value)"
                )
        return list(found)

    def _node(self, node: UOp, src: tuple[UOp, ...]) -> UOp:
        op = node.op
        if op is Ops.PARAM and node not in self.placeholders:
            raise self.refuse(
                f"it uses buffer {node.arg.slot} of shape {node.arg.shape}, which is none of its "
                "arguments; build it of the placeholders that fxn is given"
            )
        if op is Ops.BUFFER:
            raise self.refuse(
                f"it uses a tensor of shape {node.arg.shape} that is none of its arguments; "
                "pass the tensor to custom_kernel"
            )
        if op is Ops.BIND:
            self.binds[node] = None
            return src[0]
        if op is Ops.RANGE:
            return self._range(node, src)
        if op is Ops.INDEX:
            return self._index(src)
        if op is Ops.LOAD:
            return self._load(src)
        if op is Ops.STORE:
            return self._store(node, src)
        if op is Ops.AFTER:
            return self._after(src)
        if op is Ops.END:
            return self._end(src)
        if op is Ops.REDUCE:
            return self._reduce(node, src)
        if op in GroupOp.Elementwise:
            return _typed(node, tuple([self._value(s) for s in src]))
        return node if src == node.src else node.replace(src=src)

    def _range(self, node: UOp, src: tuple[UOp, ...]) -> UOp:
        kind = AxisType.REDUCE if node.arg.kind is AxisType.REDUCE else AxisType.LOOP
        size = src[0]._to(dtypes.index)
        if size.op is Ops.CONST and size.arg == 1:
            return UOp.const(0, dtypes.index)
        return UOp(Ops.RANGE, dtypes.index, (size,), RangeArg(node.arg.axis, kind))

    def _value(self, x: UOp) -> UOp:
        """A number: what is read of memory, or computed."""
        if x._shape is None or x.op in EFFECTS:
            raise self.refuse(f"{x.op!r} is no value to compute with")
        if x.shape != ():
            raise self.refuse(
                f"a value of shape {x.shape} is used as a number; index every dimension: A[i, j]"
            )
        return x

    def _index(self, src: tuple[UOp, ...]) -> UOp:
        """An element: movement and AFTERs below are taken out of its way."""
        memory, *at = src
        if memory.op is Ops.INDEX:
            raise self.refuse(f"an element of shape () is indexed by {len(at)} more")
        rank = len(memory.shape)
        gates = at[rank:]
        if len(at) < rank or len(gates) > 1 or any(g.dtype is not dtypes.bool for g in gates):
            raise self.refuse(
                f"memory of shape {memory.shape} takes {rank} indices and perhaps a gate, got "
                f"{len(at)}; index every dimension"
            )
        index = []
        for x in at[:rank]:
            if not is_integral(x.dtype):
                raise self.refuse(f"an index is an integer, got {x.dtype}; cast it to an int")
            index.append(x._to(dtypes.index))
        after: list[UOp] = []
        while memory.op not in _MEMORY:
            source = memory.src[0]
            if memory.op is Ops.AFTER:
                after += memory.src[1:]
            elif memory.op in GroupOp.Movement and len(memory.src) == 1:
                moved, gate = apply_movement(
                    memory.op, memory.arg, source.shape, memory.shape, tuple(index), None
                )
                index = list(moved)
                gates += [] if gate is None else [gate]
            else:
                raise self.refuse(
                    f"{memory.op!r} is no memory; an argument is indexed as it is, or reshaped, "
                    "permuted, flipped, shrunk, padded or expanded"
                )
            memory = source
        gated = tuple([_all(gates)] if gates else [])
        element = UOp(Ops.INDEX, memory.dtype, (memory, *index, *gated))
        return element if not after else UOp(Ops.AFTER, element.dtype, (element, *after))

    def _load(self, src: tuple[UOp, ...]) -> UOp:
        element, *gates = src
        if element.op not in (Ops.INDEX, Ops.AFTER):
            raise self.refuse(f"load: only an element of memory is loaded, got {element.op!r}")
        return self._gated(element, gates)

    def _gated(self, element: UOp, gates: Sequence[UOp]) -> UOp:
        """An element that is accessed where the gates hold only."""
        if not gates:
            return element
        if element.op is Ops.AFTER:
            return element.replace(src=(self._gated(element.src[0], gates), *element.src[1:]))
        rank = len(element.src[0].shape)
        gate = _all([*element.src[1 + rank :], *gates])
        return element.replace(src=(*element.src[: 1 + rank], gate))

    def _store(self, node: UOp, src: tuple[UOp, ...]) -> UOp:
        address, value, *gates = src
        if address.op not in (Ops.INDEX, Ops.AFTER) or address.shape != ():
            raise self.refuse(
                f"store: only an element of memory is stored to, got {address.op!r} of shape "
                f"{address.shape}; index every dimension: C[i, j].store(value)"
            )
        value = self._value(value)
        if node.src[1].dtype in dtypes.weaks or value.dtype is dtypes.index:
            value = value._to(address.dtype)
        if value.dtype is not address.dtype:
            raise TypeError(
                f"kernel {self.name}: store: {value.dtype} can not be written to memory of "
                f"{address.dtype}; cast it first"
            )
        return UOp(Ops.STORE, dtypes.void, (self._gated(address, gates), value))

    def _after(self, src: tuple[UOp, ...]) -> UOp:
        x, *given = src
        found: list[UOp] = []
        if x.op is Ops.AFTER:
            x, found = x.src[0], list(x.src[1:])
        for e in given:
            if e.op is Ops.AFTER:  # what was waited for there
                found += [s for s in e.src[1:] if s.op is not Ops.RANGE]
            elif e.op in EFFECTS or e.op is Ops.RANGE:
                found.append(e)
            elif e.op is not Ops.CONST:  # a loop of one step
                self.effects(e)
        # one node for all effects, or each AFTER of a chain would list all before it
        effects = tuple(dict.fromkeys(e for e in found if e.op is not Ops.RANGE))
        loops = [e for e in dict.fromkeys(found) if e.op is Ops.RANGE]
        single = effects if len(effects) < 2 else (UOp(Ops.GROUP, dtypes.void, effects),)
        found = [*single, *loops]
        if x.op not in (*_MEMORY, *GroupOp.Movement, Ops.INDEX):
            raise self.refuse(f"after: only memory is read after an effect, got {x.op!r}")
        return UOp(Ops.AFTER, x.dtype, (x, *found)) if found else x

    def _end(self, src: tuple[UOp, ...]) -> UOp:
        ranges = [r for r in src[1:] if r.op is not Ops.CONST]  # one step: no loop
        for r in ranges:
            if r.op is not Ops.RANGE:
                raise self.refuse(f"end: only loops are ended, got {r.op!r}")
        effects = self.effects(src[0])
        if not ranges:
            return UOp(Ops.GROUP, dtypes.void, tuple(effects))
        if any(_is_empty(r) for r in ranges):
            self.has_empty_loops = True
            return UOp(Ops.GROUP, dtypes.void, ())
        body = effects[0] if len(effects) == 1 else UOp(Ops.GROUP, dtypes.void, tuple(effects))
        return UOp(Ops.END, dtypes.void, (body, *ranges))

    def _reduce(self, node: UOp, src: tuple[UOp, ...]) -> UOp:
        value, ranges = self._value(src[0]), [r for r in src[1:] if r.op is not Ops.CONST]
        value = value._to(strong_dtype(value.dtype))
        op = node.arg.op
        if node.arg.axes or any(r.op is not Ops.RANGE for r in ranges):
            raise self.refuse("reduce: values are reduced over loops, UOp.range(…)")
        if any(_is_empty(r) for r in ranges):
            start = _IDENTITY.get(op, value.dtype.min)
            return UOp.const(start, value.dtype)
        if not ranges:
            return value
        return UOp(Ops.REDUCE, value.dtype, (value, *ranges), ReduceArg(op, ()))


def _typed(node: UOp, src: tuple[UOp, ...]) -> UOp:
    """An elementwise node over these operands. Numbers without a dtype get that of the others.

    Among themselves they stay numbers if the result is one, or get the default of their kind.
    """
    op, first = node.op, int(node.op is Ops.WHERE)
    kinds = [s.dtype for s in src[first:]]
    if not any(kind in dtypes.weaks for kind in (node.dtype, *kinds)):
        return node if src == node.src else node.replace(src=src)
    if all(s.op is Ops.CONST for s in src):
        number = simplify(node.replace(src=src))
        if number.op is Ops.CONST and number.dtype in dtypes.weaks:
            return number
    if op in (Ops.CAST, Ops.BITCAST):
        x, to = src[0], strong_dtype(node.dtype)
        # an integer may be too large for the default, and a fraction too fine
        is_held = x.dtype is dtypes.weakint or dtypes.is_float(to)
        x = x._to(to if is_held and op is Ops.CAST else strong_dtype(x.dtype))
        return x if x.dtype is to else UOp(op, to, (x,))
    dtype = strong_dtype(least_upper_dtype(*kinds))
    operands = (*src[:first], *[s._to(dtype) for s in src[first:]])
    return UOp(op, dtypes.bool if op in GroupOp.Comparison else dtype, operands, node.arg)


def _is_empty(r: UOp) -> bool:
    return bool(r.src[0].vmax <= 0)


def _all(gates: Iterable[UOp]) -> UOp:
    """All conditions as one."""
    first, *rest = gates
    for gate in rest:
        first = first & gate
    return simplify(first)


def _check_ended(reader: _Reader, effects: Sequence[UOp]) -> None:
    """ValueError if a loop has no end, or sizes depend on loops."""
    order = UOp(Ops.GROUP, dtypes.void, tuple(effects)).postorder()
    found = open_loops(order)
    for node in order:
        if node.op is Ops.RANGE and found[node.src[0]]:
            raise reader.refuse(
                f"the size of loop {node.arg.axis} depends on another loop; let it run to the most "
                "that it can be, and gate what is beyond"
            )
    loops = [n for n in order if n.op is Ops.RANGE]
    for effect in effects:
        for r in loops:
            if found[effect] & found[r]:
                raise reader.refuse(
                    f"loop {r.arg.axis} is not ended; end it after the last store in it: "
                    ".store(…).end(i)"
                )


def _check_own_memory(reader: _Reader, nodes: Sequence[UOp]) -> None:
    """ValueError if memory of the kernel's own is read as it is before the kernel."""
    for node in nodes:
        for x in node.src[int(node.op in (Ops.STORE, Ops.AFTER)) :]:
            if x.op is Ops.INDEX and x.src[0].op is Ops.DEFINE_LOCAL:
                raise reader.refuse(
                    f"memory of its own, of shape {x.src[0].shape}, is read where nothing is known "
                    "to be written; read it after the store: memory.after(store)[i]"
                )


# ---------------------------------------------------------------- the two forms


def _as_scheduled(body: UOp, info: KernelInfo, outputs: int) -> UOp | None:
    """A kernel of level 2, if this is one: each STORE inside of its own loops, nothing after it."""
    stores: dict[int, UOp] = {}
    for effect in body.src:
        ended: list[UOp] = []
        stack, leaves = [effect], []
        while stack:
            x = stack.pop()
            if x.op is Ops.END:
                ended += x.src[1:]
                stack.append(x.src[0])
            elif x.op is Ops.GROUP:
                stack += x.src
            else:
                leaves.append(x)
        for store in leaves:
            address = store.src[0]
            if address.op is not Ops.INDEX or address.src[0].op is not Ops.PARAM:
                return None
            slot = address.src[0].arg.slot
            gated = len(address.src) > 1 + len(address.src[0].shape)
            if slot in stores or gated or set(ended) != _loops_of(address):
                return None
            stores[slot] = store
    for store in stores.values():  # what other loops write is not read
        for x in store.src[1].postorder():
            other = None
            if x.op is Ops.INDEX and x.src[0].op is Ops.PARAM:
                other = stores.get(x.src[0].arg.slot)
            if other is not None and _loops_of(other.src[0]) != _loops_of(store.src[0]):
                return None
    nodes = body.postorder()
    if any(n.op in (Ops.AFTER, Ops.DEFINE_LOCAL) for n in nodes):
        return None
    if sorted(stores) != list(range(outputs)):
        return None
    sink = UOp(
        Ops.SINK,
        dtypes.void,
        tuple([stores[k] for k in range(outputs)]),
        KernelInfo(info.name, opts_to_apply=info.opts_to_apply),
    )
    sink = _numbered(simplify(sink))
    try:
        check_kernel(sink)
    except SpecError:
        return None
    return sink


def _loops_of(x: UOp) -> set[UOp]:
    return {n for n in x.postorder() if n.op is Ops.RANGE}


def _numbered(sink: UOp) -> UOp:
    """The kernel with its loops numbered in order, those that are reduced of kind REDUCE."""
    nodes = sink.postorder()
    reduced = {r for n in nodes if n.op is Ops.REDUCE for r in n.src[1:]}
    loops = sorted(
        (n for n in nodes if n.op is Ops.RANGE), key=lambda r: (r in reduced, r.arg.axis)
    )
    names = {}
    for k, r in enumerate(loops):
        kind = AxisType.REDUCE if r in reduced else AxisType.LOOP
        names[r] = r.replace(arg=RangeArg(k, kind))
    return sink.substitute(names, walk=True)


def _as_written(body: UOp, info: KernelInfo) -> UOp:
    """The kernel with each loop ended once, under a number of its own, and its memory placed."""
    if info.opts_to_apply:
        raise ValueError(
            f"kernel {info.name}: it runs as it is written, since it writes elements in an "
            "order of its own, so no Opts apply to it; leave opts_to_apply out"
        )
    body = _ended_once(_placed(body))
    loops = [n for n in body.postorder() if n.op is Ops.RANGE]
    names = {r: r.replace(arg=RangeArg(k, r.arg.kind)) for k, r in enumerate(loops)}
    body = body.substitute(names, walk=True)
    sink = simplify(UOp(Ops.SINK, dtypes.void, (body,), KernelInfo(info.name, opts_to_apply=())))
    check_by_hand(sink)
    return sink


def _ended_once(body: UOp) -> UOp:
    """The kernel with loops of its own for each END and REDUCE: users may end one loop twice.

    What is inside of a loop that is ended twice is there twice, and so are the loops in it.
    """
    inside: dict[UOp, frozenset[UOp]] = {}  # the loops that are open
    for node in body.postorder():
        loops = frozenset().union(*[inside[s] for s in node.src])
        if node.op is Ops.RANGE:
            loops |= {node}
        elif node.op in (Ops.END, Ops.REDUCE):
            loops -= set(node.src[1:])
        inside[node] = loops
    fresh = itertools.count(-1, -1)
    # nodes by what they were, and the names of the loops that they are inside of
    Key = tuple[UOp, frozenset[tuple[UOp, UOp]]]
    done: dict[Key, UOp] = {}
    scopes: dict[Key, frozenset[tuple[UOp, UOp]]] = {}  # names below what ends loops
    root: Key = (body, frozenset())
    stack = [root]
    while stack:
        key = stack[-1]
        node, names = key
        if node.op is Ops.RANGE:
            done[key] = dict(names)[node]
        if key in done:
            stack.pop()
            continue
        if node.op in (Ops.END, Ops.REDUCE):
            if key not in scopes:
                own = [(r, r.replace(arg=RangeArg(next(fresh), r.arg.kind))) for r in node.src[1:]]
                scopes[key] = frozenset([*own, *[n for n in names if n[0] not in node.src[1:]]])
            names = scopes[key]
        below = [(s, frozenset([n for n in names if n[0] in inside[s]])) for s in node.src]
        waiting = [k for k in below if k not in done]
        if waiting:
            stack += waiting
        else:
            done[key] = node.replace(src=tuple([done[k] for k in below])) if below else node
    return done[root]


def _placed(body: UOp) -> UOp:
    """The kernel's own memory one piece after the other, each at a multiple of 64 bytes."""
    offset, names = 0, {}
    for node in body.postorder():
        if node.op is Ops.DEFINE_LOCAL:
            names[node] = node.replace(arg=LocalArg(offset, node.arg.shape, False))
            offset += -(-math.prod(node.arg.shape) * node.dtype.itemsize // 64) * 64
    return body.substitute(names, walk=True) if names else body
