"""Tensors of random numbers. What is drawn follows from the state in `random`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from tiny import random
from tiny.creation import ZERO, CreationMixin, checked_sizes
from tiny.dtype import DTypeLike, dtypes, to_dtype
from tiny.helpers import argfix, ceildiv, prod
from tiny.mixin.sizes import most, product, settled
from tiny.uop.ops import Ops, UOp
from tiny.uop.runtime import runtime


class RandomMixin(CreationMixin):
    """The constructors of a Tensor that draw."""

    __slots__ = ()

    if TYPE_CHECKING:

        def contiguous(self) -> Self:
            """These values in memory; in Tensor."""

    @staticmethod
    def manual_seed(seed: int = 0) -> None:
        """Begin anew, on all devices, with the numbers that follow from this seed."""
        random.manual_seed(seed)

    @classmethod
    def rand(
        cls,
        *shape: Any,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        contiguous: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """Floats drawn evenly from 0 to 1, 1 excluded, as many as the mantissa has steps."""
        sizes = checked_sizes("rand", argfix(*shape))
        to = dtypes.default_float if dtype is None else to_dtype(dtype)
        if not dtypes.is_float(to) or to in dtypes.weaks:
            raise ValueError(f"rand: the dtype must be a float of a fixed size, got {to}")
        place = runtime().canonicalize_device(device)
        numel = product(sizes)
        words = settled(ceildiv(numel * to.itemsize, 4))
        if most(words) >= 2**32:
            raise ValueError(f"rand: {sizes} of {to} needs {4 * words} random bytes; draw in parts")
        bits = cls._random_words(place, words)
        unsigned = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
        bits = bits.bitcast(unsigned[to.itemsize])._shrink([(0, numel)]).reshape(sizes)
        # random mantissa, exponent of 1: a float from 1 to 2
        exponent, mantissa = dtypes.finfo(to)
        bias = (1 << (exponent - 1)) - 1 + (to in dtypes.fp8_fnuz)
        ones = (bits >> (to.bitsize - mantissa)) | (bias << mantissa)
        result = (ones.bitcast(to) - 1)._computed_on(place)
        result = result.contiguous() if contiguous else result
        result.requires_grad = requires_grad
        return result

    @classmethod
    def _random_words(cls, device: str, words: Any) -> Self:
        """uint32 random bits, shape (words,): counters 0, 1, … under the key of the draw."""
        half = settled(ceildiv(words, 2))
        key = random.draw_key(device, words)
        if isinstance(words, UOp):  # the counter of each word, as rows would be of unknown length
            places = cls._value(ZERO, None)._places(words).cast(dtypes.uint64)
            is_low = places < half
            low = is_low.where(places, places - half)
            counters = ((low + half) << 32) | low
            bits = counters._node(Ops.THREEFRY, dtypes.uint64, (counters._scalar(key),))
            shifts = is_low.where(places._scalar(0, dtypes.uint64), 32)
            return (bits >> shifts).cast(dtypes.uint32)
        places = cls.arange(half, dtype=dtypes.uint64)
        counters = ((places + half) << 32) | places
        bits = counters._node(Ops.THREEFRY, dtypes.uint64, (counters._scalar(key),))
        # all low words come first, then all high ones
        shifts = (places._places(2).cast(dtypes.uint64) * 32).reshape(2, 1)
        return (bits.reshape(1, half) >> shifts).cast(dtypes.uint32).flatten()._cut(0, 0, words)

    @classmethod
    def randn(
        cls,
        *shape: Any,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Floats of mean 0 and variance 1, normally distributed (Box & Muller, 1958)."""
        sizes = checked_sizes("randn", argfix(*shape))
        to = dtypes.default_float if dtype is None else to_dtype(dtype)
        pair = cls.rand(2, *sizes, **{**kwargs, "dtype": dtypes.float32})
        angle, radius = pair[0] * (2 * math.pi), ((1 - pair[1]).log() * -2).sqrt()
        result = (angle.cos() * radius).cast(to)
        result.requires_grad = requires_grad
        return result

    @classmethod
    def uniform(
        cls,
        *shape: Any,
        low: float = 0.0,
        high: float = 1.0,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Numbers drawn evenly from low to high, high excluded."""
        if low >= high:
            raise ValueError(f"uniform: low must be less than high, got {low} and {high}")
        to = dtypes.default_float if dtype is None else to_dtype(dtype)
        result = ((high - low) * cls.rand(*shape, **kwargs)).cast(to) + low
        result.requires_grad = requires_grad
        return result

    @classmethod
    def randint(
        cls,
        *shape: Any,
        low: int = 0,
        high: int = 10,
        dtype: DTypeLike = dtypes.int32,
        **kwargs: Any,
    ) -> Self:
        """Integers drawn evenly from low to high, high excluded."""
        if not isinstance(low, int) or not isinstance(high, int):
            raise TypeError(f"randint: low and high are ints, got {low!r} and {high!r}")
        if not dtypes.is_int(to_dtype(dtype)):
            raise TypeError(f"randint: the dtype must be one of integers, got {dtype}")
        return cls.uniform(*shape, low=low, high=high, dtype=dtype, **kwargs)

    @classmethod
    def normal(cls, *shape: Any, mean: float = 0.0, std: float = 1.0, **kwargs: Any) -> Self:
        """Floats normally distributed, of a mean and a standard deviation."""
        if std < 0:
            raise ValueError(f"normal: std must be at least 0, got {std}")
        requires_grad = kwargs.pop("requires_grad", None)
        result = std * cls.randn(*shape, **kwargs) + mean
        result.requires_grad = requires_grad
        return result

    @classmethod
    def scaled_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Evenly from ±1, divided by the square root of the number of elements."""
        bound = _number_of("scaled_uniform", argfix(*shape)) ** -0.5
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    @classmethod
    def glorot_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Evenly from ±sqrt(6 / (inputs + outputs)) (Glorot & Bengio, 2010)."""
        sizes = argfix(*shape)
        bound = (6 / _number_of("glorot_uniform", (sizes[0] + prod(sizes[1:]),))) ** 0.5
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    @classmethod
    def kaiming_uniform(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Evenly from ±sqrt(6 / (1 + a²) / inputs) (He et al., 2015)."""
        bound = (6 / (1 + a**2) / _number_of("kaiming_uniform", argfix(*shape)[1:])) ** 0.5
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    @classmethod
    def kaiming_normal(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Normally, with variance 2 / (1 + a²) / inputs (He et al., 2015)."""
        std = (2 / (1 + a**2) / _number_of("kaiming_normal", argfix(*shape)[1:])) ** 0.5
        return cls.normal(*shape, mean=0.0, std=std, **kwargs)

    def rand_like(self, **kwargs: Any) -> Self:
        """`rand` in this shape, dtype and device."""
        return self.rand(*self.shape, **self._like(kwargs))

    def randn_like(self, dtype: DTypeLike | None = None, **kwargs: Any) -> Self:
        """`randn` in this shape, dtype and device."""
        return self.randn(*self.shape, **self._like({**kwargs, "dtype": dtype}))


def _number_of(what: str, sizes: Sequence[Any]) -> int:
    """How many elements; ValueError if that is symbolic."""
    found = product(sizes)
    if not isinstance(found, int):
        raise ValueError(
            f"{what}: the bounds depend on the sizes {tuple(sizes)}, which are symbolic; "
            "use uniform or normal with bounds of your own"
        )
    return found
