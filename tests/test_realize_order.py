"""What a realize computes: what it was asked for, the assignments made before, and nothing else."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import numpy as np
import pytest

from tiny import Tensor, storage
from tiny.helpers import GlobalCounters
from tiny.uop.ops import Ops


@pytest.fixture(autouse=True)
def nothing_is_pending() -> Iterator[None]:
    """Tests before may have left something that this one would carry out."""
    gc.collect()
    for pending in storage.pending_storages():
        with contextlib.suppress(Exception):  # of another runtime, say
            storage.realize_storages([pending])
    yield


def kernels_of(*tensors: Tensor) -> int:
    """How many kernels it takes to realize tensors."""
    before = GlobalCounters.kernel_count
    Tensor.realize(*tensors)
    return GlobalCounters.kernel_count - before


def is_pending(x: Tensor) -> bool:
    return x.uop.op is not Ops.BUFFER


def ones(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32))


def test_a_realize_computes_what_it_was_asked_for_and_no_more():
    x = ones(3)
    a, b = x * 2, x * 3
    assert kernels_of(a) == 1 and is_pending(b) and not is_pending(a)
    assert kernels_of(a) == 0


def test_assignments_made_before_are_carried_out_whatever_they_are_on():
    x, y, z = ones(3), ones(4), ones(5)
    x += 1
    y[1:3] = 7
    later = z * 2
    assert kernels_of(z + 1) <= 3
    assert not is_pending(x) and not is_pending(y) and is_pending(later)
    y += 1
    assert is_pending(y)
    assert y.tolist() == [2, 8, 8, 2]


def test_an_assignment_to_a_value_is_one_too():
    running = Tensor.zeros(3) * 1
    for step in range(20):
        running.assign(running * 0.5 + step)
        ones(2).sum().item()
        assert len(running.uop.postorder()) == 1, "it builds no chain"


def test_statistics_that_nobody_reads_build_no_chain():
    mean = Tensor.zeros(4)
    for _ in range(10):
        batch = Tensor.rand(8, 4)
        mean.assign(mean * 0.9 + batch.mean(0) * 0.1)
        (batch.sum() * 2).realize()
    assert not is_pending(mean)


def test_making_a_tensor_is_no_assignment():
    unread, filled = Tensor.zeros(1000), Tensor.full((7,), 3)
    assert kernels_of(ones(2) + 1) == 1
    assert is_pending(unread) and is_pending(filled)
    assert unread.sum().item() == 0.0


def test_what_is_dead_is_not_carried_out():
    x, y = ones(3), ones(3)
    x += 1
    del x
    assert kernels_of(y + 1) == 1


def test_a_pending_read_of_what_is_overwritten_is_computed_with_it():
    x = ones(3)
    old, apart = x * 2, ones(3) * 3
    x += 1
    Tensor.realize(ones(1) + 1)
    assert not is_pending(old) and is_pending(apart)
    assert (old.tolist(), x.tolist()) == ([2, 2, 2], [2, 2, 2])


def test_a_part_that_only_reads_is_copied_before_it_is_overwritten():
    x = Tensor([1.0, 2.0, 3.0])
    padded, twice = x.pad((1, 0)), x.repeat(2)
    x += 1
    x.realize()
    assert padded.tolist() == [0, 1, 2, 3] and twice.tolist() == [1, 2, 3, 1, 2, 3]


def test_an_assignment_that_can_not_be_computed_does_not_hinder_others():
    from tiny import Variable

    i, j = Variable("size", 1, 5).bind(2), Variable("size", 1, 5).bind(3)
    wrong, x = Tensor.zeros(5), ones(5)
    wrong.assign(x[:i].sum() + x[:j].sum() + wrong)
    y = ones(2)
    assert (y + 1).tolist() == [2, 2]
    with pytest.raises(ValueError, match="size"):
        wrong.tolist()


def test_a_realize_looks_at_what_is_pending_only_whatever_is_alive(monkeypatch):
    alive = [ones(1) for _ in range(10_000)]
    looked_at = []
    pending_storages = storage.pending_storages

    def counted():
        found = pending_storages()
        looked_at.append(len(found))
        return found

    monkeypatch.setattr(storage, "pending_storages", counted)
    monkeypatch.setattr(storage, "live_views", lambda: pytest.fail("a walk over all tensors"))
    x = ones(2)
    for step in range(1000):
        x += 1
        y = x * step
        y.realize()
        x.realize()
    assert max(looked_at) <= 3 and len(alive) == 10_000
    assert len(storage._pending.members()) <= 3


def test_pending_values_that_die_leave_nothing_behind():
    before = len(storage._pending.members())
    x = ones(2)
    for _ in range(1000):
        x * 2
    assert len(storage._pending.members()) == before
