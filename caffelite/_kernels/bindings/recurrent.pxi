# Recurrences: the states of all steps from the gates' inputs from x, and their gradients.
#
# gates (n, T, gates · H), contiguous. They first hold the gates' inputs from x, later the gates themselves.
# `reverse`: the first step reads a row's last element, and the last step reads its first element.

cdef Kernel PACK_KERNEL = Kernel("pack", work=8)
cdef Kernel CUT_KERNEL = Kernel("cut", checked=2, work=8)
cdef Kernel RNN_KERNEL = Kernel("rnn", loops="recurrence", writes=0b1000_0000_0111, updates=1, work=60)
cdef Kernel GRU_KERNEL = Kernel("gru", loops="recurrence", writes=0b1001_0000_1111, updates=1, work=60)
cdef Kernel LSTM_KERNEL = Kernel("lstm", loops="recurrence", writes=0b1101_0000_1111, updates=1, work=60)
cdef Kernel RNN_GRAD_KERNEL = Kernel("rnn_grad", loops="recurrence_grad", writes=0b1000_0000_0011, updates=0b10,
                                     work=30)
cdef Kernel GRU_GRAD_KERNEL = Kernel("gru_grad", loops="recurrence_grad", writes=0b1010_0000_0011, updates=0b10,
                                     work=30)
cdef Kernel LSTM_GRAD_KERNEL = Kernel("lstm_grad", loops="recurrence_grad", writes=0b1000_1000_0011,
                                      updates=0b1000_0010, work=30)


def rnn(cnp.ndarray gates not None, cnp.ndarray w not None, cnp.ndarray bias not None, cnp.ndarray h not None,
        cnp.ndarray lengths=None, bint reverse=False):
    """h[t] = tanh(gates[:, t] + h[t − 1] wᵀ + bias), starting with h (n, H). gates (n, T, H) becomes h[1] … h[T].

    w (H, H), bias (H,). `lengths` (n,) int64 gives the number of elements of each row; all behind them are 0. Returns
    the states before each step (n, T, H) and the last state (n, H). Raise ValueError for shapes that don't match, and
    TypeError for dtypes that differ or are not float32 or float64.
    """
    cdef Call call
    cdef list arrays = begin_recurrence(&call, RNN_KERNEL, 1, gates, w, bias, h, lengths, reverse)
    launch(&call)
    return arrays[0], arrays[1]


def gru(cnp.ndarray gates not None, cnp.ndarray w not None, cnp.ndarray bias not None, cnp.ndarray h not None,
        cnp.ndarray lengths=None, bint sequences=False, bint reverse=False):
    """Return the states of a GRU, from the inputs of its gates r, z, n. gates (n, T, 3 H) becomes the gates themselves.

    w (3 H, H), bias (3 H,), h (n, H), lengths as for `rnn`. Return the states before each step (n, T, H), the last
    state (n, H), the part of n's input that r multiplies (n, T, H), and with `sequences` all states (n, T, H). Errors
    as for `rnn`.
    """
    cdef Call call
    cdef cnp.ndarray beside, y = None
    cdef list arrays = begin_recurrence(&call, GRU_KERNEL, 3, gates, w, bias, h, lengths, reverse)
    beside = bind_output(&call, 8, get_dims(arrays[0]), gates)
    if sequences:
        y = bind_output(&call, 3, get_dims(arrays[0]), gates)
    launch(&call)
    return arrays[0], arrays[1], beside, y


