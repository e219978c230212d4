# Normalization of rows and of features.

cdef Kernel LAYER_NORM_KERNEL = Kernel("layer_norm", writes=0b10001, work=20)
cdef Kernel LAYER_NORM_GRAD_KERNEL = Kernel("layer_norm_grad", work=20)
cdef Kernel LAYER_NORM_SUMS_KERNEL = Kernel("layer_norm_sums", writes=0b11, work=15)


def layer_norm(cnp.ndarray x not None, cnp.ndarray scale not None, cnp.ndarray shift, double eps,
               bint centered=True):
    """y = (x − m) / √(v + ε) scale + shift, with m and v the mean and the biased variance of each row.

    x (…, C), scale (C,), shift (C,) or None → y, and moments (2, n) float64, which the gradients need: m and
    1 / √(v + ε) of each of the n rows. If not `centered`, m is 0, and v is the mean of the row's squares. ValueError
    for other shapes, or an ε that is negative or NaN.
    """
    cdef Call call
    cdef cnp.ndarray y, moments
    x, scale = as_contiguous(x), as_contiguous(scale)
    begin_rows(&call, LAYER_NORM_KERNEL, x, scale)
    check_eps("layer_norm", eps)
    if shift is not None:
        shift = as_contiguous(shift)
        require_vector("layer_norm", shift, type_number(x), call.size[1])
    y, moments = output(get_dims(x), x.dtype), output((2, call.size[0]), float64)
    bind_all(&call, 0, y, x, scale, shift, moments)
    call.size[2], call.scalar[0] = centered, eps
    launch(&call)
    return y, moments


def layer_norm_grad(cnp.ndarray dy not None, cnp.ndarray x not None, cnp.ndarray scale not None,
                    cnp.ndarray moments not None, bint centered=True):
    """dx of `layer_norm`: dy and x (…, C), scale (C,), and the moments that `layer_norm` returned."""
    cdef Call call
    cdef cnp.ndarray dx
    dy, x, scale = as_contiguous(dy), as_contiguous(x), as_contiguous(scale)
    begin_rows(&call, LAYER_NORM_GRAD_KERNEL, x, scale)
    require_gradient("layer_norm_grad", dy, x)
    require_moments("layer_norm_grad", moments, 2, call.size[0])
    dx = output(get_dims(x), x.dtype)
    bind_all(&call, 0, dx, dy, x, scale, moments)
    call.size[2] = centered
    launch(&call)
    return dx


def layer_norm_sums(cnp.ndarray dy not None, cnp.ndarray x not None, cnp.ndarray moments not None):
    """dscale and dshift, (C,), of `layer_norm`: dy and x (…, C), and the moments that `layer_norm` returned."""
    cdef Call call
    cdef cnp.ndarray dscale, dshift
    dy, x = as_contiguous(dy), as_contiguous(x)
    begin_rows(&call, LAYER_NORM_SUMS_KERNEL, x, None)
    require_gradient("layer_norm_sums", dy, x)
    require_moments("layer_norm_sums", moments, 2, call.size[0])
    dscale, dshift = output((call.size[1],), x.dtype), output((call.size[1],), x.dtype)
    bind_all(&call, 0, dscale, dshift, dy, x, moments)
    call.parts = call.size[1]
    launch(&call)
    return dscale, dshift


cdef int begin_rows(Call* call, Kernel kernel, cnp.ndarray x, cnp.ndarray scale) except -1:
    """Begin a call over the rows of x, and scale (C,) or None. Raise ValueError for other shapes."""
    cdef int ndim = cnp.PyArray_NDIM(x)
    begin(call, kernel, real_type(kernel.name, x))
    if ndim == 0:
        raise ValueError(f"{kernel.name} got shape {get_dims(x)}; expected (…, C)")
    call.size[1] = cnp.PyArray_DIM(x, ndim - 1)
    call.size[0] = call.parts = cnp.PyArray_SIZE(x) // max(call.size[1], 1)
    call.work = kernel.work * cnp.PyArray_SIZE(x)
    if scale is not None:
        require_vector(kernel.name, scale, type_number(x), call.size[1])
    return 0


cdef int check_eps(str name, double eps) except -1:
    if not eps >= 0:
        raise ValueError(f"{name}: eps must be at least 0, got {eps}")
    return 0


cdef int require_gradient(str name, cnp.ndarray dy, cnp.ndarray x) except -1:
    same_type(name, dy, x)
    if not cnp.PyArray_SAMESHAPE(dy, x):
        raise ValueError(f"{name} got dy of shape {get_dims(dy)} for x of shape {get_dims(x)}")
    return 0


