"""Functions of floats against references of more digits, in ULPs, on each device."""

from __future__ import annotations

import math
import re
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

from accuracy import (
    BITS,
    FUNCTIONS,
    SPECIAL,
    arguments,
    errors,
    exact_errors,
    hard_angles,
    wider,
)
from conftest import examples
from evaluate import evaluate
from functions import PLAIN
from tiny import Tensor
from tiny.codegen.lower import trigonometry
from tiny.codegen.lower.functions import LOWERED, PERIODIC
from tiny.codegen.lower.trigonometry import largest_magnitude
from tiny.dtype import dtypes
from tiny.uop.functions import ARITY
from tiny.uop.ops import BufferArg, Ops, UOp

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
KINDS = [np.float32, np.float64]
COUNT = examples(1 << 22, 10_000)
# of all 2**32 numbers of 32 bits; each sixteenth under TINY_TEST_FULL=1
STEP = examples(16, 40_009)
CHUNK = 1 << 22
LOWERINGS = {**LOWERED, **PERIODIC}
long_double = np.finfo(np.longdouble).nmant >= 63


def promised(name, kind):
    return getattr(FUNCTIONS[name], np.dtype(kind).name)


@pytest.mark.skipif(not PAGE.exists(), reason="the page is not beside the tests")
def test_the_page_states_what_is_promised():
    rows = re.findall(
        r"(?m)^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", PAGE.read_text()
    )
    assert {row[0]: (float(row[2]), float(row[4])) for row in rows} == {
        name: (f.float32, f.float64) for name, f in FUNCTIONS.items()
    }
    assert all(float(row[1]) <= float(row[2]) for row in rows)
    assert all(float(row[3]) <= float(row[4]) for row in rows)


