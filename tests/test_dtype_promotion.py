"""The dtype in which two values meet: of all pairs, of Python numbers, and what values do there.

`TINYGRAD` is what tinygrad 0.14.0's `least_upper_dtype` gives for each pair; `meet` says the rule.
"""

from __future__ import annotations

import itertools
import operator

import numpy as np
import pytest

from tiny import Tensor
from tiny.dtype import (
    DType,
    _to_np_dtype,
    dtypes,
    least_upper_dtype,
    least_upper_float,
    strong_dtype,
    sum_acc_dtype,
    to_dtype,
)
from tiny.helpers import Context

NAMES = {
    "?": "bool", "w": "weakint", "b": "int8", "B": "uint8", "h": "int16", "H": "uint16",
    "i": "int32", "I": "uint32", "q": "int64", "Q": "uint64", "W": "weakfloat",
    "3": "fp8e4m3", "2": "fp8e5m2", "4": "fp8e4m3fnuz", "5": "fp8e5m2fnuz",
    "e": "float16", "v": "bfloat16", "f": "float32", "d": "float64",
}  # fmt: skip
TINYGRAD = """
?: ? w b B h H i I q Q W 3 2 4 5 e v f d
w: w w b B h H i I q Q W 3 2 4 5 e v f d
b: b b b h h i i q q W W 3 2 4 5 e v f d
B: B B h B h H i I q Q W 3 2 4 5 e v f d
h: h h h h h i i q q W W 3 2 4 5 e v f d
H: H H i H i H i I q Q W 3 2 4 5 e v f d
i: i i i i i i i q q W W 3 2 4 5 e v f d
I: I I q I q I q I q Q W 3 2 4 5 e v f d
q: q q q q q q q q q W W 3 2 4 5 e v f d
Q: Q Q W Q W Q W Q W Q W 3 2 4 5 e v f d
W: W W W W W W W W W W W 3 2 4 5 e v f d
3: 3 3 3 3 3 3 3 3 3 3 3 3 e e e e v f d
2: 2 2 2 2 2 2 2 2 2 2 2 e 2 e e e v f d
4: 4 4 4 4 4 4 4 4 4 4 4 e e 4 e e v f d
5: 5 5 5 5 5 5 5 5 5 5 5 e e e 5 e v f d
e: e e e e e e e e e e e e e e e e f f d
v: v v v v v v v v v v v v v v v f v f d
f: f f f f f f f f f f f f f f f f f f d
d: d d d d d d d d d d d d d d d d d d d
"""
PAIRS = {
    (to_dtype(NAMES[row[0]]), to_dtype(NAMES[column])): to_dtype(NAMES[met])
    for row in TINYGRAD.split("\n")[1:-1]
    for column, met in zip(NAMES, row[3:].split(), strict=True)
}
STORED = dtypes.all


def meet(a: DType, b: DType) -> DType:
    """The rule: kinds in the order bool, weak int, int, weak float, float; then sizes."""
    if a is b:
        return a
    ranks = [
        0 if d is dtypes.bool else 1 if d is dtypes.weakint else 2 if dtypes.is_int(d)
        else 3 if d is dtypes.weakfloat else 4
        for d in (a, b)
    ]  # fmt: skip
    if ranks[0] != ranks[1]:
        return a if ranks[0] > ranks[1] else b
    small, large = sorted((a, b), key=lambda d: d.bitsize)
    if ranks[0] == 4:
        if small.bitsize < large.bitsize:
            return large
        return dtypes.float16 if large.bitsize == 8 else dtypes.float32
    if small.kind == large.kind or (large.kind == "i" and large.bitsize > small.bitsize):
        return large
    unsigned = a if a.kind == "u" else b
    signed = {8: dtypes.int16, 16: dtypes.int32, 32: dtypes.int64}
    return signed.get(unsigned.bitsize, dtypes.weakfloat)


def test_all_pairs_meet_as_in_tinygrad_and_by_the_rule():
    assert len(PAIRS) == 19 * 19
    for (a, b), expected in PAIRS.items():
        assert least_upper_dtype(a, b) is expected is meet(a, b), (a, b)


def test_operators_promote_as_the_pairs_do():
    for a, b in itertools.product(STORED, repeat=2):
        x, y = Tensor.empty(2, dtype=a), Tensor.empty(2, dtype=b)
        expected = strong_dtype(PAIRS[a, b])
        assert (x * y).dtype is (y * x).dtype is expected
        assert x.cat(y).dtype is x.maximum(y).dtype is expected
        assert (x < y).dtype is (x == y).dtype is dtypes.bool
        assert Tensor.empty(2, dtype="bool").where(x, y).dtype is expected
        assert (x / y).dtype is strong_dtype(least_upper_float(PAIRS[a, b]))


