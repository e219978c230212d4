# Attention of several heads, forward and backward, and rotary positions.

cdef Kernel ATTENTION_KERNEL = Kernel("attention", writes=0b10001, work=30)
cdef Kernel ATTENTION_GRAD_KERNEL = Kernel("attention_grad", writes=0b111, work=40)
cdef Kernel ROTARY_KERNEL = Kernel("rotary", work=8)
cdef Kernel ROTARY_TABLE_KERNEL = Kernel("rotary_table")


def attention(cnp.ndarray q not None, cnp.ndarray k not None, cnp.ndarray v not None, Py_ssize_t heads,
              bint causal=False, cnp.ndarray mask=None, cnp.ndarray random=None, double p=0.0,
              Py_ssize_t first=0):
    """Multi-head attention: y = softmax(q kᵀ / √d) v for each head of d neighbouring columns.

    q (n, length, heads · d), k and v (n, keys, heads · d). Return y in the shape of q, the norms for `attention_grad`,
    and the numbers drawn (None without dropout). If causal, the queries are the last positions of the keys, and see no
    later keys. A query does not see a key whose entry in the mask, bool, is False. The mask has an entry for each key,
    (n, keys), or for each pair, (length, keys) or (n, length, keys). In the last shape, n = 1 means the same pairs in
    all rows. A mask (n, keys) is one of keys also if n is the length. A query that sees no key has y = 0 and no
    gradient.

    If p > 0, each of the (n, heads, length, keys) weights is dropped with probability p. `random` is (seed, step),
    int64, and its step is incremented. If the rows are a part of a larger batch, `first` is the number of their first
    element in that batch's array.

    Memory is linear in the lengths. Raise ValueError for shapes that don't match, TypeError for other dtypes.
    """
    cdef Call call
    cdef cnp.ndarray y, norms, drawn = None
    begin_attention(&call, ATTENTION_KERNEL, q, k, v, heads, causal, mask, p, first)
    if p > 0:
        if random is None:
            raise TypeError("attention with a p above 0 needs `random`, which is (seed, step)")
        drawn = next_draw(random)
    q, k, v = as_readable_rows(q), as_readable_rows(k), as_readable_rows(v)
    y = output(get_dims(q), q.descr)
    norms = output((2, call.size[0], heads, call.size[2]), q.descr)
    call.parts = call.size[0] * heads * call.size[2]
    bind(&call, 0, y)
    bind_axes(&call, 1, q)
    bind_axes(&call, 2, k)
    bind_axes(&call, 3, v)
    bind(&call, 4, norms)
    bind_mask_and_dropout(&call, 5, mask, drawn)
    launch(&call)
    return y, norms, drawn


def attention_grad(cnp.ndarray dy not None, cnp.ndarray q not None, cnp.ndarray k not None, cnp.ndarray v not None,
                   cnp.ndarray y not None, cnp.ndarray norms not None, Py_ssize_t heads, bint causal=False,
                   cnp.ndarray mask=None, cnp.ndarray drawn=None, double p=0.0, Py_ssize_t first=0):
    """dq, dk and dv, from dy and from the arguments and results of `attention`."""
    cdef Call call
    cdef cnp.ndarray dq, dk, dv
    begin_attention(&call, ATTENTION_GRAD_KERNEL, q, k, v, heads, causal, mask, p, first)
    require_gradient("attention_grad", dy, q)
    require_gradient("attention_grad", y, q)
    if (type_number(norms) != type_number(q) or not cnp.PyArray_IS_C_CONTIGUOUS(norms)
            or get_dims(norms) != (2, call.size[0], heads, call.size[2]) or not cnp.PyArray_ISBEHAVED_RO(norms)):
        raise ValueError(f"attention_grad takes the norms of attention, got {norms.dtype} of shape {get_dims(norms)}")
    if p > 0:
        if drawn is None:
            raise TypeError("attention_grad with a p above 0 needs the numbers that attention has drawn")
        require_vector("attention_grad", drawn, cnp.NPY_INT64, 2)
    dy, q, k, v = as_readable_rows(dy), as_readable_rows(q), as_readable_rows(k), as_readable_rows(v)
    y = as_contiguous(y)
    dq, dk, dv = output(get_dims(q), q.descr), output(get_dims(k), q.descr), output(get_dims(k), q.descr)
    call.parts = call.size[0] * heads
    bind_all(&call, 0, dq, dk, dv)
    bind_axes(&call, 3, dy)
    bind_axes(&call, 4, q)
    bind_axes(&call, 5, k)
    bind_axes(&call, 6, v)
    bind_all(&call, 7, y, norms)
    bind_mask_and_dropout(&call, 9, mask, drawn)
    launch(&call)
    return dq, dk, dv


