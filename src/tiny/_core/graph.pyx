"""Nodes: hash-consing, shapes, bounds, traversal, structural keys, flat-array pickling.

Equal means identical: a table of borrowed pointers holds every live node, and a node leaves it
when it dies. Nothing here recurses on the depth of a graph.
"""

cimport cython
from cpython.bool cimport PyBool_Check
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport (
    PyLong_AsLong, PyLong_AsLongLongAndOverflow, PyLong_Check, PyLong_CheckExact,
)
from cpython.ref cimport Py_INCREF, PyTypeObject
from cpython.tuple cimport (
    PyTuple_Check, PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New,
    PyTuple_SET_ITEM,
)
from cpython.unicode cimport PyUnicode_Check
from libc.math cimport isfinite
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from tiny._core cimport types
from tiny._core.arith cimport (
    add_overflows, borrowed_item, floordiv, floormod, length_of, mul_overflows,
)
from tiny._core.ops cimport *
from tiny._core.types cimport coerce

import array
import struct

from tiny._core.ops import Ops
from tiny._core.types import dtype_by_name

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void *o)
    void PyObject_GC_Track(void *o)
    PyTypeObject *type_of "Py_TYPE"(PyObject *o)
    Py_ssize_t refcount "Py_REFCNT"(PyObject *o)
    const char *PyUnicode_AsUTF8AndSize(object s, Py_ssize_t *n) except NULL

cdef extern from *:
    """
    #include <stdint.h>
    #if defined(_MSC_VER)
    #include <intrin.h>
    static uint64_t tiny_mul_high(uint64_t a, uint64_t b) { return __umulh(a, b); }
    #else
    static inline uint64_t tiny_mul_high(uint64_t a, uint64_t b) {
        return (uint64_t)(((unsigned __int128)a * b) >> 64); }
    #endif
    /* base.__new__(type), without the look-ups: `type` is a subclass without fields */
    #define TINY_NEW(base, type, args) \
        (((PyTypeObject *)(base))->tp_new((PyTypeObject *)(type), args, NULL))
    #define TINY_SET_VECTORCALL(t, f) (((PyTypeObject *)(t))->tp_vectorcall = (vectorcallfunc)(f))
    /* zeroed memory that the collector does not know yet: few nodes ever need to be known */
    static PyObject *tiny_alloc_untracked(PyTypeObject *type, Py_ssize_t Py_UNUSED(items)) {
        PyObject *o = PyObject_GC_New(PyObject, type);
        if (o) memset((char *)o + sizeof(PyObject), 0, type->tp_basicsize - sizeof(PyObject));
        return o;
    }
    #define TINY_ALLOC_UNTRACKED(t) (((PyTypeObject *)(t))->tp_alloc = tiny_alloc_untracked)
    """
    uint64_t mul_high "tiny_mul_high"(uint64_t a, uint64_t b) noexcept nogil
    void TINY_SET_VECTORCALL(void *type, void *function)
    void TINY_ALLOC_UNTRACKED(void *type)
    object new_of_base "TINY_NEW"(void *base, void *type, object args)

# Bounds at or beyond this are "unknown": sums of two of them still fit an int64.
cdef int64_t LIMIT = <int64_t>1 << 62

cdef object OPS_TYPE = Ops
cdef list OPS_BY_CODE = [None] * OP_COUNT
for _op in Ops:
    OPS_BY_CODE[int(_op)] = _op

cdef bint IS_ELEMENTWISE[OP_COUNT]
cdef bint IS_COMMUTATIVE[OP_COUNT]
memset(IS_ELEMENTWISE, 0, sizeof(IS_ELEMENTWISE))
memset(IS_COMMUTATIVE, 0, sizeof(IS_COMMUTATIVE))
for _i in range(OP_CAST, OP_MULACC + 1):
    IS_ELEMENTWISE[<int>_i] = True
for _i in (OP_ADD, OP_MUL, OP_MAX, OP_CMPNE, OP_CMPEQ, OP_XOR, OP_OR, OP_AND):
    IS_COMMUTATIVE[<int>_i] = True

ELEMENTWISE = frozenset(op for op in Ops if IS_ELEMENTWISE[<int>int(op)])
COMMUTATIVE = frozenset(op for op in Ops if IS_COMMUTATIVE[<int>int(op)])

# ---------------------------------------------------------------- the table

cdef struct Slot:
    uint64_t hash
    PyObject *node

cdef size_t SMALLEST = 1 << 12
cdef Slot *slots = <Slot *>calloc(1 << 12, sizeof(Slot))
cdef size_t slots_mask = (1 << 12) - 1
cdef size_t slots_used = 0
cdef uint64_t nodes_made = 0
cdef uint64_t nodes_visited = 0


cdef int resize_table(size_t capacity) noexcept:
    """Move all slots into a table of that capacity; 1 if there is no memory for it."""
    global slots, slots_mask
    cdef Slot *bigger = <Slot *>calloc(capacity, sizeof(Slot))
    cdef size_t i, j
    if bigger == NULL:
        return 1
    for i in range(slots_mask + 1):
        if slots[i].node != NULL:
            j = slots[i].hash & (capacity - 1)
            while bigger[j].node != NULL:
                j = (j + 1) & (capacity - 1)
            bigger[j] = slots[i]
    free(slots)
    slots = bigger
    slots_mask = capacity - 1
    return 0


cdef int table_add(uint64_t h, PyObject *node) except -1:
    global slots_used, nodes_made
    cdef size_t j
    # at most 0.62 full
    if (slots_used + 1) * 8 > (slots_mask + 1) * 5 and resize_table((slots_mask + 1) * 2):
        raise MemoryError("no memory for the table of graph nodes")
    j = h & slots_mask
    while slots[j].node != NULL:
        j = (j + 1) & slots_mask
    slots[j].hash = h
    slots[j].node = node
    slots_used += 1
    nodes_made += 1
    return 0


