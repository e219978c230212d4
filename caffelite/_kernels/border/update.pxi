# The optimizers' updates.

cdef Kernel SGD_KERNEL = Kernel("sgd", writes=0b101, updates=0b101, work=40)
cdef Kernel COUNT_STEPS_KERNEL = Kernel("count_steps", updates=1)
cdef Kernel ADAM_KERNEL = Kernel("adam", writes=0b101, updates=0b101, work=40)


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

    begin(&call, SGD_KERNEL, real)
    bind(&call, 0, writable("sgd", w))
    bind(&call, 1, g)
    if v is not None:
        bind(&call, 2, writable("sgd", v))
    bind(&call, 3, hyper)
    call.size[0] = cnp.PyArray_SIZE(w)
    call.parts = call.size[0]
    call.work = SGD_KERNEL.work * call.size[0]
    launch(&call)


def count_steps(cnp.ndarray steps not None):
    """t ← t + 1 in every row (elements, t) of `steps`, float64."""
    cdef Call call
    require_steps("count_steps", steps)
    begin(&call, COUNT_STEPS_KERNEL, 0)
    bind(&call, 0, writable("count_steps", steps))
    call.size[0] = call.work = cnp.PyArray_DIM(steps, 0)
    call.parts = 1
    launch(&call)


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

    begin(&call, ADAM_KERNEL, real)
    bind(&call, 0, writable("adam", w))
    bind(&call, 1, g)
    bind_matrix(&call, 2, writable("adam", moments))
    bind(&call, 3, steps)
    bind(&call, 4, hyper)
    call.size[0], call.size[1], call.decoupled = size, cnp.PyArray_DIM(steps, 0), decoupled
    call.parts = size
    call.work = ADAM_KERNEL.work * size
    launch(&call)


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
