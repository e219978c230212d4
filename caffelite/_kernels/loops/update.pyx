# The optimizers' updates, over flat vectors of neighbouring parameters. Formulas and names are those of the docstrings
# in `caffelite.optimizers.rules`. Hyper-parameters are read from memory at each call, so a recorded step follows them.
#   size     0 elements, 1 vectors in the state, 2 parameters with a row in steps, 3 whether w is sparse
#   operand  0 w, 1 g, 2 the rule's state (vectors stride 0 apart), 3 its hyper-parameters in float64,
#            4 steps, a row (elements, t) for each parameter, in float64, where the rule counts them
#            5 the rows of the matrix w in which g may not be 0, if others are to be passed over: those of a sparse
#              w always, else where that makes no difference
#   parts    the elements
#
# All is read before anything is written: processors let a load wait for an earlier store if their addresses agree
# modulo 4096, which halves the speed where those of w and the state do. Running means that gradients no longer feed end
# at 0: else they end as subnormal numbers, and slow, which a decay leaves alone.

from caffelite._kernels.loops.arithmetic cimport root, sum_of_products
from caffelite._kernels.loops.family cimport *

cdef extern from "loops/sums.h" nogil:
    double squares_float(const float* x, Py_ssize_t n)
    double squares_double(const double* x, Py_ssize_t n)


cdef struct SGD:
    double lr, momentum, decay, nesterov


