"""Attention whose rows of scores are kept in memory of the thread, beside formulas in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tiny import GlobalCounters, Tensor, TinyJit, Variable
from tiny.schedule import placement
from tiny.schedule.schedule import forget_schedules


@pytest.fixture(autouse=True, params=["kept", "again", "stored"])
def least_stored(request, monkeypatch):
    """Rows of scores are kept however few they are; made again as well; or stored."""
    forget_schedules()
    monkeypatch.setattr(placement, "LEAST_STORED", 0)
    if request.param == "stored":
        monkeypatch.setattr(placement, "TILED_ROWS", 1 << 20)  # no cache holds that many
    if request.param == "again":
        monkeypatch.setattr(placement, "HUGE_NBYTES", 0)
        monkeypatch.setattr(placement, "HUGE_COLUMNS", 0)
    yield request.param
    monkeypatch.undo()
    forget_schedules()


def drawn(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def expected(q, k, v, mask=None, is_causal=False):
    """The formula, in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    heads = q.shape[-3] if q.ndim > 2 else 1
    if k.ndim > 2 and k.shape[-3] not in (1, heads):
        k, v = (x.repeat(heads // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.swapaxes(-2, -1) / math.sqrt(q.shape[-1])
    if is_causal:
        mask = np.tril(np.ones(scores.shape[-2:], bool))
    if mask is not None and mask.dtype == bool:
        scores = np.where(mask, scores, -np.inf)
    elif mask is not None:
        scores = scores + mask
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    return e @ v / np.where(total == 0, 1, total)


SHAPES = [
    ((2, 3, 37, 17), (2, 3, 41, 17), 13),
    ((1, 1, 1, 8), (1, 1, 5, 8), 8),
    ((3, 1, 64), (3, 7, 64), 1),
    ((2, 19, 32), (2, 1, 32), 32),
    ((13, 1), (29, 1), 3),
    ((2, 4, 24, 16), (2, 2, 100, 16), 16),  # fewer heads of keys
    ((1, 2, 130, 64), (1, 2, 130, 64), 64),
    ((2, 2, 7, 33), (1, 2, 260, 33), 65),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("query, keys, width", SHAPES)
def test_attention_is_its_formula(query, keys, width, causal):
    q, k, v = drawn(*query), drawn(*keys, seed=1), drawn(*keys[:-1], width, seed=2)
    gqa = len(query) > 3 and query[1] != keys[1]
    found = Tensor(q).scaled_dot_product_attention(
        Tensor(k), Tensor(v), is_causal=causal, enable_gqa=gqa
    )
    np.testing.assert_allclose(found.numpy(), expected(q, k, v, is_causal=causal), atol=3e-6)


@pytest.mark.parametrize("kind", ["bool", "float32"])
def test_masks_hide_keys_and_whole_rows(kind):
    q, k, v = (drawn(2, 3, 41, 16, seed=s) for s in range(3))
    mask = drawn(3, 41, 41, seed=3) > 0
    mask[:, 5] = False
    if kind != "bool":
        mask = np.where(mask, drawn(3, 41, 41, seed=4), -np.inf).astype(np.float32)
    found = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), Tensor(mask)).numpy()
    np.testing.assert_allclose(found, expected(q, k, v, mask), atol=3e-6)
    assert (found[:, :, 5] == 0).all()


@pytest.mark.parametrize("place", ["query", "key", "value"])
@pytest.mark.parametrize("x", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_spreads_to_those_who_see_it(x, place):
    q, k, v = (drawn(2, 21, 16, seed=s) for s in range(3))
    {"query": q, "key": k, "value": v}[place][1, 9, 3] = x
    with np.errstate(invalid="ignore"):
        right = expected(q, k, v)
    found = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v)).numpy()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(right))
    np.testing.assert_allclose(found, right, atol=3e-6)


@pytest.mark.parametrize("x", [math.nan, math.inf])
def test_what_a_query_does_not_see_makes_no_difference(x):
    q, k, v = (drawn(2, 21, 16, seed=s) for s in range(3))
    right = expected(q, k, v, is_causal=True)
    k[:, 15:], v[:, 15:] = x, x
    tensors = [Tensor(a) for a in (q, k, v)]
    found = tensors[0].scaled_dot_product_attention(*tensors[1:], is_causal=True)
    np.testing.assert_allclose(found.numpy()[:, :15], right[:, :15], atol=3e-6)


