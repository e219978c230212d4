# Pooling of images (n, C, H, W), or of series (n, C, L), which are images of height 1.
#
# Loops go along n or C, whichever is innermost in memory. If neither is, the binding copies the images into an order in
# which one is, and copies the result back. kernel, stride and padding are pairs, for rows and columns.

cdef Kernel MAX_POOL_KERNEL = Kernel("max_pool", writes=0b11, work=20)
cdef Kernel MAX_POOL_GRAD_KERNEL = Kernel("max_pool_grad", work=20, takes_epilogue=True)
cdef Kernel AVERAGE_POOL_KERNEL = Kernel("average_pool", work=20)
cdef Kernel AVERAGE_POOL_GRAD_KERNEL = Kernel("average_pool_grad", work=20, takes_epilogue=True)
cdef Kernel UPSAMPLE_KERNEL = Kernel("upsample", loops="average_pool_grad", work=20)
cdef Kernel UPSAMPLE_GRAD_KERNEL = Kernel("upsample_grad", loops="average_pool", work=20)

cdef cnp.dtype int32 = np.dtype(np.int32)


def max_pool(cnp.ndarray x not None, tuple kernel, tuple stride, tuple padding, bint ceil=False):
    """y, the largest element of each window of x, and the number of its pixel, which `max_pool_grad` needs.

    If a window has a NaN, y is NaN. y has the memory order of x. All functions here raise ValueError if a window is
    larger than the images with their pads, or if the pads are more than half a window. With `ceil`, one more window may
    go beyond the pads at the end, if it begins before them.
    """
    cdef Call call
    cdef tuple shape = begin_pooling(&call, MAX_POOL_KERNEL, x, kernel, stride, padding, ceil)
    cdef int lanes, real = real_type("max_pool", x)
    cdef tuple order
    cdef cnp.ndarray y, places
    x = as_readable(x)
    if real == 0 and (<double> call.window[0].length) * call.window[1].length > INT32_MAX:
        raise ValueError(f"max_pool numbers pixels in 32 bits: float32 images of shape {get_dims(x)} have too many")
    order = pooling_order(x, &lanes)
    y, places = output_ordered(shape, x.descr, order), output_ordered(shape, int64 if real else int32, order)
    bind_images(&call, 0, y, lanes)
    bind_images(&call, 1, places, lanes)
    pool(&call, 2, x, order, lanes, call.window[0].count)
    return restore_order(x, y, lanes), places


def max_pool_grad(cnp.ndarray dy not None, cnp.ndarray places not None, cnp.ndarray x not None, tuple kernel,
                  tuple stride, tuple padding, bint ceil=False):
    """dx of `max_pool`, which returned these places. Of x, only shape and memory order are used."""
    cdef Call call
    cdef tuple shape = begin_pooling(&call, MAX_POOL_GRAD_KERNEL, x, kernel, stride, padding, ceil), order
    cdef int lanes, real = real_type("max_pool_grad", x)
    cdef cnp.ndarray dx
    require_images("max_pool_grad", dy, x, shape)
    order = pooling_order(x, &lanes)
    if places.descr != (int64 if real else int32) or get_dims(places) != shape or not has_lanes(places, lanes):
        raise TypeError(f"max_pool_grad takes the places of max_pool, got {places.dtype} of shape {get_dims(places)}")
    dx = output_ordered(get_dims(x), native_dtype(x), order)
    bind_images(&call, 0, dx, lanes)
    bind_images(&call, 2, places, lanes)
    pool(&call, 1, dy, order, lanes, call.window[0].length)
    return restore_order(x, dx, lanes)


def average_pool(cnp.ndarray x not None, tuple kernel, tuple stride, tuple padding):
    """y, the mean of each window of x, in which pads count as zeros; in the memory order of x."""
    cdef Call call
    cdef tuple shape = begin_pooling(&call, AVERAGE_POOL_KERNEL, x, kernel, stride, padding)
    call.scalar[0] = 1 / (<double> call.window[0].kernel * call.window[1].kernel)
    return run_pool(&call, x, x, shape, call.window[0].count)


