"""Register-tile expansion of a kernel body."""

from typing import Any

from tiny._core.graph import Node
from tiny._core.types import DType

def expand(
    kernel: Any, sink: Node, rules: Any, float64: DType
) -> list[tuple[tuple[Any, ...], int]]: ...
