#include "kernel.h"

/* Reductions of a (n, k, m) along k, all contiguous. */

/* y[o, i] = scale Σ a[o, k, i], or y += it */
KERNEL void sum(int n, int K, int m, float *restrict y, const float *restrict a, float scale, int accumulate)
{
    enum { LANES = 8 };
    if (m == 1) {
        const int whole = K / LANES * LANES;
        for (int o = 0; o < n; o++, a += K) {
            float lanes[LANES] = {0}, total = 0;
            for (int k = 0; k < whole; k += LANES)
                for (int c = 0; c < LANES; c++) lanes[c] += a[k + c];
            for (int k = whole; k < K; k++) total += a[k];
            for (int c = 0; c < LANES; c++) total += lanes[c];
            y[o] = scale * total + (accumulate ? y[o] : 0);
        }
        return;
    }
    for (int o = 0; o < n; o++, y += m)
        for (int k = 0; k < K; k++, a += m)
            for (int i = 0; i < m; i++) y[i] = (k > 0 || accumulate ? y[i] : 0) + scale * a[i];
}

/* y[o, i] = the largest sign · a[o, k, i], times sign;  first[o, i] = the first such k. NaN is the largest. */
KERNEL void extreme(int n, int K, int m, float *restrict y, int32_t *restrict first, const float *restrict a,
                    float sign)
{
    for (int o = 0; o < n; o++)
        for (int i = 0; i < m; i++) {
            const float *x = a + o * K * m + i;
            int at = 0;
            for (int k = 1; k < K; k++)
                if (sign * x[k * m] > sign * x[at * m] || (x[k * m] != x[k * m] && x[at * m] == x[at * m]))
                    at = k;
            first[o * m + i] = at;
            y[o * m + i] = x[at * m];
        }
}

/* dx[o, k, i] = dy[o, i] at k = first[o, i], else 0 */
KERNEL void extreme_grad(int n, int K, int m, float *restrict dx, const float *restrict dy,
                         const int32_t *restrict first)
{
    for (int o = 0; o < n; o++)
        for (int k = 0; k < K; k++)
            for (int i = 0; i < m; i++) dx[(o * K + k) * m + i] = first[o * m + i] == k ? dy[o * m + i] : 0;
}

/* y[o, k, i] = a[o, 0, i] + … + a[o, k, i], or from the end */
KERNEL void cumsum(int n, int K, int m, int reverse, float *restrict y, const float *restrict a)
{
    for (int o = 0; o < n; o++)
        for (int i = 0; i < m; i++) {
            float total = 0;
            for (int k = 0; k < K; k++) {
                const int at = (o * K + (reverse ? K - 1 - k : k)) * m + i;
                y[at] = total += a[at];
            }
        }
}

/* y[o, i] = Π a[o, k, i] */
KERNEL void prod(int n, int K, int m, float *restrict y, const float *restrict a)
{
    for (int o = 0; o < n; o++)
        for (int i = 0; i < m; i++) {
            double product = 1;
            for (int k = 0; k < K; k++) product *= a[(o * K + k) * m + i];
            y[o * m + i] = (float)product;
        }
}

/* dx[o, k, i] = dy[o, i] times the product of all a[o, …, i] but a[o, k, i] */
KERNEL void prod_grad(int n, int K, int m, float *restrict dx, const float *restrict dy, const float *restrict a)
{
    for (int o = 0; o < n; o++)
        for (int i = 0; i < m; i++)
            for (int k = 0; k < K; k++) {
                double product = dy[o * m + i];
                for (int l = 0; l < K; l++) product *= l == k ? 1 : a[(o * K + l) * m + i];
                dx[(o * K + k) * m + i] = (float)product;
            }
}

/* The mean of n numbers, `stride` apart. */
KERNEL float mean(int n, const float *a, int stride)
{
    float total = 0;
    for (int k = 0; k < n; k++) total += a[k * stride] - a[0];
    return a[0] + total / n;
}

/* y[o, i] = scale Σ (a[o, k, i] − m[o, i])², m the means */
KERNEL void variance(int n, int K, int m, float *restrict y, const float *restrict a, float scale)
{
    for (int o = 0; o < n; o++)
        for (int i = 0; i < m; i++) {
            const float *x = a + o * K * m + i, center = mean(K, x, m);
            float total = 0;
            for (int k = 0; k < K; k++) total += (x[k * m] - center) * (x[k * m] - center);
            y[o * m + i] = scale * total;
        }
}

/* dx[o, k, i] = dy[o, i] 2 scale (a[o, k, i] − m[o, i]) */
KERNEL void variance_grad(int n, int K, int m, float *restrict dx, const float *restrict dy, const float *restrict a,
                          float scale)
{
    for (int o = 0; o < n; o++)
        for (int i = 0; i < m; i++) {
            const float *x = a + o * K * m + i, center = mean(K, x, m);
            for (int k = 0; k < K; k++) dx[(o * K + k) * m + i] = dy[o * m + i] * (2 * scale) * (x[k * m] - center);
        }
}

/* The largest of n numbers, `stride` apart, or 0 if that is infinite. */
KERNEL float finite_largest(int n, const float *a, int stride)
{
    float largest = a[0];
    for (int k = 1; k < n; k++) largest = a[k * stride] > largest ? a[k * stride] : largest;
    return largest - largest == 0 ? largest : 0;
}

/* y[o, i] = log Σ exp a[o, k, i] */
KERNEL void logsumexp(int n, int K, int m, float *restrict y, const float *restrict a)
{
    for (int o = 0; o < n; o++)
        for (int i = 0; i < m; i++) {
            const float *x = a + o * K * m + i, largest = finite_largest(K, x, m);
            float total = 0;
            for (int k = 0; k < K; k++) total += expf(x[k * m] - largest);
            y[o * m + i] = largest + logf(total);
        }
}

/* dx[o, k, i] = dy[o, i] exp a[o, k, i] / Σ exp a[o, k, i] */
KERNEL void logsumexp_grad(int n, int K, int m, float *restrict dx, const float *restrict dy, const float *restrict a)
{
    for (int o = 0; o < n; o++)
        for (int i = 0; i < m; i++) {
            const float *x = a + o * K * m + i, largest = finite_largest(K, x, m);
            float total = 0;
            for (int k = 0; k < K; k++) total += expf(x[k * m] - largest);
            for (int k = 0; k < K; k++) dx[(o * K + k) * m + i] = dy[o * m + i] * expf(x[k * m] - largest) / total;
        }
}

/* Return whether n numbers are finite. */
KERNEL int all_finite(int n, const float *x)
{
    int good = 1;
    for (int i = 0; i < n; i++) good &= x[i] - x[i] == 0;
    return good;
}
