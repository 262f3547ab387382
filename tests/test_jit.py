"""TinyJit: replays equal plain runs, or JitError says why they would not."""

from __future__ import annotations

import copy
import gc
import threading
import tracemalloc
import warnings
import weakref
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest

import tiny
from tiny import Tensor, TinyJit, Variable, nn, storage
from tiny.bench.models import conv_net, digits_net, images, set_weights
from tiny.engine.jit import JitError
from tiny.helpers import Context, GlobalCounters
from tiny.uop.ops import BufferArg, Ops, UOp

CALLS = 5  # one plain, one captured, the rest replayed


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def inputs(*shape: int, calls: int = CALLS) -> list[Tensor]:
    return [Tensor(numbers(*shape, seed=k)).realize() for k in range(calls)]


def built(monkeypatch) -> list[int]:
    """How often a graph was computed, to see what replays do not do."""
    count = [0]
    original = tiny.engine.DeviceRuntime.realize

    def counting(self, *args):
        count[0] += 1
        return original(self, *args)

    monkeypatch.setattr(tiny.engine.DeviceRuntime, "realize", counting)
    return count


# ---------------------------------------------------------------- arguments and results


def test_replays_equal_plain_runs_and_build_nothing(monkeypatch):
    w = Tensor(numbers(4, 3)).realize()

    def f(x):
        return ((x @ w).relu().realize() * 2).sum(0)

    jitted, xs = TinyJit(f), inputs(5, 4)
    expected = [f(x).numpy() for x in xs]
    count = built(monkeypatch)
    results = []
    for k, x in enumerate(xs):
        before = count[0]
        results.append(jitted(x))
        assert (count[0] == before) == (k >= 2)
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.numpy(), right)
    assert len(jitted.captures) == 1


@pytest.mark.parametrize("result", [None, (), [], {}, 5])
def test_a_step_may_return_no_tensor(result):
    x = Tensor.zeros(3).contiguous().realize()

    def step():
        x.assign(x + 1).realize()
        return result

    jitted = TinyJit(step)
    for k in range(CALLS):
        assert jitted() == result
        np.testing.assert_array_equal(x.numpy(), [k + 1.0] * 3)
    assert len(jitted.captures) == 1


def test_results_are_not_overwritten_by_later_calls():
    f = TinyJit(lambda x: (x + 1, x * 2))
    xs = inputs(7)
    kept = [f(x) for x in xs]
    for x, (a, b) in zip(xs, kept, strict=True):
        np.testing.assert_array_equal(a.numpy(), x.numpy() + 1)
        np.testing.assert_array_equal(b.numpy(), x.numpy() * 2)
    kept[-1][0].assign(kept[-1][1]).realize()  # and are one's own
    np.testing.assert_array_equal(f(xs[-1])[0].numpy(), xs[-1].numpy() + 1)


class Pair(NamedTuple):
    first: Tensor
    rest: list[Any]


def test_structures_come_back_as_they_are():
    @TinyJit
    def f(x, more, *, scale):
        total = x + more["a"][0] * more["b"]
        return Pair(total, [{"n": 3, "t": total.sum()}, None, (scale, "text", x.T + 0)])

    for k, x in enumerate(inputs(2, 3)):
        a, b = Tensor(numbers(2, 3, seed=k + 10)), Tensor(numbers(3, seed=k + 20))
        result = f(x, {"a": [a], "b": b}, scale=2.5)
        right = x.numpy() + a.numpy() * b.numpy()
        assert type(result) is Pair and result.rest[1] is None
        np.testing.assert_allclose(result.first.numpy(), right, rtol=1e-6)
        assert list(result.rest[0]) == ["n", "t"] and result.rest[0]["n"] == 3
        np.testing.assert_allclose(result.rest[0]["t"].item(), right.sum(), rtol=1e-5)
        assert result.rest[2][:2] == (2.5, "text")
        np.testing.assert_array_equal(result.rest[2][2].numpy(), x.numpy().T)


def test_a_tensor_given_twice_is_one_and_two_are_two():
    @TinyJit
    def f(x, y):
        return x * 10 + y

    a, b = inputs(3, calls=2)
    for _ in range(3):
        np.testing.assert_array_equal(f(a, a).numpy(), a.numpy() * 10 + a.numpy())
    for _ in range(3):
        np.testing.assert_array_equal(f(a, b).numpy(), a.numpy() * 10 + b.numpy())
        np.testing.assert_array_equal(f(b, b).numpy(), b.numpy() * 10 + b.numpy())
    assert len(f.captures) == 2


def test_a_written_argument_given_twice_is_seen_by_both():
    @TinyJit
    def f(x, y):
        x += 1
        return y * 2

    for _ in range(4):
        a = Tensor([1.0, 2.0]).realize()
        assert f(a, a).tolist() == [4.0, 6.0]
        assert a.tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[2:4],
        lambda x: x[3],
        lambda x: x[:, 1:3],
        lambda x: x.T,
        lambda x: x.flip(0),
        lambda x: x.reshape(12, 2),
        lambda x: x[1:, ::2],
        lambda x: x[2:4].reshape(2, 2, 2)[1],
    ],
)
def test_views_can_be_given(view):
    f = TinyJit(lambda x: x * 2 + 1)
    base = Tensor(numbers(6, 4)).realize()
    for k in range(CALLS):
        base.assign(Tensor(numbers(6, 4, seed=k))).realize()
        np.testing.assert_array_equal(f(view(base)).numpy(), view(base).numpy() * 2 + 1)
    assert len(f.captures) == 1


@pytest.mark.parametrize("mode", [1, 3])
@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[:, 1:3], lambda x: x, lambda x: x[2:]])
def test_what_contiguous_gives_of_an_argument_is_a_copy_or_a_view_as_without_a_jit(view, mode):
    def f(x):
        c = x.contiguous()
        c.assign(c + 1)
        return c * 1 + x

    jitted = TinyJit(f)
    plain, base = (Tensor(numbers(4, 4)).realize() for _ in range(2))
    for _ in range(CALLS):
        with Context(JIT=mode):
            got = jitted(view(base)).numpy()
        np.testing.assert_array_equal(got, f(view(plain)).numpy())
        np.testing.assert_array_equal(base.numpy(), plain.numpy())
    assert len(jitted.captures) == 1
    x = Tensor(numbers(*view(base).shape)).realize()
    for _ in range(3):  # another signature, where the other kind differs
        y = Tensor(x.numpy())
        np.testing.assert_array_equal(jitted(x).numpy(), f(y).numpy())
        np.testing.assert_array_equal(x.numpy(), y.numpy())


