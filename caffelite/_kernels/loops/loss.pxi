# Softmax loss: the softmax and the mean negative log-likelihood of integer labels, fused.
#   n rows, C classes; labels are int64. `check_labels` has seen them; one out of range stops the loop all the same.

# p[i, j] = exp(s[i, j] − m[i]) / Σⱼ exp(s[i, j] − m[i]),   rows[i] = log Σⱼ exp(s[i, j] − m[i]) − (s[i, label] − m[i])
# with m[i] the largest score of the row: no exponential overflows, and no logarithm sees 0.
#   size     0 n, 1 C
#   operand  0 p, 1 s, 2 labels, 3 rows (all contiguous)
#   parts    n
cdef int softmax_loss(real* p, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* scores = <const real*> call.operand[1].data
    cdef const int64_t* labels = <const int64_t*> call.operand[2].data
    cdef real* rows = <real*> call.operand[3].data
    cdef Py_ssize_t C = call.size[1], n, i, j
    cdef const real* s
    cdef real* q
    cdef real largest, scale
    cdef double total[ROWS_AT_A_TIME]
    cdef double of_label[ROWS_AT_A_TIME]

    while begin < end:
        n = min(end - begin, ROWS_AT_A_TIME)
        for i in range(n):
            if labels[begin + i] < 0 or labels[begin + i] >= C:
                return OUT_OF_RANGE
            s = scores + (begin + i) * C
            q = p + (begin + i) * C
            largest = s[0]
            for j in range(1, C):
                largest = s[j] if s[j] > largest else largest
            for j in range(C):
                q[j] = s[j] - largest
            of_label[i] = <double> s[labels[begin + i]] - largest
        q = p + begin * C
        for j in range(n * C):
            q[j] = exp_of(q[j])
        for i in range(n):
            total[i] = 0
            for j in range(C):
                total[i] += q[i * C + j]
            scale = <real> (1 / total[i])
            for j in range(C):
                q[i * C + j] *= scale
        for i in range(n):
            total[i] = log_of(total[i]) - of_label[i]
            # A finite loss beyond the dtype's range (scores near its end) is held at the end of the range.
            total[i] = call.scalar[0] if total[i] > call.scalar[0] and total[i] <= DBL_MAX else total[i]
            rows[begin + i] = <real> total[i]
        begin += n
    return CONTINUE


# ds[i, j] = dy (p[i, j] − [j = label]) / n
#   size     0 n, 1 C
#   operand  0 ds, 1 p, 2 labels, 3 dy (one element)
#   parts    n
cdef int softmax_loss_grad(real* ds, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* p = <const real*> call.operand[1].data
    cdef const int64_t* labels = <const int64_t*> call.operand[2].data
    cdef real weight = (<const real*> call.operand[3].data)[0] / call.size[0]
    cdef Py_ssize_t C = call.size[1], i, j

    for j in range(begin * C, end * C):
        ds[j] = weight * p[j]
    for i in range(begin, end):
        if labels[i] < 0 or labels[i] >= C:
            return OUT_OF_RANGE
        j = i * C + labels[i]
        ds[j] = weight * (p[j] - <real> 1)
    return CONTINUE


# first = the first row whose label is not in 0 … C − 1, or −1; then stops with OUT_OF_RANGE.
#   size     0 n, 1 C
#   operand  0 first (one int64), 1 labels
#   parts    1
cdef int check_labels(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef int64_t* first = <int64_t*> out
    cdef const int64_t* labels = <const int64_t*> call.operand[1].data
    cdef Py_ssize_t i
    first[0] = -1
    for i in range(call.size[0]):
        if labels[i] < 0 or labels[i] >= call.size[1]:
            first[0] = i
            return OUT_OF_RANGE
    return CONTINUE


publish("softmax_loss", <Loop> softmax_loss[float], <Loop> softmax_loss[double])
publish("softmax_loss_grad", <Loop> softmax_loss_grad[float], <Loop> softmax_loss_grad[double])
publish("check_labels", <Loop> check_labels)
