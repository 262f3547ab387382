"""Small pure things that every floor uses, and the context variables.

Nothing here knows of graphs, tensors or devices.
"""

from __future__ import annotations

import contextlib
import cProfile
import functools
import gc
import getpass
import hashlib
import math
import operator
import os
import pstats
import re
import sys
import tempfile
import threading
import time
import urllib.parse
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeGuard, TypeVar

T = TypeVar("T")

VERSION = "0.1.0"  # of the package; pyproject.toml reads it here


# ---------------------------------------------------------------- environment


def getenv(key: str, default: Any = 0) -> Any:
    """The environment variable `key` as the type of `default`; `default` if unset or empty.

    ValueError names the variable if its text is no such value.
    """
    text = os.environ.get(key, "")
    if not text:
        return default
    try:
        return type(default)(text)
    except ValueError:
        raise ValueError(
            f"environment variable {key}={text!r} is no {type(default).__name__}; "
            f"unset it or set it to one, as in {key}={default!r}"
        ) from None


SPINS = 2000  # 50 to 100 µs


@contextlib.contextmanager
def short_spins() -> Iterator[None]:
    """While OpenMP is loaded: threads that wait for each other spin shortly, and then sleep.

    GNU's would spin for ten milliseconds. Where other programs want the processors too, that keeps
    the very thread from running that is waited for: at a load of 5 a processor, a decoder's step
    took 760 ms, and 40 with this. What the user has set stays.
    """
    if "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = str(SPINS)
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]  # it is for no other library or program