cdef int require_moments(str name, cnp.ndarray moments, Py_ssize_t kinds, Py_ssize_t n) except -1:
    if type_number(moments) != cnp.NPY_FLOAT64:
        raise TypeError(f"{name} takes moments in float64, got {moments.dtype}")
    if (get_dims(moments) != (kinds, n) or not cnp.PyArray_IS_C_CONTIGUOUS(moments)
            or not cnp.PyArray_ISBEHAVED_RO(moments)):
        raise ValueError(f"{name} expected contiguous moments of shape {(kinds, n)}, got shape {get_dims(moments)}")
    return 0


cdef Kernel BATCH_NORM_KERNEL = Kernel("batch_norm", writes=0b10001, work=25, takes_epilogue=True)
cdef Kernel BATCH_NORM_FIXED_KERNEL = Kernel("batch_norm_fixed", work=10, takes_epilogue=True)
cdef Kernel BATCH_NORM_GRAD_KERNEL = Kernel("batch_norm_grad", writes=0b1100001, work=25)
cdef Kernel FEATURE_SUMS_KERNEL = Kernel("feature_sums", writes=0b10, work=10)
cdef Kernel MERGE_MOMENTS_KERNEL = Kernel("merge_moments", work=20)
cdef Kernel BATCH_NORM_SUMS_KERNEL = Kernel("batch_norm_sums", writes=0b1000, work=10)
cdef Kernel BATCH_NORM_GRAD_OF_SUMS_KERNEL = Kernel("batch_norm_grad_of_sums", writes=0b1100001, work=15)
cdef Kernel UPDATE_MOMENTS_KERNEL = Kernel("update_moments", writes=0b11, updates=0b11, work=20)
cdef Kernel RUNNING_MOMENTS_KERNEL = Kernel("running_moments", writes=0b100, work=20)


def batch_norm(cnp.ndarray x not None, cnp.ndarray scale not None, cnp.ndarray shift not None, double eps):
    """y = (x − m) / √(v + ε) scale + shift, with m and v the mean and the biased variance of each feature.

    x (n, C, …), scale and shift (C,) → y, and moments (3, C) float64: m, 1 / √(v + ε) and v of each feature.
    Raise ValueError for other shapes, fewer than two numbers a feature, or an ε that is negative or NaN.

    The loops read images in C order, images last or channels last without a copy. y has the memory order of x.
    """
    cdef Call call
    cdef cnp.ndarray moments
    x, scale, shift = as_dense(x), as_contiguous(scale), as_contiguous(shift)
    begin_features(&call, BATCH_NORM_KERNEL, x, scale)
    require_vector("batch_norm", shift, type_number(x), call.size[1])
    check_eps("batch_norm", eps)
    if call.size[0] * call.size[2] < 2:
        raise ValueError(f"batch_norm got shape {get_dims(x)}: a variance takes at least 2 numbers of each feature")
    moments = output((3, call.size[1]), float64)
    call.scalar[0] = eps
    return normalize_features(&call, x, scale, shift, moments), moments


def batch_norm_fixed(cnp.ndarray x not None, cnp.ndarray scale not None, cnp.ndarray shift not None,
                     cnp.ndarray moments not None):
    """y of `batch_norm` with these moments instead of the moments of x. x may have any number of rows."""
    cdef Call call
    x, scale, shift = as_dense(x), as_contiguous(scale), as_contiguous(shift)
    begin_features(&call, BATCH_NORM_FIXED_KERNEL, x, scale)
    require_vector("batch_norm_fixed", shift, type_number(x), call.size[1])
    require_moments("batch_norm_fixed", moments, 3, call.size[1])
    return normalize_features(&call, x, scale, shift, moments)


cdef cnp.ndarray normalize_features(Call* call, cnp.ndarray x, cnp.ndarray scale, cnp.ndarray shift,
                                    cnp.ndarray moments):
    cdef cnp.ndarray y = output_like(x)
    bind_all(call, 0, y, x, scale, shift, moments)
    launch(call)
    return y


def batch_norm_grad(cnp.ndarray dy not None, cnp.ndarray x not None, cnp.ndarray scale not None,
                    cnp.ndarray moments not None, bint fixed=False):
    """dx (n, C, …), dscale and dshift (C,) of `batch_norm`, or if `fixed` of `batch_norm_fixed`."""
    return feature_gradients(BATCH_NORM_GRAD_KERNEL, dy, x, scale, moments, fixed, None, None)


