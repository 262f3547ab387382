"""JIT=3: a replay and a plain run side by side, compared.

Both start from the same memory and the same random numbers: the replay runs first, what it wrote
is kept aside and taken back, and then the function runs. What it leaves is what stays.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tiny import random
from tiny._core.alive import owners
from tiny.device import Buffer
from tiny.engine.holders import made_by, realize_step, settle
from tiny.engine.memory import buffer_of
from tiny.engine.replay import HERE, Arguments, CapturedStep, Owner, copy_of
from tiny.engine.signature import Call, Reader, is_number, leaves, map_arguments, plain
from tiny.storage import Storage, in_turn, live_views
from tiny.tensor import Tensor
from tiny.uop.ops import UOp
from tiny.uop.runtime import JitError, recorders
from tiny.views import memory_below

__all__ = ["run_both"]

Array = np.ndarray[Any, Any]


class _Witness:
    """The recorder of a plain run: it notes which memory is written, and what was in it before."""

    def __init__(self) -> None:
        self.token = object()
        self.before: dict[Storage, Array] = {}
        self._written: list[weakref.ref[Any]] = []

    def __enter__(self) -> _Witness:
        recorders[threading.get_ident()] = self
        return self

    def __exit__(self, *exc: object) -> None:
        del recorders[threading.get_ident()]

    def wrote(self, storage: Any) -> None:
        """A write is pending, so memory still has what was there before."""
        self._written.append(weakref.ref(storage))
        if storage.maker is not self.token and storage not in self.before:
            self.before[storage] = _buffer_below(storage).numpy()

    @property
    def written(self) -> list[Any]:
        """The storages written to that are still there."""
        return [s for s in (found() for found in self._written) if s is not None]

    def made(self, node: UOp) -> None:
        """Nothing: a plain run makes what it wants."""

    def loaded(self, node: UOp) -> None:
        """Nothing."""

    def ran(self, compiled: Any, made: dict[int, UOp], values: Mapping[str, float]) -> None:
        """Nothing."""

    def computed(self, graph: UOp) -> None:
        """Nothing."""

    def drew(self, device: str, words: int | UOp, name: str, key: int) -> None:
        """Nothing: how many were drawn is compared."""

    def refuse(self, what: str) -> None:
        """Nothing: a plain run may read values."""

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing."""
        yield


def run_both(
    step: CapturedStep,
    function: Callable[..., Any],
    reader: Reader,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    call: Call,
) -> Any:
    """Replay a step and run its function; the result of the function.

    JitError names what differs in any bit, NaN being equal to NaN: a result, a tensor that either
    of them writes, a gradient, or how many random numbers were drawn.
    """
    settle()
    arguments = Arguments(call.tensors)
    if any(cell.device.startswith("NULL") for cell in step.capture.plan.cells):
        return step.replay(arguments, call.numbers)  # there is nothing to compare
    step.prepare(arguments)
    written = _written_by(step, arguments)
    before = {storage: _buffer_below(storage).numpy() for storage in written}
    drawn = random.state()
    replay = step.run(arguments, call.numbers, donate=False)
    results = [t.numpy() for t in replay.tensors]
    gradients = [(owner, t.numpy()) for owner, t in replay.gradients]
    after = {storage: _buffer_below(storage).numpy() for storage in written}
    kinds = [t.requires_grad for t in replay.tensors]
    del replay
    for storage, contents in before.items():
        _buffer_below(storage).copyin(
            np.ascontiguousarray(contents).reshape(-1).view(np.uint8).data
        )
    drawn_by_replay = random.state()
    random.set_state(drawn)

    layout = reader.layout(args, kwargs)
    given = [_as_parameter(step, arguments, k) for k in range(len(call.tensors))]
    rest = iter(given)
    args, kwargs = map_arguments(layout, args, kwargs, lambda x: next(rest) if _is_given(x) else x)
    with _Witness() as witness:
        result = function(*args, **kwargs)
        tensors = [x for _, x in leaves(result) if isinstance(x, Tensor) and not is_number(x)]
        realize_step(tensors, witness.written)
    for theirs, mine in zip(given, call.tensors, strict=True):
        mine.grad = theirs.grad
    names = _names(reader, layout, args, kwargs)

    _compare_structures(step.template, result)
    paths = [path for path, x in leaves(step.template) if x is HERE]
    for path, replayed, kind, tensor in zip(paths, results, kinds, tensors, strict=True):
        if tensor.requires_grad is not kind:
            raise _differs(
                f"result{path}", f"requires_grad is {kind}, plain {tensor.requires_grad}"
            )
        _compare(f"result{path}", replayed, tensor.numpy())
    for storage in {**after, **witness.before}:
        replayed = after[storage] if storage in after else witness.before[storage]
        name = names.get(id(storage)) or f"a tensor of shape {storage.node.shape} that is written"
        _compare(name, replayed, _value(storage))
    _compare_gradients(gradients, witness.token, call.tensors, tensors, names)
    _check_leftovers(witness.token, tensors, names)
    if drawn_by_replay != (now := random.state()):
        raise _differs("the state of random numbers", f"{drawn_by_replay}, plain {now}")
    return result


