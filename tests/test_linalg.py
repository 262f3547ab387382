"""qr, svd and newton_schulz by the properties of factors; values stand in tests/api/linalg.py."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from conftest import examples
from tiny import Device, Tensor, UOp, dtypes
from tiny.schedule import create_schedule

Array = np.ndarray


def drawn(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def eye_error(x: Array) -> float:
    return float(abs(np.swapaxes(x, -1, -2) @ x - np.eye(x.shape[-1])).max(initial=0))


def unit(dtype: str) -> float:
    return float(np.finfo(dtype).eps)


def hard_matrices(m: int, n: int) -> Iterator[Array]:
    """Random, singular, graded and clustered ones."""
    k = min(m, n)
    yield drawn(m, n)
    yield np.ones((m, n))
    yield np.zeros((m, n))
    yield np.outer(drawn(m), drawn(n))
    twice = drawn(m, n)
    twice[:, -1] = twice[:, 0]
    yield twice
    u, v = np.linalg.qr(drawn(m, m))[0][:, :k], np.linalg.qr(drawn(n, n, seed=1))[0][:k]
    yield u * 10.0 ** -np.linspace(0, 9, k) @ v
    yield u * np.where(np.arange(k) < (k + 1) // 2, 1.0, 0.5) @ v
    yield u @ v


SIZES = [(1, 1), (2, 2), (4, 3), (3, 5), (8, 8), (7, 7), (32, 32), (17, 24)]
LARGE = [(m, n, "float64") for m, n in SIZES][: examples(8, 0)]
SIZES = SIZES[examples(0, 1) : examples(8, 3)]


@pytest.mark.parametrize(
    "m, n, dtype", [*[(*size, "float32") for size in SIZES], (3, 5, "float64"), *LARGE]
)
def test_values_and_factors_of_hard_matrices(m, n, dtype):
    for a in hard_matrices(m, n):
        a = a.astype(dtype)
        u, s, vh = (f.numpy() for f in Tensor(a).svd())
        exact = np.linalg.svd(a.astype(np.float64), compute_uv=False)
        k = min(m, n)
        # ten units of rounding for each row and column, of the largest value
        allowed = 10 * max(m, n) * unit(dtype)
        assert eye_error(u) <= allowed
        assert eye_error(vh.T) <= allowed
        assert (np.diff(s) <= 0).all()
        assert (s >= 0).all()
        assert abs(s - exact).max() <= allowed * exact[0]
        assert abs(u[:, :k] * s @ vh[:k] - a).max() <= allowed * exact[0]


@pytest.mark.parametrize("m, n", SIZES)
def test_qr_is_that_of_lapack(m, n):
    for a in hard_matrices(m, n):
        a = a.astype(np.float32)
        q, r = (f.numpy() for f in Tensor(a).qr())
        size, allowed = max(abs(a).max(), 1e-30), 10 * max(m, n) * unit("float32")
        assert eye_error(q) <= allowed
        assert (np.tril(r, -1) == 0).all()
        assert abs(q @ r - a).max() <= allowed * size
    a = drawn(m, n)
    for ours, theirs in zip(Tensor(a).qr(), np.linalg.qr(a, mode="complete"), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-12)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("shape", [(2, 4), (4, 2), (3, 0), (0, 3), (0, 0), (0, 2, 2), (2, 3, 1)])
def test_shapes_are_those_of_numpy(shape, full):
    x = np.zeros(shape, np.float32)
    assert [f.shape for f in Tensor(x).svd(full_matrices=full)] == [
        f.shape for f in np.linalg.svd(x, full_matrices=full)
    ]
    assert [f.shape for f in Tensor(x).qr()] == [f.shape for f in np.linalg.qr(x, mode="complete")]


@pytest.mark.parametrize("size", [1e30, 1e-36][: examples(2, 1)])
def test_sizes_near_the_ends_of_the_range_do_no_harm(size):
    a = drawn(2, 3, 3)
    scaled = Tensor(a * size, dtype="float32")
    u, s, vh = scaled.svd()
    np.testing.assert_allclose(s.numpy() / size, np.linalg.svd(a)[1], rtol=1e-4)
    again = (u * s.unsqueeze(-2) @ vh).numpy() / size
    np.testing.assert_allclose(again, a, atol=1e-5)
    q, r = scaled.qr()
    np.testing.assert_allclose((q @ r).numpy() / size, a, atol=1e-5)


def test_matrices_of_a_batch_are_apart():
    a = drawn(3, 3, 3)
    a[1] = 0
    together = [f.numpy() for f in Tensor(a).qr()]
    for k in range(3):
        for whole, alone in zip(together, Tensor(a[k]).qr(), strict=True):
            np.testing.assert_allclose(whole[k], alone.numpy(), atol=1e-12)


def test_dtypes_of_factors():
    for dtype, result in (("int32", dtypes.float32), ("float16", dtypes.float16)):
        x = Tensor([[2, 1], [1, 3]], dtype=dtype)
        assert {f.dtype for f in (*x.qr(), *x.svd(), x.newton_schulz(1, (1.0,)))} == {result}


def test_nan_spreads():
    a = Tensor([[float("nan"), 1.0], [2.0, 3.0]])
    assert np.isnan(a.svd()[1].numpy()).all()
    assert np.isnan(a.qr()[1].numpy()).any()


def test_gradients_of_equal_values_are_finite():
    x = Tensor(np.eye(3, dtype=np.float32))
    u, s, vh = x.svd()
    (gradient,) = (u.sum() + s.sum() + vh.sum()).gradient(x)
    assert np.isfinite(gradient.numpy()).all()
    (gradient,) = s.sum().gradient(x)
    np.testing.assert_allclose(gradient.numpy(), np.eye(3), atol=1e-6)


def test_gradients_of_zeros_are_finite():
    x = Tensor.zeros(2, 2).contiguous().realize()
    for results in (x.qr(), x.svd(), (x.newton_schulz(2, (1.5, -0.5)),)):
        (gradient,) = sum(f.sum() for f in results).gradient(x)
        assert np.isfinite(gradient.numpy()).all()


@pytest.mark.parametrize("shape", [(2, 3, 4), (5, 2)])
def test_steps_of_newton_and_schulz_make_values_one(shape):
    x = Tensor(drawn(*shape), dtype="float64").newton_schulz(14, (1.875, -1.25, 0.375)).numpy()
    values = np.linalg.svd(x, compute_uv=False)
    np.testing.assert_allclose(values, 1.0, atol=1e-6)


def kernels(*tensors: Tensor) -> list[UOp]:
    target = Device["CPU"].target
    schedule = create_schedule(UOp.sink(*[t.uop for t in tensors]), lambda _: target, "CPU")
    return [item.kernel for item in schedule.schedule.items]


@pytest.mark.parametrize("name, sizes, most", [("qr", (10, 20), 15), ("svd", (6, 12), 45)])
def test_all_steps_are_the_same_few_kernels(name, sizes, most):
    """So that a larger matrix takes no longer to compile."""
    found = [kernels(*getattr(Tensor.empty(n, n), name)()) for n in sizes]
    assert len(found[1]) > 2 * most
    assert max(len(set(steps)) for steps in found) <= most


@pytest.mark.parametrize("name", ["qr", "svd"])
def test_vectors_have_no_factors(name):
    with pytest.raises(ValueError, match=rf"{name}: a matrix has two dimensions, got shape \(3,\)"):
        getattr(Tensor.ones(3), name)()


@pytest.mark.parametrize(
    "make", [lambda x: x.newton_schulz(1, ()), lambda x: x.newton_schulz(-1, (1.0,)),
             lambda x: x[0].newton_schulz(1, (1.0,))]
)  # fmt: skip
def test_mistakes_of_newton_schulz_are_named(make):
    with pytest.raises(ValueError, match="newton_schulz: a matrix of two dimensions"):
        make(Tensor.ones(3, 3))
