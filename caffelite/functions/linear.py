"""The linear layer and the matrix product."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import positive_integer
from caffelite.core.function import Function, Shape, shape_text
from caffelite.core.initializers import Initializer, checked, draw
from caffelite.core.modes import is_blank
from caffelite.core.sparse import SparseRows, as_sparse, is_sparse, stored
from caffelite.core.tensor import Tensor, parameter
from caffelite.functions.arithmetic import (
    Gradients,
    broadcast_shape,
    common_length,
    operands,
    operator,
    reduced,
    shape_of,
)
from caffelite.functions.shape import reshaped

__all__ = ["Linear", "matmul"]


class Linear(Function, recordable=True):
    """A fully connected layer, y = x W + b:  dW = xᵀ dy,  db = Σ dy over the rows,  dx = dy Wᵀ.

    x (n, …, in_features), W `weight` (in_features, out_features), b `bias` (out_features,), y (n, …, out_features);
    x of more axes is so many rows more. A sparse x, SciPy's or `SparseRows` (n, in_features), is multiplied by the rows
    of W that it needs, and so is its dW; it has no dx.

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
            positive_integer(f"{type(self).__name__}: {name}", value)
        self.in_features, self.out_features = int(in_features), int(out_features)
        self.initializer = checked(type(self).__name__, initializer)
        self.weight = parameter("weight", (self.in_features, self.out_features))
        self.bias = parameter("bias", self.out_features) if bias else None
        if not is_blank():
            self.initialize(None)

    takes_sparse = True

    def initialize(self, rng: Any) -> None:
        draw(self.weight, self.bias, self.initializer, rng)

    @property
    def required_input_shape(self) -> Any:
        return (None, ..., self.in_features)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        if len(shape) < 2 or shape[-1] not in (None, self.in_features):
            got = f"rows of {shape[-1]} features, " if len(shape) > 1 else ""
            expected = f"expected (n, …, {self.in_features})"
            if len(shape) == 1:
                expected += ": x[:, None] has rows of one number" if self.in_features == 1 else ": x[None] is one row"
            elif None not in shape[1:] and math.prod(n for n in shape[1:] if n is not None) == self.in_features:
                expected += ", which Flatten() makes of it"
            raise ValueError(f"{self._label()} got {got}shape {shape_text(shape)}; {expected}")
        return (*shape[:-1], self.out_features)

    def forward(self, x: Any) -> np.ndarray:
        if is_sparse(x):
            x = as_sparse(x)
        if x.ndim < 2 or x.shape[-1] != self.in_features:
            self.output_shape(x.shape)
        if x.dtype.newbyteorder("=") != self.weight.dtype:
            raise TypeError(f"{self._label()} is {self.weight.dtype}, got {x.dtype}: convert x, or take Model(dtype=…)")
        if self.weight.shape != (self.in_features, self.out_features):
            raise ValueError(
                f"{self._label()} has a weight of shape {self.weight.shape}, expected "
                f"{(self.in_features, self.out_features)}: to use another layer's weight transposed, write "
                "x @ weight.T in a `call`"
            )
        self.shape = x.shape[:-1]
        self.x: Any = x if x.ndim == 2 else reshaped(x, (math.prod(self.shape), self.in_features))
        self.used_weight = self._weight_to_use()
        product = kernels.sparse_matmul if isinstance(x, SparseRows) else kernels.matmul
        y = product(stored(self.x), self.used_weight, bias=None if self.bias is None else self.bias.data)
        return y if x.ndim == 2 else y.reshape(*self.shape, self.out_features)

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        dy = dy if dy.ndim == 2 else reshaped(dy, (len(self.x), self.out_features))
        if self.weight.requires_grad:
            self._add_weight_gradient(dy)
        if self.bias is not None:
            self.bias.add_grad_of(kernels.sum, dy, axis=0)
        if isinstance(self.x, SparseRows) or not self.wants_gradient(0):
            return None
        dx = kernels.matmul(dy, self.used_weight.T, kernels.output_like(self.x))
        return dx if len(self.shape) == 1 else dx.reshape(*self.shape, self.in_features)

    def _weight_to_use(self) -> np.ndarray:
        return self.weight.data

    def _add_weight_gradient(self, dy: np.ndarray) -> None:
        if isinstance(self.x, SparseRows):
            self.weight.add_grad_of(kernels.sparse_matmul_grad, self.x.rows, dy, rows=self.x.rows)
        else:
            self.weight.add_grad_of(kernels.matmul, self.x.T, dy)

    def _label(self) -> str:
        return f"{type(self).__name__}({self.in_features} → {self.out_features})"

    def __repr__(self) -> str:
        text = f"{self.in_features}, {self.out_features}{'' if self.bias is not None else ', bias=False'}"
        if self.initializer is not None:
            text += f", initializer={getattr(self.initializer, '__name__', self.initializer)}"
        return f"Linear({text})"


