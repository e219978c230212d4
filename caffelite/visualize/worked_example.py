"""`trace`: one row's numbers on the drawing of the graph, forward and backward, with formulas if they are short."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from caffelite.core.function import Function
from caffelite.core.sparse import is_sparse, to_row_array
from caffelite.core.tensor import Tensor
from caffelite.data.generator import unpack_single
from caffelite.data.out_of_core import Source
from caffelite.model.model import Model
from caffelite.model.tracing import to_list
from caffelite.training.inputs import UserData, as_losses, check_indices, check_rows, model_inputs, prepare_data
from caffelite.visualize.formulas import backward_formulas, format_number, forward_formulas
from caffelite.visualize.graph import SVG, Box, Piece, build_boxes, draw_boxes, observe_graph

# Blue and vermilion, dark enough to be readable on the boxes' backgrounds.
FORWARD_COLOUR, BACKWARD_COLOUR = "#00568a", "#a83f00"
MAX_LINE = 76  # letters in a line
MAX_NUMBERS = 8  # numbers that are written out
MAX_LINES = 4  # of a matrix or of formulas, if they are written out


def trace(model: Model, row: Any, target: Any = None, loss: Any = None) -> SVG:
    """Draw a model's graph with one row's numbers: forward in blue, backward in red.

    The boxes are those of `graph`. A Function's box shows its formula with the numbers filled in if there are few, and
    otherwise its output. A parameter's box shows its values. For more than 8 numbers (or a matrix of more than 4
    lines), a box shows how many there are, the smallest and the largest.

    With a target and a loss, the loss is the last box. Each box then also shows, in red, the gradient of the loss with
    respect to its output. A formula in red goes back through the box: it computes the gradient of its input.

    `row` is one row like `x[0]`, without the batch axis. It is an array, a tuple of arrays for several inputs, or a
    dict of a table's columns. A sparse row is a matrix with one row, `x[:1]`. `target` is like `y[0]`, and `loss` as in
    `fit`.

    The numbers are those of `predict`: Dropout lets everything through, and BatchNorm uses its running statistics.
    `trace` uses a copy, so the model, its gradients, random streams and recordings do not change.

    Return SVG text, a `str`, which a notebook shows as a picture. `save("trace.svg")` writes it to a file. Raise
    TypeError for anything but a Model, and ValueError for a target without a loss or vice versa. Raise the errors of
    `fit` for rows and targets.
    """
    if not isinstance(model, Model):
        raise TypeError(f"trace takes a Model, got {model!r}")
    if (target is None) != (loss is None):
        missing, present = ("loss", "target") if loss is None else ("target", "loss")
        raise ValueError(f"trace takes a target and a loss, or neither: got a {present} without a {missing}")
    x = _add_row_axis(row)
    if loss is None:
        inputs, _ = model_inputs(model, "trace", x)
        if Source not in map(type, inputs):
            check_rows(model, "trace", inputs)
            check_indices(model, "trace", inputs)
        targets: tuple[np.ndarray, ...] = ()
    else:
        loss = as_losses(loss)
        batch, _ = prepare_data(model, UserData(x, _add_row_axis(target), name="trace"), loss)
        inputs, targets = batch.inputs, batch.targets
    if Source in map(type, inputs) or any(len(column) != 1 for column in inputs):
        raise ValueError(f"trace takes one row, such as x[0], got {[x.shape for x in inputs]}")
    with observe_graph(training=False):
        return _draw(*copy.deepcopy((model, loss)), inputs, targets)


def _add_row_axis(row: Any) -> Any:
    """Add a batch axis to the arrays of one row."""
    if isinstance(row, tuple):
        return tuple([_add_row_axis(part) for part in row])
    if isinstance(row, Mapping):
        return {name: np.asarray(value)[None] for name, value in row.items()}
    if is_sparse(row):
        return row
    return np.asarray(row.data if isinstance(row, Tensor) else row)[None]


def _draw(model: Model, loss: Function | None, inputs: tuple[Any, ...], targets: tuple[np.ndarray, ...]) -> SVG:
    """Apply these copies of a model and its loss, and draw the steps."""
    for p in [*model.parameters(), *(loss.parameters() if loss else ())]:
        p.zero_grad()
    names = ["x"] if len(inputs) == 1 else [f"x{i}" for i in range(len(inputs))]
    arguments: list[Any] = []
    for x, name in zip(inputs, names, strict=True):
        is_float = to_row_array(x).dtype.kind == "f"
        arguments.append(Tensor(x, requires_grad=not is_sparse(x), name=name) if is_float else x)
    outputs = model(*arguments)
    results = to_list(outputs)
    if loss is not None:
        results = [loss(outputs, unpack_single(targets))]
    boxes = build_boxes(*results)
    last = next(box for box in boxes if any(tensor is results[0] for tensor in box.tensors))
    if loss is not None and results[0].requires_grad:
        for tensor in [tensor for box in boxes for tensor in box.tensors]:
            tensor.retain_grad()
        results[0].backward()
    index_inputs = iter([("x", x) for x in arguments if isinstance(x, np.ndarray)])  # indices are not Tensors
    for box in boxes:
        if box.kind == "function":
            _write_function(box, loss, targets)
        elif box.kind == "constant":
            is_target = loss is not None and box in last.inputs and len(targets) == 1
            name, values = ("target", targets[0]) if is_target else next(index_inputs, ("", None))
            if values is not None:
                box.write([[(name, "")], *_value_lines(values, FORWARD_COLOUR)])
        else:
            values = box.tensors[0].data  # the box's colour shows whether there is a gradient
            lines = [box.lines[0], [(str(values.shape), "")], *_value_lines(values, FORWARD_COLOUR)]
            box.write([*lines, *_gradient_lines(box)])
    legend = [("forward", FORWARD_COLOUR)] + [("back: gradients of the loss", BACKWARD_COLOUR)] * (loss is not None)
    return draw_boxes(boxes, legend)


def _write_function(box: Box, loss: Function | None, targets: tuple[np.ndarray, ...]) -> None:
    """Write the formula (or otherwise the values), and the gradient of the output with the way back."""
    inputs = [None if x is None else x.data for x in box.tensor_inputs]
    if loss is not None and type(box.function) is type(loss) and len(targets) == 1:
        inputs[1:2] = targets
    values = [piece for tensor in box.tensors for piece in _value_lines(tensor.data, FORWARD_COLOUR)]
    formulas = _drop_long(forward_formulas(box.function, inputs, box.tensors[0].data) if len(box.tensors) == 1 else [])
    lines = [[(left, ""), (f" = {right}", FORWARD_COLOUR)] for left, right in formulas] or values
    gradient, gradient_formulas = box.tensors[0].grad, []
    if gradient is not None and len(box.tensors) == 1:
        gradient_formulas = _drop_long(backward_formulas(box.function, inputs, box.tensors[0].data, gradient))
    back = [[(f"back: {a} = {b}", BACKWARD_COLOUR)] for a, b in gradient_formulas]
    box.write([*box.lines, *lines, *_gradient_lines(box), *back])


def _drop_long(formulas: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the formulas if they are few and short, otherwise []."""
    fits = len(formulas) <= MAX_LINES and all(len(a) + len(b) + 9 <= MAX_LINE for a, b in formulas)
    return formulas if fits else []


