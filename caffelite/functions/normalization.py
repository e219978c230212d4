"""Normalization layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.function import Function, Shape
from caffelite.tensor import Tensor

__all__ = ["LayerNorm"]


class LayerNorm(Function, recordable=True):
    """Each row made one of mean 0 and variance 1, then scaled and shifted:

        x̂ = (x − m) / √(v + ε),  y = x̂ scale + shift,  m and v the mean and the biased variance of the row
        dscale = Σ dy x̂,  dshift = Σ dy  over all rows
        dx = (g − mean g − x̂ mean(g x̂)) / √(v + ε),  g = dy scale,  means over the row

    x and y (…, features), `scale` (features,) ones, `shift` (features,) zeros, absent with bias=False. In training and
    inference alike. ValueError for x of another shape, TypeError for x of another dtype than `scale`.

    J. Ba, J. Kiros, G. Hinton, "Layer Normalization", 2016, arXiv:1607.06450.
    """

    def __init__(self, features: int, eps: float = 1e-5, bias: bool = True) -> None:
        self.features, self.eps = _checked("LayerNorm", features, eps)
        self.scale = Tensor(np.ones(self.features, np.float32), requires_grad=True, name="scale")
        self.shift = Tensor(np.zeros(self.features, np.float32), requires_grad=True, name="shift") if bias else None

    def initialize(self, rng: Any) -> None:
        """Make `scale` ones and `shift` zeros again; nothing is drawn."""
        self.scale.data = np.ones(self.features)
        if self.shift is not None:
            self.shift.data = np.zeros(self.features)

    def parameters(self) -> list[Tensor]:
        return [self.scale] if self.shift is None else [self.scale, self.shift]

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        if not shape or shape[-1] not in (None, self.features):
            raise ValueError(f"{self!r} got shape {shape}; expected (…, {self.features})")
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
        eps = "" if self.eps == 1e-5 else f", eps={self.eps:g}"
        return f"LayerNorm({self.features}{eps}{'' if self.shift is not None else ', bias=False'})"


def _checked(name: str, features: int, eps: float) -> tuple[int, float]:
    """Both as numbers; TypeError or ValueError unless `features` is an integer above 0 and `eps` at least 0."""
    if not isinstance(features, int | np.integer) or isinstance(features, bool):
        raise TypeError(f"{name}: features must be an integer, got {features!r}")
    if features < 1:
        raise ValueError(f"{name}: features must be at least 1, got {features}")
    if not eps >= 0:
        raise ValueError(f"{name}: eps must be at least 0, got {eps}")
    return int(features), float(eps)
