"""The loops: everything caffelite computes, and nothing else. Compiled once for each instruction set; see `call.pxd`.

`caffelite._kernels` picks one of the compiled modules at import and takes its table.
"""
cimport cython
from cpython.pycapsule cimport PyCapsule_New
from libc.float cimport DBL_MAX, DBL_MIN, FLT_MIN
from libc.math cimport copysign, copysignf, log, pow, sqrt, sqrtf
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from caffelite._kernels.call cimport *

ctypedef fused real:
    float
    double

cdef extern from "tile.h" nogil:
    enum:
        LANES_OF_float, LANES_OF_double, READS_LANES
        TILE_ROWS, FEW_ROWS, COLUMNS_float, COLUMNS_double, BLOCK_K, BLOCK_ROWS, BLOCK_COLUMNS
    ctypedef struct Strip:
        Py_ssize_t rows, columns, k, a_row, a_k, b_k, b_column, y_row, mask_row
        const void* a
        const void* b
        void* y
        bint resume, accumulate, relu
        const void* bias
        const void* row_bias
        const void* mask
    char packed_b[]
    void strip_float(const Strip* strip)
    void strip_double(const Strip* strip)
    void transpose_float(float* y, Py_ssize_t stride_y, const float* x, Py_ssize_t stride_x, int rows,
                         Py_ssize_t columns)
    void transpose_double(double* y, Py_ssize_t stride_y, const double* x, Py_ssize_t stride_x, int rows,
                          Py_ssize_t columns)

include "elementary.pxi"
include "elementwise.pxi"
include "matmul.pxi"
include "reduction.pxi"
include "softmax.pxi"
include "loss.pxi"
include "update.pxi"
include "indexing.pxi"
include "batches.pxi"

cdef Loops table
table.elementwise = [<Loop> elementwise[float], <Loop> elementwise[double]]
table.convert = [<Loop> convert[float], <Loop> convert[double], <Loop> convert[int64_t]]
table.matmul = [<Loop> matmul[float], <Loop> matmul[double]]
table.matmul_stack = [<Loop> matmul_stack[float], <Loop> matmul_stack[double]]
table.sum = [<Loop> sum[float], <Loop> sum[double]]
table.extreme = [<Loop> extreme[float], <Loop> extreme[double]]
table.extreme_grad = [<Loop> extreme_grad[float], <Loop> extreme_grad[double]]
table.all_finite = [<Loop> all_finite[float], <Loop> all_finite[double]]
table.softmax = [<Loop> softmax[float], <Loop> softmax[double]]
table.softmax_grad = [<Loop> softmax_grad[float], <Loop> softmax_grad[double]]
table.log_softmax = [<Loop> log_softmax[float], <Loop> log_softmax[double]]
table.log_softmax_grad = [<Loop> log_softmax_grad[float], <Loop> log_softmax_grad[double]]
table.softmax_loss = [<Loop> softmax_loss[float], <Loop> softmax_loss[double]]
table.softmax_loss_grad = [<Loop> softmax_loss_grad[float], <Loop> softmax_loss_grad[double]]
table.take_grad = [<Loop> take_grad[float], <Loop> take_grad[double]]
table.sgd = [<Loop> sgd[float], <Loop> sgd[double]]
table.adam = [<Loop> adam[float], <Loop> adam[double]]
table.add_mean = [<Loop> add_mean[float], <Loop> add_mean[double]]
table.add_correct = [<Loop> add_correct[float], <Loop> add_correct[double]]
table.add_weighted_mean = [<Loop> add_weighted_mean[float], <Loop> add_weighted_mean[double]]
table.check_labels = check_labels
table.count_steps = count_steps
table.shuffle = shuffle
table.ravel_index = ravel_index
table.take = take
table.take_batch = take_batch
table.put_batch = put_batch
table.advance = advance
table.longest_accumulated = BLOCK_K


def loops():
    """The table of this instruction set's loops, as a capsule for `border`."""
    return PyCapsule_New(&table, "caffelite.loops", NULL)
