"""The models whose compile time is measured are those of their papers, in every library."""

from math import prod

import numpy as np
import pytest

import tiny
from conftest import FULL
from tiny.bench import models
from tiny.bench.models import SCALING
from tiny.bench.models.vision import B0
from tiny.nn.state import get_state_dict

NOT_TRAINED = ("running_mean", "running_var", "num_batches_tracked", "cache", "cos", "sin")


@pytest.mark.parametrize(
    "make, weights",
    [
        (models.efficientnet_b0, 5_288_548),
        (models.BertModel, 109_482_240),
        (models.GPT2, 124_439_808),
        (models.Llama, 1_235_814_400),
        (models.vit, 86_567_656),
        (models.UNet, 859_520_964),
    ],
    ids=["efficientnet_b0", "bert", "gpt2", "llama", "vit", "unet"],
)
def test_models_have_the_weights_of_their_papers(make, weights):
    state = get_state_dict(make(tiny))
    assert sum(prod(t.shape) for k, t in state.items() if not k.endswith(NOT_TRAINED)) == weights


SMALL_LSTM = {"inputs": 5, "width": 6}
SMALL = {
    "efficientnet": (
        lambda lib: models.efficientnet_b0(lib, B0[:2], classes=7),
        lambda rng: [rng.standard_normal((1, 3, 16, 16)).astype(np.float32)],
    ),
    "bert": (
        lambda lib: models.BertModel(lib, 1, 8, 2, words=11, length=6),
        lambda rng: [rng.integers(0, n, (2, 5)).astype(np.int32) for n in (11, 2)],
    ),
    "gpt2": (
        lambda lib: models.GPT2(lib, 1, 8, 2, words=11, length=6),
        lambda rng: [rng.integers(0, 11, (2, 5)).astype(np.int32)],
    ),
    "vit": (
        lambda lib: models.vit(lib, 1, 8, 2, patch=4, size=8, classes=3),
        lambda rng: [rng.standard_normal((2, 3, 8, 8)).astype(np.float32)],
    ),
    "unet": (
        lambda lib: models.UNet(lib, 8, (1, 2), 1, heads=2, context=6, groups=4),
        lambda rng: [
            rng.standard_normal(s).astype(np.float32) for s in ((1, 4, 4, 4), (1,), (1, 3, 6))
        ],
    ),
    "lstm": (
        lambda lib: models.LSTM(lib, **SMALL_LSTM),
        lambda rng: [
            rng.standard_normal(s).astype(np.float32) for s in ((3, 2, 5), (2, 6), (2, 6))
        ],
    ),
}


def _outputs(lib, name):
    """What a small model makes of drawn weights and data."""
    make, draw = SMALL[name]
    net, rng = make(lib), np.random.default_rng(0)
    for key, tensor in sorted(lib.nn.state.get_state_dict(net).items()):
        if "num_batches" not in key:
            values = rng.uniform(0.2, 1.0, tensor.shape)  # of one sign: variances are positive
            values *= 1 if key.endswith("running_var") else rng.choice([-1, 1], tensor.shape)
            tensor.replace(lib.Tensor(values.astype(np.float32)))
    found = net(*[lib.Tensor(x) for x in draw(rng)])
    return [x.numpy() for x in (found if isinstance(found, tuple) else (found,))]


# the peer takes up to a minute to compile one
@pytest.mark.parametrize("name", SMALL if FULL else ("gpt2",))
def test_small_models_give_what_tinygrad_gives(name):
    peer = pytest.importorskip("tinygrad")
    with peer.Context(SPEC=0, PARALLEL=0):  # it reads our variables, and checks for minutes
        expected = _outputs(peer, name)
    for ours, theirs in zip(_outputs(tiny, name), expected, strict=True):
        assert np.isfinite(ours).all() and ours.std() > 0
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4)


def test_the_lstm_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    net, twin = models.LSTM(tiny, **SMALL_LSTM), torch.nn.LSTM(5, 6)
    for name, tensor in get_state_dict(net).items():
        getattr(twin, f"{name}_l0").data = torch.from_numpy(tensor.numpy())
    x, h, c = SMALL["lstm"][1](np.random.default_rng(0))
    found = [t.numpy() for t in net(tiny.Tensor(x), tiny.Tensor(h), tiny.Tensor(c))]
    with torch.no_grad():
        _, expected = twin(
            torch.from_numpy(x), (torch.from_numpy(h)[None], torch.from_numpy(c)[None])
        )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", models.MODELS)
def test_steps_are_built_of_empty_weights_and_nothing_runs(name):
    before = tiny.GlobalCounters.kernel_count
    outputs = models.MODELS[name](tiny)()
    assert outputs and all(isinstance(x, tiny.Tensor) for x in outputs)
    assert tiny.GlobalCounters.kernel_count == before


@pytest.mark.parametrize("name", SCALING)
def test_scaling_graphs_grow_in_proportion(name):
    def nodes(n):
        return len({u for x in SCALING[name](tiny.Tensor, n) for u in x.uop.toposort()})

    few, some, many = nodes(50), nodes(100), nodes(200)
    assert 0.8 < (many - some) / (2 * (some - few)) < 1.2


def test_scaling_graphs_are_computed():
    for graph in SCALING.values():
        first, *others = graph(tiny.Tensor, 12)
        first.realize(*others)
