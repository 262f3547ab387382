"""A call of a captured step as one native function, where nothing about it is out of the way.

What a replay has to decide was decided when the step was captured. What is left: whether this call
is of its signature, whether the tensors that it knows are what they were, memory for the results,
the kernels, and tensors for the results. `quick` says MISS wherever Python has to look.
"""

cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t

from tiny._core.alive cimport Alive, Changes, Owners, Seen, Value
from tiny._core.graph cimport Node, make, make1
from tiny._core.memory cimport Arena, HostMemory, Piece, Shelves
from tiny._core.ops cimport OP_BUFFER
from tiny._core.settings cimport Settings, counter, settings
from tiny._core.signature cimport CallReader, Parts
from tiny._core.types cimport DType
from tiny._core import alive
from tiny.helpers import counts

cdef extern from *:
    """
    /* base.__new__(type), without the look-ups */
    #define TINY_NEW(base, type, args) \
        (((PyTypeObject *)(base))->tp_new((PyTypeObject *)(type), args, NULL))
    """
    object new_of_base "TINY_NEW"(void *base, void *type, object args)

MISS = object()

cdef Changes changes = alive.changes
cdef Owners owners = alive.owners
cdef int64_t *c_counts = counter(counts)
cdef dict recorders
cdef Alive live
cdef object storage_class, tensor_class, buffer_class, buffer_arg, uids
cdef tuple NOTHING = ()
cdef object no_memory = object()


def register(dict recorders_, Alive live_, storage, tensor, buffer, arg, uids_) -> None:
    """Tell what steps are captured now, what lists all tensors, and of what classes things are."""
    global recorders, live, storage_class, tensor_class, buffer_class, buffer_arg, uids
    recorders, live, storage_class, tensor_class = recorders_, live_, storage, tensor
    buffer_class, buffer_arg, uids = buffer, arg, uids_


