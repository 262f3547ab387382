"""Casts between all pairs of dtypes: on each device, for narrow targets and folded, to the bit.

The expected values are computed here with fractions, from the definitions: a float is the nearest
one, ties to even, rounded once; an integer keeps its low bits; a float becomes an integer by
cutting off its fraction, NaN as 0, saturated in a wider signed integer (int32 for those of 8 and 16
bits, int64 for uint32) before its low bits are taken.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

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
    DEVICES += ["CPU:LLVM:x86_64,-f16c", "CPU:LLVM:x86_64,sse2", "CPU:LLVM:x86_64,-avx512f"]

# digits of the significand, least exponent, largest finite value, infinity, whether there is -0
FORMATS = {
    dtypes.fp8e4m3: (4, -6, 448.0, math.nan, True),
    dtypes.fp8e5m2: (3, -14, 57344.0, math.inf, True),
    dtypes.fp8e4m3fnuz: (4, -7, 240.0, math.nan, False),
    dtypes.fp8e5m2fnuz: (3, -15, 57344.0, math.nan, False),
    dtypes.float16: (11, -14, 65504.0, math.inf, True),
    dtypes.bfloat16: (8, -126, (2 - 2.0**-7) * 2.0**127, math.inf, True),
    dtypes.float32: (24, -126, (2 - 2.0**-23) * 2.0**127, math.inf, True),
    dtypes.float64: (53, -1022, (2 - 2.0**-52) * 2.0**1023, math.inf, True),
}


def nearest(x: int | float, dtype: DType) -> float:
    """The float of a format nearest to x, ties to even; eight-bit ones end at their largest."""
    digits, least, largest, infinity, signed_zero = FORMATS[dtype]
    if math.isnan(x):
        return math.nan
    if math.isinf(x):
        return math.copysign(infinity, x)
    exact = abs(Fraction(x))
    exponent = math.floor(math.log2(exact)) if exact else least
    exponent += (2**exponent if exponent >= 0 else Fraction(1, 2**-exponent)) * 2 <= exact
    exponent -= (2**exponent if exponent >= 0 else Fraction(1, 2**-exponent)) > exact != 0
    unit = Fraction(2) ** (max(exponent, least) - digits + 1)
    size = round(exact / unit) * unit
    if size > largest:
        size = largest if dtype in dtypes.fp8s else math.inf
    negative = math.copysign(1, x) < 0 and (size != 0 or signed_zero)
    return -float(size) if negative else float(size)


def low_bits(x: int, dtype: DType) -> int:
    kept = x % 2**dtype.bitsize
    return kept - 2**dtype.bitsize if dtype.kind == "i" and 2 * kept >= 2**dtype.bitsize else kept


def whole(x: float, dtype: DType) -> int:
    """What a float is as an integer."""
    if math.isnan(x):
        return 0
    wide = dtypes.int32 if dtype.bitsize < 32 else dtypes.int64 if dtype.kind == "u" else dtype
    top = dtype.max if dtype is dtypes.uint64 else wide.max
    return low_bits(int(min(max(x, wide.min), top)), dtype)


def expected(x: bool | int | float, dtype: DType) -> bool | int | float:
    if dtype is dtypes.bool:
        return bool(x)
    if dtypes.is_float(dtype):
        return nearest(x, dtype)
    return whole(x, dtype) if isinstance(x, float) else low_bits(int(x), dtype)


def corners(dtype: DType) -> np.ndarray:
    """Values of a dtype at which conversions go wrong, and some drawn ones."""
    rng, np_dtype = np.random.default_rng(dtype.id), _to_np_dtype(dtype)
    if dtype is dtypes.bool:
        return np.array([False, True])
    if dtypes.is_int(dtype):
        given = [0, 1, 2, 3, 127, 128, 255, 256, 257, 2049, 2051, 65504, 65519, 65520, 65535]
        for bits in (24, 25, 31, 32, 33, 47, 53, 54, 61, 62, 63, 64):
            # next to powers of two, ties of float32 and bfloat16, and what lies just beyond them
            ties = [2**bits + k * 2 ** max(bits - s, 0) for s in (8, 9, 24, 53) for k in (1, 3)]
            near = [t + d for t in [2**bits, *ties] for d in (-1, 0, 1)]
            given += near
        given += [rng.integers(0, 2**63).item() >> int(k) for k in rng.integers(0, 60, 40)]
        given += [-v for v in given]
        kept = {v for v in given if dtype.min <= v <= dtype.max} | {dtype.min, dtype.max}
        return np.array(sorted(kept), np_dtype)
    largest = FORMATS[dtype][2]
    given = [0.0, 0.3, 0.5, 0.9, 1.0, 1.5, 2.5, 126.7, 127.0, 128.0, 200.9, 255.5, 256.0, 300.0]
    given += [32767.9, 32768.0, 40000.0, 65535.0, 65536.0, 70000.0, largest]
    given += [2.0**k for k in (31, 32, 40, 52, 53, 62, 63, 64, 65, 100)]
    given += [2.0**k * (1 - 2.0**-24) for k in (31, 32, 63, 64)] + [2.0**31 - 0.5, 2.0**32 - 0.5]
    for form, (p, e, top, *_) in FORMATS.items():
        if form is dtype:
            continue
        unit = 2.0 ** (e - p + 1)  # ties among small numbers, near one and at the upper end
        for tie in (
            unit / 2,
            unit * 1.5,
            unit * 2.5,
            1 + 2.0**-p,
            1 + 3 * 2.0**-p,
            top * (1 + 2.0 ** -(p + 1)),
        ):
            given += [tie, tie * (1 - 2.0**-50), tie * (1 + 2.0**-50), tie * (1 + 2.0**-23)]
    given += (rng.uniform(1, 2, 60) * 2.0 ** rng.integers(-60, 60, 60)).tolist()
    given += [5e-324, 2.0**-149, 2.0**-133, 1e-310, 1e-40]
    both = [s * v for v in given for s in (1, -1)] + [math.inf, -math.inf, math.nan]
    rounded = {v for v in (nearest(v, dtype) for v in both) if v == v}
    return np.array([*sorted(rounded), -0.0, math.nan]).astype(np_dtype)


def as_python(x: np.ndarray, dtype: DType) -> list:
    """Elements as Python numbers; a float of less than 64 bits is exact in one of 64."""
    return x.astype(np.float64).tolist() if dtypes.is_float(dtype) else x.tolist()


def differ(a: float, b: float) -> bool:
    if a != a or b != b:
        return (a != a) != (b != b)
    return a != b or math.copysign(1, a) != math.copysign(1, b)


def check(found: list, wanted: list, given: list, what: object) -> None:
    wrong = [(g, f, w) for f, w, g in zip(found, wanted, given, strict=True) if differ(f, w)]
    assert not wrong, (
        f"{what}: of {wrong[0][0]!r} got {wrong[0][1]!r}, not {wrong[0][2]!r}; {len(wrong)} in all"
    )


@pytest.mark.parametrize("dev", DEVICES)
@pytest.mark.parametrize("source", dtypes.all)
def test_casts_of_memory_are_exact_to_the_bit(source, dev):
    x = corners(source)
    given = as_python(x, source)
    with Context(DEV=dev):
        tensor = Tensor(x)
        results = [tensor.cast(to) for to in dtypes.all]
        Tensor.realize(*results)
        for to, result in zip(dtypes.all, results, strict=True):
            assert result.dtype is to
            wanted = [expected(v, to) for v in given]
            check(as_python(result.numpy(), to), wanted, given, f"{source} to {to} on {dev}")


@pytest.mark.parametrize("source", dtypes.all)
def test_casts_of_constants_are_those_of_memory(source):
    x = corners(source)
    given = as_python(x, source)
    for to in dtypes.all:
        wanted = [expected(v, to) for v in given]
        check([truncate[to](v) for v in given], wanted, given, f"truncate {source} to {to}")
        folded = [simplify(UOp.const(v, source).cast(to)) for v in given]
        if source in dtypes.fp8s:  # their constants are lowered, not folded
            continue
        assert all(f.op is Ops.CONST and f.dtype is to for f in folded)
        check([f.arg for f in folded], wanted, given, f"folded {source} to {to}")


@pytest.mark.parametrize("dev", DEVICES)
@pytest.mark.parametrize("to", dtypes.all)
def test_python_numbers_become_any_dtype_with_one_rounding(to, dev):
    given = [0, 1, -1, 255, 2049, 65519, 2**24 + 1, 2**31, 2**53 + 1, 2**60 + 2**36 + 1, 2**63 - 1]
    given += [2**62 + 2**54 + 1, -(2**62) - 2**38 - 1, 0.1, -0.0, 2.5, 1 + 2.0**-8 + 2.0**-40, 1e30]
    wanted = [expected(v, to) for v in given]
    with Context(DEV=dev):
        if not dtypes.is_int(to):  # integers out of range of a dtype are refused or wrap, see there
            constants = [Tensor(v, dtype=to) for v in given]
            check([c.item() for c in constants], wanted, given, f"Tensor(…, dtype={to})")
            check(
                [(c + 0).item() for c in constants],
                [w + 0 if to is not dtypes.bool else w for w in wanted],
                given,
                "computed",
            )
            for kind in (int, float):
                some = [v for v in given if type(v) is kind]
                listed = as_python(Tensor(some, dtype=to).numpy(), to)
                check(listed, [expected(v, to) for v in some], some, f"Tensor([…], dtype={to})")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 67])
def test_a_conversion_does_not_depend_on_the_length(size):
    floats = np.array(
        [300.7, -1.5, 1e10, math.nan, -math.inf, 4e9, 65519.9, -(2.0**63)] * 9, np.float32
    )
    for start in range(3):
        x = floats[start : start + size]
        for to in (
            dtypes.uint8,
            dtypes.int16,
            dtypes.int32,
            dtypes.uint32,
            dtypes.int64,
            dtypes.uint64,
        ):
            wanted = [expected(float(v), to) for v in x]
            check(Tensor(x).cast(to).tolist(), wanted, x.tolist(), f"{to} of {size}")


def test_casts_that_lose_something_are_not_removed():
    """Where simplify leaves out the cast between, the values are what both casts give."""
    removed = 0
    for source, middle, to in itertools.product(dtypes.all, repeat=3):
        x = (
            UOp.variable("x", source.min, source.max, source)
            if dtypes.is_int(source)
            else UOp.placeholder((), source, 0)
        )
        node = simplify(x.cast(middle).cast(to))
        kept = [n for n in node.postorder() if n.op is Ops.CAST]
        if len(kept) == 2 or middle in (source, to):
            continue
        removed += 1
        for v in as_python(corners(source), source)[::5]:
            direct = v if not kept else expected(v, to)
            assert not differ(direct, expected(expected(v, middle), to)), (source, middle, to, v)
    assert removed > 500


def test_lists_keep_each_int_whatever_is_beside_it():
    """NumPy makes float64 of an int that needs uint64 beside a smaller one, or beside a float."""
    large = [2**63 + 1, 2**64 - 1, 5]
    assert Tensor(large, dtype="uint64").tolist() == large
    assert Tensor([2**53 + 1, 0.5], dtype="int64").tolist() == [2**53 + 1, 0]
    assert Tensor([[2**53 + 1], [0.5]]).tolist() == [[float(np.float32(2**53 + 1))], [0.5]]
    assert Tensor([1e30, 1, True]).dtype is dtypes.float32
    with pytest.raises(ValueError, match="does not fit into"):
        Tensor([2**63 + 1, 5])