def test_slices_of_one_shape_share_a_capture(monkeypatch):
    f = TinyJit(lambda x: x.sum(1))
    data = Tensor(numbers(40, 3)).realize()
    for k in range(10):
        count = built(monkeypatch) if k == 2 else None
        batch = data[k * 4 : k * 4 + 4]
        np.testing.assert_allclose(f(batch).numpy(), data.numpy()[k * 4 : k * 4 + 4].sum(1), 1e-6)
    assert len(f.captures) == 1 and count is None


def test_lazy_arguments_and_constants_can_be_given():
    f = TinyJit(lambda x, y: x * y)
    for k in range(CALLS):
        x = Tensor(numbers(3, seed=k)) + 1
        assert f(x, Tensor(k + 0.5, dtype="float32")).tolist() == (x * (k + 0.5)).tolist()
    assert len(f.captures) == 1


numbers_of_dtypes = [
    ("float32", [3.0, 0.1, -0.0, 1.0, 2.0, float("nan"), float("inf"), 1e300]),
    ("float16", [3.0, 0.1, -0.0, 65519.0, 1e-8]),
    ("float64", [3.0, 0.1, 1e300]),
    ("int32", [3, 0, -7, 2**20]),
    ("uint8", [3, 0, 255]),
    ("int64", [3, 2**40]),
    ("float32", [3, 0, 2**40 + 1]),
    ("int32", [0.5, 3.25]),
]


@pytest.mark.parametrize(("dtype", "values"), numbers_of_dtypes)
def test_numbers_as_tensors_are_inputs_and_stay_without_a_dtype(dtype, values):
    def f(x, number):
        return x * number, number + x, (x < number).cast("int32"), number - x.float()

    jitted = TinyJit(f)
    x = Tensor([1, 2, 3], dtype=dtype).realize()
    for value in [*values, *values]:
        for got, right in zip(jitted(x, Tensor(value)), f(x, Tensor(value)), strict=True):
            assert got.dtype is right.dtype
            np.testing.assert_array_equal(got.numpy(), right.numpy())
    assert len(jitted.captures) == 1


def test_a_number_as_a_tensor_can_be_returned_only_as_a_copy():
    f = TinyJit(lambda x, n: (x + 1, n))
    f(Tensor([1.0]), Tensor(2.0))
    with pytest.raises(JitError, match=r"the number that it was given as a tensor in result\[1\]"):
        f(Tensor([1.0]), Tensor(2.0))
    g = TinyJit(lambda x, n: (x + 1, n + 0))
    for k in range(CALLS):
        assert g(Tensor([1.0]), Tensor(k + 0.5))[1].item() == k + 0.5


def test_tensors_without_elements_and_dimensions():
    f = TinyJit(lambda x, e: (x + 1, e * 2, e.sum()))
    for k in range(CALLS):
        a, b, c = f(Tensor(float(k), dtype="float32"), Tensor.empty(0, 3))
        assert (a.item(), b.shape, c.item()) == (k + 1, (0, 3), 0)


def test_results_that_are_views_of_new_memory():
    def f(x):
        y = x * 2
        return y, y.T, y[1:], y.sum(0).expand(4, 3), y.reshape(-1)

    jitted = TinyJit(f)
    for x in inputs(4, 3):
        made = jitted(x)
        for got, right in zip(made, f(x), strict=True):
            np.testing.assert_array_equal(got.numpy(), right.numpy())
        made[0].assign(made[0] + 1).realize()  # views of it see that, as they do without the jit
        np.testing.assert_array_equal(made[1].numpy(), x.numpy().T * 2 + 1)


def test_one_value_returned_twice():
    f = TinyJit(lambda x: (x + 1, x + 1))
    for x in inputs(3):
        a, b = f(x)
        a.assign(Tensor([9.0, 9.0, 9.0])).realize()
        np.testing.assert_array_equal(b.numpy(), x.numpy() + 1)


def test_a_constant_result_beside_computed_ones():
    f = TinyJit(lambda x: (x + 1, Tensor(2.0), Tensor.ones(2), Tensor([1, 2])))
    for x in inputs(3):
        a, b, c, d = f(x)
        assert (b.item(), c.tolist(), d.tolist()) == (2.0, [1.0, 1.0], [1, 2])
        np.testing.assert_array_equal(a.numpy(), x.numpy() + 1)
        c.assign(Tensor([5.0, 6.0])).realize()
        d.assign(Tensor([7, 8])).realize()


def test_a_variable_is_an_input():
    f = TinyJit(lambda x, i: (x * i).sum())
    x = Tensor(numbers(5)).realize()
    for k in range(1, CALLS + 1):
        got = f(x, Variable("i", 1, 10).bind(k)).item()
        np.testing.assert_allclose(got, (x.numpy() * k).sum(), rtol=1e-5)
    assert len(f.captures) == 1


def test_memory_made_inside_and_written_in_parts():
    @TinyJit
    def f(x):
        out = Tensor.zeros(4)
        out[1:3] = x
        table = Tensor([1.0, 2.0, 3.0, 4.0])
        table[0:2] += x
        return out + 0, table

    for x in inputs(2):
        out, table = f(x)
        a, b = x.tolist()
        np.testing.assert_array_equal(out.numpy(), np.array([0, a, b, 0], np.float32))
        np.testing.assert_allclose(table.numpy(), [1 + a, 2 + b, 3, 4], rtol=1e-6)


# ---------------------------------------------------------------- signatures


def test_another_signature_is_another_capture():
    f = TinyJit(lambda x, n=1, *, how="a": x * n + (1 if how == "a" else 0))
    calls = [
        lambda: f(Tensor([1.0, 2.0])),
        lambda: f(Tensor([1.0])),
        lambda: f(Tensor([1, 2])),
        lambda: f(Tensor([1.0, 2.0]), 1.0),
        lambda: f(Tensor([1.0, 2.0]), 2),
        lambda: f(Tensor([1.0, 2.0]), how="b"),
        lambda: f(Tensor([1.0, 2.0]), n=2, how="b"),
    ]
    same = [
        lambda: f(Tensor([1.0, 2.0]), 1),
        lambda: f(n=1, x=Tensor([3.0, 4.0])),
        lambda: f(Tensor([1.0, 2.0]), 2, how="b"),
        lambda: f(Tensor([1.0, 2.0]), how="b", n=2),
    ]
    values = [call().tolist() for call in calls]
    for _ in range(3):
        assert [call().tolist() for call in calls] == values
    assert [call().tolist() for call in same] == [[2.0, 3.0], [4.0, 5.0], [2.0, 4.0], [2.0, 4.0]]
    assert len(f.captures) == len(calls)


scale = 1.0


