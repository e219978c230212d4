# The matrix product.

# Their loops are `matmul` and `matmul_stack` in loops/matmul.pyx, which publishes them under these names.
cdef Kernel MATMUL_KERNEL = Kernel("matmul", is_product=True)
cdef Kernel MATMUL_STACK_KERNEL = Kernel("matmul_stack")


def matmul(a not None, cnp.ndarray b not None, cnp.ndarray out=None, *, cnp.ndarray bias=None, bint accumulate=False):
    """y = a b (+ bias): a (M, K), b (K, N), bias (N,) → (M, N). With `accumulate`, y is added to `out`.

    a is an array, a SparseMatrix, or the transpose of one. Raise ValueError for shapes that don't fit, and TypeError
    for dtypes that differ or are not float32 or float64.
    """
    if isinstance(a, SparseMatrix):
        return sparse_product(a, b, out, bias, accumulate)
    return product(a, b, out, bias, accumulate)


cdef cnp.ndarray product(cnp.ndarray a, cnp.ndarray b, cnp.ndarray out, cnp.ndarray bias, bint accumulate):
    """Return the product of two arrays; see `matmul`."""
    cdef Call call
    cdef cnp.npy_intp shape[2]
    cdef int real = real_type("matmul", a)
    cdef bint rounds = real == 0 and rounds_products()

    same_type("matmul", a, b)
    if cnp.PyArray_NDIM(a) != 2 or cnp.PyArray_NDIM(b) != 2 or cnp.PyArray_DIM(a, 1) != cnp.PyArray_DIM(b, 0):
        raise ValueError(f"matmul got shapes {get_dims(a)} and {get_dims(b)}; expected (M, K) and (K, N)")
    a, b = as_readable(a), as_readable(b)
    shape[0], shape[1] = cnp.PyArray_DIM(a, 0), cnp.PyArray_DIM(b, 1)
    if bias is not None:
        same_type("matmul", a, bias)
        if cnp.PyArray_NDIM(bias) != 1 or cnp.PyArray_DIM(bias, 0) != shape[1]:
            raise ValueError(f"matmul got a bias of shape {get_dims(bias)}; expected ({shape[1]},)")
        bias = as_contiguous(bias)
    if out is None:
        if accumulate:
            raise ValueError("matmul accumulates into `out`, which was not given")
        out = empty(2, shape, a.descr)
    else:
        out = check_out("matmul", out)
        same_type("matmul", a, out)
        if cnp.PyArray_NDIM(out) != 2 or cnp.PyArray_DIM(out, 0) != shape[0] or cnp.PyArray_DIM(out, 1) != shape[1]:
            raise ValueError(f"matmul got an `out` of shape {get_dims(out)}; expected ({shape[0]}, {shape[1]})")
        if overlap(out, a) or overlap(out, b) or (bias is not None and overlap(out, bias)):
            raise ValueError("matmul can't write its result into one of its operands")
        if accumulate and (rounds or cnp.PyArray_DIM(a, 1) > longest_accumulated):
            return add(out, product(a, b, None, bias, False), out)

    begin(&call, MATMUL_KERNEL, real)
    bind_matrix(&call, 0, out)
    bind_matrix(&call, 1, a)
    bind_matrix(&call, 2, b)
    if bias is not None:
        bind(&call, 3, bias)
    call.size[0], call.size[1], call.size[2] = shape[0], shape[1], cnp.PyArray_DIM(a, 1)
    call.accumulate, call.rounds = accumulate, rounds
    call.parts = max(shape[0], shape[1])
    call.flops = 2.0 * shape[0] * shape[1] * call.size[2]
    call.work = call.flops / 4 if rounds else call.flops      # with AMX; the packing takes as long as the products
    launch(&call)
    return out


def matmul_stack(cnp.ndarray a not None, cnp.ndarray b not None, cnp.ndarray out=None):
    """y[i] = a[i] b[i]: a (n, M, K), b (n, K, N) → (n, M, N). Raise what `matmul` raises."""
    cdef Call call
    cdef int real = real_type("matmul_stack", a), i
    cdef tuple shape
    cdef cnp.ndarray operand

    same_type("matmul_stack", a, b)
    if (cnp.PyArray_NDIM(a) != 3 or cnp.PyArray_NDIM(b) != 3 or cnp.PyArray_DIM(a, 0) != cnp.PyArray_DIM(b, 0)
            or cnp.PyArray_DIM(a, 2) != cnp.PyArray_DIM(b, 1)):
        raise ValueError(f"matmul_stack got shapes {get_dims(a)} and {get_dims(b)}; expected (n, M, K) and (n, K, N)")
    a, b = as_readable(a), as_readable(b)
    shape = (cnp.PyArray_DIM(a, 0), cnp.PyArray_DIM(a, 1), cnp.PyArray_DIM(b, 2))
    if out is None:
        out = output(shape, a.descr)
    else:
        out = check_out("matmul_stack", out)
        same_type("matmul_stack", a, out)
        if get_dims(out) != shape or overlap(out, a) or overlap(out, b):
            raise ValueError(f"matmul_stack needs an `out` of shape {shape}, none of its operands, got {get_dims(out)}")

    begin(&call, MATMUL_STACK_KERNEL, real)
    for i, operand in enumerate((out, a, b)):
        bind_matrix(&call, i, operand)
        call.operand[i].stride[2] = cnp.PyArray_STRIDE(operand, 0) // cnp.PyArray_ITEMSIZE(operand)
    call.size[0], call.size[1], call.size[2] = shape[1], shape[2], cnp.PyArray_DIM(a, 2)
    call.rounds = real == 0 and rounds_products()
    call.parts = shape[0]
    call.flops = 2.0 * shape[0] * shape[1] * shape[2] * call.size[2]
    call.work = 100.0 * shape[0] + (call.flops / 4 if call.rounds else call.flops)
    launch(&call)
    return out
