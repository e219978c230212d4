# Augmentation: each image of a batch is changed at random. The random numbers are a function of a seed, the batch, and
# the image's row in it (philox.h). So every thread draws the same numbers.
#
# All loops take images (n, C, H, W), contiguous.
#   size     0 C, 1 H, 2 W, 3 how far, or how large
#   operand  0 y, 1 x, 2 drawn = (seed, batch, how many augmentations of the batch were drawn before), int64
#   parts    the images

cimport cython

from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.random cimport COUNTERS, WORDS, philox


# words[i % COUNTERS] and words[COUNTERS + i % COUNTERS] become two numbers of 32 bits for image i. They are drawn for
# COUNTERS images at a time, at the first of these that a thread asks for.
@cython.overflowcheck(False)              # the arithmetic is modulo 2⁶⁴
cdef void draw(uint32_t* words, const Call* call, Py_ssize_t i, bint is_first) noexcept nogil:
    cdef const uint64_t* drawn = <const uint64_t*> call.operand[2].data
    if is_first or i % COUNTERS == 0:
        philox(words, drawn[0], drawn[1], (drawn[2] << 40) | <uint64_t> (i // COUNTERS))


# A random number of 0 … m − 1, m ≤ 2³². Each has the probability 1 / m, to within 2⁻³².
cdef inline Py_ssize_t one_of(uint64_t m, uint32_t word) noexcept nogil:
    return <Py_ssize_t> ((m * word) >> 32)


# y[c, h, w] = x[c, h − down, w − right], 0 outside the image; down and right are random in −p … p, p = size[3]
cdef int shift(real* dtype, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t C = call.size[0], H = call.size[1], W = call.size[2], p = call.size[3]
    cdef Py_ssize_t i, line, h, w, down, right, first, last
    cdef uint32_t words[WORDS]
    cdef real* y
    cdef const real* x
    for i in range(begin, end):
        draw(words, call, i, i == begin)
        down = one_of(2 * p + 1, words[i % COUNTERS]) - p
        right = one_of(2 * p + 1, words[COUNTERS + i % COUNTERS]) - p
        first, last = min(max(right, 0), W), max(min(W + right, W), 0)
        for line in range(C * H):
            h = line % H
            y = dtype + (i * C * H + line) * W
            if not 0 <= h - down < H:
                memset(y, 0, W * sizeof(real))
                continue
            x = <const real*> call.operand[1].data + (i * C * H + line - down) * W - right
            for w in range(first):
                y[w] = 0
            for w in range(first, last):
                y[w] = x[w]
            for w in range(max(first, last), W):
                y[w] = 0
    return CONTINUE


# y[c, h, w] = x[c, h, W − 1 − w] or x[c, h, w], each with probability 1/2
cdef int flip(real* dtype, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t lines = call.size[0] * call.size[1], W = call.size[2]
    cdef Py_ssize_t i, line, w
    cdef uint32_t words[WORDS]
    cdef real* y
    cdef const real* x
    for i in range(begin, end):
        draw(words, call, i, i == begin)
        y = dtype + i * lines * W
        x = <const real*> call.operand[1].data + i * lines * W
        if one_of(2, words[i % COUNTERS]) == 0:
            memcpy(y, x, lines * W * sizeof(real))
            continue
        for line in range(lines):
            for w in range(W):
                y[line * W + w] = x[line * W + W - 1 - w]
    return CONTINUE


# y = x, but 0 in a square of s × s pixels, s = size[3], around a random pixel, in every channel. Parts of the square
# may be outside the image.
cdef int cutout(real* dtype, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t C = call.size[0], H = call.size[1], W = call.size[2], s = call.size[3]
    cdef Py_ssize_t i, c, h, w, top, left
    cdef uint32_t words[WORDS]
    cdef real* y
    for i in range(begin, end):
        draw(words, call, i, i == begin)
        y = dtype + i * C * H * W
        memcpy(y, <const real*> call.operand[1].data + i * C * H * W, C * H * W * sizeof(real))
        top = one_of(H, words[i % COUNTERS]) - s // 2
        left = one_of(W, words[COUNTERS + i % COUNTERS]) - s // 2
        for c in range(C):
            for h in range(max(top, 0), min(top + s, H)):
                for w in range(max(left, 0), min(left + s, W)):
                    y[(c * H + h) * W + w] = 0
    return CONTINUE


cdef at_load publish_all() noexcept nogil:
    publish("shift", <Loop> shift[float], <Loop> shift[double])
    publish("flip", <Loop> flip[float], <Loop> flip[double])
    publish("cutout", <Loop> cutout[float], <Loop> cutout[double])
