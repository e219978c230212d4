"""Initializers: functions (shape, rng) -> array of float64; `rng` is a `numpy.random.Generator`.

`fan_in` is the number of inputs that a unit sums over, and `fan_out` the number of units that an input feeds. Both
follow from the shape of the weight:

- Two axes are (in, out), as in Linear.
- More axes are (out, in, k…), as in a convolution. Its window has Πk positions: fan_in = in · Πk, fan_out = out · Πk.

`he_…`, `xavier_…` and `orthogonal` raise ValueError for fewer axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite.core.arrays import check_nonnegative

__all__ = ["he_normal", "he_uniform", "normal", "orthogonal", "uniform", "xavier_normal", "xavier_uniform", "zeros"]

Shape = tuple[int, ...]
Initializer = Callable[[Shape, np.random.Generator], np.ndarray]


def check_initializer(name: str, initializer: Initializer | None) -> Initializer | None:
    """Return the initializer. Raise TypeError unless it is callable or None."""
    if initializer is not None and not callable(initializer):
        raise TypeError(f"{name}: initializer: expected a callable (shape, rng) -> array, got {initializer!r}")
    return initializer


def he_normal(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """N(0, 2 / fan_in). With ReLU, this preserves the variance of the activations from layer to layer.

    K. He, X. Zhang, S. Ren and J. Sun, "Delving deep into rectifiers", ICCV 2015, eq. 10.
    """
    return rng.normal(0, math.sqrt(2 / fans(shape)[0]), shape)


def he_uniform(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """U(−a, a), a = √(6 / fan_in). It has the same variance as `he_normal`."""
    return uniform(math.sqrt(6 / fans(shape)[0]))(shape, rng)


def xavier_normal(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """N(0, 2 / (fan_in + fan_out)). With tanh, this nearly preserves the variance of activations and gradients.

    X. Glorot and Y. Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010,
    eq. 12.
    """
    return rng.normal(0, math.sqrt(2 / sum(fans(shape))), shape)


def xavier_uniform(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """U(−a, a), a = √(6 / (fan_in + fan_out)). It has the same variance as `xavier_normal`.

    Eq. 16 of the same paper.
    """
    return uniform(math.sqrt(6 / sum(fans(shape))))(shape, rng)


def orthogonal(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Return a random matrix with orthonormal columns, or rows if there are fewer.

    All are equally likely. A weight with more than two axes is drawn as a matrix (out, in · Πk). A. Saxe, J. McClelland
    and S. Ganguli, "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks", ICLR 2014.
    The method is that of F. Mezzadri, "How to generate random matrices from the classical compact groups", Notices of
    the AMS 54, 2007.
    """
    fans(shape)
    rows, columns = shape[0], math.prod(shape[1:])
    q, r = np.linalg.qr(rng.normal(size=(max(rows, columns), min(rows, columns))))
    q *= np.copysign(1, r.diagonal())  # QR does not determine the signs, and LAPACK's are not uniform
    return (q if rows >= columns else q.T).reshape(shape)


def zeros(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """0 everywhere."""
    return np.zeros(shape)


class normal:
    """N(0, std²). Raise ValueError if `std` is below 0 or not finite."""

    def __init__(self, std: float) -> None:
        self.std = check_nonnegative("std", std)

    def __call__(self, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        return rng.normal(0, self.std, shape)

    def __repr__(self) -> str:
        return f"normal(std={self.std})"


class uniform:
    """U(−limit, limit). Raise ValueError if `limit` is below 0 or not finite.

    PyTorch's Linear uses a limit of 1/√fan_in. Y. LeCun, L. Bottou, G. Orr and K.-R. Müller, "Efficient BackProp",
    1998, section 4.6, recommend a spread of 1/√fan_in.
    """

    def __init__(self, limit: float) -> None:
        self.limit = check_nonnegative("limit", limit)

    def __call__(self, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(-self.limit, self.limit, shape)

    def __repr__(self) -> str:
        return f"uniform(limit={self.limit})"


def initialize(weight: Any, bias: Any, initializer: Initializer | None, rng: Any) -> None:
    """Draw a layer's weight, and its bias if it has one, from U(−a, a), a = 1/√fan_in, as PyTorch does.

    An `initializer` draws the weight instead, and the bias is 0. `rng` is a Generator or a seed.
    """
    rng = np.random.default_rng(rng)
    default = uniform(1 / math.sqrt(fans(weight.shape)[0]))
    weight.data = (initializer or default)(weight.shape, rng)
    if bias is not None:
        bias.data = np.zeros(bias.shape) if initializer else default(bias.shape, rng)


def fans(shape: Shape) -> tuple[int, int]:
    """Return fan_in and fan_out of a weight of this shape. Each is at least 1, even if the weight has no elements."""
    if len(shape) < 2:
        raise ValueError(f"expected a weight of inputs and outputs, (in, out) or (out, in, k…), got shape {shape}")
    if len(shape) == 2:
        return max(shape[0], 1), max(shape[1], 1)
    window = math.prod(shape[2:])
    return max(shape[1] * window, 1), max(shape[0] * window, 1)
