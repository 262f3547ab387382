"""Where temporary buffers lie: offsets in one arena a device, those alive together apart."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

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


def plan_memory(lifetimes: Sequence[Lifetime], reuse: bool = True) -> tuple[list[int], int]:
    """(offset of each buffer, bytes of the arena): none overlap in both space and time.

    Method: the largest first, at the lowest gap between those placed that are alive at the same
    time; beyond `MOST_BY_SIZE` buffers in order of time, in free blocks of powers of two.
    Without `reuse` every buffer has a place of its own.
    """
    if not reuse:
        offsets, end = [], 0
        for life in lifetimes:
            offsets.append(end)
            end += align(life.nbytes)
        return offsets, end
    if len(lifetimes) <= MOST_BY_SIZE:
        return _place_by_size(lifetimes)
    return _place_by_time(lifetimes)


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
        placed.append((at, at + size, life.first, life.last))
        placed.sort()
        arena = max(arena, at + size)
    return offsets, arena


def _place_by_time(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    offsets = [0] * len(lifetimes)
    free: dict[int, list[int]] = {}  # by size class (a power of two), offsets of free blocks
    alive: list[tuple[int, int, int]] = []  # (last step, size class, offset)
    arena = 0
    for k in sorted(range(len(lifetimes)), key=lambda k: (lifetimes[k].first, k)):
        life = lifetimes[k]
        while alive and alive[0][0] < life.first:
            _, size, offset = heapq.heappop(alive)
            free.setdefault(size, []).append(offset)
        size = 1 << max(align(life.nbytes) - 1, ALIGNMENT - 1).bit_length()
        blocks = free.get(size)
        if blocks:
            offsets[k] = blocks.pop()
        else:
            offsets[k] = arena
            arena += size
        heapq.heappush(alive, (life.last, size, offsets[k]))
    return offsets, arena
