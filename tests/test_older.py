"""Older spellings: they mean what they meant, and change nothing else."""

import gc
import weakref
from typing import ClassVar

import numpy as np
import pytest

from tiny import Tensor, TinyJit, Variable
from tiny.dtype import dtypes
from tiny.helpers import TRAINING
from tiny.older import Function


class Square(Function):
    def forward(self, x):
        self.x = x
        return x * x

    def backward(self, gradient):
        return gradient * 2 * self.x


class Exponential(Function):
    def forward(self, x):
        self.kept = [x.exp()]
        return self.kept[0]

    def backward(self, gradient):
        return gradient * self.kept[0]


class ProductAndSum(Function):
    asked: ClassVar[list] = []

    def forward(self, x, y, scale=1.0):
        self.x, self.y = x, y
        return x * y * scale, x + y

    def backward(self, product, total):
        ProductAndSum.asked.append(list(self.needs_input_grad))
        return product * self.y + total, product * self.x + total


# ---------------------------------------------------------------- Function


def test_a_function_has_the_gradient_written_for_it():
    x = Tensor([1.0, 2, 3])
    y = Square.apply(x)
    (y * y).sum().backward()
    assert y.tolist() == [1, 4, 9]
    np.testing.assert_allclose(x.grad.numpy(), [4, 32, 108])


def test_backward_is_what_counts_not_forward():
    class Through(Function):
        def forward(self, x):
            return (x * 10).round()

        def backward(self, gradient):
            return gradient * 3

    x = Tensor([0.31, 0.47])
    assert Through.apply(x).sum().gradient(x)[0].tolist() == [3, 3]


@pytest.mark.parametrize("kind, power", [(Square, [6, 6]), (Exponential, None)])
def test_gradients_of_gradients_go_through_backward(kind, power):
    x = Tensor([1.0, 2])
    y = kind.apply(x) * x  # x**3, and x exp(x)
    (first,) = y.sum().gradient(x)
    (second,) = first.sum().gradient(x)
    e = np.exp([1.0, 2.0])
    expected = 6 * np.array([1.0, 2.0]) if kind is Square else e * (np.array([1.0, 2.0]) + 2)
    np.testing.assert_allclose(second.numpy(), expected, rtol=1e-6)


def test_a_kept_result_stands_for_the_function():
    x = Tensor([1.0, 2])
    found = Exponential.apply(x).sum()
    for _ in range(3):
        (found,) = found.sum().gradient(x)
    np.testing.assert_allclose(found.numpy(), np.exp([1.0, 2.0]), rtol=1e-6)


def test_several_results_give_their_gradients_together():
    x, y = Tensor([1.0, 2]), Tensor([3.0, 4])
    product, total = ProductAndSum.apply(x, y, scale=1.0)
    wanted = [product.sum() + 2 * total.sum(), product.sum(), total.sum()]
    found = [[t.tolist() for t in w.gradient(x, y)] for w in wanted]
    assert found == [[[5, 6], [3, 4]], [[3, 4], [1, 2]], [[1, 1], [1, 1]]]


def test_what_wants_no_gradient_gets_none():
    x, y = Tensor([1.0, 2]), Tensor([3.0, 4], requires_grad=False)
    product, total = ProductAndSum.apply(x, y)
    (product + total).sum().backward()
    assert ProductAndSum.asked[-1] == [True, False]
    assert x.grad.tolist() == [4, 5]
    assert y.grad is None


def test_numbers_may_be_arguments():
    class Power(Function):
        def forward(self, x, n):
            self.x, self.n = x, n
            return x**n

        def backward(self, gradient):
            return gradient * self.n * self.x ** (self.n - 1)

    x = Tensor([1.0, 2])
    assert Power.apply(x, 3).sum().gradient(x)[0].tolist() == [3, 12]


def test_later_writes_do_not_change_what_is_kept():
    x = Tensor([1.0, 2]).realize()
    w = Tensor([1.0, 1])
    y = (Square.apply(x * w)).sum()
    x += 10
    assert y.gradient(w)[0].tolist() == [2, 8]


def test_functions_are_part_of_captured_steps():
    @TinyJit
    def step(x):
        return Square.apply(x).sum().gradient(x)[0]

    for k in range(4):
        assert step(Tensor([1.0 * k, 2])).tolist() == [2 * k, 4]


@pytest.mark.parametrize("kind", [Square, Exponential])
def test_what_a_function_keeps_is_freed_with_its_result(kind):
    gc.disable()
    try:
        seen = []
        made = kind.__init__

        class Watched(kind):
            def __init__(self, *args):
                made(self, *args)
                seen.append(weakref.ref(self))

        y = Watched.apply(Tensor([1.0, 2]))
        assert seen[0]() is not None
        del y
        assert seen[0]() is None
    finally:
        gc.enable()


