"""Kernels written by hand, functions of tensors, and gradients of one's own for both.

And what is about to be computed, as a value: `schedule_linear`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar, overload

from tiny._core.args import CallArg
from tiny.dtype import DType, dtypes, strong_dtype
from tiny.mixin.sizes import split_sizes
from tiny.storage import (
    View,
    in_turn,
    memory_to_write,
    realize_storages,
    storages_of,
    to_compute,
    write_next,
)
from tiny.uop.by_hand import HandKernel, read_kernel
from tiny.uop.ops import GroupOp, Ops, ParamArg, UOp
from tiny.uop.runtime import runtime
from tiny.uop.spec import spec_tensor
from tiny.views import in_order, memory_below, split_view

__all__ = [
    "CallsMixin",
    "Found",
    "GradientRule",
    "Linear",
    "as_nodes",
    "function",
    "run_by_hand",
    "with_gradient",
    "zeros",
]

_F = TypeVar("_F", bound=Callable[..., Any])

# by number of an output: its node, and its gradient. Those that nothing depends on are missing
Found = dict[int, tuple[UOp, UOp]]
# from a node and what was found of its outputs to a gradient, or None, for each source
Backward = Callable[[UOp, Found], Sequence[UOp | None]]


class GradientRule:
    """A gradient written by hand, as a node carries it: it is called with the node and the
    gradients of its outputs, and gives those of its sources."""

    def __init__(self, backward: Backward) -> None:
        self.backward = backward

    def __call__(self, node: UOp, found: Found) -> Sequence[UOp | None]:
        return self.backward(node, found)

    def __repr__(self) -> str:
        return "GradientRule"  # part of keys of graphs, which do not depend on gradients

    def __reduce__(self) -> tuple[Any, ...]:
        return GradientRule, (_no_gradient,)


def _no_gradient(node: UOp, found: Found) -> Sequence[UOp | None]:
    raise RuntimeError("the gradient of this call was not stored with it")


def with_gradient(values: Sequence[UOp], sources: Sequence[UOp], rule: GradientRule) -> list[UOp]:
    """Values of which the gradients come from a rule, and go to `sources`."""
    of = UOp(Ops.TUPLE, dtypes.void, tuple(sources), rule)
    return [UOp(Ops.NOOP, value.dtype, (value, of), k) for k, value in enumerate(values)]


# ---------------------------------------------------------------- what a gradient gives


def as_nodes(what: str, found: Any, sources: Sequence[UOp]) -> list[UOp | None]:
    """The gradients that a user's function returned, one for each source, checked."""
    parts = list(found) if isinstance(found, list | tuple) else [found]
    if len(parts) != len(sources):
        raise ValueError(
            f"{what} returns a gradient, or None, for each of {len(sources)} arguments, "
            f"got {len(parts)}"
        )
    nodes: list[UOp | None] = []
    for k, (part, source) in enumerate(zip(parts, sources, strict=True)):
        node = part.uop if isinstance(part, View) else part
        if node is None or not dtypes.is_float(source.dtype):
            nodes.append(None)
            continue
        if not isinstance(node, UOp):
            raise TypeError(f"{what}: gradient {k} is a Tensor or None, got {type(part).__name__}")
        if node.shape != source.shape:
            raise ValueError(
                f"{what}: gradient {k} has shape {node.shape}, and the argument {source.shape}"
            )
        nodes.append(node.cast(source.dtype))
    return nodes


Form = tuple[tuple[Any, ...], DType]


def _filled(found: Found, forms: Sequence[Form]) -> list[UOp]:
    """The gradients of all outputs, zeros for those that nothing depends on."""
    return [found[k][1] if k in found else zeros(*form) for k, form in enumerate(forms)]


def zeros(shape: tuple[Any, ...], dtype: DType) -> UOp:
    """Zeros of a shape."""
    static, symbolic = split_sizes(shape)
    zero = UOp.const(0, dtype)
    return UOp(Ops.EXPAND, dtype, (zero, *symbolic), static) if shape else zero


