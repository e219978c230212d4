"""summary: a table of a model's Functions, the shapes of their outputs, and what they cost."""

from __future__ import annotations

from typing import Any

from caffelite.core.function import Function, Shape, shape_text
from caffelite.core.recording import Recording
from caffelite.core.tables import Table, bytes_text, table
from caffelite.core.tensor import Tensor
from caffelite.model.observing import Application, bytes_made, multiply_adds, observed
from caffelite.model.shapes import (
    applying_to_zeros,
    axes_that_fit,
    dtypes_of_inputs,
    listed,
    shape_after,
    with_axes,
    zeros,
)


def summary(model: Any, input_shape: tuple[Any, ...] | None = None) -> Table:
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
        model.output_shape(*shapes)  # which says what does not fit
    applied = _applied_to_a_row(model, shapes) if known else None
    known = applied is not None
    calls, applications = applied or ([], [])
    if model.is_sequence():
        parts, output = _parts_in_sequence(model, shapes, applications), "total"
    else:
        parts, output = _parts_of_call(model, applications, known), "?"
        if known:
            output = ", ".join(map(_text, listed(model.output_shape(*shapes), of=tuple)))
    rows = []
    for name, function, text, own in parts:
        costs = _costs(function, [call for a in own for call in a.calls], own, known)
        rows.append((name, repr(function), text, *costs))
    rows.append(("", "" if output == "total" else "total", output, *_costs(model, calls, applications, known)))
    frozen = [p for p in model.parameters() if not p.requires_grad]
    if frozen:
        where = ("", "frozen") if output == "total" else ("frozen", "")
        rows.append(("", *where, *_sizes(frozen), "", ""))
    head = ["", "function", "output", "parameters", "memory", "multiply-adds", "activations"]
    return table(head, rows, "><<>>>>", cut=1)


def _parts_in_sequence(model: Any, shapes: list[Any], applications: list[Application]) -> list[tuple]:
    """The name, Function, output and application of each place."""
    within = {id(inner) for a in applications for inner in a.within}
    left = [a for a in applications if id(a) not in within]
    first_places = {id(function): name for name, function in model._named_children()}
    shape, parts = shapes[0] if len(shapes) == 1 else tuple(shapes), []
    for i, function in enumerate(model.functions):
        shape = shape_after([function], shape)
        own = [a for a in left if a.name == first_places[id(function)]][:1]
        left = [a for a in left if a not in own]
        parts.append((str(i), function, _text(shape), own))
    return parts


def _parts_of_call(model: Any, applications: list[Application], known: bool) -> list[tuple]:
    """The name, Function, output, if it is known, and applications of each child."""
    parts = []
    for name, function in model._named_children():
        own = [a for a in applications if a.name == name]
        shapes = [shape_text((None, *y.shape[1:])) for a in own[:1] for y in a.outputs]
        parts.append((name, function, ", ".join(shapes) if known else "?", own))
    return parts


def _applied_to_a_row(model: Any, shapes: list[Shape]) -> tuple[list[Any], list[Application]] | None:
    """The kernel calls of using the model on a row of zeros, and the applications of the Functions in it.

    None where one of them raises: zeros may be what it does not take.
    """
    model.all_functions()
    with applying_to_zeros(model), Recording(strict=False) as recording:
        model, applications = observed(model)
        try:
            model(*zeros([(1, *shape[1:]) for shape in shapes], dtypes_of_inputs(model, [False] * len(shapes))))
        except Exception:
            return None
    return recording.entries, applications


def _costs(function: Function, calls: list[Any], applications: list[Application], known: bool) -> tuple[str, ...]:
    """Of a Function that does this for a row: parameters, their memory, multiply-adds, activations."""
    made = multiply_adds(calls) if known else None
    activations = bytes_text(bytes_made(applications)) if known else "?"
    return *_sizes(function.parameters()), "?" if made is None else f"{made:,}", activations


def _sizes(parameters: list[Tensor]) -> tuple[str, str]:
    """The number of all elements, and their memory."""
    return f"{sum(p.size for p in parameters):,}", bytes_text(sum(p._data.nbytes for p in parameters))


def _text(shape: Any) -> str:
    """A shape as it is written, ? where nothing is known of it."""
    return "?" if shape is None else shape_text(shape)
