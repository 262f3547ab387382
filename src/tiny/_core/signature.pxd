from tiny._core.alive cimport Seen

cdef object tensor_class

cdef class Parts:
    cdef readonly list parts, tensors
    cdef readonly dict numbers
    cdef readonly list donated  # the numbers of tensors that are given away
    cdef list paths
    cdef int weak  # tensors that are Python numbers
    cpdef read(self, object x, str path=*)
    cdef object tensor(self, Seen x)
    cdef int add(self, object part, str path) except -1
    cdef int container(self, object x, type kind, str path) except -1

cdef class Surroundings:
    cdef readonly dict globals
    cdef readonly list cells, names
    cpdef read(self, list parts, list paths=*)

cdef class CallReader:
    cdef public dict layouts
    cdef public Surroundings surroundings
    cdef public object donate
    cpdef Parts take_apart(self, tuple args, dict kwargs, list layout, list paths=*)
