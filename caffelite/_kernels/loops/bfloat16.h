/* Strips of products whose operands are rounded to bfloat16: a float32 with 7 bits of fraction instead of 23. Sums stay
 * float32.
 *
 * Every processor gives the same bits. They are those of AMX's instruction tdpbf16ps (Intel 64 and IA-32 Architectures
 * Software Developer's Manual, volume 2). Operands are rounded to the nearest bfloat16, and to the even one of two equally
 * near ones. Then 32 terms at a time are added up, in two chains that begin at 0:
 *
 *     even ← a[k] · b[k] + even            for k = 0, 2 … 30
 *     odd ← a[k] · b[k] + odd              for k = 1, 3 … 31
 *     sum ← sum + (even + odd)
 *
 * A step of a chain is a fused multiply-add, which is rounded once. A denormal number counts as 0 everywhere, and a denormal
 * result becomes 0. The last terms are filled up to 32 with zeros. ARM64 differs in one rare case: there a result is denormal
 * if it is below 2⁻¹²⁶ before it is rounded. On x86-64 it may be rounded up to 2⁻¹²⁶.
 *
 * There are three ways to do this. Each has its own order of packed operands. In each, a packed element has 4 bytes.
 *
 * - IN_TILES: with AMX. An element is the terms k and k + 1. One instruction adds 32 terms to each of 16 × 16 sums in 16
 *   cycles. That is 16 times the rate of float32.
 * - IN_PAIRS: with vdpbf16ps, which takes two steps of a chain. It begins with the upper half of an element, so an element is
 *   the terms k + 2 and k. On AMD's Zen 4 that is twice the rate of float32. On Intel's Granite Rapids it is half the rate: a
 *   core starts one vdpbf16ps every two cycles, but four float32 multiply-adds. So only AMD's processors use it.
 * - ONE_BY_ONE: with float32 multiply-adds. An element is one rounded number, as float32. That is 0.8 times the rate of
 *   float32. x86-64-v2 has no fused multiply-add and rounds the product by itself. This changes no bit, unless the product is
 *   below 2⁻¹²⁶ or beyond the largest float32, because it has 16 bits and float32 has room for 24.
 *
 * tile.pyx includes this file.
 */
#ifndef CAFFELITE_BFLOAT16_H
#define CAFFELITE_BFLOAT16_H
#include "registry.h"
#include "tile.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#if defined(__AVX512F__) && defined(__linux__) && (defined(__clang__) || __GNUC__ >= 11)
#define HAS_BFLOAT16 /* the compiler knows the instructions; whether the processor has them is asked when it runs */
#define BFLOAT16 __attribute__((target("avx512bf16")))
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { TOGETHER = 32, VECTORS_TOGETHER = COLUMNS_bfloat16 / LANES_OF_float };

static _Atomic int chosen = FASTEST; /* not decided yet */

/* ---- which way ---- */

#ifdef HAS_BFLOAT16
/* Whether the processor has AMX, and the system lets this process use it. Linux wants to be asked before. */
static int may_use_tiles(void)
{
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    unsigned a, b, c, features;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &features) || !(features & AMX_BF16) || !(features & AMX_TILE))
        return 0;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static int can_compute(int wanted)
{
    __builtin_cpu_init();
    if (wanted == IN_TILES)
        return __builtin_cpu_supports("avx512bf16") && may_use_tiles();
    return wanted == ONE_BY_ONE || __builtin_cpu_supports("avx512bf16");
}

static int is_from_amd(void) { return __builtin_cpu_is("amd"); }
#else
static int can_compute(int wanted) { return wanted == ONE_BY_ONE; }
static int is_from_amd(void) { return 0; }
#endif

int use_bfloat16(int wanted)
{
    if (wanted == FASTEST)
        wanted = can_compute(IN_TILES) ? IN_TILES : can_compute(IN_PAIRS) && is_from_amd() ? IN_PAIRS : ONE_BY_ONE;
    if (!can_compute(wanted))
        return 0;
    chosen = wanted;
    return 1;
}

