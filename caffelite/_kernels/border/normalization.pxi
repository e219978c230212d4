# Normalization of rows and of features.

cdef Kernel LAYER_NORM_KERNEL = Kernel("layer_norm", writes=0b10001, work=20)
cdef Kernel LAYER_NORM_GRAD_KERNEL = Kernel("layer_norm_grad", work=20)
cdef Kernel LAYER_NORM_SUMS_KERNEL = Kernel("layer_norm_sums", writes=0b11, work=15)


def layer_norm(cnp.ndarray x not None, cnp.ndarray scale not None, cnp.ndarray shift, double eps):
    """y = (x − m) / √(v + ε) scale + shift, with m and v the mean and the biased variance of each row.

    x (…, C), scale (C,), shift (C,) or None → y, and the moments that the gradients need, (2, n) float64: m and
    1 / √(v + ε) of each of the n rows. ValueError for other shapes, no features, or an ε that is negative or NaN.
    """
    cdef Call call
    cdef cnp.ndarray y, moments
    x, scale = contiguous(x), contiguous(scale)
    lay_rows(&call, LAYER_NORM_KERNEL, x, scale)
    check_eps("layer_norm", eps)
    if shift is not None:
        shift = contiguous(shift)
        require_vector("layer_norm", shift, cnp.PyArray_TYPE(x), call.size[1])
        bind(&call, 3, shift)
    y, moments = output(shape_of(x), x.dtype), output((2, call.size[0]), np.dtype(np.float64))
    bind(&call, 0, y)
    bind(&call, 1, x)
    bind(&call, 2, scale)
    bind(&call, 4, moments)
    call.scalar[0] = eps
    launch(&call)
    return y, moments


def layer_norm_grad(cnp.ndarray dy not None, cnp.ndarray x not None, cnp.ndarray scale not None,
                    cnp.ndarray moments not None):
    """dx of `layer_norm`: dy and x (…, C), scale (C,), moments as it returned them."""
    cdef Call call
    cdef cnp.ndarray dx
    dy, x, scale = contiguous(dy), contiguous(x), contiguous(scale)
    lay_rows(&call, LAYER_NORM_GRAD_KERNEL, x, scale)
    require_gradient("layer_norm_grad", dy, x)
    require_moments("layer_norm_grad", moments, 2, call.size[0])
    dx = output(shape_of(x), x.dtype)
    bind(&call, 0, dx)
    bind(&call, 1, dy)
    bind(&call, 2, x)
    bind(&call, 3, scale)
    bind(&call, 4, moments)
    launch(&call)
    return dx


def layer_norm_sums(cnp.ndarray dy not None, cnp.ndarray x not None, cnp.ndarray moments not None):
    """dscale and dshift, (C,), of `layer_norm`: dy and x (…, C), moments as it returned them."""
    cdef Call call
    cdef cnp.ndarray dscale, dshift
    dy, x = contiguous(dy), contiguous(x)
    lay_rows(&call, LAYER_NORM_SUMS_KERNEL, x, None)
    require_gradient("layer_norm_sums", dy, x)
    require_moments("layer_norm_sums", moments, 2, call.size[0])
    dscale, dshift = output((call.size[1],), x.dtype), output((call.size[1],), x.dtype)
    bind(&call, 0, dscale)
    bind(&call, 1, dshift)
    bind(&call, 2, dy)
    bind(&call, 3, x)
    bind(&call, 4, moments)
    call.parts = call.size[1]
    launch(&call)
    return dscale, dshift


cdef int lay_rows(Call* call, Kernel kernel, cnp.ndarray x, cnp.ndarray scale) except -1:
    """Begin a call over the rows of x, with scale (C,) if there is one; ValueError for other shapes."""
    cdef int ndim = cnp.PyArray_NDIM(x)
    begin(call, kernel, real_type(kernel.name, x))
    if ndim == 0 or cnp.PyArray_DIM(x, ndim - 1) == 0:
        raise ValueError(f"{kernel.name} got shape {shape_of(x)}; expected (…, C), C above 0")
    call.size[1] = cnp.PyArray_DIM(x, ndim - 1)
    call.size[0] = call.parts = cnp.PyArray_SIZE(x) // call.size[1]
    call.work = kernel.work * cnp.PyArray_SIZE(x)
    if scale is not None:
        require_vector(kernel.name, scale, cnp.PyArray_TYPE(x), call.size[1])
    return 0


cdef int check_eps(str name, double eps) except -1:
    if not eps >= 0:
        raise ValueError(f"{name}: eps must be at least 0, got {eps}")
    return 0


cdef int require_gradient(str name, cnp.ndarray dy, cnp.ndarray x) except -1:
    same_type(name, dy, x)
    if not cnp.PyArray_SAMESHAPE(dy, x):
        raise ValueError(f"{name} got dy of shape {shape_of(dy)} for x of shape {shape_of(x)}")
    return 0


cdef int require_moments(str name, cnp.ndarray moments, Py_ssize_t kinds, Py_ssize_t n) except -1:
    if cnp.PyArray_TYPE(moments) != cnp.NPY_FLOAT64:
        raise TypeError(f"{name} takes moments in float64, got {moments.dtype}")
    if (shape_of(moments) != (kinds, n) or not cnp.PyArray_IS_C_CONTIGUOUS(moments)
            or not cnp.PyArray_ISBEHAVED_RO(moments)):
        raise ValueError(f"{name} expected contiguous moments of shape {(kinds, n)}, got shape {shape_of(moments)}")
    return 0
