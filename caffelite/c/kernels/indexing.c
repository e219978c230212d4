#include "kernel.h"

/* Return whether all of n numbers are in 0 … rows − 1. */
KERNEL int all_in_range(int n, int rows, const int32_t *order)
{
    int good = 1;
    for (int i = 0; i < n; i++) good &= order[i] >= 0 && order[i] < rows;
    return good;
}

/* y[i] = x[order[i]], rows of `width` numbers; return whether all are there. */
KERNEL int take(int n, int rows, int width, float *restrict y, const float *restrict x, const int32_t *restrict order)
{
    if (!all_in_range(n, rows, order))
        return 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < width; j++) y[i * width + j] = x[order[i] * width + j];
    return 1;
}

/* The same for rows of integers. */
KERNEL int take_integers(int n, int rows, int width, int32_t *restrict y, const int32_t *restrict x,
                         const int32_t *restrict order)
{
    if (!all_in_range(n, rows, order))
        return 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < width; j++) y[i * width + j] = x[order[i] * width + j];
    return 1;
}

/* dx[order[i]] += dy[i], rows of `width` numbers; dx is 0 at first unless it accumulates. */
KERNEL int take_grad(int rows, int width, int n, float *restrict dx, const float *restrict dy, int dy0,
                     const int32_t *restrict order, int accumulate)
{
    if (!all_in_range(n, rows, order))
        return 0;
    if (!accumulate)
        for (int i = 0; i < rows * width; i++) dx[i] = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < width; j++) dx[order[i] * width + j] += dy[i * dy0 + j];
    return 1;
}

/* Check the rows that a gradient is added to; x is 0 at first unless it accumulates. */
KERNEL int use_rows(int rows, int width, int n, float *restrict x, const int32_t *restrict order, int accumulate)
{
    if (!all_in_range(n, rows, order))
        return 0;
    if (!accumulate)
        for (int i = 0; i < rows * width; i++) x[i] = 0;
    return 1;
}
