"""Passes of the compiler: each has a name, what it takes and gives, and is timed when asked.

Unless somebody profiles, a pass costs one look at a variable. Passes run inside of each other;
what is noted of one is its own, without those inside of it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, TypeVar

from tiny._core.graph import work_done

__all__ = ["PassRecord", "compiler_pass", "start_profile", "stop_profile"]

P = ParamSpec("P")
R = TypeVar("R")


class PassRecord(NamedTuple):
    """What a pass has done while somebody profiled.

    `depth`: inside of how many others it first ran. Nanoseconds are of the processor's time.
    `visits` are nodes that traversals and rewrites looked at, `made` those that are new.
    """

    name: str
    takes: str
    gives: str
    depth: int
    calls: int
    own_ns: int
    ns: int
    visits: int
    made: int


class _Pass(NamedTuple):
    name: str
    takes: str
    gives: str


@dataclass
class _Work:
    """The sums of one pass, and inside of which it first ran."""

    inside: _Pass | None
    calls: int = 0
    own_ns: int = 0
    ns: int = 0
    visits: int = 0
    made: int = 0


class _Profile:
    """What has been noted by pass."""

    def __init__(self) -> None:
        self.work: dict[_Pass, _Work] = {}
        self.inner = [0, 0, 0]  # what passes inside of the present one have taken
        self.open: list[_Pass] = []

    def run(self, which: _Pass, function: Callable[..., R], args: Any, named: Any) -> R:
        """Call a function, noted as a pass."""
        work = self.work.setdefault(which, _Work(self.open[-1] if self.open else None))
        outer, self.inner = self.inner, [0, 0, 0]
        self.open.append(which)
        before = _now()
        try:
            return function(*args, **named)
        finally:
            taken = [b - a for a, b in zip(before, _now(), strict=True)]
            ns, made, visits = [a - b for a, b in zip(taken, self.inner, strict=True)]
            work.calls += 1
            work.own_ns += ns
            work.ns += taken[0]
            work.made += made
            work.visits += visits
            self.inner = [a + b for a, b in zip(outer, taken, strict=True)]
            self.open.pop()

    def records(self, inside: _Pass | None = None, depth: int = 0) -> list[PassRecord]:
        """Passes in the order in which they first ran, each followed by those inside of it."""
        found = []
        for which, w in self.work.items():
            if w.inside == inside:
                sums = w.calls, w.own_ns, w.ns, w.visits, w.made
                found.append(PassRecord(*which, depth, *sums))
                found += self.records(which, depth + 1)
        return found


def _now() -> tuple[int, int, int]:
    return (time.process_time_ns(), *work_done())


_profile: _Profile | None = None


def compiler_pass(name: str, takes: str, gives: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function a pass: what it is called, and which graph it takes and gives."""
    which = _Pass(name, takes, gives)

    def made(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **named: P.kwargs) -> R:
            if _profile is None:
                return function(*args, **named)
            return _profile.run(which, function, args, named)

        return run

    return made


def start_profile() -> None:
    """Note from now on what each pass does, beginning with nothing. For one thread only."""
    global _profile
    _profile = _Profile()


def stop_profile() -> list[PassRecord]:
    """Stop noting; what was noted, passes in the order in which they first ran."""
    global _profile
    found = _profile.records() if _profile is not None else []
    _profile = None
    return found
