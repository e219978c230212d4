# Sums of linear splines. `starts`, int64 (k + m + 1,), says where each of k columns of numbers and m of categories
# begins among the rows of an array, and how many rows there are. A row has w elements.

cdef Kernel PLACES_KERNEL = Kernel("places", work=60)
cdef Kernel SPLINES_KERNEL = Kernel("splines", work=4)
cdef Kernel SPLINES_OF_CODES_KERNEL = Kernel("splines_of_codes", loops="splines", checked=2, work=4)
cdef Kernel SPLINES_GRAD_KERNEL = Kernel("splines_grad", work=6)
cdef Kernel SPLINES_OF_CODES_GRAD_KERNEL = Kernel("splines_of_codes_grad", loops="splines_grad", checked=3, work=6)
cdef Kernel SPLINES_INPUT_GRAD_KERNEL = Kernel("splines_input_grad", work=20)
cdef Kernel SPLINE_TABLE_KERNEL = Kernel("spline_table", work=3)
cdef Kernel SPLINE_TABLE_GRAD_KERNEL = Kernel("spline_table_grad", writes=0b111, work=6)


def places(cnp.ndarray x not None, cnp.ndarray edges not None, cnp.ndarray starts not None, dtype):
    """Return the place of each number among the edges of its column: i + f between edges i and i + 1, at the share f.

    x (n, k), edges and starts are as in `piecewise`. Numbers below the first edge have the place 0. Numbers above the
    last edge, which is edge b, have the place b. NaN has b + 1. Return (n, k) in float32 or float64. Raise ValueError
    if the type can't tell the places of a column apart.
    """
    cdef Call call
    cdef cnp.dtype to = np.dtype(dtype)
    cdef cnp.ndarray out
    x = begin_bins(&call, PLACES_KERNEL, TARGETS.get(to.str, 2), x, edges, starts)
    if cnp.PyArray_SIZE(x) and np.diff(starts).max() > 1 / np.finfo(to).eps:
        raise ValueError(f"places got {np.diff(starts).max()} edges of a column, too many for {to}")
    out = output(get_dims(x), to)
    bind_all(&call, 0, out, x, edges, starts)
    launch_parts(&call, call.size[0], cnp.PyArray_SIZE(x))
    return out


def splines(cnp.ndarray table not None, cnp.ndarray bias not None, cnp.ndarray places, cnp.ndarray codes,
            cnp.ndarray starts not None, on_stop=None):
    """y = bias + Σⱼ ((1 − f) T[i] + f T[i + 1]) for the places i + f of the numbers + Σⱼ T[c] for the codes c.

    table (rows, w), places (n, k), codes int64 (n, m), bias (w,), y (n, w). Either places or codes may be None.

    Call `on_stop` with the codes if one is not among the rows of its column; `on_stop` must raise. Without `on_stop`,
    such a code raises IndexError. Places must come from `places`.
    """
    cdef Call call
    cdef cnp.ndarray out
    table, bias = as_contiguous(table), as_contiguous(bias)
    same_type("splines", table, bias)
    places, codes = begin_splines(&call, SPLINES_KERNEL if codes is None else SPLINES_OF_CODES_KERNEL, table, starts,
                                  places, codes)
    if get_dims(bias) != (call.size[3],):
        raise ValueError(f"splines got a bias of shape {get_dims(bias)} for a table of shape {get_dims(table)}")
    out = output((call.size[0], call.size[3]), table.descr)
    call.parts = call.size[0]
    bind_all(&call, 0, out, places, codes, table, starts, bias)
    launch(&call, None if codes is None else on_stop or raise_bad_code)
    return out


def raise_bad_code(codes):
    raise IndexError("splines got a code that is not among the rows of its column")


def splines_grad(cnp.ndarray dy not None, cnp.ndarray places, cnp.ndarray codes, cnp.ndarray starts not None):
    """Return the gradient of the table of `splines`, (rows, w): dy (n, w), and the places and codes that `splines` got.

    Raise IndexError for a code that is not among the rows of its column.
    """
    cdef Call call
    cdef cnp.ndarray out
    dy = as_contiguous(dy)
    places, codes = begin_splines(&call, SPLINES_GRAD_KERNEL if codes is None else SPLINES_OF_CODES_GRAD_KERNEL, dy,
                                  starts, places, codes)
    require_rows("splines_grad", dy, call.size[0], call.size[3])
    out = output((count_column_rows("splines_grad", starts), call.size[3]), dy.descr)
    call.parts = call.size[1] + call.size[2]
    bind_all(&call, 0, out, dy, places, codes, starts)
    launch(&call, None if codes is None else raise_bad_code)
    return out


