# exp, log, tanh, sigmoid, sin, cos and similar functions of one number. They have no branches, no tables and no calls,
# so the compiler turns a loop over them into vector instructions. Each reduces its argument to a small interval.
# There it sums as many terms of a series as the type has digits for (J.-M. Muller, "Elementary Functions", 3rd ed.,
# 2016, chapters 3 and 11).
#
# Their largest errors, in units in the last place. benchmarks/elementary.py measures them, float32 over all its values:
#
#               exp    log    cbrt   tanh   sigmoid   log(1 + exp x)   exp x − 1, x ≤ 0   x Φ(x)   sin    cos
#     float32   1.1    1.0    1.0    2.6    2.5       2.0              1.1                5.2      0.6    0.6
#     float64   1.0    1.0    1.0    2.6    2.4       1.9              1.1                5.2      2.2    2.2
#
# exp x − 1 and x Φ(x) were compared with results of 60 digits at thousands of random arguments.

cimport cython

from caffelite._kernels.loops.arithmetic cimport INFINITE, NOT_A_NUMBER, sum_of_products
from caffelite._kernels.loops.family cimport *

cdef extern from * nogil:
    """
    /* The bits of a number as an integer, and back. */
    static inline uint32_t bits_of_float(float x) { uint32_t bits; memcpy(&bits, &x, sizeof x); return bits; }
    static inline uint64_t bits_of_double(double x) { uint64_t bits; memcpy(&bits, &x, sizeof x); return bits; }
    static inline float float_of(uint32_t bits) { float x; memcpy(&x, &bits, sizeof x); return x; }
    static inline double double_of(uint64_t bits) { double x; memcpy(&x, &bits, sizeof x); return x; }

    /* Adding SHIFT rounds a small number to an integer, which is then in the last bits of the sum. */
    static const float SHIFT_float = 12582912.0f, ROOT_HALF_float = 0.707106781f, SMALLEST_float = 1.17549435e-38f;
    static const double SHIFT_double = 6755399441055744.0, ROOT_HALF_double = 0.70710678118654752,
                        SMALLEST_double = 2.2250738585072014e-308;

    /* ln 2 in two parts. The first has so few digits that its product with an integer is exact. */
    static const float LN2_float = 0.693359375f, LN2_REST_float = -2.12194440e-4f;
    static const double LN2_double = 6.93147180369123816490e-01, LN2_REST_double = 1.90821492927058770002e-10;

    /* π in three parts. The first two have 33 digits, so that their products with a number of 20 digits are exact. */
    static const double PI_1 = 0x1.921fb544p+1, PI_2 = 0x1.0b4611a6p-33, PI_3 = 0x1.3198a2e037073p-68;
    """
    uint32_t bits_of_float(float x)
    uint64_t bits_of_double(double x)
    float float_of(uint32_t bits)
    double double_of(uint64_t bits)
    const float SHIFT_float, ROOT_HALF_float, SMALLEST_float, LN2_float, LN2_REST_float
    const double SHIFT_double, ROOT_HALF_double, SMALLEST_double, LN2_double, LN2_REST_double
    const double PI_1, PI_2, PI_3

cdef enum:
    FAR = 1 << 20                         # up to here, products with the parts of π are exact


# exp x = 2ⁿ (1 + e),  n = x / ln 2 rounded,  e = exp(x − n ln 2) − 1. 2ⁿ is multiplied in as two factors, because
# 2ⁿ itself may overflow or underflow when the result does not.
cdef inline real fast_exp(real x) noexcept nogil:
    cdef real lowest = -104 if real is float else -746, highest = 89 if real is float else 710
    cdef real n, half                     # the result is 0 at `lowest`, infinite at `highest`
    x = lowest if x < lowest else x
    x = highest if x > highest else x
    n = round_to_whole(<real> (x * <real> 1.4426950408889634))
    half = round_to_whole(<real> (n * <real> 0.5))
    return (<real> 1 + expm1_near_0(subtract_ln2(x, n))) * power_of_2(half) * power_of_2(<real> (n - half))


