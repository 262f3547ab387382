"""Capsules of DLPack: memory of the host handed to others, and theirs to us, without copying.

The structures are those of DLPack 1.0 (https://dmlc.github.io/dlpack/latest/c_api.html): a capsule
is `dltensor`, or `dltensor_versioned` with flags; who takes it renames it, and calls its deleter
once when it needs the memory no more.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.pycapsule cimport (
    PyCapsule_GetPointer,
    PyCapsule_IsValid,
    PyCapsule_New,
    PyCapsule_SetName,
)
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX
    int Py_IsInitialized() noexcept nogil

cdef struct Device:
    int32_t kind
    int32_t number

cdef struct Kind:
    uint8_t code
    uint8_t bits
    uint16_t lanes

cdef struct Array:
    void *c_data
    Device device
    int32_t ndim
    Kind dtype
    int64_t *c_shape
    int64_t *c_strides
    uint64_t byte_offset

cdef struct Plain:
    Array array
    void *c_owner
    void (*deleter)(Plain *) noexcept

cdef struct Version:
    uint32_t major
    uint32_t minor

cdef struct Versioned:
    Version version
    void *c_owner
    void (*deleter)(Versioned *) noexcept
    uint64_t flags
    Array array

cdef enum:
    READ_ONLY = 1
    COPIED = 2
    OF_HOST = 1  # the kind of a device

cdef const char *PLAIN = "dltensor"
cdef const char *PLAIN_USED = "used_dltensor"
cdef const char *VERSIONED = "dltensor_versioned"
cdef const char *VERSIONED_USED = "used_dltensor_versioned"


# ---------------------------------------------------------------- giving


cdef void _let_go(void *c_owner) noexcept nogil:
    if Py_IsInitialized():  # at the very end nothing is freed any more
        with gil:
            Py_DECREF(<object>c_owner)


cdef void _delete_plain(Plain *c_tensor) noexcept nogil:
    _let_go(c_tensor.c_owner)
    PyMem_RawFree(c_tensor)


cdef void _delete_versioned(Versioned *c_tensor) noexcept nogil:
    _let_go(c_tensor.c_owner)
    PyMem_RawFree(c_tensor)


cdef void _drop_plain(object capsule) noexcept:
    if PyCapsule_IsValid(capsule, PLAIN):  # nobody took it
        _delete_plain(<Plain *>PyCapsule_GetPointer(capsule, PLAIN))


cdef void _drop_versioned(object capsule) noexcept:
    if PyCapsule_IsValid(capsule, VERSIONED):
        _delete_versioned(<Versioned *>PyCapsule_GetPointer(capsule, VERSIONED))


def give(owner, uintptr_t address, tuple shape, tuple strides, int code, int bits,
         bint versioned, bint read_only=False, bint copied=False):
    """A capsule over the elements at an address, which `owner` keeps there until it is let go.

    `strides` count elements. MemoryError.
    """
    cdef size_t ndim = len(shape)
    cdef size_t head = sizeof(Versioned) if versioned else sizeof(Plain)
    cdef int64_t *c_sizes
    cdef void *c_block
    cdef Array *c_array
    cdef size_t k
    sizes = [*shape, *strides]  # before anything is allocated: what is no int raises here
    cdef list whole = [int(n) for n in sizes]
    c_block = PyMem_RawMalloc(head + (2 * ndim + 1) * sizeof(int64_t))
    if c_block == NULL:
        raise MemoryError("no memory for a capsule")
    c_sizes = <int64_t *>(<char *>c_block + head)
    for k in range(2 * ndim):
        c_sizes[k] = whole[k]
    if versioned:
        (<Versioned *>c_block).version = Version(1, 0)
        (<Versioned *>c_block).c_owner = <void *>owner
        (<Versioned *>c_block).deleter = _delete_versioned
        (<Versioned *>c_block).flags = (READ_ONLY if read_only else 0) | (COPIED if copied else 0)
        c_array = &(<Versioned *>c_block).array
    else:
        (<Plain *>c_block).c_owner = <void *>owner
        (<Plain *>c_block).deleter = _delete_plain
        c_array = &(<Plain *>c_block).array
    c_array.c_data = <void *>address
    c_array.device = Device(OF_HOST, 0)
    c_array.ndim = <int32_t>ndim
    c_array.dtype = Kind(<uint8_t>code, <uint8_t>bits, 1)
    c_array.c_shape = c_sizes
    c_array.c_strides = c_sizes + ndim
    c_array.byte_offset = 0
    Py_INCREF(owner)
    if versioned:
        return PyCapsule_New(c_block, VERSIONED, _drop_versioned)
    return PyCapsule_New(c_block, PLAIN, _drop_plain)


# ---------------------------------------------------------------- taking


@cython.final
cdef class Foreign:
    """The memory of a capsule, which is let go when this dies. It has the buffer protocol.

    `device` is (kind, number), `dtype` (code, bits, lanes); `strides` count elements. The buffer
    holds all elements, the first one `begin` bytes from its start. ValueError for what is no
    capsule, or was taken before; BufferError for one that is not understood.
    """

    cdef Plain *c_plain
    cdef Versioned *c_versioned
    cdef char *c_data
    cdef readonly Py_ssize_t nbytes
    cdef readonly Py_ssize_t begin
    cdef readonly tuple device
    cdef readonly tuple dtype
    cdef readonly tuple shape
    cdef readonly tuple strides
    cdef readonly bint read_only
    cdef readonly bint copied

    def __cinit__(self, capsule):
        cdef Versioned *c_versioned = NULL
        cdef Plain *c_plain = NULL
        cdef Array *c_array
        if PyCapsule_IsValid(capsule, VERSIONED):
            c_versioned = <Versioned *>PyCapsule_GetPointer(capsule, VERSIONED)
            if c_versioned.version.major != 1:
                raise BufferError(
                    f"DLPack {c_versioned.version.major}.{c_versioned.version.minor} is not known "
                    "here, but 1.x and what was before it; ask for max_version=(1, 0)"
                )
            c_array = &c_versioned.array
            self.read_only = c_versioned.flags & READ_ONLY
            self.copied = c_versioned.flags & COPIED
        elif PyCapsule_IsValid(capsule, PLAIN):
            c_plain = <Plain *>PyCapsule_GetPointer(capsule, PLAIN)
            c_array = &c_plain.array
        else:
            raise ValueError(
                f"{capsule!r} is no DLPack capsule, or somebody took what was in it; "
                "each is taken once"
            )
        self._describe(c_array)
        # from here on it is ours, and no other's
        PyCapsule_SetName(capsule, PLAIN_USED if c_versioned == NULL else VERSIONED_USED)
        self.c_plain, self.c_versioned = c_plain, c_versioned

    cdef int _describe(self, Array *c_array) except -1:
        cdef int32_t k
        self.device = (c_array.device.kind, c_array.device.number)
        self.dtype = (c_array.dtype.code, c_array.dtype.bits, c_array.dtype.lanes)
        self.shape = tuple([c_array.c_shape[k] for k in range(c_array.ndim)])
        if c_array.c_strides != NULL:
            self.strides = tuple([c_array.c_strides[k] for k in range(c_array.ndim)])
        else:
            strides = [1] * c_array.ndim
            for k in range(c_array.ndim - 2, -1, -1):
                strides[k] = strides[k + 1] * self.shape[k + 1]
            self.strides = tuple(strides)
        itemsize = (c_array.dtype.bits * c_array.dtype.lanes + 7) // 8
        low = high = 0
        for size, stride in zip(self.shape, self.strides):
            if size < 0:
                raise BufferError(f"an array of shape {self.shape} has a size below 0")
            low += min((size - 1) * stride, 0)
            high += max((size - 1) * stride, 0)
        if 0 in self.shape:
            return 0
        nbytes = (high - low + 1) * itemsize
        if nbytes > PY_SSIZE_T_MAX:
            raise BufferError(
                f"no memory has an array of shape {self.shape} and strides {self.strides}"
            )
        self.begin, self.nbytes = -low * itemsize, nbytes
        self.c_data = <char *>c_array.c_data + c_array.byte_offset - self.begin
        return 0

    @property
    def address(self) -> int:
        """Where the buffer begins."""
        return <uintptr_t>self.c_data

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.c_data, self.nbytes, self.read_only, flags)

    def __dealloc__(self):
        if self.c_versioned != NULL and self.c_versioned.deleter != NULL:
            self.c_versioned.deleter(self.c_versioned)
        if self.c_plain != NULL and self.c_plain.deleter != NULL:
            self.c_plain.deleter(self.c_plain)
