"""Whatever is raised in the middle, by the handler of a signal say, tensors are whole."""

import random
import signal
import sys
import threading
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import tiny
from conftest import FULL, examples
from tiny import Tensor, TinyJit
from tiny.helpers import Context
from tiny.schedule.schedule import forget_schedules

HOME = str(Path(tiny.__file__).parent)


class Stop(BaseException):
    """What is raised in the middle of things. Not an Exception, as KeyboardInterrupt is none."""


# ---------------------------------------------------------------- raising at a line


class RaiseAtLine:
    """Raises at the n-th line of the package that runs in its body, and counts the lines."""

    _is_with: ClassVar[dict[tuple[str, int], bool]] = {}

    def __init__(self, n):
        self.left, self.lines, self.where = n, 0, ""

    def __enter__(self):
        sys.settrace(self._enter_frame)
        return self

    def __exit__(self, *exc):
        sys.settrace(None)

    def _enter_frame(self, frame, event, arg):
        return self._line if frame.f_code.co_filename.startswith(HOME) else None

    def _line(self, frame, event, arg):
        if event == "line" and not self._leaves_with(frame):
            self.lines += 1
            if self.lines == self.left:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                raise Stop(self.where)
        return self._line

    def _leaves_with(self, frame):
        """Whether a `with` may be about to release its lock: no signal is handled there."""
        key = frame.f_code.co_filename, frame.f_lineno
        if key not in self._is_with:
            line = Path(key[0]).read_text().splitlines()[key[1] - 1]
            self._is_with[key] = line.strip().startswith("with ")
        return self._is_with[key]


class Scene:
    """Tensors, what is done with them, and what must be in them afterwards.

    `act` is what is interrupted. `check` holds if all that was written before `act` counts once,
    whatever became of `act`.
    """

    def __init__(self, device="CPU"):
        self.device = device
        self.numbers = np.arange(12, dtype=np.float32).reshape(3, 4)
        self.w = Tensor(self.numbers, device=device).realize()

    def act(self):
        raise NotImplementedError

    def check(self):
        raise NotImplementedError


class PendingWrites(Scene):
    """Writes, through a view too, and values that read what they overwrite."""

    def __init__(self, device="CPU"):
        super().__init__(device)
        w = self.w
        self.row = w[1]
        self.before = w * 2 + 1
        self.old_row = self.row + 0
        w += 1
        self.middle = w.sum(0)
        self.row.assign(self.row + 10)
        self.after = w.T.contiguous()
        self.total = w.sum()

    def act(self):
        Tensor.realize(self.total, self.w)

    def check(self):
        first = self.numbers + 1
        last = first.copy()
        last[1] += 10
        same(self.total, last.sum())
        same(self.before, self.numbers * 2 + 1)
        same(self.after, last.T)
        same(self.w, last)
        same(self.row, last[1])
        same(self.middle, first.sum(0))
        same(self.old_row, self.numbers[1])


class SharedValues(Scene):
    """Results that share nodes, memory and views; one is written afterwards."""

    def __init__(self, device="CPU"):
        super().__init__(device)
        self.a = (self.w + 1).T
        self.b = (self.w + 1).T
        self.part = self.a[1:3]

    def act(self):
        Tensor.realize(self.a)
        Tensor.realize(self.b, self.part)

    def check(self):
        value = (self.numbers + 1).T
        self.b += 5
        same(self.a, value)
        same(self.part, value[1:3])
        same(self.b, value + 5)
        self.part += 1
        value = value.copy()
        value[1:3] += 1
        same(self.a, value)
        same(self.b, (self.numbers + 1).T + 5)


class Swap(Scene):
    """Two buffers change places: the old version of one is kept in a copy."""

    def __init__(self, device="CPU"):
        super().__init__(device)
        self.v = Tensor(self.numbers * 3, device=device).realize()
        old = self.w + 0
        self.w.assign(self.v)
        self.v.assign(old)

    def act(self):
        self.w.realize(self.v)

    def check(self):
        same(self.w, self.numbers * 3)
        same(self.v, self.numbers)


class Building(Scene):
    """A statement in place is interrupted: it counts once or not at all."""

    def __init__(self, device="CPU"):
        super().__init__(device)
        self.copy = self.w.clone().realize()
        self.reader = self.w + 0
        self.view = self.w[:, 1]
        self.steps = 0

    def act(self):
        self.w += 1
        self.steps = 1
        self.view.assign(self.view * 2)
        self.steps = 2
        self.w.replace(self.w.detach())
        self.copy.assign(self.w)

    def check(self):
        got = self.w.numpy()
        states = [self.numbers, self.numbers + 1, self.numbers + 1]
        states[2] = states[2].copy()
        states[2][:, 1] *= 2
        possible = states[self.steps : self.steps + 2]
        assert any(np.array_equal(got, s) for s in possible), got
        same(self.view, got[:, 1])
        same(self.reader, self.numbers)
        assert np.array_equal(self.copy.numpy(), got) or np.array_equal(
            self.copy.numpy(), self.numbers
        )


