"""Threads that build, compute, write and capture at once, and children forked in between."""

import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback

import numpy as np
import pytest

from conftest import examples
from tiny import Tensor, TinyJit
from tiny.device import Device
from tiny.engine.realize import forget_kernels
from tiny.helpers import GlobalCounters
from tiny.schedule.schedule import forget_schedules

THREADS = 8


@pytest.fixture(autouse=True)
def many_switches():
    """Threads take turns after every few bytecodes, and a deadlock ends the test run."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    import faulthandler

    faulthandler.dump_traceback_later(600, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
    sys.setswitchinterval(before)


def in_threads(work, count=THREADS):
    """Run `work(k)` in so many threads; what it returns, by k. What one raises is raised here."""
    results, errors = [None] * count, []

    def guarded(k):
        try:
            results[k] = work(k)
        except BaseException:
            errors.append(f"thread {k}: {traceback.format_exc()}")

    threads = [threading.Thread(target=guarded, args=(k,), daemon=True) for k in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(500)
    assert not any(t.is_alive() for t in threads), "a thread hangs"
    assert not errors, errors[0]
    return results


class Program:
    """A random program of small integers, so that its results are exact: run beside NumPy.

    `shared` are tensors that several threads read, and none writes.
    """

    def __init__(self, seed, shared=()):
        self.rng = random.Random(seed)
        self.tensors, self.arrays = [], []
        for tensor, array in shared:
            self.keep(tensor, array)
        self.frozen = len(self.tensors)
        for _ in range(3):
            array = self.numbers(4, 5)
            self.keep(Tensor(array), array.copy())

    def numbers(self, *shape):
        values = [self.rng.randrange(-4, 5) for _ in range(int(np.prod(shape)))]
        return np.array(values, np.float32).reshape(shape)

    def keep(self, tensor, array):
        self.tensors.append(tensor)
        self.arrays.append(array)

    def pick(self, writable=False):
        return self.rng.randrange(self.frozen if writable else 0, len(self.tensors))

    def small(self, k):
        """Keep values small enough to be exact in float32."""
        if np.abs(self.arrays[k]).max() > 1000:
            array = self.numbers(4, 5)
            self.tensors[k], self.arrays[k] = Tensor(array), array.copy()

    def step(self):
        kind = self.rng.choice(["add", "mul", "write", "row", "read", "matmul", "realize", "sum"])
        a, b, w = self.pick(), self.pick(), self.pick(writable=True)
        t, n = self.tensors, self.arrays
        if kind == "add":
            self.keep(t[a] + t[b], n[a] + n[b])
        elif kind == "mul":
            self.keep(t[a] * 2 - 1, n[a] * 2 - 1)
        elif kind == "write":
            t[w].assign(t[w] + t[a])
            n[w][:] = n[w] + n[a]
        elif kind == "row":
            k = self.rng.randrange(4)
            t[w][k].assign(t[w][k] + 3)
            n[w][k] += 3
        elif kind == "matmul":
            self.keep((t[a] @ t[b].T @ t[a]) * 0 + t[b], n[b].copy())
        elif kind == "realize":
            t[a].realize(t[b])
        elif kind == "sum":
            assert t[a].sum().item() == n[a].sum()
        else:
            np.testing.assert_array_equal(t[a].numpy(), n[a])
        if len(t) > 12:
            del t[self.frozen], n[self.frozen]
        for k in range(self.frozen, len(t)):
            self.small(k)

    def run(self, steps):
        for _ in range(steps):
            self.step()
        for tensor, array in zip(self.tensors, self.arrays, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), array)


def test_programs_in_threads_compute_what_numpy_does():
    arrays = [np.arange(20, dtype=np.float32).reshape(4, 5) - k for k in range(3)]
    pending = [(Tensor(a) + 1, a + 1) for a in arrays]

    def work(k):
        for n in range(examples(400, 12)):
            Program(1000 * k + n, pending).run(25)

    in_threads(work)


def test_threads_write_to_one_tensor_in_turns():
    total = Tensor.zeros(100).contiguous().realize()
    turns = threading.Lock()

    def work(k):
        for _ in range(examples(200, 30)):
            with turns:
                total.assign(total + 1)
            if k % 2:
                total.realize()

    in_threads(work)
    assert (total.numpy() == THREADS * examples(200, 30)).all()


def test_threads_that_fill_the_caches_compile_each_kernel_rightly():
    forget_schedules()
    forget_kernels()

    def work(k):
        for n in range(1, examples(60, 8)):
            x = np.arange(n + 2, dtype=np.float32)
            assert ((Tensor(x) + n) * 3).sum().item() == ((x + n) * 3).sum()

    in_threads(work)


def test_threads_capture_and_replay_their_own_and_each_others_steps():
    w = np.arange(16, dtype=np.float32).reshape(4, 4) % 5
    weights = Tensor(w).realize()
    common = TinyJit(lambda x: (x @ weights).relu())

    def work(k):
        state = Tensor.zeros(4, 4).contiguous().realize()
        own = TinyJit(lambda x: state.assign(state + x).sum())
        expected = np.zeros((4, 4), np.float32)
        for n in range(examples(300, 25)):
            x = np.full((4, 4), n % 7 - k % 3, np.float32)
            expected += x
            assert own(Tensor(x)).item() == expected.sum()
            np.testing.assert_array_equal(common(Tensor(x).realize()).numpy(), np.maximum(x @ w, 0))
            if n % 10 == 9:
                own.reset()
        np.testing.assert_array_equal(state.numpy(), expected)

    in_threads(work)


def test_counters_are_right_after_threads():
    import gc

    gc.collect()
    used, kernels = GlobalCounters.mem_used, GlobalCounters.kernel_count

    def work(k):
        for n in range(examples(500, 40)):
            (Tensor(np.full(64 * (n % 5 + 1), k, np.float32)) + 1).realize()

    in_threads(work)
    gc.collect()
    assert GlobalCounters.mem_used == used
    assert GlobalCounters.kernel_count - kernels == THREADS * examples(500, 40)


# ---------------------------------------------------------------- children

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def in_child(work, seconds=120):
    """Run `work` in a forked child, which is ended if it hangs; what it raises is raised here."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code, text = 1, b""
        try:
            os.close(read)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            work()
            code = 0
        except BaseException:
            text = traceback.format_exc().encode()
        finally:
            os.write(write, text[-4000:])
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"child ended with status {status}: {text or 'it hung or crashed'}"


