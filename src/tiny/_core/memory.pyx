"""Memory of the host, what is kept of it for the next request, and who has it now."""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove

from tiny._core.settings cimport counter, settings
from tiny._core.types cimport DType
from tiny.helpers import memory_in_use

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef extern from *:
    """
    #ifdef __linux__
    #include <sys/mman.h>
    #endif
    static void tiny_want_huge_pages(void *begin, size_t nbytes) {
    #ifdef MADV_HUGEPAGE
        madvise(begin, nbytes, MADV_HUGEPAGE);  /* advice: it works without */
    #endif
    }
    """
    void want_huge_pages "tiny_want_huge_pages"(void *, size_t) noexcept

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    #define tiny_is_ending Py_IsFinalizing
    #else
    #define tiny_is_ending _Py_IsFinalizing
    #endif
    """
    bint is_ending "tiny_is_ending"() noexcept

cdef enum:
    ALIGNMENT = 64
    PAGE = 4096
    HUGE_PAGE = 2 << 20
    COLOURS = 16
    COLOUR_NBYTES = PAGE + 5 * ALIGNMENT  # differs for pages and for lines
    MOST_SIZES = 256  # of pieces in a pool

# ---------------------------------------------------------------- memory


cdef size_t colour = 0


cdef char *allocate(size_t nbytes, void **c_raw) noexcept:
    """Memory of which `c_raw` is to be freed; NULL if there is none.

    Large memory asks for huge pages: touching 16 to 64 MB for the first time takes a third to a
    quarter of the time. Each piece begins some lines further into its page than the one before:
    if all began at one place of a page, the elements that a kernel reads together would share the
    few lines of a cache's set (8 inputs of 4 MB: 1/5 of the speed).
    """
    global colour
    cdef size_t alignment = ALIGNMENT, shift = 0
    if nbytes >= HUGE_PAGE:
        colour = (colour + 1) % COLOURS
        alignment, shift = HUGE_PAGE, colour * COLOUR_NBYTES
    # at least one byte, so that a kernel may always form the address of the first element
    c_raw[0] = malloc(nbytes + shift + 2 * alignment)
    if c_raw[0] == NULL:
        return NULL
    cdef uintptr_t begin = (<uintptr_t>c_raw[0] + alignment - 1) & ~<uintptr_t>(alignment - 1)
    if nbytes >= HUGE_PAGE:
        want_huge_pages(<void *>begin, (nbytes + shift) // HUGE_PAGE * HUGE_PAGE)
    return <char *>(begin + shift)


@cython.final
cdef class HostMemory:
    """Bytes of host memory: its own (64-byte aligned), a part of another, or those of an object.

    It has the buffer protocol, and lives as long as anything that looks into it. `users` counts
    who does: exported buffers and parts. `changes` counts what may have written to it: kernels,
    copies, and buffers exported for writing, as they begin and as they end; so memory whose count is
    as before, and that has no users, has the contents that it had. Fresh memory holds anything.
    MemoryError says how many bytes were asked for.
    """

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
        self.c_data = allocate(nbytes, &self.c_raw)
        if self.c_data == NULL:
            raise MemoryError(f"could not allocate {nbytes} bytes of host memory")

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

    @property
    def changes(self) -> int:
        """How often it may have been written to, or what it is a part of."""
        cdef HostMemory it = self
        while it.whole is not None:
            it = it.whole
        return it.change_count

    cdef void changed(self) noexcept:
        cdef HostMemory it = self
        while it.whole is not None:
            it = it.whole
        it.change_count += 1

    def __len__(self):
        return self.nbytes

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.c_data, self.nbytes, not self.writable, flags)
        self.users += 1
        if self.writable:
            self.changed()

    def __releasebuffer__(self, Py_buffer *buffer):
        self.users -= 1
        if self.writable:
            self.changed()


def copy_memory(HostMemory to, HostMemory source, size_t nbytes):
    """Copy `nbytes` from the start of `source` to that of `to`. ValueError if they do not fit."""
    if nbytes > <size_t>source.nbytes or nbytes > <size_t>to.nbytes or not to.writable:
        raise ValueError(
            f"cannot copy {nbytes} bytes of {source.nbytes} to {to.nbytes} "
            f"{'writable' if to.writable else 'read-only'} bytes"
        )
    to.changed()
    with nogil:
        memmove(to.c_data, source.c_data, nbytes)
    to.changed()


def fill_memory(HostMemory memory, uint64_t pattern) -> None:
    """Fill memory with copies of eight bytes, the last cut off where it ends."""
    cdef Py_ssize_t i, whole = memory.nbytes // 8
    if not memory.writable:
        raise ValueError("this memory is read-only")
    memory.changed()
    with nogil:
        for i in range(whole):
            memcpy(memory.c_data + 8 * i, &pattern, 8)
        memcpy(memory.c_data + 8 * whole, &pattern, memory.nbytes - 8 * whole)
    memory.changed()


@cython.final
cdef class Pool:
    """Pieces of memory that nobody uses now, by size in bytes. `nbytes` is what all of them have.

    No Python code runs in its calls, except for what a collection of garbage finalises, which
    finds it in order. So threads need no lock, a fork finds none taken, and no signal's handler
    raises in between.
    """

    def __cinit__(self):
        self.pieces = {}

    def __len__(self):
        return sum([len(same) for same in self.pieces.values()])

    cpdef object take(self, Py_ssize_t nbytes):
        """A piece of that size; None if there is none."""
        cdef list same = self.pieces.get(nbytes)
        if same is None:
            return None
        piece = same.pop()
        self.nbytes -= nbytes
        if not same:
            del self.pieces[nbytes]
        return piece

    cpdef object take_at_least(self, Py_ssize_t nbytes):
        """(a piece, its size): the smallest that has so many bytes; None if there is none."""
        cdef Py_ssize_t size, best = -1
        for size in self.pieces:
            if size >= nbytes and (best < 0 or size < best):
                best = size
        return None if best < 0 else (self.take(best), best)

    cpdef list give(self, object piece, Py_ssize_t nbytes, Py_ssize_t most):
        """Keep a piece; the pieces that this is too much with, if all are to have `most` bytes.

        Those of the size that was not used for the longest time go first, as they do when there
        are many sizes: a program that never asks for the same twice is not to fill its memory.
        """
        cdef Py_ssize_t oldest
        cdef list too_much = [], fresh = [], same
        if nbytes > most:
            too_much.append(piece)
            return too_much
        same = self.pieces.pop(nbytes, fresh)
        same.append(piece)
        self.pieces[nbytes] = same
        self.nbytes += nbytes
        while self.nbytes > most or len(self.pieces) > MOST_SIZES:
            for oldest in self.pieces:
                break
            same = self.pieces[oldest]
            too_much.append(same.pop(0))
            self.nbytes -= oldest
            if not same:
                del self.pieces[oldest]
        return too_much

    def empty(self) -> list:
        """All pieces; none are kept any more."""
        cdef dict nothing = {}, all_pieces
        all_pieces, self.pieces, self.nbytes = self.pieces, nothing, 0
        return [piece for same in all_pieces.values() for piece in same]


# ---------------------------------------------------------------- who has it

cdef dict c_used = {}  # by device: where its bytes in use are counted, as a number


cdef int64_t *_used(str device) except NULL:
    """The counter of the bytes in use on a device."""
    found = c_used.get(device)
    if found is None:
        from array import array

        # first in its place, so that nothing is lost if another thread is as far
        found = <uintptr_t>counter(memory_in_use.setdefault(device, array("q", [0])))
        c_used[device] = found
    return <int64_t *><uintptr_t>found


cdef class Shelves:
    """What an allocator keeps: pieces by size, and arenas. Its memory is the host's if `is_host`.

    Then a piece of a size that is there is had, and given back, without Python.
    """

    def __init__(self, str device, bint is_host=False):
        self.device, self.is_host = device, is_host
        self._pool, self._arenas = Pool(), Pool()
        self.c_used = _used(device)


cdef inline Py_ssize_t _rounded(Py_ssize_t nbytes) noexcept:
    return max((nbytes + ALIGNMENT - 1) & -ALIGNMENT, ALIGNMENT)


@cython.no_gc_clear  # what it gives back is still known when it dies
cdef class Piece:
    """Memory on a device for `size` elements of a dtype, given back when this dies.

    What it is a part of, and how it gets its memory, is known to `Buffer`.
    """

    def __cinit__(self, str device, size, DType dtype, *args, **kwargs):
        self.device, self.size, self.dtype, self.offset = device, size, dtype, 0
        self.nbytes = size * dtype.itemsize
        self.c_nbytes = self.nbytes if 0 <= self.nbytes <= PY_SSIZE_T_MAX - PAGE else -1

    def __dealloc__(self):
        if self._allocator is not None and not is_ending():
            self.give_back()

    cdef int take(self, Shelves allocator) except -1:
        """Get memory from an allocator."""
        cdef object found = None
        if allocator.is_host and self.c_nbytes >= 0 and settings().keeps:
            found = allocator._pool.take(_rounded(self.c_nbytes))
        if found is None:
            found = allocator.alloc(self.nbytes, self.options)
        # nothing is called from here on, which a signal's handler could raise in
        self._allocator, self._memory = allocator, found
        allocator.c_used[0] += self.c_nbytes
        return 0

    cdef int give_back(self) except -1:
        """Give the memory back."""
        cdef Shelves allocator = <Shelves>self._allocator
        cdef object memory = self._memory
        self._allocator = self._memory = None
        allocator.c_used[0] -= self.c_nbytes
        if allocator.is_host and self.options is None and settings().keeps \
                and (<HostMemory>memory).users == 0 and (<HostMemory>memory).writable:
            allocator._pool.give(memory, _rounded(self.c_nbytes), allocator.max_kept_nbytes)
        else:
            allocator.free(memory, self.nbytes, self.options)
        return 0

    def _take(self, Shelves allocator) -> None:
        self.take(allocator)

    def _give_back(self) -> None:
        if self._allocator is not None:
            self.give_back()
        self._memory = None


@cython.final
@cython.no_gc_clear
cdef class Arena:
    """Memory for what is born and dead in one run: at least `nbytes`, given back when this dies."""

    def __cinit__(self, Shelves allocator, Py_ssize_t nbytes):
        cdef object found = None
        if allocator.is_host and settings().keeps:
            found = allocator._arenas.take_at_least(_rounded(nbytes))
        if found is None:
            found = allocator.borrow(nbytes)
        self.allocator, self.memory, self.nbytes = allocator, found[0], found[1]
        allocator.c_used[0] += self.nbytes

    def __dealloc__(self):
        if self.memory is None or is_ending():
            return
        self.allocator.c_used[0] -= self.nbytes
        if self.allocator.is_host and settings().keeps:
            self.allocator._arenas.give(self.memory, self.nbytes, self.allocator.max_kept_nbytes)
        else:
            self.allocator.give_back(self.memory, self.nbytes)
