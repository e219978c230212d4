# Elementwise kernels: y[i] = f(a[i], b[i], c[i]), broadcast.

cdef cnp.ndarray elementwise(Kernel kernel, object out, object a, object b=None, object c=None,
                             double first=0, double second=0):
    """y = f(a), f(a, b) or f(a, b, c), broadcast to `out`, or without `out` to each other.

    The inputs are arrays or numbers, at least one of them an array. `first` and `second` are the call's scalars.
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
    call.scalar[0], call.scalar[1] = first, second
    bind(&call, 0, y)
    bind(&call, 1, x)
    if inputs > 1:
        bind(&call, 2, z)
    if inputs > 2:
        bind(&call, 3, w)
    launch_broadcast(&call, 1 + inputs)
    return y


cdef tuple elementwise_with_slope(Kernel kernel, object out, object a, bint wanted, double first=0):
    """y = f(a), and the slope f′(a) or None. The slope is the call's last operand, with y's layout in memory.

    `first` is the call's scalar.
    """
    cdef Call call
    cdef cnp.ndarray x = first_array(kernel, a, None, None, None), y, slope
    cdef int real = real_type(kernel.name, x)
    if not wanted:
        return elementwise(kernel, out, a, None, None, first), None
    x = as_readable(x)
    if out is None:
        y = output_like(x)
    else:
        y = check_out(kernel.name, out)
        same_type(kernel.name, x, y)
        x = copy_if_overlapping(x, y)
    slope = output_like(y)
    begin(&call, kernel, real)
    call.op, call.scalar[0] = kernel.op, first
    bind(&call, 0, y)
    bind(&call, 1, x)
    bind(&call, 2, slope)
    launch_broadcast(&call, 3)
    return y, slope


cdef inline cnp.ndarray align_layout(cnp.ndarray a, cnp.ndarray y):
    """The array itself, or a copy with the layout of y if the two arrays are contiguous along different axes.

    Only images are copied: transposing blocks of them in registers is faster than reading single elements."""
    cdef int along, other
    if cnp.PyArray_NDIM(a) < 3 or cnp.PyArray_SIZE(a) < 4096 or not cnp.PyArray_SAMESHAPE(a, y):
        return a
    along, other = contiguous_axis(a), contiguous_axis(y)
    return copy(a, output_like(y)) if 0 <= along != other >= 0 else a


cdef inline int contiguous_axis(cnp.ndarray a) noexcept:
    """The axis along which the array is contiguous; −1 if there is none."""
    cdef int d
    for d in range(cnp.PyArray_NDIM(a) - 1, -1, -1):
        if cnp.PyArray_DIM(a, d) > 1 and cnp.PyArray_STRIDE(a, d) == cnp.PyArray_ITEMSIZE(a):
            return d
    return -1


cdef cnp.ndarray first_array(Kernel kernel, object a, object b, object c, object out):
    """The first of these objects that is an array. TypeError if there is none."""
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
    """An input as an array that loops can read. A number becomes an array of the dtype of `like`."""
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
    number = cnp.PyArray_EMPTY(0, NULL, cnp.PyArray_TYPE(like), 0)
    if real_type(kernel.name, like):      # as asarray does, in a tenth of the time
        (<double*> cnp.PyArray_DATA(number))[0] = a
    else:
        (<float*> cnp.PyArray_DATA(number))[0] = a
    return number


cdef inline cnp.ndarray broadcast_output(Kernel kernel, int inputs, cnp.ndarray a, cnp.ndarray b, cnp.ndarray c):
    """A new array of the inputs' broadcast shape, in the memory order of the first input that has this shape."""
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
    """Whether the array has this shape and repeats no element."""
    cdef int d
    if cnp.PyArray_NDIM(a) != ndim or repeats(a):
        return False
    for d in range(ndim):
        if cnp.PyArray_DIM(a, d) != shape[d]:
            return False
    return True


