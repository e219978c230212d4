/* Vectors of the instruction set that is compiled for, as wide as its registers, and what Cython cannot say about them.
 *
 * GCC's and clang's vector extensions do arithmetic on them as on numbers. What those lack is here: reading and writing
 * the first few lanes only, which must not touch the memory behind them, and turning a block of rows into columns.
 */
#ifndef CAFFELITE_VECTORS_H
#define CAFFELITE_VECTORS_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* LANES_real(F, s) lists F(s, 0), F(s, 1), … for every lane. */
#define LANES_2(F, s, l) F(s, l), F(s, (l) + 1)
#define LANES_4(F, s, l) LANES_2(F, s, l), LANES_2(F, s, (l) + 2)
#define LANES_8(F, s, l) LANES_4(F, s, l), LANES_4(F, s, (l) + 4)
#define LANES_16(F, s, l) LANES_8(F, s, l), LANES_8(F, s, (l) + 8)

#if defined(__AVX512F__)
enum { VECTOR_BYTES = 64, READS_LANES = 1 };
#define LANES_float(F, s) LANES_16(F, s, 0)
#define LANES_double(F, s) LANES_8(F, s, 0)
#elif defined(__AVX2__)
enum { VECTOR_BYTES = 32, READS_LANES = 1 };
#define LANES_float(F, s) LANES_8(F, s, 0)
#define LANES_double(F, s) LANES_4(F, s, 0)
#else
enum { VECTOR_BYTES = 16, READS_LANES = 0 };   /* READS_LANES: whether load_first is one instruction */
#define LANES_float(F, s) LANES_4(F, s, 0)
#define LANES_double(F, s) LANES_2(F, s, 0)
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float vector_float __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(float)), may_alias));
typedef double vector_double __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(double)), may_alias));
typedef int32_t lanes_float __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t lanes_double __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t bits_float __attribute__((vector_size(VECTOR_BYTES))); /* whose sums may overflow */
typedef uint64_t bits_double __attribute__((vector_size(VECTOR_BYTES)));
enum { LANES_OF_float = VECTOR_BYTES / sizeof(float), LANES_OF_double = VECTOR_BYTES / sizeof(double) };

/* load_first: p[0 … n − 1], then zeros. store_first writes the first n lanes. */
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
INLINE vector_float load_first_float(const float *p, int n)
{
    vector_float v = {0};
    memcpy(&v, p, n * sizeof *p);
    return v;
}
INLINE vector_double load_first_double(const double *p, int n)
{
    vector_double v = {0};
    memcpy(&v, p, n * sizeof *p);
    return v;
}
#endif
INLINE void store_first_float(float *p, vector_float v, int n) { memcpy(p, &v, n * sizeof *p); }
INLINE void store_first_double(double *p, vector_double v, int n) { memcpy(p, &v, n * sizeof *p); }
#endif

/* SHUFFLE picks lanes of a, numbered from 0, and of b, numbered on from there. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE(real, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif
#ifndef SHUFFLE
#define SHUFFLE(real, a, b, ...) __builtin_shuffle(a, b, (lanes_##real){__VA_ARGS__})
#endif

/* One of the log₂(lanes) steps of a transposition: of each two vectors s apart, seen as rows of s × s blocks, the upper
 * right block of the first and the lower left one of the second change places. */
#define KEPT(s, l) ((l) & (s) ? LANES + (l) - (s) : (l))
#define MOVED(s, l) ((l) & (s) ? LANES + (l) : (l) + (s))
#define EXCHANGE(real, t, s)                                                                                           \
    UNROLL for (int i = 0; i < LANES; i++)                                                                             \
        if ((s) < LANES && !(i & (s))) {                                                                               \
            const vector_##real upper = t[i], lower = t[(i + (s)) % LANES];                                            \
            t[i] = SHUFFLE(real, upper, lower, LANES_##real(KEPT, (s) % LANES));                                       \
            t[(i + (s)) % LANES] = SHUFFLE(real, upper, lower, LANES_##real(MOVED, (s) % LANES));                      \
        }

/* columns_of: t[k][i] = x[i · stride + k] for i < rows and k < columns, both at most one vector's lanes. In the lanes of
 * absent rows is 0, or with SKIP = 0 what is in the first row's: to leave rows out is faster where there are few, but the
 * compiler writes the exchanges anew for many numbers of them, which is too much where it comes in many tiles.
 * transpose: y[k · stride_y + i] = x[i · stride_x + k] for i < rows, at most one vector's lanes, and k < columns. */
#define DEFINE_TRANSPOSE(real)                                                                                         \
    INLINE void columns_of_##real(vector_##real *t, const real *x, ptrdiff_t stride, int rows, int columns,            \
                                  const int SKIP)                                                                      \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real };                                                                              \
        if (rows == LANES && columns == LANES)                                                                         \
            UNROLL for (int i = 0; i < LANES; i++) t[i] = *(const vector_##real *)(x + i * stride);                    \
        else                                                                                                           \
            UNROLL for (int i = 0; i < LANES; i++)                                                                     \
                t[i] = SKIP && i >= rows ? (vector_##real){0}                                                          \
                                         : load_first_##real(x + (i < rows ? i * stride : 0), columns);                \
        EXCHANGE(real, t, 8)                                                                                           \
        EXCHANGE(real, t, 4)                                                                                           \
        EXCHANGE(real, t, 2)                                                                                           \
        EXCHANGE(real, t, 1)                                                                                           \
    }                                                                                                                  \
                                                                                                                       \
    static void transpose_##real(real *y, ptrdiff_t stride_y, const real *x, ptrdiff_t stride_x, int rows,             \
                                 ptrdiff_t columns)                                                                    \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real };                                                                              \
        vector_##real t[LANES];                                                                                        \
        for (ptrdiff_t k = 0; k < columns; k += LANES) {                                                               \
            const int here = columns - k < LANES ? (int)(columns - k) : LANES;                                         \
            columns_of_##real(t, x + k, stride_x, rows, here, 1);                                                      \
            UNROLL for (int i = 0; i < LANES; i++)                                                                     \
                if (i < here) {                                                                                        \
                    if (rows == LANES)                                                                                 \
                        *(vector_##real *)(y + (k + i) * stride_y) = t[i];                                             \
                    else                                                                                               \
                        store_first_##real(y + (k + i) * stride_y, t[i], rows);                                        \
                }                                                                                                      \
        }                                                                                                              \
    }

DEFINE_TRANSPOSE(float)
DEFINE_TRANSPOSE(double)

#endif
