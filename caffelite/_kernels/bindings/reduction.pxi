# Reductions over axes.

cdef Kernel SUM_KERNEL = Kernel("sum", work=6)
cdef Kernel LARGEST_KERNEL = Kernel("largest", loops="extreme", writes=0b11, work=50)
cdef Kernel SMALLEST_KERNEL = Kernel("smallest", loops="extreme", writes=0b11, work=50)
cdef Kernel EXTREME_GRAD_KERNEL = Kernel("extreme_grad", checked=2, work=10)
cdef Kernel CUMSUM_KERNEL = Kernel("cumsum", work=20)
cdef Kernel PROD_KERNEL = Kernel("prod", work=20)
cdef Kernel PROD_GRAD_KERNEL = Kernel("prod_grad", writes=0b1001, work=60)
cdef Kernel VARIANCE_KERNEL = Kernel("variance", work=20)
cdef Kernel VARIANCE_GRAD_KERNEL = Kernel("variance_grad", work=20)
cdef Kernel LOGSUMEXP_KERNEL = Kernel("logsumexp", work=100)
cdef Kernel LOGSUMEXP_GRAD_KERNEL = Kernel("logsumexp_grad", work=100)
cdef Kernel ALL_FINITE_KERNEL = Kernel("all_finite", writes=0, checked=0, work=5)


def sum(cnp.ndarray a not None, axis=None, bint keepdims=False, *,
        double scale=1.0, cnp.ndarray out=None, bint accumulate=False):
    """y = scale · Σ a over an axis, a tuple of axes, or all axes. If accumulating, y is added to the values in `out`.

    Raise ValueError for an axis that does not exist or is named twice, or for an `out` of another shape.
    """
    return reduction(SUM_KERNEL, a, axis, keepdims, scale, out, accumulate)


def largest(cnp.ndarray a not None, axis=None, bint keepdims=False):
    """Return the largest element over an axis, a tuple of axes, or all axes; NaN if there is a NaN.

    Return y and, for `extreme_grad`, the first position of each of its elements within the reduced axes, in C order.
    Raise ValueError as for `sum`, and if there are no elements to reduce.
    """
    return extreme(LARGEST_KERNEL, 1, a, axis, keepdims)


def smallest(cnp.ndarray a not None, axis=None, bint keepdims=False):
    """Return the smallest element. Arguments, results and errors are as for `largest`."""
    return extreme(SMALLEST_KERNEL, -1, a, axis, keepdims)


cdef tuple extreme(Kernel kernel, double sign, cnp.ndarray a, axis, bint keepdims):
    cdef Call call
    cdef int real = real_type(kernel.name, a)
    cdef tuple dims = get_dims(a), axes = check_axes(kernel.name, axis, len(dims))
    cdef tuple shape = reduce_dims(dims, axes, keepdims)
    cdef cnp.ndarray out, first

    begin(&call, kernel, real)
    a = transpose_axes(a, collapse_axes(&call, dims, axes))
    call.parts = call.size[0] * call.size[2]
    if call.parts > 0 and call.size[1] == 0:
        raise ValueError(f"{kernel.name} of no elements: shape {dims}, axis {axis}")
    out, first = output(shape, a.descr), output(shape, int64)
    bind_all(&call, 0, out, first, a)
    call.scalar[0] = sign
    launch_parts(&call, call.parts, cnp.PyArray_SIZE(a))
    return out, first


def extreme_grad(cnp.ndarray dy not None, cnp.ndarray first not None, tuple shape, axis=None):
    """dx, of this shape: dy at the positions `first`, which `largest` or `smallest` found over `axis`, else 0."""
    cdef Call call
    cdef int real = real_type("extreme_grad", dy)
    cdef tuple axes = check_axes("extreme_grad", axis, len(shape))
    cdef tuple order
    cdef cnp.ndarray out

    begin(&call, EXTREME_GRAD_KERNEL, real)
    order = collapse_axes(&call, shape, axes)
    call.parts = call.size[0] * call.size[2]
    if (not is_int64(first) or not cnp.PyArray_IS_C_CONTIGUOUS(first)
            or not cnp.PyArray_ISBEHAVED_RO(first)):
        raise TypeError(f"extreme_grad takes the `first` of largest or smallest, got {first.dtype}")
    if cnp.PyArray_SIZE(dy) != call.parts or cnp.PyArray_SIZE(first) != call.parts:
        raise ValueError(f"extreme_grad got dy of shape {get_dims(dy)} and first of shape {get_dims(first)}; expected "
                         f"{reduce_dims(shape, axes, False)}")
    dy = as_contiguous(dy)
    out = output(shape if order is None else tuple([shape[d] for d in order]), dy.descr)
    bind_all(&call, 0, out, dy, first)
    launch_parts(&call, call.parts, cnp.PyArray_SIZE(out), partial(raise_bad_position, call.size[1]))
    return restore_axes(out, order)


