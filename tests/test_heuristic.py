"""The lists of Opts that heuristics choose: legal, and what a programmer would write by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernels import CASES, TARGET, matmul, out, param, red, sink
from tiny import Tensor
from tiny.codegen import lower
from tiny.codegen.opt import Kernel, Opt, OptOps
from tiny.codegen.opt.cost import Level, Operand, Tile, _Body, moved
from tiny.codegen.opt.heuristic import choose_opts
from tiny.codegen.opt.loops import Loops
from tiny.codegen.opt.nests import find_nests
from tiny.codegen.opt.tiles import Tiles
from tiny.device import Buffer, Device
from tiny.dtype import dtypes
from tiny.helpers import Context
from tiny.uop.ops import Ops, UOp
from tiny.uop.target import Target

VEC, UPCAST, UNROLL, SWAP = OptOps.VEC, OptOps.UPCAST, OptOps.UNROLL, OptOps.SWAP
THREAD, STAGE, BLOCK = OptOps.THREAD, OptOps.STAGE, OptOps.BLOCK

# 32 registers of 16 float32, as of AVX-512, and two threads
WIDE = replace(TARGET, vector_bytes=64, threads=2, l1_bytes=32 << 10, l2_bytes=1 << 20)


def chosen(ast: UOp, target: Target = WIDE) -> dict[OptOps, list[Opt]]:
    """What is chosen for a kernel, by kind."""
    found: dict[OptOps, list[Opt]] = {op: [] for op in OptOps}
    for opt in choose_opts(Kernel(ast, target)):
        found[opt.op].append(opt)
    return found


def product(m: int, n: int, k: int, *, b_transposed: bool = False) -> UOp:
    """A matmul of float32, its loads in the order of their slots."""
    i, j, r = out(m, 0), out(n, 1), red(k, 2)
    b = param(2, n, k).index(j, r) if b_transposed else param(2, k, n).index(r, j)
    return sink(param(0, m, n).index(i, j).store((param(1, m, k).index(i, r) * b).reduce(r)))


def number_of_load(ast: UOp, slot: int) -> int:
    return [n.src[0].arg.slot for n in Kernel(ast, WIDE).loads].index(slot)


def total(*shape: int, axis: int) -> UOp:
    """The sum of a matrix along an axis."""
    rows, columns = shape
    if axis == 1:
        i, r = out(rows, 0), red(columns, 1)
        return sink(param(0, rows).index(i).store(param(1, *shape).index(i, r).reduce(r)))
    i, r = out(columns, 0), red(rows, 1)
    return sink(param(0, columns).index(i).store(param(1, *shape).index(r, i).reduce(r)))


# ---------------------------------------------------------------- any kernel


def test_no_opts_are_chosen_with_noopt():
    with Context(NOOPT=1):
        assert lower(matmul(64, 64, 64).sink, TARGET).applied_opts == ()


@pytest.mark.parametrize("target", [TARGET, WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize("name", CASES)
def test_chosen_opts_are_legal_and_leave_the_kernel_as_it_is(name, target):
    k = Kernel(CASES[name]().sink, target)
    opts = choose_opts(k)
    assert k.applied_opts == ()
    again = Kernel(k.ast, target)
    for opt in opts:
        again.apply_opt(opt)
    again.tiled()


@pytest.mark.parametrize("name", CASES)
def test_what_is_chosen_is_the_same_each_time(name):
    ast = CASES[name]().sink
    assert choose_opts(Kernel(ast, WIDE)) == choose_opts(Kernel(ast, WIDE))


def test_nothing_to_split_is_left_alone():
    assert choose_opts(Kernel(CASES["ones_everywhere"]().sink, TARGET)) == ()
    assert Ops.RANGE not in {u.op for u in lower(CASES["ones_everywhere"]().sink, TARGET).uops}


@pytest.mark.parametrize("shape", [(64, 64, 64), (1024, 1024, 1024), (512, 512, 8192)])
def test_threads_change_no_other_opt(shape):
    ast = product(*shape)
    one, two = (
        [o for o in choose_opts(Kernel(ast, replace(WIDE, threads=n))) if o.op is not THREAD]
        for n in (1, 2)
    )
    assert one == two


# ---------------------------------------------------------------- products of matrices


def test_a_matmul_has_lanes_along_columns_and_several_rows():
    found = chosen(matmul(64, 64, 64).sink, TARGET)
    assert [o.axis for o in found[VEC]] == [1]
    assert [o.axis for o in found[UPCAST]] == [0]


@pytest.mark.parametrize("target", [TARGET, WIDE], ids=["narrow", "wide"])
def test_registers_are_not_exceeded(target):
    k = Kernel(matmul(512, 512, 512).sink, target)
    tile = {o.op: o.arg for o in choose_opts(k) if o.op in (VEC, UPCAST)}
    vectors = tile[VEC] // k.vector_lanes(1)
    assert tile[UPCAST] * vectors + vectors + 1 <= (31 if target is WIDE else 15)


def test_a_big_matmul_packs_panels_of_columns_that_threads_share():
    ast = product(1024, 1024, 1024)
    found = chosen(ast)
    assert found[STAGE] == [Opt(STAGE, 1, number_of_load(ast, 2))]
    assert found[THREAD] == [Opt(THREAD, 1)]
    k = Kernel(ast, WIDE)
    for opt in choose_opts(k):
        k.apply_opt(opt)
    assert k.nest_order == [1, 0, 2]


def test_panels_that_exceed_a_cache_are_blocked():
    found = chosen(product(512, 512, 8192))
    assert [o.axis for o in found[BLOCK]] == [2]
    # a panel of it is at most half of the cache
    assert found[BLOCK][0].arg * found[VEC][0].arg * 4 <= WIDE.l2_bytes // 2


@pytest.mark.parametrize(("rows", "is_packed"), [(196, False), (784, False), (1024, True)])
def test_columns_are_packed_where_their_lines_fall_into_few_sets_of_a_cache(rows, is_packed):
    """A 1x1 convolution: the pixels of a channel lie side by side, channels far apart."""
    i, j, r = out(256, 0), out(rows, 1), red(512, 2)
    value = (param(1, 256, 512).index(i, r) * param(2, 512, rows).index(r, j)).reduce(r)
    ast = sink(param(0, 256, rows).index(i, j).store(value))
    opts = chosen(ast)
    assert [o.axis for o in opts[VEC]] == [1 if is_packed else 0]
    staged = [o.arg for o in opts[STAGE]]
    assert staged == [number_of_load(ast, 2 if is_packed else 1)]


def test_a_small_matmul_packs_nothing_and_has_no_threads():
    found = chosen(product(64, 64, 64))
    assert not found[STAGE] and not found[THREAD] and not found[BLOCK]


def test_few_columns_have_lanes_along_the_sum():
    found = chosen(product(128, 10, 784, b_transposed=True))
    assert [o.axis for o in found[VEC]] == [2]
    assert found[UPCAST]


# ---------------------------------------------------------------- sums


def test_what_follows_a_sum_is_priced_without_lanes_where_it_can_have_none():
    """Lanes along the sum leave it to single values, so rows of them, or other lanes, pay."""
    i, j, k = out(37, 0), out(184, 1), red(692, 2)
    value = (param(1, 37, 692).index(i, k) * param(2, 184, 692).index(j, k)).reduce(k)
    kernel = Kernel(sink(param(0, 37, 184).index(i, j).store(value.exp2())), WIDE)
    known = Tiles(kernel)
    (main,) = [n for n in known.nests if n.sums]
    tile = known.priced(main, Tile(2, 64))
    stores = known.nests[-1]
    assert tile.cost == known.costs[main].seconds(tile) + known.plain[stores]
    assert len([o for o in choose_opts(kernel) if o.op in (OptOps.VEC, OptOps.UPCAST)]) >= 2


def test_a_sum_of_rows_has_lanes_along_them():
    found = chosen(total(64, 4096, axis=1))
    assert [o.axis for o in found[VEC]] == [1]
    assert not found[UPCAST]  # rows would share nothing


def test_a_sum_of_columns_has_lanes_along_the_output():
    found = chosen(total(64, 64, axis=0))
    assert [o.axis for o in found[VEC]] == [0]


def test_sums_of_the_columns_of_a_big_matrix_go_along_its_rows():
    opts = chosen(total(4096, 4096, axis=0))
    assert opts[SWAP] == [Opt(SWAP, 0, 1)] and opts[BLOCK][0].axis == 0
    assert opts[THREAD] == [Opt(THREAD, 2, 0)] and opts[VEC][0].axis == 0
    for shape, axis in (((4096, 4096), 1), ((64, 64), 0), ((16, 1 << 20), 0)):
        assert not chosen(total(*shape, axis=axis))[SWAP]


def test_short_reductions_are_unrolled_whole():
    found = chosen(CASES["conv_padded"]().sink, TARGET)
    assert 3 in [o.arg for o in found[UNROLL]]


def test_each_loop_nest_of_a_row_has_lanes():
    """What a row's sum is needed for has loops of its own, and is often the most work."""
    i, j, r = out(512, 0), out(1024, 1), red(1024, 2)
    x = param(1, 512, 1024)
    total = x.index(i, r).reduce(r)
    ast = sink(param(0, 512, 1024).index(i, j).store(x.index(i, j) - total))
    assert {o.axis for o in chosen(ast)[VEC]} == {1, 2}
    assert [o.axis for o in chosen(ast)[THREAD]] == [0]


