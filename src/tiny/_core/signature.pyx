"""Reading a call: what of its arguments, and of what its function names, tells it from others."""

cimport cython
from cpython.ref cimport PyObject, PyTypeObject

from tiny._core.alive cimport Seen, Value
from tiny._core.graph cimport Node
from tiny._core.settings cimport settings

cdef extern from "Python.h":
    int Py_EnterRecursiveCall(const char *) except -1
    void Py_LeaveRecursiveCall()
    bint PyType_IsSubtype(PyTypeObject *, PyTypeObject *) noexcept
    bint PyList_Check(object) noexcept
    bint PyTuple_Check(object) noexcept
    bint PyDict_Check(object) noexcept
    PyObject *PyCell_GET(object) noexcept
    PyObject *PyDict_GetItem(object, object) noexcept

cdef frozenset EXACT = frozenset((bool, int, str, bytes, type(None), type(...)))
cdef object tensor_class = None
cdef object weak_number, expression, plain, is_plain_tuple, fields
cdef tuple plain_types


def register(tensor, number, expression_, plain_, plain_types_, is_plain_tuple_, fields_) -> None:
    """Tell what tensors are, and who reads what is rare.

    In this order: a tensor that may be a Python number (None if it is none), an expression of
    Variables, any other value; the types of plain values, whether a tuple is one, and the fields
    of a dataclass.
    """
    global tensor_class, weak_number, expression, plain, plain_types, is_plain_tuple, fields
    tensor_class, weak_number, expression, plain = tensor, number, expression_, plain_
    plain_types, is_plain_tuple, fields = plain_types_, is_plain_tuple_, fields_


cdef inline bint is_exact(type kind) except -1:
    """Whether equal values of a type mean the same."""
    return kind in EXACT


cdef inline bint is_tensor(type kind) noexcept:
    return kind is tensor_class or PyType_IsSubtype(
        <PyTypeObject *>kind, <PyTypeObject *>tensor_class
    )


@cython.final
cdef class Parts:
    """The parts of one call as they are found; `paths`, if wanted, says where each comes from.

    `tensors` are those that are inputs, in order, of which some are `donated`; `numbers` the other
    inputs by name.
    """

    def __cinit__(self, list parts not None, list paths=None):
        self.parts, self.paths = parts, paths
        self.tensors, self.numbers, self.donated = [], {}, []

    cpdef read(self, object x, str path=""):
        """Take an argument apart: its structure and plain values are parts."""
        cdef type kind = type(x)
        if is_exact(kind):
            self.add((kind, x), path)
        elif is_tensor(kind):
            self.add(self.tensor(<Seen>x), path)
        elif PyList_Check(x) or PyTuple_Check(x) or PyDict_Check(x) \
                or hasattr(kind, "__dataclass_fields__"):
            Py_EnterRecursiveCall(b" in a structure that a TinyJit was given")
            try:
                self.container(x, kind, path)
            finally:
                Py_LeaveRecursiveCall()
        elif isinstance(x, Node):
            self.add(expression(x, self.numbers), path)
        else:
            self.add(plain(x, path), path)

    cdef int add(self, object part, str path) except -1:
        self.parts.append(part)
        if self.paths is not None:
            self.paths.append(path)
        return 0

    cdef object tensor(self, Seen x):
        cdef Node node = <Node>x._uop
        cdef tuple shape = <tuple>node.c_shape
        cdef object size, wants = x.requires_grad
        cdef bint is_empty = False
        if node.dtype.c_kind == b"w":
            number = weak_number(x, self.weak)
            if number is not None:
                part, name, value = number
                if name is not None:
                    self.numbers[name] = value
                    self.weak += 1
                return part
        for size in shape:
            if type(size) is not int:
                shape = tuple([
                    s if type(s) is int else expression(s, self.numbers) for s in shape
                ])
                break
        for size in shape:
            is_empty = is_empty or (type(size) is int and size == 0)
        if not is_empty:
            self.tensors.append(x)
        # the function would add to a gradient that is there
        return (
            tensor_class, shape, node.dtype, (<Value>x._storage).device, wants,
            wants is True and x.grad is not None,
        )

    cdef int container(self, object x, type kind, str path) except -1:
        cdef object item, names
        cdef Py_ssize_t k = 0
        if PyDict_Check(x):
            names = tuple(x)
            for name in names:
                if type(name) is not str:
                    names = tuple([plain(name, path) for name in names])
                    break
            self.add((kind, names), path)  # in this order: the function can see it
            for name, item in x.items():
                self.read(item, path if self.paths is None else f"{path}[{name!r}]")
        elif PyList_Check(x) or PyTuple_Check(x):
            self.add((kind, len(x)), path)
            names = getattr(kind, "_fields", None) if self.paths is not None else None
            for item in x:
                if self.paths is None:
                    self.read(item, path)
                else:
                    self.read(item, f"{path}.{names[k]}" if names else f"{path}[{k}]")
                k += 1
        else:
            self.add(kind, path)
            for name, item in fields(x):
                self.read(item, f"{path}.{name}")
        return 0


cdef class Surroundings:
    """The plain values and the tensors that a function's own code names.

    They are in closure cells and globals.
    """

    def __init__(self, list cells not None, list names not None, dict globals not None):
        self.cells, self.names, self.globals = cells, names, globals

    cpdef read(self, list parts, list paths=None):
        """Add those there are now to the parts of a signature."""
        cdef PyObject *found
        cdef object value  # held: what reads it runs Python, which may put another in its place
        for name, cell in self.cells:
            found = PyCell_GET(cell)
            if found != NULL:  # it may not be filled yet
                value = <object>found
                read_surrounding(<str>name, value, parts)
        for name in self.names:
            found = PyDict_GetItem(self.globals, name)
            value = None if found == NULL else <object>found
            read_surrounding(<str>name, value, parts)
        if paths is not None:
            paths += [part[0] for part in parts[len(paths):]]


cdef int read_surrounding(str name, object value, list parts) except -1:
    cdef type kind = type(value)
    cdef object other
    if is_exact(kind):
        parts.append((name, kind, value))
    elif is_tensor(kind):  # which one; its death is noticed
        parts.append((name, id(value)))
    elif kind is tuple:
        if is_plain_tuple(value):
            parts.append((name, *plain(value, "")))
    else:
        for other in plain_types:
            if PyType_IsSubtype(<PyTypeObject *>kind, <PyTypeObject *>other):
                parts.append((name, *plain(value, "")))
                break
    return 0


cdef class CallReader:
    """Reads calls of one function.

    `layouts` are, by the number of positions and the names that are given, what is read in which
    order: (name, position or name of what is given, or a tuple with a part). `donate` are the names
    of what is given away.
    """

    cpdef Parts take_apart(self, tuple args, dict kwargs, list layout, list paths=None):
        """The parts of a call."""
        cdef Parts found = Parts([settings().known], paths)
        cdef Py_ssize_t count
        if paths is not None:
            paths.append("settings")
        self.surroundings.read(found.parts, paths)
        for name, source in layout:
            count = len(found.tensors)
            if type(source) is int:
                found.read(args[source], name)
            elif type(source) is str:
                found.read(kwargs[source], name)
            else:
                found.add(source[0], name)
            if self.donate and (<str>name).partition("[")[0] in self.donate:
                found.donated += range(count, len(found.tensors))
        return found
