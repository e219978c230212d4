"""What every file of loops/ begins with.

A file is a family of loops, and a unit of its own for the compilers: Cython makes a C file of it, the C compiler an
object for each instruction set. The objects of one instruction set are linked into one module with `loops.pyx`. The
families are C and nothing else: no statement in them that Python would run is ever run.

What a family has for others is in a .pxd of its name, as functions that become part of their callers.
"""
from libc.float cimport DBL_MAX, DBL_MIN, FLT_MAX, FLT_MIN
from libc.math cimport hypot, log, pow, rint, sqrt, sqrtf
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from caffelite._kernels.call cimport *

ctypedef fused real:
    float
    double

cdef extern from "loops/publish.h" nogil:
    ctypedef void void_apart "APART void"  # of a function that is not to become part of others, and widen their frames
    ctypedef int int_apart "APART int"
    ctypedef double double_apart "APART double"
    ctypedef void at_load "AT_LOAD void"   # of a function that runs when its module is loaded
    void publish_addresses(const char* name, const void* first, const void* second, const void* third)


cdef inline void publish(const char* name, Loop first, Loop second=NULL, Loop third=NULL) noexcept nogil:
    """Offer a loop for float32 (or for its only type), for float64, for int64."""
    publish_addresses(name, <const void*> first, <const void*> second, <const void*> third)
