#include "kernel.h"

/* The windows of images along one axis: `count` windows of `kernel` pixels, in an image of `length` pixels. */
typedef struct {
    int length, count, kernel, stride, padding, dilation;
} window;

/* The pixel at place k of window i, or −1 if it is outside of the image. */
KERNEL int pixel(window along, int i, int k)
{
    const int at = i * along.stride + k * along.dilation - along.padding;
    return at >= 0 && at < along.length ? at : -1;
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
                    for (int i = 0; i < h.count; i++) {
                        const int row = pixel(h, i, k);
                        if (row < 0)
                            continue;
                        float *to = y + o * y1 + (transposed ? row : i) * y2;
                        const float *from = x + (o / O * c + q) * x1 + (transposed ? i : row) * x2;
                        for (int j = 0; j < w.count; j++) {
                            const int column = pixel(w, j, l);
                            for (int m = 0; column >= 0 && m < n; m++)
                                to[m * y0 + (transposed ? column : j) * y3] +=
                                    v * from[m * x0 + (transposed ? j : column) * x3];
                        }
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
                    float *to = dw + o * w0 + q * w1 + k * w2 + l * w3, v = accumulate ? *to : 0, sum[LANES] = {0};
                    for (int i = 0; i < h.count; i++) {
                        const int row = pixel(h, i, k);
                        for (int j = 0; row >= 0 && j < w.count; j++) {
                            const int column = pixel(w, j, l);
                            if (column < 0)
                                continue;
                            const float *a = x + (o / O * c + q) * x1 + row * x2 + column * x3;
                            const float *b = dy + o * y1 + i * y2 + j * y3;
                            int m = 0;
                            for (; m + LANES <= n; m += LANES)
                                for (int e = 0; e < LANES; e++) sum[e] += a[(m + e) * x0] * b[(m + e) * y0];
                            for (; m < n; m++) v += a[m * x0] * b[m * y0];
                        }
                    }
                    for (int e = 0; e < LANES; e++) v += sum[e];
                    *to = v;
                }
}
