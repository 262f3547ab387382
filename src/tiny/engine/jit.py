"""`TinyJit`: a step of a program, captured once and replayed without Python between kernels."""

from __future__ import annotations

import copy
import dis
import functools
import gc
import threading
import types
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import numpy as np

from tiny.device import Buffer, Device
from tiny.dtype import DType, _to_np_dtype, dtypes
from tiny.engine.capture import Capture, Recording
from tiny.engine.holders import (
    Holders,
    Recipe,
    alias,
    compute_readers,
    made_by,
    memory_of,
    own_memory,
    realize_step,
    root_of,
    settle,
    storage_number,
)
from tiny.engine.memory import Stale, buffer_node, buffer_of
from tiny.helpers import (
    DEFAULT_FLOAT,
    DEFAULT_INT,
    DEV,
    JIT,
    NO_MEMORY_PLANNER,
    NOOPT,
    STRICT_REDUCE,
    TRAINING,
    ContextVar,
)
from tiny.storage import in_turn, live_views, pending_count
from tiny.tensor import Tensor
from tiny.uop.ops import Ops, UOp
from tiny.uop.runtime import JitError, recorder, runtime

__all__ = ["JitError", "TinyJit"]

P = ParamSpec("P")
R = TypeVar("R")

MOST_CAPTURES = 16
MOST_SEEN = 256  # signatures that were called once

_NUMBERS = (bool, int, float, str)
# what the function may do otherwise without being given anything else
_SETTINGS = (TRAINING, DEFAULT_FLOAT, DEFAULT_INT, DEV, NOOPT, STRICT_REDUCE, NO_MEMORY_PLANNER)
_last_read = threading.local()  # their values in each thread, as of which number of changes


def _settings() -> tuple[Any, ...]:
    """The values of the context variables that a signature has."""
    changes = ContextVar.changes
    if getattr(_last_read, "changes", -1) != changes:
        _last_read.values = tuple([setting.value for setting in _SETTINGS])
        _last_read.changes = changes
    values: tuple[Any, ...] = _last_read.values
    return values


# ---------------------------------------------------------------- signatures


class _Signature(NamedTuple):
    """What a call is told apart by, and what it is given: tensors, and values of Variables."""

    key: tuple[Any, ...]
    tensors: list[Tensor]
    numbers: dict[str, int]


def _read(x: Any, parts: list[Any], tensors: list[Tensor], numbers: dict[str, int]) -> None:
    """Take an argument apart: its structure and plain values go to `parts`."""
    if isinstance(x, Tensor):
        if _is_number(x):
            parts.append((Tensor, *_plain(x.uop.arg)))
            return
        parts.append((Tensor, x.shape, x.dtype, x.device, x.requires_grad))
        if 0 not in x.shape:
            tensors.append(x)
    elif isinstance(x, UOp) and x.op is Ops.BIND:
        variable, value = x.unbind()
        if numbers.setdefault(variable.arg.name, value) != value:
            raise ValueError(
                f"TinyJit: the variable {variable.arg.name!r} is given as {value} and as "
                f"{numbers[variable.arg.name]}; bind it once"
            )
        parts.append(variable)
    elif isinstance(x, list | tuple):
        parts.append((type(x), len(x)))
        for item in x:
            _read(item, parts, tensors, numbers)
    elif isinstance(x, dict):
        parts.append((type(x), tuple(x)))
        for item in x.values():
            _read(item, parts, tensors, numbers)
    else:
        parts.append(_plain(x))


def _plain(x: Any) -> tuple[Any, ...]:
    """A value as a part of a signature: 1, 1.0 and True are not the same, and NaN is NaN."""
    if isinstance(x, float):
        return type(x), float.hex(x)
    try:
        hash(x)
    except TypeError:
        raise JitError(
            f"an argument is a {type(x).__name__}: what is in it would be frozen; pass tensors, "
            "as in Tensor(array)"
        ) from None
    return type(x), x


def _map(x: Any, change: Callable[[Any], Any]) -> Any:
    """A structure of lists, tuples and dicts with its leaves changed."""
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*[_map(item, change) for item in x])
    if isinstance(x, list | tuple):
        return type(x)(_map(item, change) for item in x)
    if isinstance(x, dict):
        new = copy.copy(x)
        for name, item in x.items():
            new[name] = _map(item, change)
        return new
    return change(x)


