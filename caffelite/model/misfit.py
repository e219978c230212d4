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


def describe_misfit(functions: Sequence[Function], shape: Any = None) -> str:
    """Return the end of a message about Functions in sequence that do not fit together, for an input of this shape.

    Without a shape, the first Function gets what it requires. Return "" if the first one does not fit, and for a model,
    whose own message has the layer.
    """
    for i, function in enumerate(functions):
        try:
            shape = shapes.infer_shape([function], shape)
        except ValueError:
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
