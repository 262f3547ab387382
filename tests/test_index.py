"""Movement operations as functions on indices, against NumPy at every point."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import examples
from strategies import values
from tiny._core import symbolic as native
from tiny._core.index import apply_movement
from tiny.bench.index_corpus import chains
from tiny.dtype import dtypes
from tiny.uop.ops import Ops, UOp

INDEX = dtypes.index


class Move(NamedTuple):
    op: Ops
    arg: Any
    before: tuple[int, ...]
    after: tuple[int, ...]


def applied(x: np.ndarray, op: Ops, arg: Any) -> np.ndarray:
    if op is Ops.RESHAPE:
        return x.reshape(arg)
    if op is Ops.PERMUTE:
        return x.transpose(arg)
    if op is Ops.EXPAND:
        return np.broadcast_to(x, arg)
    if op is Ops.FLIP:
        return np.flip(x, arg)
    if op is Ops.PAD:
        return np.pad(x, arg) if arg else x
    return x[tuple(slice(*pair) for pair in arg)]


def pushed(moves: list[Move], shape: tuple[int, ...]) -> tuple[list[UOp], tuple[UOp, ...], Any]:
    """(loops over the last result, index in the first source, validity)."""
    ranges = [UOp.range(s, i) for i, s in enumerate(shape)]
    idx, valid = tuple(native.simplify(r) for r in ranges), None
    for move in reversed(moves):
        idx, valid = apply_movement(*move, idx, valid)
    return ranges, idx, valid


def check(moves: list[Move], source: tuple[int, ...]) -> list[UOp]:
    """The index finds in arange(...) what NumPy moves there; returns it with the validity."""
    x = np.arange(1, math.prod(source) + 1).reshape(source)
    for move in moves:
        x = applied(x, move.op, move.arg)
    ranges, idx, valid = pushed(moves, x.shape)
    assert len(idx) == len(source)
    grid = np.meshgrid(*[np.arange(s) for s in x.shape], indexing="ij")
    points = dict(zip(ranges, grid, strict=True))
    points[UOp.variable("so that there is a point", 0, 0)] = np.zeros(x.shape, int)
    on = np.ones(x.shape, bool) if valid is None else values(valid, points)
    np.testing.assert_array_equal(on, x != 0)  # zeros are padding
    place = np.zeros(x.shape, int)
    for i, size in zip(idx, source, strict=True):
        at = values(i, points)
        assert ((at >= 0) & (at < size))[on].all(), "an index leaves its dimension inside the gate"
        place = place * size + at
    np.testing.assert_array_equal(place[on] + 1, x[on])
    found = [*idx] if valid is None else [*idx, valid]
    for node in found:
        assert native.simplify(node) is node
    return found


def divisions(nodes: list[UOp]) -> int:
    return len({n for x in nodes for n in x.postorder() if n.op in (Ops.FLOORDIV, Ops.FLOORMOD)})


# ---------------------------------------------------------------- drawn chains


@st.composite
def shapes(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """A shape of that many elements."""
    found = []
    while size > 1:
        d = draw(st.sampled_from([d for d in range(2, size + 1) if size % d == 0]))
        found.append(d)
        size //= d
    found += [1] * draw(st.integers(0, 2))
    return tuple(draw(st.permutations(found)))


@st.composite
def movements(draw: st.DrawFn) -> tuple[list[Move], tuple[int, ...]]:
    source = shape = draw(shapes(draw(st.sampled_from([1, 6, 12, 24, 30, 36, 48, 64]))))
    moves = []
    for _ in range(draw(st.integers(1, 7))):
        op = draw(st.sampled_from([Ops.RESHAPE, Ops.RESHAPE, Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND,
                                   Ops.PAD, Ops.SHRINK, Ops.FLIP]))  # fmt: skip
        arg: Any
        if op is Ops.RESHAPE:
            arg = draw(shapes(math.prod(shape)))
        elif op is Ops.PERMUTE:
            arg = tuple(draw(st.permutations(range(len(shape)))))
        elif op is Ops.EXPAND:
            arg = tuple(draw(st.sampled_from([1, 2, 3])) if s == 1 else s for s in shape)
        elif op is Ops.FLIP:
            arg = tuple(i for i in range(len(shape)) if draw(st.booleans()))
        elif op is Ops.PAD:
            pads = st.sampled_from([0, 0, 1, 2])
            arg = tuple((draw(pads), draw(pads)) for _ in shape)
        else:
            begins = [draw(st.integers(0, s - 1)) for s in shape]
            arg = tuple(
                (b, draw(st.integers(b + 1, s))) for b, s in zip(begins, shape, strict=True)
            )
        after = applied(np.empty(shape, bool), op, arg).shape
        if math.prod(after) <= 5000:
            moves.append(Move(op, arg, shape, after))
            shape = after
    return moves, source


@settings(max_examples=examples(10_000, 300))
@given(movements())
@example(  # two bounds of a difference became one equation, which was not in its own form
    (
        [
            Move(Ops.PERMUTE, (4, 2, 1, 0, 3), (4, 1, 2, 1, 3), (3, 2, 1, 4, 1)),
            Move(
                Ops.PAD, ((0, 0), (0, 2), (0, 2), (2, 0), (0, 0)), (3, 2, 1, 4, 1), (3, 4, 3, 6, 1)
            ),
            Move(Ops.RESHAPE, (6, 3, 12), (3, 4, 3, 6, 1), (6, 3, 12)),
        ],
        (4, 1, 2, 1, 3),
    )
)
def test_drawn_chains_of_movements_find_what_numpy_finds(drawn):
    moves, source = drawn
    for node in check(moves, source):
        native.forget(node)
        assert native.simplify(node) is node


@pytest.mark.parametrize(
    "family, chain", list(chains())[::7], ids=lambda x: x if isinstance(x, str) else ""
)
def test_movements_of_kernels_find_what_numpy_finds(family, chain):
    moves = [
        Move(Ops[step.kind.upper()], step.arg, step.before, step.after)
        for step in chain.steps
        if step.kind != "sum"
    ]
    if len(moves) == len(chain.steps) and math.prod(chain.shape) <= 2_000_000:
        check(moves, chain.source)


# ---------------------------------------------------------------- each operation


def ranges(*sizes: int) -> tuple[UOp, ...]:
    return tuple(UOp.range(s, i) for i, s in enumerate(sizes))


def test_reshape_merges_without_division():
    i, j = ranges(3, 8)
    (at,), valid = apply_movement(Ops.RESHAPE, (3, 8), (24,), (3, 8), (i, j))
    assert at is native.simplify(i * 8 + j) and valid is None


def test_reshape_splits_what_was_merged():
    i, j, k = ranges(3, 8, 5)
    idx, _ = apply_movement(Ops.RESHAPE, (24, 5), (3, 8, 5), (24, 5), (i * 8 + j, k))
    assert idx == (i, j, k)


def test_reshape_takes_groups_of_equal_product_apart():
    i, j = ranges(12, 35)
    idx, _ = apply_movement(Ops.RESHAPE, (12, 35), (3, 4, 5, 7), (12, 35), (i, j))
    assert [n.ranges for n in idx] == [{i: None}, {i: None}, {j: None}, {j: None}]


def test_reshape_ignores_dimensions_of_size_one():
    (i,) = ranges(6)
    idx, _ = apply_movement(Ops.RESHAPE, (6,), (1, 6, 1), (6,), (i,))
    zero = UOp.const(0, INDEX)
    assert idx == (zero, i, zero)
    assert apply_movement(Ops.RESHAPE, (1,), (), (1,), (zero,)) == ((), None)
    assert apply_movement(Ops.RESHAPE, (), (1, 1), (), ()) == ((zero, zero), None)


def test_a_tensor_without_elements_has_the_index_zero():
    i, j = ranges(0, 4)
    zero = UOp.const(0, INDEX)
    assert apply_movement(Ops.RESHAPE, (0, 4), (4, 0, 2), (0, 4), (i, j))[0] == (zero,) * 3


def test_expand_puts_zero_in_new_dimensions():
    i, j = ranges(3, 4)
    idx, _ = apply_movement(Ops.EXPAND, (3, 4), (1, 4), (3, 4), (i, j))
    assert idx == (UOp.const(0, INDEX), j)
    assert apply_movement(Ops.EXPAND, (3, 4), (), (3, 4), (i, j))[0] == ()


def test_pad_keeps_its_gate_beside_the_index():
    (i,) = ranges(9)
    idx, valid = apply_movement(Ops.PAD, ((2, 3),), (4,), (9,), (i,))
    assert idx == (native.simplify(i - 2),)
    assert valid is native.simplify((i >= 2) & (i < 6))
    before = i < 5
    _, valid = apply_movement(Ops.PAD, ((2, 3),), (4,), (9,), (i,), before)
    assert valid is native.simplify((i >= 2) & (i < 5))


def test_a_gate_that_bounds_prove_is_none():
    i = UOp.range(3, 0) + 2
    assert apply_movement(Ops.PAD, ((2, 3),), (4,), (9,), (i,))[1] is None


def test_under_a_gate_a_remainder_that_wraps_outside_it_is_none():
    y, k = ranges(10, 3)
    e = (y * 1 + k * 58 + 1) % 59  # y - k + 1 around zero
    idx, valid = apply_movement(Ops.PAD, ((3, 20),), (36,), (59,), (e,))
    assert divisions([*idx, valid]) == 0
    points = dict(zip((y, k), np.meshgrid(np.arange(10), np.arange(3), indexing="ij"), strict=True))
    at = values(native.simplify(e), points)
    on = values(valid, points)
    np.testing.assert_array_equal(on, (at >= 3) & (at < 39))
    np.testing.assert_array_equal(values(idx[0], points)[on], (at - 3)[on])


def test_a_remainder_that_wraps_into_the_gate_stays():
    (r,) = ranges(2)
    # 1 and 2 are inside; (r + 1) % 2 is never 2, but r + 1 is
    idx, valid = apply_movement(Ops.PAD, ((1, 0),), (2,), (3,), ((r + 1) % 2,))
    assert valid is native.simplify((r + 1) % 2 >= 1)
    assert divisions([*idx]) == 1


def test_convolution_backward_keeps_no_division():
    for family, chain in chains():
        if family != "conv backward":
            continue
        axes = iter(range(100))
        idx = tuple(UOp.range(s, next(axes)) for s in chain.shape)
        valid = None
        for step in reversed(chain.steps):
            if step.kind == "sum":
                sizes = zip(idx, step.before, step.after, strict=True)
                idx = tuple(UOp.range(s, next(axes)) if s != t else i for i, s, t in sizes)
                continue
            op = Ops[step.kind.upper()]
            idx, valid = apply_movement(op, step.arg, step.before, step.after, idx, valid)
        assert divisions([*idx] if valid is None else [*idx, valid]) == 0


def test_shrink_and_flip_are_affine():
    (i,) = ranges(4)
    assert apply_movement(Ops.SHRINK, ((3, 7),), (9,), (4,), (i,))[0] == (native.simplify(i + 3),)
    assert apply_movement(Ops.FLIP, (0,), (4,), (4,), (i,))[0] == (native.simplify(3 - i),)


def test_symbolic_sizes_pass_through():
    n = UOp.variable("n", 1, 64)
    i, j, k = UOp.range(n, 0), UOp.range(3, 1), UOp.range(4, 2)
    idx, _ = apply_movement(Ops.RESHAPE, (n, 12), (n, 3, 4), (n, 12), (i, j * 4 + k))
    assert idx == (i, j, k)
    idx, _ = apply_movement(Ops.RESHAPE, (n * 12,), (n, 3, 4), (n * 12,), (i * 12 + j * 4 + k,))
    assert idx == (i, j, k)
    idx, _ = apply_movement(Ops.RESHAPE, (3, n), (n * 3,), (3, n), (j, i))
    assert idx == (native.simplify(j * n + i),)
    idx, _ = apply_movement(Ops.RESHAPE, (n * 3,), (3, n), (n * 3,), idx)
    assert idx == (j, i)
    idx, _ = apply_movement(Ops.FLIP, (0,), (n,), (n,), (i,))
    assert idx == (native.simplify(n - 1 - i),)
    idx, valid = apply_movement(Ops.PAD, ((1, 1),), (n,), (n + 2,), (UOp.range(n + 2, 0),))
    assert valid is not None
    idx, _ = apply_movement(Ops.SHRINK, ((n, n + 2),), (n * 2,), (2,), (UOp.range(2, 0),))
    assert idx == (native.simplify(UOp.range(2, 0) + n),)


# ---------------------------------------------------------------- what does not fit


def test_shapes_of_another_size_are_refused():
    with pytest.raises(ValueError, match="another number of elements"):
        apply_movement(Ops.RESHAPE, (5,), (2, 3), (5,), ranges(5))


def test_an_index_of_another_rank_is_refused():
    with pytest.raises(ValueError, match="needs 2 indices, got 1"):
        apply_movement(Ops.PERMUTE, (1, 0), (2, 3), (3, 2), ranges(3))


def test_another_operation_is_refused():
    with pytest.raises(ValueError, match="not a movement"):
        apply_movement(Ops.ADD, None, (2,), (2,), ranges(2))


def test_a_tensor_beyond_62_bits_is_refused():
    with pytest.raises(OverflowError, match="62 bits"):
        apply_movement(Ops.RESHAPE, (2**62,), (2**31, 2**31), (2**62,), (UOp.range(2, 0),))
