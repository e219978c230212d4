# Losses.

cdef Kernel SOFTMAX_LOSS_KERNEL = Kernel("softmax_loss", writes=0b1001, checked=2, work=150)
cdef Kernel SOFTMAX_LOSS_GRAD_KERNEL = Kernel("softmax_loss_grad", checked=2, work=10)
cdef Kernel CHECK_LABELS_KERNEL = Kernel("check_labels", checked=1, work=50)


def softmax_loss(cnp.ndarray scores not None, cnp.ndarray labels not None):
    """The softmax of each row and the mean negative log-likelihood of its label.

    scores (n, C), labels (n,) int64 → the loss, 0-d, and the probabilities (n, C).
    ValueError for no rows or other shapes, TypeError for labels that are not int64, IndexError for one out of range.
    """
    cdef Call call
    cdef int real = real_type("softmax_loss", scores)
    cdef cnp.ndarray p, rows

    if cnp.PyArray_NDIM(scores) != 2 or cnp.PyArray_SIZE(scores) == 0:
        raise ValueError(f"softmax_loss got scores of shape {shape_of(scores)}; expected (n, C), n and C above 0")
    scores, labels = contiguous(scores), checked_labels("softmax_loss", labels, cnp.PyArray_DIM(scores, 0))
    p = empty(2, cnp.PyArray_DIMS(scores), scores.descr)
    rows = empty(1, cnp.PyArray_DIMS(scores), scores.descr)

    begin(&call, SOFTMAX_LOSS_KERNEL, real)
    bind(&call, 0, p)
    bind(&call, 1, scores)
    bind(&call, 2, labels)
    bind(&call, 3, rows)
    call.size[0], call.size[1] = cnp.PyArray_DIM(scores, 0), cnp.PyArray_DIM(scores, 1)
    call.scalar[0] = FLT_MAX if real == 0 else DBL_MAX
    call.parts = call.size[0]
    call.work = SOFTMAX_LOSS_KERNEL.work * call.size[0] * call.size[1]
    launch(&call, partial(refuse_label, "softmax_loss", call.size[1]))
    return sum(rows, scale=1.0 / call.size[0]), p


def softmax_loss_grad(cnp.ndarray probabilities not None, cnp.ndarray labels not None, cnp.ndarray dy not None):
    """dscores = dy (p − onehot(labels)) / n: probabilities (n, C), labels (n,) int64, dy one element → (n, C)."""
    cdef Call call
    cdef int real = real_type("softmax_loss_grad", probabilities)
    cdef cnp.ndarray out

    same_type("softmax_loss_grad", probabilities, dy)
    if cnp.PyArray_NDIM(probabilities) != 2 or cnp.PyArray_SIZE(dy) != 1:
        raise ValueError(f"softmax_loss_grad got probabilities of shape {shape_of(probabilities)} and dy of shape "
                         f"{shape_of(dy)}; expected (n, C) and a single element")
    probabilities, dy = contiguous(probabilities), contiguous(dy)
    labels = checked_labels("softmax_loss_grad", labels, cnp.PyArray_DIM(probabilities, 0))
    out = empty(2, cnp.PyArray_DIMS(probabilities), probabilities.descr)

    begin(&call, SOFTMAX_LOSS_GRAD_KERNEL, real)
    bind(&call, 0, out)
    bind(&call, 1, probabilities)
    bind(&call, 2, labels)
    bind(&call, 3, dy)
    call.size[0], call.size[1] = cnp.PyArray_DIM(out, 0), cnp.PyArray_DIM(out, 1)
    call.parts = call.size[0]
    call.work = SOFTMAX_LOSS_GRAD_KERNEL.work * call.size[0] * call.size[1]
    launch(&call, partial(refuse_label, "softmax_loss_grad", call.size[1]))
    return out


cdef cnp.ndarray checked_labels(str name, cnp.ndarray labels, Py_ssize_t rows):
    if not is_int64(labels):
        raise TypeError(f"{name} takes int64 labels, got {labels.dtype}")
    if cnp.PyArray_NDIM(labels) != 1 or (rows >= 0 and cnp.PyArray_DIM(labels, 0) != rows):
        raise ValueError(f"{name} got labels of shape {shape_of(labels)}"
                         + (f"; expected ({rows},)" if rows >= 0 else "; expected one axis"))
    return labels if cnp.PyArray_IS_C_CONTIGUOUS(labels) and cnp.PyArray_ISBEHAVED_RO(labels) \
        else convert(labels, np.int64)


def refuse_label(name, classes, labels):
    raise IndexError(f"{name} got a label that is not in 0 … {classes - 1}")


def check_labels(cnp.ndarray labels not None, Py_ssize_t classes, on_stop=None):
    """The first row whose label is not in 0 … classes − 1, or −1.

    Where there is one, `on_stop`, if given, is called with the labels, and has to raise. In a recorded step, such a
    row stops the replay, which calls it likewise.
    """
    cdef Call call
    cdef cnp.ndarray first = output((), int64)
    labels = checked_labels("check_labels", labels, -1)
    begin(&call, CHECK_LABELS_KERNEL, 0)
    bind(&call, 0, first)
    bind(&call, 1, labels)
    call.size[0], call.size[1] = cnp.PyArray_DIM(labels, 0), classes
    call.parts = 1
    call.work = CHECK_LABELS_KERNEL.work * call.size[0]
    launch(&call, on_stop)
    return (<cnp.int64_t*> cnp.PyArray_DATA(first))[0]
