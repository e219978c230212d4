# Recurrences: RNN, GRU, LSTM. n rows, T steps, H hidden units, G gates of H units each.
#
# One product has computed the gates' inputs from x for all steps. Each step then needs a product with the state before
# it, and functions of single elements. A few rows go through all steps before the next rows do. So their state stays in
# the first-level cache, and the weights, packed for tiles, in the second. Rows are independent, so threads that share
# them never wait for each other.
#
# The backward does the same in reverse: the later steps give dh, the gradient of a step's state. These kernels compute
# the gradients of the gates' inputs. The gradients of the weights and of x are again products over all steps at once.
#
# If a recurrence is reversed, its first step reads a row's last element, and its last step reads the row's first one.
#
#   size     0 n T, 1 H, 2 G H, 3 T, 4 G: 1 of an RNN, 3 of a GRU, 4 of an LSTM, 5 whether it is reversed
#   parts    the rows
#   all operands are contiguous

from caffelite._kernels.loops.arithmetic cimport sum_of_products
from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.math cimport gate_sigmoid, fast_tanh
from caffelite._kernels.loops.matmul cimport (
    BLOCK_K, COLUMNS_bfloat16, Strip, begin_strips_bfloat16, depth_bfloat16, end_strips_bfloat16, max_terms_bfloat16,
    pack_strips, pack_columns_bfloat16, pack_rows_bfloat16, run_strip, strip_columns,
)

cdef enum:
    ROWS_TOGETHER = 24                    # a multiple of the rows of a tile


