"""The border: what Python calls. Every function checks its arguments, binds them to a `Call`, runs it, and notes it
if this thread is recording.

Arrays may have any strides; one that loops cannot read as it lies (byte-swapped, unaligned, strides that are no whole
number of elements) is replaced by its plain copy, and so is one with strides where a loop wants contiguous rows.
Every function returns a new array unless it is given `out`.
"""
cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.float cimport DBL_MAX, FLT_MAX

import operator
from functools import partial

import numpy as np

from caffelite._kernels.call cimport *
from caffelite._kernels.tape cimport NUMPY_MAX_DIMS, empty, launch
from caffelite._kernels.tape import recorder, require

cnp.import_array()

cdef extern from *:
    """
    static int processor_runs(const char *isa)
    {
    #if defined(__x86_64__)
        int v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
        int v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
                 && __builtin_cpu_supports("bmi2");
        int v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
                 && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq")
                 && __builtin_cpu_supports("avx512vl");
        if (!strcmp(isa, "x86-64-v4")) return v4;
        if (!strcmp(isa, "x86-64-v3")) return v3;
        if (!strcmp(isa, "x86-64-v2")) return v2;
    #endif
        return !strcmp(isa, "generic");
    }
    """
    bint processor_runs(const char* isa)

cdef Loops loops


def runs(str isa):
    """Whether this processor runs the instruction set: "x86-64-v2", "x86-64-v3", "x86-64-v4" or "generic"."""
    return bool(processor_runs(isa.encode()))


def use_loops(capsule):
    """Take the loops to run from a capsule that `loops()` of one of the compiled `loops_*` modules made."""
    global loops
    loops = (<Loops*> PyCapsule_GetPointer(capsule, "caffelite.loops"))[0]


# ---- arguments -----------------------------------------------------------------------------------------------------

cdef inline int real_type(str name, cnp.ndarray a) except -1:
    """0 for float32, 1 for float64: the index into the table of loops."""
    cdef int type_num = cnp.PyArray_TYPE(a)
    if type_num == cnp.NPY_FLOAT32:
        return 0
    if type_num == cnp.NPY_FLOAT64:
        return 1
    raise TypeError(f"{name} computes in float32 or float64, got {a.dtype}")


cdef inline int same_type(str name, cnp.ndarray a, cnp.ndarray b) except -1:
    if cnp.PyArray_TYPE(a) != cnp.PyArray_TYPE(b):
        raise TypeError(f"{name} got {a.dtype} and {b.dtype}; both must be float32 or both float64")
    return 0


cdef cnp.ndarray copied(cnp.ndarray a, dtype):
    """NumPy's copy of an array that no loop reads; TypeError in a recorded step, whose replay would not make it."""
    if recorder() is not None:
        raise TypeError(f"kernels can't read an array of {a.dtype}, strides {(<object> a).strides}, and a step that "
                        "is being recorded can't convert it: give it aligned, in native byte order, and not in float16")
    return np.array(a, dtype=dtype, order="C")


cdef inline cnp.ndarray plain(cnp.ndarray a):
    """The array itself where loops can read it as it lies, else its copy."""
    cdef int d
    if cnp.PyArray_IS_C_CONTIGUOUS(a) and cnp.PyArray_ISBEHAVED_RO(a):
        return a
    if cnp.PyArray_ISBEHAVED_RO(a):
        for d in range(cnp.PyArray_NDIM(a)):
            if cnp.PyArray_STRIDE(a, d) % cnp.PyArray_ITEMSIZE(a) != 0:
                break
        else:
            return a
    return copied(a, a.dtype.newbyteorder("="))


cdef inline cnp.ndarray contiguous(cnp.ndarray a):
    """The array itself where it is plain and C-contiguous, else a copy, made by a kernel."""
    a = plain(a)
    if cnp.PyArray_IS_C_CONTIGUOUS(a):
        return a
    return copy(a)


cdef inline cnp.ndarray writable(str name, cnp.ndarray out):
    if not cnp.PyArray_ISBEHAVED(out) or plain(out) is not out:
        raise ValueError(f"{name} needs a writeable, aligned `out` in native byte order")
    return out


cdef inline int bind(Call* call, int operand, cnp.ndarray a) except -1:
    """Bind an array of at most MAX_DIMS axes, its strides first axis first."""
    cdef int d
    call.operand[operand].data = <char*> cnp.PyArray_DATA(a)
    for d in range(cnp.PyArray_NDIM(a)):
        call.operand[operand].stride[d] = cnp.PyArray_STRIDE(a, d) // cnp.PyArray_ITEMSIZE(a)
    return 0


cdef inline cnp.ndarray apart(cnp.ndarray a, cnp.ndarray out):
    """The array itself, or its copy if writing `out`, element by element, would change what is still to be read."""
    return copy(a) if a is not out and overlap(a, out) and not lie_alike(a, out) else a


cdef inline bint lie_alike(cnp.ndarray a, cnp.ndarray b) noexcept:
    """Whether two arrays of one dtype have each element at the same place."""
    cdef int d
    if cnp.PyArray_DATA(a) != cnp.PyArray_DATA(b) or cnp.PyArray_NDIM(a) != cnp.PyArray_NDIM(b):
        return False
    for d in range(cnp.PyArray_NDIM(a)):
        if cnp.PyArray_DIM(a, d) != cnp.PyArray_DIM(b, d) or cnp.PyArray_STRIDE(a, d) != cnp.PyArray_STRIDE(b, d):
            return False
    return True


cdef inline bint overlap(cnp.ndarray a, cnp.ndarray b) noexcept:
    """Whether the bytes from the first to the last element of one are among those of the other."""
    cdef Py_ssize_t begin_a, end_a, begin_b, end_b
    extent(a, &begin_a, &end_a)
    extent(b, &begin_b, &end_b)
    return begin_a < end_b and begin_b < end_a


cdef inline void extent(cnp.ndarray a, Py_ssize_t* begin, Py_ssize_t* end) noexcept:
    cdef int d
    cdef Py_ssize_t reach
    begin[0] = <Py_ssize_t> cnp.PyArray_DATA(a)
    end[0] = begin[0] + cnp.PyArray_ITEMSIZE(a)
    for d in range(cnp.PyArray_NDIM(a)):
        if cnp.PyArray_DIM(a, d) == 0:
            begin[0] = end[0] = 0
            return
        reach = (cnp.PyArray_DIM(a, d) - 1) * cnp.PyArray_STRIDE(a, d)
        if reach < 0:
            begin[0] += reach
        else:
            end[0] += reach


cpdef cnp.ndarray output(tuple shape, cnp.dtype dtype):
    """A new array for a kernel's output, its elements not yet set."""
    cdef cnp.npy_intp lengths[NUMPY_MAX_DIMS]
    cdef int d
    for d in range(len(shape)):
        lengths[d] = shape[d]
    return empty(len(shape), lengths, dtype)


cdef tuple shape_of(cnp.ndarray a):
    return (<object> a).shape


cdef int require_vector(str name, cnp.ndarray a, int type_num, Py_ssize_t size) except -1:
    """TypeError unless a is of this type, ValueError unless it is a contiguous vector of this size."""
    if cnp.PyArray_TYPE(a) != type_num:
        raise TypeError(f"{name} expected {cnp.PyArray_DescrFromType(type_num)}, got {a.dtype}")
    if (cnp.PyArray_NDIM(a) != 1 or cnp.PyArray_SIZE(a) != size or not cnp.PyArray_IS_C_CONTIGUOUS(a)
            or not cnp.PyArray_ISBEHAVED_RO(a)):
        raise ValueError(f"{name} expected a contiguous vector of {size} elements, got shape {shape_of(a)}")
    return 0


