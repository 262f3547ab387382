from cpython.ref cimport PyObject
from libc.stdint cimport int64_t
from tiny._core.graph cimport Node
from tiny._core.types cimport DType

cdef enum:
    NESTING = 6           # a budget for divide and modulo

cdef struct Term:
    PyObject *atom        # owned
    int64_t factor

cdef class Form:
    cdef DType dtype
    cdef Term *c_terms
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef int64_t constant
    cdef bint failed      # a number left the dtype's range: the form is of no use
    cdef Term c_few[8]
    cdef int add(self, PyObject *atom, int64_t factor) except -1
    cdef int add_term(self, Node x, int64_t factor) except -1
    cdef void add_constant(self, int64_t value) noexcept
    cdef void add_multiple(self, int64_t value, int64_t factor) noexcept
    cdef int add_node(self, Node x, int64_t factor) except -1     # x canonical
    cdef int add_form(self, Form other, int64_t factor) except -1
    cdef void settle(self) noexcept
    cdef bint bounds(self, int64_t *low, int64_t *high) noexcept
    cdef bint bounds_of_residues(self, int64_t c, int variant, int64_t *low,
                                 int64_t *high) noexcept
    cdef void drop_zeros(self) noexcept
    cdef bint holds(self, Form other, int64_t factor) noexcept
    cdef Form copy(self)

cdef Form new_form(DType dtype)
cdef int64_t residue(int64_t factor, int64_t c, int variant) noexcept nogil
# floor(x / c) and x - c * floor(x / c) for c > 0; x settled and given up
cdef Form divide(Form x, int64_t c, int budget)
cdef Form modulo(Form x, int64_t c, int budget)
cdef bint recombine(Form f, int budget) except -1
cdef Node built(Form f)                        # canonical; None where the form failed
cdef Node simplified(Node root)
cdef Node less_than_zero(Form f)               # f settled and given up; None where it failed
cdef Node conjunction(Node a, Node b)          # of canonical conditions
