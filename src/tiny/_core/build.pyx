"""Operations of tensors as nodes: operands promoted and broadcast, sizes checked.

The quick way for what nearly all operations are: operands of one dtype or a Python number, sizes
that need no proof, nothing wrong. Everything else (weak and mixed dtypes, most symbolic sizes,
errors to explain) gives None, and the caller goes the general way. Where these functions give a
node, it is the one that the general way makes.
"""

from cpython.bool cimport PyBool_Check
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.ref cimport Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free
from tiny._core cimport types
from tiny._core.arith cimport borrowed_item, length_of, mul_overflows
from tiny._core.graph cimport (
    Node, make, make2, make3, make_bool, make_const, make_int, postorder,
)
from tiny._core.ops cimport *
from tiny._core.types cimport DType

cdef tuple SCALAR_SHAPE = ()
# beyond it an int may not be a double
cdef int64_t EXACT = <int64_t>1 << 53


# ---------------------------------------------------------------- operands

cdef Node number(object value, DType dtype):
    """A Python number as a constant of a dtype that it is promoted to; None if another decides."""
    cdef int overflow = 0
    cdef int64_t whole
    if PyFloat_CheckExact(value):
        if dtype.c_kind != c"f" or dtype.bitsize < 32:
            return None
        if dtype.bitsize == 32:
            value = <double><float>PyFloat_AS_DOUBLE(value)
        return make_const(dtype, value)
    if PyLong_CheckExact(value):
        whole = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            return None
        if dtype.c_kind == c"f":
            if dtype.bitsize < 32 or not -EXACT <= whole <= EXACT:
                return None
            return make_const(dtype, <double><float>whole if dtype.bitsize == 32 else <double>whole)
        if dtype.c_kind != c"i" and dtype.c_kind != c"u":
            return None
        if dtype.c_bounded:
            return make_int(dtype, whole) if dtype.c_min <= whole <= dtype.c_max else None
        return make_int(dtype, whole) if dtype.c_kind == c"i" else None
    if PyBool_Check(value) and dtype is types.BOOL:
        return make_bool(value is True)
    return None


cdef inline bint is_strong(DType dtype) noexcept:
    """Whether values of a dtype promote to themselves: no Python number's, no index's."""
    return dtype.c_kind == c"f" or dtype.c_kind == c"i" or dtype.c_kind == c"u" \
        or dtype.c_kind == c"b"


cdef inline Node as_node(object x):
    return <Node>x if isinstance(x, Node) else None


cdef inline bint same_size(PyObject *x, PyObject *y) except -1:
    """Whether two sizes are equal: symbolic ones are in their one form, so they are one node."""
    if x == y:
        return True
    return PyLong_CheckExact(<object>x) and PyLong_CheckExact(<object>y) and <object>x == <object>y


cdef inline bint is_one(PyObject *size) except -1:
    return PyLong_CheckExact(<object>size) and <object>size == 1


cdef object common_shape(object a, object b):
    """The shape to which two broadcast; None if there is none, or that needs a proof."""
    cdef Py_ssize_t i, n, lead
    cdef PyObject *x
    cdef PyObject *y
    if a is b or length_of(<PyObject *>b) == 0:
        return a
    if length_of(<PyObject *>a) == 0:
        return b
    if length_of(<PyObject *>a) < length_of(<PyObject *>b):
        a, b = b, a
    n = length_of(<PyObject *>a)
    lead = n - length_of(<PyObject *>b)
    cdef tuple shape = PyTuple_New(n)
    for i in range(n):
        x = borrowed_item(<PyObject *>a, i)
        if i >= lead:
            y = borrowed_item(<PyObject *>b, i - lead)
            if is_one(x):
                x = y
            elif not is_one(y) and not same_size(x, y):
                return None
        Py_INCREF(<object>x)
        PyTuple_SET_ITEM(shape, i, <object>x)
    return shape


cdef bint same_shape(object a, object b) except -1:
    cdef Py_ssize_t i, n = length_of(<PyObject *>a)
    if a is b:
        return True
    if n != length_of(<PyObject *>b):
        return False
    for i in range(n):
        if not same_size(borrowed_item(<PyObject *>a, i), borrowed_item(<PyObject *>b, i)):
            return False
    return True


