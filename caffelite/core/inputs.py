"""Checks and conversions of a Function's input and its gradient: the required shape, and the weight's dtype.

`Function.check_input_shape` and `Function.check_input` use this. The part that runs at every operation is in
autograd.pyx.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import FLOATS, as_real, native_dtype
from caffelite.core.sparse import SparseRows, as_sparse, is_sparse

Shape = tuple[int | None, ...]


def format_shape(shape: Shape) -> str:
    """Return a shape for messages and tables: n is an unknown number of rows, and ? any other unknown length."""
    lengths = ["n?"[i > 0] if length is None else str(length) for i, length in enumerate(shape)]
    return f"({', '.join(lengths)}{',' * (len(shape) == 1)})"


def format_required_shape(required: Sequence[Any], axis_names: Sequence[str], shape: Shape) -> str:
    """Return a required shape for messages and, if known, how to convert an input of another shape to it."""
    names = [*axis_names, *"?" * len(required)]
    lengths = ["…" if n is ... else names[i] if n is None else str(n) for i, n in enumerate(required)]
    return f"({', '.join(lengths)}){_shape_hint(shape, required)}"


def _shape_hint(shape: Shape, required: Sequence[Any]) -> str:
    """Return how to fix the usual mistakes: a missing axis, a missing Flatten, channels last."""
    if ... in required and isinstance(required[-1], int):  # rows of features
        if len(shape) == 1:
            return ": x[:, None] has rows of one number" if required[-1] == 1 else "; for a single example give x[None]"
        row = shape[1:]
        is_flat = None not in row and math.prod(n for n in row if n is not None) == required[-1]
        return ", which Flatten() makes of it" if is_flat else ""
    if len(required) > 2 and isinstance(required[1], int):  # images or series of channels
        if len(shape) == len(required) - 1 and required[1] == 1:
            return ": x[:, None] has an axis for the one channel"
        if len(shape) == len(required) and shape[-1] == required[1]:
            axes = 0, len(shape) - 1, *range(1, len(shape) - 1)
            return f": channels come first, x.transpose({', '.join(map(str, axes))})"
    return ""


def cast_input(function: Any, x: Any, weight: Any, weight_shape: Any) -> Any:
    """Convert x for `Function.check_input` if x itself does not fit. Raise if the conversion is not possible."""
    dtype = None if weight is None else weight.dtype
    x = _as_array(function, x, dtype)
    function.check_input_shape(x.shape)
    if weight_shape is not None and weight.shape != weight_shape:
        raise ValueError(
            f"{function._label()} has a weight of shape {weight.shape}, expected {weight_shape}: to use another "
            "layer's weight transposed, write x @ weight.T in a `call`"
        )
    return as_float(function, x, dtype)


def as_float(function: Any, x: Any, dtype: np.dtype | None, name: str = "") -> Any:
    """Return x as an array in native byte order. TypeError unless it has this dtype; None is float32 or float64."""
    x = _as_array(function, x, dtype)
    if dtype is None and native_dtype(x) not in FLOATS:
        raise TypeError(f"{function._label()} takes float32 or float64, got {x.dtype}")
    if dtype is not None and native_dtype(x) != dtype:
        got = f"{name} in {x.dtype}" if name else str(x.dtype)
        raise TypeError(f"{function._label()} is {dtype}, got {got}: convert it, or make Model(dtype=…)")
    return x if type(x) is SparseRows or x.dtype.isnative else kernels.convert(x, native_dtype(x))


def cast_gradient(function: Any, dx: Any, x: Any) -> np.ndarray:
    """Convert the gradient that `backward` returned for the Tensor x to x's dtype. ValueError if the shapes differ."""
    if np.shape(dx) != x.shape:
        raise ValueError(
            f"{function!r}.backward returned a gradient of shape {np.shape(dx)} for an input of shape {x.shape}"
        )
    return as_real(dx, x.dtype, function)


def _as_array(function: Any, x: Any, dtype: np.dtype | None) -> Any:
    """Return x, or an array made from a list, or SparseRows from a sparse matrix."""
    if type(x) is SparseRows or isinstance(x, np.ndarray):
        return x
    return as_sparse(x) if is_sparse(x) else as_real(x, dtype, function)
