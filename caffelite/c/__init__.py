"""A trained model as one file of C99, which computes what `predict` does and needs nothing but the C library.

A net becomes a list of `Layer`s, C functions from arrays to an array, in the order in which they are called (`net`).
One function of Python, listed in `LAYERS`, writes the C for each kind of Function (`layers`). It writes C for `float`;
`in_double` makes C for `double` of that (`code`). `exporting` puts the file together.
"""

from caffelite.c.exporting import export

__all__ = ["export"]
