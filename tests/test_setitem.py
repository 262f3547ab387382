"""`x[…] = v` equals NumPy's, whatever the index: places, masks, parts of parts, duplicates."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from numpy_runtime import bound
from tiny import Device, Tensor
from tiny.dtype import to_dtype
from tiny.helpers import Context
from tiny.schedule import create_schedule
from tiny.uop.ops import Ops, UOp
from tiny.uop.runtime import Runtime


@pytest.fixture(autouse=True, scope="function", params=["evaluator", "devices"])
def runs_on(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with bound(request.param) as used:
        yield used


CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
INDICES = {
    "a list": [1, 0, 1],
    "an array": np.array([1, 0, -1]),
    "of two dimensions": np.array([[0, 1], [1, -2]]),
    "after a slice": (slice(None), [0, 0, 2]),
    "before a slice": ([1, 0], slice(1, None)),
    "around a slice": ([0, 1, 0], slice(None), [1, 3, 1]),
    "side by side": (slice(None), [0, 2], [1, 1]),
    "all dimensions": ([0, 1, 0], [2, 2, 2], [3, 0, 3]),
    "broadcast": ([[0], [1]], [[1, 2]]),
    "with None": ([0, 1], None, [1, 2]),
    "with Ellipsis": (..., [3, 0]),
    "backwards": (slice(None, None, -1), [2, 0], slice(None, None, 2)),
    "of nothing": np.array([], dtype=np.int64),
    "a mask": CUBE > 5,
    "a mask of the first": np.array([True, False]),
    "a mask in the middle": (slice(None), [True, False, True]),
    "a mask and places": ([1, 0], np.array([True, False, True])),
}


def as_tensors(index):
    """The same index with tensors of integers in it."""
    if isinstance(index, tuple):
        return tuple(as_tensors(part) for part in index)
    array = np.asarray(index) if isinstance(index, list | np.ndarray) else None
    return index if array is None or array.dtype.kind == "b" else Tensor(array.astype(np.int32))


@pytest.mark.parametrize("given_as", ["data", "tensors"])
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("value", ["number", "zero", "array"])
def test_writing_to_places_is_numpys(index, value, given_as):
    if isinstance(index, np.ndarray) and not index.size and given_as == "tensors":
        pytest.skip("a tensor of nothing is like an array of nothing")
    expected, x = CUBE.copy(), Tensor(CUBE)
    shape = expected[index].shape
    new = {"number": 7.0, "zero": 0.0}.get(value, -np.arange(np.prod(shape)).reshape(shape))
    expected[index] = new
    named = index if given_as == "data" else as_tensors(index)
    x[named] = Tensor(new.astype(np.float32)) if isinstance(new, np.ndarray) else new
    np.testing.assert_array_equal(x.numpy(), expected)
    np.testing.assert_array_equal(x[named].numpy(), expected[index])


def test_zeros_win_where_they_are_the_last():
    x = Tensor([5, 6, 7])
    x[Tensor([0, 1, 0, 2, 0])] = Tensor([1, 2, 3, 4, 0])
    assert x.tolist() == [0, 2, 4]


def test_an_update_of_places_counts_each_once():
    x = Tensor([1.0, 2.0, 3.0])
    x[[0, 0, 2]] += 1
    assert x.tolist() == [2.0, 2.0, 4.0]


def test_places_out_of_range_are_not_written():
    x = Tensor(np.zeros((2, 2), np.float32))
    x[Tensor([0, 2, -3, -1]), Tensor([1, 0, 0, 2])] = Tensor([1.0, 2.0, 3.0, 4.0])
    assert x.tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint32", "int64", "uint64"])
def test_places_of_any_integers(dtype):
    x = Tensor([1, 2, 3, 4])
    x[Tensor([3, 0], dtype=dtype)] = Tensor([8, 9])
    assert x.tolist() == [9, 2, 3, 8]


def test_places_and_values_may_be_read_from_what_is_written():
    x = Tensor([3, 0, 1, 2]) * 1
    x[x] = x + 10  # all of x is read before any of it is written
    expected = np.array([3, 0, 1, 2])
    expected[expected.copy()] = expected + 10
    assert x.tolist() == expected.tolist()


def test_a_write_to_places_is_seen_by_views_and_not_by_values():
    x = Tensor(np.arange(6).reshape(2, 3))
    column, doubled = x[:, 1], x * 2
    x.T[[1, 1]] = Tensor([[10, 20], [30, 40]])
    assert column.tolist() == [30, 40]
    assert doubled.tolist() == [[0, 2, 4], [6, 8, 10]]


def test_a_write_to_places_of_a_part_of_a_part():
    x = np.arange(24).reshape(4, 6)
    y = Tensor(x)
    y[::2][:, ::-1][1][[0, 5, 0]] = Tensor([100, 200, 300])
    x[::2][:, ::-1][1][[0, 5, 0]] = [100, 200, 300]
    assert y.tolist() == x.tolist()


def test_a_value_that_was_not_computed_is_written_to_as_one_that_was():
    x = Tensor([1.0, 2.0, 3.0]) + 1
    part = x[1:]
    part[[1, 1]] = Tensor([8.0, 9.0])
    assert x.tolist() == [2.0, 3.0, 9.0]


def test_a_mask_that_is_a_tensor_writes_where_it_is_true():
    x = Tensor(np.arange(6.0).reshape(2, 3))
    x[x > 2] = -1
    assert x.tolist() == [[0, 1, 2], [-1, -1, -1]]
    x[Tensor([False, True])] = Tensor([7.0, 8.0, 9.0])
    assert x.tolist() == [[0, 1, 2], [7, 8, 9]]


@pytest.mark.parametrize(
    "dtype, value, expected",
    [
        ("int32", 2.9, 2),
        ("int32", lambda: Tensor([2.9]), 2),
        ("float32", lambda: Tensor([2]), 2.0),
        ("int8", lambda: Tensor([300]), 44),
        ("bool", lambda: Tensor([3]), True),
        ("float32", np.array([2.5]), 2.5),
        ("float32", [2], 2.0),
    ],
)
def test_a_value_is_cast_to_what_it_is_written_to(dtype, value, expected):
    for index in (slice(0, 1), [0]):
        x = Tensor.zeros(2, dtype=dtype)
        x[index] = value() if callable(value) else value
        assert x.dtype is to_dtype(dtype) and x.tolist() == [expected, 0]


@pytest.mark.parametrize(
    "index, value, error, words",
    [
        ([3], 1.0, IndexError, "index 3 is out of range"),
        (([0], [0]), 1.0, IndexError, "2 indices"),
        ([0.5], 1.0, IndexError, "float64"),
        (Tensor([0.5]), 1.0, IndexError, "float32"),
        ([[1], [0, 2]], 1.0, IndexError, "ragged"),
        ([True, False], 1.0, IndexError, r"\(2,\)"),
        ([0, 1], Tensor([1.0, 2.0, 3.0]), ValueError, r"\(3,\).*\(2,\)"),
        (Tensor([True, False]), 1.0, IndexError, r"\(2,\).*\(3,\)"),
        (Tensor([0, 1]), Tensor([1.0, 2.0], device="PYTHON"), ValueError, "PYTHON.*CPU"),
    ],
)
def test_mistakes_change_nothing(index, value, error, words):
    x = Tensor([1.0, 2.0, 3.0])
    with pytest.raises(error, match=words):
        x[index] = value
    assert x.uop.op is Ops.BUFFER and x.tolist() == [1.0, 2.0, 3.0]


def test_reading_by_a_mask_of_known_values():
    x = Tensor(CUBE)
    np.testing.assert_array_equal(x[CUBE > 20].numpy(), CUBE[CUBE > 20])


def test_a_mask_that_is_a_tensor_is_counted():
    x = Tensor(CUBE)
    np.testing.assert_array_equal(x[x > 20].numpy(), CUBE[CUBE > 20])
    expected, rows = CUBE.copy(), np.array([True, False, True])
    np.testing.assert_array_equal(x[:, Tensor(rows), 1:].numpy(), CUBE[:, rows, 1:])
    expected[CUBE > 20] = np.arange((CUBE > 20).sum())
    with pytest.raises(ValueError, match=r"\(2,\) does not broadcast to \(3,\)"):
        x[x > 20] = Tensor([1.0, 2.0])
    x[x > 20] = Tensor(np.arange((CUBE > 20).sum()).astype(np.float32))
    np.testing.assert_array_equal(x.numpy(), expected)


def test_the_gradient_goes_to_the_last_of_those_that_are_written_to_one_place():
    x, y = Tensor([1.0, 2.0, 3.0]), Tensor([4.0, 5.0, 6.0, 7.0])
    h = x * 1
    h[Tensor([2, 0, 2, 5])] = y * y
    (h * Tensor([10.0, 20.0, 30.0])).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 20.0, 0.0]
    assert y.grad is not None and y.grad.tolist() == [0.0, 100.0, 360.0, 0.0]


def test_writing_takes_one_kernel_of_one_loop_over_what_is_written():
    def work(places: int) -> list[str]:
        x = Tensor(np.zeros(4096, np.float32))
        x[Tensor(np.zeros(places, np.int32))] = Tensor(np.ones(places, np.float32))
        target = Device["CPU"].target
        schedule = create_schedule(UOp.sink(x.uop), lambda _: target, "CPU").schedule
        return [item.kernel.arg.name for item in schedule.items]

    assert work(100) == ["E_100"] and work(3000) == ["E_3000"]


@settings(max_examples=examples(2000, 40))
@given(st.data())
def test_any_places_of_any_shape_are_written_as_by_numpy(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    array = np.arange(np.prod(shape)).reshape(shape)
    parts: list = []
    count = data.draw(st.sampled_from([(1,), (3,), (2, 2)]))
    for size in shape:
        how = data.draw(st.sampled_from(["places", "slice", "all"]))
        if how == "places":
            places = st.lists(
                st.integers(-size, size - 1), min_size=int(np.prod(count)), max_size=4
            )
            flat = data.draw(places)[: int(np.prod(count))]
            parts.append(np.array(flat).reshape(count))
        elif how == "slice":
            step = data.draw(st.sampled_from([1, 2, -1, -2]))
            parts.append(slice(None, None, step))
        else:
            parts.append(slice(None))
    index = tuple(parts)
    x = Tensor(array)
    shape_there = array[index].shape
    values = -1 - np.arange(np.prod(shape_there)).reshape(shape_there)
    expected = array.copy()
    expected[index] = values
    x[index if data.draw(st.booleans()) else as_tensors(index)] = Tensor(values)
    np.testing.assert_array_equal(x.numpy(), expected)


def test_a_write_through_steps_looks_at_no_element():
    x = Tensor.empty(2**40 + 1, dtype="uint8")  # more than places could be listed of
    x[::3] = 1
    assert x.uop.op is Ops.AFTER
    grid = Tensor.empty(2**20 + 1, 2**20 + 2, dtype="uint8")
    grid[1::5, ::-7] = 2
    assert grid.uop.op is Ops.AFTER
    with pytest.raises(ValueError, match="a padded view"):
        Tensor.empty(3, 5)._pad([0, 0, 0, 1]).assign(Tensor.zeros(3, 6))


@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
@pytest.mark.parametrize("way", ["rows", "rows backwards", "along", "down", "elements"])
def test_how_many_threads_write_to_places_changes_nothing(way, dtype):
    """Enough of them that threads share it, many places written again."""
    rng = np.random.default_rng(1)
    shape = (9001,) if way == "elements" else (60, 203)
    count = {"along": (60, 150), "down": (90, 203), "elements": (12000,)}.get(way, (500,))
    places = rng.integers(-2, shape[way == "along"], count)
    x = (rng.standard_normal(shape) * 50).astype(dtype)
    v = (rng.standard_normal((500, 203) if "rows" in way else count) * 50).astype(dtype)
    expected = x.copy()
    index: list[object] = [places]
    if way in ("along", "down"):
        other = np.arange(count[way == "down"])
        index = [other[:, None], places] if way == "along" else [places, other]
    step = -1 if way == "rows backwards" else 1
    for at in np.ndindex(*count):
        to = [np.broadcast_to(i, count)[at] for i in index]
        expected[..., ::step][tuple(to)] = v[at]
    for threads in (1, 2, 3):
        with Context(NUM_CPU_THREADS=threads):
            t = Tensor(x.copy()).realize()
            t[..., ::step][tuple([Tensor(i) for i in index])] = Tensor(v)
            np.testing.assert_array_equal(t.numpy(), expected)
