"""Sums of a row of numbers, every addition in float64."""
from caffelite._kernels.loops.family cimport *

cdef extern from "loops/sums.h" nogil:
    double sum_of_row_float(const float* x, Py_ssize_t n)
    double sum_of_row_double(const double* x, Py_ssize_t n)


# Σⱼ x[j], every addition in float64
cdef inline double exact_sum(const real* x, Py_ssize_t n) noexcept nogil:
    if real is float:
        return sum_of_row_float(x, n)
    else:
        return sum_of_row_double(x, n)
