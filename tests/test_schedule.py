"""Tensor graphs to kernels: values, what is stored, and how much work scheduling is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import examples
from hypothesis import given, settings
from tensor_graphs import (
    add,
    arange,
    buffer,
    check,
    const,
    contiguous,
    conv2d,
    exp,
    expand,
    f32,
    flip,
    graphs,
    log,
    matmul,
    mul,
    op,
    pad,
    permute,
    reduce,
    relu,
    reshape,
    schedule,
    shrink,
    softmax,
    unfold,
)

from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp


@settings(max_examples=examples(20_000, 300))
@given(graphs())
def test_random_graphs_are_computed(outputs):
    check(*outputs)


@settings(max_examples=examples(3_000, 60))
@given(graphs(most=40))
def test_larger_random_graphs_are_computed(outputs):
    check(*outputs)


# ---------------------------------------------------------------- workloads


def mean(x: UOp, *axes: int) -> UOp:
    n = math.prod(x.shape[a] for a in axes)
    return mul(reduce(x, *axes), const(1 / n, x))


def layer_norm(x: UOp, weight: UOp, bias: UOp) -> UOp:
    centred = op(Ops.SUB, x, expand(mean(x, 1), *x.shape))
    variance = mean(mul(centred, centred), 1)
    scale = op(Ops.RECIPROCAL, op(Ops.SQRT, add(variance, const(1e-5, x))))
    normal = mul(centred, expand(scale, *x.shape))
    rows = [expand(reshape(p, 1, x.shape[1]), *x.shape) for p in (weight, bias)]
    return add(mul(normal, rows[0]), rows[1])


def gelu(x: UOp) -> UOp:
    cube = mul(x, mul(x, x))
    inner = mul(add(x, mul(cube, const(0.044715, x))), const(-2 * 0.7978845608 / math.log(2), x))
    return mul(x, op(Ops.RECIPROCAL, add(op(Ops.EXP2, inner), const(1, x))))


def linear(x: UOp, w: UOp, b: UOp) -> UOp:
    y = matmul(x, w)
    return add(y, expand(reshape(b, 1, y.shape[1]), *y.shape))


def batch_norm(x: UOp, weight: UOp, bias: UOp) -> UOp:
    n, c, h, w = x.shape
    centred = op(Ops.SUB, x, expand(mean(x, 0, 2, 3), n, c, h, w))
    variance = mean(mul(centred, centred), 0, 2, 3)
    scale = op(Ops.RECIPROCAL, op(Ops.SQRT, add(variance, const(1e-5, x))))
    a, b = (expand(reshape(p, 1, c, 1, 1), n, c, h, w) for p in (weight, bias))
    return add(mul(mul(centred, expand(scale, n, c, h, w)), a), b)


def max_pool(x: UOp) -> UOp:
    n, c, h, w = x.shape
    x = reshape(x, n, c, h // 2, 2, w // 2, 2)
    return reshape(reduce(x, 3, 5, kind=Ops.MAX), n, c, h // 2, w // 2)


def attention(q: UOp, k: UOp, v: UOp) -> UOp:
    """(b, t, d) each."""
    b, t, d = q.shape
    left = expand(reshape(q, b, t, 1, d), b, t, t, d)
    right = expand(reshape(k, b, 1, t, d), b, t, t, d)
    scores = mul(reshape(reduce(mul(left, right), 3), b, t, t), const(d**-0.5, q))
    p = expand(reshape(softmax(scores), b, t, t, 1), b, t, t, d)
    return reshape(reduce(mul(p, expand(reshape(v, b, 1, t, d), b, t, t, d)), 2), b, t, d)


def cat(*parts: UOp) -> UOp:
    """Along the first axis, as a sum of padded parts."""
    rows = [p.shape[0] for p in parts]
    rest = [(0, 0)] * (len(parts[0].shape) - 1)
    total: UOp | None = None
    for k, p in enumerate(parts):
        padded = pad(p, (sum(rows[:k]), sum(rows[k + 1 :])), *rest)
        total = padded if total is None else add(total, padded)
    assert total is not None
    return total


def argmax(x: UOp) -> UOp:
    n = x.shape[1]
    top = expand(reduce(x, 1, kind=Ops.MAX), *x.shape)
    down = op(Ops.SUB, UOp.const(n, dtypes.int32), arange(n))
    at = mul(op(Ops.CMPEQ, x, top).cast(dtypes.int32), expand(reshape(down, 1, n), *x.shape))
    return op(Ops.SUB, UOp.const(n, dtypes.int32), reduce(at, 1, kind=Ops.MAX))


def embedding(table: UOp, rows: UOp) -> UOp:
    (v, d), (n,) = table.shape, rows.shape
    numbers = expand(reshape(arange(v), 1, v, 1), n, v, d)
    hot = op(Ops.CMPEQ, numbers, expand(reshape(rows, n, 1, 1), n, v, d))
    return reshape(
        reduce(mul(hot.cast(table.dtype), expand(reshape(table, 1, v, d), n, v, d)), 1), n, d
    )


def cumsum(x: UOp) -> UOp:
    """Along the last axis, (r, n)."""
    n = x.shape[-1]
    return reshape(reduce(unfold(pad(x, (0, 0), (n - 1, 0)), 1, n), 2), *x.shape)


def nll(x: UOp, labels: UOp) -> UOp:
    """The mean negative log-likelihood of labels (n,) under scores (n, c)."""
    n, c = x.shape
    shifted = op(Ops.SUB, x, expand(reduce(x, 1, kind=Ops.MAX), n, c))
    chances = op(Ops.SUB, shifted, expand(log(reduce(exp(shifted), 1)), n, c))
    numbers = expand(reshape(arange(c), 1, c), n, c)
    hot = op(Ops.CMPEQ, numbers, expand(reshape(labels, n, 1), n, c)).cast(f32)
    return mul(reduce(mul(hot, chances), 0, 1), const(-1 / n, x))


WORKLOADS = {
    # name: (graph, kernels, bytes of intermediates); tinygrad 0.14.0's in the comment
    "softmax": (lambda: softmax(buffer(64, 1024)), 1, 0),  # 3
    "softmax of columns": (lambda: softmax(buffer(64, 96), 0), 1, 0),
    "layer norm": (lambda: layer_norm(buffer(64, 96), buffer(96), buffer(96)), 1, 0),  # 3
    "linear": (lambda: linear(buffer(33, 17), buffer(17, 20), buffer(20)), 1, 0),
    "mlp": (
        lambda: linear(
            gelu(linear(buffer(16, 24), buffer(24, 40), buffer(40))), buffer(40, 8), buffer(8)
        ),
        2,
        16 * 40 * 4,
    ),
    "conv": (lambda: conv2d(buffer(2, 3, 8, 9), buffer(4, 3, 3, 3), padding=1), 1, 0),
    "conv of relu": (lambda: conv2d(relu(buffer(2, 3, 8, 9)), buffer(4, 3, 3, 3)), 1, 0),
    "conv, relu, pool": (
        lambda: max_pool(relu(conv2d(buffer(2, 3, 10, 10), buffer(8, 3, 3, 3)))),
        2,
        2 * 8 * 8 * 8 * 4,
    ),
    "attention": (lambda: attention(*[buffer(2, 16, 8) for _ in range(3)]), 2, 2 * 16 * 16 * 4),
    "embedding": (lambda: embedding(buffer(50, 6), buffer(7, dtype=dtypes.int32)), 1, 0),
    "argmax": (lambda: argmax(buffer(16, 30)), 1, 0),  # 2
    "cat": (lambda: cat(*[buffer(k + 1, 5) for k in range(8)]), 1, 0),
    "cumsum": (lambda: cumsum(buffer(3, 40)), 1, 0),
    "flips and pads": (
        lambda: add(flip(pad(buffer(6, 7), (1, 0), (0, 2)), 0, 1), permute(buffer(9, 7), 1, 0)),
        1,
        0,
    ),
    "nll": (lambda: nll(buffer(32, 40), buffer(32, dtype=dtypes.int32)), 3, 2 * 32 * 4),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_computed_in_few_kernels(name):
    make, kernels, stored = WORKLOADS[name]
    stats = check(make()).schedule.stats
    assert (stats.kernels, stats.stored_nbytes) == (kernels, stored)