cdef void table_remove(uint64_t h, PyObject *node) noexcept:
    """Take a node out by shifting its followers back: no tombstones."""
    global slots_used
    cdef size_t j = h & slots_mask, gap, home
    while slots[j].node != node:
        if slots[j].node == NULL:
            return  # its constructor failed before it was added
        j = (j + 1) & slots_mask
    slots_used -= 1
    gap = j
    while True:
        j = (j + 1) & slots_mask
        if slots[j].node == NULL:
            break
        home = slots[j].hash & slots_mask
        if (gap <= j and gap < home <= j) or (gap > j and (gap < home or home <= j)):
            continue  # it is at or after its home within the run: leave it
        slots[gap] = slots[j]
        gap = j
    slots[gap].node = NULL
    slots[gap].hash = 0
    if slots_mask >= SMALLEST and slots_used * 16 < slots_mask:
        resize_table((slots_mask + 1) // 4)


def table_stats() -> tuple[int, int]:
    """(nodes alive, slots of the table)."""
    return slots_used, slots_mask + 1


cdef void count_visits(size_t nodes) noexcept:
    global nodes_visited
    nodes_visited += nodes


def work_done() -> tuple[int, int]:
    """(nodes made, nodes visited by traversals and rewrites) since the process began."""
    return nodes_made, nodes_visited


# ---------------------------------------------------------------- hashing and comparing

cdef inline uint64_t mix(uint64_t a, uint64_t b) noexcept nogil:
    a ^= b + <uint64_t>0x9E3779B97F4A7C15 + (a << 6) + (a >> 2)
    a *= <uint64_t>0xFF51AFD7ED558CCD
    return a ^ (a >> 32)


cdef inline uint64_t finish(uint64_t h) noexcept nogil:
    h ^= h >> 32
    h *= <uint64_t>0x9E3779B97F4A7C15
    return h ^ (h >> 29)


cdef inline uint64_t placed(uint64_t h, uint64_t position) noexcept nogil:
    # A multiplier of its own for each position, over h mixed with itself: no chain of dependent
    # steps, and not linear in the position (else ADD(a, b) would collide with ADD(b, a)).
    return (h ^ (h >> 31)) * (<uint64_t>0xFF51AFD7ED558CCD + position * <uint64_t>0x9FB21C651E98DF26)


cdef inline uint64_t start(int op, DType dtype) noexcept:
    return (<uint64_t>op * <uint64_t>0xC2B2AE3D27D4EB4F) ^ (<uint64_t>dtype.id << 56)


cdef inline uint64_t bits_of(double d) noexcept:
    cdef uint64_t u
    memcpy(&u, &d, 8)
    return u


cdef uint64_t hash_arg(object arg) except? 1:
    cdef int overflow = 0
    cdef uint64_t h
    cdef uint64_t state[2]
    if arg is None:
        return 0x1234567
    if PyBool_Check(arg):
        return 0x2222 if arg is True else 0x3333
    if PyLong_Check(arg):
        value = PyLong_AsLongLongAndOverflow(arg, &overflow)
        return mix(0x11, <uint64_t>value) if not overflow else mix(0x12, <uint64_t>hash(arg))
    if PyFloat_CheckExact(arg):
        return mix(0x44, bits_of(PyFloat_AS_DOUBLE(arg)))
    if PyTuple_Check(arg):
        h = 0x5555
        for item in <tuple>arg:
            h = mix(h, hash_arg(item))
        return h
    if PyUnicode_Check(arg):  # not hash(), which differs from process to process
        state[0], state[1] = 0x88, 0
        try:
            absorb_text(state, 7, arg)
        except UnicodeEncodeError:
            return mix(0x78, <uint64_t><Py_ssize_t>hash(arg))
        return state[0]
    if type(arg).__hash__ is None:
        return mix(0x66, <uint64_t><size_t><PyObject *>arg)  # unhashable: by identity
    return mix(0x77, <uint64_t><Py_ssize_t>hash(arg))


cdef bint same_arg(object a, object b) except -1:
    cdef Py_ssize_t i
    if a is b:
        return True
    if type_of(<PyObject *>a) != type_of(<PyObject *>b):
        return False
    if PyFloat_CheckExact(a):
        return bits_of(PyFloat_AS_DOUBLE(a)) == bits_of(PyFloat_AS_DOUBLE(b))
    if PyTuple_Check(a):
        if PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b):
            return False
        for i in range(PyTuple_GET_SIZE(a)):
            if not same_arg(<object>PyTuple_GET_ITEM(a, i), <object>PyTuple_GET_ITEM(b, i)):
                return False
        return True
    if PyLong_CheckExact(a):
        return a == b
    if type(a).__hash__ is None:
        return False
    return bool(a == b)


cdef bint is_atomic(object arg, int depth=3) noexcept:
    """Whether a value can be part of no reference cycle (numbers, text, tuples of such)."""
    if arg is None or PyLong_Check(arg) or PyFloat_CheckExact(arg) or PyUnicode_Check(arg):
        return True
    if PyTuple_Check(arg) and depth:
        for item in <tuple>arg:
            if not is_atomic(item, depth - 1):
                return False
        return True
    return False


# ---------------------------------------------------------------- the node

cdef type node_class = None  # UOp, once tiny.uop.ops has registered it


