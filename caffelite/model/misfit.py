"""Errors about layers that do not fit: where in the sequence the layer is, and which layer would fit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from caffelite._support.text_table import shorten
from caffelite.core.function import Function, format_shape
from caffelite.core.modes import meta_init
from caffelite.files.state import BaseModel
from caffelite.functions import Linear, Transpose
from caffelite.functions.pooling import GlobalPool
from caffelite.model import shapes


def check_sequence(functions: list[Function]) -> None:
    """Raise ValueError if a Function can't follow the one before it, with its place and the Function that would fit."""
    try:
        shapes.check_sequence(functions)
    except ValueError as error:
        raise ValueError(f"{error}{describe_misfit(functions)}") from None


def describe_misfit(functions: Sequence[Function], input_shape: Any = None) -> str:
    """Return the end of a message about Functions in sequence that do not fit, for an input of this shape, if any.

    Return "" if it is the first one that does not fit, and for a model, whose own message has the layer.
    """
    shape = input_shape
    for i, function in enumerate(functions):
        try:
            shape = shapes.infer_shape([function], shape)
        except ValueError:  # noqa: PERF203 (only for errors)
            if i == 0 or isinstance(function, BaseModel):
                return ""
            remedy = (
                _suggest_pool(functions[: i + 1], input_shape)
                or _suggest_transpose(functions[: i + 1], shape)
                or _suggest_layer(function, shape)
            )
            return f"; it is layer {i} of the model, after {shorten(repr(functions[i - 1]), 40)}{remedy}"
    return ""


def _suggest_pool(functions: Sequence[Function], shape: Any) -> str:
    """Return a global pool that keeps the last axis, and with which the last Function fits; "" if there is none."""
    for i, pool in enumerate(functions):
        x = shapes.infer_shape([*functions[:i]], shape) or ()
        if isinstance(pool, GlobalPool) and pool.axis is None and len(x) > 2:
            other = type(pool)(axis=1 if len(x) == 3 else tuple(range(1, len(x) - 1)))
            with suppress(ValueError):
                shapes.infer_shape([other, *functions[i + 1 :]], x)
                return f": it fits if layer {i} is {other!r}, which keeps the last axis of {format_shape(x)}"
    return ""


def _suggest_transpose(functions: Sequence[Function], shape: Any) -> str:
    """Return the layer between (n, channels, length) and (n, length, features), if the last Function then fits."""
    *earlier, last = functions
    is_like_earlier = type(last) in map(type, earlier)  # both then have the same order of axes
    if len(shape) == 3 and not is_like_earlier and not isinstance(last, Linear):  # before it, a Flatten may be missing
        with suppress(ValueError):
            shapes.infer_shape([Transpose(0, 2, 1), last], shape)
            return f": it fits after cl.functions.Transpose(0, 2, 1), which swaps the axes of {format_shape(shape)}"
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
