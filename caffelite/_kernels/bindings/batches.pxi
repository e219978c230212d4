# Mini-batches: the order of the rows, and the cursor that finds the next batch.

cdef Kernel SHUFFLE_KERNEL = Kernel("shuffle", writes=0b11, updates=0b11, work=300)
cdef Kernel GROUP_BATCHES_KERNEL = Kernel("group_batches", writes=0b1011, updates=0b11, checked=2, work=300)
cdef Kernel TAKE_BATCH_KERNEL = Kernel("take_batch")
cdef Kernel PUT_BATCH_KERNEL = Kernel("put_batch", updates=1, work=2)
cdef Kernel ADVANCE_KERNEL = Kernel("advance", updates=1, work=1)
cdef Kernel ADD_MEAN_KERNEL = Kernel("add_mean", updates=1, work=1)
cdef Kernel ADD_WEIGHTED_MEAN_KERNEL = Kernel("add_weighted_mean", updates=1, work=1)
cdef Kernel ADD_CORRECT_KERNEL = Kernel("add_correct", updates=1, work=100)


def shuffle(cnp.ndarray order not None, cnp.ndarray state not None):
    """Shuffle `order`, int64 (n,), in place. `state`, four uint64, is the generator's state and is advanced."""
    cdef Call call
    require_vector("shuffle", order, cnp.NPY_INT64, cnp.PyArray_SIZE(order))
    require_vector("shuffle", state, cnp.NPY_UINT64, 4)
    begin(&call, SHUFFLE_KERNEL, 0)
    bind_all(&call, 0, check_out("shuffle", order), check_out("shuffle", state))
    call.size[0] = cnp.PyArray_SIZE(order)
    launch_parts(&call, 1, call.size[0])


def group_batches(cnp.ndarray order not None, cnp.ndarray state not None, cnp.ndarray groups not None,
                  cnp.ndarray memory not None, Py_ssize_t batch_size, Py_ssize_t full_batches):
    """Make batches of rows of similar groups: sort `order`, int64 (n,), by group, and shuffle the full batches.

    Rows of a group stay in their order. `groups`, int64, has the group of each row, from 0 on; `memory`, int64, has n
    elements and one more for each group. `state` is as in `shuffle`."""
    cdef Call call
    cdef Py_ssize_t n = cnp.PyArray_SIZE(order), count = cnp.PyArray_SIZE(memory) - n
    require_vector("group_batches", order, cnp.NPY_INT64, n)
    require_vector("group_batches", state, cnp.NPY_UINT64, 4)
    require_vector("group_batches", groups, cnp.NPY_INT64, cnp.PyArray_SIZE(groups))
    require_vector("group_batches", memory, cnp.NPY_INT64, n + count)
    if count < 1 or batch_size < 1 or full_batches < 0 or batch_size * full_batches > n:
        raise ValueError(f"group_batches got {full_batches} batches of {batch_size} of {n} rows in {count} groups")
    begin(&call, GROUP_BATCHES_KERNEL, 0)
    bind_all(&call, 0, check_out("group_batches", order), check_out("group_batches", state), groups)
    bind(&call, 3, check_out("group_batches", memory))
    call.size[0], call.size[1], call.size[2], call.size[3] = n, count, batch_size, full_batches
    call.size[4] = cnp.PyArray_SIZE(groups)
    launch_parts(&call, 1, n, raise_bad_group)


def raise_bad_group(groups):
    """Raise IndexError for rows or groups of `group_batches` that are not there."""
    raise IndexError(f"group_batches got a row that is not one of {len(groups)}, or a group that is not there")


# ---- epochs ------------------------------------------------------------------------------------------------------
#
# A recorded step reads its batch and writes its results through a cursor in memory (call.pxd). So the same recording
# serves other epochs and other data.

CURSOR = np.dtype([(name, np.intp) for name in ("columns", "order", "position", "measured", "sums")])


cdef cnp.ndarray require_cursor(str name, cursor):
    if not isinstance(cursor, cnp.ndarray) or cursor.dtype != CURSOR or cursor.size != 1:
        raise TypeError(f"{name} expected a cursor, one element of dtype CURSOR, got {cursor!r}")
    return check_out(name, cursor)


def take_batch(cursor, Py_ssize_t column, out, Py_ssize_t row_bytes=0):
    """out[i] = column[order[position + i]], with a column that the cursor points to.

    If the rows of the column have more bytes than the rows of `out`, `row_bytes`, the first ones are taken."""
    cdef Call call
    cursor = require_cursor("take_batch", cursor)
    require_contiguous("take_batch", out)
    begin(&call, TAKE_BATCH_KERNEL, 0)
    bind_all(&call, 0, out, cursor)
    call.size[0], call.size[1] = column, cnp.PyArray_NBYTES(out) // max(cnp.PyArray_DIM(out, 0), 1)
    call.size[2] = max(row_bytes, call.size[1])
    call.parts = cnp.PyArray_DIM(out, 0)
    call.work = 60.0 * call.parts + 2.0 * cnp.PyArray_NBYTES(out)
    launch(&call)


