"""Timing in turns: of functions in one process, and of cases in processes of their own."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass
class Times:
    """Measurements of one thing, in nanoseconds and in the order in which they were taken."""

    samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle one: what to report."""
        return statistics.median(self.samples)

    @property
    def min(self) -> float:
        """The least disturbed one."""
        return min(self.samples)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a part of the median."""
        if len(self.samples) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (third - first) / 2 / self.median


def ratio(slow: Times, fast: Times) -> float:
    """How many times faster `fast` is: the median over the rounds of slow / fast.

    The two of one round ran next to each other, so what slowed one slowed the other.
    """
    if len(slow.samples) != len(fast.samples):
        raise ValueError(
            f"ratio: {len(slow.samples)} and {len(fast.samples)} measurements are of different "
            "runs; time both in one"
        )
    return statistics.median(a / b for a, b in zip(slow.samples, fast.samples, strict=True))


# ---------------------------------------------------------------- in one process


def alternate(
    functions: Mapping[str, Callable[[], object]], rounds: int = 7, min_ns: float = 2e6
) -> dict[str, Times]:
    """Time functions in turns; nanoseconds a call.

    Each is called as often in a row as fills `min_ns`, `rounds` times. Every other round goes
    through them backwards, so that none always follows the same other.
    """
    calls: dict[str, int] = {}
    for name, function in functions.items():
        calls[name] = 1
        while (took := _time_calls(function, calls[name])) < min_ns:
            # a first call may be slow, so go up in steps
            calls[name] *= max(2, min(10, int(min_ns / max(took, 1))))
    times = {name: Times() for name in functions}
    for round_ in range(rounds):
        for name in list(functions)[:: -1 if round_ % 2 else 1]:
            took = _time_calls(functions[name], calls[name])
            times[name].samples.append(took / calls[name])
    return times


def alternate_prepared(
    cases: Mapping[str, tuple[Callable[[], T], Callable[[T], object]]], rounds: int = 7
) -> dict[str, Times]:
    """Time what can be done only once to an object: (prepare, run) pairs, in turns.

    Each time `prepare` makes a new object, then `run` is timed on it; what `run` returns lives
    until the clock has stopped.
    """
    times = {name: Times() for name in cases}
    for round_ in range(-1, rounds):  # round -1 warms up
        for name in list(cases)[:: -1 if round_ % 2 else 1]:
            prepare, run = cases[name]
            gc.collect()  # not after the next line: it would leave the caches cold
            prepared = prepare()
            gc.freeze()  # a collection while timing looks only at what was made meanwhile
            start = time.perf_counter_ns()
            result = run(prepared)
            took = time.perf_counter_ns() - start
            gc.unfreeze()
            del result, prepared
            if round_ >= 0:
                times[name].samples.append(took)
    return times


def _time_calls(function: Callable[[], object], count: int) -> int:
    repeat = range(count)
    start = time.perf_counter_ns()
    for _ in repeat:
        function()
    return time.perf_counter_ns() - start


# ---------------------------------------------------------------- in processes of their own


@dataclass(frozen=True)
class Case:
    """What a process of its own times: `function` of a module, called with `arguments`.

    The module is given by name or as the path of its file. The function sets up and returns a
    step without arguments; what a step returns must be writable as JSON. `env` is added to the
    environment.
    """

    module: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Run:
    """What a process reported: the set-up, each step's time and each step's result.

    `failed` is what went wrong, if something did and the other cases were to go on.
    """

    setup_ns: float = 0.0
    failed: str | None = None
    steps: Times = field(default_factory=Times)
    results: list[Any] = field(default_factory=list)


def alternate_processes(
    cases: Mapping[str, Case],
    rounds: int = 10,
    timeout_s: float = 300.0,
    keep_going: bool = False,
) -> dict[str, Run]:
    """Run a step of each case in turn, `rounds` times; the first step is the first sample.

    Each case has one process, which runs `tiny.bench.worker` and loads the case's module, never
    the main program. Only one works at a time. RuntimeError carries what a process that failed
    wrote; TimeoutError if one step, or the set-up, takes longer than `timeout_s`. With
    `keep_going` such a case is left out from there on, and its run says why.
    """
    runs = {name: Run() for name in cases}
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(_worker(name, case, timeout_s))
            for name, case in cases.items()
        }

        def ask(name: str, request: str) -> dict[str, Any] | None:
            if runs[name].failed is not None:
                return None
            try:
                return workers[name](request)
            except (RuntimeError, TimeoutError) as error:
                if not keep_going:
                    raise
                runs[name].failed = str(error)
                return None

        for name in cases:
            if (answer := ask(name, "setup")) is not None:
                runs[name].setup_ns = answer["ns"]
        for round_ in range(rounds):
            for name in list(cases)[:: -1 if round_ % 2 else 1]:
                if (answer := ask(name, "step")) is not None:
                    runs[name].steps.samples.append(answer["ns"])
                    runs[name].results.append(answer["result"])
    return runs


@contextlib.contextmanager
def _worker(name: str, case: Case, timeout_s: float) -> Iterator[Callable[[str], dict[str, Any]]]:
    """A process for a case; gives the function that asks it and waits for the answer."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tiny.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **case.env},
            start_new_session=True,  # so that what it starts can be ended with it
        )
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def failed(what: str) -> str:
            log.seek(0)
            return f"case {name!r} ({case.module}: {case.function}) {what}\n{log.read()[-4000:]}"

        def ask(request: str) -> dict[str, Any]:
            with contextlib.suppress(BrokenPipeError):  # the missing answer tells
                stdin.write(request.encode() + b"\n")
                stdin.flush()
            if not select.select([stdout], [], [], timeout_s)[0]:
                kill(process)  # or it would disturb the others
                raise TimeoutError(failed(f"did not answer within {timeout_s:g} s"))
            line = stdout.readline()
            if not line:
                raise RuntimeError(failed(f"ended with status {process.wait()}"))
            answer: dict[str, Any] = json.loads(line)
            return answer

        try:
            ask(
                json.dumps(
                    {
                        "module": case.module,
                        "function": case.function,
                        "arguments": dict(case.arguments),
                    }
                )
            )
            yield ask
        finally:
            with contextlib.suppress(BrokenPipeError):
                stdin.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                kill(process)
            stdout.close()


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process of a session of its own, and all that it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


