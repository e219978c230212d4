// A DLL with the complex functions that NumPy and SciPy import and Wine 8 lacks. Microsoft's long double is a double.
#include <complex.h>
#include <math.h>

typedef struct { double re, im; } number;
typedef struct { float re, im; } float_number;

static double complex from(number z) { return __builtin_complex(z.re, z.im); }
static number to(double complex z) { return (number){creal(z), cimag(z)}; }
static float complex from_f(float_number z) { return __builtin_complex(z.re, z.im); }
static float_number to_f(float complex z) { return (float_number){crealf(z), cimagf(z)}; }

#define COMPLEX(name) \
    number own_##name(number z) { return to(name(from(z))); } \
    number own_##name##l(number z) { return to(name(from(z))); } \
    float_number own_##name##f(float_number z) { return to_f(name##f(from_f(z))); }
#define REAL(name) \
    double own_##name(number z) { return name(from(z)); } \
    double own_##name##l(number z) { return name(from(z)); } \
    float own_##name##f(float_number z) { return name##f(from_f(z)); }

COMPLEX(cexp) COMPLEX(clog) COMPLEX(csqrt)
COMPLEX(csin) COMPLEX(ccos) COMPLEX(ctan) COMPLEX(csinh) COMPLEX(ccosh) COMPLEX(ctanh) COMPLEX(catan)
REAL(cabs) REAL(carg) REAL(creal) REAL(cimag)

number own_cpow(number a, number b) { return to(cpow(from(a), from(b))); }
number own_cpowl(number a, number b) { return to(cpow(from(a), from(b))); }
float_number own_cpowf(float_number a, float_number b) { return to_f(cpowf(from_f(a), from_f(b))); }
number own__Cbuild(double re, double im) { return (number){re, im}; }
number own__LCbuild(double re, double im) { return (number){re, im}; }
float_number own__FCbuild(float re, float im) { return (float_number){re, im}; }
