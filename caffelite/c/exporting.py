"""`export`: a model as a file of C."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from caffelite.c.code import HELPERS, as_comment, brackets
from caffelite.c.net import LARGEST, MOST_SAID, Net, Shape
from caffelite.core.arrays import integers
from caffelite.core.function import shape_text
from caffelite.core.tables import bytes_text, shortened
from caffelite.files import safetensors as files
from caffelite.model.model import Model


def export(model: Model, path: str | os.PathLike, input_shape: Sequence[int] | None = None) -> None:
    """Write a model as a file of C99: its weights, and a function that predicts a row:

        void predict(const float *x, float *y);

    It computes the outputs y of a row x as `model.predict` does. If the model is of float64, both are `double`. x and y
    are in C order, so an image comes channel by channel. The function allocates nothing, and needs no library but libm.
    A comment in the file says how to compile and call it, what it computes, and how much memory it takes.

    The model has one input and one output. It may consist of Linear, convolutions, pools, GlobalAvgPool, Upsample,
    BatchNorm (with its running mean and variance), LayerNorm, GroupNorm, the activations, Softmax and LogSoftmax,
    Flatten, Reshape, Pad, Dropout and DropConnect (which drop nothing), Columns of numbers, Residual, Parallel and
    Models, and of other Functions if their `formula` uses only these. A `call` may also use + - * / ** of Tensors of
    one shape and of numbers, exp, log, sqrt, abs, concatenate and reshape. It is applied to zeros, and may not look at
    values. `input_shape` is the shape of a row. It is needed if the first Function takes rows of any shape.

    Raises TypeError naming a Function of another kind, and ValueError for shapes that do not fit, before anything is
    written. Raises OSError naming the path if it can't be written. The file replaces an older one when it is complete.
    """
    files.replace(path, [source(model, path, input_shape).encode()])


def _row_shape(model: Model, given: Any) -> Shape:
    """The shape of a row, as it is given or as the model requires it; ValueError if it is not known."""
    if given is not None:
        if not isinstance(given, tuple | list):
            raise TypeError(f"export: expected input_shape to be the shape of a row, such as (64,), got {given!r}")
        if any(isinstance(n, tuple | list) for n in given):
            raise TypeError(f"export: the function in C takes one input, got the shapes {given!r} of several")
        return integers("export: input_shape", given, len(given), most=LARGEST)
    shape: Any = model.required_input_shape or (None, None)
    if isinstance(shape[0], tuple):
        raise TypeError(f"export: the function in C takes one input, and {shortened(repr(model), MOST_SAID)} several")
    required = [n for n in shape[1:] if n is not ...]
    if None in required:
        raise ValueError(
            f"export: {shortened(repr(model), MOST_SAID)} takes rows of several shapes, {shape_text(shape)}: say "
            "which, as in input_shape=(3, 32, 32)"
        )
    return tuple(required)


HEAD = """\
/*
 * {name}: a neural network, written by caffelite.
 *
 *     void predict(const {number} *x, {number} *y);        (in C++ extern "C")
 *
 * computes the outputs y of one row x, both in C order. They must not overlap.
 *
 *     x         {x}
 *     y         {y}
 *     weights   {weights}, constant
 *     memory    {memory}
 *
 *     cc -std=c99 -O3 -c {name}
 *
 * and -lm to link. -DPREDICT=other names the function otherwise, where a program has several nets.{storage}
 *
 * {summary}
 */

#include <math.h>

#ifndef PREDICT
#define PREDICT predict
#endif
{definition}
enum {{ PREDICT_INPUTS = {inputs}, PREDICT_OUTPUTS = {outputs} }};

#ifdef __cplusplus
#define restrict __restrict
extern "C"
#endif
void PREDICT(const {number} *x, {number} *y);
"""

STORAGE = """ The memory is
 * static: one call runs at a time. With -DPREDICT_MEMORY= it is on the stack, and with -std=c11 and
 * -DPREDICT_MEMORY="static _Thread_local" each thread has its own."""

DEFINITION = """
#ifndef PREDICT_MEMORY
#define PREDICT_MEMORY static
#endif
"""


def source(model: Model, path: str | os.PathLike, input_shape: Sequence[int] | None = None) -> str:
    """The text of a file at this path; see `export`."""
    if not isinstance(model, Model):
        of_estimator = ": an estimator's is its `model_`" if hasattr(model, "get_params") else ""
        raise TypeError(f"export takes a Model, got {model!r}{of_estimator}")
    shape = _row_shape(model, input_shape)
    with np.errstate(all="ignore"):  # weights may be NaN, or variances 0
        net = Net(model, shape)
    head = HEAD.format(
        name=as_comment(Path(path).name),
        number=net.number,
        x=f"{net.x.size:,} numbers, shape {shape_text(shape)}",
        y=f"{net.y.size:,} numbers, shape {shape_text(net.y_shape)}",
        weights=bytes_text(net.constant_bytes),
        memory=bytes_text(net.memory * model.dtype.itemsize),
        storage=STORAGE if net.memory else "",
        summary=as_comment(str(model.summary(shape))),
        definition=DEFINITION if net.memory else "",
        inputs=net.x.size,
        outputs=net.y.size,
    )
    helpers = [f"{net.c(text)}\n" for name, text in HELPERS.items() if name in net.used]
    return "\n".join([head, *helpers, *net.definitions, _predict(net), ""])


def _predict(net: Net) -> str:
    """The function itself, which calls the layers."""
    lines = [f"    PREDICT_MEMORY float memory[{net.memory}];", ""] if net.memory else []
    for name, arrays in net.calls:
        arguments = [value.place for value, _ in arrays]
        for i, (value, seen) in enumerate(arrays):
            if len(seen) > 1:
                const = "const " * (i < len(arrays) - 1)
                start = f"({value.place})" if value.offset else value.place
                arguments[i] = f"({const}float (*){brackets(seen[1:])}){start}"
        lines.append(f"    {name}({', '.join(arguments)});")
    return net.c("\n".join(["void PREDICT(const float *x, float *y)", "{", *lines, "}"]))
