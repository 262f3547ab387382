"""Sorting: its laws on drawn rows, every method and length, work and kernels, mistakes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from conftest import examples
from tiny import Context, Tensor, TinyJit, Variable, dtypes
from tiny.dtype import _to_np_dtype
from tiny.helpers import GlobalCounters
from tiny.mixin import sort as room
from tiny.uop.ops import Ops

NP_DTYPES = [
    *map(np.dtype, ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")),
    *map(np.dtype, ("uint64", "float16", "float32", "float64")),
]


def stable_order(x: np.ndarray, descending: bool = False, dim: int = -1) -> np.ndarray:
    """The places in order. NumPy knows rising order: falling is that of the row reversed."""
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    back = np.flip(np.argsort(np.flip(x, dim), axis=dim, kind="stable"), dim)
    return x.shape[dim] - 1 - back


def drawn(shape, dtype, seed=0):
    """Values of the whole range with ties, limits, zeros of both signs, infinities and NaN."""
    rng, dtype = np.random.default_rng(seed), np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        x = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        special = [limits.min, limits.max, 0, 1]
    else:
        x = (rng.standard_normal(shape) * 100).astype(dtype)
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1, -1]
    picked = rng.integers(0, len(special), shape)
    return np.where(rng.random(shape) < 0.2, np.array(special, dtype)[picked], x)


def check(x: np.ndarray, descending: bool) -> None:
    values, places = Tensor(x).sort(-1, descending)
    order = stable_order(x, descending)
    assert places.dtype is dtypes.int32
    np.testing.assert_array_equal(places.numpy(), order)
    expected = np.take_along_axis(x, order, -1)
    got = values.numpy()
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, expected)
    if x.dtype.kind == "f":
        there = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got)[there], np.signbit(expected)[there])


# ---------------------------------------------------------------- laws


@st.composite
def rows(draw):
    dtype = draw(st.sampled_from(NP_DTYPES))
    shape = draw(st.sampled_from([(1,), (2,), (5,), (16,), (2, 7), (3, 1), (2, 2, 4)]))
    return draw(hnp.arrays(dtype, shape, elements=hnp.from_dtype(dtype)))


@given(rows(), st.booleans())
@settings(max_examples=examples(500, 40))
def test_a_sort_is_a_stable_permutation_in_order(x, descending):
    values, places = (t.numpy() for t in Tensor(x).sort(-1, descending))
    n = x.shape[-1]
    np.testing.assert_array_equal(np.sort(places, -1), np.broadcast_to(np.arange(n), x.shape))
    np.testing.assert_array_equal(values, np.take_along_axis(x, places, -1))
    before, after = values[..., :-1], values[..., 1:]
    if descending:
        before, after = after, before
    late = np.isnan(after) if x.dtype.kind == "f" else np.zeros(after.shape, bool)
    assert ((before <= after) | late).all()
    same = (before == after) | (late & (before != before))
    assert (places[..., :-1] < places[..., 1:])[same].all()


@given(rows(), st.booleans(), st.data())
@settings(max_examples=examples(300, 25))
def test_the_first_ones_are_those_of_a_sort(x, largest, data):
    k = data.draw(st.integers(0, x.shape[-1]))
    values, places = Tensor(x).topk(k, -1, largest)
    order = stable_order(x, largest)[..., :k]
    np.testing.assert_array_equal(places.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order, -1))


# ---------------------------------------------------------------- methods and lengths


@pytest.mark.parametrize("size", [1, 10, 100, 1000])
def test_places_are_where_the_values_are(size, method):
    x = drawn((2, size), "float32")
    values, places = Tensor(x, device="CPU:1").sort()
    assert values.device == places.device == "CPU:1"
    np.testing.assert_array_equal(places.numpy(), stable_order(x))
    first = Tensor(x, device="CPU:1").topk(max(size // 2, 1))[1]
    assert first.device == "CPU:1"
    order = stable_order(x, descending=True)[:, : max(size // 2, 1)]
    np.testing.assert_array_equal(first.numpy(), order)


def test_a_sort_that_nobody_reads_is_not_computed(method):
    pending = Tensor(drawn((2, 100), "float32")).sort()
    before = GlobalCounters.kernel_count
    (Tensor([1, 2]) + 1).realize()
    assert GlobalCounters.kernel_count == before + 1
    assert pending[1].shape == (2, 100)


@pytest.fixture(params=["ranks", "digits"])
def method(request, monkeypatch):
    """Each way to sort, whatever it costs."""
    limit = 10**18 if request.param == "ranks" else -1
    monkeypatch.setattr(room, "_PAIRS_OF_KERNELS", limit)
    return request.param


@pytest.mark.parametrize(
    "dtype", ["int8", "uint16", "float16", "float32", "uint32", "int64", "bool"]
)
@pytest.mark.parametrize("descending", [False, True])
def test_both_methods_sort(method, dtype, descending):
    check(drawn((2, 131), dtype), descending)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64", "uint64"])
def test_pairs_are_compared_signed_and_counted_as_wide(dtype):
    """So vectors without unsigned comparisons need one instruction, and no lane changes places."""
    keys = Tensor(drawn((2, 33), dtype))._sort_keys(False)
    nodes = list(keys._ranks().uop.toposort())
    wide = {s.dtype for n in nodes if n.op is Ops.CMPLT and n.shape == (2, 33, 33) for s in n.src}
    counts = {n.dtype for n in nodes if n.op is Ops.REDUCE}
    assert counts == {dtypes.int32 if keys.dtype.itemsize < 4 else dtypes.int64}
    assert wide == counts


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 127, 128, 129])
def test_digits_of_lengths_around_blocks(size, monkeypatch):
    monkeypatch.setattr(room, "_PAIRS_OF_KERNELS", -1)
    check(drawn((2, size), "float32", size), True)


def test_words_of_64_bits_are_sorted_by_both_halves(monkeypatch):
    monkeypatch.setattr(room, "_PAIRS_OF_KERNELS", -1)
    rng = np.random.default_rng(0)
    high, low = rng.integers(-2, 2, 300), rng.integers(0, 3, 300)
    check((high << 32) | (low << 30), False)
    check(drawn((150,), "float64"), True)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_long_rows(dtype):
    check(drawn((examples(300_007, 20_011),), dtype), False)


@pytest.mark.parametrize("size, k", [(5000, 1), (5000, 3), (9001, 33), (20_011, 5), (9001, 8000)])
@pytest.mark.parametrize("largest", [True, False])
def test_few_of_long_rows(size, k, largest):
    x = np.random.default_rng(k).integers(0, 50, (2, size)).astype(np.float32)
    x[1] = 7  # all equal: the first places
    x[0, ::97] = np.nan
    values, places = Tensor(x).topk(k, -1, largest)
    order = stable_order(x, largest)[:, :k]
    np.testing.assert_array_equal(places.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order, -1))


@pytest.mark.parametrize("size, k", [(300, 5), (257, 1), (300, 18), (300, 19), (301, 3)])
def test_few_of_many_rows(size, k):
    x = np.random.default_rng(k).integers(0, 60, (300, size)).astype(np.int32)
    places = Tensor(x).topk(k)[1]
    np.testing.assert_array_equal(places.numpy(), stable_order(x, True)[:, :k])


@pytest.fixture(params=["blocks", "bits"])
def way(request, monkeypatch):
    """Each way to find the first ones, whatever it costs."""
    monkeypatch.setattr(
        room,
        "_way_to_first",
        lambda rows, size, count: (request.param if size >= 4 * count else "pairs", 0),
    )


@pytest.mark.parametrize(
    "rows, size, count, expected",
    [(1, 8, 4, "pairs"), (4, 379, 16, "blocks"), (64, 800, 50, "bits"), (1, 10**6, 50, "blocks")],
)
def test_the_first_ones_are_found_in_the_cheapest_way(rows, size, count, expected):
    assert room._way_to_first(rows, size, count)[0] == expected


@pytest.mark.parametrize("dtype", NP_DTYPES, ids=str)
@pytest.mark.parametrize("largest", [True, False])
def test_the_first_ones_of_every_dtype(way, dtype, largest):
    x = drawn((3, 131), dtype)
    x[2] = x[2, 0]
    for k in (1, 2, 32):
        values, places = Tensor(x).topk(k, -1, largest)
        order = stable_order(x, largest)[:, :k]
        np.testing.assert_array_equal(places.numpy(), order)
        np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order, -1))


def test_the_first_ones_of_rows_too_long_for_counts_in_16_bits(way):
    x = np.zeros((2, (1 << 16) + 3), np.int32)
    x[1] = np.arange(x.shape[1]) % 5
    for largest in (True, False):
        places = Tensor(x).topk(200, largest=largest)[1]
        np.testing.assert_array_equal(places.numpy(), stable_order(x, largest)[:, :200])


def test_few_of_rows_that_do_not_fill_their_blocks_where_all_are_last():
    x = np.full((1, 4999), np.iinfo(np.uint32).max, np.uint32)  # as what fills the last block
    assert Tensor(x).topk(70, largest=False)[1].tolist() == [list(range(70))]


def test_dimensions_in_the_middle():
    x = drawn((3, 70, 4), "float32")
    for descending in (False, True):
        order = stable_order(x, descending, 1)
        np.testing.assert_array_equal(Tensor(x).argsort(1, descending).numpy(), order)


@pytest.mark.parametrize("dtype", dtypes.all)
def test_every_dtype(dtype):
    x = np.array([3, 0, 1, 1, 2, 0]).astype(_to_np_dtype(dtype))
    values, places = Tensor(x).sort()
    order = stable_order(x.astype(np.float32))
    assert values.dtype is dtype
    assert places.tolist() == order.tolist()
    assert values.tolist() == x[order].tolist()


def test_the_interpreter_sorts_both_ways(method):
    with Context(DEV="PYTHON"):
        check(drawn((70 if method == "digits" else 20,), "float16"), False)


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("name", ["sort", "topk"])
def test_gradients_go_where_the_elements_came_from(method, name):
    x = np.random.default_rng(1).permutation(150).astype(np.float32).reshape(2, 75)
    t = Tensor(x)
    values = t.sort(1, True)[0] if name == "sort" else t.topk(20)[0]
    weights = np.arange(1, values.shape[1] + 1, dtype=np.float32)
    (values * Tensor(weights)).sum().backward()
    expected = np.zeros_like(x)
    order = np.argsort(-x, 1)[:, : len(weights)]
    np.put_along_axis(expected, order, np.broadcast_to(weights, order.shape), 1)
    np.testing.assert_array_equal(t.grad.numpy(), expected)


def test_the_sort_of_a_computed_value():
    x = np.random.default_rng(2).standard_normal(100).astype(np.float32)
    t = Tensor(x)
    (t.square().sort()[0] * Tensor.arange(100)).sum().backward()
    ranks = np.argsort(np.argsort(x**2))
    np.testing.assert_allclose(t.grad.numpy(), 2 * x * ranks, rtol=1e-6)


# ---------------------------------------------------------------- symbolic sizes, captures, writes


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("n", [3, 90])
def test_symbolic_lengths(method, descending, n):
    x = drawn((2, 90), "float32")
    values, places = Tensor(x)[:, : Variable("n", 1, 90).bind(n)].sort(1, descending)
    order = stable_order(x[:, :n], descending)
    np.testing.assert_array_equal(places.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x[:, :n], order, 1))


def test_symbolic_rows(method):
    x = drawn((9, 70), "int32")
    places = Tensor(x)[: Variable("rows", 1, 9).bind(4)].argsort()
    np.testing.assert_array_equal(places.numpy(), stable_order(x[:4]))


def test_captured_sorts_follow_their_argument(method):
    step = TinyJit(lambda t: [r.realize() for r in t.sort()])
    for seed in range(4):
        x = drawn((100,), "float32", seed)
        values, places = step(Tensor(x).realize())
        np.testing.assert_array_equal(places.numpy(), stable_order(x))
        np.testing.assert_array_equal(values.numpy(), x[stable_order(x)])


def test_what_is_written_later_is_not_sorted(method):
    x = drawn((80,), "int32")
    t = Tensor(x).realize()
    places = t.argsort()
    t.assign(t * 0)
    np.testing.assert_array_equal(places.numpy(), stable_order(x))
    assert t.numpy().max() == 0


def test_results_read_one_by_one_are_of_one_sort(method):
    x = drawn((200,), "float32")
    values, places = Tensor(x).realize().sort()
    values.realize()
    GlobalCounters.reset()
    places.realize()
    assert GlobalCounters.kernel_count <= 1
    np.testing.assert_array_equal(places.numpy(), stable_order(x))


# ---------------------------------------------------------------- work


def _cost(size: int, sort) -> tuple[int, int, int]:
    """Kernels, operations, and nodes of a sort of so many elements."""
    t = Tensor(np.random.default_rng(0).standard_normal(size).astype(np.float32)).realize()
    results = sort(t)
    results = results if isinstance(results, tuple) else (results,)
    nodes = len(set().union(*[r.uop.postorder() for r in results]))
    GlobalCounters.reset()
    Tensor.realize(*results)
    return GlobalCounters.kernel_count, GlobalCounters.global_ops, nodes


@pytest.mark.parametrize(
    "sort", [lambda t: t.argsort(), lambda t: t.topk(10)], ids=["argsort", "topk"]
)
def test_work_grows_with_the_length_and_kernels_hardly_at_all(sort):
    costs = [_cost(size, sort) for size in (1 << 14, 1 << 15, 1 << 16)]
    for (kernels, ops, nodes), (more_kernels, more_ops, more_nodes) in pairwise(costs):
        assert more_ops < 2.6 * ops
        assert more_kernels <= kernels + 16
        assert more_nodes < 1.4 * nodes + 150  # of one more level of blocks
    assert costs[-1][0] < 100
    assert costs[-1][2] < 4000


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda x: x.sort(2), IndexError, r"dimension 2 .*\(2, 3\)"),
        (lambda x: x.argsort(-3), IndexError, "-3"),
        (lambda x: x.sort("a"), TypeError, "'a'"),
        (lambda x: x.topk(4), ValueError, r"topk: k .*0 to .*\(2, 3\), which is 3, got 4"),
        (lambda x: x.topk(-1), ValueError, "got -1"),
        (lambda x: x.topk(1.0), ValueError, "an int .*got 1.0"),
        (lambda x: x.topk(True), ValueError, "got True"),
        (lambda x: x.topk(1, 5), IndexError, "5"),
        (lambda x: x.sum().topk(0), ValueError, r"shape \(\) k must be 1.*reshape"),
        (lambda x: x.sum().sort(1), IndexError, "1"),
    ],
)
def test_mistakes_are_found_when_written(make, error, words):
    with pytest.raises(error, match=words):
        make(Tensor(np.zeros((2, 3), np.float32)))
