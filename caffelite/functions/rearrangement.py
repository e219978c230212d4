"""The elements of an array in another order along its axes, or several times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import native_dtype, normalize_axes, to_integers
from caffelite.core.function import Function, Shape
from caffelite.core.tensor import Tensor, add_methods
from caffelite.functions.arithmetic import as_tensor
from caffelite.functions.indexing import concatenate
from caffelite.functions.shape import expand_dims

__all__ = ["flip", "repeat", "roll"]


class Flip(Function, recordable=True):
    """x in reverse order along `axis`: one, a tuple of them, or all (None). A view."""

    def __init__(self, axis: int | tuple[int, ...] | None = None) -> None:
        self.axis = axis

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        normalize_axes(self.axis, len(shape))
        return shape

    def forward(self, x: np.ndarray) -> np.ndarray:
        return x[self.reversing_index(x.ndim)]

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return dy[self.reversing_index(dy.ndim)]

    def reversing_index(self, ndim: int) -> tuple:
        """Return the index that reverses the axes; of no axes, the whole array."""
        axes = normalize_axes(self.axis, ndim)
        return (*[slice(None, None, -1 if i in axes else None) for i in range(ndim)], ...)

    def __repr__(self) -> str:
        return f"Flip({'' if self.axis is None else self.axis})"


class Roll(Function, recordable=True):
    """x with its elements moved along axes: y[(i + shift) mod n] = x[i] along an axis of length n.

    Each of `shifts` is for the axis at the same place in `axes`.
    """

    def __init__(self, shifts: Sequence[int], axes: Sequence[int]) -> None:
        self.shifts, self.axes = tuple(shifts), tuple(axes)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        for axis in self.axes:
            normalize_axes(axis, len(shape))
        return shape

    def formula(self, x: Tensor) -> Tensor:
        for axis, shift in self.moves(x.shape).items():
            leading = (slice(None),) * axis
            x = concatenate([x[(*leading, slice(-shift, None))], x[(*leading, slice(None, -shift))]], axis)
        return x

    def forward(self, x: np.ndarray) -> np.ndarray:
        return roll_array(x, self.moves(x.shape))

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return roll_array(dy, {axis: dy.shape[axis] - shift for axis, shift in self.moves(dy.shape).items()})

    def moves(self, shape: tuple[int, ...]) -> dict[int, int]:
        """How far elements move, 1 … n − 1, by axis. Other axes are left out."""
        total = dict.fromkeys(range(len(shape)), 0)
        for axis, shift in zip(self.axes, self.shifts, strict=True):
            (i,) = normalize_axes(axis, len(shape))
            total[i] += shift
        return {i: shift % shape[i] for i, shift in total.items() if shape[i] and shift % shape[i]}

    def __repr__(self) -> str:
        return f"Roll({self.shifts}, {self.axes})"


def roll_array(x: np.ndarray, moves: dict[int, int]) -> np.ndarray:
    """Return a copy of x, its elements moved by 1 … n − 1 places along these axes: in blocks, two along each axis."""
    y = kernels.output(x.shape, native_dtype(x))
    parts = []
    for axis, n in enumerate(x.shape):
        shift = moves.get(axis, 0)
        parts.append([(slice(n - shift), slice(shift, None))] + [(slice(n - shift, None), slice(shift))] * (shift > 0))
    for block in itertools.product(*parts):
        source, target = ((*[part[i] for part in block], ...) for i in (0, 1))
        kernels.copy(x[source], y[target])
    return y


class Repeat(Function, recordable=True):
    """x with each element along an axis several times:  dx = Σ dy over its repetitions."""

    def __init__(self, repeats: int, axis: int) -> None:
        self.repeats, self.axis = repeats, axis

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        (axis,) = normalize_axes(self.axis, len(shape))
        n = shape[axis]
        return (*shape[:axis], None if n is None else n * self.repeats, *shape[axis + 1 :])

    def formula(self, x: Tensor) -> Tensor:
        shape: Any = self.output_shape(x.shape)
        new_axis = (self.axis % x.ndim) + 1
        times = np.ones((self.repeats, *[1] * (x.ndim - new_axis)), x.dtype)
        return (expand_dims(x, new_axis) * times).reshape(shape)

    def forward(self, x: np.ndarray) -> np.ndarray:
        shape: Any = self.output_shape(x.shape)
        new_axis = (self.axis % x.ndim) + 1
        y = kernels.output(shape, native_dtype(x))
        kernels.copy(np.expand_dims(x, new_axis), y.reshape(*x.shape[:new_axis], self.repeats, *x.shape[new_axis:]))
        self.repeated_shape, self.repeated_axis = (*x.shape[:new_axis], self.repeats, *x.shape[new_axis:]), new_axis
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.sum(dy.reshape(self.repeated_shape), self.repeated_axis)

    def __repr__(self) -> str:
        return f"Repeat({self.repeats}, {self.axis})"


def flip(x: Any, axis: Any = None) -> Tensor:
    """x in reverse order along `axis`: one, a tuple of them, or all (None). A view.

    Raise ValueError for an axis that x does not have.
    """
    return Flip(axis).apply_once(as_tensor(x))


def roll(x: Any, shift: Any, axis: Any = None) -> Tensor:
    """x with its elements moved by `shift` places along `axis`, round and round.

    Elements that leave at one end come in at the other. Either argument may be a tuple, as in `numpy.roll`. Without an
    axis, x is rolled as one vector. Raise TypeError unless shifts and axes are integers. Raise ValueError for an axis
    that x does not have, and for tuples of different lengths.
    """
    x = as_tensor(x)
    if axis is None:
        return roll(x.reshape(-1), shift, 0).reshape(x.shape)
    shifts, axes = to_integers("roll", shift), to_integers("roll", axis)
    if 1 not in (len(shifts), len(axes)) and len(shifts) != len(axes):
        raise ValueError(f"roll got {len(shifts)} shifts for {len(axes)} axes: {shift} and {axis}")
    count = max(len(shifts), len(axes)) if shifts and axes else 0
    return Roll(*(values if len(values) == count else values * count for values in (shifts, axes))).apply_once(x)


def repeat(x: Any, repeats: Any, axis: int | None = None) -> Tensor:
    """x with each element along an axis several times, one after the other.

    Without an axis, x is one vector. `repeats` is an integer, or one for each element along the axis. Raise ValueError
    if there is another number of them, or one is negative. Raise TypeError unless they are integers.
    """
    x = as_tensor(x)
    if axis is None:
        return repeat(x.reshape(-1), repeats, 0)
    (axis,) = normalize_axes((axis,), x.ndim)
    counts = to_integers("repeat", repeats)
    if any(n < 0 for n in counts) or len(counts) not in (1, x.shape[axis]):
        raise ValueError(
            f"repeat takes an integer of 0 or more, or one for each of the {x.shape[axis]} elements along axis {axis}, "
            f"got {repeats}"
        )
    if len(counts) == 1:
        return Repeat(counts[0], axis).apply_once(x)
    positions = [place for place, count in enumerate(counts) for _ in range(count)]
    return x[(*[slice(None)] * axis, positions)]


add_methods(repeat)
