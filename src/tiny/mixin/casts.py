"""Casts by the name of a dtype. A room of its own, since the names hide Python's types in it."""

from __future__ import annotations

from typing import Self

from tiny.dtype import dtypes
from tiny.mixin.losses import LossesMixin


class CastsMixin(LossesMixin):
    """`x.float()` for `x.cast(dtypes.float32)`, and its like."""

    __slots__ = ()

    def float(self) -> Self:
        """As float32."""
        return self.cast(dtypes.float32)

    def half(self) -> Self:
        """As float16."""
        return self.cast(dtypes.float16)

    def bfloat16(self) -> Self:
        """As bfloat16."""
        return self.cast(dtypes.bfloat16)

    def double(self) -> Self:
        """As float64."""
        return self.cast(dtypes.float64)

    def int(self) -> Self:
        """As int32."""
        return self.cast(dtypes.int32)

    def long(self) -> Self:
        """As int64."""
        return self.cast(dtypes.int64)

    def short(self) -> Self:
        """As int16."""
        return self.cast(dtypes.int16)

    def bool(self) -> Self:
        """As bool: whether it is not 0."""
        return self.cast(dtypes.bool)
