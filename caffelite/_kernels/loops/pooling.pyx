# Pooling: y[i, j] is the maximum or the mean of a window of x. The window begins at row i · stride − padding and column
# j · stride − padding. A maximum leaves pads out. A mean counts them as zeros.
#
# Images are (O, H, W, lanes). The lanes are n or C, whichever is innermost in memory, and O is the other one. O, H and
# W have strides 0, 1 and 2. The inner loops go along the lanes. A lane of the output depends on the same lane of the
# input alone, so memory order, batch size and threads change no bits. Each element of an output is written once: the
# gradient of a pixel is added up over the windows that contain it.
#   window   along rows, along columns
#   size     0 lanes

from caffelite._kernels.loops.elementwise cimport apply_epilogue
from caffelite._kernels.loops.family cimport *

cdef extern from "loops/pooling.h" nogil:
    # y and x, dx and dy are float* or double*.
    void largest(void* y, void* places, const void* x, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows,
                 Py_ssize_t columns, Py_ssize_t place, Py_ssize_t width, Py_ssize_t lanes)
    void largest_grad(void* dx, const void* dy, Py_ssize_t row, Py_ssize_t column, const void* places,
                      Py_ssize_t places_row, Py_ssize_t places_column, Py_ssize_t rows, Py_ssize_t columns,
                      Py_ssize_t place, Py_ssize_t lanes)
    void largest_grad_row(void* dx, Py_ssize_t dx_pixel, const void* dy, Py_ssize_t pixel, const void* places,
                          Py_ssize_t places_pixel, Py_ssize_t windows, Py_ssize_t width, Py_ssize_t place,
                          Py_ssize_t lanes)
    void sum_pixels(void* y, const void* x, Py_ssize_t row, Py_ssize_t column, Py_ssize_t rows, Py_ssize_t columns,
                    Py_ssize_t lanes, double factor)


# The pixels first … end − 1 that window i covers along one axis.
cdef inline void window_pixels(const Window* along, Py_ssize_t i, Py_ssize_t* first, Py_ssize_t* end) noexcept nogil:
    first[0] = max(i * along.stride - along.padding, 0)
    end[0] = min(i * along.stride - along.padding + along.kernel, along.length)


# The windows first … end − 1 that cover pixel k. On entry: the windows of an earlier pixel, or 0 and 0.
cdef inline void pixel_windows(const Window* along, Py_ssize_t k, Py_ssize_t* first, Py_ssize_t* end) noexcept nogil:
    while end[0] < along.count and end[0] * along.stride - along.padding <= k:
        end[0] += 1
    while first[0] < end[0] and first[0] * along.stride - along.padding + along.kernel <= k:
        first[0] += 1


cdef inline real* get_row(const Operand* images, Py_ssize_t o, Py_ssize_t i, const real* like) noexcept nogil:
    return <real*> images.data + o * images.stride[0] + i * images.stride[1]


