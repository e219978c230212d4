/* Attention of short sequences and narrow heads, by the formulas and in the order of attention.pyx, so with the same bits.
 * Each lane of a vector is a head of a row. No lane is empty, no sum goes across lanes, and a query meets only the keys
 * that it sees.
 */
#ifndef CAFFELITE_SHORT_ATTENTION_H
#define CAFFELITE_SHORT_ATTENTION_H
#include "attention.h"

/* The columns of a head are 4, 8 or, in float32, 16: the compiler writes the loops for each of them. */
enum { MAX_POSITIONS = 32, MAX_COLUMNS = 16, MAX_COLUMNS_float = 16, MAX_COLUMNS_double = 8, PARTIAL_SUMS = 8 };

typedef struct { /* an operand (rows, positions, heads · d); strides are in elements */
    const void *data;
    ptrdiff_t row, position;
} Sequences;

typedef struct { /* as many heads as a vector has lanes, or fewer */
    ptrdiff_t first, count, heads, L, S, d, ahead;
    double scale;
    Sequences q, k, v, y, dy, dq, dk, dv;
    void *tops, *inverses;   /* of each head, one after the other, L numbers */
    const void *visible;     /* or NULL; for each query and key a vector of ones or zeros, */
    ptrdiff_t visible_query; /* and from a query to the next so many vectors, or none */
    const void *dropout;     /* or NULL; for each query and key a vector */
    void *memory;            /* for 4 · S · d vectors */
} Heads;

