"""Activations."""

import operator
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import nonnegative, normalized_axes
from caffelite.core.function import Function, Shape
from caffelite.core.modes import is_training
from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import as_tensor

__all__ = [
    "ELU",
    "GELU",
    "LeakyReLU",
    "LogSoftmax",
    "Mish",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "elu",
    "gelu",
    "leaky_relu",
    "log_softmax",
    "mish",
    "relu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
]


class ReLU(Function, recordable=True, by_row=True):
    """The rectified linear unit, elementwise:  y = max(x, 0),  dx = dy where x > 0, else 0.

    V. Nair and G. Hinton, "Rectified linear units improve restricted Boltzmann machines", ICML 2010.
    """

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.relu(x)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.relu_grad(dy, self.y)


class LeakyReLU(Function, recordable=True, by_row=True):
    """y = x where x > 0, else slope · x, elementwise, with dy/dx = 1 or slope; slope at 0.

    slope is not below 0. A. Maas, A. Hannun and A. Ng, "Rectifier nonlinearities improve neural network acoustic
    models", ICML 2013.
    """

    def __init__(self, slope: float = 0.01) -> None:
        self.slope = nonnegative("LeakyReLU: slope", slope)

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.leaky_relu(x, self.slope)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.leaky_relu_grad(dy, self.y, self.slope)

    def __repr__(self) -> str:
        return f"LeakyReLU({self.slope})"


class ELU(Function, recordable=True, by_row=True):
    """The exponential linear unit, y = x where x > 0, else alpha (exp x − 1), elementwise.

    dy/dx is 1 where x > 0, else y + alpha; alpha at 0. alpha is not below 0. D.-A. Clevert, T. Unterthiner and
    S. Hochreiter, "Fast and accurate deep network learning by exponential linear units", ICLR 2016.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = nonnegative("ELU: alpha", alpha)

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.elu(x, self.alpha)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.elu_grad(dy, self.y, self.alpha)

    def __repr__(self) -> str:
        return f"ELU({self.alpha})"


class GELU(Function, recordable=True, by_row=True):
    """The Gaussian error linear unit, y = x Φ(x), Φ the normal distribution, elementwise.

    dy/dx = Φ(x) + x exp(−x²/2) / √(2π). With `approximate`, y = x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2. NaN at
    −infinity. D. Hendrycks and K. Gimpel, "Gaussian error linear units (GELUs)", 2016.
    """

    def __init__(self, approximate: bool = False) -> None:
        self.approximate = bool(approximate)

    def forward(self, x: np.ndarray) -> np.ndarray:
        y, self.slope = self._with_slope(x, is_training())
        self.x = x if self.slope is None else None
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        if self.x is not None:
            _, self.slope = self._with_slope(self.x, True)
        return kernels.multiply(dy, self.slope)

    def _with_slope(self, x: np.ndarray, wanted: bool) -> tuple[np.ndarray, np.ndarray | None]:
        kernel = kernels.gelu_tanh if self.approximate else kernels.gelu
        return kernel(x, slope=wanted)

    def __repr__(self) -> str:
        return f"GELU({'approximate=True' if self.approximate else ''})"


class Softplus(Function, recordable=True, by_row=True):
    """y = log(1 + exp x), elementwise, with dy/dx = 1 / (1 + exp(−x)): a smooth ReLU.

    C. Dugas et al., "Incorporating second-order functional knowledge for better option pricing", NIPS 2000.
    """

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return kernels.softplus(x)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.softplus_grad(dy, self.x)


class Tanh(Function, recordable=True, by_row=True):
    """The hyperbolic tangent, y = tanh x, elementwise, with dy/dx = 1 − y²."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.tanh(x)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.tanh_grad(dy, self.y)