@pytest.mark.parametrize("query, keys, width", SHAPES[:5] + SHAPES[6:7])
def test_gradients_of_a_causal_mask_are_those_of_the_mask(query, keys, width):
    arrays = drawn(*query), drawn(*keys, seed=1), drawn(*keys[:-1], width, seed=2)
    mask = Tensor(np.tril(np.ones((query[-2], keys[-2]), bool)))
    found = []
    for options in ({"is_causal": True}, {"attn_mask": mask}):
        tensors = [Tensor(a) for a in arrays]
        result = tensors[0].scaled_dot_product_attention(*tensors[1:], **options)
        found.append([g.numpy() for g in (result * result).sum().gradient(*tensors)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("x", [math.nan, math.inf])
def test_what_is_not_seen_gives_no_gradient_that_is_no_number(x):
    q, k, v = (drawn(2, 21, 16, seed=s) for s in range(3))
    k[:, 15:], v[:, 15:] = x, x
    tensors = [Tensor(a) for a in (q, k, v)]
    found = tensors[0].scaled_dot_product_attention(*tensors[1:], is_causal=True)
    (gradient,) = found[:, :15].sum().gradient(tensors[0])
    assert np.isfinite(gradient.numpy()[:, :15]).all()


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-14), ("float16", 1e-3)])
def test_attention_of_other_floats(dtype, tolerance):
    q, k, v = (drawn(2, 30, 24, seed=s, dtype=dtype) for s in range(3))
    found = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v)).numpy()
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected(q, k, v), atol=tolerance)


def test_a_number_of_keys_and_queries_may_be_a_variable():
    q, k, v = (drawn(2, 40, 16, seed=s) for s in range(3))
    tensors = [Tensor(x).realize() for x in (q, k, v)]
    count = Variable("count", 1, 40)

    @TinyJit
    def attend(n):
        parts = [x[:, :n] for x in tensors]
        return parts[0].scaled_dot_product_attention(*parts[1:], is_causal=True).realize()

    for n in (5, 33, 1, 40):
        right = expected(q[:, :n], k[:, :n], v[:, :n], is_causal=True)
        np.testing.assert_allclose(attend(count.bind(n)).numpy(), right, atol=3e-6)


def test_it_is_one_kernel_where_scores_are_kept(least_stored):
    x = [Tensor.empty(4, 40, 32) for _ in range(3)]
    before = GlobalCounters.kernel_count
    x[0].scaled_dot_product_attention(*x[1:]).realize()
    assert GlobalCounters.kernel_count - before == (2 if least_stored == "stored" else 1)


def test_gradients_store_no_scores_where_those_are_large(least_stored):
    x = [Tensor.empty(4, 40, 32) for _ in range(3)]
    found = x[0].scaled_dot_product_attention(*x[1:])
    items = found.schedule_linear(*found.gradient(*x, gradient=Tensor.empty(4, 40, 32))).src
    scores = [i for i in items if i.kernel.src[0].src[0].src[0].arg.shape == (4, 40, 40)]
    assert bool(scores) == (least_stored != "again")


def operations(*outputs: Tensor) -> int:
    forget_schedules()
    GlobalCounters.reset()
    outputs[0].realize(*outputs[1:])
    return GlobalCounters.global_ops


@pytest.mark.parametrize("columns, is_again", [(8, False), (0, True)])
def test_only_what_is_wide_beside_its_sums_is_made_again(monkeypatch, columns, is_again):
    def layers() -> int:
        h = Tensor(drawn(640, 32)).realize()
        weights = [Tensor(drawn(32, 32, seed=k)).realize() for k in range(4)]
        for w in weights:
            h = (h @ w).softmax()
        return operations(*h.sum().gradient(*weights))

    monkeypatch.setattr(placement, "TILED_ROWS", 4)
    monkeypatch.setattr(placement, "LEAST_STORED", 0)
    monkeypatch.setattr(placement, "HUGE_NBYTES", 1 << 40)
    least = layers()
    monkeypatch.setattr(placement, "HUGE_NBYTES", 0)
    monkeypatch.setattr(placement, "HUGE_COLUMNS", columns)
    assert (layers() > 1.2 * least) == is_again


def test_scores_are_made_once_where_one_kernel_has_them_in_hand(monkeypatch):
    monkeypatch.setattr(placement, "TILED_ROWS", 4)
    x = [Tensor.empty(16, 2048, 64) for _ in range(3)]  # 256 MB of scores
    assert len(x[0].scaled_dot_product_attention(*x[1:]).schedule_linear().src) == 1