def test_numbers_that_the_code_names_are_part_of_the_signature():
    global scale
    offset, on = 1, True

    @TinyJit
    def f(x):
        y = x * scale + offset
        return (lambda v: v if on else -v)(y)

    x = Tensor([1.0, 2.0]).realize()
    for scale in (1.0, 3.0, 0.0, -0.0):
        for offset in (1, 2):
            for on in (True, False):
                for _ in range(1):
                    right = (np.array([1.0, 2.0]) * scale + offset) * (1 if on else -1)
                    assert f(x).tolist() == right.tolist()
    scale, offset = 3.0, 2
    for on in (True, False, True, False, True, False):
        assert f(x).tolist() == [5.0 * (1 if on else -1), 8.0 * (1 if on else -1)]


numel = 0


def test_attributes_are_not_taken_for_globals_of_the_same_name():
    global numel
    f = TinyJit(lambda x: x / x.numel())
    for _ in range(CALLS):
        numel += 1
        assert f(Tensor([1.0, 2.0])).tolist() == [0.5, 1.0]
    assert len(f.captures) == 1


def test_tensors_that_the_code_names_are_part_of_the_signature():
    a, b = Tensor([1.0, 2.0]).realize(), Tensor([5.0, 6.0]).realize()
    now = a

    @TinyJit
    def f(x):
        return x * now

    x = Tensor([1.0, 1.0]).realize()
    for now in (a, b, a, b, a, b, a, b):
        assert f(x).tolist() == now.tolist()
    assert len(f.captures) == 2


def test_dicts_of_other_kinds_are_given_and_returned():
    class Settings(dict):
        pass

    @TinyJit
    def f(d):
        return OrderedDict(b=d["x"] + 1, a=d["n"])

    for k in range(CALLS):
        d = Settings(x=Tensor([float(k)]), n=3)
        more = defaultdict(list, x=Tensor([float(k)]), n=3)
        for given in (d, more):
            result = f(given)
            assert list(result) == ["b", "a"] and type(result) is OrderedDict
            assert (result["b"].tolist(), result["a"]) == ([k + 1.0], 3)


def test_training_is_part_of_the_signature():
    f = TinyJit(lambda x: x.dropout(0.5) + 0)
    x = Tensor.ones(1000).realize()
    for _ in range(3):
        assert f(x).numpy().min() == 1
        with Tensor.train():
            assert f(x).numpy().min() == 0


def test_the_number_of_captures_is_bounded_and_said():
    f = TinyJit(lambda x, n: x + n)
    x = Tensor([1.0]).realize()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(16):
            for _ in range(3):
                assert f(x, n).tolist() == [1.0 + n]
    message = "captured for 16 signatures.*: n was int 15, then int 16; further calls run plainly"
    with pytest.warns(UserWarning, match=message) as caught:
        assert f(x, 16).tolist() == [17.0]
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(16, 40):
            assert f(x, n).tolist() == [1.0 + n]
    assert len(f.captures) == 16
    f.reset()
    assert f(x, 1).tolist() == [2.0] and f.captures == []


def test_jit_0_runs_plainly():
    f = TinyJit(lambda x: x + 1)
    with Context(JIT=0):
        for _ in range(3):
            assert f(Tensor([1.0])).tolist() == [2.0]
    assert f.captures == []


# ---------------------------------------------------------------- state


def test_state_is_written_and_read_by_replays():
    count, total = Tensor([0.0]).realize(), Tensor.zeros(3).realize()

    @TinyJit
    def f(x):
        count.assign(count + 1)
        total.assign(total + x * count)
        return total.sum()

    right = np.zeros(3, np.float32)
    for k, x in enumerate(inputs(3)):
        got = f(x)
        right += x.numpy() * (k + 1)
        assert count.item() == k + 1
        np.testing.assert_allclose(total.numpy(), right, rtol=1e-6)
        np.testing.assert_allclose(got.item(), right.sum(), rtol=1e-5)


def test_a_view_of_state_sees_what_replays_write():
    state = Tensor(numbers(4, 3)).realize()
    row, flat = state[1], state.reshape(12)
    f = TinyJit(lambda x: state.assign(state * 2 + x).sum())
    for x in inputs(4, 3):
        f(x)
        np.testing.assert_array_equal(row.numpy(), state.numpy()[1])
        np.testing.assert_array_equal(flat.numpy(), state.numpy().reshape(12))


def test_pending_reads_of_state_keep_the_value_that_they_saw():
    state = Tensor([1.0, 2.0]).realize()
    f = TinyJit(lambda x: state.assign(state + x).sum())
    one = Tensor([1.0, 1.0]).realize()
    lazies, copies = [], []
    for _ in range(CALLS + 3):
        lazies.append(state * 10)
        copies.append(state.numpy())
        lazies.append(state.clone())
        f(one)
    for k, then in enumerate(copies):
        np.testing.assert_array_equal(lazies[2 * k].numpy(), then * 10)
        np.testing.assert_array_equal(lazies[2 * k + 1].numpy(), then)


def test_a_long_pending_sum_beside_a_step_takes_linear_time():
    state = Tensor([0.0]).realize()
    f = TinyJit(lambda x: (state.assign(state + x), x * 2)[1])
    one, losses, visited = Tensor([1.0]).realize(), Tensor([0.0]).realize(), []
    original = storage._reads_any

    def counting(root, buffers, clean):
        before = len(clean)
        found = original(root, buffers, clean)
        visited.append(len(clean) - before)
        return found

    storage._reads_any = counting
    try:
        for _ in range(200):
            losses = losses + f(one)
    finally:
        storage._reads_any = original
    assert sum(visited) < 1000
    assert losses.item() == 400 and state.item() == 200


def test_writes_from_outside_are_seen():
    w = Tensor([1.0, 2.0]).realize()
    f = TinyJit(lambda x: x * w)
    x = Tensor([1.0, 1.0]).realize()
    for k in range(CALLS):
        w.assign(Tensor([float(k), 5.0]))  # still pending
        assert f(x).tolist() == [k, 5.0]
        w[1:] = Tensor([7.0]).realize()
        assert f(x).tolist() == [k, 7.0]
    assert len(f.captures) == 1


@pytest.mark.parametrize("how", ["replace", "rebind", "uop"])
def test_a_tensor_replaced_from_outside_is_captured_anew(how):
    class Model:
        w = Tensor([1.0, 2.0]).realize()

    model = Model()
    model.w = Tensor([1.0, 2.0]).realize()
    f = TinyJit(lambda x: x * model.w)
    x = Tensor([1.0, 1.0]).realize()
    kept = model.w[0:1]  # a view does not keep it
    for k in range(3):
        for _ in range(4):
            assert f(x).tolist() == model.w.tolist()
        new = Tensor([k + 0.5, 9.0]).realize()
        if how == "replace":
            model.w.replace(new)
        elif how == "uop":
            model.w.uop = new.uop
        else:
            model.w = new
        assert f(x).tolist() == [k + 0.5, 9.0]
    assert kept.tolist() == [1.0]


