# Convolutions of images (n, C, H, W), and of series (n, C, L), which are images of height 1.
#
# A convolution with few channels reads and writes images in memory order (C, H, W, n), "images last". One with many
# channels uses (n, H, W, C), "channels last". loops/convolution.pyx says why. Images in another order are copied first.
# Every other kernel keeps the order of its input. So images are copied once on their way into a net and once on their
# way out.

cdef enum:
    MANY_CHANNELS = 32                    # channels of a group's input or output, whichever has more
    IMAGES_TOGETHER = 16                  # channels last: IMAGES of loops/convolution.pyx
    MAX_VECTOR_BYTES = 64

cdef Kernel CONVOLUTION_KERNEL = Kernel("convolution", takes_epilogue=True)
cdef Kernel TRANSPOSED_CONVOLUTION_KERNEL = Kernel("transposed_convolution", loops="convolution",
                                                   takes_epilogue=True)
cdef Kernel CONVOLUTION_WEIGHT_GRAD_KERNEL = Kernel("convolution_weight_grad", writes=0b1001)
cdef Kernel DEPTHWISE_KERNEL = Kernel("depthwise", takes_epilogue=True)
cdef Kernel TRANSPOSED_DEPTHWISE_KERNEL = Kernel("transposed_depthwise", loops="depthwise", takes_epilogue=True)
cdef Kernel DEPTHWISE_WEIGHT_GRAD_KERNEL = Kernel("depthwise_weight_grad", writes=0b1001)


def convolution(cnp.ndarray x not None, cnp.ndarray w not None, tuple shape, cnp.ndarray bias=None, *, tuple stride,
                tuple padding, tuple dilation, Py_ssize_t groups=1):
    """y[n, o, i, j] = Σ x[n, c, s i + d k − p, s j + d l − p] w[o, c, k, l] (+ bias[o]), where x is 0 outside.

    x (n, C, H, W), w (O, C / groups, k, l), bias (O,) → y (n, O, *shape). The stride s, the padding p and the dilation
    d have one number for each axis. At the end of an axis, a window may reach further out than p. Series are the same
    with one axis less.

    Raise ValueError if shapes do not fit. Raise TypeError if dtypes differ or are not float32 or float64.
    """
    return convolve(CONVOLUTION_KERNEL, x, w, shape, bias, stride, padding, dilation, groups)


def transposed_convolution(cnp.ndarray x not None, cnp.ndarray w not None, tuple shape, cnp.ndarray bias=None, *,
                           tuple stride, tuple padding, tuple dilation, Py_ssize_t groups=1):
    """y[n, o, s i + d k − p, s j + d l − p] = Σ x[n, c, i, j] w[c, o, k, l] (+ bias[o]): a convolution backwards.

    x (n, C, H, W), w (C, O / groups, k, l), bias (O,) → y (n, O, *shape). If w is a convolution's and x is the gradient
    of its output, y is the gradient of its input. Arguments and errors are as in `convolution`.
    """
    return convolve(TRANSPOSED_CONVOLUTION_KERNEL, x, w, shape, bias, stride, padding, dilation, groups)


def convolution_weight_grad(cnp.ndarray x not None, cnp.ndarray dy not None, cnp.ndarray out not None, *,
                            bint accumulate=False, tuple stride, tuple padding, tuple dilation, Py_ssize_t groups=1):
    """dw (O, C / groups, k, l) from x (n, C, H, W) and dy (n, O, H′, W′), written to `out` or added to its values.

    Arguments and errors are as in `convolution`.
    """
    cdef Call call
    cdef cnp.ndarray dw = check_out("convolution_weight_grad", out), sums
    begin(&call, CONVOLUTION_WEIGHT_GRAD_KERNEL, real_type("convolution_weight_grad", x))
    same_type("convolution_weight_grad", x, dy)
    same_type("convolution_weight_grad", x, dw)
    x, dy = to_conv_layout(x, out, groups), to_conv_layout(dy, out, groups)
    set_windows(&call, x, dw, dy, stride, padding, dilation, groups)
    if overlap(dw, x) or overlap(dw, dy):
        raise ValueError("convolution_weight_grad can't write its result into one of its operands")
    call.size[1], call.size[2] = cnp.PyArray_DIM(dw, 1), cnp.PyArray_DIM(dw, 0) // groups
    if is_winograd(&call, dw):
        winograd_weight_grad(&call, dw, x, dy, accumulate)
        return out
    call.size[6] = channels_are_last(dw, groups)
    sums = output((sums_per_weight(&call, x) * cnp.PyArray_SIZE(dw),), x.descr)
    bind_axes(&call, 0, dw)
    bind_axes(&call, 1, x)
    bind_axes(&call, 2, dy)
    merge_pixels(&call, 2)
    if call.window[0].count > call.window[1].count:
        swap_axes(&call)                  # the longest sums are along the width
    bind(&call, 3, sums)
    call.accumulate = accumulate
    call.parts = call.size[1] * call.window[0].kernel * call.window[1].kernel
    if uses_depthwise_loops(&call):
        switch_kernel(&call, DEPTHWISE_WEIGHT_GRAD_KERNEL, x)
        call.parts = groups
    call.work = call.flops = count_flops(&call)
    launch(&call)
    return out


