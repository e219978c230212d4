"""Tables of vectors: learned ones for words and categories, fixed ones for positions in a sequence."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.reprs import repr_with_arguments
from caffelite.core.arrays import (
    as_array,
    as_indices,
    check_positive_integer,
    flat_int64,
    private_copy,
    raise_bad_index,
)
from caffelite.core.function import Function, Shape
from caffelite.core.initializers import Initializer, check_initializer, normal
from caffelite.core.tensor import make_parameter
from caffelite.functions.shape import as_rows

__all__ = ["Embedding", "PositionalEncoding"]


class Embedding(Function, recordable=True, rowwise=True):
    """A table of learned vectors, y = W[x]:  dW[x[i]] += dy[i], with repeated rows in the order of x.

    x (n, …) integers in 0 … count − 1, W `weight` (count, size), y (n, …, size). W is drawn from N(0, 1), as in
    PyTorch, or by an `initializer`, (shape, rng) -> array. Raise TypeError unless x holds integers. Raise IndexError,
    with the row, for an integer that is out of range.

    If `sparse`, optimizers update only the rows of W that a step used, and spend no time on the others. SGD without
    momentum, Adagrad and Adam support this, all without weight decay.
    """

    takes_indices = True
    required_input_shape = (None, ...)

    def __init__(self, count: int, size: int, sparse: bool = False, *, initializer: Initializer | None = None) -> None:
        self.count = self.index_count = check_positive_integer("Embedding: count", count)
        self.size = check_positive_integer("Embedding: size", size)
        self.sparse = bool(sparse)
        self.initializer = check_initializer("Embedding", initializer)
        self.weight = make_parameter("weight", (self.count, self.size), sparse=self.sparse)
        self._set_initial_values()

    def initialize(self, rng: Any) -> None:
        """Initialize the table from a seed or a `numpy.random.Generator`."""
        draw = self.initializer or normal(1.0)
        self.weight.data = draw((self.count, self.size), np.random.default_rng(rng))

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        self.check_input_shape(shape)
        return (*shape, self.size)

    def forward(self, x: np.ndarray) -> np.ndarray:
        indices = as_array(x, self)
        y_shape: Any = self.output_shape(indices.shape)
        raise_error = functools.partial(
            raise_bad_index, repr(self), np.uint64(self.count - 1), indices.shape, indices.dtype
        )
        self.indices = flat_int64(as_indices(private_copy(indices), self))
        return kernels.take(self.weight.data, self.indices, on_stop=raise_error).reshape(y_shape)

    def backward(self, dy: np.ndarray) -> None:
        self.weight.add_grad_of(kernels.take_grad, as_rows(dy), self.indices, self.count, rows=self.indices)

    __repr__ = repr_with_arguments


class PositionalEncoding(Function, recordable=True, rowwise=True):
    """Positional encoding: adds sines and cosines of its position p to each vector of x,  y = x + P[p],  dx = dy:

        P[p, 2i] = sin(p / 10000^(2i / size)),  P[p, 2i + 1] = cos(p / 10000^(2i / size))

    x and y (n, length, size). Raise ValueError if x has another size, or a length above `max_length`.

    A. Vaswani et al., "Attention is all you need", NeurIPS 2017, section 3.5.
    """

    axis_names = ("n", "length")
    not_recorded = frozenset({"_tables"})

    def __init__(self, size: int, max_length: int) -> None:
        self.size = check_positive_integer("PositionalEncoding: size", size)
        self.max_length = check_positive_integer("PositionalEncoding: max_length", max_length)
        self._tables: dict[np.dtype, np.ndarray] = {}  # by dtype; made when needed, because a file may ask for any size

    def table(self, dtype: Any) -> np.ndarray:
        """P (max_length, size), float32 or float64."""
        dtype = np.dtype(dtype)
        if dtype not in self._tables:
            positions, waves = np.arange(self.max_length)[:, None], np.arange(self.size)
            angles = positions / 10_000 ** (waves // 2 * 2 / self.size)
            table = np.where(waves % 2 == 0, np.sin(angles), np.cos(angles))
            self._tables.setdefault(dtype, table.astype(dtype))
        return self._tables[dtype]

    @property
    def required_input_shape(self) -> Any:
        return (None, None, self.size)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        self.check_input_shape(shape)
        if shape[1] is not None and shape[1] > self.max_length:
            raise ValueError(f"{self!r} got sequences of length {shape[1]}; expected {self.max_length} at most")
        return shape

    def forward(self, x: np.ndarray) -> np.ndarray:
        x = self.check_input(x)
        self.output_shape(x.shape)
        return kernels.add(x, self.table(x.dtype)[: x.shape[1]])

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return dy

    def __repr__(self) -> str:
        return f"PositionalEncoding({self.size}, {self.max_length})"