def cpu_count() -> int:
    """How many CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ---------------------------------------------------------------- context variables


# grows whenever one of them is set, in whatever thread; native code looks at it here
changes_made = array("q", [0])


class _ContextVars(type):
    @property
    def changes(cls) -> int:
        """Grows whenever one of them is set, in whatever thread."""
        return changes_made[0]


class ContextVar(Generic[T], metaclass=_ContextVars):
    """A setting: an environment variable read at import, changed by `with Context(NAME=value)`.

    A `Context` changes it for its own thread; assigning `value` outside of one changes it for the
    process. A new thread starts with the process's value. It compares and tests like its value.
    `effective` False marks a name that programs may set already but nothing reads yet: setting it
    to something else than its default warns, once. `choices`, if given, are all values there are.
    """

    known: ClassVar[dict[str, ContextVar[Any]]] = {}
    __hash__ = object.__hash__

    def __init__(
        self,
        key: str,
        default_value: T,
        *,
        effective: bool = True,
        choices: tuple[T, ...] = (),
    ) -> None:
        if key in ContextVar.known:
            raise ValueError(f"context variable {key} is declared twice; import it from helpers")
        self.key, self.default, self.effective = key, default_value, effective
        self.choices = choices
        self._warned = False
        # a class of its own: its attribute is the process's value, the instance's the thread's
        self._local: Any = type("_Values", (threading.local,), {"value": default_value})()
        ContextVar.known[key] = self
        type(self._local).value = self._checked(getenv(key, default_value), stacklevel=4)

    @property
    def value(self) -> T:
        """The value for this thread."""
        found: T = self._local.value
        return found

    @value.setter
    def value(self, new: T) -> None:
        new = self._checked(new, stacklevel=3)
        if "value" in self._local.__dict__:
            self._local.value = new
        else:
            type(self._local).value = new
        changes_made[0] += 1

    def _checked(self, new: T, stacklevel: int) -> T:
        """`new` as the type of the default. Warns if it will change nothing."""
        kind = type(self.default)
        if isinstance(new, ContextVar):
            new = new.value
        if not isinstance(new, kind):
            raise TypeError(
                f"context variable {self.key} is {kind.__name__}, got {new!r} "
                f"({type(new).__name__}); write it as in {self.key}={self.default!r}"
            )
        if self.choices and new not in self.choices:
            raise ValueError(
                f"context variable {self.key} is one of {', '.join(map(repr, self.choices))}, "
                f"got {new!r}"
            )
        if not self.effective and not self._warned and new != self.default:
            self._warned = True
            warnings.warn(
                f"{self.key}={new!r} has no effect yet: tiny accepts it and ignores it",
                UserWarning,
                stacklevel,
            )
        return kind(new)  # type: ignore[call-arg]  # True given to an int becomes 1

    def _push(self, new: Any) -> Callable[[], None]:
        """Set the value for this thread; return what takes it back."""
        values, new = self._local.__dict__, self._checked(new, stacklevel=4)
        had, old = "value" in values, self._local.value
        values["value"] = new
        changes_made[0] += 1

        def back() -> None:
            if had:
                values["value"] = old
            else:
                values.pop("value", None)
            changes_made[0] += 1

        return back

    def tolist(self, namespace: Any = None) -> list[Any]:
        """The comma-separated parts of a text value, looked up in `namespace` if given."""
        if not isinstance(self.value, str):
            raise TypeError(f"context variable {self.key} is no text, got {self.value!r}")
        parts = [part for part in self.value.split(",") if part]
        return parts if namespace is None else [getattr(namespace, part) for part in parts]

    def __bool__(self) -> bool:
        return bool(self._local.value)

    def __int__(self) -> int:
        return int(self._local.value)

    def __eq__(self, other: object) -> bool:
        return bool(self._local.value == _plain(other))

    def __lt__(self, other: Any) -> bool:
        return bool(self._local.value < _plain(other))

    def __le__(self, other: Any) -> bool:
        return bool(self._local.value <= _plain(other))

    def __gt__(self, other: Any) -> bool:
        return bool(self._local.value > _plain(other))

    def __ge__(self, other: Any) -> bool:
        return bool(self._local.value >= _plain(other))

    def __repr__(self) -> str:
        return f"ContextVar({self.key}={self._local.value!r})"


def _plain(x: Any) -> Any:
    return x.value if isinstance(x, ContextVar) else x


class Context(contextlib.ContextDecorator):
    """`with Context(DEBUG=2, NOOPT=1):` sets context variables for this thread; also a decorator.

    KeyError if there is no such variable; TypeError if the value is of another type.
    """

    def __init__(self, **values: Any) -> None:
        for key in values:
            if key not in ContextVar.known:
                raise KeyError(
                    f"Context: there is no context variable {key!r}; "
                    f"there are {', '.join(sorted(ContextVar.known))}"
                )
        self._values = values
        self._undo: list[tuple[int, list[Callable[[], None]]]] = []

    def _recreate_cm(self) -> Self:
        return type(self)(**self._values)  # a decorated function may recurse and run in threads

    def __enter__(self) -> Self:
        undo: list[Callable[[], None]] = []
        try:
            for key, value in self._values.items():
                undo.append(ContextVar.known[key]._push(value))
        except BaseException:
            for back in reversed(undo):
                back()
            raise
        self._undo.append((threading.get_ident(), undo))
        return self

    def __exit__(self, *exc: object) -> None:
        # one Context may be entered again, and by several threads: take the last of this thread
        me = threading.get_ident()
        at = max(i for i, (thread, _) in enumerate(self._undo) if thread == me)
        for back in reversed(self._undo.pop(at)[1]):
            back()


DEBUG = ContextVar("DEBUG", 0)  # how much is printed, 0 to 7
DEV = ContextVar("DEV", "")  # the default device; empty: CPU
TRAINING = ContextVar("TRAINING", 0)  # batch norm and dropout as in training
DEFAULT_FLOAT = ContextVar("DEFAULT_FLOAT", "float32")
DEFAULT_INT = ContextVar("DEFAULT_INT", "int32")
SPEC = ContextVar("SPEC", 0)  # check each level of each program against its spec
NO_COLOR = ContextVar("NO_COLOR", 0)
NO_MEMORY_PLANNER = ContextVar("NO_MEMORY_PLANNER", 0)  # a buffer of its own for each temporary

BEAM = ContextVar("BEAM", 0, effective=False)
NOOPT = ContextVar("NOOPT", 0)
# of TinyJit: 0 runs functions plainly, 2 starts kernels one by one, 3 runs both and compares
JIT = ContextVar("JIT", 1, choices=(0, 1, 2, 3))
PACKED_MB = ContextVar("PACKED_MB", 1024)  # of weights that captured steps keep packed; 0: none
JIT_BATCH_SIZE = ContextVar("JIT_BATCH_SIZE", 32, effective=False)
IMAGE = ContextVar("IMAGE", 0, effective=False)
FLOAT16 = ContextVar("FLOAT16", 0, effective=False)
WINO = ContextVar("WINO", 0)  # convolutions with windows of 3 in Winograd's way
TRACEMETA = ContextVar("TRACEMETA", 1, effective=False)
NOLOCALS = ContextVar("NOLOCALS", 0, effective=False)
# matrix units: 0 uses none, 1 those that pay, 2 shapes kernels for them without their instructions
TC = ContextVar("TC", 1, choices=(0, 1, 2))
TC_SELECT = ContextVar("TC_SELECT", -1)  # the number of the one that may be used; -1: any
TC_OPT = ContextVar("TC_OPT", 2, choices=(0, 1, 2))  # what is done for it: 2 pads axes, too
TRANSCENDENTAL = ContextVar("TRANSCENDENTAL", 1, effective=False)
SPLIT_REDUCEOP = ContextVar("SPLIT_REDUCEOP", 1, effective=False)
LRU = ContextVar("LRU", 1)  # keep freed memory for the next request of its size
POISON = ContextVar("POISON", 0)  # fill memory with NaN when it is given out and taken back
CACHELEVEL = ContextVar("CACHELEVEL", 2)  # of what is kept on disk for later processes; 0: nothing
IGNORE_BEAM_CACHE = ContextVar("IGNORE_BEAM_CACHE", 0, effective=False)
CHECK_OOB = ContextVar("CHECK_OOB", 0, effective=False)
VIZ = ContextVar("VIZ", 0, effective=False)
PROFILE = ContextVar("PROFILE", 0, effective=False)
PARALLEL = ContextVar("PARALLEL", 0, effective=False)
NUM_CPU_THREADS = ContextVar("NUM_CPU_THREADS", cpu_count())  # read at each launch
CCACHE = ContextVar("CCACHE", 1, effective=False)
SCACHE = ContextVar("SCACHE", 1, effective=False)
FUSE_OPTIM = ContextVar("FUSE_OPTIM", 0, effective=False)
RING = ContextVar("RING", 1, effective=False)
MAX_KERNEL_BUFFERS = ContextVar("MAX_KERNEL_BUFFERS", 0, effective=False)
NULL_ALLOW_COPYOUT = ContextVar("NULL_ALLOW_COPYOUT", 0)  # reading NULL gives zeros
EMULATED_DTYPES = ContextVar("EMULATED_DTYPES", "", effective=False)
STRICT_REDUCE = ContextVar("STRICT_REDUCE", 0)
FS_STORE = ContextVar("FS_STORE", "")  # the folder of Tensor.fs_store, else the user's cache


# ---------------------------------------------------------------- values and sequences


def prod(x: Iterable[Any]) -> Any:
    """The product; 1 of nothing."""
    return functools.reduce(operator.mul, x, 1)


def argfix(*x: Any) -> tuple[Any, ...]:
    """f(1, 2) and f((1, 2)) alike: the arguments, or the one tuple or list given instead.

    ValueError if a tuple or list comes with more arguments.
    """
    if x and isinstance(x[0], tuple | list):
        if len(x) != 1:
            raise ValueError(f"give one sequence or separate values, not both; got {x}")
        return tuple(x[0])
    return x


def make_tuple(x: Any, count: int) -> tuple[Any, ...]:
    """`x` as a tuple: a single value is repeated `count` times."""
    return tuple(x) if isinstance(x, tuple | list) else (x,) * count


def flatten(x: Iterable[Iterable[T]]) -> list[T]:
    """The items of the items."""
    return [item for inner in x for item in inner]


def dedup(x: Iterable[T]) -> list[T]:
    """Each item once, in the order of first appearance."""
    return list(dict.fromkeys(x))


def all_int(x: Sequence[Any]) -> TypeGuard[tuple[int, ...]]:
    """True if no item is symbolic."""
    return all(isinstance(item, int) for item in x)


def ceildiv(num: Any, amt: Any) -> Any:
    """num / amt rounded up, for integers and symbolic integers."""
    return (
        -(num // -amt) if isinstance(num, int) and isinstance(amt, int) else (num + amt - 1) // amt
    )


def round_up(num: Any, amt: Any) -> Any:
    """The smallest multiple of `amt` that is not less than `num`."""
    return ceildiv(num, amt) * amt


def get_child(obj: Any, key: str) -> Any:
    """`layers.0.weight`: attributes by name, items of sequences by number, of dicts by key."""
    for part in key.split("."):
        if isinstance(obj, Mapping):
            obj = obj[part]
        elif part.isdigit():
            obj = obj[int(part)]
        else:
            obj = getattr(obj, part)
    return obj


def temp(x: str, append_user: bool = False) -> str:
    """A path of that name in the system's folder for temporary files."""
    return str(Path(tempfile.gettempdir()) / (f"{x}.{getpass.getuser()}" if append_user else x))


