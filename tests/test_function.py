"""Functions of tensors, calls of graphs over params, and what is about to be computed."""

import numpy as np
import pytest

from tiny import Context, Tensor, TinyJit, Variable, function
from tiny.engine.realize import compile_linear, run_linear
from tiny.helpers import GlobalCounters
from tiny.uop.ops import Ops, UOp

WEIGHT = [5.0, 6.0]


@function
def scaled(a, b):
    return a * b + 1


# ---------------------------------------------------------------- function


def test_a_function_gives_what_its_body_gives_and_its_gradients():
    a, b = Tensor([1.0, 2]), Tensor([3.0, 4])
    result = scaled(a, b)
    result.sum().backward()
    assert result.tolist() == [4, 9]
    assert (a.grad.tolist(), b.grad.tolist()) == ([3, 4], [1, 2])


def test_functions_are_called_by_functions():
    @function
    def outer(a):
        return scaled(a, scaled(a, a))

    a = Tensor([1.0, 2])
    result = outer(a)
    result.sum().backward()
    assert result.tolist() == [3, 11]
    assert a.grad.tolist() == [4, 13]  # 3 a**2 + 1


@pytest.mark.parametrize("kind", [tuple, list, dict])
def test_results_may_be_in_tuples_lists_and_dicts(kind):
    @function
    def both(a):
        return {"x": a * 2, "y": a + 1} if kind is dict else kind([a * 2, a + 1])

    result = both(Tensor([1.0]))
    assert type(result) is kind
    values = result.values() if kind is dict else result
    assert [t.item() for t in values] == [2, 2]


def test_tensors_are_found_in_what_arguments_hold():
    class Layer:
        def __init__(self):
            self.parts = {"w": [Tensor([2.0, 3.0])]}

        @function
        def __call__(self, x, bias=None):
            return x * self.parts["w"][0] + bias["b"] + Tensor.zeros(2)

    layer, x = Layer(), Tensor([1.0, 2])
    y = layer(x, bias={"b": Tensor([1.0, 1])})
    y.sum().backward()
    assert y.tolist() == [3, 7]
    assert layer.parts["w"][0].grad.tolist() == [1, 2]


def test_memory_that_is_no_argument_is_refused_unless_allowed():
    weight = Tensor(WEIGHT)

    @function
    def refused(a):
        return a * weight

    with pytest.raises(
        RuntimeError, match=r"function refused reads memory .*\(2,\) dtypes.float32"
    ):
        refused(Tensor([1.0, 2]))

    @function(allow_implicit=True)
    def allowed(a):
        return a * weight

    assert allowed(Tensor([1.0, 2])).tolist() == [5, 12]


@pytest.mark.parametrize("result", [3, None, "x", [1.0]])
def test_what_is_no_tensor_is_refused(result):
    with pytest.raises(TypeError, match="function f gives a Tensor"):

        @function
        def f(a):
            return result

        f(Tensor([1.0]))


def test_a_write_inside_is_done_once():
    @function
    def step(a):
        a.assign(a + 1)
        return a * 2

    a = Tensor([1.0, 2])
    result = step(a)
    assert result.tolist() == [4, 6]
    assert a.tolist() == [2, 3]


def test_a_gradient_of_its_own_is_used():
    @function(grad_fxn=lambda gradient, call: gradient * 100)
    def f(a):
        return a * 2

    @function(grad_fxn=lambda *gradients, call: (gradients[0] * 100 + gradients[1], None))
    def two(a, b):
        return a * 2, a * b

    a = Tensor([1.0, 2])
    assert f(a).sum().gradient(a)[0].tolist() == [100, 100]
    b = Tensor([3.0, 4])
    x, y = two(a, b)
    (x.sum() + y.sum()).backward()
    assert a.grad.tolist() == [101, 101]
    assert b.grad is None
    only_second = two(a, b)[1].sum().gradient(a)[0]
    assert only_second.tolist() == [1, 1]


def test_a_gradient_of_the_wrong_number_is_refused():
    @function(grad_fxn=lambda gradient, call: (gradient, gradient))
    def f(a):
        return a * 2

    a = Tensor([1.0, 2])
    with pytest.raises(
        ValueError, match="grad_fxn of f returns a gradient, or None, for each of 1"
    ):
        f(a).sum().gradient(a)