cdef bint repeats(cnp.ndarray a) noexcept:
    """Whether the array repeats its elements along an axis."""
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
    """Set the strides of a along the axes of y, 0 where a is repeated. ValueError if a doesn't broadcast to y."""
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
    """An array of the given shape and dtype with every element = value."""
    return elementwise(FULL_KERNEL, output(shape, np.dtype(dtype)), value)


# ---- the kernels ----------------------------------------------------------------------------------------------------

cdef Kernel NEGATIVE_KERNEL = Kernel("negative", op=NEGATIVE, work=10)


def negative(a, out=None):
    """y = −a."""
    return elementwise(NEGATIVE_KERNEL, out, a)


cdef Kernel RELU_KERNEL = Kernel("relu", op=RELU, work=10)


def relu(a, out=None):
    """y = max(a, 0); NaN stays NaN."""
    return elementwise(RELU_KERNEL, out, a)


cdef Kernel RELU_GRAD_KERNEL = Kernel("relu_grad", op=RELU_GRAD, work=10)


def relu_grad(dy, y, out=None):
    """dx = dy where y > 0, else 0, with y = relu(x)."""
    return elementwise(RELU_GRAD_KERNEL, out, dy, y)


cdef Kernel LEAKY_RELU_KERNEL = Kernel("leaky_relu", op=LEAKY_RELU, work=10)


def leaky_relu(a, double slope, out=None):
    """y = a where a > 0, else slope · a."""
    return elementwise(LEAKY_RELU_KERNEL, out, a, None, None, slope)


cdef Kernel LEAKY_RELU_GRAD_KERNEL = Kernel("leaky_relu_grad", op=LEAKY_RELU_GRAD, work=10)


def leaky_relu_grad(dy, y, double slope, out=None):
    """dx = dy where y > 0, else slope · dy, with y = leaky_relu(x, slope), slope ≥ 0."""
    return elementwise(LEAKY_RELU_GRAD_KERNEL, out, dy, y, None, slope)


cdef Kernel PRELU_KERNEL = Kernel("prelu", op=PRELU, work=10)


def prelu(a, slope, out=None):
    """y = a where a > 0, else slope · a. The slope is an array that is broadcast to a."""
    return elementwise(PRELU_KERNEL, out, a, slope)


cdef Kernel PRELU_GRAD_KERNEL = Kernel("prelu_grad", op=PRELU_GRAD, work=10)


def prelu_grad(dy, x, slope, out=None):
    """dx = dy where x > 0, else slope · dy, with y = prelu(x, slope)."""
    return elementwise(PRELU_GRAD_KERNEL, out, dy, x, slope)


cdef Kernel ELU_KERNEL = Kernel("elu", op=ELU, work=60)


def elu(a, double alpha, out=None):
    """y = a where a > 0, else alpha (exp a − 1)."""
    return elementwise(ELU_KERNEL, out, a, None, None, alpha)


cdef Kernel ELU_GRAD_KERNEL = Kernel("elu_grad", op=ELU_GRAD, work=10)


def elu_grad(dy, y, double alpha, out=None):
    """dx = dy where y > 0, else dy (y + alpha), with y = elu(x, alpha), alpha ≥ 0."""
    return elementwise(ELU_GRAD_KERNEL, out, dy, y, None, alpha)


cdef Kernel ADD_KERNEL = Kernel("add", op=ADD, work=10)


def add(a, b, out=None):
    """y = a + b, broadcast; either may be a number."""
    return elementwise(ADD_KERNEL, out, a, b)


cdef Kernel SUBTRACT_KERNEL = Kernel("subtract", op=SUBTRACT, work=10)


def subtract(a, b, out=None):
    """y = a − b, broadcast; either may be a number."""
    return elementwise(SUBTRACT_KERNEL, out, a, b)


cdef Kernel MULTIPLY_KERNEL = Kernel("multiply", op=MULTIPLY, work=10)