@pytest.mark.parametrize("make", [float, lambda k: k, lambda k: [float(k)] * 2])
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_a_constant_tensor_replaced_from_outside_is_captured_anew(make, dtype):
    class Model:
        rate = Tensor(1.0)

    model, x = Model(), Tensor([1.0, 2.0]).realize()
    rate = Tensor(1.0)

    f = TinyJit(lambda x: x * model.rate)
    g = TinyJit(lambda x: x * rate)
    for k in range(4):
        model.rate = rate = Tensor(make(k), dtype=dtype)
        for _ in range(4):
            assert f(x).tolist() == g(x).tolist() == [k, 2.0 * k]
        other = Tensor(7.0)  # of the same kind, and not read
        assert f(x).tolist() == g(x).tolist() == [k, 2.0 * k]
        del other
        f(x)
    assert f._table.losses <= 4 and g._table.losses <= 4
    if dtype is not None:
        model.rate.assign(model.rate * 0 + 9.0)
        for _ in range(4):
            assert f(x).tolist() == [9.0, 18.0]


def test_tensors_replaced_at_every_call_run_plainly_with_a_warning():
    class Model:
        w: Tensor

    model = Model()
    f = TinyJit(lambda x: x * model.w)
    x = Tensor([1.0]).realize()
    with pytest.warns(UserWarning, match="were replaced between calls"):
        for k in range(40):
            model.w = Tensor([float(k)]).realize()
            for _ in range(2):
                assert f(x).tolist() == [k]


def test_two_tensors_are_swapped():
    a, b = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0]).realize()

    @TinyJit
    def swap(x):
        old = a + 0
        a.assign(b)
        b.assign(old)
        return a * x

    one = Tensor([1.0, 1.0]).realize()
    for k in range(6):
        first = [3.0, 4.0] if k % 2 == 0 else [1.0, 2.0]
        assert swap(one).tolist() == first == a.tolist()
        assert b.tolist() == ([1.0, 2.0] if k % 2 == 0 else [3.0, 4.0])


def test_lazy_state_gets_memory_before_the_capture():
    state = Tensor.uniform(4)  # never realised by anyone
    right = (state + 0).numpy()
    other = state * 2  # reads it, and stays pending
    f = TinyJit(lambda x: state.assign(state + x).sum())
    for x in inputs(4):
        f(x)
        right = right + x.numpy()
        np.testing.assert_allclose(state.numpy(), right, rtol=1e-6)
    assert other.shape == (4,)


def test_equal_values_that_share_memory_are_told_apart():
    x = Tensor([1.0, 2.0]).realize()
    a, b = x + 1, x + 1
    Tensor.realize(a, b)  # one node, one BUFFER, two values

    @TinyJit
    def f(x):
        b.assign(b + x)
        return a + b

    total = np.array([2.0, 3.0])
    for _ in range(CALLS):
        total = total + [1.0, 2.0]
        assert f(x).tolist() == (total + [2.0, 3.0]).tolist()
        assert (a.tolist(), b.tolist()) == ([2.0, 3.0], total.tolist())


def test_a_kept_value_beside_what_a_replay_writes():
    # what a plain run computed from equal graphs may share the memory of state
    state = Tensor([1.0, 2.0]).realize()
    f = TinyJit(lambda x: state.assign(state + x).sum())
    one = Tensor([1.0, 1.0]).realize()
    for _ in range(CALLS):
        before = state.tolist()
        same, turned = state.contiguous().reshape(1, 2) + 0, state.detach().flip(0).contiguous()
        f(one)
        assert same.tolist() == [before] and turned.tolist() == before[::-1]


def test_an_argument_that_is_written():
    @TinyJit
    def push(cache, row, at):
        cache[at : at + 1] = row
        return cache.sum(0)

    cache, other = Tensor.zeros(4, 3).realize(), Tensor.ones(4, 3).realize()
    for target in (cache, other):
        right = target.numpy()
        view, pending = target[1], target * 2
        before = right.copy()
        for k in range(CALLS):
            row = Tensor(numbers(1, 3, seed=k)).realize()
            right[2:3] = row.numpy()
            np.testing.assert_allclose(push(target, row, 2).numpy(), right.sum(0), rtol=1e-6)
            np.testing.assert_array_equal(target.numpy(), right)
            np.testing.assert_array_equal(view.numpy(), right[1])
        np.testing.assert_array_equal(pending.numpy(), before * 2)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[1:3],
        lambda x: x[2],
        lambda x: x[:, 1:3],
        lambda x: x.T,
        lambda x: x.flip(1)[::2],
        lambda x: x.reshape(12, 2)[4:9],
    ],
)
def test_a_written_argument_may_be_a_view(view):
    @TinyJit
    def f(x, y):
        x += y
        return x * 2

    base = Tensor(numbers(6, 4)).realize()
    right = base.numpy()
    for k in range(CALLS):
        part = view(base)
        pending, row = base * 3, base[2]
        before = base.numpy()
        right_part = view(Tensor(right)).numpy() + k
        got = f(part, Tensor(float(k)))
        np.testing.assert_array_equal(got.numpy(), right_part * 2)
        np.testing.assert_array_equal(part.numpy(), right_part)
        np.testing.assert_array_equal(pending.numpy(), before * 3)
        rest = np.arange(24).reshape(6, 4)
        mine = view(Tensor(rest)).numpy().reshape(-1)
        right = right.reshape(-1)
        right[mine] = right_part.reshape(-1)
        right = right.reshape(6, 4)
        np.testing.assert_array_equal(base.numpy(), right)
        np.testing.assert_array_equal(row.numpy(), right[2])
    assert len(f.captures) == 1


def test_a_written_argument_that_shares_memory_with_an_equal_one():
    @TinyJit
    def f(x):
        x += 1
        return x * 2

    for _ in range(CALLS):
        base = Tensor([1.0, 2.0]).realize()
        a, b = base * 3, base * 3
        Tensor.realize(a, b)
        assert f(b).tolist() == [8.0, 14.0]
        assert (a.tolist(), b.tolist()) == ([3.0, 6.0], [4.0, 7.0])


def test_a_cache_of_keys_and_values():
    class Attention:
        def __init__(self):
            self.cache = Tensor.zeros(2, 8, 4).realize()

        def __call__(self, x, at):
            self.cache[:, at : at + 1] = x
            scores = (self.cache[0, : at + 1] * x[0]).sum(1, keepdim=True)
            return (scores.softmax(0) * self.cache[1, : at + 1]).sum(0)

    plain, jitted = Attention(), Attention()
    f = TinyJit(jitted)
    for _ in range(4):
        for at in (0, 3, 5):
            x = Tensor(numbers(2, 1, 4, seed=at)).realize()
            np.testing.assert_array_equal(f(x, at).numpy(), plain(x, at).numpy())
            np.testing.assert_array_equal(jitted.cache.numpy(), plain.cache.numpy())


