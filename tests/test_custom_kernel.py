"""Kernels written by hand: what they mean, where they are refused, in captures and exports."""

import pickle

import numpy as np
import pytest

from tiny import Context, Tensor, TinyJit, Variable
from tiny.codegen import KernelOptError, Opt, OptOps, lower
from tiny.device import Device
from tiny.dtype import AddrSpace, dtypes
from tiny.uop.bounds import AccessError
from tiny.uop.by_hand import read_kernel
from tiny.uop.ops import AxisType, KernelInfo, Ops, UOp
from tiny.uop.spec import SpecError
from tiny.uop.structure import check_kernel
from tiny.uop.written import is_by_hand

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


def named(name, **kwargs):
    return KernelInfo(name, **kwargs)


def matmul(C, A, B):
    i, j = UOp.range(C.shape[0], 0), UOp.range(C.shape[1], 1)
    k = UOp.range(A.shape[1], 2, axis_type=AxisType.REDUCE)
    total = (A[i, k] * B[k, j]).reduce(k, arg=Ops.ADD)
    return C[i, j].store(total).end(i, j).sink(arg=named("matmul"))


def matmul_in_memory(C, A, B):
    i, j = UOp.range(C.shape[0], 0), UOp.range(C.shape[1], 1)
    k = UOp.range(A.shape[1], 2, axis_type=AxisType.REDUCE)
    C = C[i, j].set(0.0)
    C = C[i, j].set(C.after(k)[i, j] + A[i, k] * B[k, j], end=k)
    return C.end(i, j).sink(arg=named("in_memory", opts_to_apply=()))


def matmul_in_register(C, A, B):
    i, j, k = (UOp.range(n, axis) for axis, n in enumerate((*C.shape, A.shape[1])))
    total = UOp.placeholder((1,), C.dtype, 0, addrspace=AddrSpace.REG)
    total = total.after(i, j)[0].set(0.0)
    total = total[0].set(total.after(k)[0] + A[i, k] * B[k, j], end=k)
    return C[i, j].store(total[0]).end(i, j).sink(arg=named("in_register"))


def prefix_sums(C, A):
    i = UOp.range(A.shape[0] - 1, 0)
    C = C[0].set(A[0])
    return C[i + 1].store(C.after(i)[i] + A[i + 1]).end(i).sink(arg=named("prefix"))


def add_at(C, P, V):
    i = UOp.range(P.shape[0], 0)
    inside = (P[i] >= 0) & (P[i] < C.shape[0])
    place = C.index(P[i], gate=inside)
    return place.store(place + V[i]).end(i).sink(arg=named("add_at"))


def softmax(C, A):
    i, j, k, m = (UOp.range(n, axis) for axis, n in enumerate((*A.shape, A.shape[1], A.shape[1])))
    largest = A[i, k].reduce(k, arg=Ops.MAX)
    total = (A[i, m] - largest).alu(Ops.EXP2).reduce(m)
    return C[i, j].store((A[i, j] - largest).alu(Ops.EXP2) / total).end(i, j).sink()


def increment(A):
    i = UOp.range(A.shape[0], 0)
    return A[i].store(A[i] + 1).end(i).sink(arg=named("increment"))


def product(C, A, B):
    i = UOp.range(C.shape[0], 0)
    return C[i].store(A[i] * B[i]).end(i).sink(arg=named("product"))


def two_results(C, D, A):
    i = UOp.range(C.shape[0], 0)
    both = UOp.group(C[i].store(A[i] + 1), D[i].store(A[i] * 2))
    return both.end(i).sink(arg=named("two"))


def on(device, *arrays):
    return [Tensor(a, device=device) for a in arrays]


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("kernel", [matmul, matmul_in_memory, matmul_in_register])
def test_a_product_of_matrices_by_hand(kernel, device):
    c, a, b = on(device, np.zeros((2, 4), np.float32), A, B)
    result, same, _ = c.custom_kernel(a, b, fxn=kernel)
    np.testing.assert_allclose(result.numpy(), A @ B)
    np.testing.assert_array_equal(same.numpy(), A)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_steps_of_a_loop_see_those_before(device):
    c, a = on(device, np.zeros(6, np.float32), A.ravel())
    np.testing.assert_array_equal(
        c.custom_kernel(a, fxn=prefix_sums)[0].numpy(), np.cumsum(A.ravel())
    )


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_writes_to_computed_places_add_up(device):
    places = np.array([1, 3, 1, 7, -1], np.int32)
    c, i, v = on(device, np.ones(5, np.float32), places, np.arange(1, 6, dtype=np.float32))
    assert c.custom_kernel(i, v, fxn=add_at)[0].tolist() == [1, 5, 1, 3, 1]


