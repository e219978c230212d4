#include "matmul.c"
#include "random.c"

/* p = softmax(q kᵀ scale),  y = p v, for each of H heads of d neighbouring columns. If causal, the L queries are the
 * last of the S positions, and see no later keys. norms are the largest score of each query, and 1 / Σ exp. */

/* Return whether a query sees a key. The mask has strides of rows, queries and keys. */
KERNEL int sees(int causal, int L, int S, int i, int l, int j, const uint8_t *mask, int m0, int m1, int m2)
{
    return (!causal || j <= S - L + l) && (!mask || mask[i * m0 + l * m1 + j * m2]);
}

/* The factor of dropout for a weight: tiles of 16 keys and 8 queries share the bits of a group. */
KERNEL float keep_weight(int L, int S, uint64_t head, int l, int j, uint32_t limit, float keep, const uint64_t *drawn)
{
    const uint64_t columns = (L + 7) / 8, tiles = columns * ((S + 15) / 16);
    const uint64_t group = head * tiles + (uint64_t)(j / 16) * columns + l / 8;
    const int at = j % 16 * 8 + l % 8;
    uint32_t words[4];
    philox(words, drawn, group * 16 + at % 16);
    const uint32_t word = words[at % 64 / 16];
    return (at < 64 ? word & 0xFFFF : word >> 16) >= limit ? keep : 0;
}

/* s = p without dropout for a query, with the largest score m and the inverse of Σ exp; all 0 if it sees no key */
KERNEL void weights(int S, int d, float scale, float *restrict s, const float *q, const float *k, int k1, int causal,
                    int L, int i, int l, const uint8_t *mask, int m0, int m1, int m2, float *m, float *inverse)
{
    float largest = -INFINITY, total = 0;
    for (int j = 0; j < S; j++) {
        const int seen = sees(causal, L, S, i, l, j, mask, m0, m1, m2);
        s[j] = seen ? dot(d, q, k + j * k1) * scale : -INFINITY;
        largest = s[j] > largest || s[j] != s[j] ? s[j] : largest;
    }
    for (int j = 0; j < S; j++) total += s[j] = s[j] == -INFINITY ? 0 : expf(s[j] - largest);
    *m = largest == -INFINITY ? 0 : largest;
    *inverse = total == 0 ? 0 : 1 / total;
    for (int j = 0; j < S; j++) s[j] *= *inverse;
}

KERNEL void attention(int n, int H, int L, int S, int d, int causal, float scale, uint64_t first, uint32_t limit,
                      float keep, float *restrict y, const float *restrict q, int q0, int q1, const float *restrict k,
                      int k0, int k1, const float *restrict v, int v0, int v1, float *restrict norms,
                      const uint8_t *mask, int m0, int m1, int m2, const uint64_t *drawn, float *restrict s)
{
    for (int i = 0; i < n; i++)
        for (int h = 0; h < H; h++)
            for (int l = 0; l < L; l++) {
                float *to = y + ((i * L + l) * H + h) * d;
                const int row = (i * H + h) * L + l;
                weights(S, d, scale, s, q + i * q0 + l * q1 + h * d, k + i * k0 + h * d, k1, causal, L, i, l, mask, m0,
                        m1, m2, norms + row, norms + n * H * L + row);
                for (int c = 0; c < d; c++) to[c] = 0;
                for (int j = 0; j < S; j++) {
                    const float kept = drawn ? keep_weight(L, S, first + i * H + h, l, j, limit, keep, drawn) : 1;
                    const float p = s[j] * kept;
                    for (int c = 0; c < d; c++) to[c] += p * v[i * v0 + j * v1 + h * d + c];
                }
            }
}

/* dv = pᵀ dy,  ds = p (dy vᵀ − dy · y) scale,  dq = ds k,  dk = dsᵀ q */
KERNEL void attention_grad(int n, int H, int L, int S, int d, int causal, float scale, uint64_t first, uint32_t limit,
                           float keep, float *restrict dq, float *restrict dk, float *restrict dv,
                           const float *restrict dy, int y0, int y1, const float *restrict q, int q0, int q1,
                           const float *restrict k, int k0, int k1, const float *restrict v, int v0, int v1,
                           const float *restrict y, const uint8_t *mask, int m0, int m1, int m2, const uint64_t *drawn,
                           float *restrict s)
{
    for (int i = 0; i < n * S * H * d; i++) dk[i] = dv[i] = 0;
    for (int i = 0; i < n; i++)
        for (int h = 0; h < H; h++)
            for (int l = 0; l < L; l++) {
                const int row = ((i * L + l) * H + h) * d;
                const float *ql = q + i * q0 + l * q1 + h * d, *dyl = dy + i * y0 + l * y1 + h * d;
                const float own = dot(d, dyl, y + row);
                float m, inverse;
                weights(S, d, scale, s, ql, k + i * k0 + h * d, k1, causal, L, i, l, mask, m0, m1, m2, &m, &inverse);
                for (int c = 0; c < d; c++) dq[row + c] = 0;
                for (int j = 0; j < S; j++) {
                    const float *kj = k + i * k0 + j * k1 + h * d, *vj = v + i * v0 + j * v1 + h * d;
                    const int to = ((i * S + j) * H + h) * d;
                    const float kept = drawn ? keep_weight(L, S, first + i * H + h, l, j, limit, keep, drawn) : 1;
                    const float dp = dot(d, dyl, vj);
                    const float p = s[j] * kept, ds = s[j] * (dp * kept - own) * scale;
                    for (int c = 0; c < d; c++) {
                        dq[row + c] += ds * kj[c];
                        dk[to + c] += ds * ql[c];
                        dv[to + c] += p * dyl[c];
                    }
                }
            }
}

/* Turn each pair of columns 2i, 2i + 1 of a head; turns has cos and sin of the angles, by position and pair. */
KERNEL void rotary(int n, int T, int H, int d, float *restrict y, const float *restrict turns, const float *restrict x,
                   int x0, int x1)
{
    for (int i = 0; i < n; i++)
        for (int t = 0; t < T; t++)
            for (int h = 0; h < H; h++)
                for (int j = 0; j < d; j += 2) {
                    const float *from = x + i * x0 + t * x1 + h * d + j, c = turns[t * d + j], s = turns[t * d + j + 1];
                    float *to = y + ((i * T + t) * H + h) * d + j;
                    to[0] = from[0] * c - from[1] * s;
                    to[1] = from[0] * s + from[1] * c;
                }
}
