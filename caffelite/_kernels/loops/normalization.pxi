# Normalization: x̂ = (x − m) / √(v + ε),  y = x̂ scale + shift, with m and v the mean and the variance of the x that
# belong together: those of a row (layer_norm), or those of a feature in all rows and places (batch_norm).
#
# Sums are made in float64, and m is subtracted in two parts, the second being what the first lacks when it is rounded:
# float32 knows a mean of 10⁴ to 10⁻³ only, and the deviation may be smaller. Moments are float64, too: a row of m and
# one of 1 / √(v + ε), and for features one of v.

# Σⱼ x[j], every addition in float64
cdef inline double exact_sum(const real* x, Py_ssize_t n) noexcept nogil:
    cdef double lane[LANES]
    cdef Py_ssize_t i, j
    for j in range(LANES):
        lane[j] = 0
    for i in range(n // LANES):
        for j in range(LANES):
            lane[j] += x[LANES * i + j]
    for i in range(n - n % LANES, n):
        lane[i % LANES] += x[i]
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]))


# Σⱼ (x[j] − m)²
cdef inline double squares_of_row(const real* x, Py_ssize_t n, double m) noexcept nogil:
    cdef double lane[LANES]
    cdef Py_ssize_t i, j
    for j in range(LANES):
        lane[j] = 0
    for i in range(n // LANES):
        for j in range(LANES):
            lane[j] += (x[LANES * i + j] - m) * (x[LANES * i + j] - m)
    for i in range(n - n % LANES, n):
        lane[i % LANES] += (x[i] - m) * (x[i] - m)
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]))


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
#   n rows, C features, L places of each; x (n, C, L), scale and shift (C), moments (3, C); all contiguous
#
# Features are taken in blocks, each through all of its sums before the next, so that x, if it does not fill the cache,
# comes from memory once: FEATURES of them side by side where L is 1, else one.

cdef enum:
    FEATURES = 256


# Four rows at once: the sums of the columns are loaded and stored a quarter as often.
cdef inline double sum_of_four(const real* x, Py_ssize_t C) noexcept nogil:
    return (<double> x[0] + x[C]) + (<double> x[2 * C] + x[3 * C])


cdef inline double squares_of_four(const real* x, Py_ssize_t C, double m) noexcept nogil:
    return (((x[0] - m) * (x[0] - m) + (x[C] - m) * (x[C] - m))
            + ((x[2 * C] - m) * (x[2 * C] - m) + (x[3 * C] - m) * (x[3 * C] - m)))


cdef inline Py_ssize_t at_once(Py_ssize_t L, Py_ssize_t features) noexcept nogil:
    return min(FEATURES, features) if L == 1 else 1


