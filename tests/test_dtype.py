"""Dtypes: promotion, rounding, eight-bit floats, and NumPy's and PyTorch's names."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import struct

import ml_dtypes
import numpy as np
import pytest

from tiny.dtype import (
    DTYPES_DICT,
    AddrSpace,
    Invalid,
    _from_np_dtype,
    _from_torch_dtype,
    _to_np_dtype,
    _to_torch_dtype,
    dtypes,
    float_to_fp8,
    fp8_to_float,
    least_upper_dtype,
    least_upper_float,
    strong_dtype,
    sum_acc_dtype,
    to_dtype,
    truncate,
)
from tiny.helpers import Context

ARITHMETIC = [*dtypes.all, dtypes.weakint, dtypes.weakfloat]
ML = {
    dtypes.fp8e4m3: ml_dtypes.float8_e4m3fn,
    dtypes.fp8e5m2: ml_dtypes.float8_e5m2,
    dtypes.fp8e4m3fnuz: ml_dtypes.float8_e4m3fnuz,
    dtypes.fp8e5m2fnuz: ml_dtypes.float8_e5m2fnuz,
}


def same_float(a, b):
    return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))


# ---------------------------------------------------------------- names


def test_dtypes_are_found_by_name_and_short_name():
    assert to_dtype("float32") is to_dtype("float") is dtypes.float32 is dtypes.float
    assert to_dtype("HALF") is dtypes.float16 and to_dtype("ulong") is dtypes.uint64
    assert to_dtype(dtypes.int8) is dtypes.int8
    assert dtypes.fields() is DTYPES_DICT and DTYPES_DICT["short"] is dtypes.int16


@pytest.mark.parametrize("name", ["float99", "all", "min", "__doc__"])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(name):
    with pytest.raises(ValueError, match="float32"):
        to_dtype(name)


def test_a_type_that_is_no_dtype_is_refused():
    with pytest.raises(TypeError, match=r"dtypes\.float32"):
        to_dtype(np.float32)


@pytest.mark.parametrize("dtype", [*ARITHMETIC, dtypes.void, dtypes.index])
def test_a_dtype_survives_pickling_and_copying(dtype):
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.deepcopy(dtype) is dtype
    assert repr(dtype) == f"dtypes.{dtype.name}"


def test_invalid_is_one_object():
    assert pickle.loads(pickle.dumps(Invalid)) is copy.deepcopy(Invalid) is Invalid
    assert repr(Invalid) == "Invalid" and repr(AddrSpace.LOCAL) == "AddrSpace.LOCAL"


def test_sizes_and_limits():
    sizes = {d.name: (d.bitsize, d.itemsize) for d in dtypes.all}
    assert sizes["bool"] == (1, 1) and sizes["bfloat16"] == (16, 2) and sizes["fp8e5m2"] == (8, 1)
    for d in dtypes.ints:
        info = np.iinfo(_to_np_dtype(d))
        assert (dtypes.min(d), dtypes.max(d)) == (info.min, info.max) == (d.min, d.max)
    assert dtypes.min(dtypes.float16) == -math.inf and dtypes.max(dtypes.bool) is True


def test_questions_about_kinds():
    assert [d for d in ARITHMETIC if dtypes.is_float(d)] == [*dtypes.floats, dtypes.weakfloat]
    assert [d for d in ARITHMETIC if dtypes.is_int(d)] == [*dtypes.ints, dtypes.weakint]
    assert [d for d in ARITHMETIC if dtypes.is_unsigned(d)] == list(dtypes.uints)
    assert [d for d in ARITHMETIC if dtypes.is_bool(d)] == [dtypes.bool]


@pytest.mark.parametrize("dtype", dtypes.floats)
def test_finfo_is_that_of_numpy(dtype):
    info = ml_dtypes.finfo(_to_np_dtype(dtype))
    assert dtypes.finfo(dtype) == (info.nexp, info.nmant)


@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.bool, dtypes.weakfloat])
def test_finfo_of_other_dtypes_is_an_error(dtype):
    with pytest.raises(ValueError, match=dtype.name):
        dtypes.finfo(dtype)


def test_dtypes_of_python_values():
    assert dtypes.from_py(True) is dtypes.bool
    assert dtypes.from_py(2) is dtypes.weakint and dtypes.from_py(2.0) is dtypes.weakfloat
    assert dtypes.from_py([True, 2]) is dtypes.int32
    assert dtypes.from_py([1, 2.0]) is dtypes.from_py([]) is dtypes.float32
    with pytest.raises(TypeError, match="complex"):
        dtypes.from_py(1j)


def test_default_dtypes_follow_the_context():
    with Context(DEFAULT_FLOAT="half", DEFAULT_INT="int64"):
        assert (dtypes.default_float, dtypes.default_int) == (dtypes.float16, dtypes.int64)
        assert strong_dtype(dtypes.weakfloat) is least_upper_float(dtypes.int8) is dtypes.half
    assert (dtypes.default_float, dtypes.default_int) == (dtypes.float32, dtypes.int32)


@pytest.mark.parametrize(
    "variables, message",
    [
        ({"DEFAULT_FLOAT": "int32"}, "DEFAULT_FLOAT=int32: .* is no float"),
        ({"DEFAULT_FLOAT": "weakfloat"}, "is no float"),
        ({"DEFAULT_FLOAT": "real"}, "no dtype is named 'real'"),
        ({"DEFAULT_INT": "float32"}, "DEFAULT_INT=float32: .* is no integer"),
        ({"DEFAULT_INT": "bool"}, "is no integer"),
    ],
)
def test_default_dtypes_of_another_kind_are_refused(variables, message):
    with Context(**variables), pytest.raises(ValueError, match=message):
        dtypes.default_float, dtypes.default_int


def test_integers_of_a_size():
    assert dtypes.int8s == (dtypes.uint8, dtypes.int8)
    assert [d.bitsize for d in dtypes.int16s + dtypes.int64s] == [16, 16, 64, 64]


# ---------------------------------------------------------------- promotion


@pytest.mark.parametrize("a, b", [*itertools.combinations_with_replacement(ARITHMETIC, 2)])
def test_promotion_is_a_join(a, b):
    joined = least_upper_dtype(a, b)
    assert joined is least_upper_dtype(b, a) is least_upper_dtype(joined, a)
    assert least_upper_dtype(a, a) is a
    for c in ARITHMETIC:
        if not {a, b, c} & {*dtypes.fp8s}:  # they meet at float16 by decree, not by order
            assert least_upper_dtype(joined, c) is least_upper_dtype(a, b, c)


def test_promotion_is_numpys_for_integers_of_one_sign():
    for kind in (dtypes.uints, dtypes.sints):
        for a, b in itertools.product(kind, kind):
            expected = np.promote_types(_to_np_dtype(a), _to_np_dtype(b))
            assert least_upper_dtype(a, b) is _from_np_dtype(expected)


@pytest.mark.parametrize(
    "a, b, joined",
    [
        ("int8", "uint8", "int16"),
        ("int32", "uint32", "int64"),
        ("int64", "float16", "float16"),
        ("float16", "bfloat16", "float32"),
        ("fp8e4m3", "fp8e5m2", "float16"),
        ("weakint", "int8", "int8"),
        ("weakint", "bool", "weakint"),
        ("weakfloat", "int64", "weakfloat"),
        ("weakfloat", "fp8e5m2", "fp8e5m2"),
        ("index", "int32", "index"),
        ("index", "weakint", "index"),
        ("index", "float16", "float16"),
    ],
)
def test_promotion_where_kinds_meet(a, b, joined):
    assert least_upper_dtype(to_dtype(a), to_dtype(b)) is to_dtype(joined)


def test_uint64_and_int64_meet_at_a_weak_float_as_in_jax():
    assert least_upper_dtype(dtypes.uint64, dtypes.int64) is dtypes.weakfloat


def test_no_dtypes_meet_nowhere():
    with pytest.raises(TypeError, match="of no dtypes"):
        least_upper_dtype()


def test_void_takes_no_part():
    with pytest.raises(TypeError, match="void"):
        least_upper_dtype(dtypes.void, dtypes.int8)


def test_sums_accumulate_in_at_least_32_bits():
    expected = {"int8": "int32", "uint16": "uint32", "uint64": "uint64", "bool": "int32"}
    expected |= {"float16": "float32", "bfloat16": "float32", "float64": "float64"}
    for name, accumulator in expected.items():
        assert sum_acc_dtype(to_dtype(name)) is to_dtype(accumulator)


# ---------------------------------------------------------------- rounding


@pytest.mark.parametrize("dtype", dtypes.fp8s)
def test_every_eight_bit_float_is_read_as_ml_dtypes_reads_it(dtype):
    theirs = np.arange(256, dtype=np.uint8).view(ML[dtype]).astype(np.float64)
    for code in range(256):
        value = fp8_to_float(code, dtype)
        assert same_float(value, theirs[code])
        if not math.isnan(value):
            assert float_to_fp8(value, dtype) == code


@pytest.mark.parametrize("dtype", dtypes.fp8s)
def test_rounding_to_eight_bits_is_ml_dtypes_within_range(dtype):
    finite = sorted({v for c in range(256) if math.isfinite(v := fp8_to_float(c, dtype))})
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [
            rng.uniform(finite[0], finite[-1], 2000),
            rng.uniform(-1, 1, 2000) * 2.0 ** rng.integers(-25, 4, 2000),
            [(a + b) / 2 for a, b in itertools.pairwise(finite)],  # ties
            [5e-324, -5e-324, 0.0, -0.0],
        ]
    )
    # by float32, as ml_dtypes goes from float64 by a route of its own
    values = values.astype(np.float32).astype(np.float64)
    theirs = values.astype(np.float32).astype(ML[dtype]).astype(np.float64)
    for value, expected in zip(values, theirs, strict=True):
        assert same_float(truncate[dtype](value), expected)


@pytest.mark.parametrize("dtype", dtypes.fp8s)
def test_too_large_for_eight_bits_becomes_the_largest(dtype):
    largest = float(ml_dtypes.finfo(ML[dtype]).max)
    assert truncate[dtype](1e30) == largest and truncate[dtype](-1e30) == -largest
    assert math.isnan(truncate[dtype](math.nan))
    infinite = truncate[dtype](-math.inf)
    assert infinite == -math.inf if dtype is dtypes.fp8e5m2 else math.isnan(infinite)


def test_eight_bit_conversion_refuses_other_dtypes():
    with pytest.raises(ValueError, match="float16"):
        float_to_fp8(1.0, dtypes.float16)
    with pytest.raises(ValueError, match="float16"):
        fp8_to_float(1, dtypes.float16)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64])
def test_rounding_to_a_float_is_numpys(dtype):
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, 4000, dtype=np.uint32)
    values = [*bits.view(np.float32).tolist(), 65519.996, 65520.0, 1e39, 1e-46, -0.0, math.inf]
    with np.errstate(over="ignore"):
        for value in values:
            expected = np.float64(value).astype(np.float32) if dtype.itemsize < 4 else value
            assert same_float(truncate[dtype](value), float(_to_np_dtype(dtype)(expected)))


@pytest.mark.parametrize("dtype", dtypes.ints)
def test_integers_wrap(dtype):
    for value in [0, 1, -1, 127, 128, -129, 2**31, 2**63, -(2**63) - 1, 2**64 + 5, 10**30]:
        wrapped = np.array(value % 2**64, dtype=np.uint64).astype(_to_np_dtype(dtype))
        assert truncate[dtype](value) == int(wrapped)


@pytest.mark.parametrize(
    "dtype, value, expected",
    [
        ("int8", 300.7, 44),
        ("int8", 1e10, -1),
        ("uint8", -1.5, 255),
        ("uint16", -math.inf, 0),
        ("int32", 1e10, 2**31 - 1),
        ("int32", -math.inf, -(2**31)),
        ("uint32", 5e9, 5 * 10**9 - 2**32),
        ("uint32", -1.0, 2**32 - 1),
        ("int64", 1e30, 2**63 - 1),
        ("uint64", -1.0, 2**64 - 1),
        ("uint64", 1e30, 2**64 - 1),
        ("int64", math.nan, 0),
        ("uint8", -0.9, 0),
    ],
)
def test_floats_become_integers_as_on_every_device(dtype, value, expected):
    assert truncate[to_dtype(dtype)](value) == expected


def test_everything_but_zero_is_true():
    assert [truncate[dtypes.bool](v) for v in (0, -0.0, 2, math.nan, 1e-300)] == [
        False,
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize("dtype", dtypes.ints)
def test_constants_of_an_integer_dtype_wrap(dtype):
    for value in [dtype.min, dtype.max, dtype.min - 1, dtype.max + 1, -1]:
        assert dtype.const(value) == truncate[dtype](value)
    with pytest.raises(ValueError, match=dtype.name):
        dtype.const(math.nan)


# ---------------------------------------------------------------- NumPy and PyTorch


@pytest.mark.parametrize("dtype", dtypes.all)
def test_numpy_both_ways(dtype):
    theirs = np.dtype(_to_np_dtype(dtype))
    assert theirs.itemsize == dtype.itemsize
    assert _from_np_dtype(theirs) is _from_np_dtype(theirs.type) is dtype


def test_weak_dtypes_are_stored_as_the_defaults():
    assert _to_np_dtype(dtypes.weakint) is np.int32
    assert _to_np_dtype(dtypes.weakfloat) is np.float32
    assert _to_np_dtype(dtypes.void) is None


def test_byte_order_does_not_matter_and_unknown_dtypes_are_named():
    assert _from_np_dtype(np.dtype(">f4")) is dtypes.float32
    with pytest.raises(TypeError, match="complex64"):
        _from_np_dtype(np.dtype(np.complex64))


@pytest.mark.parametrize("dtype", dtypes.all)
def test_torch_both_ways(dtype):
    torch = pytest.importorskip("torch")
    theirs = _to_torch_dtype(dtype)
    assert theirs.itemsize == dtype.itemsize
    assert _from_torch_dtype(theirs) is dtype
    if dtype.kind != "8":
        assert torch.zeros(1, dtype=theirs).numel() == 1


def test_torch_complex_is_named_as_unknown():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="complex64"):
        _from_torch_dtype(torch.complex64)
