"""Kernels written by hand, with inputs and the values that NumPy gives: for tests of lowering."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiny.codegen.opt import Kernel, KernelOptError, Opt, OptOps
from tiny.dtype import DType, _to_np_dtype, dtypes
from tiny.uop.ops import AxisType, KernelInfo, Ops, ReduceArg, UOp
from tiny.uop.target import Target

Array = np.ndarray[Any, Any]

# vectors of four float32, so that small sizes have several of them
TARGET = Target(
    device="PYTHON",
    arch="",
    features=frozenset(),
    vector_bytes=16,
    dtypes=frozenset(dtypes.all),
    native_ops=frozenset(Ops),
    max_buffers=31,
)


@dataclass
class Case:
    """A kernel and, for each buffer by slot, what it holds before and after."""

    sink: UOp
    before: list[Array]
    after: list[Array]
    rtol: float = 0.0
    variables: dict[str, int] | None = None


def out(n: int | UOp, axis: int) -> UOp:
    """An output axis."""
    return UOp.range(n, axis)


def red(n: int | UOp, axis: int) -> UOp:
    """A reduction axis."""
    return UOp.range(n, axis, AxisType.REDUCE)


def param(slot: int, *shape: int, dtype: DType = dtypes.float32) -> UOp:
    return UOp.placeholder(shape, dtype, slot)


def const(value: int) -> UOp:
    return UOp.const(value, dtypes.index)


def sink(*stores: UOp) -> UOp:
    return UOp.sink(*stores, arg=KernelInfo())


def some(*shape: int, dtype: DType = dtypes.float32, seed: int = 0) -> Array:
    """Small integers of any dtype, so that sums and products are exact."""
    low = 0 if dtype.kind in "ub" else -4
    high = 2 if dtype.kind == "b" else 5
    numbers = np.random.default_rng(seed).integers(low, high, shape)
    return numbers.astype(_to_np_dtype(dtype))


def blank(*shape: int, dtype: DType = dtypes.float32) -> Array:
    return np.full(shape, 77).astype(_to_np_dtype(dtype))


def within(i: UOp, n: int) -> UOp:
    """0 <= i < n."""
    return (const(-1) < i) & (i < n)


# ---------------------------------------------------------------- the kernels


def matmul(m: int = 7, n: int = 13, k: int = 6) -> Case:
    i, j, r = out(m, 0), out(n, 1), red(k, 2)
    product = param(1, m, k).index(i, r) * param(2, k, n).index(r, j)
    a, b = some(m, k), some(k, n, seed=1)
    stored = param(0, m, n).index(i, j).store(product.reduce(r))
    return Case(sink(stored), [blank(m, n), a, b], [a @ b, a, b])


def matmul_square() -> Case:
    return matmul(8, 16, 8)


def conv_padded() -> Case:
    channels, filters, size = 3, 4, 6
    f, y, x = out(filters, 0), out(size, 1), out(size, 2)
    c, ky, kx = red(channels, 3), red(3, 4), red(3, 5)
    iy, ix = y + ky - 1, x + kx - 1
    gate = within(iy, size) & within(ix, size)
    image = param(1, channels, size, size).index(c, iy, ix, gate=gate)
    weight = param(2, filters, channels, 3, 3).index(f, c, ky, kx)
    stored = param(0, filters, size, size).index(f, y, x)
    a, w = some(channels, size, size), some(filters, channels, 3, 3, seed=1)
    padded = np.pad(a, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    expected = np.einsum("cyxkl,fckl->fyx", windows, w)
    return Case(
        sink(stored.store((image * weight).reduce(c, ky, kx))),
        [blank(filters, size, size), a, w],
        [expected, a, w],
    )


def conv_of_sums() -> Case:
    """Its image is made of two arrays and the scale and shift of a channel."""
    channels, filters, size = 5, 6, 6
    f, y, x = out(filters, 0), out(size, 1), out(size, 2)
    c, ky, kx = red(channels, 3), red(3, 4), red(3, 5)
    iy, ix = y + ky - 1, x + kx - 1
    gate = within(iy, size) & within(ix, size)
    first, second = (param(k, channels, size, size).index(c, iy, ix, gate=gate) for k in (1, 2))
    image = first * param(3, 1, channels).index(const(0), c) + second + param(4, channels).index(c)
    weight = param(5, filters, channels, 3, 3).index(f, c, ky, kx)
    value = gate.where(image.maximum(0.0), 0.0) * weight
    stored = param(0, filters, size, size).index(f, y, x)
    a, b = some(channels, size, size), some(channels, size, size, seed=1)
    scale, shift = some(1, channels, seed=2), some(channels, seed=3)
    w = some(filters, channels, 3, 3, seed=4)
    whole = np.maximum(a * scale.reshape(-1, 1, 1) + b + shift.reshape(-1, 1, 1), 0)
    padded = np.pad(whole, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    expected = np.einsum("cyxkl,fckl->fyx", windows, w)
    given = [a, b, scale, shift, w]
    return Case(
        sink(stored.store(value.reduce(c, ky, kx))),
        [blank(filters, size, size), *given],
        [expected, *given],
    )


def product_of_larger() -> Case:
    """An operand is made of two arrays, the second of which has a condition of its own."""
    m, n, k = 5, 9, 14
    i, j, r = out(m, 0), out(n, 1), red(k, 2)
    other = param(2, k).index(r - 1, gate=within(r - 1, k))
    larger = param(1, m, k).index(i, r).maximum(other)
    stored = param(0, m, n).index(i, j).store((larger * param(3, k, n).index(r, j)).reduce(r))
    a, b, c = some(m, k), some(k, seed=1), some(k, n, seed=2)
    shifted = np.concatenate([np.zeros(1, np.float32), b[:-1]])
    expected = np.maximum(a, shifted) @ c
    return Case(sink(stored), [blank(m, n), a, b, c], [expected, a, b, c])


def shares_so_far() -> Case:
    """A sum of a row's first columns, each times the sum over the same range of all columns."""
    n = 11
    i, r = out(n, 0), red(n, 1)
    x = param(1, n, n).index(i, r)
    value = (r < i + 1).where(x * x.reduce(r), 0.0).reduce(r)
    a = some(n, n)
    expected = np.tril(a * a.sum(1, keepdims=True)).sum(1)
    return Case(sink(param(0, n).index(i).store(value)), [blank(n), a], [expected, a])


