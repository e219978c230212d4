"""Parts of the softmax that other files use: the exponentials of rows of numbers, and their sums."""
from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.math cimport fast_exp


cdef enum:
    ROWS_AT_A_TIME = 64                   # this many rows go through all steps while they are in cache


# q[i, j] = exp(s[i, j] − m[i]),  total[i] = Σⱼ q[i, j]
# with m[i] the largest number of the row: no exponential overflows, and no total is 0.
cdef inline void exponentials(real* q, const real* s, Py_ssize_t n, Py_ssize_t C,
                              real* m, double* total) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef real largest
    cdef double row_total
    for i in range(n):
        largest = s[i * C]
        for j in range(1, C):
            largest = s[i * C + j] if s[i * C + j] > largest else largest
        for j in range(C):
            q[i * C + j] = s[i * C + j] - largest
        m[i] = largest
    for j in range(n * C):
        q[j] = fast_exp(q[j])
    for i in range(n):
        row_total = 0
        for j in range(C):
            row_total += q[i * C + j]
        total[i] = row_total
