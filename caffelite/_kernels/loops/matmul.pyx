# The matrix product: y = a b (+ bias), y (M, N), a (M, K), b (K, N), bias (N,).
#
# Three ideas make it fast. K. Goto and R. van de Geijn work out the first two in "Anatomy of high-performance matrix
# multiplication", ACM TOMS 34(3), 2008.
#
# 1. A tile of y stays in registers while k runs. So each element that is read serves a whole row or column of the tile
#    (tile.h).
# 2. Blocks stay in cache. The textbook's three loops, over K, N and M, become
#
#      for each block of K                  256 products of every sum
#        for each block of N                this block of b stays in the second-level cache
#          for each block of M
#            for each strip of columns      this strip of b stays in the first-level cache
#              for each tile of rows
#
#    The tile reads rows of b as vectors, so the elements of a row must be neighbours. If they are not, the block of b
#    is packed first: copied strip by strip, in the order in which tiles read it. It is also packed if b is so large
#    that its rows lie on too many pages, or if its rows crowd each other out of the cache and shorter blocks would not
#    help. Of a, the tile reads single elements, at any stride.
# 3. If y has fewer columns than half a vector, its transpose is computed, yᵀ = bᵀ aᵀ, because the rows of yᵀ are long.
#    The same is done if the elements of a column of y are neighbours.
#
# An element of y is summed in the order of k from 0 to K − 1. The partial sum waits in y from one block of K to the
# next. This order depends on nothing else: not on M, strides, threads, or the element's place in a tile.
#
#   size     0 M, 1 N, 2 K
#   operand  0 y, 1 a, 2 b (strides 0 row, 1 column), 3 bias or absent (contiguous)
#   op       NOTHING, or an elementwise function f: each block of y goes through f while it is in cache. The operands
#            from EPILOGUE on are f's output and f's inputs. An absent one is y itself.
#   parts    the rows of y, or its columns if these are more
#   rounds   whether a and b, of float32, are rounded to bfloat16; bfloat16.h says what is then computed

from caffelite._kernels.loops.elementwise cimport row
from caffelite._kernels.loops.family cimport *

cdef enum:
    PACKED_BYTES = 1_048_576              # b is packed if it is larger than a second-level cache, or crowded,
    PACKED_ROWS = 32                      # and if it serves at least so many rows. a is packed if it is crowded,
    PACKED_COLUMNS = 32                   # and if it serves at least so many columns
    LONG_ROWS = 256                       # for more rows than that, packing takes less time than short blocks
    EPILOGUE_OPERANDS = 4                 # f's output and inputs


cdef struct Product:                      # y = a b as tiles see it: as it is called, or transposed
    Operand y, a, b
    Operand epilogue[EPILOGUE_OPERANDS]
    Py_ssize_t i_begin, i_end             # the rows of y that are computed,
    Py_ssize_t j_begin, j_end             # and the columns
    bint is_transposed
    bint in_registers                     # f is max(y, 0) or its gradient, done in registers
    bint packs, packs_a
    bint rounds
    Py_ssize_t width, columns, terms      # of a strip; of a block, at most, and its depth


