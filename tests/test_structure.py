"""How the parts of a kernel, or of a program, fit together: what is accepted, and what is not."""

from __future__ import annotations

import pytest

from kernels import CASES, const, out, param, red, sink
from linear import Writer, at, end, local, program_of, splat, threads
from linear import param as memory
from tiny.codegen import LinearProgram, Phase
from tiny.dtype import dtypes
from tiny.uop.ops import AxisType, Ops, RegArg, StageArg, UOp
from tiny.uop.spec import SpecError
from tiny.uop.structure import check_kernel, check_program

# ---------------------------------------------------------------- kernels

I, J, K, L = out(3, 0), out(4, 1), out(5, 2), out(6, 3)  # noqa: E741  # as on paper
R, S, T = red(4, 10), red(5, 11), red(6, 12)
OUT, X, Y, ROW = param(0, 3, 4), param(1, 3, 4), param(2, 4, 5), param(3, 3, 5)
N = UOp.range(UOp.variable("n", 1, 5), 4)


def stage(value: UOp, *loops: UOp, shared: bool = False) -> UOp:
    shape = tuple(int(r.src[0].vmax) for r in loops)
    return UOp(Ops.STAGE, value.dtype, (value, *loops), StageArg(shared, shape))


def stored(value: UOp) -> UOp:
    return sink(OUT.index(I, J).store(value))


def packed(value: UOp, shared: bool = False) -> UOp:
    """`value` over loop K kept, and its elements added up."""
    return stage(value, K, shared=shared).index(S).reduce(S)


GOOD_KERNELS = {
    "stage of a row": stored(packed(ROW.index(I, K))),
    "stage of all": stored(packed(Y.index(const(2), K), shared=True)),
    "stage of two loops": stored(stage(Y.index(L % 4, K), L, K).index(J, S).reduce(S)),
    "stage in a stage": stored(
        stage(stage(ROW.index(I, K), K).index(L % 5) * 2.0, L).index(T).reduce(T)
    ),
    "stage of a reduction": stored(packed(Y.index(R, K).reduce(R))),
    "stage inside of a reduction": stored((X.index(I, R) * packed(Y.index(R, K))).reduce(R)),
    "symbolic size": stored(stage(ROW.index(I, N), N).index(J % N.src[0])),
    "nested scopes": stored(X.index(I, R).reduce(R) + (X.index(I, J) * ROW.index(I, S)).reduce(S)),
    "scopes of other nests": stored(
        (X.index(I, R) * Y.index(R, S).reduce(S)).reduce(R)
        + (ROW.index(I, T % 5) * Y.index(T % 4, S).reduce(S)).reduce(T)
    ),
    "in place": sink(OUT.index(I, J).store(OUT.index(I, J) + OUT.index(I, J, gate=I < J))),
    "in place, of a part elsewhere": sink(param(0, 8).index(I).store(param(0, 8).index(I + 3))),
    "in place, between": sink(param(0, 8).index(I * 2).store(param(0, 8).index(I * 2 + 1))),
    "several nests": sink(
        param(0, 3).index(I).store(param(2, 3, 4).index(I, R).reduce(R)),
        param(1, 4).index(J).store(param(3, 4).index(J)),
    ),
    # scopes (1,) and (0,) of one nest would not do, but these are two
    "scopes of other stores": sink(
        OUT.index(I, J).store(param(2, 3, 4).index(I, R).reduce(R)),
        param(1, 3, 4).index(I, J % 4).store(packed(param(3, 4, 5).index(J, K))),
    ),
}


@pytest.mark.parametrize("name", GOOD_KERNELS)
def test_kernels_that_fit_together(name):
    check_kernel(GOOD_KERNELS[name])


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_other_tests_fit_together(name):
    check_kernel(CASES[name]().sink)


LEFT = stage(ROW.index(I, K), K)
ALSO_1 = UOp.range(4, 1, AxisType.REDUCE)

