from cpython.ref cimport PyObject
from libc.stdint cimport int64_t

cdef struct Link:
    Link *c_before
    Link *c_after
    PyObject *c_owner

cdef class Member:
    cdef Link link

cdef class Alive:
    cdef Link ends  # the first comes after it, the last before it
    cpdef add(self, Member member)
    cpdef discard(self, Member member)

cdef class Value(Member):
    cdef public object node, device, holders, maker
    cdef public bint owner, is_written, stands_apart
    cdef PyObject *c_owned  # a list of the BUFFERs it owned, unknown to the collector
    cdef object __weakref__

cdef class Seen(Member):
    cdef public object _storage, _root, _uop, grad, requires_grad
    cdef object __weakref__

cdef class Changes:
    cdef public int64_t pending
    cdef public object epoch

cdef class Owners:
    cpdef object get(self, object buffer)
    cpdef object setdefault(self, object buffer, Value value)