class Sigmoid(Function, recordable=True, by_row=True):
    """The logistic sigmoid, y = 1 / (1 + exp(−x)), elementwise, with dy/dx = y (1 − y)."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.sigmoid(x)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.sigmoid_grad(dy, self.y)


class SiLU(Function, recordable=True, by_row=True):
    """The sigmoid linear unit, y = x s, s = 1 / (1 + exp(−x)), elementwise, with dy/dx = s (1 + x (1 − s)).

    NaN at −infinity. S. Elfwing, E. Uchibe and K. Doya, "Sigmoid-weighted linear units for neural network function
    approximation in reinforcement learning", Neural Networks 107, 2018.
    """

    def formula(self, x: Tensor) -> Tensor:
        return x * x.sigmoid()

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return kernels.silu(x)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.silu_grad(dy, self.x)


class Mish(Function, recordable=True, by_row=True):
    """y = x t, t = tanh(log(1 + exp x)), elementwise, with dy/dx = t + x (1 − t²) / (1 + exp(−x)).

    NaN at −infinity. D. Misra, "Mish: a self regularized non-monotonic activation function", 2019.
    """

    def formula(self, x: Tensor) -> Tensor:
        return x * x.softplus().tanh()

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return kernels.mish(x)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.mish_grad(dy, self.x)


class AlongAxis(Function):
    """A Function along one axis, which keeps its length."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        normalized_axes(operator.index(self.axis), len(shape))
        return shape

    def is_by_row(self) -> bool:
        return super().is_by_row() and self.axis in (-1, 1, 2, 3)  # other axes may be the rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.axis == -1 else self.axis})"


class Softmax(AlongAxis, recordable=True, by_row=True):
    """yⱼ = exp xⱼ / Σₖ exp xₖ along an axis, with dxⱼ = yⱼ (dyⱼ − Σₖ dyₖ yₖ)."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.softmax(x, self.axis)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.softmax_grad(dy, self.y, self.axis)


class LogSoftmax(AlongAxis, recordable=True, by_row=True):
    """yⱼ = xⱼ − log Σₖ exp xₖ along an axis, with dxⱼ = dyⱼ − exp yⱼ Σₖ dyₖ."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.log_softmax(x, self.axis)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.log_softmax_grad(dy, self.y, self.axis)


def relu(x: Any) -> Tensor:
    """max(x, 0), elementwise."""
    return ReLU().applied_to(as_tensor(x))


def leaky_relu(x: Any, slope: float = 0.01) -> Tensor:
    """x where it is above 0, else slope · x."""
    return LeakyReLU(slope).applied_to(as_tensor(x))


def elu(x: Any, alpha: float = 1.0) -> Tensor:
    """x where it is above 0, else alpha (exp x − 1)."""
    return ELU(alpha).applied_to(as_tensor(x))


def gelu(x: Any, approximate: bool = False) -> Tensor:
    """x Φ(x), Φ the normal distribution, elementwise; or its form with tanh."""
    return GELU(approximate).applied_to(as_tensor(x))


def softplus(x: Any) -> Tensor:
    """log(1 + exp x), elementwise."""
    return Softplus().applied_to(as_tensor(x))


def tanh(x: Any) -> Tensor:
    """The hyperbolic tangent, elementwise."""
    return Tanh().applied_to(as_tensor(x))


def sigmoid(x: Any) -> Tensor:
    """1 / (1 + exp(−x)), elementwise."""
    return Sigmoid().applied_to(as_tensor(x))


def silu(x: Any) -> Tensor:
    """x / (1 + exp(−x)), elementwise."""
    return SiLU().applied_to(as_tensor(x))


def mish(x: Any) -> Tensor:
    """x tanh(log(1 + exp x)), elementwise."""
    return Mish().applied_to(as_tensor(x))


def softmax(x: Any, axis: int = -1) -> Tensor:
    """exp x / Σ exp x along an axis."""
    return Softmax(axis).applied_to(as_tensor(x))


def log_softmax(x: Any, axis: int = -1) -> Tensor:
    """x − log Σ exp x along an axis."""
    return LogSoftmax(axis).applied_to(as_tensor(x))


Tensor.relu = relu
Tensor.leaky_relu = leaky_relu
Tensor.elu = elu
Tensor.gelu = gelu
Tensor.softplus = softplus
Tensor.tanh = tanh
Tensor.sigmoid = sigmoid
Tensor.silu = silu
Tensor.softmax = softmax
Tensor.log_softmax = log_softmax
Tensor.mish = mish
