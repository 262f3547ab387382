"""Steps seen before: nothing is scheduled or compiled anew, nothing is left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

import tiny
from conftest import examples
from tiny._core import launch
from tiny._core.graph import table_stats
from tiny.bench import models
from tiny.engine import realize
from tiny.schedule.schedule import cached_schedules, known_families
from tiny.storage import live_views

Tensor = tiny.Tensor
STEPS = examples(100, 12)


def kept() -> dict[str, int]:
    """How much there is of all that a step could leave behind."""
    gc.collect()
    return {
        "schedules": cached_schedules(),
        "families": known_families(),
        "kernels": len(realize._kernels),
        "compiled schedules": len(realize._schedules),
        "nodes": table_stats()[0],
        "tensors": len(live_views()),
    }


def trainer(make=models.digits_net, size=8, batch=4, optimizer="Adam", **settings):
    """A training step on new images and with a new factor of the loss each time, and all state."""
    net = make(tiny)
    models.set_weights(tiny, net)
    state = tiny.nn.state.get_state_dict(net)
    parameters = tiny.nn.state.get_parameters(net)
    update = getattr(tiny.nn.optim, optimizer)(parameters, **settings)
    numbers = iter(range(10**6))

    def step():
        number = next(numbers)
        x, y = models.images(batch, size, seed=number)
        with Tensor.train():
            update.zero_grad()
            loss = net(Tensor(x.astype(np.float32))).sparse_categorical_crossentropy(Tensor(y))
            (loss * (1.1 + 0.001 * number)).backward()
            loss.realize(*update.schedule_step(), *state.values())
        return loss.item()

    return step


def decoder():
    """A decoding step at the next position each time."""
    # no other number of the graph, nor of one that other tests left, which would be a node less
    first = 3163
    net = models.decoder(tiny, blocks=2, width=16, heads=2, length=first + 2 * STEPS)
    models.set_weights(tiny, net)
    return models.decoding_step(tiny, net, start=first)


def by_hand():
    """Weights moved by a learning rate that is another float each time."""
    rng = np.random.default_rng(0)
    weights = Tensor(rng.standard_normal((5, 7)).astype(np.float32), requires_grad=True).realize()
    rates = iter(0.1 * 0.99**k for k in range(10**6))

    def step():
        x = Tensor(rng.standard_normal((3, 5)).astype(np.float32))
        weights.grad = None
        loss = (x @ weights).square().mean().backward()
        weights.assign(weights.detach() - next(rates) * weights.grad)
        return loss.realize(weights).item()

    return step


@pytest.mark.parametrize(
    "make",
    [
        trainer,
        lambda: trainer(optimizer="SGD", momentum=0.9, weight_decay=0.01),
        lambda: trainer(optimizer="AdamW"),
        decoder,
        by_hand,
    ],
    ids=["Adam", "SGD", "AdamW", "decoder", "by hand"],
)
def test_a_step_seen_before_makes_nothing_new(make, monkeypatch):
    step = make()
    for _ in range(4):
        step()
    before = kept()
    monkeypatch.setattr(realize, "_compile", None)  # compiling is an error from here on
    results = [step() for _ in range(STEPS)]
    assert np.isfinite(results).all()
    assert kept() == before


def test_a_step_takes_few_python_calls():
    """Wall time is a matter of the machine; calls are what this code spends on a step."""
    step = trainer(models.conv_net, 28, batch=1)
    for _ in range(4):
        step()
    calls = 0

    def count(frame, event, arg):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(None)
    assert calls < 15_000, f"{calls} Python functions were called in a step of conv_net"


@pytest.mark.skipif(sys.platform != "linux" or not launch.HAS_OPENMP, reason="asks GNU's OpenMP")
@pytest.mark.parametrize(
    "given, spins",
    [({}, "2000"), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_that_wait_sleep_soon(given, spins):
    program = "import os, tiny; print(os.environ.get('GOMP_SPINCOUNT'))"
    env = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**env, **given, "OMP_DISPLAY_ENV": "verbose", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == given.get("GOMP_SPINCOUNT", "None")  # as the user has it
    if "GOMP_SPINCOUNT" not in found.stderr:
        pytest.skip("another OpenMP than GNU's")
    assert spins is None or f"GOMP_SPINCOUNT = '{spins}'" in found.stderr
    assert spins is not None or "GOMP_SPINCOUNT = '2000'" not in found.stderr
