"""The LLVM renderer: each operation, dtype and number of lanes against NumPy."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
from fractions import Fraction

import numpy as np
import pytest

from conftest import FULL, examples
from linear import (
    Writer,
    at,
    const,
    elementwise,
    end,
    load_program,
    local,
    param,
    program_of,
    run_program,
    splat,
    stack,
    threads,
)
from tiny._core.memory import HostMemory
from tiny.codegen import LinearProgram, Phase
from tiny.device import CompileError, Device
from tiny.dtype import _to_np_dtype, dtypes
from tiny.helpers import Context
from tiny.runtime.cpu import host_arch, undefined_symbols
from tiny.uop.ops import AxisType, Ops, RegArg, UOp
from tiny.uop.structure import check_program

LANES = (1, 4, 16, 7, 20)
INTS = (*(getattr(dtypes, f"int{b}") for b in (8, 16, 32, 64)),
        *(getattr(dtypes, f"uint{b}") for b in (8, 16, 32, 64)))  # fmt: skip
FLOATS = (dtypes.float32, dtypes.float64)

# what code may be generated for: all that the host has, and less
NARROWED = ["CPU"]
if host_arch() == "x86_64":
    NARROWED += ["CPU:LLVM:x86_64,sse2", "CPU:LLVM:x86_64,-avx512f"]


TARGETS = [(dev, lanes) for dev in NARROWED for lanes in (LANES if dev == "CPU" else (1, 7, 16))]


@pytest.fixture
def cpu():
    return Device["CPU"]


def np_type(dtype) -> np.dtype:
    return np.dtype(_to_np_dtype(dtype))


def edge_values(dtype) -> np.ndarray:
    """Corners of a dtype, and numbers in between."""
    rng = np.random.default_rng(0)
    kind = np_type(dtype)
    if dtype is dtypes.bool:
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(kind)
        corners = [info.min, info.min + 1, 0, 1, 2, 3, 7, 8, info.max - 1, info.max]
        corners += [-1, -2, -7] if dtype.kind == "i" else []
        drawn = rng.integers(info.min, info.max, 8, kind, endpoint=True)
        return np.concatenate([np.array(corners, kind), drawn])
    info = np.finfo(kind)
    corners = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5]
    corners += [info.max, info.min, info.tiny, info.smallest_subnormal, info.eps]
    drawn = np.concatenate([rng.standard_normal(5), rng.standard_normal(5) * 1e6])
    return np.concatenate([np.array(corners), drawn]).astype(kind)


def pairs(dtype) -> tuple[np.ndarray, np.ndarray]:
    """Every value beside every other."""
    values = edge_values(dtype)
    a, b = np.meshgrid(values, values, indexing="ij")
    return a.reshape(-1).copy(), b.reshape(-1).copy()


def assert_bits(got: np.ndarray, expected: np.ndarray) -> None:
    """The same values, the signs of zeros too; all NaN are one."""
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
    if got.dtype.kind == "f":
        finite = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got)[finite], np.signbit(expected)[finite])


def check(function, inputs, expected, dtype, lanes, dev="CPU") -> None:
    with Context(DEV=dev):
        device = Device["CPU"]
        program = elementwise(function, inputs, dtype, lanes)
        arrays = [np.zeros(len(inputs[0]), np_type(dtype)), *inputs]
        got = run_program(device, program, arrays)[0]
    assert_bits(got, expected.astype(np_type(dtype), copy=False))


# ---------------------------------------------------------------- references


def floor_divide(a: int, b: int) -> int:
    return a // b if b else 0


def floor_modulo(a: int, b: int) -> int:
    return a % b if b else 0


def cut_divide(a: int, b: int) -> int:
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else 0


def cut_modulo(a: int, b: int) -> int:
    return a - cut_divide(a, b) * b if b else 0


def exact(function, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """An integer function by Python's integers, wrapped."""
    bits = 8 * a.dtype.itemsize
    mask = (1 << bits) - 1
    values = [function(int(x), int(y)) & mask for x, y in zip(a, b)]
    return np.array(values, np.uint64).astype(f"u{a.dtype.itemsize}").view(a.dtype)


def shift_left(a: int, b: int, width: int) -> int:
    return a << b if 0 <= b < width else 0


def shift_right(a: int, b: int, width: int) -> int:
    return a >> (b if 0 <= b < width else width)


def largest(a, b):
    return np.where((a > b) | np.isnan(a), a, b)


ARITHMETIC = {
    Ops.ADD: lambda a, b: a + b,
    Ops.SUB: lambda a, b: a - b,
    Ops.MUL: lambda a, b: a * b,
}
DIVISION = {
    Ops.FLOORDIV: floor_divide,
    Ops.FLOORMOD: floor_modulo,
    Ops.CDIV: cut_divide,
    Ops.CMOD: cut_modulo,
}
BITWISE = {
    Ops.XOR: np.bitwise_xor,
    Ops.OR: np.bitwise_or,
    Ops.AND: np.bitwise_and,
}
COMPARISON = {Ops.CMPLT: np.less, Ops.CMPNE: np.not_equal, Ops.CMPEQ: np.equal}


# ---------------------------------------------------------------- arithmetic


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_arithmetic_wraps_and_division_is_total(dtype, lanes):
    a, b = pairs(dtype)
    with np.errstate(all="ignore"):
        for op, reference in ARITHMETIC.items():
            check(lambda x, y, op=op: x.alu(op, y), (a, b), reference(a, b), dtype, lanes)
        for op, reference in DIVISION.items():
            expected = exact(reference, a, b)
            check(lambda x, y, op=op: x.alu(op, y), (a, b), expected, dtype, lanes)
        check(lambda x, y: x.alu(Ops.MAX, y), (a, b), np.maximum(a, b), dtype, lanes)
        check(lambda x: x.alu(Ops.NEG), (a,), -a, dtype, lanes)


@pytest.mark.parametrize("divisor", [1, -1, 0, 2, 7, -7, 128, -128])
@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.int32, dtypes.int64], ids=str)
def test_division_by_a_constant_is_what_division_is(dtype, divisor):
    a = edge_values(dtype)
    if not np.iinfo(a.dtype).min <= divisor <= np.iinfo(a.dtype).max:
        return
    for op, reference in DIVISION.items():
        for lanes in (1, 16):
            c = splat(UOp.const(divisor, dtype), lanes)
            expected = exact(reference, a, np.full_like(a, divisor))
            check(lambda x, op=op, c=c: x.alu(op, c), (a,), expected, dtype, lanes)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_shifts_by_any_amount(dtype, lanes):
    a, b = pairs(dtype)
    width = dtype.bitsize
    amounts = np.array([0, 1, 3, width - 1, width, width + 1], np_type(dtype))
    a = np.concatenate([a, np.repeat(edge_values(dtype), len(amounts))])
    b = np.concatenate([b, np.tile(amounts, len(edge_values(dtype)))])
    left = exact(lambda x, y: shift_left(x, y, width), a, b)
    right = exact(lambda x, y: shift_right(x, y, width), a, b)
    check(lambda x, y: x.alu(Ops.SHL, y), (a, b), left, dtype, lanes)
    check(lambda x, y: x.alu(Ops.SHR, y), (a, b), right, dtype, lanes)
    for amount in (0, width - 1, width):
        if amount > dtype.max:
            continue
        c = splat(UOp.const(amount, dtype), lanes)
        expected = exact(lambda x, y: shift_right(x, y, width), a, np.full_like(a, amount))
        check(lambda x, c=c: x.alu(Ops.SHR, c), (a,), expected, dtype, lanes)


