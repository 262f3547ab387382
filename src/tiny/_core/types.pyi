"""The class of dtypes."""

from typing import Any

class DType:
    name: str
    id: int
    priority: int
    bitsize: int
    itemsize: int
    fmt: str | None
    kind: str
    def __init__(
        self, name: str, priority: int, bitsize: int, fmt: str | None, kind: str
    ) -> None: ...
    @property
    def min(self) -> Any: ...
    @property
    def max(self) -> Any: ...
    def const(self, value: Any) -> Any: ...

def dtype_by_name(name: str) -> DType: ...
