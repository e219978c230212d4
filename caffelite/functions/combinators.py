"""Functions made of other Functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.reprs import repr_with_arguments
from caffelite.core.function import Function, Shape, format_shape
from caffelite.core.tensor import Tensor
from caffelite.functions.indexing import Concatenate

__all__ = ["Parallel", "Residual"]


class Residual(Function, recordable=True, rowwise=True):
    """A residual connection, y = x + f(x):  dx = dy + df(dy).

    Raise ValueError if f changes the shape.

    K. He et al., "Deep residual learning for image recognition", CVPR 2016.
    """

    def __init__(self, function: Function) -> None:
        self.function = _check_function("Residual", function)

    @property
    def required_input_shape(self) -> Any:
        return self.function.required_input_shape

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        fx = self.function.output_shape(shape)
        if len(fx) != len(shape) or any(None not in (n, m) and n != m for n, m in zip(fx, shape, strict=True)):
            self._raise_mismatch(shape, fx)
        return shape

    def _raise_mismatch(self, x: Shape, fx: Shape) -> None:
        raise ValueError(
            f"{self!r} got shape {format_shape(x)}, but the Function in it makes shape {format_shape(fx)} of it"
        )

    def formula(self, x: Tensor) -> Any:
        return x + self.function(x)

    def forward(self, x: np.ndarray) -> np.ndarray:
        fx = self.function.forward(x)
        if fx.shape != x.shape:
            self._raise_mismatch(x.shape, fx.shape)
        return kernels.add(x, fx)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.add(dy, self.function.backward(dy))

    __repr__ = repr_with_arguments


class Parallel(Function, recordable=True, rowwise=True):
    """Parallel branches, y = [f(x), g(x), …], whose outputs are concatenated along `axis`:  dx = df(dy₁) + dg(dy₂) + …

    Each branch gets x, or all inputs if there are several. Raise ValueError if there are no Functions, or if the
    outputs differ along other axes.
    """

    not_recorded = frozenset({"_copies"})

    def __init__(self, functions: Iterable[Function], axis: int = -1) -> None:
        if isinstance(functions, Function):
            raise TypeError(f"Parallel takes a list of Functions, Parallel([Linear(2, 3), …]), got {functions!r}")
        self.functions = [_check_function("Parallel", function) for function in functions]
        if not self.functions:
            raise ValueError("Parallel got no Functions")
        self.concatenate = Concatenate(axis)

    def arguments(self) -> dict[str, Any]:
        return {"functions": self.functions, "axis": self.concatenate.axis}

    @property
    def required_input_shape(self) -> Any:
        required = [function.required_input_shape for function in self.functions]
        return next((shape for shape in required if shape is not None), None)

    @property
    def takes_indices(self) -> bool | tuple[bool, ...]:  # type: ignore[override]
        return self.functions[0].takes_indices

    @property
    def takes_float64(self) -> bool:  # type: ignore[override]
        return all(function.takes_float64 for function in self.functions)

    @property
    def takes_sparse(self) -> bool:  # type: ignore[override]
        return all(function.takes_sparse for function in self.functions)

    @property
    def frame_reader(self) -> Any:
        """The first Function's reader, if all Functions make the same inputs from a frame."""
        readers = [function.frame_reader for function in self.functions]
        are_equal = all(reader is not None and reader.is_equivalent(readers[0]) for reader in readers)
        return readers[0] if are_equal else None

    def output_shape(self, *input_shapes: Shape) -> Shape:
        return self.concatenate.output_shape(*[function.output_shape(*input_shapes) for function in self.functions])

    def formula(self, *xs: Tensor) -> Any:
        return self.concatenate(*[function(*xs) for function in self.functions])

    def forward(self, *xs: np.ndarray) -> np.ndarray:
        self._copies = [function.copy() for function in self.functions]  # one Function may occur twice
        return self.concatenate.forward(*[function.forward(*xs) for function in self._copies])

    def backward(self, dy: np.ndarray) -> Any:
        parts = zip(self._copies, self.concatenate.backward(dy), strict=True)
        branch_gradients = [function.backward(part) for function, part in parts]
        if isinstance(branch_gradients[0], tuple):
            return tuple([_sum_gradients(gradients) for gradients in zip(*branch_gradients, strict=True)])
        return _sum_gradients(branch_gradients)

    def __repr__(self) -> str:
        axis = "" if self.concatenate.axis == -1 else f", axis={self.concatenate.axis}"
        return f"Parallel([{', '.join(map(repr, self.functions))}]{axis})"


def _sum_gradients(gradients: Iterable[Any]) -> np.ndarray | None:
    """Return the sum of the gradients, leaving out None."""
    total = None
    for g in gradients:
        total = g if total is None else total if g is None else kernels.add(total, g)
    return total


def _check_function(name: str, function: Any) -> Function:
    if not isinstance(function, Function):
        raise TypeError(f"{name} takes Functions such as ReLU(), got {function!r}")
    return function
