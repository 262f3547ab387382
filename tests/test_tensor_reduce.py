"""Reductions, rows and scans, against NumPy and PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from numpy_runtime import bound
from tiny import Variable
from tiny.dtype import _to_np_dtype, dtypes, sum_acc_dtype
from tiny.tensor import Tensor
from tiny.uop.runtime import Runtime


@pytest.fixture(autouse=True, scope="module", params=["evaluator", "devices"])
def runs_on(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with bound(request.param) as used:
        yield used


def drawn(shape, dtype="float32", seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 4).astype(dtype)


def same(actual, expected, rtol=1e-6, atol=1e-6):
    actual = actual.numpy()
    assert actual.shape == np.shape(expected)
    np.testing.assert_allclose(
        actual.astype(np.float64), np.asarray(expected).astype(np.float64), rtol=rtol, atol=atol
    )


SHAPES = [
    ((3,), None), ((2, 3), 0), ((2, 3), -1), ((2, 3, 4), (0, 2)), ((2, 3), ()), ((1, 3), 0),
    ((), None), ((), 0), ((), -1), ((0, 4), 1), ((2, 0), 0), ((3, 4), (-1, 0)),
]  # fmt: skip


@pytest.mark.parametrize("shape, axis", SHAPES)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "any", "all"])
def test_reductions_are_numpys(name, shape, axis, keepdim):
    x = drawn(shape)
    if shape == () and axis is not None:
        axis_np = None
    else:
        axis_np = axis
    expected = getattr(np, name)(x, axis=axis_np, keepdims=keepdim)
    if name in ("any", "all"):
        result = Tensor(x) > 0
        same(
            getattr(result, name)(axis, keepdim),
            getattr(np, name)(x > 0, axis=axis_np, keepdims=keepdim),
        )
    else:
        same(getattr(Tensor(x), name)(axis, keepdim), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "shape, axis", [((3,), None), ((2, 3), 0), ((2, 3, 4), (0, 2)), ((), None)]
)
@pytest.mark.parametrize("correction", [0, 1])
def test_variance_is_numpys(shape, axis, correction):
    x = drawn(shape)
    with np.errstate(all="ignore"):
        expected = x.astype(np.float64).var(axis=axis, ddof=correction)
        same(Tensor(x).var(axis, correction=correction), expected)
        same(Tensor(x).std(axis, correction=correction), np.sqrt(expected))
    variance, mean = Tensor(x).var_mean(axis)
    assert variance.shape == mean.shape == np.shape(expected)


@pytest.mark.parametrize("dtype", dtypes.all)
def test_dtypes_of_reductions(dtype):
    x = Tensor([1, 0, 1], dtype=dtype)
    assert x.sum().dtype is (dtype if dtypes.is_float(dtype) else sum_acc_dtype(dtype))
    assert x.sum(dtype="float64").dtype is dtypes.float64
    assert x.cumsum().dtype is x.sum().dtype
    assert x.max().dtype is x.min().dtype is x.prod().dtype is dtype
    floating = dtype if dtypes.is_float(dtype) else dtypes.float32
    assert x.mean().dtype is x.var().dtype is x.softmax().dtype is floating
    assert x.argmax().dtype is dtypes.int32
    assert (x.max().item(), x.min().item(), x.sum().item()) == (1, 0, 2)


def test_sums_of_narrow_floats_accumulate_in_float32():
    x = np.full(5000, 1.0, np.float16)
    assert Tensor(x).sum().item() == 5000.0
    assert Tensor(np.full(300, 100, np.int8)).sum().item() == 30000
    assert Tensor(x).mean().item() == 1.0


@pytest.mark.parametrize("dtype", dtypes.ints)
def test_minimum_and_maximum_at_the_limits(dtype):
    limits = np.array([dtype.min, dtype.max], _to_np_dtype(dtype))
    assert Tensor(limits).min().item() == dtype.min
    assert Tensor(limits).max().item() == dtype.max
    empty = Tensor(limits[:0])
    assert (empty.max().item(), empty.min().item()) == (dtype.min, dtype.max)


def test_nan_is_not_lost():
    x = np.array([[1, math.nan, 2], [3, 4, 5]], np.float32)
    for name in ("max", "min", "sum", "mean"):
        np.testing.assert_array_equal(np.isnan(getattr(Tensor(x), name)(1).numpy()), [True, False])


def test_reductions_of_nothing():
    x = Tensor(np.zeros((0,), np.float32))
    assert (x.sum().item(), x.prod().item()) == (0.0, 1.0)
    assert (x.max().item(), x.min().item()) == (-math.inf, math.inf)
    assert math.isnan(x.mean().item()) and math.isnan(Tensor([1.0]).var().item())
    assert Tensor(np.zeros((2, 0))).sum(0).shape == (0,)
    with pytest.raises(ValueError, match="no elements"):
        x.argmax()


# ---------------------------------------------------------------- places


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_])
def test_argmax_takes_the_first(axis, keepdim, dtype):
    x = np.random.default_rng(1).integers(0, 3, (4, 5)).astype(dtype)
    for name in ("argmax", "argmin"):
        same(getattr(Tensor(x), name)(axis, keepdim), getattr(np, name)(x, axis, keepdims=keepdim))


def test_argmax_of_special_values():
    nan, inf = math.nan, math.inf
    for row in ([1.0, nan, nan], [nan, inf], [-inf, -inf], [inf, inf, 1.0], [5.0]):
        x = np.array(row, np.float32)
        assert Tensor(x).argmax().item() == np.argmax(x)
        assert Tensor(x).argmin().item() == np.argmin(x)
    assert Tensor(3.0).argmax().item() == 0
    assert Tensor([127, -128], dtype="int8").argmin().item() == 1


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "softmin"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_rows_are_those_of_pytorch(name, axis):
    torch = pytest.importorskip("torch")
    x = drawn((4, 5)) * 10
    ours = getattr(Tensor(x), name)(axis)
    if name == "softmin":
        expected = torch.nn.functional.softmin(torch.from_numpy(x), dim=axis)
    else:
        expected = getattr(torch, name)(torch.from_numpy(x), dim=axis)
    same(ours, expected.numpy(), rtol=2e-5, atol=1e-6)


def test_rows_do_not_overflow():
    x = np.array([[1e4, 0, -1e4], [-1e30, 1e30, 0]], np.float32)
    same(Tensor(x).softmax(), [[1, 0, 0], [0, 1, 0]])
    same(Tensor(x).logsumexp(1), [1e4, 1e30])
    same(Tensor([-math.inf, -math.inf]).logsumexp(), -math.inf)
    same(Tensor([math.inf, 0.0]).logsumexp(), math.inf)
    same(Tensor(x).logsumexp(), 1e30)
    assert np.isnan(Tensor([-math.inf, -math.inf]).softmax().numpy()).all()
    half = Tensor(drawn((3, 8), "float16")).softmax()
    assert half.dtype is dtypes.float16


def test_a_dtype_for_rows():
    assert Tensor([1, 2]).softmax(dtype="float64").dtype is dtypes.float64
    assert Tensor([1.0]).log_softmax(dtype=dtypes.half).dtype is dtypes.float16


# ---------------------------------------------------------------- scans


@pytest.mark.parametrize(
    "shape, axis",
    [((5,), 0), ((2, 3), 1), ((3, 2, 4), 1), ((700,), 0), ((2, 513), -1), ((0, 3), 0)],
)
def test_running_sums(shape, axis):
    x = drawn(shape)
    same(Tensor(x).cumsum(axis), x.cumsum(axis), rtol=1e-4, atol=1e-4)


def test_running_sums_of_infinities_and_numbers():
    x = np.zeros(600, np.float32)
    x[300] = math.inf
    same(Tensor(x).cumsum(), x.cumsum())
    assert Tensor(4).cumsum().item() == 4
    assert Tensor([100, 100], dtype="int8").cumsum().tolist() == [100, 200]


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda x: x.sum(2), IndexError, r"\(2, 3\)"),
        (lambda x: x.max(-3), IndexError, "-3"),
        (lambda x: x.sum((0, 0)), ValueError, "twice"),
        (lambda x: x.sum("a"), TypeError, "str"),
        (lambda x: x.argmax(5), IndexError, "5"),
        (lambda x: Tensor(1).sum(1), IndexError, r"\(\)"),
        (lambda x: x.softmax(3), IndexError, "3"),
        (lambda x: x.logsumexp((1, -1)), ValueError, r"\(2, 3\) is named twice in \(1, -1\)"),
        (lambda x: x.var([0, 5]), IndexError, "dimension 5"),
        (lambda x: x.argmin((0, 1)), TypeError, r"a dimension is an int, got \(0, 1\)"),
        (lambda x: x[:0].argmin(0), ValueError, r"argmin: dimension 0 of \(0, 3\) has no elements"),
        (lambda x: x[:, :0].argmax(), ValueError, r"argmax: dimension 0 of \(0,\) has no elements"),
        (
            lambda x: x[: Variable("n", 0, 2).bind(1)].argmax(0),
            ValueError,
            "argmax: dimension 0 of .* may have no elements",
        ),
        (lambda x: x.normalize(dim=2), IndexError, "dimension 2"),
        (lambda x: x.sum(dtype="float3"), ValueError, "float3"),
    ],
)
def test_mistakes_are_found_when_written(make, error, words):
    with pytest.raises(error, match=words):
        make(Tensor(drawn((2, 3))))
