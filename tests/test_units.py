"""Matrix units: which kernels they can compute, what programs become, and the values.

Each case runs on PYTHON, which computes what a unit's description says, for all units; and on the
CPU with those that it has. Integers are exact. Of bfloat16 both give the same bits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conftest import examples
from kernels import CASES, TARGET, Case, blank, matmul, out, param, red, sink
from tiny import Tensor, TinyJit
from tiny.codegen import LinearProgram, lower
from tiny.codegen.opt import Kernel, KernelOptError, Opt, OptOps
from tiny.device import Buffer, Device
from tiny.dtype import DType, _to_np_dtype, dtypes
from tiny.engine import container
from tiny.engine.export import load_step
from tiny.helpers import Context
from tiny.renderer.x86_units import ALL_UNITS, units_of
from tiny.runtime.cpu import LLVMCompiler
from tiny.runtime.python import interpret
from tiny.uop.ops import Ops, UOp
from tiny.uop.structure import check_program
from tiny.uop.target import Target
from tiny.uop.units import MatrixUnit

TC, VEC, UPCAST, UNROLL = OptOps.TC, OptOps.VEC, OptOps.UPCAST, OptOps.UNROLL
THREAD, STAGE, BLOCK, SWAP = OptOps.THREAD, OptOps.STAGE, OptOps.BLOCK, OptOps.SWAP
BF16, F32, I8, U8, I32 = dtypes.bfloat16, dtypes.float32, dtypes.int8, dtypes.uint8, dtypes.int32
CPU = Device["CPU"]

DOTS = [u for u in ALL_UNITS if u.n == 16 and not u.registers]
TILES = [u for u in ALL_UNITS if u.registers]
PAIRS = [(BF16, BF16, F32), (I8, I8, I32), (U8, I8, I32)]


def machine(*units: MatrixUnit) -> Target:
    """PYTHON with vectors of 64 bytes and these units."""
    return replace(TARGET, vector_bytes=64, units=units)


ALL = machine(*DOTS)
AMX = machine(*TILES)


def product(
    m: int,
    n: int,
    k: int,
    dts: tuple[DType, DType, DType],
    transposed: tuple[bool, bool] = (False, False),
    seed: int = 0,
) -> Case:
    """A matrix product of all values that the dtypes have, summed in the third of them."""
    a_dtype, b_dtype, total = dts
    i, j, r = out(m, 0), out(n, 1), red(k, 2)
    shapes = [(k, m) if transposed[0] else (m, k), (n, k) if transposed[1] else (k, n)]
    a = param(1, *shapes[0], dtype=a_dtype)
    b = param(2, *shapes[1], dtype=b_dtype)
    left = (a.index(r, i) if transposed[0] else a.index(i, r)).cast(total)
    right = (b.index(j, r) if transposed[1] else b.index(r, j)).cast(total)
    ast = sink(param(0, m, n, dtype=total).index(i, j).store((left * right).reduce(r)))
    x, y = numbers(shapes[0], a_dtype, seed), numbers(shapes[1], b_dtype, seed + 1)
    wide = np.float64 if total is F32 else np.int64
    expected = (x.T if transposed[0] else x).astype(wide) @ (y.T if transposed[1] else y).astype(
        wide
    )
    return Case(ast, [blank(m, n, dtype=total), x, y], [expected, x, y])


def numbers(shape: tuple[int, ...], dtype: DType, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype.kind in "iu":
        return rng.integers(dtype.min, dtype.max + 1, shape).astype(_to_np_dtype(dtype))
    return rng.standard_normal(shape).astype(np.float32).astype(_to_np_dtype(dtype))


def on_python(case: Case, opts: list[Opt], target: Target = ALL) -> np.ndarray:
    program = lower(case.sink, target, opts)
    check_program(program)
    memory = [np.array(a).reshape(-1).copy() for a in case.before]
    interpret(program, [memory[p.slot] for p in program.params], case.variables or {})
    return memory[0].reshape(np.shape(case.before[0]))


def on_cpu(case: Case, opts: list[Opt]) -> np.ndarray:
    program = lower(case.sink, CPU.target, opts)
    binary = CPU.compiler.compile(CPU.renderer.render(program), program.name)
    buffers = {}
    for p in program.params:
        data = np.array(case.before[p.slot])
        buffers[p.slot] = Buffer("CPU", data.size, p.dtype).allocate().copyin(data.tobytes())
    CPU.load(program.name, binary, program)(tuple(buffers[p.slot].memory for p in program.params))
    return buffers[0].numpy().reshape(np.shape(case.before[0]))


def has(dts: tuple[DType, DType, DType]) -> bool:
    """Whether the CPU has a unit for operands of two dtypes and sums of the third."""
    return Kernel(product(32, 32, 64, dts).sink, CPU.target).allows(Opt(TC, 0, (-1, 2, 1)))


def uses_unit(program: LinearProgram) -> bool:
    return any(u.op is Ops.WMMA for u in program.uops)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    if found.dtype.kind in "iu":
        np.testing.assert_array_equal(found, np.asarray(expected).astype(found.dtype))
    else:  # products of bfloat16 are exact, sums rounded to float32
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- values

LAYOUTS = [(False, False), (True, False), (False, True), (True, True)]
SIZES = [(1, 16, 8), (4, 32, 8), (3, 17, 7), (1, 5, 9), (7, 48, 33), (2, 2, 5), (13, 31, 10)]


@pytest.mark.parametrize("dts", PAIRS, ids=str)
@pytest.mark.parametrize("transposed", LAYOUTS)
def test_units_compute_what_numpy_does_for_any_sizes_and_layouts(dts, transposed):
    for size in SIZES:
        case = product(*size, dts, transposed)
        for use in (1, 2):
            opts = [Opt(TC, 0, (-1, 2, use))]
            found = on_python(case, opts)
            close(found, case.after[0])
            if has(dts):
                np.testing.assert_array_equal(on_cpu(case, opts), found)


FOR_TILES = [(dts, x) for dts in (*PAIRS, (U8, U8, I32), (I8, U8, I32)) for x in LAYOUTS]


@pytest.mark.parametrize("dts, transposed", FOR_TILES[:: examples(1, 3)], ids=str)
def test_units_with_registers_of_their_own_do_as_well(dts, transposed):
    blocked = [Opt(UPCAST, 0, 2), Opt(UPCAST, 1, 2), Opt(UNROLL, 0, 2), Opt(THREAD, 0)]
    packed_inside = [Opt(UPCAST, 1, 2), Opt(SWAP, 0, 1), Opt(STAGE, 1, 1)]
    for size, opts, uses in (
        ((3, 5, 9), [], (1, 2)),
        ((17, 16, 33), [], (1,)),
        ((35, 34, 70), blocked, (1,)),
        ((16, 49, 40), packed_inside, (1,)),
    ):
        case = product(*size, dts, transposed)
        for use in uses:
            close(on_python(case, [Opt(TC, 0, (-1, 2, use)), *opts], AMX), case.after[0])


OPTS = [
    [Opt(UPCAST, 1, 2), Opt(UPCAST, 0, 3), Opt(UNROLL, 0, 2)],
    [Opt(VEC, 1, 32), Opt(UPCAST, 0, 5), Opt(SWAP, 0, 1), Opt(THREAD, 1), Opt(STAGE, 1, 1)],
    [Opt(VEC, 1, 16), Opt(BLOCK, 2, 4), Opt(SWAP, 3, 0), Opt(STAGE, 0, 0), Opt(STAGE, 3, 1)],
    [Opt(UPCAST, 0, 4), Opt(BLOCK, 2, 3), Opt(THREAD, 3)],
]


@pytest.mark.parametrize("dts", PAIRS, ids=str)
@pytest.mark.parametrize("number", range(len(OPTS)))
def test_other_opts_apply_on_top(dts, number):
    case = product(21, 70, 49, dts)
    opts = [Opt(TC, 0, (-1, 2, 1)), *OPTS[number]]
    found = on_python(case, opts)
    close(found, case.after[0])
    if has(dts):
        np.testing.assert_array_equal(on_cpu(case, opts), found)


@pytest.mark.parametrize("a, b", [(-128, -128), (127, -128), (-128, 127), (0, -128), (-1, 1)])
def test_the_ends_of_int8_are_exact(a, b):
    case = product(2, 16, 20, (I8, I8, I32))
    case.before[1][...], case.before[2][...] = a, b
    expected = np.full((2, 16), 20 * a * b)
    np.testing.assert_array_equal(on_python(case, [Opt(TC, 0, (-1, 2, 1))]), expected)
    if has((I8, I8, I32)):
        np.testing.assert_array_equal(on_cpu(case, [Opt(TC, 0, (-1, 2, 1))]), expected)


def test_what_is_not_finite_stays_so():
    case = product(4, 16, 6, (BF16, BF16, F32))
    a, b = case.before[1], case.before[2]
    a[...], b[...] = 1, 1
    a[0, 3], a[1, 0], a[2, 5], b[5, 7] = np.nan, np.inf, np.inf, 0
    b[0, 2] = -np.inf
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float32) @ b.astype(np.float32)
    assert np.isnan(expected[0]).all() and np.isnan(expected[2, 7]) and expected[1, 2] == -np.inf
    found = on_python(case, [Opt(TC, 0, (-1, 2, 1))])
    np.testing.assert_array_equal(found, expected)
    if has((BF16, BF16, F32)):
        np.testing.assert_array_equal(on_cpu(case, [Opt(TC, 0, (-1, 2, 1))]), expected)


def test_numbers_below_the_normal_ones_count_as_zero():
    case = product(2, 16, 4, (BF16, BF16, F32))
    a, b = case.before[1], case.before[2]
    a[...], b[...] = 2.0**-130, 2.0**100
    a[1], b[:, 5] = 2.0**-100, 2.0**-100
    found = on_python(case, [Opt(TC, 0, (-1, 2, 1))])
    assert not found[0].any()
    assert found[1, 5] == 0 and (np.delete(found[1], 5) == 4).all()
    plain = on_python(case, [Opt(TC, 0, (-1, 2, 2))])  # which has no unit, and keeps them
    assert (np.delete(plain[0], 5) == 2.0**-28).all()
    if has((BF16, BF16, F32)):
        np.testing.assert_array_equal(on_cpu(case, [Opt(TC, 0, (-1, 2, 1))]), found)


def test_a_product_of_convolutions_goes_over_several_axes():
    f, y, c, ky = out(20, 0), out(16, 1), red(6, 2), red(3, 3)
    image, weight = param(1, 6, 18, dtype=I8), param(2, 20, 6, 3, dtype=I8)
    value = image.index(c, y + ky).cast(I32) * weight.index(f, c, ky).cast(I32)
    ast = sink(param(0, 20, 16, dtype=I32).index(f, y).store(value.reduce(c, ky)))
    x, w = numbers((6, 18), I8, 0), numbers((20, 6, 3), I8, 1)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.int64), 3, axis=1)
    case = Case(ast, [blank(20, 16, dtype=I32), x, w], [np.einsum("cyk,fck->fy", windows, w)])
    for axis in (0, 1):
        close(on_python(case, [Opt(TC, axis, (-1, 2, 1))]), case.after[0])
        if has((I8, I8, I32)):
            close(on_cpu(case, [Opt(TC, axis, (-1, 2, 1))]), case.after[0])
    with pytest.raises(KernelOptError, match="it reduces 2 axes; TC_OPT=1 allows several"):
        Kernel(ast, ALL).apply_opt(Opt(TC, 0, (-1, 0, 1)))


def test_what_is_made_of_an_operand_and_of_the_sum_is_part_of_the_kernel():
    i, j, r = out(5, 0), out(20, 1), red(12, 2)
    a, b = param(1, 5, 12, dtype=BF16), param(2, 12, 20, dtype=BF16)
    left = a.index(i, r).maximum(0).cast(F32)
    total = (left * b.index(r, j).cast(F32)).reduce(r)
    bias = param(3, 20, dtype=BF16).index(j).cast(F32)
    ast = sink(param(0, 5, 20, dtype=BF16).index(i, j).store((total + bias).maximum(0).cast(BF16)))
    x, y, z = numbers((5, 12), BF16, 0), numbers((12, 20), BF16, 1), numbers((20,), BF16, 2)
    full = np.maximum(x, 0).astype(np.float64) @ y.astype(np.float64) + z.astype(np.float64)
    case = Case(ast, [blank(5, 20, dtype=BF16), x, y, z], [])
    found = on_python(case, [Opt(TC, 0, (-1, 2, 1)), Opt(UPCAST, 0, 3)])
    np.testing.assert_allclose(found.astype(np.float64), np.maximum(full, 0), rtol=2**-8, atol=1e-6)
    if has((BF16, BF16, F32)):
        other = on_cpu(case, [Opt(TC, 0, (-1, 2, 1)), Opt(UPCAST, 0, 3)])
        np.testing.assert_array_equal(other.view(np.uint16), found.view(np.uint16))
    with pytest.raises(KernelOptError, match="computed of what is loaded"):
        Kernel(ast, ALL).apply_opt(Opt(TC, 0, (-1, 0, 1)))


def test_the_end_of_a_kernel_reads_what_a_unit_stores():
    i, j, r = out(21, 0), out(37, 1), red(66, 2)
    a, b = param(1, 21, 66, dtype=BF16), param(2, 66, 37, dtype=BF16)
    total = (a.index(i, r).cast(F32) * b.index(r, j).cast(F32)).reduce(r)
    value = (total + param(3, 37).index(j)).maximum(0) + param(4, 21, 37).index(i, j)
    ast = sink(param(0, 21, 37, dtype=BF16).index(i, j).store(value.cast(BF16)))
    arrays = [
        numbers(shape, dtype, k)
        for k, (shape, dtype) in enumerate(
            [((21, 66), BF16), ((66, 37), BF16), ((37,), F32), ((21, 37), F32)]
        )
    ]
    x, y, bias, rest = [z.astype(np.float64) for z in arrays]
    expected = np.maximum(x @ y + bias, 0) + rest
    case = Case(ast, [blank(21, 37, dtype=BF16), *arrays], [])
    found = on_python(case, [Opt(TC, 0, (-1, 2, 1)), Opt(UPCAST, 1, 2)], AMX)
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("dts", PAIRS, ids=str)
@pytest.mark.parametrize("transposed", [(False, True), (True, False)])
def test_lanes_lie_along_the_reduction_by_the_last_choice_of_axes(dts, transposed):
    for size, opts in (
        ((3, 5, 131), []),
        ((7, 10, 200), [Opt(UPCAST, 0, 3), Opt(UPCAST, 1, 2)]),
        ((1, 9, 300), [Opt(VEC, 1, 32), Opt(THREAD, 0)]),
        ((4, 4, 40), []),
    ):
        case = product(*size, dts, transposed)
        kernel = Kernel(case.sink, ALL)
        kernel.apply_opt(Opt(TC, 0, (-1, 2, 1)))
        all_opts = [Opt(TC, kernel.unit_choices - 1, (-1, 2, 1)), *opts]
        kernel = Kernel(case.sink, ALL)
        kernel.apply_opt(all_opts[0])
        assert [a.lanes for a in kernel.axes if a.is_reduce] == [16]
        found = on_python(case, all_opts)
        close(found, case.after[0])
        if has(dts):
            np.testing.assert_array_equal(on_cpu(case, all_opts), found)


# ---------------------------------------------------------------- AMX, as LLVM has it

MULTIPLY = """
define internal <256 x i32> @amx.NAME(
    i16, i16, i16, <256 x i32> %sum, <256 x i32> %a, <256 x i32> %b) {
entry:
  %ps = alloca <256 x i32>
  %pa = alloca <256 x i32>
  %pb = alloca <256 x i32>
  store <256 x i32> %sum, ptr %ps
  store <256 x i32> %a, ptr %pa
  store <256 x i32> %b, ptr %pb
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %k = and i64 %i, 15
  %at = lshr i64 %i, 4
  %column = and i64 %at, 15
  %row = lshr i64 %at, 4
  %row.at = mul i64 %row, 16
  %k.at = mul i64 %k, 16
  %a.at = add i64 %row.at, %k
  %b.at = add i64 %k.at, %column
  %xp = getelementptr i32, ptr %pa, i64 %a.at
  %yp = getelementptr i32, ptr %pb, i64 %b.at
  %sp = getelementptr i32, ptr %ps, i64 %at
  %x = load i32, ptr %xp
  %y = load i32, ptr %yp
  %s0 = load TYPE, ptr %sp
BODY
  store TYPE %result, ptr %sp
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 4096
  br i1 %more, label %loop, label %done
done:
  %r = load <256 x i32>, ptr %ps
  ret <256 x i32> %r
}
"""
PAIR_OF_BF16 = """
  %xh.i = and i32 %x, -65536
  %yh.i = and i32 %y, -65536
  %xl.i = shl i32 %x, 16
  %yl.i = shl i32 %y, 16
  %xh = bitcast i32 %xh.i to float
  %yh = bitcast i32 %yh.i to float
  %xl = bitcast i32 %xl.i to float
  %yl = bitcast i32 %yl.i to float
  %s1 = call float @llvm.fma.f32(float %xh, float %yh, float %s0)
  %result = call float @llvm.fma.f32(float %xl, float %yl, float %s1)
