# The optimizers' updates, over flat vectors of neighbouring parameters. Hyper-parameters are read from memory at each
# call, so a recorded step follows them.

# SGD:  g' = g + λ w,  v ← μ v + g',  w ← w − η v   (Nesterov: w ← w − η (g' + μ v))
#   size     0 elements
#   operand  0 w, 1 g, 2 v (absent without momentum), 3 hyper = (η, μ, λ, Nesterov) in float64
#   parts    the elements
cdef int sgd(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* g = <const real*> call.operand[1].data
    cdef real* v = <real*> call.operand[2].data
    cdef const double* hyper = <const double*> call.operand[3].data
    cdef real lr = <real> hyper[0], momentum = <real> hyper[1], decay = <real> hyper[2]
    cdef Py_ssize_t i
    cdef real step

    if v == NULL:
        for i in range(begin, end):
            w[i] -= lr * (g[i] + decay * w[i])
    elif hyper[3] == 0:
        for i in range(begin, end):
            v[i] = momentum * v[i] + (g[i] + decay * w[i])
            w[i] -= lr * v[i]
    else:
        for i in range(begin, end):
            step = g[i] + decay * w[i]
            v[i] = momentum * v[i] + step
            w[i] -= lr * (step + momentum * v[i])
    return CONTINUE


# t ← t + 1 for every parameter of a run.
#   size     0 parameters
#   operand  0 steps, a row (elements, t) for each parameter, in float64
#   parts    1
cdef int count_steps(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef double* steps = <double*> out
    cdef Py_ssize_t p
    for p in range(call.size[0]):
        steps[2 * p + 1] += 1
    return CONTINUE


# Adam, for parameters one after the other, each in its own step t, counted from 1:  g' = g + λ w,
#       m ← β₁ m + (1 − β₁) g',  v ← β₂ v + (1 − β₂) g'²,  w ← w − η (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)
# With decoupled decay g' = g, and w − η λ w takes the place of w.
#   size     0 elements, 1 parameters
#   operand  0 w, 1 g, 2 moments (m and v, stride 0 apart), 3 steps as above, 4 hyper = (η, β₁, β₂, ε, λ) in float64
#   parts    the elements
cdef int adam(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const double* steps = <const double*> call.operand[3].data
    cdef Py_ssize_t parameters = call.size[1], p, first = 0, last = 0
    for p in range(parameters):
        last += <Py_ssize_t> steps[2 * p]
        if p + 1 == parameters or steps[2 * p + 3] != steps[2 * p + 1]:    # usually all are in one step: one loop
            adam_in_step(w, call, max(begin, first), min(end, last), steps[2 * p + 1])
            first = last
    return CONTINUE


# The elements begin … end − 1, all in step t. The corrections for t go into η and ε (Kingma and Ba, end of section 2).
# All is read before anything is written: processors let a load wait for an earlier store if their addresses agree
# modulo 4096, which halves the speed where those of w, m and v do.
cdef inline void adam_in_step(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end, double t) noexcept nogil:
    cdef const real* g = <const real*> call.operand[1].data
    cdef real* m = <real*> call.operand[2].data
    cdef real* v = m + call.operand[2].stride[0]
    cdef const double* hyper = <const double*> call.operand[4].data
    cdef double correction = sqrt(1 - pow(hyper[2], t))
    cdef real lr = <real> (hyper[0] * correction / (1 - pow(hyper[1], t))), eps = <real> (hyper[3] * correction)
    cdef real beta1 = <real> hyper[1], beta2 = <real> hyper[2], rest1 = <real> (1 - hyper[1])
    cdef real rest2 = <real> (1 - hyper[2]), decay = 0, shrink = 0, tiny = FLT_MIN if real is float else DBL_MIN
    cdef real least = tiny if eps > 0 else 0       # beside ε, the root of a subnormal v is nothing
    cdef Py_ssize_t i
    cdef real d, mean, square

    if call.decoupled:
        shrink = <real> (hyper[0] * hyper[4])
    else:
        decay = <real> hyper[4]
    for i in range(begin, end):
        d = g[i] + decay * w[i]
        mean = beta1 * m[i] + rest1 * d
        square = beta2 * v[i] + rest2 * d * d
        w[i] -= shrink * w[i] + lr * mean / (root(square) + eps)
        m[i] = 0 if abs(mean) < tiny else mean     # else they end as subnormal numbers, and slow, which β leaves alone
        v[i] = 0 if square < least else square


publish("sgd", <Loop> sgd[float], <Loop> sgd[double])
publish("adam", <Loop> adam[float], <Loop> adam[double])
publish("count_steps", <Loop> count_steps)
