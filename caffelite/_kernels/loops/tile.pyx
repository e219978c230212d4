# The register tile, compiled here for all files of loops/ that compute strips; strip.h is what they see of it.

cdef extern from "loops/tile.h":
    pass