def put_batch(cursor, Py_ssize_t column, cnp.ndarray batch not None, Py_ssize_t row_bytes=0):
    """column[measured + i] = batch[i]: append the rows of a batch to the rows of the epoch's earlier batches.

    If the rows of the column have more bytes than the rows of the batch, `row_bytes`, zeros follow."""
    cdef Call call
    cursor = require_cursor("put_batch", cursor)
    if cnp.PyArray_NDIM(batch) == 0:
        raise ValueError("put_batch takes rows, got shape ()")
    if not cnp.PyArray_IS_C_CONTIGUOUS(batch):
        batch = copy(batch)
    begin(&call, PUT_BATCH_KERNEL, 0)
    bind_all(&call, 0, cursor, batch)
    call.size[0], call.size[2] = column, cnp.PyArray_DIM(batch, 0)
    call.size[1] = cnp.PyArray_NBYTES(batch) // max(call.size[2], 1)
    call.size[3] = max(row_bytes, call.size[1])
    launch_parts(&call, 1, cnp.PyArray_NBYTES(batch))


def advance(cursor, Py_ssize_t rows):
    """Move the cursor on by this many rows, and count them as measured."""
    cdef Call call
    cursor = require_cursor("advance", cursor)
    begin(&call, ADVANCE_KERNEL, 0)
    bind(&call, 0, cursor)
    call.size[0] = rows
    launch_parts(&call, 1, 1)


def add_mean(cursor, Py_ssize_t slot, cnp.ndarray value not None, Py_ssize_t rows):
    """Add the mean of this many rows, a single element, to sums[slot]."""
    cdef Call call
    cursor = require_cursor("add_mean", cursor)
    value = check_single("add_mean", value)
    begin(&call, ADD_MEAN_KERNEL, real_type("add_mean", value))
    bind_all(&call, 0, cursor, value)
    call.size[0], call.size[1] = slot, rows
    launch_parts(&call, 1, 1)


def add_weighted_mean(cursor, Py_ssize_t slot, cnp.ndarray value not None, cnp.ndarray weights not None):
    """Add the mean of rows with these weights (n,), a single element, to sums[slot]."""
    cdef Call call
    cdef int real = real_type("add_weighted_mean", weights)
    cursor = require_cursor("add_weighted_mean", cursor)
    value = check_single("add_weighted_mean", value)
    require_vector("add_weighted_mean", weights, type_number(weights), cnp.PyArray_SIZE(weights))
    begin(&call, ADD_WEIGHTED_MEAN_KERNEL, real)
    bind_all(&call, 0, cursor, value, weights)
    call.size[0], call.size[1] = slot, cnp.PyArray_SIZE(weights)
    call.size[2] = real_type("add_weighted_mean", value)
    launch_parts(&call, 1, call.size[1])


def add_correct(cursor, Py_ssize_t slot, cnp.ndarray outputs not None, cnp.ndarray labels not None, ignore=None,
                double threshold=0.0):
    """Add the number of correct rows to sums[slot]: outputs (n, C), labels (n,).

    A row is correct if its largest element, the first of equal ones, is at its label. With C = 1 it is correct if its
    label is 1 and its element is above the threshold, or neither. Rows whose label is `ignore` do not count. The sum is
    NaN if an element of the other rows is NaN."""
    cdef Call call
    cursor = require_cursor("add_correct", cursor)
    if cnp.PyArray_NDIM(outputs) != 2:
        raise ValueError(f"add_correct got outputs of shape {get_dims(outputs)}; expected (n, C)")
    outputs, labels = as_contiguous(outputs), as_labels("add_correct", labels, cnp.PyArray_DIM(outputs, 0))
    begin(&call, ADD_CORRECT_KERNEL, real_type("add_correct", outputs))
    bind_all(&call, 0, cursor, outputs, labels)
    call.size[0], call.size[1], call.size[4] = slot, cnp.PyArray_DIM(outputs, 0), cnp.PyArray_DIM(outputs, 1)
    call.scalar[0] = threshold
    set_ignored(&call, ignore)
    launch_parts(&call, 1, cnp.PyArray_SIZE(outputs))


cdef cnp.ndarray check_single(str name, cnp.ndarray value):
    if cnp.PyArray_SIZE(value) != 1:
        raise ValueError(f"{name} takes a single element, got shape {get_dims(value)}")
    return as_readable(value)


cdef int require_contiguous(str name, cnp.ndarray out) except -1:
    if cnp.PyArray_NDIM(out) == 0 or not cnp.PyArray_IS_C_CONTIGUOUS(check_out(name, out)):
        raise ValueError(f"{name} needs contiguous rows to write to, got shape {get_dims(out)}")
    return 0
