"""What a step costs once it has been seen before: Python's share, and each kernel's launch.

    python benchmarks/steady.py [--models conv_net,decode,resnet18] [--steps 10] [--json FILE]
        [--libraries "tiny jit,tiny,tinygrad jit,tinygrad,torch"] [--resnet-batch 4]
        [--blocks 12] [--limit 300]

Three steps beside tinygrad and PyTorch: `conv_net`'s training step (batch 128 of 28x28 images),
one position of a transformer of 12 blocks, 768 wide, with a cache of 512 positions (batch 1), and
ResNet-18's training step (224x224 images). Each library has a process of its own; they step in
turns. With `jit` the step is run by the library's TinyJit. A library that takes longer than
`--limit` seconds for a step, compiling it or not, is shown so and left out. A short run:

    python benchmarks/steady.py --models conv_net,decode --steps 5 --blocks 4

"to launch" is the time from the step's first call to its first kernel, and "CPU time" what the
calling thread worked meanwhile, whatever else the machine did; "Python" is the step less its
kernels' own time; "between" is what passes from the first kernel to the last one's end, less their
own time, a kernel. The last four figures are of every other step where looking takes time itself:
PyTorch's come from its profiler and are a little too long. Needs tinygrad==0.14.0 (its CPU device
needs clang) and torch==2.13.0, or leave them out of --libraries.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny.bench import Case, Run, alternate_processes, models, print_table, time_text

LIBRARIES = ("tiny jit", "tiny", "tinygrad jit", "tinygrad", "torch")  # the first is compared
MODELS = ("conv_net", "decode", "resnet18")
WARM = 3  # steps until all is compiled and captured
COLUMNS = (
    "library",
    "steps/s",
    "step",
    "best",
    "to launch",
    "best",
    "CPU time",
    "Python",
    "kernels",
    "own time",
    "between",
    "result",
)
# what PyTorch's profiler shows as operations, though they only describe memory
NO_KERNELS = frozenset(
    f"aten::{name}"
    for name in (
        "alias",
        "_local_scalar_dense",
        "as_strided",
        "detach",
        "empty",
        "empty_like",
        "empty_strided",
        "expand",
        "lift_fresh",
        "permute",
        "resize_",
        "resolve_conj",
        "resolve_neg",
        "select",
        "slice",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
    )
)


# ---------------------------------------------------------------- what the processes run


class Watch:
    """When the kernels of a step ran and, if it counts them, for how long, in seconds."""

    def __init__(self, counts: bool = True) -> None:
        self.counts = counts
        self.kernels = 0
        self.own = 0.0
        self.first = self.last = float("nan")
        self.worked: float | None = None
        self._worked_before = time.thread_time()

    def start(self) -> float:
        """Kernels are about to run; the time."""
        now = time.perf_counter()
        if self.worked is None:
            self.first, self.worked = now, time.thread_time() - self._worked_before
        return now

    def saw(self, begin: float, end: float, own: float, kernels: int = 1) -> None:
        """Some kernels ran between two times, and for `own` seconds by themselves."""
        if self.first != self.first:  # not known yet
            self.first = begin
        self.kernels += kernels
        self.own += own
        self.last = end

    def figures(self, begin: float, end: float) -> dict[str, float]:
        """What is shown of a step between two times."""
        found = {"launch": self.first - begin}
        if self.worked is not None:
            found["worked"] = self.worked
        if self.counts:
            found["python"] = end - begin - self.own
            found["own"], found["kernels"] = self.own, self.kernels
            found["between"] = (self.last - self.first - self.own) / max(self.kernels, 1)
        return found


def watch_tiny(watched: list[Watch]) -> None:
    """Time the native calls that run lists of kernels.

    In every other step each kernel of them is timed too, which adds a meeting of threads to each.
    """
    from tiny.engine import realize

    native = realize.HostReplay

    class Watched:
        def __init__(self, *args: Any) -> None:
            self._replay = native(*args)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._replay, name)

        def __call__(self, memory: Any, values: Any = (), _: bool = False, *rest: Any) -> None:
            watch = watched[0]
            begin = watch.start()
            times = self._replay(memory, values, watch.counts, *rest)
            if watch.counts:
                watch.saw(begin, time.perf_counter(), sum(times), len(times))

    realize.HostReplay = Watched  # type: ignore[misc, assignment]


def watch_tinygrad(watched: list[Watch]) -> None:
    """Time the calls of its kernels, which return when a kernel is done."""
    from tinygrad.runtime.ops_cpu import CPUProgram

    run = CPUProgram.__call__

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin = watched[0].start()
        result = run(self, *args, **kwargs)
        end = time.perf_counter()
        watched[0].saw(begin, end, end - begin)
        return result

    CPUProgram.__call__ = timed


def make_step(library: str, model: str, batch: int, blocks: int) -> Callable[[], dict[str, Any]]:
    """A step of one library, by its TinyJit or not; its result and the figures of the Watch."""
    name, _, jit = library.partition(" ")
    if name == "torch":
        return _torch_step(model, batch, blocks)
    watched = [Watch()]
    {"tiny": watch_tiny, "tinygrad": watch_tinygrad}[name](watched)
    lib = importlib.import_module(name)
    if model == "decode":
        net = models.decoder(lib, blocks)
        models.set_weights(lib, net)
        step = models.decoding_step(lib, net, jit=bool(jit))
    else:
        net = getattr(models, model)(lib)
        models.set_weights(lib, net)
        step = models.training_step(
            lib, net, *_data(model, batch), jit=bool(jit), momentum=_momentum(model)
        )

    turns = itertools.cycle((False, True) if name == "tiny" else (True,))

    def watched_step() -> dict[str, Any]:
        watched[0] = watch = Watch(next(turns))
        begin = time.perf_counter()
        result = step()
        end = time.perf_counter()
        found = {"result": result, **watch.figures(begin, end)}
        return found if name == "tiny" and watch.counts else {**found, "seconds": end - begin}

    return watched_step


def _data(model: str, batch: int) -> tuple[Any, Any]:
    return models.images() if model == "conv_net" else models.images(batch, 224, channels=3)


def _momentum(model: str) -> float | None:
    return None if model == "conv_net" else 0.9


def _torch_step(model: str, batch: int, blocks: int) -> Callable[[], dict[str, Any]]:
    """Every other step is profiled: it has the other figures, but takes longer."""
    import torch

    import torch_models

    net: Any
    if model == "decode":
        net = torch_models.decoder(blocks)
        torch_models.set_weights(net)
        step = torch_models.decoding_step(net)
    else:
        net = getattr(torch_models, model)()
        torch_models.set_weights(net)
        step = torch_models.training_step(net, *_data(model, batch), momentum=_momentum(model))

    def plain_step() -> dict[str, Any]:
        begin = time.perf_counter()
        result = step()
        return {"result": result, "seconds": time.perf_counter() - begin}

    def profiled_step() -> dict[str, Any]:
        cpu = [torch.profiler.ProfilerActivity.CPU]
        with (
            torch.profiler.profile(activities=cpu) as profile,
            torch.profiler.record_function("step"),
        ):
            result = step()
        events, watch = profile.events(), Watch()
        whole = next(e.time_range for e in events if e.name == "step")
        for at in sorted(
            [e.time_range for e in events if _is_kernel(e)], key=lambda interval: interval.start
        ):
            watch.saw(at.start * 1e-6, at.end * 1e-6, (at.end - at.start) * 1e-6)
        return {"result": result, **watch.figures(whole.start * 1e-6, whole.end * 1e-6)}

    turns = itertools.cycle((plain_step, profiled_step))
    return lambda: next(turns)()


def _is_kernel(event: Any) -> bool:
    """Whether an operation computes, and is made of no others that do."""
    return (
        event.name.startswith("aten::")
        and event.name not in NO_KERNELS
        and not any(_is_kernel(child) for child in event.cpu_children)
    )


# ---------------------------------------------------------------- the report


def measure(
    model: str,
    libraries: list[str],
    steps: int,
    batch: int,
    blocks: int,
    limit: float,
    threads: int,
) -> dict[str, Run]:
    """The runs of all libraries, each in a process of its own."""
    steps = max(steps, 2)  # some figures are of every other step
    names = ("NUM_CPU_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    env = dict.fromkeys(names, str(threads))
    script = str(Path(__file__).resolve())
    arguments = {"model": model, "batch": batch, "blocks": blocks}
    cases = {
        library: Case(script, "make_step", {"library": library, **arguments}, env)
        for library in libraries
    }
    return alternate_processes(cases, WARM + steps, timeout_s=limit, keep_going=True)


def summary(run: Run) -> dict[str, Any]:
    """Medians of the steady steps, and the best of those that are Python's alone."""
    if run.failed is not None:
        return {"failed": run.failed}
    steady = run.results[WARM:]
    found: dict[str, Any] = {"first": run.results[0]["seconds"], "result": steady[-1]["result"]}
    for name in ("seconds", "launch", "worked", "python", "own", "kernels", "between"):
        if samples := [r[name] for r in steady if name in r]:  # not all have it, nor all steps
            found[name], found[f"best {name}"] = statistics.median(samples), min(samples)
    return found