# exp x − 1 = 2ⁿ e + (2ⁿ − 1) for x ≤ 0. At −40 it is −1.
cdef inline real expm1_below_0(real x) noexcept nogil:
    cdef real n, power
    x = -40 if x < -40 else x
    n = round_to_whole(<real> (x * <real> 1.4426950408889634))
    power = power_of_2(n)
    return expm1_near_0(subtract_ln2(x, n)) * power + (power - <real> 1)


# tanh |x| = −t / (t + 2),  t = exp(−2 |x|) − 1
cdef inline real fast_tanh(real x) noexcept nogil:
    cdef real magnitude = -x if x < 0 else x, t
    t = expm1_below_0(<real> -2 * magnitude)
    return copy_sign(-t / (t + <real> 2), x)


# |t| with the sign of x. With the C library's copysign, GCC does not vectorize a loop whose result is its argument.
cdef inline real copy_sign(real t, real x) noexcept nogil:
    if real is float:
        return float_of((bits_of_float(t) & 0x7FFFFFFFu) | (bits_of_float(x) & 0x80000000u))
    else:
        return double_of((bits_of_double(t) & 0x7FFFFFFFFFFFFFFFu) | (bits_of_double(x) & 0x8000000000000000u))


# 1 / (1 + exp(−x)). For x < 0 this exponential is large, so the result is computed as exp x / (1 + exp x).
cdef inline real fast_sigmoid(real x) noexcept nogil:
    cdef real e = fast_exp(<real> (x if x < 0 else -x))
    return (e if x < 0 else <real> 1) / (<real> 1 + e)


# The same for gates, in three quarters of the time. Below −87 (−708) 2ⁿ would underflow. There the result keeps its
# value at −87, about 10⁻³⁸ (10⁻³⁰⁸).
cdef inline real gate_sigmoid(real x) noexcept nogil:
    cdef real lowest = -87 if real is float else -708, u = -x if x > 0 else x, n, e
    u = lowest if u < lowest else u
    n = round_to_whole(<real> (u * <real> 1.4426950408889634))
    e = (<real> 1 + expm1_near_0(subtract_ln2(u, n))) * power_of_2(n)
    return (e if x < 0 else <real> 1) / (<real> 1 + e)


# log x = n ln 2 + log(1 + f),  x = 2ⁿ (1 + f),  √½ ≤ 1 + f < √2. With s = f / (2 + f), log(1 + f) is
# 2 (s + s³/3 + s⁵/5 + …) = f − s (f − r),  r = 2 (s²/3 + s⁴/5 + …).
cdef inline real fast_log(real x) noexcept nogil:
    cdef real normal, n, f, s, z, r
    if real is float:
        normal = x * <float> 8388608 if x < SMALLEST_float else x               # scale a denormal number up
        n = exponent(normal) - (23 if x < SMALLEST_float else 0)
    else:
        normal = x * 4503599627370496.0 if x < SMALLEST_double else x
        n = exponent(normal) - (52 if x < SMALLEST_double else 0)
    f = significand(normal) - <real> 1
    s = f / (<real> 2 + f)
    z = s * s
    if real is float:
        r = <float> (2.0 / 9)
        r = r * z + <float> (2.0 / 7)
        r = r * z + <float> (2.0 / 5)
        r = r * z + <float> (2.0 / 3)
        r = n * LN2_float + (f - sum_of_products(s, f - r * z, -n, LN2_REST_float))
    else:
        r = 2.0 / 21
        r = r * z + 2.0 / 19
        r = r * z + 2.0 / 17
        r = r * z + 2.0 / 15
        r = r * z + 2.0 / 13
        r = r * z + 2.0 / 11
        r = r * z + 2.0 / 9
        r = r * z + 2.0 / 7
        r = r * z + 2.0 / 5
        r = r * z + 2.0 / 3
        r = n * LN2_double + (f - sum_of_products(s, f - r * z, -n, LN2_REST_double))
    r = r if x < INFINITE else x                                        # infinity and NaN
    r = <real> -INFINITE if x == 0 else r
    return <real> NOT_A_NUMBER if x < 0 else r


