"""The models that are measured train."""

import numpy as np
import pytest

import tiny
from tiny.bench import models
from tiny.nn.state import get_state_dict


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


@pytest.mark.parametrize(
    "make, weights",
    [(models.resnet18, 11689512), (models.resnet50, 25557032)],
    ids=["resnet18", "resnet50"],
)
def test_resnets_have_the_weights_of_the_paper(make, weights):
    net = make(tiny)
    assert sum(t.numel() for t in tiny.nn.state.get_parameters(net)) - _statistics(net) == weights
    with tiny.Context(TRAINING=1):
        assert net(tiny.Tensor.empty(2, 3, 64, 64)).shape == (2, 1000)


def test_resnets_have_the_weights_of_their_twins():
    pytest.importorskip("torch")
    import torch_models

    for make, twin in (
        (models.resnet18, torch_models.resnet18),
        (models.resnet50, torch_models.resnet50),
    ):
        state = twin().state_dict()
        ours = {k.removeprefix("layers."): t.shape for k, t in get_state_dict(make(tiny)).items()}
        assert ours == {name: tuple(t.shape) for name, t in state.items()}


def test_decoder_attends_to_all_positions_so_far():
    # the same three states one by one, and at once under a mask
    width, heads, length = 8, 2, 5
    states = np.random.default_rng(1).standard_normal((3, width)).astype(np.float32)
    net = models.decoder(tiny, blocks=2, width=width, heads=heads, length=length)
    models.set_weights(tiny, net)
    one_by_one = [
        net(tiny.Tensor(x.reshape(1, 1, width)), tiny.Variable("p", 0, length - 1).bind(p)).numpy()
        for p, x in enumerate(states)
    ]
    weights = {k: t.numpy() for k, t in tiny.nn.state.get_state_dict(net).items()}
    np.testing.assert_allclose(
        np.concatenate(one_by_one)[:, 0], _decoded(states, weights, heads), rtol=2e-5, atol=2e-6
    )


def _decoded(x, weights, heads):
    """What a decoder of two blocks makes of a sequence of states, (positions, width)."""
    count, width = x.shape

    def norm(v):
        return (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + 1e-5)

    for block in range(2):

        def linear(v, name, at=f"layers.{block}."):
            return v @ weights[f"{at}{name}.weight"].T + weights[f"{at}{name}.bias"]

        split = linear(norm(x), "inputs").reshape(count, 3, heads, width // heads)
        query, keys, values = split.transpose(1, 2, 0, 3)
        scores = query @ keys.transpose(0, 2, 1) / np.sqrt(width // heads)
        shares = np.exp(np.where(np.tri(count) > 0, scores, -np.inf))
        attended = shares / shares.sum(-1, keepdims=True) @ values
        x = x + linear(attended.transpose(1, 0, 2).reshape(count, width), "outputs")
        inner = linear(norm(x), "up")
        inner = inner / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
        x = x + linear(inner, "down")
    return norm(x)


def test_a_decoding_step_goes_on_and_begins_anew():
    net = models.decoder(tiny, blocks=1, width=8, heads=2, length=5)
    models.set_weights(tiny, net)
    step = models.decoding_step(tiny, net, start=2)
    plain = [step() for _ in range(7)]
    assert plain[3] == plain[6]  # positions 2, 3, 4, 2, 3, 4, 2: the cache is full by then
    replayed = models.decoding_step(tiny, net, jit=True, start=2)
    assert [replayed() for _ in range(6)][3:] == plain[3:6]


def _statistics(net):
    """How many of the elements of a network's state are statistics, which are not trained."""
    state = tiny.nn.state.get_state_dict(net)
    parts = ("running_mean", "running_var", "num_batches_tracked")
    return sum(t.numel() for name, t in state.items() if name.endswith(parts))


def test_llama_attends_to_all_positions_so_far():
    sizes = {"blocks": 2, "width": 32, "heads": 4, "groups": 2, "hidden": 48, "vocabulary": 61}
    net = models.Llama(tiny, **sizes, length=9)
    models.set_weights(tiny, net)
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]

    def run(step) -> list[int]:
        position = [tiny.Variable("position", 0, 8).bind(k) for k in range(len(tokens))]
        return [int(step(tiny.Tensor([[t]]), p).item()) for t, p in zip(tokens, position)]

    plain = run(lambda token, at: net(token, at))
    assert run(tiny.TinyJit(lambda token, at: net(token, at).realize())) == plain
    assert plain == llama(net, tokens, **sizes)


def llama(net, tokens, blocks, width, heads, groups, hidden, vocabulary):
    """What `models.Llama` computes, for all positions at once in float64."""
    state = {k: t.numpy().astype(np.float64) for k, t in get_state_dict(net).items()}
    size, n = width // heads, len(tokens)

    def norm(x, weight):
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5) * weight

    def turned(x):  # (heads, n, size)
        cos, sin = state["cos"][:n], state["sin"][:n]
        a, b = x[..., : size // 2], x[..., size // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = state["embedding.weight"][tokens]
    for k in range(blocks):
        w = {p: state[f"layers.{k}.{p}.weight"] for p in "query key value outputs".split()}
        more = {p: state[f"layers.{k}.{p}.weight"] for p in "gate up down".split()}
        y = norm(x, state[f"layers.{k}.norm.weight"])
        query = turned((y @ w["query"].T).reshape(n, heads, size).swapaxes(0, 1))
        key = turned((y @ w["key"].T).reshape(n, groups, size).swapaxes(0, 1))
        value = (y @ w["value"].T).reshape(n, groups, size).swapaxes(0, 1)
        key, value = (np.repeat(t, heads // groups, axis=0) for t in (key, value))
        scores = query @ key.swapaxes(1, 2) / np.sqrt(size)
        scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + (weights @ value).swapaxes(0, 1).reshape(n, width) @ w["outputs"].T
        y = norm(x, state[f"layers.{k}.inner_norm.weight"])
        gate = y @ more["gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ more["up"].T)) @ more["down"].T
    logits = norm(x, state["norm.weight"]) @ state["embedding.weight"].T
    return logits.argmax(-1).tolist()
