"""How what a step takes and returns is shown."""

from __future__ import annotations

from tiny.engine.export import Spec

__all__ = ["kind_of"]


def kind_of(spec: Spec) -> tuple[str, str]:
    """The shape of a tensor, or the bounds of a number; and the dtype."""
    if spec.low is None:
        return str(spec.shape), spec.dtype.name
    return f"{spec.low} to {spec.high}", spec.dtype.name