_COLORS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def colored(st: object, color: str | None, background: bool = False) -> str:
    """The text in a terminal's colour, bright if the name is in capitals; plain with NO_COLOR."""
    if color is None or NO_COLOR:
        return str(st)
    if color.lower() not in _COLORS:
        raise ValueError(f"colored: there is no colour {color!r}; use one of {', '.join(_COLORS)}")
    code = 30 + _COLORS.index(color.lower()) + 10 * background + 60 * color.isupper()
    return f"\033[{code}m{st}\033[0m"


def nbytes_text(nbytes: int) -> str:
    """A number of bytes as a person reads it."""
    if nbytes < 1024:
        return f"{nbytes} B"
    power = min(int(math.log(nbytes, 1024)), 5)
    return f"{nbytes / 1024**power:.2f} {' KMGTP'[power]}iB"


# ---------------------------------------------------------------- measuring


@dataclass(frozen=True)
class Metadata:
    """Which method of Tensor made a node."""

    name: str
    backward: bool = False

    def __str__(self) -> str:
        return self.name + (" bw" if self.backward else "")


# Native code counts here too: kernels, their operations, the bytes they move. And the bytes in use
# on each device.
counts = array("q", [0, 0, 0])
memory_in_use: dict[str, array[int]] = {}


def _counter(number: int, what: str) -> Any:
    """One of them as a property."""

    def get(_: object) -> int:
        return counts[number]

    def put(_: object, value: int) -> None:
        counts[number] = value

    return property(get, put, doc=what)


