/* The register tile of the matrix product, and a strip of such tiles one below the other.
 *
 * A tile is ROWS × VECTORS vectors of y. They stay in registers for all k. For each k the tile reads one row of b, as
 * vectors, and one element of a for each row:  sum[r][v] += a[r, k] · b[k, v].  So each element that is read is used many
 * times, and the processor multiplies and adds in nearly every cycle. Bias and ReLU are applied in registers, too, before
 * the sums are stored in y.
 *
 * Every element sees the same operations in the same order, whatever its place in a tile. So a row's result does not
 * depend on the rows beside it. The tile is in C because Cython has no vector types; matmul.pyx has the loops around it.
 */
#ifndef CAFFELITE_TILE_H
#define CAFFELITE_TILE_H
#include "lanes.h"
#include "panel.h"

#define DEFINE_TILE(real)                                                                                              \
    /* sum[r] += Σ a[r, k] · b[k] for `depth` many k, if the elements of a column of b are neighbours. */              \
    INLINE void add_columns_##real(const int ROWS, vector_##real(*sum)[WIDE_VECTORS], const real *a, ptrdiff_t a_row,  \
                                   ptrdiff_t a_k, const real *b, ptrdiff_t b_column, int lanes, int depth)             \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real };                                                                              \
        vector_##real rows[LANES];                                                                                     \
        OPAQUE_NUMBER(a); /* otherwise the addresses of all elements wait in memory */                                 \
        OPAQUE_NUMBER(a_row);                                                                                          \
        OPAQUE_NUMBER(a_k);                                                                                            \
        columns_of_##real(rows, b, b_column, lanes, depth, 0);                                                         \
        UNROLL_FOR (int k = 0; k < LANES; k++)                                                                         \
            if (k < depth)                                                                                             \
                UNROLL_FOR (int r = 0; r < ROWS; r++) sum[r][0] += a[r * a_row + k * a_k] * rows[k];                   \
    }                                                                                                                  \
                                                                                                                       \
    /* Bias, ReLU and its mask. INTEGERS is 1 where denormal numbers count as 0: a mask of one lets pass. */           \
    INLINE void finish_##real(const int ROWS, const int VECTORS, const int INTEGERS,                                   \
                              vector_##real(*sum)[WIDE_VECTORS], const Strip *strip, ptrdiff_t i, int lanes)           \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real };                                                                              \
        const Strip s = *strip;                                                                                        \
        if (s.bias)                                                                                                    \
            UNROLL_FOR (int v = 0; v < VECTORS; v++) {                                                                 \
                const vector_##real bias = load_##real((const real *)s.bias + v * LANES, v == VECTORS - 1, lanes);     \
                UNROLL_FOR (int r = 0; r < ROWS; r++) sum[r][v] += bias;                                               \
            }                                                                                                          \
        if (s.row_bias)                                                                                                \
            UNROLL_FOR (int r = 0; r < ROWS; r++)                                                                      \
                UNROLL_FOR (int v = 0; v < VECTORS; v++) sum[r][v] += ((const real *)s.row_bias)[i + r];               \
        if (s.relu) /* a comparison gives all ones or all zeros; NaN < 0 is false */                                   \
            UNROLL_FOR (int r = 0; r < ROWS; r++)                                                                      \
                UNROLL_FOR (int v = 0; v < VECTORS; v++)                                                               \
                    sum[r][v] = (vector_##real)(~(lanes_##real)(sum[r][v] < 0) & (lanes_##real)sum[r][v]);             \
        if (s.mask) {                                                                                                  \
            const real *mask = (const real *)s.mask + i * s.mask_row;                                                  \
            UNROLL_FOR (int r = 0; r < ROWS; r++, mask += s.mask_row)                                                  \
                UNROLL_FOR (int v = 0; v < VECTORS; v++) {                                                             \
                    const vector_##real here = load_##real(mask + v * LANES, v == VECTORS - 1, lanes);                 \
                    const lanes_##real bits = (lanes_##real)here;                                                      \
                    const lanes_##real stops = INTEGERS ? (bits == 0) | (bits <= (int32_t)0xff800000) : here <= 0;     \
                    sum[r][v] = (vector_##real)(~stops & (lanes_##real)sum[r][v]);                                     \
                }                                                                                                      \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    /* The tile whose first row is i. ROWS and VECTORS are constants wherever this is called. */                       \
    INLINE void tile_##real(const int ROWS, const int VECTORS, const int RUNS, const Strip *strip, ptrdiff_t i)        \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real };                                                                              \
        const Strip s = *strip;                                                                                        \
        const int lanes = (int)(s.columns - (VECTORS - 1) * LANES); /* of the last vector */                           \
        vector_##real sum[TILE_ROWS][WIDE_VECTORS], row[WIDE_VECTORS];                                                 \
        const real *a = (const real *)s.a + i * s.a_row, *a4 = ROWS > 4 ? a + 4 * s.a_row : a, *b = s.b;               \
        const ptrdiff_t a_step[4] = {0, s.a_row, 2 * s.a_row, 3 * s.a_row};                                            \
        real *y = (real *)s.y + i * s.y_row, *at = y;                                                                  \
                                                                                                                       \
        UNROLL_FOR (int r = 0; r < ROWS; r++)                                                                          \
            UNROLL_FOR (int v = 0; v < VECTORS; v++) sum[r][v] = (vector_##real){0};                                   \
        if (s.resume)                                                                                                  \
            UNROLL_FOR (int r = 0; r < ROWS; r++, at += s.y_row)                                                       \
                UNROLL_FOR (int v = 0; v < VECTORS; v++)                                                               \
                    sum[r][v] = load_##real(at + v * LANES, v == VECTORS - 1, lanes);                                  \
                                                                                                                       \
        if (RUNS || s.b_column == 1)                                                                                   \
            for (ptrdiff_t run = 0;;) {                                                                                \
                for (ptrdiff_t k = 0; k < s.k; k++, a += s.a_k, a4 += s.a_k, b += s.b_k) {                             \
                    UNROLL_FOR (int v = 0; v < VECTORS; v++) {                                                         \
                        row[v] = load_##real(b + v * LANES, v == VECTORS - 1 && READS_LANES, lanes);                   \
                        if (ROWS == 2 || ROWS == 3) /* else each row loads it */                                       \
                            OPAQUE_VECTOR(row[v]);                                                                     \
                    }                                                                                                  \
                    UNROLL_FOR (int r = 0; r < ROWS; r++)                                                              \
                        UNROLL_FOR (int v = 0; v < VECTORS; v++)                                                       \
                            sum[r][v] += (r < 4 ? a : a4)[a_step[r % 4]] * row[v];                                     \
                }                                                                                                      \
                if (!RUNS || ++run >= s.runs)                                                                          \
                    break;                                                                                             \
                a = (const real *)s.a + i * s.a_row + s.a_run[run], a4 = ROWS > 4 ? a + 4 * s.a_row : a;               \
                b = (const real *)s.b + s.b_run[run];                                                                  \
            }                                                                                                          \
        else if (VECTORS == 1 && ROWS <= FEW_ROWS) {                                                                   \
            ptrdiff_t k = 0;                                                                                           \
            for (; k + LANES <= s.k; k += LANES)                                                                       \
                add_columns_##real(ROWS, sum, a + k * s.a_k, s.a_row, s.a_k, b + k, s.b_column, lanes, LANES);         \
            if (k < s.k)                                                                                               \
                add_columns_##real(ROWS, sum, a + k * s.a_k, s.a_row, s.a_k, b + k, s.b_column, lanes,                 \
                                   (int)(s.k - k));                                                                    \
        }                                                                                                              \
                                                                                                                       \
        finish_##real(ROWS, VECTORS, 0, sum, &s, i, lanes);                                                            \
        if (s.accumulate) {                                                                                            \
            at = y;                                                                                                    \
            UNROLL_FOR (int r = 0; r < ROWS; r++, at += s.y_row)                                                       \
                UNROLL_FOR (int v = 0; v < VECTORS; v++)                                                               \
                    sum[r][v] += load_##real(at + v * LANES, v == VECTORS - 1, lanes);                                 \
        }                                                                                                              \
        UNROLL_FOR (int r = 0; r < ROWS; r++, y += s.y_row)                                                            \
            UNROLL_FOR (int v = 0; v < VECTORS; v++)                                                                   \
                if (v < VECTORS - 1 || lanes == LANES)                                                                 \
                    *(vector_##real *)(y + v * LANES) = sum[r][v];                                                     \
                else                                                                                                   \
                    store_first_##real(y + v * LANES, sum[r][v], lanes);                                               \
    }                                                                                                                  \
                                                                                                                       \
    INLINE void tiles_##real(const int VECTORS, const int RUNS, const Strip *s)                                        \
    {                                                                                                                  \
        ptrdiff_t i = 0;                                                                                               \
        for (; VECTORS < WIDE_VECTORS && i + TILE_ROWS <= s->rows; i += TILE_ROWS)                                     \
            tile_##real(TILE_ROWS, VECTORS, RUNS, s, i);                                                               \
        for (ptrdiff_t rows; (rows = s->rows - i) > 0; i += rows)                                                      \
            if (RUNS && TILE_ROWS > 6 && rows >= 6) {                                                                  \
                rows = 6;                                                                                              \
                tile_##real(6, VECTORS, RUNS, s, i);                                                                   \
            } else if (rows >= 4 && rows != 5) {                                                                       \
                rows = 4;                                                                                              \
                tile_##real(4, VECTORS, RUNS, s, i);                                                                   \
            } else if (rows >= 3) {                                                                                    \
                rows = 3;                                                                                              \
                tile_##real(3, VECTORS, RUNS, s, i);                                                                   \
            } else if (rows == 2)                                                                                      \
                tile_##real(2, VECTORS, RUNS, s, i);                                                                   \
            else                                                                                                       \
                tile_##real(1, VECTORS, RUNS, s, i);                                                                   \
    }                                                                                                                  \
                                                                                                                       \
    /* All rows of a strip of y: sums over one run of k, or over several. */                                           \
    void strip_##real(const Strip *s)                                                                                  \
    {                                                                                                                  \
        if (s->columns <= LANES_OF_##real)                                                                             \
            tiles_##real(1, 0, s);                                                                                     \
        else if (s->columns <= 2 * LANES_OF_##real)                                                                    \
            tiles_##real(2, 0, s);                                                                                     \
        else if (s->columns <= TILE_VECTORS * LANES_OF_##real)                                                         \
            tiles_##real(TILE_VECTORS, 0, s);                                                                          \
        else                                                                                                           \
            tiles_##real(WIDE_VECTORS, 0, s);                                                                          \
    }                                                                                                                  \
                                                                                                                       \
    void strip_of_runs_##real(const Strip *s)                                                                          \
    {                                                                                                                  \
        if (s->columns <= LANES_OF_##real)                                                                             \
            tiles_##real(1, 1, s);                                                                                     \
        else if (s->columns <= 2 * LANES_OF_##real)                                                                    \
            tiles_##real(2, 1, s);                                                                                     \
        else                                                                                                           \
            tiles_##real(TILE_VECTORS, 1, s);                                                                          \
    }                                                                                                                  \
                                                                                                                       \
    void transpose_##real(real *y, ptrdiff_t stride_y, const real *x, ptrdiff_t stride_x, int rows, ptrdiff_t columns) \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real };                                                                              \
        vector_##real t[LANES];                                                                                        \
        for (ptrdiff_t k = 0; k < columns; k += LANES) {                                                               \
            const int here = columns - k < LANES ? (int)(columns - k) : LANES;                                         \
            columns_of_##real(t, x + k, stride_x, rows, here, 1);                                                      \
            UNROLL_FOR (int i = 0; i < LANES; i++)                                                                     \
                if (i < here) {                                                                                        \
                    if (rows == LANES)                                                                                 \
                        *(vector_##real *)(y + (k + i) * stride_y) = t[i];                                             \
                    else                                                                                               \
                        store_first_##real(y + (k + i) * stride_y, t[i], rows);                                        \
                }                                                                                                      \
        }                                                                                                              \
    }

DEFINE_TILE(float)
DEFINE_TILE(double)

_Thread_local char packed_b[BLOCK_K * BLOCK_COLUMNS * sizeof(double)] __attribute__((aligned(64)));
_Thread_local char packed_a[BLOCK_K * BLOCK_ROWS * sizeof(double)] __attribute__((aligned(64)));

#endif
