"""Running the worker: a fresh process for each model, side and round, in turns, within limits."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny.bench.compiling.results import Outcome, Results, Side
from tiny.bench.compiling.worker import COUNTERS, PHASES
from tiny.bench.timing import kill

WORKER = Path(__file__).with_name("worker.py")
DEFINITIONS = Path(__file__).parents[1] / "models"
# Both compile for the CPU in the one process that is measured, and check no graphs against specs.
PLAIN = {"DEV": "CPU", "PARALLEL": "0", "SPEC": "0", "POISON": "0", "DEBUG": "0"}
NO_DISK_CACHE = {"CACHELEVEL": "0", "CCACHE": "0"}
LOOK_S = 0.1  # at the memory of a process

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Limits:
    """What a process may take, before it is ended and counts as failed."""

    seconds: float = 300.0
    memory_gb: float = 16.0


class WorkerFailed(Exception):
    """A worker gave no result: why, and in which phase."""

    def __init__(self, why: str, phase: str | None) -> None:
        super().__init__(why)
        self.why, self.phase = why, phase


class Runner:
    """Runs workers. What libraries cache on disk is in a folder of its own, which goes with it."""

    def __init__(self, limits: Limits, disk_caches: bool, definitions: Path | None = None) -> None:
        self.limits, self.disk_caches = limits, disk_caches
        self.definitions = definitions or DEFINITIONS
        self.folder = Path(tempfile.mkdtemp(prefix="tiny-bench-"))

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def env(self, side: Side) -> dict[str, str]:
        """The environment of a worker: the same for all but for what the side asks for."""
        env = {**os.environ, **PLAIN, **({} if self.disk_caches else NO_DISK_CACHE), **side.env}
        env["XDG_CACHE_HOME"] = str(self.folder)
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # by the first run, for all others
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [side.env.get("PYTHONPATH"), *sys.path]))
        env["PYTHONWARNINGS"] = "ignore"
        return env

    def run(
        self,
        side: Side,
        model: str,
        counter: str = "time",
        extra: str = "none",
        before: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """What one worker found. WorkerFailed if it fails or exceeds a limit."""
        command = [*before, sys.executable, "-P", str(WORKER), side.library]
        command += [str(self.definitions), model, counter, extra]
        seconds = seconds or self.limits.seconds
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**self.env(side), **(env or {})},
                start_new_session=True,  # so that what it starts can be ended with it
            )
            with _limited(process, seconds, self.limits.memory_gb) as exceeded:
                assert process.stdout is not None
                lines = []
                for line in process.stdout:
                    with contextlib.suppress(ValueError):
                        lines.append(json.loads(line))
                status = process.wait()
            phases = [line["phase"] for line in lines if "phase" in line]
            phase = phases[-1] if phases else None
            if exceeded:
                raise WorkerFailed(exceeded[0], phase)
            if status or not lines or "ns" not in lines[-1]:
                log.seek(0)
                last = [text for text in log.read().splitlines() if text.strip()][-1:]
                raise WorkerFailed(last[0] if last else f"ended with status {status}", phase)
            return dict(lines[-1])


@contextlib.contextmanager
def _limited(
    process: subprocess.Popen[bytes], seconds: float, memory_gb: float
) -> Iterator[list[str]]:
    """While a process is read from: end it when it exceeds a limit, which is noted; and at last."""
    exceeded: list[str] = []
    done = threading.Event()
    end = time.monotonic() + seconds

    def watch() -> None:
        while not done.wait(min(LOOK_S, max(end - time.monotonic(), 0))):
            if time.monotonic() >= end:
                exceeded.append(f"more than {seconds:g} s")
            elif resident_kb(process.pid) > memory_gb * 2**20:
                exceeded.append(f"more than {memory_gb:g} GB")
            if exceeded:
                kill(process)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield exceeded
    finally:
        if process.poll() is None:
            kill(process)
        done.set()
        watcher.join()
        if process.stdout is not None:
            process.stdout.close()


def resident_kb(pid: int) -> int:
    """What a process and those that it started have resident; 0 where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    own = sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return own + sum(resident_kb(int(child)) for child in children)


# ---------------------------------------------------------------- rounds