def average_pool_grad(cnp.ndarray dy not None, cnp.ndarray x not None, tuple kernel, tuple stride, tuple padding):
    """dx of `average_pool`. Of x, only shape and memory order are used."""
    cdef Call call
    cdef tuple shape = begin_pooling(&call, AVERAGE_POOL_GRAD_KERNEL, x, kernel, stride, padding)
    require_images("average_pool_grad", dy, x, shape)
    call.scalar[0] = 1 / (<double> call.window[0].kernel * call.window[1].kernel)
    return run_pool(&call, dy, x, get_dims(x), call.window[0].length)


def upsample(cnp.ndarray x not None, tuple scale):
    """y, every pixel of x repeated in a block of scale[0] rows and scale[1] columns; in the memory order of x."""
    cdef Call call
    cdef tuple shape = begin_upsampling(&call, UPSAMPLE_KERNEL, x, scale)
    return run_pool(&call, x, x, shape, call.window[0].length)


def upsample_grad(cnp.ndarray dy not None, cnp.ndarray x not None, tuple scale):
    """dx of `upsample`, the sum of each block. Of x, only shape and memory order are used."""
    cdef Call call
    require_images("upsample_grad", dy, x, begin_upsampling(&call, UPSAMPLE_GRAD_KERNEL, x, scale))
    return run_pool(&call, dy, x, get_dims(x), call.window[0].count)


# ---- windows ----

cdef tuple begin_pooling(Call* call, Kernel kernel, cnp.ndarray x, tuple size, tuple stride, tuple padding,
                         bint ceil=False):
    """Begin a call on windows of x and return the shape of y. Raise ValueError for windows that do not fit."""
    cdef Window* along
    cdef Py_ssize_t room, beyond
    cdef int d
    begin_images(call, kernel, x)
    for d in range(2):
        along = &call.window[d]
        along.length = length_along(x, d)
        along.kernel, along.stride, along.padding = size[d], stride[d], padding[d]
        room = along.length - (along.kernel - 2 * along.padding)
        if (along.stride < 1 or not 0 <= along.padding <= along.kernel // 2
                or room < (1 - along.stride if ceil else 0) or along.kernel < 1 or along.length < 1):
            raise ValueError(f"{kernel.name} got shape {get_dims(x)}, windows of {size}, stride {stride}, padding "
                             f"{padding}: windows must fit into padded images, and padding into half a window")
        along.count = 1 if room < 0 else room // along.stride + 1
        beyond = along.stride - room % along.stride
        if ceil and 0 < room and beyond < min(along.stride, along.kernel - along.padding):
            along.count += 1              # a window that reaches over the end, but begins before the pads
        call.work *= <double> along.count * min(along.kernel, along.length)
    return images_shape(x, call.window[0].count, call.window[1].count)


cdef tuple begin_upsampling(Call* call, Kernel kernel, cnp.ndarray x, tuple scale):
    """Begin a call on blocks, which are windows of y side by side, and return the shape of y."""
    cdef Window* along
    cdef int d
    begin_images(call, kernel, x)
    call.scalar[0] = 1
    for d in range(2):
        along = &call.window[d]
        along.count, along.kernel, along.stride = length_along(x, d), scale[d], scale[d]
        if along.kernel < 1 or along.kernel > INTPTR_MAX // max(along.count, 1):
            raise ValueError(f"{kernel.name} got shape {get_dims(x)}, to be enlarged by {scale}")
        along.length = along.count * along.kernel
        call.work *= <double> along.length
    return images_shape(x, call.window[0].length, call.window[1].length)


cdef int begin_images(Call* call, Kernel kernel, cnp.ndarray x) except -1:
    begin(call, kernel, real_type(kernel.name, x))
    if not 3 <= cnp.PyArray_NDIM(x) <= 4:
        raise ValueError(f"{kernel.name} got shape {get_dims(x)}; expected (n, C, H, W) or (n, C, L)")
    call.work = kernel.work * cnp.PyArray_DIM(x, 0) * cnp.PyArray_DIM(x, 1)
    return 0


cdef inline Py_ssize_t length_along(cnp.ndarray x, int d) noexcept:
    """Return the height or the width of images."""
    return cnp.PyArray_DIM(x, cnp.PyArray_NDIM(x) - 2 + d) if d == 1 or cnp.PyArray_NDIM(x) == 4 else 1