cdef int sgd(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* g = <const real*> call.operand[1].data
    cdef real* v = <real*> call.operand[2].data        # absent without momentum
    cdef const SGD* hyper = <const SGD*> call.operand[3].data
    cdef real lr = <real> hyper.lr, momentum = <real> hyper.momentum, decay = <real> hyper.decay
    cdef Py_ssize_t i
    cdef real step

    if by_used_rows(call, v == NULL and decay == 0):
        return each_used_row(w, call, begin, end)
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
    if by_used_rows(call, decay == 0 and eps > 0):
        return each_used_row(w, call, begin, end)
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
    cdef real tiny = FLT_MIN if real is float else DBL_MIN, least = tiny if eps > 0 else 0
    cdef Py_ssize_t i
    cdef real d, square, step

    if call.size[1] == 1:
        for i in range(begin, end):
            d = g[i] + decay * w[i]
            square = sum_of_products(alpha, v[i], rest * d, d)
            w[i] -= lr * d / (root(square) + eps)
            v[i] = 0 if square < least else square
    else:
        for i in range(begin, end):
            d = g[i] + decay * w[i]
            square = sum_of_products(alpha, v[i], rest * d, d)
            step = momentum * b[i] + d / (root(square) + eps)
            w[i] -= lr * step
            v[i] = 0 if square < least else square
            b[i] = 0 if abs(step) < tiny else step
    return CONTINUE


# t ← t + 1 for every parameter of a run.
#   size     0 parameters
#   operand  0 steps, as above
#   parts    1
cdef int count_steps(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef double* steps = <double*> out
    cdef Py_ssize_t p
    for p in range(call.size[0]):
        steps[2 * p + 1] += 1
    return CONTINUE


cdef struct Adam:
    double lr, beta1, beta2, eps, decay


cdef struct InStep:                       # what Adam's formula makes of the hyper-parameters in step t
    double lr, beta1, beta2, eps, decay, shrink


cdef int adam(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    adam_step_by_step(w, call, begin, end, False)
    return CONTINUE


cdef int adamw(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    adam_step_by_step(w, call, begin, end, True)
    return CONTINUE


# Parameters one after the other, each in its own step t; usually all are in one, which is one loop.
cdef inline void adam_step_by_step(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end,
                                   bint decoupled) noexcept nogil:
    cdef const double* steps = <const double*> call.operand[4].data
    cdef const int64_t* used = some_rows(call, call.size[0])
    cdef Py_ssize_t parameters = call.size[2], width = call.size[ROW], p, first = 0, last = 0
    cdef InStep step
    for p in range(parameters):
        last += <Py_ssize_t> steps[2 * p]
        if p + 1 == parameters or steps[2 * p + 3] != steps[2 * p + 1]:
            step = in_step(<const Adam*> call.operand[3].data, steps[2 * p + 1], decoupled)
            if used == NULL:
                adam_in_step(w, call, max(begin, first), min(end, last), step)
            else:                         # of a single parameter
                for first in range(used[0] * begin // call.parts, used[0] * end // call.parts):
                    adam_in_step(w, call, used[1 + first] * width, (used[1 + first] + 1) * width, step)
            first = last


# The corrections for t go into η and ε (Kingma and Ba, end of section 2).
cdef inline InStep in_step(const Adam* hyper, double t, bint decoupled) noexcept nogil:
    cdef double correction = sqrt(1 - pow(hyper.beta2, t))
    cdef InStep step
    step.lr, step.eps = hyper.lr * correction / (1 - pow(hyper.beta1, t)), hyper.eps * correction
    step.beta1, step.beta2 = hyper.beta1, hyper.beta2
    step.decay, step.shrink = 0 if decoupled else hyper.decay, hyper.lr * hyper.decay if decoupled else 0
    return step


# The elements begin … end − 1, all in one step.
cdef inline void adam_in_step(real* w, const Call* call, Py_ssize_t begin, Py_ssize_t end,
                              InStep step) noexcept nogil:
    cdef const real* g = <const real*> call.operand[1].data
    cdef real* m = <real*> call.operand[2].data
    cdef real* v = m + call.operand[2].stride[0]
    cdef real lr = <real> step.lr, eps = <real> step.eps, decay = <real> step.decay, shrink = <real> step.shrink
    cdef real beta1 = <real> step.beta1, rest1 = <real> (1 - step.beta1)
    cdef real beta2 = <real> step.beta2, rest2 = <real> (1 - step.beta2)
    cdef real tiny = FLT_MIN if real is float else DBL_MIN
    cdef real least = tiny if eps > 0 else 0       # beside ε, the root of a subnormal v is nothing
    cdef Py_ssize_t i
    cdef real d, mean, square
    for i in range(begin, end):
        d = g[i] + decay * w[i]
        mean = sum_of_products(beta1, m[i], rest1, d)
        square = sum_of_products(beta2, v[i], rest2 * d, d)
        w[i] -= shrink * w[i] + lr * mean / (root(square) + eps)
        m[i] = 0 if abs(mean) < tiny else mean
        v[i] = 0 if square < least else square


# Whether an update goes through these alone, where `skips` says whether rows whose gradient is 0 stay as they are.
cdef inline bint by_used_rows(const Call* call, bint skips) noexcept nogil:
    return (skips or call.size[3]) and some_rows(call, call.size[0]) != NULL


# The rate of a schedule after step t:  t ← t + 1,  η ← rates[t], or the last one once there are no more. Nothing where
# t < 0: that schedule has ended.
#   size     0 rates
#   operand  0 hyper-parameters, η first, 1 rates, 2 t in int64
#   parts    1
cdef int follow(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const double* rates = <const double*> call.operand[1].data
    cdef int64_t* t = <int64_t*> call.operand[2].data
    if t[0] >= 0:
        t[0] += 1
        (<double*> out)[0] = rates[min(t[0], call.size[0] - 1)]
    return CONTINUE


# ---- clipping: the norm of all gradients, then one factor for all ----

# y = √ (Σᵢ g[i]² + z²). The squares are summed in float64 and, where that is too small for float64's own, once more
# beside the largest. Stops with NOT_FINITE if the norm is infinite or NaN, as it is where an element is.
#   size     0 elements
#   operand  0 y and 2 z (if any), one element each, float64, 1 g, 5 the rows of the matrix g that are used, if not all
#   parts    1
cdef int norm(real* dtype, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* g = <const real*> call.operand[1].data
    cdef const double* z = <const double*> call.operand[2].data
    cdef Py_ssize_t n = call.size[0]
    cdef const int64_t* used = some_rows(call, n)
    cdef Py_ssize_t j
    cdef double y = 0
    if used == NULL:
        y = norm_of(g, n)
    else:
        for j in range(used[0]):
            y = hypot(y, norm_of(g + used[1 + j] * call.size[ROW], call.size[ROW]))
    y = y if z == NULL else hypot(y, z[0])
    (<double*> dtype)[0] = y
    return NOT_FINITE if y - y != 0 else CONTINUE


cdef inline double norm_of(const real* g, Py_ssize_t n) noexcept nogil:
    cdef double y = sqrt(squares(g, n))
    return norm_beside_largest(g, n) if y - y != 0 else y


cdef inline double squares(const real* g, Py_ssize_t n) noexcept nogil:
    if real is float:
        return squares_float(g, n)
    else:
        return squares_double(g, n)


cdef double norm_beside_largest(const real* g, Py_ssize_t n) noexcept nogil:
    cdef double largest = 0, total = 0
    cdef Py_ssize_t i
    for i in range(n):
        largest = max(largest, <double> abs(g[i]))
    for i in range(n):
        total += (g[i] / largest) * (g[i] / largest)
    return largest * sqrt(total)


# g[i] ← g[i] · limit / (norm + 10⁻⁶) if that is smaller. (One that is too small for float32 comes as two factors.)
#   operand  0 g, 1 norm (one element, float64), 5 the rows of the matrix g that are used, if not all
#   scalar   the limit
#   parts    the elements
cdef int limit_norm(real* g, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef double factor = call.scalar[0] / ((<const double*> call.operand[1].data)[0] + 1e-6)
    cdef real tiny = FLT_MIN if real is float else DBL_MIN
    cdef real first = <real> max(factor, tiny), rest = <real> (factor / first)
    cdef Py_ssize_t i
    if some_rows(call, call.parts) != NULL:
        return each_used_row(g, call, begin, end)
    if factor < 1:
        for i in range(begin, end):
            g[i] = g[i] * first * rest
    return CONTINUE


cdef at_load publish_all() noexcept nogil:
    publish("norm", <Loop> norm[float], <Loop> norm[double])
    publish("limit_norm", <Loop> limit_norm[float], <Loop> limit_norm[double])
    publish("sgd", <Loop> sgd[float], <Loop> sgd[double])
    publish("adagrad", <Loop> adagrad[float], <Loop> adagrad[double])
    publish("rmsprop", <Loop> rmsprop[float], <Loop> rmsprop[double])
    publish("adam", <Loop> adam[float], <Loop> adam[double])
    publish("adamw", <Loop> adamw[float], <Loop> adamw[double])
    publish("count_steps", <Loop> count_steps)
    publish("follow", <Loop> follow)
