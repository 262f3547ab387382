"""Losses and layers: mistakes, corners, what training does. Values are in api/losses.py."""

from __future__ import annotations

import math

import numpy as np
import pytest

from conftest import examples
from tiny import Tensor
from tiny.dtype import dtypes


@pytest.mark.parametrize(
    "mistake, error, message",
    [
        (lambda x, y: x.cross_entropy(y, "max"), ValueError, "cross_entropy: the reduction.*'max'"),
        (lambda x, y: x.cross_entropy(y, label_smoothing=1.5), ValueError, "from 0 to 1, got 1.5"),
        (lambda x, y: x.cross_entropy(y[:2]), ValueError, r"\(2,\) do not fit \(3, 4\).*\(3,\)"),
        (lambda x, y: x.cross_entropy(x[:, :3]), ValueError, r"shares of shape \(3, 3\)"),
        (lambda x, y: x.cross_entropy(y.float()), TypeError, "classes are integers, got .*float32"),
        (lambda x, y: x.cross_entropy(y.bool()), TypeError, "classes are integers, got .*bool"),
        (
            lambda x, y: x[0, 0].cross_entropy(y),
            ValueError,
            r"dimension of classes, got shape \(\)",
        ),
        (
            lambda x, y: x.sparse_categorical_crossentropy(y, reduction="all"),
            ValueError,
            "sparse_categorical_crossentropy: the reduction.*'all'",
        ),
        (
            lambda x, y: x.sparse_categorical_crossentropy(y, label_smoothing=-1),
            ValueError,
            "sparse_categorical_crossentropy: label_smoothing",
        ),
        (
            lambda x, y: x.sparse_categorical_crossentropy(y.reshape(1, 3)),
            ValueError,
            r"\(1, 3\) do not fit \(3, 4\), whose dimension 1",
        ),
        (lambda x, y: x.nll_loss(y, reduction=""), ValueError, "nll_loss: the reduction"),
        (lambda x, y: x.nll_loss(y[:1]), ValueError, r"nll_loss: classes of shape \(1,\)"),
        (lambda x, y: x.nll_loss(x), ValueError, "nll_loss: classes of shape"),
        (lambda x, y: x.nll_loss(y, Tensor.ones(3)), ValueError, r"shape \(4,\), got \(3,\)"),
        (lambda x, y: x.binary_crossentropy(x, "x"), ValueError, "binary_crossentropy: the red"),
        (lambda x, y: x.binary_crossentropy(x[:2]), ValueError, "binary_crossentropy: the shapes"),
        (
            lambda x, y: y.float().binary_crossentropy(x[:, :1]),
            ValueError,
            r"targets of shape \(3, 1\) do not fit \(3,\)",
        ),
        (
            lambda x, y: x.binary_crossentropy_logits(x, "x"),
            ValueError,
            "binary_crossentropy_logits: the reduction",
        ),
        (
            lambda x, y: x[:, :1].binary_crossentropy_logits(y),
            ValueError,
            r"targets of shape \(3,\) do not fit \(3, 1\)",
        ),
        (
            lambda x, y: y.float().binary_crossentropy_logits(y, pos_weight=x[:, :1]),
            ValueError,
            "pos_weight: targets",
        ),
        (
            lambda x, y: x.batchnorm(Tensor.ones(3), None, Tensor.ones(4), Tensor.ones(4)),
            ValueError,
            r"weight is of shape \(3,\); along axis 1 of \(3, 4\) it has shape \(4,\)",
        ),
        (
            lambda x, y: x.batchnorm(None, Tensor.ones(1, 3), Tensor.ones(4), Tensor.ones(4)),
            ValueError,
            "bias is of shape",
        ),
        (
            lambda x, y: x.batchnorm(None, None, Tensor.ones(3), Tensor.ones(4)),
            ValueError,
            "mean is of shape",
        ),
        (
            lambda x, y: x.batchnorm(None, None, Tensor.ones(4), Tensor.ones(3, 3)),
            ValueError,
            r"\(3, 3\)",
        ),
        (
            lambda x, y: x.batchnorm(None, None, Tensor.ones(4), Tensor.ones(4), axis=2),
            IndexError,
            "no dimension 2",
        ),
        (lambda x, y: x.layernorm(2), IndexError, "no dimension 2"),
        (lambda x, y: x.layernorm((0, 0)), ValueError, "named twice"),
        (lambda x, y: x.dropout(1.5), ValueError, "between 0 and 1, got 1.5"),
        (lambda x, y: x.dropout(-0.1), ValueError, "between 0 and 1"),
    ],
)
def test_mistakes_say_what_does_not_fit(mistake, error, message):
    with pytest.raises(error, match=message):
        mistake(Tensor.ones(3, 4) * 0.5, Tensor([0, 1, 2]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_are_summed_up_in_float32(dtype):
    x = Tensor(np.linspace(-3, 3, 4000).reshape(1000, 4)).cast(dtype)
    y = Tensor(np.arange(1000) % 4)
    wide = x.float()
    for loss in (
        lambda x: x.cross_entropy(y),
        lambda x: x.sparse_categorical_crossentropy(y, reduction="sum"),
        lambda x: x.sigmoid().binary_crossentropy(Tensor(0.25), reduction="sum"),
        lambda x: x.log_softmax().nll_loss(y),
    ):
        short = loss(x)
        assert short.dtype.name == dtype
        # what is rounded is the result, and the shares that the last one is given
        assert short.item() == pytest.approx(loss(wide).item(), rel=2.0**-7)
    assert x.cross_entropy(y).item() == wide.cross_entropy(y).cast(dtype).item()


def test_a_class_that_is_not_there_has_no_loss():
    x = Tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]])
    for y in ([0, 3], [0, -1], [0, 1 << 20]):
        assert x.cross_entropy(Tensor(y), "none").numpy()[1] == 0
        assert x.nll_loss(Tensor(y), reduction="none").numpy()[1] == 0