def print_model(title: str, found: dict[str, dict[str, Any]], notes: list[str]) -> None:
    """One table, a line a library."""
    rows = []
    for library, figures in found.items():
        if "failed" in figures:
            late = "did not answer" in figures["failed"]
            rows.append(
                (library, "over the limit" if late else "failed", *["–"] * (len(COLUMNS) - 2))
            )
            continue
        text = {k: time_text(1e9 * v) for k, v in figures.items() if k != "result"}
        rows.append(
            (
                library,
                f"{1 / figures['seconds']:.3g}",
                text["seconds"],
                text["best seconds"],
                text["launch"],
                text["best launch"],
                text.get("worked", "–"),
                text["python"],
                f"{figures['kernels']:.0f}",
                text["own"],
                text["between"],
                f"{figures['result']:.6f}",
            )
        )
    print_table(title, COLUMNS, rows, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--libraries", default=",".join(LIBRARIES))
    parser.add_argument("--steps", type=int, default=10, help="steady steps to time")
    parser.add_argument("--resnet-batch", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=12, help="of the transformer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a step may take")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    args = parser.parse_args()
    asked, libraries = args.models.split(","), args.libraries.split(",")
    for given, known, what in ((asked, MODELS, "--models"), (libraries, LIBRARIES, "--libraries")):
        for name in given:
            if name not in known:
                parser.error(f"{what}: {name!r} is none of {', '.join(known)}")
    titles = {
        "conv_net": f"conv_net, a training step at batch {models.BATCH}",
        "decode": f"a decoder's step, {args.blocks} blocks, 768 wide, batch 1",
        "resnet18": f"ResNet-18, a training step at batch {args.resnet_batch}",
    }
    figures: dict[str, dict[str, dict[str, Any]]] = {}
    for model in asked:
        runs = measure(
            model, libraries, args.steps, args.resnet_batch, args.blocks, args.limit, args.threads
        )
        figures[model] = {library: summary(run) for library, run in runs.items()}
        notes = [f"medians of {args.steps} steps, {args.threads} threads; best: the quickest step"]
        for library, run in runs.items():
            if run.failed is not None and "did not answer" not in run.failed:
                notes.append(f"{library}: {run.failed}")
        print_model(titles[model], figures[model], notes)
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
