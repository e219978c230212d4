# Augmentation: each image of a batch is changed, mostly at random. The random numbers are a function of a seed, the
# batch, and the image's row in it (philox.h). So every thread draws the same numbers.
#
# All loops take images (n, C, H, W), contiguous.
#   size     0 C, 1 H, 2 W of x, 3 how far, or how large, 4 H, 5 W of y
#   operand  0 y, 1 x, 2 drawn = (seed, batch, how many augmentations of the batch were drawn before), int64
#   parts    the images

cimport cython

from libc.math cimport floor

from caffelite._kernels.loops.arithmetic cimport sum_of_products
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
cdef inline Py_ssize_t random_below(uint64_t m, uint32_t word) noexcept nogil:
    return <Py_ssize_t> ((m * word) >> 32)


# y[c, h, w] = x[c, h + top, w + left], 0 outside x. The window is anywhere in x with p lines of zeros around it,
# p = size[3]: top is random in −p … H of x + p − H of y, and so is left.
cdef int crop(real* dtype, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t C = call.size[0], H = call.size[1], W = call.size[2], lines = call.size[4], width = call.size[5]
    cdef Py_ssize_t last_top = H + call.size[3] - lines, last_left = W + call.size[3] - width
    cdef Py_ssize_t i, line, h, w, top, left, first, last
    cdef uint32_t words[WORDS]
    cdef real* y
    cdef const real* x
    for i in range(begin, end):
        draw(words, call, i, i == begin)
        top = last_top - random_below(last_top + call.size[3] + 1, words[i % COUNTERS])
        left = last_left - random_below(last_left + call.size[3] + 1, words[COUNTERS + i % COUNTERS])
        first, last = min(max(-left, 0), width), max(min(W - left, width), 0)
        for line in range(C * lines):
            h = line % lines + top
            y = dtype + (i * C * lines + line) * width
            if not 0 <= h < H:
                memset(y, 0, width * sizeof(real))
                continue
            x = <const real*> call.operand[1].data + ((i * C + line // lines) * H + h) * W + left
            for w in range(first):
                y[w] = 0
            for w in range(first, last):
                y[w] = x[w]
            for w in range(max(first, last), width):
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
        if random_below(2, words[i % COUNTERS]) == 0:
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
        top = random_below(H, words[i % COUNTERS]) - s // 2
        left = random_below(W, words[COUNTERS + i % COUNTERS]) - s // 2
        for c in range(C):
            for h in range(max(top, 0), min(top + s, H)):
                for w in range(max(left, 0), min(left + s, W)):
                    y[(c * H + h) * W + w] = 0
    return CONTINUE


# y[c, h, w] = x[c, u, v] between pixels, 0 outside the image: the mean of the four pixels around (u, v), weighted by
# how near they are. With offsets from the middle of the image, (u, v) = A (h, w).
#   operand  2 A (n, 2, 2), float64
cdef int affine(real* dtype, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t C = call.size[0], H = call.size[1], W = call.size[2]
    cdef double middle = 0.5 * (H - 1), centre = 0.5 * (W - 1), u, v, up, left
    cdef Py_ssize_t i, c, h, w, above, below, before, after
    cdef real top, bottom
    cdef real[2] above_weights, below_weights
    cdef real* y
    cdef const real* x
    cdef const double* A
    for i in range(begin, end):
        A = <const double*> call.operand[2].data + 4 * i
        for h in range(H):
            for w in range(W):
                y = dtype + (i * C * H + h) * W + w
                u = middle + sum_of_products(A[0], h - middle, A[1], w - centre)
                v = centre + sum_of_products(A[2], h - middle, A[3], w - centre)
                if not (-1 < u < H and -1 < v < W):
                    for c in range(C):
                        y[c * H * W] = 0
                    continue
                up, left = floor(u), floor(v)
                above, before = <Py_ssize_t> up, <Py_ssize_t> left
                below, after = min(above + 1, H - 1), min(before + 1, W - 1)
                top = <real> (1 - (u - up)) if above >= 0 else 0
                bottom = <real> (u - up) if above + 1 < H else 0
                above_weights[0] = below_weights[0] = <real> (1 - (v - left)) if before >= 0 else 0
                above_weights[1] = below_weights[1] = <real> (v - left) if before + 1 < W else 0
                above_weights[0], above_weights[1] = above_weights[0] * top, above_weights[1] * top
                below_weights[0], below_weights[1] = below_weights[0] * bottom, below_weights[1] * bottom
                above, before = max(above, 0), max(before, 0)
                x = <const real*> call.operand[1].data + i * C * H * W
                for c in range(C):
                    y[c * H * W] = sum_of_products(
                        above_weights[0], x[above * W + before], above_weights[1], x[above * W + after]
                    ) + sum_of_products(below_weights[0], x[below * W + before], below_weights[1], x[below * W + after])
                    x += H * W
    return CONTINUE


include "../generated/publish_augmentation.pxi"
