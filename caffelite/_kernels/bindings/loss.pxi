# Losses: the loss of each row, and the mean over the rows.
#
# `row_weights` (n,) is the weight of each row in the mean. Without it, each row has the weight 1/n.

cdef Kernel SOFTMAX_LOSS_KERNEL = Kernel("softmax_loss", writes=0b1001, checked=2, work=150)
cdef Kernel SOFTMAX_LOSS_GRAD_KERNEL = Kernel("softmax_loss_grad", checked=2, work=10)
cdef Kernel SOFT_LOSS_KERNEL = Kernel("soft_loss", writes=0b1001, work=160)
cdef Kernel SOFT_LOSS_GRAD_KERNEL = Kernel("soft_loss_grad", work=15)
cdef Kernel HINGE_LOSS_KERNEL = Kernel("hinge_loss", checked=2, work=60)
cdef Kernel HINGE_LOSS_GRAD_KERNEL = Kernel("hinge_loss_grad", checked=2, work=60)
cdef Kernel GAUSSIAN_LOSS_KERNEL = Kernel("gaussian_loss", work=100)
cdef Kernel GAUSSIAN_LOSS_GRAD_KERNEL = Kernel("gaussian_loss_grad", work=100)
cdef Kernel WEIGHTED_MEAN_KERNEL = Kernel("weighted_mean", writes=0b111, checked=3, work=100)
cdef Kernel CHECK_LABELS_KERNEL = Kernel("check_labels", checked=1, work=50)
cdef Kernel CHECK_PROBABILITIES_KERNEL = Kernel("check_probabilities", writes=0b10, checked=0, work=30)


# ---- losses of rows ----

def softmax_loss(cnp.ndarray scores not None, cnp.ndarray targets not None, double smoothing=0, ignore=None):
    """Return the softmax p of each row, and its cross-entropy −Σ t log p with the smoothed targets t.

    scores (…, C) are n rows. targets are labels (n,) int64, or probabilities in the scores' shape (see `soft_loss`).
    Return the losses (n,) and p (…, C). The loss is 0 where the label is `ignore`.
    Raise ValueError for no rows or other shapes, TypeError unless labels are int64, IndexError for a bad label.
    """
    cdef Call call
    cdef cnp.ndarray rows, p
    if cnp.PyArray_ISFLOAT(targets):
        return soft_loss(scores, targets, smoothing)
    scores = begin_loss(&call, SOFTMAX_LOSS_KERNEL, scores, True)
    targets = as_labels("softmax_loss", targets, call.size[0])
    rows, p = empty_losses(&call, scores), empty_scores(scores)
    bind_all(&call, 0, p, scores, targets, rows)
    call.scalar[0] = smoothing
    set_ignored(&call, ignore)
    launch(&call, partial(raise_bad_label, "softmax_loss", call.size[1]))
    return rows, p


def softmax_loss_grad(cnp.ndarray probabilities not None, cnp.ndarray targets not None, cnp.ndarray dy not None,
                      cnp.ndarray row_weights=None, double smoothing=0, ignore=None):
    """dscores = dy row_weights (p − t), t the smoothed targets, one-hot for labels.

    probabilities (…, C) and targets as in `softmax_loss`, dy one element, row_weights (n,) → (…, C).
    """
    cdef Call call
    if cnp.PyArray_ISFLOAT(targets):
        return soft_loss_grad(probabilities, targets, dy, row_weights, smoothing)
    probabilities = begin_loss(&call, SOFTMAX_LOSS_GRAD_KERNEL, probabilities, True)
    targets = as_labels("softmax_loss_grad", targets, call.size[0])
    call.scalar[0] = smoothing
    set_ignored(&call, ignore)
    return launch_grad(&call, probabilities, targets, dy, row_weights,
                       partial(raise_bad_label, "softmax_loss_grad", call.size[1]))


def soft_loss(cnp.ndarray scores not None, cnp.ndarray targets not None, double smoothing=0):
    """`softmax_loss` for targets that are probabilities, of the scores' shape (…, C)."""
    cdef Call call
    cdef cnp.ndarray rows, p
    scores = begin_loss(&call, SOFT_LOSS_KERNEL, scores, True)
    targets = match_targets("soft_loss", scores, targets)
    rows, p = empty_losses(&call, scores), empty_scores(scores)
    bind_all(&call, 0, p, scores, targets, rows)
    call.scalar[0] = smoothing
    launch(&call)
    return rows, p


