"""Rows that are kept where the results which are made of them will be.

Softmax keeps the exponentials of a row until their sum is known. In the memory of the result they
need none of their own, and its lines come while exponentials are computed instead of at the end.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tiny.uop.ops import Ops, UOp

__all__ = ["Lodging", "find_lodging"]


class Lodging(NamedTuple):
    """A STAGE that is kept at the INDEX `address` of a store, whose rows are along a range."""

    stage: UOp
    address: UOp
    along: UOp


def find_lodging(ast: UOp, plain: Collection[UOp]) -> Lodging | None:
    """The STAGE that can lodge where its kernel stores, if there is one.

    Each element of the row gives the one that takes its place, and all else that reads it comes
    before the first of those. Ranges in `plain` have neither tiles nor lanes.
    """
    if len(ast.src) != 1 or ast.src[0].op is not Ops.STORE:
        return None
    address, value = ast.src[0].src[:2]
    memory, *at = address.src
    if memory.op is not Ops.PARAM or len(at) != len(memory.arg.shape) or len(set(at)) < len(at):
        return None
    if not all(
        r.op is Ops.RANGE and r.src[0].op is Ops.CONST and r.src[0].arg == n
        for r, n in zip(at, memory.arg.shape, strict=True)
    ):
        return None
    nodes = value.postorder()
    stages = [n for n in nodes if n.op is Ops.STAGE]
    if len(stages) != 1 or stages[0].dtype is not memory.dtype or len(stages[0].src) != 2:
        return None
    (stage,) = stages
    inside = set(stage.postorder())
    bound = {r for n in inside if n.op in (Ops.REDUCE, Ops.STAGE) for r in n.src[1:]}
    free = {n for n in inside if n.op is Ops.RANGE} - bound
    others = [r for r in at if r not in free]
    if not free or others != [at[-1]] or len(free) + 1 != len(at) or not free <= set(plain):
        return None
    (along,) = others
    if stage.src[1].src[0] is not along.src[0] or stage.arg.shape != (along.src[0].arg,):
        return None
    # what reads all of the row is a sum of it, which no element of the result asks for again
    readers = {n for n in nodes if n.op is Ops.INDEX and n.src[0] is stage}
    elsewhere = {n for n in readers if n.src[1] is not along}
    for n in nodes:
        if n.op is Ops.REDUCE and n not in inside and elsewhere:
            below = set(n.postorder())
            found = elsewhere & below
            if found and along in below:
                return None
            elsewhere -= found
    return None if elsewhere else Lodging(stage, address, along)
