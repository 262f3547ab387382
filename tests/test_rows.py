"""Softmax, norms and sums of rows and columns: values, at sizes where loops and memory matter."""

from __future__ import annotations

import numpy as np
import pytest

from tiny import Tensor


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
