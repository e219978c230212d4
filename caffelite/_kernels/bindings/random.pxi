# Random numbers in a step. They depend on a seed and a step counter. Both are in memory, so each replay draws new ones.

cdef Kernel NEXT_DRAW_KERNEL = Kernel("next_draw", writes=0b11, updates=0b10)
cdef Kernel DROPOUT_KERNEL = Kernel("dropout", work=35)
cdef Kernel DROPOUT_GRAD_KERNEL = Kernel("dropout_grad", loops="dropout", work=35)


def next_draw(cnp.ndarray random not None):
    """Return a copy of `random` = (seed, step), int64, and then increment the step in `random`."""
    cdef Call call
    cdef cnp.ndarray drawn = output((2,), int64)
    require_vector("next_draw", random, cnp.NPY_INT64, 2)
    begin(&call, NEXT_DRAW_KERNEL, 0)
    bind_all(&call, 0, drawn, check_out("next_draw", random))
    launch_parts(&call, 1, 0)
    return drawn


def dropout(cnp.ndarray x not None, cnp.ndarray random not None, double p, Py_ssize_t first=0):
    """y = 0 · x with probability p, rounded to 16 bits, else x / (1 − p), for each element.

    `random` is (seed, step), int64, and its step is incremented. Return y and the earlier value of `random`, from
    which `dropout_grad` draws the same mask. If x is a part of a larger array, `first` is the number of its first
    element there. Raise ValueError unless 0 ≤ p < 1.
    """
    real_type("dropout", x)
    require_probability("dropout", p)
    drawn = next_draw(random)
    return apply_mask(DROPOUT_KERNEL, as_readable(x), drawn, p, first), drawn


def dropout_grad(cnp.ndarray dy not None, cnp.ndarray drawn not None, double p, Py_ssize_t first=0):
    """dx of `dropout`, from dy and the same mask, drawn again from `drawn`."""
    require_probability("dropout_grad", p)
    require_vector("dropout_grad", drawn, cnp.NPY_INT64, 2)
    real_type("dropout_grad", dy)
    return apply_mask(DROPOUT_GRAD_KERNEL, as_readable(dy), drawn, p, first)


cdef cnp.ndarray apply_mask(Kernel kernel, cnp.ndarray x, cnp.ndarray drawn, double p, Py_ssize_t first):
    """y of either kernel, in the memory order of x. The elements are numbered in C order, whatever the memory order."""
    cdef Call call
    cdef cnp.ndarray y
    if not cnp.PyArray_IS_C_CONTIGUOUS(x):
        y = apply_mask(kernel, copy(x), drawn, p, first)
        return y if is_in_c_order(x) else copy(y, output_like(x))
    y = output_like(x)
    begin(&call, kernel, real_type(kernel.name, x))
    bind_all(&call, 0, y, x, drawn)
    call.scalar[0], call.size[0] = p, require_first(kernel.name, first)
    launch_parts(&call, cnp.PyArray_SIZE(x), cnp.PyArray_SIZE(x))
    return y


cdef Py_ssize_t require_first(str name, Py_ssize_t first) except -1:
    if first < 0:
        raise ValueError(f"{name}: the first element's number must be 0 or more, got {first}")
    return first


cdef int require_probability(str name, double p) except -1:
    if not 0 <= p < 1:
        raise ValueError(f"{name}: p must be 0 or more and below 1, got {p}")
    return 0