# ---- elementwise ---------------------------------------------------------------------------------------------------

cdef cnp.ndarray operand_of(str name, object a, object b, object out):
    """The argument a of an elementwise function as a plain array; a number takes the dtype of the other arrays."""
    cdef cnp.ndarray number
    cdef int real
    if isinstance(a, cnp.ndarray):
        return plain(<cnp.ndarray> a)
    like = b if isinstance(b, cnp.ndarray) else out
    if not isinstance(like, cnp.ndarray):
        raise TypeError(f"{name} needs an array, got {type(a).__name__} and {type(b).__name__}")
    real = real_type(name, <cnp.ndarray> like)
    if not isinstance(a, float):
        return np.asarray(a, dtype=np.float64 if real else np.float32)
    number = cnp.PyArray_EMPTY(0, NULL, cnp.NPY_FLOAT64 if real else cnp.NPY_FLOAT32, 0)
    if real:                              # what asarray does, in a tenth of the time
        (<double*> cnp.PyArray_DATA(number))[0] = a
    else:
        (<float*> cnp.PyArray_DATA(number))[0] = a
    return number


cdef cnp.ndarray elementwise(str name, Op op, object a, object b, object out):
    """y = op(a, b), broadcast to `out`, or to each other where there is none. One argument: b is None."""
    cdef Call call
    cdef cnp.ndarray x = operand_of(name, a, b, out), z = x if b is None else operand_of(name, b, a, out), y
    cdef cnp.npy_intp shape[NUMPY_MAX_DIMS]
    cdef int real = real_type(name, x), ndim, d, i, constants
    cdef Py_ssize_t size = 1

    same_type(name, x, z)
    if out is not None:
        y = writable(name, out)
        same_type(name, x, y)
        x = apart(x, y)
        z = x if b is None else apart(z, y)
    else:
        ndim = max(cnp.PyArray_NDIM(x), cnp.PyArray_NDIM(z))
        for d in range(ndim):
            shape[d] = 1
        widen(name, shape, ndim, x, z)
        widen(name, shape, ndim, z, x)
        y = empty(ndim, shape, x.dtype)

    call.op = op
    call.accumulate = op == PUT_WHERE     # which reads what it writes
    call.loop = loops.elementwise[real]
    if not bind_broadcast(name, &call, y, x, z):     # too many axes for one call: one call for each entry of the first
        x, z = np.broadcast_to(x, shape_of(y)), np.broadcast_to(z, shape_of(y))
        for i in range(cnp.PyArray_DIM(y, 0)):
            elementwise(name, op, x[i] if isinstance(a, cnp.ndarray) else a,
                        z[i] if isinstance(b, cnp.ndarray) else b, y[i])
        return y
    for d in range(MAX_DIMS):
        size *= call.size[d]
    call.parts = size if size == call.size[3] else size // call.size[3]
    call.work = work_of(op) * size
    constants = (not isinstance(a, cnp.ndarray)) << 1 | (b is not None and not isinstance(b, cnp.ndarray)) << 2
    launch(name, &call, 1, constants, y, x, None if b is None else z)
    return y


cdef double work_of(Op op):
    """An element's work."""
    if op in (POWER, POWER_GRAD_BASE, POWER_GRAD_EXPONENT):
        return 1000
    return 60 if op in (EXP, LOG, TANH, SIGMOID) else 10


cdef int widen(str name, cnp.npy_intp* shape, int ndim, cnp.ndarray a, cnp.ndarray b) except -1:
    """Put the axes of a, aligned at the last one, into the broadcast shape."""
    cdef int d, first = ndim - cnp.PyArray_NDIM(a)
    cdef cnp.npy_intp n
    for d in range(first, ndim):
        n = cnp.PyArray_DIM(a, d - first)
        if n != 1:
            if shape[d] != 1 and shape[d] != n:
                raise ValueError(f"{name} got shapes {shape_of(b)} and {shape_of(a)}, which don't broadcast")
            shape[d] = n
    return 0


cdef tuple broadcast_shape(str name, list arrays):
    """The shape that arrays broadcast to; ValueError where they don't."""
    cdef cnp.npy_intp shape[NUMPY_MAX_DIMS]
    cdef cnp.ndarray a
    cdef int ndim = 0, d
    for a in arrays:
        ndim = max(ndim, cnp.PyArray_NDIM(a))
    for d in range(ndim):
        shape[d] = 1
    for a in arrays:
        widen(name, shape, ndim, a, arrays[0])
    return tuple([shape[d] for d in range(ndim)])


cdef bint bind_broadcast(str name, Call* call, cnp.ndarray y, cnp.ndarray a, cnp.ndarray b) except -1:
    """Bind y and its inputs over as few axes as their strides allow; False if MAX_DIMS are not enough."""
    cdef Py_ssize_t stride[3][NUMPY_MAX_DIMS]
    cdef int ndim = cnp.PyArray_NDIM(y), d, i, axis = MAX_DIMS
    cdef bint merges
    bind_strides(name, y, y, &call.operand[0], stride[0])
    bind_strides(name, a, y, &call.operand[1], stride[1])
    bind_strides(name, b, y, &call.operand[2], stride[2])

    for d in range(ndim - 1, -1, -1):
        if cnp.PyArray_DIM(y, d) == 1:
            continue
        merges = axis < MAX_DIMS
        if merges:
            for i in range(3):
                merges = merges and stride[i][d] == call.operand[i].stride[axis] * call.size[axis]
        if merges:
            call.size[axis] *= cnp.PyArray_DIM(y, d)
            continue
        axis -= 1
        if axis < 0:
            return False
        call.size[axis] = cnp.PyArray_DIM(y, d)
        for i in range(3):
            call.operand[i].stride[axis] = stride[i][d]
    for d in range(axis):
        call.size[d] = 1
        for i in range(3):
            call.operand[i].stride[d] = 0
    return True


cdef int bind_strides(str name, cnp.ndarray a, cnp.ndarray y, Operand* operand, Py_ssize_t* stride) except -1:
    """The strides of a along the axes of y; 0 where a is repeated. ValueError where it doesn't broadcast to y."""
    cdef int d, first = cnp.PyArray_NDIM(y) - cnp.PyArray_NDIM(a)
    operand.data = <char*> cnp.PyArray_DATA(a)
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
        raise ValueError(f"{name} got shape {shape_of(a)}, which doesn't broadcast to {shape_of(y)}")
    return 0


def copy(a, out=None):
    """y = a, repeated along broadcast axes where `out` is larger."""
    return elementwise("copy", COPY, a, None, out)


# What can be converted, and to what: the index into the table of loops.
cdef dict SOURCES = {
    np.dtype(np.bool_): BOOL, np.dtype(np.float32): FLOAT32, np.dtype(np.float64): FLOAT64,
    np.dtype(np.int8): INT8, np.dtype(np.int16): INT16, np.dtype(np.int32): INT32, np.dtype(np.int64): INT64,
    np.dtype(np.uint8): UINT8, np.dtype(np.uint16): UINT16, np.dtype(np.uint32): UINT32, np.dtype(np.uint64): UINT64,
}
cdef dict TARGETS = {np.dtype(np.float32): 0, np.dtype(np.float64): 1, np.dtype(np.int64): 2}