# ∛x = 2ᵏ ∛z,  z = 2ʳ m,  |x| = 2ⁿ m,  n = 3k + r,  r = −1, 0 or 1. A parabola gives ∛m with 3 digits. Each step of
# Halley's, y − y (y³ − z) / (2y³ + z), gives three times as many.
cdef inline real fast_cbrt(real x) noexcept nogil:
    cdef real u = -x if x < 0 else x, normal, n, k, r, m, z, y, cube
    if real is float:
        normal = u * <float> 8388608 if u < SMALLEST_float else u               # scale a denormal number up
        n = exponent(normal) - (23 if u < SMALLEST_float else 0)
    else:
        normal = u * 4503599627370496.0 if u < SMALLEST_double else u
        n = exponent(normal) - (52 if u < SMALLEST_double else 0)
    m = significand(normal)
    k = round_to_whole(<real> (n * <real> 0.3333333333333333))
    r = n - <real> 3 * k
    z = m * power_of_2(r)
    y = (<real> -0.10747693 * m + <real> 0.55366203) * m + <real> 0.55370565
    y = y * <real> (1.2599210498948732 if r > 0 else 0.7937005259840998 if r < 0 else 1)
    cube = y * y * y
    y = y - y * ((cube - z) / (cube + cube + z))
    if real is double:
        cube = y * y * y
        y = y - y * ((cube - z) / (cube + cube + z))
    y = copy_sign(y * power_of_2(k), x)
    return y if (u < INFINITE) & (u > 0) else x                         # ±0, ±infinity and NaN


# log(1 + x) for 0 ≤ x ≤ 1. The digits that the sum 1 + x loses are added to the result.
cdef inline real fast_log1p(real x) noexcept nogil:
    cdef real sum = <real> 1 + x
    return fast_log(sum) + (x - (sum - <real> 1)) / sum


# sin x = (−1)ⁿ sin r,  r = x − n π,  n = x / π rounded, for |x| ≤ FAR. In float32 all of this except n is float64. So
# two parts of π are enough, and the result is rounded once.
cdef inline real fast_sin(real x) noexcept nogil:
    cdef real n = round_to_whole(<real> (x * <real> 0.3183098861837907))
    return negative_if_odd(<real> sin_near_0(subtract_pi(x, n), x), n)


# cos x = (−1)ⁿ sin r,  r = x − (n − ½) π,  n = x / π + ½ rounded, for |x| ≤ FAR
cdef inline real fast_cos(real x) noexcept nogil:
    cdef real n = round_to_whole(<real> (x * <real> 0.3183098861837907 + <real> 0.5))
    return negative_if_odd(<real> sin_near_0(subtract_pi(x, n - <real> 0.5), x), n)


# The same for any x. Beyond FAR, C's functions reduce x with as many digits of π as it takes.
cdef inline real any_sin(real x) noexcept nogil:
    return <real> sin(x) if abs(x) > FAR else fast_sin(x)


cdef inline real any_cos(real x) noexcept nogil:
    return <real> cos(x) if abs(x) > FAR else fast_cos(x)


# sin r = r − r³/3! + r⁵/5! − …, for |r| ≤ π / 2, with the digits that the type of `like` has
cdef inline double sin_near_0(double r, real like) noexcept nogil:
    cdef double z = r * r, s
    if real is float:
        s = 1.0 / 6227020800.0
    else:
        s = 1.0 / 51090942171709440000.0
        s = s * z - 1.0 / 121645100408832000.0
        s = s * z + 1.0 / 355687428096000.0
        s = s * z - 1.0 / 1307674368000.0
        s = s * z + 1.0 / 6227020800.0
    s = s * z - 1.0 / 39916800.0
    s = s * z + 1.0 / 362880.0
    s = s * z - 1.0 / 5040.0
    s = s * z + 1.0 / 120.0
    s = s * z - 1.0 / 6.0
    return copy_sign(s * z * r + r, r)    # the sum for −0 is 0


