"""Tensor graphs to kernels: values, what is stored, and how much work scheduling is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from tensor_graphs import (
    add,
    arange,
    buffer,
    check,
    const,
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
from tiny.gradient import compute_gradient
from tiny.helpers import Context
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
    "attention": (lambda: attention(*[buffer(2, 24, 20) for _ in range(3)]), 2, 2 * 24 * 24 * 4),
    "embedding": (lambda: embedding(buffer(50, 6), buffer(7, dtype=dtypes.int32)), 1, 0),
    "argmax": (lambda: argmax(buffer(16, 30)), 1, 0),  # 2
    "cat": (lambda: cat(*[buffer(k + 1, 5) for k in range(8)]), 1, 0),
    "cumsum": (lambda: cumsum(buffer(3, 40)), 1, 0),
    "flips and pads": (
        lambda: add(flip(pad(buffer(6, 7), (1, 0), (0, 2)), 0, 1), permute(buffer(9, 7), 1, 0)),
        1,
        0,
    ),
    "nll": (lambda: nll(buffer(32, 40), buffer(32, dtype=dtypes.int32)), 1, 0),  # 3
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_computed_in_few_kernels(name):
    make, kernels, stored = WORKLOADS[name]
    stats = check(make()).schedule.stats
    assert (stats.kernels, stats.stored_nbytes) == (kernels, stored)


# ---------------------------------------------------------------- what kernels look like


def kernels_of(*roots: UOp) -> list[UOp]:
    return [item.kernel for item in check(*roots).schedule.items]


def sizes_of(kernel: UOp) -> list[int]:
    """The sizes of its loops by axis."""
    loops = [n for n in kernel.postorder() if n.op is Ops.RANGE]
    return [loop.src[0].arg for loop in sorted(loops, key=lambda r: r.arg.axis)]


def divisions(kernel: UOp) -> int:
    return sum(n.op in (Ops.FLOORDIV, Ops.FLOORMOD) for n in kernel.postorder())


def loads(kernel: UOp) -> list[UOp]:
    target = kernel.src[0].src[0]
    return [n for n in kernel.postorder() if n.op is Ops.INDEX and n is not target]


def test_equal_computations_make_one_kernel():
    a, b = kernels_of(softmax(buffer(16, 32)), softmax(buffer(16, 32)))
    assert a is b


def test_a_loop_read_back_in_pieces_is_split():
    x, w = buffer(2, 3, 6, 6), buffer(4, 12)
    # windows of 2 x 2, flattened with the channels: read back as r // 4, r // 2 % 2, r % 2
    rows = permute(unfold(unfold(x, 3, 2), 2, 2), 0, 2, 4, 1, 3, 5)
    rows = reshape(rows, 2 * 5 * 5, 3 * 2 * 2)
    (kernel,) = kernels_of(matmul(rows, permute(w, 1, 0)))
    assert sizes_of(kernel)[-3:] == [3, 2, 2]
    assert divisions(kernel) == 0


def test_a_loop_whose_pieces_are_one_address_stays_whole():
    (kernel,) = kernels_of(relu(reshape(buffer(4, 6), 24)))
    assert sizes_of(kernel) == [24]


def test_loops_of_a_hoisted_reduction_are_outermost():
    (kernel,) = kernels_of(softmax(buffer(64, 96), 0))
    assert sizes_of(kernel)[:2] == [96, 64]


def test_a_padded_load_is_gated_and_needs_no_choice():
    (kernel,) = kernels_of(pad(buffer(4, 5), (1, 2), (0, 3)))
    (load,) = loads(kernel)
    assert len(load.src) == 4
    assert kernel.src[0].src[1] is load


def test_a_load_in_bounds_has_no_gate_behind_a_pad():
    x, scale = buffer(3, 5), buffer(3, 1)
    (kernel,) = kernels_of(pad(mul(x, expand(scale, 3, 5)), (0, 0), (2, 2)))
    gates = {load.src[0].arg.shape: len(load.src) - 3 for load in loads(kernel)}
    assert gates == {(3, 5): 1, (3, 1): 0}


def test_the_gradient_of_a_convolution_is_one_sum_over_its_taps():
    x, w = buffer(2, 3, 9, 9), buffer(4, 3, 3, 3)
    y = conv2d(x, w)
    (kernel,) = kernels_of(compute_gradient(y, buffer(*y.shape), {x})[x])
    (reduction,) = [n for n in kernel.postorder() if n.op is Ops.REDUCE]
    assert sorted(loop.src[0].arg for loop in reduction.src[1:]) == [3, 3, 4]
    gates = {load.src[0].arg.shape: len(load.src) - 5 for load in loads(kernel)}
    assert gates == {(2, 4, 7, 7): 1, (4, 3, 3, 3): 0}


def test_an_arange_needs_no_loop():
    (kernel,) = kernels_of(arange(100))
    assert sizes_of(kernel) == [100]
    assert not any(n.op is Ops.REDUCE for n in kernel.postorder())


def test_a_triangle_needs_no_loop():
    n = 12
    rows, columns = (expand(reshape(arange(n), *s), n, n) for s in ((n, 1), (1, n)))
    (kernel,) = kernels_of(op(Ops.CMPLT, rows, columns))
    assert not any(u.op is Ops.REDUCE for u in kernel.postorder())


def test_mean_and_square_mean_share_their_loops():
    x = buffer(16, 30)
    both = add(mean(x, 1), mean(mul(x, x), 1))
    (kernel,) = kernels_of(both)
    assert sizes_of(kernel) == [16, 30]


def test_reductions_that_depend_on_each_other_have_loops_of_their_own():
    (kernel,) = kernels_of(softmax(buffer(8, 30)))
    # the output, what is kept of a row, the sum and the largest
    assert sizes_of(kernel) == [8, 30, 30, 30, 30]


def test_incomparable_hoisted_reductions_are_not_in_one_kernel():
    x = buffer(40, 50)
    y = add(expand(reduce(x, 0), 40, 50), expand(reduce(x, 1), 40, 50))
    bound = check(mul(x, y))
    assert bound.schedule.stats.kernels == 2
    assert "other loops" in bound.schedule.items[0].reason


def test_an_operand_of_a_product_that_packs_nothing_is_stored():
    # a matrix with one row: no use of its elements but one, so the row's are not packed either
    x, weight, bias = buffer(1, 300), buffer(1, 300), buffer(1, 300)
    many, few = buffer(300, 200), buffer(300, 20)
    scaled = add(mul(x, weight), bias)
    bound = schedule(matmul(scaled, many))
    assert [i.reason for i in bound.schedule.items] == [
        "3 loads for each of 200 uses in a product that packs nothing",
        "output",
    ]
    assert len(kernels_of(matmul(scaled, few))) == 1
    assert len(kernels_of(matmul(relu(x), many))) == 1
    assert len(kernels_of(matmul(mul(buffer(8, 300), expand(weight, 8, 300)), many))) == 1
    check(matmul(scaled, many))


def test_loops_over_contiguous_memory_are_one():
    x, y = buffer(4, 5, 6), buffer(4, 5, 6)
    (kernel,) = kernels_of(relu(add(x, mul(y, y))))
    assert sizes_of(kernel) == [120]


def test_loops_of_a_sum_over_contiguous_memory_are_one():
    (kernel,) = kernels_of(reduce(buffer(6, 3, 5, 7), 0, 2, 3))
    assert sizes_of(kernel) == [3, 6, 35]


def test_loops_are_not_merged_across_a_broadcast():
    x, row = buffer(4, 5, 6), buffer(1, 5, 6)
    (kernel,) = kernels_of(add(x, expand(row, 4, 5, 6)))
    assert sizes_of(kernel) == [4, 30]


def test_a_pool_cut_into_windows_is_whole_again():
    x = reshape(buffer(2, 6, 10), 2, 3, 2, 5, 2)
    (kernel,) = kernels_of(relu(x))
    assert sizes_of(kernel) == [120]


def test_windows_keep_their_dimensions():
    (kernel,) = kernels_of(conv2d(buffer(2, 3, 8, 9), buffer(4, 3, 3, 3)))
    assert sizes_of(kernel) == [2, 4, 6, 7, 3, 3, 3]
    assert {load.src[0].arg.shape for load in loads(kernel)} == {(2, 3, 8, 9), (4, 3, 3, 3)}


def test_a_sum_of_padded_sums_of_what_is_not_0_leaves_the_padding_out():
    rows = reduce(exp(buffer(4, 5)), 1)  # off its gate a load is 0, and exp(0) is not
    (kernel,) = kernels_of(reduce(pad(rows, (1, 2), (0, 0)), 0))
    assert sum(n.op is Ops.REDUCE for n in kernel.postorder()) == 1


def test_a_strict_sum_of_sums_stays_two():
    x = reduce(pad(reduce(exp(buffer(4, 5)), 1), (1, 2), (0, 0)), 0)
    with Context(STRICT_REDUCE=1):
        (kernel,) = kernels_of(x)
    assert sum(n.op is Ops.REDUCE for n in kernel.postorder()) == 2


# ---------------------------------------------------------------- sums of one step


def places(n: int) -> UOp:
    """0 to n - 1, put together of its bits."""
    bits = max((n - 1).bit_length(), 1)
    bit = pad(reshape(UOp.const(True, dtypes.bool), 1), (1, 0))
    total = UOp.const(0, dtypes.int32)
    for j in range(bits):
        shape = [2 if axis == j else 1 for axis in range(bits)]
        weight = UOp.const(1 << (bits - 1 - j), dtypes.int32)
        mine = expand(reshape(bit, *shape), *[2] * bits)
        total = add(total, UOp(Ops.WHERE, dtypes.int32, (mine, weight, UOp.const(0, dtypes.int32))))
    return shrink(reshape(total, 1 << bits), (0, n))


def pick(table: UOp, rows: UOp, numbers: UOp) -> UOp:
    """(v, d), (n,), (v,): the sum of the rows of the table whose number is wanted."""
    (v, d), (n,) = table.shape, rows.shape
    wanted = expand(reshape(rows, n, 1, 1), n, v, d)
    hot = op(Ops.CMPEQ, wanted, expand(reshape(numbers, 1, v, 1), n, v, d))
    kept = UOp(Ops.WHERE, table.dtype, (hot, spread(table, n), const(0, table)))
    return reshape(reduce(kept, 1), n, d)


def spread(table: UOp, n: int) -> UOp:
    return expand(reshape(table, 1, *table.shape), n, *table.shape)


def integers(*shape: int) -> UOp:
    return buffer(*shape, dtype=dtypes.int32)


@pytest.mark.parametrize("numbers", [arange, places], ids=["counted", "of bits"])
@pytest.mark.parametrize("v", [2, 3, 7, 8, 40, 50, 97])
def test_a_row_is_picked_by_a_load_behind_a_gate(numbers, v):
    # the numbers are from -8 to 8: some rows are not there
    (kernel,) = kernels_of(pick(buffer(v, 5), integers(9), numbers(v)))
    assert not any(n.op is Ops.REDUCE for n in kernel.postorder())
    tables = [load for load in loads(kernel) if load.dtype is f32]
    assert [len(load.src) for load in tables] == [4]


@pytest.mark.parametrize(
    "numbers",
    [
        lambda v: add(arange(v), UOp.const(-3, dtypes.int32)),
        lambda v: op(Ops.SUB, UOp.const(4, dtypes.int32), arange(v)),
        lambda v: flip(arange(v), 0),
    ],
    ids=["shifted", "downwards", "flipped"],
)
def test_numbers_that_are_shifted_or_reversed_are_solved_for(numbers):
    (kernel,) = kernels_of(pick(buffer(6, 5), integers(9), numbers(6)))
    assert not any(n.op is Ops.REDUCE for n in kernel.postorder())


def test_what_is_computed_of_a_picked_row_is_0_where_there_is_none():
    table = exp(buffer(6, 5))  # off its gate a load is 0, and exp(0) is not
    (kernel,) = kernels_of(pick(table, integers(9), arange(6)))
    assert not any(n.op is Ops.REDUCE for n in kernel.postorder())


def test_rows_whose_numbers_are_not_those_of_a_loop_are_summed():
    doubled = mul(arange(6), UOp.const(2, dtypes.int32))
    (kernel,) = kernels_of(pick(buffer(6, 5), integers(9), doubled))
    assert any(n.op is Ops.REDUCE for n in kernel.postorder())
    (kernel,) = kernels_of(pick(buffer(6, 5), integers(9), integers(6)))
    assert any(n.op is Ops.REDUCE for n in kernel.postorder())


def test_rows_are_summed_where_numbers_may_be_equal():
    halves = op(Ops.FLOORDIV, arange(6), UOp.const(2, dtypes.int32))
    check(pick(buffer(6, 5), integers(9), halves))


def test_a_row_of_infinities_is_left_alone():
    table, rows = buffer(6, 2), integers(4)
    memory = {
        table: np.array([[np.inf, np.nan]] * 3 + [[1, -0.0]] * 3, np.float32),
        rows: np.array([5, 0, 9, -1], np.int32),
    }
    check(pick(table, rows, arange(6)), memory=memory)


@settings(max_examples=examples(3_000, 60))
@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 4), st.integers(-9, 9), st.booleans())
def test_picked_rows_are_computed(v, d, n, shift, backwards):
    numbers = add(places(v), UOp.const(shift, dtypes.int32))
    table, rows = integers(v, d), integers(n)
    kept = pick(table, rows, flip(numbers, 0) if backwards else numbers)
    check(add(kept, pick(table, add(rows, UOp.const(1, dtypes.int32)), numbers)))


def test_the_label_of_a_loss_is_loaded():
    n, c = 33, 40
    x, labels = buffer(n, c), integers(n)
    hot = op(
        Ops.CMPEQ,
        expand(reshape(places(c), 1, c), n, c),
        expand(reshape(labels, n, 1), n, c),
    )
    low = op(Ops.SUB, x, expand(log(reduce(exp(x), 1)), n, c))
    (kernel,) = kernels_of(reduce(UOp(Ops.WHERE, f32, (hot, low, const(0, x))), 1))
    assert sum(n.op is Ops.REDUCE for n in kernel.postorder()) == 1
    assert sizes_of(kernel) == [n, c]


def test_loops_of_several_nests_over_one_buffer_are_merged_together():
    x = buffer(4, 5, 6, 7)
    centred = op(Ops.SUB, x, expand(mean(x, 0, 2, 3), 4, 5, 6, 7))
    (kernel,) = kernels_of(mean(mul(centred, centred), 0, 2, 3))
    assert sizes_of(kernel) == [5, 4, 42, 4, 42]


def test_loops_of_one_nest_stay_where_another_needs_them_apart():
    x = buffer(4, 6, 7)
    columns = expand(reshape(buffer(7), 1, 1, 7), 4, 6, 7)
    both = add(reduce(x, 1, 2), reduce(mul(x, columns), 1, 2))
    (kernel,) = kernels_of(both)
    assert sizes_of(kernel) == [4, 6, 7]
