"""A training step of `conv_net` beside tinygrad and PyTorch: the first, the steady, and its parts.

    python benchmarks/conv_net.py [--steps 10] [--starts 3] [--libraries "tiny jit,tiny,torch"]

Batch 128 of 28x28 images, cross-entropy, Adam. Each library has a process of its own; they step
in turns. With `jit` the step is run by the library's TinyJit: plainly once, captured at the
second step, replayed from the third on. Caches on disk are off, so the first step compiles
everything. Needs tinygrad==0.14.0 (its CPU device needs clang) and torch==2.13.0, or leave them
out of --libraries.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path

from tiny.bench import (
    Case,
    Run,
    Stage,
    Times,
    alternate_processes,
    models,
    print_table,
    ratio,
    ratio_text,
    time_stages,
    time_text,
)

LIBRARIES = ("tiny jit", "tiny", "tinygrad jit", "tinygrad", "torch")  # the first is compared
NO_CACHE = {"CACHELEVEL": "0", "CCACHE": "0"}
STAGES = {
    "tiny": [
        Stage("schedule", "tiny/schedule/"),
        Stage("lower", "tiny/codegen/"),
        Stage("lower", "tiny/renderer/"),
        Stage("compile", "tiny/runtime/", "compile"),
        Stage("compile", "tiny/runtime/", "load"),
        Stage("run", "tiny/runtime/"),
        Stage("run", "tiny/device.py"),
        # native calls have no frames of their own
        Stage("run", "tiny/engine/realize.py", "__call__"),
        Stage("engine", "tiny/engine/"),
        Stage("graph", "tiny/bench/models/"),
    ],
    "tinygrad": [
        Stage("schedule", "tinygrad/schedule/"),
        Stage("lower", "tinygrad/codegen/"),
        Stage("lower", "tinygrad/renderer/"),
        Stage("compile", "tinygrad/runtime/support/compiler"),
        Stage("compile", "tinygrad/runtime/support/elf"),
        Stage("run", "tinygrad/runtime/"),
        Stage("engine", "tinygrad/engine/"),
        Stage("graph", "tiny/bench/models/"),
    ],
}
STAGE_NAMES = ("graph", "schedule", "lower", "compile", "run", "engine", "other")


# ---------------------------------------------------------------- what the processes run


def make_step(library: str) -> Callable[[], float]:
    """A step of one library, by its TinyJit or not; the loss."""
    x, y = models.images()
    library, _, jit = library.partition(" ")
    if library == "torch":
        import torch_models

        twin = torch_models.conv_net()
        torch_models.set_weights(twin)
        return torch_models.training_step(twin, x, y)
    lib = importlib.import_module(library)
    net = models.conv_net(lib)
    models.set_weights(lib, net)
    return models.training_step(lib, net, x, y, jit=bool(jit))


def make_stages(library: str) -> Callable[[], dict[str, float]]:
    """A step of one library; the seconds that it spent in each stage."""
    step = make_step(library)
    return lambda: time_stages(step, STAGES[library.partition(" ")[0]])


# ---------------------------------------------------------------- the report


def case(library: str, function: str, **env: str) -> Case:
    return Case(str(Path(__file__).resolve()), function, {"library": library}, {**NO_CACHE, **env})


def measure(libraries: list[str], steps: int, starts: int) -> dict[str, list[Run]]:
    """For each library, the runs of `starts` processes; the last takes `steps` steps more."""
    runs: dict[str, list[Run]] = {library: [] for library in libraries}
    for start in range(starts):
        rounds = 1 if start < starts - 1 else 3 + steps
        cases = {library: case(library, "make_step") for library in libraries}
        for library, run in alternate_processes(cases, rounds).items():
            runs[library].append(run)
    return runs


def print_steps(runs: dict[str, list[Run]]) -> None:
    first = {name: Times([r.steps.samples[0] for r in rs]) for name, rs in runs.items()}
    second = {name: rs[-1].steps.samples[1] for name, rs in runs.items()}
    steady = {name: Times(rs[-1].steps.samples[3:]) for name, rs in runs.items()}
    ours = next(iter(runs))

    def faster(times: dict[str, Times], name: str) -> str:
        return "" if name == ours else ratio_text(ratio(times[name], times[ours]))

    print_table(
        "conv_net, one training step",
        (
            "library",
            "first",
            f"{ours} faster",
            "second",
            "steady",
            f"{ours} faster",
            "spread",
            "last loss",
        ),
        [
            (
                name,
                time_text(first[name].median),
                faster(first, name),
                time_text(second[name]),
                time_text(steady[name].median),
                faster(steady, name),
                f"{steady[name].spread:.0%}",
                f"{rs[-1].results[-1]:.6f}",
            )
            for name, rs in runs.items()
        ],
        notes=[
            f"first: median of {len(next(iter(runs.values())))} processes; "
            f"steady: median of {len(next(iter(steady.values())).samples)} steps from the fourth on"
        ],
    )


def print_stages(libraries: list[str]) -> None:
    """Where a first and a later step spend their time. tinygrad compiles in this one process."""
    rows = []
    for library in libraries:
        run = alternate_processes({library: case(library, "make_stages", PARALLEL="0")}, 6)[library]
        for name, spent in (("first", run.results[0]), ("steady", run.results[-1])):
            parts = [time_text(1e9 * spent.get(stage, 0.0)) for stage in STAGE_NAMES]
            rows.append((f"{library}, {name}", *parts))
    print_table("where the time goes, by sampling", ("step", *STAGE_NAMES), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10, help="steady steps to time")
    parser.add_argument("--starts", type=int, default=3, help="first steps to time")
    parser.add_argument("--libraries", default=",".join(LIBRARIES))
    args = parser.parse_args()
    libraries = args.libraries.split(",")
    for library in libraries:
        if library not in LIBRARIES:
            parser.error(f"--libraries: {library!r} is none of {', '.join(LIBRARIES)}")
    print_steps(measure(libraries, args.steps, args.starts))
    print_stages([library for library in libraries if library in STAGES])  # samples see Python


if __name__ == "__main__":
    main()
