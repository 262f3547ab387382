"""Arithmetic of each dtype: folded as it runs, on each device the same bits, one rounding each."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tiny import Tensor
from tiny.dtype import DType, _to_np_dtype, dtypes, truncate
from tiny.helpers import Context
from tiny.runtime.cpu import host_arch
from tiny.uop.ops import Ops, UOp
from tiny.uop.symbolic import simplify

DEVICES = ["CPU", "PYTHON"]
if host_arch() == "x86_64":
    DEVICES += ["CPU:LLVM:x86_64,-f16c", "CPU:LLVM:x86_64,sse2"]
NARROW = [d for d in dtypes.floats if d.itemsize < 4]

COMPARISONS = (Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE)
OF_INTS = {
    Ops.ADD: lambda a, b: a + b,
    Ops.SUB: lambda a, b: a - b,
    Ops.MUL: lambda a, b: a * b,
    Ops.FLOORDIV: lambda a, b: a // b if b else 0,
    Ops.FLOORMOD: lambda a, b: a % b if b else 0,
    Ops.CDIV: lambda a, b: _towards_zero(a, b),
    Ops.CMOD: lambda a, b: a - b * _towards_zero(a, b) if b else 0,
    Ops.MAX: max,
    Ops.AND: lambda a, b: a & b,
    Ops.OR: lambda a, b: a | b,
    Ops.XOR: lambda a, b: a ^ b,
    Ops.CMPLT: lambda a, b: a < b,
    Ops.CMPEQ: lambda a, b: a == b,
    Ops.CMPNE: lambda a, b: a != b,
}
UNARY = (Ops.NEG, Ops.SQRT, Ops.TRUNC, Ops.RECIPROCAL)
OF_FLOATS = (Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.MAX, *COMPARISONS)


def _towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0


def shifted(op: Ops, a: int, b: int, dtype: DType) -> int:
    if not 0 <= b < dtype.bitsize:
        return -1 if op is Ops.SHR and a < 0 else 0
    return a << b if op is Ops.SHL else a >> b


def wrapped(x: int, dtype: DType) -> int:
    kept = x % 2**dtype.bitsize
    return kept - 2**dtype.bitsize if dtype.kind == "i" and 2 * kept >= 2**dtype.bitsize else kept


def folded(op: Ops, dtype: DType, values: tuple, source: DType):
    node = simplify(UOp(op, dtype, tuple(UOp.const(v, source) for v in values)))
    return node.arg if node.op is Ops.CONST else None


@pytest.mark.parametrize("dtype", dtypes.ints)
def test_integers_wrap_alike_folded_and_on_each_device(dtype):
    given = [0, 1, 2, 3, 7, -1, -2, -7, dtype.min, dtype.min + 1, dtype.max, dtype.max - 1]
    given += [dtype.bitsize - 1, dtype.bitsize, 64, dtype.max // 3]
    inside = sorted({v for v in given if dtype.min <= v <= dtype.max})
    pairs = list(itertools.product(inside, inside))
    a, b = np.array(pairs, _to_np_dtype(dtype)).T
    ops = (*OF_INTS, Ops.SHL, Ops.SHR)
    expected = {}
    for op in ops:
        result = dtypes.bool if op in COMPARISONS else dtype
        for p, q in pairs:
            if op in OF_INTS:
                exact = OF_INTS[op](p, q)
            else:
                exact = shifted(op, p, q, dtype)
            value = exact if op in COMPARISONS else wrapped(exact, dtype)
            expected.setdefault(op, []).append(value)
            assert folded(op, result, (p, q), dtype) == value, (op, p, q)
    for dev in DEVICES:
        with Context(DEV=dev):
            x, y = Tensor(a.copy()), Tensor(b.copy())
            results = [x._node(op, dtypes.bool if op in COMPARISONS else dtype, (y,)) for op in ops]
            Tensor.realize(*results)
            for op, result in zip(ops, results, strict=True):
                assert result.tolist() == expected[op], (op, dev)


def float_values(dtype: DType) -> np.ndarray:
    rng = np.random.default_rng(0)
    given = [0.0, -0.0, 1, -1, 1.5, 0.1, 3, 1 / 3, 448, 240, 57344, 65504, 3e38, 1e-40, 6e-8]
    given += [1.7e308, 5e-324, math.inf, -math.inf, math.nan, 2.0**-9, 2049, *rng.normal(0, 1, 8)]
    return np.array([truncate[dtype](v) for v in given])


@pytest.mark.parametrize("dtype", dtypes.floats)
def test_floats_round_alike_folded_and_on_each_device(dtype):
    pairs = list(itertools.product(float_values(dtype), repeat=2))
    a, b = np.array(pairs).T
    found = {}
    for dev in DEVICES:
        with Context(DEV=dev):
            x, y = (Tensor(v.astype(_to_np_dtype(dtype))) for v in (a, b))
            results = [
                x._node(op, dtypes.bool if op in COMPARISONS else dtype, (y,)) for op in OF_FLOATS
            ]
            results += [x._node(op, dtype) for op in UNARY]
            Tensor.realize(*results)
            found[dev] = [r.cast("float64").numpy() for r in results]
    for dev, values in found.items():
        for op, ours, theirs in zip((*OF_FLOATS, *UNARY), values, found["PYTHON"], strict=True):
            np.testing.assert_array_equal(ours, theirs, f"{op} on {dev}")
            numbers = ours == ours
            np.testing.assert_array_equal(np.signbit(ours[numbers]), np.signbit(theirs[numbers]))
    if dtype in dtypes.fp8s:
        return  # their constants are not folded
    count = 0
    for op, values in zip((*OF_FLOATS, *UNARY), found["PYTHON"], strict=True):
        for pair, value in zip(pairs, values.tolist(), strict=True):
            given = pair if op in OF_FLOATS else pair[:1]
            constant = folded(op, dtypes.bool if op in COMPARISONS else dtype, given, dtype)
            if constant is not None:
                assert repr(float(constant)) == repr(value), (op, given)
                count += 1
    assert count > 0.9 * len(pairs) * (len(OF_FLOATS) + len(UNARY))


# ---------------------------------------------------------------- narrow floats


def rounded_once(dtype: DType, op, *operands: np.ndarray) -> np.ndarray:
    """One operation on narrow values: in float32, which is exact or innocuous, then rounded."""
    with np.errstate(all="ignore"):
        wide = op(*[v.astype(np.float32) for v in operands])
    return np.array([truncate[dtype](float(v)) for v in wide.ravel()]).reshape(wide.shape)


@pytest.mark.parametrize("dev", DEVICES)
@pytest.mark.parametrize("dtype", NARROW)
def test_each_operation_of_a_kernel_rounds_once(dtype, dev):
    """x * y + z in one kernel is what two kernels give, and PyTorch's eager mode."""
    rng = np.random.default_rng(1)
    a, b, c = (rng.normal(0, 1, 200) for _ in range(3))
    with Context(DEV=dev):
        x, y, z = (Tensor(v).cast(dtype).realize() for v in (a, b, c))
        p, q, r = (v.cast("float64").numpy() for v in (x, y, z))
        product = rounded_once(dtype, np.multiply, p, q)
        expected = rounded_once(dtype, np.add, product, r)
        np.testing.assert_array_equal((x * y + z).cast("float64").numpy(), expected)
        np.testing.assert_array_equal(((x * y).realize() + z).cast("float64").numpy(), expected)
        wide = rounded_once(dtype, lambda u, v, w: u * v + w, p, q, r)
        assert (wide != expected).any()  # so that the order of roundings is seen


