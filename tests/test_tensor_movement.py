"""Shapes, joining, windows and indexing, against NumPy and PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from numpy_runtime import bound
from tiny.dtype import dtypes
from tiny.tensor import Tensor
from tiny.uop.ops import GroupOp, Ops, UOp
from tiny.uop.runtime import Runtime


@pytest.fixture(autouse=True, scope="module", params=["evaluator", "devices"])
def runs_on(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with bound(request.param) as used:
        yield used


def numbers(*shape, dtype=np.float32):
    return np.arange(1, 1 + int(np.prod(shape)), dtype=dtype).reshape(shape)


def same(actual, expected):
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual.numpy(), expected)


X = numbers(2, 3, 4)

# what is done with a tensor, and with the array of the same numbers
MOVES = [
    (lambda t: t.reshape(4, -1), lambda a: a.reshape(4, -1)),
    (lambda t: t.reshape((None, 12)), lambda a: a.reshape(2, 12)),
    (lambda t: t.view(24), lambda a: a.reshape(24)),
    (lambda t: t.permute(2, 0, 1), lambda a: a.transpose(2, 0, 1)),
    (lambda t: t.permute((-1, 0, 1)), lambda a: a.transpose(2, 0, 1)),
    (lambda t: t.transpose(0, -1), lambda a: a.swapaxes(0, 2)),
    (lambda t: t.transpose(), lambda a: a.swapaxes(0, 1)),
    (lambda t: t[0].T, lambda a: a[0].T),
    (lambda t: t[:, :1].expand(-1, 5, None), lambda a: np.broadcast_to(a[:, :1], (2, 5, 4))),
    (lambda t: t.expand(2, 2, 3, 4), lambda a: np.broadcast_to(a, (2, 2, 3, 4))),
    (lambda t: t.flip(0, -1), lambda a: a[::-1, :, ::-1]),
    (lambda t: t.flip(()), lambda a: a),
    (lambda t: t.shrink(((0, 1), None, (1, 3))), lambda a: a[:1, :, 1:3]),
    (lambda t: t.shrink(((1, 1), None, None)), lambda a: a[1:1]),
    (lambda t: t.pad((1, 2)), lambda a: np.pad(a, ((0, 0), (0, 0), (1, 2)))),
    (lambda t: t.pad((1, 2, 3, 0)), lambda a: np.pad(a, ((0, 0), (3, 0), (1, 2)))),
    (lambda t: t.pad(((1, 0), None, (0, 1))), lambda a: np.pad(a, ((1, 0), (0, 0), (0, 1)))),
    (lambda t: t.pad((-1, 2)), lambda a: np.pad(a[..., 1:], ((0, 0), (0, 0), (0, 2)))),
    (
        lambda t: t.pad((1, 0), value=-np.inf),
        lambda a: np.pad(a, ((0, 0), (0, 0), (1, 0)), constant_values=-np.inf),
    ),
    (lambda t: t.flatten(), lambda a: a.reshape(-1)),
    (lambda t: t.flatten(1), lambda a: a.reshape(2, 12)),
    (lambda t: t.flatten(0, 1), lambda a: a.reshape(6, 4)),
    (lambda t: t.unflatten(2, (2, -1)), lambda a: a.reshape(2, 3, 2, 2)),
    (lambda t: t.unsqueeze(0).unsqueeze(-1), lambda a: a[None, ..., None]),
    (lambda t: t[:1].squeeze(), lambda a: a[:1].squeeze()),
    (lambda t: t[:1].squeeze(0), lambda a: a[0]),
    (lambda t: t[:1].squeeze((0, 1)), lambda a: a[0]),
    (lambda t: t.repeat(2, 1, 3), lambda a: np.tile(a, (2, 1, 3))),
    (lambda t: t.repeat((2, 1, 1, 1)), lambda a: np.tile(a, (2, 1, 1, 1))),
    (lambda t: t.repeat(0, 1, 1), lambda a: a[:0]),
    (lambda t: t.repeat_interleave(2, 1), lambda a: a.repeat(2, 1)),
    (lambda t: t.repeat_interleave(2), lambda a: a.repeat(2)),
    (lambda t: t.roll(1, 1), lambda a: np.roll(a, 1, 1)),
    (lambda t: t.roll(-5), lambda a: np.roll(a, -5)),
    (lambda t: t.roll((1, -2), (0, 2)), lambda a: np.roll(a, (1, -2), (0, 2))),
    (lambda t: t.cat(t, t[:, :, :0], dim=2), lambda a: np.concatenate([a, a], 2)),
    (lambda t: t.cat(t[:, :1], t, dim=-2), lambda a: np.concatenate([a, a[:, :1], a], 1)),
    (lambda t: t.stack(t, t, dim=-1), lambda a: np.stack([a, a, a], -1)),
    (lambda t: t.stack(), lambda a: a[None]),
    (lambda t: t.tril(), lambda a: np.tril(a)),
    (lambda t: t.triu(2), lambda a: np.triu(a, 2)),
    (lambda t: t.tril(-1), lambda a: np.tril(a, -1)),
]


@pytest.mark.parametrize("case", range(len(MOVES)))
def test_movement_is_numpys(case):
    ours, theirs = MOVES[case]
    same(ours(Tensor(X)), theirs(X))


def test_pieces():
    t = Tensor(X)
    for pieces, expected in [
        (t.split(2, 1), [X[:, :2], X[:, 2:]]),
        (t.split([1, 3], dim=-1), [X[..., :1], X[..., 1:]]),
        (t.chunk(3, 2), [X[..., :2], X[..., 2:]]),
        (t[:, :0].chunk(2, 1), [X[:, :0], X[:, :0]]),
    ]:
        assert len(pieces) == len(expected)
        for piece, part in zip(pieces, expected, strict=True):
            same(piece, part)


def test_scalars_move_too():
    t, a = Tensor(np.float32(5)), np.float32(5)
    for moved, expected in [
        (t.reshape(1, 1), a.reshape(1, 1)),
        (t.flatten(), a.reshape(1)),
        (t.permute(()), a),
        (t.expand(2, 3), np.broadcast_to(a, (2, 3))),
        (t.flip(()), a),
        (t.squeeze(), a),
        (t.stack(t), np.array([5, 5], np.float32)),
        (t.pad(()), a),
        (t.repeat(3), np.array([5, 5, 5], np.float32)),
    ]:
        same(moved, np.asarray(expected))


def test_joining_keeps_nan_and_signed_zero():
    a, b = np.array([np.nan, -0.0], np.float32), np.array([np.inf, 0.0], np.float32)
    joined = Tensor(a).cat(Tensor(b)).numpy()
    np.testing.assert_array_equal(joined, np.concatenate([a, b]))
    assert np.signbit(joined).tolist() == [False, True, False, False]
    assert Tensor([True]).cat(Tensor([2])).dtype is dtypes.int32


def test_movement_makes_movement_nodes_only():
    windows = Tensor(X)._pool((2, 3), (1, 2), (1, 1))
    assert {n.op for n in windows.uop.postorder()} <= GroupOp.Movement | {Ops.BUFFER}


@pytest.mark.parametrize("size", [5, 8])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2, 3])
def test_windows(size, kernel, stride, dilation):
    a = numbers(2, size)
    reach = dilation * (kernel - 1)
    if reach >= size:
        with pytest.raises(ValueError, match="does not fit"):
            Tensor(a)._pool((kernel,), stride, dilation)
        return
    starts = range(0, size - reach, stride)
    expected = np.stack([a[:, s : s + reach + 1 : dilation] for s in starts], 1)
    same(Tensor(a)._pool((kernel,), stride, dilation), expected)


def test_unfold_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    for dim, size, step in [(0, 2, 1), (1, 2, 1), (2, 3, 2), (-1, 4, 1), (1, 1, 3)]:
        same(Tensor(X).unfold(dim, size, step), torch.from_numpy(X).unfold(dim, size, step).numpy())


def test_places_are_a_range_of_numbers_at_logarithmic_cost():
    for count in (0, 1, 2, 3, 8, 9, 1000):
        same(Tensor([0])._places(count), np.arange(count))
    assert len(Tensor.arange(10**9).uop.postorder()) < 300


# ---------------------------------------------------------------- indexing

INDICES = [
    0, -1, np.s_[1], np.s_[0, 1, 2], np.s_[1:], np.s_[:, 1:2], np.s_[..., 0], np.s_[0, ..., 1],
    np.s_[None], np.s_[:, None, 1], np.s_[..., None], np.s_[::-1], np.s_[:, ::-2, ::3],
    np.s_[:, 5:1], np.s_[:, -2:], np.s_[:, 10:], np.s_[1:0:-1], np.s_[:, 2:0:-1], np.s_[()],
    np.s_[...], np.s_[:, :, ::-3], np.s_[np.int64(1), :2], np.s_[:, :, -10:10:3],
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(INDICES)))
def test_basic_indexing_is_numpys(case):
    same(Tensor(X)[INDICES[case]], X[INDICES[case]])


bounds = st.none() | st.integers(-9, 9)
slices = st.builds(slice, bounds, bounds, st.none() | st.sampled_from([1, 2, 3, 7, -1, -2, -5]))


@settings(max_examples=examples(2_000, 100))
@given(st.tuples(slices, slices), st.integers(0, 5), st.integers(1, 6))
def test_any_slices_give_what_numpy_gives(index, rows, columns):
    a = numbers(rows, columns)
    same(Tensor(a)[index], a[index])


PICKS = [
    (lambda i: [0, 1], None),
    (lambda i: np.s_[:, i([2, 0, -1])], None),
    (lambda i: np.s_[i([0, 1]), i([2, 0])], None),
    (lambda i: np.s_[i([0, 1]), :, i([3, 0])], None),
    (lambda i: np.s_[:, i([[0, 1], [2, 2]]), i([3])], None),
    (lambda i: np.s_[i([1]), i([[0], [2]]), i([3, 1])], None),
    (lambda i: np.s_[..., i([0, 3])], None),
    (lambda i: np.s_[1:, i([0, 1]), ::2], None),
    (lambda i: np.s_[None, i([0, 1]), None], None),
    (lambda i: np.s_[:, i([])], None),
]


@pytest.mark.parametrize("case", range(len(PICKS)))
@pytest.mark.parametrize("how", ["tensor", "list", "array"])
def test_picking_by_values_is_numpys(case, how):
    make = {"tensor": Tensor, "list": lambda v: v, "array": np.array}[how]
    if how == "tensor":
        make = lambda v: Tensor(v, dtype="int32")  # noqa: E731
    ours = PICKS[case][0](make)
    theirs = PICKS[case][0](lambda v: np.array(v, dtype=np.int64))
    same(Tensor(X)[ours], X[theirs])


def test_picking_has_no_neighbours_in_it():
    a = np.array([np.nan, 1.0, np.inf], np.float32)
    same(Tensor(a)[Tensor([1, 1, 2])], a[[1, 1, 2]])
    assert Tensor([3, 4, 5])[Tensor([0, 7, -5])].tolist() == [3, 0, 0]
    assert Tensor([True, False])[Tensor([1, 0, 0])].tolist() == [False, True, True]
    assert Tensor([200, 100], dtype="uint8")[Tensor([0], dtype="uint8")].tolist() == [200]


def test_gather_and_one_hot():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for dim, shape in [(0, (3, 2, 4)), (1, (2, 5, 4)), (-1, (1, 3, 2))]:
        index = rng.integers(0, X.shape[dim], shape)
        expected = torch.gather(torch.from_numpy(X), dim, torch.from_numpy(index)).numpy()
        same(Tensor(X).gather(dim, Tensor(index)), expected)
    assert Tensor([1, 3, -1]).one_hot(3).tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert Tensor(2).one_hot(3).tolist() == [0, 0, 1]
    assert Tensor([1]).one_hot(3).dtype is dtypes.int32


def test_a_slice_of_symbolic_size():
    n = UOp.variable("n", 1, 3).bind(2)
    part = Tensor(X)[0, :n]
    assert part.ndim == 2 and part.shape[1] == 4
    assert part.sum(0).tolist() == X[0, :2].sum(0).tolist()
    np.testing.assert_array_equal(part.numpy(), X[0, :2])


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda t: t.reshape(5, 5), ValueError, r"\(2, 3, 4\).*\(5, 5\)"),
        (lambda t: t.reshape(-1, -1), ValueError, "-1"),
        (lambda t: t.reshape(-1, 7), ValueError, "7"),
        (lambda t: t.reshape(-2), ValueError, "-2"),
        (lambda t: t.reshape(2.0, 12), ValueError, "ints"),
        (lambda t: t[:0].reshape(-1, 0), ValueError, "all sizes"),
        (lambda t: t.permute(0, 1), ValueError, "order"),
        (lambda t: t.permute(0, 1, 1), ValueError, "once"),
        (lambda t: t.permute(0, 1, 3), IndexError, "3"),
        (lambda t: t.expand(2, 3, 5), ValueError, "1 grow"),
        (lambda t: t.expand(4), ValueError, "expand"),
        (lambda t: t.flip(0, 0), ValueError, "twice"),
        (lambda t: t.flip(3), IndexError, "3"),
        (lambda t: t.shrink(((0, 3), None, None)), ValueError, "inside"),
        (lambda t: t.shrink(((0, 1),)), ValueError, "3 dimensions"),
        (lambda t: t.pad((1,)), ValueError, "pairs"),
        (lambda t: t.pad(((1, 1),)), ValueError, "3 dimensions"),
        (lambda t: t.pad((1, 1), mode="wild"), ValueError, "mode"),
        (lambda t: t.squeeze(3), IndexError, "3"),
        (lambda t: t.unsqueeze(5), IndexError, "5"),
        (lambda t: t.unflatten(0, (3, 2)), ValueError, "unflatten"),
        (lambda t: t.repeat(2), ValueError, "repeat"),
        (lambda t: t.split([1, 1], 2), ValueError, "sum"),
        (lambda t: t.split(0), ValueError, "split"),
        (lambda t: t.chunk(0), ValueError, "chunk"),
        (lambda t: t.cat(t[:, :1], dim=0), ValueError, "cat"),
        (lambda t: Tensor(1).cat(Tensor(1)), ValueError, "stack"),
        (lambda t: t.stack(t[0]), ValueError, "stack"),
        (lambda t: t.roll((1, 2), 0), ValueError, "roll"),
        (lambda t: t[2], IndexError, "2 elements"),
        (lambda t: t[:, -4], IndexError, "-4"),
        (lambda t: t[0, 0, 0, 0], IndexError, "4 indices"),
        (lambda t: t[..., ...], IndexError, "Ellipsis"),
        (lambda t: t[1.0], IndexError, "float"),
        (lambda t: t[True], IndexError, "bool"),
        (lambda t: t["a"], IndexError, "str"),
        (lambda t: t[:, :: 0], IndexError, "step 0"),
        (lambda t: t[1.0:], IndexError, "slice"),
        (lambda t: t[Tensor([True] * 9)], IndexError, "mask of shape"),
        (lambda t: t[Tensor([1.0])], IndexError, "float32"),
        (lambda t: t[Tensor([0, 1]), Tensor([0, 1, 2])], ValueError, "index"),
        (lambda t: t.gather(0, Tensor([0])), ValueError, "gather"),
        (lambda t: t.one_hot(3), TypeError, "float32"),
        (lambda t: Tensor([1]).tril(), ValueError, "two dimensions"),
        (lambda t: t.permute(True, 1, 2, 3), IndexError, "3"),
        (lambda t: t.transpose("a"), TypeError, "str"),
        (lambda t: len(Tensor(1)), TypeError, "length"),
    ],
)  # fmt: skip
def test_mistakes_are_found_when_written(make, error, words):
    with pytest.raises(error, match=words):
        make(Tensor(X))