def _is_number(tensor: Tensor) -> bool:
    """Whether a tensor is a Python number, without a dtype of its own."""
    return tensor.uop.op is Ops.CONST and tensor.dtype in dtypes.weaks


def _is_given(x: Any) -> bool:
    """Whether an argument is a tensor with memory to be given to a replay."""
    return isinstance(x, Tensor) and 0 not in x.shape and not _is_number(x)


class _Surroundings:
    """The numbers, bools, strings and tensors that a function's own code names.

    They are in closure cells and globals.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        while not hasattr(function, "__code__"):
            if hasattr(function, "func"):  # functools.partial
                function = function.func
            elif hasattr(function, "__func__"):
                function = function.__func__
            else:
                function = type(function).__call__
                if not hasattr(function, "__code__"):
                    break
        code = getattr(function, "__code__", None)
        self._globals: dict[str, Any] = getattr(function, "__globals__", {})
        cells = getattr(function, "__closure__", None) or ()
        self._cells = list(zip(code.co_freevars, cells, strict=True)) if code else []
        self._names = sorted(_global_names(code)) if code else []

    def read(self, parts: list[Any]) -> None:
        """Add those there are now to the parts of a signature."""
        for name, cell in self._cells:
            try:
                value = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            _read_surrounding(name, value, parts)
        for name in self._names:
            _read_surrounding(name, self._globals.get(name), parts)


def _read_surrounding(name: str, value: Any, parts: list[Any]) -> None:
    if type(value) in _NUMBERS:
        parts.append((name, *_plain(value)))
    elif isinstance(value, Tensor):  # which one; its death is noticed
        parts.append((name, id(value)))


def _global_names(code: types.CodeType) -> set[str]:
    """The names that a function and those written inside it look up outside of themselves."""
    found = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")  # attributes are names of code too
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _global_names(constant)
    return found


def _difference(a: tuple[Any, ...], b: tuple[Any, ...]) -> str:
    """What of two signatures differs, for people."""
    for old, new in zip(a, b, strict=False):
        if old != new:
            return f"{_part_text(old)}, then {_part_text(new)}"
    return f"{len(a)} parts, then {len(b)}"


def _part_text(part: Any) -> str:
    if isinstance(part, tuple) and part and isinstance(part[0], type):
        return " ".join([part[0].__name__, *map(str, part[1:])])
    return " ".join(map(str, part)) if isinstance(part, tuple) else str(part)


# ---------------------------------------------------------------- one captured call


class _Arguments:
    """The tensors of a call, realised, by parameter: whole ones of one storage are one.

    Of each parameter: its first tensor, its memory, the Buffer that this is in (of constants
    none), and whether it is all of it.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        for t in tensors:
            if t.uop.op is not Ops.BUFFER:
                Tensor.realize(*tensors)
                break
        self.tensors: list[Tensor] = []
        self.memory: list[Any] = []
        self.buffers: list[Buffer | None] = []
        self.is_whole: list[bool] = []
        self.of: list[int] = []  # by tensor: its parameter
        self._alive: list[UOp] = []
        first: dict[tuple[int, DType], int] = {}
        for t in tensors:
            number = len(self.memory)
            place = memory_of(t)
            if place is not None and place[2]:
                number = first.setdefault((storage_number(t), t.dtype), number)
            self.of.append(number)
            if number == len(self.memory):
                self.tensors.append(t)
                self._add(t, place)

    def _add(self, tensor: Tensor, place: tuple[UOp, int, bool] | None) -> None:
        """A parameter: memory of the tensor, a part of it, or a copy where it is not in order."""
        if place is None:
            node = _copy_of(tensor)
            self._alive.append(node)
            self.memory.append(buffer_of(node).memory)
            base = root_of(tensor)
            self.buffers.append(buffer_of(base) if base.op is Ops.BUFFER else None)
            self.is_whole.append(False)
            return
        node, offset, is_whole = place
        buffer = buffer_of(node)
        memory = buffer.memory
        if not is_whole:
            itemsize = tensor.dtype.itemsize
            memory = Device[buffer.device].allocator._offset(
                memory, tensor.numel() * itemsize, offset * itemsize
            )
        self.memory.append(memory)
        self.buffers.append(buffer)
        self.is_whole.append(is_whole)

    def check(self, capture: Capture) -> None:
        """JitError if one shares memory with what the step writes, where that would differ."""
        if capture.written_buffers:
            for buffer in self.buffers:
                if id(buffer) in capture.written_buffers:
                    raise JitError(
                        f"an argument shares memory ({buffer}) with a tensor that the step writes "
                        "to on its own account; pass a copy, .clone()"
                    )
        for k in capture.written_params:
            buffer, shape = self.buffers[k], self.tensors[k].shape
            if not self.is_whole[k]:
                raise JitError(
                    f"the step writes to an argument of shape {shape} that is a view of a "
                    "larger or a constant tensor; pass the whole tensor and slice inside"
                )
            if id(buffer) in capture.read_buffers or self.buffers.count(buffer) > 1:
                raise JitError(
                    f"the step writes to an argument of shape {shape} that shares memory "
                    "with another argument, or with a tensor that it reads on its own account; "
                    "pass a copy, .clone()"
                )