# ---------------------------------------------------------------- kernels by hand


class _KernelGradient:
    """Calls a user's grad_fxn for a kernel: with the gradients of what the kernel wrote."""

    def __init__(
        self, grad_fxn: Callable[..., Any], sink: UOp, order: Sequence[int], outputs: int
    ) -> None:
        self.grad_fxn, self.sink, self.order, self.outputs = grad_fxn, sink, order, outputs

    def __call__(self, call: UOp, found: Found) -> Sequence[UOp | None]:
        count = len(self.order)
        arguments = list(call.src[:count])
        for k, (after, _) in found.items():
            arguments[k] = after  # as they are when it has run
        given: list[UOp] = [call] * count
        for k, argument in zip(self.order, arguments, strict=True):
            given[k] = argument
        # as its arguments came: the kernel, then what it runs on
        kernel = UOp(Ops.CALL, dtypes.void, (self.sink, *given))
        filled = _filled(found, [(s.shape, s.dtype) for s in call.src[: self.outputs]])
        if self.outputs == 1:
            parts = self.grad_fxn(filled[0], kernel)
        else:
            parts = self.grad_fxn(*filled, call=kernel)
        nodes = as_nodes("grad_fxn of custom_kernel", parts, given)
        rest: list[UOp | None] = [None] * (len(call.src) - count)
        return [nodes[k] for k in self.order] + rest