def raise_bad_position(length, first):
    raise IndexError(f"extreme_grad got a place that is not in 0 … {length - 1}")


def prod(cnp.ndarray a not None, axis=None, bint keepdims=False):
    """y = Π a over an axis, a tuple of axes, or all axes; 1 of no elements."""
    return reduction(PROD_KERNEL, a, axis, keepdims)


def prod_grad(cnp.ndarray dy not None, cnp.ndarray a not None, axis=None):
    """dx = dy times the product of the other elements, with y = prod(x, axis). dy has the shape of y."""
    return reduction_grad(PROD_GRAD_KERNEL, dy, a, axis)


def variance(cnp.ndarray a not None, axis=None, bint keepdims=False, *, double scale):
    """y = scale · Σ (a − m)² over an axis, a tuple of axes, or all axes, with the mean m."""
    return reduction(VARIANCE_KERNEL, a, axis, keepdims, scale)


def variance_grad(cnp.ndarray dy not None, cnp.ndarray a not None, axis=None, *, double scale):
    """dx = dy · 2 scale · (a − m), with y = variance(a, axis). dy has the shape of y."""
    return reduction_grad(VARIANCE_GRAD_KERNEL, dy, a, axis, scale)


def logsumexp(cnp.ndarray a not None, axis=None, bint keepdims=False):
    """y = log Σ exp a over an axis, a tuple of axes, or all axes; −inf of no elements."""
    return reduction(LOGSUMEXP_KERNEL, a, axis, keepdims)


def logsumexp_grad(cnp.ndarray dy not None, cnp.ndarray a not None, axis=None):
    """dx = dy exp a / Σ exp a, with y = logsumexp(a, axis). dy has the shape of y."""
    return reduction_grad(LOGSUMEXP_GRAD_KERNEL, dy, a, axis)


cdef cnp.ndarray reduction(Kernel kernel, cnp.ndarray a, axis, bint keepdims, double scale=1, cnp.ndarray out=None,
                           bint accumulate=False):
    """Reduce an array over axes with a loop that takes y, a and a scale."""
    cdef Call call
    cdef int real = real_type(kernel.name, a)
    cdef tuple dims = get_dims(a), axes = check_axes(kernel.name, axis, len(dims))

    begin(&call, kernel, real)
    a = transpose_axes(a, collapse_axes(&call, dims, axes))
    a = copy(a) if out is not None and overlap(a, out) else a
    out = as_output(kernel.name, out, reduce_dims(dims, axes, keepdims), a, accumulate)
    bind_all(&call, 0, out, a)
    call.scalar[0], call.accumulate = scale, accumulate
    launch_parts(&call, call.size[0] * call.size[2], cnp.PyArray_SIZE(a))
    return out


cdef cnp.ndarray reduction_grad(Kernel kernel, cnp.ndarray dy, cnp.ndarray a, axis, double scale=1):
    """Return a reduction's gradient, by a loop that takes dx, dy, a and a scale, and room for its other results."""
    cdef Call call
    cdef int real = real_type(kernel.name, a)
    cdef tuple dims = get_dims(a), axes = check_axes(kernel.name, axis, len(dims)), order
    cdef cnp.ndarray out, room = None

    same_type(kernel.name, a, dy)
    begin(&call, kernel, real)
    order = collapse_axes(&call, dims, axes)
    call.parts = call.size[0] * call.size[2]
    if cnp.PyArray_SIZE(dy) != call.parts:
        raise ValueError(f"{kernel.name} got dy of shape {get_dims(dy)}; expected {reduce_dims(dims, axes, False)}")
    a, dy = transpose_axes(a, order), as_contiguous(dy)
    out = output(get_dims(a), a.descr)
    if kernel.writes >> 3 & 1:
        room = output(get_dims(a), float64)
    bind_all(&call, 0, out, dy, a, room)
    call.scalar[0] = scale
    launch_parts(&call, call.parts, cnp.PyArray_SIZE(a))
    return restore_axes(out, order)