def _gradient_lines(box: Box) -> Iterator[list[Piece]]:
    for tensor in box.tensors:
        if tensor.grad is not None:
            yield from _value_lines(tensor.grad, BACKWARD_COLOUR, "gradient ")


def _value_lines(array: Any, colour: str, prefix: str = "") -> list[list[Piece]]:
    """Return lines with the numbers of an array or, if there are many, with their count and range."""
    if is_sparse(array):
        return [[(f"{prefix}{array.nnz:,} of {array.shape[-1]:,} numbers, the others 0", colour)]]
    numbers = np.asarray(array)
    rows = [numbers.reshape(-1)]
    if numbers.ndim == 2 and 1 < len(numbers) <= MAX_LINES and numbers.shape[1] > 1:
        rows = list(numbers)
    if numbers.size == 1:
        return [[(prefix + format_number(numbers.item()), colour)]]
    if len(rows[0]) <= MAX_NUMBERS:
        lines = [f"[{' '.join([format_number(x) for x in row.tolist()])}]" for row in rows]
        return [[((prefix if i == 0 else " " * len(prefix)) + line, colour)] for i, line in enumerate(lines)]
    smallest, largest = format_number(numbers.min().item()), format_number(numbers.max().item())
    count = prefix or f"{numbers.size:,} numbers, "  # a gradient has as many as the box
    return [[(f"{count}{smallest} … {largest}", colour)]]
