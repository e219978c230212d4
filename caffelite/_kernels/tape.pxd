cimport numpy as cnp

from caffelite._kernels.call cimport Call


cdef enum:
    NUMPY_MAX_DIMS = 64


cdef class Kernel:
    cdef Call call
    cdef readonly str name
    cdef readonly tuple arrays
    cdef readonly int reads, writes, constants
    cdef object otherwise
    cdef tuple checked


cdef int launch(str name, Call* call, int writes, int constants, y, a=*, b=*, c=*, d=*) except -1
cdef cnp.ndarray empty(int ndim, cnp.npy_intp* shape, cnp.dtype dtype)