def test_state_that_is_returned_is_a_view_of_it():
    state = Tensor([1.0, 2.0]).realize()
    f = TinyJit(lambda x: (state.assign(state + x), state[1:]))
    kept = [f(Tensor([1.0, 1.0])) for _ in range(CALLS)]
    for whole, part in kept:  # as without the jit
        assert whole.tolist() == [6.0, 7.0] and part.tolist() == [7.0]


def test_results_that_are_state_may_be_dropped():
    state = Tensor([1.0, 2.0]).realize()
    f = TinyJit(lambda x: (state.assign(state + x), state)[1])
    for k in range(8):
        result = f(Tensor([1.0, 1.0]))
        assert result.tolist() == [k + 2.0, k + 3.0]
        del result
    assert len(f.captures) == 1 and f._table.losses == 0
    kept = f(Tensor([1.0, 1.0]))
    g = TinyJit(lambda x: x * state)
    for _ in range(3):
        g(Tensor([1.0, 1.0]))
    del kept
    for _ in range(3):
        assert g(Tensor([1.0, 1.0])).tolist() == state.tolist()
    assert g._table.losses == 0


def test_a_returned_tensor_from_outside_that_is_replaced_is_returned_anew():
    class Model:
        c = Tensor([1.0]).realize()

    model = Model()
    f = TinyJit(lambda x: (x + 1, model.c))
    for k in range(3):
        model.c = Tensor([float(k)]).realize()
        for _ in range(3):
            assert [t.tolist() for t in f(Tensor([1.0]))] == [[2.0], [float(k)]]


# ---------------------------------------------------------------- training


def training(jit: bool, net, x, y, optimizer):
    def step(x, y):
        with Tensor.train():
            optimizer.zero_grad()
            loss = net(x).sparse_categorical_crossentropy(y).backward()
            optimizer.step()
            return loss

    return TinyJit(step) if jit else step


def same_state(a, b) -> None:
    a, b = nn.state.get_state_dict(a), nn.state.get_state_dict(b)
    for name in a:
        np.testing.assert_array_equal(a[name].numpy(), b[name].numpy(), err_msg=name)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_training_equals_the_plain_run_bit_for_bit(optimizer):
    made = []
    for jit in (False, True):
        net = digits_net(tiny)
        set_weights(tiny, net)
        rng = np.random.default_rng(1)
        keywords = {"momentum": 0.9} if optimizer == "SGD" else {}
        parameters = nn.state.get_parameters(net)
        step = training(
            jit, net, None, None, getattr(nn.optim, optimizer)(parameters, lr=0.01, **keywords)
        )
        losses = []
        for _ in range(10):
            x = Tensor(rng.standard_normal((16, 1, 8, 8)).astype(np.float32))
            losses.append(step(x, Tensor(rng.integers(0, 10, 16).astype(np.int32))).item())
        made.append((net, losses))
    (plain, a), (jitted, b) = made
    assert a == b and a[-1] < a[0]
    same_state(plain, jitted)


def test_conv_net_with_adam_equals_the_plain_run():
    x, y = images(batch=8)
    nets, losses = [], []
    for jit in (False, True):
        net = conv_net(tiny)
        set_weights(tiny, net)
        step = training(jit, net, x, y, nn.optim.Adam(nn.state.get_parameters(net), lr=1e-3))
        given = Tensor(x.astype(np.float32)).realize(), Tensor(y).realize()
        losses.append([step(*given).item() for _ in range(10)])
        nets.append(net)
    assert losses[0] == losses[1]
    same_state(*nets)


def test_a_learning_rate_may_change_between_calls():
    made = []
    for jit in (False, True):
        w = Tensor(numbers(3)).realize()
        optimizer = nn.optim.SGD([w], lr=0.1)

        def step(x, w=w, optimizer=optimizer):
            with Tensor.train():
                optimizer.zero_grad()
                loss = ((w * x).sum() - 1).square().backward()
                optimizer.step()
                return loss

        step = TinyJit(step) if jit else step
        for k, x in enumerate(inputs(3, calls=8)):
            optimizer.lr.assign(Tensor([0.1 / (k + 1)]))
            step(x)
        made.append(w.numpy())
    np.testing.assert_array_equal(*made)


def test_gradients_of_parameters_can_be_read_after_a_replay():
    w = Tensor(numbers(3)).realize()
    optimizer = nn.optim.SGD([w], lr=0.1)

    @TinyJit
    def step(x):
        with Tensor.train():
            optimizer.zero_grad()
            loss = (w * x).sum().square().backward()
            optimizer.step()
            return loss

    kept = []
    for x in inputs(3):
        before = w.numpy()
        step(x)
        right = 2 * (before * x.numpy()).sum() * x.numpy()
        np.testing.assert_allclose(w.grad.numpy(), right, rtol=1e-5)
        np.testing.assert_allclose(w.numpy(), before - 0.1 * right, rtol=1e-4, atol=1e-5)
        kept.append((w.grad, right))
    for gradient, right in kept:  # each call made its own
        np.testing.assert_allclose(gradient.numpy(), right, rtol=1e-5)


def test_gradients_of_arguments_and_results():
    w = Tensor(numbers(3)).realize()

    def f(x):
        y = x * w
        y.requires_grad = True
        y.square().sum().backward()
        return y

    jitted = TinyJit(f)
    for a in inputs(3):
        x = Tensor(a.numpy(), requires_grad=True)
        y = jitted(x)
        np.testing.assert_allclose(x.grad.numpy(), 2 * x.numpy() * w.numpy() ** 2, rtol=1e-5)
        np.testing.assert_allclose(y.grad.numpy(), 2 * y.numpy(), rtol=1e-5)
        w.grad = None  # or the next call would add to it
    assert len(jitted.captures) == 1 and jitted(x.detach()).grad is not None


def test_gradients_that_nobody_wants_can_not_be_read_after_a_replay():
    w = Tensor(numbers(3)).realize()  # does not say that it wants one

    @TinyJit
    def step(x):
        w.grad = None
        return (w * x).sum().square().backward(), w.grad

    for k, x in enumerate(inputs(3)):
        _, returned = step(x)
        right = 2 * (w.numpy() * x.numpy()).sum() * x.numpy()
        np.testing.assert_allclose(returned.numpy(), right, rtol=1e-5)
        if k < 2:
            np.testing.assert_array_equal(w.grad.numpy(), returned.numpy())
        else:
            assert w.grad.shape == (3,)
            with pytest.raises(JitError, match=r"gradient of shape \(3,\) was made inside a step"):
                w.grad.numpy()
            with pytest.raises(JitError, match="requires_grad=True; set that"):
                x.grad.numpy()
    with pytest.raises(JitError, match="return the gradient from the function"):
        (w.grad + 1).realize()