def test_several_reductions_in_a_row():
    result = Tensor.empty(2, 3).custom_kernel(Tensor(A), fxn=softmax)[0].numpy()
    np.testing.assert_allclose(result, 2.0**A / (2.0**A).sum(1, keepdims=True), rtol=1e-6)


def test_a_kernel_takes_values_and_views():
    a, b = Tensor(A), Tensor(B)
    result = Tensor.empty(3, 2).custom_kernel((b + 1).T[:3, :3].T.T, a.T + 0, fxn=lambda C, X, Y: (
        C[i := UOp.range(3, 0), j := UOp.range(2, 1)].store(X[i, j] + Y[i, j]).end(i, j).sink()
    ))[0]  # fmt: skip
    np.testing.assert_array_equal(result.numpy(), (B + 1).T[:3, :2] + A.T)


def test_movement_over_a_placeholder_is_part_of_its_index():
    def reversed_columns(C, A):
        flat = UOp(Ops.RESHAPE, C.dtype, (C,), (6,))
        turned = UOp(Ops.PERMUTE, A.dtype, (A,), (1, 0))
        i, j = UOp.range(3, 0), UOp.range(2, 1)
        return flat[i * 2 + j].store(turned[2 - i, j]).end(i, j).sink()

    result = Tensor.empty(2, 3).custom_kernel(Tensor(A), fxn=reversed_columns)[0]
    np.testing.assert_array_equal(result.numpy().ravel(), A.T[::-1].ravel())


def test_two_results_of_one_kernel():
    a, c, d = Tensor([1.0, 2, 3]), Tensor.empty(3), Tensor.empty(3)
    c.custom_kernel(d, a, fxn=two_results)
    assert d.tolist() == [2, 4, 6]
    assert c.tolist() == [2, 3, 4]


def test_loops_may_be_ended_twice_and_run_in_the_order_of_after():
    def twice(C, A):
        i = UOp.range(3, 0)
        C = C.after(C[i].store(A[i]).end(i))
        return C[2 - i].store(C[2 - i] + A[i] * 10).end(i).sink()

    assert Tensor.empty(3).custom_kernel(Tensor([1.0, 2, 3]), fxn=twice)[0].tolist() == [31, 22, 13]


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.int8, dtypes.bool])
@pytest.mark.parametrize("kernel", ["scheduled", "as written"])
def test_every_dtype_is_stored(dtype, kernel):
    def copy(C, A):
        i = UOp.range(4, 0)
        if kernel == "as written":
            C = C[i].set(A[0])
            return C[i].store(A[i]).end(i).sink()
        return C[i].store(A[i]).end(i).sink()

    a = Tensor([0, 1, 1, 0]).cast(dtype)
    result = Tensor.empty(4, dtype=dtype).custom_kernel(a, fxn=copy)[0]
    assert result.dtype is dtype
    assert result.tolist() == a.tolist()


def test_a_variable_bounds_a_loop():
    n = Variable("n", 1, 3)

    def part(C, A, count):
        i = UOp.range(n.bind(count), 0)
        return C[i].store(A[i] + 1).end(i).sink(arg=named("part"))

    for count in (2, 3):
        c = Tensor.zeros(3)
        c.custom_kernel(Tensor([1.0, 2, 3]), fxn=lambda C, A, m=count: part(C, A, m))
        assert c.tolist() == [2.0, 3.0, 4.0][:count] + [0.0] * (3 - count)


def test_nothing_is_stored_to_empty_tensors():
    x = Tensor.empty(0)
    result, same, _ = x.custom_kernel(Tensor.empty(0), Tensor.empty(0), fxn=product)
    assert result.tolist() == same.tolist() == []


def test_empty_loops_do_nothing():
    def total(C, A):
        i, k = UOp.range(2, 0), UOp.range(0, 1)
        return C[i].store(A[i, k].reduce(k) + 3).end(i).sink()

    assert Tensor.empty(2).custom_kernel(Tensor.empty(2, 0), fxn=total)[0].tolist() == [3, 3]


