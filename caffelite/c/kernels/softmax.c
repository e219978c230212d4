#include "kernel.h"

/* n rows of C numbers, contiguous. */

/* y = exp(x − m), m the largest of a row; return their sum. */
KERNEL float exponentials(int C, float *restrict y, const float *restrict x, float *restrict largest)
{
    float m = x[0], total = 0;
    for (int j = 1; j < C; j++) m = x[j] > m ? x[j] : m;
    for (int j = 0; j < C; j++) total += y[j] = expf(x[j] - m);
    *largest = m;
    return total;
}

/* y[i, j] = exp x[i, j] / Σ exp x[i, j] */
KERNEL void softmax(int n, int C, float *restrict y, const float *restrict x)
{
    for (int i = 0; i < n; i++, x += C, y += C) {
        float largest;
        const float total = exponentials(C, y, x, &largest);
        for (int j = 0; j < C; j++) y[j] /= total;
    }
}

/* dx[i, j] = y[i, j] (dy[i, j] − Σ dy[i, j] y[i, j]) */
KERNEL void softmax_grad(int n, int C, float *restrict dx, const float *restrict dy, const float *restrict y)
{
    for (int i = 0; i < n; i++, dx += C, dy += C, y += C) {
        float total = 0;
        for (int j = 0; j < C; j++) total += dy[j] * y[j];
        for (int j = 0; j < C; j++) dx[j] = y[j] * (dy[j] - total);
    }
}

/* y[i, j] = x[i, j] − log Σ exp x[i, j] */
KERNEL void log_softmax(int n, int C, float *restrict y, const float *restrict x)
{
    for (int i = 0; i < n; i++, x += C, y += C) {
        float largest;
        const float total = logf(exponentials(C, y, x, &largest));
        for (int j = 0; j < C; j++) y[j] = (x[j] - largest) - total;
    }
}

/* dx[i, j] = dy[i, j] − exp y[i, j] Σ dy[i, j] */
KERNEL void log_softmax_grad(int n, int C, float *restrict dx, const float *restrict dy, const float *restrict y)
{
    for (int i = 0; i < n; i++, dx += C, dy += C, y += C) {
        float total = 0;
        for (int j = 0; j < C; j++) total += dy[j];
        for (int j = 0; j < C; j++) dx[j] = dy[j] - expf(y[j]) * total;
    }
}
