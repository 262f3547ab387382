"""Signatures: what calls of a captured function are told apart by.

Two calls of equal signature would run the same kernels, so they share a capture. What is in a
signature is a flat list of *parts*, in an order that the structure of the arguments fixes.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import dis
import enum
import inspect
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tiny._core.settings import watch
from tiny._core.signature import CallReader, Parts, Surroundings, register
from tiny.dtype import DType, dtypes
from tiny.helpers import (
    DEFAULT_FLOAT,
    DEFAULT_INT,
    DEV,
    NO_MEMORY_PLANNER,
    NOOPT,
    STRICT_REDUCE,
    TC,
    TC_OPT,
    TC_SELECT,
    TRAINING,
)
from tiny.tensor import Tensor
from tiny.uop.ops import Ops, UOp, VarArg
from tiny.uop.runtime import JitError

__all__ = [
    "MOST_LAYOUTS",
    "PLAIN",
    "Call",
    "Layout",
    "Reader",
    "difference",
    "is_dead",
    "is_input",
    "is_number",
    "leaves",
    "map_arguments",
    "map_leaves",
    "number_variable",
    "own_code",
]

MOST_LAYOUTS = 64  # ways of giving arguments that are remembered of a function

# what the function may do otherwise without being given anything else
_SETTINGS = (
    TRAINING,
    DEFAULT_FLOAT,
    DEFAULT_INT,
    DEV,
    NOOPT,
    STRICT_REDUCE,
    TC,
    TC_OPT,
    TC_SELECT,
    NO_MEMORY_PLANNER,
)
watch(_SETTINGS)

_EXACT = frozenset({bool, int, str, bytes, type(None), type(...)})  # equal means the same
_LOOK_UPS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
PLAIN = (bool, int, float, complex, str, bytes, enum.Enum, np.generic, DType, type(None))


# ---------------------------------------------------------------- structures


def is_number(tensor: Tensor) -> bool:
    """Whether a tensor is a Python number, without a dtype of its own."""
    return tensor.uop.op is Ops.CONST and tensor.dtype in dtypes.weaks


def is_input(tensor: Tensor) -> bool:
    """Whether a Python number can be an input: it fits into a variable."""
    value = tensor.uop.arg
    return isinstance(value, float) or bool(dtypes.int64.min <= value <= dtypes.int64.max)


def is_dataclass(x: Any) -> bool:
    """Whether x is an object of a dataclass."""
    return hasattr(type(x), "__dataclass_fields__")


def map_leaves(x: Any, change: Callable[[Any], Any]) -> Any:
    """A structure of lists, tuples, dicts and dataclasses with its leaves changed."""
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*[map_leaves(item, change) for item in x])
    if isinstance(x, list | tuple):
        return type(x)(map_leaves(item, change) for item in x)
    if isinstance(x, dict):
        new = copy.copy(x)
        for name, item in x.items():
            new[name] = map_leaves(item, change)
        return new
    if is_dataclass(x):
        new = copy.copy(x)
        for field in dataclasses.fields(x):
            # frozen ones too: nobody has seen this copy
            object.__setattr__(new, field.name, map_leaves(getattr(x, field.name), change))
        return new
    return change(x)


def _children(x: Any) -> list[tuple[str, Any]] | None:
    """What a container holds, each with the step that leads to it; None if x is a leaf."""
    if isinstance(x, dict):
        return [(f"[{name!r}]", item) for name, item in x.items()]
    if isinstance(x, list | tuple):
        names = getattr(x, "_fields", None)
        return [(f".{names[k]}" if names else f"[{k}]", item) for k, item in enumerate(x)]
    if is_dataclass(x):
        return [(f".{f.name}", getattr(x, f.name)) for f in dataclasses.fields(x)]
    return None


def leaves(x: Any, path: str = "") -> list[tuple[str, Any]]:
    """The leaves of a structure, each with what leads to it: `[0]['a'].b`."""
    inner = _children(x)
    if inner is None:
        return [(path, x)]
    return [leaf for step, item in inner for leaf in leaves(item, path + step)]


class Call(NamedTuple):
    """A call as signatures see it.

    `tensors` are those that are inputs, in order, of which the `donated` are given away; `numbers`
    the other inputs by name: the values of Variables, and of tensors that are Python numbers.
    """

    parts: list[Any]
    tensors: list[Tensor]
    numbers: dict[str, float]
    donated: list[int]


def number_name(k: int) -> str:
    """The name of the variable that stands for the k-th tensor without a dtype of its own."""
    return f"tensor_number_{k}"


def number_variable(k: int, value: float) -> UOp:
    """A bound variable that stands for the k-th tensor without a dtype of its own."""
    dtype = dtypes.float64 if isinstance(value, float) else dtypes.int64
    low, high = (-np.inf, np.inf) if isinstance(value, float) else (dtype.min, dtype.max)
    variable = UOp(Ops.DEFINE_VAR, dtype, (), VarArg(number_name(k), low, high))
    return UOp(Ops.BIND, dtype, (variable, UOp.const(value, dtype)))


def _weak_number(x: Tensor, weak: int) -> tuple[Any, str | None, float] | None:
    """A tensor that is a Python number: its part, and as which input its value is given.

    None if it is no such tensor; no name if its value is no input.
    """
    if not is_number(x):
        return None
    if not is_input(x):
        return (Tensor, x.uop.arg), None, 0
    return (Tensor, x.dtype), number_name(weak), x.uop.arg


def _expression(x: UOp, numbers: dict[str, float]) -> UOp:
    """An expression of Variables, whose values are inputs, without these."""
    bare, values = x.unbind_all()
    for variable, value in values.items():
        before = numbers.setdefault(variable.arg.name, value)
        if before != value:
            raise ValueError(
                f"TinyJit: the variable {variable.arg.name!r} is given as {before} and as "
                f"{value}; bind it once"
            )
    return bare


def plain(x: Any, path: str = "") -> Any:
    """A value as a part of a signature: 1, 1.0 and True are not the same, and NaN is NaN."""
    kind = type(x)
    if isinstance(x, float):
        return kind, float.hex(x)
    if isinstance(x, complex):
        return kind, float.hex(x.real), float.hex(x.imag)
    if isinstance(x, np.generic):
        return kind, x.dtype, x.tobytes()
    if isinstance(x, set | frozenset | list | tuple):
        return kind, tuple([plain(item, path) for item in x])
    if isinstance(x, slice):
        return kind, plain(x.start, path), plain(x.stop, path), plain(x.step, path)
    its_hash: Any = kind.__hash__
    if its_hash is object.__hash__:  # the same object; it may die
        try:
            return kind, weakref.ref(x)
        except TypeError:
            return kind, x
    try:
        hash(x)
    except TypeError:
        raise JitError(
            f"the argument {path or 'of the call'} is a {kind.__name__}: what is in it would be "
            "frozen; pass tensors, as in Tensor(array), or lists, tuples, dicts or dataclasses of "
            "tensors and numbers"
        ) from None
    return kind, x


# ---------------------------------------------------------------- what the code names


class _Surroundings(Surroundings):
    """The plain values and the tensors that a function's own code names.

    They are in closure cells and globals.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        function = own_code(function)
        code = getattr(function, "__code__", None)
        cells = getattr(function, "__closure__", None) or ()
        super().__init__(
            list(zip(code.co_freevars, cells, strict=True)) if code else [],
            sorted(_global_names(code)) if code else [],
            getattr(function, "__globals__", {}),
        )

    def tensors(self) -> list[tuple[str, Tensor]]:
        """The tensors there are now, by name, those in containers and in attributes too."""
        named = [(name, self.globals.get(name)) for name in self.names]
        for name, cell in self.cells:
            with contextlib.suppress(ValueError):  # not filled yet
                named.append((name, cell.cell_contents))
        found = []
        for name, value in named:
            # of an object what a state dict would hold: its attributes, one level deep
            inner = (
                getattr(value, "__dict__", {})
                if not isinstance(value, type | types.ModuleType)
                else {}
            )
            for start, item in [(name, value), *[(f"{name}.{k}", v) for k, v in inner.items()]]:
                found += [pair for pair in leaves(item, start) if isinstance(pair[1], Tensor)]
        return found


