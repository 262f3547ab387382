"""Products, convolutions, pooling, layers, losses and gradients, against NumPy and PyTorch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from numpy_runtime import bound
from tiny.dtype import dtypes
from tiny.tensor import Tensor
from tiny.uop.runtime import Runtime

torch = pytest.importorskip("torch")
F = torch.nn.functional


@pytest.fixture(autouse=True, scope="module", params=["evaluator", "devices"])
def runs_on(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with bound(request.param) as used:
        yield used


def drawn(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def same(actual, expected, rtol=1e-5, atol=1e-5):
    actual = actual.numpy()
    expected = expected.detach().numpy() if hasattr(expected, "detach") else np.asarray(expected)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(
        actual.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol
    )


def t(array):
    return torch.from_numpy(array)


# ---------------------------------------------------------------- products


@pytest.mark.parametrize(
    "a, b",
    [
        ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (7, 3, 4)),
        ((3,), (5, 3, 4)),
        ((5, 2, 3), (3,)), ((0, 3), (3, 2)), ((2, 0), (0, 3)), ((1, 1), (1, 1)),
    ],
)  # fmt: skip
def test_products_are_numpys(a, b):
    x, y = drawn(*a), drawn(*b, seed=1)
    same(Tensor(x) @ Tensor(y), x @ y)
    same(Tensor(y).matmul(Tensor(x), reverse=True), x @ y)


def test_dtypes_of_products():
    half = Tensor(drawn(4, 4, dtype="float16"))
    assert (half @ half).dtype is dtypes.float16
    assert half.dot(half, dtype="float32").dtype is dtypes.float32
    exact = (half.numpy().astype(np.float32) @ half.numpy().astype(np.float32)).astype(np.float16)
    same(half @ half, exact, rtol=0, atol=0)
    small = Tensor([[100, 100]], dtype="int8")
    assert (small @ small.T).dtype is dtypes.int8
    assert small.dot(small.T, dtype="int32").item() == 20000
    assert (Tensor([1, 2]) @ Tensor([0.5, 0.5])).item() == 1.5


def test_linear_and_sequential():
    x, w, b = drawn(2, 3), drawn(3, 4, seed=1), drawn(4, seed=2)
    same(Tensor(x).linear(Tensor(w), Tensor(b)), x @ w + b)
    same(Tensor(x).linear(Tensor(w[:, 0])), x * w[:, 0])
    assert Tensor(x).linear(Tensor(w), Tensor(b), dtype="half").dtype is dtypes.float16
    same(Tensor(x).sequential([Tensor.relu, lambda v: v + 1]), np.maximum(x, 0) + 1)


CONVOLUTIONS = [
    # x, weight, keywords
    ((2, 3, 8, 9), (4, 3, 3, 3), {}),
    ((2, 3, 8, 9), (4, 3, 3, 2), {"stride": 2, "padding": 1}),
    ((1, 4, 7, 7), (6, 2, 3, 3), {"groups": 2, "padding": (2, 1)}),
    ((1, 4, 7, 7), (4, 1, 3, 3), {"groups": 4, "dilation": 2}),
    ((2, 3, 9, 9), (5, 3, 1, 1), {"stride": 3}),
    ((2, 3, 9, 8), (5, 3, 2, 4), {"stride": (2, 3), "dilation": (3, 1), "padding": (0, 2)}),
    ((2, 3, 10), (4, 3, 4), {"stride": 2, "padding": 1}),
    ((1, 2, 5, 5, 5), (3, 2, 2, 3, 2), {"padding": 1, "stride": (1, 2, 2)}),
    ((0, 3, 5, 5), (4, 3, 3, 3), {}),
    ((2, 1, 1, 1), (1, 1, 1, 1), {}),
]


@pytest.mark.parametrize("case", range(len(CONVOLUTIONS)))
@pytest.mark.parametrize("with_bias", [False, True])
def test_convolutions_are_those_of_pytorch(case, with_bias):
    x_shape, w_shape, kwargs = CONVOLUTIONS[case]
    x, w = drawn(*x_shape), drawn(*w_shape, seed=1)
    bias = drawn(w_shape[0], seed=2) if with_bias else None
    convolution = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(x_shape)]
    expected = convolution(t(x), t(w), None if bias is None else t(bias), **kwargs)
    same(Tensor(x).conv2d(Tensor(w), None if bias is None else Tensor(bias), **kwargs), expected)


def test_padding_of_each_side():
    x, w = drawn(1, 1, 4, 5), drawn(1, 1, 3, 3, seed=1)
    expected = F.conv2d(F.pad(t(x), (1, 2, 0, 1)), t(w))
    same(Tensor(x).conv2d(Tensor(w), padding=(1, 2, 0, 1)), expected)


# ---------------------------------------------------------------- pooling

POOLS = [
    ((2, 3, 8, 8), {}),
    ((2, 3, 7, 9), {"kernel_size": 3}),
    ((2, 3, 7, 9), {"kernel_size": (3, 2), "stride": (1, 2)}),
    ((2, 3, 7, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
    ((2, 3, 7, 10), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    ((1, 1, 5, 5), {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True}),
    ((3, 6, 6), {"kernel_size": 2}),
]


@pytest.mark.parametrize("case", range(len(POOLS)))
def test_pooling_is_that_of_pytorch(case):
    shape, kwargs = POOLS[case]
    x = drawn(*shape)
    theirs = {"kernel_size": 2, **kwargs}
    same(Tensor(x).max_pool2d(**kwargs), F.max_pool2d(t(x), **theirs))
    same(Tensor(x).avg_pool2d(**kwargs), F.avg_pool2d(t(x), **theirs))
    same(
        Tensor(x).avg_pool2d(**kwargs, count_include_pad=False),
        F.avg_pool2d(t(x), **theirs, count_include_pad=False),
    )


def test_pooling_of_other_kinds():
    x = drawn(2, 3, 9, 9)
    same(Tensor(x).max_pool2d(3, 1, dilation=2), F.max_pool2d(t(x), 3, 1, dilation=2))
    whole = np.arange(16).reshape(1, 1, 4, 4).astype(np.int8) - 100
    assert Tensor(whole).max_pool2d(3, 2, padding=1).tolist() == [[[[-95, -93], [-87, -85]]]]
    assert Tensor(whole).max_pool2d().dtype is dtypes.int8
    line = drawn(2, 3, 9)
    same(Tensor(line).max_pool2d((2,)), F.max_pool1d(t(line), 2))


# ---------------------------------------------------------------- layers and losses


def test_normalisations():
    x = drawn(4, 3, 5, 5)
    weight, bias = drawn(3, seed=1), drawn(3, seed=2)
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
    invstd = Tensor((1 / np.sqrt(var + 1e-5)).astype(np.float32))
    expected = F.batch_norm(t(x), None, None, t(weight), t(bias), training=True)
    same(Tensor(x).batchnorm(Tensor(weight), Tensor(bias), Tensor(mean), invstd), expected)
    same(
        Tensor(x).batchnorm(None, None, Tensor(mean), invstd),
        F.batch_norm(t(x), None, None, training=True),
    )
    same(Tensor(x).layernorm(), F.layer_norm(t(x), (5,)))
    same(Tensor(x).layernorm((-2, -1), eps=1e-3), F.layer_norm(t(x), (5, 5), eps=1e-3))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_is_that_of_pytorch(reduction, smoothing):
    x, y = drawn(6, 5), np.random.default_rng(3).integers(0, 5, 6)
    kwargs = {"reduction": reduction, "label_smoothing": smoothing}
    same(Tensor(x).cross_entropy(Tensor(y), **kwargs), F.cross_entropy(t(x), t(y), **kwargs))
    shares = np.abs(drawn(6, 5, seed=4))
    same(
        Tensor(x).cross_entropy(Tensor(shares), **kwargs),
        F.cross_entropy(t(x), t(shares), **kwargs),
    )
    image, labels = drawn(2, 5, 3), np.random.default_rng(5).integers(0, 5, (2, 3))
    same(
        Tensor(image).cross_entropy(Tensor(labels), **kwargs),
        F.cross_entropy(t(image), t(labels), **kwargs),
    )
    y[2] = -1
    same(
        Tensor(x).sparse_categorical_crossentropy(Tensor(y), **kwargs),
        F.cross_entropy(t(x), t(y), ignore_index=-1, **kwargs),
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nll_loss_is_that_of_pytorch(reduction):
    x = np.log(np.abs(drawn(6, 5)))
    y, weight = np.array([0, 1, 2, 3, 4, 1]), np.abs(drawn(5, seed=2))
    for kwargs in (
        {},
        {"weight": weight},
        {"ignore_index": 1},
        {"weight": weight, "ignore_index": 1},
    ):
        ours = {k: Tensor(v) if k == "weight" else v for k, v in kwargs.items()}
        theirs = {k: t(v) if k == "weight" else v for k, v in kwargs.items()}
        same(
            Tensor(x).nll_loss(Tensor(y), **ours, reduction=reduction),
            F.nll_loss(t(x), t(y), **theirs, reduction=reduction),
        )


def test_a_masked_class_does_not_spoil_the_loss():
    x = np.array([[0.0, -math.inf, 1.0]], np.float32)
    same(Tensor(x).cross_entropy(Tensor([2])), F.cross_entropy(t(x), torch.tensor([2])))
    assert Tensor(x[0]).cross_entropy(Tensor(2)).item() == pytest.approx(0.31326166)


# ---------------------------------------------------------------- gradients

GRADIENTS = [
    lambda x, f: (x * x * 3 - x / (x * x + 1)).sum(),
    lambda x, f: x.exp().sum() + x.sin().sum() + x.sigmoid().sum() + x.tanh().sum(),
    lambda x, f: (x * x + 1).sqrt().log().mean(),
    lambda x, f: x.relu().sum() + f.leaky_relu(x, 0.1).sum() + f.silu(x).sum(),
    lambda x, f: (x.reshape(6, 4).T[1:, ::2] * 2).sum() + x[0].sum(),
    lambda x, f: x.flip(0).sum() if f is not F else torch.flip(x, (0,)).sum(),
    lambda x, f: x.max(-1)[0].sum() if f is F else x.max(-1).sum(),
    lambda x, f: f.log_softmax(x, -1)[:, :, 0].sum(),
    lambda x, f: f.softmax(x, 1).square().sum(),
    lambda x, f: (x @ x.transpose(-1, -2)).sum(),
    lambda x, f: x.std(0).sum() + x.var(2).sum(),
    lambda x, f: x.logsumexp(1).sum(),
    lambda x, f: x.cumsum(1).square().sum(),
    lambda x, f: (x**3).sum() + (x.abs() ** 1.5).sum(),
    lambda x, f: (torch.where if f is F else Tensor.where)(x > 0, x * 2, x * -3).sum(),
    lambda x, f: x.clamp(-0.5, 0.7).sum(),
    lambda x, f: f.max_pool2d(x, 2).sum() + f.avg_pool2d(x, 2).sum(),
    lambda x, f: x[:, [0, 2, 2]].square().sum(),
    lambda x, f: x.prod(0).sum(),
    lambda x, f: f.gelu(x, approximate="tanh").sum() if f is F else x.gelu().sum(),
]  # fmt: skip


class Ours:
    """The names of torch.nn.functional as methods of Tensor."""

    def __getattr__(self, name):
        return getattr(Tensor, name)


@pytest.mark.parametrize("case", range(len(GRADIENTS)))
def test_gradients_are_those_of_pytorch(case):
    array = drawn(2, 3, 4, seed=case)
    x = torch.tensor(array, requires_grad=True)
    GRADIENTS[case](x, F).backward()
    y = Tensor(array)
    loss = GRADIENTS[case](y, Ours())
    loss.backward()
    assert y.grad is not None and y.grad.dtype is dtypes.float32
    same(y.grad, x.grad, rtol=1e-4, atol=1e-5)
    same(loss.gradient(y)[0], x.grad, rtol=1e-4, atol=1e-5)


def test_a_small_network_has_the_gradients_of_pytorch():
    image, labels = drawn(4, 2, 8, 8), np.array([0, 2, 1, 2])
    arrays = [drawn(3, 2, 3, 3, seed=1), drawn(3, seed=2), drawn(27, 3, seed=3)]

    def loss(x, parameters, conv, pool, entropy):
        w, b, linear = parameters
        x = pool(conv(x, w, b, 1).relu(), 2)
        return entropy(x.reshape(4, -1) @ linear)

    def torch_conv(x, w, b, padding):
        return F.conv2d(x, w, b, padding=padding).relu()[..., 1:-1, 1:-1]

    def our_conv(x, w, b, padding):
        return x.conv2d(w, b, padding=padding).relu()[..., 1:-1, 1:-1]

    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = loss(
        t(image), theirs, torch_conv, F.max_pool2d, lambda x: F.cross_entropy(x, t(labels))
    )
    expected.backward()
    ours = [Tensor(a) for a in arrays]
    result = loss(
        Tensor(image),
        ours,
        our_conv,
        Tensor.max_pool2d,
        lambda x: x.sparse_categorical_crossentropy(Tensor(labels)),
    )
    result.backward()
    same(result, expected)
    for mine, other in zip(ours, theirs, strict=True):
        same(mine.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_backward_adds_up_and_respects_requires_grad():
    x, still = Tensor([1.0, 2.0]), Tensor([3.0, 4.0], requires_grad=False)
    (x * still).sum().backward()
    (x * still).sum().backward()
    assert x.grad.tolist() == [6.0, 8.0] and still.grad is None
    x.grad = None
    (x.detach() * x).sum().backward()
    assert x.grad.tolist() == [1.0, 2.0]


def test_gradients_for_intermediate_values_and_with_a_seed():
    x = Tensor([1.0, 2.0])
    middle = x * 3
    top = middle * middle
    assert top.gradient(middle, x, gradient=Tensor([1.0, 10.0]))[0].tolist() == [6.0, 120.0]
    top.backward(Tensor([1.0, 0.0]))
    assert middle.grad.tolist() == [6.0, 0.0] and x.grad.tolist() == [18.0, 0.0]


# ---------------------------------------------------------------- mistakes

IMAGE = np.zeros((2, 3, 8, 8), np.float32)


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda x: x @ Tensor(np.zeros((3, 3))), ValueError, r"\(2, 3, 8, 8\) @ \(3, 3\)"),
        (lambda x: x @ Tensor(1.0), ValueError, "dimension"),
        (lambda x: x.conv2d(Tensor(np.zeros((4, 2, 3, 3)))), ValueError, "3 channels"),
        (lambda x: x.conv2d(Tensor(np.zeros((4, 3, 3)))), ValueError, "conv2d"),
        (lambda x: x.conv2d(Tensor(np.zeros((4, 3, 9, 9)))), ValueError, "fit"),
        (lambda x: x.conv2d(Tensor(np.zeros((4, 3, 3, 3))), stride=0), ValueError, "at least 1"),
        (lambda x: x.conv2d(Tensor(np.zeros((4, 3, 3, 3))), padding=(1, 2, 3)), ValueError, "pad"),
        (lambda x: x.conv2d(Tensor(np.zeros((4, 1, 3, 3))), groups=2), ValueError, "2 groups"),
        (lambda x: x.max_pool2d(9), ValueError, "fit"),
        (lambda x: Tensor([1.0]).max_pool2d(), ValueError, "dimensions"),
        (lambda x: x.cross_entropy(Tensor([1, 2, 3])), ValueError, r"\(3,\)"),
        (lambda x: x.cross_entropy(x, reduction="max"), ValueError, "max"),
        (lambda x: x.cross_entropy(x, label_smoothing=2), ValueError, "2"),
        (lambda x: x.sparse_categorical_crossentropy(Tensor([1])), ValueError, r"\(1,\)"),
        (lambda x: x.nll_loss(Tensor([1])), ValueError, r"\(1,\)"),
        (lambda x: x.backward(), ValueError, r"\(2, 3, 8, 8\)"),
        (lambda x: Tensor([1]).sum().backward(), TypeError, "int32"),
        (lambda x: x.sum().gradient(Tensor([1.0])), RuntimeError, r"\(1,\)"),
        (lambda x: x.backward(Tensor([1.0])), ValueError, r"\(1,\)"),
    ],
)  # fmt: skip
def test_mistakes_are_found_when_written(make, error, words):
    with pytest.raises(error, match=words):
        make(Tensor(IMAGE))
