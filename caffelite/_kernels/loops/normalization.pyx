# Normalization: x̂ = (x − m) / √(v + ε),  y = x̂ scale + shift, with m and v the mean and the variance of the x that
# belong together: those of a row (layer_norm), or those of a feature in all rows and places (batch_norm).
#
# Sums are made in float64, and m is subtracted in two parts, the second being what the first lacks when it is rounded:
# float32 knows a mean of 10⁴ to 10⁻³ only, and the deviation may be smaller. Moments are float64, too: a row of m and
# one of 1 / √(v + ε), and for features one of v.

from caffelite._kernels.loops.arithmetic cimport multiply_add, sum_of_products_double
from caffelite._kernels.loops.elementwise cimport finish
from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.reduction cimport COLUMNS, LANES
from caffelite._kernels.loops.sums cimport exact_sum

cdef extern from "loops/sums.h" nogil:
    double plus_product_float(double total, float a, float b)
    double plus_product_double(double total, double a, double b)
    double squares_of_row_float(const float* x, Py_ssize_t n, double m)
    double squares_of_row_double(const double* x, Py_ssize_t n, double m)
    void products_of_row_float(const float* dy, const float* x, Py_ssize_t n, float high, float low, double* sums)
    void products_of_row_double(const double* dy, const double* x, Py_ssize_t n, double high, double low, double* sums)


# Σⱼ (x[j] − m)²
cdef inline double squares_of_row(const real* x, Py_ssize_t n, double m) noexcept nogil:
    if real is float:
        return squares_of_row_float(x, n, m)
    else:
        return squares_of_row_double(x, n, m)


# sums[0] = Σⱼ dy[j],  sums[1] = Σⱼ dy[j] (x[j] − m),  m = high + low
cdef inline void products_of_row(const real* dy, const real* x, Py_ssize_t n, real high, real low,
                                 double* sums) noexcept nogil:
    if real is float:
        products_of_row_float(dy, x, n, high, low, sums)
    else:
        products_of_row_double(dy, x, n, high, low, sums)


cdef inline double plus_product(double total, real a, real b) noexcept nogil:
    if real is float:
        return plus_product_float(total, a, b)
    else:
        return plus_product_double(total, a, b)


# ---- rows ----
#   n rows, C numbers each; scale and shift (C), shift may be absent; moments (2, n); all contiguous

