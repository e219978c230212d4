# The optimizers' updates, over flat vectors of neighbouring parameters. The docstrings in `caffelite.optimizers.rules`
# have the formulas and explain the names. Each call reads the hyper-parameters from memory, so a recorded step follows
# their changes.
#   size     0 elements, 1 vectors in the state, 2 parameters with a row in steps, 3 whether w is sparse
#   operand  0 w, 1 g, 2 the rule's state (stride 0 is the distance between its vectors), 3 its hyper-parameters in
#            float64, 4 steps: a row (elements, t) for each parameter, in float64, if the rule counts steps (NAdam:
#              (elements, t, product of the momenta)),
#            5 the used rows of the matrix w: g is 0 in all others. The loop skips the others if w is sparse, or if
#              that makes no difference
#   parts    the elements
#
# Each iteration reads everything before it writes anything. If the addresses of a load and an earlier store agree
# modulo 4096, the processor delays the load. The addresses of w and the state may agree, and the speed would halve.
# A running mean whose gradients have become 0 falls until it is a subnormal number. It would stay one, because 0.9
# times the smallest is rounded to the smallest again, and subnormal numbers are slow. So the loop sets it to 0.

from caffelite._kernels.loops.arithmetic cimport root, sum_of_products
from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.sums cimport squares


cdef struct SGD:
    double lr, momentum, decay, nesterov


