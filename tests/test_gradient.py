"""Gradients by rules on the graph, against finite differences and PyTorch."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from evaluate import evaluate, evaluate_all
from tiny import Tensor
from tiny.dtype import dtypes
from tiny.gradient import compute_gradient
from tiny.uop.ops import BufferArg, Ops, ReduceArg, UOp

STEP = 1e-6  # of central differences in float64: their error is then about 1e-9


def leaf(shape, uid=0, dtype=dtypes.float64) -> UOp:
    return UOp(Ops.BUFFER, dtype, (), BufferArg(uid, shape, "TEST"))


def reduced(x, op=Ops.ADD, axes=None):
    axes = tuple(range(len(x.shape))) if axes is None else axes
    return UOp(Ops.REDUCE, x.dtype, (x,), ReduceArg(op, axes))


def moved(op, x, arg):
    return UOp(op, x.dtype, (x,), arg)


def gradients(root, inputs, seed=None):
    """Values of the gradients of `root` by every input; `seed` is the gradient of the root."""
    grad = UOp.const(1.0, root.dtype)
    memory = dict(inputs)
    if seed is not None:
        grad = leaf(root.shape, 99, root.dtype)
        memory[grad] = seed
    found = compute_gradient(root, grad, set(inputs))
    for target, gradient in found.items():
        assert gradient.dtype is target.dtype and gradient.shape == target.shape
    values = evaluate_all(list(found.values()), memory)
    return dict(zip(found, values, strict=True))


def check(make, *arrays):
    """The gradients of sum(weights * make(inputs)) against central differences."""
    inputs = {leaf(a.shape, i): np.asarray(a, np.float64) for i, a in enumerate(arrays)}
    root = make(*inputs)
    seed = np.random.default_rng(9).uniform(0.5, 1.5, root.shape)
    got = gradients(root, inputs, seed)
    for target, array in inputs.items():
        expected = np.zeros(array.shape)
        for at in np.ndindex(array.shape):
            change = np.zeros(array.shape)
            change[at] = STEP
            up, down = (
                np.sum(seed * evaluate(root, {**inputs, target: array + sign * change}))
                for sign in (1, -1)
            )
            expected[at] = (up - down) / (2 * STEP)
        np.testing.assert_allclose(
            got.get(target, np.zeros(array.shape)), expected, rtol=1e-5, atol=1e-7
        )


A = np.random.default_rng(0).uniform(0.3, 2.0, (2, 3))
B = np.random.default_rng(1).uniform(-2.0, -0.2, (2, 3))
ROW = np.random.default_rng(2).uniform(0.5, 2.0, (1, 3))


def after_partial(x, v):
    """x[:, 1:] = v, then 2 * x[0, 2] = v[0, 0]; the result is used as a whole and in part."""
    part = moved(Ops.SHRINK, x, ((0, 2), (1, 3)))
    one = moved(Ops.SHRINK, x, ((0, 1), (2, 3)))
    corner = moved(Ops.SHRINK, v, ((0, 1), (0, 1)))
    y = x.after(UOp(Ops.STORE, src=(part, v)), UOp(Ops.STORE, src=(one, corner * 2.0)))
    return y * y


def after_view(x, v):
    flipped = moved(Ops.PERMUTE, x, (1, 0))
    y = flipped.after(UOp(Ops.STORE, src=(moved(Ops.SHRINK, x, ((1, 2), (0, 3))), v)))
    return y * y * y


@pytest.mark.parametrize(
    "make, arrays",
    [
        (lambda a: a.alu(Ops.NEG), (A,)),
        (lambda a: a.alu(Ops.EXP2), (B,)),
        (lambda a: a.alu(Ops.LOG2), (A,)),
        (lambda a: a.alu(Ops.SIN), (B,)),
        (lambda a: a.alu(Ops.SQRT), (A,)),
        (lambda a: a.alu(Ops.RECIPROCAL), (B,)),
        (lambda a: a.alu(Ops.TRUNC) * a, (B,)),
        (lambda a, b: a.alu(Ops.ADD, b), (A, B)),
        (lambda a, b: a.alu(Ops.SUB, b), (A, B)),
        (lambda a, b: a.alu(Ops.MUL, b), (A, B)),
        (lambda a, b: a.alu(Ops.FDIV, b), (A, B)),
        (lambda a, b: a.alu(Ops.MAX, b), (A, -B)),
        (lambda a, b: a.alu(Ops.CMPLT, b).alu(Ops.WHERE, a * a, b), (A, -B)),
        (lambda a: a * a * a + a, (A,)),
        (lambda a: a.cast(dtypes.float64).alu(Ops.CONTIGUOUS), (A,)),
        (lambda a: UOp(Ops.CONTIGUOUS_BACKWARD, a.dtype, (a * 3.0,)), (A,)),
        (lambda a: UOp(Ops.COPY, a.dtype, (a * a,), "OTHER"), (A,)),
        (lambda a: reduced(a * a, axes=(1,)), (A,)),
        (lambda a: reduced(a), (A,)),
        (lambda a: reduced(a * a, Ops.MAX, (0,)), (B,)),
        (lambda a: reduced(a, Ops.MUL, (1,)), (B,)),
        (lambda a: reduced(a, Ops.MUL, (1,)), (np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 3.0]]),)),
        (lambda a: moved(Ops.RESHAPE, a * a, (3, 2)), (A,)),
        (lambda a: moved(Ops.PERMUTE, moved(Ops.RESHAPE, a, (1, 2, 3)), (2, 0, 1)), (A,)),
        (lambda a, b: moved(Ops.EXPAND, a, (2, 3)) * b, (ROW, B)),
        (lambda a: moved(Ops.PAD, a * a, ((1, 0), (0, 2))), (A,)),
        (lambda a: moved(Ops.SHRINK, a * a, ((1, 2), (0, 2))), (A,)),
        (lambda a: moved(Ops.FLIP, a * a, (0, 1)), (A,)),
        (lambda a, s: a * s, (A, np.array(1.7))),
        (lambda a, s: s.alu(Ops.FDIV, a), (A, np.array(1.7))),
        (lambda s: moved(Ops.EXPAND, s * s, (2, 3)), (np.array(1.7),)),
        (after_partial, (A, B[:, 1:])),
        (after_view, (A, ROW)),
        (lambda x, v: x.after(UOp(Ops.STORE, src=(x, v * v))) * 3.0, (A, B)),
        (lambda x, s: x.after(UOp(Ops.STORE, src=(x, s * s))) * 3.0, (A, np.array(1.7))),
    ],
)
def test_every_rule_agrees_with_finite_differences(make, arrays):
    check(make, *arrays)


def test_largest_elements_share_as_in_tinygrad():
    a, b = leaf((4,), 0), leaf((4,), 1)
    inputs = {a: np.array([1.0, 3.0, 3.0, 2.0]), b: np.array([2.0, 3.0, 1.0, 2.0])}
    (found,) = gradients(reduced(a, Ops.MAX), {a: inputs[a]}).values()
    np.testing.assert_array_equal(found, [0, 0.5, 0.5, 0])
    found = gradients(a.alu(Ops.MAX, b), inputs)
    np.testing.assert_array_equal(found[a], [0, 0.5, 1, 0.5])
    np.testing.assert_array_equal(found[b], [1, 0.5, 0, 0.5])


@pytest.mark.parametrize(
    "make, safe",
    [
        (lambda a: a.alu(Ops.LOG2), 4.0),
        (lambda a: a.alu(Ops.SQRT), 4.0),
        (lambda a: a.alu(Ops.RECIPROCAL), 4.0),
        (lambda a: a.const_like(1.0).alu(Ops.FDIV, a), 4.0),
        (lambda a: (a * -1e9 + 4.0).alu(Ops.EXP2), 1e-9),
    ],
)
def test_what_is_not_selected_has_gradient_zero_even_at_a_singularity(make, safe):
    a = leaf((2,))
    value = np.array([0.0 if safe == 4.0 else -1e3, safe])
    chosen = a.const_like(0.0).alu(Ops.CMPLT, a).alu(Ops.WHERE, make(a), a.const_like(0.0))
    (found,) = gradients(chosen, {a: value}).values()
    assert found[0] == 0 and np.isfinite(found[1]) and found[1] != 0
    (found,) = gradients(moved(Ops.SHRINK, make(a), ((1, 2),)), {a: value}).values()
    assert found[0] == 0 and np.isfinite(found[1])


def test_selection_keeps_infinities_of_the_other_branch_out():
    a, b = leaf((2,), 0), leaf((2,), 1)
    inputs = {a: np.array([1.0, math.inf]), b: np.array([math.nan, 2.0])}
    condition = a.alu(Ops.CMPLT, a.const_like(9.0))
    found = gradients(condition.alu(Ops.WHERE, a, b), inputs)
    np.testing.assert_array_equal(found[a], [1, 0])
    np.testing.assert_array_equal(found[b], [0, 1])


def test_no_gradient_flows_through_detach_bitcast_integers_or_truth_values():
    a = leaf((3,), dtype=dtypes.float32)
    one = UOp.const(1.0, dtypes.float32)
    for blocked in (
        UOp(Ops.DETACH, a.dtype, (a,)),
        a.bitcast(dtypes.int32).bitcast(dtypes.float32),
        a.cast(dtypes.int32).cast(dtypes.float32),
        a.alu(Ops.CMPLT, one).cast(dtypes.float32),
        a.alu(Ops.TRUNC),
    ):
        assert compute_gradient(blocked, one, {a}) == {}
        (kept,) = gradients(blocked * a, {a: np.float32([0.5, 2, 3])}).values()
        np.testing.assert_array_equal(kept, evaluate(blocked, {a: np.float32([0.5, 2, 3])}))


def test_targets_may_lie_inside_the_graph_and_be_the_root():
    a = leaf((3,))
    inner = a * a
    root = inner * 3.0
    found = compute_gradient(root, UOp.const(1.0, dtypes.float64), {a, inner, root})
    assert list(found) == [a, inner, root]
    values = evaluate_all(list(found.values()), {a: np.array([1.0, 2.0, 3.0])})
    np.testing.assert_array_equal(values, [[6, 12, 18], [3, 3, 3], [1, 1, 1]])
    assert compute_gradient(root, UOp.const(1.0, dtypes.float64), {leaf((3,), 7)}) == {}


def test_equal_constants_are_leaves_of_their_own():
    x, y = (UOp(Ops.CONST, dtypes.float32, (UOp(Ops.UNIQUE, arg=i),), 2.0) for i in range(2))
    found = compute_gradient(x * x * y, UOp.const(1.0, dtypes.float32), {x, y})
    assert [float(v) for v in evaluate_all([found[x], found[y]])] == [8.0, 4.0]


def test_sums_of_half_gradients_are_taken_in_float32():
    s = leaf((1,), dtype=dtypes.half)
    root = moved(Ops.EXPAND, s, (4096,))
    found = compute_gradient(root, UOp.const(1.0, dtypes.half), {s})[s]
    assert found.dtype is dtypes.half
    assert [n.dtype for n in found.postorder() if n.op is Ops.REDUCE] == [dtypes.float32]
    assert evaluate(found, {s: np.ones(1, np.float16)}) == 4096
    wide = compute_gradient(s.cast(dtypes.float32), UOp.const(1.0, dtypes.float32), {s})[s]
    assert wide.dtype is dtypes.half


def test_cosine_is_accurate_for_large_arguments():
    x = np.linspace(-3e4, 3e4, 999).astype(np.float32)
    a = leaf(x.shape, dtype=dtypes.float32)
    (found,) = gradients(a.alu(Ops.SIN), {a: x}).values()
    np.testing.assert_allclose(found, np.cos(x.astype(np.float64)), atol=3e-7)


def test_symbolic_sizes_move_back():
    n = UOp.variable("n", 1, 8)
    a = leaf((8, 3))
    cut = UOp(Ops.SHRINK, a.dtype, (a, n), ((0, None), (0, 3)))
    size = cut.shape[0]
    grown = UOp(Ops.EXPAND, a.dtype, (reduced(cut * cut, axes=(1,)), size), (None, 3))
    padded = UOp(Ops.PAD, a.dtype, (grown, 8 - n), ((0, None), (0, 0)))
    value = np.random.default_rng(4).uniform(1, 2, (8, 3))
    found = compute_gradient(padded, UOp.const(1.0, dtypes.float64), {a})[a]
    for size in (1, 5, 8):
        expected = np.where(np.arange(8)[:, None] < size, 6 * value, 0)
        np.testing.assert_allclose(evaluate(found, {a: value}, {"n": size}), expected)


def test_an_operation_without_a_rule_is_named():
    a = leaf((3,))
    odd = UOp(Ops.MULACC, a.dtype, (a, a, a))
    with pytest.raises(RuntimeError, match=r"MULACC.*detach"):
        compute_gradient(odd, UOp.const(1.0, dtypes.float64), {a})


def test_graphs_are_walked_once_however_deep_and_shared():
    a = leaf((2,))
    deep, shared = a, a
    for _ in range(20_000):
        deep = deep * 1.0001
    for _ in range(200):  # 2**200 paths
        shared = shared + shared
    one = UOp.const(1.0, dtypes.float64)
    assert len(compute_gradient(deep, one, {a})[a].postorder()) < 50_000
    found = compute_gradient(shared, one, {a})[a]
    np.testing.assert_array_equal(evaluate(found, {a: np.ones(2)}), [2.0**200] * 2)


def test_the_order_of_sums_is_the_same_every_time():
    a, b = leaf((3,), 0), leaf((3,), 1)
    root = (a * b + a.alu(Ops.SIN)) * (a.alu(Ops.EXP2) + b) + a * a
    one = UOp.const(1.0, dtypes.float64)
    first = compute_gradient(root, one, {a, b})
    again = compute_gradient(root, one, {b, a})
    assert list(first) == list(again) and all(first[t] is again[t] for t in first)


def test_a_network_has_the_gradients_of_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    x, w, v = (rng.standard_normal(s) for s in ((4, 5), (5, 6), (6, 3)))
    labels = np.array([0, 2, 1, 2])

    def matmul(a, b):
        (n, k), m = a.shape, b.shape[1]
        left = moved(Ops.EXPAND, moved(Ops.RESHAPE, a, (n, 1, k)), (n, m, k))
        turned = moved(Ops.RESHAPE, moved(Ops.PERMUTE, b, (1, 0)), (1, m, k))
        product = left * moved(Ops.EXPAND, turned, (n, m, k))
        return moved(Ops.RESHAPE, reduced(product, axes=(2,)), (n, m))

    leaves = [leaf(a.shape, i) for i, a in enumerate((x, w, v))]
    hidden = matmul(leaves[0], leaves[1])
    hidden = hidden.alu(Ops.MAX, hidden.const_like(0.0))
    logits = matmul(hidden, leaves[2])
    top = moved(Ops.EXPAND, reduced(logits, Ops.MAX, (1,)), (4, 3))
    shifted = logits - UOp(Ops.DETACH, top.dtype, (top,))
    total = reduced((shifted * (1 / math.log(2))).alu(Ops.EXP2), axes=(1,))
    log_softmax = shifted - moved(Ops.EXPAND, total.alu(Ops.LOG2) * math.log(2), (4, 3))
    one_hot = leaf((4, 3), 5)
    loss = moved(Ops.RESHAPE, reduced(log_softmax * one_hot), ()) * -0.25
    found = compute_gradient(loss, UOp.const(1.0, dtypes.float64), set(leaves))
    memory = {**dict(zip(leaves, (x, w, v), strict=True)), one_hot: np.eye(3)[labels]}

    theirs = [torch.tensor(a, requires_grad=True) for a in (x, w, v)]
    torch.nn.functional.cross_entropy(
        (theirs[0] @ theirs[1]).relu() @ theirs[2], torch.tensor(labels)
    ).backward()
    for node, tensor in zip(leaves, theirs, strict=True):
        np.testing.assert_allclose(
            evaluate(found[node], memory), tensor.grad, rtol=1e-9, atol=1e-12
        )


# ---------------------------------------------------------------- work


PLACES = [3, 0, 2, 1, 4, 6, 5, 7]
CHAINS = {
    "products with a number": lambda h, y: h * 0.5 + 1,
    "products of both": lambda h, y: h * h.maximum(0.5),
    "products with repeated data": lambda h, y: h + h * y[:1].expand(8),
    "functions": lambda h, y: (h.exp() + 1).log(),
    "choices": lambda h, y: (h > 1).where(h.sin(), h * h),
    "reductions": lambda h, y: h / (h.std() + 1),
    "products of all": lambda h, y: h * h.prod(),
    "reads at places": lambda h, y: h[PLACES] + 1,
    "orders": lambda h, y: h.sort()[0] * 1.1,
    "writes at places": lambda h, y: h.scatter_reduce(0, Tensor(PLACES), h * 2, "amax"),
}


@pytest.mark.parametrize("step", CHAINS.values(), ids=CHAINS)
def test_the_work_of_a_gradient_grows_as_the_graph_does(step):
    def calls(n: int) -> int:
        """Of functions, those of C too, for a chain below a choice."""
        x, y = Tensor.full((8,), 0.7).realize(), Tensor.full((8,), 0.3).realize()
        h = x
        for _ in range(n):
            h = step(h, y)
        loss, count = (x > 0).where(h, 0).sum(), 0

        def event(frame, what, arg):
            nonlocal count
            count += what in ("call", "c_call")

        sys.setprofile(event)
        try:
            loss.gradient(x)
        finally:
            sys.setprofile(None)
        return count

    calls(10)
    assert calls(160) < 2.2 * calls(80)