def test_a_step_that_clears_gradients_at_its_end_clears_them_in_replays():
    w = Tensor(numbers(3), requires_grad=True).realize()

    @TinyJit
    def step(x):
        w.grad = None
        return x * w

    for x in inputs(3):
        (w * 2).sum().backward()
        step(x)
        assert w.grad is None


def test_adding_to_gradients_from_before_is_refused():
    w = Tensor(numbers(3)).realize()

    @TinyJit
    def step(x):
        (w * x).sum().backward()
        return w.grad * 2

    xs = inputs(3)
    step(xs[0])
    kept = w.grad  # held, so that it does not simply die
    with pytest.raises(JitError, match=r"zero_grad\(\) inside the step"):
        step(xs[1])
    assert kept.shape == (3,)


@pytest.mark.parametrize("forgotten", [False, True])
def test_gradients_cleared_outside(forgotten):
    w = Tensor(numbers(3)).realize()
    optimizer = nn.optim.SGD([w], lr=0.1)

    @TinyJit
    def step(x):
        with Tensor.train():
            loss = (w * x).sum().square().backward()
            optimizer.step()
            return loss

    plain = w.numpy()
    for x in inputs(3):
        optimizer.zero_grad()
        step(x)
        plain = plain - 0.1 * (2 * (plain * x.numpy()).sum() * x.numpy())
        np.testing.assert_allclose(w.numpy(), plain, rtol=1e-4)
    if forgotten:  # a plain run would add to the gradient of before, which is not there
        with pytest.raises(JitError, match="gradient"):
            step(x)


def test_what_cannot_be_computed_does_not_stop_a_capture():
    w = Tensor(numbers(3)).realize()

    @TinyJit
    def step(x):
        w.grad = None
        (w * x).sum().backward()
        return w.grad * 2

    xs = inputs(3)
    for x in xs:
        step(x)
    broken = w.grad + 1
    stranger = Tensor(UOp(Ops.BUFFER, tiny.dtypes.float32, (), BufferArg(1 << 50, (3,), "CPU"))) * 2
    f = TinyJit(lambda x: x * 3)
    pending = Tensor([1.0]) + 1
    for x in xs:
        np.testing.assert_array_equal(f(x).numpy(), x.numpy() * 3)
    assert len(f.captures) == 1 and pending.tolist() == [2.0]
    with pytest.raises(JitError):
        broken.realize()
    with pytest.raises(TypeError, match="was not made by this runtime"):
        stranger.realize()


def test_only_the_gradients_that_are_read_are_computed():
    w = Tensor(numbers(8, 8)).realize()

    @TinyJit
    def step(x):
        w.grad = None
        loss = (x @ w).square().sum().backward()
        w.grad.contiguous().realize()
        return loss

    for x in inputs(4, 8):
        GlobalCounters.reset()
        step(x)
        count = GlobalCounters.kernel_count
    with Context(DEBUG=0):
        GlobalCounters.reset()
        (x @ w).square().sum().realize()
    assert count == GlobalCounters.kernel_count


# ---------------------------------------------------------------- random numbers


def test_random_numbers_go_on_as_in_plain_runs():
    def f(x):
        return x + Tensor.rand(3), Tensor.randn(2, 2), x.dropout(0.5)

    runs = []
    for g in (f, TinyJit(f)):
        Tensor.manual_seed(7)
        with Tensor.train():
            values = []
            for k in range(6):
                values.extend(t.numpy() for t in g(Tensor.ones(5, 3).realize()))
                values.append(Tensor.rand(2).numpy())  # draws between calls
                if k == 3:
                    Tensor.manual_seed(3)
        runs.append(values)
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(runs[1][1], runs[1][5])


def test_draws_that_nobody_reads_count_too():
    def f(x):
        Tensor.rand(5)
        return Tensor.rand(2) + x

    runs = []
    for g in (f, TinyJit(f)):
        Tensor.manual_seed(1)
        runs.append([g(Tensor([1.0, 2.0])).tolist() for _ in range(5)])
    assert runs[0] == runs[1]


# ---------------------------------------------------------------- methods, nesting, threads


class Scaler:
    def __init__(self, scale: float) -> None:
        self.scale = Tensor([scale]).realize()

    @TinyJit
    def __call__(self, x):
        return x * self.scale

    @TinyJit
    def move(self, x, by=1.0):
        return self.scale.assign(self.scale + by) * x


def test_methods_have_captures_for_each_object():
    a, b = Scaler(2.0), Scaler(3.0)
    for k, x in enumerate(inputs(3)):
        np.testing.assert_array_equal(a(x).numpy(), x.numpy() * 2)
        np.testing.assert_array_equal(b(x).numpy(), x.numpy() * 3)
        assert len(a.move.captures) == 0 and len(Scaler.__dict__["move"].captures) == 0
        assert k < 2 or len(Scaler.__dict__["__call__"].__get__(a).captures) == 1
    for k in range(4):
        assert a.move(Tensor([1.0]), by=2.0).tolist() == [4.0 + 2 * k]
    assert len(a.move.captures) == 1 and b.scale.tolist() == [3.0]
    a.move.reset()
    assert a.move.captures == []


def test_captures_of_a_method_die_with_its_object():
    a = Scaler(2.0)
    for _ in range(3):
        a.move(Tensor([1.0]))
    memory = weakref.ref(a.scale.uop.handle)
    table = weakref.ref(a.move.captures[0])
    del a
    gc.collect()
    assert memory() is None and table() is None


class Holder:
    def __init__(self) -> None:
        self.w = Tensor([2.0]).realize()
        self.step = TinyJit(self.compute)

    def compute(self, x):
        return x * self.w


def test_copies_of_objects_capture_for_themselves():
    first = Holder()
    for _ in range(3):
        first.step(Tensor([1.0]))
    second = copy.deepcopy(first)
    second.w.assign(Tensor([5.0]))
    for _ in range(4):
        assert first.step(Tensor([1.0])).tolist() == [2.0]
        assert second.step(Tensor([1.0])).tolist() == [5.0]
    assert len(first.step.captures) == len(second.step.captures) == 1


def test_a_jit_inside_a_jit_is_part_of_it():
    w = Tensor([1.0, 2.0]).realize()
    inner = TinyJit(lambda x: (x * w).realize())
    outer = TinyJit(lambda x: inner(x) + inner(x + 1))
    for x in inputs(2):
        np.testing.assert_allclose(
            outer(x).numpy(), x.numpy() * [1, 2] + (x.numpy() + 1) * [1, 2], rtol=1e-6
        )
    assert len(outer.captures) == 1
    with Context(DEBUG=0):
        assert inner(Tensor([1.0, 1.0])).tolist() == [1.0, 2.0]


