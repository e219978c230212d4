"""Arithmetic with NumPy's broadcasting, and Tensor's operators.

A gradient has the shape that the operands were broadcast to. `sum_to_shape` sums it over the repeated axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import as_real
from caffelite.core.autograd import binary_operator
from caffelite.core.function import Function, Shape
from caffelite.core.tensor import Tensor, add_methods

Gradients = tuple[np.ndarray | None, np.ndarray | None]
PYTHON_NUMBERS = (int, float)


def operand_shape(value: Any) -> tuple[int, ...]:
    """Return the shape of an array or a number. NumPy's own function takes three times as long."""
    return getattr(value, "shape", ())


def sum_to_shape(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the gradient of an operand of the given shape, summed over the axes on which broadcasting repeated it."""
    if gradient.shape == shape:
        return gradient
    new_axes = gradient.ndim - len(shape)
    repeated_axes = tuple(i for i in range(new_axes, gradient.ndim) if shape[i - new_axes] != gradient.shape[i])
    return kernels.sum(gradient, (*range(new_axes), *repeated_axes)).reshape(shape)


def common_length(lengths: Iterable[int | None]) -> int | None:
    """Return the one length that all of these have; None is unknown. Raise ValueError if they differ."""
    known = set(lengths)
    known.discard(None)
    if len(known) > 1:
        raise ValueError(f"lengths {known} differ")
    return known.pop() if known else None


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that these broadcast to; None is an unknown length. Raise ValueError if they don't fit."""
    lengths = [set(axis_lengths) - {1} for axis_lengths in itertools.zip_longest(*map(reversed, shapes), fillvalue=1)]
    try:
        return tuple([common_length(axis_lengths) if axis_lengths else 1 for axis_lengths in reversed(lengths)])
    except ValueError:
        raise ValueError(f"shapes {format_shapes(shapes)} don't broadcast") from None


def format_shapes(shapes: Iterable[Shape]) -> str:
    """Return these shapes as text, each once."""
    return ", ".join(map(str, dict.fromkeys(shapes)))


class BroadcastFunction(Function):
    """A Function whose inputs are broadcast to each other."""

    def output_shape(self, *input_shapes: Shape) -> Shape:
        return broadcast_shape(input_shapes)


class Add(BroadcastFunction, recordable=True):
    """y = a + b."""

    def forward(self, a: Any, b: Any) -> np.ndarray:
        self.a_shape, self.b_shape = operand_shape(a), operand_shape(b)
        return kernels.add(a, b)

    def backward(self, dy: np.ndarray) -> Gradients:
        da = sum_to_shape(dy, self.a_shape) if self.wants_gradient(0) else None
        db = sum_to_shape(dy, self.b_shape) if self.wants_gradient(1) else None
        return da, db


class Subtract(BroadcastFunction, recordable=True):
    """y = a − b."""

    def forward(self, a: Any, b: Any) -> np.ndarray:
        self.a_shape, self.b_shape = operand_shape(a), operand_shape(b)
        return kernels.subtract(a, b)

    def backward(self, dy: np.ndarray) -> Gradients:
        da = sum_to_shape(dy, self.a_shape) if self.wants_gradient(0) else None
        db = sum_to_shape(kernels.negative(dy), self.b_shape) if self.wants_gradient(1) else None
        return da, db


class Multiply(BroadcastFunction, recordable=True):
    """y = a · b."""

    def forward(self, a: Any, b: Any) -> np.ndarray:
        self.a, self.b = a, b
        return kernels.multiply(a, b)

    def backward(self, dy: np.ndarray) -> Gradients:
        da = sum_to_shape(kernels.multiply(dy, self.b), operand_shape(self.a)) if self.wants_gradient(0) else None
        db = sum_to_shape(kernels.multiply(dy, self.a), operand_shape(self.b)) if self.wants_gradient(1) else None
        return da, db


class Divide(BroadcastFunction, recordable=True):
    """y = a / b;  da = dy / b,  db = −dy y / b."""

    def forward(self, a: Any, b: Any) -> np.ndarray:
        self.a_shape, self.b = operand_shape(a), b
        self.y = kernels.divide(a, b)
        return self.y

    def backward(self, dy: np.ndarray) -> Gradients:
        da = kernels.divide(dy, self.b)
        db = None
        if self.wants_gradient(1):
            db = sum_to_shape(kernels.divide_grad(da, self.y), operand_shape(self.b))
        return sum_to_shape(da, self.a_shape) if self.wants_gradient(0) else None, db


class Power(BroadcastFunction, recordable=True):
    """y = a ** b;  da = dy b a ** (b − 1),  db = dy y log a."""

    def forward(self, a: Any, b: Any) -> np.ndarray:
        self.a, self.b = a, b
        self.y = kernels.power(a, b)
        return self.y

    def backward(self, dy: np.ndarray) -> Gradients:
        da = db = None
        if self.wants_gradient(0):
            da = sum_to_shape(kernels.power_grad_base(dy, self.a, self.b), operand_shape(self.a))
        if self.wants_gradient(1):
            db = sum_to_shape(kernels.power_grad_exponent(dy, self.a, self.y), operand_shape(self.b))
        return da, db


class Negative(Function, recordable=True, rowwise=True):
    """y = −x."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        return kernels.negative(x)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.negative(dy)


# ---- Tensor's operators ---------------------------------------------------------------------------------------------


def as_tensor(x: Any) -> Tensor:
    """Return x if it is a Tensor, otherwise a Tensor made of it."""
    return x if isinstance(x, Tensor) else Tensor(x)


def as_operand(value: Any, tensor: Tensor, symbol: str) -> Any:
    """Return the other operand of an operator as Functions take it: a Tensor, an array of the Tensor's dtype, or a
    number.

    Numbers and arrays get the Tensor's dtype. TypeError for a Tensor of another dtype, and for anything but numbers.
    """
    if isinstance(value, Tensor):
        if value.dtype == tensor.dtype:
            return value
        hint = f"make the other one of Tensor(…, dtype=np.{tensor.dtype}), or, in a `forward`, use the Tensor's .data"
        raise TypeError(f"Tensor {symbol} got {tensor.dtype} and {value.dtype}; {hint}")
    if isinstance(value, PYTHON_NUMBERS) or (isinstance(value, np.generic) and value.dtype.kind in "buif"):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"Tensor {symbol} got an integer that is too large for {tensor.dtype}") from None
    return as_real(value, tensor.dtype, f"Tensor {symbol}")


def as_operands(values: Sequence[Any], name: str) -> list[Any]:
    """Convert the values to one dtype: that of the first Tensor, or else of the first float array or value."""
    tensors = (i for i, x in enumerate(values) if isinstance(x, Tensor))
    floats = (i for i, x in enumerate(values) if isinstance(x, np.ndarray) and x.dtype.kind == "f")
    index = next(itertools.chain(tensors, floats), 0)
    tensor = as_tensor(values[index])
    return [as_operand(tensor if i == index else x, tensor, name) for i, x in enumerate(values)]


def add_operator(name: str, function: type[Function], symbol: str, as_left_operand: Any = as_operand) -> None:
    """Give Tensor the two methods of an operator: one with the Tensor on the left, the other with it on the right."""
    setattr(Tensor, f"__{name}__", binary_operator(function, symbol, as_operand))
    setattr(Tensor, f"__r{name}__", binary_operator(function, symbol, as_left_operand, swapped=True))


add_operator("add", Add, "+")
add_operator("sub", Subtract, "-")
add_operator("mul", Multiply, "*")
add_operator("truediv", Divide, "/")
add_operator("pow", Power, "**")
add_methods(__neg__=lambda self: Negative().apply_once(self))
