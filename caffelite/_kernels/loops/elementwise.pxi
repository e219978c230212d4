# Elementwise loops: y[i] = f(a[i]), f(a[i], b[i]) or f(a[i], b[i], c[i]), over arrays with any strides.
#
#   op       what f is
#   scalar   its constants, if it has any
#   size     the broadcast shape, padded in front with ones; the last is innermost
#   operand  0 y, 1 a, 2 b, 3 c; those that f does not take are absent
#   parts    the rows (all but the innermost dimension), or the elements where there is only one row

cdef enum:
    INNERMOST = 3                         # MAX_DIMS − 1, which a build with overflow checks cannot compute here


cdef int elementwise(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* y = &call.operand[0]
    cdef const Operand* a = &call.operand[1]
    cdef const Operand* b = a if call.operand[2].data == NULL else &call.operand[2]
    cdef const Operand* c = a if call.operand[3].data == NULL else &call.operand[3]
    cdef Py_ssize_t at[MAX_DIMS]
    cdef Py_ssize_t n, i
    locate(call, 0, at)
    if is_one_row(call):
        at[INNERMOST] = begin
        n, begin, end = end - begin, 0, 1
    else:
        n = call.size[INNERMOST]
        at[INNERMOST] = 0
    for i in range(begin, end):
        if i > 0:
            locate(call, i, at)
        row(call.op, n, out + offset(y, at), y.stride[INNERMOST],
            <const real*> a.data + offset(a, at), a.stride[INNERMOST],
            <const real*> b.data + offset(b, at), b.stride[INNERMOST],
            <const real*> c.data + offset(c, at), c.stride[INNERMOST], call.scalar)
    return CONTINUE


# ---- rows of broadcast arrays ----

cdef inline bint is_one_row(const Call* call) noexcept nogil:
    cdef int d
    for d in range(INNERMOST):
        if call.size[d] != 1:
            return False
    return True


cdef inline void locate(const Call* call, Py_ssize_t i, Py_ssize_t* at) noexcept nogil:
    """The indices of row i along all axes but the innermost."""
    cdef int d
    for d in range(INNERMOST - 1, 0, -1):
        at[d] = i % call.size[d]
        i //= call.size[d]
    at[0] = i


cdef inline Py_ssize_t offset(const Operand* x, const Py_ssize_t* at) noexcept nogil:
    """Where the element with these indices stands."""
    cdef Py_ssize_t elements = 0
    cdef int d
    for d in range(MAX_DIMS):
        elements += at[d] * x.stride[d]
    return elements


# ---- one row ----

cdef void row(Op op, Py_ssize_t n, real* y, Py_ssize_t sy, const real* a, Py_ssize_t sa,
              const real* b, Py_ssize_t sb, const real* c, Py_ssize_t sc, const double* scalar) noexcept nogil:
    cdef real first = <real> scalar[0], second = <real> scalar[1]
    if sy == 1 and sa == 1 and sb == 1 and sc == 1:        # what is usual, in loops of its own
        strided_row(op, n, y, 1, a, 1, b, 1, c, 1, first, second)
    else:
        strided_row(op, n, y, sy, a, sa, b, sb, c, sc, first, second)


cdef inline real clipped(real x, real low, real high) noexcept nogil:
    x = low if (x < low) | (low != low) else x
    return high if (x > high) | (high != high) else x


cdef inline real sign_of(real x) noexcept nogil:
    return <real> 1 if x > 0 else <real> -1 if x < 0 else x


# The argument of the approximate GELU, 2u = 2 √(2/π) (x + 0.044715 x³), and its slope, which is held where it is
# multiplied by 0, so that it is never infinite.
cdef inline real twice_u(real x) noexcept nogil:
    return x * (<real> 1.5957691216057308 + <real> (1.5957691216057308 * 0.044715) * (x * x))


cdef inline real slope_of_twice_u(real x) noexcept nogil:
    x = 30 if x > 30 else x
    x = -30 if x < -30 else x
    return <real> 1.5957691216057308 + <real> (1.5957691216057308 * 0.134145) * (x * x)


# Comparisons are written so that NaN stays NaN.
cdef inline void strided_row(Op op, Py_ssize_t n, real* y, Py_ssize_t sy, const real* a, Py_ssize_t sa,
                             const real* b, Py_ssize_t sb, const real* c, Py_ssize_t sc,
                             real low, real high) noexcept nogil:
    cdef Py_ssize_t j
    cdef real s
    if op == COPY:                        # also repeats a along axes of stride 0
        for j in range(n):
            y[j * sy] = a[j * sa]
    elif op == NEGATIVE:
        for j in range(n):
            y[j * sy] = -a[j * sa]
    elif op == RELU:                      # max(a, 0)
        for j in range(n):
            y[j * sy] = 0 if a[j * sa] < 0 else a[j * sa]
    elif op == RELU_GRAD:                 # a where b > 0: a is dy, b is what relu returned
        for j in range(n):
            y[j * sy] = 0 if b[j * sb] <= 0 else a[j * sa]
    elif op == LEAKY_RELU:                # a, times `low` below 0
        for j in range(n):
            y[j * sy] = a[j * sa] * low if a[j * sa] <= 0 else a[j * sa]
    elif op == LEAKY_RELU_GRAD:           # a, times `low` where b ≤ 0: a is dy, b is what leaky_relu returned
        for j in range(n):
            y[j * sy] = a[j * sa] * low if b[j * sb] <= 0 else a[j * sa]
    elif op == ELU:                       # a, below 0 `low` (exp a − 1)
        for j in range(n):
            s = low * expm1_below_0(<real> (0 if a[j * sa] > 0 else a[j * sa]))
            y[j * sy] = a[j * sa] if a[j * sa] > 0 else s
    elif op == ELU_GRAD:                  # a, where b ≤ 0 times b + `low`: a is dy, b is what elu returned
        for j in range(n):
            y[j * sy] = a[j * sa] if b[j * sb] > 0 else a[j * sa] * (b[j * sb] + low)
    elif op == ADD:
        for j in range(n):
            y[j * sy] = a[j * sa] + b[j * sb]
    elif op == SUBTRACT:
        for j in range(n):
            y[j * sy] = a[j * sa] - b[j * sb]
    elif op == MULTIPLY:
        for j in range(n):
            y[j * sy] = a[j * sa] * b[j * sb]
    elif op == DIVIDE:
        for j in range(n):
            y[j * sy] = a[j * sa] / b[j * sb]
    elif op == DIVIDE_GRAD:               # −(a b): a is dy / b, b is what divide returned
        for j in range(n):
            y[j * sy] = -(a[j * sa] * b[j * sb])
    elif op == MAXIMUM:                   # the larger one, NaN where one of them is
        for j in range(n):
            y[j * sy] = b[j * sb] if (a[j * sa] < b[j * sb]) | (b[j * sb] != b[j * sb]) else a[j * sa]
    elif op == MINIMUM:
        for j in range(n):
            y[j * sy] = b[j * sb] if (a[j * sa] > b[j * sb]) | (b[j * sb] != b[j * sb]) else a[j * sa]
    elif op == EQUAL:
        for j in range(n):
            y[j * sy] = <real> 1 if a[j * sa] == b[j * sb] else <real> 0
    elif op == WHERE:                     # b where a is not 0, else c
        for j in range(n):
            y[j * sy] = b[j * sb] if a[j * sa] != 0 else c[j * sc]
    elif op == CLIP:                      # min(max(a, low), high)
        for j in range(n):
            y[j * sy] = clipped(a[j * sa], low, high)
    elif op == CLIP_GRAD:                 # a where b is what clip leaves as it is: a is dy
        for j in range(n):
            y[j * sy] = a[j * sa] if clipped(b[j * sb], low, high) == b[j * sb] else <real> 0
    elif op == POWER:
        for j in range(n):
            y[j * sy] = <real> pow(a[j * sa], b[j * sb])
    elif op == POWER_GRAD_BASE:           # a times d(b ** c) / db = c b ** (c − 1), and 0 for c = 0 even where b is 0
        for j in range(n):
            y[j * sy] = a[j * sa] * (<real> 0 if c[j * sc] == 0
                                     else <real> (c[j * sc] * pow(b[j * sb], <double> c[j * sc] - 1)))
    elif op == POWER_GRAD_EXPONENT:       # a times d(b ** e) / de = c log b, c = b ** e; 0 for b = 0, e ≥ 0
        for j in range(n):
            y[j * sy] = a[j * sa] * (<real> 0 if b[j * sb] == 0 and abs(c[j * sc]) <= 1
                                     else <real> (c[j * sc] * log(b[j * sb])))
    elif op == ABS:
        for j in range(n):
            y[j * sy] = abs(a[j * sa])
    elif op == ABS_GRAD:                  # a times the sign of b: a is dy, b is what abs was given
        for j in range(n):
            y[j * sy] = a[j * sa] if b[j * sb] > 0 else -a[j * sa] if b[j * sb] < 0 else b[j * sb]
    elif op == SQRT:
        for j in range(n):
            y[j * sy] = root(a[j * sa])
    elif op == SQRT_GRAD:                 # a / 2b: a is dy, b is what sqrt returned
        for j in range(n):
            y[j * sy] = a[j * sa] / (b[j * sb] + b[j * sb])
    elif op == EXP:
        for j in range(n):
            y[j * sy] = exp_of(a[j * sa])
    elif op == LOG:
        for j in range(n):
            y[j * sy] = log_of(a[j * sa])
    elif op == TANH:
        for j in range(n):
            y[j * sy] = tanh_of(a[j * sa])
    elif op == TANH_GRAD:                 # a (1 − b²): a is dy, b is what tanh returned
        for j in range(n):
            y[j * sy] = a[j * sa] * (<real> 1 - b[j * sb]) * (<real> 1 + b[j * sb])
    elif op == SIGMOID:
        for j in range(n):
            y[j * sy] = sigmoid_of(a[j * sa])
    elif op == SIGMOID_GRAD:              # a b (1 − b): a is dy, b is what sigmoid returned
        for j in range(n):
            y[j * sy] = a[j * sa] * b[j * sb] * (<real> 1 - b[j * sb])
    elif op == SILU:
        for j in range(n):
            y[j * sy] = a[j * sa] * sigmoid_of(a[j * sa])
    elif op == SILU_GRAD:                 # a s (1 + b (1 − s)), s = sigmoid(b): a is dy, b is what silu was given
        for j in range(n):
            s = sigmoid_of(b[j * sb])
            y[j * sy] = a[j * sa] * (s * (<real> 1 + b[j * sb] * (<real> 1 - s)))
    elif op == GELU:
        for j in range(n):
            y[j * sy] = a[j * sa] * normal_of(a[j * sa], bell_of(a[j * sa]))
    elif op == GELU_GRAD:                 # a (Φ(b) + b Φ′(b)): a is dy, b is what gelu was given
        for j in range(n):
            s = bell_of(b[j * sb])
            y[j * sy] = a[j * sa] * (normal_of(b[j * sb], s) + b[j * sb] * (s * <real> 0.3989422804014327))
    elif op == GELU_TANH:                 # a (1 + tanh u) / 2 = a sigmoid(2u)
        for j in range(n):
            y[j * sy] = a[j * sa] * sigmoid_of(twice_u(a[j * sa]))
    elif op == GELU_TANH_GRAD:            # a (s + b s (1 − s) 2u′), s = sigmoid(2u): a is dy, b was given
        for j in range(n):
            s = sigmoid_of(twice_u(b[j * sb]))
            y[j * sy] = a[j * sa] * (s + b[j * sb] * (s * (<real> 1 - s) * slope_of_twice_u(b[j * sb])))
    elif op == SOFTPLUS:                  # log(1 + exp a) = max(a, 0) + log(1 + exp(−|a|))
        for j in range(n):
            s = log1p_of(exp_of(-abs(a[j * sa])))
            y[j * sy] = s if a[j * sa] < 0 else a[j * sa] + s
    elif op == SOFTPLUS_GRAD:             # a sigmoid(b): a is dy, b is what softplus was given
        for j in range(n):
            y[j * sy] = a[j * sa] * sigmoid_of(b[j * sb])
    elif op == PENALTY:                   # low |a| + high a² / 2
        for j in range(n):
            y[j * sy] = low * abs(a[j * sa]) + high * <real> 0.5 * (a[j * sa] * a[j * sa])
    elif op == PENALTY_GRAD:              # a (low sign(b) + high b): a is dy, b is what penalty was given
        for j in range(n):
            y[j * sy] = a[j * sa] * (low * sign_of(b[j * sb]) + high * b[j * sb])
    # Losses of one score a and its target b, and what their slopes are (loss.pxi).
    elif op == SQUARED_ERROR:
        for j in range(n):
            y[j * sy] = (a[j * sa] - b[j * sb]) * (a[j * sa] - b[j * sb])
    elif op == SQUARED_ERROR_GRAD:
        for j in range(n):
            y[j * sy] = 2 * (a[j * sa] - b[j * sb])
    elif op == ABSOLUTE_ERROR:
        for j in range(n):
            y[j * sy] = abs(a[j * sa] - b[j * sb])
    elif op == ABSOLUTE_ERROR_GRAD:
        for j in range(n):
            y[j * sy] = sign_of(a[j * sa] - b[j * sb])
    elif op == HUBER:                     # d²/2, from |d| = low on low (|d| − low/2), d = a − b
        for j in range(n):
            s = abs(a[j * sa] - b[j * sb])
            y[j * sy] = low * (s - <real> 0.5 * low) if s > low else <real> 0.5 * (s * s)
    elif op == HUBER_GRAD:
        for j in range(n):
            y[j * sy] = clipped(a[j * sa] - b[j * sb], -low, low)
    elif op == CROSS_ENTROPY:             # (1 − b) a + (1 + (low − 1) b) log(1 + exp(−a))
        for j in range(n):
            s = log1p_of(exp_of(-abs(a[j * sa])))
            s = s - a[j * sa] if a[j * sa] < 0 else s
            y[j * sy] = (<real> 1 - b[j * sb]) * a[j * sa] + (<real> 1 + (low - <real> 1) * b[j * sb]) * s
    elif op == CROSS_ENTROPY_GRAD:        # (1 + (low − 1) b) sigmoid(a) − low b
        for j in range(n):
            y[j * sy] = (<real> 1 + (low - <real> 1) * b[j * sb]) * sigmoid_of(a[j * sa]) - low * b[j * sb]


publish("elementwise", <Loop> elementwise[float], <Loop> elementwise[double])