def multiply(a, b, out=None):
    """y = a · b, broadcast; either may be a number."""
    return elementwise(MULTIPLY_KERNEL, out, a, b)


cdef Kernel DIVIDE_KERNEL = Kernel("divide", op=DIVIDE, work=10)


def divide(a, b, out=None):
    """y = a / b, broadcast; either may be a number. Division by zero gives ±inf or NaN."""
    return elementwise(DIVIDE_KERNEL, out, a, b)


cdef Kernel DIVIDE_GRAD_KERNEL = Kernel("divide_grad", op=DIVIDE_GRAD, work=10)


def divide_grad(da, y, out=None):
    """db = −da y, the gradient of y = a / b, with da = dy / b."""
    return elementwise(DIVIDE_GRAD_KERNEL, out, da, y)


cdef Kernel MAXIMUM_KERNEL = Kernel("maximum", op=MAXIMUM, work=10)


def maximum(a, b, out=None):
    """y = the larger of a and b, broadcast; NaN if either is NaN. Either may be a number."""
    return elementwise(MAXIMUM_KERNEL, out, a, b)


cdef Kernel MAXIMUM_GRAD_KERNEL = Kernel("maximum_grad", op=MAXIMUM_GRAD, work=10)


def maximum_grad(dy, a, b, bint second, out=None):
    """da = dy where maximum(a, b) is a, else 0. If `second`, db = dy where it is b, else 0. If a = b, it is a."""
    return elementwise(MAXIMUM_GRAD_KERNEL, out, dy, a, b, second)


cdef Kernel MINIMUM_KERNEL = Kernel("minimum", op=MINIMUM, work=10)


def minimum(a, b, out=None):
    """y = the smaller of a and b, broadcast; NaN if either is NaN. Either may be a number."""
    return elementwise(MINIMUM_KERNEL, out, a, b)


cdef Kernel MINIMUM_GRAD_KERNEL = Kernel("minimum_grad", op=MINIMUM_GRAD, work=10)


def minimum_grad(dy, a, b, bint second, out=None):
    """da = dy where minimum(a, b) is a, else 0. If `second`, db = dy where it is b, else 0. If a = b, it is a."""
    return elementwise(MINIMUM_GRAD_KERNEL, out, dy, a, b, second)


cdef Kernel EQUAL_KERNEL = Kernel("equal", op=EQUAL, work=10)


def equal(a, b, out=None):
    """y = 1 where a = b, else 0, broadcast; either may be a number."""
    return elementwise(EQUAL_KERNEL, out, a, b)


cdef Kernel WHERE_KERNEL = Kernel("where", op=WHERE, work=10)


def where(condition, a, b, out=None):
    """y = a where the condition is not 0, else b, broadcast. All have one dtype; one at least must be an array."""
    return elementwise(WHERE_KERNEL, out, condition, a, b)


cdef Kernel CLIP_KERNEL = Kernel("clip", op=CLIP, work=10)


def clip(a, double low, double high, out=None):
    """y = min(max(a, low), high); NaN stays NaN."""
    return elementwise(CLIP_KERNEL, out, a, None, None, low, high)


cdef Kernel CLIP_GRAD_KERNEL = Kernel("clip_grad", op=CLIP_GRAD, work=10)


def clip_grad(dy, x, double low, double high, out=None):
    """dx = dy where clip(x, low, high) = x, else 0."""
    return elementwise(CLIP_GRAD_KERNEL, out, dy, x, None, low, high)


cdef Kernel POWER_KERNEL = Kernel("power", op=POWER, work=1000)


def power(a, b, out=None):
    """y = a ** b, broadcast; either may be a number. NaN if a < 0 and b is not an integer."""
    return elementwise(POWER_KERNEL, out, a, b)


cdef Kernel POWER_GRAD_BASE_KERNEL = Kernel("power_grad_base", op=POWER_GRAD_BASE, work=1000)


