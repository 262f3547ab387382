"""Activations: elementwise functions that stand between the layers of a network."""

from __future__ import annotations

import math
from typing import Self

from tiny.mixin.elementwise import in_float32
from tiny.mixin.functions import FunctionsMixin


class ActivationsMixin(FunctionsMixin):
    """Activations. Of float16 and narrower floats they are computed in float32, rounded once.

    An integer becomes the default float, but for those that only choose (relu, clamp and so on).
    """

    __slots__ = ()

    def relu(self) -> Self:
        """max(x, 0), with gradient 0 at 0; NaN stays NaN.

        >>> Tensor([-1.0, 2.0]).relu().tolist()
        [0.0, 2.0]
        """
        return (self <= 0).where(0, self)

    def relu6(self) -> Self:
        """min(max(x, 0), 6), with gradient 0 at both.

        >>> Tensor([-1.0, 2.0, 9.0]).relu6().tolist()
        [0.0, 2.0, 6.0]
        """
        return (self >= 6).where(6, self.relu())

    def leaky_relu(self, neg_slope: float = 0.01) -> Self:
        """x where positive or 0, else neg_slope * x (Maas et al., 2013).

        >>> Tensor([-4.0, 2.0]).leaky_relu(0.25).tolist()
        [-1.0, 2.0]
        """
        return (self < 0).where(neg_slope * self, self)

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x)), without overflow or loss on either side.

        >>> Tensor([0.0, -100.0]).sigmoid().tolist()
        [0.5, 3.783505853677006e-44]
        """
        return self._function("sigmoid")

    def logsigmoid(self) -> Self:
        """log(sigmoid(x)), without overflow.

        >>> Tensor([0.0, -1000.0]).logsigmoid().tolist()
        [-0.6931471824645996, -1000.0]
        """
        return -(-self._as_float()).softplus()

    @in_float32
    def silu(self) -> Self:
        """x * sigmoid(x) (Elfwing et al., 2018).

        >>> Tensor([0.0, 1.0]).silu().tolist()
        [0.0, 0.7310585975646973]
        """
        return self * self.sigmoid()

    def swish(self) -> Self:
        """Another name of silu.

        >>> Tensor([0.0, 1.0]).swish().tolist()
        [0.0, 0.7310585975646973]
        """
        return self.silu()

    @in_float32
    def gelu(self, approximate: str = "tanh") -> Self:
        """x times the normal distribution's share below x (Hendrycks & Gimpel, 2016).

        `approximate` is "none" for that itself, "tanh" for x (1 + tanh(sqrt(2 / pi)
        (x + 0.044715 x**3))) / 2. ValueError for anything else.

        >>> Tensor([1.0, -1.0]).gelu("none").tolist()
        [0.8413447141647339, -0.15865525603294373]
        """
        if approximate == "tanh":
            inner = math.sqrt(8 / math.pi) * self * (1 + 0.044715 * self.square())
            return self * inner.sigmoid()  # (1 + tanh(u)) / 2 = sigmoid(2u)
        if approximate != "none":
            raise ValueError(f'gelu: approximate is "tanh" or "none", got {approximate!r}')
        return 0.5 * self * (self * -math.sqrt(0.5))._math("erfc")

    @in_float32
    def quick_gelu(self) -> Self:
        """x * sigmoid(1.702 x).

        >>> Tensor([0.0, 1.0]).quick_gelu().tolist()
        [0.0, 0.8457958102226257]
        """
        return self * (self * 1.702).sigmoid()

    @in_float32
    def softplus(self, beta: float = 1.0) -> Self:
        """log(1 + exp(beta x)) / beta, without overflow.

        >>> Tensor([0.0, 1000.0]).softplus().tolist()
        [0.6931471824645996, 1000.0]
        """
        bx = self if beta == 1 else self * beta
        result = bx.maximum(0) + (-bx.abs()).exp()._math("log1p")
        return result if beta == 1 else result / beta

    @in_float32
    def mish(self) -> Self:
        """x * tanh(softplus(x)) (Misra, 2019).

        >>> Tensor([0.0, 1.0]).mish().tolist()
        [0.0, 0.8650984168052673]
        """
        return self * self.softplus().tanh()

    def _exp_less_1(self) -> Self:
        """exp(x) - 1 where x is not positive, 0 elsewhere."""
        return (self > 0).where(0, self)._math("expm1")

    @in_float32
    def elu(self, alpha: float = 1.0) -> Self:
        """x where positive, else alpha * (exp(x) - 1) (Clevert et al., 2015).

        >>> Tensor([2.0, -math.inf]).elu(0.5).tolist()
        [2.0, -0.5]
        """
        return (self > 0).where(self, alpha * self._exp_less_1())

    @in_float32
    def celu(self, alpha: float = 1.0) -> Self:
        """x where positive, else alpha * (exp(x / alpha) - 1) (Barron, 2017).

        >>> Tensor([2.0, -math.inf]).celu(0.5).tolist()
        [2.0, -0.5]
        """
        return (self > 0).where(self, alpha * (self / alpha)._exp_less_1())

    @in_float32
    def selu(self, alpha: float = 1.67326, gamma: float = 1.0507) -> Self:
        """gamma x where positive, else gamma alpha (exp(x) - 1) (Klambauer et al., 2017).

        >>> Tensor([1.0, -math.inf]).selu().tolist()
        [1.0506999492645264, -1.7580941915512085]
        """
        return gamma * (self > 0).where(self, alpha * self._exp_less_1())

    def hardtanh(self, min_val: float = -1, max_val: float = 1) -> Self:
        """Between two bounds.

        >>> Tensor([-3.0, 0.5, 3.0]).hardtanh().tolist()
        [-1.0, 0.5, 1.0]
        """
        return self.clamp(min_val, max_val)

    @in_float32
    def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
        """alpha x + beta, between 0 and 1; the gradient at both is 0.

        >>> Tensor([-9.0, 0.0, 9.0]).hardsigmoid().tolist()
        [0.0, 0.5, 1.0]
        """
        x = alpha * self + beta
        return (x >= 1).where(1, x.relu())

    @in_float32
    def hardswish(self) -> Self:
        """x * relu6(x + 3) / 6 (Howard et al., 2019).

        >>> Tensor([-4.0, 0.0, 4.0]).hardswish().tolist()
        [-0.0, 0.0, 4.0]
        """
        return self * ((self + 3).relu6() / 6)

    @in_float32
    def softsign(self) -> Self:
        """x / (1 + |x|).

        >>> Tensor([1.0, -3.0]).softsign().tolist()
        [0.5, -0.75]
        """
        return self / (1 + self.abs())
