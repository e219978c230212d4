"""What a kernel call is: the one structure that borders fill in and loops read.

Design
------
(a) A call is a struct: the loop's function pointer, where its operands lie, sizes, scalars. An eager call keeps it on
    the stack; a recorded one keeps a copy in a `RecordedCall`, which can be run again without Python.
(b) A loop computes the parts `begin <= part < end` of its output and nothing else. Whoever runs the call may cut the
    parts among threads in any way: outputs are split, sums never are, so any number of threads gives the same bits.
(c) A loop allocates nothing and raises nothing. It returns 0, or a reason for the step to stop.
(d) Operand 0 is the output; a loop gets it typed, as its first argument, and that type selects float32 or float64.
(e) Loops are compiled once for each instruction set and published by name; borders are compiled once. What is true of
    all calls of a kernel stands once, in its `Kernel` (kernel.pxd).
(f) `work` says how long a call takes on one thread: as long as about so many operations of a matrix product.
"""
from libc.stdint cimport int64_t


cdef enum:
    MAX_OPERANDS = 12
    MAX_DIMS = 4
    MAX_SIZES = 8
    LINE = 64                             # bytes of a cache line
    USED = 5                              # the operand that lists the used rows of a matrix, where only they count …
    ROW = 4                               # … and the size that is a row's
    EPILOGUE = 8                          # an epilogue has its operands, output and inputs, from here on


cdef enum Stop:                           # why a loop wants the step to stop
    CONTINUE = 0
    NOT_FINITE = 1
    OUT_OF_RANGE = 2
    PYTHON_ERROR = 3                      # a call into Python, between kernels, raised


cdef enum Op:                             # what an elementwise loop computes; see loops/elementwise.pyx
    NOTHING = 0
    COPY
    NEGATIVE
    RELU
    RELU_GRAD
    LEAKY_RELU
    LEAKY_RELU_GRAD
    ELU
    ELU_GRAD
    ADD
    SUBTRACT
    MULTIPLY
    DIVIDE
    DIVIDE_GRAD
    MAXIMUM
    MINIMUM
    EQUAL
    WHERE
    CLIP
    CLIP_GRAD
    POWER
    POWER_GRAD_BASE
    POWER_GRAD_EXPONENT
    ABS
    ABS_GRAD
    SQRT
    SQRT_GRAD
    EXP
    LOG
    TANH
    TANH_GRAD
    SIGMOID
    SIGMOID_GRAD
    SILU
    SILU_GRAD
    MISH
    MISH_GRAD
    GELU
    GELU_TANH
    SOFTPLUS
    SOFTPLUS_GRAD
    PENALTY
    PENALTY_GRAD
    SQUARED_ERROR
    SQUARED_ERROR_GRAD
    ABSOLUTE_ERROR
    ABSOLUTE_ERROR_GRAD
    HUBER
    HUBER_GRAD
    CROSS_ENTROPY
    CROSS_ENTROPY_GRAD


cdef enum Type:                           # what can be converted
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
    void* array                           # the ndarray that it is, as long as a border holds it


cdef struct Window:                       # how windows lie along one axis of images
    Py_ssize_t length                     # of the axis
    Py_ssize_t count                      # how many windows
    Py_ssize_t kernel, stride, padding, dilation


ctypedef int (*Loop)(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil

cdef struct Call:                         # all zero where nothing is said
    Loop loop
    Py_ssize_t parts                      # independent pieces of output
    double work                           # to decide on threads: see (f)
    double flops                          # of what is mostly products
    Py_ssize_t size[MAX_SIZES]            # a loop says what they are
    double scalar[2]                      # likewise
    double epilogue_scalar[2]             # its epilogue's
    Window window[2]                      # of convolutions and pools: along rows and along columns of images
    Op op                                 # what an elementwise loop computes, a product's epilogue, or a loss element
    Type source                           # for convert: the type of operand 1
    bint accumulate                       # add to what the output holds
    int constants                         # bit i: operand i was made by the border, from a number
    void* kernel                          # the `Kernel` that this is a call of
    Operand operand[MAX_OPERANDS]


cdef struct Mean:                         # of a quantity, as it adds up over an epoch
    double total                          # Σ weight · value
    double weight                         # Σ weight


cdef struct Cursor:                       # where a recorded step finds its batch, and what it measures goes
    char** columns                        # the rows of each column: inputs, targets, weights; and room for outputs
    const int64_t* order                  # of the rows
    Py_ssize_t position                   # in that order: the first row of the batch
    Py_ssize_t measured                   # how many rows of the epoch have been measured
    Mean* sums                            # one for each quantity
