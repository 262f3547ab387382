"""Where memory can not be had: caches are given back, and it is tried once more; else nothing
has changed, and everything goes on."""

import numpy as np
import pytest

from tiny import Tensor, TinyJit
from tiny._core.launch import HostKernel
from tiny._core.memory import HostMemory
from tiny.device import Device, HostAllocator

NUMBERS = np.arange(12, dtype=np.float32).reshape(3, 4)


class Shortage:
    """The n-th request to the system fails, and `times - 1` after it; all are counted."""

    def __init__(self, monkeypatch, n, times):
        self.first, self.times, self.requests = n, times, 0
        allocate = HostAllocator._alloc

        def limited(allocator, size, options):
            self.requests += 1
            if self.first <= self.requests < self.first + self.times:
                raise MemoryError(f"could not allocate {size} bytes of host memory")
            return allocate(allocator, size, options)

        monkeypatch.setattr(HostAllocator, "_alloc", limited)


def same(tensor, expected):
    np.testing.assert_array_equal(tensor.numpy(), expected)


class Realised:
    """Values and writes, temporaries in an arena, several results."""

    def __init__(self):
        self.w = Tensor(NUMBERS).realize()
        self.before = self.w * 2
        self.w += 1
        rows = (self.w @ self.w.T).contiguous().softmax()
        self.total = (rows * 3).contiguous().sum(0)

    def act(self):
        Tensor.realize(self.total, self.w)

    def check(self):
        same(self.w, NUMBERS + 1)
        same(self.before, NUMBERS * 2)
        scores = (NUMBERS + 1) @ (NUMBERS + 1).T
        e = np.exp(scores - scores.max(1, keepdims=True))
        rows = e / e.sum(1, keepdims=True)
        np.testing.assert_allclose(self.total.numpy(), (rows * 3).sum(0), rtol=1e-5)


class Captured:
    """A step that is captured, and replayed; it writes to a tensor from outside."""

    def __init__(self):
        state = self.state = Tensor(NUMBERS).realize()
        self.x = Tensor(NUMBERS).realize()
        self.step = TinyJit(lambda x: state.assign(state + x).contiguous().sum(0))
        self.calls = self.done = 0

    def act(self):
        for _ in range(4):
            self.step(self.x).realize()
            self.done += 1

    def check(self):
        # the call that failed has written all or nothing
        got = self.state.numpy()
        assert any(np.array_equal(got, NUMBERS * (1 + self.done + k)) for k in (0, 1))
        same(self.x, NUMBERS)
        same(self.step(self.x), (got + NUMBERS).sum(0))
        same(self.state, got + NUMBERS)


@pytest.mark.parametrize("program", [Realised, Captured])
def test_each_request_may_fail_once(program, monkeypatch):
    program().act()  # compiled by now
    made = program()
    Device["CPU"].allocator.free_cache()
    with monkeypatch.context() as patch:
        count = Shortage(patch, 0, 0)
        made.act()
    assert count.requests
    for n in range(1, count.requests + 1):
        made = program()
        Device["CPU"].allocator.free_cache()
        with monkeypatch.context() as patch:
            shortage = Shortage(patch, n, 1)
            made.act()
        assert shortage.requests > n
        made.check()


@pytest.mark.parametrize("program", [Realised, Captured])
def test_a_request_that_fails_twice_changes_nothing(program, monkeypatch):
    program().act()
    failures = 0
    for n in range(1, 40):
        made = program()
        Device["CPU"].allocator.free_cache()
        with monkeypatch.context() as patch:
            shortage = Shortage(patch, n, 2)
            try:
                made.act()
            except MemoryError as e:
                failures += 1
                assert "CPU: an allocation of" in str(e) and "bytes are in use" in str(e)
        made.check()
        if shortage.requests < n:
            break
    assert failures and n < 39


def test_what_devices_keep_is_given_back_before_it_is_tried_once_more(monkeypatch):
    allocator = Device["CPU"].allocator
    (Tensor.ones(1000).contiguous() + 1).realize()
    assert allocator.kept_nbytes
    with monkeypatch.context() as patch:
        Shortage(patch, 1, 1)
        t = (Tensor.ones(99, 77).contiguous() * 2).realize()
    assert allocator.kept_nbytes <= 99 * 77 * 4 + 64
    assert (t.numpy() == 2).all()


def test_memory_of_tensors_in_cycles_is_given_back_too(monkeypatch):
    class Model:
        def __init__(self):
            self.itself, self.weight = self, Tensor.ones(1 << 16).contiguous().realize()

    import gc

    from tiny.helpers import GlobalCounters

    gc.collect()
    gc.disable()
    try:
        used = GlobalCounters.mem_used
        Model()
        assert GlobalCounters.mem_used >= used + (4 << 16)
        with monkeypatch.context() as patch:
            Shortage(patch, 1, 1)
            Device["CPU"].allocator.alloc(12345)
        assert GlobalCounters.mem_used <= used
    finally:
        gc.enable()


def test_scratch_memory_that_can_not_be_had_is_asked_for_twice():
    allocator = Device["CPU"].allocator
    allocator.free(allocator.alloc(1 << 20), 1 << 20)
    assert allocator.kept_nbytes >= 1 << 20
    # never called: the request for its scratch memory comes first
    kernel = HostKernel("huge", ((1, 1),), 1, b"", None, scratch_nbytes=1 << 60)
    with pytest.raises(MemoryError, match="bytes of scratch memory"):
        kernel((HostMemory(8),))
    assert allocator.kept_nbytes == 0
