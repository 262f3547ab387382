"""The quick ways of operations give the nodes of the general ones, or leave it to them."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from tiny import Tensor, dtypes, gradient
from tiny._core import build
from tiny.mixin import CastsMixin
from tiny.uop.ops import Ops, UOp

BINARY = (Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.MAX, Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ, Ops.XOR)
NUMBERS = (0, 1, -1, 3, 300, 2**31, 2**53 + 1, 2**64, 10**400, 0.5, -0.0, 1e300, math.inf, True)
DTYPES = (
    dtypes.float32,
    dtypes.float64,
    dtypes.float16,
    dtypes.int32,
    dtypes.uint8,
    dtypes.int64,
    dtypes.uint64,
    dtypes.bool,
)
N = UOp.variable("n", 1, 5).bind(3)
M = UOp.variable("m", 1, 4).bind(2)
SHAPES = ((), (1,), (3,), (2, 3), (2, 1), (1, 3), (4, 1, 3), (0, 3), (5,))


SYMBOLIC = ((N,), (1, N), (2, N), (M, N), (M, 1), (N, M), (M, 1, N), (1, 3, N))


def tensor(shape: tuple[Any, ...], dtype: Any) -> Tensor:
    return Tensor.empty(*shape, dtype=dtype)


shapes = st.sampled_from(SHAPES) | st.sampled_from(SYMBOLIC)
operands = st.builds(tensor, shapes, st.sampled_from(DTYPES))


def result(function, *args):
    """The node that comes out, or the kind of error and its text."""
    try:
        return function(*args).uop
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        return type(error), str(error)


@settings(max_examples=examples(2000, 200))
@given(st.sampled_from(BINARY), operands, operands | st.sampled_from(NUMBERS), st.booleans())
def test_binary_operations_are_those_of_the_general_way(op, x, y, reverse):
    general = result(CastsMixin._binop, x, op, y, reverse)
    assert result(Tensor._binop, x, op, y, reverse) == general
    quick = build.binary(op, x.uop, y.uop if isinstance(y, Tensor) else y, reverse)
    assert quick is None or quick is general


@settings(max_examples=examples(2000, 200))
@given(
    st.builds(tensor, shapes, st.sampled_from((dtypes.bool, dtypes.int32))),
    operands | st.sampled_from(NUMBERS),
    operands | st.sampled_from(NUMBERS),
)
def test_selections_are_those_of_the_general_way(condition, x, y):
    general = result(CastsMixin.where, condition, x, y)
    assert result(Tensor.where, condition, x, y) == general
    nodes = [v.uop if isinstance(v, Tensor) else v for v in (x, y)]
    quick = build.select(condition.uop, *nodes)
    assert quick is None or quick is general


def test_the_quick_way_is_taken_where_nothing_is_special():
    x, y = tensor((2, 3), dtypes.float32), tensor((3,), dtypes.float32)
    assert build.binary(Ops.ADD, x.uop, y.uop, False) is (x + y).uop
    assert build.binary(Ops.SUB, x.uop, 2, True) is (2 - x).uop
    condition = (x < 0).uop
    assert build.select(condition, x.uop, 0.0) is (x < 0).where(x, 0.0).uop


def test_the_quick_way_is_taken_where_symbolic_sizes_are_one():
    x, y = tensor((2, N), dtypes.float32), tensor((N,), dtypes.float32)
    assert build.binary(Ops.ADD, x.uop, y.uop, False).shape == (2, N)
    assert build.broadcast_to(y.uop, (M, N)).shape == (M, N)
    assert build.reshape(x.uop, (2, 1, N, 1)).shape == (2, 1, N, 1)
    assert build.reshape(x.uop, (N, 2)) is None
    assert build.binary(Ops.ADD, x.uop, tensor((M,), dtypes.float32).uop, False) is None


def test_operands_that_need_thought_are_left_to_the_general_way():
    x = tensor((2, 3), dtypes.float32).uop
    n = UOp.variable("n", 1, 5)
    assert build.binary(Ops.ADD, x, tensor((2, 3), dtypes.int32).uop, False) is None
    assert build.binary(Ops.ADD, x, tensor((2,), dtypes.float32).uop, False) is None
    assert (
        build.binary(Ops.ADD, x, UOp(Ops.EXPAND, dtypes.float32, (x, n), (None, 3)), False) is None
    )
    assert build.binary(Ops.ADD, x, UOp.sink(), False) is None
    assert build.binary(Ops.ADD, x, "1", False) is None
    assert build.binary(Ops.ADD, UOp.const(1), 1, False) is None
    assert build.select(x, x, x) is None
    assert build.select(UOp.const(True), 1.0, 2.0) is None


def test_operands_of_two_devices_are_refused():
    x, y = Tensor.empty(3, device="CPU"), Tensor.empty(3, device="PYTHON")
    with pytest.raises(ValueError, match="add: one operand is on"):
        x + y
    with pytest.raises(ValueError, match="where: one operand is on"):
        (x < 0).where(y, 0.0)


# ---------------------------------------------------------------- movement


@pytest.mark.parametrize(
    ("own", "asked", "expected"),
    [
        ((2, 3), (6,), (6,)),
        ((2, 3), (-1,), (6,)),
        ((2, 3), (3, -1), (3, 2)),
        ((), (1, 1), (1, 1)),
        ((1,), (), ()),
        ((0, 3), (0, 7), (0, 7)),
        ((2, 3), (2, 3), (2, 3)),
        ((2, 3), (4, -1), None),
        ((2, 3), (-1, -1), None),
        ((0, 3), (0, -1), None),
        ((2, 3), (2, None), None),
        ((2, 3), (7,), None),
        ((2, 3), (-2, -3), None),
        ((2**40, 2**40), (2**40 + 1, 2**40 - 1), None),
    ],
)
def test_reshape_takes_what_holds_the_same_elements(own, asked, expected):
    x = UOp(Ops.EXPAND, dtypes.float32, (UOp.const(1.0, dtypes.float32),), own)
    found = build.reshape(x, asked)
    assert (found if found is None else found.shape) == expected
    assert expected != own or found is x


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((1, 0, 2), (3, 2, 4)),
        ((-1, 0, 1), (4, 2, 3)),
        ((0, 1, 2), (2, 3, 4)),
        ((0, 1), None),
        ((0, 0, 1), None),
        ((0, 1, 3), None),
        ((0, 1, True), None),
    ],
)
def test_permute_takes_what_names_each_dimension_once(order, expected):
    x = tensor((2, 3, 4), dtypes.float32).uop
    found = build.permute(x, order)
    assert (found if found is None else found.shape) == expected
    assert order != (0, 1, 2) or found is x


@pytest.mark.parametrize(
    ("cuts", "expected"),
    [
        (((0, 1), None), (1, 4)),
        ([None, (1, 1)], (3, 0)),
        ((None, None), (3, 4)),
        (((0, 3), (0, 4)), (3, 4)),
        (((0, 4), None), None),
        (((2, 1), None), None),
        (((-1, 2), None), None),
        ((None,), None),
        (([0, 1], None), None),
    ],
)
def test_shrink_takes_what_lies_inside(cuts, expected):
    found = build.shrink(tensor((3, 4), dtypes.float32).uop, cuts)
    assert (found if found is None else found.shape) == expected


@pytest.mark.parametrize(
    ("margins", "expected"),
    [
        (((1, 0), None), (4, 4)),
        ([(0, 0), (0, 0)], (3, 4)),
        ((None, (2, 3)), (3, 9)),
        (((-1, 0), None), None),
        (((0, -1), None), None),
        ((1, 2, 3, 4), None),
    ],
)
def test_pad_takes_what_grows(margins, expected):
    found = build.pad(tensor((3, 4), dtypes.float32).uop, margins)
    assert (found if found is None else found.shape) == expected


sizes = st.integers(-2, 4) | st.none() | st.sampled_from((N, M))
ends = st.integers(-1, 4) | st.just(N)
pairs = st.none() | st.tuples(ends, ends) | st.integers(0, 1)
movements = (
    st.tuples(st.sampled_from(("reshape", "expand")), st.lists(sizes, max_size=4).map(tuple))
    | st.tuples(st.just("permute"), st.lists(st.integers(-4, 4), max_size=3).map(tuple))
    | st.tuples(st.sampled_from(("shrink", "pad")), st.lists(pairs, max_size=3))
)

# as layers make them: the shape of an operand with dimensions of size 1 put in
around_ones = st.builds(
    lambda shape, at: ("reshape", (*shape[:at], 1, *shape[at:])), shapes, st.integers(0, 3)
)


@settings(max_examples=examples(5000, 500))
@given(operands | st.sampled_from((1.5, 2)).map(Tensor), movements | around_ones)
def test_movements_are_those_of_the_general_way(x, movement):
    name, arg = movement
    moved = result(getattr(x, name), arg)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "_quick", lambda self, move, arg: None)
        assert result(getattr(x, name), arg) == moved


@pytest.mark.parametrize(
    ("own", "asked", "expected"),
    [
        ((2, 1), (2, 5), (2, 5)),
        ((2, 1), (4, -1, 3), (4, 2, 3)),
        ((), (2, 3), (2, 3)),
        ((2, 1), (2, 1), (2, 1)),
        ((2, 1), (3, 1), None),
        ((2, 1), (2,), None),
        ((2, 1), (2, None), None),
        ((1,), (-2,), None),
        ((1,), (0,), (0,)),
    ],
)
def test_expand_takes_what_grows_from_one(own, asked, expected):
    found = build.expand(tensor(own, dtypes.float32).uop, asked)
    assert (found if found is None else found.shape) == expected


def test_broadcast_to_adds_dimensions_first():
    x = tensor((3, 1), dtypes.float32).uop
    found = build.broadcast_to(x, (2, 3, 5))
    assert found.shape == (2, 3, 5)
    assert found.src[0].op is Ops.RESHAPE
    assert build.broadcast_to(x, (1, 3, 1)).op is Ops.RESHAPE
    assert build.broadcast_to(x, (3, 1)) is x
    assert build.broadcast_to(UOp.const(1.0, dtypes.float32), (2,)).op is Ops.EXPAND


# ---------------------------------------------------------------- gradients


@st.composite
def moved(draw):
    """A movement operation over memory of up to three dimensions."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    x = tensor(tuple(sizes), dtypes.float32)
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return x.reshape(-1, 1)
    if kind == 1:
        return x.permute(draw(st.permutations(range(x.ndim))))
    if kind == 2:
        return x.flip(sorted(draw(st.sets(st.integers(0, x.ndim - 1)))))
    if kind == 3:
        return x.pad(tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in sizes))
    begins = [draw(st.integers(0, size)) for size in sizes]
    return x.shrink(tuple((b, draw(st.integers(b, s))) for b, s in zip(begins, sizes, strict=True)))