/* Decided when it is first needed, because a process without such products need not ask for AMX. */
static int way(void)
{
    if (chosen == FASTEST)
        use_bfloat16(FASTEST);
    return chosen;
}

ptrdiff_t max_terms_bfloat16(void) { return way() == ONE_BY_ONE ? BLOCK_K : 2 * BLOCK_K; }

/* So many terms, filled up with zeros to whole steps of both chains. A step of AMX is all that it adds up together. */
static ptrdiff_t filled_up(ptrdiff_t terms)
{
    const ptrdiff_t step = way() == IN_TILES ? TOGETHER : way() == IN_PAIRS ? 4 : 2;
    return (terms + step - 1) / step * step;
}

ptrdiff_t depth_bfloat16(ptrdiff_t terms) { return way() == ONE_BY_ONE ? filled_up(terms) : filled_up(terms) / 2; }

#ifdef HAS_BFLOAT16
#define BY_WAY(f, ...)                                                                                                 \
    (way() == IN_TILES   ? f##_in_tiles(__VA_ARGS__)                                                                   \
     : way() == IN_PAIRS ? f##_in_pairs(__VA_ARGS__)                                                                   \
                         : f##_one_by_one(__VA_ARGS__))
#else
#define BY_WAY(f, ...) f##_one_by_one(__VA_ARGS__)
#endif

/* ---- denormal numbers ---- */

/* The processor's control register of floating-point arithmetic. With the bits WITHOUT_DENORMALS, a denormal number counts as
 * 0 where it is read and where it would be the result. */
#if defined(__x86_64__)
enum { WITHOUT_DENORMALS = 0x8040 };
static unsigned get_control(void) { return _mm_getcsr(); }
static void set_control(unsigned control) { _mm_setcsr(control); }
#elif defined(__aarch64__)
enum { WITHOUT_DENORMALS = 1 << 24 };
static uint64_t get_control(void)
{
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
}
static void set_control(uint64_t control) { __asm__ volatile("msr fpcr, %0" ::"r"(control) : "memory"); }
#else
enum { WITHOUT_DENORMALS = 0 }; /* not known how */
static unsigned get_control(void) { return 0; }
static void set_control(unsigned control) { (void)control; }
#endif

/* ---- rounding ---- */

/* To the nearest bfloat16, as float32. A NaN stays one. A denormal number becomes 0, because it counts as 0 in the product. */
INLINE vector_float rounded(vector_float x)
{
    vector_float one = {0};
    one += 1;
    OPAQUE_VECTOR(one);
    x *= one;
    const bits_float bits = (bits_float)x, is_number = (bits_float)(x == x);
    return (vector_float)((bits + (((bits >> 16 & 1) + 0x7fff) & is_number)) & 0xffff0000);
}

/* x[0 … n − 1], then zeros, for any n. */
INLINE vector_float some_of(const float *x, ptrdiff_t n)
{
    if (n >= LANES_OF_float)
        return *(const vector_float *)x;
    return n > 0 ? load_first_float(x, (int)n) : (vector_float){0};
}

/* ---- packing, if neighbours in memory are neighbours along k: to[i][k′]. Up to a vector behind a row changes. ---- */

APART static void along_one_by_one(float *to, ptrdiff_t to_row, const float *x, ptrdiff_t x_row, ptrdiff_t rows,
                                   ptrdiff_t terms)
{
    for (ptrdiff_t i = 0; i < rows; i++, to += to_row, x += x_row)
        for (ptrdiff_t k = 0; k < terms; k += LANES_OF_float)
            *(vector_float *)(to + k) = rounded(some_of(x + k, terms - k));
}

#ifdef HAS_BFLOAT16
/* The bfloat16 numbers of x[0 … 31], or of n and zeros, in their order. */
BFLOAT16 INLINE __m512i numbers(const float *x, ptrdiff_t n)
{
    return (__m512i)_mm512_cvtne2ps_pbh(some_of(x + 16, n - 16), some_of(x, n));
}

BFLOAT16 static void along_in_tiles(float *to, ptrdiff_t to_row, const float *x, ptrdiff_t x_row, ptrdiff_t rows,
                                    ptrdiff_t terms)
{
    for (ptrdiff_t i = 0; i < rows; i++, to += to_row, x += x_row)
        for (ptrdiff_t k = 0; k < terms; k += 32) _mm512_storeu_si512(to + k / 2, numbers(x + k, terms - k));
}

BFLOAT16 static void along_in_pairs(float *to, ptrdiff_t to_row, const float *x, ptrdiff_t x_row, ptrdiff_t rows,
                                    ptrdiff_t terms)
{
    const __m512i order = _mm512_set_epi16(29, 31, 28, 30, 25, 27, 24, 26, 21, 23, 20, 22, 17, 19, 16, 18, 13, 15, 12,
                                           14, 9, 11, 8, 10, 5, 7, 4, 6, 1, 3, 0, 2);
    for (ptrdiff_t i = 0; i < rows; i++, to += to_row, x += x_row)
        for (ptrdiff_t k = 0; k < terms; k += 32)
            _mm512_storeu_si512(to + k / 2, _mm512_permutexvar_epi16(order, numbers(x + k, terms - k)));
}
#endif

/* ---- packing, if neighbours in memory are side by side: to[k′][j] ---- */

APART static void across_one_by_one(float *to, ptrdiff_t to_row, const float *x, ptrdiff_t x_row, ptrdiff_t terms,
                                    ptrdiff_t columns)
{
    for (ptrdiff_t j = 0; j < columns; j += LANES_OF_float) {
        const ptrdiff_t n = columns - j;
        if (n >= LANES_OF_float)
            for (ptrdiff_t k = 0; k < terms; k++)
                *(vector_float *)(to + k * to_row + j) = rounded(*(const vector_float *)(x + k * x_row + j));
        else
            for (ptrdiff_t k = 0; k < terms; k++)
                *(vector_float *)(to + k * to_row + j) = rounded(load_first_float(x + k * x_row + j, (int)n));
        if (terms % 2 != 0)
            *(vector_float *)(to + terms * to_row + j) = (vector_float){0};
    }
}

#ifdef HAS_BFLOAT16
/* An element is the terms k and k + next, at most n columns of them. */
BFLOAT16 INLINE __m512i two_terms(const float *x, ptrdiff_t next, ptrdiff_t x_row, ptrdiff_t terms, ptrdiff_t k,
                                  ptrdiff_t n)
{
    const __m512i by_turns = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                              6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const vector_float lower = some_of(x, k < terms ? n : 0);
    const vector_float upper = some_of(x + next * x_row, k + next < terms ? n : 0);
    return _mm512_permutexvar_epi16(by_turns, (__m512i)_mm512_cvtne2ps_pbh(upper, lower));
}

BFLOAT16 static void across_in_tiles(float *to, ptrdiff_t to_row, const float *x, ptrdiff_t x_row, ptrdiff_t terms,
                                     ptrdiff_t columns)
{
    for (ptrdiff_t k = 0; k < filled_up(terms); k += 2, x += 2 * x_row, to += to_row)
        for (ptrdiff_t j = 0; j < columns; j += 16)
            _mm512_storeu_si512(to + j, two_terms(x + j, 1, x_row, terms, k, columns - j));
}

BFLOAT16 static void across_in_pairs(float *to, ptrdiff_t to_row, const float *x, ptrdiff_t x_row, ptrdiff_t terms,
                                     ptrdiff_t columns)
{
    for (ptrdiff_t k = 0; k < terms; k += 4, x += 4 * x_row)
        for (ptrdiff_t odd = 0; odd < 2; odd++, to += to_row)
            for (ptrdiff_t j = 0; j < columns; j += 16)
                _mm512_storeu_si512(to + j,
                                    two_terms(x + (2 + odd) * x_row + j, -2, x_row, terms, k + 2 + odd, columns - j));
}
#endif

/* ---- packing ---- */

void pack_rows_bfloat16(Strip *strip, const float *x, ptrdiff_t x_row, ptrdiff_t terms, ptrdiff_t stride)
{
    enum { LANES = LANES_OF_float, ROW = BLOCK_K + LANES }; /* another cache line: rows don't crowd each other */
    const ptrdiff_t rows = strip->rows, depth = depth_bfloat16(terms);
    float *to = (float *)packed_a, lines[BLOCK_K * LANES];
    strip->a = to, strip->a_row = ROW, strip->a_k = 1;
    if (stride == 1)
        BY_WAY(along, to, ROW, x, x_row, rows, terms);
    else if (x_row != 1)
        for (ptrdiff_t i = 0; i < rows; i++) {
            for (ptrdiff_t k = 0; k < terms; k++) lines[k] = x[i * x_row + k * stride];
            BY_WAY(along, to + i * ROW, ROW, lines, 0, 1, terms);
        }
    else if (way() != IN_TILES) {
        BY_WAY(across, to, BLOCK_ROWS, x, stride, terms, rows);
        strip->a_row = 1, strip->a_k = BLOCK_ROWS;
    } else
        for (ptrdiff_t i = 0; i < rows; i += LANES) {
            const ptrdiff_t n = rows - i < LANES ? rows - i : LANES;
            BY_WAY(across, lines, LANES, x + i, stride, terms, n);
            for (ptrdiff_t k = 0; k < depth; k += LANES)
                transpose_float(to + i * ROW + k, ROW, lines + k * LANES, LANES,
                                (int)(depth - k < LANES ? depth - k : LANES), n);
        }
}

/* Columns whose elements are not neighbours are transposed first, some terms at a time. */
void pack_columns_bfloat16(float *to, const float *x, ptrdiff_t stride, ptrdiff_t columns, ptrdiff_t terms,
                           ptrdiff_t x_row)
{
    enum { LANES = LANES_OF_float, WIDTH = COLUMNS_bfloat16 };
    const ptrdiff_t depth = depth_bfloat16(terms), width = stride == 1 ? WIDTH : LANES;
    const uint64_t control = get_control();
    float lines[TOGETHER * LANES];
    set_control(control | WITHOUT_DENORMALS);
    for (ptrdiff_t j = 0; j < columns; j += width) {
        const ptrdiff_t n = columns - j < width ? columns - j : width;
        float *place = to + j / WIDTH * WIDTH * depth + j % WIDTH;
        if (stride == 1)
            BY_WAY(across, place, WIDTH, x + j, x_row, terms, n);
        for (ptrdiff_t k = 0; stride != 1 && k < terms; k += TOGETHER) {
            const ptrdiff_t m = terms - k < TOGETHER ? terms - k : TOGETHER;
            const float *block = x + j * stride + k * x_row;
            if (x_row == 1)
                transpose_float(lines, LANES, block, stride, (int)n, m);
            for (ptrdiff_t l = 0; x_row != 1 && l < m; l++)
                for (ptrdiff_t i = 0; i < n; i++) lines[l * LANES + i] = block[i * stride + l * x_row];
            BY_WAY(across, place + depth_bfloat16(k) * WIDTH, WIDTH, lines, LANES, m, n);
        }
    }
    set_control(control);
}

/* ---- strips: chains in vectors ---- */

/* The end of a block. A chain that is shorter than 16 steps ends with a zero. It changes the chain if this is −0, and further
 * zeros would not. It matters only if the sum so far may be −0, too. */
INLINE void end_block(const int ROWS, const int VECTORS, vector_float (*sum)[WIDE_VECTORS],
                      vector_float (*odd)[WIDE_VECTORS], const Strip *s, ptrdiff_t i, int resume, int is_short,
                      int is_last)
{
    enum { LANES = LANES_OF_float };
    const int lanes = (int)(s->columns - (VECTORS - 1) * LANES); /* of the last vector */
    float *y = (float *)s->y + i * s->y_row, *at = y;
    ptrdiff_t row = s->y_row;
    OPAQUE_NUMBER(i); /* addresses are computed here, and not before the blocks, where they would fill the registers */
    OPAQUE_NUMBER(row);
    if (resume && is_short)
        UNROLL_FOR (int r = 0; r < ROWS; r++)
            UNROLL_FOR (int v = 0; v < VECTORS; v++) odd[r][v] += (vector_float){0};
    UNROLL_FOR (int r = 0; r < ROWS; r++, at += row)
        UNROLL_FOR (int v = 0; v < VECTORS; v++) {
            sum[r][v] += odd[r][v];
            sum[r][v] += resume ? load_float(at + v * LANES, v == VECTORS - 1, lanes) : (vector_float){0};
        }
    if (is_last)
        finish_float(ROWS, VECTORS, 1, sum, s, i, lanes);
    UNROLL_FOR (int r = 0; r < ROWS; r++, y += row)
        UNROLL_FOR (int v = 0; v < VECTORS; v++)
            if (v < VECTORS - 1 || lanes == LANES)
                *(vector_float *)(y + v * LANES) = sum[r][v];
            else
                store_first_float(y + v * LANES, sum[r][v], lanes);
}

/* A tile of y, from row i on, as in tile.h, with two chains for each sum. Sums wait in y from block to block. DEPTH is the
 * number of packed terms if this is constant, else 0. */
#define DEFINE_CHAINS(name, TARGET, TERMS, STEP)                                                                       \
    TARGET INLINE void chains_##name(const int ROWS, const int VECTORS, const int DEPTH, const Strip *strip,           \
                                     ptrdiff_t i)                                                                      \
    {                                                                                                                  \
        enum { BLOCK = TOGETHER / TERMS };                                                                             \
        const Strip s = *strip;                                                                                        \
        const float *a = (const float *)s.a + i * s.a_row, *a_next = a + s.a_k, *b = s.b;                              \
        const ptrdiff_t depth = DEPTH ? DEPTH : s.k;                                                                   \
        ptrdiff_t k = 0;                                                                                               \
        do {                                                                                                           \
            const ptrdiff_t end = depth - k < BLOCK ? depth : k + BLOCK;                                               \
            const int resume = s.resume || k > 0;                                                                      \
            vector_float sum[ROWS_bfloat16][WIDE_VECTORS], odd[ROWS_bfloat16][WIDE_VECTORS];                           \
            UNROLL_FOR (int r = 0; r < ROWS; r++)                                                                      \
                UNROLL_FOR (int v = 0; v < VECTORS; v++) sum[r][v] = odd[r][v] = (vector_float){0};                    \
            for (; k < end; k += 2, a += 2 * s.a_k, a_next += 2 * s.a_k, b += 2 * s.b_k) {                             \
                const vector_float *here = (const vector_float *)b, *next = (const vector_float *)(b + s.b_k);         \
                UNROLL_FOR (int r = 0; r < ROWS; r++)                                                                  \
                    UNROLL_FOR (int v = 0; v < VECTORS; v++) sum[r][v] = STEP(sum[r][v], a + r * s.a_row, here[v]);    \
                UNROLL_FOR (int r = 0; r < ROWS; r++)                                                                  \
                    UNROLL_FOR (int v = 0; v < VECTORS; v++)                                                           \
                        odd[r][v] = STEP(odd[r][v], a_next + r * s.a_row, next[v]);                                    \
            }                                                                                                          \
            end_block(ROWS, VECTORS, sum, odd, &s, i, resume, end % BLOCK != 0, k >= depth);                           \
        } while (k < depth);                                                                                           \
    }                                                                                                                  \
                                                                                                                       \
    TARGET INLINE void rows_##name(const int VECTORS, const int DEPTH, const Strip *s)                                 \
    {                                                                                                                  \
        ptrdiff_t i = 0;                                                                                               \
        for (; i + ROWS_bfloat16 <= s->rows; i += ROWS_bfloat16) chains_##name(ROWS_bfloat16, VECTORS, DEPTH, s, i);   \
        for (; i + 2 <= s->rows; i += 2) chains_##name(2, VECTORS, DEPTH, s, i);                                       \
        if (i < s->rows)                                                                                               \
            chains_##name(1, VECTORS, DEPTH, s, i);                                                                    \
    }                                                                                                                  \
                                                                                                                       \
    TARGET APART static void sums_##name(const Strip *s)                                                               \
    {                                                                                                                  \
        if (s->columns <= LANES_OF_float)                                                                              \
            rows_##name(1, 0, s);                                                                                      \
        else if (s->k == 2)                                                                                            \
            rows_##name(VECTORS_TOGETHER, 2, s);                                                                       \
        else if (s->k == 4)                                                                                            \
            rows_##name(VECTORS_TOGETHER, 4, s);                                                                       \
        else                                                                                                           \
            rows_##name(VECTORS_TOGETHER, 0, s);                                                                       \
    }

