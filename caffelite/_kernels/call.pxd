"""Call: the one structure that bindings fill in and loops read.

Design
------
(a) A call is a struct: the loop's function pointer, the addresses of its operands, sizes, scalars. An eager call keeps
    it on the stack. A recorded call keeps a copy in a `RecordedCall`, which can run again without Python.
(b) A loop computes the parts `begin <= part < end` of its output and nothing else. The caller may divide the parts
    among threads in any way. Outputs are divided, sums never are, so any number of threads gives the same bits.
(c) A loop allocates nothing and raises nothing. It returns 0, or a reason to stop the step.
(d) Operand 0 is the output. A loop gets it as its typed first argument, which selects float32 or float64.
(e) Loops are compiled once for each instruction set, and found by name. Borders are compiled once. A `Kernel`
    (kernel.pxd) holds the facts that are the same for all calls of a kernel.
(f) `work` tells how long a call takes on one thread, in operations of a matrix product that takes about as long.
"""
from libc.stdint cimport int64_t


cdef enum:
    MAX_OPERANDS = 12
    MAX_DIMS = 4
    MAX_SIZES = 8
    LINE = 64                             # bytes of a cache line
    USED = 5                              # the operand that lists the used rows, if a call is restricted to them
    ROW = 4                               # the size that is the length of a row in such a call
    EPILOGUE = 8                          # the operands of an epilogue, its output and its inputs, begin here


cdef enum Stop:                           # why a loop stops the step
    CONTINUE = 0
    NOT_FINITE = 1
    OUT_OF_RANGE = 2
    PYTHON_ERROR = 3                      # a call of Python, between two kernels, raised


# Op, the operation of an elementwise loop, from the table operations.py
include "generated/ops.pxi"


cdef enum Type:                           # the types of `convert`
    BOOL
    INT8
    INT16
    INT32
    INT64
    UINT8
    UINT16
    UINT32
    UINT64
    FLOAT32
    FLOAT64


cdef struct Operand:
    char* data
    Py_ssize_t stride[MAX_DIMS]           # in elements; 0 repeats one element along that axis
    void* array                           # the ndarray, valid while a binding holds it


cdef struct Window:                       # the windows along one axis of images
    Py_ssize_t length                     # of the axis
    Py_ssize_t count                      # the number of windows
    Py_ssize_t kernel, stride, padding, dilation


ctypedef int (*Loop)(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil

cdef struct Call:                         # all zero unless set
    Loop loop
    Py_ssize_t parts                      # independent pieces of output
    double work                           # to decide on threads: see (f)
    double flops                          # of a call that is mostly products
    Py_ssize_t size[MAX_SIZES]            # each loop defines the meaning of its sizes
    double scalar[2]                      # and of its scalars
    double epilogue_scalar[2]             # the scalars of its epilogue
    Window window[2]                      # of convolutions and pools: along rows and along columns of images
    Op op                                 # the operation of an elementwise loop, of an epilogue, or of a loss
    Type source                           # for convert: the type of operand 1
    bint accumulate                       # add to the values in the output
    bint rounds                           # a product rounds its operands to bfloat16
    int constants                         # bit i is set if the binding made operand i from a number
    void* kernel                          # the `Kernel` of this call
    Operand operand[MAX_OPERANDS]


cdef struct Mean:                         # the mean of a quantity, summed up over an epoch
    double total                          # Σ weight · value
    double weight                         # Σ weight


cdef struct Cursor:                       # the places where a recorded step reads its batch and writes its results
    char** columns                        # the rows of each column: inputs, targets, weights, and memory for outputs
    const int64_t* order                  # the order of the rows
    Py_ssize_t position                   # the first row of the batch, as a position in that order
    Py_ssize_t measured                   # how many rows of the epoch are measured
    Mean* sums                            # one for each quantity