def lstm(cnp.ndarray gates not None, cnp.ndarray w not None, cnp.ndarray bias not None, cnp.ndarray h not None,
         cnp.ndarray c not None, cnp.ndarray lengths=None, bint sequences=False, bint reverse=False):
    """Return the states of an LSTM, from the inputs of its gates i, f, g, o. gates (n, T, 4 H) becomes the gates.

    w (4 H, H), bias (4 H,), h and c (n, H), lengths as for `rnn`. Return the states h before each step (n, T, H), the
    last h (n, H), all states c (n, T, H), the last c (n, H), and with `sequences` all h (n, T, H). Errors as for `rnn`.
    """
    cdef Call call
    cdef cnp.ndarray beside, last, y = None
    cdef list arrays = begin_recurrence(&call, LSTM_KERNEL, 4, gates, w, bias, h, lengths, reverse)
    beside = bind_output(&call, 8, get_dims(arrays[0]), gates)
    c = bind_operand(&call, 9, c, get_dims(arrays[1]), gates)
    last = bind_output(&call, 10, get_dims(arrays[1]), gates)
    if sequences:
        y = bind_output(&call, 3, get_dims(arrays[0]), gates)
    launch(&call)
    return arrays[0], arrays[1], beside, last, y


def rnn_grad(cnp.ndarray gates not None, cnp.ndarray w not None, cnp.ndarray dy=None, cnp.ndarray dlast=None,
             cnp.ndarray lengths=None, bint reverse=False):
    """Return the gradients of `rnn`: of its gates' inputs (n, T, H) and of h (n, H).

    `gates` is the array that `rnn` has written. dy (n, T, H) is the gradient of all states, and dlast (n, H) is the
    gradient of the last state; None means 0. Errors as for `rnn`.
    """
    cdef Call call
    cdef list arrays = begin_recurrence_grad(&call, RNN_GRAD_KERNEL, 1, gates, w, dy, dlast, lengths, reverse)
    launch(&call)
    return arrays[0], arrays[1]


def gru_grad(cnp.ndarray gates not None, cnp.ndarray w not None, cnp.ndarray previous not None,
             cnp.ndarray beside not None, cnp.ndarray dy=None, cnp.ndarray dlast=None, cnp.ndarray lengths=None,
             bint reverse=False):
    """Return the gradients of `gru`: of the gates' inputs (n, T, 3 H), of the factor of r (n, T, H), and of h.

    `previous` and `beside` are the first and third result of `gru`. Other arguments as for `rnn_grad`.
    """
    cdef Call call
    cdef cnp.ndarray dbeside
    cdef list arrays = begin_recurrence_grad(&call, GRU_GRAD_KERNEL, 3, gates, w, dy, dlast, lengths, reverse)
    cdef tuple shape = (cnp.PyArray_DIM(gates, 0), cnp.PyArray_DIM(gates, 1), call.size[1])
    beside = bind_operand(&call, 6, beside, shape, gates)
    dbeside = bind_output(&call, 9, shape, gates)
    previous = bind_operand(&call, 10, previous, shape, gates)
    launch(&call)
    return arrays[0], dbeside, arrays[1]


def lstm_grad(cnp.ndarray gates not None, cnp.ndarray w not None, cnp.ndarray cells not None, cnp.ndarray c not None,
              cnp.ndarray dy=None, cnp.ndarray dlast=None, cnp.ndarray dcell=None, cnp.ndarray lengths=None,
              bint reverse=False):
    """Return the gradients of `lstm`: of the gates' inputs (n, T, 4 H), of h (n, H) and of c (n, H).

    `cells` is the third result of `lstm`, dcell (n, H) the gradient of the last c. Other arguments as for `rnn_grad`.
    """
    cdef Call call
    cdef cnp.ndarray dc
    cdef list arrays = begin_recurrence_grad(&call, LSTM_GRAD_KERNEL, 4, gates, w, dy, dlast, lengths, reverse)
    cdef tuple shape = get_dims(arrays[1])
    cells = bind_operand(&call, 6, cells, (shape[0], call.size[3], shape[1]), gates)
    dc = bind_gradient(&call, 7, dcell, shape, gates)
    c = bind_operand(&call, 8, c, shape, gates)
    launch(&call)
    return arrays[0], arrays[1], dc


