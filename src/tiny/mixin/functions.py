"""Exponentials, logarithms, angles, and what is made of them."""

from __future__ import annotations

import math
from typing import Any, Self

from tiny._core.ops import Ops
from tiny.dtype import dtypes, least_upper_dtype, least_upper_float, strong_dtype
from tiny.mixin.elementwise import ElementwiseMixin


class FunctionsMixin(ElementwiseMixin):
    """Functions of floats, each one node. An integer or a bool becomes the default float first.

    How exact they are over the whole range of a dtype stands in docs/accuracy.md.
    """

    __slots__ = ()

    def _function(self, name: str) -> Self:
        """A function of one operand by name."""
        return self._as_float()._math(name)

    def exp(self) -> Self:
        """e ** x.

        >>> Tensor([0.0, 1.0]).exp().tolist()
        [1.0, 2.7182817459106445]
        """
        return self._function("exp")

    def exp2(self) -> Self:
        """2 ** x.

        >>> Tensor([3.0, -1.0]).exp2().tolist()
        [8.0, 0.5]
        """
        return self._unary(Ops.EXP2)

    def log(self) -> Self:
        """The natural logarithm; NaN below zero, -inf of a zero.

        >>> Tensor([1.0, math.e]).log().tolist()
        [0.0, 1.0]
        """
        return self._function("log")

    def log2(self) -> Self:
        """The logarithm to base 2.

        >>> Tensor([8, 0.5]).log2().tolist()
        [3.0, -1.0]
        """
        return self._unary(Ops.LOG2)

    def log10(self) -> Self:
        """The logarithm to base 10.

        >>> Tensor([1000.0, 0.1]).log10().tolist()
        [3.0, -1.0]
        """
        return self._function("log10")

    def logaddexp(self, other: Any) -> Self:
        """log(exp(x) + exp(y)), without overflow; of two equal infinities that infinity.

        >>> Tensor([1000.0, -math.inf]).logaddexp(Tensor([1000.0, -math.inf])).tolist()
        [1000.6931762695312, -inf]
        """
        y = self._operand(other)
        dtype = strong_dtype(least_upper_float(least_upper_dtype(self.dtype, y.dtype)))
        wide = least_upper_dtype(dtype, dtypes.float32)
        a, b = self.cast(dtype).cast(wide), y.cast(dtype).cast(wide)
        apart = a.maximum(b) + (-(a - b).abs()).exp()._math("log1p")
        return a.eq(b).where(a * 0.5 + b * 0.5 + math.log(2), apart).cast(dtype)

    # ------------------------------------------------------------ angles

    def sin(self) -> Self:
        """The sine of an angle in radians, exact to the last place however large it is.

        >>> Tensor([0.0, 1e22]).sin().tolist()
        [0.0, -0.734081506729126]
        """
        return self._unary(Ops.SIN)

    def cos(self) -> Self:
        """The cosine of an angle in radians.

        >>> Tensor([0.0, math.pi]).cos().tolist()
        [1.0, -1.0]
        """
        return self._function("cos")

    def tan(self) -> Self:
        """The tangent of an angle in radians.

        >>> Tensor([0.0, math.pi / 4]).tan().tolist()
        [0.0, 1.0]
        """
        return self._function("tan")

    def asin(self) -> Self:
        """The angle from -pi/2 to pi/2 with that sine; NaN beyond 1.

        >>> Tensor([0.0, 1.0]).asin().tolist()
        [0.0, 1.5707963705062866]
        """
        return self._function("asin")

    def acos(self) -> Self:
        """The angle from 0 to pi with that cosine; NaN beyond 1.

        >>> Tensor([1.0, 0.0]).acos().tolist()
        [0.0, 1.5707963705062866]
        """
        return self._function("acos")

    def atan(self) -> Self:
        """The angle from -pi/2 to pi/2 with that tangent.

        >>> Tensor([1.0, -math.inf]).atan().tolist()
        [0.7853981852531433, -1.5707963705062866]
        """
        return self._function("atan")

    # ------------------------------------------------------------ hyperbolic functions, erf

    def sinh(self) -> Self:
        """The hyperbolic sine.

        >>> Tensor([0.0, 1.0]).sinh().tolist()
        [0.0, 1.175201177597046]
        """
        return self._function("sinh")

    def cosh(self) -> Self:
        """The hyperbolic cosine.

        >>> Tensor([0.0, 1.0]).cosh().tolist()
        [1.0, 1.5430806875228882]
        """
        return self._function("cosh")

    def tanh(self) -> Self:
        """The hyperbolic tangent.

        >>> Tensor([0.0, 1.0, -math.inf]).tanh().tolist()
        [0.0, 0.7615941762924194, -1.0]
        """
        return self._function("tanh")

    def asinh(self) -> Self:
        """The inverse of sinh.

        >>> Tensor([0.0, 1.0]).asinh().tolist()
        [0.0, 0.8813735842704773]
        """
        return self._function("asinh")

    def acosh(self) -> Self:
        """The inverse of cosh, from 0 on; NaN below 1.

        >>> Tensor([1.0, 2.0]).acosh().tolist()
        [0.0, 1.316957950592041]
        """
        return self._function("acosh")

    def atanh(self) -> Self:
        """The inverse of tanh; NaN beyond 1, an infinity at it.

        >>> Tensor([0.5, -1.0]).atanh().tolist()
        [0.5493061542510986, -inf]
        """
        return self._function("atanh")

    def erf(self) -> Self:
        """The error function, 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x.

        >>> Tensor([0.0, 1.0]).erf().tolist()
        [0.0, 0.8427007794380188]
        """
        return self._function("erf")
