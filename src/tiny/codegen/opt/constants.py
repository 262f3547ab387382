"""What things cost on a machine: the constants of the model by which Opts are chosen.

They are rough, and only have to put a few ways of doing the same thing in the right order.
`benchmarks/fit_costs.py` measures kernels under several lists of Opts, and says which constants
would have chosen better ones. Nothing is measured when the library runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiny.uop.target import Target

__all__ = ["TABLE", "Costs", "costs_of"]


@dataclass(frozen=True)
class Costs:
    """Constants of a machine. An instruction is one of a whole vector; a load counts as one."""

    # ---- the time of instructions
    cycle: float = 3e-10  # seconds
    per_cycle: float = 2.0  # loads, and also arithmetic instructions, that are done in a cycle
    part: float = 0.6  # of an instruction, for half a vector and less
    latency: float = 8  # sums side by side that keep the arithmetic busy: 4 cycles, 2 a cycle
    overlap: float = 0.95  # of loads and of arithmetic that is done beside the other
    loop: float = 0.25  # cycles an iteration, to count and to jump
    store_loop: float = 0.5  # the same where nothing is summed up

    # ---- loads and stores, in instructions
    one_by_one: float = 4.0  # for a lane that is no neighbour of the last
    transposed: float = 3.0  # for a vector that comes through a transposition in registers
    strided: float = 3.0  # for each of the vectors that lanes a few elements apart are taken out of
    masked: float = 6.0  # more for a load whose lanes have conditions of their own
    choice: float = 0.0  # part of masked steps of a sum, for vectors whose operations have no masks
    shifted: float = 2.0  # for a load in steps that are no whole vectors: most lie in two lines
    uneven: float = 1.5  # the same along a reduction, where every other one does
    far: int = 512  # bytes from which on the rows of a panel fall into few sets of a cache
    crowd: float = 8.0  # times their size that such rows take of a cache, if they are to be packed
    far_read: float = 1.5  # for a load from such rows that are read often
    far_jump: float = 3.0  # more to begin with the next such row, where each is read once
    crowded: float = 1.5  # for a load of as many rows as L1 has lines for, and so on
    in_place: float = 3.0  # for each lane of an operand that ought to be packed, and is not

    # ---- memory, in cycles
    fill: float = 0.3  # to pack an element, of a vector
    fill_made: float = 1.5  # to make a word of several elements, and pack it
    fill_across: float = 0.5  # to pack an element through a transposition in registers
    fill_apart: float = 1.5  # to pack an element by itself
    handed_over: float = 0.2  # a byte of what one thread packs, and all others read
    words_handed_over: float = 0.8  # the same of words for a matrix unit, soon done with them
    phase: float = 2.5e4  # for threads to wait for each other, before what they all read
    l1_rate: float = 32.0  # bytes a cycle that come into L1 from L2
    l2_rate: float = 8.0  # bytes a cycle that come into L2 from what is behind it
    memory_rate: float = 8.0  # bytes a cycle that come from memory to each of several threads
    piece: float = 10.0  # to wait for a piece that begins where nothing foretells, from behind L2
    far_piece: float = 40.0  # the same from memory, where it is in no cache
    beyond: int = 4  # times L2 that is in a cache which others have a part of
    stream: int = 64  # bytes from a piece to the next one, which is foretold if it is no farther
    apart_rate: float = 1.0  # cycles for a load from L2 beside what comes from memory
    several: float = 1.15  # times as long, where it is read at eight places at once
    showing: float = 0.2  # part of that time which shows beside the arithmetic
    carried: float = 4.0  # to keep a vector of sums in memory between the steps of a loop
    carried_lanes: float = 6.0  # the same for a sum, where lanes are added up each time
    rolled: float = 5.0  # for a vector of sums that goes through memory to an epilogue in a loop
    rolled_across: float = 30.0  # the same where it is stored across its lanes
    caution: float = 1.3  # times what it seems to cost, for sums in memory: more can go wrong
    apart: float = 1.1  # the same, for rows that are apart so that fewer steps are idle
    far_apart: int = 4096  # bytes of a step, from which on such rows are packed
    bytes_per_second: float = 2e10  # of memory, for the decision about threads
    keeping: float = 1.125  # times the last cache, up to which results are better found there
    place: float = 1.5e-9  # seconds to look up a place, or to store a vector there

    # ---- the time to compile, which a kernel is worth if it runs often
    runs: int = 500  # of a kernel, for each time that it is compiled
    compiling: float = 2e-5  # seconds a line
    fill_code: int = 60  # lines of the loops that pack an operand
    fill_apart_code: int = 160  # the same, through a transposition

    # ---- seconds of work from which on something is worth its price
    worth_threads: float = 1e-5  # threads
    worth_arranging: float = 4e-6  # an order of the loops, and packing
    worth_planning: float = 3e-5  # plans for several tiles instead of the best one
    worth_blocking: float = 5e-5  # blocks of a reduction; below, more tiles are planned instead
    worth_splitting: float = 1e-4  # a sum of few outputs, shared in parts that are added up later


_NARROW = Costs(
    choice=1.0, far_apart=64, l1_rate=25.0, memory_rate=2.4, carried_lanes=16.0, keeping=0.75
)

# by the bytes of a vector register
TABLE = {64: Costs(), 32: _NARROW, 16: _NARROW}


def costs_of(target: Target) -> Costs:
    """The constants for a machine; those of the narrowest registers, if it has none."""
    return TABLE.get(target.vector_bytes) or TABLE[16]
