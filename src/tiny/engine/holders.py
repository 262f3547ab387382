"""What captured steps need to know of tensors.

A step that is captured reads and writes BUFFERs behind the backs of tensors when it is replayed.
It finds here which tensors those are, and makes its results look as if Python had run.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tiny.dtype import DType
from tiny.helpers import all_int, prod
from tiny.mixin.sizes import most, split_sizes
from tiny.storage import (
    Storage,
    give_memory,
    in_turn,
    live_views,
    pending_storages,
    readers_of,
    realize_storages,
    storages_of,
    take_memory,
    wanted_storages,
)
from tiny.tensor import Tensor
from tiny.uop.ops import Ops, UOp
from tiny.views import VIEWS, memory_below, split_view


@in_turn
def settle() -> None:
    """Compute all that is pending anywhere, and give every value memory that no other reads."""
    pending = pending_storages()
    try:
        realize_storages(pending)
    except Exception:
        # Whose value can not be computed will hear of it on reading it; it is no business of the
        # step that is captured now. If that needs it too, it fails in the same way.
        for storage in pending:
            with contextlib.suppress(Exception):
                realize_storages([storage])
    shared = []
    for buffer, readers in list(readers_of.items()):
        for storage in list(readers):
            if not storage.owner and storage.node is buffer:
                give_memory(storage)
                shared.append(storage)
    realize_storages(shared)


@in_turn
def realize_step(tensors: Sequence[Tensor], written: Iterable[Storage]) -> None:
    """Compute tensors, and carry out the writes to storages that are pending."""
    wanted = wanted_storages(tensors)
    taken = set(wanted)
    wanted += [s for s in dict.fromkeys(written) if s.node.op is Ops.AFTER and s not in taken]
    realize_storages(wanted)


def memory_of(tensor: Tensor) -> tuple[UOp, int, bool] | None:
    """Where the elements of a realised tensor lie in one piece and in order; None if they do not.

    That is a BUFFER, how many of its elements come before, and whether it is all of them. For a
    tensor of symbolic size a BUFFER of the upper bounds, at the front of which it is.
    """
    node = tensor.uop
    if node.op is Ops.BUFFER:
        return node, 0, True
    if not all_int(node.shape):
        below = node.src[0]
        whole = below.op is Ops.BUFFER and below.shape == tuple([most(s) for s in node.shape])
        return (below, 0, True) if whole and node is below.front(node.shape) else None
    chain = []
    while node.op in VIEWS:
        chain.append(node)
        node = node.src[0]
    if node.op is not Ops.BUFFER:
        return None
    offset, shape = 0, node.shape
    for step in reversed(chain):
        if len(step.src) > 1:  # at a place that depends on Variables
            return None
        if step.op is Ops.SHRINK:
            sizes = [end - begin for begin, end in step.arg]
            cut = [k for k, size in enumerate(sizes) if size != shape[k]]
            if cut and any(size != 1 for size in sizes[: cut[-1]]):
                return None
            for k, (begin, _) in enumerate(step.arg):
                offset += begin * prod(shape[k + 1 :])
        elif step.op not in (Ops.RESHAPE, Ops.DETACH, Ops.BITCAST):
            return None
        shape = step.shape
    return node, offset, prod(shape) == prod(node.shape)


def own_memory(tensor: Tensor) -> UOp:
    """The BUFFER of a realised tensor, which nobody else reads once `compute_readers` was called.

    If the tensor only reads the memory of another one, it gets a copy first.
    """
    storage = tensor._storage
    if not storage.owner:
        give_memory(storage)
        realize_storages([storage])
    buffer = memory_below(storage.node)
    assert buffer is not None, "a realised tensor has memory"
    return buffer


def root_of(tensor: Tensor) -> UOp:
    """What a tensor is a view of: a BUFFER, once it is realised."""
    return split_view(tensor.uop)


def storage_number(tensor: Tensor) -> int:
    """The same for views of one value, while that lives."""
    return id(tensor._storage)


def alias(tensor: Tensor) -> Tensor:
    """Another tensor of the same storage."""
    other = Tensor._view(tensor._storage, tensor._root, tensor._uop)
    other.requires_grad = tensor.requires_grad
    return other


# Tensors over storages from outside that a step returned, by id: others than the function's own.
_handed_out: dict[int, weakref.ref[Tensor]] = {}


def hand_out(tensor: Tensor) -> Tensor:
    """Note that a tensor was made for the caller of a step, which may drop it."""
    number = id(tensor)
    _handed_out[number] = weakref.ref(tensor, functools.partial(_handed_out.pop, number))
    return tensor


def was_handed_out(tensor: Tensor) -> bool:
    """Whether a tensor was made for the caller of a step."""
    return id(tensor) in _handed_out


def make_unreadable(tensor: Tensor, node: UOp) -> None:
    """Let a tensor's value be that of a BUFFER without contents. Other tensors keep theirs."""
    tensor._move_to(Storage(node, node.arg.device), node, node)


@in_turn
def made_by(token: object) -> list[Tensor]:
    """The tensors whose values were computed under the recorder with that token."""
    return [
        t for t in live_views() if t._storage.maker is token and t._storage.node.op is not Ops.CONST
    ]


_Chain = tuple[tuple[Ops, DType, Any, tuple[UOp, ...]], ...]


def _chain(uop: UOp, root: UOp) -> _Chain:
    """The steps from a node to a view of it, without the node."""
    steps = []
    while uop is not root:
        steps.append((uop.op, uop.dtype, uop.arg, uop.src[1:]))
        uop = uop.src[0]
    return tuple(reversed(steps))


