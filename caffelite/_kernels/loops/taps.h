/* Weighted sums of vectors: y[r] = Σ_t w[t] x[r, t], lane by lane. The weights are the same for all rows, so several
 * rows are computed with one load of them.
 */
#ifndef CAFFELITE_TAPS_H
#define CAFFELITE_TAPS_H
#include "lanes.h"

enum { TAP_ROWS = 8 };

/* Strides are in elements. A row is the first `lanes` of a vector. The weights of tap t begin at w_at[t]. If they are
 * the `same` for all lanes, they are one number. */
typedef struct {
    ptrdiff_t rows, taps, x_row, y_row;
    const ptrdiff_t *x_at, *w_at;
    const void *x, *w, *bias; /* bias: one number or a vector, like w, or NULL */
    void *y;
    int lanes, same, resume; /* resume: start from y */
} TapSums;

#define DEFINE_TAP_SUMS(real)                                                                                          \
    /* The rows from r0 on. */                                                                                         \
    INLINE void sum_taps_of_rows_##real(const int ROWS, const int SAME, const TapSums *args, ptrdiff_t r0)             \
    {                                                                                                                  \
        const TapSums s = *args;                                                                                       \
        const int is_part = s.lanes < LANES_OF_##real;                                                                 \
        const real *x = (const real *)s.x + r0 * s.x_row;                                                              \
        real *y = (real *)s.y + r0 * s.y_row;                                                                          \
        vector_##real sum[TAP_ROWS], w;                                                                                \
        UNROLL_FOR (int r = 0; r < ROWS; r++) {                                                                        \
            sum[r] = (vector_##real){0};                                                                               \
            if (s.resume)                                                                                              \
                sum[r] = load_##real(y + r * s.y_row, is_part, s.lanes);                                               \
        }                                                                                                              \
        for (ptrdiff_t t = 0; t < s.taps; t++) {                                                                       \
            const real *weight = (const real *)s.w + s.w_at[t], *pixel = x + s.x_at[t];                                \
            if (SAME)                                                                                                  \
                w = *weight - (vector_##real){0};                                                                      \
            else                                                                                                       \
                w = load_##real(weight, is_part, s.lanes);                                                             \
            UNROLL_FOR (int r = 0; r < ROWS; r++) sum[r] += w * load_##real(pixel + r * s.x_row, is_part, s.lanes);    \
        }                                                                                                              \
        if (s.bias) {                                                                                                  \
            if (SAME)                                                                                                  \
                w = *(const real *)s.bias - (vector_##real){0};                                                        \
            else                                                                                                       \
                w = load_##real(s.bias, is_part, s.lanes);                                                             \
            UNROLL_FOR (int r = 0; r < ROWS; r++) sum[r] += w;                                                         \
        }                                                                                                              \
        UNROLL_FOR (int r = 0; r < ROWS; r++)                                                                          \
            if (is_part)                                                                                               \
                store_first_##real(y + r * s.y_row, sum[r], s.lanes);                                                  \
            else                                                                                                       \
                *(vector_##real *)(y + r * s.y_row) = sum[r];                                                          \
    }                                                                                                                  \
                                                                                                                       \
    INLINE void sum_taps_in_rows_##real(const int SAME, const TapSums *s)                                              \
    {                                                                                                                  \
        ptrdiff_t r = 0;                                                                                               \
        for (; r + TAP_ROWS <= s->rows; r += TAP_ROWS) sum_taps_of_rows_##real(TAP_ROWS, SAME, s, r);                  \
        if (r < s->rows && s->rows > TAP_ROWS && !s->resume) /* computes some rows twice, with the same result */      \
            sum_taps_of_rows_##real(TAP_ROWS, SAME, s, s->rows - TAP_ROWS);                                            \
        else                                                                                                           \
            for (; r < s->rows; r++) sum_taps_of_rows_##real(1, SAME, s, r);                                           \
    }                                                                                                                  \
                                                                                                                       \
    static void sum_taps_##real(const TapSums *s)                                                                      \
    {                                                                                                                  \
        if (s->same)                                                                                                   \
            sum_taps_in_rows_##real(1, s);                                                                             \
        else                                                                                                           \
            sum_taps_in_rows_##real(0, s);                                                                             \
    }

DEFINE_TAP_SUMS(float)
DEFINE_TAP_SUMS(double)

#define sum_taps(x, arguments) FOR_TYPE(sum_taps, x)(arguments)
#endif
