"""`Tensor`: what users write. It builds graphs; the bound Runtime computes them."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tiny import random
from tiny._core.build import binary, select
from tiny.dtype import (
    DType,
    DTypeLike,
    _from_np_dtype,
    _to_np_dtype,
    dtypes,
    strong_dtype,
    to_dtype,
    truncate,
)
from tiny.gradient import compute_gradient
from tiny.helpers import Context, all_int, argfix, ceildiv, prod
from tiny.mixin import CastsMixin
from tiny.mixin.sizes import (
    difference,
    is_at_most,
    least,
    most,
    product,
    settled,
    settled_all,
    split_sizes,
)
from tiny.storage import (
    VIEWS,
    View,
    built_again,
    changes,
    copied,
    in_order,
    in_turn,
    live_views,
    memory_below,
    opened,
    realize,
)
from tiny.uop.ops import Ops, UOp, sym_infer
from tiny.uop.runtime import refuse_reading, runtime

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Tensor"]

_uniques = itertools.count()
_KINDS = {"b": 0, "u": 1, "i": 2, "w": 2, "f": 3, "8": 3}  # of dtypes: what holds those before
_ZERO = UOp.const(0, dtypes.int32)


def _is_whole(index: Any) -> bool:
    """Whether an index is the slice of everything."""
    return isinstance(index, slice) and index == slice(None)


def _is_data(x: Any) -> bool:
    """Whether x is an array of NumPy or one of its scalars, told without importing it."""
    return hasattr(x, "__array_interface__") and hasattr(x, "dtype")


class Tensor(View, CastsMixin):
    """A multi-dimensional array of one dtype, computed when its values are asked for.

    `data` is a number, a (nested) list of numbers, a NumPy array (copied), bytes (uint8, or the
    items of `dtype`), or a UOp. ValueError if lists of one level differ in length; TypeError for
    anything else. `device` is where it lives, by default where the runtime says.
    """

    __slots__ = ()
    # so that NumPy's operators leave `array + tensor` to this class
    __array_ufunc__: ClassVar[None] = None

    def __init__(
        self,
        data: Any,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> None:
        to = None if dtype is None else to_dtype(dtype)
        if isinstance(data, Tensor):
            data = data if to is None else data.cast(to)
            uop = data.uop
        elif isinstance(data, UOp):
            uop = data
            if to is None and uop.dtype is dtypes.index:
                narrow = dtypes.default_int
                fits = narrow.min <= uop.vmin and uop.vmax <= narrow.max
                to = narrow if fits else dtypes.int64
            if to is not None and to is not uop.dtype:
                uop = uop.cast(to)
        elif data is None or (isinstance(data, bool | int | float) and not _is_data(data)):
            uop = _leaf(0.0 if data is None else data, to)
        else:
            uop = _from_data(data, device, to)
        if uop.dtype is dtypes.void or uop._shape is None:
            raise TypeError(f"Tensor: {uop.op!r} computes no value")
        if isinstance(data, Tensor):  # another tensor of the same storage
            self._bind(data._storage, data._root, uop)
        else:
            self._bind(*opened(uop))
        if device is not None and isinstance(data, UOp | Tensor):
            self.replace(self.to(device))
        self.requires_grad = requires_grad

    # ------------------------------------------------------------ the protocol of the mixins

    def _node(
        self, op: Ops, dtype: DType, others: tuple[Tensor, ...] = (), arg: Any = None
    ) -> Self:
        device, epoch = self._storage.device, changes.epoch
        if not others:
            source, root = self._now()
            uop = UOp(op, dtype, (source,), arg)
            if op in VIEWS:
                return self._view(self._storage, root, uop)
        else:
            for other in others:
                theirs = other._storage.device
                if theirs is not None and theirs != device:
                    if device is not None:
                        raise ValueError(
                            f"{op.name.lower()}: one operand is on {device} and one on {theirs}; "
                            f'move one, with .to("{device}") say'
                        )
                    device = theirs
            uop = UOp(op, dtype, (self.uop, *[o.uop for o in others]), arg)
        made = self._value(uop, device)
        if epoch is None or changes.epoch is not epoch:
            return built_again(self._node, op, dtype, others, arg)
        return made

    def _binop(self, op: Ops, x: Any, reverse: bool) -> Self:
        device, other, epoch = self._storage.device, x, changes.epoch
        if isinstance(x, Tensor):
            other, theirs = x.uop, x._storage.device
            if device is None:
                device = theirs
            elif theirs is not None and theirs != device:
                return super()._binop(op, x, reverse)
        uop = binary(op, self.uop, other, reverse)
        if uop is None:
            return super()._binop(op, x, reverse)
        made = self._value(uop, device)
        if epoch is None or changes.epoch is not epoch:
            return built_again(self._binop, op, x, reverse)
        return made

    def where(self, x: Any, y: Any) -> Self:
        """x where this condition is true, y elsewhere. TypeError if the condition is not bool."""
        device, values, epoch = self._storage.device, [], changes.epoch
        for value in (x, y):
            if isinstance(value, Tensor):
                theirs = value._storage.device
                if device is None:
                    device = theirs
                elif theirs is not None and theirs != device:
                    return super().where(x, y)
                value = value.uop
            values.append(value)
        uop = select(self.uop, *values)
        if uop is None:
            return super().where(x, y)
        made = self._value(uop, device)
        if epoch is None or changes.epoch is not epoch:
            return built_again(self.where, x, y)
        return made

    def _quick(self, move: Callable[[Any, Any], Any], arg: Any) -> Self | None:
        old, root = self._now()
        new = move(old, arg)
        if new is None:
            return None
        return self if new is old else self._view(self._storage, root, new)

    def _move(self, op: Ops, arg: Any, sizes: tuple[Any, ...] = ()) -> Self:
        source = self._strong()
        node, root = source._now()
        uop = UOp(op, source.dtype, (node, *sizes), arg)
        return self._view(source._storage, root, uop)

    def _scalar(self, value: Any, dtype: DType | None = None) -> Self:
        if isinstance(value, bool | int | float):
            uop = _constant(value, dtype)
        elif isinstance(value, UOp) and value.shape == ():
            weak = dtypes.weakint if value.dtype is dtypes.index else value.dtype
            uop = value.cast(weak if dtype is None else dtype)
        elif _is_data(value) and value.shape == ():
            return self._scalar(value.item(), dtype)
        else:
            raise TypeError(
                f"an operand is a Tensor or a number, got {type(value).__name__}; "
                "write Tensor(…) around it"
            )
        return self._value(uop, None)

    def _retyped(self, dtype: DType) -> Self | None:
        uop = self.uop
        if uop.op is Ops.CAST:  # an expression of Variables, weak as an int is
            return self._value(uop.src[0].cast(dtype), None)
        if uop.op is not Ops.CONST:
            return None
        new = UOp(Ops.CONST, dtype, uop.src, _rounded(uop.arg, dtype))
        return self._value(new, None)

    def _number_bounds(self) -> tuple[Any, Any]:
        uop = self.uop
        if uop.op is Ops.CONST:
            return uop.arg, uop.arg
        return uop.src[0].vmin, uop.src[0].vmax

    def _index_value(self, index: Any) -> Self | None:
        if isinstance(index, type(self)):
            return index
        is_array = _is_data(index) and index.shape != ()
        return type(self)(index, device=self.device) if is_array else None

    def _known_index(self, index: Any) -> Any:
        if not isinstance(index, list | tuple) and not (_is_data(index) and index.shape != ()):
            return None
        import numpy as np

        try:
            array = np.asarray(index)
        except ValueError:
            raise IndexError("the lists of an index are ragged; all must have one length") from None
        return array if array.size else array.astype(np.int32)

    # ------------------------------------------------------------ creation

    @classmethod
    def const(cls, b: Any, dtype: DTypeLike | None = None) -> Self:
        """A constant of shape (). The arguments may also come as (dtype, value)."""
        if isinstance(b, DType | str):
            b, dtype = dtype, b
        return cls(b, dtype=dtype)

    @classmethod
    def empty(
        cls,
        *shape: Any,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Memory whose contents are not defined."""
        sizes = _sizes("empty", argfix(*shape))
        to = dtypes.default_float if dtype is None else strong_dtype(to_dtype(dtype))
        place = runtime().canonicalize_device(device)
        memory = runtime().empty(tuple([most(size) for size in sizes]), to, place)
        return cls(memory.front(sizes), requires_grad=requires_grad)

    @classmethod
    def full(
        cls,
        shape: Any,
        fill_value: Any,
        dtype: DTypeLike | None = None,
        device: str | None = None,
        buffer: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """Memory filled with one value; without `buffer` a constant that takes no memory.

        The dtype is by default that of the value: default_int, default_float or bool.
        """
        sizes = _sizes("full", argfix(shape))
        to = strong_dtype(dtypes.from_py(fill_value) if dtype is None else to_dtype(dtype))
        if not buffer:
            value = _leaf(fill_value, to)
            static, symbolic = split_sizes(sizes)
            wide = UOp(Ops.EXPAND, to, (value, *symbolic), static) if sizes else value
            return cls(wide, requires_grad=requires_grad)
        result = cls.empty(sizes, device=device, dtype=to, requires_grad=requires_grad)
        result.assign(result._scalar(fill_value, to))
        result._storage.is_written = False  # it was made: only who reads it computes it
        return result

    @classmethod
    def zeros(cls, *shape: Any, **kwargs: Any) -> Self:
        """Zeros; see `full` for the keywords."""
        return cls.full(argfix(*shape), 0.0, **kwargs)

    @classmethod
    def ones(cls, *shape: Any, **kwargs: Any) -> Self:
        """Ones; see `full` for the keywords."""
        return cls.full(argfix(*shape), 1.0, **kwargs)

    def _like(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        own = {"dtype": strong_dtype(self.dtype), "device": self.device}
        return own | {k: v for k, v in kwargs.items() if v is not None}

    def empty_like(self, dtype: DTypeLike | None = None, device: str | None = None) -> Self:
        """Memory of this shape, dtype and device."""
        return self.empty(self.shape, **self._like({"dtype": dtype, "device": device}))

    def full_like(self, fill_value: Any, **kwargs: Any) -> Self:
        """One value in this shape, dtype and device."""
        return self.full(self.shape, fill_value, **self._like(kwargs))

    def zeros_like(self, **kwargs: Any) -> Self:
        """Zeros in this shape, dtype and device."""
        return self.full_like(0, **kwargs)

    def ones_like(self, **kwargs: Any) -> Self:
        """Ones in this shape, dtype and device."""
        return self.full_like(1, **kwargs)

    def const_like(self, b: Any, dtype: DTypeLike | None = None) -> Self:
        """A constant in this shape that takes no memory."""
        to = strong_dtype(self.dtype if dtype is None else to_dtype(dtype))
        return self._scalar(b, to)._broadcast_to(self.shape)

    @classmethod
    def arange(
        cls,
        start: float,
        stop: float | None = None,
        step: float = 1,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> Self:
        """From start (0 if only one number is given) to stop, without it, in steps."""
        begin, end = (0, start) if stop is None else (start, stop)
        if step == 0:
            raise ValueError("arange: step must not be 0")
        whole = all(isinstance(v, int | UOp) for v in (begin, end, step))
        if any(isinstance(v, UOp) for v in (begin, end, step)):
            return cls._symbolic_arange(begin, end, step, dtype)._placed(kwargs)
        to = dtypes.default_int if whole else dtypes.default_float
        to = to if dtype is None else strong_dtype(to_dtype(dtype))
        count = max(0, ceildiv(end - begin, step) if whole else math.ceil((end - begin) / step))
        ends = (begin, begin + (count - 1) * step) if count else (0,)
        if dtypes.is_int(to) and not (to.min <= min(ends) and max(ends) <= to.max):
            raise ValueError(f"arange: {begin} to {end} does not fit into {to}; pass a wider dtype")
        x = cls._value(_ZERO, None)._places(count)
        if whole:
            x = x.cast(x.dtype if max(abs(begin), abs(end)) < 2**31 else dtypes.int64)
        else:
            x = x.cast(_at_least_float32(to))
        x = x if step == 1 else x * step
        return (x + begin if begin else x).cast(to)._placed(kwargs)

    @classmethod
    def _symbolic_arange(cls, begin: Any, end: Any, step: Any, dtype: DTypeLike | None) -> Self:
        """From begin to end, of which one is an expression of Variables, in steps."""
        if not all(isinstance(v, int | UOp) for v in (begin, end)) or not isinstance(step, int):
            raise ValueError(
                f"arange: with a Variable, start and stop are integers and step is an int, got "
                f"{begin}, {end} and {step}"
            )
        begin, distance = settled(begin), difference(end, begin)
        count = settled(ceildiv(distance, step) if step > 0 else ceildiv(-distance, -step))
        if not is_at_most(0, count):
            raise ValueError(
                f"arange: that {end} does not lie before {begin}, in steps of {step}, is not known "
                "for all values of the Variables; give them narrower bounds"
            )
        to = dtypes.default_int if dtype is None else strong_dtype(to_dtype(dtype))
        ends = [least(begin), most(begin), least(end), most(end)]
        if dtypes.is_int(to) and not (to.min <= min(ends) and max(ends) <= to.max):
            raise ValueError(f"arange: {begin} to {end} does not fit into {to}; pass a wider dtype")
        x = cls._value(_ZERO, None)._places(count)
        x = x.cast(dtypes.int32 if max(map(abs, ends)) < 2**31 else dtypes.int64)
        x = x if step == 1 else x * step
        return (x if begin == 0 else x + begin).cast(to)

    def _placed(self, kwargs: dict[str, Any]) -> Self:
        """The keywords that every constructor takes, on a computed tensor."""
        device = kwargs.pop("device", None)
        self.requires_grad = kwargs.pop("requires_grad", None)
        if kwargs:
            raise TypeError(f"unknown keyword {next(iter(kwargs))!r}; device and requires_grad go")
        return self if device is None else self._computed_on(device)

    def _computed_on(self, device: str) -> Self:
        """This value, which depends on no memory, on a device."""
        place = runtime().canonicalize_device(device)
        uop = self.uop
        if place != runtime().default_device():  # where nothing else is said
            uop = UOp(Ops.COPY, uop.dtype, (uop,), place)
        placed = self._value(uop, place)
        placed.requires_grad = self.requires_grad
        return placed

    @classmethod
    def linspace(
        cls, start: float, stop: float, steps: int, dtype: DTypeLike | None = None, **kwargs: Any
    ) -> Self:
        """`steps` numbers from start to stop, both included, evenly apart."""
        if steps < 0:
            raise ValueError(f"linspace: steps must be at least 0, got {steps}")
        to = dtypes.default_float if dtype is None else to_dtype(dtype)
        places = cls.arange(steps, dtype=_at_least_float32(to))
        step = (stop - start) / (steps - 1) if steps > 1 else 0.0
        return (start + places * step).cast(to)._placed(kwargs)

    @classmethod
    def eye(
        cls, n: int, m: int | None = None, dtype: DTypeLike | None = None, **kwargs: Any
    ) -> Self:
        """Ones on the diagonal of an (n, m) matrix, m being n by default."""
        columns = n if m is None else m
        if n < 0 or columns < 0:
            raise ValueError(f"eye: sizes must be at least 0, got {n} and {columns}")
        to = dtypes.default_float if dtype is None else to_dtype(dtype)
        diagonal = cls.arange(n).unsqueeze(-1) == cls.arange(columns)
        return diagonal.where(1, 0).cast(to)._placed(kwargs)

    # ------------------------------------------------------------ random numbers

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
        sizes = _sizes("rand", argfix(*shape))
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
            places = cls._value(_ZERO, None)._places(words).cast(dtypes.uint64)
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
        sizes = _sizes("randn", argfix(*shape))
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

    # ------------------------------------------------------------ values, where others are views
    # What only rearranges is a view. These repeat elements or put others around, and give values
    # of the moment, as in NumPy and PyTorch, though nothing is computed for them here either.

    def _same(self) -> Self:
        return self._snapshot()

    def _apart(self, result: Self) -> Self:
        return result._snapshot() if result._storage is self._storage else result

    def _pick(self, picked: list[tuple[int, Self]]) -> Self:
        return super()._pick(picked)._snapshot()

    def _reduce(self, op: Ops, axis: Any, keepdim: bool) -> Self:
        return self._apart(super()._reduce(op, axis, keepdim))

    def pad(self, padding: Sequence[Any], mode: str = "constant", value: float = 0.0) -> Self:
        """`value` put around: (before, after) for each dimension, None for none.

        Flat numbers count pairs from the last dimension, as in PyTorch. A negative one cuts off.
        """
        return self._apart(super().pad(padding, mode, value))

    def repeat(self, repeats: Any, *args: Any) -> Self:
        """The whole put side by side so many times in each dimension; new ones come first."""
        return self._apart(super().repeat(repeats, *args))

    def repeat_interleave(self, repeats: Any, dim: int | None = None) -> Self:
        """Each element so many times in a row."""
        return self._apart(super().repeat_interleave(repeats, dim))

    def roll(self, shifts: Any, dims: Any = None) -> Self:
        """Shifted along dimensions, what leaves at one end coming in at the other."""
        return self._apart(super().roll(shifts, dims))

    def cat(self, *args: Self, dim: int = 0) -> Self:
        """Joined along a dimension; the other sizes must agree. Dtypes are promoted."""
        return self._apart(super().cat(*args, dim=dim))

    def stack(self, *args: Self, dim: int = 0) -> Self:
        """Joined along a new dimension; the shapes must agree."""
        return self._apart(super().stack(*args, dim=dim))

    def unfold(self, dim: int, size: int, step: int) -> Self:
        """Windows of a size along a dimension, `step` apart; their elements form a last one."""
        return self._apart(super().unfold(dim, size, step))

    # ------------------------------------------------------------ memory and devices

    def contiguous(self) -> Self:
        """These values in memory, in order: a view where they are so already, else a copy."""
        x = self._strong()
        uop, storage = x.uop, x._storage
        is_apart = storage.stands_apart and product(x.shape) != 1
        if is_apart or not in_order(uop, storage.node):
            return x._node(Ops.CONTIGUOUS, x.dtype)
        if uop.op is not Ops.CONTIGUOUS and memory_below(storage.node) is None:
            uop = UOp(Ops.CONTIGUOUS, x.dtype, (uop,))
        view = x._view(storage, x._root, uop)
        view.requires_grad = self.requires_grad
        return view

    def contiguous_backward(self) -> Self:
        """The same values; the gradient that comes back is put in memory here."""
        return self._node(Ops.CONTIGUOUS_BACKWARD, self.dtype)

    def clone(self, device: str | None = None) -> Self:
        """A copy with memory of its own."""
        x = self._strong()
        copy = x._node(Ops.CONTIGUOUS, x.dtype)
        copy.requires_grad = self.requires_grad
        return copy if device is None else copy.to(device)

    @in_turn
    def to(self, device: str | None) -> Self:
        """This tensor on a device; a constant goes where it is used."""
        own, there = self.device, runtime().canonicalize_device(device)
        if own is None or own == there:
            return self
        uop = UOp(Ops.COPY, self.dtype, (self.uop,), there)
        moved = self._value(uop, there)
        moved.requires_grad = self.requires_grad
        moved.grad = None if self.grad is None else self.grad.to(there)
        return moved

    def to_(self, device: str | None) -> Self:
        """Move this tensor, in place."""
        return self.replace(self.to(device))

    @in_turn
    def replace(self, x: Tensor) -> Self:
        """Become the tensor x: the same value, the same storage."""
        if x.shape != self.shape or x.dtype is not self.dtype:
            raise ValueError(
                f"replace: the shapes {self.shape} and {x.shape} and the dtypes {self.dtype} and "
                f"{x.dtype} must be equal"
            )
        uop = x.uop  # first: it may move x to the version of now
        self._move_to(x._storage, x._root, uop)
        return self

    # ------------------------------------------------------------ writing

    @in_turn
    def assign(self, x: Any) -> Self:
        """Write x here: a tensor of this dtype and device that broadcasts here, or numbers.

        All views of this tensor see it; what was computed before does not change.
        """
        value = self._value_to_write(x)
        if value.uop is not self.uop or value._storage is not self._storage:
            self._assign(value.uop, value.device)
        return self

    def _value_to_write(self, x: Any, shape: tuple[Any, ...] | None = None) -> Tensor:
        """A value as one of this dtype and of a shape, by default this one."""
        shape, value = self.shape if shape is None else shape, self._as_value(x)
        if value.dtype is not self.dtype:
            raise TypeError(
                f"assign: {value.dtype} can not be written to {self.dtype}; cast it first"
            )
        own = shape[len(shape) - value.ndim :]
        if value.ndim > len(shape) or any(
            s not in (1, o) for s, o in zip(value.shape, own, strict=True)
        ):
            raise ValueError(f"assign: {value.shape} does not broadcast to {shape}")
        here, theirs = self.device, value.device
        if here is not None and theirs is not None and here != theirs:
            raise ValueError(f"assign: the value is on {theirs}, this tensor on {here}; move one")
        return value if value.shape == shape else value._broadcast_to(shape)

    def _as_value(self, x: Any) -> Tensor:
        """A tensor as it is; numbers, lists and arrays as this dtype."""
        if self.dtype in dtypes.weaks:
            raise TypeError("assign: a Python number has no memory to write to; use full")
        if isinstance(x, Tensor):
            value = x
        elif isinstance(x, bool | int | float):
            value = self._scalar(x, self.dtype)
        else:
            value = Tensor(x, device=self.device, dtype=self.dtype)
        return value.cast(self.dtype) if value.dtype in dtypes.weaks else value

    @in_turn
    def __setitem__(self, indices: Any, v: Any) -> None:
        """Write a part, named as in reading, also by a mask of truth values of the first sizes.

        The value is cast to this dtype, and broadcast to the part. Where a place is named twice
        the last value stays. A place that is out of range is not written, if it is known only
        when it runs; a number or a list that is out of range is an IndexError.
        """
        if isinstance(v, Tensor) and v.dtype is not self.dtype:
            v = v.cast(self.dtype)
        mask = self._mask_in(indices)
        if mask is not None:
            self._write_where(mask, v)
            return
        part, picked = self._named_part(indices)
        if not picked:
            if not (isinstance(v, Tensor) and v._storage is self._storage and v.uop is part.uop):
                part.assign(v)
            return
        places = part._places_named(picked)
        value = part._value_to_write(v, places.shape)
        if 0 not in places.shape:
            part.reshape(-1)._write(value.uop, places.uop)

    def _mask_in(self, indices: Any) -> Tensor | None:
        """The tensor of truth values that an index is, perhaps with all of what follows."""
        given = list(indices) if isinstance(indices, tuple) else [indices]
        masks = [x for x in given if isinstance(x, Tensor) and x.dtype is dtypes.bool]
        if not masks:
            return None
        rest = [x for x in given[1:] if x is not Ellipsis and not _is_whole(x)]
        if given[0] is not masks[0] or rest or masks[0].shape != self.shape[: masks[0].ndim]:
            raise IndexError(
                f"a mask of shape {masks[0].shape} that is a tensor names elements of shape "
                f"{self.shape} only as the first and only index, of their first sizes; "
                "use where, or give it as a list or an array"
            )
        return masks[0]

    def _write_where(self, mask: Tensor, v: Any) -> None:
        """Write one value, or one for each element of what follows the mask, where it is true."""
        value = self._as_value(v)
        rest = self.shape[mask.ndim :]
        if value.ndim == len(rest) + 1 and value.shape[0] == 1:
            value = value.reshape(value.shape[1:])
        if value.ndim > len(rest):
            raise ValueError(
                f"a value of shape {value.shape} for the places of a mask: how many there are is "
                "known only when it runs; give one value for all, or the mask as an array"
            )
        wide = mask.reshape(mask.shape + (1,) * len(rest))
        self.assign(wide.where(value, self))

    def __delitem__(self, indices: Any) -> None:
        raise TypeError("elements of a Tensor can not be deleted; cut with a slice")

    def _updated(self, result: Tensor) -> Self:
        """Write the result of an operation in place: as this dtype, where its kind allows it.

        A bool may become an integer and that a float, an unsigned integer a signed one; TypeError
        the other way round.
        """
        own, theirs = self.dtype, result.dtype
        if own is not theirs and own not in dtypes.weaks:
            if _KINDS[theirs.kind] > _KINDS[own.kind]:
                raise TypeError(
                    f"an operation in place on {own} gives {theirs}, which it can not hold; "
                    "write the operation out and name the result, or cast an operand"
                )
            result = result.cast(own)
        return self.assign(result)

    def __iadd__(self, x: Any) -> Self:
        return self._updated(self.add(x))

    def __isub__(self, x: Any) -> Self:
        return self._updated(self.sub(x))

    def __imul__(self, x: Any) -> Self:
        return self._updated(self.mul(x))

    def __itruediv__(self, x: Any) -> Self:
        return self._updated(self.div(x))

    def __ifloordiv__(self, x: Any) -> Self:
        return self._updated(self // x)

    def __imod__(self, x: Any) -> Self:
        return self._updated(self.mod(x))

    def __ipow__(self, x: Any) -> Self:
        return self._updated(self.pow(x))

    def __iand__(self, x: Any) -> Self:
        return self._updated(self.bitwise_and(x))

    def __ior__(self, x: Any) -> Self:
        return self._updated(self.bitwise_or(x))

    def __ixor__(self, x: Any) -> Self:
        return self._updated(self.bitwise_xor(x))

    def __ilshift__(self, x: Any) -> Self:
        return self._updated(self.lshift(x))

    def __irshift__(self, x: Any) -> Self:
        return self._updated(self.rshift(x))

    def __imatmul__(self, x: Self) -> Self:
        return self._updated(self.matmul(x))

    # ------------------------------------------------------------ computing

    def realize(self, *lst: Tensor) -> Self:
        """Compute this tensor and others now, and carry out every assignment made before.

        What is pending and reads what is overwritten is computed too, and a view of it that is a
        value of its own is copied. Nothing else is computed.
        """
        realize([self, *lst])
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a NumPy array, copied; ml_dtypes' where NumPy lacks the dtype."""
        import numpy as np

        np_dtype, shape = _to_np_dtype(self.dtype), self._sizes_now()
        if self.uop.op is Ops.CONST:
            return np.array(self.uop.arg, dtype=np_dtype)
        if 0 in self.shape:
            return np.empty(shape, dtype=np_dtype)
        memory = self._in_order()
        if memory.shape == shape:
            return runtime().to_host(memory)
        return runtime().to_host(memory)[tuple([slice(0, n) for n in shape])].copy()

    def _sizes_now(self) -> tuple[int, ...]:
        """The shape, symbolic sizes by what their Variables are bound to.

        ValueError if one is bound to nothing.
        """
        try:
            return tuple([s if isinstance(s, int) else sym_infer(s, {}) for s in self.shape])
        except KeyError as e:
            raise ValueError(
                f"{e.args[0]}, so a tensor of shape {self.shape} has no size; bind it where it "
                "enters the shape"
            ) from None

    def _in_order(self) -> UOp:
        """A realised BUFFER with these values, or a reshape of one.

        Of a symbolic shape: a BUFFER of the upper bounds, at the front of which they are.
        """
        refuse_reading()
        self.realize()
        node = self.uop
        if not all_int(self.shape):
            if node.op is not Ops.SHRINK or node is not _front_of_memory(node.src[0], self.shape):
                copy = UOp(Ops.CONTIGUOUS, self.dtype, (node,))
                node = runtime().realize([copy])[copy]
            return node.src[0]
        while node.op in (Ops.RESHAPE, Ops.DETACH):
            node = node.src[0]
        if node.op is Ops.BUFFER:
            return (
                node
                if node.shape == self.shape
                else UOp(Ops.RESHAPE, node.dtype, (node,), self.shape)
            )
        copy = UOp(Ops.CONTIGUOUS, self.dtype, (self.uop,))
        return runtime().realize([copy])[copy]

    def data(self) -> memoryview:
        """The memory of the values, shared, in the order of the elements; it keeps it alive.

        Of bfloat16 and eight-bit floats: their bytes.
        """
        import numpy as np

        shape = self._sizes_now()
        if self.uop.op is Ops.CONST or 0 in self.shape:
            array = self.numpy()
        else:
            node = self._in_order()
            array = np.frombuffer(runtime().host_view(node), _to_np_dtype(self.dtype))
            array = array.reshape(node.shape)[tuple([slice(0, n) for n in shape])]
        # ml_dtypes have no format of their own
        return array.data if strong_dtype(self.dtype).fmt else array.view(np.uint8).data

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers; of a scalar the number."""
        array = self.numpy()
        if self.dtype.kind == "8" or self.dtype is dtypes.bfloat16:
            array = array.astype("float32")
        return array.tolist()

    def item(self) -> Any:
        """The one value of a tensor with one element, as a Python number."""
        numel = prod(self._sizes_now())
        if numel != 1:
            raise ValueError(
                f"item: the tensor must have one element, this one of shape {self.shape} has "
                f"{numel}; use tolist"
            )
        value = self.tolist()
        while isinstance(value, list):
            value = value[0]
        return value

    # ------------------------------------------------------------ gradients

    @in_turn
    def gradient(self, *targets: Tensor, gradient: Tensor | None = None) -> list[Tensor]:
        """The gradients of this scalar for tensors that it was computed from.

        `gradient` is that of this tensor, by default 1. RuntimeError for a target that this does
        not depend on, or that was written since.
        """
        results = []
        found = self._gradients([t.uop for t in targets], gradient)
        for target, result in zip(targets, found, strict=True):
            if result is None:
                raise RuntimeError(
                    f"gradient: the result does not depend on the tensor of shape {target.shape}, "
                    "or it was written to since, or nothing differentiable leads there"
                )
            results.append(self._value(copied(result), target.device or self.device))
        return results

    def _gradients(self, targets: Sequence[UOp], gradient: Tensor | None) -> list[UOp | None]:
        if not self.is_floating_point():
            raise TypeError(f"gradient: only floats have one, this tensor is of {self.dtype}")
        if gradient is None:
            if self.shape != ():
                raise ValueError(
                    f"backward: without a gradient the tensor must have shape (), this one has "
                    f"{self.shape}; sum it, or pass gradient="
                )
            seed = _constant(1.0, self.dtype)
        elif gradient.shape != self.shape:
            raise ValueError(f"gradient: {gradient.shape} is not the shape {self.shape}")
        else:
            seed = gradient.cast(self.dtype).uop
        # a Python number took the dtype of what it met: it is found by its mark
        marks = {t.src[0] for t in targets if t.op is Ops.CONST and t.src}
        retyped: dict[UOp, list[UOp]] = {}
        if marks:
            for node in self.uop.postorder():
                if node.op is Ops.CONST and node.src and node.src[0] in marks:
                    retyped.setdefault(node.src[0], []).append(node)
        wanted = {t for t in targets if not (t.op is Ops.CONST and t.src)}
        wanted |= {node for nodes in retyped.values() for node in nodes}
        grads = compute_gradient(self.uop, seed, wanted, self._through_places)

        def total(target: UOp) -> UOp | None:
            if not (target.op is Ops.CONST and target.src):
                return grads.get(target)
            to = strong_dtype(target.dtype)
            parts = [grads[n].cast(to) for n in retyped.get(target.src[0], ()) if n in grads]
            result = parts[0] if parts else None
            for part in parts[1:]:
                assert result is not None
                result = result.alu(Ops.ADD, part)
            return result

        return [total(t) for t in targets]

    def _through_places(self, store: UOp, gradient: UOp) -> tuple[UOp, UOp]:
        """The gradients of what a STORE writes to computed places of a flat view, and leaves there.

        Of several that are written to one place, the last one has it.
        """
        device = self.device
        rest, places = self._value(gradient, device), self._value(store.src[2], device)
        at = places.flatten()
        count = self.arange(at.shape[0], dtype=dtypes.int32)
        writer = self.empty(rest.shape, dtype=dtypes.int32, device=device)
        writer._write(count.uop, at.uop)
        inside = (at >= 0) & (at < rest.shape[0])
        there = inside.where(at, 0)
        is_last = inside & writer[there].eq(count)
        value = is_last.where(rest[there], 0).reshape(places.shape)
        left = rest.clone()
        left._write(left._scalar(0, left.dtype).uop, at.uop)
        return value.uop, left.uop

    @in_turn
    def backward(self, gradient: Tensor | None = None) -> Self:
        """Add to `grad` of every float tensor in the graph that wants one, but of numbers."""
        nodes = set(self.uop.postorder())
        leaves = [
            t
            for t in live_views()
            if t._storage.node in nodes  # first, since most tensors are not
            and t.requires_grad is not False
            and t.is_floating_point()
            and t.dtype not in dtypes.weaks
            and (t.device is not None or t.uop.op is not Ops.CONST or t.uop.src)
            and t.uop in nodes
        ]
        for tensor, result in zip(
            leaves, self._gradients([t.uop for t in leaves], gradient), strict=True
        ):
            if result is None:
                continue
            new = self._value(copied(result), tensor.device)
            tensor.grad = new if tensor.grad is None else tensor.grad + new
        return self

    # ------------------------------------------------------------ the rest

    class train(contextlib.ContextDecorator):  # noqa: N801  # the name that programs use
        """`with Tensor.train():` sets TRAINING for a block; with mode False it clears it."""

        def __init__(self, mode: bool = True) -> None:
            self._context = Context(TRAINING=int(mode))

        def __enter__(self) -> None:
            self._context.__enter__()

        def __exit__(self, *exc: Any) -> None:
            self._context.__exit__(*exc)

    def __eq__(self, x: object) -> Self:  # type: ignore[override]  # elementwise, as in NumPy
        return self.eq(x)

    def __ne__(self, x: object) -> Self:  # type: ignore[override]
        return self.ne(x)

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        raise TypeError(
            "the truth of a Tensor is not known before it runs; use .item(), or .any() or .all()"
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a Tensor of shape () has no length")
        if not isinstance(self.shape[0], int):
            refuse_reading()
        return self._sizes_now()[0]

    def __iter__(self) -> Any:
        if self.shape and not isinstance(self.shape[0], int):
            raise TypeError(
                f"a Tensor of shape {self.shape} can not be iterated over: each number of rows "
                "would be another program; compute on all rows at once"
            )
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        return f"<Tensor {self.shape} {self.dtype.name} on {self.device}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copy = self.clone()
        memo[id(self)] = copy
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.numpy(), self.dtype, self.device, self.requires_grad)


def _unpickled(
    array: np.ndarray[Any, Any], dtype: DType, device: str | None, requires_grad: bool | None
) -> Tensor:
    if device is None:
        return Tensor(array.item(), dtype=dtype, requires_grad=requires_grad)
    return Tensor(array, device, requires_grad=requires_grad)


# ---------------------------------------------------------------- making values


def _rounded(value: Any, dtype: DType) -> Any:
    """A Python number as a value of a dtype."""
    if dtypes.is_float(dtype) and dtype is not dtypes.weakfloat:
        return truncate[dtype](value)
    return dtype.const(value)


def _constant(value: Any, dtype: DType | None) -> UOp:
    to = dtypes.from_py(value) if dtype is None else dtype
    return UOp(Ops.CONST, to, (), _rounded(value, to))


def _leaf(value: Any, dtype: DType | None) -> UOp:
    """A constant that is like no other, though equal: a target for gradients."""
    to = dtypes.from_py(value) if dtype is None else dtype
    mark = UOp(Ops.UNIQUE, arg=next(_uniques))
    return UOp(Ops.CONST, to, (mark,), _rounded(value, to))


def _at_least_float32(dtype: DType) -> DType:
    return dtype if dtypes.is_float(dtype) and dtype.itemsize > 4 else dtypes.float32


def _sizes(what: str, shape: tuple[Any, ...]) -> tuple[Any, ...]:
    sizes = settled_all(shape)
    for size in sizes:
        if isinstance(size, UOp):
            if size.dtype is not dtypes.index or least(size) < 0:
                raise ValueError(
                    f"{what}: a symbolic size is an index of at least 0, got {size} of "
                    f"{size.dtype}, from {size.vmin}"
                )
        elif not hasattr(size, "__index__") or size < 0:
            raise ValueError(f"{what}: sizes are ints of at least 0, got {shape}")
    return tuple([s if isinstance(s, UOp) else s.__index__() for s in sizes])


def _front_of_memory(node: UOp, shape: tuple[Any, ...]) -> UOp | None:
    """The front of a BUFFER of the upper bounds of these sizes; None of anything else."""
    whole = tuple([most(size) for size in shape])
    return node.front(shape) if node.op is Ops.BUFFER and node.shape == whole else None


def _number_of(what: str, sizes: Sequence[Any]) -> int:
    """How many elements; ValueError if that is symbolic."""
    found = product(sizes)
    if not isinstance(found, int):
        raise ValueError(
            f"{what}: the bounds depend on the sizes {tuple(sizes)}, which are symbolic; "
            "use uniform or normal with bounds of your own"
        )
    return found


def _from_data(data: Any, device: str | None, dtype: DType | None) -> UOp:
    """Memory with the contents of an array, of bytes or of lists."""
    import numpy as np

    place = runtime().canonicalize_device(device)
    if isinstance(data, bytes | bytearray | memoryview):
        to = dtype or dtypes.uint8
        raw = memoryview(data).cast("B")
        if raw.nbytes % to.itemsize:
            raise ValueError(
                f"Tensor: {raw.nbytes} bytes are no whole number of items of {to}, which has "
                f"{to.itemsize}"
            )
        return runtime().from_host(np.frombuffer(raw, _to_np_dtype(to)), place)
    if _is_data(data):
        array = np.ascontiguousarray(data)
        array = array.astype(array.dtype.newbyteorder("="), copy=False).reshape(data.shape)
        _from_np_dtype(array.dtype)  # names a dtype that is not known
        uop = runtime().from_host(array, place)
        return uop if dtype is None or dtype is uop.dtype else uop.cast(dtype)
    if not isinstance(data, list | tuple):
        raise TypeError(
            f"Tensor: a number, a list of numbers, a NumPy array or bytes are expected, got "
            f"{type(data).__name__}"
        )
    return runtime().from_host(_from_lists(data, dtype), place)


def _from_lists(data: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    """Nested lists as an array of a dtype, by default that of their kind of numbers."""
    import numpy as np

    try:
        array = np.array(data)
    except ValueError:
        raise ValueError(
            "Tensor: the lists are ragged; all lists of one level must have one length"
        ) from None
    first = data
    while isinstance(first, list | tuple) and first:
        first = first[0]
    if array.dtype.kind not in "biuf" and not (array.dtype == object and _all_ints(array)):
        if not _is_data(first):
            raise TypeError(f"Tensor: the lists must hold numbers only, got {first!r} among them")
        _from_np_dtype(array.dtype)
    if _is_data(first):  # arrays of NumPy, or its scalars: their dtype says what is meant
        to = dtype or _from_np_dtype(array.dtype)
    else:
        kinds = {"b": dtypes.bool, "f": dtypes.default_float}
        to = dtype or kinds.get(array.dtype.kind, dtypes.default_int)
        whole = dtype is None and dtypes.is_int(to) and array.size
        if whole and not (to.min <= array.min() and array.max() <= to.max):
            raise ValueError(
                f"Tensor: {array.min()} to {array.max()} does not fit into {to}; pass dtype=int64"
            )
    np_dtype = _to_np_dtype(to)
    plain = array.dtype.kind in "biu" and not dtypes.is_float(to)
    if plain or (array.dtype.kind in "biuf" and to.kind == "f"):
        with np.errstate(over="ignore"):
            return array.astype(np_dtype)
    if to is dtypes.bool:
        return array != 0
    values = [truncate[to](v) for v in array.ravel().tolist()]
    return np.array(values, dtype=np_dtype).reshape(array.shape)


def _all_ints(array: np.ndarray[Any, Any]) -> bool:
    return all(isinstance(v, int) for v in array.ravel())


# ---------------------------------------------------------------- realising


# ---------------------------------------------------------------- what captured steps need
# A step that is captured reads and writes BUFFERs behind the backs of tensors when it is replayed.
# It finds here what it has to know of them.