def softmax() -> Case:
    rows, n = 3, 12
    i, j, r, s = out(rows, 0), out(n, 1), red(n, 2), red(n, 3)
    x = param(1, rows, n)
    largest = x.index(i, r).reduce(r, arg=Ops.MAX)
    log2e = UOp.const(1.4426950408889634, dtypes.float32)
    total = ((x.index(i, s) - largest) * log2e).alu(Ops.EXP2).reduce(s)
    value = ((x.index(i, j) - largest) * log2e).alu(Ops.EXP2) / total
    a = some(rows, n)
    e = np.exp((a - a.max(1, keepdims=True)).astype(np.float64))
    expected = (e / e.sum(1, keepdims=True)).astype(np.float32)
    stored = param(0, rows, n).index(i, j).store(value)
    return Case(sink(stored), [blank(rows, n), a], [expected, a], rtol=1e-6)


def argmax() -> Case:
    rows, n = 5, 9
    i, r, s = out(rows, 0), red(n, 1), red(n, 2)
    x = param(1, rows, n)
    largest = x.index(i, r).reduce(r, arg=Ops.MAX)
    at = x.index(i, s).eq(largest).where((const(n) - s).cast(dtypes.int32), 0)
    first = UOp.const(n, dtypes.int32) - at.reduce(s, arg=Ops.MAX)
    a = some(rows, n)
    stored = param(0, rows, dtype=dtypes.int32).index(i).store(first)
    return Case(
        sink(stored), [blank(rows, dtype=dtypes.int32), a], [a.argmax(1).astype(np.int32), a]
    )


