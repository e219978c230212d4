"""Parts of the matrix product that other files use, too: strips of register tiles, and matrices as operands."""
from caffelite._kernels.loops.family cimport *

cdef extern from "loops/panel.h" nogil:
    enum:
        LANES_OF_float, LANES_OF_double, READS_LANES
        TILE_ROWS, FEW_ROWS, WIDE_VECTORS, COLUMNS_float, COLUMNS_double, BLOCK_K, BLOCK_ROWS, BLOCK_COLUMNS
    ctypedef struct Strip:
        Py_ssize_t rows, columns, k, runs, a_row, a_k, b_k, b_column, y_row, mask_row
        const Py_ssize_t* a_run
        const Py_ssize_t* b_run
        const void* a
        const void* b
        void* y
        bint rounded, resume, accumulate, relu
        const void* bias
        const void* row_bias
        const void* mask
    char packed_a[]
    char packed_b[]
    void strip_float(const Strip* strip)
    void strip_double(const Strip* strip)
    void strip_of_runs(const void* y, const Strip* strip)  # y is float* or double*: the type of the numbers
    # y and x are float* or double*.
    void transpose(void* y, Py_ssize_t stride_y, const void* x, Py_ssize_t stride_x, int rows, Py_ssize_t columns)
    enum:
        COLUMNS_bfloat16, BLOCK_COLUMNS_bfloat16, FASTEST, ONE_BY_ONE, IN_PAIRS, IN_TILES
    void strip_bfloat16(const Strip* strip)
    uint64_t begin_strips_bfloat16()
    void end_strips_bfloat16(uint64_t control)
    Py_ssize_t depth_bfloat16(Py_ssize_t terms)
    Py_ssize_t max_terms_bfloat16()
    void pack_rows_bfloat16(Strip* strip, const float* x, Py_ssize_t x_row, Py_ssize_t terms, Py_ssize_t stride)
    void pack_columns_bfloat16(float* to, const float* x, Py_ssize_t stride, Py_ssize_t columns, Py_ssize_t terms,
                               Py_ssize_t x_row)
    bint use_bfloat16(int wanted)


cdef enum:
    CACHE_BYTES = 4096                    # addresses so far apart share a place in the first-level cache,
    CACHE_WAYS = 8                        # which holds so many of them


# ---- float32 or float64 ----

# The macro DEFINE_TILE in tile.h makes strip_float and strip_double. strip_bfloat16 is in bfloat16.h.
cdef inline void run_strip(const real* out, const Strip* strip) noexcept nogil:
    if real is double:
        strip_double(strip)
    elif strip.rounded:
        strip_bfloat16(strip)
    else:
        strip_float(strip)


cdef inline Py_ssize_t lanes(const real* x) noexcept nogil:
    return LANES_OF_float if real is float else LANES_OF_double


cdef inline Py_ssize_t strip_columns(const real* x) noexcept nogil:
    return COLUMNS_float if real is float else COLUMNS_double


# Pack depth × n elements into strips: strip[k][0 … width − 1]. Return the first strip.
cdef inline const real* pack_strips(real* strips, const real* x, Py_ssize_t n, Py_ssize_t stride,
                                    Py_ssize_t depth, Py_ssize_t depth_stride) noexcept nogil:
    cdef Py_ssize_t width = strip_columns(x), count, i, k
    cdef real* strip = strips
    while n > 0:
        count = min(n, width)
        if not READS_LANES and count < width:
            memset(strip, 0, width * depth * sizeof(real))
        if stride == 1 and count == width:
            for k in range(depth):
                memcpy(strip + k * width, x + k * depth_stride, strip_columns(x) * sizeof(real))
        elif depth_stride == 1:
            i = 0
            while i < count:
                transpose(strip + i, width, x + i * stride, stride, min(count - i, lanes(x)), depth)
                i += lanes(x)
        else:
            for k in range(depth):
                for i in range(count):
                    strip[k * width + i] = x[i * stride + k * depth_stride]
        strip += width * depth
        x += count * stride
        n -= count
    return strips


# ---- matrices as operands ----

cdef inline Operand transpose_operand(const Operand* x) noexcept nogil:
    cdef Operand t = x[0]
    t.stride[0], t.stride[1] = x.stride[1], x.stride[0]
    return t


cdef inline const real* element(const real* data, const Operand* x, Py_ssize_t i, Py_ssize_t j) noexcept nogil:
    return data + i * x.stride[0] + j * x.stride[1]


# Whether `count` elements, at this stride, crowd each other out of the first-level cache.
cdef inline bint is_crowded(const real* x, Py_ssize_t stride, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t step = stride * <Py_ssize_t> sizeof(real)
    step = min(step & -step, CACHE_BYTES)  # the largest power of 2 that divides it
    return step > 0 and count > CACHE_WAYS * (CACHE_BYTES // step)
