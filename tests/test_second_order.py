"""Gradients of gradients, and zero cotangents: nothing times anything is nothing."""

import math

import numpy as np
import pytest

from tiny import Tensor, TinyJit

torch = pytest.importorskip("torch")

ANY = (-1.7, -0.9, -0.3, 0.4, 0.8, 1.6)
POSITIVE = (0.2, 0.4, 0.7, 1.3, 1.9, 2.6)
SMALL = (-0.8, -0.5, -0.2, 0.1, 0.45, 0.9)
LARGE = (1.1, 1.3, 1.7, 2.2, 2.9, 3.5)

# name -> (for tensors of tiny, for those of torch, values of x); x is (2, 3)
ELEMENTWISE = {
    **{
        name: (lambda x, n=name: getattr(x, n)(), lambda x, n=name: getattr(torch, n)(x), values)
        for values, names in {
            ANY: "exp exp2 sin cos tan sinh cosh tanh atan asinh sigmoid erf square relu abs neg",
            POSITIVE: "log log2 log10 sqrt rsqrt reciprocal",
            SMALL: "asin acos atanh",
            LARGE: "acosh",
        }.items()
        for name in names.split()
    },
    **{
        name: (lambda x, n=name: getattr(x, n)(), lambda x, f=f: f(x), ANY)
        for name, f in {
            "silu": torch.nn.functional.silu,
            "softplus": torch.nn.functional.softplus,
            "softsign": torch.nn.functional.softsign,
            "mish": torch.nn.functional.mish,
            "elu": torch.nn.functional.elu,
            "selu": torch.nn.functional.selu,
            "celu": torch.nn.functional.celu,
            "logsigmoid": torch.nn.functional.logsigmoid,
            "leaky_relu": torch.nn.functional.leaky_relu,
            "hardswish": torch.nn.functional.hardswish,
            "relu6": torch.nn.functional.relu6,
        }.items()
    },
    "gelu": (
        lambda x: x.gelu(),
        lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        ANY,
    ),
    "clip": (lambda x: x.clip(-1, 1), lambda x: x.clip(-1, 1), ANY),
    "power 3": (lambda x: x**3, lambda x: x**3, ANY),
    "power 1.5": (lambda x: x**1.5, lambda x: x**1.5, POSITIVE),
    "power -2": (lambda x: x**-2, lambda x: x**-2, ANY),
    "power of 2": (lambda x: 2**x, lambda x: 2**x, ANY),
    "x / (x + 3)": (lambda x: x / (x + 3), lambda x: x / (x + 3), ANY),
    "where": (
        lambda x: (x > 0).where(x.exp(), x * x),
        lambda x: torch.where(x > 0, x.exp(), x * x),
        ANY,
    ),
    "cast": (lambda x: (x.float() * 2).double().sin(), lambda x: (x * 2).sin(), ANY),
}

SHAPED = {
    "sum": (lambda x: (x * x).sum(1), lambda x: (x * x).sum(1)),
    "mean": (lambda x: x.exp().mean(0), lambda x: x.exp().mean(0)),
    "max": (lambda x: (x * x * x).max(1), lambda x: (x * x * x).amax(1)),
    "min": (lambda x: x.exp().min(), lambda x: x.exp().amin()),
    "prod": (lambda x: x.prod(1), lambda x: x.prod(1)),
    "var": (lambda x: x.var(1), lambda x: x.var(1)),
    "std": (lambda x: x.std(1), lambda x: x.std(1)),
    "softmax": (lambda x: x.softmax(1), lambda x: x.softmax(1)),
    "log_softmax": (lambda x: x.log_softmax(0), lambda x: x.log_softmax(0)),
    "logsumexp": (lambda x: x.logsumexp(1), lambda x: x.logsumexp(1)),
    "cumsum": (lambda x: (x * x).cumsum(1), lambda x: (x * x).cumsum(1)),
    "cumprod": (lambda x: x.cumprod(1), lambda x: x.cumprod(1)),
    "matmul": (lambda x: (x @ x.T) @ x, lambda x: (x @ x.T) @ x),
    "permute": (lambda x: (x.permute(1, 0) ** 2).flatten(), lambda x: (x.T**2).flatten()),
    "flip": (lambda x: x.flip(1) * x, lambda x: x.flip(1) * x),
    "pad": (
        lambda x: (x * x).pad((1, 2)) * 3,
        lambda x: torch.nn.functional.pad(x * x, (1, 2)) * 3,
    ),
    "shrink": (lambda x: (x[:, 1:] * x[:, :-1]).exp(), lambda x: (x[:, 1:] * x[:, :-1]).exp()),
    "expand": (
        lambda x: x.reshape(2, 1, 3).expand(2, 4, 3) ** 2,
        lambda x: x.reshape(2, 1, 3).expand(2, 4, 3) ** 2,
    ),
    "cat": (lambda x: x.cat(x * x, dim=1).exp(), lambda x: torch.cat([x, x * x], 1).exp()),
    "gather": (
        lambda x: (x * x)[:, Tensor([2, 0, 2])] * x,
        lambda x: (x * x)[:, torch.tensor([2, 0, 2])] * x,
    ),
    "contiguous": (
        lambda x: (x * x).contiguous().contiguous_backward().exp(),
        lambda x: (x * x).exp(),
    ),
    "layernorm": (
        lambda x: x.layernorm(),
        lambda x: torch.nn.functional.layer_norm(x, (3,)),
    ),
    "conv": (
        lambda x: (x * x).reshape(1, 1, 2, 3).conv2d(x.reshape(1, 1, 2, 3)[:, :, :, :2]),
        lambda x: torch.nn.functional.conv2d(
            (x * x).reshape(1, 1, 2, 3), x.reshape(1, 1, 2, 3)[:, :, :, :2]
        ),
    ),
}

