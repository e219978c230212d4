"""`export`: a model as a file of C."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from caffelite._support.text_table import format_bytes
from caffelite.c.check import check_program
from caffelite.c.emit import as_comment, brackets, wrap_items
from caffelite.c.int8 import RANDOM_ROWS, Rounding
from caffelite.c.net import CModel
from caffelite.core.arrays import check_bool
from caffelite.core.function import format_shape
from caffelite.files.atomic import replace_file
from caffelite.model.model import Model
from caffelite.model.shapes import row_shapes
from caffelite.tables import Columns


def export(
    model: Model, path: str | os.PathLike, input_shape: Any = None, quantize: bool = False, check: bool = True
) -> Rounding | None:
    """Write a model as one file of C99: its weights, and a function that predicts a row:

        void predict(const float *x, float *y);

    It computes the outputs y of a row x as `model.predict` does. If the model is of float64, both are `double`. x and y
    are in C order, so an image comes channel by channel. The function allocates nothing, and needs no library but libm.
    A comment in the file shows how to compile and call it, what it computes, and how much memory it takes.

    A model of several inputs or outputs becomes `void predict(const float *in_1, …, float *out_1, …)`, inputs first.
    Indices are `int64_t`, and masks are `uint8_t`, 0 or 1. An index that is not in its table makes NaN. The comment
    lists the categories of Columns by number.

    `input_shape` is the shape of a row, or a tuple of shapes for several inputs. It is needed if the first Function
    takes rows of any shape, as Embedding does: (5,) for five indices, () for one.

    With `quantize`, the weights of Linear and convolutions are of int8, a quarter of float32, and have a scale for each
    output. The numbers between layers stay floats. `export` measures the change in the outputs of random rows. It
    returns the largest difference, the mean difference and the largest output. The comment has them too.

    With `check`, the file has a random row and the model's outputs y. Compiled with -DCHECK, it is a program that
    compares what C computes with them. It returns 1 if an output differs by more than 1e-4 (1 + |y|), otherwise 0. (If
    the standard deviation of the outputs is over 100, a hundredth of it takes the place of 1.)

    The model may consist of Linear, Embedding, convolutions, pools, Upsample and all norms. (BatchNorm uses its running
    mean and variance.) It may have RNN, GRU, LSTM, MultiHeadAttention, TransformerBlock and PositionalEncoding. It may
    also have the activations, Softmax and LogSoftmax, Flatten, Reshape and Pad, Dropout and DropConnect (which drop
    nothing), Columns, Splines, Residual, Parallel and Models. Other Functions work if their `formula` uses only these
    and operators. The length of sequences is the length in `input_shape`.

    A `call` may also use + - * / ** @, elementary functions such as exp, maximum, minimum, sum, mean, max, min,
    indices, transpose, flip, split, concatenate and reshape of Tensors. `export` applies it to zeros, so it may not
    look at values.

    Before anything is written, raises TypeError naming a Function of another kind, and ValueError for shapes that do
    not fit. Raise OSError naming the path if it can't be written. The file replaces an older one when it is complete.
    """
    text, rounding = render(model, path, input_shape, quantize, check)
    replace_file(path, [text.encode()])
    return rounding


HEAD = """\
/*
 * {name}: a neural network, written by caffelite.
 *
{signature};
 *
 * (in C++ extern "C") computes the outputs of one row{x_name}. Arrays are in C order, and must not overlap.
 *
{facts}
 *{notes}
 *     cc -std=c99 -O3 -c {name}
 *
 * and -lm to link. -DPREDICT=other names the function otherwise, where a program has several nets.{storage}
 *{check}
 * {summary}
 */

{includes}

#ifndef PREDICT
#define PREDICT predict
#endif
{definition}
{attributes}
{sizes}