def test_threads_share_a_long_sum_of_few_outputs_in_blocks():
    r = red(1 << 24, 0)
    one = UOp.const(0, dtypes.index)
    ast = sink(param(0, 1).index(one).store(param(1, 1 << 24).index(r).reduce(r)))
    found = chosen(ast)
    assert [o.axis for o in found[BLOCK]] == [0]
    assert [o.axis for o in found[THREAD]] == [1]  # the blocks
    # how a sum is split depends on its size alone
    assert found == chosen(ast, replace(WIDE, threads=1)) == chosen(ast, replace(WIDE, threads=64))


def test_a_sum_in_strict_order_is_not_split():
    with Context(STRICT_REDUCE=1):
        found = chosen(total(1 << 20, 16, axis=0))
    assert not found[BLOCK]
    assert all(o.axis == 0 for o in [*found[VEC], *found[THREAD]])


def test_a_window_is_not_unrolled_where_sums_are_many():
    # else the sums of the outer loops become long chains, and less exact
    x, w = param(1, 32, 24, 24), param(2, 32, 32, 5, 5)
    f, i, j = out(32, 0), out(20, 1), out(20, 2)
    c, p, q = red(32, 3), red(5, 4), red(5, 5)
    value = (x.index(c, i + p, j + q) * w.index(f, c, p, q)).reduce(c, p, q)
    found = chosen(sink(param(0, 32, 20, 20).index(f, i, j).store(value)))
    assert not found[UNROLL]
    assert found[STAGE]


