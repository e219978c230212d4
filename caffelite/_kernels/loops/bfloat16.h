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
#include "lanes.h"
#include "registry.h"
#include "panel.h"
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

/* So many terms, filled up with zeros: by AMX to whole blocks, otherwise with one or more at the end of each chain that is
 * shorter than 16. The first zero may change a chain, because −0 + 0 is 0; further ones do not. */
static ptrdiff_t filled_up(ptrdiff_t terms)
{
    const ptrdiff_t rest = terms % TOGETHER, more = (rest + 2 + 3) / 4 * 4;
    if (rest == 0)
        return terms;
    return terms - rest + (way() == IN_TILES || more > TOGETHER ? TOGETHER : more);
}

ptrdiff_t depth_bfloat16(ptrdiff_t terms) { return way() == ONE_BY_ONE ? filled_up(terms) : filled_up(terms) / 2; }

/* ---- rounding ---- */

/* To the nearest bfloat16, as float32. A NaN stays one, a denormal number becomes 0. */
INLINE vector_float rounded(vector_float x)
{
    const bits_float bits = (bits_float)x, nearest = bits + 0x7fff + (bits >> 16 & 1);
    const bits_float is_nan = (bits_float)(x != x), is_tiny = (bits_float)((bits & 0x7f800000) == 0);
    const bits_float number = (is_nan & (bits | 0x400000)) | (~is_nan & nearest);
    return (vector_float)(((is_tiny & bits & 0x80000000) | (~is_tiny & number)) & 0xffff0000);
}

/* x[0 … n − 1], then zeros, for any n. */
INLINE vector_float some_of(const float *x, ptrdiff_t n)
{
    if (n >= LANES_OF_float)
        return *(const vector_float *)x;
    return n > 0 ? load_first_float(x, (int)n) : (vector_float){0};
}

/* ---- packing, if neighbours in memory are neighbours along k ---- */

static void line_one_by_one(float *to, const float *x, ptrdiff_t terms)
{
    for (ptrdiff_t k = 0; k < filled_up(terms); k += LANES_OF_float)
        *(vector_float *)(to + k) = rounded(some_of(x + k, terms - k));
}

#ifdef HAS_BFLOAT16
/* The bfloat16 numbers of x[0 … 31], or of n and zeros, in their order. */
BFLOAT16 INLINE __m512i numbers(const float *x, ptrdiff_t n)
{
    return (__m512i)_mm512_cvtne2ps_pbh(some_of(x + 16, n - 16), some_of(x, n));
}

BFLOAT16 static void line_in_tiles(float *to, const float *x, ptrdiff_t terms)
{
    for (ptrdiff_t k = 0; k < terms; k += 32) _mm512_storeu_si512(to + k / 2, numbers(x + k, terms - k));
}

BFLOAT16 static void line_in_pairs(float *to, const float *x, ptrdiff_t terms)
{
    const __m512i order = _mm512_set_epi16(29, 31, 28, 30, 25, 27, 24, 26, 21, 23, 20, 22, 17, 19, 16, 18, 13, 15, 12,
                                           14, 9, 11, 8, 10, 5, 7, 4, 6, 1, 3, 0, 2);
    for (ptrdiff_t k = 0; k < filled_up(terms); k += 32)
        _mm512_storeu_si512(to + k / 2, _mm512_permutexvar_epi16(order, numbers(x + k, terms - k)));
}
#endif

/* to[k′] = x[k · stride]. Up to a vector's lanes behind the depth may be overwritten. */
static void pack_line(float *to, const float *x, ptrdiff_t terms, ptrdiff_t stride)
{
    float line[2 * BLOCK_K];
    if (stride != 1) {
        for (ptrdiff_t k = 0; k < terms; k++) line[k] = x[k * stride];
        x = line;
    }
#ifdef HAS_BFLOAT16
    if (way() == IN_TILES)
        line_in_tiles(to, x, terms);
    else if (way() == IN_PAIRS)
        line_in_pairs(to, x, terms);
    else
#endif
        line_one_by_one(to, x, terms);
}

/* ---- packing, if neighbours in memory are side by side: to[k′][j], in strips of WIDTH columns ---- */

#define PLACE(j) ((j) / WIDTH * WIDTH * depth + (j) % WIDTH)