@cython.no_gc_clear  # a node met by a callback during collection must not be found emptied
cdef class Node:
    """One operation of a graph: immutable, hash-consed; equal means identical.

    Make one with the registered subclass: `UOp(op, dtype, src, arg, tag)`.
    """

    def __dealloc__(self):
        table_remove(self.c_hash, <PyObject *>self)

    def __hash__(self):
        return <Py_ssize_t>(self.c_hash >> 1)

    @property
    def op(self):
        """The operation, a member of Ops."""
        return OPS_BY_CODE[self.c_op]

    @property
    def shape(self) -> tuple:
        """Sizes of the dimensions; () for a scalar. TypeError for a node without a value."""
        if self.c_shape is None:
            raise TypeError(f"{self.op!r} has no shape: it computes no value")
        return <tuple>self.c_shape

    @property
    def _shape(self):
        """The shape, or None for a node without a value."""
        return self.c_shape

    @property
    def vmin(self):
        """A lower bound of the value: int, bool or float. Exact where all sources' are."""
        if self.c_flags & BOUNDED:
            return bool(self.c_vmin) if self.dtype is types.BOOL else self.c_vmin
        return self.arg if self.c_op == OP_CONST else self.dtype.min

    @property
    def vmax(self):
        """An upper bound of the value, inclusive."""
        if self.c_flags & BOUNDED:
            return bool(self.c_vmax) if self.dtype is types.BOOL else self.c_vmax
        return self.arg if self.c_op == OP_CONST else self.dtype.max

    @property
    def props(self) -> dict:
        """What passes remember about this node. Never put a user of a node on the node."""
        if self.c_props is None:
            self.c_props = {}
            if not self.c_flags & TRACKED:
                self.c_flags |= TRACKED
                PyObject_GC_Track(<void *>self)
        return self.c_props

    @property
    def handle(self):
        """The device memory of a BUFFER node, or None. Opaque to the graph."""
        return None if self.c_props is None else self.c_props.get("handle")

    @handle.setter
    def handle(self, value):
        if self.c_op != OP_BUFFER:
            raise TypeError(f"only a BUFFER carries memory, this is {self.op!r}")
        self.props["handle"] = value

    @property
    def key(self) -> bytes:
        """A 128-bit digest of the graph below, the same in every process."""
        return structural_key(self)

    def postorder(self) -> list:
        """All nodes of the graph, sources before users, this one last."""
        return postorder(self)

    def toposort(self, gate=None, enter_calls=True) -> dict:
        """All nodes, sources before users, as the keys of a dict.

        With `gate(node) -> bool`, what lies below a node is visited only where it is true.
        """
        if gate is None:
            return dict.fromkeys(postorder(self))
        return gated_postorder(self, gate)

    def replace(self, **changes):
        """This node with `op`, `dtype`, `src`, `arg` or `tag` changed."""
        op, dtype = changes.pop("op", self.op), changes.pop("dtype", self.dtype)
        src, arg = changes.pop("src", self.src), changes.pop("arg", self.arg)
        tag = changes.pop("tag", self.tag)
        if changes:
            raise TypeError(f"replace: a node has no {', '.join(changes)}; "
                            "it has op, dtype, src, arg and tag")
        return make(<int>int(op), <DType?>dtype, <tuple?>tuple(src), arg, tag)

    def const_like(self, value):
        """A scalar constant of this node's dtype."""
        return make_const(self.dtype, coerce(self.dtype, value))

    def __reduce__(self):
        return load_graph, dump_graph(self)

    # Operators: a fast path for scalars of one dtype; all else through the mixins' _binop.

    def __add__(self, other):
        cdef Node b = operand(self, other)
        if b is not None:
            return make2(OP_ADD, self.dtype, self, b)
        return self._binop(OPS_BY_CODE[OP_ADD], other, False)

    def __radd__(self, other):
        cdef Node b = operand(self, other)
        if b is not None:
            return make2(OP_ADD, self.dtype, b, self)
        return self._binop(OPS_BY_CODE[OP_ADD], other, True)

    def __mul__(self, other):
        cdef Node b = operand(self, other)
        if b is not None:
            return make2(OP_MUL, self.dtype, self, b)
        return self._binop(OPS_BY_CODE[OP_MUL], other, False)

    def __rmul__(self, other):
        cdef Node b = operand(self, other)
        if b is not None:
            return make2(OP_MUL, self.dtype, b, self)
        return self._binop(OPS_BY_CODE[OP_MUL], other, True)

    def __sub__(self, other):
        cdef Node b = operand(self, other)
        if b is not None:
            return subtract(self, b)
        return self._binop(OPS_BY_CODE[OP_SUB], other, False)

    def __rsub__(self, other):
        cdef Node b = operand(self, other)
        if b is not None:
            return subtract(b, self)
        return self._binop(OPS_BY_CODE[OP_SUB], other, True)

    def __floordiv__(self, other):
        cdef Node b = operand(self, other)
        if b is not None and self.dtype.c_integral:
            return make2(OP_FLOORDIV, self.dtype, self, b)
        return self._binop(OPS_BY_CODE[OP_FLOORDIV], other, False)

    def __rfloordiv__(self, other):
        cdef Node b = operand(self, other)
        if b is not None and self.dtype.c_integral:
            return make2(OP_FLOORDIV, self.dtype, b, self)
        return self._binop(OPS_BY_CODE[OP_FLOORDIV], other, True)

    def __mod__(self, other):
        cdef Node b = operand(self, other)
        if b is not None and self.dtype.c_integral:
            return make2(OP_FLOORMOD, self.dtype, self, b)
        return self._binop(OPS_BY_CODE[OP_FLOORMOD], other, False)

    def __rmod__(self, other):
        cdef Node b = operand(self, other)
        if b is not None and self.dtype.c_integral:
            return make2(OP_FLOORMOD, self.dtype, b, self)
        return self._binop(OPS_BY_CODE[OP_FLOORMOD], other, True)

    def __and__(self, other):
        cdef Node b = operand(self, other)
        if b is not None and self.dtype.c_integral:
            return make2(OP_AND, self.dtype, self, b)
        return self._binop(OPS_BY_CODE[OP_AND], other, False)

    def __rand__(self, other):
        cdef Node b = operand(self, other)
        if b is not None and self.dtype.c_integral:
            return make2(OP_AND, self.dtype, b, self)
        return self._binop(OPS_BY_CODE[OP_AND], other, True)

    def __or__(self, other):
        cdef Node b = operand(self, other)
        if b is not None and self.dtype.c_integral:
            return make2(OP_OR, self.dtype, self, b)
        return self._binop(OPS_BY_CODE[OP_OR], other, False)

    def __ror__(self, other):
        cdef Node b = operand(self, other)
        if b is not None and self.dtype.c_integral:
            return make2(OP_OR, self.dtype, b, self)
        return self._binop(OPS_BY_CODE[OP_OR], other, True)

    def __xor__(self, other):
        cdef Node b = operand(self, other)
        if b is not None and self.dtype.c_integral:
            return make2(OP_XOR, self.dtype, self, b)
        return self._binop(OPS_BY_CODE[OP_XOR], other, False)

    def __rxor__(self, other):
        cdef Node b = operand(self, other)
        if b is not None and self.dtype.c_integral:
            return make2(OP_XOR, self.dtype, b, self)
        return self._binop(OPS_BY_CODE[OP_XOR], other, True)

    def __lshift__(self, other):
        cdef Node b = operand(self, other)
        if b is not None and self.dtype.c_integral:
            return make2(OP_SHL, self.dtype, self, b)
        return self._binop(OPS_BY_CODE[OP_SHL], other, False)

    def __rshift__(self, other):
        cdef Node b = operand(self, other)
        if b is not None and self.dtype.c_integral:
            return make2(OP_SHR, self.dtype, self, b)
        return self._binop(OPS_BY_CODE[OP_SHR], other, False)

    def __lt__(self, other):
        cdef Node b = operand(self, other)
        if b is not None:
            return make2(OP_CMPLT, types.BOOL, self, b)
        return self._binop(OPS_BY_CODE[OP_CMPLT], other, False)

    def __gt__(self, other):
        cdef Node b = operand(self, other)
        if b is not None:
            return make2(OP_CMPLT, types.BOOL, b, self)
        return self._binop(OPS_BY_CODE[OP_CMPLT], other, True)

    def __le__(self, other):
        cdef Node b = operand(self, other)
        if b is not None and self.dtype.c_integral:
            return make2(OP_CMPNE, types.BOOL, make2(OP_CMPLT, types.BOOL, b, self), make_bool(True))
        return self._less_equal(other, False)

    def __ge__(self, other):
        cdef Node b = operand(self, other)
        if b is not None and self.dtype.c_integral:
            return make2(OP_CMPNE, types.BOOL, make2(OP_CMPLT, types.BOOL, self, b), make_bool(True))
        return self._less_equal(other, True)


cdef Node operand(Node a, object other):
    """`other` as a scalar of a's dtype, for the fast path; None where promotion must decide."""
    cdef Node b
    if not a.c_flags & SCALAR:
        return None
    if isinstance(other, Node):
        b = <Node>other
        return b if b.dtype is a.dtype and b.c_flags & SCALAR else None
    if PyLong_CheckExact(other):
        if a.dtype.c_integral and a.dtype is not types.BOOL:
            return make_const(a.dtype, other if a.dtype.c_exact else coerce(a.dtype, other))
        if a.dtype.c_kind == c"f":
            return make_const(a.dtype, coerce(a.dtype, other))
    elif PyFloat_CheckExact(other) and a.dtype.c_kind == c"f":
        return make_const(a.dtype, coerce(a.dtype, other))
    elif PyBool_Check(other) and a.dtype is types.BOOL:
        return make_bool(other)
    return None


cdef Node subtract(Node a, Node b):
    # Index arithmetic knows sums and products only; elsewhere a - b is one instruction.
    if a.dtype.c_exact:
        if b.c_flags & INT_CONST:
            return make2(OP_ADD, a.dtype, a, make_const(a.dtype, -b.arg))
        return make2(OP_ADD, a.dtype, a, make2(OP_MUL, a.dtype, b, make_int(a.dtype, -1)))
    return make2(OP_SUB, a.dtype, a, b)


# ---------------------------------------------------------------- bounds

