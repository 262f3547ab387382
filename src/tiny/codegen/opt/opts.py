"""The names of optimisations: what can be done to an axis of a kernel."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["KernelOptError", "Opt", "OptOps"]


class KernelOptError(Exception):
    """An Opt that can not be applied to a kernel; the message names the rule it broke."""


class OptOps(Enum):
    """What an Opt does to an axis."""

    UPCAST = 1  # compute n neighbours of an output axis at once, in registers
    UNROLL = 2  # n steps of a reduction in one
    VEC = 3  # the lanes of vectors lie along the axis
    SWAP = 4  # exchange two loops
    THREAD = 5  # the iterations of a loop are shared among threads
    STAGE = 6  # keep what is read of an operand inside a loop in memory of its own
    BLOCK = 7  # a loop over blocks of n elements, outside of the one over what is in a block
    TC = 8  # a matrix unit ("tensor core") multiplies and adds up
    STREAM = 9  # what is stored goes to memory past the caches

    def __repr__(self) -> str:
        return f"OptOps.{self.name}"


class Opt(NamedTuple):
    """One optimisation: `op` on the axis numbered `axis`, with a number.

    Axes are counted outputs first (in the order of the stored dimensions; then those of STAGEs),
    then reductions. They keep their numbers whatever was applied before, and each BLOCK adds one,
    the loop over blocks, with the next number. UNROLL counts from the first reduction.

    `arg` is the number of elements for UPCAST, UNROLL, VEC and BLOCK; the other axis for SWAP;
    the number of the load in `Kernel.loads` for STAGE, whose `axis` is None for outside all
    loops. THREAD and STREAM have none; the `axis` of STREAM is the number of a store. TC comes
    first; its `axis` is the number of a choice of axes, best first, and its `arg` is (unit, level,
    use): the number of a unit of the target, -1 for the first that can; how much may be done for
    it, from 0 to 2 (see `unit_uses`); 1 to use it, 2 for the same shape without its instruction.
    """

    op: OptOps
    axis: int | None
    arg: int | tuple[int, int, int] = 0
