#include "kernel.h"

/* Tables: n rows of k numbers x, NAN if one is missing, and of m codes of categories. `starts` says where the rows or
 * edges of each column begin. */

/* A number so small that its square is finite. */
KERNEL double with_square(double q) { return q < -1e150 ? -1e150 : q > 1e150 ? 1e150 : q; }

/* y = z / √(1 + (z / limit)²), z = (x − center) / scale, and 0 for NAN; then 1 for each gap, else 0 */
KERNEL void standardize(int n, int k, int g, double limit, float *restrict y, const double *restrict x,
                        const double *restrict center, const double *restrict scale, const int32_t *restrict gaps)
{
    for (int i = 0; i < n; i++, x += k, y += k + g) {
        for (int j = 0; j < k; j++) {
            const double z = x[j] == x[j] ? (x[j] - center[j]) / scale[j] : 0, q = with_square(z / limit);
            y[j] = (float)(isinf(limit) ? z : limit * (q / sqrt(1 + q * q)));
        }
        for (int j = 0; j < g; j++) y[k + j] = x[gaps[j]] != x[gaps[j]];
    }
}

/* dx = dy / scale (1 + (z / limit)²)^(−3/2), and 0 for NAN */
KERNEL void standardize_grad(int n, int k, int g, double limit, double *restrict dx, const double *restrict x,
                             const double *restrict center, const double *restrict scale, const float *restrict dy)
{
    for (int i = 0; i < n; i++, x += k, dx += k, dy += k + g)
        for (int j = 0; j < k; j++) {
            const double s = with_square((x[j] - center[j]) / scale[j] / limit), q = 1 + s * s;
            dx[j] = x[j] == x[j] ? dy[j] / (scale[j] * q * sqrt(q)) : 0;
        }
}

/* The share of each bin that is below x; a column has a bin between each two of its edges. */
KERNEL void piecewise(int n, int k, int bins, float *restrict y, const double *restrict x, const double *restrict edges,
                      const int32_t *restrict starts)
{
    for (int i = 0; i < n; i++, x += k, y += bins)
        for (int j = 0; j < k; j++)
            for (int t = starts[j]; t < starts[j + 1] - 1; t++) {
                const double share = (x[j] - edges[t]) / (edges[t + 1] - edges[t]);
                y[t - j] = (float)(share > 0 ? share < 1 ? share : 1 : 0);
            }
}

/* dx = dy / the width of the bin that x is in, if any */
KERNEL void piecewise_grad(int n, int k, int bins, double *restrict dx, const double *restrict x,
                           const double *restrict edges, const int32_t *restrict starts, const float *restrict dy)
{
    for (int i = 0; i < n; i++, x += k, dx += k, dy += bins)
        for (int j = 0; j < k; j++) {
            dx[j] = 0;
            for (int t = starts[j]; t < starts[j + 1] - 1; t++)
                if (edges[t] <= x[j] && x[j] < edges[t + 1])
                    dx[j] = dy[t - j] / (edges[t + 1] - edges[t]);
        }
}

/* The place i + f of each number between the edges i and i + 1 of its column; NAN comes after the last edge. */
KERNEL void find_places(int n, int k, float *restrict y, const double *restrict x, const double *restrict edges,
                        const int32_t *restrict starts)
{
    for (int i = 0; i < n; i++, x += k, y += k)
        for (int j = 0; j < k; j++) {
            const double *e = edges + starts[j];
            const int last = starts[j + 1] - starts[j] - 1;
            int t = 0;
            while (t + 1 < last && e[t + 1] <= x[j]) t++;
            const double share = last ? (x[j] - e[t]) / (e[t + 1] - e[t]) : 0;
            y[j] = (float)(x[j] != x[j] ? last + 1 : t + (share > 0 ? share < 1 ? share : 1 : 0));
        }
}

/* Return whether the codes are rows of their columns, which begin at `starts`. */
KERNEL int are_codes(int n, int m, const int32_t *codes, const int32_t *starts)
{
    int good = 1;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) good &= codes[i * m + j] >= 0 && codes[i * m + j] < starts[j + 1] - starts[j];
    return good;
}

/* y = bias + the rows of the table (rows, w) around each place, and the row of each code */
KERNEL int splines(int n, int k, int m, int w, float *restrict y, const float *restrict places,
                   const int32_t *restrict codes, const float *restrict table, const int32_t *restrict starts,
                   const float *restrict bias)
{
    if (!are_codes(n, m, codes, starts + k))
        return 0;
    for (int i = 0; i < n; i++, y += w) {
        for (int c = 0; c < w; c++) y[c] = bias[c];
        for (int j = 0; j < k; j++) {
            const int row = (int)places[i * k + j];
            const float f = places[i * k + j] - row, *t = table + (starts[j] + row) * w, *u = f == 0 ? t : t + w;
            for (int c = 0; c < w; c++) y[c] += t[c] + f * (u[c] - t[c]);
        }
        for (int j = 0; j < m; j++)
            for (int c = 0; c < w; c++) y[c] += table[(starts[k + j] + codes[i * m + j]) * w + c];
    }
    return 1;
}