#ifdef __cplusplus
#define restrict __restrict
extern "C"
#endif
NOIPA
{declaration};
"""

STORAGE = """ The memory is
 * static: one call runs at a time. With -DPREDICT_MEMORY= it is on the stack, and with -std=c11 and
 * -DPREDICT_MEMORY="static _Thread_local" each thread has its own."""

DEFINITION = """
#ifndef PREDICT_MEMORY
#define PREDICT_MEMORY static
#endif
"""

CHECK = """
 * With -DCHECK, the file is a program that compares the outputs of one row with the model's, to
 * 1e-4 (1 + |y|). It returns 1 if one differs:
 *
 *     cc -std=c99 -O3 -DCHECK {name} -lm && ./a.out
 *"""

#: gcc 12 may take a function for one that does nothing, and drop its calls. It does so if the function copies inside an
#: array in another order, or reads an array in two orders. Such functions are NOIPA, and so is PREDICT, because others
#: are inlined there. All others are NOCLONE: a clone would know that x and y are parts of one array, `memory`. (If all
#: were NOIPA, a net of small layers would take up to three times as long with -O3.)
ATTRIBUTES = """\
/* gcc 12 drops calls of functions that it wrongly takes for ones that do nothing. This prevents it. */
#ifdef __has_attribute
#if __has_attribute(noipa)
#define NOIPA __attribute__((noipa))
#define NOCLONE __attribute__((noclone))
#endif
#endif
#ifndef NOIPA
#define NOIPA
#define NOCLONE
#endif
"""

#: The name of an array's element, and of several, by its type in C.
ELEMENT_NAMES = {"float": ("number", "numbers"), "int64_t": ("index", "indices"), "uint8_t": ("0 or 1", "times 0 or 1")}


def render(model: Model, path: Any, input_shape: Any, quantize: bool, check: bool) -> tuple[str, Rounding | None]:
    """Return the text of a file at this path, and how far int8 weights move the outputs; see `export`."""
    if not isinstance(model, Model):
        hint = ": an estimator's is its `model_`" if hasattr(model, "get_params") else ""
        raise TypeError(f"export takes a Model, got {model!r}{hint}")
    has_check = check_bool("export: check", check)
    shapes = row_shapes(model, input_shape)
    with np.errstate(all="ignore"):  # weights may be NaN, or variances 0
        net = CModel(model, shapes, check_bool("export: quantize", quantize))
        program = [check_program(net)] if has_check else []
    name = as_comment(Path(path).name)
    arrays, definitions = _arrays(net), net.definitions
    declaration = wrap_items("void PREDICT(", arrays, ")")
    notes = dict.fromkeys([_columns_text(a.function) for a in net.graph.columns()])  # each text once
    integers = any("_t " in text for text in (*arrays, *definitions.texts))
    head = HEAD.format(
        name=name,
        signature=wrap_items(" *     void predict(", arrays, ")", " *         "),
        x_name=" x" if net.is_single else "",
        facts="\n".join([f" *     {name:<10}{as_comment(text)}" for name, text in _facts(net)]),
        storage=STORAGE if net.memory else "",
        check=CHECK.format(name=name) if has_check else "",
        notes="".join([f"\n * {as_comment(text)}\n *" for text in notes]),
        summary=as_comment(str(model.summary(shapes[0] if len(shapes) == 1 else tuple(shapes)))),
        includes="#include <math.h>" + "\n#include <stdint.h>" * integers,
        definition=DEFINITION if net.memory else "",
        attributes=ATTRIBUTES,
        sizes=wrap_items("enum { ", [f"PREDICT_{name.upper()} = {value.size}" for name, value in _sizes(net)], " };"),
        declaration=declaration,
    )
    functions = [*definitions.helpers(), *definitions.texts, _predict_function(net, declaration), *program]
    return "\n".join([head, *functions, ""]), net.rounding


def _arrays(net: CModel) -> list[str]:
    """Return the parameters of the function in C."""
    inputs = [f"const {net.definitions.convert_code(value.type)} *{value.pointer}" for value, _ in net.inputs]
    return [*inputs, *[f"{net.definitions.number_type} *{value.pointer}" for value, _ in net.outputs]]


def _sizes(net: CModel) -> list[tuple[str, Any]]:
    """Return the inputs and outputs by name, as constants have them."""
    if net.is_single:
        return [("inputs", net.inputs[0][0]), ("outputs", net.outputs[0][0])]
    return [(value.pointer, value) for value, _ in (*net.inputs, *net.outputs)]


def _facts(net: CModel) -> list[tuple[str, str]]:
    """Return the facts about the arrays, the weights and the memory that users of the file need."""
    arrays = [*net.inputs, *net.outputs]
    facts = [
        (v.pointer, f"{v.size:,} {ELEMENT_NAMES[v.type][v.size > 1]}, shape {format_shape(shape)}")
        for v, shape in arrays
    ]
    facts.append(("weights", f"{format_bytes(net.definitions.constant_bytes)}, constant"))
    if net.rounding is not None:
        largest, mean, output = (f"{number:.2g}" for number in net.rounding)
        facts.append(("rounding", f"int8 weights move outputs by {largest} at most and {mean} on average,"))
        facts.append(("", f"numbers up to {output}, of {RANDOM_ROWS} random rows"))
    return [*facts, ("memory", format_bytes(net.memory * net.dtype.itemsize))]


def _columns_text(f: Columns) -> str:
    """Say which columns the inputs are, and list the categories of each by number."""
    lines = []
    if f.numbers:
        lines = ["The numbers, NAN for a missing one:", *[f"    {i} {name}" for i, name in enumerate(f.numbers)]]
    if f.categories:
        lines.append("The indices are the numbers of categories:")
    for name, known in f.categories.items():
        numbered = [f"{i} {category}" for i, category in enumerate((*known, "(missing)", "(another)"))]
        lines.append(wrap_items(f"    {name}: ", numbered, "", " " * 8))
    return "\n".join(lines)


def _predict_function(net: CModel, declaration: str) -> str:
    """Return the function itself, which calls the layers."""
    lines = [f"    PREDICT_MEMORY float memory[{net.memory}];", ""] if net.memory else []
    used = {array.value.pointer.split()[0] for _, arrays in net.calls for array in arrays}
    lines += [
        f"    (void){value.pointer};  /* no output depends on it */"
        for value, _ in net.inputs
        if value.pointer not in used
    ]
    for name, arrays in net.calls:
        arguments = []
        for array in arrays:
            pointer = array.value.pointer
            if len(array.view) > 1:
                const = "" if array.is_written else "const "
                start = f"({pointer})" if " " in pointer else pointer
                pointer = f"({const}{array.value.type} (*){brackets(array.view[1:])}){start}"
            arguments.append(pointer)
        lines.append(wrap_items(f"    {name}(", arguments, ");", " " * 8))
    return "\n".join([declaration, net.definitions.convert_code("\n".join(["{", *lines, "}"]))])
