"""Older spellings that programs still use. None of them changes what new code does.

| older | now |
| --- | --- |
| `Tensor(x, requires_grad=True)`, `t.requires_grad = False` | `backward` fills `grad` of every float tensor; False opts out |
| `Tensor.no_grad = True`, `with Tensor.test():` | `.detach()`; what is computed meanwhile has no gradient |
| `Tensor.training = True`, `with Tensor.train():` | `Context(TRAINING=1)` |
| `class Square(Function)`, `Square.apply(x)` | `@function(grad_fxn=…)`, for kernels `custom_kernel(grad_fxn=…)` |
| `t.schedule()`, `t.schedule_with_vars()` | `t.schedule_linear().src`, `t.linear_with_vars()` |
| `t.lazydata` | `t.uop` |
| `Tensor(Variable("n", 1, 9).bind(3))` | the same |
| `t.leakyrelu()`, `t.xor(x)`, `t.pad2d(p)` | `leaky_relu`, `bitwise_xor`, `pad` |
| `Tensor.rand(2, contiguous=False)` | the same; it only says where the values are computed |
| `Tensor.unique_const(2.0)` | `Tensor(2.0)` |
| `acc_dtype=` of sum, conv2d, dot, matmul, einsum | `dtype=` |
"""  # noqa: E501  # a table

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar

from tiny.dtype import dtypes
from tiny.function import CallsMixin, Found, GradientRule, as_nodes, with_gradient, zeros
from tiny.helpers import TRAINING, Context
from tiny.mixin.einsum import EinsumMixin
from tiny.storage import View
from tiny.uop.ops import Ops, UOp
from tiny.writing import WritingMixin

__all__ = ["Function", "OlderMixin", "TensorType"]


class TensorType(type):
    """The class of `Tensor`: it has `training` and `no_grad`, which are read and set on it."""

    _no_grad = False

    @property
    def training(cls) -> bool:
        """Whether TRAINING is set; setting it sets that variable.

        >>> Tensor.training
        False
        """
        return bool(TRAINING)

    @training.setter
    def training(cls, value: bool) -> None:
        TRAINING.value = int(value)

    @property
    def no_grad(cls) -> bool:
        """Whether no gradient goes through what is computed now."""
        return cls._no_grad

    @no_grad.setter
    def no_grad(cls, value: bool) -> None:
        cls._no_grad = bool(value)
        # so that nothing is asked while it is not set
        if value:
            cls._value = classmethod(_without_gradient)
        elif "_value" in vars(cls):
            del cls._value


def _without_gradient(cls: Any, uop: UOp, device: str | None) -> Any:
    """As `View._value`, of a value through which no gradient goes."""
    if dtypes.is_float(uop.dtype) and uop.op not in (Ops.BUFFER, Ops.AFTER, Ops.CONST):
        uop = UOp(Ops.DETACH, uop.dtype, (uop,))
    return super(cls, cls)._value(uop, device)


_F = TypeVar("_F", bound=Callable[..., Any])


def _with_acc_dtype(method: _F) -> _F:
    """A method that takes `acc_dtype=` for `dtype=`."""

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        if "acc_dtype" in kwargs:
            if kwargs.get("dtype") is not None:
                raise TypeError(f"{method.__name__}: acc_dtype is an older name of dtype; pass one")
            kwargs["dtype"] = kwargs.pop("acc_dtype")
        return method(*args, **kwargs)

    return called  # type: ignore[return-value]  # what `wraps` says it is


