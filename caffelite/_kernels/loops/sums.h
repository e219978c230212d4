/* Sums in float64. Of a row, number j is added to partial sum j % 8. At the end the eight partial sums are added in pairs.
 * Of columns, each is summed from the first row to the last.
 */
#ifndef CAFFELITE_SUMS_H
#define CAFFELITE_SUMS_H
#include "fma.h"
#include "lanes.h"

enum { SUMS = 8, SUM_VECTORS = SUMS / LANES_OF_double };
#if defined(__AVX512F__) || defined(__aarch64__)
enum { COLUMN_VECTORS = 4 }; /* of 32 registers */
#else
enum { COLUMN_VECTORS = 2 }; /* of 16 */
#endif

/* As many numbers as a vector of float64 has lanes: in float32 half a vector, in float64 a vector. */
DEFINE_VECTOR(few_float, float, VECTOR_BYTES / 2)
typedef vector_double few_double;

/* One instruction each. gcc 12's own conversion takes several. */
INLINE vector_double wide_float(few_float x)
{
#if defined(__AVX512F__)
    return (vector_double)_mm512_cvtps_pd((__m256)x);
#elif defined(__AVX2__)
    return (vector_double)_mm256_cvtps_pd((__m128)x);
#else
    return __builtin_convertvector(x, vector_double);
#endif
}
INLINE vector_double wide_double(few_double x) { return x; }

INLINE vector_double multiply_add_vectors(vector_double a, vector_double b, vector_double c)
{
#if defined(__AVX512F__)
    return (vector_double)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
    return (vector_double)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    for (int j = 0; j < LANES_OF_double; j++) c[j] = multiply_add(a[j], b[j], c[j]);
    return c;
#endif
}

