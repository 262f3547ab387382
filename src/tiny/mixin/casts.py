"""Casts by the name of a dtype. A room of its own, since the names hide Python's types in it."""

from __future__ import annotations

from typing import Self

from tiny.dtype import dtypes
from tiny.mixin.interpolate import InterpolateMixin


class CastsMixin(InterpolateMixin):
    """`x.float()` for `x.cast(dtypes.float32)`, and its like."""

    __slots__ = ()

    def float(self) -> Self:
        """As float32; see `cast`.

        >>> Tensor([1, 2]).float().tolist()
        [1.0, 2.0]
        """
        return self.cast(dtypes.float32)

    def half(self) -> Self:
        """As float16; see `cast`.

        >>> Tensor([0.1]).half().tolist()
        [0.0999755859375]
        """
        return self.cast(dtypes.float16)

    def bfloat16(self) -> Self:
        """As bfloat16; see `cast`.

        >>> Tensor([0.1]).bfloat16().tolist()
        [0.10009765625]
        """
        return self.cast(dtypes.bfloat16)

    def double(self) -> Self:
        """As float64; see `cast`.

        >>> Tensor([1]).double().dtype
        dtypes.float64
        """
        return self.cast(dtypes.float64)

    def int(self) -> Self:
        """As int32; see `cast`.

        >>> Tensor([1.9, -1.9]).int().tolist()
        [1, -1]
        """
        return self.cast(dtypes.int32)

    def long(self) -> Self:
        """As int64; see `cast`.

        >>> Tensor([7]).long().dtype
        dtypes.int64
        """
        return self.cast(dtypes.int64)

    def short(self) -> Self:
        """As int16; see `cast`.

        >>> Tensor([40000]).short().tolist()
        [-25536]
        """
        return self.cast(dtypes.int16)

    def bool(self) -> Self:
        """As bool: whether it is not 0; NaN is true.

        >>> Tensor([0.0, -0.0, 0.5, float("nan")]).bool().tolist()
        [False, False, True, True]
        """
        return self.cast(dtypes.bool)
