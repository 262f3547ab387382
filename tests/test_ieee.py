"""The table of `ieee_table`: each entry run on devices and folded; rules keep floats' bits."""

from __future__ import annotations

import math
import operator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import FULL, examples
from evaluate import evaluate
from ieee_table import ANY_ZERO, SECTIONS, number, page
from tiny import Tensor
from tiny.dtype import _to_np_dtype, dtypes, truncate
from tiny.uop.ops import BufferArg, Ops, UOp
from tiny.uop.symbolic import simplify

PAGE = Path(__file__).parents[1] / "docs" / "ieee.md"
ENTRIES = [
    pytest.param(entry, dtype, id=f"{title}-{entry.text}-{dtype.name}")
    for title, entries in SECTIONS.items()
    for entry in entries
    for dtype in entry.dtypes
]


@pytest.mark.skipif(not PAGE.exists(), reason="the page is not beside the tests")
def test_the_page_is_made_of_the_table():
    assert PAGE.read_text() == page(), "PYTHONPATH=src:tests python -m ieee_table > docs/ieee.md"


def is_same(got, expected, dtype, value):
    """Equal to the bit; NaN is NaN, and the sign of a zero counts unless the table says not."""
    if isinstance(expected, bool | int):
        return got == expected
    if math.isnan(expected):
        return math.isnan(got)
    rounded = truncate[dtype](expected)
    if value == ANY_ZERO:
        return got == 0
    return got == rounded and math.copysign(1, got) == math.copysign(1, rounded)


def check(entry, got, dtype, result_dtype):
    for (operands, value), one in zip(entry.rows, got, strict=True):
        expected = number(value, dtype)
        assert is_same(one, expected, result_dtype, value), (
            f"{entry.text} of {operands} in {dtype.name}: {one}, not {expected}"
        )


# the interpreter is slow, and other dtypes take the same path there: all in full runs
_INTERPRETED = (dtypes.float32, dtypes.bfloat16, dtypes.int32)
RUNS = [
    pytest.param(*entry.values, device, id=f"{entry.id}-{device}")
    for device in ("CPU", "PYTHON")
    for entry in ENTRIES
    if device == "CPU" or FULL or entry.values[1] in _INTERPRETED
]


@pytest.mark.parametrize("entry, dtype, device", RUNS)
def test_entries_hold_for_values_from_memory(entry, dtype, device):
    columns = [
        [number(v, dtype) for v in column]
        for column in zip(*[r[0] for r in entry.rows], strict=True)
    ]
    operands = [
        Tensor(np.array(column).astype(_to_np_dtype(dtype)), device=device) for column in columns
    ]
    result = entry.run(*operands)
    check(entry, result.tolist(), dtype, result.dtype)


def constants(*operands, dtype):
    """Scalars that are constants, of a dtype."""
    return [Tensor.const(number(v, dtype), dtype) for v in operands]


def folded(tensor):
    """The graph of a value as the rewriter leaves it, tensors of constants as plain ones."""
    graph = tensor.uop
    plain = {n: UOp(Ops.CONST, n.dtype, (), n.arg) for n in graph.postorder() if n.op is Ops.CONST}
    return simplify(graph.substitute({n: c for n, c in plain.items() if n is not c}))


@pytest.mark.parametrize("entry, dtype", ENTRIES)
def test_entries_hold_for_constants(entry, dtype):
    tensors = [entry.run(*constants(*operands, dtype=dtype)) for operands, _ in entry.rows]
    if entry.folds:
        left = [folded(t) for t in tensors]
        assert {n.op for n in left} == {Ops.CONST}, entry.text
        check(entry, [n.arg for n in left], dtype, tensors[0].dtype)
    if dtype in (dtypes.float32, dtypes.int32):
        got = Tensor.stack(*tensors)
        check(entry, got.tolist(), dtype, got.dtype)


# ---------------------------------------------------------------- rules over floats

NUMBERS = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.25, 3.0, 1e30, -1e-30, 1e-45, 65504.0]
NUMBERS += [math.inf, -math.inf, math.nan]
FLOATS = [dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16]
UNARY = [Ops.NEG, Ops.SQRT, Ops.RECIPROCAL, Ops.TRUNC]
BINARY = [Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.MAX]
COMPARE = [Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ]
PAIRS = np.array(np.meshgrid(NUMBERS, NUMBERS)).reshape(2, -1)


