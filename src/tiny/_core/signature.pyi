from collections.abc import Callable
from typing import Any, final

@final
class Parts:
    def __new__(cls, parts: list[Any], paths: list[str] | None = None) -> Parts: ...
    @property
    def parts(self) -> list[Any]: ...
    @property
    def tensors(self) -> list[Any]: ...
    @property
    def numbers(self) -> dict[str, float]: ...
    @property
    def donated(self) -> list[int]: ...
    def read(self, x: Any, path: str = "") -> None: ...

class Surroundings:
    def __init__(
        self, cells: list[tuple[str, Any]], names: list[str], globals: dict[str, Any]
    ) -> None: ...
    @property
    def cells(self) -> list[tuple[str, Any]]: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def globals(self) -> dict[str, Any]: ...
    def read(self, parts: list[Any], paths: list[str] | None = None) -> None: ...

class CallReader:
    layouts: dict[Any, Any]
    surroundings: Any
    donate: frozenset[str]
    def take_apart(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        layout: list[Any],
        paths: list[str] | None = None,
    ) -> Parts: ...

def register(
    tensor: type,
    weak_number: Callable[[Any, int], Any],
    expression: Callable[[Any, dict[str, float]], Any],
    plain: Callable[[Any, str], Any],
    plain_types: tuple[type, ...],
    is_plain_tuple: Callable[[Any], bool],
    fields: Callable[[Any], list[tuple[str, Any]]],
) -> None: ...
