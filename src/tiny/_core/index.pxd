from tiny._core.graph cimport Node

# (source index, validity), see index.pyx
cdef tuple moved(int op, object arg, tuple src_shape, tuple out_shape, tuple idx, Node valid)
