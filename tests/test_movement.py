"""Movement by laws and in its corners: drawn arguments, views, symbolic sizes, mistakes."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from tiny import Tensor, Variable
from tiny.uop.ops import Ops, UOp

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

# ---------------------------------------------------------------- laws


def drawn(count: int) -> Any:
    return settings(max_examples=examples(2000, count), deadline=None)


def same(x: Tensor, expected: np.ndarray) -> None:
    assert x.shape == expected.shape
    np.testing.assert_array_equal(x.numpy(), expected)


@st.composite
def shapes(draw: Any, least: int = 0, most: int = 4) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(1, 4), min_size=least, max_size=most)))


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(math.prod(shape), dtype=np.int32).reshape(shape)


@given(st.data())
@drawn(40)
def test_rearrange_is_reshape_permute_reshape(data):
    """Names are joined and taken apart at random on either side."""
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    names = [f"d{k}" for k in range(len(sizes))]

    def side(order: list[str]) -> tuple[str, list[list[str]]]:
        groups, rest = [], list(order)
        while rest:
            n = data.draw(st.integers(1, len(rest)))
            groups.append(rest[:n])
            rest = rest[n:]
            if data.draw(st.booleans()):
                groups.append([])
        return " ".join(g[0] if len(g) == 1 else f"({' '.join(g)})" for g in groups), groups

    left, groups = side(names)
    order = data.draw(st.permutations(names))
    right, after = side(order)
    size_of = dict(zip(names, sizes, strict=True))
    whole = numbered(tuple(sizes))
    x = whole.reshape([math.prod(size_of[n] for n in g) for g in groups])
    expected = whole.transpose([names.index(n) for n in order])
    expected = expected.reshape([math.prod(size_of[n] for n in g) for g in after])
    given_sizes = {n: size_of[n] for g in groups for n in g[1:]}
    same(Tensor(x).rearrange(f"{left} -> {right}", **given_sizes), expected)


@given(shapes(1, 3), st.data())
@drawn(60)
def test_padding_is_numpys(shape, data):
    mode, theirs = data.draw(
        st.sampled_from([("constant", "constant"), ("reflect", "reflect"),
                         ("replicate", "edge"), ("circular", "wrap")])
    )  # fmt: skip
    limit = {"constant": 3, "replicate": 3}.get(mode)
    widths = [
        tuple(
            data.draw(st.integers(0, limit if limit is not None else size - (mode == "reflect")))
            for _ in range(2)
        )
        for size in shape
    ]
    same(Tensor(numbered(shape)).pad(widths, mode=mode), np.pad(numbered(shape), widths, theirs))


@given(shapes(1, 3), st.integers(-3, 3), st.data())
@drawn(30)
def test_a_negative_pad_undoes_a_positive_one(shape, value, data):
    widths = [tuple(data.draw(st.integers(0, 3)) for _ in range(2)) for _ in shape]
    x = Tensor(numbered(shape)).pad(widths, value=value)
    same(x.pad([(-a, -b) for a, b in widths], value=7), numbered(shape))
    same(x.pad_to(x.shape).shrink_to(*x.shape).shrink([(a, a + s) for (a, _), s in
                                                       zip(widths, shape, strict=True)]),
         numbered(shape))  # fmt: skip


@given(shapes(1, 3), st.data())
@drawn(30)
def test_pieces_joined_are_the_whole(shape, data):
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = Tensor(numbered(shape))
    cuts = sorted(data.draw(st.lists(st.integers(0, shape[dim]), max_size=3)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, shape[dim]], strict=True)]
    for pieces in (x.split(sizes, dim), x.split(2, dim), tuple(x.chunk(3, dim))):
        same(pieces[0].cat(*pieces[1:], dim=dim), numbered(shape))


@given(shapes(2, 4), st.integers(-5, 5), st.data())
@drawn(30)
def test_diagonals_are_numpys(shape, offset, data):
    a, b = data.draw(st.permutations(range(len(shape))))[:2]
    same(Tensor(numbered(shape)).diagonal(offset, a, b), numbered(shape).diagonal(offset, a, b))


@given(shapes(1, 3), st.data())
@drawn(30)
def test_rolling_is_numpys_and_has_a_way_back(shape, data):
    dims = data.draw(st.lists(st.integers(-len(shape), len(shape) - 1), min_size=1, max_size=3))
    shifts = [data.draw(st.integers(-9, 9)) for _ in dims]
    x = Tensor(numbered(shape)).roll(tuple(shifts), tuple(dims))
    same(x, np.roll(numbered(shape), shifts, dims))
    same(x.roll(tuple(-s for s in shifts), tuple(dims)), numbered(shape))


def test_a_diagonal_is_that_of_its_matrix():
    x = Tensor([1.0, -0.0, 3.0])
    assert x.diag().diagonal().tolist() == [1, 0, 3]
    assert np.signbit(x.diag().diagonal().numpy())[1]
    assert x.diag().diagonal(1).tolist() == [0, 0]


MOVES: dict[str, Any] = {
    "pad": lambda x, k: x.pad((k % 3, 2)),
    "cut": lambda x, k: x.pad((-(k % 2), 1)),
    "reflect": lambda x, k: x.pad((x.shape[-1] - 1, (k + 1) % x.shape[-1]), mode="reflect"),
    "replicate": lambda x, k: x.pad((k, 2), mode="replicate"),
    "circular": lambda x, k: x.pad((x.shape[-1], k % x.shape[-1]), mode="circular"),
    "roll": lambda x, k: x.roll((k, -1), (0, -1)),
    "repeat": lambda x, k: x.repeat(*[1] * (x.ndim - 1), k + 1),
    "repeat_interleave": lambda x, k: x.repeat_interleave(k + 1, k % x.ndim),
    "cat": lambda x, k: x.cat(x.flip(0), dim=k % x.ndim),
    "stack": lambda x, k: x.stack(x, x, dim=k % (x.ndim + 1)),
    "unfold": lambda x, k: x.unfold(-1, 1 + k % x.shape[-1], 1 + k % 2),
    "flip": lambda x, k: x.flip(k % x.ndim),
    "transpose": lambda x, k: x.transpose(0, k % x.ndim),
    "expand": lambda x, k: x.unsqueeze(k % x.ndim).expand(
        *[-1] * (k % x.ndim), 3, *[-1] * (x.ndim - k % x.ndim)),
    "split": lambda x, k: x.split(2, k % x.ndim)[-1],
    "chunk": lambda x, k: x.chunk(2, -1)[0],
    "diag": lambda x, k: x.flatten()[:5].diag(),
    "diagonal": lambda x, k: x.unsqueeze(0).diagonal(k - 1, 0, -1),
    "tril": lambda x, k: x.unsqueeze(0).tril(k - 1),
    "triu": lambda x, k: x.unsqueeze(0).triu(k - 1),
    "rearrange": lambda x, k: x.rearrange("a ... -> (... a)"),
    "meshgrid": lambda x, k: x.flatten()[:4].meshgrid(x.flatten()[:2])[k % 2],
    "pad_to": lambda x, k: x.pad_to([s + k for s in x.shape]),
    "shrink_to": lambda x, k: x.shrink_to([max(s - k, 1) for s in x.shape]),
}  # fmt: skip


@given(shapes(1, 3), st.lists(st.tuples(st.sampled_from(sorted(MOVES)), st.integers(0, 3)),
                              min_size=1, max_size=2))  # fmt: skip
@drawn(40)
def test_a_gradient_comes_back_to_where_the_elements_came_from(shape, moves):
    """Numbers are moved to see where each goes; 0 is what was put beside them."""

    def moved(x: Tensor) -> Tensor:
        for name, k in moves:
            x = MOVES[name](x, k) if 0 not in x.shape else x
        return x

    numbers = moved(Tensor(numbered(shape) + 1)).numpy()
    weights = np.arange(1, numbers.size + 1, dtype=np.float64).reshape(numbers.shape)
    x = Tensor(numbered(shape).astype(np.float64))
    (moved(x) * Tensor(weights)).sum().backward()
    came = np.bincount(numbers.ravel(), weights.ravel(), math.prod(shape) + 1)[1:]
    found = np.zeros(shape) if x.grad is None else x.grad.numpy()
    np.testing.assert_array_equal(found, came.reshape(shape))


# ---------------------------------------------------------------- views and values


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.rearrange("a (b c) -> c a b", b=2),
        lambda x: x.diagonal(1),
        lambda x: x.T,
        lambda x: x.shrink_to(1, 2),
        lambda x: x.unflatten(1, (2, 2)),
        lambda x: x.split(2, 1)[1],
        lambda x: x.chunk(2)[0],
        lambda x: x.squeeze(),
        lambda x: x.flip(1),
    ],
)
def test_what_only_rearranges_is_written_through(view):
    x, places = Tensor.zeros(3, 4).realize(), np.arange(12).reshape(3, 4)
    part = view(x)
    part.assign(part.const_like(5))
    written = view(Tensor(places)).numpy().ravel()
    assert x.numpy().ravel().nonzero()[0].tolist() == sorted(written.tolist())


@pytest.mark.parametrize(
    "value",
    [
        lambda x: x.pad((1, 1)),
        lambda x: x.pad((0, 0)),
        lambda x: x.pad((-1, 0)),
        lambda x: x.pad((1, 1), mode="reflect"),
        lambda x: x.pad((0, 0), mode="reflect"),
        lambda x: x.pad((-1, 0), mode="circular"),
        lambda x: x.pad_to(3, 4),
        lambda x: x.pad_to(4, 4),
        lambda x: x.repeat(1, 1),
        lambda x: x.repeat_interleave(1, 0),
        lambda x: x.roll(0, 0),
        lambda x: x.roll(1, 0),
        lambda x: x.cat(),
        lambda x: x.cat(x[:0]),
        lambda x: x.stack(),
        lambda x: x.unfold(0, 2, 1),
        lambda x: x[:, 0].diag(),
    ],
)
def test_what_repeats_or_adds_elements_is_a_value_of_the_moment(value):
    x = Tensor.ones(3, 4).realize()
    before = value(x)
    expected = value(Tensor.ones(3, 4)).numpy()
    x.assign(x.const_like(9))
    np.testing.assert_array_equal(before.numpy(), expected)


def test_nothing_is_added_to_the_graph_where_nothing_moves():
    x = Tensor(X)
    for same_x in (x.reshape(2, 3, 4), x.permute(0, 1, 2), x.expand(2, -1, 4), x.shrink_to(x.shape),
                   x.rearrange("... -> ..."), x.squeeze(), x.flip(()), x.T.T):  # fmt: skip
        assert same_x.uop is x.uop or same_x.uop.src[0].src[0] is x.uop


def test_the_graph_of_an_operation_is_small():
    """As many nodes as it takes, not one for each element or dimension."""

    def nodes(x: Tensor) -> int:
        return len([n for n in x.uop.toposort() if n.op not in (Ops.CONST, Ops.BUFFER)])

    x, square = Tensor(X), Tensor.zeros(9, 9).realize()
    assert nodes(x.rearrange("a b (c d) -> (d a) c b", c=2)) <= 3
    assert nodes(square.diagonal(2)) <= 7
    assert nodes(square[0].diag()) <= 8
    assert nodes(x.pad((1, 1, 1, 1), mode="circular")) <= 12
    assert nodes(x.pad((1, 1), value=3)) <= 6
    assert nodes(x.roll(1, 0)) <= 9  # two pieces


def test_a_value_of_one_row_that_is_wanted_at_several_places_is_read_in_bounds():
    """A row was kept for a kernel at the place of one of its readers, where others have none."""
    x, widths = numbered((1, 1, 2)), ((1, 1), (1, 1), (1, 1))
    for device in ("CPU", "PYTHON"):  # PYTHON refuses to read out of bounds
        same(Tensor(x, device=device).pad(widths, mode="replicate"), np.pad(x, widths, "edge"))


# ---------------------------------------------------------------- many parts


def test_a_thousand_parts_are_joined_in_linear_time():
    """Twice as many take about twice as long, and no kernel has too many arguments."""

    def seconds(count: int) -> float:
        parts = [Tensor(np.full((2, 3), k, np.float32)) for k in range(count)]
        begin = time.process_time()
        x = Tensor.cat(*parts, dim=1)
        np.testing.assert_array_equal(x.numpy()[0], np.repeat(np.arange(count), 3))
        return time.process_time() - begin

    seconds(10)
    few, many = seconds(250), seconds(1000)
    assert many < 10 * few, f"{few:.2f} s and {many:.2f} s"


def test_the_gradient_of_many_parts():
    parts = [Tensor([float(k), 1.0]) for k in range(200)]
    Tensor.stack(*parts).square().sum().backward()
    assert [p.grad.tolist() for p in parts[::67]] == [[2.0 * k, 2.0] for k in range(0, 200, 67)]


# ---------------------------------------------------------------- symbolic sizes

T = np.arange(12, dtype=np.int32).reshape(6, 2)


@pytest.mark.parametrize("value", [2, 5])
@pytest.mark.parametrize(
    "move, expected",
    [
        (lambda t: t.rearrange("n c -> c n"), lambda a: a.T),
        (lambda t: t.rearrange("n (a b) -> (n a) b", a=2), lambda a: a.reshape(-1, 1)),
        (lambda t: t.pad(((1, 2), (0, 1)), value=9), lambda a: np.pad(a, ((1, 2), (0, 1)),
                                                                      constant_values=9)),
        (lambda t: t.pad((0, 0, 1, 1), mode="reflect"), lambda a: np.pad(a, ((1, 1), (0, 0)),
                                                                         "reflect")),
        (lambda t: t.pad((0, 0, 1, 1), mode="replicate"), lambda a: np.pad(a, ((1, 1), (0, 0)),
                                                                           "edge")),
        (lambda t: t.pad((0, 0, 2, 1), mode="circular"), lambda a: np.pad(a, ((2, 1), (0, 0)),
                                                                          "wrap")),
        (lambda t: t.shrink_to(None, 1), lambda a: a[:, :1]),
        (lambda t: t.pad_to(7, 3, value=-1), lambda a: np.pad(a, ((0, 7 - len(a)), (0, 1)),
                                                              constant_values=-1)),
        (lambda t: t.cat(t), lambda a: np.concatenate([a, a])),
        (lambda t: t.stack(t, dim=1), lambda a: np.stack([a, a], 1)),
        (lambda t: t.repeat(2, 1), lambda a: np.tile(a, (2, 1))),
        (lambda t: t.repeat_interleave(3, 0), lambda a: np.repeat(a, 3, 0)),
        (lambda t: t.roll(1, 0), lambda a: np.roll(a, 1, 0)),
        (lambda t: t[:, 0].diag(), lambda a: np.diag(a[:, 0])),
        (lambda t: t[:, 0].meshgrid(Tensor([1, 2]))[0], lambda a: np.stack([a[:, 0]] * 2, 1)),
        (lambda t: t.unfold(1, 2, 1), lambda a: a[:, None]),
        (lambda t: t.split([1, 1], 1)[1], lambda a: a[:, 1:]),
        (lambda t: t.tril(), np.tril),
        (lambda t: t.masked_fill(t > 3, 0), lambda a: np.where(a > 3, 0, a)),
        (lambda t: t.expand(2, -1, -1), lambda a: np.broadcast_to(a, (2, *a.shape))),
    ],
)  # fmt: skip
def test_sizes_may_be_symbolic(move, expected, value):
    t = Tensor(T)[: Variable("n", 2, 6).bind(value)]
    found, wanted = move(t), expected(T[:value])
    np.testing.assert_array_equal(found.numpy(), wanted)
    assert all(most >= size for most, size in zip(found.max_shape, wanted.shape, strict=True))


def test_sizes_of_symbolic_shapes():
    n = Variable("n", 1, 6)
    t = Tensor(T)[: n.bind(4)]
    assert (t.max_shape, t.max_numel(), t.ndim, t.size(1)) == ((6, 2), 12, 2, 2)
    assert isinstance(t.numel(), UOp) and t.size(0) is t.shape[0]


@pytest.mark.parametrize(
    "move, words",
    [
        (
            lambda t: t.pad((0, 0, 1, 1), mode="reflect"),
            r"dimension 0 .* has n=4 for all values of",
        ),
        (lambda t: t.pad((0, 0, 2, 0), mode="circular"), r"more than go once around dimension 0"),
        (lambda t: t.shrink_to(2, 2), r"shrink_to: \(2, 2\) is not inside .*'n' \(from 1 to 6\)"),
        (lambda t: t.pad_to(5, 2), r"pad_to: \(5, 2\) is smaller than .*'n' \(from 1 to 6\)"),
        (lambda t: t.diagonal(), "diagonal: the sizes .* must be known"),
        (lambda t: t.unfold(0, 2, 1), "unfold: windows of 2 do not fit"),
        (lambda t: t.unfold(0, 1, 1), "need sizes that are known"),
        (lambda t: t.chunk(2), "chunk: that 2 pieces .* is not known"),
        (lambda t: t.split(2), "split: into how many pieces"),
        (lambda t: t.roll(3, 0), "roll: a shift by 3 may go round"),
        (lambda t: t.pad((0, 0, -2, 0)), r"pad: \(-2, 0\) cuts off more than"),
    ],
)
def test_what_is_not_known_for_all_sizes_is_refused(move, words):
    with pytest.raises(ValueError, match=words):
        move(Tensor(T)[: Variable("n", 1, 6).bind(4)])


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "move, error, words",
    [
        (lambda t: t.reshape(5, 5), ValueError, "reshape: .* has 24 elements and .* has 25"),
        (lambda t: t.reshape(-1, -1), ValueError, "reshape: only one size can be -1"),
        (lambda t: t.reshape(-2, 12), ValueError, "reshape: sizes are ints of at least 0"),
        (lambda t: t.reshape(2.0, 12), ValueError, "reshape: sizes are ints"),
        (lambda t: t.reshape(5, -1), ValueError, "can not divide"),
        (lambda t: t[:0].reshape(0, -1), ValueError, "give all sizes"),
        (lambda t: t.permute(0, 1), ValueError, "permute: the order must name each of the 3"),
        (lambda t: t.permute(0, 1, 1), ValueError, "permute: the order must name each"),
        (lambda t: t.permute(0, 1, 3), IndexError, "there is no dimension 3"),
        (lambda t: t.transpose(0, 3), IndexError, "there is no dimension 3"),
        (lambda t: t[0, 0].transpose(), IndexError, "there is no dimension 1"),
        (lambda t: t.expand(2, 3, 5), ValueError, "expand: .* does not expand to"),
        (lambda t: t.expand(3, 4), ValueError, "only sizes of 1 grow"),
        (lambda t: t[:1].expand(-2, 3, 4), ValueError, "expand: sizes are at least 0"),
        (lambda t: t.flip(0, 0), ValueError, "flip: a dimension is named twice"),
        (lambda t: t.flip(3), IndexError, "there is no dimension 3"),
        (lambda t: t.shrink(((0, 1),)), ValueError, "shrink: one .* for each of the 3"),
        (lambda t: t.shrink(((0, 3), None, None)), ValueError, r"shrink: \(0, 3\) is not inside"),
        (lambda t: t.shrink(((1, 0), None, None)), ValueError, r"shrink: \(1, 0\) is not inside"),
        (lambda t: t.shrink((1, None, None)), ValueError, "shrink: one .begin, end. or None"),
        (lambda t: t.shrink(((0, 1, 2), None, None)), ValueError, "shrink: one .begin, end. or"),
        (lambda t: t.shrink_to(3, 3, 4), ValueError, "use pad_to to make it larger"),
        (lambda t: t.shrink_to(2, 3), ValueError, "shrink_to: a size or None for each of the 3"),
        (lambda t: t.shrink_to(2, 3, -1), ValueError, "shrink_to"),
        (lambda t: t.pad_to(1, 3, 4), ValueError, "use shrink_to to cut off"),
        (lambda t: t.pad_to(4), ValueError, "pad_to: a size or None for each of the 3"),
        (lambda t: t.pad(1), TypeError, "pad: .* are needed, got 1"),
        (lambda t: t.pad((1, 1, 1)), ValueError, "numbers come in pairs"),
        (lambda t: t.pad((1,) * 8), ValueError, "at most one for each of the 3 dimensions"),
        (lambda t: t.pad(((1, 1), (0, 0))), ValueError, "pad: one .before, after. for each"),
        (lambda t: t.pad((1.5, 1, None)), ValueError, "pad: one .before, after. for each"),
        (lambda t: t.pad(((1, 1, 1), None, None)), ValueError, "are two ints"),
        (lambda t: t.pad((-3, -2)), ValueError, r"pad: \(-3, -2\) cuts off more than the 4"),
        (lambda t: t.pad((1, 1), mode="wrap"), ValueError, "one of constant, reflect, replicate"),
        (lambda t: t.pad((4, 0), mode="reflect"), ValueError, "reflecting 4 .* of 5 or more"),
        (lambda t: t.pad((0, 5), mode="circular"), ValueError, "5 elements are more than go once"),
        (lambda t: t.pad((-1, 4), mode="circular"), ValueError, "which has 3"),
        (lambda t: t[..., :0].pad((1, 0), mode="replicate"), ValueError, "no elements whose edge"),
        (lambda t: t.flatten(2, 1), ValueError, "flatten: dimension 2 comes after 1"),
        (lambda t: t.flatten(3), IndexError, "there is no dimension 3"),
        (lambda t: t.unflatten(2, (3, 2)), ValueError, "unflatten: dimension 2 .* has 4 elements"),
        (lambda t: t.unflatten(2, (-1, -1)), ValueError, "unflatten: dimension 2"),
        (lambda t: t.unflatten(2, (3, -1)), ValueError, "unflatten: dimension 2"),
        (lambda t: t[0, 0, 0].unflatten(0, (1, 1)), ValueError, "unflatten: a scalar"),
        (lambda t: t.squeeze(3), IndexError, "there is no dimension 3"),
        (lambda t: t.unsqueeze(4), IndexError, "there is no dimension 4"),
        (lambda t: t.stack(t[0]), ValueError, "stack: the shapes .* differ; expand or pad"),
        (lambda t: t.stack(t, dim=4), IndexError, "there is no dimension 4"),
        (lambda t: t.stack(1), TypeError, "stack: got int among the values"),
        (lambda t: Tensor.stack([]), ValueError, "stack: at least one value is needed"),
        (lambda t: Tensor.stack([t], t), ValueError, "in one list or as arguments"),
        (lambda t: t.cat(t[:, :1]), ValueError, "cat: the shapes .* differ outside dimension 0"),
        (lambda t: t.cat(t[0]), ValueError, "cat: the shapes .* differ outside dimension 0"),
        (lambda t: t.cat(np.zeros(3)), TypeError, "cat: got ndarray among the values"),
        (lambda t: t.cat([t]), TypeError, "cat: got list among the values"),
        (lambda t: t[0, 0, 0].cat(t), ValueError, "cat: a scalar has no dimension .* use stack"),
        (lambda t: t.chunk(0), ValueError, "chunk: a number of at least 1"),
        (lambda t: t[0, 0, 0].chunk(2), ValueError, "chunk: a scalar has no dimension"),
        (lambda t: t.split(0), ValueError, "split: pieces have a size of at least 1, got 0"),
        (lambda t: t.split([1, 2]), ValueError, r"split: the sizes \[1, 2\] sum to 3"),
        (lambda t: t.split([3, -1]), ValueError, "they must be at least 0"),
        (lambda t: t.split(1, 3), IndexError, "there is no dimension 3"),
        (lambda t: t.repeat(2, 2), ValueError, "repeat: a count of at least 0 for each of the 3"),
        (lambda t: t.repeat(1, 1, -1), ValueError, "repeat: a count of at least 0"),
        (lambda t: t.repeat_interleave(-1), ValueError, "repeats is at least 0, got -1"),
        (lambda t: t.repeat_interleave(t), TypeError, "repeats is one int .* got Tensor"),
        (lambda t: t.repeat_interleave([1, 2]), TypeError, "repeats is one int .* got list"),
        (lambda t: t[0, 0, 0].repeat_interleave(2, 0), ValueError, "repeat_interleave: a scalar"),
        (lambda t: t[0, 0, 0].roll(1, 0), ValueError, "roll: a scalar has no dimension"),
        (lambda t: t[0, 0, 0].size(0), ValueError, "size: a scalar has no dimension"),
        (lambda t: t.roll((1, 1), 0), ValueError, r"roll: one shift for each .* got \(1, 1\)"),
        (lambda t: t.roll(1, (0, 1)), ValueError, "roll: one shift for each"),
        (lambda t: t.roll((1, 1)), ValueError, "for dimensions None"),
        (lambda t: t.unfold(0, 3, 1), ValueError, "unfold: windows of 3 do not fit"),
        (lambda t: t.unfold(0, 1, 0), ValueError, "unfold: size and step are ints"),
        (lambda t: t.unfold(0, -1, 1), ValueError, "unfold: size and step are ints"),
        (lambda t: t.unfold(3, 1, 1), IndexError, "there is no dimension 3"),
        (lambda t: t[0, 0, 0].unfold(0, 1, 1), ValueError, "unfold: a scalar"),
        (lambda t: t.diag(), ValueError, r"diag: .* shape \(n,\), got \(2, 3, 4\)"),
        (lambda t: t.diagonal(0, 1, -2), ValueError, "diagonal: 1 and -2 are one dimension"),
        (lambda t: t.diagonal(0, 1, 3), IndexError, "there is no dimension 3"),
        (lambda t: t.diagonal(0.5), TypeError, "diagonal: the offset is an int"),
        (lambda t: t[0, 0].tril(), ValueError, "two dimensions"),
        (lambda t: t.masked_fill(t, 1), TypeError, "must be bool, got dtypes.float32"),
        (lambda t: t.meshgrid(t), ValueError, r"meshgrid: axes are vectors .* \(2, 3, 4\)"),
        (lambda t: t[0, 0].meshgrid(indexing="yx"), ValueError, "indexing is .* got 'yx'"),
        (lambda t: t[0, 0].meshgrid(3), TypeError, "meshgrid: got int among"),
        (lambda t: t.size(3), IndexError, "there is no dimension 3"),
        (lambda t: t.rearrange("a b c"), ValueError, 'rearrange: one "->" is needed'),
        (lambda t: t.rearrange("a -> b -> c"), ValueError, 'one "->" is needed'),
        (lambda t: t.rearrange("a b -> b a"), ValueError, r"does not name the dimensions of"),
        (lambda t: t.rearrange("a b c d -> d c b a"), ValueError, "does not name the dimensions"),
        (lambda t: t.rearrange("a b c ... d -> a"), ValueError, "must be once on each side"),
        (lambda t: t.rearrange("a b c -> a b"), ValueError, "'c' must be once on each side"),
        (lambda t: t.rearrange("a b c -> a b c d"), ValueError, "'d' must be once"),
        (lambda t: t.rearrange("a b b -> a b"), ValueError, "'b' must be once"),
        (lambda t: t.rearrange("a ... -> a"), ValueError, r"'\.\.\.' must be once"),
        (lambda t: t.rearrange("a (...) -> a ..."), ValueError, "stands outside parentheses"),
        (lambda t: t.rearrange("a (b c -> a b c"), ValueError, "parentheses .* do not match"),
        (lambda t: t.rearrange("a b) c -> a b c"), ValueError, "parentheses .* do not match"),
        (lambda t: t.rearrange("a ((b) c) -> a b c"), ValueError, "parentheses .* do not match"),
        (lambda t: t.rearrange("a b 2 -> a b"), ValueError, "'2' is no name"),
        (lambda t: t.rearrange("a b c, -> a b c"), ValueError, "',' is no name"),
        (lambda t: t.rearrange("a b 1 -> a b"), ValueError, "of 4 .* is not made up by"),
        (lambda t: t.rearrange("a b (c d) -> a b c d"), ValueError, "'c' and 'd' do not follow"),
        (lambda t: t.rearrange("a b (c d) -> a b c d", c=3), ValueError, "not made up by 'c d'"),
        (lambda t: t.rearrange("a b c -> a b c", a=3), ValueError, "not made up by 'a'"),
        (lambda t: t.rearrange("a b c -> a b c", z=3), ValueError, "'z', whose size is given"),
    ],
)  # fmt: skip
def test_mistakes_are_found_when_written(move, error, words):
    with pytest.raises(error, match=words):
        move(Tensor(X))