cdef list begin_recurrence(Call* call, Kernel kernel, Py_ssize_t count, cnp.ndarray gates, cnp.ndarray w,
                           cnp.ndarray bias, cnp.ndarray h, cnp.ndarray lengths, bint reverse):
    """Begin a call. Return the states before each step, the last state, and the other arrays that are bound."""
    cdef Py_ssize_t n, T, H
    cdef cnp.ndarray previous, last, packed
    set_recurrence_sizes(call, kernel, count, gates, w, reverse)
    n, T, H = cnp.PyArray_DIM(gates, 0), call.size[3], call.size[1]
    check_out(kernel.name, gates)
    bind(call, 0, gates)
    previous, last = bind_output(call, 1, (n, T, H), gates), bind_output(call, 2, (n, H), gates)
    packed = pack((<object> w).T)
    bind(call, 4, packed)
    bias = bind_operand(call, 5, bias, (count * H,), gates)
    h = bind_operand(call, 6, h, (n, H), gates)
    lengths = bind_lengths(call, 7, lengths, n)
    return [previous, last, packed, bias, h, lengths, bind_output(call, 11, (n, count * H), gates)]


cdef list begin_recurrence_grad(Call* call, Kernel kernel, Py_ssize_t count, cnp.ndarray gates, cnp.ndarray w,
                                cnp.ndarray dy, cnp.ndarray dlast, cnp.ndarray lengths, bint reverse):
    """Begin a call. Return the gradients of the gates' inputs and of h, and the other arrays that are bound."""
    cdef Py_ssize_t n, H
    cdef cnp.ndarray dgates, dh, packed
    set_recurrence_sizes(call, kernel, count, gates, w, reverse)
    n, H = cnp.PyArray_DIM(gates, 0), call.size[1]
    dgates = bind_output(call, 0, get_dims(gates), gates)
    dh = bind_gradient(call, 1, dlast, (n, H), gates)
    bind(call, 2, gates)
    packed = pack(w)
    bind(call, 3, packed)
    if dy is not None:
        dy = bind_operand(call, 4, dy, (n, call.size[3], H), gates)
    lengths = bind_lengths(call, 5, lengths, n)
    return [dgates, dh, packed, dy, lengths, bind_output(call, 11, (n, count * H), gates)]


cdef int set_recurrence_sizes(Call* call, Kernel kernel, Py_ssize_t count, cnp.ndarray gates, cnp.ndarray w,
                              bint reverse) except -1:
    """Set sizes, parts and work of a recurrence with `count` gates. Raise ValueError for shapes that don't match."""
    cdef Py_ssize_t H = cnp.PyArray_DIM(w, 1) if cnp.PyArray_NDIM(w) == 2 else 0
    begin(call, kernel, real_type(kernel.name, gates))
    same_type(kernel.name, gates, w)
    if (H == 0 or cnp.PyArray_DIM(w, 0) != count * H or cnp.PyArray_NDIM(gates) != 3
            or cnp.PyArray_DIM(gates, 2) != count * H or not cnp.PyArray_IS_C_CONTIGUOUS(gates)):
        raise ValueError(f"{kernel.name} got gates of shape {get_dims(gates)} and w of shape {get_dims(w)}; expected "
                         f"(n, T, {count} H), contiguous, and ({count} H, H)")
    call.size[0], call.size[1], call.size[2] = cnp.PyArray_DIM(gates, 0) * cnp.PyArray_DIM(gates, 1), H, count * H
    call.size[3], call.size[4], call.size[5] = cnp.PyArray_DIM(gates, 1), count, reverse
    call.rounds = real_type(kernel.name, gates) == 0 and rounds_products()
    call.parts = cnp.PyArray_DIM(gates, 0)
    call.flops = 2.0 * H * cnp.PyArray_SIZE(gates)
    call.work = call.flops + kernel.work * cnp.PyArray_SIZE(gates)
    return 0


cdef cnp.ndarray bind_output(Call* call, int operand, tuple shape, cnp.ndarray like):
    """Bind a new array of this shape, in the dtype of `like`, and return it."""
    cdef cnp.ndarray out = output(shape, like.descr)
    bind(call, operand, out)
    return out


