"""Blocks, threads, packed operands and remainders: what programs look like, and what they compute.

Each case runs on PYTHON, which spoils scratch memory and mixes the steps of threads, and on the
CPU. Numbers are small integers, so every order of adding up gives the same bits.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kernels import (
    CASES,
    TARGET,
    Case,
    blank,
    conv_padded,
    matmul,
    out,
    param,
    red,
    sink,
    some,
    within,
)
from tiny._core.symbolic import simplify
from tiny.codegen import LinearProgram, lower
from tiny.codegen.opt import Kernel, KernelOptError, Opt, OptOps
from tiny.device import Buffer, Device
from tiny.dtype import DType, dtypes
from tiny.helpers import Context
from tiny.runtime.python import interpret
from tiny.uop.ops import AxisType, Ops, UOp

VEC, UPCAST, UNROLL, SWAP = OptOps.VEC, OptOps.UPCAST, OptOps.UNROLL, OptOps.SWAP
THREAD, STAGE, BLOCK = OptOps.THREAD, OptOps.STAGE, OptOps.BLOCK
CPU = Device["CPU"]


def on_python(case: Case, opts: list[Opt]) -> list[np.ndarray]:
    program = lower(case.sink, TARGET, opts)
    memory = [np.array(a).reshape(-1).copy() for a in case.before]
    interpret(program, [memory[p.slot] for p in program.params], case.variables or {})
    return memory


def on_cpu(case: Case, opts: list[Opt]) -> list[np.ndarray]:
    program = lower(case.sink, CPU.target, opts)
    binary = CPU.compiler.compile(CPU.renderer.render(program), program.name)
    buffers = {}
    for p in program.params:
        data = np.array(case.before[p.slot])
        buffers[p.slot] = Buffer("CPU", data.size, p.dtype).allocate().copyin(data.tobytes())
    values = tuple((case.variables or {})[v.arg.name] for v in program.variables)
    kernel = CPU.load(program.name, binary, program)
    kernel(tuple(buffers[p.slot].memory for p in program.params), values)
    found = [np.array(a).reshape(-1) for a in case.before]
    for slot, buffer in buffers.items():
        found[slot] = buffer.numpy()
    return found


def check(case: Case, *opts: Opt) -> None:
    for run in (on_python, on_cpu):
        for found, expected in zip(run(case, list(opts)), case.after, strict=True):
            np.testing.assert_array_equal(found, np.asarray(expected).reshape(-1))


def loops(program: LinearProgram) -> list[tuple[int, AxisType]]:
    return [(u.src[0].arg, u.arg.kind) for u in program.uops if u.op is Ops.RANGE]


def loop_numbers(ast: UOp, slot: int) -> int:
    """The number of the operand that is loaded from a slot."""
    return [n.src[0].arg.slot for n in Kernel(ast, TARGET).loads].index(slot)


A, B = 0, 1  # of a matmul: operands by number


# ---------------------------------------------------------------- remainders


@pytest.mark.parametrize("m, n, k", list(itertools.product((1, 3, 13), (1, 5, 16, 17), (1, 7, 12))))
def test_tiles_may_be_of_any_size_against_any_axis(m, n, k):
    case = matmul(m, n, k)
    opts = []
    kernel = Kernel(case.sink, TARGET)
    for opt in (Opt(VEC, 1, 8), Opt(UPCAST, 0, 3), Opt(UNROLL, 0, 4)):
        if opt.op is UNROLL and kernel.first_reduce != 2:
            continue
        if kernel.allows(opt):
            kernel.apply_opt(opt)
            opts.append(opt)
    check(case, *opts)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("n", [1, 3, 10, 33, 49])
def test_lanes_along_a_sum_may_be_idle(lanes, n):
    i, r = out(5, 0), red(n, 1)
    a = some(5, n)
    for op, expected in ((Ops.ADD, a.sum(1)), (Ops.MAX, a.max(1))):
        value = param(1, 5, n).index(i, r).reduce(r, arg=op)
        case = Case(sink(param(0, 5).index(i).store(value)), [blank(5), a], [expected, a])
        opt = Opt(VEC, 1, lanes)
        if Kernel(case.sink, CPU.target).allows(opt) and Kernel(case.sink, TARGET).allows(opt):
            check(case, opt)


def test_an_output_axis_shifts_its_last_tile_back_and_has_one_body():
    program = lower(matmul(7, 13, 6).sink, TARGET, [Opt(UPCAST, 0, 3)])
    assert loops(program)[0] == (3, AxisType.LOOP)
    assert sum(u.op is Ops.MULACC for u in program.uops) == 3


def test_a_reduction_does_what_is_left_over_in_a_second_body():
    program = lower(matmul(7, 13, 6).sink, TARGET, [Opt(UNROLL, 0, 4)])
    assert (1, AxisType.REDUCE) in loops(program)
    assert sum(u.op is Ops.MULACC for u in program.uops) == 4 + 2


def test_an_update_in_place_is_made_once_an_element():
    case = CASES["in_place"]()
    check(case, Opt(VEC, 0, 4))
    check(case, Opt(UPCAST, 0, 5))


@pytest.mark.parametrize("size", [1, 3, 4, 9])
def test_sizes_known_only_at_run_time_are_tiled(size):
    n = UOp.variable("n", 1, 9)
    i, j, r = out(n, 0), out(4, 1), red(n, 2)
    x, a = param(1, 9, 4), some(9, 4)
    expected = blank(9, 4)
    expected[:size] = a[:size] + a[:size].sum(0)
    value = x.index(i, j) + x.index(r, j).reduce(r)
    ast = sink(param(0, 9, 4).index(i, j).store(value))
    case = Case(ast, [blank(9, 4), a], [expected, a], variables={"n": size})
    check(case, Opt(UPCAST, 0, 4), Opt(UNROLL, 0, 3))
    check(case, Opt(BLOCK, 2, 4), Opt(UNROLL, 0, 2), Opt(VEC, 1, 4))
    check(case, Opt(THREAD, 0), Opt(UPCAST, 0, 2))


# ---------------------------------------------------------------- packed operands


@pytest.mark.parametrize("at", [None, 0, 1, 2])
@pytest.mark.parametrize("operand", [A, B])
@pytest.mark.parametrize("m, n, k", [(7, 13, 6), (8, 16, 8), (5, 9, 11)])
def test_an_operand_may_be_packed_at_any_loop(at, operand, m, n, k):
    tile = [Opt(VEC, 1, 8), Opt(UPCAST, 0, 3), Opt(UNROLL, 0, 4)]
    check(matmul(m, n, k), *tile, Opt(STAGE, at, operand))
    check(matmul(m, n, k), *tile, Opt(SWAP, 0, 1), Opt(STAGE, at, operand), Opt(THREAD, 1))


def test_a_panel_is_packed_once_for_all_rows_that_use_it():
    opts = [Opt(VEC, 1, 4), Opt(UPCAST, 0, 2), Opt(SWAP, 0, 1), Opt(STAGE, 1, B)]
    program = lower(matmul(8, 16, 8).sink, TARGET, opts)
    # panels; the fill over k; rows; k
    assert [n for n, _ in loops(program)] == [4, 8, 4, 8]
    assert program.scratch_nbytes == 8 * 4 * 4
    assert program.shared_nbytes == 0


def test_what_is_packed_outside_of_all_loops_is_a_phase_of_its_own():
    program = lower(matmul(8, 16, 8).sink, TARGET, [Opt(VEC, 1, 4), Opt(STAGE, None, B)])
    assert [p.count for p in program.phases] == [8, 1]
    assert program.shared_nbytes == 8 * 16 * 4
    assert loops(program)[0] == (8, AxisType.THREAD)


def window_of_channels(channels: int) -> Case:
    f, x, c, k = out(5, 0), out(10, 1), red(channels, 2), red(3, 3)
    image, weight = some(channels, 12), some(5, channels, 3, seed=1)
    product = param(1, channels, 12).index(c, x + k) * param(2, 5, channels, 3).index(f, c, k)
    windows = np.lib.stride_tricks.sliding_window_view(image, 3, axis=1)
    expected = np.einsum("cxk,fck->fx", windows, weight)
    stored = param(0, 5, 10).index(f, x).store(product.reduce(c, k))
    return Case(sink(stored), [blank(5, 10), image, weight], [expected, image, weight])


@pytest.mark.parametrize("channels", [3, 8, 9, 11, 16])
@pytest.mark.parametrize("slot", [1, 2])
def test_lanes_along_a_sum_are_packed_side_by_side(channels, slot):
    case = window_of_channels(channels)
    load = loop_numbers(case.sink, slot)
    rows = [Opt(VEC, 2, 4), Opt(UPCAST, 1, 3), Opt(UPCAST, 0, 2)]
    for opts in (rows, [*rows, Opt(BLOCK, 2, 8)] if channels > 8 else [Opt(VEC, 2, 4)]):
        for at in (None, 0, 1):
            check(case, *opts, Opt(STAGE, at, load))
    program = lower(case.sink, TARGET, [Opt(VEC, 2, 4), Opt(STAGE, None, load)])
    groups = -(-channels // 4) if channels > 4 else channels / 4
    elements = 4 * groups * (12 if slot == 1 else 5 * 3)
    assert program.shared_nbytes == -(-4 * elements // 64) * 64


def test_padding_is_put_into_the_box():
    case = conv_padded()
    image = loop_numbers(case.sink, 1)
    opts = [Opt(VEC, 0, 4), Opt(STAGE, None, image)]
    main = lower(case.sink, TARGET, opts).phases[-1].uops
    assert not any(u.op is Ops.LOAD and len(u.src) > 1 for u in main)
    assert not any(u.op is Ops.WHERE for u in main)
    check(case, *opts)
    check(case, *opts, Opt(UPCAST, 2, 4), Opt(STAGE, 0, 1 - image), Opt(THREAD, 0))
    check(case, Opt(VEC, 2, 4), Opt(STAGE, 0, image), Opt(UNROLL, 2, 3))


def test_what_is_made_of_an_operand_alone_is_packed_with_it():
    m, n, k = 6, 8, 5
    i, j, r = out(m, 0), out(n, 1), red(k, 2)
    x = param(1, m, k).index(i, r)
    relu = (x < 0.0).where(UOp.const(0.0, x.dtype), x)
    value = (relu * param(2, k, n).index(r, j)).reduce(r)
    a, b = some(m, k), some(k, n, seed=1)
    ast = sink(param(0, m, n).index(i, j).store(value))
    case = Case(ast, [blank(m, n), a, b], [np.maximum(a, 0) @ b, a, b])
    opts = [Opt(VEC, 1, 4), Opt(STAGE, None, loop_numbers(ast, 1))]
    first, main = lower(ast, TARGET, opts).phases
    assert any(u.op is Ops.WHERE for u in first.uops)
    assert not any(u.op is Ops.WHERE for u in main.uops)
    check(case, *opts)


def test_the_rest_of_an_outer_loop_packs_again():
    # pitfall: the rest of the blocks must not read what the last whole block left
    case = matmul(5, 6, 11)
    check(case, Opt(BLOCK, 2, 4), Opt(STAGE, 3, B), Opt(VEC, 1, 4))
    check(case, Opt(BLOCK, 2, 4), Opt(STAGE, 3, A), Opt(STAGE, 3, B), Opt(UPCAST, 0, 2))


# ---------------------------------------------------------------- blocks


@pytest.mark.parametrize("lanes", [2, 3, 4])
@pytest.mark.parametrize("at", [0, 1, None])
def test_an_operand_that_sums_one_after_the_other_read_is_packed_for_each(at, lanes):
    check(CASES["variance"](), Opt(VEC, 1, lanes), Opt(STAGE, at, 0))


def test_blocks_make_a_loop_outside_and_tiles_fit_into_them():
    kernel = Kernel(matmul(10, 13, 6).sink, TARGET)
    kernel.apply_opt(Opt(BLOCK, 0, 4))
    kernel.apply_opt(Opt(UPCAST, 0, 2))
    assert kernel.full_shape == (3, 2, 13, 6, 2)
    assert len(kernel.axes) == 4
    assert kernel.nest_order == [3, 0, 1, 2]
    check(matmul(10, 13, 6), *kernel.applied_opts)
    check(matmul(10, 13, 6), *kernel.applied_opts, Opt(BLOCK, 1, 8), Opt(SWAP, 0, 4))


@pytest.mark.parametrize("k, block", [(12, 4), (11, 4), (9, 8)])
def test_sums_are_carried_in_memory_from_block_to_block(k, block):
    case = matmul(5, 9, k)
    opts = [Opt(BLOCK, 2, block), Opt(SWAP, 3, 0), Opt(VEC, 1, 4)]
    program = lower(case.sink, TARGET, opts)
    assert program.scratch_nbytes >= 5 * 9 * 4
    check(case, *opts)
    check(case, *opts, Opt(UPCAST, 0, 2), Opt(UNROLL, 0, 2))
    check(case, Opt(SWAP, 0, 1), Opt(THREAD, 1), *opts[:1], Opt(SWAP, 3, 0), Opt(STAGE, 3, B))


def test_every_order_of_loops_computes_the_same():
    case = matmul(4, 5, 6)
    for order in itertools.permutations(range(3)):
        kernel = Kernel(case.sink, TARGET)
        for place, axis in enumerate(order):
            if kernel.nest_order[place] != axis:
                kernel.apply_opt(Opt(SWAP, kernel.nest_order[place], axis))
        assert kernel.nest_order == list(order)
        check(case, *kernel.applied_opts)


def test_a_carried_maximum_begins_with_the_first_block():
    i, r = out(6, 0), red(10, 1)
    a = some(6, 10) - 20  # all below zero
    value = param(1, 6, 10).index(i, r).reduce(r, arg=Ops.MAX)
    case = Case(sink(param(0, 6).index(i).store(value)), [blank(6), a], [a.max(1), a])
    check(case, Opt(BLOCK, 1, 4), Opt(SWAP, 0, 2))
    check(case, Opt(SWAP, 0, 1))
    check(case, Opt(BLOCK, 1, 4), Opt(THREAD, 2))


def test_a_sum_of_what_does_not_vary_with_its_loop_counts_every_block():
    r = red(16, 0)
    y = param(1, 1).index(UOp.const(0, r.dtype))
    ast = sink(param(0, 1).index(UOp.const(0, r.dtype)).store((y + 1.0).reduce(r)))
    case = Case(ast, [blank(1), some(1)], [16 * (some(1) + 1), some(1)])
    check(case, Opt(BLOCK, 0, 12))
    check(case, Opt(BLOCK, 0, 12), Opt(UNROLL, 0, 4))
    check(case, Opt(BLOCK, 0, 12), Opt(THREAD, 1))


def test_what_is_hoisted_out_of_the_middle_of_a_sum_leaves_its_registers_where_they_are():
    i, a, b, c = out(9, 0), red(4, 1), red(33, 2), red(1, 3)
    x = some(4)
    value = (param(1, 4).index(a).reduce(c) * 3.0).reduce(b).reduce(a)
    case = Case(sink(param(0, 9).index(i).store(value)), [blank(9), x], [])
    case.after = [np.full(9, 99 * x.sum()), x]
    check(case, Opt(BLOCK, 2, 6))
    check(case, Opt(BLOCK, 2, 6), Opt(UNROLL, 1, 2))


# ---------------------------------------------------------------- threads


def test_the_loop_of_threads_is_outermost_and_counts_the_phase():
    program = lower(matmul(8, 16, 8).sink, TARGET, [Opt(VEC, 1, 4), Opt(THREAD, 1)])
    assert loops(program)[0] == (4, AxisType.THREAD)
    assert [p.count for p in program.phases] == [4]


@pytest.mark.parametrize("n, block", [(64, 16), (67, 16), (5, 4)])
def test_blocks_of_a_sum_are_shared_and_added_up_in_a_second_phase(n, block):
    r = red(n, 0)
    a = some(n)
    value = param(1, n).index(r).reduce(r)
    case = Case(sink(param(0, 1).index(UOp.const(0, r.dtype)).store(value)), [blank(1), a], [])
    case.after = [a.sum(keepdims=True), a]
    opts = [Opt(BLOCK, 0, block), Opt(THREAD, 1)]
    program = lower(case.sink, TARGET, opts)
    assert [p.count for p in program.phases] == [-(-n // block), 1]
    check(case, *opts)
    check(case, Opt(VEC, 0, 4), *opts)


def test_results_do_not_depend_on_the_number_of_threads():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((33, 65), (65, 40)))
    case = matmul(33, 40, 65)
    case.before = [blank(33, 40), a, b]
    opts = [Opt(VEC, 1, 16), Opt(UPCAST, 0, 4), Opt(BLOCK, 2, 16), Opt(THREAD, 3)]
    results = set()
    for threads in (1, 2, 3):
        with Context(NUM_CPU_THREADS=threads):
            results.add(on_cpu(case, opts)[0].tobytes())
    assert len(results) == 1


# ---------------------------------------------------------------- transposes


@pytest.mark.parametrize("m, n", [(16, 16), (17, 33), (5, 40), (64, 6)])
def test_lanes_far_apart_are_loaded_as_vectors_and_transposed(m, n):
    i, j = out(m, 0), out(n, 1)
    a = some(n, m)
    stored = param(0, m, n).index(i, j).store(param(1, n, m).index(j, i) + 1.0)
    case = Case(sink(stored), [blank(m, n), a], [a.T + 1, a])
    kernel = Kernel(case.sink, TARGET)
    for opt in (Opt(VEC, 1, 4), Opt(UPCAST, 0, 4)):
        kernel.apply_opt(opt)
    program = lower(case.sink, TARGET, kernel.applied_opts)
    assert any(u.op is Ops.SHUFFLE for u in program.uops)
    assert max(u.arg for u in program.uops if u.op is Ops.LOAD) == 4
    check(case, *kernel.applied_opts)
    if n >= 16:
        check(case, Opt(VEC, 1, 16), Opt(UPCAST, 0, min(m, 16)))


def test_stores_far_apart_are_transposed_too():
    case = CASES["scattered_store"]()
    program = lower(case.sink, TARGET, [Opt(VEC, 1, 4), Opt(UPCAST, 0, 6)])
    assert any(u.op is Ops.SHUFFLE for u in program.uops)
    check(case, Opt(VEC, 1, 4), Opt(UPCAST, 0, 6))


# ---------------------------------------------------------------- what is not legal


@pytest.mark.parametrize(
    "case, opts, rule",
    [
        ("matmul", [Opt(THREAD, 2)], "only blocks are shared"),
        ("matmul", [Opt(THREAD, 0), Opt(THREAD, 1)], "threads share another loop already"),
        ("two_nests", [Opt(THREAD, 1)], "not everything stored depends on it"),
        ("matmul", [Opt(BLOCK, 0, 7)], "a block of all 7 elements"),
        ("matmul", [Opt(BLOCK, 0, 1)], "at least 2"),
        ("matmul", [Opt(UPCAST, 0, 2), Opt(BLOCK, 0, 3)], "no multiple of its tile, 2"),
        ("matmul", [Opt(BLOCK, 0, 3), Opt(UPCAST, 0, 2)], "blocks of 3 are no multiple"),
        ("matmul", [Opt(BLOCK, 0, 3), Opt(BLOCK, 0, 2)], "in blocks already"),
        ("matmul", [Opt(BLOCK, 0, 3), Opt(VEC, 3, 2)], "blocks are not split again"),
        ("matmul", [Opt(BLOCK, 0, 3), Opt(SWAP, 0, 3)], "outside of what is in them"),
        ("matmul", [Opt(BLOCK, 0, 3), Opt(THREAD, 0)], "share those"),
        ("matmul", [Opt(THREAD, 0), Opt(SWAP, 0, 1)], "threads stays outermost"),
        ("matmul", [Opt(STAGE, 0, 2)], "no such operand"),
        ("matmul", [Opt(STAGE, 5, 0)], "no such axis"),
        ("matmul", [Opt(STAGE, 0, 1), Opt(STAGE, 1, 1)], "staged already"),
        ("in_place", [Opt(STAGE, 0, 0)], "the kernel writes the operand's buffer"),
        ("gathered", [Opt(STAGE, None, 1)], "no sum of multiples of axes"),
        ("in_place", [Opt(VEC, 7, 4)], "no such axis"),
    ],
)
def test_an_illegal_opt_names_its_rule(case, opts, rule):
    kernel = Kernel(CASES[case]().sink, TARGET)
    for opt in opts[:-1]:
        kernel.apply_opt(opt)
    with pytest.raises(KernelOptError, match=rule):
        kernel.apply_opt(opts[-1])
    assert kernel.applied_opts == tuple(opts[:-1])


def test_a_box_that_does_not_fit_is_not_legal():
    small = TARGET.__class__(**{**vars(TARGET), "l2_bytes": 128})
    kernel = Kernel(matmul(64, 64, 64).sink, small)
    with pytest.raises(KernelOptError, match="256 bytes are kept, 128 are allowed"):
        kernel.apply_opt(Opt(STAGE, 1, B))


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("product_first", [True, False])
def test_sums_outside_of_a_loop_share_what_sums_inside_of_it_have_loaded(lanes, product_first):
    # the sum of a column is made outside of the loop over i, when the product's rest is in hand
    columns, rows, n = 9, 5, 3
    j, i, r, s = out(columns, 0), out(rows, 1), red(n, 2), red(n, 3)
    a, b = param(1, n, rows), param(2, n, columns)
    product = (a.index(r, i) * b.index(r, j)).reduce(r)
    total = b.index(s, j).reduce(s)
    value = product + total * 2 if product_first else total * 2 + product
    x, y = some(n, rows), some(n, columns, seed=1)
    case = Case(
        sink(param(0, columns, rows).index(j, i).store(value)),
        [blank(columns, rows), x, y],
        [y.T @ x + 2 * y.sum(0)[:, None], x, y],
    )
    opts = [Opt(VEC, axis, lanes) for axis in (2, 3) if lanes > 1]
    check(case, *opts)
    check(case, *opts, Opt(THREAD, 0))


def test_a_loop_that_may_be_empty_carries_no_sums():
    # its first iteration is what sets the memory that they are in
    n = UOp.variable("n", 0, 4)
    i, r = out(6, 0), red(n, 1)
    value = param(1, 6, 4).index(i, r).reduce(r)
    kernel = Kernel(sink(param(0, 6).index(i).store(value)), TARGET)
    with pytest.raises(KernelOptError, match="may be empty"):
        kernel.apply_opt(Opt(SWAP, 0, 1))


def test_strict_sums_are_not_cut_into_blocks():
    with Context(STRICT_REDUCE=1):
        kernel = Kernel(matmul().sink, TARGET)
        for opt in (Opt(BLOCK, 2, 3), Opt(SWAP, 0, 2)):
            with pytest.raises(KernelOptError, match="STRICT_REDUCE"):
                kernel.apply_opt(opt)


# ---------------------------------------------------------------- lanes a few elements apart


def every_nth(n: int, step: int, dtype: DType, before: int = 0, two: bool = False) -> Case:
    """Each `step`-th element, from `before` in front of the first one on; 0 where there is none.

    Of `two` dimensions: rows too, with a condition of their own. Memory ends with the last element.
    """
    size = max(1, (n - 1) * step + 1 - 2 * before)
    i = out(n, 1 if two else 0)
    at = i * step - before
    gate = within(at, size) if before else None
    x = some(4, size, dtype=dtype) if two else some(size, dtype=dtype)
    wanted = np.zeros((*x.shape[:-1], n), x.dtype)
    for k in range(n):
        if 0 <= k * step - before < size:
            wanted[..., k] = x[..., k * step - before]
    if not two:
        load = param(1, size, dtype=dtype).index(at, gate=gate)
        target = param(0, n, dtype=dtype).index(i)
    else:
        j = out(5, 0)
        gate = within(j - 1, 4) if gate is None else gate & within(j - 1, 4)
        load = param(1, 4, size, dtype=dtype).index(j - 1, at, gate=gate)
        target = param(0, 5, n, dtype=dtype).index(j, i)
        wanted = np.concatenate([np.zeros_like(wanted[:1]), wanted])
    return Case(sink(target.store(load)), [blank(*wanted.shape, dtype=dtype), x], [wanted, x])


@pytest.mark.parametrize("lanes", [2, 4, 6, 8, 16])
@pytest.mark.parametrize("step", [2, 3, 4, 5])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_lanes_that_are_a_few_elements_apart_read_nothing_else(lanes, step, before):
    for n, two in itertools.product((1, 3, 4, 16, 37), (False, True)):
        case = every_nth(n, step, dtypes.float32, before, two)
        try:
            check(case, Opt(VEC, int(two), lanes))
        except KernelOptError:
            assert lanes > n


@pytest.mark.parametrize("dtype", [dtypes.float64, dtypes.int32, dtypes.int64, dtypes.float16])
def test_lanes_that_are_a_few_elements_apart_are_of_any_dtype(dtype):
    for step, before in itertools.product((2, 3, 4), (0, 1)):
        check(every_nth(21, step, dtype, before), Opt(VEC, 0, 4))
        check(every_nth(21, step, dtype, before, two=True), Opt(VEC, 1, 8), Opt(UPCAST, 0, 2))


def test_lanes_two_elements_apart_are_taken_out_of_two_vectors():
    program = lower(every_nth(64, 2, dtypes.float32).sink, TARGET, [Opt(VEC, 0, 4)])
    loads = [u for u in program.uops if u.op is Ops.LOAD]
    assert [u.shape for u in loads] == [(4,), (4,)]
    assert sum(u.op is Ops.SHUFFLE for u in program.uops) == 1


# ---------------------------------------------------------------- past the caches


@pytest.mark.parametrize("name", ["transposed", "padded", "flipped", "gated_store", "two_nests"])
def test_stores_past_the_caches_store_the_same(name):
    case = CASES[name]()
    axis = len(Kernel(case.sink, CPU.target).axes) - 1
    for opts in ([], [Opt(VEC, axis, 8)], [Opt(VEC, 0, 4)]):
        check(case, *opts, Opt(OptOps.STREAM, 0))
        program = lower(case.sink, CPU.target, [*opts, Opt(OptOps.STREAM, 0)])
        stores = [u for u in program.uops if u.op is Ops.STORE and u.src[0].op is Ops.INDEX]
        for store in stores:
            assert (store.arg == "nontemporal") == (store.src[0].src[0].arg.slot == 0)


@pytest.mark.parametrize("rows, columns", [(2, 64), (3, 65), (5, 128), (37, 200)])
def test_whole_vectors_and_what_is_left_over_go_past_the_caches(rows, columns):
    i, j = out(rows, 0), out(columns, 1)
    a = some(rows, columns)
    ast = sink(param(0, rows, columns).index(i, j).store(param(1, rows, columns).index(i, j) * 2.0))
    case = Case(ast, [blank(rows, columns), a], [a * 2, a])
    check(case, Opt(VEC, 1, 64), Opt(OptOps.STREAM, 0))
    check(case, Opt(VEC, 1, 16), Opt(THREAD, 1), Opt(OptOps.STREAM, 0))


LONG_ODD_ROWS = [
    [Opt(VEC, 1, 16)],
    [Opt(VEC, 1, 64), Opt(THREAD, 0)],
    [Opt(VEC, 1, 8), Opt(THREAD, 1)],
    [Opt(VEC, 1, 48)],
    [Opt(UPCAST, 0, 2), Opt(VEC, 1, 32)],  # only one of two rows begins where it was asked for
    [Opt(SWAP, 0, 1), Opt(VEC, 1, 32)],  # all rows at once: none of them is known
    [Opt(VEC, 1, 16), Opt(OptOps.BLOCK, 1, 64)],
]


@pytest.mark.parametrize("opts", LONG_ODD_ROWS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.int8])
@pytest.mark.parametrize("rows, columns", [(5, 130), (7, 67), (3, 129), (9, 1037)])
def test_rows_that_begin_anywhere_in_a_line_go_past_the_caches(rows, columns, dtype, opts):
    i, j = out(rows, 0), out(columns, 1)
    a = some(rows, columns, dtype=dtype)
    x = param(1, rows, columns, dtype=dtype).index(i, j)
    ast = sink(param(0, rows, columns, dtype=dtype).index(i, j).store(x + x))
    case = Case(ast, [np.zeros_like(a), a], [a + a, a])
    check(case, *opts, Opt(OptOps.STREAM, 0))


def test_iterations_over_a_row_start_where_lines_of_what_is_stored_do():
    i, j = out(6, 0), out(131, 1)
    ast = sink(param(0, 6, 131).index(i, j).store(param(1, 6, 131).index(i, j) * 2.0))
    program = lower(ast, CPU.target, [Opt(VEC, 1, 16), Opt(OptOps.STREAM, 0)])
    rows, steps = [u for u in program.uops if u.op is Ops.RANGE]
    store = next(u for u in program.uops if u.op is Ops.STORE)  # one for each vector
    starts = {
        row: [
            store.src[0].src[1].substitute({rows: rows.const_like(row), steps: steps.const_like(k)})
            for k in range(steps.src[0].arg)
        ]
        for row in range(6)
    }
    for row, found in starts.items():
        at = [simplify(x).arg for x in found]
        first, *middle, last = sorted(set(at))
        assert first == 131 * row and last == 131 * (row + 1) - 16
        assert all(x % 16 == 0 for x in middle)
        assert all(b - a <= 16 for a, b in zip([first, *middle], [*middle, last], strict=True))


@pytest.mark.parametrize(
    "name, opts, rule",
    [
        ("in_place", [Opt(OptOps.STREAM, 0)], "it is read here as well"),
        ("transposed", [Opt(OptOps.STREAM, 1)], "no such store"),
        ("transposed", [Opt(OptOps.STREAM, None)], "no such axis"),
        ("transposed", [Opt(OptOps.STREAM, 0)] * 2, "past the caches already"),
        ("written_rows_float32", [Opt(OptOps.STREAM, 0)], "in the order of its loops"),
    ],
)
def test_which_stores_stay_in_the_caches(name, opts, rule):
    kernel = Kernel(CASES[name]().sink, CPU.target)
    with pytest.raises(KernelOptError, match=rule):
        for opt in opts:
            kernel.apply_opt(opt)
