# The matrix product: y = a b (+ bias), y (M, N), a (M, K), b (K, N), bias (N,).
#
# The textbook's three loops, cut into blocks that stay in cache (K. Goto and R. van de Geijn, "Anatomy of
# high-performance matrix multiplication", ACM TOMS 34(3), 2008):
#
#   for each block of K       \  pack (block of K × block of N) of b: it stays in the second-level cache
#     for each block of N     /
#       for each block of M      pack (block of M × block of K) of a
#         for each tile          ROWS × COLUMNS elements of y, held in registers: tile.h
#
# Packing copies a block into the order in which the tile reads it, filling up with zeros where the matrix ends, so
# the tile knows no edges and the operands may have any strides.
#
# An element of y is summed in the order of k from 0 to K − 1, the partial sum waiting in y from one block of K to the
# next. That order depends on nothing else: not on M, strides, threads, or where in a tile the element lies.
#
#   size     0 M, 1 N, 2 K
#   operand  0 y, 1 a, 2 b (strides 0 row, 1 column), 3 bias or absent (stride 0 element), 4 mask or absent: as y
#   relu     max(y, 0) is stored; and where the mask is not above 0, 0 is
#   parts    M

cdef int matmul(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* A = &call.operand[1]
    cdef const Operand* B = &call.operand[2]
    cdef const real* a = <const real*> A.data
    cdef const real* b = <const real*> B.data
    cdef real* block_a = <real*> packed_a
    cdef real* block_b = <real*> packed_b
    cdef Py_ssize_t N = call.size[1], K = call.size[2]
    cdef Py_ssize_t i, j, k = 0, rows, columns, depth
    cdef bint first = True, last = False

    while not last:                       # once even for K = 0, which leaves zeros
        depth = min(K - k, BLOCK_K)
        last = k + depth == K
        j = 0
        while j < N:
            columns = min(N - j, BLOCK_COLUMNS)
            pack(block_b, tile_columns(b), b + k * B.stride[0] + j * B.stride[1],
                 columns, B.stride[1], depth, B.stride[0])
            i = begin
            while i < end:
                rows = min(end - i, BLOCK_ROWS)
                pack(block_a, TILE_ROWS, a + i * A.stride[0] + k * A.stride[1], rows, A.stride[0], depth, A.stride[1])
                block(y, call, i, rows, j, columns, depth, block_a, block_b, first, last)
                i += rows
            j += columns
        k += depth
        first = False
    return CONTINUE


cdef inline Py_ssize_t tile_columns(const real* x) noexcept nogil:
    return COLUMNS_float if real is float else COLUMNS_double


# Packs n × depth elements into panels of `width`: panel[k][0 … width − 1], zeros beyond n.
cdef void pack(real* panel, Py_ssize_t width, const real* x, Py_ssize_t n, Py_ssize_t stride,
               Py_ssize_t depth, Py_ssize_t depth_stride) noexcept nogil:
    cdef Py_ssize_t count, i, k
    while n > 0:
        count = min(n, width)
        if count < width:
            memset(panel, 0, width * depth * sizeof(real))
        if stride == 1:
            for k in range(depth):
                memcpy(panel + k * width, x + k * depth_stride, count * sizeof(real))
        else:
            for i in range(count):
                for k in range(depth):
                    panel[k * width + i] = x[i * stride + k * depth_stride]
        panel += width * depth
        x += count * stride
        n -= count


# All tiles of one block of y: resume the partial sums of earlier blocks of K, add this one's, finish y at the last.
cdef void block(real* y, const Call* call, Py_ssize_t i0, Py_ssize_t rows, Py_ssize_t j0, Py_ssize_t columns,
                Py_ssize_t depth, const real* a, const real* b, bint first, bint last) noexcept nogil:
    cdef real c[TILE_ROWS * COLUMNS_float]
    cdef const real* bias = <const real*> call.operand[3].data
    cdef const real* mask = <const real*> call.operand[4].data
    cdef Py_ssize_t mask_row_stride = call.operand[4].stride[0], mask_stride = call.operand[4].stride[1]
    cdef Py_ssize_t row_stride = call.operand[0].stride[0], stride = call.operand[0].stride[1]
    cdef Py_ssize_t bias_stride = call.operand[3].stride[0]
    cdef Py_ssize_t width = tile_columns(a), i, j, p, q, tile_rows, columns_here
    cdef real* t

    j = 0
    while j < columns:
        columns_here = min(columns - j, width)
        i = 0
        while i < rows:
            tile_rows = min(rows - i, TILE_ROWS)
            t = y + (i0 + i) * row_stride + (j0 + j) * stride
            memset(c, 0, TILE_ROWS * width * sizeof(real))
            if not first:
                for p in range(tile_rows):
                    for q in range(columns_here):
                        c[p * width + q] = t[p * row_stride + q * stride]
            if real is float:
                tile_float(columns_here, depth, a + i * depth, b + j * depth, c)
            else:
                tile_double(columns_here, depth, a + i * depth, b + j * depth, c)
            if last and bias != NULL:
                for p in range(tile_rows):
                    for q in range(columns_here):
                        c[p * width + q] += bias[(j0 + j + q) * bias_stride]
            if last and call.relu:
                for p in range(tile_rows):
                    for q in range(columns_here):
                        c[p * width + q] = 0 if c[p * width + q] < 0 else c[p * width + q]
            if last and mask != NULL:
                for p in range(tile_rows):
                    for q in range(columns_here):
                        if mask[(i0 + i + p) * mask_row_stride + (j0 + j + q) * mask_stride] <= 0:
                            c[p * width + q] = 0
            for p in range(tile_rows):
                if call.accumulate:
                    for q in range(columns_here):
                        t[p * row_stride + q * stride] += c[p * width + q]
                else:
                    for q in range(columns_here):
                        t[p * row_stride + q * stride] = c[p * width + q]
            i += TILE_ROWS
        j += width
