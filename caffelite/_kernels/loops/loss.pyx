# Losses: first the loss of each row, then their mean. n rows, C classes; labels are int64. `check_labels` checked them
# before, but a label out of range still stops every loop.
#
# A gradient is dy · share[i] · derivative. share[i] is the share of row i in the mean, 1/n without shares.

from caffelite._kernels.loops.arithmetic cimport sum_of_products_double
from caffelite._kernels.loops.elementwise cimport row
from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.math cimport fast_exp, fast_log
from caffelite._kernels.loops.reduction cimport sum_contiguous
from caffelite._kernels.loops.softmax cimport ROWS_AT_A_TIME, exponentials
from caffelite._kernels.loops.sums cimport exact_sum


cdef inline real get_share(const Call* call, int operand, real dy, Py_ssize_t i) noexcept nogil:
    return dy * (<const real*> call.operand[operand].data)[i] if call.operand[operand].data else dy / call.size[0]


# Clips a finite loss to the range of `like`'s type. A loss leaves it only if scores are near the end of the range.
cdef inline real clip_to_range(double loss, real like) noexcept nogil:
    cdef real end = FLT_MAX if real is float else <real> DBL_MAX
    return end if (loss > end) & (loss <= DBL_MAX) else <real> loss


# ---- of labels: softmax and cross-entropy ----

cdef enum:
    MANY_CLASSES = 16                     # with this many classes or more, a vector has classes of one row