class OlderMixin(WritingMixin, CallsMixin):
    """Older spellings of methods; the table in `tiny.older` says what to write now."""

    __slots__ = ()

    Function: ClassVar[type]  # below

    class train(contextlib.ContextDecorator):  # noqa: N801  # the name that programs use
        """`with Tensor.train():` sets TRAINING for a block; with mode False it clears it.

        >>> with Tensor.train():
        ...     Tensor.training
        True
        """

        def __init__(self, mode: bool = True) -> None:
            self._context = Context(TRAINING=int(mode))

        def __enter__(self) -> None:
            self._context.__enter__()

        def __exit__(self, *exc: Any) -> None:
            self._context.__exit__(*exc)

    class test(contextlib.ContextDecorator):  # noqa: N801
        """`with Tensor.test():` sets `Tensor.no_grad` for a block; with mode False it clears it.

        >>> with Tensor.test():
        ...     Tensor.no_grad
        True
        """

        of: ClassVar[Any] = None

        def __init__(self, mode: bool = True) -> None:
            self._mode = mode

        def __enter__(self) -> None:
            self._before = self.of.no_grad
            self.of.no_grad = self._mode

        def __exit__(self, *exc: Any) -> None:
            self.of.no_grad = self._before

    @property
    def lazydata(self) -> UOp:
        """The node of this tensor's value: `uop`.

        >>> x = Tensor([1.0])
        >>> x.lazydata is x.uop
        True
        """
        return self.uop

    @lazydata.setter
    def lazydata(self, new: UOp) -> None:
        self.uop = new

    def schedule(self, *lst: Self) -> list[Any]:
        """The kernels that computing this and others takes: `schedule_linear().src`.

        >>> len((Tensor([1.0, 2]) + 1).schedule())
        1
        """
        return list(self.schedule_linear(*lst).src)

    def schedule_with_vars(self, *lst: Self) -> tuple[list[Any], dict[str, int]]:
        """The kernels, and the values of Variables by name: `linear_with_vars`.

        >>> (Tensor([1.0, 2]) + 1).schedule_with_vars()[1]
        {}
        """
        linear, values = self.linear_with_vars(*lst)
        return list(linear.src), values

    def leakyrelu(self, neg_slope: float = 0.01) -> Self:
        """`leaky_relu`.

        >>> Tensor([-2.0, 3]).leakyrelu(0.5).tolist()
        [-1.0, 3.0]
        """
        return self.leaky_relu(neg_slope)

    def xor(self, x: Any, reverse: bool = False) -> Self:
        """`bitwise_xor`.

        >>> Tensor([1, 2]).xor(3).tolist()
        [2, 1]
        """
        return self.bitwise_xor(x, reverse)

    def pad2d(self, padding: Sequence[int], value: float = 0.0) -> Self:
        """`pad` of the last two dimensions, by (left, right, top, bottom).

        >>> Tensor([[1]]).pad2d((1, 0, 0, 0)).tolist()
        [[0, 1]]
        """
        return self.pad(tuple(padding), value=value)

    @classmethod
    def unique_const(cls, fill_value: float, **kwargs: Any) -> Self:
        """A constant that is like no other, though equal: `Tensor(fill_value, **kwargs)`.

        >>> Tensor.unique_const(2.0).item()
        2.0
        """
        made: Any = cls
        result: Self = made(fill_value, **kwargs)
        return result

    # with `acc_dtype=` for `dtype=`
    sum = _with_acc_dtype(WritingMixin.sum)
    dot = _with_acc_dtype(WritingMixin.dot)
    matmul = _with_acc_dtype(WritingMixin.matmul)
    conv2d = _with_acc_dtype(WritingMixin.conv2d)
    einsum: Any = classmethod(_with_acc_dtype(vars(EinsumMixin)["einsum"].__func__))


# ---------------------------------------------------------------- gradients by hand


