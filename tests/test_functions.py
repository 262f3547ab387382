"""MATH, the operation of functions by name: its form, its gradients, and activations made of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from accuracy import errors
from functions import PLAIN
from tiny import Tensor
from tiny.codegen import lower
from tiny.codegen.lower.functions import LOWERED, PERIODIC
from tiny.device import Device
from tiny.dtype import dtypes
from tiny.engine.flat import Damaged, flatten, unflatten
from tiny.runtime import python
from tiny.schedule.costs import work_of
from tiny.uop.functions import ARITY, function, function_gradient
from tiny.uop.ops import AxisType, KernelInfo, Ops, ParamArg, RangeArg, UOp
from tiny.uop.spec import SpecError, spec_tensor, verify

torch = pytest.importorskip("torch")

X = UOp.const(0.5, dtypes.float32)
N = UOp.const(2, dtypes.int32)


def test_all_tables_have_all_functions():
    names = set(ARITY)
    assert names == set(python._FUNCTIONS)
    assert names <= set(LOWERED) | set(PERIODIC)
    assert names <= set(PLAIN)


@pytest.mark.parametrize("name", ARITY)
def test_a_function_is_one_node_with_its_operands(name):
    node = function(name, *[X] * ARITY[name])
    verify(node, spec_tensor, "a function")
    assert work_of(node) >= 1
    for wrong in (
        UOp(Ops.MATH, dtypes.float32, (X,) * (3 - ARITY[name]), name),
        UOp(Ops.MATH, dtypes.float32, (X,) * ARITY[name], name + "?"),
        UOp(Ops.MATH, dtypes.int32, (N,) * ARITY[name], name),
    ):
        with pytest.raises(SpecError):
            verify(wrong, spec_tensor, "a function")


def kernel(name):
    """z[i] = f(x[i], y[i])"""
    i = UOp(Ops.RANGE, dtypes.index, (UOp.const(8, dtypes.index),), RangeArg(0, AxisType.LOOP))
    at = [
        UOp(Ops.INDEX, dtypes.float32, (UOp(Ops.PARAM, dtypes.float32, (), ParamArg(k, (8,))), i))
        for k in range(3)
    ]
    store = UOp(Ops.STORE, dtypes.void, (at[0], function(name, *at[1 : 1 + ARITY[name]])))
    return UOp(Ops.SINK, dtypes.void, (store,), KernelInfo("f"))


@pytest.mark.parametrize("name", ["exp", "pow"])
def test_functions_are_stored_by_name(name):
    flat = flatten([kernel(name)])
    assert unflatten(flat) == [kernel(name)]
    for wrong in ("exq", 3, None):
        args = [wrong if a == name else a for a in flat.args]
        with pytest.raises(Damaged, match="function"):
            unflatten(flat._replace(args=args))


def test_kernels_differ_by_the_name_of_a_function():
    assert kernel("exp").key != kernel("log").key
    target = Device["CPU"].target
    assert lower(kernel("exp"), target) is not lower(kernel("log"), target)


# ---------------------------------------------------------------- gradients

THEIRS = {
    "erfc": torch.erfc, "mod": torch.remainder, "sigmoid": torch.sigmoid, "abs": torch.abs,
    "floordiv": lambda x, y: torch.div(x, y, rounding_mode="floor"),
}  # fmt: skip
DOMAIN = {"acosh": (1.2, 4), "log": (0.2, 4), "log10": (0.2, 4), "pow": (0.3, 2)}


@pytest.mark.parametrize("name", ARITY)
def test_gradients_and_their_gradients_are_those_of_pytorch(name):
    low, high = DOMAIN.get(name, (-0.9, 0.9))
    rng = np.random.default_rng(1)
    values = [rng.uniform(low, high, 7), rng.uniform(0.3, 2, 7)][: ARITY[name]]
    call = THEIRS.get(name) or getattr(torch, name)
    theirs = [torch.tensor(v, requires_grad=True) for v in values]
    ours = [Tensor(v).realize() for v in values]
    out, result = call(*theirs), ours[0]._math(name, *ours[1:])
    if name in ("round", "floordiv"):  # flat: there is no gradient
        np.testing.assert_allclose(result.numpy(), out.detach().numpy(), rtol=1e-13)
        return
    weights = rng.uniform(0.5, 1.5, 7)
    loss = (result * Tensor(weights)).sum()
    first = torch.autograd.grad(
        (out * torch.tensor(weights)).sum(), theirs, create_graph=True, allow_unused=True
    )
    pairs = [(result, out)]  # values cut graphs off, so gradients are made before they are read
    for x, theirs_x, slope in zip(ours, theirs, first, strict=True):
        if name == "copysign" and x is not ours[0]:
            continue
        (mine,) = loss.gradient(x)
        pairs.append((mine, slope))
        if not slope.requires_grad or name == "copysign":  # of which the slope is flat
            continue
        (again,) = torch.autograd.grad(slope.sum(), theirs_x, retain_graph=True, allow_unused=True)
        if again is not None and again.any():
            pairs.append((mine.sum().gradient(x)[0], again))
    for mine, slope in pairs[::-1]:
        np.testing.assert_allclose(mine.numpy(), slope.detach().numpy(), rtol=1e-9, atol=1e-12)
    assert len(pairs) > 1


def test_flat_functions_pass_no_gradient_on():
    x = Tensor([1.3, -2.6]).realize()
    (grad,) = (x.round() * x).sum().gradient(x)
    assert grad.tolist() == [1.0, -3.0]
    (grad,) = (x // 0.5 + x).sum().gradient(x)
    assert grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["log", "asin", "acosh", "atanh", "exp"])
def test_a_slope_that_is_infinite_stays_where_it_was_not_chosen(name):
    edge = {"log": 0.0, "asin": 1.0, "acosh": 1.0, "atanh": 1.0, "exp": math.inf}[name]
    x = Tensor(np.array([edge, 0.5])).realize()
    chosen = x.eq(edge).where(0.0, getattr(x, name)())
    (grad,) = chosen.sum().gradient(x)
    assert grad.numpy()[0] == 0.0


def test_slopes_at_poles_are_those_of_the_formula():
    g = UOp.const(1.0, dtypes.float64)
    for name in ARITY:
        x = [UOp.const(0.25, dtypes.float64)] * ARITY[name]
        found = function_gradient(function(name, *x), g)
        assert len(found) == ARITY[name] and all(f is None or f.dtype is g.dtype for f in found)


# ---------------------------------------------------------------- activations


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(
    "name, least, exact",
    [
        ("silu", -80, lambda x: x * sigmoid(x)),
        ("mish", -80, lambda x: x * np.tanh(np.log1p(np.exp(x)))),
        ("quick_gelu", -1, lambda x: x * sigmoid(1.702 * x)),
        ("gelu", -1, lambda x: x * sigmoid(2 * np.sqrt(2 / np.pi) * x * (1 + 0.044715 * x * x))),
    ],
)
def test_activations_are_within_4_ulps(name, least, exact, kind):
    x = np.random.default_rng(2).uniform(least, 8, 20_000).astype(kind)
    expected = exact(x.astype(np.longdouble))
    assert errors(getattr(Tensor(x), name)().numpy(), expected).max() <= 4


def test_what_changes_nothing_is_a_value_of_its_own():
    for call in (
        lambda x: x**1,
        lambda x: x.abs(),
        lambda x: x.round(),
        lambda x: x.floor(),
        lambda x: x.sign(),
        lambda x: x.clamp(0, 255),
    ):
        x = Tensor(np.array([1, 2], np.uint8))
        y = call(x)
        y += 1
        assert (x.tolist(), y.tolist()) in (([1, 2], [2, 3]), ([1, 2], [2, 2]))


def test_the_tail_of_gelu_is_no_zero():
    x = np.array([-5.0, -8.0, -12.0], np.float32)
    expected = [0.5 * v * math.erfc(-v / math.sqrt(2)) for v in map(float, x)]
    np.testing.assert_allclose(Tensor(x).gelu("none").numpy(), expected, rtol=2e-5)


def test_mistakes_name_the_choices():
    with pytest.raises(ValueError, match='gelu: approximate is "tanh" or "none", got \'erf\''):
        Tensor([1.0]).gelu("erf")
    with pytest.raises(ValueError, match='div: rounding_mode is "floor", "trunc" or None'):
        Tensor([1.0]).div(2, rounding_mode="up")
    with pytest.raises(ValueError, match="clamp: at least one of min_ and max_"):
        Tensor([1.0]).clamp()
    with pytest.raises(ValueError, match=r"pow: an integer .*int32. to the power of -2"):
        Tensor([1]).pow(-2)
    with pytest.raises(TypeError, match=r"shl: the operands must be integers, got .*float32"):
        Tensor([1.0]) << 1
    with pytest.raises(TypeError, match=r"where: the condition must be bool, got .*int32"):
        Tensor([1]).where(1, 2)
    with pytest.raises(ValueError, match=r"pow: .*\(2,\).*\(3,\)"):
        Tensor([1.0, 2.0]).pow(Tensor([1.0, 2.0, 3.0]))
