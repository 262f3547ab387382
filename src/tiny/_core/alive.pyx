"""What tensors and storages are made of, and lists of living objects, which they leave as they die.

A Member stands in one list at most, by two pointers in itself: joining, leaving and dying take
nanoseconds and no memory, where a weak reference with a callback in a dict takes half a
microsecond. The pointers are borrowed: a list keeps nothing alive.
"""

cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport uintptr_t


cdef extern from "Python.h":
    Py_ssize_t c_references "Py_REFCNT" (PyObject *) noexcept
    PyObject *c_new_list "PyList_New" (Py_ssize_t) except NULL
    void c_release "Py_DECREF" (PyObject *) noexcept
    int c_append "PyList_Append" (object, PyObject *) except -1


cdef void unlink(Link *c_link) noexcept:
    if c_link.c_before is not NULL:
        c_link.c_before.c_after = c_link.c_after
        c_link.c_after.c_before = c_link.c_before
        c_link.c_before = c_link.c_after = NULL


cdef class Member:
    """An object that can stand in a list of living objects. What it knows can not be seen."""

    def __cinit__(self):
        self.link.c_owner = <PyObject *>self

    def __dealloc__(self):
        unlink(&self.link)


@cython.final
cdef class Alive:
    """A list of living Members, in the order in which they joined."""

    def __cinit__(self):
        self.ends.c_before = self.ends.c_after = &self.ends

    def __dealloc__(self):
        while self.ends.c_after is not &self.ends:
            unlink(self.ends.c_after)

    cpdef add(self, Member member):
        """Put an object at the end. It leaves the place where it stood, here or elsewhere."""
        cdef Link *c_link = &member.link
        unlink(c_link)
        c_link.c_before = self.ends.c_before
        c_link.c_after = &self.ends
        c_link.c_before.c_after = c_link
        self.ends.c_before = c_link

    cpdef discard(self, Member member):
        """Take an object out of the list that it stands in, if it stands in one."""
        unlink(&member.link)

    def members(self) -> list:
        """Those there are now. One that is dying is not among them."""
        cdef list found = []
        cdef Link *c_at = self.ends.c_after
        while c_at is not &self.ends:
            if c_references(c_at.c_owner) > 0:
                c_append(found, c_at.c_owner)
            c_at = c_at.c_after
        return found


@cython.no_gc_clear  # one that is met while garbage is collected must not be found emptied
cdef class Value(Member):
    """What a `Storage` is made of: see there. It stands in `owners` for the BUFFERs it owns."""

    def __dealloc__(self):
        if self.c_owned != NULL:
            _disown(self)


cdef class Seen(Member):
    """What a tensor is made of: see `View`."""


@cython.final
cdef class Changes:
    """`pending` grows whenever some storage comes to hold a value that is not in memory.

    `epoch` is another object whenever computing begins, and when results have been put in place,
    while there are several threads; None from then until what others built meanwhile is in order.
    """

    def __cinit__(self):
        self.epoch = object()


changes = Changes()


# ---------------------------------------------------------------- who owns memory

cdef dict owner_of = {}  # by BUFFER: the address of a Value, which takes it out when it dies


@cython.final
cdef class Owners:
    """Who owns a BUFFER, as a dict from BUFFERs to Values that keeps no Value alive."""

    cpdef object get(self, object buffer):
        """The living Value that owns a BUFFER; None if there is none."""
        cdef object address = owner_of.get(buffer)
        cdef PyObject *found
        if address is None:
            return None
        found = <PyObject *><uintptr_t>address
        return <object>found if c_references(found) > 0 else None

    cpdef object setdefault(self, object buffer, Value value):
        """The owner of a BUFFER, which is this one if it had none."""
        cdef object found = self.get(buffer)
        if found is not None:
            return found
        owner_of[buffer] = <uintptr_t><void *>value
        if value.c_owned == NULL:
            value.c_owned = c_new_list(0)
        c_append(<list>value.c_owned, <PyObject *>buffer)
        return value

    def pop(self, buffer, default=None):
        """Let a BUFFER have no owner."""
        found = self.get(buffer)
        owner_of.pop(buffer, None)
        if found is None:
            return default
        (<list>(<Value>found).c_owned).remove(buffer)
        return found

    def __contains__(self, buffer):
        return self.get(buffer) is not None

    def __len__(self):
        return len(owner_of)


owners = Owners()


cdef void _disown(Value value) noexcept:
    """Take a Value that dies out of `owners`."""
    cdef object mine = <uintptr_t><void *>value
    cdef list owned = <list>value.c_owned
    for buffer in owned:
        if owner_of.get(buffer) == mine:
            del owner_of[buffer]
    c_release(value.c_owned)
    value.c_owned = NULL
