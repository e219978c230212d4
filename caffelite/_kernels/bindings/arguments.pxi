# Arguments: the checks, and how arrays are bound to a call.
#
# Arrays may have any strides. Loops cannot read some arrays: byte-swapped ones, unaligned ones, and those with a stride
# that is not a multiple of the element size. Such an array is replaced by a copy. If a loop needs contiguous rows, an
# array with strides is copied too.

cdef cnp.dtype int64 = np.dtype(np.int64), float64 = np.dtype(np.float64)


cdef inline int type_number(cnp.ndarray a) noexcept:
    """Return NumPy's number of a dtype. A longdouble of 64 bits, as on Windows and on Macs with ARM, is a float64."""
    cdef int number = cnp.PyArray_TYPE(a)
    return cnp.NPY_FLOAT64 if number == cnp.NPY_LONGDOUBLE and cnp.PyArray_ITEMSIZE(a) == 8 else number


cdef inline int real_type(str name, cnp.ndarray a) except -1:
    """Return which of a kernel's loops to run: 0 for float32, 1 for float64."""
    cdef int type_num = type_number(a)
    if type_num == cnp.NPY_FLOAT32:
        return 0
    if type_num == cnp.NPY_FLOAT64:
        return 1
    raise TypeError(f"{name} computes in float32 or float64, got {a.dtype}")


cdef inline int same_type(str name, cnp.ndarray a, cnp.ndarray b) except -1:
    if type_number(a) != type_number(b):
        raise TypeError(f"{name} got {a.dtype} and {b.dtype}; both must be float32 or both float64")
    return 0


cdef cnp.ndarray numpy_copy(cnp.ndarray a, dtype):
    """NumPy's copy of an array that loops cannot read. TypeError in a recorded step: a replay would not copy."""
    if is_recording():
        raise TypeError(f"kernels can't read an array of {a.dtype}, strides {(<object> a).strides}, and a step that "
                        "is being recorded can't convert it: give it aligned, in native byte order, and not in float16")
    return np.array(a, dtype=dtype, order="C")


cdef inline cnp.ndarray as_readable(cnp.ndarray a):
    """Return the array itself if loops can read it without a copy, else a copy."""
    cdef int d
    if cnp.PyArray_IS_C_CONTIGUOUS(a) and cnp.PyArray_ISBEHAVED_RO(a):
        return a
    if cnp.PyArray_ISBEHAVED_RO(a):
        for d in range(cnp.PyArray_NDIM(a)):
            if cnp.PyArray_STRIDE(a, d) % cnp.PyArray_ITEMSIZE(a) != 0:
                break
        else:
            return a
    return numpy_copy(a, a.dtype.newbyteorder("="))


cdef inline cnp.ndarray as_contiguous(cnp.ndarray a):
    """Return the array itself if it is readable and C-contiguous, else a copy, made by a kernel."""
    a = as_readable(a)
    if cnp.PyArray_IS_C_CONTIGUOUS(a):
        return a
    return copy(a)


cdef inline cnp.ndarray check_out(str name, cnp.ndarray out):
    if not cnp.PyArray_ISBEHAVED(out) or as_readable(out) is not out:
        raise ValueError(f"{name} needs a writeable, aligned `out` in native byte order")
    return out


cdef cnp.ndarray as_output(str name, cnp.ndarray out, tuple shape, cnp.ndarray like, bint accumulate=False):
    """Return `out`, or a new array. Raise an error unless `out` is contiguous, of this shape and of the dtype."""
    if out is None:
        if accumulate:
            raise ValueError(f"{name} accumulates into `out`, which was not given")
        return output(shape, like.descr)
    same_type(name, like, out)
    if get_dims(out) != shape or not cnp.PyArray_IS_C_CONTIGUOUS(check_out(name, out)):
        raise ValueError(f"{name} got an `out` of shape {get_dims(out)}; expected {shape}, contiguous")
    return out


cdef size_t size_of_call = sizeof(Call)    # a variable, since GCC takes three times as long to clear a constant size


cdef inline void begin(Call* call, Kernel kernel, int type) noexcept:
    """Begin a call of a kernel: all zero except the kernel and its loop for this type."""
    memset(call, 0, size_of_call)
    call.kernel = <void*> kernel
    call.loop = kernel.loop[type]


cdef inline void bind(Call* call, int operand, cnp.ndarray a) noexcept:
    """Bind an array without strides, for loops that need none."""
    call.operand[operand].data = <char*> cnp.PyArray_DATA(a)
    call.operand[operand].array = <void*> a


