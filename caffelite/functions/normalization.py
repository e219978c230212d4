"""Layers that give features, rows or groups of channels mean 0 and variance 1, and then scale and shift them."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import nonnegative, positive_integer
from caffelite.core.function import Function, Shape, shape_text
from caffelite.core.modes import is_training
from caffelite.core.rows import rows_here
from caffelite.core.tensor import Tensor, parameter, uninitialized
from caffelite.functions.shape import reshaped

__all__ = ["BatchNorm", "GroupNorm", "LayerNorm"]


class LayerNorm(Function, recordable=True, by_row=True):
    """Gives each row mean 0 and variance 1, then scales and shifts it:

        x̂ = (x − m) / √(v + ε),  y = x̂ scale + shift,  m and v the mean and the biased variance of the row
        dscale = Σ dy x̂,  dshift = Σ dy  over all rows
        dx = (g − mean g − x̂ mean(g x̂)) / √(v + ε),  g = dy scale,  means over the row

    x and y (…, features), `scale` (features,) ones, `shift` (features,) zeros; there is no shift with bias=False. It
    does the same in training and in inference. ValueError for x of another shape, TypeError for another dtype than
    that of `scale`.

    J. Ba, J. Kiros, G. Hinton, "Layer Normalization", 2016, arXiv:1607.06450.
    """

    def __init__(self, features: int, eps: float = 1e-5, bias: bool = True) -> None:
        self.features, self.eps = _checked("LayerNorm", features, eps)
        self.scale = parameter("scale", self.features)
        self.shift = parameter("shift", self.features) if bias else None
        self._set_first_values()

    def arguments(self) -> dict[str, Any]:
        return {"features": self.features, "eps": self.eps, "bias": self.shift is not None}

    def initialize(self, rng: Any) -> None:
        """Set `scale` to ones and `shift` to zeros. Nothing is drawn."""
        self.scale.data = np.ones(self.features)
        if self.shift is not None:
            self.shift.data = np.zeros(self.features)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        if not shape or shape[-1] not in (None, self.features):
            raise ValueError(f"{self!r} got shape {shape_text(shape)}; expected (…, {self.features})")
        return (*shape[:-1], self.features)

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.output_shape(x.shape)
        shift = None if self.shift is None else self.shift.data
        y, self.moments = kernels.layer_norm(x, self.scale.data, shift, self.eps)
        self.x = x
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        dscale, dshift = kernels.layer_norm_sums(dy, self.x, self.moments)
        self.scale.add_grad(dscale)
        if self.shift is not None:
            self.shift.add_grad(dshift)
        if not self.wants_gradient(0):
            return None
        return kernels.layer_norm_grad(dy, self.x, self.scale.data, self.moments)

    def __repr__(self) -> str:
        eps = "" if self.eps == 1e-5 else f", eps={self.eps}"
        return f"LayerNorm({self.features}{eps}{'' if self.shift is not None else ', bias=False'})"


class GroupNorm(Function, recordable=True, by_row=True):
    """Gives each group of channels of a row mean 0 and variance 1, then scales and shifts each channel:

        x̂ = (x − m) / √(v + ε),  y = x̂ scale + shift,  m and v the mean and the biased variance of the group
        dscale = Σ dy x̂,  dshift = Σ dy  over all rows and places
        dx = (g − mean g − x̂ mean(g x̂)) / √(v + ε),  g = dy scale,  means over the group

    x and y (n, features, …); `scale` (features,) ones, `shift` (features,) zeros. A group is features / groups channels
    in a row. It does the same in training and in inference. ValueError if `groups` does not divide `features`, and for
    x of another shape; TypeError for another dtype than that of `scale`.

    Y. Wu and K. He, "Group normalization", ECCV 2018.
    """

    def __init__(self, groups: int, features: int, eps: float = 1e-5) -> None:
        self.groups = positive_integer("GroupNorm: groups", groups)
        self.features, self.eps = _checked("GroupNorm", features, eps)
        if self.features % self.groups:
            raise ValueError(f"GroupNorm: {self.features} features can't be divided into {self.groups} equal groups")
        self.scale, self.shift = parameter("scale", self.features), parameter("shift", self.features)
        self._set_first_values()

    def initialize(self, rng: Any) -> None:
        """Set `scale` to ones and `shift` to zeros. Nothing is drawn."""
        self.scale.data, self.shift.data = np.ones(self.features), np.zeros(self.features)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        _check_channels(self, shape)
        return (shape[0], self.features, *shape[2:])

    def formula(self, x: Tensor) -> Tensor:
        groups = x.reshape(len(x), self.groups, -1)
        centered = groups - groups.mean(axis=2, keepdims=True)
        variance = (centered * centered).mean(axis=2, keepdims=True)
        normalized = (centered / (variance + self.eps).sqrt()).reshape(x.shape)
        of_channels = (self.features, *[1] * (x.ndim - 2))
        return normalized * self.scale.reshape(of_channels) + self.shift.reshape(of_channels)

    def forward(self, x: np.ndarray) -> np.ndarray:
        _check_channels(self, x.shape)
        self.x = reshaped(x, (len(x) * self.groups, math.prod(x.shape[1:]) // self.groups))
        self.ones = _ones(self.x.shape[1], x.dtype)
        normalized, self.moments = kernels.layer_norm(self.x, self.ones, None, self.eps)
        self.normalized = normalized.reshape(x.shape)
        return kernels.batch_norm_fixed(self.normalized, self.scale.data, self.shift.data, _no_moments(self.features))

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        moments = _no_moments(self.features)
        g, dscale, dshift = kernels.batch_norm_grad(dy, self.normalized, self.scale.data, moments, fixed=True)
        self.scale.add_grad(dscale)
        self.shift.add_grad(dshift)
        if not self.wants_gradient(0):
            return None
        dx = kernels.layer_norm_grad(reshaped(g, self.x.shape), self.x, self.ones, self.moments)
        return dx.reshape(dy.shape)

    def __repr__(self) -> str:
        return f"GroupNorm({self.groups}, {self.features}{'' if self.eps == 1e-5 else f', eps={self.eps}'})"


class BatchNorm(Function, recordable=True, by_row=True):
    """Gives each feature mean 0 and variance 1 over all rows and places, then scales and shifts it:

        x̂ = (x − m) / √(v + ε),  y = x̂ scale + shift,  dscale = Σ dy x̂,  dshift = Σ dy
        dx = (dy − mean dy − x̂ mean(dy x̂)) scale / √(v + ε)

    In training, m and v are the mean and the biased variance of the batch. Two buffers follow them: `mean` moves
    towards m, and `variance` towards the unbiased variance, by the fraction `momentum` of the way. In inference, the
    buffers are m and v, and are constants: dx = dy scale / √(v + ε).

    If the parameters are frozen (`requires_grad = False`), the layer computes in training what it computes in
    inference, and its buffers do not change.

    x and y (n, features, …); `scale` and `variance` (features,) begin as ones, `shift` and `mean` as zeros. The buffers
    are always finite: a feature whose m or v is not finite does not change them. So NaN in a batch makes the outputs of
    that batch NaN, which stops a training, but not those of later batches. If a variance is too large for its dtype,
    the buffer gets the largest number, and `fit` warns. All else is as in PyTorch.

    ValueError, before anything changes, for x of another shape, and in training for fewer than two numbers a feature.

    S. Ioffe, C. Szegedy, "Batch normalization: accelerating deep network training by reducing internal covariate
    shift", ICML 2015.
    """

    def __init__(self, features: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        self.features, self.eps = _checked("BatchNorm", features, eps)
        if not 0 <= momentum <= 1:
            raise ValueError(f"BatchNorm: momentum must be in 0 … 1, got {momentum}")
        self.momentum = float(momentum)
        self.scale, self.shift = parameter("scale", self.features), parameter("shift", self.features)
        self.mean, self.variance = uninitialized(self.features), uninitialized(self.features)
        self._set_first_values()

    def initialize(self, rng: Any) -> None:
        """Set parameters and buffers to what they were at first. Nothing is drawn."""
        self.scale.data, self.shift.data = np.ones(self.features), np.zeros(self.features)
        self.mean[:], self.variance[:] = 0, 1

    def buffers(self) -> dict[str, np.ndarray]:
        """The running mean and variance, which are kept but not learned."""
        return {"mean": self.mean, "variance": self.variance}

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        _check_channels(self, shape)
        return (shape[0], self.features, *shape[2:])

    def is_trained(self) -> bool:
        """Whether the batch's own moments are used: in training, unless the parameters are frozen."""
        return is_training() and (self.scale.requires_grad or self.shift.requires_grad)

    def forward(self, x: np.ndarray) -> np.ndarray:
        _check_channels(self, x.shape)
        self.x, self.fixed, scale, shift = x, not self.is_trained(), self.scale.data, self.shift.data
        if self.fixed:
            self.moments = kernels.fixed_moments(self.mean, self.variance, self.eps)
            return kernels.batch_norm_fixed(x, scale, shift, self.moments)
        rows = rows_here()
        self.count = rows.in_batch(x.size // self.features)
        if self.count < 2:
            raise ValueError(
                f"{self!r} got shape {x.shape} in training, which takes at least 2 numbers of each feature: give "
                "batches of 2 rows or more, or freeze the layer with requires_grad = False"
            )
        if rows.are_all:
            y, self.moments = kernels.batch_norm(x, scale, shift, self.eps)
        else:
            self.moments = kernels.joined_moments(rows.gathered(kernels.feature_sums(x, rows.counted)), self.eps)
            y = kernels.batch_norm_fixed(x, scale, shift, self.moments)
        kernels.follow_moments(self.mean, self.variance, self.moments, self.count, self.momentum)
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        scale, moments = self.scale.data, self.moments
        if self.fixed or rows_here().are_all:
            dx, dscale, dshift = kernels.batch_norm_grad(dy, self.x, scale, moments, self.fixed)
        else:
            sums = kernels.batch_norm_sums(dy, self.x, moments)
            of_batch = rows_here().total(sums)
            dx, dscale, dshift = kernels.batch_norm_grad_of_sums(dy, self.x, scale, moments, sums, of_batch, self.count)
        self.scale.add_grad(dscale)
        self.shift.add_grad(dshift)
        return dx

    def __repr__(self) -> str:
        momentum = "" if self.momentum == 0.1 else f", momentum={self.momentum}"
        return f"BatchNorm({self.features}{momentum}{'' if self.eps == 1e-5 else f', eps={self.eps}'})"


@functools.lru_cache(maxsize=64)
def _ones(count: int, dtype: np.dtype) -> np.ndarray:
    return np.ones(count, dtype)


@functools.lru_cache(maxsize=64)
def _no_moments(features: int) -> np.ndarray:
    """The moments that `kernels.batch_norm` returns for features that have mean 0 and variance 1 already."""
    return np.repeat([[0.0], [1.0], [1.0]], features, axis=1)


def _check_channels(layer: GroupNorm | BatchNorm, shape: Shape) -> None:
    """Raise ValueError unless a shape is (n, features, …)."""
    if len(shape) < 2 or shape[1] not in (None, layer.features):
        raise ValueError(f"{layer!r} got shape {shape_text(shape)}; expected (n, {layer.features}, …)")


def _checked(name: str, features: int, eps: float) -> tuple[int, float]:
    """Both as numbers; TypeError or ValueError unless `features` is an integer above 0 and `eps` at least 0."""
    return positive_integer(f"{name}: features", features), nonnegative(f"{name}: eps", eps)
