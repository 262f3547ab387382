"""Calls of compiled CPU kernels."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, final, overload

from tiny._core.memory import HostMemory

HAS_OPENMP: bool

# (object, name of an attribute, value), (dict, key, value) or (callable, None, list)
def publish(settings: Sequence[tuple[Any, Any, Any]]) -> None: ...
def threads() -> int: ...
def set_threads(n: int) -> None: ...
def release_scratch() -> None: ...
def when_memory_is_short(function: Callable[[], object]) -> None: ...

@final
class HostKernel:
    def __new__(
        cls,
        name: str,
        phases: tuple[tuple[int, int], ...],
        buffers: int,
        kinds: bytes,
        code: object,
        scratch_nbytes: int = 0,
        shared_nbytes: int = 0,
        parallel: bool = True,
        written: bytes | None = None,
        worth: float = 1.0,
    ) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def phases(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def buffers(self) -> int: ...
    @property
    def kinds(self) -> bytes: ...
    @property
    def scratch_nbytes(self) -> int: ...
    @property
    def shared_nbytes(self) -> int: ...
    @property
    def parallel(self) -> bool: ...
    @property
    def worth(self) -> float: ...
    @property
    def written(self) -> bytes: ...
    def __call__(
        self, buffers: tuple[HostMemory, ...], variables: tuple[int | float, ...] = ()
    ) -> None: ...

@final
class HostCopy:
    # Called with (to, source); as a step of a HostReplay its slots are (to, source).
    def __new__(cls, nbytes: int) -> Self: ...
    @property
    def nbytes(self) -> int: ...
    def __call__(
        self, buffers: tuple[HostMemory, ...], variables: tuple[int | float, ...] = ()
    ) -> None: ...

@final
class HostReplay:
    # A step is (what, slots of its buffers, numbers of its variables).
    def __new__(
        cls,
        steps: Sequence[tuple[HostKernel | HostCopy, tuple[int, ...], tuple[int, ...]]],
        slots: int,
        variables: int = 0,
        parts: Sequence[tuple[int, int, int]] = (),  # (slot, offset, nbytes)
    ) -> Self: ...
    @property
    def parts(self) -> tuple[tuple[int, int, int], ...]: ...
    @property
    def steps(
        self,
    ) -> tuple[tuple[HostKernel | HostCopy, tuple[int, ...], tuple[int, ...]], ...]: ...
    @property
    def slots(self) -> int: ...
    @property
    def variables(self) -> int: ...
    # times=True: the seconds that each step took, in order.
    @overload
    def __call__(
        self,
        memory: tuple[HostMemory, ...],
        values: tuple[int | float, ...] = (),
        times: Literal[False] = False,
        settings: list[tuple[Any, Any, Any]] | None = None,
    ) -> None: ...
    @overload
    def __call__(
        self,
        memory: tuple[HostMemory, ...],
        values: tuple[int | float, ...],
        times: Literal[True],
        settings: list[tuple[Any, Any, Any]] | None = None,
    ) -> list[float]: ...
    @overload
    def __call__(
        self,
        memory: tuple[HostMemory, ...],
        values: tuple[int | float, ...] = (),
        *,
        times: Literal[True],
        settings: list[tuple[Any, Any, Any]] | None = None,
    ) -> list[float]: ...
