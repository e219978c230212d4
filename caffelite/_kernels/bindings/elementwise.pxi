# Elementwise kernels: y[i] = f(a[i], b[i], c[i]), broadcast. The table ../operations.py has them: each has a binding in
# ../generated/operations.pxi, as `copy` at the end of this file.

cdef cnp.ndarray elementwise(Kernel kernel, object out, object a, object b=None, object c=None,
                             double scalar0=0, double scalar1=0):
    """y = f(a), f(a, b) or f(a, b, c), broadcast to `out`, or without `out` to each other.

    The inputs are arrays or numbers, at least one of them an array. The scalars are the call's.
    """
    cdef Call call
    cdef cnp.ndarray x, y, z, w, like = first_array(kernel, a, b, c, out)
    cdef int real = real_type(kernel.name, like), inputs = 1 if b is None else 2 if c is None else 3
    cdef int constants = 0

    x = as_input(kernel, a, like, &constants, 1)
    z = None if inputs < 2 else as_input(kernel, b, like, &constants, 2)
    w = None if inputs < 3 else as_input(kernel, c, like, &constants, 3)
    if out is not None:
        y = check_out(kernel.name, out)
        same_type(kernel.name, like, y)
        x = copy_if_overlapping(x, y)
        z = None if inputs < 2 else copy_if_overlapping(z, y)
        w = None if inputs < 3 else copy_if_overlapping(w, y)
    else:
        y = broadcast_output(kernel, inputs, x, z, w)
    if inputs > 1:
        x, z = align_layout(x, y), align_layout(z, y)
    if inputs > 2:
        w = align_layout(w, y)

    begin(&call, kernel, real)
    call.op, call.constants = kernel.op, constants
    call.scalar[0], call.scalar[1] = scalar0, scalar1
    bind_all(&call, 0, y, x, z, w)
    launch_broadcast(&call, 1 + inputs)
    return y


cdef tuple elementwise_with_derivative(Kernel kernel, object out, object a, bint wanted, double scalar0=0):
    """Return y = f(a) and f′(a), or None unless it is wanted. f′(a) is the last operand, with y's layout in memory."""
    cdef Call call
    cdef cnp.ndarray x = first_array(kernel, a, None, None, None), y, derivative
    cdef int real = real_type(kernel.name, x)
    if not wanted:
        return elementwise(kernel, out, a, None, None, scalar0), None
    x = as_readable(x)
    if out is None:
        y = output_like(x)
    else:
        y = check_out(kernel.name, out)
        same_type(kernel.name, x, y)
        x = copy_if_overlapping(x, y)
    derivative = output_like(y)
    begin(&call, kernel, real)
    call.op, call.scalar[0] = kernel.op, scalar0
    bind_all(&call, 0, y, x, derivative)
    launch_broadcast(&call, 3)
    return y, derivative


cdef inline cnp.ndarray align_layout(cnp.ndarray a, cnp.ndarray y):
    """Return the array itself, or a copy with the layout of y if the two arrays are contiguous along different axes.

    Only images are copied: transposing blocks of them in registers is faster than reading single elements."""
    cdef int along, other
    if cnp.PyArray_NDIM(a) < 3 or cnp.PyArray_SIZE(a) < 4096 or not cnp.PyArray_SAMESHAPE(a, y):
        return a
    along, other = contiguous_axis(a), contiguous_axis(y)
    return copy(a, output_like(y)) if 0 <= along != other >= 0 else a


cdef inline int contiguous_axis(cnp.ndarray a) noexcept:
    """Return the axis along which the array is contiguous; −1 if there is none."""
    cdef int d
    for d in range(cnp.PyArray_NDIM(a) - 1, -1, -1):
        if cnp.PyArray_DIM(a, d) > 1 and cnp.PyArray_STRIDE(a, d) == cnp.PyArray_ITEMSIZE(a):
            return d
    return -1


cdef cnp.ndarray first_array(Kernel kernel, object a, object b, object c, object out):
    """Return the first of these objects that is an array. Raise TypeError if there is none."""
    if isinstance(a, cnp.ndarray):
        return a
    if isinstance(b, cnp.ndarray):
        return b
    if isinstance(c, cnp.ndarray):
        return c
    if isinstance(out, cnp.ndarray):
        return out
    raise TypeError(f"{kernel.name} needs an array, got {type(a).__name__} and {type(b).__name__}")