class _Counters(type):
    """The attributes of GlobalCounters."""

    kernel_count = _counter(0, "How many kernels and copies have run.")
    global_ops = _counter(1, "How many operations they did.")
    global_mem = _counter(2, "How many bytes they read and wrote.")

    @property
    def mem_used(cls) -> int:
        """The memory held now, in bytes."""
        return sum([used[0] for used in list(memory_in_use.values())])

    @property
    def mem_used_per_device(cls) -> dict[str, int]:
        """The same, by device."""
        return {device: used[0] for device, used in list(memory_in_use.items())}


class GlobalCounters(metaclass=_Counters):
    """Totals over everything run since the last `reset`, and the memory held now, in bytes."""

    time_sum_s: ClassVar[float] = 0.0

    @staticmethod
    def reset() -> None:
        """Start counting anew. What is allocated stays counted."""
        GlobalCounters.global_ops = GlobalCounters.global_mem = GlobalCounters.kernel_count = 0
        GlobalCounters.time_sum_s = 0.0

    @staticmethod
    @contextlib.contextmanager
    def kept() -> Iterator[None]:
        """What runs in the body is not counted, but for memory."""
        names = ("global_ops", "global_mem", "time_sum_s", "kernel_count")
        before = [getattr(GlobalCounters, name) for name in names]
        try:
            yield
        finally:
            for name, value in zip(names, before, strict=True):
                setattr(GlobalCounters, name, value)


