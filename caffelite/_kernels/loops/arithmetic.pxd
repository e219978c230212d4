"""Infinity, NaN, and arithmetic that has to be the same in every loop."""
from caffelite._kernels.loops.family cimport *

cdef extern from * nogil:
    """
    __attribute__((unused)) static const double INFINITE = __builtin_inf(), NOT_A_NUMBER = __builtin_nan("");
    """
    const double INFINITE, NOT_A_NUMBER

cdef extern from "loops/fma.h" nogil:
    double multiply_add(double a, double b, double c)
    float sum_of_products_float(float a, float b, float c, float d)
    double sum_of_products_double(double a, double b, double c, double d)


# a b + c d, with the same rounding in every loop
cdef inline real sum_of_products(real a, real b, real c, real d) noexcept nogil:
    if real is float:
        return sum_of_products_float(a, b, c, d)
    else:
        return sum_of_products_double(a, b, c, d)


# √x, with the processor's instruction
cdef inline real root(real x) noexcept nogil:
    if real is float:
        return sqrtf(x)
    else:
        return sqrt(x)
