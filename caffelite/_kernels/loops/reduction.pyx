# Reductions. Their order depends on the shape alone, not on strides, and not on threads, because only outputs are
# divided among threads. float32 is summed in float64, so a sum over a million elements is as exact as its elements.
# First, eight elements are added in pairs in their own type, since a conversion takes as long as an addition. If a sum
# is not finite, it is computed again without pairs, because only a pair may have overflowed.

from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.update cimport each_used_row, some_rows


# y[o, i] = scale · Σₖ a[o, k, i] (+ y[o, i] when accumulating), a and y contiguous.
#   size     0 outer, 1 the summed axis, 2 inner
#   parts    the outputs, outer · inner
cdef int sum(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* a = <const real*> call.operand[1].data
    cdef Py_ssize_t n = call.size[1], inner = call.size[2]
    cdef Py_ssize_t part, o, i, k, columns
    cdef const real* x
    cdef double total[COLUMNS]

    part = begin
    while part < end:
        if inner == 1:
            columns = 1
            total[0] = sum_contiguous(a + part * n, n)
        else:
            o = part // inner
            i = part % inner
            columns = min(COLUMNS, inner - i, end - part)
            x = a + o * n * inner + i
            for i in range(columns):
                total[i] = 0
            for k in range(n // 8):
                for i in range(columns):
                    total[i] += in_pairs(x + 8 * k * inner + i, inner)
            for k in range(n - n % 8, n):
                for i in range(columns):
                    total[i] += x[k * inner + i]
            for i in range(columns):
                if total[i] - total[i] != 0:
                    total[i] = sum_in_float64(x + i, n, inner)
        for i in range(columns):
            total[i] = <real> (call.scalar[0] * total[i])
        if call.accumulate:
            for i in range(columns):
                y[part + i] += <real> total[i]
        else:
            for i in range(columns):
                y[part + i] = <real> total[i]
        part += columns
    return CONTINUE


# first[o, i] = the first k with the largest sign · a[o, k, i], or with a NaN if there is one;  y[o, i] = a[o, k, i]
#   size     0 outer, 1 the reduced axis (at least one element), 2 inner
#   operand  0 y, 1 first (int64), 2 a (all contiguous)
#   scalar   the sign: 1 for the largest element, −1 for the smallest
#   parts    the outputs, outer · inner
cdef int extreme(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef int64_t* first = <int64_t*> call.operand[1].data
    cdef const real* a = <const real*> call.operand[2].data
    cdef Py_ssize_t n = call.size[1], inner = call.size[2]
    cdef Py_ssize_t part = begin, i, k, columns
    cdef real sign = <real> call.scalar[0], value
    cdef const real* x
    cdef real largest[COLUMNS]

    while part < end:
        i = part % inner
        x = a + part // inner * n * inner + i
        if inner == 1:
            columns = 1
            first[part] = first_extreme(x, n, sign)
        else:
            columns = min(COLUMNS, inner - i, end - part)
            for i in range(columns):
                largest[i] = sign * x[i]
                first[part + i] = 0
            for k in range(1, n):
                for i in range(columns):
                    value = sign * x[k * inner + i]
                    if (value > largest[i]) | ((value != value) & (largest[i] == largest[i])):
                        largest[i] = value
                        first[part + i] = k
        for i in range(columns):
            y[part + i] = x[first[part + i] * inner + i]
        part += columns
    return CONTINUE


cdef Py_ssize_t first_extreme(const real* x, Py_ssize_t n, real sign) noexcept nogil:
    cdef real lane[LANES]
    cdef real value
    cdef Py_ssize_t i, j
    cdef bint nan = False
    for j in range(LANES):
        lane[j] = sign * x[0]
    for i in range(n // LANES):
        for j in range(LANES):
            value = sign * x[LANES * i + j]
            lane[j] = value if value > lane[j] else lane[j]
    for i in range(n - n % LANES, n):
        lane[0] = sign * x[i] if sign * x[i] > lane[0] else lane[0]
    for j in range(1, LANES):
        lane[0] = lane[j] if lane[j] > lane[0] else lane[0]
    for i in range(n):
        nan |= x[i] != x[i]
    for i in range(n):
        if x[i] != x[i] if nan else sign * x[i] == lane[0]:
            return i
    return 0                              # never reached: one of the elements is the largest


# dx[o, k, i] = dy[o, i] at k = first[o, i], else 0
#   size     0 outer, 1 the reduced axis, 2 inner
#   operand  0 dx, 1 dy, 2 first (int64; all contiguous)
#   parts    the outputs, outer · inner
cdef int extreme_grad(real* dx, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* dy = <const real*> call.operand[1].data
    cdef const int64_t* first = <const int64_t*> call.operand[2].data
    cdef Py_ssize_t n = call.size[1], inner = call.size[2]
    cdef Py_ssize_t part = begin, i, k, columns
    cdef real* x

    while part < end:
        i = part % inner
        x = dx + part // inner * n * inner + i
        columns = min(inner - i, end - part)
        if inner == 1:
            memset(x, 0, n * sizeof(real))
        else:
            for k in range(n):
                memset(x + k * inner, 0, columns * sizeof(real))
        for i in range(columns):
            if first[part + i] < 0 or first[part + i] >= n:
                return OUT_OF_RANGE
            x[first[part + i] * inner + i] = dy[part + i]
        part += columns
    return CONTINUE


# Stops with NOT_FINITE if x, contiguous, holds an infinity or a NaN. Only reads.
#   parts    the elements
cdef int all_finite(real* x, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t i
    cdef bint others = False
    if some_rows(call, call.parts) != NULL:
        return each_used_row(x, call, begin, end)
    for i in range(begin, end):           # x − x is 0 for every finite x and NaN for the others
        others |= x[i] - x[i] != 0
    return NOT_FINITE if others else CONTINUE


cdef at_load publish_all() noexcept nogil:
    publish("sum", <Loop> sum[float], <Loop> sum[double])
    publish("extreme", <Loop> extreme[float], <Loop> extreme[double])
    publish("extreme_grad", <Loop> extreme_grad[float], <Loop> extreme_grad[double])
    publish("all_finite", <Loop> all_finite[float], <Loop> all_finite[double])