class CallsMixin(View):
    """Kernels by hand and calls of functions, as methods of tensors."""

    __slots__ = ()

    def custom_kernel(
        self, *lst: Self, fxn: Callable[..., UOp], grad_fxn: Callable[..., Any] | None = None
    ) -> list[Self]:
        """Run a kernel written by hand on this tensor and others; what they are afterwards.

        `fxn` is given a placeholder for each tensor, a UOp of its shape and dtype, and returns the
        kernel: stores in loops, `C[i].store(A[i] + 1).end(i).sink(arg=KernelInfo(name="inc"))`.
        The tensors that it stores to are written, as by `assign`: what was computed of them before
        keeps its values. An index must be proved to be inside of its memory; one that is computed
        needs a gate, `C.index(j, gate=(j >= 0) & (j < n))`. AccessError says which is not.

        `grad_fxn(gradient, kernel)` gives the gradient for each tensor, or None; of several
        outputs it is called with all their gradients and `call=kernel`. `kernel.src[1:]` are the
        tensors' nodes.

        ValueError or TypeError for a kernel that is none, or tensors on several devices.

        >>> def double(C, A):
        ...     i = UOp.range(A.shape[0], 0)
        ...     return C[i].store(A[i] * 2).end(i).sink()
        >>> Tensor.empty(3).custom_kernel(Tensor([1.0, 2, 3]), fxn=double)[0].tolist()
        [2.0, 4.0, 6.0]
        """
        tensors = _checked("custom_kernel", [self, *lst], grad_fxn)
        if not callable(fxn):
            raise TypeError(f"custom_kernel: fxn is a function, got {type(fxn).__name__}")
        for k, t in enumerate(tensors):
            if not all(isinstance(size, int) for size in t.shape):
                raise ValueError(
                    f"custom_kernel: argument {k} has the symbolic shape {t.shape}; sizes are ints"
                )
        places = list(dict.fromkeys(t.device for t in tensors if t.device is not None))
        if len(places) > 1:
            raise ValueError(
                f"custom_kernel: the tensors are on {' and '.join(places)}; move them to one device"
            )
        strong: list[Any] = [t._strong() for t in tensors]
        params = [UOp.placeholder(t.shape, t.dtype, k) for k, t in enumerate(strong)]
        sink = fxn(*params)
        hand = read_kernel(sink, params)
        for k in hand.arguments[: hand.outputs]:
            if strong[k] is not tensors[k]:
                raise TypeError(
                    f"custom_kernel: argument {k} is a Python number, which has no memory to write "
                    "to; use full or empty"
                )
        rule = None
        if grad_fxn is not None:
            rest = [k for k in range(len(strong)) if k not in hand.arguments]
            order = (*hand.arguments, *rest)
            rule = GradientRule(_KernelGradient(grad_fxn, sink, order, hand.outputs))
        return run_by_hand(strong, hand, rule, places[0] if places else None)

    def call(
        self,
        *lst: Self,
        fxn: Self | UOp,
        grad_fxn: Callable[..., Any] | None = None,
    ) -> Self:
        """A function of this tensor and others, given by its result over params of `as_param`.

        Param k stands for the k-th tensor, whose shape and dtype it must have. The gradient goes
        through the function, or is what `grad_fxn(gradient, call)` gives, one for each tensor.
        ValueError for a param that has no tensor, or one of another shape or dtype; TypeError for
        arguments that are no tensors.

        >>> a, b = Tensor([1.0, 2]), Tensor([3.0, 4])
        >>> a.call(b, fxn=a.as_param(0) * b.as_param(1)).tolist()
        [3.0, 8.0]
        """
        given = _checked("call", [self, *lst], grad_fxn)
        tensors: list[Any] = [t._strong() for t in given]
        body = fxn.uop if isinstance(fxn, View) else fxn
        if not isinstance(body, UOp):
            raise TypeError(
                "call: fxn is a result over params, a Tensor such as x.as_param(0) * 2, got "
                f"{type(fxn).__name__}"
            )
        values = _called([body], [t.uop for t in tensors])
        device = next((t.device for t in tensors if t.device is not None), None)
        if grad_fxn is not None:
            rule = GradientRule(_FunctionGradient(grad_fxn, "grad_fxn of call", values))
            values = with_gradient(values, [t.uop for t in tensors], rule)
        return self._value(values[0], device)

    def as_param(self, slot: int) -> Self:
        """What stands for the `slot`-th tensor of a `call`: of this shape and dtype, no value.

        >>> Tensor([1.0, 2]).as_param(0).shape
        (2,)
        """
        if isinstance(slot, bool) or not isinstance(slot, int) or slot < 0:
            raise ValueError(f"as_param: the slot is an int of at least 0, got {slot!r}")
        if not all(isinstance(size, int) for size in self.shape):
            raise ValueError(f"as_param: sizes are ints, got the symbolic shape {self.shape}")
        node = UOp(Ops.PARAM, strong_dtype(self.dtype), (), ParamArg(slot, self.shape))
        return self._value(node, self.device)

    # ------------------------------------------------------------ what is to be computed

    @property
    def is_param(self) -> bool:
        """Whether this is something to be learnt: True, unless `is_param_(False)` was called."""
        return not hasattr(self, "_is_fixed")

    @is_param.setter
    def is_param(self, value: bool) -> None:
        self.is_param_(value)

    def is_param_(self, is_param: bool = True) -> Self:
        """Say whether this is something to be learnt; nothing here asks for it.

        >>> Tensor([1.0]).is_param_(False).is_param
        False
        """
        if not is_param:
            self._is_fixed = True
        elif hasattr(self, "_is_fixed"):
            del self._is_fixed
        return self

    @in_turn
    def callify(self, *lst: Self) -> Self:
        """Give this tensor and others the memory that they will be computed in; nothing runs yet.

        >>> (Tensor([1.0, 2]) + 1).callify().tolist()
        [2.0, 3.0]
        """
        for storage in storages_of([self, *lst]):
            if storage.node.op is not Ops.CONST and 0 not in storage.node.shape:
                memory_to_write(storage)
        return self

    def schedule_linear(self, *lst: Self) -> Linear:
        """The kernels that computing this tensor and others takes, in order; nothing runs yet.

        `tiny.engine.realize.run_linear` runs it. Reading a tensor before computes it as ever.

        >>> len((Tensor([1.0, 2]) + 1).schedule_linear().src)
        1
        """
        return Linear([self, *lst])

    def linear_with_vars(self, *lst: Self) -> tuple[Linear, dict[str, int]]:
        """`schedule_linear`, and the values that Variables have in it, by name.

        >>> n = Variable("n", 1, 4).bind(3)
        >>> Tensor([1.0, 2, 3, 4])[:n].sum().linear_with_vars()[1]
        {'n': 3}
        """
        linear = Linear([self, *lst])
        return linear, dict(linear.var_vals)

    # ------------------------------------------------------------ operations by their op

    def alu(self, op: Ops, *src: Self) -> Self:
        """An elementwise operation of the graph on tensors of one shape, dtypes as they are.

        TypeError if `op` is none, or takes another number of operands, or other dtypes; ValueError
        if the shapes differ.

        >>> Tensor([1.0, 4]).alu(UOp.const(0.0).exp2().op).tolist()
        [2.0, 16.0]
        """
        count = 0 if op in GroupOp.Unary else 2 if op in GroupOp.Ternary else 1
        if op not in GroupOp.ALU:
            raise TypeError(f"alu: {op!r} is no elementwise operation")
        if len(src) != count:
            raise TypeError(f"alu: {op!r} takes {count + 1} operands, got {len(src) + 1}")
        operands = (self, *src)
        typed = operands[1:] if op is Ops.WHERE else operands
        kinds = dict.fromkeys(t.dtype for t in typed)
        if len(kinds) > 1 or (op is Ops.WHERE and self.dtype is not dtypes.bool):
            raise TypeError(
                f"alu: {op!r} has operands of {', '.join(str(t.dtype) for t in operands)}; "
                "cast them to one dtype"
            )
        node = self.uop.alu(op, *[t.uop for t in src])
        if spec_tensor.judge(node)[0] is not True:
            raise TypeError(f"alu: {op!r} is not defined for {self.dtype}")
        device = next((t.device for t in operands if t.device is not None), None)
        return self._value(node, device)

    def ufix(self, x: Any) -> Self:
        """x as an operand for this tensor: a number as a constant without a dtype of its own.

        >>> Tensor([1.0, 2]).ufix(3).shape
        ()
        """
        mine: Any = self  # Tensor has the protocol of the mixins
        operand: Any = x if isinstance(x, View) else mine._scalar(x)
        return operand

    def usum(self, *uops: Any) -> Self:
        """The sum of this tensor and others, or numbers.

        >>> Tensor([1.0, 2]).usum(Tensor([3.0, 4]), 1).tolist()
        [5.0, 7.0]
        """
        return functools.reduce(lambda a, b: a + b, uops, self)

    def uprod(self, *uops: Any) -> Self:
        """The product of this tensor and others, or numbers.

        >>> Tensor([1.0, 2]).uprod(Tensor([3.0, 4]), 2).tolist()
        [6.0, 16.0]
        """
        return functools.reduce(lambda a, b: a * b, uops, self)


