"""Epilogues in loops of their own: what they compute, and when kernels have them."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import TARGET, Case, blank, out, param, red, sink, some
from tiny import Variable
from tiny.codegen import LinearProgram
from tiny.codegen.opt import Kernel, Opt, OptOps, epilogues
from tiny.device import Buffer, Device
from tiny.dtype import DType, _to_np_dtype, dtypes
from tiny.runtime.python import interpret
from tiny.uop.ops import Ops, UOp
from tiny.uop.target import Target

VEC, UPCAST, UNROLL, SWAP = OptOps.VEC, OptOps.UPCAST, OptOps.UNROLL, OptOps.SWAP
THREAD, STAGE, BLOCK = OptOps.THREAD, OptOps.STAGE, OptOps.BLOCK
CPU = Device["CPU"]


@pytest.fixture
def always(monkeypatch):
    """Epilogues have loops of their own wherever that is possible."""
    monkeypatch.setattr(epilogues, "_pays", lambda *_: True)


def lowered(ast: UOp, target: Target, opts: list[Opt]) -> LinearProgram:
    """A program that no cache knows."""
    kernel = Kernel(ast, target)
    for opt in opts:
        kernel.apply_opt(opt)
    return kernel.to_program()


def check(case: Case, *opts: Opt) -> LinearProgram:
    """PYTHON and the CPU compute what is expected; the program of the CPU."""
    program = lowered(case.sink, TARGET, list(opts))
    memory = [np.array(a).reshape(-1).copy() for a in case.before]
    interpret(program, [memory[p.slot] for p in program.params], case.variables or {})
    for found, expected in zip(memory, case.after, strict=True):
        np.testing.assert_array_equal(found, np.asarray(expected).reshape(-1))
    program = lowered(case.sink, CPU.target, list(opts))
    binary = CPU.compiler.compile(CPU.renderer.render(program), program.name)
    buffers = [
        Buffer("CPU", case.before[p.slot].size, p.dtype)
        .allocate()
        .copyin(np.array(case.before[p.slot]).tobytes())
        for p in program.params
    ]
    values = tuple((case.variables or {})[v.arg.name] for v in program.variables)
    CPU.load(program.name, binary, program)(tuple(b.memory for b in buffers), values)
    for p, buffer in zip(program.params, buffers, strict=True):
        expected = np.asarray(case.after[p.slot]).reshape(-1)
        np.testing.assert_array_equal(buffer.numpy(), expected)
    return program


def linear(
    m: int, n: int, k: int, stored: DType = dtypes.float32, transposed: bool = False
) -> Case:
    """max(x @ w.T + bias, 0) * residual + its square, all of small integers."""
    i, j, r = out(m, 0), out(n, 1), red(k, 2)
    total = (param(1, m, k).index(i, r) * param(2, n, k).index(j, r)).reduce(r)
    value = (total + param(3, n).index(j)).alu(Ops.MAX, UOp.const(0.0, dtypes.float32))
    value = value * param(4, m, n).index(i, j) + value * value
    x, w, b, s = some(m, k), some(n, k, seed=1), some(n, seed=2), some(m, n, seed=3)
    y = np.maximum(x @ w.T + b, 0)
    y = (y * s + y * y).astype(_to_np_dtype(stored))
    into = (
        param(0, n, m, dtype=stored).index(j, i)
        if transposed
        else param(0, m, n, dtype=stored).index(i, j)
    )
    shape = (n, m) if transposed else (m, n)
    return Case(
        sink(into.store(value.cast(stored))),
        [blank(*shape, dtype=stored), x, w, b, s],
        [y.T if transposed else y, x, w, b, s],
    )


# Axes: m 0, n 1, k 2; loads: x 0, w 1, bias 2, residual 3.
LISTS = {
    "lanes along what is stored": [Opt(VEC, 1, 8), Opt(UPCAST, 0, 3)],
    "lanes across it": [Opt(VEC, 0, 8), Opt(UPCAST, 1, 5), Opt(UNROLL, 0, 2)],
    "several vectors across": [Opt(VEC, 0, 16), Opt(UPCAST, 1, 4), Opt(THREAD, 1)],
    "lanes of the sum": [Opt(VEC, 2, 4), Opt(UPCAST, 0, 3), Opt(UPCAST, 1, 5)],
    "no lanes": [Opt(UPCAST, 0, 2), Opt(UPCAST, 1, 3)],
    "rows only": [Opt(UPCAST, 0, 4)],
    "packed panels": [Opt(VEC, 1, 8), Opt(UPCAST, 0, 3), Opt(SWAP, 0, 1), Opt(STAGE, 1, 1)],
    "blocks of rows": [Opt(VEC, 1, 8), Opt(UPCAST, 0, 2), Opt(BLOCK, 0, 4), Opt(THREAD, 3)],
    "sums in memory": [Opt(VEC, 1, 8), Opt(BLOCK, 2, 2), Opt(SWAP, 0, 3)],
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("shape", [(8, 16, 4), (17, 19, 5), (7, 33, 3), (5, 6, 3)])
def test_values_do_not_depend_on_whose_loops_they_are_computed_in(always, shape, name, transposed):
    case = linear(*shape, transposed=transposed)
    fitting = Kernel(case.sink, TARGET)
    opts = [o for o in LISTS[name] if o.op is not VEC or fitting.allows(o)]
    sizes = dict(enumerate(shape))
    if all(o.op not in (VEC, UPCAST, BLOCK) or o.arg <= sizes.get(o.axis, 99) for o in opts):
        check(case, *opts)


@pytest.mark.parametrize("stored", [dtypes.float16, dtypes.int32, dtypes.float64, dtypes.int8])
@pytest.mark.parametrize("name", ["lanes along what is stored", "lanes across it", "no lanes"])
def test_results_of_other_dtypes(always, stored, name):
    check(linear(9, 18, 3, stored), *LISTS[name])


@pytest.mark.parametrize("short", [-1, 1000])
def test_squares_are_transposed_before_the_epilogue_or_with_it(always, monkeypatch, short):
    monkeypatch.setattr(epilogues, "SHORT", short)
    for shape in ((16, 16, 4), (19, 7, 5), (33, 13, 3)):
        check(linear(*shape), *LISTS["lanes across it"])


def test_several_sums_and_stores(always):
    m, n, k = 9, 14, 5
    i, j, r = out(m, 0), out(n, 1), red(k, 2)
    x = param(2, m, k).index(i, r)
    one = (x * param(3, k, n).index(r, j)).reduce(r)
    two = (x * param(4, k, n).index(r, j)).reduce(r)
    a, b, c = some(m, k), some(k, n, seed=1), some(k, n, seed=2)
    case = Case(
        sink(param(0, m, n).index(i, j).store(one * two), param(1, m, n).index(i, j).store(one)),
        [blank(m, n), blank(m, n), a, b, c],
        [(a @ b) * (a @ c), a @ b, a, b, c],
    )
    check(case, Opt(VEC, 1, 8), Opt(UPCAST, 0, 4))
    check(case, Opt(VEC, 0, 4), Opt(UPCAST, 1, 6))


@pytest.mark.parametrize("m", [4, 7, 12])
def test_a_size_known_only_at_run_time(always, m):
    size, n, k = Variable("m", 4, 12), 10, 3
    i, j, r = out(size, 0), out(n, 1), red(k, 2)
    total = (param(1, 12, k).index(i, r) * param(2, k, n).index(r, j)).reduce(r)
    a, b = some(12, k), some(k, n, seed=1)
    expected = blank(12, n)
    expected[:m] = (a[:m] @ b) * 2
    case = Case(
        sink(param(0, 12, n).index(i, j).store(total * 2)),
        [blank(12, n), a, b],
        [expected, a, b],
        variables={"m": m},
    )
    for opts in ([Opt(VEC, 1, 8), Opt(UPCAST, 0, 3)], [Opt(VEC, 0, 4), Opt(UPCAST, 1, 5)]):
        check(case, *opts)


def test_an_update_in_place_stays_in_its_loops(always):
    m, n, k = 7, 9, 4
    i, j, r = out(m, 0), out(n, 1), red(k, 2)
    total = (param(1, m, k).index(i, r) * param(2, k, n).index(r, j)).reduce(r)
    target = param(0, m, n).index(i, j)
    a, b, c = some(m, k), some(k, n, seed=1), some(m, n, seed=2)
    case = Case(sink(target.store(total + target)), [c, a, b], [a @ b + c, a, b])
    check(case, Opt(VEC, 1, 4), Opt(UPCAST, 0, 3))


def epilogue_loops(ast: UOp, opts: list[Opt]) -> int:
    """How many loops a program has; a matmul with all three of its own has three."""
    program = lowered(ast, CPU.target, opts)
    return sum(u.op is Ops.RANGE for u in program.uops)


def gelu_of_matmul(k: int, is_long: bool) -> UOp:
    i, j, r = out(96, 0), out(96, 1), red(k, 2)
    total = (param(1, 96, k).index(i, r) * param(2, k, 96).index(r, j)).reduce(r)
    value = UOp(Ops.MATH, dtypes.float32, (total,), "tanh") * total if is_long else total
    return sink(param(0, 96, 96).index(i, j).store(value))


def test_a_long_epilogue_after_a_long_sum_is_rolled():
    opts = [Opt(VEC, 1, 32), Opt(UPCAST, 0, 6)]
    assert epilogue_loops(gelu_of_matmul(512, is_long=True), opts) > 3
    assert epilogue_loops(gelu_of_matmul(8, is_long=True), opts) == 3
    assert epilogue_loops(gelu_of_matmul(512, is_long=False), opts) == 3


def test_sums_that_lie_across_are_transposed_in_a_loop():
    opts = [Opt(VEC, 0, 32), Opt(UPCAST, 1, 12)]
    assert epilogue_loops(gelu_of_matmul(1024, is_long=False), opts) > 3
    assert epilogue_loops(gelu_of_matmul(32, is_long=False), opts) == 3


def test_a_rolled_epilogue_stands_in_the_program_once():
    opts = [Opt(VEC, 1, 32), Opt(UPCAST, 0, 6)]
    short = lowered(gelu_of_matmul(512, is_long=False), CPU.target, opts)
    long = lowered(gelu_of_matmul(512, is_long=True), CPU.target, opts)
    assert len(long.uops) < 3 * len(short.uops)  # twelve vectors of 60 operations would be more


def test_sums_carried_in_memory_are_stored_across_in_a_loop():
    """As gradients of weights are, whose sums go on from image to image."""
    carried = [Opt(VEC, 0, 32), Opt(UPCAST, 1, 12), Opt(BLOCK, 2, 512), Opt(SWAP, 0, 3)]
    ast = gelu_of_matmul(1024, is_long=False)
    program = lowered(ast, CPU.target, carried)
    assert sum(u.op is Ops.STORE for u in program.uops) < 32 * 12 // 2  # one by one: more


def lanes_of(program: LinearProgram) -> set[int]:
    """How many lanes the vectors have that are divided: the activation's."""
    return {n for p in program.phases for u in p.uops if u.op is Ops.FDIV for n in u.shape or (1,)}


def test_a_rolled_epilogue_works_on_whole_vectors_several_at_once():
    program = lowered(
        gelu_of_matmul(512, is_long=True), CPU.target, [Opt(VEC, 1, 32), Opt(UPCAST, 0, 6)]
    )
    assert lanes_of(program) == {CPU.target.vector_bytes // 4}


def test_long_activations_across_lanes_are_rolled_even_after_short_sums():
    many, few = [Opt(VEC, 0, 32), Opt(UPCAST, 1, 12)], [Opt(VEC, 0, 32), Opt(UPCAST, 1, 2)]
    assert epilogue_loops(gelu_of_matmul(100, is_long=True), many) > 3
    assert epilogue_loops(gelu_of_matmul(100, is_long=True), few) == 3


def test_sums_of_added_lanes_get_lanes_for_a_long_activation():
    opts = [Opt(VEC, 2, 16), Opt(UPCAST, 1, 5), Opt(UPCAST, 0, 2)]
    assert lanes_of(lowered(gelu_of_matmul(64, is_long=True), CPU.target, opts)) == {
        min(8, CPU.target.vector_bytes // 4)
    }
