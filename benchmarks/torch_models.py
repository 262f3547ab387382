"""PyTorch twins of `tiny.bench.models`: the same layers at the same places, the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from tiny.bench.models import weights


def digits_net() -> nn.Sequential:
    """`tiny.bench.models.digits_net`."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.BatchNorm2d(32),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.BatchNorm2d(64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def conv_net() -> nn.Sequential:
    """`tiny.bench.models.conv_net`."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.Conv2d(32, 32, 5),
        nn.ReLU(),
        nn.BatchNorm2d(32),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.BatchNorm2d(64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(576, 10),
    )


def set_weights(net: nn.Sequential, seed: int = 0) -> None:
    """Give a network the weights that its twin gets."""
    state = net.state_dict()
    drawn = weights({f"layers.{name}": tuple(t.shape) for name, t in state.items()}, seed)
    for name, values in drawn.items():
        state[name.removeprefix("layers.")].copy_(torch.from_numpy(values))


def training_step(
    net: nn.Sequential, x: np.ndarray, y: np.ndarray, lr: float = 1e-3
) -> Callable[[], float]:
    """A function that trains one step with Adam on the cross-entropy of a batch; the loss."""
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    images = torch.from_numpy(x).to(next(net.parameters()).dtype)
    labels = torch.from_numpy(y).long()

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
