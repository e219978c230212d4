"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import NUMBERS, normalize_axes, reshape_array
from caffelite.core.function import Function, Shape
from caffelite.core.tensor import Tensor, add_methods
from caffelite.functions.arithmetic import as_tensor

__all__ = ["argmax", "argmin", "cumsum", "logsumexp", "max", "mean", "min", "prod", "std", "sum", "var"]

Axis = int | tuple[int, ...] | None


class Reduction(Function):
    """A Function over `axis`: one, a tuple of them, or all (None); `keepdims` keeps them, with length 1."""

    def __init__(self, axis: Axis = None, keepdims: bool = False) -> None:
        self.axis, self.keepdims = axis, keepdims

    def axes(self, ndim: int) -> tuple[int, ...]:
        return normalize_axes(self.axis, ndim)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        axes = self.axes(len(shape))
        return tuple([1 if i in axes else n for i, n in enumerate(shape) if self.keepdims or i not in axes])

    def __repr__(self) -> str:
        arguments = [] if self.axis is None else [str(self.axis)]
        arguments += ["keepdims=True"] if self.keepdims else []
        return f"{type(self).__name__}({', '.join(arguments)})"


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
        keepdims_shape = tuple(1 if i in axes else n for i, n in enumerate(self.shape))
        return kernels.multiply(dy.reshape(keepdims_shape), self.factor, kernels.output(self.shape, self.dtype))


class Mean(Sum, recordable=True):
    """y = the mean of x over `axis`; ValueError if there are no elements."""

    def scale(self, x: np.ndarray) -> float:
        count: int = math.prod(x.shape[i] for i in self.axes(x.ndim))
        if count == 0:
            raise ValueError(f"mean of no elements: shape {x.shape}, axis {self.axis}")
        return 1 / count


class Max(Reduction, recordable=True):
    """y = the largest x over `axis`, or NaN if there is one; in a tie, the first in C order gets the gradient.

    ValueError if there are no elements.
    """

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.shape = x.shape
        y, self.indices = kernels.largest(x, self.axis, self.keepdims)
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.extreme_grad(dy, self.indices, self.shape, self.axis)


class Min(Reduction, recordable=True):
    """y = the smallest x over `axis`, like `Max`."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.shape = x.shape
        y, self.indices = kernels.smallest(x, self.axis, self.keepdims)
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.extreme_grad(dy, self.indices, self.shape, self.axis)


class Prod(Reduction, recordable=True):
    """y = Π x over `axis`; 1 for no elements. dx is dy times the product of the other elements, even if x has zeros."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return kernels.prod(x, self.axis, self.keepdims)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.prod_grad(dy, self.x, self.axis)


class Var(Reduction, recordable=True):
    """y = Σ (x − m)² / (n − ddof) over `axis`, with the mean m of the n elements:  dx = dy 2 (x − m) / (n − ddof).

    ValueError unless n > ddof.
    """

    def __init__(self, axis: Axis = None, keepdims: bool = False, ddof: float = 0) -> None:
        super().__init__(axis, keepdims)
        if isinstance(ddof, bool) or not isinstance(ddof, NUMBERS):
            raise TypeError(f"{type(self).__name__}: ddof must be a number, got {ddof!r}")
        self.ddof = float(ddof)

    def scale(self, x: Any) -> float:
        """1 / (n − ddof)."""
        count: int = math.prod([x.shape[i] for i in self.axes(x.ndim)])
        if count == 0 or not count > self.ddof:
            what = type(self).__name__.lower()
            raise ValueError(f"{what} of {count} elements, with ddof={self.ddof:g}: shape {x.shape}, axis {self.axis}")
        return 1 / (count - self.ddof)

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x, self.factor = x, self.scale(x)
        return kernels.variance(x, self.axis, self.keepdims, scale=self.factor)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.variance_grad(dy, self.x, self.axis, scale=self.factor)

    def __repr__(self) -> str:
        text = super().__repr__()[:-1]
        separator = "" if text.endswith("(") else ", "
        return f"{text}{f'{separator}ddof={self.ddof:g}' if self.ddof else ''})"