# y = the largest pixel of the window, or NaN if it has a NaN. places = the number of that pixel in the image; of equal
# pixels, the first. A place has as many bytes as an element.
#   operand  0 y, 1 places, 2 x
#   parts    rows of y, O · count
cdef int max_pool(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* x = &call.operand[2]
    cdef Window rows = call.window[0], columns = call.window[1]
    cdef Py_ssize_t lanes = call.size[0], W = columns.length, o, i, j, part, top, bottom, left, right
    cdef Py_ssize_t y_pixel = call.operand[0].stride[2], x_row = x.stride[1], x_pixel = x.stride[2]
    cdef real* to_y
    cdef real* to_places
    cdef const real* from_x
    for part in range(begin, end):
        o, i = part // rows.count, part % rows.count
        window_pixels(&rows, i, &top, &bottom)
        to_y, to_places = get_row(&call.operand[0], o, i, y), get_row(&call.operand[1], o, i, y)
        from_x = get_row(x, o, top, y)
        for j in range(columns.count):
            window_pixels(&columns, j, &left, &right)
            largest(to_y, to_places, from_x + left * x_pixel, x_row, x_pixel, bottom - top, right - left,
                    top * W + left, W, lanes)
            to_y += y_pixel
            to_places += y_pixel
    return CONTINUE


# dx = Σ dy over the windows whose largest pixel this is, from the first window to the last
#   operand  0 dx, 1 dy, 2 places
#   parts    rows of dx, O · H
cdef int max_pool_grad(real* dx, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* dy = &call.operand[1]
    cdef const Operand* places = &call.operand[2]
    cdef Window rows = call.window[0], columns = call.window[1]
    cdef Py_ssize_t lanes = call.size[0], H = rows.length, W = columns.length, o, h, w, part
    cdef Py_ssize_t dx_pixel = call.operand[0].stride[2], row = dy.stride[1], pixel = dy.stride[2]
    cdef Py_ssize_t places_row = places.stride[1], places_pixel = places.stride[2], top, bottom, left, right, windows
    cdef real* to_dx
    cdef const real* from_dy
    cdef const real* from_places
    for part in range(begin, end):
        o, h = part // H, part % H
        top = bottom = left = right = 0
        pixel_windows(&rows, h, &top, &bottom)
        to_dx, from_dy = get_row(&call.operand[0], o, h, dx), get_row(dy, o, top, dx)
        from_places = get_row(places, o, top, dx)
        w = 0
        if bottom - top == 1 and columns.kernel == columns.stride and columns.padding == 0:
            windows = min(columns.count, W // columns.kernel)
            w = windows * columns.kernel
            largest_grad_row(to_dx, dx_pixel, from_dy, pixel, from_places, places_pixel, windows, columns.kernel, h * W,
                             lanes)
            to_dx += w * dx_pixel
        for w in range(w, W):
            pixel_windows(&columns, w, &left, &right)
            largest_grad(to_dx, from_dy + left * pixel, row, pixel, from_places + left * places_pixel, places_row,
                         places_pixel, bottom - top, right - left, h * W + w, lanes)
            to_dx += dx_pixel
        apply_epilogue(to_dx - W * dx_pixel, call, W * dx_pixel)
    return CONTINUE


# y = factor · Σ x over the window
#   scalar   factor
#   operand  0 y, 1 x
#   parts    rows of y, O · count
cdef int average_pool(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* x = &call.operand[1]
    cdef Window rows = call.window[0], columns = call.window[1]
    cdef Py_ssize_t lanes = call.size[0], o, i, j, part, top, bottom, left, right
    cdef Py_ssize_t y_pixel = call.operand[0].stride[2], row = x.stride[1], pixel = x.stride[2]
    cdef double factor = call.scalar[0]
    cdef real* to_y
    cdef const real* from_x
    for part in range(begin, end):
        o, i = part // rows.count, part % rows.count
        window_pixels(&rows, i, &top, &bottom)
        to_y, from_x = get_row(&call.operand[0], o, i, y), get_row(x, o, top, y)
        for j in range(columns.count):
            window_pixels(&columns, j, &left, &right)
            sum_pixels(to_y, from_x + left * pixel, row, pixel, bottom - top, right - left, lanes, factor)
            to_y += y_pixel
    return CONTINUE


# dx = factor · Σ dy over the windows that cover the pixel
#   scalar   factor
#   operand  0 dx, 1 dy
#   parts    rows of dx, O · H
cdef int average_pool_grad(real* dx, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* dy = &call.operand[1]
    cdef Window rows = call.window[0], columns = call.window[1]
    cdef Py_ssize_t lanes = call.size[0], H = rows.length, o, h, w, part, top, bottom, left, right
    cdef Py_ssize_t dx_pixel = call.operand[0].stride[2], row = dy.stride[1], pixel = dy.stride[2]
    cdef double factor = call.scalar[0]
    cdef real* to_dx
    cdef const real* from_dy
    for part in range(begin, end):
        o, h = part // H, part % H
        top = bottom = left = right = 0
        pixel_windows(&rows, h, &top, &bottom)
        to_dx, from_dy = get_row(&call.operand[0], o, h, dx), get_row(dy, o, top, dx)
        for w in range(columns.length):
            pixel_windows(&columns, w, &left, &right)
            sum_pixels(to_dx, from_dy + left * pixel, row, pixel, bottom - top, right - left, lanes, factor)
            to_dx += dx_pixel
        apply_epilogue(to_dx - columns.length * dx_pixel, call, columns.length * dx_pixel)
    return CONTINUE


include "../generated/publish_pooling.pxi"