def test_every_function_has_a_promise_or_is_part_of_one():
    parts = {"expm1": "elu", "log1p": "softplus", "erfc": "gelu"}
    exact = {"fmod", "mod", "floordiv", "round", "abs", "copysign"}
    assert set(ARITY) - exact - set(parts) <= set(FUNCTIONS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_stay_within_the_promise(name, kind):
    if kind is np.float64 and (not long_double or name == "erf"):
        pytest.skip("no float is wide enough here; the next test has the reference")
    for x in arguments(name, kind, COUNT):
        check_errors(name, kind, *x)


def check_errors(name, kind, *x):
    function = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        reference = function.plain(*[v.astype(wider(kind)) for v in x])
        rounded = reference.astype(kind)
    got = function.run(*[Tensor(v) for v in x]).numpy()
    check_special(name, x, got, rounded)
    off = errors(got, reference)
    worst = int(off.argmax())
    assert off[worst] <= promised(name, kind), [float(v[worst]).hex() for v in x]


@pytest.mark.parametrize("name", [n for n, f in FUNCTIONS.items() if f.operands == 1])
def test_errors_over_the_whole_of_float32(name):
    numbers = range(0, 1 << 32, STEP)
    for start in range(0, len(numbers), CHUNK):
        part = numbers[start : start + CHUNK]
        x = np.arange(part.start, part.stop, STEP, dtype=np.int64).astype(np.uint32)
        check_errors(name, np.float32, x.view(np.float32))


def check_special(name, x, got, expected):
    """NaN, infinities and zeros are where they should be, zeros with their signs."""
    if name in ("softplus", "logsigmoid"):  # of products and sums: 0 or the least number
        wrong = np.isnan(got) != np.isnan(expected)
    else:
        with np.errstate(all="ignore"):
            least = 2 * np.finfo(got.dtype).smallest_subnormal
            wrong = (np.isnan(got) != np.isnan(expected)) | (np.isinf(got) != np.isinf(expected))
            zero = (got == 0) & (expected == 0)
            wrong |= zero & (np.signbit(got) != np.signbit(expected))
            wrong |= (got == 0) & (np.abs(expected) > least)
    if name == "pow":  # NumPy's has the same table
        wrong &= np.isfinite(x[0]) | np.isnan(got)
    assert not wrong.any(), (
        [v[wrong][:5] for v in x],
        got[wrong][:5],
        expected[wrong][:5],
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_of_float64_by_numbers_of_any_length(name):
    count = examples(20_000, 30)
    for x in arguments(name, np.float64, count):
        at = np.random.default_rng(0).permutation(len(x[0]))[: 2 * count]
        x = [v[at] for v in x]
        off = exact_errors(name, *x)
        worst = int(off.argmax())
        assert off[worst] <= promised(name, np.float64), [float(v[worst]).hex() for v in x]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_device_in_python_keeps_the_promise(name, kind):
    function = FUNCTIONS[name]
    for x in list(arguments(name, kind, 64))[:3]:
        x = [v[:256] for v in x]
        with np.errstate(all="ignore"):
            reference = function.plain(*[v.astype(wider(kind)) for v in x])
            rounded = reference.astype(kind)
        got = function.run(*[Tensor(v, device="PYTHON") for v in x]).numpy()
        check_special(name, x, got, rounded)
        assert errors(got, reference).max() <= promised(name, kind)


@pytest.mark.parametrize("narrow", [dtypes.float16, dtypes.bfloat16])
@pytest.mark.parametrize("name", [n for n, f in FUNCTIONS.items() if f.operands == 1])
def test_every_narrow_float_is_right_to_half_a_unit(name, narrow):
    function = FUNCTIONS[name]
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = Tensor(bits).bitcast(narrow)
    y = function.run(x)
    assert y.dtype is narrow
    got = y.float().numpy()
    with np.errstate(all="ignore"):
        reference = function.plain(x.double().numpy())
    digits, least = (10, -14) if narrow is dtypes.float16 else (7, -126)
    expected = Tensor(reference).cast(narrow).float().numpy()
    finite = np.isfinite(expected) & np.isfinite(got)
    exponent = np.frexp(np.abs(reference))[1] - 1
    with np.errstate(all="ignore"):
        off = np.abs(got - reference) / np.ldexp(1.0, np.maximum(exponent, least) - digits)
    assert off[finite].max() <= 0.51
    # what is near a tie with infinity may go either way
    largest = 65504.0 if narrow is dtypes.float16 else 3.3895e38
    edge = np.abs(reference) > largest * 0.999
    np.testing.assert_array_equal(np.isfinite(got)[~edge], np.isfinite(expected)[~edge])


def test_sines_of_the_numbers_nearest_to_multiples_of_half_pi():
    for name in ("sin", "cos", "tan"):
        for kind in KINDS:
            x = hard_angles(kind)
            x = x[:: max(1, len(x) // examples(100_000, 80))]
            assert exact_errors(name, x).max() <= promised(name, kind)
    x = np.array([6381956970095103.0 * 2.0**797, 3.0, 22.0, 355.0, 1e22, 1.7976931348623157e308])
    expected = [
        1.0, 0.1411200080598672, -0.008851309290403876, -3.014435335948845e-05,
        -0.8522008497671888, 0.004961954789184062,
    ]  # fmt: skip
    np.testing.assert_allclose(Tensor(x).sin().numpy(), expected, rtol=2.3e-16)


def test_digits_of_one_over_pi():
    mp.mp.prec = 2000
    assert int(trigonometry.INVERSE_PI, 16) == int(mp.floor(mp.mpf(2) ** 1163 / mp.pi))


@pytest.mark.parametrize("kind", KINDS)
def test_powers_of_two_are_exact_both_ways(kind):
    info = np.finfo(kind)
    n = np.arange(info.minexp - info.nmant, info.maxexp)
    powers = np.ldexp(np.ones(n.size, kind), n)
    np.testing.assert_array_equal(Tensor(n.astype(kind)).exp2().numpy(), powers)
    np.testing.assert_array_equal(Tensor(powers).log2().numpy(), n)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["fmod", "mod", "floordiv", "round", "abs", "copysign"])
def test_what_is_exact_equals_the_reference_bit_by_bit(name, kind):
    rng = np.random.default_rng(5)
    uint = BITS[kind]
    with np.errstate(over="ignore"):
        special = np.concatenate([SPECIAL, -SPECIAL]).astype(kind)
    every = rng.integers(0, 2 ** (8 * uint().nbytes), examples(1 << 22, 20_000), uint).view(kind)
    near = rng.uniform(-1000, 1000, len(every)).astype(kind)
    pairs = [np.meshgrid(special, special), (every, rng.permutation(every))]
    pairs += [(near, rng.permutation(near)), (near, rng.choice(special, len(near)))]
    for a, b in pairs:
        operands = [np.ravel(a), np.ravel(b)][: ARITY[name]]
        x = Tensor(operands[0])
        got = x._math(name, *[Tensor(v) for v in operands[1:]]).numpy()
        with np.errstate(all="ignore"):
            wide = [v.astype(np.float64) for v in operands] if name == "floordiv" else operands
            expected = PLAIN[name](*wide).astype(kind)
        same = (got == expected) & (np.signbit(got) == np.signbit(expected))
        same |= np.isnan(got) & np.isnan(expected)
        if name == "floordiv":  # beyond, NumPy rounds twice, and so may we
            same |= np.abs(expected) > 2.0 ** (np.finfo(kind).nmant + 1)
        assert same.all(), ([v[~same][:3] for v in operands], got[~same][:3])


# ---------------------------------------------------------------- how they are made


def lowered(name, dtype):
    buffers = [UOp(Ops.BUFFER, dtype, (), BufferArg(k, (4,), "TEST")) for k in range(2)]
    return LOWERINGS[name](*buffers[: ARITY.get(name, 1)])


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
@pytest.mark.parametrize("name", LOWERINGS)
def test_there_are_no_branches_and_no_operations_that_targets_lack(name, dtype):
    used = {n.op for n in lowered(name, dtype).postorder()} - {Ops.BUFFER}
    plain = "CONST ADD SUB MUL FDIV NEG SQRT TRUNC CMPLT CMPNE CMPEQ WHERE CAST BITCAST"
    plain += " SHL SHR AND OR XOR"
    plain += " MULACC"  # of two roundings on a target that has none
    assert used <= {getattr(Ops, op) for op in plain.split()}


def test_functions_are_of_few_operations():
    sizes = {name: len(list(lowered(name, dtypes.float32).postorder())) for name in LOWERINGS}
    assert sizes["exp"] <= 60 and sizes["log"] <= 70 and sizes["tanh"] <= 90
    assert max(sizes.values()) <= 250
    wide = [len(list(lowered(name, dtypes.float64).postorder())) for name in LOWERINGS]
    assert max(wide) <= 450


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_short_way_of_moderate_angles_is_as_good(name):
    rng = np.random.default_rng(8)
    x = UOp(Ops.BUFFER, dtypes.float32, (), BufferArg(0, (20_000,), "TEST"))
    for bound in (2.0**20, 100.0, 4.0):
        values = rng.uniform(-bound, bound, 20_000).astype(np.float32)
        got = evaluate(PERIODIC[name](x, bound), {x: values})
        assert errors(got, PLAIN[name](values.astype(np.float64))).max() <= 0.51


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
