from caffelite._kernels.call cimport *


cdef class Kernel:
    cdef readonly str name
    cdef readonly str loops               # the name its loops are published by
    cdef readonly Op op                   # what it has an elementwise loop compute; 0 where it is not elementwise
    cdef readonly int writes, updates     # bit i: operand i is written; is read before, too
    cdef readonly int checked             # the operand that it is about when a call stops the step; −1 where none can
    cdef readonly bint takes_epilogue     # on runs of its output
    cdef readonly bint is_product         # it is the matrix product: an elementwise call may be its epilogue
    cdef readonly double work             # of one element, usually
    cdef Loop loop[3]                     # for float32, or the only type; for float64; for int64