# ---------------------------------------------------------------- where the time goes


@dataclass(frozen=True)
class Stage:
    """Code that counts as one stage: files below a folder, or one function of them."""

    name: str
    path: str  # part of the file's path, as in "tiny/schedule/"
    function: str | None = None


def time_stages(
    function: Callable[[], object], stages: Sequence[Stage], interval_s: float = 0.001
) -> dict[str, float]:
    """Run a function; the seconds that it spent in each stage, and in "other".

    The calling thread's stack is sampled: a sample counts for the innermost frame that belongs
    to a stage, so shared code counts for who called it. A sample stands for the time since the
    one before, since native code can hold a sample up.
    """
    spent: dict[str, float] = defaultdict(float)
    watched, done = threading.get_ident(), threading.Event()

    def sample() -> None:
        last = time.perf_counter()
        while not done.wait(interval_s):
            frame = sys._current_frames().get(watched)
            now = time.perf_counter()
            spent[_stage_of(frame, stages)] += now - last
            last = now

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        function()
    finally:
        done.set()
        sampler.join()
    return dict(spent)


def _stage_of(frame: FrameType | None, stages: Sequence[Stage]) -> str:
    while frame is not None:
        path, name = Path(frame.f_code.co_filename).as_posix(), frame.f_code.co_name
        for stage in stages:
            if stage.path in path and stage.function in (None, name):
                return stage.name
        frame = frame.f_back
    return "other"