@pytest.mark.parametrize("default_float", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("default_int", ["int32", "int64"])
def test_python_numbers_take_the_dtype_of_what_they_meet(default_int, default_float):
    """A float beside integers, and an int beside bools, are of the default of their kind.

    tinygrad calls those weakfloat and weakint still, and stores them as the same defaults.
    """
    with Context(DEFAULT_INT=default_int, DEFAULT_FLOAT=default_float):
        defaults = {dtypes.weakint: default_int, dtypes.weakfloat: default_float}
        for own in STORED:
            x = Tensor.empty(2, dtype=own)
            for number, weak in ((True, dtypes.bool), (2, dtypes.weakint), (2.0, dtypes.weakfloat)):
                met = PAIRS[own, weak]
                expected = to_dtype(defaults.get(met, met.name))
                for op in (operator.add, operator.mul, Tensor.maximum):
                    assert op(x, number).dtype is expected, (own, number)
                assert (number + x).dtype is (number * x).dtype is expected
                assert (x < number).dtype is dtypes.bool
                assert Tensor.empty(2, dtype="bool").where(x, number).dtype is expected
                float_of = met if dtypes.is_float(met) else dtypes.weakfloat
                expected = to_dtype(defaults.get(float_of, float_of.name))
                assert (x / number).dtype is (number / x).dtype is expected


def test_what_is_summed_up_and_what_functions_give():
    for own in STORED:
        acc = sum_acc_dtype(own)
        wide = {"b": "int32", "i": "int32", "u": "uint32"}.get(own.kind, "float32")
        assert acc is (own if own.itemsize == 8 else to_dtype(wide)), own
        x = Tensor.empty(3, 4, dtype=own)
        is_float = dtypes.is_float(own)
        assert x.sum().dtype is (own if is_float else acc)
        assert x.exp().dtype is x.mean().dtype is (own if is_float else dtypes.float32)
        assert least_upper_float(own) is (own if is_float else dtypes.float32)
    assert least_upper_float(dtypes.weakint) is dtypes.weakfloat


def test_numbers_of_two_kinds_are_computed_where_they_meet():
    """The value, not only the dtype: an int64 beside a uint8 keeps all of its bits."""
    corners = {
        "int8": [-128, 127], "uint8": [0, 255], "int16": [-32768, 32767], "uint16": [0, 65535],
        "int32": [-(2**31), 2**31 - 1], "uint32": [0, 2**32 - 1], "int64": [-(2**63), 2**63 - 1],
    }  # fmt: skip
    for (a, left), (b, right) in itertools.product(corners.items(), repeat=2):
        met = PAIRS[to_dtype(a), to_dtype(b)]
        x, y = np.array(left, a), np.array(right, b)
        np_dtype = _to_np_dtype(met)
        with np.errstate(over="ignore"):
            expected = x.astype(np_dtype) + y.astype(np_dtype)
        np.testing.assert_array_equal((Tensor(x) + Tensor(y)).numpy(), expected)
        compared = [int(p) < int(q) for p, q in zip(x, y, strict=True)]
        assert (Tensor(x) < Tensor(y)).tolist() == compared


INTS = [*dtypes.sints, *dtypes.uints]
FAR = [300, -300, 2**15, 2**31, -(2**31) - 1, 2**32, 2**63, -(2**63) - 1, 2**64]


@pytest.mark.parametrize("own", INTS)
def test_numbers_that_do_not_fit_wrap_where_that_is_right_modulo_the_width(own):
    values = [own.min, own.min + 1, 0 if own.kind == "u" else -1, 5, own.max]
    x = Tensor(values, dtype=own)
    for far in FAR:
        for op in (operator.add, operator.sub, operator.mul, operator.and_, operator.or_):
            expected = [own.const(op(v, far)) for v in values]
            assert op(x, far).tolist() == expected, (op, far)
            assert op(far, x).tolist() == [own.const(op(far, v)) for v in values], (op, far)


@pytest.mark.parametrize("own", INTS)
def test_numbers_that_do_not_fit_are_compared_and_bound_by_their_value(own):
    values = [own.min, own.min + 1, 5, own.max]
    x = Tensor(values, dtype=own)
    for far in FAR:
        assert (x < far).tolist() == [v < far for v in values]
        assert (x == far).tolist() == [v == far for v in values]
        low, high = max(far, own.min), min(far, own.max)  # no value is beyond them
        assert x.maximum(far).tolist() == [max(v, min(low, own.max)) for v in values]
        assert x.minimum(far).tolist() == [min(v, max(high, own.min)) for v in values]
    assert x.clip(-(2**70), 2**70).tolist() == values
    assert (x << 2**8).tolist() == (x << 2**40).tolist() == [0] * 4
    assert (x >> 2**8).tolist() == [-1 if v < 0 else 0 for v in values]


@pytest.mark.parametrize("far", [300, -300, 2**31])
def test_dividing_by_a_number_that_does_not_fit_is_refused(far):
    x = Tensor([1, 2], dtype="int8")
    for name, divide in (
        ("div", lambda: x // far),
        ("div", lambda: far // x),
        ("div", lambda: x.div(far, rounding_mode="trunc")),
        ("mod", lambda: x % far),
        ("mod", lambda: far % x),
        ("fmod", lambda: x.fmod(far)),
    ):
        with pytest.raises(ValueError, match=f"{name}: {far} is no value of dtypes.int8; cast"):
            divide()
    assert (x.long() // far).tolist() == [1 // far, 2 // far]
    np.testing.assert_allclose((x / far).numpy(), [1 / far, 2 / far], rtol=1e-6)


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**70])
def test_a_python_int_is_stored_as_the_default_or_refused(number):
    message = rf"{number} does not fit into dtypes\.int32"
    for use in (Tensor.numpy, Tensor.item, Tensor.neg, lambda x: x + 1, lambda x: x.expand(3)):
        with pytest.raises(ValueError, match=message):
            use(Tensor(number))
    assert (Tensor(number) + 0.5).item() == np.float32(number)
    with Context(DEFAULT_INT="int64"):
        if abs(number) < 2**63:
            assert Tensor(number).item() == number and (Tensor(number) + 1).item() == number + 1
            assert (Tensor([1]) * Tensor(number)).tolist() == [number]
