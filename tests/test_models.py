"""The models that are measured train."""

import numpy as np
import pytest

import tiny
from tiny.bench import models


@pytest.mark.parametrize(
    "make, size", [(models.digits_net, 8), (models.conv_net, 28)], ids=["digits_net", "conv_net"]
)
def test_models_train(make, size):
    net = make(tiny)
    models.set_weights(tiny, net)
    x, y = models.images(4, size)
    step = models.training_step(tiny, net, x, y)
    losses = [step() for _ in range(3)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


def test_resnet18_has_the_weights_of_the_paper():
    net = models.resnet18(tiny)
    assert sum(t.numel() for t in tiny.nn.state.get_parameters(net)) - _statistics(net) == 11689512
    with tiny.Context(TRAINING=1):
        assert net(tiny.Tensor.empty(2, 3, 64, 64)).shape == (2, 1000)


def _statistics(net):
    """How many of the elements of a network's state are statistics, which are not trained."""
    state = tiny.nn.state.get_state_dict(net)
    parts = ("running_mean", "running_var", "num_batches_tracked")
    return sum(t.numel() for name, t in state.items() if name.endswith(parts))
