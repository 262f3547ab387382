"""What the loop nests of a kernel do: the memory that they touch, and the arithmetic, by axes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tiny._core.symbolic import simplify
from tiny.codegen.lower.indices import flat_offset, linear_form
from tiny.codegen.opt.splits import SplitKernel
from tiny.codegen.opt.weights import weight_of
from tiny.uop.needs import inequality_of
from tiny.uop.ops import GroupOp, Ops, UOp

__all__ = ["Access", "Nest", "access_of", "axes_of", "find_nests"]


@dataclass(frozen=True)
class Access:
    """A load or a store.

    `strides` says how far apart neighbours along an axis are in memory, None if not evenly; an
    axis that is not in it does not matter. `dims` says the same for each dimension of the memory,
    and is empty if one of them is no sum of multiples of axes. `gate` are the axes that its
    condition depends on. `number` is that of the load in `Kernel.loads`, -1 for a store. `work`
    counts the instructions that make a value of it alone, which are saved where that is packed.
    Where an operand `is_kept`, packing it costs a run nothing.
    One that `is_made` is of words for a matrix unit that memory does not have: it is packed.
    """

    mask: int
    strides: dict[int, int | None]
    dims: tuple[dict[int, int], ...]
    gate: int
    itemsize: int
    size: int
    number: int
    is_packable: bool
    work: float = 0.0
    is_kept: bool = False
    is_made: bool = False

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The axes on which it depends where it is read."""
        return tuple(dict.fromkeys([*self.strides, *[k for dim in self.dims for k in dim]]))

    def is_contiguous(self, axis: int) -> bool:
        """Whether neighbours along an axis are neighbours in memory."""
        return self.strides.get(axis, 0) in (1, -1)

    def box_step(self, axis: int) -> int:
        """How far apart neighbours along an axis are in a box that is staged; 0 if not known.

        In a dimension of its own an axis has no gaps there.
        """
        steps = [1 if len(dim) == 1 else dim[axis] for dim in self.dims if axis in dim]
        return steps[0] if len(steps) == 1 else 0

    def shares_dim(self, axis: int, others: int) -> bool:
        """Whether a dimension is the sum of an axis and one of these, as of a window."""
        return any(axis in dim and any(others >> k & 1 for k in dim) for dim in self.dims)

    def box(self, extents: dict[int, int], line: int = 1) -> int:
        """How many elements are between the first and the last along these many of each axis.

        Those of the last dimension count in whole lines of so many elements.
        """
        total = 1
        for n, dim in enumerate(self.dims, 1):
            reach = 1  # gaps are left out, as in a staged box
            for k, factor in dim.items():
                if (extent := extents.get(k, 1)) > 1:
                    reach += (abs(factor) if len(dim) > 1 else 1) * (extent - 1)
            total *= -(-reach // line) * line if n == len(self.dims) else reach
        return total

    def pitches(self, kept: dict[int, int] | None) -> list[int]:
        """How far apart in memory neighbours along each dimension are.

        In its own memory, or in that of a box of such extents which is kept of it.
        """
        found, inner = [0] * len(self.dims), 1
        for n, dim in reversed(list(enumerate(self.dims))):
            found[n], reach = inner, 1
            for k, factor in dim.items():
                if kept is None:
                    found[n] = abs(self.strides.get(k) or 0) // (abs(factor) or 1)
                else:
                    reach += abs(factor) * (kept.get(k, 1) - 1)
            inner *= reach
        return found

    def pieces(self, extents: dict[int, int], pitches: list[int]) -> int:
        """In how many pieces, far from each other, such a box lies in memory."""
        total = length = 1
        for dim, pitch in zip(reversed(self.dims), reversed(pitches), strict=True):
            reach = 1 + sum(abs(f) * (extents.get(k, 1) - 1) for k, f in dim.items())
            if reach > 1 and pitch <= 2 * length:
                length = pitch * reach
            else:
                total *= reach
        return total

    def distance(self, axis: int, pitches: list[int]) -> int:
        """How far apart in such memory neighbours along an axis are."""
        return sum(
            abs(dim[axis]) * p for dim, p in zip(self.dims, pitches, strict=True) if axis in dim
        )


@dataclass(eq=False)
class Nest:
    """The loops of reductions over the same ranges, of a STAGE, or of the stores.

    `mask` are all axes of its body, `own` those that no other nest has: reduced or filled over.
    `work` counts the instructions of a point by the axes that they depend on. A sum is masked by
    a condition over the axes `condition`; where that is an inequality `bound` has its factors by
    axis, and `offset` its constant.
    """

    mask: int
    own: int
    sums: int = 0
    loads: list[Access] = field(default_factory=list)
    stores: list[Access] = field(default_factory=list)
    work: dict[int, float] = field(default_factory=dict)
    condition: int = 0
    bound: dict[int, int] = field(default_factory=dict)
    offset: int = 0

    @property
    def sum_bytes(self) -> int:
        """The size of a sum: narrow operands are added up in 4 bytes."""
        return max([4, *[x.itemsize for x in self.loads]])

    @property
    def outputs(self) -> int:
        """The axes that its results depend on."""
        return self.mask & ~self.own if self.sums else self.mask

    def add(self, mask: int, instructions: float) -> None:
        """Count instructions that depend on some axes."""
        self.work[mask] = self.work.get(mask, 0.0) + instructions


def axes_of(mask: int) -> Iterator[int]:
    """The numbers of a set of axes."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def find_nests(kernel: SplitKernel) -> list[Nest]:
    """The loop nests of a kernel; that of the stores comes last."""
    order = kernel.ast.postorder()
    masks = kernel.masks
    nests: dict[int, Nest] = {}
    stores = Nest(0, 0)
    for node in order:
        if node.op is Ops.REDUCE or node.op is Ops.STAGE:
            own = 0
            for r in node.src[1:]:
                own |= masks[r]
            nest = nests.setdefault(own, Nest(0, own)) if own else stores
            nest.mask |= masks[node.src[0]] | own
            nest.sums += node.op is Ops.REDUCE and not _is_correction(node)
        elif node.op is Ops.STORE:
            stores.mask |= masks[node]
    # innermost first: what depends on the own axes of a nest is computed in it
    inner = sorted(nests.values(), key=lambda n: n.mask.bit_count(), reverse=True)

    def nest_of(mask: int) -> Nest:
        for nest in inner:
            if mask & nest.own and not mask & ~nest.mask:
                return nest
        return stores

    numbers = {n: k for k, n in enumerate(kernel.loads)}
    alone = _made_of_one(order, numbers)
    made: dict[UOp, float] = {}
    unit = kernel.unit
    for node, load in alone.items():
        # what is done to words costs nothing: it is part of a broadcast
        if node is not load and _is_data(node) and (unit is None or load.src[0] not in unit.words):
            made[load] = made.get(load, 0.0) + weight_of(node)
    inside: set[UOp] = set()  # of what is made of several loads, and of conditions that bound loops
    for load, prologue in kernel.prologues.items():
        below = [n for n in prologue.value.postorder() if n.op in GroupOp.ALU and _is_data(n)]
        made[load] = sum([weight_of(n) for n in below]) + float(len(prologue.others))
        inside.update(below, prologue.others)
    for node in order:
        if node.op is Ops.REDUCE and node.arg.op is Ops.ADD and node.src[0].op is Ops.WHERE:
            found = inequality_of(node.src[0].src[0])
            if found is not None and not found.ranges().isdisjoint(node.src[1:]):
                inside.update(node.src[0].src[0].postorder())
    for node in order:
        mask = masks[node]
        if node.op is Ops.REDUCE:
            _add_sum(node, nest_of(masks[node.src[0]] | _own(node, masks)), kernel)
        elif node.op is Ops.STORE:
            stores.stores.append(access_of(node.src[0], kernel, -1))
        elif node.op is Ops.STAGE:
            # it is stored, and read, along its own axes
            nest_of(mask | _own(node, masks)).add(mask | _own(node, masks), 1.0)
        elif node in inside:
            continue
        elif node.op is Ops.INDEX and node in numbers:
            access = access_of(node, kernel, numbers[node], made.get(node, 0.0))
            nest_of(mask).loads.append(access)
        elif node.op in GroupOp.ALU and node not in alone and _is_data(node):
            nest_of(mask).add(mask, weight_of(node))
    return [*nests.values(), stores]


def _is_correction(node: UOp) -> bool:
    """Whether a sum takes off what a shift of operands of a unit has added: it has few outputs."""
    return node.src[0].op is Ops.WMMA and node.src[0].src[0].op is Ops.CONST


def _own(node: UOp, masks: dict[UOp, int]) -> int:
    own = 0
    for r in node.src[1:]:
        own |= masks[r]
    return own


def _made_of_one(order: list[UOp], loads: dict[UOp, int]) -> dict[UOp, UOp]:
    """For each value that is made of one load and constants: that load."""
    found: dict[UOp, UOp] = {}
    for node in order:
        if node in loads:
            found[node] = node
        elif node.op in GroupOp.Elementwise and node.dtype.kind != "x":
            parts = {found.get(s) for s in node.src if s.op is not Ops.CONST}
            if len(parts) == 1 and (load := parts.pop()) is not None:
                found[node] = load
    return found


def _is_data(node: UOp) -> bool:
    """Whether it computes with what has been loaded, not where to load from."""
    if node.dtype.kind == "b":
        return node.src[0].dtype.kind not in "xb"
    return node.dtype.kind != "x"


def _add_sum(node: UOp, nest: Nest, kernel: SplitKernel) -> None:
    """Count a reduction. One that adds up products under a condition is a single instruction."""
    value, masks = node.src[0], kernel.masks
    mask = masks[value] | nest.own
    is_sum = node.arg.op is Ops.ADD
    if is_sum and value.op is Ops.WHERE:
        found = inequality_of(value.src[0]) if nest.sums == 1 else None
        nest.bound = {kernel.number_of[r]: factor for r, factor in found.terms} if found else {}
        nest.offset = found.constant if found else 0
        nest.condition |= masks[value.src[0]]
        nest.add(masks[value], -1.0)
        value = value.src[1]
    if value.op is Ops.WMMA:
        nest.add(mask, value.arg.cycles / value.arg.m)
    elif not (is_sum and value.op is Ops.MUL):
        nest.add(mask, 1.0)
    elif masks[value] != mask:
        nest.add(mask, 1.0)
        nest.add(masks[value], -1.0)


def access_of(index: UOp, kernel: SplitKernel, number: int, work: float = 0.0) -> Access:
    """What is known of the INDEX of a load, or of a store with the number -1."""
    memory, *at = index.src
    shape = memory.arg.shape
    strides: dict[int, int | None] = {}
    for term, factor in linear_form(simplify(flat_offset(at, shape))).terms:
        if term.op is Ops.RANGE:
            axis = kernel.number_of[term]
            if strides.get(axis, 0) is not None:
                strides[axis] = factor
        else:
            for r in term.postorder():
                if r.op is Ops.RANGE:
                    strides[kernel.number_of[r]] = None
    forms = [linear_form(i).terms for i in at[: len(shape)]]
    dims: tuple[dict[int, int], ...] = ()
    is_affine = all(t.op is Ops.RANGE for terms in forms for t, _ in terms)
    if is_affine:
        dims = tuple([{kernel.number_of[t]: f for t, f in terms} for terms in forms])
    size = math.prod(shape)
    if dims and len(dims[-1]) == 1 and abs(*dims[-1].values()) == 1:
        columns = kernel.axes[next(iter(dims[-1]))].range.src[0].vmax
        size = size // shape[-1] * min(columns, shape[-1])  # what is beside them is not read
    return Access(
        kernel.masks[index],
        strides,
        dims,
        kernel.masks[at[len(shape)]] if len(at) > len(shape) else 0,
        index.dtype.itemsize,
        size,
        number,
        memory.op is Ops.PARAM and is_affine and memory not in kernel.written,
        work,
        number in kernel.kept,
        kernel.unit is not None
        and memory in kernel.unit.words
        and bool(kernel.unit.registers or not kernel.unit.words[memory].is_memory),
    )