#define MULTIPLY_ADD(sum, a, b) ((sum) + *(a) * (b))

DEFINE_CHAINS(one_by_one, , 1, MULTIPLY_ADD)

#ifdef HAS_BFLOAT16
#define DOT_OF_PAIRS(sum, a, b)                                                                                        \
    (vector_float) _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(*(const pair *)(a)), (__m512bh)(b))
typedef int32_t pair __attribute__((may_alias));

DEFINE_CHAINS(in_pairs, BFLOAT16, 2, DOT_OF_PAIRS)

/* ---- strips: AMX's tiles ---- */

/* These are not the compiler's own functions, because GCC's do not say that they read and write memory. */
#define LOAD_TILE(tile, at, row)                                                                                       \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile::"r"(at), "r"((row) * sizeof(float)) : "memory")
#define STORE_TILE(tile, at, row)                                                                                      \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(at), "r"((row) * sizeof(float)) : "memory")
#define CLEAR_TILE(tile) __asm__ volatile("tilezero %%tmm" #tile::)
#define MULTIPLY_TILES(y, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #y::)

enum { SIDE = 16 }; /* a tile is 16 rows of 16 elements */

static const struct {
    uint8_t palette, start, zero[14];
    uint16_t bytes[16]; /* of a row of each tile */
    uint8_t rows[16];
} eight_tiles = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

