"""Which elements of temporaries nobody reads: they need not be stored.

A causal mask leaves half of a product's steps, in every kernel that reads scores or gradients of
them. So the kernel that makes them need not make the other half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from tiny.uop.needs import Inequality, inequality_of, needs_of
from tiny.uop.ops import Ops, UOp
from tiny.uop.written import is_by_hand

__all__ = ["store_what_is_read"]


class Part(NamedTuple):
    """Of some memory the elements where sum(factor * index) + constant < 0, by dimension."""

    terms: frozenset[tuple[int, int]]
    constant: int


ALL: frozenset[Part] = frozenset()


def store_what_is_read(
    kernels: Sequence[UOp],
    numbers: Sequence[tuple[int, ...]],
    outputs: Sequence[int],
    temporary: Collection[int],
) -> list[UOp]:
    """The kernels, in the order in which they run, with STOREs that are "partial" where they may.

    `numbers` says for each kernel which memory PARAM k is, `outputs` how many of them it writes,
    `temporary` which memory only these kernels see.
    """
    written = Counter(n for mine, count in zip(numbers, outputs, strict=True) for n in mine[:count])
    alone = {n for n in temporary if written[n] == 1}
    read: dict[int, frozenset[Part]] = {}  # of what memory which parts, for all readers so far
    found = list(kernels)
    for k in reversed(range(len(found))):
        mine, kernel = numbers[k], found[k]
        made = [n for n in mine[: outputs[k]] if n in alone and read.get(n)]
        used = {n for n in mine if n in alone and n not in made}
        if kernel.op is not Ops.SINK or is_by_hand(kernel):
            read.update(dict.fromkeys(used, ALL))
            continue
        if made:
            kernel = found[k] = _with_partial_stores(kernel, mine, {n: read[n] for n in made})
        if used.difference(mine[: outputs[k]]):
            nodes = kernel.postorder()
            wanted, _ = needs_of(nodes)
            stored = {s.src[0] for s in kernel.src}
            for node in nodes:
                if node.op is not Ops.INDEX or node.src[0].op is not Ops.PARAM or node in stored:
                    continue
                n = mine[node.src[0].arg.slot]
                if n in used:
                    parts = _parts(node, wanted.get(node, frozenset()))
                    read[n] = read[n] & parts if n in read else parts
    return found


def _parts(index: UOp, known: Collection[Inequality]) -> frozenset[Part]:
    """What is known where a load matters, of its place in memory."""
    places: dict[UOp, int] = {}
    for dim, at in enumerate(index.src[1 : 1 + len(index.src[0].arg.shape)]):
        places.setdefault(at, dim)
    return frozenset(
        [
            Part(frozenset([(places[r], factor) for r, factor in x.terms]), x.constant)
            for x in known
            if x.ranges() <= places.keys()
        ]
    )


def _with_partial_stores(
    kernel: UOp, numbers: Sequence[int], read: dict[int, frozenset[Part]]
) -> UOp:
    """A kernel that need not store more of some memory than what is read."""
    stores = []
    for store in kernel.src:
        index = store.src[0]
        condition: UOp | None = None
        parts = read.get(numbers[index.src[0].arg.slot], ALL) if store.arg is None else ALL
        for part in sorted(parts, key=lambda p: (p.constant, sorted(p.terms))):
            terms = [(index.src[1 + dim], factor) for dim, factor in part.terms]
            if all(r.op is Ops.RANGE for r, _ in terms):
                one = Inequality(frozenset(terms), part.constant).condition()
                if inequality_of(one) is not None:  # not one that always holds
                    condition = one if condition is None else condition & one
        if condition is not None:
            store = store.replace(src=(*store.src, condition), arg="partial")
        stores.append(store)
    return kernel.replace(src=tuple(stores))
