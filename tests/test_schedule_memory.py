"""The memory plan: buffers alive together lie apart, in little more than they need."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from tensor_graphs import buffer, check, contiguous, exp, matmul, permute, reduce, reshape
from tiny.schedule import memory
from tiny.schedule.memory import ALIGNMENT, Lifetime, align, most_alive, plan_memory
from tiny.uop.ops import UOp


def check_plan(lives: list[Lifetime], offsets: list[int], arena: int) -> None:
    """No two in use at one time share a byte; all are in the arena. By time, so that it is fast."""
    assert len(offsets) == len(lives)
    for life, offset in zip(lives, offsets, strict=True):
        assert offset % ALIGNMENT == 0 and offset >= 0 and offset + life.nbytes <= arena
    begins = sorted(range(len(lives)), key=lambda k: lives[k].first)
    alive: list[int] = []
    for k in begins:
        alive = [j for j in alive if lives[j].last >= lives[k].first]
        for j in alive:
            apart = (
                offsets[j] + lives[j].nbytes <= offsets[k]
                or offsets[k] + lives[k].nbytes <= offsets[j]
            )
            assert apart, (lives[j], offsets[j], lives[k], offsets[k])
        if lives[k].nbytes:
            alive.append(k)
    assert most_alive(lives) <= arena


lifetimes = st.lists(
    st.builds(
        lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
        st.one_of(st.sampled_from([0, 1, 64, 65, 128, 4096]), st.integers(0, 5000)),
        st.integers(0, 30),
        st.integers(0, 12),
    ),
    max_size=60,
)


@settings(max_examples=examples(5_000, 200))
@given(lifetimes)
def test_buffers_alive_together_share_no_byte(lives):
    check_plan(lives, *plan_memory(lives))


@settings(max_examples=examples(5_000, 200))
@given(lifetimes)
def test_nor_do_they_by_either_method(lives):
    check_plan(lives, *memory._place_by_size(lives))
    check_plan(lives, *memory._place_by_time(lives))


def drawn(count: int, seed: int) -> list[Lifetime]:
    rng = random.Random(seed)
    lives = []
    for _ in range(count):
        first = rng.randrange(count)
        lives.append(Lifetime(rng.randrange(1, 5000), first, first + rng.randrange(20)))
    return lives


@pytest.mark.parametrize("count", [300, 2_500, 20_000])
def test_little_more_than_what_is_alive_at_once_is_taken(count):
    lives = drawn(count, count)
    offsets, arena = plan_memory(lives)
    check_plan(lives, offsets, arena)
    # measured: 1.02 by size, 1.11 by time
    assert arena <= 1.2 * most_alive(lives)


def test_equal_buffers_take_just_what_is_alive_at_once():
    lives = [Lifetime(1000, k, k + 3) for k in range(5_000)]
    _, arena = plan_memory(lives)
    assert arena == 4 * align(1000)


def test_neighbouring_blocks_are_put_together():
    lives = [Lifetime(64, 0, 0), Lifetime(64, 0, 1), Lifetime(64, 0, 2), Lifetime(192, 3, 3)]
    assert memory._place_by_time(lives)[1] == 192


def test_the_last_block_grows_with_the_arena():
    lives = [Lifetime(128, 0, 1), Lifetime(64, 0, 0), Lifetime(256, 1, 1)]
    assert memory._place_by_time(lives)[1] == 128 + 256


# ---------------------------------------------------------------- rows of temporaries


def product(rows: int, columns: int) -> UOp:
    """A matrix that is stored, since each element of it is wanted several times."""
    return contiguous(matmul(buffer(rows, 3), buffer(3, columns)))


def across(x: UOp) -> UOp:
    """A product that goes down the columns of a matrix."""
    return matmul(permute(x, 1, 0), buffer(x.shape[0], 2))


def folded(x: UOp) -> UOp:
    """The same, but with two rows for each that there was."""
    rows, columns = x.shape
    return across(reshape(x, 2 * rows, columns // 2))


@pytest.mark.parametrize(
    "use, rows, columns, pitch",
    [
        (across, 20, 1024, 1040),
        (across, 20, 2048, 2064),
        (across, 20, 1000, 1000),  # no multiple of a page
        (across, 8, 1024, 1024),  # as many as a set has room for
        (folded, 20, 1024, 1024),  # whose places are not those of rows and columns
        (lambda x: matmul(x, buffer(1024, 2)), 20, 1024, 1024),  # along rows
    ],
)
def test_rows_that_are_read_across_are_no_pages_apart(use, rows, columns, pitch):
    bound = check(use(product(rows, columns)))
    (slot,) = [s for s in bound.schedule.slots if s.role == "temp"]
    assert slot.shape == (rows, pitch)


def test_rows_of_results_are_as_users_see_them():
    x = product(20, 1024)
    bound = check(x, across(x), reduce(exp(x), 0))
    assert all(slot.shape[-1] != 1040 for slot in bound.schedule.slots)
