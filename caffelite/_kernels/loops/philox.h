/* Philox4x32-10 on whole vectors of counters (J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy
 * as 1, 2, 3", SC 2011): four words of 32 bits, as a function of a counter of 128 bits and a key of 64.
 *
 * Each word is in the lower half of 64 bits, and the upper half holds anything. One instruction then multiplies the
 * lower halves. GCC does not find this instruction in other code.
 */
#ifndef CAFFELITE_PHILOX_H
#define CAFFELITE_PHILOX_H
#include "vectors.h"
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { COUNTERS = 16, WORDS = 4 * COUNTERS };

typedef uint64_t wide_words __attribute__((vector_size(VECTOR_BYTES)));
DEFINE_VECTOR(narrow_words, uint32_t, VECTOR_BYTES / 2)

#if defined(__AVX512F__)
#define LOW_PRODUCT(a, b) ((wide_words)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#elif defined(__AVX2__)
#define LOW_PRODUCT(a, b) ((wide_words)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#elif defined(__SSE2__)
#define LOW_PRODUCT(a, b) ((wide_words)_mm_mul_epu32((__m128i)(a), (__m128i)(b)))
#elif defined(__aarch64__)
#define LOW_PRODUCT(a, b) ((wide_words)vmull_u32(vmovn_u64((uint64x2_t)(a)), vmovn_u64((uint64x2_t)(b))))
#else
#define LOW_PRODUCT(a, b) (((a) & 0xFFFFFFFFu) * (b))
#endif

/* words[16 w + i] = word w of the counter (16 group + i, step) under the key `seed`, each with the low half first. */
INLINE void philox(uint32_t *words, uint64_t seed, uint64_t step, uint64_t group)
{
    enum { LANES_AT_ONCE = VECTOR_BYTES / 8 };
    const wide_words zero = {0}, factor0 = zero + 0xD2511F53u, factor2 = zero + 0xCD9E8D57u;
    for (int i = 0; i < COUNTERS; i += LANES_AT_ONCE) {
        uint64_t first = group * COUNTERS + i;
        uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
        wide_words c0 = zero + first, c1 = zero + (first >> 32), c2 = zero + step, c3 = zero + (step >> 32);
        UNROLL_FOR (int k = 0; k < LANES_AT_ONCE; k++) c0[k] += k;
        UNROLL_FOR (int round = 0; round < 10; round++) {
            wide_words product0 = LOW_PRODUCT(c0, factor0), product2 = LOW_PRODUCT(c2, factor2);
            c0 = (product2 >> 32) ^ c1 ^ key0;
            c2 = (product0 >> 32) ^ c3 ^ key1;
            c1 = product2;
            c3 = product0;
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        *(narrow_words *)(words + i) = __builtin_convertvector(c0, narrow_words);
        *(narrow_words *)(words + COUNTERS + i) = __builtin_convertvector(c1, narrow_words);
        *(narrow_words *)(words + 2 * COUNTERS + i) = __builtin_convertvector(c2, narrow_words);
        *(narrow_words *)(words + 3 * COUNTERS + i) = __builtin_convertvector(c3, narrow_words);
    }
}
#endif