def convert(cnp.ndarray a not None, dtype):
    """y = a in float32 or float64, a being bool, integers of any width, float32 or float64; or integers in int64.

    What int64 does not hold (uint64 of 2⁶³ or more) becomes negative. Only outside recorded steps: float16.
    """
    cdef cnp.dtype to = np.dtype(dtype)
    cdef cnp.ndarray out
    a = copied(a, np.float32) if cnp.PyArray_TYPE(a) == cnp.NPY_FLOAT16 else plain(a)
    if to not in TARGETS or a.dtype not in SOURCES or (to == np.int64 and a.dtype.kind not in "iu"):
        raise TypeError(f"convert makes float32 or float64 of real numbers, int64 of integers; not {to} of {a.dtype}")
    out = output(shape_of(a), to)
    convert_into(out, a, TARGETS[to], SOURCES[a.dtype])
    return out


cdef int convert_into(cnp.ndarray out, cnp.ndarray a, int target, Type source) except -1:
    cdef Call call
    cdef int d
    if not bind_broadcast("convert", &call, out, a, a):       # too many axes for one call
        for d in range(cnp.PyArray_DIM(out, 0)):
            convert_into(out[d], a[d], target, source)
        return 0
    call.loop = loops.convert[target]
    call.accumulate = False
    call.source = source
    call.parts = cnp.PyArray_SIZE(out)
    call.work = 10.0 * call.parts
    launch("convert", &call, 1, 0, out, a)
    return 0


def full(shape, value, dtype):
    """An array of the given shape and dtype with every element = value."""
    return elementwise("full", COPY, value, None, output(shape, np.dtype(dtype)))


def negative(a, out=None):
    """y = −a."""
    return elementwise("negative", NEGATIVE, a, None, out)


def relu(a, out=None):
    """y = max(a, 0); NaN stays NaN."""
    return elementwise("relu", RELU, a, None, out)


def relu_grad(dy, y, out=None):
    """dx = dy where y > 0, else 0, with y = relu(x)."""
    return elementwise("relu_grad", RELU_GRAD, dy, y, out)


def add(a, b, out=None):
    """y = a + b, broadcast; either may be a number."""
    return elementwise("add", ADD, a, b, out)


def subtract(a, b, out=None):
    """y = a − b, broadcast; either may be a number."""
    return elementwise("subtract", SUBTRACT, a, b, out)


def multiply(a, b, out=None):
    """y = a · b, broadcast; either may be a number."""
    return elementwise("multiply", MULTIPLY, a, b, out)


def divide(a, b, out=None):
    """y = a / b, broadcast; either may be a number. Division by zero gives ±inf or NaN."""
    return elementwise("divide", DIVIDE, a, b, out)


def maximum(a, b, out=None):
    """y = the larger of a and b, broadcast, NaN where one of them is; either may be a number."""
    return elementwise("maximum", MAXIMUM, a, b, out)


def minimum(a, b, out=None):
    """y = the smaller of a and b, broadcast, NaN where one of them is; either may be a number."""
    return elementwise("minimum", MINIMUM, a, b, out)


def equal(a, b, out=None):
    """y = 1 where a = b, else 0, broadcast; either may be a number."""
    return elementwise("equal", EQUAL, a, b, out)


def where(cnp.ndarray condition not None, a, b):
    """y = a where the condition, of their dtype, is not 0, else b, broadcast; a and b may be numbers."""
    real_type("where", condition)
    arrays = [condition] + [x for x in (a, b) if isinstance(x, cnp.ndarray)]
    out = output(broadcast_shape("where", arrays), condition.dtype.newbyteorder("="))
    elementwise("where", COPY, b, None, out)
    return elementwise("where", PUT_WHERE, a, condition, out)


def power(a, b, out=None):
    """y = a ** b, broadcast; either may be a number. NaN for a < 0 and b not whole."""
    return elementwise("power", POWER, a, b, out)


def power_grad_base(a, b, out=None):
    """d(a ** b) / da = b a ** (b − 1), and 0 where b = 0."""
    return elementwise("power_grad_base", POWER_GRAD_BASE, a, b, out)


def power_grad_exponent(a, y, out=None):
    """d(a ** b) / db = y log a with y = a ** b, and 0 where a = 0 and b ≥ 0."""
    return elementwise("power_grad_exponent", POWER_GRAD_EXPONENT, a, y, out)


def abs(a, out=None):
    """y = |a|."""
    return elementwise("abs", ABS, a, None, out)


def abs_grad(dy, x, out=None):
    """dx = dy with the sign of x, 0 where x = 0."""
    return elementwise("abs_grad", ABS_GRAD, dy, x, out)


def sqrt(a, out=None):
    """y = √a; NaN for a < 0."""
    return elementwise("sqrt", SQRT, a, None, out)


def sqrt_grad(dy, y, out=None):
    """dx = dy / 2y, with y = sqrt(x)."""
    return elementwise("sqrt_grad", SQRT_GRAD, dy, y, out)


def exp(a, out=None):
    """y = eᵃ."""
    return elementwise("exp", EXP, a, None, out)


def log(a, out=None):
    """y = ln a, the natural logarithm; −inf for 0, NaN for a < 0."""
    return elementwise("log", LOG, a, None, out)


def tanh(a, out=None):
    """y = tanh a."""
    return elementwise("tanh", TANH, a, None, out)


def tanh_grad(dy, y, out=None):
    """dx = dy (1 − y²), with y = tanh(x)."""
    return elementwise("tanh_grad", TANH_GRAD, dy, y, out)


def sigmoid(a, out=None):
    """y = 1 / (1 + exp(−a))."""
    return elementwise("sigmoid", SIGMOID, a, None, out)


def sigmoid_grad(dy, y, out=None):
    """dx = dy y (1 − y), with y = sigmoid(x)."""
    return elementwise("sigmoid_grad", SIGMOID_GRAD, dy, y, out)


# ---- matrix product ------------------------------------------------------------------------------------------------

def matmul(cnp.ndarray a not None, cnp.ndarray b not None, cnp.ndarray out=None, *,
           cnp.ndarray bias=None, bint accumulate=False):
    """y = a b (+ bias): a (M, K), b (K, N), bias (N,) → (M, N), added to what `out` holds when accumulating.

    ValueError for shapes that don't fit, TypeError for dtypes that differ or are not float32 or float64.
    """
    cdef Call call
    cdef cnp.npy_intp shape[2]
    cdef int real = real_type("matmul", a)

    same_type("matmul", a, b)
    if cnp.PyArray_NDIM(a) != 2 or cnp.PyArray_NDIM(b) != 2 or cnp.PyArray_DIM(a, 1) != cnp.PyArray_DIM(b, 0):
        raise ValueError(f"matmul got shapes {shape_of(a)} and {shape_of(b)}; expected (M, K) and (K, N)")
    a, b = plain(a), plain(b)
    shape[0], shape[1] = cnp.PyArray_DIM(a, 0), cnp.PyArray_DIM(b, 1)
    if bias is not None:
        same_type("matmul", a, bias)
        if cnp.PyArray_NDIM(bias) != 1 or cnp.PyArray_DIM(bias, 0) != shape[1]:
            raise ValueError(f"matmul got a bias of shape {shape_of(bias)}; expected ({shape[1]},)")
        bias = contiguous(bias)
    if out is None:
        if accumulate:
            raise ValueError("matmul accumulates into `out`, which was not given")
        out = empty(2, shape, a.dtype)
    else:
        out = writable("matmul", out)
        same_type("matmul", a, out)
        if cnp.PyArray_NDIM(out) != 2 or cnp.PyArray_DIM(out, 0) != shape[0] or cnp.PyArray_DIM(out, 1) != shape[1]:
            raise ValueError(f"matmul got an `out` of shape {shape_of(out)}; expected ({shape[0]}, {shape[1]})")
        if overlap(out, a) or overlap(out, b) or (bias is not None and overlap(out, bias)):
            raise ValueError("matmul can't write its result into one of its operands")
        if accumulate and cnp.PyArray_DIM(a, 1) > loops.longest_accumulated:
            return add(out, matmul(a, b, bias=bias), out)

    call.loop = loops.matmul[real]
    bind(&call, 0, out)
    bind(&call, 1, a)
    bind(&call, 2, b)
    call.operand[3].data = NULL
    call.operand[4].data = NULL           # a mask, which a fused ReLU's gradient brings
    if bias is not None:
        bind(&call, 3, bias)
    call.size[0], call.size[1], call.size[2] = shape[0], shape[1], cnp.PyArray_DIM(a, 1)
    call.accumulate = accumulate
    call.relu = False
    call.parts = max(shape[0], shape[1])
    call.work = 2.0 * shape[0] * shape[1] * call.size[2]
    launch("matmul", &call, 1, 0, out, a, b, bias)
    return out


