"""Where a value is computed: the rules of fusion, all of them, and their limits.

Bytes stored and loaded again are weighed against work and loads repeated; SCHEDULE.md has the
measurements behind each number. Whatever is decided has a reason in words, with the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from tiny.schedule.costs import Costs
from tiny.schedule.graph import (
    MEMORY,
    PICK,
    REDUCE,
    SCALAR,
    SCAN,
    TRANSFER,
    VERSION,
    VIEW,
    TensorGraph,
    is_ordered,
)
from tiny.schedule.nests import Kernel, Loops, Request, loop_of, repeated_over
from tiny.uop.target import Target

MOST_REQUESTS = 16
MOST_CELLS = 1000  # values computed in one kernel
MOST_PICKS = 16  # the address of each is an expression of those inside of it
OPERATIONS_A_BYTE = 8
LEAST_ITEMSIZE = 4  # a mask of bytes is not worth a kernel of its own because it is small
FREE_WORK = 64  # a value that loads nothing is computed again below this work
# An operand of a contraction may do this much work for each use; more where it is elementwise, as
# that is done once an element when the operand is packed.
PROLOGUE_WORK, PACKED_WORK = 16, 64
# An operand of a product that packs nothing (of a matrix with one vector, say) is computed for each
# use: where it is made of several loads, and used often, storing it saves loads and work.
UNPACKED_LOADS, UNPACKED_COUNT = 2, 32
BROADCAST_WORK, BROADCAST_COUNT = 16, 8  # more work, repeated more often, in an inner loop
LOOSE_RATIO = 2.5  # points evaluated for each element needed; gated points count in part
REDUCE_RATIO = 1.25
NESTED_REDUCE = 16  # a reduction this long may run in the loop of another, or more than once
ROW_NBYTES = 256 << 10  # a row this long stays in the cache between the loops over it
SERIAL_POINTS = 1 << 16  # a kernel of fewer points needs no second thread
LOCAL_WORK = 8  # operations saved for each element by keeping it, rather than repeating them
# Whether values are kept at all: code generation must know STAGE.
LOCAL_STAGES = True
# A row is kept around or below a contraction if it is wanted several times, as scores are, or if
# storing all rows takes more than this part of L2. At least so many of them are computed side by
# side then, and go through all operands again. Those come from behind L2 where they are larger, so
# they may take so many times the room that is left to what is kept.
LEAST_STORED = 0.5
TILED_ROWS = 4
LARGER = 8
# What is made by a contraction and is larger is made again in each kernel that wants it, if it can
# be kept there for a row: memory then does not grow as scores do. Only where its rows are so many
# times as long as the sums: operands are small then, and sums cheap beside what storing them takes.
HUGE_NBYTES = 128 << 20
HUGE_COLUMNS = 8
# The steps of a reduction's own loop are not shared among threads. Until they are, a long one over
# rows that have reductions of their own stores what it adds up, one value a row.
THREADED_REDUCTIONS = False


class Where(IntEnum):
    """What becomes of a value."""

    HERE = 0  # computed at each request
    LOCAL = 1  # kept in memory of the thread, for each step of the loops of a scope
    GLOBAL = 2  # stored by a kernel of its own


class Verdict(NamedTuple):
    """Where a value is computed, and why; of a LOCAL its scope, and which dimensions it keeps."""

    where: Where
    reason: str = ""
    scope: int = 0
    dims: tuple[int, ...] = ()


HERE = Verdict(Where.HERE)


class Placement:
    """The decisions of one walk over a graph."""

    def __init__(
        self, g: TensorGraph, costs: Costs, loops: Loops, targets: dict[str, Target]
    ) -> None:
        self.g = g
        self.costs = costs
        self.loops = loops
        self.targets = targets
        self.origin, self.is_load = self._origins()

    def _origins(self) -> tuple[list[int], list[bool]]:
        """By cell: the cell below its movement operations, and whether that is in memory."""
        g = self.g
        origin = list(range(len(g)))
        is_load = [False] * len(g)
        for i, kind in enumerate(g.kind):
            if kind in (MEMORY, VERSION, TRANSFER) or (i in g.stored and not g.fill[i]):
                is_load[i] = True
            elif kind == VIEW:
                s = g.src[i][0]
                origin[i], is_load[i] = origin[s], is_load[s]
        return origin, is_load

    def decide(self, i: int, requests: Sequence[Request]) -> Verdict:
        """Where cell i, wanted by these requests, is computed.

        Of a REDUCE or LOCAL that is to be computed ahead of inner loops the scope is noted in the
        kernel: those of one kernel must lie in each other, or no order of loops does it.
        """
        g, costs = self.g, self.costs
        for r in requests:
            limit = self.over_a_limit(i, r.kernel)
            if limit:
                return Verdict(Where.GLOBAL, limit)
        work, nbytes = costs.work[i], costs.nbytes[i]
        if costs.foot[i] > 1 and any(is_ordered(g.nodes[r.kernel.root]) for r in requests):
            return Verdict(Where.GLOBAL, "reduction for a kernel of one thread")
        if g.kind[i] == SCAN:
            reason = self.why_scan_apart(i, requests)
            return Verdict(Where.GLOBAL, reason) if reason else HERE
        is_scanned = any(r.kernel.scanned for r in requests)
        if is_scanned and costs.foot[i] > 1:
            return Verdict(Where.GLOBAL, "reduction for a kernel whose steps go in order")
        if g.kind[i] == PICK and costs.picks[i] % MOST_PICKS == 0:
            return Verdict(Where.GLOBAL, f"{MOST_PICKS} reads at computed places in one another")
        if nbytes == 0 and work <= FREE_WORK:
            return HERE
        wanted = len(requests)
        points = 0.0
        reused = False
        for r in requests:
            missing = repeated_over(r)
            points += r.kernel.product(r.mask | missing) * r.fraction
            reused = reused or missing > 0
        ratio = points / g.numel[i]
        itemsize = max(g.nodes[i].dtype.itemsize, LEAST_ITEMSIZE)
        again = (wanted - 1) * nbytes
        bound = itemsize * (1 + wanted)
        cheap = False
        reason = ""
        if wanted == 1 and not reused and g.kind[i] == REDUCE and ratio <= REDUCE_RATIO:
            reason = self.why_reduce_apart(i, requests[0])
            cheap = not reason
        elif wanted == 1 and not reused and g.kind[i] != REDUCE and ratio <= LOOSE_RATIO:
            reason = self.why_broadcast_apart(i, requests[0])
            cheap = not reason
        elif wanted <= MOST_REQUESTS and costs.foot[i] <= NESTED_REDUCE:
            if reused:
                most = PACKED_WORK if costs.foot[i] == 1 else PROLOGUE_WORK
                cheap = work <= most and again <= bound
                if cheap and (reason := self.why_unpacked(i, requests, ratio)):
                    return Verdict(Where.GLOBAL, reason)
            else:
                cheap = again + (max(ratio, wanted) - 1) * work / OPERATIONS_A_BYTE <= bound
        if cheap and (work <= PROLOGUE_WORK if reused else (ratio - 1) * work <= LOCAL_WORK):
            return HERE
        kept = Verdict(Where.GLOBAL)
        if LOCAL_STAGES and not is_scanned:
            kept = self.keep(i, requests, points, cheap)
            if kept.where is Where.LOCAL:
                return kept
        if cheap:
            return HERE
        if not reason:
            reason = self.why_stored(i, requests, points, reused)
        return Verdict(Where.GLOBAL, f"{reason} ({kept.reason})" if kept.reason else reason)

    def is_huge(self, i: int) -> bool:
        """Whether a value made by a contraction is better computed again than stored."""
        g, costs = self.g, self.costs
        if not costs.contracts[i] or g.numel[i] * g.nodes[i].dtype.itemsize <= HUGE_NBYTES:
            return False
        columns = next((size for size in reversed(g.shape[i]) if size > 1), 1)
        return columns >= HUGE_COLUMNS * costs.foot[i]

    def why_stored(self, i: int, requests: Sequence[Request], points: float, reused: bool) -> str:
        """The reason for storing a value that several want, or a loop wants again: the numbers."""
        g, costs = self.g, self.costs
        n, wanted = g.numel[i], len(requests)
        operations = max(points - n, (wanted - 1) * n) * costs.work[i]
        loaded = (wanted - 1) * costs.nbytes[i] * n
        stored = g.nodes[i].dtype.itemsize * n
        numbers = f"computing again {amount(operations, 'op')}"
        if loaded:
            numbers += f" and loading {amount(loaded, 'B')}"
        numbers += f" against {amount(stored, 'B')} stored"
        what = "reduction" if g.kind[i] == REDUCE else "value"
        if reused:
            return f"{what} wanted again in each step of an outer loop, {numbers}"
        kernels = len({r.kernel for r in requests})
        by = f"{kernels} kernels" if kernels > 1 else "one kernel"
        return f"{what} wanted by {by} at {wanted} indices, {numbers}"

    def over_a_limit(self, i: int, kernel: Kernel) -> str:
        """Why this cell's sources can not be part of a kernel."""
        if kernel.cells >= MOST_CELLS:
            return f"its kernel has {MOST_CELLS} operations"
        new = 0
        for s in self.g.src[i]:
            o = self.origin[s]
            if o not in kernel.buffers and o not in kernel.pending and self.g.kind[o] != SCALAR:
                new += 1
        if new > 1 and len(kernel.buffers) + len(kernel.pending) - 1 + new > kernel.most_buffers:
            return f"its kernel reads {kernel.most_buffers} buffers"
        return ""

    def why_scan_apart(self, i: int, requests: Sequence[Request]) -> str:
        """Why a SCAN is not computed as its kernel goes along; "" if it is.

        Its loop has to be one over what is stored, from either end, inside of all others; and
        nothing else may have loops there.
        """
        axis, r = self.g.nodes[i].arg.axes[0], requests[0]
        kernel = r.kernel
        at, loop = r.index[axis], loop_of(r.index[axis])
        others = self.loops.of_all([e for d, e in enumerate(r.index) if d != axis])
        mine = self.loops.of(at)
        size = self.g.nodes[i].shape[axis]
        if len(requests) > 1:
            return f"scan wanted at {len(requests)} indices"
        if r.clauses or is_ordered(self.g.nodes[kernel.root]):
            return "scan wanted here and there"
        if kernel.reduces or len(kernel.nests) > 1:
            return "scan in a kernel with other loops"
        if loop is None and (mine or self.g.shape[i][axis] > 1):
            return "scan wanted in another order"
        if mine & others or mine & ~kernel.output_loops or mine | others != kernel.output_loops:
            return "scan wanted in other loops than those of what is stored"
        if loop is not None:
            is_backwards = at is not loop
            if is_backwards and not (isinstance(size, int) and loop.vmax + 1 == size):
                return "scan wanted from the end, and not all of it"
            if kernel.scanned.get(loop, is_backwards) != is_backwards or any(
                other is not loop for other in kernel.scanned
            ):
                return "scans in two directions"
        return ""

    # ------------------------------------------------------------ wanted once

    def why_reduce_apart(self, i: int, r: Request) -> str:
        """Why a reduction wanted once is not computed inside the kernel that wants it."""
        kernel, mask = r.kernel, r.mask
        foot = self.costs.foot[i]
        if mask in kernel.nests:
            kept = mask & ~kernel.output_loops
            if self.costs.contracts[i] and kept.bit_count() > 1:  # rows are tiled, planes are not
                return f"contraction over {foot} elements of what is kept in several dimensions"
            return ""
        nest = kernel.output_loops
        inner = mask & ~nest
        if inner:
            nest = kernel.siblings[inner.bit_length() - 1]
            if foot <= NESTED_REDUCE or i in kernel.continued:
                return ""
            if self.costs.contracts[i]:
                return f"contraction over {foot} elements inside the loop of another reduction"
            rows, threads = kernel.product(kernel.output_loops), self.targets[kernel.device].threads
            points = kernel.product(mask) * foot
            if rows < threads and points > SERIAL_POINTS and not THREADED_REDUCTIONS:
                return f"{amount(points, 'op')} inside the loop of a reduction, for one thread"
            if not nest & ~mask:
                return ""
        row = kernel.product(nest & ~mask) * self.g.nodes[kernel.root].dtype.itemsize
        if self.costs.contracts[i] and not self.costs.is_contraction[i]:
            # what it adds up is kept, or stored: sums below do not run again in each of its steps
            foot = self.g.numel[self.g.src[i][0]] // max(self.g.numel[i], 1)
        row = max(row, 4 * foot)
        if row > ROW_NBYTES:
            return f"reduction over a row of {amount(row, 'B')}, which leaves the cache"
        return self.why_not_ahead(kernel, mask, "reduction", row // 4)

    def why_unpacked(self, i: int, requests: Sequence[Request], times: float) -> str:
        """Why an operand of a sum of products, all of whose users compute it, is stored."""
        kernel = requests[0].kernel
        loads = self.costs.nbytes[i] // self.g.nodes[i].dtype.itemsize
        if loads < UNPACKED_LOADS or self.costs.work[i] < 2 or times < UNPACKED_COUNT:
            return ""
        for r in requests:
            summed = r.mask & ~kernel.output_loops
            if r.kernel is not kernel or not summed or r.mask & kernel.contracting:
                return ""
        return f"{loads:.0f} loads for each of {times:.0f} uses in a product that packs nothing"

    def why_broadcast_apart(self, i: int, r: Request) -> str:
        """Why an elementwise value wanted once is not computed inside the kernel."""
        kernel, mask, work = r.kernel, r.mask, self.costs.work[i]
        missing = kernel.output_loops & ~mask
        # not where the innermost loop does not need it: there it is computed outside of that,
        # nor inside a reduction, whose loops are outside of it
        if not missing or not missing < mask <= kernel.output_loops or work <= BROADCAST_WORK:
            return ""
        if self.costs.foot[i] > NESTED_REDUCE:
            return self.why_reduce_apart(i, r)  # computed with the reduction, ahead of the others
        times = kernel.product(missing)
        if times < BROADCAST_COUNT:
            return ""
        return f"{work:.0f} operations repeated {times} times by a broadcast"

    def why_not_ahead(self, kernel: Kernel, mask: int, what: str, elements: int) -> str:
        """Why a value is not made once in each step of some loops, ahead of the loops inside."""
        rows = kernel.product(mask)
        if not mask:  # once for all: no loop is left that threads could share
            elements = max(elements, kernel.product(kernel.output_loops))
        if rows < self.targets[kernel.device].threads and elements > SERIAL_POINTS:
            return f"{what} of only {rows} rows"
        if not kernel.make_ahead(mask, kernel.planned):
            return f"{what} over other loops than one in the same kernel"
        return ""

    # ------------------------------------------------------------ kept for a row

    def keep(self, i: int, requests: Sequence[Request], points: float, cheap: bool) -> Verdict:
        """LOCAL if a value can be kept in memory of the thread; else GLOBAL, and why it can not.

        The dimensions at which all requests agree, by loops of the output, make the scope; the
        others are the box that is kept in each step of it.
        """
        g, kernel = self.g, requests[0].kernel
        if any(r.kernel is not kernel for r in requests):
            return Verdict(Where.GLOBAL)
        contracted = any(r.mask & kernel.contracting for r in requests) or self.costs.contracts[i]
        scope, dims, elements = 0, [], 1
        for d, e in enumerate(requests[0].index):
            mask = self.loops.of(e)
            if mask & ~kernel.output_loops or any(r.index[d] is not e for r in requests):
                if g.shape[i][d] > 1:
                    dims.append(d)
                    elements *= g.shape[i][d]
            elif e.vmin < 0 or e.vmax >= g.shape[i][d]:
                return Verdict(Where.GLOBAL, "wanted out of bounds")
            elif self.loops.named_in((e,)):
                return Verdict(Where.GLOBAL, "no row is kept at a place that may not be there")
            elif self.costs.varies(i, d):
                scope |= mask
        if not scope or not dims:
            return Verdict(Where.GLOBAL)
        if not contracted and any(size > 1 for size in g.shape[i][dims[-1] + 1 :]):
            # the loops of a scope are not vectorised, so its box would be filled against the grain
            return Verdict(Where.GLOBAL, "no columns are kept")
        filled = kernel.product(scope) * elements
        if cheap and (points / filled - 1) * self.costs.work[i] <= LOCAL_WORK:
            return Verdict(Where.GLOBAL)
        limit = self.targets[kernel.device].l2_bytes // 2
        box = elements * g.nodes[i].dtype.itemsize
        streamed = 4 * elements * self.costs.foot[i]
        if contracted:
            stored = g.numel[i] * g.nodes[i].dtype.itemsize
            box *= TILED_ROWS
            is_small = stored <= LEAST_STORED * self.targets[kernel.device].l2_bytes
            if is_small and len(requests) == 1:
                return Verdict(Where.GLOBAL, f"{amount(stored, 'B')} stored stay in the cache")
            streamed //= LARGER
        if box > ROW_NBYTES or kernel.kept_nbytes + box > limit:
            return Verdict(Where.GLOBAL, f"a row of {amount(box, 'B')} leaves the cache")
        if streamed > limit:
            return Verdict(Where.GLOBAL, f"{amount(streamed, 'B')} read for a row leave the cache")
        reason = self.why_not_ahead(kernel, scope, "row", elements)
        if reason:
            return Verdict(Where.GLOBAL, reason)
        kernel.kept_nbytes += box
        reason = (
            f"a row of {amount(box, 'B')} kept: {self.costs.work[i]:.0f} operations an element "
            f"once, not {points / filled:.2g} times"
        )
        return Verdict(Where.LOCAL, reason, scope, tuple(dims))


def amount(n: float, unit: str) -> str:
    """A number with its unit as a person reads it."""
    for prefix in ("", "k", "M", "G"):
        if n < 1000:
            return f"{n:.3g} {prefix}{unit}"
        n /= 1000
    return f"{n:.3g} T{unit}"