def pixels(channels: int, filters: int, size: int, stride: int) -> UOp:
    """A 1x1 convolution of every `stride`-th pixel each way."""
    f, i, j, c = out(filters, 0), out(size, 1), out(size, 2), red(channels, 3)
    x, w = param(1, channels, size * stride, size * stride), param(2, filters, channels)
    value = (x.index(c, i * stride, j * stride) * w.index(f, c)).reduce(c)
    return sink(param(0, filters, size, size).index(f, i, j).store(value))


@pytest.mark.parametrize("stride", [2, 3])
def test_pixels_with_gaps_between_them_are_packed(stride):
    """In place they take as much of a cache as if all were read."""
    ast = pixels(512, 1024, 14, stride)
    found = chosen(ast, replace(TARGET, threads=2))
    staged = {o.arg for o in found[STAGE]}
    assert number_of_load(ast, 1) in staged


@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_packed_pixels_give_the_same_sums(stride, axis):
    channels, filters, size = 67, 49, 13
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (channels, size * stride, size * stride)).astype(np.float32)
    w = rng.integers(-4, 5, (filters, channels)).astype(np.float32)
    ast = pixels(channels, filters, size, stride)
    opts = [Opt(VEC, 0, 8), Opt(UPCAST, 2, 4), Opt(SWAP, 0, 1), Opt(THREAD, 1)]
    opts += [Opt(STAGE, axis, number_of_load(ast, 1)), Opt(STAGE, None, number_of_load(ast, 2))]
    cpu = Device["CPU"]
    program = lower(ast, cpu.target, opts)
    binary = cpu.compiler.compile(cpu.renderer.render(program), program.name)
    sizes = (filters * size * size, x.size, w.size)
    buffers = [Buffer("CPU", n, dtypes.float32).allocate() for n in sizes]
    for buffer, values in zip(buffers[1:], (x, w), strict=True):
        buffer.copyin(values.tobytes())
    cpu.load(program.name, binary, program)(tuple([b.memory for b in buffers]), ())
    expected = np.einsum("cyx,fc->fyx", x[:, ::stride, ::stride], w)
    got = buffers[0].numpy().reshape(expected.shape)
    np.testing.assert_array_equal(got, expected)  # sums of small integers are exact