cdef void set_bounds(Node n) noexcept:
    """c_vmin and c_vmax from the sources': O(1), every step checked for overflow."""
    cdef int64_t low = 0, high = 0, x, y, z, w
    cdef int op = n.c_op
    cdef int overflow = 0
    cdef DType dtype = n.dtype
    cdef PyObject *src = <PyObject *>n.src
    cdef Py_ssize_t count = length_of(src)
    cdef Node a = None, b = None
    if not dtype.c_integral:
        return
    if dtype.c_bounded:  # what holds if nothing better is found
        n.c_vmin, n.c_vmax = dtype.c_min, dtype.c_max
        n.c_flags |= BOUNDED
    if op == OP_CONST:
        if PyBool_Check(n.arg):
            n.c_vmin = n.c_vmax = n.arg is True
            n.c_flags |= BOUNDED
        elif PyLong_CheckExact(n.arg):
            low = PyLong_AsLongLongAndOverflow(n.arg, &overflow)
            if not overflow and -LIMIT < low < LIMIT:
                n.c_vmin = n.c_vmax = low
                n.c_flags |= BOUNDED | INT_CONST
        return
    if op == OP_DEFINE_VAR:
        if not PyLong_CheckExact(n.arg[1]):
            return  # of a float
        low = PyLong_AsLongLongAndOverflow(n.arg[1], &overflow)
        if overflow:
            return
        high = PyLong_AsLongLongAndOverflow(n.arg[2], &overflow)
        if overflow:
            return
    elif count == 0:
        return
    else:
        a = <Node>borrowed_item(src, 0)
        if op == OP_WHERE:
            a = <Node>borrowed_item(src, 1)
            b = <Node>borrowed_item(src, 2)
        elif count > 1:
            b = <Node>borrowed_item(src, 1)
        if not a.c_flags & BOUNDED:
            # x % c is bounded even where x is not
            if not (op == OP_FLOORMOD and b.c_flags & BOUNDED and b.c_vmin > 0):
                return
        if op in (OP_RANGE, OP_SPECIAL):
            low, high = 0, a.c_vmax - 1
            if high == 0 and a.c_vmin < 1:
                high = 1  # a loop that may run not at all must not be taken for the number 0
        elif op in (OP_CAST, OP_BIND, OP_AFTER, OP_EXPAND, OP_RESHAPE):
            if op == OP_CAST and dtype is types.BOOL:
                low = a.c_vmin > 0 or a.c_vmax < 0
                high = not (a.c_vmin == 0 and a.c_vmax == 0)
            else:
                low, high = a.c_vmin, a.c_vmax
        elif op == OP_NEG:
            low, high = -a.c_vmax, -a.c_vmin
        elif b is None or not b.c_flags & BOUNDED:
            return
        elif op == OP_ADD:
            if dtype is types.BOOL or add_overflows(a.c_vmin, b.c_vmin, &low) \
                    or add_overflows(a.c_vmax, b.c_vmax, &high):
                return
        elif op == OP_SUB:
            if dtype is types.BOOL or add_overflows(a.c_vmin, -b.c_vmax, &low) \
                    or add_overflows(a.c_vmax, -b.c_vmin, &high):
                return
        elif op == OP_MUL:
            if mul_overflows(a.c_vmin, b.c_vmin, &x) or mul_overflows(a.c_vmin, b.c_vmax, &y) \
                    or mul_overflows(a.c_vmax, b.c_vmin, &z) \
                    or mul_overflows(a.c_vmax, b.c_vmax, &w):
                return
            low, high = min(min(x, y), min(z, w)), max(max(x, y), max(z, w))
        elif op == OP_FLOORDIV:
            if b.c_vmin < 0 <= b.c_vmax or b.c_vmax == 0:
                return
            x = b.c_vmin if b.c_vmin else 1  # what is divided by 0 is 0
            y, z = floordiv(a.c_vmin, x), floordiv(a.c_vmin, b.c_vmax)
            w, x = floordiv(a.c_vmax, x), floordiv(a.c_vmax, b.c_vmax)
            low, high = min(min(x, y), min(z, w)), max(max(x, y), max(z, w))
            if b.c_vmin == 0:
                low, high = min(low, 0), max(high, 0)
        elif op == OP_FLOORMOD:
            if b.c_vmin < 0 <= b.c_vmax or b.c_vmax == 0:
                return
            if b.c_vmin >= 0:
                low, high = 0, b.c_vmax - 1
            else:
                low, high = b.c_vmin + 1, 0
            if a.c_flags & BOUNDED:
                if b.c_vmin >= 0 and a.c_vmin >= 0:
                    high = min(high, a.c_vmax)
                if b.c_vmin == b.c_vmax and \
                        floordiv(a.c_vmin, b.c_vmin) == floordiv(a.c_vmax, b.c_vmin):
                    low, high = floormod(a.c_vmin, b.c_vmin), floormod(a.c_vmax, b.c_vmin)
        elif op == OP_MAX:
            low, high = max(a.c_vmin, b.c_vmin), max(a.c_vmax, b.c_vmax)
        elif op == OP_WHERE:
            low, high = min(a.c_vmin, b.c_vmin), max(a.c_vmax, b.c_vmax)
        elif op == OP_CMPLT:
            low, high = a.c_vmax < b.c_vmin, a.c_vmin < b.c_vmax
        elif op == OP_CMPNE or op == OP_CMPEQ:
            low = a.c_vmax < b.c_vmin or b.c_vmax < a.c_vmin
            high = not (a.c_vmin == a.c_vmax and b.c_vmin == b.c_vmax and a.c_vmin == b.c_vmin)
            if op == OP_CMPEQ:
                low, high = 1 - high, 1 - low
        elif op == OP_AND:
            if a.c_vmin >= 0 and b.c_vmin >= 0:
                low, high = 0, min(a.c_vmax, b.c_vmax)
            elif a.c_vmin >= 0:
                low, high = 0, a.c_vmax
            elif b.c_vmin >= 0:
                low, high = 0, b.c_vmax
            else:
                return
            if dtype is types.BOOL:
                low = a.c_vmin & b.c_vmin
        elif op == OP_OR and dtype is types.BOOL:
            low, high = a.c_vmin | b.c_vmin, a.c_vmax | b.c_vmax
        elif op == OP_SHR:
            if b.c_vmin != b.c_vmax or not 0 <= b.c_vmin < 62:
                return
            low, high = a.c_vmin >> b.c_vmin, a.c_vmax >> b.c_vmin
        elif op == OP_SHL:
            if b.c_vmin != b.c_vmax or not 0 <= b.c_vmin < 62 \
                    or mul_overflows(a.c_vmin, <int64_t>1 << b.c_vmin, &low) \
                    or mul_overflows(a.c_vmax, <int64_t>1 << b.c_vmin, &high):
                return
        else:
            return
    if dtype.c_bounded and (low < dtype.c_min or high > dtype.c_max):
        return  # it may wrap
    if dtype.c_kind == c"u" and low < 0:
        return
    if -LIMIT < low and high < LIMIT:
        n.c_vmin, n.c_vmax = low, high
        n.c_flags |= BOUNDED


# ---------------------------------------------------------------- shapes

cdef object sizes_of(object arg, tuple src):
    """A shape given as static sizes, None standing for the next source."""
    cdef Py_ssize_t next_source = 1
    if None not in <tuple?>arg:
        return arg
    sizes = []
    for size in <tuple>arg:
        if size is None:
            size = src[next_source]
            next_source += 1
        sizes.append(size)
    return tuple(sizes)


cdef object settle_size = None  # tiny.mixin.sizes sets it, which every node class comes after


def register_settle_size(function) -> None:
    """Take the function that brings a symbolic size to its one form, an int if it is constant."""
    global settle_size
    settle_size = function


cdef object settled_sizes(list sizes):
    """A shape that arithmetic made: equal symbolic sizes are one node again."""
    cdef Py_ssize_t k
    for k in range(len(sizes)):
        if type(sizes[k]) is not int and settle_size is not None:
            sizes[k] = settle_size(sizes[k])
    return tuple(sizes)