def soft_loss_grad(cnp.ndarray probabilities not None, cnp.ndarray targets not None, cnp.ndarray dy not None,
                   cnp.ndarray row_weights=None, double smoothing=0):
    """dscores = dy row_weights (p Σ t − t), t the smoothed targets."""
    cdef Call call
    probabilities = begin_loss(&call, SOFT_LOSS_GRAD_KERNEL, probabilities, True)
    targets = match_targets("soft_loss_grad", probabilities, targets)
    call.scalar[0] = smoothing
    return launch_grad(&call, probabilities, targets, dy, row_weights)


def hinge_loss(cnp.ndarray scores not None, cnp.ndarray labels not None, double margin):
    """Σ max(0, s − s[label] + margin) over the other classes: scores (n, C), labels (n,) int64 → the losses (n,)."""
    cdef Call call
    scores = begin_loss(&call, HINGE_LOSS_KERNEL, scores, True)
    labels = as_labels("hinge_loss", labels, call.size[0])
    call.scalar[0] = margin
    return launch_losses(&call, scores, labels, partial(raise_bad_label, "hinge_loss", call.size[1]))


def hinge_loss_grad(cnp.ndarray scores not None, cnp.ndarray labels not None, cnp.ndarray dy not None, double margin,
                    cnp.ndarray row_weights=None):
    """dscores = dy row_weights for each class that adds to the loss, and minus their sum at the label."""
    cdef Call call
    scores = begin_loss(&call, HINGE_LOSS_GRAD_KERNEL, scores, True)
    labels = as_labels("hinge_loss_grad", labels, call.size[0])
    call.scalar[0] = margin
    return launch_grad(&call, scores, labels, dy, row_weights,
                       partial(raise_bad_label, "hinge_loss_grad", call.size[1]))


# operations.py has the losses of single scores, of scores and targets (n, …): two bindings each, in
# ../generated/operations.pxi.

cdef cnp.ndarray pointwise_loss(Kernel kernel, Op op, cnp.ndarray scores, cnp.ndarray targets, double scalar,
                                cnp.ndarray constants, cnp.ndarray dy=None, cnp.ndarray row_weights=None):
    """Return the loss of each row or, for the gradient dy of their mean, the gradient of the scores."""
    cdef Call call
    scores = begin_loss(&call, kernel, scores, False)
    targets = match_targets(kernel.name, scores, targets)
    call.op, call.scalar[0] = op, scalar
    bind_constants(&call, constants)
    if dy is None:
        return launch_losses(&call, scores, targets)
    return launch_grad(&call, scores, targets, dy, row_weights)


cdef int bind_constants(Call* call, cnp.ndarray constants) except -1:
    """Bind constants that repeat along a row. Raise ValueError unless a row has as many elements, or a multiple."""
    if constants is None:
        return 0
    require_vector((<Kernel> call.kernel).name, constants, cnp.NPY_FLOAT64, cnp.PyArray_SIZE(constants))
    call.size[2] = cnp.PyArray_SIZE(constants)
    if call.size[2] == 0 or call.size[1] % call.size[2] != 0:
        raise ValueError(f"{(<Kernel> call.kernel).name} got {call.size[2]} constants for rows of {call.size[1]}")
    bind(call, 5, constants)
    return 0


def gaussian_loss(cnp.ndarray scores not None, cnp.ndarray targets not None):
    """Return the mean over each row of (v + (t − μ)² exp(−v)) / 2: scores μ, v (n, 2 k), targets (n, k) → (n,)."""
    cdef Call call
    scores = begin_loss(&call, GAUSSIAN_LOSS_KERNEL, scores, True)
    return launch_losses(&call, scores, match_half(&call, scores, targets))


def gaussian_loss_grad(cnp.ndarray scores not None, cnp.ndarray targets not None, cnp.ndarray dy not None,
                       cnp.ndarray row_weights=None):
    """dμ = dy row_weights (μ − t) exp(−v) / k and dv = dy row_weights (1 − (t − μ)² exp(−v)) / 2 k, (n, 2 k)."""
    cdef Call call
    scores = begin_loss(&call, GAUSSIAN_LOSS_GRAD_KERNEL, scores, True)
    return launch_grad(&call, scores, match_half(&call, scores, targets), dy, row_weights)


cdef cnp.ndarray match_half(Call* call, cnp.ndarray scores, cnp.ndarray targets):
    """Return targets (n, k) that loops can read. Raise ValueError unless the scores are (n, 2 k)."""
    cdef str name = (<Kernel> call.kernel).name
    same_type(name, scores, targets)
    if (cnp.PyArray_NDIM(scores) != 2 or cnp.PyArray_NDIM(targets) != 2
            or cnp.PyArray_DIM(scores, 0) != cnp.PyArray_DIM(targets, 0)
            or cnp.PyArray_DIM(scores, 1) != 2 * cnp.PyArray_DIM(targets, 1)):
        raise ValueError(f"{name} got scores of shape {get_dims(scores)} and targets of shape {get_dims(targets)}; "
                         "expected (n, 2 k) and (n, k)")
    call.size[1] = cnp.PyArray_DIM(targets, 1)
    return as_contiguous(targets)


