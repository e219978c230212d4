"""Errors about layers that do not fit: where in the sequence the layer is, and which layer would fit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from caffelite._support.text_table import shorten
from caffelite.core.function import Function
from caffelite.core.modes import meta_init
from caffelite.files.state import BaseModel
from caffelite.model import shapes


def check_sequence(functions: list[Function]) -> None:
    """Raise ValueError if a Function can't follow the one before it, with its place and the Function that would fit."""
    try:
        shapes.check_sequence(functions)
    except ValueError as error:
        raise ValueError(f"{error}{describe_misfit(functions)}") from None


def describe_misfit(functions: Sequence[Function], shape: Any = None) -> str:
    """Return the end of a message about Functions in sequence that do not fit, for an input of this shape, if any.

    Return "" if it is the first one that does not fit, and for a model, whose own message has the layer.
    """
    for i, function in enumerate(functions):
        try:
            shape = shapes.infer_shape([function], shape)
        except ValueError:  # noqa: PERF203 (only for errors)
            if i == 0 or isinstance(function, BaseModel):
                return ""
            after = shorten(repr(functions[i - 1]), 40)
            return f"; it is layer {i} of the model, after {after}{_suggest_layer(function, shape)}"
    return ""


def _suggest_layer(function: Function, shape: Any) -> str:
    """Return the layer with another first argument, the size of its input; "" if none fits."""
    required = function.required_input_shape or ()
    if not type(function).__module__.startswith("caffelite.") or (... in required[1:-1] and len(shape) > 2):
        return ""  # of rows that have several axes, a Flatten may be missing
    arguments = function.arguments()
    for size in filter(None, shape[1:]):
        with suppress(TypeError, ValueError), meta_init():
            layer = type(function)(**arguments | dict.fromkeys([*arguments][:1], size))
            shapes.infer_shape([layer], shape)
            return f": {layer!r} fits"
    return ""