def test_targets_may_broadcast_to_the_prediction():
    x = Tensor([[0.25, 0.5], [0.75, 0.9]])
    one = x.binary_crossentropy(Tensor(1.0)).item()
    assert one == x.binary_crossentropy(Tensor([1.0, 1.0])).item()
    assert one == pytest.approx(-np.log(x.numpy()).mean(), rel=1e-6)


def test_gradients_of_far_logits_are_those_of_the_sigmoid():
    x = Tensor([1e4, -1e4, 0.0, 50.0, -50.0])
    x.binary_crossentropy_logits(Tensor([0.0, 1.0, 1.0, 1.0, 0.0]), reduction="sum").backward()
    np.testing.assert_allclose(x.grad.numpy(), [1, -1, -0.5, 0, 0], atol=1e-20)
    x = Tensor([[1e4, -1e4, 0.0]])
    x.cross_entropy(Tensor([1])).backward()
    np.testing.assert_array_equal(x.grad.numpy(), [[1, -1, 0]])


def test_rows_that_are_ignored_have_no_gradient():
    x = Tensor([[1.0, math.inf], [1.0, 1.0]])
    x.log_softmax().nll_loss(Tensor([0, 1]), ignore_index=0).backward()
    assert np.isfinite(x.grad.numpy()[1]).all()
    x = Tensor([[-1.0, -math.inf], [-0.5, -0.5]])
    x.nll_loss(
        Tensor([1, 1]), weight=Tensor([1.0, 2.0]), ignore_index=1, reduction="sum"
    ).backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.zeros((2, 2)))


# ---------------------------------------------------------------- dropout


def test_dropout_keeps_what_it_says():
    n = examples(1_000_000, 100_000)
    with Tensor.train():
        for p in (0.1, 0.5, 0.75):
            x = Tensor.ones(n).dropout(p).numpy()
            kept = (x != 0).mean()
            assert abs(kept - (1 - p)) < 6 * math.sqrt(p * (1 - p) / n)
            assert set(x[x != 0].tolist()) == {np.float32(1 / (1 - p)).item()}
            # neighbours are kept independently of each other
            both = ((x[1:] != 0) & (x[:-1] != 0)).mean()
            assert abs(both - (1 - p) ** 2) < 6 / math.sqrt(n)


def test_two_dropouts_keep_different_elements_and_a_seed_repeats_them():
    x = Tensor.ones(1000)
    with Tensor.train():
        a, b = x.dropout(), x.dropout()
        assert (a.numpy() != b.numpy()).mean() > 0.4
        Tensor.manual_seed(7)
        first = x.dropout().numpy()
        Tensor.manual_seed(7)
        np.testing.assert_array_equal(first, x.dropout().numpy())


def test_dropout_does_nothing_outside_of_training_or_without_a_share():
    x = Tensor([1.0, 2.0])
    assert x.dropout(0.9) is x
    with Tensor.train():
        assert x.dropout(0.0) is x
        with Tensor.train(False):
            assert x.dropout() is x


def test_all_is_dropped_whatever_it_is_and_has_the_gradient_zero():
    x = Tensor([math.inf, math.nan, 1.0])
    with Tensor.train():
        y = x.dropout(1)
    y.sum().backward()
    np.testing.assert_array_equal(y.numpy(), [0, 0, 0])
    np.testing.assert_array_equal(x.grad.numpy(), [0, 0, 0])


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_dropout_has_the_dtype_of_its_input(dtype):
    with Tensor.train():
        x = Tensor.ones(64, dtype=dtype).dropout(0.5)
    assert x.dtype.name == dtype and set(x.tolist()) == {0.0, 2.0}


def test_what_is_dropped_has_no_gradient_and_the_rest_is_scaled():
    x = Tensor.ones(200)
    with Tensor.train():
        y = x.dropout(0.5)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())


# ---------------------------------------------------------------- layers


def test_layernorm_of_short_floats_is_rounded_once():
    x = Tensor(np.random.default_rng(0).normal(100, 1, (4, 64))).half()
    np.testing.assert_array_equal(x.layernorm().numpy(), x.float().layernorm().half().numpy())
    assert Tensor([[1, 2, 3]]).layernorm().dtype is dtypes.float32


def test_sequential_gives_what_a_layer_returns():
    seen = []
    x = Tensor([1.0])
    assert x.sequential([lambda v: seen.append(1) or v, lambda v: seen.append(2) or v]) is x
    assert seen == [1, 2]
