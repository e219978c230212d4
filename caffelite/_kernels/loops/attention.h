/* The steps of attention for each score. They work on strips of scores. The columns of a strip are queries, its rows
 * are keys. So each query has its own lane, and its sums never go across lanes. Scores are exponents of 2: they contain
 * log₂ e.
 *
 * In C because Cython has no vector types.
 */
#ifndef CAFFELITE_ATTENTION_H
#define CAFFELITE_ATTENTION_H
#include <float.h>
#include "fma.h"
#include "lanes.h"

enum {
    STRIP_VECTORS = 2,
    QUERIES_float = STRIP_VECTORS * LANES_OF_float, /* of a strip */
    QUERIES_double = STRIP_VECTORS * LANES_OF_double
};
static const double LOG2_E = 1.4426950408889634, LOG_10000 = 9.2103403719761827;

/* 2ˣ for x ≤ 0 and slightly above. With n the integer nearest to x and f = x − n, |f| ≤ ½, a polynomial interpolates 2ᶠ
 * at Chebyshev points, with a relative error of 2.5e-9 (float32) or 4e-18 (float64). Then n is added to the exponent's
 * bits. The result is 0 if it would be denormal. */
INLINE vector_float power_of_2_float(vector_float x)
{
    const vector_float shifted = x + 12582912.0f, f = x - (shifted - 12582912.0f); /* n is in the last bits */
    vector_float p = 1.54614447e-4f * f + 1.34004282e-3f;
    p = p * f + 9.61805668e-3f;
    p = p * f + 5.55032723e-2f;
    p = p * f + 2.40226509e-1f;
    p = p * f + 6.93147207e-1f;
    p = p * f + 1.0f;
    return (vector_float)(~(bits_float)(x < -126.0f) & ((bits_float)p + ((bits_float)shifted << 23)));
}

INLINE vector_double power_of_2_double(vector_double x)
{
    const vector_double shifted = x + 6755399441055744.0, f = x - (shifted - 6755399441055744.0);
    vector_double p = 4.455817908336064493e-10 * f + 7.0741942972885210056e-9;
    p = p * f + 1.0178057087733941105e-7;
    p = p * f + 1.3215432535912376166e-6;
    p = p * f + 1.5252733841556772589e-5;
    p = p * f + 1.5403530463724354209e-4;
    p = p * f + 1.3333558146406470697e-3;
    p = p * f + 9.6181291075872566681e-3;
    p = p * f + 5.5504108664821627039e-2;
    p = p * f + 2.4022650695910159567e-1;
    p = p * f + 6.9314718055994530925e-1;
    p = p * f + 1.0;
    return (vector_double)(~(bits_double)(x < -1022.0) & ((bits_double)p + ((bits_double)shifted << 52)));
}