def _checked(what: str, tensors: Sequence[Any], grad_fxn: Any) -> Sequence[Any]:
    """The arguments of a call. TypeError if they are no tensors, or the gradient no function."""
    for k, t in enumerate(tensors):
        if not isinstance(t, View):
            raise TypeError(f"{what}: argument {k} is a Tensor, got {type(t).__name__}")
    _check_grad_fxn(what, grad_fxn)
    return tensors


def _check_grad_fxn(what: str, grad_fxn: Any) -> None:
    if grad_fxn is not None and not callable(grad_fxn):
        raise TypeError(f"{what}: grad_fxn is a function or None, got {type(grad_fxn).__name__}")


def _is_whole(t: View) -> bool:
    """Whether a tensor is all of its storage, in order: what is written to it is written there."""
    uop, root = t._now()
    return uop.dtype is root.dtype and uop.size == root.size and in_order(uop, root)


@in_turn
def run_by_hand(
    tensors: list[Any], hand: HandKernel, rule: GradientRule | None, device: str | None
) -> list[Any]:
    """Make the next versions of what a kernel writes; all tensors as they are then."""
    written = hand.arguments[: hand.outputs]
    if not hand.kernel.src:  # it does nothing, but has a gradient
        if rule is not None:
            rest = [k for k in range(len(tensors)) if k not in written]
            before = [tensors[k].uop for k in (*written, *rest)]
            values = with_gradient(before[: len(written)], before, rule)
            for k, value in zip(written, values, strict=True):
                tensors[k].assign(tensors[k]._value(value, device))
        return [type(t)(t) for t in tensors]
    used = list(tensors)
    for k in written:
        if not _is_whole(used[k]):
            used[k] = used[k].clone()  # written to, and put back
        elif used[k].device is None:
            used[k]._storage.device = device
    storages = [used[k]._storage for k in written]
    if len({id(s) for s in storages}) < len(storages):
        raise ValueError(
            "custom_kernel: two of the tensors that it writes share memory; pass a clone() of one"
        )
    memory = [memory_to_write(storage) for storage in storages]
    overwritten = {buffer for _, buffer in memory}
    rest = [k for k in range(len(tensors)) if k not in hand.arguments]
    sources = [old for old, _ in memory]
    sources += [_in_memory(used[k].uop, overwritten) for k in hand.arguments[hand.outputs :]]
    if rule is not None:
        sources += [used[k].uop for k in rest]
    arg = CallArg(hand.kernel, hand.outputs, len(hand.arguments), rule)
    call = UOp(Ops.CALL, dtypes.void, (*sources, *hand.binds), arg)
    for storage, (old, buffer) in zip(storages, memory, strict=True):
        write_next(storage, old, buffer, call)
    for k in written:
        if used[k] is not tensors[k]:
            tensors[k].assign(used[k])
    return [type(t)(t) for t in tensors]