@pytest.mark.parametrize("dev, lanes", TARGETS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_arithmetic(dtype, lanes, dev):
    a, b = pairs(dtype)
    one = edge_values(dtype)
    with np.errstate(all="ignore"):
        for op, reference in {**ARITHMETIC, Ops.FDIV: np.divide, Ops.MAX: largest}.items():
            check(lambda x, y, op=op: x.alu(op, y), (a, b), reference(a, b), dtype, lanes, dev)
        unary = {
            Ops.NEG: np.negative,
            Ops.SQRT: np.sqrt,
            Ops.TRUNC: np.trunc,
            Ops.RECIPROCAL: lambda x: 1 / x,
        }
        for op, reference in unary.items():
            expected = reference(one).astype(one.dtype)
            check(lambda x, op=op: x.alu(op), (one,), expected, dtype, lanes, dev)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", (dtypes.bool, *INTS, *FLOATS), ids=str)
def test_comparisons_and_where(dtype, lanes):
    a, b = pairs(dtype)
    for op, reference in COMPARISON.items():
        expected = reference(a, b)
        check(lambda x, y, op=op: x.alu(op, y), (a, b), expected, dtypes.bool, lanes)
    expected = np.where(a < b, a, b)
    check(lambda x, y: (x < y).where(x, y), (a, b), expected, dtype, lanes)


@pytest.mark.parametrize("dev", NARROWED)
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_what_is_counted_where_a_mask_says_so(dtype, dev):
    a, b = pairs(dtype)
    less = (a < b).astype(a.dtype)

    def either_side(x, y):
        return (x < y).cast(dtype).alu(Ops.ADD, x)

    def of_two(x, y):
        return (x < y).cast(dtype).alu(Ops.ADD, y.ne(x).cast(dtype))

    def used_twice(x, y):
        one = (x < y).cast(dtype)
        return x.alu(Ops.ADD, one).alu(Ops.MUL, one)

    for lanes in (1, 7, 16):
        check(either_side, (a, b), a + less, dtype, lanes, dev)
        check(of_two, (a, b), less + (a != b).astype(a.dtype), dtype, lanes, dev)
        check(used_twice, (a, b), (a + less) * less, dtype, lanes, dev)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", (dtypes.bool, *INTS), ids=str)
def test_bitwise_operations(dtype, lanes):
    a, b = pairs(dtype)
    for op, reference in BITWISE.items():
        check(lambda x, y, op=op: x.alu(op, y), (a, b), reference(a, b), dtype, lanes)


@pytest.mark.parametrize("lanes", LANES)
def test_bool_arithmetic_is_logic(lanes):
    a, b = pairs(dtypes.bool)
    for op, expected in {Ops.ADD: a | b, Ops.MUL: a & b, Ops.MAX: a | b}.items():
        check(lambda x, y, op=op: x.alu(op, y), (a, b), expected, dtypes.bool, lanes)


@pytest.mark.skipif(
    Ops.MULACC not in Device["CPU"].target.native_ops, reason="no fused multiply-add here"
)
@pytest.mark.parametrize("lanes", (1, 16))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_multiply_add_rounds_once(dtype, lanes):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 100)).astype(np_type(dtype))
    c = -(a * b)  # what is left is the error of the product
    exact_values = [
        float(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
        for x, y, z in zip(a, b, c)
    ]
    assert any(exact_values)
    expected = np.array(exact_values).astype(np_type(dtype))
    check(lambda x, y, z: x.alu(Ops.MULACC, y, z), (a, b, c), expected, dtype, lanes)


# ---------------------------------------------------------------- conversions


def converted(a: np.ndarray, dtype) -> np.ndarray:
    """What a conversion gives, by Python's numbers."""
    if dtype is dtypes.bool:
        return a != 0
    kind = np_type(dtype)
    if a.dtype.kind != "f" or kind.kind == "f":
        with np.errstate(all="ignore"):
            return a.astype(kind)
    return np.array([_whole(float(x), dtype) for x in a], np.uint64).astype(
        f"u{kind.itemsize}"
    ).view(kind)  # fmt: skip


def _whole(x: float, dtype) -> int:
    if math.isnan(x):
        return 0
    bits = 32 if dtype.bitsize < 32 or dtype is dtypes.int32 else 64
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if dtype is dtypes.uint64:
        high = (1 << 64) - 1
    clipped = high if x >= high else low if x <= low else int(x)
    return clipped & ((1 << dtype.bitsize) - 1)


CORNERS = [2.0**k * s + d for k in (7, 8, 15, 16, 31, 32, 63, 64) for s in (1, -1)
           for d in (-1, 0, 1)]  # fmt: skip


@pytest.mark.parametrize("dev, lanes", TARGETS)
@pytest.mark.parametrize("source", (dtypes.bool, *INTS, *FLOATS), ids=str)
def test_conversions(source, lanes, dev):
    a = edge_values(source)
    if source.kind == "f":
        a = np.concatenate([a, np.array(CORNERS, np_type(source)), [1.9, -1.9, 300.7, -300.7]])
        a = a.astype(np_type(source))
    for dtype in (dtypes.bool, *INTS, *FLOATS):
        if dtype is not source:
            check(lambda x, d=dtype: x.cast(d), (a,), converted(a, dtype), dtype, lanes, dev)


@pytest.mark.skipif(
    not Device["CPU"].target.features & {"f16c", "fp16", "neon"}, reason="no native conversion"
)
@pytest.mark.parametrize("lanes", LANES)
def test_halves_are_converted(lanes):
    codes = np.arange(1 << 16).astype(np.uint16).view(np.float16)
    wide = codes.astype(np.float32)
    check(lambda x: x.cast(dtypes.float32), (codes,), wide, dtypes.float32, lanes)
    with np.errstate(all="ignore"):
        near = np.concatenate([wide, np.nextafter(wide, np.float32(np.inf)), wide * 1.0005])
        expected = near.astype(np.float16)
    check(lambda x: x.cast(dtypes.float16), (near,), expected, dtypes.float16, lanes)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(
    "a, b",
    [
        (dtypes.float32, dtypes.int32),
        (dtypes.float64, dtypes.uint64),
        (dtypes.int16, dtypes.uint16),
        (dtypes.bfloat16, dtypes.uint16),
        (dtypes.float16, dtypes.int16),
        (dtypes.fp8e4m3, dtypes.uint8),
        (dtypes.fp8e5m2fnuz, dtypes.int8),
    ],
    ids=str,
)
def test_bits_read_as_another_dtype(a, b, lanes):
    rng = np.random.default_rng(2)
    raw = rng.integers(0, 256, 50 * a.itemsize).astype(np.uint8)
    values, bits = raw.view(np_type(a)), raw.view(np_type(b))
    check(lambda x: x.bitcast(b), (values,), bits, b, lanes)
    program = elementwise(lambda x: x.bitcast(a), (bits,), a, lanes)
    got = run_program(Device["CPU"], program, [np.zeros(50, np_type(a)), bits])[0]
    np.testing.assert_array_equal(got.view(np.uint8), raw)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(
    "dtype", [dtypes.float16, dtypes.bfloat16, *dtypes.fp8s, dtypes.bool], ids=str
)
def test_narrow_values_are_moved_as_they_are(dtype, lanes):
    codes = np.arange(256 if dtype.itemsize == 1 else 1 << 16)
    codes = codes.astype(f"u{dtype.itemsize}").view(np_type(dtype))
    if dtype is dtypes.bool:
        codes = np.array([True, False] * 13)
    condition = np.arange(len(codes)) % 3 == 0
    zero = splat(UOp.const(dtype.const(0), dtype), lanes)
    program = elementwise(lambda c, x: c.where(x, zero), (condition, codes), dtype, lanes)
    got = run_program(Device["CPU"], program, [np.zeros_like(codes), condition, codes])[0]
    expected = np.where(condition, codes, np.zeros_like(codes))
    unsigned = f"u{dtype.itemsize}"
    np.testing.assert_array_equal(got.view(unsigned), expected.view(unsigned))


def test_constants_are_exact(cpu):
    values = [
        (math.pi, dtypes.float32), (5e-324, dtypes.float64), (-0.0, dtypes.float32),
        (math.inf, dtypes.float64), (math.nan, dtypes.float32), (0.1, dtypes.float64),
        (2**64 - 1, dtypes.uint64), (-(2**63), dtypes.int64), (True, dtypes.bool),
        (1.5, dtypes.float16), (-2.0, dtypes.bfloat16), (0.75, dtypes.fp8e4m3),
    ]  # fmt: skip
    for value, dtype in values:
        for lanes in (1, 4):
            w = Writer()
            to = param(0, dtype, lanes)
            w.add(to, at(to, 0).store(splat(UOp.const(value, dtype), lanes)))
            got = run_program(cpu, w.program(), [np.zeros(lanes, np_type(dtype))])[0]
            expected = np.full(lanes, value).astype(np_type(dtype))
            np.testing.assert_array_equal(got, expected)
            if got.dtype.kind == "f":
                np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


# ---------------------------------------------------------------- lanes and memory


@pytest.mark.parametrize("lanes", (4, 16, 7, 20))
def test_lanes_are_built_and_taken_apart(cpu, lanes):
    x = np.arange(lanes, dtype=np.float32)
    w = Writer()
    to, source = param(0, dtypes.float32, lanes), param(1, dtypes.float32, lanes)
    vector = at(source, 0).load(lanes=lanes)
    ends = [UOp(Ops.GEP, dtypes.float32, (vector,), k) for k in reversed(range(lanes))]
    ends[1] = UOp.const(42.0, dtypes.float32)
    w.add(to, source, at(to, 0).store(stack(ends)))
    expected = x[::-1].copy()
    expected[1] = 42
    np.testing.assert_array_equal(run_program(cpu, w.program(), [x * 0, x])[0], expected)


def test_a_scalar_operand_is_spread_over_lanes(cpu):
    x = np.arange(8, dtype=np.float32)
    w = Writer()
    to, source = param(0, dtypes.float32, 8), param(1, dtypes.float32, 8)
    vector = at(source, 0).load(lanes=8)
    first = at(source, 3).load()
    w.add(to, source, at(to, 0).store(vector + splat(first, 8)))
    np.testing.assert_array_equal(run_program(cpu, w.program(), [x * 0, x])[0], x + 3)


@pytest.mark.parametrize("dev, lanes", TARGETS)
@pytest.mark.parametrize(
    "dtype",
    [dtypes.float32, dtypes.int8, dtypes.bool, dtypes.bfloat16, dtypes.float64],
    ids=str,
)
def test_masked_lanes_are_zero_and_their_memory_is_left_alone(dtype, lanes, dev):
    rng = np.random.default_rng(3)
    on = rng.integers(0, 2, lanes).astype(bool)
    source = np.ones(lanes).astype(np_type(dtype))
    before = np.zeros(2 * lanes).astype(np_type(dtype))
    w = Writer()
    to, gate_in, x_in = (param(0, dtype, 2 * lanes), param(1, dtypes.bool, lanes),
                         param(2, dtype, lanes))  # fmt: skip
    gate = at(gate_in, 0).load(lanes=lanes)
    x = at(x_in, 0).load(gate, lanes)
    one = splat(UOp.const(dtype.const(1), dtype), lanes)
    w.add(to, gate_in, x_in, at(to, 0).store(x), at(to, lanes).store(one, gate))
    with Context(DEV=dev):
        got = run_program(Device["CPU"], w.program(), [before + before, on, source])[0]
    np.testing.assert_array_equal(got.astype(np.float64), np.concatenate([on, on]))


@pytest.mark.parametrize("dev", NARROWED)
@pytest.mark.parametrize("lanes", (1, 3, 8, 64))
@pytest.mark.parametrize("on", (True, False))
@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.bool, dtypes.uint8, dtypes.float64))
def test_a_scalar_gate_holds_for_all_lanes(dtype, on, lanes, dev):
    x = np.arange(1, 1 + lanes).astype(np_type(dtype))
    w = Writer()
    to, gate_in, x_in = (param(0, dtype, 2 * lanes), param(1, dtypes.bool, 1),
                         param(2, dtype, lanes))  # fmt: skip
    gate = at(gate_in, 0).load()
    far = UOp.const(1 << 60, dtypes.index)  # not an address to touch
    offset = gate.where(UOp.const(0, dtypes.index), far)
    value = at(x_in, offset).load(gate, lanes)
    w.add(to, gate_in, x_in, at(to, 0).store(value))
    w.add(at(to, lanes + offset).store(splat(UOp.const(1, dtype), lanes), gate))
    arrays = [np.zeros(2 * lanes, x.dtype), np.array([on]), x]
    with Context(DEV=dev):
        got = run_program(Device["CPU"], w.program(), arrays)[0]
    np.testing.assert_array_equal(got, np.concatenate([x * on, np.full(lanes, 1, x.dtype) * on]))


