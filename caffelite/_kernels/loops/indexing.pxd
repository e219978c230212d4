"""Parts of indexing that other files use: rows by their numbers, and the list of the used rows."""
from caffelite._kernels.loops.elementwise cimport copy_vectors
from caffelite._kernels.loops.family cimport *


cdef inline void_apart take_rows(char* out, const char* rows, const int64_t* order, Py_ssize_t n,
                                 Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t i
    if n == sizeof(int64_t):              # a label or a point: an inline copy is faster than a call
        for i in range(begin, end):
            memcpy(out + i * sizeof(int64_t), rows + order[i] * sizeof(int64_t), sizeof(int64_t))
    elif n == sizeof(float):              # a weight
        for i in range(begin, end):
            memcpy(out + i * sizeof(float), rows + order[i] * sizeof(float), sizeof(float))
    elif n == 32:
        for i in range(begin, end):
            memcpy(out + i * 32, rows + order[i] * 32, 32)
    elif n == 64:
        for i in range(begin, end):
            memcpy(out + i * 64, rows + order[i] * 64, 64)
    elif n == 128:
        for i in range(begin, end):
            memcpy(out + i * 128, rows + order[i] * 128, 128)
    elif 32 < n < 128:
        for i in range(begin, end):
            copy_vectors(out + i * n, rows + order[i] * n, n)
    else:
        for i in range(begin, end):
            memcpy(out + i * n, rows + order[i] * n, n)


# Sets the columns begin … end − 1 of x (rows, n) to 0.
cdef inline void clear_columns(real* x, Py_ssize_t rows, Py_ssize_t n, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t i
    if end - begin == n:
        memset(x, 0, rows * n * sizeof(real))
    else:
        for i in range(rows):
            memset(x + i * n + begin, 0, (end - begin) * sizeof(real))


# Sets the listed rows of x (rows, n) to 0, and empties the list.
cdef inline void clear_rows(real* x, int64_t* used, Py_ssize_t rows, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    if used[0] == rows:
        memset(x, 0, rows * n * sizeof(real))
    else:
        for i in range(used[0]):
            memset(x + used[1 + i] * n, 0, n * sizeof(real))
    used[0] = 0


# Lists row k, unless it is listed, and returns the new count of listed rows; the old one is m. (There is no branch on
# whether k is listed, because the processor could not predict it.)
cdef inline Py_ssize_t list_row(int64_t* used, Py_ssize_t m, Py_ssize_t rows, int64_t k) noexcept nogil:
    cdef int64_t* listed = used + 1
    cdef int64_t* place = listed + rows
    cdef int64_t at = place[k]
    cdef bint is_new = (at >= m) | (listed[at] != k)
    if m == rows:
        return m
    listed[m] = k
    place[k] = m if is_new else at
    return m + is_new
