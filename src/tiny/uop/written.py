"""Kernels that run as they are written, their loops one in the other, in one thread.

Such a kernel is `SINK(GROUP(effects…))`, an effect being a STORE, or the END of loops over effects.
An element is an INDEX, or an AFTER of one: read, or written, once effects have happened. What an
AFTER of a RANGE reads is read anew in each step of that loop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tiny._core.args import AxisType, KernelInfo, LocalArg, ParamArg, RangeArg, ReduceArg
from tiny._core.match import PatternMatcher
from tiny._core.ops import Ops
from tiny.dtype import dtypes
from tiny.uop.ops import GroupOp, UOp
from tiny.uop.printing import describe
from tiny.uop.spec import SpecError, is_access, spec_arithmetic, verify
from tiny.uop.upat import UPat

__all__ = [
    "EFFECTS",
    "address_of",
    "check_by_hand",
    "is_by_hand",
    "loops_in",
    "nesting",
    "open_loops",
    "reads_of",
    "stores_of",
    "written_slots",
]

MOST_MEMORY = 1 << 20  # bytes of a kernel's own
EFFECTS = frozenset({Ops.STORE, Ops.END, Ops.GROUP})


def is_by_hand(kernel: UOp) -> bool:
    """Whether a kernel is of the form that runs as it is written."""
    return len(kernel.src) == 1 and kernel.src[0].op is Ops.GROUP


def stores_of(kernel: UOp) -> list[UOp]:
    """The STOREs of a kernel of either form."""
    if not is_by_hand(kernel):
        return list(kernel.src)
    return [n for n in kernel.postorder() if n.op is Ops.STORE]


def address_of(store: UOp) -> UOp:
    """The INDEX that a STORE writes to."""
    address = store.src[0]
    return address.src[0] if address.op is Ops.AFTER else address


def written_slots(kernel: UOp) -> list[int]:
    """The numbers of the PARAMs that a kernel writes, in order of its STOREs."""
    memory = [address_of(store).src[0] for store in stores_of(kernel)]
    return list(dict.fromkeys(m.arg.slot for m in memory if m.op is Ops.PARAM))


def reads_of(kernel: UOp) -> set[UOp]:
    """The elements of PARAMs that a kernel reads as they were before it, or may do so.

    What is read after an effect of its own it has written itself.
    """
    order = kernel.postorder()
    skipped = (Ops.STORE, Ops.AFTER) if is_by_hand(kernel) else (Ops.STORE,)
    found = {
        s
        for n in order
        for k, s in enumerate(n.src)
        if s.op is Ops.INDEX and not (k == 0 and n.op in skipped)
    }
    for n in order if is_by_hand(kernel) else ():
        if n.op is Ops.AFTER and all(s.op is Ops.RANGE for s in n.src[1:]):
            found.add(n.src[0])
    return {n for n in found if n.src[0].op is Ops.PARAM}


def open_loops(nodes: Sequence[UOp]) -> dict[UOp, int]:
    """The loops that each node is inside of, a bit for each, in order of appearance."""
    found: dict[UOp, int] = {}
    bits = itertools.count()
    for node in nodes:
        mask = 0
        for s in node.src:
            mask |= found[s]
        if node.op is Ops.RANGE:
            mask |= 1 << next(bits)
        elif node.op in (Ops.END, Ops.REDUCE):
            for r in node.src[1:]:
                mask &= ~(found[r] & ~found[r.src[0]])
        found[node] = mask
    return found


# ---------------------------------------------------------------- spec


def is_effect_group(x: UOp) -> bool:
    """A GROUP is of effects."""
    return all(s.op in EFFECTS for s in x.src)


def is_end(x: UOp) -> bool:
    """An END closes loops over an effect."""
    return len(x.src) > 1 and x.src[0].op in EFFECTS and all(r.op is Ops.RANGE for r in x.src[1:])


def is_element_after(x: UOp) -> bool:
    """An AFTER is an element, read or written once effects have happened, or in a loop."""
    return (
        len(x.src) > 1
        and x.src[0].op is Ops.INDEX
        and x.dtype is x.src[0].dtype
        and all(s.op in EFFECTS or s.op is Ops.RANGE for s in x.src[1:])
    )


def is_store_by_hand(x: UOp) -> bool:
    """A STORE writes a value of the dtype of its address."""
    address, value = x.src
    return (
        address.op in (Ops.INDEX, Ops.AFTER)
        and address.dtype is value.dtype
        and x.arg is None
        and value._shape == ()
    )


def is_loop_by_hand(x: UOp) -> bool:
    """A RANGE is of kind LOOP or REDUCE, over indices."""
    return (
        type(x.arg) is RangeArg
        and x.dtype is dtypes.index is x.src[0].dtype
        and x.arg.kind in (AxisType.LOOP, AxisType.REDUCE)
    )


def is_reduce_by_hand(x: UOp) -> bool:
    """A REDUCE combines values over loops."""
    return (
        type(x.arg) is ReduceArg
        and x.arg.axes == ()
        and x.arg.op in GroupOp.Reduce
        and x.src[0].dtype is x.dtype
        and len(x.src) > 1
        and all(r.op is Ops.RANGE for r in x.src[1:])
    )


spec_by_hand = (
    PatternMatcher(
        [
            (
                UPat(Ops.SINK, dtypes.void, (UPat(Ops.GROUP),), name="x"),
                lambda x: type(x.arg) is KernelInfo and bool(x.arg.name),
            ),
            (UPat(Ops.GROUP, dtypes.void, name="x"), is_effect_group),
            (UPat(Ops.PARAM, src=(), name="x"), lambda x: type(x.arg) is ParamArg),
            (
                UPat(Ops.DEFINE_LOCAL, src=(), name="x"),
                lambda x: type(x.arg) is LocalArg and not x.arg.shared and x.arg.offset % 64 == 0,
            ),
            (UPat(Ops.END, dtypes.void, name="x"), is_end),
            (UPat(Ops.AFTER, name="x"), is_element_after),
            (UPat(Ops.STORE, dtypes.void, (UPat.var(), UPat.var()), name="x"), is_store_by_hand),
            (
                UPat(
                    Ops.INDEX,
                    src=(UPat((Ops.PARAM, Ops.DEFINE_LOCAL)),),
                    allow_any_len=True,
                    name="x",
                ),
                is_access,
            ),
            (UPat(Ops.RANGE, src=(UPat.var(),), name="x"), is_loop_by_hand),
            (UPat(Ops.REDUCE, name="x"), is_reduce_by_hand),
            (
                UPat((*GroupOp.Elementwise, Ops.CONST, Ops.DEFINE_VAR), name="x"),
                lambda x: False if x._shape != () or x.dtype.kind == "w" else None,
            ),
        ],
        name="spec of kernels written by hand",
    )
    + spec_arithmetic
)


def check_by_hand(sink: UOp) -> None:
    """SpecError if a kernel that runs as it is written can not be turned into loops.

    Each loop is ended once, by an END or a REDUCE, under a number of its own. Buffers written are
    PARAM 0, 1, …; where a kernel has memory of its own, pieces do not overlap.
    """
    verify(sink, spec_by_hand, "kernel written by hand")
    order = sink.postorder()
    inside = open_loops(order)
    owner: dict[UOp, UOp] = {}
    numbers: dict[int, UOp] = {}
    end = 0
    for node in order:
        if node.op in (Ops.END, Ops.REDUCE):
            for r in node.src[1:]:
                if owner.setdefault(r, node) is not node:
                    raise SpecError(f"kernel: {describe(r)} is ended twice")
        elif node.op is Ops.RANGE:
            if numbers.setdefault(node.arg.axis, node) is not node:
                raise SpecError(f"kernel: two loops have the number {node.arg.axis}")
            if inside[node.src[0]]:
                raise SpecError(f"kernel: {describe(node)}: its size depends on another loop")
        elif node.op is Ops.DEFINE_LOCAL:
            if node.arg.offset < end:
                raise SpecError(f"kernel: {describe(node)} overlaps another piece of memory")
            end = node.arg.offset + math.prod(node.arg.shape) * node.dtype.itemsize
    if end > MOST_MEMORY:
        raise SpecError(f"kernel: it has {end} bytes of its own, {MOST_MEMORY} are allowed")
    if inside[sink]:
        raise SpecError("kernel: a loop is not ended")
    written = written_slots(sink)
    if sorted(written) != list(range(len(written))):
        raise SpecError(f"kernel: the buffers written are {written}, not the first ones")
    slots = {n.arg.slot: n for n in order if n.op is Ops.PARAM}
    if len(slots) != sum(n.op is Ops.PARAM for n in order):
        raise SpecError("kernel: two buffers have one number")
    nesting(sink)


def loops_in(mask: int, loops: Sequence[UOp]) -> list[UOp]:
    """The loops of a mask that `open_loops` gives; they have bits in order of appearance."""
    found = []
    while mask:
        low = mask & -mask
        found.append(loops[low.bit_length() - 1])
        mask ^= low
    return found


def nesting(sink: UOp) -> dict[UOp, tuple[UOp, ...]]:
    """For each loop the loops around it, outermost first.

    SpecError if something is inside of two loops of which none is inside of the other.
    """
    order = sink.postorder()
    inside = open_loops(order)
    loops = [n for n in order if n.op is Ops.RANGE]  # loop k has bit k
    around: dict[UOp, tuple[UOp, ...]] = {}

    def path(mask: int) -> tuple[UOp, ...]:
        """The loops that are open where something is inside of those of a mask."""
        mine = loops_in(mask, loops)
        longest: tuple[UOp, ...] = ()
        for r in mine:
            if r in around and len(around[r]) + 1 > len(longest):
                longest = (*around[r], r)
        if not set(mine) <= set(longest):
            names = ", ".join(str(r.arg.axis) for r in mine)
            raise SpecError(f"kernel: loops {names} are used together, and none is in the other")
        return longest

    for node in reversed(order):  # what is outside comes first
        if node.op in (Ops.END, Ops.REDUCE):
            outer = path(inside[node])
            for r in node.src[1:]:
                around[r] = outer
                outer = (*outer, r)
    for node in order:
        if node.op not in (Ops.SINK, Ops.RANGE):
            path(inside[node])
    return around