"""
REGISTERS = """
define internal <256 x i32> @amx.tilezero.internal(i16, i16) {
  ret <256 x i32> zeroinitializer
}
define internal <256 x i32> @amx.tileloadd64.internal(i16, i16, ptr %at, i64) {
  %r = load <256 x i32>, ptr %at, align 4
  ret <256 x i32> %r
}
define internal void @amx.tilestored64.internal(i16, i16, ptr %at, i64, <256 x i32> %x) {
  store <256 x i32> %x, ptr %at, align 4
  ret void
}
declare float @llvm.fma.f32(float, float, float)
"""


def without_amx(source: str, name: str, body: str, kind: str) -> str:
    """A module in which functions do what the instructions of AMX do: registers are vectors."""
    lines = [x for x in source.splitlines() if not ("x86_amx" in x and x.startswith("declare"))]
    lines = [x for x in lines if not x.startswith("declare void @llvm.x86.tilestored")]
    text = "\n".join(lines).replace("x86_amx", "<256 x i32>").replace("@llvm.x86.t", "@amx.t")
    multiply = MULTIPLY.replace("NAME", f"{name}.internal").replace("BODY", body)
    return text + REGISTERS + multiply.replace("TYPE", kind)


def four_bytes(a: DType, b: DType) -> str:
    lines, total = [], "%s0"
    for k in range(4):
        for x, dtype in (("x", a), ("y", b)):
            lines += [
                f"%{x}{k}.w = lshr i32 %{x}, {8 * k}",
                f"%{x}{k}.b = trunc i32 %{x}{k}.w to i8",
            ]
            lines.append(f"%{x}{k} = {'s' if dtype is I8 else 'z'}ext i8 %{x}{k}.b to i32")
        lines.append(f"%p{k} = mul i32 %x{k}, %y{k}")
        result = "%result" if k == 3 else f"%t{k}"
        lines.append(f"{result} = add i32 {total}, %p{k}")
        total = result
    return "\n".join(lines)


@pytest.mark.parametrize("unit", TILES, ids=lambda u: u.name)
def test_code_for_amx_does_what_the_description_says(unit):
    """Compiled for AMX, it has the instructions; run with functions in their place, the values."""
    dts = unit.a, unit.b, unit.sum
    case = product(35, 34, 70 * 2 // dts[0].itemsize, dts)
    opts = [Opt(TC, 0, (0, 2, 1)), Opt(UPCAST, 0, 2), Opt(UPCAST, 1, 2), Opt(THREAD, 0)]
    target = replace(CPU.target, units=(unit,), vector_bytes=64)
    program = lower(case.sink, target, opts)
    source = CPU.renderer.__class__(target).render(program)
    if CPU.target.arch == "x86_64":
        features = CPU.target.features | {"amx-tile", "amx-bf16", "amx-int8"}
        assembly = LLVMCompiler("x86_64", features).disassemble(source, program.name)
        assert assembly.count(unit.name) == 4 and "ldtilecfg" in assembly
        assert "tilerelease" in assembly and assembly.count("tilezero") == 4
    floats = unit.sum is F32
    body = PAIR_OF_BF16 if floats else four_bytes(unit.a, unit.b)
    source = without_amx(source, unit.name, body, "float" if floats else "i32")
    binary = CPU.compiler.compile(source, program.name)
    arrays = [np.array(a) for a in case.before]
    buffers = [
        Buffer("CPU", a.size, p.dtype).allocate().copyin(a.tobytes())
        for a, p in zip(arrays, program.params, strict=True)
    ]
    CPU.load(program.name, binary, program)(tuple(b.memory for b in buffers))
    found = buffers[0].numpy().reshape(arrays[0].shape)
    np.testing.assert_array_equal(found, on_python(case, opts, machine(unit)))
    close(found, case.after[0])


@pytest.mark.skipif(
    not any(u.registers for u in CPU.target.units), reason="this CPU has no AMX, or may not use it"
)
@pytest.mark.parametrize("dts", PAIRS, ids=str)
def test_amx_itself_computes_what_its_description_says(dts):
    for size in ((64, 64, 128), (35, 50, 150), (3, 5, 9)):
        case = product(*size, dts)
        number = next(k for k, u in enumerate(CPU.target.units) if (u.a, u.b, u.sum) == dts)
        opts = [Opt(TC, 0, (number, 2, 1))]
        close(on_cpu(case, opts), case.after[0])


# ---------------------------------------------------------------- which kernels


def shared_axes() -> UOp:
    """Two sums over one axis."""
    i, j, r = out(16, 0), out(16, 1), red(8, 2)
    a, b = param(1, 16, 8, dtype=BF16), param(2, 8, 16, dtype=BF16)
    x, y = a.index(i, r).cast(F32), b.index(r, j).cast(F32)
    return sink(param(0, 16, 16).index(i, j).store((x * y).reduce(r) + x.reduce(r)))


def across_dims() -> UOp:
    """The reduced axis is no dimension of its own."""
    i, j, r = out(16, 0), out(16, 1), red(8, 2)
    a, b = param(1, 32, dtype=BF16), param(2, 8, 16, dtype=BF16)
    value = a.index(i + r).cast(F32) * b.index(r, j).cast(F32)
    return sink(param(0, 16, 16).index(i, j).store(value.reduce(r)))


def one_side() -> UOp:
    """All output axes belong to both operands."""
    i, r = out(16, 0), red(8, 1)
    a, b = param(1, 16, 8, dtype=BF16), param(2, 16, 8, dtype=BF16)
    value = a.index(i, r).cast(F32) * b.index(i, r).cast(F32)
    return sink(param(0, 16).index(i).store(value.reduce(r)))


def widened() -> UOp:
    """Products of matrices, each used for a third axis."""
    i, j, more, r = out(16, 0), out(16, 1), out(3, 2), red(64, 3)
    a, b = param(1, 16, 64, dtype=BF16), param(2, 64, 16, dtype=BF16)
    total = (a.index(i, r).cast(F32) * b.index(r, j).cast(F32)).reduce(r)
    return sink(param(0, 16, 16, 3).index(i, j, more).store(total * param(3, 3).index(more)))


def in_place() -> UOp:
    """The product takes the place of one of its operands."""
    i, j, r = out(16, 0), out(16, 1), red(16, 2)
    a, b = [param(slot, 16, 16, dtype=BF16) for slot in (0, 1)]
    total = (a.index(i, r).cast(F32) * b.index(r, j).cast(F32)).reduce(r)
    return sink(a.index(i, j).store(total.cast(BF16)))


BIG = product(64, 128, 256, (BF16, BF16, F32)).sink
PLAIN = product(16, 32, 8, (BF16, BF16, F32)).sink


@pytest.mark.parametrize(
    "ast, opts, rule",
    [
        (PLAIN, [Opt(UPCAST, 0, 2), Opt(TC, 0, (-1, 2, 1))], "chosen before anything else"),
        (PLAIN, [Opt(TC, 0, 1)], r"takes \(unit, level, use\)"),
        (PLAIN, [Opt(TC, 0, (9, 2, 1))], "no such unit, the target has 2"),
        (PLAIN, [Opt(TC, 0, (1, 2, 1))], "no unit multiplies bfloat16 by bfloat16"),
        (PLAIN, [Opt(TC, 0, (-1, 3, 1))], "level is 0, 1 or 2"),
        (PLAIN, [Opt(TC, 0, (-1, 2, 0))], r"used \(1\) or its shape"),
        (PLAIN, [Opt(TC, 7, (-1, 2, 1))], "no such choice of axes"),
        (
            matmul(16, 16, 8).sink,
            [Opt(TC, 0, (-1, 2, 1))],
            "float32 by float32 and adds up float32",
        ),
        (CASES["softmax"]().sink, [Opt(TC, 0, (-1, 2, 1))], "no reduction adds up products"),
        (CASES["transposed"]().sink, [Opt(TC, 0, (-1, 2, 1))], "no reduction adds up products"),
        (shared_axes(), [Opt(TC, 0, (-1, 2, 1))], "another reduction goes over the same axes"),
        (in_place(), [Opt(TC, 0, (-1, 2, 1))], "the kernel writes the operand's buffer"),
        (across_dims(), [Opt(TC, 0, (-1, 2, 1))], "not one dimension of an operand by itself"),
        (
            product(16, 32, 7, (BF16, BF16, F32)).sink,
            [Opt(TC, 0, (-1, 1, 1))],
            "reduced axis of 7 is no multiple of 2; TC_OPT=2 pads",
        ),
        (
            product(17, 20, 8, (BF16, BF16, F32)).sink,
            [Opt(TC, 0, (-1, 1, 1))],
            "lanes' axis of 20 is no multiple of 16",
        ),
        (
            product(16, 32, 2, (BF16, BF16, F32)).sink,
            [Opt(TC, 0, (-1, 2, 1))],
            "no longer than a word",
        ),
        (PLAIN, [Opt(TC, 0, (-1, 2, 1)), Opt(VEC, 1, 24)], "no multiple of 16 lanes"),
        (PLAIN, [Opt(TC, 0, (-1, 2, 1)), Opt(VEC, 0, 16)], "lanes along two axes"),
        (PLAIN, [Opt(TC, 0, (-1, 2, 1)), Opt(UPCAST, 1, 3)], "more elements than the 32"),
    ],
)
def test_an_illegal_use_names_the_rule_and_changes_nothing(ast, opts, rule):
    kernel = Kernel(ast, ALL)
    for opt in opts[:-1]:
        kernel.apply_opt(opt)
    before = (list(kernel.axes), kernel.ast, kernel.applied_opts, dict(kernel.staged))
    with pytest.raises(KernelOptError, match=rule):
        kernel.apply_opt(opts[-1])
    assert (kernel.axes, kernel.ast, kernel.applied_opts, kernel.staged) == before


@pytest.mark.parametrize(
    "ast, opts, rule",
    [
        (BIG, [Opt(UPCAST, 0, 2), Opt(UPCAST, 1, 4)], "more sums than the 8 registers"),
        (BIG, [Opt(BLOCK, 2, 2), Opt(SWAP, 3, 0)], "loops of a reduction are inside"),
        (BIG, [Opt(VEC, 2, 2)], "lanes along two axes"),
        (product(1, 16, 64, (BF16, BF16, F32)).sink, [], "no axis of outputs is for the rows"),
        (one_side(), [], "no axis of outputs belongs to one operand alone"),
        (widened(), [], "more in the kernel than what becomes of the unit's sums"),
    ],
)
def test_units_with_registers_have_rules_of_their_own(ast, opts, rule):
    kernel = Kernel(ast, AMX)
    with pytest.raises(KernelOptError, match=rule):
        for opt in (Opt(TC, 0, (-1, 2, 1)), *opts):
            kernel.apply_opt(opt)
        kernel.tiled()


def test_a_target_without_units_says_so():
    with pytest.raises(KernelOptError, match="there are none at all"):
        Kernel(PLAIN, TARGET).apply_opt(Opt(TC, 0, (-1, 2, 1)))


def test_vectors_are_those_of_the_unit():
    with pytest.raises(KernelOptError, match="vectors along the axis hold 4 elements"):
        Kernel(PLAIN, replace(TARGET, units=tuple(DOTS))).apply_opt(Opt(TC, 0, (-1, 2, 1)))


def test_strict_sums_of_floats_use_no_unit_and_those_of_integers_do():
    with Context(STRICT_REDUCE=1):
        with pytest.raises(KernelOptError, match="STRICT_REDUCE"):
            Kernel(PLAIN, ALL).apply_opt(Opt(TC, 0, (-1, 2, 1)))
        exact = product(4, 16, 8, (U8, I8, I32))
        close(on_python(exact, [Opt(TC, 0, (-1, 2, 1))]), exact.after[0])


def test_rows_and_columns_change_places_by_the_choice_of_axes():
    case = product(32, 48, 8, (BF16, BF16, F32))
    shapes = []
    for axis in (0, 1):
        kernel = Kernel(case.sink, ALL)
        kernel.apply_opt(Opt(TC, axis, (-1, 0, 1)))
        shapes.append([a.lanes for a in kernel.axes])
        close(on_python(case, [Opt(TC, axis, (-1, 0, 1))]), case.after[0])
    assert shapes == [[1, 16, 1], [16, 1, 1]]


# ---------------------------------------------------------------- programs


def test_a_program_multiplies_words_and_its_shape_alone_does_not():
    program = lower(PLAIN, ALL, [Opt(TC, 0, (-1, 2, 1)), Opt(UPCAST, 0, 4), Opt(UPCAST, 1, 2)])
    assert sum(u.op is Ops.WMMA for u in program.uops) == 8
    assert program.flops == lower(PLAIN, ALL, []).flops
    assert [p.dtype for p in program.params] == [F32, BF16, BF16]
    shape = lower(PLAIN, ALL, [Opt(TC, 0, (-1, 2, 2)), Opt(UPCAST, 0, 4), Opt(UPCAST, 1, 2)])
    assert not uses_unit(shape)
    assert [u.src[0].arg for u in shape.uops if u.op is Ops.RANGE] == [
        u.src[0].arg for u in program.uops if u.op is Ops.RANGE
    ]


def test_tensor_cores_are_applied_by_name():
    kernel = Kernel(product(64, 64, 256, (BF16, BF16, F32)).sink, ALL)
    assert not kernel.copy().apply_tensor_cores(0)
    assert kernel.copy().apply_tensor_cores(extra_opts=[Opt(UPCAST, 0, 2)])
    assert kernel.apply_tensor_cores() and uses_unit(kernel.to_program())
    assert not Kernel(matmul(64, 64, 64).sink, ALL).apply_tensor_cores()
    assert not Kernel(product(64, 64, 7, (BF16, BF16, F32)).sink, ALL).apply_tensor_cores(tc_opt=1)


def test_heuristics_use_a_unit_where_it_pays():
    big = product(256, 256, 256, (BF16, BF16, F32)).sink
    assert uses_unit(lower(big, ALL))
    slow = machine(*[replace(u, cycles=8.0) for u in DOTS])
    assert not uses_unit(lower(big, slow))
    with Context(TC=0):
        assert not uses_unit(lower(big, ALL))
    with Context(TC=2):
        program = lower(big, ALL)
        assert program.applied_opts[0] == Opt(TC, 0, (-1, 2, 2)) and not uses_unit(program)
    assert not uses_unit(lower(matmul(256, 256, 256).sink, ALL))  # float32 stays float32
    row = product(1, 64, 64, (BF16, BF16, F32)).sink
    assert not uses_unit(lower(row, ALL))  # too small


def test_a_processor_has_the_units_of_its_features():
    names = {u.name for u in units_of(frozenset({"avx512bf16", "avx512vnni"}), "znver4", 64)}
    assert names == {"avx512bf16.dpbf16ps.512", "avx512.vpdpbusd.512"}
    (narrow,) = units_of(frozenset({"avxvnni", "avx512vnni"}), "alderlake", 32)
    assert narrow.n == 8
    assert units_of(frozenset(), "haswell", 32) == ()
    (slow,) = units_of(frozenset({"avx512bf16"}), "sapphirerapids", 64)
    assert slow.cycles > 2


# ---------------------------------------------------------------- tensors


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_tensors_multiply_the_same_with_and_without(dtype):
    rng = np.random.default_rng(0)
    if dtype == "int8":
        a, b = (Tensor(rng.integers(-128, 128, s).astype(np.int8)) for s in ((65, 203), (203, 130)))
    else:
        a, b = (Tensor(rng.standard_normal(s).astype(np.float32)) for s in ((65, 203), (203, 130)))
        a, b = a.cast(dtypes.bfloat16).realize(), b.cast(dtypes.bfloat16).realize()
    results = []
    for tc in (0, 1, 2):
        with Context(TC=tc):
            results.append(a.matmul(b, dtype=I32 if dtype == "int8" else F32).numpy())
    if dtype == "int8":
        np.testing.assert_array_equal(results[0], a.numpy().astype(int) @ b.numpy().astype(int))
    for other in results[1:]:
        np.testing.assert_allclose(
            other, results[0], rtol=0 if dtype == "int8" else 1e-4, atol=1e-4
        )


def test_a_captured_step_is_made_again_when_units_are_switched_off():
    step = TinyJit(lambda a, b: (a @ b).realize())
    a = Tensor.ones(64, 64, dtype=dtypes.bfloat16).contiguous().realize()
    for _ in range(3):
        step(a, a)
    with Context(TC=0):
        for _ in range(3):
            assert (step(a, a).float().numpy() == 64).all()


def test_an_exported_step_names_the_unit_and_runs_without_it(tmp_path):
    rng = np.random.default_rng(0)
    a, b = (Tensor(rng.integers(-128, 128, s).astype(np.int8)) for s in ((64, 256), (256, 96)))
    step = TinyJit(lambda a, b: a.matmul(b, dtype=I32).realize())
    for _ in range(3):
        expected = step(a, b).numpy()
    step.export(tmp_path / "step.tiny")
    found = load_step(tmp_path / "step.tiny")(a, b)
    np.testing.assert_array_equal(found.numpy(), expected)
    opts = [["TC", 0, [-1, 2, 1]], ["VEC", 1, 16]]
    assert [_plain(container._opt(x)) for x in opts] == opts
    for wrong in (["TC", 0, 1], ["TC", None, [0, 0, 1]], ["TC", 0, [0, 0]], ["TC", 0, [-2, 0, 1]]):
        with pytest.raises(container.Damaged):
            container._opt(wrong)


def _plain(opt: Opt) -> list[object]:
    return [opt.op.name, opt.axis, list(opt.arg) if isinstance(opt.arg, tuple) else opt.arg]
