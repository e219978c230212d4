"""The bindings: the functions that Python calls. Each checks its arguments, binds them to a `Call`, and launches it.

Each family of kernels has two files. Its file in bindings/ has these functions and the facts about its kernels, and its
file in loops/ has the loops. `caffelite._kernels` exports every `def` of this module. Every function returns a new
array unless it is given `out`.
"""
cimport numpy as cnp
from libc.math cimport sqrt as c_sqrt
from libc.stdint cimport INT32_MAX, INTPTR_MAX
from libc.string cimport memset

import operator
from functools import lru_cache, partial

import numpy as np

from caffelite._kernels.call cimport *
from caffelite._kernels.kernel cimport Kernel
from caffelite._kernels.launch cimport is_portable, launch, run, rounds_products
from caffelite._kernels.record cimport NUMPY_MAX_DIMS, empty, empty_strided, is_recording
from caffelite._kernels import kernel

cnp.import_array()

cdef extern from *:
    """
    #include <string.h>
    static int processor_runs(const char *isa)
    {
    #if defined(__x86_64__)
        int v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
        int v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
                 && __builtin_cpu_supports("bmi2");
        int v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
                 && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq")
                 && __builtin_cpu_supports("avx512vl");
        if (!strcmp(isa, "x86-64-v4")) return v4;
        if (!strcmp(isa, "x86-64-v3")) return v3;
        if (!strcmp(isa, "x86-64-v2")) return v2;
    #endif
        return !strcmp(isa, "generic");
    }
    """
    bint processor_runs(const char* isa)

cdef Py_ssize_t longest_accumulated = 0    # a product can add sums of at most this many terms to its output
cdef Py_ssize_t strip_columns = 0          # a product computes this many columns of floats together
cdef Py_ssize_t rounded_columns = 0        # the same for a product that rounds its operands to bfloat16


def runs(str isa):
    """Return whether this processor runs the instruction set: "x86-64-v2", "x86-64-v3", "x86-64-v4" or "generic"."""
    return bool(processor_runs(isa.encode()))


def use_loops(module):
    """Make all kernels run the loops of a compiled module `loops_*`. Raise KeyError if one is missing there."""
    global longest_accumulated, strip_columns, rounded_columns
    kernel.use_loops(module.PUBLISHED)
    longest_accumulated, strip_columns = module.LONGEST_ACCUMULATED, module.STRIP_COLUMNS
    rounded_columns = module.ROUNDED_COLUMNS


# Python's `kernels.matmul` is `def matmul` in bindings/matmul.pxi: these files are parts of this module.
include "bindings/arguments.pxi"
include "bindings/elementwise.pxi"
include "generated/operations.pxi"
include "bindings/conversion.pxi"
include "bindings/matmul.pxi"
include "bindings/convolution.pxi"
include "bindings/winograd.pxi"
include "bindings/reduction.pxi"
include "bindings/softmax.pxi"
include "bindings/loss.pxi"
include "bindings/normalization.pxi"
include "bindings/pooling.pxi"
include "bindings/random.pxi"
include "bindings/attention.pxi"
include "bindings/augmentation.pxi"
include "bindings/indexing.pxi"
include "bindings/sparse.pxi"
include "bindings/columns.pxi"
include "bindings/splines.pxi"
include "bindings/recurrent.pxi"
include "bindings/update.pxi"
include "bindings/batches.pxi"

__all__ = ["CURSOR", *[name for name, value in globals().items() if getattr(value, "__module__", None) == __name__]]