class Timing(contextlib.ContextDecorator):
    """Prints how long its body took. `on_exit` is given nanoseconds and adds to the line."""

    def __init__(
        self,
        prefix: str = "",
        on_exit: Callable[[int], str] | None = None,
        enabled: bool = True,
    ) -> None:
        self.prefix, self.on_exit, self.enabled = prefix, on_exit, enabled
        self.et = 0

    def _recreate_cm(self) -> Self:
        return type(self)(self.prefix, self.on_exit, self.enabled)

    def __enter__(self) -> Self:
        self._start = time.perf_counter_ns()
        return self

    def __exit__(self, *exc: object) -> None:
        self.et = time.perf_counter_ns() - self._start
        if self.enabled:
            extra = self.on_exit(self.et) if self.on_exit is not None else ""
            print(f"{self.prefix}{self.et * 1e-6:6.2f} ms{extra}")


class Profiling(contextlib.ContextDecorator):
    """Profiles its body with cProfile and prints the part `frac` of the functions, by `sort`.

    `fn` names a file for the raw figures; `ts` multiplies times (per step, say).
    """

    def __init__(
        self,
        enabled: bool = True,
        sort: str = "cumtime",
        frac: float = 0.2,
        fn: str | None = None,
        ts: float = 1,
    ) -> None:
        self.enabled, self.sort, self.frac, self.fn, self.ts = enabled, sort, frac, fn, ts

    def _recreate_cm(self) -> Self:
        return type(self)(self.enabled, self.sort, self.frac, self.fn, self.ts)

    def __enter__(self) -> Self:
        self._profile = cProfile.Profile(timeunit=self.ts * 1e-9, timer=time.perf_counter_ns)
        if self.enabled:
            self._profile.enable()
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.enabled:
            return
        self._profile.disable()
        if self.fn is not None:
            self._profile.dump_stats(self.fn)
        pstats.Stats(self._profile).strip_dirs().sort_stats(self.sort).print_stats(self.frac)


class disable_gc(contextlib.ContextDecorator):  # noqa: N801  # the name that programs use
    """No cyclic garbage collection in its body."""

    def _recreate_cm(self) -> Self:
        return type(self)()

    def __enter__(self) -> Self:
        self._was_enabled = gc.isenabled()
        gc.disable()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._was_enabled:
            gc.enable()


class tqdm(Generic[T]):  # noqa: N801  # the name that programs use
    """A progress bar around an iterable, or moved by `update`; drawn by rich.

    Nothing is drawn where standard error is no terminal, with `disable`, or inside another bar.
    """

    _drawn: ClassVar[bool] = False

    def __init__(
        self,
        iterable: Iterable[T] | None = None,
        desc: str = "",
        disable: bool | None = False,
        unit: str = "it",
        unit_scale: bool = False,
        total: int | None = None,
        rate: int = 100,
    ) -> None:
        self.iterable, self.unit, self.unit_scale = iterable, unit, unit_scale
        self.desc = desc.removesuffix(": ")
        self.total = len(iterable) if total is None and hasattr(iterable, "__len__") else total  # type: ignore[arg-type]  # __len__ was just seen
        self.n = 0
        self._bar: Any = None
        if not disable and not tqdm._drawn and sys.stderr.isatty():
            self._open(rate)

    def _open(self, rate: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        count = TextColumn("{task.fields[scaled]}") if self.unit_scale else MofNCompleteColumn("/")
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            count,
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[speed]}"),
            console=Console(stderr=True, no_color=bool(NO_COLOR)),
            refresh_per_second=min(rate, 10),
            expand=True,
        )
        self._task = self._bar.add_task(self.desc, total=self.total, scaled="", speed="")
        self._start = time.perf_counter()
        self._bar.start()
        tqdm._drawn = True

    def __iter__(self) -> Iterator[T]:
        if self.iterable is None:
            raise TypeError("tqdm: nothing to go through; give it an iterable, or call update()")
        try:
            for item in self.iterable:
                yield item
                self.update(1)
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def set_description(self, desc: str) -> None:
        """Change the text before the bar."""
        self.desc = desc.removesuffix(": ")
        if self._bar is not None:
            self._bar.update(self._task, description=self.desc)

    def update(self, n: int = 0, close: bool = False) -> None:
        """Move the bar by `n`."""
        self.n += n
        if self._bar is not None:
            speed = self.n / max(time.perf_counter() - self._start, 1e-9)
            self._bar.update(
                self._task,
                completed=self.n,
                scaled=f"{_si(self.n)}{self.unit}" if self.unit_scale else "",
                speed=f"{_si(speed)}{self.unit}/s",
            )
        if close:
            self.close()

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            tqdm._drawn = False

    @staticmethod
    def write(s: str) -> None:
        """Print a line on standard error, above any bar."""
        print(f"\r\033[K{s}" if sys.stderr.isatty() else s, file=sys.stderr)