# ---------------------------------------------------------------- form


def placeholders(*shapes):
    return [UOp.placeholder(s, dtypes.float32, k) for k, s in enumerate(shapes)]


def test_plain_stores_are_kernels_as_the_scheduler_makes_them():
    params = placeholders((64, 64), (64, 64), (64, 64))
    kernel = read_kernel(matmul(*params), params).kernel
    assert not is_by_hand(kernel)
    check_kernel(kernel)
    program = lower(kernel, Device["CPU"].target)
    assert program.applied_opts  # heuristics choose for it


def test_opts_that_are_asked_for_are_applied():
    def kernel(C, A):
        i = UOp.range(64, 0)
        info = named("asked", opts_to_apply=(Opt(OptOps.VEC, 0, 8),))
        return C[i].store(A[i] * 2).end(i).sink(arg=info)

    params = placeholders((64,), (64,))
    read = read_kernel(kernel(*params), params).kernel
    assert lower(read, Device["CPU"].target).applied_opts == (Opt(OptOps.VEC, 0, 8),)


def test_names_become_those_of_functions():
    def kernel(C, A):
        C = C.after(C[0].store(0.0))
        return C[1].store(A[0]).sink(arg=named(f"set {A.shape}é"))

    params = placeholders((3,), (3,))
    assert read_kernel(kernel(*params), params).kernel.arg.name == "set_3_"


def test_what_depends_on_order_runs_as_written():
    params = placeholders((6,), (6,))
    kernel = read_kernel(prefix_sums(*params), params).kernel
    assert is_by_hand(kernel)
    program = lower(kernel, Device["CPU"].target)
    assert program.applied_opts == () and len(program.phases) == 1
    assert program.flops == 5
    with pytest.raises(KernelOptError, match="runs as it is written by hand"):
        lower(kernel, Device["CPU"].target, [Opt(OptOps.VEC, 0, 2)])


def test_many_loops_one_after_the_other_take_linear_time():
    def chain(C, n):
        for _ in range(n):
            i = UOp.range(3, 0)
            C = C.after(C[i].store(C[i] + 1).end(i))
        return C.sink()

    for n in (20, 400):
        result = Tensor([0.0, 0, 0]).custom_kernel(fxn=lambda C, n=n: chain(C, n))[0]
        assert result.tolist() == [n] * 3


@pytest.mark.parametrize("change", ["ended twice", "number", "value", "loose", "slots"])
def test_a_kernel_as_written_is_checked(change):
    params = placeholders((6,), (6,))
    kernel = read_kernel(prefix_sums(*params), params).kernel
    group = kernel.src[0]
    loop = next(n for n in kernel.postorder() if n.op is Ops.RANGE)
    other = UOp.range(9, loop.arg.axis)
    memory = UOp.placeholder((6,), dtypes.float32, 4)
    effects = {
        "ended twice": (*group.src, memory[loop].store(1.0).end(loop)),
        "number": (
            *group.src,
            UOp.placeholder((6,), dtypes.float32, 0)[other].store(1.0).end(other),
        ),
        "value": (*group.src, memory[0]),
        "loose": (*group.src, memory[loop].store(1.0)),
        "slots": (*group.src, memory[0].store(1.0)),
    }[change]
    with pytest.raises(SpecError):
        check_kernel(kernel.replace(src=(group.replace(src=effects),)))


# ---------------------------------------------------------------- versions


def test_what_was_computed_before_keeps_its_values():
    x = Tensor([1.0, 2, 3])
    before = x * 10
    result = x.custom_kernel(fxn=increment)[0]
    after = x * 10
    assert result.tolist() == x.tolist() == [2, 3, 4]
    assert before.tolist() == [10, 20, 30]
    assert after.tolist() == [20, 30, 40]


def test_a_value_that_is_pending_is_written_too():
    x = Tensor([1.0, 2, 3]) * 2
    y = x + 0
    x.custom_kernel(fxn=increment)
    assert x.tolist() == [3, 5, 7]
    assert y.tolist() == [2, 4, 6]


def test_a_view_is_written_through():
    x = Tensor.zeros(3, 4)
    x[1].custom_kernel(fxn=increment)
    x[:, 2].custom_kernel(fxn=increment)
    expected = np.zeros((3, 4))
    expected[1] += 1
    expected[:, 2] += 1
    np.testing.assert_array_equal(x.numpy(), expected)