cdef inline cnp.ndarray as_input(Kernel kernel, object a, cnp.ndarray like, int* constants, int operand):
    """Return an input as an array that loops can read. A number becomes an array of the dtype of `like`."""
    cdef cnp.ndarray number
    if isinstance(a, cnp.ndarray):
        same_type(kernel.name, like, <cnp.ndarray> a)
        return as_readable(<cnp.ndarray> a)
    constants[0] |= 1 << operand
    if not isinstance(a, float):
        try:
            return np.asarray(a, dtype=np.float64 if real_type(kernel.name, like) else np.float32)
        except OverflowError:             # an integer too large for floats
            raise ValueError(f"{kernel.name} takes numbers that floats can hold, got {a}") from None
    number = cnp.PyArray_EMPTY(0, NULL, type_number(like), 0)
    if real_type(kernel.name, like):      # as asarray does, in a tenth of the time
        (<double*> cnp.PyArray_DATA(number))[0] = a
    else:
        (<float*> cnp.PyArray_DATA(number))[0] = a
    return number


cdef inline cnp.ndarray broadcast_output(Kernel kernel, int inputs, cnp.ndarray a, cnp.ndarray b, cnp.ndarray c):
    """Return a new array of the inputs' broadcast shape, in the memory order of the first input that has this shape."""
    cdef cnp.npy_intp shape[NUMPY_MAX_DIMS]
    cdef int ndim = cnp.PyArray_NDIM(a), d
    if inputs == 1 or (inputs == 2 and (cnp.PyArray_NDIM(b) == 0 or cnp.PyArray_SAMESHAPE(a, b))):
        if cnp.PyArray_IS_C_CONTIGUOUS(a):
            return empty(ndim, cnp.PyArray_DIMS(a), a.descr)
        return output_like(b if inputs == 2 and cnp.PyArray_NDIM(b) == ndim and repeats(a) else a)
    ndim = max(ndim, cnp.PyArray_NDIM(b))
    if inputs > 2:
        ndim = max(ndim, cnp.PyArray_NDIM(c))
    for d in range(ndim):
        shape[d] = 1
    broadcast_shape(kernel.name, shape, ndim, a, b)
    broadcast_shape(kernel.name, shape, ndim, b, a)
    if inputs > 2:
        broadcast_shape(kernel.name, shape, ndim, c, a)
    if has_shape(a, ndim, shape):
        return output_like(a)
    if has_shape(b, ndim, shape):
        return output_like(b)
    if inputs > 2 and has_shape(c, ndim, shape):
        return output_like(c)
    return empty(ndim, shape, a.descr)


cdef bint has_shape(cnp.ndarray a, int ndim, const cnp.npy_intp* shape) noexcept:
    """Return whether the array has this shape and repeats no element."""
    cdef int d
    if cnp.PyArray_NDIM(a) != ndim or repeats(a):
        return False
    for d in range(ndim):
        if cnp.PyArray_DIM(a, d) != shape[d]:
            return False
    return True


cdef bint repeats(cnp.ndarray a) noexcept:
    """Return whether the array repeats its elements along an axis."""
    cdef int d
    for d in range(cnp.PyArray_NDIM(a)):
        if cnp.PyArray_STRIDE(a, d) == 0 and cnp.PyArray_DIM(a, d) > 1:
            return True
    return False


cdef int broadcast_shape(str name, cnp.npy_intp* shape, int ndim, cnp.ndarray a, cnp.ndarray b) except -1:
    """Extend the broadcast shape by the shape of a. Their last axes are aligned."""
    cdef int d, first = ndim - cnp.PyArray_NDIM(a)
    cdef cnp.npy_intp n
    for d in range(first, ndim):
        n = cnp.PyArray_DIM(a, d - first)
        if n != 1:
            if shape[d] != 1 and shape[d] != n:
                raise ValueError(f"{name} got shapes {get_dims(b)} and {get_dims(a)}, which don't broadcast")
            shape[d] = n
    return 0