cdef object infer_shape(int op, DType dtype, tuple src, object arg):
    """The shape of a node about to be made; None if it has no value."""
    cdef PyObject *c_src = <PyObject *>src
    cdef Py_ssize_t count = length_of(c_src), i
    cdef object shape, other
    if IS_ELEMENTWISE[op]:
        shape = ()
        for i in range(count):
            other = (<Node>borrowed_item(c_src, i)).c_shape
            if other is shape or (other is not None and PyTuple_GET_SIZE(other) == 0):
                continue
            if PyTuple_GET_SIZE(shape) == 0 and other is not None:
                shape = other
            elif shape != other:
                raise ValueError(
                    f"{OPS_BY_CODE[op]!r}: the shapes of its operands differ, got "
                    f"{' and '.join([str((<Node>s).c_shape) for s in src])}; "
                    "reshape or expand one"
                )
        return shape
    if op == OP_INDEX and arg is not None:  # of a tensor, at computed places
        return (<Node>src[1]).c_shape + (<Node>src[0]).c_shape[arg:]
    if op in (OP_CONST, OP_INDEX, OP_RANGE, OP_DEFINE_VAR, OP_SPECIAL, OP_GEP):
        return ()
    if dtype is types.VOID:
        return None
    if op in (OP_BUFFER, OP_PARAM, OP_DEFINE_LOCAL, OP_STAGE):
        return None if arg is None else arg[1]
    if op in (OP_RESHAPE, OP_EXPAND):
        return sizes_of(arg, src)
    if op == OP_PERMUTE:
        shape = (<Node>src[0]).c_shape
        return tuple([shape[axis] for axis in arg])
    if op == OP_PAD:
        sizes = sizes_of(flat_pairs(arg), src) if has_symbolic(arg) else flat_pairs(arg)
        shape = (<Node>src[0]).c_shape
        return settled_sizes([s + sizes[2 * k] + sizes[2 * k + 1] for k, s in enumerate(shape)])
    if op == OP_SHRINK:
        sizes = sizes_of(flat_pairs(arg), src) if has_symbolic(arg) else flat_pairs(arg)
        return settled_sizes([
            sizes[2 * k + 1] if type(sizes[2 * k]) is int and sizes[2 * k] == 0
            else sizes[2 * k + 1] - sizes[2 * k] for k in range(len(arg))
        ])
    if op == OP_REDUCE:
        shape = (<Node>src[0]).c_shape
        axes = arg[1]
        return tuple([1 if k in axes else s for k, s in enumerate(shape)]) if axes else shape
    if op == OP_STACK:
        return (count,) + (<tuple>(<Node>src[0]).c_shape if count else ())
    if op == OP_SHUFFLE:
        return (len(arg),)
    if op == OP_LOAD:
        return () if arg is None or arg == 1 else (arg,)
    if op == OP_DEFINE_REG:
        return () if arg[1] == 1 else (arg[1],)
    if op == OP_GETTUPLE:
        return (<Node>(<Node>src[0]).src[arg]).c_shape
    if count and op in (OP_FLIP, OP_BIND, OP_CONTIGUOUS, OP_CONTIGUOUS_BACKWARD,
                        OP_DETACH, OP_COPY, OP_AFTER, OP_NOOP, OP_WMMA, OP_SCAN):
        return (<Node>src[0]).c_shape
    if op in (OP_CUSTOM, OP_CUSTOMI):
        return ()
    return None


cdef bint has_symbolic(object pairs):
    for pair in <tuple?>pairs:
        if (<tuple?>pair)[0] is None or (<tuple>pair)[1] is None:
            return True
    return False


cdef tuple flat_pairs(object pairs):
    return tuple([size for pair in <tuple?>pairs for size in <tuple?>pair])


cdef tuple shape_of(Node node):
    return node.c_shape


# ---------------------------------------------------------------- construction

cdef Node fresh(uint64_t h, int op, DType dtype, tuple src, object arg, object tag):
    cdef object shape = infer_shape(op, dtype, src, arg)
    cdef Node n = <Node>new_of_base(<void *>Node, <void *>node_class, ())
    cdef PyObject *c_src = <PyObject *>src
    cdef Py_ssize_t i
    cdef uint64_t sources = 0
    n.c_hash = h
    n.c_op = op
    n.dtype = dtype
    n.src = src
    n.arg = arg
    n.tag = tag
    n.c_shape = shape
    n.c_props = None
    n.c_canonical = None
    for i in range(length_of(c_src)):
        sources |= <uint64_t>1 << ((<Node>borrowed_item(c_src, i)).c_op & 63)
    n.c_sources = sources
    if shape is not None and PyTuple_GET_SIZE(shape) == 0:
        n.c_flags |= SCALAR
    set_bounds(n)
    # The collector never needs to see a node that can be in no cycle: a third of a build's time.
    if (arg is None or is_atomic(arg)) and (tag is None or is_atomic(tag)):
        if length_of(c_src):
            PyObject_GC_UnTrack(<void *>src)
    else:
        n.c_flags |= TRACKED
        PyObject_GC_Track(<void *>n)
    table_add(h, <PyObject *>n)
    return n


cdef Node make(int op, DType dtype, tuple src, object arg, object tag):
    cdef uint64_t h = start(op, dtype)
    cdef PyObject *c_src = <PyObject *>src
    cdef PyObject *theirs
    cdef Py_ssize_t i, count = length_of(c_src)
    cdef size_t j
    cdef Node found
    for i in range(count):
        h += placed((<Node>borrowed_item(c_src, i)).c_hash, i)
    h = finish(h)
    if arg is not None:
        h = mix(h, hash_arg(arg))
    if tag is not None:
        h = mix(h, hash_arg(tag) ^ 0x99)
    j = h & slots_mask
    while slots[j].node != NULL:
        # a node whose last reference is gone may still be in the table while weak references to
        # it are being cleared: it must not come back to life
        if slots[j].hash == h and refcount(slots[j].node) > 0:
            found = <Node>slots[j].node
            theirs = <PyObject *>found.src
            if found.c_op == op and found.dtype is dtype and length_of(theirs) == count:
                i = 0
                while i < count and borrowed_item(theirs, i) == borrowed_item(c_src, i):
                    i += 1
                if i == count and (found.arg is arg or same_arg(found.arg, arg)) \
                        and (found.tag is tag or same_arg(found.tag, tag)):
                    return found
        j = (j + 1) & slots_mask
    return fresh(h, op, dtype, src, arg, tag)


cdef Node make1(int op, DType dtype, Node a):
    return make(op, dtype, (a,), None, None)


cdef inline uint64_t hash2(int op, DType dtype, Node a, Node b) noexcept:
    return finish(start(op, dtype) + placed(a.c_hash, 0) + placed(b.c_hash, 1))


cdef inline PyObject *find2(uint64_t h, int op, DType dtype, Node a, Node b) noexcept:
    """The node of two sources without arg and tag, if it exists; else NULL."""
    cdef size_t j = h & slots_mask
    cdef PyObject *found
    cdef PyObject *theirs
    while slots[j].node != NULL:
        found = slots[j].node
        if slots[j].hash == h and refcount(found) > 0:
            theirs = <PyObject *>(<Node>found).src
            if (<Node>found).c_op == op and (<Node>found).dtype is dtype \
                    and length_of(theirs) == 2 \
                    and borrowed_item(theirs, 0) == <PyObject *>a \
                    and borrowed_item(theirs, 1) == <PyObject *>b \
                    and (<Node>found).arg is None and (<Node>found).tag is None:
                return found
        j = (j + 1) & slots_mask
    return NULL


cdef Node make2(int op, DType dtype, Node a, Node b):
    """Two sources, no arg: no tuple is made if the node exists."""
    cdef uint64_t h = hash2(op, dtype, a, b)
    cdef PyObject *found = find2(h, op, dtype, a, b)
    return <Node>found if found != NULL else fresh(h, op, dtype, (a, b), None, None)


