"""Tensors of every kind of data and by every rule, in their corners; and what is refused."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from tiny import Tensor, TinyJit, Variable
from tiny.dtype import _to_np_dtype, dtypes
from tiny.helpers import Context

# ---------------------------------------------------------------- from data


@pytest.mark.parametrize(
    "data, dtype, expected",
    [
        (range(2, 8, 3), "int32", [2, 5]),
        (range(0), "float32", []),
        ([range(2), (2, 3)], "int32", [[0, 1], [2, 3]]),
        (((1, 2.5), [True, 4]), "float32", [[1, 2.5], [1, 4]]),
        ([True, 2, 0], "int32", [1, 2, 0]),
        ([[], []], "float32", [[], []]),
        ([np.float16(1.5), np.float16(2)], "float16", [1.5, 2]),
        ([np.int8(3), np.int8(-1)], "int8", [3, -1]),
        ([np.arange(2), np.arange(2, 4)], "int64", [[0, 1], [2, 3]]),
        (np.bool_(True), "bool", True),
        (np.uint64(2**64 - 1), "uint64", 2**64 - 1),
        (np.array(3.5), "float64", 3.5),
        (np.zeros((0, 3), np.int16), "int16", []),
        (np.float64(0.1), "float64", 0.1),
        (None, "weakfloat", 0.0),
        (True, "bool", True),
        (2**70, "weakint", None),
        (bytearray(b"\x01\x02"), "uint8", [1, 2]),
        (memoryview(np.arange(3, dtype=np.uint8)), "uint8", [0, 1, 2]),
        (b"", "uint8", []),
    ],
)
def test_data_of_every_kind(data, dtype, expected):
    x = Tensor(data)
    assert x.dtype.name == dtype
    if expected is not None:
        assert x.tolist() == expected


@pytest.mark.parametrize("dtype", dtypes.all)
def test_arrays_of_every_dtype_layout_and_byte_order(dtype):
    np_dtype = np.dtype(_to_np_dtype(dtype))
    plain = (np.arange(24).reshape(2, 3, 4) % 5).astype(np_dtype)
    layouts = [
        plain[:, ::-1],
        plain.T,
        plain[::2, 1:, ::3],
        np.asfortranarray(plain),
        plain[1, 2, 3],
    ]
    layouts += [
        plain[:, :0],
        np.broadcast_to(plain[0, 0], (3, 4)),
        plain.reshape(-1)[5:6].reshape(()),
    ]
    if np_dtype.kind in "iufb":
        layouts += [plain.astype(np_dtype.newbyteorder(order)) for order in "<>"]
    for array in layouts:
        x = Tensor(array)
        assert x.dtype is dtype and x.shape == array.shape
        np.testing.assert_array_equal(x.numpy().astype("float32"), array.astype("float32"))


def test_an_array_that_can_not_be_written_to_is_copied():
    array = np.arange(3)
    array.flags.writeable = False
    x = Tensor(array)
    x += 1
    assert x.tolist() == [1, 2, 3] and array.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "fp8e5m2", "float64", "int8", "uint64", "bool"]
)
def test_a_dtype_is_that_of_the_result_whatever_the_data(dtype):
    to = _to_np_dtype(getattr(dtypes, dtype))
    for data in (1, 1.0, True, [1, 0], [1.0, 0.0], np.array([1, 0]), np.float32(1), range(2),
                 Tensor([1, 0]), Tensor(1), UOP):  # fmt: skip
        x = Tensor(data, dtype=dtype)
        assert x.dtype.name == dtype and x.numpy().dtype == to
        assert np.asarray(x.numpy()).reshape(-1)[:1].astype("float32").tolist() in ([1.0], [0.0])


UOP = Tensor([1, 0]).uop


@pytest.mark.parametrize(
    "data, error, words",
    [
        ("abc", TypeError, "expected, got str"),
        ({1: 2}, TypeError, "got dict"),
        (iter([1]), TypeError, "list_iterator"),
        (1j, TypeError, "complex"),
        ([1, "a"], TypeError, "numbers only, got 'a'"),
        ([[1, 2], [3, None]], TypeError, "numbers only, got None"),
        ([1, {2}], TypeError, r"got \{2\}"),
        ([1, [2]], ValueError, "ragged"),
        ([[1], [2, 3]], ValueError, "one length"),
        ([[1, 2], 3], ValueError, "ragged"),
        ([Tensor(1), Tensor(2)], TypeError, "Tensor.stack or Tensor.cat"),
        ([1, [Tensor([2])]], TypeError, "Tensor.stack or Tensor.cat"),
        ([np.zeros(2), np.zeros(3)], ValueError, "ragged"),
        ([2**31], ValueError, "2147483648 does not fit into dtypes.int32; pass dtype=int64"),
        (np.array(["a"]), TypeError, "no counterpart"),
        (np.array([1, 2], dtype=object), TypeError, "object"),
        (np.array(["2020"], dtype="datetime64"), TypeError, "datetime64"),
        (np.zeros(2, np.complex64), TypeError, "complex64"),
    ],
)
def test_what_is_no_data_is_named(data, error, words):
    with pytest.raises(error, match=words):
        Tensor(data)


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: Tensor([1], dtype="floaty"), ValueError, "floaty"),
        (lambda: Tensor([1], dtype=5), TypeError, "5"),
        (lambda: Tensor([1], device="NOWHERE"), ValueError, "NOWHERE"),
        (lambda: Tensor([1], device=("CPU", "PYTHON")), NotImplementedError, "comes with shard"),
        (lambda: Tensor(b"abc", dtype="int16"), ValueError, "3 bytes"),
        (lambda: Tensor.zeros(2, device=["CPU"]), NotImplementedError, "name one device"),
        (lambda: Tensor.arange(2, device=("CPU",)), NotImplementedError, "name one device"),
        (lambda: Tensor.empty(2, -1), ValueError, r"empty: sizes are ints of at least 0"),
        (lambda: Tensor.zeros("a"), ValueError, "full: sizes"),
        (lambda: Tensor.full((2,), "a"), TypeError, "full: a number is expected, got str 'a'"),
        (lambda: Tensor.full((2,), Tensor(1)), TypeError, "full: a number is expected, got Tensor"),
        (lambda: Tensor.full((2,), [1]), TypeError, "full: a number is expected, got list"),
        (lambda: Tensor.full((2,), 2**40), ValueError, "full: 1099511627776 does not fit"),
        (lambda: Tensor([1]).full_like(None), TypeError, "a number is expected, got NoneType"),
        (lambda: Tensor([1]).const_like([1]), TypeError, "const_like: a number is expected"),
        (lambda: Tensor.const([1, 2]), TypeError, "const: a number is expected, got list"),
        (lambda: Tensor.zeros(2, color=1), TypeError, "color"),
        (lambda: Tensor.arange("a"), TypeError, "arange: a number is expected, got str"),
        (lambda: Tensor.arange(Tensor(3)), TypeError, "arange: a number is expected, got Tensor"),
        (lambda: Tensor.arange(3, step=0), ValueError, "arange: step must not be 0"),
        (lambda: Tensor.arange(1e30), ValueError, "arange: .* are too many numbers"),
        (lambda: Tensor.arange(math.inf), ValueError, "arange: the numbers must be finite"),
        (lambda: Tensor.arange(0, 1, math.nan), ValueError, "arange: the numbers must be finite"),
        (lambda: Tensor.arange(300, dtype="uint8"), ValueError, "0 to 300 does not fit into"),
        (lambda: Tensor.arange(-1, 3, dtype="uint8"), ValueError, "-1 to 3 does not fit into"),
        (lambda: Tensor.arange(3, dtype="bool"), ValueError, "does not fit into dtypes.bool"),
        (lambda: Tensor.arange(3, color=1), TypeError, "color"),
        (lambda: Tensor.linspace(0, 1, -1), ValueError, "linspace: steps is an int of at least 0"),
        (lambda: Tensor.linspace(0, 1, 2.5), ValueError, "linspace: steps is an int"),
        (lambda: Tensor.linspace(0, "b", 2), TypeError, "linspace: a number is expected"),
        (lambda: Tensor.linspace(0, 1, 3, dtype="bool"), ValueError, "linspace: bool"),
        (lambda: Tensor.eye(-1), ValueError, "eye: sizes are ints of at least 0"),
        (lambda: Tensor.eye(2, 2.5), ValueError, "eye: sizes are ints"),
    ],
)  # fmt: skip
def test_mistakes_are_found_when_written(make, error, words):
    with pytest.raises(error, match=words):
        make()


# ---------------------------------------------------------------- keywords

MAKERS: dict[str, Any] = {
    "empty": lambda **k: Tensor.empty(2, 3, **k),
    "zeros": lambda **k: Tensor.zeros(2, 3, **k),
    "ones": lambda **k: Tensor.ones((2, 3), **k),
    "full": lambda **k: Tensor.full((2, 3), 1.0, **k),
    "invalids": lambda **k: Tensor.invalids(2, 3, **k),
    "arange": lambda **k: Tensor.arange(6.0, **k),
    "linspace": lambda **k: Tensor.linspace(0.0, 1, 5, **k),
    "eye": lambda **k: Tensor.eye(2, 3, **k),
    "data": lambda **k: Tensor([[1.0, 2.0]], **k),
    "empty_like": lambda **k: Tensor([1.0]).empty_like(**k),
    "full_like": lambda **k: Tensor([1.0]).full_like(2, **k),
    "zeros_like": lambda **k: Tensor([1.0]).zeros_like(**k),
    "ones_like": lambda **k: Tensor([1.0]).ones_like(**k),
}


@pytest.mark.parametrize("name", MAKERS)
def test_dtype_device_and_requires_grad_are_taken(name):
    x = MAKERS[name](dtype="float16", device="python", requires_grad=True)
    assert (x.dtype, x.device, x.requires_grad) == (dtypes.float16, "PYTHON", True)
    if name not in ("empty", "empty_like"):
        assert x.numpy().dtype == np.float16 and x.sum().device == "PYTHON"
    assert MAKERS[name]().requires_grad is None


def test_what_is_made_like_another_lives_with_it():
    x = Tensor([1, 2], device="PYTHON")
    for name in ("zeros_like", "ones_like", "empty_like"):
        made = getattr(x, name)()
        assert (made.device, made.dtype, made.shape) == ("PYTHON", dtypes.int32, (2,))
    assert x.full_like(3, device="CPU").device == "CPU"
    assert Tensor(3).zeros_like().dtype is dtypes.int32  # a weak number has no memory


def test_a_constant_without_a_buffer_takes_no_memory_and_can_not_be_told_apart():
    x = Tensor.full((3, 2), 5, buffer=False)
    assert x.device is None and x.tolist() == [[5, 5]] * 3
    assert (x + Tensor([1, 2])).tolist() == [[6, 7]] * 3
    x.assign(Tensor([1, 2]))
    assert x.tolist() == [[1, 2]] * 3


def test_equal_tensors_are_not_one():
    a, b = Tensor.zeros(3), Tensor.zeros(3)
    a += 1
    assert b.tolist() == [0, 0, 0]
    x, y = Tensor.const(2.0), Tensor.const(2.0)
    assert [g.item() for g in (x * y * y).gradient(x, y)] == [4, 8]


def test_defaults_follow_their_variables():
    with Context(DEFAULT_FLOAT="float64", DEFAULT_INT="int64"):
        assert Tensor.linspace(0, 1, 2).dtype is Tensor.eye(2).dtype is dtypes.float64
        assert Tensor.full((1,), 2**40).dtype is Tensor.arange(3).dtype is dtypes.int64
        assert Tensor.full((1,), 1.0).dtype is dtypes.float64


def test_sizes_and_values_may_be_of_numpy():
    assert Tensor.zeros(np.int64(2), np.int8(3)).shape == (2, 3)
    assert Tensor.full((2,), np.float16(1.5)).tolist() == [1.5, 1.5]
    assert Tensor.full((1,), ml_dtypes.bfloat16(1.5)).item() == 1.5
    assert Tensor.arange(np.int32(3)).dtype is dtypes.int32
    assert Tensor.arange(np.float32(2.5)).tolist() == [0, 1, 2]


def test_invalids_read_as_nothing():
    assert (Tensor.invalids(2, 2, dtype="float32") + 1).tolist() == [[1, 1], [1, 1]]
    assert Tensor.invalids(3).dtype is dtypes.bool


# ---------------------------------------------------------------- numbers in a row

small = st.integers(-50, 50)


@given(small, small, st.integers(-7, 7).filter(bool))
@settings(max_examples=examples(500, 25), deadline=None)
def test_arange_of_ints_is_numpys(start, stop, step):
    x = Tensor.arange(start, stop, step)
    np.testing.assert_array_equal(x.numpy(), np.arange(start, stop, step, dtype=np.int32))


@given(st.floats(-9, 9), st.floats(-9, 9), st.integers(0, 40))
@settings(max_examples=examples(500, 25), deadline=None)
def test_linspace_meets_both_ends_evenly(start, stop, steps):
    found = Tensor.linspace(start, stop, steps, dtype="float64").numpy()
    np.testing.assert_allclose(found, np.linspace(start, stop, steps), rtol=1e-14, atol=1e-14)
    if steps > 1:
        assert (found[0], found[-1]) == (start, stop)
        back = Tensor.linspace(stop, start, steps, dtype="float64").numpy()
        np.testing.assert_allclose(found[::-1], back, rtol=1e-15, atol=1e-15)


@given(st.integers(-(2**40), 2**40), st.integers(-(2**40), 2**40), st.integers(1, 30))
@settings(max_examples=examples(500, 25), deadline=None)
def test_linspace_of_integers_is_exact(start, stop, steps):
    last = max(steps - 1, 1)
    exact = [start * last + i * (stop - start) for i in range(steps)]
    expected = [v // last if v >= 0 else -(-v // last) for v in exact]
    assert Tensor.linspace(start, stop, steps, dtype="int64").tolist() == expected


def test_long_rows_take_no_memory_until_they_are_used():
    x = Tensor.arange(2**40)
    assert x.dtype is dtypes.int64 and x[2**40 - 2 :].tolist() == [2**40 - 2, 2**40 - 1]
    assert Tensor.linspace(0, 2**30, 2**30 + 1, dtype="float64")[2**29].item() == 2**29
    assert Tensor.eye(2**35)[2**34, 2**34 - 1 : 2**34 + 2].tolist() == [0, 1, 0]


def test_rows_of_symbolic_ends():
    n = Variable("n", 1, 8).bind(3)
    assert Tensor.arange(n).tolist() == [0, 1, 2]
    assert Tensor.arange(1, n * 2, 2).tolist() == [1, 3, 5]
    assert Tensor.full((n, 2), 7).tolist() == [[7, 7]] * 3
    assert Tensor.eye(n, 2).tolist() == [[1, 0], [0, 1], [0, 0]]
    with pytest.raises(TypeError, match="linspace: start and stop are numbers"):
        Tensor.linspace(0, n, 3)


def test_creation_in_a_captured_step_gives_new_memory_each_time():
    @TinyJit
    def step() -> Tensor:
        x = Tensor.zeros(3)
        x += Tensor.arange(3)
        return x.realize()

    results = [step() for _ in range(4)]
    results[1] += 1
    assert [r.tolist() for r in results] == [[0, 1, 2], [1, 2, 3], [0, 1, 2], [0, 1, 2]]
