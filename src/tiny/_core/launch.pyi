"""Memory of the host, and calls of compiled CPU kernels."""

from typing import Any, Self, final

@final
class HostMemory:
    def __new__(
        cls,
        nbytes: int = 0,
        *,
        part_of: HostMemory | None = None,
        offset: int = 0,
        shared: Any = None,
    ) -> Self: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def users(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    @property
    def address(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def copy_memory(to: HostMemory, source: HostMemory, nbytes: int) -> None: ...

@final
class HostKernel:
    def __new__(
        cls,
        name: str,
        phases: tuple[tuple[int, int], ...],
        buffers: int,
        kinds: bytes,
        code: object,
    ) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def phases(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def buffers(self) -> int: ...
    @property
    def kinds(self) -> bytes: ...
    def __call__(
        self, buffers: tuple[HostMemory, ...], variables: tuple[int | float, ...] = ()
    ) -> None: ...
