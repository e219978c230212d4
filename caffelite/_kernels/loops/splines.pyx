# Sums of linear splines: a function of each column of a table.
#
# Column j of numbers has the edges e[starts[j]] … e[starts[j + 1] − 1], which rise. Its place in them is i + f for a
# number between edges i and i + 1, at the share f of the way. Smaller numbers have the place 0, larger ones the
# place of the last edge, and missing ones the place after the last edge.

from caffelite._kernels.loops.family cimport *

cdef extern from "loops/splines.h" nogil:
    double edge_position(double x, const double* e, Py_ssize_t last)
    # These take float* or double*, and f as such a number.
    void spline_row(void* y, const void* place, Py_ssize_t k, const int64_t* code, Py_ssize_t m, const void* table,
                    const int64_t* starts, const void* bias, Py_ssize_t w)
    void add_between(void* t, const void* dy, double f, Py_ssize_t w)
    void knots(void* table, const void* a, const void* v, const double* z, Py_ssize_t b, double s, Py_ssize_t w)
    void knots_grad(void* da, void* dv, void* ds, const void* dt, const void* a, const void* v, const double* z,
                    Py_ssize_t b, double s, Py_ssize_t w)
    void scaled_row(void* y, const void* a, double s, Py_ssize_t w)
    void add_products(void* y, const void* a, const void* dt, Py_ssize_t w)


