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
#    large that its rows lie on too many pages, or where they crowd in a part of the cache, the block is packed first:
#    copied strip by strip, in the order in which tiles will read it. Of a, the tile reads single elements, from
#    wherever they lie.
# 3. Nothing is done for few columns that can be done for many rows. If y has fewer columns than half a vector, its
#    transpose is computed, yᵀ = bᵀ aᵀ, whose rows are long; and so it is where the columns of y lie as rows do.
#
# An element of y is summed in the order of k from 0 to K − 1, the partial sum waiting in y from one block of K to the
# next. That order depends on nothing else: not on M, strides, threads, or where in a tile the element lies.
#
#   size     0 M, 1 N, 2 K
#   operand  0 y, 1 a, 2 b (strides 0 row, 1 column), 3 bias or absent (contiguous)
#   op       an elementwise function f that each block of y goes through while it is in cache, or NOTHING. Its output
#            and its inputs, or the slope that it gives besides, are the operands from EPILOGUE on; where one is absent,
#            it is y itself.
#   parts    the rows of y or its columns, whichever are more

from caffelite._kernels.loops.elementwise cimport row
from caffelite._kernels.loops.family cimport *

cdef enum:
    PACKED_BYTES = 1_048_576              # b is packed if it is larger than a second-level cache, or crowded,
    PACKED_ROWS = 32                      # and serves at least so many rows; a, if it is crowded,
    PACKED_COLUMNS = 32                   # and serves at least so many columns
    EPILOGUE_OPERANDS = 4                 # f's output and inputs


cdef struct Product:                      # y = a b as tiles see it: as it is called, or transposed
    Operand y, a, b
    Operand epilogue[EPILOGUE_OPERANDS]
    bint is_transposed
    bint in_registers                     # f is max(y, 0) or its gradient, done in registers
    bint packs_a


