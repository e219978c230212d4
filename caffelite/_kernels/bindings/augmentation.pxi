# Augmentation: each image is changed, independently of the others, mostly at random.
#
# The random numbers depend on `drawn`, int64: (seed, batch, how many augmentations of the batch came before).

cdef Kernel SHIFT_KERNEL = Kernel("shift", loops="crop", work=20)
cdef Kernel CROP_KERNEL = Kernel("crop", work=20)
cdef Kernel FLIP_KERNEL = Kernel("flip", work=20)
cdef Kernel CUTOUT_KERNEL = Kernel("cutout", work=20)
cdef Kernel AFFINE_KERNEL = Kernel("affine", work=60)


def shift(cnp.ndarray x not None, cnp.ndarray drawn not None, Py_ssize_t pixels):
    """Return a new array: each image shifted by −pixels … pixels in both directions, and filled with zeros."""
    return augment(SHIFT_KERNEL, x, drawn, pixels)


def crop(cnp.ndarray x not None, cnp.ndarray drawn not None, Py_ssize_t height, Py_ssize_t width, Py_ssize_t padding=0):
    """Return a new array: of each image with `padding` zeros on all sides, a random window of height × width.

    Raise ValueError if the window is larger than an image with its padding.
    """
    if height < 0 or width < 0:
        raise ValueError(f"crop takes windows of 0 pixels or more, got {height} × {width}")
    return augment(CROP_KERNEL, x, drawn, padding, height, width)


def flip(cnp.ndarray x not None, cnp.ndarray drawn not None):
    """Return a new array: each image mirrored, left to right, with probability 1/2."""
    return augment(FLIP_KERNEL, x, drawn, 0)


def cutout(cnp.ndarray x not None, cnp.ndarray drawn not None, Py_ssize_t size):
    """Return a new array: in each image, a square of size × size pixels around a random pixel is set to 0."""
    return augment(CUTOUT_KERNEL, x, drawn, size)


def affine(cnp.ndarray x not None, cnp.ndarray maps not None):
    """Return a new array: each image mapped, y at p = x at A p, between pixels by bilinear interpolation, 0 outside.

    `maps` are A (n, 2, 2), float64; p is the vector (down, right) from the middle of the image.
    """
    cdef Call call
    cdef cnp.ndarray y
    x = check_images("affine", x)
    if type_number(maps) != cnp.NPY_FLOAT64:
        raise TypeError(f"affine takes maps in float64, got {maps.dtype}")
    if get_dims(maps) != (cnp.PyArray_DIM(x, 0), 2, 2):
        raise ValueError(f"affine takes a map (2, 2) for each image of {get_dims(x)}, got shape {get_dims(maps)}")
    maps = as_contiguous(maps)
    y = empty(cnp.PyArray_NDIM(x), cnp.PyArray_DIMS(x), x.dtype)
    bind_augmentation(&call, AFFINE_KERNEL, y, x, maps)
    launch(&call)
    return y


cdef cnp.ndarray check_images(str name, cnp.ndarray x):
    """Return images as loops take them, contiguous. Raise TypeError for another dtype, ValueError for other axes."""
    real_type(name, x)
    if cnp.PyArray_NDIM(x) not in (3, 4):
        raise ValueError(f"{name} takes images (n, C, H, W) or (n, H, W), got shape {get_dims(x)}")
    return as_contiguous(x)


cdef cnp.ndarray augment(Kernel kernel, cnp.ndarray x, cnp.ndarray drawn, Py_ssize_t pixels, Py_ssize_t height=-1,
                         Py_ssize_t width=-1):
    """y of a kernel that draws. Its images have this height and width, or by default the height and width of x."""
    cdef Call call
    cdef cnp.ndarray y
    cdef cnp.npy_intp shape[4]
    cdef int ndim = cnp.PyArray_NDIM(x), d
    x = check_images(kernel.name, x)
    if not 0 <= pixels < 1 << 31:
        raise ValueError(f"{kernel.name} takes 0 to 2³¹ − 1 pixels, got {pixels}")
    require_vector(kernel.name, drawn, cnp.NPY_INT64, 3)
    for d in range(ndim):
        shape[d] = cnp.PyArray_DIM(x, d)
    if height >= 0:
        if height > shape[ndim - 2] + 2 * pixels or width > shape[ndim - 1] + 2 * pixels:
            raise ValueError(f"{kernel.name}: no window of {height} × {width} pixels fits into images of "
                             f"{shape[ndim - 2]} × {shape[ndim - 1]} with {pixels} pixels of padding")
        shape[ndim - 2], shape[ndim - 1] = height, width
    y = empty(ndim, shape, x.dtype)
    bind_augmentation(&call, kernel, y, x, drawn)
    call.size[3] = pixels
    launch(&call)
    return y


cdef int bind_augmentation(Call* call, Kernel kernel, cnp.ndarray y, cnp.ndarray x, cnp.ndarray numbers) except -1:
    """Begin a call of images and the numbers that change them."""
    cdef int ndim = cnp.PyArray_NDIM(x)
    begin(call, kernel, real_type(kernel.name, x))
    bind_all(call, 0, y, x, numbers)
    call.size[0] = cnp.PyArray_DIM(x, 1) if ndim == 4 else 1
    call.size[1], call.size[2] = cnp.PyArray_DIM(x, ndim - 2), cnp.PyArray_DIM(x, ndim - 1)
    call.size[4], call.size[5] = cnp.PyArray_DIM(y, ndim - 2), cnp.PyArray_DIM(y, ndim - 1)
    call.parts = cnp.PyArray_DIM(x, 0)
    call.work = 200.0 * call.parts + kernel.work * cnp.PyArray_SIZE(y)
    return 0
