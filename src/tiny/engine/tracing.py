"""Capturing: from one call of a function to a step that can be replayed.

The function runs once more, with stand-ins for the tensors that it is given, while a recorder
notes all kernels. What it leaves behind says whether a replay can do the same.
"""

from __future__ import annotations

import enum
import gc
import itertools
import weakref
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

import numpy as np

from tiny.device import Buffer
from tiny.dtype import DType, dtypes
from tiny.engine.capture import Capture, Recording
from tiny.engine.holders import (
    Holders,
    Recipe,
    alias,
    hand_out,
    made_by,
    realize_step,
    root_of,
    settle,
    was_handed_out,
)
from tiny.engine.memory import Stale, buffer_node
from tiny.engine.replay import HERE, Arguments, CapturedStep, Given, Owner, check_sharing, copy_of
from tiny.engine.signature import (
    PLAIN,
    Call,
    Layout,
    is_input,
    is_number,
    leaves,
    map_arguments,
    map_leaves,
    number_variable,
)
from tiny.helpers import all_int
from tiny.storage import in_turn, live_views
from tiny.tensor import Tensor
from tiny.uop.ops import Ops, UOp
from tiny.uop.runtime import JitError, runtime

__all__ = ["capture_step"]

Function = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def capture_step(
    function: Function, layout: Layout, args: Args, kwargs: Kwargs, call: Call
) -> tuple[CapturedStep, Any]:
    """Call a function and record what it runs; the step, and the result of this call.

    JitError if a replay could not do the same.
    """
    traced = _Traced(function, layout, args, kwargs, call)
    recording, outputs = traced.recording, traced.outputs
    recipe = Recipe([*outputs, *[g for _, g in traced.gradients]], recording.token)
    _check_results(recipe, recording, traced.donated)
    if not recording.runs and not outputs:
        raise JitError(
            "the step computes nothing, so there is nothing to replay; call it without TinyJit"
        )
    capture = Capture(recording, [base.arg.uid for base in recipe.bases], traced.donated)
    recipe.let_go()
    check_sharing(traced.arguments, capture)
    # The function's own tensors go; whoever keeps one would not see what a replay makes instead.
    template = map_leaves(traced.result, lambda x: HERE if _is_result(x) else x)
    results = _handed_out(traced, outputs)
    step = CapturedStep(
        capture, recipe, template, _hold(capture, recording, traced.had), traced.call
    )
    step.kept = [owner for owner, _ in traced.gradients]
    given, had = [weakref.ref(t) for t in traced.given], traced.had
    del traced, outputs
    owners = _escaped(recording.token, results, given)
    _note_gradients(step, owners, call.tensors, results, had)
    rest = iter(results)
    return step, map_leaves(template, lambda x: next(rest) if x is HERE else x)


def _handed_out(traced: _Traced, outputs: list[Tensor]) -> list[Tensor]:
    """New tensors in the place of the function's own, with their gradients."""
    results = [traced.handed_out(t) for t in outputs]
    for own, new in zip(outputs, results, strict=True):
        new.grad = own.grad
    return results