def _is_given(x: Any) -> bool:
    return isinstance(x, Tensor) and not is_number(x) and 0 not in x.shape


def _buffer_below(storage: Storage) -> Buffer:
    """The memory of a storage."""
    node = memory_below(storage.node)
    assert node is not None, "what is written has memory"
    return buffer_of(node)


def _written_by(step: CapturedStep, arguments: Arguments) -> list[Storage]:
    """The storages that a replay writes."""
    found = [owners.get(node) for node in step.capture.written]
    changed = (*step.capture.written_params, *step.capture.returned)
    found += [arguments.tensors[k]._storage for k in changed]
    return [storage for storage in dict.fromkeys(found) if storage is not None]


def _as_parameter(step: CapturedStep, arguments: Arguments, k: int) -> Tensor:
    """The k-th tensor of a call; a copy where a replay reads a view of it as memory of its own.

    Else the plain run might add in another order.
    """
    tensor, parameter = arguments.given[k], arguments.of[k]
    place = arguments.places[parameter]
    if (place is not None and place[2]) or parameter in step.capture.written_params:
        return tensor
    copy = Tensor(copy_of(tensor))
    if copy.shape != tensor.shape:
        return tensor
    copy._storage.stands_apart = arguments.stands_apart(parameter)
    copy.requires_grad, copy.grad = tensor.requires_grad, tensor.grad
    return copy


def _value(storage: Storage) -> Array:
    """What is in a storage, in the order of its memory."""
    return Tensor._view(storage, storage.node, storage.node).numpy().reshape(-1)


