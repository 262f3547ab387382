"""Context variables as native code reads them: looked up once for each change and thread."""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyObject_GetBuffer

from tiny.helpers import DEBUG, JIT, LRU, NUM_CPU_THREADS, POISON, changes_made

cdef extern from "Python.h":
    ctypedef struct PyThreadState:
        pass
    PyThreadState *PyThreadState_Get() noexcept
    uint64_t PyThreadState_GetID(PyThreadState *) noexcept

cdef enum:
    KEPT = 8  # threads whose settings are remembered


cdef int64_t *counter(object array) except NULL:
    """Where an array of 64-bit integers lies, which it does for ever."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_WRITABLE)  # never released, so it can not be resized
    return <int64_t *>view.buf


cdef int64_t *c_changes = counter(changes_made)
cdef tuple watched = ()
cdef list kept = [None] * KEPT  # by the thread's number; none of them is reused


@cython.final
cdef class Known:
    """Values of context variables, as a key that is hashed once."""

    cdef readonly tuple values
    cdef Py_hash_t number

    def __cinit__(self, tuple values):
        self.values, self.number = values, hash(values)

    def __hash__(self):
        return self.number

    def __eq__(self, other):
        return self is other or (type(other) is Known and self.values == (<Known>other).values)


@cython.final
cdef class Settings:
    """What holds in a thread after so many changes."""


cdef Settings settings():
    """Those of this thread now."""
    cdef uint64_t thread = PyThreadState_GetID(PyThreadState_Get())
    found = kept[thread % KEPT]
    if found is not None and (<Settings>found).thread == thread \
            and (<Settings>found).changes == c_changes[0]:
        return <Settings>found
    cdef Settings new = Settings.__new__(Settings)
    new.thread, new.changes = thread, c_changes[0]  # first: another thread may change one meanwhile
    new.threads = max(1, min(NUM_CPU_THREADS.value, 1 << 16))
    new.keeps = LRU.value and not POISON.value
    new.is_plain = JIT.value == 1 and DEBUG.value < 2
    new.known = Known(tuple([variable.value for variable in watched]))
    kept[thread % KEPT] = new
    return new


def current() -> Settings:
    """The settings of this thread now."""
    return settings()


def watch(variables) -> None:
    """Let `known` have the values of these context variables."""
    global watched, kept
    watched, kept = tuple(variables), [None] * KEPT
