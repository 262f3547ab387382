"""What becomes of the sums of a tile, in loops of its own where that pays: the rolled epilogue.

The sums go to scratch memory, and a second loop nest, with lanes of its own, goes over them. What
is long then stands in the program once, and not once for each vector of the tile; and what is
stored across the lanes of the sums is transposed a small square at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from tiny._core.symbolic import simplify
from tiny.codegen.lower.indices import flat_offset, linear_form
from tiny.codegen.lower.tiled import Loop, TiledAxis
from tiny.codegen.opt.axes import Split, copies_of
from tiny.codegen.opt.opts import KernelOptError
from tiny.codegen.opt.packing import SQUARE
from tiny.codegen.opt.units import UnitUse
from tiny.codegen.opt.weights import weight_of
from tiny.dtype import DType, dtypes
from tiny.uop.ops import GroupOp, Ops, UOp
from tiny.uop.target import Target

__all__ = ["LONG_SUM", "SHORT", "has_lanes_later", "is_rolled", "rolled_epilogue", "unit_epilogue"]

LONG = 240  # instructions of an epilogue for all vectors of a tile, from which on it is rolled
SHORT = 6  # instructions for an element, that cost little where squares are transposed
LONG_SUM = 128  # steps, at least: to store and load one takes as long as a few of them
STEPS_ACROSS = 512  # the same where they are transposed
MOST = 900  # the same for any sum: what follows stands in the program once then
ACROSS = 16  # instructions to transpose a vector of a tile, about
ABREAST = 4  # vectors that a loop of an epilogue works on, each of which takes long by itself
SCALARS = 8  # sums that are no vectors, from which on an epilogue with lanes pays
ROUNDING = 6  # instructions to convert to a narrow float


class Tiling(Protocol):
    """What is asked of a tiling: its kernel, and to make memory and loops."""

    ast: UOp
    masks: Mapping[UOp, int]
    split: Split
    staged: Mapping[UOp, int | None]
    target: Target
    is_in_place: bool
    more_loops: list[Loop]
    axes: dict[int, TiledAxis]
    values: dict[UOp, UOp]
    outer: dict[int, UOp]
    inner: dict[int, UOp]
    new: dict[UOp, UOp]
    unit: UnitUse | None

    def memory(self, shape: Sequence[int], dtype: DType, shared: bool) -> UOp:
        """A new piece of scratch memory."""

    def filled(self, memory: UOp, at: Sequence[UOp], value: UOp, own: Sequence[UOp]) -> UOp:
        """The STAGE that fills memory over its own leaves."""

    def fill_axis(
        self, size: int, copies: int, lanes: int, is_row: bool
    ) -> tuple[UOp, list[UOp], Loop | None]:
        """One axis of a fill: its index, its leaves, and its loop."""


class _Side(NamedTuple):
    """An axis of a tile: `inner` is the place in the tile, `outer` where the tile begins."""

    number: int
    extent: int
    padded: int
    inner: UOp
    outer: UOp


def rolled_epilogue(t: Tiling) -> UOp | None:
    """The SINK of a kernel whose sums all stores go over; None where they are better left alone."""
    found = _epilogue(t)
    if found is None:
        return None
    nodes, sums = found
    mask = t.masks[t.ast.src[0]]
    axes = t.split.axes
    numbers = [k for k in range(len(t.axes)) if mask >> k & 1 and axes[k].step > 1]
    sides = [_side(t, k) for k in numbers]
    lane = next((k for k in numbers if axes[k].lanes > 1), -1)
    near = _near(t, numbers)
    into = lane if lane in near or not near else near[0]
    if into < 0 or not _has_one_tile(t, numbers):
        return None
    if not _pays(t, nodes, sums, numbers, lane, into, bool(near)):
        return None
    # what lies next to each other in scratch: the lanes that the sums have, or will have
    first = lane if lane >= 0 else into
    sides.sort(key=lambda s: s.number == first)
    rest = [s for s in sides if s.number != into]
    last = next(s for s in sides if s.number == into)
    # indices are no vectors: what is computed with tells how many lanes there are
    widest = max([n.dtype.itemsize for n in (*nodes, *sums) if n.dtype.kind != "x"], default=4)
    width = max(1, t.target.vector_bytes // max(4, widest))
    boxes = [_kept(t, q, sides) for q in sums]
    if into != first:
        rest.sort(key=lambda s: s.number == lane)
        if sum(map(_instructions, nodes)) > SHORT:
            boxes = _transposed(t, boxes, sides, [*rest, last], min(width, SQUARE))
            sides = [*rest, last]
        else:
            width = min(width, SQUARE)
    is_square = sides[-1] is not last
    late: dict[UOp, UOp] = {}
    at: dict[int, UOp] = {}
    abreast = 1 if is_square else ABREAST
    for s in (last, *reversed(rest)):
        lanes = _lanes(s.extent, width) if s is last else 1
        copies = min(width, s.extent) if is_square and s.number == lane else 1
        is_row = copies > 1
        if not is_row:
            count = 1 if s.extent % lanes else s.extent // lanes
            copies = max(n for n in range(1, abreast + 1) if count % n == 0)
            abreast //= copies
        at[s.number], _, loop = t.fill_axis(s.extent, copies, lanes, is_row)
        late[axes[s.number].range] = s.outer + at[s.number]
        t.more_loops += [] if loop is None else [loop]
    readers = [at[s.number] for s in sides]
    for q, box in zip(sums, boxes, strict=True):
        late[q] = UOp(Ops.INDEX, box.dtype, (box, *readers))
    return _made_late(t, nodes, late)


def unit_epilogue(t: Tiling) -> UOp:
    """The SINK of a kernel whose sums a unit has in registers of its own: they go to scratch.

    There is a register for each of its tiles. KernelOptError if not all stores go over the sums.
    """
    found = _epilogue(t)
    assert t.unit is not None
    use, unit = t.unit, t.unit.unit
    mask = t.masks[t.ast.src[0]]
    if found is None or len(found[1]) > 1 or not (mask >> use.m & 1 and mask >> use.n & 1):
        raise KernelOptError("there is more in the kernel than what becomes of the unit's sums")
    nodes, (total,) = found
    late: dict[UOp, UOp] = {}
    tiles: list[UOp] = []
    inner: list[UOp] = []
    at: list[UOp] = []
    own: list[UOp] = []
    sizes: list[int] = []
    for number, count in ((use.m, unit.m), (use.n, unit.n)):
        axis = t.split.axes[number]
        copies = axis.step // count
        tile, _, loop = t.fill_axis(copies, 1, 1, is_row=False)
        lanes = count if number == use.n else 1
        place, _, inner_loop = t.fill_axis(count, 1, lanes, is_row=False)
        t.more_loops += [x for x in (loop, inner_loop) if x is not None]
        late[axis.range] = t.outer[number] + tile * count + place
        tiles.append(tile)
        inner.append(place)
        sizes.append(copies)
        leaf = t.axes[number].tile
        at.append(UOp.const(0, dtypes.index) if leaf is None else leaf)
        own += [] if leaf is None else [leaf]
    q = t.new[total]
    register = q.src[0].src[2]
    memory = t.memory([*sizes, unit.m * unit.n], q.dtype, shared=False)
    box = t.filled(memory, [*at, register], q, [*own, register])
    late[total] = UOp(Ops.INDEX, q.dtype, (box, *tiles, inner[0] * unit.n + inner[1]))
    return _made_late(t, nodes, late)


def _made_late(t: Tiling, nodes: Mapping[UOp, None], late: dict[UOp, UOp]) -> UOp:
    """The stores, with what else they are made of."""
    for node in t.ast.postorder():
        if node in nodes and node not in late:
            if node in t.values:
                late[node] = t.values[node]
            else:
                src = tuple([late[s] for s in node.src])
                late[node] = node if src == node.src else node.replace(src=src)
    return t.ast.replace(src=tuple([late[s] for s in t.ast.src]))


def _epilogue(t: Tiling) -> tuple[dict[UOp, None], list[UOp]] | None:
    """What stores are made of beside sums, and the sums; None if it has no such simple form."""
    masks = {t.masks[s] for s in t.ast.src}
    if len(masks) > 1 or t.is_in_place:
        return None
    nodes: dict[UOp, None] = {}
    sums: dict[UOp, None] = {}
    stack = list(t.ast.src)
    while stack:
        node = stack.pop()
        if node.op is Ops.REDUCE:
            if t.masks[node] not in masks:
                return None  # of a row
            sums[node] = None
        elif node not in nodes:
            if node.op is Ops.STAGE or node in t.staged:
                return None
            nodes[node] = None
            stack += node.src
    return (nodes, list(sums)) if sums else None


def _side(t: Tiling, number: int) -> _Side:
    axis = t.split.axes[number]
    extent = axis.step if axis.size is None else min(axis.step, axis.size)
    return _Side(number, extent, axis.step, t.inner[number], t.outer[number])


def _near(t: Tiling, numbers: list[int]) -> list[int]:
    """The axes along which neighbours are stored next to each other, by all stores."""
    found = set(numbers)
    for store in t.ast.src:
        memory, *at = store.src[0].src
        form = dict(linear_form(simplify(flat_offset(at, memory.arg.shape))).terms)
        found &= {k for k in numbers if form.get(t.split.axes[k].range) == 1}
    return [k for k in numbers if k in found]


def _has_one_tile(t: Tiling, numbers: list[int]) -> bool:
    """Whether nothing is left over of an axis, which would need a tile of another size."""
    for k in numbers:
        axis = t.split.axes[k]
        size = axis.size
        if not t.axes[k].shifts and (size is None or (size > axis.step and size % axis.step)):
            return False
    return True


def _pays(
    t: Tiling,
    nodes: dict[UOp, None],
    sums: list[UOp],
    numbers: list[int],
    lane: int,
    into: int,
    is_near: bool,
) -> bool:
    """Whether loops of its own are worth it: less to compile, or vectors instead of scalars."""
    axes = t.split.axes
    work = sum(map(_instructions, nodes))
    copies = math.prod([copies_of(axes[k], t.split.vector_lanes[k]) for k in numbers])
    steps = 1
    for r in sums[0].src[1:]:
        axis = next(a for a in axes if a.range is r)
        steps *= -(-int(r.src[0].vmax) // axis.lanes)
    if lane < 0:
        return has_lanes_later(steps, copies, work * copies)
    if lane == into and not is_near:
        work += axes[lane].lanes
    return is_rolled(steps, (work + 1) * copies, 0 if lane == into else copies)


def has_lanes_later(steps: int, copies: int, instructions: float) -> bool:
    """Whether sums of a tile, which are no vectors, go to memory to become some."""
    if copies < SCALARS or instructions <= SHORT * copies:
        return False
    return steps * copies >= LONG_SUM or instructions >= LONG


def is_rolled(steps: int, instructions: float, across: float) -> bool:
    """Whether an epilogue of so many instructions has loops of its own, after a sum of such length.

    `across` are the vectors of it that are stored across the lanes of the sums.
    """
    if instructions + ACROSS * across >= MOST:
        return True
    return steps >= STEPS_ACROSS if across else steps >= LONG_SUM and instructions >= LONG


def _instructions(node: UOp) -> int:
    if node.dtype.kind == "x" or node.dtype is dtypes.void:
        return 0
    if node.op is Ops.CAST:
        return ROUNDING if node.dtype.kind in "f8" and node.dtype.itemsize < 4 else 1
    return weight_of(node) if node.op in GroupOp.ALU else 0


def _lanes(extent: int, width: int) -> int:
    return 1 << (min(extent, width) - 1).bit_length()


def _kept(t: Tiling, q: UOp, sides: list[_Side]) -> UOp:
    """The STAGE that keeps the sums of a tile."""
    memory = t.memory([s.padded for s in sides], q.dtype, shared=False)
    own = [leaf for s in sides for leaf in (t.axes[s.number].tile, t.axes[s.number].lane)]
    return t.filled(memory, [s.inner for s in sides], t.new[q], [x for x in own if x is not None])


def _transposed(
    t: Tiling, boxes: list[UOp], sides: list[_Side], order: list[_Side], width: int
) -> list[UOp]:
    """STAGEs with the same in another order: its last side gets the lanes, that of before rows."""
    found = []
    for box in boxes:
        memory = t.memory([s.padded for s in order], box.dtype, shared=False)
        at: dict[int, UOp] = {}
        own: list[UOp] = []
        for s in order:
            copies = min(width, s.extent) if s is sides[-1] else 1
            lanes = _lanes(s.extent, width) if s is order[-1] else 1
            at[s.number], leaves, loop = t.fill_axis(s.extent, copies, lanes, is_row=copies > 1)
            own += leaves
            t.more_loops += [] if loop is None else [loop]
        value = UOp(Ops.INDEX, box.dtype, (box, *[at[s.number] for s in sides]))
        found.append(t.filled(memory, [at[s.number] for s in order], value, own))
    return found
