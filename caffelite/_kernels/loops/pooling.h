/* The maximum and the sum of the pixels of a window, one vector of lanes at a time. The result so far stays in
 * registers until the last pixel. This file is C because Cython has no vector types. pooling.pyx says where windows
 * lie.
 *
 * A pixel is `lanes` elements side by side. Two rows of pixels are `row` elements apart, two columns `column` elements.
 * The place of a pixel is its number in the whole image, an integer of as many bytes as an element.
 */
#ifndef CAFFELITE_POOLING_H
#define CAFFELITE_POOLING_H
#include "lanes.h"

typedef int32_t place_float;
typedef int64_t place_double;

#define DEFINE_POOLING(real)                                                                                           \
    INLINE vector_##real first_lanes_##real(const real *p, int n)                                                      \
    {                                                                                                                  \
        return n == LANES_OF_##real ? *(const vector_##real *)p : load_first_##real(p, n);                             \
    }                                                                                                                  \
                                                                                                                       \
    INLINE void set_first_lanes_##real(real *p, vector_##real v, int n)                                                \
    {                                                                                                                  \
        if (n == LANES_OF_##real)                                                                                      \
            *(vector_##real *)p = v;                                                                                   \
        else                                                                                                           \
            store_first_##real(p, v, n);                                                                               \
    }                                                                                                                  \
                                                                                                                       \
    /* A comparison gives all ones or all zeros. Of equal pixels the first one wins, and a NaN is never replaced. */   \
    INLINE void largest_lanes_##real(real *y, real *places, const real *x, ptrdiff_t row, ptrdiff_t column,            \
                                     ptrdiff_t rows, ptrdiff_t columns, place_##real place, place_##real width, int n) \
    {                                                                                                                  \
        vector_##real best = first_lanes_##real(x, n);                                                                 \
        lanes_##real at = {0};                                                                                         \
        at += place;                                                                                                   \
        for (ptrdiff_t r = 0; r < rows; r++, x += row, place += width)                                                 \
            for (place_##real c = 0; c < columns; c++) {                                                               \
                const vector_##real v = first_lanes_##real(x + c * column, n);                                         \
                const lanes_##real larger = ((v > best) | (v != v)) & (best == best);                                  \
                best = (vector_##real)((larger & (lanes_##real)v) | (~larger & (lanes_##real)best));                   \
                at = (larger & (place + c)) | (~larger & at);                                                          \
            }                                                                                                          \
        set_first_lanes_##real(y, best, n);                                                                            \
        set_first_lanes_##real(places, (vector_##real)at, n);                                                          \
    }                                                                                                                  \
                                                                                                                       \
    /* y = the largest of rows × columns pixels from x on; places = its place. `place` is the place of x itself. */    \
    static inline void largest_##real(real *y, void *places, const real *x, ptrdiff_t row, ptrdiff_t column,           \
                                      ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t place, ptrdiff_t width,             \
                                      ptrdiff_t lanes)                                                                 \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real };                                                                              \
        real *at = places;                                                                                             \
        for (; lanes >= LANES; lanes -= LANES, y += LANES, at += LANES, x += LANES)                                    \
            largest_lanes_##real(y, at, x, row, column, rows, columns, (place_##real)place, (place_##real)width,       \
                                 LANES);                                                                               \
        if (lanes > 0)                                                                                                 \
            largest_lanes_##real(y, at, x, row, column, rows, columns, (place_##real)place, (place_##real)width,       \
                                 (int)lanes);                                                                          \
    }                                                                                                                  \
                                                                                                                       \
    INLINE void largest_grad_lanes_##real(real *dx, const real *dy, ptrdiff_t row, ptrdiff_t column,                   \
                                          const real *places, ptrdiff_t places_row, ptrdiff_t places_column,           \
                                          ptrdiff_t rows, ptrdiff_t columns, place_##real place, int n)                \
    {                                                                                                                  \
        vector_##real sum = {0};                                                                                       \
        for (ptrdiff_t r = 0; r < rows; r++)                                                                           \
            for (ptrdiff_t c = 0; c < columns; c++) {                                                                  \
                const lanes_##real at =                                                                                \
                    (lanes_##real)first_lanes_##real(places + r * places_row + c * places_column, n);                  \
                const lanes_##real g = (lanes_##real)first_lanes_##real(dy + r * row + c * column, n);                 \
                sum += (vector_##real)((at == place) & g);                                                             \
            }                                                                                                          \
        set_first_lanes_##real(dx, sum, n);                                                                            \
    }                                                                                                                  \
                                                                                                                       \
    /* dx = the sum of dy over the rows × columns windows whose largest pixel is `place`. Mostly it is one window. */  \
    static inline void largest_grad_##real(real *dx, const real *dy, ptrdiff_t row, ptrdiff_t column,                  \
                                           const void *places, ptrdiff_t places_row, ptrdiff_t places_column,          \
                                           ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t place, ptrdiff_t lanes)        \
    {                                                                                                                  \
        enum { LANES = LANES_OF_##real };                                                                              \
        const int is_one = rows == 1 && columns == 1;                                                                  \
        const real *at = places;                                                                                       \
        for (; lanes >= LANES; lanes -= LANES, dx += LANES, dy += LANES, at += LANES)                                  \
            if (is_one)                                                                                                \
                largest_grad_lanes_##real(dx, dy, 0, 0, at, 0, 0, 1, 1, (place_##real)place, LANES);                   \
            else                                                                                                       \
                largest_grad_lanes_##real(dx, dy, row, column, at, places_row, places_column, rows, columns,           \
                                          (place_##real)place, LANES);                                                 \
        if (lanes > 0)                                                                                                 \
            largest_grad_lanes_##real(dx, dy, row, column, at, places_row, places_column, rows, columns,               \
                                      (place_##real)place, (int)lanes);                                                \
    }                                                                                                                  \
                                                                                                                       \
    /* The same for the pixels of a row of windows side by side, each `width` pixels wide. */                          \
    static void largest_grad_row_##real(real *dx, ptrdiff_t dx_pixel, const real *dy, ptrdiff_t pixel,                 \
                                        const void *places, ptrdiff_t places_pixel, ptrdiff_t windows,                 \
                                        ptrdiff_t width, ptrdiff_t place, ptrdiff_t lanes)                             \
    {                                                                                                                  \
        const real *at = places;                                                                                       \
        for (; windows > 0; windows--, dy += pixel, at += places_pixel)                                                \
            for (ptrdiff_t c = 0; c < width; c++, dx += dx_pixel, place++)                                             \
                largest_grad_##real(dx, dy, 0, 0, at, 0, 0, 1, 1, place, lanes);                                       \
    }

DEFINE_POOLING(float)
DEFINE_POOLING(double)

/* Half a vector of float32: it has as many lanes as a vector of float64. */
DEFINE_VECTOR(narrow_float, float, VECTOR_BYTES / 2)

INLINE vector_double widened_float(const float *p, int n)
{
    narrow_float x;
    if (n == LANES_OF_double)
        x = *(const narrow_float *)p;
    else {
        const vector_float all = load_first_float(p, n);
        memcpy(&x, &all, sizeof x);
    }
    return __builtin_convertvector(x, vector_double);
}

INLINE void set_narrowed_float(float *p, vector_double v, int n)
{
    const narrow_float x = __builtin_convertvector(v, narrow_float);
    if (n == LANES_OF_double)
        *(narrow_float *)p = x;
    else {
        vector_float all = {0};
        memcpy(&all, &x, sizeof x);
        store_first_float(p, all, n);
    }
}

INLINE vector_double widened_double(const double *p, int n) { return first_lanes_double(p, n); }
INLINE void set_narrowed_double(double *p, vector_double v, int n) { set_first_lanes_double(p, v, n); }

enum { PIXEL_SUMS = 4 }; /* independent sums, so that no addition waits for the one before it */

#define DEFINE_SUM(real)                                                                                               \
    INLINE void sum_lanes_##real(const int VECTORS, real *y, const real *x, ptrdiff_t row, ptrdiff_t column,           \
                                 ptrdiff_t rows, ptrdiff_t columns, double factor, int n)                              \
    {                                                                                                                  \
        vector_double sum[PIXEL_SUMS] = {{0}};                                                                         \
        for (ptrdiff_t r = 0; r < rows; r++, x += row)                                                                 \
            for (ptrdiff_t c = 0; c < columns; c++)                                                                    \
                UNROLL_FOR (int v = 0; v < VECTORS; v++)                                                               \
                    sum[v] += widened_##real(x + c * column + v * LANES_OF_double, n);                                 \
        UNROLL_FOR (int v = 0; v < VECTORS; v++) set_narrowed_##real(y + v * LANES_OF_double, factor * sum[v], n);     \
    }                                                                                                                  \
                                                                                                                       \
    /* y = factor · the sum of rows × columns pixels from x on, in float64, row by row. */                             \
    static inline void sum_pixels_##real(real *y, const real *x, ptrdiff_t row, ptrdiff_t column, ptrdiff_t rows,      \
                                         ptrdiff_t columns, ptrdiff_t lanes, double factor)                            \
    {                                                                                                                  \
        enum { LANES = LANES_OF_double, MANY = PIXEL_SUMS * LANES };                                                   \
        const int is_one = rows == 1 && columns == 1;                                                                  \
        for (; lanes >= MANY && !is_one; lanes -= MANY, y += MANY, x += MANY)                                          \
            sum_lanes_##real(PIXEL_SUMS, y, x, row, column, rows, columns, factor, LANES);                             \
        for (; lanes >= LANES; lanes -= LANES, y += LANES, x += LANES)                                                 \
            if (is_one)                                                                                                \
                sum_lanes_##real(1, y, x, 0, 0, 1, 1, factor, LANES);                                                  \
            else                                                                                                       \
                sum_lanes_##real(1, y, x, row, column, rows, columns, factor, LANES);                                  \
        if (lanes > 0)                                                                                                 \
            sum_lanes_##real(1, y, x, row, column, rows, columns, factor, (int)lanes);                                 \
    }

DEFINE_SUM(float)
DEFINE_SUM(double)

#define largest(x, ...) FOR_TYPE(largest, x)(x, __VA_ARGS__)
#define largest_grad_row(x, ...) FOR_TYPE(largest_grad_row, x)(x, __VA_ARGS__)
#define largest_grad(x, ...) FOR_TYPE(largest_grad, x)(x, __VA_ARGS__)
#define sum_pixels(x, ...) FOR_TYPE(sum_pixels, x)(x, __VA_ARGS__)
#endif