cdef int matmul(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Product p
    cdef Strip strip
    cdef Py_ssize_t K = call.size[2], i, j, k = 0, columns, terms
    cdef const real* b
    cdef bint last = False

    plan_product(out, call, begin, end, &p, &strip)
    strip.runs = 1
    strip.resume = False
    while not last:                       # once even for K = 0, to store zeros
        strip.k = terms = min(K - k, p.terms)
        last = k + terms == K
        if p.rounds:
            strip.k = depth_bfloat16(terms)
        j = p.j_begin
        while j < p.j_end:
            columns = p.j_end - j
            if columns > p.columns:       # blocks of equal width, in whole strips
                columns //= (columns + p.columns - 1) // p.columns
                columns += (p.width - columns % p.width) % p.width
            b = <const real*> p.b.data + k * p.b.stride[0] + j * p.b.stride[1]
            if p.rounds:
                pack_columns_bfloat16(<float*> packed_b, <const float*> b, p.b.stride[1], columns, terms,
                                      p.b.stride[0])
                b = <const real*> packed_b
            elif p.packs:
                b = pack_strips(<real*> packed_b, b, columns, p.b.stride[1], terms, p.b.stride[0])
            i = p.i_begin
            while i < p.i_end:
                strip.rows = min(p.i_end - i, BLOCK_ROWS)
                run_block(out, call, &p, &strip, i, j, columns, k, terms, b, last)
                i += strip.rows
            j += columns
        k += terms
        strip.resume = True
    return CONTINUE


# How the product is computed: whether it is transposed, which operands are packed, and the epilogue of a tile.
cdef inline void plan_product(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end, Product* p,
                              Strip* strip) noexcept nogil:
    cdef Py_ssize_t M = call.size[0], N = call.size[1], K = call.size[2], rows, columns
    cdef bint is_large
    cdef int e

    p.i_begin, p.i_end, p.j_begin, p.j_end = 0, M, 0, N
    if M >= N:
        p.i_begin, p.i_end = begin, end
    else:
        p.j_begin, p.j_end = begin, end
    p.y, p.a, p.b = call.operand[0], call.operand[1], call.operand[2]
    p.rounds = strip.rounded = real is float and call.rounds
    p.is_transposed = ((M > N and 2 * N < lanes(out) and not p.rounds)
                       or (2 * M >= lanes(out) and p.y.stride[0] == 1 and p.y.stride[1] != 1))
    if p.is_transposed:
        p.y, p.a, p.b = transpose_operand(&p.y), transpose_operand(&p.b), transpose_operand(&p.a)
        p.i_begin, p.i_end, p.j_begin, p.j_end = p.j_begin, p.j_end, p.i_begin, p.i_end
    rows, columns = p.i_end - p.i_begin, p.j_end - p.j_begin

    p.in_registers = False
    if call.op != NOTHING:
        for e in range(EPILOGUE_OPERANDS):
            p.epilogue[e] = call.operand[EPILOGUE + e]
            if p.is_transposed:
                p.epilogue[e] = transpose_operand(&p.epilogue[e])
        p.in_registers = fits_registers(call.op, p)

    strip.b_column = 1
    if p.rounds:                          # operands are packed in any case, to be rounded
        p.packs, p.width, p.columns, p.terms = True, COLUMNS_bfloat16, BLOCK_COLUMNS_bfloat16, max_terms_bfloat16()
        return
    is_large = rows >= PACKED_ROWS and K * columns * <Py_ssize_t> sizeof(real) > PACKED_BYTES
    p.packs_a = p.a.stride[0] == 1 and is_crowded(out, p.a.stride[1], min(K, BLOCK_K))
    p.terms = BLOCK_K
    if not call.accumulate and (p.packs_a or (PACKED_ROWS <= rows <= LONG_ROWS and not is_large)):
        p.terms = uncrowded_terms(out, p)
        p.packs_a = p.packs_a and p.terms == BLOCK_K
    p.packs = is_large or not is_contiguous(&p.b, columns)
    if p.packs and p.b.stride[0] == 1 and rows <= FEW_ROWS:
        p.packs = False                   # for few rows it is faster to transpose b in registers
        strip.b_column = p.b.stride[1]
    if rows >= PACKED_ROWS and is_crowded(out, p.b.stride[0], min(K, p.terms)):
        p.packs = True
    if not READS_LANES and strip.b_column == 1 and columns % lanes(out) != 0:
        p.packs = True                    # the tile reads whole vectors
    p.width, p.columns = lanes(out) if strip.b_column != 1 else strip_columns(out), BLOCK_COLUMNS
    if rows <= FEW_ROWS and strip.b_column == 1 and not p.packs:
        p.width = WIDE_VECTORS * lanes(out)


# The depth of a block in which neither the rows of b nor the columns of a crowd each other. BLOCK_K if it is too small.
cdef inline Py_ssize_t uncrowded_terms(const real* like, const Product* p) noexcept nogil:
    cdef Py_ssize_t terms = BLOCK_K
    while is_crowded(like, p.b.stride[0], terms) or (p.a.stride[0] == 1 and is_crowded(like, p.a.stride[1], terms)):
        terms //= 2
        if terms < BLOCK_K // 4:
            return BLOCK_K
    return terms


# y[i] = a[i] b[i] for stacks of matrices, one `matmul` after the other, without bias and epilogue.
#   size     3 the number of matrices
#   operand  0 y, 1 a, 2 b (stride 2 from matrix to matrix; 0 if one matrix serves all)
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


# The strips of one block of y, from row i and column j on. b is its block of b, from k on, packed or not.
cdef void run_block(real* out, const Call* call, const Product* p, Strip* strip, Py_ssize_t i, Py_ssize_t j,
                    Py_ssize_t columns, Py_ssize_t k, Py_ssize_t terms, const real* b, bint last) noexcept nogil:
    cdef Py_ssize_t width = p.width, end = j + columns
    cdef const real* bias = <const real*> call.operand[3].data
    cdef Py_ssize_t first = j, depth = 0
    cdef uint64_t control = 0

    strip.a = element(<const real*> p.a.data, &p.a, i, k)
    strip.a_row, strip.a_k = p.a.stride[0], p.a.stride[1]
    if p.rounds:
        control = begin_strips_bfloat16()
        pack_rows_bfloat16(strip, <const float*> strip.a, strip.a_row, terms, strip.a_k)
    elif p.packs_a and columns >= PACKED_COLUMNS:
        while depth < strip.k:            # transposed: the elements of a row are neighbours
            transpose(<real*> packed_a + depth, strip.k, element(<const real*> p.a.data, &p.a, i, k + depth),
                      strip.a_k, min(strip.k - depth, lanes(out)), strip.rows)
            depth += lanes(out)
        strip.a, strip.a_row, strip.a_k = packed_a, strip.k, 1
    strip.b_k = width if p.packs else p.b.stride[0]
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
        if is_contiguous(&p.y, 2):
            strip.y = out + i * p.y.stride[0] + j
            strip.y_row = p.y.stride[0]
            if last and p.in_registers and call.op == RELU_GRAD:
                strip.mask = element(<const real*> p.epilogue[2].data, &p.epilogue[2], i, j)
                strip.mask_row = p.epilogue[2].stride[0]
            strip.accumulate = call.accumulate
            run_strip(out, strip)
        else:
            run_scattered(out, call, p, strip, i, j)
        b += width * (strip.k if p.packs else strip.b_column)
        j += width
    if p.rounds:
        end_strips_bfloat16(control)
    if last and call.op != NOTHING and not p.in_registers:
        epilogue(out, call, p, i, strip.rows, first, columns)


# f over a block of y. In place of an absent operand, f gets y.
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


# Whether a tile can compute f before it leaves the registers. It can if f is max(y, 0), or y where a mask is above 0.
cdef inline bint fits_registers(Op op, const Product* p) noexcept nogil:
    if p.epilogue[0].data != NULL or p.epilogue[1].data != NULL or not is_contiguous(&p.y, 2):
        return False
    return op == RELU or (op == RELU_GRAD and p.epilogue[2].data != NULL and is_contiguous(&p.epilogue[2], 2))


# A strip of a y whose columns are not neighbours: a few rows at a time, in a tile of its own, which is then copied.
cdef void run_scattered(real* out, const Call* call, const Product* p, Strip* strip, Py_ssize_t i,
                        Py_ssize_t j) noexcept nogil:
    cdef real c[TILE_ROWS * COLUMNS_float]
    cdef Strip tile = strip[0]
    cdef Py_ssize_t width = p.width, r, column
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


cdef inline bint is_contiguous(const Operand* x, Py_ssize_t columns) noexcept nogil:
    return x.stride[1] == 1 or columns == 1


include "../generated/publish_matmul.pxi"