def power_grad_base(dy, a, b, out=None):
    """da = dy b a ** (b − 1), the gradient of y = a ** b; 0 · dy where b = 0."""
    return elementwise(POWER_GRAD_BASE_KERNEL, out, dy, a, b)


cdef Kernel POWER_GRAD_EXPONENT_KERNEL = Kernel("power_grad_exponent", op=POWER_GRAD_EXPONENT, work=1000)


def power_grad_exponent(dy, a, y, out=None):
    """db = dy y log a, the gradient of y = a ** b; 0 · dy where a = 0 and b ≥ 0."""
    return elementwise(POWER_GRAD_EXPONENT_KERNEL, out, dy, a, y)


cdef Kernel ABS_KERNEL = Kernel("abs", op=ABS, work=10)


def abs(a, out=None):
    """y = |a|."""
    return elementwise(ABS_KERNEL, out, a)


cdef Kernel ABS_GRAD_KERNEL = Kernel("abs_grad", op=ABS_GRAD, work=10)


def abs_grad(dy, x, out=None):
    """dx = dy times the sign of x; 0 where x = 0."""
    return elementwise(ABS_GRAD_KERNEL, out, dy, x)


cdef Kernel SQRT_KERNEL = Kernel("sqrt", op=SQRT, work=10)


def sqrt(a, out=None):
    """y = √a; NaN for a < 0."""
    return elementwise(SQRT_KERNEL, out, a)


cdef Kernel SQRT_GRAD_KERNEL = Kernel("sqrt_grad", op=SQRT_GRAD, work=10)


def sqrt_grad(dy, y, out=None):
    """dx = dy / 2y, with y = sqrt(x)."""
    return elementwise(SQRT_GRAD_KERNEL, out, dy, y)


cdef Kernel EXP_KERNEL = Kernel("exp", op=EXP, work=60)


def exp(a, out=None):
    """y = eᵃ."""
    return elementwise(EXP_KERNEL, out, a)


cdef Kernel LOG_KERNEL = Kernel("log", op=LOG, work=60)


def log(a, out=None):
    """y = ln a, the natural logarithm; −inf for 0, NaN for a < 0."""
    return elementwise(LOG_KERNEL, out, a)


cdef Kernel SIN_KERNEL = Kernel("sin", op=SIN, work=60)


def sin(a, out=None):
    """y = sin a; NaN for ±inf."""
    return elementwise(SIN_KERNEL, out, a)


cdef Kernel SIN_GRAD_KERNEL = Kernel("sin_grad", op=SIN_GRAD, work=60)


def sin_grad(dy, x, out=None):
    """dx = dy cos x."""
    return elementwise(SIN_GRAD_KERNEL, out, dy, x)


cdef Kernel COS_KERNEL = Kernel("cos", op=COS, work=60)


def cos(a, out=None):
    """y = cos a; NaN for ±inf."""
    return elementwise(COS_KERNEL, out, a)


cdef Kernel COS_GRAD_KERNEL = Kernel("cos_grad", op=COS_GRAD, work=60)


def cos_grad(dy, x, out=None):
    """dx = −dy sin x."""
    return elementwise(COS_GRAD_KERNEL, out, dy, x)


cdef Kernel TANH_KERNEL = Kernel("tanh", op=TANH, work=60)


def tanh(a, out=None):
    """y = tanh a."""
    return elementwise(TANH_KERNEL, out, a)


cdef Kernel TANH_GRAD_KERNEL = Kernel("tanh_grad", op=TANH_GRAD, work=10)


def tanh_grad(dy, y, out=None):
    """dx = dy (1 − y²), with y = tanh(x)."""
    return elementwise(TANH_GRAD_KERNEL, out, dy, y)


cdef Kernel SIGMOID_KERNEL = Kernel("sigmoid", op=SIGMOID, work=60)


def sigmoid(a, out=None):
    """y = 1 / (1 + exp(−a))."""
    return elementwise(SIGMOID_KERNEL, out, a)


