# exp, log, tanh, sigmoid of one number, written so that a loop over them becomes vector instructions: no branches, no
# tables, integers only to take floating-point numbers apart. Largest errors, in units in the last place of the result
# (benchmarks/elementary.py measures them, over all float32):
#
#                 float32   float64
#   exp            1.0       1.0
#   log            1.0       1.0
#   tanh           2.0       2.0
#   sigmoid        2.0       2.0
#
# The method is the usual one: bring the argument into a small range, and take as many terms of a series there as the
# type has digits for. (J.-M. Muller, "Elementary Functions", 3rd ed., 2016, chapters 3 and 11.)

cdef extern from *:
    """
    typedef union { float value; uint32_t bits; } Float;
    typedef union { double value; uint64_t bits; } Double;
    """


cdef inline uint64_t bits_of(real x) noexcept nogil:
    cdef uint32_t narrow
    cdef uint64_t wide
    if real is float:
        memcpy(&narrow, &x, sizeof(x))
        return narrow
    memcpy(&wide, &x, sizeof(x))
    return wide
