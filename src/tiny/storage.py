"""Storages: what tensors are views of. Their versions, who owns memory, and realising them.

A tensor is a view of a storage, and a storage holds one node: its value now. A computed result has
a storage of its own; movement (reshape, slices, …), detach and a bitcast of the same width share
the storage of their source, so they see later writes and may be written through, as in NumPy. A
view keeps the chain of movement nodes over the storage's node and builds it anew when that node
has changed.

**Versions.** A write to memory is `AFTER(old, STORE(view of old, value), UNIQUE)`, and this node
becomes the node of the storage: all its views read the new version from now on, while graphs that
were built before hold the old node, and thereby the old version. A write to a value that has no
memory yet just makes another value. So the wrong program (a result that changes after it was
computed, a write that a view misses) can not be written down.

**Owners.** A BUFFER belongs to one storage. Hash-consing may give two results one node, and then
one BUFFER: the second reads it, and gets a copy when the owner is written (see `View._write`).
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, Self, TypeVar

from tiny._core.launch import publish
from tiny.dtype import DType, dtypes
from tiny.helpers import make_lock, prod
from tiny.mixin.sizes import most
from tiny.uop.ops import GroupOp, Ops, UOp
from tiny.uop.runtime import Setting, recorder, recorders, runtime

P = ParamSpec("P")
R = TypeVar("R")

VIEWS = GroupOp.Movement | {Ops.DETACH, Ops.BITCAST}


class Storage:
    """One value: `node` is what it is now, `device` where it is or will be.

    `owner`: the BUFFER below belongs to it alone. `maker`: the mark of the capture in which it
    was made. `holders` are told when a tensor moves to another storage.
    """

    __slots__ = ("__weakref__", "device", "holders", "maker", "node", "owner")

    def __init__(self, node: UOp, device: str | None, owner: bool = False) -> None:
        self.node = node
        self.device = device
        self.owner = owner
        self.holders: weakref.WeakSet[Any] | None = None
        watching = recorder() if recorders else None
        self.maker = None if watching is None else watching.token
        if node.op is not Ops.BUFFER:
            _changes.pending += 1


class _Changes:
    """`pending` grows whenever some storage comes to hold a value that is not in memory."""

    pending = 0


_changes = _Changes()


def note_pending(count: int = 1) -> None:
    """Some storages hold values that are not in memory."""
    _changes.pending += count


def pending_count() -> int:
    """It has grown since another call if some value may be pending that was not then."""
    return _changes.pending


# Threads build graphs at once, but take turns to write and to compute: what one of them computes
# is looked for, and put in place, in the values of all.
_turn = make_lock(0)


def in_turn(function: Callable[P, R]) -> Callable[P, R]:
    """A function that one thread runs at a time, and no other one that is marked so meanwhile."""

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with _turn:
            return function(*args, **kwargs)

    return alone


_writes = itertools.count(-1, -1)  # tensors made as constants count upwards

# who owns a BUFFER, and who reads it without owning it
owners: weakref.WeakValueDictionary[UOp, Storage] = weakref.WeakValueDictionary()
readers_of: weakref.WeakKeyDictionary[UOp, weakref.WeakSet[Storage]] = weakref.WeakKeyDictionary()

# All tensors there are, by id: `==` of tensors is elementwise, so they can not be in a set. What
# takes one out is C (the second argument of pop is the reference), since thousands come and go.
_live: dict[int, weakref.ref[View]] = {}


def _version(old: UOp, store: UOp) -> UOp:
    """The next version of some memory, and no other: equal writes are not one.

    Where each step of a loop writes the same, a thread that has one in hand could not tell
    whether it has been carried out.
    """
    return UOp(Ops.AFTER, old.dtype, (old, store, UOp(Ops.UNIQUE, arg=next(_writes))))


def memory_below(node: UOp) -> UOp | None:
    """The BUFFER whose contents a storage's node is, as they are or after writes; else None."""
    chain = []
    while node.op is Ops.AFTER and "memory" not in node.props:
        chain.append(node)
        node = node.src[0]
    found = node.props["memory"] if node.op is Ops.AFTER else node
    buffer = found if found is not None and found.op is Ops.BUFFER else None
    for after in chain:  # noted, or ten thousand writes would take time squared
        after.props["memory"] = buffer
    return buffer


