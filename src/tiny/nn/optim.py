"""Optimizers: they move parameters against their gradients, in place."""

from __future__ import annotations

from collections.abc import Iterable

from tiny.dtype import dtypes, least_upper_dtype
from tiny.helpers import TRAINING, dedup
from tiny.tensor import Tensor
from tiny.uop.runtime import is_file


class Optimizer:
    """What all optimizers share.

    `params` are tensors of a float dtype; one that appears twice counts once, those marked
    `requires_grad=False` are left alone, and the others are marked True. `lr` is kept as a tensor
    of shape (1,), so that a schedule can assign to it.
    """

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        self.params = [p for p in dedup(list(params)) if p.requires_grad is not False]
        if not self.params:
            raise ValueError("an optimizer needs at least one tensor to optimize, got none")
        for p in self.params:
            if not p.is_floating_point():
                raise TypeError(
                    f"an optimizer moves float tensors, got one of {p.dtype} and shape {p.shape}; "
                    "mark it requires_grad=False"
                )
            if is_file(p.device):
                raise ValueError(
                    f"an optimizer writes to memory, and a tensor of shape {p.shape} is on "
                    f'{p.device}; move it first, with .to_("CPU") say'
                )
            p.requires_grad = True  # a captured step keeps the gradients of those that say so
        self.device = self.params[0].device
        # not less than float32, so that the numbers of a schedule keep their digits
        self.param_dtype = least_upper_dtype(dtypes.float32, *[p.dtype for p in self.params])
        self.lr = self._number(lr)

    def _number(self, value: float) -> Tensor:
        return Tensor(
            [value], dtype=self.param_dtype, device=self.device, requires_grad=False
        ).contiguous()

    def _state(self) -> list[Tensor]:
        """Zeros like each parameter."""
        return [
            Tensor.zeros(*p.shape, dtype=p.dtype, device=p.device, requires_grad=False).contiguous()
            for p in self.params
        ]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        """Update the parameters and the state of the optimizer, now."""
        Tensor.realize(*self.schedule_step())

    def schedule_step(self) -> list[Tensor]:
        """Write the update into the graph; the tensors to realize are returned.

        RuntimeError outside TRAINING=1, and if no parameter has a gradient. A parameter without
        one stays as it is.
        """
        if not TRAINING:
            raise RuntimeError(
                "an optimizer steps only in training: use `with Tensor.train():` or TRAINING=1"
            )
        used = [i for i, p in enumerate(self.params) if p.grad is not None]
        if not used:
            raise RuntimeError(
                "no parameter has a gradient: call backward() on the loss first, and before the "
                "loss is computed (by realize, item …): no gradient flows through what was computed"
            )
        return self._step(used)

    def _step(self, used: list[int]) -> list[Tensor]:
        """Assign to the parameters numbered `used` and to their state; return all assigned."""
        raise TypeError("Optimizer is a base class: use SGD, Adam or AdamW")

    def _gradient(self, i: int) -> Tensor:
        grad = self.params[i].grad
        assert grad is not None
        return grad.detach()

    def _move(self, i: int, update: Tensor) -> Tensor:
        """Take an update, already times the learning rate, off a parameter."""
        p = self.params[i]
        return p.assign((p.detach() - update).cast(p.dtype))


class SGD(Optimizer):
    """Stochastic gradient descent with momentum (Sutskever et al., 2013), Nesterov's if asked.

    With g the gradient plus `weight_decay` times the parameter: b = momentum b + g, and the
    parameter moves by -lr b (nesterov: -lr (g + momentum b)), as in PyTorch. `classic` scales g
    by the learning rate before it enters b.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        classic: bool = False,
    ) -> None:
        super().__init__(params, lr)
        self.momentum, self.weight_decay = momentum, weight_decay
        self.nesterov, self.classic = nesterov, classic
        self.b = self._state() if momentum else []

    def _step(self, used: list[int]) -> list[Tensor]:
        moved = []
        for i in used:
            g = self._gradient(i)
            if self.weight_decay:
                g = g + self.weight_decay * self.params[i].detach()
            if self.classic:
                g = g * self.lr
            if self.momentum:
                self.b[i].assign((self.momentum * self.b[i] + g).cast(self.b[i].dtype))
                moved.append(self.b[i])
                g = g + self.momentum * self.b[i] if self.nesterov else self.b[i]
            moved.append(self._move(i, g if self.classic else self.lr * g))
        return moved


class _Adam(Optimizer):
    """Adam with decoupled weight decay; see Adam and AdamW."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        b1: float,
        b2: float,
        eps: float,
        weight_decay: float,
    ) -> None:
        super().__init__(params, lr)
        self.b1, self.b2, self.eps, self.wd = b1, b2, eps, weight_decay
        # 1 - b1**t and 1 - b2**t, kept as such: taken off 1, a power of 0.999 loses five digits
        self.c1_t, self.c2_t = self._number(0.0), self._number(0.0)
        self.m, self.v = self._state(), self._state()

    def _step(self, used: list[int]) -> list[Tensor]:
        self.c1_t.assign(self.c1_t * self.b1 + (1.0 - self.b1))
        self.c2_t.assign(self.c2_t * self.b2 + (1.0 - self.b2))
        moved = [self.c1_t, self.c2_t]
        for i in used:
            g, m, v = self._gradient(i), self.m[i], self.v[i]
            m.assign((self.b1 * m + (1.0 - self.b1) * g).cast(m.dtype))
            v.assign((self.b2 * v + (1.0 - self.b2) * (g * g)).cast(v.dtype))
            m_hat, v_hat = m / self.c1_t, v / self.c2_t
            update = m_hat / (v_hat.sqrt() + self.eps)
            if self.wd:
                update = update + self.wd * self.params[i].detach()
            moved += [m, v, self._move(i, self.lr * update)]
        return moved


class Adam(_Adam):
    """Adam (Kingma & Ba, 2015): steps scaled by running first and second moments."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, lr, b1, b2, eps, 0.0)


class AdamW(_Adam):
    """Adam with weight decay apart from the gradient (Loshchilov & Hutter, 2019)."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr, b1, b2, eps, weight_decay)
