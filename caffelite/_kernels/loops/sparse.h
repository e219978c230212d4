/* Products with rows that are nearly all 0. In C because Cython can't keep an array of sums in registers.
 */
#ifndef CAFFELITE_SPARSE_H
#define CAFFELITE_SPARSE_H
#include "lanes.h"

enum { SPARSE_SUMS = 8 }; /* vectors of sums in registers */

/* The addresses of a row's nonzero numbers and of their columns. */
typedef struct {
    const void *values;
    const int32_t *columns;
    ptrdiff_t count;
} SparseRow;

#define DEFINE_SPARSE(real)                                                                                                  \
    INLINE vector_##real some_##real(const real *p, int n)                                                                   \
    {                                                                                                                        \
        return n == LANES_OF_##real ? *(const vector_##real *)p : load_first_##real(p, n);                                   \
    }                                                                                                                        \
                                                                                                                             \
    INLINE void store_some_##real(real *p, vector_##real v, int n)                                                           \
    {                                                                                                                        \
        if (n == LANES_OF_##real)                                                                                            \
            *(vector_##real *)p = v;                                                                                         \
        else                                                                                                                 \
            store_first_##real(p, v, n);                                                                                     \
    }                                                                                                                        \
                                                                                                                             \
    /* y = Σₖ value[k] · b[column[k]] + bias for VECTORS vectors of columns of b. The last vector has n lanes. If      \
     * there are few vectors, each has several independent sums, so that no addition waits for the one before.         \
     * Returns 0 if a column is not one of the k rows of b. */ \
    INLINE int sum_of_rows_##real(const int VECTORS, int n, real *y, SparseRow row, const real *b, ptrdiff_t b_row,          \
                                  ptrdiff_t k, const real *bias)                                                             \
    {                                                                                                                        \
        enum { LANES = LANES_OF_##real };                                                                                    \
        const int CHAINS = SPARSE_SUMS / VECTORS;                                                                            \
        vector_##real sum[SPARSE_SUMS] = {{0}};                                                                              \
        for (ptrdiff_t i = 0; i < row.count; i += CHAINS)                                                                    \
            UNROLL_FOR (int c = 0; c < CHAINS; c++)                                                                          \
                if (c == 0 || i + c < row.count) {                                                                           \
                    const uint32_t column = (uint32_t)row.columns[i + c];                                                    \
                    const real *restrict w = b + column * b_row;                                                             \
                    const vector_##real value = ((const real *)row.values)[i + c] - (vector_##real){0};                      \
                    if (column >= (size_t)k)                                                                                 \
                        return 0;                                                                                            \
                    UNROLL_FOR (int v = 0; v < VECTORS; v++)                                                                 \
                        sum[c * VECTORS + v] += value * some_##real(w + v * LANES, v < VECTORS - 1 ? LANES : n);             \
                }                                                                                                            \
        UNROLL_FOR (int half = SPARSE_SUMS / 2; half >= VECTORS; half /= 2)                                                  \
            UNROLL_FOR (int s = 0; s < half; s++) sum[s] += sum[s + half];                                                   \
        UNROLL_FOR (int v = 0; v < VECTORS; v++) {                                                                           \
            const int lanes = v < VECTORS - 1 ? LANES : n;                                                                   \
            if (bias)                                                                                                        \
                sum[v] += some_##real(bias + v * LANES, lanes);                                                              \
            store_some_##real(y + v * LANES, sum[v], lanes);                                                                 \
        }                                                                                                                    \
        return 1;                                                                                                            \
    }                                                                                                                        \
                                                                                                                             \
    /* w[column[k]] += value[k] · dy for VECTORS vectors of columns of w. The last vector has n lanes. */                    \
    INLINE int add_to_rows_##real(const int VECTORS, int n, real *w, ptrdiff_t w_row, ptrdiff_t k, SparseRow row,            \
                                  const real *dy)                                                                            \
    {                                                                                                                        \
        enum { LANES = LANES_OF_##real };                                                                                    \
        vector_##real d[SPARSE_SUMS];                                                                                        \
        UNROLL_FOR (int v = 0; v < VECTORS; v++) d[v] = some_##real(dy + v * LANES, v < VECTORS - 1 ? LANES : n);            \
        for (ptrdiff_t i = 0; i < row.count; i++) {                                                                          \
            const uint32_t column = (uint32_t)row.columns[i];                                                                \
            const vector_##real value = ((const real *)row.values)[i] - (vector_##real){0};                                  \
            real *restrict sum = w + column * w_row;                                                                         \
            if (column >= (size_t)k)                                                                                         \
                return 0;                                                                                                    \
            UNROLL_FOR (int v = 0; v < VECTORS; v++) {                                                                       \
                const int lanes = v < VECTORS - 1 ? LANES : n;                                                               \
                store_some_##real(sum + v * LANES, some_##real(sum + v * LANES, lanes) + value * d[v], lanes);               \
            }                                                                                                                \
        }                                                                                                                    \
        return 1;                                                                                                            \
    }                                                                                                                        \
                                                                                                                             \
    /* The two functions above for n columns, with 8 vectors at a time, then 4, 2 or 1. */                                   \
    static int sparse_row_times_##real(real *y, SparseRow row, const real *b, ptrdiff_t b_row, ptrdiff_t k,                  \
                                       const real *bias, ptrdiff_t n)                                                        \
    {                                                                                                                        \
        ptrdiff_t j = 0;                                                                                                     \
        int fits = 1;                                                                                                        \
        EACH_BLOCK(real, n,                                                                                                  \
                   fits &= sum_of_rows_##real(VECTORS, lanes, y + j, row, b + j, b_row, k, bias ? bias + j : NULL))          \
        return fits;                                                                                                         \
    }                                                                                                                        \
                                                                                                                             \
    static int add_sparse_row_##real(real *w, ptrdiff_t w_row, ptrdiff_t k, SparseRow row, const real *dy,                   \
                                     ptrdiff_t n)                                                                            \
    {                                                                                                                        \
        ptrdiff_t j = 0;                                                                                                     \
        int fits = 1;                                                                                                        \
        EACH_BLOCK(real, n, fits &= add_to_rows_##real(VECTORS, lanes, w + j, w_row, k, row, dy + j))                        \
        return fits;                                                                                                         \
    }

/* Does something for columns j … of n, with VECTORS vectors at a time. The last vector has `lanes` lanes. */
#define BLOCKS_OF(real, n, vectors, something)                                                                         \
    for (; (n) - j >= (vectors) * LANES_OF_##real; j += (vectors) * LANES_OF_##real) {                                 \
        enum { VECTORS = vectors, lanes = LANES_OF_##real };                                                           \
        something;                                                                                                     \
    }
#define EACH_BLOCK(real, n, something)                                                                                 \
    BLOCKS_OF(real, n, 8, something)                                                                                   \
    BLOCKS_OF(real, n, 4, something)                                                                                   \
    BLOCKS_OF(real, n, 2, something)                                                                                   \
    BLOCKS_OF(real, n, 1, something)                                                                                   \
    if (j < (n)) {                                                                                                     \
        enum { VECTORS = 1 };                                                                                          \
        const int lanes = (int)((n) - j);                                                                              \
        something;                                                                                                     \
    }

DEFINE_SPARSE(float)
DEFINE_SPARSE(double)

#define sparse_row_times(x, ...) FOR_TYPE(sparse_row_times, x)(x, __VA_ARGS__)
#define add_sparse_row(x, ...) FOR_TYPE(add_sparse_row, x)(x, __VA_ARGS__)
#endif
