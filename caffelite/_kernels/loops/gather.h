/* Sums of rows of a table, selected by their numbers. In C because Cython can't say that rows don't overlap
 * (`restrict`). Without this the compiler adds a check of the addresses for each row before its vectors.
 */
#ifndef CAFFELITE_GATHER_H
#define CAFFELITE_GATHER_H
#include "vectors.h"

/* x[order[i]] += y[i], in the order of i. A row has n elements; rows are x_row and y_row elements apart. */
#define DEFINE_ROWS(real)                                                                                              \
    INLINE void add_each_row_##real(real *x, ptrdiff_t x_row, const real *y, ptrdiff_t y_row, const int64_t *order,    \
                                    ptrdiff_t rows, ptrdiff_t n)                                                       \
    {                                                                                                                  \
        for (ptrdiff_t i = 0; i < rows; i++) {                                                                         \
            real *restrict sum = x + order[i] * x_row;                                                                 \
            const real *restrict term = y + i * y_row;                                                                 \
            for (ptrdiff_t j = 0; j < n; j++) sum[j] += term[j];                                                       \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    /* Rows of a few vectors: with a constant length there is no loop. */                                              \
    static void add_rows_##real(real *x, ptrdiff_t x_row, const real *y, ptrdiff_t y_row, const int64_t *order,        \
                                ptrdiff_t rows, ptrdiff_t n)                                                           \
    {                                                                                                                  \
        if (n == 8)                                                                                                    \
            add_each_row_##real(x, x_row, y, y_row, order, rows, 8);                                                   \
        else if (n == 16)                                                                                              \
            add_each_row_##real(x, x_row, y, y_row, order, rows, 16);                                                  \
        else                                                                                                           \
            add_each_row_##real(x, x_row, y, y_row, order, rows, n);                                                   \
    }

DEFINE_ROWS(float)
DEFINE_ROWS(double)

#define add_rows(x, ...) FOR_TYPE(add_rows, x)(x, __VA_ARGS__)
#endif
