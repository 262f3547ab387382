"""Temporaries of captured steps and of schedules as they run: apart while alive, written first."""

import random

import numpy as np
import pytest

from conftest import examples
from tiny import Tensor, TinyJit
from tiny.device import Device
from tiny.engine.realize import Part, StepList
from tiny.helpers import POISON, Context


def check_parts(steps: StepList) -> int:
    """No two parts of an arena that are alive together share a byte; none is read before it is
    written. How many parts there are."""
    parts = {k: slot for k, slot in enumerate(steps._slots) if isinstance(slot, Part)}
    uses: dict[int, list[int]] = {}
    for number, step in enumerate(steps.steps):
        for k in step.slots:
            if k in parts:
                if k not in uses:
                    assert k in step.written, f"slot {k} is read by step {number}, never written"
                uses.setdefault(k, []).append(number)
    mine = sorted(uses)
    for i, a in enumerate(mine):
        assert parts[a].offset + parts[a].nbytes <= steps._arenas[parts[a].device]
        for b in mine[:i]:
            x, y = parts[a], parts[b]
            together = uses[a][0] <= uses[b][-1] and uses[b][0] <= uses[a][-1]
            apart = x.offset + x.nbytes <= y.offset or y.offset + y.nbytes <= x.offset
            assert apart or not together or x.device != y.device, (a, b)
    return len(parts)


def random_function(seed):
    """A function of two (n, n) tensors that stores some of what it computes, and its NumPy twin."""
    rng = random.Random(seed)
    plan = [
        (rng.choice(["add", "matmul", "rows", "turn", "store", "realize"]), rng.random())
        for _ in range(rng.randrange(4, 14))
    ]

    def run(values, matmul, stored, realized):
        values = list(values)
        for kind, place in plan:
            a, b = values[int(place * len(values))], values[-1]
            if kind == "add":
                values.append(a + b)
            elif kind == "matmul":
                values.append(matmul(a, b))
            elif kind == "rows":
                values.append(a - b.sum(0))
            elif kind == "turn":
                values.append(a.T - b)
            else:
                values.append((stored if kind == "store" else realized)(a * 2))
        return values[-1], values[len(values) // 2] + 1

    def tensors(x, y):
        return run((x, y), lambda a, b: a @ b, Tensor.contiguous, Tensor.realize)

    def arrays(x, y):
        same = lambda a: a  # noqa: E731
        return run((x, y), lambda a, b: a @ b, same, same)

    return tensors, arrays


@pytest.mark.parametrize("seed", range(examples(300, 25)))
def test_temporaries_of_captures_lie_apart(seed):
    tensors, arrays = random_function(seed)
    jitted = TinyJit(tensors)
    rng = np.random.default_rng(seed)
    for _ in range(4):
        x, y = (rng.integers(-2, 3, (6, 6)).astype(np.float64) for _ in range(2))
        got = jitted(Tensor(x), Tensor(y))
        for t, expected in zip(got, arrays(x, y), strict=True):
            np.testing.assert_allclose(t.numpy(), expected, rtol=1e-12)
    (capture,) = jitted.captures
    check_parts(capture._steps)


def test_a_capture_with_many_temporaries_has_parts():
    jitted = TinyJit(lambda x: ((x @ x).realize() @ x).realize().sum(0))
    for _ in range(3):
        jitted(Tensor.ones(8, 8).contiguous().realize())
    (capture,) = jitted.captures
    assert check_parts(capture._steps) >= 1


def test_memory_that_is_handed_out_or_taken_back_is_poisoned():
    assert POISON, "the tests run with POISON=1"
    allocator = Device["CPU"].allocator
    memory = allocator.alloc(256)
    view = np.frombuffer(memory, np.float32)
    assert np.isnan(view).all()
    view[:] = 1
    del view
    allocator.free(memory, 256)
    assert np.isnan(np.frombuffer(memory, np.float32)).all()
    assert np.isnan(np.frombuffer(memory, np.float64)).all()
    assert np.isnan(np.frombuffer(memory, np.float16)).all()
    arena, nbytes = allocator.borrow(1000)
    assert nbytes >= 1000 and np.isnan(np.frombuffer(arena, np.float32)).all()
    allocator.give_back(arena, nbytes)
    with Context(POISON=0):
        again, same = allocator.borrow(100)
        assert again is arena and same == nbytes  # any that is large enough will do
        allocator.give_back(again, same)


def test_an_arena_that_is_outgrown_is_given_back():
    allocator = type(Device["CPU"].allocator)("a test")
    small, size = allocator.borrow(1000)
    allocator.give_back(small, size)
    large, more = allocator.borrow(5000)
    assert allocator.kept == 0 and more >= 5000
    other, _ = allocator.borrow(10)  # while the first is in use
    allocator.give_back(large, more)
    allocator.give_back(other, 64)
    assert allocator.kept == 2 and allocator.kept_nbytes == more + 64
    assert allocator.borrow(10)[0] is other and allocator.borrow(64)[0] is large