@cython.final
cdef class QuickStep:
    """What a replay of a captured step does.

    `fresh` are its results in memory of their own: (allocator, elements, dtype, device, shape);
    `bound` is memory, `arenas` are (allocator, bytes). `storages` are (number in `fresh`, device),
    `tensors` are (number in `storages`, movement over it, requires_grad). `draw` gives the keys of
    random numbers. `written` are the ids of buffers that it writes on its own account. Of Python's
    step, which knows this one, only what does not change is read here.
    """

    cdef object kernels, lock, draw, holders, packed, packed_kernels
    cdef set written
    cdef tuple fresh, bound, arenas, constants, storages, tensors, packed_memory
    cdef int64_t kernel_count, flops, nbytes
    cdef public int64_t seen   # changes.pending, when all was in order
    cdef int shape             # of the result: 0 a tensor, 1 a list, 2 a tuple, 3 another

    def __cinit__(self, step, kernels, tuple counted, fresh, bound, arenas, constants, storages,
                  tensors, set written, lock, draw, packed=None, packed_kernels=None, packed_memory=()):
        self.kernels, self.written, self.lock, self.draw = kernels, written, lock, draw
        self.kernel_count, self.flops, self.nbytes = counted
        self.fresh, self.bound, self.arenas = tuple(fresh), tuple(bound), tuple(arenas)
        self.constants, self.storages = tuple(constants), tuple(storages)
        self.tensors, self.seen, self.holders = tuple(tensors), -1, step.holders
        self.packed, self.packed_kernels = packed, packed_kernels
        self.packed_memory = tuple(packed_memory)
        self.shape = 3
        if step.is_single:
            self.shape = 0
        elif step._is_flat:
            self.shape = 1 if type(step.template) is list else 2

    cdef object run(self, object step, list tensors, dict numbers):
        """Run it on tensors that lie in memory whole and apart; the result, or MISS."""
        cdef list memory = [], made = []
        cdef Piece buffer
        cdef object piece, allocator, size, dtype, device, shape
        cdef Seen tensor
        for tensor in tensors:
            handle = (<Node>tensor._uop).handle
            if type(handle) is not buffer_class or (
                self.written and id(handle) in self.written
            ):
                return MISS
            piece = (<Piece>handle)._memory
            if type(piece) is not HostMemory:
                return MISS
            memory.append(piece)
        for allocator, size, dtype, device, shape in self.fresh:
            buffer = <Piece>new_of_base(<void *>Piece, <void *>buffer_class, (device, size, dtype))
            buffer.take(<Shelves>allocator)
            made.append(buffer)
            memory.append(buffer._memory)
        memory += self.bound
        cdef tuple values = self.constants
        if numbers or self.draw is not None:
            values = tuple(numbers.values())
            keys = NOTHING if self.draw is None else self.draw(values)
            values = (*values, *keys, *self.constants)
        if self.lock is None:
            self.start(memory, values)
        else:
            with self.lock:
                self.start(memory, values)
        c_counts[0] += self.kernel_count
        c_counts[1] += self.flops
        c_counts[2] += self.nbytes
        return self.result(step, made)

    cdef int start(self, list memory, tuple values) except -1:
        """Run the kernels."""
        cdef list arenas = [Arena(<Shelves>of, nbytes) for of, nbytes in self.arenas]
        cdef Arena arena
        kernels = self.kernels
        if self.packed is not None and self.packed.is_current():
            kernels = self.packed_kernels
            memory += self.packed_memory
        for arena in arenas:
            memory.append(arena.memory)
        kernels(tuple(memory), values)
        return 0

    cdef object result(self, object step, list made):
        """The result, over the memory that was filled."""
        cdef list storages = [], found = []
        cdef Value storage
        cdef Seen tensor
        cdef Node node
        cdef Piece buffer
        cdef Py_ssize_t number
        cdef object device, chain, wants
        for number, device in self.storages:
            buffer = <Piece>made[number]
            shape = (<tuple>self.fresh[number])[4]
            arg = new_of_base(<void *>tuple, <void *>buffer_arg, ((next(uids), shape, buffer.device),))
            node = make(OP_BUFFER, buffer.dtype, NOTHING, arg, None)
            node.handle = buffer
            storage = <Value>new_of_base(<void *>Value, <void *>storage_class, NOTHING)
            storage.node, storage.device = node, device
            storage.owner = owners.setdefault(node, storage) is storage
            storages.append(storage)
        for number, chain, wants in self.tensors:
            storage = <Value>storages[number]
            tensor = <Seen>new_of_base(<void *>Seen, <void *>tensor_class, NOTHING)
            tensor._storage, tensor._root = storage, storage.node
            node = <Node>storage.node
            for op, dtype, arg in chain:
                node = make(<int>op, <DType>dtype, (node,), arg, None)
            tensor._uop, tensor.requires_grad = node, wants
            live.add(tensor)
            found.append(tensor)
        if self.shape == 0:
            return found[0]
        if self.shape == 1:
            return found
        return tuple(found) if self.shape == 2 else step.filled(found)


cdef bint are_apart(list tensors) except -1:
    """Whether tensors are in memory, each the whole of a BUFFER, and no two share one."""
    cdef Seen tensor
    cdef Py_ssize_t k, j, count = len(tensors)
    for k in range(count):
        tensor = <Seen>tensors[k]
        if (<Node>tensor._uop).c_op != OP_BUFFER \
                or (<Value>tensor._storage).node is not tensor._root:
            return False
        if count <= 8:
            for j in range(k):
                if (<Seen>tensors[j])._storage is tensor._storage:
                    return False
    return count <= 8 or len({id((<Seen>t)._storage) for t in tensors}) == count


def quick(CallReader reader not None, dict steps not None, tuple args, dict kwargs):
    """The result of a call of a step that was captured; MISS if it is not as simple as that."""
    if not steps or recorders:
        return MISS
    if not settings().is_plain:
        return MISS
    layout = reader.layouts.get((len(args), tuple(kwargs)))
    if layout is None:
        return MISS
    cdef Parts found
    try:
        found = reader.take_apart(args, kwargs, <list>layout)
    except RuntimeError:  # that can not be told apart from others; Python says where it is
        return MISS
    step = steps.get(tuple(found.parts))
    if step is None or step.quick is None or not are_apart(found.tensors):
        return MISS
    cdef QuickStep it = <QuickStep?>step.quick
    if changes.pending != it.seen or it.holders.is_lost or step.cleared:
        if not step.is_ready() or not are_apart(found.tensors):
            return MISS
        it.seen = step.seen
    return it.run(step, found.tensors, found.numbers)
