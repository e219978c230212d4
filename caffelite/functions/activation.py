"""Activations."""

import operator
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import check_nonnegative, check_positive_integer, normalize_axes
from caffelite.core.function import Function, Shape, format_shape
from caffelite.core.modes import is_training
from caffelite.core.tensor import Tensor, add_methods, make_parameter
from caffelite.functions.arithmetic import as_tensor
from caffelite.functions.elementwise import keep_input, keep_output
from caffelite.functions.normalization import standard_moments

__all__ = [
    "ELU",
    "GELU",
    "LeakyReLU",
    "LogSoftmax",
    "Mish",
    "PReLU",
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


class ReLU(Function, recordable=True, rowwise=True):
    """The rectified linear unit, elementwise:  y = max(x, 0),  dx = dy where x > 0, else 0.

    V. Nair and G. Hinton, "Rectified linear units improve restricted Boltzmann machines", ICML 2010.
    """

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.relu(x)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.relu_grad(dy, self.y)


class LeakyReLU(Function, recordable=True, rowwise=True):
    """The leaky ReLU, y = x where x > 0, else slope · x, elementwise, with dy/dx = 1 or slope; slope at 0.

    `slope` is 0 or more. A. Maas, A. Hannun and A. Ng, "Rectifier nonlinearities improve neural network acoustic
    models", ICML 2013.
    """

    def __init__(self, slope: float = 0.01) -> None:
        self.slope = check_nonnegative("LeakyReLU: slope", slope)

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.leaky_relu(x, self.slope)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.leaky_relu_grad(dy, self.y, self.slope)

    def __repr__(self) -> str:
        return f"LeakyReLU({self.slope})"


class PReLU(Function, recordable=True, rowwise=True):
    """A leaky ReLU that learns its `slope`, y = x where x > 0, else slope · x: one slope, or one for each channel.

        dx = dy where x > 0, else dy slope,  dslope = Σ dy min(x, 0)

    With channels=1, x and y have any shape (…). Otherwise they are (n, channels, …). `slope` (channels,) starts at
    0.25. Raise ValueError if x has the wrong shape, and TypeError if its dtype is not `slope`'s.

    K. He, X. Zhang, S. Ren and J. Sun, "Delving deep into rectifiers: surpassing human-level performance on ImageNet
    classification", ICCV 2015.
    """

    def __init__(self, channels: int = 1) -> None:
        self.channels = check_positive_integer("PReLU: channels", channels)
        self.slope = make_parameter("slope", self.channels)
        self._set_initial_values()

    def initialize(self, rng: Any) -> None:
        """Set `slope` to 0.25. Nothing is drawn."""
        self.slope.data = np.full(self.channels, 0.25)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        if self.channels > 1 and (len(shape) < 2 or shape[1] not in (None, self.channels)):
            raise ValueError(f"{self!r} got shape {format_shape(shape)}; expected (n, {self.channels}, …)")
        return shape if self.channels == 1 else (shape[0], self.channels, *shape[2:])

    def formula(self, x: Tensor) -> Tensor:
        return x.relu() - (-x).relu() * self.slope.reshape(self._slope_shape(x.ndim))

    def _slope_shape(self, ndim: int) -> tuple[int, ...]:
        """Return the shape in which the slopes are broadcast to an x with this many axes."""
        return () if self.channels == 1 else (self.channels, *[1] * (ndim - 2))

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.output_shape(x.shape)
        self.x, self.broadcast_slope = x, self.slope.data.reshape(self._slope_shape(x.ndim))
        return kernels.prelu(x, self.broadcast_slope)

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        below = kernels.minimum(self.x, 0.0)
        if self.channels == 1:
            dslope = kernels.sum(kernels.multiply(dy, below)).reshape(1)
        else:
            sums = kernels.batch_norm_sums(dy, below, standard_moments(self.channels))
            dslope = kernels.convert(sums[1], self.slope.dtype)
        self.slope.add_grad(dslope)
        if not self.wants_gradient(0):
            return None
        return kernels.prelu_grad(dy, self.x, self.broadcast_slope)

    def __repr__(self) -> str:
        return f"PReLU({'' if self.channels == 1 else self.channels})"


class ELU(Function, recordable=True, rowwise=True):
    """The exponential linear unit, y = x where x > 0, else alpha (exp x − 1), elementwise.

    dy/dx is 1 where x > 0, else y + alpha; alpha at 0. `alpha` is 0 or more. D.-A. Clevert, T. Unterthiner and
    S. Hochreiter, "Fast and accurate deep network learning by exponential linear units", ICLR 2016.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = check_nonnegative("ELU: alpha", alpha)

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.elu(x, self.alpha)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.elu_grad(dy, self.y, self.alpha)

    def __repr__(self) -> str:
        return f"ELU({self.alpha})"


class GELU(Function, recordable=True, rowwise=True):
    """The Gaussian error linear unit, y = x Φ(x), Φ the normal distribution, elementwise.

    dy/dx = Φ(x) + x exp(−x²/2) / √(2π). With `approximate`, y = x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2. NaN at
    −infinity. D. Hendrycks and K. Gimpel, "Gaussian error linear units (GELUs)", 2016.
    """

    def __init__(self, approximate: bool = False) -> None:
        self.approximate = bool(approximate)

    def forward(self, x: np.ndarray) -> np.ndarray:
        y, self.derivative = self._compute(x, is_training())
        self.x = x if self.derivative is None else None
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        if self.x is not None:
            _, self.derivative = self._compute(self.x, True)
        return kernels.multiply(dy, self.derivative)

    def _compute(self, x: np.ndarray, derivative: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Return y, and also dy/dx if `derivative`."""
        kernel = kernels.gelu_tanh if self.approximate else kernels.gelu
        return kernel(x, derivative=derivative)

    def __repr__(self) -> str:
        return f"GELU({'approximate=True' if self.approximate else ''})"


class Softplus(Function, recordable=True, rowwise=True):
    """A smooth ReLU, y = log(1 + exp x), elementwise, with dy/dx = 1 / (1 + exp(−x)).

    C. Dugas et al., "Incorporating second-order functional knowledge for better option pricing", NIPS 2000.
    """

    forward, backward = keep_input(kernels.softplus, kernels.softplus_grad)


class Tanh(Function, recordable=True, rowwise=True):
    """The hyperbolic tangent, y = tanh x, elementwise, with dy/dx = 1 − y²."""

    forward, backward = keep_output(kernels.tanh, kernels.tanh_grad)


class Sigmoid(Function, recordable=True, rowwise=True):
    """The logistic sigmoid, y = 1 / (1 + exp(−x)), elementwise, with dy/dx = y (1 − y)."""

    forward, backward = keep_output(kernels.sigmoid, kernels.sigmoid_grad)


class SiLU(Function, recordable=True, rowwise=True):
    """The sigmoid linear unit, y = x s, s = 1 / (1 + exp(−x)), elementwise, with dy/dx = s (1 + x (1 − s)).

    NaN at −infinity. S. Elfwing, E. Uchibe and K. Doya, "Sigmoid-weighted linear units for neural network function
    approximation in reinforcement learning", Neural Networks 107, 2018.
    """

    forward, backward = keep_input(kernels.silu, kernels.silu_grad)

    def formula(self, x: Tensor) -> Tensor:
        return x * x.sigmoid()


class Mish(Function, recordable=True, rowwise=True):
    """The activation Mish, y = x t, t = tanh(log(1 + exp x)), elementwise, with dy/dx = t + x (1 − t²) / (1 + exp(−x)).

    NaN at −infinity. D. Misra, "Mish: a self regularized non-monotonic activation function", 2019.
    """

    forward, backward = keep_input(kernels.mish, kernels.mish_grad)

    def formula(self, x: Tensor) -> Tensor:
        return x * x.softplus().tanh()


class AxisFunction(Function):
    """A Function along one axis, whose length it keeps."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        normalize_axes(operator.index(self.axis), len(shape))
        return shape

    def is_rowwise(self) -> bool:
        return super().is_rowwise() and self.axis in (-1, 1, 2, 3)  # other axes may be the rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.axis == -1 else self.axis})"


class Softmax(AxisFunction, recordable=True, rowwise=True):
    """The softmax, yⱼ = exp xⱼ / Σₖ exp xₖ along an axis, with dxⱼ = yⱼ (dyⱼ − Σₖ dyₖ yₖ)."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.softmax(x, self.axis)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.softmax_grad(dy, self.y, self.axis)


class LogSoftmax(AxisFunction, recordable=True, rowwise=True):
    """The logarithm of the softmax, yⱼ = xⱼ − log Σₖ exp xₖ along an axis, with dxⱼ = dyⱼ − exp yⱼ Σₖ dyₖ."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.log_softmax(x, self.axis)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.log_softmax_grad(dy, self.y, self.axis)


def relu(x: Any) -> Tensor:
    """max(x, 0), elementwise."""
    return ReLU().apply_once(as_tensor(x))


def leaky_relu(x: Any, slope: float = 0.01) -> Tensor:
    """x where it is above 0, else slope · x."""
    return LeakyReLU(slope).apply_once(as_tensor(x))


def elu(x: Any, alpha: float = 1.0) -> Tensor:
    """x where it is above 0, else alpha (exp x − 1)."""
    return ELU(alpha).apply_once(as_tensor(x))


def gelu(x: Any, approximate: bool = False) -> Tensor:
    """x Φ(x), Φ the normal distribution, elementwise; or its form with tanh."""
    return GELU(approximate).apply_once(as_tensor(x))


def softplus(x: Any) -> Tensor:
    """log(1 + exp x), elementwise."""
    return Softplus().apply_once(as_tensor(x))


def tanh(x: Any) -> Tensor:
    """Return the hyperbolic tangent, elementwise."""
    return Tanh().apply_once(as_tensor(x))


def sigmoid(x: Any) -> Tensor:
    """1 / (1 + exp(−x)), elementwise."""
    return Sigmoid().apply_once(as_tensor(x))


def silu(x: Any) -> Tensor:
    """x / (1 + exp(−x)), elementwise."""
    return SiLU().apply_once(as_tensor(x))


def mish(x: Any) -> Tensor:
    """x tanh(log(1 + exp x)), elementwise."""
    return Mish().apply_once(as_tensor(x))


def softmax(x: Any, axis: int = -1) -> Tensor:
    """exp x / Σ exp x along an axis."""
    return Softmax(axis).apply_once(as_tensor(x))


def log_softmax(x: Any, axis: int = -1) -> Tensor:
    """x − log Σ exp x along an axis."""
    return LogSoftmax(axis).apply_once(as_tensor(x))


add_methods(relu, leaky_relu, elu, gelu, softplus, tanh, sigmoid, silu, softmax, log_softmax, mish)