def test_reading_what_is_written_reads_the_version_before():
    def shift(C, A):
        i = UOp.range(C.shape[0] - 1, 0)
        return C[i].store(A[i + 1]).end(i).sink(arg=named("shift"))

    x = Tensor([1.0, 2, 3, 4])
    assert x.custom_kernel(x, fxn=shift)[0].tolist() == [2, 3, 4, 4]
    a, b = Tensor([1.0, 2]), Tensor([3.0, 4])

    def swap(A, B):
        i = UOp.range(2, 0)
        return UOp.group(A[i].store(B[i]), B[i].store(A[i])).end(i).sink(arg=named("swap"))

    a.custom_kernel(b, fxn=swap)
    assert (a.tolist(), b.tolist()) == ([3, 4], [1, 2])


def test_chains_of_writes_run_in_order():
    x = Tensor([0.0, 0])
    seen = []
    for k in range(5):
        x.custom_kernel(fxn=increment)
        seen.append(x * 1)
        if k == 2:
            x += 10
    assert x.tolist() == [15, 15]
    assert [s.tolist()[0] for s in seen] == [1, 2, 3, 14, 15]


def test_one_of_two_results_alone_is_right():
    a, c, d = Tensor([1.0, 2]), Tensor.empty(2), Tensor.empty(2)
    c.custom_kernel(d, a, fxn=two_results)
    del c
    assert d.tolist() == [2, 4]


# ---------------------------------------------------------------- captures, exports


def test_a_captured_step_runs_the_kernel():
    @TinyJit
    def step(a, b):
        return Tensor.empty(3).custom_kernel(a + 1, b, fxn=product)[0] * 2

    for k in range(4):
        assert step(Tensor([1.0 * k, 2, 3]), Tensor([1.0, 2, 3])).tolist() == [2 * k + 2, 12, 24]


def test_state_is_written_by_each_replay():
    state = Tensor([0.0, 0]).realize()

    @TinyJit
    def step(a):
        state.custom_kernel(fxn=increment)
        return state + a

    for k in range(4):
        assert step(Tensor([10.0 * k, 0])).tolist() == [10 * k + k + 1, k + 1]
        assert state.tolist() == [k + 1, k + 1]


def test_an_argument_is_written_by_each_replay():
    @TinyJit
    def step(a):
        a.custom_kernel(fxn=increment)
        return a * 2

    for k in range(4):
        a = Tensor([1.0 * k, 2]).realize()
        assert step(a).tolist() == [2 * k + 2, 6]
        assert a.tolist() == [k + 1, 3]


@pytest.mark.parametrize("kernel", [prefix_sums, lambda C, A: product(C, A, A)])
def test_exported_steps_hold_the_kernel(kernel):
    @TinyJit
    def step(a):
        return Tensor.empty(3).custom_kernel(a + 1, fxn=kernel)[0] + a

    for k in range(3):
        expected = step(Tensor([1.0 * k, 2, 3])).tolist()
    loaded = pickle.loads(pickle.dumps(step))
    assert loaded(Tensor([2.0, 2, 3])).tolist() == expected


# ---------------------------------------------------------------- gradients


def times(gradient, kernel):
    _, a, b = kernel.src[1:]
    return None, gradient * b, gradient * a


def test_a_gradient_by_hand_flows_to_the_arguments():
    x, y = Tensor([1.0, 2, 3]), Tensor([4.0, 5, 6])
    c = Tensor.empty(3).custom_kernel(x, y, fxn=product, grad_fxn=times)[0]
    (c * c).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [32, 100, 216])
    np.testing.assert_allclose(y.grad.numpy(), [8, 40, 108])


def test_a_gradient_by_hand_has_a_gradient():
    x, y = Tensor([1.0, 2, 3]), Tensor([4.0, 5, 6])
    c = Tensor.empty(3).custom_kernel(x * 2, y, fxn=product, grad_fxn=times)[0]
    (first,) = (c * c).sum().gradient(y)  # 8 x**2 y
    (second,) = first.sum().gradient(x)
    np.testing.assert_allclose(second.numpy(), 16 * x.numpy() * y.numpy())


