"""Memory: the peak of training ResNet-18 beside PyTorch, and what 10,000 of something leave behind.

    python benchmarks/memory.py [--batch 32] [--steps 4] [--count 10000] [--only peak,growth]

The peak: batch 32 of 3x224x224, SGD with momentum, float32; resident memory above the level after
import, in a process of its own for each. Growth: the level of all that could be left behind after
a quarter of the steps, which fills the bounded caches, and after all of them; garbage collection
on and off, each in a process of its own. Needs torch==2.13.0 for the peer.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

from tiny.bench import models, print_table
from tiny.bench.memory import LOOPS, Level, levels, reset_peak, resident_nbytes

PEAKS = ("torch", "tiny", "tiny jit")


def peak(library: str, batch: int, steps: int) -> dict[str, Any]:
    """Train a few steps of ResNet-18: bytes above the level after import, seconds, loss."""
    x, y = models.images(batch, 224, channels=3)
    x = x.astype(np.float32)
    name, _, jit = library.partition(" ")
    lib: Any = importlib.import_module(name)
    twins = importlib.import_module("torch_models") if name == "torch" else None
    before = resident_nbytes()
    reset_peak()
    if twins is not None:
        net = twins.resnet18()
        twins.set_weights(net)
        step = twins.training_step(net, x, y, momentum=0.9)
    else:
        net = models.resnet18(lib)
        models.set_weights(lib, net)
        step = models.training_step(lib, net, x, y, momentum=0.9, jit=bool(jit))
    ready = resident_nbytes() - before
    seconds, loss = [], 0.0
    for _ in range(steps):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    most = resident_nbytes(peak=True) - before
    return {"ready": ready, "peak": most, "first": seconds[0], "last": seconds[-1], "loss": loss}


def growth(name: str, count: int, collecting: bool) -> dict[str, Any]:
    """Levels after a quarter of the steps, and after all."""
    if not collecting:
        gc.disable()
    start = time.perf_counter()
    lib = importlib.import_module("tiny")
    found = [now for _, now in levels(LOOPS[name](lib), count // 4, count)]
    return {"seconds": time.perf_counter() - start, "levels": found}


def in_process(**case: Any) -> dict[str, Any]:
    """What a case finds, in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--case", json.dumps(case)],
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def print_peaks(batch: int, steps: int) -> None:
    rows, peer = [], 0
    for library in PEAKS:
        found = in_process(peak=library, batch=batch, steps=steps)
        peer = peer or found["peak"]
        rows.append(
            (
                library,
                f"{found['ready'] / 1e6:.0f} MB",
                f"{found['peak'] / 1e6:.0f} MB",
                f"{found['peak'] / peer:.2f}",
                f"{found['first']:.1f} s",
                f"{found['last']:.1f} s",
                f"{found['loss']:.5f}",
            )
        )
    print_table(
        f"ResNet-18, training, batch {batch}: resident above the level after import",
        ("library", "before steps", "peak", "to torch", "first step", "last step", "last loss"),
        rows,
    )


def print_growth(count: int) -> None:
    rows = []
    for name in LOOPS:
        for collecting in (True, False):
            found = in_process(growth=name, count=count, collecting=collecting)
            first, last = (Level(*found["levels"][k]) for k in (0, -1))
            rows.append(
                (
                    name,
                    "on" if collecting else "off",
                    f"{first.resident / 1e6:.1f} to {last.resident / 1e6:.1f} MB",
                    f"{first.nodes} to {last.nodes}",
                    f"{first.tensors} to {last.tensors}",
                    f"{first.used} to {last.used}",
                    f"{first.pieces} to {last.pieces}",
                    f"{first.caches} to {last.caches}",
                    f"{found['seconds']:.0f} s",
                )
            )
    print_table(
        f"after {count // 4} and after {count} of each",
        (
            "what",
            "gc",
            "resident",
            "nodes",
            "tensors",
            "bytes used",
            "pieces kept",
            "cached",
            "time",
        ),
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--only", default="peak,growth", help="peak, growth or both")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        case = json.loads(args.case)
        if "peak" in case:
            found = peak(case["peak"], case["batch"], case["steps"])
        else:
            found = growth(case["growth"], case["count"], case["collecting"])
        print(json.dumps(found))
        return
    if "peak" in args.only:
        print_peaks(args.batch, args.steps)
    if "growth" in args.only:
        print_growth(args.count)


if __name__ == "__main__":
    main()
