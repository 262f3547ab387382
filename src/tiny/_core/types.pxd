from libc.stdint cimport int64_t

cdef class DType:
    cdef readonly str name
    cdef readonly int id            # small, dense, in order of creation
    cdef readonly int priority      # of promotion; negative: takes no part
    cdef readonly int bitsize
    cdef readonly int itemsize
    cdef readonly object fmt        # struct character, or None
    cdef readonly str kind          # b i u f 8 v w x, see types.pyx
    cdef char c_kind
    cdef bint c_exact               # integers without wrap: index and weakint
    cdef bint c_integral            # bool, integers, index, weakint
    cdef bint c_bounded             # c_min and c_max hold
    cdef int64_t c_min
    cdef int64_t c_max
    cdef object __weakref__

cdef DType BOOL
cdef DType INDEX
cdef DType VOID
cdef object coerce(DType dtype, object value)