def test_gradients_of_several_results_come_together():
    calls = []

    def both(*gradients, call):
        calls.append(call.op)
        return None, None, gradients[0] + 2 * gradients[1]

    x = Tensor([1.0, 2, 3])
    c, d, _ = Tensor.empty(3).custom_kernel(Tensor.empty(3), x, fxn=two_results, grad_fxn=both)
    wanted = [c.sum() + (d * 3).sum(), c.sum(), d.sum()]
    found = [w.gradient(x)[0] for w in wanted]
    assert [f.tolist() for f in found] == [[7] * 3, [1] * 3, [2] * 3]
    assert calls == [Ops.CALL] * 3


def test_a_gradient_may_be_a_kernel_by_hand_in_a_captured_step():
    def backward(gradient, kernel):
        _, a, b = kernel.src[1:]
        one = Tensor.empty(3).custom_kernel(Tensor(gradient), Tensor(b), fxn=product)[0]
        other = Tensor.empty(3).custom_kernel(Tensor(gradient), Tensor(a), fxn=product)[0]
        return None, one, other

    @TinyJit
    def step(x, y):
        c = Tensor.empty(3).custom_kernel(x, y, fxn=product, grad_fxn=backward)[0]
        return (c * c).sum().gradient(x, y)

    for k in range(4):
        x, y = np.array([1, 2, k], np.float32), np.array([4, 5, 6], np.float32)
        dx, dy = step(Tensor(x), Tensor(y))
        np.testing.assert_allclose(dx.numpy(), 2 * x * y * y)
        np.testing.assert_allclose(dy.numpy(), 2 * x * x * y)


def test_a_kernel_without_a_gradient_says_so():
    x = Tensor([1.0, 2, 3])
    c = Tensor.empty(3).custom_kernel(x, x + 1, fxn=product)[0]
    with pytest.raises(RuntimeError, match="no gradient is known for kernel product"):
        c.sum().gradient(x)


@pytest.mark.parametrize(
    "found, error, what",
    [
        (lambda g: (None, g), ValueError, "each of 3 arguments, got 2"),
        (lambda g: (None, g, 3), TypeError, "gradient 2 is a Tensor or None, got int"),
        (lambda g: (None, UOp.const(1.0), g), ValueError, "gradient 1 has shape"),
    ],
)
def test_what_a_gradient_function_gives_is_checked(found, error, what):
    x = Tensor([1.0, 2, 3])
    c = Tensor.empty(3).custom_kernel(x, x, fxn=product, grad_fxn=lambda g, _: found(g))[0]
    with pytest.raises(error, match=what):
        c.sum().gradient(x)


# ---------------------------------------------------------------- errors


def loop(n=3):
    return UOp.range(n, 0)


def inner():
    return UOp.range(loop(2) + 1, 1)