def split_view(uop: UOp) -> UOp:
    """The value that a chain of movement is a view of."""
    while uop.op in VIEWS:
        uop = uop.src[0]
    return uop


def _rebased(uop: UOp, old: UOp, new: UOp) -> UOp:
    """A chain of movement over `old`, over `new` instead."""
    chain = []
    while uop is not old:
        chain.append(uop)
        uop = uop.src[0]
    for step in reversed(chain):
        new = step.replace(src=(new, *step.src[1:]))
    return new


def _is_view_of_memory(uop: UOp) -> bool:
    """Whether reading this is reading a BUFFER, with nothing computed on the way."""
    return memory_below(split_view(uop)) is not None


def opened(uop: UOp) -> tuple[Storage, UOp, UOp]:
    """A storage for a value given as a graph, its node, and the value as a view of it.

    A view of memory gets the storage that this memory has, so that it can be written through.
    """
    root = split_view(uop)
    buffer = memory_below(root)
    if buffer is None:
        return Storage(uop, uop.device), uop, uop
    owner = owners.get(buffer)
    if owner is not None and owner.node is root:
        return owner, root, uop
    storage = Storage(root, buffer.arg.device)
    take_memory(storage, buffer)
    return storage, root, uop


def take_memory(storage: Storage, buffer: UOp) -> None:
    """Note that a storage's value is in a BUFFER: as its owner if it has none, else as a reader."""
    storage.owner = _note_memory(storage, buffer)


def _note_memory(storage: Storage, buffer: UOp) -> bool:
    """Whether a storage whose value is, or will be, in a BUFFER is its owner; a reader is noted."""
    is_owner = owners.setdefault(buffer, storage) is storage
    if not is_owner:
        readers_of.setdefault(buffer, weakref.WeakSet()).add(storage)
    return is_owner


def copied(uop: UOp) -> UOp:
    """A value that no write changes: a copy, if this is a view of memory."""
    return UOp(Ops.CONTIGUOUS, uop.dtype, (uop,)) if _is_view_of_memory(uop) else uop


