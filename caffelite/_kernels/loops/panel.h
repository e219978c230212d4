/* Strips of the matrix product, and transposed blocks. They are compiled once, in tile.pyx, for all files of loops/. */
#ifndef CAFFELITE_PANEL_H
#define CAFFELITE_PANEL_H
#include "vectors.h"

/* The sums of a tile fill the registers, except for one row of b and one element of a. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { TILE_ROWS = 8, TILE_VECTORS = 3 }; /* of 32 registers */
#else
enum { TILE_ROWS = 6, TILE_VECTORS = 2 }; /* of 16 */
#endif
enum { FEW_ROWS = 4, WIDE_VECTORS = TILE_VECTORS + 1 }; /* with few rows, a tile has room for one more vector */

/* Strides are in elements. The elements of a row of y are neighbours, and so are those of a row of the mask. If b_column is
 * 1, this holds for b, too, and b_k is the stride of its rows. Otherwise the elements of a column of b are neighbours, b_k
 * is 1, and b_column is the stride of its columns; only strips of at most FEW_ROWS rows take that. */
typedef struct {
    ptrdiff_t rows, columns, k; /* columns: at most COLUMNS, of few rows at most WIDE_VECTORS vectors */
    const void *a, *b;
    ptrdiff_t runs;                 /* runs of k terms; a matrix product has one */
    const ptrdiff_t *a_run, *b_run; /* where each run begins in a and in b */
    ptrdiff_t a_row, a_k, b_k, b_column;
    void *y;
    ptrdiff_t y_row;
    int rounded;                  /* to bfloat16: see below */
    int resume, accumulate, relu; /* start from y; add to y; store max(sum, 0) */
    const void *bias, *row_bias;  /* or NULL: one number for each column; one for each row */
    const void *mask;             /* or NULL: store 0 where it is not above 0 */
    ptrdiff_t mask_row;
} Strip;

/* All rows of a strip of y: sums over one run of k, or over several. The latter has at most COLUMNS columns. */
enum { COLUMNS_float = TILE_VECTORS * LANES_OF_float, COLUMNS_double = TILE_VECTORS * LANES_OF_double };
void strip_float(const Strip *strip);
void strip_double(const Strip *strip);
void strip_of_runs_float(const Strip *strip);
void strip_of_runs_double(const Strip *strip);

/* Room for a packed block of b and of a, for each thread. In float32, the block of b takes half of a second-level cache. */
enum { BLOCK_K = 256, BLOCK_ROWS = 96, BLOCK_COLUMNS = 480 };
extern _Thread_local char packed_b[BLOCK_K * BLOCK_COLUMNS * sizeof(double)];
extern _Thread_local char packed_a[BLOCK_K * BLOCK_ROWS * sizeof(double)];

/* y[k · stride_y + i] = x[i · stride_x + k] for i < rows, at most one vector's lanes, and k < columns. */
void transpose_float(float *y, ptrdiff_t stride_y, const float *x, ptrdiff_t stride_x, int rows, ptrdiff_t columns);
void transpose_double(double *y, ptrdiff_t stride_y, const double *x, ptrdiff_t stride_x, int rows, ptrdiff_t columns);

/* ---- operands rounded to bfloat16 (bfloat16.h) ----
 *
 * Of such a strip, `rounded` is 1, and a and b are packed: b in rows of COLUMNS_bfloat16, whose last ones may hold anything.
 * k is the depth, the number of packed elements. `accumulate` is 0. */
enum {
    COLUMNS_bfloat16 = 2 * LANES_OF_float,
    ROWS_bfloat16 = TILE_ROWS * TILE_VECTORS / 4,
    BLOCK_COLUMNS_bfloat16 = 512
};
void strip_bfloat16(const Strip *strip);

/* Rows are packed and strips are computed between these two. They let denormal numbers count as 0, and set AMX's registers up,
 * which takes some hundred cycles. */
uint64_t begin_strips_bfloat16(void);
void end_strips_bfloat16(uint64_t control);

/* The depth of so many terms, and the largest number of terms whose depth is at most BLOCK_K. */
ptrdiff_t depth_bfloat16(ptrdiff_t terms);
ptrdiff_t max_terms_bfloat16(void);

/* The strip's a[i][k′] = x[i · x_row + k · stride] in packed_a, and strip after strip to[k′][j] = x[k · x_row + j · stride],
 * rounded, in the order that strips read. */
void pack_rows_bfloat16(Strip *strip, const float *x, ptrdiff_t x_row, ptrdiff_t terms, ptrdiff_t stride);
void pack_columns_bfloat16(float *to, const float *x, ptrdiff_t stride, ptrdiff_t columns, ptrdiff_t terms,
                           ptrdiff_t x_row);

/* Compute in this way, from now on; returns 0 if the processor can't. FASTEST is what suits the processor best. */
enum { FASTEST, ONE_BY_ONE, IN_PAIRS, IN_TILES };
int use_bfloat16(int wanted);

#define transpose(x, ...) FOR_TYPE(transpose, x)(x, __VA_ARGS__)
#define strip_of_runs(x, arguments) FOR_TYPE(strip_of_runs, x)(arguments)
#endif
