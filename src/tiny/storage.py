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
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ParamSpec, Self, TypeVar

from tiny._core.alive import Alive, Seen, Value, changes, owners
from tiny._core.launch import publish
from tiny.dtype import DType, dtypes
from tiny.helpers import all_int, prod
from tiny.mixin.sizes import most
from tiny.shared import make_lock
from tiny.uop.ops import GroupOp, Ops, UOp
from tiny.uop.passes import compiler_pass
from tiny.uop.runtime import Setting, files, is_file, recorder, recorders, runtime
from tiny.views import (
    in_order,
    is_view_of_memory,
    memory_below,
    reads_padding,
    rebased,
    split_view,
)

P = ParamSpec("P")
R = TypeVar("R")

MUCH = 1 << 30  # bytes of a pending value that are not computed for a part of it


class Storage(Value):
    """One value: `node` is what it is now, `device` where it is or will be.

    `owner`: the BUFFER below belongs to it alone. `is_written`: it was assigned to since it was
    last in memory. `maker`: the mark of the capture in which it was made. `stands_apart`: its
    elements count as out of order, as they were in what it was the only wanted part of, or as
    those of the argument are that it stands for in a capture. `holders` are told when a tensor
    moves to another storage.
    """

    __slots__ = ()

    node: UOp
    holders: weakref.WeakSet[Any] | None

    def __init__(self, node: UOp, device: str | None, owner: bool = False) -> None:
        self.node = node
        self.device = device
        self.owner = owner
        if recorders and (watching := recorder()) is not None:
            self.maker = watching.token
        if node.op is not Ops.BUFFER and node.op is not Ops.CONST:
            if files.seen and is_file(device):
                raise ValueError(
                    f"{node.op.name.lower()}: a file computes nothing, and this tensor is on "
                    f'{device}; move it first, with .to("CPU") say'
                )
            _pending.add(self)
            changes.pending += 1


# The storages whose values are not in memory, in the order in which they came to be so; some that
# are in memory by now are among them until somebody looks.
_pending = Alive()


def put_off(storage: Storage, node: UOp) -> None:
    """Let a storage hold a value that is not in memory."""
    # an exception between two of these lines must not leave a value that nobody finds
    changes.pending += 1
    _pending.add(storage)
    storage.node = node
    changes.pending += 1  # once more, for those who looked in between


def pending_count() -> int:
    """It has grown since another call if some value may be pending that was not then."""
    return changes.pending


# Threads build graphs at once, but take turns to write and to compute: what one of them computes
# is looked for, and put in place, in the values of all.
_turn = make_lock(0)