class View:
    """A view of a storage. `uop` is its value now; `grad` and `requires_grad` are a tensor's."""

    __slots__ = ("__weakref__", "_root", "_storage", "_uop", "grad", "requires_grad")

    grad: Self | None
    requires_grad: bool | None

    def _bind(self, storage: Storage, root: UOp, uop: UOp) -> None:
        self._storage, self._root, self._uop = storage, root, uop
        self.grad, self.requires_grad = None, None
        number = id(self)
        _live[number] = weakref.ref(self, functools.partial(_live.pop, number))

    @classmethod
    def _view(cls, storage: Storage, root: UOp, uop: UOp) -> Self:
        """A tensor over a storage that is there, whose node `root` is."""
        self = cls.__new__(cls)
        self._bind(storage, root, uop)
        return self

    @classmethod
    def _value(cls, uop: UOp, device: str | None) -> Self:
        """A tensor with a storage of its own."""
        return cls._view(Storage(uop, device), uop, uop)

    @property
    def uop(self) -> UOp:
        """The node of this tensor's value now."""
        now = self._storage.node
        if now is not self._root:
            self._uop, self._root = _rebased(self._uop, self._root, now), now
        return self._uop

    @uop.setter
    def uop(self, new: UOp) -> None:
        self._move_to(*opened(new))

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._uop.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes of the dimensions."""
        return self._uop.shape

    @property
    def device(self) -> str | None:
        """Where the values live or will be computed; None for constants until they are used."""
        return self._storage.device

    def _move_to(self, storage: Storage, root: UOp, uop: UOp) -> None:
        before = self._storage
        self._storage, self._root, self._uop = storage, root, uop
        if before.holders is not None and before is not storage:
            for holders in list(before.holders):
                holders.is_lost = True

    def _assign(self, value: UOp, device: str | None) -> None:
        """Write a value of this shape and dtype here."""
        storage, watching = self._storage, recorder()
        outside = watching is not None and storage.maker is not watching.token
        with _turn:
            if self.uop is storage.node and memory_below(storage.node) is None and not outside:
                # a value without memory: another value in its place
                storage.node, storage.device = copied(value), device or self.device
                _changes.pending += 1
                return
        self._write(value)

    @in_turn
    def _write(self, value: UOp) -> None:
        """Make the next version of this storage's memory; first give it memory, if it has none."""
        storage, old = self._storage, self._storage.node
        buffer, watching = memory_below(old), recorder()
        if buffer is None or not storage.owner:
            old = give_memory(storage)
            buffer = memory_below(old)
            assert buffer is not None
            if watching is not None and storage.maker is not watching.token:
                with watching.paused():  # a replay finds it in memory, as its next version
                    realize_storages([storage])
                old = storage.node
        target, value = self._writable(old, value)
        store = UOp(Ops.STORE, dtypes.void, (target, value))
        # Others that read this memory hold the version of now, not what follows. They get a copy
        # of it, which is taken before the write below is carried out.
        for reader in list(readers_of.get(buffer, ())):
            if reader is not storage and memory_below(reader.node) is buffer:
                reader.node = UOp(Ops.CONTIGUOUS, reader.node.dtype, (reader.node,))
        if watching is not None:
            watching.wrote(storage)
        _changes.pending += 1
        storage.node = _version(old, store)
        _changes.pending += 1  # once more, for those who looked in between
        readers_of.pop(buffer, None)

    def _writable(self, old: UOp, value: UOp) -> tuple[UOp, UOp]:
        """The view to write through, as movement only, and the value as the memory's dtype."""
        chain, node = [], self.uop
        while node is not old:
            chain.append(node)
            node = node.src[0]
        target, padded = old, False
        for step in reversed(chain):
            if step.op is Ops.EXPAND:
                raise ValueError(
                    f"assign: this tensor of shape {self.shape} is an expanded view: several of "
                    "its elements are one place in memory; write to a copy, .contiguous()"
                )
            padded = padded or step.op is Ops.PAD
            if step.op in GroupOp.Movement:
                target = UOp(step.op, old.dtype, (target, *step.src[1:]), step.arg)
        if padded and _reads_padding(chain[::-1], old.shape):
            raise ValueError(
                f"assign: this tensor of shape {self.shape} is a padded view, and padding is not "
                "memory; write to a copy, .contiguous()"
            )
        if value.dtype is not old.dtype:
            value = UOp(Ops.BITCAST, old.dtype, (value,))
        return target, value


def _reads_padding(chain: Sequence[UOp], shape: tuple[int, ...]) -> bool:
    """Whether a chain of movement over memory of that shape ends with some padding in it."""
    import numpy as np

    if any(len(step.src) > 1 for step in chain):
        return True  # by symbolic sizes: taken for some
    places = np.arange(prod(shape)).reshape(shape)
    for step in chain:
        if step.op is Ops.RESHAPE:
            places = places.reshape(step.arg)
        elif step.op is Ops.PERMUTE:
            places = places.transpose(step.arg)
        elif step.op is Ops.FLIP:
            places = np.flip(places, step.arg)
        elif step.op is Ops.SHRINK:
            places = places[tuple(slice(begin, end) for begin, end in step.arg)]
        elif step.op is Ops.PAD:
            places = np.pad(places, step.arg, constant_values=-1)
    return bool((places < 0).any())


def live_views() -> list[Any]:
    """All tensors there are."""
    return [t for found in list(_live.values()) if (t := found()) is not None]


def storages_of(tensors: Iterable[View]) -> list[Storage]:
    """The storages of tensors, each once."""
    return list({id(t._storage): t._storage for t in tensors}.values())


# ---------------------------------------------------------------- realising


@in_turn
def realize(tensors: Sequence[View]) -> None:
    """Compute the storages of tensors, and tell all others.

    Three things must come out as if every operation had run when it was written:
    - A write on the way is carried out, so whoever holds that version now finds it in memory.
    - Whoever was built before on the version that it overwrites must be computed too, in the same
      go, since that version is gone afterwards; and so on for the writes that this carries out.
    - What shares nodes with a computed graph shares the result.
    """
    live = live_views()
    realize_storages(wanted_storages(tensors, live), live)


