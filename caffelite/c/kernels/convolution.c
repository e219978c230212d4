#include "kernel.h"

/* The windows of images along one axis: `count` windows of `kernel` pixels, in an image of `length` pixels. */
typedef struct {
    int length, count, kernel, stride, padding, dilation;
} window;

/* The first window whose pixel at place k is inside of the image. */
INLINE int first_window(window along, int k)
{
    const int before = along.padding - k * along.dilation;
    return before > 0 ? (before + along.stride - 1) / along.stride : 0;
}

/* The window behind the last whose pixel at place k is inside of the image. */
INLINE int end_window(window along, int k)
{
    const int left = along.length + along.padding - k * along.dilation;
    const int end = left > 0 ? (left - 1) / along.stride + 1 : 0;
    return end < along.count ? end : along.count;
}

/* y[n, o, i, j] = bias[o] + Σ x[n, c, s i + d k − p, s j + d l − p] w[o, c, k, l], or if `transposed`
 * y[n, o, s i + d k − p, s j + d l − p] = bias[o] + Σ x[n, c, i, j] w[o, c, k, l]
 * c and O are the channels of x and y in each group. y and x have strides n, c, h, w; w has o, c, k, l. */
KERNEL void convolution(int n, int c, int O, int groups, int transposed, int group_size, window h, window w,
                        float *restrict y, int y0, int y1, int y2, int y3, const float *restrict x, int x0, int x1,
                        int x2, int x3, const float *restrict W, int w0, int w1, int w2, int w3,
                        const float *restrict bias)
{
    const int rows = transposed ? h.length : h.count, columns = transposed ? w.length : w.count;
    for (int o = 0; o < groups * O; o++) {
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < columns; j++)
                for (int m = 0; m < n; m++) y[m * y0 + o * y1 + i * y2 + j * y3] = bias ? bias[o] : 0;
        for (int q = 0; q < c; q++)
            for (int k = 0; k < h.kernel; k++)
                for (int l = 0; l < w.kernel; l++) {
                    const float v = W[o / O * group_size + o % O * w0 + q * w1 + k * w2 + l * w3];
                    const int top = k * h.dilation - h.padding, left = l * w.dilation - w.padding;
                    const int first = first_window(w, l), end = end_window(w, l), last = end_window(h, k);
                    const int y4 = transposed ? w.stride * y3 : y3, x4 = transposed ? x3 : w.stride * x3;
                    for (int i = first_window(h, k); i < last; i++) {
                        const int row = i * h.stride + top;
                        const int to = o * y1 + (transposed ? row * y2 + left * y3 : i * y2);
                        const int from = (o / O * c + q) * x1 + (transposed ? i * x2 : row * x2 + left * x3);
                        for (int j = first; n == 1 && j < end; j++) y[to + j * y4] += v * x[from + j * x4];
                        for (int j = first; n > 1 && j < end; j++)
                            for (int m = 0; m < n; m++) y[to + j * y4 + m * y0] += v * x[from + j * x4 + m * x0];
                    }
                }
    }
}

/* dw[o, c, k, l] = Σ x[n, c, s i + d k − p, s j + d l − p] dy[n, o, i, j], or dw += it */
KERNEL void convolution_weight_grad(int n, int c, int O, int groups, window h, window w, float *restrict dw, int w0,
                                    int w1, int w2, int w3, const float *restrict x, int x0, int x1, int x2, int x3,
                                    const float *restrict dy, int y0, int y1, int y2, int y3, int accumulate)
{
    enum { LANES = 8 };
    for (int o = 0; o < groups * O; o++)
        for (int q = 0; q < c; q++)
            for (int k = 0; k < h.kernel; k++)
                for (int l = 0; l < w.kernel; l++) {
                    float *target = dw + o * w0 + q * w1 + k * w2 + l * w3;
                    float v = accumulate ? *target : 0, sum[LANES] = {0};
                    const int left = l * w.dilation - w.padding, first = first_window(w, l), end = end_window(w, l);
                    const int columns = end > first ? end - first : 0, last = end_window(h, k);
                    const int inner = n < LANES ? columns : n, outer = n < LANES ? n : columns;
                    const int a1 = w.stride * x3, a0 = n < LANES ? a1 : x0, a2 = n < LANES ? x0 : a1;
                    const int b0 = n < LANES ? y3 : y0, b2 = n < LANES ? y0 : y3;
                    for (int i = first_window(h, k); i < last; i++)
                        for (int p = 0; p < outer; p++) {
                            const int row = i * h.stride + k * h.dilation - h.padding;
                            const int from = (o / O * c + q) * x1 + row * x2 + left * x3 + first * a1 + p * a2;
                            const int to = o * y1 + i * y2 + first * y3 + p * b2;
                            int m = 0;
                            for (; m + LANES <= inner; m += LANES)
                                for (int e = 0; e < LANES; e++)
                                    sum[e] += x[from + (m + e) * a0] * dy[to + (m + e) * b0];
                            for (; m < inner; m++) v += x[from + m * a0] * dy[to + m * b0];
                        }
                    for (int e = 0; e < LANES; e++) v += sum[e];
                    *target = v;
                }
}
