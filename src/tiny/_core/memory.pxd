from libc.stdint cimport int64_t, uint64_t
from tiny._core.types cimport DType

cdef char *allocate(size_t nbytes, void **c_raw) noexcept

cdef class HostMemory:
    cdef void *c_raw          # to be freed; NULL where the memory belongs to another
    cdef char *c_data
    cdef readonly Py_ssize_t nbytes
    cdef readonly Py_ssize_t users
    cdef HostMemory whole     # of which this is a part
    cdef Py_buffer foreign
    cdef bint is_foreign
    cdef readonly bint writable
    cdef int64_t change_count  # of the memory that this is a part of, there
    cdef void changed(self) noexcept

cdef class Pool:
    cdef dict pieces  # by size: a list of them, the last given last; sizes by their last use
    cdef readonly Py_ssize_t nbytes
    cpdef object take(self, Py_ssize_t nbytes)
    cpdef object take_at_least(self, Py_ssize_t nbytes)
    cpdef list give(self, object piece, Py_ssize_t nbytes, Py_ssize_t most)

cdef class Shelves:
    cdef readonly str device
    cdef readonly Pool _pool, _arenas
    cdef bint is_host
    cdef int64_t *c_used
    cdef object __weakref__

cdef class Piece:
    cdef readonly str device
    cdef readonly object size, nbytes  # ints that may be larger than any memory
    cdef Py_ssize_t c_nbytes             # -1 if they are
    cdef readonly DType dtype
    cdef public object options, base, offset
    cdef public object _memory, _allocator
    cdef object __weakref__
    cdef int take(self, Shelves allocator) except -1
    cdef int give_back(self) except -1

cdef class Arena:
    cdef readonly object memory
    cdef readonly Py_ssize_t nbytes
    cdef Shelves allocator
