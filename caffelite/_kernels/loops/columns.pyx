# The numbers of a table: n rows of k numbers in float64, NaN if one is missing. Each column has a center and a scale.

from caffelite._kernels.loops.family cimport *


# z = (x − center) / scale,  y = z / √(1 + (z / limit)²), which is within ±limit. y = z if the limit is infinite.
# y = 0 if x is NaN. After the k numbers of a row follows, for each of the g columns in `gaps`, 1 if x is NaN, else 0.
#   size     0 n, 1 k, 2 g
#   scalar   0 limit
#   operand  0 y, 1 x, 2 center, 3 scale (double), 4 gaps (int64); all contiguous
#   parts    n
cdef int standardize(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const double* x = <const double*> call.operand[1].data
    cdef const double* center = <const double*> call.operand[2].data
    cdef const double* scale = <const double*> call.operand[3].data
    cdef const int64_t* gaps = <const int64_t*> call.operand[4].data
    cdef Py_ssize_t k = call.size[1], g = call.size[2], i, j
    cdef double limit = call.scalar[0], inverse = 1 / limit, z, q
    for i in range(begin, end):
        if inverse == 0:
            for j in range(k):
                z = (x[i * k + j] - center[j]) / scale[j]
                y[i * (k + g) + j] = <real> (z if z == z else 0)
        else:
            for j in range(k):
                z = (x[i * k + j] - center[j]) / scale[j]
                q = clip_to_finite_square((z if z == z else 0) * inverse)
                y[i * (k + g) + j] = <real> (limit * (q / sqrt(1 + q * q)))
        for j in range(g):
            y[i * (k + g) + k + j] = x[i * k + gaps[j]] != x[i * k + gaps[j]]
    return CONTINUE


# dx = dy / scale (1 + (z / limit)²)^(−3/2), 0 where x is NaN.
#   size     0 n, 1 k, 2 g
#   scalar   0 limit
#   operand  0 dx, 1 x, 2 center, 3 scale (double), 4 dy, whose rows have k + g numbers; all contiguous
#   parts    n
# The type is dy's.
cdef int standardize_grad(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef double* dx = <double*> call.operand[0].data
    cdef const double* x = <const double*> call.operand[1].data
    cdef const double* center = <const double*> call.operand[2].data
    cdef const double* scale = <const double*> call.operand[3].data
    cdef const real* dy = <const real*> call.operand[4].data
    cdef Py_ssize_t k = call.size[1], g = call.size[2], i, j
    cdef double inverse = 1 / call.scalar[0], z, q
    for i in range(begin, end):
        for j in range(k):
            z = (x[i * k + j] - center[j]) / scale[j]
            q = 1 + clip_to_finite_square(z * inverse) * clip_to_finite_square(z * inverse)
            dx[i * k + j] = dy[i * (k + g) + j] / (scale[j] * q * sqrt(q)) if z == z else 0
    return CONTINUE


# y[i, t − j] = (x[i, j] − e[t]) / (e[t + 1] − e[t]), held within 0 and 1, for the bins t of column j, which lie between
# the edges e[starts[j]] … e[starts[j + 1] − 1]. All bins below x are 1, all above are 0. They are 0 if x is NaN.
#   size     0 n, 1 k, 2 bins of all columns
#   operand  0 y, 1 x, 2 e (double), 3 starts (int64); all contiguous
#   parts    n
cdef int piecewise(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const double* x = <const double*> call.operand[1].data
    cdef const double* e = <const double*> call.operand[2].data
    cdef const int64_t* starts = <const int64_t*> call.operand[3].data
    cdef Py_ssize_t k = call.size[1], i, j, t
    cdef double value
    cdef real* row
    for i in range(begin, end):
        for j in range(k):
            value = x[i * k + j]
            row = y + i * call.size[2] - j
            for t in range(starts[j], starts[j + 1] - 1):
                row[t] = <real> (min(max((value - e[t]) / (e[t + 1] - e[t]), 0), 1) if value == value else 0)
    return CONTINUE


# dx[i, j] = dy[i, t − j] / (e[t + 1] − e[t]) for the bin t in which x[i, j] is, if any.
#   size     0 n, 1 k, 2 bins of all columns
#   operand  0 dx, 1 x, 2 e (double), 3 starts (int64), 4 dy; all contiguous
#   parts    n
# The type is dy's.
cdef int piecewise_grad(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef double* dx = <double*> call.operand[0].data
    cdef const double* x = <const double*> call.operand[1].data
    cdef const double* e = <const double*> call.operand[2].data
    cdef const int64_t* starts = <const int64_t*> call.operand[3].data
    cdef const real* dy = <const real*> call.operand[4].data
    cdef Py_ssize_t k = call.size[1], i, j, t
    for i in range(begin, end):
        for j in range(k):
            dx[i * k + j] = 0
            for t in range(starts[j], starts[j + 1] - 1):
                if e[t] <= x[i * k + j] < e[t + 1]:
                    dx[i * k + j] = dy[i * call.size[2] + t - j] / (e[t + 1] - e[t])
    return CONTINUE


# q, held to where its square is finite
cdef inline double clip_to_finite_square(double q) noexcept nogil:
    return min(max(q, -1e150), 1e150)


include "../generated/publish_columns.pxi"