def max_and_argmin() -> Case:
    """Two outputs over one row loop, one dependent on its own reductions."""
    rows, n = 4, 8
    i, r, s = out(rows, 0), red(n, 1), red(n, 2)
    x = param(2, rows, n)
    largest = x.index(i, r).reduce(r, arg=Ops.MAX)
    count = x.index(i, s).eq(largest).cast(dtypes.int32).reduce(s)
    a = some(rows, n)
    top = a.max(1)
    stores = (
        param(0, rows).index(i).store(largest),
        param(1, rows, dtype=dtypes.int32).index(i).store(count),
    )
    return Case(
        sink(*stores),
        [blank(rows), blank(rows, dtype=dtypes.int32), a],
        [top, (a == top[:, None]).sum(1).astype(np.int32), a],
    )


def variance() -> Case:
    """Sums that share a loop, then one that needs both, over the same range again."""
    rows, n = 3, 8
    i, r = out(rows, 0), red(n, 1)
    x = param(1, rows, n).index(i, r)
    total, squares = x.reduce(r), (x * x).reduce(r)
    deviations = (x * float(n) - total).reduce(r, arg=Ops.MAX)
    a = some(rows, n)
    expected = (a * a).sum(1) + a.sum(1) + (a * n - a.sum(1)[:, None]).max(1)
    stored = param(0, rows).index(i).store(squares + total + deviations)
    return Case(sink(stored), [blank(rows), a], [expected, a])


def prefix_sum() -> Case:
    n = 11
    i, r = out(n, 0), red(n, 1)
    x = param(1, n).index(r)
    value = (r < i + 1).where(x, 0.0).reduce(r)
    a = some(n)
    return Case(sink(param(0, n).index(i).store(value)), [blank(n), a], [a.cumsum(), a])


def prefix_sum_gated() -> Case:
    n = 10
    i, r = out(n, 0), red(n, 1)
    value = param(1, n).index(i - r, gate=r < i + 1).reduce(r)
    a = some(n)
    return Case(sink(param(0, n).index(i).store(value)), [blank(n), a], [a.cumsum(), a])


def transposed() -> Case:
    i, j = out(6, 0), out(8, 1)
    a = some(8, 6)
    stored = param(0, 6, 8).index(i, j).store(param(1, 8, 6).index(j, i) + 1.0)
    return Case(sink(stored), [blank(6, 8), a], [a.T + 1, a])


def scattered_store() -> Case:
    i, j = out(6, 0), out(8, 1)
    a = some(6, 8)
    stored = param(0, 8, 6).index(j, i).store(param(1, 6, 8).index(i, j) * 2.0)
    return Case(sink(stored), [blank(8, 6), a], [a.T * 2, a])


def flipped() -> Case:
    i, j = out(3, 0), out(9, 1)
    a = some(3, 9)
    stored = param(0, 3, 9).index(i, const(8) - j).store(param(1, 3, 9).index(const(2) - i, j))
    return Case(sink(stored), [blank(3, 9), a], [a[::-1, ::-1], a])


def flipped_load() -> Case:
    i = out(12, 0)
    a = some(12)
    stored = param(0, 12).index(i).store(param(1, 12).index(const(11) - i))
    return Case(sink(stored), [blank(12), a], [a[::-1], a])


def padded() -> Case:
    i, j = out(5, 0), out(10, 1)
    gate = within(i - 1, 3) & within(j - 2, 6)
    a = some(3, 6)
    stored = param(0, 5, 10).index(i, j).store(param(1, 3, 6).index(i - 1, j - 2, gate=gate))
    return Case(sink(stored), [blank(5, 10), a], [np.pad(a, ((1, 1), (2, 2))), a])


def gated_store() -> Case:
    i = out(12, 0)
    a = some(12)
    stored = param(0, 12).index(i, gate=within(i - 3, 6)).store(param(1, 12).index(i))
    expected = blank(12)
    expected[3:9] = a[3:9]
    return Case(sink(stored), [blank(12), a], [expected, a])


