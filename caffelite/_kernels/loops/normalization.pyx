# Normalization: x̂ = (x − m) / √(v + ε),  y = x̂ scale + shift. layer_norm takes the mean m and the variance v of each
# row, batch_norm the mean and variance of each feature over all rows and places.
#
# Sums are float64. float32 has a mean of 10⁴ only to 10⁻³, and the deviations from it may be smaller. So m is
# subtracted in two parts: `high` is m rounded to x's type, and `low` is the rest. Moments are float64, too: m and
# 1 / √(v + ε), and v for features.

from caffelite._kernels.loops.arithmetic cimport multiply_add, sum_of_products_double
from caffelite._kernels.loops.elementwise cimport apply_epilogue
from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.reduction cimport COLUMNS, LANES
from caffelite._kernels.loops.sums cimport deviations_of_row, exact_sum, squares_of_row

cdef extern from "loops/sums.h" nogil:
    double plus_product_float(double total, float a, float b)
    double plus_product_double(double total, double a, double b)
    void any_products_of_row "products_of_row"(const void* dy, const void* x, Py_ssize_t n, double high, double low,
                                               double* sums)
    # sums[0] = Σⱼ g[j],  sums[1] = Σⱼ g[j] (x[j] − m),  g = dy scale
    void scaled_products_of_row(const void* dy, const void* scale, const void* x, Py_ssize_t n, double high, double low,
                                double* sums)


# sums[0] = Σⱼ dy[j],  sums[1] = Σⱼ dy[j] (x[j] − m),  m = high + low
cdef inline void products_of_row(const real* dy, const real* x, Py_ssize_t n, real high, real low,
                                 double* sums) noexcept nogil:
    any_products_of_row(dy, x, n, high, low, sums)


cdef inline double plus_product(double total, real a, real b) noexcept nogil:
    if real is float:
        return plus_product_float(total, a, b)
    else:
        return plus_product_double(total, a, b)


# ---- rows ----
#   n rows of C numbers; scale and shift (C), shift may be absent; moments (2, n); all contiguous

cdef enum:
    ROWS = 16                             # that are computed at the same time

