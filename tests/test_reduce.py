"""Gradients of reductions and rows where something is zero, and symbolic lengths.

The tables of values and gradients are in api/reduce.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from tiny import Tensor, Variable


def drawn(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same(actual, expected, rtol=1e-6, atol=1e-6):
    np.testing.assert_allclose(actual.numpy(), expected, rtol, atol)


# ---------------------------------------------------------------- second derivatives


TWICE = {
    "prod": lambda x: x.prod(1),
    "cumprod": lambda x: x.cumprod(1),
    "std": lambda x: x.std(1),
    "var": lambda x: x.var(1, correction=0),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "cumsum": lambda x: x.cumsum(1) ** 2,
    "cummax": lambda x: x.cummax(1)[0] ** 3,
    "sort": lambda x: x.sort(1)[0] ** 3,
    "topk": lambda x: x.topk(2, 1)[0] ** 3,
}


@pytest.mark.parametrize("name", TWICE)
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_second_derivatives_are_pytorchs(name, zeros):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(zeros)
    x, weights = rng.uniform(0.5, 2, (2, 5)), rng.standard_normal((2, 5))
    x[1, [4, 1][:zeros]] = 0
    t = Tensor(x)
    y = TWICE[name](t)
    (first,) = (
        (y * Tensor(weights[:, : y.shape[1]] if y.ndim > 1 else weights[:, 0])).sum().gradient(t)
    )
    (second,) = (first * Tensor(weights)).sum().gradient(t)
    p = torch.tensor(x, requires_grad=True)
    y = TWICE[name](p)
    factor = torch.tensor(weights[:, : y.shape[1]] if y.ndim > 1 else weights[:, 0])
    (expected,) = torch.autograd.grad((y * factor).sum(), p, create_graph=True)
    (twice,) = torch.autograd.grad((expected * torch.tensor(weights)).sum(), p)
    same(first, expected.detach().numpy(), 1e-10, 1e-12)
    same(second, twice.numpy(), 1e-10, 1e-12)


def test_gradients_where_nothing_varies():
    x = Tensor([[2.0, 2.0], [1.0, 3.0]])
    x.std(1).sum().backward()
    same(x.grad, [[0, 0], [-math.sqrt(0.5), math.sqrt(0.5)]])


def test_an_overflow_beside_a_zero_is_no_number_nowhere():
    x = Tensor([0.0, 1e30, 1e30])
    x.prod().backward()
    same(x.grad, [math.inf, 0, 0])


# ---------------------------------------------------------------- symbolic sizes


@pytest.mark.parametrize("n", [2, 7])
def test_rows_of_symbolic_length(n):
    x = drawn((3, 9))
    part, taken = Tensor(x)[:, : Variable("n", 1, 9).bind(n)], x[:, :n].astype(np.float64)
    same(part.var(1), taken.var(1, ddof=1), 1e-5)
    same(part.var(1, correction=0.5), ((taken - taken.mean(1, keepdims=True)) ** 2).sum(1)
         / (n - 0.5), 1e-5)  # fmt: skip
    same(part.std(1, correction=0), taken.std(1), 1e-5)
    same(part.prod(1), taken.prod(1), 1e-5)
    same(part.min(1), taken.min(1))
    same(part.argmin(1), taken.argmin(1))
    same(part.logsumexp(1), np.log(np.exp(taken).sum(1)), 1e-5)
    same(part.normalize(), taken / np.sqrt((taken**2).sum(1, keepdims=True)), 1e-5)
