"""The same elements in another shape, in another order, or several times. `Reshape` and `Flatten` are layers."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import native_dtype, normalize_axes, reshape_array, to_integers
from caffelite.core.function import Function, Shape
from caffelite.core.tensor import Tensor, add_methods
from caffelite.functions.arithmetic import as_tensor
from caffelite.functions.indexing import concatenate

__all__ = ["Flatten", "Reshape", "expand_dims", "flip", "repeat", "reshape", "roll", "squeeze", "transpose"]


class ToShape(Function, recordable=True):
    """The elements of x, in order, in another shape; one length may be −1. A view if the memory allows it."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        count = math.prod(n for n in shape if n is not None)
        known_count = math.prod(n for n in self.shape if n != -1)
        rest = None if None in shape else count // max(known_count, 1)  # the length that −1 stands for
        y = tuple([rest if n == -1 else n for n in self.shape])
        if None not in (*shape, *y) and math.prod(n for n in y if n is not None) != count:
            raise ValueError(self._describe_misfit(shape))
        return y

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x_shape = x.shape
        if -1 not in self.shape and x.size != math.prod(self.shape):
            raise ValueError(self._describe_misfit(x.shape))
        return reshape_array(x, self.shape)

    def _describe_misfit(self, shape: Any) -> str:
        """Return the message about an input that has too few or too many elements."""
        text, rows = f"{self!r} got shape {shape}", self.shape[0] if self.shape else 0
        if not shape or rows * math.prod(shape[1:]) != math.prod(self.shape):
            return text
        return (
            f"{text}: it is for {rows} row{'s' if rows > 1 else ''}. A file of ONNX for any number of rows is exported "
            "with dynamic_shapes"
        )

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return reshape_array(dy, self.x_shape)

    def __repr__(self) -> str:
        return f"ToShape({', '.join(map(str, self.shape))})"