def built_again(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Build once more what has been built while another thread put results in place.

    Its sources may have been read partly before and partly after that; what was before names
    memory by nodes that mean its new contents now.
    """
    with _turn:
        if changes.epoch is None:  # whoever left it so was interrupted
            changes.epoch = object()
        return function(*args, **kwargs)


def in_turn(function: Callable[P, R]) -> Callable[P, R]:
    """A function that one thread runs at a time, and no other one that is marked so meanwhile."""

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with _turn:
            return function(*args, **kwargs)

    return alone


_writes = itertools.count(-1, -1)  # tensors made as constants count upwards

# who reads a BUFFER without owning it
readers_of: weakref.WeakKeyDictionary[UOp, weakref.WeakSet[Storage]] = weakref.WeakKeyDictionary()

all_views = Alive()  # all tensors there are


def _version(old: UOp, store: UOp) -> UOp:
    """The next version of some memory, and no other: equal writes are not one.

    Where each step of a loop writes the same, a thread that has one in hand could not tell
    whether it has been carried out.
    """
    return UOp(Ops.AFTER, old.dtype, (old, store, UOp(Ops.UNIQUE, arg=next(_writes))))


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
    """Whether a storage whose value is, or will be, in a BUFFER is its owner; a reader is noted.

    Memory that may only be read has none.
    """
    if buffer.handle is not None and buffer.handle.is_read_only:
        return False
    is_owner = owners.setdefault(buffer, storage) is storage
    if not is_owner:
        readers_of.setdefault(buffer, weakref.WeakSet()).add(storage)
    return is_owner


def copied(uop: UOp) -> UOp:
    """A value that no write changes: a copy, if this is a view of memory.

    Memory that was only needed to compute the value is nobody's, so nobody writes to it.
    """
    root = split_view(uop)
    if root.op is Ops.AFTER and memory_below(root) not in owners:
        return uop
    return UOp(Ops.CONTIGUOUS, uop.dtype, (uop,)) if is_view_of_memory(uop) else uop


class View(Seen):
    """A view of a storage. `uop` is its value now; `grad` and `requires_grad` are a tensor's."""

    # `_is_fixed` is set on those that are not to be learnt
    __slots__ = ("_is_fixed",)

    grad: Self | None
    requires_grad: bool | None

    def _bind(self, storage: Storage, root: UOp, uop: UOp) -> None:
        self._storage, self._root, self._uop = storage, root, uop
        self.grad, self.requires_grad = None, None
        all_views.add(self)

    @classmethod
    def _view(cls, storage: Storage, root: UOp, uop: UOp) -> Self:
        """A tensor over a storage that is there, whose node `root` is."""
        self = cls.__new__(cls)
        self._bind(storage, root, uop)
        return self

    @classmethod
    def _value(cls, uop: UOp, device: str | None) -> Self:
        """A tensor with a storage of its own, which no write to another one changes."""
        storage = Storage(uop, device)
        if uop.op is Ops.BUFFER or uop.op is Ops.AFTER:
            buffer = memory_below(uop)
            if buffer is not None:
                take_memory(storage, buffer)
        return cls._view(storage, uop, uop)

    @in_turn
    def _snapshot(self) -> Self:
        """The value of now, which later writes do not change."""
        return self._value(self.uop, self.device)

    def _is_small_part(self) -> bool:
        """Whether this is half or less of a value that is pending and would take a GiB.

        A part that is read is computed with the whole, which others hold; but not with that much.
        """
        uop = self.uop  # first: it may move this to the version of now
        node, shape = self._storage.node, uop.shape
        if node is uop or not all_int(node.shape) or not all_int(shape):
            return False
        whole = prod(node.shape) * node.dtype.itemsize
        part = prod(shape) * node.dtype.itemsize
        return whole >= MUCH and 2 * part <= whole and memory_below(node) is None

    def _now(self) -> tuple[UOp, UOp]:
        """The node of this tensor's value now, and that of the storage that it is a view of."""
        # read at once: other threads bring tensors up to date, too
        root, now = self._root, self._storage.node
        if now is root:
            return self._uop, now
        uop = rebased(self._uop, self._root, now)
        self._uop, self._root = uop, now
        return uop, now

    @property
    def uop(self) -> UOp:
        """The node of this tensor's value now."""
        return self._uop if self._storage.node is self._root else self._now()[0]

    @uop.setter
    def uop(self, new: UOp) -> None:
        self._move_to(*opened(new))

    @property
    def dtype(self) -> DType:
        """The element type.

        >>> (Tensor([1, 2]) > 1).dtype
        dtypes.bool
        """
        return self._uop.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes of the dimensions, ints or expressions of Variables; () of a scalar.

        >>> Tensor([[1, 2, 3], [4, 5, 6]]).shape
        (2, 3)
        """
        return self._uop.shape

    @property
    def device(self) -> str | None:
        """Where the values live or will be computed; None for constants until they are used.

        >>> Tensor([1, 2]).device, Tensor(1).device
        ('CPU', None)
        """
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
                storage.device = device or self.device
                storage.is_written = True
                put_off(storage, _stored_in_order(value))
                return
        self._write(value)

    @in_turn
    def _write(
        self,
        value: UOp,
        places: Sequence[UOp] = (),
        reduction: Ops | None = None,
        is_new: bool = False,
    ) -> None:
        """Make the next version of this storage's memory; first give it memory, if it has none.

        With `places` each element goes where they name it along the first dimensions, in order:
        it replaces what is there, or is combined with it by a `reduction`. What is out of range
        goes nowhere. Memory that `is_new` is read by no value yet, so none is looked through.
        """
        storage = self._storage
        if files.seen and is_file(storage.device):
            raise ValueError(
                f"assign: {storage.device} is a file, in which places that are computed can not be "
                "written; write slices, or the whole"
            )
        if memory_below(storage.node) is None or not storage.owner:
            self._writable(storage.node, value)  # what can not be written: before anything changes
        old, buffer = memory_to_write(storage)
        target, value = self._writable(old, value)
        written: tuple[UOp, ...] = (target, value)
        if places:
            written = (target, *_apart_from(buffer, value, places, is_new))
        write_next(storage, old, buffer, UOp(Ops.STORE, dtypes.void, written, reduction))

    def _writable(self, old: UOp, value: UOp) -> tuple[UOp, UOp]:
        """The view to write through, as movement only, and the value as the memory's dtype."""
        chain, node = [], self.uop
        while node is not old:
            chain.append(node)
            node = node.src[0]
        target = old
        for step in reversed(chain):
            if step.op is Ops.EXPAND:
                raise ValueError(
                    f"assign: this tensor of shape {self.shape} is an expanded view: several of "
                    "its elements are one place in memory; write to a copy, .contiguous()"
                )
            if step.op in GroupOp.Movement:
                target = UOp(step.op, old.dtype, (target, *step.src[1:]), step.arg)
        if reads_padding(self.uop, old):
            raise ValueError(
                f"assign: this tensor of shape {self.shape} is a padded view, and padding is not "
                "memory; write to a copy, .contiguous()"
            )
        if value.dtype is not old.dtype:
            value = UOp(Ops.BITCAST, old.dtype, (value,))
        return target, value


def memory_to_write(storage: Storage) -> tuple[UOp, UOp]:
    """The node of a storage in memory that it owns, which it is given if it has none; the BUFFER.

    The caller has the turn, as for what follows.
    """
    old, watching = storage.node, recorder()
    buffer = memory_below(old)
    if buffer is None or not storage.owner:
        old = give_memory(storage)
        if watching is not None and storage.maker is not watching.token:
            with watching.paused():  # a replay finds it in memory, as its next version
                realize_storages([storage])
            old = storage.node
        buffer = memory_below(old)
        assert buffer is not None
    return old, buffer


def write_next(storage: Storage, old: UOp, buffer: UOp, effect: UOp) -> None:
    """Make what an effect leaves in a storage's memory, `old` before, its next version."""
    watching = recorder()
    # Others that read this memory hold the version of now, not what follows. They get a copy
    # of it, which is taken before the write below is carried out.
    for reader in list(readers_of.get(buffer, ())):
        if reader is not storage and memory_below(reader.node) is buffer:
            put_off(reader, UOp(Ops.CONTIGUOUS, reader.node.dtype, (reader.node,)))
    if watching is not None:
        watching.wrote(storage)
    storage.is_written = True
    put_off(storage, _version(old, effect))
    readers_of.pop(buffer, None)


def _stored_in_order(value: UOp) -> UOp:
    """A value as what becomes the contents of memory: its elements in order, and its own."""
    root = split_view(value)
    if root.op is Ops.CONST or (root is value and memory_below(value) is None):
        return value
    return UOp(Ops.CONTIGUOUS, value.dtype, (value,))


def _apart_from(buffer: UOp, value: UOp, places: Sequence[UOp], is_new: bool) -> list[UOp]:
    """What is written to computed places, as something in other memory than that is.

    It is written one by one, so it is computed before. So are places that read what is written.
    """
    root = split_view(value)
    if root.op is not Ops.CONST and memory_below(root) in (None, buffer):
        value = UOp(Ops.CONTIGUOUS, value.dtype, (value,))
    if is_new:
        return [value, *places]
    apart = [UOp(Ops.CONTIGUOUS, p.dtype, (p,)) if _reads(p, buffer) else p for p in places]
    return [value, *apart]


def _reads(value: UOp, buffer: UOp) -> bool:
    """Whether a kernel that computes a value would read a BUFFER."""
    stack, seen = [value], {value}
    while stack:
        node = stack.pop()
        if memory_below(node) is buffer:
            return True
        if node.op is not Ops.CONTIGUOUS and node.op is not Ops.AFTER:
            stack += [s for s in node.src if s not in seen]
            seen.update(node.src)
    return False


def live_views() -> list[Any]:
    """All tensors there are."""
    return all_views.members()


def storages_of(tensors: Iterable[View]) -> list[Storage]:
    """The storages of tensors, each once."""
    return list({id(t._storage): t._storage for t in tensors}.values())


# ---------------------------------------------------------------- realising


@in_turn
def realize(tensors: Sequence[View]) -> None:
    """Compute the storages of tensors, and carry out every assignment made so far.

    Three things must come out as if every operation had run when it was written:
    - A write on the way is carried out, so whoever holds that version now finds it in memory.
    - Whoever was built before on the version that it overwrites must be computed too, in the same
      go, since that version is gone afterwards; and so on for the writes that this carries out.
      (Keeping a copy of that version instead would cost memory, and the value is wanted anyway;
      what computes nothing, a part or a repetition, is copied.)
    - What shares nodes with a computed graph shares the result.
    """
    wanted = wanted_storages(tensors)
    written = _written_besides(wanted)
    try:
        realize_storages([*wanted, *written])
    except Exception:
        if not written:
            raise
        # an assignment that can not be computed is an error for those who read it only
        realize_storages(wanted)


def _written_besides(wanted: Sequence[Storage]) -> list[Storage]:
    """The storages that were assigned to, and are not among the wanted ones."""
    taken = set(wanted)
    written = [s for s in pending_storages() if s.is_written and s not in taken]
    if recorders and (watching := recorder()) is not None:
        # what others write meanwhile is no part of a captured step
        own = {id(s) for s in watching.written}
        written = [s for s in written if s.maker is watching.token or id(s) in own]
    return written


@compiler_pass("collect", "tensors", "storages to compute")
def to_compute(tensors: Sequence[View]) -> list[Storage]:
    """The storages that `realize` would compute.

    The caller has the turn.
    """
    wanted = wanted_storages(tensors)
    found = [s for s in (*wanted, *_written_besides(wanted)) if 0 not in s.node.shape]
    if files.unread:
        read_files(found, pending_storages(), threading.active_count() > 1)
        found = [s for s in found if s.node.op is not Ops.BUFFER]
    for storage in found:
        _in_memory_of_its_own(storage)
    return found


@in_turn
def realize_storages(wanted: Sequence[Storage]) -> None:
    """Compute storages."""
    wanted = [s for s in wanted if 0 not in s.node.shape]
    if not wanted:
        return
    threads = threading.active_count() > 1
    if threads:
        # Whoever has read its sources by now, and is not among the pending ones yet, builds again:
        # it may read memory that is overwritten below, by a name that this does not change.
        changes.epoch = object()
    pending = pending_storages()
    if threads:
        _skip_writes_done(pending)
    if files.unread:
        read_files(wanted, pending, threads)
        wanted = [s for s in wanted if s.node.op is not Ops.BUFFER]
        if not wanted:
            return
    for storage in wanted:
        _in_memory_of_its_own(storage)
    stale = _add_stale_readers(wanted, pending)
    outputs = list(dict.fromkeys(s.node for s in (*wanted, *stale)))
    taken: list[UOp] = []
    there: list[list[Storage]] = []  # in the moment in which the results are in memory

    def announce(results: dict[UOp, UOp]) -> list[Setting]:
        settings = _announced(results, pending, threads, taken)
        if threads:
            settings += [(_pending.members, None, there), (changes, "epoch", None)]
        return settings

    try:
        results = runtime().realize(outputs, [s.node for s in stale], announce)
    except BaseException:
        for buffer in taken:  # unless all was computed when a signal's handler raised
            owner = owners.get(buffer)
            if owner is not None and memory_below(owner.node) is not buffer:
                owners.pop(buffer, None)
        raise
    if threads and there:
        # Others may have built on it while it was computed. Of what came later, or was renamed
        # already, the nodes mean something else: memory that was overwritten has new contents.
        late = {*there[0]}.difference(pending)
        settings = _announced(results, [s for s in pending_storages() if s in late], threads, [])
        publish([*settings, (changes, "epoch", object())])


@in_turn
def read_files(
    wanted: Sequence[Storage], pending: Sequence[Storage] | None = None, threads: bool = True
) -> None:
    """Read what values copy from files: what is read stands in place of the COPY from then on.

    OSError if a file is shorter than it was, or can not be read; then nothing has changed.
    """
    unread = set(files.unread)
    nodes = UOp.sink(*[s.node for s in wanted]).postorder() if unread else ()
    results = {n: runtime().read_file(n.src[0], n.arg) for n in nodes if n in unread}
    if results:
        pending = pending_storages() if pending is None else pending
        publish(_announced(results, pending, threads, []))


def _announced(
    results: dict[UOp, UOp],
    pending: Sequence[Storage],
    threads: bool,
    taken: list[UOp],
) -> list[Setting]:
    """What is to be set when the `results` are in memory, so that all storages read them.

    Who has which memory is noted here already, which does no harm before; new BUFFERs that
    get an owner are added to `taken`.
    """
    # what is in memory is in order, for those who asked for that
    results = results | {
        UOp(Ops.CONTIGUOUS, node.dtype, (node,)): now
        for node, now in results.items()
        if node.op is not Ops.AFTER and node.op is not Ops.CONTIGUOUS
    }
    settings: list[Setting] = []
    views: dict[int, UOp] = {}
    for storage, node in zip(pending, _renamed(pending, results, threads, settings), strict=True):
        if node is storage.node:
            continue
        base = split_view(node)
        if base.op is not Ops.BUFFER or (node is not base and not _is_front(node)):
            settings.append((storage, "node", node))
            continue
        settings.append((storage, "device", base.arg.device))
        settings.append((storage, "is_written", False))
        if node is not base and base in owners:
            settings.append((storage, "node", node))
            continue
        settings.append((storage, "node", base))
        if node is not base:
            views[id(storage)] = node
        if node is not base or not storage.owner:
            settings.append((storage, "owner", _note_memory(storage, base)))
            taken.append(base)
    # A value of symbolic size is the front of a BUFFER: its tensors become views of that memory.
    for tensor in live_views() if views else ():
        now = views.get(id(tensor._storage))
        if now is not None:
            before = tensor._storage.node
            settings.append((tensor, "_uop", rebased(tensor.uop, before, now)))
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


def pending_storages() -> list[Storage]:
    """The storages whose values are not in memory; none of what another thread captures."""
    found: list[Storage] = []
    for storage in _pending.members():
        if storage.node.op is Ops.BUFFER or storage.node.op is Ops.CONST:
            _pending.discard(storage)
        else:
            found.append(storage)
    if not recorders:
        return found
    me = threading.get_ident()
    foreign = [r for thread, r in list(recorders.items()) if thread != me]
    tokens = {r.token for r in foreign}
    written = {id(s) for r in foreign for s in r.written}  # theirs to carry out, whoever made them
    return [s for s in found if s.maker not in tokens and id(s) not in written]


def _is_front(node: UOp) -> bool:
    """Whether this is the front of a BUFFER of the upper bounds of its size, which is symbolic."""
    return node.op is Ops.SHRINK and len(node.src) > 1 and node.src[0].op is Ops.BUFFER


def _in_memory_of_its_own(storage: Storage) -> None:
    """Let a value that is a part of another one, or repeats or rearranges it, be a copy."""
    node = storage.node
    if node.op in GroupOp.Movement and len(node.src) == 1 and split_view(node).op is not Ops.CONST:
        put_off(storage, UOp(Ops.CONTIGUOUS, node.dtype, (node,)))


def wanted_storages(tensors: Sequence[View]) -> list[Storage]:
    """The storages to compute. A part of a value that nobody else sees is computed alone."""
    wanted: dict[int, Storage] = {}
    for tensor in tensors:
        storage = tensor._storage
        node = storage.node
        if node.op is Ops.BUFFER or node.op is Ops.CONST:
            continue
        uop = tensor.uop
        if 0 in uop.shape:
            continue
        if uop is not node and memory_below(node) is None and _is_alone(tensor):
            part = Storage(_stored_in_order(uop), storage.device)
            part.stands_apart = storage.stands_apart or not in_order(uop, node)
            tensor._storage, tensor._root, tensor._uop = part, part.node, part.node
            storage = part
        wanted[id(storage)] = storage
    return list(wanted.values())


def _references(view: View) -> int:
    """How many references there are to the storage of a view, those of this call included."""
    storage = view._storage
    return sys.getrefcount(storage)


def _is_alone(view: View) -> bool:
    """Whether nobody has the storage of a view but the view, and the caller in a variable."""
    return _references(view) == _ALONE + 1


# how many a call takes for itself differs by version of Python
_ALONE = _references(View._value(UOp.const(0, dtypes.int32), None))


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
                put_off(storage, UOp(Ops.CONTIGUOUS, storage.node.dtype, (storage.node,)))
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
                settings.append((tensor, "_uop", rebased(tensor.uop, old, front)))
                settings.append((tensor, "_root", new))
    _pending.add(storage)
    changes.pending += 1
    publish(settings)
    changes.pending += 1  # once more, for those who looked in between
    return new


@in_turn
def compute_readers(buffers: Collection[UOp], clean: weakref.WeakSet[UOp] | None = None) -> None:
    """Compute every value that reads one of these BUFFERs: something else will be in them.

    `clean` are graphs known to read none of them; it is added to.
    """
    clean = weakref.WeakSet() if clean is None else clean
    found: list[Storage] = []
    for buffer in buffers if readers_of else ():
        for reader in list(readers_of.pop(buffer, ())):
            if not reader.owner and memory_below(reader.node) is buffer:
                put_off(reader, UOp(Ops.CONTIGUOUS, reader.node.dtype, (reader.node,)))
                found.append(reader)
    taken = set(found)
    for storage in pending_storages():
        node = storage.node
        if node.op in (Ops.BUFFER, Ops.CONST) or storage in taken or node in clean:
            continue
        if not _reads_any(node, buffers, clean):
            clean.add(node)
            continue
        if split_view(node).op is Ops.BUFFER:  # nothing is computed: a copy must be made
            put_off(storage, UOp(Ops.CONTIGUOUS, node.dtype, (node,)))
        found.append(storage)
    realize_storages(found)


def _reads_any(root: UOp, buffers: Collection[UOp], clean: weakref.WeakSet[UOp]) -> bool:
    """Whether a graph has one of these BUFFERs in it."""
    stack, seen = [root], {root}
    while stack:
        for source in stack.pop().src:
            if source.op is Ops.BUFFER:
                if source in buffers:
                    return True
            elif source not in seen and source not in clean:
                seen.add(source)
                stack.append(source)
    return False
