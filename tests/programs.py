"""Programs of tensors as data, and two machines that run them: NumPy's, and ours.

A program is a list of operations. Each names its operands by their place among the tensors there
are, so the same list can be run by both machines, by ours at any time and in any order of
reading. NumPy's machine says what every tensor is after every step.

An array of the NumPy machine is a flat base and the places in it that it is a view of, so that it
shares memory exactly where a tensor does: also after a reshape of what is not in order. All
values are small whole numbers, so that every sum is exact in whatever order it is taken.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tiny import Device, Tensor, TinyJit, random
from tiny.dtype import _from_np_dtype

Array = np.ndarray[Any, Any]

LARGEST = 2**18  # of a float: products of three and sums of many are exact in float64
LARGEST_SINGLE = 2**10  # of a float32 that goes into a product
MOST_ALIVE = 12  # tensors

SHAPES = [(3,), (2, 3), (3, 3), (), (1, 3), (5,), (0, 3), (2, 1, 3)]
DTYPES = [np.float32, np.int32, np.float64, np.bool_, np.int8, np.uint8]
BITS = {"float32": "int32", "int32": "uint32", "uint32": "int32", "int8": "uint8", "uint8": "int8"}


class Rejected(Exception):
    """An operation that does not fit here: another one is drawn."""


class Pick:
    """Choices read off one number, so that a smaller number is a simpler operation."""

    def __init__(self, number: int) -> None:
        self.number = number

    def below(self, count: int) -> int:
        """A number from 0 to count - 1."""
        self.number, choice = divmod(self.number, count)
        return choice

    def of(self, options: Sequence[Any]) -> Any:
        """One of some options. Rejected if there is none."""
        if not options:
            raise Rejected
        return options[self.below(len(options))]

    def chance(self, one_in: int) -> bool:
        """True once in so many times."""
        return self.below(one_in) == one_in - 1


# ---------------------------------------------------------------- NumPy's machine


class Base:
    """Memory: values, and their slopes along some directions where gradients are asked for."""

    count = 0

    def __init__(self, values: Array, slopes: Array | None = None) -> None:
        self.values, self.slopes = values, slopes
        Base.count += 1
        self.number = Base.count


class Mirror:
    """An array: places of a base. `read_from` are the bases that its value was computed from."""

    def __init__(self, base: Base, places: Array, dtype: Any, depth: int = 0) -> None:
        self.base, self.places, self.dtype, self.depth = base, places, np.dtype(dtype), depth
        self.read_from: frozenset[int] = frozenset()
        self.is_expanded = False  # a view in which elements were repeated is never written

    @property
    def shape(self) -> tuple[int, ...]:
        return self.places.shape

    def values(self) -> Array:
        return self.base.values.view(self.dtype)[self.places]

    def slopes(self, count: int) -> Array:
        """(count, *shape)"""
        if self.base.slopes is None:
            return np.zeros((count, *self.shape))
        return self.base.slopes[:, self.places]

    def moved(self, places: Array, deeper: bool = True) -> Mirror:
        view = Mirror(self.base, places, self.dtype, self.depth + deeper)
        view.is_expanded = self.is_expanded
        return view

    def in_order(self) -> bool:
        flat = self.places.ravel()
        return flat.size == 0 or bool((np.diff(flat) == 1).all())

    def is_writable(self) -> bool:
        return not self.is_expanded

    def write(self, values: Array, slopes: Array | None = None) -> None:
        before = self.base.values.copy()
        self.base.values.view(self.dtype)[self.places] = values
        try:
            check_values(self.base.values)
        except Rejected:
            self.base.values[...] = before
            raise
        if self.base.slopes is not None or slopes is not None:
            if self.base.slopes is None:
                assert isinstance(slopes, np.ndarray)
                count = len(slopes)
                self.base.slopes = np.zeros((count, self.base.values.size))
            self.base.slopes[:, self.places] = 0 if slopes is None else slopes


def check_values(values: Array) -> None:
    """Rejected unless floats are whole (or halves) and small."""
    if values.dtype.kind != "f" or not values.size:
        return
    limit = LARGEST_SINGLE * 64 if values.dtype == np.float32 else LARGEST
    if not np.isfinite(values).all() or np.abs(values).max() > limit:
        raise Rejected
    if (values * 2 != np.round(values * 2)).any():
        raise Rejected


def fresh(values: Array, slopes: Array | None = None) -> Mirror:
    """An array with memory of its own."""
    values = np.asarray(values)
    check_values(values)
    flat = None if slopes is None else slopes.reshape(len(slopes), -1).astype(np.float64)
    places = np.arange(values.size).reshape(values.shape)
    return Mirror(Base(values.ravel().copy(), flat), places, values.dtype)


# ---------------------------------------------------------------- operations
# Each: how it is drawn from the arrays there are, what NumPy does, what tensors do. The last two
# get the arrays or tensors, and the operation's data; they return new ones to be kept.

Draw = Callable[["Machine", Pick], tuple[Any, ...]]
Run = Callable[..., Any]


class Kind(NamedTuple):
    draw: Draw
    numpy: Run
    tiny: Run


KINDS: dict[str, Kind] = {}


def kind(name: str, draw: Draw) -> Callable[[type], type]:
    """Note what a class with two functions, `numpy` and `tiny`, does."""

    def note(both: type) -> type:
        KINDS[name] = Kind(draw, both.__dict__["numpy"], both.__dict__["tiny"])
        return both

    return note


def small(shape: tuple[int, ...], dtype: Any, seed: int) -> Array:
    """Small numbers of a dtype, 0 among them."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    low = 0 if dtype.kind in "ub" else -3
    return rng.integers(low, 2 if dtype.kind == "b" else 4, shape).astype(dtype)