@pytest.mark.parametrize("dtype", (*INTS[:4], dtypes.index))
@pytest.mark.parametrize("size", (0, 1, 100))
def test_whether_a_place_is_inside_is_one_comparison(cpu, size, dtype):
    stored = dtypes.int64 if dtype is dtypes.index else dtype
    limit = np.iinfo(np_type(stored))
    places = np.array([limit.min, -2, -1, 0, 1, 99, 100, limit.max], np_type(stored))
    w = Writer()
    to, source = param(0, dtypes.bool, 8), param(1, stored, 8)
    i = threads(8, 0)
    x = at(source, i).load()
    x = x.cast(dtype) if dtype is not stored else x
    low, high = UOp.const(-1, dtype) < x, x < UOp.const(size, dtype)
    w.add(to, source, at(to, i).store(high & low), end(i))
    got = run_program(cpu, w.program(), [np.zeros(8, bool), places])[0]
    np.testing.assert_array_equal(got, (places >= 0) & (places < size))
    text = cpu.renderer.render(w.program())
    assert text.count("icmp ult") == 1 and "icmp slt i64 -1" not in text


@pytest.mark.parametrize("dev", NARROWED)
def test_masked_lanes_far_from_memory_are_looked_for_elsewhere(dev):
    size, lanes = 1 << 14, 8
    x = np.arange(size, dtype=np.float32)
    with Context(DEV=dev):
        for begin, has_zeros in ((-2, False), (-size + 3, True), (size - 3, True)):
            w = Writer()
            to, source, i = param(0, dtypes.float32, size), param(1, dtypes.float32, size), None
            i = w.add(UOp.range(size // lanes, 0))
            first = i * lanes
            place = UOp(Ops.STACK, dtypes.index, tuple([first + begin + k for k in range(lanes)]))
            zero = splat(UOp.const(-1, dtypes.index), lanes)
            gate = zero.alu(Ops.CMPLT, place) & place.alu(
                Ops.CMPLT, splat(UOp.const(size, dtypes.index), lanes)
            )
            w.add(at(to, first).store(at(source, first + begin).load(gate, lanes)))
            w.add(end(i))
            program = w.program()
            got = run_program(Device["CPU"], program, [x * 0, x])[0]
            places = np.arange(size) + begin
            is_there = (places >= 0) & (places < size)
            np.testing.assert_array_equal(got, np.where(is_there, places, 0))
            assert ("@zeros" in Device["CPU"].renderer.render(program)) == has_zeros


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
@pytest.mark.parametrize("dev", NARROWED)
def test_masked_lanes_beyond_the_end_of_memory_are_not_touched(dev):
    page = mmap.PAGESIZE
    pages = mmap.mmap(-1, 2 * page)
    memory = HostMemory(shared=pages)
    libc = ctypes.CDLL(None, use_errno=True)
    end = ctypes.c_void_p(memory.address + page)
    assert libc.mprotect(end, ctypes.c_size_t(page), 0) == 0
    try:
        start = page // 4 - 3  # the last three floats before what must not be touched
        w = Writer()
        x = param(0, dtypes.float32, page // 4)
        gate = stack([const(k < 3, dtypes.bool) for k in range(16)])
        value = at(x, start).load(gate, 16)
        w.add(x, at(x, start).store(value + splat(UOp.const(1.0, dtypes.float32), 16), gate))
        with Context(DEV=dev):
            load_program(Device["CPU"], w.program())((memory,))
        floats = np.frombuffer(memory, np.float32, page // 4)
        np.testing.assert_array_equal(floats[start - 1 :], [0, 1, 1, 1])
        del floats
    finally:
        assert libc.mprotect(end, ctypes.c_size_t(page), 3) == 0


# ---------------------------------------------------------------- loops and registers


def register(slot: int, init: UOp, lanes: int = 1) -> UOp:
    return UOp(Ops.DEFINE_REG, init.dtype, (splat(init, lanes),), RegArg(slot, lanes))


@pytest.mark.parametrize("lanes", (1, 4, 7))
def test_a_register_carries_a_sum_through_nested_loops(cpu, lanes):
    shape = (3, 4, 5, lanes)
    x = np.random.default_rng(4).integers(0, 100, shape).astype(np.int64)
    w = Writer()
    to, source = param(0, dtypes.int64, 3 * lanes), param(1, dtypes.int64, x.size)
    w.add(to, source)
    i = w.add(UOp.range(3, 0))
    target = w.add(at(to, i * lanes))
    total = w.add(register(0, UOp.const(7, dtypes.int64), lanes))
    j = w.add(UOp.range(4, 1, AxisType.REDUCE))
    k = w.add(UOp.range(5, 2, AxisType.REDUCE))
    element = at(source, ((i * 4 + j) * 5 + k) * lanes).load(lanes=lanes)
    w.add(total.store(total + element), end(k), ended := end(j))
    after = w.add(total.after(ended))
    w.add(target.store(after), end(i))
    got = run_program(cpu, w.program(), [np.zeros(3 * lanes, np.int64), x.reshape(-1)])[0]
    np.testing.assert_array_equal(got.reshape(3, lanes), 7 + x.sum((1, 2)))


def test_a_register_of_an_inner_loop_begins_anew(cpu):
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    w = Writer()
    to, source = param(0, dtypes.float32, 1), param(1, dtypes.float32, 12)
    w.add(to, source)
    outer = w.add(register(0, UOp.const(0.0, dtypes.float32)))
    i = w.add(UOp.range(3, 0, AxisType.REDUCE))
    inner = w.add(register(1, UOp.const(1.0, dtypes.float32)))
    j = w.add(UOp.range(4, 1, AxisType.REDUCE))
    w.add(inner.store(inner * at(source, i * 4 + j).load()), ended := end(j))
    w.add(outer.store(outer + inner.after(ended)), last := end(i))
    w.add(at(to, 0).store(outer.after(last)))
    got = run_program(cpu, w.program(), [np.zeros(1, np.float32), x.reshape(-1)])[0]
    assert got[0] == x.prod(1).sum()


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_a_register_begins_with_what_another_holds(device):
    """Three levels: each carries on from the one around it, and gives back what it has."""
    x = np.random.default_rng(5).integers(-9, 9, (2, 3, 4)).astype(np.int32)
    w = Writer()
    to, source = param(0, dtypes.int32, 1), param(1, dtypes.int32, 24)
    w.add(to, source, const(4), const(3))
    total = w.add(register(0, UOp.const(5, dtypes.int32)))
    i = w.add(UOp.range(2, 0, AxisType.REDUCE))
    middle = w.add(UOp(Ops.DEFINE_REG, dtypes.int32, (total,), RegArg(1, 1)))
    j = w.add(UOp.range(3, 1, AxisType.REDUCE))
    inner = w.add(UOp(Ops.DEFINE_REG, dtypes.int32, (middle,), RegArg(2, 1)))
    k = w.add(UOp.range(4, 2, AxisType.REDUCE))
    element = at(source, (i * 3 + j) * 4 + k).load()
    w.add(inner.store(inner * UOp.const(3, dtypes.int32) + element), ended := end(k))
    w.add(middle.store(inner.after(ended)), ended := end(j))
    w.add(total.store(middle.after(ended)), ended := end(i))
    w.add(at(to, 0).store(total.after(ended)))
    program = w.program()
    check_program(program)
    got = run_program(Device[device], program, [np.zeros(1, np.int32), x.reshape(-1)])[0]
    expected = np.int32(5)
    with np.errstate(over="ignore"):
        for v in x.reshape(-1):
            expected = np.int32(expected * np.int32(3) + v)
    assert got[0] == expected


def test_registers_set_twice_and_swapped(cpu):
    # Fibonacci: (a, b) -> (b, a + b), with the old value read before it is overwritten
    w = Writer()
    to = param(0, dtypes.int64, 2)
    w.add(to)
    a = w.add(register(0, UOp.const(0, dtypes.int64)))
    b = w.add(register(1, UOp.const(1, dtypes.int64)))
    i = w.add(UOp.range(30, 0, AxisType.REDUCE))
    total = w.add(a + b)
    w.add(a.store(b), b.store(total), ended := end(i))
    w.add(at(to, 0).store(a.after(ended)), at(to, 1).store(b.after(ended)))
    assert run_program(cpu, w.program(), [np.zeros(2, np.int64)])[0].tolist() == [832040, 1346269]


def test_a_register_set_under_a_condition(cpu):
    x = np.random.default_rng(5).integers(-9, 9, 50).astype(np.int32)
    w = Writer()
    to, source = param(0, dtypes.int32, 51), param(1, dtypes.int32, 50)
    w.add(to, source)
    total = w.add(register(0, UOp.const(0, dtypes.int32)))
    i = w.add(UOp.range(50, 0, AxisType.REDUCE))
    value = w.add(at(source, i).load())
    branch = w.add(UOp(Ops.IF, dtypes.void, (value > 0,)))
    w.add(total.store(total + value), at(to, i + 1).store(value))
    w.add(UOp(Ops.ENDIF, dtypes.void, (branch,)), ended := end(i))
    w.add(at(to, 0).store(total.after(ended)))
    got = run_program(cpu, w.program(), [np.zeros(51, np.int32), x])[0]
    np.testing.assert_array_equal(got, [x[x > 0].sum(), *np.where(x > 0, x, 0)])


def test_a_loop_inside_a_condition(cpu):
    w = Writer()
    to, source = param(0, dtypes.int32, 4), param(1, dtypes.bool, 4)
    w.add(to, source)
    i = w.add(UOp.range(4, 0))
    total = w.add(register(0, UOp.const(0, dtypes.int32)))
    branch = w.add(UOp(Ops.IF, dtypes.void, (at(source, i).load(),)))
    j = w.add(UOp.range(5, 1, AxisType.REDUCE))
    w.add(total.store(total + UOp.const(2, dtypes.int32)), ended := end(j))
    w.add(at(to, i).store(total.after(ended)))
    w.add(UOp(Ops.ENDIF, dtypes.void, (branch,)), end(i))
    on = np.array([True, False, True, False])
    got = run_program(cpu, w.program(), [np.full(4, -1, np.int32), on])[0]
    assert got.tolist() == [10, -1, 10, -1]


def test_sizes_and_values_of_variables(cpu):
    n = UOp.variable("n", 1, 100)
    scale = UOp.variable("scale", -5, 5, dtypes.int32)
    big = UOp.variable("key", 0, 2**64 - 1, dtypes.uint64)
    w = Writer()
    to, other = param(0, dtypes.int64, 100), param(1, dtypes.uint64, 1)
    w.add(n, scale, big, to, other)
    i = w.add(UOp.range(n, 0))
    w.add(at(to, i).store((i * scale.cast(dtypes.index)).cast(dtypes.int64)), end(i))
    w.add(at(other, 0).store(big))
    variables = (big, n, scale)  # by name
    program = w.program(variables=variables)
    arrays = [np.zeros(100, np.int64), np.zeros(1, np.uint64)]
    got = run_program(cpu, program, arrays, (2**64 - 3, 9, -4))
    np.testing.assert_array_equal(got[0][:10], [*(np.arange(9) * -4), 0])
    assert got[1][0] == 2**64 - 3


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_loop_of_symbolic_size_may_be_empty(device, size):
    n = UOp.variable("n", 0, 9)
    w = Writer()
    to = param(0, dtypes.int64, 3)
    w.add(n, to)
    total = w.add(register(0, UOp.const(7, dtypes.int64)))
    i = w.add(UOp.range(3, 0, AxisType.REDUCE))
    j = w.add(UOp.range(n, 1, AxisType.REDUCE))
    w.add(total.store(total + UOp.const(1, dtypes.int64)), end(j), ended := end(i))
    w.add(at(to, 0).store(total.after(ended)))
    k = w.add(UOp.range(n, 2))
    w.add(at(to, 1).store(UOp.const(5, dtypes.int64)), end(k))
    program = w.program(variables=(n,))
    got = run_program(Device[device], program, [np.zeros(3, np.int64)], (size,))[0]
    assert got.tolist() == [7 + 3 * size, 5 if size else 0, 0]


def test_a_thread_axis_runs_from_begin_to_end(cpu):
    w = Writer()
    to = param(0, dtypes.int64, 6)
    w.add(to)
    i = w.add(threads(6, 0))
    w.add(at(to, i).store(i.cast(dtypes.int64)), end(i))
    program = w.program()
    assert load_program(cpu, program).phases[0][1] == 6
    np.testing.assert_array_equal(
        run_program(cpu, program, [np.zeros(6, np.int64)])[0], np.arange(6)
    )


# ---------------------------------------------------------------- phases and scratch memory

BOTH = ["CPU", "PYTHON"]


@pytest.mark.parametrize("device", BOTH)
def test_a_phase_sees_what_all_of_the_phase_before_it_wrote(device):
    """A sum in two phases: partial sums in shared memory, then one step that adds them up."""
    x = np.random.default_rng(6).integers(-50, 50, (6, 20)).astype(np.int32)
    to, source, parts = (
        param(0, dtypes.int32, 1),
        param(1, dtypes.int32, x.size),
        local(64, dtypes.int32, 6, shared=True),
    )
    first, second = Writer(), Writer()
    first.add(source, parts)
    i = first.add(threads(6, 0))
    total = first.add(register(0, UOp.const(0, dtypes.int32)))
    j = first.add(UOp.range(20, 1, AxisType.REDUCE))
    first.add(total.store(total + at(source, i * 20 + j).load()), ended := end(j))
    first.add(at(parts, i).store(total.after(ended)), end(i))
    second.add(to, parts)
    total = second.add(register(0, UOp.const(0, dtypes.int32)))
    k = second.add(UOp.range(6, 0, AxisType.REDUCE))
    second.add(total.store(total + at(parts, k).load()), ended := end(k))
    second.add(at(to, 0).store(total.after(ended)))
    program = program_of([first.phase(), second.phase()], "sum")
    assert [phase.count for phase in program.phases] == [6, 1]
    assert program.shared_nbytes == 64 + 24
    got = run_program(Device[device], program, [np.zeros(1, np.int32), x.reshape(-1)])[0]
    assert got[0] == x.sum()


def test_functions_of_phases_are_numbered(cpu):
    phase = Phase(())
    assert cpu.renderer.render(LinearProgram("k", (phase,), (), ())).count('define void @"k"(') == 1
    text = cpu.renderer.render(LinearProgram("k", (phase, phase), (), ()))
    assert text.count('define void @"k.0"(') == text.count('define void @"k.1"(') == 1


@pytest.mark.parametrize("device", BOTH)
@pytest.mark.parametrize(
    "dtype", [dtypes.float32, dtypes.bool, dtypes.int8, dtypes.float64, dtypes.bfloat16], ids=str
)
def test_scratch_memory_keeps_rows_of_its_thread(device, dtype):
    """Each row reversed by way of scratch memory, in vectors of an odd size; with two pieces."""
    rows, lanes = 5, 7
    x = np.random.default_rng(7).integers(0, 2, (rows, 3 * lanes)).astype(np_type(dtype))
    w = Writer()
    to, source = param(0, dtype, x.size), param(1, dtype, x.size)
    row, wide = local(64, dtype, 3 * lanes), local(512, dtypes.int64, 1)
    w.add(to, source, row, wide, const(lanes))
    i = w.add(threads(rows, 0))
    w.add(i * 21)
    w.add(at(wide, 0).store(UOp.const(3, dtypes.index).cast(dtypes.int64)))
    j = w.add(UOp.range(3, 1))
    w.add(at(row, j * lanes).store(at(source, i * 21 + j * lanes).load(lanes=lanes)), end(j))
    k = w.add(UOp.range(21, 2))
    size = at(wide, 0).load().cast(dtypes.index) * lanes
    w.add(at(to, i * 21 + k).store(at(row, size - 1 - k).load()), end(k), end(i))
    got = run_program(Device[device], w.program(), [np.zeros_like(x).reshape(-1), x.reshape(-1)])[0]
    np.testing.assert_array_equal(
        got.view(np.uint8).reshape(rows, -1), x[:, ::-1].copy().view(np.uint8).reshape(rows, -1)
    )


@pytest.mark.parametrize("device", BOTH)
@pytest.mark.parametrize("picked", [(2, 0, 5), (7, 3), (1, 1, 1, 1), (0, 8, 1, 9, 2, 10, 15)])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bool, dtypes.int8], ids=str)
def test_a_shuffle_picks_lanes_of_one_or_two_vectors(device, dtype, picked):
    x = np.random.default_rng(8).integers(0, 2, 16).astype(np_type(dtype))
    to, source = param(0, dtype, 16), param(1, dtype, 16)
    vectors = [at(source, 0).load(lanes=8), at(source, 8).load(lanes=8)]
    node = UOp(Ops.SHUFFLE, dtype, tuple(vectors[: 1 + max(picked) // 8]), picked)
    w = Writer()
    w.add(to, source, at(to, 0).store(node))
    program = w.program()
    got = run_program(Device[device], program, [np.zeros_like(x), x])[0]
    np.testing.assert_array_equal(got[: len(picked)], x[list(picked)])
    assert Device["CPU"].renderer.render(program).count("shufflevector") == 1


@pytest.mark.parametrize("dev", NARROWED)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bool, dtypes.int8, dtypes.float64])
@pytest.mark.parametrize(
    "on",
    [
        "1111111",
        "0000000",
        "1110000",
        "1000000",
        "0000100",
        "0011100",
        "0110101",
        "1111111111110000",
        "1" * 33,
    ],
)
def test_lanes_that_a_constant_lets_through(dev, dtype, on):
    lanes, mask = len(on), np.array([c == "1" for c in on])
    x = np.ones(lanes).astype(np_type(dtype))
    before = np.zeros(2 * lanes).astype(np_type(dtype))
    to, source = param(0, dtype, 2 * lanes), param(1, dtype, lanes)
    gate = stack([const(bool(m), dtypes.bool) for m in mask])
    one = splat(UOp.const(dtype.const(1), dtype), lanes)
    w = Writer()
    w.add(to, source, at(to, 0).store(at(source, 0).load(gate, lanes)))
    w.add(at(to, lanes).store(one, gate))
    program = w.program()
    expected = np.concatenate([mask, mask])
    with Context(DEV=dev):
        for device in (Device["CPU"], Device["PYTHON"]):
            got = run_program(device, program, [before, x])[0]
            np.testing.assert_array_equal(got.astype(np.float64), expected)


@pytest.mark.parametrize("dev", NARROWED)
@pytest.mark.parametrize("lanes", (4, 8, 16, 32))
@pytest.mark.parametrize("wide, narrow", [("int16", "int8"), ("int32", "int16"),
                                          ("int64", "uint8"), ("int64", "int32"),
                                          ("float64", "float32")])  # fmt: skip
def test_masked_lanes_of_a_narrowed_vector_write_no_byte_more(dev, lanes, wide, narrow):
    """LLVM makes one instruction of both, and too wide a one for a single lane."""
    source, target = getattr(dtypes, wide), getattr(dtypes, narrow)
    x = np.arange(1, lanes + 1).astype(np_type(source))
    before = np.full(lanes + 1, 77).astype(np_type(target))
    for first in range(lanes):
        for last in {first, min(first + 2, lanes - 1), lanes - 1}:
            mask = np.array([first <= k <= last for k in range(lanes)])
            to, value_in = param(0, target, lanes + 1), param(1, source, lanes)
            gate = stack([const(bool(m), dtypes.bool) for m in mask])
            w = Writer()
            w.add(to, value_in)
            w.add(at(to, 0).store(at(value_in, 0).load(lanes=lanes).cast(target), gate))
            with Context(DEV=dev):
                got = run_program(Device["CPU"], w.program(), [before, x])[0]
            assert_bits(got, np.where([*mask, False], [*x, 0], before).astype(before.dtype))


@pytest.mark.parametrize("lanes", (1, 3, 4, 7, 16, 64, 20))
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.int8, dtypes.bool])
@pytest.mark.parametrize("shift", (0, 1, 5))
@pytest.mark.parametrize("dev", NARROWED)
def test_a_store_past_the_caches_is_right_at_any_address(dtype, lanes, shift, dev):
    size = 3 * lanes
    x = (np.arange(size) % 2).astype(np_type(dtype))
    to, source = param(0, dtype, size + 8), param(1, dtype, size)
    w = Writer()
    w.add(to, source)
    i = w.add(UOp.range(3, 0))
    value = at(source, i * lanes).load(lanes=lanes)
    place = at(to, i * lanes + shift)
    w.add(UOp(Ops.STORE, dtypes.void, (place, value), "nontemporal"), end(i))
    with Context(DEV=dev):
        device = Device["CPU"]
        program = w.program()
        got = run_program(device, program, [np.zeros(size + 8).astype(x.dtype), x])[0]
        text = device.compiler.disassemble(device.renderer.render(program), "kernel")
    np.testing.assert_array_equal(got[shift : shift + size], x)
    assert not got[:shift].any() and not got[shift + size :].any()
    if host_arch() == "x86_64" and lanes * dtype.itemsize % device.target.vector_bytes == 0:
        assert "movnt" in text and "sfence" in text


# ---------------------------------------------------------------- anything


DRAWN = (dtypes.bool, dtypes.int8, dtypes.uint16, dtypes.int32, dtypes.uint32, dtypes.int64,
         dtypes.uint64, dtypes.float32, dtypes.float64)  # fmt: skip
OF_INTEGERS = (*ARITHMETIC, *DIVISION, *BITWISE, Ops.MAX, Ops.SHL, Ops.SHR)
OF_FLOATS = (*ARITHMETIC, Ops.FDIV, Ops.MAX)
OF_ONE_FLOAT = (Ops.NEG, Ops.SQRT, Ops.TRUNC, Ops.RECIPROCAL)


def draw_expression(rng, values: list[UOp], steps: int, lanes: int) -> UOp:
    """An expression over values and constants, each step an operation on what there is."""
    made = list(values)

    def some(dtype):
        if rng.random() < 0.25:
            number = rng.choice(edge_values(dtype)).item()
            return splat(UOp.const(dtype.const(number), dtype), lanes)
        of_dtype = [v for v in made if v.dtype is dtype]
        return of_dtype[rng.integers(len(of_dtype))] if of_dtype else draw_cast(dtype)

    def draw_cast(dtype):
        return made[-1 - rng.integers(min(len(made), 5))].cast(dtype)

    for _ in range(steps):
        dtype = DRAWN[rng.integers(len(DRAWN))]
        kind = rng.integers(6)
        if kind == 0:
            made.append(draw_cast(dtype))
        elif kind == 1:
            made.append(some(dtype).alu(list(COMPARISON)[rng.integers(3)], some(dtype)))
        elif kind == 2:
            made.append(some(dtypes.bool).alu(Ops.WHERE, some(dtype), some(dtype)))
        elif dtype is dtypes.bool:
            made.append(some(dtype).alu(list(BITWISE)[rng.integers(3)], some(dtype)))
        elif dtype.kind == "f":
            one = some(dtype)
            if kind == 3:
                made.append(one.alu(OF_ONE_FLOAT[rng.integers(4)]))
            else:
                made.append(one.alu(OF_FLOATS[rng.integers(len(OF_FLOATS))], some(dtype)))
        else:
            op = OF_INTEGERS[rng.integers(len(OF_INTEGERS))]
            made.append(some(dtype).alu(op, some(dtype)))
    return made[-1]


@pytest.mark.parametrize("dev", NARROWED)
@pytest.mark.parametrize("part", range(5))
def test_drawn_expressions_are_what_python_makes_of_them(part, dev):
    rng = np.random.default_rng(part + (int.from_bytes(os.urandom(6)) if FULL else 0))
    for _ in range(examples(200, 12)):
        lanes = int(rng.choice(LANES))
        size = 3 * lanes + 2
        inputs = [rng.choice(edge_values(d), size) for d in DRAWN]
        seed, steps = int(rng.integers(1 << 60)), int(rng.integers(5, 40))

        def expression(*values, seed=seed, steps=steps, lanes=lanes):
            return draw_expression(np.random.default_rng(seed), values, steps, lanes)

        loads = [at(param(k, d, size), 0).load(lanes=lanes) for k, d in enumerate(DRAWN)]
        dtype = expression(*loads).dtype
        program = elementwise(expression, inputs, dtype, lanes)
        arrays = [np.zeros(size, np_type(dtype)), *inputs]
        with Context(DEV=dev):
            got = run_program(Device["CPU"], program, arrays)[0]
        with np.errstate(all="ignore"):
            expected = run_program(Device["PYTHON"], program, arrays)[0]
        assert_bits(got, expected)


# ---------------------------------------------------------------- size


def test_ten_thousand_operations_in_one_kernel(cpu):
    w = Writer()
    to, source = param(0, dtypes.int32, 8), param(1, dtypes.int32, 8)
    w.add(to, source)
    x = at(source, 0).load(lanes=8)
    value = x
    for k in range(5000):  # each operand is the last result: as deep as it is long
        value = (value * splat(UOp.const(3, dtypes.int32), 8)).alu(
            Ops.XOR, splat(UOp.const(k, dtypes.int32), 8)
        )
    w.add(at(to, 0).store(value))
    program = w.program()
    assert len(program.uops) > 10_000
    start = np.arange(8, dtype=np.int32)
    expected = start.copy()
    with np.errstate(all="ignore"):
        for k in range(5000):
            expected = (expected * np.int32(3)) ^ np.int32(k)
    np.testing.assert_array_equal(run_program(cpu, program, [start * 0, start])[0], expected)


def test_offsets_are_64_bits_wide(cpu):
    w = Writer()
    x = param(0, dtypes.uint8, 1)
    # 2**33 forwards, and back again by a value that is not known when compiling
    back = UOp.variable("back", -(1 << 40), 1 << 40)
    w.add(x, back, at(x, back + (1 << 33)).store(UOp.const(7, dtypes.uint8)))
    program = w.program(variables=(back,))
    got = run_program(cpu, program, [np.zeros(1, np.uint8)], (-(1 << 33),))
    assert got[0][0] == 7


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize("op", [Ops.EXP2, Ops.LOG2, Ops.SIN])
def test_what_is_not_native_must_be_lowered(cpu, op):
    assert op not in cpu.target.native_ops
    x = np.zeros(4, np.float32)
    program = elementwise(lambda v: v.alu(op), (x,), dtypes.float32, 4)
    with pytest.raises(TypeError, match=rf"kernel kernel holds .*{op.name}.* lowered"):
        cpu.renderer.render(program)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.fp8e5m2], ids=str)
