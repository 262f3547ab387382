"""Exported steps: captures in a file, or in a pickle, that run without the program they are of.

    export_step(jit, "step.tiny")          # once the jit has captured
    step = load_step("step.tiny")          # in another process
    y = step(x)

A loaded step has the state that the captured one read and wrote on its own account (weights,
caches), keeps it from call to call, and can be written to a file again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from tiny.device import Buffer, Device
from tiny.dtype import DType, _from_np_dtype, dtypes
from tiny.engine.capture import Replay
from tiny.engine.container import Content, read_file, write_file
from tiny.engine.holders import Holders, Recipe
from tiny.engine.memory import buffer_node, buffer_of
from tiny.engine.replay import HERE, Arguments, CapturedStep, Given
from tiny.engine.signature import Layout, map_leaves, own_code
from tiny.engine.stored import (
    Argument,
    ExportError,
    Moves,
    NumberLeaf,
    PlainLeaf,
    ResultLeaf,
    StoredCall,
    StoredKernel,
    StoredResult,
    StoredValue,
    TensorLeaf,
    check_call,
    children,
    each_leaf,
    linked,
    map_stored,
    over,
    result_views,
    stored_steps,
    target_record,
)
from tiny.helpers import STRICT_REDUCE
from tiny.schedule import Slot
from tiny.storage import Storage, in_turn, live_views, take_memory
from tiny.tensor import Tensor
from tiny.uop.ops import GroupOp, Ops, UOp
from tiny.uop.runtime import runtime

__all__ = [
    "ExportError",
    "ExportedStep",
    "Signature",
    "Spec",
    "export_step",
    "exported_step",
    "kept_calls",
    "load_step",
]


class Captured(Protocol):
    """What has captures: a TinyJit, or its method of an object."""

    def captured_calls(self) -> list[tuple[CapturedStep, Layout]]:
        """The captures, the oldest first, each with the names of its arguments."""
        ...

    def captured_function(self) -> Callable[..., Any]:
        """The function that was captured."""
        ...


# ---------------------------------------------------------------- from captures


def export_step(
    jit: Captured, path: str | os.PathLike[str], *, state: Mapping[str, Tensor] | None = None
) -> None:
    """Write what a TinyJit has captured to a file: kernels, weights and other state.

    `state` gives names to the tensors that the step reads and writes on its own account, as
    `get_state_dict(model)` does; otherwise they are found where the function's code and its object
    name them. ExportError says what can not be exported, OSError that the file can not be written.
    """
    exported_step(jit, state=state).save(path)


def exported_step(jit: Captured, *, state: Mapping[str, Tensor] | None = None) -> ExportedStep:
    """What a TinyJit has captured, with the very tensors that it reads and writes."""
    function = jit.captured_function()
    name = getattr(own_code(function), "__name__", "step")
    calls = kept_calls(jit)
    if not calls:
        raise ExportError(
            f"{name} has no capture to export: call it twice with arguments of the shapes that it "
            "is to be exported for (the second call captures)"
        )
    kept = _State(function, state or {})
    stored = [_stored_call(step, layout, kept) for step, layout in calls]
    names, tensors = kept.named()
    devices = {cell.device for call in stored for cell in call.cells}
    content = Content(
        name if name.isidentifier() else "step",
        bool(STRICT_REDUCE),
        {device: target_record(Device[device].target) for device in sorted(devices)},
        names,
        tuple([_slot_of(t) for t in tensors]),
        tuple(stored),
    )
    for call in stored:
        try:
            check_call(call, content.slots)
        except ExportError as error:
            raise ExportError(f"{name} can not be exported: {error}") from error
    return ExportedStep(content, tensors, [step.capture for step, _ in calls])


def kept_calls(jit: Captured) -> list[tuple[CapturedStep, Layout]]:
    """The captures whose tensors are still those that they read and write."""
    kept = []
    for step, layout in jit.captured_calls():
        step.holders.settle()
        if not step.holders.is_lost and step.recipe.is_complete():
            kept.append((step, layout))
    return kept


class _State:
    """The tensors that captures read and write on their own account, in order of first use."""

    def __init__(self, function: Callable[..., Any], given: Mapping[str, Tensor]) -> None:
        self.nodes: dict[UOp, int] = {}
        self._function, self._given = function, given

    def number(self, node: UOp) -> int:
        """The number of a BUFFER."""
        return self.nodes.setdefault(node, len(self.nodes))

    @in_turn
    def named(self) -> tuple[tuple[str, ...], list[Tensor]]:
        """A name and a tensor for each BUFFER; those that nobody holds get a tensor."""
        whole: dict[UOp, Tensor] = {}
        for tensor in live_views():
            if tensor.uop in self.nodes:
                whole.setdefault(tensor.uop, tensor)
        names: dict[UOp, str] = {}
        for name, tensor in (*self._given.items(), *_named_tensors(self._function)):
            node = tensor.uop
            while node.op in GroupOp.Movement or node.op is Ops.DETACH:
                node = node.src[0]
            if node in self.nodes and node not in names and name not in names.values():
                names[node] = name
        constants = 0
        for node in self.nodes:
            if node not in names:
                names[node] = f"constant.{constants}"
                constants += 1
        found = [whole[node] if node in whole else Tensor(node) for node in self.nodes]
        return tuple([names[node] for node in self.nodes]), found


def _named_tensors(function: Callable[..., Any]) -> Iterator[tuple[str, Tensor]]:
    """Tensors that are reached from what a function names: its object, closure and globals."""
    roots: dict[str, Any] = {}
    outer: Any = function
    while hasattr(outer, "func"):  # functools.partial: of a method, with its object
        roots |= {f"arg{k}" if k else "self": x for k, x in enumerate(outer.args)}
        outer = outer.func
    if hasattr(outer, "__self__"):
        roots["self"] = outer.__self__
    code = own_code(function)
    if not hasattr(outer, "__code__") and not hasattr(outer, "__func__"):
        roots["self"] = outer  # an object that is called
    names = getattr(getattr(code, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(code, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # not filled yet
            roots[name] = cell.cell_contents
    inner = getattr(code, "__globals__", {})
    for name in getattr(getattr(code, "__code__", None), "co_names", ()):
        if name in inner:
            roots.setdefault(name, inner[name])
    seen: set[int] = set()
    stack = list(reversed(roots.items()))
    while stack:
        path, x = stack.pop()
        if isinstance(x, Tensor):
            yield path.removeprefix("self."), x
            continue
        if id(x) in seen or isinstance(x, type) or callable(getattr(x, "captured_calls", None)):
            continue
        seen.add(id(x))
        items: Any = ()
        if isinstance(x, dict):
            items = x.items()
        elif isinstance(x, list | tuple):
            items = enumerate(x)
        elif hasattr(x, "__dict__") and not callable(getattr(x, "__get__", None)):
            items = vars(x).items() if not hasattr(x, "__path__") else ()
        stack += [(f"{path}.{key}", item) for key, item in reversed(list(items))]


def _slot_of(tensor: Tensor) -> Slot:
    node = tensor.uop
    return Slot(node.dtype, tuple(node.shape), node.arg.device, "bound")


def _stored_call(step: CapturedStep, layout: Layout, state: _State) -> StoredCall:
    plan = step.capture.plan
    for device, words in plan.draws:
        if not isinstance(words, int):
            raise ExportError(
                f"it draws random numbers on {device}, how many depends on a Variable: draw as "
                "many as there are at most, and slice"
            )
    values, results = _stored_results(step.recipe, state)
    leaves = iter(range(len(results)))

    def leaf(x: Any) -> Any:
        return ResultLeaf(next(leaves)) if x is HERE else PlainLeaf(x)

    template = map_leaves(step.template, leaf)
    return StoredCall(
        tuple(_stored_arguments(step, layout)),
        template,
        tuple(results[: next(leaves, len(results))]),  # after them come gradients
        tuple(values),
        plan.cells,
        stored_steps(plan),
        plan.numbers,
        tuple([(device, int(words)) for device, words in plan.draws]),  # type: ignore[arg-type]
        plan.constants,
        tuple([state.number(node) for node in step.capture.bound]),
    )


def _stored_arguments(step: CapturedStep, layout: Layout) -> Iterator[Argument]:
    args, kwargs = step.call
    plan = step.capture.plan
    devices = [cell.device for cell in plan.cells if cell.role == "param"]

    def number(name: str, dtype: DType, low: float, high: float) -> NumberLeaf:
        return NumberLeaf(plan.numbers.index(name), name, dtype, low, high)

    def leaf(x: Any, of: str) -> Any:
        if isinstance(x, UOp):
            if x.op is not Ops.DEFINE_VAR:
                raise ExportError(
                    f"the argument {of} is an expression of Variables; give it the Variable, and "
                    "compute inside"
                )
            return number(x.arg.name, x.dtype, x.arg.vmin, x.arg.vmax)
        if not isinstance(x, Given):
            return PlainLeaf(x)
        if isinstance(x.parameter, str):
            if x.dtype is dtypes.weakfloat:
                return number(x.parameter, dtypes.float64, -np.inf, np.inf)
            return number(x.parameter, dtypes.int64, dtypes.int64.min, dtypes.int64.max)
        if any(not isinstance(size, int) for size in x.shape):
            raise ExportError(
                f"the argument {of} has a size that depends on a Variable; give it the whole "
                "tensor and the Variable, and slice inside"
            )
        device = runtime().default_device() if x.parameter is None else devices[x.parameter]
        return TensorLeaf(x.parameter, x.shape, x.dtype, device)

    for name, source in layout:
        if isinstance(source, int):
            yield Argument(name, map_stored(args[source], lambda x: leaf(x, name), Given), True)  # noqa: B023
        elif isinstance(source, str):
            yield Argument(name, map_stored(kwargs[source], lambda x: leaf(x, name), Given), False)  # noqa: B023


def _stored_results(recipe: Recipe, state: _State) -> tuple[list[StoredValue], list[StoredResult]]:
    values = []
    for number, chain, constant, device in recipe.storages:
        if constant is None:
            base = recipe.bases[number]
            values.append(StoredValue(number, 0, base.dtype, _moves(chain), device))
            continue
        steps, node = [], constant
        while node.op is not Ops.CONST:
            steps.append((node.op, node.dtype, node.arg, node.src[1:]))
            node = node.src[0]
        values.append(StoredValue(None, node.arg, node.dtype, _moves(steps[::-1]), device))
    results = []
    for number, kept, chain, wants in recipe.tensors:
        if kept is None:
            results.append(StoredResult(number, None, _moves(chain), wants))
            continue
        storage = kept()
        if storage is None or storage.node.op is not Ops.BUFFER:
            raise ExportError("it returns a tensor from outside that is not computed")
        results.append(StoredResult(None, state.number(storage.node), _moves(chain), wants))
    return values, results


def _moves(chain: Sequence[tuple[Ops, DType, Any, tuple[UOp, ...]]]) -> Moves:
    if any(sizes for _, _, _, sizes in chain):
        raise ExportError(
            "a result has a size that depends on a Variable; return all of it, or slice it outside"
        )
    return tuple([(op, dtype, arg) for op, dtype, arg, _ in chain])


# ---------------------------------------------------------------- loaded ones


class Spec(NamedTuple):
    """What is given or returned under a name: a tensor, or a number between two bounds."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    low: float | None = None
    high: float | None = None