# y[i, j] = (x[i, j] − m[i]) / √(v[i] + ε) scale[j] + shift[j]
#   size     0 n, 1 C
#   scalar   ε
#   operand  0 y, 1 x, 2 scale, 3 shift, 4 moments
#   parts    n
cdef int layer_norm(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* x = <const real*> call.operand[1].data
    cdef const real* scale = <const real*> call.operand[2].data
    cdef const real* shift = <const real*> call.operand[3].data
    cdef double* moments = <double*> call.operand[4].data
    cdef Py_ssize_t n = call.size[0], C = call.size[1], i, j
    cdef double m
    cdef real high, low, inverse
    x += begin * C
    y += begin * C
    for i in range(begin, end):
        m = exact_sum(x, C) / C
        moments[i] = m
        moments[n + i] = 1 / sqrt(squares_of_row(x, C, m) / C + call.scalar[0])
        high, low, inverse = <real> m, <real> (m - <real> m), <real> moments[n + i]
        if shift == NULL:
            for j in range(C):
                y[j] = ((x[j] - high) - low) * inverse * scale[j]
        else:
            for j in range(C):
                y[j] = ((x[j] - high) - low) * inverse * scale[j] + shift[j]
        x += C
        y += C
    return CONTINUE


# dx[i, j] = (g[i, j] − Σⱼ g[i, j] / C − x̂[i, j] Σⱼ g[i, j] x̂[i, j] / C) / √(v[i] + ε),  g = dy scale
#   size     0 n, 1 C
#   operand  0 dx, 1 dy, 2 x, 3 scale, 4 moments
#   parts    n
cdef int layer_norm_grad(real* dx, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* dy = <const real*> call.operand[1].data
    cdef const real* x = <const real*> call.operand[2].data
    cdef const real* scale = <const real*> call.operand[3].data
    cdef const double* moments = <const double*> call.operand[4].data
    cdef Py_ssize_t n = call.size[0], C = call.size[1], i, j, k
    cdef double of_g[LANES]
    cdef double of_product[LANES]
    cdef real high, low, inverse, mean, slope, g
    dx += begin * C
    dy += begin * C
    x += begin * C
    for i in range(begin, end):
        high, low, inverse = <real> moments[i], <real> (moments[i] - <real> moments[i]), <real> moments[n + i]
        for k in range(LANES):
            of_g[k] = of_product[k] = 0
        for j in range(C // LANES):
            for k in range(LANES):
                g = dy[LANES * j + k] * scale[LANES * j + k]
                of_g[k] += g
                of_product[k] += g * ((x[LANES * j + k] - high) - low)
        for j in range(C - C % LANES, C):
            g = dy[j] * scale[j]
            of_g[j % LANES] += g
            of_product[j % LANES] += g * ((x[j] - high) - low)
        mean = <real> (exact_sum(of_g, LANES) / C)
        slope = <real> (exact_sum(of_product, LANES) / C * moments[n + i] * moments[n + i])
        for j in range(C):
            dx[j] = (dy[j] * scale[j] - mean - ((x[j] - high) - low) * slope) * inverse
        dx += C
        dy += C
        x += C
    return CONTINUE


# dscale[j] = Σᵢ dy[i, j] x̂[i, j],  dshift[j] = Σᵢ dy[i, j]
#   size     0 n, 1 C
#   operand  0 dscale, 1 dshift, 2 dy, 3 x, 4 moments
#   parts    C
cdef int layer_norm_sums(real* dscale, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef real* dshift = <real*> call.operand[1].data
    cdef const real* dy = <const real*> call.operand[2].data
    cdef const real* x = <const real*> call.operand[3].data
    cdef const double* moments = <const double*> call.operand[4].data
    cdef Py_ssize_t n = call.size[0], C = call.size[1], first = begin, columns, i, j, k
    cdef real high, low, inverse
    cdef double of_product[COLUMNS]
    cdef double of_dy[COLUMNS]
    while first < end:
        columns = min(COLUMNS, end - first)
        for j in range(columns):
            of_product[j] = of_dy[j] = 0
        for i in range(n):
            high, low, inverse = <real> moments[i], <real> (moments[i] - <real> moments[i]), <real> moments[n + i]
            k = i * C + first
            for j in range(columns):
                of_product[j] += dy[k + j] * (((x[k + j] - high) - low) * inverse)
                of_dy[j] += dy[k + j]
        for j in range(columns):
            dscale[first + j], dshift[first + j] = <real> of_product[j], <real> of_dy[j]
        first += columns
    return CONTINUE


# ---- features ----
#   n images, C features, L places of each; x (n, C, L) in C order, channels last (n, L, C), or images last (C, L, n),
#   dy, y and dx as x; scale and shift (C), moments (3, C), contiguous
#
# Neighbours in memory that are of one feature are a run: each feature has `runs` of length `run`, together n L numbers.
# `run` is L in C order, 1 with channels last, n L with images last.
#
# Features are taken in blocks, each through all of its sums before the next, so that x, if it does not fill the cache,
# comes from memory once: FEATURES of them side by side where neighbours are features, else one.
#
# In every order of memory the same numbers are added in the same order: the places of an image in LANES lanes, the
# images one after the other; and where L is 1, four images at a time.

cdef enum:
    FEATURES = 256                        # with one place each
    SIDE_BY_SIDE = 64                     # features, or images, whose lanes stay in the first-level cache


# Four rows at once: the sums of the columns are loaded and stored a quarter as often.
cdef inline double sum_of_four(const real* x, Py_ssize_t C) noexcept nogil:
    return (<double> x[0] + x[C]) + (<double> x[2 * C] + x[3 * C])


cdef inline double squares_of_four(const real* x, Py_ssize_t C, double m) noexcept nogil:
    return (sum_of_products_double(x[0] - m, x[0] - m, x[C] - m, x[C] - m)
            + sum_of_products_double(x[2 * C] - m, x[2 * C] - m, x[3 * C] - m, x[3 * C] - m))


cdef inline Py_ssize_t at_once(const Call* call, Py_ssize_t features) noexcept nogil:
    if call.size[4] > 1:
        return 1
    return min(features, <Py_ssize_t> (FEATURES if call.size[2] == 1 else SIDE_BY_SIDE))


cdef inline double folded(const double* lane) noexcept nogil:
    return (((lane[0] + lane[4 * SIDE_BY_SIDE]) + (lane[2 * SIDE_BY_SIDE] + lane[6 * SIDE_BY_SIDE]))
            + ((lane[SIDE_BY_SIDE] + lane[5 * SIDE_BY_SIDE]) + (lane[3 * SIDE_BY_SIDE] + lane[7 * SIDE_BY_SIDE])))


# total[j] = Σ x, or Σ (x − m[j])² where m is given, over all x of feature first + j
cdef void totals(const real* x, const Call* call, Py_ssize_t first, Py_ssize_t features, const double* m,
                 double* total) noexcept nogil:
    cdef Py_ssize_t n = call.size[0], C = call.size[1], L = call.size[2], run = call.size[4], width, i, j
    cdef double sums[SIDE_BY_SIDE]
    for j in range(features):
        total[j] = 0
    if run == 1 and L == 1:
        totals_of_rows(x + first, n, C, features, m, total)
    elif run == 1:
        for i in range(n):
            sums_of_columns(x + i * L * C + first, C, L, features, m, 1, sums)
            for j in range(features):
                total[j] += sums[j]
    elif run == L:
        for i in range(n):
            if m == NULL:
                total[0] += exact_sum(x + (i * C + first) * L, L)
            else:
                total[0] += squares_of_row(x + (i * C + first) * L, L, m[0])
    else:
        i = 0
        while i < n:
            width = min(n - i, <Py_ssize_t> SIDE_BY_SIDE)
            sums_of_columns(x + first * run + i, n, L, width, m, 0, sums)
            for j in range(width):
                total[0] += sums[j]
            i += width


# total[j] += Σᵢ x[i, j], or Σᵢ (x[i, j] − m[j])², x (n, C)
cdef void totals_of_rows(const real* x, Py_ssize_t n, Py_ssize_t C, Py_ssize_t features, const double* m,
                         double* total) noexcept nogil:
    cdef Py_ssize_t i, j
    for i in range(n // 4):
        if m == NULL:
            for j in range(features):
                total[j] += sum_of_four(x + 4 * i * C + j, C)
        else:
            for j in range(features):
                total[j] += squares_of_four(x + 4 * i * C + j, C, m[j])
    for i in range(n - n % 4, n):
        if m == NULL:
            for j in range(features):
                total[j] += x[i * C + j]
        else:
            for j in range(features):
                total[j] += (x[i * C + j] - m[j]) * (x[i * C + j] - m[j])


# sums[j] = Σᵢ x[i, j], or Σᵢ (x[i, j] − m[j · step])², each as for a row (sums.h)
cdef void sums_of_columns(const real* x, Py_ssize_t stride, Py_ssize_t n, Py_ssize_t columns, const double* m,
                          Py_ssize_t step, double* sums) noexcept nogil:
    cdef double partial[LANES * SIDE_BY_SIDE]
    cdef double mean[SIDE_BY_SIDE]
    cdef double* lane
    cdef Py_ssize_t i, j
    memset(partial, 0, sizeof(partial))
    if m != NULL:
        for j in range(columns):
            mean[j] = m[j * step]
    for i in range(n):
        lane = partial + i % LANES * SIDE_BY_SIDE
        if m == NULL:
            for j in range(columns):
                lane[j] += x[j]
        else:
            for j in range(columns):
                lane[j] = multiply_add(x[j] - mean[j], x[j] - mean[j], lane[j])
        x += stride
    for j in range(columns):
        sums[j] = folded(partial + j)


# y[i, c, l] = (x[i, c, l] − m[c]) / √(v[c] + ε) scale[c] + shift[c],  m and v of x[:, c, :]
#   size     0 n, 1 C, 2 L, 3 runs, 4 run
#   scalar   ε
#   operand  0 y, 1 x, 2 scale, 3 shift, 4 moments
#   parts    C
cdef int batch_norm(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* x = <const real*> call.operand[1].data
    cdef double* m = <double*> call.operand[4].data
    cdef double* inverse = m + call.size[1]
    cdef double* v = inverse + call.size[1]
    cdef Py_ssize_t count = call.size[0] * call.size[2], features, j
    cdef double total[FEATURES]
    while begin < end:
        features = at_once(call, end - begin)
        totals(x, call, begin, features, NULL, total)
        for j in range(features):
            m[begin + j] = total[j] / count
        totals(x, call, begin, features, m + begin, total)
        for j in range(features):
            v[begin + j] = total[j] / count
            inverse[begin + j] = 1 / sqrt(v[begin + j] + call.scalar[0])
        normalize(y, call, begin, features)
        begin += features
    return CONTINUE


# y as above, for moments that are given
cdef int batch_norm_fixed(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t features
    while begin < end:
        features = at_once(call, end - begin)
        normalize(y, call, begin, features)
        begin += features
    return CONTINUE


cdef inline void normalize(real* y, const Call* call, Py_ssize_t first, Py_ssize_t features) noexcept nogil:
    cdef const real* x = <const real*> call.operand[1].data
    cdef const real* scale = <const real*> call.operand[2].data + first
    cdef const real* shift = <const real*> call.operand[3].data + first
    cdef const double* m = <const double*> call.operand[4].data + first
    cdef Py_ssize_t C = call.size[1], run = call.size[4], i, j, k
    cdef real high[FEATURES]
    cdef real low[FEATURES]
    cdef real factor[FEATURES]
    for j in range(features):
        high[j], low[j] = <real> m[j], <real> (m[j] - <real> m[j])
        factor[j] = <real> (m[C + j] * scale[j])
    for i in range(call.size[3]):
        k = (i * C + first) * run
        if run == 1:
            for j in range(features):
                y[k + j] = ((x[k + j] - high[j]) - low[j]) * factor[j] + shift[j]
            finish(y + k, call, features)
        else:
            for j in range(run):
                y[k + j] = ((x[k + j] - high[0]) - low[0]) * factor[0] + shift[0]
            finish(y + k, call, run)


# dscale[c] = Σ dy x̂,  dshift[c] = Σ dy  over all i and l,
# dx = (dy − dshift / (n L) − x̂ dscale / (n L)) scale / √(v + ε);  for fixed moments dx = dy scale / √(v + ε)
#   size     0 n, 1 C, 2 L, 3 runs, 4 run, 5 whether the moments were fixed
#   operand  0 dx, 1 dy, 2 x, 3 scale, 4 moments, 5 dscale, 6 dshift
#   parts    C
cdef int batch_norm_grad(real* dx, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* dy = <const real*> call.operand[1].data
    cdef const real* x = <const real*> call.operand[2].data
    cdef const real* scale = <const real*> call.operand[3].data
    cdef const double* m = <const double*> call.operand[4].data
    cdef const double* inverse = m + call.size[1]
    cdef real* dscale = <real*> call.operand[5].data
    cdef real* dshift = <real*> call.operand[6].data
    cdef Py_ssize_t count = call.size[0] * call.size[2], features, j
    cdef bint fixed = call.size[5] != 0
    cdef real high[FEATURES]
    cdef real low[FEATURES]
    cdef real factor[FEATURES]
    cdef real mean[FEATURES]
    cdef real slope[FEATURES]
    cdef double of_dy[FEATURES]
    cdef double of_product[FEATURES]
    while begin < end:
        features = at_once(call, end - begin)
        for j in range(features):
            high[j], low[j] = <real> m[begin + j], <real> (m[begin + j] - <real> m[begin + j])
            factor[j] = <real> (inverse[begin + j] * scale[begin + j])
        products(dy, x, call, begin, features, high, low, of_dy, of_product)
        for j in range(features):
            dscale[begin + j] = <real> (of_product[j] * inverse[begin + j])
            dshift[begin + j] = <real> of_dy[j]
            mean[j] = 0 if fixed else <real> (of_dy[j] / count)
            slope[j] = 0 if fixed else <real> (of_product[j] / count * inverse[begin + j] * inverse[begin + j])
        normalize_back(dx, call, begin, features, high, low, factor, mean, slope)
        begin += features
    return CONTINUE


# dx = (dy − mean − (x − m) slope) factor, of some features from `first` on, m = high + low
cdef inline void normalize_back(real* dx, const Call* call, Py_ssize_t first, Py_ssize_t features, const real* high,
                                const real* low, const real* factor, const real* mean,
                                const real* slope) noexcept nogil:
    cdef const real* dy = <const real*> call.operand[1].data
    cdef const real* x = <const real*> call.operand[2].data
    cdef Py_ssize_t C = call.size[1], run = call.size[4], i, j, k
    for i in range(call.size[3]):
        k = (i * C + first) * run
        if run == 1:
            for j in range(features):
                dx[k + j] = (dy[k + j] - mean[j] - ((x[k + j] - high[j]) - low[j]) * slope[j]) * factor[j]
        else:
            for j in range(run):
                dx[k + j] = (dy[k + j] - mean[0] - ((x[k + j] - high[0]) - low[0]) * slope[0]) * factor[0]


# of_dy[j] = Σ dy,  of_product[j] = Σ dy (x − m)  over all of feature first + j, m = high[j] + low[j]
cdef void products(const real* dy, const real* x, const Call* call, Py_ssize_t first, Py_ssize_t features,
                   const real* high, const real* low, double* of_dy, double* of_product) noexcept nogil:
    cdef Py_ssize_t n = call.size[0], C = call.size[1], L = call.size[2], run = call.size[4], width, i, j, k
    cdef double sums[2 * SIDE_BY_SIDE]
    for j in range(features):
        of_dy[j] = of_product[j] = 0
    if run == 1 and L == 1:
        for i in range(n):
            k = i * C + first
            for j in range(features):
                of_dy[j] += dy[k + j]
                of_product[j] += dy[k + j] * ((x[k + j] - high[j]) - low[j])
    elif run == 1:
        for i in range(n):
            k = i * L * C + first
            products_of_columns(dy + k, x + k, C, L, features, high, low, 1, sums)
            for j in range(features):
                of_dy[j] += sums[j]
                of_product[j] += sums[SIDE_BY_SIDE + j]
    elif run == L:
        for i in range(n):
            k = (i * C + first) * L
            products_of_row(dy + k, x + k, L, high[0], low[0], sums)
            of_dy[0] += sums[0]
            of_product[0] += sums[1]
    else:
        i = 0
        while i < n:
            k = first * run + i
            width = min(n - i, <Py_ssize_t> SIDE_BY_SIDE)
            products_of_columns(dy + k, x + k, n, L, width, high, low, 0, sums)
            for j in range(width):
                of_dy[0] += sums[j]
                of_product[0] += sums[SIDE_BY_SIDE + j]
            i += width


# sums[0, j] = Σᵢ dy[i, j],  sums[1, j] = Σᵢ dy[i, j] (x[i, j] − m[j · step]), each as for a row (sums.h)
cdef void products_of_columns(const real* dy, const real* x, Py_ssize_t stride, Py_ssize_t n, Py_ssize_t columns,
                              const real* high, const real* low, Py_ssize_t step, double* sums) noexcept nogil:
    cdef double partial[2 * LANES * SIDE_BY_SIDE]
    cdef real of_high[SIDE_BY_SIDE]
    cdef real of_low[SIDE_BY_SIDE]
    cdef double* first
    cdef double* second
    cdef Py_ssize_t i, j
    memset(partial, 0, sizeof(partial))
    for j in range(columns):
        of_high[j], of_low[j] = high[j * step], low[j * step]
    for i in range(n):
        first = partial + i % LANES * SIDE_BY_SIDE
        second = first + LANES * SIDE_BY_SIDE
        for j in range(columns):
            first[j] += dy[j]
            second[j] = plus_product(second[j], dy[j], (x[j] - of_high[j]) - of_low[j])
        dy += stride
        x += stride
    for j in range(columns):
        sums[j], sums[SIDE_BY_SIDE + j] = folded(partial + j), folded(partial + LANES * SIDE_BY_SIDE + j)


# ---- features of a part of the rows ----

# sums = the count of each feature's numbers, their mean, and Σ (x − mean)²; 0 where x is not to count
#   size     0 n, 1 C, 2 L, 3 runs, 4 run, 5 whether it counts
#   operand  0 x (read), 1 sums (3, C)
#   parts    C
cdef int feature_sums(real* x, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t C = call.size[1], count = call.size[0] * call.size[2], features, j
    cdef double* sums = <double*> call.operand[1].data
    cdef double total[FEATURES]
    if not call.size[5] or count == 0:
        for j in range(begin, end):
            sums[j] = sums[C + j] = sums[2 * C + j] = 0
        return CONTINUE
    while begin < end:
        features = at_once(call, end - begin)
        totals(x, call, begin, features, NULL, total)
        for j in range(features):
            sums[begin + j], sums[C + begin + j] = count, total[j] / count
        totals(x, call, begin, features, sums + C + begin, total)
        for j in range(features):
            sums[2 * C + begin + j] = total[j]
        begin += features
    return CONTINUE


# moments = m, 1 / √(v + ε), v of what has these sums, part after part (T. Chan, G. Golub and R. LeVeque, "Algorithms
# for computing the sample variance", The American Statistician 37(3), 1983)
#   size     0 parts, 1 C
#   scalar   ε
#   operand  0 moments (3, C), 1 sums (parts, 3, C)
#   parts    C
cdef int joined_moments(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef double* moments = <double*> out
    cdef const double* sums
    cdef Py_ssize_t C = call.size[1], j, _part
    cdef double count, mean, squares, more, apart
    for j in range(begin, end):
        sums = <const double*> call.operand[1].data + j
        count = mean = squares = 0
        for _part in range(call.size[0]):
            more = sums[0]
            if more > 0:
                apart = sums[C] - mean
                squares += sums[2 * C] + apart * apart * (count * more / (count + more))
                mean += apart * (more / (count + more))
                count += more
            sums += 3 * C
        moments[j], moments[2 * C + j] = mean, squares / count
        moments[C + j] = 1 / sqrt(moments[2 * C + j] + call.scalar[0])
    return CONTINUE


# sums = Σ dy,  Σ dy (x − m) of each feature
#   size     0 n, 1 C, 2 L, 3 runs, 4 run
#   operand  0 dy (read), 1 x, 2 moments, 3 sums (2, C)
#   parts    C
cdef int batch_norm_sums(real* dy, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* x = <const real*> call.operand[1].data
    cdef const double* m = <const double*> call.operand[2].data
    cdef double* of_dy = <double*> call.operand[3].data
    cdef Py_ssize_t features, j
    cdef real high[FEATURES]
    cdef real low[FEATURES]
    while begin < end:
        features = at_once(call, end - begin)
        for j in range(features):
            high[j], low[j] = <real> m[begin + j], <real> (m[begin + j] - <real> m[begin + j])
        products(dy, x, call, begin, features, high, low, of_dy + begin, of_dy + call.size[1] + begin)
        begin += features
    return CONTINUE


# dx, dscale and dshift as batch_norm_grad, of sums that are made: those of this part, and those of all
#   size     0 n, 1 C, 2 L, 3 runs, 4 run, 5 how many numbers of each feature there are in all
#   operand  0 dx, 1 dy, 2 x, 3 scale, 4 moments, 5 dscale, 6 dshift, 7 sums (2, C), 8 those of all (2, C)
#   parts    C
cdef int batch_norm_grad_of_sums(real* dx, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* scale = <const real*> call.operand[3].data
    cdef const double* m = <const double*> call.operand[4].data
    cdef const double* inverse = m + call.size[1]
    cdef real* dscale = <real*> call.operand[5].data
    cdef real* dshift = <real*> call.operand[6].data
    cdef const double* own = <const double*> call.operand[7].data
    cdef const double* of_all = <const double*> call.operand[8].data
    cdef Py_ssize_t C = call.size[1], features, j, c
    cdef real high[FEATURES]
    cdef real low[FEATURES]
    cdef real factor[FEATURES]
    cdef real mean[FEATURES]
    cdef real slope[FEATURES]
    while begin < end:
        features = at_once(call, end - begin)
        for j in range(features):
            c = begin + j
            high[j], low[j] = <real> m[c], <real> (m[c] - <real> m[c])
            factor[j] = <real> (inverse[c] * scale[c])
            dscale[c], dshift[c] = <real> (own[C + c] * inverse[c]), <real> own[c]
            mean[j] = <real> (of_all[c] / call.size[5])
            slope[j] = <real> (of_all[C + c] / call.size[5] * inverse[c] * inverse[c])
        normalize_back(dx, call, begin, features, high, low, factor, mean, slope)
        begin += features
    return CONTINUE


# mean ← mean + μ (m − mean),  variance ← variance + μ (v k / (k − 1) − variance), for features with finite moments;
# a variance beyond the largest number of its type becomes that number
#   size     0 C, 1 k, the numbers of each feature
#   scalar   μ
#   operand  0 mean, 1 variance, 2 moments
#   parts    1
cdef int follow_moments(real* mean, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef real* variance = <real*> call.operand[1].data
    cdef const double* m = <const double*> call.operand[2].data
    cdef Py_ssize_t C = call.size[0], j
    cdef double momentum = call.scalar[0], unbiased = <double> call.size[1] / (call.size[1] - 1)
    cdef const double* v = m + 2 * C
    cdef double largest = FLT_MAX if real is float else DBL_MAX, moved
    for j in range(C):
        if m[j] - m[j] == 0 and v[j] - v[j] == 0:
            mean[j] = <real> sum_of_products_double(1 - momentum, mean[j], momentum, m[j])
            moved = sum_of_products_double(1 - momentum, variance[j], momentum, min(v[j] * unbiased, DBL_MAX))
            variance[j] = <real> min(moved, largest)
    return CONTINUE


# moments = mean, 1 / √(variance + ε), variance
#   size     0 C
#   scalar   ε
#   operand  0 mean (read), 1 variance, 2 moments
#   parts    1
cdef int fixed_moments(real* mean, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* variance = <const real*> call.operand[1].data
    cdef double* m = <double*> call.operand[2].data
    cdef Py_ssize_t C = call.size[0], j
    for j in range(C):
        m[j] = mean[j]
        m[C + j] = 1 / sqrt(variance[j] + call.scalar[0])
        m[2 * C + j] = variance[j]
    return CONTINUE


cdef at_load publish_all() noexcept nogil:
    publish("layer_norm", <Loop> layer_norm[float], <Loop> layer_norm[double])
    publish("layer_norm_grad", <Loop> layer_norm_grad[float], <Loop> layer_norm_grad[double])
    publish("layer_norm_sums", <Loop> layer_norm_sums[float], <Loop> layer_norm_sums[double])
    publish("batch_norm", <Loop> batch_norm[float], <Loop> batch_norm[double])
    publish("batch_norm_fixed", <Loop> batch_norm_fixed[float], <Loop> batch_norm_fixed[double])
    publish("batch_norm_grad", <Loop> batch_norm_grad[float], <Loop> batch_norm_grad[double])
    publish("feature_sums", <Loop> feature_sums[float], <Loop> feature_sums[double])
    publish("joined_moments", <Loop> joined_moments)
    publish("batch_norm_sums", <Loop> batch_norm_sums[float], <Loop> batch_norm_sums[double])
    publish("batch_norm_grad_of_sums", <Loop> batch_norm_grad_of_sums[float], <Loop> batch_norm_grad_of_sums[double])
    publish("follow_moments", <Loop> follow_moments[float], <Loop> follow_moments[double])
    publish("fixed_moments", <Loop> fixed_moments[float], <Loop> fixed_moments[double])
