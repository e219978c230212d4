# Mini-batches: the order of the rows, and the rows in that order.

# xoshiro256++ 1.0, the next 64 random bits (D. Blackman and S. Vigna, "Scrambled linear pseudorandom number
# generators", ACM TOMS 47(4), 2021).
@cython.overflowcheck(False)              # its arithmetic is modulo 2⁶⁴
cdef uint64_t next_random(uint64_t* s) noexcept nogil:
    cdef uint64_t bits = rotate(s[0] + s[3], 23) + s[0]
    cdef uint64_t t = s[1] << 17
    s[2] ^= s[0]
    s[3] ^= s[1]
    s[1] ^= s[2]
    s[0] ^= s[3]
    s[2] ^= t
    s[3] = rotate(s[3], 45)
    return bits


@cython.overflowcheck(False)
cdef inline uint64_t rotate(uint64_t x, int k) noexcept nogil:
    return (x << k) | (x >> (64 - k))


# A uniform number below n, n > 0: random bits under the smallest mask that covers n − 1, drawn again until they fit.
cdef uint64_t random_below(uint64_t n, uint64_t* state) noexcept nogil:
    cdef uint64_t mask = n - 1, value
    cdef int shift = 1
    while shift < 64:
        mask |= mask >> shift
        shift *= 2
    value = next_random(state) & mask
    while value >= n:
        value = next_random(state) & mask
    return value


# Puts order, a permutation of the rows, into a new random order in place (Fisher and Yates; Knuth, TAOCP 2, 3.4.2 P).
#   size     0 n
#   operand  0 order, 1 state (four uint64)
#   parts    1
cdef int shuffle(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef int64_t* order = <int64_t*> out
    cdef uint64_t* state = <uint64_t*> call.operand[1].data
    cdef Py_ssize_t i, j
    for i in range(call.size[0] - 1, 0, -1):
        j = <Py_ssize_t> random_below(i + 1, state)
        order[i], order[j] = order[j], order[i]
    return CONTINUE


# ---- through a cursor: the addresses of x, y and order, the position, the address of the sums ---------------------

# out[i] = rows[order[position + i]]
#   size     0 which rows, x (0) or y (1);  1 bytes a row
#   operand  0 out, 1 cursor
#   parts    the rows of out
cdef int take_batch(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const int64_t* cursor = <const int64_t*> call.operand[1].data
    cdef const char* rows = <const char*> cursor[call.size[0]]
    cdef const int64_t* order = <const int64_t*> cursor[2] + cursor[3]
    cdef Py_ssize_t n = call.size[1]
    take_rows(<char*> out, rows, order, n, begin, end)
    return CONTINUE


cdef void take_rows(char* out, const char* rows, const int64_t* order, Py_ssize_t n,
                    Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t i
    if n == sizeof(int64_t):              # a label, or a point: worth a copy without a call
        for i in range(begin, end):
            memcpy(out + i * sizeof(int64_t), rows + order[i] * sizeof(int64_t), sizeof(int64_t))
    else:
        for i in range(begin, end):
            memcpy(out + i * n, rows + order[i] * n, n)


# position += rows, and the first of the sums too
#   size     0 rows
cdef int advance(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef int64_t* cursor = <int64_t*> out
    cursor[3] += call.size[0]
    (<double*> cursor[4])[0] += call.size[0]
    return CONTINUE


# sums[slot] += rows · value
#   size     0 slot, 1 rows
#   operand  0 cursor, 1 value
cdef int add_mean(real* dtype, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const int64_t* cursor = <const int64_t*> dtype
    (<double*> cursor[4])[call.size[0]] += call.size[1] * <double> (<const real*> call.operand[1].data)[0]
    return CONTINUE


# sums[slot] += the rows whose largest element, the first of equals, is at the label; NaN is larger than any number
#   size     0 slot, 1 n, 2 C
#   operand  0 cursor, 1 outputs, 2 labels
cdef int add_correct(real* dtype, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const int64_t* cursor = <const int64_t*> dtype
    cdef const real* outputs = <const real*> call.operand[1].data
    cdef const int64_t* labels = <const int64_t*> call.operand[2].data
    cdef Py_ssize_t C = call.size[2], i, j, largest, correct = 0
    cdef const real* row
    for i in range(call.size[1]):
        row = outputs + i * C
        largest = 0
        for j in range(1, C):
            if row[largest] != row[largest]:
                break
            if not row[j] <= row[largest]:
                largest = j
        correct += largest == labels[i]
    (<double*> cursor[4])[call.size[0]] += correct
    return CONTINUE


publish("add_mean", <Loop> add_mean[float], <Loop> add_mean[double])
publish("add_correct", <Loop> add_correct[float], <Loop> add_correct[double])
publish("shuffle", <Loop> shuffle)
publish("take_batch", <Loop> take_batch)
publish("advance", <Loop> advance)
