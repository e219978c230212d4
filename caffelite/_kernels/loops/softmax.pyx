# Softmax and its logarithm, along rows: n rows of C numbers, C above 0. The loss has its own loops (loss.pyx), because
# these would take a quarter longer for rows of few classes.

from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.math cimport fast_exp, fast_log
from caffelite._kernels.loops.reduction cimport sum_contiguous


# y[i, j] = exp x[i, j] / Σⱼ exp x[i, j]
#   size     0 n, 1 C
#   operand  0 y, 1 x (both contiguous)
#   parts    n
cdef int softmax(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* x = <const real*> call.operand[1].data
    cdef Py_ssize_t C = call.size[1], n, i, j
    cdef real scale
    cdef real m[ROWS_AT_A_TIME]
    cdef double total[ROWS_AT_A_TIME]
    while begin < end:
        n = min(end - begin, ROWS_AT_A_TIME)
        exponentials(y + begin * C, x + begin * C, n, C, m, total)
        for i in range(n):
            scale = <real> (1 / total[i])
            for j in range((begin + i) * C, (begin + i + 1) * C):
                y[j] *= scale
        begin += n
    return CONTINUE


# dx[i, j] = y[i, j] (dy[i, j] − Σⱼ dy[i, j] y[i, j])
#   size     0 n, 1 C
#   operand  0 dx, 1 dy, 2 y (all contiguous)
#   parts    n
cdef int softmax_grad(real* dx, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* dy = <const real*> call.operand[1].data
    cdef const real* y = <const real*> call.operand[2].data
    cdef Py_ssize_t C = call.size[1], i, j
    cdef real total
    for i in range(begin, end):
        for j in range(i * C, (i + 1) * C):
            dx[j] = dy[j] * y[j]
        total = <real> sum_contiguous(dx + i * C, C)
        for j in range(i * C, (i + 1) * C):
            dx[j] = y[j] * (dy[j] - total)
    return CONTINUE


# y[i, j] = x[i, j] − log Σⱼ exp x[i, j]
#   size     0 n, 1 C
#   operand  0 y, 1 x (both contiguous)
#   parts    n
cdef int log_softmax(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* x = <const real*> call.operand[1].data
    cdef Py_ssize_t C = call.size[1], n, i, j
    cdef real m[ROWS_AT_A_TIME]
    cdef real log_total
    cdef double total[ROWS_AT_A_TIME]
    while begin < end:
        n = min(end - begin, ROWS_AT_A_TIME)
        exponentials(y + begin * C, x + begin * C, n, C, m, total)
        for i in range(n):
            log_total = <real> fast_log(total[i])
            for j in range((begin + i) * C, (begin + i + 1) * C):
                y[j] = (x[j] - m[i]) - log_total
        begin += n
    return CONTINUE


# dx[i, j] = dy[i, j] − exp y[i, j] Σⱼ dy[i, j]
#   size     0 n, 1 C
#   operand  0 dx, 1 dy, 2 y (all contiguous)
#   parts    n
cdef int log_softmax_grad(real* dx, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* dy = <const real*> call.operand[1].data
    cdef const real* y = <const real*> call.operand[2].data
    cdef Py_ssize_t C = call.size[1], n, i, j
    cdef real total
    while begin < end:
        n = min(end - begin, ROWS_AT_A_TIME)
        for j in range(begin * C, (begin + n) * C):
            dx[j] = fast_exp(y[j])
        for i in range(begin, begin + n):
            total = <real> sum_contiguous(dy + i * C, C)
            for j in range(i * C, (i + 1) * C):
                dx[j] = dy[j] - dx[j] * total
        begin += n
    return CONTINUE


include "../generated/publish_softmax.pxi"
