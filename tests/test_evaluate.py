"""The evaluator that other tests rely on: each op against values known from elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluate import evaluate, evaluate_all
from tiny.dtype import _to_np_dtype, dtypes, truncate
from tiny.uop.ops import BufferArg, Ops, ReduceArg, UOp


def buffer(uid, array, dtype):
    node = UOp(Ops.BUFFER, dtype, (), BufferArg(-1 - uid, array.shape, "TEST"))
    return node, {node: array}


def binary(op, a, b, dtype):
    np_type = _to_np_dtype(dtype)
    x, memory = buffer(0, np.array(a, np_type), dtype)
    y, more = buffer(1, np.array(b, np_type), dtype)
    return evaluate(UOp(op, dtype, (x, y)), memory | more).tolist()


@pytest.mark.parametrize(
    "counter, key, expected",  # the known answers of Random123
    [
        (0, 0, 0x99BA4EFE6B200159),
        (2**64 - 1, 2**64 - 1, 0xBB002BE71CB996FC),
        (0x85A308D3243F6A88, 0x0370734413198A2E, 0x483DF7A0C4923A9C),
    ],
)
def test_threefry_gives_the_published_values(counter, key, expected):
    x, k = UOp.const(counter, dtypes.uint64), UOp.const(key, dtypes.uint64)
    assert int(evaluate(UOp(Ops.THREEFRY, dtypes.uint64, (x, k)))) == expected


def test_integer_division_is_total():
    a, b = [7, -7, 7, -7, 5, -128], [2, 2, -2, -2, 0, -1]
    assert binary(Ops.FLOORDIV, a, b, dtypes.int8) == [3, -4, -4, 3, 0, -128]
    assert binary(Ops.FLOORMOD, a, b, dtypes.int8) == [1, 1, -1, -1, 0, 0]
    assert binary(Ops.CDIV, a, b, dtypes.int8) == [3, -3, -3, 3, 0, -128]
    assert binary(Ops.CMOD, a, b, dtypes.int8) == [1, -1, 1, -1, 0, 0]


def test_shifts_are_total():
    assert binary(Ops.SHL, [1, 1, -1], [7, 8, 64], dtypes.int8) == [-128, 0, 0]
    assert binary(Ops.SHR, [-128, -1, 64], [7, 8, 100], dtypes.int8) == [-1, -1, 0]


def test_max_keeps_nan_and_comparisons_are_ordered():
    a, b = [math.nan, 1.0], [1.0, math.nan]
    assert np.isnan(binary(Ops.MAX, a, b, dtypes.float32)).all()
    x, memory = buffer(0, np.array(a, np.float32), dtypes.float32)
    less, differ, same = (UOp(op, dtypes.bool, (x, x)) for op in (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ))
    values = [v.tolist() for v in evaluate_all([less, differ, same], memory)]
    assert values == [[False, False], [True, False], [False, True]]


@pytest.mark.parametrize("dtype", dtypes.ints)
def test_floats_become_integers_as_folding_does(dtype):
    values = [0.5, -0.5, 300.7, -1.0, 2.0**31, -(2.0**31) - 9, 1e30, -1e30, math.nan, math.inf]
    values += [-math.inf, 2.0**63, 2.0**64, 2.0**32 + 4096]
    x, memory = buffer(0, np.array(values), dtypes.float64)
    result = evaluate(UOp(Ops.CAST, dtype, (x,)), memory)
    assert result.tolist() == [truncate[dtype](v) for v in values]


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, *dtypes.fp8s])
def test_narrow_floats_round_after_each_operation(dtype):
    values = np.random.default_rng(0).standard_normal(50).astype(_to_np_dtype(dtype))
    x, memory = buffer(0, values, dtype)
    result = evaluate(x.alu(Ops.MUL, x).alu(Ops.ADD, x), memory)
    for v, r in zip(values, result, strict=True):
        square = truncate[dtype](float(np.float32(v) * np.float32(v)))
        total = truncate[dtype](float(np.float32(square) + np.float32(v)))
        assert float(r) == total


def test_movement_and_reduction():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    x, memory = buffer(0, array, dtypes.int32)
    moved = UOp(Ops.FLIP, x.dtype, (UOp(Ops.PERMUTE, x.dtype, (x,), (1, 0)),), (0,))
    padded = UOp(Ops.PAD, x.dtype, (moved,), ((1, 0), (0, 2)))
    cut = UOp(Ops.SHRINK, x.dtype, (padded,), ((0, 3), (1, 4)))
    expected = np.pad(array.T[::-1], ((1, 0), (0, 2)))[0:3, 1:4]
    assert evaluate(cut, memory).tolist() == expected.tolist()
    total = UOp(Ops.REDUCE, x.dtype, (cut,), ReduceArg(Ops.ADD, (1,)))
    assert evaluate(total, memory).tolist() == expected.sum(1, keepdims=True).tolist()
    wide = UOp(Ops.EXPAND, x.dtype, (UOp.const(7, dtypes.int32),), (2, 2))
    assert evaluate(wide).tolist() == [[7, 7], [7, 7]]


@pytest.mark.parametrize(
    "op, dtype, expected",
    [
        (Ops.ADD, dtypes.float32, 0.0),
        (Ops.MUL, dtypes.int8, 1),
        (Ops.MAX, dtypes.int8, -128),
        (Ops.MAX, dtypes.float16, -math.inf),
        (Ops.MAX, dtypes.bool, False),
    ],
)
def test_an_empty_reduction_gives_the_neutral_value(op, dtype, expected):
    x, memory = buffer(0, np.zeros((0, 2), _to_np_dtype(dtype)), dtype)
    result = evaluate(UOp(Ops.REDUCE, dtype, (x,), ReduceArg(op, (0,))), memory)
    assert result.tolist() == [[expected, expected]]


def test_a_write_makes_a_new_version_and_leaves_the_old():
    x, memory = buffer(0, np.zeros((2, 3), np.float32), dtypes.float32)
    view = UOp(Ops.FLIP, x.dtype, (UOp(Ops.SHRINK, x.dtype, (x,), ((1, 2), (0, 3))),), (1,))
    y, more = buffer(1, np.array([[1, 2, 3]], np.float32), dtypes.float32)
    after = x.after(UOp(Ops.STORE, dtypes.void, (view, y)))
    again = after.after(UOp(Ops.STORE, dtypes.void, (after, UOp.const(9.0, x.dtype))))
    values = [v.tolist() for v in evaluate_all([x, after, again], memory | more)]
    assert values == [[[0] * 3] * 2, [[0] * 3, [3, 2, 1]], [[9] * 3] * 2]


def test_symbolic_sizes_take_their_bound_value():
    x, memory = buffer(0, np.arange(4, dtype=np.int32), dtypes.int32)
    n = UOp.variable("n", 1, 4).bind(3)
    cut = UOp(Ops.SHRINK, x.dtype, (x, n), ((0, None),))
    assert evaluate(cut, memory).tolist() == [0, 1, 2]
    assert int(evaluate(UOp.variable("m", 1, 4), variables={"m": 2})) == 2


def test_missing_contents_are_an_error():
    x, _ = buffer(0, np.zeros(2), dtypes.float64)
    with pytest.raises(KeyError, match="BufferArg"):
        evaluate(x)
