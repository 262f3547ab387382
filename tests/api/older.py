"""Cases of the older spellings."""

from __future__ import annotations

import numpy as np

from api.case import EFFECTS, ELSEWHERE, Case, array, integers, torch
from tiny import Tensor, Variable
from tiny.older import Function, TensorType
from tiny.uop.ops import Ops

SHAPES = [(), (1,), (5,), (2, 3), (3, 1, 2), (0, 3)]
FLOATS = ("float32", "float64", "float16")


class Smooth(Function):
    """x * y * y, and its square."""

    def forward(self, x, y):
        self.x, self.y = x, y
        return x * y * y, (x * y * y).square()

    def backward(self, first, second):
        total = first + second * 2 * self.x * self.y * self.y
        return total * self.y * self.y, total * 2 * self.x * self.y


# ---------------------------------------------------------------- modes


def _training(x):
    with Tensor.train():
        inside = Tensor.training
        with Tensor.train(False):
            between = Tensor.training
    return [inside, between, Tensor.training]


def _without(x):
    with Tensor.test():
        y = x * 2
    z = (x + y).sum()
    z.backward()
    return y, x.grad


def _no_grad(x):
    Tensor.no_grad = True
    try:
        inside, y = Tensor.no_grad, x * 2
    finally:
        Tensor.no_grad = False
    (x + y).sum().backward()
    return [inside, y, x.grad]


def _set_training(x):
    Tensor.training = True
    inside = Tensor.training
    Tensor.training = False
    return [inside, Tensor.training]


def _opts_out(x):
    y = Tensor([1.0, 2.0], requires_grad=False)
    (x.sum() * y).sum().backward()
    return [y.requires_grad, y.grad is None, x.grad]


ELSEWHERE["no_grad"] = lambda: (TensorType, "no_grad")
ELSEWHERE["training"] = lambda: (TensorType, "training")
ELSEWHERE["Function"] = lambda: (Function, "apply")
EFFECTS["train"] = lambda call: lambda self, mode=True: call(self, not mode)
EFFECTS["test"] = lambda call: lambda self, mode=True: call(self, not mode)
EFFECTS["schedule"] = lambda call: lambda self, *lst: call(self, *lst) * 2
EFFECTS["schedule_with_vars"] = lambda call: lambda self, *lst: (call(self, *lst)[0], {})
EFFECTS["lazydata"] = lambda call: lambda self: call(self).alu(Ops.ADD, call(self))


def _modes() -> list[Case]:
    cases = []
    for shape in [(1,), (2, 3)]:
        given = {"inputs": [array(*shape)], "grad": False, "peer": "numpy"}
        cases += [
            Case("train", _training, lambda x: [True, False, False], **given),
            Case("test", _without, lambda x: [x * 2, np.ones_like(x)], **given),
            Case("no_grad", _no_grad, lambda x: [True, x * 2, np.ones_like(x)], **given),
            Case("training", _set_training, lambda x: [True, False], **given),
            Case(
                "requires_grad",
                _opts_out,
                lambda x: [False, True, np.full_like(x, 3)],
                **given,
            ),
        ]
    return cases


# ---------------------------------------------------------------- names


def _names() -> list[Case]:
    cases = []
    for shape in SHAPES:
        one, two = [array(*shape)], [array(*shape), array(*shape, seed=1)]
        ints = [integers(*shape, high=200), integers(*shape, high=200, seed=1)]
        cases += [
            Case(
                "Function",
                lambda x, y: Smooth.apply(x, y),
                lambda x, y: (x * y * y, (x * y * y).square()),
                two,
            ),
            Case(
                "leakyrelu",
                lambda x: [x.leakyrelu(), x.leakyrelu(0.3)],
                lambda x: [
                    torch.nn.functional.leaky_relu(x, 0.01),
                    torch.nn.functional.leaky_relu(x, 0.3),
                ],
                one,
                dtypes=FLOATS,
            ),
            Case(
                "xor",
                lambda x, y: [x.xor(y), x.xor(3), x.xor(3, reverse=True)],
                lambda x, y: [x ^ y, x ^ 3, 3 ^ x],
                ints,
                grad=False,
                peer="numpy",
                exact=True,
            ),
            Case(
                "lazydata",
                lambda x: Tensor(x.lazydata),
                lambda x: x,
                one,
                grad=False,
                peer="numpy",
            ),
            Case(
                "schedule",
                lambda x: [len((x * 2 + 1).schedule()), x * 2 + 1],
                lambda x: [int(x.size > 0), np.asarray(x * 2 + 1)],
                one,
                grad=False,
                peer="numpy",
            ),
            Case(
                "schedule_with_vars",
                lambda x: (
                    (x * Tensor(Variable("n", 1, 9).bind(4))).schedule_with_vars()[1] == {"n": 4}
                ),
                lambda x: True,
                one if 0 not in shape else [array(2)],
                grad=False,
                peer="numpy",
            ),
        ]
    for shape in [(2, 3), (1, 2, 1), (2, 1, 3, 2)]:
        cases.append(
            Case(
                "pad2d",
                lambda x: [x.pad2d((1, 2, 0, 1)), x.pad2d((0, 1, 2, 0), value=3.0)],
                lambda x: [
                    torch.nn.functional.pad(x, (1, 2, 0, 1)),
                    torch.nn.functional.pad(x, (0, 1, 2, 0), value=3.0),
                ],
                [array(*shape)],
                dtypes=FLOATS,
            )
        )
    cases += [
        Case(
            "unique_const",
            lambda v=value, d=dtype: Tensor.unique_const(v, dtype=d),
            lambda v=value, d=dtype: np.array(v, d),
            grad=False,
            peer="numpy",
        )
        for value, dtype in [(2.5, "float32"), (3, "int32"), (True, "bool"), (-1.5, "float64")]
    ]
    return cases


CASES: list[Case] = [*_modes(), *_names()]