@pytest.mark.parametrize("dtype", NARROW)
def test_sums_and_products_of_matrices_accumulate_in_float32(dtype):
    rng = np.random.default_rng(2)
    x = Tensor(rng.normal(0, 1, (24, 512))).cast(dtype).realize()
    y = Tensor(rng.normal(0, 1, (512, 8))).cast(dtype).realize()
    p, q = (v.cast("float64").numpy() for v in (x, y))
    ones = Tensor.ones(4096, dtype=dtype)
    largest = {"fp8e4m3": 448, "fp8e4m3fnuz": 240}.get(dtype.name, 4096)
    assert ones.sum().item() == largest  # counted in the dtype itself it would end at 2**digits
    assert ones.mean().item() == 1
    for found, exact in (
        (x.sum(1), p.sum(1)),
        (x.mean(1), p.mean(1)),
        (x @ y, p @ q),
        (  # a window of 512 taps
            x.reshape(24, 1, 512).conv2d(y.T.reshape(8, 1, 512)).reshape(24, 8),
            p @ q,
        ),
    ):
        assert found.dtype is dtype
        expected = np.array([truncate[dtype](v) for v in exact.ravel()]).reshape(exact.shape)
        ours = found.cast("float64").numpy()
        unit = 2.0 ** -dtypes.finfo(dtype)[1]
        np.testing.assert_allclose(ours, expected, rtol=unit, atol=unit * 2.0**-6)
        assert (ours == expected).mean() > 0.98  # float32's rounding moves hardly one over a tie