@in_turn
def realize_storages(wanted: Sequence[Storage], live: Sequence[View] = ()) -> None:
    """Compute storages. `live` are all tensors, where the caller has their list."""
    if not wanted:
        return
    live = live or live_views()
    pending = pending_storages(live)
    threads = threading.active_count() > 1
    if threads:
        _skip_writes_done(pending)
    stale = _add_stale_readers(wanted, pending)
    outputs = list(dict.fromkeys(s.node for s in (*wanted, *stale)))
    taken: list[UOp] = []
    try:
        results = runtime().realize(
            outputs,
            [s.node for s in stale],
            lambda results: _announced(results, pending, live, threads, taken),
        )
    except BaseException:
        for buffer in taken:  # unless all was computed when a signal's handler raised
            owner = owners.get(buffer)
            if owner is not None and memory_below(owner.node) is not buffer:
                owners.pop(buffer, None)
        raise
    if threads:  # others may have built on it while it was computed
        live = live_views()
        publish(_announced(results, pending_storages(live), live, threads, []))


def _announced(
    results: dict[UOp, UOp],
    pending: Sequence[Storage],
    live: Sequence[View],
    threads: bool,
    taken: list[UOp],
) -> list[Setting]:
    """What is to be set when the `results` are in memory, so that all storages read them.

    Who has which memory is noted here already, which does no harm before; new BUFFERs that
    get an owner are added to `taken`.
    """
    settings: list[Setting] = []
    views: dict[int, UOp] = {}
    for storage, node in zip(pending, _renamed(pending, results, threads, settings), strict=True):
        if node is storage.node:
            continue
        base = split_view(node)
        if base.op is not Ops.BUFFER or (node is not base and not _is_rearranged(node)):
            settings.append((storage, "node", node))
            continue
        settings.append((storage, "device", base.arg.device))
        if node is not base and base in owners:
            settings.append((storage, "node", node))
            continue
        settings.append((storage, "node", base))
        if node is not base:
            views[id(storage)] = node
        if node is not base or not storage.owner:
            settings.append((storage, "owner", _note_memory(storage, base)))
            taken.append(base)
    # A value that came back as a rearranged BUFFER: its tensors become views of that memory.
    for tensor in live if views else ():
        now = views.get(id(tensor._storage))
        if now is not None:
            before = tensor._storage.node
            settings.append((tensor, "_uop", _rebased(tensor.uop, before, now)))
            settings.append((tensor, "_root", split_view(now)))
    return settings


def _renamed(
    storages: Sequence[Storage], names: dict[UOp, UOp], threads: bool, settings: list[Setting]
) -> list[UOp]:
    """The nodes of storages, with other `names` for some nodes in them.

    A write that another thread is about to build on gets its new name in its `props`, so that it
    is not carried out again under the old one.
    """
    nodes = [s.node for s in storages]
    if threads:
        nodes += [n for n in UOp.sink(*nodes).postorder() if n.op is Ops.AFTER]
    new = UOp.sink(*nodes).substitute(names, walk=True).src
    if threads:
        done = dict(zip(nodes[len(storages) :], new[len(storages) :], strict=True))
        done.update((node, now) for node, now in names.items() if node.op is Ops.AFTER)
        settings.extend((n.props, "done", now) for n, now in done.items() if now is not n)
    return list(new[: len(storages)])


def _skip_writes_done(storages: Sequence[Storage]) -> None:
    """Leave out writes that another thread has carried out since a value was built on them."""
    while True:
        graph = UOp.sink(*[s.node for s in storages])
        done = {
            n: n.props["done"] for n in graph.postorder() if n.op is Ops.AFTER and "done" in n.props
        }
        if not done:
            return
        settings: list[Setting] = []
        renamed = _renamed(storages, done, True, settings)
        settings.extend((s, "node", node) for s, node in zip(storages, renamed, strict=True))
        publish(settings)


def pending_storages(tensors: Iterable[View]) -> list[Storage]:
    """The storages whose values are not in memory; none of what another thread captures."""
    found = [s for s in storages_of(tensors) if s.node.op not in (Ops.BUFFER, Ops.CONST)]
    if not recorders:
        return found
    me = threading.get_ident()
    foreign = {r.token for thread, r in list(recorders.items()) if thread != me}
    return [s for s in found if s.maker not in foreign]


