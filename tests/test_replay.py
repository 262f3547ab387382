"""Replays as one native call: what is quick, what is left to Python, and both mean the same."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import weakref
from dataclasses import dataclass

import numpy as np
import pytest

from tiny import Tensor, TinyJit, Variable
from tiny._core.alive import owners
from tiny._core.replay import MISS, quick
from tiny.device import Device
from tiny.engine.jit import JitError
from tiny.helpers import Context, GlobalCounters
from tiny.storage import live_views


def made(*shape: int, seed: int = 0) -> Tensor:
    """A tensor in memory of its own."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return Tensor(values).realize()


def captured(function, *args, **kwargs) -> TinyJit:
    """A function that is captured for these arguments."""
    jit = TinyJit(function)
    for _ in range(2):
        jit(*args, **kwargs)
    return jit


def is_quick(jit: TinyJit, *args, **kwargs) -> bool:
    """Whether a call is replayed by native code. It runs."""
    return quick(jit._reader, jit._table.steps, args, kwargs) is not MISS


def python_calls(function) -> int:
    """How many Python functions a call runs, itself left out."""
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("inputs, kernels", [(1, 1), (8, 1), (1, 8), (30, 5)])
def test_a_replay_is_two_python_calls_whatever_it_does(inputs, kernels):
    def step(xs, scale=2.0):
        y = sum(xs[1:], xs[0]) * scale
        for _ in range(kernels - 1):
            y = (y + 1).contiguous()
        return y.realize()

    xs = [made(4, 4, seed=k) for k in range(inputs)]
    f = captured(step, xs)
    want = f(xs).numpy()
    with Context(POISON=0):  # which spoils memory from Python
        f(xs)  # the settings are read anew after a change of them
        assert python_calls(lambda: f(xs)) == 2  # this lambda, and the jit
    np.testing.assert_array_equal(f(xs).numpy(), want)
    np.testing.assert_allclose(want, sum(x.numpy() for x in xs) * 2 + kernels - 1, rtol=1e-5)


@pytest.mark.parametrize("poison", [0, 1])
def test_replays_keep_nothing_and_take_the_memory_of_results_that_are_gone(poison):
    x = made(64)
    f = captured(lambda x: (x + 1).realize(), x)
    with Context(POISON=poison):
        _check_memory_of_replays(f, x)


def _check_memory_of_replays(f, x):
    y = f(x)
    before = GlobalCounters.mem_used
    addresses = {y.uop.handle.memory.address}
    y = f(x)
    addresses.add(y.uop.handle.memory.address)
    kept, alive = Device["CPU"].allocator.kept, len(live_views())
    objects = len(gc.get_objects())
    for _ in range(100):
        y = f(x)
    assert GlobalCounters.mem_used == before and y.uop.handle.memory.address in addresses
    assert Device["CPU"].allocator.kept == kept and len(live_views()) == alive
    assert len(gc.get_objects()) <= objects + 2


@pytest.mark.parametrize("poison", [0, 1])
def test_results_that_are_held_are_of_memory_of_their_own(poison):
    x = made(8)
    f = captured(lambda x: (x + 1, x * 2), x)
    assert is_quick(f, x)
    with Context(POISON=poison):
        results = [t for _ in range(20) for t in f(x)]
    assert len({t.uop.handle.memory.address for t in results}) == 40
    results[0].assign(results[0] * 0).realize()
    for a, b in zip(results[2::2], results[3::2], strict=True):
        np.testing.assert_array_equal(a.numpy(), x.numpy() + 1)
        np.testing.assert_array_equal(b.numpy(), x.numpy() * 2)


def test_results_are_tensors_like_others():
    x = made(4, 6)
    f = captured(lambda x: {"a": (x + 1).reshape(6, 4).T, "b": [x.sum()]}, x)
    assert is_quick(f, x)
    found = f(x)
    want = (x.numpy() + 1).reshape(6, 4).T
    assert found["a"].shape == (4, 6) and found["a"].device == "CPU" and found["a"].grad is None
    np.testing.assert_array_equal(found["a"].numpy(), want)
    np.testing.assert_allclose(found["b"][0].item(), x.numpy().sum(), rtol=1e-5)
    found["a"][0] = 7  # through the view, to the memory of this result
    want[0] = 7
    np.testing.assert_array_equal(found["a"].numpy(), want)
    assert owners.get(found["a"]._storage.node) is found["a"]._storage
    y = f(x)["a"].detach()
    y.requires_grad = True
    (y * y).sum().backward()
    np.testing.assert_allclose(y.grad.numpy(), 2 * y.numpy(), rtol=1e-6)


@dataclass
class Pair:
    """Two tensors."""

    a: Tensor
    b: Tensor


