"""Cases of gradients, kernels written by hand, calls, and what is about to be computed."""

from __future__ import annotations

import numpy as np

from api.case import EFFECTS, Case, array, integers, torch
from tiny import Tensor, Variable
from tiny.engine.realize import run_linear
from tiny.uop.ops import AxisType, KernelInfo, Ops, UOp

SHAPES = [(), (1,), (5,), (2, 3), (3, 1, 2), (0, 3)]
FLOATS = ("float32", "float64", "float16")


# ---------------------------------------------------------------- gradients


def _backward(x, *rest, f, gradient=None):
    f(x, *rest).backward(*([] if gradient is None else [gradient(x)]))
    return [t.grad for t in (x, *rest)]


def _of_gradient(x, *rest, f):
    return f(x, *rest).gradient(x, *rest)


def _gradients() -> list[Case]:
    cases = []
    for shape in SHAPES:
        given = {"inputs": [array(*shape)], "grad": False}
        cases += [
            Case(
                "backward",
                lambda x: _backward(x, f=lambda x: (x.sin() * x).sum()),
                lambda x: _backward(x, f=lambda x: (x.sin() * x).sum()),
                **given,
            ),
            Case(
                "backward",
                lambda x: _backward(x, f=lambda x: x.exp(), gradient=lambda x: x.detach() + 1),
                lambda x: _backward(x, f=lambda x: x.exp(), gradient=lambda x: x.detach() + 1),
                label="gradient",
                **given,
            ),
            Case(
                "gradient",
                lambda x: _of_gradient(x, f=lambda x: (x * x * x).sum()),
                lambda x: torch.autograd.grad((x * x * x).sum(), [x]),
                **given,
            ),
            Case(
                "gradient",
                lambda x: x.exp().gradient(x, gradient=x.detach() + 1),
                lambda x: torch.autograd.grad(x.exp(), [x], x.detach() + 1),
                label="gradient",
                **given,
            ),
            Case(
                "gradient",
                lambda x: (x.sin() * x).sum().gradient(x)[0].sum().gradient(x),
                lambda x: torch.autograd.grad(
                    torch.autograd.grad((x.sin() * x).sum(), x, create_graph=True)[0].sum(), [x]
                ),
                label="second",
                **given,
            ),
            Case(
                "grad",
                lambda x: (_backward(x, f=lambda x: (x * x).sum()), x.grad)[1],
                lambda x: (_backward(x, f=lambda x: (x * x).sum()), x.grad)[1],
                **given,
            ),
            Case(
                "detach",
                lambda x: x.detach() * x + x.exp().detach(),
                lambda x: x.detach() * x + x.exp().detach(),
                inputs=[array(*shape)],
                dtypes=FLOATS,
            ),
            Case(
                "contiguous_backward",
                lambda x: (x * 2).contiguous_backward() * x,
                lambda x: x * 2 * x,
                inputs=[array(*shape)],
                dtypes=FLOATS,
            ),
        ]
    two = {"inputs": [array(2, 3), array(3, 4)], "grad": False}
    cases += [
        Case(
            "gradient",
            lambda x, y: _of_gradient(x, y, f=lambda x, y: (x @ y).tanh().sum()),
            lambda x, y: torch.autograd.grad((x @ y).tanh().sum(), [x, y]),
            **two,
        ),
        Case(
            "backward",
            lambda x, y: [_backward(x, y, f=lambda x, y: (x @ y).sum()) for _ in range(2)][1],
            lambda x, y: [_backward(x, y, f=lambda x, y: (x @ y).sum()) for _ in range(2)][1],
            label="twice",
            **two,
        ),
        Case("grad", lambda x: x.grad is None, lambda x: x.grad is None, [array(3)], grad=False),
        Case("detach", lambda x: x.detach(), lambda x: x.detach(), [integers(4)], grad=False),
    ]
    return cases


# ---------------------------------------------------------------- kernels and calls


def _product(C, A, B):
    C, A, B = (t.reshape(-1) for t in (C, A, B))
    i = UOp.range(A.shape[0], 0)
    return C[i].store(A[i] * B[i] + A[i]).end(i).sink(arg=KernelInfo("product"))


def _of_product(gradient, kernel):
    _, a, b = kernel.src[1:]
    return None, gradient * (b + 1), gradient * a


def _matmul(C, A, B):
    i, j = UOp.range(C.shape[0], 0), UOp.range(C.shape[1], 1)
    k = UOp.range(A.shape[1], 2, axis_type=AxisType.REDUCE)
    return C[i, j].store((A[i, k] * B[k, j]).reduce(k)).end(i, j).sink()


def _of_matmul(gradient, kernel):
    g, a, b = (Tensor(t) for t in (gradient, *kernel.src[2:]))
    return None, g @ b.T, a.T @ g


def _prefix(C, A):
    i = UOp.range(A.shape[0] - 1, 0)
    C = C[0].set(A[0])
    return C[i + 1].store(C.after(i)[i] + A[i + 1]).end(i).sink()


def _inplace(A):
    i = UOp.range(A.shape[0], 0)
    return A[i].store(A[i] * 2 + 1).end(i).sink()