def test_arithmetic_of_narrow_floats_must_be_lowered(cpu, dtype):
    x = np.zeros(4, np_type(dtype))
    program = elementwise(lambda v: v.alu(Ops.ADD, v), (x,), dtype, 4)
    with pytest.raises(TypeError, match=f"computes with {dtype.name}.*float32"):
        cpu.renderer.render(program)


@pytest.mark.parametrize("dev, lanes", TARGETS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_no_operation_calls_a_library(dtype, lanes, dev):
    def all_of_them(x):
        root = x.alu(Ops.SQRT).alu(Ops.TRUNC).alu(Ops.MULACC, x, x).alu(Ops.MAX, x)
        return root.cast(dtypes.uint64).alu(Ops.FLOORDIV, x.cast(dtypes.uint64)).cast(dtype)

    with Context(DEV=dev):
        device = Device["CPU"]
        program = elementwise(all_of_them, (edge_values(dtype),), dtype, lanes)
        source = device.renderer.render(program)
        assert undefined_symbols(device.compiler.compile(source, "kernel")) == []


def test_a_call_of_a_library_is_refused(cpu):
    source = (
        'define double @"k"(double %x) {\n'
        "  %r = call double @llvm.exp2.f64(double %x)\n  ret double %r\n}\n"
        "declare double @llvm.exp2.f64(double)\n"
    )
    with pytest.raises(CompileError, match="kernel k could not be compiled: it would call exp2"):
        cpu.compiler.compile(source, "k")


def test_a_compile_error_names_the_kernel_and_carries_the_source(cpu):
    source = 'define void @"k"() { ret i32 0 }'
    with pytest.raises(CompileError, match=r"(?s)kernel k could not.*DEBUG=4") as caught:
        cpu.compiler.compile(source, "k")
    assert caught.value.source == source
    assert caught.value.name == "k"


def test_an_empty_program_is_a_function(cpu):
    kernel = load_program(cpu, LinearProgram("nothing", (Phase(()),), (), ()))
    kernel(())


# ---------------------------------------------------------------- the text


def source_of(*nodes: UOp) -> tuple[str, LinearProgram]:
    w = Writer()
    w.add(*nodes)
    program = w.program()
    return Device["CPU"].renderer.render(program), program


@pytest.mark.parametrize("picked", [(2, 0, 5), (7, 3), (1, 1, 1, 1), (0, 8, 1, 9, 2, 10, 15)])
def test_lanes_of_one_or_two_vectors_are_one_shuffle(cpu, picked):
    x = np.arange(16, dtype=np.float32)
    to, source = param(0, dtypes.float32, 16), param(1, dtypes.float32, 16)
    vectors = [at(source, 0).load(lanes=8), at(source, 8).load(lanes=8)]
    lanes = [UOp(Ops.GEP, dtypes.float32, (vectors[k // 8],), k % 8) for k in picked]
    text, program = source_of(to, source, at(to, 0).store(stack(lanes)))
    assert text.count("shufflevector") == 1 and "extractelement" not in text
    got = run_program(cpu, program, [x * 0, x])[0]
    np.testing.assert_array_equal(got[: len(picked)], x[list(picked)])


def test_lanes_that_are_needed_by_themselves_are_still_there(cpu):
    x = np.arange(4, dtype=np.float32)
    to, source = param(0, dtypes.float32, 4), param(1, dtypes.float32, 4)
    vector = at(source, 0).load(lanes=4)
    a, b = (UOp(Ops.GEP, dtypes.float32, (vector,), k) for k in (3, 2))
    text, program = source_of(
        to, source, at(to, 0).store(stack([a, b])), at(to, 2).store(a), at(to, 3).store(b + a)
    )
    assert text.count("extractelement") == 2
    assert run_program(cpu, program, [x * 0, x])[0].tolist() == [3, 2, 3, 5]


def test_addresses_that_differ_by_a_constant_share_a_pointer(cpu):
    x = np.arange(12, dtype=np.float64)
    to, source = param(0, dtypes.float64, 3), param(1, dtypes.float64, 12)
    i = UOp.range(3, 0)
    values = [at(source, i * 4 + k).load() for k in (1, 0, 3)]
    text, program = source_of(
        to, source, at(to, i).store(values[0] + values[1] + values[2]), UOp(Ops.END, src=(i,))
    )
    assert text.count("getelementptr double, ptr %b1") == 1
    assert text.count("add i64") == 1  # of the loop
    got = run_program(cpu, program, [np.zeros(3), x])[0]
    np.testing.assert_array_equal(got, x.reshape(3, 4)[:, [0, 1, 3]].sum(1))


def test_an_offset_that_is_also_a_value_is_computed(cpu):
    to, source = param(0, dtypes.int64, 4), param(1, dtypes.int64, 8)
    i = UOp.range(4, 0)
    offset = i + 3
    value = at(source, offset).load() + offset.cast(dtypes.int64)
    _, program = source_of(to, source, at(to, i).store(value), UOp(Ops.END, src=(i,)))
    x = np.arange(8) * 10
    got = run_program(cpu, program, [np.zeros(4, np.int64), x])[0]
    assert got.tolist() == [33, 44, 55, 66]


def test_pointers_of_a_loop_are_not_used_after_it(cpu):
    # both loops write near element n, and the first, with its pointer, may never have run
    to = param(0, dtypes.int32, 8)
    n, m = UOp.variable("m", 1, 3), UOp.variable("n", 0, 3)
    w = Writer()
    w.add(to, n, m)
    for size, axis in ((m, 0), (n, 1)):
        i = w.add(UOp.range(size, axis))
        for step in (1 + 2 * axis, 2 + 2 * axis):
            w.add(at(to, n + step).store(UOp.const(step, dtypes.int32)))
        w.add(end(i))
    program = w.program(variables=(n, m))
    for values, expected in (((1, 0), [0, 0, 0, 0, 3, 4]), ((2, 1), [0, 0, 0, 1, 2, 3, 4])):
        got = run_program(cpu, program, [np.zeros(8, np.int32)], values)[0]
        assert got.tolist() == expected + [0] * (8 - len(expected))