def draw_new(m: Machine, p: Pick) -> tuple[Any, ...]:
    shape, dtype = p.of(m.shapes), p.of(m.dtypes)
    return p.of(["array", "lists", "full", "constant", "zeros"]), shape, dtype, p.below(8)


@kind("new", draw_new)
class _New:
    def numpy(m, how, shape, dtype, seed):
        array = small(shape, dtype, seed)
        if how in ("full", "constant"):
            array = np.full(shape, small((), dtype, seed))
        return fresh(np.zeros_like(array) if how == "zeros" else array)

    def tiny(m, how, shape, dtype, seed):
        array, to = small(shape, dtype, seed), _from_np_dtype(np.dtype(dtype))
        if how == "lists" and 0 not in shape and shape:
            return Tensor(array.tolist(), dtype=to)
        if how in ("full", "constant"):
            value = small((), dtype, seed).item()
            return Tensor.full(shape, value, dtype=to, buffer=how == "full")
        return Tensor.zeros(*shape, dtype=to) if how == "zeros" else Tensor(array)


def draw_view(m: Machine, p: Pick) -> tuple[Any, ...]:
    k, ways = m.any(p), ["index", "flip", "permute", "reshape", "expand", "fold"]
    ways += ["detach", "bits"] * (not m.directions)  # through which no gradient flows
    shape = m.items[k].shape
    way = p.of(ways)
    if way == "index":
        return k, way, draw_index(shape, p)
    if way == "flip":
        return k, way, tuple(a for a in range(len(shape)) if p.below(2)) or (0,) * bool(shape)
    if way == "permute":
        order = list(range(len(shape)))
        return k, way, tuple(order.pop(p.below(len(order))) for _ in range(len(shape)))
    if way == "reshape":
        size = np.prod(shape, dtype=int)
        return k, way, p.of([s for s in RESHAPES if np.prod(s, dtype=int) == size])
    if way == "expand":
        return k, way, (2, *[3 if s == 1 and p.below(2) else s for s in shape])
    if way == "bits":
        if m.items[k].dtype.name not in BITS:
            raise Rejected
        return k, way, BITS[m.items[k].dtype.name]
    return k, way, ()


RESHAPES = [(3,), (1, 3), (3, 1), (6,), (3, 2), (2, 3), (9,), (3, 3), (2, 1, 3), (1,), (), (0,),
            (2,), (4,), (2, 2), (1, 2), (0, 2), (2, 0)]  # fmt: skip


@kind("view", draw_view)
class _View:
    def numpy(m, k, way, how):
        x = m.items[k]
        at = x.places
        if way == "bits":
            found = x.moved(at)
            found.dtype = np.dtype(how)
            return found
        if way == "detach":
            return x.moved(at)
        if way == "flip":
            return x.moved(np.flip(at, how))
        if way == "permute":
            return x.moved(at.transpose(how))
        if way == "reshape":
            return x.moved(at.reshape(how))
        if way == "expand":
            found = x.moved(np.broadcast_to(at, how))
            found.is_expanded = True
            return found
        if way == "fold":
            return x.moved(at.reshape(-1))
        return x.moved(at[how])

    def tiny(m, k, way, how):
        x = m.items[k]
        found = view_of(x, way, how)
        return Tensor(x) if found is x else found  # another object: it may be replaced


def view_of(x: Tensor, way: str, how: Any) -> Tensor:
    """A view of a tensor; itself where nothing changes."""
    if way == "bits":
        return x.bitcast(_from_np_dtype(np.dtype(how)))
    if way == "detach":
        return x.detach()
    if way == "flip":
        return x.flip(how) if how else x
    if way == "permute":
        return x.permute(how) if how else x
    if way == "reshape":
        return x.reshape(how)
    if way == "expand":
        return x.expand(how)
    if way == "fold":
        return x.flatten() if x.ndim else x.reshape(1)
    return x[how]


