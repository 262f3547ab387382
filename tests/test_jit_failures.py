"""A captured call that fails: what stays is what a plain run leaves, and the next call works."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from tiny import Tensor, TinyJit, nn
from tiny.device import Device, HostAllocator
from tiny.engine.jit import JitError
from tiny.helpers import Context, GlobalCounters
from tiny.uop.runtime import recorders

ERRORS = [KeyError, KeyboardInterrupt, MemoryError, SystemExit]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Program:
    """A step that writes to state and to an argument, and fails when told to."""

    def __init__(self, error: type[BaseException], jit: bool) -> None:
        self.state = Tensor(numbers(4)).realize()
        self.error, self.fails = error, ""
        self.step = TinyJit(self.compute) if jit else self.compute

    def compute(self, x, y):
        self.maybe_fail("start")
        self.state.assign(self.state + x)
        y[1:3] = x[1:3] * 2
        self.maybe_fail("pending")
        (self.state + y).realize()
        self.maybe_fail("computed")
        y += 1
        self.state.assign(self.state * 0.5)
        noise = Tensor.rand(4)
        self.maybe_fail("end")
        return self.state.sum() + y.sum() + noise

    def maybe_fail(self, where: str) -> None:
        if self.fails == where:
            raise self.error(where)

    def run(self, fails_at: list[str]) -> list[np.ndarray]:
        """All values after each call; calls fail where it says."""
        Tensor.manual_seed(3)
        y, seen = Tensor(numbers(4, seed=9)).realize(), []
        for k, where in enumerate(fails_at):
            self.fails = where
            x = Tensor(numbers(4, seed=k)).realize()
            if where:
                with pytest.raises(self.error, match=where):
                    self.step(x, y)
            else:
                seen.append(self.step(x, y).numpy())
            assert not recorders
            seen += [self.state.numpy(), y.numpy(), x.numpy(), Tensor.rand(2).numpy()]
        return seen


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("where", ["start", "pending", "computed", "end"])
def test_a_failure_at_any_call_leaves_what_a_plain_run_leaves(error, where):
    for failing in range(4):
        fails_at = [where if k == failing else "" for k in range(7)]
        program = Program(error, jit=True)
        captured = program.run(fails_at if failing < 2 else [""] * 7)  # a replay runs no Python
        plain = Program(error, jit=False).run(fails_at if failing < 2 else [""] * 7)
        for a, b in zip(captured, plain, strict=True):
            np.testing.assert_array_equal(a, b)
        assert len(program.step.captures) == 1


def test_two_failures_in_a_row_and_then_a_capture():
    fails_at = ["", "end", "pending", "computed", "", "", ""]
    program = Program(ValueError, jit=True)
    for a, b in zip(
        program.run(fails_at), Program(ValueError, jit=False).run(fails_at), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert len(program.step.captures) == 1


def test_a_failure_in_training_leaves_gradients_and_weights():
    def run(jit: bool) -> list[np.ndarray]:
        w = Tensor(numbers(3)).realize()
        optimizer, fails = nn.optim.SGD([w], lr=0.1), [False]

        def step(x):
            with Tensor.train():
                optimizer.zero_grad()
                loss = (w * x).sum().square().backward()
                if fails[0]:
                    raise KeyError("no")
                optimizer.step()
                return loss

        call, seen = TinyJit(step) if jit else step, []
        for k in range(6):
            fails[0] = k == 1
            x = Tensor(numbers(3, seed=k)).realize()
            if fails[0]:
                with pytest.raises(KeyError):
                    call(x)
            else:
                seen.append(call(x).numpy())
            seen += [w.numpy(), w.grad.numpy()]
        return seen

    for a, b in zip(run(True), run(False), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_refused_capture_has_run_and_written_its_arguments():
    kept = []

    @TinyJit
    def f(x):
        x += 1
        kept.append(x * 2)
        return x * 3

    x = Tensor([1.0]).realize()
    assert f(x).tolist() == [6.0]
    with pytest.raises(JitError, match="keeps a tensor"):
        f(x)
    assert x.tolist() == [3.0] and [t.tolist() for t in kept] == [[4.0], [6.0]]


def test_a_refused_capture_leaves_no_memory_behind():
    @TinyJit
    def f(x):
        y = (x * 2).realize()
        y.sum().item()
        return y

    x = Tensor(numbers(1000)).realize()
    f(x)
    gc.collect()
    held = GlobalCounters.mem_used
    for _ in range(5):
        with pytest.raises(JitError):
            f(x)
    gc.collect()
    assert GlobalCounters.mem_used == held


def test_the_exception_of_a_failed_step_may_be_kept():
    box: list[BaseException] = []

    @TinyJit
    def f(x):
        y = x + 1
        if len(box) < 2 and box is not None and fails[0]:
            raise KeyError(y)  # its traceback keeps the frame, and tensors in it
        return y * 2

    fails, x = [False], Tensor([1.0]).realize()
    f(x)
    fails[0] = True
    try:
        f(x)
    except KeyError as e:
        box.append(e)
    fails[0] = False
    for _ in range(4):
        assert f(x).tolist() == [4.0]
    assert len(f.captures) == 1 and box[0].args[0].tolist() == [2.0]


def test_a_replay_that_finds_no_memory_changes_nothing(monkeypatch):
    state = Tensor([1.0]).realize()
    f = TinyJit(lambda x: (state.assign(state + x), x + Tensor.rand(1))[1])
    x = Tensor([1.0]).realize()
    for _ in range(3):
        f(x)
    assert state.tolist() == [4.0]
    Tensor.manual_seed(1)

    def full(self, *args):
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        Device["CPU"].allocator.free_cache()
        patch.setattr(HostAllocator, "alloc", full)
        with pytest.raises(MemoryError):
            f(x)
    assert state.tolist() == [4.0]
    got = f(x).numpy()
    Tensor.manual_seed(1)
    np.testing.assert_array_equal(got, x.numpy() + Tensor.rand(1).numpy())
    assert state.tolist() == [5.0]


def test_a_failure_in_one_thread_does_not_stop_another():
    failed = threading.Event()

    @TinyJit
    def f(x, fails):
        y = (x + 1).realize()
        if fails:
            raise KeyError("no")
        return y * 2

    wrong: list[str] = []

    def work(fails: bool) -> None:
        for k in range(10):
            x = Tensor([float(k)])
            try:
                if f(x, fails).tolist() != [2.0 * (k + 1)]:
                    wrong.append("value")
            except KeyError:
                if not fails:
                    wrong.append("error")
        failed.set()

    threads = [threading.Thread(target=work, args=(fails,)) for fails in (True, False)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failed.is_set() and wrong == [] and not recorders


def test_recursion_runs_plainly_and_is_captured_as_one():
    @TinyJit
    def f(x, n):
        return x + 1 if n == 0 else f(x * 2, n - 1) + n

    def plain(x, n):
        return x + 1 if n == 0 else plain(x * 2, n - 1) + n

    for k in range(5):
        assert f(Tensor([float(k)]), 3).tolist() == [plain(k, 3)]
    assert f.captures and len(f.captures) <= 4


def test_a_jit_inside_keeps_its_own_captures_and_makes_none_for_another():
    inner = TinyJit(lambda x: x * 3)
    x = Tensor([1.0]).realize()
    for _ in range(3):
        inner(x)
    before = inner.captures
    outer = TinyJit(lambda x: inner(x) + inner(Tensor.ones(7))[0])
    for _ in range(4):
        assert outer(x).tolist() == [6.0]
    assert inner.captures[0] is before[0] and len(inner.captures) <= 2
    inside, outside = weakref.ref(inner.captures[0]), weakref.ref(outer.captures[0])
    outer.reset()
    gc.collect()
    assert outside() is None and inside() is not None
    inner.reset()
    before.clear()
    gc.collect()
    assert inside() is None and inner(x).tolist() == [3.0]


def test_jit_3_leaves_what_a_plain_run_leaves_when_that_fails():
    program = Program(KeyError, jit=True)
    program.run([""] * 3)
    plain = Program(KeyError, jit=False)
    plain.run([""] * 3)
    for p in (program, plain):
        y, p.fails = Tensor(numbers(4, seed=9)).realize(), "computed"
        with Context(JIT=3), pytest.raises(KeyError):
            p.step(Tensor(numbers(4, seed=77)).realize(), y)
        p.kept = y
    np.testing.assert_array_equal(program.state.numpy(), plain.state.numpy())
    np.testing.assert_array_equal(program.kept.numpy(), plain.kept.numpy())
