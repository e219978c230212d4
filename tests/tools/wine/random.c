// bcryptprimitives.dll, which programs in Rust take random numbers from and Wine 8 lacks.
#include <windows.h>
#include <ntsecapi.h>

__declspec(dllexport) BOOL WINAPI ProcessPrng(unsigned char *bytes, size_t count) { return RtlGenRandom(bytes, count); }
