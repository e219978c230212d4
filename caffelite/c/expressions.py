"""The elementwise operations as expressions of C, by their names. They come from `_kernels/operations.py`.

a, b and c are the elements of the inputs; s and t are the scalars. All is written for `float`; `emit.to_double` makes
`double` of it.
"""

from caffelite._kernels.operations import KERNELS, LOSSES

EXPRESSIONS = {
    "copy": "a",
    **{kernel.name: kernel.c for kernel in KERNELS},
    **{loss.op: loss.c for loss in LOSSES},
    **{f"{loss.op}_grad": loss.slope for loss in LOSSES},
}

#: The derivatives of the operations that return theirs, too.
DERIVATIVES = {kernel.name: kernel.slope for kernel in KERNELS if kernel.slope}

#: Functions of numbers that only training needs, beside `emit.HELPERS`.
HELPERS = {
    "gelu_slope": """\
/* The derivative of y = gelu(x) = p x: p + x times the density of a standard normal X. */
static float gelu_slope(float x, float y)
{
    return (x == 0 ? 0.5f : y / x) + 0.3989422804014327f * x * expf(-0.5f * x * x);
}""",
    "gelu_tanh_slope": """\
/* The derivative of y = gelu_tanh(x) = p x. */
static float gelu_tanh_slope(float x, float y)
{
    const float p = x == 0 ? 0.5f : y / x, q = p * (1 - p);
    return p + (q == 0 ? 0 : 2 * x * q * 0.7978845608028654f * (1 + 0.134145f * x * x));
}""",
    "focal_slope": """\
/* The derivative of p^gamma x, p = 1 - exp(-x). */
static float focal_slope(float x, float gamma)
{
    const float p = -expm1f(-x), q = powf(p, gamma), e = expf(-x);
    return q * (1 + gamma * (e == 0 ? 0 : p == 0 ? e : e * x / p));
}""",
}
