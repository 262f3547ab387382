"""What is made of an operand before it is used, and can be computed while that is packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tiny._core.symbolic import simplify
from tiny.codegen.lower.indices import all_of, inside
from tiny.dtype import dtypes
from tiny.uop.ops import GroupOp, Ops, UOp, VarArg

__all__ = ["Prologue", "conditions_of", "find_prologues", "function_of"]

MOST_LOADS = 16  # of a value that is computed while one of them is packed


@dataclass(frozen=True)
class Prologue:
    """`value` is what becomes of a load, perhaps together with `others`.

    Those are read at places that the indices of the load determine: the scale of its channel, or
    another array at the same place. So the value is a function of where the load is. `gates` are
    conditions in it that say no more than that the load is inside of its buffer.
    """

    value: UOp
    others: tuple[UOp, ...] = ()
    gates: tuple[UOp, ...] = ()

    def moved(self, load: UOp, memory: UOp, source: Sequence[UOp], gate: UOp | None) -> UOp:
        """The value where the load is read at other indices, inside of its buffer if `gate`."""
        at = load.src[1:]
        gated = () if gate is None else (gate,)
        if not self.others:
            new = load.replace(src=(memory, *source, *gated))
            return self.value.substitute({load: new}, walk=True)
        always = UOp.const(True, dtypes.bool) if gate is None else gate
        places = dict.fromkeys(self.gates, always)
        places |= _moves(at, source)
        for other in self.others:
            array, *where = other.src
            rank = len(array.arg.shape)
            there = [simplify(i.substitute(places, walk=True)) for i in where[:rank]]
            terms = [i.substitute(places, walk=True) for i in where[rank:]]
            bounds = inside(there, array.arg.shape)
            terms += [] if bounds is None else [bounds]
            on = (all_of(terms),) if terms else ()
            places[other] = other.replace(src=(array, *there, *on))
        places[load] = load.replace(src=(memory, *source, *gated))
        return self.value.substitute(places, walk=True)


def find_prologues(order: Sequence[UOp], written: set[UOp]) -> dict[UOp, Prologue]:
    """By load: the factors of sums of products that are made of it and others."""
    found: dict[UOp, Prologue] = {}
    for node in order:
        if node.op is not Ops.REDUCE or node.arg.op is not Ops.ADD:
            continue
        value = node.src[0].src[1] if node.src[0].op is Ops.WHERE else node.src[0]
        for factor in value.src if value.op is Ops.MUL else ():
            if factor.op in GroupOp.Elementwise:
                load, prologue = _of_several(factor, written)
                if load is not None and prologue is not None:
                    found.setdefault(load, prologue)
    return found


def _of_several(factor: UOp, written: set[UOp]) -> tuple[UOp | None, Prologue | None]:
    """The load that a factor is a function of the place of, and what it is; None if there is none.

    It is one with the most dimensions that have an index.
    """
    nothing = None, None
    order = factor.postorder()
    loads = [n for n in order if n.op is Ops.INDEX]
    if not 1 < len(loads) <= MOST_LOADS or any(n.op in (Ops.REDUCE, Ops.STAGE) for n in order):
        return nothing
    if any(n.src[0].op is not Ops.PARAM or n.src[0] in written for n in loads):
        return nothing
    load = max(loads, key=lambda n: len(_moves(n.src[1:], n.src[1:])))
    if conditions_of(load):
        return nothing
    memory, *at = load.src
    shape = memory.arg.shape
    known = _inside_terms(at[: len(shape)], shape)
    gates = [
        n for n in order if n.dtype is dtypes.bool and not known.isdisjoint(n.split_uop(Ops.AND))
    ]
    gates = [n for n in gates if known.issuperset(n.split_uop(Ops.AND))]
    names = [
        UOp(Ops.DEFINE_VAR, dtypes.index, (), VarArg(f"place{k}", 0, size - 1))
        for k, size in enumerate(shape)
    ]
    always = UOp.const(True, dtypes.bool)
    moved = factor.substitute({**dict.fromkeys(gates, always), **_moves(at, names)}, walk=True)
    if any(n.op is Ops.RANGE for n in moved.postorder()):
        return nothing
    return load, Prologue(factor, tuple([n for n in loads if n is not load]), tuple(gates))


def _moves(at: Sequence[UOp], source: Sequence[UOp]) -> dict[UOp, UOp]:
    """What stands for each index, but for constants."""
    return {i: s for i, s in zip(at, source, strict=False) if i.op is not Ops.CONST}


def function_of(load: UOp, order: Sequence[UOp], prologues: Mapping[UOp, Prologue]) -> Prologue:
    """What is made of a load alone, or with others.

    Else the most that is made of it and constants, and is all that becomes of it: such as the
    activation of what the layer before has left. The load itself if there is no such value, or
    if it has a condition of its own, where it is 0 and that value might not be.
    """
    if load in prologues:
        return prologues[load]
    if conditions_of(load):
        return Prologue(load)
    mine = {load}
    exits: set[UOp] = set()
    for n in order:
        within = [s for s in n.src if s in mine]
        alone = all(s in mine or s.op is Ops.CONST for s in n.src)
        if within and alone and n.op in GroupOp.Elementwise and n.dtype is not dtypes.index:
            mine.add(n)
        else:
            exits.update(within)
    return Prologue(exits.pop() if len(exits) == 1 else load)


def conditions_of(load: UOp) -> list[UOp]:
    """The conditions of a load that do not say that its indices are inside of the buffer."""
    memory, *at = load.src
    shape = memory.arg.shape
    if len(at) == len(shape):
        return []
    known = _inside_terms(at[: len(shape)], shape)
    return [t for t in at[-1].split_uop(Ops.AND) if t not in known]


def _inside_terms(at: Sequence[UOp], shape: Sequence[int]) -> set[UOp]:
    """All that say that indices are inside of a buffer, each for itself."""
    known = set()
    for i, size in zip(at, shape, strict=True):
        known |= {simplify(i.const_like(-1) < i), simplify(i < size)}
    return known
