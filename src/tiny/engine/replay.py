"""Replaying: a captured step, called with the memory of other arguments."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tiny._core.replay import QuickStep
from tiny.device import Buffer, Device
from tiny.dtype import DType, _to_np_dtype, dtypes
from tiny.engine.capture import Capture
from tiny.engine.holders import (
    Holders,
    Recipe,
    alias,
    memory_of,
    own_memory,
    root_of,
    storage_number,
)
from tiny.engine.memory import buffer_node, buffer_of
from tiny.engine.signature import map_leaves
from tiny.helpers import DEBUG, all_int
from tiny.mixin.sizes import most
from tiny.storage import compute_readers, pending_count
from tiny.tensor import Tensor
from tiny.uop.ops import Ops, UOp
from tiny.uop.runtime import JitError, is_file, runtime
from tiny.views import in_order

__all__ = ["HERE", "Arguments", "CapturedStep", "Given", "Owner", "copy_of"]

HERE = object()  # in the template of a result: a tensor

Place = tuple[UOp, int, bool]  # a BUFFER, how many of its elements come before, whether it is all


class Given(NamedTuple):
    """Stands for a tensor in what is kept of the call that was captured.

    `parameter` is its number among the parameters; the name of a variable if it is a Python
    number; None if it has no elements.
    """

    parameter: int | str | None
    shape: tuple[Any, ...]
    dtype: DType
    requires_grad: bool | None


class Owner(NamedTuple):
    """The tensor at which a step leaves a gradient: an argument, a result, or one from outside."""

    argument: int | None = None
    result: int | None = None
    outside: weakref.ref[Tensor] | None = None

    def find(self, arguments: Sequence[Tensor], results: Sequence[Tensor]) -> Tensor | None:
        """It, in a call; None if it is gone."""
        if self.argument is not None:
            return arguments[self.argument]
        if self.result is not None:
            return results[self.result]
        assert self.outside is not None
        return self.outside()


class Arguments:
    """The tensors of a call, realised, by parameter: whole ones of one storage are one.

    `tensors` has the first tensor of each parameter, `places` where it lies in one piece and in
    order, or None; `of` the parameter of each tensor.
    """

    def __init__(self, given: Sequence[Tensor]) -> None:
        self.given = given
        nodes = [t.uop for t in given]
        if any(node.op is not Ops.BUFFER for node in nodes):
            Tensor.realize(*given)
            nodes = [t.uop for t in given]
        self.tensors: list[Tensor] = list(given)
        self.places: list[Place | None] = [
            (node, 0, True) if node.op is Ops.BUFFER else memory_of(t)
            for t, node in zip(given, nodes, strict=True)
        ]
        self.of: Sequence[int] = range(len(self.tensors))
        self.sharing: tuple[Any, ...] = ()  # which tensors are one, and which overlap
        self.copies: dict[int, UOp] = {}  # by parameter, of those that are not in order
        self._storages: dict[int, list[int]] | None = None  # by storage: its parameters
        if len({storage_number(t) for t in given}) < len(self.tensors):
            self._join()
        if None in self.places:
            # where it matters to `contiguous`, which is a view of what is in order
            apart = tuple([k for k in range(len(self.tensors)) if self.stands_apart(k)])
            self.sharing = *self.sharing, "out of order", apart

    def _join(self) -> None:
        """Let whole tensors of one storage be one parameter; note which others overlap."""
        places, self.places = self.places, []
        self.tensors, of = [], []
        by_storage: dict[int, list[int]] = {}
        self._storages = by_storage
        for t, place in zip(self.given, places, strict=True):
            mine = by_storage.setdefault(storage_number(t), [])
            if mine and place is not None and place[2]:
                same = [k for k in mine if self._is_whole(k) and self.tensors[k].dtype is t.dtype]
                if same:
                    of.append(same[0])
                    continue
            of.append(len(self.tensors))
            mine.append(len(self.tensors))
            self.tensors.append(t)
            self.places.append(place)
        self.of = of
        pairs = [(k, j) for mine in by_storage.values() for k in mine for j in mine if k < j]
        self.sharing = *of, *[pair for pair in pairs if self._overlap(*pair)]

    def stands_apart(self, k: int) -> bool:
        """Whether the elements of a parameter are not in order where they are."""
        tensor = self.tensors[k]
        return self.places[k] is None and not in_order(tensor.uop, tensor._storage.node)

    def _is_whole(self, k: int) -> bool:
        place = self.places[k]
        return place is not None and place[2]

    def _overlap(self, k: int, j: int) -> bool:
        """Whether two parameters of one storage share elements, as far as that is known."""
        a, b = self._span(k), self._span(j)
        return a is None or b is None or (a[0] < b[1] and b[0] < a[1])

    def _span(self, k: int) -> tuple[int, int] | None:
        """The bytes of the storage that a parameter takes; None if they are not in one piece."""
        place = self.places[k]
        tensor = self.tensors[k]
        if place is None or not all_int(tensor.shape):
            return None
        begin = place[1] * tensor.dtype.itemsize
        return begin, begin + tensor.numel() * tensor.dtype.itemsize

    def sharers(self, k: int) -> bool:
        """Whether another parameter shares elements with this one."""
        if self._storages is None:
            return False
        mine = self._storages[storage_number(self.tensors[k])]
        return any(j != k and self._overlap(k, j) for j in mine)

    def locate(self) -> None:
        """Find out anew where they lie: memory was given to some storages."""
        self.places = [memory_of(t) for t in self.tensors]

    def memory(self) -> list[Any]:
        """The memory of each parameter; that of a copy where its elements are not in order."""
        found = []
        for k, place in enumerate(self.places):
            if place is None:
                self.copies[k] = copy_of(self.tensors[k])
                found.append(buffer_of(self.copies[k]).memory)
            elif place[2]:
                found.append(buffer_of(place[0]).memory)
            else:
                found.append(_piece(self.tensors[k], place))
        return found

    def take(self, k: int) -> Buffer | None:
        """The memory of a parameter that is given away; None if something else sees it too."""
        place = self.places[k]
        mine = [t for t, parameter in zip(self.given, self.of, strict=True) if parameter == k]
        if place is None or any(t.uop is not place[0] for t in mine):
            return None
        buffer = buffer_of(place[0])
        users: int = getattr(buffer.memory, "users", 0)  # views of it by others
        if users or not buffer.is_own():
            return None
        del buffer
        now, fewest = _references(self, k), _fewest_references(len(mine))
        alone = all(n <= least for n, least in zip(now, fewest, strict=True))
        return buffer_of(place[0]) if alone else None

    def buffers(self) -> Iterator[Buffer]:
        """The memory that each of them is in, but of constants."""
        for tensor, place in zip(self.tensors, self.places, strict=True):
            base = root_of(tensor) if place is None else place[0]
            if base.op is Ops.BUFFER:
                yield buffer_of(base)


def _references(arguments: Arguments, k: int) -> tuple[int, int, int]:
    """How much refers to the BUFFER of a parameter, to its memory, and to its storage.

    Graphs and captures refer to the BUFFER. A view refers to the storage; if that was computed
    since, not to the BUFFER yet.
    """
    place, storage = arguments.places[k], arguments.tensors[k]._storage
    assert place is not None
    node = place[0]
    return sys.getrefcount(node), sys.getrefcount(node.handle), sys.getrefcount(storage)


@functools.cache
def _fewest_references(count: int) -> tuple[int, int, int]:
    """How much refers to a BUFFER of which there are `count` tensors, and nothing else."""
    tensor = Tensor(runtime().empty((1,), dtypes.uint8, runtime().default_device()))
    return _references(Arguments([tensor, *[alias(tensor) for _ in range(count - 1)]]), 0)


def _piece(tensor: Tensor, place: Place) -> Any:
    """The memory of a tensor that is a part of a BUFFER, in one piece."""
    node, offset, _ = place
    buffer = buffer_of(node)
    itemsize = tensor.dtype.itemsize
    return Device[buffer.device].allocator._offset(
        buffer.memory, tensor.numel() * itemsize, offset * itemsize
    )


def _tell(tensor: Tensor, what_follows: str) -> None:
    """Say with DEBUG=2 that donating a tensor was of no use."""
    if DEBUG >= 2:
        print(f"donated memory of {tensor} is in use elsewhere: {what_follows}")


def copy_of(tensor: Tensor) -> UOp:
    """A new BUFFER with the elements of a realised tensor, in order.

    Of a symbolic shape: one of the upper bounds, at the front of which they are. JitError for a
    tensor on a file.
    """
    uop = tensor.uop
    if is_file(tensor.device):
        raise JitError(
            f"an argument is on {tensor.device}: a replay would not read the file; pass what is "
            'read of it, .to("CPU") say'
        )
    if uop.op is Ops.CONST:
        value = np.full((), uop.arg, _to_np_dtype(uop.dtype))
        return runtime().from_host(value, runtime().canonicalize_device(tensor.device))
    whole = UOp(Ops.CONTIGUOUS, uop.dtype, (uop,))
    found = runtime().realize([whole])[whole].base
    return buffer_node(buffer_of(found), tuple([most(size) for size in tensor.shape]))


def check_sharing(arguments: Arguments, capture: Capture) -> None:
    """JitError if one shares memory with what the step writes, where that would differ."""
    if capture.written_buffers and any(
        id(b) in capture.written_buffers for b in arguments.buffers()
    ):
        raise JitError(
            "an argument shares memory with a tensor that the step writes to on its own account; "
            "pass a copy, .clone()"
        )
    for k in capture.written_params:
        base = root_of(arguments.tensors[k])
        own = base.op is Ops.BUFFER and id(buffer_of(base)) in capture.read_buffers
        if own or arguments.sharers(k):
            raise JitError(
                f"the step writes to an argument of shape {arguments.tensors[k].shape} that "
                "shares memory with another argument, or with a tensor that it reads on its own "
                "account; pass a copy, .clone()"
            )


class Run(NamedTuple):
    """What a replay made: the tensors of its result, and gradients at tensors."""

    tensors: list[Tensor]
    gradients: list[tuple[Owner, Tensor]]


class CapturedStep:
    """A call that was captured, to be replayed for calls of the same signature.

    `recipe` makes the tensors of the result, then the gradients of `kept`; `template` is the
    result with HERE for its tensors; `call` the arguments with Given for theirs. The gradients at
    `lost` can not be read after a replay.
    """

    def __init__(
        self,
        capture: Capture,
        recipe: Recipe,
        template: Any,
        holders: Holders,
        call: tuple[tuple[Any, ...], dict[str, Any]],
    ) -> None:
        self.capture, self.recipe, self.template = capture, recipe, template
        self.holders, self.call = holders, call
        self.kept: list[Owner] = []
        self.lost: list[tuple[Owner, Tensor]] = []
        self.cleared: list[weakref.ref[Tensor]] = []  # those that had no gradient before the call
        self.emptied: list[weakref.ref[Tensor]] = []  # those that have none after it
        self._is_flat = type(template) in (list, tuple) and all(x is HERE for x in template)
        self._clean: weakref.WeakSet[UOp] = weakref.WeakSet()
        self.is_single = template is HERE
        self.seen = -1  # how many values had become pending when all was in order
        self.quick: QuickStep | None = None

    def is_valid(self, arguments: Arguments) -> bool:
        """Whether the tensors that it reads and writes are still those; prepares them for it."""
        before = self.seen
        is_ready = self.is_ready()
        if self.seen != before:
            arguments.locate()
        return is_ready

    def is_ready(self) -> bool:
        """The same; arguments may lie elsewhere then, if `seen` is another number."""
        for owner in self.cleared:
            if (tensor := owner()) is not None and tensor.grad is not None:
                return False  # the function would add to it
        changed = pending_count() != self.seen
        if changed:
            self.holders.settle()
        if self.holders.is_lost or not self.recipe.is_complete():
            return False
        if changed:
            compute_readers(self.capture.written, self._clean)
            self.seen = pending_count()
        return True

    def allow_quick(self) -> None:
        """Let calls be replayed by native code, if nothing is out of the way.

        That is: kernels of the host, and results that are all new, of known sizes; no arguments are
        written or given away, no gradients left at tensors.
        """
        capture, recipe = self.capture, self.recipe
        gradients = self.kept or self.lost or self.emptied
        plain = recipe.plain() if isinstance(recipe, Recipe) else None
        if plain is None or gradients or capture.written_params or capture.spent or capture.placed:
            return
        self.quick = capture.quick(self, *plain)

    def replay(self, arguments: Arguments, numbers: dict[str, float]) -> Any:
        """Run it again; the result."""
        for owner in self.kept:  # the memory of the gradients before may be used again
            tensor = owner.find(arguments.given, ()) if owner.result is None else None
            if tensor is not None:
                tensor.grad = None
        for emptied in self.emptied:
            if (tensor := emptied()) is not None:
                tensor.grad = None
        made = self.run(arguments, numbers)
        for owner, gradient in (*made.gradients, *self.lost):
            tensor = owner.find(arguments.given, made.tensors)
            if tensor is not None:
                tensor.grad = gradient
        return self.result(made)

    def run(self, arguments: Arguments, numbers: dict[str, float], donate: bool = True) -> Run:
        """Run its kernels on these arguments. Without `donate` none of them is used up."""
        capture = self.capture
        self.prepare(arguments)
        check_sharing(arguments, capture)
        memory = arguments.memory()
        spent: dict[int, Buffer] = {}
        for k in capture.spent:
            place = arguments.places[k]
            if k in capture.returned:
                assert place is not None, "is_held says whether it is there"
                spent[k] = buffer_of(place[0])
                continue
            taken = arguments.take(k) if donate else None
            if taken is None and donate:
                _tell(arguments.tensors[k], "it is copied")
            spent[k] = taken or buffer_of(copy_of(arguments.tensors[k]))
            memory[k] = spent[k].memory
        made = iter(capture.run(memory, tuple(numbers.values())))
        bases = [
            buffer_node(spent[capture.placed[n]] if n in capture.placed else next(made), slot.shape)
            for n, slot in enumerate(capture.outputs)
        ]
        tensors = self.recipe.make(bases, numbers)
        for k in capture.written_params:
            if k in arguments.copies:
                arguments.tensors[k].assign(Tensor(arguments.copies[k])).realize()
        count = len(tensors) - len(self.kept)
        return Run(tensors[:count], list(zip(self.kept, tensors[count:], strict=True)))

    def prepare(self, arguments: Arguments) -> None:
        """Give arguments that are written memory that nobody else reads."""
        changed = [*self.capture.written_params, *self.capture.returned]
        if changed:
            own = [own_memory(arguments.tensors[k]) for k in changed]
            compute_readers(own, weakref.WeakSet())
            arguments.locate()

    def is_held(self, arguments: Arguments) -> bool:
        """Whether a donated argument that the step returns is seen by something else too.

        It would see what is done to the result, so the function has to run.
        """
        if not self.capture.returned:
            return False
        self.prepare(arguments)
        for k in self.capture.returned:
            if arguments.take(k) is None:
                _tell(arguments.tensors[k], "the function runs plainly")
                return True
        return False

    def result(self, made: Run) -> Any:
        """The result of a call."""
        if self.is_single:
            return made.tensors[0]
        if self._is_flat:
            return type(self.template)(made.tensors)
        return self.filled(made.tensors)

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """The result with these tensors."""
        rest = iter(tensors)
        return map_leaves(self.template, lambda leaf: next(rest) if leaf is HERE else leaf)
