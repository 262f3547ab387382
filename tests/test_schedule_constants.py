"""Float constants that change become variables of kernels, and only those."""

from __future__ import annotations

import numpy as np
import pytest

from evaluate import evaluate_all
from kernel_interpreter import run_schedule
from tensor_graphs import add, buffer, const, contents, exp, expand, mul, op, reduce, relu, schedule
from tiny import Tensor, TinyJit
from tiny.dtype import dtypes
from tiny.engine import realize
from tiny.schedule.schedule import (
    MOST_SCHEDULES,
    cached_schedules,
    forget_schedules,
    known_families,
)
from tiny.uop.ops import Ops, UOp


@pytest.fixture(autouse=True)
def nothing_cached():
    forget_schedules()
    yield
    forget_schedules()


def variables(bound) -> list[UOp]:
    return [n for i in bound.schedule.items for n in i.kernel.postorder() if n.op is Ops.DEFINE_VAR]


def scaled(x: UOp, by: float, plus: float = 0.3) -> UOp:
    return add(mul(x, const(by, x)), const(plus, x))


def test_a_constant_is_compiled_in_the_first_time():
    x = buffer(5)
    bound = schedule(scaled(x, 0.7))
    assert not variables(bound) and not bound.values
    assert schedule(scaled(x, 0.7)).schedule is bound.schedule


def test_one_that_changes_becomes_a_variable_and_the_others_stay():
    x = buffer(5)
    schedule(scaled(x, 0.7))
    bound = schedule(scaled(x, 0.8))
    (v,) = variables(bound)
    assert bound.values == {v.arg.name: const(0.8, x).arg} and bound.schedule.variables
    again = schedule(scaled(buffer(5), 0.9))
    assert again.schedule is bound.schedule and list(again.values.values()) == [const(0.9, x).arg]
    both = schedule(scaled(x, 0.9, 0.4))
    assert len(variables(both)) == 2
    assert schedule(scaled(x, 0.7, 0.6)).schedule is both.schedule
    # what was compiled first is still there
    assert not variables(schedule(scaled(x, 0.7)))


@pytest.mark.parametrize("special", [0.0, 1.0, -1.0, 2.0, 0.5, float("inf"), float("nan")])
def test_numbers_that_rules_know_stay_constants(special):
    x = buffer(5)
    schedule(scaled(x, 0.7))
    assert not variables(schedule(scaled(x, special)))


def test_what_is_always_there_stays_as_it_is():
    x = buffer(4, 6)
    for k in range(3):
        bound = schedule(exp(mul(x, const(0.3 + k, x))))
    assert len(variables(bound)) == 1, "not the 1 / log(2) of the exponential"


def test_integers_and_narrow_floats_stay_constants():
    for dtype in (dtypes.int32, dtypes.half, dtypes.bfloat16):
        x = buffer(5, dtype=dtype)
        for k in range(3):
            assert not variables(schedule(mul(x, const(3 + k, x))))


def test_the_same_number_twice_is_one_constant():
    x, y = buffer(5), buffer(6)
    for k in range(3):
        bound = schedule(mul(x, const(0.3 + k, x)), mul(y, const(0.3 + k, y)))
    assert len(bound.values) == 1
    # two numbers are another graph
    assert not schedule(mul(x, const(0.1, x)), mul(y, const(0.2, y))).values


def test_values_are_those_of_the_numbers():
    x, y = buffer(4, 6), buffer(4, 6, dtype=dtypes.float64)
    for k in range(4):
        rows = expand(reduce(mul(x, const(0.1 * k + 0.03, x)), 1), 4, 6)
        roots = [
            relu(add(rows, const(-0.2 - k, x))),
            op(Ops.FDIV, y, const(k + 0.7, y)),
            expand(UOp.const(k + 0.3, dtypes.float32), 3),
        ]
        memory = contents(roots)
        got, _ = run_schedule(schedule(*roots), memory)
        for g, w in zip(got, evaluate_all(roots, memory), strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_devices_take_them_bit_for_bit(device, dtype):
    data = np.random.default_rng(0).standard_normal((7, 19)).astype(dtype)
    for k in range(4):
        x = Tensor(data, device=device)
        got = ((x * (0.1 + k) + 1.7) / (k + 3.3)).numpy()
        want = (data * data.dtype.type(0.1 + k) + data.dtype.type(1.7)) / data.dtype.type(k + 3.3)
        np.testing.assert_array_equal(got, want)


def compile_kernel_calls(monkeypatch) -> list[UOp]:
    """The kernels that are compiled from now on."""
    compiled: list[UOp] = []
    real = realize._compile

    def noted(kernel, device):
        compiled.append(kernel)
        return real(kernel, device)

    monkeypatch.setattr(realize, "_compile", noted)
    return compiled


def test_a_third_number_compiles_nothing(monkeypatch):
    x = Tensor(np.arange(12, dtype=np.float32)).realize()
    for k in range(2):
        (x * (0.1 + k)).realize()
    schedules = cached_schedules()
    before = compile_kernel_calls(monkeypatch)
    got = (x * 5.7).numpy()
    np.testing.assert_array_equal(got, np.arange(12, dtype=np.float32) * np.float32(5.7))
    assert cached_schedules() == schedules and not before


def test_families_are_bounded():
    for n in range(MOST_SCHEDULES + 10):
        schedule(scaled(buffer(n + 1), 0.7))
    assert known_families() == MOST_SCHEDULES


def test_a_captured_step_keeps_the_number_that_it_was_captured_with():
    x = Tensor(np.arange(6, dtype=np.float32)).realize()
    y = Tensor(np.arange(6, dtype=np.float64)).realize()
    rate = [0.7]

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x * rate[0] + 3.7).realize(), (y * rate[0] + 3.7).realize()

    for k in range(3):  # so that they are variables of the kernels
        rate[0] = 0.25 + k
        step(x, y)
    rate[0] = 7.25  # a number of both precisions
    captured = TinyJit(lambda a, b: step(a, b))
    for _ in range(4):
        a, b = captured(x, y)
        np.testing.assert_array_equal(
            a.numpy(), np.arange(6, dtype=np.float32) * 7.25 + np.float32(3.7)
        )
        np.testing.assert_array_equal(b.numpy(), np.arange(6) * 7.25 + 3.7)