class Std(Var, recordable=True):
    """y = the square root of `Var`:  dx = dy (x − m) / ((n − ddof) y). If all elements are equal, dx = 0."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.sqrt(super().forward(x))
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return super().backward(kernels.where(kernels.equal(self.y, 0), 0, kernels.sqrt_grad(dy, self.y)))


class LogSumExp(Reduction, recordable=True):
    """y = log Σ exp x over `axis`; −inf for no elements. dx = dy exp(x − y), the softmax. No exponential overflows."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return kernels.logsumexp(x, self.axis, self.keepdims)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.logsumexp_grad(dy, self.x, self.axis)


class CumSum(Function, recordable=True):
    """y[k] = x[0] + … + x[k] along `axis`:  dx[k] = dy[k] + … + dy[-1].

    If `axis` is None, y has one axis: the sums over all elements of x, in C order.
    """

    def __init__(self, axis: int | None = None) -> None:
        self.axis = axis

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        if self.axis is not None:
            normalize_axes((self.axis,), len(shape))
            return shape
        return (None if None in shape else math.prod([n for n in shape if n is not None]),)

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.shape = x.shape
        return kernels.cumsum(*self.elements(x))

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.cumsum(*self.elements(dy), reverse=True).reshape(self.shape)

    def elements(self, x: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the elements to sum, and the axis to sum them along."""
        return (reshape_array(x, (x.size,)), 0) if self.axis is None else (x, self.axis)

    def __repr__(self) -> str:
        return f"CumSum({'' if self.axis is None else self.axis})"


def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the sum over `axis`: one, a tuple of them, or all (None)."""
    return Sum(axis, keepdims).apply_once(as_tensor(x))


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the mean over `axis`: one, a tuple of them, or all (None)."""
    return Mean(axis, keepdims).apply_once(as_tensor(x))


def max(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the largest element over `axis`: one, a tuple of them, or all (None)."""
    return Max(axis, keepdims).apply_once(as_tensor(x))


def min(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the smallest element over `axis`: one, a tuple of them, or all (None)."""
    return Min(axis, keepdims).apply_once(as_tensor(x))


def prod(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the product over `axis`: one, a tuple of them, or all (None)."""
    return Prod(axis, keepdims).apply_once(as_tensor(x))


def var(x: Any, axis: Any = None, keepdims: bool = False, ddof: float = 0) -> Tensor:
    """Return the variance, Σ (x − mean)² / (n − ddof), over `axis`: one, a tuple of them, or all (None)."""
    return Var(axis, keepdims, ddof).apply_once(as_tensor(x))


def std(x: Any, axis: Any = None, keepdims: bool = False, ddof: float = 0) -> Tensor:
    """Return the standard deviation over `axis`, the square root of `var`."""
    return Std(axis, keepdims, ddof).apply_once(as_tensor(x))


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """log Σ exp x over `axis`: one, a tuple of them, or all (None). No exponential overflows."""
    return LogSumExp(axis, keepdims).apply_once(as_tensor(x))


def cumsum(x: Any, axis: int | None = None) -> Tensor:
    """Return the sums of the first 1, 2, … elements along `axis`. If it is None, x is one vector."""
    return CumSum(axis).apply_once(as_tensor(x))


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> np.ndarray:
    """Return the index of the largest element along `axis`, as an int64 array.

    If `axis` is None, it is the index in C order among all. In a tie it is the first such index; if there are NaNs,
    that of the first NaN. It has no gradient. Raise ValueError if there are no elements.
    """
    return _arg_extremum(kernels.largest, "argmax", x, axis, keepdims)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> np.ndarray:
    """Return the index of the smallest element along `axis`, like `argmax`."""
    return _arg_extremum(kernels.smallest, "argmin", x, axis, keepdims)


def _arg_extremum(
    kernel: Callable[..., tuple[np.ndarray, np.ndarray]], name: str, x: Any, axis: int | None, keepdims: bool
) -> np.ndarray:
    if isinstance(axis, tuple):
        raise TypeError(f"{name} takes one axis or None, got {axis}")
    return kernel(as_tensor(x).data, axis, keepdims)[1]


add_methods(sum, mean, max, min, prod, var, std, cumsum, argmax, argmin)