CASES = {
    **ELEMENTWISE,
    **{name: (ours, theirs, ANY) for name, (ours, theirs) in SHAPED.items()},
}


def weights(shape, seed):
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_gradients_are_those_of_pytorch(name):
    ours, theirs, values = CASES[name]
    array = np.array(values).reshape(2, 3)
    # a cast to float32 on the way; constants of selu to six digits
    rtol = {"cast": 1e-4, "selu": 1e-5}.get(name, 1e-7)

    t = torch.tensor(array, requires_grad=True)
    y = theirs(t)
    v = torch.tensor(weights(y.shape, 1), requires_grad=True)
    (first,) = torch.autograd.grad((y * v).sum(), t, create_graph=True)
    u = torch.tensor(weights(first.shape, 2))
    expected = torch.autograd.grad((first * u).sum(), (t, v), allow_unused=True)

    x = Tensor(array)
    z = ours(x)
    w = Tensor(weights(z.shape, 1))
    (mine,) = (z * w).sum().gradient(x)
    np.testing.assert_allclose(mine.numpy(), first.detach().numpy(), rtol=rtol, atol=1e-9)
    x = Tensor(array)
    z = ours(x)
    (mine,) = (z * w).sum().gradient(x)
    total = (mine * Tensor(u.numpy())).sum()
    # no dependence, or a constant slope: there need not be a gradient
    pairs = [p for p in zip((w, x), expected[::-1], strict=True) if p[1] is not None and p[1].any()]
    found = total.gradient(*[target for target, _ in pairs])  # all before any of it is computed
    for second, (_, wanted) in zip(found, pairs, strict=True):
        np.testing.assert_allclose(second.numpy(), wanted.numpy(), rtol=10 * rtol, atol=1e-8)


def test_a_third_derivative():
    x = Tensor([0.3, -0.7], dtype="float64")
    y = (x * x).sin() * x
    for _ in range(3):
        (y,) = y.sum().gradient(x)
    v = x.numpy()
    s, c = np.sin(v * v), np.cos(v * v)
    np.testing.assert_allclose(y.numpy(), 6 * c - 24 * v**2 * s - 8 * v**4 * c, rtol=1e-9)


def test_a_step_along_a_gradient_of_a_gradient_is_captured():
    @TinyJit
    def step(x):
        (first,) = (x**4).sum().gradient(x)
        (second,) = first.sum().gradient(x)
        return x - first / second

    x = Tensor([1.0, -2.0]).realize()
    for _ in range(4):
        x = step(x).realize()
    np.testing.assert_allclose(x.numpy(), np.array([1.0, -2.0]) * (2 / 3) ** 4, rtol=1e-5)


@pytest.mark.parametrize(
    "call, error, what",
    [
        (lambda x: x.sum().backward(3), TypeError, r"a Tensor of shape \(\), got int"),
        (lambda x: x.sum().gradient(x, gradient=2.0), TypeError, "got float; write Tensor"),
        (lambda x: x.sum().gradient(x, 3), TypeError, "target 1 is a Tensor, got int"),
        (lambda x: (x * 2).gradient(x, gradient=Tensor([1.0])), ValueError, "is not the shape"),
        (lambda x: x.sum().realize().gradient(x), RuntimeError, "or was computed already"),
    ],
)
def test_what_gradients_are_asked_for_is_checked(call, error, what):
    with pytest.raises(error, match=what):
        call(Tensor([1.0, 2]))


# ---------------------------------------------------------------- what was not selected