cdef tuple feature_gradients(Kernel kernel, cnp.ndarray dy, cnp.ndarray x, cnp.ndarray scale, cnp.ndarray moments,
                             Py_ssize_t option, cnp.ndarray sums, cnp.ndarray total_sums):
    cdef Call call
    cdef cnp.ndarray dx, dscale, dshift
    x, scale = as_dense(x), as_contiguous(scale)
    begin_features(&call, kernel, x, scale)
    require_gradient(kernel.name, dy, x)
    require_moments(kernel.name, moments, 3, call.size[1])
    dy = match_layout(x, as_readable(dy))
    dx = output_like(x)
    dscale, dshift = output((call.size[1],), x.dtype), output((call.size[1],), x.dtype)
    call.size[5] = option
    bind_all(&call, 0, dx, dy, x, scale, moments, dscale, dshift, sums, total_sums)
    launch(&call)
    return dx, dscale, dshift


# ---- a part of the rows: the caller adds up the sums of all parts between the two kernels ----

def feature_sums(cnp.ndarray x not None, bint counts=True):
    """Return of each feature of x (n, C, …) the count, the mean, and the sum of the squared deviations from it.

    (3, C) float64, all 0 unless x `counts`. `merge_moments` joins the results of several parts.
    """
    cdef Call call
    cdef cnp.ndarray sums
    x = as_dense(x)
    begin_features(&call, FEATURE_SUMS_KERNEL, x, None)
    sums = output((3, call.size[1]), float64)
    call.size[5] = counts
    bind_all(&call, 0, x, sums)
    launch(&call)
    return sums


def merge_moments(cnp.ndarray sums not None, double eps):
    """Return the moments of all parts together, as `batch_norm` returns them; sums (parts, 3, C) of `feature_sums`."""
    cdef Call call
    cdef cnp.ndarray moments
    check_eps("merge_moments", eps)
    if (type_number(sums) != cnp.NPY_FLOAT64 or cnp.PyArray_NDIM(sums) != 3 or cnp.PyArray_DIM(sums, 1) != 3
            or not cnp.PyArray_IS_C_CONTIGUOUS(sums) or not cnp.PyArray_ISBEHAVED_RO(sums)):
        raise ValueError(f"merge_moments takes sums (parts, 3, C), float64, got {sums.dtype} of shape "
                         f"{get_dims(sums)}")
    begin(&call, MERGE_MOMENTS_KERNEL, 0)
    call.size[0], call.size[1] = cnp.PyArray_DIM(sums, 0), cnp.PyArray_DIM(sums, 2)
    call.scalar[0] = eps
    moments = output((3, call.size[1]), float64)
    bind_all(&call, 0, moments, sums)
    launch_parts(&call, call.size[1], cnp.PyArray_SIZE(sums))
    return moments


def batch_norm_sums(cnp.ndarray dy not None, cnp.ndarray x not None, cnp.ndarray moments not None):
    """Σ dy and Σ dy (x − m) of each feature, (2, C) float64: dy and x (n, C, …), moments (3, C)."""
    cdef Call call
    cdef cnp.ndarray sums
    x = as_dense(x)
    begin_features(&call, BATCH_NORM_SUMS_KERNEL, x, None)
    require_gradient("batch_norm_sums", dy, x)
    require_moments("batch_norm_sums", moments, 3, call.size[1])
    dy = match_layout(x, as_readable(dy))
    sums = output((2, call.size[1]), float64)
    bind_all(&call, 0, dy, x, moments, sums)
    launch(&call)
    return sums


def batch_norm_grad_of_sums(cnp.ndarray dy not None, cnp.ndarray x not None, cnp.ndarray scale not None,
                            cnp.ndarray moments not None, cnp.ndarray sums not None, cnp.ndarray total_sums not None,
                            Py_ssize_t count):
    """`batch_norm_grad` of a part of the batch, in which each feature has `count` numbers.

    dscale and dshift belong to this part, and come from its `sums`. dx takes `total_sums` of all parts. Both sums are
    (2, C).
    """
    cdef Py_ssize_t features = cnp.PyArray_SIZE(scale)
    require_moments("batch_norm_grad_of_sums", sums, 2, features)
    require_moments("batch_norm_grad_of_sums", total_sums, 2, features)
    if count < 1:
        raise ValueError(f"batch_norm_grad_of_sums got {count} numbers a feature")
    return feature_gradients(BATCH_NORM_GRAD_OF_SUMS_KERNEL, dy, x, scale, moments, count, sums, total_sums)


