"""Matching the arguments of a call with those of a capture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiny.dtype import _from_np_dtype, dtypes
from tiny.engine.stored import (
    Argument,
    NumberLeaf,
    PlainLeaf,
    StoredCall,
    TensorLeaf,
    children,
    each_leaf,
)
from tiny.tensor import Tensor
from tiny.uop.ops import Ops, UOp

__all__ = ["Given", "Mismatch"]


class Mismatch(Exception):
    """A call is not the one that was captured. The cause is the error for the user."""


class Given:
    """What a call is given, matched with what was captured. Mismatch if it does not fit."""

    def __init__(self, call: StoredCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call = call
        self._tensors: dict[int, tuple[str, Any]] = {}
        self._numbers: dict[int, float] = {}
        self._used: set[str] = set()
        try:
            self._match_all(args, dict(kwargs))
        except (TypeError, ValueError) as error:
            raise Mismatch from error
        self.numbers = {name: self._numbers[k] for k, name in enumerate(call.numbers)}

    def _match_all(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = self._call.arguments
        positional = [a for a in arguments if a.positional]
        if len(args) > len(positional):
            raise TypeError(
                f"it takes {len(positional)} arguments by position, {len(args)} were given"
            )
        given = {a.name: x for a, x in zip(positional, args, strict=False)}
        for argument in arguments:
            if argument.name in kwargs:
                if argument.name in given:
                    raise TypeError(f"{argument.name} is given twice")
                given[argument.name] = kwargs.pop(argument.name)
        named = {leaf.name: leaf for _, leaf in self._call.leaves() if isinstance(leaf, NumberLeaf)}
        for name in list(kwargs):
            if name in named:  # a Variable, under its own name
                self._number(named[name], kwargs.pop(name), name)
        if kwargs:
            names = ", ".join(a.name for a in arguments) or "no arguments"
            raise TypeError(f"it has no argument {next(iter(kwargs))!r}; it has {names}")
        for argument in arguments:
            if argument.name in given:
                self._match(argument.given, given[argument.name], argument.name)
            else:
                self._missing(argument)

    def _missing(self, argument: Argument) -> None:
        """An argument that is left out: a Variable may be given under its own name."""

        def check(leaf: Any, path: str) -> None:
            if isinstance(leaf, TensorLeaf) or (
                isinstance(leaf, NumberLeaf) and leaf.number not in self._numbers
            ):
                raise TypeError(f"the argument {path} is missing")

        each_leaf(argument.given, argument.name, check)

    def _match(self, wanted: Any, given: Any, path: str) -> None:
        if isinstance(wanted, TensorLeaf):
            self._tensor(wanted, given, path)
        elif isinstance(wanted, NumberLeaf):
            self._number(wanted, given, path)
        elif isinstance(wanted, PlainLeaf):
            if type(given) is not type(wanted.value) or not _is_same(given, wanted.value):
                raise ValueError(f"{path} was {wanted.value!r} when it was captured, got {given!r}")
        else:
            items, found = children(wanted), children(given)
            assert items is not None
            kinds = (list, tuple) if type(wanted) in (list, tuple) else type(wanted)
            names = [key for key, _ in items]
            if (
                not isinstance(given, kinds)
                or found is None
                or len(found) != len(items)
                or set(names) != {key for key, _ in found}
            ):
                of = f" of {', '.join(map(str, names))}" if isinstance(wanted, dict) else ""
                raise TypeError(
                    f"{path} is a {type(wanted).__name__}{of or f' of {len(items)}'}, "
                    f"got a {type(given).__name__}"
                )
            values = dict(found)
            for key, item in items:
                self._match(item, values[key], f"{path}.{key}")

    def _tensor(self, leaf: TensorLeaf, given: Any, path: str) -> None:
        value = given if isinstance(given, Tensor) else _array_of(given, path)
        if tuple(value.shape) != leaf.shape:
            raise ValueError(f"{path} has the shape {leaf.shape}, got {tuple(value.shape)}")
        dtype = value.dtype if isinstance(value, Tensor) else _from_np_dtype(value.dtype)
        if dtype is not leaf.dtype:
            raise TypeError(
                f"{path} is of {leaf.dtype.name}, got {dtype.name}; convert it, with "
                f".{'cast' if isinstance(value, Tensor) else 'astype'}({leaf.dtype.name!r})"
            )
        if leaf.param is None:
            return
        if isinstance(value, Tensor) and value.device not in (None, leaf.device):
            raise ValueError(
                f"{path} is on {leaf.device}, got a tensor on {value.device}; move it with "
                f".to({leaf.device!r})"
            )
        if leaf.param in self._tensors:
            name, other = self._tensors[leaf.param]
            if other[0] is not given:
                raise ValueError(
                    f"{name} and {path} were one tensor when it was captured; give one for both"
                )
            return
        self._tensors[leaf.param] = path, (given, value)

    def _number(self, leaf: NumberLeaf, given: Any, path: str) -> None:
        value = _number_of(given, leaf, path)
        if not leaf.low <= value <= leaf.high and value == value:
            raise ValueError(f"{path} is from {leaf.low} to {leaf.high}, got {value}")
        if self._numbers.setdefault(leaf.number, value) != value == value:
            raise ValueError(
                f"the Variable {leaf.name} is given as {self._numbers[leaf.number]} and as {value}"
            )

    def tensors(self, written: Sequence[int]) -> list[Tensor]:
        """A tensor for each parameter; those in `written` are changed by the step."""
        found: list[Tensor] = []
        changed = set(written)
        devices = [c.device for c in self._call.cells if c.role == "param"]
        for k in range(len(devices)):
            path, (given, value) = self._tensors[k]
            if isinstance(value, Tensor):
                same = [j for j, t in enumerate(found) if t._storage is value._storage]
                if same and not changed.isdisjoint([k, *same]):
                    raise ValueError(
                        f"the step writes to {path}, or to another argument that shares memory "
                        "with it; pass a copy, .clone()"
                    )
                value = value.clone() if same else value
                found.append(value)
                continue
            if k in changed:
                raise TypeError(
                    f"the step writes to {path}: give it a Tensor, not a {type(given).__name__}"
                )
            found.append(Tensor(value, device=devices[k]))
        return found


def _is_same(a: Any, b: Any) -> bool:
    return bool(a == b) or (a != a and b != b)


def _array_of(given: Any, path: str) -> np.ndarray[Any, Any]:
    """An array of NumPy's, or of anything that can hand over its memory."""
    if isinstance(given, np.ndarray | np.generic):
        return np.asarray(given)
    if hasattr(given, "__dlpack__"):
        try:
            return np.from_dlpack(given)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"{path} can not be read by DLPack: {error}") from error
    raise TypeError(f"{path} is a Tensor or an array, got a {type(given).__name__}")


def _number_of(given: Any, leaf: NumberLeaf, path: str) -> float:
    """The number that stands for a Variable, or for a tensor without a dtype of its own."""
    if isinstance(given, UOp) and given.op is Ops.BIND:
        variable, value = given.unbind()
        if variable.arg.name != leaf.name:
            raise ValueError(f"{path} is the Variable {leaf.name}, got {variable.arg.name}")
        return value
    if isinstance(given, Tensor) and given.uop.op is Ops.CONST:
        given = given.uop.arg
    if isinstance(given, np.generic):
        given = given.item()
    is_float = dtypes.is_float(leaf.dtype)
    if isinstance(given, bool) or not isinstance(given, int | float if is_float else int):
        raise TypeError(
            f"{path} is {'a number' if is_float else 'an int'}, got {given!r} of type "
            f"{type(given).__name__}"
        )
    return float(given) if is_float else given
