from libc.stdint cimport int64_t, uint64_t

cdef class Settings:
    cdef uint64_t thread
    cdef int64_t changes
    cdef readonly int threads
    cdef readonly bint keeps     # freed memory: LRU, and not POISON
    cdef readonly bint is_plain  # replays run at once: JIT=1, and DEBUG prints nothing of kernels
    cdef readonly object known   # see `watch`

cdef Settings settings()
cdef int64_t *counter(object array) except NULL
