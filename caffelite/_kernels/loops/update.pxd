"""The used rows of a matrix, which other families of loops need too."""
from caffelite._kernels.loops.family cimport *


# The list of used rows. NULL if there is no list, or if all rows of a matrix of this many elements are used.
cdef inline const int64_t* get_used_rows(const Call* call, Py_ssize_t elements) noexcept nogil:
    cdef const int64_t* used = <const int64_t*> call.operand[USED].data
    return <const int64_t*> NULL if used == NULL or used[0] * call.size[ROW] == elements else used


# Run the call's own loop on the elements of the used rows only. Here the parts are shares of the list of used rows.
cdef inline int_apart run_used_rows(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Call row_call = call[0]
    cdef const int64_t* used = <const int64_t*> call.operand[USED].data
    cdef Py_ssize_t width = call.size[ROW], j
    cdef int stop = CONTINUE
    row_call.operand[USED].data = NULL
    for j in range(used[0] * begin // call.parts, used[0] * end // call.parts):
        stop |= call.loop(out, &row_call, used[1 + j] * width, (used[1 + j] + 1) * width)
    return stop