class Replayed(Scene):
    """A captured step that writes to memory of its own and to its argument."""

    jits: ClassVar[dict[str, TinyJit]] = {}
    states: ClassVar[dict[str, Tensor]] = {}

    def __init__(self, device="CPU"):
        super().__init__(device)
        if device not in self.jits:
            state = self.states[device] = Tensor(self.numbers, device=device).realize()

            def step(x):
                state.assign(state + x)
                x.assign(x * 2)
                return state.sum(1)

            self.jits[device] = TinyJit(step)
            for _ in range(3):
                self.jits[device](Tensor(self.numbers, device=device).realize())
        self.state = self.states[device]
        self.before = self.state.numpy()
        self.result = None

    def act(self):
        self.result = self.jits[self.device](self.w)

    def check(self):
        steps = (self.state.numpy() - self.before)[0, 1] / self.numbers[0, 1]
        assert steps in (0, 1)
        same(self.state, self.before + steps * self.numbers)
        same(self.w, self.numbers * (2 if steps else 1))
        if self.result is not None:
            assert steps == 1
            same(self.result, (self.before + self.numbers).sum(1))


SCENES = [PendingWrites, SharedValues, Swap, Building, Replayed]


def same(tensor, expected):
    np.testing.assert_array_equal(tensor.numpy(), expected)


def lines_of(scene, device="CPU"):
    counter = RaiseAtLine(0)
    made = scene(device)
    with counter:
        made.act()
    made.check()
    return counter.lines


def interrupt_at_line(scene, n, device="CPU"):
    made = scene(device)
    raising = RaiseAtLine(n)
    try:
        with raising:
            made.act()
    except Stop:
        assert raising.where
    try:
        made.check()
    except AssertionError as e:
        raise AssertionError(f"{scene.__name__}, raised at line {n}, {raising.where}: {e}") from e


@pytest.mark.parametrize("scene", SCENES)
def test_raising_at_any_line_leaves_tensors_whole(scene):
    lines_of(scene)  # compiled by now
    count = lines_of(scene)
    some = range(1, count + 1)
    if not FULL:
        some = sorted(random.Random(1).sample(some, min(count, 150)))
    for n in some:
        interrupt_at_line(scene, n)


@pytest.mark.parametrize("scene", SCENES[:3])
def test_raising_while_scheduling_leaves_tensors_whole(scene):
    forget_schedules()
    count = lines_of(scene)
    for n in random.Random(2).sample(range(1, count + 1), min(count, examples(1000, 20))):
        forget_schedules()
        interrupt_at_line(scene, n)


@pytest.mark.parametrize("scene", SCENES[:3])
def test_raising_between_the_steps_of_an_interpreter_leaves_tensors_whole(scene):
    # there Python runs between kernels, and in them
    lines_of(scene, "PYTHON")
    count = lines_of(scene, "PYTHON")
    for n in random.Random(3).sample(range(1, count + 1), min(count, examples(3000, 60))):
        interrupt_at_line(scene, n, "PYTHON")


def test_raising_between_the_lines_of_debug_leaves_tensors_whole(capsys):
    with Context(DEBUG=2):
        count = lines_of(PendingWrites)
        for n in random.Random(4).sample(range(1, count + 1), min(count, examples(3000, 60))):
            interrupt_at_line(PendingWrites, n)


# ---------------------------------------------------------------- raising in a signal's handler


class RaiseAfter:
    """Raises from the handler of a timer's signal, so many seconds after its body began."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.is_armed = False

    def _handle(self, number, frame):
        if self.is_armed:
            self.is_armed = False
            raise Stop

    def __enter__(self):
        self.before = signal.signal(signal.SIGALRM, self._handle)
        self.is_armed = True
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *exc):
        self.is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)


pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers by signal")


@pytest.mark.parametrize("scene", SCENES)
def test_a_signal_at_any_moment_leaves_tensors_whole(scene):
    lines_of(scene)
    rng, raised = random.Random(5), 0
    for _ in range(examples(1000, 60)):
        made = scene()
        try:
            with RaiseAfter(rng.uniform(1e-6, 1.5e-3)):
                made.act()
        except Stop:
            raised += 1
        made.check()
    assert raised


def test_a_loop_of_training_steps_interrupted_again_and_again():
    w = Tensor.zeros(1000).contiguous().realize()
    rng, steps, raised = random.Random(6), 0, 0
    for _ in range(examples(500, 60)):
        try:
            with RaiseAfter(rng.uniform(1e-6, 5e-3)):
                for _ in range(5):
                    w += 1
                    w.realize()
        except Stop:
            raised += 1
        now = w.numpy()
        assert (now == now[0]).all() and steps <= now[0] <= steps + 5
        steps = now[0]
    assert raised


def test_a_signal_in_another_threads_way_is_kept_for_the_main_thread():
    # handlers run in the main thread; what a thread computes is not interrupted
    wrong, computed = [], []

    def work():
        for k in range(30):
            t = Tensor(np.full(100, k, np.float32))
            t += 1
            if not (t.numpy() == k + 1).all():
                wrong.append(k)
            computed.append(k)

    def guarded():
        try:
            work()
        except BaseException as e:
            wrong.append(repr(e))
        finally:
            done.set()

    # not `join`: when a handler raises in it, Python 3.11 takes the thread for ended
    done = threading.Event()
    thread = threading.Thread(target=guarded)
    raised = 0
    thread.start()
    while not done.is_set():
        try:
            with RaiseAfter(1e-3):
                done.wait(0.01)
        except Stop:
            raised += 1
    thread.join()
    assert not wrong and raised and len(computed) == 30