class Reshape(Function, recordable=True, rowwise=True):
    """The elements of each row of x (n, …), in order, in another shape; one length may be −1. A view if possible."""

    def __init__(self, shape: int | Iterable[int]) -> None:
        self.shape = tuple([operator.index(n) for n in (shape if isinstance(shape, Iterable) else (shape,))])
        if any(n < -1 for n in self.shape) or self.shape.count(-1) > 1:
            raise ValueError(f"Reshape takes the lengths of a row's axes, one of them −1 at most, got {shape}")

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        if not shape:
            raise ValueError(f"{self!r} got shape (); expected rows, (n, …)")
        row, known_count = shape[1:], math.prod(n for n in self.shape if n != -1)
        count = None if None in row else math.prod(n for n in row if n is not None)
        if count is not None and (
            count != known_count if -1 not in self.shape else known_count == 0 or count % known_count
        ):
            raise ValueError(f"{self!r} got rows of shape {row}, shape {shape}; that is {count} elements a row")
        return (shape[0], *[(None if count is None else count // known_count) if n == -1 else n for n in self.shape])

    def is_rowwise(self) -> bool:
        return super().is_rowwise() and self.shape != ()  # Softmax may mistake an axis of numbers for the classes

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x_shape = x.shape
        y_shape: Any = self.output_shape(x.shape)
        return reshape_array(x, y_shape)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return reshape_array(dy, self.x_shape)

    def __repr__(self) -> str:
        return f"Reshape({self.shape})"


class Flatten(Reshape, recordable=True, rowwise=True):
    """Each row of x (n, …) as a vector, y (n, k). A view if possible."""

    def __init__(self) -> None:
        super().__init__(-1)

    def __repr__(self) -> str:
        return "Flatten()"


def as_rows(x: Any) -> Any:
    """Return x (…, k) as rows (n, k), a view if the memory allows it. Matrices and sparse rows stay as they are."""
    return x if x.ndim == 2 else reshape_array(x, (-1, x.shape[-1]))


def restore_axes(rows: np.ndarray, lengths: tuple[int, ...]) -> np.ndarray:
    """Return rows (n, k) as (*lengths, k), which undoes `as_rows`."""
    return rows if len(lengths) == 1 else rows.reshape(*lengths, rows.shape[-1])


class Transpose(Function, recordable=True):
    """x with its axes in another order, given as numbers or as a tuple; reversed without arguments. A view."""

    def __init__(self, *axes: Any) -> None:
        self.axes = None if not axes or (len(axes) == 1 and axes[0] is None) else _as_integers(axes)

    def arguments(self) -> dict[str, Any]:
        return {"axes": self.axes or ()}

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        try:  # the order of the axes, as the shape of an array of shape (0, 1, 2, …)
            order = np.empty(range(len(shape))).transpose(self.axes).shape
        except ValueError as error:
            raise ValueError(f"{self!r} got shape {shape}: {error}") from None
        return tuple([shape[i] for i in order])

    def forward(self, x: np.ndarray) -> np.ndarray:
        return x.transpose(self.axes)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return dy.transpose(None if self.axes is None else np.argsort(np.asarray(self.axes) % dy.ndim))

    def __repr__(self) -> str:
        return f"Transpose({', '.join(map(str, self.axes or ()))})"


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

    def reversing_index(self, ndim: int) -> tuple[slice | EllipsisType, ...]:
        """Return the index that reverses the axes; without axes, it takes the entire array."""
        axes = normalize_axes(self.axis, ndim)
        return (*[slice(None, None, -1 if i in axes else None) for i in range(ndim)], ...)

    def __repr__(self) -> str:
        return f"Flip({'' if self.axis is None else self.axis})"


class Roll(Function, recordable=True):
    """x with its elements moved along axes: y[(i + shift) mod n] = x[i] along an axis of length n.

    Each of `shifts` belongs to the axis at the same position in `axes`.
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
        """Return how far elements move, 1 … n − 1, by axis. Axes without a move are left out."""
        total = dict.fromkeys(range(len(shape)), 0)
        for axis, shift in zip(self.axes, self.shifts, strict=True):
            (i,) = normalize_axes(axis, len(shape))
            total[i] += shift
        return {i: shift % shape[i] for i, shift in total.items() if shape[i] and shift % shape[i]}

    def __repr__(self) -> str:
        return f"Roll({self.shifts}, {self.axes})"


def roll_array(x: np.ndarray, moves: dict[int, int]) -> np.ndarray:
    """Return a copy of x with its elements moved by 1 … n − 1 places along these axes, in two blocks along each."""
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
    """x with each element repeated along an axis:  dx = Σ dy over its repetitions."""

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


def reshape(x: Any, *shape: Any) -> Tensor:
    """Return the elements of x, in order, in another shape, given as numbers or a tuple."""
    return ToShape(*_as_integers(shape)).apply_once(as_tensor(x))


def transpose(x: Any, *axes: Any) -> Tensor:
    """Return x with its axes in the order given, as numbers or a tuple, or by default reversed. A view."""
    return Transpose(*axes).apply_once(as_tensor(x))


def squeeze(x: Any, axis: Any = None) -> Tensor:
    """Return x without axes of length 1: one, a tuple of them, or all (None). A view.

    Raise ValueError for an axis that is not of length 1, or that x does not have.
    """
    x = as_tensor(x)
    axes = [i for i, n in enumerate(x.shape) if n == 1] if axis is None else normalize_axes(axis, x.ndim)
    if any(x.shape[i] != 1 for i in axes):
        raise ValueError(f"squeeze got shape {x.shape}; expected length 1 along axis {axis}")
    return reshape(x, [n for i, n in enumerate(x.shape) if i not in axes])


def expand_dims(x: Any, axis: int | tuple[int, ...]) -> Tensor:
    """Return x with new axes of length 1, one or a tuple, at these positions. A view.

    Raise ValueError for a position that the result does not have, or that occurs twice.
    """
    x = as_tensor(x)
    axes = to_integers("expand_dims", axis)
    ndim = x.ndim + len(axes)
    new_axes, lengths = normalize_axes(axes, ndim), iter(x.shape)
    return reshape(x, [1 if i in new_axes else next(lengths) for i in range(ndim)])


def flip(x: Any, axis: Any = None) -> Tensor:
    """x in reverse order along `axis`: one, a tuple of them, or all (None). A view.

    Raise ValueError for an axis that x does not have.
    """
    return Flip(axis).apply_once(as_tensor(x))


def roll(x: Any, shift: Any, axis: Any = None) -> Tensor:
    """Return x with elements moved by `shift` places along `axis`, wrapping around.

    Elements that leave at one end re-enter at the other. Either argument may be a tuple, as in `numpy.roll`. With
    axis=None, x is rolled as one vector. Raise TypeError unless shifts and axes are integers. Raise ValueError for an
    axis that x does not have, and for tuples of different lengths.
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
    """Return x with each element repeated along an axis, next to its copies.

    With axis=None, x is one vector. `repeats` is an integer, or one for each element along the axis. Raise ValueError
    if their number is wrong, or one is negative. Raise TypeError unless they are integers.
    """
    tensor = as_tensor(x)
    if axis is None:
        return repeat(tensor.reshape(-1), repeats, 0)
    (axis,) = normalize_axes((axis,), tensor.ndim)
    counts, length = to_integers("repeat", repeats), tensor.shape[axis]
    if any(n < 0 for n in counts) or len(counts) not in (1, length):
        raise ValueError(
            f"repeat takes an integer of 0 or more, or one for each of the {length} elements along axis {axis}, "
            f"got {repeats}"
        )
    if len(counts) == 1:
        return Repeat(counts[0], axis).apply_once(tensor)
    positions = [place for place, count in enumerate(counts) for _ in range(count)]
    return tensor[(*[slice(None)] * axis, positions)]


def _as_integers(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """Return integers that were given one by one or as one sequence."""
    if len(arguments) == 1 and isinstance(arguments[0], Sequence | np.ndarray):
        arguments = tuple(arguments[0])
    if any(isinstance(n, bool) for n in arguments):
        raise TypeError(f"expected integers, got {arguments}")
    return tuple([operator.index(n) for n in arguments])


add_methods(reshape, transpose, squeeze, repeat)
