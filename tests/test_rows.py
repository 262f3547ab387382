"""Softmax, norms and sums of rows and columns: values, at sizes where loops and memory matter."""

from __future__ import annotations

import numpy as np
import pytest

from tiny import GlobalCounters, Tensor
from tiny.dtype import dtypes
from tiny.helpers import Context
from tiny.schedule.rows import keep_rows
from tiny.uop.ops import AxisType, KernelInfo, Ops, UOp


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32) + 1


# ---------------------------------------------------------------- sums of columns

# more than a cache holds; no multiples of a tile, nor of a block
TALL = [(1030, 1031), (67, 16411), (3, 300, 1025)]


@pytest.mark.parametrize("shape", TALL)
def test_sums_of_columns_match_numpy(shape):
    x, axis = numbers(*shape), len(shape) - 2
    wide = x.astype(np.float64)
    t = Tensor(x).realize()
    for ours, expected in (
        (t.sum(axis), wide.sum(axis)),
        (t.mean(axis), wide.mean(axis)),
        ((t * t).sum(axis), (wide**2).sum(axis)),
        ((t * t.exp()).sum(axis), (wide * np.exp(wide)).sum(axis)),
        (t.max(axis), x.max(axis)),
        (t.min(axis), x.min(axis)),
        ((t > 4).any(axis), (x > 4).any(axis)),
        ((t > 4).sum(axis), (x > 4).sum(axis)),
    ):
        found = ours.numpy()
        if found.dtype == np.float32:
            most = np.abs(expected).max()
            np.testing.assert_allclose(found, expected, rtol=3e-6, atol=3e-7 * most)
        else:
            np.testing.assert_array_equal(found, expected)


def test_a_long_sum_of_columns_is_as_exact_as_one_of_rows():
    x = np.random.default_rng(0).random((40000, 512), np.float32)
    found = Tensor(x).sum(0).numpy()
    np.testing.assert_allclose(found, x.astype(np.float64).sum(0), rtol=3e-7)


def test_sums_of_columns_keep_nan_and_infinity():
    x = numbers(1024, 1024)
    x[5, 7], x[9, 8], x[10, 8], x[11, 9] = np.nan, np.inf, -np.inf, np.inf
    t = Tensor(x).realize()
    np.testing.assert_array_equal(t.max(0).numpy(), x.max(0))
    assert np.isnan(t.sum(0).numpy()[[7, 8]]).all() and np.isposinf(t.sum(0).numpy()[9])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "uint8"])
def test_sums_of_columns_of_every_width(dtype):
    x = np.random.default_rng(0).integers(0, 3, (2048, 1100))
    found = Tensor(x).cast(dtype).realize().cast("int32" if dtype == "uint8" else dtype).sum(0)
    # of narrow floats: rounded once
    np.testing.assert_allclose(
        found.cast("float64").numpy(), x.sum(0), rtol=2**-8 if "16" in dtype else 0
    )


# ---------------------------------------------------------------- rows, whole

ROWS = [(1, 1), (1, 4097), (1, 50257), (1, 70001), (3, 1031), (130, 257), (2, 3, 17)]
FORMULAS = {
    "softmax": (lambda t: t.softmax(-1), lambda t: t.softmax(-1)),
    "log_softmax": (lambda t: t.log_softmax(-1), lambda t: t.log_softmax(-1)),
    "layernorm": (
        lambda t: t.layernorm(),
        lambda t: (
            (t - t.mean(-1, keepdim=True)) * (t.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
        ),
    ),
    "rms": (
        lambda t: t * (t.square().mean(-1, keepdim=True) + 1e-5).rsqrt(),
        lambda t: t * (t.square().mean(-1, keepdim=True) + 1e-5).rsqrt(),
    ),
    "centred": (
        lambda t: t - t.mean(-1, keepdim=True),
        lambda t: t - t.mean(-1, keepdim=True),
    ),
}


@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.parametrize("name", FORMULAS)
def test_rows_forward_and_backward_match_pytorch(name, shape):
    torch = pytest.importorskip("torch")
    ours, peer = FORMULAS[name]
    x, g = numbers(*shape), numbers(*shape)[..., ::-1].copy()
    t = torch.from_numpy(x).double().requires_grad_()
    expected = peer(t)
    (slope,) = torch.autograd.grad(expected, t, torch.from_numpy(g).double())
    a = Tensor(x).realize()
    y = ours(a)
    (found,) = y.gradient(a, gradient=Tensor(g))
    Tensor.realize(y, found)
    for got, want in ((y, expected.detach()), (found, slope)):
        want = want.numpy()
        most = max(np.abs(want).max(), np.abs(g).max() * 0.1)  # gradients cancel
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=2e-6 * most)


