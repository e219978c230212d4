# The numbers of a table.

cdef Kernel STANDARDIZE_KERNEL = Kernel("standardize", work=40)
cdef Kernel STANDARDIZE_GRAD_KERNEL = Kernel("standardize_grad", work=60)
cdef Kernel PIECEWISE_KERNEL = Kernel("piecewise", work=20)
cdef Kernel PIECEWISE_GRAD_KERNEL = Kernel("piecewise_grad", work=10)


def standardize(cnp.ndarray x not None, cnp.ndarray center not None, cnp.ndarray scale not None,
                cnp.ndarray gaps not None, double limit, dtype):
    """y = z / √(1 + (z / limit)²), z = (x − center) / scale, and 0 where x is NaN; then 1 for each gap, else 0.

    x (n, k), center and scale (k,) float64, these two contiguous. gaps (g,) int64 are columns of x. limit > 0, maybe
    inf. y (n, k + g), in float32 or float64: column k + m is 1 where x[:, gaps[m]] is NaN.
    """
    cdef Call call
    cdef cnp.dtype to = np.dtype(dtype)
    cdef cnp.ndarray out
    x = begin_table(&call, STANDARDIZE_KERNEL, TARGETS.get(to.str, 2), x, center, scale, limit)
    gaps = as_labels("standardize", gaps, -1)
    cdef Py_ssize_t k = call.size[1], g = cnp.PyArray_SIZE(gaps), j
    for j in range(g):
        if not 0 <= (<int64_t*> cnp.PyArray_DATA(gaps))[j] < k:
            raise IndexError(f"standardize got gaps {gaps.tolist()} for {k} columns")
    out = output((cnp.PyArray_DIM(x, 0), k + g), to)
    call.size[2] = g
    bind_all(&call, 0, out, x, center, scale, gaps)
    launch(&call)
    return out


def standardize_grad(cnp.ndarray dy not None, cnp.ndarray x not None, cnp.ndarray center not None,
                     cnp.ndarray scale not None, double limit):
    """dx (n, k) float64 of `standardize`: 0 where x is NaN. dy (n, k + g)."""
    cdef Call call
    cdef cnp.ndarray out
    x = begin_table(&call, STANDARDIZE_GRAD_KERNEL, real_type("standardize_grad", dy), x, center, scale, limit)
    dy = as_contiguous(dy)
    if cnp.PyArray_NDIM(dy) != 2 or cnp.PyArray_DIM(dy, 0) != call.parts or cnp.PyArray_DIM(dy, 1) < call.size[1]:
        raise ValueError(f"standardize_grad got dy of shape {get_dims(dy)} for x of shape {get_dims(x)}")
    out = output(get_dims(x), x.descr)
    call.size[2] = cnp.PyArray_DIM(dy, 1) - call.size[1]
    bind_all(&call, 0, out, x, center, scale, dy)
    launch(&call)
    return out


def piecewise(cnp.ndarray x not None, cnp.ndarray edges not None, cnp.ndarray starts not None, dtype):
    """Return the piecewise linear code of each number: 1 for the bins below it, its share of the bin it is in, 0 above.

    x (n, k) float64, NaN if a number is missing; its code is 0. edges (e,) float64 are the edges of one column after
    the other, rising in each column. starts (k + 1,) int64 are the places where the edges of each column begin, and e.
    Return y (n, e − k), in float32 or float64.
    """
    cdef Call call
    cdef cnp.dtype to = np.dtype(dtype)
    cdef cnp.ndarray out
    x = begin_bins(&call, PIECEWISE_KERNEL, TARGETS.get(to.str, 2), x, edges, starts)
    out = output((call.size[0], call.size[2]), to)
    bind_all(&call, 0, out, x, edges, starts)
    launch(&call)
    return out


