# Normalization: x̂ = (x − m) / √(v + ε),  y = x̂ scale + shift, with m and v the mean and the variance of the x that
# belong together: those of a row (layer_norm), or those of a feature in all rows and places (batch_norm).
#
# Sums are made in float64, and m is subtracted in two parts, the second being what the first lacks when it is rounded:
# float32 knows a mean of 10⁴ to 10⁻³ only, and the deviation may be smaller. Moments are float64, too: a row of m and
# one of 1 / √(v + ε), and for batches one of v.

# Σⱼ x[j]
cdef inline double sum_of_row(const real* x, Py_ssize_t n) noexcept nogil:
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
        m = sum_of_row(x, C) / C
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
        mean = <real> (sum_of_row(of_g, LANES) / C)
        slope = <real> (sum_of_row(of_product, LANES) / C * moments[n + i] * moments[n + i])
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


publish("layer_norm", <Loop> layer_norm[float], <Loop> layer_norm[double])
publish("layer_norm_grad", <Loop> layer_norm_grad[float], <Loop> layer_norm_grad[double])
publish("layer_norm_sums", <Loop> layer_norm_sums[float], <Loop> layer_norm_sums[double])