# p[i, j] = exp(s[i, j] − m[i]) / Σⱼ exp(s[i, j] − m[i]),   rows[i] = log Σⱼ exp(s[i, j] − m[i]) − (s[i, label] − m[i])
# with m[i] the largest score of the row: no exponential overflows, and no logarithm gets 0. With smoothing, the
# second term is mixed with its mean over all j. A row with the ignored label has loss 0.
#   size     0 n, 1 C, 2 whether there is a label to ignore, 3 that label
#   scalar   the smoothing
#   operand  0 p, 1 s, 2 labels, 3 rows (all contiguous)
#   parts    n
cdef int softmax_loss(real* p, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* scores = <const real*> call.operand[1].data
    cdef const int64_t* labels = <const int64_t*> call.operand[2].data
    cdef real* rows = <real*> call.operand[3].data
    cdef Py_ssize_t C = call.size[1], n, i
    cdef int64_t label
    cdef double smoothing = call.scalar[0]
    cdef real largest[ROWS_AT_A_TIME]
    cdef double total[ROWS_AT_A_TIME]
    cdef double label_score[ROWS_AT_A_TIME]

    while begin < end:
        n = min(end - begin, ROWS_AT_A_TIME)
        if C < MANY_CLASSES:
            softmax_of_few_classes(p + begin * C, scores + begin * C, n, C, largest, total)
        else:
            softmax_of_many_classes(p + begin * C, scores + begin * C, n, C, largest, total)
        for i in range(n):
            label = labels[begin + i]
            if label < 0 or label >= C:
                if not is_ignored(call, label):
                    return OUT_OF_RANGE
                label = 0
            label_score[i] = <double> scores[(begin + i) * C + label] - largest[i]
        if smoothing != 0:
            smooth_label(label_score, scores + begin * C, n, C, smoothing)
        for i in range(n):
            rows[begin + i] = clip_to_range(fast_log(total[i]) - label_score[i], <real> 0)
        if call.size[2]:
            for i in range(begin, begin + n):
                rows[i] = 0 if is_ignored(call, labels[i]) else rows[i]
        begin += n
    return CONTINUE


cdef void softmax_of_many_classes(real* p, const real* scores, Py_ssize_t n, Py_ssize_t C, real* largest,
                                  double* total) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef real scale
    for i in range(n):
        largest[i] = find_largest(scores + i * C, C)
        for j in range(C):
            p[i * C + j] = scores[i * C + j] - largest[i]
    for j in range(n * C):
        p[j] = fast_exp(p[j])
    for i in range(n):
        total[i] = exact_sum(p + i * C, C)
        scale = <real> (1 / total[i])
        for j in range(C):
            p[i * C + j] *= scale


# With a constant C, the compiler copies columns as vectors.
cdef void softmax_of_few_classes(real* p, const real* scores, Py_ssize_t n, Py_ssize_t C, real* largest,
                                 double* total) noexcept nogil:
    if C == 2:
        softmax_of_columns(p, scores, n, 2, largest, total)
    elif C == 3:
        softmax_of_columns(p, scores, n, 3, largest, total)
    else:
        softmax_of_columns(p, scores, n, C, largest, total)


# A vector has one class of neighbouring rows: the rows of a few classes would not fill it.
cdef inline void softmax_of_columns(real* p, const real* scores, Py_ssize_t n, Py_ssize_t C, real* largest,
                                    double* total) noexcept nogil:
    cdef real columns[MANY_CLASSES * ROWS_AT_A_TIME]
    cdef real scale[ROWS_AT_A_TIME]
    cdef real* q
    cdef Py_ssize_t i, j
    for i in range(n):
        for j in range(C):
            columns[j * ROWS_AT_A_TIME + i] = scores[i * C + j]
    for i in range(n):
        largest[i] = columns[i]
        total[i] = 0
    for j in range(1, C):
        q = columns + j * ROWS_AT_A_TIME
        for i in range(n):
            largest[i] = q[i] if q[i] > largest[i] else largest[i]
    for j in range(C):
        q = columns + j * ROWS_AT_A_TIME
        for i in range(n):
            q[i] = fast_exp(q[i] - largest[i])
        for i in range(n):
            total[i] += q[i]
    for i in range(n):
        scale[i] = <real> (1 / total[i])
    for i in range(n):
        for j in range(C):
            p[i * C + j] = columns[j * ROWS_AT_A_TIME + i] * scale[i]


# The largest number of a row of many classes. If the row has a NaN, the result is any number or NaN.
cdef inline real find_largest(const real* s, Py_ssize_t C) noexcept nogil:
    cdef real lane[8]
    cdef real largest = s[0]
    cdef Py_ssize_t j, k
    for k in range(8):
        lane[k] = s[k]
    for j in range(8, C - 7, 8):
        for k in range(8):
            lane[k] = s[j + k] if s[j + k] > lane[k] else lane[k]
    for k in range(8):
        largest = lane[k] if lane[k] > largest else largest
    j = C - C % 8
    while j < C:
        largest = s[j] if s[j] > largest else largest
        j += 1
    return largest


# Mixes (score − largest score) at the label with its mean over all classes.
cdef void smooth_label(double* label_score, const real* s, Py_ssize_t n, Py_ssize_t C, double smoothing) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef real largest
    cdef double sum_all
    for i in range(n):
        largest = s[i * C]
        for j in range(1, C):
            largest = s[i * C + j] if s[i * C + j] > largest else largest
        sum_all = 0
        for j in range(C):
            sum_all += <double> s[i * C + j] - largest
        label_score[i] = sum_of_products_double(1 - smoothing, label_score[i], smoothing / C, sum_all)


# ds[i, j] = dy share[i] (p[i, j] − t[i, j]),  t[i, j] = (1 − smoothing) [j = label] + smoothing / C;  0 if ignored
#   size     0 n, 1 C, 2 whether there is a label to ignore, 3 that label
#   scalar   the smoothing
#   operand  0 ds, 1 p, 2 labels, 3 dy (one element), 4 share (if any)
#   parts    n
cdef int softmax_loss_grad(real* ds, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* p = <const real*> call.operand[1].data
    cdef const int64_t* labels = <const int64_t*> call.operand[2].data
    cdef real dy = (<const real*> call.operand[3].data)[0], weight = get_share(call, 4, dy, begin)
    cdef double smoothing = call.scalar[0]
    cdef real t_other = <real> (smoothing / call.size[1]), t_label = <real> (1 - smoothing + smoothing / call.size[1])
    cdef const real* share = <const real*> call.operand[4].data
    cdef Py_ssize_t n = call.size[0], C = call.size[1], i, j
    cdef bint ignores = call.size[2]

    if share == NULL and not ignores and smoothing == 0:
        for j in range(begin * C, end * C):
            ds[j] = weight * p[j]
        for i in range(begin, end):
            if labels[i] < 0 or labels[i] >= C:
                return OUT_OF_RANGE
            j = i * C + labels[i]
            ds[j] = weight * (p[j] - <real> 1)
        return CONTINUE

    for i in range(begin, end):
        if ignores and is_ignored(call, labels[i]):
            memset(ds + i * C, 0, C * sizeof(real))
            continue
        if labels[i] < 0 or labels[i] >= C:
            return OUT_OF_RANGE
        weight = dy * share[i] if share != NULL else dy / n
        for j in range(i * C, (i + 1) * C):
            ds[j] = weight * (p[j] - t_other)
        j = i * C + labels[i]
        ds[j] = weight * (p[j] - t_label)
    return CONTINUE


# ---- of probabilities ----

# rows[i] = −Σⱼ t[i, j] log p[i, j],  p = softmax(s),  t = (1 − smoothing) targets + smoothing / C;  t = 0 adds nothing
#   size     0 n, 1 C
#   scalar   the smoothing
#   operand  0 p, 1 s, 2 targets, 3 rows (all contiguous)
#   parts    n
cdef int soft_loss(real* p, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* s = <const real*> call.operand[1].data
    cdef const real* targets = <const real*> call.operand[2].data
    cdef real* rows = <real*> call.operand[3].data
    cdef Py_ssize_t C = call.size[1], n, i, j
    cdef double smoothing = call.scalar[0], t, row_sum, target_sum
    cdef real scale
    cdef real m[ROWS_AT_A_TIME]
    cdef double total[ROWS_AT_A_TIME]
    while begin < end:
        n = min(end - begin, ROWS_AT_A_TIME)
        exponentials(p + begin * C, s + begin * C, n, C, m, total)
        for i in range(n):
            scale = <real> (1 / total[i])
            row_sum = target_sum = 0
            for j in range((begin + i) * C, (begin + i + 1) * C):
                t = (1 - smoothing) * targets[j] + smoothing / C
                target_sum += t
                row_sum += 0 if t == 0 else t * (<double> s[j] - m[i])
                p[j] *= scale
            rows[begin + i] = clip_to_range(target_sum * fast_log(total[i]) - row_sum, <real> 0)
        begin += n
    return CONTINUE


# ds[i, j] = dy share[i] (p[i, j] Σₖ t[i, k] − t[i, j])
#   size     0 n, 1 C
#   scalar   the smoothing
#   operand  0 ds, 1 p, 2 targets, 3 dy (one element), 4 share (if any)
#   parts    n
cdef int soft_loss_grad(real* ds, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* p = <const real*> call.operand[1].data
    cdef const real* targets = <const real*> call.operand[2].data
    cdef real dy = (<const real*> call.operand[3].data)[0], weight, target_sum
    cdef real keep = <real> (1 - call.scalar[0]), added = <real> (call.scalar[0] / call.size[1])
    cdef Py_ssize_t C = call.size[1], i, j
    for i in range(begin, end):
        weight = get_share(call, 4, dy, i)
        target_sum = keep * <real> sum_contiguous(targets + i * C, C) + C * added
        for j in range(i * C, (i + 1) * C):
            ds[j] = weight * (p[j] * target_sum - (keep * targets[j] + added))
    return CONTINUE


# ---- of labels: hinge ----

# rows[i] = Σⱼ max(0, s[i, j] − s[i, label] + margin) over the other classes j
#   size     0 n, 1 C
#   scalar   the margin
#   operand  0 rows, 1 s, 2 labels (all contiguous)
#   parts    n
cdef int hinge_loss(real* rows, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* s = <const real*> call.operand[1].data
    cdef const int64_t* labels = <const int64_t*> call.operand[2].data
    cdef Py_ssize_t C = call.size[1], i, j
    cdef double total, over
    for i in range(begin, end):
        if labels[i] < 0 or labels[i] >= C:
            return OUT_OF_RANGE
        total = 0
        for j in range(C):
            over = <double> s[i * C + j] - s[i * C + labels[i]] + call.scalar[0]
            total += 0 if over <= 0 or j == labels[i] else over
        rows[i] = clip_to_range(total, <real> 0)
    return CONTINUE


# ds[i, j] = dy share[i] where the maximum is not 0, else 0;  ds[i, label] = −Σⱼ of the others
#   size     0 n, 1 C
#   scalar   the margin
#   operand  0 ds, 1 s, 2 labels, 3 dy (one element), 4 share (if any)
#   parts    n
cdef int hinge_loss_grad(real* ds, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* s = <const real*> call.operand[1].data
    cdef const int64_t* labels = <const int64_t*> call.operand[2].data
    cdef real dy = (<const real*> call.operand[3].data)[0], weight
    cdef Py_ssize_t C = call.size[1], i, j, count
    for i in range(begin, end):
        if labels[i] < 0 or labels[i] >= C:
            return OUT_OF_RANGE
        weight = get_share(call, 4, dy, i)
        count = 0
        for j in range(C):
            if <double> s[i * C + j] - s[i * C + labels[i]] + call.scalar[0] <= 0 or j == labels[i]:
                ds[i * C + j] = 0
            else:
                ds[i * C + j] = weight
                count += 1
        ds[i * C + labels[i]] = -weight * count
    return CONTINUE


# ---- of scores and targets, element by element ----

cdef enum:
    ELEMENTS_AT_A_TIME = 512


# c[j] = constants[(first + j) % count] for n elements
cdef inline void repeat(real* c, const double* constants, Py_ssize_t count, Py_ssize_t first,
                        Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t j, at = first % count
    if count == 1:
        for j in range(n):
            c[j] = <real> constants[0]
        return
    for j in range(n):
        c[j] = <real> constants[at]
        at = at + 1 if at + 1 < count else 0


# rows[i] = Σⱼ f(s[i, j], t[i, j], c[j]) / k
#   op       selects f (elementwise.pyx)
#   scalar   its constant, if it has one
#   size     0 n, 1 k, 2 the number of constants, a divisor of k
#   operand  0 rows, 1 s, 2 t, 5 the constants c in float64, repeated along a row (if any) (all contiguous)
#   parts    n
cdef int pointwise_loss(real* rows, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* s = <const real*> call.operand[1].data
    cdef const real* t = <const real*> call.operand[2].data
    cdef Py_ssize_t k = call.size[1], at_once = ELEMENTS_AT_A_TIME // k, n, m, i, j, piece
    cdef const double* constants = <const double*> call.operand[5].data
    cdef real losses[ELEMENTS_AT_A_TIME]
    cdef real repeated[ELEMENTS_AT_A_TIME]
    cdef const real* c = s if constants == NULL else repeated
    cdef double total
    if constants != NULL:
        repeat(repeated, constants, call.size[2], 0, min((end - begin) * k, ELEMENTS_AT_A_TIME))
    while begin < end:
        i = begin * k
        if at_once > 0:                   # several rows
            n = min(end - begin, at_once)
            row(call.op, n * k, losses, 1, s + i, 1, t + i, 1, c, 1, call.scalar)
            for i in range(n):
                rows[begin + i] = <real> (sum_of_row(losses + i * k, k) / k)
        else:                             # a row in pieces
            n, total = 1, 0
            for piece in range(k // ELEMENTS_AT_A_TIME + 1):
                j = piece * ELEMENTS_AT_A_TIME
                m = min(k - j, ELEMENTS_AT_A_TIME)
                if call.size[2] > 1:
                    repeat(repeated, constants, call.size[2], j, m)
                row(call.op, m, losses, 1, s + i + j, 1, t + i + j, 1, c, 1, call.scalar)
                total += sum_contiguous(losses, m)
            rows[begin] = <real> (total / k)
        begin += n
    return CONTINUE


cdef inline double sum_of_row(const real* x, Py_ssize_t n) noexcept nogil:
    return <double> x[0] if n == 1 else sum_contiguous(x, n)


# ds[i, j] = dy share[i] f′(s[i, j], t[i, j], c[j]) / k, f′ the derivative of f with respect to s
#   op       selects f′
#   scalar   its constant, if it has one
#   size     0 n, 1 k, 2 the number of constants, a divisor of k
#   operand  0 ds, 1 s, 2 t, 3 dy (one element), 4 share (if any), 5 the constants, as above (all contiguous)
#   parts    n
cdef int pointwise_loss_grad(real* ds, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* s = <const real*> call.operand[1].data
    cdef const real* t = <const real*> call.operand[2].data
    cdef real dy = (<const real*> call.operand[3].data)[0] / call.size[1], weight
    cdef const double* constants = <const double*> call.operand[5].data
    cdef real repeated[ELEMENTS_AT_A_TIME]
    cdef Py_ssize_t k = call.size[1], at_once = max(ELEMENTS_AT_A_TIME // k, 1), n, m, i, j, piece
    if constants != NULL:
        repeat(repeated, constants, call.size[2], 0, min((end - begin) * k, ELEMENTS_AT_A_TIME))
    while begin < end:
        n = min(end - begin, at_once)
        j = begin * k
        if constants == NULL:
            row(call.op, n * k, ds + j, 1, s + j, 1, t + j, 1, s + j, 1, call.scalar)
        else:                             # a single piece, unless a row has several
            for piece in range((n * k - 1) // ELEMENTS_AT_A_TIME + 1):
                i = piece * ELEMENTS_AT_A_TIME
                m = min(n * k - i, ELEMENTS_AT_A_TIME)
                if k > ELEMENTS_AT_A_TIME and call.size[2] > 1:
                    repeat(repeated, constants, call.size[2], i, m)
                row(call.op, m, ds + j + i, 1, s + j + i, 1, t + j + i, 1, repeated, 1, call.scalar)
        if call.operand[4].data == NULL:
            weight = get_share(call, 4, dy, begin)
            for j in range(begin * k, (begin + n) * k):
                ds[j] *= weight
        else:
            for i in range(begin, begin + n):
                weight = get_share(call, 4, dy, i)
                for j in range(i * k, (i + 1) * k):
                    ds[j] *= weight
        begin += n
    return CONTINUE


# ---- of means and log variances ----

# rows[i] = Σⱼ (v[i, j] + (t[i, j] − μ[i, j])² exp(−v[i, j])) / 2 k
#   size     0 n, 1 k
#   operand  0 rows, 1 s, a row of which is μ and then v, 2 t (all contiguous)
#   parts    n
cdef int gaussian_loss(real* rows, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* t = <const real*> call.operand[2].data
    cdef Py_ssize_t k = call.size[1], i, j
    cdef const real* mean
    cdef double total, d
    for i in range(begin, end):
        mean = <const real*> call.operand[1].data + i * 2 * k
        total = 0
        for j in range(k):
            d = <double> t[i * k + j] - mean[j]
            total += mean[k + j] + d * d * fast_exp(-mean[k + j])
        rows[i] = clip_to_range(total / (2 * k), <real> 0)
    return CONTINUE


# dμ[i, j] = dy share[i] (μ − t) exp(−v) / k,   dv[i, j] = dy share[i] (1 − (t − μ)² exp(−v)) / 2 k
#   size     0 n, 1 k
#   operand  0 ds, a row of which is dμ and then dv, 1 s, 2 t, 3 dy (one element), 4 share (if any) (all contiguous)
#   parts    n
cdef int gaussian_loss_grad(real* ds, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* t = <const real*> call.operand[2].data
    cdef real dy = (<const real*> call.operand[3].data)[0] / call.size[1], weight, d, precision
    cdef Py_ssize_t k = call.size[1], i, j
    cdef const real* mean
    for i in range(begin, end):
        mean = <const real*> call.operand[1].data + i * 2 * k
        weight = get_share(call, 4, dy, i)
        for j in range(k):
            d = mean[j] - t[i * k + j]
            precision = fast_exp(-mean[k + j])
            ds[i * 2 * k + j] = weight * (d * precision)
            ds[i * 2 * k + k + j] = weight * (<real> 0.5 * (<real> 1 - d * (d * precision)))
    return CONTINUE


# ---- the mean over the rows ----

# value = Σ w[i, l] rows[i, l] / total,  share[i, l] = w[i, l] / total,  total = Σ w[i, l],
# where w[i, l] is the weight of row i, or 1 without weights, and 0 if the label is ignored. Stops the step if a weight
# is negative or not finite, or if the total is 0. If the rows are only a part of the mean's rows, a total of 0 does not
# stop the step, and all results are 0.
#   size     0 n, 1 rows to a weight, 2 whether there is a label to ignore, 3 that label, 4 whether there are weights,
#            5 whether it is a part
#   operand  0 value (one element), 1 total (one double), 2 share, 3 weights (n / size[1]), or else labels, 4 rows,
#            5 labels
#   parts    1
cdef int weighted_mean(real* value, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef real* share = <real*> call.operand[2].data
    cdef const real* weights = <const real*> call.operand[3].data
    cdef const real* rows = <const real*> call.operand[4].data
    cdef const int64_t* labels = <const int64_t*> call.operand[5].data
    cdef Py_ssize_t n = call.size[0], rows_per_weight = call.size[1], i, j
    cdef bint ignores = call.size[2], weighs = call.size[4]
    cdef double total = 0, loss_sum = 0
    cdef real w = 1
    for i in range(n // rows_per_weight):
        if weighs:
            w = weights[i]
            if not (w >= 0 and w <= DBL_MAX):
                return OUT_OF_RANGE
        for j in range(i * rows_per_weight, (i + 1) * rows_per_weight):
            if ignores and is_ignored(call, labels[j]):
                share[j] = 0
            else:
                share[j] = w
                total += w
                loss_sum += <double> w * rows[j]
    if not (total >= 0 and total <= DBL_MAX) or (total == 0 and not call.size[5]):
        return OUT_OF_RANGE
    (<double*> call.operand[1].data)[0] = total  # the sum of float32 weights may overflow float32
    if total == 0:
        value[0] = 0
        return CONTINUE
    for j in range(n):
        share[j] = <real> (share[j] / total)
    value[0] = <real> (loss_sum / total)
    return CONTINUE


# ---- checks ----

# first = the first row whose label is neither in 0 … C − 1 nor ignored, or −1. Stops with OUT_OF_RANGE if there is one.
#   size     0 n, 1 C, 2 whether there is a label to ignore, 3 that label
#   operand  0 first (one int64), 1 labels
#   parts    1
cdef int check_labels(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef int64_t* first = <int64_t*> out
    cdef const int64_t* labels = <const int64_t*> call.operand[1].data
    cdef Py_ssize_t i
    first[0] = -1
    for i in range(call.size[0]):
        if (labels[i] < 0 or labels[i] >= call.size[1]) and not is_ignored(call, labels[i]):
            first[0] = i
            return OUT_OF_RANGE
    return CONTINUE


# first = the first row with a number below 0, above the largest allowed, or NaN, or with a sum that differs from 1 by
# more than the tolerance; or −1. Stops with OUT_OF_RANGE if there is one.
#   size     0 n, 1 C
#   scalar   0 the largest number allowed, 1 the tolerance
#   operand  0 t (contiguous), 1 first (one int64)
#   parts    1
cdef int check_probabilities(real* t, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef int64_t* first = <int64_t*> call.operand[1].data
    cdef Py_ssize_t C = call.size[1], i, j
    cdef double total
    cdef bint good
    first[0] = -1
    for i in range(call.size[0]):
        total, good = 0, True
        for j in range(i * C, (i + 1) * C):
            total += t[j]
            good &= (t[j] >= 0) & (t[j] <= call.scalar[0])
        if not (good and abs(total - 1) <= call.scalar[1]):
            first[0] = i
            return OUT_OF_RANGE
    return CONTINUE


include "../generated/publish_loss.pxi"
