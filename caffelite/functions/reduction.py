"""Reductions over axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import normalized_axes
from caffelite.core.function import Function, Shape
from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import as_tensor

__all__ = ["max", "mean", "min", "sum"]

Axis = int | tuple[int, ...] | None


class Reduction(Function):
    """A Function over `axis`: one, a tuple of them, or all (None); with `keepdims` they stay, of length 1."""

    def __init__(self, axis: Axis = None, keepdims: bool = False) -> None:
        self.axis, self.keepdims = axis, keepdims

    def axes(self, ndim: int) -> tuple[int, ...]:
        return normalized_axes(self.axis, ndim)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        axes = self.axes(len(shape))
        return tuple([1 if i in axes else n for i, n in enumerate(shape) if self.keepdims or i not in axes])

    def __repr__(self) -> str:
        given = [] if self.axis is None else [str(self.axis)]
        given += ["keepdims=True"] if self.keepdims else []
        return f"{type(self).__name__}({', '.join(given)})"


class Sum(Reduction, recordable=True):
    """y = Σ x over `axis`."""

    def scale(self, x: np.ndarray) -> float:
        return 1.0

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.shape, self.factor = x.shape, self.scale(x)
        y = kernels.sum(x, self.axis, self.keepdims, scale=self.factor)
        self.dtype = y.dtype
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        axes = self.axes(len(self.shape))
        kept = tuple(1 if i in axes else n for i, n in enumerate(self.shape))
        return kernels.multiply(dy.reshape(kept), self.factor, kernels.output(self.shape, self.dtype))


class Mean(Sum, recordable=True):
    """y = the mean of x over `axis`; ValueError for a mean of no elements."""

    def scale(self, x: np.ndarray) -> float:
        count = math.prod(x.shape[i] for i in self.axes(x.ndim))
        if count == 0:
            raise ValueError(f"mean of no elements: shape {x.shape}, axis {self.axis}")
        return 1 / count


class Max(Reduction, recordable=True):
    """y = the largest x over `axis`, NaN where one is; ties give the gradient to the first, in C order.

    ValueError for the largest of no elements.
    """

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.shape = x.shape
        y, self.first = kernels.largest(x, self.axis, self.keepdims)
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.extreme_grad(dy, self.first, self.shape, self.axis)


class Min(Reduction, recordable=True):
    """y = the smallest x over `axis`, as `Max`."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.shape = x.shape
        y, self.first = kernels.smallest(x, self.axis, self.keepdims)
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.extreme_grad(dy, self.first, self.shape, self.axis)


def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The sum over `axis`: one, a tuple of them, or all (None)."""
    return Sum(axis, keepdims).applied_to(as_tensor(x))


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The mean over `axis`: one, a tuple of them, or all (None)."""
    return Mean(axis, keepdims).applied_to(as_tensor(x))


def max(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The largest element over `axis`: one, a tuple of them, or all (None)."""
    return Max(axis, keepdims).applied_to(as_tensor(x))


def min(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The smallest element over `axis`: one, a tuple of them, or all (None)."""
    return Min(axis, keepdims).applied_to(as_tensor(x))


Tensor.sum = sum
Tensor.mean = mean
Tensor.max = max
Tensor.min = min
