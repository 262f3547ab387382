"""EXP2, LOG2 and SIN made of plain operations, against 80-bit references, in ULPs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from conftest import examples
from evaluate import evaluate
from tiny.codegen.lower import transcendental
from tiny.codegen.lower.transcendental import largest_magnitude
from tiny.dtype import dtypes
from tiny.uop.ops import BufferArg, Ops, UOp

# half a million samples a case, twenty million under TINY_TEST_FULL=1
SAMPLES = examples(20_000_000, 500_000)
CHUNK = 250_000
BITS = {dtypes.float32: np.uint32, dtypes.float64: np.uint64}
FLOAT = {dtypes.float32: np.float32, dtypes.float64: np.float64}
REFERENCE = {"exp2": np.exp2, "exp": np.exp, "log2": np.log2, "sin": np.sin, "cos": np.cos}
# What the docstring of the module states.
LARGEST_ERROR = {
    ("exp2", dtypes.float32): 1.10,
    ("exp2", dtypes.float64): 1.10,
    ("exp", dtypes.float32): 1.00,
    ("exp", dtypes.float64): 1.00,
    ("log2", dtypes.float32): 1.35,
    ("log2", dtypes.float64): 1.35,
    ("sin", dtypes.float32): 0.51,
    ("sin", dtypes.float64): 0.90,
    ("cos", dtypes.float32): 0.51,
    ("cos", dtypes.float64): 0.90,
}
long_double = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="the references need a long double of 64 bits"
)


def run(name, x, **options):
    dtype = dtypes.float32 if x.dtype == np.float32 else dtypes.float64
    buffer = UOp(Ops.BUFFER, dtype, (), BufferArg(0, x.shape, "TEST"))
    return evaluate(getattr(transcendental, name)(buffer, **options), {buffer: x})


def errors_in_ulps(got, reference):
    """|got - reference| in units of the last place of the reference, where both are finite."""
    info = np.finfo(got.dtype)
    exponent = np.frexp(np.abs(reference))[1] - 1
    unit = np.ldexp(np.longdouble(1), np.maximum(exponent, info.minexp) - info.nmant)
    return np.abs(got.astype(np.longdouble) - reference) / unit


def samples(name, dtype, rng, count):
    """All exponents and signs, subnormals and NaN too; and where the function is used."""
    width = BITS[dtype](0).nbytes * 8
    yield rng.integers(0, 2**width, count, dtype=BITS[dtype]).view(FLOAT[dtype])
    least, most = (-151, 129) if dtype is dtypes.float32 else (-1076, 1025)
    for low, high in {
        "exp2": ((least, most), (-1, 1), (least, least + 26)),
        "exp": ((least * 0.7, most * 0.7), (-1, 1), (least * 0.7, least * 0.7 + 20)),
        "log2": ((0, 4), (0.7, 1.5), (1 - 1e-4, 1 + 1e-4)),
        "sin": ((-8, 8), (-1000, 1000), (-1e6, 1e6)),
        "cos": ((-8, 8), (-1000, 1000), (-1e6, 1e6)),
    }[name]:
        yield rng.uniform(low, high, count).astype(FLOAT[dtype])


@long_double
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
@pytest.mark.parametrize("name", REFERENCE)
def test_errors_stay_within_the_stated_ulps(name, dtype):
    rng = np.random.default_rng(7)
    worst = 0.0
    for _ in range(max(1, SAMPLES // (4 * CHUNK))):
        for x in samples(name, dtype, rng, min(CHUNK, SAMPLES // 4)):
            with np.errstate(all="ignore"):
                got, reference = run(name, x), REFERENCE[name](x.astype(np.longdouble))
                rounded = reference.astype(FLOAT[dtype])
                np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))
                np.testing.assert_array_equal(np.isinf(got), np.isinf(rounded))
                finite = np.isfinite(rounded)
                worst = max(worst, errors_in_ulps(got[finite], reference[finite]).max())
    assert worst <= LARGEST_ERROR[name, dtype]


@long_double
def test_short_sine_of_moderate_arguments_is_as_good():
    rng = np.random.default_rng(8)
    for bound in (2.0**20, 100.0, 4.0):
        x = rng.uniform(-bound, bound, CHUNK).astype(np.float32)
        for name in ("sin", "cos"):
            got = run(name, x, largest=bound)
            assert errors_in_ulps(got, REFERENCE[name](x.astype(np.longdouble))).max() <= 0.51
            # nor does the path matter but for roundings of near ties
            assert np.mean(got != run(name, x)) < 1e-4


def test_every_float16_is_right_to_half_a_unit_of_float16():
    x = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    for name, function in REFERENCE.items():
        with np.errstate(all="ignore"):
            expected = function(x.astype(np.longdouble))
            got = run(name, x).astype(np.float16)
            finite = np.isfinite(got)
            np.testing.assert_array_equal(got[~finite], expected.astype(np.float16)[~finite])
        # rounded twice: a thousandth more than rounded once
        assert errors_in_ulps(got[finite], expected[finite]).max() <= 0.501


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
def test_special_values_are_exact(dtype):
    t = FLOAT[dtype]
    tiny, inf, nan = np.finfo(t).smallest_subnormal, np.inf, np.nan
    least = np.finfo(t).minexp - np.finfo(t).nmant  # 2**least is the smallest subnormal
    most = np.finfo(t).maxexp
    last = 88.72283172607421875 if dtype is dtypes.float32 else 709.782712893384
    odd_nan = np.array([2 ** (8 * t(0).nbytes) - 1], BITS[dtype]).view(t)[0]
    cases = {
        "exp2": [
            (0.0, 1.0), (-0.0, 1.0), (inf, inf), (-inf, 0.0), (nan, nan), (odd_nan, nan),
            (most, inf), (np.nextafter(t(most), t(0)), None), (least, tiny), (least - 2, 0.0),
            (least - 1, 0.0), (1e30, inf), (-1e30, 0.0), (tiny, 1.0), (10, 1024.0),
        ],
        "exp": [
            (0.0, 1.0), (-0.0, 1.0), (inf, inf), (-inf, 0.0), (nan, nan), (odd_nan, nan),
            (1e30, inf), (-1e30, 0.0), (tiny, 1.0), (least, 0.0),
            (last, None), (np.nextafter(t(last), t(inf)), inf),
        ],
        "cos": [
            (0.0, 1.0), (-0.0, 1.0), (inf, nan), (-inf, nan), (nan, nan), (tiny, 1.0),
        ],
        "log2": [
            (0.0, -inf), (-0.0, -inf), (-1.0, nan), (-inf, nan), (inf, inf), (nan, nan),
            (1.0, 0.0), (tiny, least), (8.0, 3.0), (-tiny, nan),
        ],
        "sin": [
            (0.0, 0.0), (-0.0, -0.0), (inf, nan), (-inf, nan), (nan, nan), (tiny, tiny),
            (-tiny, -tiny),
        ],
    }  # fmt: skip
    for name, pairs in cases.items():
        x = np.array([a for a, _ in pairs], t)
        got = run(name, x)
        for (a, expected), value in zip(pairs, got, strict=True):
            if expected is None:
                assert np.isfinite(value)
            else:
                np.testing.assert_equal(float(value), float(expected), err_msg=f"{name}({a})")


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
def test_powers_of_two_are_exact_both_ways(dtype):
    info = np.finfo(FLOAT[dtype])
    n = np.arange(info.minexp - info.nmant, info.maxexp)
    powers = np.ldexp(np.ones(n.size, FLOAT[dtype]), n)
    np.testing.assert_array_equal(run("exp2", n.astype(FLOAT[dtype])), powers)
    np.testing.assert_array_equal(run("log2", powers), n)


def test_sines_of_the_numbers_nearest_to_multiples_of_pi():
    # the hardest float64 (Muller, Elementary Functions) and float32; values by mpmath
    worst_float32 = np.float32([0.0, 16367173.0 * 2.0**72])  # nearest to a multiple of pi/2
    for name in ("sin", "cos"):
        got = run(name, worst_float32)
        exact = REFERENCE[name](worst_float32.astype(np.longdouble))
        assert errors_in_ulps(got, exact).max() <= 0.51
    x = np.array([6381956970095103.0 * 2.0**797, 3.0, 22.0, 355.0, 1e22, 1.7976931348623157e308])
    expected = [
        1.0, 0.1411200080598672, -0.008851309290403876, -3.014435335948845e-05,
        -0.8522008497671888, 0.004961954789184062,
    ]  # fmt: skip
    np.testing.assert_allclose(run("sin", x), expected, rtol=2.3e-16)
    mp = pytest.importorskip("mpmath")
    mp.mp.prec = 2400
    rng = np.random.default_rng(3)
    numerators = [int(mp.nint(mp.pi * int(k))) for k in rng.integers(1, 2**40, 50)]
    near = np.array(
        [6381956970095103.0 * 2.0 ** (797 - k) for k in range(4)]
        + numerators
        + list(rng.integers(0, 0x7FF0000000000000, 200, dtype=np.int64).view(np.float64))
    )
    for name in ("sin", "cos"):
        for a, value in zip(near, run(name, near), strict=True):
            exact = getattr(mp, name)(mp.mpf(float(a)))
            assert abs(mp.mpf(float(value)) - exact) <= 0.9 * math.ulp(float(exact))


def test_digits_of_one_over_pi():
    mp = pytest.importorskip("mpmath")
    mp.mp.prec = 2000
    assert int(transcendental.INVERSE_PI, 16) == int(mp.floor(mp.mpf(2) ** 1163 / mp.pi))


def test_there_are_no_branches_and_no_operations_that_targets_lack():
    for dtype in (dtypes.float32, dtypes.float64):
        x = UOp(Ops.BUFFER, dtype, (), BufferArg(0, (4,), "TEST"))
        for name in REFERENCE:
            used = {n.op for n in getattr(transcendental, name)(x).postorder()} - {Ops.BUFFER}
            plain = "CONST ADD SUB MUL FDIV CMPLT CMPNE CMPEQ WHERE CAST BITCAST SHL SHR AND OR XOR"
            assert used <= {getattr(Ops, op) for op in plain.split()}


def test_bound_of_an_argument_is_seen_through_arithmetic():
    half = UOp(Ops.BUFFER, dtypes.float16, (), BufferArg(0, (4,), "TEST"))
    bits = UOp(Ops.BUFFER, dtypes.uint32, (), BufferArg(1, (4,), "TEST"))
    byte = UOp(Ops.BUFFER, dtypes.uint8, (), BufferArg(2, (4,), "TEST"))
    single = UOp(Ops.BUFFER, dtypes.float32, (), BufferArg(3, (4,), "TEST"))
    uniform = ((bits >> 9) | 0x3F800000).bitcast(dtypes.float32) - 1.0
    assert largest_magnitude(half.cast(dtypes.float32)) == 65504
    assert 4 < largest_magnitude(uniform * 2.0 + 1.0) <= 7.0
    assert largest_magnitude(byte.cast(dtypes.float32) * -2.0 + 3.0) == 513
    assert largest_magnitude(single) == largest_magnitude(single * 0.5 + 1.0) == math.inf
    assert largest_magnitude(bits.bitcast(dtypes.float32)) == math.inf
    assert largest_magnitude(bits.cast(dtypes.float32)) == 2.0**32 - 1