def _names(
    reader: Reader, layout: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[int, str]:
    """What the storages of tensors are called: arguments, and what the code names."""
    found = {}
    for name, tensor in reader.named_tensors():
        found[id(tensor._storage)] = name
    for name, source in layout:
        if isinstance(source, int | str):
            value = args[source] if isinstance(source, int) else kwargs[source]
            for path, x in leaves(value, f"the argument {name}"):
                if isinstance(x, Tensor):
                    found[id(x._storage)] = path
    return found


def _differs(what: str, how: str) -> JitError:
    return JitError(
        f"JIT=3: {what} of a replay is not what a plain run gives: {how}. The function uses "
        "something that has changed since the capture and that a capture can not see, such as an "
        "attribute of an object (docs/jit.md); pass it as an argument, or call reset()"
    )


def _compare(what: str, replayed: Array, plainly: Array) -> None:
    """JitError unless two arrays are equal bit for bit; NaN is NaN."""
    if replayed.dtype != plainly.dtype or replayed.shape != plainly.shape:
        raise _differs(
            what,
            f"shape {replayed.shape} of {replayed.dtype}, plain {plainly.shape} of {plainly.dtype}",
        )
    bits = f"u{replayed.dtype.itemsize}"
    a, b = np.ascontiguousarray(replayed).reshape(-1), np.ascontiguousarray(plainly).reshape(-1)
    wrong = a.view(bits) != b.view(bits)
    if not wrong.any():
        return
    with np.errstate(all="ignore"):
        wrong &= ~((a != a) & (b != b))
        if not wrong.any():
            return
        first = int(wrong.argmax())
        place = tuple(int(k) for k in np.unravel_index(first, replayed.shape))
        text = f"{int(wrong.sum())} of {a.size} elements differ, the first at {place}: "
        text += f"{a[first]}, plain {b[first]}"
        if a.dtype.kind in "iufV" and int(wrong.sum()) > 1:
            gap = np.abs(a[wrong].astype(np.float64) - b[wrong].astype(np.float64))
            text += f"; the largest difference is {np.nanmax(gap):.6g}"
    raise _differs(what, text)


def _compare_structures(template: Any, result: Any) -> None:
    """JitError unless a result is built as that of the capture, with equal plain values."""
    old, new = leaves(template), leaves(result)
    if [path for path, _ in old] != [path for path, _ in new]:
        raise _differs("the structure of the result", f"{_shape(old)}, plain {_shape(new)}")
    for (path, before), (_, now) in zip(old, new, strict=True):
        if before is HERE:
            same = isinstance(now, Tensor) and not is_number(now)
        else:
            same = type(before) is type(now) and _comparable(before) == _comparable(now)
        if not same:
            shown = "a tensor" if before is HERE else repr(before)
            raise _differs(f"result{path}", f"{shown}, plain {now!r}")


def _comparable(x: Any) -> Any:
    """A value of a result to be compared."""
    return (x.dtype, plain(x.uop.arg)) if isinstance(x, Tensor) else plain(x)


def _shape(parts: Sequence[tuple[str, Any]]) -> str:
    return ", ".join([f"result{path}" for path, _ in parts]) or "nothing"


@in_turn
def _gradients_of(token: object) -> list[tuple[Tensor, Tensor]]:
    return [
        (t, t.grad)
        for t in live_views()
        if t.grad is not None and t.requires_grad is True and t.grad._storage.maker is token
    ]


def _compare_gradients(
    replayed: Sequence[tuple[Owner, Array]],
    token: object,
    arguments: Sequence[Tensor],
    results: Sequence[Tensor],
    names: dict[int, str],
) -> None:
    """JitError unless both leave the same gradients."""
    left = {id(t): (t, gradient) for t, gradient in _gradients_of(token)}
    for owner, expected in replayed:
        tensor = owner.find(arguments, results)
        if tensor is None:
            continue
        name = (
            f"the gradient of {names.get(id(tensor._storage), f'a tensor of shape {tensor.shape}')}"
        )
        _, gradient = left.pop(id(tensor), (None, None))
        if gradient is None:
            raise _differs(name, "there is one, plain none")
        _compare(name, expected, gradient.numpy())
    for tensor, _ in left.values():
        if tensor._storage.maker is not token:
            name = names.get(id(tensor._storage), f"a tensor of shape {tensor.shape}")
            raise _differs(f"the gradient of {name}", "there is none, plain one")


def _check_leftovers(token: object, results: Sequence[Tensor], names: dict[int, str]) -> None:
    """JitError if the plain run keeps a tensor somewhere, which no replay does."""
    mine = {id(t) for t in results}

    def kept() -> list[Any]:
        gradients = {id(t.grad) for t in live_views() if t.grad is not None}
        return [t.shape for t in made_by(token) if id(t) not in mine | gradients]

    if kept():
        gc.collect()
        if shapes := kept():
            raise _differs("what is kept outside", f"nothing, plain a tensor of shape {shapes[0]}")