def test_calls_are_told_apart_as_ever():
    def step(x, n=1, *, more=None):
        y = x.a * 2 - x.b if isinstance(x, Pair) else x + n
        return (y if more is None else y * more["scale"]).realize()

    x, y = made(3), made(3, seed=1)
    calls = [
        ((x,), {}),
        ((x, 1), {}),
        ((x, 1.0), {}),
        ((x, True), {}),
        ((made(1, 3),), {}),
        ((Tensor([1, 2, 3]).realize(),), {}),
        ((x,), {"more": {"scale": y}}),
        ((x,), {"more": {"scale": 2.5}}),
        ((Pair(x, y),), {}),
        ((Pair(y, x),), {}),
    ]
    f = TinyJit(step)
    for _ in range(4):
        for args, kwargs in calls:
            got, want = f(*args, **kwargs), step(*args, **kwargs)
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_array_equal(got.numpy(), want.numpy())
    assert all(is_quick(f, *args, **kwargs) for args, kwargs in calls)
    assert not is_quick(f, x, 3) and not is_quick(f, made(4)) and not is_quick(f, x, [1])


SCALE = 1.0


def test_values_around_the_function_are_looked_at_in_each_call():
    global SCALE
    offset = 1
    f = TinyJit(lambda x: (x * SCALE + offset).realize())
    x = made(3)
    for scale, shift in [(1.0, 1), (2.0, 1), (1.0, 2), (1.0, 1)] * 3:
        SCALE, offset = scale, shift
        np.testing.assert_allclose(f(x).numpy(), x.numpy() * scale + shift, rtol=1e-6)
    assert len(f.captures) == 3
    for _ in range(3):
        with Context(STRICT_REDUCE=1):
            f(x)
    assert len(f.captures) == 4


def test_views_and_tensors_that_are_one_are_left_to_python_and_right():
    a, b = made(4, 4), made(4, 4, seed=1)
    f = captured(lambda x, y: (x * 2 - y).realize(), a, b)
    assert is_quick(f, a, b)
    for x, y in [
        (a, a),
        (a.T, b),
        (a, b[:]),
        (a.reshape(2, 8)[:, :].reshape(4, 4), b),
        (a.flip(0), b),
    ]:
        for _ in range(3):
            np.testing.assert_allclose(f(x, y).numpy(), x.numpy() * 2 - y.numpy(), rtol=1e-6)
    c, d = made(8), Tensor(np.zeros(8, np.float32)).realize()
    g = captured(lambda x, y: (x * 2 - y).realize(), c, d)
    for x, y in [(c[:4], c[4:]), (c[:4], c[2:6]), (c[::2], d[:4])]:
        for _ in range(3):
            np.testing.assert_allclose(g(x, y).numpy(), x.numpy() * 2 - y.numpy(), rtol=1e-6)


def test_writes_that_are_pending_and_values_that_read_are_carried_out_first():
    weight, x = made(4), made(4, seed=1)
    f = captured(lambda x: (x * weight).realize(), x)
    for k in range(3):
        weight.assign(weight * 0 + k)
        np.testing.assert_array_equal(f(x).numpy(), x.numpy() * k)
        x.assign(x + 1)  # of an argument
        np.testing.assert_array_equal(f(x).numpy(), x.numpy() * k)
    counter = Tensor([0.0]).realize()
    g = captured(lambda x: counter.assign(counter + x.sum()).realize(), x)
    before = counter + 0  # the value of now, wanted later
    now = counter.item()
    g(x)
    assert before.item() == now and counter.item() != now


def test_a_tensor_that_was_replaced_is_noticed():
    box = {"w": made(3)}
    x = made(3, seed=1)
    weight = box["w"]
    f = captured(lambda x: (x * weight).realize(), x)
    assert is_quick(f, x)
    weight.replace(made(3, seed=2))
    assert not is_quick(f, x)
    np.testing.assert_array_equal(f(x).numpy(), x.numpy() * weight.numpy())


def test_an_argument_that_is_written_elsewhere_is_refused():
    state, x = made(3), made(3, seed=1)
    f = captured(lambda x: state.assign(state + x).realize(), x)
    f(x)
    assert not is_quick(f, state)
    with pytest.raises(JitError, match="shares memory"):
        f(state)


def test_variables_and_random_numbers_go_on():
    x = made(10)
    n = Variable("n", 1, 10)
    f = TinyJit(lambda x, n: (x * n).realize())
    for value in (3, 5, 7, 9):
        np.testing.assert_allclose(f(x, n.bind(value)).numpy(), x.numpy() * value, rtol=1e-6)
    assert len(f.captures) == 1 and is_quick(f, x, n.bind(2))
    g = TinyJit(lambda x: (x + Tensor.rand(10)).realize())
    Tensor.manual_seed(3)
    got = [g(x).numpy() for _ in range(5)]
    assert is_quick(g, x)
    Tensor.manual_seed(3)
    for values in got:
        np.testing.assert_array_equal(values, (x + Tensor.rand(10)).numpy())