cdef int matmul(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Product p
    cdef Strip strip
    cdef Py_ssize_t M = call.size[0], N = call.size[1], K = call.size[2]
    cdef Py_ssize_t i_begin = 0, i_end = M, j_begin = 0, j_end = N, i, j, k = 0, columns
    cdef const real* b
    cdef bint packs, last = False
    cdef int e

    if M >= N:
        i_begin, i_end = begin, end
    else:
        j_begin, j_end = begin, end
    p.y, p.a, p.b = call.operand[0], call.operand[1], call.operand[2]
    p.is_transposed = ((M > N and 2 * N < lanes(out))
                       or (2 * M >= lanes(out) and p.y.stride[0] == 1 and p.y.stride[1] != 1))
    if p.is_transposed:
        p.y, p.a, p.b = transposed(&p.y), transposed(&p.b), transposed(&p.a)
        i_begin, i_end, j_begin, j_end = j_begin, j_end, i_begin, i_end

    p.in_registers = False
    if call.op != NOTHING:
        for e in range(EPILOGUE_OPERANDS):
            p.epilogue[e] = call.operand[EPILOGUE + e]
            if p.is_transposed:
                p.epilogue[e] = transposed(&p.epilogue[e])
        p.in_registers = fits_registers(call.op, &p)

    strip.b_column = 1
    packs = not are_neighbours(&p.b, j_end - j_begin)
    if packs and p.b.stride[0] == 1 and i_end - i_begin <= FEW_ROWS:
        packs = False                     # so few rows turn b's columns in registers
        strip.b_column = p.b.stride[1]
    if i_end - i_begin >= PACKED_ROWS and (K * (j_end - j_begin) * sizeof(real) > PACKED_BYTES
                                           or is_crowded(out, p.b.stride[0], min(K, BLOCK_K))):
        packs = True
    if not READS_LANES and strip.b_column == 1 and (j_end - j_begin) % lanes(out) != 0:
        packs = True                      # the tile reads whole vectors

    p.packs_a = p.a.stride[0] == 1 and is_crowded(out, p.a.stride[1], min(K, BLOCK_K))
    strip.runs = 1
    strip.resume = False
    while not last:                       # once even for K = 0, which leaves zeros
        strip.k = min(K - k, BLOCK_K)
        last = k + strip.k == K
        j = j_begin
        while j < j_end:
            columns = j_end - j
            if columns > BLOCK_COLUMNS:   # as many to each block that is left, in whole strips
                columns //= (columns + BLOCK_COLUMNS - 1) // BLOCK_COLUMNS
                columns += (COLUMNS_float - columns % COLUMNS_float) % COLUMNS_float
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


# y[i] = a[i] b[i] for stacks of matrices, as `matmul` one by one; without bias and epilogue.
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
    cdef Py_ssize_t first = j, depth = 0

    strip.a = element(<const real*> p.a.data, &p.a, i, k)
    strip.a_row, strip.a_k = p.a.stride[0], p.a.stride[1]
    if p.packs_a and columns >= PACKED_COLUMNS:
        while depth < strip.k:            # so that it lies in rows
            transpose(<real*> packed_a + depth, strip.k, element(<const real*> p.a.data, &p.a, i, k + depth),
                      strip.a_k, min(strip.k - depth, lanes(out)), strip.rows)
            depth += lanes(out)
        strip.a, strip.a_row, strip.a_k = packed_a, strip.k, 1
    strip.b_k = width if packed else p.b.stride[0]
    strip.bias = strip.row_bias = strip.mask = NULL
    strip.relu = last and p.in_registers and call.op == RELU
    while j < end:
        strip.columns = min(end - j, width)
        strip.b = b
        if last and bias != NULL:
            if p.is_transposed:
                strip.row_bias = bias + i
            else:
                strip.bias = bias + j
        if are_neighbours(&p.y, 2):
            strip.y = out + i * p.y.stride[0] + j
            strip.y_row = p.y.stride[0]
            if last and p.in_registers and call.op == RELU_GRAD:
                strip.mask = element(<const real*> p.epilogue[2].data, &p.epilogue[2], i, j)
                strip.mask_row = p.epilogue[2].stride[0]
            strip.accumulate = call.accumulate
            run_strip(out, strip)
        else:
            scattered(out, call, p, strip, i, j)
        b += width * (strip.k if packed else strip.b_column)
        j += width
    if last and call.op != NOTHING and not p.in_registers:
        epilogue(out, call, p, i, strip.rows, first, columns)


# f over a block of y. What f does not read, and what is y itself, stands as y.
cdef void epilogue(real* out, const Call* call, const Product* p, Py_ssize_t i, Py_ssize_t rows, Py_ssize_t j,
                   Py_ssize_t columns) noexcept nogil:
    cdef const Operand* x[EPILOGUE_OPERANDS]
    cdef real* data[EPILOGUE_OPERANDS]
    cdef Py_ssize_t r
    cdef int e
    for e in range(EPILOGUE_OPERANDS):
        x[e] = &p.epilogue[e]
        data[e] = <real*> x[e].data
        if data[e] == NULL:
            x[e], data[e] = &p.y, out
    for r in range(i, i + rows):
        row(call.op, columns, <real*> element(data[0], x[0], r, j), x[0].stride[1],
            element(data[1], x[1], r, j), x[1].stride[1], element(data[2], x[2], r, j), x[2].stride[1],
            element(data[3], x[3], r, j), x[3].stride[1], call.epilogue_scalar)


# Whether f is done before a tile leaves the registers: max(y, 0), or y where a mask is above 0.
cdef inline bint fits_registers(Op op, const Product* p) noexcept nogil:
    if p.epilogue[0].data != NULL or p.epilogue[1].data != NULL or not are_neighbours(&p.y, 2):
        return False
    return op == RELU or (op == RELU_GRAD and p.epilogue[2].data != NULL and are_neighbours(&p.epilogue[2], 2))


# A strip of a y whose columns are no neighbours: a few rows at a time, by way of a tile that lies apart.
cdef void scattered(real* out, const Call* call, const Product* p, Strip* strip, Py_ssize_t i,
                    Py_ssize_t j) noexcept nogil:
    cdef real c[TILE_ROWS * COLUMNS_float]
    cdef Strip tile = strip[0]
    cdef Py_ssize_t width = strip_columns(out), r, column
    cdef Py_ssize_t end = i + strip.rows
    cdef real* y

    tile.y, tile.y_row, tile.accumulate = c, width, False
    while i < end:
        tile.rows = min(end - i, TILE_ROWS)
        y = out + i * p.y.stride[0] + j * p.y.stride[1]
        if tile.resume:
            for r in range(tile.rows):
                for column in range(tile.columns):
                    c[r * width + column] = y[r * p.y.stride[0] + column * p.y.stride[1]]
        run_strip(out, &tile)
        if call.accumulate:
            for r in range(tile.rows):
                for column in range(tile.columns):
                    c[r * width + column] += y[r * p.y.stride[0] + column * p.y.stride[1]]
        if p.y.stride[0] == 1 and tile.rows <= lanes(out):
            transpose(y, p.y.stride[1], c, width, tile.rows, tile.columns)
        else:
            for r in range(tile.rows):
                for column in range(tile.columns):
                    y[r * p.y.stride[0] + column * p.y.stride[1]] = c[r * width + column]
        tile.a = <const real*> tile.a + tile.rows * tile.a_row
        if tile.row_bias != NULL:
            tile.row_bias = <const real*> tile.row_bias + tile.rows
        i += tile.rows


cdef inline bint are_neighbours(const Operand* x, Py_ssize_t columns) noexcept nogil:
    return x.stride[1] == 1 or columns == 1


cdef at_load publish_all() noexcept nogil:
    publish("matmul", <Loop> matmul[float], <Loop> matmul[double])
    publish("matmul_stack", <Loop> matmul_stack[float], <Loop> matmul_stack[double])