def matmul_stack(cnp.ndarray a not None, cnp.ndarray b not None, cnp.ndarray out=None):
    """y[i] = a[i] b[i]: a (n, M, K), b (n, K, N) → (n, M, N). Errors as of `matmul`."""
    cdef Call call
    cdef int real = real_type("matmul_stack", a), i
    cdef tuple shape

    same_type("matmul_stack", a, b)
    if (cnp.PyArray_NDIM(a) != 3 or cnp.PyArray_NDIM(b) != 3 or cnp.PyArray_DIM(a, 0) != cnp.PyArray_DIM(b, 0)
            or cnp.PyArray_DIM(a, 2) != cnp.PyArray_DIM(b, 1)):
        raise ValueError(f"matmul_stack got shapes {shape_of(a)} and {shape_of(b)}; expected (n, M, K) and (n, K, N)")
    a, b = plain(a), plain(b)
    shape = (cnp.PyArray_DIM(a, 0), cnp.PyArray_DIM(a, 1), cnp.PyArray_DIM(b, 2))
    if out is None:
        out = output(shape, a.dtype)
    else:
        out = writable("matmul_stack", out)
        same_type("matmul_stack", a, out)
        if shape_of(out) != shape or overlap(out, a) or overlap(out, b):
            raise ValueError(f"matmul_stack needs an `out` of shape {shape}, none of its operands, got {shape_of(out)}")

    call.loop = loops.matmul_stack[real]
    for i, operand in enumerate((out, a, b)):
        bind_matrices(&call, i, operand)
    call.operand[3].data = call.operand[4].data = NULL
    call.size[0], call.size[1], call.size[2] = shape[1], shape[2], cnp.PyArray_DIM(a, 2)
    call.accumulate = call.relu = False
    call.parts = shape[0]
    call.work = shape[0] * (100.0 + 2.0 * shape[1] * shape[2] * call.size[2])
    launch("matmul_stack", &call, 1, 0, out, a, b)
    return out


cdef int bind_matrices(Call* call, int operand, cnp.ndarray a) except -1:
    """Bind a stack of matrices: strides 0 and 1 are the matrices', 2 leads from one to the next."""
    cdef int d
    bind(call, operand, a)
    cdef Py_ssize_t stride = call.operand[operand].stride[0]
    for d in range(2):
        call.operand[operand].stride[d] = call.operand[operand].stride[d + 1]
    call.operand[operand].stride[2] = stride
    return 0


# ---- reductions ----------------------------------------------------------------------------------------------------

def sum(cnp.ndarray a not None, axis=None, bint keepdims=False, *,
        double scale=1.0, cnp.ndarray out=None, bint accumulate=False):
    """y = scale · Σ a over an axis, a tuple of axes, or all of them, added to what `out` holds when accumulating.

    ValueError for an axis that does not exist or is named twice, or for an `out` of another shape.
    """
    cdef Call call
    cdef int real = real_type("sum", a)
    cdef tuple given = shape_of(a), axes = checked_axes("sum", axis, len(given)), shape = reduced(given, axes, keepdims)

    a = ordered(a, side_by_side(&call, given, axes))
    if out is None:
        if accumulate:
            raise ValueError("sum accumulates into `out`, which was not given")
        out = output(shape, a.dtype)
    else:
        out = writable("sum", out)
        same_type("sum", a, out)
        if shape_of(out) != shape or not cnp.PyArray_IS_C_CONTIGUOUS(out):
            raise ValueError(f"sum got an `out` of shape {shape_of(out)}; expected {shape}, contiguous")
        a = copy(a) if overlap(a, out) else a

    call.loop = loops.sum[real]
    call.operand[0].data = <char*> cnp.PyArray_DATA(out)
    call.operand[1].data = <char*> cnp.PyArray_DATA(a)
    call.scalar = scale
    call.accumulate = accumulate
    call.parts = call.size[0] * call.size[2]
    call.work = 6.0 * cnp.PyArray_SIZE(a)
    launch("sum", &call, 1, 0, out, a)
    return out


def largest(cnp.ndarray a not None, axis=None, bint keepdims=False):
    """The largest element over an axis, a tuple of axes, or all of them; NaN where one is.

    Returns y, and for each element of it where in the reduced axes, in C order, it stands first: what `extreme_grad`
    needs. ValueError as for `sum`, and for the largest of no elements.
    """
    return extreme("largest", 1, a, axis, keepdims)


def smallest(cnp.ndarray a not None, axis=None, bint keepdims=False):
    """The smallest element, as `largest`."""
    return extreme("smallest", -1, a, axis, keepdims)


cdef tuple extreme(str name, double sign, cnp.ndarray a, axis, bint keepdims):
    cdef Call call
    cdef int real = real_type(name, a)
    cdef tuple given = shape_of(a), axes = checked_axes(name, axis, len(given)), shape = reduced(given, axes, keepdims)
    cdef cnp.ndarray out, first

    a = ordered(a, side_by_side(&call, given, axes))
    call.parts = call.size[0] * call.size[2]
    if call.parts > 0 and call.size[1] == 0:
        raise ValueError(f"{name} of no elements: shape {given}, axis {axis}")
    out, first = output(shape, a.dtype), output(shape, np.dtype(np.int64))
    call.loop = loops.extreme[real]
    call.accumulate = False
    call.operand[0].data = <char*> cnp.PyArray_DATA(out)
    call.operand[1].data = <char*> cnp.PyArray_DATA(first)
    call.operand[2].data = <char*> cnp.PyArray_DATA(a)
    call.scalar = sign
    call.work = 50.0 * cnp.PyArray_SIZE(a)
    launch(name, &call, 0b11, 0, out, first, a)
    return out, first


