"""summary: a table of a model's Functions, the shapes of their outputs, and their costs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from caffelite._support.text_table import TextTable, format_bytes, text_table
from caffelite.core.function import Function, Shape, format_shape
from caffelite.core.recording import PythonCallback
from caffelite.core.tensor import Tensor
from caffelite.model.shapes import (
    applying_to_zeros,
    axes_that_fit,
    dtypes_of_inputs,
    listed,
    shape_after,
    with_axes,
    zeros,
)
from caffelite.model.tracing import Applied, Trace, data_of
from caffelite.program.ir import owner_of


def summary(model: Any, input_shape: tuple[Any, ...] | None = None) -> TextTable:
    """Return the table of the Functions, their shapes and costs; see `Model.summary`."""
    if input_shape is not None and not isinstance(input_shape, tuple | list):
        raise TypeError(f"summary: expected the shape of a row, such as (64,), got {input_shape!r}")
    more = axes_that_fit(model.functions) if model.is_sequence() else None
    shapes: Any = listed(with_axes(model.required_input_shape, more or 0), of=tuple)
    if input_shape is not None:
        shapes = [(None, *shape) for shape in listed(input_shape, of=tuple)]
    if model.is_sequence() and len(shapes) != len(listed(model.required_input_shape, of=tuple)):
        raise ValueError(f"summary: expected the shape of a row of one input, got {input_shape}")
    known = all(shape is not None and None not in shape[1:] for shape in shapes)
    if known:
        model.output_shape(*shapes)  # raises an error that says what does not fit
    trace = _applied_to_a_row(model, shapes) if known else None
    known = trace is not None
    calls, steps = ([], []) if trace is None else (trace.entries, trace.steps)
    if model.is_sequence():
        parts, output = _parts_in_sequence(model, shapes, steps), "total"
    else:
        parts, output = _parts_of_call(model, [] if trace is None else trace.all_steps(), known), "?"
        if known:
            output = ", ".join(map(_text, listed(model.output_shape(*shapes), of=tuple)))
    rows = []
    for name, function, text, own in parts:
        costs = _costs(function, [call for step in own for call in step.calls], own, known)
        rows.append((name, repr(function), text, *costs))
    rows.append(("", "" if output == "total" else "total", output, *_costs(model, calls, steps, known)))
    frozen = [p for p in model.parameters() if not p.requires_grad]
    if frozen:
        where = ("", "frozen") if output == "total" else ("frozen", "")
        rows.append(("", *where, *_sizes(frozen), "", ""))
    head = ["", "function", "output", "parameters", "memory", "multiply-adds", "activations"]
    return text_table(head, rows, "><<>>>>", cut=1)


def _parts_in_sequence(model: Any, shapes: list[Any], steps: list[Applied]) -> list[tuple]:
    """List each Function's name, Function, output and step."""
    left = [*steps]
    first_places = {id(function): name for name, function in model._named_children()}
    shape, parts = shapes[0] if len(shapes) == 1 else tuple(shapes), []
    for i, function in enumerate(model.functions):
        shape = shape_after([function], shape)
        own = [step for step in left if step.name == first_places[id(function)]][:1]
        left = [step for step in left if step not in own]
        parts.append((str(i), function, _text(shape), own))
    return parts


def _parts_of_call(model: Any, steps: list[Applied], known: bool) -> list[tuple]:
    """List each child's name, Function, output (if known) and steps."""
    parts = []
    for name, function in model._named_children():
        own = [step for step in steps if step.name == name]
        shapes = [format_shape((None, *y.shape[1:])) for step in own[:1] for y in step.outputs]
        parts.append((name, function, ", ".join(shapes) if known else "?", own))
    return parts


def _applied_to_a_row(model: Any, shapes: list[Shape]) -> Trace | None:
    """Trace the model on a row of zeros. Return None if a Function raises: it may not take zeros."""
    model.all_functions()
    with applying_to_zeros(model), Trace(model, strict=False) as trace:
        try:
            trace.model(*zeros([(1, *shape[1:]) for shape in shapes], dtypes_of_inputs(model, [False] * len(shapes))))
        except Exception:
            return None
    return trace


def _costs(function: Function, calls: list[Any], steps: list[Applied], known: bool) -> tuple[str, ...]:
    """Return the costs of a Function for one row: parameters, memory, multiply-adds, activations."""
    made = _multiply_adds(calls) if known else None
    activations = format_bytes(_bytes_made(steps)) if known else "?"
    return *_sizes(function.parameters()), "?" if made is None else f"{made:,}", activations


def _multiply_adds(calls: Iterable[Any]) -> int | None:
    """Count the multiply-adds in products and convolutions; None if Python computes a part."""
    calls = list(calls)
    if any(isinstance(call, PythonCallback) for call in calls):
        return None
    return sum(call.flops or 0 for call in calls) // 2


def _bytes_made(steps: Iterable[Applied]) -> int:
    """Count the bytes of the outputs of the model's Functions in these steps: each array once, no views."""
    made: dict[int, int] = {}
    for one in [inner for step in steps for inner in step.all_steps() if inner.name]:
        inputs, outputs = (list(map(data_of, arrays)) for arrays in (one.inputs, one.outputs))
        given = {id(owner_of(x)) for x in inputs if isinstance(x, np.ndarray)}
        made |= {id(owner_of(y)): owner_of(y).nbytes for y in outputs if id(owner_of(y)) not in given}
    return sum(made.values())


def _sizes(parameters: list[Tensor]) -> tuple[str, str]:
    """Return the number of all elements, and their memory."""
    return f"{sum(p.size for p in parameters):,}", format_bytes(sum(p._data.nbytes for p in parameters))


def _text(shape: Any) -> str:
    """Write a shape; "?" if it is unknown."""
    return "?" if shape is None else format_shape(shape)