class _Traced:
    """A call under a recorder: what the function was given, what it ran, what it returned."""

    def __init__(
        self, function: Function, layout: Layout, args: Args, kwargs: Kwargs, call: Call
    ) -> None:
        settle()
        self.arguments = Arguments(call.tensors)
        self._nodes = [copy_of(t) for t in self.arguments.tensors]
        self.given = [
            _stand_in(t, self._nodes[k])
            for t, k in zip(call.tensors, self.arguments.of, strict=True)
        ]
        for theirs, k in zip(self.given, self.arguments.of, strict=True):
            theirs._storage.stands_apart = self.arguments.stands_apart(k)
        self.had = [(weakref.ref(t), root_of(g)) for t, g in _gradients()]
        self.recording = Recording(self._nodes, call.numbers)
        self.donated = [
            k
            for k in range(len(self._nodes))
            if all(
                n in call.donated for n, parameter in enumerate(self.arguments.of) if parameter == k
            )
        ]
        for theirs, k in zip(self.given, self.arguments.of, strict=True):
            if k in self.donated:  # as if the step had made them: they may be returned
                theirs._storage.maker = self.recording.token
        args, kwargs = self._replace(layout, args, kwargs)
        before = leaves((args, kwargs))
        try:
            with self.recording:
                self.result = function(*args, **kwargs)
                self.outputs = _results(self.result)
                self.gradients = self._wanted_gradients()
                wanted = [*self.outputs, *[gradient for _, gradient in self.gradients]]
                realize_step(wanted, self.recording.written)
        finally:  # what was written before an error is written
            self._write_back()
        for theirs, mine in zip(self.given, call.tensors, strict=True):
            mine.grad = theirs.grad
        _check_unchanged(before, leaves((args, kwargs)))

    def _replace(self, layout: Layout, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """The arguments with stand-ins; `call` has what they stand for."""
        rest, numbers = iter(range(len(self.given))), itertools.count()
        marks: list[Given] = []

        def stand_in(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            new, number = x, None
            if is_number(x):
                if is_input(x):
                    bound = number_variable(next(numbers), x.uop.arg)
                    new, number = Tensor(bound.cast(x.dtype)), bound.src[0].arg.name
            elif 0 not in x.shape:
                k = next(rest)
                new, number = self.given[k], self.arguments.of[k]
            marks.append(Given(number, x.shape, x.dtype, x.requires_grad))
            return new

        def mark(x: Any) -> Any:
            if isinstance(x, UOp):
                return x.unbind_all()[0]
            if isinstance(x, Tensor):
                return next(given)
            try:  # an object may die, as far as this is concerned
                return x if isinstance(x, PLAIN) else weakref.ref(x)
            except TypeError:
                return x

        replaced = map_arguments(layout, args, kwargs, stand_in)
        given = iter(marks)
        self.call = map_arguments(layout, args, kwargs, mark)
        return replaced

    def _wanted_gradients(self) -> list[tuple[Owner, Tensor]]:
        """The gradients that are results too: those that the function leaves at tensors that
        say that they want one."""
        arguments = {id(t): k for k, t in enumerate(self.given)}
        results = {id(t): k for k, t in enumerate(self.outputs)}
        token = self.recording.token
        found = []
        for tensor, gradient in _gradients():
            if tensor.requires_grad is not True or gradient._storage.maker is not token:
                continue
            if id(tensor) in arguments:
                owner = Owner(argument=arguments[id(tensor)])
            elif id(tensor) in results:
                owner = Owner(result=results[id(tensor)])
            elif tensor._storage.maker is token:
                continue  # it is about to die
            else:
                owner = Owner(outside=weakref.ref(tensor))
            found.append((owner, gradient))
        return found

    def handed_out(self, result: Tensor) -> Tensor:
        """A tensor of the result, as the caller gets it: a donated argument is that itself."""
        for theirs, k in zip(self.given, self.arguments.of, strict=True):
            if theirs._storage is result._storage:
                mine = self.arguments.tensors[k].uop
                new = Tensor(result.uop.substitute({theirs._storage.node: mine}, walk=True))
                new.requires_grad = result.requires_grad
                return new
        if result._storage.maker is not self.recording.token:
            return hand_out(alias(result))
        return alias(result)

    def _write_back(self) -> None:
        """Write to the arguments what the function wrote to what stands for them."""
        written = set(self.recording.written)
        done = set()
        for theirs, k in zip(self.given, self.arguments.of, strict=True):
            if k not in done and theirs._storage in written:
                done.add(k)
                mine = self.arguments.tensors[k]
                mine.assign(Tensor(theirs.uop))
        if done:
            Tensor.realize(*[self.arguments.tensors[k] for k in done])


@in_turn
def _gradients() -> list[tuple[Tensor, Tensor]]:
    """All tensors that have gradients, with these."""
    return [(t, t.grad) for t in live_views() if t.grad is not None]


def _stand_in(tensor: Tensor, node: UOp) -> Tensor:
    """A tensor like an argument, over another BUFFER."""
    other = Tensor(node if all_int(tensor.shape) else node.front(tensor.shape))
    if other.shape != tensor.shape:
        other = other.reshape(tensor.shape)
    other.requires_grad, other.grad = tensor.requires_grad, tensor.grad
    return other


# ---------------------------------------------------------------- what it returns


def _is_result(x: Any) -> bool:
    return isinstance(x, Tensor) and not is_number(x)


def _results(x: Any) -> list[Tensor]:
    """The tensors of a result. JitError if something else could hide tensors."""
    found: list[Tensor] = []
    for path, leaf in leaves(x):
        if _is_result(leaf):
            if leaf.dtype in dtypes.weaks:
                raise JitError(
                    f"the function returns the number that it was given as a tensor{_at(path)}, "
                    "which would not be a new tensor in a replay; return a copy, x + 0"
                )
            found.append(leaf)
        elif not isinstance(leaf, _RETURNABLE):
            raise JitError(
                f"the function returns a {type(leaf).__name__}{_at(path)}, which a replay can not "
                "make; return tensors, numbers, text, and lists, tuples, dicts and dataclasses of "
                "them"
            )
    return found


_RETURNABLE = (
    Tensor,
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    enum.Enum,
    np.generic,
    DType,
    NoneType,
)


def _at(path: str) -> str:
    return f" in result{path}" if path else ""


def _check_unchanged(before: list[tuple[str, Any]], now: list[tuple[str, Any]]) -> None:
    """JitError if the function changed a list, a dict or a dataclass that it was given."""
    if len(before) == len(now) and all(
        old[0] == new[0] and old[1] is new[1] for old, new in zip(before, now, strict=True)
    ):
        return
    raise JitError(
        "the function changes a list, a dict or an object that it was given, which replays would "
        "not do; return the new values, or write to the tensors in it with .assign()"
    )


def _check_results(recipe: Recipe, recording: Recording, donated: Sequence[int]) -> None:
    """JitError if something is returned that a replay could not make anew."""
    given_away = {uid for uid, k in recording.params.items() if k in donated}
    for base in (*recipe.bases, *recipe.outside):
        if base.op is not Ops.BUFFER or base.arg.uid in given_away:
            continue
        if base.arg.uid in recording.params:
            raise JitError(
                f"the function returns an argument of shape {base.shape} or a view of one, which "
                "would not be a new tensor in a replay; return a copy, .clone(), or donate it"
            )
    assert all(base.arg.uid in recording.born | given_away for base in recipe.bases), (
        "what a step computes is in memory that it made"
    )


# ---------------------------------------------------------------- what it leaves behind


@in_turn
def _hold(
    capture: Capture, recording: Recording, had: Sequence[tuple[weakref.ref[Tensor], UOp]]
) -> Holders:
    """The tensors that a capture reads and writes without being given them."""
    constants: list[Tensor] = []
    wanted: dict[UOp, list[Tensor]] = {node: [] for node in (*capture.read, *capture.written)}
    views: dict[UOp, list[Tensor]] = {node: [] for node in wanted}
    for tensor in live_views():
        uop = tensor.uop
        if uop in wanted:
            wanted[uop].append(tensor)
        elif (base := root_of(tensor)) in views:
            views[base].append(tensor)
        elif (
            base.op is Ops.CONST
            and not recording.constants.isdisjoint(base.src)
            and tensor._storage.maker is not recording.token
        ):
            constants.append(tensor)
    for owner, before in had:
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
    own = [[t for t in whole if not was_handed_out(t)] or whole for whole in wanted.values()]
    tensors = [t for k, node in enumerate(wanted) for t in own[k] or views[node]]
    return Holders([*tensors, *constants])


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


def _note_gradients(
    step: CapturedStep,
    owners: Sequence[Tensor],
    arguments: Sequence[Tensor],
    results: Sequence[Tensor],
    had: Sequence[tuple[weakref.ref[Tensor], UOp]],
) -> None:
    """What a replay does with the gradients of tensors, besides making those that it makes."""
    argument = {id(t): k for k, t in enumerate(arguments)}
    result = {id(t): k for k, t in enumerate(results)}
    made = {id(owner.find(arguments, results)) for owner in step.kept}
    before = {id(t()) for t, _ in had}
    for tensor in owners:
        if id(tensor) not in made and tensor.grad is not None:
            if id(tensor) in argument:
                owner = Owner(argument=argument[id(tensor)])
            elif id(tensor) in result:
                owner = Owner(result=result[id(tensor)])
            else:
                owner = Owner(outside=weakref.ref(tensor))
            step.lost.append((owner, _stale(tensor.grad)))
        if id(tensor) not in before and id(tensor) not in argument and id(tensor) not in result:
            step.cleared.append(weakref.ref(tensor))
    step.emptied = [t for t, _ in had if (found := t()) is not None and found.grad is None]


def _stale(gradient: Tensor) -> Tensor:
    """A tensor like a gradient that raises when it is read."""
    device = runtime().canonicalize_device(gradient.device)
    node = buffer_node(Buffer(device, gradient.numel(), gradient.dtype), gradient.shape)
    node.handle = Stale(
        f"this gradient of shape {gradient.shape} was made inside a step that is replayed, which "
        "keeps only those of tensors with requires_grad=True; set that before the first call, or "
        "return the gradient from the function"
    )
    return Tensor(node)