def extreme_grad(cnp.ndarray dy not None, cnp.ndarray first not None, tuple shape, axis=None):
    """dx, of this shape, = dy where `largest` or `smallest` over `axis` found its element first, else 0."""
    cdef Call call
    cdef int real = real_type("extreme_grad", dy)
    cdef tuple axes = checked_axes("extreme_grad", axis, len(shape))
    cdef tuple order = side_by_side(&call, shape, axes)
    cdef cnp.ndarray out

    call.parts = call.size[0] * call.size[2]
    if (cnp.PyArray_TYPE(first) != cnp.NPY_INT64 or not cnp.PyArray_IS_C_CONTIGUOUS(first)
            or not cnp.PyArray_ISBEHAVED_RO(first)):
        raise TypeError(f"extreme_grad takes the `first` of largest or smallest, got {first.dtype}")
    if cnp.PyArray_SIZE(dy) != call.parts or cnp.PyArray_SIZE(first) != call.parts:
        raise ValueError(f"extreme_grad got dy of shape {shape_of(dy)} and first of shape {shape_of(first)}; expected "
                         f"{reduced(shape, axes, False)}")
    dy = contiguous(dy)
    out = output(shape if order is None else tuple([shape[d] for d in order]), dy.dtype)
    call.loop = loops.extreme_grad[real]
    call.accumulate = False
    call.operand[0].data = <char*> cnp.PyArray_DATA(out)
    call.operand[1].data = <char*> cnp.PyArray_DATA(dy)
    call.operand[2].data = <char*> cnp.PyArray_DATA(first)
    call.work = 10.0 * cnp.PyArray_SIZE(out)
    if launch("extreme_grad", &call, 1, 0, out, dy, first) != CONTINUE:
        raise IndexError(f"extreme_grad got a place that is not in 0 … {call.size[1] - 1}")
    return in_place_again(out, order)


cdef tuple checked_axes(str name, axis, int ndim):
    """The axes that are meant, counted from 0; ValueError for one that does not exist or is named twice."""
    cdef tuple axes
    if axis is None:
        return tuple(range(ndim))
    axes = tuple([normalized_axis(one, ndim) for one in (axis if isinstance(axis, tuple) else (axis,))])
    if len(set(axes)) < len(axes):
        raise ValueError(f"{name} got the axes {axis}, one of them twice")
    return axes


cdef tuple reduced(tuple shape, tuple axes, bint keepdims):
    """The shape that a reduction over these axes leaves."""
    return tuple([1 if d in axes else n for d, n in enumerate(shape) if keepdims or d not in axes])


cdef tuple side_by_side(Call* call, tuple shape, tuple axes):
    """The order of an array's axes that has the given ones at the end; None where they are side by side as it is.

    In that order, the number of elements before, along and after them becomes the call's size.
    """
    cdef tuple order = None
    cdef int d, part = 0 if axes else 2
    if axes and max(axes) - min(axes) >= len(axes):
        order = tuple([d for d in range(len(shape)) if d not in axes]) + tuple(sorted(axes))
    call.size[0] = call.size[1] = call.size[2] = 1
    for d in order or range(len(shape)):
        if d in axes:
            part = 1
        elif part == 1:
            part = 2
        call.size[part] *= shape[d]
    return order


cdef cnp.ndarray ordered(cnp.ndarray a, tuple order):
    """The array with its axes in this order, contiguous."""
    return contiguous(a if order is None else a.transpose(order))


cdef cnp.ndarray in_place_again(cnp.ndarray a, tuple order):
    """A view of what has its axes in this order, with every axis where it was before."""
    return a if order is None else a.transpose([order.index(d) for d in range(len(order))])


cdef normalized_axis(axis, int ndim):
    if isinstance(axis, bool):
        raise TypeError(f"an axis is an integer, got {axis}")
    axis = operator.index(axis)
    if not -ndim <= axis < ndim:
        raise ValueError(f"there is no axis {axis} in an array of {ndim} axes")
    return axis % ndim


def all_finite(cnp.ndarray a not None):
    """Whether no element is infinite or NaN. In a recorded step, an element that is stops the replay."""
    cdef Call call
    call.loop = loops.all_finite[real_type("all_finite", a)]
    a = contiguous(a)
    call.operand[0].data = <char*> cnp.PyArray_DATA(a)
    call.size[0] = cnp.PyArray_SIZE(a)
    call.parts = 1
    call.work = 5.0 * call.size[0]
    call.accumulate = False
    return launch("all_finite", &call, 0, 0, a) == CONTINUE


# ---- softmax -------------------------------------------------------------------------------------------------------

def softmax(cnp.ndarray a not None, axis=-1):
    """y = exp a / Σ exp a along an axis."""
    return along_rows("softmax", loops.softmax, 130, axis, a, None)


def softmax_grad(cnp.ndarray dy not None, cnp.ndarray y not None, axis=-1):
    """dx = y (dy − Σ dy y) along an axis, with y = softmax(x)."""
    return along_rows("softmax_grad", loops.softmax_grad, 50, axis, dy, y)


def log_softmax(cnp.ndarray a not None, axis=-1):
    """y = a − log Σ exp a along an axis."""
    return along_rows("log_softmax", loops.log_softmax, 130, axis, a, None)


def log_softmax_grad(cnp.ndarray dy not None, cnp.ndarray y not None, axis=-1):
    """dx = dy − exp y Σ dy along an axis, with y = log_softmax(x)."""
    return along_rows("log_softmax_grad", loops.log_softmax_grad, 80, axis, dy, y)


cdef cnp.ndarray along_rows(str name, Loop* loop, double work, axis, cnp.ndarray a, cnp.ndarray b):
    """Run a loop over rows with the axis as the last one; the result has it at its place again."""
    cdef Call call
    cdef int real = real_type(name, a), last = normalized_axis(axis, cnp.PyArray_NDIM(a))
    cdef tuple order = None
    cdef cnp.ndarray out
    if last < cnp.PyArray_NDIM(a) - 1:
        order = tuple([d for d in range(cnp.PyArray_NDIM(a)) if d != last]) + (last,)

    if b is not None:
        same_type(name, a, b)
        if shape_of(a) != shape_of(b):
            raise ValueError(f"{name} got shapes {shape_of(a)} and {shape_of(b)}; both must be the same")
        b = ordered(b, order)
        call.operand[2].data = <char*> cnp.PyArray_DATA(b)
    a = ordered(a, order)
    out = output(shape_of(a), a.dtype)
    call.loop = loop[real]
    call.accumulate = False
    call.operand[0].data = <char*> cnp.PyArray_DATA(out)
    call.operand[1].data = <char*> cnp.PyArray_DATA(a)
    call.size[1] = cnp.PyArray_DIM(a, cnp.PyArray_NDIM(a) - 1)
    call.size[0] = call.parts = cnp.PyArray_SIZE(a) // (call.size[1] or 1)
    call.work = work * cnp.PyArray_SIZE(a)
    launch(name, &call, 1, 0, out, a, b)
    return in_place_again(out, order)