def draw_index(shape: tuple[int, ...], p: Pick) -> tuple[Any, ...]:
    """Ints, slices, None and Ellipsis."""
    parts: list[Any] = []
    for size in shape[: p.below(len(shape) + 1) + 1]:
        options: list[Any] = [
            slice(1, None), slice(None, -1), slice(None, None, -1), slice(None, None, 2),
            slice(None), slice(None, None, -2), slice(1, 3), slice(1, 1), slice(-1, None),
        ]  # fmt: skip
        parts.append(p.of(options + [0, -1, size // 2] * bool(size)))
    if p.chance(4):
        parts.insert(p.below(len(parts) + 1), None)
    if p.chance(4):
        parts.append(...)
    return tuple(parts)


ARITHMETIC = ("add", "sub", "mul", "max", "less", "equal")
LOGIC = ("and", "or", "xor")
NUMPY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "less": np.less,
    "equal": np.equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
TINY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "max": lambda a, b: a.maximum(b),
    "less": lambda a, b: a < b,
    "equal": lambda a, b: a == b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


def operations(dtype: Any) -> tuple[str, ...]:
    """The binary operations on a dtype."""
    name = np.dtype(dtype)
    return LOGIC if name.kind == "b" else ARITHMETIC[:4] if name.kind == "f" else ARITHMETIC + LOGIC


def number(dtype: Any, p: Pick) -> Any:
    """A Python number that is a value of a dtype."""
    name = np.dtype(dtype)
    if name.kind == "b":
        return bool(p.below(2))
    value = p.below(4) if name.kind == "u" else p.below(7) - 3
    return float(value) if name.kind == "f" else value


def partner(m: Machine, k: int, p: Pick, narrower: bool = False) -> int | tuple[str, Any]:
    """What an operation takes beside array k: another array, or a number as ("number", …)."""
    x = m.items[k]
    fits = []
    for j in m.alive():
        y = m.items[j]
        if y.dtype != x.dtype:
            continue
        try:
            wide = np.broadcast_shapes(x.shape, y.shape)
        except ValueError:
            continue
        if wide == x.shape or not narrower:
            fits.append(j)
    if p.chance(4) or not fits:
        return "number", number(x.dtype, p)
    return int(p.of(fits))


def operand(m: Machine, other: Any) -> Any:
    """The values of a partner, or the tensor, or the number."""
    if isinstance(other, tuple):
        return other[1]
    found = m.items[other]
    return found.values() if isinstance(found, Mirror) else found


def slopes_of(m: Machine, other: Any) -> Any:
    if isinstance(other, tuple):
        return np.zeros((m.directions,))
    return m.items[other].slopes(m.directions)


def lined_up(slopes: Array, ndim: int) -> Array:
    """Slopes (directions, *shape) with dimensions put in, so that they broadcast."""
    return slopes.reshape(slopes.shape[0], *(1,) * (ndim - slopes.ndim + 1), *slopes.shape[1:])


def slopes_of_result(m: Machine, name: str, k: int, other: Any, values: Array) -> Array | None:
    """The product rule, if there are slopes."""
    if not m.directions:
        return None
    ndim = values.ndim
    a, b = m.items[k].values(), operand(m, other)
    da, db = lined_up(slopes_of(m, k), ndim), lined_up(slopes_of(m, other), ndim)
    found = {"add": lambda: da + db, "sub": lambda: da - db, "mul": lambda: da * b + a * db}[name]()
    return np.broadcast_to(found, (m.directions, *values.shape))


def draw_binary(m: Machine, p: Pick) -> tuple[Any, ...]:
    k = m.any(p)
    names = ("add", "sub", "mul") if m.directions else operations(m.items[k].dtype)
    return p.of(names), k, partner(m, k, p)


def combined(m: Machine, name: str, k: int, other: Any) -> tuple[Array, Array | None]:
    """The value of a binary operation, and its slopes."""
    x, y = m.items[k].values(), operand(m, other)
    largest = max(np.abs(x).max(initial=0), np.abs(y).max(initial=0))
    if name == "mul" and x.dtype == np.float32 and largest > LARGEST_SINGLE:
        raise Rejected
    with np.errstate(all="ignore"):
        values = NUMPY[name](x, np.asarray(y, x.dtype))
    return values, slopes_of_result(m, name, k, other, values)


@kind("binary", draw_binary)
class _Binary:
    def numpy(m, name, k, other):
        return m.computed(fresh(*combined(m, name, k, other)), k, other)

    def tiny(m, name, k, other):
        return TINY[name](m.items[k], operand(m, other))


def draw_cast(m: Machine, p: Pick) -> tuple[Any, ...]:
    k = m.any(p)
    x = m.items[k]
    to = np.dtype(p.of(DTYPES))
    if to == x.dtype or (x.dtype.kind == "f" and to.kind == "u"):
        raise Rejected  # a conversion of a negative float is undefined in NumPy
    return k, to.name


@kind("cast", draw_cast)
class _Cast:
    def numpy(m, k, to):
        x = m.items[k].values()
        if x.dtype.kind == "f" and np.dtype(to) == np.int8:
            x = x.astype(np.int32)
        return m.computed(fresh(x.astype(to)), k)

    def tiny(m, k, to):
        return m.items[k].cast(_from_np_dtype(np.dtype(to)))


def draw_reduce(m: Machine, p: Pick) -> tuple[Any, ...]:
    k = m.any(p)
    x = m.items[k]
    if x.dtype.kind in "bu":
        raise Rejected
    axis = p.of([None, *range(len(x.shape))])
    how = "sum" if m.directions else p.of(["sum", "max"])
    if how == "max" and 0 in x.shape:
        raise Rejected
    return how, k, axis


@kind("reduce", draw_reduce)
class _Reduce:
    def numpy(m, how, k, axis):
        x = m.items[k].values()
        if how == "max":
            return m.computed(fresh(x.max(axis)), k)
        to = np.int32 if x.dtype == np.int8 else x.dtype
        slopes = None
        if m.directions:
            slopes = m.items[k].slopes(m.directions)
            axes = tuple(range(1, slopes.ndim)) if axis is None else axis + 1
            slopes = slopes.sum(axes)
        return m.computed(fresh(np.asarray(x.sum(axis, dtype=to)), slopes), k)

    def tiny(m, how, k, axis):
        x = m.items[k]
        return x.sum(axis) if how == "sum" else x.max(axis)


def draw_matmul(m: Machine, p: Pick) -> tuple[Any, ...]:
    able = [k for k in m.alive() if len(m.items[k].shape) == 2 and m.items[k].dtype.kind in "fi"]
    k = p.of(able)
    x = m.items[k]
    fits = [j for j in able if m.items[j].dtype == x.dtype and m.items[j].shape[0] == x.shape[1]]
    if x.dtype == np.int8:
        raise Rejected  # sums are int32
    return k, p.of(fits)


@kind("matmul", draw_matmul)
class _Matmul:
    def numpy(m, k, j):
        x, y = m.items[k].values(), m.items[j].values()
        for v in (x, y):
            if v.dtype == np.float32 and np.abs(v).max(initial=0) > LARGEST_SINGLE:
                raise Rejected
        return m.computed(fresh(x @ y), k, j)

    def tiny(m, k, j):
        return m.items[k] @ m.items[j]


def draw_copy(m: Machine, p: Pick) -> tuple[Any, ...]:
    k = m.any(p)
    ndim = len(m.items[k].shape)
    how = p.of(["clone", "contiguous", "pad", "repeat", "roll", "cat", "where", "stack"])
    return how, k, p.below(max(ndim, 1)), p.below(3)


@kind("copy", draw_copy)
class _Copy:
    """What rearranges, and has memory of its own."""

    def numpy(m, how, k, axis, n):
        x = m.items[k]
        v = x.values()
        if how == "where" and v.dtype.kind == "b":
            raise Rejected
        if how == "contiguous" and k in m.fixed and not m.directions and not x.in_order():
            raise Rejected  # an argument of a captured step is in order
        if how == "contiguous" and x.in_order():
            return x.moved(x.places)
        if how == "pad" and v.ndim:
            v = np.pad(v, [(n, 1) if a == axis else (0, 0) for a in range(v.ndim)])
        elif how == "repeat" and v.ndim:
            v = np.tile(v, [n if a == axis else 1 for a in range(v.ndim)])
        elif how == "roll" and v.ndim:
            v = np.roll(v, n, axis)
        elif how == "cat" and v.ndim:
            v = np.concatenate([v] * (n + 1), axis)
        elif how == "stack":
            v = np.stack([v] * (n + 1), axis)
        elif how == "where":
            v = np.where(v > n, v, v.dtype.type(0))
        if v.size > 64:
            raise Rejected
        return m.computed(fresh(v), k)

    def tiny(m, how, k, axis, n):
        x = m.items[k]
        if how == "contiguous":
            return x.contiguous()
        if how == "pad" and x.ndim:
            return x.pad([(n, 1) if a == axis else (0, 0) for a in range(x.ndim)])
        if how == "repeat" and x.ndim:
            return x.repeat([n if a == axis else 1 for a in range(x.ndim)])
        if how == "roll" and x.ndim:
            return x.roll(n, axis)
        if how == "cat" and x.ndim:
            return x.cat(*[x] * n, dim=axis)
        if how == "stack":
            return x.stack(*[x] * n, dim=axis)
        if how == "where":
            return (x > n).where(x, 0)
        return x.clone()


def draw_random(m: Machine, p: Pick) -> tuple[Any, ...]:
    return (p.of([(3,), (2, 3), (3, 3)]),)


_drawn: dict[Any, Array] = {}


def counter() -> int:
    """How many random numbers were drawn."""
    return random.generator(Device.DEFAULT).counter


@kind("random", draw_random)
class _Random:
    def numpy(m, shape):
        # the numbers of the same draw, made at once
        at = counter(), shape
        if at not in _drawn:
            _drawn[at] = (Tensor.rand(*shape) * 8).cast("int32").numpy()
        else:
            random.generator(Device.DEFAULT).draw(int(np.prod(shape)))
        return fresh(_drawn[at])

    def tiny(m, shape):
        return (Tensor.rand(*shape) * 8).cast("int32")


# ---------------------------------------------------------------- writing


def draw_assign(m: Machine, p: Pick) -> tuple[Any, ...]:
    k = m.written(p)
    return k, partner(m, k, p, narrower=True)


@kind("assign", draw_assign)
class _Assign:
    def numpy(m, k, other):
        m.write(k, m.items[k], operand(m, other), slopes_of(m, other) if m.directions else None)

    def tiny(m, k, other):
        m.items[k].assign(operand(m, other))


def draw_in_place(m: Machine, p: Pick) -> tuple[Any, ...]:
    k = m.written(p)
    names = operations(m.items[k].dtype)
    return p.of([n for n in names if n in ("add", "sub", "mul", *LOGIC)]), k, partner(m, k, p, True)


@kind("in place", draw_in_place)
class _InPlace:
    def numpy(m, name, k, other):
        if m.directions and name in LOGIC:
            raise Rejected
        m.write(k, m.items[k], *combined(m, name, k, other))

    def tiny(m, name, k, other):
        x, y = m.items[k], operand(m, other)
        if name == "add":
            x += y
        elif name == "sub":
            x -= y
        elif name == "mul":
            x *= y
        elif name == "and":
            x &= y
        elif name == "or":
            x |= y
        else:
            x ^= y


def draw_set(m: Machine, p: Pick) -> tuple[Any, ...]:
    k = m.written(p)
    index = draw_index(m.items[k].shape, p)
    part = m.items[k].moved(m.items[k].places[index])
    m.items.append(part)
    try:
        other = partner(m, len(m.items) - 1, p, narrower=True)
    finally:
        m.items.pop()
    if other == len(m.items):
        raise Rejected
    return k, index, other, p.of(["set", "set", "add"])


@kind("set", draw_set)
class _Set:
    def numpy(m, k, index, other, how):
        x = m.items[k]
        part = x.moved(np.asarray(x.places[index]))
        slopes = slopes_of(m, other) if m.directions else None
        values = operand(m, other)
        if how == "add":
            if part.dtype.kind == "b":
                raise Rejected
            values = part.values() + np.asarray(values, x.dtype)
            if m.directions:
                both = part.slopes(m.directions), lined_up(slopes_of(m, other), part.places.ndim)
                slopes = both[0] + both[1]
        m.write(k, part, values, slopes)

    def tiny(m, k, index, other, how):
        x = m.items[k]
        if how == "add":
            x[index] += operand(m, other)
        else:
            x[index] = operand(m, other)


def draw_overlap(m: Machine, p: Pick) -> tuple[Any, ...]:
    k = m.written(p)
    shape = m.items[k].shape
    ways: list[Any] = [(a, way) for a in range(len(shape)) for way in ("up", "down", "back")]
    ways += [(0, "turned")] if len(shape) == 2 and shape[0] == shape[1] else []
    return k, *p.of(ways), p.below(3)


def both_sides(ndim: int, axis: int, way: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Where a write goes and what it reads, as indices of one array."""
    cuts = {
        "up": (slice(1, None), slice(None, -1)),
        "down": (slice(None, -1), slice(1, None)),
        "back": (slice(None, None, -1), slice(None)),
        "turned": (slice(None), slice(None)),
    }[way]
    before = (slice(None),) * axis
    return (*before, cuts[0]), (*before, cuts[1])


@kind("overlap", draw_overlap)
class _Overlap:
    """x[1:] = x[:-1], x[::-1] = x, x.T into x; also computed on the way."""

    def numpy(m, k, axis, way, n):
        x = m.items[k]
        to, source = both_sides(len(x.shape), axis, way)
        part = x.moved(x.places[to])
        values = x.moved(x.places[source]).values()
        slopes = x.slopes(m.directions)[(slice(None), *source)] if m.directions else None
        if way == "turned":
            values = values.T
            slopes = None if slopes is None else slopes.transpose(0, 2, 1)
        if n == 2 and x.dtype.kind == "i":
            values = values + values.dtype.type(1)
        m.write(k, part, values, slopes)

    def tiny(m, k, axis, way, n):
        x = m.items[k]
        to, source = both_sides(x.ndim, axis, way)
        values = x[source]
        if way == "turned":
            values = values.T
        if n == 2 and np.dtype(m.dtype_of(x)).kind == "i":
            values = values + 1
        if n == 1:
            x[to].assign(values)
        else:
            x[to] = values


def draw_pick(m: Machine, p: Pick) -> tuple[Any, ...]:
    """An index of integers or of truth values, perhaps with slices."""
    k = m.any(p)
    return k, *draw_places(m.items[k].shape, p)


def draw_places(shape: tuple[int, ...], p: Pick) -> tuple[Any, ...]:
    if not shape or 0 in shape:
        raise Rejected
    ways = ["one", "mask"] + ["two", "slice", "after", "apart"] * (len(shape) > 1)
    way = p.of(ways)
    if way == "mask":
        whole = p.below(2) and len(shape) > 1
        return way, p.of(["tensor", "array"]), (tuple(shape if whole else shape[:1]), p.below(16))

    def places(size: int, count: tuple[int, ...]) -> Any:
        flat = [p.below(2 * size) - size for _ in range(int(np.prod(count)))]
        return np.array(flat, np.int32).reshape(count)

    count = p.of([(4,), (2,), (2, 2), (1,)])
    first = places(shape[0], count)
    holder = p.of(["tensor", "array", "list"])
    if way == "one":
        return way, holder, (first,)
    if way == "slice":
        return way, holder, (slice(None, None, -1), places(shape[1], count))
    if way == "after":
        return way, holder, (first, slice(1, None))
    if way == "apart":
        return way, holder, (first, None, places(shape[1], count))
    return way, holder, (first, places(shape[1], count))


def index_of(m: Machine, way: str, holder: str, parts: Any) -> Any:
    """The index itself: arrays for NumPy; for tensors as what it says."""
    if way == "mask":
        shape, seed = parts
        mask = np.random.default_rng(seed).integers(0, 2, shape).astype(bool)
        return mask if m.is_numpy or holder != "tensor" else Tensor(mask)
    if m.is_numpy or holder == "array":
        return parts if len(parts) > 1 else parts[0]
    held = tuple(
        x if not isinstance(x, np.ndarray) else Tensor(x) if holder == "tensor" else x.tolist()
        for x in parts
    )
    return held if len(held) > 1 else held[0]


@kind("pick", draw_pick)
class _Pick:
    def numpy(m, k, way, holder, parts):
        x = m.items[k]
        values = x.values()[index_of(m, way, holder, parts)]
        if values.size > 64:
            raise Rejected
        return m.computed(fresh(values), k)

    def tiny(m, k, way, holder, parts):
        return m.items[k][index_of(m, way, holder, parts)]


def draw_scatter(m: Machine, p: Pick) -> tuple[Any, ...]:
    k = m.written(p)
    x = m.items[k]
    way, holder, parts = draw_places(x.shape, p)
    shape = x.places[index_of(m, way, "array", parts)].shape
    how = p.of(["number", "values", "zero", "add", "own"])
    return k, way, holder, parts, how, shape, p.below(8)


@kind("scatter", draw_scatter)
class _Scatter:
    """x[places] = values: the last one wins where a place is named twice."""

    def numpy(m, k, way, holder, parts, how, shape, seed):
        x = m.items[k]
        index = index_of(m, way, holder, parts)
        values = _scattered(x.dtype, how, shape, seed)
        if how == "add":
            if x.dtype.kind == "b":
                raise Rejected
            values = x.values()[index] + values
        if how == "own":
            if way != "one" or len(shape) < len(x.shape):
                raise Rejected
            values = np.broadcast_to(x.values()[:1], shape)
        new = x.values()
        new[index] = values
        m.write(k, x, new)

    def tiny(m, k, way, holder, parts, how, shape, seed):
        x = m.items[k]
        index = index_of(m, way, holder, parts)
        values = _scattered(m.dtype_of(x), how, shape, seed)
        value: Any = Tensor(values) if how in ("values", "add") else values.item()
        if how == "own":
            value = x[:1]
        if how == "add":
            x[index] += value
        else:
            x[index] = value


def _scattered(dtype: Any, how: str, shape: tuple[int, ...], seed: int) -> Array:
    if how == "zero":
        return np.zeros((), dtype)
    return small(shape if how in ("values", "add") else (), dtype, seed)


def draw_swap(m: Machine, p: Pick) -> tuple[Any, ...]:
    k = m.written(p)
    x = m.items[k]
    fits = [
        j
        for j in m.alive()
        if m.items[j].shape == x.shape and m.items[j].dtype == x.dtype and m.items[j].is_writable()
    ]
    return k, p.of(fits), p.below(2)


@kind("swap", draw_swap)
class _Swap:
    def numpy(m, k, j, how):
        a, b = m.items[k], m.items[j]
        kept = a.values().copy()
        m.write(k, a, b.values())
        m.write(j, b, kept)

    def tiny(m, k, j, how):
        a, b = m.items[k], m.items[j]
        kept = a.clone() if how else (a | a if m.dtype_of(a) == "bool" else a * 1)
        a.assign(b)
        b.assign(kept)


def draw_nothing(m: Machine, p: Pick) -> tuple[Any, ...]:
    raise Rejected


@kind("nothing", draw_nothing)
class _Nothing:
    """What is left of an operation that a smaller program does without: its results are gone."""

    def numpy(m, results):
        return [None] * results

    def tiny(m, results):
        return [None] * results


def draw_replace(m: Machine, p: Pick) -> tuple[Any, ...]:
    k, j, _ = draw_swap(m, p)
    return k, j


@kind("replace", draw_replace)
class _Replace:
    def numpy(m, k, j):
        m.items[k] = m.items[j].moved(m.items[j].places, deeper=False)

    def tiny(m, k, j):
        m.items[k].replace(m.items[j])


# ---------------------------------------------------------------- the rest


def draw_realize(m: Machine, p: Pick) -> tuple[Any, ...]:
    return tuple(m.any(p) for _ in range(1 + p.below(3)))


@kind("realize", draw_realize)
class _Realize:
    def numpy(m, *ks):
        pass

    def tiny(m, *ks):
        if not m.is_lazy:
            Tensor.realize(*[m.items[k] for k in ks])


@kind("read", lambda m, p: (m.any(p),))
class _Read:
    def numpy(m, k):
        m.reads.append(m.items[k].values())

    def tiny(m, k):
        if not m.is_lazy:
            m.reads.append(m.items[k].numpy())


@kind("delete", lambda m, p: (m.any(p),))
class _Delete:
    def numpy(m, k):
        if len(m.alive()) < 4:
            raise Rejected
        m.items[k] = None

    def tiny(m, k):
        m.items[k] = None


def draw_mistake(m: Machine, p: Pick) -> tuple[Any, ...]:
    return m.any(p), p.of(["shape", "dtype", "expanded", "range", "set"])


@kind("mistake", draw_mistake)
class _Mistake:
    """A write that is refused, and changes nothing."""

    def numpy(m, k, how):
        pass

    def tiny(m, k, how):
        x = m.items[k]
        other = "int8" if m.dtype_of(x) == "float32" else "float32"
        mistakes = {
            "shape": lambda: x.assign(Tensor(np.ones((7, *x.shape), m.dtype_of(x)))),
            "dtype": lambda: x.assign(Tensor(np.ones(x.shape, other))),
            "expanded": lambda: x.expand(2, *x.shape).assign(1),
            "range": lambda: x.__setitem__((*[0] * x.ndim, 0), 1),
            "set": lambda: x.__setitem__(..., Tensor(np.ones((7, *x.shape), m.dtype_of(x)))),
        }
        try:
            mistakes[how]()
        except (ValueError, TypeError, IndexError):
            return
        raise AssertionError(f"a wrong write of kind {how} to shape {x.shape} was not refused")


# ---------------------------------------------------------------- programs inside programs

INSIDE = ("binary", "view", "in place", "assign", "set", "overlap", "reduce")
SLOPED = (np.float64, np.float32)


def draw_inside(
    m: Machine, p: Pick, kinds: Sequence[str], most: int, able: Callable[[Any], bool]
) -> list[Any]:
    """A few operations on the arrays of a machine, which are carried out."""
    steps: list[Any] = []
    for _ in range(2 + p.below(most)):
        for _ in range(6):
            before = m.snapshot()
            try:
                step = m.draw(p.of(kinds), p)
                m.run(step)
                if all(able(x) for x in m.items if x is not None):
                    steps.append(step)
                    break
            except Rejected:
                pass
            m.restore(before)
    return steps


def draw_gradient(m: Machine, p: Pick) -> tuple[Any, ...]:
    able = [k for k in m.alive() if m.items[k].dtype.kind == "f" and m.items[k].places.size]
    ks = [p.of(able)]
    j = p.of(able)
    a, b = m.items[ks[0]], m.items[j]
    same = a.shape == b.shape and a.dtype == b.dtype and (a.values() == b.values()).all()
    if a.dtype == b.dtype and not same:
        ks.append(j)
    inner, _ = gradient_machine(m, ks)
    steps = draw_inside(inner, p, INSIDE, 6, lambda x: x.dtype.kind == "f" and x.places.size <= 64)
    if not steps:
        raise Rejected
    return tuple(ks), steps, p.of(["backward", "gradient", "twice"])


def gradient_machine(m: Machine, ks: Sequence[int]) -> tuple[Machine, list[int]]:
    """A machine with copies of the arrays `ks`, and a direction for each of their elements."""
    sizes = [m.items[k].places.size for k in ks]
    total, at = sum(sizes), 0
    inner = Machine(directions=total)
    for k, size in zip(ks, sizes, strict=True):
        slopes = np.zeros((total, size))
        slopes[at : at + size] = np.eye(size)
        inner.items.append(fresh(m.items[k].values(), slopes))
        at += size
    inner.fixed = set(range(len(ks)))  # what gradients are asked for is not written to
    return inner, sizes


@kind("gradient", draw_gradient)
class _Gradient:
    """The gradients of the sum of the last value of a few operations for what goes into them."""

    def numpy(m, ks, steps, how):
        inner, sizes = gradient_machine(m, ks)
        for step in steps:
            inner.run(step)
        slopes = inner.items[-1].slopes(inner.directions)
        total = slopes.reshape(len(slopes), -1).sum(1) * (2 if how == "twice" else 1)
        found, at = [], 0
        for k, size in zip(ks, sizes, strict=True):
            part = total[at : at + size].reshape(m.items[k].shape)
            found.append(m.computed(fresh(part.astype(m.items[k].dtype)), k))
            at += size
        return found

    def tiny(m, ks, steps, how):
        inner = Machine(is_numpy=False, is_lazy=m.is_lazy)
        leaves = [m.items[k].detach() for k in ks]
        inner.items += leaves
        for step in steps:
            inner.run(step)
        result = inner.items[-1].sum()
        if how == "gradient" and len(ks) == 1:
            try:
                return list(result.gradient(*leaves))
            except RuntimeError:
                return [x.zeros_like() for x in leaves]
        for _ in range(2 if how == "twice" else 1):
            result.backward()
        found = [x.zeros_like() if x.grad is None else x.grad for x in leaves]
        for x in leaves:
            x.grad = None
        return found


CAPTURED = ("binary", "view", "in place", "assign", "set", "overlap", "reduce", "copy", "random",
            "scatter", "swap", "new", "cast")  # fmt: skip


def draw_step(m: Machine, p: Pick) -> tuple[Any, ...]:
    """A function of arrays that reads and writes others, called several times."""
    given = [k for k in m.alive() if m.items[k].places.size]
    first = p.of(given)
    x = m.items[first]
    like = [k for k in given if m.items[k].shape == x.shape and m.items[k].dtype == x.dtype]
    calls = [p.of(like) for _ in range(3 + p.below(2))]
    state = [
        k
        for k in given
        if m.items[k].depth == 0
        and m.items[k].is_writable()
        and all(m.items[k].base is not m.items[c].base for c in calls)
    ]
    if not state:
        raise Rejected
    state = list(dict.fromkeys(p.of(state) for _ in range(2)))
    inner = step_machine(m, calls[0], state)
    steps = draw_inside(inner, p, CAPTURED, 5, lambda x: x.places.size <= 64)
    if not steps:
        raise Rejected
    return tuple(calls), tuple(state), steps


def step_machine(m: Machine, given: int, state: Sequence[int]) -> Machine:
    """A machine that has an argument and some state: the same arrays or tensors."""
    inner = Machine(is_numpy=m.is_numpy, is_lazy=m.is_lazy)
    inner.items = [m.items[given], *[m.items[k] for k in state]]
    inner.fixed = {0}  # an argument may be a view of anything: it is not written
    return inner


@kind("step", draw_step)
class _Step:
    def numpy(m, calls, state, steps):
        kept = []
        for given in calls:
            inner = step_machine(m, given, state)
            for step in steps:
                inner.run(step)
            last = inner.items[-1]
            kept.append(m.computed(fresh(last.values()), given, *state))
        return kept[-2:]

    def tiny(m, calls, state, steps):
        def function(x: Tensor) -> Tensor:
            inner = Machine(is_numpy=False, is_lazy=True)
            inner.items = [x, *[m.items[k] for k in state]]
            for step in steps:
                inner.run(step)
            last = inner.items[-1]
            return last.clone()

        call: Any = TinyJit(function) if m.is_jitted else function
        kept = [call(m.items[given]) for given in calls]
        m.captures += len(call.captures) if m.is_jitted else 0
        return kept[-2:]


# ---------------------------------------------------------------- the machines


class Machine:
    """Arrays or tensors, by the order in which they were made, and how to run a step on them."""

    def __init__(
        self,
        is_numpy: bool = True,
        is_lazy: bool = False,
        is_jitted: bool = False,
        directions: int = 0,
    ) -> None:
        self.items: list[Any] = []
        self.reads: list[Array] = []
        self.is_numpy, self.is_lazy, self.is_jitted = is_numpy, is_lazy, is_jitted
        self.directions = directions
        self.fixed: set[int] = set()  # whose memory is not to be written to
        self.captures = 0
        self.counts: Counter[str] = Counter()
        self.shapes, self.dtypes = SHAPES, DTYPES

    def alive(self) -> list[int]:
        return [k for k, x in enumerate(self.items) if x is not None]

    def any(self, p: Pick) -> int:
        """One of the newest arrays, more often than an old one."""
        return int(p.of(self.alive()[::-1]))

    def written(self, p: Pick) -> int:
        """An array that can be written to."""
        kept = {self.items[k].base for k in self.fixed}
        able = [k for k in self.alive()[::-1] if self.items[k].base not in kept]
        return int(p.of([k for k in able if self.items[k].is_writable()]))

    def computed(self, x: Mirror, *sources: Any) -> Mirror:
        """Note what a value was computed from."""
        found = frozenset[int]()
        for k in sources:
            if not isinstance(k, tuple):
                found |= self.items[k].read_from | {self.items[k].base.number}
        x.read_from = found
        return x

    def write(self, k: int, to: Mirror, values: Any, slopes: Array | None = None) -> None:
        """Write to memory, and count what kind of write it was."""
        if not to.is_writable():
            raise Rejected
        to.write(values, None if slopes is None else lined_up(slopes, to.places.ndim))
        number = to.base.number
        self.counts["write"] += 1
        self.counts["write to a view of a view"] += to.depth >= 2
        self.counts["write while a value read from it is alive"] += any(
            x is not None and number in x.read_from for x in self.items
        )

    def draw(self, name: str, p: Pick) -> tuple[Any, ...]:
        """An operation that fits. Rejected if there is none."""
        return name, *KINDS[name].draw(self, p)

    def run(self, step: tuple[Any, ...]) -> None:
        """Carry out an operation."""
        name, *data = step
        found = (KINDS[name].numpy if self.is_numpy else KINDS[name].tiny)(self, *data)
        if isinstance(found, list):
            self.items += found
        elif found is not None:
            self.items.append(found)
        self.counts[name] += 1
        if name == "view" and self.is_numpy:
            self.counts["view of a view"] += self.items[-1].depth >= 2

    def snapshot(self) -> Any:
        """All that a step may change of NumPy's machine, and of the random numbers."""
        bases = {x.base for x in self.items if x is not None}
        contents = [(b, b.values.copy(), copy.copy(b.slopes)) for b in bases]
        return list(self.items), len(self.reads), Counter(self.counts), contents, counter()

    def restore(self, before: Any) -> None:
        """Make it what it was."""
        items, reads, counts, contents, drawn = before
        self.items, self.counts = list(items), Counter(counts)
        del self.reads[reads:]
        for base, values, slopes in contents:
            base.values[...] = values
            base.slopes = copy.copy(slopes)
        random.generator(Device.DEFAULT).counter = drawn

    def dtype_of(self, x: Tensor) -> str:
        """The name of NumPy's dtype of a tensor."""
        return x.dtype.name if x.dtype.name != "half" else "float16"


def differs(tensor: Tensor, values: Array) -> str:
    """How a tensor differs from its array, or nothing."""
    if tensor.shape != values.shape or Machine().dtype_of(tensor) != values.dtype.name:
        return f"{tensor} is no {values.dtype} {values.shape}"
    found = tensor.numpy()
    return "" if np.array_equal(found, values) else f"{found.tolist()} is not {values.tolist()}"
