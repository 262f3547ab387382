"""Small pure things that every floor uses, and the context variables."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable
from contextlib import ContextDecorator
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


def prod(sizes: Iterable[Any]) -> Any:
    """The product of numbers or symbolic sizes; 1 if there are none."""
    result: Any = 1
    for size in sizes:
        result = result * size
    return result


def argfix(*args: Any) -> tuple[Any, ...]:
    """The arguments as one tuple, whether they came one by one or as one list or tuple.

    ValueError if a list or tuple is followed by more.
    """
    if args and isinstance(args[0], list | tuple):
        if len(args) != 1:
            raise ValueError(f"one tuple or single values are expected, got {args}; pass one kind")
        return tuple(args[0])
    return args


def make_tuple(x: Any, count: int) -> tuple[Any, ...]:
    """`x` as a tuple: a single value is repeated `count` times."""
    return tuple(x) if isinstance(x, list | tuple) else (x,) * count


def flatten(lists: Iterable[Iterable[T]]) -> list[T]:
    """The items of several lists as one list."""
    return [item for inner in lists for item in inner]


def dedup(items: Iterable[T]) -> list[T]:
    """The items without repetitions, in order of first appearance."""
    return list(dict.fromkeys(items))


def all_int(values: Iterable[Any]) -> bool:
    """Whether all values are plain ints."""
    return all(isinstance(v, int) for v in values)


def ceildiv(a: Any, b: int) -> Any:
    """a / b rounded up."""
    return -(-a // b)


def round_up(a: Any, multiple: int) -> Any:
    """The smallest multiple that is at least `a`."""
    return ceildiv(a, multiple) * multiple


def nbytes_text(nbytes: int) -> str:
    """A number of bytes as a person reads it."""
    if nbytes < 1024:
        return f"{nbytes} B"
    power = min(int(math.log(nbytes, 1024)), 5)
    return f"{nbytes / 1024**power:.2f} {' KMGTP'[power]}iB"


def getenv(name: str, default: Any = 0) -> Any:
    """An environment variable as the type of its default. ValueError if it is no such value."""
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return type(default)(text)
    except ValueError as error:
        raise ValueError(
            f"the environment variable {name} must be {type(default).__name__}, got {text!r}"
        ) from error


# ---------------------------------------------------------------- context variables


class _Overrides(threading.local):
    """What `with Context(...)` has set in this thread."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}


_overrides = _Overrides()


class ContextVar:
    """A setting: read from the environment at import, changed for a block by `Context`.

    Usable as the number it holds in comparisons and conditions. Blocks count per thread;
    an assignment to `value` outside any block holds for all threads.
    """

    known: ClassVar[dict[str, ContextVar]] = {}

    def __init__(self, name: str, default: Any) -> None:
        if name in self.known:
            raise ValueError(f"the context variable {name} is declared twice")
        self.name = name
        self._everywhere = getenv(name, default)
        self.known[name] = self

    @property
    def value(self) -> Any:
        """The value in force here."""
        return _overrides.values.get(self.name, self._everywhere)

    @value.setter
    def value(self, new: Any) -> None:
        if self.name in _overrides.values:
            _overrides.values[self.name] = new
        else:
            self._everywhere = new

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other)

    def __ge__(self, other: Any) -> bool:
        return bool(self.value >= other)

    def __gt__(self, other: Any) -> bool:
        return bool(self.value > other)

    def __lt__(self, other: Any) -> bool:
        return bool(self.value < other)

    def __le__(self, other: Any) -> bool:
        return bool(self.value <= other)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"ContextVar({self.name}={self.value!r})"


class Context(ContextDecorator):
    """`with Context(DEBUG=2): …` sets context variables for a block, in this thread."""

    def __init__(self, **settings: Any) -> None:
        for name in settings:
            if name not in ContextVar.known:
                raise KeyError(
                    f"there is no context variable {name}; there are "
                    f"{', '.join(sorted(ContextVar.known))}"
                )
        self.settings = settings
        self._outer: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self._outer.append(_overrides.values)
        _overrides.values = {**_overrides.values, **self.settings}

    def __exit__(self, *exc: object) -> None:
        _overrides.values = self._outer.pop()


DEBUG = ContextVar("DEBUG", 0)
DEV = ContextVar("DEV", "")
TRAINING = ContextVar("TRAINING", 0)
DEFAULT_FLOAT = ContextVar("DEFAULT_FLOAT", "float32")
DEFAULT_INT = ContextVar("DEFAULT_INT", "int32")
SPEC = ContextVar("SPEC", 0)
CACHELEVEL = ContextVar("CACHELEVEL", 1)
NO_COLOR = ContextVar("NO_COLOR", 0)
