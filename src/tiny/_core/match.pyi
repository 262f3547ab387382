"""Patterns and rules compiled to a native program, and the drivers that rewrite with them."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from weakref import WeakSet

from tiny._core.graph import Node

_N = TypeVar("_N", bound=Node)

class RewriteCycleError(RuntimeError): ...
class BottomUpGate(Exception): ...

class NativeRule:
    name: str
    names: tuple[str, ...]

def take(name: str) -> NativeRule: ...

class RuleTable:
    name: str
    patterns: tuple[tuple[Any, Callable[..., Any] | NativeRule], ...]
    rule_names: tuple[str, ...]
    ints_only: bool
    pure: bool
    def __init__(
        self,
        patterns: Iterable[tuple[Any, Any]],
        name: str,
        ints_only: bool,
        pure: bool | None,
    ) -> None: ...
    def work(self) -> list[tuple[str, int, int, int]]: ...

tables_alive: WeakSet[RuleTable]

def count_rules(on: bool) -> None: ...

class PatternMatcher:
    tables: tuple[RuleTable, ...]
    def __init__(
        self,
        patterns: Iterable[tuple[Any, Callable[..., Any] | NativeRule]],
        compiled: bool = True,
        *,
        name: str | None = None,
        ints_only: bool = False,
        pure: bool | None = None,
    ) -> None: ...
    @property
    def patterns(self) -> list[tuple[Any, Callable[..., Any] | NativeRule]]: ...
    @property
    def name(self) -> str: ...
    @property
    def pure(self) -> bool: ...
    @property
    def ints_only(self) -> bool: ...
    def __add__(self, other: PatternMatcher) -> PatternMatcher: ...
    def rewrite(self, uop: _N, ctx: Any = None) -> _N | None: ...
    def judge(self, uop: Node, ctx: Any = None) -> tuple[Any, str]: ...

def all_matches(pattern: Any, node: _N) -> list[dict[str, _N]]: ...
def graph_rewrite(
    sink: _N,
    pm: PatternMatcher | None,
    ctx: Any = None,
    bottom_up: bool = False,
    name: str | None = None,
    bpm: PatternMatcher | None = None,
    walk: bool = False,
    enter_calls: bool = False,
) -> _N: ...
def substitute(
    root: _N,
    dvars: dict[_N, _N],
    name: str | None = None,
    extra_pm: PatternMatcher | None = None,
    walk: bool = False,
    enter_calls: bool = False,
) -> _N: ...
