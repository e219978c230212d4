# Indexing.

cdef Kernel RAVEL_INDEX_KERNEL = Kernel("ravel_index", checked=1, work=30)
cdef Kernel TAKE_KERNEL = Kernel("take", checked=2)
cdef Kernel TAKE_GRAD_KERNEL = Kernel("take_grad", checked=2, work=10)
cdef Kernel USE_ROWS_KERNEL = Kernel("use_rows", writes=0b11, updates=0b11, checked=2, work=30)
cdef Kernel USE_ALL_ROWS_KERNEL = Kernel("use_all_rows", updates=1, work=1)


def ravel_index(tuple lengths, *indices, bint wraps=True, on_stop=None):
    """Return the positions of elements in an array of these lengths, in C order, from one index for each axis; int64.

    An index is an array of integers, a number, or None. With None, the result has as many axes as there are lengths,
    and None is all places of its axis, in order, along the result's axis of the same number. The indices are broadcast
    to each other. A negative index counts from the end if `wraps`. Otherwise it is out of bounds.

    Call `on_stop` with the array of an index that is out of bounds; `on_stop` must raise. Without `on_stop`, such an
    index raises IndexError. In a recorded step, it stops the replay.
    """
    cdef Call call
    cdef list arrays
    cdef cnp.ndarray out
    cdef Py_ssize_t i, n = len(lengths), lowest
    if len(indices) != n or n == 0:
        raise ValueError(f"ravel_index got {len(indices)} indices for the lengths {lengths}")
    arrays = [axis_positions(lengths[i], n - i) if indices[i] is None else as_indices(indices[i]) for i in range(n)]
    for i in range(n):                    # check numbers even if no element is taken
        lowest = -lengths[i] if wraps else 0
        if isinstance(indices[i], int) and not lowest <= indices[i] < lengths[i]:
            raise_bad_index(lowest, lengths[i], arrays[i])
    try:
        out = output(np.broadcast_shapes(*[get_dims(a) for a in arrays]), int64)
    except ValueError:
        shapes = ", ".join([str(get_dims(a)) for a in arrays])
        raise IndexError(f"index arrays of shapes {shapes} don't broadcast") from None
    for i in range(n):
        begin(&call, RAVEL_INDEX_KERNEL, 0)
        call.accumulate = i > 0
        call.constants = (not isinstance(indices[i], cnp.ndarray)) << 1
        lowest = -lengths[i] if wraps else 0
        call.scalar[0], call.scalar[1] = lengths[i], lowest
        bind_all(&call, 0, out, arrays[i])
        launch_broadcast(&call, 2, on_stop or partial(raise_bad_index, lowest, lengths[i]))
    return out


cdef cnp.ndarray axis_positions(Py_ssize_t length, Py_ssize_t ndim):
    """Return the numbers 0 … length − 1 along the first of so many axes."""
    return np.arange(length).reshape((length,) + (1,) * (ndim - 1))


cdef cnp.ndarray as_indices(object index):
    """Integers as int64."""
    cdef cnp.ndarray a = as_readable(index) if isinstance(index, cnp.ndarray) else np.asarray(index, dtype=np.int64)
    if is_int64(a):
        return a
    return convert(a, np.int64)


def raise_bad_index(lowest, length, index):
    """Raise IndexError for the first index that is not in lowest … length − 1."""
    bad = index[(index < lowest) | (index >= length)][0]
    raise IndexError(f"index {bad} is out of bounds for an axis of length {length}")


def take(cnp.ndarray rows not None, cnp.ndarray order not None, cnp.ndarray out=None, on_stop=None):
    """out[i] = rows[order[i]]: rows (n, …) contiguous, of any dtype but object; order (m,) int64 → (m, …).

    Call `on_stop` with `order` if an entry is not in 0 … n − 1; `on_stop` must raise. Without `on_stop`, such an entry
    raises IndexError.
    """
    cdef Call call
    cdef tuple shape
    if rows.dtype.hasobject:
        raise TypeError(f"take copies bytes, which {rows.dtype} does not allow")
    if cnp.PyArray_NDIM(rows) == 0 or not cnp.PyArray_IS_C_CONTIGUOUS(rows):
        raise ValueError(f"take needs contiguous rows, got shape {get_dims(rows)}")
    order = as_labels("take", order, -1)
    shape = (cnp.PyArray_SIZE(order),) + get_dims(rows)[1:]
    if out is None:
        out = output(shape, rows.descr)
    elif out.dtype != rows.dtype:
        raise TypeError(f"take got an `out` of {out.dtype} for rows of {rows.dtype}")
    elif get_dims(out) != shape or not cnp.PyArray_IS_C_CONTIGUOUS(check_out("take", out)):
        raise ValueError(f"take got an `out` of shape {get_dims(out)}; expected {shape}, contiguous")
    elif overlap(out, rows) or overlap(out, order):
        raise ValueError("take can't write its result into one of its operands")

    begin(&call, TAKE_KERNEL, 0)
    bind_all(&call, 0, out, rows, order)
    call.size[0] = cnp.PyArray_DIM(rows, 0)
    call.size[1] = cnp.PyArray_NBYTES(out) // max(cnp.PyArray_SIZE(order), 1)
    call.parts = cnp.PyArray_SIZE(order)
    call.work = 60.0 * call.parts + 2.0 * cnp.PyArray_NBYTES(out)
    launch(&call, on_stop or partial(raise_bad_row, "take", call.size[0]))
    return out