cdef int launch_broadcast(Call* call, int operands, on_stop=None) except -1:
    """Launch a call that goes element by element. Operand 0 is the output; the inputs are bound to arrays."""
    cdef Py_ssize_t size = 1, i
    cdef int d, k
    cdef Call one
    if set_broadcast_layout(call, operands):
        for d in range(MAX_DIMS):
            size *= call.size[d]
        call.parts = size if size == call.size[MAX_DIMS - 1] else size // call.size[MAX_DIMS - 1]
        call.work = (<Kernel> call.kernel).work * size
        return launch(call, on_stop)

    y = <object> call.operand[0].array    # too many axes for one call: make one call for each index of the first axis
    arrays = [y] + [<object> call.operand[k].array for k in range(1, operands)]
    arrays = [array if array.ndim == 0 else np.broadcast_to(array, y.shape) for array in arrays]
    for i in range(len(y)):
        one = call[0]
        entries = [array if array.ndim == 0 else array[i] for array in arrays]
        for k in range(operands):
            bind(&one, k, entries[k])
        launch_broadcast(&one, operands, on_stop)
    return CONTINUE


cdef bint set_broadcast_layout(Call* call, int operands) except -1:
    """Set the call's sizes and strides, with as few axes as possible. False if there are more than MAX_DIMS.

    The axes have the order that they have in the output's memory.
    """
    cdef Py_ssize_t stride[MAX_OPERANDS][NUMPY_MAX_DIMS]
    cdef cnp.ndarray y = <cnp.ndarray> call.operand[0].array
    cdef int axes[NUMPY_MAX_DIMS]
    cdef int d, k, i, axis = MAX_DIMS
    cdef bint merges
    for k in range(operands):
        broadcast_strides(call, <cnp.ndarray> call.operand[k].array, y, stride[k])
    order_axes(y, axes)
    for i in range(cnp.PyArray_NDIM(y) - 1, -1, -1):
        d = axes[i]
        if cnp.PyArray_DIM(y, d) == 1:
            continue
        merges = axis < MAX_DIMS
        if merges:
            for k in range(operands):
                merges = merges and stride[k][d] == call.operand[k].stride[axis] * call.size[axis]
        if merges:
            call.size[axis] *= cnp.PyArray_DIM(y, d)
            continue
        axis -= 1
        if axis < 0:
            return False
        call.size[axis] = cnp.PyArray_DIM(y, d)
        for k in range(operands):
            call.operand[k].stride[axis] = stride[k][d]
    for d in range(axis):
        call.size[d] = 1
    if call.op == COPY and call.operand[1].stride[MAX_DIMS - 1] != 1:
        for d in range(axis, MAX_DIMS - 2):
            if call.operand[1].stride[d] == 1:
                exchange_axes(call, d, MAX_DIMS - 2)
    return True


cdef void exchange_axes(Call* call, int i, int j) noexcept:
    """Exchange two axes of a copy, which changes the order of its loops."""
    cdef int k
    call.size[i], call.size[j] = call.size[j], call.size[i]
    for k in range(2):
        call.operand[k].stride[i], call.operand[k].stride[j] = call.operand[k].stride[j], call.operand[k].stride[i]


cdef int broadcast_strides(Call* call, cnp.ndarray a, cnp.ndarray y, Py_ssize_t* stride) except -1:
    """Set the strides of a along the axes of y, 0 where a is repeated. Raise ValueError if a doesn't broadcast to y."""
    cdef int d, first = cnp.PyArray_NDIM(y) - cnp.PyArray_NDIM(a)
    for d in range(first):
        stride[d] = 0
    for d in range(max(first, 0), cnp.PyArray_NDIM(y)):
        if cnp.PyArray_DIM(a, d - first) == cnp.PyArray_DIM(y, d):
            stride[d] = cnp.PyArray_STRIDE(a, d - first) // cnp.PyArray_ITEMSIZE(a)
        elif cnp.PyArray_DIM(a, d - first) == 1:
            stride[d] = 0
        else:
            first = -1
            break
    if first < 0:
        raise ValueError(f"{(<Kernel> call.kernel).name} got shape {get_dims(a)}, which doesn't broadcast to "
                         f"{get_dims(y)}")
    return 0


cdef Kernel COPY_KERNEL = Kernel("copy", op=COPY, work=10)
cdef Kernel FULL_KERNEL = Kernel("full", op=COPY, work=10)


def copy(a, out=None):
    """y = a, repeated along axes where `out` is larger. A new array is in C order."""
    if out is None and isinstance(a, cnp.ndarray):
        real_type("copy", a)
        a = as_readable(a)
        out = empty(cnp.PyArray_NDIM(a), cnp.PyArray_DIMS(a), (<cnp.ndarray> a).descr)
    return elementwise(COPY_KERNEL, out, a)


def full(shape, value, dtype):
    """Return an array of the given shape and dtype with every element = value."""
    return elementwise(FULL_KERNEL, output(shape, np.dtype(dtype)), value)