cdef Node resized(int op, Node x, tuple shape):
    """RESHAPE or EXPAND to a shape: its symbolic sizes are sources, None in the arg."""
    cdef Py_ssize_t i, n = length_of(<PyObject *>shape)
    cdef list src = None, arg = None
    for i in range(n):
        if not PyLong_CheckExact(shape[i]):
            if src is None:
                src, arg = [x], list(shape)
            src.append(shape[i])
            arg[i] = None
    if src is None:
        return make(op, x.dtype, (x,), shape, None)
    return make(op, x.dtype, tuple(src), tuple(arg), None)


cdef Node spread(Node x, tuple shape):
    """A value in a shape that it broadcasts to; a scalar fits every shape."""
    cdef object own = x.c_shape
    cdef Py_ssize_t missing = length_of(<PyObject *>shape) - length_of(<PyObject *>own)
    if length_of(<PyObject *>own) == 0 or same_shape(own, shape):
        return x
    if missing:
        own = (1,) * missing + <tuple>own
        x = resized(OP_RESHAPE, x, own)
        if same_shape(own, shape):
            return x
    return resized(OP_EXPAND, x, shape)


# ---------------------------------------------------------------- elementwise

def binary(int op, Node a not None, other, bint reverse) -> Node | None:
    """`a op other`, or with `reverse` `other op a`; `other` is a node or a Python number."""
    cdef DType dtype = a.dtype
    cdef bint compares = op == OP_CMPLT or op == OP_CMPNE or op == OP_CMPEQ
    cdef Node b = as_node(other)
    if not is_strong(dtype) or a.c_shape is None:
        return None
    if dtype is types.BOOL and not (compares or op == OP_AND or op == OP_OR or op == OP_XOR):
        return None
    if b is None:
        b = number(other, dtype)
        if b is None:
            return None
    elif b.dtype is not dtype or b.c_shape is None:
        return None
    shape = common_shape(a.c_shape, b.c_shape)
    if shape is None:
        return None
    a, b = spread(a, <tuple>shape), spread(b, <tuple>shape)
    if reverse:
        a, b = b, a
    return make2(op, types.BOOL if compares else dtype, a, b)


def select(Node condition not None, x, y) -> Node | None:
    """x where the condition holds, y elsewhere; nodes or Python numbers, one a node at least."""
    cdef Node a = as_node(x), b = as_node(y)
    cdef DType dtype
    if condition.dtype is not types.BOOL or condition.c_shape is None:
        return None
    if a is None and b is None:
        return None
    dtype = b.dtype if a is None else a.dtype
    if not is_strong(dtype):
        return None
    if a is None:
        a = number(x, dtype)
    if b is None:
        b = number(y, dtype)
    if a is None or b is None or a.dtype is not b.dtype or a.c_shape is None or b.c_shape is None:
        return None
    shape = common_shape(condition.c_shape, a.c_shape)
    shape = None if shape is None else common_shape(shape, b.c_shape)
    if shape is None:
        return None
    return make3(OP_WHERE, dtype, spread(condition, <tuple>shape), spread(a, <tuple>shape),
                 spread(b, <tuple>shape))


# ---------------------------------------------------------------- movement

cdef int64_t product(object shape) except -2:
    """The product of sizes; -1 if one is symbolic, negative, or they are too many."""
    cdef int64_t total = 1, size
    cdef int overflow = 0
    cdef Py_ssize_t i
    cdef bint large = False, empty = False
    for i in range(length_of(<PyObject *>shape)):
        item = <object>borrowed_item(<PyObject *>shape, i)
        if not PyLong_CheckExact(item):
            return -1
        size = PyLong_AsLongLongAndOverflow(item, &overflow)
        if overflow or size < 0:
            return -1
        empty = empty or size == 0
        large = mul_overflows(total, size, &total) or large
    return 0 if empty else -1 if large else total


cdef bint differ_in_ones(object a, object b) except -1:
    """Whether two shapes are equal but for dimensions of size 1."""
    cdef Py_ssize_t i = 0, j = 0, n = length_of(<PyObject *>a), m = length_of(<PyObject *>b)
    while True:
        while i < n and is_one(borrowed_item(<PyObject *>a, i)):
            i += 1
        while j < m and is_one(borrowed_item(<PyObject *>b, j)):
            j += 1
        if i == n or j == m:
            return i == n and j == m
        if not same_size(borrowed_item(<PyObject *>a, i), borrowed_item(<PyObject *>b, j)):
            return False
        i += 1
        j += 1


