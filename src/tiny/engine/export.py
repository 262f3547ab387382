"""Exported steps: captures in a file, or in a pickle, that run without the program they are of.

    export_step(jit, "step.tiny")          # once the jit has captured
    step = load_step("step.tiny")          # in another process
    y = step(x)

A loaded step has the state that the captured one read and wrote on its own account (weights,
caches), keeps it from call to call, and can be written to a file again.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tiny.device import Buffer, Device
from tiny.dtype import DType, dtypes
from tiny.engine.checks import check_call, check_content
from tiny.engine.container import read_file
from tiny.engine.exported import ExportedStep, Signature, Spec
from tiny.engine.holders import Recipe
from tiny.engine.linking import stored_steps, target_record
from tiny.engine.memory import buffer_node
from tiny.engine.replay import HERE, CapturedStep, Given
from tiny.engine.signature import Layout, map_leaves, own_code
from tiny.engine.stored import (
    Argument,
    Content,
    ExportError,
    Moves,
    NumberLeaf,
    PlainLeaf,
    ResultLeaf,
    StoredCall,
    StoredKernel,
    StoredOutput,
    StoredResult,
    StoredValue,
    TensorLeaf,
    map_stored,
)
from tiny.helpers import STRICT_REDUCE
from tiny.schedule import Slot
from tiny.storage import in_turn, live_views
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
    stored = [_stored_call(step, layout, function, kept) for step, layout in calls]
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
    return ExportedStep(content, tensors)


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


def _stored_call(
    step: CapturedStep, layout: Layout, function: Callable[..., Any], state: _State
) -> StoredCall:
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
        tuple(_stored_arguments(step, layout, function)),
        template,
        tuple(results[: next(leaves, len(results))]),  # after them come gradients
        tuple(values),
        plan.cells,
        stored_steps(plan),
        plan.numbers,
        tuple([(device, int(words)) for device, words in plan.draws]),  # type: ignore[arg-type]
        plan.constants,
        tuple([state.number(node) for node in step.capture.bound]),
        tuple(
            [
                StoredOutput(slot.shape, slot.dtype, step.capture.placed.get(n))
                for n, slot in enumerate(step.capture.outputs)
            ]
        ),
        tuple(step.capture.spent),
    )


def _stored_arguments(
    step: CapturedStep, layout: Layout, function: Callable[..., Any]
) -> Iterator[Argument]:
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
            return PlainLeaf(x() if isinstance(x, weakref.ref) else x)
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

    parameters = _parameters(function)
    for name, source in layout:
        parameter = parameters.get(name)
        positional = isinstance(source, int) if parameter is None else parameter.kind in _POSITIONAL
        if isinstance(source, int | str):
            given = args[source] if isinstance(source, int) else kwargs[source]
            given = map_stored(given, lambda x: leaf(x, name), Given)  # noqa: B023
            yield Argument(name, given, positional)
        elif parameter is not None and type(parameter.default) in _DEFAULTS:
            yield Argument(name, PlainLeaf(parameter.default), positional)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_DEFAULTS = (bool, int, float, str, type(None))


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function by name; none where nobody knows them."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _stored_results(recipe: Recipe, state: _State) -> tuple[list[StoredValue], list[StoredResult]]:
    values = []
    for number, chain, constant, device in recipe.storages:
        if constant is None:
            values.append(StoredValue(number, 0, recipe.dtypes[number], _moves(chain), device))
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


# ---------------------------------------------------------------- loading


def load_step(
    path: str | os.PathLike[str], *, device: str | None = None, compile_now: bool = True
) -> ExportedStep:
    """A step from a file of `export_step`, compiled for this machine.

    With `device`, everything is there, wherever it was. Nothing in the file is trusted: each kernel
    is checked against the spec and proved to keep to its memory before it is compiled; that is left
    to the first call if not `compile_now`. ExportError says why a file is refused, OSError that it
    can not be read.
    """
    content, arrays = read_file(path)
    try:
        if device is not None:
            content = _moved(content, runtime().canonicalize_device(device))
        check_content(content)
        arrays.reverse()  # each is let go of when it is copied: no two copies of all weights
        state = [_filled(slot, arrays.pop()) for slot in content.slots]
        step = ExportedStep(content, state)
        if compile_now:
            step.compile()
        return step
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


def _filled(slot: Slot, array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor of some state."""
    buffer = Buffer(slot.device, array.size, slot.dtype)
    buffer.copyin(array.view(np.uint8).data)
    return Tensor(buffer_node(buffer, slot.shape))