def compute_all_kinds(seed):
    """Known and new kernels, writes, captures, threads: whatever a program may do."""
    Program(seed).run(30)
    n = 300 + seed % 100
    big = np.ones((n, 300), np.float32)
    assert (Tensor(big) @ Tensor(big.T)).sum().item() == 300.0 * n * n
    state = Tensor.zeros(4).contiguous().realize()
    step = TinyJit(lambda x: state.assign(state + x).sum())
    for k in range(4):
        assert step(Tensor.ones(4).contiguous().realize()).item() == 4.0 * (k + 1)
    in_threads(lambda k: Program(seed + k).run(10), 2)


@needs_fork
def test_a_child_and_its_child_compute():
    a = np.arange(10, dtype=np.float32)
    t = Tensor(a)
    pending = t * 2
    t += 1

    def grandchild():
        np.testing.assert_array_equal(t.numpy(), a + 1)
        compute_all_kinds(2)

    def child():
        np.testing.assert_array_equal(pending.numpy(), a * 2)
        np.testing.assert_array_equal(t.numpy(), a + 1)
        compute_all_kinds(1)
        in_child(grandchild)

    in_child(child)
    np.testing.assert_array_equal(pending.numpy(), a * 2)  # here too
    compute_all_kinds(3)


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_children_forked_while_threads_are_busy_compute():
    stop = threading.Event()
    w = Tensor(np.zeros((64, 64), np.float32)).realize()
    counted = TinyJit(lambda: w.assign(w + 1).sum())

    def build():
        n = 0
        while not stop.is_set():
            Program(n).run(10)
            n += 1

    def compile_anew():
        while not stop.is_set():
            forget_schedules()
            forget_kernels()
            (Tensor(np.ones(random.randrange(2, 999), np.float32)) + 1).sum().item()

    def replay():
        while not stop.is_set():
            counted()

    threads = [threading.Thread(target=f, daemon=True) for f in (build, compile_anew, replay)]
    for t in threads:
        t.start()

    def child():
        now = w.numpy()
        assert (now == now[0, 0]).all()  # no thread was in the middle of writing it
        before = now[0, 0]
        assert counted().item() == (before + 1) * 64 * 64
        compute_all_kinds(7)

    try:
        for k in range(examples(100, 6)):
            time.sleep(0.01 * (k % 3))
            in_child(child)
    finally:
        stop.set()
        for t in threads:
            t.join(60)


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_while_a_thread_holds_locks_waits_for_it():
    from tiny import storage
    from tiny.engine import realize
    from tiny.runtime import cpu
    from tiny.schedule import schedule

    for lock in (
        storage._turn,
        realize._kernels._lock,
        schedule._cache._lock,
        cpu._llvm_lock,
        Device._lock,
    ):
        held, let_go = threading.Event(), threading.Event()

        def hold(lock=lock, held=held, let_go=let_go):
            with lock:
                held.set()
                let_go.wait(10)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(10)
        threading.Timer(0.05, let_go.set).start()
        in_child(lambda: compute_all_kinds(11))
        assert let_go.is_set()
        thread.join(10)


def _doubled(t):
    return (t * 2 + 1).realize()


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_pool_of_processes_maps_over_tensors():
    given = [Tensor(np.arange(k + 1, dtype=np.float32)) for k in range(12)]
    _doubled(given[0])
    with multiprocessing.get_context("fork").Pool(2) as pool:
        got = pool.map(_doubled, given)
    for before, after in zip(given, got, strict=True):
        np.testing.assert_array_equal(after.numpy(), before.numpy() * 2 + 1)


def test_pending_tensors_pickle_by_value():
    t = Tensor(np.arange(6, dtype=np.float32)).reshape(2, 3)
    pending = t.T + 1
    t += 1
    again, view = pickle.loads(pickle.dumps((pending, t)))
    np.testing.assert_array_equal(again.numpy(), np.arange(6).reshape(2, 3).T + 1)
    view += 1
    np.testing.assert_array_equal(t.numpy(), np.arange(6).reshape(2, 3) + 1)
