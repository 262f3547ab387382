"""Tensors made from shapes, by rule: memory, constants, numbers evenly apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from tiny.dtype import DType, DTypeLike, dtypes, strong_dtype, to_dtype
from tiny.helpers import argfix, ceildiv
from tiny.mixin import CastsMixin
from tiny.mixin.sizes import (
    difference,
    is_at_most,
    least,
    most,
    settled,
    settled_all,
    split_sizes,
)
from tiny.storage import View
from tiny.uop.ops import Ops, UOp
from tiny.uop.runtime import is_file, runtime
from tiny.values import leaf, number, place_of

ZERO = UOp.const(0, dtypes.int32)


class CreationMixin(View, CastsMixin):
    """Tensors made from shapes and by rule.

    All take `dtype`, a dtype or its name; `device`, by default that of `Device.DEFAULT`; and
    `requires_grad`. Sizes come one by one or as one tuple; they are ints of at least 0, or
    expressions of Variables.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(
            self,
            data: Any,
            device: str | None = None,
            dtype: DTypeLike | None = None,
            requires_grad: bool | None = None,
        ) -> None: ...

        def assign(self, x: Any) -> Self:
            """Write x here; in Tensor."""

    @classmethod
    def const(cls, b: Any, dtype: DTypeLike | None = None) -> Self:
        """A constant of shape (). The arguments may also come as (dtype, value).

        Without a dtype it is weak: it takes that of what it is used with. TypeError if it is no
        number.

        >>> Tensor.const(2.5, "half").item(), Tensor.const(3).dtype.name
        (2.5, 'weakint')
        """
        if isinstance(b, DType | str):
            b, dtype = dtype, b
        return cls(number("const", b), dtype=dtype)

    @classmethod
    def empty(
        cls,
        *shape: Any,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Memory whose contents are not defined.

        ValueError if a size is no int of at least 0.

        >>> Tensor.empty(2, 3, dtype="int8").shape
        (2, 3)
        """
        sizes = checked_sizes("empty", argfix(*shape))
        to = dtypes.default_float if dtype is None else strong_dtype(to_dtype(dtype))
        place = place_of(device)
        memory = runtime().empty(tuple([most(size) for size in sizes]), to, place)
        return cls(memory.front(sizes), requires_grad=requires_grad)

    @classmethod
    def invalids(
        cls,
        *shape: Any,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Values that stand for none: 0 where they are read. By default bool.

        >>> Tensor.invalids(2, dtype="int32").tolist()
        [0, 0]
        """
        to = dtypes.bool if dtype is None else to_dtype(dtype)
        return cls.full(argfix(*shape), 0, device=device, dtype=to, requires_grad=requires_grad)

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

        The dtype is by default that of the value: default_int, default_float or bool. TypeError if
        the value is no number, ValueError if the default dtype can not hold it.

        >>> Tensor.full((2, 2), 7).tolist()
        [[7, 7], [7, 7]]
        """
        sizes = checked_sizes("full", argfix(shape))
        value = number("full", fill_value)
        to = _dtype_of(value) if dtype is None else strong_dtype(to_dtype(dtype))
        if dtype is None and isinstance(value, int) and not to.min <= value <= to.max:
            raise ValueError(f"full: {value} does not fit into {to}; pass dtype=int64")
        place = place_of(device)
        if not buffer:
            static, symbolic = split_sizes(sizes)
            constant = (
                cls._value(leaf(value, to), None)
                if not isinstance(value, UOp)
                else cls(value, dtype=to)
            )
            wide = constant.uop
            if sizes:
                wide = UOp(Ops.EXPAND, to, (wide, *symbolic), static)
            return cls(wide, requires_grad=requires_grad)
        result = cls.empty(sizes, device=place, dtype=to, requires_grad=requires_grad)
        result.assign(result._scalar(value, to))
        result._storage.is_written = False  # it was made: only who reads it computes it
        return result

    @classmethod
    def zeros(cls, *shape: Any, **kwargs: Any) -> Self:
        """Zeros; see `full` for the keywords.

        >>> Tensor.zeros(2, 3).tolist()
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
        """
        return cls.full(argfix(*shape), 0.0, **kwargs)

    @classmethod
    def ones(cls, *shape: Any, **kwargs: Any) -> Self:
        """Ones; see `full` for the keywords.

        >>> Tensor.ones(3, dtype="int32").tolist()
        [1, 1, 1]
        """
        return cls.full(argfix(*shape), 1.0, **kwargs)

    def _like(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        place = None if is_file(self.device) else self.device  # a file is not written by the way
        own = {"dtype": strong_dtype(self.dtype), "device": place}
        return own | {k: v for k, v in kwargs.items() if v is not None}

    def empty_like(
        self,
        dtype: DTypeLike | None = None,
        device: str | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Memory of this shape, dtype and device.

        >>> Tensor([1, 2]).empty_like().dtype.name
        'int32'
        """
        kwargs = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
        return self.empty(self.shape, **self._like(kwargs))

    def full_like(
        self,
        fill_value: Any,
        dtype: DTypeLike | None = None,
        device: str | None = None,
        buffer: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """One value in this shape, dtype and device.

        >>> Tensor([1.5, 2]).full_like(3).tolist()
        [3.0, 3.0]
        """
        kwargs = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
        return self.full(self.shape, fill_value, buffer=buffer, **self._like(kwargs))

    def zeros_like(self, **kwargs: Any) -> Self:
        """Zeros in this shape, dtype and device; see `full_like` for the keywords.

        >>> Tensor([1, 2]).zeros_like(dtype="float32").tolist()
        [0.0, 0.0]
        """
        return self.full_like(0, **kwargs)

    def ones_like(self, **kwargs: Any) -> Self:
        """Ones in this shape, dtype and device; see `full_like` for the keywords.

        >>> Tensor([[3], [4]]).ones_like().tolist()
        [[1], [1]]
        """
        return self.full_like(1, **kwargs)

    def const_like(self, b: Any, dtype: DTypeLike | None = None) -> Self:
        """A constant in this shape that takes no memory.

        >>> Tensor([1, 2]).const_like(7).tolist()
        [7, 7]
        """
        to = strong_dtype(self.dtype if dtype is None else to_dtype(dtype))
        return self._scalar(number("const_like", b), to)._broadcast_to(self.shape)

    # ------------------------------------------------------------ numbers in a row

    @classmethod
    def arange(
        cls,
        start: float,
        stop: float | None = None,
        step: float = 1,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> Self:
        """From start (0 if only one number is given) to stop, without it, in steps.

        Of ints they are of default_int, or of int64 where that is too small; of floats, computed
        in float64, of default_float. TypeError if one is no number, ValueError for a step of 0, for
        inf and NaN, and where the dtype can not hold the numbers.

        >>> Tensor.arange(5).tolist(), Tensor.arange(5, 0, -2).tolist()
        ([0, 1, 2, 3, 4], [5, 3, 1])
        >>> Tensor.arange(0, 1, 0.25).tolist()
        [0.0, 0.25, 0.5, 0.75]
        """
        begin, end = (0, start) if stop is None else (start, stop)
        begin, end, step = [number("arange", v) for v in (begin, end, step)]
        if not isinstance(step, UOp) and step == 0:
            raise ValueError("arange: step must not be 0")
        if any(isinstance(v, UOp) for v in (begin, end, step)):
            return cls._symbolic_arange(begin, end, step, dtype)._as_asked(kwargs)
        whole = all(isinstance(v, int) for v in (begin, end, step))
        if not whole and not all(math.isfinite(v) for v in (begin, end, step)):
            raise ValueError(f"arange: the numbers must be finite, got {begin}, {end} and {step}")
        count = max(0, ceildiv(end - begin, step) if whole else math.ceil((end - begin) / step))
        if count >= 2**63:
            raise ValueError(f"arange: {begin} to {end} in steps of {step} are too many numbers")
        ends = (begin, begin + (count - 1) * step) if count else (0, 0)
        to = _asked_or(dtype, dtypes.default_int if whole else dtypes.default_float, ends)
        if not dtypes.is_float(to) and not (to.min <= min(ends) and max(ends) <= to.max):
            raise ValueError(f"arange: {begin} to {end} does not fit into {to}; pass a wider dtype")
        x = cls._value(ZERO, None)._places(count)
        if whole:
            x = x.cast(x.dtype if max(abs(begin), abs(end)) < 2**31 else dtypes.int64)
        else:
            x = x.cast(dtypes.float64)
        x = x if step == 1 else x * step
        return (x + begin if begin else x).cast(to)._as_asked(kwargs)

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
        ends = [least(begin), most(begin), least(end), most(end)]
        to = _asked_or(dtype, dtypes.default_int, ends)
        if dtypes.is_int(to) and not (to.min <= min(ends) and max(ends) <= to.max):
            raise ValueError(f"arange: {begin} to {end} does not fit into {to}; pass a wider dtype")
        x = cls._value(ZERO, None)._places(count)
        x = x.cast(dtypes.int32 if max(map(abs, ends)) < 2**31 else dtypes.int64)
        x = x if step == 1 else x * step
        return (x if begin == 0 else x + begin).cast(to)

    def _as_asked(self, kwargs: dict[str, Any]) -> Self:
        """The keywords that every constructor takes, on a computed tensor."""
        device = kwargs.pop("device", None)
        self.requires_grad = kwargs.pop("requires_grad", None)
        if kwargs:
            raise TypeError(f"unknown keyword {next(iter(kwargs))!r}; device and requires_grad go")
        return self if device is None else self._computed_on(device)

    def _computed_on(self, device: str) -> Self:
        """This value, which depends on no memory, on a device."""
        place = place_of(device)
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
        """`steps` numbers from start to stop, both included, evenly apart.

        They are computed in float64; as integers of integers exactly, rounded towards 0. ValueError
        for a negative number of steps and as bool, TypeError if an argument is no number.

        >>> Tensor.linspace(0, 1, 5).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
        >>> Tensor.linspace(10, 0, 4, dtype="int32").tolist()
        [10, 6, 3, 0]
        """
        begin, end, count = [number("linspace", v) for v in (start, stop, steps)]
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ValueError(f"linspace: steps is an int of at least 0, got {steps!r}")
        if isinstance(begin, UOp) or isinstance(end, UOp):
            raise TypeError("linspace: start and stop are numbers, got an expression of Variables")
        to = dtypes.default_float if dtype is None else strong_dtype(to_dtype(dtype))
        if to is dtypes.bool:
            raise ValueError("linspace: bool holds no numbers evenly apart; pass another dtype")
        last = max(count - 1, 1)
        exact = isinstance(begin, int) and isinstance(end, int) and dtypes.is_int(to)
        if exact and max(abs(begin), abs(end)) * last < 2**62:
            x = cls.arange(count, dtype=dtypes.int64) * (end - begin) + begin * last
            return x.div(last, rounding_mode="trunc").cast(to)._as_asked(kwargs)
        step = (end - begin) / last
        places = cls.arange(count, dtype=dtypes.float64)
        # from both ends, so that both are met and the numbers between are symmetric
        low, high = begin + places * step, end - (last - places) * step
        return (places * 2 < last).where(low, high).cast(to)._as_asked(kwargs)

    @classmethod
    def eye(
        cls, n: int, m: int | None = None, dtype: DTypeLike | None = None, **kwargs: Any
    ) -> Self:
        """Ones on the diagonal of an (n, m) matrix, m being n by default.

        ValueError if a size is no int of at least 0.

        >>> Tensor.eye(2, 3).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
        """
        rows, columns = checked_sizes("eye", (n, n if m is None else m))
        to = dtypes.default_float if dtype is None else strong_dtype(to_dtype(dtype))
        places = cls._value(ZERO, None)._places
        diagonal = places(rows).unsqueeze(-1).eq(places(columns))
        return diagonal.cast(to)._as_asked(kwargs)


def _dtype_of(value: Any) -> DType:
    """The dtype that a number has in memory."""
    if isinstance(value, UOp) and value.dtype is dtypes.index:
        return dtypes.default_int
    return strong_dtype(value.dtype if isinstance(value, UOp) else dtypes.from_py(value))


def _asked_or(dtype: DTypeLike | None, default: DType, ends: Sequence[Any]) -> DType:
    """The dtype asked for; else the default one, or int64 where that can not hold integers."""
    if dtype is not None:
        return strong_dtype(to_dtype(dtype))
    fits = dtypes.is_float(default) or (default.min <= min(ends) and max(ends) <= default.max)
    return default if fits else dtypes.int64


def checked_sizes(what: str, shape: tuple[Any, ...]) -> tuple[Any, ...]:
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
