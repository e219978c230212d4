"""The loops of one instruction set: where each lies, by name.

This is the module that the files of loops/ are linked into, once for each instruction set. `caffelite._kernels` picks
one of these modules at import.
"""
from caffelite._kernels.loops.matmul cimport BLOCK_K, COLUMNS_float

cdef extern from "loops/publish.h":
    """
    Published published[MOST_PUBLISHED];
    int published_count = 0;
    """
    ctypedef struct Published:
        const char* name
        const void* address[3]
    Published published[]
    int published_count

STRIP_COLUMNS = COLUMNS_float             # a product computes so many columns of floats together
LONGEST_ACCUMULATED = BLOCK_K             # a product accumulates sums of at most so many terms
PUBLISHED = {}                            # the addresses of loops by name


cdef object find_published():
    cdef int i, of_type
    for i in range(published_count):
        addresses = [<Py_ssize_t> published[i].address[of_type] for of_type in range(3)]
        PUBLISHED[published[i].name.decode()] = [address for address in addresses if address]


find_published()
