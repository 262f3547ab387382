"""Layers that hold no weights of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from tiny.helpers import make_tuple
from tiny.mixin.elementwise import in_float32
from tiny.mixin.indexing import IndexingMixin


class LayersMixin(IndexingMixin):
    """What networks are made of, as methods of what goes through it."""

    __slots__ = ()

    def sequential(self, ll: Sequence[Callable[[Self], Self]]) -> Self:
        """The functions applied one after the other."""
        x = self
        for layer in ll:
            x = layer(x)
        return x

    def batchnorm(
        self,
        weight: Self | None,
        bias: Self | None,
        mean: Self,
        invstd: Self,
        axis: int | tuple[int, ...] = 1,
    ) -> Self:
        """(x - mean) * weight * invstd + bias, these being along `axis` (Ioffe & Szegedy, 2015)."""
        kept = {self._resolve_dim(a) for a in make_tuple(axis, 1)}
        shape = tuple(s if k in kept else 1 for k, s in enumerate(self.shape))
        x = self - mean.reshape(shape)
        if weight is not None:
            x = x * weight.reshape(shape)
        # one value a channel, or one each: only its own dimensions are known
        x = x * (invstd.reshape(shape) if invstd.ndim == len(kept) else invstd)
        return x if bias is None else x + bias.reshape(shape)

    @in_float32
    def layernorm(self, axis: int | tuple[int, ...] = -1, eps: float = 1e-5) -> Self:
        """Mean 0 and variance 1 along `axis` (Ba, Kiros & Hinton, 2016)."""
        x = self - self.mean(axis, keepdim=True)
        return x * (x.square().mean(axis, keepdim=True) + eps).rsqrt()
