# Elementwise loops: y[i] = f(a[i]) or f(a[i], b[i]), over arrays of up to four dimensions with any strides.
#
#   size     the broadcast shape, padded in front with ones; size[3] is innermost
#   operand  0 y, 1 a, 2 b (absent in functions of one argument)
#   parts    the rows (all but the innermost dimension), or the elements where there is only one row

cdef int elementwise(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* y = &call.operand[0]
    cdef const Operand* a = &call.operand[1]
    cdef const Operand* b = &call.operand[2]
    cdef const real* pa = <const real*> a.data
    cdef const real* pb = <const real*> b.data
    cdef Py_ssize_t n = call.size[3], i, i0, i1, i2

    if call.size[0] * call.size[1] * call.size[2] == 1:
        row(call.op, end - begin, out + begin * y.stride[3], y.stride[3],
            pa + begin * a.stride[3], a.stride[3], pb + begin * b.stride[3], b.stride[3])
        return CONTINUE

    for i in range(begin, end):
        i2 = i % call.size[2]
        i1 = i // call.size[2] % call.size[1]
        i0 = i // call.size[2] // call.size[1]
        row(call.op, n,
            out + i0 * y.stride[0] + i1 * y.stride[1] + i2 * y.stride[2], y.stride[3],
            pa + i0 * a.stride[0] + i1 * a.stride[1] + i2 * a.stride[2], a.stride[3],
            pb + i0 * b.stride[0] + i1 * b.stride[1] + i2 * b.stride[2], b.stride[3])
    return CONTINUE


cdef void row(Op op, Py_ssize_t n, real* y, Py_ssize_t sy,
              const real* a, Py_ssize_t sa, const real* b, Py_ssize_t sb) noexcept nogil:
    if sy == 1 and sa == 1 and sb == 1:   # what is usual, in loops of its own
        strided_row(op, n, y, 1, a, 1, b, 1)
    else:
        strided_row(op, n, y, sy, a, sa, b, sb)


# Comparisons are written so that NaN stays NaN.
cdef inline void strided_row(Op op, Py_ssize_t n, real* y, Py_ssize_t sy,
                             const real* a, Py_ssize_t sa, const real* b, Py_ssize_t sb) noexcept nogil:
    cdef Py_ssize_t j
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
    elif op == MAXIMUM:                   # the larger one, NaN where one of them is
        for j in range(n):
            y[j * sy] = b[j * sb] if (a[j * sa] < b[j * sb]) | (b[j * sb] != b[j * sb]) else a[j * sa]
    elif op == MINIMUM:
        for j in range(n):
            y[j * sy] = b[j * sb] if (a[j * sa] > b[j * sb]) | (b[j * sb] != b[j * sb]) else a[j * sa]
    elif op == EQUAL:
        for j in range(n):
            y[j * sy] = <real> 1 if a[j * sa] == b[j * sb] else <real> 0
    elif op == PUT_WHERE:                 # a where b is not 0; elsewhere y stays
        for j in range(n):
            y[j * sy] = a[j * sa] if b[j * sb] != 0 else y[j * sy]
    elif op == POWER:
        for j in range(n):
            y[j * sy] = <real> pow(a[j * sa], b[j * sb])
    elif op == POWER_GRAD_BASE:           # d(a ** b) / da = b a ** (b - 1), and 0 for b = 0 even where a is 0
        for j in range(n):
            y[j * sy] = 0 if b[j * sb] == 0 else <real> (b[j * sb] * pow(a[j * sa], <double> b[j * sb] - 1))
    elif op == POWER_GRAD_EXPONENT:       # d(a ** c) / dc = b log a, b = a ** c; 0 for a = 0, c >= 0 (b = 0 or 1)
        for j in range(n):
            y[j * sy] = 0 if a[j * sa] == 0 and abs(b[j * sb]) <= 1 else <real> (b[j * sb] * log(a[j * sa]))
    elif op == ABS:
        for j in range(n):
            y[j * sy] = abs(a[j * sa])
    elif op == ABS_GRAD:                  # a with the sign of b, 0 where b = 0: a is dy, b is what abs was given
        for j in range(n):
            y[j * sy] = 0 if b[j * sb] == 0 else -a[j * sa] if b[j * sb] < 0 else a[j * sa]
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


ctypedef fused target:
    float
    double
    int64_t

ctypedef fused number:
    int8_t
    int16_t
    int32_t
    int64_t
    uint8_t
    uint16_t
    uint32_t
    uint64_t
    float
    double


# y = a in another type; True is 1.
#   source   the type of a
#   size     the shape, padded in front with ones; size[3] is innermost
#   operand  0 y (contiguous), 1 a (any strides)
#   parts    the elements
cdef int convert(target* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const void* a = call.operand[1].data
    cdef Py_ssize_t i
    if call.source == BOOL:
        convert_from(y, <const uint8_t*> a, call, begin, end)
        for i in range(begin, end):       # a byte of a bool array may be any: all but 0 are True
            y[i] = <target> 1 if y[i] != 0 else <target> 0
    elif call.source == INT8:
        convert_from(y, <const int8_t*> a, call, begin, end)
    elif call.source == INT16:
        convert_from(y, <const int16_t*> a, call, begin, end)
    elif call.source == INT32:
        convert_from(y, <const int32_t*> a, call, begin, end)
    elif call.source == INT64:
        convert_from(y, <const int64_t*> a, call, begin, end)
    elif call.source == UINT8:
        convert_from(y, <const uint8_t*> a, call, begin, end)
    elif call.source == UINT16:
        convert_from(y, <const uint16_t*> a, call, begin, end)
    elif call.source == UINT32:
        convert_from(y, <const uint32_t*> a, call, begin, end)
    elif call.source == UINT64:
        convert_from(y, <const uint64_t*> a, call, begin, end)
    elif call.source == FLOAT32:
        convert_from(y, <const float*> a, call, begin, end)
    else:
        convert_from(y, <const double*> a, call, begin, end)
    return CONTINUE


cdef void convert_from(target* y, const number* a, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* x = &call.operand[1]
    cdef Py_ssize_t n = call.size[3], stride = x.stride[3], stop, i, i0, i1, i2, j
    cdef const number* row
    while begin < end:                    # a row, or what is wanted of it, at a time
        i = begin // n
        stop = min(end, (i + 1) * n)
        i2 = i % call.size[2]
        i1 = i // call.size[2] % call.size[1]
        i0 = i // call.size[2] // call.size[1]
        row = a + i0 * x.stride[0] + i1 * x.stride[1] + i2 * x.stride[2] + (begin - i * n) * stride
        for j in range(stop - begin):
            y[begin + j] = <target> row[j * stride]
        begin = stop