# ---- the mean ----

def weighted_mean(cnp.ndarray rows not None, cnp.ndarray weights=None, cnp.ndarray labels=None, ignore=None,
                  on_stop=None, bint is_part=False):
    """Σ w rows / Σ w. Without weights w is 1. It is 0 where the label is `ignore`.

    rows (n,), weights (m,) for n/m rows each, labels (n,) int64; weights or labels are required. Return the mean, 0-d,
    the share of each row in it, w / Σ w (n,), and Σ w, 0-d, float64.

    If a weight is negative or not finite, or if Σ w = 0, calls `on_stop` with the weights, or with the labels if there
    are no weights. `on_stop` must raise. Without `on_stop`, raises ValueError. With `is_part`, the rows are only a part
    of the mean's rows: Σ w may be 0, and then all results are 0.
    """
    cdef Call call
    cdef int real = real_type("weighted_mean", rows)
    cdef cnp.ndarray value = output((), rows.descr), total = output((), float64), row_weights, checked
    cdef Py_ssize_t n = cnp.PyArray_SIZE(rows), rows_per_weight = 1
    begin(&call, WEIGHTED_MEAN_KERNEL, real)
    if cnp.PyArray_NDIM(rows) != 1 or n == 0:
        raise ValueError(f"weighted_mean got losses of shape {get_dims(rows)}; expected (n,), n above 0")
    rows = as_contiguous(rows)
    row_weights = empty(1, cnp.PyArray_DIMS(rows), rows.descr)
    if labels is not None:
        labels = as_labels("weighted_mean", labels, n)
    if weights is not None:
        same_type("weighted_mean", rows, weights)
        rows_per_weight = n // cnp.PyArray_SIZE(weights) if cnp.PyArray_SIZE(weights) > 0 else 0
        if cnp.PyArray_NDIM(weights) != 1 or rows_per_weight * cnp.PyArray_SIZE(weights) != n:
            raise ValueError(f"weighted_mean got losses of shape {get_dims(rows)} and weights of shape "
                             f"{get_dims(weights)}; expected (n,), and (n,) or a part of it")
        checked = weights = as_contiguous(weights)
    else:
        checked = labels
    if checked is None:
        raise TypeError("weighted_mean needs weights or labels")
    bind_all(&call, 0, value, total, row_weights, checked, rows, labels)
    set_ignored(&call, ignore)
    call.size[0], call.size[1], call.size[4], call.size[5] = n, rows_per_weight, weights is not None, is_part
    launch_parts(&call, 1, n, on_stop or raise_bad_weights)
    return value, row_weights, total


def raise_bad_weights(weights):
    raise ValueError("weighted_mean got weights that are below 0 or not finite, or no row that counts")


# ---- shared by all losses ----

cdef cnp.ndarray begin_loss(Call* call, Kernel kernel, cnp.ndarray scores, bint has_classes):
    """Begin a call on rows of scores, and return the array that the loop reads.

    Each row has one loss. Losses of classes have rows of C scores, (…, C). Others have one row per index of the first
    axis, (n, …).
    """
    cdef int min_ndim = 2 if has_classes else 1
    begin(call, kernel, real_type(kernel.name, scores))
    if cnp.PyArray_NDIM(scores) < min_ndim or cnp.PyArray_SIZE(scores) == 0:
        raise ValueError(f"{kernel.name} got scores of shape {get_dims(scores)}; expected "
                         + ("(n, …, C)" if has_classes else "(n, …)") + ", all lengths above 0")
    scores = as_contiguous(scores)
    if has_classes:
        call.size[1] = cnp.PyArray_DIM(scores, cnp.PyArray_NDIM(scores) - 1)
        call.size[0] = cnp.PyArray_SIZE(scores) // call.size[1]
    else:
        call.size[0] = cnp.PyArray_DIM(scores, 0)
        call.size[1] = cnp.PyArray_SIZE(scores) // call.size[0]
    call.parts = call.size[0]
    call.work = kernel.work * call.size[0] * call.size[1]
    return scores


cdef inline cnp.ndarray empty_scores(cnp.ndarray scores):
    """Return a new array of the scores' dtype and shape."""
    return empty(cnp.PyArray_NDIM(scores), cnp.PyArray_DIMS(scores), scores.descr)


cdef inline cnp.ndarray empty_losses(Call* call, cnp.ndarray scores):
    """Return a new array (n,) of the scores' dtype, with one element for each row."""
    cdef cnp.npy_intp n = call.size[0]
    return empty(1, &n, scores.descr)


