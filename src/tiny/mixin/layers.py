"""Layers that hold no weights of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from tiny.dtype import dtypes
from tiny.helpers import TRAINING, make_tuple
from tiny.mixin.elementwise import in_float32
from tiny.mixin.sizes import product, why_unequal
from tiny.mixin.sort import SortMixin


class LayersMixin(SortMixin):
    """What networks are made of, as methods of what goes through it."""

    __slots__ = ()

    if TYPE_CHECKING:

        def rand_like(self, **kwargs: Any) -> Self:
            """Numbers drawn evenly from 0 to 1 in this shape; in Tensor, as is what follows."""

        def contiguous(self) -> Self:
            """These values in memory."""

    def sequential(self, ll: Sequence[Callable[[Self], Self]]) -> Self:
        """The functions applied one after the other, from the first to the last.

        >>> Tensor([-1.0, 2.0]).sequential([Tensor.relu, lambda x: x + 1]).tolist()
        [1.0, 3.0]
        """
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
        axis: int | Sequence[int] = 1,
    ) -> Self:
        """(x - mean) * invstd * weight + bias, each along `axis` (Ioffe & Szegedy, 2015).

        `axis` names one or more dimensions of x: `weight`, `bias` and `mean` have their sizes, and
        so has `invstd` (one over the standard deviation), or it is of a shape that broadcasts to x.
        IndexError for a dimension that is not there, ValueError for other shapes.

        >>> x = Tensor([[1.0, 10.0], [3.0, 30.0]])
        >>> mean, invstd = x.mean(0), (x.var(0, correction=0)).rsqrt()
        >>> x.batchnorm(None, None, mean, invstd).tolist()
        [[-1.0, -1.0], [1.0, 1.0]]
        """
        kept = {self._resolve_dim(a) for a in make_tuple(axis, 1)}
        sizes = tuple(s for k, s in enumerate(self.shape) if k in kept)
        shape = tuple(s if k in kept else 1 for k, s in enumerate(self.shape))
        for what, given in (("weight", weight), ("bias", bias), ("mean", mean)):
            if given is not None and product(given.shape) != product(sizes):
                raise ValueError(
                    f"batchnorm: {what} is of shape {given.shape}; along axis {axis} of "
                    f"{self.shape} it has shape {sizes}{why_unequal((*given.shape, *sizes))}"
                )
        x = self - mean.reshape(shape)
        if weight is not None:
            x = x * weight.reshape(shape)
        # one value a channel, or one each: only its own dimensions are known
        x = x * (invstd.reshape(shape) if invstd.ndim == len(kept) else invstd)
        return x if bias is None else x + bias.reshape(shape)

    @in_float32
    def layernorm(self, axis: int | Sequence[int] | None = -1, eps: float = 1e-5) -> Self:
        """Mean 0 and variance 1 along `axis`, None being all (Ba, Kiros & Hinton, 2016).

        The result is a float of the shape of x; `eps` is added to the variance. IndexError for a
        dimension that is not there.

        >>> Tensor([[1.0, 3.0], [10.0, 10.0]]).layernorm(eps=0.0001).numpy().round(3)
        array([[-1.,  1.],
               [ 0.,  0.]], dtype=float32)
        """
        x = self - self.mean(axis, keepdim=True)
        return x * (x.square().mean(axis, keepdim=True) + eps).rsqrt()

    def dropout(self, p: float = 0.5) -> Self:
        """A share p of the elements set to 0, the others divided by 1 - p; in training only.

        Where `Tensor.training` is not set, or p is 0, this is x itself. ValueError if p is not
        from 0 to 1. Method: Srivastava et al., 2014.

        >>> with Tensor.train():
        ...     sorted({*Tensor.ones(1000).dropout(0.75).tolist()})
        [0.0, 4.0]
        """
        if not 0 <= p <= 1:
            raise ValueError(f"dropout: p must be between 0 and 1, got {p}")
        if not TRAINING or p == 0:
            return self
        if p == 1:
            return self._scalar(False)._broadcast_to(self.shape).where(self._as_float(), 0)
        kept = self.rand_like(dtype=dtypes.default_float, contiguous=False) >= p
        return kept.contiguous().where(self, 0) / (1.0 - p)