def _copy_of(tensor: Tensor) -> UOp:
    """A new BUFFER with the elements of a realised tensor, in order."""
    uop = tensor.uop
    if uop.op is Ops.CONST:
        value = np.full((), uop.arg, _to_np_dtype(uop.dtype))
        return runtime().from_host(value, runtime().canonicalize_device(tensor.device))
    whole = UOp(Ops.CONTIGUOUS, uop.dtype, (uop,))
    return buffer_node(buffer_of(runtime().realize([whole])[whole].base), tensor.shape)


class _Step:
    """A call that was captured, to be replayed for calls of the same signature."""

    def __init__(self, capture: Capture, recipe: Recipe, template: Any, holders: Holders) -> None:
        self.capture, self.recipe, self.template = capture, recipe, template
        self.holders = holders
        # tensors at which the function leaves gradients, and what stands for those of replays
        self.gradients: list[tuple[weakref.ref[Tensor], Tensor]] = []
        self.cleared: list[weakref.ref[Tensor]] = []  # those that had none before the call
        self._clean: weakref.WeakSet[UOp] = weakref.WeakSet()
        self._seen = -1

    def is_valid(self) -> bool:
        """Whether the tensors that it reads and writes are still those; prepares them for it."""
        for owner in self.cleared:
            if (tensor := owner()) is not None and tensor.grad is not None:
                return False  # the function would add to it
        changed = pending_count() != self._seen
        if changed:
            self.holders.settle()
        if self.holders.is_lost or not self.recipe.is_complete():
            return False
        for owner, gradient in self.gradients:
            if (tensor := owner()) is not None:
                tensor.grad = gradient
        if changed:
            compute_readers(self.capture.written, self._clean)
            self._seen = pending_count()
        return True

    def replay(self, arguments: _Arguments, numbers: dict[str, int]) -> Any:
        """Run it again; the result."""
        capture = self.capture
        arguments.check(capture)
        memory = arguments.memory
        if capture.written_params:
            own = {k: own_memory(arguments.tensors[k]) for k in capture.written_params}
            compute_readers(own.values(), weakref.WeakSet())
            for k, node in own.items():
                memory[k] = buffer_of(node).memory
        made = capture.run(memory, tuple(numbers.values()))
        bases = [buffer_node(b, slot.shape) for b, slot in zip(made, capture.fresh, strict=True)]
        tensors = self.recipe.make(bases, numbers)
        if self.template is _HERE:
            return tensors[0]
        rest = iter(tensors)
        return _map(self.template, lambda leaf: next(rest) if leaf is _HERE else leaf)


_HERE = object()  # in the template of a result: a tensor


def _stale(gradient: Tensor) -> Tensor:
    """A tensor like a gradient that raises when it is read."""
    device = runtime().canonicalize_device(gradient.device)
    node = buffer_node(Buffer(device, gradient.numel(), gradient.dtype), gradient.shape)
    node.handle = Stale(
        f"this gradient of shape {gradient.shape} was made inside a step that is replayed, which "
        "keeps none; return it from the function, or read it inside"
    )
    return Tensor(node)


