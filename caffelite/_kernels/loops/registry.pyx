"""The loops of one instruction set: their addresses by name.

The files of loops/ are linked into this module, once for each instruction set. On import, `caffelite._kernels` selects
one of these modules.
"""
from caffelite._kernels.loops.matmul cimport BLOCK_K, COLUMNS_bfloat16, COLUMNS_float, use_bfloat16

cdef extern from "loops/registry.h":
    """
    Published published[MAX_LOOPS];
    int published_count = 0;
    """
    ctypedef struct Published:
        const char* name
        const void* address[3]
    Published published[]
    int published_count

STRIP_COLUMNS = COLUMNS_float             # a product computes this many columns of floats together
ROUNDED_COLUMNS = COLUMNS_bfloat16        # the same for products that round their operands to bfloat16
LONGEST_ACCUMULATED = BLOCK_K             # a product can add sums of at most this many terms to its output
PUBLISHED = {}                            # the addresses of loops by name


def compute_bfloat16(int method):
    """Compute products of bfloat16 operands in this way from now on; whether the processor can (loops/bfloat16.h)."""
    return bool(use_bfloat16(method))


cdef object collect_loops():
    cdef int i, type
    for i in range(published_count):
        addresses = [<Py_ssize_t> published[i].address[type] for type in range(3)]
        PUBLISHED[published[i].name.decode()] = [address for address in addresses if address]


collect_loops()
