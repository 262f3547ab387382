"""The canonical form of integer expressions, and the rules beside it."""

from __future__ import annotations

import math
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from strategies import POINTS, VARIABLES, expressions, values
from tiny._core import symbolic as native
from tiny.bench.index_corpus import Chain, index_corpus, windows
from tiny.dtype import dtypes
from tiny.uop.ops import AxisType, KernelInfo, Ops, UOp
from tiny.uop.symbolic import fold_constants, pm_symbolic, simplify
from tiny.uop.upat import graph_rewrite

INDEX = dtypes.index
A, B, C, D = VARIABLES  # [-3, 4], [0, 5], [-6, -1], [0, 1]
X, Y, Z = (UOp.variable(n, 0, hi) for n, hi in (("x", 99), ("y", 3), ("z", 1000)))
R = [UOp.range(n, i) for i, n in enumerate((8, 4, 3, 12))]


def const(value, dtype=INDEX):
    return UOp.const(value, dtype)


def work_of(x: UOp) -> int:
    """What an expression costs: 5 a division, 1 another operation."""
    costs = {Ops.FLOORDIV: 5, Ops.FLOORMOD: 5}
    return sum(costs.get(n.op, 1) for n in x.postorder() if len(n.src) > 1)


# ---------------------------------------------------------------- brute force


@settings(max_examples=examples(20_000, 400))
@given(expressions())
def test_drawn_expressions_keep_their_values_and_settle(e):
    before, s = values(e, POINTS), simplify(e)
    after = values(s, POINTS)
    np.testing.assert_array_equal(after, before)
    for node, found in ((e, before), (s, after)):
        assert node.vmin <= found.min() and found.max() <= node.vmax
    native.forget(s)  # work it out anew, from the result's own structure
    assert simplify(s) is s


@settings(max_examples=examples(2_000, 50))
@given(expressions())
def test_the_rules_in_a_matcher_give_what_simplify_gives(e):
    assert graph_rewrite(e, pm_symbolic) is simplify(e)


STEPS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "m": lambda a, b: a.maximum(b),
    "<": lambda a, b: (a < b).where(a, b),
}


@settings(max_examples=examples(2_000, 100))
@given(
    st.sampled_from(["int8", "uint8", "int16", "int32", "uint32", "int64"]),
    st.lists(
        st.tuples(st.sampled_from("+-*/%<m"), st.integers(0, 7), st.integers(0, 7)), max_size=8
    ),
    st.lists(st.integers(-128, 127), min_size=2, max_size=4),
)
def test_integers_of_a_width_wrap_as_before(name, steps, numbers):
    dtype = dtypes.fields()[name]
    rng = np.random.default_rng(0)
    variables = [
        UOp.variable("p", max(dtype.min, -2), min(dtype.max, 90), dtype),
        UOp.variable("q", dtype.min, dtype.max, dtype),
    ]
    drawn = [rng.integers(v.vmin, v.vmax, 500, np.dtype(name), endpoint=True) for v in variables]
    pool = [*variables, *[const(n, dtype) for n in numbers]]
    last = pool[0]
    for op, i, j in steps:
        a, b = pool[i % len(pool)], pool[-1 - j % len(pool)]
        if op in "/%":
            b = const(abs(numbers[j % len(numbers)]) + 1, dtype)
        last = STEPS[op](a, b)
        pool.append(last)
    points = dict(zip(variables, drawn, strict=True))
    points |= {
        n: np.asarray(n.arg, np.dtype(name))
        for n in last.postorder()
        if n.op is Ops.CONST and n.dtype is dtype
    }
    s = simplify(last)
    points |= {
        n: np.asarray(n.arg, np.dtype(name))
        for n in s.postorder()
        if n.op is Ops.CONST and n.dtype is dtype
    }
    with np.errstate(over="ignore"):
        before, after = values(last, points), values(s, points)
    np.testing.assert_array_equal(after, before)
    assert s.vmin <= after.min() and after.max() <= s.vmax


