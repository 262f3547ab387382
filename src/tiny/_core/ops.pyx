"""The operations of a graph, as C constants (`OP_ADD`) and as the Python enumeration `Ops`."""

from enum import IntEnum

Ops = IntEnum(
    "Ops",
    {code.name[3:]: int(code) for code in OpCode if code != OP_COUNT},
    module="tiny._core.ops",
)
Ops.__doc__ = "What a node computes. The values are the structural order of nodes."
Ops.__str__ = Ops.__repr__ = lambda self: f"Ops.{self._name_}"