def splines_input_grad(cnp.ndarray dy not None, cnp.ndarray table not None, cnp.ndarray places not None,
                       cnp.ndarray starts not None, cnp.ndarray edges not None, cnp.ndarray edge_starts not None):
    """dx (n, k) float64 of `splines` after `places`: the slope at x, 0 beyond the edges and where x is missing.

    edges and edge_starts are the edges and starts that `places` got.
    """
    cdef Call call
    cdef cnp.ndarray out
    cdef Py_ssize_t j
    dy, table = as_contiguous(dy), as_contiguous(table)
    same_type("splines_input_grad", dy, table)
    places, _ = begin_splines(&call, SPLINES_INPUT_GRAD_KERNEL, table, starts, places, None)
    require_rows("splines_input_grad", dy, call.size[0], call.size[3])
    if (type_number(edges) != cnp.NPY_FLOAT64 or not cnp.PyArray_ISCARRAY_RO(edges)
            or count_column_rows("splines_input_grad", edge_starts) != cnp.PyArray_SIZE(edges)
            or get_dims(edge_starts) != get_dims(starts)
            or any([starts[j] != edge_starts[j] + j for j in range(call.size[1] + 1)])):
        raise ValueError(f"splines_input_grad got edges {edges.dtype} {get_dims(edges)} of columns that begin at "
                         f"{edge_starts.tolist()}, and at {starts.tolist()} in the table; expected a row more for each")
    out = output(get_dims(places), edges.descr)
    call.parts = call.size[0]
    bind_all(&call, 0, out, dy, places, table, starts, edges, edge_starts)
    launch(&call)
    return out


def spline_table(cnp.ndarray weight not None, cnp.ndarray slope not None, cnp.ndarray scale not None,
                 cnp.ndarray z not None, cnp.ndarray starts not None):
    """Return the table of `splines`, from the parameters.

    A column j of numbers with the edges z₀ … z_b has b + 1 rows of the weight, w₀ … w_b, and b + 2 rows of the table:

        T₀ = s z₀ v,  Tᵢ₊₁ = Tᵢ + s (wᵢ + (zᵢ₊₁ − zᵢ) v),  and s w_b for a missing number

    A column of categories has as many rows of the weight, w, as of the table, s w. v is the row j of `slope` (k, w).
    s is scale[j], scale (k + m,). weight is (rows, w). `starts` are places in the weight. z is float64.
    """
    cdef Call call
    cdef cnp.ndarray out
    weight, slope, scale = begin_knots(&call, SPLINE_TABLE_KERNEL, weight, slope, scale, z, starts)
    out = output((cnp.PyArray_DIM(weight, 0) + call.size[1], call.size[3]), weight.descr)
    bind_all(&call, 0, out, weight, slope, scale, z, starts)
    launch(&call)
    return out


def spline_table_grad(cnp.ndarray dtable not None, cnp.ndarray weight not None, cnp.ndarray slope not None,
                      cnp.ndarray scale not None, cnp.ndarray z not None, cnp.ndarray starts not None):
    """Return the gradients of weight, slope and scale of `spline_table`; the third as terms, (k + m, w)."""
    cdef Call call
    cdef cnp.ndarray dweight, dslope, dscale
    dtable = as_contiguous(dtable)
    weight, slope, scale = begin_knots(&call, SPLINE_TABLE_GRAD_KERNEL, weight, slope, scale, z, starts)
    same_type("spline_table_grad", dtable, weight)
    require_rows("spline_table_grad", dtable, cnp.PyArray_DIM(weight, 0) + call.size[1], call.size[3])
    dweight, dslope = output(get_dims(weight), weight.descr), output(get_dims(slope), weight.descr)
    dscale = output((call.parts, call.size[3]), weight.descr)
    bind_all(&call, 0, dweight, dslope, dscale, dtable, weight, slope, scale, z, starts)
    launch(&call)
    return dweight, dslope, dscale


