/* Operations that GCC's and clang's vector extensions lack. Some read or write only the first few lanes of a vector, and
 * do not touch the memory behind them. Others transpose a block of rows into columns.
 *
 * The processor's own instructions come from a header that takes the compiler a quarter of a second to read. Only files
 * that need them include this one.
 */
#ifndef CAFFELITE_LANES_H
#define CAFFELITE_LANES_H
#include "vectors.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* load_first reads p[0 … n − 1], followed by zeros. store_first writes the first n lanes. */
#if defined(__AVX512F__)
INLINE vector_float load_first_float(const float *p, int n) { return _mm512_maskz_loadu_ps((1u << n) - 1, p); }
INLINE vector_double load_first_double(const double *p, int n) { return _mm512_maskz_loadu_pd((1u << n) - 1, p); }
INLINE void store_first_float(float *p, vector_float v, int n) { _mm512_mask_storeu_ps(p, (1u << n) - 1, v); }
INLINE void store_first_double(double *p, vector_double v, int n) { _mm512_mask_storeu_pd(p, (1u << n) - 1, v); }
#else
#if defined(__AVX2__)
static const int32_t ones_then_zeros[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
INLINE __m256i first(int n) { return _mm256_loadu_si256((const __m256i *)(ones_then_zeros + 8 - n)); }
INLINE vector_float load_first_float(const float *p, int n) { return _mm256_maskload_ps(p, first(n)); }
INLINE vector_double load_first_double(const double *p, int n) { return _mm256_maskload_pd(p, first(2 * n)); }
#else
/* One lane after the other. A call of memcpy would be longer, and the vectors of a loop would have to be stored before it. */
#define DEFINE_LOAD_FIRST(real)                                                                                        \
    INLINE vector_##real load_first_##real(const real *p, int n)                                                       \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real };                                                                              \
        vector_##real v = {0};                                                                                         \
        if (n >= LANES)                                                                                                \
            v = *(const vector_##real *)p;                                                                             \
        else                                                                                                           \
            UNROLL_FOR (int l = 0; l < LANES - 1; l++)                                                                 \
                if (l < n)                                                                                             \
                    v[l] = p[l];                                                                                       \
        OPAQUE_VECTOR(v); /* else a product is repeated for each n, and no longer fused with the sum that follows */   \
        return v;                                                                                                      \
    }

DEFINE_LOAD_FIRST(float)
DEFINE_LOAD_FIRST(double)
#endif

/* Masked stores take many cycles on AMD's processors with AVX2. */
#define DEFINE_STORE_FIRST(real)                                                                                       \
    INLINE void store_first_##real(real *p, vector_##real v, int n)                                                    \
    {                                                                                                                  \
        OPAQUE_VECTOR(v); /* else its lanes may be computed one by one */                                              \
        UNROLL_FOR (int l = 0; l < LANES_OF_##real; l++)                                                               \
            if (l < n)                                                                                                 \
                p[l] = v[l];                                                                                           \
    }

DEFINE_STORE_FIRST(float)
DEFINE_STORE_FIRST(double)
#endif

/* load reads only the first n lanes if the vector is the last one of a row, else all lanes. */
INLINE vector_float load_float(const float *p, int is_last, int n)
{
    return is_last ? load_first_float(p, n) : *(const vector_float *)p;
}
INLINE vector_double load_double(const double *p, int is_last, int n)
{
    return is_last ? load_first_double(p, n) : *(const vector_double *)p;
}

/* SHUFFLE picks lanes of a and b. Lanes of a are numbered from 0, and those of b follow. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE(real, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif
#ifndef SHUFFLE
#define SHUFFLE(real, a, b, ...) __builtin_shuffle(a, b, (lanes_##real){__VA_ARGS__})
#endif

/* One of the log₂(n) steps of a transposition of n vectors. Take each two of them s apart as rows of s × s blocks: the upper
 * right block of the first vector and the lower left block of the second exchange their places. */
#define KEPT(s, l) ((l) & (s) ? LANES + (l) - (s) : (l))
#define MOVED(s, l) ((l) & (s) ? LANES + (l) : (l) + (s))
#define EXCHANGE(real, t, s, n)                                                                                        \
    UNROLL_FOR (int i = 0; i < (n); i++)                                                                               \
        if ((s) < (n) && !(i & (s))) {                                                                                 \
            const vector_##real upper = t[i], lower = t[(i + (s)) % (n)];                                              \
            t[i] = SHUFFLE(real, upper, lower, LANES_##real(KEPT, (s) % LANES));                                       \
            t[(i + (s)) % (n)] = SHUFFLE(real, upper, lower, LANES_##real(MOVED, (s) % LANES));                        \
        }

/* columns_of: t[k][i] = x[i · stride + k] for i < rows and k < columns, both at most the lanes of a vector. The lanes
 * of missing rows are 0, or with SKIP = 0 a copy of the first row. If few rows are present, it is faster to skip the
 * others. But then the compiler writes the exchanges once for each number of rows, which is too much code for many
 * tiles. */
#define DEFINE_COLUMNS(real)                                                                                           \
    INLINE void columns_of_##real(vector_##real *t, const real *x, ptrdiff_t stride, int rows, int columns,            \
                                  const int SKIP)                                                                      \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real };                                                                              \
        if (rows == LANES && columns == LANES)                                                                         \
            UNROLL_FOR (int i = 0; i < LANES; i++) t[i] = *(const vector_##real *)(x + i * stride);                    \
        else                                                                                                           \
            UNROLL_FOR (int i = 0; i < LANES; i++)                                                                     \
                t[i] = SKIP && i >= rows ? (vector_##real){0}                                                          \
                                         : load_first_##real(x + (i < rows ? i * stride : 0), columns);                \
        EXCHANGE(real, t, 8, LANES)                                                                                    \
        EXCHANGE(real, t, 4, LANES)                                                                                    \
        EXCHANGE(real, t, 2, LANES)                                                                                    \
        EXCHANGE(real, t, 1, LANES)                                                                                    \
    }

DEFINE_COLUMNS(float)
DEFINE_COLUMNS(double)

#endif