@pytest.mark.parametrize("e", index_corpus(UOp)[::23], ids=lambda e: e.family.replace(" ", "-"))
def test_index_expressions_of_kernels_keep_their_values(e):
    rng = np.random.default_rng(0)
    ranges = [n for n in e.root.postorder() if n.op is Ops.RANGE]
    points = {r: rng.integers(0, r.vmax + 1, 300) for r in ranges}
    s = simplify(e.root)
    np.testing.assert_array_equal(values(s, points), values(e.root, points))
    assert work_of(s) <= work_of(e.root) + 1  # a whole number leaves a quotient as an addition


def test_an_unknown_satisfier_proves_equivalence():
    z3 = pytest.importorskip("z3")
    x, y = z3.Ints("x y")
    solver = z3.Solver()
    # the identities that divide and modulo are made of, for all integers and not only small ones
    for claim in [
        ((x / 6) / 4) == x / 24,
        (x % 24) / 6 == (x / 6) % 4,
        (x % 6) + 6 * (x / 6) == x,
        (x % 6) + 6 * ((x / 6) % 4) == x % 24,
        -(x / 6) == (5 - x) / 6,
        z3.Implies(z3.And(y >= 0, y < 4), (4 * x + y) / 24 == x / 6),
        z3.Implies(z3.And(y >= 0, y < 4), (4 * x + y) % 24 == 4 * (x % 6) + y),
        z3.Implies(z3.And(y >= -4, y < 0), (4 * x + y) / 24 == (x - 1) / 6),
        (4 * (x % 6) + y) % 24 == (4 * x + y) % 24,
    ]:
        solver.push()
        solver.add(z3.Not(claim))
        assert solver.check() == z3.unsat, claim
        solver.pop()


# ---------------------------------------------------------------- canonical forms


