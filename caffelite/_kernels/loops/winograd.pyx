# Winograd's convolutions, channels last. winograd.h tells the method, and transforms one tile. Here are the loops over
# tiles, and the products at each point.
#
#   y[t, o] = Aᵀ [Σ_c U[k, c, o] V[k, t, c]] A     for each tile t, with U = G g Gᵀ of the weights and V = Bᵀ d B of x
#   S[k, c, o] = Σ_t V[k, t, c] D[k, t, o]         for each point k, with D = A dY Aᵀ of dy; then dg = Gᵀ S G
#
# A call takes its tiles in blocks. The V, D and products of a block stay in the second-level cache, in room that each
# thread has. For each point, the register tile of matmul.pyx computes a matrix product: the block's tiles times U, or
# its channels times D.
#
# One loop computes convolutions and the gradients of x, because the bindings turn the window round. An output is summed
# in the order of c, whatever the block. So its bits depend neither on the other images nor on the number of threads.
# Long sums would lose digits. So the sums over c begin at 0 every 32 channels and are then added, and so do the sums S
# in each block.
#
#   size     0 n, 1 channels of x and 2 of y in each group, 3 groups
#   window   0 along the height, 1 along the width; the padding may be negative

from libc.stddef cimport ptrdiff_t

from caffelite._kernels.loops.elementwise cimport apply_epilogue
from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.matmul cimport (
    BLOCK_COLUMNS, BLOCK_K, COLUMNS_float, LANES_OF_float, Strip, TILE_ROWS, packed_b, strip_float, transpose,
)

cdef extern from "loops/winograd.h" nogil:
    enum:
        MAX_POINTS
    ctypedef struct Images:
        ptrdiff_t height, width, image, row, pixel
    ctypedef struct Epilogue:
        const float* bias
        const float* mask
        const float* other
        bint relu
    ctypedef struct Vector "vector_float":
        pass
    ctypedef struct Tiling:
        int points, down, along
        void (*pixels)(const float* x, const Images* images, ptrdiff_t top, ptrdiff_t left, ptrdiff_t channels,
                       const float* zeros, float* values, ptrdiff_t plane) noexcept nogil
        void (*gradients)(const float* dy, const Images* images, ptrdiff_t top, ptrdiff_t left, ptrdiff_t channels,
                          const float* zeros, float* values, ptrdiff_t plane) noexcept nogil
        void (*sums)(const float* sums, ptrdiff_t plane, float* y, const Images* images, ptrdiff_t top, ptrdiff_t left,
                     ptrdiff_t channels, const Epilogue* epilogue) noexcept nogil
        void (*window)(const Vector* w, float* u, ptrdiff_t plane) noexcept nogil
        void (*window_sums)(Vector* w, const Vector* s) noexcept nogil
    const Tiling* get_tiling(ptrdiff_t down, ptrdiff_t along)

cdef enum:
    MAX_TILES = 64                       # of a block
    MAX_CHANNELS = 32                    # that are summed before they are added to the others
    MAX_SUMS = 300_000                   # that are added to block after block: they stay in a second-level cache
    WIDEST = 16                           # lanes of the widest vectors: rows of U and S are whole numbers of these
    MAX_TAPS = 9


# ---- tiles ----

cdef struct Tiles:                        # of the outputs of a convolution
    Py_ssize_t down, along                # how many in each image
    Images x, y


cdef Images make_images(const Operand* x, Py_ssize_t height, Py_ssize_t width) noexcept nogil:
    cdef Images images
    images.height, images.width = height, width
    images.image, images.row, images.pixel = x.stride[0], x.stride[2], x.stride[3]
    return images


cdef Tiles make_tiles(const Call* call, const Operand* x, const Operand* y, const Tiling* tiling) noexcept nogil:
    cdef Tiles tiles
    tiles.down = (call.window[0].count + tiling.down - 1) // tiling.down
    tiles.along = (call.window[1].count + tiling.along - 1) // tiling.along
    tiles.x = make_images(x, call.window[0].length, call.window[1].length)
    tiles.y = make_images(y, call.window[0].count, call.window[1].count)
    return tiles


