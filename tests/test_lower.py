"""Lowering: kernels under many lists of Opts compute what NumPy computes, in few operations."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from kernels import CASES, TARGET, Case, const, legal_opts, matmul, out, param, red, sink, some
from tiny import Tensor
from tiny.codegen import LinearProgram, Opt, OptOps, lower
from tiny.dtype import dtypes
from tiny.helpers import Context
from tiny.runtime.python import interpret
from tiny.uop.ops import KernelInfo, Ops, UOp
from tiny.uop.spec import SpecError
from tiny.uop.structure import check_program

VEC, UPCAST, UNROLL, SWAP = OptOps.VEC, OptOps.UPCAST, OptOps.UNROLL, OptOps.SWAP

# as TARGET, but without what processors lack
PLAIN = TARGET.__class__(
    **{
        **vars(TARGET),
        "native_ops": TARGET.native_ops
        - {Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.RECIPROCAL, Ops.THREEFRY},
    }
)


def run(case: Case, program: LinearProgram) -> list[np.ndarray]:
    memory = [np.array(a).reshape(-1).copy() for a in case.before]
    interpret(program, memory, case.variables or {})
    return memory


def check(case: Case, program: LinearProgram) -> None:
    for found, expected in zip(run(case, program), case.after, strict=True):
        expected = np.asarray(expected).reshape(-1)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(
            found.astype(np.float64),
            expected.astype(np.float64),
            rtol=case.rtol,
            atol=0,
            err_msg=f"{program.name} {program.applied_opts}",
        )


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_computes_what_numpy_does_under_all_opts(name):
    case = CASES[name]()
    for opts in legal_opts(case.sink, TARGET, 12, seed=len(name)):
        check(case, lower(case.sink, TARGET, opts))


@pytest.mark.parametrize("name", CASES)
def test_chosen_opts_and_decomposed_operations_compute_the_same(name):
    case = CASES[name]()
    check(case, lower(case.sink, PLAIN))


def test_elementwise_results_have_the_same_bits_under_all_opts():
    i, j = out(5, 0), out(12, 1)
    x, y = param(1, 5, 12).index(i, j), param(2, 12).index(j)
    value = (x * y + x).alu(Ops.SIN) / (y * y + 0.3) - (x * 0.7).alu(Ops.EXP2)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((5, 12), (12,)))
    ast = sink(param(0, 5, 12).index(i, j).store(value))
    case = Case(ast, [np.zeros((5, 12), np.float32), a, b], [])
    results = {
        run(case, lower(ast, PLAIN, opts))[0].tobytes() for opts in legal_opts(ast, PLAIN, 20, 0)
    }
    assert len(results) == 1


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.int32, dtypes.uint64, dtypes.bool])
def test_reductions_that_are_exact_have_the_same_bits_under_all_opts(dtype):
    i, r = out(4, 0), red(12, 1)
    x = param(1, 4, 12, dtype=dtype).index(i, r)
    ast = sink(param(0, 4, dtype=dtype).index(i).store(x.reduce(r)))
    bits = np.random.default_rng(0).integers(0, 256, 48 * dtype.itemsize, np.uint8)
    a = bits.view(some(0, dtype=dtype).dtype) if dtype is not dtypes.bool else bits > 250
    case = Case(ast, [some(4, dtype=dtype), a], [])
    results = {
        run(case, lower(ast, TARGET, opts))[0].tobytes() for opts in legal_opts(ast, TARGET, 20, 0)
    }
    assert len(results) == 1


def test_strict_sums_add_up_in_order():
    from tiny.helpers import Context

    i, r = out(6, 0), red(12, 1)
    ast = sink(param(0, 6).index(i).store(param(1, 6, 12).index(i, r).reduce(r)))
    a = np.random.default_rng(0).standard_normal((6, 12)).astype(np.float32)
    case = Case(ast, [np.zeros(6, np.float32), a], [])
    with Context(STRICT_REDUCE=1):
        results = {
            run(case, lower(ast, TARGET, opts))[0].tobytes()
            for opts in [*legal_opts(ast, TARGET, 12, 0), None]
        }
    in_order = np.zeros(6, np.float32)
    for k in range(12):
        in_order += a[:, k]
    assert results == {in_order.tobytes()}


# ---------------------------------------------------------------- the form of programs


def bodies(program: LinearProgram) -> dict[int, Counter[Ops]]:
    """How many of each operation stand at each depth of loops."""
    depth, found = 0, dict[int, Counter[Ops]]()
    for u in program.uops:
        depth -= u.op is Ops.END
        found.setdefault(depth, Counter())[u.op] += 1
        depth += u.op is Ops.RANGE
    return found


@pytest.mark.parametrize("name", CASES)
def test_programs_are_well_formed(name):
    case = CASES[name]()
    for opts in [*legal_opts(case.sink, TARGET, 12, seed=3), None]:
        check_program(lower(case.sink, TARGET, opts))


def test_a_tile_loads_each_operand_once():
    opts = (Opt(VEC, 1, 16), Opt(UPCAST, 0, 3), Opt(UNROLL, 0, 2))
    inner = bodies(lower(matmul(12, 32, 8).sink, TARGET, opts))[3]
    assert inner[Ops.LOAD] == 2 * (3 + 4)  # rows, and vectors of four
    assert inner[Ops.MULACC] == 2 * 3 * 4
    assert inner[Ops.EXPAND] == 2 * 3
    assert inner[Ops.STORE] == 3 * 4  # registers
    # addresses: one base for each operand, then constants
    assert inner[Ops.MUL] + inner[Ops.ADD] <= inner[Ops.LOAD] + 4


def test_expansion_meets_a_broadcast_with_all_its_vectors():
    """Rows outside of vectors, unrolled steps outside of rows."""
    opts = (Opt(VEC, 1, 8), Opt(UPCAST, 0, 2), Opt(UNROLL, 0, 2))
    uops = lower(matmul(4, 16, 4).sink, TARGET, opts).uops
    rows = [u.src[0].src[0] for u in uops if u.op is Ops.MULACC]
    assert rows == [rows[k // 2 * 2] for k in range(8)]
    assert len(set(rows)) == 4


def test_what_does_not_depend_on_a_loop_is_outside_of_it():
    i, j = out(4, 0), out(5, 1)
    row = (param(1, 4).index(i) * 3.0).alu(Ops.SQRT)
    ast = sink(param(0, 4, 5).index(i, j).store(row + param(2, 5).index(j)))
    depths = bodies(lower(ast, TARGET, ()))
    assert depths[1][Ops.SQRT] == 1
    assert depths[2][Ops.LOAD] == 1


def test_independent_reductions_share_a_loop_and_dependent_ones_do_not():
    ranges = Counter(u.op for u in lower(CASES["variance"]().sink, TARGET, ()).uops)
    assert ranges[Ops.RANGE] == 3  # rows; both sums; the maximum
    assert ranges[Ops.DEFINE_REG] == 3


def test_rows_of_a_softmax_share_their_loop():
    program = lower(CASES["softmax"]().sink, TARGET, ())
    assert Counter(u.op for u in program.uops)[Ops.RANGE] == 4
    assert [len(c) > 0 for c in bodies(program).values()] == [True, True, True]


def test_swap_changes_the_order_of_loops():
    ast = matmul(4, 6, 5).sink
    sizes = [
        [u.src[0].arg for u in lower(ast, TARGET, opts).uops if u.op is Ops.RANGE]
        for opts in ((), (Opt(SWAP, 0, 1),))
    ]
    assert sizes == [[4, 6, 5], [6, 4, 5]]


def test_a_long_axis_sums_into_several_registers():
    r = red(64, 0)
    ast = sink(param(0).index().store(param(1, 64).index(r).reduce(r)))
    count = Counter(u.op for u in lower(ast, TARGET, (Opt(VEC, 0, 16),)).uops)
    assert count[Ops.DEFINE_REG] == 4


def test_padding_that_tiles_decide_costs_nothing():
    """A whole padded row: lanes in the padding are off, a gate that is always on is gone."""
    j, r = out(4, 0), red(3, 1)
    gate = (r + j < 6) & (const(-1) < r + j)
    ast = sink(param(0, 4).index(j).store(param(1, 6).index(r + j, gate=gate).reduce(r)))
    loads = [u for u in lower(ast, TARGET, (Opt(VEC, 0, 4),)).uops if u.op is Ops.LOAD]
    assert all(len(u.src) == 1 for u in loads)


def test_only_the_product_of_a_float_sum_is_fused():
    for dtype, fused in ((dtypes.float32, 1), (dtypes.float64, 1), (dtypes.int32, 0)):
        i, r = out(3, 0), red(4, 1)
        x, y = (param(k, 3, 4, dtype=dtype).index(i, r) for k in (1, 2))
        ast = sink(param(0, 3, dtype=dtype).index(i).store((x * y).reduce(r) + x.const_like(1)))
        count = Counter(u.op for u in lower(ast, TARGET, ()).uops)
        assert count[Ops.MULACC] == fused
    i = out(3, 0)
    x, y = (param(k, 3).index(i) for k in (1, 2))
    ast = sink(param(0, 3).index(i).store(x * y + x))
    assert Ops.MULACC not in {u.op for u in lower(ast, TARGET, ()).uops}


# ---------------------------------------------------------------- bookkeeping and limits


def test_params_variables_and_estimates_are_listed():
    program = lower(matmul(7, 13, 6).sink, TARGET, ())
    assert [(p.slot, p.shape, p.read, p.written) for p in program.params] == [
        (0, (7, 13), False, True),
        (1, (7, 6), True, False),
        (2, (6, 13), True, False),
    ]
    assert program.flops == 2 * 7 * 13 * 6
    assert program.nbytes == 4 * (7 * 13 + 7 * 6 + 6 * 13)
    assert program.variables == ()
    in_place = lower(CASES["in_place"]().sink, TARGET, ())
    assert (in_place.params[0].read, in_place.params[0].written) == (True, True)
    assert [v.arg.name for v in lower(CASES["symbolic_size"]().sink, TARGET).variables] == ["n"]


def test_reading_what_an_earlier_nest_wrote_is_refused():
    i, j = out(4, 0), out(6, 1)
    x = param(0, 4)
    ast = sink(
        x.index(i).store(param(2, 4).index(i)),
        param(1, 4, 6).index(i, j).store(x.index(i) + param(3, 6).index(j)),
    )
    with pytest.raises(ValueError, match=r"reads buffers \[0\].*two kernels"):
        lower(ast, TARGET, ())


def test_a_kernel_of_ten_thousand_nodes_in_a_row_is_lowered():
    i = out(8, 0)
    value = param(1, 8).index(i)
    for k in range(10_000):
        value = value * 0.5 + float(k % 3)
    ast = sink(param(0, 8).index(i).store(value))
    program = lower(ast, TARGET, (Opt(VEC, 0, 4),))
    assert Counter(u.op for u in program.uops)[Ops.MUL] == 10_000 + 1
    memory = [np.zeros(8, np.float32), some(8)]
    interpret(program, memory, {})
    expected = some(8)
    for k in range(10_000):
        expected = expected * np.float32(0.5) + np.float32(k % 3)
    assert memory[0].tobytes() == expected.tobytes()


def test_work_grows_with_the_number_of_operations_only():
    """Copies are made only along tiles that a node depends on."""
    i, j, k = out(8, 0), out(8, 1), out(8, 2)
    by_row = param(1, 8).index(i)
    for n in range(50):
        by_row = (by_row * 1.5).alu(Ops.MAX, by_row.const_like(n))
    ast = sink(param(0, 8, 8, 8).index(i, j, k).store(by_row + param(2, 8).index(k)))
    count = Counter(
        u.op for u in lower(ast, TARGET, tuple(Opt(UPCAST, n, 8) for n in range(3))).uops
    )
    assert count[Ops.MAX] == 50 * 8
    assert count[Ops.STORE] == 512


def test_long_sums_that_are_no_contractions_are_carried_on_in_float64():
    # equal terms are the worst case: every addition rounds the same way
    i, r, q = out(2, 0), red(70, 1), red(50, 2)
    x = param(1, 2, 70, 50).index(i, r, q)
    values = np.full((2, 70, 50), 0.1, np.float32)
    for value, expected in ((x, values), (x * x, values * values)):
        ast = sink(param(0, 2).index(i).store(value.reduce(r, q)))
        program = lower(ast, TARGET, opts=())
        registers = [u.dtype for u in program.uops if u.op is Ops.DEFINE_REG]
        assert registers == [dtypes.float64, dtypes.float32]
        exact = expected.sum((1, 2), dtype=np.float64).astype(np.float32)
        case = Case(
            ast, [np.zeros(2, np.float32), values], [exact, values], rtol=1e-6
        )  # one sum would be off by 1e-5
        check(case, program)


@pytest.mark.parametrize("size", [64, 65, 127, 128, 1000, 1031])
@pytest.mark.parametrize("opts", [(), (Opt(VEC, 1, 4),), (Opt(VEC, 1, 8),), (Opt(UNROLL, 0, 3),)])
def test_a_single_long_loop_adds_up_strips_in_float32(size, opts):
    i, r = out(2, 0), red(size, 1)
    x = param(1, 2, size).index(i, r)
    values = np.random.default_rng(size).random((2, size), np.float32)
    values[1] = 0.1  # equal terms are the worst case
    for value, expected in ((x, values), (x * x, values * values)):
        ast = sink(param(0, 2).index(i).store(value.reduce(r)))
        exact = expected.sum(1, dtype=np.float64).astype(np.float32)
        case = Case(ast, [np.zeros(2, np.float32), values], [exact, values], rtol=1e-6)
        program = lower(ast, TARGET, opts)
        check(case, program)
        if size == 1000 and opts != (Opt(VEC, 1, 8),):
            registers = [u.dtype for u in program.uops if u.op is Ops.DEFINE_REG]
            assert {*registers} == {dtypes.float64, dtypes.float32}


def test_a_long_contraction_is_a_sum_of_sums_in_its_own_dtype():
    i, r, q = out(3, 0), red(20, 1), red(30, 2)
    product = param(1, 3, 20, 30).index(i, r, q) * param(2, 20, 30).index(r, q)
    ast = sink(param(0, 3).index(i).store(product.reduce(r, q)))
    uops = lower(ast, TARGET, opts=()).uops
    assert [u.dtype for u in uops if u.op is Ops.DEFINE_REG] == [dtypes.float32] * 2
    with Context(STRICT_REDUCE=1):
        strict = lower(ast, TARGET, opts=()).uops
    outer, inner = [u for u in strict if u.op is Ops.DEFINE_REG]
    assert inner.src[0] is outer  # one sum, carried on


# ---------------------------------------------------------------- what is no kernel


def _of_no_kernel():
    memory, other = (UOp.placeholder((3,), dtypes.float32, slot) for slot in range(2))
    i, info = UOp.range(3, 0), KernelInfo("k")
    store = memory[i].store(other[i])
    return {
        "no SINK": store,
        "nothing": UOp.sink(arg=info),
        "a value": other[i].sink(arg=info),
        "an END": store.end(i).sink(arg=info),
        "an END, no name": store.end(i).sink(),
        "an END beside a STORE": UOp.sink(store.end(i), other[i].store(1.0), arg=info),
        "effects without a name": UOp.group(store.end(i)).sink(),
        "an AFTER written to": memory.after(i)[i].store(1.0).sink(arg=info),
        "an AFTER read": memory[i].store(other.after(i)[i]).sink(arg=info),
        "a LOAD": memory[i].store(other[i].load()).sink(arg=info),
        "memory as a whole": memory.store(other).sink(arg=info),
        "memory of a tensor": memory[i].store(Tensor.empty(3).uop[i]).sink(arg=info),
    }


@pytest.mark.parametrize("kind", _of_no_kernel())
def test_what_is_no_kernel_is_refused(kind):
    with pytest.raises(SpecError, match="kernel"):
        lower(_of_no_kernel()[kind], TARGET)
