"""Scans of long rows, their work, symbolic lengths, and mistakes; the tables are in api/scan.py."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from conftest import examples
from tiny import Context, Tensor, TinyJit, Variable, dtypes
from tiny.helpers import GlobalCounters

REFERENCES = {
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
    "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
    "logcumsumexp": np.logaddexp.accumulate,
}


def scanned(name: str, x: Tensor, axis: int = 0) -> Tensor:
    """The values of a scan."""
    result = getattr(x, name)(axis)
    return result[0] if isinstance(result, tuple) else result


def drawn(name, shape, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    if name == "cumprod":
        return rng.uniform(0.97, 1.03, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


# ---------------------------------------------------------------- lengths


# around vectors, and several of them
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 257, 1041])
@pytest.mark.parametrize("name", REFERENCES)
def test_lengths_around_vectors(name, size):
    x = drawn(name, size)
    np.testing.assert_allclose(scanned(name, Tensor(x)).numpy(), REFERENCES[name](x), rtol=1e-11)


@pytest.mark.parametrize("name", REFERENCES)
def test_long_rows(name):
    x = drawn(name, examples(1_000_003, 50_021))
    expected = REFERENCES[name](x)
    np.testing.assert_allclose(scanned(name, Tensor(x)).numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_long_rows_in_any_dimension(name, axis):
    shape = [3, 2, 2]
    shape[axis] = 131
    x = drawn(name, shape)
    expected = REFERENCES[name](x, axis=axis)
    np.testing.assert_allclose(scanned(name, Tensor(x), axis).numpy(), expected, rtol=1e-11)


def test_integers_wrap_over_blocks():
    x = np.full(300, 2**31 - 1, np.int32)
    expected = np.cumsum(x, dtype=np.int32)
    np.testing.assert_array_equal(Tensor(x).cumsum().numpy(), expected)
    odd = np.full(300, 2**62 + 3, np.uint64)
    np.testing.assert_array_equal(Tensor(odd).cumprod(0).numpy(), np.cumprod(odd))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_summed_in_float32(dtype):
    x = Tensor(np.full(5000, 1.0, np.float32)).cast(dtype)
    sums = x.cumsum()
    assert sums.dtype.name == dtype
    exact = Tensor(np.arange(1, 5001, dtype=np.float32)).cast(dtype)
    np.testing.assert_array_equal(sums.float().numpy(), exact.float().numpy())


def test_an_error_of_long_sums_is_small():
    x = np.random.default_rng(3).standard_normal(100_000).astype(np.float32)
    exact = np.cumsum(x, dtype=np.float64)
    # in one chain float32 is off by 2e-4 here
    np.testing.assert_allclose(Tensor(x).cumsum().numpy(), exact, rtol=0, atol=1e-4)


def test_the_first_of_equal_elements_over_blocks():
    x = np.zeros(200, np.float32)
    x[[70, 71, 150]] = 5
    for name, sign in (("cummax", 1), ("cummin", -1)):
        values, places = getattr(Tensor(sign * x), name)()
        assert places.dtype is dtypes.int32
        assert places.tolist() == [0] * 70 + [70] * 130
        np.testing.assert_array_equal(values.numpy(), sign * np.maximum.accumulate(x))


def test_special_values_over_blocks():
    x = np.ones(200, np.float32)
    x[[20, 100]], x[50], x[150] = -np.inf, np.inf, np.nan
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(Tensor(x).cumsum().numpy(), np.cumsum(x))
    values, places = Tensor(x).cummax()
    np.testing.assert_array_equal(values.numpy(), np.maximum.accumulate(x))
    assert set(places.numpy()[150:]) == {150}
    got = Tensor(x).logcumsumexp().numpy()
    np.testing.assert_array_equal(np.isnan(got), np.arange(200) >= 150)
    assert (got[50:150] == np.inf).all()
    low = np.full(100, -np.inf, np.float32)
    low[90:] = [-1e4, 1e4, *[0.0] * 8]
    with np.errstate(invalid="ignore"):
        expected = np.logaddexp.accumulate(low)
    np.testing.assert_array_equal(Tensor(low).logcumsumexp().numpy(), expected)


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("name", REFERENCES)
def test_gradients_of_long_rows(name):
    torch = pytest.importorskip("torch")
    x = drawn(name, 150)
    if name == "cumprod":
        x[[40, 41, 120]] = 0
    weights = np.random.default_rng(4).uniform(0.5, 1.5, 150)
    t, p = Tensor(x), torch.from_numpy(x).requires_grad_()
    (scanned(name, t) * Tensor(weights)).sum().backward()
    result = getattr(torch, name)(p, 0)
    result = result if isinstance(result, torch.Tensor) else result[0]
    (result * torch.from_numpy(weights)).sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), p.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_the_gradient_of_equal_elements_goes_to_the_first():
    t = Tensor([1.0, 3.0, 3.0, 2.0])
    t.cummax()[0].sum().backward()
    assert t.grad.tolist() == [1.0, 3.0, 0.0, 0.0]


def test_gradients_of_nothing_are_no_number_only_where_they_must():
    t = Tensor([-np.inf, -np.inf, 0.0])
    t.logcumsumexp()[2].backward()
    assert t.grad.tolist() == [0.0, 0.0, 1.0]


# ---------------------------------------------------------------- symbolic sizes, captures, devices


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("n", [1, 70, 100])
def test_symbolic_lengths(name, n):
    x = drawn(name, (2, 100), "float32")
    part = Tensor(x)[:, : Variable("n", 1, 100).bind(n)]
    expected = REFERENCES[name](x[:, :n], axis=1)
    np.testing.assert_allclose(scanned(name, part, 1).numpy(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", REFERENCES)
def test_captured_scans(name):
    step = TinyJit(lambda t: scanned(name, t).realize())
    for seed in range(4):
        x = drawn(name, 100, "float32", seed)
        expected = REFERENCES[name](x)
        got = step(Tensor(x).realize()).numpy()
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", REFERENCES)
def test_the_interpreter_scans_blocks(name):
    x = drawn(name, 70)
    with Context(DEV="PYTHON"):
        got = scanned(name, Tensor(x)).numpy()
    np.testing.assert_allclose(got, REFERENCES[name](x), rtol=1e-11)


# ---------------------------------------------------------------- work


def _cost(name: str, size: int, backward: bool) -> tuple[int, int, int]:
    """Kernels, operations and nodes of a scan of so many elements, or of its gradient."""
    t = Tensor(drawn(name, size, "float32")).realize()
    result = scanned(name, t)
    if backward:
        (result,) = (result * t.detach()).sum().gradient(t)
    nodes = len(result.uop.postorder())
    GlobalCounters.reset()
    result.realize()
    return GlobalCounters.kernel_count, GlobalCounters.global_ops, nodes


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_work_is_near_linear_in_the_length(name, backward):
    costs = [_cost(name, size, backward) for size in (1 << 13, 1 << 14, 1 << 15)]
    for (kernels, ops, nodes), (more_kernels, more_ops, more_nodes) in pairwise(costs):
        assert more_ops < 2.5 * ops
        assert more_kernels <= kernels + 8
        assert more_nodes < 1.6 * nodes
    assert costs[-1][1] < (1 << 15) * 700
    assert costs[-1][0] < 60


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_the_gradient_of_a_sum_is_near_linear_too(name):
    # of a running sum it is made of no elements at all, and could be thought of as free
    for size in (1 << 12, 1 << 16):
        t = Tensor(drawn(name, size, "float32")).realize()
        (result,) = scanned(name, t).sum().gradient(t)
        GlobalCounters.reset()
        result.realize()
        assert GlobalCounters.global_ops < 500 * size


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize(
    "axis, error, words",
    [(2, IndexError, r"dimension 2 .*\(2, 3\)"), (-3, IndexError, "-3"), ("a", TypeError, "'a'")],
)
def test_mistakes_are_found_when_written(name, axis, error, words):
    with pytest.raises(error, match=words):
        getattr(Tensor(np.zeros((2, 3), np.float32)), name)(axis)
    with pytest.raises(IndexError, match=r"shape \(\)"):
        getattr(Tensor(1.0), name)(1)