@pytest.mark.parametrize("shape", [(1, 50257), (5, 1000)])
def test_rows_with_nan_and_infinity(shape):
    torch = pytest.importorskip("torch")
    for value in (np.nan, np.inf, -np.inf):
        x = numbers(*shape)
        x[0, 17] = value
        for name in ("softmax", "log_softmax"):
            ours, peer = FORMULAS[name]
            expected = peer(torch.from_numpy(x)).numpy()
            np.testing.assert_allclose(ours(Tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-6)


def test_a_single_row_has_one_value_for_any_number_of_threads():
    x = Tensor(numbers(1, 60000)).realize()
    found = []
    for n in (1, 2, 3):
        with Context(NUM_CPU_THREADS=n):
            found.append([ours(x).numpy() for ours, _ in FORMULAS.values()])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_forward_and_backward_of_rows_are_one_kernel():
    x, g = Tensor(numbers(64, 600)).realize(), Tensor(numbers(64, 600)).realize()
    for name in ("softmax", "log_softmax", "layernorm", "rms"):
        y = FORMULAS[name][0](x)
        before = GlobalCounters.kernel_count
        Tensor.realize(y, *y.gradient(x, gradient=g))
        assert GlobalCounters.kernel_count == before + 1, name


def test_a_row_s_sums_are_kept_in_registers_unless_others_want_them():
    x = Tensor(numbers(300, 70)).realize()
    most = x.max(1, keepdim=True)
    shares = (x - most).exp()
    column = (shares * most).sum(0)  # reads what the rows gave in another kernel
    Tensor.realize(shares, most, column)
    wide = numbers(300, 70).astype(np.float64)
    peak = wide.max(1, keepdims=True)
    np.testing.assert_allclose(shares.numpy(), np.exp(wide - peak), rtol=1e-6)
    np.testing.assert_array_equal(most.numpy(), peak.astype(np.float32))
    np.testing.assert_allclose(column.numpy(), (np.exp(wide - peak) * peak).sum(0), rtol=1e-5)


@pytest.mark.parametrize("shape", [(40, 7, 33), (5, 6, 129), (4, 1, 8)])
def test_rows_of_planes_join_whatever_their_loops(shape):
    """Row values over two loops, used along a third, along two, and by themselves."""
    x = Tensor(numbers(*shape)).realize()
    s = x.sum(2, keepdim=True)
    a, b, c = x - s, (x * s).reshape(shape[0], -1), s.reshape(-1) * 2
    d = x - x.sum((1, 2), keepdim=True)
    Tensor.realize(a, b, c, d)
    wide = numbers(*shape).astype(np.float64)
    total = wide.sum(2, keepdims=True)
    for got, want in (
        (a, wide - total),
        (b, (wide * total).reshape(shape[0], -1)),
        (c, total.reshape(-1) * 2),
        (d, wide - wide.sum((1, 2), keepdims=True)),
    ):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-4)


# ---------------------------------------------------------------- what several loops compute alike


def rows_kernel(make, size: int = 64) -> UOp:
    """A kernel that stores value(j) times a sum of other(r) along each of 8 rows."""
    i, j = UOp.range(8, 0), UOp.range(64, 1)
    r = UOp.range(size, 2, AxisType.REDUCE)
    x = UOp.placeholder((8, 64), dtypes.float32, 1)
    value, other = make(x.index(i, j)), make(x.index(i, r))
    into = UOp.placeholder((8, 64), dtypes.float32, 0).index(i, j)
    return UOp.sink(into.store(value * other.reduce(r)), arg=KernelInfo())


def exp_of(x: UOp) -> UOp:
    return UOp(Ops.MATH, x.dtype, (x,), "exp")


def test_what_two_loops_over_a_row_compute_is_kept():
    kept, reason = keep_rows(rows_kernel(exp_of), 1 << 20)
    ops = [n.op for n in kept.postorder()]
    assert ops.count(Ops.STAGE) == 1 and ops.count(Ops.MATH) == 1 and "256 B kept" in reason


@pytest.mark.parametrize(
    ("make", "size", "most"),
    [
        (lambda x: x * x + 1.0, 64, 1 << 20),  # cheaper than to store and load
        (exp_of, 32, 1 << 20),  # loops of other sizes
        (exp_of, 64, 255),  # no room
    ],
)
def test_nothing_is_kept_where_it_does_not_pay(make, size, most):
    kernel = rows_kernel(make, size)
    assert keep_rows(kernel, most) == (kernel, "")