WRONG = {
    "no sink": (lambda C, A: C, TypeError, "fxn returns the stores of the kernel"),
    "no end": (lambda C, A: C[loop()].store(1.0).sink(), ValueError, "loop 0 is not ended"),
    "outside": (
        lambda C, A: C[loop(4)].store(1.0).end(loop(4)).sink(),
        AccessError,
        "access to PARAM 0 of shape \\(3,\\) can not be proved to be inside: index 0 is r0",
    ),
    "read outside": (
        lambda C, A: C[loop()].store(A[loop() + 1]).end(loop()).sink(),
        AccessError,
        "access to PARAM 1 of shape \\(3,\\)",
    ),
    "computed": (
        lambda C, A: C[A[0].cast(dtypes.int32)].store(1.0).sink(),
        AccessError,
        "can not be proved to be inside",
    ),
    "whole": (lambda C, A: C.store(A).sink(), ValueError, "index every dimension"),
    "no store": (lambda C, A: A[0].sink(), ValueError, "computes a value and has no effect"),
    "nothing": (lambda C, A: UOp.sink(), ValueError, "stores to none of its buffers"),
    "dtype": (
        lambda C, A: C[0].store(UOp.const(1, dtypes.int32)).sink(),
        TypeError,
        "int32 can not be written to memory of dtypes.float32",
    ),
    "float index": (lambda C, A: C[A[0]].store(1.0).sink(), ValueError, "an index is an integer"),
    "rank": (lambda C, A: C[0, 1].store(1.0).sink(), ValueError, "takes 1 indices"),
    "stranger": (
        lambda C, A: UOp.placeholder((3,), dtypes.float32, 5)[0].store(1.0).sink(),
        ValueError,
        "uses buffer 5",
    ),
    "tensor": (
        lambda C, A: C[0].store(Tensor([1.0]).realize().uop.index(0)).sink(),
        ValueError,
        "none of its arguments; pass the tensor",
    ),
    "slice": (lambda C, A: C[0:2].store(1.0).sink(), TypeError, "named by ints and UOps"),
    "inner size": (
        lambda C, A: C[inner()].store(1.0).end(inner(), loop(2)).sink(),
        ValueError,
        "size of loop 1 depends on another loop",
    ),
    "after a value": (
        lambda C, A: C[0].store((A[0] + 1).after(C[1].store(1.0))).sink(),
        ValueError,
        "only memory is read after an effect",
    ),
    "opts": (
        lambda C, A: C.after(C[0].store(1.0))[0].store(2.0).sink(
            arg=named("o", opts_to_apply=(Opt(OptOps.VEC, 0, 2),))
        ),
        ValueError,
        "no Opts apply to it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_kernels_that_are_none_are_refused_when_they_are_written(name):
    fxn, error, what = WRONG[name]
    with pytest.raises(error, match=what):
        Tensor.empty(3).custom_kernel(Tensor([1.0, 2, 3]), fxn=fxn)


def test_arguments_are_checked():
    x = Tensor([1.0, 2, 3])
    with pytest.raises(ValueError, match="share memory"):
        x.custom_kernel(x, Tensor([1.0, 2, 3]), fxn=two_results)
    with pytest.raises(TypeError, match="argument 0 is a Python number"):
        Tensor(2.0).custom_kernel(fxn=lambda C: C.index().store(1.0).sink())
    with pytest.raises(TypeError, match="argument 1 is a Tensor, got int"):
        x.custom_kernel(3, fxn=product)
    with pytest.raises(TypeError, match="fxn is a function, got UOp"):
        x.custom_kernel(fxn=UOp.sink())
    with pytest.raises(TypeError, match="grad_fxn is a function or None, got int"):
        x.custom_kernel(fxn=increment, grad_fxn=3)
    with pytest.raises(ValueError, match="on CPU and PYTHON; move them"):
        x.to("CPU").custom_kernel(Tensor([1.0, 2, 3], device="PYTHON"), fxn=product)
    n = Variable("n", 1, 3).bind(2)
    with pytest.raises(ValueError, match="argument 1 has the symbolic shape"):
        x.custom_kernel(x[:n], fxn=product)


def test_the_same_kernel_is_compiled_once():
    from tiny.helpers import GlobalCounters

    with Context(DEBUG=0):
        before = GlobalCounters.kernel_count
        for _ in range(3):
            Tensor.empty(3).custom_kernel(Tensor([1.0, 2, 3]), Tensor([1.0, 2, 3]), fxn=product)[
                0
            ].realize()
        assert GlobalCounters.kernel_count - before == 3


# ---------------------------------------------------------------- random programs


def scale_into(C, A):
    """C[i] = 2 A[i] + C[i], as a kernel that the scheduler could have made."""
    i = UOp.range(C.shape[0], 0)
    return C[i].store(A[i] * 2 + C[i]).end(i).sink(arg=named("scale_into"))


def running(C):
    """C[i + 1] += C[i] in order, so that it runs as it is written."""
    i = UOp.range(C.shape[0] - 1, 0)
    before = C.after(i)
    return C[i + 1].store(before[i] + before[i + 1]).end(i).sink(arg=named("running"))


@pytest.mark.parametrize("seed", range(12))
def test_programs_give_what_they_give_step_by_step(seed):
    """Kernels by hand among operations, writes and views: as NumPy does them, whenever computed."""
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-3, 4, 6).astype(np.float32) for _ in range(3)]
    tensors = [Tensor(a.copy()) for a in arrays]
    values, expected = [], []
    for _ in range(14):
        a, b = (int(k) for k in rng.choice(3, 2, replace=False))
        match int(rng.integers(7)):
            case 0:
                tensors[a].custom_kernel(tensors[b], fxn=scale_into)
                arrays[a] += 2 * arrays[b]
            case 1:
                tensors[a].custom_kernel(fxn=running)
                arrays[a] = np.cumsum(arrays[a], dtype=np.float32)
            case 2:
                tensors[a][1:4].custom_kernel(tensors[b][2:5], fxn=scale_into)
                arrays[a][1:4] += 2 * arrays[b][2:5]
            case 3:
                tensors[a].custom_kernel(tensors[a].flip(0), fxn=scale_into)
                arrays[a] = arrays[a] + 2 * arrays[a][::-1]
            case 4:
                values.append(tensors[a] * 2 - tensors[b])
                expected.append(arrays[a] * 2 - arrays[b])
            case 5:
                tensors[a].assign(tensors[b] * 0.5)
                arrays[a] = arrays[b] * np.float32(0.5)
            case 6:
                if rng.integers(2):
                    tensors[a].realize()
                tensors[a][2] = tensors[b][0]
                arrays[a][2] = arrays[b][0]
    for k in rng.permutation(len(values)):
        np.testing.assert_allclose(values[k].numpy(), expected[k], rtol=1e-5)
    for k in rng.permutation(3):
        np.testing.assert_allclose(tensors[k].numpy(), arrays[k], rtol=1e-5)


