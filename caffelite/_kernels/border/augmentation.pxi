# Augmentation: each image is changed at random, independently of the others.
#
# The random numbers depend on `drawn`, int64: (seed, batch, how many augmentations of the batch came before).

cdef Kernel SHIFT_KERNEL = Kernel("shift", work=20)
cdef Kernel FLIP_KERNEL = Kernel("flip", work=20)
cdef Kernel CUTOUT_KERNEL = Kernel("cutout", work=20)


def shift(cnp.ndarray x not None, cnp.ndarray drawn not None, Py_ssize_t pixels):
    """A new array: each image shifted by −pixels … pixels in both directions, and filled with zeros."""
    return augmented(SHIFT_KERNEL, x, drawn, pixels)


def flip(cnp.ndarray x not None, cnp.ndarray drawn not None):
    """A new array: each image mirrored, left to right, with probability 1/2."""
    return augmented(FLIP_KERNEL, x, drawn, 0)


def cutout(cnp.ndarray x not None, cnp.ndarray drawn not None, Py_ssize_t size):
    """A new array: in each image, a square of size × size pixels around a random pixel is set to 0."""
    return augmented(CUTOUT_KERNEL, x, drawn, size)


cdef cnp.ndarray augmented(Kernel kernel, cnp.ndarray x, cnp.ndarray drawn, Py_ssize_t pixels):
    cdef Call call
    cdef cnp.ndarray y
    cdef int ndim = cnp.PyArray_NDIM(x)
    begin(&call, kernel, real_type(kernel.name, x))
    if ndim not in (3, 4):
        raise ValueError(f"{kernel.name} takes images (n, C, H, W) or (n, H, W), got shape {shape_of(x)}")
    if not 0 <= pixels < 1 << 31:
        raise ValueError(f"{kernel.name} takes 0 to 2³¹ − 1 pixels, got {pixels}")
    require_vector(kernel.name, drawn, cnp.NPY_INT64, 3)
    x = contiguous(x)
    y = empty(ndim, cnp.PyArray_DIMS(x), x.dtype)
    bind(&call, 0, y)
    bind(&call, 1, x)
    bind(&call, 2, drawn)
    call.size[0] = cnp.PyArray_DIM(x, 1) if ndim == 4 else 1
    call.size[1], call.size[2] = cnp.PyArray_DIM(x, ndim - 2), cnp.PyArray_DIM(x, ndim - 1)
    call.size[3] = pixels
    call.parts = cnp.PyArray_DIM(x, 0)
    call.work = 200.0 * call.parts + kernel.work * cnp.PyArray_SIZE(x)
    launch(&call)
    return y