@st.composite
def float_expressions(draw, binary=tuple(BINARY)):
    """An expression over two arrays that hold all pairs of NUMBERS, and constants of them."""
    dtype = draw(st.sampled_from(FLOATS))
    leaves = [UOp(Ops.BUFFER, dtype, (), BufferArg(k, PAIRS.shape[1:], "TEST")) for k in (0, 1)]
    made = [*leaves]

    def one():
        if draw(st.booleans()):
            return draw(st.sampled_from(made))
        return UOp.const(truncate[dtype](draw(st.sampled_from(NUMBERS))), dtype)

    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["unary", "binary", "where", "cast"]))
        if kind == "unary":
            made.append(one().alu(draw(st.sampled_from(UNARY))))
        elif kind == "binary":
            made.append(one().alu(draw(st.sampled_from(binary)), one()))
        elif kind == "where":
            condition = one().alu(draw(st.sampled_from(COMPARE)), one())
            made.append(condition.alu(Ops.WHERE, one(), one()))
        else:
            made.append(one().cast(draw(st.sampled_from(FLOATS))).cast(dtype))
    return made[-1], leaves


@settings(max_examples=examples(20_000, 150), deadline=None)
@given(float_expressions())
def test_simplified_floats_have_the_bits_of_what_they_were(drawn):
    e, leaves = drawn
    memory = numbers_in(leaves)
    assert_same_bits(evaluate(e, memory), evaluate(simplify(e), memory), e)


def numbers_in(leaves):
    with np.errstate(all="ignore"):
        return {
            leaf: column.astype(_to_np_dtype(leaf.dtype))
            for leaf, column in zip(leaves, PAIRS, strict=True)
        }


def assert_same_bits(before, after, e):
    with np.errstate(all="ignore"):
        before, after = before.astype(np.float64), after.astype(np.float64)
    same = (before == after) & (np.signbit(before) == np.signbit(after))
    assert (same | (np.isnan(before) & np.isnan(after))).all(), e


# MAX of two zeros gives one of them, and which is not said
ORDERED = tuple(op for op in BINARY if op is not Ops.MAX)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@settings(max_examples=examples(1000, 12), deadline=None)
@given(drawn=float_expressions(ORDERED))
def test_devices_compute_the_bits_of_drawn_expressions(drawn, device):
    e, leaves = drawn
    memory = numbers_in(leaves)
    tensors = {leaf: Tensor(x, device=device).realize().uop for leaf, x in memory.items()}
    got = Tensor(e.substitute(tensors) if e not in tensors else tensors[e])
    if not set(tensors.values()) & set(got.uop.postorder()):
        return  # of constants alone: the test above
    assert_same_bits(evaluate(e, memory), got.numpy(), e)


def test_no_rule_takes_a_float_for_an_integer():
    x = UOp(Ops.BUFFER, dtypes.float32, (), BufferArg(0, (4,), "TEST"))
    for e in (x - x, x * 0.0, x / x, x + 0.0, x.alu(Ops.CMPEQ, x), x.alu(Ops.CMPNE, x)):
        assert simplify(e) is e
    for e in (x * 1.0, x / 1.0, x - 0.0, x + -0.0):
        assert simplify(e) is x


def test_sums_of_nothing():
    empty = Tensor.ones(0)
    results = [getattr(empty, name)().item() for name in ("sum", "prod", "max", "min")]
    assert results == [0.0, 1.0, -math.inf, math.inf] and math.isnan(empty.mean().item())


def test_comparisons_with_numbers_that_the_dtype_can_not_hold():
    byte = Tensor(np.array([0, 255], np.uint8))
    for op, holds in ((operator.lt, False), (operator.gt, True), (operator.eq, False)):
        assert op(byte, -1).tolist() == [holds] * 2
    assert (Tensor([2**31 - 1]) < 2**40).tolist() == [True]
    assert (Tensor([-5]) >= -(2**40)).tolist() == [True]