# y[i, j] = (x[i, j] − m[i]) / √(v[i] + ε) scale[j] + shift[j]. If the rows are not centered, m is 0, and v is the mean
# of their squares.
#   size     0 n, 1 C, 2 centered
#   scalar   ε
#   operand  0 y, 1 x, 2 scale, 3 shift, 4 moments
#   parts    n
cdef int layer_norm(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* x = <const real*> call.operand[1].data
    cdef const real* scale = <const real*> call.operand[2].data
    cdef const real* shift = <const real*> call.operand[3].data
    cdef double* moments = <double*> call.operand[4].data
    cdef double* slopes = moments + call.size[0]
    cdef Py_ssize_t C = call.size[1], after, i, j
    cdef real high, low, inverse
    while begin < end:                    # the sums of a row wait for each other, but not for the sums of other rows
        after = min(begin + ROWS, end)
        for i in range(begin, after):
            moments[i] = exact_sum(x + i * C, C) / C if call.size[2] else 0
        for i in range(begin, after):
            slopes[i] = squares_of_row(x + i * C, C, moments[i])
        for i in range(begin, after):
            slopes[i] = 1 / sqrt(slopes[i] / C + call.scalar[0])
        for i in range(begin, after):
            high, low, inverse = <real> moments[i], <real> (moments[i] - <real> moments[i]), <real> slopes[i]
            if shift == NULL:
                for j in range(C):
                    y[i * C + j] = ((x[i * C + j] - high) - low) * inverse * scale[j]
            else:
                for j in range(C):
                    y[i * C + j] = ((x[i * C + j] - high) - low) * inverse * scale[j] + shift[j]
        begin = after
    return CONTINUE


# dx[i, j] = (g[i, j] − Σⱼ g[i, j] / C − x̂[i, j] Σⱼ g[i, j] x̂[i, j] / C) / √(v[i] + ε),  g = dy scale. If the rows are
# not centered, there is no Σⱼ g[i, j] / C.
#   size     0 n, 1 C, 2 centered
#   operand  0 dx, 1 dy, 2 x, 3 scale, 4 moments
#   parts    n
cdef int layer_norm_grad(real* dx, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* dy = <const real*> call.operand[1].data
    cdef const real* x = <const real*> call.operand[2].data
    cdef const real* scale = <const real*> call.operand[3].data
    cdef const double* moments = <const double*> call.operand[4].data
    cdef Py_ssize_t n = call.size[0], C = call.size[1], i, j
    cdef double sums[2]
    cdef real high, low, inverse, mean, slope
    dx += begin * C
    dy += begin * C
    x += begin * C
    for i in range(begin, end):
        high, low, inverse = <real> moments[i], <real> (moments[i] - <real> moments[i]), <real> moments[n + i]
        scaled_products_of_row(dy, scale, x, C, high, low, sums)
        mean = <real> (sums[0] / C) if call.size[2] else 0
        slope = <real> (sums[1] / C * moments[n + i] * moments[n + i])
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
    cdef double product_sums[COLUMNS]
    cdef double dy_sums[COLUMNS]
    while first < end:
        columns = min(COLUMNS, end - first)
        for j in range(columns):
            product_sums[j] = dy_sums[j] = 0
        for i in range(n):
            high, low, inverse = <real> moments[i], <real> (moments[i] - <real> moments[i]), <real> moments[n + i]
            k = i * C + first
            for j in range(columns):
                product_sums[j] += dy[k + j] * (((x[k + j] - high) - low) * inverse)
                dy_sums[j] += dy[k + j]
        for j in range(columns):
            dscale[first + j], dshift[first + j] = <real> product_sums[j], <real> dy_sums[j]
        first += columns
    return CONTINUE


# ---- features ----
#   n images, C features, L places of each; x (n, C, L) in C order, channels last (n, L, C), or images last (C, L, n),
#   dy, y and dx as x; scale and shift (C), moments (3, C), contiguous
#
# A run is a stretch of memory that belongs to one feature. A feature has `runs` of them, of length `run`: together n L
# numbers. `run` is L in C order, 1 with channels last and n L with images last.
#
# The loops finish one block of features before they begin the next. So x comes from memory once, even if all of x is
# larger than the cache. A block is one feature, or FEATURES of them if neighbours in memory are features.
#
# Every memory order adds the same numbers in the same order, so it changes no bits. Place l of an image is added to
# partial sum l % LANES. Then the sums of the images are added one after the other, or four at a time if L is 1.

cdef enum:
    FEATURES = 256                        # of one place each, in a block
    SIDE_BY_SIDE = 64                     # features or images whose partial sums fit into the first-level cache
    WIDE = 512                            # LANES · SIDE_BY_SIDE
    NEIGHBOURS = 1024                     # numbers that are normalized before their epilogue


cdef inline Py_ssize_t features_per_block(const Call* call, Py_ssize_t features) noexcept nogil:
    if call.size[4] > 1:
        return 1
    return min(features, <Py_ssize_t> (FEATURES if call.size[2] == 1 else SIDE_BY_SIDE))


# Numbers of one row, or of several rows that are neighbours, are met in one long loop. The numbers of a row's
# columns are repeated for it: to[i, j] = x[j · step].
cdef inline void spread(real* to, const real* x, Py_ssize_t columns, Py_ssize_t step, Py_ssize_t rows) noexcept nogil:
    cdef Py_ssize_t i, j
    for i in range(rows):
        for j in range(columns):
            to[i * columns + j] = x[j * step]


# The pieces of memory that are normalized together: whole pixels one after the other, some of the features of a pixel,
# or a run of one feature. The loops go from the last one to the first. The last ones are still in the cache from
# the sums, and the next kernel begins with the first ones.
cdef struct Pieces:
    Py_ssize_t count, length, stride, at  # how many there are, of how many numbers; piece i begins at at + i · stride
    Py_ssize_t times                      # how often the features come in a row of at most FEATURES numbers
    Py_ssize_t block                      # how many numbers of a piece, some such rows, are met before their epilogue


cdef inline Pieces make_pieces(const Call* call, Py_ssize_t first, Py_ssize_t features) noexcept nogil:
    cdef Py_ssize_t C = call.size[1], run = call.size[4]
    cdef Pieces pieces
    pieces.count, pieces.length, pieces.stride, pieces.at = call.size[3], features * run, C * run, first * run
    pieces.times = 1 if features < C and run == 1 else FEATURES // features
    pieces.block = NEIGHBOURS // (features * pieces.times) * features * pieces.times
    if features == C and run == 1:
        pieces.count, pieces.length = 1, C * call.size[3]
    return pieces


cdef inline double fold(const double* lane, Py_ssize_t n) noexcept nogil:
    return (((lane[0] + lane[4 * n]) + (lane[2 * n] + lane[6 * n]))
            + ((lane[n] + lane[5 * n]) + (lane[3 * n] + lane[7 * n])))


# ---- mean and variance of features, in one pass over x ----
#
# With an origin x₀ near the numbers and their deviations d = x − x₀,
#
#   m = x₀ + Σ d / k,  k v = Σ (x − m)² = Σ d² − (Σ d)² / k,  k = n L.
#
# The difference loses digits if x₀ is far from m. But x₀ is the mean of eight of the k numbers. For k ≥ 8 they are
# different ones, and (x₀ − m)² ≤ Σ (x − m)² / 8 = k v / 8. So Σ d² = k v + k (x₀ − m)² ≤ (k / 8 + 1) k v. Whatever the
# numbers are, at most log₁₀(k / 8 + 1) of the 16 digits of float64 are lost. If all numbers are equal, v is exactly 0.

# m[j] and Σ (x − m[j])² over all x of feature first + j
cdef void compute_moments(const real* x, const Call* call, Py_ssize_t first, Py_ssize_t features, double* m,
                          double* squares) noexcept nogil:
    cdef Py_ssize_t count = call.size[0] * call.size[2], j
    cdef double origin[FEATURES]
    cdef double total[FEATURES]
    find_origins(x, call, first, features, origin)
    deviations(x, call, first, features, origin, total, squares)
    for j in range(features):
        m[j] = origin[j] + total[j] / count
        squares[j] = multiply_add(-total[j] / count, total[j], squares[j])
        squares[j] = 0 if squares[j] < 0 else squares[j]      # NaN stays


# origin[j] = the mean of eight numbers x of feature first + j, at equal distances
cdef void find_origins(const real* x, const Call* call, Py_ssize_t first, Py_ssize_t features,
                       double* origin) noexcept nogil:
    cdef Py_ssize_t C = call.size[1], L = call.size[2], run = call.size[4], i, j, k, place
    cdef double number[8][FEATURES]
    cdef const real* chosen
    for k in range(8):
        place = k * call.size[0] * L // 8
        i, place = place // L, place % L
        if run == 1:
            chosen = x + (i * L + place) * C + first
        elif run == L:
            chosen = x + (i * C + first) * L + place
        else:
            chosen = x + first * run + place * call.size[0] + i
        for j in range(features):
            number[k][j] = chosen[j * run]
    for j in range(features):
        origin[j] = (((number[0][j] + number[1][j]) + (number[2][j] + number[3][j]))
                     + ((number[4][j] + number[5][j]) + (number[6][j] + number[7][j]))) / 8


# total[j] = Σ d,  squares[j] = Σ d²,  d = x − origin[j], over all x of feature first + j
cdef void deviations(const real* x, const Call* call, Py_ssize_t first, Py_ssize_t features, const double* origin,
                     double* total, double* squares) noexcept nogil:
    cdef Py_ssize_t n = call.size[0], C = call.size[1], L = call.size[2], run = call.size[4], width, i, j
    cdef double sums[2 * SIDE_BY_SIDE]
    cdef double column_origins[WIDE]
    for j in range(features):
        total[j] = squares[j] = 0
    if L > 1 and run != L:
        spread(column_origins, origin, features if run == 1 else SIDE_BY_SIDE, run == 1, LANES)
    if run == 1 and L == 1:
        deviations_of_rows(x + first, n, C, features, origin, total, squares)
    elif run == 1:
        for i in range(n):
            deviations_of_columns(x + i * L * C + first, C, L, features, column_origins, sums)
            for j in range(features):
                total[j] += sums[j]
                squares[j] += sums[SIDE_BY_SIDE + j]
    elif run == L:
        for i in range(n):
            deviations_of_row(x + (i * C + first) * L, L, origin[0], sums)
            total[0] += sums[0]
            squares[0] += sums[1]
    else:
        i = 0
        while i < n:
            width = min(n - i, <Py_ssize_t> SIDE_BY_SIDE)
            deviations_of_columns(x + first * run + i, n, L, width, column_origins, sums)
            for j in range(width):
                total[0] += sums[j]
                squares[0] += sums[SIDE_BY_SIDE + j]
            i += width


# total[j] += Σᵢ d,  squares[j] += Σᵢ d²,  d = x[i, j] − origin[j], x (n, C). Four rows at once: total and squares are
# then loaded and stored only a quarter as often.
cdef void deviations_of_rows(const real* x, Py_ssize_t n, Py_ssize_t C, Py_ssize_t features, const double* origin,
                             double* total, double* squares) noexcept nogil:
    cdef Py_ssize_t _i, j
    cdef double a, b, c, d
    for _i in range(n // 4):
        for j in range(features):
            a, b = x[j] - origin[j], x[C + j] - origin[j]
            c, d = x[2 * C + j] - origin[j], x[3 * C + j] - origin[j]
            total[j] += (a + b) + (c + d)
            squares[j] += sum_of_products_double(a, a, b, b) + sum_of_products_double(c, c, d, d)
        x += 4 * C
    for _i in range(n % 4):
        for j in range(features):
            a = x[j] - origin[j]
            total[j] += a
            squares[j] = multiply_add(a, a, squares[j])
        x += C


# sums[0, j] = Σᵢ d,  sums[1, j] = Σᵢ d²,  d = x[i, j] − origin[j], each as for a row (sums.h); origin LANES times
cdef void deviations_of_columns(const real* x, Py_ssize_t stride, Py_ssize_t n, Py_ssize_t columns,
                                const double* origin, double* sums) noexcept nogil:
    cdef double partial[2 * WIDE]
    cdef double* first
    cdef double* second
    cdef double d
    cdef Py_ssize_t rows = LANES if stride == columns else 1, i = 0, j
    memset(partial, 0, 2 * LANES * columns * sizeof(double))
    while i < n:
        first = partial + i % LANES * columns
        second = first + LANES * columns
        for j in range(min(rows, n - i) * columns):
            d = x[j] - origin[j]
            first[j] += d
            second[j] = multiply_add(d, d, second[j])
        x += rows * stride
        i += rows
    for j in range(columns):
        sums[j], sums[SIDE_BY_SIDE + j] = fold(partial + j, columns), fold(partial + LANES * columns + j, columns)


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
    cdef double squares[FEATURES]
    while begin < end:
        features = features_per_block(call, end - begin)
        compute_moments(x, call, begin, features, m + begin, squares)
        for j in range(features):
            v[begin + j] = squares[j] / count
            inverse[begin + j] = 1 / sqrt(v[begin + j] + call.scalar[0])
        normalize(y, call, begin, features)
        begin += features
    return CONTINUE


# y as above, with moments that are operands
cdef int batch_norm_fixed(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t features
    while begin < end:
        features = features_per_block(call, end - begin)
        normalize(y, call, begin, features)
        begin += features
    return CONTINUE


cdef inline void normalize(real* y, const Call* call, Py_ssize_t first, Py_ssize_t features) noexcept nogil:
    cdef const real* x = <const real*> call.operand[1].data
    cdef const real* scale = <const real*> call.operand[2].data + first
    cdef const real* shift = <const real*> call.operand[3].data + first
    cdef const double* m = <const double*> call.operand[4].data + first
    cdef Pieces pieces = make_pieces(call, first, features)
    cdef Py_ssize_t i, j, k, begin, end
    cdef real values[4 * FEATURES]
    cdef real high[FEATURES]
    cdef real low[FEATURES]
    cdef real factor[FEATURES]
    cdef real addend[FEATURES]
    for j in range(features):
        values[j], values[FEATURES + j] = <real> m[j], <real> (m[j] - <real> m[j])
        values[2 * FEATURES + j], values[3 * FEATURES + j] = <real> (m[call.size[1] + j] * scale[j]), shift[j]
    spread(high, values, features, 1, pieces.times)
    spread(low, values + FEATURES, features, 1, pieces.times)
    spread(factor, values + 2 * FEATURES, features, 1, pieces.times)
    spread(addend, values + 3 * FEATURES, features, 1, pieces.times)
    for i in range(pieces.count - 1, -1, -1):
        end = pieces.length
        while end > 0:
            begin = (end - 1) // pieces.block * pieces.block
            k = pieces.at + i * pieces.stride + begin
            normalize_numbers(y + k, x + k, end - begin, features * pieces.times, high, low, factor, addend)
            apply_epilogue(y + k, call, end - begin)
            end = begin


# y[j] = ((x[j] − high[j]) − low[j]) factor[j] + addend[j], where what is of each feature comes again after `width`
cdef inline void normalize_numbers(real* y, const real* x, Py_ssize_t n, Py_ssize_t width, const real* high,
                                   const real* low, const real* factor, const real* addend) noexcept nogil:
    cdef Py_ssize_t j
    while n > 0:
        for j in range(min(n, width)):
            y[j] = ((x[j] - high[j]) - low[j]) * factor[j] + addend[j]
        y += width
        x += width
        n -= width


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
    cdef double dy_sums[FEATURES]
    cdef double product_sums[FEATURES]
    while begin < end:
        features = features_per_block(call, end - begin)
        for j in range(features):
            high[j], low[j] = <real> m[begin + j], <real> (m[begin + j] - <real> m[begin + j])
            factor[j] = <real> (inverse[begin + j] * scale[begin + j])
        products(dy, x, call, begin, features, high, low, dy_sums, product_sums)
        for j in range(features):
            dscale[begin + j] = <real> (product_sums[j] * inverse[begin + j])
            dshift[begin + j] = <real> dy_sums[j]
            mean[j] = 0 if fixed else <real> (dy_sums[j] / count)
            slope[j] = 0 if fixed else <real> (product_sums[j] / count * inverse[begin + j] * inverse[begin + j])
        normalize_grad(dx, call, begin, features, high, low, factor, mean, slope)
        begin += features
    return CONTINUE


# dx = (dy − mean − (x − m) slope) factor, of some features from `first` on, m = high + low
cdef inline void normalize_grad(real* dx, const Call* call, Py_ssize_t first, Py_ssize_t features, const real* high,
                                const real* low, const real* factor, const real* mean,
                                const real* slope) noexcept nogil:
    cdef const real* dy = <const real*> call.operand[1].data
    cdef const real* x = <const real*> call.operand[2].data
    cdef Pieces pieces = make_pieces(call, first, features)
    cdef Py_ssize_t i, k, begin, end
    cdef real values[5 * FEATURES]
    spread(values, high, features, 1, pieces.times)
    spread(values + FEATURES, low, features, 1, pieces.times)
    spread(values + 2 * FEATURES, factor, features, 1, pieces.times)
    spread(values + 3 * FEATURES, mean, features, 1, pieces.times)
    spread(values + 4 * FEATURES, slope, features, 1, pieces.times)
    for i in range(pieces.count - 1, -1, -1):
        end = pieces.length
        while end > 0:
            begin = (end - 1) // pieces.block * pieces.block
            k = pieces.at + i * pieces.stride + begin
            numbers_grad(dx + k, dy + k, x + k, end - begin, features * pieces.times, values, values + FEATURES,
                         values + 2 * FEATURES, values + 3 * FEATURES, values + 4 * FEATURES)
            end = begin


cdef inline void numbers_grad(real* dx, const real* dy, const real* x, Py_ssize_t n, Py_ssize_t width,
                              const real* high, const real* low, const real* factor, const real* mean,
                              const real* slope) noexcept nogil:
    cdef Py_ssize_t j
    while n > 0:
        for j in range(min(n, width)):
            dx[j] = (dy[j] - mean[j] - ((x[j] - high[j]) - low[j]) * slope[j]) * factor[j]
        dx += width
        dy += width
        x += width
        n -= width


# dy_sums[j] = Σ dy,  product_sums[j] = Σ dy (x − m)  over all of feature first + j, m = high[j] + low[j]
cdef void products(const real* dy, const real* x, const Call* call, Py_ssize_t first, Py_ssize_t features,
                   const real* high, const real* low, double* dy_sums, double* product_sums) noexcept nogil:
    cdef Py_ssize_t n = call.size[0], C = call.size[1], L = call.size[2], run = call.size[4], width, i, j, k
    cdef double sums[2 * SIDE_BY_SIDE]
    cdef real highs[WIDE]
    cdef real lows[WIDE]
    for j in range(features):
        dy_sums[j] = product_sums[j] = 0
    if L > 1 and run != L:
        spread(highs, high, features if run == 1 else SIDE_BY_SIDE, run == 1, LANES)
        spread(lows, low, features if run == 1 else SIDE_BY_SIDE, run == 1, LANES)
    if run == 1 and L == 1:
        for i in range(n):
            k = i * C + first
            for j in range(features):
                dy_sums[j] += dy[k + j]
                product_sums[j] += dy[k + j] * ((x[k + j] - high[j]) - low[j])
    elif run == 1:
        for i in range(n):
            k = i * L * C + first
            products_of_columns(dy + k, x + k, C, L, features, highs, lows, sums)
            for j in range(features):
                dy_sums[j] += sums[j]
                product_sums[j] += sums[SIDE_BY_SIDE + j]
    elif run == L:
        for i in range(n):
            k = (i * C + first) * L
            products_of_row(dy + k, x + k, L, high[0], low[0], sums)
            dy_sums[0] += sums[0]
            product_sums[0] += sums[1]
    else:
        i = 0
        while i < n:
            k = first * run + i
            width = min(n - i, <Py_ssize_t> SIDE_BY_SIDE)
            products_of_columns(dy + k, x + k, n, L, width, highs, lows, sums)
            for j in range(width):
                dy_sums[0] += sums[j]
                product_sums[0] += sums[SIDE_BY_SIDE + j]
            i += width


# sums[0, j] = Σᵢ dy[i, j],  sums[1, j] = Σᵢ dy[i, j] (x[i, j] − m[j]), each as for a row (sums.h); high and low LANES
# times
cdef void products_of_columns(const real* dy, const real* x, Py_ssize_t stride, Py_ssize_t n, Py_ssize_t columns,
                              const real* high, const real* low, double* sums) noexcept nogil:
    cdef double partial[2 * WIDE]
    cdef double* first
    cdef double* second
    cdef Py_ssize_t rows = LANES if stride == columns else 1, i = 0, j
    memset(partial, 0, 2 * LANES * columns * sizeof(double))
    while i < n:
        first = partial + i % LANES * columns
        second = first + LANES * columns
        for j in range(min(rows, n - i) * columns):
            first[j] += dy[j]
            second[j] = plus_product(second[j], dy[j], (x[j] - high[j]) - low[j])
        dy += rows * stride
        x += rows * stride
        i += rows
    for j in range(columns):
        sums[j], sums[SIDE_BY_SIDE + j] = fold(partial + j, columns), fold(partial + LANES * columns + j, columns)


# ---- features of a part of the rows, if several processes train on one batch ----

# sums = how many numbers each feature has, their mean, and Σ (x − mean)²; all 0 if x does not count
#   size     0 n, 1 C, 2 L, 3 runs, 4 run, 5 whether it counts
#   operand  0 x (read), 1 sums (3, C)
#   parts    C
cdef int feature_sums(real* x, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t C = call.size[1], count = call.size[0] * call.size[2], features, j
    cdef double* sums = <double*> call.operand[1].data
    if not call.size[5] or count == 0:
        for j in range(begin, end):
            sums[j] = sums[C + j] = sums[2 * C + j] = 0
        return CONTINUE
    while begin < end:
        features = features_per_block(call, end - begin)
        compute_moments(x, call, begin, features, sums + C + begin, sums + 2 * C + begin)
        for j in range(features):
            sums[begin + j] = count
        begin += features
    return CONTINUE


# moments = m, 1 / √(v + ε), v of all parts together, joined one after the other (T. Chan, G. Golub and R. LeVeque,
# "Algorithms for computing the sample variance", The American Statistician 37(3), 1983)
#   size     0 parts, 1 C
#   scalar   ε
#   operand  0 moments (3, C), 1 sums (parts, 3, C)
#   parts    C
cdef int merge_moments(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
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
    cdef double* dy_sums = <double*> call.operand[3].data
    cdef Py_ssize_t features, j
    cdef real high[FEATURES]
    cdef real low[FEATURES]
    while begin < end:
        features = features_per_block(call, end - begin)
        for j in range(features):
            high[j], low[j] = <real> m[begin + j], <real> (m[begin + j] - <real> m[begin + j])
        products(dy, x, call, begin, features, high, low, dy_sums + begin, dy_sums + call.size[1] + begin)
        begin += features
    return CONTINUE


# dx, dscale and dshift as in batch_norm_grad. dscale and dshift come from this part's sums, dx from the sums of all.
#   size     0 n, 1 C, 2 L, 3 runs, 4 run, 5 how many numbers of each feature all parts have
#   operand  0 dx, 1 dy, 2 x, 3 scale, 4 moments, 5 dscale, 6 dshift, 7 sums of this part (2, C), 8 sums of all (2, C)
#   parts    C
cdef int batch_norm_grad_of_sums(real* dx, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* scale = <const real*> call.operand[3].data
    cdef const double* m = <const double*> call.operand[4].data
    cdef const double* inverse = m + call.size[1]
    cdef real* dscale = <real*> call.operand[5].data
    cdef real* dshift = <real*> call.operand[6].data
    cdef const double* own = <const double*> call.operand[7].data
    cdef const double* total_sums = <const double*> call.operand[8].data
    cdef Py_ssize_t C = call.size[1], features, j, c
    cdef real high[FEATURES]
    cdef real low[FEATURES]
    cdef real factor[FEATURES]
    cdef real mean[FEATURES]
    cdef real slope[FEATURES]
    while begin < end:
        features = features_per_block(call, end - begin)
        for j in range(features):
            c = begin + j
            high[j], low[j] = <real> m[c], <real> (m[c] - <real> m[c])
            factor[j] = <real> (inverse[c] * scale[c])
            dscale[c], dshift[c] = <real> (own[C + c] * inverse[c]), <real> own[c]
            mean[j] = <real> (total_sums[c] / call.size[5])
            slope[j] = <real> (total_sums[C + c] / call.size[5] * inverse[c] * inverse[c])
        normalize_grad(dx, call, begin, features, high, low, factor, mean, slope)
        begin += features
    return CONTINUE


# mean ← mean + μ (m − mean),  variance ← variance + μ (v k / (k − 1) − variance), if the moments of the feature are
# finite. A variance beyond the largest number of its type becomes that number.
#   size     0 C, 1 k, the numbers of each feature
#   scalar   μ
#   operand  0 mean, 1 variance, 2 moments
#   parts    1
cdef int update_moments(real* mean, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
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
cdef int running_moments(real* mean, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* variance = <const real*> call.operand[1].data
    cdef double* m = <double*> call.operand[2].data
    cdef Py_ssize_t C = call.size[0], j
    for j in range(C):
        m[j] = mean[j]
        m[C + j] = 1 / sqrt(variance[j] + call.scalar[0])
        m[2 * C + j] = variance[j]
    return CONTINUE


include "../generated/publish_normalization.pxi"
