# Reductions. Their order depends on the shape alone, not on strides, and not on threads, because only outputs are
# divided among threads. float32 is summed in float64, so a sum over a million elements is as exact as its elements.
# First, eight elements are added in pairs in their own type, since a conversion takes as long as an addition. If a sum
# is not finite, it is computed again without pairs, because only a pair may have overflowed.

from caffelite._kernels.loops.arithmetic cimport INFINITE
from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.math cimport fast_exp, fast_log
from caffelite._kernels.loops.sums cimport deviations_of_row, exact_sum, squares_of_row, sums_of_columns
from caffelite._kernels.loops.update cimport run_used_rows, get_used_rows


# y[o, i] = scale · Σₖ a[o, k, i] (+ y[o, i] when accumulating), a and y contiguous.
#   size     0 outer, 1 the summed axis, 2 inner
#   parts    the outputs, outer · inner
cdef int sum(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* a = <const real*> call.operand[1].data
    cdef Py_ssize_t n = call.size[1], inner = call.size[2]
    cdef Py_ssize_t part, o, i, columns
    cdef bint has_nonfinite
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
            sums_of_columns(x, n, inner, <int> columns, total)
            has_nonfinite = False
            for i in range(columns):
                has_nonfinite |= total[i] - total[i] != 0
            if has_nonfinite:
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
            first[part] = find_first_extreme(x, n, sign)
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


cdef Py_ssize_t find_first_extreme(const real* x, Py_ssize_t n, real sign) noexcept nogil:
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


# y[o, k, i] = a[o, 0, i] + … + a[o, k, i], or a[o, k, i] + … + a[o, n − 1, i] in reverse
#   size     0 outer, 1 the summed axis, n, 2 inner, 3 whether in reverse
#   operand  0 y, 1 a (both contiguous)
#   parts    outer · inner
cdef int cumsum(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* a = <const real*> call.operand[1].data
    cdef Py_ssize_t n = call.size[1], inner = call.size[2]
    cdef Py_ssize_t part = begin, first, step, at, i, k, columns
    cdef double total[COLUMNS]

    while part < end:
        columns = min(COLUMNS, inner - part % inner, end - part)
        first = part // inner * n * inner + part % inner
        step = -inner if call.size[3] else inner
        first += (n - 1) * inner if call.size[3] else 0
        for i in range(columns):
            total[i] = 0
        for k in range(n):
            at = first + k * step
            for i in range(columns):
                total[i] += a[at + i]
                out[at + i] = <real> total[i]
        part += columns
    return CONTINUE


# y[o, i] = Πₖ a[o, k, i], in float64
#   size     0 outer, 1 the reduced axis, 2 inner
#   operand  0 y, 1 a (both contiguous)
#   parts    the outputs, outer · inner
cdef int prod(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* a = <const real*> call.operand[1].data
    cdef Py_ssize_t n = call.size[1], inner = call.size[2]
    cdef Py_ssize_t part = begin, i, k, columns
    cdef const real* x
    cdef double total[COLUMNS]

    while part < end:
        columns = min(COLUMNS, inner - part % inner, end - part)
        x = a + part // inner * n * inner + part % inner
        for i in range(columns):
            total[i] = 1
        for k in range(n):
            for i in range(columns):
                total[i] *= x[k * inner + i]
        for i in range(columns):
            y[part + i] = <real> total[i]
        part += columns
    return CONTINUE


# dx[o, k, i] = dy[o, i] times the product of a[o, …, i] without a[o, k, i]: the product of the elements before
# it, times the product of the elements after it. Division by a[o, k, i] would fail for 0.
#   size     0 outer, 1 the reduced axis, 2 inner
#   operand  0 dx, 1 dy, 2 a, 3 the products of the elements before, float64 (all contiguous)
#   parts    outer · inner
cdef int prod_grad(real* dx, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* dy = <const real*> call.operand[1].data
    cdef const real* a = <const real*> call.operand[2].data
    cdef double* before = <double*> call.operand[3].data
    cdef Py_ssize_t n = call.size[1], inner = call.size[2]
    cdef Py_ssize_t part = begin, first, at, i, k, columns
    cdef double total[COLUMNS]

    while part < end:
        columns = min(COLUMNS, inner - part % inner, end - part)
        first = part // inner * n * inner + part % inner
        for i in range(columns):
            total[i] = 1
        for k in range(n):
            at = first + k * inner
            for i in range(columns):
                before[at + i] = total[i]
                total[i] *= a[at + i]
        for i in range(columns):
            total[i] = 1
        for k in range(n - 1, -1, -1):
            at = first + k * inner
            for i in range(columns):
                dx[at + i] = <real> (dy[part + i] * (before[at + i] * total[i]))
                total[i] *= a[at + i]
        part += columns
    return CONTINUE


# m[i] = the mean of a[k, i] over k, for some columns i. It is a[0, i] and the mean difference from that, so equal
# elements are their own mean.
cdef inline void means(const real* a, Py_ssize_t n, Py_ssize_t inner, Py_ssize_t columns, double* m) noexcept nogil:
    cdef Py_ssize_t i, k
    cdef double sums[2]
    if n == 0:
        return
    if inner == 1:
        deviations_of_row(a, n, a[0], sums)
        m[0] = a[0] + sums[0] / n
        return
    for i in range(columns):
        m[i] = 0
    for k in range(1, n):
        for i in range(columns):
            m[i] += <double> a[k * inner + i] - a[i]
    for i in range(columns):
        m[i] = a[i] + m[i] / n


# y[o, i] = scale · Σₖ (a[o, k, i] − m[o, i])², with the means m. The second pass over a saves the digits that a
# difference of sums of squares would lose.
#   size     0 outer, 1 the reduced axis, 2 inner
#   operand  0 y, 1 a (both contiguous)
#   scalar   scale
#   parts    the outputs, outer · inner
cdef int variance(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* a = <const real*> call.operand[1].data
    cdef Py_ssize_t n = call.size[1], inner = call.size[2]
    cdef Py_ssize_t part = begin, i, k, columns
    cdef const real* x
    cdef double m[COLUMNS]
    cdef double total[COLUMNS]

    while part < end:
        columns = min(COLUMNS, inner - part % inner, end - part)
        x = a + part // inner * n * inner + part % inner
        means(x, n, inner, columns, m)
        if inner == 1:
            total[0] = squares_of_row(x, n, m[0])
        else:
            for i in range(columns):
                total[i] = 0
            for k in range(n):
                for i in range(columns):
                    total[i] += (x[k * inner + i] - m[i]) * (x[k * inner + i] - m[i])
        for i in range(columns):
            y[part + i] = <real> (call.scalar[0] * total[i])
        part += columns
    return CONTINUE


# dx[o, k, i] = dy[o, i] · 2 scale · (a[o, k, i] − m[o, i]), with the means m
#   size     0 outer, 1 the reduced axis, 2 inner
#   operand  0 dx, 1 dy, 2 a (all contiguous)
#   scalar   scale
#   parts    outer · inner
cdef int variance_grad(real* dx, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* dy = <const real*> call.operand[1].data
    cdef const real* a = <const real*> call.operand[2].data
    cdef Py_ssize_t n = call.size[1], inner = call.size[2]
    cdef Py_ssize_t part = begin, first, at, i, k, columns
    cdef double m[COLUMNS]
    cdef double factor[COLUMNS]

    while part < end:
        columns = min(COLUMNS, inner - part % inner, end - part)
        first = part // inner * n * inner + part % inner
        means(a + first, n, inner, columns, m)
        for i in range(columns):
            factor[i] = 2 * call.scalar[0] * dy[part + i]
        for k in range(n):
            at = first + k * inner
            for i in range(columns):
                dx[at + i] = <real> (factor[i] * (a[at + i] - m[i]))
        part += columns
    return CONTINUE


# s[i] = the largest a[k, i] over k, or 0 if that is infinite, for some columns i. Exponentials of a[k, i] − s[i] do not
# overflow, and their sum is not 0. If a[k, i] has infinities, the sum is infinite or 0, as its logarithm has to be.
cdef inline void find_shifts(const real* a, Py_ssize_t n, Py_ssize_t inner, Py_ssize_t columns, real* s) noexcept nogil:
    cdef Py_ssize_t i, k
    for i in range(columns):
        s[i] = <real> -INFINITE
    for k in range(n):
        for i in range(columns):
            s[i] = a[k * inner + i] if a[k * inner + i] > s[i] else s[i]
    for i in range(columns):
        s[i] = 0 if abs(s[i]) == INFINITE else s[i]


# y[o, i] = log Σₖ exp a[o, k, i]
#   size     0 outer, 1 the reduced axis, 2 inner
#   operand  0 y, 1 a (both contiguous)
#   parts    the outputs, outer · inner
cdef int logsumexp(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* a = <const real*> call.operand[1].data
    cdef Py_ssize_t n = call.size[1], inner = call.size[2]
    cdef Py_ssize_t part = begin, i, k, columns, some
    cdef const real* x
    cdef real s[COLUMNS]
    cdef real q[COLUMNS]
    cdef double total[COLUMNS]

    while part < end:
        columns = min(COLUMNS, inner - part % inner, end - part)
        x = a + part // inner * n * inner + part % inner
        find_shifts(x, n, inner, columns, s)
        for i in range(columns):
            total[i] = 0
        if inner == 1:
            k = 0
            while k < n:
                some = min(COLUMNS, n - k)
                for i in range(some):
                    q[i] = fast_exp(<real> (x[k + i] - s[0]))
                total[0] += exact_sum(q, some)
                k += some
        else:
            for k in range(n):
                for i in range(columns):
                    total[i] += fast_exp(<real> (x[k * inner + i] - s[i]))
        for i in range(columns):
            y[part + i] = <real> (s[i] + fast_log(total[i]))
        part += columns
    return CONTINUE


# dx[o, k, i] = dy[o, i] exp a[o, k, i] / Σₖ exp a[o, k, i]
#   size     0 outer, 1 the reduced axis, 2 inner
#   operand  0 dx, 1 dy, 2 a (all contiguous)
#   parts    outer · inner
cdef int logsumexp_grad(real* dx, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* dy = <const real*> call.operand[1].data
    cdef const real* a = <const real*> call.operand[2].data
    cdef Py_ssize_t n = call.size[1], inner = call.size[2]
    cdef Py_ssize_t part = begin, first, at, i, k, columns
    cdef real s[COLUMNS]
    cdef double total[COLUMNS]

    while part < end:
        columns = min(COLUMNS, inner - part % inner, end - part)
        first = part // inner * n * inner + part % inner
        find_shifts(a + first, n, inner, columns, s)
        if inner == 1:
            for k in range(first, first + n):
                dx[k] = fast_exp(<real> (a[k] - s[0]))
            total[0] = exact_sum(dx + first, n)
        else:
            for i in range(columns):
                total[i] = 0
            for k in range(n):
                at = first + k * inner
                for i in range(columns):
                    dx[at + i] = fast_exp(<real> (a[at + i] - s[i]))
                    total[i] += dx[at + i]
        for i in range(columns):
            s[i] = <real> (dy[part + i] / total[i])
        for k in range(n):
            at = first + k * inner
            for i in range(columns):
                dx[at + i] *= s[i]
        part += columns
    return CONTINUE


# Stops with NOT_FINITE if x, contiguous, holds an infinity or a NaN. Only reads.
#   parts    the elements
cdef int all_finite(real* x, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t i
    cdef bint has_nonfinite = False
    if get_used_rows(call, call.parts) != NULL:
        return run_used_rows(x, call, begin, end)
    for i in range(begin, end):           # x − x is 0 for every finite x and NaN for the others
        has_nonfinite |= x[i] - x[i] != 0
    return NOT_FINITE if has_nonfinite else CONTINUE


include "../generated/publish_reduction.pxi"
