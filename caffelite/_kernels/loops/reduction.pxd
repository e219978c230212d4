"""Parts of the reductions that other files use: sums of a row of numbers."""
from caffelite._kernels.loops.family cimport *

cdef enum:
    LANES = 8                             # independent partial sums: no addition waits for another
    COLUMNS = 64                          # outputs summed together if the summed axis is not the innermost


cdef inline real sum_pairwise(const real* x, Py_ssize_t stride) noexcept nogil:
    return (((x[0] + x[stride]) + (x[2 * stride] + x[3 * stride]))
            + ((x[4 * stride] + x[5 * stride]) + (x[6 * stride] + x[7 * stride])))


cdef inline double_apart sum_contiguous(const real* x, Py_ssize_t n) noexcept nogil:
    cdef double lane[LANES]
    cdef Py_ssize_t i, j
    for j in range(LANES):
        lane[j] = 0
    for i in range(n // (8 * LANES)):
        for j in range(LANES):
            lane[j] += sum_pairwise(x + 8 * LANES * i + j, LANES)
    for i in range(n - n % (8 * LANES), n):
        lane[i % LANES] += x[i]
    lane[0] = ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]))
    return sum_in_float64(x, n, 1) if lane[0] - lane[0] != 0 else lane[0]


cdef inline double sum_in_float64(const real* x, Py_ssize_t n, Py_ssize_t stride) noexcept nogil:
    cdef double total = 0
    cdef Py_ssize_t i
    for i in range(n):
        total += x[i * stride]
    return total