def measure(
    results: Results,
    models: Sequence[str],
    rounds: int,
    runner: Runner,
    count: str | None = None,
    progress: Progress = lambda _: None,
    keep: Callable[[], None] = lambda: None,
) -> None:
    """Measure models on all sides of `results`, and add what is found as it comes.

    Each model has one run a side that warms up, which writes byte code and counts nodes, and then
    `rounds` in turns, every other one backwards. A side that failed is left alone. `count`: a last
    run counts instructions, by "instructions" (those that the processor counts) or "callgrind";
    under the latter the first side only, since it is 50 times as slow. `keep` is called after each
    run. KeyboardInterrupt sets `interrupted`, and ends it.
    """
    try:
        for model in models:
            outcomes = results.models[model] = {text: Outcome() for text in results.sides}
            for number in range(-1, rounds):
                for text in results.sides[:: -1 if number % 2 else 1]:
                    outcome = outcomes[text]
                    if outcome.failed:
                        continue
                    which = f"round {number + 1} of {rounds}" if number >= 0 else "warming up"
                    progress(f"{model}: {text}, {which}")
                    _add_round(runner, Side(text), model, outcome, is_first=number < 0)
                    keep()
            for text in results.sides[:1] if count == "callgrind" else results.sides:
                if count is not None and not outcomes[text].failed:
                    progress(f"{model}: {text}, counting instructions")
                    _add_counts(runner, Side(text), model, outcomes[text], count)
            keep()
    except KeyboardInterrupt:
        results.interrupted = True


def _add_round(runner: Runner, side: Side, model: str, outcome: Outcome, is_first: bool) -> None:
    try:
        found = runner.run(side, model, extra="nodes" if is_first else "none")
    except WorkerFailed as failure:
        outcome.failed, outcome.phase = failure.why, failure.phase
        return
    outcome.kernels, outcome.distinct = found["kernels"], found["distinct"]
    outcome.shares_kernels = found["shares_kernels"]
    if is_first:
        outcome.nodes = found["nodes"]
        return
    outcome.rounds.append(found["ns"])
    outcome.cpu.append(found["cpu_ns"])
    outcome.base_kb.append(found["base_kb"])
    outcome.peak_kb.append(found["peak_kb"])


def _add_counts(runner: Runner, side: Side, model: str, outcome: Outcome, count: str) -> None:
    try:
        if count == "callgrind":
            outcome.counts = count_by_callgrind(runner, side, model)
        else:
            outcome.counts = runner.run(side, model, counter=count)["counts"]
    except WorkerFailed as failure:
        outcome.uncounted = f"in {failure.phase}: {failure.why}"


# ---------------------------------------------------------------- instructions

SLOWER = 100  # times, under callgrind


def available_counter() -> str:
    """How instructions are counted here. ValueError if they can not be."""
    with contextlib.suppress(OSError):
        counter = COUNTERS["instructions"]()
        assert counter is not None
        counter(None)
        return "instructions"
    if shutil.which("valgrind"):
        return "callgrind"
    raise ValueError(
        "instructions can not be counted here: the processor's counters are not readable "
        "(see perf_event_paranoid), and there is no valgrind"
    )


def count_by_callgrind(runner: Runner, side: Side, model: str) -> dict[str, int]:
    """Instructions by phase, as callgrind counts them; they vary by a few in a thousand.

    Its processor may lack features of this one, so some kernels differ from those that are timed.
    """
    with tempfile.TemporaryDirectory(dir=runner.folder) as folder:
        file = Path(folder) / "out"
        valgrind = ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={file}"]
        runner.run(
            side,
            model,
            counter="callgrind",
            before=valgrind,
            env={"PYTHONHASHSEED": "0", "PYTHONMALLOC": "pymalloc"},
            seconds=runner.limits.seconds * SLOWER,
        )
        counts = dict.fromkeys(PHASES, 0)
        for part in Path(folder).iterdir():
            phase, total = _part_of_callgrind(part)
            if phase in counts:
                counts[phase] += total
        return counts


def _part_of_callgrind(path: Path) -> tuple[str, int]:
    """Of which phase a file of callgrind's is, and how many instructions it has."""
    phase, total = "", 0
    with path.open() as lines:
        for line in lines:
            if line.startswith("desc: Trigger: Client Request:"):
                phase = line.rpartition(":")[2].strip()
            elif line.startswith("summary:"):
                total = int(line.split()[1])
                break
    return phase, total


# ---------------------------------------------------------------- where the time goes


def profile(runner: Runner, model: str, side: str = "tiny") -> dict[str, Any]:
    """What passes, rules and functions of this library took: two runs, which are not timed else."""
    found: dict[str, Any] = {"model": model}
    for extra in ("passes", "functions"):
        run = runner.run(Side(side), model, extra=extra)
        found[f"cpu_ns with {extra}"] = run["cpu_ns"]
        found |= {k: run[k] for k in ("passes", "rules", "natives", "functions") if k in run}
    return found