def to_conv_layout(cnp.ndarray x not None, cnp.ndarray w not None, Py_ssize_t groups):
    """x (n, C, …), or its copy in the memory order in which convolutions with these weights read images."""
    cdef tuple order
    if cnp.PyArray_NDIM(x) < 3 or cnp.PyArray_NDIM(x) > 4 or cnp.PyArray_NDIM(w) != cnp.PyArray_NDIM(x):
        raise ValueError(f"a convolution got x of shape {get_dims(x)} and w of shape {get_dims(w)}; expected "
                         f"(n, C, H, W) or (n, C, L), and as many axes of w")
    order = image_axes(channels_are_last(w, groups), cnp.PyArray_NDIM(x))
    x = as_readable(x)
    if cnp.PyArray_IS_C_CONTIGUOUS(<cnp.ndarray> (<object> x).transpose(order)):
        return x
    return copy(x, output_ordered(get_dims(x), x.descr, order))


def sum_of_channels(cnp.ndarray dy not None, cnp.ndarray out=None, bint accumulate=False):
    """Σ dy (C,) over all axes except the second. dy (n, C, …) is in a memory order that `to_conv_layout` returns."""
    cdef int ndim = cnp.PyArray_NDIM(dy)
    cdef cnp.ndarray view = (<object> dy).transpose(image_axes(False, ndim))
    if cnp.PyArray_IS_C_CONTIGUOUS(view):
        return sum((<object> view).reshape(len(view), -1), 1, out=out, accumulate=accumulate)
    view = (<object> dy).transpose(image_axes(True, ndim))
    return sum((<object> view).reshape(-1, cnp.PyArray_DIM(dy, 1)), 0, out=out, accumulate=accumulate)


