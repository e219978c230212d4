"""The loops: everything caffelite computes, and nothing else. Compiled once for each instruction set; see `call.pxd`.

`caffelite._kernels` picks one of the compiled modules at import. A file of loops/ publishes its loops by name, where
the kernels of border/ find theirs.
"""
cimport cython
from libc.float cimport DBL_MAX, DBL_MIN, FLT_MAX, FLT_MIN
from libc.math cimport hypot, log, pow, rint, sqrt, sqrtf
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from caffelite._kernels.call cimport *

ctypedef fused real:
    float
    double

cdef extern from *:
    """
    #define VOID_APART __attribute__((noinline)) void
    """
    ctypedef void void_apart "VOID_APART"  # of a function that is not to become part of others, and widen their frames

cdef extern from "loops/tile.h" nogil:
    enum:
        LANES_OF_float, LANES_OF_double, READS_LANES
        TILE_ROWS, FEW_ROWS, COLUMNS_float, COLUMNS_double, BLOCK_K, BLOCK_ROWS, BLOCK_COLUMNS
    ctypedef struct Strip:
        Py_ssize_t rows, columns, k, runs, a_row, a_k, b_k, b_column, y_row, mask_row
        const Py_ssize_t* a_run
        const Py_ssize_t* b_run
        const void* a
        const void* b
        void* y
        bint resume, accumulate, relu
        const void* bias
        const void* row_bias
        const void* mask
    char packed_a[]
    char packed_b[]
    void strip_float(const Strip* strip)
    void strip_double(const Strip* strip)
    void strip_of_runs_float(const Strip* strip)
    void strip_of_runs_double(const Strip* strip)
    void transpose_float(float* y, Py_ssize_t stride_y, const float* x, Py_ssize_t stride_x, int rows,
                         Py_ssize_t columns)
    void transpose_double(double* y, Py_ssize_t stride_y, const double* x, Py_ssize_t stride_x, int rows,
                          Py_ssize_t columns)

cdef extern from "loops/dots.h" nogil:
    ctypedef struct Dots:
        Py_ssize_t rows, pixels, columns, a_rows, a_row, a_down, a_along, b_rows, b_down, b_along, sum_row, sum_j
        const void* a
        const void* b
        const Py_ssize_t* b_j
        void* sums
    void all_dots_float(const Dots* dots)
    void all_dots_double(const Dots* dots)
    float total_of_float(const float* lanes)
    double total_of_double(const double* lanes)

cdef extern from "loops/weighing.h" nogil:
    ctypedef struct Weighing:
        Py_ssize_t rows, taps, x_row, y_row
        const Py_ssize_t* x_at
        const Py_ssize_t* w_at
        const void* x
        const void* w
        const void* bias
        void* y
        int lanes
        bint same, resume
    void weigh_all_float(const Weighing* weighing)
    void weigh_all_double(const Weighing* weighing)

cdef extern from "loops/pooling.h" nogil:
    void largest_float(float* y, void* places, const float* x, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows,
                       Py_ssize_t columns, Py_ssize_t place, Py_ssize_t width, Py_ssize_t lanes)
    void largest_double(double* y, void* places, const double* x, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows,
                        Py_ssize_t columns, Py_ssize_t place, Py_ssize_t width, Py_ssize_t lanes)
    void largest_grad_float(float* dx, const float* dy, Py_ssize_t row, Py_ssize_t column, const void* places,
                            Py_ssize_t places_row, Py_ssize_t places_column, Py_ssize_t rows, Py_ssize_t columns,
                            Py_ssize_t place, Py_ssize_t lanes)
    void largest_grad_double(double* dx, const double* dy, Py_ssize_t row, Py_ssize_t column, const void* places,
                             Py_ssize_t places_row, Py_ssize_t places_column, Py_ssize_t rows, Py_ssize_t columns,
                             Py_ssize_t place, Py_ssize_t lanes)
    void sum_pixels_float(float* y, const float* x, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows,
                          Py_ssize_t columns, Py_ssize_t lanes, double factor)
    void sum_pixels_double(double* y, const double* x, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows,
                           Py_ssize_t columns, Py_ssize_t lanes, double factor)

cdef extern from "loops/rows.h" nogil:
    void add_rows_float(float* x, Py_ssize_t x_row, const float* y, Py_ssize_t y_row, const int64_t* order,
                        Py_ssize_t rows, Py_ssize_t n)
    void add_rows_double(double* x, Py_ssize_t x_row, const double* y, Py_ssize_t y_row, const int64_t* order,
                         Py_ssize_t rows, Py_ssize_t n)

cdef extern from "loops/sparse.h" nogil:
    ctypedef struct SparseRow:
        const void* values
        const int32_t* columns
        Py_ssize_t count
    bint sparse_row_times_float(float* y, SparseRow row, const float* b, Py_ssize_t b_row, Py_ssize_t k,
                                const float* bias, Py_ssize_t n)
    bint sparse_row_times_double(double* y, SparseRow row, const double* b, Py_ssize_t b_row, Py_ssize_t k,
                                 const double* bias, Py_ssize_t n)
    bint add_sparse_row_float(float* w, Py_ssize_t w_row, Py_ssize_t k, SparseRow row, const float* dy, Py_ssize_t n)
    bint add_sparse_row_double(double* w, Py_ssize_t w_row, Py_ssize_t k, SparseRow row, const double* dy,
                               Py_ssize_t n)

PUBLISHED = {}                            # the addresses of loops by name
STRIP_COLUMNS = COLUMNS_float             # a product computes so many columns of floats together
LONGEST_ACCUMULATED = BLOCK_K             # a product accumulates sums of at most so many terms


cdef object publish(str name, Loop first, Loop second=NULL, Loop third=NULL):
    """Offer a loop for float32 (or for its only type), for float64, for int64."""
    loops = [<Py_ssize_t> first, <Py_ssize_t> second, <Py_ssize_t> third]
    PUBLISHED[name] = [loop for loop in loops if loop]


include "loops/math.pxi"
include "loops/elementwise.pxi"
include "loops/conversion.pxi"
include "loops/matmul.pxi"
include "loops/convolution.pxi"
include "loops/reduction.pxi"
include "loops/softmax.pxi"
include "loops/loss.pxi"
include "loops/update.pxi"
include "loops/normalization.pxi"
include "loops/pooling.pxi"
include "loops/random.pxi"
include "loops/attention.pxi"
include "loops/augmentation.pxi"
include "loops/indexing.pxi"
include "loops/sparse.pxi"
include "loops/recurrent.pxi"
include "loops/batches.pxi"
