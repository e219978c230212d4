# Depthwise convolutions with windows of 3 × 3 pixels, stride 1 and dilation 1, channels last. Other depthwise ones are
# in convolution.pyx.
#
#   y[n, c, i, j] = bias[c] + Σ_k Σ_l x[n, c, i + k − p, j + l − p] w[c, k, l]
#
# An output is summed in the order of k and l, as everywhere. A transposed convolution is the same with the taps in the
# opposite order: x[n, c, i + p − k, j + p − l] w[c, k, l], from the last k and l on. Lines go along the longer side of
# the images; depthwise.h computes one.
#
#   size     0 n, 3 channels, 4 transposed
#   window   0 down the height, 1 along the width
#   operand  0 y, 1 x (strides n, c, h, w), 2 w (strides o, c, k, l; its channels are neighbours), 3 bias or absent
#   parts    the lines of y's images

from caffelite._kernels.loops.elementwise cimport apply_epilogue
from caffelite._kernels.loops.family cimport *

cdef extern from "loops/depthwise.h" nogil:
    ctypedef struct DepthwiseLine:
        Py_ssize_t begin, end, outputs, inputs, padding, first, last, x_along, x_across, w_along, w_across, y_along
        bint is_down, relu
        const void* x
        void* w
        void* y
        const void* bias
        const void* mask
    void depthwise_line(const void* out, const DepthwiseLine* line)  # out is float* or double*: the type of the numbers
    void depthwise_line_grad(const void* out, const DepthwiseLine* line)

cdef enum:
    TAPS = 3                              # of the window along each axis


cdef int depthwise(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* y = &call.operand[0]
    cdef int along = y_length(call, 1) >= y_length(call, 0), across = 1 - along
    cdef bint in_registers = is_relu(call)
    cdef Py_ssize_t lines = y_length(call, across), part, i, pixel
    cdef DepthwiseLine line
    set_lines(out, &line, call, along)
    for part in range(begin, end):
        i = part % lines
        set_line(out, &line, call, part // lines, i, across)
        line.y = out + part // lines * y.stride[0] + i * y.stride[2 + across]
        if in_registers:
            set_relu(<real*> line.y, &line, call)
        depthwise_line(out, &line)
        if not in_registers:
            for pixel in range(line.outputs):
                apply_epilogue(<real*> line.y + pixel * line.y_along, call, line.end)
    return CONTINUE


cdef inline Py_ssize_t y_length(const Call* call, int axis) noexcept nogil:
    return call.window[axis].length if call.size[4] else call.window[axis].count


cdef inline Py_ssize_t x_length(const Call* call, int axis) noexcept nogil:
    return call.window[axis].count if call.size[4] else call.window[axis].length


# How far the first window reaches over the edge of x.
cdef inline Py_ssize_t get_padding(const Call* call, int axis) noexcept nogil:
    return TAPS - 1 - call.window[axis].padding if call.size[4] else call.window[axis].padding


# The facts that all lines along this axis share.
cdef void set_lines(const real* out, DepthwiseLine* line, const Call* call, int along) noexcept nogil:
    cdef const Operand* w = &call.operand[2]
    cdef int across = 1 - along
    line.begin, line.end, line.is_down, line.relu = 0, call.size[3], along == 0, False
    line.outputs, line.inputs, line.padding = y_length(call, along), x_length(call, along), get_padding(call, along)
    line.x_along, line.x_across = call.operand[1].stride[2 + along], call.operand[1].stride[2 + across]
    line.y_along = call.operand[0].stride[2 + along]
    line.w, line.w_along, line.w_across = w.data, w.stride[2 + along], w.stride[2 + across]
    if call.size[4]:                      # from the last tap on
        line.w = <real*> w.data + (TAPS - 1) * (w.stride[2] + w.stride[3])
        line.w_along, line.w_across = -line.w_along, -line.w_across
    line.bias, line.mask = call.operand[3].data, NULL


# The place of line i of image n in x, and the taps across the line that are inside.
cdef inline void set_line(const real* out, DepthwiseLine* line, const Call* call, Py_ssize_t n, Py_ssize_t i,
                          int across) noexcept nogil:
    cdef Py_ssize_t at = i - get_padding(call, across)
    line.first = max(-at, 0)
    line.last = max(min(x_length(call, across) - at, <Py_ssize_t> TAPS), line.first)
    line.x = <const real*> call.operand[1].data + n * call.operand[1].stride[0] + at * line.x_across


# Whether the epilogue is max(y, 0), or y where a mask is above 0, and is computed before y is stored.
cdef inline bint is_relu(const Call* call) noexcept nogil:
    if call.operand[EPILOGUE].data != NULL or call.operand[EPILOGUE + 1].data != NULL:
        return False
    return call.op == RELU or (call.op == RELU_GRAD and call.operand[EPILOGUE + 2].data != NULL
                               and call.operand[EPILOGUE + 2].stride[0] == 1)


cdef inline void set_relu(const real* y, DepthwiseLine* line, const Call* call) noexcept nogil:
    line.relu = call.op == RELU
    if call.op == RELU_GRAD:
        line.mask = <const real*> call.operand[EPILOGUE + 2].data + (y - <const real*> call.operand[0].data)


# ---- the gradient of w ----
#
#   dw[c, k, l] = Σ_n,i,j  x[n, c, i + k − p, j + l − p] dy[n, c, i, j]
#
# A line's sums begin with 0, and so do an image's sums, to which they are added.
#
#   size     0 n, 3 channels
#   operand  0 dw (strides o, c, k, l), 1 x, 2 dy (strides n, c, h, w), 3 room for sums (2, k, l, c)
#   parts    channels
cdef int depthwise_weight_grad(real* dw, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* dy = &call.operand[2]
    cdef Py_ssize_t channels = call.size[3], n, i, tap, c
    cdef real* total = <real*> call.operand[3].data
    cdef real* image_sums = total + TAPS * TAPS * channels
    cdef DepthwiseLine line
    set_lines(dw, &line, call, 1)
    line.begin, line.end, line.y_along = begin, end, dy.stride[3]
    line.w, line.w_along, line.w_across = image_sums, channels, TAPS * channels
    for tap in range(TAPS * TAPS):
        memset(total + tap * channels + begin, 0, (end - begin) * sizeof(real))
    for n in range(call.size[0]):
        for tap in range(TAPS * TAPS):
            memset(image_sums + tap * channels + begin, 0, (end - begin) * sizeof(real))
        for i in range(call.window[0].count):
            set_line(dw, &line, call, n, i, 0)
            line.y = <real*> dy.data + n * dy.stride[0] + i * dy.stride[2]
            depthwise_line_grad(dw, &line)
        for tap in range(TAPS * TAPS):
            for c in range(tap * channels + begin, tap * channels + end):
                total[c] += image_sums[c]
    for tap in range(TAPS * TAPS):
        for c in range(begin, end):
            write_sum(dw, call, c, tap, total[tap * channels + c])
    return CONTINUE


cdef inline void write_sum(real* dw, const Call* call, Py_ssize_t c, Py_ssize_t tap, real sum) noexcept nogil:
    cdef const Operand* of = &call.operand[0]
    dw += c * of.stride[0] + tap // TAPS * of.stride[2] + tap % TAPS * of.stride[3]
    dw[0] = dw[0] + sum if call.accumulate else sum


include "../generated/publish_depthwise.pxi"
