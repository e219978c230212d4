"""Views: other shapes of the same elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.function import Function
from caffelite.tensor import Tensor


class Reshape(Function, recordable=True):
    """The elements of x, in order, in another shape; one length may be −1. A view where the memory allows it."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x_shape = x.shape
        return reshaped(x, self.shape)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return reshaped(dy, self.x_shape)

    def __repr__(self) -> str:
        return f"Reshape{self.shape}"


def reshaped(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """x in another shape, a view where the memory allows it."""
    view = x.reshape(shape)
    return view if np.may_share_memory(view, x) or x.size == 0 else kernels.copy(x).reshape(shape)


class Transpose(Function, recordable=True):
    """x with its axes in another order; reversed without arguments. A view."""

    def __init__(self, *axes: int) -> None:
        self.axes = axes or None

    def forward(self, x: np.ndarray) -> np.ndarray:
        return x.transpose(self.axes)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return dy.transpose(None if self.axes is None else np.argsort(np.asarray(self.axes) % dy.ndim))

    def __repr__(self) -> str:
        return f"Transpose{self.axes or '()'}"


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """The elements of x, in order, in another shape, given as numbers or as a tuple."""
    return Reshape(*_numbers(shape)).applied_to(x)


def transpose(x: Tensor, *axes: Any) -> Tensor:
    """x with its axes in another order, given as numbers or as a tuple; reversed without them."""
    return Transpose(*_numbers(axes)).applied_to(x)


def _numbers(arguments: tuple) -> tuple[int, ...]:
    if len(arguments) == 1 and not isinstance(arguments[0], int | np.integer):
        return tuple(arguments[0] or ())
    return arguments


Tensor.reshape = reshape
Tensor.transpose = transpose