class Signature(NamedTuple):
    """A way to call a step: the tensors and the Variables that it takes, and what it returns."""

    inputs: tuple[Spec, ...]
    variables: tuple[Spec, ...]
    outputs: tuple[Spec, ...]


class _Mismatch(Exception):
    """A call is not the one that was captured. The cause is the error for the user."""


class _Results:
    """The recipe of a loaded call: makes the tensors that it returns."""

    def __init__(self, call: StoredCall, state: Sequence[Tensor]) -> None:
        self._call, self._state = call, state

    def is_complete(self) -> bool:
        """Whether what they are views of is there: it lives as long as the step."""
        return True

    def make(self, bases: Sequence[UOp], numbers: Mapping[str, Any]) -> list[Tensor]:
        """The tensors, over these BUFFERs."""
        storages = []
        for value in self._call.values:
            base = UOp.const(value.constant, value.dtype)
            if value.fresh is not None:
                base = bases[value.fresh]
            storage = Storage(over(value.moves, base), value.device)
            if storage.node.op is Ops.BUFFER:
                take_memory(storage, base)
            storages.append(storage)
        made = []
        for result in self._call.results:
            if result.state is not None:
                storage = self._state[result.state]._storage
            else:
                assert result.value is not None
                storage = storages[result.value]
            node = storage.node
            tensor = Tensor._view(storage, node, over(result.moves, node))
            tensor.requires_grad = result.requires_grad
            made.append(tensor)
        return made


