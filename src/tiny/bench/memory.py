"""Memory: what a process has resident, and what is left behind by doing something many times."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiny._core.graph import table_stats
from tiny.bench import models
from tiny.device import Device
from tiny.helpers import GlobalCounters
from tiny.shared import caches
from tiny.storage import live_views

Step = Callable[[int], object]


def resident_nbytes(peak: bool = False) -> int:
    """What this process has resident now, or the most that it had since `reset_peak`.

    RuntimeError where the system does not tell in /proc.
    """
    name = "VmHWM:" if peak else "VmRSS:"
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError as e:
        raise RuntimeError(f"resident memory is read from /proc, not on {sys.platform}") from e
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def reset_peak() -> None:
    """Measure the peak from now on."""
    Path("/proc/self/clear_refs").write_text("5")


class Level(NamedTuple):
    """How much there is of all that could be left behind. Sizes are in bytes."""

    resident: int
    nodes: int
    tensors: int
    used: int  # memory of buffers
    kept: int  # and freed memory, kept for the next request
    pieces: int  # of which that consists
    caches: int  # entries of all caches


def level() -> Level:
    """How much there is now."""
    allocators = [device.allocator for device in Device.opened()]
    return Level(
        resident_nbytes(),
        table_stats()[0],
        len(live_views()),
        GlobalCounters.mem_used,
        sum(a.kept_nbytes for a in allocators),
        sum(a.kept for a in allocators),
        sum(size for size, _ in caches().values()),
    )


def levels(step: Step, warm: int, count: int, samples: int = 8) -> Iterator[tuple[int, Level]]:
    """Do steps 0 to count - 1: how many were done and the level then, after the first `warm` of
    them and `samples` times more, at equal distances. Garbage is collected before, if it is at
    all."""
    marks = {warm + (count - warm) * k // samples for k in range(samples + 1)}
    for k in range(count + 1):
        if k in marks:
            if gc.isenabled():
                gc.collect()
            yield k, level()
        if k < count:
            step(k)


# ---------------------------------------------------------------- what is done many times
# `lib` is `tiny`, passed in: it has `Tensor`, `TinyJit` and `nn`


def training_steps(lib: Any) -> Step:
    """Training steps of a small network with Adam, each with new images."""
    net = models.digits_net(lib)
    models.set_weights(lib, net)
    optimizer = lib.nn.optim.Adam(lib.nn.state.get_parameters(net))
    state = list(lib.nn.state.get_state_dict(net).values())
    rng = np.random.default_rng(0)

    def step(k: int) -> float:
        x = lib.Tensor(rng.standard_normal((4, 1, 8, 8)).astype(np.float32))
        y = lib.Tensor(rng.integers(0, 10, 4).astype(np.int32))
        with lib.Tensor.train():
            optimizer.zero_grad()
            loss = net(x).sparse_categorical_crossentropy(y).backward()
            loss.realize(*optimizer.schedule_step(), *state)
        return float(loss.item())

    return step


def distinct_shapes(lib: Any) -> Step:
    """A kernel for a shape that was not there before."""

    def step(k: int) -> Any:
        x = lib.Tensor(np.ones((k % 97 + 1, k // 97 + 1), np.float32))
        return (x * 2 + 1).sum(0).realize()

    return step


def captures(lib: Any) -> Step:
    """A function that is captured anew and replayed once; it writes to a tensor from outside."""
    state = lib.Tensor.zeros(64).contiguous().realize()
    x = lib.Tensor(np.ones(64, np.float32)).realize()

    def step(k: int) -> None:
        function = lib.TinyJit(lambda x: state.assign(state * 0.5 + x).sum())
        for _ in range(3):
            function(x)

    return step


def learning_rates(lib: Any) -> Step:
    """A step of gradient descent whose rate is a Python number that was not there before."""
    w = lib.Tensor(np.ones(64, np.float32)).realize()
    g = lib.Tensor(np.full(64, 0.01, np.float32)).realize()

    def step(k: int) -> Any:
        return w.assign(w - g * (0.1 / (k + 1.5))).realize()

    return step


LOOPS = {
    "training steps": training_steps,
    "distinct shapes": distinct_shapes,
    "captures": captures,
    "learning rates": learning_rates,
}