cdef cnp.ndarray bind_operand(Call* call, int operand, cnp.ndarray a, tuple shape, cnp.ndarray like):
    """Bind and return an array, or its contiguous copy. Raise an error for another shape or dtype."""
    cdef str name = (<Kernel> call.kernel).name
    same_type(name, like, a)
    if get_dims(a) != shape:
        raise ValueError(f"{name} got an operand of shape {get_dims(a)}; expected {shape}")
    a = as_contiguous(a)
    bind(call, operand, a)
    return a


cdef cnp.ndarray bind_gradient(Call* call, int operand, cnp.ndarray source, tuple shape, cnp.ndarray like):
    """Bind and return a copy of a gradient, or zeros if it is None. −0 becomes +0, so adding 0 never changes bits."""
    cdef cnp.ndarray gradient
    if source is None:
        gradient = full(shape, 0, like.dtype)
    elif get_dims(source) != shape:
        raise ValueError(f"{(<Kernel> call.kernel).name} got a gradient of shape {get_dims(source)}; expected {shape}")
    else:
        same_type((<Kernel> call.kernel).name, like, source)
        gradient = as_contiguous(add(source, 0.0))
    bind(call, operand, gradient)
    return gradient


cdef cnp.ndarray bind_lengths(Call* call, int operand, cnp.ndarray lengths, Py_ssize_t n):
    """Bind the lengths of n rows, if they are given, and return them."""
    if lengths is not None:
        lengths = as_labels((<Kernel> call.kernel).name, lengths, n)
        bind(call, operand, lengths)
    return lengths


def pack(cnp.ndarray b not None):
    """Return a matrix b (K, N) packed for tiles of products: strip by strip of columns, each strip row by row."""
    cdef Call call
    cdef int real = real_type("pack", b)
    cdef bint rounds = real == 0 and rounds_products()
    cdef Py_ssize_t width = rounded_columns if rounds else strip_columns >> real, depth
    cdef cnp.ndarray out
    if cnp.PyArray_NDIM(b) != 2:
        raise ValueError(f"pack got shape {get_dims(b)}; expected (K, N)")
    b = as_readable(b)
    begin(&call, PACK_KERNEL, real)
    call.size[0], call.size[1] = cnp.PyArray_DIM(b, 0), cnp.PyArray_DIM(b, 1)
    call.parts, call.rounds = (call.size[1] + width - 1) // width, rounds
    depth = (call.size[0] + 31) // 32 * 32 if rounds else call.size[0]  # rounded, at most so many elements
    out = output((call.parts * depth * width,), b.descr)
    bind(&call, 0, out)
    bind_matrix(&call, 1, b)
    launch_parts(&call, call.parts, cnp.PyArray_SIZE(b))
    return out


def cut(cnp.ndarray x not None, cnp.ndarray lengths not None, on_stop=None):
    """y = x, but 0 from a row's length on: x (n, T, …), lengths (n,) int64 → (n, T, …).

    Call `on_stop` with the lengths if one is not in 1 … T; `on_stop` must raise. Without `on_stop`, such a length
    raises IndexError.
    """
    cdef Call call
    cdef int real = real_type("cut", x)
    cdef cnp.ndarray out
    if cnp.PyArray_NDIM(x) < 2:
        raise ValueError(f"cut got shape {get_dims(x)}; expected (n, T, …)")
    x, lengths = as_contiguous(x), as_labels("cut", lengths, cnp.PyArray_DIM(x, 0))
    out = output(get_dims(x), x.descr)
    begin(&call, CUT_KERNEL, real)
    bind_all(&call, 0, out, x, lengths)
    call.size[0] = cnp.PyArray_DIM(x, 1)
    call.size[1] = cnp.PyArray_SIZE(x) // max(call.size[0] * cnp.PyArray_DIM(x, 0), 1)
    launch_parts(&call, cnp.PyArray_DIM(x, 0), cnp.PyArray_SIZE(x),
                 on_stop or partial(raise_bad_length, call.size[0]))
    return out


def raise_bad_length(steps, lengths):
    """Raise IndexError for the first length that is not in 1 … steps."""
    i = ((lengths < 1) | (lengths > steps)).argmax()
    raise IndexError(f"cut got the length {lengths[i]} in row {i}; expected 1 … {steps}")
