"""A list of Opts for a kernel, by counting loads, arithmetic and registers of a loop body."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from tiny.codegen.lower.indices import flatten_indices, linear_form
from tiny.codegen.lower.tiled import axis_masks
from tiny.codegen.opt.kernel import Kernel
from tiny.codegen.opt.opts import KernelOptError, Opt, OptOps
from tiny.uop.ops import GroupOp, Ops, UOp

__all__ = ["choose_opts"]

# What an operation costs, in simple instructions; 1 for all others.
_WEIGHTS = {
    Ops.EXP2: 20,
    Ops.LOG2: 24,
    Ops.SIN: 60,
    Ops.THREEFRY: 100,
    Ops.FDIV: 5,
    Ops.RECIPROCAL: 5,
    Ops.SQRT: 6,
    Ops.FLOORDIV: 20,
    Ops.FLOORMOD: 20,
    Ops.CDIV: 20,
    Ops.CMOD: 20,
}
ROWS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
VECTORS = (1, 2, 3, 4)
LATENCY = 4.0  # cycles until a sum can be added to again
PER_CYCLE = 2.0  # loads, and also arithmetic instructions
SMALL_BODY = 96  # instructions that unrolling may make of a body
RUNS = 100  # how often a kernel is run at least, for each time that it is compiled
CYCLE = 3e-10  # seconds
COMPILING = 2e-5  # seconds to compile an instruction


@dataclass
class _Access:
    """A load or store: how far apart neighbours along each axis are, None if not evenly."""

    strides: dict[int, int | None]
    mask: int


@dataclass(eq=False)
class _Nest:
    """The loops of reductions over the same ranges, or of stores if `reduced` is 0."""

    mask: int  # all axes of its body
    reduced: int  # those that it reduces over
    loads: list[_Access]
    stores: list[_Access]
    work: float  # instructions per point
    sums: int  # how many reductions


def choose_opts(kernel: Kernel) -> tuple[Opt, ...]:
    """Opts for each loop nest, the one with most work first; the kernel is left as it is."""
    kernel = kernel.copy()
    points = lambda nest: kernel.points(nest.mask) * nest.work  # noqa: E731  # one use
    nests = sorted(_nests(kernel), key=points, reverse=True)
    for nest in nests:
        if all(kernel.axes[k].lanes == 1 for k in _axes(nest.mask)):
            _tile(kernel, nests, nest)
        if nest.reduced:
            _unroll(kernel, nest)
    return kernel.applied_opts


# ---------------------------------------------------------------- what a kernel does


def _nests(kernel: Kernel) -> list[_Nest]:
    """The loop nests of a kernel, with what their bodies load and store."""
    sink = flatten_indices(kernel.ast)
    order = sink.postorder()
    numbers = {a.range.arg.axis: k for k, a in enumerate(kernel.axes)}
    masks = axis_masks(order, {n: 1 << numbers[n.arg.axis] for n in order if n.op is Ops.RANGE})
    targets = {n.src[0] for n in order if n.op is Ops.STORE}
    reduced_axes = sum(1 << k for k, a in enumerate(kernel.axes) if a.is_reduce)
    nests: dict[int, _Nest] = {}
    for node in order:
        if node.op is Ops.REDUCE:
            bits = masks[node.src[0]]
            reduced = 0
            for r in node.src[1:]:
                reduced |= masks[r]
            nest = nests.setdefault(reduced, _Nest(0, reduced, [], [], 0.0, 0))
            nest.mask |= bits | reduced
            nest.sums += 1
            value = node.src[0]
            if node.arg.op is Ops.ADD and value.op is Ops.WHERE:
                nest.work -= 1  # a mask costs nothing
                value = value.src[1]
            if node.arg.op is not Ops.ADD or value.op is not Ops.MUL:
                nest.work += 1  # else it is one instruction with the product
        elif node.op is Ops.STORE:
            nest = nests.setdefault(0, _Nest(0, 0, [], [], 0.0, 0))
            nest.mask |= masks[node]
    for node in order:
        mask = masks[node]
        nest_of = max(
            (
                n
                for n in nests.values()
                if n.reduced & mask or not (n.reduced or mask & reduced_axes)
            ),
            key=lambda n: n.reduced.bit_count(),
            default=None,
        )
        if nest_of is None:
            continue
        if node.op is Ops.INDEX and node not in targets:
            nest_of.loads.append(_access(node, masks, numbers))
        elif node.op in GroupOp.ALU and node.dtype.kind not in "xb":
            nest_of.work += _WEIGHTS.get(node.op, 1)
    for target in targets:
        for nest in nests.values():
            if nest.mask & ~nest.reduced & masks[target] or not nest.reduced:
                nest.stores.append(_access(target, masks, numbers))
    return list(nests.values())


def _access(index: UOp, masks: dict[UOp, int], numbers: dict[int, int]) -> _Access:
    strides: dict[int, int | None] = {}
    for term, factor in linear_form(index.src[1]).terms:
        if term.op is Ops.RANGE:
            axis = numbers[term.arg.axis]
            if axis not in strides:
                strides[axis] = factor
        else:
            for axis in numbers.values():
                if masks[term] >> axis & 1:
                    strides[axis] = None
    return _Access(strides, masks[index])


# ---------------------------------------------------------------- tiles


def _tile(kernel: Kernel, nests: list[_Nest], nest: _Nest) -> None:
    """Apply the cheapest tile: lanes and rows along one axis first, then rows along another."""
    lanes_of = {}
    for lane in _axes(nest.mask):
        counts = _lane_counts(kernel, lane)
        if counts and kernel.allows(Opt(OptOps.VEC, lane, counts[0])):
            lanes_of[lane] = counts
    # what nests cost that will have lanes of their own
    alone = [0.0 if n is nest else _cost_alone(kernel, n, nest.mask) for n in nests]
    prices = [
        _Price(kernel, nests, nest, alone, lane, lanes)
        for lane, counts in lanes_of.items()
        for lanes in counts
    ]
    best = _Price(kernel, nests, nest, alone, -1, 1).tile(())
    for price in prices:
        best = min(best, price.tile(()), key=_tile_cost)
        for row in _row_axes(kernel, nest, price.lane):
            for count in _row_counts(kernel, row):
                if not price.fits(count):
                    break
                best = min(best, price.tile(((row, count),)), key=_tile_cost)
    if best.rows:
        price = _Price(kernel, nests, nest, alone, best.lane, best.lanes)
        ((first, _),) = best.rows
        for second in _row_axes(kernel, nest, best.lane):
            for a in _row_counts(kernel, first) if second != first else ():
                for b in _row_counts(kernel, second):
                    if not price.fits(a * b):
                        break
                    best = min(best, price.tile(((first, a), (second, b))), key=_tile_cost)
    if best.lane >= 0:
        _try(kernel, Opt(OptOps.VEC, best.lane, best.lanes))
    for axis, count in best.rows:
        _try(kernel, Opt(OptOps.UPCAST, axis, count))


def _try(kernel: Kernel, opt: Opt) -> bool:
    try:
        kernel.apply_opt(opt)
    except KernelOptError:
        return False
    return True


def _axes(mask: int) -> list[int]:
    return [k for k in range(mask.bit_length()) if mask >> k & 1]


def _row_axes(kernel: Kernel, nest: _Nest, lane: int) -> list[int]:
    """Output axes along which neighbours use something that is loaded once for them."""
    if not nest.reduced:
        return []
    return [
        k
        for k in _axes(nest.mask & ~nest.reduced)
        if k != lane and any(not load.mask >> k & 1 for load in nest.loads)
    ]


def _row_counts(kernel: Kernel, number: int) -> list[int]:
    size = kernel.axes[number].size
    if size is None or kernel.axes[number].step > 1:
        return []
    return [n for n in ROWS if n <= size and not (kernel.is_in_place and size % n)]


def _lane_counts(kernel: Kernel, number: int) -> list[int]:
    """Lanes that an axis can have: whole vectors, or a part of one that wastes nothing."""
    size = kernel.axes[number].size
    if size is None or kernel.axes[number].step > 1:
        return []
    full = min(kernel.vector_lanes(number), 16)
    counts = [v * full for v in VECTORS]
    counts += [n for n in range(2, full) if size % n == 0 or n & (n - 1) == 0]
    must_divide = kernel.axes[number].is_reduce or kernel.is_in_place
    return [n for n in counts if n <= size and not (must_divide and size % n)]


@dataclass(frozen=True)
class _Tile:
    """A choice for a nest: lanes along an axis, rows along others, and what a point costs."""

    lane: int
    lanes: int
    rows: tuple[tuple[int, int], ...]  # (axis, how many)
    cost: float


_tile_cost = attrgetter("cost")


class _Body:
    """A nest's loop body with given lanes, priced for any rows."""

    def __init__(self, kernel: Kernel, nest: _Nest, lane: int, lanes: int) -> None:
        self.mask = nest.mask
        self.lane = lane if lane >= 0 and nest.mask >> lane & 1 else -1
        self.lanes = lanes if self.lane >= 0 else 1
        full = min(kernel.vector_lanes(lane), 16) if self.lane >= 0 else 1
        self.vectors = -(-self.lanes // full)
        # how many accesses a vector takes: 10 lanes are 8 and 2, put together
        self.pieces = 1 if self.lanes % full == 0 or self.lanes.bit_count() == 1 else 2
        self.sums, self.work = nest.sums, nest.work
        self.loads = [(self._instructions(a), a.mask) for a in nest.loads]
        self.stores = [(self._instructions(a), a.mask) for a in nest.stores]
        self.points = kernel.points(nest.mask)
        self.inner = kernel.points(nest.reduced)
        self.is_reduce = nest.reduced != 0
        self.horizontal = 0.0  # instructions to add up the lanes of a row in the end
        if self.lane >= 0 and nest.reduced >> lane & 1:
            self.horizontal = (lanes / self.vectors + self.vectors) * nest.sums

    def _instructions(self, access: _Access) -> float:
        """To load or store all lanes of one row."""
        if self.lane < 0 or not access.mask >> self.lane & 1:
            return 1.0
        stride = access.strides.get(self.lane, 0)
        if stride in (1, -1):
            return self.vectors * self.pieces
        return 4.0 * self.lanes  # one by one, and put together

    def cost(self, along: tuple[tuple[int, int], ...], waste: float) -> float:
        """Seconds to compile it and to run it, with rows along these axes.

        It takes the cycles of its loads or of its arithmetic, whichever are more, and some for
        the loop itself. `waste` times as many points are computed as there are.
        """
        rows = 1
        for axis, n in along:
            if self.mask >> axis & 1:
                rows *= n
        loads, stores = self._count(self.loads, along), self._count(self.stores, along)
        copies = rows * self.vectors
        work = self.work * copies
        cycles = max(loads, work) / PER_CYCLE
        # lanes that are loaded or stored one by one take more of a compiler's time
        code = 2 * (loads + stores) + work
        if self.is_reduce:
            if copies * self.sums < 8 and self.inner > 4:
                cycles = max(cycles, LATENCY)
            added = self.horizontal * rows
            stores = (stores + added * self.lanes) / self.inner
            code += 2 * added
        cycles += stores + 0.5 + 0.06 * (loads + copies)
        bodies = self.points * waste / (rows * self.lanes)
        return RUNS * CYCLE * bodies * cycles + COMPILING * code

    @staticmethod
    def _count(accesses: list[tuple[float, int]], along: tuple[tuple[int, int], ...]) -> float:
        total = 0.0
        for count, mask in accesses:
            for axis, n in along:
                if mask >> axis & 1:
                    count *= n
            total += count
        return total


def _cost_alone(kernel: Kernel, nest: _Nest, taken: int) -> float:
    """The cost of a nest with the best lanes along an axis that is not taken."""
    return min(
        _Body(kernel, nest, lane, lanes).cost((), 1.0)
        for lane in [-1, *_axes(nest.mask & ~taken)]
        for lanes in (_lane_counts(kernel, lane) if lane >= 0 else [1])
    )


class _Price:
    """The cost of a kernel for tiles of one nest with given lanes, for any rows.

    Lanes and rows of outputs are those of all nests.
    """

    def __init__(
        self,
        kernel: Kernel,
        nests: list[_Nest],
        nest: _Nest,
        alone: list[float],
        lane: int,
        lanes: int,
    ) -> None:
        self.lane, self.lanes = lane, lanes
        self.main = _Body(kernel, nest, lane, lanes)
        self.bodies = [self.main]
        self.others = 0.0
        for other, cost in zip(nests, alone, strict=True):
            if other is not nest and (lane < 0 or other.mask >> lane & 1):
                self.bodies.append(_Body(kernel, other, lane, lanes))
            elif other is not nest:
                self.others += cost
        self.sizes = [a.range.src[0].vmax for a in kernel.axes]
        self.registers = 32 if kernel.target.vector_bytes >= 64 else 16

    def fits(self, rows: int) -> bool:
        """Whether the sums, a row of lanes and a broadcast are in registers at once."""
        vectors = self.main.vectors
        return rows * vectors * self.main.sums + vectors + 4 <= self.registers

    def tile(self, along: tuple[tuple[int, int], ...]) -> _Tile:
        """The tile with rows along these axes."""
        waste = 1.0
        for axis, n in (*along, (self.lane, self.lanes)):
            if n > 1:
                size = self.sizes[axis]
                waste *= -(-size // n) * n / size * (1.0 if size % n == 0 else 1.02)
        cost = self.others
        for body in self.bodies:
            cost += body.cost(along, waste)
        return _Tile(self.lane, self.lanes, along, cost)


def _unroll(kernel: Kernel, nest: _Nest) -> None:
    """Unroll the innermost loops of a reduction: short ones whole, long ones a few steps."""
    copies = 1
    for number, axis in enumerate(kernel.axes):
        if nest.mask >> number & 1:
            copies *= max(1, axis.step // (kernel.vector_lanes(number) if axis.lanes > 1 else 1))
    body = copies * (nest.work + len(nest.loads))
    steps = 1
    for number in reversed(kernel.nest_order):
        axis = kernel.axes[number]
        if not nest.reduced >> number & 1 or axis.lanes > 1:
            continue
        if axis.size is None or axis.step > 1:
            return
        whole = axis.size <= 9 and steps * axis.size * body <= SMALL_BODY * 2
        divisors = [n for n in (4, 3, 2) if axis.size % n == 0 and steps * n * body <= SMALL_BODY]
        n = axis.size if whole else next(iter(divisors), 1)
        if n == 1 or not _try(kernel, Opt(OptOps.UNROLL, number - kernel.first_reduce, n)):
            return
        steps *= n
        if n < axis.size or steps > 4:
            return