cdef cnp.ndarray convolve(Kernel kernel, cnp.ndarray x, cnp.ndarray w, tuple shape, cnp.ndarray bias, tuple stride,
                          tuple padding, tuple dilation, Py_ssize_t groups):
    cdef Call call
    cdef bint transposed = kernel is TRANSPOSED_CONVOLUTION_KERNEL
    cdef cnp.ndarray y, vector
    begin(&call, kernel, real_type(kernel.name, x))
    same_type(kernel.name, x, w)
    x = to_conv_layout(x, w, groups)
    if groups < 1 or cnp.PyArray_DIM(w, 0) % groups != 0 or len(shape) != cnp.PyArray_NDIM(x) - 2:
        raise ValueError(f"{kernel.name} to {shape} got x of shape {get_dims(x)} and w of shape {get_dims(w)} in "
                         f"{groups} groups")
    call.size[4], call.size[6] = transposed, channels_are_last(w, groups)
    call.size[1] = cnp.PyArray_DIM(w, 0) // groups if transposed else cnp.PyArray_DIM(w, 1)
    call.size[2] = cnp.PyArray_DIM(w, 1) if transposed else cnp.PyArray_DIM(w, 0) // groups
    shape = (cnp.PyArray_DIM(x, 0), groups * call.size[2], *shape)
    try:
        y = output_ordered(shape, x.descr, image_axes(call.size[6], cnp.PyArray_NDIM(x)))
    except (MemoryError, ValueError):      # y is too large for this machine, or for any machine
        raise ValueError(f"{kernel.name} of x of shape {get_dims(x)} with stride {stride}, padding {padding} and "
                         f"dilation {dilation} has no memory for y of shape {shape}") from None
    if transposed:
        set_windows(&call, y, w, x, stride, padding, dilation, groups)
    else:
        set_windows(&call, x, w, y, stride, padding, dilation, groups)
    bind_axes(&call, 0, y)
    bind_axes(&call, 1, x)
    if bias is not None:
        vector = as_contiguous(bias)
        require_vector(kernel.name, vector, type_number(x), groups * call.size[2])
        bind(&call, 3, vector)
    if cnp.PyArray_SIZE(y) == 0:          # the product of its sizes below could overflow
        return y
    if is_winograd(&call, w):
        return winograd_convolve(&call, y, w, transposed)
    w = bind_weights(&call, w, transposed)
    merge_pixels(&call, 0)
    call.parts = y_length(&call, 0) * y_length(&call, 1)
    if call.size[6] and call.size[1] == 1 and call.size[2] == 1:
        call.parts = call.size[0] * min(y_length(&call, 0), y_length(&call, 1))
    elif call.size[6]:
        call.parts *= (call.size[0] if call.size[0] < IMAGES_TOGETHER
                       else (call.size[0] + IMAGES_TOGETHER - 1) // IMAGES_TOGETHER)
    if uses_depthwise_loops(&call):
        switch_kernel(&call, TRANSPOSED_DEPTHWISE_KERNEL if transposed else DEPTHWISE_KERNEL, x)
    call.work = call.flops = count_flops(&call)
    launch(&call)
    return y


cdef bint uses_depthwise_loops(const Call* call) noexcept:
    """Return whether the loops of depthwise.pyx compute this convolution, or this gradient of weights."""
    cdef int d
    for d in range(2):
        if call.window[d].kernel != 3 or call.window[d].stride != 1 or call.window[d].dilation != 1:
            return False
    return call.size[6] and call.size[1] == 1 and call.size[2] == 1


cdef inline void switch_kernel(Call* call, Kernel kernel, cnp.ndarray x) noexcept:
    """Let another kernel do the computation of the call."""
    call.kernel, call.loop = <void*> kernel, kernel.loop[type_number(x) == cnp.NPY_FLOAT64]


cdef Py_ssize_t sums_per_weight(const Call* call, cnp.ndarray x) noexcept:
    """Return how many numbers a gradient of weights keeps for each weight while it adds them up."""
    if not call.size[6]:
        return MAX_VECTOR_BYTES // cnp.PyArray_ITEMSIZE(x)
    return 2 if uses_depthwise_loops(call) else 1


cdef int set_windows(Call* call, cnp.ndarray x, cnp.ndarray w, cnp.ndarray y, tuple stride, tuple padding,
                     tuple dilation, Py_ssize_t groups) except -1:
    """Describe the windows of a convolution from x to y. Raise ValueError if shapes do not fit."""
    cdef int d, axis, axes = cnp.PyArray_NDIM(x) - 2
    if (groups < 1 or cnp.PyArray_NDIM(w) != axes + 2 or cnp.PyArray_NDIM(y) != axes + 2
            or cnp.PyArray_DIM(x, 0) != cnp.PyArray_DIM(y, 0) or cnp.PyArray_DIM(w, 0) != cnp.PyArray_DIM(y, 1)
            or cnp.PyArray_DIM(w, 0) % groups != 0 or cnp.PyArray_DIM(w, 1) * groups != cnp.PyArray_DIM(x, 1)):
        raise ValueError(f"a convolution in {groups} groups from {get_dims(x)} to {get_dims(y)} got w of shape "
                         f"{get_dims(w)}; expected (O, C / groups, …)")
    if not len(stride) == len(padding) == len(dilation) == axes:
        raise ValueError(f"a convolution along {axes} axes got stride {stride}, padding {padding} and dilation "
                         f"{dilation}")
    for d in range(2):
        call.window[d].length = call.window[d].count = call.window[d].kernel = 1
        call.window[d].stride = call.window[d].dilation = 1
        axis = d - 2 + axes
        if axis >= 0:
            call.window[d].length, call.window[d].count = cnp.PyArray_DIM(x, 2 + axis), cnp.PyArray_DIM(y, 2 + axis)
            call.window[d].kernel, call.window[d].stride = cnp.PyArray_DIM(w, 2 + axis), stride[axis]
            call.window[d].padding, call.window[d].dilation = padding[axis], dilation[axis]
        if call.window[d].stride < 1 or call.window[d].padding < 0 or call.window[d].dilation < 1:
            raise ValueError(f"a convolution got stride {stride}, padding {padding} and dilation {dilation}")
    call.size[0], call.size[3] = cnp.PyArray_DIM(x, 0), groups
    return 0


cdef inline void swap_axes(Call* call) noexcept:
    """Exchange height and width."""
    cdef int i
    call.window[0], call.window[1] = call.window[1], call.window[0]
    for i in range(3):
        call.operand[i].stride[2], call.operand[i].stride[3] = call.operand[i].stride[3], call.operand[i].stride[2]


cdef inline Py_ssize_t y_length(const Call* call, int axis) noexcept:
    return call.window[axis].length if call.size[4] else call.window[axis].count


cdef inline void merge_pixels(Call* call, int y) noexcept:
    """If the window is one pixel, describe all pixels of all images, operands 1 and y, as one line."""
    cdef Py_ssize_t pixels = call.size[0] * call.window[0].length * call.window[1].length
    cdef int d
    for d in range(2):
        if (call.window[d].kernel != 1 or call.window[d].stride != 1 or call.window[d].padding != 0
                or call.window[d].count != call.window[d].length):
            return
    call.size[0] = call.window[0].length = call.window[0].count = 1
    call.window[1].length = call.window[1].count = pixels
    call.operand[1].stride[3] = call.size[3] * call.size[1] if call.size[6] else 1
    call.operand[y].stride[3] = call.size[3] * call.size[2] if call.size[6] else 1


cdef double count_flops(const Call* call) noexcept:
    """Return the FLOPs of all taps at all positions, taps in the padding included."""
    cdef double flops = 2.0 * call.size[0] * call.size[1] * call.size[2] * call.size[3]
    return flops * call.window[0].count * call.window[0].kernel * call.window[1].count * call.window[1].kernel


cdef cnp.ndarray bind_weights(Call* call, cnp.ndarray w, bint transposed):
    """Bind weights (O, C / groups, …) as the loops read them. Return them, or their copy, which the caller keeps."""
    cdef Py_ssize_t channel, column, row
    if not call.size[6]:
        w = as_readable(w)
        bind_axes(call, 2, w)
        call.size[5] = call.operand[2].stride[0] * (cnp.PyArray_DIM(w, 0) // call.size[3])
        if transposed:
            call.operand[2].stride[0], call.operand[2].stride[1] = (call.operand[2].stride[1],
                                                                    call.operand[2].stride[0])
        return w
    w = (<object> w).reshape(call.size[3], -1, cnp.PyArray_DIM(w, 1), call.window[0].kernel, call.window[1].kernel)
    if transposed:                        # its loops begin with the last tap
        w = as_contiguous((<object> w)[:, :, :, ::-1, ::-1].transpose(3, 4, 1, 0, 2))
        w = (<object> w)[::-1, ::-1]
    else:
        w = as_contiguous((<object> w).transpose(3, 4, 2, 0, 1))
    channel = call.size[3] * call.size[2]
    column = call.size[1] * channel
    row = call.window[1].kernel * column
    bind(call, 2, w)
    call.operand[2].stride[0], call.operand[2].stride[1] = 1, channel
    call.operand[2].stride[2], call.operand[2].stride[3] = (-row, -column) if transposed else (row, column)
    return w


cdef bint channels_are_last(cnp.ndarray w, Py_ssize_t groups) except -1:
    """Return whether convolutions with these weights, (O, C / groups, …), read and write channels last.

    They do if there are many channels. Short vectors need fewer: it is enough if the channels of one side fill a strip
    of the product and the channels of the other side half a strip. Winograd's convolutions always do.
    """
    cdef Py_ssize_t more = max(cnp.PyArray_DIM(w, 0) // max(groups, 1), cnp.PyArray_DIM(w, 1))
    cdef Py_ssize_t fewer = min(cnp.PyArray_DIM(w, 0) // max(groups, 1), cnp.PyArray_DIM(w, 1))
    if is_portable():
        return False
    if cnp.PyArray_DIM(w, 1) == 1 and cnp.PyArray_DIM(w, 0) == groups:
        return groups >= MANY_CHANNELS
    if fits_winograd(w, groups):
        return True
    return more >= MANY_CHANNELS or (more >= strip_columns and 2 * fewer >= strip_columns)


cdef tuple image_axes(bint channels_last, int ndim):
    """Return the axes of images or series in memory, from the outermost to the innermost."""
    if channels_last:
        return (0, 2, 3, 1)[:ndim - 1] + (1,)
    return (1, 2, 3, 0)[:ndim - 1] + (0,)


cdef inline void bind_axes(Call* call, int operand, cnp.ndarray a) noexcept:
    """Bind images or weights with the strides of four axes. Arrays of three axes get an axis of height 1."""
    cdef int d, behind = 4 - cnp.PyArray_NDIM(a)
    bind(call, operand, a)
    for d in range(cnp.PyArray_NDIM(a)):
        call.operand[operand].stride[d + behind if d > 1 else d] = (cnp.PyArray_STRIDE(a, d)
                                                                    // cnp.PyArray_ITEMSIZE(a))