/* 2 × 2 tiles of y += a b. If `wide` or `tall` is 0, the right or the lower two are left out. */
static void multiply_tiles(float *y, ptrdiff_t y_row, const float *a, ptrdiff_t a_row, const float *b, ptrdiff_t b_row,
                           ptrdiff_t depth, int wide, int tall, int resume)
{
    float *right = y + SIDE, *lower = y + SIDE * y_row;
    CLEAR_TILE(0);
    CLEAR_TILE(1);
    CLEAR_TILE(2);
    CLEAR_TILE(3);
    if (resume) {
        LOAD_TILE(0, y, y_row);
        if (wide)
            LOAD_TILE(1, right, y_row);
        if (tall)
            LOAD_TILE(2, lower, y_row);
        if (wide && tall)
            LOAD_TILE(3, lower + SIDE, y_row);
    }
    for (ptrdiff_t k = 0; k < depth; k += SIDE, a += SIDE, b += SIDE * b_row) {
        LOAD_TILE(4, a, a_row);
        LOAD_TILE(6, b, b_row);
        MULTIPLY_TILES(0, 4, 6);
        if (wide) {
            LOAD_TILE(7, b + SIDE, b_row);
            MULTIPLY_TILES(1, 4, 7);
        }
        if (tall) {
            LOAD_TILE(5, a + SIDE * a_row, a_row);
            MULTIPLY_TILES(2, 5, 6);
            if (wide)
                MULTIPLY_TILES(3, 5, 7);
        }
    }
    STORE_TILE(0, y, y_row);
    if (wide)
        STORE_TILE(1, right, y_row);
    if (tall)
        STORE_TILE(2, lower, y_row);
    if (wide && tall)
        STORE_TILE(3, lower + SIDE, y_row);
}