def _results(x: Any) -> list[Tensor]:
    """The tensors of a result. JitError if something else could hide tensors."""
    found: list[Tensor] = []

    def note(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            if not _is_number(leaf):
                found.append(leaf)
        elif not isinstance(leaf, bool | int | float | str | bytes | DType | None):
            raise JitError(
                f"the function returns a {type(leaf).__name__}, which a replay can not make; "
                "return tensors in lists, tuples and dicts"
            )
        return leaf

    _map(x, note)
    return found


def _capture(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    signature: _Signature,
) -> tuple[_Step, Any]:
    """Call a function and record what it runs; the step, and the result of this call."""
    settle()
    arguments = _Arguments(signature.tensors)
    nodes = [_copy_of(t) for t in arguments.tensors]
    given = [_substitute(t, nodes[k]) for t, k in zip(signature.tensors, arguments.of, strict=True)]
    gradients = [(weakref.ref(t), root_of(t.grad)) for t in live_views() if t.grad is not None]
    rest = iter(given)

    def substitute(leaf: Any) -> Any:
        return next(rest) if _is_given(leaf) else leaf

    args = _map(args, substitute)
    kwargs = {name: _map(kwargs[name], substitute) for name in sorted(kwargs)}
    with Recording(nodes, signature.numbers) as recording:
        result = function(*args, **kwargs)
        outputs = _results(result)
        realize_step(outputs, recording.written)
    recipe = Recipe(outputs, recording.token)
    _check_results(recipe, recording)
    capture = Capture(recording, [base.arg.uid for base in recipe.bases])
    for tensor, theirs in zip(signature.tensors, given, strict=True):
        tensor.grad = theirs.grad
    arguments.check(capture)
    for k in capture.written_params:
        arguments.tensors[k].assign(Tensor(nodes[k])).realize()
    # The function's own tensors go; whoever keeps one would not see what a replay makes instead.
    template = _map(result, lambda x: _HERE if _is_result(x) else x)
    results = [alias(t) for t in outputs]
    kept = [weakref.ref(t) for t in given]
    outputs.clear()
    given.clear()
    del result, args, kwargs, theirs
    step = _Step(capture, recipe, template, _hold(capture, gradients))
    given_ids = {id(t) for t in signature.tensors}
    had = {id(owner()) for owner, _ in gradients} | given_ids
    owners = _escaped(recording.token, results, kept)
    step.gradients = [(weakref.ref(t), _stale(t.grad)) for t in owners if t.grad is not None]
    step.cleared = [weakref.ref(t) for t in owners if id(t) not in had]
    del owners
    new = iter(results)
    return step, _map(template, lambda x: next(new) if x is _HERE else x)


def _is_result(x: Any) -> bool:
    return isinstance(x, Tensor) and not _is_number(x)


def _substitute(tensor: Tensor, node: UOp) -> Tensor:
    """A tensor like an argument, over another BUFFER."""
    other = Tensor(node)
    if other.shape != tensor.shape:
        other = other.reshape(tensor.shape)
    other.requires_grad, other.grad = tensor.requires_grad, tensor.grad
    return other


def _check_results(recipe: Recipe, recording: Recording) -> None:
    """JitError if something is returned that a replay could not make anew."""
    for base in (*recipe.bases, *recipe.outside):
        if base.op is Ops.BUFFER and base.arg.uid in recording.params:
            raise JitError(
                f"the function returns an argument of shape {base.shape} or a view of one, which "
                "would not be a new tensor in a replay; return a copy, .clone()"
            )
    for base in recipe.bases:
        if base.arg.uid not in recording.born:
            raise JitError(
                f"a result shares memory with a tensor of shape {base.shape} from outside; "
                "return a copy, .clone()"
            )


@in_turn
def _hold(capture: Capture, gradients: Sequence[tuple[weakref.ref[Tensor], UOp]]) -> Holders:
    """The tensors that a capture reads and writes without being given them."""
    wanted: dict[UOp, list[Tensor]] = {node: [] for node in (*capture.read, *capture.written)}
    views: dict[UOp, list[Tensor]] = {node: [] for node in wanted}
    for tensor in live_views():
        uop = tensor.uop
        if uop in wanted:
            wanted[uop].append(tensor)
        elif (base := root_of(tensor)) in views:
            views[base].append(tensor)
    for owner, before in gradients:
        tensor_now = owner()
        if before in wanted and tensor_now is not None:
            now = tensor_now.grad
            if now is None or root_of(now) is not before:
                raise JitError(
                    f"the step adds to a gradient of shape {before.shape} from before the call; "
                    "call zero_grad() inside the step, before backward()"
                )
    for node, whole in wanted.items():
        if not whole and not views[node]:
            raise JitError(
                f"the step replaces a tensor of shape {node.shape} that it reads: a replay would "
                "read the old one for ever; write to it with .assign()"
            )
    return Holders([t for node, whole in wanted.items() for t in whole or views[node]])


@in_turn  # or a list of all tensors that another thread has would keep one
def _escaped(
    token: object, results: Sequence[Tensor], given: Sequence[weakref.ref[Tensor]]
) -> list[Tensor]:
    """The tensors at which a step leaves gradients. JitError if it leaves anything else behind."""
    mine = {id(t) for t in results}

    def leftovers() -> tuple[list[Tensor], list[Tensor]]:
        owners = {id(t.grad): t for t in live_views() if t.grad is not None}
        left = [t for t in made_by(token) if id(t) not in mine]
        left += [t for t in (found() for found in given) if t is not None]
        return [owners[id(t)] for t in left if id(t) in owners], [
            t for t in left if id(t) not in owners
        ]

    owners, kept = leftovers()
    if kept:
        kept.clear()
        gc.collect()  # what is only in a cycle is not left behind
        owners, kept = leftovers()
    if kept:
        raise JitError(
            f"the function keeps a tensor of shape {kept[0].shape}, an argument or one that it "
            "computed, in some place outside: replays would not change it; return it, or write to "
            "a tensor that is there already with .assign()"
        )
    return owners


# ---------------------------------------------------------------- the decorator


class _Table:
    """What is known of the signatures of one function, or of a method of one object."""

    def __init__(self) -> None:
        self.seen: OrderedDict[tuple[Any, ...], None] = OrderedDict()  # called once
        self.steps: dict[tuple[Any, ...], _Step] = {}
        self.losses = 0
        self.has_warned = False

    def warn(self, reason: str) -> None:
        """Say once why calls run plainly."""
        if not self.has_warned:
            self.has_warned = True
            warnings.warn(
                f"TinyJit: {reason}; further calls run plainly", UserWarning, stacklevel=4
            )


class TinyJit(Generic[P, R]):
    """A function of tensors that is run plainly once, captured at the second call, then replayed.

        @TinyJit
        def step(x): ...

    A replay builds no graphs and runs no Python of the function: its kernels run one after the
    other, on the CPU in one native call. Calls are told apart by their *signature*, and each has a
    capture of its own:

    - the structure of the arguments (lists, tuples and dicts may hold tensors),
    - shape, dtype and device of each tensor, and which of them are one,
    - name and range of each bound Variable: its value is an input,
    - the value of any other argument,
    - the value of each number, bool and string in a closure cell or a global that the function's
      own code names, and TRAINING and the like.

    After 16 captures other signatures run plainly, under one warning. Each call returns new
    tensors. What the step writes with `assign` is written by replays; random numbers go on. A
    decorated method has captures for each object. A TinyJit called while another one captures
    becomes a part of it. `JIT=0` runs everything plainly.

    JitError is raised where a replay would be wrong: a value is read inside (`item`, `numpy`);
    an argument shares memory with something written; an argument or a view of one is returned;
    a tensor that is read is replaced instead of written, or one that was computed is kept
    outside; nothing is computed. Gradients that a step leaves behind can be read until the first
    replay; then reading them raises.

    What can not be seen, and is as it was at the capture: attributes of objects, items of
    containers and elements of arrays that the function reads, values in modules and classes;
    and whatever it does besides computing tensors (printing, counting, appending) is not done.
    """

    def __init__(self, fxn: Callable[P, R]) -> None:
        self.fxn = fxn
        self._surroundings = _Surroundings(fxn)
        self._table = _Table()
        self._tables: dict[int, tuple[Any, _Table]] = {}  # of methods, by object
        functools.update_wrapper(self, fxn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, or replay it."""
        result: R = self._run(self._table, self.fxn, args, kwargs)
        return result

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The method of an object."""
        return self if instance is None else _Method(self, instance)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.fxn,)  # a copy captures for itself

    def __repr__(self) -> str:
        return f"<TinyJit of {self.fxn!r}, {len(self._table.steps)} captures>"

    @property
    def captures(self) -> list[Capture]:
        """What is captured, the oldest first."""
        return [step.capture for step in self._table.steps.values()]

    def reset(self) -> None:
        """Forget all captures: the next calls run plainly and capture anew."""
        self._table = _Table()
        self._tables.clear()

    def _table_of(self, instance: Any) -> _Table:
        """What is known of a method of an object; it is forgotten with the object."""
        number = id(instance)
        if number not in self._tables:
            tables = self._tables
            try:
                kept: Any = weakref.ref(instance, lambda _: tables.pop(number, None))
            except TypeError:  # an object that can not be watched is kept
                kept = instance
            tables[number] = kept, _Table()
        return self._tables[number][1]

    def _run(
        self,
        table: _Table,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if not JIT or recorder() is not None:
            return function(*args, **kwargs)
        signature, arguments = self._signature(args, kwargs)
        step = table.steps.get(signature.key)
        if step is not None:
            if step.is_valid():
                return step.replay(arguments, signature.numbers)
            table.steps.pop(signature.key, None)
            table.losses += 1
        if signature.key in table.seen:
            step, result = _capture(function, args, kwargs, signature)
            table.seen.pop(signature.key, None)  # unless another thread did
            table.steps[signature.key] = step
            return result
        if table.losses >= MOST_CAPTURES:
            table.warn(
                f"{MOST_CAPTURES} captures of {self._name()} were of no use, since tensors that "
                "it reads were replaced between calls (write to them with .assign())"
            )
        elif len(table.steps) >= MOST_CAPTURES:
            known = next(reversed(table.steps))
            table.warn(
                f"{self._name()} was captured for {MOST_CAPTURES} signatures, and calls still "
                f"differ ({_difference(known, signature.key)})"
            )
        else:
            table.seen[signature.key] = None
            if len(table.seen) > MOST_SEEN:
                table.seen.popitem(last=False)
        result = function(*args, **kwargs)
        tensors: list[Tensor] = []
        _map(result, lambda x: tensors.append(x) if isinstance(x, Tensor) else None)
        if tensors:
            Tensor.realize(*tensors)
        return result

    def _name(self) -> str:
        return getattr(self.fxn, "__qualname__", repr(self.fxn))

    def _signature(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[_Signature, _Arguments]:
        parts: list[Any] = [_settings()]
        self._surroundings.read(parts)
        tensors: list[Tensor] = []
        numbers: dict[str, int] = {}
        parts.append(len(args))
        for x in args:
            _read(x, parts, tensors, numbers)
        if kwargs:
            for name in sorted(kwargs):
                parts.append(name)
                _read(kwargs[name], parts, tensors, numbers)
        arguments = _Arguments(tensors)
        if len(arguments.memory) < len(tensors):
            parts.append(("one tensor", *arguments.of))
        return _Signature(tuple(parts), tensors, numbers), arguments


class _Method:
    """A TinyJit as the method of an object."""

    def __init__(self, jit: TinyJit[..., Any], instance: Any) -> None:
        self._jit, self._instance = jit, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method, or replay it."""
        function = functools.partial(self._jit.fxn, self._instance)
        return self._jit._run(self._jit._table_of(self._instance), function, args, kwargs)

    @property
    def captures(self) -> list[Capture]:
        """What is captured for this object, the oldest first."""
        return [s.capture for s in self._jit._table_of(self._instance).steps.values()]

    def reset(self) -> None:
        """Forget the captures of this object."""
        self._jit._tables.pop(id(self._instance), None)
