# Winograd's convolutions: which ones they are, and their calls. loops/winograd.h tells the method.
#
# A convolution is two calls. The first transforms the weights to their values at the points, the second computes y from
# them. The gradient of the weights is two calls, too: the first sums over the tiles at each point, the second
# transforms the sums back. convolution.pxi has checked all arguments before.

cdef enum:
    FEWEST_CHANNELS = 16                  # of x and of y in a group: fewer would not pay for the transforms
    MAX_CHANNELS = 1024                  # more would leave room for a few tiles only
    MAX_SUMS = 300_000                   # of all chunks of tiles together: they stay in a second-level cache,
    MAX_CHUNKS = 8
    TILES_OF_A_CHUNK = 64                 # at least
    WIDEST_FLOATS = 16                    # lanes of the widest vectors

cdef Kernel WINOGRAD_WEIGHTS_KERNEL = Kernel("winograd_weights")
cdef Kernel WINOGRAD_CONVOLUTION_KERNEL = Kernel("winograd_convolution", takes_epilogue=True)
cdef Kernel WINOGRAD_SUMS_KERNEL = Kernel("winograd_sums")
cdef Kernel WINOGRAD_WEIGHT_GRAD_KERNEL = Kernel("winograd_weight_grad")


cdef bint fits_winograd(cnp.ndarray w, Py_ssize_t groups) except -1:
    """Return whether convolutions with these weights, (O, C / groups, …), are Winograd's with stride and dilation 1.

    They are in float32, with enough channels, and windows of 3 × 3 pixels or of 3 or 5 in a row.
    """
    cdef Py_ssize_t inputs = cnp.PyArray_DIM(w, 1), outputs = cnp.PyArray_DIM(w, 0) // max(groups, 1)
    cdef Py_ssize_t height = cnp.PyArray_DIM(w, 2) if cnp.PyArray_NDIM(w) == 4 else 1
    cdef Py_ssize_t width = cnp.PyArray_DIM(w, cnp.PyArray_NDIM(w) - 1)
    cdef Py_ssize_t longer = max(height, width), shorter = min(height, width)
    return (type_number(w) == cnp.NPY_FLOAT32 and not is_portable()
            and min(inputs, outputs) >= FEWEST_CHANNELS and max(inputs, outputs) <= MAX_CHANNELS
            and ((longer == 3 and shorter == 3) or (shorter == 1 and (longer == 3 or longer == 5))))


cdef bint is_winograd(const Call* call, cnp.ndarray w) except -1:
    """Return whether the convolution of a call is Winograd's: a question of its window and channels alone."""
    cdef int d
    for d in range(2):
        if call.window[d].stride != 1 or call.window[d].dilation != 1:
            return False
    return fits_winograd(w, call.size[3])


cdef cnp.ndarray winograd_convolve(Call* call, cnp.ndarray y, cnp.ndarray w, bint transposed):
    """Go on with a call whose y, x and bias are bound, and whose windows are described: transform w, and launch it."""
    cdef cnp.ndarray at_points
    cdef int d
    call.flops = count_flops(call)           # of the definition, as papers count
    for d in range(2):
        if transposed:                    # a convolution with the window turned round
            call.window[d].length, call.window[d].count = call.window[d].count, call.window[d].length
            call.window[d].padding = call.window[d].kernel - 1 - call.window[d].padding
    at_points = transform_weights(call, w, transposed)
    if is_vertical(call):
        swap_axes(call)
    bind(call, 2, at_points)
    switch_kernel(call, WINOGRAD_CONVOLUTION_KERNEL, y)
    call.parts = call.size[0] * tiles_along(call, 0) * tiles_along(call, 1)
    call.work = winograd_work(call, call.parts)
    launch(call)
    return y