def test_loads_and_gates_may_be_written_out():
    def kernel(C, A):
        i = UOp.range(4, 0)
        inside = i < 3
        value = A.index(i).load(inside) + UOp.const(1.0, dtypes.float32)
        return C.index(i, gate=inside).store(value).end(i).sink()

    def by_store(C, A):
        i = UOp.range(4, 0, AxisType.LOOP)
        return C.index(i).store(A.index(i, gate=i < 3).load() * 2, i < 3).end(i).sink()

    x = Tensor([1.0, 2, 3])
    assert Tensor.empty(3).custom_kernel(x, fxn=kernel)[0].tolist() == [2, 3, 4]
    assert Tensor.empty(3).custom_kernel(x, fxn=by_store)[0].tolist() == [2, 4, 6]


def test_elementwise_methods_are_there_for_elements():
    def kernel(C, A):
        i, j = UOp.range(2, 0), UOp.range(3, 1)
        a = A.permute(1, 0).flatten()[i * 3 + j]
        return C[i][j].store(a.sigmoid() + a.maximum(0).sqrt() - a**2).end(i, j).sink()

    a = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    result = Tensor.empty(2, 3).custom_kernel(Tensor(a), fxn=kernel)[0].numpy()
    b = a.T
    expected = 1 / (1 + np.exp(-b)) + np.sqrt(np.maximum(b, 0)) - b**2
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "value, dtype, wanted",
    [
        (lambda i, k: UOp.const(2).cast(dtypes.float32), "float32", [2, 2, 2]),
        (lambda i, k: UOp.const(2**40).cast(dtypes.int64), "int64", [2**40] * 3),
        (lambda i, k: (i < 1).where(UOp.const(2), UOp.const(3)), "float16", [2, 3, 3]),
        (lambda i, k: (i < 1).where(UOp.const(2), UOp.const(1.5)), "float32", [2, 1.5, 1.5]),
        (lambda i, k: ((i < 1).where(2, 3) < 3).cast(dtypes.int32), "int32", [1, 0, 0]),
        (lambda i, k: UOp.const(2) * UOp.const(3) + UOp.const(1.5), "float64", [7.5] * 3),
        (lambda i, k: UOp.const(3.0).exp2(), "float32", [8, 8, 8]),
        (lambda i, k: UOp.const(2).reduce(k), "float32", [8, 8, 8]),
        (lambda i, k: UOp.const(1.5).reduce(k, arg=Ops.MAX), "float32", [1.5] * 3),
    ],
)
def test_numbers_without_a_dtype_take_one(value, dtype, wanted):
    def fill(C):
        i, k = UOp.range(3, 0), UOp.range(4, 1)
        return C[i].store(value(i, k)).end(i).sink()

    (c,) = Tensor.zeros(3, dtype=dtype).contiguous().custom_kernel(fxn=fill)
    assert c.tolist() == wanted


