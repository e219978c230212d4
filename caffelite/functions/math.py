"""Elementary functions."""

from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import as_tensor

__all__ = ["abs", "cos", "exp", "log", "sin", "sqrt"]


class Exp(Function, recordable=True, rowwise=True):
    """y = eˣ, elementwise, with dy/dx = y."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.exp(x)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.multiply(dy, self.y)


class Log(Function, recordable=True, rowwise=True):
    """y = ln x, the natural logarithm, elementwise, with dy/dx = 1 / x; −inf for 0, NaN below."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return kernels.log(x)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.divide(dy, self.x)


class Sqrt(Function, recordable=True, rowwise=True):
    """y = √x, elementwise, with dy/dx = 1 / 2y; NaN below 0."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.sqrt(x)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.sqrt_grad(dy, self.y)


class Abs(Function, recordable=True, rowwise=True):
    """y = |x|, elementwise, with dy/dx = the sign of x; 0 at 0."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return kernels.abs(x)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.abs_grad(dy, self.x)


class Sin(Function, recordable=True, rowwise=True):
    """y = sin x, x in radians, elementwise, with dy/dx = cos x; NaN for ±inf."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return kernels.sin(x)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.sin_grad(dy, self.x)


class Cos(Function, recordable=True, rowwise=True):
    """y = cos x, x in radians, elementwise, with dy/dx = −sin x; NaN for ±inf."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return kernels.cos(x)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.cos_grad(dy, self.x)


def exp(x: Any) -> Tensor:
    """eˣ, elementwise."""
    return Exp().apply_once(as_tensor(x))


def log(x: Any) -> Tensor:
    """ln x, elementwise."""
    return Log().apply_once(as_tensor(x))


def sqrt(x: Any) -> Tensor:
    """√x, elementwise."""
    return Sqrt().apply_once(as_tensor(x))


def abs(x: Any) -> Tensor:
    """|x|, elementwise."""
    return Abs().apply_once(as_tensor(x))


def sin(x: Any) -> Tensor:
    """sin x, elementwise, x in radians."""
    return Sin().apply_once(as_tensor(x))


def cos(x: Any) -> Tensor:
    """cos x, elementwise, x in radians."""
    return Cos().apply_once(as_tensor(x))


Tensor.exp = exp
Tensor.log = log
Tensor.sqrt = sqrt
Tensor.abs = abs
Tensor.sin = sin
Tensor.cos = cos