# ---- softmax loss --------------------------------------------------------------------------------------------------

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
    p = empty(2, cnp.PyArray_DIMS(scores), scores.dtype)
    rows = empty(1, cnp.PyArray_DIMS(scores), scores.dtype)

    call.loop = loops.softmax_loss[real]
    call.accumulate = False
    call.operand[0].data = <char*> cnp.PyArray_DATA(p)
    call.operand[1].data = <char*> cnp.PyArray_DATA(scores)
    call.operand[2].data = <char*> cnp.PyArray_DATA(labels)
    call.operand[3].data = <char*> cnp.PyArray_DATA(rows)
    call.size[0], call.size[1] = cnp.PyArray_DIM(scores, 0), cnp.PyArray_DIM(scores, 1)
    call.scalar = FLT_MAX if real == 0 else DBL_MAX
    call.parts = call.size[0]
    call.work = 150.0 * call.size[0] * call.size[1]
    if launch("softmax_loss", &call, 0b1001, 0, p, scores, labels, rows) != CONTINUE:
        raise IndexError(f"softmax_loss got a label that is not in 0 … {call.size[1] - 1}")
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
    out = empty(2, cnp.PyArray_DIMS(probabilities), probabilities.dtype)

    call.loop = loops.softmax_loss_grad[real]
    call.accumulate = False
    call.operand[0].data = <char*> cnp.PyArray_DATA(out)
    call.operand[1].data = <char*> cnp.PyArray_DATA(probabilities)
    call.operand[2].data = <char*> cnp.PyArray_DATA(labels)
    call.operand[3].data = <char*> cnp.PyArray_DATA(dy)
    call.size[0], call.size[1] = cnp.PyArray_DIM(out, 0), cnp.PyArray_DIM(out, 1)
    call.parts = call.size[0]
    call.work = 10.0 * call.size[0] * call.size[1]
    if launch("softmax_loss_grad", &call, 1, 0, out, probabilities, labels, dy) != CONTINUE:
        raise IndexError(f"softmax_loss_grad got a label that is not in 0 … {call.size[1] - 1}")
    return out


cdef cnp.ndarray checked_labels(str name, cnp.ndarray labels, Py_ssize_t rows):
    if cnp.PyArray_TYPE(labels) != cnp.NPY_INT64:
        raise TypeError(f"{name} takes int64 labels, got {labels.dtype}")
    if cnp.PyArray_NDIM(labels) != 1 or (rows >= 0 and cnp.PyArray_DIM(labels, 0) != rows):
        raise ValueError(f"{name} got labels of shape {shape_of(labels)}"
                         + (f"; expected ({rows},)" if rows >= 0 else "; expected one axis"))
    return labels if cnp.PyArray_IS_C_CONTIGUOUS(labels) and cnp.PyArray_ISBEHAVED_RO(labels) \
        else convert(labels, np.int64)


def check_labels(cnp.ndarray labels not None, Py_ssize_t classes):
    """The first row whose label is not in 0 … classes − 1, or −1. In a recorded step, such a row stops the replay."""
    cdef Call call
    cdef cnp.ndarray first = output((), np.dtype(np.int64))
    labels = checked_labels("check_labels", labels, -1)
    call.loop = loops.check_labels
    call.accumulate = False
    call.operand[0].data = <char*> cnp.PyArray_DATA(first)
    call.operand[1].data = <char*> cnp.PyArray_DATA(labels)
    call.size[0], call.size[1] = cnp.PyArray_DIM(labels, 0), classes
    call.parts = 1
    call.work = 50.0 * call.size[0]
    launch("check_labels", &call, 1, 0, first, labels)
    return (<cnp.int64_t*> cnp.PyArray_DATA(first))[0]


# ---- indexing ------------------------------------------------------------------------------------------------------

def ravel_index(tuple lengths, *indices):
    """Where in an array of these lengths, in C order, the elements with these numbers along its axes stand; int64.

    An index is an array of integers or a number; they are broadcast to each other. Negative ones count from the end.
    IndexError for one that is out of bounds. In a recorded step, such a one stops the replay.
    """
    cdef list arrays = [as_indices(index) for index in indices]
    cdef cnp.ndarray out
    cdef Py_ssize_t i
    if len(arrays) != len(lengths) or not arrays:
        raise ValueError(f"ravel_index got {len(arrays)} indices for the lengths {lengths}")
    for i in range(len(arrays)):          # a number is out of bounds even if there is nothing to take
        if isinstance(indices[i], int) and not -lengths[i] <= indices[i] < lengths[i]:
            refuse_index(lengths[i], arrays[i])
    try:
        out = output(broadcast_shape("ravel_index", arrays), np.dtype(np.int64))
    except ValueError:
        shapes = ", ".join([str(shape_of(a)) for a in arrays])
        raise IndexError(f"index arrays of shapes {shapes} don't broadcast") from None
    for i in range(len(arrays)):
        add_index(out, arrays[i], lengths[i], i > 0, not isinstance(indices[i], cnp.ndarray))
    return out


cdef cnp.ndarray as_indices(object index):
    """Integers as int64."""
    cdef cnp.ndarray a = plain(index) if isinstance(index, cnp.ndarray) else np.asarray(index, dtype=np.int64)
    if cnp.PyArray_TYPE(a) == cnp.NPY_INT64:
        return a
    return convert(a, np.int64)


cdef int add_index(cnp.ndarray out, cnp.ndarray index, Py_ssize_t length, bint accumulate, bint constant) except -1:
    """out = index, or out · length + index when accumulating."""
    cdef Call call
    cdef int d
    if not bind_broadcast("ravel_index", &call, out, index, index):      # too many axes for one call
        index = np.broadcast_to(index, shape_of(out))
        for d in range(cnp.PyArray_DIM(out, 0)):
            add_index(out[d], index[d], length, accumulate, constant)
        return 0
    call.loop = loops.ravel_index
    call.accumulate = accumulate
    call.scalar = length
    call.parts = call.size[0] * call.size[1] * call.size[2]
    call.work = 30.0 * cnp.PyArray_SIZE(out)
    stop = launch("ravel_index", &call, 1, constant << 1, out, index)
    require(stop == CONTINUE, partial(refuse_index, length), index)
    return 0


def refuse_index(length, index):
    """Raise IndexError for the first index that is not in −length … length − 1."""
    index = index.view(np.ndarray)
    bad = index[(index < -length) | (index >= length)][0]
    raise IndexError(f"index {bad} is out of bounds for an axis of length {length}")


def take(cnp.ndarray rows not None, cnp.ndarray order not None, cnp.ndarray out=None):
    """out[i] = rows[order[i]]: rows (n, …) contiguous, of any dtype but object; order (m,) int64 → (m, …).

    IndexError for an entry of `order` that is not in 0 … n − 1.
    """
    cdef Call call
    cdef tuple shape
    if rows.dtype.hasobject:
        raise TypeError(f"take copies bytes, which {rows.dtype} does not allow")
    if cnp.PyArray_NDIM(rows) == 0 or not cnp.PyArray_IS_C_CONTIGUOUS(rows):
        raise ValueError(f"take needs contiguous rows, got shape {shape_of(rows)}")
    order = checked_labels("take", order, -1)
    shape = (cnp.PyArray_SIZE(order),) + shape_of(rows)[1:]
    if out is None:
        out = output(shape, rows.dtype)
    elif out.dtype != rows.dtype:
        raise TypeError(f"take got an `out` of {out.dtype} for rows of {rows.dtype}")
    elif shape_of(out) != shape or not cnp.PyArray_IS_C_CONTIGUOUS(writable("take", out)):
        raise ValueError(f"take got an `out` of shape {shape_of(out)}; expected {shape}, contiguous")
    elif overlap(out, rows) or overlap(out, order):
        raise ValueError("take can't write its result into one of its operands")

    call.loop = loops.take
    call.accumulate = False
    call.operand[0].data = <char*> cnp.PyArray_DATA(out)
    call.operand[1].data = <char*> cnp.PyArray_DATA(rows)
    call.operand[2].data = <char*> cnp.PyArray_DATA(order)
    call.size[0] = cnp.PyArray_DIM(rows, 0)
    call.size[1] = cnp.PyArray_NBYTES(out) // max(cnp.PyArray_SIZE(order), 1)
    call.parts = cnp.PyArray_SIZE(order)
    call.work = 60.0 * call.parts + 2.0 * cnp.PyArray_NBYTES(out)
    if launch("take", &call, 1, 0, out, rows, order) != CONTINUE:
        refuse_row("take", order, call.size[0])
    return out


