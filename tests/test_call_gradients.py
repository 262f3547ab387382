"""Gradients of any order through functions, calls and kernels by hand, however results are used."""

import numpy as np
import pytest

from tiny import Tensor, TinyJit
from tiny.function import function
from tiny.older import Function
from tiny.uop.ops import UOp

X, Y = np.array([0.1, 0.2, 0.3]), np.array([0.4, 0.5, 0.6])


def plain(x, y):
    return x * y * x, x + y * y


def slopes(x, y, g, h):
    """The gradients for x and y of `plain`, from those of its results."""
    return g * y * x * 2 + h, g * x * x + h * y * 2


def by_rule(g, h, call):
    return slopes(*call.src[1:], g, h)


def by_hand(x, y):
    def kernel(C, D, A, B):
        i = UOp.range(3, 0)
        first, second = plain(A[i], B[i])
        return UOp.sink(C[i].store(first).end(i), D[i].store(second).end(i))

    def backward(g, h, call):
        return None, None, *slopes(*call.src[3:], g, h)

    c, d = (Tensor.empty(3, dtype="float64") for _ in range(2))
    return c.custom_kernel(d, x, y, fxn=kernel, grad_fxn=backward)[:2]


def in_place(x, y):
    """As `plain`, by kernels that read what they write, one of them through a view."""

    def scale(C, A):
        i = UOp.range(C.shape[0], 0)
        return C[i].store(C[i] * A[i]).end(i).sink()

    def backward(g, call):
        c, a = call.src[1:]
        return g * a, g * c / a

    c = (x * y).contiguous()
    c[:2].custom_kernel(x[:2], fxn=scale, grad_fxn=backward)
    c[2:].custom_kernel(x[2:], fxn=scale, grad_fxn=backward)
    d = y + 0
    (d,) = d.custom_kernel(y, fxn=scale, grad_fxn=backward)[:1]
    return c, x + d


def called(x, y):
    a, b = x.as_param(0), y.as_param(1)
    return tuple(x.call(y, fxn=value) for value in plain(a, b))


def called_with_rules(x, y):
    def first(g, call):
        a, b = call.src[1:]
        return g * a * b * 2, g * a * a

    def second(g, call):
        return g, g * call.src[2] * 2

    values = plain(x.as_param(0), y.as_param(1))
    rules = (first, second)
    return tuple(x.call(y, fxn=v, grad_fxn=r) for v, r in zip(values, rules, strict=True))


class Older(Function):
    def forward(self, x, y):
        self.kept = x, y
        return plain(x, y)

    def backward(self, g, h):
        return slopes(*self.kept, g, h)


KINDS = {
    "function": function(plain),
    "precompiled": function(precompile=True, precompile_backward=True)(plain),
    "function with a rule": function(grad_fxn=by_rule)(lambda x, y: plain(x.detach(), y.detach())),
    "call": called,
    "call with rules": called_with_rules,
    "kernel": by_hand,
    "kernels in place": in_place,
    "Function": Older.apply,
}
USES = {
    "both": lambda c, d, x, y: (c * d).sum(),
    "the first": lambda c, d, x, y: (c * c).sum(),
    "the second": lambda c, d, x, y: (d * d * d).sum(),
    "several times": lambda c, d, x, y: (c * c * x + d.sum() * c + d * d).sum(),
    "parts": lambda c, d, x, y: c[1:].sum() * d[:2].sum() + c[0],
    "not at all": lambda c, d, x, y: (x * y * y).sum(),
}


def results(kind, use, times, x, y):
    """A value that is computed of results, its gradients, and those of their squares."""
    a, b = x * x + 1, y.flip(0)
    for _ in range(times):
        a, b = kind(a, b)
    # all of it depends on both, in each order
    value = use(a, b, x, y) + ((x + y) * (x + y) * (x + y)).sum()
    first = value.gradient(x, y)
    second = sum((g * g).sum() for g in first).gradient(x, y)
    return (value, *first, *second)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", KINDS)
def test_results_have_their_gradients_however_they_are_used(kind, use, times):
    wanted = [t.numpy() for t in results(plain, USES[use], times, Tensor(X), Tensor(Y))]
    found = [t.numpy() for t in results(KINDS[kind], USES[use], times, Tensor(X), Tensor(Y))]
    for f, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_captured_steps_have_the_gradients(kind):
    step = TinyJit(lambda x, y: results(KINDS[kind], USES["several times"], 1, x, y))
    for k in range(4):
        x, y = Tensor(X + k).realize(), Tensor(Y - k).realize()
        wanted = [t.numpy() for t in results(plain, USES["several times"], 1, x, y)]
        for f, w in zip(step(x, y), wanted, strict=True):
            np.testing.assert_allclose(f.numpy(), w, rtol=1e-9)
