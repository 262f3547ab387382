"""Opts: what each does to the axes of a kernel, which are legal, and that lists replay."""

from __future__ import annotations

import pytest

from kernels import CASES, TARGET, legal_opts, matmul, out, param, red, sink
from tiny.codegen import lower
from tiny.codegen.opt import Kernel, KernelOptError, Opt, OptOps
from tiny.codegen.opt.heuristic import choose_opts
from tiny.dtype import dtypes
from tiny.helpers import Context
from tiny.uop.ops import AxisType, Ops, UOp

VEC, UPCAST, UNROLL, SWAP = OptOps.VEC, OptOps.UPCAST, OptOps.UNROLL, OptOps.SWAP
THREAD, BLOCK = OptOps.THREAD, OptOps.BLOCK


def kernel(ast: UOp, *opts: Opt) -> Kernel:
    k = Kernel(ast, TARGET)
    for opt in opts:
        k.apply_opt(opt)
    return k


def test_axes_are_outputs_first_and_keep_their_numbers():
    k = kernel(matmul(8, 12, 6).sink)
    assert [a.size for a in k.axes] == [8, 12, 6]
    assert [a.is_reduce for a in k.axes] == [False, False, True]
    assert k.name == "r_8_12_6"
    k.apply_opt(Opt(VEC, 1, 4))
    k.apply_opt(Opt(UPCAST, 0, 2))
    k.apply_opt(Opt(UNROLL, 0, 3))
    assert k.name == "r_4_3_2_2_3_4"
    assert k.axis_types == (
        AxisType.LOOP,
        AxisType.LOOP,
        AxisType.REDUCE,
        AxisType.UPCAST,
        AxisType.UNROLL,
        AxisType.VEC,
    )
    with Context(NO_COLOR=1):
        assert k.colored_shape() == "4 3 2 2 3 4"


def test_a_kernel_without_reductions_is_named_elementwise():
    assert kernel(CASES["transposed"]().sink).name == "e_6_8"


def test_tiles_that_do_not_divide_are_counted_whole():
    assert kernel(matmul(7, 13, 6).sink, Opt(VEC, 1, 4), Opt(UPCAST, 0, 3)).full_shape == (
        3,
        4,
        6,
        3,
        4,
    )


@pytest.mark.parametrize(
    "case, opts, rule",
    [
        ("matmul", [Opt(VEC, 5, 4)], "no such axis"),
        ("matmul", [Opt(UPCAST, -1, 4)], "no such axis"),
        ("matmul", [Opt(UNROLL, 1, 2)], "no such axis"),
        ("matmul", [Opt(UPCAST, 0, 1)], "at least 2"),
        ("matmul", [Opt(UPCAST, 0, 8)], "more elements than the 7"),
        ("matmul", [Opt(UPCAST, 0, 2), Opt(VEC, 0, 2)], "split already, by 2"),
        ("matmul", [Opt(UPCAST, 2, 2)], "a reduction is UNROLLed"),
        ("matmul", [Opt(VEC, 1, 4), Opt(VEC, 2, 2)], "lanes along two axes"),
        ("reduce_of_invariant", [Opt(VEC, 0, 2), Opt(VEC, 1, 2)], "lanes along two axes"),
        ("matmul", [Opt(SWAP, 0, 0)], "with another one"),
        ("matmul", [Opt(SWAP, 0, 9)], "no axis to exchange"),
    ],
)
def test_an_illegal_opt_names_the_rule_and_changes_nothing(case, opts, rule):
    k = kernel(CASES[case]().sink, *opts[:-1])
    before = (list(k.axes), list(k.nest_order), k.applied_opts)
    with pytest.raises(KernelOptError, match=rule) as e:
        k.apply_opt(opts[-1])
    assert opts[-1].op.name in str(e.value)
    assert (k.axes, k.nest_order, k.applied_opts) == before


def test_too_many_copies_of_a_body_are_refused():
    ast = matmul(64, 64, 64).sink
    with pytest.raises(KernelOptError, match="4096 copies of the body"):
        kernel(ast, Opt(UPCAST, 0, 64), Opt(UPCAST, 1, 64))


def test_strict_reduce_keeps_lanes_off_reductions():
    with Context(STRICT_REDUCE=1), pytest.raises(KernelOptError, match="STRICT_REDUCE"):
        kernel(matmul().sink, Opt(VEC, 2, 2))


def test_two_nests_may_have_lanes_of_their_own():
    k = kernel(CASES["softmax"]().sink, Opt(VEC, 1, 4), Opt(VEC, 2, 4), Opt(VEC, 3, 6))
    assert [a.lanes for a in k.axes] == [1, 4, 4, 6]


def test_loops_that_a_hoisted_reduction_needs_are_outside():
    # x[i, j] minus the sum of its column: the sum must not be made again for each row
    x, i, j, k = param(1, 5, 6), out(5, 0), out(6, 1), red(5, 2)
    column = x.index(k, j).reduce(k)
    ast = sink(param(0, 5, 6).index(i, j).store(x.index(i, j) - column))
    assert kernel(ast).nest_order == [1, 0, 2]
    runs = [op for op in lower(ast, TARGET, opts=()).uops if op.op in (Ops.RANGE, Ops.END)]
    sizes = [op.src[0].arg if op.op is Ops.RANGE else -1 for op in runs]
    assert sizes == [6, 5, -1, 5, -1, -1]  # columns; then the sum, and beside it the rows