cdef extern from *:
    ctypedef void always_inline "__attribute__((always_inline)) void"  # it becomes as many stores as there are arrays


cdef inline always_inline bind_all(Call* call, int first, cnp.ndarray a, cnp.ndarray b, cnp.ndarray c=None,
                                   cnp.ndarray d=None, cnp.ndarray e=None, cnp.ndarray f=None, cnp.ndarray g=None,
                                   cnp.ndarray h=None, cnp.ndarray i=None) noexcept:
    """Bind arrays without strides to operands one after the other. None is left out."""
    bind(call, first, a)
    if b is not None:
        bind(call, first + 1, b)
    if c is not None:
        bind(call, first + 2, c)
    if d is not None:
        bind(call, first + 3, d)
    if e is not None:
        bind(call, first + 4, e)
    if f is not None:
        bind(call, first + 5, f)
    if g is not None:
        bind(call, first + 6, g)
    if h is not None:
        bind(call, first + 7, h)
    if i is not None:
        bind(call, first + 8, i)


cdef inline void bind_matrix(Call* call, int operand, cnp.ndarray a) noexcept:
    """Bind an array with the strides of its last two axes, rows first."""
    cdef int d, first = cnp.PyArray_NDIM(a) - 2
    bind(call, operand, a)
    for d in range(2):
        call.operand[operand].stride[d] = cnp.PyArray_STRIDE(a, first + d) // cnp.PyArray_ITEMSIZE(a)


cdef inline int launch_parts(Call* call, Py_ssize_t parts, double elements, on_stop=None) except -1:
    """Launch a call that makes this many parts of its output, with the work of this many elements; see `launch`."""
    call.parts, call.work = parts, (<Kernel> call.kernel).work * elements
    return launch(call, on_stop)


cdef inline cnp.ndarray copy_if_overlapping(cnp.ndarray a, cnp.ndarray out):
    """Return the array, or a copy if writing `out` element by element would overwrite elements that are read later."""
    return copy(a) if a is not out and overlap(a, out) and not have_same_layout(a, out) else a


cdef inline bint have_same_layout(cnp.ndarray a, cnp.ndarray b) noexcept:
    """Return whether two arrays of one dtype have each element at the same address."""
    cdef int d
    if cnp.PyArray_DATA(a) != cnp.PyArray_DATA(b) or cnp.PyArray_NDIM(a) != cnp.PyArray_NDIM(b):
        return False
    for d in range(cnp.PyArray_NDIM(a)):
        if cnp.PyArray_DIM(a, d) != cnp.PyArray_DIM(b, d) or cnp.PyArray_STRIDE(a, d) != cnp.PyArray_STRIDE(b, d):
            return False
    return True


cdef inline bint overlap(cnp.ndarray a, cnp.ndarray b) noexcept:
    """Return whether the memory ranges of two arrays overlap, from their first byte to their last."""
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
    """Return the address of the array's first element."""
    return <Py_ssize_t> cnp.PyArray_DATA(array)


cpdef cnp.ndarray output(tuple shape, cnp.dtype dtype):
    """Return a new array for a kernel's output, uninitialized."""
    cdef cnp.npy_intp lengths[NUMPY_MAX_DIMS]
    cdef int d
    for d in range(len(shape)):
        lengths[d] = shape[d]
    return empty(len(shape), lengths, dtype)


# ---- the order of axes in memory ----
#
# Images have the shape (n, C, H, W). The convolution that made them chose their order in memory: C order, images last,
# or channels last. Elementwise kernels, dropout and BatchNorm give their output the memory order of their input, as
# NumPy's order "K". So the order stays the same from one convolution to the next, and operands in the same order can be
# read as one contiguous run. `copy` and `convert` always give C order: that is their purpose.

cdef tuple memory_order(cnp.ndarray a):
    """Return the axes of an array from outermost to innermost in memory; C order if the array repeats elements."""
    cdef int axes[NUMPY_MAX_DIMS]
    order_axes(a, axes)
    return tuple([axes[d] for d in range(cnp.PyArray_NDIM(a))])


cdef cnp.ndarray output_ordered(tuple shape, cnp.dtype dtype, tuple order):
    """Return a new array for a kernel's output, whose axes have this order in memory, the innermost last."""
    cdef cnp.npy_intp lengths[NUMPY_MAX_DIMS]
    cdef int axes[NUMPY_MAX_DIMS]
    cdef int d
    for d in range(len(shape)):
        lengths[d], axes[d] = shape[d], order[d]
    return empty_ordered(len(shape), lengths, axes, dtype)


