#include "kernel.h"

/* x̂ = (x − m) / √(v + ε),  y = x̂ scale + shift. Moments are m and 1 / √(v + ε), and for features v. m is subtracted in
 * two parts, because a float has a large mean only to few digits. */

/* n rows of C numbers; shift may be absent. If not `centered`, m is 0. */
KERNEL void layer_norm(int n, int C, int centered, float eps, float *restrict y, const float *restrict x,
                       const float *restrict scale, const float *restrict shift, double *restrict moments)
{
    for (int i = 0; i < n; i++, x += C, y += C) {
        const float high = centered ? x[0] : 0;
        float low = 0, squares = 0;
        if (centered)
            for (int j = 0; j < C; j++) low += x[j] - high;
        low /= C;
        for (int j = 0; j < C; j++) squares += (x[j] - high - low) * (x[j] - high - low);
        const float inverse = 1 / sqrtf(squares / C + eps);
        moments[i] = (double)high + low;
        moments[n + i] = inverse;
        for (int j = 0; j < C; j++) y[j] = (x[j] - high - low) * inverse * scale[j] + (shift ? shift[j] : 0);
    }
}

/* dx = (g − Σ g / C − x̂ Σ g x̂ / C) / √(v + ε),  g = dy scale. If not `centered`, there is no Σ g / C. */
KERNEL void layer_norm_grad(int n, int C, int centered, float *restrict dx, const float *restrict dy,
                            const float *restrict x, const float *restrict scale, const double *restrict moments)
{
    for (int i = 0; i < n; i++, x += C, dx += C, dy += C) {
        const float high = (float)moments[i], low = (float)(moments[i] - high), inverse = (float)moments[n + i];
        float total = 0, products = 0;
        for (int j = 0; j < C; j++) {
            total += dy[j] * scale[j];
            products += dy[j] * scale[j] * (x[j] - high - low);
        }
        const float mean = centered ? total / C : 0, slope = products / C * inverse * inverse;
        for (int j = 0; j < C; j++) dx[j] = (dy[j] * scale[j] - mean - (x[j] - high - low) * slope) * inverse;
    }
}

/* dscale = Σ dy x̂,  dshift = Σ dy */
KERNEL void layer_norm_sums(int n, int C, float *restrict dscale, float *restrict dshift, const float *restrict dy,
                            const float *restrict x, const double *restrict moments)
{
    for (int j = 0; j < C; j++) dscale[j] = dshift[j] = 0;
    for (int i = 0; i < n; i++, x += C, dy += C) {
        const float high = (float)moments[i], low = (float)(moments[i] - high), inverse = (float)moments[n + i];
        for (int j = 0; j < C; j++) {
            dscale[j] += dy[j] * ((x[j] - high - low) * inverse);
            dshift[j] += dy[j];
        }
    }
}

/* C features, each in `runs` stretches of memory of `run` numbers. */

/* y = x̂ scale + shift with these moments */
KERNEL void batch_norm_fixed(int C, int runs, int run, float *restrict y, const float *restrict x,
                             const float *restrict scale, const float *restrict shift, const double *restrict moments)
{
    for (int r = 0; r < runs; r++)
        for (int c = 0; c < C; c++) {
            const float high = (float)moments[c], low = (float)(moments[c] - high);
            const float factor = (float)moments[C + c] * scale[c];
            for (int i = 0; i < run; i++, x++, y++) *y = (*x - high - low) * factor + shift[c];
        }
}

/* y = x̂ scale + shift with the moments of x */
KERNEL void batch_norm(int C, int runs, int run, float eps, float *restrict y, const float *restrict x,
                       const float *restrict scale, const float *restrict shift, double *restrict moments)
{
    const int count = runs * run;
    for (int c = 0; c < C; c++) {
        const float high = x[c * run];
        float low = 0, squares = 0;
        for (int r = 0; r < runs; r++)
            for (int i = 0; i < run; i++) low += x[(r * C + c) * run + i] - high;
        low /= count;
        for (int r = 0; r < runs; r++)
            for (int i = 0; i < run; i++) {
                const float d = x[(r * C + c) * run + i] - high - low;
                squares += d * d;
            }
        moments[c] = (double)high + low;
        moments[C + c] = 1 / sqrtf(squares / count + eps);
        moments[2 * C + c] = squares / count;
    }
    batch_norm_fixed(C, runs, run, y, x, scale, shift, moments);
}

/* Return Σ dy of a feature, whose first number is dy[0], and in `products` Σ dy (x − m), m = high + low. */
KERNEL float feature_sums(int C, int runs, int run, const float *dy, const float *x, float high, float low,
                          float *products)
{
    float total = 0;
    *products = 0;
    for (int r = 0; r < runs; r++, dy += C * run, x += C * run)
        for (int i = 0; i < run; i++) {
            total += dy[i];
            *products += dy[i] * (x[i] - high - low);
        }
    return total;
}

/* dscale = Σ dy x̂,  dshift = Σ dy,  dx = (dy − dshift / k − x̂ dscale / k) scale / √(v + ε) for k numbers of a feature,
 * and for fixed moments dx = dy scale / √(v + ε) */
KERNEL void batch_norm_grad(int C, int runs, int run, int fixed, float *restrict dx, const float *restrict dy,
                            const float *restrict x, const float *restrict scale, const double *restrict moments,
                            float *restrict dscale, float *restrict dshift)
{
    const int count = runs * run;
    for (int c = 0; c < C; c++) {
        const float high = (float)moments[c], low = (float)(moments[c] - high), inverse = (float)moments[C + c];
        float products;
        const float total = feature_sums(C, runs, run, dy + c * run, x + c * run, high, low, &products);
        dscale[c] = products * inverse;
        dshift[c] = total;
        const float mean = fixed ? 0 : total / count, slope = fixed ? 0 : products / count * inverse * inverse;
        for (int r = 0; r < runs; r++)
            for (int i = 0; i < run; i++) {
                const int at = (r * C + c) * run + i;
                dx[at] = (dy[at] - mean - (x[at] - high - low) * slope) * (inverse * scale[c]);
            }
    }
}

/* sums = Σ dy, and then Σ dy (x − m), of each feature */
KERNEL void batch_norm_sums(int C, int runs, int run, const float *restrict dy, const float *restrict x,
                            const double *restrict moments, double *restrict sums)
{
    for (int c = 0; c < C; c++) {
        const float high = (float)moments[c], low = (float)(moments[c] - high);
        float products;
        const float total = feature_sums(C, runs, run, dy + c * run, x + c * run, high, low, &products);
        sums[c] = total;
        sums[C + c] = products;
    }
}

/* mean ← mean + μ (m − mean),  variance ← variance + μ (v k / (k − 1) − variance), if the moments are finite */
KERNEL void update_moments(int C, int k, float momentum, float *mean, float *variance, const double *moments)
{
    for (int c = 0; c < C; c++) {
        const float m = (float)moments[c], v = (float)moments[2 * C + c] * ((float)k / (k - 1));
        if (m - m == 0 && v - v == 0) {
            mean[c] = (1 - momentum) * mean[c] + momentum * m;
            variance[c] = (1 - momentum) * variance[c] + momentum * v;
        }
    }
}

/* The moments of features with this mean and variance. */
KERNEL void running_moments(int C, float eps, const float *mean, const float *variance, double *moments)
{
    for (int c = 0; c < C; c++) {
        moments[c] = mean[c];
        moments[C + c] = 1 / sqrtf(variance[c] + eps);
        moments[2 * C + c] = variance[c];
    }
}