def test_threads_replay_one_capture_at_once():
    w = Tensor(numbers(64, 64)).realize()
    f = TinyJit(lambda x: ((x @ w).contiguous().T @ x).contiguous().sum(0))
    xs = inputs(64, 64, calls=8)
    right = [f(x).numpy() for x in xs]
    wrong: list[int] = []

    def work(k: int) -> None:
        results = [f(xs[k]) for _ in range(20)]
        wrong.extend(k for r in results if not np.array_equal(r.numpy(), right[k]))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_threads_capture_compute_and_write_at_once():
    wrong: list[Any] = []

    def work(k: int) -> None:
        rng = np.random.default_rng(k)
        matrix = rng.integers(-3, 4, (8, 8)).astype(np.float32)
        w = Tensor(matrix)
        f = TinyJit(lambda x: (x @ w).realize() + k)
        for i in range(12):
            a = rng.integers(-3, 4, (4, 8)).astype(np.float32)
            if not np.array_equal(f(Tensor(a)).numpy(), a @ matrix + k):
                wrong.append((k, i, "jit"))
            if (Tensor(a) * 2 + 1).sum().item() != (a * 2 + 1).sum():
                wrong.append((k, i, "plain"))
            s = Tensor.zeros(4)
            s.assign(s + 1)
            s += 2
            if s.tolist() != [3.0] * 4:
                wrong.append((k, i, "assign"))

    def guarded(k: int) -> None:
        try:
            work(k)
        except Exception as e:
            wrong.append(repr(e))

    threads = [threading.Thread(target=guarded, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_another_thread_is_not_recorded():
    done = threading.Event()
    values = []

    def other() -> None:
        values.append((Tensor([1.0, 2.0]) + 1).tolist())
        done.set()

    @TinyJit
    def f(x):
        if not done.is_set() or len(values) < 2:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        return x + 1

    for x in inputs(3):
        np.testing.assert_array_equal(f(x).numpy(), x.numpy() + 1)
    assert values == [[2.0, 3.0]] * 2 and len(f.captures[0]) == 1


# ---------------------------------------------------------------- what is refused

reads = {
    "item": lambda x: x.sum().item(),
    "numpy": lambda x: x.numpy(),
    "tolist": lambda x: (x + 1).tolist(),
    "data": lambda x: x.data(),
}


@pytest.mark.parametrize("how", list(reads))
def test_a_value_read_inside_is_refused(how):
    @TinyJit
    def f(x):
        reads[how](x)
        return x + 1

    f(Tensor([1.0]))
    for _ in range(2):
        with pytest.raises(JitError, match="a value was read while the step was captured"):
            f(Tensor([1.0]))
    assert Tensor([1.0]).item() == 1.0  # nothing is left behind
    with Context(JIT=0):
        assert f(Tensor([1.0])).tolist() == [2.0]


@pytest.mark.parametrize(
    "returned",
    [
        lambda x: x,
        lambda x: x[1:],
        lambda x: (x + 1, x.T),
        lambda x: x.contiguous(),
        lambda x: x.detach(),
        lambda x: x.bitcast("int32").reshape(4),
    ],
)
def test_returning_an_argument_is_refused(returned):
    f = TinyJit(lambda x: (returned(x), x + 1))
    f(Tensor([[1.0, 2.0]] * 2))
    with pytest.raises(JitError, match=r"returns an argument.*return a copy, .clone\(\)"):
        f(Tensor([[1.0, 2.0]] * 2))


def test_computing_nothing_is_refused():
    f = TinyJit(lambda x: None)
    f(Tensor([1.0]))
    with pytest.raises(JitError, match="computes nothing"):
        f(Tensor([1.0]))


def test_sharing_memory_with_what_is_written_is_refused():
    state = Tensor([1.0, 2.0]).realize()
    f = TinyJit(lambda x: state.assign(state + 1).sum() + x)
    for _ in range(3):
        f(Tensor([1.0, 2.0]))
    for view in (state, state[0:1].expand(2), state.flip(0)):
        with pytest.raises(JitError, match=r"shares memory .* that the step writes"):
            for _ in range(2):  # those out of order are another signature
                f(view)
    g = TinyJit(lambda x: state.assign(state + 1).sum() + x)
    g(state)
    with pytest.raises(JitError, match=r"shares memory .* that the step writes"):
        g(state)

    @TinyJit
    def h(x, y):
        x += 1
        return y + state

    a = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    for _ in range(3):
        h(Tensor([1.0, 2.0]).realize(), Tensor([1.0, 2.0]))
    h(a[:2], a[2:])  # apart
    assert a.tolist() == [2.0, 3.0, 3.0, 4.0]
    h(a[:2], a[1:3])
    with pytest.raises(JitError, match="shares memory with another argument"):
        h(a[:2], a[1:3])
    with pytest.raises(JitError, match="or with a tensor that it reads"):
        h(state, Tensor([1.0, 2.0]))


class Keeper:
    def __init__(self) -> None:
        self.h = Tensor([1.0, 2.0]).realize()
        self.kept: list[Tensor] = []


def test_replacing_a_tensor_that_is_read_is_refused():
    k = Keeper()

    @TinyJit
    def f(x):
        k.h = (k.h * 0.5 + x).realize()
        return k.h.sum()

    one = Tensor([1.0, 1.0]).realize()
    f(one)
    with pytest.raises(JitError, match=r"\.assign\(\)"):
        f(one)
    np.testing.assert_array_equal(k.h.numpy(), [1.75, 2.0])  # it has run all the same


@pytest.mark.parametrize("what", ["result", "part", "value", "argument", "lazy"])
def test_keeping_a_tensor_of_the_step_is_refused(what):
    k = Keeper()

    @TinyJit
    def f(x):
        y = x * 2
        parts = {"result": y, "part": y[1:], "value": (y + 1).realize(), "argument": x, "lazy": -y}
        k.kept.append(parts[what])
        return y

    one = Tensor([1.0, 1.0]).realize()
    f(one)
    with pytest.raises(JitError, match=r"keeps a tensor of shape .*\.assign\(\)"):
        f(one)


def test_results_of_unknown_kinds_are_refused():
    class Box:
        def __init__(self, x):
            self.x = x

    f = TinyJit(lambda x: Box(x + 1))
    f(Tensor([1.0]))
    with pytest.raises(JitError, match="returns a Box"):
        f(Tensor([1.0]))


def test_arguments_with_values_that_can_not_be_compared_are_refused():
    f = TinyJit(lambda x: Tensor(x) + 1)
    with pytest.raises(JitError, match=r"the argument x is a ndarray.*Tensor\(array\)"):
        f(np.zeros(3))


def test_seeding_inside_is_refused():
    @TinyJit
    def f(x):
        Tensor.manual_seed(1)
        return x + Tensor.rand(1)

    f(Tensor([1.0]))
    with pytest.raises(JitError, match="manual_seed was called"):
        f(Tensor([1.0]))
    Tensor.manual_seed(0)


def test_one_variable_with_two_values_is_refused():
    f = TinyJit(lambda x, i, j: x * i * j)
    with pytest.raises(ValueError, match="'i' is given as 1 and as 2"):
        f(Tensor([1.0]), Variable("i", 1, 3).bind(1), Variable("i", 1, 3).bind(2))


def test_a_failed_capture_leaves_nothing_behind():
    fail = [False]

    @TinyJit
    def f(x):
        y = (x + 1).realize()
        if fail[0]:
            raise KeyError("no")
        return y * 2

    x = Tensor([1.0]).realize()
    f(x)
    fail[0] = True
    for _ in range(2):
        with pytest.raises(KeyError):
            f(x)
    fail[0] = False
    for _ in range(3):
        assert f(x).tolist() == [4.0]


# ---------------------------------------------------------------- what is not seen


def test_attributes_and_containers_are_as_they_were_at_the_capture():
    k = Keeper()
    k.factor = 2.0
    config = {"offset": 1.0}
    f = TinyJit(lambda x: x * k.factor + config["offset"])
    x = Tensor([1.0]).realize()
    for _ in range(3):
        assert f(x).tolist() == [3.0]
    k.factor, config["offset"] = 10.0, 5.0
    assert f(x).tolist() == [3.0]
    f.reset()
    assert f(x).tolist() == [15.0]


def test_other_effects_do_not_happen_in_replays():
    calls: list[int] = []

    @TinyJit
    def f(x):
        calls.append(1)
        return x + 1

    for _ in range(6):
        f(Tensor([1.0]))
    assert len(calls) == 2


def test_arrays_made_into_tensors_inside_are_those_of_the_capture():
    array = np.ones(2, np.float32)
    f = TinyJit(lambda x: x + Tensor(array))
    x = Tensor([1.0, 2.0]).realize()
    for _ in range(3):
        assert f(x).tolist() == [2.0, 3.0]
    array[:] = 5
    assert f(x).tolist() == [2.0, 3.0]


# ---------------------------------------------------------------- devices, counters, memory


@pytest.mark.parametrize("device", ["PYTHON", "NULL", "CPU:1"])
def test_other_devices(device):
    w = Tensor(numbers(3), device=device).realize()
    f = TinyJit(lambda x: (x * w).realize().sum())
    for x in inputs(3):
        got = f(x.to(device))
        if device != "NULL":
            np.testing.assert_allclose(got.item(), (x.numpy() * w.numpy()).sum(), rtol=1e-5)
    assert len(f.captures) == 1


def test_several_devices_in_one_step():
    f = TinyJit(lambda x: ((x * 2).to("PYTHON") + 1).to("CPU:1") * 3)
    for x in inputs(3):
        np.testing.assert_array_equal(f(x).numpy(), (x.numpy() * 2 + 1) * 3)


def test_counters_count_replays():
    w = Tensor(numbers(3)).realize()
    f = TinyJit(lambda x: ((x * w).realize() + 1).sum())
    counts = []
    for x in inputs(3):
        GlobalCounters.reset()
        f(x)
        counts.append(
            (GlobalCounters.kernel_count, GlobalCounters.global_ops, GlobalCounters.global_mem)
        )
    assert counts[0] == counts[2] == counts[4] and counts[0][0] >= 2
    with Context(DEBUG=2):
        GlobalCounters.reset()
        f(x)
    assert GlobalCounters.kernel_count == counts[0][0] and GlobalCounters.time_sum_s > 0


def test_replays_print_a_line_a_kernel(capsys):
    f = TinyJit(lambda x: ((x + 1).realize() * 2).realize() - 1)
    x = Tensor(numbers(6)).realize()
    for _ in range(3):
        f(x)
    assert capsys.readouterr().out == ""
    with Context(DEBUG=3, NO_COLOR=1):
        got = f(x)
    text = capsys.readouterr().out
    assert text.count("*** CPU ") == 3 and text.count("stored: ") == 3
    np.testing.assert_array_equal(got.numpy(), (x.numpy() + 1) * 2 - 1)


def test_memory_stays_where_it_is():
    state = Tensor(numbers(100)).realize()
    f = TinyJit(lambda x: (state.assign(state * 0.5 + x), (x + 1).contiguous().sum())[1])
    xs = inputs(100)
    for x in xs:
        f(x)
    gc.collect()
    held, objects = GlobalCounters.mem_used, len(gc.get_objects())
    for _ in range(20):
        for x in xs:
            f(x)
    gc.collect()
    assert GlobalCounters.mem_used == held
    assert len(gc.get_objects()) - objects < 50


def test_a_replay_makes_no_python_objects_for_its_kernels():
    def taken(count: int) -> int:
        """The most bytes of Python objects that a replay of so many kernels has at once."""

        def f(x):
            for _ in range(count):
                x = (x.T + 1).realize()
            return x

        jitted, x = TinyJit(f), Tensor(numbers(4, 4)).realize()
        for _ in range(4):
            jitted(x)
        assert len(jitted.captures[0]) == count
        gc.collect()
        tracemalloc.start()
        try:
            jitted(x)
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            jitted(x)
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()

    few, many = taken(2), taken(100)
    assert many < few + 500  # an object is 28 bytes or more, so there are less than 1 in 5 kernels


def test_temporaries_share_the_arena_of_the_capture():
    def f(x):
        for _ in range(10):
            x = (x.T + 1).realize()
        return x + 0

    jitted = TinyJit(f)
    for x in inputs(32, 32):
        got = jitted(x)
    np.testing.assert_array_equal(got.numpy(), f(x).numpy())
    before = GlobalCounters.mem_used
    del got
    jitted.reset()
    assert before - GlobalCounters.mem_used <= 4 * 32 * 32 * 4


def test_many_captures_of_dropped_functions_leave_nothing():
    state = Tensor(numbers(10)).realize()
    x = Tensor(numbers(10)).realize()

    def once() -> None:
        f = TinyJit(lambda x: state.assign(state * 0.5 + x).sum())
        for _ in range(3):
            f(x)

    once()
    gc.collect()
    held, objects = GlobalCounters.mem_used, len(gc.get_objects())
    for _ in range(20):
        once()
    gc.collect()
    assert GlobalCounters.mem_used == held
    assert len(gc.get_objects()) - objects < 100
    assert not state._storage.holders
