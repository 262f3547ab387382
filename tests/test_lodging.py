"""Rows that are kept where what is made of them is stored."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import Case, blank, const, out, param, red, sink, some
from test_tiling import check
from tiny import Tensor, TinyJit
from tiny.codegen import lower
from tiny.codegen.opt import Opt, OptOps
from tiny.codegen.opt.lodging import find_lodging
from tiny.device import Device
from tiny.dtype import dtypes
from tiny.helpers import Context
from tiny.uop.ops import AxisType, Ops, RangeArg, StageArg, UOp

ROWS, COLUMNS = 3, 130


def softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return (exponentials / exponentials.sum(-1, keepdims=True)).astype(np.float32)


def kept_row(x: UOp, columns: int = COLUMNS) -> UOp:
    """A row of exponentials."""
    own = UOp(Ops.RANGE, dtypes.index, (const(columns),), RangeArg(9, AxisType.LOOP))
    value = x.index(out(ROWS, 0), own).alu(Ops.EXP2)
    return UOp(Ops.STAGE, value.dtype, (value, own), StageArg(False, (columns,)))


def read(stage: UOp, at: UOp) -> UOp:
    return UOp(Ops.INDEX, stage.dtype, (stage, at))


def kernel(way: str) -> UOp:
    i, j, r = out(ROWS, 0), out(COLUMNS, 1), red(COLUMNS, 2)
    x = param(2 if way == "two results" else 1, ROWS, COLUMNS)
    row = kept_row(x)
    total = read(row, r).reduce(r)
    to = param(0, ROWS, COLUMNS).index(i, j)
    if way == "half":
        half = param(0, ROWS, COLUMNS, dtype=dtypes.float16).index(i, j)
        return sink(half.store((read(row, j) / total).cast(dtypes.float16)))
    if way == "two results":
        value = read(row, j) / total
        return sink(to.store(value), param(1, ROWS, COLUMNS).index(i, j).store(value * 2.0))
    if way == "across":
        return sink(param(0, COLUMNS, ROWS).index(j, i).store(read(row, j) / total))
    values = {
        "softmax": read(row, j) / total,
        "sum of several": (read(row, r) * x.index(i, r)).reduce(r) * read(row, j) + total,
        "reversed": read(row, const(COLUMNS - 1) - j) / total,
        "sum for each": (read(row, r) * x.index(i, j)).reduce(r) + read(row, j),
    }
    return sink(to.store(values[way]))


@pytest.mark.parametrize(
    "way, lodges",
    [
        ("softmax", True),
        ("sum of several", True),
        ("across", False),  # a row that has its elements far from each other
        ("reversed", False),  # an element takes the place of one that is still wanted
        ("sum for each", False),  # so it does
        ("half", False),
        ("two results", False),
    ],
)
def test_which_rows_are_kept_where_results_will_be(way, lodges):
    ast = kernel(way)
    assert (find_lodging(ast, {out(ROWS, 0)}) is not None) == lodges
    target, j = Device["CPU"].target, 0 if way == "across" else 1
    for opts in ([], [Opt(OptOps.VEC, j, 64)], [Opt(OptOps.VEC, j, 16), Opt(OptOps.THREAD, 1 - j)]):
        program = lower(ast, target, opts)
        assert any(u.op is Ops.DEFINE_LOCAL for u in program.uops) != lodges
    for opt in (Opt(OptOps.UPCAST, 1 - j, 3), Opt(OptOps.STREAM, 0)):
        program = lower(ast, target, [opt])
        assert any(u.op is Ops.DEFINE_LOCAL for u in program.uops)


@pytest.mark.parametrize(
    "opts",
    [
        [],
        [Opt(OptOps.VEC, 1, 16)],
        [Opt(OptOps.VEC, 1, 64), Opt(OptOps.VEC, 2, 48)],
        [Opt(OptOps.SWAP, 0, 1)],  # each block of columns makes all rows again
        [Opt(OptOps.VEC, 1, 16), Opt(OptOps.SWAP, 0, 1)],
        [Opt(OptOps.VEC, 1, 16), Opt(OptOps.THREAD, 1)],
        [Opt(OptOps.BLOCK, 1, 32)],
        [Opt(OptOps.BLOCK, 1, 32), Opt(OptOps.VEC, 1, 16), Opt(OptOps.SWAP, 0, 4)],
        [Opt(OptOps.BLOCK, 1, 32), Opt(OptOps.THREAD, 4)],
        [Opt(OptOps.VEC, 1, 16), Opt(OptOps.STREAM, 0)],
    ],
)
@pytest.mark.parametrize("way", ["softmax", "sum of several"])
def test_values_under_any_opts(way, opts):
    x = some(ROWS, COLUMNS)
    row = 2.0**x
    total = row.sum(1, keepdims=True)
    right = row / total if way == "softmax" else (row * x).sum(1, keepdims=True) * row + total
    case = Case(kernel(way), [blank(ROWS, COLUMNS), x], [right, x], rtol=1e-5)
    check(case, *opts)


@pytest.mark.parametrize("shape", [(5, 7), (3, 130), (37, 1001), (4, 3, 65), (9, 1), (1025, 129)])
@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_softmax_of_any_row(shape, device):
    if device == "PYTHON" and np.prod(shape) > 1000:
        shape = (*shape[:-2], 3, min(shape[-1], 70))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if shape[-1] > 1:
        x[0].flat[0], x[1].flat[-1] = -np.inf, 1e30
    right = softmax(x)
    with Context(SPEC=1):
        found = Tensor(x, device=device).softmax(-1).numpy()
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-7)
    x[0].flat[0] = np.nan
    right = softmax(x)
    np.testing.assert_allclose(Tensor(x, device=device).softmax(-1).numpy(), right, rtol=1e-5)


def test_the_result_may_take_the_memory_of_the_operand():
    f = TinyJit(lambda x: x.softmax(-1), donate="x")
    right = np.random.default_rng(0).standard_normal((40, 333)).astype(np.float32)
    x = Tensor(right).realize()
    for _ in range(5):
        x, right = f(x), softmax(right)
        np.testing.assert_allclose(x.numpy(), right, rtol=1e-5)
