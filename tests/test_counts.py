"""Sums of the bits of an index: joined where they are that index, left alone where not."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import const, out, param, sink
from tiny import Tensor
from tiny.dtype import dtypes
from tiny.schedule.counts import join_bits
from tiny.uop.ops import Ops, UOp
from tiny.uop.symbolic import simplify


def bit(i: UOp, k: int, weight: int, dtype=dtypes.int32, other: int = 0) -> UOp:
    """`weight` where bit k of i is set, as the front end chooses it."""
    top = (int(i.vmax) >> (k + 1)) == 0
    is_set = const((1 << k) - 1) < i if top else const(0) < i // (1 << k) % 2
    return is_set.where(UOp.const(weight, dtype), UOp.const(other, dtype))


def bits(i: UOp, count: int, dtype=dtypes.int32, order=None) -> UOp:
    total = UOp.const(0, dtype)
    for k in order or reversed(range(count)):
        total = total + bit(i, k, 1 << k, dtype)
    return total


def stored(value: UOp, i: UOp) -> UOp:
    return sink(param(0, int(i.vmax) + 1, dtype=value.dtype).index(i).store(value))


def joined(value: UOp, i: UOp) -> UOp:
    return join_bits(stored(value, i)).src[0].src[1]


def values(value: UOp, i: UOp) -> list[int]:
    return [simplify(value.substitute({i: const(k)})).arg for k in range(int(i.vmax) + 1)]


@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.int64, dtypes.uint32, dtypes.uint8])
@pytest.mark.parametrize("size", [2, 3, 8, 100, 128])
def test_all_bits_are_the_number_of_the_loop(size, dtype):
    i = out(size, 0)
    count = (size - 1).bit_length()
    for order in (None, range(count)):
        assert joined(bits(i, count, dtype, order), i) is i.cast(dtype)


def test_some_bits_are_a_part_of_it_and_multiples_stay_multiples():
    i = out(64, 0)
    for chosen in ((5, 4, 3), (0, 1, 2), (2, 3, 4)):
        total = bits(i, 6, order=chosen)
        found = joined(total, i)
        assert found.op is Ops.CAST and Ops.WHERE not in {n.op for n in found.postorder()}
        assert values(found, i) == values(total, i)
    four = UOp.const(4, dtypes.int32)
    scaled = bit(i, 0, 1) * four + bit(i, 1, 2) * four
    assert values(joined(scaled, i), i) == values(scaled, i) == [4 * (k % 4) for k in range(64)]
    assert Ops.WHERE not in {n.op for n in joined(scaled, i).postorder()}


@pytest.mark.parametrize("size", [5, 100, 300, 513])
def test_bits_of_two_indices_in_turn_are_their_sum(size):
    i, j = out(size, 0), out(size, 1)
    total = UOp.const(0, dtypes.int32)
    for k in range((size - 1).bit_length()):
        total = total + bit(j, k, 1 << k) + bit(i, k, 1 << k) * UOp.const(-1, dtypes.int32)
    store = param(0, size, size, dtype=total.dtype).index(j, i).store(simplify(total))
    found = join_bits(sink(store)).src[0].src[1]
    assert found is simplify(j + i * -1).cast(dtypes.int32)


@pytest.mark.parametrize(
    "make",
    [
        lambda i: bit(i, 0, 1) + bit(i, 1, 3),  # weights that make no number
        lambda i: bit(i, 0, 1) + bit(i, 2, 4),  # bits that are not neighbours
        lambda i: bit(i, 0, 1, other=5) + bit(i, 1, 2),  # another number where it is not set
        lambda i: bit(i, 0, 1) + UOp.const(7, dtypes.int32),
        lambda i: (
            (const(3) < i).where(UOp.const(4, dtypes.int32), UOp.const(0, dtypes.int32))
            + bit(i, 1, 2)
        ),  # i may be 8 and more: no bit
        lambda i: bit(i, 4, 100, dtypes.int8) + bit(i, 5, 100, dtypes.int8),  # wraps
    ],
)
def test_what_is_no_number_of_the_loop_is_left_alone(make):
    i = out(64, 0)
    total = make(i)
    kernel = stored(total, i)
    found = join_bits(kernel).src[0].src[1]
    assert values(found, i) == values(total, i)
    assert Ops.WHERE in {n.op for n in found.postorder()}


def test_a_kernel_without_sums_is_the_same_node():
    i = out(8, 0)
    kernel = stored(i.cast(dtypes.int32), i)
    assert join_bits(kernel) is kernel


@pytest.mark.parametrize("size", [1, 2, 5, 16, 1000])
@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_aranges_count(size, device):
    np.testing.assert_array_equal(Tensor.arange(size, device=device).numpy(), np.arange(size))
    x = Tensor(np.arange(size, dtype=np.float32), device=device)
    np.testing.assert_array_equal((x * Tensor.arange(size)).numpy(), np.arange(size) ** 2.0)
    places = Tensor.arange(2 * size) // 2
    np.testing.assert_array_equal(x[places].numpy(), np.arange(2 * size) // 2)
