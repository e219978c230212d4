"""Layers that give features, rows or groups of channels mean 0 and variance 1, and then scale and shift them."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.reprs import as_code, repr_with_arguments
from caffelite.core.arrays import check_bool, check_nonnegative, check_positive_integer, reshape_array
from caffelite.core.function import Function, Shape, format_shape
from caffelite.core.modes import is_training
from caffelite.core.shard import current_shard
from caffelite.core.tensor import Tensor, empty_array, make_parameter

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm"]


class RowNorm(Function, recordable=True, rowwise=True):
    """The base of LayerNorm and RMSNorm, which normalize each row of x (…, features)."""

    features: int
    eps: float | None  # None: the difference between 1 and the next number of x's dtype
    scale: Tensor | None
    shift: Tensor | None = None
    is_centered = True

    @abstractmethod
    def __init__(self, features: int, eps: float | None) -> None:
        """Set the attributes."""

    def initialize(self, rng: Any) -> None:
        """Set `scale` to ones and `shift` to zeros, if the layer has them. Nothing is drawn."""
        if self.scale is not None:
            self.scale.data = np.ones(self.features)
        if self.shift is not None:
            self.shift.data = np.zeros(self.features)

    def epsilon(self, dtype: np.dtype) -> float:
        """Return ε for an x of this dtype."""
        return _machine_epsilon(dtype) if self.eps is None else self.eps

    def factors(self, dtype: np.dtype) -> np.ndarray:
        """Return the factor of each feature: `scale`, or ones of this dtype."""
        return _ones(self.features, dtype) if self.scale is None else self.scale.data

    def _check_shape(self, shape: Shape) -> None:
        if not shape or shape[-1] not in (None, self.features):
            raise ValueError(f"{self!r} got shape {format_shape(shape)}; expected (…, {self.features})")

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        self._check_shape(shape)
        return (*shape[:-1], self.features)

    def forward(self, x: np.ndarray) -> np.ndarray:
        self._check_shape(x.shape)
        self.x, shift = x, None if self.shift is None else self.shift.data
        eps = self.epsilon(x.dtype) if self.eps is None else self.eps  # saves a LayerNorm one call
        y, self.moments = kernels.layer_norm(x, self.factors(x.dtype), shift, eps, self.is_centered)
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        if self.scale is not None:
            dscale, dshift = kernels.layer_norm_sums(dy, self.x, self.moments)
            self.scale.add_grad(dscale)
            if self.shift is not None:
                self.shift.add_grad(dshift)
        if not self.wants_gradient(0):
            return None
        return kernels.layer_norm_grad(dy, self.x, self.factors(dy.dtype), self.moments, self.is_centered)


class LayerNorm(RowNorm, recordable=True, rowwise=True):
    """Layer normalization: gives each row mean 0 and variance 1, with scale and shift:

        x̂ = (x − m) / √(v + ε),  y = x̂ scale + shift,  m and v the mean and the biased variance of the row
        dscale = Σ dy x̂,  dshift = Σ dy  over all rows
        dx = (g − mean g − x̂ mean(g x̂)) / √(v + ε),  g = dy scale,  means over the row

    x and y (…, features), `scale` (features,) ones, `shift` (features,) zeros; bias=False leaves `shift` out. The layer
    works alike in training and in inference. Raise ValueError if x has the wrong shape, and TypeError if its dtype is
    not `scale`'s.

    J. Ba, J. Kiros, G. Hinton, "Layer Normalization", 2016, arXiv:1607.06450.
    """

    def __init__(self, features: int, eps: float = 1e-5, bias: bool = True) -> None:
        self.features, self.eps = _check_options("LayerNorm", features, eps)
        self.scale = make_parameter("scale", self.features)
        self.shift = make_parameter("shift", self.features) if bias else None
        self._set_initial_values()

    def arguments(self) -> dict[str, Any]:
        return {"features": self.features, "eps": self.eps, "bias": self.shift is not None}

    def __repr__(self) -> str:
        return as_code(self, self.features, eps=self.eps, bias=self.shift is not None)


class RMSNorm(RowNorm, recordable=True, rowwise=True):
    """RMS normalization: divides each row by its root mean square, then scales it:

        x̂ = x / √(q + ε),  y = x̂ scale,  q = Σ x² / features, for each row
        dscale = Σ dy x̂  over all rows
        dx = (g − x̂ mean(g x̂)) / √(q + ε),  g = dy scale,  the mean over the row

    x and y (…, features), `scale` (features,) ones; scale=False leaves it out, and y = x̂. If `eps` is None, ε is the
    difference between 1 and the next number of x's dtype: 1.2e-7 in float32, 2.2e-16 in float64. The layer works alike
    in training and in inference. Raise ValueError if x has the wrong shape, and TypeError if its dtype is not
    `scale`'s.

    B. Zhang and R. Sennrich, "Root mean square layer normalization", NeurIPS 2019.
    """

    is_centered = False

    def __init__(self, features: int, eps: float | None = None, scale: bool = True) -> None:
        self.features = check_positive_integer("RMSNorm: features", features)
        self.eps = None if eps is None else check_nonnegative("RMSNorm: eps", eps)
        self.scale = make_parameter("scale", self.features) if check_bool("RMSNorm: scale", scale) else None
        self._set_initial_values()

    def arguments(self) -> dict[str, Any]:
        return {"features": self.features, "eps": self.eps, "scale": self.scale is not None}

    def formula(self, x: Tensor) -> Tensor:
        y = x / ((x * x).mean(axis=-1, keepdims=True) + self.epsilon(x.dtype)).sqrt()
        return y if self.scale is None else y * self.scale

    def __repr__(self) -> str:
        return as_code(self, self.features, eps=self.eps, scale=self.scale is not None)


class GroupNorm(Function, recordable=True, rowwise=True):
    """Group normalization: gives each group of a row's channels mean 0 and variance 1:

        x̂ = (x − m) / √(v + ε),  y = x̂ scale + shift,  with the mean m and the biased variance v of the group
        dscale = Σ dy x̂,  dshift = Σ dy  over all rows and positions
        dx = (g − mean g − x̂ mean(g x̂)) / √(v + ε),  g = dy scale,  means over the group

    x and y (n, channels, …); `scale` (channels,) ones, `shift` (channels,) zeros. A group has channels / groups
    neighbouring channels. The layer works alike in training and in inference. Raise ValueError if `groups` does not
    divide `channels` or x has the wrong shape, and TypeError if x's dtype is not `scale`'s.

    Y. Wu and K. He, "Group normalization", ECCV 2018.
    """

    min_ndim = 2  # of x

    def __init__(self, groups: int, channels: int, eps: float = 1e-5) -> None:
        name = type(self).__name__
        self.channels = check_positive_integer(f"{name}: channels", channels)
        self.groups = check_positive_integer(f"{name}: groups", groups)
        self.eps = check_nonnegative(f"{name}: eps", eps)
        if self.channels % self.groups:
            raise ValueError(f"{name}: {self.channels} channels can't be divided into {self.groups} equal groups")
        self.scale, self.shift = make_parameter("scale", self.channels), make_parameter("shift", self.channels)
        self._set_initial_values()

    def initialize(self, rng: Any) -> None:
        """Set `scale` to ones and `shift` to zeros. Nothing is drawn."""
        self.scale.data, self.shift.data = np.ones(self.channels), np.zeros(self.channels)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        _check_channels(self, shape, self.channels, self.min_ndim)
        return (shape[0], self.channels, *shape[2:])

    def formula(self, x: Tensor) -> Tensor:
        groups = x.reshape(len(x), self.groups, -1)
        centered = groups - groups.mean(axis=2, keepdims=True)
        variance = (centered * centered).mean(axis=2, keepdims=True)
        normalized = (centered / (variance + self.eps).sqrt()).reshape(x.shape)
        channel_shape = (self.channels, *[1] * (x.ndim - 2))
        return normalized * self.scale.reshape(channel_shape) + self.shift.reshape(channel_shape)

    def forward(self, x: np.ndarray) -> np.ndarray:
        _check_channels(self, x.shape, self.channels, self.min_ndim)
        self.x = reshape_array(x, (len(x) * self.groups, math.prod(x.shape[1:]) // self.groups))
        self.ones = _ones(self.x.shape[1], x.dtype)
        normalized, self.moments = kernels.layer_norm(self.x, self.ones, None, self.eps)
        self.normalized = normalized.reshape(x.shape)
        return kernels.batch_norm_fixed(
            self.normalized, self.scale.data, self.shift.data, standard_moments(self.channels)
        )

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        moments = standard_moments(self.channels)
        g, dscale, dshift = kernels.batch_norm_grad(dy, self.normalized, self.scale.data, moments, fixed=True)
        self.scale.add_grad(dscale)
        self.shift.add_grad(dshift)
        if not self.wants_gradient(0):
            return None
        dx = kernels.layer_norm_grad(reshape_array(g, self.x.shape), self.x, self.ones, self.moments)
        return dx.reshape(dy.shape)

    __repr__ = repr_with_arguments


class InstanceNorm(GroupNorm, recordable=True, rowwise=True):
    """Instance normalization, `GroupNorm` with groups of one: gives each channel of a row mean 0 and variance 1.

        x̂ = (x − m) / √(v + ε),  y = x̂ scale + shift,  with the mean m and the biased variance v of the channel

    x and y (n, channels, …) with at least one axis of positions; `scale` (channels,) ones, `shift` (channels,) zeros.
    The layer works alike in training and in inference. Raise ValueError if x has the wrong shape, and TypeError if its
    dtype is not `scale`'s.

    D. Ulyanov, A. Vedaldi and V. Lempitsky, "Instance normalization: the missing ingredient for fast stylization",
    2016, arXiv:1607.08022.
    """

    min_ndim = 3

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__(channels, channels, eps)

    __repr__ = repr_with_arguments


class BatchNorm(Function, recordable=True, rowwise=True):
    """Batch normalization: gives each feature mean 0 and variance 1 over the batch:

        x̂ = (x − m) / √(v + ε),  y = x̂ scale + shift,  dscale = Σ dy x̂,  dshift = Σ dy
        dx = (dy − mean dy − x̂ mean(dy x̂)) scale / √(v + ε)

    In training, m and v are the mean and the biased variance of the batch. Two buffers follow them: in each step,
    `mean` moves a fraction `momentum` of the way towards m, and `variance` towards the unbiased variance. In inference,
    the buffers serve as m and v, and are constants: dx = dy scale / √(v + ε).

    If the parameters are frozen (`requires_grad = False`), the layer computes the same in training as in inference, and
    its buffers do not change.

    x and y are (n, features, …). `scale` and `variance` (features,) start as ones, `shift` and `mean` as zeros. The
    buffers are always finite: if m or v of a feature is not finite, its buffers do not change. So NaN in a batch makes
    the outputs of that batch NaN, which stops training, but leaves later batches alone. If a variance is too large for
    its dtype, the buffer gets the largest finite number, and `fit` warns. All else is as in PyTorch.

    Raise ValueError, before anything changes, if x has the wrong shape or, in training, fewer than two values per
    feature.

    S. Ioffe, C. Szegedy, "Batch normalization: accelerating deep network training by reducing internal covariate
    shift", ICML 2015.
    """

    def __init__(self, features: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        self.features, self.eps = _check_options("BatchNorm", features, eps)
        if not 0 <= momentum <= 1:
            raise ValueError(f"BatchNorm: momentum must be in 0 … 1, got {momentum}")
        self.momentum = float(momentum)
        self.scale, self.shift = make_parameter("scale", self.features), make_parameter("shift", self.features)
        self.mean, self.variance = empty_array(self.features), empty_array(self.features)
        self._set_initial_values()

    def initialize(self, rng: Any) -> None:
        """Set parameters and buffers to their first values. Nothing is drawn."""
        self.scale.data, self.shift.data = np.ones(self.features), np.zeros(self.features)
        self.mean[:], self.variance[:] = 0, 1

    def buffers(self) -> dict[str, np.ndarray]:
        """Return the running mean and variance. They are saved but not learned."""
        return {"mean": self.mean, "variance": self.variance}

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        _check_channels(self, shape, self.features)
        return (shape[0], self.features, *shape[2:])

    def uses_batch_moments(self) -> bool:
        """Return whether the layer uses the batch's own moments: in training, unless its parameters are frozen."""
        return is_training() and (self.scale.requires_grad or self.shift.requires_grad)

    def forward(self, x: np.ndarray) -> np.ndarray:
        _check_channels(self, x.shape, self.features)
        self.x, self.fixed, scale, shift = x, not self.uses_batch_moments(), self.scale.data, self.shift.data
        if self.fixed:
            self.moments = kernels.running_moments(self.mean, self.variance, self.eps)
            return kernels.batch_norm_fixed(x, scale, shift, self.moments)
        rows = current_shard()
        self.count = rows.batch_count(x.size // self.features)
        if self.count < 2:
            raise ValueError(
                f"{self!r} got shape {x.shape} in training, which takes at least 2 numbers of each feature: give "
                "batches of 2 rows or more, or freeze the layer with requires_grad = False"
            )
        if rows.is_whole:
            y, self.moments = kernels.batch_norm(x, scale, shift, self.eps)
        else:
            self.moments = kernels.merge_moments(rows.all_gather(kernels.feature_sums(x, rows.is_counted)), self.eps)
            y = kernels.batch_norm_fixed(x, scale, shift, self.moments)
        kernels.update_moments(self.mean, self.variance, self.moments, self.count, self.momentum)
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        scale, moments = self.scale.data, self.moments
        if self.fixed or current_shard().is_whole:
            dx, dscale, dshift = kernels.batch_norm_grad(dy, self.x, scale, moments, self.fixed)
        else:
            sums = kernels.batch_norm_sums(dy, self.x, moments)
            batch_sums = current_shard().all_reduce(sums)
            dx, dscale, dshift = kernels.batch_norm_grad_of_sums(
                dy, self.x, scale, moments, sums, batch_sums, self.count
            )
        self.scale.add_grad(dscale)
        self.shift.add_grad(dshift)
        return dx

    __repr__ = repr_with_arguments


@functools.lru_cache(maxsize=64)
def _ones(count: int, dtype: np.dtype) -> np.ndarray:
    return np.ones(count, dtype)


@functools.lru_cache(maxsize=64)
def standard_moments(features: int) -> np.ndarray:
    """Return the moments that `kernels.batch_norm` returns for features that already have mean 0 and variance 1."""
    return np.repeat([[0.0], [1.0], [1.0]], features, axis=1)


@functools.lru_cache(maxsize=2)
def _machine_epsilon(dtype: np.dtype) -> float:
    """Return the difference between 1 and the next number of this dtype; 0 for dtypes that kernels refuse."""
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0


def _check_channels(layer: GroupNorm | BatchNorm, shape: Shape, channels: int, min_ndim: int = 2) -> None:
    """Raise ValueError unless a shape is (n, channels, …) with at least `min_ndim` axes."""
    if len(shape) < min_ndim or shape[1] not in (None, channels):
        places = "" if min_ndim == 2 else " with an axis of places or more"
        raise ValueError(f"{layer!r} got shape {format_shape(shape)}; expected (n, {channels}, …){places}")


def _check_options(name: str, features: int, eps: float) -> tuple[int, float]:
    """Return both as numbers; TypeError or ValueError unless `features` is a positive integer and `eps` at least 0."""
    return check_positive_integer(f"{name}: features", features), check_nonnegative(f"{name}: eps", eps)
