# The matrix product: y = a b (+ bias), y (M, N), a (M, K), b (K, N), bias (N,).
#
# Three ideas make it fast. (K. Goto and R. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS
# 34(3), 2008, is where the first two are worked out.)
#
# 1. A tile of y stays in registers while k runs, so that each element read serves a whole row or column of it (tile.h).
# 2. Blocks stay in cache. The textbook's three loops, over K, N and M, become
#
#      for each block of K                  256 products of every sum
#        for each block of N                what of b belongs to both stays in the second-level cache
#          for each block of M
#            for each strip of columns      what of b it needs stays in the first-level cache
#              for each tile of rows
#
#    The tile reads rows of b as vectors, so their elements must be neighbours. Where they are not, and where b is so
#    large that its rows lie on too many pages, the block is packed first: copied strip by strip, in the order in which
#    tiles will read it. Of a, the tile reads single elements, from wherever they lie.
# 3. Nothing is done for few columns that can be done for many rows. If y has fewer columns than half a vector, its
#    transpose is computed, yᵀ = bᵀ aᵀ, whose rows are long.
#
# An element of y is summed in the order of k from 0 to K − 1, the partial sum waiting in y from one block of K to the
# next. That order depends on nothing else: not on M, strides, threads, or where in a tile the element lies.
#
#   size     0 M, 1 N, 2 K
#   operand  0 y, 1 a, 2 b (strides 0 row, 1 column), 3 bias or absent (contiguous), 4 mask or absent: as y
#   relu     max(y, 0) is stored; and where the mask is not above 0, 0 is
#   parts    the rows of y or its columns, whichever are more

cdef enum:
    PACKED_BYTES = 1_048_576              # b is packed if it is larger than a second-level cache,
    PACKED_ROWS = 32                      # and serves at least so many rows


cdef struct Product:                      # y = a b as tiles see it: as it is called, or transposed
    Operand y, a, b, mask
    bint is_transposed


