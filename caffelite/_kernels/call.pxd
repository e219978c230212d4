"""What a kernel call is: the one structure that borders fill in and loops read.

Design
------
(a) A call is a struct: the loop's function pointer, where its operands lie, sizes, scalars. An eager call keeps it on
    the stack; a recorded one keeps a copy in a `Kernel`, which can be run again without Python.
(b) A loop computes the parts `begin <= part < end` of its output and nothing else. Whoever runs the call may cut the
    parts among threads in any way: outputs are split, sums never are, so any number of threads gives the same bits.
(c) A loop allocates nothing and raises nothing. It returns 0, or a reason for the step to stop.
(d) Operand 0 is the output; a loop gets it typed, as its first argument, and that type selects float32 or float64.
(e) Loops are compiled once for each instruction set, and reached through a `Loops` table; borders are compiled once.
(f) `work` says how long a call takes on one thread: as long as about so many operations of a matrix product.
"""

from libc.stdint cimport int64_t


cdef enum:
    MAX_OPERANDS = 5
    MAX_DIMS = 4


cdef enum Stop:                           # why a loop wants the step to stop
    CONTINUE = 0
    NOT_FINITE = 1
    OUT_OF_RANGE = 2
    PYTHON_ERROR = 3                      # a call into Python, between kernels, raised


cdef enum Op:                             # what an elementwise loop computes; see elementwise.pxi
    COPY
    NEGATIVE
    RELU
    ADD
    SUBTRACT
    MULTIPLY
    DIVIDE
    MAXIMUM
    MINIMUM
    EQUAL
    PUT_WHERE
    POWER
    RELU_GRAD
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


ctypedef int (*Loop)(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil

cdef struct Call:
    Loop loop
    Operand operand[MAX_OPERANDS]
    Py_ssize_t size[MAX_DIMS]             # a loop says what they are
    Py_ssize_t parts                      # independent pieces of output
    double work                           # to decide on threads: see (f)
    double scalar
    Op op                                 # for elementwise loops
    Type source                           # for convert: the type of operand 1
    bint accumulate                       # read what is written: for matmul and sum, add to it
    bint relu                             # for matmul: max(y, 0) is stored


cdef struct Mean:                         # of a quantity, as it adds up over an epoch
    double total                          # Σ weight · value
    double weight                         # Σ weight


cdef struct Cursor:                       # where a recorded step finds its batch, and what it measures goes
    char** columns                        # the rows of each column: inputs, targets, weights; and room for outputs
    const int64_t* order                  # of the rows
    Py_ssize_t position                   # in that order: the first row of the batch
    Py_ssize_t measured                   # how many rows of the epoch have been measured
    Mean* sums                            # one for each quantity


cdef struct Loops:                        # one loop for float32 [0], one for float64 [1]
    Loop elementwise[2]
    Loop convert[3]                       # to float32, float64, int64
    Loop matmul[2]
    Loop matmul_stack[2]
    Loop sum[2]
    Loop extreme[2]
    Loop extreme_grad[2]
    Loop all_finite[2]
    Loop softmax[2]
    Loop softmax_grad[2]
    Loop log_softmax[2]
    Loop log_softmax_grad[2]
    Loop softmax_loss[2]
    Loop softmax_loss_grad[2]
    Loop take_grad[2]
    Loop sgd[2]
    Loop adam[2]
    Loop add_mean[2]
    Loop add_correct[2]
    Loop add_weighted_mean[2]
    Loop check_labels                     # these know one type only
    Loop count_steps
    Loop shuffle
    Loop ravel_index
    Loop take
    Loop take_batch
    Loop put_batch
    Loop advance
    Py_ssize_t longest_accumulated        # matmul accumulates sums of at most this many products