class Function:
    """A function of tensors with a gradient written by hand.

    A subclass has `forward(self, *tensors, **options)`, which gives a tensor or a tuple of them,
    and `backward(self, *gradients)`, which gives the gradient for each argument of `forward`, or
    None; the last may be left out. What `backward` needs, `forward` keeps in attributes.
    `needs_input_grad[k]` says whether argument k wants a gradient; where it does not, what
    `backward` gives is not used. `Square.apply(x)` calls it. It is as lazy as other operations, and
    gradients of gradients go through what `backward` computes.

    >>> from tiny.older import Function
    >>> class Square(Function):
    ...     def forward(self, x):
    ...         self.x = x
    ...         return x * x
    ...     def backward(self, gradient):
    ...         return gradient * 2 * self.x
    >>> x = Tensor([1.0, 2])
    >>> Square.apply(x).sum().gradient(x)[0].tolist()
    [2.0, 4.0]
    """

    def __init__(self, device: str | None, *tensors: Any, metadata: Any = None) -> None:
        self.device = device
        self.needs_input_grad = [_wants_gradient(t) for t in tensors]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result for arguments."""
        raise NotImplementedError(f"forward is not written for {type(self).__name__}")

    def backward(self, *args: Any) -> Any:
        """The gradients of the arguments from those of the results."""
        raise RuntimeError(f"backward is not written for {type(self).__name__}")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """The result for arguments, of which some are tensors, with this gradient.

        TypeError if there is none, or if `forward` gives something else.
        """
        tensors = [x for x in args if isinstance(x, View)]
        if not tensors:
            raise TypeError(f"{cls.__name__}.apply takes at least one Tensor")
        device = next((t.device for t in tensors if t.device is not None), None)
        function = cls(device, *args)
        kept = []
        for x in args:
            if isinstance(x, View):
                x = x._snapshot()  # later writes change nothing that forward keeps
                x.requires_grad = False
            kept.append(x)
        result = function.forward(*kept, **kwargs)
        results = result if isinstance(result, tuple) else (result,)
        for r in results:
            if not isinstance(r, View):
                raise TypeError(
                    f"{cls.__name__}.forward gives a Tensor or a tuple of them, got "
                    f"{type(r).__name__}"
                )
        rule = GradientRule(_FunctionRule(function, args, results))
        values = with_gradient([r.uop for r in results], [t.uop for t in tensors], rule)
        made = tuple(
            r._value(value, r.device) if dtypes.is_float(value.dtype) else r
            for r, value in zip(results, values, strict=True)
        )
        return made if isinstance(result, tuple) else made[0]


def _wants_gradient(x: Any) -> bool:
    return isinstance(x, View) and dtypes.is_float(x.dtype) and x.requires_grad is not False


class _FunctionRule:
    """Calls `backward` of a Function."""

    def __init__(self, function: Function, args: Sequence[Any], results: Sequence[Any]) -> None:
        self.function, self.results = function, results
        self.is_tensor = [isinstance(x, View) for x in args]

    def __call__(self, node: UOp, found: Found) -> Sequence[UOp | None]:
        make, function = self.results[0]._value, self.function
        gradients, names = [], {}
        for k, r in enumerate(self.results):
            gradient = found[k][1] if k in found else zeros(r.shape, r.dtype)
            gradients.append(make(gradient, r.device))
            outside = UOp(Ops.NOOP, r.dtype, (r.uop, node), k)
            names[id(r)] = make(outside, r.device)
        # A result that is kept stands for what the user has: its gradient is this one. It is put
        # there only now, since what is reached from itself would never be freed.
        kept = dict(vars(function))
        vars(function).update({name: _exchanged(value, names) for name, value in kept.items()})
        try:
            parts = function.backward(*gradients)
        finally:
            vars(function).update(kept)
        parts = list(parts) if isinstance(parts, tuple | list) else [parts]
        parts += [None] * (len(self.is_tensor) - len(parts))
        wanted = [
            part if needs else None
            for part, needs in zip(parts, function.needs_input_grad, strict=False)
        ]
        of_tensors = [p for p, is_one in zip(wanted, self.is_tensor, strict=True) if is_one]
        if len(parts) > len(self.is_tensor):
            of_tensors += parts[len(self.is_tensor) :]
        return as_nodes(f"{type(function).__name__}.backward", of_tensors, node.src)


def _exchanged(value: Any, names: dict[int, Any]) -> Any:
    """An attribute with other tensors for some."""
    if isinstance(value, View):
        return names.get(id(value), value)
    if type(value) in (list, tuple):
        return type(value)(_exchanged(v, names) for v in value)
    return value


OlderMixin.Function = Function
