# The optimizers' updates.

RULES = {}                                # by name
cdef Kernel COUNT_STEPS_KERNEL = Kernel("count_steps", updates=1)
cdef Kernel NORM_KERNEL = Kernel("norm", checked=1, work=5)
cdef Kernel LIMIT_NORM_KERNEL = Kernel("limit_norm", updates=1, work=5)
cdef Kernel FOLLOW_KERNEL = Kernel("follow", writes=0b101, updates=0b101)


cdef class Rule:
    """An optimizer's rule: its kernel, how many hyper-parameters and vectors of its own it has, whether it asks in
    which step a parameter is, whether it may be confined to the rows of a parameter that were used, and whether it can
    leave rows as they are whose gradient is 0."""
    cdef Kernel kernel
    cdef readonly int hyper, least_state, most_state
    cdef readonly bint counts_steps, takes_used, can_skip

    def __cinit__(self, str name, *, int hyper, int least_state, int most_state, bint counts_steps=False,
                  bint takes_used=False, bint can_skip=False):
        self.kernel = Kernel(name, writes=0b101, updates=0b101, work=40)
        self.hyper, self.least_state, self.most_state = hyper, least_state, most_state
        self.counts_steps, self.takes_used, self.can_skip = counts_steps, takes_used, can_skip
        RULES[name] = self


Rule("sgd", hyper=4, least_state=0, most_state=1, takes_used=True, can_skip=True)
Rule("adagrad", hyper=3, least_state=1, most_state=1, takes_used=True, can_skip=True)
Rule("rmsprop", hyper=5, least_state=1, most_state=2)
Rule("adam", hyper=5, least_state=2, most_state=2, counts_steps=True, takes_used=True)
Rule("adamw", hyper=5, least_state=2, most_state=2, counts_steps=True)


def update(str rule, cnp.ndarray w not None, cnp.ndarray g not None, cnp.ndarray state, cnp.ndarray hyper not None,
           cnp.ndarray steps=None, cnp.ndarray used=None, bint is_sparse=False):
    """One step of an optimizer's rule, in place; its formula is in the docstring of its class.

    w and g are flat vectors of one size and dtype. `state` (k, size) has the rule's own vectors as its rows, None where
    it has none. `hyper` holds the hyper-parameters in float64. `steps` has a row (elements, t) in float64 for each of
    the parameters that make up w, for rules that ask for their steps t, from 1 on. All are read at each run. With
    `used`, w is the rows of one matrix, and g is 0 in those that it does not list (see `use_rows`): these are passed
    over if that makes no difference, and if the matrix `is_sparse`, whether it does or not.
    """
    cdef Call call
    cdef Rule facts = RULES.get(rule)
    cdef int real = real_type(rule, w)
    cdef Py_ssize_t size = cnp.PyArray_SIZE(w), rows = 0
    if facts is None:
        raise ValueError(f"update knows no rule {rule!r}")
    require_vector(rule, w, cnp.PyArray_TYPE(w), size)
    require_vector(rule, g, cnp.PyArray_TYPE(w), size)
    require_vector(rule, hyper, cnp.NPY_FLOAT64, facts.hyper)
    if state is not None:
        same_type(rule, w, state)
        rows = cnp.PyArray_DIM(state, 0) if cnp.PyArray_NDIM(state) == 2 else -1
    if (not facts.least_state <= rows <= facts.most_state or (rows > 0 and cnp.PyArray_DIM(state, 1) != size)
            or (rows > 0 and size > 1 and cnp.PyArray_STRIDE(state, 1) != cnp.PyArray_ITEMSIZE(state))):
        raise ValueError(f"{rule} expected a state of {facts.least_state} to {facts.most_state} contiguous rows of "
                         f"{size} elements, got {None if state is None else shape_of(state)}")
    if facts.counts_steps != (steps is not None):
        raise ValueError(f"{rule} {'needs' if facts.counts_steps else 'takes no'} steps")
    if is_sparse and not facts.takes_used:
        raise ValueError(f"{rule} updates all of a parameter")
    if facts.counts_steps and require_steps(rule, steps) != size:
        raise ValueError(f"{rule} got steps of other parameters than the {size} elements of w")

    begin(&call, facts.kernel, real)
    bind(&call, 0, writable(rule, w))
    bind(&call, 1, g)
    if rows > 0:
        bind_matrix(&call, 2, writable(rule, state))
    bind(&call, 3, hyper)
    if steps is not None:
        bind(&call, 4, steps)
        call.size[2] = cnp.PyArray_DIM(steps, 0)
    call.size[0], call.size[1] = size, rows
    call.parts = size
    call.work = facts.kernel.work * size
    call.size[3] = is_sparse
    if is_sparse or facts.can_skip:
        restrict(&call, used, w)
    launch(&call)