def cumsum(cnp.ndarray a not None, axis, bint reverse=False):
    """y[k] = a[0] + … + a[k] along an axis; in reverse, y[k] = a[k] + … + a[-1]."""
    cdef Call call
    cdef int real = real_type("cumsum", a), along = normalize_axis(axis, cnp.PyArray_NDIM(a))
    cdef cnp.ndarray out

    begin(&call, CUMSUM_KERNEL, real)
    collapse_axes(&call, get_dims(a), (along,))
    a = as_contiguous(a)
    out = output(get_dims(a), a.descr)
    bind_all(&call, 0, out, a)
    call.size[3] = reverse
    launch_parts(&call, call.size[0] * call.size[2], cnp.PyArray_SIZE(a))
    return out


cdef tuple check_axes(str name, axis, int ndim):
    """Return the axes as numbers from 0 on. Raise ValueError if an axis does not exist or is named twice."""
    cdef tuple axes
    if axis is None:
        return tuple(range(ndim))
    axes = tuple([normalize_axis(one, ndim) for one in (axis if isinstance(axis, tuple) else (axis,))])
    if len(set(axes)) < len(axes):
        raise ValueError(f"{name} got the axes {axis}, one of them twice")
    return axes


cdef tuple reduce_dims(tuple shape, tuple axes, bint keepdims):
    """Return the shape of the result of a reduction over these axes."""
    return tuple([1 if d in axes else n for d, n in enumerate(shape) if keepdims or d not in axes])


cdef tuple collapse_axes(Call* call, tuple shape, tuple axes):
    """Set the call's sizes to the numbers of elements before, along and after the reduced axes.

    Return an order of the array's axes that puts the reduced axes last, or None if they are already adjacent. The
    sizes are for the array in this order.
    """
    cdef tuple order = None
    cdef int d, part = 0 if axes else 2
    if axes and max(axes) - min(axes) >= len(axes):
        order = tuple([d for d in range(len(shape)) if d not in axes]) + tuple(sorted(axes))
    call.size[0] = call.size[1] = call.size[2] = 1
    for d in order or range(len(shape)):
        if d in axes:
            part = 1
        elif part == 1:
            part = 2
        call.size[part] *= shape[d]
    return order


cdef cnp.ndarray transpose_axes(cnp.ndarray a, tuple order):
    """Return the array with its axes in this order, contiguous."""
    return as_contiguous(a if order is None else a.transpose(order))


cdef cnp.ndarray restore_axes(cnp.ndarray a, tuple order):
    """Return a view of an array whose axes have this order, with the axes back in their original order."""
    return a if order is None else a.transpose([order.index(d) for d in range(len(order))])


cdef normalize_axis(axis, int ndim):
    if isinstance(axis, bool):
        raise TypeError(f"an axis is an integer, got {axis}")
    axis = operator.index(axis)
    if not -ndim <= axis < ndim:
        raise ValueError(f"there is no axis {axis} in an array of {ndim} axes")
    return axis % ndim


def all_finite(cnp.ndarray a not None, on_stop=None, cnp.ndarray used=None):
    """Return whether all elements are finite. With `used` (see `use_rows`), only the used rows count.

    If one is not, calls `on_stop`, if given, with the array; `on_stop` must raise. In a recorded step, such an
    element stops the replay, and the replay calls `on_stop`.
    """
    cdef Call call
    begin(&call, ALL_FINITE_KERNEL, real_type("all_finite", a))
    a = as_contiguous(a)
    bind(&call, 0, a)
    call.parts = cnp.PyArray_SIZE(a)
    call.work = ALL_FINITE_KERNEL.work * call.parts
    restrict_to_rows(&call, used, a)
    return launch(&call, on_stop) == CONTINUE