class ExportedStep:
    """A step that was loaded: called like the function that was captured, it runs its kernels.

    Tensors may be given as Tensors, NumPy arrays, or anything that has `__dlpack__`, of the very
    shapes and dtypes of `inputs`; Variables as numbers. A value that was no tensor must be the one
    of the capture, or left out. With several signatures the first that fits is run.

    `state` are the tensors that the step reads and writes on its own account, by name; they may be
    read, and written with `assign`. `save` writes the step with the state as it is now.
    """

    def __init__(
        self, content: Content, state: Sequence[Tensor], replays: Sequence[Replay]
    ) -> None:
        self.name = content.name
        self._content, self._tensors = content, list(state)
        self.state: Mapping[str, Tensor] = MappingProxyType(
            dict(zip(content.names, self._tensors, strict=True))
        )
        self._replays = list(replays)
        self._steps: list[CapturedStep] = []
        self.signatures = tuple([_signature(call, content.slots) for call in content.calls])

    @property
    def inputs(self) -> tuple[Spec, ...]:
        """The tensors that it takes (those of its first signature)."""
        return self.signatures[0].inputs

    @property
    def variables(self) -> tuple[Spec, ...]:
        """The numbers that it takes (those of its first signature)."""
        return self.signatures[0].variables

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """The tensors that it returns (those of its first signature)."""
        return self.signatures[0].outputs

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the state that it writes."""
        found: dict[str, None] = {}
        for call, replay in zip(self._content.calls, self._replays, strict=True):
            cells = {k for step in replay.plan.steps for k in step.written}
            bound = [k for k, cell in enumerate(call.cells) if cell.role == "bound"]
            for k, number in zip(bound, call.state, strict=True):
                if k in cells:
                    found[self._content.names[number]] = None
        return tuple(found)

    @property
    def kernels(self) -> int:
        """How many kernels and copies its signatures run."""
        return sum(len(replay) for replay in self._replays)

    @property
    def nbytes(self) -> int:
        """The bytes of its state."""
        return sum(slot.nbytes for slot in self._content.slots)

    def __repr__(self) -> str:
        takes = ", ".join(f"{s.name} {s.shape} {s.dtype.name}" for s in self.inputs)
        return f"<ExportedStep {self.name}({takes}), {self.kernels} kernels>"

    def __reduce__(self) -> tuple[Any, ...]:
        self._settle()
        return _unpickled, (self._content, self._tensors)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the step to a file, with its state as it is now. Complete, or not there at all."""
        self._settle()
        write_file(path, self._content, [buffer_of(t.uop).numpy() for t in self._tensors])

    # ------------------------------------------------------------ calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it. TypeError or ValueError says which argument is not what was captured."""
        found: list[_Mismatch] = []
        for k, call in enumerate(self._content.calls):
            try:
                given = _Given(call, args, kwargs)
            except _Mismatch as mismatch:
                found.append(mismatch)
                continue
            return self._run(k, given)
        cause = found[0].__cause__
        assert cause is not None
        if len(found) > 1:
            reasons = "; ".join(f"({k + 1}) {m.__cause__}" for k, m in enumerate(found))
            raise type(cause)(f"{self.name}: no signature fits: {reasons}") from None
        raise type(cause)(f"{self.name}: {cause}") from None

    def _run(self, k: int, given: _Given) -> Any:
        step = self._step(k)
        arguments = Arguments(given.tensors(step.capture.written_params))
        if not step.is_valid(arguments):
            lost = self._lost()
            raise ExportError(
                f"{self.name}: the state {lost!r} was replaced by another tensor; write to it with "
                ".assign()"
            )
        return step.replay(arguments, given.numbers)

    def _step(self, k: int) -> CapturedStep:
        """A signature, ready to run."""
        if not self._steps:
            for call, replay in zip(self._content.calls, self._replays, strict=True):
                recipe: Any = _Results(call, self._tensors)
                replay_of: Any = replay
                template = _template(call.result)
                holders = Holders(self._tensors)
                self._steps.append(CapturedStep(replay_of, recipe, template, holders, ((), {})))
        return self._steps[k]

    def _settle(self) -> None:
        """Carry out writes to the state that are pending."""
        if self._tensors:
            Tensor.realize(*self._tensors)
        if (lost := self._lost()) is not None:
            raise ExportError(f"{self.name}: the state {lost!r} was replaced by another tensor")

    def _lost(self) -> str | None:
        for name, tensor, slot in zip(
            self._content.names, self._tensors, self._content.slots, strict=True
        ):
            node = tensor.uop
            if node.op is not Ops.BUFFER or (node.dtype, node.shape) != (slot.dtype, slot.shape):
                return name
        return None