def _in_memory(uop: UOp, overwritten: set[UOp]) -> UOp:
    """A value as a kernel reads it: whole memory in order, and none that it writes."""
    root = split_view(uop)
    buffer = memory_below(root)
    is_whole = buffer is not None and uop.size == root.size and uop.dtype is root.dtype
    if is_whole and buffer not in overwritten and in_order(uop, root):
        return uop if uop.shape == root.shape else UOp(Ops.RESHAPE, uop.dtype, (root,), uop.shape)
    return UOp(Ops.CONTIGUOUS, uop.dtype, (uop,))


# ---------------------------------------------------------------- functions


class _FunctionGradient:
    """Calls a user's grad_fxn for a function: with the gradients of its results."""

    def __init__(self, grad_fxn: Callable[..., Any], what: str, values: Sequence[UOp]) -> None:
        self.grad_fxn, self.what = grad_fxn, what
        self.forms = [(v.shape, v.dtype) for v in values]

    def __call__(self, call: UOp, found: Found) -> Sequence[UOp | None]:
        filled = _filled(found, self.forms)
        outputs = tuple([found[k][0] for k in sorted(found)])
        # the function, then its arguments
        shown = UOp(Ops.CALL, dtypes.void, (UOp(Ops.TUPLE, dtypes.void, outputs), *call.src))
        if len(filled) == 1:
            parts = self.grad_fxn(filled[0], shown)
        else:
            parts = self.grad_fxn(*filled, call=shown)
        return as_nodes(self.what, parts, call.src)


def _called(bodies: Sequence[UOp], arguments: Sequence[UOp]) -> list[UOp]:
    """The values of a function, its params replaced by arguments."""
    values: dict[UOp, UOp] = {}
    body = UOp(Ops.TUPLE, dtypes.void, tuple(bodies))
    for node in body.postorder():
        if node.op is not Ops.PARAM:
            continue
        slot = node.arg.slot
        if slot >= len(arguments):
            raise ValueError(
                f"call: param {slot} has no tensor, {len(arguments)} are given; pass one more"
            )
        argument = arguments[slot]
        if argument.shape != node.shape or argument.dtype is not node.dtype:
            raise ValueError(
                f"call: param {slot} is of shape {node.shape} and {node.dtype}, the tensor is of "
                f"{argument.shape} and {argument.dtype}"
            )
        values[node] = argument
    return list(body.substitute(values, walk=True).src)