cdef inline double subtract_pi(real x, real n) noexcept nogil:                  # x − n π for a multiple n of ½
    if real is float:
        return (<double> x - <double> n * PI_1) - <double> n * (PI_2 + PI_3)
    else:
        return ((x - n * PI_1) - n * PI_2) - n * PI_3


# y for an even integer n, −y for an odd one: the last bit of n is shifted to the sign.
@cython.overflowcheck(False)
cdef inline real negative_if_odd(real y, real n) noexcept nogil:
    if real is float:
        return float_of(bits_of_float(y) ^ (bits_of_float(n + SHIFT_float) << 31))
    else:
        return double_of(bits_of_double(y) ^ (bits_of_double(n + SHIFT_double) << 63))


# exp(−x²/2). The square is computed in two parts, the first of them exact, since its error would be the result's error.
cdef inline real normal_bell(real x) noexcept nogil:
    cdef real end = 14.5 if real is float else 39                       # beyond this the result is 0
    cdef real u = -x if x < 0 else x, top, high, low, n, half
    u = end if u > end else u
    if real is float:
        top = float_of(bits_of_float(u) >> 12 << 12)
    else:
        top = double_of(bits_of_double(u) >> 27 << 27)
    high = <real> -0.5 * (top * top)
    low = <real> -0.5 * ((u - top) * (u + top))
    n = round_to_whole(<real> ((high + low) * <real> 1.4426950408889634))
    half = round_to_whole(<real> (n * <real> 0.5))
    return (<real> 1 + expm1_near_0(subtract_ln2(high, n) + low)) * power_of_2(half) * power_of_2(<real> (n - half))


# The normal distribution Φ(x), given bell = exp(−x²/2). Its tail beyond u = |x| is bell · p(t) / (u + k), with a
# polynomial p in t = (u − k) / (u + k), because the tail divided by the bell is smooth (M. Shepherd and J. Laframboise,
# Math. Comp. 36, 1981). The coefficients interpolate it at Chebyshev points. The relative error is 1.2e-9 in float32
# and 1.2e-17 in float64.
cdef inline real normal_cdf(real x, real bell) noexcept nogil:
    cdef real end = 14.5 if real is float else 39, k = 3 if real is float else 5
    cdef real u = -x if x < 0 else x, t, p, tail
    u = end if u > end else u
    t = (u - k) / (u + k)
    if real is float:
        p = <float> 5.53559663e-5
        p = p * t + <float> 1.33125909e-4
        p = p * t - <float> 2.44582666e-4
        p = p * t - <float> 1.03422206e-3
        p = p * t + <float> 1.02413571e-3
        p = p * t + <float> 6.96981313e-3
        p = p * t - <float> 1.04622938e-2
        p = p * t - <float> 4.72627453e-2
        p = p * t + <float> 2.30017678e-1
        p = p * t - <float> 5.0933199e-1
        p = p * t + <float> 7.29083691e-1
    else:
        p = -1.5877468827473365e-10
        p = p * t + 1.753048401408232e-9
        p = p * t + 7.663071800760041e-9
        p = p * t - 9.3135609943260591e-9
        p = p * t - 6.594221662477223e-8
        p = p * t + 4.2274993740065348e-8
        p = p * t + 4.331410356862585e-7
        p = p * t - 3.3661536810124712e-7
        p = p * t - 2.7692670959974302e-6
        p = p * t + 3.9809021578680411e-6
        p = p * t + 1.6681213742042061e-5
        p = p * t - 4.9762814270585805e-5
        p = p * t - 5.9375728009915864e-5
        p = p * t + 5.4489906477312989e-4
        p = p * t - 7.9786939846607011e-4
        p = p * t - 2.9933767705085424e-3
        p = p * t + 2.079506679988318e-2
        p = p * t - 6.9118638706310164e-2
        p = p * t + 1.6502036617038472e-1
        p = p * t - 3.1353315667130454e-1
        p = p * t + 4.9530561596997641e-1
        p = p * t - 6.653825028900567e-1
        p = p * t + 7.6919304975006296e-1
    tail = bell * p / (u + k)
    return tail if x < 0 else <real> 1 - tail