INLINE void lines_one_by_one(const int WIDTH, float *to, const float *x, ptrdiff_t x_row, ptrdiff_t terms,
                             ptrdiff_t columns)
{
    const ptrdiff_t depth = filled_up(terms);
    for (ptrdiff_t k = 0; k < depth; k++, x += x_row, to += WIDTH)
        for (ptrdiff_t j = 0; j < columns; j += LANES_OF_float)
            *(vector_float *)(to + PLACE(j)) = rounded(some_of(x + j, k < terms ? columns - j : 0));
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

BFLOAT16 INLINE void lines_in_tiles(const int WIDTH, float *to, const float *x, ptrdiff_t x_row, ptrdiff_t terms,
                                    ptrdiff_t columns)
{
    const ptrdiff_t depth = filled_up(terms) / 2;
    for (ptrdiff_t k = 0; k < 2 * depth; k += 2, x += 2 * x_row, to += WIDTH)
        for (ptrdiff_t j = 0; j < columns; j += 16)
            _mm512_storeu_si512(to + PLACE(j), two_terms(x + j, 1, x_row, terms, k, columns - j));
}

BFLOAT16 INLINE void lines_in_pairs(const int WIDTH, float *to, const float *x, ptrdiff_t x_row, ptrdiff_t terms,
                                    ptrdiff_t columns)
{
    const ptrdiff_t depth = filled_up(terms) / 2;
    for (ptrdiff_t k = 0; k < 2 * depth; k += 4, x += 4 * x_row)
        for (ptrdiff_t odd = 0; odd < 2; odd++, to += WIDTH)
            for (ptrdiff_t j = 0; j < columns; j += 16)
                _mm512_storeu_si512(to + PLACE(j),
                                    two_terms(x + (2 + odd) * x_row + j, -2, x_row, terms, k + 2 + odd, columns - j));
}

BFLOAT16 static void pack_lines(const int WIDTH, float *to, const float *x, ptrdiff_t x_row, ptrdiff_t terms,
                                ptrdiff_t columns)
{
    if (way() == IN_TILES && WIDTH == 16)
        lines_in_tiles(16, to, x, x_row, terms, columns);
    else if (way() == IN_TILES)
        lines_in_tiles(COLUMNS_bfloat16, to, x, x_row, terms, columns);
    else if (way() == IN_PAIRS)
        lines_in_pairs(WIDTH, to, x, x_row, terms, columns);
    else
        lines_one_by_one(WIDTH, to, x, x_row, terms, columns);
}
#else
static void pack_lines(const int WIDTH, float *to, const float *x, ptrdiff_t x_row, ptrdiff_t terms, ptrdiff_t columns)
{
    lines_one_by_one(WIDTH, to, x, x_row, terms, columns);
}
#endif

/* ---- packing ---- */

void pack_rows_bfloat16(float *to, ptrdiff_t to_row, const float *x, ptrdiff_t x_row, ptrdiff_t rows, ptrdiff_t terms,
                        ptrdiff_t stride)
{
    enum { LANES = LANES_OF_float };
    const ptrdiff_t depth = depth_bfloat16(terms);
    float lines[BLOCK_K * LANES];
    if (stride == 1 || x_row != 1) {
        for (ptrdiff_t i = 0; i < rows; i++) pack_line(to + i * to_row, x + i * x_row, terms, stride);
        return;
    }
    for (ptrdiff_t i = 0; i < rows; i += LANES) {
        const ptrdiff_t n = rows - i < LANES ? rows - i : LANES;
        pack_lines(LANES, lines, x + i, stride, terms, n);
        for (ptrdiff_t k = 0; k < depth; k += LANES)
            transpose_float(to + i * to_row + k, to_row, lines + k * LANES, LANES,
                            (int)(depth - k < LANES ? depth - k : LANES), n);
    }
}

void pack_columns_bfloat16(float *to, const float *x, ptrdiff_t stride, ptrdiff_t columns, ptrdiff_t terms,
                           ptrdiff_t x_row)
{
    enum { LANES = LANES_OF_float, ROW = BLOCK_K + LANES };
    const ptrdiff_t depth = depth_bfloat16(terms), width = COLUMNS_bfloat16;
    float lines[LANES * ROW];
    if (stride == 1) {
        pack_lines(COLUMNS_bfloat16, to, x, x_row, terms, columns);
        return;
    }
    for (ptrdiff_t j = 0; j < columns; j += LANES) {
        const ptrdiff_t n = columns - j < LANES ? columns - j : LANES;
        for (ptrdiff_t i = 0; i < n; i++) pack_line(lines + i * ROW, x + (j + i) * stride, terms, x_row);
        transpose_float(to + j / width * width * depth + j % width, width, lines, ROW, (int)n, depth);
    }
}

/* ---- strips: chains in vectors ---- */

/* A tile of y, from row i on, as in tile.h, with two chains for each sum. Sums wait in y from block to block. */
#define DEFINE_CHAINS(name, TARGET, TERMS, STEP)                                                                       \
    TARGET INLINE void chains_##name(const int ROWS, const int VECTORS, const Strip *strip, ptrdiff_t i)               \
    {                                                                                                                  \
        enum { LANES = LANES_OF_float, BLOCK = TOGETHER / TERMS };                                                     \
        const Strip s = *strip;                                                                                        \
        const int lanes = (int)(s.columns - (VECTORS - 1) * LANES); /* of the last vector */                           \
        const float *a = (const float *)s.a + i * s.a_row, *b = s.b;                                                   \
        float *y = (float *)s.y + i * s.y_row;                                                                         \
        ptrdiff_t k = 0;                                                                                               \
        do {                                                                                                           \
            const ptrdiff_t end = s.k - k < BLOCK ? s.k : k + BLOCK;                                                   \
            const int resume = s.resume || k > 0;                                                                      \
            vector_float even[ROWS_bfloat16][VECTORS_TOGETHER], odd[ROWS_bfloat16][VECTORS_TOGETHER];                  \
            UNROLL_FOR (int r = 0; r < ROWS; r++)                                                                      \
                UNROLL_FOR (int v = 0; v < VECTORS; v++) even[r][v] = odd[r][v] = (vector_float){0};                   \
            for (; k < end; k += 2, a += 2, b += 2 * s.b_k) {                                                          \
                const vector_float *row = (const vector_float *)b, *next = (const vector_float *)(b + s.b_k);          \
                UNROLL_FOR (int r = 0; r < ROWS; r++)                                                                  \
                    UNROLL_FOR (int v = 0; v < VECTORS; v++) even[r][v] = STEP(even[r][v], a + r * s.a_row, row[v]);   \
                UNROLL_FOR (int r = 0; r < ROWS; r++)                                                                  \
                    UNROLL_FOR (int v = 0; v < VECTORS; v++)                                                           \
                        odd[r][v] = STEP(odd[r][v], a + r * s.a_row + 1, next[v]);                                     \
            }                                                                                                          \
            UNROLL_FOR (int r = 0; r < ROWS; r++)                                                                      \
                UNROLL_FOR (int v = 0; v < VECTORS; v++) {                                                             \
                    float *at = y + r * s.y_row + v * LANES;                                                           \
                    const int is_last = v == VECTORS - 1;                                                              \
                    vector_float sum = even[r][v] + odd[r][v];                                                         \
                    sum = (resume ? load_float(at, is_last, lanes) : (vector_float){0}) + sum;                         \
                    if (!is_last || lanes == LANES)                                                                    \
                        *(vector_float *)at = sum;                                                                     \
                    else                                                                                               \
                        store_first_float(at, sum, lanes);                                                             \
                }                                                                                                      \
        } while (k < s.k);                                                                                             \
    }                                                                                                                  \
                                                                                                                       \
    TARGET INLINE void rows_##name(const int VECTORS, const Strip *s)                                                  \
    {                                                                                                                  \
        ptrdiff_t i = 0;                                                                                               \
        for (; i + ROWS_bfloat16 <= s->rows; i += ROWS_bfloat16) chains_##name(ROWS_bfloat16, VECTORS, s, i);          \
        for (; i + 2 <= s->rows; i += 2) chains_##name(2, VECTORS, s, i);                                              \
        if (i < s->rows)                                                                                               \
            chains_##name(1, VECTORS, s, i);                                                                           \
    }                                                                                                                  \
                                                                                                                       \
    TARGET APART static void sums_##name(const Strip *s)                                                               \
    {                                                                                                                  \
        if (s->columns <= LANES_OF_float)                                                                              \
            rows_##name(1, s);                                                                                         \
        else                                                                                                           \
            rows_##name(VECTORS_TOGETHER, s);                                                                          \
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

void begin_strips_bfloat16(void)
{
#ifdef HAS_BFLOAT16
    if (way() == IN_TILES)
        __asm__ volatile("ldtilecfg %0" ::"m"(eight_tiles));
#endif
}

void end_strips_bfloat16(void)
{
#ifdef HAS_BFLOAT16
    if (way() == IN_TILES)
        __asm__ volatile("tilerelease");
#endif
}

/* First the sums. Then a float32 strip without terms adds the bias, and so on, with denormal numbers as they are. */
void strip_bfloat16(const Strip *strip)
{
#ifdef HAS_BFLOAT16
    if (way() == IN_TILES)
        sums_in_tiles(strip);
    else
#endif
    {
        const uint64_t before = get_control();
        set_control(before | WITHOUT_DENORMALS);
#ifdef HAS_BFLOAT16
        if (way() == IN_PAIRS)
            sums_in_pairs(strip);
        else
#endif
            sums_one_by_one(strip);
        set_control(before);
    }
    if (strip->bias || strip->row_bias || strip->relu || strip->mask) {
        Strip rest = *strip;
        rest.k = 0;
        rest.resume = 1;
        strip_float(&rest);
    }
}

#endif
