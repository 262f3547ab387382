"""Movement operations as functions on indices."""

from typing import Any, TypeVar

from tiny._core.graph import Node
from tiny._core.ops import Ops

_N = TypeVar("_N", bound=Node)

def apply_movement(
    op: Ops,
    arg: Any,
    src_shape: tuple[Any, ...],
    out_shape: tuple[Any, ...],
    idx: tuple[_N, ...],
    valid: _N | None = None,
) -> tuple[tuple[_N, ...], _N | None]: ...
