# Mini-batches: the order of the rows, and the rows in that order.

cimport cython

from caffelite._kernels.loops.arithmetic cimport NOT_A_NUMBER
from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.indexing cimport take_rows
from caffelite._kernels.loops.loss cimport is_ignored


# xoshiro256++ 1.0, the next 64 random bits (D. Blackman and S. Vigna, "Scrambled linear pseudorandom number
# generators", ACM TOMS 47(4), 2021).
@cython.overflowcheck(False)              # the arithmetic is modulo 2⁶⁴
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


# A uniform random number below n, n > 0. Draws as many bits as n − 1 has, until the number is below n.
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


# Shuffles `order`, a permutation of the rows, in place (Fisher and Yates; Knuth, TAOCP 2, 3.4.2 P).
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


# Makes batches of rows of similar length: sorts `order` by the groups of its rows, equal ones in their order, and then
# shuffles the full batches among each other. Stops with OUT_OF_RANGE, before it writes, at a row or a group that is not
# there.
#   size     0 n, 1 groups, 2 rows of a full batch, 3 full batches, 4 rows that have a group
#   operand  0 order, 1 state (four uint64), 2 group of each row (int64), 3 memory (int64, n + groups)
#   parts    1
cdef int group_batches(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef int64_t* order = <int64_t*> out
    cdef uint64_t* state = <uint64_t*> call.operand[1].data
    cdef const int64_t* groups = <const int64_t*> call.operand[2].data
    cdef int64_t* rows = <int64_t*> call.operand[3].data
    cdef int64_t* places = rows + call.size[0]         # of the next row of each group
    cdef Py_ssize_t size = call.size[2], i, j, k
    cdef int64_t count, place = 0
    memcpy(rows, order, call.size[0] * sizeof(int64_t))
    memset(places, 0, call.size[1] * sizeof(int64_t))
    for i in range(call.size[0]):
        if not 0 <= rows[i] < call.size[4] or not 0 <= groups[rows[i]] < call.size[1]:
            return OUT_OF_RANGE
        places[groups[rows[i]]] += 1
    for i in range(call.size[1]):
        count = places[i]
        places[i] = place
        place += count
    for i in range(call.size[0]):
        order[places[groups[rows[i]]]] = rows[i]
        places[groups[rows[i]]] += 1
    for i in range(call.size[3] - 1, 0, -1):
        j = <Py_ssize_t> random_below(i + 1, state)
        for k in range(size):
            order[i * size + k], order[j * size + k] = order[j * size + k], order[i * size + k]
    return CONTINUE


# ---- through a cursor (call.pxd) ------------------------------------------------------------------------------------

# out[i] = column[order[position + i]], or the first bytes of that row
#   size     0 which column, 1 bytes a row of out, 2 bytes a row of the column
#   operand  0 out, 1 cursor
#   parts    the rows of out
cdef int take_batch(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Cursor* cursor = <const Cursor*> call.operand[1].data
    cdef const int64_t* order = cursor.order + cursor.position
    cdef const char* column = cursor.columns[call.size[0]]
    cdef Py_ssize_t n = call.size[1], i
    if n == call.size[2]:
        take_rows(<char*> out, column, order, n, begin, end)
    else:
        for i in range(begin, end):
            memcpy(<char*> out + i * n, column + order[i] * call.size[2], n)
    return CONTINUE


# column[measured + i] = batch[i], and 0 behind it if the rows of the column are longer
#   size     0 which column, 1 bytes a row of the batch, 2 rows, 3 bytes a row of the column
#   operand  0 cursor, 1 batch
#   parts    1
cdef int put_batch(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Cursor* cursor = <const Cursor*> out
    cdef Py_ssize_t n = call.size[1], width = call.size[3], i
    cdef char* rows = cursor.columns[call.size[0]] + cursor.measured * width
    if n == width:
        memcpy(rows, call.operand[1].data, call.size[2] * n)
    else:
        for i in range(call.size[2]):
            memcpy(rows + i * width, call.operand[1].data + i * n, n)
            memset(rows + i * width + n, 0, width - n)
    return CONTINUE


# position += rows, measured += rows
#   size     0 rows
#   operand  0 cursor
cdef int advance(void* out, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Cursor* cursor = <Cursor*> out
    cursor.position += call.size[0]
    cursor.measured += call.size[0]
    return CONTINUE


# Adds a mean over the rows to sums[slot].
#   size     0 slot, 1 rows
#   operand  0 cursor, 1 mean
cdef int add_mean(real* dtype, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Mean* sum = (<const Cursor*> dtype).sums + call.size[0]
    sum.total += call.size[1] * <double> (<const real*> call.operand[1].data)[0]
    sum.weight += call.size[1]
    return CONTINUE


# Adds a mean over rows of weight w to sums[slot]. Rows of total weight 0 do not count; their mean may be NaN.
#   size     0 slot, 1 rows, 2 whether the mean is float64
#   operand  0 cursor, 1 mean, 2 w
cdef int add_weighted_mean(real* dtype, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Mean* sum = (<const Cursor*> dtype).sums + call.size[0]
    cdef const real* w = <const real*> call.operand[2].data
    cdef double weight = 0
    cdef Py_ssize_t i
    for i in range(call.size[1]):
        weight += w[i]
    if weight == 0:
        return CONTINUE
    if call.size[2]:
        sum.total += weight * (<const double*> call.operand[1].data)[0]
    else:
        sum.total += weight * <double> (<const float*> call.operand[1].data)[0]
    sum.weight += weight
    return CONTINUE


# Adds the number of correct rows to sums[slot]. A row is correct if its largest element, the first of equal ones, is at
# the label. If rows have one element, a row is correct if the label is 1 and the element is above the threshold, or
# neither. NaN if an element is NaN. Rows with the ignored label do not count.
#   size     0 slot, 1 n, 2 whether there is a label to ignore, 3 that label, 4 C
#   scalar   threshold
#   operand  0 cursor, 1 outputs, 2 labels
cdef int add_correct(real* dtype, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Mean* sum = (<const Cursor*> dtype).sums + call.size[0]
    cdef const real* outputs = <const real*> call.operand[1].data
    cdef const int64_t* labels = <const int64_t*> call.operand[2].data
    cdef Py_ssize_t C = call.size[4], i, j, largest, correct = 0, counted = 0
    cdef bint unknown = False
    cdef const real* row
    for i in range(call.size[1]):
        if is_ignored(call, labels[i]):
            continue
        counted += 1
        row = outputs + i * C
        largest = 0
        for j in range(1, C):
            if row[largest] != row[largest]:
                break
            if not row[j] <= row[largest]:
                largest = j
        unknown |= C > 0 and row[largest] != row[largest]
        if C == 1:
            largest = row[0] > call.scalar[0]
        correct += largest == labels[i]
    sum.total += NOT_A_NUMBER if unknown else <double> correct
    sum.weight += counted
    return CONTINUE


include "../generated/publish_batches.pxi"
