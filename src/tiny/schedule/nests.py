"""Kernels about to be made: their loops, and what is wanted in them at which indices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiny._core.symbolic import simplify
from tiny.dtype import dtypes
from tiny.schedule.graph import EFFECT, TensorGraph, stored_shape
from tiny.uop.ops import AxisType, Ops, RangeArg, UOp, VarArg

Index = tuple[UOp, ...]
Clauses = tuple[UOp, ...]

# By the loops of a nest: those among them in each step of which a value is made once.
Chains = dict[int, set[int]]

MOST_SCOPES = 32  # of one nest
ZERO = UOp.const(0, dtypes.index)
NO_CLAUSES: Clauses = ()


def axes_of(mask: int) -> list[int]:
    """The numbers of the bits of a mask."""
    axes = []
    while mask:
        axis = mask.bit_length() - 1
        axes.append(axis)
        mask ^= 1 << axis
    return axes


class Kernel:
    """A nest of loops about to compute one store: numbered axes, output loops first."""

    __slots__ = (
        "buffers",
        "built",
        "cells",
        "continued",
        "contracting",
        "device",
        "index",
        "kept_nbytes",
        "level",
        "most_buffers",
        "nests",
        "notes",
        "outer",
        "output_loops",
        "pending",
        "planned",
        "products",
        "reason",
        "reduces",
        "root",
        "scanned",
        "siblings",
        "sizes",
    )

    def __init__(self, root: int, g: TensorGraph, most_buffers: int, reason: str) -> None:
        self.root = root
        self.reason = reason
        self.device = g.device[root]
        self.most_buffers = most_buffers
        self.sizes: list[int] = []  # by axis
        self.outer: list[int] = []  # by axis: the mask of the loops outside it
        self.siblings: list[int] = []  # by axis: the mask of the loops opened together with it
        self.level: list[int] = []  # by axis: how many nests it is inside of
        # by nest: in which of its loops a value is made once, as planned and as built
        self.planned: Chains = {}
        self.built: Chains = {}
        self.index = self.open_loops(_symbolic_shape(g, root), AxisType.LOOP, 0)
        self.output_loops = (1 << len(self.sizes)) - 1
        self.nests = {self.output_loops}  # masks of the loops around the body of each nest
        self.kept_nbytes = 0  # in memory of the thread
        self.notes: list[str] = []  # why something is kept
        self.reduces: dict[tuple[object, ...], Index] = {}
        self.products: dict[int, int] = {0: 1}
        self.contracting = 0  # the mask of the loops of contractions
        self.continued: set[int] = set()  # reductions that another, of the same kind, goes on with
        self.scanned: dict[UOp, bool] = {}  # by a loop that SCANs go along: whether backwards
        self.cells = 0
        self.buffers = {root}
        self.pending: set[int] = set()  # asked of, not yet decided: each may become a buffer

    def open_loops(self, sizes: Iterable[int | UOp], kind: AxisType, outer: int) -> Index:
        """A new loop for each size; 0 in place of one that would run once."""
        index = []
        first = len(self.sizes)
        level = 1 + max([self.level[axis] for axis in axes_of(outer)], default=-1)
        for size in sizes:
            if isinstance(size, int) and size == 1:
                index.append(ZERO)
            else:
                # settled, since simplifying what the loop is used in must find nothing to change
                end = simplify(size) if isinstance(size, UOp) else UOp.const(size, dtypes.index)
                arg = RangeArg(len(self.sizes), kind)
                index.append(UOp(Ops.RANGE, dtypes.index, (end,), arg))
                self.sizes.append(int(end.vmax))
                self.outer.append(outer)
                self.level.append(level)
        mask = (1 << len(self.sizes)) - (1 << first)
        self.siblings += [mask] * (len(self.sizes) - first)
        return tuple(index)

    def make_ahead(self, free: int, chains: Chains) -> bool:
        """Note that a value is made once for each step of some loops; whether a loop order does it.

        Of two such values in one nest, the loops of one must be among those of the other.
        """
        axes = axes_of(free)
        deepest = max([self.level[axis] for axis in axes], default=0)
        for nest in {self.siblings[axis] for axis in axes if self.level[axis] == deepest}:
            mask, others = free & nest, chains.setdefault(nest, set())
            if mask not in others:
                if len(others) == MOST_SCOPES or any(mask & m not in (mask, m) for m in others):
                    return False
                others.add(mask)
        return True

    def plan_so_far(self) -> tuple[int, Chains]:
        """What planning values notes here, for `go_back`."""
        return self.kept_nbytes, {nest: set(masks) for nest, masks in self.planned.items()}

    def go_back(self, plan: tuple[int, Chains]) -> None:
        """Forget what was planned since."""
        self.kept_nbytes, self.planned = plan

    def scopes(self) -> list[int]:
        """The loops of each nest at which something is planned to be computed once."""
        return [mask for masks in self.planned.values() for mask in masks]

    def product(self, mask: int) -> int:
        """How often the body of these loops runs."""
        found = self.products.get(mask)
        if found is None:
            found = 1
            for axis in axes_of(mask):
                found *= self.sizes[axis]
            self.products[mask] = found
        return found


class Stage:
    """A cell kept in memory of the thread: computed once for each step of the loops of a scope.

    `fill` is the request that computes it; dimension dims[k] of the cell is loop own[k].
    """

    __slots__ = ("dims", "fill", "own")

    def __init__(self, fill: Request, dims: Sequence[int], own: Index) -> None:
        self.fill = fill
        self.dims = dims
        self.own = own


class Request:
    """A cell wanted in a kernel at an index, where clauses hold (elsewhere: anything)."""

    __slots__ = (
        "clauses",
        "extra",
        "fraction",
        "free",
        "gate",
        "index",
        "kernel",
        "mask",
        "src",
        "value",
    )

    def __init__(self, kernel: Kernel, index: Index, clauses: Clauses, fraction: float) -> None:
        self.kernel = kernel
        self.index = index
        self.clauses = clauses
        self.fraction = fraction  # of the points, those where the clauses hold, about
        self.mask = 0  # the loops that the index and the clauses depend on
        self.src: list[Request] = []  # what its value is made of
        self.extra: tuple[UOp, ...] | None = None  # a PAD's clauses, a REDUCE's ranges
        self.value: UOp | None = None  # the expression, once built
        self.free = 0  # the loops that the value depends on, but for those that it runs itself
        self.gate: Clauses = NO_CLAUSES  # of a load: off these the value is 0

    def built(self) -> UOp:
        """The expression of the value."""
        assert self.value is not None, "a value is used before it is built"
        return self.value


def _symbolic_shape(g: TensorGraph, i: int) -> tuple[int | UOp, ...]:
    node = g.nodes[i]
    return stored_shape(node) if g.kind[i] == EFFECT else node.shape


class Loops:
    """Which loops an index expression depends on, as bit masks, remembered by node.

    Axes are numbered within a kernel, so that the answers hold for every kernel.

    A computed place of an INDEX is no expression yet while indices are found. Variables stand for
    it: its number, from 0 to the size of the dimension - 1, and whether it is there at all.
    """

    def __init__(self) -> None:
        self._masks: dict[UOp, int] = {ZERO: 0}
        self.number_of: dict[UOp, UOp] = {}  # by whether a place is there: its number
        self.places: set[UOp] = set()
        self._named: dict[UOp, frozenset[UOp]] = {}
        self._relevant: dict[tuple[Index, Clauses], Clauses] = {}

    def of(self, expr: UOp) -> int:
        """The mask of one expression."""
        masks = self._masks
        found = masks.get(expr)
        if found is None:
            for node in expr.postorder():
                if node not in masks:
                    mask = 1 << node.arg.axis if node.op is Ops.RANGE else 0
                    for s in node.src:
                        mask |= masks[s]
                    masks[node] = mask
            found = masks[expr]
        return found

    def of_all(self, exprs: Iterable[UOp]) -> int:
        """The mask of several."""
        mask = 0
        masks = self._masks
        for e in exprs:
            m = masks.get(e)
            mask |= self.of(e) if m is None else m
        return mask

    def new_place(self, size: int, mask: int) -> tuple[UOp, UOp]:
        """Names for a place computed in some loops: its number, and whether it is there."""
        k = len(self.places)
        place = UOp(Ops.DEFINE_VAR, dtypes.index, (), VarArg(f"place{k}", 0, max(size - 1, 0)))
        there = UOp(Ops.DEFINE_VAR, dtypes.bool, (), VarArg(f"is_there{k}", False, True))
        self._masks[place] = self._masks[there] = mask
        self.places.add(place)
        self.number_of[there] = place
        return place, there

    def named_in(self, exprs: Iterable[UOp]) -> set[UOp]:
        """The numbers of places in expressions."""
        found: set[UOp] = set()
        if self.places:
            for e in exprs:
                named = self._named.get(e)
                if named is None:
                    named = self._named[e] = frozenset(self.places.intersection(e.postorder()))
                found |= named
        return found

    def relevant(self, index: Index, clauses: Clauses) -> Clauses:
        """The clauses that can say whether an index is in bounds.

        They share a loop or a computed place with it, or with another one that does. The rest say
        when a value is wanted, which whoever asked knows.
        """
        key = (index, clauses)
        found = self._relevant.get(key)
        if found is None:
            kept = connected(self, index, clauses)
            found = self._relevant[key] = clauses if len(kept) == len(clauses) else kept
        return found


def connected(loops: Loops, exprs: Iterable[UOp], clauses: Clauses) -> Clauses:
    """The clauses that share a loop or a computed place with expressions, or with such a clause.

    That a place is there matters to those only who use its number.
    """
    exprs = tuple(exprs)
    mask, places = loops.of_all(exprs), loops.named_in(exprs)
    kept: set[UOp] = set()
    grew = True
    while grew:
        grew = False
        for c in clauses:
            if c in kept:
                continue
            place, m, named = loops.number_of.get(c), loops.of(c), loops.named_in((c,))
            if place in places if place is not None else m & mask or named & places:
                kept.add(c)
                mask |= m
                places |= named
                grew = True
    return tuple([c for c in clauses if c in kept])


def split_clauses(gate: UOp | None) -> Clauses | None:
    """The operands of a chain of ANDs; None if it is never true."""
    if gate is None:
        return NO_CLAUSES
    clauses: dict[UOp, None] = {}
    for c in gate.split_uop(Ops.AND):
        if c.vmin == c.vmax:
            if not c.vmin:
                return None
        else:
            clauses[c] = None
    return tuple(clauses)


def loop_of(index: UOp) -> UOp | None:
    """The loop that an index follows step by step, from either end; None if it is no such."""
    if index.op is Ops.RANGE:
        return index
    loops = [n for n in index.postorder() if n.op is Ops.RANGE]
    if len(loops) == 1 and simplify(loops[0].src[0] - 1 - index) is loops[0]:
        return loops[0]
    return None


def is_place(index: UOp, size: int | UOp) -> UOp:
    """Whether an index is one of a dimension of a size."""
    end = size if isinstance(size, UOp) else UOp.const(size, dtypes.index)
    return simplify((index < 0).ne(True) & (index < end))


def repeated_over(r: Request) -> int:
    """The loops outside of the reduce loops of a request that it does not depend on.

    Its value is computed again in each of their steps, as an operand of a matmul is.
    """
    kernel = r.kernel
    missing = 0
    inner = r.mask & ~kernel.output_loops
    while inner:
        axis = inner.bit_length() - 1
        missing |= kernel.outer[axis] & ~r.mask
        inner ^= 1 << axis
    return missing
