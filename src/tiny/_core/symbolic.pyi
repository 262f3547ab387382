"""Integer expressions in canonical form, and the conditions made of them."""

from typing import TypeVar

from tiny._core.graph import Node

_N = TypeVar("_N", bound=Node)

def simplify(root: _N) -> _N: ...
def forget(root: Node) -> None: ...
def work_done() -> tuple[int, int]: ...
