from caffelite._kernels.call cimport *


cdef class Kernel:
    cdef readonly str name
    cdef readonly str loops               # the name under which its loops are published
    cdef readonly Op op                   # the operation of the elementwise loop for it; NOTHING for other kernels
    cdef readonly int writes, updates     # bit i: it writes operand i; it also reads the old values
    cdef readonly int checked             # the operand whose values make a call stop the step; −1 if no call stops
    cdef readonly bint takes_epilogue     # an elementwise call can be fused into it
    cdef readonly bint is_product         # the matrix product, which also takes an epilogue
    cdef readonly double work             # usually of one element
    cdef Loop loop[3]                     # for float32 or the only type, for float64, for int64