cdef inline Node make2_of(int op, DType dtype, tuple src):
    """As make2, over a tuple that is there."""
    cdef Node a = <Node>borrowed_item(<PyObject *>src, 0), b = <Node>borrowed_item(<PyObject *>src, 1)
    cdef uint64_t h = hash2(op, dtype, a, b)
    cdef PyObject *found = find2(h, op, dtype, a, b)
    return <Node>found if found != NULL else fresh(h, op, dtype, src, None, None)


cdef Node make3(int op, DType dtype, Node a, Node b, Node c):
    return make(op, dtype, (a, b, c), None, None)


cdef Node make_const(DType dtype, object value):
    return make(OP_CONST, dtype, (), value, None)


cdef Node make_int(DType dtype, int64_t value):
    return make(OP_CONST, dtype, (), value, None)


cdef Node make_bool(bint value):
    return make(OP_CONST, types.BOOL, (), value, None)


cdef Node with_sources(Node node, tuple src):
    return make(node.c_op, node.dtype, src, node.arg, node.tag)


cdef object _vectorcall(PyObject *type_, PyObject **args, size_t nargsf, PyObject *kwnames):
    """UOp(op, dtype=void, src=(), arg=None, tag=None) without the generic type call."""
    cdef Py_ssize_t given = <Py_ssize_t>(nargsf & ~(<size_t>1 << (8 * sizeof(size_t) - 1)))
    cdef PyObject *slot[5]
    cdef Py_ssize_t i, k, named = 0 if kwnames == NULL else length_of(kwnames)
    cdef object src, dtype
    if given == 3 and named == 0 and type_of(args[0]) == <PyTypeObject *>OPS_TYPE \
            and type_of(args[1]) == <PyTypeObject *>DType and PyTuple_CheckExact(<object>args[2]) \
            and are_nodes(args[2]):
        if length_of(args[2]) == 2:
            return make2_of(<int>PyLong_AsLong(<object>args[0]), <DType>args[1], <tuple>args[2])
        return make(<int>PyLong_AsLong(<object>args[0]), <DType>args[1], <tuple>args[2], None, None)
    if given > 5:
        raise TypeError(f"UOp takes op, dtype, src, arg and tag, got {given} arguments")
    for i in range(5):
        slot[i] = args[i] if i < given else NULL
    for i in range(named):
        name = <object>borrowed_item(kwnames, i)
        if name not in FIELDS:
            raise TypeError(f"UOp takes op, dtype, src, arg and tag, got {name!r}")
        k = <Py_ssize_t>FIELDS[name]
        if slot[k] != NULL:
            raise TypeError(f"UOp got {name!r} twice")
        slot[k] = args[given + i]
    if slot[0] == NULL or <PyObject *>type_of(slot[0]) != <PyObject *>OPS_TYPE:
        raise TypeError("UOp needs an op, a member of Ops, "
                        f"got {'nothing' if slot[0] == NULL else repr(<object>slot[0])}")
    if slot[1] == NULL:
        dtype = types.VOID
    else:
        dtype = <object>slot[1]
        if type(dtype) is not DType:
            raise TypeError(f"UOp needs a DType, got {dtype!r}; write dtypes.float32, say")
    if slot[2] == NULL:
        src = ()
    else:
        src = <object>slot[2]
        if not PyTuple_CheckExact(src):
            src = tuple(src)
        for i in range(PyTuple_GET_SIZE(src)):
            if type_of(<PyObject *>PyTuple_GET_ITEM(src, i)) != <PyTypeObject *>node_class:
                raise TypeError(f"UOp needs UOps as sources, got {src[i]!r} at position {i}")
    return make(<int>PyLong_AsLong(<object>slot[0]), <DType>dtype, <tuple>src,
                None if slot[3] == NULL else <object>slot[3],
                None if slot[4] == NULL else <object>slot[4])


cdef inline bint are_nodes(PyObject *src) noexcept:
    cdef Py_ssize_t i
    for i in range(length_of(src)):
        if type_of(borrowed_item(src, i)) != <PyTypeObject *>node_class:
            return False
    return True


cdef dict FIELDS = {"op": 0, "dtype": 1, "src": 2, "arg": 3, "tag": 4}


def register_node_class(cls: type) -> type:
    """Make `cls`, a subclass of Node without fields of its own, the class of all nodes."""
    global node_class
    if not issubclass(cls, Node) or node_class is not None:
        raise TypeError("one subclass of Node is registered, once")
    node_class = cls
    TINY_ALLOC_UNTRACKED(<void *>cls)
    TINY_SET_VECTORCALL(<void *>cls, <void *>_vectorcall)
    return cls


def make_node(int op, DType dtype not None, tuple src not None, arg=None, tag=None) -> Node:
    """A node from its parts, op as its number; for subclasses' `__new__`."""
    return make(op, dtype, src, arg, tag)


# ---------------------------------------------------------------- traversal

cdef struct Visit:
    PyObject *node
    Py_ssize_t next_source

cdef uint32_t epoch = 0
cdef Visit *visits = <Visit *>malloc(256 * sizeof(Visit))
cdef size_t visits_capacity = 256


cdef uint32_t new_epoch() noexcept:
    """A mark no node carries. Marks are only safe while no Python code can run."""
    global epoch
    cdef size_t i
    epoch += 1
    if epoch == 0:  # wrapped: forget all old marks
        for i in range(slots_mask + 1):
            if slots[i].node != NULL:
                (<Node>slots[i].node).c_mark = 0
        epoch = 1
    return epoch


cdef void forget_settled(uint64_t bits) noexcept:
    """Clear memo bits on every node, so that they can be used anew."""
    cdef size_t i
    for i in range(slots_mask + 1):
        if slots[i].node != NULL:
            (<Node>slots[i].node).c_settled &= ~bits


cdef list postorder(Node root):
    global visits, visits_capacity
    cdef uint32_t mark = new_epoch()
    cdef list order = []
    cdef size_t depth = 1
    cdef uint32_t position = 0
    cdef PyObject *src
    cdef Node child
    cdef void *bigger
    visits[0].node = <PyObject *>root
    visits[0].next_source = 0
    root.c_mark = mark
    while depth:
        src = <PyObject *>(<Node>visits[depth - 1].node).src
        if visits[depth - 1].next_source < length_of(src):
            child = <Node>borrowed_item(src, visits[depth - 1].next_source)
            visits[depth - 1].next_source += 1
            if child.c_mark != mark:
                child.c_mark = mark
                if depth == visits_capacity:
                    bigger = realloc(visits, 2 * visits_capacity * sizeof(Visit))
                    if bigger == NULL:
                        raise MemoryError()
                    visits = <Visit *>bigger
                    visits_capacity *= 2
                visits[depth].node = <PyObject *>child
                visits[depth].next_source = 0
                depth += 1
        else:
            depth -= 1
            child = <Node>visits[depth].node
            child.c_index = position
            position += 1
            order.append(child)
    count_visits(position)
    return order


cdef dict gated_postorder(Node root, object gate):
    """As postorder, going below a node only where gate(node) is true; the gate may be Python."""
    cdef dict order = {}
    cdef set seen = {root}
    cdef list stack = [(root, False)]
    cdef Node node
    while stack:
        node, done = stack.pop()
        if done:
            order[node] = None
            continue
        stack.append((node, True))
        if gate(node):
            for child in reversed(node.src):
                if child not in seen:
                    seen.add(child)
                    stack.append((child, False))
    count_visits(len(order))
    return order