cdef cnp.ndarray launch_losses(Call* call, cnp.ndarray scores, cnp.ndarray targets, on_stop=None):
    """Launch the call of a loss, and return the losses of the rows (n,)."""
    cdef cnp.ndarray rows = empty_losses(call, scores)
    bind_all(call, 0, rows, scores, targets)
    launch(call, on_stop)
    return rows


cdef cnp.ndarray launch_grad(Call* call, cnp.ndarray scores, cnp.ndarray targets, cnp.ndarray dy,
                             cnp.ndarray row_weights, on_stop=None):
    """Launch the call of a gradient. dy is the gradient of the mean, row_weights the share of each row in it."""
    cdef Kernel kernel = <Kernel> call.kernel
    cdef cnp.ndarray out = empty_scores(scores)
    same_type(kernel.name, scores, dy)
    if cnp.PyArray_SIZE(dy) != 1:
        raise ValueError(f"{kernel.name} got dy of shape {get_dims(dy)}; expected a single element")
    if row_weights is not None:
        require_vector(kernel.name, row_weights, type_number(scores), call.size[0])
    dy = as_contiguous(dy)
    bind_all(call, 0, out, scores, targets, dy, row_weights)
    launch(call, on_stop)
    return out


cdef cnp.ndarray match_targets(str name, cnp.ndarray scores, cnp.ndarray targets):
    """Return targets that loops can read. Raise ValueError unless they have the scores' shape."""
    same_type(name, scores, targets)
    if not cnp.PyArray_SAMESHAPE(scores, targets):
        raise ValueError(f"{name} got scores of shape {get_dims(scores)} and targets of shape {get_dims(targets)}")
    return as_contiguous(targets)


cdef int set_ignored(Call* call, ignore) except -1:
    if ignore is not None:
        call.size[2], call.size[3] = True, ignore
    return 0


cdef cnp.ndarray as_labels(str name, cnp.ndarray labels, Py_ssize_t rows):
    if not is_int64(labels):
        raise TypeError(f"{name} takes int64 labels, got {labels.dtype}")
    if cnp.PyArray_NDIM(labels) != 1 or (rows >= 0 and cnp.PyArray_DIM(labels, 0) != rows):
        raise ValueError(f"{name} got labels of shape {get_dims(labels)}"
                         + (f"; expected ({rows},)" if rows >= 0 else "; expected one axis"))
    return labels if cnp.PyArray_IS_C_CONTIGUOUS(labels) and cnp.PyArray_ISBEHAVED_RO(labels) \
        else convert(labels, np.int64)


def raise_bad_label(name, classes, labels):
    raise IndexError(f"{name} got a label that is not in 0 … {classes - 1}")


# ---- checks ----

def check_labels(cnp.ndarray labels not None, Py_ssize_t classes, on_stop=None, ignore=None):
    """Return the first row whose label is neither in 0 … classes − 1 nor `ignore`; −1 if there is none.

    If there is one, call `on_stop`, if given, with the labels; `on_stop` must raise. In a recorded step, such a row
    stops the replay, and the replay calls `on_stop`.
    """
    cdef Call call
    cdef cnp.ndarray first = output((), int64)
    labels = as_labels("check_labels", labels, -1)
    begin(&call, CHECK_LABELS_KERNEL, 0)
    bind_all(&call, 0, first, labels)
    call.size[0], call.size[1] = cnp.PyArray_DIM(labels, 0), classes
    set_ignored(&call, ignore)
    launch_parts(&call, 1, call.size[0], on_stop)
    return (<cnp.int64_t*> cnp.PyArray_DATA(first))[0]


def check_probabilities(cnp.ndarray t not None, double largest, double tolerance, on_stop=None):
    """Return the first row with a number outside 0 … largest, or with a sum that is not 1 within the tolerance; or −1.

    t (n, C). `on_stop` as for `check_labels`.
    """
    cdef Call call
    cdef cnp.ndarray first = output((), int64)
    begin(&call, CHECK_PROBABILITIES_KERNEL, real_type("check_probabilities", t))
    if cnp.PyArray_NDIM(t) != 2:
        raise ValueError(f"check_probabilities got shape {get_dims(t)}; expected (n, C)")
    t = as_contiguous(t)
    bind_all(&call, 0, t, first)
    call.size[0], call.size[1] = cnp.PyArray_DIM(t, 0), cnp.PyArray_DIM(t, 1)
    call.scalar[0], call.scalar[1] = largest, tolerance
    launch_parts(&call, 1, cnp.PyArray_SIZE(t), on_stop)
    return (<cnp.int64_t*> cnp.PyArray_DATA(first))[0]
