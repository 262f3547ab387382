"""The PYTHON device: what each operation means, for every dtype, and how programs run."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import CASES, TARGET, const, out, param, sink
from linear import Writer, at, end, local, program_of, threads
from linear import param as memory
from tiny.codegen import lower
from tiny.codegen.program import LinearProgram, Phase
from tiny.device import Buffer, Device
from tiny.dtype import DType, _to_np_dtype, dtypes
from tiny.runtime.python import interpret
from tiny.uop.ops import Ops, UOp

INT32_MIN, INT64_MIN, INT64_MAX = -(2**31), -(2**63), 2**63 - 1
INF, NAN = math.inf, math.nan


def compute(op: Ops, result: DType, *operands: tuple[object, DType]) -> object:
    """One operation on constants, run as a program of its own."""
    src = tuple([UOp(Ops.CONST, d, (), v) for v, d in operands])
    memory = UOp.placeholder((1,), result, 0)
    address = UOp(Ops.INDEX, result, (memory, const(0)))
    value = UOp(op, result, src)
    uops = (*src, memory, const(0), value, address, UOp(Ops.STORE, dtypes.void, (address, value)))
    array = np.zeros(1, _to_np_dtype(result))
    program = LinearProgram("one", (Phase(uops),), lower(CASES["arange"]().sink, TARGET).params, ())
    interpret(program, [array], {})
    return array[0]


def same(a: object, b: object) -> bool:
    """Equal, NaN as well, and zeros of one sign."""
    if isinstance(b, float) and math.isnan(b):
        return math.isnan(float(a))  # type: ignore[arg-type]  # a number
    return a == b and math.copysign(1, float(a)) == math.copysign(1, float(b))  # type: ignore[arg-type]  # numbers


# ---------------------------------------------------------------- integers


@pytest.mark.parametrize(
    "op, a, b, expected",
    [
        (Ops.FLOORDIV, 7, 2, 3),
        (Ops.FLOORDIV, -7, 2, -4),
        (Ops.FLOORDIV, 7, -2, -4),
        (Ops.FLOORDIV, -7, -2, 3),
        (Ops.FLOORDIV, 7, 0, 0),
        (Ops.FLOORDIV, INT32_MIN, -1, INT32_MIN),
        (Ops.FLOORDIV, 6, -1, -6),
        (Ops.FLOORMOD, 7, 3, 1),
        (Ops.FLOORMOD, -7, 3, 2),
        (Ops.FLOORMOD, 7, -3, -2),
        (Ops.FLOORMOD, 7, 0, 0),
        (Ops.FLOORMOD, INT32_MIN, -1, 0),
        (Ops.CDIV, -7, 2, -3),
        (Ops.CDIV, 7, -2, -3),
        (Ops.CDIV, -8, 2, -4),
        (Ops.CDIV, 5, 0, 0),
        (Ops.CDIV, INT32_MIN, -1, INT32_MIN),
        (Ops.CMOD, -7, 2, -1),
        (Ops.CMOD, 7, -2, 1),
        (Ops.CMOD, 5, 0, 0),
        (Ops.CMOD, INT32_MIN, -1, 0),
        (Ops.SHL, 3, 4, 48),
        (Ops.SHL, 1, 31, INT32_MIN),
        (Ops.SHL, 3, 32, 0),
        (Ops.SHL, 3, -1, 0),
        (Ops.SHR, -9, 1, -5),
        (Ops.SHR, -9, 40, -1),
        (Ops.SHR, 9, 32, 0),
        (Ops.ADD, 2**31 - 1, 1, INT32_MIN),
        (Ops.MUL, 2**30, 6, INT32_MIN),
        (Ops.SUB, INT32_MIN, 1, 2**31 - 1),
        (Ops.MAX, -3, 2, 2),
        (Ops.XOR, 6, 3, 5),
        (Ops.AND, -2, 7, 6),
        (Ops.OR, 4, 1, 5),
    ],
)
def test_int32_arithmetic(op, a, b, expected):
    assert compute(op, dtypes.int32, (a, dtypes.int32), (b, dtypes.int32)) == expected


@pytest.mark.parametrize("dtype", dtypes.ints)
def test_division_agrees_with_python_for_every_width(dtype):
    for a in (dtype.min, dtype.min + 1, 0, 1, 7, dtype.max):
        for b in (1, 2, 3, dtype.max, dtype.min):
            if b == 0:
                continue
            truncated = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            found = [
                compute(op, dtype, (a, dtype), (b, dtype))
                for op in (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD)
            ]
            assert found == [a // b, a % b, truncated, a - truncated * b]


def test_unsigned_shifts_and_wrapping():
    u64 = dtypes.uint64
    assert compute(Ops.SHR, u64, (2**64 - 1, u64), (63, u64)) == 1
    assert compute(Ops.SHR, u64, (2**64 - 1, u64), (64, u64)) == 0
    assert compute(Ops.SHR, u64, (2**64 - 1, u64), (2**63, u64)) == 0
    assert compute(Ops.SUB, dtypes.uint8, (3, dtypes.uint8), (5, dtypes.uint8)) == 254
    assert compute(Ops.NEG, dtypes.int8, (-128, dtypes.int8)) == -128


# ---------------------------------------------------------------- floats


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
@pytest.mark.parametrize(
    "op, a, b, expected",
    [
        (Ops.MAX, NAN, 1.0, NAN),
        (Ops.MAX, 1.0, NAN, NAN),
        (Ops.MAX, -0.0, 0.0, 0.0),
        (Ops.MAX, 0.0, -0.0, -0.0),
        (Ops.MAX, -INF, 2.0, 2.0),
        (Ops.FDIV, 1.0, 0.0, INF),
        (Ops.FDIV, 0.0, 0.0, NAN),
        (Ops.ADD, INF, -INF, NAN),
        (Ops.MUL, 0.0, -1.0, -0.0),
    ],
)
def test_float_arithmetic(dtype, op, a, b, expected):
    assert same(compute(op, dtype, (a, dtype), (b, dtype)), expected)


@pytest.mark.parametrize(
    "op, a, b, expected",
    [
        (Ops.CMPLT, NAN, 1.0, False),
        (Ops.CMPLT, 1.0, NAN, False),
        (Ops.CMPNE, NAN, NAN, True),
        (Ops.CMPEQ, NAN, NAN, False),
        (Ops.CMPEQ, 0.0, -0.0, True),
    ],
)
def test_comparisons_with_nan(op, a, b, expected):
    f = dtypes.float32
    assert compute(op, dtypes.bool, (a, f), (b, f)) == expected


@pytest.mark.parametrize(
    "op, x, expected",
    [
        (Ops.EXP2, 3.0, 8.0),
        (Ops.LOG2, 8.0, 3.0),
        (Ops.LOG2, 0.0, -INF),
        (Ops.SIN, 0.0, 0.0),
        (Ops.SQRT, 4.0, 2.0),
        (Ops.SQRT, -1.0, NAN),
        (Ops.RECIPROCAL, 0.0, INF),
        (Ops.TRUNC, -1.7, -1.0),
        (Ops.TRUNC, 0.5, 0.0),
        (Ops.NEG, 0.0, -0.0),
    ],
)
def test_functions_of_one_float(op, x, expected):
    assert same(compute(op, dtypes.float32, (x, dtypes.float32)), expected)


def fused(a: float, b: float, c: float, dtype: DType) -> object:
    return compute(Ops.MULACC, dtype, (a, dtype), (b, dtype), (c, dtype))


@given(*[st.floats(-1e10, 1e10, width=32)] * 3)
def test_a_fused_float32_is_rounded_once(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    # a float32 is nearest if no neighbour is nearer
    found = np.float32(fused(a, b, c, dtypes.float32))
    away = abs(Fraction(float(found)) - exact)
    for side in (-np.inf, np.inf):
        neighbour = np.nextafter(found, np.float32(side))
        other = abs(Fraction(float(neighbour)) - exact)
        assert away < other or (away == other and not found.view(np.uint32) & 1)


@given(*[st.floats(-1e10, 1e10)] * 3)
def test_a_fused_float64_is_rounded_once(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    assert fused(a, b, c, dtypes.float64) == float(exact)


def test_fused_special_values():
    f = dtypes.float32
    assert same(fused(INF, 0.0, 1.0, f), NAN)
    assert same(fused(1.0, INF, -INF, f), NAN)
    assert same(fused(3e38, 10.0, -INF, f), -INF)
    assert same(fused(0.0, -1.0, -0.0, f), -0.0)
    assert same(fused(1e200, 1e200, 0.0, dtypes.float64), INF)
    # where rounding to float64 first gives another float32: just above the middle of two
    a = 1.0 + 2.0**-12
    assert fused(a, a, 2.0**-60, f) == 1.0 + 2.0**-11 + 2.0**-23
    assert fused(a, a, -(2.0**-60), f) == 1.0 + 2.0**-11
    assert fused(-a, a, -(2.0**-60), f) == -(1.0 + 2.0**-11 + 2.0**-23)


# ---------------------------------------------------------------- conversions


@pytest.mark.parametrize("source", [dtypes.float32, dtypes.float64])
@pytest.mark.parametrize(
    "x, dtype, expected",
    [
        (2.9, dtypes.int32, 2),
        (-2.9, dtypes.int32, -2),
        (NAN, dtypes.int32, 0),
        (1e20, dtypes.int32, 2**31 - 1),
        (-1e20, dtypes.int32, INT32_MIN),
        (INF, dtypes.int64, INT64_MAX),
        (-INF, dtypes.int64, INT64_MIN),
        (2.0**63, dtypes.int64, INT64_MAX),
        (300.0, dtypes.int8, 44),
        (-129.0, dtypes.int8, 127),
        (1e20, dtypes.int8, -1),  # the largest int32, wrapped
        (-1.0, dtypes.uint8, 255),
        (1e20, dtypes.uint16, 65535),
        (-1.0, dtypes.uint32, 2**32 - 1),
        (2.0**32 + 4096, dtypes.uint32, 4096),
        (1e30, dtypes.uint32, 2**32 - 1),
        (-1.0, dtypes.uint64, 2**64 - 1),
        (-1e30, dtypes.uint64, 2**63),
        (2.0**63, dtypes.uint64, 2**63),
        (1e30, dtypes.uint64, 2**64 - 1),
        (NAN, dtypes.uint64, 0),
        (0.5, dtypes.bool, True),
        (NAN, dtypes.bool, True),
        (-0.0, dtypes.bool, False),
    ],
)
def test_floats_become_integers(source, x, dtype, expected):
    assert compute(Ops.CAST, dtype, (x, source)) == expected


def test_integers_wrap_and_become_floats():
    assert compute(Ops.CAST, dtypes.int8, (200, dtypes.int32)) == -56
    assert compute(Ops.CAST, dtypes.uint64, (-1, dtypes.int8)) == 2**64 - 1
    assert compute(Ops.CAST, dtypes.bool, (256, dtypes.int32)) == True  # noqa: E712  # NumPy's
    assert compute(Ops.CAST, dtypes.float32, (2**24 + 1, dtypes.int64)) == 2.0**24
    assert compute(Ops.CAST, dtypes.float32, (True, dtypes.bool)) == 1.0


def test_bits_are_kept_by_bitcast():
    assert compute(Ops.BITCAST, dtypes.uint32, (1.0, dtypes.float32)) == 0x3F800000
    assert compute(Ops.BITCAST, dtypes.float64, (-(2**63), dtypes.int64)) == 0.0


# ---------------------------------------------------------------- running


def test_an_access_out_of_bounds_raises():
    i = out(4, 0)
    ast = sink(param(0, 4).index(i).store(param(1, 8).index(i + 1)))
    program = lower(ast, TARGET, ())
    interpret(program, [np.zeros(4, np.float32), np.zeros(8, np.float32)], {})
    with pytest.raises(IndexError, match="buffer 1, which has 3"):
        interpret(program, [np.zeros(4, np.float32), np.zeros(3, np.float32)], {})
    with pytest.raises(IndexError, match="buffer 0, which has 2"):
        interpret(program, [np.zeros(2, np.float32), np.zeros(8, np.float32)], {})


def test_scratch_memory_that_was_not_written_shows():
    """Each step of a THREAD loop begins with memory that reads as NaN, whatever others wrote."""
    to, piece = memory(0, dtypes.float32, 9), local(64, dtypes.float32, 1)
    w = Writer()
    w.add(to, piece, UOp.const(1.0, dtypes.float32))
    i = w.add(threads(9, 0))
    w.add(at(to, i).store(at(piece, 0).load()), at(piece, 0).store(UOp.const(1.0, dtypes.float32)))
    w.add(end(i))
    found = np.zeros(9, np.float32)
    interpret(w.program(), [found], {})
    assert np.isnan(found).all()


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64])
def test_memory_of_all_threads_is_nan_at_first(dtype):
    to, piece = memory(0, dtype, 3), local(0, dtype, 3, shared=True)
    w = Writer()
    w.add(to, piece, at(to, 0).store(at(piece, 0).load(lanes=3)))
    found = np.zeros(3, _to_np_dtype(dtype))
    interpret(w.program(), [found], {})
    assert np.isnan(found.astype(np.float64)).all()


def test_steps_of_threads_run_in_a_mixed_order_each_once():
    to, count = memory(0, dtypes.int64, 20), local(0, dtypes.int64, 1, shared=True)
    one = UOp.const(1, dtypes.int64)
    first, second = Writer(), Writer()
    first.add(count, at(count, 0).store(one))
    second.add(to, count, one)
    i = second.add(threads(20, 0))
    now = at(count, 0).load()
    second.add(at(to, i).store(now), at(count, 0).store(now + one), end(i))
    found = np.zeros(20, np.int64)
    interpret(program_of([first.phase(), second.phase()]), [found], {})
    assert sorted(found) == list(range(1, 21))
    assert list(found) != sorted(found)


@pytest.mark.parametrize("offset, size", [(64, 5), (0, 30)])
def test_a_piece_beyond_the_scratch_memory_raises(offset, size):
    piece = local(offset, dtypes.float32, size)
    w = Writer()
    w.add(piece, at(piece, 0).store(UOp.const(1.0, dtypes.float32)))
    program = replace(w.program(), scratch_nbytes=80)
    with pytest.raises(IndexError, match="of scratch memory, which has 80"):
        interpret(program, [], {})


def test_a_missing_variable_raises():
    case = CASES["symbolic_size"]()
    memory = [np.array(a).reshape(-1).copy() for a in case.before]
    with pytest.raises(KeyError, match="n"):
        interpret(lower(case.sink, TARGET), memory, {})


@pytest.mark.parametrize("name", CASES)
def test_the_device_runs_kernels(name):
    case, device = CASES[name](), Device["PYTHON"]
    program = lower(case.sink, device.target)
    source = device.renderer.render(program)
    kernel = device.load(program.name, device.compiler.compile(source, program.name), program)
    buffers = [
        Buffer("PYTHON", a.size, p.dtype).allocate().copyin(np.ascontiguousarray(a).tobytes())
        for a, p in zip(map(np.asarray, case.before), program.params, strict=True)
    ]
    values = case.variables or {}
    kernel(tuple(b.memory for b in buffers), tuple(values[v.arg.name] for v in program.variables))
    for buffer, expected in zip(buffers, case.after, strict=True):
        expected = np.asarray(expected).reshape(-1)
        np.testing.assert_allclose(
            buffer.numpy().astype(np.float64), expected.astype(np.float64), rtol=case.rtol
        )


def test_the_source_is_the_program_as_text():
    program = lower(CASES["matmul"]().sink, TARGET, ())
    source = Device["PYTHON"].renderer.render(program)
    assert len(source.splitlines()) >= len([u for u in program.uops if u.op is not Ops.CONST])
    assert "MULACC" in source
