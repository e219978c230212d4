# Elementwise loops: y[i] = f(a[i]), f(a[i], b[i]) or f(a[i], b[i], c[i]), over arrays with any strides. Some f also
# return the derivative at a[i]: they write it to b[i] if there is a b.
#
#   op       selects f
#   scalar   its constants, if it has any: scalar0 and scalar1 in a loop
#   size     the broadcast shape, padded in front with ones; the last is innermost
#   operand  0 y, 1 a, 2 b, 3 c; absent if f does not take it
#   parts    the rows (all but the innermost dimension), or the elements if there is only one row

from caffelite._kernels.loops.arithmetic cimport root, sum_of_products
from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.math cimport (
    FAR, normal_bell, fast_cbrt, fast_cos, any_cos, fast_exp, expm1_below_0, fast_log1p, fast_log, normal_cdf,
    fast_sigmoid, fast_sin, any_sin, fast_tanh,
)
from caffelite._kernels.loops.matmul cimport lanes, transpose

cdef enum:
    ROWS_AT_ONCE = 64


cdef int elementwise(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* y = &call.operand[0]
    cdef const Operand* a = &call.operand[1]
    cdef const Operand* b = a if call.operand[2].data == NULL else &call.operand[2]
    cdef const Operand* c = a if call.operand[3].data == NULL else &call.operand[3]
    cdef Py_ssize_t sy = y.stride[INNERMOST], sa = a.stride[INNERMOST], sb = b.stride[INNERMOST]
    cdef Py_ssize_t sc = c.stride[INNERMOST], n = call.size[INNERMOST], rows, i
    cdef const real* pa
    cdef const real* pb
    cdef const real* pc
    cdef real* py
    cdef Py_ssize_t at[MAX_DIMS]
    if call.op == COPY and a.stride[INNERMOST - 1] == 1 and sa != 1 and sy == 1:
        transposed_copy(out, call, begin, end)
        return CONTINUE
    if is_one_row(call):
        row(call.op, end - begin, out + begin * sy, sy, <const real*> a.data + begin * sa, sa,
            <const real*> b.data + begin * sb, sb, <const real*> c.data + begin * sc, sc, call.scalar)
        return CONTINUE
    locate(call, begin, at)
    while begin < end:                    # all rows along the last axis but one, which are equally far apart
        rows = min(end - begin, call.size[INNERMOST - 1] - at[INNERMOST - 1])
        py, pa = out + offset(y, at), <const real*> a.data + offset(a, at)
        pb, pc = <const real*> b.data + offset(b, at), <const real*> c.data + offset(c, at)
        if call.op == COPY and sy == 1 and sa == 1:
            copy_rows(<char*> py, y.stride[INNERMOST - 1] * <Py_ssize_t> sizeof(real), <const char*> pa,
                      a.stride[INNERMOST - 1] * <Py_ssize_t> sizeof(real), rows, n * sizeof(real))
        else:
            for i in range(rows):
                row(call.op, n, py + i * y.stride[INNERMOST - 1], sy, pa + i * a.stride[INNERMOST - 1], sa,
                    pb + i * b.stride[INNERMOST - 1], sb, pc + i * c.stride[INNERMOST - 1], sc, call.scalar)
        begin += rows
        at[INNERMOST - 1] += rows - 1
        next_row(call, at)
    return CONTINUE


# Rows of n bytes, y_row and x_row bytes apart. A call of memcpy takes as long as the copy of a few vectors.
cdef inline void copy_rows(char* y, Py_ssize_t y_row, const char* x, Py_ssize_t x_row, Py_ssize_t rows,
                           Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    if 32 <= n < 128:
        for i in range(rows):
            copy_vectors(y + i * y_row, x + i * x_row, n)
    else:
        for i in range(rows):
            memcpy(y + i * y_row, x + i * x_row, n)


# ---- a copy in another order ----

# If a is contiguous along the last axis but one, and y along the last: transposes matrices in registers. It computes
# several rows of y together, and so reads and writes whole cache lines.
cdef void transposed_copy(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* y = &call.operand[0]
    cdef const Operand* a = &call.operand[1]
    cdef Py_ssize_t at[MAX_DIMS]
    cdef Py_ssize_t n = call.size[INNERMOST], rows, j
    cdef const real* x
    cdef real* to
    at[INNERMOST] = 0
    while begin < end:
        locate(call, begin, at)
        rows = min(min(end - begin, call.size[INNERMOST - 1] - at[INNERMOST - 1]), <Py_ssize_t> ROWS_AT_ONCE)
        x, to = <const real*> a.data + offset(a, at), out + offset(y, at)
        j = 0
        while j < n:
            transpose(to + j, y.stride[INNERMOST - 1], x + j * a.stride[INNERMOST], a.stride[INNERMOST],
                      min(n - j, lanes(x)), rows)
            j += lanes(x)
        begin += rows


# ---- one row ----

# Arrays that are not contiguous, and repeated elements, are copied piece by piece to contiguous arrays. So each f needs
# only one loop.
cdef void_apart piecewise(Op op, Py_ssize_t n, real* y, Py_ssize_t sy, const real* a, Py_ssize_t sa, const real* b,
                          Py_ssize_t sb, const real* c, Py_ssize_t sc, const double* scalar) noexcept nogil:
    cdef real scalar0 = <real> scalar[0], scalar1 = <real> scalar[1]
    cdef real piece[4][PIECE]
    cdef const real* pa
    cdef const real* pb
    cdef const real* pc
    cdef Py_ssize_t m, j
    cdef bint is_first = True
    while n > 0:
        m = min(n, PIECE)
        pa = contiguous_piece(piece[0], a, sa, m, is_first)
        pb = pa if b == a and sb == sa else contiguous_piece(piece[1], b, sb, m, is_first)
        pc = pa if c == a and sc == sa else contiguous_piece(piece[2], c, sc, m, is_first)
        if sy == 1:
            loop(op, m, y, pa, pb, pc, scalar0, scalar1)
        else:
            loop(op, m, piece[3], pa, pb, pc, scalar0, scalar1)
            for j in range(m):
                y[j * sy] = piece[3][j]
        if gives_derivative(op) and b != a and sb != 1:
            for j in range(m):
                (<real*> b)[j * sb] = pb[j]
        is_first = False
        n -= m
        y += m * sy
        a += m * sa
        b += m * sb
        c += m * sc


# The elements of x themselves if they are contiguous, else a copy of them in `piece`. A repeated element fills the
# piece once for all pieces.
cdef inline const real* contiguous_piece(real* piece, const real* x, Py_ssize_t stride, Py_ssize_t m,
                                         bint is_first) noexcept nogil:
    cdef real repeated
    cdef Py_ssize_t j
    if stride == 1:
        return x
    if stride == 0:
        if is_first:
            repeated = x[0]
            for j in range(m):
                piece[j] = repeated
    else:
        for j in range(m):
            piece[j] = x[j * stride]
    return piece


cdef inline bint gives_derivative(Op op) noexcept nogil:
    """Return True if f writes its derivative to b."""
    return op == GELU or op == GELU_TANH or op == FOCAL


cdef inline real clip_to(real x, real low, real high) noexcept nogil:
    x = low if (x < low) | (low != low) else x
    return high if (x > high) | (high != high) else x


cdef inline real sign(real x) noexcept nogil:
    return <real> 1 if x > 0 else <real> -1 if x < 0 else x


# The argument of the approximate GELU, 2u = 2 √(2/π) (x + 0.044715 x³), and its derivative. For larger |x| that is the
# one at ±30: it is multiplied by 0 there, and must not be infinite.
cdef inline real twice_u(real x) noexcept nogil:
    return x * (<real> 1.5957691216057308 + <real> (1.5957691216057308 * 0.044715) * (x * x))


cdef inline real twice_u_derivative(real x) noexcept nogil:
    x = 30 if x > 30 else x
    x = -30 if x < -30 else x
    return <real> 1.5957691216057308 + <real> (1.5957691216057308 * 0.134145) * (x * x)


# All comparisons keep NaN.
cdef void loop(Op op, Py_ssize_t n, real* y, const real* a, const real* b, const real* c,
               real scalar0, real scalar1) noexcept nogil:
    cdef Py_ssize_t j
    cdef real s
    if op == COPY:                        # also repeats a along axes of stride 0
        for j in range(n):
            y[j] = a[j]
    elif op == NEGATIVE:
        for j in range(n):
            y[j] = -a[j]
    elif op == RELU:                      # max(a, 0)
        for j in range(n):
            y[j] = 0 if a[j] < 0 else a[j]
    elif op == RELU_GRAD:                 # a where b > 0: a is dy, b is what relu returned
        for j in range(n):
            y[j] = 0 if b[j] <= 0 else a[j]
    elif op == LEAKY_RELU:                # a, times scalar0 below 0
        for j in range(n):
            y[j] = a[j] * scalar0 if a[j] <= 0 else a[j]
    elif op == LEAKY_RELU_GRAD:           # a, times scalar0 where b ≤ 0: a is dy, b is what leaky_relu returned
        for j in range(n):
            y[j] = a[j] * scalar0 if b[j] <= 0 else a[j]
    elif op == PRELU:                     # a, times b where a ≤ 0
        for j in range(n):
            y[j] = a[j] * b[j] if a[j] <= 0 else a[j]
    elif op == PRELU_GRAD:                # a, times c where b ≤ 0: a is dy, b is what prelu was given, c its slope
        for j in range(n):
            y[j] = a[j] * c[j] if b[j] <= 0 else a[j]
    elif op == ELU_GRAD:                  # a, where b ≤ 0 times b + scalar0: a is dy, b is what elu returned
        for j in range(n):
            y[j] = a[j] if b[j] > 0 else a[j] * (b[j] + scalar0)
    elif op == ADD:
        for j in range(n):
            y[j] = a[j] + b[j]
    elif op == SUBTRACT:
        for j in range(n):
            y[j] = a[j] - b[j]
    elif op == MULTIPLY:
        for j in range(n):
            y[j] = a[j] * b[j]
    elif op == DIVIDE:
        for j in range(n):
            y[j] = a[j] / b[j]
    elif op == DIVIDE_GRAD:               # −(a b): a is dy / b, b is what divide returned
        for j in range(n):
            y[j] = -(a[j] * b[j])
    elif op == MAXIMUM:                   # the larger one; NaN if either is NaN
        for j in range(n):
            y[j] = b[j] if (a[j] < b[j]) | (b[j] != b[j]) else a[j]
    elif op == MAXIMUM_GRAD:              # a where maximum(b, c) is the first (scalar0 = 0) or the second (1): a is dy
        for j in range(n):
            y[j] = a[j] if ((b[j] < c[j]) | (c[j] != c[j])) == (scalar0 != 0) else <real> 0
    elif op == MINIMUM:
        for j in range(n):
            y[j] = b[j] if (a[j] > b[j]) | (b[j] != b[j]) else a[j]
    elif op == MINIMUM_GRAD:
        for j in range(n):
            y[j] = a[j] if ((b[j] > c[j]) | (c[j] != c[j])) == (scalar0 != 0) else <real> 0
    elif op == EQUAL:
        for j in range(n):
            y[j] = <real> 1 if a[j] == b[j] else <real> 0
    elif op == WHERE:                     # b where a is not 0, else c
        for j in range(n):
            y[j] = b[j] if a[j] != 0 else c[j]
    elif op == CLIP:                      # min(max(a, scalar0), scalar1)
        for j in range(n):
            y[j] = clip_to(a[j], scalar0, scalar1)
    elif op == CLIP_GRAD:                 # a if clip leaves b unchanged: a is dy
        for j in range(n):
            y[j] = a[j] if clip_to(b[j], scalar0, scalar1) == b[j] else <real> 0
    elif op == ABS:
        for j in range(n):
            y[j] = abs(a[j])
    elif op == ABS_GRAD:                  # a times the sign of b: a is dy, b is what abs was given
        for j in range(n):
            y[j] = a[j] if b[j] > 0 else -a[j] if b[j] < 0 else b[j]
    elif op == SQRT:
        for j in range(n):
            y[j] = root(a[j])
    elif op == SQRT_GRAD:                 # a / 2b: a is dy, b is what sqrt returned
        for j in range(n):
            y[j] = a[j] / (b[j] + b[j])
    elif op == CBRT_GRAD:                 # a / 3b²: a is dy, b is what cbrt returned
        for j in range(n):
            y[j] = a[j] / (<real> 3 * (b[j] * b[j]))
    elif op == TANH_GRAD:                 # a (1 − b²): a is dy, b is what tanh returned
        for j in range(n):
            y[j] = a[j] * (<real> 1 - b[j]) * (<real> 1 + b[j])
    elif op == SIGMOID_GRAD:              # a b (1 − b): a is dy, b is what sigmoid returned
        for j in range(n):
            y[j] = a[j] * b[j] * (<real> 1 - b[j])
    elif op == PENALTY:                   # scalar0 |a| + scalar1 a² / 2
        for j in range(n):
            y[j] = sum_of_products(scalar0, abs(a[j]), scalar1 * <real> 0.5, a[j] * a[j])
    elif op == PENALTY_GRAD:              # a (scalar0 sign(b) + scalar1 b): a is dy, b is what penalty was given
        for j in range(n):
            y[j] = a[j] * sum_of_products(scalar0, sign(b[j]), scalar1, b[j])
    # Losses of one score a and its target b, and their derivatives (loss.pyx).
    elif op == SQUARED_ERROR:
        for j in range(n):
            y[j] = (a[j] - b[j]) * (a[j] - b[j])
    elif op == SQUARED_ERROR_GRAD:
        for j in range(n):
            y[j] = 2 * (a[j] - b[j])
    elif op == ABSOLUTE_ERROR:
        for j in range(n):
            y[j] = abs(a[j] - b[j])
    elif op == ABSOLUTE_ERROR_GRAD:
        for j in range(n):
            y[j] = sign(a[j] - b[j])
    elif op == HUBER:                     # d²/2, and scalar0 (|d| − scalar0/2) if |d| ≥ scalar0, d = a − b
        for j in range(n):
            s = abs(a[j] - b[j])
            y[j] = scalar0 * (s - <real> 0.5 * scalar0) if s > scalar0 else <real> 0.5 * (s * s)
    elif op == HUBER_GRAD:
        for j in range(n):
            y[j] = clip_to(a[j] - b[j], -scalar0, scalar0)
    elif op == QUANTILE:                  # c d if d ≥ 0, else (c − 1) d, d = b − a
        for j in range(n):
            s = b[j] - a[j]
            y[j] = (c[j] if s >= 0 else c[j] - <real> 1) * s
    elif op == QUANTILE_GRAD:
        for j in range(n):
            s = b[j] - a[j]
            y[j] = -c[j] if s > 0 else <real> 1 - c[j] if s < 0 else s
    else:
        elementary_loop(op, n, y, a, b, c, scalar0, scalar1)


# tanh(log(1 + exp x)) = n / (n + d), from e = exp(−|x|). n and d are sums of positive numbers, so no digits cancel.
cdef inline real tanh_softplus(real x, real e) noexcept nogil:
    cdef real n = e * (e + <real> 2) if x < 0 else <real> 1 + <real> 2 * e
    cdef real d = <real> 2 if x < 0 else <real> 2 * e * e
    return n / (n + d)


# Whether sin and cos need C's functions, which compilers do not turn into vector instructions, for a number.
cdef inline bint has_far(const real* x, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t j
    cdef bint far = False
    for j in range(n):
        far |= abs(x[j]) > FAR
    return far


# Operators that need many registers. They have their own function. So the simple ones above keep their registers.
cdef void_apart elementary_loop(Op op, Py_ssize_t n, real* y, const real* a, const real* b, const real* c,
                                real scalar0, real scalar1) noexcept nogil:
    cdef real* derivative = <real*> b          # the second output of some operators
    cdef Py_ssize_t j
    cdef real s, x, p, power
    if op == ELU:                       # a, and scalar0 (exp a − 1) below 0
        for j in range(n):
            s = scalar0 * expm1_below_0(<real> (0 if a[j] > 0 else a[j]))
            y[j] = a[j] if a[j] > 0 else s
    elif op == POWER:
        for j in range(n):
            y[j] = <real> pow(a[j], b[j])
    elif op == POWER_GRAD_BASE:           # a times d(b ** c) / db = c b ** (c − 1), and 0 for c = 0 even where b is 0
        for j in range(n):
            y[j] = a[j] * (<real> 0 if c[j] == 0
                           else <real> (c[j] * pow(b[j], <double> c[j] - 1)))
    elif op == POWER_GRAD_EXPONENT:       # a times d(b ** e) / de = c log b, c = b ** e; 0 for b = 0, e ≥ 0
        for j in range(n):
            y[j] = a[j] * (<real> 0 if b[j] == 0 and abs(c[j]) <= 1
                           else <real> (c[j] * log(b[j])))
    elif op == EXP:
        for j in range(n):
            y[j] = fast_exp(a[j])
    elif op == LOG:
        for j in range(n):
            y[j] = fast_log(a[j])
    elif op == CBRT:
        for j in range(n):
            y[j] = fast_cbrt(a[j])
    elif op == SIN:
        if has_far(a, n):
            for j in range(n):
                y[j] = any_sin(a[j])
        else:
            for j in range(n):
                y[j] = fast_sin(a[j])
    elif op == SIN_GRAD:                  # a cos b: a is dy, b is what sin was given
        if has_far(b, n):
            for j in range(n):
                y[j] = a[j] * any_cos(b[j])
        else:
            for j in range(n):
                y[j] = a[j] * fast_cos(b[j])
    elif op == COS:
        if has_far(a, n):
            for j in range(n):
                y[j] = any_cos(a[j])
        else:
            for j in range(n):
                y[j] = fast_cos(a[j])
    elif op == COS_GRAD:                  # −a sin b
        if has_far(b, n):
            for j in range(n):
                y[j] = -a[j] * any_sin(b[j])
        else:
            for j in range(n):
                y[j] = -a[j] * fast_sin(b[j])
    elif op == TANH:
        for j in range(n):
            y[j] = fast_tanh(a[j])
    elif op == SIGMOID:
        for j in range(n):
            y[j] = fast_sigmoid(a[j])
    elif op == SILU:
        for j in range(n):
            y[j] = a[j] * fast_sigmoid(a[j])
    elif op == SILU_GRAD:                 # a s (1 + b (1 − s)), s = sigmoid(b): a is dy, b is what silu was given
        for j in range(n):
            s = fast_sigmoid(b[j])
            y[j] = a[j] * (s * (<real> 1 + b[j] * (<real> 1 - s)))
    elif op == MISH:                      # a t, t = tanh(log(1 + exp a))
        for j in range(n):
            y[j] = a[j] * tanh_softplus(a[j], fast_exp(-abs(a[j])))
    elif op == MISH_GRAD:                 # a (t + b (1 − t²) sigmoid(b)): a is dy, b is what mish was given
        for j in range(n):
            s = fast_exp(-abs(b[j]))
            x = tanh_softplus(b[j], s)
            s = (s if b[j] < 0 else <real> 1) / (<real> 1 + s)
            y[j] = a[j] * (x + b[j] * (s * ((<real> 1 - x) * (<real> 1 + x))))
    elif op == GELU and b == a:           # x Φ(x)
        for j in range(n):
            x = a[j]
            y[j] = x * normal_cdf(x, normal_bell(x))
    elif op == GELU:                      # the derivative is Φ(x) + x Φ′(x)
        for j in range(n):
            x = a[j]
            s = normal_bell(x)
            p = normal_cdf(x, s)
            derivative[j] = p + x * (s * <real> 0.3989422804014327)
            y[j] = x * p
    elif op == GELU_TANH and b == a:      # x (1 + tanh u) / 2 = x s, s = sigmoid(2u)
        for j in range(n):
            x = a[j]
            y[j] = x * fast_sigmoid(twice_u(x))
    elif op == GELU_TANH:                 # the derivative is s + x s (1 − s) 2u′
        for j in range(n):
            x = a[j]
            s = fast_sigmoid(twice_u(x))
            derivative[j] = s + x * (s * (<real> 1 - s) * twice_u_derivative(x))
            y[j] = x * s
    elif op == SOFTPLUS:                  # log(1 + exp a) = max(a, 0) + log(1 + exp(−|a|))
        for j in range(n):
            s = fast_log1p(fast_exp(-abs(a[j])))
            y[j] = s if a[j] < 0 else a[j] + s
    elif op == SOFTPLUS_GRAD:             # a sigmoid(b): a is dy, b is what softplus was given
        for j in range(n):
            y[j] = a[j] * fast_sigmoid(b[j])
    elif op == CROSS_ENTROPY:             # (1 − b) a + (1 + (c − 1) b) log(1 + exp(−a))
        for j in range(n):
            s = fast_log1p(fast_exp(-abs(a[j])))
            s = s - a[j] if a[j] < 0 else s
            y[j] = sum_of_products(<real> 1 - b[j], a[j], <real> 1 + (c[j] - <real> 1) * b[j], s)
    elif op == CROSS_ENTROPY_GRAD:        # (1 + (c − 1) b) sigmoid(a) − c b
        for j in range(n):
            y[j] = sum_of_products(<real> 1 + (c[j] - <real> 1) * b[j], fast_sigmoid(a[j]), -c[j], b[j])
    elif op == POISSON:                   # exp(a) − b a. fast_exp ends in a product, which would overflow unseen here
        for j in range(n):
            y[j] = sum_of_products(-b[j], a[j], <real> 1, fast_exp(a[j]))
    elif op == POISSON_GRAD:
        for j in range(n):
            y[j] = fast_exp(a[j]) - b[j]
    elif op == FOCAL:                     # q a, q = p^scalar0, p = 1 − exp(−a), derivative q + q scalar0 exp(−a) a / p
        for j in range(n):
            x = a[j]
            s, p = fast_exp(-x), -expm1_below_0(-x)
            power = <real> pow(p, scalar0)
            if b != a:
                s = 0 if s == 0 else s if p == 0 else s * (x / p)
                derivative[j] = power * (<real> 1 + scalar0 * s)
            y[j] = power * x


# ---- for other files, by way of elementwise.pxd ----

cdef public void loop_float(int op, Py_ssize_t n, float* y, const float* a, const float* b, const float* c,
                            float scalar0, float scalar1) noexcept nogil:
    loop(<Op> op, n, y, a, b, c, scalar0, scalar1)


cdef public void loop_double(int op, Py_ssize_t n, double* y, const double* a, const double* b, const double* c,
                             double scalar0, double scalar1) noexcept nogil:
    loop(<Op> op, n, y, a, b, c, scalar0, scalar1)


cdef public void piecewise_float(int op, Py_ssize_t n, float* y, Py_ssize_t sy, const float* a, Py_ssize_t sa,
                                 const float* b, Py_ssize_t sb, const float* c, Py_ssize_t sc,
                                 const double* scalar) noexcept nogil:
    piecewise(<Op> op, n, y, sy, a, sa, b, sb, c, sc, scalar)


cdef public void piecewise_double(int op, Py_ssize_t n, double* y, Py_ssize_t sy, const double* a, Py_ssize_t sa,
                                  const double* b, Py_ssize_t sb, const double* c, Py_ssize_t sc,
                                  const double* scalar) noexcept nogil:
    piecewise(<Op> op, n, y, sy, a, sa, b, sb, c, sc, scalar)


include "../generated/publish_elementwise.pxi"
