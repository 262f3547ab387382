"""Conditions of kernels: where `place_conditions` puts them, and that values stay the same."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import (
    CASES,
    TARGET,
    Case,
    blank,
    const,
    legal_opts,
    out,
    param,
    red,
    sink,
    some,
    within,
)
from tiny.codegen import lower
from tiny.codegen.lower.conditions import place_conditions
from tiny.codegen.lower.phases import split_phases
from tiny.codegen.opt import Opt, OptOps
from tiny.dtype import dtypes
from tiny.runtime.python import interpret
from tiny.uop.ops import KernelInfo, Ops, UOp
from tiny.uop.spec import spec_kernel, verify


def of(root: UOp, op: Ops) -> list[UOp]:
    return [n for n in root.postorder() if n.op is op]


def loads(root: UOp, slot: int) -> list[UOp]:
    return [n for n in of(root, Ops.INDEX) if n.src[0].arg.slot == slot]


def check(case: Case, count: int = 8) -> None:
    """The kernel computes the right values under several lists of Opts."""
    for opts in [*legal_opts(case.sink, TARGET, count, seed=5), None]:
        memory = [np.array(a).reshape(-1).copy() for a in case.before]
        interpret(lower(case.sink, TARGET, opts), memory, case.variables or {})
        for found, expected in zip(memory, case.after, strict=True):
            assert np.array_equal(found, np.asarray(expected).reshape(-1), equal_nan=True), opts


def convolution_gradient(window: int = 4) -> Case:
    """As gradients build it: a sum over each window axis, padding as a condition on each.

    The window axes have a step more than the kernel's three, in which nothing is in range.
    """
    n, k, channels, filters = 7, 3, 2, 3
    m = n - k + 1
    c, y, x = out(channels, 0), out(n, 1), out(n, 2)
    ky, kx, f = red(window, 3), red(window, 4), red(filters, 5)
    in_y, in_x = within(y - ky, m) & (ky < k), within(x - kx, m) & (kx < k)
    gate = in_y & in_x
    grad = param(1, filters, m, m).index(f, y - ky, x - kx, gate=gate)
    weight = param(2, filters, channels, k, k).index(f, c, ky, kx, gate=gate)
    inner = in_x.where((grad * weight).reduce(f), 0.0).reduce(kx)
    total = in_y.where(inner, 0.0).reduce(ky)
    g, w = some(filters, m, m), some(filters, channels, k, k, seed=1)
    expected = np.zeros((channels, n, n), np.float32)
    for dy in range(k):
        for dx in range(k):
            part = np.einsum("fyx,fc->cyx", g, w[:, :, dy, dx])
            expected[:, dy : dy + m, dx : dx + m] += part
    stored = param(0, channels, n, n).index(c, y, x).store(total)
    return Case(sink(stored), [blank(channels, n, n), g, w], [expected, g, w])


def test_sums_of_sums_under_conditions_become_one_sum():
    placed = place_conditions(convolution_gradient().sink)
    (total,) = of(placed, Ops.REDUCE)
    assert [r.arg.axis for r in total.src[1:]] == [3, 4, 5]
    assert total.src[0].op is Ops.WHERE  # the mask is on the product
    assert total.src[0].src[1].op is Ops.MUL


def test_strict_sums_are_not_merged():
    placed = place_conditions(convolution_gradient().sink, strict=True)
    assert len(of(placed, Ops.REDUCE)) == 3


def test_steps_in_which_nothing_is_in_range_are_cut_off():
    placed = place_conditions(convolution_gradient(window=5).sink)
    assert sorted(r.src[0].arg for r in of(placed, Ops.RANGE)) == [2, 3, 3, 3, 7, 7]


def test_a_gate_stays_on_the_address_that_needs_it_only():
    placed = place_conditions(convolution_gradient().sink)
    (grad,), (weight,) = loads(placed, 1), loads(placed, 2)
    assert len(grad.src) == 5
    assert len(weight.src) == 5  # its four dimensions: in bounds without a gate


def test_the_gradient_of_a_convolution_is_right_under_all_opts():
    for window in (3, 4, 5):
        check(convolution_gradient(window))


@pytest.mark.parametrize("name", CASES)
def test_placing_keeps_a_kernel_a_kernel_and_settles(name):
    placed = place_conditions(CASES[name]().sink)
    verify(placed, spec_kernel, "kernel")
    assert place_conditions(placed) is placed


def test_a_bound_is_kept_where_the_moved_condition_gave_it():
    """The address leaves the buffer where a condition on another axis is false."""
    i, j = out(6, 0), out(8, 1)
    a = some(4)
    gate = (i + j < 9) & (i < 4)
    moved = Case(
        sink(param(0, 6, 8).index(i, j).store(param(1, 4).index(i, gate=gate))),
        [blank(6, 8), a],
        [np.where(np.add.outer(np.arange(6), np.arange(8)) < 9, np.pad(a, (0, 2))[:, None], 0), a],
    )
    placed = place_conditions(moved.sink)
    (load,) = loads(placed, 1)
    assert of(placed, Ops.STORE)[0].src[1].op is Ops.WHERE
    assert load.src[2].vmin is False or load.src[2].op is Ops.CMPLT
    check(moved)
    # with the bound only implied by the other axis
    gate = (i < j) & (j < 4)
    implied = Case(
        sink(param(0, 6, 8).index(i, j).store(param(1, 4).index(i, gate=gate))),
        [blank(6, 8), a],
        [
            np.where(
                (np.arange(6)[:, None] < np.arange(8)) & (np.arange(8) < 4),
                np.pad(a, (0, 2))[:, None],
                0,
            ),
            a,
        ],
    )
    check(implied)


def test_infinities_that_a_condition_hides_stay_hidden():
    i, r = out(4, 0), red(6, 1)
    gate = r < i + 2
    x = param(1, 6).index(r, gate=gate)
    y = param(2, 6).index(r, gate=gate)
    a, b = some(6), some(6, seed=1)
    a[5], b[5], b[4] = np.inf, np.nan, np.inf
    with np.errstate(invalid="ignore"):
        expected = np.array([(a[: n + 2] * b[: n + 2]).sum() for n in range(4)], np.float32)
    stored = param(0, 4).index(i).store((x * y).reduce(r))
    check(Case(sink(stored), [blank(4), a, b], [expected, a, b]))


def test_factors_under_different_conditions_are_left_alone():
    i, r = out(4, 0), red(6, 1)
    x = (r < i + 1).where(param(1, 6).index(r), 0.0)
    y = (i < r).where(param(2, 6).index(r), 0.0)
    a, b = some(6), some(6, seed=1)
    a[0] = np.inf  # times a hidden value: NaN
    with np.errstate(invalid="ignore"):
        expected = np.array(
            [
                sum(
                    np.float32(a[k] if k < n + 1 else 0) * np.float32(b[k] if n < k else 0)
                    for k in range(6)
                )
                for n in range(4)
            ],
            np.float32,
        )
    ast = sink(param(0, 4).index(i).store((x * y).reduce(r)))
    assert of(place_conditions(ast), Ops.MUL)[-1].src[0].op is Ops.WHERE
    check(Case(ast, [blank(4), a, b], [expected, a, b]))


@pytest.mark.parametrize("op", [Ops.MAX, Ops.MUL])
def test_other_reductions_are_not_merged(op):
    i, r, s = out(2, 0), red(3, 1), red(4, 2)
    x = param(1, 2, 3, 4).index(i, r, s)
    inner = (r < i + 2).where(x.reduce(s), 0.0)
    a = some(2, 3, 4)
    hidden = np.where(np.arange(3) < np.arange(2)[:, None] + 2, a.sum(2), 0)
    expected = hidden.max(1) if op is Ops.MAX else hidden.prod(1)
    ast = sink(param(0, 2).index(i).store(inner.reduce(r, arg=op)))
    assert len(of(place_conditions(ast), Ops.REDUCE)) == 2
    check(Case(ast, [blank(2), a], [expected.astype(np.float32), a]))


def test_a_sum_that_others_use_is_not_merged():
    i, r, s = out(2, 0), red(3, 1), red(4, 2)
    inner = param(1, 2, 3, 4).index(i, r, s).reduce(s)
    ast = sink(param(0, 2).index(i).store(inner.reduce(r) + (inner * inner).reduce(r)))
    a = some(2, 3, 4)
    expected = a.sum((1, 2)) + (a.sum(2) ** 2).sum(1)
    assert len(of(place_conditions(ast), Ops.REDUCE)) == 3
    check(Case(ast, [blank(2), a], [expected, a]))


def test_a_store_keeps_its_gate():
    i, j = out(4, 0), out(8, 1)
    ast = sink(
        param(0, 4).index(i, gate=(i < 3) & (j < 1)).store(param(1, 4, 8).index(i, j)),
    )
    (store,) = of(place_conditions(ast), Ops.STORE)
    assert len(store.src[0].src) == 3


def test_a_masked_step_of_a_sum_is_one_fused_operation_and_a_choice():
    """Rows along x each have a mask; what loops alone determine is none."""
    program = lower(convolution_gradient().sink, TARGET, (Opt(OptOps.UPCAST, 2, 7),))
    fused = [u for u in program.uops if u.op is Ops.MULACC]
    choices = [u for u in program.uops if u.op is Ops.WHERE and u.src[1] in fused]
    assert len(fused) == 7
    assert len(choices) > 0
    assert all(u.src[2] is u.src[1].src[2] for u in choices)


def test_loops_of_a_sum_do_not_run_where_those_outside_say_that_nothing_is_added():
    program = lower(convolution_gradient().sink, TARGET, ())
    counts = [u.src[0] for u in program.uops if u.op is Ops.RANGE]
    assert [c.op is Ops.WHERE for c in counts] == [False] * 3 + [False, True, True]
    assert not any(u.op is Ops.WHERE and u.dtype is dtypes.float32 for u in program.uops)


def strided_gradient(step: int, window: int, before: int, m: int, dilation: int = 1) -> Case:
    """Along one dimension: element i sees element k of a window if whole steps lead to it."""
    channels, filters = 2, 3
    n = (m - 1) * step + dilation * (window - 1) + 1 - 2 * before
    n += -n % step
    c, i, k, f = out(channels, 0), out(n, 1), red(window, 2), red(filters, 3)
    place = i - k * dilation + before
    steps = place // step
    gate = (place % step < 1) & within(steps, m)
    grad = param(1, filters, m).index(f, steps, gate=gate)
    weight = param(2, filters, channels, window).index(f, c, k)
    stored = param(0, channels, n).index(c, i)
    g, w = some(filters, m), some(filters, channels, window, seed=1)
    expected = np.zeros((channels, n), np.float32)
    for at in range(m):
        for step_in in range(window):
            to = at * step + step_in * dilation - before
            if 0 <= to < n:
                expected[:, to] += g[:, at] @ w[:, :, step_in]
    value = gate.where(grad * weight, 0.0).reduce(k, f)
    return Case(sink(stored.store(value)), [blank(channels, n), g, w], [expected, g, w])


STRIDED = [
    (2, 3, 1, 5),
    (2, 7, 3, 6),
    (2, 2, 0, 4),
    (2, 1, 0, 4),
    (2, 3, 0, 4, 3),
    (2, 3, 2, 5, 2),
    (3, 3, 1, 4),
    (3, 5, 0, 4),
    (3, 4, 2, 3, 2),
    (4, 3, 1, 3),
]


@pytest.mark.parametrize("of_what", STRIDED)
def test_sums_over_strided_windows_keep_their_values_in_phases(of_what):
    case = strided_gradient(*of_what)
    check(case)
    kernel = split_phases(place_conditions(case.sink))
    verify(kernel, spec_kernel, "kernel")
    step, window, *_, dilation = (*of_what, 1)[:5]
    sizes = {n.arg.axis: n.src[0].arg for n in of(kernel, Ops.RANGE)}
    if dilation % step and window > step:
        assert sizes[2] == -(-window // step)  # the loop is as long as the longest phase
    assert len(sizes) >= 4 or window <= step  # the phase is a loop of its own
    if step == 2 and dilation % 2:  # indices are sums of multiples of loops
        assert not of(kernel, Ops.FLOORDIV) and not of(kernel, Ops.FLOORMOD)


def test_an_axis_that_is_no_multiple_of_the_step_is_left_alone():
    case = strided_gradient(2, 3, 1, 5)
    n = case.after[0].shape[1] - 1
    (i,) = [r for r in of(case.sink, Ops.RANGE) if r.arg.axis == 1]
    ast = case.sink.substitute({i: out(n, 1)})
    assert split_phases(place_conditions(ast)) is place_conditions(ast)


@pytest.mark.parametrize("step, size, first", [(2, 13, 0), (2, 14, 1), (3, 7, 0), (3, 5, 4)])
def test_sums_that_only_some_elements_see_are_made_in_phases_of_any_size(step, size, first):
    """Gradients of 1x1 windows: other elements are 0, whether or not the last phase is whole."""
    channels, filters, count = 3, 5, (size + first) // step + 1
    i, c, f = out(size, 1), out(channels, 0), red(filters, 2)
    place = i + first
    total = param(1, filters, count).index(f, place // step) * param(2, filters, channels).index(
        f, c
    )
    value = (place % step < 1).where(total.reduce(f), 0.0)
    ast = sink(param(0, channels, size).index(c, i).store(value))
    g, w = some(filters, count), some(filters, channels, seed=1)
    seen = (np.arange(size) + first) % step < 1
    expected = np.where(seen, w.T @ g[:, (np.arange(size) + first) // step], 0).astype(np.float32)
    check(Case(ast, [blank(channels, size), g, w], [expected, g, w]))
    kernel = split_phases(place_conditions(ast))
    verify(kernel, spec_kernel, "kernel")
    sizes = {n.arg.axis: n.src[0].arg for n in of(kernel, Ops.RANGE)}
    assert sizes[1] == -(-size // step)
    assert first or not of(kernel, Ops.FLOORDIV) + of(kernel, Ops.FLOORMOD)


def test_what_is_constant_false_under_tiles_is_not_computed():
    """The first step of a padded window, unrolled, is outside for the first element."""
    i, r = out(1, 0), red(3, 1)
    x = param(1, 8).index(i + r - 1, gate=const(0) < i + r)
    ast = sink(param(0, 1).index(i).store((x * param(2, 3).index(r)).reduce(r)))

    program = lower(ast, TARGET, (Opt(OptOps.UNROLL, 0, 3),))
    assert len([u for u in program.uops if u.op is Ops.LOAD and u.src[0].src[0].arg.slot == 1]) == 2


def test_integers_are_merged_too():
    i, r, s = out(3, 0), red(4, 1), red(5, 2)
    x = param(1, 3, 4, 5, dtype=dtypes.int32).index(i, r, s)
    ast = sink(
        param(0, 3, dtype=dtypes.int32).index(i).store((r < i + 1).where(x.reduce(s), 0).reduce(r))
    )
    a = some(3, 4, 5, dtype=dtypes.int32)
    expected = np.array([a[n, : n + 1].sum() for n in range(3)], np.int32)
    assert len(of(place_conditions(ast), Ops.REDUCE)) == 1
    check(Case(ast, [blank(3, dtype=dtypes.int32), a], [expected, a]))


def test_a_negative_zero_is_not_what_a_load_gives_that_is_off():
    i = out(4, 0)
    value = (i < 2).where(param(1, 4).index(i), UOp.const(-0.0, dtypes.float32))
    ast = sink(param(0, 4).index(i).store(value))
    assert len(of(place_conditions(ast), Ops.WHERE)) == 1
    memory = [blank(4).reshape(-1), some(4).reshape(-1)]
    interpret(lower(ast, TARGET), memory, {})
    np.testing.assert_array_equal(memory[0], [*some(4)[:2], 0, 0])
    assert np.signbit(memory[0][2:]).all()


def test_a_remainder_in_a_kernel_without_loops_has_no_phases():
    at = UOp.const(0, dtypes.index)
    value = (
        UOp.placeholder((1,), dtypes.int32, 1)
        .index(at)
        .alu(Ops.FLOORMOD, UOp.const(5, dtypes.int32))
    )
    ast = UOp.sink(UOp.placeholder((1,), dtypes.int32, 0).index(at).store(value), arg=KernelInfo())
    assert split_phases(ast) is ast