# eʳ − 1 = r + r²/2! + r³/3! + …, for |r| ≤ ½ ln 2
cdef inline real expm1_near_0(real r) noexcept nogil:
    cdef real s
    if real is float:
        s = <float> (1.0 / 5040)
        s = s * r + <float> (1.0 / 720)
        s = s * r + <float> (1.0 / 120)
        s = s * r + <float> (1.0 / 24)
        s = s * r + <float> (1.0 / 6)
    else:
        s = 1.0 / 6227020800.0
        s = s * r + 1.0 / 479001600.0
        s = s * r + 1.0 / 39916800.0
        s = s * r + 1.0 / 3628800.0
        s = s * r + 1.0 / 362880.0
        s = s * r + 1.0 / 40320.0
        s = s * r + 1.0 / 5040.0
        s = s * r + 1.0 / 720.0
        s = s * r + 1.0 / 120.0
        s = s * r + 1.0 / 24.0
        s = s * r + 1.0 / 6.0
    s = s * r + <real> 0.5
    return s * (r * r) + r


cdef inline real round_to_whole(real x) noexcept nogil:
    if real is float:
        return (x + SHIFT_float) - SHIFT_float
    else:
        return (x + SHIFT_double) - SHIFT_double


cdef inline real subtract_ln2(real x, real n) noexcept nogil:                   # x − n ln 2
    if real is float:
        return (x - n * LN2_float) - n * LN2_REST_float
    else:
        return (x - n * LN2_double) - n * LN2_REST_double


# 2ⁿ for an integer n: n plus a constant is shifted to the exponent's bits.
@cython.overflowcheck(False)
cdef inline real power_of_2(real n) noexcept nogil:
    if real is float:
        return float_of((bits_of_float(n + SHIFT_float) + 127) << 23)
    else:
        return double_of((bits_of_double(n + SHIFT_double) + 1023) << 52)


# n and m of x = 2ⁿ m, √½ ≤ m < √2. Subtract the bits of √½ from the bits of x. The exponent's bits are then n, and
# the other bits plus the bits of √½ are m.
@cython.overflowcheck(False)
cdef inline real exponent(real x) noexcept nogil:
    cdef uint64_t above
    if real is float:
        return <float> (<int32_t> (bits_of_float(x) - bits_of_float(ROOT_HALF_float)) >> 23)
    else:                                 # through the last digits of 2⁵² + 1024 + n, since AVX2 cannot convert int64
        above = (bits_of_double(x) - bits_of_double(ROOT_HALF_double) + (<uint64_t> 1024 << 52)) >> 52
        return double_of(above | bits_of_double(4503599627370496.0)) - (4503599627370496.0 + 1024)


@cython.overflowcheck(False)
cdef inline real significand(real x) noexcept nogil:
    cdef uint32_t part
    cdef uint64_t long_part
    if real is float:
        part = (bits_of_float(x) - bits_of_float(ROOT_HALF_float)) & ((1 << 23) - 1)
        return float_of(part + bits_of_float(ROOT_HALF_float))
    else:
        long_part = (bits_of_double(x) - bits_of_double(ROOT_HALF_double)) & ((<uint64_t> 1 << 52) - 1)
        return double_of(long_part + bits_of_double(ROOT_HALF_double))
