"""Indexing: parts of arrays; and arrays put together."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import as_real, native, normalized_axes
from caffelite.core.function import Function, Shape
from caffelite.core.tensor import Tensor
from caffelite.functions.arithmetic import common_length, listed, operands
from caffelite.functions.shape import reshaped

__all__ = ["concatenate", "stack"]

WHOLE = slice(None)
Numbers = np.ndarray | Sequence[int] | int


class Index(Function, recordable=True):
    """y = x[index], as in NumPy. If an element is taken several times, its gradients are added.

    `index` is a number, a slice, `...`, None, an array of integers or bool, or a tuple of these. y is a view if there
    is no array among them. IndexError for an index out of bounds, and for arrays of anything else.
    """

    def __init__(self, index: Any) -> None:
        self.index = index if isinstance(index, tuple) else (index,)

    def arguments(self) -> dict[str, Any]:
        raise TypeError("what an Index takes, slices and arrays, is no JSON")

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        try:
            slices, numbers, side_by_side = _parted(self.index, shape)
            lengths = iter(shape)
            view = [1 if entry is None else _length(entry, next(lengths)) for entry in slices]
            for axis, array in numbers.items():
                if (n := view[axis]) is not None:
                    kernels.ravel_index((n,), array)  # raises for what is out of bounds
            places = np.broadcast_shapes(*map(np.shape, numbers.values()))
        except (IndexError, ValueError) as error:
            raise ValueError(f"{self!r} got shape {shape}: {error}") from None
        row = [n for axis, n in enumerate(view) if axis not in numbers]
        first = next(iter(numbers), 0) if side_by_side else 0
        return (*row[:first], *places, *row[first:])

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.shape = x.shape
        if all(_is_basic(entry) for entry in self.index):
            self.slices = self.index if any(entry is ... for entry in self.index) else (*self.index, ...)
            self.places = None
            try:
                return x[self.slices]
            except (OverflowError, IndexError):
                if any(isinstance(entry, int) and abs(entry) > sys.maxsize for entry in self.index):
                    raise IndexError(f"{self!r} is out of bounds for an array of shape {x.shape}") from None
                raise

        # Slices and numbers select a view. Its axes that arrays index are moved to the front and become one axis, of
        # rows to take. In y, the axes of the arrays are where NumPy has them: at the place of the first of those axes,
        # or in front if slices are between them.
        self.slices, numbers, side_by_side = _parted(self.index, x.shape)
        self.axes, self.front = list(numbers), list(range(len(numbers)))
        view = _moved(x[self.slices], self.axes, self.front)
        self.view_shape, lengths, row = view.shape, view.shape[: len(numbers)], view.shape[len(numbers) :]
        self.places = kernels.ravel_index(lengths, *numbers.values())
        rows = reshaped(view, (math.prod(lengths), *row))
        rows = rows if rows.flags.c_contiguous else kernels.copy(rows)
        y = kernels.take(rows, self.places.reshape(-1)).reshape(self.places.shape + row)
        first = self.axes[0] if side_by_side else 0
        self.y_axes, self.y_front = [first + i for i in range(self.places.ndim)], list(range(self.places.ndim))
        return _moved(y, self.y_front, self.y_axes)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        if self.places is not None:
            dy = _moved(dy, self.y_axes, self.y_front)
            rows = reshaped(dy, (self.places.size, *dy.shape[self.places.ndim :]))
            count = math.prod(self.view_shape[: len(self.axes)])
            dview = kernels.take_grad(rows, self.places.reshape(-1), count).reshape(self.view_shape)
            dy = _moved(dview, self.front, self.axes)
            if all(entry == WHOLE for entry in self.slices):
                return dy
        dx = kernels.full(self.shape, 0, native(dy))
        kernels.copy(dy, dx[self.slices])
        return dx

    def __repr__(self) -> str:
        return f"Index[{', '.join(map(_text, self.index))}]"


def _is_basic(entry: Any) -> bool:
    """Whether an entry of an index selects a view."""
    if isinstance(entry, int | np.integer):
        return not isinstance(entry, bool)
    return entry is None or entry is ... or isinstance(entry, slice)


def _length(entry: slice, n: int | None) -> int | None:
    """The length of a slice of an axis of length n, None = unknown."""
    return None if n is None else len(range(n)[entry])


def _parted(index: tuple, shape: Shape) -> tuple[tuple, dict[int, Numbers], bool]:
    """An index in three parts: a slice for each axis, the numbers to take by axes of the view that the slices select,
    and whether these numbers are side by side, with no slice, None or `...` between them.
    """
    index = index if any(entry is ... for entry in index) else (*index, ...)
    arrays = [None if entry is None or entry is ... or isinstance(entry, slice) else _array(entry) for entry in index]
    used = sum(isinstance(entry, slice) for entry in index)
    used += sum(array.ndim if array.dtype == np.bool_ else 1 for array in arrays if array is not None)
    if used > len(shape) or sum(entry is ... for entry in index) > 1:
        raise IndexError(f"an array of shape {shape} has {len(shape)} axes, and an index at most one ...: got {index}")

    slices: list[slice | None] = []
    numbers: dict[int, Numbers] = {}
    for entry, array in zip(index, arrays, strict=True):
        if entry is ...:
            slices += [WHOLE] * (len(shape) - used)
        elif array is None:
            slices.append(entry)
        elif array.dtype != np.bool_:
            # A list as it is: a constant, where a step is recorded.
            numbers[len(slices)] = int(entry) if isinstance(entry, np.integer) else entry
            slices.append(WHOLE)
        elif array.ndim == 0:  # a new axis, of length 1 or 0
            numbers[len(slices)] = [0] * int(array)
            slices.append(None)
        else:
            axis = sum(entry is not None for entry in slices)
            if any(n not in (None, m) for n, m in zip(shape[axis:], array.shape, strict=False)):
                raise IndexError(f"a mask of shape {array.shape} for axes of shape {shape[axis : axis + array.ndim]}")
            if array is entry and kernels.recorder() is not None:
                raise TypeError("a mask in a step that is being recorded: a replay may find another number of elements")
            for part in array.nonzero():
                numbers[len(slices)] = part if array is entry else part.tolist()
                slices.append(WHOLE)
    taken = [i for i, array in enumerate(arrays) if array is not None]
    return tuple(slices), numbers, not taken or taken[-1] - taken[0] + 1 == len(taken)


def _array(entry: Any) -> np.ndarray:
    """An entry of an index as an array of integers or of bool; IndexError for anything else."""
    array = entry if isinstance(entry, np.ndarray) else np.asarray(entry)
    if array.dtype.kind not in "iub" and not (array.size == 0 and isinstance(entry, list)):
        raise IndexError(f"an index is of integers, slices, ..., None and arrays of integers or bool, got {entry!r}")
    if array is not entry and array.dtype == np.uint64 and (array > np.iinfo(np.int64).max).any():
        raise IndexError(f"index {array.max()} is out of bounds: it is larger than any axis")
    return array


def _moved(x: np.ndarray, source: list[int], destination: list[int]) -> np.ndarray:
    """x with axes moved, as numpy.moveaxis does, which is slow if there is nothing to move."""
    return x if source == destination else np.moveaxis(x, source, destination)


def _text(entry: Any) -> str:
    """An entry of an index as code; dtype and shape for an array."""
    if isinstance(entry, slice):
        parts = [entry.start, entry.stop, *([] if entry.step is None else [entry.step])]
        return ":".join("" if part is None else str(part) for part in parts)
    if entry is ...:
        return "..."
    return f"{entry.dtype}{entry.shape}" if isinstance(entry, np.ndarray) else str(entry)


class Concatenate(Function, recordable=True, by_row=True):
    """y = the inputs one after the other along an axis. ValueError unless their other lengths are the same."""

    def __init__(self, axis: int = 0) -> None:
        self.axis = axis

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (axis,) = normalized_axes((self.axis,), len(input_shapes[0]))
        try:
            by_axis = list(zip(*input_shapes, strict=True))
            others = [0 if i == axis else common_length(along) for i, along in enumerate(by_axis)]
        except ValueError:
            raise ValueError(
                f"concatenate along axis {axis} got shapes {listed(input_shapes)}, which differ elsewhere too"
            ) from None
        length = None if None in by_axis[axis] else sum(by_axis[axis])
        return (*others[:axis], length, *others[axis + 1 :])

    def is_by_row(self) -> bool:
        return super().is_by_row() and self.axis in (-1, 1, 2, 3)  # other axes may be the rows

    def forward(self, *arrays: np.ndarray) -> np.ndarray:
        dtype = native(arrays[0])
        arrays = tuple([x if isinstance(x, np.ndarray) else as_real(x, dtype, self) for x in arrays])
        shapes = [x.shape for x in arrays]
        shape: Any = self.output_shape(*shapes)
        self.parts = self.slices(shapes, self.axis % len(shape))
        y = kernels.output(shape, dtype)
        for x, part in zip(arrays, self.parts, strict=True):
            kernels.copy(x, y[part])
        return y

    def backward(self, dy: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple([dy[part] for part in self.parts])

    def slices(self, shapes: list[tuple[int, ...]], axis: int) -> list[tuple]:
        """The part of y that each input is, for inputs of these shapes."""
        ends = [0, *itertools.accumulate(shape[axis] for shape in shapes)]
        return [(*[WHOLE] * axis, slice(begin, end)) for begin, end in itertools.pairwise(ends)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.axis or ''})"


class Stack(Concatenate, recordable=True):
    """y = the inputs one after the other along a new axis. ValueError unless their shapes are the same."""

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (axis,) = normalized_axes((self.axis,), len(input_shapes[0]) + 1)
        try:
            shape = [common_length(along) for along in zip(*input_shapes, strict=True)]
        except ValueError:
            raise ValueError(f"stack got shapes {listed(input_shapes)}; expected all the same") from None
        return (*shape[:axis], len(input_shapes), *shape[axis:])

    def slices(self, shapes: list[tuple[int, ...]], axis: int) -> list[tuple]:
        return [(*[WHOLE] * axis, i, ...) for i in range(len(shapes))]


def concatenate(tensors: Iterable[Any], axis: int = 0) -> Tensor:
    """Tensors, or arrays, one after the other along an axis."""
    return Concatenate(axis).applied_to(*_arrays(tensors, "concatenate"))


def stack(tensors: Iterable[Any], axis: int = 0) -> Tensor:
    """Tensors, or arrays, of one shape, one after the other along a new axis."""
    return Stack(axis).applied_to(*_arrays(tensors, "stack"))


def _arrays(tensors: Iterable[Any], name: str) -> list[Any]:
    """The values in the dtype of the first Tensor or array of floats. TypeError for floats of another dtype."""
    values = list(tensors)
    if not values:
        raise ValueError(f"{name} got no Tensors")
    values = operands(values, name)
    dtype = next(x.dtype for x in values if not isinstance(x, float))
    return [as_real(x, dtype, name) if isinstance(x, float) else x for x in values]


Tensor.__getitem__ = lambda self, index: Index(index).applied_to(self)
