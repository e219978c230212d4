/* Sums of linear splines: a spline is a table of rows, and a place in it is a number i + f between rows i and i + 1.
 * In C because Cython can't say that rows don't overlap (`restrict`).
 */
#ifndef CAFFELITE_SPLINES_H
#define CAFFELITE_SPLINES_H
#include "vectors.h"

enum { SPLINE_BLOCK = 32 }; /* elements of a row whose sums stay in registers */

/* The place of x among the edges e[0] … e[last], which rise. Counting the edges below x takes less time than a search. */
INLINE double edge_position(double x, const double *e, ptrdiff_t last)
{
    ptrdiff_t i = 0;
    for (ptrdiff_t t = 1; t < last; t++) i += e[t] <= x;
    double share = last ? (x - e[i]) / (e[i + 1] - e[i]) : 0;
    share = share > 0 ? share : 0;
    double place = (double)i + (share < 1 ? share : 1);
    return x != x ? (double)(last + 1) : place;
}

#define DEFINE_SPLINES(real)                                                                                               \
    /* sum += (1 − f) t + f u for the rows t and u around each of the k places, then the row of each of the m codes.   \
     * Column j begins at the row starts[j]. Rows of the table have w elements, of which these are n. */ \
    INLINE void sum_splines_##real(real *restrict sum, const real *restrict place, ptrdiff_t k,                            \
                                   const int64_t *restrict code, ptrdiff_t m, const real *restrict table,                  \
                                   const int64_t *restrict starts, ptrdiff_t w, ptrdiff_t n)                               \
    {                                                                                                                      \
        for (ptrdiff_t j = 0; j < k; j++) {                                                                                \
            ptrdiff_t i = (ptrdiff_t)place[j];                                                                             \
            real f = place[j] - (real)i;                                                                                   \
            const real *restrict t = table + (starts[j] + i) * w;                                                          \
            const real *restrict u = f == 0 ? t : t + w;                                                                   \
            for (ptrdiff_t c = 0; c < n; c++) sum[c] += t[c] + f * (u[c] - t[c]);                                          \
        }                                                                                                                  \
        for (ptrdiff_t j = 0; j < m; j++) {                                                                                \
            const real *restrict t = table + (starts[k + j] + code[j]) * w;                                                \
            for (ptrdiff_t c = 0; c < n; c++) sum[c] += t[c];                                                              \
        }                                                                                                                  \
    }                                                                                                                      \
                                                                                                                           \
    /* y = bias + the sums of a row, w elements. */                                                                        \
    static void spline_row_##real(real *restrict y, const real *place, ptrdiff_t k, const int64_t *code, ptrdiff_t m,      \
                                  const real *table, const int64_t *starts, const real *restrict bias, ptrdiff_t w)        \
    {                                                                                                                      \
        ptrdiff_t c = 0;                                                                                                   \
        for (; c + SPLINE_BLOCK <= w; c += SPLINE_BLOCK) {                                                                 \
            real sum[SPLINE_BLOCK];                                                                                        \
            for (ptrdiff_t i = 0; i < SPLINE_BLOCK; i++) sum[i] = bias[c + i];                                             \
            sum_splines_##real(sum, place, k, code, m, table + c, starts, w, SPLINE_BLOCK);                                \
            for (ptrdiff_t i = 0; i < SPLINE_BLOCK; i++) y[c + i] = sum[i];                                                \
        }                                                                                                                  \
        for (ptrdiff_t i = c; i < w; i++) y[i] = bias[i];                                                                  \
        sum_splines_##real(y + c, place, k, code, m, table + c, starts, w, w - c);                                         \
    }                                                                                                                      \
                                                                                                                           \
    /* t += (1 − f) dy, u += f dy. Rows have w elements. */                                                                \
    static void add_between_##real(real *restrict t, const real *restrict dy, real f, ptrdiff_t w)                         \
    {                                                                                                                      \
        real *restrict u = t + w;                                                                                          \
        if (f == 0) {                                                                                                      \
            for (ptrdiff_t c = 0; c < w; c++) t[c] += dy[c];                                                               \
        } else {                                                                                                           \
            for (ptrdiff_t c = 0; c < w; c++) {                                                                            \
                real part = f * dy[c];                                                                                     \
                t[c] += dy[c] - part;                                                                                      \
                u[c] += part;                                                                                              \
            }                                                                                                              \
        }                                                                                                                  \
    }                                                                                                                      \
                                                                                                                           \
    /* The b + 1 knots of a spline: T[0] = s z[0] v,  T[i + 1] = T[i] + s (a[i] + (z[i + 1] − z[i]) v). */                 \
    static void knots_##real(real *restrict table, const real *restrict a, const real *restrict v,                         \
                             const double *restrict z, ptrdiff_t b, real s, ptrdiff_t w)                                   \
    {                                                                                                                      \
        real first = (real)z[0];                                                                                           \
        for (ptrdiff_t c = 0; c < w; c++) table[c] = s * (first * v[c]);                                                   \
        for (ptrdiff_t i = 0; i < b; i++, a += w, table += w) {                                                            \
            real dz = (real)(z[i + 1] - z[i]);                                                                             \
            for (ptrdiff_t c = 0; c < w; c++) table[w + c] = table[c] + s * (a[c] + dz * v[c]);                            \
        }                                                                                                                  \
    }                                                                                                                      \
                                                                                                                           \
    /* da, dv and ds[c], the share of element c in ds, for the gradient dt of the knots. */                                \
    static void knots_grad_##real(real *restrict da, real *restrict dv, real *restrict ds, const real *restrict dt,        \
                                  const real *restrict a, const real *restrict v, const double *restrict z,                \
                                  ptrdiff_t b, real s, ptrdiff_t w)                                                        \
    {                                                                                                                      \
        for (ptrdiff_t begin = 0; begin < w; begin += SPLINE_BLOCK) {                                                      \
            ptrdiff_t n = w - begin < SPLINE_BLOCK ? w - begin : SPLINE_BLOCK;                                             \
            real sum[SPLINE_BLOCK] = {0}, dv_sum[SPLINE_BLOCK] = {0}, ds_sum[SPLINE_BLOCK] = {0};                          \
            for (ptrdiff_t i = b - 1; i >= 0; i--) {                                                                       \
                real dz = (real)(z[i + 1] - z[i]);                                                                         \
                ptrdiff_t row = i * w + begin;                                                                             \
                for (ptrdiff_t c = 0; c < n; c++) {                                                                        \
                    sum[c] += dt[row + w + c];                                                                             \
                    dv_sum[c] += dz * sum[c];                                                                              \
                    ds_sum[c] += (a[row + c] + dz * v[begin + c]) * sum[c];                                                \
                    da[row + c] = s * sum[c];                                                                              \
                }                                                                                                          \
            }                                                                                                              \
            for (ptrdiff_t c = 0; c < n; c++) {                                                                            \
                real dfirst = (real)z[0] * (sum[c] + dt[begin + c]);                                                       \
                dv[begin + c] = s * (dv_sum[c] + dfirst);                                                                  \
                ds[begin + c] = ds_sum[c] + v[begin + c] * dfirst;                                                         \
            }                                                                                                              \
        }                                                                                                                  \
    }                                                                                                                      \
                                                                                                                           \
    /* y = s a */                                                                                                          \
    static void scaled_row_##real(real *restrict y, const real *restrict a, real s, ptrdiff_t w)                           \
    {                                                                                                                      \
        for (ptrdiff_t c = 0; c < w; c++) y[c] = s * a[c];                                                                 \
    }                                                                                                                      \
                                                                                                                           \
    /* sum += a dt */                                                                                                      \
    static void add_products_##real(real *restrict sum, const real *restrict a, const real *restrict dt, ptrdiff_t w)      \
    {                                                                                                                      \
        for (ptrdiff_t c = 0; c < w; c++) sum[c] += a[c] * dt[c];                                                          \
    }

DEFINE_SPLINES(float)
DEFINE_SPLINES(double)

#define spline_row(x, ...) FOR_TYPE(spline_row, x)(x, __VA_ARGS__)
#define add_between(x, ...) FOR_TYPE(add_between, x)(x, __VA_ARGS__)
#define knots(x, ...) FOR_TYPE(knots, x)(x, __VA_ARGS__)
#define knots_grad(x, ...) FOR_TYPE(knots_grad, x)(x, __VA_ARGS__)
#define scaled_row(x, ...) FOR_TYPE(scaled_row, x)(x, __VA_ARGS__)
#define add_products(x, ...) FOR_TYPE(add_products, x)(x, __VA_ARGS__)
#endif
