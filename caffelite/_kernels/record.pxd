cimport numpy as cnp

from caffelite._kernels.call cimport Call
from caffelite._kernels.kernel cimport Kernel


cdef enum:
    NUMPY_MAX_DIMS = 64


cdef class RecordedCall:
    cdef Call call
    cdef readonly Kernel kernel
    cdef readonly str name
    cdef readonly tuple arrays
    cdef readonly int reads, writes, constants
    cdef readonly object line             # the user's, where the call reads what kernels have not made
    cdef object on_stop
    cdef tuple checked                    # dtype, shape and strides of the operand that a stop is about
    cdef dict numbers                     # by operand, the arrays that a binding made from numbers

    cdef RecordedCall with_strides(self, tuple y, str name)


cdef bint is_recording() noexcept nogil
cdef int note_operands(const Call* call) except -1
cdef RecordedCall record_call(const Call* call)
cdef object copy_values(const Call* call, int operand, cnp.dtype dtype, tuple shape, tuple strides)
cdef cnp.ndarray empty(int ndim, cnp.npy_intp* shape, cnp.dtype dtype)
cdef cnp.ndarray empty_strided(int ndim, cnp.npy_intp* shape, cnp.npy_intp* strides, cnp.dtype dtype)
