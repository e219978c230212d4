"""What other files use of the updates: the used rows of a matrix."""
from caffelite._kernels.loops.family cimport *


# Their list, where there is one and these are not all rows of so many elements; else NULL.
cdef inline const int64_t* some_rows(const Call* call, Py_ssize_t elements) noexcept nogil:
    cdef const int64_t* used = <const int64_t*> call.operand[USED].data
    return NULL if used == NULL or used[0] * call.size[ROW] == elements else used


# What the call's own loop does to elements, to those of the rows that are used. Parts are shares of the list of them.
cdef inline int_apart each_used_row(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Call of_row = call[0]
    cdef const int64_t* used = <const int64_t*> call.operand[USED].data
    cdef Py_ssize_t width = call.size[ROW], j
    cdef int stop = CONTINUE
    of_row.operand[USED].data = NULL
    for j in range(used[0] * begin // call.parts, used[0] * end // call.parts):
        stop |= call.loop(out, &of_row, used[1 + j] * width, (used[1 + j] + 1) * width)
    return stop
