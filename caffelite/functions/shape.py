"""Views: the same elements in another shape. `Reshape` and `Flatten` are layers, and do not change the rows."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import normalize_axes, to_integers
from caffelite.core.function import Function, Shape
from caffelite.core.tensor import Tensor, add_methods
from caffelite.functions.arithmetic import as_tensor

__all__ = ["Flatten", "Reshape", "expand_dims", "reshape", "squeeze", "transpose"]


class ToShape(Function, recordable=True):
    """The elements of x, in order, in another shape; one length may be −1. A view if the memory allows it."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        count = math.prod(n for n in shape if n is not None)
        known_count = math.prod(n for n in self.shape if n != -1)
        rest = None if None in shape else count // max(known_count, 1)  # the length that −1 means
        y: Any = tuple([rest if n == -1 else n for n in self.shape])
        if None not in (*shape, *y) and math.prod(y) != count:
            raise ValueError(f"{self!r} got shape {shape}")
        return y

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x_shape = x.shape
        return reshape_array(x, self.shape)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return reshape_array(dy, self.x_shape)

    def __repr__(self) -> str:
        return f"ToShape({', '.join(map(str, self.shape))})"


class Reshape(Function, recordable=True, rowwise=True):
    """The elements of each row of x (n, …), in order, in another shape; one length may be −1. A view if possible."""

    def __init__(self, shape: int | Iterable[int]) -> None:
        self.shape = tuple([operator.index(n) for n in (shape if isinstance(shape, Iterable) else (shape,))])
        if any(n < -1 for n in self.shape) or self.shape.count(-1) > 1:
            raise ValueError(f"Reshape takes the lengths of a row's axes, one of them −1 at most, got {shape}")

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        if not shape:
            raise ValueError(f"{self!r} got shape (); expected rows, (n, …)")
        row, known_count = shape[1:], math.prod(n for n in self.shape if n != -1)
        count = None if None in row else math.prod(n for n in row if n is not None)
        if count is not None and (
            count != known_count if -1 not in self.shape else known_count == 0 or count % known_count
        ):
            raise ValueError(f"{self!r} got rows of shape {row}, shape {shape}; that is {count} elements a row")
        return (shape[0], *[(None if count is None else count // known_count) if n == -1 else n for n in self.shape])

    def is_rowwise(self) -> bool:
        return super().is_rowwise() and self.shape != ()  # Softmax may take an axis of numbers for one of classes

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x_shape = x.shape
        y_shape: Any = self.output_shape(x.shape)
        return reshape_array(x, y_shape)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return reshape_array(dy, self.x_shape)

    def __repr__(self) -> str:
        return f"Reshape({self.shape})"


class Flatten(Reshape, recordable=True, rowwise=True):
    """Each row of x (n, …) as a vector, y (n, k). A view if it can be one."""

    def __init__(self) -> None:
        super().__init__(-1)

    def __repr__(self) -> str:
        return "Flatten()"


def reshape_array(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """x in another shape, a view if the memory allows it."""
    view = x.reshape(shape)
    is_view = x.flags.c_contiguous or np.may_share_memory(view, x) or x.size == 0
    return view if is_view else kernels.copy(x).reshape(shape)


def as_rows(x: Any) -> Any:
    """x (…, k) as rows (n, k), a view if the memory allows it. A matrix and sparse rows stay as they are."""
    return x if x.ndim == 2 else reshape_array(x, (-1, x.shape[-1]))


def restore_axes(rows: np.ndarray, lengths: tuple[int, ...]) -> np.ndarray:
    """Rows (n, k) as (*lengths, k), which undoes `as_rows`."""
    return rows if len(lengths) == 1 else rows.reshape(*lengths, rows.shape[-1])


class Transpose(Function, recordable=True):
    """x with its axes in another order, given as numbers or as a tuple; reversed without arguments. A view."""

    def __init__(self, *axes: Any) -> None:
        self.axes = None if not axes or (len(axes) == 1 and axes[0] is None) else _as_integers(axes)

    def arguments(self) -> dict[str, Any]:
        return {"axes": self.axes or ()}

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        try:  # the order of the axes, as the shape of an array of shape (0, 1, 2, …)
            order = np.empty(range(len(shape))).transpose(self.axes).shape
        except ValueError as error:
            raise ValueError(f"{self!r} got shape {shape}: {error}") from None
        return tuple([shape[i] for i in order])

    def forward(self, x: np.ndarray) -> np.ndarray:
        return x.transpose(self.axes)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return dy.transpose(None if self.axes is None else np.argsort(np.asarray(self.axes) % dy.ndim))

    def __repr__(self) -> str:
        return f"Transpose({', '.join(map(str, self.axes or ()))})"


def reshape(x: Any, *shape: Any) -> Tensor:
    """Return the elements of x, in order, in another shape, given as numbers or as a tuple."""
    return ToShape(*_as_integers(shape)).apply_once(as_tensor(x))


def transpose(x: Any, *axes: Any) -> Tensor:
    """x with its axes in another order, given as numbers or as a tuple; reversed without them."""
    return Transpose(*axes).apply_once(as_tensor(x))


def squeeze(x: Any, axis: Any = None) -> Tensor:
    """x without axes of length 1: one, a tuple of them, or all (None). A view.

    Raise ValueError for an axis of another length, and for one that x does not have.
    """
    x = as_tensor(x)
    axes = [i for i, n in enumerate(x.shape) if n == 1] if axis is None else normalize_axes(axis, x.ndim)
    if any(x.shape[i] != 1 for i in axes):
        raise ValueError(f"squeeze got shape {x.shape}; expected length 1 along axis {axis}")
    return reshape(x, [n for i, n in enumerate(x.shape) if i not in axes])


def expand_dims(x: Any, axis: int | tuple[int, ...]) -> Tensor:
    """x with new axes of length 1: one, or a tuple of them, at these places in the result. A view.

    Raise ValueError for a place that the result does not have, and for one that comes twice.
    """
    x = as_tensor(x)
    axes = to_integers("expand_dims", axis)
    ndim = x.ndim + len(axes)
    new_axes, lengths = normalize_axes(axes, ndim), iter(x.shape)
    return reshape(x, [1 if i in new_axes else next(lengths) for i in range(ndim)])


def _as_integers(arguments: tuple) -> tuple[int, ...]:
    """Integers that were given one by one or in one sequence."""
    if len(arguments) == 1 and isinstance(arguments[0], Sequence | np.ndarray):
        arguments = tuple(arguments[0])
    if any(isinstance(n, bool) for n in arguments):
        raise TypeError(f"expected integers, got {arguments}")
    return tuple([operator.index(n) for n in arguments])


add_methods(reshape, transpose, squeeze)
