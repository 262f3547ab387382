"""`Tensor`: what users write. It builds graphs; the bound Runtime computes them.

**Storages.** A tensor is a view of a storage, and a storage holds one node: its value now. A
computed result has a storage of its own; movement (reshape, slices, …), detach and a bitcast of
the same width share the storage of their source, so they see later writes and may be written
through, as in NumPy. A tensor keeps the chain of movement nodes over the storage's node and
builds it anew when that node has changed.

**Versions.** A write to memory is `AFTER(old, STORE(view of old, value))`, and this node becomes
the node of the storage: all its views read the new version from now on, while graphs that were
built before hold the old node, and thereby the old version. A write to a value that has no
memory yet just makes another value. So the wrong program (a result that changes after it was
computed, a write that a view misses) can not be written down.

**Owners.** A BUFFER belongs to one storage. Hash-consing may give two results one node, and then
one BUFFER: the second reads it, and gets a copy when the owner is written (see `_write`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Self, TypeVar

from tiny import random
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
from tiny.helpers import TRAINING, Context, argfix, ceildiv, prod
from tiny.mixin import CastsMixin
from tiny.uop.ops import GroupOp, Ops, UOp
from tiny.uop.runtime import recorder, recorders, runtime

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Tensor"]

P = ParamSpec("P")
R = TypeVar("R")

_VIEWS = GroupOp.Movement | {Ops.DETACH, Ops.BITCAST}
_uniques = itertools.count()
_ZERO = UOp.const(0, dtypes.int32)


class _Storage:
    """One value: `node` is what it is now, `device` where it is or will be.

    `owner`: the BUFFER below belongs to it alone. `maker`: the mark of the capture in which it
    was made. `holders` are told when a tensor moves to another storage.
    """

    __slots__ = ("__weakref__", "device", "holders", "maker", "node", "owner")

    def __init__(self, node: UOp, device: str | None, owner: bool = False) -> None:
        self.node = node
        self.device = device
        self.owner = owner
        self.holders: weakref.WeakSet[Holders] | None = None
        watching = recorder() if recorders else None
        self.maker = None if watching is None else watching.token
        if node.op is not Ops.BUFFER:
            _changes.pending += 1


class _Changes:
    """`pending` grows whenever some storage comes to hold a value that is not in memory."""

    pending = 0


_changes = _Changes()

# Threads build graphs at once, but take turns to write and to compute: what one of them computes
# is looked for, and put in place, in the values of all.
_turn = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turn._at_fork_reinit)  # type: ignore[attr-defined]  # CPython's


def in_turn(function: Callable[P, R]) -> Callable[P, R]:
    """A function that one thread runs at a time, and no other one that is marked so meanwhile."""

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with _turn:
            return function(*args, **kwargs)

    return alone


# who owns a BUFFER, and who reads it without owning it
_owners: weakref.WeakValueDictionary[UOp, _Storage] = weakref.WeakValueDictionary()
_readers: weakref.WeakKeyDictionary[UOp, weakref.WeakSet[_Storage]] = weakref.WeakKeyDictionary()


def _memory(node: UOp) -> UOp | None:
    """The BUFFER whose contents a storage's node is, as they are or after writes; else None."""
    chain = []
    while node.op is Ops.AFTER and "memory" not in node.props:
        chain.append(node)
        node = node.src[0]
    found = node.props["memory"] if node.op is Ops.AFTER else node
    buffer = found if found is not None and found.op is Ops.BUFFER else None
    for after in chain:  # noted, or ten thousand writes would take time squared
        after.props["memory"] = buffer
    return buffer


def _split_view(uop: UOp) -> UOp:
    """The value that a chain of movement is a view of."""
    while uop.op in _VIEWS:
        uop = uop.src[0]
    return uop


def _rebased(uop: UOp, old: UOp, new: UOp) -> UOp:
    """A chain of movement over `old`, over `new` instead."""
    chain = []
    while uop is not old:
        chain.append(uop)
        uop = uop.src[0]
    for step in reversed(chain):
        new = step.replace(src=(new, *step.src[1:]))
    return new


def _is_view_of_memory(uop: UOp) -> bool:
    """Whether reading this is reading a BUFFER, with nothing computed on the way."""
    return _memory(_split_view(uop)) is not None


def _opened(uop: UOp) -> tuple[_Storage, UOp, UOp]:
    """A storage for a value given as a graph, its node, and the value as a view of it.

    A view of memory gets the storage that this memory has, so that it can be written through.
    """
    root = _split_view(uop)
    buffer = _memory(root)
    if buffer is None:
        return _Storage(uop, uop.device), uop, uop
    owner = _owners.get(buffer)
    if owner is not None and owner.node is root:
        return owner, root, uop
    storage = _Storage(root, buffer.arg.device)
    _take_memory(storage, buffer)
    return storage, root, uop


def _take_memory(storage: _Storage, buffer: UOp) -> None:
    """Note that a storage's value is in a BUFFER: as its owner if it has none, else as a reader."""
    owner = _owners.setdefault(buffer, storage)
    if owner is storage:
        storage.owner = True
    else:
        _readers.setdefault(buffer, weakref.WeakSet()).add(storage)


