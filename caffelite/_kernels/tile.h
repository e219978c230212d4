/* The register tile of the matrix product: c (ROWS x COLUMNS) += a (ROWS x k) b (k x COLUMNS), with c held in vector
 * registers over the whole of k. In C because Cython has no vector types; everything around it is in matmul.pxi.
 *
 * a is packed so that the ROWS elements of one k are neighbours, b so that the COLUMNS elements of one k are. A tile with
 * few columns uses fewer vectors of each row. Every element sees the same operations in the same order wherever it
 * stands in a tile, so a row's result does not depend on the rows beside it.
 */
#ifndef CAFFELITE_TILE_H
#define CAFFELITE_TILE_H
#include <stddef.h>

/* As many accumulators as the registers hold, leaving room for one row of b and one element of a. */
#if defined(__AVX512F__)                  /* 32 registers of 64 bytes: 24 accumulators */
enum { VECTOR_BYTES = 64, TILE_ROWS = 8, TILE_VECTORS = 3 };
#elif defined(__AVX2__)                   /* 16 registers of 32 bytes: 12 accumulators */
enum { VECTOR_BYTES = 32, TILE_ROWS = 6, TILE_VECTORS = 2 };
#elif defined(__aarch64__)                /* 32 registers of 16 bytes: 24 accumulators */
enum { VECTOR_BYTES = 16, TILE_ROWS = 8, TILE_VECTORS = 3 };
#else                                     /* 16 registers of 16 bytes: 12 accumulators */
enum { VECTOR_BYTES = 16, TILE_ROWS = 6, TILE_VECTORS = 2 };
#endif

#define DEFINE_TILE(real)                                                                                              \
    typedef real vector_##real __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));           \
    enum { COLUMNS_##real = TILE_VECTORS * VECTOR_BYTES / sizeof(real) };                                              \
                                                                                                                       \
    static inline __attribute__((always_inline)) void tile_of_##real(                                                  \
        const int vectors, ptrdiff_t k, const real *a, const real *b, real *c)                                         \
    {                                                                                                                  \
        enum { WIDTH = VECTOR_BYTES / sizeof(real) };                                                                  \
        vector_##real sum[TILE_ROWS][TILE_VECTORS], row[TILE_VECTORS];                                                 \
        _Pragma("GCC unroll 8") for (int i = 0; i < TILE_ROWS; i++)                                                    \
            _Pragma("GCC unroll 8") for (int j = 0; j < vectors; j++)                                                  \
                sum[i][j] = *(const vector_##real *)(c + i * COLUMNS_##real + j * WIDTH);                              \
        for (ptrdiff_t p = 0; p < k; p++) {                                                                            \
            _Pragma("GCC unroll 8") for (int j = 0; j < vectors; j++)                                                  \
                row[j] = *(const vector_##real *)(b + p * COLUMNS_##real + j * WIDTH);                                 \
            _Pragma("GCC unroll 8") for (int i = 0; i < TILE_ROWS; i++)                                                \
                _Pragma("GCC unroll 8") for (int j = 0; j < vectors; j++)                                              \
                    sum[i][j] += a[p * TILE_ROWS + i] * row[j];                                                        \
        }                                                                                                              \
        _Pragma("GCC unroll 8") for (int i = 0; i < TILE_ROWS; i++)                                                    \
            _Pragma("GCC unroll 8") for (int j = 0; j < vectors; j++)                                                  \
                *(vector_##real *)(c + i * COLUMNS_##real + j * WIDTH) = sum[i][j];                                    \
    }                                                                                                                  \
                                                                                                                       \
    static void tile_##real(ptrdiff_t columns, ptrdiff_t k, const real *a, const real *b, real *c)                     \
    {                                                                                                                  \
        enum { WIDTH = VECTOR_BYTES / sizeof(real) };                                                                  \
        if (columns <= WIDTH)                                                                                          \
            tile_of_##real(1, k, a, b, c);                                                                             \
        else if (columns <= 2 * WIDTH)                                                                                 \
            tile_of_##real(2, k, a, b, c);                                                                             \
        else                                                                                                           \
            tile_of_##real(TILE_VECTORS, k, a, b, c);                                                                  \
    }

DEFINE_TILE(float)
DEFINE_TILE(double)

/* Room for the packed blocks, one for each thread that computes. */
enum { BLOCK_K = 256, BLOCK_ROWS = 96, BLOCK_COLUMNS = 480 };
static _Thread_local char packed_a[BLOCK_ROWS * BLOCK_K * sizeof(double)] __attribute__((aligned(64)));
static _Thread_local char packed_b[BLOCK_K * BLOCK_COLUMNS * sizeof(double)] __attribute__((aligned(64)));

#endif
