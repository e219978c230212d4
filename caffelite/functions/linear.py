"""The linear layer and the matrix product."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.reprs import repr_with_arguments
from caffelite.core.arrays import check_positive_integer, native_dtype, reshape_array
from caffelite.core.function import Function, Shape
from caffelite.core.initializers import Initializer, check_initializer, initialize
from caffelite.core.sparse import as_sparse, is_sparse
from caffelite.core.tensor import Tensor, add_methods, make_parameter
from caffelite.functions.arithmetic import (
    Gradients,
    add_operator,
    as_operand,
    as_operands,
    as_tensor,
    broadcast_shape,
    common_length,
    operand_shape,
    sum_to_shape,
)
from caffelite.functions.shape import as_rows, restore_axes

__all__ = ["Linear", "matmul"]


class Linear(Function, recordable=True, rowwise=True):
    """A fully connected layer, y = x W + b:  dW = xᵀ dy,  db = Σ dy over the rows,  dx = dy Wᵀ.

    x is (n, …, in_features), W `weight` (in_features, out_features), b `bias` (out_features,), y (n, …, out_features).
    All axes of x except the last are rows. If x is sparse (a SciPy matrix or `SparseRows`), the products use only the
    rows of W that x needs, and there is no dx.

    W and b are drawn from U(−1/√in, 1/√in). An `initializer`, (shape, rng) -> array, draws W instead, and b is 0. Raise
    ValueError if x has the wrong shape, and TypeError if x and W differ in dtype.
    """

    takes_sparse = True

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, initializer: Initializer | None = None
    ) -> None:
        name = type(self).__name__
        self.in_features = check_positive_integer(f"{name}: in_features", in_features)
        self.out_features = check_positive_integer(f"{name}: out_features", out_features)
        self.initializer = check_initializer(name, initializer)
        self.weight = make_parameter("weight", (self.in_features, self.out_features))
        self.bias = make_parameter("bias", self.out_features) if bias else None
        self._set_initial_values()

    def initialize(self, rng: Any) -> None:
        initialize(self.weight, self.bias, self.initializer, rng)

    @property
    def required_input_shape(self) -> Any:
        return (None, ..., self.in_features)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        self.check_input_shape(shape)
        return (*shape[:-1], self.out_features)

    def forward(self, x: Any) -> np.ndarray:
        x = self.check_input(x, self.weight, (self.in_features, self.out_features))
        self.x, self.W, self.lengths = as_rows(x), self.weight.data, x.shape[:-1]
        y = kernels.matmul(self.x, self.W, bias=None if self.bias is None else self.bias.data)
        return restore_axes(y, self.lengths)

    def backward(self, dy: np.ndarray) -> np.ndarray | None:
        dy = as_rows(dy)
        self.weight.add_grad_of(kernels.matmul, self.x.T, dy)
        if self.bias is not None:
            self.bias.add_grad_of(kernels.sum, dy, axis=0)
        if is_sparse(self.x) or not self.wants_gradient(0):
            return None
        return restore_axes(kernels.matmul(dy, self.W.T, kernels.output_like(self.x)), self.lengths)

    __repr__ = repr_with_arguments


class MatMul(Function, recordable=True):
    """The matrix product, y = a b, a (…, M, K), b (…, K, N), y (…, M, N):  da = dy bᵀ,  db = aᵀ dy.

    A vector a is one row, and a vector b one column. Arrays of more than two axes are stacks of matrices, which are
    broadcast to each other. a may be `SparseRows`, which get no gradient. ValueError if the shapes do not fit.
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
        self.a_shape, self.b_shape = operand_shape(a), operand_shape(b)
        if len(self.a_shape) == len(self.b_shape) == 2:
            self.a, self.b, self.y_shape = a, b, (a.shape[0], b.shape[1])
            return kernels.matmul(a, b)
        shape: Any = self.output_shape(self.a_shape, self.b_shape)
        self.b = b.reshape(-1, 1) if b.ndim == 1 else b
        if a.ndim == 1 or (a.ndim > 2 and self.b.ndim == 2):  # one row, or a stack multiplied by the same b
            self.a = reshape_array(a, (math.prod(a.shape[:-1]), a.shape[-1]))
        else:
            self.a = a
        y = batched_matmul(self.a, self.b)
        self.y_shape = y.shape
        return y.reshape(shape)

    def backward(self, dy: np.ndarray) -> Gradients:
        da = db = None
        dy = reshape_array(dy, self.y_shape)
        if self.wants_gradient(0):
            da = sum_to_shape(batched_matmul(dy, self.b.swapaxes(-1, -2)), self.a.shape).reshape(self.a_shape)
        if self.wants_gradient(1):
            transpose = self.a.T if self.a.ndim == 2 else self.a.swapaxes(-1, -2)
            db = sum_to_shape(batched_matmul(transpose, dy), self.b.shape).reshape(self.b_shape)
        return da, db


def batched_matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a b for matrices, or for stacks of matrices, which are broadcast to each other."""
    if a.ndim == b.ndim == 2:
        return kernels.matmul(a, b)
    stack: Any = broadcast_shape((a.shape[:-2], b.shape[:-2]))
    as_, bs = (x if x.shape[:-2] == stack else np.broadcast_to(x, stack + x.shape[-2:]) for x in (a, b))
    y = kernels.output((*stack, a.shape[-2], b.shape[-1]), native_dtype(a))
    for i in np.ndindex(stack[:-1]):
        kernels.matmul_stack(as_[i], bs[i], y[i])
    return y


def matmul(a: Any, b: Any) -> Tensor:
    """Return the matrix product a @ b. a may be a sparse matrix."""
    if is_sparse(a):
        return as_tensor(b).__rmatmul__(a)
    return MatMul().apply_once(*as_operands((a, b), "@"))


def as_left_operand(value: Any, tensor: Tensor, symbol: str) -> Any:
    """Return the left operand of a Tensor's product: `as_operand`, or SparseRows of the Tensor's dtype."""
    if not is_sparse(value):
        return as_operand(value, tensor, symbol)
    if tensor.ndim > 2:
        raise ValueError(f"sparse rows @ got a Tensor of shape {tensor.shape}; expected (features, k) or (features,)")
    return as_sparse(value, tensor.dtype)


add_operator("matmul", MatMul, "@", as_left_operand)
add_methods(matmul=Tensor.__matmul__)