@overload
def function(fxn: _F) -> _F: ...


@overload
def function(
    *,
    precompile: bool = False,
    precompile_backward: bool = False,
    allow_implicit: bool = False,
    grad_fxn: Callable[..., Any] | None = None,
) -> Callable[[_F], _F]: ...


def function(
    fxn: Any = None,
    *,
    precompile: bool = False,
    precompile_backward: bool = False,
    allow_implicit: bool = False,
    grad_fxn: Callable[..., Any] | None = None,
) -> Any:
    """Make a Python function a function of tensors: a decorator.

    Its tensors are those in its arguments (also in lists, tuples, dicts, and attributes of
    objects), each once even if it is given twice; RuntimeError if it reads memory of others, unless
    `allow_implicit`. It gives a tensor, or tensors in tuples, lists or dicts. Gradients go through
    it, or `grad_fxn(gradient, call)` gives one for each of its tensors, or None; of several results
    it is called with all their gradients and `call=call`. With `precompile` its arguments and
    results are put in memory, so that the same kernels compute it wherever it stands; with
    `precompile_backward` also what goes through it backwards.

    >>> from tiny.function import function
    >>> @function
    ... def scaled(x, y):
    ...     return x * y + 1
    >>> scaled(Tensor([1.0, 2]), Tensor([3.0, 4])).tolist()
    [4.0, 9.0]
    """
    _check_grad_fxn("function", grad_fxn)
    if fxn is None:
        return functools.partial(
            function,
            precompile=precompile,
            precompile_backward=precompile_backward,
            allow_implicit=allow_implicit,
            grad_fxn=grad_fxn,
        )
    name = getattr(fxn, "__name__", type(fxn).__name__)

    @functools.wraps(fxn)
    def called(*args: Any, **kwargs: Any) -> Any:
        tensors = _tensors_in((args, kwargs))
        sources = [t.uop for t in tensors]
        # memory that it makes itself gets numbers from here on
        first = 0 if allow_implicit else _next_number()
        result = fxn(*args, **kwargs)
        found = _results_in(name, result)
        values = [t.uop for t in found]
        if not allow_implicit:
            _check_implicit(name, values, sources, first)
        if precompile:
            values = _in_kernels_of_its_own(values, sources)
        if precompile_backward:
            values = [
                UOp(Ops.CONTIGUOUS_BACKWARD, v.dtype, (v,)) if dtypes.is_float(v.dtype) else v
                for v in values
            ]
        if grad_fxn is not None:
            rule = GradientRule(_FunctionGradient(grad_fxn, f"grad_fxn of {name}", values))
            values = with_gradient(values, sources, rule)
        new = {
            id(t): t if value is t.uop else t._value(value, t.device)
            for t, value in zip(found, values, strict=True)
        }
        return _replaced(result, new)

    return called


def _next_number() -> int:
    """A number of memory that is higher than all that there are."""
    return int(runtime().empty((), dtypes.bool, runtime().default_device()).arg.uid)


def _parts(x: Any) -> Iterable[Any]:
    """What is in a list, a tuple, a dict or the attributes of an object."""
    if isinstance(x, dict):
        return x.values()
    if isinstance(x, list | tuple):
        return x
    if isinstance(x, UOp | str | bytes) or (callable(x) and not hasattr(x, "__dict__")):
        return ()
    return vars(x).values() if hasattr(x, "__dict__") and not isinstance(x, type) else ()


def _tensors_in(x: Any) -> list[View]:
    """The tensors in arguments, in order, each once."""
    found: dict[int, View] = {}
    seen: set[int] = set()
    stack = [x]
    while stack:
        item = stack.pop()
        if isinstance(item, View):
            found.setdefault(id(item), item)
        elif id(item) not in seen:
            seen.add(id(item))
            stack += reversed(list(_parts(item)))
    return list(found.values())


