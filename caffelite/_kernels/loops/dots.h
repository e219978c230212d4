/* Many dot products at once: of each row of a with each row of b.
 *
 * Vectors go along the rows. The sums are also vectors: each lane is summed on its own over many calls, and the lanes
 * are added up once, at the end. ROWS × SUMS sums stay in registers, so that each vector that is read is used several
 * times.
 */
#ifndef CAFFELITE_DOTS_H
#define CAFFELITE_DOTS_H
#include "lanes.h"

enum { DOT_ROWS = 6 };
#if defined(__AVX512F__) || defined(__aarch64__)
enum { DOT_SUMS = 4 }; /* of 32 registers */
#else
enum { DOT_SUMS = 2 }; /* of 16 */
#endif

/* Strides are in elements. A row has `rows` lines of `pixels`, and each pixel has `columns` contiguous elements. */
typedef struct {
    ptrdiff_t rows, pixels, columns;
    const void *a; /* a_rows rows, a_row apart */
    ptrdiff_t a_rows, a_row, a_down, a_along;
    const void *b; /* b_rows rows, which begin at b_j */
    ptrdiff_t b_rows, b_down, b_along;
    const ptrdiff_t *b_j;
    void *sums;
    ptrdiff_t sum_row, sum_j;
} Dots;

#define DEFINE_DOTS(real)                                                                                              \
    /* sum[r][j] += a[r] · b[j], `count` times. In between, a and b advance by their steps. */                         \
    INLINE void add_dots_##real(const int ROWS, const int SUMS, vector_##real(*sum)[DOT_SUMS], const real *a,          \
                                ptrdiff_t a_row, const real *const *starts, ptrdiff_t count, ptrdiff_t a_step,         \
                                ptrdiff_t b_step, int lanes)                                                           \
    {                                                                                                                  \
        const int is_part = lanes < LANES_OF_##real;                                                                   \
        const real *b[DOT_SUMS];                                                                                       \
        UNROLL_FOR (int j = 0; j < SUMS; j++) b[j] = starts[j];                                                        \
        for (; count > 0; count--, a += a_step) {                                                                      \
            vector_##real left[DOT_ROWS];                                                                              \
            UNROLL_FOR (int r = 0; r < ROWS; r++) left[r] = load_##real(a + r * a_row, is_part, lanes);                \
            UNROLL_FOR (int j = 0; j < SUMS; j++, b[j - 1] += b_step) {                                                \
                const vector_##real right = load_##real(b[j], is_part, lanes);                                         \
                UNROLL_FOR (int r = 0; r < ROWS; r++) sum[r][j] += left[r] * right;                                    \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    INLINE void dots_##real(const int ROWS, const int SUMS, const Dots *dots, ptrdiff_t r0, ptrdiff_t j0)              \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real };                                                                              \
        const Dots d = *dots;                                                                                          \
        const ptrdiff_t vectors = d.columns / LANES, rest = d.columns % LANES;                                         \
        vector_##real sum[DOT_ROWS][DOT_SUMS];                                                                         \
        real *at = (real *)d.sums + r0 * d.sum_row + j0 * d.sum_j;                                                     \
        const real *b[DOT_SUMS];                                                                                       \
                                                                                                                       \
        UNROLL_FOR (int r = 0; r < ROWS; r++)                                                                          \
            UNROLL_FOR (int j = 0; j < SUMS; j++)                                                                      \
                sum[r][j] = *(const vector_##real *)(at + r * d.sum_row + j * d.sum_j);                                \
                                                                                                                       \
        for (ptrdiff_t row = 0; row < d.rows; row++)                                                                   \
            for (ptrdiff_t pixel = 0; pixel < d.pixels; pixel++) {                                                     \
                const real *a = (const real *)d.a + r0 * d.a_row + row * d.a_down + pixel * d.a_along;                 \
                UNROLL_FOR (int j = 0; j < SUMS; j++)                                                                  \
                    b[j] = (const real *)d.b + d.b_j[j0 + j] + row * d.b_down + pixel * d.b_along;                     \
                if (d.columns <= LANES) { /* each pixel is one vector */                                               \
                    add_dots_##real(ROWS, SUMS, sum, a, d.a_row, b, d.pixels, d.a_along, d.b_along, (int)d.columns);   \
                    break;                                                                                             \
                }                                                                                                      \
                add_dots_##real(ROWS, SUMS, sum, a, d.a_row, b, vectors, LANES, LANES, LANES);                         \
                if (rest > 0) {                                                                                        \
                    UNROLL_FOR (int j = 0; j < SUMS; j++) b[j] += vectors * LANES;                                     \
                    add_dots_##real(ROWS, SUMS, sum, a + vectors * LANES, d.a_row, b, 1, 0, 0, (int)rest);             \
                }                                                                                                      \
            }                                                                                                          \
                                                                                                                       \
        UNROLL_FOR (int r = 0; r < ROWS; r++)                                                                          \
            UNROLL_FOR (int j = 0; j < SUMS; j++) *(vector_##real *)(at + r * d.sum_row + j * d.sum_j) = sum[r][j];    \
    }                                                                                                                  \
                                                                                                                       \
    INLINE void dots_of_rows_##real(const int ROWS, const Dots *d, ptrdiff_t r)                                        \
    {                                                                                                                  \
        ptrdiff_t j = 0;                                                                                               \
        for (; j + DOT_SUMS <= d->b_rows; j += DOT_SUMS) dots_##real(ROWS, DOT_SUMS, d, r, j);                         \
        for (; DOT_SUMS > 2 && j + 2 <= d->b_rows; j += 2) dots_##real(ROWS, 2, d, r, j);                              \
        for (; j < d->b_rows; j++) dots_##real(ROWS, 1, d, r, j);                                                      \
    }                                                                                                                  \
                                                                                                                       \
    static void all_dots_##real(const Dots *d)                                                                         \
    {                                                                                                                  \
        for (ptrdiff_t r = 0, rest; (rest = d->a_rows - r) > 0;) {                                                     \
            if (rest >= DOT_ROWS) {                                                                                    \
                dots_of_rows_##real(DOT_ROWS, d, r);                                                                   \
                r += DOT_ROWS;                                                                                         \
            } else if (rest == 4) {                                                                                    \
                dots_of_rows_##real(4, d, r);                                                                          \
                r += 4;                                                                                                \
            } else if (rest >= 3) {                                                                                    \
                dots_of_rows_##real(3, d, r);                                                                          \
                r += 3;                                                                                                \
            } else if (rest == 2) {                                                                                    \
                dots_of_rows_##real(2, d, r);                                                                          \
                r += 2;                                                                                                \
            } else {                                                                                                   \
                dots_of_rows_##real(1, d, r);                                                                          \
                r += 1;                                                                                                \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    /* The sum of a vector's lanes, always in the same order. */                                                       \
    static real sum_lanes_##real(const real *lanes)                                                                    \
    {                                                                                                                  \
        real sum = 0;                                                                                                  \
        for (int i = 0; i < LANES_OF_##real; i++) sum += lanes[i];                                                     \
        return sum;                                                                                                    \
    }

DEFINE_DOTS(float)
DEFINE_DOTS(double)

#define sum_lanes(x) FOR_TYPE(sum_lanes, x)(x)
#define all_dots(x, arguments) FOR_TYPE(all_dots, x)(arguments)
#endif
