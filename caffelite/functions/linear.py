"""The linear layer and the matrix product."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.function import Function, Shape
from caffelite.functions.arithmetic import operand
from caffelite.initializers import Initializer, uniform
from caffelite.tensor import Tensor


class Linear(Function, recordable=True):
    """A fully connected layer, y = x W + b:  dW = xᵀ dy,  db = Σ dy over the rows,  dx = dy Wᵀ.

    x (n, in_features), W `weight` (in_features, out_features), b `bias` (out_features,), y (n, out_features).

    W and b are drawn from U(−1/√in, 1/√in); `initializer`, (shape, rng) -> array, draws W instead, and b is then 0.
    Raises ValueError for x of another shape and TypeError for x of another dtype than W's.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        initializer: Initializer | None = None,
    ) -> None:
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if not isinstance(value, int | np.integer) or isinstance(value, bool):
                raise TypeError(f"Linear: {name} must be an integer, got {value!r}")
            if value < 1:
                raise ValueError(f"Linear: {name} must be at least 1, got {value}")
        self.in_features, self.out_features = int(in_features), int(out_features)
        self.input_shape = (None, self.in_features)
        self.initializer = initializer
        self.weight = Tensor(np.empty((in_features, out_features), np.float32), requires_grad=True, name="weight")
        self.bias = Tensor(np.empty(out_features, np.float32), requires_grad=True, name="bias") if bias else None
        self.initialize(None)

    def initialize(self, rng: Any) -> None:
        rng = np.random.default_rng(rng)
        default = uniform(1 / math.sqrt(self.in_features))
        self.weight.data = (self.initializer or default)(self.weight.shape, rng)
        if self.bias is not None:
            self.bias.data = np.zeros(self.bias.shape) if self.initializer else default(self.bias.shape, rng)

    def parameters(self) -> list[Tensor]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        if len(shape) != 2 or shape[1] not in (None, self.in_features):
            got = f"rows of {shape[1]} features, " if len(shape) == 2 else ""
            raise ValueError(f"{self._label()} got {got}shape {_text(shape)}; expected (n, {self.in_features})")
        return (shape[0], self.out_features)

    def forward(self, x: np.ndarray) -> np.ndarray:
        if x.ndim != 2 or x.shape[1] != self.in_features:
            self.output_shape(x.shape)
        if x.dtype.newbyteorder("=") != self.weight.dtype:
            raise TypeError(f"{self._label()} is {self.weight.dtype}, got {x.dtype}: convert x, or take Model(dtype=…)")
        self.x = x
        return kernels.matmul(x, self.weight.data, bias=None if self.bias is None else self.bias.data)

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        if self.weight.requires_grad:
            self.weight.add_grad_of(kernels.matmul, self.x.T, dy)
        if self.bias is not None and self.bias.requires_grad:
            self.bias.add_grad_of(kernels.sum, dy, axis=0)
        return kernels.matmul(dy, self.weight.data.T) if self.wants_gradient(0) else None

    def _label(self) -> str:
        return f"Linear({self.in_features} → {self.out_features})"

    def __repr__(self) -> str:
        return f"Linear({self.in_features}, {self.out_features}{'' if self.bias is not None else ', bias=False'})"


def _text(shape: Shape) -> str:
    """A shape as NumPy writes it, n for an unknown length."""
    return str(shape).replace("None", "n")


class MatMul(Function, recordable=True):
    """The matrix product, y = a b, a (M, K), b (K, N):  da = dy bᵀ,  db = aᵀ dy. A vector is one row, or one column."""

    def forward(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if not (1 <= np.ndim(a) <= 2 and 1 <= np.ndim(b) <= 2) or a.shape[-1] != b.shape[0]:
            raise ValueError(f"matmul got shapes {np.shape(a)} and {np.shape(b)}; expected (M, K) and (K, N)")
        self.a = a.reshape(1, -1) if a.ndim == 1 else a
        self.b = b.reshape(-1, 1) if b.ndim == 1 else b
        self.a_shape, self.b_shape = a.shape, b.shape
        return kernels.matmul(self.a, self.b).reshape(a.shape[:-1] + b.shape[1:])

    def backward(self, dy: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
        dy = dy.reshape(self.a.shape[0], self.b.shape[1])
        da = kernels.matmul(dy, self.b.T).reshape(self.a_shape) if self.wants_gradient(0) else None
        db = kernels.matmul(self.a.T, dy).reshape(self.b_shape) if self.wants_gradient(1) else None
        return da, db


def matmul(a: Tensor, b: Any) -> Tensor:
    """The matrix product a @ b."""
    return MatMul()(a, operand(b, a, "@"))


Tensor.matmul = Tensor.__matmul__ = matmul
Tensor.__rmatmul__ = lambda self, other: MatMul()(operand(other, self, "@"), self)
