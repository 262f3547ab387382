"""The conv_net of the benchmarks learns as PyTorch's does, step by step."""

from __future__ import annotations

import numpy as np
import pytest

import tiny
from conftest import examples
from tiny.bench.models import conv_net, images, set_weights, training_step

torch = pytest.importorskip("torch")
torch_models = pytest.importorskip("torch_models")

STEPS = examples(50, 6)


def our_losses(dtype: str) -> list[float]:
    with tiny.Context(DEFAULT_FLOAT=dtype):
        net = conv_net(tiny)
        set_weights(tiny, net)
        step = training_step(tiny, net, *images())
        return [step() for _ in range(STEPS)]


def torch_losses(dtype) -> list[float]:
    x, y = images()
    net = torch_models.conv_net().to(dtype)
    torch_models.set_weights(net)
    step = torch_models.training_step(net, x, y)
    return [step() for _ in range(STEPS)]


@pytest.fixture(scope="module")
def exact() -> np.ndarray:
    return np.array(torch_losses(torch.float64))


def test_float64_losses_equal_pytorchs(exact):
    # sums are taken in another order: 1e-6 is what fifty steps of that may come to
    np.testing.assert_allclose(our_losses("float64"), exact, rtol=0, atol=1e-6)


def test_float32_is_as_near_to_float64_as_pytorch_is(exact):
    theirs = np.abs(np.array(torch_losses(torch.float32)) - exact)
    ours = np.abs(np.array(our_losses("float32")) - exact)
    # the largest gap of all steps: that of one step may be zero by chance
    assert ours.max() <= 2 * theirs.max()
