# Softmax and its logarithm along an axis.

cdef Kernel SOFTMAX_KERNEL = Kernel("softmax", work=130)
cdef Kernel SOFTMAX_GRAD_KERNEL = Kernel("softmax_grad", work=50)
cdef Kernel LOG_SOFTMAX_KERNEL = Kernel("log_softmax", work=130)
cdef Kernel LOG_SOFTMAX_GRAD_KERNEL = Kernel("log_softmax_grad", work=80)


def softmax(cnp.ndarray a not None, axis=-1):
    """y = exp a / Σ exp a along an axis."""
    return run_rows(SOFTMAX_KERNEL, axis, a, None)


def softmax_grad(cnp.ndarray dy not None, cnp.ndarray y not None, axis=-1):
    """dx = y (dy − Σ dy y) along an axis, with y = softmax(x)."""
    return run_rows(SOFTMAX_GRAD_KERNEL, axis, dy, y)


def log_softmax(cnp.ndarray a not None, axis=-1):
    """y = a − log Σ exp a along an axis."""
    return run_rows(LOG_SOFTMAX_KERNEL, axis, a, None)


def log_softmax_grad(cnp.ndarray dy not None, cnp.ndarray y not None, axis=-1):
    """dx = dy − exp y Σ dy along an axis, with y = log_softmax(x)."""
    return run_rows(LOG_SOFTMAX_GRAD_KERNEL, axis, dy, y)


cdef cnp.ndarray run_rows(Kernel kernel, axis, cnp.ndarray a, cnp.ndarray b):
    """Run a loop over rows: the axis becomes the last one, and in the result it is back in its place."""
    cdef Call call
    cdef int real = real_type(kernel.name, a), last = normalize_axis(axis, cnp.PyArray_NDIM(a))
    cdef tuple order = None
    cdef cnp.ndarray out
    if last < cnp.PyArray_NDIM(a) - 1:
        order = tuple([d for d in range(cnp.PyArray_NDIM(a)) if d != last]) + (last,)

    begin(&call, kernel, real)
    if b is not None:
        same_type(kernel.name, a, b)
        if get_dims(a) != get_dims(b):
            raise ValueError(f"{kernel.name} got shapes {get_dims(a)} and {get_dims(b)}; both must be the same")
        b = transpose_axes(b, order)
    a = transpose_axes(a, order)
    out = output(get_dims(a), a.descr)
    bind_all(&call, 0, out, a, b)
    call.size[1] = cnp.PyArray_DIM(a, cnp.PyArray_NDIM(a) - 1)
    call.size[0] = cnp.PyArray_SIZE(a) // (call.size[1] or 1)
    launch_parts(&call, call.size[0], cnp.PyArray_SIZE(a))
    return restore_axes(out, order)
