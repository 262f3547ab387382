"""What threads share: locks that forks wait for, and caches with a bound."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

__all__ = ["Cache", "cached", "caches", "make_lock"]

K = TypeVar("K")
V = TypeVar("V")
P = ParamSpec("P")
R = TypeVar("R")


class _Locks:
    """All locks of the package, in the order in which a thread that needs several takes them.

    A fork takes them all first: so what they guard is whole in the child, and they are free.
    """

    def __init__(self) -> None:
        self._by_order: dict[int, dict[int, weakref.ref[Any]]] = {}  # of each by its id
        self._fork = threading.RLock()  # one thread forks at a time
        self._taken: list[Any] = []

    def make(self, order: int) -> Any:
        """A new lock; its thread may take it again."""
        lock = threading.RLock()
        alike = self._by_order.setdefault(order, {})
        alike[id(lock)] = weakref.ref(lock, functools.partial(alike.pop, id(lock)))
        return lock

    def _missing(self, order: int, mine: set[int]) -> list[Any]:
        """The locks of an order that are not among `mine`."""
        locks = [found() for found in list(self._by_order[order].values())]
        return [lock for lock in locks if lock is not None and id(lock) not in mine]

    def take_all(self) -> None:
        """Wait until no other thread holds any."""
        self._fork.acquire()
        for order in sorted(self._by_order):
            mine: set[int] = set()
            while missing := self._missing(order, mine):
                for lock in missing:  # while it waits others may be made
                    lock.acquire()
                    self._taken.append(lock)
                    mine.add(id(lock))

    def free_all(self) -> None:
        """Undo `take_all`."""
        while self._taken:
            self._taken.pop().release()
        self._fork.release()


_locks = _Locks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_locks.take_all,
        after_in_parent=_locks.free_all,
        after_in_child=_locks.free_all,
    )


def make_lock(order: int) -> Any:
    """A lock that can be taken again by its thread, and that a fork waits for.

    A thread that has one takes only such of a larger `order`: 0 tensors that are computed, 1 steps
    that are replayed, 2 devices, 3 caches, 4 compilers.
    """
    return _locks.make(order)


class Cache(Generic[K, V]):
    """At most `most` values by key; the one that was not used for the longest time goes first.

    Threads may share it. All there are are listed by `caches`, under their names.
    """

    def __init__(self, name: str, most: int) -> None:
        self.most = most
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = make_lock(3)
        _sizes[name] = lambda: (len(self), self.most)

    def get(self, key: K) -> V | None:
        """The value of a key; None if there is none."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
            return found

    def put(self, key: K, value: V) -> V:
        """Keep a value; it is returned."""
        with self._lock:
            self._values[key] = value
            gone = [self._values.popitem(last=False) for _ in range(len(self) - self.most)]
        del gone  # outside of the lock: what dies may take others
        return value

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            gone, self._values = self._values, OrderedDict()
        gone.clear()

    def values(self) -> list[V]:
        """What is kept, used last last."""
        with self._lock:
            return list(self._values.values())

    def __len__(self) -> int:
        return len(self._values)


def cached(most: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that remembers its results for the last `most` arguments; listed by `caches`."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        remembering = functools.lru_cache(most)(function)
        name = f"{function.__module__}.{function.__qualname__}"
        _sizes[name] = lambda: (remembering.cache_info().currsize, most)
        return functools.wraps(function)(remembering)  # type: ignore[return-value]  # same call

    return wrap


_sizes: dict[str, Callable[[], tuple[int, int]]] = {}


def caches() -> dict[str, tuple[int, int]]:
    """How many entries each cache has, and how many it may have, by name."""
    return {name: size() for name, size in sorted(_sizes.items())}