cdef int matmul(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Product p
    cdef Strip strip
    cdef Py_ssize_t M = call.size[0], N = call.size[1], K = call.size[2]
    cdef Py_ssize_t i_begin = 0, i_end = M, j_begin = 0, j_end = N, i, j, k = 0, columns
    cdef const real* b
    cdef bint packs, last = False

    if M >= N:
        i_begin, i_end = begin, end
    else:
        j_begin, j_end = begin, end
    p.y, p.a, p.b, p.mask = call.operand[0], call.operand[1], call.operand[2], call.operand[4]
    p.is_transposed = M > N and 2 * N < lanes(out)
    if p.is_transposed:
        p.y, p.a, p.b, p.mask = transposed(&p.y), transposed(&p.b), transposed(&p.a), transposed(&p.mask)
        i_begin, i_end, j_begin, j_end = j_begin, j_end, i_begin, i_end

    strip.b_column = 1
    packs = not are_neighbours(&p.b, j_end - j_begin)
    if packs and p.b.stride[0] == 1 and i_end - i_begin <= FEW_ROWS:
        packs = False                     # so few rows turn b's columns in registers
        strip.b_column = p.b.stride[1]
    if K * (j_end - j_begin) * sizeof(real) > PACKED_BYTES and i_end - i_begin >= PACKED_ROWS:
        packs = True
    if not READS_LANES and strip.b_column == 1 and (j_end - j_begin) % lanes(out) != 0:
        packs = True                      # the tile reads whole vectors

    strip.resume = False
    while not last:                       # once even for K = 0, which leaves zeros
        strip.k = min(K - k, BLOCK_K)
        last = k + strip.k == K
        j = j_begin
        while j < j_end:
            columns = min(j_end - j, BLOCK_COLUMNS)
            b = <const real*> p.b.data + k * p.b.stride[0] + j * p.b.stride[1]
            if packs:
                b = pack(<real*> packed_b, b, columns, p.b.stride[1], strip.k, p.b.stride[0])
            i = i_begin
            while i < i_end:
                strip.rows = min(i_end - i, BLOCK_ROWS)
                block(out, call, &p, &strip, i, j, columns, k, b, packs, last)
                i += strip.rows
            j += columns
        k += strip.k
        strip.resume = True
    return CONTINUE


# y[i] = a[i] b[i] for stacks of matrices, as `matmul` one by one; without bias and mask.
#   size     3 the number of matrices
#   operand  0 y, 1 a, 2 b (stride 2 from matrix to matrix, 0 where one serves all)
#   parts    the matrices
cdef int matmul_stack(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Call one = call[0]
    cdef Py_ssize_t i, operand
    for i in range(begin, end):
        for operand in range(3):
            one.operand[operand].data = (call.operand[operand].data
                                         + i * call.operand[operand].stride[2] * <Py_ssize_t> sizeof(real))
        matmul(<real*> one.operand[0].data, &one, 0, max(call.size[0], call.size[1]))
    return CONTINUE


# The strips of one block of y, from row i and column j. b holds what belongs to it from k on, packed or as it lies.
cdef void block(real* out, const Call* call, const Product* p, Strip* strip, Py_ssize_t i, Py_ssize_t j,
                Py_ssize_t columns, Py_ssize_t k, const real* b, bint packed, bint last) noexcept nogil:
    cdef Py_ssize_t width = lanes(out) if strip.b_column != 1 else strip_columns(out), end = j + columns
    cdef const real* bias = <const real*> call.operand[3].data
    cdef const real* mask = <const real*> p.mask.data

    strip.a = <const real*> p.a.data + i * p.a.stride[0] + k * p.a.stride[1]
    strip.a_row, strip.a_k = p.a.stride[0], p.a.stride[1]
    strip.b_k = width if packed else p.b.stride[0]
    strip.bias = strip.row_bias = strip.mask = NULL
    strip.relu = last and call.relu
    while j < end:
        strip.columns = min(end - j, width)
        strip.b = b
        if last and bias != NULL:
            if p.is_transposed:
                strip.row_bias = bias + i
            else:
                strip.bias = bias + j
        if are_neighbours(&p.y, 2) and (mask == NULL or are_neighbours(&p.mask, 2)):
            strip.y = out + i * p.y.stride[0] + j
            strip.y_row = p.y.stride[0]
            if last and mask != NULL:
                strip.mask = mask + i * p.mask.stride[0] + j
                strip.mask_row = p.mask.stride[0]
            strip.accumulate = call.accumulate
            run_strip(out, strip)
        else:
            scattered(out, call, p, strip, i, j, last)
        b += width * (strip.k if packed else strip.b_column)
        j += width


# A strip of a y whose columns are no neighbours: a few rows at a time, by way of a tile that lies apart.
cdef void scattered(real* out, const Call* call, const Product* p, Strip* strip, Py_ssize_t i, Py_ssize_t j,
                    bint last) noexcept nogil:
    cdef real c[TILE_ROWS * COLUMNS_float]
    cdef Strip tile = strip[0]
    cdef Py_ssize_t width = strip_columns(out), row, column
    cdef Py_ssize_t end = i + strip.rows
    cdef const real* mask = <const real*> p.mask.data
    cdef real* y

    tile.y, tile.y_row, tile.accumulate = c, width, False
    while i < end:
        tile.rows = min(end - i, TILE_ROWS)
        y = out + i * p.y.stride[0] + j * p.y.stride[1]
        if tile.resume:
            for row in range(tile.rows):
                for column in range(tile.columns):
                    c[row * width + column] = y[row * p.y.stride[0] + column * p.y.stride[1]]
        run_strip(out, &tile)
        if last and mask != NULL:
            for row in range(tile.rows):
                for column in range(tile.columns):
                    if mask[(i + row) * p.mask.stride[0] + (j + column) * p.mask.stride[1]] <= 0:
                        c[row * width + column] = 0
        if call.accumulate:
            for row in range(tile.rows):
                for column in range(tile.columns):
                    c[row * width + column] += y[row * p.y.stride[0] + column * p.y.stride[1]]
        if p.y.stride[0] == 1 and tile.rows <= lanes(out):
            transpose(y, p.y.stride[1], c, width, tile.rows, tile.columns)
        else:
            for row in range(tile.rows):
                for column in range(tile.columns):
                    y[row * p.y.stride[0] + column * p.y.stride[1]] = c[row * width + column]
        tile.a = <const real*> tile.a + tile.rows * tile.a_row
        if tile.row_bias != NULL:
            tile.row_bias = <const real*> tile.row_bias + tile.rows
        i += tile.rows


# Packs depth × n elements into strips: strip[k][0 … width − 1]. Returns the first strip.
cdef const real* pack(real* strips, const real* x, Py_ssize_t n, Py_ssize_t stride,
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


# ---- float32 or float64 ----

cdef inline void run_strip(const real* out, const Strip* strip) noexcept nogil:
    if real is float:
        strip_float(strip)
    else:
        strip_double(strip)


cdef inline void transpose(real* y, Py_ssize_t stride_y, const real* x, Py_ssize_t stride_x, Py_ssize_t rows,
                           Py_ssize_t columns) noexcept nogil:
    if real is float:
        transpose_float(y, stride_y, x, stride_x, <int> rows, columns)
    else:
        transpose_double(y, stride_y, x, stride_x, <int> rows, columns)


cdef inline Py_ssize_t lanes(const real* x) noexcept nogil:
    return LANES_OF_float if real is float else LANES_OF_double


cdef inline Py_ssize_t strip_columns(const real* x) noexcept nogil:
    return COLUMNS_float if real is float else COLUMNS_double


# ---- matrices as operands ----

cdef inline Operand transposed(const Operand* x) noexcept nogil:
    cdef Operand t = x[0]
    t.stride[0], t.stride[1] = x.stride[1], x.stride[0]
    return t


cdef inline bint are_neighbours(const Operand* x, Py_ssize_t columns) noexcept nogil:
    return x.stride[1] == 1 or columns == 1
