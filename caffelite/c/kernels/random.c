#include "kernel.h"

/* Random bits as a function of a seed, a step and a number: Philox4x32-10 (J. Salmon and others, SC 2011). */

/* The four words of a counter. */
KERNEL void philox(uint32_t words[4], const uint64_t *drawn, uint64_t counter)
{
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)drawn[1], c3 = (uint32_t)(drawn[1] >> 32);
    uint32_t key0 = (uint32_t)drawn[0], key1 = (uint32_t)(drawn[0] >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t product0 = (uint64_t)c0 * 0xD2511F53u, product2 = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(product2 >> 32) ^ c1 ^ key0;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ key1;
        c1 = (uint32_t)product2;
        c3 = (uint32_t)product0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* bits[0 … 127], each of 16 bits, of a group. The words of 16 counters come word by word, first their low halves. */
KERNEL void draw_bits(uint32_t bits[128], const uint64_t *drawn, uint64_t group)
{
    for (int i = 0; i < 16; i++) {
        uint32_t words[4];
        philox(words, drawn, group * 16 + i);
        for (int w = 0; w < 4; w++) {
            bits[16 * w + i] = words[w] & 0xFFFF;
            bits[64 + 16 * w + i] = words[w] >> 16;
        }
    }
}

/* drawn = random = (seed, step), and then step ← step + 1 */
KERNEL void next_draw(uint64_t *drawn, uint64_t *random)
{
    drawn[0] = random[0];
    drawn[1] = random[1];
    random[1] += 1;
}

/* y = scale x if the 16 bits drawn for an element are at least `limit`, else 0 x; elements are numbered from `first` on */
KERNEL void dropout(int n, uint64_t first, uint32_t limit, float scale, float *y, const float *x, const uint64_t *drawn)
{
    uint32_t bits[128];
    for (int i = 0; i < n; i++) {
        const int at = (int)((first + i) % 128);
        if (i == 0 || at == 0)
            draw_bits(bits, drawn, (first + i) / 128);
        y[i] = x[i] * (bits[at] >= limit ? scale : 0);
    }
}
