from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from cpython.ref cimport PyObject
from tiny._core.types cimport DType

# bits of Node.c_flags
cdef enum:
    BOUNDED = 1       # c_vmin and c_vmax hold
    INT_CONST = 2     # a CONST of an integral dtype other than bool, its value in c_vmin
    CANONICAL = 4     # simplify() returns the node itself
    SCALAR = 8        # the shape is ()
    TRACKED = 16      # the collector knows the node

cdef class Node:
    cdef uint64_t c_hash
    cdef uint64_t c_sources       # bit (op & 63) is set for the op of each source
    cdef uint64_t c_settled       # one bit a pure matcher: no rule of it applies in this graph
    cdef int64_t c_vmin
    cdef int64_t c_vmax
    cdef readonly DType dtype
    cdef readonly tuple src
    cdef readonly object arg
    cdef readonly object tag
    cdef object c_shape           # tuple, or None for nodes without a value
    cdef dict c_props
    cdef Node c_canonical         # simplify()'s result, once known and different
    cdef object __weakref__
    cdef uint32_t c_mark          # epoch of the last traversal; see new_epoch
    cdef uint32_t c_index         # scratch of a traversal
    cdef uint8_t c_op
    cdef uint8_t c_flags

# All make a node or find the one that exists. Arguments are taken as they are.
cdef Node make(int op, DType dtype, tuple src, object arg, object tag)
cdef Node make1(int op, DType dtype, Node a)
cdef Node make2(int op, DType dtype, Node a, Node b)
cdef Node make3(int op, DType dtype, Node a, Node b, Node c)
cdef Node make_const(DType dtype, object value)     # value of the right type already
cdef Node make_int(DType dtype, int64_t value)
cdef Node make_bool(bint value)
cdef Node with_sources(Node node, tuple src)        # the same op over other sources
cdef tuple shape_of(Node node)

# Sources before users; each node once. Fills c_index with the position. Runs no Python code.
cdef list postorder(Node root)
cdef uint32_t new_epoch() noexcept
cdef void count_visits(size_t nodes) noexcept        # by other traversals than these

cdef void forget_settled(uint64_t bits) noexcept     # clear them in c_settled of every node

# Arguments: compared by exact type, floats by bits, tuples element by element
cdef bint same_arg(object a, object b) except -1

# A map from nodes to nodes by address. It owns neither; see pmap_* in graph.pyx
cdef struct PointerMap:
    PyObject **c_keys
    PyObject **c_values
    size_t mask
    size_t count

cdef int pmap_init(PointerMap *m, size_t capacity) except -1
cdef void pmap_free(PointerMap *m) noexcept
cdef PyObject *pmap_get(PointerMap *m, PyObject *key) noexcept
cdef int pmap_put(PointerMap *m, PyObject *key, PyObject *value) except -1   # replaces
