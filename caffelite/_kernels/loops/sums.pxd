"""Sums in float64, of rows and of columns of numbers."""
from caffelite._kernels.loops.family cimport *

cdef extern from "loops/sums.h" nogil:
    double sum_of_row(const void* x, Py_ssize_t n)     # x is float* or double*
    # sums[i] = Σₖ x[k · row + i] for i < columns; sums have room for whole vectors
    void sums_of_columns(const void* x, Py_ssize_t n, Py_ssize_t row, int columns, double* sums)
    double any_squares_of_row "squares_of_row"(const void* x, Py_ssize_t n, double m)
    # sums[0] = Σⱼ (x[j] − origin),  sums[1] = Σⱼ (x[j] − origin)²
    void deviations_of_row(const void* x, Py_ssize_t n, double origin, double* sums)
    # Σⱼ x[j]²
    double squares(const void* x, Py_ssize_t n)


# Σⱼ x[j], every addition in float64
cdef inline double exact_sum(const real* x, Py_ssize_t n) noexcept nogil:
    return sum_of_row(x, n)


# Σⱼ (x[j] − m)²
cdef inline double squares_of_row(const real* x, Py_ssize_t n, double m) noexcept nogil:
    return any_squares_of_row(x, n, m)
