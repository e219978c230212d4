"""Activations."""

from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from caffelite import _kernels as kernels
from caffelite.function import Function, Shape
from caffelite.functions.arithmetic import as_tensor
from caffelite.tensor import Tensor

__all__ = [
    "LogSoftmax",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "log_softmax",
    "relu",
    "sigmoid",
    "silu",
    "softmax",
    "tanh",
]


class ReLU(Function, recordable=True):
    """The rectified linear unit, y = max(x, 0), elementwise; its gradient at 0 is 0.

    V. Nair and G. Hinton, "Rectified linear units improve restricted Boltzmann machines", ICML 2010.
    """

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.relu(x)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.relu_grad(dy, self.y)


class Tanh(Function, recordable=True):
    """The hyperbolic tangent, y = tanh x, elementwise, with dy/dx = 1 − y²."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.tanh(x)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.tanh_grad(dy, self.y)


class Sigmoid(Function, recordable=True):
    """The logistic sigmoid, y = 1 / (1 + exp(−x)), elementwise, with dy/dx = y (1 − y)."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.sigmoid(x)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.sigmoid_grad(dy, self.y)


class SiLU(Function, recordable=True):
    """The sigmoid linear unit, y = x s, s = 1 / (1 + exp(−x)), elementwise, with dy/dx = s (1 + x (1 − s)).

    S. Elfwing, E. Uchibe and K. Doya, "Sigmoid-weighted linear units for neural network function approximation in
    reinforcement learning", Neural Networks 107, 2018.
    """

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return kernels.silu(x)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.silu_grad(dy, self.x)


class AlongAxis(Function):
    """A Function along one axis, which keeps its length."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        normalize_axis_index(self.axis, len(shape))
        return shape

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.axis == -1 else self.axis})"


class Softmax(AlongAxis, recordable=True):
    """yⱼ = exp xⱼ / Σₖ exp xₖ along an axis, with dxⱼ = yⱼ (dyⱼ − Σₖ dyₖ yₖ)."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.softmax(x, self.axis)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.softmax_grad(dy, self.y, self.axis)


class LogSoftmax(AlongAxis, recordable=True):
    """yⱼ = xⱼ − log Σₖ exp xₖ along an axis, with dxⱼ = dyⱼ − exp yⱼ Σₖ dyₖ."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.log_softmax(x, self.axis)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.log_softmax_grad(dy, self.y, self.axis)


def relu(x: Any) -> Tensor:
    """max(x, 0), elementwise."""
    return ReLU().applied_to(as_tensor(x))


def tanh(x: Any) -> Tensor:
    """The hyperbolic tangent, elementwise."""
    return Tanh().applied_to(as_tensor(x))


def sigmoid(x: Any) -> Tensor:
    """1 / (1 + exp(−x)), elementwise."""
    return Sigmoid().applied_to(as_tensor(x))


def silu(x: Any) -> Tensor:
    """x / (1 + exp(−x)), elementwise."""
    return SiLU().applied_to(as_tensor(x))


def softmax(x: Any, axis: int = -1) -> Tensor:
    """exp x / Σ exp x along an axis."""
    return Softmax(axis).applied_to(as_tensor(x))


def log_softmax(x: Any, axis: int = -1) -> Tensor:
    """x − log Σ exp x along an axis."""
    return LogSoftmax(axis).applied_to(as_tensor(x))


Tensor.relu = relu
Tensor.tanh = tanh
Tensor.sigmoid = sigmoid
Tensor.silu = silu
Tensor.softmax = softmax
Tensor.log_softmax = log_softmax