def _is_rearranged(node: UOp) -> bool:
    """Whether a chain of movement only reorders elements: each is there once.

    A value of symbolic size is the front of a BUFFER of its upper bound, and has it for itself.
    """
    while node.op in (Ops.RESHAPE, Ops.PERMUTE, Ops.FLIP) or (
        node.op is Ops.SHRINK and len(node.src) > 1
    ):
        node = node.src[0]
    return node.op is Ops.BUFFER


def wanted_storages(tensors: Sequence[View], live: Sequence[View]) -> list[Storage]:
    """The storages to compute. A part of a value that nobody else sees is computed alone."""
    wanted: dict[int, Storage] = {}
    shared: dict[int, int] | None = None
    for tensor in tensors:
        uop, storage = tensor.uop, tensor._storage
        if 0 in uop.shape or uop.op is Ops.CONST or split_view(uop).op is Ops.BUFFER:
            continue
        if uop is not storage.node and memory_below(storage.node) is None:
            if shared is None:
                shared = {}
                for t in live:
                    shared[id(t._storage)] = shared.get(id(t._storage), 0) + 1
            if shared[id(storage)] == 1:
                storage = Storage(uop, storage.device)
                tensor._storage, tensor._root = storage, uop
        wanted[id(storage)] = storage
    return list(wanted.values())


def _add_stale_readers(wanted: Sequence[Storage], pending: Sequence[Storage]) -> list[Storage]:
    """The storages whose values read memory that computing the wanted ones overwrites."""
    stale: list[Storage] = []
    taken = set(wanted)
    rest = [s for s in pending if s not in taken]
    if not rest:
        return stale
    after_op, buffer_op = Ops.AFTER, Ops.BUFFER
    while True:
        newest: dict[UOp, UOp] = {}
        versions: dict[UOp, UOp] = {}
        for node in UOp.sink(*[s.node for s in (*wanted, *stale)]).postorder():
            op = node.op
            if op is after_op or op is buffer_op:
                buffer = memory_below(node)
                if buffer is not None:
                    versions[node] = buffer
                    if op is after_op:
                        newest[buffer] = node  # sources come first: the last one is the newest
        old = {node for node, b in versions.items() if b in newest and newest[b] is not node}
        if not old:
            return stale
        kept = set(newest.values())
        reads = set(old)
        more_writes = False
        for node in UOp.sink(*[s.node for s in rest]).postorder():
            if node not in kept and not reads.isdisjoint(node.src):
                reads.add(node)
            more_writes = more_writes or (node.op is after_op and node not in versions)
        found = [s for s in rest if s.node in reads]
        if not found:
            return stale
        for storage in found:
            if split_view(storage.node) in old:  # nothing is computed: a copy must be made
                storage.node = UOp(Ops.CONTIGUOUS, storage.node.dtype, (storage.node,))
        stale += found
        if not more_writes:  # nothing that they bring along overwrites anything else
            return stale
        taken.update(found)
        rest = [s for s in rest if s not in taken]


def give_memory(storage: Storage) -> UOp:
    """Note that a storage's value goes to a BUFFER of its own: the AFTER that it is then."""
    place = runtime().canonicalize_device(storage.device)
    old = storage.node
    buffer = runtime().empty(tuple([most(size) for size in old.shape]), old.dtype, place)
    store = UOp(Ops.STORE, dtypes.void, (buffer.front(old.shape), old))
    new = _version(buffer, store)
    settings: list[Setting] = [
        (storage, "owner", _note_memory(storage, buffer)),
        (storage, "device", place),
        (storage, "node", new),
    ]
    if old.shape != buffer.shape:  # its tensors are views of the front
        front = new.front(old.shape)
        for tensor in live_views():
            if tensor._storage is storage:
                settings.append((tensor, "_uop", _rebased(tensor.uop, old, front)))
                settings.append((tensor, "_root", new))
    _changes.pending += 1
    publish(settings)
    _changes.pending += 1  # once more, for those who looked in between
    return new
