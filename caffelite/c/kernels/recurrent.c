#include "kernel.h"

/* Recurrences: n rows, T steps, H hidden units, G gates of H units each (RNN 1, GRU 3, LSTM 4). Their inputs from x
 * become the gates. `w` (H, G H) are the weights of the state, `inputs` (n, G H) is memory. If reversed, the first step
 * reads a row's last element. All results are 0 from a row's length on. */

KERNEL float squash(float x) { return 1 / (1 + expf(-x)); }

/* The number of steps of a row. */
KERNEL int row_length(int T, int i, const int32_t *lengths)
{
    return !lengths ? T : lengths[i] < 0 ? 0 : lengths[i] > T ? T : lengths[i];
}

/* The element that a step of a row reads. */
KERNEL int element(int T, int reverse, int i, int t, int length) { return i * T + (reverse ? length - 1 - t : t); }

/* One step of a row, from the gates' inputs from x and from the state; h is the state, `before` and c the cells. */
KERNEL void state(int H, int G, float *h, float *gates, float *beside, const float *inputs, const float *before)
{
    for (int j = 0; j < H; j++)
        if (G == 1) {
            h[j] = gates[j] = tanhf(gates[j] + inputs[j]);
        } else if (G == 3) {
            const float r = squash(gates[j] + inputs[j]), z = squash(gates[H + j] + inputs[H + j]);
            const float new = tanhf(gates[2 * H + j] + r * inputs[2 * H + j]);
            beside[j] = inputs[2 * H + j];
            gates[j] = r;
            gates[H + j] = z;
            gates[2 * H + j] = new;
            h[j] = new + z * (h[j] - new);
        } else {
            const float i = squash(gates[j] + inputs[j]), f = squash(gates[H + j] + inputs[H + j]);
            const float g = tanhf(gates[2 * H + j] + inputs[2 * H + j]),
                        o = squash(gates[3 * H + j] + inputs[3 * H + j]);
            gates[j] = i;
            gates[H + j] = f;
            gates[2 * H + j] = g;
            gates[3 * H + j] = o;
            beside[j] = f * before[j] + i * g;
            h[j] = o * tanhf(beside[j]);
        }
}

KERNEL void recurrence(int n, int T, int H, int G, int reverse, float *gates, float *previous, float *last, float *y,
                       const float *w, const float *bias, const float *first, const int32_t *lengths, float *beside,
                       const float *first_cell, float *last_cell, float *inputs)
{
    for (int i = 0; i < n; i++) {
        const int length = row_length(T, i, lengths);
        const float *before = G == 4 ? first_cell + i * H : NULL;
        float *h = last + i * H, *in = inputs + i * G * H;
        for (int j = 0; j < H; j++) h[j] = first[i * H + j];
        for (int t = 0; t < T; t++) {
            const int at = t < length ? element(T, reverse, i, t, length) : i * T + t;
            for (int j = 0; j < G * H; j++) {
                in[j] = bias[j];
                if (t >= length)
                    gates[at * G * H + j] = 0;
            }
            for (int j = 0; j < H; j++) {
                previous[at * H + j] = t < length ? h[j] : 0;
                if (y && t >= length)
                    y[at * H + j] = 0;
                if (beside && t >= length)
                    beside[at * H + j] = 0;
            }
            if (t >= length)
                continue;
            for (int k = 0; k < H; k++)
                for (int j = 0; j < G * H; j++) in[j] += h[k] * w[k * G * H + j];
            state(H, G, h, gates + at * G * H, beside ? beside + at * H : NULL, in, before);
            before = G == 4 ? beside + at * H : NULL;
            for (int j = 0; y && j < H; j++) y[at * H + j] = h[j];
        }
        for (int j = 0; G == 4 && j < H; j++) last_cell[i * H + j] = before[j];
    }
}

/* The gradients of the gates' inputs from the state, d. dh and dc become what reaches the state before. */
KERNEL void state_grad(int H, int G, float *d, float *dgates, float *dh, float *dc, const float *gates,
                       const float *beside, const float *before)
{
    for (int j = 0; j < H; j++)
        if (G == 1) {
            d[j] = dgates[j] = dh[j] * (1 - gates[j] * gates[j]);
            dh[j] = 0;
        } else if (G == 3) {
            const float r = gates[j], z = gates[H + j], new = gates[2 * H + j];
            const float dn = dh[j] * (1 - z) * (1 - new * new);
            d[H + j] = dgates[H + j] = dh[j] * (before[j] - new) * z * (1 - z);
            d[2 * H + j] = dn * r;
            dgates[2 * H + j] = dn;
            d[j] = dgates[j] = dn * beside[j] * r * (1 - r);
            dh[j] *= z;
        } else {
            const float i = gates[j], f = gates[H + j], g = gates[2 * H + j], o = gates[3 * H + j],
                        u = tanhf(beside[j]);
            d[3 * H + j] = dgates[3 * H + j] = dh[j] * u * o * (1 - o);
            dc[j] += dh[j] * o * (1 - u * u);
            d[j] = dgates[j] = dc[j] * g * i * (1 - i);
            d[2 * H + j] = dgates[2 * H + j] = dc[j] * i * (1 - g * g);
            d[H + j] = dgates[H + j] = dc[j] * before[j] * f * (1 - f);
            dc[j] *= f;
            dh[j] = 0;
        }
}

/* dh is first of the last state, and then of the first, and so is dc of the cells; `w` is (G H, H). */
KERNEL void recurrence_grad(int n, int T, int H, int G, int reverse, float *dgates, float *dh, const float *gates,
                            const float *w, const float *dy, const int32_t *lengths, const float *beside, float *dc,
                            const float *first_cell, float *dbeside, const float *previous, float *dinputs)
{
    for (int i = 0; i < n; i++) {
        const int length = row_length(T, i, lengths);
        float *d = dinputs + i * G * H, *dhi = dh + i * H;
        for (int t = T - 1; t >= 0; t--) {
            const int at = t < length ? element(T, reverse, i, t, length) : i * T + t;
            if (t >= length) {
                for (int j = 0; j < G * H; j++) dgates[at * G * H + j] = 0;
                for (int j = 0; dbeside && j < H; j++) dbeside[at * H + j] = 0;
                continue;
            }
            for (int j = 0; dy && j < H; j++) dhi[j] += dy[at * H + j];
            const float *before = NULL;
            if (G == 3)
                before = previous + at * H;
            if (G == 4)
                before = t > 0 ? beside + element(T, reverse, i, t - 1, length) * H : first_cell + i * H;
            state_grad(H, G, d, dgates + at * G * H, dhi, G == 4 ? dc + i * H : NULL, gates + at * G * H,
                       beside ? beside + at * H : NULL, before);
            for (int j = 0; G == 3 && j < H; j++) dbeside[at * H + j] = d[2 * H + j];
            for (int k = 0; k < G * H; k++)
                for (int j = 0; j < H; j++) dhi[j] += d[k] * w[k * H + j];
        }
    }
}

/* y = x, and 0 from a row's length on; return whether all lengths are in 1 … T. */
KERNEL int cut(int n, int T, int width, float *restrict y, const float *restrict x, const int32_t *restrict lengths)
{
    for (int i = 0; i < n; i++) {
        if (lengths[i] < 1 || lengths[i] > T)
            return 0;
        for (int j = 0; j < T * width; j++) y[i * T * width + j] = j < lengths[i] * width ? x[i * T * width + j] : 0;
    }
    return 1;
}
