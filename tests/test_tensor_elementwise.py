"""Casts, arithmetic, comparisons and functions, against NumPy and PyTorch, in every dtype."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator

import numpy as np
import pytest

from numpy_runtime import bound
from tiny.dtype import _to_np_dtype, dtypes
from tiny.tensor import Tensor
from tiny.uop.ops import Ops
from tiny.uop.runtime import Runtime


@pytest.fixture(autouse=True, scope="module", params=["evaluator", "devices"])
def runs_on(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with bound(request.param) as used:
        yield used


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-3, 88.0, -90.0, math.inf, -math.inf, math.nan]


def values(dtype, count=24):
    """Numbers of a dtype, its limits or special values among them."""
    rng = np.random.default_rng(dtype.id)
    np_dtype = _to_np_dtype(dtype)
    if dtypes.is_float(dtype):
        drawn = [*SPECIAL, *(rng.standard_normal(count) * 3)]
        return np.array(drawn, np.float32).astype(np_dtype)
    if dtype is dtypes.bool:
        return np.arange(count) % 3 == 0
    limits = [dtype.min, dtype.max, 0, 1, 2, dtype.max - 1]
    return np.array([*limits, *rng.integers(0, 100, count)], dtype=np_dtype)


def same(actual, expected, **tolerance):
    actual = actual.numpy()
    assert actual.shape == np.shape(expected)
    if tolerance:
        np.testing.assert_allclose(
            actual.astype(np.float64), np.asarray(expected).astype(np.float64), **tolerance
        )
    else:
        if actual.dtype.kind in "Vf":  # NumPy's tests do not know the NaNs of ml_dtypes
            actual, expected = actual.astype(np.float64), np.asarray(expected).astype(np.float64)
        np.testing.assert_array_equal(actual, expected)


# ---------------------------------------------------------------- promotion and broadcasting


@pytest.mark.parametrize("a, b", [*itertools.product(dtypes.ints + (dtypes.bool,), repeat=2)])
def test_integers_add_and_multiply_as_in_numpy_after_promotion(a, b):
    x, y = values(a), values(b)
    size = min(len(x), len(y))
    x, y = x[:size], y[:size]
    result = Tensor(x) + Tensor(y)
    if dtypes.is_float(result.dtype):  # 64 bits with and without a sign have no integer in common
        assert {a, b} >= {dtypes.uint64}
        return
    np_dtype = _to_np_dtype(result.dtype)
    with np.errstate(over="ignore"):
        same(result, x.astype(np_dtype) + y.astype(np_dtype))
        same(Tensor(x) * Tensor(y), x.astype(np_dtype) * y.astype(np_dtype))


@pytest.mark.parametrize("dtype", dtypes.all)
def test_a_python_number_takes_the_dtype_of_its_kind(dtype):
    x = Tensor(values(dtype))
    if dtype is dtypes.bool:
        assert ((x + 1).dtype, (x + 1.0).dtype, (x | True).dtype) == (
            dtypes.int32,
            dtypes.float32,
            dtypes.bool,
        )
    else:
        assert (x + 1).dtype is (2 * x).dtype is (x - True).dtype is dtype
        expected = dtype if dtypes.is_float(dtype) else dtypes.float32
        assert (x * 1.5).dtype is (1.5 - x).dtype is (x * Tensor(1.5)).dtype is expected


@pytest.mark.parametrize(
    "a, b",
    [((3,), ()), ((2, 3), (3,)), ((2, 1), (1, 3)), ((0, 3), (1, 3)), ((1,), (2, 1)), ((), ())],
)
def test_shapes_broadcast_as_in_numpy(a, b):
    x, y = np.full(a, 3.0, np.float32), np.full(b, 4.0, np.float32)
    same(Tensor(x) - Tensor(y), x - y)
    same((Tensor(x) < Tensor(y)).where(Tensor(y), Tensor(x)), np.maximum(x, y))


def test_a_scalar_is_not_expanded_in_the_graph():
    x = Tensor(np.zeros((2, 3), np.float32))
    assert [n.op for n in (x * 2 + 1).uop.postorder()].count(Ops.EXPAND) == 0


def test_numpy_numbers_and_arrays_on_the_left():
    x = Tensor([1.0, 2.0])
    assert (np.float32(3) * x).tolist() == [3.0, 6.0]
    assert (x + np.float64(1)).dtype is dtypes.float32
    with pytest.raises(TypeError, match="Tensor"):
        np.ones(2) + x


# ---------------------------------------------------------------- operators

INTEGER_OPERATORS = [operator.and_, operator.or_, operator.xor]


@pytest.mark.parametrize("op", INTEGER_OPERATORS)
@pytest.mark.parametrize("dtype", dtypes.ints + (dtypes.bool,))
def test_bits(op, dtype):
    x = values(dtype)
    same(op(Tensor(x), Tensor(x[::-1].copy())), op(x, x[::-1]))
    same(~Tensor(x), ~x)


@pytest.mark.parametrize("dtype", dtypes.ints)
def test_shifts(dtype):
    x = values(dtype)
    same(Tensor(x) << 3, x << np.array(3, x.dtype))
    same(Tensor(x) >> 3, x >> np.array(3, x.dtype))
    same(2 << Tensor(x[4:5]), np.array([8], x.dtype))


@pytest.mark.parametrize("dtype", dtypes.ints)
def test_integer_division(dtype):
    x, y = values(dtype), np.roll(values(dtype), 3)
    y[y == 0] = 7
    with np.errstate(all="ignore"):
        same(Tensor(x) // Tensor(y), x // y)
        same(Tensor(x) % Tensor(y), x % y)
        same(Tensor(x).fmod(Tensor(y)), np.fmod(x, y))
    assert (Tensor(x) / Tensor(y)).dtype is dtypes.float32
    assert (Tensor(x) // 0).tolist() == (Tensor(x) % 0).tolist() == [0] * len(x)


def test_division_with_rounding():
    x, y = np.array([7.0, -7.0, 7.0, -7.5], np.float32), np.array([2.0, 2, -2, 0.5], np.float32)
    same(Tensor(x) // Tensor(y), x // y)
    same(Tensor(x) % Tensor(y), x % y)
    same(Tensor(x).div(Tensor(y), rounding_mode="trunc"), np.trunc(x / y))
    same(Tensor([7, -7]).div(2, rounding_mode="trunc"), [3, -3])
    same(7 // Tensor([2, -2]), [3, -4])
    same(1 / Tensor([2, 4]), [0.5, 0.25])
    with pytest.raises(ValueError, match="rounding_mode"):
        Tensor([1]).div(2, rounding_mode="up")


@pytest.mark.parametrize("dtype", dtypes.all)
def test_comparisons(dtype):
    x = values(dtype)
    y = np.roll(x, 1)
    for op in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        same(op(Tensor(x), Tensor(y)), op(x, y))


@pytest.mark.parametrize("dtype", dtypes.ints)
@pytest.mark.parametrize("number", [-(2**70), -1, 300, 2**40, 2**70])
def test_comparing_with_a_number_out_of_range(dtype, number):
    x = values(dtype)
    for op in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        same(op(Tensor(x), number), np.array([op(int(v), number) for v in x]))
        same(op(number, Tensor(x)), np.array([op(number, int(v)) for v in x]))


@pytest.mark.parametrize("dtype", dtypes.all)
def test_minimum_and_maximum(dtype):
    x = values(dtype)
    y = np.roll(x, 2)
    same(Tensor(x).maximum(Tensor(y)), np.maximum(x, y))
    same(Tensor(x).minimum(Tensor(y)), np.minimum(x, y))
    if dtype is not dtypes.bool:
        same(Tensor(x).clamp(1, 50), np.clip(x, np.array(1, x.dtype), np.array(50, x.dtype)))


@pytest.mark.parametrize("dtype", dtypes.all)
def test_signs(dtype):
    x = values(dtype)
    if dtype is dtypes.bool:
        same(-Tensor(x), ~x)
        return
    with np.errstate(over="ignore"):
        same(-Tensor(x), -x)
        if not dtypes.is_float(dtype) or dtype.itemsize > 1:
            same(Tensor(x).abs(), np.abs(x))
            same(Tensor(x).sign(), np.sign(x))


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float32, dtypes.float64])
def test_rounding(dtype):
    halves = np.arange(-4, 4.5, 0.5)
    x = np.concatenate([values(dtype), halves.astype(_to_np_dtype(dtype))])
    big = np.array([2.0**10 + 1, 8388609.0, -8388611.0, 0.49999997], x.dtype)
    x = np.concatenate([x, big])
    for name in ("floor", "ceil", "trunc", "round"):
        same(getattr(Tensor(x), name)(), getattr(np, name)(x))
    assert np.signbit(Tensor([-0.25]).round().numpy())[0]
    for name in ("floor", "ceil", "trunc", "round"):
        assert getattr(Tensor([3]), name)().dtype is dtypes.int32


# ---------------------------------------------------------------- casts


@pytest.mark.parametrize("source, to", [*itertools.product(dtypes.all, repeat=2)])
def test_every_cast_folds_as_it_runs(source, to):
    """A constant that is cast has the value that casting memory gives."""
    from tiny.dtype import truncate

    x = values(source)
    result = Tensor(x).cast(to)
    assert result.dtype is to
    expected = [truncate[to](v) for v in x.astype(object if source.kind in "iub" else np.float64)]
    actual = result.numpy().astype(np.float64 if dtypes.is_float(to) else object)
    for a, e, v in zip(actual, expected, x, strict=True):
        if dtypes.is_float(to):
            # integers of 64 bits may be rounded twice on the way to less than a double
            assert a == pytest.approx(e, rel=2**-10, nan_ok=True), v
        else:
            assert a == e, v


@pytest.mark.parametrize(
    "a, b", [*itertools.product(["uint8", "int16", "float32", "int64"], repeat=2)]
)
def test_bitcast_is_a_view_of_the_bytes(a, b):
    x = np.arange(32, dtype=np.uint8).reshape(2, 16).view(_to_np_dtype(getattr(dtypes, a)))
    same(Tensor(x).bitcast(b), x.view(_to_np_dtype(getattr(dtypes, b))))


def test_bitcast_mistakes():
    with pytest.raises(ValueError, match="2 items"):
        Tensor([1, 2, 3]).bitcast("int64")
    with pytest.raises(ValueError, match="dimension"):
        Tensor(np.int32(1)).bitcast("int8")
    with pytest.raises(TypeError, match="weakint"):
        Tensor(1).bitcast("int32")


def test_short_names_of_casts():
    x = Tensor([1.5])
    names = ["float", "half", "double", "int", "long", "short", "bool", "bfloat16"]
    assert [getattr(x, n)().dtype.name for n in names] == [
        "float32", "float16", "float64", "int32", "int64", "int16", "bool", "bfloat16",
    ]  # fmt: skip


# ---------------------------------------------------------------- functions

# name, what PyTorch calls it, tolerance relative to float32's 1.2e-7
FUNCTIONS = [
    "abs", "ceil", "cos", "erf", "exp", "exp2", "floor", "log", "log10", "log2", "neg",
    "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sin", "sinh", "cosh", "sqrt",
    "square", "tan", "tanh", "trunc", "isnan", "isfinite", "isinf", "logical_not",
]  # fmt: skip
ACTIVATIONS = [
    "relu6", "leaky_relu", "silu", "gelu", "softplus", "logsigmoid", "mish", "elu", "hardtanh",
    "hardsigmoid", "hardswish", "softsign",
]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_are_those_of_pytorch(name, dtype):
    torch = pytest.importorskip("torch")
    x = np.concatenate([values(dtypes.float32), np.linspace(-9, 9, 91)]).astype(dtype)
    expected = getattr(torch, name)(torch.from_numpy(x)).numpy()
    # polynomials with a stated error, and arguments scaled before exp: not to the last bit
    loose = {"erf": 2e-7, "exp": 1e-5, "sinh": 1e-5, "cosh": 1e-5, "cos": 2e-6, "tan": 2e-5}
    atol = 2e-7 if name in ("erf", "cos", "tan") or dtype == "float32" else 1e-15
    rtol = loose.get(name, 2e-6) if dtype == "float32" else 1e-11
    same(getattr(Tensor(x), name)(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    x = np.array([v for v in values(dtypes.float32) if np.isfinite(v)], np.float32)
    function = getattr(torch.nn.functional, name)
    kwargs = {"approximate": "tanh"} if name == "gelu" else {}
    same(getattr(Tensor(x), name)(), function(torch.from_numpy(x), **kwargs).numpy(),
         rtol=3e-6, atol=3e-7)  # fmt: skip


def test_exact_gelu():
    torch = pytest.importorskip("torch")
    x = np.linspace(-4, 4, 41, dtype=np.float32)
    expected = torch.nn.functional.gelu(torch.from_numpy(x)).numpy()
    same(Tensor(x).gelu("none"), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="approximate"):
        Tensor(x).gelu("cosh")


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
@pytest.mark.parametrize("name", ["exp", "log", "sigmoid", "tanh", "softplus", "gelu"])
def test_narrow_floats_are_computed_in_float32_and_rounded_once(name, dtype):
    x = np.linspace(0.1, 9, 60, dtype=np.float32).astype(_to_np_dtype(dtype))
    wide = getattr(Tensor(x.astype(np.float32)), name)().numpy()
    result = getattr(Tensor(x), name)()
    assert result.dtype is dtype
    same(result, wide.astype(_to_np_dtype(dtype)))


def test_integers_become_floats_in_functions():
    for dtype in (dtypes.int8, dtypes.bool, dtypes.uint64):
        assert Tensor([1, 0], dtype=dtype).exp().dtype is dtypes.float32
    assert Tensor([1], dtype="int8").relu().dtype is dtypes.int8
    assert Tensor(2).sqrt().item() == pytest.approx(math.sqrt(2))


def test_tanh_keeps_its_digits_near_zero():
    x = np.array([1e-7, -1e-4, 0.1249, 0.1251, 0.0, -0.0], np.float32)
    same(Tensor(x).tanh(), np.tanh(x.astype(np.float64)), rtol=3e-7)
    assert np.signbit(Tensor([-0.0]).tanh().numpy())[0]


# ---------------------------------------------------------------- powers


@pytest.mark.parametrize(
    "exponent", [0, 1, 2, 3, 7, -1, -3, 0.5, -0.5, 1.7, 65, math.inf, math.nan]
)
def test_powers_of_floats(exponent):
    x = values(dtypes.float32)
    with np.errstate(all="ignore"):
        expected = (x.astype(np.float64) ** exponent).astype(np.float32)
        same(Tensor(x) ** exponent, expected, rtol=5e-5, atol=1e-37)


def test_powers_with_tensors():
    base = np.array([2.0, -2.0, -2.0, 0.0, 0.0, 1.0, math.nan, -8.0, 3.0], np.float32)
    power = np.array([3.0, 3.0, 2.0, 0.0, -1.0, math.nan, 0.0, 1 / 3, -2.0], np.float32)
    with np.errstate(all="ignore"):
        same(Tensor(base) ** Tensor(power), base**power, rtol=1e-6)
        same(2.0 ** Tensor(power), 2.0**power, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_powers_of_integers_wrap(dtype):
    base = np.array([0, 1, 2, 3, 7, 10], dtype)
    for exponent in (0, 1, 2, 5, 31):
        with np.errstate(over="ignore"):
            same(Tensor(base) ** exponent, base ** np.array(exponent, dtype))
    powers = np.array([0, 4, 5, 0, 1, 2], dtype)
    with np.errstate(over="ignore"):
        same(Tensor(base) ** Tensor(powers), base**powers)
    assert (2 ** Tensor(powers)).dtype is Tensor(powers).dtype
    if dtype != "uint8":
        assert (Tensor([1, -1, -1, 2]) ** Tensor([-3, -3, -2, -1])).tolist() == [1, -1, 1, 0]


@pytest.mark.parametrize("dtype", dtypes.ints, ids=str)
def test_any_whole_number_is_a_power_of_integers(dtype):
    base = [b for b in (-3, -2, -1, 0, 1, 2, 3, 6, 7) if b >= dtype.min]
    width = 1 << dtype.bitsize
    for exponent in (63, 64, 65, 128, 200, 255, 256, 300, 2**31, 2**32 + 5, 2**62, 2**64 + 3):
        powers = [pow(b, exponent, width) for b in base]
        expected = [p if p <= dtype.max else p - width for p in powers]
        assert (Tensor(base, dtype=dtype) ** exponent).tolist() == expected, exponent


# ---------------------------------------------------------------- bounds and distances


@pytest.mark.parametrize("dtype", dtypes.ints, ids=str)
def test_a_bound_that_a_dtype_can_not_hold_is_the_nearest_it_can(dtype):
    low, high = dtype.min, dtype.max
    x = Tensor([low, 1, high], dtype=dtype)
    assert x.clamp(low - 1, high + 1).tolist() == [low, 1, high]
    assert x.clamp(high + 3).tolist() == [high] * 3
    assert x.clamp(max_=low - 3).tolist() == [low] * 3
    assert x.clamp(0, high + 3).dtype is dtype


@pytest.mark.parametrize("dtype", dtypes.ints, ids=str)
def test_the_distance_of_integers_does_not_wrap(dtype):
    low, high = dtype.min, dtype.max
    x = Tensor([low, high, high, high, low, low + 1], dtype=dtype)
    y = Tensor([high, low, low + 1, high, low, low], dtype=dtype)
    close = x.isclose(y, rtol=0, atol=0.5).tolist()
    assert close == [False, False, False, True, True, False]
    if dtype.itemsize > 2:  # a share of the smallest number is more than 1
        expected = [False, False, False, True, True, low < 0]
        assert x.isclose(y).tolist() == expected


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: Tensor([1.0]) & 1, TypeError, "float32"),
        (lambda: Tensor([1.0]) << 1, TypeError, "float32"),
        (lambda: Tensor([1, 2]) + Tensor([1, 2, 3]), ValueError, r"\(2,\) and \(3,\)"),
        (lambda: Tensor([1]) + "1", TypeError, "str"),
        (lambda: Tensor([1]) + [1], TypeError, "list"),
        (lambda: Tensor([1]) ** -1, ValueError, "float"),
        (lambda: Tensor([1]).where(1, 2), TypeError, "bool"),
        (lambda: Tensor([1]).clamp(), ValueError, "min_"),
        (lambda: Tensor([1]).cast("int33"), ValueError, "int33"),
        (lambda: Tensor([1.0]) + Tensor([1.0], device="PYTHON"), ValueError, "CPU.*PYTHON"),
        (lambda: bool(Tensor([True])), TypeError, "item"),
    ],
)
def test_mistakes_are_found_when_written(make, error, words):
    with pytest.raises(error, match=words):
        make()
