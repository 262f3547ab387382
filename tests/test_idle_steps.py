"""Loops that leave out steps at which a condition can not hold, with tiles of all kinds."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from conftest import examples
from kernels import TARGET, Case, blank, out, param, red, sink, some
from test_tiling import check
from tiny.codegen import LinearProgram, lower
from tiny.codegen.opt import Kernel, KernelOptError, Opt, OptOps
from tiny.codegen.opt.idle import idle_steps, needed_steps
from tiny.dtype import dtypes
from tiny.runtime.python import interpret
from tiny.uop import needs
from tiny.uop.needs import inequality_of
from tiny.uop.ops import AxisType, Ops, ReduceArg, StageArg, UOp

VEC, UPCAST, UNROLL, SWAP = OptOps.VEC, OptOps.UPCAST, OptOps.UNROLL, OptOps.SWAP
THREAD, STAGE, BLOCK = OptOps.THREAD, OptOps.STAGE, OptOps.BLOCK

CONDITIONS = {
    "causal": lambda m, n: n < m + 1,
    "strictly": lambda m, n: n < m,
    "later": lambda m, n: m < n + 1,
    "shifted": lambda m, n: n < m + 5,
    "far": lambda m, n: m + 9 < n,
    "steep": lambda m, n: n * 3 < m * 2 + 4,
    "backwards": lambda m, n: m + n < 12,
    "band": lambda m, n: (n < m + 3) & (m < n + 4),
    "some": lambda m, n: (n < m + 1) & (n % 3 < 2),
}
SIZES = ((13, 17, 6), (8, 16, 4), (1, 5, 3), (19, 7, 1))


def number(value: float) -> UOp:
    return UOp.const(value, dtypes.float32)


def holds(condition, rows: int, columns: int) -> np.ndarray:
    m, n = np.arange(rows)[:, None], np.arange(columns)[None]
    return np.asarray(condition(m, n)) & np.ones((rows, columns), bool)


def masked_matmul(condition, rows: int, columns: int, width: int) -> Case:
    """The axes are rows, width; columns. What is not chosen is NaN."""
    m, d, n = out(rows, 0), out(width, 1), red(columns, 2)
    a, b = some(rows, columns), some(columns, width, seed=1)
    product = param(1, rows, columns).index(m, n) * param(2, columns, width).index(n, d)
    total = condition(m, n).where(product, number(0)).reduce(n)
    mask = holds(condition, rows, columns)
    given = np.where(mask, a, np.nan).astype(np.float32)
    store = param(0, rows, width).index(m, d).store(total)
    return Case(sink(store), [blank(rows, width), given, b], [np.where(mask, a, 0) @ b, given, b])


def rows_kept(condition, rows: int, columns: int, width: int) -> Case:
    """Products kept for a row, of which the largest is taken, and a product with the rest.

    The axes are rows, width, and columns as they are kept; columns of the maximum, of the product,
    and the inner dimension.
    """
    m, d, kept = out(rows, 0), out(width, 1), out(columns, 2)
    low, again, k = red(columns, 3), red(columns, 4), red(3, 5)
    q, v = some(rows, 3), some(columns, width, seed=1)
    score = (param(1, rows, 3).index(m, k) * param(2, columns, 3).index(kept, k)).reduce(k)
    stage = UOp(Ops.STAGE, dtypes.float32, (score, kept), StageArg(False, (columns,)))

    def read(at: UOp) -> UOp:
        return UOp(Ops.INDEX, dtypes.float32, (stage, at))

    least = number(dtypes.float32.min)
    chosen = condition(m, low).where(read(low), least)
    top = UOp(Ops.REDUCE, dtypes.float32, (chosen, low), ReduceArg(Ops.MAX, ()))
    top = (number(-100) < top).where(top, number(0))
    product = (read(again) - top) * param(3, columns, width).index(again, d)
    total = condition(m, again).where(product, number(0)).reduce(again)
    store = param(0, rows, width).index(m, d).store(total)
    keys = some(columns, 3, seed=2)
    mask = holds(condition, rows, columns)
    scores = q @ keys.T
    highest = np.where(mask, scores, -np.inf).max(1, keepdims=True)
    weights = np.where(mask, scores - np.where(np.isinf(highest), 0, highest), 0)
    before = [blank(rows, width), q, keys, v]
    return Case(sink(store), before, [weights @ v, *before[1:]])


def stored_in_part(condition, rows: int, columns: int, width: int) -> Case:
    """A product, of which what is not wanted is there already: it may be stored or not."""
    m, n, k = out(rows, 0), out(columns, 1), red(width, 2)
    a, b = some(rows, width), some(columns, width, seed=1)
    total = (param(1, rows, width).index(m, k) * param(2, columns, width).index(n, k)).reduce(k)
    store = param(0, rows, columns).index(m, n).store(total)
    store = store.replace(src=(*store.src, condition(m, n)), arg="partial")
    product = a @ b.T
    before = np.where(holds(condition, rows, columns), np.nan, product).astype(np.float32)
    return Case(sink(store), [before, a, b], [product, a, b])


def drawn_opts(ast: UOp, seed: int) -> list[Opt]:
    """Legal Opts, drawn."""
    rng = random.Random(seed)
    kernel = Kernel(ast, TARGET)
    count, reduces = len(kernel.axes), len(kernel.axes) - kernel.first_reduce
    tried = [Opt(VEC, k, rng.choice((2, 4, 8))) for k in range(count)]
    tried += [Opt(UPCAST, k, rng.choice((2, 3, 4))) for k in range(kernel.first_reduce)]
    tried += [Opt(UNROLL, k, rng.choice((2, 3, 4))) for k in range(reduces)]
    tried += [Opt(BLOCK, rng.randrange(count), rng.choice((4, 6))) for _ in range(2)]
    tried += [Opt(SWAP, rng.randrange(count), rng.randrange(count)) for _ in range(2)]
    if kernel.loads:
        load = rng.randrange(len(kernel.loads))
        tried += [Opt(STAGE, rng.choice([None, *range(count)]), load)]
    tried += [Opt(THREAD, rng.randrange(count))]
    for opt in rng.sample(tried, rng.randrange(2, 8)):
        try:
            kernel.apply_opt(opt)
        except KernelOptError:
            continue
    return list(kernel.applied_opts)


@pytest.mark.parametrize("make", [masked_matmul, rows_kept, stored_in_part])
@pytest.mark.parametrize("name", CONDITIONS)
def test_all_that_is_needed_is_computed(name, make):
    for seed, sizes in itertools.product(range(examples(60, 1)), SIZES):
        case = make(CONDITIONS[name], *sizes)
        check(case)
        check(case, *drawn_opts(case.sink, seed))


def with_steps(program: LinearProgram, steps: int) -> LinearProgram:
    """The program of a single phase that does so many of the steps that threads share."""
    (phase,) = program.phases
    new: dict[UOp, UOp] = {}
    count = UOp.const(steps, dtypes.index)
    for uop in (count, *phase.uops):
        src = tuple([new.get(s, s) for s in uop.src])
        if uop.op is Ops.RANGE and uop.arg.kind is AxisType.THREAD:
            src = (count,)
        new[uop] = uop.replace(src=src)
    return replace(program, phases=(replace(phase, uops=tuple(new.values())),))


@pytest.mark.parametrize("rows", [16, 17])
@pytest.mark.parametrize("make", [masked_matmul, rows_kept])
def test_threads_share_long_and_short_rows_alike(make, rows):
    case = make(CONDITIONS["causal"], rows, rows, 4)
    program = lower(case.sink, TARGET, [Opt(THREAD, 0, 0)])
    done = []
    for steps in (rows // 2, rows):
        memory = [np.array(a).reshape(-1).copy() for a in case.before]
        interpret(with_steps(program, steps), memory, {})
        is_done = (memory[0] != case.before[0].reshape(-1)).reshape(rows, -1).all(1)
        done.append(sum(row + 1 for row in range(rows) if is_done[row]))
    assert abs(done[0] - done[1] / 2) <= rows / 2


def test_what_is_known_of_loops():
    def axes(case):
        kernel = Kernel(case.sink, TARGET)
        found = needed_steps(kernel.ast.postorder())
        return {kernel.number_of[r] for r, known in found.items() if known}

    assert axes(masked_matmul(CONDITIONS["causal"], 9, 9, 4)) == {2}
    assert axes(rows_kept(CONDITIONS["causal"], 9, 9, 4)) == {2, 3, 4}
    assert axes(stored_in_part(CONDITIONS["causal"], 9, 9, 4)) == {0, 1}
    # nothing is known of a remainder
    assert axes(masked_matmul(lambda m, n: (m + n) % 3 < 1, 9, 9, 4)) == set()


def test_what_is_not_wanted_is_not_stored():
    case = stored_in_part(CONDITIONS["causal"], 16, 16, 4)
    memory = [np.array(a).reshape(-1).copy() for a in case.before]
    memory[0][:] = np.nan
    interpret(lower(case.sink, TARGET, []), memory, {})
    np.testing.assert_array_equal(~np.isnan(memory[0].reshape(16, 16)), np.tri(16, dtype=bool))


@pytest.mark.parametrize("is_nested", [True, False])
def test_many_conditions_are_each_read_once(is_nested, monkeypatch):
    m, n = out(9, 0), red(9, 1)
    value, both = param(1, 9).index(n), None
    for k in range(100):
        condition = n < m + (k + 1)
        both = condition if both is None else both & condition
        value = (condition if is_nested else both).where(value * 2.0, number(0))
    order = value.reduce(n).postorder()
    read = []
    monkeypatch.setattr(needs, "inequality_of", lambda c: read.append(c) or inequality_of(c))
    found = needed_steps(order)
    assert len(read) == len(set(read)) == 100
    assert 0 < len(found[n]) <= 2 * needs.MOST_KNOWN


def test_a_value_that_is_needed_elsewhere_too_is_made_everywhere():
    m, kept, low, again = out(6, 0), out(8, 1), red(8, 2), red(8, 3)
    value = param(1, 6, 8).index(m, kept) * number(2)
    stage = UOp(Ops.STAGE, dtypes.float32, (value, kept), StageArg(False, (8,)))
    reads = [UOp(Ops.INDEX, dtypes.float32, (stage, r)) for r in (low, again)]
    masked = (low < m).where(reads[0], number(0)).reduce(low)
    ast = sink(param(0, 6).index(m).store(masked + reads[1].reduce(again)))
    kernel = Kernel(ast, TARGET)
    found = needed_steps(kernel.ast.postorder())
    assert [kernel.number_of[r] for r, known in found.items() if known] == [2]


def test_inequalities_of_indices_cast_and_negated_are_read():
    m, n = out(9, 0), out(9, 1)
    wanted = inequality_of(n < m + 1)
    assert wanted is not None
    assert inequality_of((m < n).ne(True)) == wanted
    assert inequality_of((m.cast(dtypes.int32) < n.cast(dtypes.int32)).ne(True)) == wanted
    difference = (m - n).cast(dtypes.int32)
    assert inequality_of(UOp.const(-1, dtypes.int32) < difference) == wanted
    assert inequality_of(UOp.const(-1, dtypes.uint8) < difference) is None
    assert inequality_of(n // 2 < m) is None


@pytest.mark.parametrize("extent", [1, 2, 3, 7, 16])
@pytest.mark.parametrize(
    "size, steps, stride, padding", [(12, 5, 1, 0), (14, 3, 1, 1), (9, 3, 2, 1)]
)
def test_the_part_of_idle_steps_is_that_of_all_pairs(size, steps, stride, padding, extent):
    """Of a gradient of a window, for tiles of an output that go through all steps together."""
    inner = (size + 2 * padding - steps) // stride + 1
    x, k = out(size, 0), red(steps, 1)
    place = x - k + padding
    is_inside = (UOp.const(-1, dtypes.index) < place) & (place < inner * stride)
    if stride > 1:
        is_inside = is_inside & (place % stride < 1)
    value = is_inside.where(param(1, 64).index(x + k), number(0)).reduce(k)
    kernel = Kernel(sink(param(0, size).index(x).store(value)), TARGET)
    (found,) = idle_steps(kernel.ast, kernel.number_of)
    needed = {
        (at // extent, step)
        for at, step in itertools.product(range(size), range(steps))
        if 0 <= (at - step + padding) < inner * stride and (at - step + padding) % stride == 0
    }
    tiles = -(-size // extent)
    assert found.needed([size, steps], extent) == pytest.approx(len(needed) / (tiles * steps))


def test_rows_of_a_gradient_of_few_pixels_are_images():
    """They need the same steps of the window, where rows of pixels leave many of them idle."""
    n, c, y, x = out(16, 0), out(64, 1), out(9, 2), out(9, 3)
    ky, kx, f = red(5, 4), red(5, 5), red(64, 6)
    i, j = y - ky + 2, x - kx + 2
    inside = (UOp.const(-1, dtypes.index) < i) & (i < 9) & (UOp.const(-1, dtypes.index) < j)
    inside = inside & (j < 9) & (i % 2 < 1) & (j % 2 < 1)
    product = param(1, 16, 64, 5, 5).index(n, f, i // 2, j // 2, gate=inside)
    product = product * param(2, 64, 64, 5, 5).index(f, c, ky, kx)
    value = inside.where(product, number(0)).reduce(ky, kx, f)
    kernel = Kernel(sink(param(0, 16, 64, 9, 9).index(n, c, y, x).store(value)), TARGET)
    rows = {o.axis for o in kernel.hand_coded_optimizations() if o.op is UPCAST}
    assert 0 in rows
    assert not rows & {2, 3}