/* a b − c, rounded as in fma.h */
#if defined(__AVX512F__)
INLINE vector_float multiply_subtract_float(vector_float a, vector_float b, vector_float c)
{
    return (vector_float)_mm512_fmsub_ps((__m512)a, (__m512)b, (__m512)c);
}
INLINE vector_double multiply_subtract_double(vector_double a, vector_double b, vector_double c)
{
    return (vector_double)_mm512_fmsub_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
#elif defined(__AVX2__)
INLINE vector_float multiply_subtract_float(vector_float a, vector_float b, vector_float c)
{
    return (vector_float)_mm256_fmsub_ps((__m256)a, (__m256)b, (__m256)c);
}
INLINE vector_double multiply_subtract_double(vector_double a, vector_double b, vector_double c)
{
    return (vector_double)_mm256_fmsub_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
#else
INLINE vector_float multiply_subtract_float(vector_float a, vector_float b, vector_float c)
{
    for (int i = 0; i < LANES_OF_float; i++) c[i] = multiply_add_float(a[i], b[i], -c[i]);
    return c;
}
INLINE vector_double multiply_subtract_double(vector_double a, vector_double b, vector_double c)
{
    for (int i = 0; i < LANES_OF_double; i++) c[i] = multiply_add(a[i], b[i], -c[i]);
    return c;
}
#endif

/* exponentials: the scores s of some more keys become 2^(s − m). m is the largest score so far, and may rise. `total` is
 * the sum of these numbers over all keys so far. Multiply the numbers of earlier keys by `shrink`, which makes up for a
 * larger m. Before the first keys, m is the lowest finite number.
 *
 * score_gradients: scores become probabilities, p = 2^(s − m) · inverse. Gradients of probabilities become gradients of
 * scores, d ← p (dropout d − mean) scale. If `dropout` is given, p becomes dropout p.
 *
 * m, total, shrink, inverse, mean: one number for each query of the strip. dropout: the strip, contiguous. */
#define DEFINE_ATTENTION(real)                                                                                         \
    /* b if a is NaN, else the larger. Written lane by lane, which the compiler turns into one instruction. */         \
    INLINE vector_##real larger_##real(vector_##real a, vector_##real b)                                               \
    {                                                                                                                  \
        vector_##real c;                                                                                               \
        for (int i = 0; i < LANES_OF_##real; i++) c[i] = a[i] > b[i] ? a[i] : b[i];                                    \
        return c;                                                                                                      \
    }                                                                                                                  \
                                                                                                                       \
    /* the gradient of a score, from its probability p and the gradient d of that, before dropout */                   \
    INLINE vector_##real score_gradient_##real(vector_##real p, vector_##real d, vector_##real mean, real scale,       \
                                               const vector_##real *dropout)                                           \
    {                                                                                                                  \
        vector_##real difference = d - mean;                                                                           \
        if (dropout)                                                                                                   \
            difference = multiply_subtract_##real(d, *dropout, mean);                                                  \
        return p * difference * scale;                                                                                 \
    }                                                                                                                  \
                                                                                                                       \
    static void exponentials_##real(real *s, ptrdiff_t keys, real *m, real *total, real *shrink)                       \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real };                                                                              \
        vector_##real *scores = (vector_##real *)s, top[STRIP_VECTORS], sum[STRIP_VECTORS];                            \
        UNROLL_FOR (int v = 0; v < STRIP_VECTORS; v++) top[v] = (vector_##real){0} - (real)__builtin_inf();            \
        for (ptrdiff_t j = 0; j < keys; j++)                                                                           \
            UNROLL_FOR (int v = 0; v < STRIP_VECTORS; v++)                                                             \
                top[v] = larger_##real(scores[j * STRIP_VECTORS + v], top[v]);                                         \
        UNROLL_FOR (int v = 0; v < STRIP_VECTORS; v++) {                                                               \
            const vector_##real before = *(vector_##real *)(m + v * LANES);                                            \
            top[v] = larger_##real(top[v], before);                                                                    \
            *(vector_##real *)(m + v * LANES) = top[v];                                                                \
            *(vector_##real *)(shrink + v * LANES) = power_of_2_##real(before - top[v]);                               \
            sum[v] = (vector_##real){0};                                                                               \
        }                                                                                                              \
        for (ptrdiff_t j = 0; j < keys; j++)                                                                           \
            UNROLL_FOR (int v = 0; v < STRIP_VECTORS; v++) {                                                           \
                const vector_##real e = power_of_2_##real(scores[j * STRIP_VECTORS + v] - top[v]);                     \
                scores[j * STRIP_VECTORS + v] = e;                                                                     \
                sum[v] += e;                                                                                           \
            }                                                                                                          \
        UNROLL_FOR (int v = 0; v < STRIP_VECTORS; v++) {                                                               \
            vector_##real *all = (vector_##real *)(total + v * LANES);                                                 \
            *all = *all * *(vector_##real *)(shrink + v * LANES) + sum[v];                                             \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    static void score_gradients_##real(real *p, real *d, ptrdiff_t row, ptrdiff_t keys, real scale, const real *m,     \
                                       const real *inverse, const real *mean, const real *dropout)                     \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real };                                                                              \
        for (ptrdiff_t j = 0; j < keys; j++, p += row, d += row)                                                       \
            UNROLL_FOR (int v = 0; v < STRIP_VECTORS; v++) {                                                           \
                vector_##real *s = (vector_##real *)(p + v * LANES), *g = (vector_##real *)(d + v * LANES);            \
                const vector_##real top = *(vector_##real *)(m + v * LANES);                                           \
                const vector_##real all = power_of_2_##real(*s - top) * *(vector_##real *)(inverse + v * LANES);       \
                const vector_##real *here = NULL;                                                                      \
                *s = all;                                                                                              \
                if (dropout) {                                                                                         \
                    here = (const vector_##real *)(dropout + (j * STRIP_VECTORS + v) * LANES);                         \
                    *s *= *here;                                                                                       \
                }                                                                                                      \
                *g = score_gradient_##real(all, *g, *(vector_##real *)(mean + v * LANES), scale, here);                \
            }                                                                                                          \
    }

/* The pairs of neighbours in x, turned by angles with the cosines and sines of a table. In C because Cython can't say that
 * y does not overlap the others (`restrict`). */
#define DEFINE_TURN(real)                                                                                              \
    INLINE void turn_pairs_##real(real *restrict y, const real *restrict x, const real *restrict table, ptrdiff_t n,   \
                                  real sign)                                                                           \
    {                                                                                                                  \
        for (ptrdiff_t i = 0; i < n; i += 2) {                                                                         \
            const real cosine = table[i], sine = sign * table[i + 1];                                                  \
            y[i] = sum_of_products_##real(x[i], cosine, -x[i + 1], sine);                                              \
            y[i + 1] = sum_of_products_##real(x[i], sine, x[i + 1], cosine);                                           \
        }                                                                                                              \
    }

DEFINE_ATTENTION(float)
DEFINE_ATTENTION(double)
DEFINE_TURN(float)
DEFINE_TURN(double)

#define exponentials(x, ...) FOR_TYPE(exponentials, x)(x, __VA_ARGS__)
#define score_gradients(x, ...) FOR_TYPE(score_gradients, x)(x, __VA_ARGS__)
#define turn_pairs(y, ...) FOR_TYPE(turn_pairs, y)(y, __VA_ARGS__)
#endif
