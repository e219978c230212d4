#include "convolution.c"

/* Images are (O, H, W, lanes) with strides of O, H and W. */

/* y = the largest pixel of each window, or NaN if it has one;  places = its number in the image */
KERNEL void max_pool(int lanes, int O, window h, window w, float *restrict y, int y0, int y1, int y2,
                     int32_t *restrict places, const float *restrict x, int x0, int x1, int x2)
{
    for (int o = 0; o < O; o++)
        for (int i = 0; i < h.count; i++)
            for (int j = 0; j < w.count; j++) {
                const int top = i * h.stride - h.padding, left = j * w.stride - w.padding;
                const int to = o * y0 + i * y1 + j * y2;
                int is_first = 1;
                for (int row = top < 0 ? 0 : top; row < top + h.kernel && row < h.length; row++)
                    for (int column = left < 0 ? 0 : left; column < left + w.kernel && column < w.length; column++) {
                        const float *from = x + o * x0 + row * x1 + column * x2;
                        for (int n = 0; n < lanes; n++) {
                            const int is_larger =
                                is_first || from[n] > y[to + n] || (from[n] != from[n] && y[to + n] == y[to + n]);
                            y[to + n] = is_larger ? from[n] : y[to + n];
                            places[to + n] = is_larger ? row * w.length + column : places[to + n];
                        }
                        is_first = 0;
                    }
            }
}

/* dx = Σ dy over the windows whose largest pixel this is; places and dy have one layout */
KERNEL void max_pool_grad(int lanes, int O, window h, window w, float *restrict dx, int x0, int x1, int x2,
                          const float *restrict dy, int y0, int y1, int y2, const int32_t *restrict places, int p0,
                          int p1, int p2)
{
    for (int o = 0; o < O; o++) {
        for (int row = 0; row < h.length; row++)
            for (int column = 0; column < w.length; column++)
                for (int n = 0; n < lanes; n++) dx[o * x0 + row * x1 + column * x2 + n] = 0;
        for (int i = 0; i < h.count; i++)
            for (int j = 0; j < w.count; j++)
                for (int n = 0; n < lanes; n++) {
                    const int place = places[o * p0 + i * p1 + j * p2 + n];
                    dx[o * x0 + place / w.length * x1 + place % w.length * x2 + n] += dy[o * y0 + i * y1 + j * y2 + n];
                }
    }
}

/* y = factor Σ x over each window */
KERNEL void average_pool(int lanes, int O, window h, window w, float factor, float *restrict y, int y0, int y1, int y2,
                         const float *restrict x, int x0, int x1, int x2)
{
    for (int o = 0; o < O; o++)
        for (int i = 0; i < h.count; i++)
            for (int j = 0; j < w.count; j++) {
                const int top = i * h.stride - h.padding, left = j * w.stride - w.padding;
                float *to = y + o * y0 + i * y1 + j * y2;
                for (int n = 0; n < lanes; n++) to[n] = 0;
                for (int row = top < 0 ? 0 : top; row < top + h.kernel && row < h.length; row++)
                    for (int column = left < 0 ? 0 : left; column < left + w.kernel && column < w.length; column++)
                        for (int n = 0; n < lanes; n++) to[n] += x[o * x0 + row * x1 + column * x2 + n];
                for (int n = 0; n < lanes; n++) to[n] *= factor;
            }
}

/* dx = factor Σ dy over the windows that cover the pixel */
KERNEL void average_pool_grad(int lanes, int O, window h, window w, float factor, float *restrict dx, int x0, int x1,
                              int x2, const float *restrict dy, int y0, int y1, int y2)
{
    for (int o = 0; o < O; o++) {
        for (int row = 0; row < h.length; row++)
            for (int column = 0; column < w.length; column++)
                for (int n = 0; n < lanes; n++) dx[o * x0 + row * x1 + column * x2 + n] = 0;
        for (int i = 0; i < h.count; i++)
            for (int j = 0; j < w.count; j++) {
                const int top = i * h.stride - h.padding, left = j * w.stride - w.padding;
                const float *from = dy + o * y0 + i * y1 + j * y2;
                for (int row = top < 0 ? 0 : top; row < top + h.kernel && row < h.length; row++)
                    for (int column = left < 0 ? 0 : left; column < left + w.kernel && column < w.length; column++)
                        for (int n = 0; n < lanes; n++) dx[o * x0 + row * x1 + column * x2 + n] += factor * from[n];
            }
    }
}