def test_a_copy_goes_its_own_way():
    first = kernel(matmul().sink, Opt(UPCAST, 0, 2))
    second = first.copy()
    second.apply_opt(Opt(SWAP, 0, 1))
    assert first.applied_opts == (Opt(UPCAST, 0, 2),)
    assert first.nest_order == [0, 1, 2]
    assert second.nest_order == [1, 0, 2]


def test_vectors_are_as_wide_as_the_widest_dtype_computed():
    i = out(16, 0)
    narrow, wide = param(1, 16, dtype=dtypes.int8), param(2, 16, dtype=dtypes.float64)
    mixed = sink(
        param(0, 16, dtype=dtypes.float64)
        .index(i)
        .store(narrow.index(i).cast(dtypes.float64) + wide.index(i))
    )
    assert kernel(mixed).vector_lanes(0) == 2
    bytes_only = sink(param(0, 16, dtype=dtypes.int8).index(i).store(narrow.index(i)))
    assert kernel(bytes_only).vector_lanes(0) == 16
    # narrow floats are computed as float32
    half = param(1, 16, dtype=dtypes.float16)
    halves = sink(param(0, 16, dtype=dtypes.float16).index(i).store(half.index(i) + half.index(i)))
    assert kernel(halves).vector_lanes(0) == 4


def test_an_empty_axis_is_refused():
    i = out(0, 3)
    with pytest.raises(ValueError, match="axis 3 is empty"):
        Kernel(sink(param(0, 1).index(i).store(param(1, 1).index(i))), TARGET)


@pytest.mark.parametrize("name", CASES)
def test_a_list_of_opts_replays_to_the_same_program(name):
    ast = CASES[name]().sink
    for opts in legal_opts(ast, TARGET, 3, seed=1):
        program = lower(ast, TARGET, opts)
        assert program.applied_opts == opts
        assert kernel(ast, *program.applied_opts).tiled() == kernel(ast, *opts).tiled()


def test_equal_kernels_are_lowered_once():
    opts = (Opt(VEC, 1, 4),)
    assert lower(matmul().sink, TARGET, opts) is lower(matmul().sink, TARGET, list(opts))
    assert lower(matmul().sink, TARGET, opts) is not lower(matmul().sink, TARGET, ())


def test_opts_that_a_kernel_asks_for_are_applied():
    ast = matmul().sink
    asking = ast.replace(arg=ast.arg._replace(opts_to_apply=(Opt(UPCAST, 0, 2),)))
    assert lower(asking, TARGET).applied_opts == (Opt(UPCAST, 0, 2),)
    assert lower(asking, TARGET, ()).applied_opts == ()


def test_a_kernel_applies_what_heuristics_choose_and_gives_its_program():
    ast = matmul(64, 64, 64).sink
    k = Kernel(ast, TARGET)
    chosen_opts = k.hand_coded_optimizations()
    assert chosen_opts == k.applied_opts == choose_opts(kernel(ast))
    program = k.to_program()
    assert program == lower(ast, TARGET)
    assert program.applied_opts == chosen_opts
    with pytest.raises(ValueError, match="without Opts"):
        k.hand_coded_optimizations()


def test_a_target_without_matrix_units_uses_none():
    k = kernel(matmul(64, 64, 64).sink)
    assert not k.apply_tensor_cores()
    assert k.applied_opts == ()


# ---------------------------------------------------------------- writes in order


@pytest.mark.parametrize(
    "case, free",
    [
        ("written_rows", [1]),
        ("written_backwards", [1]),
        ("written_halves", [1]),
        ("added_down", [1]),
        ("added_along", [0]),
        ("added_lines", [0, 1]),
    ],
)
def test_writes_to_computed_places_keep_their_order_where_places_may_be_the_same(case, free):
    ast = CASES[f"{case}_float32"]().sink
    for axis in (0, 1):
        for opts in ([Opt(VEC, axis, 4)], [Opt(THREAD, axis)], [Opt(BLOCK, axis, 4)]):
            if axis in free:
                assert kernel(ast, *opts).applied_opts
            else:
                with pytest.raises(KernelOptError, match="in the order of its loops"):
                    kernel(ast, *opts)
    with pytest.raises(KernelOptError, match="in the order of its loops"):
        kernel(ast, Opt(SWAP, 0, 1))
    with pytest.raises(KernelOptError, match="in the order of its loops"):
        kernel(ast, Opt(THREAD, None))


def test_an_order_of_loops_that_no_sum_can_be_kept_for_is_refused_at_once():
    """That of an inner sum is outside of what it depends on, and may be empty."""
    size = UOp.variable("n", 0, 6)
    i, r, n = out(4, 0), red(5, 1), red(size, 2)
    below = param(1, 5, 6).index(r, n).reduce(n)
    stored = param(0, 4).index(i).store((below * param(2, 4, 5).index(i, r)).reduce(r))
    kernel = Kernel(sink(stored), TARGET)
    with pytest.raises(KernelOptError, match="a loop of unknown size carries no sums"):
        kernel.apply_opt(Opt(OptOps.SWAP, 1, 2))