def take_grad(cnp.ndarray dy not None, cnp.ndarray order not None, Py_ssize_t rows):
    """dx[order[i]] += dy[i], the others 0: dy (m, …), order (m,) int64 → (rows, …). IndexError as for `take`."""
    cdef Call call
    cdef int real = real_type("take_grad", dy)
    cdef cnp.ndarray out
    if cnp.PyArray_NDIM(dy) == 0 or rows < 0:
        raise ValueError(f"take_grad got dy of shape {shape_of(dy)} and {rows} rows")
    dy, order = contiguous(dy), checked_labels("take_grad", order, cnp.PyArray_DIM(dy, 0))
    out = output((rows,) + shape_of(dy)[1:], dy.dtype)
    call.loop = loops.take_grad[real]
    call.accumulate = False
    call.operand[0].data = <char*> cnp.PyArray_DATA(out)
    call.operand[1].data = <char*> cnp.PyArray_DATA(dy)
    call.operand[2].data = <char*> cnp.PyArray_DATA(order)
    call.size[0], call.size[2] = rows, cnp.PyArray_SIZE(order)
    call.size[1] = call.parts = cnp.PyArray_SIZE(out) // max(rows, 1)
    call.work = 10.0 * (cnp.PyArray_SIZE(out) + cnp.PyArray_SIZE(dy))
    if launch("take_grad", &call, 1, 0, out, dy, order) != CONTINUE:
        refuse_row("take_grad", order, rows)
    return out


cdef int refuse_row(str name, cnp.ndarray order, Py_ssize_t rows) except -1:
    cdef Py_ssize_t i = 0
    while 0 <= order[i] < rows:
        i += 1
    raise IndexError(f"{name} got the row {order[i]} at {i}; there are {rows} rows")


# ---- updates -------------------------------------------------------------------------------------------------------

def sgd(cnp.ndarray w not None, cnp.ndarray g not None, cnp.ndarray v, cnp.ndarray hyper not None):
    """One step of SGD, in place: v ← μ v + g + λ w, w ← w − η v (Nesterov: w ← w − η (g + λ w + μ v)).

    w, g and v are flat vectors of one size and dtype, v is None without momentum; hyper is (η, μ, λ, Nesterov) in
    float64, read at each run.
    """
    cdef Call call
    cdef int real = real_type("sgd", w)
    cdef cnp.ndarray a
    for a in (w, g, w if v is None else v):
        require_vector("sgd", a, cnp.PyArray_TYPE(w), cnp.PyArray_SIZE(w))
    require_vector("sgd", hyper, cnp.NPY_FLOAT64, 4)

    call.loop = loops.sgd[real]
    call.accumulate = True
    call.operand[0].data = <char*> cnp.PyArray_DATA(writable("sgd", w))
    call.operand[1].data = <char*> cnp.PyArray_DATA(g)
    call.operand[2].data = NULL if v is None else <char*> cnp.PyArray_DATA(writable("sgd", v))
    call.operand[3].data = <char*> cnp.PyArray_DATA(hyper)
    call.size[0] = cnp.PyArray_SIZE(w)
    call.parts = call.size[0]
    call.work = 40.0 * call.size[0]
    launch("sgd", &call, 0b0101, 0, w, g, v, hyper)


def count_steps(cnp.ndarray steps not None):
    """t ← t + 1 in every row (elements, t) of `steps`, float64."""
    cdef Call call
    require_steps("count_steps", steps)
    call.loop = loops.count_steps
    call.accumulate = True
    call.operand[0].data = <char*> cnp.PyArray_DATA(writable("count_steps", steps))
    call.size[0] = call.work = cnp.PyArray_DIM(steps, 0)
    call.parts = 1
    launch("count_steps", &call, 1, 0, steps)


def adam(cnp.ndarray w not None, cnp.ndarray g not None, cnp.ndarray moments not None, cnp.ndarray steps not None,
         cnp.ndarray hyper not None, bint decoupled=False):
    """One step of Adam, in place: with g' = g + λ w,

        m ← β₁ m + (1 − β₁) g',  v ← β₂ v + (1 − β₂) g'²,  w ← w − η (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)

    or, with decoupled decay, g' = g and w ← w − η λ w − ….

    w and g are flat vectors of one size and dtype; moments (2, size) has m and v as its rows. steps has a row
    (elements, t) for each of the parameters that make up w, in float64; t begins at 1. hyper is (η, β₁, β₂, ε, λ) in
    float64. Both are read at each run.
    """
    cdef Call call
    cdef int real = real_type("adam", w)
    cdef Py_ssize_t size = cnp.PyArray_SIZE(w)
    cdef double elements = require_steps("adam", steps)
    require_vector("adam", w, cnp.PyArray_TYPE(w), size)
    require_vector("adam", g, cnp.PyArray_TYPE(w), size)
    require_vector("adam", hyper, cnp.NPY_FLOAT64, 5)
    same_type("adam", w, moments)
    if (cnp.PyArray_NDIM(moments) != 2 or cnp.PyArray_DIM(moments, 0) != 2 or cnp.PyArray_DIM(moments, 1) != size
            or (size > 1 and cnp.PyArray_STRIDE(moments, 1) != cnp.PyArray_ITEMSIZE(moments))):
        raise ValueError(f"adam expected moments of shape (2, {size}), rows contiguous, got shape {shape_of(moments)}")
    if elements != size:
        raise ValueError(f"adam got steps of {elements:.0f} elements for a w of {size}")

    call.loop = loops.adam[real]
    call.accumulate = True
    bind(&call, 2, writable("adam", moments))
    call.operand[0].data = <char*> cnp.PyArray_DATA(writable("adam", w))
    call.operand[1].data = <char*> cnp.PyArray_DATA(g)
    call.operand[3].data = <char*> cnp.PyArray_DATA(steps)
    call.operand[4].data = <char*> cnp.PyArray_DATA(hyper)
    call.size[0], call.size[1], call.size[2] = size, cnp.PyArray_DIM(steps, 0), decoupled
    call.parts = size
    call.work = 40.0 * size
    launch("adam", &call, 0b00101, 0, w, g, moments, steps, hyper)


cdef double require_steps(str name, cnp.ndarray steps) except -1:
    """How many elements the rows (elements, t) speak of; TypeError or ValueError unless they are such rows."""
    cdef double elements = 0
    cdef Py_ssize_t p
    if cnp.PyArray_TYPE(steps) != cnp.NPY_FLOAT64:
        raise TypeError(f"{name} expected steps in float64, got {steps.dtype}")
    if (cnp.PyArray_NDIM(steps) != 2 or cnp.PyArray_DIM(steps, 1) != 2 or not cnp.PyArray_IS_C_CONTIGUOUS(steps)
            or not cnp.PyArray_ISBEHAVED_RO(steps)):
        raise ValueError(f"{name} expected contiguous steps of shape (parameters, 2), got shape {shape_of(steps)}")
    for p in range(cnp.PyArray_DIM(steps, 0)):
        elements += (<double*> cnp.PyArray_DATA(steps))[2 * p]
    return elements


# ---- batches -------------------------------------------------------------------------------------------------------