# ---------------------------------------------------------------- pointer map

cdef inline size_t pointer_hash(PyObject *p) noexcept:
    return <size_t>((<uint64_t>(<size_t>p >> 4) * <uint64_t>0x9E3779B97F4A7C15) >> 20)


cdef int pmap_init(PointerMap *m, size_t capacity) except -1:
    m.c_keys = <PyObject **>calloc(capacity, sizeof(void *))
    m.c_values = <PyObject **>malloc(capacity * sizeof(void *))
    m.mask = capacity - 1
    m.count = 0
    if m.c_keys == NULL or m.c_values == NULL:
        pmap_free(m)
        raise MemoryError()
    return 0


cdef void pmap_free(PointerMap *m) noexcept:
    free(m.c_keys)
    free(m.c_values)
    m.c_keys = m.c_values = NULL


cdef PyObject *pmap_get(PointerMap *m, PyObject *key) noexcept:
    cdef size_t j = pointer_hash(key) & m.mask
    while m.c_keys[j] != NULL:
        if m.c_keys[j] == key:
            return m.c_values[j]
        j = (j + 1) & m.mask
    return NULL


cdef int pmap_put(PointerMap *m, PyObject *key, PyObject *value) except -1:
    cdef PointerMap bigger
    cdef size_t i, j
    if (m.count + 1) * 2 > m.mask + 1:
        pmap_init(&bigger, (m.mask + 1) * 2)
        for i in range(m.mask + 1):
            if m.c_keys[i] != NULL:
                j = pointer_hash(m.c_keys[i]) & bigger.mask
                while bigger.c_keys[j] != NULL:
                    j = (j + 1) & bigger.mask
                bigger.c_keys[j] = m.c_keys[i]
                bigger.c_values[j] = m.c_values[i]
        bigger.count = m.count
        pmap_free(m)
        m[0] = bigger
    j = pointer_hash(key) & m.mask
    while m.c_keys[j] != NULL:
        if m.c_keys[j] == key:
            m.c_values[j] = value
            return 0
        j = (j + 1) & m.mask
    m.c_keys[j] = key
    m.c_values[j] = value
    m.count += 1
    return 0


# ---------------------------------------------------------------- structural keys

# Raise it when the meaning of a node changes: keys of before are then other keys.
cdef uint64_t KEY_VERSION = 1
cdef uint64_t TAG_WORD = 0x746167
cdef uint64_t OPEN_WORD = 0x6F70656E

cdef inline void absorb2(uint64_t *state, uint64_t x, uint64_t y) noexcept nogil:
    """Two words into a 128-bit state, by two folded 64x64 multiplications (as in wyhash)."""
    cdef uint64_t a = state[0] ^ x ^ <uint64_t>0xA0761D6478BD642F
    cdef uint64_t b = state[1] ^ y ^ <uint64_t>0xE7037ED1A0B428DB
    cdef uint64_t c = state[1] + x * <uint64_t>0x9E3779B97F4A7C15
    cdef uint64_t d = (state[0] + y * <uint64_t>0xC2B2AE3D27D4EB4F) ^ <uint64_t>0x8EBC6AF09C88C6E3
    state[0] = a * b ^ mul_high(c, d)
    state[1] = mul_high(a, b) ^ c * d


cdef inline void absorb(uint64_t *state, uint64_t x) noexcept nogil:
    absorb2(state, x, 0)


cdef int absorb_text(uint64_t *state, uint64_t kind, object text) except -1:
    cdef Py_ssize_t n, i
    cdef uint64_t word
    cdef const char *p = PyUnicode_AsUTF8AndSize(text, &n)
    absorb(state, kind)
    absorb(state, <uint64_t>n)
    for i in range(0, n, 8):
        word = 0
        memcpy(&word, p + i, min(<Py_ssize_t>8, n - i))
        absorb(state, word)
    return 0


cdef int absorb_arg(uint64_t *state, object arg) except -1:
    cdef int overflow = 0
    if arg is None:
        absorb(state, 1)
    elif PyBool_Check(arg):
        absorb(state, 3 if arg is True else 2)
    elif PyLong_CheckExact(arg):
        value = PyLong_AsLongLongAndOverflow(arg, &overflow)
        if overflow:
            absorb_text(state, 9, str(arg))
        else:
            absorb(state, 4)
            absorb(state, <uint64_t>value)
    elif PyFloat_CheckExact(arg):
        absorb(state, 5)
        absorb(state, bits_of(PyFloat_AS_DOUBLE(arg)))
    elif PyTuple_Check(arg):
        absorb(state, 6)
        absorb(state, <uint64_t>len(<tuple>arg))
        if not PyTuple_CheckExact(arg):
            absorb(state, class_word(type(arg)))
        for item in <tuple>arg:
            absorb_arg(state, item)
    elif PyLong_Check(arg):  # a member of an enumeration
        if <PyObject *>type_of(<PyObject *>arg) == <PyObject *>OPS_TYPE:
            absorb(state, OP_WORDS[<int>PyLong_AsLong(arg)])
        else:
            absorb(state, class_word(type(arg)))
            absorb(state, <uint64_t>PyLong_AsLongLongAndOverflow(arg, &overflow))
    elif PyUnicode_Check(arg):
        absorb_text(state, 7, arg)
    elif isinstance(arg, Node):
        absorb_text(state, 11, structural_key(arg).hex())
    else:  # members of enumerations, dtypes, records: their repr is made of their content
        absorb_text(state, 8, repr(arg))
    return 0


cdef object NAME_WORDS = {}  # op and dtype names as words, so that renumbering changes no key


cdef uint64_t name_word(str name) except? 0:
    cdef uint64_t state[2]
    word = NAME_WORDS.get(name)
    if word is None:
        state[0], state[1] = 0x6E616D65, KEY_VERSION
        absorb_text(state, 7, name)
        word = NAME_WORDS[name] = state[0]
    return <uint64_t>word


cdef object CLASS_WORDS = {}


cdef uint64_t class_word(type cls) except? 0:
    """The name of a class of records as a word."""
    word = CLASS_WORDS.get(cls)
    if word is None:
        word = CLASS_WORDS[cls] = name_word(cls.__qualname__)
    return <uint64_t>word


cdef uint64_t OP_WORDS[OP_COUNT]
for _op in Ops:
    OP_WORDS[<int>int(_op)] = name_word(_op.name)
cdef uint64_t DTYPE_WORDS[64]
memset(DTYPE_WORDS, 0, sizeof(DTYPE_WORDS))


cdef uint64_t dtype_word(DType dtype) except? 0:
    if dtype.id >= 64:
        return name_word(dtype.name)
    if DTYPE_WORDS[dtype.id] == 0:
        DTYPE_WORDS[dtype.id] = name_word(dtype.name)
    return DTYPE_WORDS[dtype.id]


