from collections.abc import Callable, Sequence
from typing import Any, final

from tiny._core.launch import HostReplay
from tiny._core.signature import CallReader

MISS: object

@final
class QuickStep:
    seen: int
    def __new__(
        cls,
        step: Any,
        kernels: HostReplay,
        counts: tuple[int, int, int],
        fresh: Sequence[tuple[Any, int, Any, str, tuple[Any, ...]]],
        bound: Sequence[Any],
        arenas: Sequence[tuple[Any, int]],
        constants: Sequence[float],
        storages: Sequence[tuple[int, str | None]],
        tensors: Sequence[tuple[int, Any, bool | None]],
        written: set[int],
        lock: Any,
        draw: Callable[[tuple[float, ...]], Sequence[int]] | None,
        packed: Any = None,
        packed_kernels: HostReplay | None = None,
        packed_memory: Sequence[Any] = (),
    ) -> QuickStep: ...

def register(
    recorders: dict[int, Any],
    live: Any,
    storage: type,
    tensor: type,
    buffer: type,
    buffer_arg: type,
    uids: Any,
) -> None: ...
def quick(
    reader: CallReader, steps: dict[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any: ...
