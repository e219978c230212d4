# Attention: for each query, the mean of the values, weighted by how well their keys match the query.
#
#     s = q kᵀ / √d,  p = exp(s − m) / Σ exp(s − m),  m the largest s of a row,  y = p v
#
# for each head of each row. q and y (n, length, heads · d), k and v (n, keys, heads · d), as linear layers return them:
# a head is d neighbouring columns. The queries are the last positions of the keys. If causal, a query sees the keys up
# to its own position. A mask has an entry for each key of a row, or for each pair of a query and a key. No query sees a
# key whose entry is False. If a query sees no key, y = 0 and its gradient is 0.
#
# A matrix of all p would take length × keys numbers. As in FlashAttention (T. Dao, D. Fu, S. Ermon, A. Rudra, C. Ré,
# NeurIPS 2022), only one block of it is in memory. If a block of keys raises m, the sums so far are multiplied by
# exp(old m − new m). m and the sum are stored, and the backward computes the blocks again.
#
# Blocks are transposed: keys × queries. Each lane of a vector is a query, so one instruction serves many queries. A
# query's sums go over blocks of KEYS keys, starting with the first key, so they do not depend on its place in a strip.
# In short sequences with narrow heads, each lane is a head (short_attention.h). That is faster, and the same in bits.
#
#   size     0 n, 1 heads, 2 queries L, 3 keys S, 4 d, 5 whether it is causal
#   scalar   0 1/√d, 1 the p of dropout
#   q, k, v  strides: 0 of rows, 1 of positions; the same for dy. The others are contiguous
#   mask     strides: 0 of rows, 1 of queries, 2 of keys; 0 along an axis that it does not have
#   norms    (2, n, heads, L): m log₂ e and 1 / Σ exp(s − m)
#   drawn    (seed, step) of dropout, or absent


from caffelite._kernels.loops.arithmetic cimport INFINITE
from caffelite._kernels.loops.family cimport *
from caffelite._kernels.loops.matmul cimport (
    BLOCK_K, READS_LANES, Strip, is_crowded, lanes, packed_a, packed_b, run_strip, strip_columns, transpose,
)
from caffelite._kernels.loops.random cimport WORDS, draw_bits
from caffelite._kernels.loops.reduction cimport LANES

cdef extern from "loops/attention.h" nogil:
    enum:
        QUERIES_float, QUERIES_double
    const double LOG2_E, LOG_10000
    # The arrays are float* or double*.
    void exponentials(void* s, Py_ssize_t keys, void* m, void* total, void* shrink)
    void score_gradients(void* p, void* d, Py_ssize_t row, Py_ssize_t keys, double scale, const void* m,
                         const void* inverse, const void* mean, const void* dropout)
    void turn_pairs(void* y, const void* x, const void* table, Py_ssize_t n, double sign)

cdef extern from "loops/short_attention.h" nogil:
    enum:
        MAX_POSITIONS
    ctypedef struct Sequences:
        const void* data
        Py_ssize_t row, position
    ctypedef struct Heads:
        Py_ssize_t first, count, heads, L, S, d, ahead
        double scale
        Sequences q, k, v, y, dy, dq, dk, dv
        void* tops
        void* inverses
        const void* visible
        Py_ssize_t visible_query
        const void* dropout
        void* memory
    void attend_heads(const void* like, const Heads* heads)
    void attend_grad_heads(const void* like, const Heads* heads)

cdef enum:
    KEYS = 64                             # of a block
    QUERIES = 64                          # of a block
    STRIP_QUERIES = 32                    # of a strip, at most
    TILE_KEYS = 16                        # dropout draws the bits of a tile at once
    TILE_QUERIES = 8
    MAX_PACKED = 96                      # the longest position that is packed; there are four packed blocks


cdef struct Positions:                    # a block of positions in one head, `row` elements apart
    const void* data
    Py_ssize_t row


cdef struct Head:                         # one head of one row
    Py_ssize_t L, S, d
    Py_ssize_t ahead                      # query i sees the keys up to i + ahead
    const uint8_t* mask                   # or NULL; queries are mask_query bytes apart, and keys mask_key
    Py_ssize_t mask_query, mask_key
    const uint64_t* drawn                 # or NULL
    double p
    uint64_t first                        # the number of the head's first tile of dropout
    double scale
    Py_ssize_t at, keys_at                # the head's offset in contiguous arrays of queries and of keys,
    Py_ssize_t size                       # and the distance of positions there


