# The optimizers' updates.

RULES = {}                                # by name
cdef Kernel COUNT_STEPS_KERNEL = Kernel("count_steps", updates=1, work=1)
cdef Kernel NORM_KERNEL = Kernel("norm", checked=1, work=5)
cdef Kernel LIMIT_NORM_KERNEL = Kernel("limit_norm", updates=1, work=5)
cdef Kernel EMA_KERNEL = Kernel("ema", updates=1, work=40)
cdef Kernel FOLLOW_KERNEL = Kernel("follow", writes=0b101, updates=0b101, work=1)


cdef class Rule:
    """The facts about an optimizer's rule.

    `hyper` is its number of hyper-parameters. It keeps from `least_state` to `most_state` vectors between steps.
    `steps` is the length of a row of steps if it counts the steps of each parameter, else 0. `takes_used`: it can
    update the used rows of a parameter only. `can_skip`: a row whose gradient is 0 may stay as it is.
    """
    cdef Kernel kernel
    cdef readonly int hyper, least_state, most_state, steps
    cdef readonly bint takes_used, can_skip

    def __cinit__(self, str name, *, int hyper, int least_state, int most_state, int steps=0, bint takes_used=False,
                  bint can_skip=False):
        self.kernel = Kernel(name, writes=0b101, updates=0b101, work=40)
        self.hyper, self.least_state, self.most_state = hyper, least_state, most_state
        self.steps, self.takes_used, self.can_skip = steps, takes_used, can_skip
        RULES[name] = self


Rule("sgd", hyper=4, least_state=0, most_state=1, takes_used=True, can_skip=True)
Rule("adagrad", hyper=3, least_state=1, most_state=1, takes_used=True, can_skip=True)
Rule("adadelta", hyper=4, least_state=2, most_state=2)
Rule("rmsprop", hyper=5, least_state=1, most_state=2)
Rule("lion", hyper=4, least_state=1, most_state=1)
Rule("adam", hyper=5, least_state=2, most_state=2, steps=2, takes_used=True)
Rule("adamw", hyper=5, least_state=2, most_state=2, steps=2)
Rule("nadam", hyper=6, least_state=2, most_state=2, steps=3)


def update(str rule, cnp.ndarray w not None, cnp.ndarray g not None, cnp.ndarray state, cnp.ndarray hyper not None,
           cnp.ndarray steps=None, cnp.ndarray used=None, bint is_sparse=False):
    """One step of an optimizer's rule, in place. The docstring of the optimizer's class has the formula.

    w and g : flat vectors of the same size and dtype.
    state : (k, size), the vectors that the rule keeps between steps; None if it keeps none.
    hyper : the hyper-parameters, float64.
    steps : float64, a row for each parameter in w, as `count_steps` keeps it, if the rule counts steps.
    used : the used rows (see `use_rows`). Then w is one matrix, and g is 0 in all other rows. The update skips the
        others if that makes no difference, or if the matrix `is_sparse`.

    A replay reads all of these again in each step.
    """
    cdef Call call
    cdef Rule facts = RULES.get(rule)
    cdef int real = real_type(rule, w)
    cdef Py_ssize_t size = cnp.PyArray_SIZE(w), rows = 0
    if facts is None:
        raise ValueError(f"there is no update rule {rule!r}")
    require_vector(rule, w, type_number(w), size)
    require_vector(rule, g, type_number(w), size)
    require_vector(rule, hyper, cnp.NPY_FLOAT64, facts.hyper)
    if state is not None:
        same_type(rule, w, state)
        rows = cnp.PyArray_DIM(state, 0) if cnp.PyArray_NDIM(state) == 2 else -1
    if (not facts.least_state <= rows <= facts.most_state or (rows > 0 and cnp.PyArray_DIM(state, 1) != size)
            or (rows > 0 and size > 1 and cnp.PyArray_STRIDE(state, 1) != cnp.PyArray_ITEMSIZE(state))):
        raise ValueError(f"{rule} expected a state of {facts.least_state} to {facts.most_state} contiguous rows of "
                         f"{size} elements, got {None if state is None else get_dims(state)}")
    if (facts.steps > 0) != (steps is not None):
        raise ValueError(f"{rule} {'needs' if facts.steps else 'takes no'} steps")
    if is_sparse and not facts.takes_used:
        raise ValueError(f"{rule} always updates a whole parameter")
    if facts.steps and require_steps(rule, steps, facts.steps) != size:
        raise ValueError(f"{rule} got steps of other parameters than the {size} elements of w")

    begin(&call, facts.kernel, real)
    bind_all(&call, 0, check_out(rule, w), g)
    if rows > 0:
        bind_matrix(&call, 2, check_out(rule, state))
    bind_all(&call, 3, hyper, steps)
    call.size[0], call.size[1], call.size[3] = size, rows, is_sparse
    call.size[2] = 0 if steps is None else cnp.PyArray_DIM(steps, 0)
    call.parts, call.work = size, facts.kernel.work * size
    if is_sparse or facts.can_skip:
        restrict_to_rows(&call, used, w)
    launch(&call)


