"""Sums of a row of numbers, every addition in float64."""
from caffelite._kernels.loops.family cimport *

cdef extern from "loops/sums.h" nogil:
    double sum_of_row_float(const float* x, Py_ssize_t n)
    double sum_of_row_double(const double* x, Py_ssize_t n)
    double squares_of_row_float(const float* x, Py_ssize_t n, double m)
    double squares_of_row_double(const double* x, Py_ssize_t n, double m)
    void deviations_of_row_float(const float* x, Py_ssize_t n, double origin, double* sums)
    void deviations_of_row_double(const double* x, Py_ssize_t n, double origin, double* sums)


# Σⱼ x[j], every addition in float64
cdef inline double exact_sum(const real* x, Py_ssize_t n) noexcept nogil:
    if real is float:
        return sum_of_row_float(x, n)
    else:
        return sum_of_row_double(x, n)


# Σⱼ (x[j] − m)²
cdef inline double squares_of_row(const real* x, Py_ssize_t n, double m) noexcept nogil:
    if real is float:
        return squares_of_row_float(x, n, m)
    else:
        return squares_of_row_double(x, n, m)


# sums[0] = Σⱼ (x[j] − origin),  sums[1] = Σⱼ (x[j] − origin)²
cdef inline void deviations_of_row(const real* x, Py_ssize_t n, double origin, double* sums) noexcept nogil:
    if real is float:
        deviations_of_row_float(x, n, origin, sums)
    else:
        deviations_of_row_double(x, n, origin, sums)