def _kernels() -> list[Case]:
    cases = [
        Case(
            "custom_kernel",
            lambda x, y: x.empty_like().custom_kernel(x, y, fxn=_product, grad_fxn=_of_product)[0],
            lambda x, y: x * y + x,
            [array(*shape), array(*shape, seed=1)],
            dtypes=FLOATS,
        )
        for shape in [(1,), (5,), (2, 3), (3, 1, 2)]
    ]
    for n, m, k in [(2, 3, 4), (1, 5, 1), (7, 1, 3)]:
        cases.append(
            Case(
                "custom_kernel",
                lambda x, y, n=n, k=k: x.empty(n, k, dtype=x.dtype).custom_kernel(
                    x, y, fxn=_matmul, grad_fxn=_of_matmul
                )[0],
                lambda x, y: x @ y,
                [array(n, m), array(m, k)],
                label="matmul",
            )
        )
    cases += [
        Case(
            "custom_kernel",
            lambda x: x.empty_like().custom_kernel(x, fxn=_prefix)[0],
            lambda x: np.cumsum(x),
            [array(6)],
            dtypes=("float32", "float64", "int32"),
            grad=False,
            peer="numpy",
            label="prefix",
        ),
        Case(
            "custom_kernel",
            lambda x: [x.custom_kernel(fxn=_inplace)[0], x],
            lambda x: [x * 2 + 1, x * 2 + 1],
            [array(6)],
            dtypes=("float32", "int16"),
            grad=False,
            peer="numpy",
            label="in place",
        ),
    ]
    for shape in SHAPES:
        given = {"inputs": [array(*shape), array(*shape, seed=1)], "dtypes": FLOATS}
        cases += [
            Case(
                name,
                lambda x, y: x.call(y, fxn=x.as_param(0) * y.as_param(1) + x.as_param(0).exp()),
                lambda x, y: x * y + x.exp(),
                grad=None if name == "call" else False,
                **given,
            )
            for name in ("call", "as_param")
        ]
        cases.append(
            Case(
                "call",
                lambda x, y: x.call(
                    y,
                    fxn=(x.as_param(0) * y.as_param(1)).detach(),
                    grad_fxn=lambda gradient, call: (
                        gradient * call.src[2],
                        gradient * call.src[1],
                    ),
                ),
                lambda x, y: x * y,
                label="gradient",
                **given,
            )
        )
    return cases


# ---------------------------------------------------------------- what is to be computed


def _scheduled(x):
    y = (x * 2).sum() + 1
    run_linear(y.schedule_linear())
    return y, y.uop.base.op is Ops.BUFFER


def _with_vars(x):
    y = x * Tensor(Variable("n", 1, 9).bind(3)) + 1
    linear, values = y.linear_with_vars()
    run_linear(linear, values)
    return y, values == {"n": 3}


def _plan() -> list[Case]:
    cases = []
    for shape in [(1,), (2, 3), (3, 1, 2)]:
        given = {"inputs": [array(*shape)], "grad": False, "peer": "numpy"}
        cases += [
            Case(
                "schedule_linear",
                _scheduled,
                lambda x: (np.asarray((x * 2).sum() + 1), True),
                **given,
            ),
            Case("linear_with_vars", _with_vars, lambda x: (x * 3 + 1, True), **given),
            Case("callify", lambda x: (x * 2 + 1).callify(), lambda x: x * 2 + 1, **given),
        ]
    one = {"inputs": [array(3)], "grad": False, "peer": "numpy"}
    cases += [
        Case("is_param", lambda x: x.is_param, lambda x: True, **one),
        Case("is_param", lambda x: x.is_param_(False).is_param, lambda x: False, **one),
        Case("is_param_", lambda x: x.is_param_(False).is_param, lambda x: False, **one),
        Case("is_param_", lambda x: x.is_param_().is_param_(False), lambda x: x, **one),
    ]
    return cases


EFFECTS["schedule_linear"] = lambda call: lambda self, *lst: call(self * 3, *lst)
EFFECTS["linear_with_vars"] = lambda call: lambda self, *lst: (call(self, *lst)[0], {})


# ---------------------------------------------------------------- operations by their op


def _operations() -> list[Case]:
    cases = []
    for shape in SHAPES:
        two = [array(*shape), array(*shape, seed=1)]
        ints = [integers(*shape), integers(*shape, seed=1)]
        cases += [
            Case(
                "alu",
                lambda x, y: x.alu(Ops.MUL, y).alu(Ops.ADD, x),
                lambda x, y: x * y + x,
                two,
                dtypes=FLOATS,
            ),
            Case(
                "alu",
                lambda x, y: [x.alu(Ops.CMPLT, y), x.alu(Ops.XOR, y)],
                lambda x, y: [x < y, x ^ y],
                ints,
                grad=False,
                label="int",
            ),
            Case(
                "usum",
                lambda x, y: x.usum(y, 2, x),
                lambda x, y: x + y + 2 + x,
                two,
                dtypes=FLOATS,
            ),
            Case(
                "uprod",
                lambda x, y: x.uprod(y, 3, x),
                lambda x, y: x * y * 3 * x,
                two,
                dtypes=(*FLOATS, "int32"),
            ),
            Case(
                "ufix",
                lambda x, y: [x.ufix(3) * x, x.ufix(y) + x, x.ufix(0.5) + x],
                lambda x, y: [x * 3, y + x, x + 0.5],
                two,
                dtypes=FLOATS,
                grad=False,
            ),
        ]
    return cases


CASES: list[Case] = [*_gradients(), *_kernels(), *_plan(), *_operations()]