def follow(cnp.ndarray hyper not None, cnp.ndarray rates not None, cnp.ndarray t not None):
    """Set the learning rate after step t: t ← t + 1, hyper[0] ← rates[t]. After the last rate, it stays.

    If rates[0] is below 0, the other rates are for −rates[0] steps each.

    hyper and rates (n,) are float64, t (1,) is int64. If t is below 0, nothing happens.
    """
    cdef Call call
    require_vector("follow", hyper, cnp.NPY_FLOAT64, cnp.PyArray_SIZE(hyper))
    require_vector("follow", rates, cnp.NPY_FLOAT64, cnp.PyArray_SIZE(rates))
    require_vector("follow", t, cnp.NPY_INT64, 1)
    if cnp.PyArray_SIZE(hyper) == 0 or cnp.PyArray_SIZE(rates) == 0:
        raise ValueError(f"follow got {len(hyper)} hyper-parameters and {len(rates)} rates")
    begin(&call, FOLLOW_KERNEL, 0)
    bind_all(&call, 0, check_out("follow", hyper), rates, check_out("follow", t))
    call.size[0] = cnp.PyArray_SIZE(rates)
    launch_parts(&call, 1, 1)


def ema(cnp.ndarray average not None, cnp.ndarray x not None, double decay):
    """average ← decay · average + (1 − decay) · x, in place: the exponential moving average of a flat vector x."""
    cdef Call call
    begin(&call, EMA_KERNEL, real_type("ema", average))
    require_vector("ema", average, type_number(average), cnp.PyArray_SIZE(average))
    require_vector("ema", x, type_number(average), cnp.PyArray_SIZE(average))
    bind_all(&call, 0, check_out("ema", average), x)
    call.scalar[0] = decay
    launch_parts(&call, cnp.PyArray_SIZE(average), cnp.PyArray_SIZE(average))


def norm(cnp.ndarray g not None, cnp.ndarray others=None, on_stop=None, cnp.ndarray used=None):
    """Return the norm √ (Σ g² + others²), float64 (1,): of the vector g, and of further vectors with the norm `others`.

    If g is a matrix in which only the `used` rows are not 0 (see `use_rows`), only these are read.

    If the norm is not finite, so also if an element of g is not, `on_stop` is called as by `all_finite`.
    """
    cdef Call call
    cdef cnp.ndarray out
    begin(&call, NORM_KERNEL, real_type("norm", g))
    require_vector("norm", g, type_number(g), cnp.PyArray_SIZE(g))
    out = output((1,), float64)
    if others is not None:
        require_vector("norm", others, cnp.NPY_FLOAT64, 1)
    bind_all(&call, 0, out, g, others)
    call.size[0] = cnp.PyArray_SIZE(g)
    call.parts, call.work = 1, NORM_KERNEL.work * call.size[0]
    restrict_to_rows(&call, used, g)
    launch(&call, on_stop)
    return out


def limit_norm(cnp.ndarray g not None, cnp.ndarray norm not None, double limit, cnp.ndarray used=None):
    """g ← g · limit / (norm + 10⁻⁶), in place, if that is smaller. `norm` is what `norm` returned; `used` as there."""
    cdef Call call
    begin(&call, LIMIT_NORM_KERNEL, real_type("limit_norm", g))
    require_vector("limit_norm", g, type_number(g), cnp.PyArray_SIZE(g))
    require_vector("limit_norm", norm, cnp.NPY_FLOAT64, 1)
    bind_all(&call, 0, check_out("limit_norm", g), norm)
    call.scalar[0], call.parts = limit, cnp.PyArray_SIZE(g)
    call.work = LIMIT_NORM_KERNEL.work * call.parts
    restrict_to_rows(&call, used, g)
    launch(&call)


def count_steps(cnp.ndarray steps not None, cnp.ndarray hyper=None):
    """t ← t + 1 in every row (elements, t) of `steps`, float64. At the first step t becomes 1.

    NAdam's rows are (elements, t, product). With its hyper-parameters, product ← product · μ(t), too.
    """
    cdef Call call
    cdef Py_ssize_t columns = 2 if hyper is None else 3
    require_steps("count_steps", steps, columns)
    begin(&call, COUNT_STEPS_KERNEL, 0)
    if hyper is not None:
        require_vector("count_steps", hyper, cnp.NPY_FLOAT64, (<Rule> RULES["nadam"]).hyper)
    bind_all(&call, 0, check_out("count_steps", steps), hyper)
    call.size[0], call.size[1] = cnp.PyArray_DIM(steps, 0), columns
    launch_parts(&call, 1, call.size[0])


cdef double require_steps(str name, cnp.ndarray steps, Py_ssize_t columns) except -1:
    """Return the sum of the elements in the rows (elements, …). Raise an error unless they have this many columns."""
    cdef double elements = 0
    cdef Py_ssize_t p
    if type_number(steps) != cnp.NPY_FLOAT64:
        raise TypeError(f"{name} expected steps in float64, got {steps.dtype}")
    if (cnp.PyArray_NDIM(steps) != 2 or cnp.PyArray_DIM(steps, 1) != columns or not cnp.PyArray_IS_C_CONTIGUOUS(steps)
            or not cnp.PyArray_ISBEHAVED_RO(steps)):
        raise ValueError(f"{name} expected contiguous steps of shape (parameters, {columns}), got shape "
                         f"{get_dims(steps)}")
    for p in range(cnp.PyArray_DIM(steps, 0)):
        elements += (<double*> cnp.PyArray_DATA(steps))[columns * p]
    return elements
