"""Memory of the host, and calls of compiled CPU kernels.

A kernel is a list of phases, each a C function
`void phase(void **buffers, const uint64_t *variables, void *scratch_of_thread,
void *scratch_shared, int64_t begin, int64_t end)` that does the steps begin..end-1 of its count.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.float cimport PyFloat_AsDouble
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove

cdef extern from "Python.h":
    unsigned long long PyLong_AsUnsignedLongLongMask(object) except? 0xFFFFFFFFFFFFFFFF

ctypedef void (*phase_t)(void **, const uint64_t *, void *, void *, int64_t, int64_t) noexcept nogil

cdef enum:
    ALIGNMENT = 64
    ON_STACK = 64  # as many buffers and variables are passed without an allocation


@cython.final
cdef class HostMemory:
    """Bytes of host memory: its own (64-byte aligned), a part of another, or those of an object.

    It has the buffer protocol, and lives as long as anything that looks into it. `users` counts
    who does: exported buffers and parts. Fresh memory holds anything. MemoryError says how many
    bytes were asked for.
    """

    cdef void *c_raw          # to be freed; NULL where the memory belongs to another
    cdef char *c_data
    cdef readonly Py_ssize_t nbytes
    cdef readonly Py_ssize_t users
    cdef HostMemory whole     # of which this is a part
    cdef Py_buffer foreign
    cdef bint is_foreign
    cdef readonly bint writable

    def __cinit__(self, Py_ssize_t nbytes=0, *, HostMemory part_of=None, Py_ssize_t offset=0,
                  object shared=None):
        self.writable = True
        if shared is not None:
            try:
                PyObject_GetBuffer(shared, &self.foreign, PyBUF_WRITABLE)
            except BufferError:
                PyObject_GetBuffer(shared, &self.foreign, PyBUF_SIMPLE)
                self.writable = False
            self.is_foreign = True
            self.c_data, self.nbytes = <char *>self.foreign.buf, self.foreign.len
            return
        if nbytes < 0:
            raise ValueError(f"memory cannot have {nbytes} bytes")
        self.nbytes = nbytes
        if part_of is not None:
            if offset < 0 or offset > part_of.nbytes or nbytes > part_of.nbytes - offset:
                raise ValueError(
                    f"bytes {offset} to {offset + nbytes} are not inside {part_of.nbytes} bytes"
                )
            self.whole, self.c_data = part_of, part_of.c_data + offset
            self.writable = part_of.writable
            part_of.users += 1
            return
        # at least one byte, so that a kernel may always form the address of the first element
        cdef size_t wanted = <size_t>nbytes + 2 * ALIGNMENT
        self.c_raw = malloc(wanted)
        if self.c_raw == NULL:
            raise MemoryError(f"could not allocate {nbytes} bytes of host memory")
        self.c_data = <char *>((<uintptr_t>self.c_raw + ALIGNMENT - 1) & ~<uintptr_t>(ALIGNMENT - 1))

    def __dealloc__(self):
        if self.is_foreign:
            PyBuffer_Release(&self.foreign)
        if self.whole is not None:
            self.whole.users -= 1
        free(self.c_raw)

    @property
    def address(self) -> int:
        """Where it begins."""
        return <uintptr_t>self.c_data

    def __len__(self):
        return self.nbytes

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.c_data, self.nbytes, not self.writable, flags)
        self.users += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self.users -= 1


def copy_memory(HostMemory to, HostMemory source, size_t nbytes):
    """Copy `nbytes` from the start of `source` to that of `to`. ValueError if they do not fit."""
    if nbytes > <size_t>source.nbytes or nbytes > <size_t>to.nbytes or not to.writable:
        raise ValueError(
            f"cannot copy {nbytes} bytes of {source.nbytes} to {to.nbytes} "
            f"{'writable' if to.writable else 'read-only'} bytes"
        )
    with nogil:
        memmove(to.c_data, source.c_data, nbytes)


cdef union _Slot:
    uint64_t bits
    double float64
    float float32


@cython.final
cdef class HostKernel:
    """A compiled kernel, called with the memory of its buffers and the values of its variables.

    `phases` are (address, count) in order. `kinds` has a byte for each variable: i for integers
    (they wrap to 64 bits), f for float32, d for float64. `code` is what keeps the machine code
    loaded; it is let go of with the kernel. TypeError if the arguments are not as declared.
    """

    cdef readonly str name
    cdef readonly tuple phases
    cdef readonly Py_ssize_t buffers
    cdef readonly bytes kinds
    cdef object code

    def __cinit__(self, str name, tuple phases, Py_ssize_t buffers, bytes kinds, object code):
        if kinds.strip(b"ifd"):
            raise ValueError(f"kinds of variables are i, f and d, got {kinds!r}")
        for address, count in phases:
            if not address or count < 1:
                raise ValueError(f"kernel {name}: no function at {address}, or no step: {count}")
        self.name, self.phases, self.buffers, self.kinds = name, phases, buffers, kinds
        self.code = code

    def __call__(self, tuple buffers, tuple variables=()):
        cdef Py_ssize_t n = len(buffers), m = len(variables)
        if n != self.buffers or m != len(self.kinds):
            raise TypeError(
                f"kernel {self.name} takes {self.buffers} buffers and {len(self.kinds)} variables, "
                f"got {n} and {m}"
            )
        cdef void *on_stack[2 * ON_STACK]
        cdef void **c_buffers = on_stack
        if n > ON_STACK or m > ON_STACK:
            c_buffers = <void **>malloc((n + m) * sizeof(uint64_t))
            if c_buffers == NULL:
                raise MemoryError(f"could not allocate the {n + m} arguments of {self.name}")
        cdef _Slot *c_variables = <_Slot *>(c_buffers + n)
        cdef const char *kinds = self.kinds
        cdef Py_ssize_t i
        try:
            for i in range(n):
                c_buffers[i] = (<HostMemory?>buffers[i]).c_data
            for i in range(m):
                c_variables[i].bits = 0
                if kinds[i] == b"i":
                    c_variables[i].bits = PyLong_AsUnsignedLongLongMask(variables[i])
                elif kinds[i] == b"d":
                    c_variables[i].float64 = PyFloat_AsDouble(variables[i])
                else:
                    c_variables[i].float32 = <float>PyFloat_AsDouble(variables[i])
            for address, count in self.phases:
                _run_phase(<phase_t><uintptr_t>address, c_buffers, <uint64_t *>c_variables, count)
        finally:
            if c_buffers != on_stack:
                free(c_buffers)


cdef int _run_phase(
    phase_t phase, void **buffers, const uint64_t *variables, int64_t count
) except -1:
    with nogil:
        phase(buffers, variables, NULL, NULL, 0, count)
    return 0