cdef int sgd(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* g = <const real*> call.operand[1].data
    cdef real* v = <real*> call.operand[2].data        # absent without momentum
    cdef const SGD* hyper = <const SGD*> call.operand[3].data
    cdef real lr = <real> hyper.lr, momentum = <real> hyper.momentum, decay = <real> hyper.decay
    cdef Py_ssize_t i
    cdef real step

    if visits_used_rows(call, v == NULL and decay == 0):
        return run_used_rows(w, call, begin, end)
    if v == NULL:
        for i in range(begin, end):
            w[i] -= lr * (g[i] + decay * w[i])
    elif hyper.nesterov == 0:
        for i in range(begin, end):
            v[i] = momentum * v[i] + (g[i] + decay * w[i])
            w[i] -= lr * v[i]
    else:
        for i in range(begin, end):
            step = g[i] + decay * w[i]
            v[i] = momentum * v[i] + step
            w[i] -= lr * (step + momentum * v[i])
    return CONTINUE


cdef struct Adagrad:
    double lr, eps, decay


cdef int adagrad(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* g = <const real*> call.operand[1].data
    cdef real* s = <real*> call.operand[2].data
    cdef const Adagrad* hyper = <const Adagrad*> call.operand[3].data
    cdef real lr = <real> hyper.lr, eps = <real> hyper.eps, decay = <real> hyper.decay, d, square
    cdef Py_ssize_t i
    if visits_used_rows(call, decay == 0 and eps > 0):
        return run_used_rows(w, call, begin, end)
    for i in range(begin, end):
        d = g[i] + decay * w[i]
        square = s[i] + d * d
        w[i] -= lr * d / (root(square) + eps)
        s[i] = square
    return CONTINUE


cdef struct RMSProp:
    double lr, alpha, eps, momentum, decay


cdef int rmsprop(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* g = <const real*> call.operand[1].data
    cdef real* v = <real*> call.operand[2].data
    cdef real* b = v + call.operand[2].stride[0]       # absent without momentum
    cdef const RMSProp* hyper = <const RMSProp*> call.operand[3].data
    cdef real lr = <real> hyper.lr, eps = <real> hyper.eps, momentum = <real> hyper.momentum
    cdef real decay = <real> hyper.decay, alpha = <real> hyper.alpha, rest = <real> (1 - hyper.alpha)
    cdef real tiny = FLT_MIN if real is float else DBL_MIN, smallest = tiny if eps > 0 else 0
    cdef Py_ssize_t i
    cdef real d, square, step

    if call.size[1] == 1:
        for i in range(begin, end):
            d = g[i] + decay * w[i]
            square = sum_of_products(alpha, v[i], rest * d, d)
            w[i] -= lr * d / (root(square) + eps)
            v[i] = 0 if square < smallest else square
    else:
        for i in range(begin, end):
            d = g[i] + decay * w[i]
            square = sum_of_products(alpha, v[i], rest * d, d)
            step = momentum * b[i] + d / (root(square) + eps)
            w[i] -= lr * step
            v[i] = 0 if square < smallest else square
            b[i] = 0 if abs(step) < tiny else step
    return CONTINUE


cdef struct Adadelta:
    double lr, rho, eps, decay


cdef int adadelta(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* g = <const real*> call.operand[1].data
    cdef real* v = <real*> call.operand[2].data
    cdef real* u = v + call.operand[2].stride[0]
    cdef const Adadelta* hyper = <const Adadelta*> call.operand[3].data
    cdef real lr = <real> hyper.lr, eps = <real> hyper.eps, decay = <real> hyper.decay
    cdef real rho = <real> hyper.rho, rest = <real> (1 - hyper.rho)
    cdef real tiny = FLT_MIN if real is float else DBL_MIN, smallest = tiny if eps > 0 else 0
    cdef Py_ssize_t i
    cdef real d, square, step, square_step
    for i in range(begin, end):
        d = g[i] + decay * w[i]
        square = sum_of_products(rho, v[i], rest * d, d)
        step = d * (root(u[i] + eps) / root(square + eps))
        square_step = sum_of_products(rho, u[i], rest * step, step)
        w[i] -= lr * step
        v[i] = 0 if square < smallest else square
        u[i] = 0 if square_step < smallest else square_step
    return CONTINUE


cdef struct Lion:
    double lr, beta1, beta2, decay


cdef int lion(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* g = <const real*> call.operand[1].data
    cdef real* m = <real*> call.operand[2].data
    cdef const Lion* hyper = <const Lion*> call.operand[3].data
    cdef real lr = <real> hyper.lr, shrink = <real> (hyper.lr * hyper.decay)
    cdef real beta1 = <real> hyper.beta1, rest1 = <real> (1 - hyper.beta1)
    cdef real beta2 = <real> hyper.beta2, rest2 = <real> (1 - hyper.beta2)
    cdef real tiny = FLT_MIN if real is float else DBL_MIN
    cdef Py_ssize_t i
    cdef real c, mean
    for i in range(begin, end):
        c = sum_of_products(beta1, m[i], rest1, g[i])
        mean = sum_of_products(beta2, m[i], rest2, g[i])
        w[i] -= shrink * w[i] + (lr if c > 0 else -lr if c < 0 else c)
        m[i] = 0 if abs(mean) < tiny else mean
    return CONTINUE


# t ← t + 1 for every parameter of a run of neighbours. NAdam: product ← product · μ(t), too.
#   size     0 parameters, 1 length of a row of steps
#   operand  0 steps, as above, 1 NAdam's hyper-parameters, if its momenta are multiplied
#   parts    1
cdef int count_steps(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef double* steps = <double*> out
    cdef Py_ssize_t columns = call.size[1], p
    for p in range(call.size[0]):
        steps[columns * p + 1] += 1
        if columns == 3:
            steps[3 * p + 2] *= nadam_momentum(<const NAdam*> call.operand[1].data, steps[3 * p + 1])
    return CONTINUE


cdef struct NAdam:
    double lr, beta1, beta2, eps, decay, momentum_decay


# μ(t) = β₁ (1 − 0.96^(t · momentum decay) / 2)
cdef inline double nadam_momentum(const NAdam* hyper, double t) noexcept nogil:
    return hyper.beta1 * (1 - 0.5 * pow(0.96, t * hyper.momentum_decay))


# As in Adam's update, neighbours with the same t and product are updated in one loop.
cdef int nadam(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const double* steps = <const double*> call.operand[4].data
    cdef const NAdam* hyper = <const NAdam*> call.operand[3].data
    cdef Py_ssize_t parameters = call.size[2], p, first = 0, last = 0
    for p in range(parameters):
        last += <Py_ssize_t> steps[3 * p]
        if p + 1 == parameters or steps[3 * p + 4] != steps[3 * p + 1] or steps[3 * p + 5] != steps[3 * p + 2]:
            nadam_in_step(w, call, max(begin, first), min(end, last), hyper, steps[3 * p + 1], steps[3 * p + 2])
            first = last
    return CONTINUE


# Update the elements begin … end − 1, which all have the same t and the same product of momenta.
cdef inline void nadam_in_step(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end, const NAdam* hyper,
                               double t, double product) noexcept nogil:
    cdef const real* g = <const real*> call.operand[1].data
    cdef real* m = <real*> call.operand[2].data
    cdef real* v = m + call.operand[2].stride[0]
    cdef double correction = sqrt(1 - pow(hyper.beta2, t)), next_momentum = nadam_momentum(hyper, t + 1)
    cdef real gradient_factor = <real> (hyper.lr * correction * (1 - nadam_momentum(hyper, t)) / (1 - product))
    cdef real mean_factor = <real> (hyper.lr * correction * next_momentum / (1 - product * next_momentum))
    cdef real eps = <real> (hyper.eps * correction), decay = <real> hyper.decay
    cdef real beta1 = <real> hyper.beta1, rest1 = <real> (1 - hyper.beta1)
    cdef real beta2 = <real> hyper.beta2, rest2 = <real> (1 - hyper.beta2)
    cdef real tiny = FLT_MIN if real is float else DBL_MIN
    cdef real smallest = tiny if eps > 0 else 0       # as in Adam's update
    cdef Py_ssize_t i
    cdef real d, mean, square
    for i in range(begin, end):
        d = g[i] + decay * w[i]
        mean = sum_of_products(beta1, m[i], rest1, d)
        square = sum_of_products(beta2, v[i], rest2 * d, d)
        w[i] -= sum_of_products(gradient_factor, d, mean_factor, mean) / (root(square) + eps)
        m[i] = 0 if abs(mean) < tiny else mean
        v[i] = 0 if square < smallest else square


cdef struct Adam:
    double lr, beta1, beta2, eps, decay


cdef struct InStep:                       # the hyper-parameters in step t, with Adam's corrections
    double lr, beta1, beta2, eps, decay, shrink


cdef int adam(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    adam_per_step(w, call, begin, end, False)
    return CONTINUE


cdef int adamw(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    adam_per_step(w, call, begin, end, True)
    return CONTINUE


# Each parameter has its own t. Neighbours with the same t, usually all parameters, are updated in one loop.
cdef inline void adam_per_step(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end,
                               bint decoupled) noexcept nogil:
    cdef const double* steps = <const double*> call.operand[4].data
    cdef const int64_t* used = get_used_rows(call, call.size[0])
    cdef Py_ssize_t parameters = call.size[2], width = call.size[ROW], p, first = 0, last = 0
    cdef InStep step
    for p in range(parameters):
        last += <Py_ssize_t> steps[2 * p]
        if p + 1 == parameters or steps[2 * p + 3] != steps[2 * p + 1]:
            step = step_factors(<const Adam*> call.operand[3].data, steps[2 * p + 1], decoupled)
            if used == NULL:
                adam_in_step(w, call, max(begin, first), min(end, last), step)
            else:                         # of a single parameter
                for first in range(used[0] * begin // call.parts, used[0] * end // call.parts):
                    adam_in_step(w, call, used[1 + first] * width, (used[1 + first] + 1) * width, step)
            first = last


# The corrections for t become factors of lr and ε (Kingma and Ba, end of section 2).
cdef inline InStep step_factors(const Adam* hyper, double t, bint decoupled) noexcept nogil:
    cdef double correction = sqrt(1 - pow(hyper.beta2, t))
    cdef InStep step
    step.lr, step.eps = hyper.lr * correction / (1 - pow(hyper.beta1, t)), hyper.eps * correction
    step.beta1, step.beta2 = hyper.beta1, hyper.beta2
    step.decay, step.shrink = 0 if decoupled else hyper.decay, hyper.lr * hyper.decay if decoupled else 0
    return step


# Update the elements begin … end − 1, which all have the same t.
cdef inline void adam_in_step(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end,
                              InStep step) noexcept nogil:
    cdef const real* g = <const real*> call.operand[1].data
    cdef real* m = <real*> call.operand[2].data
    cdef real* v = m + call.operand[2].stride[0]
    cdef real lr = <real> step.lr, eps = <real> step.eps, decay = <real> step.decay, shrink = <real> step.shrink
    cdef real beta1 = <real> step.beta1, rest1 = <real> (1 - step.beta1)
    cdef real beta2 = <real> step.beta2, rest2 = <real> (1 - step.beta2)
    cdef real tiny = FLT_MIN if real is float else DBL_MIN
    cdef real smallest = tiny if eps > 0 else 0       # the root of a subnormal v does not change √v + ε
    cdef Py_ssize_t i
    cdef real d, mean, square
    for i in range(begin, end):
        d = g[i] + decay * w[i]
        mean = sum_of_products(beta1, m[i], rest1, d)
        square = sum_of_products(beta2, v[i], rest2 * d, d)
        w[i] -= shrink * w[i] + lr * mean / (root(square) + eps)
        m[i] = 0 if abs(mean) < tiny else mean
        v[i] = 0 if square < smallest else square


# Whether an update goes through the used rows only. `skips`: a row whose gradient is 0 would not change anyway.
cdef inline bint visits_used_rows(const Call* call, bint skips) noexcept nogil:
    return (skips or call.size[3]) and get_used_rows(call, call.size[0]) != NULL


# The learning rate of a schedule after step t:  t ← t + 1,  lr ← rates[t]. After the last rate, lr keeps that one. If
# t < 0, the schedule has ended, and nothing changes. If rates[0] < 0, the others are for −rates[0] steps each.
#   size     0 rates
#   operand  0 hyper-parameters, lr first, 1 rates, 2 t in int64
#   parts    1
cdef int follow(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const double* rates = <const double*> call.operand[1].data
    cdef int64_t* t = <int64_t*> call.operand[2].data
    cdef Py_ssize_t i
    if t[0] >= 0:
        t[0] += 1
        if rates[0] < 0:
            i = 1 + <Py_ssize_t> min(t[0] / -rates[0], <double> (call.size[0] - 2))
        else:
            i = min(t[0], call.size[0] - 1)
        (<double*> out)[0] = rates[i]
    return CONTINUE


# The moving average of a vector x:  y[i] ← decay y[i] + (1 − decay) x[i] = y[i] + (1 − decay) (x[i] − y[i]).
#   operand  0 y, 1 x
#   scalar   decay
#   parts    the elements
cdef int ema(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* x = <const real*> call.operand[1].data
    cdef real rate = <real> (1 - call.scalar[0])
    cdef Py_ssize_t i
    for i in range(begin, end):
        y[i] += rate * (x[i] - y[i])
    return CONTINUE


# ---- clipping: the norm of all gradients, then one factor for all of them ----

# y = √ (Σᵢ g[i]² + z²). The squares are summed in float64. If the sum overflows, it is computed again with all g[i]
# divided by the largest. Stops with NOT_FINITE if the norm is infinite or NaN, so also if an element of g is.
#   size     0 elements
#   operand  0 y and 2 z (optional), one element each, float64, 1 g, 5 the used rows of the matrix g, if not all
#   parts    1
cdef int norm(real* dtype, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* g = <const real*> call.operand[1].data
    cdef const double* z = <const double*> call.operand[2].data
    cdef Py_ssize_t n = call.size[0]
    cdef const int64_t* used = get_used_rows(call, n)
    cdef Py_ssize_t j
    cdef double y = 0
    if used == NULL:
        y = gradient_norm(g, n)
    else:
        for j in range(used[0]):
            y = hypot(y, gradient_norm(g + used[1 + j] * call.size[ROW], call.size[ROW]))
    y = y if z == NULL else hypot(y, z[0])
    (<double*> dtype)[0] = y
    return NOT_FINITE if y - y != 0 else CONTINUE


cdef inline double gradient_norm(const real* g, Py_ssize_t n) noexcept nogil:
    cdef double y = sqrt(squares(g, n))
    return scaled_norm(g, n) if y - y != 0 else y


cdef double scaled_norm(const real* g, Py_ssize_t n) noexcept nogil:
    cdef double largest = 0, total = 0
    cdef Py_ssize_t i
    for i in range(n):
        largest = max(largest, <double> abs(g[i]))
    for i in range(n):
        total += (g[i] / largest) * (g[i] / largest)
    return largest * sqrt(total)


# g[i] ← g[i] · limit / (norm + 10⁻⁶) if that is smaller. A factor too small for float32 is applied as two factors.
#   operand  0 g, 1 norm (one element, float64), 5 the used rows of the matrix g, if not all
#   scalar   the limit
#   parts    the elements
cdef int limit_norm(real* g, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef double factor = call.scalar[0] / ((<const double*> call.operand[1].data)[0] + 1e-6)
    cdef real tiny = FLT_MIN if real is float else DBL_MIN
    cdef real first = <real> max(factor, tiny), rest = <real> (factor / first)
    cdef Py_ssize_t i
    if get_used_rows(call, call.parts) != NULL:
        return run_used_rows(g, call, begin, end)
    if factor < 1:
        for i in range(begin, end):
            g[i] = g[i] * first * rest
    return CONTINUE


include "../generated/publish_update.pxi"
