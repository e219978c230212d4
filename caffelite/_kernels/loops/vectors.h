/* Vectors of the instruction set, as wide as its registers. GCC's and clang's vector extensions do arithmetic on them as
 * on numbers. lanes.h has the operations that these extensions lack.
 */
#ifndef CAFFELITE_VECTORS_H
#define CAFFELITE_VECTORS_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* LANES_real(F, s) lists F(s, 0), F(s, 1), … for every lane. */
#define LANES_2(F, s, l) F(s, l), F(s, (l) + 1)
#define LANES_4(F, s, l) LANES_2(F, s, l), LANES_2(F, s, (l) + 2)
#define LANES_8(F, s, l) LANES_4(F, s, l), LANES_4(F, s, (l) + 4)
#define LANES_16(F, s, l) LANES_8(F, s, l), LANES_8(F, s, (l) + 8)

#if defined(__AVX512F__)
enum { VECTOR_BYTES = 64, READS_LANES = 1 };
#define LANES_float(F, s) LANES_16(F, s, 0)
#define LANES_double(F, s) LANES_8(F, s, 0)
#elif defined(__AVX2__)
enum { VECTOR_BYTES = 32, READS_LANES = 1 };
#define LANES_float(F, s) LANES_8(F, s, 0)
#define LANES_double(F, s) LANES_4(F, s, 0)
#else
enum { VECTOR_BYTES = 16, READS_LANES = 0 }; /* READS_LANES: whether load_first is one instruction */
#define LANES_float(F, s) LANES_4(F, s, 0)
#define LANES_double(F, s) LANES_2(F, s, 0)
#endif

/* f_float or f_double, as x points to numbers of one type or the other. With a macro f, a loop calls f(x, …) for both. */
#define FOR_TYPE(f, x)                                                                                                 \
    _Generic((x), float *: f##_float, const float *: f##_float, double *: f##_double, const double *: f##_double)

#define INLINE static inline __attribute__((always_inline))
#define UNROLL_FOR _Pragma("GCC unroll 16") for

/* The compiler forgets where a value comes from. So it keeps the value in a register, and what it computes from it, too,
 * only as long as this is needed. */
#if defined(__x86_64__)
#define OPAQUE_VECTOR(v) __asm__("" : "+v"(v))
#elif defined(__aarch64__)
#define OPAQUE_VECTOR(v) __asm__("" : "+w"(v))
#else
#define OPAQUE_VECTOR(v)
#endif
#define OPAQUE_NUMBER(n) __asm__("" : "+r"(n))

/* A vector that may be anywhere in an array of its elements. For ARM the type is made in two steps: in one step it can't be a
 * function's parameter, because gcc 14 to 16 fail with an internal error. For x86-64 one step gives slightly better code. */
#if defined(__aarch64__)
#define DEFINE_VECTOR(vector, element, bytes)                                                                          \
    typedef element aligned_##vector __attribute__((vector_size(bytes), may_alias));                                   \
    typedef aligned_##vector vector __attribute__((aligned(sizeof(element))));
#else
#define DEFINE_VECTOR(vector, element, bytes)                                                                          \
    typedef element vector __attribute__((vector_size(bytes), aligned(sizeof(element)), may_alias));
#endif

DEFINE_VECTOR(vector_float, float, VECTOR_BYTES)
DEFINE_VECTOR(vector_double, double, VECTOR_BYTES)
typedef int32_t lanes_float __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t lanes_double __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t bits_float __attribute__((vector_size(VECTOR_BYTES))); /* unsigned, so that sums may overflow */
typedef uint64_t bits_double __attribute__((vector_size(VECTOR_BYTES)));
enum { LANES_OF_float = VECTOR_BYTES / sizeof(float), LANES_OF_double = VECTOR_BYTES / sizeof(double) };

#endif
