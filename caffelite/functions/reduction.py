"""Reductions over axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from caffelite import _kernels as kernels
from caffelite.function import Function
from caffelite.tensor import Tensor

Axis = int | tuple[int, ...] | None


class Reduction(Function):
    """A Function over `axis`: one, a tuple of them, or all (None); with `keepdims` they stay, of length 1."""

    def __init__(self, axis: Axis = None, keepdims: bool = False) -> None:
        self.axis, self.keepdims = axis, keepdims

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.axis}{', keepdims=True' if self.keepdims else ''})"


class Sum(Reduction, recordable=True):
    """y = Σ x over `axis`."""

    def axes(self, ndim: int) -> tuple[int, ...]:
        return tuple(range(ndim)) if self.axis is None else normalize_axis_tuple(self.axis, ndim)

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


def sum(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The sum over `axis`: one, a tuple of them, or all (None)."""
    return Sum(axis, keepdims).applied_to(x)


def mean(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The mean over `axis`: one, a tuple of them, or all (None)."""
    return Mean(axis, keepdims).applied_to(x)


def max(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The largest element over `axis`: one, a tuple of them, or all (None)."""
    return Max(axis, keepdims).applied_to(x)


def min(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The smallest element over `axis`: one, a tuple of them, or all (None)."""
    return Min(axis, keepdims).applied_to(x)


Tensor.sum = sum
Tensor.mean = mean
Tensor.max = max
Tensor.min = min