@pytest.mark.parametrize(
    "before, after",
    [
        # sums
        (X + Y + X, X * 2 + Y),
        (X - X, const(0)),
        (Y + X, X + Y),
        ((X + 3) + (Y + 4) * 2, X + Y * 2 + 11),
        ((X + Y) * 3 - Y * 3, X * 3),
        (X * 0, const(0)),
        (X.__neg__().__neg__(), X),
        (X ^ -1, X * -1 + -1),
        (X << 3, X * 8),
        # division and remainder
        ((X * 4 + Y) // 4, X),
        ((X * 4 + Y) % 4, Y),
        ((X * 12 + Y) // 4, X * 3),
        ((X * 6 + 4) // 2, X * 3 + 2),
        ((X // 3) // 3, X // 9),
        ((X // 3 + 5) // 4, (X + 3) // 12 + 1),
        ((X % 12) // 4, X // 4 % 3),
        ((X % 12) % 4, X % 4),
        ((X * 4 + Y) // 12, X // 3),
        ((X * 4 + Y) % 12, Y + X % 3 * 4),
        (X // 4 * 4 + X % 4, X),
        (X // 4 % 6 * 4 + X % 4, X % 24),
        (X // 100, const(0)),
        (X % 100, X),
        ((X + 200) % 100, X),
        (X // 1, X),
        (X % 1, const(0)),
        (X // 0, const(0)),
        (X % 0, const(0)),
        (X >> 2, X // 4),
        ((Y * 58 + 3) % 59, Y * -1 + 3),
        # comparisons
        (X < 100, const(True, dtypes.bool)),
        (X < 0, const(False, dtypes.bool)),
        (X * 4 < 12, X < 3),
        (X * 4 + Y < 12, X < 3),
        (X // 5 < 3, X < 15),
        ((X < 5).logical_not(), const(4) < X),
        (X >= 5, const(4) < X),
        (X + 3 < Y + 5, X + Y * -1 < 2),
        (X + 3 < Y + 3, X < Y),
        ((X < Y + 5) & (Y < X + 3), (X + Y * -1 < 5) & (const(-3) < X + Y * -1)),
        (const(5) < X * -1, const(False, dtypes.bool)),
        ((X * 2).ne(5), const(True, dtypes.bool)),
        ((X * 2).eq(6), X.eq(3)),
        ((X.ne(3)).logical_not(), X.eq(3)),
        # conditions
        ((X < 5) & (X < 3), X < 3),
        ((X < 5) | (X < 3), X < 5),
        ((X < 5) & (const(7) < X), const(False, dtypes.bool)),
        ((X < 5) | (const(3) < X), const(True, dtypes.bool)),
        ((X < 5) & (const(3) < X), X.eq(4)),
        ((X < 5) & (Y < 2) & (X < 5), (X < 5) & (Y < 2)),
        ((X < 5) & (X < 5).logical_not(), const(False, dtypes.bool)),
        # maxima, minima, choices
        (X.maximum(X), X),
        (X.maximum(-1), X),
        (X.maximum(X + 1), X + 1),
        ((X + 2).maximum(Z + 2), X.maximum(Z) + 2),
        (X.minimum(200), X),
        ((X < 5).where(X, X), X),
        ((X < 5).where((Y < 2).where(X, 0), 0), ((X < 5) & (Y < 2)).where(X, 0)),
        ((X < 5).where((X < 5).where(Y, 7), X), (X < 5).where(Y, X)),
        # products
        (X * Z * Y, Y * X * Z),
        ((X + 1) * Z, X * Z + Z),
        # ranges
        (UOp.range(1, 9) + X, X),
        ((R[0] * 4 + R[1]) // 4, R[0]),
    ],
    ids=str,
)  # fmt: skip
def test_canonical_forms(before, after):
    # `after` is written as people would; it may list its operands in another order
    assert simplify(before) is simplify(after)
    assert work_of(simplify(before)) <= work_of(after)


def test_symbolic_sizes_come_apart_again():
    n = UOp.variable("n", 1, 64)
    i, j = UOp.range(10, 0), UOp.range(n, 1)
    place = i * n + j
    assert simplify(place // n) is i
    assert simplify(place % n) is j
    assert simplify((n * 3) // n) is const(3)


def test_terms_are_sorted_by_content_alone():
    script = (
        "import sys\n"
        "from tiny.uop.ops import UOp\n"
        "from tiny.uop.symbolic import simplify\n"
        "v = [UOp.variable(n, 0, 9) for n in ('beta', 'alpha', 'delta', 'gamma')]\n"
        "junk = [UOp.variable(f'j{i}', 0, i) for i in range(int(sys.argv[1]))]\n"
        "e = v[0] // 4 + v[1] * v[2] + v[3] % 5 + v[2] * 7\n"
        "for i in range(100): e = e // 2 + v[i % 4] % 3\n"
        "print(simplify(e).key.hex())"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", script, str(junk)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed, junk in ((0, 0), (1, 5000), (12345, 3))
    }  # fmt: skip
    assert len(keys) == 1


def test_what_may_wrap_stays_as_it_is():
    wide, small = UOp.variable("w", 0, 2**31 - 1, dtypes.int32), UOp.variable(
        "s", 0, 99, dtypes.int32)  # fmt: skip
    assert simplify((wide * 4) // 4) is (wide * 4) // 4
    assert simplify((small * 4) // 4) is small
    assert simplify(wide + 1 < wide) is (wide + 1 < wide)
    assert simplify(small + 1 < small).arg is False


def test_numbers_beyond_62_bits_are_left_to_the_nodes():
    big = UOp.variable("big", 0, 2**61)
    assert simplify((big * 2**40 + X) // 2**40) is big  # index is exact: it does not wrap
    e = big * 2**40 * 2**40 + X
    assert simplify(e).op is Ops.ADD and simplify(simplify(e)) is simplify(e)
    huge = const(2**70)
    assert simplify(X + huge).op is Ops.ADD


def test_a_loop_of_one_step_stays_a_loop_of_its_reduction():
    one, many = UOp.range(1, 0, AxisType.REDUCE), UOp.range(5, 1, AxisType.REDUCE)
    p = UOp.placeholder((1, 5), dtypes.float32, 0)
    total = p.index(one, many).reduce(one, many)
    s = simplify(UOp.sink(UOp.placeholder((1,), dtypes.float32, 1).index(0).store(total),
                          arg=KernelInfo()))  # fmt: skip
    reduced = next(n for n in s.postorder() if n.op is Ops.REDUCE)
    assert reduced.src[1:] == (one, many)
    assert reduced.src[0].src[1:] == (const(0), many)


# ---------------------------------------------------------------- linear in time, and no recursion


def long_sum(n):
    e = X
    for i in range(n):
        e = UOp.variable(f"v{i}", 0, 9) + e
    return e


def prefixes(n):
    e, ends = X, []
    for i in range(n):
        e = e + UOp.variable(f"v{i}", 0, 9)
        ends.append(e // 7)
    return UOp.sink(*ends)


def folded(step):
    def build(n):
        e = X
        for i in range(n):
            e = step(e, i)
        return e

    return build


def conditions(n):
    e = X < 5
    for i in range(n):
        e = (e | (UOp.variable(f"v{i % 70}", 0, 9) < i % 8)).logical_not() & (i > X)
    return e


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(long_sum, id="long sum"),
        pytest.param(prefixes, id="every prefix of a sum divided"),
        pytest.param(folded(lambda e, i: (e + e) // 2 + Y), id="doubled"),
        pytest.param(folded(lambda e, i: (e + Y) // 3), id="divided"),
        pytest.param(folded(lambda e, i: (e // 3 + X) % (11 + i % 5)), id="divided and reduced"),
        pytest.param(folded(lambda e, i: e * (i % 3) + X % (i + 2)), id="multiplied"),
        pytest.param(folded(lambda e, i: (e % 50) * Z + Y), id="products"),
        pytest.param(folded(lambda e, i: e.maximum(Z % (i + 1))), id="maxima"),
        pytest.param(folded(lambda e, i: (Z % (i + 2) < 5).where(e, Y)), id="choices"),
        pytest.param(conditions, id="conditions"),
    ],
)
def test_work_grows_with_the_expression(build):
    def work(n):
        e = build(n)
        nodes, terms = native.work_done()
        s = native.simplify(e)
        assert native.simplify(s) is s
        now = native.work_done()
        return now[0] - nodes + now[1] - terms

    small = work(2_000)
    assert work(16_000) <= 10 * small + 1000  # 8 times as much, and some


def test_a_sum_of_100_000_terms_and_a_chain_of_100_000_divisions():
    assert simplify(long_sum(100_000)).op is Ops.ADD
    assert simplify(folded(lambda e, i: (e + Y + i % 7) // 3)(100_000)).vmax < 99


# ---------------------------------------------------------------- constants and floats


FLOATS = [0.0, -0.0, 1.0, -1.5, 0.1, 3.0, 1e-40, 1e38, math.inf, -math.inf, math.nan]


def bits(x: float) -> bytes:
    return struct.pack("<d", math.nan if x != x else x)


@pytest.mark.parametrize("op, numpy_op", [
    (Ops.ADD, np.add), (Ops.SUB, np.subtract), (Ops.MUL, np.multiply), (Ops.FDIV, np.divide),
    (Ops.CMPLT, np.less), (Ops.CMPNE, np.not_equal), (Ops.CMPEQ, np.equal),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float32, dtypes.float64], ids=str)
def test_float_constants_fold_as_the_machine_computes(op, numpy_op, dtype):
    kind = np.dtype(dtype.name)
    for a in FLOATS:
        for b in FLOATS:
            with np.errstate(all="ignore"):
                x, y = (UOp.const(float(kind.type(v)), dtype) for v in (a, b))
                wide = np.float32 if dtype is dtypes.float16 else kind.type
                want = numpy_op(wide(x.arg), wide(y.arg))
                want = bool(want) if want.dtype == bool else float(kind.type(want))
            got = simplify(x.alu(op, y))
            assert got.op is Ops.CONST
            assert bits(got.arg) == bits(want), (op, a, b, got.arg, want)


@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_integer_constants_wrap(name):
    dtype = dtypes.fields()[name]
    kind = np.dtype(name).type
    edges = [dtype.min, dtype.min + 1, 0, 1, 3, dtype.max - 1, dtype.max]
    for a in edges:
        for b in edges:
            x, y = UOp.const(a, dtype), UOp.const(b, dtype)
            with np.errstate(over="ignore"):
                for op, f in ((Ops.ADD, np.add), (Ops.SUB, np.subtract), (Ops.MUL, np.multiply),
                              (Ops.XOR, np.bitwise_xor), (Ops.OR, np.bitwise_or)):  # fmt: skip
                    assert simplify(x.alu(op, y)).arg == int(f(kind(a), kind(b))), (op, a, b)
    assert simplify(UOp.const(dtype.min, dtype) // UOp.const(0, dtype)).arg == 0
    assert simplify(UOp.const(5, dtype).alu(Ops.SHL, UOp.const(64, dtype))).arg == 0


def test_minus_seven_divided_and_shifted():
    seven = UOp.const(-7, dtypes.int32)
    two = UOp.const(2, dtypes.int32)
    found = {op: simplify(seven.alu(op, two)).arg for op in
             (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD, Ops.SHR)}  # fmt: skip
    assert found == {Ops.FLOORDIV: -4, Ops.FLOORMOD: 1, Ops.CDIV: -3, Ops.CMOD: -1, Ops.SHR: -2}
    lowest = UOp.const(-(2**31), dtypes.int32)
    assert simplify(lowest.alu(Ops.CDIV, UOp.const(-1, dtypes.int32))).arg == -(2**31)


@pytest.mark.parametrize(
    "source, value, dtype, want",
    [
        (dtypes.float32, math.nan, dtypes.int32, 0),
        (dtypes.float32, 300.0, dtypes.uint8, 44),
        (dtypes.float32, -1.0, dtypes.uint8, 255),
        (dtypes.float32, 1e20, dtypes.int32, 2**31 - 1),
        (dtypes.int32, -1, dtypes.uint64, 2**64 - 1),
        (dtypes.float64, 0.1, dtypes.float32, float(np.float32(0.1))),
        (dtypes.float32, math.nan, dtypes.bool, True),
    ],
)
def test_constants_convert_as_the_machine_does(source, value, dtype, want):
    assert simplify(UOp.const(value, source).cast(dtype)).arg == want


LOADED = UOp.placeholder((8,), dtypes.float32, 0).index(R[0])
HALF = UOp.placeholder((8,), dtypes.float16, 1).index(R[0])
BYTE = UOp.placeholder((8,), dtypes.uint8, 2).index(R[0])
LONG = UOp.placeholder((8,), dtypes.int64, 3).index(R[0])


@pytest.mark.parametrize(
    "before, after",
    [
        (LOADED * 1.0, LOADED),
        (LOADED / 1.0, LOADED),
        (LOADED + -0.0, LOADED),
        (LOADED - 0.0, LOADED),
        (LOADED / 4.0, LOADED * 0.25),
        (LOADED.__neg__().__neg__(), LOADED),
        (LOADED.maximum(LOADED), LOADED),
        (LOADED.maximum(-math.inf), LOADED),
        ((X < 500).where(LOADED, 0.0), LOADED),
        (LOADED.cast(dtypes.float64).cast(dtypes.float32), LOADED),
        (LOADED.cast(dtypes.float64).cast(dtypes.float16), LOADED.cast(dtypes.float16)),
        (BYTE.cast(dtypes.int32).cast(dtypes.float32), BYTE.cast(dtypes.float32)),
        (LOADED < LOADED, const(False, dtypes.bool)),
        ((LOADED.ne(1.0)).logical_not(), LOADED.eq(1.0)),
        (LONG + 0, LONG),
        (LONG * 0, const(0, dtypes.int64)),
        (LONG - LONG, const(0, dtypes.int64)),
        ((LONG + 2**62) + 2**62, LONG + -(2**63)),
        ((LONG ^ 5) ^ 5, LONG),
        (LONG & -1, LONG),
    ],
    ids=str,
)
def test_rules_fire(before, after):
    assert simplify(before) is after


@pytest.mark.parametrize(
    "e",
    [
        LOADED + 0.0,  # -0.0 + 0.0 is 0.0
        LOADED - -0.0,
        LOADED * 0.0,  # NaN, infinity and signs
        LOADED - LOADED,
        LOADED / 3.0,
        LOADED / 2.0**127 / 3.0,
        LOADED / math.inf,
        HALF / 2.0**15,  # its inverse is not a normal number
        LOADED.maximum(math.inf),
        LOADED.ne(LOADED),  # true for NaN
        (LOADED < 1.0).logical_not(),
        LOADED.cast(dtypes.float16).cast(dtypes.float32),
        LONG.cast(dtypes.float32).cast(dtypes.int64),
        LOADED.cast(dtypes.int32).cast(dtypes.float32),
        (LOADED * 3.0) * 5.0,
        (LOADED + 1.0) + 1.0,
        LONG & 255,
    ],
    ids=str,
)
def test_rules_stay_quiet(e):
    assert simplify(e) is e


def test_transcendentals_are_left_to_the_target():
    assert fold_constants(UOp.const(1.5, dtypes.float32).alu(Ops.EXP2)) is None


def test_a_broadcast_scalar_is_not_mistaken_for_the_result():
    shaped = UOp(Ops.EXPAND, dtypes.float32, (UOp.const(2.0, dtypes.float32),), (4,))
    condition = UOp(Ops.EXPAND, dtypes.bool, (const(True, dtypes.bool),), (4,))
    e = condition.where(LOADED, LOADED)
    assert e.shape == (4,)
    assert simplify(e).shape == (4,)
    assert simplify((const(True, dtypes.bool)).where(LOADED, shaped)).shape == (4,)


# ---------------------------------------------------------------- the corpus


@pytest.mark.parametrize("kernel, stride, dilation", [(3, 1, 1), (3, 2, 1), (2, 2, 1), (3, 1, 2)])
def test_windows_are_those_of_numpy(kernel, stride, dilation):
    x = np.arange(2 * 9 * 9).reshape(2, 9, 9)
    chain = windows(Chain(x.shape), (kernel,) * 2, (stride,) * 2, (dilation,) * 2)
    span = dilation * (kernel - 1) + 1
    want = np.lib.stride_tricks.sliding_window_view(x, (span, span), (1, 2))
    want = want[:, ::stride, ::stride, ::dilation, ::dilation]
    assert chain.shape == want.shape
    place = chain.expressions(UOp)[-1]
    grid = np.meshgrid(*[np.arange(s) for s in chain.shape], indexing="ij")
    points = {UOp.range(s, k): g for k, (s, g) in enumerate(zip(chain.shape, grid, strict=True))}
    np.testing.assert_array_equal(values(place, points), want)


def test_the_corpus_is_large_and_varied():
    corpus = index_corpus(UOp)
    assert len(corpus) >= 3000
    assert len({e.family for e in corpus}) >= 20
    assert len({e.root for e in corpus}) == len(corpus)