static void copy_block(float *to, ptrdiff_t to_row, const float *from, ptrdiff_t from_row, ptrdiff_t rows,
                       ptrdiff_t columns)
{
    for (ptrdiff_t i = 0; i < rows; i++) memcpy(to + i * to_row, from + i * from_row, columns * sizeof(float));
}

/* If tiles would reach beyond y, they are computed elsewhere, and their part of y is copied. */
static void sums_in_tiles(const Strip *s)
{
    float whole[2 * SIDE * 2 * SIDE];
    for (ptrdiff_t i = 0; i < s->rows; i += 2 * SIDE) {
        const ptrdiff_t rows = s->rows - i < 2 * SIDE ? s->rows - i : 2 * SIDE, columns = s->columns;
        const float *a = (const float *)s->a + i * s->a_row;
        float *y = (float *)s->y + i * s->y_row;
        if (rows % SIDE == 0 && columns % SIDE == 0) {
            multiply_tiles(y, s->y_row, a, s->a_row, s->b, s->b_k, s->k, columns > SIDE, rows > SIDE, s->resume);
            continue;
        }
        if (s->resume)
            copy_block(whole, 2 * SIDE, y, s->y_row, rows, columns);
        multiply_tiles(whole, 2 * SIDE, a, s->a_row, s->b, s->b_k, s->k, columns > SIDE, rows > SIDE, s->resume);
        copy_block(y, s->y_row, whole, 2 * SIDE, rows, columns);
    }
}
#endif