cdef struct Tile:
    Py_ssize_t image, top, left           # of its first output


cdef inline Tile get_tile(const Tiles* tiles, const Tiling* tiling, Py_ssize_t number) noexcept nogil:
    cdef Tile tile
    tile.image = number // (tiles.down * tiles.along)
    tile.top = number // tiles.along % tiles.down * tiling.down
    tile.left = number % tiles.along * tiling.along
    return tile


cdef inline Py_ssize_t round_up(Py_ssize_t n, Py_ssize_t step) noexcept nogil:
    return (n + step - 1) // step * step


cdef inline Py_ssize_t round_down(Py_ssize_t n, Py_ssize_t step) noexcept nogil:
    return n // step * step if n > step else n


# The distance from one point's values to the next's, for rows of so many values. Not a power of 2: planes that lie a
# power of 2 apart crowd each other out of the first-level cache.
cdef inline Py_ssize_t plane_size(Py_ssize_t rows, Py_ssize_t columns) noexcept nogil:
    return rows * columns + 2 * LANES_OF_float


# How many tiles a block has, if each takes so many floats of room at each point, beside a pixel of zeros.
cdef inline Py_ssize_t tiles_per_block(const Tiling* tiling, Py_ssize_t zeros, Py_ssize_t values) noexcept nogil:
    cdef Py_ssize_t room = BLOCK_K * BLOCK_COLUMNS * 2     # floats of packed_b
    return max(min(((room - zeros) // tiling.points - 4 * LANES_OF_float) // values, MAX_TILES), 1)


# How wide strips are if as few of them as possible share so many columns evenly.
cdef inline Py_ssize_t strip_width(Py_ssize_t columns) noexcept nogil:
    cdef Py_ssize_t strips = (columns + COLUMNS_float - 1) // COLUMNS_float
    return round_up((columns + strips - 1) // max(strips, 1), LANES_OF_float)


# ---- U, the weights at each point ----
#
#   operand  0 U (group, strip of columns o, point, c, o), 1 w (strides o, c, k, l)
#   size     5 from one group's w to the next's
#   parts    the channels c of all groups

cdef int winograd_weights(float* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* w = &call.operand[1]
    cdef const Tiling* tiling = get_tiling(call.window[0].kernel, call.window[1].kernel)
    cdef Py_ssize_t channels = call.size[1], width = strip_width(call.size[2]), columns, strip, part, group, c, o = 0
    cdef float* u
    cdef float taps[MAX_TAPS * WIDEST]
    while o < call.size[2]:
        strip = o // width * width
        columns = min(round_up(call.size[2], LANES_OF_float) - strip, width)
        for part in range(begin, end):
            group, c = part // channels, part % channels
            u = (out + group * tiling.points * channels * round_up(call.size[2], WIDEST)
                 + strip * tiling.points * channels + c * columns + o - strip)
            read_taps(taps, <const float*> w.data + group * call.size[5] + c * w.stride[1] + o * w.stride[0], call,
                      min(call.size[2] - o, <Py_ssize_t> LANES_OF_float))
            tiling.window(<const Vector*> taps, u, channels * columns)
        o += LANES_OF_float
    return CONTINUE


# The windows of so many neighbouring output channels: tap after tap, one channel in each lane, then zeros. If the taps
# of a window are neighbours, as they mostly are, a block of windows is transposed in registers.
cdef void read_taps(float* taps, const float* w, const Call* call, Py_ssize_t lanes) noexcept nogil:
    cdef const Operand* operand = &call.operand[1]
    cdef Py_ssize_t height = call.window[0].kernel, width = call.window[1].kernel, i, j, lane
    if lanes < LANES_OF_float:
        memset(taps, 0, height * width * LANES_OF_float * sizeof(float))
    if operand.stride[3] == 1 and (operand.stride[2] == width or height == 1):
        transpose(taps, LANES_OF_float, w, operand.stride[0], <int> lanes, height * width)
        return
    for i in range(height):
        for j in range(width):
            for lane in range(lanes):
                taps[(i * width + j) * LANES_OF_float + lane] = w[lane * operand.stride[0] + i * operand.stride[2]
                                                                  + j * operand.stride[3]]


# ---- y ----
#
#   operand  0 y, 1 x (strides n, c, h, w), 2 U, 3 bias or absent
#   parts    the tiles of all images

cdef int winograd_convolution(float* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Tiling* tiling = get_tiling(call.window[0].kernel, call.window[1].kernel)
    cdef Tiles tiles = make_tiles(call, &call.operand[1], &call.operand[0], tiling)
    cdef Py_ssize_t row = round_up(call.size[1], LANES_OF_float), width = strip_width(call.size[2])
    cdef Py_ssize_t block = round_down(tiles_per_block(tiling, row, row + width), TILE_ROWS)
    cdef Py_ssize_t plane = plane_size(block, row), count, group, t
    cdef float* zeros = <float*> packed_b
    cdef float* values = zeros + row
    cdef float* sums = values + tiling.points * plane
    cdef const float* x
    cdef Tile tile
    memset(zeros, 0, row * sizeof(float))
    while begin < end:
        count = min(block, end - begin)
        for group in range(call.size[3]):
            x = <const float*> call.operand[1].data + group * call.size[1]
            for t in range(count):
                tile = get_tile(&tiles, tiling, begin + t)
                tiling.pixels(x + tile.image * tiles.x.image, &tiles.x, tile.top - call.window[0].padding,
                              tile.left - call.window[1].padding, call.size[1], zeros, values + t * row, plane)
            write_block(out, call, tiling, &tiles, group, begin, count, values, plane, sums, plane_size(block, width))
        begin += count
    return CONTINUE


# The outputs of so many tiles from number `first` on, in one group, from V.
cdef void write_block(float* out, const Call* call, const Tiling* tiling, const Tiles* tiles, Py_ssize_t group,
                      Py_ssize_t first, Py_ssize_t count, const float* values, Py_ssize_t plane, float* sums,
                      Py_ssize_t sums_plane) noexcept nogil:
    cdef Py_ssize_t channels = call.size[1], outputs = round_up(call.size[2], LANES_OF_float), k, t, column = 0
    cdef Py_ssize_t width = strip_width(outputs)
    cdef const float* weights = (<const float*> call.operand[2].data
                                 + group * tiling.points * channels * round_up(call.size[2], WIDEST))
    cdef Strip strip
    memset(&strip, 0, sizeof(Strip))
    strip.rows, strip.a_row, strip.a_k = count, round_up(channels, LANES_OF_float), 1
    strip.b_column, strip.y_row = 1, width
    while column < outputs:
        strip.columns = strip.b_k = min(outputs - column, width)
        for k in range(tiling.points):
            strip.a, strip.y = values + k * plane, sums + k * sums_plane
            strip.b = weights + (column * tiling.points + k * strip.columns) * channels
            sum_over_channels(&strip, channels)
        for t in range(count):
            write_tile(out, call, tiling, tiles, first + t, group * call.size[2] + column,
                       min(call.size[2] - column, width), sums + t * width, sums_plane)
        column += width


# The sums of a strip at one point.
cdef inline void sum_over_channels(Strip* strip, Py_ssize_t channels) noexcept nogil:
    strip.accumulate = False
    while channels > 0:
        strip.k = min(channels, MAX_CHANNELS)
        strip_float(strip)
        strip.a = <const float*> strip.a + strip.k
        strip.b = <const float*> strip.b + strip.k * strip.b_k
        strip.accumulate = True
        channels -= strip.k


# The output channels from `column` on of a tile.
cdef void write_tile(float* out, const Call* call, const Tiling* tiling, const Tiles* tiles, Py_ssize_t number,
                     Py_ssize_t column, Py_ssize_t columns, const float* sums, Py_ssize_t plane) noexcept nogil:
    cdef Tile tile = get_tile(tiles, tiling, number)
    cdef Py_ssize_t at = tile.image * tiles.y.image + column, i, j
    cdef const float* bias = <const float*> call.operand[3].data
    cdef Epilogue after
    cdef bint in_registers = set_epilogue(&after, call, at)
    after.bias = bias + column if bias != NULL else <const float*> NULL
    tiling.sums(sums, plane, out + at, &tiles.y, tile.top, tile.left, columns, &after)
    if not in_registers:
        for i in range(tile.top, min(tile.top + tiling.down, tiles.y.height)):
            for j in range(tile.left, min(tile.left + tiling.along, tiles.y.width)):
                apply_epilogue(out + at + i * tiles.y.row + j * tiles.y.pixel, call, columns)


# Lay out what can be done to outputs, from number `at` on, while they are in registers. Returns whether that is all.
cdef inline bint set_epilogue(Epilogue* after, const Call* call, Py_ssize_t at) noexcept nogil:
    cdef const Operand* operand = &call.operand[EPILOGUE]
    cdef const Operand* other = &operand[2] if operand[1].data == NULL else &operand[1]
    after.mask = after.other = NULL
    after.relu = False
    if call.op == NOTHING:
        return True
    if operand[0].data != NULL or (operand[1].data != NULL and operand[2].data != NULL):
        return False
    if call.op == RELU and other.data == NULL:
        after.relu = True
        return True
    if other.data == NULL or other.stride[0] != 1:
        return False
    if call.op == RELU_GRAD and operand[1].data == NULL:
        after.mask = <const float*> other.data + at
    elif call.op == ADD:
        after.other = <const float*> other.data + at
    return call.op == ADD or after.mask != NULL


# ---- the gradient of w ----
#
#   operand  0 S (chunk, group, point, c, o), 1 x, 2 dy (strides n, c, h, w)
#   size     4 the chunks of tiles, each with sums of its own
#   parts    blocks of channels c of each chunk
#
# The bindings divide the tiles into chunks, and threads share these. Their number depends on shapes alone.
# Threads that share a chunk take different channels, and each transforms dy again.

cdef int winograd_sums(float* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Tiling* tiling = get_tiling(call.window[0].kernel, call.window[1].kernel)
    cdef Tiles tiles = make_tiles(call, &call.operand[1], &call.operand[2], tiling)
    cdef Py_ssize_t blocks = (call.size[1] + WIDEST - 1) // WIDEST, chunk, first, last, group
    cdef Py_ssize_t max_channels = MAX_SUMS // (tiling.points * round_up(call.size[2], WIDEST) * WIDEST)
    max_channels = max(min(max_channels, blocks), 1)
    while begin < end:
        chunk, first = begin // blocks, begin % blocks
        last = min(first + min(end - begin, max_channels), blocks)
        for group in range(call.size[3]):
            sum_chunk(out, call, tiling, &tiles, chunk, group, max_channels * WIDEST, first * WIDEST,
                      min(last * WIDEST, call.size[1]))
        begin += last - first
    return CONTINUE


# The sums of a chunk for the channels c from `begin` to before `end` of a group, which are at most `max_channels`.
cdef void sum_chunk(float* out, const Call* call, const Tiling* tiling, const Tiles* tiles, Py_ssize_t chunk,
                    Py_ssize_t group, Py_ssize_t max_channels, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t all_tiles = call.size[0] * tiles.down * tiles.along, first = all_tiles * chunk // call.size[4]
    cdef Py_ssize_t last = all_tiles * (chunk + 1) // call.size[4], count, t
    cdef Py_ssize_t dy_row = round_up(call.size[2], LANES_OF_float)
    cdef Py_ssize_t block = tiles_per_block(tiling, max(max_channels, dy_row), max_channels + dy_row)
    cdef Py_ssize_t plane = plane_size(block, max_channels), dy_plane = plane_size(block, dy_row)
    cdef float* zeros = <float*> packed_b
    cdef float* values = zeros + max(max_channels, dy_row)
    cdef float* dy_values = values + tiling.points * plane
    cdef const float* x = <const float*> call.operand[1].data + group * call.size[1] + begin
    cdef const float* dy = <const float*> call.operand[2].data + group * call.size[2]
    cdef Strip strip
    cdef Tile tile
    memset(zeros, 0, max(max_channels, dy_row) * sizeof(float))
    memset(&strip, 0, sizeof(Strip))
    strip.rows, strip.a_row, strip.a_k, strip.b_column, strip.b_k = end - begin, 1, max_channels, 1, dy_row
    out += (chunk * call.size[3] + group) * tiling.points * call.size[1] * round_up(call.size[2], WIDEST)
    while True:                           # at least once: without tiles, the sums are 0
        count = min(block, last - first)
        for t in range(count):
            tile = get_tile(tiles, tiling, first + t)
            tiling.pixels(x + tile.image * tiles.x.image, &tiles.x, tile.top - call.window[0].padding,
                          tile.left - call.window[1].padding, end - begin, zeros, values + t * max_channels, plane)
            tiling.gradients(dy + tile.image * tiles.y.image, &tiles.y, tile.top, tile.left, call.size[2], zeros,
                             dy_values + t * dy_row, dy_plane)
        strip.k = count
        products_at_points(out, call, tiling, &strip, begin, values, plane, dy_values, dy_plane)
        strip.accumulate = True
        first += count
        if first == last:
            break


# Add the products of a block of tiles to the sums of these channels, or write them.
cdef void products_at_points(float* out, const Call* call, const Tiling* tiling, Strip* strip, Py_ssize_t channel,
                             const float* values, Py_ssize_t plane, const float* dy_values,
                             Py_ssize_t dy_plane) noexcept nogil:
    cdef Py_ssize_t outputs = round_up(call.size[2], LANES_OF_float), width = strip_width(outputs), k, column
    strip.y_row = round_up(call.size[2], WIDEST)
    for k in range(tiling.points):
        strip.a = values + k * plane
        column = 0
        while column < outputs:
            strip.columns = min(outputs - column, width)
            strip.b = dy_values + k * dy_plane + column
            strip.y = out + (k * call.size[1] + channel) * strip.y_row + column
            strip_float(strip)
            column += width


#   operand  0 dw (strides o, c, k, l), 1 S
#   parts    the channels c of all groups

cdef int winograd_weight_grad(float* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Tiling* tiling = get_tiling(call.window[0].kernel, call.window[1].kernel)
    cdef Py_ssize_t channels = call.size[1], row = round_up(call.size[2], WIDEST), part, group, c, o
    cdef const float* sums = <const float*> call.operand[1].data
    cdef float at_points[MAX_POINTS * WIDEST]
    cdef float taps[MAX_TAPS * WIDEST]
    for part in range(begin, end):
        group, c, o = part // channels, part % channels, 0
        while o < call.size[2]:
            add_chunks(at_points, sums + (group * tiling.points * channels + c) * row + o, call, tiling.points,
                       channels * row)
            tiling.window_sums(<Vector*> taps, <const Vector*> at_points)
            write_taps(out + (group * call.size[2] + o) * call.operand[0].stride[0] + c * call.operand[0].stride[1],
                       taps, call, min(call.size[2] - o, <Py_ssize_t> LANES_OF_float))
            o += LANES_OF_float
    return CONTINUE


# The sums of neighbouring output channels at each point, added up over the chunks.
cdef void add_chunks(float* total, const float* sums, const Call* call, Py_ssize_t points,
                     Py_ssize_t plane) noexcept nogil:
    cdef Py_ssize_t chunk, k, lane
    for k in range(points):
        for lane in range(LANES_OF_float):
            total[k * LANES_OF_float + lane] = sums[k * plane + lane]
    for chunk in range(1, call.size[4]):
        for k in range(points):
            for lane in range(LANES_OF_float):
                total[k * LANES_OF_float + lane] += sums[(chunk * call.size[3] * points + k) * plane + lane]


cdef void write_taps(float* dw, const float* taps, const Call* call, Py_ssize_t lanes) noexcept nogil:
    cdef const Operand* operand = &call.operand[0]
    cdef Py_ssize_t i, j, lane
    cdef const float* tap
    cdef float* at
    for lane in range(lanes):
        for i in range(call.window[0].kernel):
            for j in range(call.window[1].kernel):
                at = dw + lane * operand.stride[0] + i * operand.stride[2] + j * operand.stride[3]
                tap = taps + (i * call.window[1].kernel + j) * LANES_OF_float + lane
                at[0] = at[0] + tap[0] if call.accumulate else tap[0]


include "../generated/publish_winograd.pxi"
