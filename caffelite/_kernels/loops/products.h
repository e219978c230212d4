/* a b + c, rounded once where the processor has an instruction for it. Left to itself, the compiler would take that in some
 * loops and not in others, and the same sum would have other bits in another order of memory.
 */
#ifndef CAFFELITE_PRODUCTS_H
#define CAFFELITE_PRODUCTS_H
#include "vectors.h"

INLINE double multiply_add(double a, double b, double c)
{
#if defined(__FMA__) || defined(__FP_FAST_FMA)
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

/* a b + c d, of which c d is rounded by itself: without this, the compiler chooses one of the two in each loop. */
INLINE double sum_of_products_double(double a, double b, double c, double d) { return multiply_add(a, b, c * d); }
INLINE float sum_of_products_float(float a, float b, float c, float d)
{
#if defined(__FMA__) || defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c * d);
#else
    return a * b + c * d;
#endif
}

#endif
