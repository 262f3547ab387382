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