/* join: a vector of 16 bytes at each of these addresses, one for every so many lanes. */
enum { PIECE_BYTES = 16, PIECE_float = PIECE_BYTES / sizeof(float), PIECE_double = PIECE_BYTES / sizeof(double) };
#if defined(__AVX512F__)
#define DEFINE_JOIN(real)                                                                                              \
    INLINE vector_##real join_##real(const real *const *at, ptrdiff_t offset)                                          \
    {                                                                                                                  \
        __m512 v = _mm512_castps128_ps512(_mm_loadu_ps((const float *)(at[0] + offset)));                              \
        v = _mm512_insertf32x4(v, _mm_loadu_ps((const float *)(at[PIECE_##real] + offset)), 1);                        \
        v = _mm512_insertf32x4(v, _mm_loadu_ps((const float *)(at[2 * PIECE_##real] + offset)), 2);                    \
        return (vector_##real)_mm512_insertf32x4(v, _mm_loadu_ps((const float *)(at[3 * PIECE_##real] + offset)), 3);  \
    }
#elif defined(__AVX2__)
#define DEFINE_JOIN(real)                                                                                              \
    INLINE vector_##real join_##real(const real *const *at, ptrdiff_t offset)                                          \
    {                                                                                                                  \
        const __m256 v = _mm256_castps128_ps256(_mm_loadu_ps((const float *)(at[0] + offset)));                        \
        return (vector_##real)_mm256_insertf128_ps(v, _mm_loadu_ps((const float *)(at[PIECE_##real] + offset)), 1);    \
    }
#else
#define DEFINE_JOIN(real)                                                                                              \
    INLINE vector_##real join_##real(const real *const *at, ptrdiff_t offset)                                          \
    {                                                                                                                  \
        return *(const vector_##real *)(*at + offset);                                                                 \
    }
#endif

#define DEFINE_SHORT_ATTENTION(real)                                                                                   \
    DEFINE_JOIN(real)                                                                                                  \
                                                                                                                       \
    /* at[lane]: where the first position of a head begins; of a missing head, that of the first one. */               \
    static void find_heads_##real(const real **at, const Heads *h, const Sequences *x)                                 \
    {                                                                                                                  \
        ptrdiff_t row = h->first / h->heads, head = h->first % h->heads;                                               \
        for (int lane = 0; lane < LANES_OF_##real; lane++) {                                                           \
            at[lane] = lane < h->count ? (const real *)x->data + row * x->row + head * h->d : at[0];                   \
            if (++head == h->heads)                                                                                    \
                row++, head = 0;                                                                                       \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    /* x[c][lane] = at[lane][offset + c] for c < d; and back */                                                        \
    INLINE void load_columns_##real(vector_##real *x, const real *const *at, ptrdiff_t offset, const int d)            \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real, PIECE = PIECE_##real };                                                        \
        UNROLL_FOR (int c = 0; c < d; c += PIECE) {                                                                    \
            UNROLL_FOR (int i = 0; i < PIECE; i++) x[c + i] = join_##real(at + i, offset + c);                         \
            EXCHANGE(real, (x + c), 2, PIECE)                                                                          \
            EXCHANGE(real, (x + c), 1, PIECE)                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    INLINE void store_columns_##real(const real *const *at, ptrdiff_t offset, vector_##real *x, const int d,           \
                                     ptrdiff_t count)                                                                  \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real, PIECE = PIECE_##real };                                                        \
        UNROLL_FOR (int c = 0; c < d; c += PIECE) {                                                                    \
            EXCHANGE(real, (x + c), 2, PIECE)                                                                          \
            EXCHANGE(real, (x + c), 1, PIECE)                                                                          \
            UNROLL_FOR (int lane = 0; lane < LANES; lane++)                                                            \
                if (lane < count)                                                                                      \
                    memcpy((real *)at[lane] + offset + c, (real *)(x + c + lane % PIECE) + lane / PIECE * PIECE, 16);  \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    /* the score of query i, packed, and key j, packed; −∞ if it is hidden */                                          \
    INLINE vector_##real score_##real(const Heads *h, const vector_##real *q, const vector_##real *k, ptrdiff_t i,     \
                                      ptrdiff_t j, const int d)                                                        \
    {                                                                                                                  \
        vector_##real s = {0};                                                                                         \
        UNROLL_FOR (int c = 0; c < d; c++) s += k[j * d + c] * q[c];                                                   \
        if (h->visible) {                                                                                              \
            const lanes_##real seen = ((const lanes_##real *)h->visible)[i * h->visible_query + j];                    \
            const vector_##real hidden = (vector_##real){0} - (real)__builtin_inf();                                   \
            s = (vector_##real)((seen & (lanes_##real)s) | (~seen & (lanes_##real)hidden));                            \
        }                                                                                                              \
        return s;                                                                                                      \
    }                                                                                                                  \
                                                                                                                       \
    INLINE void attend_heads_of_##real(const Heads *h, const int d)                                                    \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real };                                                                              \
        const real *q_at[LANES], *k_at[LANES], *v_at[LANES], *y_at[LANES];                                             \
        vector_##real *k = (vector_##real *)h->memory, *v = k + h->S * d;                                              \
        vector_##real q[MAX_COLUMNS], y[MAX_COLUMNS], s[MAX_POSITIONS], tops[MAX_POSITIONS], inverses[MAX_POSITIONS];  \
        const vector_##real *dropout = (const vector_##real *)h->dropout;                                              \
        const real factor = (real)(h->scale * LOG2_E);                                                                 \
        find_heads_##real(q_at, h, &h->q);                                                                             \
        find_heads_##real(k_at, h, &h->k);                                                                             \
        find_heads_##real(v_at, h, &h->v);                                                                             \
        find_heads_##real(y_at, h, &h->y);                                                                             \
        for (ptrdiff_t j = 0; j < h->S; j++) {                                                                         \
            load_columns_##real(k + j * d, k_at, j * h->k.position, d);                                                \
            load_columns_##real(v + j * d, v_at, j * h->v.position, d);                                                \
        }                                                                                                              \
        for (ptrdiff_t i = 0; i < h->L; i++) {                                                                         \
            const ptrdiff_t seen = i + h->ahead + 1 < h->S ? i + h->ahead + 1 : h->S;                                  \
            vector_##real top = (vector_##real){0} - LOWEST_##real, total = {0};                                       \
            load_columns_##real(q, q_at, i * h->q.position, d);                                                        \
            UNROLL_FOR (int c = 0; c < d; c++) q[c] *= factor, y[c] = (vector_##real){0};                              \
            for (ptrdiff_t j = 0; j < seen; j++) {                                                                     \
                s[j] = score_##real(h, q, k, i, j, d);                                                                 \
                top = larger_##real(s[j], top);                                                                        \
            }                                                                                                          \
            for (ptrdiff_t j = 0; j < seen; j++) {                                                                     \
                vector_##real p = power_of_2_##real(s[j] - top);                                                       \
                total += p;                                                                                            \
                if (dropout)                                                                                           \
                    p *= dropout[i * h->S + j];                                                                        \
                UNROLL_FOR (int c = 0; c < d; c++) y[c] += p * v[j * d + c];                                           \
            }                                                                                                          \
            tops[i] = top;                                                                                             \
            inverses[i] = (vector_##real)((total != 0) & (lanes_##real)(1 / total));                                   \
            UNROLL_FOR (int c = 0; c < d; c++) y[c] *= inverses[i];                                                    \
            store_columns_##real(y_at, i * h->y.position, y, d, h->count);                                             \
        }                                                                                                              \
        for (ptrdiff_t lane = 0; lane < h->count; lane++)                                                              \
            for (ptrdiff_t i = 0; i < h->L; i++) {                                                                     \
                ((real *)h->tops)[(h->first + lane) * h->L + i] = ((real *)(tops + i))[lane];                          \
                ((real *)h->inverses)[(h->first + lane) * h->L + i] = ((real *)(inverses + i))[lane];                  \
            }                                                                                                          \
    }                                                                                                                  \
                                                                                                                       \
    INLINE void attend_grad_heads_of_##real(const Heads *h, const int d)                                               \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real };                                                                              \
        const real *q_at[LANES], *k_at[LANES], *v_at[LANES], *y_at[LANES], *dy_at[LANES];                              \
        const real *dq_at[LANES], *dk_at[LANES], *dv_at[LANES];                                                        \
        vector_##real *k = (vector_##real *)h->memory, *v = k + h->S * d, *dk = v + h->S * d, *dv = dk + h->S * d;     \
        vector_##real q[MAX_COLUMNS], scaled[MAX_COLUMNS], y[MAX_COLUMNS], dy[MAX_COLUMNS], dq[MAX_COLUMNS];           \
        vector_##real tops[MAX_POSITIONS] = {0}, inverses[MAX_POSITIONS] = {0};                                        \
        const vector_##real *dropout = (const vector_##real *)h->dropout;                                              \
        const real factor = (real)(h->scale * LOG2_E), scale = (real)h->scale;                                         \
        find_heads_##real(q_at, h, &h->q);                                                                             \
        find_heads_##real(k_at, h, &h->k);                                                                             \
        find_heads_##real(v_at, h, &h->v);                                                                             \
        find_heads_##real(y_at, h, &h->y);                                                                             \
        find_heads_##real(dy_at, h, &h->dy);                                                                           \
        find_heads_##real(dq_at, h, &h->dq);                                                                           \
        find_heads_##real(dk_at, h, &h->dk);                                                                           \
        find_heads_##real(dv_at, h, &h->dv);                                                                           \
        for (ptrdiff_t j = 0; j < h->S; j++) {                                                                         \
            load_columns_##real(k + j * d, k_at, j * h->k.position, d);                                                \
            load_columns_##real(v + j * d, v_at, j * h->v.position, d);                                                \
            UNROLL_FOR (int c = 0; c < d; c++) dk[j * d + c] = dv[j * d + c] = (vector_##real){0};                     \
        }                                                                                                              \
        for (ptrdiff_t lane = 0; lane < h->count; lane++)                                                              \
            for (ptrdiff_t i = 0; i < h->L; i++) {                                                                     \
                ((real *)(tops + i))[lane] = ((const real *)h->tops)[(h->first + lane) * h->L + i];                    \
                ((real *)(inverses + i))[lane] = ((const real *)h->inverses)[(h->first + lane) * h->L + i];            \
            }                                                                                                          \
        for (ptrdiff_t i = 0; i < h->L; i++) {                                                                         \
            const ptrdiff_t seen = i + h->ahead + 1 < h->S ? i + h->ahead + 1 : h->S;                                  \
            vector_##real m[PARTIAL_SUMS] = {0}, mean;                                                                 \
            load_columns_##real(q, q_at, i * h->q.position, d);                                                        \
            load_columns_##real(y, y_at, i * h->y.position, d);                                                        \
            load_columns_##real(dy, dy_at, i * h->dy.position, d);                                                     \
            UNROLL_FOR (int c = 0; c < d; c++) {                                                                       \
                scaled[c] = q[c] * factor;                                                                             \
                dq[c] = (vector_##real){0};                                                                            \
                m[c % PARTIAL_SUMS] += dy[c] * y[c];                                                                   \
            }                                                                                                          \
            mean = ((m[0] + m[4]) + (m[2] + m[6])) + ((m[1] + m[5]) + (m[3] + m[7]));                                  \
            for (ptrdiff_t j = 0; j < seen; j++) {                                                                     \
                const vector_##real s = score_##real(h, scaled, k, i, j, d);                                           \
                const vector_##real p = power_of_2_##real(s - tops[i]) * inverses[i];                                  \
                const vector_##real *here = dropout ? dropout + i * h->S + j : NULL;                                   \
                vector_##real dp = {0}, ds;                                                                            \
                UNROLL_FOR (int c = 0; c < d; c++) dp += v[j * d + c] * dy[c];                                         \
                ds = score_gradient_##real(p, dp, mean, scale, here);                                                  \
                vector_##real left = p;                                                                                \
                if (here)                                                                                              \
                    left *= *here;                                                                                     \
                UNROLL_FOR (int c = 0; c < d; c++) {                                                                   \
                    dq[c] += ds * k[j * d + c];                                                                        \
                    dk[j * d + c] += ds * q[c];                                                                        \
                    dv[j * d + c] += left * dy[c];                                                                     \
                }                                                                                                      \
            }                                                                                                          \
            store_columns_##real(dq_at, i * h->dq.position, dq, d, h->count);                                          \
        }                                                                                                              \
        for (ptrdiff_t j = 0; j < h->S; j++) {                                                                         \
            store_columns_##real(dk_at, j * h->dk.position, dk + j * d, d, h->count);                                  \
            store_columns_##real(dv_at, j * h->dv.position, dv + j * d, d, h->count);                                  \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    static void attend_heads_##real(const Heads *h)                                                                    \
    {                                                                                                                  \
        if (h->d == 4)                                                                                                 \
            attend_heads_of_##real(h, 4);                                                                              \
        else if (h->d == 8)                                                                                            \
            attend_heads_of_##real(h, 8);                                                                              \
        else if (MAX_COLUMNS_##real == 16)                                                                             \
            attend_heads_of_##real(h, 16);                                                                             \
    }                                                                                                                  \
    static void attend_grad_heads_##real(const Heads *h)                                                               \
    {                                                                                                                  \
        if (h->d == 4)                                                                                                 \
            attend_grad_heads_of_##real(h, 4);                                                                         \
        else if (h->d == 8)                                                                                            \
            attend_grad_heads_of_##real(h, 8);                                                                         \
        else if (MAX_COLUMNS_##real == 16)                                                                             \
            attend_grad_heads_of_##real(h, 16);                                                                        \
    }

#define LOWEST_float FLT_MAX
#define LOWEST_double DBL_MAX
DEFINE_SHORT_ATTENTION(float)
DEFINE_SHORT_ATTENTION(double)

#define attend_heads(x, ...) FOR_TYPE(attend_heads, x)(__VA_ARGS__)
#define attend_grad_heads(x, ...) FOR_TYPE(attend_grad_heads, x)(__VA_ARGS__)
#endif