cdef tuple begin_splines(Call* call, Kernel kernel, cnp.ndarray like, cnp.ndarray starts, cnp.ndarray places,
                         cnp.ndarray codes):
    """Begin a call for rows of places and codes, and return both as they are bound. `like` has rows of w elements."""
    cdef Py_ssize_t k = 0, m = 0, n = 0, rows
    begin(call, kernel, real_type(kernel.name, like))
    rows = count_column_rows(kernel.name, starts)
    if places is not None:
        same_type(kernel.name, places, like)
        places = as_contiguous(places)
        n, k = cnp.PyArray_DIM(places, 0), cnp.PyArray_DIM(places, 1) if cnp.PyArray_NDIM(places) == 2 else -1
    if codes is not None:
        if not is_int64(codes):
            raise TypeError(f"{kernel.name} takes codes of int64, got {codes.dtype}")
        codes = as_contiguous(codes)
        n, m = cnp.PyArray_DIM(codes, 0), cnp.PyArray_DIM(codes, 1) if cnp.PyArray_NDIM(codes) == 2 else -1
    if (cnp.PyArray_NDIM(like) != 2 or min(k, m) < 0 or cnp.PyArray_SIZE(starts) != k + m + 1
            or (places is not None and codes is not None and cnp.PyArray_DIM(places, 0) != n)):
        raise ValueError(
            f"{kernel.name} got places {None if places is None else get_dims(places)}, codes "
            f"{None if codes is None else get_dims(codes)} and starts {get_dims(starts)}; expected (n, k), (n, m) and "
            "(k + m + 1,), and an array of rows")
    if kernel not in (SPLINES_GRAD_KERNEL, SPLINES_OF_CODES_GRAD_KERNEL) and cnp.PyArray_DIM(like, 0) != rows:
        raise ValueError(f"{kernel.name} got a table of shape {get_dims(like)}; expected {rows} rows")
    call.size[0], call.size[1], call.size[2], call.size[3] = n, k, m, cnp.PyArray_DIM(like, 1)
    call.work = kernel.work * n * (k + m) * call.size[3]
    return places, codes


cdef tuple begin_knots(Call* call, Kernel kernel, cnp.ndarray weight, cnp.ndarray slope, cnp.ndarray scale,
                       cnp.ndarray z, cnp.ndarray starts):
    """Begin a call for all columns, and return weight, slope and scale as they are bound."""
    cdef Py_ssize_t rows, columns, k
    begin(call, kernel, real_type(kernel.name, weight))
    same_type(kernel.name, slope, weight)
    same_type(kernel.name, scale, weight)
    weight, slope, scale = as_contiguous(weight), as_contiguous(slope), as_contiguous(scale)
    rows = count_column_rows(kernel.name, starts)
    columns, k = cnp.PyArray_SIZE(starts) - 1, cnp.PyArray_DIM(slope, 0) if cnp.PyArray_NDIM(slope) == 2 else -1
    if type_number(z) != cnp.NPY_FLOAT64 or not cnp.PyArray_ISCARRAY_RO(z):
        raise TypeError(f"{kernel.name} takes z in float64, contiguous, got {z.dtype}")
    if (not 0 <= k <= columns or get_dims(scale) != (columns,) or cnp.PyArray_NDIM(weight) != 2
            or cnp.PyArray_DIM(weight, 0) != rows or cnp.PyArray_DIM(weight, 1) != cnp.PyArray_DIM(slope, 1)
            or get_dims(z) != (starts[k],)):
        raise ValueError(f"{kernel.name} got weight {get_dims(weight)}, slope {get_dims(slope)}, scale "
                         f"{get_dims(scale)}, z {get_dims(z)} and starts {starts.tolist()}; "
                         "expected (rows, w), (k, w), (k + m,), (rows of numbers,) and (k + m + 1,)")
    call.size[1], call.size[2], call.size[3] = k, columns - k, cnp.PyArray_DIM(weight, 1)
    call.parts = columns
    call.work = kernel.work * cnp.PyArray_SIZE(weight)
    return weight, slope, scale


cdef Py_ssize_t count_column_rows(str name, cnp.ndarray starts) except -1:
    """Return the number of rows. Raise ValueError unless each column has one or more."""
    cdef Py_ssize_t j
    cdef int64_t* at
    if not is_int64(starts) or cnp.PyArray_NDIM(starts) != 1 or not cnp.PyArray_ISCARRAY_RO(starts):
        raise TypeError(f"{name} takes starts of int64, one axis, contiguous, got {starts.dtype} {get_dims(starts)}")
    at = <int64_t*> cnp.PyArray_DATA(starts)
    if not cnp.PyArray_SIZE(starts) or at[0] != 0 \
            or any([at[j] >= at[j + 1] for j in range(cnp.PyArray_SIZE(starts) - 1)]):
        raise ValueError(f"{name} got starts {starts.tolist()}; expected rising ones from 0")
    return at[cnp.PyArray_SIZE(starts) - 1]


cdef int require_rows(str name, cnp.ndarray a, Py_ssize_t rows, Py_ssize_t width) except -1:
    if get_dims(a) != (rows, width):
        raise ValueError(f"{name} got a gradient of shape {get_dims(a)}; expected {(rows, width)}")
    return 0
