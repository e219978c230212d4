"""summary: a table of a model's Functions, the shapes of their outputs, and their costs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from caffelite._support.text_table import TextTable, format_bytes, text_table
from caffelite.core.function import Function, Shape, format_shape
from caffelite.core.python_callback import PythonCallback
from caffelite.core.tensor import Tensor
from caffelite.model.container import Container
from caffelite.model.shapes import dry_run, fill_ellipsis, find_extra_axes, infer_shape, input_dtypes, zeros
from caffelite.model.tracing import Trace, TraceStep, to_list, unwrap_tensor
from caffelite.program.ir import get_owner


def summary(model: Container, input_shape: tuple[Any, ...] | None = None) -> TextTable:
    """Return the table of the Functions, their shapes and costs; see `Model.summary`."""
    if input_shape is not None and not isinstance(input_shape, tuple | list):
        raise TypeError(f"summary: expected the shape of a row, such as (64,), got {input_shape!r}")
    extra_axes = find_extra_axes(model.functions) if model.is_sequence() else None
    shapes: Any = to_list(fill_ellipsis(model.required_input_shape, extra_axes or 0), kind=tuple)
    if input_shape is not None:
        shapes = [(None, *shape) for shape in to_list(input_shape, kind=tuple)]
    if model.is_sequence() and len(shapes) != len(to_list(model.required_input_shape, kind=tuple)):
        raise ValueError(f"summary: expected the shape of a row of one input, got {input_shape}")
    is_known = all(shape is not None and None not in shape[1:] for shape in shapes)
    if is_known:
        model.output_shape(*shapes)  # raises an error that says what does not fit
    trace = _trace_row(model, shapes) if is_known else None
    is_known = trace is not None
    calls, steps = ([], []) if trace is None else (trace.entries, trace.steps)
    if model.is_sequence():
        parts, output = _parts_in_sequence(model, shapes, steps), "total"
    else:
        parts, output = _parts_of_call(model, [] if trace is None else trace.all_steps(), is_known), "?"
        if is_known:
            output = ", ".join(map(_text, to_list(model.output_shape(*shapes), kind=tuple)))
    rows = []
    for name, function, text, own_steps in parts:
        costs = _costs(function, [call for step in own_steps for call in step.calls], own_steps, is_known)
        rows.append((name, repr(function), text, *costs))
    rows.append(("", "" if output == "total" else "total", output, *_costs(model, calls, steps, is_known)))
    frozen = [p for p in model.parameters() if not p.requires_grad]
    if frozen:
        where = ("", "frozen") if output == "total" else ("frozen", "")
        rows.append(("", *where, *_sizes(frozen), "", ""))
    head = ["", "function", "output", "parameters", "memory", "multiply-adds", "activations"]
    return text_table(head, rows, "><<>>>>", cut=1)


def _parts_in_sequence(model: Container, shapes: list[Any], steps: list[TraceStep]) -> list[tuple[Any, ...]]:
    """List each Function's name, Function, output and step."""
    remaining = [*steps]
    first_places = {id(function): name for name, function in model._named_children()}
    shape, parts = shapes[0] if len(shapes) == 1 else tuple(shapes), []
    for i, function in enumerate(model.functions):
        shape = infer_shape([function], shape)
        own_steps = [step for step in remaining if step.name == first_places[id(function)]][:1]
        remaining = [step for step in remaining if step not in own_steps]
        parts.append((str(i), function, _text(shape), own_steps))
    return parts


def _parts_of_call(model: Container, steps: list[TraceStep], is_known: bool) -> list[tuple[Any, ...]]:
    """List each child's name, Function, output (if known) and steps."""
    parts = []
    for name, function in model._named_children():
        own_steps = [step for step in steps if step.name == name]
        shapes = [format_shape((None, *y.shape[1:])) for step in own_steps[:1] for y in step.outputs]
        parts.append((name, function, ", ".join(shapes) if is_known else "?", own_steps))
    return parts


def _trace_row(model: Container, shapes: list[Shape]) -> Trace | None:
    """Trace the model on a row of zeros. Return None if a Function raises: it may not take zeros."""
    model.all_functions()
    trace = Trace(model, strict=False)
    with dry_run(model), trace:
        try:
            trace.model(*zeros([(1, *shape[1:]) for shape in shapes], input_dtypes(model, [False] * len(shapes))))
        except Exception:
            return None
    return trace


def _costs(function: Function, calls: list[Any], steps: list[TraceStep], is_known: bool) -> tuple[str, ...]:
    """Return the costs of a Function for one row: parameters, memory, multiply-adds, activations."""
    multiply_adds = _multiply_adds(calls) if is_known else None
    activations = format_bytes(_activation_bytes(steps)) if is_known else "?"
    return *_sizes(function.parameters()), "?" if multiply_adds is None else f"{multiply_adds:,}", activations


def _multiply_adds(calls: Iterable[Any]) -> int | None:
    """Count the multiply-adds in products and convolutions; None if Python computes a part."""
    calls = list(calls)
    if any(isinstance(call, PythonCallback) for call in calls):
        return None
    return sum(call.flops or 0 for call in calls) // 2


def _activation_bytes(steps: Iterable[TraceStep]) -> int:
    """Count the bytes of the outputs of the model's Functions in these steps: each array once, no views."""
    sizes: dict[int, int] = {}
    for application in [inner for step in steps for inner in step.all_steps() if inner.name]:
        inputs, outputs = (list(map(unwrap_tensor, arrays)) for arrays in (application.inputs, application.outputs))
        input_ids = {id(get_owner(x)) for x in inputs if isinstance(x, np.ndarray)}
        sizes |= {id(get_owner(y)): get_owner(y).nbytes for y in outputs if id(get_owner(y)) not in input_ids}
    return sum(sizes.values())


def _sizes(parameters: list[Tensor]) -> tuple[str, str]:
    """Return the number of all elements, and their memory."""
    return f"{sum(p.size for p in parameters):,}", format_bytes(sum(p._data.nbytes for p in parameters))


def _text(shape: Any) -> str:
    """Write a shape; "?" if it is unknown."""
    return "?" if shape is None else format_shape(shape)
