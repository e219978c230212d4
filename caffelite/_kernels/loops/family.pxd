"""The beginning of every file of loops/.

Each file is a family of loops. A loop is a function of a call, `cdef int name(y, call, begin, end)`; generate.py writes
the lines that publish all loops of a family by name. Cython makes a C file of it, and the C compiler makes an object of
that for each instruction set. The objects of one instruction set are linked into one module with `registry.pyx`. A
family is plain C: Python never runs a statement in it.

A .pxd file with the name of a family holds its functions for other families. They are inlined into their callers.
"""
from libc.float cimport DBL_MAX, DBL_MIN, FLT_MAX, FLT_MIN
from libc.math cimport rint, sqrt, sqrtf
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from caffelite._kernels.call cimport *

ctypedef fused real:
    float
    double

cdef extern from "loops/libm.h" nogil:
    double sin(double x)
    double cos(double x)
    double exp(double x)
    double log(double x)
    double pow(double x, double y)
    double hypot(double x, double y)

cdef extern from "loops/registry.h" nogil:
    ctypedef void void_apart "APART void"  # for a function that is not inlined, to keep callers' frames small
    ctypedef int int_apart "APART int"
    ctypedef double double_apart "APART double"
    ctypedef void at_load "AT_LOAD void"   # for a function that runs when its module is loaded
    void publish_addresses(const char* name, const void* first, const void* second, const void* third)


cdef inline void publish(const char* name, Loop first, Loop second=NULL, Loop third=NULL) noexcept nogil:
    """Publish a loop by name: for float32 (or its only type), for float64, for int64."""
    publish_addresses(name, <const void*> first, <const void*> second, <const void*> third)