class MatMul(Function, recordable=True):
    """The matrix product, y = a b, a (…, M, K), b (…, K, N), y (…, M, N):  da = dy bᵀ,  db = aᵀ dy.

    A vector is one row on the left, one column on the right. Axes before the last two are stacks of matrices, which
    broadcast. ValueError for shapes that don't fit.
    """

    def output_shape(self, *input_shapes: Shape) -> Shape:
        a, b = input_shapes
        try:
            common_length((a[-1], b[-2 if len(b) > 1 else 0]))
            stack = broadcast_shape((a[:-2], b[:-2])) if len(a) > 2 or len(b) > 2 else ()
        except (IndexError, ValueError):
            raise ValueError(
                f"matmul got shapes {a} and {b}; expected (…, M, K) and (…, K, N), or (K,), and stacks that broadcast"
            ) from None
        return stack + a[-2:-1] + (b[-1:] if len(b) > 1 else ())

    def forward(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        self.a_shape, self.b_shape = shape_of(a), shape_of(b)
        if len(self.a_shape) == len(self.b_shape) == 2:
            self.a, self.b, self.y_shape = a, b, (a.shape[0], b.shape[1])
            return kernels.matmul(a, b)
        shape: Any = self.output_shape(self.a_shape, self.b_shape)
        self.b = b.reshape(-1, 1) if b.ndim == 1 else b
        if a.ndim == 1 or self.b.ndim == 2:  # one row, or a stack of matrices whose rows are all to meet the same b
            self.a = reshaped(a, (math.prod(a.shape[:-1]), a.shape[-1]))
        else:
            self.a = a
        y = stacked_product(self.a, self.b)
        self.y_shape = y.shape
        return y.reshape(shape)

    def backward(self, dy: np.ndarray) -> Gradients:
        da = db = None
        dy = reshaped(dy, self.y_shape)
        if self.wants_gradient(0):
            da = reduced(stacked_product(dy, self.b.swapaxes(-1, -2)), self.a.shape).reshape(self.a_shape)
        if self.wants_gradient(1):
            db = reduced(stacked_product(self.a.swapaxes(-1, -2), dy), self.b.shape).reshape(self.b_shape)
        return da, db


def stacked_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a b for matrices, or for stacks of them, which broadcast."""
    if a.ndim == b.ndim == 2:
        return kernels.matmul(a, b)
    stack: Any = broadcast_shape((a.shape[:-2], b.shape[:-2]))
    as_, bs = (x if x.shape[:-2] == stack else np.broadcast_to(x, stack + x.shape[-2:]) for x in (a, b))
    y = kernels.output((*stack, a.shape[-2], b.shape[-1]), a.dtype.newbyteorder("="))
    for i in np.ndindex(stack[:-1]):
        kernels.matmul_stack(as_[i], bs[i], y[i])
    return y


def matmul(a: Any, b: Any) -> Tensor:
    """The matrix product a @ b."""
    return MatMul().applied_to(*operands((a, b), "@"))


Tensor.matmul = Tensor.__matmul__ = operator(MatMul, "@")
Tensor.__rmatmul__ = operator(MatMul, "@", swapped=True)
