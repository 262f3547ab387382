"""Where temporary buffers lie: offsets in one arena a device, those alive together apart."""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from tiny.uop.passes import compiler_pass

ALIGNMENT = 64
# Placing by size compares with all that were placed before: too slow for more buffers than this.
MOST_BY_SIZE = 2000


@dataclass(frozen=True)
class Lifetime:
    """A buffer of so many bytes, in use from one step to another, both inclusive."""

    nbytes: int
    first: int
    last: int


def align(nbytes: int) -> int:
    """Up to the next multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@compiler_pass("plan memory", "lifetimes", "offsets in an arena")
def plan_memory(lifetimes: Sequence[Lifetime], reuse: bool = True) -> tuple[list[int], int]:
    """(offset of each buffer, bytes of the arena): none overlap in both space and time.

    Method: the largest first, at the lowest gap between those placed that are alive at the same
    time; or in order of time, in the smallest free block that will do. The better of both, and
    the second, which is linear but for finding blocks, beyond `MOST_BY_SIZE` buffers.
    Without `reuse` every buffer has a place of its own.
    """
    if not reuse:
        offsets, end = [], 0
        for life in lifetimes:
            offsets.append(end)
            end += align(life.nbytes)
        return offsets, end
    by_time = _place_by_time(lifetimes)
    if len(lifetimes) > MOST_BY_SIZE or by_time[1] == most_alive(lifetimes):
        return by_time
    by_size = _place_by_size(lifetimes)
    return by_size if by_size[1] <= by_time[1] else by_time


def most_alive(lifetimes: Sequence[Lifetime]) -> int:
    """The most bytes in use at one step, alignment included: no plan takes less."""
    change: dict[int, int] = {}
    for life in lifetimes:
        size = align(life.nbytes)
        change[life.first] = change.get(life.first, 0) + size
        change[life.last + 1] = change.get(life.last + 1, 0) - size
    return max(itertools.accumulate([change[step] for step in sorted(change)]), default=0)


def _place_by_size(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    offsets = [0] * len(lifetimes)
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), by offset
    arena = 0
    order = sorted(range(len(lifetimes)), key=lambda k: (-lifetimes[k].nbytes, k))
    for k in order:
        life = lifetimes[k]
        size = align(life.nbytes)
        at = 0
        for offset, end, first, last in placed:
            if first <= life.last and life.first <= last:
                if offset - at >= size:
                    break
                at = max(at, end)
        offsets[k] = at
        insort(placed, (at, at + size, life.first, life.last))
        arena = max(arena, at + size)
    return offsets, arena


def _place_by_time(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    offsets = [0] * len(lifetimes)
    free = _FreeBlocks()
    alive: list[tuple[int, int, int]] = []  # (last step, offset, size)
    order = sorted(range(len(lifetimes)), key=lambda k: (lifetimes[k].first, -lifetimes[k].nbytes))
    for k in order:
        life = lifetimes[k]
        while alive and alive[0][0] < life.first:
            _, offset, size = heapq.heappop(alive)
            free.give(offset, size)
        size = align(life.nbytes)
        offsets[k] = free.take(size)
        heapq.heappush(alive, (life.last, offsets[k], size))
    return offsets, free.end


class _FreeBlocks:
    """The free parts of an arena that grows, neighbours put together."""

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []  # (size, offset), sorted
        self._size_at: dict[int, int] = {}  # by offset of a block
        self._begin_of: dict[int, int] = {}  # by where a block ends

    def take(self, size: int) -> int:
        """The offset of so many bytes: of the smallest block that holds them, else at the end."""
        if not size:
            return 0
        at = bisect_left(self._by_size, (size, 0))
        if at < len(self._by_size):
            found, offset = self._by_size[at]
            self._remove(offset)
            self._add(offset + size, found - size)
            return offset
        offset = self._begin_of.get(self.end, self.end)  # of a block that ends where the arena does
        if offset < self.end:
            self._remove(offset)
        self.end = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        """Take bytes back."""
        if not size:
            return
        begin = self._begin_of.get(offset)
        if begin is not None:
            self._remove(begin)
            offset, size = begin, size + offset - begin
        after = self._size_at.get(offset + size)
        if after is not None:
            self._remove(offset + size)
            size += after
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        if size:
            insort(self._by_size, (size, offset))
            self._size_at[offset] = size
            self._begin_of[offset + size] = offset

    def _remove(self, offset: int) -> None:
        size = self._size_at.pop(offset)
        del self._begin_of[offset + size]
        del self._by_size[bisect_left(self._by_size, (size, offset))]
