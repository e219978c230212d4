"""A trained model as one file of C99, which computes what `predict` does and needs only the C library.

`trace_graph` finds which Functions a model applies, for ONNX and C alike. A net becomes a list of `CLayer`s, C
functions from arrays to an array, in the order in which they are called (`net`). One function of Python writes the C
for each kind of Function. The tables `LAYERS` of these modules list them: `layers` for most Functions, `operators` for
Tensor's operators, `layers_sequence` for recurrent layers, attention and indices. `STACKS` lists the Functions that are
several layers, such as attention. All write C for `float`; `to_double` makes C for `double` of that (`emit`). `int8`
rounds weights to one byte. `check` writes a program that compares a row's outputs. `exporting` puts the file together.
"""

from caffelite.c.exporting import export

__all__ = ["export"]
