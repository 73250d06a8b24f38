/* Wine 8 lacks bcryptprimitives.dll, whose ProcessPrng Rust's standard library calls for random numbers. Beside the program, this takes its place. */
#include <windows.h>
#include <ntsecapi.h>

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T length)
{
    return RtlGenRandom(bytes, (ULONG)length);
}
