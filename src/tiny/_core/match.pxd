from cpython.ref cimport PyObject
from tiny._core.graph cimport Node

# A right-hand side in C: the captures it asked for, in its own order, borrowed; None: does not
# apply. It may raise.
ctypedef Node (*native_function)(PyObject **captures)

cdef class NativeRule:
    cdef native_function c_function
    cdef readonly str name
    cdef readonly tuple names     # of the captures, at most 12

cdef NativeRule native_rule(str name, tuple names, native_function function)

cdef class PatternMatcher:
    cdef readonly tuple tables    # groups of rules, in order
    cdef void *c_entries[80]      # by root op; see Entry in match.pyx
    cdef int c_counts[80]
    cdef void *c_block
    cdef object c_sums            # sums with other matchers, by id, while they live
    cdef object __weakref__
    cdef int _join(self, tuple tables) except -1

# The first rule that applies to the node: what it gives, or None
cdef Node rewrite_node(PatternMatcher matcher, Node node, object ctx)
cdef Node rewrite_graph(Node root, PatternMatcher matcher, PatternMatcher before, object ctx,
                        bint walk, bint enter_calls, object name)
