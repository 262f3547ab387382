"""Checked 64-bit arithmetic, floor division, and tuples without reference counting."""

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t

cdef extern from "Python.h":
    PyObject *borrowed_item "PyTuple_GET_ITEM"(PyObject *t, Py_ssize_t i) noexcept
    Py_ssize_t length_of "PyTuple_GET_SIZE"(PyObject *t) noexcept

cdef extern from *:
    """
    #ifndef TINY_ARITH
    #define TINY_ARITH
    #include <stdint.h>
    #if defined(_MSC_VER)
    #include <intrin.h>
    static int tiny_checked_add(int64_t a, int64_t b, int64_t *r) {
        *r = (int64_t)((uint64_t)a + (uint64_t)b); return ((a ^ *r) & (b ^ *r)) < 0; }
    static int tiny_checked_mul(int64_t a, int64_t b, int64_t *r) {
        int64_t high; *r = _mul128(a, b, &high); return high != (*r >> 63); }
    #else
    static inline int tiny_checked_add(int64_t a, int64_t b, int64_t *r) {
        return __builtin_add_overflow(a, b, r); }
    static inline int tiny_checked_mul(int64_t a, int64_t b, int64_t *r) {
        return __builtin_mul_overflow(a, b, r); }
    #endif
    static inline int64_t tiny_floor_div(int64_t a, int64_t b) {
        int64_t q = a / b; return q - ((a % b != 0) && ((a < 0) != (b < 0))); }
    static inline int64_t tiny_floor_mod(int64_t a, int64_t b) {
        int64_t r = a % b; return r + ((r != 0 && ((r < 0) != (b < 0))) ? b : 0); }
    #endif
    """
    bint add_overflows "tiny_checked_add"(int64_t a, int64_t b, int64_t *r) noexcept nogil
    bint mul_overflows "tiny_checked_mul"(int64_t a, int64_t b, int64_t *r) noexcept nogil
    int64_t floordiv "tiny_floor_div"(int64_t a, int64_t b) noexcept nogil
    int64_t floormod "tiny_floor_mod"(int64_t a, int64_t b) noexcept nogil