cdef Kernel SIGMOID_GRAD_KERNEL = Kernel("sigmoid_grad", op=SIGMOID_GRAD, work=10)


def sigmoid_grad(dy, y, out=None):
    """dx = dy y (1 − y), with y = sigmoid(x)."""
    return elementwise(SIGMOID_GRAD_KERNEL, out, dy, y)


cdef Kernel SILU_KERNEL = Kernel("silu", op=SILU, work=60)


def silu(a, out=None):
    """y = a / (1 + exp(−a))."""
    return elementwise(SILU_KERNEL, out, a)


cdef Kernel SILU_GRAD_KERNEL = Kernel("silu_grad", op=SILU_GRAD, work=70)


def silu_grad(dy, x, out=None):
    """dx = dy s (1 + x (1 − s)), with s = sigmoid(x)."""
    return elementwise(SILU_GRAD_KERNEL, out, dy, x)


cdef Kernel MISH_KERNEL = Kernel("mish", op=MISH, work=60)


def mish(a, out=None):
    """y = a tanh(log(1 + exp a))."""
    return elementwise(MISH_KERNEL, out, a)


cdef Kernel MISH_GRAD_KERNEL = Kernel("mish_grad", op=MISH_GRAD, work=80)


def mish_grad(dy, x, out=None):
    """dx = dy (t + x (1 − t²) sigmoid(x)), with t = tanh(log(1 + exp x))."""
    return elementwise(MISH_GRAD_KERNEL, out, dy, x)


cdef Kernel GELU_KERNEL = Kernel("gelu", op=GELU, writes=0b101, work=120)


def gelu(a, out=None, bint slope=True):
    """y = a Φ(a), Φ the normal distribution, and the slope dy/da = Φ(a) + a Φ′(a), Φ′(a) = exp(−a²/2) / √(2π)."""
    return elementwise_with_slope(GELU_KERNEL, out, a, slope)


cdef Kernel GELU_TANH_KERNEL = Kernel("gelu_tanh", op=GELU_TANH, writes=0b101, work=70)


def gelu_tanh(a, out=None, bint slope=True):
    """y = a (1 + tanh u) / 2, u = √(2/π) (a + 0.044715 a³), and the slope dy/da."""
    return elementwise_with_slope(GELU_TANH_KERNEL, out, a, slope)


cdef Kernel FOCAL_KERNEL = Kernel("focal", op=FOCAL, writes=0b101, work=200)


def focal(a, double gamma, out=None, bint slope=True):
    """y = pᵞ a, p = 1 − exp(−a), a ≥ 0, and the slope dy/da = pᵞ (1 + γ exp(−a) a / p)."""
    return elementwise_with_slope(FOCAL_KERNEL, out, a, slope, gamma)


cdef Kernel SOFTPLUS_KERNEL = Kernel("softplus", op=SOFTPLUS, work=130)


def softplus(a, out=None):
    """y = log(1 + exp a)."""
    return elementwise(SOFTPLUS_KERNEL, out, a)


cdef Kernel SOFTPLUS_GRAD_KERNEL = Kernel("softplus_grad", op=SOFTPLUS_GRAD, work=60)


def softplus_grad(dy, x, out=None):
    """dx = dy sigmoid(x)."""
    return elementwise(SOFTPLUS_GRAD_KERNEL, out, dy, x)


cdef Kernel PENALTY_KERNEL = Kernel("penalty", op=PENALTY, work=10)


def penalty(a, double l1, double l2, out=None):
    """y = l1 |a| + l2 a² / 2."""
    return elementwise(PENALTY_KERNEL, out, a, None, None, l1, l2)


cdef Kernel PENALTY_GRAD_KERNEL = Kernel("penalty_grad", op=PENALTY_GRAD, work=10)


def penalty_grad(dy, x, double l1, double l2, out=None):
    """dx = dy (l1 sign(x) + l2 x), dy broadcast."""
    return elementwise(PENALTY_GRAD_KERNEL, out, dy, x, None, l1, l2)