def _copied(uop: UOp) -> UOp:
    """A value that no write changes: a copy, if this is a view of memory."""
    return UOp(Ops.CONTIGUOUS, uop.dtype, (uop,)) if _is_view_of_memory(uop) else uop


def _is_data(x: Any) -> bool:
    """Whether x is an array of NumPy or one of its scalars, told without importing it."""
    return hasattr(x, "__array_interface__") and hasattr(x, "dtype")


class Tensor(CastsMixin):
    """A multi-dimensional array of one dtype, computed when its values are asked for.

    `data` is a number, a (nested) list of numbers, a NumPy array (copied), bytes (uint8, or the
    items of `dtype`), or a UOp. ValueError if lists of one level differ in length; TypeError for
    anything else. `device` is where it lives, by default where the runtime says.
    """

    __slots__ = ("__weakref__", "_root", "_storage", "_uop", "grad", "requires_grad")
    # so that NumPy's operators leave `array + tensor` to this class
    __array_ufunc__: ClassVar[None] = None

    grad: Tensor | None
    requires_grad: bool | None

    def __init__(
        self,
        data: Any,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> None:
        to = None if dtype is None else to_dtype(dtype)
        if isinstance(data, Tensor):
            data = data.uop
        if isinstance(data, UOp):
            uop = data
            if to is not None and to is not uop.dtype:
                uop = uop.cast(to)
        elif data is None or (isinstance(data, bool | int | float) and not _is_data(data)):
            uop = _leaf(0.0 if data is None else data, to)
        else:
            uop = _from_data(data, device, to)
        if uop.dtype is dtypes.void or uop._shape is None:
            raise TypeError(f"Tensor: {uop.op!r} computes no value")
        self._bind(*_opened(uop))
        if device is not None and isinstance(data, UOp):
            self.replace(self.to(device))
        self.requires_grad = requires_grad

    def _bind(self, storage: _Storage, root: UOp, uop: UOp) -> None:
        self._storage, self._root, self._uop = storage, root, uop
        self.grad, self.requires_grad = None, None
        number = id(self)
        _live[number] = weakref.ref(self, functools.partial(_live.pop, number))

    @classmethod
    def _view(cls, storage: _Storage, root: UOp, uop: UOp) -> Self:
        """A tensor over a storage that is there, whose node `root` is."""
        self = cls.__new__(cls)
        self._bind(storage, root, uop)
        return self

    @classmethod
    def _value(cls, uop: UOp, device: str | None) -> Self:
        """A tensor with a storage of its own."""
        return cls._view(_Storage(uop, device), uop, uop)

    # ------------------------------------------------------------ the protocol of the mixins

    @property
    def uop(self) -> UOp:
        """The node of this tensor's value now."""
        now = self._storage.node
        if now is not self._root:
            self._uop = _rebased(self._uop, self._root, now)
            self._root = now
        return self._uop

    @uop.setter
    def uop(self, new: UOp) -> None:
        storage, root, self._uop = _opened(new)
        self._move_to(storage, root)

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._uop.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes of the dimensions."""
        return self._uop.shape

    @property
    def device(self) -> str | None:
        """Where the values live or will be computed; None for constants until they are used."""
        return self._storage.device

    def _node(
        self, op: Ops, dtype: DType, others: tuple[Tensor, ...] = (), arg: Any = None
    ) -> Self:
        device = self._storage.device
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
        if op in _VIEWS:
            return self._view(self._storage, self._root, uop)
        return self._value(uop, device)

    def _move(self, op: Ops, arg: Any, sizes: tuple[Any, ...] = ()) -> Self:
        source = self._strong()
        uop = UOp(op, source.dtype, (source.uop, *sizes), arg)
        return self._view(source._storage, source._root, uop)

    def _scalar(self, value: Any, dtype: DType | None = None) -> Self:
        if isinstance(value, bool | int | float):
            uop = _constant(value, dtype)
        elif isinstance(value, UOp) and value.shape == ():
            uop = value if dtype is None else value.cast(dtype)
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
        if uop.op is not Ops.CONST:
            return None
        new = UOp(Ops.CONST, dtype, uop.src, _rounded(uop.arg, dtype))
        return self._value(new, None)

    def _number(self) -> Any:
        if self.uop.op is not Ops.CONST:
            raise TypeError("only a constant has its value at hand")
        return self.uop.arg

    def _index_value(self, index: Any) -> Self | None:
        if isinstance(index, type(self)):
            return index
        if not isinstance(index, list | tuple) and not (_is_data(index) and index.shape != ()):
            return None
        import numpy as np

        array = np.asarray(index)
        return type(self)(array if array.size else array.astype(np.int32), device=self.device)

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
        return cls(runtime().empty(sizes, to, place), requires_grad=requires_grad)

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
            wide = UOp(Ops.EXPAND, to, (value,), sizes) if sizes else value
            return cls(wide, requires_grad=requires_grad)
        result = cls.empty(sizes, device=device, dtype=to, requires_grad=requires_grad)
        return result.assign(result._scalar(fill_value, to))

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
        whole = all(isinstance(v, int) for v in (begin, end, step))
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
        words = ceildiv(prod(sizes) * to.itemsize, 4)
        if words >= 2**32:
            raise ValueError(f"rand: {sizes} of {to} needs {4 * words} random bytes; draw in parts")
        bits = cls._random_words(place, words)
        unsigned = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
        bits = bits.bitcast(unsigned[to.itemsize])._cut(0, 0, prod(sizes)).reshape(sizes)
        # random mantissa, exponent of 1: a float from 1 to 2
        exponent, mantissa = dtypes.finfo(to)
        bias = (1 << (exponent - 1)) - 1 + (to in dtypes.fp8_fnuz)
        ones = (bits >> (to.bitsize - mantissa)) | (bias << mantissa)
        result = (ones.bitcast(to) - 1)._computed_on(place)
        result = result.contiguous() if contiguous else result
        result.requires_grad = requires_grad
        return result

    @classmethod
    def _random_words(cls, device: str, words: int) -> Self:
        """uint32 random bits, shape (words,): counters 0, 1, … under the key of the draw."""
        half = ceildiv(words, 2)
        key = random.draw_key(device, words)
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
        bound = prod(argfix(*shape)) ** -0.5
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    @classmethod
    def glorot_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Evenly from ±sqrt(6 / (inputs + outputs)) (Glorot & Bengio, 2010)."""
        sizes = argfix(*shape)
        bound = (6 / (sizes[0] + prod(sizes[1:]))) ** 0.5
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    @classmethod
    def kaiming_uniform(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Evenly from ±sqrt(6 / (1 + a²) / inputs) (He et al., 2015)."""
        bound = (6 / (1 + a**2) / prod(argfix(*shape)[1:])) ** 0.5
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    @classmethod
    def kaiming_normal(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Normally, with variance 2 / (1 + a²) / inputs (He et al., 2015)."""
        std = (2 / (1 + a**2) / prod(argfix(*shape)[1:])) ** 0.5
        return cls.normal(*shape, mean=0.0, std=std, **kwargs)

    def rand_like(self, **kwargs: Any) -> Self:
        """`rand` in this shape, dtype and device."""
        return self.rand(*self.shape, **self._like(kwargs))

    def randn_like(self, dtype: DTypeLike | None = None, **kwargs: Any) -> Self:
        """`randn` in this shape, dtype and device."""
        return self.randn(*self.shape, **self._like({**kwargs, "dtype": dtype}))

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

    # ------------------------------------------------------------ memory and devices

    def contiguous(self) -> Self:
        """The values in memory of their own, in order; what already is stays."""
        if self.uop is self._storage.node and (
            self.uop.op is Ops.CONTIGUOUS or _memory(self.uop) is not None
        ):
            return self
        x = self._strong()
        return x._node(Ops.CONTIGUOUS, x.dtype)

    def contiguous_backward(self) -> Self:
        """The same values; the gradient that comes back is put in memory here."""
        return self._node(Ops.CONTIGUOUS_BACKWARD, self.dtype)

    def clone(self, device: str | None = None) -> Self:
        """A copy with memory of its own."""
        x = self._strong()
        copy = x._node(Ops.CONTIGUOUS, x.dtype)
        copy.requires_grad = self.requires_grad
        return copy if device is None else copy.to(device)

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

    def replace(self, x: Tensor) -> Self:
        """Become the tensor x: the same value, the same storage."""
        if x.shape != self.shape or x.dtype is not self.dtype:
            raise ValueError(
                f"replace: the shapes {self.shape} and {x.shape} and the dtypes {self.dtype} and "
                f"{x.dtype} must be equal"
            )
        self._uop = x.uop  # first: it may move x to the version of now
        self._move_to(x._storage, x._root)
        return self

    def _move_to(self, storage: _Storage, root: UOp) -> None:
        before, self._storage, self._root = self._storage, storage, root
        if before.holders is not None and before is not storage:
            for holders in list(before.holders):
                holders.is_lost = True

    # ------------------------------------------------------------ writing

    def assign(self, x: Any) -> Self:
        """Write x here: a tensor of this dtype and device that broadcasts here, or numbers.

        All views of this tensor see it; what was computed before does not change.
        """
        value = self._value_to_write(x)
        storage = self._storage
        if value.uop is self.uop and value._storage is storage:
            return self
        watching = recorder()
        outside = watching is not None and storage.maker is not watching.token
        with _turn:
            if self.uop is storage.node and _memory(storage.node) is None and not outside:
                # a value without memory: another value in its place
                storage.node, storage.device = _copied(value.uop), value.device or self.device
                _changes.pending += 1
                return self
        self._write(value.uop)
        return self

    def _value_to_write(self, x: Any) -> Tensor:
        if self.dtype in dtypes.weaks:
            raise TypeError("assign: a Python number has no memory to write to; use full")
        if isinstance(x, Tensor):
            value = x
        elif isinstance(x, bool | int | float):
            value = self._scalar(x, self.dtype)
        else:
            value = Tensor(x, device=self.device, dtype=self.dtype)
        if value.dtype in dtypes.weaks:
            value = value.cast(self.dtype)
        if value.dtype is not self.dtype:
            raise TypeError(
                f"assign: {value.dtype} can not be written to {self.dtype}; cast it first"
            )
        own = self.shape[self.ndim - value.ndim :]
        if value.ndim > self.ndim or any(
            s not in (1, o) for s, o in zip(value.shape, own, strict=True)
        ):
            raise ValueError(f"assign: {value.shape} does not broadcast to {self.shape}")
        here, theirs = self.device, value.device
        if here is not None and theirs is not None and here != theirs:
            raise ValueError(f"assign: the value is on {theirs}, this tensor on {here}; move one")
        return value if value.shape == self.shape else value._broadcast_to(self.shape)

    @in_turn
    def _write(self, value: UOp) -> None:
        """Make the next version of this storage's memory; first give it memory, if it has none."""
        storage, old = self._storage, self._storage.node
        buffer, watching = _memory(old), recorder()
        if buffer is None or not storage.owner:
            old = _give_memory(storage)
            buffer = _memory(old)
            assert buffer is not None
            if watching is not None and storage.maker is not watching.token:
                with watching.paused():  # a replay finds it in memory, as its next version
                    _realize_storages([storage])
                old = storage.node
        # Others that read this memory hold the version of now, not what follows. They get a copy
        # of it, which is taken before the write below is carried out.
        for reader in list(_readers.pop(buffer, ())):
            if reader is not storage and _memory(reader.node) is buffer:
                reader.node = UOp(Ops.CONTIGUOUS, reader.node.dtype, (reader.node,))
        target, value = self._writable(old, value)
        storage.node = UOp(
            Ops.AFTER, old.dtype, (old, UOp(Ops.STORE, dtypes.void, (target, value)))
        )
        _changes.pending += 1
        if watching is not None:
            watching.wrote(storage)

    def _writable(self, old: UOp, value: UOp) -> tuple[UOp, UOp]:
        """The view to write through, as movement only, and the value as the memory's dtype."""
        chain, node = [], self.uop
        while node is not old:
            chain.append(node)
            node = node.src[0]
        target, padded = old, False
        for step in reversed(chain):
            if step.op is Ops.EXPAND:
                raise ValueError(
                    f"assign: this tensor of shape {self.shape} is an expanded view: several of "
                    "its elements are one place in memory; write to a copy, .contiguous()"
                )
            padded = padded or step.op is Ops.PAD
            if step.op in GroupOp.Movement:
                target = UOp(step.op, old.dtype, (target, *step.src[1:]), step.arg)
        if padded and _reads_padding(chain[::-1], old.shape):
            raise ValueError(
                f"assign: this tensor of shape {self.shape} is a padded view, and padding is not "
                "memory; write to a copy, .contiguous()"
            )
        if value.dtype is not old.dtype:
            value = UOp(Ops.BITCAST, old.dtype, (value,))
        return target, value

    def __setitem__(self, indices: Any, v: Any) -> None:
        part = self[indices]
        if part._storage is not self._storage:
            raise IndexError(
                "writing to places given by a tensor is not supported; use where with a mask"
            )
        if not (isinstance(v, Tensor) and v._storage is self._storage and v.uop is part.uop):
            part.assign(v)

    def __delitem__(self, indices: Any) -> None:
        raise TypeError("elements of a Tensor can not be deleted; cut with a slice")

    def __iadd__(self, x: Any) -> Self:
        return self.assign(self.add(x))

    def __isub__(self, x: Any) -> Self:
        return self.assign(self.sub(x))

    def __imul__(self, x: Any) -> Self:
        return self.assign(self.mul(x))

    def __itruediv__(self, x: Any) -> Self:
        return self.assign(self.div(x))

    def __ifloordiv__(self, x: Any) -> Self:
        return self.assign(self // x)

    def __imod__(self, x: Any) -> Self:
        return self.assign(self.mod(x))

    def __ipow__(self, x: Any) -> Self:
        return self.assign(self.pow(x))

    def __iand__(self, x: Any) -> Self:
        return self.assign(self.bitwise_and(x))

    def __ior__(self, x: Any) -> Self:
        return self.assign(self.bitwise_or(x))

    def __ixor__(self, x: Any) -> Self:
        return self.assign(self.bitwise_xor(x))

    def __ilshift__(self, x: Any) -> Self:
        return self.assign(self.lshift(x))

    def __irshift__(self, x: Any) -> Self:
        return self.assign(self.rshift(x))

    def __imatmul__(self, x: Self) -> Self:
        return self.assign(self.matmul(x))

    # ------------------------------------------------------------ computing

    def realize(self, *lst: Tensor) -> Self:
        """Compute this tensor and others now, and with them every write they depend on."""
        _realize([self, *lst])
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a NumPy array, copied; ml_dtypes' where NumPy lacks the dtype."""
        import numpy as np

        np_dtype = _to_np_dtype(self.dtype)
        if any(not isinstance(s, int) for s in self.shape):
            raise ValueError(f"numpy: the shape {self.shape} is symbolic; slice to fixed sizes")
        if self.uop.op is Ops.CONST:
            return np.array(self.uop.arg, dtype=np_dtype)
        if 0 in self.shape:
            return np.empty(self.shape, dtype=np_dtype)
        return runtime().to_host(self._in_order())

    def _in_order(self) -> UOp:
        """A realised BUFFER with these values, or a reshape of one."""
        self.realize()
        node = self.uop
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

        if self.uop.op is Ops.CONST or 0 in self.shape:
            array = self.numpy()
        else:
            memory = runtime().host_view(self._in_order())
            array = np.frombuffer(memory, _to_np_dtype(self.dtype)).reshape(self.shape)
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
        if self.numel() != 1:
            raise ValueError(
                f"item: the tensor must have one element, this one of shape {self.shape} has "
                f"{self.numel()}; use tolist"
            )
        value = self.tolist()
        while isinstance(value, list):
            value = value[0]
        return value

    # ------------------------------------------------------------ gradients

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
            results.append(self._value(_copied(result), target.device or self.device))
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
        grads = compute_gradient(self.uop, seed, wanted)

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

    def backward(self, gradient: Tensor | None = None) -> Self:
        """Add to `grad` of every float tensor in the graph that has a device and wants one."""
        nodes = set(self.uop.postorder())
        leaves = [
            t
            for t in live_tensors()
            if t.requires_grad is not False
            and t.is_floating_point()
            and t.device is not None
            and t.uop in nodes
        ]
        for tensor, result in zip(
            leaves, self._gradients([t.uop for t in leaves], gradient), strict=True
        ):
            if result is None:
                continue
            new = self._value(_copied(result), tensor.device)
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
        return int(self.shape[0])

    def __iter__(self) -> Any:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        return f"<Tensor {self.shape} {self.dtype.name} on {self.device}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copy = self.clone()
        memo[id(self)] = copy
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.numpy(), self.dtype, self.device, self.requires_grad)


# All tensors there are, by id: `==` of tensors is elementwise, so they can not be in a set. What
# takes one out is C (the second argument of pop is the reference), since thousands come and go.
_live: dict[int, weakref.ref[Tensor]] = {}


def live_tensors() -> list[Tensor]:
    """All tensors there are."""
    return [t for found in list(_live.values()) if (t := found()) is not None]


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


def _sizes(what: str, shape: tuple[Any, ...]) -> tuple[int, ...]:
    if not all(hasattr(s, "__index__") and not isinstance(s, UOp) and s >= 0 for s in shape):
        raise ValueError(f"{what}: sizes are ints of at least 0, got {shape}")
    return tuple(s.__index__() for s in shape)


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


def _reads_padding(chain: Sequence[UOp], shape: tuple[int, ...]) -> bool:
    """Whether a chain of movement over memory of that shape ends with some padding in it."""
    import numpy as np

    places = np.arange(prod(shape)).reshape(shape)
    for step in chain:
        if step.op is Ops.RESHAPE:
            places = places.reshape(step.arg)
        elif step.op is Ops.PERMUTE:
            places = places.transpose(step.arg)
        elif step.op is Ops.FLIP:
            places = np.flip(places, step.arg)
        elif step.op is Ops.SHRINK:
            places = places[tuple(slice(begin, end) for begin, end in step.arg)]
        elif step.op is Ops.PAD:
            places = np.pad(places, step.arg, constant_values=-1)
    return bool((places < 0).any())


# ---------------------------------------------------------------- realising


@in_turn
def _realize(tensors: Sequence[Tensor]) -> None:
    """Compute the storages of tensors, and tell all others.

    Three things must come out as if every operation had run when it was written:
    - A write on the way is carried out, so whoever holds that version now finds it in memory.
    - Whoever was built before on the version that it overwrites must be computed too, in the same
      go, since that version is gone afterwards; and so on for the writes that this carries out.
    - What shares nodes with a computed graph shares the result.
    """
    live = live_tensors()
    _realize_storages(_wanted(tensors, live), live)


@in_turn
def _realize_storages(wanted: Sequence[_Storage], live: Sequence[Tensor] = ()) -> None:
    """Compute storages. `live` are all tensors, where the caller has their list."""
    if not wanted:
        return
    live = live or live_tensors()
    pending = _pending(live)
    threads = threading.active_count() > 1
    if threads:
        _skip_writes_done(pending)
    stale = _add_stale_readers(wanted, pending)
    outputs = list(dict.fromkeys(s.node for s in (*wanted, *stale)))
    results = runtime().realize(outputs, [s.node for s in stale])
    if threads:  # others may have built on what was just computed, or be about to
        for node, now in results.items():
            if node.op is Ops.AFTER:
                node.props["done"] = now
        live = live_tensors()
        pending = _pending(live)
    before = UOp.sink(*[s.node for s in pending])
    after = before.substitute(results, walk=True)
    views: dict[int, UOp] = {}
    for storage, node in zip(pending, after.src, strict=True):
        if node is storage.node:
            continue
        storage.node = node
        base = _split_view(node)
        if base.op is Ops.BUFFER and (node is base or _is_rearranged(node)):
            storage.device = base.arg.device
            if node is base:
                if not storage.owner:
                    _take_memory(storage, base)
            elif base not in _owners:
                views[id(storage)] = base
    # A value that came back as a rearranged BUFFER: its tensors become views of that memory.
    for tensor in live:
        base_of = views.get(id(tensor._storage))
        if base_of is not None:
            tensor._uop, tensor._root = tensor.uop, base_of
    for storage in pending:
        base_of = views.get(id(storage))
        if base_of is not None:
            storage.node = base_of
            _take_memory(storage, base_of)


def _storages(tensors: Iterable[Tensor]) -> list[_Storage]:
    """The storages of tensors, each once."""
    return list({id(t._storage): t._storage for t in tensors}.values())


def _skip_writes_done(storages: Sequence[_Storage]) -> None:
    """Leave out writes that another thread has carried out since a value was built on them."""
    graph = UOp.sink(*[s.node for s in storages])
    done = {
        n: n.props["done"] for n in graph.postorder() if n.op is Ops.AFTER and "done" in n.props
    }
    if done:
        for storage, node in zip(storages, graph.substitute(done, walk=True).src, strict=True):
            storage.node = node


def _pending(tensors: Iterable[Tensor]) -> list[_Storage]:
    """The storages whose values are not in memory; none of what another thread captures."""
    found = [s for s in _storages(tensors) if s.node.op not in (Ops.BUFFER, Ops.CONST)]
    if not recorders:
        return found
    me = threading.get_ident()
    foreign = {r.token for thread, r in list(recorders.items()) if thread != me}
    return [s for s in found if s.maker not in foreign]


def _is_rearranged(node: UOp) -> bool:
    """Whether a chain of movement only reorders elements: each is there once."""
    while node.op in (Ops.RESHAPE, Ops.PERMUTE, Ops.FLIP):
        node = node.src[0]
    return node.op is Ops.BUFFER


def _wanted(tensors: Sequence[Tensor], live: Sequence[Tensor]) -> list[_Storage]:
    """The storages to compute. A part of a value that nobody else sees is computed alone."""
    wanted: dict[int, _Storage] = {}
    shared: dict[int, int] | None = None
    for tensor in tensors:
        uop, storage = tensor.uop, tensor._storage
        if 0 in uop.shape or uop.op is Ops.CONST or _split_view(uop).op is Ops.BUFFER:
            continue
        if any(not isinstance(size, int) for size in uop.shape):
            raise ValueError(f"realize: the shape {uop.shape} is symbolic; slice to fixed sizes")
        if uop is not storage.node and _memory(storage.node) is None:
            if shared is None:
                shared = {}
                for t in live:
                    shared[id(t._storage)] = shared.get(id(t._storage), 0) + 1
            if shared[id(storage)] == 1:
                storage = tensor._storage = _Storage(uop, storage.device)
                tensor._root = uop
        wanted[id(storage)] = storage
    return list(wanted.values())


def _add_stale_readers(wanted: Sequence[_Storage], pending: Sequence[_Storage]) -> list[_Storage]:
    """The storages whose values read memory that computing the wanted ones overwrites."""
    stale: list[_Storage] = []
    taken = set(wanted)
    rest = [s for s in pending if s not in taken]
    if not rest:
        return stale
    after_op, buffer_op = Ops.AFTER, Ops.BUFFER
    while True:
        newest: dict[UOp, UOp] = {}
        versions: dict[UOp, UOp] = {}
        for node in UOp.sink(*[s.node for s in (*wanted, *stale)]).postorder():
            op = node.op
            if op is after_op or op is buffer_op:
                buffer = _memory(node)
                if buffer is not None:
                    versions[node] = buffer
                    if op is after_op:
                        newest[buffer] = node  # sources come first: the last one is the newest
        old = {node for node, b in versions.items() if b in newest and newest[b] is not node}
        if not old:
            return stale
        kept = set(newest.values())
        reads = set(old)
        more_writes = False
        for node in UOp.sink(*[s.node for s in rest]).postorder():
            if node not in kept and not reads.isdisjoint(node.src):
                reads.add(node)
            more_writes = more_writes or (node.op is after_op and node not in versions)
        found = [s for s in rest if s.node in reads]
        if not found:
            return stale
        for storage in found:
            if _split_view(storage.node) in old:  # nothing is computed: a copy must be made
                storage.node = UOp(Ops.CONTIGUOUS, storage.node.dtype, (storage.node,))
        stale += found
        if not more_writes:  # nothing that they bring along overwrites anything else
            return stale
        taken.update(found)
        rest = [s for s in rest if s not in taken]


# ---------------------------------------------------------------- what captured steps need
# A step that is captured reads and writes BUFFERs behind the backs of tensors when it is replayed.
# It finds here what it has to know of them.


@in_turn
def settle() -> None:
    """Compute all that is pending anywhere, and give every value memory that no other reads."""
    live = live_tensors()
    pending = {id(s) for s in _pending(live)}
    fixed = [
        t
        for t in live
        if id(t._storage) in pending and all(isinstance(size, int) for size in t.shape)
    ]
    try:
        _realize(fixed)
    except Exception:
        # Whose value can not be computed will hear of it on reading it; it is no business of the
        # step that is captured now. If that needs it too, it fails in the same way.
        for tensor in fixed:
            with contextlib.suppress(Exception):
                _realize([tensor])
    shared = []
    for buffer, readers in list(_readers.items()):
        for storage in list(readers):
            if not storage.owner and storage.node is buffer:
                _give_memory(storage)
                shared.append(storage)
    _realize_storages(shared)


def _give_memory(storage: _Storage) -> UOp:
    """Note that a storage's value goes to a BUFFER of its own: the AFTER that it is then."""
    place = runtime().canonicalize_device(storage.device)
    old = storage.node
    buffer = runtime().empty(old.shape, old.dtype, place)
    storage.owner = False
    _take_memory(storage, buffer)
    storage.device = place
    store = UOp(Ops.STORE, dtypes.void, (buffer, old))
    storage.node = UOp(Ops.AFTER, old.dtype, (buffer, store))
    _changes.pending += 1
    return storage.node


@in_turn
def realize_step(tensors: Sequence[Tensor], written: Iterable[_Storage]) -> None:
    """Compute tensors, and carry out the writes to storages that are pending."""
    live = live_tensors()
    wanted = _wanted(tensors, live)
    taken = set(wanted)
    wanted += [s for s in dict.fromkeys(written) if s.node.op is Ops.AFTER and s not in taken]
    _realize_storages(wanted, live)


def pending_count() -> int:
    """It has grown since another call if some value may be pending that was not then."""
    return _changes.pending


@in_turn
def compute_readers(buffers: Collection[UOp], clean: weakref.WeakSet[UOp]) -> None:
    """Compute every value that reads one of these BUFFERs: something else will be in them.

    `clean` are graphs known to read none of them; it is added to.
    """
    found: list[_Storage] = []
    for buffer in buffers if _readers else ():
        for reader in list(_readers.pop(buffer, ())):
            if not reader.owner and _memory(reader.node) is buffer:
                reader.node = UOp(Ops.CONTIGUOUS, reader.node.dtype, (reader.node,))
                found.append(reader)
    taken = set(found)
    for storage in _storages(live_tensors()):
        node = storage.node
        if node.op in (Ops.BUFFER, Ops.CONST) or storage in taken or node in clean:
            continue
        if not _reads(node, buffers, clean):
            clean.add(node)
            continue
        if _split_view(node).op is Ops.BUFFER:  # nothing is computed: a copy must be made
            storage.node = UOp(Ops.CONTIGUOUS, node.dtype, (node,))
        found.append(storage)
    _changes.pending += len(found)
    _realize_storages(found)


def _reads(root: UOp, buffers: Collection[UOp], clean: weakref.WeakSet[UOp]) -> bool:
    """Whether a graph has one of these BUFFERs in it."""
    stack, seen = [root], {root}
    while stack:
        for source in stack.pop().src:
            if source.op is Ops.BUFFER:
                if source in buffers:
                    return True
            elif source not in seen and source not in clean:
                seen.add(source)
                stack.append(source)
    return False


def memory_of(tensor: Tensor) -> tuple[UOp, int, bool] | None:
    """Where the elements of a realised tensor lie in one piece and in order; None if they do not.

    That is a BUFFER, how many of its elements come before, and whether it is all of them.
    """
    node = tensor.uop
    if node.op is Ops.BUFFER:
        return node, 0, True
    chain = []
    while node.op in _VIEWS:
        chain.append(node)
        node = node.src[0]
    if node.op is not Ops.BUFFER:
        return None
    offset, shape = 0, node.shape
    for step in reversed(chain):
        if step.op is Ops.SHRINK:
            sizes = [end - begin for begin, end in step.arg]
            cut = [k for k, size in enumerate(sizes) if size != shape[k]]
            if cut and any(size != 1 for size in sizes[: cut[-1]]):
                return None
            for k, (begin, _) in enumerate(step.arg):
                offset += begin * prod(shape[k + 1 :])
        elif step.op not in (Ops.RESHAPE, Ops.DETACH, Ops.BITCAST):
            return None
        shape = step.shape
    return node, offset, prod(shape) == prod(node.shape)


def own_memory(tensor: Tensor) -> UOp:
    """The BUFFER of a realised tensor, which nobody else reads once `compute_readers` was called.

    If the tensor only reads the memory of another one, it gets a copy first.
    """
    storage = tensor._storage
    if not storage.owner:
        _give_memory(storage)
        _realize_storages([storage])
    buffer = _memory(storage.node)
    assert buffer is not None, "a realised tensor has memory"
    return buffer


def root_of(tensor: Tensor) -> UOp:
    """What a tensor is a view of: a BUFFER, once it is realised."""
    return _split_view(tensor.uop)


def storage_number(tensor: Tensor) -> int:
    """The same for views of one value, while that lives."""
    return id(tensor._storage)


def alias(tensor: Tensor) -> Tensor:
    """Another tensor of the same storage."""
    other = Tensor._view(tensor._storage, tensor._root, tensor._uop)
    other.requires_grad = tensor.requires_grad
    return other


@in_turn
def made_by(token: object) -> list[Tensor]:
    """The tensors whose values were computed under the recorder with that token."""
    return [
        t
        for t in live_tensors()
        if t._storage.maker is token and t._storage.node.op is not Ops.CONST
    ]


_Chain = tuple[tuple[Ops, DType, Any, tuple[UOp, ...]], ...]


def _chain(uop: UOp, root: UOp) -> _Chain:
    """The steps from a node to a view of it, without the node."""
    steps = []
    while uop is not root:
        steps.append((uop.op, uop.dtype, uop.arg, uop.src[1:]))
        uop = uop.src[0]
    return tuple(reversed(steps))


def _applied(chain: _Chain, node: UOp) -> UOp:
    for op, dtype, arg, sizes in chain:
        node = UOp(op, dtype, (node, *sizes), arg)
    return node


class Recipe:
    """How to make tensors like some realised ones, over other memory.

    Values made under the recorder with `token` are made anew; `bases` are the BUFFERs that they
    are in. Tensors of storages from outside are views of those, as they were; `outside` are the
    BUFFERs that they are in.
    """

    def __init__(self, tensors: Sequence[Tensor], token: object) -> None:
        self.bases: list[UOp] = []
        self.outside: list[UOp] = []
        self._storages: list[tuple[int, _Chain, UOp | None, str | None]] = []
        self._tensors: list[tuple[int, weakref.ref[_Storage] | None, _Chain, bool | None]] = []
        numbers: dict[int, int] = {}
        for t in tensors:
            uop, storage = t.uop, t._storage
            chain = _chain(uop, storage.node)
            if storage.maker is not token:
                self.outside.append(_split_view(uop))
                self._tensors.append((-1, weakref.ref(storage), chain, t.requires_grad))
                continue
            if id(storage) not in numbers:
                numbers[id(storage)] = len(self._storages)
                self._storages.append(self._recipe(storage))
            self._tensors.append((numbers[id(storage)], None, chain, t.requires_grad))

    def _recipe(self, storage: _Storage) -> tuple[int, _Chain, UOp | None, str | None]:
        base = _split_view(storage.node)
        if base.op is Ops.BUFFER and base not in self.bases:
            self.bases.append(base)
        if base.op is Ops.BUFFER:
            return self.bases.index(base), _chain(storage.node, base), None, storage.device
        if base.op is not Ops.CONST:  # no elements, so it was not computed
            zero = UOp.const(0, storage.node.dtype)
            return -1, (), UOp(Ops.EXPAND, zero.dtype, (zero,), storage.node.shape), storage.device
        return -1, (), storage.node, storage.device

    def is_complete(self) -> bool:
        """Whether the storages from outside are all there."""
        return all(kept() is not None for _, kept, _, _ in self._tensors if kept is not None)

    def make(self, bases: Sequence[UOp]) -> list[Tensor]:
        """The tensors, over these BUFFERs."""
        storages = []
        for number, chain, constant, device in self._storages:
            if constant is not None:
                storages.append(_Storage(constant, device))
                continue
            storage = _Storage(_applied(chain, bases[number]), device)
            if not chain:
                _take_memory(storage, bases[number])
            storages.append(storage)
        made = []
        for number, kept, chain, requires_grad in self._tensors:
            found = storages[number] if kept is None else kept()
            assert found is not None, "is_complete says whether it is there"
            tensor = Tensor._view(found, found.node, _applied(chain, found.node))
            tensor.requires_grad = requires_grad
            made.append(tensor)
        return made


class Holders:
    """What a capture keeps of the tensors that it reads or writes: whether they are still those.

    `is_lost` once one has died or has become another one.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.is_lost = False
        this = weakref.ref(self)

        def lose(_: object) -> None:
            holders = this()
            if holders is not None:
                holders.is_lost = True

        tensors = list(tensors)
        self._tensors = [weakref.ref(t, lose) for t in tensors]
        self._storages = [(weakref.ref(s), s.node) for s in _storages(tensors)]
        for tensor in tensors:
            storage = tensor._storage
            if storage.holders is None:
                storage.holders = weakref.WeakSet()
            storage.holders.add(self)

    @in_turn
    def settle(self) -> None:
        """Carry out writes that are pending, so that the memory of each tensor holds its value."""
        for kept, node in self._storages:
            storage = kept()
            if storage is not None and storage.node is not node and storage.node.op is Ops.AFTER:
                _realize_storages([storage])
            if storage is None or storage.node is not node:
                self.is_lost = True
                return