# The gates' inputs from x become the gates. All results are 0 from a row's length on.
#   operand  0 gates (n, T, G H), 1 the states before each step (n, T, H), 2 the last state (n, H), 3 all states or
#            absent, 4 weights, packed, 5 bias (G H), 6 the first state (n, H), 7 lengths (int64) or absent,
#            8 beside (n, T, H): the part of n's input that r multiplies (GRU), the cells' states (LSTM); and for LSTM
#            9 the cells' first state, 10 their last (n, H); 11 memory for the gates' inputs from the state (n, G H)
cdef int recurrence(real* gates, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t H = call.size[1], GH = call.size[2], T = call.size[3], G = call.size[4], rows, i, t, steps, at
    cdef Py_ssize_t length
    cdef real* previous = <real*> call.operand[1].data
    cdef real* last = <real*> call.operand[2].data
    cdef real* y = <real*> call.operand[3].data
    cdef real* beside = <real*> call.operand[8].data
    cdef real* inputs = <real*> call.operand[11].data
    cdef const real* first = <const real*> call.operand[6].data
    cdef const real* cell
    while begin < end:
        rows = min(end - begin, ROWS_TOGETHER)
        memcpy(last + begin * H, first + begin * H, rows * H * sizeof(real))
        steps = max_steps(call, 7, begin, rows)
        for t in range(steps):
            multiply_rows(call, inputs + begin * GH, last + begin * H, <const real*> call.operand[4].data, rows, H, GH,
                          <const real*> call.operand[5].data, False)
            for i in range(begin, begin + rows):
                length = get_length(call, 7, i)
                if t >= length:
                    continue
                at = index_at(call, i, t, length)
                memcpy(previous + at * H, last + i * H, H * sizeof(real))
                if G == 1:
                    rnn_state(last + i * H, gates + at * GH, inputs + i * GH, H)
                elif G == 3:
                    gru_state(last + i * H, gates + at * GH, beside + at * H, inputs + i * GH, H)
                else:
                    cell = previous_cell(call, beside, <const real*> call.operand[9].data, i, t, length)
                    lstm_state(last + i * H, gates + at * GH, beside + at * H, inputs + i * GH, cell, H)
                if y != NULL:
                    memcpy(y + at * H, last + i * H, H * sizeof(real))
        for i in range(begin, begin + rows):
            length = get_length(call, 7, i)
            if G == 4:
                cell = previous_cell(call, beside, <const real*> call.operand[9].data, i, length, length)
                memcpy(<real*> call.operand[10].data + i * H, cell, H * sizeof(real))
            clear(gates, i, length, T, GH)
            clear(previous, i, length, T, H)
            clear(y, i, length, T, H)
            clear(beside, i, length, T, H)
        begin += rows
    return CONTINUE


# Takes dh, the gradient of a state, back from step to step, and from it computes the gradients of each step's gates.
#   operand  0 the gradient of the gates' inputs (n, T, G H), 1 dh (n, H): first of the last state, then of the first,
#            2 gates, 3 weights, packed, 4 dy, of all states, or absent, 5 lengths (int64) or absent, 6 beside,
#            LSTM: 7 the cells' dc (n, H), like dh, 8 their first state,
#            GRU: 9 the gradient of beside, 10 the states before each step,
#            11 memory for the gradient of the gates' inputs from the state (n, G H)
cdef int recurrence_grad(real* dgates, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t H = call.size[1], GH = call.size[2], T = call.size[3], G = call.size[4], rows, i, t, at, steps
    cdef Py_ssize_t length
    cdef real* dh = <real*> call.operand[1].data
    cdef const real* gates = <const real*> call.operand[2].data
    cdef const real* dy = <const real*> call.operand[4].data
    cdef const real* beside = <const real*> call.operand[6].data
    cdef real* dc = <real*> call.operand[7].data
    cdef real* dbeside = <real*> call.operand[9].data
    cdef const real* previous = <const real*> call.operand[10].data
    cdef real* dinputs = <real*> call.operand[11].data
    cdef const real* cell
    while begin < end:
        rows = min(end - begin, ROWS_TOGETHER)
        memset(dinputs + begin * GH, 0, rows * GH * sizeof(real))
        steps = max_steps(call, 5, begin, rows)
        for t in range(steps - 1, -1, -1):
            for i in range(begin, begin + rows):
                length = get_length(call, 5, i)
                if t >= length:
                    continue
                at = index_at(call, i, t, length)
                if dy != NULL:
                    add_to(dh + i * H, dy + at * H, H)
                if G == 1:
                    rnn_gradient(dinputs + i * GH, dh + i * H, gates + at * GH, H)
                elif G == 3:
                    gru_gradient(dinputs + i * GH, dgates + at * GH + 2 * H, dh + i * H, gates + at * GH,
                                 beside + at * H, previous + at * H, H)
                    memcpy(dbeside + at * H, dinputs + i * GH + 2 * H, H * sizeof(real))
                else:
                    cell = previous_cell(call, beside, <const real*> call.operand[8].data, i, t, length)
                    lstm_gradient(dinputs + i * GH, dh + i * H, dc + i * H, gates + at * GH, beside + at * H, cell, H)
                memcpy(dgates + at * GH, dinputs + i * GH, (2 * H if G == 3 else GH) * sizeof(real))
            multiply_rows(call, dh + begin * H, dinputs + begin * GH, <const real*> call.operand[3].data, rows, GH, H,
                          <const real*> NULL, True)
        for i in range(begin, begin + rows):
            clear(dgates, i, get_length(call, 5, i), T, GH)
            clear(dbeside, i, get_length(call, 5, i), T, H)
        begin += rows
    return CONTINUE


# y = a b (+ bias), or y += a b: some rows of y (rows, N) and a (rows, K); b is packed.
cdef void multiply_rows(const Call* call, real* y, const real* a, const real* b, Py_ssize_t rows, Py_ssize_t K,
                        Py_ssize_t N, const real* bias, bint accumulate) noexcept nogil:
    cdef Py_ssize_t width = strip_columns(y), j = 0, k
    cdef Strip strip
    if real is float:
        if call.rounds:
            multiply_rounded_rows(y, a, b, rows, K, N, bias, accumulate)
            return
    memset(&strip, 0, sizeof(Strip))
    strip.rows, strip.runs, strip.a_row, strip.a_k, strip.b_k, strip.b_column, strip.y_row = rows, 1, K, 1, width, 1, N
    while j < N:
        strip.columns, strip.y, strip.resume, k = min(N - j, width), y + j, accumulate, 0
        while k < K:                      # blocks of b that stay in the first-level cache
            strip.k, strip.a, strip.b = min(K - k, BLOCK_K), a + k, b + k * width
            k += strip.k
            strip.bias = bias + j if bias != NULL and k == K else NULL
            run_strip(y, &strip)
            strip.resume = True
        b += K * width
        j += width


# The same, if a and b are rounded to bfloat16.
cdef void multiply_rounded_rows(float* y, const float* a, const float* b, Py_ssize_t rows, Py_ssize_t K, Py_ssize_t N,
                                const float* bias, bint accumulate) noexcept nogil:
    cdef Py_ssize_t width = COLUMNS_bfloat16, j, k = 0, terms
    cdef Strip strip
    memset(&strip, 0, sizeof(Strip))
    strip.rounded, strip.rows, strip.runs, strip.b_column, strip.y_row = True, rows, 1, 1, N
    strip.b_k = width
    cdef uint64_t control = begin_strips_bfloat16()
    while k < K:
        terms = min(K - k, max_terms_bfloat16())
        pack_rows_bfloat16(&strip, a + k, K, terms, 1)
        strip.k, strip.resume, j = depth_bfloat16(terms), accumulate or k > 0, 0
        while j < N:
            strip.columns, strip.y = min(N - j, width), y + j
            strip.b = b + j * depth_bfloat16(K) + depth_bfloat16(k) * width
            strip.bias = bias + j if bias != NULL and k + terms == K else NULL
            run_strip(y, &strip)
            j += width
        k += terms
    end_strips_bfloat16(control)


# ---- one row at one step ----

# h = tanh(gate + input)
cdef void rnn_state(real* h, real* gate, const real* inputs, Py_ssize_t H) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(H):
        gate[j] = fast_tanh(gate[j] + inputs[j])
    memcpy(h, gate, H * sizeof(real))


# r, z = σ(gates + inputs),  n = tanh(gate + r input),  h = n + z (h − n)
cdef void gru_state(real* h, real* gates, real* beside, const real* inputs, Py_ssize_t H) noexcept nogil:
    cdef Py_ssize_t j
    cdef real* n = gates + 2 * H
    memcpy(beside, inputs + 2 * H, H * sizeof(real))
    for j in range(2 * H):
        gates[j] = gate_sigmoid(gates[j] + inputs[j])
    for j in range(H):
        n[j] = fast_tanh(n[j] + gates[j] * inputs[2 * H + j])
    for j in range(H):
        h[j] = n[j] + gates[H + j] * (h[j] - n[j])


# i, f, o = σ(gates + inputs),  g = tanh(gate + input),  c = f c + i g,  h = o tanh c
cdef void lstm_state(real* h, real* gates, real* c, const real* inputs, const real* before,
                     Py_ssize_t H) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(2 * H):
        gates[j] = gate_sigmoid(gates[j] + inputs[j])
    for j in range(2 * H, 3 * H):
        gates[j] = fast_tanh(gates[j] + inputs[j])
    for j in range(3 * H, 4 * H):
        gates[j] = gate_sigmoid(gates[j] + inputs[j])
    for j in range(H):
        c[j] = sum_of_products(gates[H + j], before[j], gates[j], gates[2 * H + j])
    for j in range(H):
        h[j] = gates[3 * H + j] * fast_tanh(c[j])


# The state of an LSTM's cells before a step.
cdef inline const real* previous_cell(const Call* call, const real* cells, const real* first, Py_ssize_t row,
                                      Py_ssize_t step, Py_ssize_t length) noexcept nogil:
    cdef Py_ssize_t H = call.size[1]
    return cells + index_at(call, row, step - 1, length) * H if step > 0 else first + row * H


# The gradients of the gates' inputs from the state. dh becomes the part that reaches the previous state directly.

cdef void rnn_gradient(real* d, real* dh, const real* h, Py_ssize_t H) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(H):
        d[j] = dh[j] * (1 - h[j] * h[j])
        dh[j] = 0


# A GRU also needs dn, the gradient of n's input from x. r times dn is the gradient of n's input from the state.
cdef void gru_gradient(real* d, real* dn, real* dh, const real* gates, const real* beside, const real* before,
                       Py_ssize_t H) noexcept nogil:
    cdef const real* z = gates + H
    cdef const real* n = gates + 2 * H
    cdef Py_ssize_t j
    for j in range(H):
        dn[j] = dh[j] * (1 - z[j]) * (1 - n[j] * n[j])
        d[H + j] = dh[j] * (before[j] - n[j]) * z[j] * (1 - z[j])
    for j in range(H):
        d[2 * H + j] = dn[j] * gates[j]
        d[j] = dn[j] * beside[j] * gates[j] * (1 - gates[j])
    for j in range(H):
        dh[j] *= z[j]


cdef void lstm_gradient(real* d, real* dh, real* dc, const real* gates, const real* c, const real* before,
                        Py_ssize_t H) noexcept nogil:
    cdef const real* f = gates + H
    cdef const real* g = gates + 2 * H
    cdef const real* o = gates + 3 * H
    cdef Py_ssize_t j
    cdef real tanh_c
    for j in range(H):
        tanh_c = fast_tanh(c[j])
        d[3 * H + j] = dh[j] * tanh_c * o[j] * (1 - o[j])
        dc[j] += dh[j] * o[j] * (1 - tanh_c * tanh_c)
    for j in range(H):
        d[j] = dc[j] * g[j] * gates[j] * (1 - gates[j])
        d[2 * H + j] = dc[j] * gates[j] * (1 - g[j] * g[j])
    for j in range(H):
        d[H + j] = dc[j] * before[j] * f[j] * (1 - f[j])
        dc[j] *= f[j]
        dh[j] = 0


cdef inline void add_to(real* y, const real* x, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(n):
        y[j] += x[j]


# ---- rows of different lengths ----

cdef inline Py_ssize_t get_length(const Call* call, int operand, Py_ssize_t row) noexcept nogil:
    cdef const int64_t* lengths = <const int64_t*> call.operand[operand].data
    if lengths == NULL:
        return call.size[3]
    return max(0, min(lengths[row], call.size[3]))


cdef inline Py_ssize_t max_steps(const Call* call, int operand, Py_ssize_t begin, Py_ssize_t rows) noexcept nogil:
    cdef Py_ssize_t i, longest = 0
    for i in range(begin, begin + rows):
        longest = max(longest, get_length(call, operand, i))
    return longest


# The number of the element that a step of a row reads, among the elements of all rows.
cdef inline Py_ssize_t index_at(const Call* call, Py_ssize_t row, Py_ssize_t step, Py_ssize_t length) noexcept nogil:
    return row * call.size[3] + (length - 1 - step if call.size[5] else step)


# Sets the elements of a row from its length on to 0.
cdef inline void clear(real* x, Py_ssize_t row, Py_ssize_t length, Py_ssize_t T, Py_ssize_t n) noexcept nogil:
    if x != NULL and length < T:
        memset(x + (row * T + length) * n, 0, (T - length) * n * sizeof(real))


# y = x, and 0 from a row's length on. Stops with OUT_OF_RANGE at a length that is not in 1 … T.
#   size     0 T, 1 elements a step
#   operand  0 y, 1 x, 2 lengths (int64; all contiguous)
#   parts    the rows
cdef int cut(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const real* x = <const real*> call.operand[1].data
    cdef const int64_t* lengths = <const int64_t*> call.operand[2].data
    cdef Py_ssize_t T = call.size[0], n = call.size[1], i
    for i in range(begin, end):
        if lengths[i] < 1 or lengths[i] > T:
            return OUT_OF_RANGE
        memcpy(y + i * T * n, x + i * T * n, lengths[i] * n * sizeof(real))
        clear(y, i, lengths[i], T, n)
    return CONTINUE


# Packs the strips of b (K, N) for tiles.
#   size     0 K, 1 N
#   operand  0 strips, 1 b (strides 0 row, 1 column)
#   parts    strips
#   rounds   whether b, of float32, is rounded to bfloat16
cdef int pack(real* strips, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef const Operand* b = &call.operand[1]
    cdef Py_ssize_t K = call.size[0], width = strip_columns(strips), first = begin * width
    cdef Py_ssize_t columns = min(end * width, call.size[1]) - first
    if real is float:
        if call.rounds:
            for first in range(begin, end):
                pack_rounded_strip(strips, call, first * COLUMNS_bfloat16)
            return CONTINUE
    pack_strips(strips + first * K, <const real*> b.data + first * b.stride[1], columns, b.stride[1], K, b.stride[0])
    return CONTINUE


# The strip that begins at column j, block after block of rows.
cdef void pack_rounded_strip(float* strips, const Call* call, Py_ssize_t j) noexcept nogil:
    cdef const Operand* b = &call.operand[1]
    cdef Py_ssize_t K = call.size[0], columns = min(call.size[1] - j, <Py_ssize_t> COLUMNS_bfloat16), k = 0, terms
    cdef float* strip = strips + j * depth_bfloat16(K)
    while k < K:
        terms = min(K - k, max_terms_bfloat16())
        pack_columns_bfloat16(strip + depth_bfloat16(k) * COLUMNS_bfloat16,
                              <const float*> b.data + k * b.stride[0] + j * b.stride[1], b.stride[1], columns, terms,
                              b.stride[0])
        k += terms


include "../generated/publish_recurrent.pxi"