cdef bytes digest(
    list order, list buffers, list uniques, list binds, list constants=None, object special=None
):
    """The key of the last node of `order`. With lists given, identities are numbered instead.

    BUFFERs and UNIQUEs then count by first visit, and the values of BINDs do not count at all;
    the lists receive these nodes in order of visit. With `constants`: see open_key.
    """
    cdef dict numbers = {}
    cdef Py_ssize_t n = len(order), i, j, k
    cdef uint64_t *states = <uint64_t *>malloc(n * 2 * sizeof(uint64_t))
    cdef uint64_t *state
    cdef Node node
    cdef PyObject *src
    cdef uint32_t started = epoch
    if states == NULL:
        raise MemoryError()
    try:
        for i in range(n):
            node = <Node>order[i]
            if epoch != started:  # an arg's repr has walked a graph: our positions are lost
                indexed(order)
                started = epoch
            state = states + 2 * i
            src = <PyObject *>node.src
            if constants is not None:
                if node.c_op == OP_UNIQUE:
                    continue
                if node.c_op in (OP_BIND, OP_DETACH, OP_CONTIGUOUS_BACKWARD):
                    k = 2 * (<Node>borrowed_item(src, 0)).c_index
                    state[0], state[1] = states[k], states[k + 1]
                    continue
            state[0], state[1] = 0x5EED, KEY_VERSION
            absorb2(state, OP_WORDS[node.c_op], dtype_word(node.dtype))
            if constants is not None and is_open(node, special):
                absorb2(state, OPEN_WORD, number_of(make_const(node.dtype, node.arg), numbers, constants))
                continue
            if buffers is not None and node.c_op == OP_BUFFER:
                absorb(state, len(buffers))
                absorb_arg(state, (<tuple>node.arg)[1])
                absorb_arg(state, (<tuple>node.arg)[2])
                buffers.append(node)
            elif buffers is not None and node.c_op == OP_UNIQUE:
                absorb(state, len(uniques))
                uniques.append(node)
            elif node.arg is not None:
                absorb_arg(state, node.arg)
            if node.tag is not None:
                absorb(state, TAG_WORD)
                absorb_arg(state, node.tag)
            if buffers is not None and node.c_op == OP_BIND:
                binds.append(node)
                absorb(state, states[2 * (<Node>borrowed_item(src, 0)).c_index])
                continue
            for j in range(length_of(src)):
                if constants is not None and (<Node>borrowed_item(src, j)).c_op == OP_UNIQUE:
                    continue
                k = 2 * (<Node>borrowed_item(src, j)).c_index
                absorb2(state, states[k], states[k + 1])
        return struct.pack("<QQ", states[2 * n - 2], states[2 * n - 1])
    finally:
        free(states)


cdef bint is_open(Node node, object special) except -1:
    """Whether a node is a constant that may become a variable of kernels."""
    if node.c_op != OP_CONST or node.dtype.c_kind != c"f" or node.dtype.bitsize < 32:
        return False
    return isfinite(PyFloat_AS_DOUBLE(node.arg)) and node.arg not in special


cdef uint64_t number_of(Node constant, dict numbers, list constants) except? 0:
    """The place of a constant among those met so far."""
    number = numbers.get(constant)
    if number is None:
        number = numbers[constant] = len(constants)
        constants.append(constant)
    return <uint64_t>number


cdef list indexed(list order):
    """The order with each node's c_index set to its place in it (Python code may have run)."""
    cdef Py_ssize_t i
    for i in range(len(order)):
        (<Node>order[i]).c_index = <uint32_t>i
    return order


def structural_key(Node root not None) -> bytes:
    """A 128-bit digest of the graph below `root`, the same in every process."""
    return digest(postorder(root), None, None, None)


def canonical_key(Node root not None) -> tuple:
    """(key, buffers, binds): the key of the graph with its memory renumbered.

    Two graphs that differ only in which BUFFERs they name, in UNIQUE marks or in the values bound
    to variables have one key; `buffers` and `binds` are these nodes in order of first visit.
    """
    cdef list buffers = [], uniques = [], binds = []
    order = postorder(root)
    # A bound value must not count: visit nothing of it. Its CONST may still be in the order for
    # other reasons, which then counts by its other users.
    return digest(without_bound_values(order), buffers, uniques, binds), buffers, binds


def open_key(Node root not None, special not None) -> tuple:
    """(key, constants): as canonical_key, but of float constants only the places count.

    `constants` are these, each once, in order of first visit: CONSTs of float32 and float64 that
    are finite and not in `special`. Marks of constants, DETACH and CONTIGUOUS_BACKWARD count
    nothing either.
    """
    cdef list constants = []
    return digest(postorder(root), [], [], [], constants, special), constants


cdef list without_bound_values(list order):
    """The order less the CONSTs used only as the value of a BIND; positions set anew."""
    cdef set bound = set(), used = set()
    cdef Node node
    for node in order:
        if node.c_op == OP_BIND:
            bound.add(node.src[1])
    if not bound:
        return order
    for node in order:
        for child in (node.src[:1] if node.c_op == OP_BIND else node.src):
            if child in bound:
                used.add(child)
    bound -= used
    return indexed([node for node in order if node not in bound])


# ---------------------------------------------------------------- pickling

def dump_graph(Node root not None) -> tuple:
    """The graph as flat arrays: (ops, dtypes, counts of sources, sources, args, tags, names)."""
    cdef list order = postorder(root)
    cdef Py_ssize_t n = len(order), i, j
    cdef Node node
    cdef list args = [], tags = []
    cdef dict names = {}
    ops = array.array("B", bytes(n))
    dtypes_ = array.array("B", bytes(n))
    counts = array.array("I", bytes(4 * n))
    sources = array.array("I")
    for i in range(n):
        node = <Node>order[i]
        ops[i] = node.c_op
        dtypes_[i] = names.setdefault(node.dtype.name, len(names))
        counts[i] = len(node.src)
        for child in node.src:
            sources.append((<Node>child).c_index)
        args.append(node.arg)
        if node.tag is not None:
            tags.append((i, node.tag))
    op_names = [op.name for op in OPS_BY_CODE[1:]]
    return (ops.tobytes(), dtypes_.tobytes(), counts.tobytes(), sources.tobytes(), args, tags,
            (op_names, list(names)))


def load_graph(bytes ops, bytes dtypes_, bytes counts, bytes sources, list args, list tags,
               tuple names) -> Node:
    """The graph of dump_graph's arrays. ValueError if they do not describe one."""
    cdef Py_ssize_t n = len(ops), i, j, k = 0, count, position
    cdef list nodes = []
    cdef tuple src
    cdef dict tag_of = dict(tags)
    op_codes = [None] + [Ops.__members__.get(name) for name in names[0]]
    dtype_list = [dtype_by_name(name) for name in names[1]]
    count_array = array.array("I")
    count_array.frombytes(counts)
    source_array = array.array("I")
    source_array.frombytes(sources)
    cdef unsigned int[::1] c_counts = count_array
    cdef unsigned int[::1] c_sources = source_array
    if not (n and len(dtypes_) == n and len(c_counts) == n and len(args) == n):
        raise ValueError("not a pickled graph: its arrays have different lengths")
    for i in range(n):
        count = c_counts[i]
        if k + count > len(c_sources) or ops[i] >= len(op_codes) or op_codes[ops[i]] is None \
                or dtypes_[i] >= len(dtype_list):
            raise ValueError(f"not a pickled graph: node {i} is damaged or of another version")
        src = PyTuple_New(count)
        for j in range(count):
            position = c_sources[k]
            k += 1
            if position >= i:
                raise ValueError(f"not a pickled graph: node {i} names a later one")
            child = nodes[position]
            Py_INCREF(child)
            PyTuple_SET_ITEM(src, j, child)
        nodes.append(make(<int>int(op_codes[ops[i]]), <DType>dtype_list[dtypes_[i]], src,
                          args[i], tag_of.get(i)))
    return nodes[n - 1]