# The places of numbers.
#   size     0 n, 1 k
#   operand  0 places, 1 x, 2 e (double), 3 starts (int64); all contiguous
#   parts    n
cdef int places(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const double* x = <const double*> call.operand[1].data
    cdef const double* e = <const double*> call.operand[2].data
    cdef const int64_t* starts = <const int64_t*> call.operand[3].data
    cdef Py_ssize_t k = call.size[1], i, j
    for i in range(begin, end):
        for j in range(k):
            y[i * k + j] = <real> edge_position(x[i * k + j], e + starts[j], starts[j + 1] - starts[j] - 1)
    return CONTINUE


# y = bias + the sum over the columns: of the rows around each place, and of the row of each code. Each thread first
# checks all codes. Stops with OUT_OF_RANGE if one is not in its column.
#   size     0 n, 1 k, 2 m, 3 w
#   operand  0 y (n, w), 1 places (n, k), 2 codes (int64, n, m), 3 table, 4 starts (int64, k + m + 1): where each column
#            begins in it, 5 bias; all contiguous
#   parts    n
cdef int splines(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* place = <const real*> call.operand[1].data
    cdef const int64_t* codes = <const int64_t*> call.operand[2].data
    cdef const real* table = <const real*> call.operand[3].data
    cdef const int64_t* starts = <const int64_t*> call.operand[4].data
    cdef const real* bias = <const real*> call.operand[5].data
    cdef Py_ssize_t k = call.size[1], m = call.size[2], w = call.size[3], i
    if not are_codes(codes, call.size[0], m, starts + k):
        return OUT_OF_RANGE
    for i in range(begin, end):
        spline_row(y + i * w, place + i * k, k, codes + i * m, m, table, starts, bias, w)
    return CONTINUE


cdef inline bint are_codes(const int64_t* codes, Py_ssize_t n, Py_ssize_t m, const int64_t* starts) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef bint has_invalid = False
    for i in range(n):
        for j in range(m):
            has_invalid |= (codes[i * m + j] < 0) | (codes[i * m + j] >= starts[j + 1] - starts[j])
    return not has_invalid


# The gradient of the table: each dy is added to the rows that its row of y was made of, in the order of the rows. Stops
# like `splines`, before it writes.
#   size     0 n, 1 k, 2 m, 3 w
#   operand  0 dt, 1 dy (n, w), 2 places (n, k), 3 codes (int64, n, m), 4 starts (int64, k + m + 1); all contiguous
#   parts    k + m
cdef int splines_grad(real* dt, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* dy = <const real*> call.operand[1].data
    cdef const real* place = <const real*> call.operand[2].data
    cdef const int64_t* codes = <const int64_t*> call.operand[3].data
    cdef const int64_t* starts = <const int64_t*> call.operand[4].data
    cdef Py_ssize_t n = call.size[0], k = call.size[1], m = call.size[2], w = call.size[3], i, j, row
    cdef real at, share
    if not are_codes(codes, n, m, starts + k):
        return OUT_OF_RANGE
    memset(dt + starts[begin] * w, 0, (starts[end] - starts[begin]) * w * sizeof(real))
    for j in range(begin, end):
        for i in range(n):
            at = place[i * k + j] if j < k else <real> codes[i * m + j - k]
            row = <Py_ssize_t> at if j < k else codes[i * m + j - k]
            share = at - row if j < k else 0
            add_between(dt + (starts[j] + row) * w, dy + i * w, share, w)
    return CONTINUE


# dx = the slope at x, times dy: 0 beyond the edges, and where x is missing.
#   size     0 n, 1 k, 2 −, 3 w
#   operand  0 dx (double), 1 dy (n, w), 2 places (n, k), 3 table, 4 starts (int64) of the table, 5 e (double), 6 starts
#            (int64) of e; all contiguous
#   parts    n
# The type is dy's.
cdef int splines_input_grad(real* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef double* dx = <double*> call.operand[0].data
    cdef const real* dy = <const real*> call.operand[1].data
    cdef const real* place = <const real*> call.operand[2].data
    cdef const real* table = <const real*> call.operand[3].data
    cdef const int64_t* starts = <const int64_t*> call.operand[4].data
    cdef const double* e = <const double*> call.operand[5].data
    cdef const int64_t* edge_starts = <const int64_t*> call.operand[6].data
    cdef Py_ssize_t k = call.size[1], w = call.size[3], i, j, c, row
    cdef const real* t
    cdef double total
    for i in range(begin, end):
        for j in range(k):
            row = <Py_ssize_t> place[i * k + j]
            total = 0
            if place[i * k + j] > 0 and row + 1 < edge_starts[j + 1] - edge_starts[j]:
                t = table + (starts[j] + row) * w
                for c in range(w):
                    total += <double> (t[w + c] - t[c]) * dy[i * w + c]
                total /= e[edge_starts[j] + row + 1] - e[edge_starts[j] + row]
            dx[i * k + j] = total
    return CONTINUE


# The table of column j. For a number, it has the knots of the spline, T[i + 1] = T[i] + s (a[i] + (z[i + 1] − z[i]) v)
# from T[0] = s z[0] v, and the row s a of a missing number. For categories, it has the rows s a.
#   size     0 −, 1 k, 2 m, 3 w
#   operand  0 table, 1 a, 2 v (k, w), 3 s (k + m), 4 z (double), 5 starts (int64, k + m + 1): where each column begins
#            in a and in z. In the table it is j rows later, or k for categories; all contiguous
#   parts    k + m
cdef int spline_table(real* table, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* a = <const real*> call.operand[1].data
    cdef const real* v = <const real*> call.operand[2].data
    cdef const real* s = <const real*> call.operand[3].data
    cdef const double* z = <const double*> call.operand[4].data
    cdef const int64_t* starts = <const int64_t*> call.operand[5].data
    cdef Py_ssize_t k = call.size[1], w = call.size[3], j, row, first
    for j in range(begin, end):
        first = starts[j]
        if j < k:
            knots(table + (first + j) * w, a + first * w, v + j * w, z + first, starts[j + 1] - first - 1, s[j], w)
            first = starts[j + 1] - 1
        for row in range(first, starts[j + 1]):
            scaled_row(table + (row + min(j + 1, k)) * w, a + row * w, s[j], w)
    return CONTINUE


# The gradients of `spline_table`. ds[j] is the sum of the row j of `dscale`.
#   size     0 −, 1 k, 2 m, 3 w
#   operand  0 da, 1 dv (k, w), 2 dscale (k + m, w), 3 dtable, 4 a, 5 v, 6 s, 7 z (double), 8 starts (int64)
#   parts    k + m
cdef int spline_table_grad(real* da, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef real* dv = <real*> call.operand[1].data
    cdef real* dscale = <real*> call.operand[2].data
    cdef const real* dt = <const real*> call.operand[3].data
    cdef const real* a = <const real*> call.operand[4].data
    cdef const real* v = <const real*> call.operand[5].data
    cdef const real* s = <const real*> call.operand[6].data
    cdef const double* z = <const double*> call.operand[7].data
    cdef const int64_t* starts = <const int64_t*> call.operand[8].data
    cdef Py_ssize_t k = call.size[1], w = call.size[3], j, row, first
    for j in range(begin, end):
        first = starts[j]
        if j < k:
            knots_grad(da + first * w, dv + j * w, dscale + j * w, dt + (first + j) * w, a + first * w, v + j * w,
                       z + first, starts[j + 1] - first - 1, s[j], w)
            first = starts[j + 1] - 1
        else:
            memset(dscale + j * w, 0, w * sizeof(real))
        for row in range(first, starts[j + 1]):
            scaled_row(da + row * w, dt + (row + min(j + 1, k)) * w, s[j], w)
            add_products(dscale + j * w, a + row * w, dt + (row + min(j + 1, k)) * w, w)
    return CONTINUE


include "../generated/publish_splines.pxi"
