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