cdef tuple images_shape(cnp.ndarray x, Py_ssize_t height, Py_ssize_t width):
    """Return the shape of as many images of another size."""
    cdef tuple shape = get_dims(x)
    if len(shape) == 4:
        return shape[0], shape[1], height, width
    return shape[0], shape[1], width


cdef int require_images(str name, cnp.ndarray dy, cnp.ndarray x, tuple shape) except -1:
    """TypeError unless dy has the dtype of x, ValueError unless it has this shape."""
    same_type(name, dy, x)
    if get_dims(dy) != shape:
        raise ValueError(f"{name} got dy of shape {get_dims(dy)} for x of shape {get_dims(x)}; expected {shape}")
    return 0


# ---- layouts ----

cdef cnp.ndarray run_pool(Call* call, cnp.ndarray a, cnp.ndarray like, tuple shape, Py_ssize_t rows):
    """Launch a call with one input and return its output, in the memory order of `like`."""
    cdef int lanes
    cdef tuple order = pooling_order(like, &lanes)
    cdef cnp.ndarray out = output_ordered(shape, native_dtype(a), order)
    bind_images(call, 0, out, lanes)
    pool(call, 1, a, order, lanes, rows)
    return restore_order(like, out, lanes)


cdef int pool(Call* call, int operand, cnp.ndarray a, tuple order, int lanes, Py_ssize_t rows) except -1:
    """Bind the input of a call, its last operand, and launch it. An image of the output has so many rows."""
    a = as_readable(a)
    if not has_lanes(a, lanes):
        a = copy(a, output_ordered(get_dims(a), a.descr, order))
    bind_images(call, operand, a, lanes)
    call.size[0] = cnp.PyArray_DIM(a, lanes)
    call.parts = cnp.PyArray_DIM(a, 1 - lanes) * rows
    return launch(call)


cdef tuple pooling_order(cnp.ndarray x, int* lanes):
    """Return the axes from outermost to innermost as the loops read them, the last being `lanes`: n or C.

    The lanes are the longer axis of the two, unless the other one is innermost in memory. All other axes stay in the
    order that they have in memory.
    """
    cdef bint longer = cnp.PyArray_DIM(x, 1) >= cnp.PyArray_DIM(x, 0), shorter = not longer
    lanes[0] = longer
    if not has_lanes(x, longer) and has_lanes(x, shorter) and cnp.PyArray_DIM(x, shorter) > 1:
        lanes[0] = shorter
    return tuple([d for d in memory_order(x) if d != lanes[0]]) + (lanes[0],)


cdef inline cnp.dtype native_dtype(cnp.ndarray a):
    """Return the dtype in native byte order."""
    return cnp.PyArray_DescrFromType(type_number(a))


cdef inline bint has_lanes(cnp.ndarray a, int axis) noexcept:
    """Return whether elements along the axis are neighbours. An empty array may have any strides."""
    return (cnp.PyArray_STRIDE(a, axis) == cnp.PyArray_ITEMSIZE(a) or cnp.PyArray_DIM(a, axis) <= 1
            or cnp.PyArray_SIZE(a) == 0)


cdef cnp.ndarray restore_order(cnp.ndarray x, cnp.ndarray out, int lanes):
    """Return the pooled images in the memory order of x: `out` itself, or a copy of it."""
    return out if has_lanes(x, lanes) else copy(out, output_ordered(get_dims(out), out.descr, memory_order(x)))


cdef void bind_images(Call* call, int operand, cnp.ndarray a, int lanes) noexcept:
    """Bind images with three strides: of n or C, whichever is not the lanes, of rows and of columns."""
    cdef int ndim = cnp.PyArray_NDIM(a)
    cdef Py_ssize_t size = cnp.PyArray_ITEMSIZE(a)
    bind(call, operand, a)
    call.operand[operand].stride[0] = cnp.PyArray_STRIDE(a, 1 - lanes) // size
    call.operand[operand].stride[1] = cnp.PyArray_STRIDE(a, 2) // size if ndim == 4 else 0
    call.operand[operand].stride[2] = cnp.PyArray_STRIDE(a, ndim - 1) // size
