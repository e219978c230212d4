/* Strips of the matrix product, and transposed blocks. They are compiled in tile.pyx, once for all files of loops/. */
#ifndef CAFFELITE_STRIP_H
#define CAFFELITE_STRIP_H
#include "vectors.h"

/* As many sums as the registers hold, leaving room for one row of b and one element of a. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { TILE_ROWS = 8, TILE_VECTORS = 3 };       /* of 32 registers */
#else
enum { TILE_ROWS = 6, TILE_VECTORS = 2 };       /* of 16 */
#endif
enum { FEW_ROWS = 4 };

/* Strides are in elements. The columns of y are neighbours, and so are those of the mask, and of b if b_column is 1; its
 * rows are b_k apart. If not, the elements of a column of b are, b_k = 1, and its columns lie b_column apart: only strips
 * of at most FEW_ROWS rows take that. */
typedef struct {
    ptrdiff_t rows, columns, k;                  /* columns: at most COLUMNS */
    const void *a, *b;
    ptrdiff_t runs;                              /* of k each; where in a and in b they begin, one, at 0, of a product */
    const ptrdiff_t *a_run, *b_run;
    ptrdiff_t a_row, a_k, b_k, b_column;
    void *y;
    ptrdiff_t y_row;
    int resume, accumulate, relu;                /* start from y; add to y; store max(sum, 0) */
    const void *bias, *row_bias, *mask;          /* or NULL: one for each column; one for each row; 0 where not above 0 */
    ptrdiff_t mask_row;
} Strip;

/* All rows of a strip of y of at most COLUMNS columns; the sums over one run of k, or over several. */
enum { COLUMNS_float = TILE_VECTORS * LANES_OF_float, COLUMNS_double = TILE_VECTORS * LANES_OF_double };
void strip_float(const Strip *strip);
void strip_double(const Strip *strip);
void strip_of_runs_float(const Strip *strip);
void strip_of_runs_double(const Strip *strip);

/* What of b and of a is packed at a time, for each thread that computes: of b about half of a second-level cache in float32. */
enum { BLOCK_K = 256, BLOCK_ROWS = 96, BLOCK_COLUMNS = 480 };
extern _Thread_local char packed_b[BLOCK_K * BLOCK_COLUMNS * sizeof(double)];
extern _Thread_local char packed_a[BLOCK_K * BLOCK_ROWS * sizeof(double)];

/* y[k · stride_y + i] = x[i · stride_x + k] for i < rows, at most one vector's lanes, and k < columns. */
void transpose_float(float *y, ptrdiff_t stride_y, const float *x, ptrdiff_t stride_x, int rows, ptrdiff_t columns);
void transpose_double(double *y, ptrdiff_t stride_y, const double *x, ptrdiff_t stride_x, int rows, ptrdiff_t columns);

#endif
