#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* Kernels have constant arguments. If the compiler optimizes for speed, each call becomes a copy for its sizes. If it
 * optimizes for size (-Os), all calls of a kernel share one function, and a kernel that is called once becomes a part of
 * its caller. Steps are never inlined: in one long function, compilers keep too many numbers in registers. gcc 12 would
 * also drop steps that it wrongly takes for ones that do nothing. */
#ifdef __has_attribute
#if __has_attribute(noipa)
#define APART __attribute__((noipa))
#endif
#endif
#if !defined(APART) && defined(__GNUC__)
#define APART __attribute__((noinline))
#endif
#ifndef APART
#define APART
#endif
#if defined(__GNUC__) && defined(__OPTIMIZE__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE APART static
#endif
#ifndef __OPTIMIZE_SIZE__
#define KERNEL INLINE
#else
#define KERNEL APART static
#endif