def broadcast_padded() -> Case:
    """A load that is the same for all lanes, under a gate that is not."""
    i, j = out(4, 0), out(9, 1)
    a = some(4)
    stored = param(0, 4, 9).index(i, j).store(param(1, 4).index(i, gate=within(j - 2, 5)))
    expected = np.pad(np.repeat(a[:, None], 5, 1), ((0, 0), (2, 2)))
    return Case(sink(stored), [blank(4, 9), a], [expected, a])


def strided() -> Case:
    i = out(8, 0)
    a = some(20)
    stored = param(0, 8).index(i).store(param(1, 20).index(i * 2 + 3))
    return Case(sink(stored), [blank(8), a], [a[3:19:2], a])


def _in_steps(step: int) -> Callable[[], Case]:
    """Reads and stores whose lanes have others between them, up to the ends of the memory."""

    def in_steps() -> Case:
        n = 21
        i, j, k = out(3, 0), out(n, 1), out(step, 2)
        picked = param(1, 3, n * step).index(i, j * step + k)
        shifted = param(2, 3, n).index(i, j - 1, gate=const(0) < j)
        stored = param(0, 3, n * step).index(i, j * step + (step - 1 - k))
        a, b = some(3, n * step), some(3, n, seed=1)
        before = np.concatenate([np.zeros((3, 1), np.float32), b[:, :-1]], axis=1)
        turned = a.reshape(3, n, step)[:, :, ::-1] + before[:, :, None]
        ast = sink(stored.store(picked + shifted))
        return Case(ast, [blank(3, n * step), a, b], [turned.reshape(3, -1), a, b])

    in_steps.__name__ = f"in_steps_of_{step}"
    return in_steps


def pooled() -> Case:
    """The largest of windows that overlap, with padding around."""
    n, m = 21, 11
    i, j, k = out(3, 0), out(m, 1), red(3, 2)
    at = j * 2 + k - 1
    inside = within(at, n)
    value = inside.where(param(1, 3, n).index(i, at, gate=inside), -9.0)
    a = some(3, n)
    padded = np.pad(a, ((0, 0), (1, 2)), constant_values=-9)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 3, axis=1)[:, ::2][:, :m]
    stored = param(0, 3, m).index(i, j).store(value.reduce(k, arg=Ops.MAX))
    return Case(sink(stored), [blank(3, m), a], [windows.max(2), a])


