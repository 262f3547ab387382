"""Layers that hold no weights of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from tiny.dtype import dtypes
from tiny.helpers import TRAINING, make_tuple
from tiny.mixin.elementwise import in_float32
from tiny.mixin.processing import ProcessingMixin


class LayersMixin(ProcessingMixin):
    """What networks are made of, as methods of what goes through it."""

    __slots__ = ()

    if TYPE_CHECKING:

        def rand_like(self, **kwargs: Any) -> Self:
            """Numbers drawn evenly from 0 to 1 in this shape; in Tensor, as is what follows."""

        def const_like(self, b: Any) -> Self:
            """A constant in this shape."""

        def contiguous(self) -> Self:
            """These values in memory."""

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

    def dropout(self, p: float = 0.5) -> Self:
        """A share p of the elements set to 0, the others scaled by 1 / (1 - p); in training only.

        Method: Srivastava et al., 2014. ValueError if p is not between 0 and 1.
        """
        if not 0 <= p <= 1:
            raise ValueError(f"dropout: p must be between 0 and 1, got {p}")
        if not TRAINING or p == 0:
            return self
        if p == 1:
            return self.const_like(0)
        kept = self.rand_like(dtype=dtypes.default_float, contiguous=False) >= p
        return kept.contiguous().where(self, 0) / (1.0 - p)
