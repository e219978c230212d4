#include "kernel.h"

/* Σ a[k] b[k], in eight sums: compilers may not reorder a single one for vectors. */
KERNEL float dot(int K, const float *a, const float *b)
{
    enum { LANES = 8 };
    float sum[LANES] = {0}, total = 0;
    int k = 0;
    for (; k + LANES <= K; k += LANES)
        for (int c = 0; c < LANES; c++) sum[c] += a[k + c] * b[k + c];
    for (; k < K; k++) total += a[k] * b[k];
    for (int c = 0; c < LANES; c++) total += sum[c];
    return total;
}

/* y = a b (+ bias), or y += a b:  y (M, N), a (M, K), b (K, N), with their strides of rows and columns. Each row of y is
 * a sum of rows of b, eight at a time, or else dot products. */
KERNEL void matmul(int M, int N, int K, float *restrict y, int y0, int y1, const float *restrict a, int a0, int a1,
                   const float *restrict b, int b0, int b1, const float *restrict bias, int accumulate)
{
    for (int i = 0; i < M; i++, y += y0, a += a0) {
        for (int j = 0; j < N; j++) y[j * y1] = (accumulate ? y[j * y1] : 0) + (bias ? bias[j] : 0);
        int k = 0;
        if (a1 == 1 && b0 == 1 && K >= 16) {
            for (int j = 0; j < N; j++) y[j * y1] += dot(K, a, b + j * b1);
            k = K;
        }
        for (; k + 8 <= K; k += 8) {
            const float *q = b + k * b0;
            const float x0 = a[k * a1], x1 = a[(k + 1) * a1], x2 = a[(k + 2) * a1], x3 = a[(k + 3) * a1];
            const float x4 = a[(k + 4) * a1], x5 = a[(k + 5) * a1], x6 = a[(k + 6) * a1], x7 = a[(k + 7) * a1];
            for (int j = 0; j < N; j++)
                y[j * y1] +=
                    ((x0 * q[j * b1] + x1 * q[b0 + j * b1]) + (x2 * q[2 * b0 + j * b1] + x3 * q[3 * b0 + j * b1]))
                    + ((x4 * q[4 * b0 + j * b1] + x5 * q[5 * b0 + j * b1])
                       + (x6 * q[6 * b0 + j * b1] + x7 * q[7 * b0 + j * b1]));
        }
        for (; k < K; k++) {
            const float x = a[k * a1];
            for (int j = 0; j < N; j++) y[j * y1] += x * b[k * b0 + j * b1];
        }
    }
}

/* y[m] = a[m] b[m] for n matrices of each, y2, a2 and b2 apart. */
KERNEL void matmul_stack(int n, int M, int N, int K, float *restrict y, int y0, int y1, int y2, const float *restrict a,
                         int a0, int a1, int a2, const float *restrict b, int b0, int b1, int b2)
{
    for (int m = 0; m < n; m++) matmul(M, N, K, y + m * y2, y0, y1, a + m * a2, a0, a1, b + m * b2, b0, b1, NULL, 0);
}