def follow(cnp.ndarray hyper not None, cnp.ndarray rates not None, cnp.ndarray t not None):
    """The rate after step t: t ← t + 1, hyper[0] ← rates[t], or the last of the rates once there are no more.

    hyper and rates (n,) are float64, t (1,) int64. Nothing happens where t is below 0.
    """
    cdef Call call
    require_vector("follow", hyper, cnp.NPY_FLOAT64, cnp.PyArray_SIZE(hyper))
    require_vector("follow", rates, cnp.NPY_FLOAT64, cnp.PyArray_SIZE(rates))
    require_vector("follow", t, cnp.NPY_INT64, 1)
    if cnp.PyArray_SIZE(hyper) == 0 or cnp.PyArray_SIZE(rates) == 0:
        raise ValueError(f"follow got {len(hyper)} hyper-parameters and {len(rates)} rates")
    begin(&call, FOLLOW_KERNEL, 0)
    bind(&call, 0, writable("follow", hyper))
    bind(&call, 1, rates)
    bind(&call, 2, writable("follow", t))
    call.size[0] = cnp.PyArray_SIZE(rates)
    call.parts = call.work = 1
    launch(&call)


def norm(cnp.ndarray g not None, cnp.ndarray others=None, on_stop=None, cnp.ndarray used=None):
    """√ (Σ g² + others²) as a single element of float64: the norm of a vector, and of others whose norm is given.

    Where g is the rows of a matrix, of which only those `used` are not 0 (see `use_rows`), of these.

    Where it is not finite, as where an element of g is not, `on_stop` is called as by `all_finite`.
    """
    cdef Call call
    cdef cnp.ndarray out
    begin(&call, NORM_KERNEL, real_type("norm", g))
    require_vector("norm", g, cnp.PyArray_TYPE(g), cnp.PyArray_SIZE(g))
    out = output((1,), float64)
    bind(&call, 0, out)
    bind(&call, 1, g)
    if others is not None:
        require_vector("norm", others, cnp.NPY_FLOAT64, 1)
        bind(&call, 2, others)
    call.size[0] = cnp.PyArray_SIZE(g)
    call.parts = 1
    call.work = NORM_KERNEL.work * call.size[0]
    restrict(&call, used, g)
    launch(&call, on_stop)
    return out


def limit_norm(cnp.ndarray g not None, cnp.ndarray norm not None, double limit, cnp.ndarray used=None):
    """g ← g · limit / (norm + 10⁻⁶), in place, if that is smaller; the norm is what `norm` returns, `used` as there."""
    cdef Call call
    begin(&call, LIMIT_NORM_KERNEL, real_type("limit_norm", g))
    require_vector("limit_norm", g, cnp.PyArray_TYPE(g), cnp.PyArray_SIZE(g))
    require_vector("limit_norm", norm, cnp.NPY_FLOAT64, 1)
    bind(&call, 0, writable("limit_norm", g))
    bind(&call, 1, norm)
    call.scalar[0] = limit
    call.parts = cnp.PyArray_SIZE(g)
    call.work = LIMIT_NORM_KERNEL.work * call.parts
    restrict(&call, used, g)
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
