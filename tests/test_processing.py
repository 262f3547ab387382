"""Products, einsum, convolutions, pools, attention: laws, mechanisms and mistakes.

Values beside NumPy and PyTorch stand in tests/api/processing.py.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from tiny import Context, Device, Tensor, TinyJit, Variable, dtypes
from tiny.mixin import einsum as einsum_room
from tiny.schedule import create_schedule
from tiny.uop.ops import Ops, UOp


def drawn(*shape, dtype="float32", seed=0):
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(dtype)


def ones(*shape, **kwargs):
    return Tensor.ones(*shape, **kwargs)


def reduces(x: Tensor) -> int:
    return sum(n.op is Ops.REDUCE for n in x.uop.postorder())


# ---------------------------------------------------------------- einsum


@st.composite
def formulas(draw):
    """A formula of up to four operands, and their shapes."""
    letters = "abCde"
    sizes = {c: draw(st.integers(0, 3) if c == "e" else st.integers(1, 3)) for c in letters}
    terms = draw(st.lists(st.text(letters, max_size=3), min_size=1, max_size=4))
    used = sorted(set("".join(terms)))
    output = "".join(draw(st.permutations(used))[: draw(st.integers(0, len(used)))])
    formula = ",".join(terms)
    formula = draw(st.sampled_from([formula, f"{formula}->{output}"]))
    return formula, [tuple(sizes[c] for c in term) for term in terms]


@settings(max_examples=examples(2000, 60))
@given(formulas())
def test_einsum_of_random_formulas_is_numpys(drawn_formula):
    formula, shapes = drawn_formula
    arrays = [drawn(*shape, dtype="float64", seed=k) for k, shape in enumerate(shapes)]
    found = Tensor.einsum(formula, *[Tensor(a) for a in arrays]).numpy()
    np.testing.assert_allclose(found, np.einsum(formula, *arrays), rtol=1e-12, atol=1e-12)


def test_einsum_of_two_operands_is_one_contraction():
    x, y = ones(4, 5, 6), ones(4, 6, 7)
    assert reduces(Tensor.einsum("bij,bjk->kbi", x, y)) == 1
    assert reduces(Tensor.einsum("bij,bij->", x, x)) == 1


def pairs_of(formula: str, **sizes: int) -> list[tuple[int, int]]:
    terms, _, output = formula.partition("->")
    labels = [frozenset(term) for term in terms.split(",")]
    order = einsum_room._order(labels, frozenset(output), sizes)
    return [(a, b) for a, b, _ in order]


@pytest.mark.parametrize(
    "formula, sizes, pairs",
    [
        ("ab,bc,cd->ad", {"a": 2, "b": 90, "c": 80, "d": 3}, [(0, 1), (2, 3)]),
        ("ab,bc,cd->ad", {"a": 80, "b": 3, "c": 90, "d": 2}, [(1, 2), (0, 3)]),
        ("a,b,ab->", {"a": 5, "b": 7}, [(1, 2), (0, 3)]),
        ("ab,ab,bc->ac", {"a": 9, "b": 9, "c": 9}, [(0, 1), (2, 3)]),
        ("a,b,c->abc", {"a": 9, "b": 2, "c": 3}, [(1, 2), (0, 3)]),
        ("a->a", {"a": 3}, []),
    ],
)
def test_operands_are_contracted_where_most_is_taken_away(formula, sizes, pairs):
    assert pairs_of(formula, **sizes) == pairs


def test_a_chain_of_matrices_costs_what_its_best_order_does():
    n = 200
    x = Tensor.einsum("ab,bc,cd->ad", ones(2, n), ones(n, n), ones(n, n))
    sizes = [math.prod(node.src[0].shape) for node in x.uop.postorder() if node.op is Ops.REDUCE]
    assert sorted(sizes) == [2 * n * n, 2 * n * n]


def test_many_operands_are_ordered_in_near_linear_steps():
    labels = [frozenset({f"{k}", f"{k + 1}"}) for k in range(300)]
    sizes = {f"{k}": 2 + k % 3 for k in range(301)}
    order = einsum_room._order(labels, frozenset({"0", "300"}), sizes)
    assert len(order) == 299
    assert max(len(left) for _, _, left in order) == 2


def test_one_operand_is_summed_before_it_is_multiplied():
    x = Tensor.einsum("ij,jk->k", ones(50, 4), ones(4, 3))
    sizes = [math.prod(node.src[0].shape) for node in x.uop.postorder() if node.op is Ops.REDUCE]
    assert sizes == [200, 12]


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda x: Tensor.einsum("ij,jk", x), ValueError, "of 2 operands, got 1"),
        (lambda x: Tensor.einsum(""), ValueError, "got 0"),
        (lambda x: Tensor.einsum(3, x), TypeError, "got 3"),
        (lambda x: Tensor.einsum("ij", np.ones((2, 3))), TypeError, "got ndarray"),
        (lambda x: Tensor.einsum("i1", x), ValueError, "'1' in operand 0"),
        (lambda x: Tensor.einsum("ij->i->j", x), ValueError, "'-' in the output"),
        (lambda x: Tensor.einsum("i..j", x), ValueError, "'i..j' in operand 0"),
        (lambda x: Tensor.einsum("...i...", x), ValueError, r"'\.\.\.i\.\.\.' in operand 0"),
        (lambda x: Tensor.einsum("i", x), ValueError, r"names 1 dimensions.*\(2, 3\)"),
        (lambda x: Tensor.einsum("ijk...", x), ValueError, "names 3 dimensions"),
        (lambda x: Tensor.einsum("ij->ik", x), ValueError, "'k' of the output"),
        (lambda x: Tensor.einsum("ij->ii", x), ValueError, "'i' is twice in the output"),
        (lambda x: Tensor.einsum("ii", x), ValueError, "sizes 2 and 3"),
        (lambda x: Tensor.einsum("ij,ij", x, x.T), ValueError, r"'i' has sizes 2 and 3.*\(3, 2\)"),
        (lambda x: Tensor.einsum("...,...", x, x.T), ValueError, "ellipses has sizes"),
    ],
)
def test_mistakes_of_formulas_are_named(make, error, words):
    with pytest.raises(error, match=words):
        make(ones(2, 3))


# ---------------------------------------------------------------- products


@pytest.mark.parametrize("a", [(3,), (2, 3), (1, 2, 3), (4, 1, 2, 3)])
@pytest.mark.parametrize("b", [(3,), (3, 5), (1, 3, 5), (4, 7, 3, 1)])
def test_all_ranks_have_numpys_products(a, b):
    x, y = drawn(*a), drawn(*b)
    np.testing.assert_allclose((Tensor(x) @ Tensor(y)).numpy(), x @ y, rtol=1e-5, atol=1e-6)


def test_linear_rounds_narrow_floats_once():
    x, w, b = (drawn(*s, dtype="float16") for s in ((5, 70), (70, 9), (9,)))
    wide = x.astype(np.float64) @ w.astype(np.float64) + b
    found = Tensor(x).linear(Tensor(w), Tensor(b))
    assert found.dtype is dtypes.float16
    # half a unit of rounding, and what sums in float32 may add
    np.testing.assert_allclose(found.numpy(), wide, rtol=0.501 * 2**-10, atol=1e-6)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda x: x @ ones(2, 3), r"inner sizes differ, got \(2, 3\) @ \(2, 3\)"),
        (lambda x: x @ Tensor(1.0), r"got \(2, 3\) @ \(\)"),
        (lambda x: ones(2, 2, 3) @ ones(3, 3, 2), r"leading.*\(2,\) and \(3,\)"),
        (lambda x: x.linear(ones(2, 2)), "inner sizes"),
        (lambda x: x.linear(ones(3, 2), ones(5)), r"\(5,\)"),
    ],
)
def test_mistakes_of_products_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make(ones(2, 3))


# ---------------------------------------------------------------- convolutions

IMAGE = Tensor.zeros(2, 4, 5, 6)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda x: x.conv2d(ones(2, 4, 3)), r"\(2, 4, 5, 6\) and \(2, 4, 3\)"),
        (lambda x: x.conv2d(ones(2, 3, 3, 3)), "4 channels.*takes 3 in each of 1 groups"),
        (lambda x: x.conv2d(ones(3, 2, 3, 3), groups=2), "gives 3"),
        (lambda x: x.conv2d(ones(4, 2, 3, 3), groups=0), "at least 1, got 0"),
        (lambda x: x.conv2d(ones(2, 4, 7, 3)), "does not fit"),
        (lambda x: x.conv2d(ones(2, 4, 3, 3), dilation=3), "does not fit"),
        (lambda x: x.conv2d(ones(2, 4, 3, 3), stride=0), "at least 1"),
        (
            lambda x: x.conv2d(ones(2, 4, 3, 3), stride=(1, 2, 3)),
            "conv2d: stride is .* or 2 of them",
        ),
        (lambda x: x.conv2d(ones(2, 4, 3, 3), padding=(1, 2, 3)), r"got \(1, 2, 3\)"),
        (lambda x: x.conv2d(ones(2, 4, 3, 3), padding="same"), "padding is a number.*got 'same'"),
        (lambda x: x.conv2d(ones(2, 4, 3, 3), padding=((1, 1), (0, 0))), "padding is a number"),
        (lambda x: x.conv2d(ones(2, 4, 3, 3), ones(3)), r"shape \(2,\), got \(3,\)"),
        (lambda x: x.conv_transpose2d(ones(4, 4)), r"C_out / groups, \*kernel"),
        (lambda x: x.conv_transpose2d(ones(3, 2, 3, 3)), "4 channels.*takes 3"),
        (lambda x: x.conv_transpose2d(ones(4, 2, 3, 3), groups=3), "in 3 groups"),
        (lambda x: x.conv_transpose2d(ones(4, 2, 3, 3), ones(3), groups=2), r"shape \(4,\)"),
        (lambda x: x.conv_transpose2d(ones(4, 2, 3, 3), stride=0), "stride is .* at least 1"),
        (lambda x: x.conv_transpose2d(ones(4, 2, 3, 3), output_padding=-1), "output_padding"),
        (lambda x: x.conv_transpose2d(ones(4, 2, 3, 3), dilation=(1, 1, 1)), "or 2 of them"),
        (lambda x: x.conv_transpose2d(ones(4, 2, 3, 3), padding=4), "nothing is left"),
        (lambda x: x.conv_transpose2d(ones(4, 2, 3, 3), padding="valid"), "padding is a number"),
    ],
)
def test_mistakes_of_convolutions_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make(IMAGE)


@pytest.mark.parametrize("stride, padding, dilation", [(1, 0, 1), (2, 1, 1), (3, 2, 2)])
def test_the_transpose_is_that_of_the_convolution(stride, padding, dilation):
    """<conv(x), y> = <x, transposed(y)>, for sizes at which nothing is left over."""
    kwargs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": 2}
    w = drawn(6, 2, 3, 2, dtype="float64")
    out = Tensor(drawn(1, 4, 13, 12, dtype="float64")).conv2d(Tensor(w), **kwargs)
    y = drawn(*out.shape, dtype="float64", seed=1)
    back = Tensor(y).conv_transpose2d(Tensor(w), **kwargs)
    x = drawn(*back.shape, dtype="float64", seed=2)
    left = (Tensor(x).conv2d(Tensor(w), **kwargs) * Tensor(y)).sum().item()
    assert left == pytest.approx((Tensor(x) * back).sum().item(), rel=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("channels, sizes", [(1, (9, 6)), (24, (7, 8)), (5, (17,)), (3, (4, 5, 6))])
def test_winograd_keeps_its_bound(dtype, channels, sizes):
    x, w = (
        drawn(2, channels, *sizes, dtype=dtype),
        drawn(3, channels, *[3] * len(sizes), dtype=dtype),
    )
    exact = Tensor(x).double().conv2d(Tensor(w).double(), padding=1).numpy()
    most = Tensor(abs(x)).double().conv2d(Tensor(abs(w)).double(), padding=1).numpy().max()
    with Context(WINO=1):
        found = Tensor(x).conv2d(Tensor(w), padding=1).numpy()
    units = (64 if len(sizes) == 3 else 32) * 2.0**-23
    rounding = 0 if dtype == "float32" else 2.0**-11 * abs(exact)
    assert (abs(found - exact) <= units * most + rounding).all()


@pytest.mark.parametrize(
    "weight, kwargs, used",
    [
        ((2, 4, 3, 3), {}, True),
        ((4, 2, 3, 3), {"groups": 2, "padding": 1}, True),
        ((2, 4, 3, 3), {"stride": 2}, False),
        ((2, 4, 3, 3), {"dilation": 2}, False),
        ((2, 4, 3, 1), {}, False),
        ((2, 4, 5, 5), {}, False),
        ((2, 4, 3, 3), {"dtype": "int32"}, False),
    ],
)
def test_winograd_is_for_windows_of_three_that_move_by_one(weight, kwargs, used):
    def keys() -> list[object]:
        found = []
        for wino in (0, 1):
            with Context(WINO=wino):
                found.append(IMAGE.conv2d(ones(*weight), **kwargs).uop)
        return found

    plain, other = keys()
    assert (Ops.CONTIGUOUS in {n.op for n in other.postorder()}) is used
    assert Ops.CONTIGUOUS not in {n.op for n in plain.postorder()}


def test_winograd_says_what_does_not_fit():
    with Context(WINO=1), pytest.raises(ValueError, match="does not fit"):
        ones(1, 1, 2, 5).conv2d(ones(1, 1, 3, 3))


def test_windows_over_a_symbolic_batch():
    x, w = drawn(8, 2, 9), drawn(4, 2, 3)
    part = Tensor(x)[: Variable("batch", 1, 8).bind(3)]
    for call in (
        lambda x: x.conv2d(Tensor(w), padding=1),
        lambda x: x.conv_transpose2d(Tensor(drawn(2, 4, 3)), stride=2),
        lambda x: x.max_pool2d((3,)),
        lambda x: Tensor.einsum("bij,kij->bk", x, Tensor(drawn(5, 2, 9))),
    ):
        np.testing.assert_allclose(call(part).numpy(), call(Tensor(x[:3])).numpy(), atol=1e-6)


# ---------------------------------------------------------------- pools


def windows_by_hand(size, kernel, stride, dilation, before, after, ceil_mode):
    """The places of each window, None in the padding, nothing beyond it."""
    rows, start, reached = [], -before, -before - 1
    while True:
        places = [start + j * dilation for j in range(kernel)]
        inside = [p for p in places if p < size + after]
        if len(inside) < kernel and not (ceil_mode and start < size and reached < size + after - 1):
            return rows
        rows.append([p if 0 <= p < size else None for p in inside])
        start, reached = start + stride, places[-1]


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("dilation", [1, 2])
def test_pools_of_all_small_windows(ceil_mode, dilation):
    x = drawn(11, dtype="float64")
    cases = itertools.product((3, 7), (1, 2, 3), (1, 2, 3), (0, 1), (0, 2))
    for size, kernel, stride, before, after in list(cases)[:: examples(1, 5)]:
        if size + before + after < dilation * (kernel - 1) + 1:
            continue
        rows = windows_by_hand(size, kernel, stride, dilation, before, after, ceil_mode)
        options = {"padding": (before, after), "dilation": dilation, "ceil_mode": ceil_mode}
        values = [[x[p] for p in row if p is not None] for row in rows]
        line = Tensor(x[:size])
        found = line.max_pool2d((kernel,), stride, **options)
        expected = [max(row, default=-math.inf) for row in values]
        np.testing.assert_array_equal(found.numpy(), expected)
        mean = line.avg_pool2d((kernel,), stride, **options)
        sums = [sum(row) for row in values]
        np.testing.assert_allclose(
            mean.numpy(), [s / len(row) for s, row in zip(sums, rows, strict=True)], rtol=1e-12
        )
        mean = line.avg_pool2d((kernel,), stride, count_include_pad=False, **options)
        expected = [s / len(row) if row else math.nan for s, row in zip(sums, values, strict=True)]
        np.testing.assert_allclose(mean.numpy(), expected, rtol=1e-12)


def test_equal_maxima_share_the_gradient():
    x = Tensor([[3.0, 3.0, 1.0, 2.0]])
    assert x.max_pool2d((2,)).sum().gradient(x)[0].tolist() == [[0.5, 0.5, 0.0, 1.0]]


def test_a_pool_goes_back_to_where_it_came_from():
    x = Tensor(np.random.default_rng(0).permutation(36).reshape(1, 1, 6, 6).astype(np.int32))
    pooled, places = x.max_pool2d(return_indices=True)
    assert places.dtype is dtypes.int32
    back = pooled.max_unpool2d(places)
    assert (back.max_pool2d() == pooled).all().item()
    assert (back != 0).sum().item() <= 9
    larger = pooled.max_unpool2d(places, output_size=(1, 1, 7, 6))
    assert larger.shape == (1, 1, 7, 6)
    assert larger.flatten()[:36].tolist() == back.flatten().tolist()


def test_places_of_overlapping_windows_and_of_none():
    x, places = Tensor([[1.0, 5.0, 2.0]]).max_pool2d((2,), 1, return_indices=True)
    assert x.max_unpool2d(places, (2,), 1).tolist() == [[0.0, 5.0, 0.0]]
    outside = Tensor([[7, -1]])
    assert x.max_unpool2d(outside, (2,), 1).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda x: x.max_pool2d(7), "window of .7, 7. .* does not fit"),
        (lambda x: x.avg_pool2d((2, 7), padding=0), r"does not fit into \(2, 4, 5, 6\)"),
        (lambda x: x.avg_pool2d(0), "kernel_size is a number of at least 1"),
        (lambda x: x.max_pool2d(2, 0), "stride is a number of at least 1"),
        (lambda x: x.max_pool2d(2, dilation=(1, 2, 3)), "dilation is .* or 2 of them"),
        (lambda x: x.max_pool2d(2, padding=(1, 2, 3)), "max_pool2d: padding"),
        (lambda x: ones(3).avg_pool2d(), r"needs 2 dimensions, got \(3,\)"),
        (lambda x: x.max_unpool2d(x), "integer index"),
        (
            lambda x: x.max_unpool2d(Tensor([1])),
            r"shape \(2, 4, 5, 6\), got .*int32 of shape \(1,\)",
        ),
        (lambda x: ones(3).max_unpool2d(Tensor([0, 0, 0])), "needs 2 dimensions"),
        (lambda x: x.max_unpool2d(x.int(), output_size=(3,)), "output_size holds 2 sizes"),
        (lambda x: x.max_unpool2d(x.int(), stride=(1, 2, 3)), "max_unpool2d: stride is"),
        (lambda x: x.max_unpool2d(x.int(), padding=9), "gives the sizes"),
    ],
)
def test_mistakes_of_pools_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make(IMAGE)


# ---------------------------------------------------------------- attention


def test_a_query_that_sees_no_key_gives_zeros_and_no_gradient():
    q, k, v = (Tensor(drawn(2, 3, seed=s)) for s in range(3))
    mask = Tensor([[True, False], [False, False]])
    out = q.scaled_dot_product_attention(k, v, mask)
    grads = [g.numpy() for g in out.square().sum().gradient(q, k, v)]
    assert out[1].tolist() == [0.0, 0.0, 0.0]
    assert all(np.isfinite(g).all() for g in grads)
    assert (grads[0][1] == 0).all()


def test_a_growing_number_of_keys_needs_one_capture():
    shapes = ((1, 4, 1, 8), (1, 2, 16, 8), (1, 2, 16, 8))
    arrays = [drawn(*shape, seed=k) for k, shape in enumerate(shapes)]
    query, keys, values = (Tensor(a).realize() for a in arrays)
    count = Variable("count", 1, 16)

    @TinyJit
    def step(query, n):
        seen = keys[:, :, :n], values[:, :, :n]
        return query.scaled_dot_product_attention(*seen, enable_gqa=True).realize()

    for n in (3, 7, 1, 16):
        whole = query.scaled_dot_product_attention(
            Tensor(arrays[1][:, :, :n]), Tensor(arrays[2][:, :, :n]), enable_gqa=True
        )
        found = step(query, count.bind(n))
        np.testing.assert_allclose(found.numpy(), whole.numpy(), rtol=1e-5, atol=1e-6)


def test_dropout_of_attention_is_for_training():
    q = ones(1, 4, 64, 8)
    plain = q.scaled_dot_product_attention(q, q, dropout_p=0.5)
    np.testing.assert_allclose(plain.numpy(), 1.0, rtol=1e-5)
    with Tensor.train():
        Tensor.manual_seed(1)
        dropped = q.scaled_dot_product_attention(q, q, dropout_p=0.5).numpy()
    assert dropped.std() > 0
    assert dropped.mean() == pytest.approx(1.0, abs=0.1)


def test_attention_promotes_and_keeps_narrow_results():
    half, x = ones(2, 4, dtype="float16"), ones(2, 4)
    assert half.scaled_dot_product_attention(half, half, x[:, :2]).dtype is dtypes.float16
    assert half.scaled_dot_product_attention(half, x).dtype is dtypes.float32
    assert x.int().scaled_dot_product_attention(x.int(), x.int()).dtype is dtypes.float32
    # the scores of 400 would be no float16: exp of their differences is right all the same
    large = Tensor([[300.0, 0.0], [0.0, 300.0]], dtype="float16")
    assert large.scaled_dot_product_attention(large, Tensor([[1.0], [2.0]]).half()).tolist() == [
        [1.0],
        [2.0],
    ]


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda a, x: a(ones(2, 5), x), ValueError, r"key \(2, 5\)"),
        (lambda a, x: a(x, ones(3, 4)), ValueError, r"value \(3, 4\)"),
        (lambda a, x: a(x[0], x), ValueError, r"key \(4,\)"),
        (lambda a, x: a(x, x, ones(2, 2), is_causal=True), ValueError, "exclude each other"),
        (lambda a, x: a(x, x, Tensor([[1, 0]])), TypeError, "got .*int32"),
        (lambda a, x: a(x, x, ones(3, 3)), ValueError, r"\(3, 3\)"),
        (lambda a, x: a(x, x, enable_gqa=True), ValueError, "dimension -3 counts heads"),
        (lambda a, x: a(x, x, dropout_p=2.0), ValueError, "between 0 and 1"),
    ],
)
def test_mistakes_of_attention_are_named(make, error, words):
    x = ones(2, 4)
    with pytest.raises(error, match=words):
        make(x.scaled_dot_product_attention, x)


def test_heads_must_divide_those_of_queries():
    with pytest.raises(ValueError, match=r"query \(3, 2, 4\), key \(2, 2, 4\)"):
        ones(3, 2, 4).scaled_dot_product_attention(ones(2, 2, 4), ones(2, 2, 4), enable_gqa=True)


# ---------------------------------------------------------------- kernels


def empty(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor.empty(*shape, dtype=dtype)


@pytest.mark.parametrize(
    "make, count",
    [
        (lambda: empty(3, 4, 16, 8).scaled_dot_product_attention(*[empty(3, 4, 20, 8)] * 2), 2),
        (
            lambda: empty(2, 16, 8).scaled_dot_product_attention(
                *[empty(2, 16, 8)] * 2, is_causal=True
            ),
            2,
        ),
        (
            lambda: empty(3, 4, 16, 8).scaled_dot_product_attention(
                *[empty(3, 2, 20, 8)] * 2, empty(16, 20, dtype="bool"), enable_gqa=True
            ),
            2,
        ),
        (lambda: empty(3, 4, 1, 8).scaled_dot_product_attention(*[empty(3, 4, 20, 8)] * 2), 1),
        (lambda: empty(2, 4, 9, 9).conv2d(empty(6, 2, 3, 3), empty(6), groups=2, padding=1), 1),
        (lambda: empty(2, 4, 9, 9).conv_transpose2d(empty(4, 2, 3, 3), empty(2)), 1),
        (lambda: empty(2, 4, 9, 9).conv_transpose2d(empty(4, 2, 3, 3), empty(2), stride=2), 2),
        (lambda: empty(2, 4, 9, 9).avg_pool2d(3, 2, padding=1, count_include_pad=False), 1),
        (lambda: empty(2, 4, 9, 9).max_pool2d(3, 2, padding=1), 1),
        (lambda: empty(4, 5).linear(empty(5, 6), empty(6)), 1),
        (lambda: Tensor.einsum("bij,kj->bki", empty(2, 3, 5), empty(4, 5)), 1),
        (lambda: empty(2, 9, 9).interpolate((5, 4)), 1),
    ],
)
def test_at_most_so_many_kernels_are_needed(make, count):
    target = Device["CPU"].target
    schedule = create_schedule(UOp.sink(make().uop), lambda _: target, "CPU")
    assert len(schedule.schedule.items) <= count


# ---------------------------------------------------------------- interpolation


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda x: x.interpolate((3,), "cubic"), "linear, nearest, nearest-exact, got 'cubic'"),
        (lambda x: x.interpolate((3,), "nearest", True), "align_corners is for"),
        (lambda x: x.interpolate((0,)), r"got \(0,\)"),
        (lambda x: x.interpolate(3), "got 3"),
        (lambda x: x.interpolate((1, 2, 3, 4, 5)), "at most 4"),
        (lambda x: ones(2, 0).interpolate((3,)), "which have elements"),
    ],
)
def test_mistakes_of_interpolation_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make(IMAGE)


def test_nearest_places_are_exact_for_all_small_sizes():
    top = examples(60, 13)
    for old, new in itertools.product(range(1, top), range(1, top, 2)):
        x, places = Tensor(np.arange(old)), np.arange(new)
        assert x.interpolate((new,), "nearest").tolist() == (places * old // new).tolist()
    x = Tensor(np.arange(100_003, dtype=np.int32))
    found = x.interpolate((77_777,), "nearest-exact").numpy()
    expected = (2 * np.arange(77_777, dtype=np.int64) + 1) * 100_003 // (2 * 77_777)
    np.testing.assert_array_equal(found, expected)