def test_lanes_along_a_sum_go_on_in_its_innermost_loop():
    f, i, j, c, p, q = out(64, 0), out(14, 1), out(14, 2), red(64, 3), red(3, 4), red(3, 5)
    value = param(1, 64, 16, 16).index(c, i + p, j + q) * param(2, 64, 64, 3, 3).index(f, c, p, q)
    k = Kernel(sink(param(0, 64, 14, 14).index(f, i, j).store(value.reduce(c, p, q))), WIDE)
    known = Tiles(k)
    nest = known.nests[0]
    loops = Loops(k, nest, known.costs[nest], Tile(3, 16), known.sizes)
    assert [x.axis for x in loops.levels] == [0, 1, 2, 4, 5, 3]


def test_what_just_exceeds_a_cache_costs_little_more_than_what_fits():
    k = Kernel(product(96, 512, 4096), WIDE)
    known = Tiles(k)
    nest = known.nests[0]
    levels = [Level(1, 16, 32), Level(0, 16, 6), Level(2, 4096, 1)]
    operands = [Operand(x, tight=True) for x in nest.loads]

    def cycles(l2_bytes: int) -> float:
        target = replace(WIDE, l2_bytes=l2_bytes)
        return moved(operands, levels, dict(enumerate(known.sizes)), target, {})

    found = [cycles(size) for size in range(400 << 10, 1200 << 10, 8 << 10)]
    assert found[0] > 2 * found[-1]
    assert all(b <= a <= 1.2 * b for a, b in itertools.pairwise(found))


# ---------------------------------------------------------------- copies and updates


@pytest.mark.parametrize("size, window", [(24, 5), (28, 3)])
def test_narrow_vectors_have_no_rows_whose_steps_have_conditions_of_their_own(size, window):
    """Of the gradient of a window: each masked step is two instructions, so rows are images."""
    target, before = replace(TARGET, vector_bytes=32), window // 2
    n, c, y, x = out(64, 0), out(32, 1), out(size, 2), out(size, 3)
    i, j, f = red(window, 4), red(window, 5), red(32, 6)
    at = [y - i + before, x - j + before]
    low, high = (at[0] > -1) & (at[1] > -1), (at[0] < size) & (at[1] < size)
    grad = param(1, 64, 32, size, size).index(n, f, *at, gate=low & high)
    product = grad * param(2, 32, 32, window, window).index(f, c, i, j)
    value = (low & high).where(product, 0.0).reduce(f, i, j)
    ast = sink(param(0, 64, 32, size, size).index(n, c, y, x).store(value))
    tiled = {
        o.axis for o in choose_opts(Kernel(ast, target)) if o.op in (OptOps.UPCAST, OptOps.VEC)
    }
    assert not tiled & {2, 3}


@pytest.mark.parametrize("bytes_", [32, 64])
def test_a_condition_that_bounds_the_sum_changes_no_tile(bytes_):
    """Of a causal mask: most steps are before the bound, and ask for nothing."""
    target = replace(TARGET, vector_bytes=bytes_, threads=2)
    h, i, j, r = out(4, 0), out(512, 1), out(64, 2), red(512, 3)
    value = param(1, 4, 512, 512).index(h, i, r) * param(2, 4, 512, 64).index(h, r, j)
    below = (r < i + 1).where(value, 0.0)
    plain, masked = [
        choose_opts(Kernel(sink(param(0, 4, 512, 64).index(h, i, j).store(x.reduce(r))), target))
        for x in (value, below)
    ]
    tiles = [{o for o in opts if o.op in (VEC, UPCAST)} for opts in (plain, masked)]
    assert tiles[0] == tiles[1]
    assert all(o.op is not BLOCK for o in masked)


def test_an_update_in_place_gets_lanes_that_divide():
    i = out(18, 0)
    x = param(0, 18)
    found = chosen(sink(x.index(i).store(x.index(i) * 2.0)), TARGET)
    assert all(18 % o.arg == 0 for o in found[VEC])
    assert found[VEC]


def test_a_transposed_copy_goes_through_registers_block_by_block():
    i, j = out(1024, 0), out(1024, 1)
    found = chosen(sink(param(0, 1024, 1024).index(i, j).store(param(1, 1024, 1024).index(j, i))))
    assert [o.axis for o in found[VEC]] == [1]
    assert [(o.axis, o.arg) for o in found[UPCAST]] == [(0, 16)]
    assert {o.axis for o in found[BLOCK]} == {0, 1}