INF = math.inf
VALUES = [-INF, -2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, INF, math.nan]
# name -> (where it is selected, the function)
MASKED = {
    "log": (lambda x: x > 0, lambda x: x.log()),
    "sqrt": (lambda x: x > 0, lambda x: x.sqrt()),
    "reciprocal": (lambda x: abs(x) > 0, lambda x: 1 / x),
    "quotient": (lambda x: abs(x) > 0, lambda x: (x + 1) / x),
    "x log x": (lambda x: x > 0, lambda x: x * x.log()),
    "log x / x": (lambda x: x > 0, lambda x: x.log() / x),
    "x / |x|": (lambda x: x > 0, lambda x: x / (x * x).sqrt()),
    "x rsqrt x": (lambda x: x > 0, lambda x: x * x.rsqrt()),
    "chain of products": (lambda x: x > 0, lambda x: x * x.log() * x.sqrt() * (1 / x)),
    "power": (lambda x: x > 0, lambda x: x**0.5),
    "negative power": (lambda x: x > 0, lambda x: x**-1.5),
    "square": (lambda x: abs(x) < 5, lambda x: x * x),
    "sin": (lambda x: abs(x) < 5, lambda x: x.sin()),
    "cos": (lambda x: abs(x) < 5, lambda x: x.cos()),
    "tan": (lambda x: abs(x) < 5, lambda x: x.tan()),
    "exp": (lambda x: x < 0.4, lambda x: (x * 1000).exp()),
    "tanh": (lambda x: abs(x) < 5, lambda x: x.tanh()),
    "sigmoid": (lambda x: abs(x) < 5, lambda x: x.sigmoid()),
    "asin": (lambda x: abs(x) < 1, lambda x: x.asin()),
    "atanh": (lambda x: abs(x) < 1, lambda x: x.atanh()),
    "acosh": (lambda x: x > 1, lambda x: x.acosh()),
    "log of log": (lambda x: x > 0.9, lambda x: (x.log() + 1).log2()),
    "cast": (lambda x: x > 0, lambda x: x.double().log().float()),
}


def expected_gradient(name):
    """The gradient on what is selected, 0 elsewhere."""
    is_selected, f = MASKED[name]
    chosen = is_selected(torch.tensor(VALUES)).numpy()
    t = torch.tensor(np.array(VALUES, np.float32)[chosen], requires_grad=True)
    f(t).sum().backward()
    result = np.zeros(len(VALUES), np.float32)
    result[chosen] = t.grad.numpy()
    return result, chosen


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("how", ["where", "maximum", "shrink"])
def test_what_is_not_selected_has_no_gradient(name, how):
    is_selected, f = MASKED[name]
    expected, chosen = expected_gradient(name)
    x = Tensor(VALUES)
    y = f(x)
    if how == "where":
        y = is_selected(x).where(y, 0.0)
    elif how == "maximum":
        y = is_selected(x).where(y, -INF).maximum(-1e30)
    else:
        at = int(np.flatnonzero(chosen & np.isfinite(expected))[0])
        y = y[at : at + 1]
        expected = np.where(np.arange(len(VALUES)) == at, expected, 0)
    (found,) = y.sum().gradient(x)
    kept = np.isfinite(expected)  # of selected infinities the slope may be none
    np.testing.assert_allclose(found.numpy()[kept], expected[kept], rtol=2e-5)
    assert not np.isnan(found.numpy()[~chosen]).any()


@pytest.mark.parametrize("name", MASKED)
def test_slopes_are_there_where_a_cotangent_is_zero(name):
    """d/dw of the gradient of w * y is the slope, also at w = 0."""
    is_selected, f = MASKED[name]
    expected, _ = expected_gradient(name)
    x, w = Tensor(VALUES), Tensor(np.zeros(len(VALUES), np.float32))
    (first,) = (is_selected(x).where(f(x), 0.0) * w).sum().gradient(x)
    (slope,) = first.sum().gradient(w)
    kept = np.isfinite(expected)
    np.testing.assert_allclose(slope.numpy()[kept], expected[kept], rtol=2e-5)


def test_a_product_of_what_is_not_selected():
    x = Tensor([[0.0, 2.0], [INF, 3.0]])
    rows = x.prod(1)
    (found,) = (rows < 5).where(rows, 0.0).sum().gradient(x)
    assert found.tolist() == [[2, 0], [0, 0]]


def test_a_masked_mean_of_nothing():
    x, count = Tensor([[1.0, 2], [3, 4]]), Tensor([2.0, 0])
    mean = x.sum(1) * (1 / count)
    (found,) = (count > 0).where(mean, 0.0).sum().gradient(x)
    assert found.tolist() == [[0.5, 0.5], [0, 0]]


def test_rows_that_are_masked_whole():
    scores = Tensor([[1.0, 2], [-INF, -INF]])
    probabilities = scores.softmax(1)
    (found,) = (scores > -INF).where(probabilities, 0.0)[:, 0].sum().gradient(scores)
    assert not np.isnan(found.numpy()[0]).any()
    np.testing.assert_array_equal(found.numpy()[1], [0, 0])


@pytest.mark.parametrize("read", ["item", "numpy", "tolist", "data", "realize"])
def test_backward_of_what_was_computed_is_refused(read):
    w = Tensor([1.0, 2.0])
    loss = (w * w).sum()
    getattr(loss, read)()
    with pytest.raises(RuntimeError, match="this tensor was computed already"):
        loss.backward()
    assert w.grad is None and loss.grad is None
    # the tensor before it, and one that says that it wants a gradient, are as ever
    (w * w).sum().backward()
    assert w.grad.tolist() == [2.0, 4.0]
    leaf = Tensor(np.float32(3), requires_grad=True).realize()
    assert leaf.backward().grad.item() == 1


def test_a_gradient_without_a_seed_names_the_shape():
    x = Tensor([1.0, 2.0])
    for ask in (lambda: (x * 2).gradient(x), lambda: (x * 2).backward()):
        with pytest.raises(ValueError, match=r"its shape must be \(\), this one has \(2,\)"):
            ask()