/* The gradient of the table: each dy is added to the rows that its y was made of. */
KERNEL int splines_grad(int n, int k, int m, int w, float *restrict dtable, const float *restrict dy,
                        const float *restrict places, const int32_t *restrict codes, const int32_t *restrict starts)
{
    if (!are_codes(n, m, codes, starts + k))
        return 0;
    for (int i = 0; i < starts[k + m] * w; i++) dtable[i] = 0;
    for (int i = 0; i < n; i++, dy += w)
        for (int j = 0; j < k + m; j++) {
            const int row = j < k ? (int)places[i * k + j] : codes[i * m + j - k];
            const float f = j < k ? places[i * k + j] - row : 0;
            float *t = dtable + (starts[j] + row) * w;
            for (int c = 0; c < w; c++) {
                t[c] += dy[c] - f * dy[c];
                if (f != 0)
                    t[w + c] += f * dy[c];
            }
        }
    return 1;
}

/* dx = the slope at x times dy: 0 beyond the edges, and for NAN */
KERNEL void splines_input_grad(int n, int k, int w, double *restrict dx, const float *restrict dy,
                               const float *restrict places, const float *restrict table,
                               const int32_t *restrict starts, const double *restrict edges,
                               const int32_t *restrict edge_starts)
{
    for (int i = 0; i < n; i++, dy += w)
        for (int j = 0; j < k; j++) {
            const int row = (int)places[i * k + j], first = edge_starts[j] + row;
            const float *t = table + (starts[j] + row) * w;
            double total = 0;
            if (places[i * k + j] > 0 && first + 1 < edge_starts[j + 1]) {
                for (int c = 0; c < w; c++) total += (double)(t[w + c] - t[c]) * dy[c];
                total /= edges[first + 1] - edges[first];
            }
            dx[i * k + j] = total;
        }
}

/* The table of each column: T[0] = s z[0] v,  T[i + 1] = T[i] + s (a[i] + (z[i + 1] − z[i]) v), and s a for a missing
 * number, or for each category */
KERNEL void spline_table(int k, int m, int w, float *restrict table, const float *restrict a, const float *restrict v,
                         const float *restrict s, const double *restrict z, const int32_t *restrict starts)
{
    for (int j = 0; j < k + m; j++) {
        const int first = starts[j], last = j < k ? starts[j + 1] - 1 : first;
        for (int c = 0; j < k && c < w; c++) table[(first + j) * w + c] = s[j] * ((float)z[first] * v[j * w + c]);
        for (int i = first; i < last; i++)
            for (int c = 0; c < w; c++)
                table[(i + 1 + j) * w + c] =
                    table[(i + j) * w + c] + s[j] * (a[i * w + c] + (float)(z[i + 1] - z[i]) * v[j * w + c]);
        for (int i = last; i < starts[j + 1]; i++)
            for (int c = 0; c < w; c++) table[(i + (j < k ? j + 1 : k)) * w + c] = s[j] * a[i * w + c];
    }
}

/* The gradients of `spline_table`; ds[j] is the sum of a row of dscale. */
KERNEL void spline_table_grad(int k, int m, int w, float *restrict da, float *restrict dv, float *restrict dscale,
                              const float *restrict dtable, const float *restrict a, const float *restrict v,
                              const float *restrict s, const double *restrict z, const int32_t *restrict starts)
{
    for (int j = 0; j < k + m; j++) {
        const int first = starts[j], last = j < k ? starts[j + 1] - 1 : first;
        for (int c = 0; c < w; c++) {
            float sum = 0, dv_sum = 0, ds = 0;
            for (int i = last - 1; i >= first; i--) {
                const float dz = (float)(z[i + 1] - z[i]);
                sum += dtable[(i + 1 + j) * w + c];
                dv_sum += dz * sum;
                ds += (a[i * w + c] + dz * v[j * w + c]) * sum;
                da[i * w + c] = s[j] * sum;
            }
            if (j < k) {
                const float dfirst = (float)z[first] * (sum + dtable[(first + j) * w + c]);
                dv[j * w + c] = s[j] * (dv_sum + dfirst);
                ds += v[j * w + c] * dfirst;
            }
            for (int i = last; i < starts[j + 1]; i++) {
                const float dt = dtable[(i + (j < k ? j + 1 : k)) * w + c];
                da[i * w + c] = s[j] * dt;
                ds += a[i * w + c] * dt;
            }
            dscale[j * w + c] = ds;
        }
    }
}
