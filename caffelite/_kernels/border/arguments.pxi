# Arguments: what they have to be, and how a call is bound to them.
#
# Arrays may have any strides; one that loops cannot read as it lies (byte-swapped, unaligned, strides that are no whole
# number of elements) is replaced by its plain copy, and so is one with strides where a loop wants contiguous rows.

cdef cnp.dtype int64 = np.dtype(np.int64), float64 = np.dtype(np.float64)


cdef inline int real_type(str name, cnp.ndarray a) except -1:
    """0 for float32, 1 for float64: which of a kernel's loops."""
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
    if is_recording():
        raise TypeError(f"kernels can't read an array of {a.dtype}, strides {(<object> a).strides}, and a step that "
                        "is being recorded can't convert it: give it aligned, in native byte order, and not in float16")
    return np.array(a, dtype=dtype, order="C")


cdef inline cnp.ndarray readable(cnp.ndarray a):
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
    """The array itself where it is readable and C-contiguous, else a copy, made by a kernel."""
    a = readable(a)
    if cnp.PyArray_IS_C_CONTIGUOUS(a):
        return a
    return copy(a)


cdef inline cnp.ndarray writable(str name, cnp.ndarray out):
    if not cnp.PyArray_ISBEHAVED(out) or readable(out) is not out:
        raise ValueError(f"{name} needs a writeable, aligned `out` in native byte order")
    return out


cdef size_t size_of_call = sizeof(Call)    # a variable: GCC clears a constant size three times as slowly


cdef inline void begin(Call* call, Kernel kernel, int type) noexcept:
    """Make a call of a kernel, all zero but for the loop it runs for this type."""
    memset(call, 0, size_of_call)
    call.kernel = <void*> kernel
    call.loop = kernel.loop[type]


cdef inline void bind(Call* call, int operand, cnp.ndarray a) noexcept:
    """Bind an array whose elements a loop finds without strides."""
    call.operand[operand].data = <char*> cnp.PyArray_DATA(a)
    call.operand[operand].array = <void*> a


cdef inline void bind_matrix(Call* call, int operand, cnp.ndarray a) noexcept:
    """Bind an array with the strides of its last two axes, rows first."""
    cdef int d, first = cnp.PyArray_NDIM(a) - 2
    bind(call, operand, a)
    for d in range(2):
        call.operand[operand].stride[d] = cnp.PyArray_STRIDE(a, first + d) // cnp.PyArray_ITEMSIZE(a)


cdef inline cnp.ndarray unaliased(cnp.ndarray a, cnp.ndarray out):
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


def address(cnp.ndarray array not None):
    """Where the array's first element lies in memory."""
    return <Py_ssize_t> cnp.PyArray_DATA(array)


def alike(a, cnp.ndarray b not None):
    """Whether a is an array of b's shape and dtype."""
    return (isinstance(a, cnp.ndarray) and cnp.PyArray_SAMESHAPE(a, b)
            and cnp.PyArray_EquivTypes((<cnp.ndarray> a).descr, b.descr))


cpdef cnp.ndarray output(tuple shape, cnp.dtype dtype):
    """A new array for a kernel's output, its elements not yet set."""
    cdef cnp.npy_intp lengths[NUMPY_MAX_DIMS]
    cdef int d
    for d in range(len(shape)):
        lengths[d] = shape[d]
    return empty(len(shape), lengths, dtype)


# ---- the order of axes in memory ----
#
# Images come as (n, C, H, W), and lie as the convolution that made them wrote them: in C order, images last, or
# channels last. Elementwise kernels, dropout and BatchNorm give their output the order of their input, NumPy's order
# "K", so that it is kept from one convolution to the next, and operands that lie alike are one run of neighbours.
# `copy` and `convert` give C order, which is what they are called for.

cdef tuple memory_order(cnp.ndarray a):
    """The axes of an array from outermost to innermost in memory; in C order where it repeats elements."""
    cdef int axes[NUMPY_MAX_DIMS]
    order_axes(a, axes)
    return tuple([axes[d] for d in range(cnp.PyArray_NDIM(a))])


cdef cnp.ndarray output_ordered(tuple shape, cnp.dtype dtype, tuple order):
    """A new array for a kernel's output, its axes in this order in memory, the innermost last."""
    cdef cnp.npy_intp lengths[NUMPY_MAX_DIMS]
    cdef int axes[NUMPY_MAX_DIMS]
    cdef int d
    for d in range(len(shape)):
        lengths[d], axes[d] = shape[d], order[d]
    return empty_ordered(len(shape), lengths, axes, dtype)


