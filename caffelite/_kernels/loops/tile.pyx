# The register tile. It is compiled here, once for all files of loops/ that compute strips. They use it through panel.h.

cdef extern from "loops/tile.h":
    pass

cdef extern from "loops/bfloat16.h":
    pass