def apart_within() -> Case:
    """Every fifth element is a sum, in a part of memory that has others behind it."""
    n, step, size, start = 9, 5, 31, 2
    i, j, r = out(3, 0), out(n, 1), red(4, 2)
    gate = j % step < 1
    stored = param(0, 3, size).index(i, j + start)
    a, expected = some(3, 2, 4), blank(3, size)
    expected[:, start : start + n] = 0
    expected[:, start : start + n : step] = a.sum(2)
    value = gate.where(param(1, 3, 2, 4).index(i, j // step, r, gate=gate), 0.0).reduce(r)
    return Case(sink(stored.store(value)), [blank(3, size), a], [expected, a])


def repeated() -> Case:
    i = out(12, 0)
    a, b = some(4), some(5, seed=1)
    value = param(1, 4).index(i // 3) + param(2, 5).index(i % 5)
    expected = np.repeat(a, 3) + np.tile(b, 3)[:12]
    return Case(sink(param(0, 12).index(i).store(value)), [blank(12), a, b], [expected, a, b])


def gathered() -> Case:
    rows, width, n = 5, 3, 8
    i, j = out(n, 0), out(width, 1)
    at = param(2, n, dtype=dtypes.int32).index(i).cast(dtypes.index)
    a = some(rows, width)
    where = np.random.default_rng(2).integers(0, rows, n).astype(np.int32)
    stored = param(0, n, width).index(i, j).store(param(1, rows, width).index(at, j))
    return Case(sink(stored), [blank(n, width), a, where], [a[where], a, where])


def gathered_gated() -> Case:
    """Indices out of bounds are never followed."""
    n = 8
    i = out(n, 0)
    at = param(2, n, dtype=dtypes.int64).index(i).cast(dtypes.index)
    a = some(5)
    where = np.array([0, -3, 4, 99, 2, 5, 1, -(2**40)])
    stored = param(0, n).index(i).store(param(1, 5).index(at, gate=within(at, 5)))
    expected = np.where((where >= 0) & (where < 5), a[where.clip(0, 4)], 0)
    return Case(sink(stored), [blank(n), a, where], [expected.astype(np.float32), a, where])


def ones_everywhere() -> Case:
    i, j, r = out(1, 0), out(1, 1), red(1, 2)
    value = param(1, 1, 1).index(i, r).reduce(r) + param(2, 1).index(j)
    a, b = some(1, 1), some(1, seed=3)
    return Case(sink(param(0, 1, 1).index(i, j).store(value)), [blank(1, 1), a, b], [a + b, a, b])


def to_scalar() -> Case:
    r, s = red(12, 0), red(5, 1)
    a = some(12, 5)
    stored = param(0).index().store(param(1, 12, 5).index(r, s).reduce(r, s))
    return Case(sink(stored), [blank(), a], [a.sum(), a])


def nested_reduce() -> Case:
    """The sum over rows of the maximum of each row."""
    i, r, s = out(2, 0), red(6, 1), red(4, 2)
    a = some(2, 6, 4)
    value = param(1, 2, 6, 4).index(i, r, s).reduce(s, arg=Ops.MAX).reduce(r)
    return Case(sink(param(0, 2).index(i).store(value)), [blank(2), a], [a.max(2).sum(1), a])


def reduce_of_invariant() -> Case:
    """What is reduced does not depend on the range."""
    i, r = out(6, 0), red(4, 1)
    a = some(6)
    value = param(1, 6).index(i).reduce(r) + r.cast(dtypes.float32).reduce(r)
    return Case(sink(param(0, 6).index(i).store(value)), [blank(6), a], [a * 4 + 6, a])


def arange() -> Case:
    i, j = out(3, 0), out(8, 1)
    value = (i * 100 + j * 3 + 5).cast(dtypes.int64)
    expected = np.arange(3)[:, None] * 100 + np.arange(8) * 3 + 5
    stored = param(0, 3, 8, dtype=dtypes.int64).index(i, j).store(value)
    return Case(sink(stored), [blank(3, 8, dtype=dtypes.int64)], [expected])


def triangular() -> Case:
    i, j = out(6, 0), out(8, 1)
    a = some(6, 8)
    value = (j < i + 1).where(param(1, 6, 8).index(i, j), 0.0)
    return Case(sink(param(0, 6, 8).index(i, j).store(value)), [blank(6, 8), a], [np.tril(a), a])


def in_place() -> Case:
    i = out(12, 0)
    x = param(0, 12)
    a, b = some(12), some(12, seed=1)
    stored = x.index(i).store(x.index(i) * 3.0 + param(1, 12).index(i))
    return Case(sink(stored), [a, b], [a * 3 + b, b])


def in_place_two() -> Case:
    """As an optimiser does: two buffers updated, each from both old values."""
    i = out(8, 0)
    x, m = param(0, 8), param(1, 8)
    a, b = some(8), some(8, seed=1)
    stores = (
        x.index(i).store(x.index(i) - m.index(i)),
        m.index(i).store(m.index(i) * 2.0 + x.index(i)),
    )
    return Case(sink(*stores), [a, b], [a - b, b * 2 + a])


def two_nests() -> Case:
    """A store over rows and one over elements, after one reduction."""
    i, j, r = out(4, 0), out(8, 1), red(8, 2)
    x = param(2, 4, 8)
    total = x.index(i, r).reduce(r)
    a = some(4, 8)
    stores = (
        param(0, 4).index(i).store(total),
        param(1, 4, 8).index(i, j).store(x.index(i, j) - total),
    )
    after = [a.sum(1), a - a.sum(1, keepdims=True), a]
    return Case(sink(*stores), [blank(4), blank(4, 8), a], after)


def symbolic_size() -> Case:
    n = UOp.variable("n", 1, 9)
    i, j, r = out(n, 0), out(4, 1), red(n, 2)
    x = param(1, 9, 4)
    a = some(9, 4)
    value = x.index(i, j) + x.index(r, j).reduce(r)
    expected = blank(9, 4)
    expected[:6] = a[:6] + a[:6].sum(0)
    stored = param(0, 9, 4).index(i, j).store(value)
    return Case(sink(stored), [blank(9, 4), a], [expected, a], variables={"n": 6})


def _in_order(way: str, combine: Ops | None, dtype: DType = dtypes.float32) -> Case:
    """A kernel that writes to computed places, some of them again and some out of bounds."""
    rows, columns, height, width = 7, 13, 5, 16
    i, j = out(rows, 0), out(columns, 1)
    shape, fixed = (height, width), (i, j)
    by_row = way in ("rows", "backwards", "halves")
    least, most = -1, (width if way == "along" else height)
    sizes = (rows,) if by_row else (rows, columns)
    where = np.random.default_rng(5).integers(least, most + 1, sizes)
    where[-1] = where[0]
    load = param(2, *sizes, dtype=dtypes.int64).index(*fixed[: len(sizes)])
    place = load.cast(dtypes.index)
    if way in ("rows", "down"):
        index = (place, j)
    elif way == "backwards":
        index = (place, const(14) - j)
    elif way == "halves":  # j in two dimensions, and told apart by none alone
        shape, index = (height, 5, 3), (place, j // 3, j % 3)
    elif way == "along":
        shape, index = (rows, width), (i, place)
    else:  # "lines": both in one dimension
        shape, index = (rows * columns, height), (i * columns + j, place)
    if by_row:
        fixed = (i,)
    to = param(0, *shape, dtype=dtype).index(*index, gate=within(place, most))
    a, before = some(rows, columns, dtype=dtype), some(*shape, dtype=dtype, seed=1)
    value = param(1, rows, columns, dtype=dtype).index(i, j)
    value = value if combine is None else to.alu(combine, value)
    after = before.copy()
    for y, x in np.ndindex(rows, columns):
        p = int(where[y] if by_row else where[y, x])
        if 0 <= p < most:
            at: tuple[int, ...] = {
                "rows": (p, x),
                "down": (p, x),
                "backwards": (p, 14 - x),
                "halves": (p, x // 3, x % 3),
                "along": (y, p),
                "lines": (y * columns + x, p),
            }[way]
            after[at] = a[y, x] if combine is None else after[at] + a[y, x]
    store = UOp(Ops.STORE, dtypes.void, (to, value, *fixed), "ordered")
    return Case(sink(store), [before, a, where], [after, a, where])


def _written(way: str, combine: Ops | None, dtype: DType) -> Callable[[], Case]:
    def case() -> Case:
        return _in_order(way, combine, dtype)

    case.__name__ = f"{'written' if combine is None else 'added'}_{way}_{dtype.name}"
    return case


_IN_ORDER = [
    _written(way, combine, dtype)
    for way in ("rows", "backwards", "halves", "down", "along", "lines")
    for combine, dtype in ((None, dtypes.float32), (Ops.ADD, dtypes.float32), (None, dtypes.int8))
]


def _total_of(dtype: DType) -> Callable[[], Case]:
    def total() -> Case:
        i, r = out(4, 0), red(6, 1)
        a, b = some(4, 6, dtype=dtype), some(4, dtype=dtype, seed=1)
        x = param(1, 4, 6, dtype=dtype).index(i, r)
        largest, added = x.reduce(r, arg=Ops.MAX), x.reduce(r)
        other = param(2, 4, dtype=dtype).index(i)
        chosen = other.alu(Ops.CMPLT, largest).where(added, other)
        wide = np.float64 if dtype.kind in "f8" else bool if dtype.kind == "b" else np.int64
        sums = a.astype(wide).sum(1).astype(a.dtype)
        largest_of = a.astype(wide).max(1).astype(a.dtype)
        expected = np.where(b < largest_of, sums, b).astype(a.dtype)
        stored = param(0, 4, dtype=dtype).index(i).store(chosen)
        return Case(sink(stored), [blank(4, dtype=dtype), a, b], [expected, a, b])

    total.__name__ = f"total_{dtype.name}"
    return total


def _mixed(dtype: DType) -> Callable[[], Case]:
    def mixed() -> Case:
        i, j = out(3, 0), out(8, 1)
        a, b = some(3, 8, dtype=dtype), some(8, dtype=dtypes.int16, seed=1)
        x = param(1, 3, 8, dtype=dtype).index(i, j)
        y = param(2, 8, dtype=dtypes.int16).index(j)
        value = x.cast(dtypes.float32) * 2.0 + y.cast(dtypes.float32)
        stored = param(0, 3, 8).index(i, j).store(value)
        expected = a.astype(np.float32) * 2 + b.astype(np.float32)
        return Case(sink(stored), [blank(3, 8), a, b], [expected, a, b])

    mixed.__name__ = f"mixed_{dtype.name}"
    return mixed


def _scan(op: Ops, loop: UOp, *values: UOp) -> UOp:
    return UOp(Ops.SCAN, values[0].dtype, (*values, loop), ReduceArg(op, ()))


def _scanned(op: Ops, dtype: DType, shape: tuple[int, ...], along: int) -> Callable[[], Case]:
    """A SCAN along one of the dimensions, of what is read from their ends, and one more."""

    def make() -> Case:
        a, b = some(*shape, dtype=dtype), some(*shape, dtype=dtype, seed=1)
        if op in (Ops.MUL, Ops.MULACC):  # to be exact
            a, b = (np.clip(x.astype(np.int64), -1, 1).astype(a.dtype) for x in (a, b))
        loops = [out(n, k) for k, n in enumerate(shape)]
        back = [const(n - 1) - loop for n, loop in zip(shape, loops, strict=True)]
        values = [param(1, *shape, dtype=dtype).index(*back)]
        if op is Ops.MULACC:
            values.append(param(2, *shape, dtype=dtype).index(*loops))
        value = _scan(op, loops[along], *values)
        more = {Ops.ADD: 1, Ops.MUL: 2, Ops.MAX: 1, Ops.MULACC: 1}[op]
        stored = value.alu(Ops.ADD, value.const_like(more))
        rows = np.moveaxis(np.flip(a), along, 0).copy()
        factors = np.moveaxis(b, along, 0)
        for k in range(1, len(rows)):
            if op is Ops.MULACC:
                rows[k] += factors[k] * rows[k - 1]
            else:
                function = {Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MAX: np.maximum}[op]
                rows[k] = function(rows[k - 1], rows[k])
        expected = np.moveaxis(rows, 0, along) + np.array(more, a.dtype)
        store = sink(param(0, *shape, dtype=dtype).index(*loops).store(stored))
        after = [expected, a, b][: len(values) + 1]
        return Case(store, [blank(*shape, dtype=dtype), a, b][: len(values) + 1], after)

    make.__name__ = f"scan_{op.name}_{dtype.name}_{along}_of_{len(shape)}".lower()
    return make


def scan_of_scan_in_place() -> Case:
    i, j = out(3, 0), out(21, 1)
    x = param(0, 3, 21)
    value = _scan(Ops.MAX, j, _scan(Ops.ADD, j, x.index(i, j)) * param(1, 3, 21).index(i, j))
    a, b = some(3, 21), some(3, 21, seed=1)
    after = np.maximum.accumulate(a.cumsum(1) * b, 1)
    return Case(sink(x.index(i, j).store(value)), [a, b], [after, b])


def scan_of_symbolic_size() -> Case:
    n, m = UOp.variable("n", 1, 30), UOp.variable("m", 1, 5)
    i, j = out(m, 0), out(n, 1)
    a, expected = some(5, 30), blank(5, 30)
    expected[:3, :23] = a[:3, :23].cumsum(1)
    stored = param(0, 5, 30).index(i, j).store(_scan(Ops.ADD, j, param(1, 5, 30).index(i, j)))
    return Case(sink(stored), [blank(5, 30), a], [expected, a], variables={"n": 23, "m": 3})


_SCANS = [
    _scanned(Ops.ADD, dtypes.float32, (3, 37), 1),
    _scanned(Ops.ADD, dtypes.float32, (3, 13, 6), 1),
    _scanned(Ops.ADD, dtypes.uint8, (40,), 0),
    _scanned(Ops.MUL, dtypes.float32, (6, 37), 1),
    _scanned(Ops.MAX, dtypes.float16, (19, 5), 0),
    _scanned(Ops.MAX, dtypes.int64, (3, 13, 6), 2),
    _scanned(Ops.MULACC, dtypes.float32, (6, 37), 1),
    _scanned(Ops.MULACC, dtypes.float64, (3, 13, 6), 1),
    scan_of_scan_in_place,
    scan_of_symbolic_size,
]
_PLAIN = [
    matmul,
    matmul_square,
    conv_padded,
    conv_of_sums,
    product_of_larger,
    shares_so_far,
    softmax,
    argmax,
    max_and_argmin,
    variance,
    prefix_sum,
    prefix_sum_gated,
    transposed,
    scattered_store,
    flipped,
    flipped_load,
    padded,
    gated_store,
    broadcast_padded,
    strided,
    *map(_in_steps, (2, 3, 4)),
    pooled,
    apart_within,
    repeated,
    gathered,
    gathered_gated,
    ones_everywhere,
    to_scalar,
    nested_reduce,
    reduce_of_invariant,
    arange,
    triangular,
    in_place,
    in_place_two,
    two_nests,
    symbolic_size,
]
CASES: dict[str, Callable[[], Case]] = {
    make.__name__: make
    for make in [
        *_PLAIN,
        *_SCANS,
        *_IN_ORDER,
        *map(_total_of, dtypes.all),
        *map(_mixed, dtypes.all),
    ]
}


# ---------------------------------------------------------------- lists of Opts


def legal_opts(ast: UOp, target: Target, count: int, seed: int) -> list[tuple[Opt, ...]]:
    """Lists of Opts that are legal for a kernel, drawn at random, the empty one first."""
    draw, of_stores = random.Random(seed), random.Random(seed)
    axis_ops = [op for op in OptOps if op is not OptOps.STREAM]
    lists: dict[tuple[Opt, ...], None] = {(): None}
    for _ in range(8 * count):
        kernel = Kernel(ast, target)
        wanted = draw.randint(1, 6)
        for _ in range(4 * wanted):
            if len(kernel.applied_opts) == wanted:
                break
            op = draw.choice([OptOps.VEC, *axis_ops])
            axis = draw.randrange(max(len(kernel.axes), 1))
            if op is OptOps.STAGE:
                some = None if draw.random() < 0.3 else axis
                opt = Opt(op, some, draw.randrange(max(len(kernel.loads), 1)))
            elif op is OptOps.SWAP:
                opt = Opt(op, axis, draw.randrange(max(len(kernel.axes), 1)))
            elif op is OptOps.THREAD:
                opt = Opt(op, axis)
            else:
                opt = Opt(op, axis, draw.choice([2, 3, 4, 5, 6, 8, 12, 16, 32]))
            try:
                kernel.apply_opt(opt)
            except KernelOptError:
                continue
        stream = Opt(OptOps.STREAM, of_stores.randrange(len(ast.src)))
        if of_stores.random() < 0.3 and kernel.allows(stream):
            kernel.apply_opt(stream)
        lists[kernel.applied_opts] = None
        if len(lists) > count:
            break
    return list(lists)