@given(moved())
def test_gradients_of_movement_are_those_of_the_general_way(x):
    if x.uop.op is Ops.BUFFER:
        return
    grad = tensor(x.shape, dtypes.float32).uop
    assert build.move_back(x.uop, grad) is gradient._move_back(x.uop, grad)


def test_gradients_of_symbolic_movement_are_left_to_the_general_way():
    n = UOp.variable("n", 1, 5)
    x = UOp(
        Ops.SHRINK, dtypes.float32, (tensor((5, 3), dtypes.float32).uop, n), ((0, None), (0, 3))
    )
    assert build.move_back(x, x.const_like(1.0)) is None


def test_a_path_leads_from_users_to_targets_only():
    x, y, z = (tensor((3,), dtypes.float32) for _ in range(3))
    cut = (y * 2).detach()
    loss = ((x * 3).sum() + cut.sum()) * (z.cast(dtypes.int32) + 1).cast(dtypes.float32).sum()
    path = build.path_to(loss.uop, {x.uop, y.uop, z.uop})
    assert path[0] is loss.uop
    assert {x.uop, y.uop, z.uop} <= set(path)
    assert all(node in path or node is x.uop for node in (x * 3).uop.postorder()[-1:])
    assert cut.uop not in path
    assert (y * 2).uop in path  # but nothing above it is
    assert (z.cast(dtypes.int32) + 1).uop not in path
    position = {node: k for k, node in enumerate(path)}
    assert all(position[s] > k for node, k in position.items() for s in node.src if s in position)