# y[i] = Σⱼ p[i, j] v[j]
#   operand  0 y, 1 q, 2 k, 3 v, 4 norms, 5 mask or absent, 6 drawn or absent
#   parts    the queries of all heads of all rows
cdef int attention(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef real* norms = <real*> call.operand[4].data
    cdef Py_ssize_t L = call.size[2], i, queries
    cdef Head h
    cdef Heads heads
    while begin < end:
        i = begin % L
        if i == 0 and is_short(y, call, (end - begin) // L):
            heads = make_heads(norms, call, begin // L, (end - begin) // L, 1, 5)
            heads.y = get_contiguous(call, 0, L)
            attend_heads(norms, &heads)
            begin += heads.count * L
            continue
        queries = min(L - i, end - begin, <Py_ssize_t> QUERIES)
        h = make_head(call, begin // L, &call.operand[5], &call.operand[6])
        attend(y + h.at + i * h.size, call, &h, begin // L, i, queries, norms + begin, norms + call.parts + begin)
        begin += queries
    return CONTINUE


# A block of queries of a head, from query i on. For each block of keys it goes through all strips of queries.
cdef void attend(real* y, const Call* call, const Head* h, Py_ssize_t head, Py_ssize_t i, Py_ssize_t queries,
                 real* tops, real* inverses) noexcept nogil:
    cdef const real* q = <const real*> get_position(y, call, 1, head, i)
    cdef Py_ssize_t q_row = call.operand[1].stride[1], width = strip_queries(y)
    cdef Py_ssize_t first = 0, keys, seen, count, lane, c
    cdef Positions k, v
    cdef real s[KEYS * STRIP_QUERIES]
    cdef real dropout[KEYS * STRIP_QUERIES]
    cdef real m[QUERIES]
    cdef real total[QUERIES]
    cdef real shrink[STRIP_QUERIES]
    for lane in range(QUERIES):
        m[lane] = -FLT_MAX if real is float else -DBL_MAX
        total[lane] = 0
    for lane in range(queries):
        memset(y + lane * h.size, 0, h.d * sizeof(real))
    while first < seen_keys(h, i + queries - 1):
        keys = min(seen_keys(h, i + queries - 1) - first, KEYS)
        k = make_block(y, call, 2, 0, head, first, keys, queries)
        v = make_block(y, call, 3, 1, head, first, keys, queries)
        lane = 0
        while lane < queries:
            count = min(queries - lane, width)
            seen = min(keys, max(0, seen_keys(h, i + lane + count - 1) - first))
            scores(s, width, <const real*> k.data, k.row, seen, q + lane * q_row, q_row, count, h.d,
                   h.scale * LOG2_E, <real*> packed_b + lane * BLOCK_K, first > 0)
            mask_scores(s, width, h, i + lane, count, first, seen)
            exponentials(s, seen, m + lane, total + lane, shrink)
            if h.drawn != NULL:
                draw_dropout(dropout, h, i + lane, count, first, seen)
                for c in range(seen * width):
                    s[c] *= dropout[c]
            if first > 0:
                shrink_rows(y + lane * h.size, h.size, count, h.d, shrink)
            add_product(y + lane * h.size, h.size, count, h.d, seen, s, 1, width, <const real*> v.data, v.row)
            lane += width
        first += keys
    for lane in range(queries):
        tops[lane], inverses[lane] = m[lane], <real> 0 if total[lane] == 0 else <real> 1 / total[lane]
    shrink_rows(y, h.size, queries, h.d, inverses)


# dv[j] = Σᵢ p[i, j] dy[i],  ds[i, j] = p[i, j] (dy[i] · v[j] − dy[i] · y[i]) / √d,
# dq[i] = Σⱼ ds[i, j] k[j],  dk[j] = Σᵢ ds[i, j] q[i]
#   operand  0 dq, 1 dk, 2 dv, 3 dy, 4 q, 5 k, 6 v, 7 y, 8 norms, 9 mask or absent, 10 drawn or absent
#   parts    the heads of all rows
cdef int attention_grad(real* dq, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef real* dk
    cdef real* dv
    cdef Py_ssize_t head = begin, i
    cdef Head h
    cdef Heads heads
    while head < end:
        if is_short(dq, call, end - head):
            heads = make_heads(<real*> call.operand[8].data, call, head, end - head, 4, 9)
            heads.dq, heads.dy = get_contiguous(call, 0, heads.L), get_strided(call, 3)
            heads.dk, heads.dv = get_contiguous(call, 1, heads.S), get_contiguous(call, 2, heads.S)
            heads.y = get_contiguous(call, 7, heads.L)
            attend_grad_heads(dq, &heads)
            head += heads.count
            continue
        h = make_head(call, head, &call.operand[9], &call.operand[10])
        dk = <real*> call.operand[1].data + h.keys_at
        dv = <real*> call.operand[2].data + h.keys_at
        for i in range(h.S):
            memset(dk + i * h.size, 0, h.d * sizeof(real))
            memset(dv + i * h.size, 0, h.d * sizeof(real))
        i = 0
        while i < h.L:
            attend_grad(dq + h.at + i * h.size, dk, dv, call, &h, head, i, min(h.L - i, <Py_ssize_t> QUERIES))
            i += QUERIES
        head += 1
    return CONTINUE


# A block of queries of a head, from query i on. For each block of keys: first each strip adds to its dq, then the keys'
# dk and dv add up all strips.
cdef void attend_grad(real* dq, real* dk, real* dv, const Call* call, const Head* h, Py_ssize_t head, Py_ssize_t i,
                      Py_ssize_t queries) noexcept nogil:
    cdef Positions dy_block = make_block(dq, call, 3, 2, head, i, queries, queries)
    cdef Positions q_block = make_block(dq, call, 4, 3, head, i, queries, queries)
    cdef const real* dy = <const real*> dy_block.data
    cdef const real* q = <const real*> q_block.data
    cdef const real* y = <const real*> call.operand[7].data + h.at + i * h.size
    cdef const real* tops = <const real*> call.operand[8].data + head * h.L + i
    cdef const real* inverses = tops + call.parts * h.L
    cdef Py_ssize_t dy_row = dy_block.row, q_row = q_block.row
    cdef Positions k, v
    cdef Py_ssize_t width = strip_queries(dq), first = 0, keys, seen, count, lane, j
    cdef real* packed_q = <real*> packed_b
    cdef real* packed_dy = packed_q + QUERIES * BLOCK_K
    cdef real p[KEYS * QUERIES]
    cdef real ds[KEYS * QUERIES]
    cdef real dropout[KEYS * STRIP_QUERIES]
    cdef real m[QUERIES]
    cdef real inverse[QUERIES]
    cdef real mean[QUERIES]
    for lane in range(QUERIES):
        m[lane] = inverse[lane] = mean[lane] = 0
    for lane in range(queries):
        m[lane], inverse[lane] = tops[lane], inverses[lane]
        mean[lane] = dot(dy + lane * dy_row, y + lane * h.size, h.d)
        memset(dq + lane * h.size, 0, h.d * sizeof(real))
    while first < seen_keys(h, i + queries - 1):
        keys = min(seen_keys(h, i + queries - 1) - first, KEYS)
        k = make_block(dq, call, 5, 0, head, first, keys, queries)
        v = make_block(dq, call, 6, 1, head, first, keys, queries)
        lane = 0
        while lane < queries:
            count = min(queries - lane, width)
            seen = visible_keys(h, i + lane, count, first, keys, width)
            scores(p + lane, QUERIES, <const real*> k.data, k.row, seen, q + lane * q_row, q_row, count, h.d,
                   h.scale * LOG2_E, packed_q + lane * BLOCK_K, first > 0)
            scores(ds + lane, QUERIES, <const real*> v.data, v.row, seen, dy + lane * dy_row, dy_row, count, h.d, 1,
                   packed_dy + lane * BLOCK_K, first > 0)
            mask_scores(p + lane, QUERIES, h, i + lane, count, first, seen)
            if h.drawn != NULL:
                draw_dropout(dropout, h, i + lane, count, first, seen)
            score_gradients(p + lane, ds + lane, QUERIES, seen, h.scale, m + lane, inverse + lane, mean + lane,
                            NULL if h.drawn == NULL else dropout)
            add_product(dq + lane * h.size, h.size, count, h.d, seen, ds + lane, 1, QUERIES, <const real*> k.data,
                        k.row)
            lane += width
        lane = j = 0
        while j < keys:                   # a strip has seen its first `seen` keys, and a later strip as many or more
            while visible_keys(h, i + lane, min(queries - lane, width), first, keys, width) <= j:
                lane += width
            count = min(keys - j, width)
            add_product(dk + (first + j) * h.size, h.size, count, h.d, queries - lane,
                        ds + j * QUERIES + lane, QUERIES, 1, q + lane * q_row, q_row)
            add_product(dv + (first + j) * h.size, h.size, count, h.d, queries - lane,
                        p + j * QUERIES + lane, QUERIES, 1, dy + lane * dy_row, dy_row)
            j += count
        first += keys


# ---- blocks ----

# s[j, i] = a[j] · (factor x[i]), rows of length d, for a strip of queries x. Packs x as columns unless it is packed.
cdef void scores(real* s, Py_ssize_t s_row, const real* a, Py_ssize_t a_row, Py_ssize_t keys, const real* x,
                 Py_ssize_t x_row, Py_ssize_t queries, Py_ssize_t d, double factor, real* packed,
                 bint is_packed) noexcept nogil:
    cdef Strip strip
    cdef Py_ssize_t width = strip_queries(s), c = 0, i
    set_plain(&strip)
    strip.rows, strip.columns, strip.a_row, strip.a_k, strip.b, strip.b_k = keys, width, a_row, 1, packed, width
    strip.y, strip.y_row = s, s_row
    while c < d:
        strip.k = min(d - c, BLOCK_K)
        if not is_packed or d > BLOCK_K:
            if queries < width:
                memset(packed, 0, strip.k * width * sizeof(real))
            i = 0
            while i < queries:
                transpose(packed + i, width, x + i * x_row + c, x_row, min(queries - i, lanes(s)), strip.k)
                i += lanes(s)
            if factor != 1:
                for i in range(strip.k * width):
                    packed[i] *= <real> factor
        strip.a, strip.resume = a + c, c > 0
        run_strip(s, &strip)
        c += strip.k


# y += a b, y (rows, columns), a (rows, depth), depth at most KEYS or QUERIES. The columns of b and y are contiguous.
cdef void add_product(real* y, Py_ssize_t y_row, Py_ssize_t rows, Py_ssize_t columns, Py_ssize_t depth, const real* a,
                      Py_ssize_t a_row, Py_ssize_t a_k, const real* b, Py_ssize_t b_row) noexcept nogil:
    cdef real* whole = <real*> packed_b + 2 * QUERIES * BLOCK_K
    cdef Strip strip
    cdef Py_ssize_t j = 0, k
    set_plain(&strip)
    strip.rows, strip.k, strip.resume = rows, depth, True
    strip.a, strip.a_row, strip.a_k, strip.y_row = a, a_row, a_k, y_row
    while j < columns:
        strip.columns = min(columns - j, strip_columns(y))
        strip.b, strip.b_k, strip.y = b + j, b_row, y + j
        if not READS_LANES and strip.columns % lanes(y) != 0:
            for k in range(depth):        # the tile reads whole vectors
                memcpy(whole + k * strip_columns(y), b + k * b_row + j, strip.columns * sizeof(real))
            strip.b, strip.b_k = whole, strip_columns(y)
        run_strip(y, &strip)
        j += strip.columns


# y[i] ← factor[i] y[i]
cdef inline void shrink_rows(real* y, Py_ssize_t y_row, Py_ssize_t rows, Py_ssize_t columns,
                             const real* factor) noexcept nogil:
    cdef Py_ssize_t i, j
    for i in range(rows):
        for j in range(columns):
            y[i * y_row + j] *= factor[i]


# A strip of a plain product, without bias, mask or relu.
cdef inline void set_plain(Strip* strip) noexcept nogil:
    strip.runs = strip.b_column = 1
    strip.rounded = strip.accumulate = strip.relu = False
    strip.bias = strip.row_bias = strip.mask = NULL


# Sets the scores of keys that a query does not see to −∞. The scores begin at query i and key `first`.
cdef void mask_scores(real* s, Py_ssize_t s_row, const Head* h, Py_ssize_t i, Py_ssize_t queries, Py_ssize_t first,
                      Py_ssize_t keys) noexcept nogil:
    cdef Py_ssize_t j, lane, hidden
    cdef const uint8_t* seen
    cdef bint masks_keys = h.mask != NULL and h.mask_query == 0
    j = 0 if masks_keys else max(0, i + h.ahead + 1 - first)
    while j < keys:
        hidden = min(queries, first + j - i - h.ahead)
        if masks_keys and not h.mask[(first + j) * h.mask_key]:
            hidden = queries
        for lane in range(hidden):
            s[j * s_row + lane] = <real> -INFINITE
        j += 1
    if h.mask == NULL or masks_keys:
        return
    for lane in range(queries):
        seen = h.mask + (i + lane) * h.mask_query + first * h.mask_key
        for j in range(keys):
            if not seen[j * h.mask_key]:
                s[j * s_row + lane] = <real> -INFINITE


# dropout[j, i] = 0 if p[i, j] is dropped, else 1 / (1 − p). A tile of 16 keys × 8 queries takes the bits that are drawn
# together. The tiles of a head are numbered along the queries, then along the keys.
cdef void draw_dropout(real* dropout, const Head* h, Py_ssize_t i, Py_ssize_t queries, Py_ssize_t first,
                       Py_ssize_t keys) noexcept nogil:
    cdef uint32_t bits[2 * WORDS]
    cdef uint32_t limit = <uint32_t> rint(65536 * h.p)
    cdef real factor = <real> (1 / (1 - h.p))
    cdef Py_ssize_t width = strip_queries(dropout), row, column, begin, end, j
    if queries < width:
        memset(dropout, 0, keys * width * sizeof(real))
    for row in range(first // TILE_KEYS, tiles(first + keys, TILE_KEYS)):
        for column in range(i // TILE_QUERIES, tiles(i + queries, TILE_QUERIES)):
            draw_bits(bits, h.drawn, h.first + row * tiles(h.L, TILE_QUERIES) + column)
            begin, end = max(i, column * TILE_QUERIES), min(i + queries, (column + 1) * TILE_QUERIES)
            for j in range(row * TILE_KEYS, min((row + 1) * TILE_KEYS, first + keys)):
                drop(dropout + (j - first) * width + begin - i,
                     bits + j % TILE_KEYS * TILE_QUERIES + begin % TILE_QUERIES, end - begin, limit, factor)


# dropout[i] = factor if bits[i] are at least `limit`, else 0
cdef inline void drop(real* dropout, const uint32_t* bits, Py_ssize_t n, uint32_t limit, real factor) noexcept nogil:
    cdef Py_ssize_t i
    if n == TILE_QUERIES:                 # the usual case, whole vectors
        for i in range(TILE_QUERIES):
            dropout[i] = factor if bits[i] >= limit else <real> 0
    else:
        for i in range(n):
            dropout[i] = factor if bits[i] >= limit else <real> 0


cdef inline Py_ssize_t tiles(Py_ssize_t n, Py_ssize_t length) noexcept nogil:
    return (n + length - 1) // length


# ---- one head ----

cdef Head make_head(const Call* call, Py_ssize_t head, const Operand* mask, const Operand* drawn) noexcept nogil:
    cdef Py_ssize_t H = call.size[1], row = head // H
    cdef Head h
    h.L, h.S, h.d = call.size[2], call.size[3], call.size[4]
    h.ahead = h.S - h.L if call.size[5] else h.S
    h.mask, h.mask_query, h.mask_key = <const uint8_t*> mask.data, mask.stride[1], mask.stride[2]
    if h.mask != NULL:
        h.mask += row * mask.stride[0]
    h.drawn, h.p = <const uint64_t*> drawn.data, call.scalar[1]
    h.first = <uint64_t> (call.size[6] // max(1, h.L * h.S) + head)
    h.first *= <uint64_t> (tiles(h.L, TILE_QUERIES) * tiles(h.S, TILE_KEYS))
    h.scale = call.scalar[0]
    h.size = H * h.d
    h.at, h.keys_at = row * h.L * h.size + head % H * h.d, row * h.S * h.size + head % H * h.d
    return h


# The address of a head's position i in an operand.
cdef inline const real* get_position(const real* like, const Call* call, int operand, Py_ssize_t head,
                                     Py_ssize_t i) noexcept nogil:
    cdef const Operand* x = &call.operand[operand]
    cdef Py_ssize_t H = call.size[1]
    return <const real*> x.data + head // H * x.stride[0] + i * x.stride[1] + head % H * call.size[4]


# A block of positions. It is packed if its rows are crowded in the cache and several strips of queries read it.
cdef Positions make_block(const real* like, const Call* call, int operand, int place, Py_ssize_t head, Py_ssize_t first,
                          Py_ssize_t count, Py_ssize_t queries) noexcept nogil:
    cdef const real* x = <const real*> get_position(like, call, operand, head, first)
    cdef Py_ssize_t d = call.size[4], row = call.operand[operand].stride[1], i
    cdef real* packed = <real*> packed_a + place * KEYS * MAX_PACKED
    cdef Positions block
    block.data, block.row = x, row
    if queries > strip_queries(like) and d <= MAX_PACKED and is_crowded(x, row, count):
        for i in range(count):
            memcpy(packed + i * d, x + i * row, d * sizeof(real))
        block.data, block.row = packed, d
    return block


# How many keys query i sees, from the first key on: those up to its own position.
cdef inline Py_ssize_t seen_keys(const Head* h, Py_ssize_t i) noexcept nogil:
    return min(h.S, i + h.ahead + 1)


# How many keys of a block a strip of queries sees, rounded up to whole strips of keys.
cdef inline Py_ssize_t visible_keys(const Head* h, Py_ssize_t i, Py_ssize_t queries, Py_ssize_t first, Py_ssize_t keys,
                                    Py_ssize_t width) noexcept nogil:
    cdef Py_ssize_t seen = max(0, seen_keys(h, i + queries - 1) - first)
    return min(keys, (seen + width - 1) // width * width)


# x · y, with as many partial sums as the reductions have.
cdef inline real dot(const real* x, const real* y, Py_ssize_t n) noexcept nogil:
    cdef real sums[LANES]
    cdef Py_ssize_t i, j
    for j in range(LANES):
        sums[j] = 0
    for i in range(n // LANES):
        for j in range(LANES):
            sums[j] += x[LANES * i + j] * y[LANES * i + j]
    for i in range(n - n % LANES, n):
        sums[i % LANES] += x[i] * y[i]
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]))


# ---- short sequences ----

# Whether this way is faster, as measured: for narrow heads that see few keys, if enough of them share a vector.
cdef inline bint is_short(const real* like, const Call* call, Py_ssize_t heads) noexcept nogil:
    cdef Py_ssize_t L = call.size[2], S = call.size[3], d = call.size[4], seen = S - L // 2 if call.size[5] else S
    return ((d in (4, 8) or (d == 16 and sizeof(real) == 4)) and 0 < S <= MAX_POSITIONS and L <= MAX_POSITIONS
            and heads > 1 and 32 * heads >= (d + 4) * lanes(like) and L * seen * d <= 16 * lanes(like) * S)


# A group of at most `count` heads, from `first` on. Its operands are q, k and v from this one on, mask and drawn.
cdef Heads make_heads(real* norms, const Call* call, Py_ssize_t first, Py_ssize_t count, int q,
                      int mask) noexcept nogil:
    cdef Head h = make_head(call, first, &call.operand[mask], &call.operand[mask + 1])
    cdef Heads heads
    heads.first, heads.count, heads.heads = first, min(count, lanes(norms)), call.size[1]
    heads.L, heads.S, heads.d, heads.ahead, heads.scale = h.L, h.S, h.d, h.ahead, h.scale
    heads.q, heads.k, heads.v = get_strided(call, q), get_strided(call, q + 1), get_strided(call, q + 2)
    heads.tops, heads.inverses = norms, norms + call.size[0] * call.size[1] * h.L
    heads.visible, heads.visible_query, heads.dropout = NULL, h.S if h.mask_query != 0 else 0, NULL
    heads.memory = packed_b
    if h.mask != NULL:
        heads.visible = packed_a
        spread_mask(<real*> packed_a, call, &heads, mask)
    if h.drawn != NULL:
        heads.dropout = <real*> packed_a + MAX_POSITIONS * MAX_POSITIONS * lanes(norms)
        spread_dropout(<real*> heads.dropout, call, &heads, mask)
    return heads


cdef inline Sequences get_strided(const Call* call, int operand) noexcept nogil:
    cdef const Operand* x = &call.operand[operand]
    cdef Sequences sequences
    sequences.data, sequences.row, sequences.position = x.data, x.stride[0], x.stride[1]
    return sequences


cdef inline Sequences get_contiguous(const Call* call, int operand, Py_ssize_t positions) noexcept nogil:
    cdef Sequences x
    x.data, x.position = call.operand[operand].data, call.size[1] * call.size[4]
    x.row = positions * x.position
    return x


# Ones in all bits where a head's query sees a key, and zeros elsewhere.
cdef void spread_mask(real* visible, const Call* call, const Heads* heads, int mask) noexcept nogil:
    cdef Py_ssize_t queries = 1 if heads.visible_query == 0 else heads.L, lane, i, j
    cdef Head h
    for lane in range(heads.count):
        h = make_head(call, heads.first + lane, &call.operand[mask], &call.operand[mask + 1])
        for i in range(queries):
            for j in range(h.S):
                memset(visible + (i * h.S + j) * lanes(visible) + lane,
                       -1 if h.mask[i * h.mask_query + j * h.mask_key] else 0, sizeof(real))


# The factors of dropout, head by head.
cdef void spread_dropout(real* dropout, const Call* call, const Heads* heads, int mask) noexcept nogil:
    cdef real strip[KEYS * STRIP_QUERIES]
    cdef Py_ssize_t width = strip_queries(dropout), lane, i, j, first, count
    cdef Head h
    for lane in range(heads.count):
        h = make_head(call, heads.first + lane, &call.operand[mask], &call.operand[mask + 1])
        first = 0
        while first < h.L:
            count = min(h.L - first, width)
            draw_dropout(strip, &h, first, count, 0, h.S)
            for i in range(count):
                for j in range(h.S):
                    dropout[((first + i) * h.S + j) * lanes(dropout) + lane] = strip[j * width + i]
            first += width


# ---- rotary positions ----

# Turns each pair of neighbouring columns of a head by an angle that grows with the position (J. Su et al., "RoFormer",
# 2021). The product of a query and a key then depends on the distance of their positions.
#
#     y[2i] = x[2i] cos a − x[2i + 1] sin a,  y[2i + 1] = x[2i] sin a + x[2i + 1] cos a,  a = position / 10000^(2i / d)
#
# A row of the table has cos a and sin a of a position, pair after pair. Narrow heads share a row, which repeats them.
#
#   size     0 n, 1 length, 2 rows of the table in a position of x, 3 columns of the table, 4 the first position,
#            5 whether to turn back, by −a
#   operand  0 y (contiguous), 1 the table, 2 x (strides 0 of rows, 1 of positions)
#   parts    the positions
cdef int rotary(real* y, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t T = call.size[1], count = call.size[2], columns = call.size[3], t, row, i
    cdef const Operand* x = &call.operand[2]
    cdef Py_ssize_t together = end - begin if count == 1 and x.stride[1] == columns else 1   # positions
    for row in range(call.size[0]):
        t = begin
        while t < end:
            for i in range(count):
                turn_pairs(y + ((row * T + t) * count + i) * columns,
                           <const real*> x.data + row * x.stride[0] + t * x.stride[1] + i * columns,
                           <const real*> call.operand[1].data + (call.size[4] + t) * columns,
                           together * columns, -1 if call.size[5] else 1)
            t += together
    return CONTINUE


# The table of `rotary`.
#   size     0 d, 1 columns, a multiple of d
#   operand  0 the table (positions, columns)
#   parts    the positions
cdef int rotary_table(real* table, const Call* call, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t d = call.size[0], columns = call.size[1], t, i
    cdef double a
    for t in range(begin, end):
        for i in range(0, columns, 2):
            a = t * exp(-LOG_10000 * (i % d) / d)
            table[t * columns + i], table[t * columns + i + 1] = <real> cos(a), <real> sin(a)
    return CONTINUE


# ---- float32 or float64 ----

cdef inline Py_ssize_t strip_queries(const real* x) noexcept nogil:
    return QUERIES_float if real is float else QUERIES_double


include "../generated/publish_attention.pxi"
