"""Lists of living objects, which an object leaves when it dies.

A Member stands in one list at most, by two pointers in itself: joining, leaving and dying take
nanoseconds and no memory, where a weak reference with a callback in a dict takes half a
microsecond. The pointers are borrowed: a list keeps nothing alive.
"""

cimport cython
from cpython.ref cimport PyObject


cdef extern from "Python.h":
    Py_ssize_t c_references "Py_REFCNT" (PyObject *) noexcept
    int c_append "PyList_Append" (object, PyObject *) except -1


cdef struct Link:
    Link *c_before
    Link *c_after
    PyObject *c_owner


cdef void unlink(Link *c_link) noexcept:
    if c_link.c_before is not NULL:
        c_link.c_before.c_after = c_link.c_after
        c_link.c_after.c_before = c_link.c_before
        c_link.c_before = c_link.c_after = NULL


cdef class Member:
    """An object that can stand in a list of living objects. What it knows can not be seen."""

    cdef Link link

    def __cinit__(self):
        self.link.c_owner = <PyObject *>self

    def __dealloc__(self):
        unlink(&self.link)


@cython.final
cdef class Alive:
    """A list of living Members, in the order in which they joined."""

    cdef Link ends  # the first comes after it, the last before it

    def __cinit__(self):
        self.ends.c_before = self.ends.c_after = &self.ends

    def __dealloc__(self):
        while self.ends.c_after is not &self.ends:
            unlink(self.ends.c_after)

    def add(self, Member member not None) -> None:
        """Put an object at the end. It leaves the place where it stood, here or elsewhere."""
        cdef Link *c_link = &member.link
        unlink(c_link)
        c_link.c_before = self.ends.c_before
        c_link.c_after = &self.ends
        c_link.c_before.c_after = c_link
        self.ends.c_before = c_link

    def discard(self, Member member not None) -> None:
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
