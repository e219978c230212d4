"""Models and their training as files of C99, which need only the C library.

`export` writes a trained model, as a function that predicts a row (`exporting`). `trace_graph` finds which Functions a
model applies, for ONNX and C alike. A net becomes a list of `CLayer`s, C functions from arrays to an array, in the
order in which they are called (`net`). One function of Python writes the C for each kind of Function. The tables
`LAYERS` of these modules list them: `layers` for most Functions, `operators` for Tensor's operators, `layers_sequence`
for recurrent layers, attention and indices. `STACKS` lists the Functions that are several layers, such as attention.
All write C for `float`; `to_double` makes C for `double` of that (`emit`). `int8` rounds weights to one byte. `check`
writes a program that compares a row's outputs.

`export_training` writes a training step (`training`). Its source is a recorded step, a list of kernel calls
(`capture`), on random rows (`random_batches`). `memory` decides where arrays are in C. `kernel_calls` makes C of each
call: most are a function in kernels/, elementwise ones are an expression (`expressions`). `training_check` writes a
program that repeats the first steps.
"""

from caffelite.c.exporting import export
from caffelite.c.training import export_training

__all__ = ["export", "export_training"]
