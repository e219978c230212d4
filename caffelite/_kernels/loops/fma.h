/* a b + c, rounded once if the processor has an instruction for it (a fused multiply-add). The compiler would choose by
 * itself to use this instruction in some loops and not in others. The bits of a sum would then depend on its loop.
 */
#ifndef CAFFELITE_FMA_H
#define CAFFELITE_FMA_H
#include "vectors.h"

INLINE double multiply_add(double a, double b, double c)
{
#if defined(__FMA__) || defined(__FP_FAST_FMA)
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

INLINE float multiply_add_float(float a, float b, float c)
{
#if defined(__FMA__) || defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* a b + c d. First c d is rounded. Otherwise the compiler would choose in each loop which of the two products it rounds. */
INLINE double sum_of_products_double(double a, double b, double c, double d) { return multiply_add(a, b, c * d); }
INLINE float sum_of_products_float(float a, float b, float c, float d) { return multiply_add_float(a, b, c * d); }

#endif