/* ---- strips ---- */

uint64_t begin_strips_bfloat16(void)
{
    const uint64_t control = get_control();
    set_control(control | WITHOUT_DENORMALS);
#ifdef HAS_BFLOAT16
    if (way() == IN_TILES)
        __asm__ volatile("ldtilecfg %0" ::"m"(eight_tiles));
#endif
    return control;
}

void end_strips_bfloat16(uint64_t control)
{
#ifdef HAS_BFLOAT16
    if (way() == IN_TILES)
        __asm__ volatile("tilerelease");
#endif
    set_control(control);
}

/* Whether one of n numbers is so small that a sum with it may be denormal. Sums with 0 or with 2⁻¹⁰⁰ are not. */
static int has_small(const float *x, ptrdiff_t n)
{
    typedef uint32_t word __attribute__((may_alias));
    int found = 0;
    for (ptrdiff_t i = 0; x && i < n; i++) found |= 2 * ((const word *)x)[i] - 1 < 0x1affffff;
    return found;
}

/* If tiles or small biases need it, the sums come first. Then a float32 strip without terms adds the bias, and so on, with
 * denormal numbers as they are. */
void strip_bfloat16(const Strip *strip)
{
    const int twice =
        way() == IN_TILES || has_small(strip->bias, strip->columns) || has_small(strip->row_bias, strip->rows);
    Strip s = *strip;
    if (twice)
        s.bias = s.row_bias = s.mask = NULL, s.relu = 0;
    BY_WAY(sums, &s);
    if (twice && (strip->bias || strip->row_bias || strip->relu || strip->mask)) {
        const uint64_t control = get_control();
        s = *strip;
        s.k = 0;
        s.b_column = s.resume = 1;
        set_control(control & ~WITHOUT_DENORMALS);
        strip_float(&s);
        set_control(control);
    }
}

#endif
