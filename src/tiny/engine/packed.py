"""Weights that a captured step finds packed: once for each time they change, not in each run.

A kernel that reads an operand many times packs it first (`Opt` STAGE). Where that is memory from
outside of a step which nothing in the step writes, a kernel that finds it packed takes the place of
the one that packs. HostMemory counts its changes, so a run knows whether what was packed is still
what is there; if not, it is packed anew once two runs find the same.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from tiny._core.launch import HostKernel
from tiny._core.memory import HostMemory
from tiny.codegen import LinearProgram, Packing, ProgramParam, lower_packed
from tiny.device import Buffer, Compiled
from tiny.engine.kept import Made, lowering_settings
from tiny.engine.realize import Step, load_made, make
from tiny.helpers import DEBUG, PACKED_MB, nbytes_text
from tiny.shared import Cache, make_lock
from tiny.uop.ops import Ops, UOp

__all__ = ["PackedSteps", "packed_nbytes"]

# Of an element of a weight in a run: below that it is read as fast as it is, from memory to which
# no second copy is added; beyond that packing it is cheap beside them.
LEAST_USES, MOST_USES = 4, 1024
LEAST_NBYTES = 1 << 14  # of a weight: less is packed in no time


class _Fill(NamedTuple):
    """What packs an operand: `call` takes the memory of its source and what it fills."""

    call: HostKernel
    packing: Packing
    source_is_first: bool


class _Reader(NamedTuple):
    """A kernel that finds operands packed."""

    call: HostKernel
    program: LinearProgram
    fills: tuple[_Fill, ...]


# False where nothing is gained.
_readers: Cache[tuple[Any, ...], _Reader | bool] = Cache("kernels of packed weights", 512)


def _reader(kernel: UOp, device: Compiled, slots: frozenset[int]) -> _Reader | bool:
    """A kernel for operands in some PARAMs that are packed, compiled; equal ones once."""
    key = (kernel, device, slots, *lowering_settings())
    return _readers.get(key) or _readers.put(key, _compile(kernel, device, slots))


def _compile(kernel: UOp, device: Compiled, slots: frozenset[int]) -> _Reader | bool:
    def make_all() -> list[Made]:
        found = lower_packed(kernel, device.target, slots)
        if found is None:
            return []
        packings = [make(p.program, device, p) for p in found.packings]
        return [*packings, make(found.program, device)]

    loaded: list[tuple[Any, Made]] = load_made(kernel, device, make_all, slots)
    if not loaded:
        return False
    *packings, (call, reader) = loaded
    fills = []
    for fill, made in packings:
        assert made.packing is not None, "all but the last one pack something"
        source_is_first = made.program.params[0].slot == made.packing.source
        fills.append(_Fill(fill, made.packing, source_is_first))
    return _Reader(call, reader.program, tuple(fills))


# ---------------------------------------------------------------- what is packed


class _Packed:
    """An operand that is packed, for all steps that read it so."""

    def __init__(self, source: HostMemory, fill: _Fill, device: str) -> None:
        self.source, self.fill = source, fill
        self.buffer = Buffer(device, fill.packing.size, fill.packing.dtype)
        self.seen = source.changes  # when it was looked at last
        self.is_filled = False
        self._lock = make_lock(2)

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return self.buffer.nbytes

    def is_current(self) -> bool:
        """Whether it is what the source holds now; it is filled if that stays as it is."""
        with self._lock:
            changes, is_shared = self.source.changes, self.source.users > 0
            is_same = changes == self.seen and not is_shared
            if not is_same:
                self.seen, self.is_filled = changes, False
            elif not self.is_filled:
                memory = self.source, self.buffer.memory
                self.fill.call(memory if self.fill.source_is_first else memory[::-1])
                self.is_filled = True
            return is_same


# By memory and what fills it; they live as long as a step that reads them.
_packed: weakref.WeakValueDictionary[tuple[HostMemory, HostKernel], _Packed] = (
    weakref.WeakValueDictionary()
)


def packed_nbytes() -> int:
    """The memory that packed weights of all captured steps take, in bytes."""
    return sum(p.nbytes for p in list(_packed.values()))


class PackedSteps:
    """Steps with kernels that find weights packed in the place of those that pack them.

    `sources` are the memories of the cells that hold weights: of tensors' own memory, which no step
    writes. `steps` read what is packed in cells from number `first` on, `buffers` in that order. At
    most PACKED_MB megabytes are kept for all captured steps together, the first ones first. Those
    that were exported have kernels of their own, which stay as they are.
    """

    def __init__(self, steps: Sequence[Step], sources: dict[int, HostMemory], first: int) -> None:
        self._packed: dict[_Packed, int] = {}  # and the cell of each
        self._first, self._kept = first, packed_nbytes()
        self.steps = [self._step(step, sources) for step in steps]

    def __len__(self) -> int:
        """How many operands are packed."""
        return len(self._packed)

    @property
    def buffers(self) -> list[Buffer]:
        """The packed operands, in the order of their cells."""
        return [p.buffer for p in self._packed]

    def is_current(self) -> bool:
        """Whether all is packed that the sources hold now; what is not is filled if it can be."""
        # each of them is looked at, so that all are filled in the same run
        found = [p.is_current() for p in self._packed]
        return all(found)

    def _step(self, step: Step, sources: dict[int, HostMemory]) -> Step:
        item, program = step.item, step.program
        if item is None or program is None or not isinstance(step.call, HostKernel):
            return step
        cells = {p.slot: k for p, k in zip(program.params, step.slots, strict=True)}
        slots = frozenset(
            [p.slot for p in program.params if cells[p.slot] in sources and _is_worth(p, step)]
        )
        if not slots or item.kernel.op is not Ops.SINK or not PACKED_MB:
            return step
        reader = _reader(item.kernel, step.device, slots)
        if isinstance(reader, bool):
            return step
        mine = [
            _packed.get((sources[cells[fill.packing.source]], fill.call))
            or _Packed(sources[cells[fill.packing.source]], fill, step.device.name)
            for fill in reader.fills
        ]
        more = sum(p.nbytes for p in mine if (p.source, p.fill.call) not in _packed)
        if self._kept + more > PACKED_MB.value * 1_000_000 or not _allocate(mine):
            if DEBUG >= 2:
                print(f"{program.name}: {nbytes_text(more)} of weights are not kept packed")
            return step
        self._kept += more
        for p in mine:
            _packed[p.source, p.fill.call] = p
            cell = self._packed.setdefault(p, self._first + len(self._packed))
            cells[p.fill.packing.slot] = cell
        return step._replace(
            call=reader.call,
            slots=tuple([cells[p.slot] for p in reader.program.params]),
            name=reader.program.name,
            program=reader.program,
        )


def _allocate(packed: Sequence[_Packed]) -> bool:
    """Take memory for them. False if there is none."""
    try:
        for p in packed:
            p.buffer.ensure_allocated()
    except MemoryError:
        return False
    return True


def _is_worth(param: ProgramParam, step: Step) -> bool:
    """Whether packing a weight is much of what a kernel does."""
    size = math.prod(param.shape)
    is_large = size * param.dtype.itemsize >= LEAST_NBYTES
    return is_large and LEAST_USES * size <= step.flops / 2 <= MOST_USES * size
