/* The functions of C's library that loops call.

   On Windows, mingw has its own, made of x87 instructions. Their precision depends on the thread, so bits would depend
   on the number of threads, and their π has too few digits for large numbers. So there they come from Windows. */
#ifndef CAFFELITE_LIBM_H
#define CAFFELITE_LIBM_H

#include <math.h>

#ifdef _WIN32
#include "registry.h"

/* <windows.h> would define thousands of macros. */
extern __declspec(dllimport) void *__stdcall LoadLibraryA(const char *name);
extern __declspec(dllimport) void *__stdcall GetProcAddress(void *library, const char *name);

static double (*windows_sin)(double), (*windows_cos)(double), (*windows_exp)(double), (*windows_log)(double);
static double (*windows_pow)(double, double), (*windows_hypot)(double, double);

AT_LOAD static void find_windows_functions(void)
{
    void *library = LoadLibraryA("ucrtbase.dll");
    windows_sin = (double (*)(double))GetProcAddress(library, "sin");
    windows_cos = (double (*)(double))GetProcAddress(library, "cos");
    windows_exp = (double (*)(double))GetProcAddress(library, "exp");
    windows_log = (double (*)(double))GetProcAddress(library, "log");
    windows_pow = (double (*)(double, double))GetProcAddress(library, "pow");
    windows_hypot = (double (*)(double, double))GetProcAddress(library, "hypot");
}

#define sin windows_sin
#define cos windows_cos
#define exp windows_exp
#define log windows_log
#define pow windows_pow
#define hypot windows_hypot
#endif

#endif