def test_errors_of_functions_say_what_is_missing():
    class Empty(Function):
        pass

    class Numbers(Function):
        def forward(self, x):
            return 3

    class Many(Square):
        def backward(self, gradient):
            return gradient, gradient

    class Wrong(Square):
        def backward(self, gradient):
            return gradient.sum()

    class NoBackward(Function):
        def forward(self, x):
            return x * 2

    x = Tensor([1.0, 2])
    with pytest.raises(NotImplementedError, match="forward is not written for Empty"):
        Empty.apply(x)
    with pytest.raises(TypeError, match="at least one Tensor"):
        Square.apply(3)
    with pytest.raises(TypeError, match="gives a Tensor or a tuple of them, got int"):
        Numbers.apply(x)
    with pytest.raises(
        ValueError, match=r"Many\.backward returns a gradient, or None, for each of 1"
    ):
        Many.apply(x).sum().gradient(x)
    with pytest.raises(ValueError, match=r"Wrong.backward: gradient 0 has shape \(\)"):
        Wrong.apply(x).sum().gradient(x)
    with pytest.raises(RuntimeError, match="backward is not written for NoBackward"):
        NoBackward.apply(x).sum().gradient(x)


# ---------------------------------------------------------------- modes


def test_training_is_the_context_variable():
    before = Tensor.training
    try:
        Tensor.training = True
        assert TRAINING.value == 1 and Tensor.training is True
        Tensor.training = False
        assert TRAINING.value == 0
        with Tensor.train():
            assert Tensor.training
            with Tensor.train(False):
                assert not Tensor.training
        assert not Tensor.training

        @Tensor.train()
        def inside():
            return Tensor.training

        assert inside()
    finally:
        Tensor.training = before


def test_no_gradient_goes_through_what_is_computed_without():
    x = Tensor([1.0, 2])
    with Tensor.test():
        assert Tensor.no_grad
        y = (x * 2).exp()
    assert not Tensor.no_grad
    (y + x).sum().backward()
    assert x.grad.tolist() == [1, 1]
    Tensor.no_grad = True
    try:
        z = x * 3 + x.sum()
        np.testing.assert_array_equal(z.numpy(), [6, 9])
        x += 1
        assert x.tolist() == [2, 3]
    finally:
        Tensor.no_grad = False
    assert (x * 3).sum().gradient(x)[0].tolist() == [3, 3]


def test_requires_grad_false_opts_out():
    x, y = Tensor([1.0, 2], requires_grad=True), Tensor([3.0, 4], requires_grad=False)
    (x * y).sum().backward()
    assert x.grad.tolist() == [3, 4] and y.grad is None
    y.requires_grad = True
    (x * y).sum().backward()
    assert y.grad.tolist() == [1, 2]


# ---------------------------------------------------------------- names


def test_methods_by_their_older_names():
    x = Tensor([[1.0, -2]])
    assert x.leakyrelu(0.5).tolist() == x.leaky_relu(0.5).tolist() == [[1, -1]]
    assert Tensor([5]).xor(3).tolist() == [6]
    assert x.pad2d((1, 0, 0, 1), 7.0).tolist() == [[7, 1, -2], [7, 7, 7]]
    assert x.lazydata is x.uop
    assert Tensor.rand(3, contiguous=False).shape == (3,)
    assert Tensor(Variable("n", 1, 5).bind(3)).item() == 3


def test_setting_the_node():
    x = Tensor([1.0, 2])
    x.lazydata = Tensor([3.0, 4]).lazydata
    assert x.tolist() == [3, 4]


def test_constants_that_are_like_no_other():
    a, b = Tensor.unique_const(2.0), Tensor.unique_const(2.0, dtype="float64")
    assert b.dtype is dtypes.float64
    da, db = (a.cast("float64") * b * b).gradient(a, b)
    assert (da.item(), db.item()) == (4, 8)


def test_schedules_are_lists_of_kernels():
    x = (Tensor([1.0, 2]) + 1).sum()
    assert len(x.schedule()) == 1
    items, values = (x * Tensor(Variable("n", 1, 5).bind(3))).schedule_with_vars()
    assert len(items) >= 1 and values == {"n": 3}
    assert x.item() == 5


@pytest.mark.parametrize(
    "call",
    [
        lambda x, **k: x.sum(**k),
        lambda x, **k: x.dot(x, **k),
        lambda x, **k: x.matmul(x, **k),
        lambda x, **k: Tensor.einsum("ij,jk->ik", x, x, **k),
        lambda x, **k: x.reshape(1, 1, 2, 2).conv2d(x.reshape(1, 1, 2, 2), **k),
    ],
)
def test_acc_dtype_is_dtype(call):
    x = Tensor([[1.0, 2], [3, 4]])
    result = call(x, acc_dtype="float64")
    assert result.dtype is call(x, dtype="float64").dtype is dtypes.float64
    assert call(x).dtype is dtypes.float32
    with pytest.raises(TypeError, match="acc_dtype is an older name of dtype"):
        call(x, acc_dtype="float64", dtype="float64")