def rotary(cnp.ndarray x not None, Py_ssize_t heads, Py_ssize_t first=0, bint backward=False):
    """x (n, length, heads · d) with each pair of columns 2i, 2i + 1 of a head turned by position / 10000^(2i / d).

    The positions begin at `first`. `backward` turns by the negative angle: it is the gradient, and undoes the turn.
    Raise ValueError unless d is even.
    """
    cdef Call call
    cdef cnp.ndarray y, table
    begin(&call, ROTARY_KERNEL, real_type("rotary", x))
    if (cnp.PyArray_NDIM(x) != 3 or heads < 1 or cnp.PyArray_DIM(x, 2) == 0
            or cnp.PyArray_DIM(x, 2) % (2 * heads) != 0):
        raise ValueError(f"rotary got shape {get_dims(x)}, which can't be cut into {heads} heads of pairs")
    x = as_readable_rows(x)
    last = <object> require_first("rotary", first) + cnp.PyArray_DIM(x, 1) - 1
    table = rotary_table(<object> 1 << last.bit_length(), cnp.PyArray_DIM(x, 2) // heads, heads, x.descr.itemsize == 8)
    call.size[0], call.size[1], call.size[3] = cnp.PyArray_DIM(x, 0), cnp.PyArray_DIM(x, 1), cnp.PyArray_DIM(table, 1)
    call.size[2], call.size[4], call.size[5] = cnp.PyArray_DIM(x, 2) // call.size[3], first, backward
    call.constants = 1 << 1
    y = output(get_dims(x), x.descr)
    bind_all(&call, 0, y, table)
    bind_axes(&call, 2, x)
    launch_parts(&call, call.size[1], cnp.PyArray_SIZE(x))
    return y


@lru_cache(maxsize=32)
def rotary_table(Py_ssize_t positions, Py_ssize_t d, Py_ssize_t heads, bint is_double):
    """Return the table of `rotary` for heads of d columns. All layers share it. Replays read it, and do not make it."""
    cdef Call call
    cdef Py_ssize_t repeats = max([i for i in range(1, heads + 1) if heads % i == 0 and (i == 1 or i * d <= 128)])
    cdef cnp.ndarray table = np.empty((positions, repeats * d), np.float64 if is_double else np.float32)
    begin(&call, ROTARY_TABLE_KERNEL, is_double)
    call.size[0], call.size[1], call.parts = d, repeats * d, positions
    bind(&call, 0, table)
    run(&call, 1)
    return table


cdef int begin_attention(Call* call, Kernel kernel, cnp.ndarray q, cnp.ndarray k, cnp.ndarray v, Py_ssize_t heads,
                         bint causal, cnp.ndarray mask, double p, Py_ssize_t first) except -1:
    """Begin a call. TypeError or ValueError for arguments that don't match."""
    cdef str name = kernel.name
    cdef double pairs
    begin(call, kernel, real_type(name, q))
    same_type(name, q, k)
    same_type(name, q, v)
    require_probability(name, p)
    if (cnp.PyArray_NDIM(q) != 3 or cnp.PyArray_NDIM(k) != 3 or not cnp.PyArray_SAMESHAPE(k, v)
            or cnp.PyArray_DIM(q, 0) != cnp.PyArray_DIM(k, 0) or cnp.PyArray_DIM(q, 2) != cnp.PyArray_DIM(k, 2)):
        raise ValueError(f"{name} got queries, keys and values of shapes {get_dims(q)}, {get_dims(k)} and "
                         f"{get_dims(v)}; expected (n, length, size), (n, keys, size) and the same")
    if heads < 1 or cnp.PyArray_DIM(q, 2) == 0 or cnp.PyArray_DIM(q, 2) % heads != 0:
        raise ValueError(f"{name} got shape {get_dims(q)}, which can't be cut into {heads} heads of equal size")
    if causal and cnp.PyArray_DIM(q, 1) > cnp.PyArray_DIM(k, 1):
        raise ValueError(f"{name} got queries of shape {get_dims(q)} and fewer keys, of shape {get_dims(k)}; causal, "
                         "the queries are the last positions of the keys")
    if mask is not None:
        if type_number(mask) != cnp.NPY_BOOL:
            raise TypeError(f"{name} expected a mask of bool, got {mask.dtype}")
        require_mask_shape(name, get_dims(mask), cnp.PyArray_DIM(q, 0), cnp.PyArray_DIM(q, 1), cnp.PyArray_DIM(k, 1))
    call.size[0], call.size[1], call.size[2] = cnp.PyArray_DIM(q, 0), heads, cnp.PyArray_DIM(q, 1)
    call.size[3], call.size[4], call.size[5] = cnp.PyArray_DIM(k, 1), cnp.PyArray_DIM(q, 2) // heads, causal
    call.size[6] = require_first(name, first)
    call.scalar[0], call.scalar[1] = 1 / c_sqrt(call.size[4]), p
    pairs = <double> call.size[0] * heads * call.size[2]      # pairs of a query and a key
    pairs *= call.size[3] - (call.size[2] - 1) / 2.0 if causal else call.size[3]
    call.flops = (4 if kernel is ATTENTION_KERNEL else 10) * pairs * call.size[4]
    call.work = call.flops + kernel.work * pairs
    return 0


cdef int require_mask_shape(str name, tuple shape, Py_ssize_t n, Py_ssize_t length, Py_ssize_t keys) except -1:
    """ValueError unless a mask has this shape."""
    if shape not in ((n, keys), (length, keys), (n, length, keys), (1, length, keys)):
        raise ValueError(f"{name} got a mask of shape {shape}; expected {(n, keys)}, {(length, keys)} or "
                         f"{(n, length, keys)}")
    return 0


cdef cnp.ndarray as_readable_rows(cnp.ndarray x):
    """Return the array itself if loops can read it and its last axis is contiguous, else a copy."""
    x = as_readable(x)
    return x if cnp.PyArray_STRIDE(x, 2) == cnp.PyArray_ITEMSIZE(x) else as_contiguous(x)


cdef void bind_mask_and_dropout(Call* call, int operand, cnp.ndarray mask, cnp.ndarray drawn) noexcept:
    """Bind the mask, and as the next operand the numbers that dropout draws from, if they are given."""
    cdef Py_ssize_t* stride = call.operand[operand].stride
    if mask is not None:
        bind(call, operand, mask)
        stride[2] = cnp.PyArray_STRIDE(mask, cnp.PyArray_NDIM(mask) - 1)
        if cnp.PyArray_NDIM(mask) == 3:
            stride[0] = 0 if cnp.PyArray_DIM(mask, 0) == 1 else cnp.PyArray_STRIDE(mask, 0)
            stride[1] = cnp.PyArray_STRIDE(mask, 1)
        else:
            stride[0 if cnp.PyArray_DIM(mask, 0) == call.size[0] else 1] = cnp.PyArray_STRIDE(mask, 0)
    if drawn is not None:
        bind(call, operand + 1, drawn)
