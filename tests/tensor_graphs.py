"""Tensor graphs built by hand or drawn at random, and the check that a schedule computes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from evaluate import evaluate_all, np_dtype
from kernel_interpreter import run_schedule
from tiny.dtype import DType, dtypes
from tiny.schedule import BoundSchedule, create_schedule
from tiny.uop.functions import function
from tiny.uop.ops import BufferArg, Ops, ReduceArg, UOp
from tiny.uop.target import Target

Array = np.ndarray[Any, Any]
f32 = dtypes.float32
_numbers = itertools.count(1)
TARGET = Target("CPU", "test", frozenset(), 64, frozenset(), frozenset(), max_buffers=128)


def target_of(device: str) -> Target:
    return TARGET


# ---------------------------------------------------------------- building


def buffer(*shape: int, dtype: DType = f32, device: str = "CPU") -> UOp:
    return UOp(Ops.BUFFER, dtype, (), BufferArg(next(_numbers), shape, device))


def const(value: float, like: UOp) -> UOp:
    return UOp.const(value, like.dtype)


def op(kind: Ops, *src: UOp) -> UOp:
    comparison = kind in (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ)
    return UOp(kind, dtypes.bool if comparison else src[-1].dtype, src)


def add(a: UOp, b: UOp) -> UOp:
    return op(Ops.ADD, a, b)


def mul(a: UOp, b: UOp) -> UOp:
    return op(Ops.MUL, a, b)


def exp(x: UOp) -> UOp:
    return function("exp", x)


def log(x: UOp) -> UOp:
    return function("log", x)


def relu(x: UOp) -> UOp:
    return op(Ops.MAX, x, const(0, x))


def reduce(x: UOp, *axes: int, kind: Ops = Ops.ADD) -> UOp:
    return UOp(Ops.REDUCE, x.dtype, (x,), ReduceArg(kind, axes))


def expand(x: UOp, *shape: int) -> UOp:
    return x if x.shape == shape else UOp(Ops.EXPAND, x.dtype, (x,), shape)


def reshape(x: UOp, *shape: int) -> UOp:
    return x if x.shape == shape else UOp(Ops.RESHAPE, x.dtype, (x,), shape)


def permute(x: UOp, *order: int) -> UOp:
    return UOp(Ops.PERMUTE, x.dtype, (x,), order)


def pad(x: UOp, *pairs: tuple[int, int]) -> UOp:
    return UOp(Ops.PAD, x.dtype, (x,), pairs)


def shrink(x: UOp, *pairs: tuple[int, int]) -> UOp:
    return UOp(Ops.SHRINK, x.dtype, (x,), pairs)


def flip(x: UOp, *axes: int) -> UOp:
    return UOp(Ops.FLIP, x.dtype, (x,), axes)


def contiguous(x: UOp) -> UOp:
    return UOp(Ops.CONTIGUOUS, x.dtype, (x,))


def assign(x: UOp, value: UOp, view: UOp | None = None) -> UOp:
    """x after `value` was written to it, or to a view of it."""
    return x.after(UOp(Ops.STORE, dtypes.void, (x if view is None else view, value)))


def index(x: UOp, *places: UOp) -> UOp:
    """The elements at places along the first dimensions."""
    return UOp(Ops.INDEX, x.dtype, (x, *places), len(places))


def scatter(x: UOp, value: UOp, *places: UOp, kind: Ops | None = None) -> UOp:
    """x after a value was written to places, or combined with what is there."""
    return x.after(UOp(Ops.STORE, dtypes.void, (x, value, *places), kind))


def place(x: UOp, size: int) -> UOp:
    """A number as a place from 0 to size, the last of which is outside."""
    whole = x.cast(dtypes.int32)
    return op(Ops.FLOORMOD, whole, const(size + 1, whole))


def matmul(a: UOp, b: UOp) -> UOp:
    """(n, k) @ (k, m)."""
    (n, k), (_, m) = a.shape, b.shape
    left = expand(reshape(a, n, 1, k), n, m, k)
    right = expand(reshape(permute(b, 1, 0), 1, m, k), n, m, k)
    return reshape(reduce(mul(left, right), 2), n, m)


def unfold(x: UOp, axis: int, k: int) -> UOp:
    """Windows of k along an axis: (…, n, …) -> (…, n-k+1, k, …)."""
    n = x.shape[axis]
    out = n - k + 1
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    x = expand(reshape(x, *before, 1, n, *after), *before, k, n, *after)
    x = reshape(x, *before, k * n, *after)
    # rows of n + 1: each begins one further on; k of them need k * (n + 1) elements
    x = pad(x, *[(0, 0)] * len(before), (0, k), *[(0, 0)] * len(after))
    x = reshape(x, *before, k, n + 1, *after)
    keep = [(0, s) for s in x.shape]
    keep[axis + 1] = (0, out)
    x = shrink(x, *keep)
    order = list(range(len(x.shape)))
    order[axis], order[axis + 1] = axis + 1, axis
    return permute(x, *order)


def conv2d(x: UOp, w: UOp, padding: int = 0) -> UOp:
    """(n, c, h, w) by (o, c, k, k)."""
    if padding:
        x = pad(x, (0, 0), (0, 0), (padding, padding), (padding, padding))
    n, c, _, _ = x.shape
    o, _, k, _ = w.shape
    x = unfold(unfold(x, 3, k), 2, k)  # n c h k w k
    _, _, h, _, v, _ = x.shape
    x = permute(x, 0, 2, 4, 1, 3, 5)  # n h v c k k
    x = expand(reshape(x, n, 1, h, v, c, k, k), n, o, h, v, c, k, k)
    w = expand(reshape(w, 1, o, 1, 1, c, k, k), n, o, h, v, c, k, k)
    return reshape(reduce(mul(x, w), 4, 5, 6), n, o, h, v)


def softmax(x: UOp, axis: int = -1) -> UOp:
    axis %= len(x.shape)
    e = exp(op(Ops.SUB, x, expand(reduce(x, axis, kind=Ops.MAX), *x.shape)))
    return op(Ops.FDIV, e, expand(reduce(e, axis), *x.shape))


def arange(n: int, dtype: DType = dtypes.int32) -> UOp:
    """0 to n - 1, counted: the sum over a triangle of ones, less 1."""
    ones = pad(expand(reshape(UOp.const(1, dtype), 1), n), (n - 1, 0))
    rows = unfold(ones, 0, n)  # row i holds i + 1 ones
    return add(reshape(reduce(rows, 1), n), UOp.const(-1, dtype))


# ---------------------------------------------------------------- checking


def contents(roots: Sequence[UOp], seed: int = 0) -> dict[UOp, Array]:
    """Something in every BUFFER below."""
    rng = np.random.default_rng(seed)
    buffers = [n for n in UOp.sink(*roots).postorder() if n.op is Ops.BUFFER]
    memory: dict[UOp, Array] = {}
    for b in sorted(buffers, key=lambda b: b.arg.uid):
        if dtypes.is_float(b.dtype):
            memory[b] = rng.standard_normal(b.shape).astype(np_dtype(b.dtype))
        elif b.dtype is dtypes.bool:
            memory[b] = rng.random(b.shape) < 0.5
        else:
            memory[b] = rng.integers(-8, 9, b.shape).astype(np_dtype(b.dtype))
    return memory


def schedule(*roots: UOp, device: str = "CPU") -> BoundSchedule:
    return create_schedule(UOp.sink(*roots), target_of, device)


def check(
    *roots: UOp, memory: Mapping[UOp, Array] | None = None, tolerance: float = 1e-5
) -> BoundSchedule:
    """Schedule and run graphs, and compare with their values. The schedule, for more checks."""
    memory = contents(roots) if memory is None else memory
    bound = schedule(*roots)
    got, _ = run_schedule(bound, memory)
    for k, (g, want) in enumerate(zip(got, evaluate_all(roots, memory), strict=True)):
        assert g.dtype == want.dtype and g.shape == want.shape, (k, g.shape, want.shape)
        if want.dtype.kind in "iub":
            np.testing.assert_array_equal(g, want)
        else:
            scale = max(1.0, float(np.max(np.abs(want), initial=0, where=np.isfinite(want))))
            np.testing.assert_allclose(g, want, rtol=tolerance, atol=tolerance * scale)
    check_arena(bound)
    return bound


def check_arena(bound: BoundSchedule) -> None:
    """No two temporary buffers in use at one time share a byte."""
    s = bound.schedule
    uses: dict[int, list[int]] = {}
    for step, item in enumerate(s.items):
        for k in item.slots:
            uses.setdefault(k, []).append(step)
    temps = [k for k, slot in enumerate(s.slots) if slot.role == "temp"]
    for k in temps:
        assert s.slots[k].offset + s.slots[k].nbytes <= s.arena[s.slots[k].device]
    for a, b in itertools.combinations(temps, 2):
        x, y = s.slots[a], s.slots[b]
        together = uses[a][0] <= uses[b][-1] and uses[b][0] <= uses[a][-1]
        apart = x.offset + x.nbytes <= y.offset or y.offset + y.nbytes <= x.offset
        assert apart or not together or x.device != y.device, (a, b)


# ---------------------------------------------------------------- drawing


def _factors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


@st.composite
def graphs(draw: st.DrawFn, most: int = 12, largest: int = 400) -> list[UOp]:
    """One to three outputs of a graph of up to `most` operations on int32 and float32 arrays.

    Values are small integers, so that results are exact.
    """
    dtype = dtypes.int32
    pool: list[UOp] = []
    for _ in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
        pool.append(buffer(*shape, dtype=dtype))

    def pick() -> UOp:
        # mostly recent ones, so that graphs are deep as well as wide
        k = draw(st.integers(0, min(len(pool), 4) - 1)) if draw(st.booleans()) else 0
        return pool[-1 - k] if draw(st.booleans()) else pool[draw(st.integers(0, len(pool) - 1))]

    def fitted(x: UOp, shape: tuple[int, ...]) -> UOp:
        """x brought to a shape by whatever it takes."""
        n, want = math.prod(x.shape), math.prod(shape)
        x = reshape(x, n)
        if n < want:
            if draw(st.booleans()):
                before = draw(st.integers(0, want - n))
                x = pad(x, (before, want - n - before))
            else:
                times = -(-want // n)
                x = reshape(expand(reshape(x, 1, n), times, n), times * n)
                x = shrink(x, (0, want))
        elif n > want:
            begin = draw(st.integers(0, n - want))
            x = shrink(x, (begin, begin + want))
        return reshape(x, *shape)

    for _ in range(draw(st.integers(1, most))):
        x = pick()
        kind = draw(st.sampled_from("++*mwnRRRSEEPPFTCVVVUOII"))
        shape = x.shape
        if kind in "+*mw":
            y = pick()
            if y.shape != shape:
                y = fitted(y, shape) if math.prod(shape) else y
            if kind == "w":
                x = UOp(Ops.WHERE, dtype, (op(Ops.CMPLT, x, y), y, x))
            elif kind == "*":
                x = op(Ops.MUL, op(Ops.MAX, x, const(-1, x)), op(Ops.CMPLT, x, y).cast(dtype))
            else:
                x = op({"+": Ops.ADD, "m": Ops.MAX}[kind], x, y)
        elif kind == "n":
            x = op(Ops.SUB, const(draw(st.integers(-2, 2)), x), x)
        elif kind == "R":
            axes = tuple(a for a in range(len(shape)) if draw(st.booleans()))
            if axes:
                x = reduce(x, *axes, kind=draw(st.sampled_from([Ops.ADD, Ops.MAX])))
                if draw(st.booleans()):
                    x = expand(x, *shape)
        elif kind == "O":
            x = op(Ops.SUB, x, expand(reduce(x, len(shape) - 1, kind=Ops.MAX), *shape))
        elif kind == "S":
            pairs = []
            for s in shape:
                begin = draw(st.integers(0, s - 1))
                pairs.append((begin, draw(st.integers(begin + 1, s))))
            x = shrink(x, *pairs)
        elif kind == "E":
            grown = tuple(draw(st.integers(1, 4)) if s == 1 else s for s in shape)
            if draw(st.booleans()):
                x, grown = reshape(x, 1, *shape), (draw(st.integers(1, 3)), *shape)
            if math.prod(grown) <= largest:
                x = expand(x, *grown)
        elif kind == "P":
            pairs = [(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in shape]
            if math.prod(s + a + b for s, (a, b) in zip(shape, pairs, strict=True)) <= largest:
                x = pad(x, *pairs)
        elif kind == "F":
            x = flip(x, *[a for a in range(len(shape)) if draw(st.booleans())])
        elif kind == "T":
            x = permute(x, *draw(st.permutations(range(len(shape)))))
        elif kind == "C":
            x = contiguous(x)
        elif kind == "V":
            n, sizes = math.prod(shape), []
            while n > 1:
                sizes.append(draw(st.sampled_from(_factors(n))))
                n //= sizes[-1]
            x = reshape(x, *sizes, *([1] if not sizes or draw(st.booleans()) else []))
        elif kind == "I":
            y = pick()
            named = draw(st.integers(1, min(2, len(shape))))
            places = [place(y, n) for n in shape[:named]]
            if draw(st.booleans()):
                places[-1] = place(op(Ops.SUB, const(3, y), y), shape[named - 1])
            new = y.shape + shape[named:]
            if math.prod(new) <= largest and len(new) <= 5:
                x = index(x, *places)
        elif kind == "U":
            axis = draw(st.integers(0, len(shape) - 1))
            k = draw(st.integers(1, shape[axis]))
            if math.prod(shape) * k <= largest and len(shape) < 5:
                x = unfold(x, axis, k)
        if len(x.shape) <= 6:
            pool.append(x)
    count = draw(st.integers(1, 3))
    return [pool[-1]] + [pick() for _ in range(count - 1)]


@st.composite
def rows(draw: st.DrawFn, most: int = 12) -> list[UOp]:
    """One or two outputs of operations along rows: values that several loops of a kernel want.

    Softmax and its kin, with other reductions, shifts, windows and transpositions between.
    """
    outer = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    inner = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=2)))
    shape, n = outer + inner, len(outer)
    along = tuple(range(n, len(shape)))
    pool = [buffer(*shape, dtype=dtypes.int32), buffer(*shape, dtype=dtypes.int32)]
    small = buffer(*[1] * n, *inner, dtype=dtypes.int32)
    for _ in range(draw(st.integers(1, most))):
        x = pool[-1 - draw(st.integers(0, min(3, len(pool) - 1)))]
        axis = draw(st.sampled_from(along))
        kind = draw(st.sampled_from("RRRRRAA++xwfsubtpogii"))
        if kind == "R":  # along whole rows
            r = reduce(x, *along, kind=draw(st.sampled_from([Ops.ADD, Ops.MAX])))
            x = op(draw(st.sampled_from([Ops.SUB, Ops.MAX])), x, expand(r, *shape))
        elif kind == "A":  # along one of their dimensions
            r = reduce(x, axis, kind=draw(st.sampled_from([Ops.ADD, Ops.MAX])))
            x = op(draw(st.sampled_from([Ops.SUB, Ops.MAX])), x, expand(r, *shape))
        elif kind == "+":
            x = add(x, pool[draw(st.integers(0, len(pool) - 1))])
        elif kind == "x":
            x = op(Ops.FLOORDIV, x, const(draw(st.sampled_from([2, 3])), x))
        elif kind == "w":
            y = pool[draw(st.integers(0, len(pool) - 1))]
            x = UOp(Ops.WHERE, x.dtype, (op(Ops.CMPLT, x, y), y, const(1, x)))
        elif kind == "f":
            x = flip(x, axis)
        elif kind == "s":  # shifted, zeros behind
            k = draw(st.integers(0, shape[axis]))
            pairs = [(k, 0) if d == axis else (0, 0) for d in range(len(shape))]
            x = shrink(pad(x, *pairs), *[(0, size) for size in shape])
        elif kind == "u":  # sums of windows
            size = draw(st.integers(1, shape[axis]))
            w = reduce(unfold(x, axis, size), axis + 1)
            w = reshape(w, *[s - size + 1 if d == axis else s for d, s in enumerate(shape)])
            x = pad(w, *[(0, size - 1) if d == axis else (0, 0) for d in range(len(shape))])
        elif kind == "b":
            x = op(draw(st.sampled_from([Ops.ADD, Ops.MAX])), x, expand(small, *shape))
        elif kind == "t":  # rows in another order, or another shape
            half = draw(st.sampled_from(_factors(math.prod(inner))))
            y = reshape(x, *outer, half, math.prod(inner) // half)
            order = [*range(n), n + 1, n] if draw(st.booleans()) else [*range(n + 2)]
            x = reshape(permute(y, *order), *shape)
        elif kind == "p":
            pairs = [(draw(st.integers(0, 1)), draw(st.integers(0, 1))) for _ in shape]
            x = shrink(
                pad(x, *pairs), *[(b, b + k) for (b, _), k in zip(pairs, shape, strict=True)]
            )
        elif kind == "i":  # at computed places of the row
            y = pool[draw(st.integers(0, len(pool) - 1))]
            places = []
            for d, size in enumerate(shape):
                own = reshape(arange(size), *[size if k == d else 1 for k in range(len(shape))])
                places.append(place(y, size) if d == axis else expand(own, *shape))
            x = index(x, *places)
        elif kind == "o":  # over the other dimensions
            x = op(Ops.SUB, x, expand(reduce(x, *range(n), kind=Ops.MAX), *shape))
        else:
            x = op(Ops.MAX, x, flip(x, axis))
        pool.append(x)
    last = pool[-1]
    if draw(st.booleans()):
        last = reduce(last, *draw(st.sampled_from([along, tuple(range(len(shape)))])))
    return [last] if draw(st.booleans()) else [last, pool[-2]]


@st.composite
def programs(draw: st.DrawFn, most: int = 10) -> tuple[list[UOp], list[UOp]]:
    """(final versions of some buffers, values held): assignments in a random order.

    Buffers and slices of them are overwritten by values of any version, old ones too.
    """
    n = draw(st.integers(4, 6))
    now = [buffer(n, dtype=dtypes.int32) for _ in range(draw(st.integers(1, 4)))]
    values = list(now)

    def part(x: UOp, begin: int, size: int, backwards: bool) -> UOp:
        x = shrink(x, (begin, begin + size))
        return flip(x, 0) if backwards else x

    def read(size: int) -> UOp:
        x = values[draw(st.integers(0, len(values) - 1))]
        return part(x, draw(st.integers(0, n - size)), size, draw(st.booleans()))

    held = []
    for _ in range(draw(st.integers(1, most))):
        k = draw(st.integers(0, len(now) - 1))
        size = n if draw(st.booleans()) else draw(st.integers(1, n))
        begin = draw(st.integers(0, n - size))
        kind = draw(st.sampled_from("vvvs+rpp"))
        value = read(size)
        if kind == "+":
            value = add(value, read(size))
        elif kind == "r":
            value = expand(reduce(value, 0), size)
        elif kind == "s":  # in place: the very elements that are overwritten
            value = add(shrink(now[k], (begin, begin + size)), const(1, value))
        if draw(st.booleans()):
            held.append(add(read(n), const(1, value)))
        if kind == "p":  # at computed places, perhaps with what is there
            how = draw(st.sampled_from([None, Ops.ADD, Ops.MAX, Ops.MUL]))
            at = contiguous(place(read(size), n))
            now[k] = scatter(now[k], contiguous(add(value, value)), at, kind=how)
        else:
            view = part(now[k], begin, size, kind != "s" and draw(st.booleans()))
            now[k] = assign(now[k], value, view)
        values.append(now[k])
    return now, held[:3]


def check_program(finals: Sequence[UOp], held: Sequence[UOp]) -> BoundSchedule:
    """Schedule and run assignments; the buffers and the held values are as each version says."""
    roots = [*finals, *held]
    memory = contents(roots)
    bound = schedule(*roots)
    got, after = run_schedule(bound, memory)
    want = evaluate_all(roots, memory)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)
    for final, w in zip(finals, want, strict=False):
        while final.op is Ops.AFTER:
            final = final.src[0]
        base = final.base
        if base in after:
            np.testing.assert_array_equal(after[base], w)
    check_arena(bound)
    return bound
