"""The order of steps, chosen for how much temporary memory is in use at once."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tiny.uop.passes import compiler_pass


class Needs(NamedTuple):
    """The temporaries that a step makes, and those that it reads."""

    made: tuple[int, ...]
    read: tuple[int, ...]


@compiler_pass("order by memory", "steps", "an order that holds less memory")
def order_by_memory(
    before: Sequence[Sequence[int]], needs: Sequence[Needs], nbytes: Mapping[int, int]
) -> list[int]:
    """An order of steps in which each comes after those in its `before`.

    Either the given one as far as possible, which follows the program and finds values in the
    cache, or, if that takes less memory, always the step that adds the least to what is in use.
    `nbytes` is the size of each temporary. Linear but for a heap.
    """
    plain = _topological(before)
    greedy = _smallest_first(before, needs, nbytes)
    if most_in_use(greedy, needs, nbytes) < most_in_use(plain, needs, nbytes):
        return greedy
    return plain


def most_in_use(order: Sequence[int], needs: Sequence[Needs], nbytes: Mapping[int, int]) -> int:
    """The most bytes of temporaries that are in use at once."""
    last: dict[int, int] = {}
    for k in order:
        last.update((t, k) for t in (*needs[k].made, *needs[k].read))
    now = most = 0
    for k in order:
        now += sum(nbytes[t] for t in needs[k].made)
        most = max(most, now)
        now -= sum(nbytes[t] for t in {*needs[k].made, *needs[k].read} if last[t] == k)
    return most


def _users(before: Sequence[Sequence[int]]) -> list[list[int]]:
    users: list[list[int]] = [[] for _ in before]
    for k, others in enumerate(before):
        for b in others:
            users[b].append(k)
    return users


def _topological(before: Sequence[Sequence[int]]) -> list[int]:
    """The steps by number, each as soon as those before it are done."""
    users, waiting = _users(before), [len(others) for others in before]
    ready = [k for k, n in enumerate(waiting) if not n]
    order = []
    while ready:
        k = heapq.heappop(ready)
        order.append(k)
        for user in users[k]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, user)
    return order


def _smallest_first(
    before: Sequence[Sequence[int]], needs: Sequence[Needs], nbytes: Mapping[int, int]
) -> list[int]:
    """Always the ready step that adds the fewest bytes, less those that it is the last to read."""
    users, waiting = _users(before), [len(others) for others in before]
    left: dict[int, int] = {}  # of each temporary, the steps still to read it
    which: dict[int, int] = {}  # their numbers, all added up: of one, it is that one
    for k, need in enumerate(needs):
        for t in need.read:
            left[t] = left.get(t, 0) + 1
            which[t] = which.get(t, 0) + k

    def added(k: int) -> int:
        made = sum(nbytes[t] for t in needs[k].made if left.get(t))
        return made - sum(nbytes[t] for t in needs[k].read if left[t] == 1)

    done = [False] * len(before)
    ready = [(added(k), k) for k, n in enumerate(waiting) if not n]
    heapq.heapify(ready)
    order = []
    while ready:
        _, k = heapq.heappop(ready)
        if done[k]:
            continue  # it became cheaper in the meantime, and ran
        done[k] = True
        order.append(k)
        for user in users[k]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (added(user), user))
        for t in needs[k].read:
            left[t] -= 1
            which[t] -= k
            if left[t] == 1 and not waiting[which[t]]:
                heapq.heappush(ready, (added(which[t]), which[t]))
    return order
