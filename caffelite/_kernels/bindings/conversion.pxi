# Conversions between dtypes.

cdef Kernel CONVERT_KERNEL = Kernel("convert", work=10)

# The types of input and output. They select the kernel's loop.
cdef dict SOURCES = {
    np.dtype(name).str: source for name, source in (
        ("?", BOOL), ("f4", FLOAT32), ("f8", FLOAT64), ("i1", INT8), ("i2", INT16), ("i4", INT32), ("i8", INT64),
        ("u1", UINT8), ("u2", UINT16), ("u4", UINT32), ("u8", UINT64))
}
cdef dict TARGETS = {np.dtype(name).str: i for i, name in enumerate(("f4", "f8", "i8"))}


def convert(cnp.ndarray a not None, dtype):
    """y = a in another dtype, in C order.

    To float32 or float64: bool, integers of any width, float32 and float64, and outside recorded steps float16. To
    int64: bool and integers. A uint64 of 2⁶³ or more does not fit into int64 and becomes negative.
    """
    cdef Call call
    cdef cnp.dtype to = np.dtype(dtype)
    cdef cnp.ndarray out
    a = numpy_copy(a, np.float32) if type_number(a) == cnp.NPY_FLOAT16 else as_readable(a)
    source, target = a.dtype.str, to.str
    if target not in TARGETS or source not in SOURCES or (to == np.int64 and a.dtype.kind not in "iu"):
        raise TypeError(f"convert makes float32 or float64 of real numbers, int64 of integers; not {to} of {a.dtype}")
    out = output(get_dims(a), to)
    begin(&call, CONVERT_KERNEL, TARGETS[target])
    call.source, call.size[MAX_DIMS] = SOURCES[source], cnp.PyArray_ITEMSIZE(a)
    bind_all(&call, 0, out, a)
    launch_broadcast(&call, 2)
    return out
