"""Tensors made from shapes, by rule: memory, constants, numbers evenly apart."""

from __future__ import annotations

import math
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
from tiny.uop.runtime import runtime
from tiny.values import leaf, place_of

ZERO = UOp.const(0, dtypes.int32)


class CreationMixin(View, CastsMixin):
    """The constructors of a Tensor that draw nothing."""

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
        sizes = checked_sizes("empty", argfix(*shape))
        to = dtypes.default_float if dtype is None else strong_dtype(to_dtype(dtype))
        place = place_of(device)
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
        sizes = checked_sizes("full", argfix(shape))
        to = strong_dtype(dtypes.from_py(fill_value) if dtype is None else to_dtype(dtype))
        if not buffer:
            value = leaf(fill_value, to)
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
            return cls._symbolic_arange(begin, end, step, dtype)._as_asked(kwargs)
        to = dtypes.default_int if whole else dtypes.default_float
        to = to if dtype is None else strong_dtype(to_dtype(dtype))
        count = max(0, ceildiv(end - begin, step) if whole else math.ceil((end - begin) / step))
        ends = (begin, begin + (count - 1) * step) if count else (0,)
        if dtypes.is_int(to) and not (to.min <= min(ends) and max(ends) <= to.max):
            raise ValueError(f"arange: {begin} to {end} does not fit into {to}; pass a wider dtype")
        x = cls._value(ZERO, None)._places(count)
        if whole:
            x = x.cast(x.dtype if max(abs(begin), abs(end)) < 2**31 else dtypes.int64)
        else:
            x = x.cast(_at_least_float32(to))
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
        to = dtypes.default_int if dtype is None else strong_dtype(to_dtype(dtype))
        ends = [least(begin), most(begin), least(end), most(end)]
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
        """`steps` numbers from start to stop, both included, evenly apart."""
        if steps < 0:
            raise ValueError(f"linspace: steps must be at least 0, got {steps}")
        to = dtypes.default_float if dtype is None else to_dtype(dtype)
        places = cls.arange(steps, dtype=_at_least_float32(to))
        step = (stop - start) / (steps - 1) if steps > 1 else 0.0
        return (start + places * step).cast(to)._as_asked(kwargs)

    @classmethod
    def eye(
        cls, n: int, m: int | None = None, dtype: DTypeLike | None = None, **kwargs: Any
    ) -> Self:
        """Ones on the diagonal of an (n, m) matrix, m being n by default."""
        columns = n if m is None else m
        if n < 0 or columns < 0:
            raise ValueError(f"eye: sizes must be at least 0, got {n} and {columns}")
        to = dtypes.default_float if dtype is None else to_dtype(dtype)
        diagonal = cls.arange(n).unsqueeze(-1).eq(cls.arange(columns))
        return diagonal.where(1, 0).cast(to)._as_asked(kwargs)


def _at_least_float32(dtype: DType) -> DType:
    return dtype if dtypes.is_float(dtype) and dtype.itemsize > 4 else dtypes.float32


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