def piecewise_grad(cnp.ndarray dy not None, cnp.ndarray x not None, cnp.ndarray edges not None,
                   cnp.ndarray starts not None):
    """dx (n, k) float64 of `piecewise`: the slope of the bin that x is in; 0 elsewhere. dy (n, e − k)."""
    cdef Call call
    cdef cnp.ndarray out
    x = begin_bins(&call, PIECEWISE_GRAD_KERNEL, real_type("piecewise_grad", dy), x, edges, starts)
    dy = as_contiguous(dy)
    if get_dims(dy) != (call.size[0], call.size[2]):
        raise ValueError(f"piecewise_grad got dy of shape {get_dims(dy)}; expected {(call.size[0], call.size[2])}")
    out = output(get_dims(x), x.descr)
    bind_all(&call, 0, out, x, edges, starts, dy)
    launch(&call)
    return out


cdef cnp.ndarray begin_bins(Call* call, Kernel kernel, int real, cnp.ndarray x, cnp.ndarray edges, cnp.ndarray starts):
    """Begin a call for x and the bins of each column, and return x as loops read it."""
    cdef Py_ssize_t k
    if real > 1:
        raise TypeError(f"{kernel.name} makes float32 or float64")
    if type_number(x) != cnp.NPY_FLOAT64 or type_number(edges) != cnp.NPY_FLOAT64 or not is_int64(starts):
        raise TypeError(f"{kernel.name} takes float64, float64 and int64, got {x.dtype}, {edges.dtype}, {starts.dtype}")
    x = as_contiguous(x)
    k = cnp.PyArray_DIM(x, 1) if cnp.PyArray_NDIM(x) == 2 else -1
    if (get_dims(starts) != (k + 1,) or cnp.PyArray_NDIM(edges) != 1
            or not (cnp.PyArray_ISCARRAY_RO(edges) and cnp.PyArray_ISCARRAY_RO(starts))):
        raise ValueError(f"{kernel.name} got x {get_dims(x)}, edges {get_dims(edges)}, starts {get_dims(starts)}; "
                         "expected (n, k), (e,) and (k + 1,), contiguous")
    if count_column_rows(kernel.name, starts) != cnp.PyArray_SIZE(edges):
        raise ValueError(f"{kernel.name} got starts {starts.tolist()} for {cnp.PyArray_SIZE(edges)} edges")
    begin(call, kernel, real)
    call.size[0] = call.parts = cnp.PyArray_DIM(x, 0)
    call.size[1], call.size[2] = k, cnp.PyArray_SIZE(edges) - k
    call.work = kernel.work * call.size[0] * call.size[2]
    return x


cdef cnp.ndarray begin_table(Call* call, Kernel kernel, int real, cnp.ndarray x, cnp.ndarray center,
                             cnp.ndarray scale, double limit):
    """Begin a call for x, the center and the scale of each column, and return x as loops read it."""
    if real > 1:
        raise TypeError(f"{kernel.name} makes float32 or float64")
    for a in (x, center, scale):
        if type_number(a) != cnp.NPY_FLOAT64:
            raise TypeError(f"{kernel.name} takes float64, got {a.dtype}")
    x = as_contiguous(x)
    k = (cnp.PyArray_DIM(x, 1),) if cnp.PyArray_NDIM(x) == 2 else None
    if k is None or get_dims(center) != k or get_dims(scale) != k or not limit > 0 \
            or not (cnp.PyArray_ISCARRAY_RO(center) and cnp.PyArray_ISCARRAY_RO(scale)):
        raise ValueError(f"{kernel.name} got x {get_dims(x)}, center {get_dims(center)}, scale {get_dims(scale)}, "
                         f"limit {limit}; expected (n, k), (k,), (k,), contiguous, and more than 0")
    begin(call, kernel, real)
    call.size[0] = call.parts = cnp.PyArray_DIM(x, 0)
    call.size[1] = cnp.PyArray_DIM(x, 1)
    call.scalar[0] = limit
    call.work = kernel.work * cnp.PyArray_SIZE(x)
    return x
