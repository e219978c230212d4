# Products with rows in which nearly all numbers are 0. A SparseRow (sparse.h) points to the other numbers and their
# columns. This memory belongs to others and may change, so each use checks the columns: one out of range stops the
# step.

from caffelite._kernels.loops.elementwise cimport apply_epilogue
from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.indexing cimport clear_columns, clear_rows, list_row

cdef extern from "loops/sparse.h" nogil:
    ctypedef struct SparseRow:
        const void* values
        const int32_t* columns
        Py_ssize_t count
    # y, b, bias, w and dy are float* or double*.
    bint sparse_row_times(void* y, SparseRow row, const void* b, Py_ssize_t b_row, Py_ssize_t k, const void* bias,
                          Py_ssize_t n)
    bint add_sparse_row(void* w, Py_ssize_t w_row, Py_ssize_t k, SparseRow row, const void* dy, Py_ssize_t n)


# y[i] = Σₖ value[k] · b[column[k]] (+ bias) over the numbers of row i in their order, then the epilogue, if any.
#   size     0 N, 1 K
#   operand  0 y, 1 rows, 2 b (rows stride 0 apart), 3 bias
#   parts    the rows
cdef int sparse_matmul(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const SparseRow* rows = <const SparseRow*> call.operand[1].data
    cdef const real* b = <const real*> call.operand[2].data
    cdef const real* bias = <const real*> call.operand[3].data
    cdef Py_ssize_t N = call.size[0], K = call.size[1], b_row = call.operand[2].stride[0], i
    for i in range(begin, end):
        if not sparse_row_times(y + i * N, rows[i], b, b_row, K, bias, N):
            return OUT_OF_RANGE
        apply_epilogue(y + i * N, call, N)
    return CONTINUE


# dw[column[k]] += value[k] · dy[i] over the numbers of all rows in their order. dw is 0 at first unless accumulating.
#   size     0 N, 1 K, 2 rows
#   operand  0 dw (K, N; contiguous), 1 rows, 2 dy (rows stride 0 apart)
#   parts    the cache lines of a row of dw
cdef int sparse_matmul_grad(real* dw, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const SparseRow* rows = <const SparseRow*> call.operand[1].data
    cdef const real* dy = <const real*> call.operand[2].data
    cdef Py_ssize_t N = call.size[0], K = call.size[1], dy_row = call.operand[2].stride[0], i
    cdef Py_ssize_t line = LINE // <Py_ssize_t> sizeof(real)
    begin, end = begin * line, min(end * line, N)
    if not call.accumulate:
        clear_columns(dw, K, N, begin, end)
    for i in range(call.size[2]):
        if not add_sparse_row(dw + begin, N, K, rows[i], dy + i * dy_row + begin, end - begin):
            return OUT_OF_RANGE
    return CONTINUE


# y[i, column[k]] += value[k]; all other elements are 0.
#   size     0 N
#   operand  0 y (contiguous), 1 rows
#   parts    the rows
cdef int sparse_to_dense(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const SparseRow* rows = <const SparseRow*> call.operand[1].data
    cdef Py_ssize_t N = call.size[0], i, k
    cdef size_t column
    memset(y + begin * N, 0, (end - begin) * N * sizeof(real))
    for i in range(begin, end):
        for k in range(rows[i].count):
            column = <uint32_t> rows[i].columns[k]
            if column >= <size_t> N:
                return OUT_OF_RANGE
            y[i * N + column] += (<const real*> rows[i].values)[k]
    return CONTINUE


# Like use_rows, with the columns of the sparse rows as the rows of x. If they are more than a quarter of all rows, all
# rows are listed, because then a loop without the list is faster.
#   size     0 rows of x, 1 elements a row, 2 sparse rows
#   operand  0 x, 1 the list (int64), 2 the sparse rows
#   parts    1
cdef int use_columns(real* x, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef int64_t* used = <int64_t*> call.operand[1].data
    cdef const SparseRow* rows = <const SparseRow*> call.operand[2].data
    cdef Py_ssize_t n = call.size[0], m, i, k
    cdef int stop = CONTINUE
    cdef size_t column
    if not call.accumulate:
        clear_rows(x, used, n, call.size[1])
    m = used[0]
    for i in range(call.size[2]):
        for k in range(rows[i].count):
            column = <uint32_t> rows[i].columns[k]
            if column < <size_t> n:
                m = list_row(used, m, n, column)
            else:
                stop = OUT_OF_RANGE
        if 4 * m > n:
            m = n
            break
    used[0] = m
    return stop


include "../generated/publish_sparse.pxi"
