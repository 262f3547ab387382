"""How sums are cut: what is added up side by side, and when another sum begins."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tiny.codegen.lower.tiled import Loop
from tiny.dtype import DType, dtypes
from tiny.uop.ops import Ops, UOp

__all__ = ["SumRules"]

# A chain of dependent additions waits for each one's result; with this many chains side by side
# the units are busy. More only cost registers.
ENOUGH_ACCUMULATORS = 8

# How many steps a sum of floats takes before it goes into another one.
LONG_SUM = 16  # at least, in a contraction
SHORT_SUM = 64  # at most, in float32, before one in float64


class SumRules:
    """The choices that lowering makes about reductions.

    With `strict` each adds up in index order. With `has_double`, long sums of float32 that are no
    contractions are carried on in float64.
    """

    def __init__(self, strict: bool, has_double: bool) -> None:
        self.strict = strict
        self.has_double = has_double and not strict

    def separate(self, group: Sequence[UOp], sizes: Sequence[int], accumulators: int) -> list[int]:
        """Which tiles of reductions, of these sizes, get accumulators of their own."""
        found: list[int] = []
        if not self.strict and not any(map(_stays_in_unit, group)):
            for k in reversed(range(len(sizes))):
                if accumulators * sizes[k] <= ENOUGH_ACCUMULATORS:
                    found.insert(0, k)
                    accumulators *= sizes[k]
        return found

    def levels(
        self, group: Sequence[UOp], loops: Sequence[Loop], steps: Sequence[int]
    ) -> list[Loop]:
        """The loops of reductions at which another sum begins, the outermost loop first.

        `steps` says how often each loop adds to a sum, steps that are unrolled included.

        A long sum of floats is a sum of sums: its error grows with the length of the longest of
        them, not with that of the whole (Higham, SIAM J. Sci. Comput. 1993). A sum that is no
        contraction, such as a mean or a variance, is carried on in float64, which costs little
        beside what it loads; it has two levels, the inner one short and in float32.
        """
        if not loops:
            return []
        if any(map(_stays_in_unit, group)):
            return [loops[0]]
        if self.strict or not any(q.arg.op is Ops.ADD and q.dtype.kind == "f" for q in group):
            return [loops[0]]
        if any(self.is_statistic(q) for q in group):
            inner = len(loops)
            while inner and math.prod(steps[inner - 1 :]) <= SHORT_SUM:
                inner -= 1
            return [loops[k] for k in dict.fromkeys((0, inner)) if k < len(loops)]
        starts = [len(loops) - 1]
        for k in reversed(range(len(loops) - 1)):
            if math.prod(steps[starts[0] :]) >= LONG_SUM:
                starts.insert(0, k)
            else:
                starts[0] = k
        return [loops[k] for k in starts]

    def dtype(
        self,
        q: UOp,
        loops: Sequence[Loop],
        steps: Sequence[int],
        levels: Sequence[Loop],
        level: int,
    ) -> DType:
        """What sums of a level are held in."""
        if not (levels and self.is_statistic(q)):
            return q.dtype
        first = next(k for k, loop in enumerate(loops) if loop is levels[level])
        is_short = level + 1 >= len(levels) and math.prod(steps[first:]) <= SHORT_SUM
        return q.dtype if is_short else dtypes.float64

    def carry(self, q: UOp) -> DType:
        """What a SCAN is held in from one iteration of its loop to the next.

        In float64 where it is one of float32, so that its error does not grow with its length.
        """
        is_long = q.dtype is dtypes.float32 and q.arg.op is not Ops.MAX
        return dtypes.float64 if is_long and self.has_double else q.dtype

    def strip(self, group: Sequence[UOp], loops: Sequence[Loop], steps: Sequence[int]) -> int:
        """After how many iterations of the innermost loop sums in float32 go into those in float64.

        0 if that loop is short as it is, or nothing is carried on in float64. To convert each
        element takes longer than to load it.
        """
        if self.strict or not loops or not any(map(self.is_statistic, group)):
            return 0
        iteration = steps[-1] // loops[-1].leaf.src[0].arg
        return SHORT_SUM // iteration if steps[-1] > SHORT_SUM else 0

    def is_statistic(self, q: UOp) -> bool:
        """Whether a REDUCE adds up float32 values or squares: no product of two things."""
        value = q.src[0]
        if value.op is Ops.WHERE and value.src[2].op is Ops.CONST and value.src[2].arg == 0:
            value = value.src[1]
        return (
            self.has_double
            and q.arg.op is Ops.ADD
            and q.dtype is dtypes.float32
            and not (value.op is Ops.MUL and value.src[0] is not value.src[1])
            and value.op is not Ops.WMMA
        )


def _stays_in_unit(q: UOp) -> bool:
    """Whether a matrix unit has the sums in registers of its own, where none else can add."""
    value = q.src[0]
    return value.op is Ops.WMMA and value.arg.registers > 0