def test_rows_of_a_table_are_copied_one_by_one():
    found = chosen(rows_of_table(50_000, 4096, 768))
    assert [o.axis for o in found[VEC]] == [1]
    assert not found[UPCAST] and not found[BLOCK]


# ---------------------------------------------------------------- values

SHAPES = [(1, 1, 1), (3, 5, 7), (17, 33, 65), (1, 257, 300), (130, 10, 97), (16, 16, 40000)]


@pytest.mark.parametrize("b_transposed", [False, True], ids=["", "b_transposed"])
@pytest.mark.parametrize("shape", [*SHAPES, (97, 301, 211), (64, 48, 9000)], ids=str)
def test_products_of_integers_are_exact_with_what_is_chosen(shape, b_transposed):
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (
        rng.integers(-4, 5, s).astype(np.float32)
        for s in ((m, k), (n, k) if b_transposed else (k, n))
    )
    cpu = Device["CPU"]
    for threads in (1, 2):
        target = replace(cpu.target, threads=threads)
        program = lower(product(m, n, k, b_transposed=b_transposed), target)
        binary = cpu.compiler.compile(cpu.renderer.render(program), program.name)
        sizes = (m * n, m * k, k * n)
        buffers = [Buffer("CPU", size, dtypes.float32).allocate() for size in sizes]
        for buffer, values in zip(buffers[1:], (a, b), strict=True):
            buffer.copyin(values.tobytes())
        cpu.load(program.name, binary, program)(tuple([x.memory for x in buffers]), ())
        right = a @ (b.T if b_transposed else b)
        np.testing.assert_array_equal(buffers[0].numpy().reshape(m, n), right)


# ---------------------------------------------------------------- what is counted


@pytest.mark.parametrize("name", CASES)
def test_every_tile_costs_something(name):
    k = Kernel(CASES[name]().sink, WIDE)
    known = Tiles(k)
    for nest in known.nests:
        tiles = known.tiles(nest, k)
        assert all(t.cost > 0 for t in tiles)
        assert [t.cost for t in tiles] == sorted(t.cost for t in tiles)
        assert tiles[0].cost <= known.priced(nest, Tile()).cost


@pytest.mark.parametrize("name", CASES)
def test_each_tile_of_a_nest_is_priced_once(name, monkeypatch):
    priced, seconds = [], _Body.seconds

    def count(body, rows):
        priced.append((body, tuple(rows)))
        return seconds(body, rows)

    monkeypatch.setattr(_Body, "seconds", count)
    choose_opts(Kernel(CASES[name]().sink, WIDE))
    assert len(priced) == len(set(priced))


def test_the_activation_of_a_load_is_its_own_work():
    i, r = out(8, 0), red(16, 1)
    x, w = param(1, 16).index(r), param(2, 16, 8).index(r, i)
    zero = UOp.const(0.0, dtypes.float32)
    active = (x < zero).where(zero, x)
    k = Kernel(sink(param(0, 8).index(i).store((active * w).reduce(r))), WIDE)
    nest = find_nests(k)[0]
    assert {a.number: a.work for a in nest.loads} == {
        number_of_load(k.ast, 1): 2.0,
        number_of_load(k.ast, 2): 0.0,
    }
    assert np.isclose(sum(nest.work.values()), 1.0)  # the product, added up


# ---------------------------------------------------------------- past the caches


def sum_of_two(rows: int, columns: int, *, in_place: bool = False) -> UOp:
    i, j = out(rows, 0), out(columns, 1)
    value = param(0 if in_place else 1, rows, columns).index(i, j)
    value = value + param(2, rows, columns).index(i, j)
    return sink(param(0, rows, columns).index(i, j).store(value))


def copy_of_columns(rows: int, columns: int) -> UOp:
    i, j = out(rows, 0), out(columns, 1)
    return sink(param(0, rows, columns).index(i, j).store(param(1, columns, rows).index(j, i)))


def filled(rows: int, columns: int) -> UOp:
    i, j = out(rows, 0), out(columns, 1)
    value = param(1, columns).index(j)
    return sink(param(0, rows, columns).index(i, j).store(value))


def rows_of_table(words: int, count: int, columns: int) -> UOp:
    """Rows at places that are read."""
    i, j = out(count, 0), out(columns, 1)
    place = param(2, count, dtype=dtypes.int32).index(i).cast(dtypes.index)
    value = param(1, words, columns).index(place, j)
    return sink(param(0, count, columns).index(i, j).store(value))