def take_grad(cnp.ndarray dy not None, cnp.ndarray order not None, Py_ssize_t rows, cnp.ndarray out=None, *,
              bint accumulate=False):
    """dx[order[i]] += dy[i]: dy (m, …), order (m,) int64 → (rows, …). Raise IndexError as for `take`.

    dx is 0 at first. If accumulating, dy is added to the values of `out` instead.
    """
    cdef Call call
    cdef int real = real_type("take_grad", dy)
    cdef tuple shape
    if cnp.PyArray_NDIM(dy) == 0 or rows < 0:
        raise ValueError(f"take_grad got dy of shape {get_dims(dy)} and {rows} rows")
    order = as_labels("take_grad", order, cnp.PyArray_DIM(dy, 0))
    dy, shape = as_contiguous_rows(dy), (rows,) + get_dims(dy)[1:]
    dy = copy(dy) if out is not None and overlap(dy, out) else dy
    out = as_output("take_grad", out, shape, dy, accumulate)
    begin(&call, TAKE_GRAD_KERNEL, real)
    bind_all(&call, 0, out, dy, order)
    call.operand[1].stride[0] = cnp.PyArray_STRIDE(dy, 0) // cnp.PyArray_ITEMSIZE(dy)
    call.accumulate = accumulate
    call.size[0], call.size[2] = rows, cnp.PyArray_SIZE(order)
    call.size[1] = cnp.PyArray_SIZE(out) // max(rows, 1)
    launch_parts(&call, (call.size[1] * cnp.PyArray_ITEMSIZE(dy) + LINE - 1) // LINE,
                 (cnp.PyArray_SIZE(out) + cnp.PyArray_SIZE(dy)), partial(raise_bad_row, "take_grad", rows))
    return out


cdef cnp.ndarray as_contiguous_rows(cnp.ndarray a):
    """Return the array itself if it is readable and each row is contiguous, else a contiguous copy."""
    a = as_readable(a)
    if cnp.PyArray_NDIM(a) == 2 and (cnp.PyArray_DIM(a, 1) == 1
                                     or cnp.PyArray_STRIDE(a, 1) == cnp.PyArray_ITEMSIZE(a)):
        return a
    return as_contiguous(a)


def raise_bad_row(name, rows, order):
    """Raise IndexError for the first row that is not in 0 … rows − 1."""
    i = ((order < 0) | (order >= rows)).argmax()
    raise IndexError(f"{name} got the row {order[i]} at {i}; there are {rows} rows")


# ---- the rows of a gradient that are used ----
#
# `used`, int64 (1 + 2n,), lists some of n rows. It has their count, the rows, and for each of the n rows its position
# in this list, if it is listed. (See P. Briggs and L. Torczon, "An efficient representation for sparse sets", ACM
# LOPLAS 2, 1993.) If all rows are used, the count is n, and the rest of `used` has no meaning.

def use_rows(cnp.ndarray used not None, cnp.ndarray order not None, cnp.ndarray x not None, bint accumulate):
    """Add the rows in `order`, int64 (m,), to the list. Unless accumulating, first set the listed rows of x to 0.

    x (n, …) is 0 in all rows that are not listed. Unless accumulating, the list is emptied before rows are added.
    Raise IndexError for an entry that is not in 0 … n − 1.
    """
    cdef Call call
    order = as_labels("use_rows", order, -1)
    begin_use(&call, USE_ROWS_KERNEL, used, order, x, accumulate)
    launch_parts(&call, 1, call.size[2], partial(raise_bad_row, "use_rows", call.size[0]))


cdef int begin_use(Call* call, Kernel kernel, cnp.ndarray used, cnp.ndarray order, cnp.ndarray x,
                   bint accumulate) except -1:
    """Begin a call that adds rows of x to the list: the rows in `order`, or the columns of these sparse rows."""
    begin(call, kernel, real_type(kernel.name, x))
    if not cnp.PyArray_IS_C_CONTIGUOUS(check_out(kernel.name, x)):
        raise ValueError(f"{kernel.name} needs contiguous rows, got shape {get_dims(x)}")
    call.size[1] = row_width(kernel.name, used, x)
    call.size[0], call.size[2], call.accumulate = count_rows(used), cnp.PyArray_SIZE(order), accumulate
    bind_all(call, 0, x, check_out(kernel.name, used), order)
    return 0


def use_all_rows(cnp.ndarray used not None):
    """List all rows."""
    cdef Call call
    begin(&call, USE_ALL_ROWS_KERNEL, 0)
    call.size[0] = count_rows(used)
    bind(&call, 0, check_out("use_all_rows", used))
    launch_parts(&call, 1, 1)


cdef Py_ssize_t count_rows(cnp.ndarray used) except -1:
    """Return the number n of rows, from the size of the list `used`."""
    require_vector("used", used, cnp.NPY_INT64, cnp.PyArray_SIZE(used))
    if cnp.PyArray_SIZE(used) % 2 == 0:
        raise ValueError(f"expected a list of used rows, 1 + 2n numbers, got {len(used)}")
    return (cnp.PyArray_SIZE(used) - 1) // 2


cdef Py_ssize_t row_width(str name, cnp.ndarray used, cnp.ndarray x) except -1:
    """Return the number of elements in a row of x, if x has n rows. Raise ValueError if they can't be equally long."""
    cdef Py_ssize_t rows = count_rows(used)
    if rows == 0 or cnp.PyArray_SIZE(x) % rows != 0:
        raise ValueError(f"{name} got {cnp.PyArray_SIZE(x)} elements as {rows} rows")
    return cnp.PyArray_SIZE(x) // rows


cdef int restrict_to_rows(Call* call, cnp.ndarray used, cnp.ndarray x) except -1:
    """Restrict a call to the used rows of x. Without the restriction, its parts are the elements of x, a vector."""
    if used is None:
        return 0
    call.size[ROW] = row_width((<Kernel> call.kernel).name, used, x)
    bind(call, USED, used)
    call.work *= <double> (<cnp.int64_t*> cnp.PyArray_DATA(used))[0] / count_rows(used)
    return 0