def test_precompiled_functions_have_kernels_of_their_own():
    def body(a):
        return a.exp() + 1

    def kernels(f):
        x = Tensor([1.0, 2]).realize()
        result = f(x * 2) * 3
        before = GlobalCounters.kernel_count
        values = result.numpy()
        return GlobalCounters.kernel_count - before, values

    apart = function(precompile=True, precompile_backward=True)(body)
    count, values = kernels(apart)
    plain, same = kernels(function(body))
    np.testing.assert_array_equal(values, same)
    assert (count, plain) == (3, 1)
    x = Tensor([1.0, 2])
    np.testing.assert_allclose(
        apart(x * 2).sum().gradient(x)[0].numpy(), 2 * np.exp([2.0, 4.0]), rtol=1e-6
    )


def test_functions_are_part_of_captured_steps():
    @TinyJit
    def step(a, b):
        return scaled(a, b).sum().gradient(a)[0]

    for k in range(4):
        assert step(Tensor([1.0, 2]), Tensor([1.0 * k, 4])).tolist() == [k, 4]


# ---------------------------------------------------------------- call, as_param


def test_a_call_puts_tensors_for_params():
    a, b = Tensor([1.0, 2]), Tensor([3.0, 4])
    body = a.as_param(0) * b.as_param(1) + a.as_param(0)
    x, y = Tensor([5.0, 6]), Tensor([7.0, 8])
    result = x.call(y, fxn=body)
    result.sum().backward()
    assert result.tolist() == [40, 54]
    assert (x.grad.tolist(), y.grad.tolist()) == ([8, 9], [5, 6])


def test_a_call_has_the_gradient_that_it_is_given():
    a, b = Tensor([1.0, 2]), Tensor([3.0, 4])
    body = a.as_param(0) * b.as_param(1)
    result = a.call(b, fxn=body, grad_fxn=lambda gradient, call: (gradient * 5, gradient * 7))
    result.sum().backward()
    assert (a.grad.tolist(), b.grad.tolist()) == ([5, 5], [7, 7])


def test_calls_are_checked():
    a, b = Tensor([1.0, 2]), Tensor([3.0, 4, 5])
    with pytest.raises(ValueError, match="param 1 has no tensor"):
        a.call(fxn=a.as_param(0) * a.as_param(1))
    with pytest.raises(ValueError, match=r"param 0 is of shape \(2,\)"):
        b.call(fxn=a.as_param(0) * 2)
    with pytest.raises(ValueError, match="slot is an int of at least 0"):
        a.as_param(-1)
    with pytest.raises(ValueError, match="as_param: sizes are ints"):
        b[: Variable("n", 1, 3).bind(2)].as_param(0)
    with pytest.raises(TypeError, match="call: argument 1 is a Tensor, got int"):
        a.call(3, fxn=a.as_param(0))
    with pytest.raises(TypeError, match=r"call: fxn is a result over params, .* got function"):
        a.call(fxn=lambda x: x)
    with pytest.raises(TypeError, match="call: grad_fxn is a function or None, got int"):
        a.call(fxn=a.as_param(0), grad_fxn=3)
    with pytest.raises(TypeError, match="function: grad_fxn is a function or None, got int"):
        function(grad_fxn=3)


def test_python_numbers_are_arguments_of_calls():
    x = Tensor(2.0)
    result = x.call(Tensor(3), fxn=Tensor(1.0).as_param(0) * Tensor(1).as_param(1))
    (gradient,) = result.gradient(x)
    assert (result.item(), gradient.item()) == (6, 3)


def test_a_param_without_a_call_can_not_be_computed():
    with pytest.raises(TypeError, match="PARAM"):
        (Tensor([1.0]).as_param(0) + 1).tolist()


# ---------------------------------------------------------------- what is to be computed


