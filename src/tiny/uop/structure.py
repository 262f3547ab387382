"""What no rule about one node can say: how the parts of a kernel, or of a program, fit together.

`check_kernel` and `check_program` verify each node by the spec of its level first. They are run on
every kernel with SPEC=1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from tiny._core.args import AxisType
from tiny._core.ops import Ops
from tiny.uop.ops import UOp
from tiny.uop.printing import describe, graph_text, list_text
from tiny.uop.spec import SpecError, spec_kernel, spec_program, verify
from tiny.uop.written import check_by_hand, is_by_hand

__all__ = ["check_kernel", "check_program"]


# ---------------------------------------------------------------- kernels


def check_kernel(sink: UOp) -> None:
    """SpecError if a kernel (level 2) cannot be turned into loops over memory.

    - Loops have numbers of their own and sizes that no other loop changes. What a loop is bound by
      (a STORE, a REDUCE or a STAGE) is what its users are inside of.
    - The buffers written are PARAM 0, 1, … in the order of the STOREs, each by one STORE, which
      writes an element once. Of a buffer that is written only the element at hand is read.
      An "ordered" STORE is alone, and may write an element again: its loops run in order of their
      numbers, so the last one wins, or is combined with what the others left there. Those loops
      whose order matters are its sources, also where neither value nor place varies with them.
    - Chain rule: of the things that a nest of loops computes once (REDUCEs and STAGEs), any two
      depend on loops of which one set holds the other, so that there is an order of the loops in
      which all of them are made before they are needed, and no more often than they change.

    - SCANs go along one loop, which is one over what is stored. Its steps are made in order, so it
      can be the innermost of the loops that they depend on.

    One that runs as it is written has rules of its own: see `check_by_hand`.
    """
    if sink.op is not Ops.SINK:
        raise _refused(sink, "a kernel is a SINK of STOREs")
    if is_by_hand(sink):
        check_by_hand(sink)
        return
    verify(sink, spec_kernel, "kernel")
    order = sink.postorder()
    free = _free_loops(order)
    bits = _check_loops(order, free)
    _check_stages(order, free, bits)
    _check_memory(sink, order, free, bits)
    _check_chains(order, free, bits)
    _check_scans(sink, order, free)


def _refused(node: UOp, what: str) -> SpecError:
    return SpecError(f"kernel: {describe(node)}: {what}\n{graph_text(node, 12)}")


def _own_loops(node: UOp) -> tuple[UOp, ...]:
    """The loops that a REDUCE or a STAGE binds."""
    return node.src[1:] if node.op in (Ops.REDUCE, Ops.STAGE) else ()


def _free_loops(order: Sequence[UOp]) -> dict[UOp, int]:
    """The loops that each node varies with, as a bit for each: those it binds are not among them.

    Bits are given to loops in order of appearance.
    """
    free: dict[UOp, int] = {}
    count = 0
    for node in order:
        mask = 0
        for s in node.src:
            mask |= free[s]
        if node.op is Ops.RANGE:
            mask |= 1 << count
            count += 1
        elif node.op in (Ops.REDUCE, Ops.STAGE):
            mask = free[node.src[0]]
            for r in node.src[1:]:
                mask &= ~free[r]
        free[node] = mask
    return free


def _check_loops(order: Sequence[UOp], free: dict[UOp, int]) -> dict[UOp, int]:
    """Loops each by itself. The bit of each."""
    numbers: dict[int, UOp] = {}
    bits: dict[UOp, int] = {}
    for node in order:
        if node.op is not Ops.RANGE:
            continue
        if free[node.src[0]]:
            raise _refused(node, "the size of a loop does not change with another loop")
        if numbers.setdefault(node.arg.axis, node) is not node:
            raise _refused(node, f"two loops have the number {node.arg.axis}")
        if node.arg.kind not in (AxisType.LOOP, AxisType.REDUCE):
            raise _refused(node, "the loops of a kernel are of kind LOOP or REDUCE")
        bits[node] = free[node]
    return bits


def _names(mask: int, bits: dict[UOp, int]) -> str:
    """Loops by their numbers."""
    return ", ".join(str(r.arg.axis) for r, bit in bits.items() if mask & bit) or "none"


def _check_memory(
    sink: UOp, order: Sequence[UOp], free: dict[UOp, int], bits: dict[UOp, int]
) -> None:
    """What is written, and that nothing reads what another step wrote."""
    params: dict[int, UOp] = {}
    for node in order:
        if node.op is Ops.PARAM and params.setdefault(node.arg.slot, node) is not node:
            raise _refused(node, f"two buffers have the number {node.arg.slot}")
    written: dict[UOp, UOp] = {}  # PARAM -> the address that is stored to
    for store in sink.src:
        address, value = store.src[:2]
        memory = address.src[0]
        if memory.op is not Ops.PARAM:
            raise _refused(store, "a kernel stores to its PARAMs; a STAGE is filled by its value")
        if memory in written:
            raise _refused(store, f"PARAM {memory.arg.slot} is written by two STOREs")
        if memory.arg.slot != len(written):
            raise _refused(
                store,
                "buffers that are written are PARAM 0, 1, … in the order of the STOREs: "
                f"number {len(written)} is expected, this is {memory.arg.slot}",
            )
        written[memory] = address
        is_ordered = store.arg == "ordered"
        if is_ordered and len(sink.src) > 1:
            raise _refused(store, "an ordered STORE is the only one of its kernel")
        if (lost := free[value] & ~free[address]) and not is_ordered:
            raise _refused(
                store,
                f"the value varies with loops {_names(lost, bits)}, which the address does not: "
                "an element would be written several times",
            )
    addresses = set(written.values())
    written_in_order = sink.src[0].arg == "ordered"
    for node in order:
        if node.op is Ops.INDEX and node not in addresses and node.src[0] in written:
            address = written[node.src[0]]
            rank = len(node.src[0].shape)
            read, wrote = node.src[1 : 1 + rank], address.src[1 : 1 + rank]
            if read != wrote and (written_in_order or not _is_apart(read, wrote)):
                raise _refused(
                    node,
                    f"it reads of PARAM {node.src[0].arg.slot}, which is written, not the element "
                    "that is written in the same step",
                )


def _is_apart(read: Sequence[UOp], wrote: Sequence[UOp]) -> bool:
    """Whether bounds or steps of an index show that two places are never the same."""
    for a, b in zip(read, wrote, strict=True):
        if a.vmax < b.vmin or b.vmax < a.vmin:
            return True
        (step_a, start_a), (step_b, start_b) = _step(a), _step(b)
        step = math.gcd(step_a, step_b)
        if step and (start_a - start_b) % step:
            return True
    return False


def _step(x: UOp) -> tuple[int, int]:
    """(m, c) such that an index is always c more than a multiple of m; m is 0 for a constant."""
    step, start = 0, 0
    terms = [x]
    while terms:
        term = terms.pop()
        if term.op is Ops.ADD:
            terms += term.src
        elif term.op is Ops.CONST:
            start += term.arg
        elif term.op is Ops.MUL and term.src[1].op is Ops.CONST:
            step = math.gcd(step, term.src[1].arg)
        else:
            return 1, 0
    return step, start


def _check_stages(order: Sequence[UOp], free: dict[UOp, int], bits: dict[UOp, int]) -> None:
    """STAGEs and REDUCEs bind loops that nobody outside of them uses."""
    owner: dict[UOp, UOp] = {}
    bound = 0
    for node in order:
        own = _own_loops(node)
        if len(set(own)) != len(own):
            raise _refused(node, "it names a loop twice")
        for r in own:
            bound |= bits[r]
            kind = AxisType.LOOP if node.op is Ops.STAGE else AxisType.REDUCE
            if r.arg.kind is not kind:
                raise _refused(
                    node, f"loop {r.arg.axis} is of kind {r.arg.kind.name}, not {kind.name}"
                )
            first = owner.setdefault(r, node)
            if first is not node and Ops.STAGE in (node.op, first.op):
                raise _refused(node, f"loop {r.arg.axis} belongs to {describe(first)} as well")
        if node.op is Ops.STAGE:
            sizes = tuple([int(r.src[0].vmax) for r in own])
            if node.arg.shape != sizes:
                raise _refused(node, f"its shape is {node.arg.shape} and its loops are {sizes}")
            if node.arg.shared and free[node]:
                raise _refused(
                    node,
                    "what all threads share does not vary with loops around it, "
                    f"here {_names(free[node], bits)}",
                )
    for node in order:
        if node.op is Ops.STORE:
            if loose := free[node] & bound:
                raise _refused(
                    node, f"it uses loops {_names(loose, bits)} outside of what they belong to"
                )
            for r, bit in bits.items():
                if free[node] & bit and r.arg.kind is not AxisType.LOOP:
                    raise _refused(node, f"loop {r.arg.axis} over outputs is of kind REDUCE")


def _check_chains(order: Sequence[UOp], free: dict[UOp, int], bits: dict[UOp, int]) -> None:
    """The chain rule, for the nest of each STORE, REDUCE and STAGE."""
    own: list[int] = []  # the loops of each nest
    level = dict.fromkeys(bits.values(), 0)  # how many nests each loop is inside of
    reached: dict[UOp, int] = {}  # the nests that each node is inside of, a bit for each
    chains: list[dict[int, UOp]] = []  # in each nest, the sets of loops that something varies with
    for node in reversed(order):  # what binds a loop comes before what varies with it
        nests = reached.get(node, 0)
        scope = [bit for bit in bits.values() if free[node] & bit]
        deepest = max([level[bit] for bit in scope], default=0)
        if _own_loops(node) and scope:
            # it stands in the innermost of the nests whose loops it varies with
            innermost = sum([bit for bit in scope if level[bit] == deepest])
            for nest, loops in enumerate(own):
                if nests >> nest & 1 and loops & innermost:
                    chains[nest].setdefault(loops & innermost, node)
        loops = sum([bits[r] for r in _own_loops(node)])
        for r in _own_loops(node):
            level[bits[r]] = max(level[bits[r]], deepest + 1)
        if node.op is Ops.STORE:
            loops = free[node]
        if loops:
            nests |= 1 << len(own)
            own.append(loops)
            chains.append({})
        for s in node.src:
            reached[s] = reached.get(s, 0) | nests
    for chain in chains:
        sets = sorted(chain, key=int.bit_count)
        for a, b in itertools.pairwise(sets):
            if a & ~b:
                raise _refused(
                    chain[b],
                    f"it is made once for loops {_names(b, bits)}, and {describe(chain[a])} once "
                    f"for loops {_names(a, bits)}: no order of the loops has room for both",
                )


def _check_scans(sink: UOp, order: Sequence[UOp], free: dict[UOp, int]) -> None:
    """SCANs go on in one loop over what is stored, which is the innermost for each of them."""
    scans = [n for n in order if n.op is Ops.SCAN]
    if not scans:
        return
    if len({n.src[-1] for n in scans}) > 1:
        raise _refused(scans[-1], "the SCANs of a kernel go along one loop")
    stored = free[sink.src[0]]
    for scan in scans:
        if scan.src[-1].arg.kind is not AxisType.LOOP or free[scan] & ~stored:
            raise _refused(scan, "a SCAN goes along a loop over what is stored")


# ---------------------------------------------------------------- programs


class ProgramPhase(Protocol):
    """What is checked of a part of a program."""

    @property
    def uops(self) -> tuple[UOp, ...]:
        """The operations in order."""

    @property
    def count(self) -> int:
        """How many steps threads share."""


class Program(Protocol):
    """What is checked of a linear program."""

    @property
    def name(self) -> str:
        """What it is called in messages."""

    @property
    def phases(self) -> Sequence[ProgramPhase]:
        """Its parts, one after the other."""

    @property
    def scratch_nbytes(self) -> int:
        """Memory of each thread."""

    @property
    def shared_nbytes(self) -> int:
        """Memory of all threads."""


def check_program(program: Program) -> None:
    """SpecError if a linear program does not fit together. Phases are lists of their own.

    - Operations come after their sources and in scope, and what opens is closed.
    - A phase of several steps has THREAD loops of that many, outermost, with all stores in them.
      What stands outside is done again by every thread.
    - A register is written in loops of which none is around another, and read after a loop in
      which it was written.
    - Scratch memory is as large as its pieces need; what is read of it was written before, and
      not over something that is still needed; threads do not read what others write.
    """
    for number, phase in enumerate(program.phases):
        level = f"program {program.name}, phase {number}"
        verify(phase.uops, spec_program, level)
        _check_threads(phase, level)
        _check_registers(phase.uops, level)
    _check_scratch(program)


def _failed(level: str, uops: Sequence[UOp], at: int, what: str) -> SpecError:
    upto = uops[: at + 1]
    return SpecError(f"{level}: {what}: {describe(upto[-1])} at {at}\n{list_text(upto, 12)}")


def _check_threads(phase: ProgramPhase, level: str) -> None:
    """THREAD loops of `count` steps, outermost, and no store outside of them."""
    uops = phase.uops
    threads = {u for u in uops if u.op is Ops.RANGE and u.arg.kind is AxisType.THREAD}
    if phase.count < 1 or (phase.count > 1 and not threads):
        raise SpecError(f"{level}: {phase.count} steps, and {len(threads)} loops of kind THREAD")
    if not threads:
        return
    stored = {u.src[0].src[0] for u in uops if u.op is Ops.STORE and u.src[0].op is Ops.INDEX}
    before: set[UOp] = set()  # what stands outside of the THREAD loops
    open_: list[UOp] = []
    for k, u in enumerate(uops):
        is_inside = bool(open_) and open_[0] in threads
        if u in threads:
            if open_:
                raise _failed(level, uops, k, "the THREAD loop is inside of another")
            if u.src[0].op is not Ops.CONST or u.src[0].arg != phase.count:
                raise _failed(level, uops, k, f"it does not have {phase.count} steps")
        if u.op in (Ops.RANGE, Ops.IF):
            open_.append(u)
        elif u.op in (Ops.END, Ops.ENDIF):
            open_.pop()
        if not is_inside:
            before.add(u)
            if (u.op is Ops.STORE and u.src[0].op is Ops.INDEX) or u.op is Ops.BARRIER:
                raise _failed(level, uops, k, "outside of THREAD loops, so every thread does it")
            if u.op is Ops.LOAD and u.src[0].src[0] in stored:
                raise _failed(level, uops, k, "read outside of THREAD loops, written in one")
        elif u.op is Ops.STORE and u.src[0].op is Ops.DEFINE_REG and u.src[0] in before:
            raise _failed(level, uops, k, "steps of a THREAD loop do not pass on a register")


def _check_registers(uops: Sequence[UOp], level: str) -> None:
    """Where registers are written and read."""
    open_: list[UOp] = []
    nests: dict[UOp, set[tuple[UOp, ...]]] = {}  # register -> the loops around each of its STOREs
    written: dict[UOp, set[UOp]] = {}  # register -> the loops and conditions it is written in
    for at, u in enumerate(uops):
        if u.op in (Ops.RANGE, Ops.IF):
            open_.append(u)
        elif u.op in (Ops.END, Ops.ENDIF):
            open_.pop()
        elif u.op is Ops.STORE and u.src[0].op is Ops.DEFINE_REG:
            register = u.src[0]
            loops = tuple([s for s in open_ if s.op is Ops.RANGE])
            for other in nests.setdefault(register, set()):
                short = min(len(loops), len(other))
                if loops[:short] == other[:short] and len(loops) != len(other):
                    raise _failed(
                        level, uops, at, "a register written in a loop and in one around that loop"
                    )
            nests[register].add(loops)
            written.setdefault(register, set()).update(open_)
        elif u.op is Ops.AFTER and u.src[1].src[0] not in written.get(u.src[0], ()):
            raise _failed(level, uops, at, "a register is read after what does not write it")


class _Access(NamedTuple):
    """A STORE or LOAD of a piece of scratch memory: where it stands, and the loops around it."""

    at: int
    is_store: bool
    loops: tuple[int, ...]  # where they begin


def _check_scratch(program: Program) -> None:
    """Pieces of scratch memory: their bounds, and that none is written over while it is needed."""
    kept: dict[UOp, int] = {}  # shared pieces -> the phase that wrote them
    last_use: dict[UOp, int] = {}  # shared pieces -> the last phase that uses them
    for number, phase in enumerate(program.phases):
        for u in phase.uops:
            if u.op is Ops.DEFINE_LOCAL and u.arg.shared:
                last_use[u] = number
    for number, phase in enumerate(program.phases):
        uops, level = phase.uops, f"program {program.name}, phase {number}"
        accesses, ends = _accesses(uops)
        spans: dict[UOp, tuple[int, int]] = {}
        for piece, found in accesses.items():
            at = uops.index(piece)
            limit = program.shared_nbytes if piece.arg.shared else program.scratch_nbytes
            if _bytes(piece)[1] > limit:
                raise _failed(level, uops, at, f"the piece ends beyond {limit} bytes")
            reads = [a for a in found if not a.is_store]
            writes = [a for a in found if a.is_store]
            first_write = min([a.at for a in writes], default=len(uops))
            if piece.arg.shared:
                if reads and not writes and piece not in kept:
                    raise _failed(level, uops, reads[0].at, "it reads what no phase has written")
                if reads and writes and phase.count > 1:
                    raise _failed(
                        level, uops, reads[0].at, "threads read what others write in this phase"
                    )
                spans[piece] = (0, len(uops))
            else:
                if reads and not writes:
                    raise _failed(level, uops, reads[0].at, "it reads what was not written")
                spans[piece] = _span(found, ends, any(a.at < first_write for a in reads))
        kept.update({p: number for p, f in accesses.items() if p.arg.shared and f})
        for piece in kept:
            if piece not in spans and last_use[piece] > number:
                spans[piece] = (0, len(uops))  # it lives through this phase
        _check_overlaps(spans, uops, level)


def _bytes(piece: UOp) -> tuple[int, int]:
    nbytes = math.prod(piece.arg.shape) * piece.dtype.itemsize
    return piece.arg.offset, piece.arg.offset + nbytes


def _accesses(uops: Sequence[UOp]) -> tuple[dict[UOp, list[_Access]], dict[int, int]]:
    """What happens to each piece, in order; and where each loop ends, by where it begins."""
    found: dict[UOp, list[_Access]] = {u: [] for u in uops if u.op is Ops.DEFINE_LOCAL}
    ends: dict[int, int] = {}
    open_: list[int] = []
    for at, u in enumerate(uops):
        if u.op is Ops.RANGE:
            open_.append(at)
        elif u.op is Ops.END:
            ends[open_.pop()] = at
        elif u.op in (Ops.STORE, Ops.LOAD) and u.src[0].op is Ops.INDEX:
            memory = u.src[0].src[0]
            if memory.op is Ops.DEFINE_LOCAL:
                found[memory].append(_Access(at, u.op is Ops.STORE, tuple(open_)))
    return found, ends


def _span(found: Sequence[_Access], ends: dict[int, int], is_carried: bool) -> tuple[int, int]:
    """From where to where a piece is needed: over all of the loops inside which it only is read.

    `is_carried`: it is read before it is written, so it is kept from one step of a loop, which is
    taken to be the innermost around all of its uses, to the next.
    """
    if not found:
        return 0, 0
    common = 0
    while all(len(a.loops) > common and a.loops[common] == found[0].loops[common] for a in found):
        common += 1
    if is_carried and common:
        start = found[0].loops[common - 1]
        return start, ends[start]
    stop = max([ends[a.loops[common]] if len(a.loops) > common else a.at for a in found])
    start = min([a.loops[common] if len(a.loops) > common else a.at for a in found])
    return start, stop


def _check_overlaps(spans: dict[UOp, tuple[int, int]], uops: Sequence[UOp], level: str) -> None:
    """No two pieces share bytes while both are needed."""
    by_start: Iterable[UOp] = sorted(spans, key=lambda p: (p.arg.shared, *_bytes(p)))
    active: list[UOp] = []
    for piece in by_start:
        begin, (start, stop) = _bytes(piece)[0], spans[piece]
        active = [p for p in active if p.arg.shared == piece.arg.shared and _bytes(p)[1] > begin]
        for other in active:
            if start < spans[other][1] and spans[other][0] < stop:
                raise SpecError(
                    f"{level}: {describe(piece)} lies over {describe(other)}, and both are needed "
                    f"between {max(start, spans[other][0])} and {min(stop, spans[other][1])}"
                    f"\n{list_text(uops, 24)}"
                )
        active.append(piece)