def update_moments(cnp.ndarray mean not None, cnp.ndarray variance not None, cnp.ndarray moments not None,
                   Py_ssize_t count, double momentum):
    """mean ← (1 − μ) mean + μ m,  variance ← (1 − μ) variance + μ v k / (k − 1), in place, μ the momentum.

    mean and variance (C,), and the moments that `batch_norm` returned for k = count numbers of each feature. If the
    moments of a feature are not finite, it stays as it is. A variance beyond the largest number of its dtype becomes
    that number.
    """
    cdef Call call
    begin_running(&call, UPDATE_MOMENTS_KERNEL, mean, variance)
    require_moments("update_moments", moments, 3, call.size[0])
    if count < 2:
        raise ValueError(f"update_moments got moments of {count} numbers; a variance takes at least 2")
    bind_all(&call, 0, check_out("update_moments", mean), check_out("update_moments", variance), moments)
    call.size[1], call.scalar[0] = count, momentum
    launch(&call)


def running_moments(cnp.ndarray mean not None, cnp.ndarray variance not None, double eps):
    """Return the moments that `batch_norm` returns for features of this mean and variance (C,)."""
    cdef Call call
    cdef cnp.ndarray moments
    begin_running(&call, RUNNING_MOMENTS_KERNEL, mean, variance)
    check_eps("running_moments", eps)
    moments = output((3, call.size[0]), float64)
    bind_all(&call, 0, mean, variance, moments)
    call.scalar[0] = eps
    launch(&call)
    return moments


cdef int begin_features(Call* call, Kernel kernel, cnp.ndarray x, cnp.ndarray scale) except -1:
    """Begin a call over the features of x, from `as_dense`, and scale (C,) or None. Raise ValueError if not."""
    cdef bint channels_last
    begin(call, kernel, real_type(kernel.name, x))
    if cnp.PyArray_NDIM(x) < 2 or cnp.PyArray_DIM(x, 1) == 0:
        raise ValueError(f"{kernel.name} got shape {get_dims(x)}; expected (n, C, …), C above 0")
    call.size[0], call.size[1] = cnp.PyArray_DIM(x, 0), cnp.PyArray_DIM(x, 1)
    call.size[2] = cnp.PyArray_SIZE(x) // max(call.size[0] * call.size[1], 1)
    call.size[4] = call.size[2]
    if not cnp.PyArray_IS_C_CONTIGUOUS(x):
        channels_last = call.size[1] > 1 and cnp.PyArray_STRIDE(x, 1) == cnp.PyArray_ITEMSIZE(x)
        call.size[4] = 1 if channels_last else call.size[0] * call.size[2]
    call.size[3] = call.size[0] * call.size[2] // max(call.size[4], 1)
    call.parts = call.size[1]
    call.work = kernel.work * cnp.PyArray_SIZE(x)
    if scale is not None:
        require_vector(kernel.name, scale, type_number(x), call.size[1])
    return 0


cdef cnp.ndarray as_dense(cnp.ndarray x):
    """Return the array itself if it is in C order, images last or channels last, without gaps; otherwise such a copy.

    If each feature has one place, (n, C), the result is always in C order.
    """
    cdef int axes[NUMPY_MAX_DIMS]
    cdef int ndim = cnp.PyArray_NDIM(x), before = -1, innermost = -1, d
    x = as_readable(x)
    if cnp.PyArray_IS_C_CONTIGUOUS(x):
        return x
    if ndim < 3 or cnp.PyArray_SIZE(x) == cnp.PyArray_DIM(x, 0) * cnp.PyArray_DIM(x, 1):
        return copy(x)
    order_axes(x, axes)
    for d in range(ndim):
        if cnp.PyArray_DIM(x, axes[d]) > 1:
            if innermost < before:
                return copy(x)
            before, innermost = innermost, axes[d]
    if innermost > 1:
        return copy(x)
    return x if leaves_no_gaps(x, axes) else copy(x, output_like(x))


cdef int begin_running(Call* call, Kernel kernel, cnp.ndarray mean, cnp.ndarray variance) except -1:
    """Begin a call on a running mean and variance (C,). TypeError or ValueError for anything else."""
    begin(call, kernel, real_type(kernel.name, mean))
    call.size[0] = cnp.PyArray_SIZE(mean)
    call.parts, call.work = 1, kernel.work * call.size[0]
    require_vector(kernel.name, mean, type_number(mean), call.size[0])
    require_vector(kernel.name, variance, type_number(mean), call.size[0])
    return 0
