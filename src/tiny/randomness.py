"""Tensors of random numbers. What is drawn follows from the state in `random`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from tiny import random
from tiny.creation import ZERO, CreationMixin, checked_sizes
from tiny.dtype import DType, DTypeLike, dtypes, to_dtype
from tiny.helpers import argfix, ceildiv, prod
from tiny.mixin.elementwise import UNSIGNED
from tiny.mixin.movement import broadcast_shape
from tiny.mixin.sizes import most, product, settled
from tiny.uop.ops import Ops, UOp
from tiny.values import place_of

# a float32 has too few steps for integers over a range that is wider than this
_WIDEST_OF_FLOATS = 2**31
_LATEST = 3e38  # an arrival that a float32 still holds


class RandomMixin(CreationMixin):
    """The constructors of a Tensor that draw.

    A seed gives the same numbers on all devices and in all programs. Draws count: each takes the
    words that follow those of the draw before, in the order in which the methods are called,
    whenever the numbers are computed.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def contiguous(self) -> Self:
            """These values in memory; in Tensor."""

    @staticmethod
    def manual_seed(seed: int = 0) -> None:
        """Begin anew, on all devices, with the numbers that follow from this seed, of 32 bits.

        TypeError if it is no int.

        >>> Tensor.manual_seed(3)
        >>> first = Tensor.randint(4).tolist()
        >>> Tensor.manual_seed(3)
        >>> Tensor.randint(4).tolist() == first
        True
        """
        random.manual_seed(seed)

    # ------------------------------------------------------------ bits

    @classmethod
    def _random_words(cls, device: str, words: Any) -> Self:
        """uint32 random bits, shape (words,), that the generator of a device has next."""
        key = cls._value(ZERO, None)._scalar(random.draw_key(device, words))
        return cls._words_of(key, words)

    @classmethod
    def _words_of(cls, key: Self, words: Any) -> Self:
        """uint32 random bits, shape (words,): counters 0, 1, … under a key, uint64 of shape ()."""
        half = settled(ceildiv(words, 2))
        if isinstance(words, UOp):  # the counter of each word, as rows would be of unknown length
            places = cls._value(ZERO, None)._places(words).cast(dtypes.uint64)
            is_low = places < half
            low = is_low.where(places, places - half)
            bits = (((low + half) << 32) | low).threefry(key)
            shifts = is_low.where(places._scalar(0, dtypes.uint64), 32)
            return (bits >> shifts).cast(dtypes.uint32)
        places = cls.arange(half, dtype=dtypes.uint64)
        bits = (((places + half) << 32) | places).threefry(key)
        # all low words come first, then all high ones
        shifts = (places._places(2).cast(dtypes.uint64) * 32).reshape(2, 1)
        return (bits.reshape(1, half) >> shifts).cast(dtypes.uint32).flatten()._cut(0, 0, words)

    def threefry(self, seed: Any) -> Self:
        """64 random bits of each counter in this under a key, both uint64, broadcast.

        Method: Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as
        1, 2, 3", SC 2011); the low words of counter, key and result come first. TypeError for
        other dtypes.

        >>> Tensor([1, 2], dtype=dtypes.uint64).threefry(5).tolist()
        [8853074403113563486, 1965861679108977291]
        """
        x = self
        if isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**64:
            key = self._scalar(seed, dtypes.uint64)
        else:
            key = seed if isinstance(seed, type(self)) else self._scalar(seed)
        if x.dtype is not dtypes.uint64 or key.dtype is not dtypes.uint64:
            raise TypeError(
                f"threefry: counters and keys are uint64, got {x.dtype} and {key.dtype}; cast them"
            )
        shape = broadcast_shape("threefry", x.shape, key.shape)
        x, key = x._broadcast(shape), key._broadcast(shape)
        return x._node(Ops.THREEFRY, dtypes.uint64, (key,))

    @classmethod
    def random_bits(cls, key: Any, counter: Any, num: int) -> Self:
        """`num` random words, uint32, that follow from a key and a counter of two words each.

        The numbers of `rand` come from these: its key is that of the seed, its counter the number
        of words drawn before. Key and counter are (low, high), tensors or lists of integers.
        TypeError or ValueError for anything else.

        >>> Tensor.random_bits([3, 4], [0, 0], 4).tolist()
        [3906682701, 3328095735, 3238728890, 2134317380]
        """
        if not isinstance(num, int) or not 0 <= num < 2**32:
            raise ValueError(f"random_bits: num is an int from 0 to 2^32 - 1, got {num!r}")
        words = []
        for what, given in (("key", key), ("counter", counter)):
            x = given if isinstance(given, cls) else cls(given, dtype=dtypes.uint32)
            if x.shape != (2,) or not dtypes.is_int(x.dtype):
                raise ValueError(
                    f"random_bits: the {what} is two words, (low, high), got {x.dtype} of shape "
                    f"{x.shape}"
                )
            x = x.cast(dtypes.uint32).cast(dtypes.uint64)
            words.append(x._cut(0, 0, 1).reshape(()) | x._cut(0, 1, 2).reshape(()) << 32)
        return cls._words_of(words[1].threefry(words[0]), num)

    # ------------------------------------------------------------ numbers drawn evenly

    @classmethod
    def rand(
        cls,
        *shape: Any,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        contiguous: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """Floats drawn evenly from 0 to 1, 1 excluded, as many as the mantissa has steps.

        They are computed once, in memory; without `contiguous` where they are used. ValueError if
        the dtype is no float.

        >>> Tensor.manual_seed(42)
        >>> [round(number, 4) for number in Tensor.rand(3).tolist()]
        [0.5334, 0.6702, 0.7631]
        """
        sizes = checked_sizes("rand", argfix(*shape))
        to = dtypes.default_float if dtype is None else to_dtype(dtype)
        if not dtypes.is_float(to) or to in dtypes.weaks:
            raise ValueError(f"rand: the dtype must be a float of a fixed size, got {to}")
        place = place_of(device)
        numel = product(sizes)
        words = settled(ceildiv(numel * to.itemsize, 4))
        if most(words) >= 2**32:
            raise ValueError(f"rand: {sizes} of {to} needs {4 * words} random bytes; draw in parts")
        bits = cls._random_words(place, words)
        bits = bits.bitcast(UNSIGNED[to.itemsize])._shrink([(0, numel)]).reshape(sizes)
        # random mantissa, exponent of 1: a float from 1 to 2
        exponent, mantissa = dtypes.finfo(to)
        bias = (1 << (exponent - 1)) - 1 + (to in dtypes.fp8_fnuz)
        ones = (bits >> (to.bitsize - mantissa)) | (bias << mantissa)
        result = (ones.bitcast(to) - 1)._computed_on(place)
        result = result.contiguous() if contiguous else result
        result.requires_grad = requires_grad
        return result

    def rand_like(self, **kwargs: Any) -> Self:
        """`rand` in this shape, dtype and device.

        >>> Tensor.zeros(2, 3, dtype="half").rand_like().dtype.name
        'float16'
        """
        return self.rand(*self.shape, **self._like(kwargs))

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
        """Numbers drawn evenly from low to high, high excluded, but where a sum rounds to it.

        ValueError if low is not less than high.

        >>> x = Tensor.uniform(1000, low=-2.0, high=3.0)
        >>> -2.0 <= x.min().item() < x.max().item() < 3.0
        True
        """
        if not low < high:
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
        """Integers drawn evenly from low to high, high excluded.

        Over a range of n up to 2^31 each is n times one of 2^23 floats, rounded down; over a wider
        one n times a fraction of 128 bits. TypeError if low, high or the dtype are not of integers;
        ValueError if low is not less than high or the dtype can not hold all.

        >>> x = Tensor.randint(100, low=-1, high=2)
        >>> x.min().item(), x.max().item()
        (-1, 1)
        """
        if not isinstance(low, int) or not isinstance(high, int):
            raise TypeError(f"randint: low and high are ints, got {low!r} and {high!r}")
        to = to_dtype(dtype)
        if not dtypes.is_int(to) or to in dtypes.weaks:
            raise TypeError(f"randint: the dtype must be one of integers, got {to}")
        if low >= high:
            raise ValueError(f"randint: low must be less than high, got {low} and {high}")
        if low < to.min or high - 1 > to.max:
            raise ValueError(
                f"randint: {low} to {high - 1} does not fit into {to}; pass a wider dtype"
            )
        if high - low <= _WIDEST_OF_FLOATS:
            return cls.uniform(*shape, low=low, high=high, dtype=to, **kwargs)
        return cls._wide_randint(checked_sizes("randint", argfix(*shape)), low, high, to, **kwargs)

    @classmethod
    def _wide_randint(
        cls,
        sizes: tuple[Any, ...],
        low: int,
        high: int,
        dtype: DType,
        device: str | None = None,
        contiguous: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        place, numel, count = place_of(device), product(sizes), high - low
        bits = cls._random_words(place, settled(4 * numel)).bitcast(dtypes.uint64)
        steps, rest = [
            bits._cut(0, begin, end).reshape(sizes)
            for begin, end in ((0, numel), (numel, settled(2 * numel)))
        ]
        if count < 2**64:
            steps, below = steps._times(count)
            more = below + rest._times(count)[0]
            steps = steps + (more < below).cast(dtypes.uint64)  # what is carried
        result = (steps.cast(dtype) + low)._computed_on(place)
        result = result.contiguous() if contiguous else result
        result.requires_grad = requires_grad
        return result

    def _times(self, count: int) -> tuple[Self, Self]:
        """The high and the low 64 bits of a product with a number of 64 bits."""
        word = 2**32 - 1
        a, b = self >> 32, self & word
        low = b * (count & word)
        middle = a * (count & word) + (low >> 32)
        other = b * (count >> 32) + (middle & word)
        high = a * (count >> 32) + (middle >> 32) + (other >> 32)
        return high, other << 32 | low & word

    @classmethod
    def scaled_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Evenly from ±1, divided by the square root of the number of elements.

        >>> Tensor.scaled_uniform(100).abs().max().item() <= 0.1
        True
        """
        count = _number_of("scaled_uniform", argfix(*shape))
        return cls._scaled(cls.uniform, max(count, 1) ** -0.5, shape, low=-1.0, high=1.0, **kwargs)

    @classmethod
    def glorot_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Evenly from ±sqrt(6 / (inputs + outputs)) (Glorot & Bengio, AISTATS 2010).

        The shape is (outputs, inputs, …), all but the first of which are inputs. ValueError if it
        is ().

        >>> Tensor.glorot_uniform(10, 14).abs().max().item() <= 0.5
        True
        """
        sizes = _weights("glorot_uniform", shape)
        count = _number_of("glorot_uniform", (sizes[0] + prod(sizes[1:]),))
        bound = (6 / max(count, 1)) ** 0.5
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    @classmethod
    def kaiming_uniform(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Evenly from ±sqrt(6 / (1 + a²) / inputs) (He et al., ICCV 2015).

        The shape is (outputs, inputs, …); `a` is the slope of leaky_relu below 0. ValueError if
        the shape is ().

        >>> Tensor.kaiming_uniform(10, 24, a=0).abs().max().item() <= 0.5
        True
        """
        count = _number_of("kaiming_uniform", _weights("kaiming_uniform", shape)[1:])
        bound = (6 / (1 + a**2) / max(count, 1)) ** 0.5
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    # ------------------------------------------------------------ numbers drawn normally

    @classmethod
    def randn(
        cls,
        *shape: Any,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Floats of mean 0 and variance 1, normally distributed, from two drawn evenly in float32.

        Method: Box & Muller, Ann. Math. Statist. 1958. None is beyond ±5.65.

        >>> x = Tensor.randn(10000)
        >>> abs(x.mean().item()) < 0.05 and abs(x.std().item() - 1) < 0.05
        True
        """
        sizes = checked_sizes("randn", argfix(*shape))
        to = dtypes.default_float if dtype is None else to_dtype(dtype)
        pair = cls.rand(2, *sizes, **{**kwargs, "dtype": dtypes.float32})
        # the cosine of 2π times a draw, as the sine of what is exact until it is multiplied
        angle = ((pair[0] - 0.5).abs() - 0.25) * (2 * math.pi)
        radius = ((1 - pair[1]).log() * -2).sqrt()
        result = (angle.sin() * radius).cast(to)
        result.requires_grad = requires_grad
        return result

    def randn_like(self, dtype: DTypeLike | None = None, **kwargs: Any) -> Self:
        """`randn` in this shape, dtype and device.

        >>> Tensor([1, 2]).randn_like(dtype="float64").shape
        (2,)
        """
        return self.randn(*self.shape, **self._like({**kwargs, "dtype": dtype}))

    @classmethod
    def normal(cls, *shape: Any, mean: float = 0.0, std: float = 1.0, **kwargs: Any) -> Self:
        """Floats normally distributed, of a mean and a standard deviation.

        ValueError if `std` is negative.

        >>> x = Tensor.normal(10000, mean=5.0, std=0.1)
        >>> abs(x.mean().item() - 5) < 0.005
        True
        """
        if not std >= 0:
            raise ValueError(f"normal: std must be at least 0, got {std}")
        requires_grad = kwargs.pop("requires_grad", None)
        result = std * cls.randn(*shape, **kwargs) + mean
        result.requires_grad = requires_grad
        return result

    @classmethod
    def kaiming_normal(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Normally, with variance 2 / (1 + a²) / inputs (He et al., ICCV 2015).

        The shape is (outputs, inputs, …); `a` is the slope of leaky_relu below 0. ValueError if
        the shape is ().

        >>> x = Tensor.kaiming_normal(100, 200, a=0)
        >>> abs(x.std().item() - 0.1) < 0.01
        True
        """
        count = _number_of("kaiming_normal", _weights("kaiming_normal", shape)[1:])
        std = (2 / (1 + a**2) / max(count, 1)) ** 0.5
        return cls.normal(*shape, mean=0.0, std=std, **kwargs)

    @classmethod
    def _scaled(cls, draw: Any, by: float, shape: tuple[Any, ...], **kwargs: Any) -> Self:
        requires_grad = kwargs.pop("requires_grad", None)
        result: Self = draw(*shape, **kwargs) * by
        result.requires_grad = requires_grad
        return result

    # ------------------------------------------------------------ orders and choices

    @classmethod
    def randperm(
        cls, n: int, device: str | None = None, dtype: DTypeLike = dtypes.int32, **kwargs: Any
    ) -> Self:
        """The numbers from 0 to n - 1 in a random order: that of n random numbers when sorted.

        ValueError if n is no int of at least 0, or the dtype can not hold n - 1.

        >>> sorted(Tensor.randperm(5).tolist())
        [0, 1, 2, 3, 4]
        """
        to = to_dtype(dtype)
        if not isinstance(n, int) or n < 0:
            raise ValueError(f"randperm: n is an int of at least 0, got {n!r}")
        if dtypes.is_int(to) and n - 1 > to.max:
            raise ValueError(f"randperm: {n - 1} does not fit into {to}; pass a wider dtype")
        requires_grad = kwargs.pop("requires_grad", None)
        result = cls.rand(n, device=device, **kwargs).argsort().cast(to)
        result.requires_grad = requires_grad
        return result

    def multinomial(self, num_samples: int = 1, replacement: bool = False) -> Self:
        """Places drawn with probabilities that are in proportion to these weights, int32.

        Weights are of shape (n,), or (rows, n) for a draw of `num_samples` from each row; they need
        not sum to 1. With `replacement` a place may come again. A weight of 0 is drawn only without
        replacement, when no other is left. What is drawn of negative weights or NaN is not defined.
        ValueError for other shapes, and if without replacement there are fewer places than samples.
        Method: with replacement by inversion of the running sums; without, the first arrivals at
        rates in proportion to the weights (Efraimidis & Spirakis, Inf. Process. Lett. 2006).

        >>> Tensor([0.0, 2.0, 0.0]).multinomial(3, replacement=True).tolist()
        [1, 1, 1]
        >>> sorted(Tensor([1.0, 5.0, 0.0, 2.0]).multinomial(3).tolist())
        [0, 1, 3]
        """
        count = self.shape[-1] if self.ndim in (1, 2) else 0
        if not isinstance(count, int) or count < 1:
            raise ValueError(
                f"multinomial: weights are of shape (n,) or (rows, n), n an int of at least 1, got "
                f"{self.shape}"
            )
        if not isinstance(num_samples, int) or num_samples < 1:
            raise ValueError(
                f"multinomial: num_samples is an int of at least 1, got {num_samples!r}"
            )
        if num_samples > count and not replacement:
            raise ValueError(
                f"multinomial: {num_samples} samples of {count} places without replacement are "
                "too many; pass replacement=True"
            )
        weights = self.detach().reshape(-1, count)
        weights = weights.cast(dtypes.float64 if self.dtype is dtypes.float64 else dtypes.float32)
        if replacement or num_samples == 1:
            places = weights._chosen(num_samples)
        else:
            places = weights._first_to_arrive(num_samples)
        return places.reshape(num_samples) if self.ndim == 1 else places

    def _chosen(self, count: int) -> Self:
        """Of each row of weights, `count` places: the last positive one that begins below a draw.

        Not the first that ends above it, which a sum rounded down might leave out.
        """
        rows, width = self.shape
        sums = self.cumsum(1)
        ends = (sums / sums._cut(1, width - 1, width))._cut(1, 0, width - 1)
        begins = ends.pad(((0, 0), (1, 0))).contiguous()
        drawn = self.rand(count, rows, device=self.device, dtype=dtypes.float32)
        drawn = drawn.transpose().unsqueeze(-1)
        can_be = (begins.unsqueeze(1) <= drawn) & (self > 0).unsqueeze(1)
        places = self._value(ZERO, None)._places(width)
        return can_be.where(places, 0).max(-1)

    def _first_to_arrive(self, count: int) -> Self:
        """Of each row of weights, `count` different places: those with the earliest arrivals."""
        drawn = self.rand(*self.shape, device=self.device, dtype=dtypes.float32)
        drawn = drawn.maximum(2**-24)  # of 0 the time would be infinite, as of a weight of 0
        times = drawn.log().neg().cast(self.dtype) / self
        times = (self > 0).where(times.minimum(_LATEST), math.inf)
        return times.topk(count, dim=1, largest=False)[1]


def _weights(what: str, shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape of weights, of which the first size is that of the outputs."""
    sizes = argfix(*shape)
    if not sizes:
        raise ValueError(f"{what}: the shape (outputs, inputs, …) must have a dimension, got ()")
    return sizes


def _number_of(what: str, sizes: Sequence[Any]) -> int:
    """How many elements; ValueError if that is symbolic."""
    found = product(sizes)
    if not isinstance(found, int):
        raise ValueError(
            f"{what}: the bounds depend on the sizes {tuple(sizes)}, which are symbolic; "
            "use uniform or normal with bounds of your own"
        )
    return found