def own_code(function: Callable[..., Any]) -> Any:
    """The function whose code a callable runs."""
    found: Any = function
    while not hasattr(found, "__code__"):
        if hasattr(found, "func"):  # functools.partial
            found = found.func
        elif hasattr(found, "__func__"):
            found = found.__func__
        else:
            found = type(found).__call__
            if not hasattr(found, "__code__"):
                break
    return found


def _is_plain_tuple(x: Any) -> bool:
    return type(x) is tuple and all(isinstance(v, PLAIN) or _is_plain_tuple(v) for v in x)


register(
    Tensor,
    _weak_number,
    _expression,
    plain,
    PLAIN,
    _is_plain_tuple,
    lambda x: [(field.name, getattr(x, field.name)) for field in dataclasses.fields(x)],
)


def _global_names(code: types.CodeType) -> set[str]:
    """The names that a function and those written inside it look up outside of themselves."""
    found = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in _LOOK_UPS  # attributes are names of code too
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _global_names(constant)
    return found


# ---------------------------------------------------------------- calls


def map_arguments(
    layout: Layout, args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with their leaves changed, in the order in which they are read."""
    positional, named = list(args), dict(kwargs)
    for _, source in layout:
        if isinstance(source, int):
            positional[source] = map_leaves(args[source], change)
        elif isinstance(source, str):
            named[source] = map_leaves(kwargs[source], change)
    return tuple(positional), named


class _Default(NamedTuple):
    """A parameter that a call does not name; `part` is what its value would be in a signature."""

    part: Any


# of each parameter in the order of the signature: its name, and the position or the name of what
# is given for it, or its default
Layout = list[tuple[str, int | str | _Default]]


class Reader(CallReader):
    """Reads calls of one function.

    `skip` positional parameters are bound already. `donate` are names or numbers (after those) of
    parameters that are given away; TypeError if there is no such parameter.
    """

    def __init__(
        self, function: Callable[..., Any], skip: int = 0, donate: Sequence[str | int] = ()
    ) -> None:
        self._function, self._skip = function, skip
        self.donate = _names_of(function, skip, donate) if donate else frozenset()
        self.surroundings = _Surroundings(function)
        self.layouts: dict[tuple[int, tuple[str, ...]], Layout] = {}

    def read(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], paths: list[str] | None = None
    ) -> Call:
        """What a call is told apart by; `paths` gets where each part comes from.

        JitError names an argument that can not be told apart from others.
        """
        try:
            return self._read(args, kwargs, paths)
        except JitError:
            if paths is None:
                self._read(args, kwargs, [])  # which says where it is
            raise

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any], paths: list[str] | None) -> Call:
        found = self.take_apart(args, kwargs, self.layout(args, kwargs), paths)
        return Call(found.parts, found.tensors, found.numbers, found.donated)

    def donated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The tensors of a call that are given away."""
        if not self.donate:
            return []
        return [
            x
            for name, source in self.layout(args, kwargs)
            if _base_name(name) in self.donate and isinstance(source, int | str)
            for _, x in leaves(args[source] if isinstance(source, int) else kwargs[source])
            if isinstance(x, Tensor) and not is_number(x)
        ]

    def named_tensors(self) -> list[tuple[str, Tensor]]:
        """The tensors that the function's own code leads to, as far as names go."""
        return self.surroundings.tensors()

    def layout(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layout:
        """How arguments of that many positions and these names meet the parameters."""
        shape = len(args), tuple(kwargs)
        found = self.layouts.get(shape)
        if found is None:
            if len(self.layouts) >= MOST_LAYOUTS:
                self.layouts.clear()
            found = self.layouts[shape] = self._new_layout(*shape)
        return found

    def _new_layout(self, count: int, names: tuple[str, ...]) -> Layout:
        as_given: Layout = [(str(k), k) for k in range(count)]
        as_given.append(_named(names))
        as_given += [(name, name) for name in names]
        try:
            signature = inspect.signature(self._function)
            places = [*range(-self._skip, 0), *range(count)]
            bound = signature.bind(*places, **{name: name for name in names})
        except (TypeError, ValueError):  # there is none, or calling it will tell what is wrong
            return as_given
        found: Layout = []
        for parameter in signature.parameters.values():
            name, kind = parameter.name, parameter.kind
            given: Any = bound.arguments.get(name, parameter)
            if kind is parameter.VAR_POSITIONAL:
                given = () if given is parameter else given
                found.append(_named(tuple([f"{name}[{k}]" for k in range(len(given))])))
                found += [(f"{name}[{k}]", place) for k, place in enumerate(given) if place >= 0]
            elif kind is parameter.VAR_KEYWORD:
                given = () if given is parameter else tuple(given)
                found.append(_named(given))  # in this order: the function can see it
                found += [(n, n) for n in given]
            elif given is parameter:
                found.append((name, _default_of(parameter.default)))
            elif not isinstance(given, int) or given >= 0:
                found.append((name, given))
        return found


def _named(names: tuple[str, ...]) -> tuple[str, _Default]:
    """A part of signatures that says what follows."""
    return "the names of arguments", _Default(names)


def _base_name(name: str) -> str:
    """`xs` of `xs[0]`."""
    return name.partition("[")[0]


def _names_of(
    function: Callable[..., Any], skip: int, donate: Sequence[str | int]
) -> frozenset[str]:
    """The names of parameters that are given by name or by number."""
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    names = [p.name for p in parameters]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    found = set()
    for which in donate:
        if isinstance(which, int) and 0 <= which < len(names):
            found.add(names[which])
        elif isinstance(which, str) and (which in names or takes_any):
            found.add(which)
        else:
            raise TypeError(
                f"TinyJit: donate={which!r} is no parameter of the function, which has "
                f"{', '.join(names) or 'none'}"
            )
    return frozenset(found)


def _default_of(value: Any) -> _Default:
    """As if it had been given, if nothing can change it; so `f(x)` is `f(x, 1)` where n=1."""
    if type(value) in _EXACT:
        return _Default((type(value), value))
    if isinstance(value, PLAIN) or _is_plain_tuple(value):
        parts = Parts([])
        parts.read(value)
        return _Default(parts.parts[0] if len(parts.parts) == 1 else ("default", *parts.parts))
    return _Default("default")


# ---------------------------------------------------------------- for people


def is_dead(key: Sequence[Any]) -> bool:
    """Whether a signature is of an object that is gone."""
    return any(
        type(part) is tuple
        and len(part) == 2
        and type(part[1]) is weakref.ref
        and part[1]() is None
        for part in key
    )


def difference(old: Sequence[Any], new: Sequence[Any], paths: Sequence[str]) -> str:
    """What of two signatures differs; `paths` are those of the new one."""
    for k, (before, now) in enumerate(zip(old, new, strict=False)):
        if before == now:
            continue
        path = paths[k] if k < len(paths) else ""
        if path == "settings":
            at = next(
                i
                for i, pair in enumerate(zip(before.values, now.values, strict=True))
                if pair[0] != pair[1]
            )
            return f"{_SETTINGS[at].key} was {before.values[at]!r}, then {now.values[at]!r}"
        return f"{path or 'which tensors are one'} was {_part_text(before)}, then {_part_text(now)}"
    return f"{len(old)} parts, then {len(new)}"


def _part_text(part: Any) -> str:
    if not isinstance(part, tuple) or not part:
        return part.__name__ if isinstance(part, type) else str(part)
    kind, *rest = part if isinstance(part[0], type) else part[1:] or part
    if not isinstance(kind, type):
        return " ".join(map(str, [kind, *rest])) if isinstance(part[0], type) else "another tensor"
    if kind is Tensor and len(rest) > 1:
        shape, dtype, device, requires_grad, has_grad = rest
        more = {True: ", requires_grad", False: ", requires_grad=False"}.get(requires_grad, "")
        return f"a {dtype} tensor of shape {shape} on {device}{more}{', with a grad' * has_grad}"
    if issubclass(kind, float):
        return f"{kind.__name__} {float.fromhex(rest[0])!r}"
    if issubclass(kind, np.generic):
        return f"{kind.__name__} {np.frombuffer(rest[1], rest[0])[0]}"
    if rest and isinstance(rest[0], weakref.ref):
        return f"one {kind.__name__}"
    if issubclass(kind, dict):
        return f"a {kind.__name__} of {', '.join(map(str, rest[0])) or 'nothing'}"
    if issubclass(kind, list | tuple):
        return f"a {kind.__name__} of {rest[0]}"
    return " ".join([kind.__name__, *map(repr, rest)])