SMALL_CACHE = replace(WIDE, llc_bytes=1 << 20)


@pytest.mark.parametrize(
    "ast, target, goes_past",
    [
        (sum_of_two(512, 512), SMALL_CACHE, True),
        (sum_of_two(512, 512), replace(SMALL_CACHE, vector_bytes=32), True),
        (sum_of_two(512, 512), replace(WIDE, llc_bytes=1 << 22), False),  # fits
        (sum_of_two(512, 512), replace(WIDE, llc_bytes=3 << 20), False),  # so as well
        (sum_of_two(512, 512), replace(WIDE, llc_bytes=3 << 20, vector_bytes=32), True),
        (sum_of_two(512, 512), replace(WIDE, llc_bytes=4 << 20, vector_bytes=32), False),
        (sum_of_two(512, 512, in_place=True), SMALL_CACHE, False),
        (sum_of_two(16, 16391), SMALL_CACHE, True),  # rows that begin anywhere in a line
        (sum_of_two(512, 513), SMALL_CACHE, False),  # too short for that: their ends count
        (filled(512, 512), SMALL_CACHE, False),  # whole lines are written without reading them
        (copy_of_columns(512, 512), SMALL_CACHE, True),
        (copy_of_columns(512, 512), replace(SMALL_CACHE, vector_bytes=32), False),  # half lines
        (rows_of_table(50_000, 512, 512), SMALL_CACHE, True),
        (rows_of_table(50_000, 512, 512), replace(WIDE, llc_bytes=2 << 20), False),
        (product(512, 512, 512), SMALL_CACHE, False),
        (product(4096, 4096, 2), SMALL_CACHE, False),
    ],
)
def test_results_beyond_the_last_cache_go_past_it(ast, target, goes_past):
    assert chosen(ast, target)[OptOps.STREAM] == [Opt(OptOps.STREAM, 0)] * goes_past


# ---------------------------------------------------------------- to computed places


def written(way: str, rows: int = 512, columns: int = 1024) -> UOp:
    """A kernel that writes (rows, columns) to computed places."""
    i, j = out(rows, 0), out(columns, 1)
    at = (i,) if way == "rows" else (i, j)
    sizes = (rows, columns)[: len(at)]
    place = param(2, *sizes, dtype=dtypes.int32).index(*at).cast(dtypes.index)
    value = param(1, rows, columns).index(i, j)
    if way == "along":
        to = param(0, rows, columns).index(i, place)
    elif way == "elements":
        to = param(0, rows * columns).index(place)
    else:
        to = param(0, rows, columns).index(place, j)
    return sink(UOp(Ops.STORE, dtypes.void, (to, value, *at), "ordered"))


@pytest.mark.parametrize(
    "way, expected",
    [
        ("rows", [Opt(VEC, 1, 64), Opt(BLOCK, 1, 256), Opt(THREAD, 2)]),
        ("down", [Opt(BLOCK, 1, 256), Opt(THREAD, 2)]),
        ("along", [Opt(THREAD, 0)]),
        ("elements", []),
    ],
)
def test_threads_share_writes_to_places_where_no_two_of_them_have_one(way, expected):
    ast = written(way)
    assert choose_opts(Kernel(ast, WIDE)) == tuple(expected)
    alone = [opt for opt in expected if opt.op is VEC]
    assert choose_opts(Kernel(ast, replace(WIDE, threads=1))) == tuple(alone)
    few = choose_opts(Kernel(written(way, 16, 65), WIDE))
    assert few == ((Opt(VEC, 1, 16),) if way == "rows" else ())


@pytest.mark.parametrize("heads", [10, 11, 13])
def test_threads_share_no_loop_outside_of_one_that_packs(heads):
    q, k, v = [Tensor.empty(heads, 130, 64) for _ in range(3)]
    linear: Any = Tensor.schedule_linear(q.scaled_dot_product_attention(k, v, is_causal=True))
    target = replace(Device["CPU"].target, threads=2)
    for item in linear.schedule.items:
        kernel = Kernel(item.kernel, target)
        found = chosen(item.kernel, target)
        order = kernel.nest_order
        shared = [order.index(o.axis) for o in found[THREAD]]
        packed = [order.index(o.axis) for o in found[STAGE] if o.axis is not None]
        assert not shared or not packed or shared[0] <= min(packed)