def reshape(Node x not None, tuple asked not None) -> Node | None:
    """The same elements in another shape, all of whose sizes are given, or all but one (-1).

    Of symbolic sizes only dimensions of size 1 may come or go.
    """
    cdef object own = x.c_shape
    cdef int64_t total, rest
    cdef Py_ssize_t i, unknown = -1
    cdef bint symbolic = False
    if own is None or not is_strong(x.dtype):
        return None
    for i in range(length_of(<PyObject *>asked)):
        size = asked[i]
        if not PyLong_CheckExact(size):
            if not isinstance(size, Node):
                return None
            symbolic = True
        elif size == -1:
            if unknown >= 0:
                return None
            unknown = i
    if symbolic:
        if unknown >= 0 or not differ_in_ones(own, asked):
            return None
        return x if same_shape(own, asked) else resized(OP_RESHAPE, x, asked)
    total = product(own)
    if unknown >= 0:
        rest = product(asked[:unknown] + asked[unknown + 1:])
        if total < 0 or rest <= 0 or total % rest:
            return None
        asked = asked[:unknown] + (total // rest,) + asked[unknown + 1:]
    if own == asked:
        return x
    if total < 0 or product(asked) != total:
        return None
    return make(OP_RESHAPE, x.dtype, (x,), asked, None)


def permute(Node x not None, tuple order not None) -> Node | None:
    """The dimensions in another order; negative ones count from the end."""
    cdef Py_ssize_t i, n = length_of(<PyObject *>order)
    cdef int64_t axis, seen = 0
    cdef int overflow = 0
    cdef bint same = True
    if x.c_shape is None or n != length_of(<PyObject *>x.c_shape) or n > 62 \
            or not is_strong(x.dtype):
        return None
    cdef tuple axes = PyTuple_New(n)
    for i in range(n):
        item = <object>borrowed_item(<PyObject *>order, i)
        if not PyLong_CheckExact(item):
            return None
        axis = PyLong_AsLongLongAndOverflow(item, &overflow)
        if overflow or not -n <= axis < n:
            return None
        if axis < 0:
            axis += n
            item = axis
        seen |= <int64_t>1 << axis
        same = same and axis == i
        Py_INCREF(item)
        PyTuple_SET_ITEM(axes, i, item)
    if seen != (<int64_t>1 << n) - 1:
        return None
    return x if same else make(OP_PERMUTE, x.dtype, (x,), axes, None)


def broadcast_to(Node x not None, tuple shape not None) -> Node | None:
    """A value expanded to a shape; not checked whether it can be."""
    cdef object own = x.c_shape
    if own is None or not is_strong(x.dtype):
        return None
    if length_of(<PyObject *>own):
        return spread(x, shape)
    return resized(OP_EXPAND, x, shape) if length_of(<PyObject *>shape) else x


def expand(Node x not None, tuple asked not None) -> Node | None:
    """Dimensions of size 1 repeated; new ones come first, -1 keeps a size."""
    cdef object own = x.c_shape
    cdef Py_ssize_t i, n = length_of(<PyObject *>asked), lead
    cdef tuple shape
    if own is None or product(own) < 0:
        return None
    lead = n - length_of(<PyObject *>own)
    if lead < 0:
        return None
    shape = PyTuple_New(n)
    for i in range(n):
        size = <object>borrowed_item(<PyObject *>asked, i)
        if not PyLong_CheckExact(size) or size < -1 or (size == -1 and i < lead):
            return None
        if i >= lead:
            mine = <object>borrowed_item(<PyObject *>own, i - lead)
            if size == -1:
                size = mine
            elif mine != size and mine != 1:
                return None
        Py_INCREF(size)
        PyTuple_SET_ITEM(shape, i, size)
    return broadcast_to(x, shape)


def shrink(Node x not None, cuts) -> Node | None:
    """From begin to end in each dimension; None keeps one whole."""
    return _pairs(OP_SHRINK, x, cuts)


def pad(Node x not None, margins) -> Node | None:
    """Zeros put before and after each dimension; None for none."""
    return _pairs(OP_PAD, x, margins)


cdef Node _pairs(int op, Node x, object given):
    """SHRINK by (begin, end) or PAD by (before, after) in each dimension."""
    cdef object own = x.c_shape
    cdef Py_ssize_t i, n
    cdef bint changes = False
    cdef tuple pairs
    if own is None or not is_strong(x.dtype) or not isinstance(given, (list, tuple)):
        return None
    n = len(given)
    if n == 0 or n != length_of(<PyObject *>own):
        return None
    pairs = PyTuple_New(n)
    for i in range(n):
        pair, size = given[i], <object>borrowed_item(<PyObject *>own, i)
        if not PyLong_CheckExact(size):
            return None
        if pair is None:
            pair = (0, size) if op == OP_SHRINK else (0, 0)
        elif not PyTuple_CheckExact(pair) or length_of(<PyObject *>pair) != 2:
            return None
        else:
            low, high = <object>borrowed_item(<PyObject *>pair, 0), \
                <object>borrowed_item(<PyObject *>pair, 1)
            if not PyLong_CheckExact(low) or not PyLong_CheckExact(high) or low < 0:
                return None
            if op == OP_SHRINK:
                if not low <= high <= size:
                    return None
                changes = changes or low != 0 or high != size
            else:
                if high < 0:
                    return None
                changes = changes or low != 0 or high != 0
        Py_INCREF(pair)
        PyTuple_SET_ITEM(pairs, i, pair)
    return make(op, x.dtype, (x,), pairs, None) if changes else x


# ---------------------------------------------------------------- gradients

cdef inline bint passes_gradient(Node node) noexcept:
    cdef char kind = node.dtype.c_kind
    if node.c_op == OP_STORE or node.c_op == OP_CALL or node.c_op == OP_TUPLE:
        return True  # the gradient of what goes into them is found by what is above
    if node.c_op == OP_DETACH or node.c_op == OP_BITCAST or node.c_op == OP_TRUNC:
        return False  # a truncated number is constant but for jumps
    return kind == c"f" or kind == c"8" or (kind == c"w" and not node.dtype.c_integral)


def path_to(Node root not None, set targets not None) -> list:
    """The nodes of a graph that depend on a target by what has a gradient, and the targets.

    Users come before sources. Floats have one; bitcasts, DETACH and TRUNC pass none on.
    """
    cdef list order = postorder(root), found = []
    cdef Py_ssize_t n = len(order), i, j
    cdef Node node
    cdef PyObject *src
    cdef uint8_t *is_on_path = <uint8_t *>calloc(n, 1)
    if is_on_path == NULL:
        raise MemoryError()
    try:
        for i in range(n):
            node = <Node>order[i]
            if node in targets:
                is_on_path[i] = 1
            elif passes_gradient(node):
                src = <PyObject *>node.src
                for j in range(length_of(src)):
                    if is_on_path[(<Node>borrowed_item(src, j)).c_index]:
                        is_on_path[i] = 1
                        break
        for i in range(n - 1, -1, -1):
            if is_on_path[i]:
                found.append(order[i])
    finally:
        free(is_on_path)
    return found


def move_back(Node node not None, Node gradient not None) -> Node | None:
    """The gradient of what a RESHAPE, PERMUTE, FLIP, PAD or SHRINK moved; None if symbolic."""
    cdef Node x = <Node>node.src[0]
    cdef Py_ssize_t i, n = length_of(<PyObject *>x.c_shape)
    cdef int op = node.c_op
    cdef object arg
    cdef list parts
    if length_of(<PyObject *>node.src) > 1 or product(x.c_shape) < 0:
        return None
    if op == OP_RESHAPE:
        if gradient.c_shape == x.c_shape:
            return gradient
        arg = x.c_shape
    elif op == OP_FLIP:
        arg = node.arg
    elif op == OP_PERMUTE:
        parts = [None] * n
        for i in range(n):
            parts[<Py_ssize_t>node.arg[i]] = i
        arg = tuple(parts)
    elif op == OP_PAD:
        op, parts = OP_SHRINK, []
        for i in range(n):
            low = node.arg[i][0]
            parts.append((low, low + x.c_shape[i]))
        arg = tuple(parts)
    elif op == OP_SHRINK:
        op, parts = OP_PAD, []
        for i in range(n):
            begin, end = node.arg[i]
            parts.append((begin, x.c_shape[i] - end))
        arg = tuple(parts)
    else:
        return None
    return make(op, gradient.dtype, (gradient,), arg, None)
