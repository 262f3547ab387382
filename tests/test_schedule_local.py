"""Values kept for a row in memory of the thread (STAGE), and what is one kernel because of it."""

from __future__ import annotations

import dataclasses
import math
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings

from conftest import examples
from evaluate import evaluate_all
from kernel_interpreter import run_schedule
from tensor_graphs import (
    TARGET,
    add,
    arange,
    buffer,
    check,
    const,
    contents,
    exp,
    expand,
    flip,
    graphs,
    log,
    matmul,
    mul,
    op,
    pad,
    reduce,
    reshape,
    rows,
    schedule,
    shrink,
    softmax,
)
from tiny.dtype import dtypes
from tiny.schedule import create_schedule, placement
from tiny.schedule.schedule import forget_schedules
from tiny.uop.ops import Ops, StageArg, UOp
from tiny.uop.structure import check_kernel


@contextmanager
def limits(**values):
    """Other limits of placement for a while."""
    before = {name: getattr(placement, name) for name in values}
    forget_schedules()
    try:
        for name, value in values.items():
            setattr(placement, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(placement, name, value)
        forget_schedules()


@pytest.fixture(autouse=True, scope="module")
def stages():
    """Values are kept, in tests at least."""
    with limits(LOCAL_STAGES=True):
        yield


# Values are kept wherever they can be, however little it saves
EVERYWHERE = {"OPERATIONS_A_BYTE": 0.01, "LOCAL_WORK": -100}


def kernels_of(*roots: UOp, tolerance: float = 1e-5) -> list[UOp]:
    items = check(*roots, tolerance=tolerance).schedule.items
    for item in items:
        check_kernel(item.kernel)
    return [item.kernel for item in items]


def stages_of(kernel: UOp) -> list[UOp]:
    return [n for n in kernel.postorder() if n.op is Ops.STAGE]


def count(kernel: UOp, kind: Ops) -> int:
    return sum(n.op is kind for n in kernel.postorder())


# ---------------------------------------------------------------- random graphs


def check_all(outputs: list[UOp], **other: object) -> None:
    with limits(**EVERYWHERE, **other):
        for item in check(*outputs).schedule.items:
            check_kernel(item.kernel)


@settings(max_examples=examples(10_000, 150))
@given(rows())
def test_random_rows_are_computed(outputs):
    check_all(outputs)


@settings(max_examples=examples(10_000, 150))
@given(graphs())
def test_random_graphs_are_computed(outputs):
    check_all(outputs)


@settings(max_examples=examples(5_000, 60))
@given(rows())
def test_rows_around_contractions_are_computed(outputs):
    check_all(outputs, LEAST_STORED=0)
    check_all(outputs, LEAST_STORED=0, HUGE_NBYTES=0, HUGE_COLUMNS=0)


# ---------------------------------------------------------------- what is one kernel


def mean(x: UOp, *axes: int) -> UOp:
    return mul(reduce(x, *axes), const(1 / math.prod(x.shape[a] for a in axes), x))


def log_softmax(x: UOp, axis: int = -1) -> UOp:
    axis %= len(x.shape)
    low = op(Ops.SUB, x, expand(reduce(x, axis, kind=Ops.MAX), *x.shape))
    return op(Ops.SUB, low, expand(log(reduce(exp(low), axis)), *x.shape))


def variance(x: UOp, *axes: int) -> UOp:
    centred = op(Ops.SUB, x, expand(mean(x, *axes), *x.shape))
    return mean(mul(centred, centred), *axes)


def inverse_root(x: UOp) -> UOp:
    return op(Ops.RECIPROCAL, op(Ops.SQRT, add(x, const(1e-5, x))))


def layer_norm(x: UOp, *axes: int) -> UOp:
    centred = op(Ops.SUB, x, expand(mean(x, *axes), *x.shape))
    return mul(centred, expand(inverse_root(variance(x, *axes)), *x.shape))


def rms_norm(x: UOp) -> UOp:
    axis = len(x.shape) - 1
    return mul(x, expand(inverse_root(mean(mul(x, x), axis)), *x.shape))


def softmax_of_planes(x: UOp) -> UOp:
    e = exp(op(Ops.SUB, x, expand(reduce(x, 1, 2, kind=Ops.MAX), *x.shape)))
    return op(Ops.FDIV, e, expand(reduce(e, 1, 2), *x.shape))


def cross_entropy(x: UOp, labels: UOp) -> UOp:
    """A loss for each row, and their mean."""
    n, c = x.shape
    numbers = expand(reshape(arange(c), 1, c), n, c)
    hot = op(Ops.CMPEQ, numbers, expand(reshape(labels, n, 1), n, c))
    picked = UOp(Ops.WHERE, x.dtype, (hot, log_softmax(x), const(0, x)))
    return mul(reduce(reduce(picked, 1), 0), const(-1 / n, x))


def labels(n: int) -> UOp:
    return buffer(n, dtype=dtypes.int32)


ONE_KERNEL = {
    # name: (graph, STAGEs, times that a transcendental is written)
    "softmax": (lambda: softmax(buffer(64, 100)), 1, 1),
    "softmax, odd sizes": (lambda: softmax(buffer(7, 13)), 1, 1),
    "softmax, two rows": (lambda: softmax(buffer(2, 13)), 1, 1),
    "softmax of batches": (lambda: softmax(buffer(3, 5, 11)), 1, 1),
    "softmax of planes": (lambda: softmax_of_planes(buffer(5, 7, 9)), 1, 1),
    "softmax of columns": (lambda: softmax(buffer(61, 97), 0), 0, 2),
    "softmax in the middle": (lambda: softmax(buffer(4, 31, 17), 1), 0, 2),
    "log-softmax": (lambda: log_softmax(buffer(33, 97)), 0, 2),
    "log-softmax of columns": (lambda: log_softmax(buffer(33, 97), 0), 0, 2),
    "layer norm": (lambda: layer_norm(buffer(33, 97), 1), 0, 0),
    "layer norm of columns": (lambda: layer_norm(buffer(33, 97), 0), 0, 0),
    "layer norm of planes": (lambda: layer_norm(buffer(3, 5, 7, 11), 2, 3), 0, 0),
    "layer norm of volumes": (lambda: layer_norm(buffer(4, 5, 7, 3), 1, 2, 3), 0, 0),
    "layer norm of a sum": (lambda: layer_norm(add(buffer(33, 97), buffer(33, 97)), 1), 1, 0),
    "RMS norm": (lambda: rms_norm(buffer(33, 97)), 0, 0),
    "RMS norm of exp": (lambda: rms_norm(exp(buffer(33, 97))), 1, 1),
    "variance": (lambda: variance(buffer(33, 97), 1), 0, 0),
    "variance of columns": (lambda: variance(buffer(33, 97), 0), 0, 0),
    "variance of channels": (lambda: variance(buffer(4, 5, 7, 3), 0, 2, 3), 0, 0),
    "cross-entropy": (lambda: cross_entropy(buffer(33, 40), labels(33)), 0, 2),
    "cross-entropy, few classes": (lambda: cross_entropy(buffer(5, 3), labels(5)), 0, 2),
    "attention of one query": (
        lambda: attention(buffer(8, 1, 40), buffer(8, 50, 40), buffer(8, 50, 40)),
        3,
        1,
    ),
}


def attention(q: UOp, k: UOp, v: UOp) -> UOp:
    """(b, n, d), (b, t, d), (b, t, d)."""
    (b, n, d), t = q.shape, k.shape[1]
    left = expand(reshape(q, b, n, 1, d), b, n, t, d)
    right = expand(reshape(k, b, 1, t, d), b, n, t, d)
    scores = mul(reshape(reduce(mul(left, right), 3), b, n, t), const(d**-0.5, q))
    p = expand(reshape(softmax(scores), b, n, t, 1), b, n, t, d)
    return reshape(reduce(mul(p, expand(reshape(v, b, 1, t, d), b, n, t, d)), 2), b, n, d)


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_rows_are_one_kernel(name):
    make, stages, transcendentals = ONE_KERNEL[name]
    (kernel,) = kernels_of(make(), tolerance=1e-4)
    assert len(stages_of(kernel)) == stages
    assert count(kernel, Ops.MATH) == transcendentals


def test_a_kept_row_is_filled_by_loops_of_its_own():
    (kernel,) = kernels_of(softmax(buffer(8, 30)))
    (stage,) = stages_of(kernel)
    loops = sorted((n for n in kernel.postorder() if n.op is Ops.RANGE), key=lambda r: r.arg.axis)
    assert [loop.src[0].arg for loop in loops] == [8, 30, 30, 30, 30]
    assert stage.src[1:] == (loops[2],)
    assert stage.arg == StageArg(False, (30,))


def test_a_cheap_value_is_not_kept():
    x = buffer(33, 97)
    (kernel,) = kernels_of(op(Ops.SUB, x, expand(mean(x, 1), 33, 97)))
    assert not stages_of(kernel)


def test_what_is_read_outside_of_a_kept_row_is_gated():
    e = exp(buffer(6, 10))
    shifted = shrink(pad(e, (0, 0), (3, 0)), (0, 6), (0, 10))
    (kernel,) = kernels_of(add(mul(e, expand(reduce(e, 1), 6, 10)), shifted))
    (stage,) = stages_of(kernel)
    reads = [n for n in kernel.postorder() if n.op is Ops.INDEX and n.src[0] is stage]
    assert sorted(len(n.src) for n in reads) == [2, 2, 3]


def test_a_row_longer_than_the_cache_is_not_kept():
    stored = schedule(softmax(buffer(8, 100_000))).schedule
    assert not any(stages_of(item.kernel) for item in stored.items)


@pytest.mark.parametrize("l2, stages", [(239, 0), (240, 1)])
def test_a_kept_row_fits_in_half_of_the_cache(l2, stages):
    target = dataclasses.replace(TARGET, l2_bytes=l2)
    bound = create_schedule(UOp.sink(softmax(buffer(8, 30))), lambda device: target, "CPU")
    (item,) = bound.schedule.items
    assert len(stages_of(item.kernel)) == stages, "exp is computed twice where there is no room"


@pytest.mark.parametrize("n, kernels", [(1, 1), (12, 2)])
def test_no_small_row_that_is_wanted_once_is_kept_around_a_matmul(n, kernels):
    shape = (8, n, 40)
    items = check(attention(buffer(*shape), buffer(8, 50, 40), buffer(8, 50, 40))).schedule.items
    assert len(items) == kernels
    if n > 1:
        assert not stages_of(items[1].kernel)
        assert "19.2 kB stored stay in the cache" in items[0].reason


def test_a_small_row_that_is_wanted_twice_is_kept_around_a_matmul():
    weights = exp(matmul(buffer(12, 40), buffer(40, 50)))
    total = expand(reduce(weights, 1), 12, 56)
    (item,) = check(op(Ops.FDIV, matmul(weights, buffer(50, 56)), total)).schedule.items
    assert len(stages_of(item.kernel)) == 1


def test_rows_are_kept_around_a_matmul_where_they_leave_the_cache():
    with limits(LEAST_STORED=0):
        (kernel,) = kernels_of(attention(*[buffer(4, 20, 24) for _ in range(3)]))
    assert len(stages_of(kernel)) == 3


def test_what_is_wanted_by_two_kernels_is_stored_with_the_numbers():
    x, w, v = buffer(64, 96), buffer(96, 80), buffer(96, 48)
    e = exp(mul(x, expand(reduce(x, 1), 64, 96)))
    items = check(matmul(e, w), matmul(flip(e, 1), v), tolerance=1e-3).schedule.items
    reasons = [item.reason for item in items if "output" not in item.reason]
    assert any("against" in r and "B stored" in r for r in reasons), reasons


def test_a_kept_row_is_named_in_the_reason():
    (item,) = check(softmax(buffer(8, 30))).schedule.items
    assert item.reason == (
        "output; LOCAL: a row of 120 B kept: 12 operations an element once, not 2 times"
    )


def test_reductions_of_columns_and_rows_are_not_kept_in_one_kernel():
    x = exp(buffer(20, 30))
    rows_of, columns = expand(reduce(x, 1), 20, 30), expand(reduce(x, 0), 20, 30)
    kernels_of(mul(x, add(rows_of, columns)), tolerance=1e-4)


def test_a_symbolic_row_is_kept_at_its_upper_bound():
    v = UOp.variable("v", 1, 40)
    x = UOp(Ops.SHRINK, dtypes.float32, (buffer(8, 40), v.bind(23)), ((0, 8), (0, None)))
    (item,) = schedule(softmax_of_symbolic(x)).schedule.items
    (stage,) = stages_of(item.kernel)
    assert stage.arg.shape == (40,)
    check_kernel(item.kernel)
    memory = contents([x])
    bound = schedule(softmax_of_symbolic(x))
    (got,), _ = run_schedule(bound, memory)
    (want,) = evaluate_all([softmax_of_symbolic(x)], memory)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def softmax_of_symbolic(x: UOp) -> UOp:
    def spread(r: UOp) -> UOp:
        return UOp(Ops.EXPAND, r.dtype, (r, x.shape[1]), (8, None))

    e = exp(op(Ops.SUB, x, spread(reduce(x, 1, kind=Ops.MAX))))
    return op(Ops.FDIV, e, spread(reduce(e, 1)))


def test_loops_of_a_kept_plane_are_one():
    (kernel,) = kernels_of(softmax_of_planes(buffer(5, 7, 9)))
    (stage,) = stages_of(kernel)
    assert stage.arg.shape == (63,)
    loops = sorted((n for n in kernel.postorder() if n.op is Ops.RANGE), key=lambda r: r.arg.axis)
    assert [loop.src[0].arg for loop in loops] == [5, 63, 63, 63, 63]


def test_loops_of_a_kept_plane_that_is_read_across_stay_two():
    e = exp(buffer(5, 6, 6))
    across = UOp(Ops.PERMUTE, e.dtype, (e,), (0, 2, 1))
    y = mul(add(e, across), expand(reduce(e, 1, 2), 5, 6, 6))
    for kernel in kernels_of(y):
        for stage in stages_of(kernel):
            assert stage.arg.shape == (6, 6)


def test_a_schedule_is_made_anew_for_another_target():
    x = buffer(8, 30)
    few = create_schedule(UOp.sink(softmax(x)), lambda device: TARGET, "CPU")
    other = dataclasses.replace(TARGET, l2_bytes=2 * TARGET.l2_bytes)
    more = create_schedule(UOp.sink(softmax(x)), lambda device: other, "CPU")
    assert more.schedule is not few.schedule
    again = create_schedule(UOp.sink(softmax(x)), lambda device: TARGET, "CPU")
    assert again.schedule is few.schedule
