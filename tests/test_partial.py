"""Elements of temporaries that no kernel reads are not stored."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensor_graphs import check
from tiny import Tensor, dtypes
from tiny.uop.ops import Ops


def some(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).realize()


def below(size: int) -> Tensor:
    places = Tensor.arange(size)
    return places.unsqueeze(1) >= places


def partial_stores(*tensors: Tensor) -> int:
    """How many there are in what computes these; in the interpreter the rest stays garbage."""
    bound = check(*[t.uop for t in tensors])
    kernels = [item.kernel for item in bound.schedule.items if item.kernel.op is Ops.SINK]
    return sum(store.arg == "partial" for kernel in kernels for store in kernel.src)


@pytest.mark.parametrize("shape", [(1, 2, 20, 3), (3, 17, 5), (1, 1, 33, 16)])
def test_half_of_the_scores_under_a_causal_mask_and_of_their_gradients(shape):
    q, k, v, g = (some(*shape, seed=n) for n in range(4))
    found = q.scaled_dot_product_attention(k, v, is_causal=True)
    assert partial_stores(found, *found.gradient(q, k, v, gradient=g)) == 2


def test_all_is_stored_without_a_mask():
    q, k, v, g = (some(2, 20, 3, seed=n) for n in range(4))
    found = q.scaled_dot_product_attention(k, v)
    assert partial_stores(found, *found.gradient(q, k, v, gradient=g)) == 0


def masked_sums(x: Tensor, *masks: Tensor) -> list[Tensor]:
    return [mask.where(x, 0).sum(axis) for axis, mask in enumerate(masks)]


def made(size: int) -> Tensor:
    return (some(size, 3) @ some(3, size)).contiguous()


def test_what_any_reader_wants_is_stored():
    mask, x = below(20), made(20)
    assert partial_stores(*masked_sums(x, mask, mask)) == 1
    x = made(20)
    assert partial_stores(*masked_sums(x, mask, mask), x.exp().sum()) == 0
    x = made(20)
    assert partial_stores(*masked_sums(x, mask, mask.T)) == 0
    x = made(20)  # of which others see all
    assert partial_stores(x, *masked_sums(x, mask, mask)) == 0


def test_a_reader_at_other_places_wants_other_places():
    x = made(20)
    assert partial_stores(*masked_sums(x, below(20)), below(20).where(x.T, 0).sum(1)) == 0
    x = made(20)
    assert partial_stores(*masked_sums(x, below(20)), below(20).T.where(x.T, 0).sum(1)) == 1


def test_nan_that_is_left_there_is_not_seen():
    """Memory that nothing was stored to may hold anything: it is never multiplied in."""
    q, k, v, g = (some(1, 2, 40, 8, seed=n) for n in range(4))
    found = q.scaled_dot_product_attention(k, v, is_causal=True)
    first = [t.numpy() for t in (found, *found.gradient(q, k, v, gradient=g))]
    for _ in range(3):
        Tensor.full((1 << 16,), math.nan, dtype=dtypes.float32).contiguous().realize()
        found = q.scaled_dot_product_attention(k, v, is_causal=True)
        again = [t.numpy() for t in (found, *found.gradient(q, k, v, gradient=g))]
        for a, b in zip(first, again, strict=True):
            np.testing.assert_array_equal(a, b)
