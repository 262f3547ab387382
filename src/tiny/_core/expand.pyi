"""Register-tile expansion of a kernel body."""

from typing import Any

from tiny._core.graph import Node

def linear_form(index: Node) -> tuple[int, tuple[tuple[Any, int], ...]]: ...
def expand(
    kernel: Any, sink: Node, rules: Any, conditions: tuple[Node, ...] = ()
) -> list[tuple[tuple[Any, ...], int]]: ...