BAD_KERNELS = {
    "stage as a value": (stored(LEFT + 1.0), "is_scalar"),
    "rank of a stage": (stored(LEFT.index(J, J)), "is_access"),
    "stage without loops": (stored(UOp(Ops.STAGE, dtypes.float32, (X.index(I, J),),
                                       StageArg(False, ())).index()), "is_stage"),
    "shape of a stage": (stored(LEFT.replace(arg=StageArg(False, (4,))).index(J)),
                         r"its shape is \(4,\) and its loops are \(5,\)"),
    "shared, in a loop": (stored(packed(ROW.index(I, K), shared=True)),
                          "does not vary with loops around it, here 0"),
    "loop of a stage outside": (stored(LEFT.index(J) + ROW.index(I, K)), "loops 2 outside"),
    "loop of a stage in its index": (stored(LEFT.index(K)), "loops 2 outside"),
    "loop of two stages": (stored(LEFT.index(J) + stage(Y.index(J, K), K).index(J)),
                           "loop 2 belongs to"),
    "loop of a stage and a reduction": (
        stored(stage(ROW.index(I, S), S).index(J) + ROW.index(I, S).reduce(S)), "kind REDUCE"),
    "loop twice": (stored(Y.index(J, S).reduce(S, S)), "names a loop twice"),
    "reduced and used": (stored(Y.index(J, S).reduce(S) + ROW.index(I, S)), "loops 11 outside"),
    "a loop of outputs reduced": (stored(ROW.index(I, K).reduce(K)), "kind LOOP, not REDUCE"),
    "an output over a reduction": (sink(param(0, 4).index(R).store(X.index(I * 0, R))),
                                   "over outputs is of kind REDUCE"),
    "loops of one number": (stored(X.index(I, ALSO_1).reduce(ALSO_1)), "have the number 1"),
    "size of a loop": (stored(
        ROW.index(I, v := UOp.range(I + 1, 13, AxisType.REDUCE)).reduce(v)), "does not change"),
    "kind of a loop": (sink(param(0, 4).index(threads(4, 1)).store(1.0)), "kind LOOP or REDUCE"),
    "chain": (stored(ROW.index(I, S).reduce(S) * Y.index(J, S).reduce(S)),
              "it is made once for loops [01], and .* once for loops [01]: no order"),
    "chain of a stage": (stored(LEFT.index(J) * Y.index(J, S).reduce(S)), "no order"),
    "chain in a reduction": (
        stored((param(4, 3, 4, 6).index(I, R, T)
                * Y.index(R, S).reduce(S) * Y.index(T % 4, S).reduce(S)).reduce(R, T)),
        "no order"),
    "chain in a stage": (
        stored(stage(Y.index(K % 4, S).reduce(S) * Y.index(L % 4, S).reduce(S), K, L)
               .index(J, I)), "no order"),
    "two buffers of one number": (stored(X.index(I, J) + param(1, 12).index(I)), "two buffers"),
    "written twice": (sink(OUT.index(I, J).store(1.0), OUT.index(I, J).store(2.0)), "two STOREs"),
    "numbers of outputs": (sink(X.index(I, J).store(1.0)), "number 0 is expected, this is 1"),
    "order of outputs": (sink(X.index(I, J).store(1.0), OUT.index(I, J).store(2.0)),
                         "number 0 is expected"),
    "store to a stage": (sink(LEFT.index(J).store(1.0)), "filled by its value"),
    "element written several times": (sink(param(0, 3).index(I).store(X.index(I, J))),
                                      "loops 1, which the address does not"),
    "neighbour read": (sink(param(0, 8).index(I).store(param(0, 8).index(I + 1))), "PARAM 0"),
    "neighbour of another store read": (
        sink(OUT.index(I, J).store(param(1, 4, 3).index(J, const(2) - I)),
             param(1, 4, 3).index(J, I).store(1.0)),
        "PARAM 1, which is written"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_KERNELS)
def test_kernels_that_do_not_fit_together(name):
    kernel, words = BAD_KERNELS[name]
    with pytest.raises(SpecError, match=rf"(?s)^kernel.*: .*{words}"):
        check_kernel(kernel)


def test_a_wide_kernel_is_checked_in_good_time():
    """A batch of many stores, each over loops of its own, with a sum each."""
    count, stores = 60, []
    for k in range(count):
        i, r = out(8, 2 * k), red(8, 2 * k + 1)
        value = param(count + k, 8, 8).index(i, r).reduce(r)
        for step in range(100):
            value = value * float(step)
        stores.append(param(k, 8).index(i).store(value))
    check_kernel(sink(*stores))


# ---------------------------------------------------------------- programs

F32 = dtypes.float32
TO, FROM = memory(0, F32, 64), memory(1, F32, 64)
ONE = UOp.const(1.0, F32)
CONSTANTS = (TO, FROM, ONE, *[const(k) for k in range(9)])


def register(slot: int = 0) -> UOp:
    return UOp(Ops.DEFINE_REG, F32, (ONE,), RegArg(slot, 1))


def written(*steps: UOp | list[UOp]) -> Phase:
    """A phase of these operations, in order, after constants and buffers."""
    w = Writer()
    w.add(*CONSTANTS)
    for step in steps:
        w.add(*(step if isinstance(step, list) else [step]))
    return w.phase()


THREAD, LOOP, INNER = threads(4, 0), UOp.range(4, 1), UOp.range(3, 2)
A, B = local(0, F32, 16), local(64, F32, 16)
OVER_A = local(0, dtypes.int32, 16)
SHARED = local(0, F32, 4, shared=True)
REG = register()
FILL_A, USE_A = at(A, LOOP).store(ONE), at(TO, LOOP).store(at(A, LOOP).load())
FILL_B, USE_B = at(B, LOOP).store(ONE), at(TO, LOOP).store(at(B, LOOP).load())
FILL_OVER = at(OVER_A, INNER).store(UOp.const(7, dtypes.int32))
FILL_SHARED = at(SHARED, THREAD).store(ONE)
READ_SHARED = at(TO, THREAD).store(at(SHARED, THREAD).load())
ZERO = UOp.const(7, dtypes.int32)
SECOND = UOp.range(4, 3)

GOOD_PROGRAMS = {
    "scratch of a thread": [written(
        A, THREAD, LOOP, FILL_A, end(LOOP), SECOND, at(TO, SECOND).store(at(A, SECOND).load()),
        end(SECOND), end(THREAD))],
    "memory used again": [written(
        A, OVER_A, ZERO, LOOP, FILL_A, USE_A, end(LOOP), INNER, FILL_OVER, end(INNER))],
    "memory used again in a loop": [written(
        A, OVER_A, ZERO, LOOP, FILL_A, USE_A, INNER, FILL_OVER, end(INNER), end(LOOP))],
    "two phases": [written(SHARED, THREAD, FILL_SHARED, end(THREAD)),
                   written(SHARED, THREAD, READ_SHARED, end(THREAD))],
    "one step may read what it shared": [written(
        SHARED, at(SHARED, 0).store(ONE), at(TO, 0).store(at(SHARED, 0).load()))],
    "a register in two loops": [written(
        REG, LOOP, REG.store(REG + ONE), end(LOOP), SECOND, REG.store(REG * ONE), end(SECOND),
        at(TO, 0).store(REG.after(end(SECOND))))],
    "two thread loops": [written(
        threads(4, 8), end(threads(4, 8)), THREAD, at(TO, THREAD).store(ONE), end(THREAD))],
    "a sum outside": [written(
        REG, LOOP, REG.store(REG + ONE), done := end(LOOP), REG.after(done), THREAD,
        at(TO, THREAD).store(REG.after(done)), end(THREAD))],
    "invariant outside": [written(at(FROM, 3).load(), THREAD, at(TO, THREAD).store(
        at(FROM, 3).load()), end(THREAD))],
    "partial sums": [written(
        A, at(A, 0).store(ONE), LOOP, at(A, 0).store(at(A, 0).load() + ONE), end(LOOP),
        at(TO, 0).store(at(A, 0).load(lanes=2)))],
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD_PROGRAMS)
def test_programs_that_fit_together(name):
    check_program(program_of(GOOD_PROGRAMS[name], checked=False))


BAD_PROGRAMS = {
    "a node is wrong": ([written(splat(ONE, 4) + ONE)], "phase 0: .*is_vector"),
    "no thread loop": ([Phase(written(TO).uops, 4)], "4 steps, and 0 loops"),
    "other thread loops": ([written(threads(3, 8), end(threads(3, 8)), THREAD, end(THREAD))],
                           "does not have 3 steps"),
    "steps": ([Phase(written(THREAD, end(THREAD)).uops, 3)], "does not have 3 steps"),
    "no steps": ([Phase((), 0)], "0 steps"),
    "inside of a loop": ([written(LOOP, THREAD, end(THREAD), end(LOOP))], "inside of another"),
    "a store outside": ([written(at(TO, 0).store(ONE), THREAD, end(THREAD))], "outside of THREAD"),
    "a store after": ([written(THREAD, end(THREAD), at(TO, 0).store(ONE))], "outside of THREAD"),
    "a register outside": ([written(REG, THREAD, REG.store(ONE), end(THREAD))], "pass on"),
    "read before it is written": (
        [written(at(TO, 3).load(), THREAD, at(TO, THREAD).store(at(TO, 3).load()), end(THREAD))],
        "read outside of THREAD loops"),
    "a register in nested loops": (
        [written(REG, LOOP, INNER, REG.store(ONE), end(INNER), REG.store(REG + ONE), end(LOOP))],
        "in one around that loop"),
    "a register not written": (
        [written(REG, LOOP, end(LOOP), at(TO, 0).store(REG.after(end(LOOP))))],
        "after what does not write it"),
    "not written": ([written(A, LOOP, USE_A, end(LOOP))], "reads what was not written"),
    "shared, not written": ([written(SHARED, THREAD, READ_SHARED, end(THREAD))],
                            "what no phase has written"),
    "shared in one phase": ([written(SHARED, THREAD, FILL_SHARED, READ_SHARED, end(THREAD))],
                            "read what others write"),
    "written over": ([written(
        A, OVER_A, ZERO, LOOP, FILL_A, end(LOOP), INNER, FILL_OVER, end(INNER), SECOND,
        at(TO, SECOND).store(at(A, SECOND).load()), end(SECOND))], "lies over"),
    "written over in a loop": ([written(
        A, OVER_A, ZERO, at(A, 0).store(ONE), LOOP, at(TO, LOOP).store(at(A, 0).load()), INNER,
        FILL_OVER, end(INNER), end(LOOP))], "lies over"),
    "partial sums written over": ([written(
        A, OVER_A, ZERO, LOOP, at(A, 0).store(at(A, 0).load() + ONE), INNER, FILL_OVER,
        end(INNER), end(LOOP))], "lies over"),
    "shared, written over": (
        [written(SHARED, THREAD, FILL_SHARED, end(THREAD)),
         written(o := local(0, F32, 2, shared=True), at(o, 0).store(ONE)),
         written(SHARED, THREAD, READ_SHARED, end(THREAD))], "phase 1: .*lies over"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_PROGRAMS)
def test_programs_that_do_not_fit_together(name):
    phases, words = BAD_PROGRAMS[name]
    with pytest.raises(SpecError, match=rf"(?s)program kernel.*{words}"):
        check_program(program_of(phases, checked=False))


@pytest.mark.parametrize("scratch, shared", [(127, 16), (128, 15)])
def test_pieces_end_inside_of_the_memory(scratch, shared):
    phase = written(B, SHARED, at(B, 0).store(ONE), at(SHARED, 0).store(ONE))
    fits = LinearProgram("k", (phase,), (), (), scratch_nbytes=128, shared_nbytes=16)
    check_program(fits)
    short = LinearProgram("k", (phase,), (), (), scratch_nbytes=scratch, shared_nbytes=shared)
    with pytest.raises(SpecError, match="ends beyond"):
        check_program(short)
