"""Donated arguments: results in their memory, and never in memory that somebody else still sees."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from tiny import Tensor, TinyJit
from tiny.engine.jit import JitError
from tiny.helpers import Context, GlobalCounters

CALLS = 5  # one plain, one captured, the rest replayed


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def address(x: Tensor) -> int:
    """Where its memory is; holding the Buffer would keep it from being used again."""
    return x.uop.handle.memory.address


def double(x, y):
    return x * 2 + y


@pytest.mark.parametrize("given", [("x",), (0,), "x", 0])
def test_a_result_takes_the_memory_of_a_donated_argument(given):
    f = TinyJit(double, donate=given)
    x, y = Tensor(numbers(1000)).realize(), Tensor(numbers(1000, seed=1)).realize()
    right = x.numpy()
    for k in range(CALLS):
        memory = address(x)
        x, right = f(x, y), right * 2 + y.numpy()
        np.testing.assert_array_equal(x.numpy(), right)
        assert (address(x) == memory) == (k >= 2)
    assert len(f.captures) == 1


def test_what_it_saves():
    y = Tensor(numbers(10_000)).realize()

    def taken(f) -> int:
        """The bytes that a replay takes, while the names of its arguments are held."""
        x = Tensor(numbers(10_000)).realize()
        for _ in range(3):
            x = f(x, y)
        held = GlobalCounters.mem_used
        result = f(x, y)
        return (GlobalCounters.mem_used - held) * (result.shape == x.shape)

    assert taken(TinyJit(double)) == 40_000
    assert taken(TinyJit(double, donate="x")) == 0


@pytest.mark.parametrize("jit", [0, 1, 2, 3])
def test_a_donated_tensor_can_not_be_read(jit):
    f = TinyJit(double, donate="x")
    y = Tensor(numbers(10)).realize()
    with Context(JIT=jit):
        for k in range(CALLS):
            x = Tensor(numbers(10, seed=k)).realize()
            expected = x.numpy() * 2 + y.numpy()
            np.testing.assert_array_equal(f(x, y).numpy(), expected)
            assert x.shape == (10,) and repr(x)
            for read in (lambda: x.numpy(), lambda: (x + 1).realize(), lambda: f(x, y)):  # noqa: B023
                with pytest.raises(JitError, match=r"of shape \(10,\) was donated to a call of"):
                    read()
            x.replace(Tensor(numbers(10)))  # may become another one
            assert x.numpy().shape == (10,)


def test_memory_that_somebody_else_sees_is_not_touched():
    f = TinyJit(double, donate="x")
    y = Tensor(numbers(2, 5)).realize()
    for _ in range(3):
        f(Tensor(numbers(2, 5)).realize(), y)

    x = Tensor(numbers(2, 5)).realize()
    before = x.numpy()
    others = {
        "a view": x[1],
        "another tensor of it": x.detach(),
        "something pending": x * 3,
        "an equal value": x.contiguous(),
        "its memory": np.frombuffer(x.data(), np.float32).reshape(2, 5),
    }
    result = f(x, y)
    np.testing.assert_array_equal(result.numpy(), before * 2 + y.numpy())
    np.testing.assert_array_equal(others["a view"].numpy(), before[1])
    np.testing.assert_array_equal(others["another tensor of it"].numpy(), before)
    np.testing.assert_array_equal(others["something pending"].numpy(), before * 3)
    np.testing.assert_array_equal(others["its memory"], before)


@pytest.mark.parametrize(
    "see",
    [
        lambda x: x[1],
        lambda x: x.T,
        lambda x: x.detach(),
        lambda x: x * 3,
        lambda x: x.data(),
        lambda x: Tensor(x.uop),
        lambda x: x.uop,
    ],
)
def test_each_way_to_see_memory_keeps_it(see, capsys):
    f = TinyJit(double, donate="x")
    y = Tensor(numbers(3, 4)).realize()
    for _ in range(3):
        f(Tensor(numbers(3, 4)).realize(), y)
    x = Tensor(numbers(3, 4)).realize()
    memory, kept = address(x), see(x)
    with Context(DEBUG=2):
        assert address(f(x, y)) != memory
    assert "donated memory" in capsys.readouterr().out and kept is not None
    x = Tensor(numbers(3, 4)).realize()
    memory = address(x)
    assert address(f(x, y)) == memory


def test_a_view_made_before_the_value_was_computed_keeps_it():
    f = TinyJit(double, donate="x")
    y = Tensor(numbers(3, 4)).realize()
    for k in range(CALLS):
        n = numbers(3, 4, seed=k)
        x = Tensor(n) + 1
        view, turned = x[1:], x.T
        np.testing.assert_array_equal(f(x, y).numpy(), (n + 1) * 2 + y.numpy())
        np.testing.assert_array_equal(view.numpy(), n[1:] + 1)
        np.testing.assert_array_equal(turned.numpy(), n.T + 1)


def test_memory_of_others_is_not_taken():
    f = TinyJit(double, donate="x")
    y = Tensor(numbers(16)).realize()
    whole = Tensor(numbers(2, 16)).realize()
    before = whole.numpy()
    for k in range(CALLS):
        np.testing.assert_array_equal(f(whole[k % 2], y).numpy(), before[k % 2] * 2 + y.numpy())
        np.testing.assert_array_equal(whole.numpy(), before)


def test_given_twice_and_kept_once():
    f = TinyJit(lambda x, y: (x * 2 + y, y * 3), donate="x")
    for k in range(CALLS):
        a = Tensor(numbers(4, seed=k)).realize()
        n = a.numpy()
        b = Tensor(a.uop)
        first, second = f(a, b)
        np.testing.assert_array_equal(first.numpy(), n * 2 + n)
        np.testing.assert_array_equal(second.numpy(), n * 3)
        np.testing.assert_array_equal(b.numpy(), n)


def test_a_tensor_that_the_step_reads_on_its_own_account_is_not_overwritten():
    state = Tensor(numbers(4)).realize()
    n = state.numpy()
    f = TinyJit(lambda x: x * 2 + state, donate="x")
    for k in range(CALLS):
        np.testing.assert_array_equal(f(Tensor(state.uop)).numpy(), n * 2 + n)
        np.testing.assert_array_equal(state.numpy(), n)
        x = numbers(4, seed=k)
        np.testing.assert_array_equal(f(Tensor(x)).numpy(), x * 2 + n)


def test_a_kernel_that_reads_other_elements_does_not_run_in_place():
    f = TinyJit(lambda x: (x.flip(0) + x, x.sum(0, keepdim=True) - x, x.cumsum(0)), donate="x")
    for k in range(CALLS):
        n = numbers(33, seed=k)
        a, b, c = f(Tensor(n))
        np.testing.assert_array_equal(a.numpy(), n[::-1] + n)
        np.testing.assert_allclose(b.numpy(), n.sum() - n, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(c.numpy(), np.cumsum(n), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(1,), (7, 13), (64, 64), (1000,), (3, 5, 17)])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float64", "float16"])
def test_updates_in_place_of_odd_shapes(shape, dtype):
    def f(x, y):
        z = (x * 2 - y).contiguous()
        return (x + z).maximum(y), z

    jitted = TinyJit(f, donate=("x", "y"))
    for k in range(CALLS):
        a = np.random.default_rng(k).integers(-5, 6, shape).astype(dtype)
        b = np.random.default_rng(k + 99).integers(-5, 6, shape).astype(dtype)
        first, second = jitted(Tensor(a), Tensor(b))
        np.testing.assert_array_equal(second.numpy(), a * 2 - b)
        np.testing.assert_array_equal(first.numpy(), np.maximum(a + (a * 2 - b), b))
    assert jitted.captures[0].placed == {0: 0}  # y is read after the second is written
    both = TinyJit(lambda x, y: (x * 2, (y * 3).contiguous()), donate=("x", "y"))
    for _ in range(3):
        first, second = both(Tensor(a), Tensor(b))
        assert first.numpy().tobytes() == (a * 2).tobytes()
        assert second.numpy().tobytes() == (b * 3).tobytes()
    assert both.captures[0].placed == {0: 0, 1: 1}


def test_state_that_is_passed_along():
    @TinyJit(donate="state")
    def step(state, x, *, rate=0.5):
        momentum = state["m"] * rate + x
        return {"m": momentum, "w": state["w"] - momentum}, (state["w"] * x).sum()

    w, m = numbers(4, 3), np.zeros((4, 3), np.float32)
    state = {"m": Tensor(m).realize(), "w": Tensor(w).realize()}
    for k in range(CALLS + 2):
        memory = {address(state["m"]), address(state["w"])}
        x = numbers(4, 3, seed=k)
        state, loss = step(state, Tensor(x))
        np.testing.assert_allclose(loss.item(), (w * x).sum(), rtol=1e-4, atol=1e-5)
        m = m * np.float32(0.5) + x
        w = w - m
        np.testing.assert_allclose(state["w"].numpy(), w, rtol=1e-5, atol=1e-6)
        now = {address(state["m"]), address(state["w"])}
        assert k < 2 or now & memory


def test_a_donated_argument_may_be_written_and_returned():
    @TinyJit(donate="cache")
    def push(cache, row):
        cache[2:3] = row
        return cache, cache.sum(0)

    right = np.zeros((4, 3), np.float32)
    cache = Tensor(right).realize()
    for k in range(CALLS):
        memory = address(cache)
        right[2] = numbers(3, seed=k)
        cache, total = push(cache, Tensor(right[2:3].copy()))
        np.testing.assert_array_equal(cache.numpy(), right)
        np.testing.assert_allclose(total.numpy(), right.sum(0), rtol=1e-6)
        assert k < 2 or address(cache) == memory
    seen, row = cache[2], numbers(1, 3, seed=77)
    result, _ = push(cache, Tensor(row))  # runs plainly
    np.testing.assert_array_equal(seen.numpy(), row[0])
    seen.assign(Tensor.zeros(3)).realize()
    np.testing.assert_array_equal(result.numpy()[2], np.zeros(3))


def test_a_donated_argument_may_be_returned_as_it_is():
    f = TinyJit(lambda x, y: (x, x.T, y + 1), donate="x")
    for k in range(CALLS):
        n = numbers(2, 3, seed=k)
        x = Tensor(n)
        view = x[1] if k % 2 else None
        same, turned, _ = f(x, Tensor(n))
        same += 1
        np.testing.assert_array_equal(same.numpy(), n + 1)
        np.testing.assert_array_equal(turned.numpy(), n.T + 1)  # one tensor, as without a jit
        assert view is None or np.array_equal(view.numpy(), n[1] + 1)


def test_a_donated_argument_may_be_written_and_dropped():
    @TinyJit(donate="x")
    def f(x, y):
        x += y
        return (x * x).sum()

    for k in range(CALLS):
        a, b = numbers(5, seed=k), numbers(5, seed=k + 50)
        x = Tensor(a)
        view = x[1:3]
        np.testing.assert_allclose(f(x, Tensor(b)).item(), ((a + b) ** 2).sum(), rtol=1e-5)
        np.testing.assert_array_equal(view.numpy(), (a + b)[1:3])


class Cache:
    def __init__(self) -> None:
        self.scale = Tensor([2.0]).realize()

    @TinyJit(donate="x")
    def by_name(self, x, y):
        return x * self.scale + y

    @TinyJit(donate=0)
    def by_number(self, x, y):
        return x * self.scale + y


@pytest.mark.parametrize("how", ["by_name", "by_number"])
def test_methods(how):
    cache = Cache()
    x, y = Tensor(numbers(6)).realize(), Tensor(numbers(6, seed=1)).realize()
    for k in range(CALLS):
        n, memory, old = x.numpy(), address(x), x
        x = getattr(cache, how)(x, y)
        np.testing.assert_array_equal(x.numpy(), n * 2 + y.numpy())
        assert k < 2 or address(x) == memory
        with pytest.raises(JitError, match="was donated"):
            old.numpy()


def test_decorators_and_copies_keep_what_is_donated():
    @TinyJit
    def plain(x):
        return x + 1

    @TinyJit(donate=("y", "x"))
    def both(x, y):
        return x + y

    @TinyJit()
    def neither(x):
        return x + 1

    assert plain.donate == neither.donate == () and both.donate == ("y", "x")
    assert copy.deepcopy(both).donate == copy.copy(both).donate == ("y", "x")
    assert pickle.loads(pickle.dumps(TinyJit(double, donate="x"))).donate == ("x",)


@pytest.mark.parametrize("donate", ["z", 2, ("x", "z"), -1])
def test_parameters_that_there_are_not_are_refused(donate):
    with pytest.raises(TypeError, match="is no parameter of the function, which has x, y"):
        TinyJit(double, donate=donate)


def test_inside_another_jit_nothing_is_given_away():
    inner = TinyJit(double, donate="x")
    outer = TinyJit(lambda x: (inner(x + 0, x + 1), x * 5))
    for k in range(CALLS):
        n = numbers(4, seed=k)
        x = Tensor(n)
        a, b = outer(x)
        np.testing.assert_array_equal(a.numpy(), n * 2 + (n + 1))
        np.testing.assert_array_equal(b.numpy(), n * 5)
        np.testing.assert_array_equal(x.numpy(), n)
    assert len(outer.captures) == 1 and outer.captures[0].spent == []


def test_a_call_that_fails_gives_nothing_away():
    fail = [True]

    @TinyJit(donate="x")
    def f(x):
        if fail[0]:
            raise KeyError("no")
        return x + 1

    x = Tensor([1.0]).realize()
    with pytest.raises(KeyError):
        f(x)
    assert x.tolist() == [1.0]