def _signature(call: StoredCall, state: Sequence[Slot]) -> Signature:
    leaves = call.leaves()
    inputs = [Spec(n, x.shape, x.dtype) for n, x in leaves if isinstance(x, TensorLeaf)]
    numbers = [Spec(n, (), x.dtype, x.low, x.high) for n, x in leaves if isinstance(x, NumberLeaf)]
    views = result_views(call, state)
    outputs: list[Spec] = []

    def note(leaf: Any, path: str) -> None:
        if isinstance(leaf, ResultLeaf):
            view = views[leaf.result]
            outputs.append(Spec(path or "output", tuple(view.shape), view.dtype))

    each_leaf(call.result, "", note)
    return Signature(tuple(inputs), tuple(numbers), tuple(outputs))


def _template(x: Any) -> Any:
    """The structure of a result, with HERE for its tensors."""
    return map_stored(x, lambda leaf: HERE if isinstance(leaf, ResultLeaf) else leaf.value)


class _Given:
    """What a call is given, matched with what was captured. _Mismatch if it does not fit."""

    def __init__(self, call: StoredCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call = call
        self._tensors: dict[int, tuple[str, Any]] = {}
        self._numbers: dict[int, float] = {}
        self._used: set[str] = set()
        try:
            self._match_all(args, dict(kwargs))
        except (TypeError, ValueError) as error:
            raise _Mismatch from error
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
        devices = [c.device for c in self._call.cells if c.role == "param"]
        for k in range(len(devices)):
            path, (given, value) = self._tensors[k]
            if isinstance(value, Tensor):
                if any(value is t or value._storage is t._storage for t in found):
                    if k in written:
                        raise ValueError(
                            f"the step writes to {path}, which shares memory with another "
                            "argument; pass a copy, .clone()"
                        )
                    value = value.clone()
                found.append(value)
                continue
            if k in written:
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


# ---------------------------------------------------------------- loading


def load_step(path: str | os.PathLike[str], *, device: str | None = None) -> ExportedStep:
    """A step from a file of `export_step`, compiled for this machine.

    With `device`, everything is there, wherever it was. Nothing in the file is trusted: each kernel
    is checked against the spec and proved to keep to its memory before it is compiled.
    ExportError says why a file is refused; OSError that it can not be read.
    """
    content, arrays = read_file(path)
    try:
        if device is not None:
            content = _moved(content, runtime().canonicalize_device(device))
        _check(content)
        state = [_filled(slot, array) for slot, array in zip(content.slots, arrays, strict=True)]
        return _ready(content, state)
    except ExportError as error:
        raise ExportError(f"{os.fspath(path)}: {error}") from error


def _moved(content: Content, device: str) -> Content:
    """A step on one device. ExportError if it is on several."""
    used = {c.device for call in content.calls for c in call.cells} | {
        s.device for s in content.slots
    }
    if len(used) > 1:
        raise ExportError(f"it uses {', '.join(sorted(used))}, and can not be put on one device")

    def leaf(x: Any) -> Any:
        return x._replace(device=device) if isinstance(x, TensorLeaf) else x

    calls = [
        call._replace(
            arguments=tuple([a._replace(given=map_stored(a.given, leaf)) for a in call.arguments]),
            values=tuple([v._replace(device=v.device and device) for v in call.values]),
            cells=tuple([c._replace(device=device) for c in call.cells]),
            steps=tuple(
                [
                    s._replace(device=device) if isinstance(s, StoredKernel) else s
                    for s in call.steps
                ]
            ),
            draws=tuple([(device, words) for _, words in call.draws]),
        )
        for call in content.calls
    ]
    slots = tuple([s._replace(device=device) for s in content.slots])
    return content._replace(slots=slots, calls=tuple(calls))


def _check(content: Content) -> None:
    if not content.calls:
        raise ExportError("it holds no captures")
    devices = {c.device for call in content.calls for c in call.cells}
    devices |= {s.device for s in content.slots}
    for name in sorted(devices):
        try:
            if Device.canonicalize(name) != name:
                raise ExportError(f"it has a device called {name!r}")
            Device[name]
        except ExportError:
            raise
        except (ValueError, ImportError, OSError, RuntimeError) as error:
            raise ExportError(f"it is for the device {name}, not usable here: {error}") from error
    for call in content.calls:
        check_call(call, content.slots)


def _filled(slot: Slot, array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor of some state."""
    buffer = Buffer(slot.device, array.size, slot.dtype)
    buffer.copyin(array.view(np.uint8).data)
    return Tensor(buffer_node(buffer, slot.shape))


def _ready(content: Content, state: list[Tensor]) -> ExportedStep:
    """A step that was checked, compiled."""
    replays = []
    for call in content.calls:
        plan = linked(call, content.targets, content.strict)
        replays.append(Replay(plan, [state[k].uop for k in call.state]))
    return ExportedStep(content, state, replays)


def _unpickled(content: Content, state: list[Tensor]) -> ExportedStep:
    """A step from a pickle."""
    _check(content)
    return _ready(content, state)