cdef cnp.ndarray transform_weights(const Call* convolution, cnp.ndarray w, bint transposed):
    """Return the values of weights (O, C / groups, …) at the points, as the loops of the convolution read them."""
    cdef Call call
    cdef Py_ssize_t size = count_points(convolution) * convolution.size[3] * convolution.size[1]
    cdef cnp.ndarray values = output((size * round_up_to_vectors(convolution.size[2]),), w.descr)
    w = as_readable(w)
    if transposed:
        w = (<object> w)[..., ::-1] if cnp.PyArray_NDIM(w) == 3 else (<object> w)[..., ::-1, ::-1]
    begin(&call, WINOGRAD_WEIGHTS_KERNEL, 0)
    call.window[0], call.window[1] = convolution.window[0], convolution.window[1]
    call.size[1], call.size[2], call.size[3] = convolution.size[1], convolution.size[2], convolution.size[3]
    bind(&call, 0, values)
    bind_axes(&call, 1, w)
    call.size[5] = call.operand[1].stride[0] * (cnp.PyArray_DIM(w, 0) // call.size[3])
    if transposed:
        call.operand[1].stride[0], call.operand[1].stride[1] = call.operand[1].stride[1], call.operand[1].stride[0]
    if is_vertical(&call):
        swap_axes(&call)
    call.parts = call.size[1] * call.size[3]
    call.work = 20.0 * cnp.PyArray_SIZE(values)
    launch(&call)
    return values


cdef int winograd_weight_grad(Call* call, cnp.ndarray dw, cnp.ndarray x, cnp.ndarray dy, bint accumulate) except -1:
    """Launch the calls for dw, of the windows and sizes of a begun call."""
    cdef Call second = call[0]
    cdef Py_ssize_t tiles = call.size[0] * tiles_along(call, 0) * tiles_along(call, 1)
    cdef Py_ssize_t chunk_size = count_points(call) * call.size[3] * call.size[1] * round_up_to_vectors(call.size[2])
    cdef Py_ssize_t chunks = max(min(min(MAX_SUMS // chunk_size, MAX_CHUNKS), tiles // TILES_OF_A_CHUNK), 1)
    cdef cnp.ndarray sums = output((chunks * chunk_size,), x.descr)
    switch_kernel(call, WINOGRAD_SUMS_KERNEL, x)
    call.size[4] = chunks
    bind(call, 0, sums)
    bind_axes(call, 1, x)
    bind_axes(call, 2, dy)
    call.parts = chunks * ((call.size[1] + WIDEST_FLOATS - 1) // WIDEST_FLOATS)
    call.flops = count_flops(call)
    call.work = winograd_work(call, tiles)
    switch_kernel(&second, WINOGRAD_WEIGHT_GRAD_KERNEL, x)
    second.size[4] = chunks
    bind_axes(&second, 0, dw)
    bind(&second, 1, sums)
    second.accumulate = accumulate
    second.parts = call.size[1] * call.size[3]
    second.work = 10.0 * cnp.PyArray_SIZE(sums)
    if is_vertical(call):
        swap_axes(call)
        swap_axes(&second)
    launch(call)
    launch(&second)
    return 0


cdef inline Py_ssize_t round_up_to_vectors(Py_ssize_t channels) noexcept:
    return (channels + WIDEST_FLOATS - 1) // WIDEST_FLOATS * WIDEST_FLOATS


cdef inline bint is_vertical(const Call* call) noexcept:
    """Return whether the window is a column of pixels: the loops know rows, and take the height for the width."""
    return call.window[0].kernel > call.window[1].kernel


cdef inline Py_ssize_t points_along(const Call* call, int axis) noexcept:
    return 1 if call.window[axis].kernel == 1 else call.window[axis].kernel + 3


cdef inline Py_ssize_t count_points(const Call* call) noexcept:
    """At how many points values are multiplied for each tile."""
    return points_along(call, 0) * points_along(call, 1)


cdef inline Py_ssize_t tiles_along(const Call* call, int axis) noexcept:
    """Return the number of tiles along an axis: of four outputs each, or of one where the window has one tap."""
    return call.window[axis].count if call.window[axis].kernel == 1 else (call.window[axis].count + 3) // 4


cdef inline double winograd_work(const Call* call, Py_ssize_t tiles) noexcept:
    """Return the work of so many tiles: the products at the points, and the transforms."""
    cdef Py_ssize_t inputs = call.size[1], outputs = call.size[2]
    return tiles * count_points(call) * call.size[3] * (2.0 * inputs * outputs + 14.0 * (inputs + outputs))
