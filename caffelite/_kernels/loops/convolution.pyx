# Direct convolutions: every tap of the window is multiplied with every pixel.
#
#   y[n, o, i, j] = bias[o] + Σ_k,l Σ_c  x[n, c, s i + d k − p, s j + d l − p] w[o, c, k, l]
#
# The stride is s, the dilation d and the padding p. Outside of the image, x is 0. A transposed convolution goes the
# other way, from the positions of the window to the pixels under it:
#
#   y[.., s i + d k − p, ..] += x[.., i, ..] w[o, c, k, l]
#
# It is a layer, and it is the gradient of a convolution's input.
#
# The loops skip taps (k, l) that are outside x. They do not copy windows into a matrix (im2col). They add up like
# a matrix product in which each row of an operand begins where the channels of a tap begin. The register tile of
# matmul.pyx computes them; `Strip.runs` says where the rows begin. The order of the operands in memory decides which
# one is read as vectors:
#
#   images last, memory order (C, H, W, n)     x. A vector holds one pixel of many images, or neighbouring pixels. Each
#                                              vector is multiplied by single weights, which may have any strides.
#                                              This order is for few channels: all vectors are full.
#   channels last, memory order (n, H, W, C)   w, whose output channels are neighbours. Each vector is multiplied by
#                                              single pixels of several images. This order is for many channels: what a
#                                              tile reads of x is in one place.
#
# Every element of y is summed in the same order, k, then l, then c, wherever it is in y. A transposed convolution
# starts from the last k and l.
#
#   size     0 n, 1 channels of x and 2 of y in each group, 3 groups, 4 transposed, 5 from one group's w to the next's,
#            6 channels last
#   window   0 along the height, 1 along the width
#   operand  0 y, 1 x (strides n, c, h, w), 2 w (strides o, c, k, l), 3 bias or absent
#   parts    images last: the pixels of y; channels last: the pixels of some images at a time; depthwise, channels last:
#            the lines of y's images along their longer side

from caffelite._kernels.loops.elementwise cimport apply_epilogue
from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.matmul cimport (
    READS_LANES, Strip, lanes, strip_columns, strip_of_runs,
)

cdef extern from "loops/taps.h" nogil:
    ctypedef struct TapSums:
        Py_ssize_t rows, taps, x_row, y_row
        const Py_ssize_t* x_at
        const Py_ssize_t* w_at
        const void* x
        const void* w
        const void* bias
        void* y
        int lanes
        bint same, resume
    void sum_taps(const void* out, const TapSums* args)  # out is float* or double*: the type of the numbers

cdef extern from "loops/dots.h" nogil:
    ctypedef struct Dots:
        Py_ssize_t rows, pixels, columns, a_rows, a_row, a_down, a_along, b_rows, b_down, b_along, sum_row, sum_j
        const void* a
        const void* b
        const Py_ssize_t* b_j
        void* sums
    void all_dots(const void* out, const Dots* dots)
    double any_sum_lanes "sum_lanes"(const void* lanes)


cdef enum:
    MAX_RUNS = 64                         # runs that a tile adds up; then its sums wait in y for the next runs
    IMAGES = 16                           # channels last: images that a tile takes together,
    PIXELS = 64                           # or pixels of one image,
    WEIGHTS_BYTES = 524_288               # and the most bytes of weights that are used with them


cdef struct Taps:                         # a window's taps that are inside x, along one axis, at one place of y
    Py_ssize_t first, step, count         # their numbers in the window
    Py_ssize_t at, reach                  # the first tap's place in x, and how much further each next tap is


cdef Taps get_taps(const Window* window, bint is_transposed, Py_ssize_t i) noexcept nogil:
    cdef Taps taps
    cdef Py_ssize_t stride = window.stride, dilation = window.dilation, last, at
    if not is_transposed:
        taps.at = i * stride - window.padding
        taps.step, taps.reach = 1, dilation
        taps.first = 0 if taps.at >= 0 else quotient(dilation - 1 - taps.at, dilation)
        taps.at += taps.first * dilation
        last = window.length - 1
        taps.count = 0 if taps.at > last else quotient(last - taps.at, dilation) + 1
        taps.count = max(min(taps.count, window.kernel - taps.first), 0)
        return taps
    taps.step = quotient(stride, common_divisor(stride, dilation))
    taps.reach = -quotient(dilation * taps.step, stride)
    taps.first, taps.count = 0, 0
    at = i + window.padding
    while taps.first < min(taps.step, window.kernel) and quotient(at, stride) * stride != at:
        taps.first += 1
        at -= dilation
    if taps.first >= min(taps.step, window.kernel):
        return taps
    # C's division rounds towards 0. Here it does not round: the number is a multiple of the stride.
    taps.at = quotient(at, stride)
    last = window.count - 1
    if taps.at > last:                    # skip taps that belong to positions behind the last one
        i = quotient(taps.at - last - taps.reach - 1, -taps.reach)
        taps.first += i * taps.step
        taps.at += i * taps.reach
    if taps.at >= 0 and taps.first < window.kernel:
        taps.count = min(quotient(taps.at, -taps.reach), quotient(window.kernel - 1 - taps.first, taps.step)) + 1
        # Begin with the last tap: then the places in x go up.
        taps.first += (taps.count - 1) * taps.step
        taps.at += (taps.count - 1) * taps.reach
        taps.step, taps.reach = -taps.step, -taps.reach
    return taps


