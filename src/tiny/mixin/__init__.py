"""Operators and methods that UOp and Tensor share.

The mixins hold no data. They build every method from a small protocol, stated in `protocol`.
"""

from tiny.mixin.casts import CastsMixin
from tiny.mixin.elementwise import ElementwiseMixin
from tiny.mixin.indexing import IndexingMixin
from tiny.mixin.layers import LayersMixin
from tiny.mixin.losses import LossesMixin
from tiny.mixin.movement import MovementMixin
from tiny.mixin.processing import ProcessingMixin
from tiny.mixin.reduce import ReduceMixin
from tiny.mixin.scan import ScanMixin
from tiny.mixin.sort import SortMixin

__all__ = [
    "CastsMixin",
    "ElementwiseMixin",
    "IndexingMixin",
    "LayersMixin",
    "LossesMixin",
    "MovementMixin",
    "ProcessingMixin",
    "ReduceMixin",
    "ScanMixin",
    "SortMixin",
]