def test_a_schedule_runs_when_it_is_told_to():
    x = Tensor([1.0, 2]).realize()
    result = (x + 1).sum() * 2
    before = GlobalCounters.kernel_count
    linear = result.schedule_linear()
    assert GlobalCounters.kernel_count == before
    assert len(linear) == len(linear.src) == 1
    compile_linear(linear)
    run_linear(linear)
    assert GlobalCounters.kernel_count == before + 1
    assert result.uop.op in (Ops.BUFFER, Ops.RESHAPE)
    assert result.item() == 10
    with pytest.raises(RuntimeError, match="has run; schedule the tensors again"):
        run_linear(linear)


def test_what_was_computed_meanwhile_is_not_computed_again():
    x = Tensor([1.0, 2])
    x += 1
    result = x * 2
    linear = result.schedule_linear()
    assert result.tolist() == [4, 6]
    run_linear(linear)
    assert (x.tolist(), result.tolist()) == ([2, 3], [4, 6])


def test_a_schedule_has_the_values_of_its_variables():
    n = Variable("n", 1, 10).bind(3)
    result = Tensor([1.0, 2]) * Tensor(n)
    linear, values = result.linear_with_vars()
    assert values == {"n": 3}
    with pytest.raises(ValueError, match="'n' is bound to 3"):
        run_linear(linear, {"n": 4})
    run_linear(linear, values)
    assert result.tolist() == [3, 6]


def test_nothing_to_compute_is_an_empty_schedule():
    linear = Tensor([1.0, 2]).realize().schedule_linear()
    assert len(linear) == 0
    run_linear(linear)


def test_callify_gives_memory_and_computes_nothing():
    x = Tensor([1.0, 2]).realize()
    result = x + 1
    before = GlobalCounters.kernel_count
    assert result.callify() is result
    assert result.uop.op is Ops.AFTER
    assert GlobalCounters.kernel_count == before
    assert result.tolist() == [2, 3]


# ---------------------------------------------------------------- params, operations by op


def test_tensors_are_params_unless_told_otherwise():
    x = Tensor([1.0])
    assert x.is_param
    assert x.is_param_(False) is x and not x.is_param
    x.is_param = True
    assert x.is_param


def test_alu_is_the_operation_of_the_graph():
    x, y = Tensor([1.0, 2]), Tensor([3.0, 1])
    assert x.alu(Ops.ADD, y).tolist() == [4, 3]
    assert x.alu(Ops.CMPLT, y).tolist() == [True, False]
    assert x.alu(Ops.EXP2).tolist() == [2, 4]
    assert x.alu(Ops.CMPLT, y).alu(Ops.WHERE, x, y).tolist() == [1, 1]


@pytest.mark.parametrize(
    "make, error, what",
    [
        (lambda: Tensor([1, 2]).alu(Ops.EXP2), TypeError, "not defined for dtypes.int32"),
        (lambda: Tensor([1, 2]).alu(Ops.ADD), TypeError, "takes 2 operands, got 1"),
        (
            lambda: Tensor([1, 2]).alu(Ops.ADD, Tensor([1.0, 2])),
            TypeError,
            "cast them to one dtype",
        ),
        (lambda: Tensor([1, 2]).alu(Ops.REDUCE), TypeError, "no elementwise operation"),
        (lambda: Tensor([1, 2]).alu(Ops.ADD, Tensor([1])), ValueError, "shapes of its operands"),
    ],
)
def test_alu_says_what_is_wrong(make, error, what):
    with pytest.raises(error, match=what):
        make()


def test_sums_and_products_of_several():
    x = Tensor([1.0, 2])
    assert x.usum(x, 1).tolist() == [3, 5]
    assert x.uprod(x, 2).tolist() == [2, 8]
    assert x.usum().tolist() == x.uprod().tolist() == [1, 2]
    assert x.ufix(x) is x
    assert (x + x.ufix(2.5)).dtype is x.dtype


def test_the_keys_of_schedules_do_not_depend_on_gradients():
    from tiny.schedule.schedule import cached_schedules

    def run():
        @function(grad_fxn=lambda gradient, call: gradient)
        def f(a):
            return a * 2 + 7

        with Context(DEBUG=0):
            return f(Tensor([1.0, 2]).realize()).tolist()

    run()
    before = cached_schedules()
    run()
    assert cached_schedules() == before
    assert UOp.const(1.0).op is Ops.CONST
