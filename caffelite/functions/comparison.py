"""Choices between values, element by element."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import as_array, as_real, native_dtype
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor, add_methods
from caffelite.functions.arithmetic import (
    BroadcastFunction,
    Gradients,
    as_operands,
    as_tensor,
    operand_shape,
    sum_to_shape,
)

__all__ = ["clip", "maximum", "minimum", "where"]


class Clip(Function, recordable=True, rowwise=True):
    """y = min(max(x, low), high), elementwise; None means no bound. dx = dy where low ≤ x ≤ high, else 0.

    If low > high, y is high, as in NumPy.
    """

    def __init__(self, low: float | None, high: float | None) -> None:
        for bound in (low, high):
            if bound is not None and not isinstance(bound, int | float | np.integer | np.floating):
                raise TypeError(f"clip takes numbers or None, got {type(bound).__name__}")
            if isinstance(bound, int) and abs(bound) > sys.float_info.max:
                raise ValueError("clip got an integer that is too large for a float")
        self.low, self.high = low, high

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return kernels.clip(x, *self.bounds())

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.clip_grad(dy, self.x, *self.bounds())

    def bounds(self) -> tuple[float, float]:
        """Return the bounds as numbers, −∞ or ∞ if a bound is None."""
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high

    def __repr__(self) -> str:
        return f"Clip({self.low}, {self.high})"


class Maximum(BroadcastFunction, recordable=True):
    """y = the larger of a and b, elementwise; NaN if one is NaN. The larger one gets dy; of equal ones, a does."""

    def forward(self, a: Any, b: Any) -> np.ndarray:
        self.a, self.b = a, b
        return kernels.maximum(a, b)

    def backward(self, dy: np.ndarray) -> Gradients:
        da = db = None
        if self.wants_gradient(0):
            da = sum_to_shape(kernels.maximum_grad(dy, self.a, self.b, False), operand_shape(self.a))
        if self.wants_gradient(1):
            db = sum_to_shape(kernels.maximum_grad(dy, self.a, self.b, True), operand_shape(self.b))
        return da, db


class Minimum(BroadcastFunction, recordable=True):
    """y = the smaller of a and b, elementwise; NaN if one is NaN. The smaller one gets dy; of equal ones, a does."""

    def forward(self, a: Any, b: Any) -> np.ndarray:
        self.a, self.b = a, b
        return kernels.minimum(a, b)

    def backward(self, dy: np.ndarray) -> Gradients:
        da = db = None
        if self.wants_gradient(0):
            da = sum_to_shape(kernels.minimum_grad(dy, self.a, self.b, False), operand_shape(self.a))
        if self.wants_gradient(1):
            db = sum_to_shape(kernels.minimum_grad(dy, self.a, self.b, True), operand_shape(self.b))
        return da, db


class Where(BroadcastFunction, recordable=True):
    """y = a where the condition is true, else b. The three are broadcast to each other.

    The condition is an array of bools, or of numbers, which are true unless 0. It comes last and has no gradient.
    """

    def forward(self, a: Any, b: Any, condition: Any) -> np.ndarray:
        if not isinstance(condition, np.ndarray):
            condition = as_real(condition, None, self)
        self.a_shape, self.b_shape = operand_shape(a), operand_shape(b)
        dtype = native_dtype(a if isinstance(a, np.ndarray) else b)
        self.condition = as_mask(as_array(condition, f"{self!r}: condition"), dtype)
        return kernels.where(self.condition, a, b)

    def backward(self, dy: np.ndarray) -> Gradients:
        da = sum_to_shape(kernels.where(self.condition, dy, 0), self.a_shape) if self.wants_gradient(0) else None
        db = sum_to_shape(kernels.where(self.condition, 0, dy), self.b_shape) if self.wants_gradient(1) else None
        return da, db


def as_mask(condition: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return a condition as numbers of this dtype, with 0 where it is false."""
    if native_dtype(condition) == dtype:
        return condition
    if condition.dtype.kind == "f":  # in float32 a small float64 would become 0
        condition = kernels.equal(kernels.equal(condition, 0), 0)
    return kernels.convert(condition, dtype)


def clip(x: Any, lo: float | None, hi: float | None) -> Tensor:
    """Return x, with lo where x is below lo and hi where it is above hi. None means no bound."""
    return Clip(lo, hi).apply_once(as_tensor(x))


def maximum(a: Any, b: Any) -> Tensor:
    """Return the larger of a and b, elementwise; NaN if one is NaN. Tensors, arrays or numbers, broadcast together."""
    return Maximum().apply_once(*as_operands((a, b), "maximum"))


def minimum(a: Any, b: Any) -> Tensor:
    """Return the smaller of a and b, elementwise; NaN if one is NaN. Tensors, arrays or numbers, broadcast together."""
    return Minimum().apply_once(*as_operands((a, b), "minimum"))


def where(condition: Any, a: Any, b: Any) -> Tensor:
    """Return a where the condition is true, and b elsewhere.

    All may be Tensors, arrays or numbers, broadcast together. Numbers in the condition are true unless they are 0.
    """
    a, b = as_operands((a, b), "where")
    if isinstance(condition, Tensor):
        condition = condition.detach()
    elif np.asarray(condition).dtype != np.bool_:
        condition = np.asanyarray(as_real(condition, None, "where") != 0)
    else:
        condition = np.asanyarray(condition)
    return Where().apply_once(a, b, condition)


add_methods(clip)