def _applied(chain: _Chain, node: UOp, numbers: Mapping[str, Any]) -> UOp:
    """A view of a node, the Variables of its sizes bound to these values."""
    for op, dtype, arg, sizes in chain:
        node = UOp(op, dtype, (node, *[size.rebind(numbers) for size in sizes]), arg)
    return node


class Recipe:
    """How to make tensors like some realised ones, over other memory.

    Values made under the recorder with `token` are made anew; `bases` are the BUFFERs that they
    are in, of these `dtypes`. Tensors of storages from outside are views of those, as they were;
    `outside` are the BUFFERs that they are in.

    `storages` are what is made: the number of a base and movement over it, or a constant, and the
    device. `tensors` are the number of one of them or a storage from outside, movement over it,
    and requires_grad.
    """

    def __init__(self, tensors: Sequence[Tensor], token: object) -> None:
        self.bases: list[UOp] = []
        self.outside: list[UOp] = []
        self.storages: list[tuple[int, _Chain, UOp | None, str | None]] = []
        self.tensors: list[tuple[int, weakref.ref[Storage] | None, _Chain, bool | None]] = []
        numbers: dict[int, int] = {}
        for t in tensors:
            uop, storage = t.uop, t._storage
            chain = _chain(uop, storage.node)
            if storage.maker is not token:
                self.outside.append(split_view(uop))
                self.tensors.append((-1, weakref.ref(storage), chain, t.requires_grad))
                continue
            if id(storage) not in numbers:
                numbers[id(storage)] = len(self.storages)
                self.storages.append(self._recipe(storage))
            self.tensors.append((numbers[id(storage)], None, chain, t.requires_grad))

    def _recipe(self, storage: Storage) -> tuple[int, _Chain, UOp | None, str | None]:
        base = split_view(storage.node)
        if base.op is Ops.BUFFER and base not in self.bases:
            self.bases.append(base)
        if base.op is Ops.BUFFER:
            return self.bases.index(base), _chain(storage.node, base), None, storage.device
        if base.op is not Ops.CONST:  # no elements, so it was not computed
            zero = UOp.const(0, storage.node.dtype)
            static, symbolic = split_sizes(storage.node.shape)
            none = UOp(Ops.EXPAND, zero.dtype, (zero, *symbolic), static)
            return -1, (), none, storage.device
        return -1, (), storage.node, storage.device

    def let_go(self) -> None:
        """Forget the BUFFERs, which are needed no more: their memory is that of one call."""
        self.dtypes = [base.dtype for base in self.bases]
        self.bases, self.outside = [], []

    def is_complete(self) -> bool:
        """Whether the storages from outside are all there."""
        return all(kept() is not None for _, kept, _, _ in self.tensors if kept is not None)

    def plain(
        self,
    ) -> tuple[list[tuple[int, str | None]], list[tuple[int, Any, bool | None]]] | None:
        """What `make` does where all storages are BUFFERs, and movement over them has known sizes.

        Each storage as the number of its BUFFER, and its device; each tensor as the number of its
        storage, movement over it (op, dtype, arg), and requires_grad. None if it is not so.
        """
        storages = [(number, device) for number, _, _, device in self.storages]
        tensors = []
        for number, _, chain, requires_grad in self.tensors:
            tensors.append((number, [step[:3] for step in chain], requires_grad))
        chains = [step for _, _, chain, _ in self.tensors for step in chain]
        is_new = all(not chain and constant is None for _, chain, constant, _ in self.storages)
        is_plain = is_new and all(kept is None for _, kept, _, _ in self.tensors)
        is_static = not any(sizes for _, _, _, sizes in chains)
        in_order = [number for number, _ in storages] == list(range(len(self.dtypes)))
        return (storages, tensors) if is_plain and is_static and in_order else None

    def make(self, bases: Sequence[UOp], numbers: Mapping[str, Any]) -> list[Tensor]:
        """The tensors, over these BUFFERs, their sizes by these values of Variables."""
        storages = []
        for number, chain, constant, device in self.storages:
            if constant is not None:
                storages.append(Storage(constant.rebind(numbers), device))
                continue
            storage = Storage(_applied(chain, bases[number], numbers), device)
            if not chain:
                take_memory(storage, bases[number])
            storages.append(storage)
        made = []
        for number, kept, chain, requires_grad in self.tensors:
            found = storages[number] if kept is None else kept()
            assert found is not None, "is_complete says whether it is there"
            tensor = Tensor._view(found, found.node, _applied(chain, found.node, numbers))
            tensor.requires_grad = requires_grad
            made.append(tensor if kept is None else hand_out(tensor))
        return made


class Holders:
    """What a capture keeps of the tensors that it reads or writes: whether they are still those.

    `is_lost` once one has died or has become another one.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.is_lost = False
        this = weakref.ref(self)

        def lose(_: object) -> None:
            holders = this()
            if holders is not None:
                holders.is_lost = True

        tensors = list(tensors)
        self._tensors = [weakref.ref(t, lose) for t in tensors]
        self._storages = [(weakref.ref(s), s.node) for s in storages_of(tensors)]
        for tensor in tensors:
            storage = tensor._storage
            if storage.holders is None:
                storage.holders = weakref.WeakSet()
            storage.holders.add(self)

    @in_turn
    def settle(self) -> None:
        """Carry out writes that are pending, so that the memory of each tensor holds its value."""
        for kept, node in self._storages:
            storage = kept()
            if storage is not None and storage.node is not node and storage.node.op is Ops.AFTER:
                realize_storages([storage])
            if storage is None or storage.node is not node:
                self.is_lost = True
                return
