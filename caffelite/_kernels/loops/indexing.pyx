# Indexing: rows by their numbers, and the gradient.

from caffelite._kernels.loops.elementwise cimport INNERMOST, is_one_row, locate, next_row, offset
from caffelite._kernels.loops.family cimport *

cdef extern from "loops/gather.h" nogil:
    # x and y are float* or double*.
    void add_rows(void* x, Py_ssize_t x_row, const void* y, Py_ssize_t y_row, const int64_t* order, Py_ssize_t rows,
                  Py_ssize_t n)


# y = index, or y · n + index when accumulating. So one call for each axis gives positions in C order. A negative index
# counts from the end. Stops with OUT_OF_RANGE at an index that is not in least … n − 1.
#   size, parts  as for elementwise
#   operand      0 y (int64), 1 index (int64)
#   scalar       0 n, the length of the axis, 1 least: −n, or 0 if no index may be negative
cdef int ravel_index(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* y = &call.operand[0]
    cdef const Operand* index = &call.operand[1]
    cdef Py_ssize_t m = call.size[INNERMOST], stride = index.stride[INNERMOST], y_stride = y.stride[INNERMOST], j, _row
    cdef Py_ssize_t at[MAX_DIMS]
    cdef int64_t n = <int64_t> call.scalar[0], lowest = <int64_t> call.scalar[1], k
    cdef const int64_t* numbers
    cdef int64_t* places
    if is_one_row(call):
        locate(call, 0, at)
        at[INNERMOST] = begin
        m, begin, end = end - begin, 0, 1
    else:
        locate(call, begin, at)
    for _row in range(begin, end):
        numbers, places = <const int64_t*> index.data + offset(index, at), <int64_t*> out + offset(y, at)
        for j in range(m):
            k = numbers[j * stride]
            if k < lowest or k >= n:
                return OUT_OF_RANGE
            places[j * y_stride] = (places[j * y_stride] * n if call.accumulate else 0) + (k + n if k < 0 else k)
        next_row(call, at)
    return CONTINUE


# y[i] = rows[order[i]], rows as bytes. Each thread first checks all of `order`, before any thread writes. Stops with
# OUT_OF_RANGE at a number that is not in 0 … n − 1.
#   size     0 n, 1 bytes a row
#   operand  0 y, 1 rows, 2 order (int64; all contiguous)
#   parts    the rows of y
cdef int take(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const int64_t* order = <const int64_t*> call.operand[2].data
    if not all_in_range(order, call.parts, call.size[0]):
        return OUT_OF_RANGE
    take_rows(<char*> out, call.operand[1].data, order, call.size[1], begin, end)
    return CONTINUE


# dx[order[i]] += dy[i], in the order of i. dx is 0 at first unless accumulating. Stops like `take`, before it writes.
#   size     0 rows of dx, 1 elements a row, 2 rows of dy
#   operand  0 dx (contiguous), 1 dy (rows stride 0 apart), 2 order (int64, contiguous)
#   parts    the cache lines of a row
cdef int take_grad(real* dx, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* dy = <const real*> call.operand[1].data
    cdef const int64_t* order = <const int64_t*> call.operand[2].data
    cdef Py_ssize_t rows = call.size[0], n = call.size[1], stride = call.operand[1].stride[0]
    cdef Py_ssize_t line = LINE // <Py_ssize_t> sizeof(real), width
    if not all_in_range(order, call.size[2], rows):
        return OUT_OF_RANGE
    begin, end = begin * line, min(end * line, n)
    width = end - begin
    if not call.accumulate:
        clear_columns(dx, rows, n, begin, end)
    add_rows(dx + begin, n, dy + begin, stride, order, call.size[2], width)
    return CONTINUE


cdef inline bint all_in_range(const int64_t* order, Py_ssize_t m, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef bint has_invalid = False
    for i in range(m):
        has_invalid |= (order[i] < 0) | (order[i] >= n)
    return not has_invalid


# Adds the rows in `order` to the list of used rows of x (described in bindings/indexing.pxi). Unless accumulating, the
# rows listed before are first set to 0, and the list is emptied. Stops like `take`, before it writes.
#   size     0 rows of x, 1 elements a row, 2 entries of `order`
#   operand  0 x, 1 the list (int64), 2 order (int64; all contiguous)
#   parts    1
cdef int use_rows(real* x, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef int64_t* used = <int64_t*> call.operand[1].data
    cdef const int64_t* order = <const int64_t*> call.operand[2].data
    cdef Py_ssize_t m, i
    if not all_in_range(order, call.size[2], call.size[0]):
        return OUT_OF_RANGE
    if not call.accumulate:
        clear_rows(x, used, call.size[0], call.size[1])
    m = used[0]
    for i in range(call.size[2]):
        m = list_row(used, m, call.size[0], order[i])
    used[0] = m
    return CONTINUE


# Lists all rows as used.
#   size     0 rows
#   operand  0 the list
#   parts    1
cdef int use_all_rows(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    (<int64_t*> out)[0] = call.size[0]
    return CONTINUE


include "../generated/publish_indexing.pxi"