cpdef cnp.ndarray output_like(cnp.ndarray a):
    """Return a new array for a kernel's output, with the shape, dtype and memory order of another array."""
    cdef int axes[NUMPY_MAX_DIMS]
    cdef cnp.dtype dtype = a.descr if cnp.PyArray_ISNOTSWAPPED(a) else a.descr.newbyteorder("=")
    if cnp.PyArray_IS_C_CONTIGUOUS(a):
        return empty(cnp.PyArray_NDIM(a), cnp.PyArray_DIMS(a), dtype)
    order_axes(a, axes)
    return empty_ordered(cnp.PyArray_NDIM(a), cnp.PyArray_DIMS(a), axes, dtype)


cdef int order_axes(cnp.ndarray a, int* axes) noexcept:
    """Sort the axes of an array as they are in memory, the largest stride first.

    An axis of length 1 may have stride 0, which tells nothing. It stays behind the axis before it.
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
    for d in range(1, ndim):              # insertion sort: there are few axes, and they are mostly in order
        k = d
        while k > 0 and key[axes[k - 1]] < key[d]:
            axes[k] = axes[k - 1]
            k -= 1
        axes[k] = d
    return 0


cdef bint is_in_c_order(cnp.ndarray a) noexcept:
    """Return whether the array's axes are in C order in memory, with or without gaps."""
    cdef int axes[NUMPY_MAX_DIMS]
    cdef int d
    order_axes(a, axes)
    for d in range(cnp.PyArray_NDIM(a)):
        if axes[d] != d:
            return False
    return True


cdef bint leaves_no_gaps(cnp.ndarray a, const int* axes) noexcept:
    """Return whether the array's elements follow each other without gaps if its axes have this order in memory."""
    cdef Py_ssize_t stride = cnp.PyArray_ITEMSIZE(a)
    cdef int d
    for d in range(cnp.PyArray_NDIM(a) - 1, -1, -1):
        if cnp.PyArray_DIM(a, axes[d]) > 1 and cnp.PyArray_STRIDE(a, axes[d]) != stride:
            return False
        stride *= cnp.PyArray_DIM(a, axes[d])
    return True


cdef cnp.ndarray match_layout(cnp.ndarray x, cnp.ndarray a):
    """Return the array itself if it has the memory layout of x, or a copy. x has the array's shape and no gaps."""
    cdef int d
    for d in range(cnp.PyArray_NDIM(a)):
        if cnp.PyArray_DIM(a, d) > 1 and cnp.PyArray_STRIDE(a, d) != cnp.PyArray_STRIDE(x, d):
            return copy(a, output_like(x))
    return a


cdef cnp.ndarray empty_ordered(int ndim, cnp.npy_intp* shape, const int* axes, cnp.dtype dtype):
    """Like `empty`, with the axes in this order in memory."""
    cdef cnp.npy_intp strides[NUMPY_MAX_DIMS]
    cdef size_t stride = dtype.itemsize   # in an array without elements it may overflow, and is never used
    cdef int d
    for d in range(ndim - 1, -1, -1):
        strides[axes[d]] = <cnp.npy_intp> stride
        stride *= <size_t> max(shape[axes[d]], 1)
    return empty_strided(ndim, shape, strides, dtype)


cdef inline bint is_int64(cnp.ndarray a) noexcept:
    """Return whether the array holds 64-bit integers, whatever C calls them."""
    return cnp.PyArray_ISSIGNED(a) and cnp.PyArray_ISINTEGER(a) and cnp.PyArray_ITEMSIZE(a) == 8


cdef tuple get_dims(cnp.ndarray a):
    return (<object> a).shape


cdef int require_vector(str name, cnp.ndarray a, int type_num, Py_ssize_t size) except -1:
    """TypeError unless a is of this type, ValueError unless it is a contiguous vector of this size."""
    if type_number(a) != type_num and not (type_num == cnp.NPY_INT64 and is_int64(a)):
        raise TypeError(f"{name} expected {cnp.PyArray_DescrFromType(type_num)}, got {a.dtype}")
    if (cnp.PyArray_NDIM(a) != 1 or cnp.PyArray_SIZE(a) != size or not cnp.PyArray_IS_C_CONTIGUOUS(a)
            or not cnp.PyArray_ISBEHAVED_RO(a)):
        raise ValueError(f"{name} expected a contiguous vector of {size} elements, got shape {get_dims(a)}")
    return 0