def test_a_choice_brings_its_branches_to_one_dtype():
    def choose(C, A, B):
        i = UOp.range(3, 0)
        return C[i].store((i < 1).where(A[i], B[i])).end(i).sink()

    a, b = Tensor([1, 2, 3], dtype="int8"), Tensor([0.5, 1.5, 2.5])
    assert Tensor.empty(3).custom_kernel(a, b, fxn=choose)[0].tolist() == [1, 1.5, 2.5]


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_what_is_in_a_loop_that_is_ended_twice_is_there_twice(device):
    def sums(C, D, A):
        i, k = UOp.range(2, 0), UOp.range(3, 1)
        total = A[i, k].reduce(k)  # a loop in each of the two loops over i
        first = C[i].store(total).end(i)
        return D.after(first)[i].store(C.after(first)[i] + total).end(i).sink()

    def counts(C):
        i, j = UOp.range(2, 0), UOp.range(3, 1)
        once = C[0].store(C.after(i, j)[0] + 1).end(j)
        return UOp.sink(once.end(i), C.after(once.end(i))[1].store(1), UOp.group(once).end(i, j))

    c, d, a = on(device, np.zeros(2, np.float32), np.zeros(2, np.float32), A)
    c, d, _ = c.custom_kernel(d, a, fxn=sums)
    assert c.tolist() == [3, 12] and d.tolist() == [6, 24]
    (t,) = on(device, np.zeros(2, np.float32))
    assert t.custom_kernel(fxn=counts)[0].tolist() == [12, 1]


@pytest.mark.parametrize("ordered", [False, True])
def test_what_is_not_read_once_simplified_is_no_argument(ordered):
    def choose(C, A, B, D):
        i = UOp.range(3, 0)
        end = C[i].store((i < 9).where(B[i], A[i]) + D[i]).end(i)
        return C.after(end)[0].store(0).sink() if ordered else end.sink()

    x, y, z = Tensor([1.0, 2, 3]), Tensor([4.0, 5, 6]), Tensor([10.0, 20, 30])

    def backward(gradient, kernel):
        assert len(kernel.src) == 5
        return None, None, gradient * 2, gradient * 3

    c = Tensor.empty(3).custom_kernel(x, y, z, fxn=choose, grad_fxn=backward)[0]
    dy, dz = c.sum().gradient(y, z)
    assert c.tolist() == [0 if ordered else 14, 25, 36]
    assert dy.tolist() == [2] * 3 and dz.tolist() == [3] * 3


def test_memory_of_its_own_is_read_after_a_store():
    def early(C):
        own = UOp.placeholder((1,), C.dtype, 0, addrspace=AddrSpace.REG)
        return UOp.sink(own[0].store(1.0), C[0].store(own[0]))

    with pytest.raises(ValueError, match=r"memory of its own, of shape \(1,\), is read where"):
        Tensor.empty(3).custom_kernel(fxn=early)


@pytest.mark.parametrize("rows", [0, 2])
def test_kernels_that_do_nothing_have_gradients(rows):
    def scale(C, A, W):
        i, j = UOp.range(C.shape[0], 0), UOp.range(3, 1)
        return C[i, j].store(A[i, j] * W[j]).end(i, j).sink()

    def of_scale(gradient, kernel):
        _, a, w = (Tensor(node) for node in kernel.src[1:])
        return None, Tensor(gradient) * w, (Tensor(gradient) * a).sum(0)

    def add_up(C, A):
        i = UOp.range(A.shape[0], 0)
        return C[0].store(C.after(i)[0] + A[i]).end(i).sink()

    x, w = Tensor(np.ones((rows, 3), np.float32)), Tensor([1.0, 2, 3])
    (c, *_) = Tensor.empty(rows, 3).custom_kernel(x, w, fxn=scale, grad_fxn=of_scale)
    dx, dw = (c * c).sum().gradient(x, w)
    assert dx.shape == (rows, 3) and dw.tolist() == [2 * rows * k for k in (1, 2, 3)]
    start = Tensor([5.0])
    total, x = start * 2, Tensor(np.ones(rows, np.float32))
    total.custom_kernel(x, fxn=add_up, grad_fxn=lambda g, k: (g, Tensor(g).expand(rows)))
    dx, ds = (total * total).sum().gradient(x, start)
    assert dx.tolist() == [2 * (10 + rows)] * rows and ds.tolist() == [4 * (10 + rows)]
    assert total.tolist() == [10 + rows]


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_what_other_loops_write_may_be_read(device):
    def both(C, D):
        i, j = UOp.range(2, 0), UOp.range(3, 1)
        return UOp.sink(C[0].store(C[0] * 1), D[i, j].store(C[0]).end(i, j))

    c, d = on(device, np.array([4], np.float32), np.zeros((2, 3), np.float32))
    c, d = c.custom_kernel(d, fxn=both)
    assert c.tolist() == [4] and d.tolist() == [[4] * 3] * 2
