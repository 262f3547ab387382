"""`TinyJit`: a step of a program, captured once and replayed without Python between kernels."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

from tiny._core.replay import MISS, quick
from tiny.device import Buffer
from tiny.engine.capture import Capture
from tiny.engine.compare import run_both
from tiny.engine.holders import alias, make_unreadable
from tiny.engine.memory import Stale, buffer_node
from tiny.engine.replay import Arguments, CapturedStep
from tiny.engine.signature import Layout, Reader, difference, is_dead, leaves, map_leaves, own_code
from tiny.engine.tracing import capture_step
from tiny.helpers import JIT, prod
from tiny.mixin.sizes import most
from tiny.tensor import Tensor
from tiny.uop.ops import UOp
from tiny.uop.runtime import JitError, recorder, runtime

__all__ = ["JitError", "TinyJit"]

P = ParamSpec("P")
R = TypeVar("R")
Donate = str | int | Sequence[str | int]

MOST_CAPTURES = 16
MOST_SEEN = 256  # signatures that were called once
MANY_SEEN = 64  # so many that were called once, and none twice, are worth a warning
MOST_KEPT = 64  # objects that can not be watched, whose methods were called


class _Table:
    """What is known of the signatures of one function, or of a method of one object."""

    def __init__(self) -> None:
        self.seen: OrderedDict[tuple[Any, ...], None] = OrderedDict()  # called once
        self.steps: dict[tuple[Any, ...], CapturedStep] = {}
        self.losses = 0
        self._has_warned: set[str] = set()

    def warn(self, reason: str, what_follows: str = "further calls run plainly") -> None:
        """Say once why calls run plainly."""
        if what_follows not in self._has_warned:
            self._has_warned.add(what_follows)
            warnings.warn(f"TinyJit: {reason}; {what_follows}", UserWarning, stacklevel=5)

    def forget_dead(self) -> None:
        """Let go of captures for objects that are gone: no call will ask for them."""
        for key in [k for k in list(self.steps) if is_dead(k)]:
            self.steps.pop(key, None)


class TinyJit(Generic[P, R]):
    """A function of tensors that is run plainly once, captured at the second call, then replayed.

        @TinyJit
        def step(x): ...

    A replay builds no graphs and runs no Python of the function: its kernels run one after the
    other, on the CPU in one native call. Calls are told apart by their *signature*, and each has a
    capture of its own:

    - the structure of the arguments (lists, tuples, dicts and dataclasses may hold tensors),
    - shape, dtype and device of each tensor, which of them are one, and which overlap,
    - name and range of each bound Variable: its value is an input,
    - the value of any other argument; of an object that does not compare by value, which it is,
    - the plain values in closure cells and globals that the function's own code names, and
      TRAINING and the like.

    After 16 captures other signatures run plainly, under one warning. Each call returns new
    tensors. What the step writes with `assign` is written by replays; random numbers go on. A
    decorated method has captures for each object. A TinyJit called while another one captures
    becomes a part of it.

    `JIT=0` runs everything plainly; `JIT=2` starts the kernels of a replay one by one; `JIT=3` runs
    the function beside each replay and compares all they compute.

    JitError is raised where a replay would be wrong. docs/jit.md has all cases, and what a capture
    can not see: attributes of objects, items of containers and elements of arrays that the function
    reads, values in modules and classes. Whatever a function does besides computing tensors
    (printing, counting, appending) a replay does not do.

    `donate` names parameters, or numbers them without self, whose tensors are given away: they can
    not be read after a call, which may make its results in their memory.

        @TinyJit(donate="state")
        def step(state, x): ...

    TypeError if it is no function that a replay can do: a generator, a coroutine, a class; or if
    it has no such parameter.
    """

    @overload
    def __new__(cls, fxn: Callable[P, R], *, donate: Donate = ()) -> TinyJit[P, R]: ...

    @overload
    def __new__(  # type: ignore[misc]  # called without a function it is a decorator
        cls, fxn: None = None, *, donate: Donate = ()
    ) -> Callable[[Callable[P, R]], TinyJit[P, R]]: ...

    def __new__(cls, fxn: Any = None, *, donate: Donate = ()) -> Any:
        if fxn is None:
            return functools.partial(cls, donate=donate)
        return super().__new__(cls)

    def __init__(self, fxn: Callable[P, R], *, donate: Donate = ()) -> None:
        _check_function(fxn)
        self.fxn = fxn
        self.donate = (donate,) if isinstance(donate, str | int) else tuple(donate)
        self._reader = Reader(fxn, 0, self.donate)
        self._method_reader: Reader | None = None
        self._table = _Table()
        self._tables: OrderedDict[int, tuple[Any, _Table]] = OrderedDict()  # of methods, by object
        # not its attributes: those of an object that is called are the model's weights
        functools.update_wrapper(self, fxn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, or replay it."""
        result: R = quick(self._reader, self._table.steps, args, kwargs)
        if result is not MISS:
            return result
        found: R = self._run(self._table, self._reader, self.fxn, args, kwargs)
        return found

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The method of an object."""
        return self if instance is None else _Method(self, instance)

    def __copy__(self) -> TinyJit[P, R]:
        return type(self)(self.fxn, donate=self.donate)  # a copy captures for itself

    def __deepcopy__(self, memo: dict[int, Any]) -> TinyJit[P, R]:
        return type(self)(copy.deepcopy(self.fxn, memo), donate=self.donate)

    def __reduce__(self) -> tuple[Any, ...]:
        from tiny.engine.export import exported_step, kept_calls

        if kept_calls(self):  # as an ExportedStep: what is captured, without the function
            return exported_step(self).__reduce__()
        return functools.partial(type(self), donate=self.donate), (self.fxn,)

    def __repr__(self) -> str:
        return f"<TinyJit of {self.fxn!r}, {len(self._table.steps)} captures>"

    @property
    def captures(self) -> list[Capture]:
        """What is captured, the oldest first."""
        return [step.capture for step in self._table.steps.values()]

    def export(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write what is captured to a file that `load_step` reads: see `export_step`."""
        from tiny.engine.export import export_step  # not needed to run: it reads and writes files

        export_step(self, path, **options)

    def captured_calls(self) -> list[tuple[CapturedStep, Layout]]:
        """The captures, the oldest first, each with the names of its arguments."""
        return [(step, self._reader.layout(*step.call)) for step in self._table.steps.values()]

    def captured_function(self) -> Callable[..., Any]:
        """The function that is captured."""
        return self.fxn

    def reset(self) -> None:
        """Forget all captures: the next calls run plainly and capture anew."""
        self._table = _Table()
        self._tables.clear()

    def _table_of(self, instance: Any) -> _Table:
        """What is known of a method of an object; it is forgotten with the object."""
        number, tables = id(instance), self._tables
        if number not in tables:
            try:
                kept: Any = weakref.ref(instance, lambda _: tables.pop(number, None))
            except TypeError:  # an object that can not be watched is kept, the last ones only
                kept = instance
                unwatched = [k for k, (it, _) in tables.items() if type(it) is not weakref.ref]
                if len(unwatched) >= MOST_KEPT:
                    tables.pop(unwatched[0], None)
            tables[number] = kept, _Table()
        return tables[number][1]

    def _reader_of_methods(self) -> Reader:
        if self._method_reader is None:
            self._method_reader = Reader(self.fxn, 1, self.donate)
        return self._method_reader

    def _run(
        self,
        table: _Table,
        reader: Reader,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if recorder() is not None:  # a part of what is captured now
            return function(*args, **kwargs)
        result = self._called(table, reader, function, args, kwargs)
        if self.donate:
            result = self._give_away(reader.donated(args, kwargs), result)
        return result

    def _give_away(self, donated: list[Tensor], result: Any) -> Any:
        """Make tensors unreadable, now that a call is done; the result without them."""
        numbers = {id(t) for t in donated}
        result = map_leaves(result, lambda x: alias(x) if id(x) in numbers else x)
        for tensor in donated:
            make_unreadable(tensor, _given_away(tensor, self._name()))
        return result

    def _called(
        self,
        table: _Table,
        reader: Reader,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        mode = JIT.value
        if not mode:
            result = function(*args, **kwargs)
            return _realized(result) if self.donate else result
        call = reader.read(args, kwargs)
        arguments = Arguments(call.tensors)
        if arguments.sharing:
            call.parts.append(arguments.sharing)
        key = tuple(call.parts)
        step = table.steps.get(key)
        if step is not None:
            if step.is_valid(arguments):
                if step.is_held(arguments):
                    return _realized(function(*args, **kwargs))
                if mode == 3:
                    return run_both(step, function, reader, args, kwargs, call)
                return step.replay(arguments, call.numbers)
            table.steps.pop(key, None)
            table.losses += 1
        if key in table.seen:
            step, result = capture_step(function, reader.layout(args, kwargs), args, kwargs, call)
            table.seen.pop(key, None)  # unless another thread did
            if not self.donate:
                step.allow_quick()
            table.steps[key] = step
            return result
        table.forget_dead()
        if table.losses >= MOST_CAPTURES:
            table.warn(
                f"{MOST_CAPTURES} captures of {self._name()} were of no use, since tensors that "
                "it reads were replaced between calls (write to them with .assign())"
            )
        elif len(table.steps) >= MOST_CAPTURES:
            varies = self._difference(reader, next(reversed(table.steps)), key, args, kwargs)
            table.warn(
                f"{self._name()} was captured for {MOST_CAPTURES} signatures, and calls still "
                f"differ: {varies}"
            )
        else:
            if len(table.seen) == MANY_SEEN and not table.steps:
                varies = self._difference(reader, next(reversed(table.seen)), key, args, kwargs)
                table.warn(
                    f"{self._name()} was called with {MANY_SEEN} signatures, and none came twice: "
                    f"{varies}",
                    "until one does all calls run plainly",
                )
            table.seen[key] = None
            if len(table.seen) > MOST_SEEN:
                table.seen.popitem(last=False)
        return _realized(function(*args, **kwargs))

    def _name(self) -> str:
        return getattr(self.fxn, "__qualname__", repr(self.fxn))

    def _difference(
        self,
        reader: Reader,
        old: tuple[Any, ...],
        new: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> str:
        """In what the call that is read now differs from an earlier one."""
        paths: list[str] = []
        reader.read(args, kwargs, paths)
        return difference(old, new, paths)


def _realized(result: Any) -> Any:
    """A result with its tensors computed."""
    tensors = [leaf for _, leaf in leaves(result) if isinstance(leaf, Tensor)]
    if tensors:
        Tensor.realize(*tensors)
    return result


def _given_away(tensor: Tensor, name: str) -> UOp:
    """A BUFFER like that of a tensor, which says that the tensor was donated."""
    device = runtime().canonicalize_device(tensor.device)
    shape = tuple([most(size) for size in tensor.shape])
    node = buffer_node(Buffer(device, prod(shape), tensor.dtype), shape)
    node.handle = Stale(
        f"this tensor of shape {tensor.shape} was donated to a call of {name}, which may have used "
        "its memory; read the result of that call, or do not donate it"
    )
    return node


def _check_function(fxn: Any) -> None:
    """TypeError if it is nothing that could be captured."""
    for kind, name in ((classmethod, "@classmethod"), (staticmethod, "@staticmethod")):
        if isinstance(fxn, kind):
            raise TypeError(f"TinyJit: write {name} above @TinyJit, not below it")
    if not callable(fxn):
        raise TypeError(f"TinyJit: a function is needed, got {type(fxn).__name__}")
    if isinstance(fxn, type):
        raise TypeError(f"TinyJit: {fxn.__name__} is a class; decorate its __call__ or a method")
    code = own_code(fxn)
    for is_it, name in (
        (inspect.iscoroutinefunction, "a coroutine function (async def)"),
        (inspect.isasyncgenfunction, "an asynchronous generator function"),
        (inspect.isgeneratorfunction, "a generator function"),
    ):
        if is_it(code):
            raise TypeError(
                f"TinyJit: {getattr(fxn, '__qualname__', fxn)} is {name}, which is paused and "
                "resumed; a replay runs at once: put the computing into a function of its own"
            )


class _Method:
    """A TinyJit as the method of an object."""

    def __init__(self, jit: TinyJit[..., Any], instance: Any) -> None:
        self._jit, self._instance = jit, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method, or replay it."""
        jit = self._jit
        table, reader = jit._table_of(self._instance), jit._reader_of_methods()
        result = quick(reader, table.steps, args, kwargs)
        if result is not MISS:
            return result
        return jit._run(table, reader, self.captured_function(), args, kwargs)

    @property
    def captures(self) -> list[Capture]:
        """What is captured for this object, the oldest first."""
        return [s.capture for s in self._jit._table_of(self._instance).steps.values()]

    def export(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write what is captured for this object to a file: see `export_step`."""
        from tiny.engine.export import export_step  # not needed to run: it reads and writes files

        export_step(self, path, **options)

    def captured_calls(self) -> list[tuple[CapturedStep, Layout]]:
        """What is captured for this object, each with the names of its arguments."""
        layout = self._jit._reader_of_methods().layout
        steps = self._jit._table_of(self._instance).steps.values()
        return [(step, layout(*step.call)) for step in steps]

    def captured_function(self) -> Callable[..., Any]:
        """The method that is captured, with its object."""
        return functools.partial(self._jit.fxn, self._instance)

    def __reduce__(self) -> tuple[Any, ...]:
        from tiny.engine.export import exported_step

        return exported_step(self).__reduce__()

    def reset(self) -> None:
        """Forget the captures of this object."""
        self._jit._tables.pop(id(self._instance), None)
