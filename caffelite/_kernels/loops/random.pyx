# Random numbers as a function of a seed, a step and an element's number, by a counter-based generator (philox.h). So a
# mask needs no memory: any thread can draw it again.

cimport cython

from caffelite._kernels.loops.family cimport *


# y[i] = x[i] / (1 − p) if the 16 bits drawn for element i are at least 2¹⁶ p, else 0 x[i], which is NaN if x[i] is not
# finite. Elements are numbered from `first` on.
#   size     0 first
#   scalar   p
#   operand  0 y, 1 x (both contiguous), 2 drawn = (seed, step), int64
#   parts    the elements
cdef int dropout(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* x = <const real*> call.operand[1].data
    cdef const uint64_t* drawn = <const uint64_t*> call.operand[2].data
    cdef double p = call.scalar[0]
    cdef uint32_t limit = <uint32_t> rint(65536 * p)
    cdef real keep_scale = <real> (1 / (1 - p))
    cdef Py_ssize_t n, first, i
    cdef uint64_t number = <uint64_t> (call.size[0] + begin)
    cdef uint32_t bits[2 * WORDS]
    while begin < end:
        draw_bits(bits, drawn, number // (2 * WORDS))
        first = <Py_ssize_t> (number % (2 * WORDS))
        n = min(2 * WORDS - first, end - begin)
        for i in range(n):
            y[begin + i] = x[begin + i] * (keep_scale if bits[first + i] >= limit else <real> 0)
        begin += n
        number += n
    return CONTINUE


# drawn = random = (seed, step), and then step ← step + 1; int64
#   operand  0 drawn, 1 random
#   parts    1
@cython.overflowcheck(False)
cdef int next_draw(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef uint64_t* drawn = <uint64_t*> out
    cdef uint64_t* random = <uint64_t*> call.operand[1].data
    drawn[0], drawn[1] = random[0], random[1]
    random[1] += 1
    return CONTINUE


include "../generated/publish_random.pxi"
