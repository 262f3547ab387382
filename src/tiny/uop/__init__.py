"""The Python face of the graph."""

from tiny.uop.ops import GroupOp, Ops

__all__ = ["GroupOp", "Ops"]