INLINE double folded_sums(const vector_double *sums)
{
    double s[SUMS];
    memcpy(s, sums, sizeof s);
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* total + a b. In float32 the product is rounded to float32 before it is added. */
INLINE double plus_product_float(double total, float a, float b) { return total + (float)(a * b); }
INLINE double plus_product_double(double total, double a, double b) { return multiply_add(a, b, total); }
INLINE vector_double plus_products_float(vector_double totals, few_float a, few_float b)
{
    return totals + wide_float(a * b);
}
INLINE vector_double plus_products_double(vector_double totals, few_double a, few_double b)
{
    return multiply_add_vectors(a, b, totals);
}

#define DEFINE_SUMS(real)                                                                                              \
    INLINE few_##real few_of_##real(const real *x, int v) { return *(const few_##real *)(x + v * LANES_OF_double); }   \
                                                                                                                       \
    INLINE void add_wide_##real(vector_double *sums, vector_##real x)                                                  \
    {                                                                                                                  \
        few_##real parts[LANES_OF_##real / LANES_OF_double];                                                           \
        memcpy(parts, &x, sizeof x);                                                                                   \
        UNROLL_FOR (int p = 0; p < LANES_OF_##real / LANES_OF_double; p++) sums[p] += wide_##real(parts[p]);           \
    }                                                                                                                  \
                                                                                                                       \
    INLINE void sums_of_vectors_##real(const int VECTORS, const real *x, ptrdiff_t n, ptrdiff_t row, int columns,      \
                                       double *sums)                                                                   \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real, PARTS = LANES / LANES_OF_double };                                             \
        const int lanes = columns - (VECTORS - 1) * LANES; /* of the last vector */                                    \
        vector_double sum[COLUMN_VECTORS * PARTS] = {0};                                                               \
        vector_##real pair[4][COLUMN_VECTORS];                                                                         \
        for (; n >= 8; n -= 8, x += 8 * row) {                                                                         \
            UNROLL_FOR (int k = 0; k < 4; k++)                                                                         \
                UNROLL_FOR (int v = 0; v < VECTORS; v++) {                                                             \
                    const real *at = x + 2 * k * row + v * LANES;                                                      \
                    pair[k][v] = load_##real(at, v == VECTORS - 1, lanes);                                             \
                    pair[k][v] += load_##real(at + row, v == VECTORS - 1, lanes);                                      \
                }                                                                                                      \
            UNROLL_FOR (int v = 0; v < VECTORS; v++)                                                                   \
                add_wide_##real(sum + v * PARTS, (pair[0][v] + pair[1][v]) + (pair[2][v] + pair[3][v]));               \
        }                                                                                                              \
        for (; n > 0; n--, x += row)                                                                                   \
            UNROLL_FOR (int v = 0; v < VECTORS; v++)                                                                   \
                add_wide_##real(sum + v * PARTS, load_##real(x + v * LANES, v == VECTORS - 1, lanes));                 \
        memcpy(sums, sum, VECTORS * LANES * sizeof *sums);                                                             \
    }                                                                                                                  \
                                                                                                                       \
    /* sums[i] = Σₖ x[k · row + i] for i < columns, eight x in pairs. The rest of a vector is written, too. */         \
    static void sums_of_columns_##real(const real *x, ptrdiff_t n, ptrdiff_t row, int columns, double *sums)           \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real, MOST = COLUMN_VECTORS * LANES };                                               \
        for (; columns > MOST - LANES; columns -= MOST, x += MOST, sums += MOST)                                       \
            sums_of_vectors_##real(COLUMN_VECTORS, x, n, row, columns < MOST ? columns : MOST, sums);                  \
        if (COLUMN_VECTORS == 4 && columns > 2 * LANES)                                                                \
            sums_of_vectors_##real(3, x, n, row, columns, sums);                                                       \
        else if (columns > LANES)                                                                                      \
            sums_of_vectors_##real(2, x, n, row, columns, sums);                                                       \
        else if (columns > 0)                                                                                          \
            sums_of_vectors_##real(1, x, n, row, columns, sums);                                                       \
    }                                                                                                                  \
                                                                                                                       \
    /* Σⱼ x[j] */                                                                                                      \
    static double sum_of_row_##real(const real *x, ptrdiff_t n)                                                        \
    {                                                                                                                  \
        vector_double s[SUM_VECTORS] = {0};                                                                            \
        for (; n >= SUMS; n -= SUMS, x += SUMS)                                                                        \
            UNROLL_FOR (int v = 0; v < SUM_VECTORS; v++) s[v] += wide_##real(few_of_##real(x, v));                     \
        for (ptrdiff_t j = 0; j < n; j++) ((double *)s)[j] += x[j];                                                    \
        return folded_sums(s);                                                                                         \
    }                                                                                                                  \
                                                                                                                       \
    /* Σⱼ (x[j] − m)² */                                                                                               \
    static double squares_of_row_##real(const real *x, ptrdiff_t n, double m)                                          \
    {                                                                                                                  \
        vector_double s[SUM_VECTORS] = {0};                                                                            \
        for (; n >= SUMS; n -= SUMS, x += SUMS)                                                                        \
            UNROLL_FOR (int v = 0; v < SUM_VECTORS; v++) {                                                             \
                const vector_double d = wide_##real(few_of_##real(x, v)) - m;                                          \
                s[v] = multiply_add_vectors(d, d, s[v]);                                                               \
            }                                                                                                          \
        for (ptrdiff_t j = 0; j < n; j++) ((double *)s)[j] = multiply_add(x[j] - m, x[j] - m, ((double *)s)[j]);       \
        return folded_sums(s);                                                                                         \
    }                                                                                                                  \
                                                                                                                       \
    /* sums: Σⱼ d and Σⱼ d², d = x[j] − origin */                                                                      \
    static void deviations_of_row_##real(const real *x, ptrdiff_t n, double origin, double *sums)                      \
    {                                                                                                                  \
        vector_double s[SUM_VECTORS] = {0}, t[SUM_VECTORS] = {0};                                                      \
        for (; n >= SUMS; n -= SUMS, x += SUMS)                                                                        \
            UNROLL_FOR (int v = 0; v < SUM_VECTORS; v++) {                                                             \
                const vector_double d = wide_##real(few_of_##real(x, v)) - origin;                                     \
                s[v] += d;                                                                                             \
                t[v] = multiply_add_vectors(d, d, t[v]);                                                               \
            }                                                                                                          \
        for (ptrdiff_t j = 0; j < n; j++) {                                                                            \
            const double d = x[j] - origin;                                                                            \
            ((double *)s)[j] += d;                                                                                     \
            ((double *)t)[j] = multiply_add(d, d, ((double *)t)[j]);                                                   \
        }                                                                                                              \
        sums[0] = folded_sums(s);                                                                                      \
        sums[1] = folded_sums(t);                                                                                      \
    }                                                                                                                  \
                                                                                                                       \
    /* Σⱼ x[j]², in four vectors of partial sums */                                                                    \
    static double squares_##real(const real *x, ptrdiff_t n)                                                           \
    {                                                                                                                  \
        vector_double s[4] = {0};                                                                                      \
        double total = 0;                                                                                              \
        for (; n >= 4 * LANES_OF_double; n -= 4 * LANES_OF_double, x += 4 * LANES_OF_double)                           \
            UNROLL_FOR (int v = 0; v < 4; v++) {                                                                       \
                const vector_double d = wide_##real(few_of_##real(x, v));                                              \
                s[v] = multiply_add_vectors(d, d, s[v]);                                                               \
            }                                                                                                          \
        s[0] = (s[0] + s[2]) + (s[1] + s[3]);                                                                          \
        for (; n >= LANES_OF_double; n -= LANES_OF_double, x += LANES_OF_double) {                                     \
            const vector_double d = wide_##real(few_of_##real(x, 0));                                                  \
            s[0] = multiply_add_vectors(d, d, s[0]);                                                                   \
        }                                                                                                              \
        for (; n > 0; n--, x++) total = multiply_add(*x, *x, total);                                                   \
        UNROLL_FOR (int j = 0; j < LANES_OF_double; j++) total += s[0][j];                                             \
        return total;                                                                                                  \
    }                                                                                                                  \
                                                                                                                       \
    /* sums: Σⱼ g[j] and Σⱼ g[j] (x[j] − m), m = high + low, g = dy scale, or dy if scale is NULL */                   \
    INLINE void products_##real(const real *dy, const real *scale, const real *x, ptrdiff_t n, real high, real low,    \
                                double *sums)                                                                          \
    {                                                                                                                  \
        vector_double s[SUM_VECTORS] = {0}, t[SUM_VECTORS] = {0};                                                      \
        ptrdiff_t i = 0;                                                                                               \
        for (; i + SUMS <= n; i += SUMS)                                                                               \
            UNROLL_FOR (int v = 0; v < SUM_VECTORS; v++) {                                                             \
                few_##real g = few_of_##real(dy + i, v);                                                               \
                if (scale)                                                                                             \
                    g *= few_of_##real(scale + i, v);                                                                  \
                s[v] += wide_##real(g);                                                                                \
                t[v] = plus_products_##real(t[v], g, (few_of_##real(x + i, v) - high) - low);                          \
            }                                                                                                          \
        for (int j = 0; i < n; i++, j++) {                                                                             \
            const real g = scale ? dy[i] * scale[i] : dy[i];                                                           \
            ((double *)s)[j] += g;                                                                                     \
            ((double *)t)[j] = plus_product_##real(((double *)t)[j], g, (x[i] - high) - low);                          \
        }                                                                                                              \
        sums[0] = folded_sums(s);                                                                                      \
        sums[1] = folded_sums(t);                                                                                      \
    }                                                                                                                  \
    static void products_of_row_##real(const real *dy, const real *x, ptrdiff_t n, real high, real low, double *sums)  \
    {                                                                                                                  \
        products_##real(dy, NULL, x, n, high, low, sums);                                                              \
    }                                                                                                                  \
    static void scaled_products_of_row_##real(const real *dy, const real *scale, const real *x, ptrdiff_t n,           \
                                              real high, real low, double *sums)                                       \
    {                                                                                                                  \
        products_##real(dy, scale, x, n, high, low, sums);                                                             \
    }

DEFINE_SUMS(float)
DEFINE_SUMS(double)

#define sums_of_columns(x, ...) FOR_TYPE(sums_of_columns, x)(x, __VA_ARGS__)
#define sum_of_row(x, ...) FOR_TYPE(sum_of_row, x)(x, __VA_ARGS__)
#define squares_of_row(x, ...) FOR_TYPE(squares_of_row, x)(x, __VA_ARGS__)
#define products_of_row(x, ...) FOR_TYPE(products_of_row, x)(x, __VA_ARGS__)
#define scaled_products_of_row(x, ...) FOR_TYPE(scaled_products_of_row, x)(x, __VA_ARGS__)
#define deviations_of_row(x, ...) FOR_TYPE(deviations_of_row, x)(x, __VA_ARGS__)
#define squares(x, ...) FOR_TYPE(squares, x)(x, __VA_ARGS__)
#endif
