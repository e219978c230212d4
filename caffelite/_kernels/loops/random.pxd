"""Parts of the random numbers that other files use."""
from caffelite._kernels.loops.family cimport *


cdef extern from "loops/philox.h" nogil:
    enum:
        COUNTERS, WORDS                   # how many are computed together
    void philox(uint32_t* words, uint64_t seed, uint64_t step, uint64_t group)


# The 16 bits of each of 128 elements, from element 128 · group on. The lower halves of 64 words belong to the first 64
# elements, the upper halves to the other 64.
cdef inline void draw_bits(uint32_t* bits, const uint64_t* drawn, uint64_t group) noexcept nogil:
    cdef Py_ssize_t i
    philox(bits, drawn[0], drawn[1], group)
    for i in range(WORDS):
        bits[WORDS + i] = bits[i] >> 16
        bits[i] &= 0xFFFF
