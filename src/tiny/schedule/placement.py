"""Where a value is computed: in the kernels that want it, or in one of its own that stores it.

The rules of fusion, and their limits. Bytes stored and loaded again are weighed against work and
loads repeated (SCHEDULE.md has the measurements behind each rule).
"""

from __future__ import annotations

from tiny.schedule.costs import Costs
from tiny.schedule.graph import MEMORY, REDUCE, SCALAR, TRANSFER, VERSION, VIEW, TensorGraph
from tiny.schedule.nests import Kernel, Request, is_reused

MOST_REQUESTS = 16
MOST_CELLS = 1000  # values computed in one kernel
MOST_SCOPES = 32
OPERATIONS_A_BYTE = 8
LEAST_ITEMSIZE = 4  # a mask of bytes is not worth a kernel of its own because it is small
FREE_WORK = 64  # a value that loads nothing is computed again below this work
PROLOGUE_WORK = 16  # an operand of a contraction may do this much work for each use
BROADCAST_WORK, BROADCAST_COUNT = 16, 8  # more work, repeated more often, in an inner loop
LOOSE_RATIO = 2.5  # points evaluated for each element needed; gated points count in part
REDUCE_RATIO = 1.25
NESTED_REDUCE = 16  # a reduction this long may run in the loop of another, or more than once
ROW_NBYTES = 256 << 10  # a row this long stays in the cache between the loops over it
FEWEST_ROWS = 4


class Placement:
    """The decisions of one walk over a graph."""

    def __init__(self, g: TensorGraph, costs: Costs) -> None:
        self.g = g
        self.costs = costs
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

    def why_stored(self, i: int, requests: list[Request]) -> str:
        """Why a cell is stored rather than computed where it is wanted; "" if it is not."""
        g, costs = self.g, self.costs
        for r in requests:
            reason = self.over_a_limit(i, r.kernel)
            if reason:
                return reason
        work, nbytes = costs.work[i], costs.nbytes[i]
        if nbytes == 0 and work <= FREE_WORK:
            return ""
        wanted = len(requests)
        points = 0.0
        reused = False
        for r in requests:
            points += r.kernel.product(r.mask) * r.fraction
            reused = reused or is_reused(r)
        ratio = points / g.numel[i]
        if wanted == 1 and not reused:
            r = requests[0]
            if g.kind[i] == REDUCE:
                if ratio <= REDUCE_RATIO:
                    return self.why_reduce_apart(i, r)
            elif ratio <= LOOSE_RATIO:
                return self.why_broadcast_apart(i, r)
        bound = max(g.nodes[i].dtype.itemsize, LEAST_ITEMSIZE) * (1 + wanted)
        again = (wanted - 1) * nbytes
        if wanted <= MOST_REQUESTS and costs.foot[i] <= NESTED_REDUCE:
            if reused:
                if work <= PROLOGUE_WORK and again <= bound:
                    return ""
            elif again + (max(ratio, wanted) - 1) * work / OPERATIONS_A_BYTE <= bound:
                return ""
        kernels = len({r.kernel for r in requests})
        if reused:
            return f"operand used again in a loop, {work:.0f} operations to compute it"
        if g.kind[i] == REDUCE:
            return f"reduction wanted by {kernels} kernels at {wanted} indices"
        return (
            f"wanted by {kernels} kernels at {wanted} indices, {ratio:.1f} times an element: "
            f"again {again:.0f} bytes and {work:.0f} operations against {bound} bytes stored"
        )

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

    def why_reduce_apart(self, i: int, r: Request) -> str:
        """Why a reduction wanted once is not computed inside the kernel that wants it."""
        kernel, mask = r.kernel, r.mask
        inner = mask & ~kernel.output_loops
        foot = self.costs.foot[i]
        if inner:
            if foot <= NESTED_REDUCE or i in kernel.continued:
                return ""
            return f"reduction of {foot} inside the loop of another"
        if mask == kernel.output_loops:
            return ""
        row = kernel.product(kernel.output_loops & ~mask) * self.g.nodes[kernel.root].dtype.itemsize
        rows = kernel.product(mask)
        if row > ROW_NBYTES or 4 * foot > ROW_NBYTES:
            return f"reduction whose row of {max(row, 4 * foot)} bytes leaves the cache"
        if rows < FEWEST_ROWS:
            return f"reduction of only {rows} rows, expanded"
        for s in kernel.scopes:
            if mask & s not in (mask, s):
                return "reduction over other loops than one in the same kernel"
        if mask not in kernel.scopes:
            if len(kernel.scopes) == MOST_SCOPES:
                return f"its kernel has {MOST_SCOPES} nested scopes"
            kernel.scopes.append(mask)
        return ""

    def why_broadcast_apart(self, i: int, r: Request) -> str:
        """Why an elementwise value wanted once is not computed inside the kernel."""
        kernel, mask = r.kernel, r.mask
        missing = kernel.output_loops & ~mask
        # not where the innermost loop does not need it: there it is computed outside of that,
        # nor inside a reduction, whose loops are outside of it
        if (
            missing
            and missing < mask <= kernel.output_loops
            and self.costs.work[i] > BROADCAST_WORK
        ):
            times = kernel.product(missing)
            if times >= BROADCAST_COUNT:
                return f"{self.costs.work[i]:.0f} operations repeated {times} times by a broadcast"
        return ""
