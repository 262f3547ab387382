"""The values of JIT: plain runs, replays kernel by kernel, replays and plain runs compared."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import tiny
from tiny import Tensor, TinyJit, nn
from tiny.bench.models import conv_net, images, set_weights
from tiny.engine.jit import JitError
from tiny.helpers import Context, GlobalCounters

CALLS = 5


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Model:
    """What a capture can not see is in its attributes."""

    def __init__(self) -> None:
        self.w = Tensor(numbers(3)).realize()
        self.scale = 2.0
        self.on = False
        self.kept: list[Tensor] = []


def captured(f, *args):
    """A TinyJit that has a capture."""
    jitted = TinyJit(f)
    for _ in range(3):
        jitted(*args)
    assert len(jitted.captures) == 1
    return jitted


# ---------------------------------------------------------------- 0, 1, 2


@pytest.mark.parametrize("value", [-1, 4, 10])
def test_other_values_are_refused(value):
    with pytest.raises(ValueError, match="context variable JIT is one of 0, 1, 2, 3, got"):
        Context(JIT=value).__enter__()


def test_jit_2_starts_kernels_one_by_one(monkeypatch):
    def f(x):
        return ((x + 1).realize() * 2).realize() - 1

    x = Tensor(numbers(6)).realize()
    jitted, calls = captured(f, x), [0]
    steps = jitted.captures[0]._steps
    original = type(steps)._run_apart
    monkeypatch.setattr(
        type(steps),
        "_run_apart",
        lambda self, *args: (calls.__setitem__(0, calls[0] + 1), original(self, *args))[1],
    )
    for mode, apart in ((1, 0), (2, 1)):
        with Context(JIT=mode):
            GlobalCounters.reset()
            got = jitted(x)
        assert (calls[0], GlobalCounters.kernel_count) == (apart, 3)
        np.testing.assert_array_equal(got.numpy(), (x.numpy() + 1) * 2 - 1)


def test_jit_0_neither_uses_nor_makes_captures():
    calls = [0]

    def f(x):
        calls[0] += 1
        return x + 1

    x = Tensor([1.0]).realize()
    jitted = captured(f, x)
    with Context(JIT=0):
        for _ in range(3):
            assert jitted(x).tolist() == [2.0]
    assert calls[0] == 5


# ---------------------------------------------------------------- 3: equal


@pytest.fixture
def both():
    with Context(JIT=3):
        yield


def test_all_runs_are_compared_and_effects_happen_once(both):
    state, log = Tensor(numbers(4)).realize(), []

    def f(x, y):
        log.append(1)
        state.assign(state * 0.5 + x)
        y += 1
        return {"sum": state.sum(), "noise": Tensor.rand(3), "y": [y * 2, 3.0]}

    plain = {"state": state.numpy(), "y": numbers(4, seed=9)}
    jitted, y = TinyJit(f), Tensor(plain["y"]).realize()
    Tensor.manual_seed(5)
    noise = [Tensor.rand(3).numpy() for _ in range(CALLS)]
    Tensor.manual_seed(5)
    for k in range(CALLS):
        x = Tensor(numbers(4, seed=k)).realize()
        result = jitted(x, y)
        plain["state"] = plain["state"] * np.float32(0.5) + x.numpy()
        plain["y"] = plain["y"] + 1
        np.testing.assert_array_equal(state.numpy(), plain["state"])
        np.testing.assert_array_equal(y.numpy(), plain["y"])
        np.testing.assert_array_equal(result["noise"].numpy(), noise[k])
        np.testing.assert_array_equal(result["y"][0].numpy(), plain["y"] * 2)
        assert len(log) == k + 1
    assert len(jitted.captures) == 1


def test_training_is_compared(both):
    x, y = images(batch=8)
    net = conv_net(tiny)
    set_weights(tiny, net)
    optimizer = nn.optim.Adam(nn.state.get_parameters(net), lr=1e-3)

    @TinyJit
    def step(x, y):
        with Tensor.train():
            optimizer.zero_grad()
            loss = net(x).sparse_categorical_crossentropy(y).backward()
            optimizer.step()
            return loss

    given = Tensor(x.astype(np.float32)).realize(), Tensor(y).realize()
    losses = [step(*given).item() for _ in range(4)]
    assert losses[-1] < losses[0] and len(step.captures) == 1


def test_nan_is_nan_and_zeros_have_signs(both):
    x = Tensor([float("nan"), -0.0, 0.0, float("inf")]).realize()
    f = captured(lambda x: (x * 2, x - x, -x), x)
    assert np.isnan(f(x)[0].numpy()[0])


def test_views_as_arguments_are_compared(both):
    base = Tensor(numbers(6, 50)).realize()
    f = TinyJit(lambda x: (x.sum(1), x @ x.T))
    for k in range(4):
        f(base[:, k : k + 40])
    assert len(f.captures) == 1


def test_nested_jits_are_compared_as_one(both):
    model = Model()
    inner = TinyJit(lambda x: (x * model.w).realize())
    outer = TinyJit(lambda x: inner(x).sum() + inner(x + 1).sum())
    for k in range(4):
        x = numbers(3, seed=k)
        outer(Tensor(x))
    assert len(outer.captures) == 1


def test_donated_arguments_are_compared(both):
    f = TinyJit(lambda x, y: x * 2 + y, donate="x")
    x, y = Tensor(numbers(5)).realize(), Tensor(numbers(5, seed=1)).realize()
    right = x.numpy()
    for _ in range(CALLS):
        x, right = f(x, y), right * 2 + y.numpy()
        np.testing.assert_array_equal(x.numpy(), right)


# ---------------------------------------------------------------- 3: what a capture can not see


def test_another_value_of_an_attribute_is_caught():
    model = Model()
    x = Tensor(numbers(3)).realize()
    f = captured(lambda x: {"a": [x + 1, x * model.scale]}, x)
    with Context(JIT=3):
        f(x)
        model.scale = 3.0
        expected = r"JIT=3: result\['a'\]\[1\] of a replay .* 3 of 3 elements differ, .* \(0,\)"
        for _ in range(2):
            with pytest.raises(JitError, match=expected):
                f(x)
        f.reset()
        np.testing.assert_array_equal(f(x)["a"][1].numpy(), x.numpy() * 3)


def test_the_message_says_where_and_by_how_much():
    model = Model()
    model.scale = [0, 0, 0, 0]
    x = Tensor(np.zeros((2, 2), np.float32)).realize()
    f = captured(lambda x: x + Tensor(model.scale, dtype="float32").reshape(2, 2), x)
    model.scale = [0, 0, 0.5, -4]
    with Context(JIT=3), pytest.raises(JitError) as caught:
        f(x)
    assert (
        "2 of 4 elements differ, the first at (1, 0): 0.0, plain 0.5; the largest difference is 4"
        in str(caught.value)
    )
    assert "pass it as an argument, or call reset()" in str(caught.value)


def test_a_sign_of_zero_is_a_difference():
    model = Model()
    x = Tensor([0.0]).realize()
    model.scale = 1.0
    f = captured(lambda x: x * model.scale, x)
    model.scale = -1.0
    with (
        Context(JIT=3),
        pytest.raises(JitError, match=r"1 of 1 elements differ.*0\.0, plain -0\.0"),
    ):
        f(x)


def test_another_tensor_is_written():
    model, log = Model(), Tensor(np.zeros(3, np.float32)).realize()

    def f(x):
        if model.on:
            log.assign(x)
        return x + 1

    x = Tensor(numbers(3)).realize()
    jitted = captured(f, x)
    model.on = True
    with Context(JIT=3), pytest.raises(JitError, match="log of a replay is not what a plain run"):
        jitted(x)
    np.testing.assert_array_equal(log.numpy(), x.numpy())  # the plain run counts


def test_a_tensor_is_no_longer_written():
    model = Model()
    model.on = True

    def f(x):
        if model.on:
            model.w.assign(model.w + x)
        return x + 1

    x = Tensor(numbers(3)).realize()
    jitted = captured(f, x)
    model.on, before = False, model.w.numpy()
    with Context(JIT=3), pytest.raises(JitError, match=r"model\.w of a replay is not"):
        jitted(x)
    np.testing.assert_array_equal(model.w.numpy(), before)


def test_an_argument_is_written():
    model = Model()

    def f(x):
        if model.on:
            x += 1
        return x * 2

    x = Tensor(numbers(3)).realize()
    jitted = captured(f, x)
    model.on = True
    with Context(JIT=3), pytest.raises(JitError, match=r"argument x of a replay|: result"):
        jitted(x)


def test_another_structure_is_returned():
    model = Model()
    x = Tensor(numbers(3)).realize()
    f = captured(lambda x: (x, x + 1)[1] if not model.on else (x + 1, x + 2), x)
    g = captured(lambda x: (x + 1, model.scale), x)
    model.on, model.scale = True, 5.0
    with Context(JIT=3):
        with pytest.raises(JitError, match=r"structure of the result.*result, plain result\[0"):
            f(x)
        with pytest.raises(JitError, match=r"result\[1\] of a replay .* 2\.0, plain 5\.0"):
            g(x)


def test_another_shape_or_dtype_is_returned():
    model = Model()
    x = Tensor(numbers(3)).realize()
    f = captured(lambda x: x[:2] + 1 if model.on else x + 1, x)
    g = captured(lambda x: (x + 1).cast("float64") if model.on else x + 1, x)
    model.on = True
    with Context(JIT=3):
        with pytest.raises(JitError, match=r"shape \(3,\) of float32, plain \(2,\) of float32"):
            f(x)
        with pytest.raises(JitError, match=r"of float32, plain \(3,\) of float64"):
            g(x)


def test_a_tensor_is_kept():
    model = Model()

    def f(x):
        y = x + 1
        if model.on:
            model.kept.append(y)
        return y * 2

    x = Tensor(numbers(3)).realize()
    jitted = captured(f, x)
    model.on = True
    with Context(JIT=3), pytest.raises(JitError, match=r"kept outside.*a tensor of shape \(3,\)"):
        jitted(x)


def test_other_random_numbers_are_drawn():
    model = Model()

    def f(x):
        if model.on:
            Tensor.rand(5)
        return x + Tensor.rand(3)

    x = Tensor(numbers(3)).realize()
    jitted = captured(f, x)
    model.on = True
    with Context(JIT=3), pytest.raises(JitError, match=r"result of a replay|random numbers"):
        jitted(x)

    def g(x):
        y = x + Tensor.rand(3)
        if model.on:
            Tensor.rand(5)
        return y

    model.on = False
    jitted = captured(g, x)
    model.on = True
    with Context(JIT=3), pytest.raises(JitError, match="the state of random numbers of a replay"):
        jitted(x)


def test_gradients_differ():
    model = Model()
    model.w.requires_grad = True

    def f(x):
        model.w.grad = None
        if model.on:
            (model.w * x * model.scale).sum().backward()
        return x + 1

    x = Tensor(numbers(3)).realize()
    jitted = captured(f, x)
    model.on = True
    with Context(JIT=3), pytest.raises(JitError, match=r"the gradient of model\.w.*plain one"):
        jitted(x)
    jitted = captured(f, x)
    with Context(JIT=3):
        jitted(x)
        model.scale = 5.0
        with pytest.raises(
            JitError, match=r"the gradient of model\.w of a replay.*3 of 3 elements"
        ):
            jitted(x)
        model.on = False
        with pytest.raises(JitError, match=r"the gradient of model\.w.*there is one, plain none"):
            jitted(x)


def test_what_a_plain_run_raises_is_raised():
    model = Model()

    def f(x):
        if model.on:
            raise KeyError("no")
        return x + 1

    x = Tensor(numbers(3)).realize()
    jitted = captured(f, x)
    model.on = True
    with Context(JIT=3), pytest.raises(KeyError):
        jitted(x)
    model.on = False
    with Context(JIT=3):
        np.testing.assert_array_equal(jitted(x).numpy(), x.numpy() + 1)


def test_a_plain_run_may_read_values():
    model = Model()

    def f(x):
        if model.on:
            model.scale = x.sum().item()
        return x + 1

    x = Tensor(numbers(3)).realize()
    jitted = captured(f, x)
    model.on = True
    with Context(JIT=3):
        jitted(x)
    np.testing.assert_allclose(model.scale, x.numpy().sum(), rtol=1e-5)


def test_nothing_is_left_behind():
    state = Tensor(numbers(50)).realize()
    f = TinyJit(lambda x: state.assign(state * 0.5 + x).sum())
    x = Tensor(numbers(50)).realize()
    with Context(JIT=3):
        for _ in range(4):
            f(x)
        gc.collect()
        held, objects = GlobalCounters.mem_used, len(gc.get_objects())
        for _ in range(20):
            f(x)
        gc.collect()
    assert GlobalCounters.mem_used == held
    assert len(gc.get_objects()) - objects < 50