# y[i, c, l] = (x[i, c, l] − m[c]) / √(v[c] + ε) scale[c] + shift[c],  m and v of x[:, c, :]
#   size     0 n, 1 C, 2 L
#   scalar   ε
#   operand  0 y, 1 x, 2 scale, 3 shift, 4 moments
#   parts    C
cdef int batch_norm(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* x = <const real*> call.operand[1].data
    cdef double* m = <double*> call.operand[4].data
    cdef double* inverse = m + call.size[1]
    cdef double* v = inverse + call.size[1]
    cdef Py_ssize_t n = call.size[0], C = call.size[1], L = call.size[2], features, i, j
    cdef double total[FEATURES]
    while begin < end:
        features = at_once(L, end - begin)
        for j in range(features):
            total[j] = 0
        if L == 1:
            for i in range(n // 4):
                for j in range(features):
                    total[j] += sum_of_four(x + 4 * i * C + begin + j, C)
        for i in range(n - n % 4 if L == 1 else 0, n):
            if L == 1:
                for j in range(features):
                    total[j] += x[i * C + begin + j]
            else:
                total[0] += exact_sum(x + (i * C + begin) * L, L)
        for j in range(features):
            m[begin + j] = total[j] / (n * L)
            total[j] = 0
        if L == 1:
            for i in range(n // 4):
                for j in range(features):
                    total[j] += squares_of_four(x + 4 * i * C + begin + j, C, m[begin + j])
        for i in range(n - n % 4 if L == 1 else 0, n):
            if L == 1:
                for j in range(features):
                    total[j] += (x[i * C + begin + j] - m[begin + j]) * (x[i * C + begin + j] - m[begin + j])
            else:
                total[0] += squares_of_row(x + (i * C + begin) * L, L, m[begin])
        for j in range(features):
            v[begin + j] = total[j] / (n * L)
            inverse[begin + j] = 1 / sqrt(v[begin + j] + call.scalar[0])
        normalize(y, call, begin, features)
        begin += features
    return CONTINUE


# y as above, for moments that are given
cdef int batch_norm_fixed(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t features
    while begin < end:
        features = at_once(call.size[2], end - begin)
        normalize(y, call, begin, features)
        begin += features
    return CONTINUE


cdef inline void normalize(real* y, const Call* call, Py_ssize_t first, Py_ssize_t features) noexcept nogil:
    cdef const real* x = <const real*> call.operand[1].data
    cdef const real* scale = <const real*> call.operand[2].data + first
    cdef const real* shift = <const real*> call.operand[3].data + first
    cdef const double* m = <const double*> call.operand[4].data + first
    cdef Py_ssize_t C = call.size[1], L = call.size[2], i, j, k
    cdef real high[FEATURES]
    cdef real low[FEATURES]
    cdef real factor[FEATURES]
    for j in range(features):
        high[j], low[j] = <real> m[j], <real> (m[j] - <real> m[j])
        factor[j] = <real> (m[C + j] * scale[j])
    for i in range(call.size[0]):
        k = (i * C + first) * L
        if L == 1:
            for j in range(features):
                y[k + j] = ((x[k + j] - high[j]) - low[j]) * factor[j] + shift[j]
        else:
            for j in range(L):
                y[k + j] = ((x[k + j] - high[0]) - low[0]) * factor[0] + shift[0]


# dscale[c] = Σ dy x̂,  dshift[c] = Σ dy  over all i and l,
# dx = (dy − dshift / (n L) − x̂ dscale / (n L)) scale / √(v + ε);  for fixed moments dx = dy scale / √(v + ε)
#   size     0 n, 1 C, 2 L, 3 whether the moments were fixed
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
    cdef Py_ssize_t n = call.size[0], C = call.size[1], L = call.size[2], count = n * L, features, i, j, k
    cdef bint fixed = call.size[3] != 0
    cdef real high[FEATURES]
    cdef real low[FEATURES]
    cdef real factor[FEATURES]
    cdef real mean[FEATURES]
    cdef real slope[FEATURES]
    cdef double of_dy[FEATURES]
    cdef double of_product[FEATURES]
    while begin < end:
        features = at_once(L, end - begin)
        for j in range(features):
            high[j], low[j] = <real> m[begin + j], <real> (m[begin + j] - <real> m[begin + j])
            factor[j] = <real> (inverse[begin + j] * scale[begin + j])
            of_dy[j] = of_product[j] = 0
        for i in range(n):
            k = (i * C + begin) * L
            if L == 1:
                for j in range(features):
                    of_dy[j] += dy[k + j]
                    of_product[j] += dy[k + j] * ((x[k + j] - high[j]) - low[j])
            else:
                add_products(dy + k, x + k, L, high[0], low[0], of_dy, of_product)
        for j in range(features):
            dscale[begin + j] = <real> (of_product[j] * inverse[begin + j])
            dshift[begin + j] = <real> of_dy[j]
            mean[j] = 0 if fixed else <real> (of_dy[j] / count)
            slope[j] = 0 if fixed else <real> (of_product[j] / count * inverse[begin + j] * inverse[begin + j])
        for i in range(n):
            k = (i * C + begin) * L
            if L == 1:
                for j in range(features):
                    dx[k + j] = (dy[k + j] - mean[j] - ((x[k + j] - high[j]) - low[j]) * slope[j]) * factor[j]
            else:
                for j in range(L):
                    dx[k + j] = (dy[k + j] - mean[0] - ((x[k + j] - high[0]) - low[0]) * slope[0]) * factor[0]
        begin += features
    return CONTINUE


# of_dy += Σⱼ dy[j],  of_product += Σⱼ dy[j] (x[j] − m)
cdef inline void add_products(const real* dy, const real* x, Py_ssize_t n, real high, real low,
                              double* of_dy, double* of_product) noexcept nogil:
    cdef double first[LANES]
    cdef double second[LANES]
    cdef Py_ssize_t i, j
    for j in range(LANES):
        first[j] = second[j] = 0
    for i in range(n // LANES):
        for j in range(LANES):
            first[j] += dy[LANES * i + j]
            second[j] += dy[LANES * i + j] * ((x[LANES * i + j] - high) - low)
    for i in range(n - n % LANES, n):
        first[i % LANES] += dy[i]
        second[i % LANES] += dy[i] * ((x[i] - high) - low)
    of_dy[0] += exact_sum(first, LANES)
    of_product[0] += exact_sum(second, LANES)


# mean ← mean + μ (m − mean),  variance ← variance + μ (v k / (k − 1) − variance), for features with finite moments
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
    for j in range(C):
        if m[j] - m[j] == 0 and v[j] - v[j] == 0:
            mean[j] = <real> ((1 - momentum) * mean[j] + momentum * m[j])
            variance[j] = <real> ((1 - momentum) * variance[j] + momentum * (v[j] * unbiased))
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


publish("layer_norm", <Loop> layer_norm[float], <Loop> layer_norm[double])
publish("layer_norm_grad", <Loop> layer_norm_grad[float], <Loop> layer_norm_grad[double])
publish("layer_norm_sums", <Loop> layer_norm_sums[float], <Loop> layer_norm_sums[double])
publish("batch_norm", <Loop> batch_norm[float], <Loop> batch_norm[double])
publish("batch_norm_fixed", <Loop> batch_norm_fixed[float], <Loop> batch_norm_fixed[double])
publish("batch_norm_grad", <Loop> batch_norm_grad[float], <Loop> batch_norm_grad[double])
publish("follow_moments", <Loop> follow_moments[float], <Loop> follow_moments[double])
publish("fixed_moments", <Loop> fixed_moments[float], <Loop> fixed_moments[double])