def _results_in(name: str, result: Any) -> list[Any]:
    """The tensors in what a function gives. TypeError if it gives something else."""
    found: dict[int, Any] = {}
    stack = [result]
    while stack:
        item = stack.pop()
        if isinstance(item, View):
            found.setdefault(id(item), item)
        elif isinstance(item, dict | list | tuple):
            stack += reversed(list(_parts(item)))
        else:
            raise TypeError(
                f"function {name} gives a Tensor, or tuples, lists or dicts of Tensors, got "
                f"{type(item).__name__}"
            )
    return list(found.values())


def _replaced(x: Any, new: Mapping[int, Any]) -> Any:
    """A result with other tensors in it."""
    if isinstance(x, View):
        return new[id(x)]
    if isinstance(x, dict):
        return type(x)((k, _replaced(v, new)) for k, v in x.items())
    parts = [_replaced(v, new) for v in x]
    return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)


def _check_implicit(name: str, values: Sequence[UOp], sources: Sequence[UOp], first: int) -> None:
    """RuntimeError if values read memory that is none of the arguments', made before the call."""
    buffers = (n for n in UOp.sink(*values).postorder() if n.op is Ops.BUFFER)
    mine = {n for n in UOp.sink(*sources).postorder() if n.op is Ops.BUFFER}
    others = [n for n in buffers if n not in mine and n.arg.uid < first]
    if others:
        what = ", ".join(f"{n.shape} {n.dtype} on {n.arg.device}" for n in others[:4])
        raise RuntimeError(
            f"function {name} reads memory that is none of its arguments: {what}; "
            "pass the tensors, or write @function(allow_implicit=True)"
        )


def _in_kernels_of_its_own(values: Sequence[UOp], sources: Sequence[UOp]) -> list[UOp]:
    """Values computed of sources that are put in memory, and put in memory themselves."""
    stored = {
        s: UOp(Ops.CONTIGUOUS, s.dtype, (s,))
        for s in sources
        if memory_below(split_view(s)) is None and s.op is not Ops.CONST
    }
    apart = UOp.sink(*values).substitute(stored, walk=True).src
    return [v if v in sources else UOp(Ops.CONTIGUOUS, v.dtype, (v,)) for v in apart]


# ---------------------------------------------------------------- what is to be computed


class Linear:
    """The kernels that computing some tensors takes: what `run_linear` runs.

    `src` are its items in order: each has a `kernel`, the `slots` that it runs on, a `device` and
    the `reason` why its result is stored. `var_vals` are the values of its Variables by name.
    """

    @in_turn
    def __init__(self, tensors: Sequence[View]) -> None:
        self._storages = to_compute(tensors)
        nodes = [s.node for s in self._storages]
        self._bound = runtime().plan(nodes)
        self._has_run = False

    @property
    def schedule(self) -> Any:
        """The schedule, plain data."""
        return self._bound.schedule

    @property
    def src(self) -> tuple[Any, ...]:
        """Its kernels and copies in order."""
        return tuple(self._bound.schedule.items)

    @property
    def var_vals(self) -> dict[str, Any]:
        """The values of its Variables by name."""
        return {k: v for k, v in self._bound.values.items() if not k.startswith("~")}

    def __len__(self) -> int:
        return len(self.src)

    @in_turn
    def run(self, var_vals: Mapping[str, Any] | None = None) -> None:
        """Compute the tensors. RuntimeError if it has run: what it reads may be overwritten.

        ValueError for a Variable with another value than it was bound to.
        """
        if self._has_run:
            raise RuntimeError("this list of kernels has run; schedule the tensors again")
        for name, value in (var_vals or {}).items():
            if self.var_vals.get(name, value) != value:
                raise ValueError(
                    f"Variable {name!r} is bound to {self.var_vals[name]} in what is computed, not "
                    f"to {value}; build it with the other one"
                )
        self._has_run = True
        realize_storages([s for s in self._storages if s.node.op is not Ops.BUFFER])
