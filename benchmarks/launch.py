"""What it costs to start a CPU kernel: from Python, in a replay, in one thread and in several.

    python benchmarks/launch.py [--rounds 200]

The kernels of the first table do nothing, so all of the time is the launch. The second shows calls
of TinyJit: what kernels, arguments and results add. With PyTorch installed it also shows a
parallel launch directly after one of its operators. Other work on the machine is felt at once: a
parallel launch ends when the last thread has had its turn.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from typing import Any

from tiny import Tensor, TinyJit
from tiny._core.launch import HostKernel, HostReplay, threads
from tiny._core.memory import HostMemory
from tiny.bench import Times, print_table
from tiny.bench import time_text as text
from tiny.device import Device
from tiny.runtime.cpu import MachineCode

STEPS = 50
SOURCE = """
define void @nothing(ptr %buffers, ptr %variables, ptr %scratch, ptr %shared, i64 %begin, i64 %end)
{
  ret void
}
"""


def measure(
    run: Callable[[], object], rounds: int, calls: int, before: Callable[[], object] | None = None
) -> Times:
    """Nanoseconds a call, of `calls` in a row; short ones, to fit between others' turns."""
    times = Times()
    for _ in range(rounds):
        if before is not None:
            before()
        start = time.perf_counter_ns()
        for _ in range(calls):
            run()
        times.samples.append((time.perf_counter_ns() - start) / calls)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds

    binary = Device["CPU"].compiler.compile(SOURCE, "nothing")
    code = MachineCode(binary, "nothing", ("nothing",))
    wide, once = (code.addresses[0], 1000), (code.addresses[0], 1)
    buffers = tuple(HostMemory(64) for _ in range(3))

    def kernel(*phases: tuple[int, int], scratch: int = 0) -> HostKernel:
        return HostKernel("nothing", phases, 3, b"i", code, scratch, scratch)

    def replay(one: HostKernel) -> HostReplay:
        return HostReplay([(one, (0, 1, 2), (0,))] * STEPS, 3, 1)

    def idle(seconds: float) -> Callable[[], object]:
        return lambda: time.sleep(seconds)

    rows: list[tuple[str, Times, int]] = []

    def add(name: str, one: HostKernel | HostReplay, calls: int, units: int = 1, **options) -> None:
        times = measure(lambda: one(buffers, (1,)), rounds, calls, **options)
        rows.append((name, times, units))

    add("from Python, one thread", kernel(once), 100)
    add("from Python, one thread, with scratch memory", kernel(once, scratch=4096), 100)
    add("from Python, in parallel", kernel(wide), 20)
    add("from Python, two phases in parallel", kernel(wide, wide), 20)
    add(f"replay of {STEPS}, one thread: a kernel", replay(kernel(once)), 20, STEPS)
    add(f"replay of {STEPS}, in parallel: a kernel", replay(kernel(wide)), 1, STEPS)
    add("from Python, in parallel, after 0.2 ms idle", kernel(wide), 1, before=idle(2e-4))
    add("from Python, in parallel, after 2 ms idle", kernel(wide), 1, before=idle(2e-3))
    if importlib.util.find_spec("torch") is not None:
        import torch

        a = torch.ones(256, 256)
        add("from Python, in parallel, after PyTorch", kernel(wide), 1, before=lambda: a @ a)
    show(f"Launching kernels that do nothing, {threads()} threads", rows)
    show("Calls of TinyJit, on tensors of 4 elements", jit_calls(rounds))


def show(title: str, rows: list[tuple[str, Times, int]]) -> None:
    """Print times for one unit each."""
    print_table(
        title,
        ("", "median", "least"),
        [(name, text(t.median / units), text(t.min / units)) for name, t, units in rows],
    )


def jit_calls(rounds: int) -> list[tuple[str, Times, int]]:
    """Times of replays by what they have many of."""
    one = Tensor.ones(4).realize()
    given = [Tensor.ones(4).realize() for _ in range(100)]

    def steps(count: int) -> Callable[[Tensor], Tensor]:
        def f(x: Tensor) -> Tensor:
            for _ in range(count):
                x = (x + 1).realize()
            return x

        return f

    def results(count: int) -> Callable[[Tensor], list[Tensor]]:
        return lambda x: [x + k for k in range(count)]

    programs: list[tuple[str, Callable[..., object], Any]] = [
        ("one kernel, one argument, one result", steps(1), one),
        (f"{STEPS} kernels", steps(STEPS), one),
        ("10 arguments", lambda xs: xs[0] + one, given[:10]),
        ("100 arguments", lambda xs: xs[0] + one, given),
        ("10 results", results(10), one),
        ("100 results", results(100), one),
    ]
    rows = []
    for name, function, x in programs:
        jitted = TinyJit(function)
        for _ in range(3):
            jitted(x)
        rows.append((name, measure(lambda f=jitted, x=x: f(x), rounds, 20), 1))  # type: ignore[misc]
    least = rows[0][1].min
    kernels = Times()
    kernels.samples = [max(0.0, t - least) for t in rows[1][1].samples]
    rows.insert(2, (f"  each of the {STEPS} beyond the first", kernels, STEPS - 1))
    return rows


if __name__ == "__main__":
    main()