def test_levels_of_jit_and_debug_are_obeyed(capsys):
    x = made(3)
    ran = []
    f = captured(lambda x: (ran.append(1), (x + 1).realize())[1], x)
    assert is_quick(f, x)
    ran.clear()
    for jit, runs in ((0, 1), (2, 0), (3, 1), (1, 0)):
        with Context(JIT=jit):
            assert is_quick(f, x) == (jit == 1)
            np.testing.assert_array_equal(f(x).numpy(), x.numpy() + 1)
        assert len(ran) == runs
        ran.clear()
    with Context(DEBUG=2):
        f(x)
    assert capsys.readouterr().out.count("***") == 1
    GlobalCounters.reset()
    f(x)
    assert GlobalCounters.kernel_count == 1 and GlobalCounters.global_mem > 0


def test_settings_are_those_of_the_thread_that_calls():
    x = made(3)
    f = captured(lambda x: (x + 1).realize(), x)
    found = []
    with Context(JIT=0):
        thread = threading.Thread(target=lambda: found.append(is_quick(f, x)))
        thread.start()
        thread.join()
        assert found == [True] and not is_quick(f, x)
    assert is_quick(f, x)


def test_threads_replay_one_step_at_once():
    x = made(100)
    total = Tensor([0.0]).realize()
    f = captured(lambda x: (x * 2 + 1).realize(), x)
    g = captured(lambda x: total.assign(total + 1).realize(), x)
    start, wrong = total.item(), []

    def work(seed):
        mine = made(100, seed=seed)
        for _ in range(200):
            if not np.array_equal(f(mine).numpy(), mine.numpy() * 2 + 1):
                wrong.append(seed)
            g(mine)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and total.item() == start + 800


def test_a_capture_in_another_thread_does_not_see_replays():
    x = made(4)
    f = captured(lambda x: (x + 1).realize(), x)
    inside, go_on, results = threading.Event(), threading.Event(), []

    def slow(x):
        inside.set()
        assert go_on.wait(60)
        return (x * 3).realize()

    g = TinyJit(slow)
    go_on.set()
    g(x)
    go_on.clear(), inside.clear()
    thread = threading.Thread(target=lambda: results.append(g(x).numpy()))
    thread.start()
    assert inside.wait(60)
    assert not is_quick(f, x)
    np.testing.assert_array_equal(f(x).numpy(), x.numpy() + 1)
    go_on.set()
    thread.join()
    np.testing.assert_array_equal(results[0], x.numpy() * 3)
    assert is_quick(f, x) and is_quick(g, x)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_a_signal_finds_all_written_or_nothing():
    x, state = made(256), Tensor(np.zeros(256, np.float32)).realize()
    f = captured(lambda x: state.assign(state + 1).realize(), x)
    hits = done = 0

    def steps():
        nonlocal done
        while hits < 20 and done < 200_000:
            f(x)
            done += 1

    def handler(_, frame):
        nonlocal hits
        while frame is not None and frame.f_code is not steps.__code__:
            frame = frame.f_back
        if frame is None:  # nobody would catch it here
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            return
        hits += 1
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    start = state.numpy()[0]
    try:
        while hits < 20 and done < 200_000:
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            with contextlib.suppress(KeyboardInterrupt):
                steps()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits
    values = state.numpy()
    assert (values == values[0]).all() and values[0] - start >= done


def test_captures_go_with_their_function():
    x = made(4)
    f = captured(lambda x: (x + 1).realize(), x)
    assert is_quick(f, x)
    capture = weakref.ref(f.captures[0])
    gc.disable()
    try:
        del f
        assert capture() is None
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_replays_too():
    x = made(1000)
    f = captured(lambda x: (x * 2).realize(), x)
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(f(x).numpy(), x.numpy() * 2) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_who_owns_memory_is_forgotten_with_the_owner():
    x = made(3)
    buffer, count = x.uop, len(owners)
    assert owners.get(buffer) is x._storage and buffer in owners
    assert owners.pop(buffer) is x._storage and owners.get(buffer) is None
    assert owners.setdefault(buffer, x._storage) is x._storage and len(owners) == count
    del x
    assert owners.get(buffer) is None and len(owners) == count - 1


def test_a_closure_may_be_replaced_while_it_is_read():
    scale = 1.5
    sizes = (scale, 2.5)  # no constant of the code, which would keep it

    def replace(frame, event, arg):  # as another thread could
        nonlocal sizes
        if event == "return" and frame.f_code.co_name == "_is_plain_tuple":
            sizes = (7.5, 1.0)
            fill.extend((object(), object()) for _ in range(3))  # where the old one lay

    x, fill = made(4), []
    f = captured(lambda x: (x * sizes[0]).realize(), x)
    sys.setprofile(replace)
    try:
        found = f(x)
    finally:
        sys.setprofile(None)
    assert fill
    first = x.numpy()
    assert any(np.array_equal(found.numpy(), first * np.float32(k)) for k in (1.5, 7.5))
