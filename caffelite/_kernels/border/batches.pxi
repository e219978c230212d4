# Mini-batches: the order of rows, and through a cursor the batch that is due.

cdef Kernel SHUFFLE_KERNEL = Kernel("shuffle", writes=0b11, updates=0b11, work=300)
cdef Kernel TAKE_BATCH_KERNEL = Kernel("take_batch")
cdef Kernel ADVANCE_KERNEL = Kernel("advance", updates=1)
cdef Kernel ADD_MEAN_KERNEL = Kernel("add_mean", updates=1)
cdef Kernel ADD_CORRECT_KERNEL = Kernel("add_correct", updates=1, work=100)


def shuffle(cnp.ndarray order not None, cnp.ndarray state not None):
    """Put `order`, int64 (n,), into a new random order in place, drawing from `state`, four uint64, which moves on."""
    cdef Call call
    require_vector("shuffle", order, cnp.NPY_INT64, cnp.PyArray_SIZE(order))
    require_vector("shuffle", state, cnp.NPY_UINT64, 4)
    begin(&call, SHUFFLE_KERNEL, 0)
    bind(&call, 0, writable("shuffle", order))
    bind(&call, 1, writable("shuffle", state))
    call.size[0] = cnp.PyArray_SIZE(order)
    call.parts = 1
    call.work = SHUFFLE_KERNEL.work * call.size[0]
    launch(&call)


# ---- epochs ------------------------------------------------------------------------------------------------------
#
# A recorded step finds its batch through a cursor, five int64 in memory: the addresses of the rows of x, of those of
# y, of their order (int64), the position in it, and the address of the epoch's sums (float64: the rows so far, then
# one row-weighted sum for each quantity). So another epoch, or other data, need no other recording.

def take_batch(cursor, int which, out):
    """out[i] = rows[order[position + i]], with the rows of x (which = 0) or of y (1) that the cursor points to."""
    cdef Call call
    require_vector("take_batch", cursor, cnp.NPY_INT64, 5)
    require_contiguous("take_batch", out)
    begin(&call, TAKE_BATCH_KERNEL, 0)
    bind(&call, 0, out)
    bind(&call, 1, cursor)
    call.size[0], call.size[1] = which, cnp.PyArray_NBYTES(out) // max(cnp.PyArray_DIM(out, 0), 1)
    call.parts = cnp.PyArray_DIM(out, 0)
    call.work = 60.0 * call.parts + 2.0 * cnp.PyArray_NBYTES(out)
    launch(&call)


def advance(cursor, Py_ssize_t rows):
    """Move the cursor on by so many rows, and count them in the sums."""
    cdef Call call
    require_vector("advance", cursor, cnp.NPY_INT64, 5)
    begin(&call, ADVANCE_KERNEL, 0)
    bind(&call, 0, cursor)
    call.size[0] = rows
    call.parts = 1
    call.work = 1
    launch(&call)


def add_mean(cursor, int slot, cnp.ndarray value not None, Py_ssize_t rows):
    """sums[slot] += rows · value, a single element."""
    cdef Call call
    require_vector("add_mean", cursor, cnp.NPY_INT64, 5)
    if cnp.PyArray_SIZE(value) != 1:
        raise ValueError(f"add_mean takes a single element, got shape {shape_of(value)}")
    value = readable(value)
    begin(&call, ADD_MEAN_KERNEL, real_type("add_mean", value))
    bind(&call, 0, cursor)
    bind(&call, 1, value)
    call.size[0], call.size[1] = slot, rows
    call.parts = 1
    call.work = 1
    launch(&call)


def add_correct(cursor, int slot, cnp.ndarray outputs not None, cnp.ndarray labels not None):
    """sums[slot] += the number of rows of `outputs` (n, C) whose first largest element is at the label (n,)."""
    cdef Call call
    require_vector("add_correct", cursor, cnp.NPY_INT64, 5)
    if cnp.PyArray_NDIM(outputs) != 2:
        raise ValueError(f"add_correct got outputs of shape {shape_of(outputs)}; expected (n, C)")
    outputs, labels = contiguous(outputs), checked_labels("add_correct", labels, cnp.PyArray_DIM(outputs, 0))
    begin(&call, ADD_CORRECT_KERNEL, real_type("add_correct", outputs))
    bind(&call, 0, cursor)
    bind(&call, 1, outputs)
    bind(&call, 2, labels)
    call.size[0], call.size[1], call.size[2] = slot, cnp.PyArray_DIM(outputs, 0), cnp.PyArray_DIM(outputs, 1)
    call.parts = 1
    call.work = ADD_CORRECT_KERNEL.work * cnp.PyArray_SIZE(outputs)
    launch(&call)


cdef int require_contiguous(str name, cnp.ndarray out) except -1:
    if cnp.PyArray_NDIM(out) == 0 or not cnp.PyArray_IS_C_CONTIGUOUS(writable(name, out)):
        raise ValueError(f"{name} needs contiguous rows to write to, got shape {shape_of(out)}")
    return 0