cpdef cnp.ndarray output_like(cnp.ndarray a):
    """A new array for a kernel's output: of the shape, the dtype and the memory order of another."""
    cdef int axes[NUMPY_MAX_DIMS]
    cdef cnp.dtype dtype = a.descr if cnp.PyArray_ISNOTSWAPPED(a) else a.descr.newbyteorder("=")
    if cnp.PyArray_IS_C_CONTIGUOUS(a):
        return empty(cnp.PyArray_NDIM(a), cnp.PyArray_DIMS(a), dtype)
    order_axes(a, axes)
    return empty_ordered(cnp.PyArray_NDIM(a), cnp.PyArray_DIMS(a), axes, dtype)


cdef int order_axes(cnp.ndarray a, int* axes) noexcept:
    """Put the axes of an array into their order in memory: by strides, the largest first.

    An axis of length 1 whose stride says nothing, 0, stays behind the axis before it.
    """
    cdef Py_ssize_t key[NUMPY_MAX_DIMS]
    cdef int ndim = cnp.PyArray_NDIM(a), d, k
    for d in range(ndim):
        axes[d] = d
    if cnp.PyArray_IS_C_CONTIGUOUS(a):
        return 0
    for d in range(ndim):
        key[d] = cnp.PyArray_STRIDE(a, d)
        if key[d] == 0 and cnp.PyArray_DIM(a, d) > 1:
            return 0
        if key[d] == 0:
            key[d] = key[d - 1] if d > 0 else INTPTR_MAX
        elif key[d] < 0:
            key[d] = -key[d]
    for d in range(1, ndim):              # few axes, mostly in order: by insertion
        k = d
        while k > 0 and key[axes[k - 1]] < key[d]:
            axes[k] = axes[k - 1]
            k -= 1
        axes[k] = d
    return 0


cdef bint is_in_c_order(cnp.ndarray a) noexcept:
    """Whether its axes are in C order in memory, gaps or not."""
    cdef int axes[NUMPY_MAX_DIMS]
    cdef int d
    order_axes(a, axes)
    for d in range(cnp.PyArray_NDIM(a)):
        if axes[d] != d:
            return False
    return True


cdef bint leaves_no_gaps(cnp.ndarray a, const int* axes) noexcept:
    """Whether its elements, its axes in this order in memory, follow each other."""
    cdef Py_ssize_t stride = cnp.PyArray_ITEMSIZE(a)
    cdef int d
    for d in range(cnp.PyArray_NDIM(a) - 1, -1, -1):
        if cnp.PyArray_DIM(a, axes[d]) > 1 and cnp.PyArray_STRIDE(a, axes[d]) != stride:
            return False
        stride *= cnp.PyArray_DIM(a, axes[d])
    return True


cdef cnp.ndarray laid_as(cnp.ndarray x, cnp.ndarray a):
    """The array itself where it lies as x does, which is of its shape and leaves no gaps; else a copy that does."""
    cdef int d
    for d in range(cnp.PyArray_NDIM(a)):
        if cnp.PyArray_DIM(a, d) > 1 and cnp.PyArray_STRIDE(a, d) != cnp.PyArray_STRIDE(x, d):
            return copy(a, output_like(x))
    return a


cdef cnp.ndarray empty_ordered(int ndim, cnp.npy_intp* shape, const int* axes, cnp.dtype dtype):
    """As `empty`, the axes in this order in memory."""
    cdef cnp.npy_intp strides[NUMPY_MAX_DIMS]
    cdef size_t stride = dtype.itemsize   # of an array without elements it may be beyond all numbers, and means nothing
    cdef int d
    for d in range(ndim - 1, -1, -1):
        strides[axes[d]] = <cnp.npy_intp> stride
        stride *= <size_t> max(shape[axes[d]], 1)
    return empty_strided(ndim, shape, strides, dtype)


cdef inline bint is_int64(cnp.ndarray a) noexcept:
    """Whether it holds integers of 64 bits, by whichever of their names in C."""
    return cnp.PyArray_ISSIGNED(a) and cnp.PyArray_ISINTEGER(a) and cnp.PyArray_ITEMSIZE(a) == 8


cdef tuple shape_of(cnp.ndarray a):
    return (<object> a).shape


cdef int require_vector(str name, cnp.ndarray a, int type_num, Py_ssize_t size) except -1:
    """TypeError unless a is of this type, ValueError unless it is a contiguous vector of this size."""
    if cnp.PyArray_TYPE(a) != type_num and not (type_num == cnp.NPY_INT64 and is_int64(a)):
        raise TypeError(f"{name} expected {cnp.PyArray_DescrFromType(type_num)}, got {a.dtype}")
    if (cnp.PyArray_NDIM(a) != 1 or cnp.PyArray_SIZE(a) != size or not cnp.PyArray_IS_C_CONTIGUOUS(a)
            or not cnp.PyArray_ISBEHAVED_RO(a)):
        raise ValueError(f"{name} expected a contiguous vector of {size} elements, got shape {shape_of(a)}")
    return 0