cdef inline Py_ssize_t common_divisor(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    while b > 1:
        a, b = b, a % b
    return 1 if b == 1 else a


# a // b, without the division, which takes as long as ten vectors, if b is 1, as strides and dilations mostly are.
cdef inline Py_ssize_t quotient(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return a if b == 1 else a // b


cdef inline bint has_same_taps(const Taps* a, const Taps* b) noexcept nogil:
    """Return whether the same taps are inside x."""
    return a.first == b.first and a.count == b.count


# ---- the runs of a tile's sums ----

cdef struct Runs:
    Py_ssize_t count, k                   # the number of runs, and the number of terms in each run
    Py_ssize_t x_k, w_k                   # the distance from one term to the next
    Py_ssize_t x[MAX_RUNS]                # the place of each run, counted from the first run
    Py_ssize_t w[MAX_RUNS]
    Py_ssize_t x_first, w_first           # the place of the first run
    Py_ssize_t next                       # the number of the first run that did not fit; 0 if all did


# The runs over these taps, beginning with run number `begin`. A run goes over the channels of one tap. If the taps of a
# row are neighbours in memory, a run goes over all their channels.
cdef void make_runs(Runs* runs, const Taps* down, const Taps* along, Py_ssize_t channels, const Operand* x,
                    const Operand* w, Py_ssize_t begin) noexcept nogil:
    cdef Py_ssize_t x_along = along.reach * x.stride[3], w_along = along.step * w.stride[3]
    cdef Py_ssize_t x_down = down.reach * x.stride[2], w_down = down.step * w.stride[2], across = along.count, at
    runs.k, runs.x_k, runs.w_k = channels, x.stride[1], w.stride[1]
    runs.count = runs.next = runs.x_first = runs.w_first = 0
    if down.count == 0 or across == 0:    # the whole window is in the padding
        return
    if channels == 1:
        runs.k, runs.x_k, runs.w_k, across = along.count, x_along, w_along, 1
    elif x_along == channels * x.stride[1] and w_along == channels * w.stride[1]:
        runs.k, across = along.count * channels, 1
    runs.x_first = down.at * x.stride[2] + along.at * x.stride[3] + begin // across * x_down + begin % across * x_along
    runs.w_first = (down.first * w.stride[2] + along.first * w.stride[3]
                    + begin // across * w_down + begin % across * w_along)
    at = begin
    while at < down.count * across and runs.count < MAX_RUNS:
        runs.x[runs.count] = (at // across - begin // across) * x_down + (at % across - begin % across) * x_along
        runs.w[runs.count] = (at // across - begin // across) * w_down + (at % across - begin % across) * w_along
        runs.count += 1
        at += 1
    runs.next = at if at < down.count * across else 0


# Each tap by itself, from number `begin` on.
cdef void make_taps(Runs* taps, const Taps* down, const Taps* along, const Operand* x, const Operand* w,
                    Py_ssize_t begin) noexcept nogil:
    cdef Py_ssize_t at = begin, i, j
    taps.count = 0
    while at < down.count * along.count and taps.count < MAX_RUNS:
        i, j = at // along.count, at % along.count
        taps.x[taps.count] = (down.at + i * down.reach) * x.stride[2] + (along.at + j * along.reach) * x.stride[3]
        taps.w[taps.count] = ((down.first + i * down.step) * w.stride[2]
                              + (along.first + j * along.step) * w.stride[3])
        taps.count += 1
        at += 1
    taps.next = at if at < down.count * along.count else 0


# ---- y ----

# Whether each channel goes into one channel alone ("depthwise"): there is no sum over channels, and no product.
cdef inline bint is_depthwise(const Call* call) noexcept nogil:
    return call.size[1] == 1 and call.size[2] == 1


cdef int convolution(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    if call.size[6] and is_depthwise(call):
        depthwise_channels_last(out, call, begin, end)
    elif call.size[6]:
        convolve_channels_last(out, call, begin, end)
    else:
        convolve_images_last(out, call, begin, end)
    return CONTINUE


cdef void convolve_images_last(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* y = &call.operand[0]
    cdef const Operand* x = &call.operand[1]
    cdef Py_ssize_t n = call.size[0], width = outputs_along(call, 1), i, j, next_j, columns
    cdef Taps down, along
    while begin < end:                    # neighbouring pixels of y whose windows have the same taps inside x
        i, j = begin // width, begin % width
        down, along = get_taps(&call.window[0], call.size[4], i), get_taps(&call.window[1], call.size[4], j)
        next_j = j + 1
        if call.window[1].stride == 1 and y.stride[3] == n and x.stride[3] == n:
            next_j = taps_end(call, 1, &along, j, min(width, j + end - begin))
        columns = (next_j - j) * n
        if is_depthwise(call):
            sum_images(out + i * y.stride[2] + j * y.stride[3], call, &down, &along, columns)
        else:
            convolve_images(out + i * y.stride[2] + j * y.stride[3], call, &down, &along, columns)
        begin += next_j - j


# Columns of y that are neighbours, of the pixels of images, channel by channel.
cdef void sum_images(real* out, const Call* call, const Taps* down, const Taps* along,
                     Py_ssize_t columns) noexcept nogil:
    cdef const Operand* x = &call.operand[1]
    cdef const Operand* w = &call.operand[2]
    cdef const real* bias = <const real*> call.operand[3].data
    cdef Py_ssize_t channel, tap = 0, whole = columns - columns % lanes(out)
    cdef Runs taps
    cdef TapSums rows
    rows.same, rows.resume, rows.bias = True, False, NULL
    rows.x_row = rows.y_row = lanes(out)
    rows.x_at, rows.w_at = taps.x, taps.w
    while True:
        make_taps(&taps, down, along, x, w, tap)
        rows.taps = taps.count
        for channel in range(call.size[3]):
            rows.w = <const real*> w.data + channel * call.size[5]
            rows.x = <const real*> x.data + channel * x.stride[1]
            rows.y = out + channel * call.operand[0].stride[1]
            if bias != NULL and not taps.next:
                rows.bias = bias + channel
            rows.rows, rows.lanes = whole // lanes(out), <int> lanes(out)
            sum_taps(out, &rows)
            if whole < columns:
                rows.x = <const real*> rows.x + whole
                rows.y = <real*> rows.y + whole
                rows.rows, rows.lanes = 1, <int> (columns - whole)
                sum_taps(out, &rows)
            if taps.next == 0:
                apply_epilogue(out + channel * call.operand[0].stride[1], call, columns)
        if taps.next == 0:
            break
        tap, rows.resume = taps.next, True


# Neighbouring columns of y, images last: a column is a pixel of an image, and a row is an output channel.
cdef void convolve_images(real* out, const Call* call, const Taps* down, const Taps* along,
                          Py_ssize_t columns) noexcept nogil:
    cdef const Operand* y = &call.operand[0]
    cdef const Operand* x = &call.operand[1]
    cdef const Operand* w = &call.operand[2]
    cdef const real* bias = <const real*> call.operand[3].data
    cdef Py_ssize_t width = strip_width(out, columns), group, column, tap = 0
    cdef Py_ssize_t r
    cdef bint in_registers = epilogue_fits_registers(call)
    cdef Runs runs
    cdef Strip strip
    strip.b_column = 1
    strip.bias = strip.row_bias = strip.mask = NULL
    strip.accumulate = strip.relu = strip.resume = False
    strip.rows, strip.a_row, strip.y_row = call.size[2], w.stride[0], y.stride[1]
    while True:
        make_runs(&runs, down, along, call.size[1], x, w, tap)
        strip.k, strip.runs = runs.k if runs.count > 0 else 0, runs.count
        strip.a_k, strip.b_k, strip.a_run, strip.b_run = runs.w_k, runs.x_k, runs.w, runs.x
        for group in range(call.size[3]):
            strip.a = <const real*> w.data + group * call.size[5] + runs.w_first
            if bias != NULL and not runs.next:
                strip.row_bias = bias + group * call.size[2]
            column = 0
            while column < columns:
                strip.columns = min(columns - column, width)
                strip.b = <const real*> x.data + group * call.size[1] * x.stride[1] + runs.x_first + column
                strip.y = out + group * call.size[2] * y.stride[1] + column
                if in_registers and runs.next == 0:
                    set_epilogue(<real*> strip.y, call, &strip)
                run_strip_of_runs(out, &strip)
                column += width
            if runs.next == 0 and not in_registers:
                for r in range(group * call.size[2], (group + 1) * call.size[2]):
                    apply_epilogue(out + r * y.stride[1], call, columns)
        if runs.next == 0:
            break
        tap, strip.resume = runs.next, True


cdef void convolve_channels_last(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* y = &call.operand[0]
    cdef const Operand* x = &call.operand[1]
    cdef Py_ssize_t height = outputs_along(call, 0), width = outputs_along(call, 1), images = call.size[0]
    cdef Py_ssize_t columns = call.size[2], block = columns_per_block(out, call), group, column, part, i, j, n, next_j
    cdef Taps down, along
    for group in range(call.size[3]):
        column = group * columns
        while column < (group + 1) * columns:
            part = begin
            while part < end:
                n, i, j = part // (height * width), part // width % height, part % width
                next_j = j + 1
                if images < IMAGES:       # few images: the rows of a tile are pixels of one image
                    next_j = min(width, j + end - part)
                    convolve_line(out, call, n, i, j, next_j, column, min((group + 1) * columns, column + block))
                else:
                    n *= IMAGES
                    down, along = get_taps(&call.window[0], call.size[4], i), get_taps(&call.window[1], call.size[4], j)
                    convolve_pixels(out + n * y.stride[0] + i * y.stride[2] + j * y.stride[3], call, &down, &along, n,
                                    min(images - n, IMAGES), y.stride[0], x.stride[0], column,
                                    min((group + 1) * columns, column + block))
                part += next_j - j
            column += block


# The number of output channels whose weights fit into a part of the second-level cache, in whole strips.
cdef inline Py_ssize_t columns_per_block(const real* out, const Call* call) noexcept nogil:
    cdef Py_ssize_t terms = call.size[1] * call.window[0].kernel * call.window[1].kernel
    cdef Py_ssize_t max_columns = max(WEIGHTS_BYTES // <Py_ssize_t> sizeof(real) // max(terms, 1), 1)
    return max(max_columns // strip_columns(out), 1) * strip_columns(out)


# The pixels of y from number j to before `last` of a line. Those that have the same taps inside x are rows of a tile.
# Of a transposed convolution they lie a stride apart: there, neighbours have other taps.
cdef void convolve_line(real* out, const Call* call, Py_ssize_t n, Py_ssize_t i, Py_ssize_t j, Py_ssize_t last,
                        Py_ssize_t column, Py_ssize_t end) noexcept nogil:
    cdef const Operand* y = &call.operand[0]
    cdef Py_ssize_t step = call.window[1].stride if call.size[4] else 1, phase, at, rows
    cdef Taps down = get_taps(&call.window[0], call.size[4], i), along
    for phase in range(min(step, last - j)):
        at = j + phase
        while at < last:
            along = get_taps(&call.window[1], call.size[4], at)
            rows = min((last - 1 - at) // step + 1, <Py_ssize_t> PIXELS)
            rows = count_same_taps(call, 1, &along, at, step, rows)
            convolve_pixels(out + n * y.stride[0] + i * y.stride[2] + at * y.stride[3], call, &down, &along, n, rows,
                            step * y.stride[3], call.operand[1].stride[3] * pixels_apart(call, 1), column, end)
            at += rows * step


# How many of the pixels j, j + step, …, at most so many, along an axis of y, have windows with the same taps inside x.
# From one of them to the next, a transposed convolution moves by one pixel of x, others by a stride.
cdef Py_ssize_t count_same_taps(const Call* call, int axis, const Taps* taps, Py_ssize_t j, Py_ssize_t step,
                                Py_ssize_t max_count) noexcept nogil:
    cdef const Window* window = &call.window[axis]
    cdef Py_ssize_t count = 1
    cdef Taps next_taps
    if not call.size[4] and taps.count == window.kernel:
        return min(max_count, interior_end(window) - j)
    if call.size[4] and taps.count > 0 and taps.step < 0 and is_phase_inside(window, taps):
        return min(max_count, window.count - (taps.at + (taps.count - 1) * taps.reach))
    while count < max_count:
        next_taps = get_taps(window, call.size[4], j + count * step)
        if not has_same_taps(taps, &next_taps):
            break
        count += 1
    return count


# The first place at which a window, inside x before, sticks out behind it.
cdef inline Py_ssize_t interior_end(const Window* window) noexcept nogil:
    return quotient(window.length - 1 - (window.kernel - 1) * window.dilation + window.padding, window.stride) + 1


# Of a transposed convolution: whether all taps that meet pixels of x from here, in steps of a stride, lie inside x.
cdef inline bint is_phase_inside(const Window* window, const Taps* taps) noexcept nogil:
    return taps.first - taps.step >= window.kernel and taps.first + (taps.count - 1) * taps.step < -taps.step


# The first place after j, before `end`, along an axis of y, whose window has other taps inside x.
cdef Py_ssize_t taps_end(const Call* call, int axis, const Taps* taps, Py_ssize_t j, Py_ssize_t end) noexcept nogil:
    if call.size[4] and call.window[axis].stride > 1:
        return j + 1
    return j + count_same_taps(call, axis, taps, j, 1, end - j)


# The distance in pixels of x from one pixel of y to the next, if their windows have the same taps inside x.
cdef inline Py_ssize_t pixels_apart(const Call* call, int axis) noexcept nogil:
    return 1 if call.size[4] else call.window[axis].stride


# Channels last, channel by channel: image after image, along its longer side, over whose pixels weights are the same.
cdef void depthwise_channels_last(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* y = &call.operand[0]
    cdef const Operand* x = &call.operand[1]
    cdef int longer = outputs_along(call, 1) >= outputs_along(call, 0), shorter = not longer
    cdef Py_ssize_t lines = outputs_along(call, shorter), pixels = outputs_along(call, longer), part, n, i, j, next_j
    cdef Taps taps[2]
    for part in range(begin, end):
        n, i = part // lines, part % lines
        taps[shorter] = get_taps(&call.window[shorter], call.size[4], i)
        j = 0
        while j < pixels:
            taps[longer] = get_taps(&call.window[longer], call.size[4], j)
            next_j = taps_end(call, longer, &taps[longer], j, pixels)
            sum_pixels(out + n * y.stride[0] + i * y.stride[2 + shorter] + j * y.stride[2 + longer], call, &taps[0],
                       &taps[1], n, next_j - j, y.stride[2 + longer],
                       x.stride[2 + longer] * pixels_apart(call, longer))
            j = next_j


# All channels of pixels that lie y_row and x_row apart.
cdef void sum_pixels(real* out, const Call* call, const Taps* down, const Taps* along, Py_ssize_t n, Py_ssize_t rows,
                     Py_ssize_t y_row, Py_ssize_t x_row) noexcept nogil:
    cdef const Operand* x = &call.operand[1]
    cdef const Operand* w = &call.operand[2]
    cdef const real* bias = <const real*> call.operand[3].data
    cdef Py_ssize_t tap = 0, column, r
    cdef Runs taps
    cdef TapSums pixels
    pixels.same, pixels.resume, pixels.bias = False, False, NULL
    pixels.rows, pixels.x_row, pixels.y_row = rows, x_row, y_row
    pixels.x_at, pixels.w_at = taps.x, taps.w
    while True:
        make_taps(&taps, down, along, x, w, tap)
        pixels.taps = taps.count
        column = 0
        while column < call.size[3]:
            pixels.lanes = <int> min(call.size[3] - column, lanes(out))
            pixels.x = <const real*> x.data + n * x.stride[0] + column
            pixels.w = <const real*> w.data + column
            pixels.y = out + column
            if bias != NULL and not taps.next:
                pixels.bias = bias + column
            sum_taps(out, &pixels)
            column += lanes(out)
        if taps.next == 0:
            break
        tap, pixels.resume = taps.next, True
    for r in range(rows):
        apply_epilogue(out + r * y_row, call, call.size[3])


# The channels from `column` to before `end` of such pixels. Each is a sum over all channels of x in its group.
cdef void convolve_pixels(real* out, const Call* call, const Taps* down, const Taps* along, Py_ssize_t n,
                          Py_ssize_t rows, Py_ssize_t y_row, Py_ssize_t x_row, Py_ssize_t column,
                          Py_ssize_t end) noexcept nogil:
    cdef const Operand* x = &call.operand[1]
    cdef const Operand* w = &call.operand[2]
    cdef const real* bias = <const real*> call.operand[3].data
    cdef Py_ssize_t width = strip_width(out, end - column), first_channel = column // call.size[2] * call.size[1]
    cdef Py_ssize_t tap = 0, at, r
    cdef bint in_registers = epilogue_fits_registers(call)
    cdef Runs runs
    cdef Strip strip
    strip.b_column = 1
    strip.bias = strip.row_bias = strip.mask = NULL
    strip.accumulate = strip.relu = strip.resume = False
    strip.rows, strip.a_row, strip.y_row = rows, x_row, y_row
    while True:
        make_runs(&runs, down, along, call.size[1], x, w, tap)
        strip.k, strip.runs = runs.k if runs.count > 0 else 0, runs.count
        strip.a_k, strip.b_k, strip.a_run, strip.b_run = runs.x_k, runs.w_k, runs.x, runs.w
        strip.a = <const real*> x.data + n * x.stride[0] + first_channel * x.stride[1] + runs.x_first
        at = column
        while at < end:
            strip.columns = min(end - at, width)
            strip.b = <const real*> w.data + runs.w_first + at
            strip.y = out + at
            if bias != NULL and not runs.next:
                strip.bias = bias + at
            if in_registers and runs.next == 0:
                set_epilogue(<real*> strip.y, call, &strip)
            run_strip_of_runs(out, &strip)
            at += width
        if runs.next == 0:
            break
        tap, strip.resume = runs.next, True
    if not in_registers:
        for r in range(rows):
            apply_epilogue(out + r * y_row + column, call, end - column)


# Whether the tile can do the epilogue while its sums are in registers: max(y, 0), or 0 where a mask is not above 0.
cdef inline bint epilogue_fits_registers(const Call* call) noexcept nogil:
    if not READS_LANES or call.operand[EPILOGUE].data != NULL or call.operand[EPILOGUE + 1].data != NULL:
        return False
    return call.op == RELU or (call.op == RELU_GRAD and call.operand[EPILOGUE + 2].data != NULL
                               and call.operand[EPILOGUE + 2].stride[0] == 1)


cdef inline void set_epilogue(real* y, const Call* call, Strip* strip) noexcept nogil:
    strip.relu = call.op == RELU
    if call.op == RELU_GRAD:
        strip.mask = <const real*> call.operand[EPILOGUE + 2].data + (y - <real*> call.operand[0].data)
        strip.mask_row = strip.y_row


cdef inline Py_ssize_t outputs_along(const Call* call, int axis) noexcept nogil:
    return call.window[axis].length if call.size[4] else call.window[axis].count


# The width of strips if as few strips as possible share the columns evenly.
cdef inline Py_ssize_t strip_width(const real* out, Py_ssize_t columns) noexcept nogil:
    cdef Py_ssize_t strips = (columns + strip_columns(out) - 1) // strip_columns(out)
    cdef Py_ssize_t vectors = (columns + lanes(out) - 1) // lanes(out)
    return (vectors + strips - 1) // max(strips, 1) * lanes(out)


cdef inline void run_strip_of_runs(const real* out, Strip* strip) noexcept nogil:
    cdef Py_ssize_t columns = strip.columns
    if not READS_LANES:                   # the tile reads whole vectors
        strip.columns -= columns % lanes(out)
        if strip.columns < columns:
            run_strip_scalar(<real*> strip.y, strip, strip.columns, columns)
    if strip.columns > 0:
        strip_of_runs(out, strip)
    strip.columns = columns


cdef void run_strip_scalar(real* y, const Strip* s, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t i, j, run, k
    cdef const real* a
    cdef const real* b
    cdef real total
    for i in range(s.rows):
        for j in range(begin, end):
            total = y[i * s.y_row + j] if s.resume else 0
            for run in range(s.runs):
                a = <const real*> s.a + i * s.a_row + (s.a_run[run] if run > 0 else 0)
                b = <const real*> s.b + j + (s.b_run[run] if run > 0 else 0)
                for k in range(s.k):
                    total += a[k * s.a_k] * b[k * s.b_k]
            if s.bias != NULL:
                total += (<const real*> s.bias)[j]
            if s.row_bias != NULL:
                total += (<const real*> s.row_bias)[i]
            y[i * s.y_row + j] = total + y[i * s.y_row + j] if s.accumulate else total


# ---- the gradient of w ----
#
#   dw[o, c, k, l] = Σ_n,i,j  x[n, c, s i + d k − p, s j + d l − p] dy[n, o, i, j]
#
# The sum is over the positions at which tap (k, l) is inside x. Images last, x and dy are both read as vectors, and
# each sum is a vector until the end (dots.h). Channels last, it is a matrix product of single numbers of x and vectors
# of dy, on the register tile.
#
#   size     0 n, 1 channels of x and 2 of dy in each group, 3 groups, 6 channels last
#   operand  0 dw (strides o, c, k, l), 1 x, 2 dy (strides n, c, h, w), 3 room for the sums: (o, k, l, c) vectors or
#            (k, l, c, o) numbers
#   parts    the terms k, l, c of an output

cdef enum:
    CHUNK = 512                           # the pixels of a row that are summed before they are added to the others
    BLOCK_VECTORS = 64                    # the vectors of an output channel that meet all terms before the next ones
    FEW_CHANNELS = 4
    MAX_TERMS = 64
    MAX_LANES = 16


cdef int convolution_weight_grad(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t group
    if call.size[6] and is_depthwise(call):
        weight_grad_of_each_channel(out, call, begin, end)
        return CONTINUE
    for group in range(call.size[3]):
        if call.size[6]:
            weight_grad_of_channels(out, call, group, begin, end)
        else:
            weight_grad_of_images(out, call, group, begin, end)
    return CONTINUE


# The positions of a window, from `first` to `last`, at which its tap k is inside x.
cdef inline void tap_positions(const Window* window, Py_ssize_t k, Py_ssize_t* first, Py_ssize_t* last) noexcept nogil:
    cdef Py_ssize_t at = k * window.dilation - window.padding
    first[0] = 0 if at >= 0 else (window.stride - 1 - at) // window.stride
    last[0] = -1 if at >= window.length else min((window.length - 1 - at) // window.stride, window.count - 1)


# The positions of a window at which all its taps are inside x. Terms that are computed together use these, so the order
# of a sum does not depend on where threads divide the terms.
cdef inline void common_positions(const Window* window, Py_ssize_t* first, Py_ssize_t* last) noexcept nogil:
    cdef Py_ssize_t unused
    tap_positions(window, 0, first, &unused)
    tap_positions(window, window.kernel - 1, &unused, last)


cdef void weight_grad_of_images(real* out, const Call* call, Py_ssize_t group, Py_ssize_t begin,
                                Py_ssize_t end) noexcept nogil:
    cdef const Window* down = &call.window[0]
    cdef const Window* along = &call.window[1]
    cdef const Operand* x = &call.operand[1]
    cdef const Operand* dy = &call.operand[2]
    cdef Py_ssize_t channels = call.size[1], row_terms = along.kernel * channels, terms = down.kernel * row_terms
    cdef Py_ssize_t width = max(min(BLOCK_VECTORS * lanes(out) // max(call.size[0], 1), along.count), 1)
    cdef Py_ssize_t height = max(BLOCK_VECTORS * lanes(out) // max(width * call.size[0], 1), 1), i, j, o, term
    cdef real* sums = <real*> call.operand[3].data + group * call.size[2] * terms * lanes(out)
    cdef Dots dots
    for o in range(call.size[2]):
        memset(sums + (o * terms + begin) * lanes(out), 0, (end - begin) * lanes(out) * sizeof(real))
    dots.columns, dots.a_rows, dots.a_row = call.size[0], call.size[2], dy.stride[1]
    dots.a_down, dots.b_down = dy.stride[2], down.stride * x.stride[2]
    dots.sum_row, dots.sum_j = terms * lanes(out), lanes(out)
    dots.sums = sums
    dots.a = <const real*> dy.data + group * call.size[2] * dy.stride[1]
    dots.b = <const real*> x.data + group * channels * x.stride[1]
    i = 0
    while i < down.count:                 # blocks of dy, so small that a tile's rows stay in the first-level cache
        j = 0
        while j < along.count:
            dots_of_block(out, call, &dots, begin, end, i, i + height - 1, j, j + width - 1)
            j += width
        i += height
    for o in range(call.size[2]):
        for term in range(begin, end):
            add_to(out, call, group * call.size[2] + o, term, sum_lanes(sums + (o * terms + term) * lanes(out)))


# Add the positions from (top, left) to (bottom, right) to these terms.
cdef void dots_of_block(const real* out, const Call* call, const Dots* dots, Py_ssize_t begin, Py_ssize_t end,
                        Py_ssize_t top, Py_ssize_t bottom, Py_ssize_t left, Py_ssize_t right) noexcept nogil:
    cdef const Window* down = &call.window[0]
    cdef Py_ssize_t channels = call.size[1], row_terms = call.window[1].kernel * channels, term = begin, k, first, last
    cdef Py_ssize_t count
    cdef Dots block_dots = dots[0]
    while term < end:
        k = term // row_terms
        # Few channels: take the next columns of the window too. Many channels: one tap at a time, at all its positions.
        count = min(end, (k + 1) * row_terms if channels < FEW_CHANNELS else (term // channels + 1) * channels) - term
        count = min(count, MAX_TERMS)
        tap_positions(down, k, &first, &last)
        first, last = max(first, top), min(last, bottom)
        if first <= last:
            block_dots.rows = last - first + 1
            block_dots.sums = <real*> dots.sums + term * dots.sum_j
            block_dots.a = <const real*> dots.a + first * block_dots.a_down
            block_dots.b = (<const real*> dots.b + first * block_dots.b_down
                            + (k * down.dilation - down.padding) * call.operand[1].stride[2])
            dots_of_terms(out, call, &block_dots, term % row_terms, count, left, right)
        term += count


# The terms (l, c) from number `term` on, all in one row of the window. Few channels: first all terms together, at the
# positions where all taps of the row are inside x, then each term at its other positions. Many channels: the terms of
# one tap at all its positions.
cdef void dots_of_terms(const real* out, const Call* call, Dots* dots, Py_ssize_t term, Py_ssize_t count,
                        Py_ssize_t left, Py_ssize_t right) noexcept nogil:
    cdef const Window* along = &call.window[1]
    cdef Py_ssize_t channels = call.size[1], j, first, last, common_first, common_last
    cdef Py_ssize_t begins[MAX_TERMS]
    cdef Dots term_dots = dots[0]
    for j in range(count):
        begins[j] = (((term + j) // channels * along.dilation - along.padding) * call.operand[1].stride[3]
                     + (term + j) % channels * call.operand[1].stride[1])
    dots.b_rows, dots.b_j = count, begins
    if channels >= FEW_CHANNELS:
        tap_positions(along, term // channels, &first, &last)
        dots_of_positions(out, call, dots, max(first, left), min(last, right))
        return
    common_positions(along, &common_first, &common_last)
    common_first, common_last = max(common_first, left), min(common_last, right)
    dots_of_positions(out, call, dots, common_first, common_last)
    term_dots.b_rows = 1
    for j in range(count):
        tap_positions(along, (term + j) // channels, &first, &last)
        first, last = max(first, left), min(last, right)
        term_dots.b_j = &begins[j]
        term_dots.sums = <real*> dots.sums + j * dots.sum_j
        if common_first > common_last:
            dots_of_positions(out, call, &term_dots, first, last)
        else:
            dots_of_positions(out, call, &term_dots, first, common_first - 1)
            dots_of_positions(out, call, &term_dots, common_last + 1, last)


cdef void dots_of_positions(const real* out, const Call* call, const Dots* dots, Py_ssize_t first,
                            Py_ssize_t last) noexcept nogil:
    cdef Dots block_dots = dots[0]
    cdef Py_ssize_t stride = call.window[1].stride * call.operand[1].stride[3]
    if first > last:
        return
    block_dots.a = <const real*> block_dots.a + first * call.operand[2].stride[3]
    block_dots.b = <const real*> block_dots.b + first * stride
    block_dots.a_along, block_dots.b_along = call.operand[2].stride[3], stride
    block_dots.pixels = last - first + 1
    if block_dots.a_along == block_dots.columns and block_dots.b_along == block_dots.columns and not call.size[6]:
        block_dots.pixels, block_dots.columns = 1, block_dots.pixels * block_dots.columns
    all_dots(out, &block_dots)


# Depthwise, channels last: a lane is a channel, and the dot products are over the pixels of each image.
cdef void weight_grad_of_each_channel(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Window* down = &call.window[0]
    cdef const Window* along = &call.window[1]
    cdef const Operand* x = &call.operand[1]
    cdef const Operand* dy = &call.operand[2]
    cdef Py_ssize_t channels = call.size[3], column, columns, first, last, term, n, j
    cdef real* sums = <real*> call.operand[3].data
    cdef real image_sums[MAX_TERMS * MAX_LANES]
    cdef Dots dots
    memset(sums + begin * channels, 0, (end - begin) * channels * sizeof(real))
    dots.a_rows, dots.a_row, dots.a_down, dots.b_down = 1, 0, dy.stride[2], down.stride * x.stride[2]
    dots.sum_row, dots.sum_j = 0, lanes(out)
    for n in range(call.size[0]):
        column = 0
        while column < channels:
            columns = min(channels - column, lanes(out))
            dots.columns = columns
            dots.a = <const real*> dy.data + n * dy.stride[0] + column
            dots.b = <const real*> x.data + n * x.stride[0] + column
            first = begin
            while first < end:
                last = min(end, first + MAX_TERMS)
                memset(image_sums, 0, (last - first) * lanes(out) * sizeof(real))
                dots.sums = image_sums - first * lanes(out)
                dots_of_block(out, call, &dots, first, last, 0, down.count - 1, 0, along.count - 1)
                for term in range(first, last):
                    for j in range(columns):
                        sums[term * channels + column + j] += image_sums[(term - first) * lanes(out) + j]
                first = last
            column += columns
    for term in range(begin, end):
        for column in range(channels):
            add_to(out, call, column, term, sums[term * channels + column])


cdef void weight_grad_of_channels(real* out, const Call* call, Py_ssize_t group, Py_ssize_t begin,
                                  Py_ssize_t end) noexcept nogil:
    cdef const Window* down = &call.window[0]
    cdef const Window* along = &call.window[1]
    cdef Py_ssize_t lines = call.size[0] * down.count, line = 0, left, right, term, o
    cdef Py_ssize_t step = max(min(CHUNK // max(along.count, 1), MAX_RUNS), 1)
    cdef Py_ssize_t all_columns = call.size[2] * call.size[3]
    cdef real* sums = <real*> call.operand[3].data + group * call.size[2]
    for term in range(begin, end):
        memset(sums + term * all_columns, 0, call.size[2] * sizeof(real))
    while line < lines:                   # blocks of x and dy that stay in the second-level cache
        left = 0
        while left < along.count:
            right = min(left + CHUNK, along.count) - 1
            tiles_of_terms(sums, call, group, line, min(lines - line, step), left, right, begin, end)
            left += CHUNK
        line += step
    for term in range(begin, end):
        for o in range(call.size[2]):
            add_to(out, call, group * call.size[2] + o, term, sums[term * all_columns + o])


# Add a block of positions to these terms: from `left` to `right` in these lines. Lines are numbered through all images.
# Few channels are computed together with the next columns of the window, if these are neighbours in x and inside it.
cdef void tiles_of_terms(real* sums, const Call* call, Py_ssize_t group, Py_ssize_t line, Py_ssize_t lines,
                         Py_ssize_t left, Py_ssize_t right, Py_ssize_t term, Py_ssize_t end) noexcept nogil:
    cdef const Window* along = &call.window[1]
    cdef Py_ssize_t channels = call.size[1], row_terms = along.kernel * channels, row_end, count
    cdef Py_ssize_t first, last, common_first = 0, common_last = -1
    if channels < FEW_CHANNELS and along.dilation * call.operand[1].stride[3] == channels:
        common_positions(along, &common_first, &common_last)
        common_first, common_last = max(common_first, left), min(common_last, right)
    while term < end:
        row_end = min(end, (term // row_terms + 1) * row_terms)
        tile_of_terms(sums, call, group, line, lines, term, row_end - term, common_first, common_last)
        while term < row_end:
            count = min(row_end, (term // channels + 1) * channels) - term
            tap_positions(along, term % row_terms // channels, &first, &last)
            first, last = max(first, left), min(last, right)
            if common_first > common_last:
                tile_of_terms(sums, call, group, line, lines, term, count, first, last)
            else:
                tile_of_terms(sums, call, group, line, lines, term, count, first, common_first - 1)
                tile_of_terms(sums, call, group, line, lines, term, count, common_last + 1, last)
            term += count


# Add the positions from `first` to `last` of these lines to these terms.
cdef void tile_of_terms(real* sums, const Call* call, Py_ssize_t group, Py_ssize_t line, Py_ssize_t lines,
                        Py_ssize_t term, Py_ssize_t count, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef const Window* down = &call.window[0]
    cdef const Window* along = &call.window[1]
    cdef const Operand* x = &call.operand[1]
    cdef const Operand* dy = &call.operand[2]
    cdef Py_ssize_t channels = call.size[1], tap = term // channels
    cdef Py_ssize_t all_columns = call.size[2] * call.size[3], width = strip_width(sums, call.size[2]), i, n, column = 0
    cdef Py_ssize_t first_line, last_line, x_at, dy_at
    cdef Py_ssize_t x_runs[MAX_RUNS]
    cdef Py_ssize_t dy_runs[MAX_RUNS]
    cdef Strip strip
    if first > last:
        return
    tap_positions(down, tap // along.kernel, &first_line, &last_line)
    strip.runs = 0
    x_at = dy_at = 0
    for line in range(line, line + lines):
        n, i = line // down.count, line % down.count
        if first_line <= i <= last_line:
            x_runs[strip.runs] = n * x.stride[0] + i * down.stride * x.stride[2]
            dy_runs[strip.runs] = n * dy.stride[0] + i * dy.stride[2]
            if strip.runs == 0:
                x_at, dy_at = x_runs[0], dy_runs[0]
            x_runs[strip.runs] -= x_at
            dy_runs[strip.runs] -= dy_at
            strip.runs += 1
    if strip.runs == 0:
        return
    strip.b_column = 1
    strip.bias = strip.row_bias = strip.mask = NULL
    strip.relu = strip.resume = False
    strip.accumulate = True
    strip.k = last - first + 1
    strip.rows, strip.a_row, strip.a_k, strip.b_k = count, 1, along.stride * x.stride[3], dy.stride[3]
    strip.a_run, strip.b_run, strip.y_row = x_runs, dy_runs, all_columns
    strip.a = (<const real*> x.data + group * channels * x.stride[1] + term % channels * x.stride[1] + x_at
               + (tap // along.kernel * down.dilation - down.padding) * x.stride[2]
               + (first * along.stride + tap % along.kernel * along.dilation - along.padding) * x.stride[3])
    while column < call.size[2]:
        strip.columns = min(call.size[2] - column, width)
        strip.b = <const real*> dy.data + group * call.size[2] + column + dy_at + first * dy.stride[3]
        strip.y = sums + term * all_columns + column
        run_strip_of_runs(sums, &strip)
        column += width


cdef inline void add_to(real* out, const Call* call, Py_ssize_t o, Py_ssize_t term, real sum) noexcept nogil:
    cdef const Operand* dw = &call.operand[0]
    cdef Py_ssize_t channels = call.size[1], tap = term // channels
    out += (o * dw.stride[0] + term % channels * dw.stride[1] + tap // call.window[1].kernel * dw.stride[2]
            + tap % call.window[1].kernel * dw.stride[3])
    out[0] = out[0] + sum if call.accumulate else sum


cdef inline real sum_lanes(const real* sums) noexcept nogil:
    return <real> any_sum_lanes(sums)


include "../generated/publish_convolution.pxi"