def shuffle(cnp.ndarray order not None, cnp.ndarray state not None):
    """Put `order`, int64 (n,), into a new random order in place, drawing from `state`, four uint64, which moves on."""
    cdef Call call
    require_vector("shuffle", order, cnp.NPY_INT64, cnp.PyArray_SIZE(order))
    require_vector("shuffle", state, cnp.NPY_UINT64, 4)
    call.loop = loops.shuffle
    call.accumulate = True
    call.operand[0].data = <char*> cnp.PyArray_DATA(writable("shuffle", order))
    call.operand[1].data = <char*> cnp.PyArray_DATA(writable("shuffle", state))
    call.size[0] = cnp.PyArray_SIZE(order)
    call.parts = 1
    call.work = 300.0 * call.size[0]
    launch("shuffle", &call, 0b11, 0, order, state)


# ---- epochs ------------------------------------------------------------------------------------------------------
#
# A recorded step finds its batch, and what it measures goes, through a cursor in memory (call.pxd). So another epoch,
# or other data, need no other recording.

CURSOR = np.dtype([(name, np.intp) for name in ("columns", "order", "position", "measured", "sums")])


cdef cnp.ndarray require_cursor(str name, cursor):
    if not isinstance(cursor, cnp.ndarray) or cursor.dtype != CURSOR or cursor.size != 1:
        raise TypeError(f"{name} expected a cursor, one element of dtype CURSOR, got {cursor!r}")
    return writable(name, cursor)


def take_batch(cursor, Py_ssize_t column, out):
    """out[i] = column[order[position + i]], the columns being those that the cursor points to."""
    cdef Call call
    cursor = require_cursor("take_batch", cursor)
    require_contiguous("take_batch", out)
    call.loop = loops.take_batch
    call.accumulate = False
    call.operand[0].data = <char*> cnp.PyArray_DATA(out)
    call.operand[1].data = <char*> cnp.PyArray_DATA(cursor)
    call.size[0], call.size[1] = column, cnp.PyArray_NBYTES(out) // max(cnp.PyArray_DIM(out, 0), 1)
    call.parts = cnp.PyArray_DIM(out, 0)
    call.work = 60.0 * call.parts + 2.0 * cnp.PyArray_NBYTES(out)
    launch("take_batch", &call, 1, 0, out, cursor)


def put_batch(cursor, Py_ssize_t column, cnp.ndarray batch not None):
    """column[measured + i] = batch[i]: keep the rows of a batch behind those of the epoch's batches before it."""
    cdef Call call
    cursor = require_cursor("put_batch", cursor)
    if cnp.PyArray_NDIM(batch) == 0:
        raise ValueError("put_batch takes rows, got shape ()")
    if not cnp.PyArray_IS_C_CONTIGUOUS(batch):
        batch = copy(batch)
    call.loop = loops.put_batch
    call.accumulate = True
    call.operand[0].data = <char*> cnp.PyArray_DATA(cursor)
    call.operand[1].data = <char*> cnp.PyArray_DATA(batch)
    call.size[0], call.size[2] = column, cnp.PyArray_DIM(batch, 0)
    call.size[1] = cnp.PyArray_NBYTES(batch) // max(call.size[2], 1)
    call.parts = 1
    call.work = 2.0 * cnp.PyArray_NBYTES(batch)
    launch("put_batch", &call, 1, 0, cursor, batch)


def advance(cursor, Py_ssize_t rows):
    """Move the cursor on by so many rows, which have been measured."""
    cdef Call call
    cursor = require_cursor("advance", cursor)
    call.loop = loops.advance
    call.accumulate = True                # reads what it writes
    call.operand[0].data = <char*> cnp.PyArray_DATA(cursor)
    call.size[0] = rows
    call.parts = 1
    call.work = 1
    launch("advance", &call, 1, 0, cursor)


def add_mean(cursor, Py_ssize_t slot, cnp.ndarray value not None, Py_ssize_t rows):
    """Add to sums[slot] a single element that is the mean over so many rows."""
    cdef Call call
    cursor = require_cursor("add_mean", cursor)
    value = single("add_mean", value)
    call.loop = loops.add_mean[real_type("add_mean", value)]
    call.accumulate = True
    call.operand[0].data = <char*> cnp.PyArray_DATA(cursor)
    call.operand[1].data = <char*> cnp.PyArray_DATA(value)
    call.size[0], call.size[1] = slot, rows
    call.parts = 1
    call.work = 1
    launch("add_mean", &call, 1, 0, cursor, value)


def add_weighted_mean(cursor, Py_ssize_t slot, cnp.ndarray value not None, cnp.ndarray weights not None):
    """Add to sums[slot] a single element that is the mean over rows with these weights, (n,)."""
    cdef Call call
    cdef int real = real_type("add_weighted_mean", weights)
    cursor = require_cursor("add_weighted_mean", cursor)
    value = single("add_weighted_mean", value)
    same_type("add_weighted_mean", value, weights)
    require_vector("add_weighted_mean", weights, cnp.PyArray_TYPE(weights), cnp.PyArray_SIZE(weights))
    call.loop = loops.add_weighted_mean[real]
    call.accumulate = True
    call.operand[0].data = <char*> cnp.PyArray_DATA(cursor)
    call.operand[1].data = <char*> cnp.PyArray_DATA(value)
    call.operand[2].data = <char*> cnp.PyArray_DATA(weights)
    call.size[0], call.size[1] = slot, cnp.PyArray_SIZE(weights)
    call.parts = 1
    call.work = call.size[1]
    launch("add_weighted_mean", &call, 1, 0, cursor, value, weights)


def add_correct(cursor, Py_ssize_t slot, cnp.ndarray outputs not None, cnp.ndarray labels not None):
    """Add to sums[slot] the rows of `outputs` (n, C) whose first largest element is at the label (n,); with C = 1,
    those whose label is 1 and whose element is above 0, or neither."""
    cdef Call call
    cursor = require_cursor("add_correct", cursor)
    if cnp.PyArray_NDIM(outputs) != 2:
        raise ValueError(f"add_correct got outputs of shape {shape_of(outputs)}; expected (n, C)")
    outputs, labels = contiguous(outputs), checked_labels("add_correct", labels, cnp.PyArray_DIM(outputs, 0))
    call.loop = loops.add_correct[real_type("add_correct", outputs)]
    call.accumulate = True
    call.operand[0].data = <char*> cnp.PyArray_DATA(cursor)
    call.operand[1].data = <char*> cnp.PyArray_DATA(outputs)
    call.operand[2].data = <char*> cnp.PyArray_DATA(labels)
    call.size[0], call.size[1], call.size[2] = slot, cnp.PyArray_DIM(outputs, 0), cnp.PyArray_DIM(outputs, 1)
    call.parts = 1
    call.work = 100.0 * cnp.PyArray_SIZE(outputs)
    launch("add_correct", &call, 1, 0, cursor, outputs, labels)


cdef cnp.ndarray single(str name, cnp.ndarray value):
    if cnp.PyArray_SIZE(value) != 1:
        raise ValueError(f"{name} takes a single element, got shape {shape_of(value)}")
    return plain(value)


cdef int require_contiguous(str name, cnp.ndarray out) except -1:
    if cnp.PyArray_NDIM(out) == 0 or not cnp.PyArray_IS_C_CONTIGUOUS(writable(name, out)):
        raise ValueError(f"{name} needs contiguous rows to write to, got shape {shape_of(out)}")
    return 0