def _si(x: float) -> str:
    """Four characters of a number with its prefix: 12.3k."""
    power = min(int(math.log10(x) // 3), 6) if x >= 1 else 0
    return f"{x / 1000**power:.3g}{['', 'k', 'M', 'G', 'T', 'P', 'E'][power]}"


def trange(n: int, **kwargs: Any) -> tqdm[int]:
    """`tqdm(range(n))`."""
    return tqdm(range(n), **kwargs)


# ---------------------------------------------------------------- files


def cache_path(*parts: str) -> Path:
    """A path of the user's own cache: below XDG_CACHE_HOME, else ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tiny", *parts)


def cache_folder(*parts: str) -> Path:
    """That path as a folder, made if missing."""
    folder = cache_path().parent
    folder.mkdir(parents=True, exist_ok=True)
    for part in Path("tiny", *parts).parts:  # one of those given may be of several
        folder /= part
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def write_aside(path: Path, write: Callable[[Path], object]) -> None:
    """Make a file whole or not at all: `write` fills another in its folder, then it is renamed."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        write(Path(name))
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def fetch(
    url: str,
    name: Path | str | None = None,
    subdir: str | None = None,
    gunzip: bool = False,
    allow_caching: bool = True,
    headers: Mapping[str, str] | None = None,
    sha256: str | None = None,
) -> Path:
    """The file at `url`, downloaded once into the user's cache; its path.

    `name` a path with folders: kept there instead. `gunzip` unpacks. `sha256` (hexadecimal, of
    the result) is checked on every call. A path of this machine is returned as it is. A download
    that broke off goes on at the next call. OSError says what could not be reached and where a
    copy may be put by hand; ValueError if the digest differs.
    """
    from tiny.downloads import digest_of, download  # what speaks HTTP takes long to import

    if url.startswith(("/", ".")):
        return Path(url)
    if name is not None and len(Path(name).parts) > 1:
        target = Path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
    else:
        plain = str(name) if name is not None else _download_name(url)
        plain += ".unzipped" if gunzip else ""
        target = cache_folder("downloads", *([subdir] if subdir else [])) / plain
    if not allow_caching or not target.is_file():
        download(url, target, headers or {}, gunzip, sha256, _download_bar)
    elif sha256 is not None and (found := digest_of(target)) != sha256.lower():
        raise ValueError(
            f"fetch: {target} has sha256 {found}, expected {sha256}; delete it to try again"
        )
    return target


def _download_bar(total: int | None) -> tqdm[int]:
    return tqdm(desc="download", unit="B", unit_scale=True, total=total)


def _download_name(url: str) -> str:
    """A file name that two URLs do not share, ending like the URL."""
    tail = re.sub(r"[^\w.-]", "_", Path(urllib.parse.urlsplit(url).path).name)[-60:]
    return f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{tail}"
