"""Indexing: taking arrays apart, and putting arrays together."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import (
    as_indices,
    as_real,
    check_positive_integer,
    flat_int64,
    native_dtype,
    normalize_axes,
    raise_bad_index,
    reshape_array,
    to_integers,
)
from caffelite.core.function import Function, Shape
from caffelite.core.tensor import Tensor, add_methods
from caffelite.functions.arithmetic import (
    as_operands,
    as_tensor,
    broadcast_shape,
    common_length,
    format_shapes,
    sum_to_shape,
)

__all__ = ["concatenate", "one_hot", "split", "stack", "take_along_axis"]

FULL_SLICE = slice(None)
IndexArray = np.ndarray | Sequence[int] | int


class Index(Function, recordable=True):
    """y = x[index], as in NumPy. If an element is taken several times, its gradients add up.

    `index` is a number, a slice, `...`, None, an array of integers or bools, or a tuple of these. y is a view if none
    of them is an array. Raise IndexError for an index out of bounds, and for arrays of anything else.
    """

    def __init__(self, index: Any) -> None:
        self.index = index if isinstance(index, tuple) else (index,)

    def arguments(self) -> dict[str, Any]:
        raise TypeError("an Index takes slices and arrays, which are not JSON")

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (shape,) = input_shapes
        try:
            slices, numbers, side_by_side = _split_index(self.index, shape)
            lengths = iter(shape)
            view = [1 if entry is None else _slice_length(entry, next(lengths)) for entry in slices]
            for axis, array in numbers.items():
                if (n := view[axis]) is not None:
                    kernels.ravel_index((n,), array)  # raises if one is out of bounds
            positions = np.broadcast_shapes(*map(np.shape, numbers.values()))
        except (IndexError, ValueError) as error:
            raise ValueError(f"{self!r} got shape {shape}: {error}") from None
        row = [n for axis, n in enumerate(view) if axis not in numbers]
        first = next(iter(numbers), 0) if side_by_side else 0
        return (*row[:first], *positions, *row[first:])

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.shape = x.shape
        if all(_is_basic(entry) for entry in self.index):
            self.slices = self.index if any(entry is ... for entry in self.index) else (*self.index, ...)
            self.positions = None
            try:
                return x[self.slices]
            except (OverflowError, IndexError):
                if any(isinstance(entry, int) and abs(entry) > sys.maxsize for entry in self.index):
                    raise IndexError(f"{self!r} is out of bounds for an array of shape {x.shape}") from None
                raise

        # Slices and numbers select a view. The axes of it that arrays index move to the front and become one axis of
        # rows to take. In y, the arrays' axes are where NumPy puts them: in place of the first of those axes, or at the
        # front if there are slices between them.
        self.slices, numbers, side_by_side = _split_index(self.index, x.shape)
        self.axes, self.front = list(numbers), list(range(len(numbers)))
        view = _move_axes(x[self.slices], self.axes, self.front)
        self.view_shape, lengths, row = view.shape, view.shape[: len(numbers)], view.shape[len(numbers) :]
        self.positions = kernels.ravel_index(lengths, *numbers.values())
        rows = reshape_array(view, (math.prod(lengths), *row))
        rows = rows if rows.flags.c_contiguous else kernels.copy(rows)
        y = kernels.take(rows, self.positions.reshape(-1)).reshape(self.positions.shape + row)
        first = self.axes[0] if side_by_side else 0
        self.y_axes, self.y_front = [first + i for i in range(self.positions.ndim)], list(range(self.positions.ndim))
        return _move_axes(y, self.y_front, self.y_axes)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        if self.positions is not None:
            dy = _move_axes(dy, self.y_axes, self.y_front)
            rows = reshape_array(dy, (self.positions.size, *dy.shape[self.positions.ndim :]))
            count = math.prod(self.view_shape[: len(self.axes)])
            dview = kernels.take_grad(rows, self.positions.reshape(-1), count).reshape(self.view_shape)
            dy = _move_axes(dview, self.front, self.axes)
            if all(entry == FULL_SLICE for entry in self.slices):
                return dy
        dx = kernels.full(self.shape, 0, native_dtype(dy))
        kernels.copy(dy, dx[self.slices])
        return dx

    def __repr__(self) -> str:
        return f"Index[{', '.join(map(_format_entry, self.index))}]"


def _is_basic(entry: Any) -> bool:
    """Return whether an entry of an index selects a view."""
    if isinstance(entry, int | np.integer):
        return not isinstance(entry, bool)
    return entry is None or entry is ... or isinstance(entry, slice)


def _slice_length(entry: slice, n: int | None) -> int | None:
    """Return the length of a slice of an axis of length n, None = unknown."""
    return None if n is None else len(range(n)[entry])


def _split_index(index: tuple[Any, ...], shape: Shape) -> tuple[tuple[Any, ...], dict[int, IndexArray], bool]:
    """Split an index into slices and numbers, and tell whether the numbers are side by side.

    The slices, one for each axis of x, select a view. The numbers are keyed by the axes of this view. They are side by
    side if there is no slice, None or `...` between them.
    """
    index = index if any(entry is ... for entry in index) else (*index, ...)
    arrays = [
        None if entry is None or entry is ... or isinstance(entry, slice) else _index_array(entry) for entry in index
    ]
    used_axes = sum(isinstance(entry, slice) for entry in index)
    used_axes += sum(array.ndim if array.dtype == np.bool_ else 1 for array in arrays if array is not None)
    if used_axes > len(shape) or sum(entry is ... for entry in index) > 1:
        raise IndexError(f"an array of shape {shape} has {len(shape)} axes, and an index at most one ...: got {index}")

    slices: list[slice | None] = []
    numbers: dict[int, IndexArray] = {}
    for entry, array in zip(index, arrays, strict=True):
        if entry is ...:
            slices += [FULL_SLICE] * (len(shape) - used_axes)
        elif array is None:
            slices.append(entry)
        elif array.dtype != np.bool_:
            # The list itself: it is a constant in a recorded step.
            numbers[len(slices)] = int(entry) if isinstance(entry, np.integer) else entry
            slices.append(FULL_SLICE)
        elif array.ndim == 0:  # a new axis, of length 1 or 0
            numbers[len(slices)] = [0] * int(array)
            slices.append(None)
        else:
            axis = sum(entry is not None for entry in slices)
            if any(n not in (None, m) for n, m in zip(shape[axis:], array.shape, strict=False)):
                raise IndexError(f"a mask of shape {array.shape} for axes of shape {shape[axis : axis + array.ndim]}")
            if array is entry and kernels.recorder() is not None:
                raise TypeError(
                    "a step that is being recorded can't take a mask as an index: a replay may find another number of "
                    "elements"
                )
            for part in array.nonzero():
                numbers[len(slices)] = part if array is entry else part.tolist()
                slices.append(FULL_SLICE)
    index_positions = [i for i, array in enumerate(arrays) if array is not None]
    return (
        tuple(slices),
        numbers,
        not index_positions or index_positions[-1] - index_positions[0] + 1 == len(index_positions),
    )


def _index_array(entry: Any) -> np.ndarray:
    """Return an entry of an index as an array of integers or bools. Raise IndexError for anything else."""
    array = entry if isinstance(entry, np.ndarray) else np.asarray(entry)
    if array.dtype.kind not in "iub" and not (array.size == 0 and isinstance(entry, list)):
        raise IndexError(f"an index is of integers, slices, ..., None and arrays of integers or bool, got {entry!r}")
    if array is not entry and array.dtype == np.uint64 and (array > np.iinfo(np.int64).max).any():
        raise IndexError(f"index {array.max()} is out of bounds: it is larger than any axis")
    return array


def _move_axes(x: np.ndarray, source: list[int], destination: list[int]) -> np.ndarray:
    """Return x with axes moved. numpy.moveaxis does the same, but is slow if there is nothing to move."""
    return x if source == destination else np.moveaxis(x, source, destination)


def _format_entry(entry: Any) -> str:
    """Return an entry of an index as code; for an array, its dtype and shape."""
    if isinstance(entry, slice):
        parts = [entry.start, entry.stop, *([] if entry.step is None else [entry.step])]
        return ":".join("" if part is None else str(part) for part in parts)
    if entry is ...:
        return "..."
    return f"{entry.dtype}{entry.shape}" if isinstance(entry, np.ndarray) else str(entry)


class TakeAlongAxis(Function, recordable=True):
    """y[i, j, k] = x[i, index[i, j, k], k], here along axis 1.

    x and `index`, integers, have the same number of axes. They are broadcast to each other along all axes except
    `axis`. If an element is taken several times, its gradients add up.
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def output_shape(self, *input_shapes: Shape) -> Shape:
        x, index = input_shapes
        if len(x) != len(index):
            raise ValueError(f"take_along_axis got shapes {x} and {index}; expected as many axes")
        (axis,) = normalize_axes((self.axis,), len(x))
        common_shape = broadcast_shape([(*shape[:axis], 1, *shape[axis + 1 :]) for shape in input_shapes])
        return (*common_shape[:axis], index[axis], *common_shape[axis + 1 :])

    def forward(self, x: np.ndarray, index: np.ndarray) -> np.ndarray:
        original, index = index, as_indices(index, "take_along_axis")
        y_shape: Any = self.output_shape(x.shape, index.shape)
        axis = self.axis % x.ndim
        before, m, after = y_shape[:axis], y_shape[axis], y_shape[axis + 1 :]
        self.x_shape, self.expanded_shape, n = x.shape, (*before, x.shape[axis], *after), x.shape[axis]
        rows = reshape_array(np.broadcast_to(x, self.expanded_shape), (math.prod(self.expanded_shape),))
        flat_index = flat_int64(np.broadcast_to(index, y_shape)).reshape(math.prod(before), m, math.prod(after))
        raise_error = functools.partial(
            raise_bad_index, "take_along_axis", n - 1, y_shape, original.dtype, min_index=-n
        )
        lengths = math.prod(before), n, math.prod(after)
        self.positions = kernels.ravel_index(lengths, None, flat_index, None, on_stop=raise_error).reshape(-1)
        rows = rows if rows.flags.c_contiguous else kernels.copy(rows)
        return kernels.take(rows, self.positions).reshape(y_shape)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        dx = kernels.take_grad(reshape_array(dy, (dy.size,)), self.positions, math.prod(self.expanded_shape))
        return sum_to_shape(dx.reshape(self.expanded_shape), self.x_shape)

    def __repr__(self) -> str:
        return f"TakeAlongAxis({self.axis})"


class Split(Function, recordable=True):
    """The parts of x along an axis, as views: a number of equal parts, or those between the positions in a tuple."""

    def __init__(self, parts: int | tuple[int, ...], axis: int = 0) -> None:
        self.parts, self.axis = parts, axis

    def spans(self, n: int | None) -> list[tuple[int | None, int | None]]:
        """Return the start and the end of each part along an axis of length n; None is unknown."""
        if isinstance(self.parts, int):
            if n is not None and n % self.parts:
                raise ValueError(f"split got an axis of length {n}, which {self.parts} does not divide")
            bounds = [None if n is None else n // self.parts * i for i in range(self.parts + 1)]
        else:
            bounds = [0, *self.parts, n]
        if n is None:
            return [(None, None)] * (len(bounds) - 1)
        spans = [slice(begin, end).indices(n)[:2] for begin, end in itertools.pairwise(bounds)]
        return [(begin, max(begin, end)) for begin, end in spans]

    def output_shape(self, *input_shapes: Shape) -> Any:
        (shape,) = input_shapes
        (axis,) = normalize_axes((self.axis,), len(shape))
        lengths = [None if end is None or begin is None else end - begin for begin, end in self.spans(shape[axis])]
        return tuple([(*shape[:axis], length, *shape[axis + 1 :]) for length in lengths])

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        self.x_shape = x.shape
        return tuple([x[part] for part in self.indices(x.shape)])

    def backward(self, dys: tuple[np.ndarray | None, ...]) -> np.ndarray:
        axis, dtype = self.axis % len(self.x_shape), next(native_dtype(dy) for dy in dys if dy is not None)
        spans = self.spans(self.x_shape[axis])
        is_contiguous = [end for _, end in ((0, 0), *spans)] == [*[begin for begin, _ in spans], self.x_shape[axis]]
        covers_all = is_contiguous and all(dy is not None for dy in dys)
        dx = kernels.output(self.x_shape, dtype) if covers_all else kernels.full(self.x_shape, 0, dtype)
        for part, dy in zip(self.indices(self.x_shape), dys, strict=True):
            if dy is not None and is_contiguous:
                kernels.copy(dy, dx[part])
            elif dy is not None:  # parts may overlap if positions are not in order
                kernels.add(dx[part], dy, dx[part])
        return dx

    def indices(self, shape: tuple[int, ...]) -> list[tuple[Any, ...]]:
        """Return the index of each part in an array of this shape."""
        (axis,) = normalize_axes((self.axis,), len(shape))
        return [(*[FULL_SLICE] * axis, slice(begin, end)) for begin, end in self.spans(shape[axis])]

    def __repr__(self) -> str:
        return f"Split({self.parts}{f', axis={self.axis}' if self.axis else ''})"


class Concatenate(Function, recordable=True, rowwise=True):
    """y = the inputs one after the other along an axis. ValueError unless their other lengths agree."""

    def __init__(self, axis: int = 0) -> None:
        self.axis = axis

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (axis,) = normalize_axes((self.axis,), len(input_shapes[0]))
        try:
            lengths = list(zip(*input_shapes, strict=True))
            other_lengths = [0 if i == axis else common_length(axis_lengths) for i, axis_lengths in enumerate(lengths)]
        except ValueError:
            raise ValueError(
                f"concatenate along axis {axis} got shapes {format_shapes(input_shapes)}, "
                "which differ along other axes, too"
            ) from None
        length = None if None in lengths[axis] else sum(lengths[axis])
        return (*other_lengths[:axis], length, *other_lengths[axis + 1 :])

    def is_rowwise(self) -> bool:
        return super().is_rowwise() and self.axis in (-1, 1, 2, 3)  # other axes may be the rows

    def forward(self, *arrays: np.ndarray) -> np.ndarray:
        dtype = native_dtype(arrays[0])
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

    def slices(self, shapes: list[tuple[int, ...]], axis: int) -> list[tuple[Any, ...]]:
        """Return the part of y that each input fills, for inputs of these shapes."""
        ends = [0, *itertools.accumulate(shape[axis] for shape in shapes)]
        return [(*[FULL_SLICE] * axis, slice(begin, end)) for begin, end in itertools.pairwise(ends)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.axis or ''})"


class Stack(Concatenate, recordable=True):
    """y = the inputs one after the other along a new axis. ValueError unless their shapes are the same."""

    def output_shape(self, *input_shapes: Shape) -> Shape:
        (axis,) = normalize_axes((self.axis,), len(input_shapes[0]) + 1)
        try:
            shape = [common_length(axis_lengths) for axis_lengths in zip(*input_shapes, strict=True)]
        except ValueError:
            raise ValueError(f"stack got shapes {format_shapes(input_shapes)}; expected all the same") from None
        return (*shape[:axis], len(input_shapes), *shape[axis:])

    def slices(self, shapes: list[tuple[int, ...]], axis: int) -> list[tuple[Any, ...]]:
        return [(*[FULL_SLICE] * axis, i, ...) for i in range(len(shapes))]


def take_along_axis(x: Any, indices: Any, axis: int | None = -1) -> Tensor:
    """Return the elements of x at `indices`, separate for each row, along an axis.

    y[i, j, k] = x[i, indices[i, j, k], k] along axis 1. x and `indices` have the same number of axes, and are broadcast
    to each other along all axes except `axis`. A negative index counts from the end. With axis=None, x is one vector.
    `cl.take_along_axis(scores, labels[:, None], 1)` returns the scores of the labels.

    Raise IndexError, with the row, for an index that is out of range. Raise TypeError unless `indices` are integers.
    Raise ValueError if the shapes do not fit.
    """
    x = as_tensor(x)
    if axis is None:
        x, axis = x.reshape(-1), 0
    if isinstance(indices, Tensor):
        raise TypeError(f"take_along_axis takes integers as indices, got a Tensor of {indices.dtype}")
    return TakeAlongAxis(axis).apply_once(x, as_indices(indices, "take_along_axis"))


def one_hot(indices: Any, classes: int) -> np.ndarray:
    """Return a plain array (…, classes) of zeros, with a 1 at each of `indices` (…).

    The array is float32. Operators convert it to the dtype of the Tensor they combine it with. It has no gradient.

    Raise IndexError, with the row, for an index that is not in 0 … classes − 1. Raise TypeError unless `indices` are
    integers.
    """
    classes = check_positive_integer("one_hot: classes", classes)
    if isinstance(indices, Tensor):
        raise TypeError(f"one_hot takes integers as indices, got a Tensor of {indices.dtype}")
    index = as_indices(indices, "one_hot")
    raise_error = functools.partial(raise_bad_index, "one_hot", classes - 1, index.shape, index.dtype)
    rows = flat_int64(index).reshape(-1, 1)
    positions = kernels.ravel_index((index.size, classes), None, rows, wraps=False, on_stop=raise_error)
    ones = kernels.full((index.size,), 1, np.float32)
    return kernels.take_grad(ones, positions.reshape(-1), index.size * classes).reshape(*index.shape, classes)


def split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """Return the parts of x along an axis, as a list of views.

    `cl.split(x, 3)` returns three parts, and `cl.split(x, [2, 5])` returns `x[:2]`, `x[2:5]` and `x[5:]`. Raise
    ValueError if x cannot be divided into that many equal parts. Raise TypeError unless the sections or indices are
    integers.
    """
    positions = to_integers("split", indices_or_sections)
    if np.ndim(indices_or_sections):
        return list(Split(positions, axis).apply_once(as_tensor(x)))
    return list(
        Split(check_positive_integer("split: the number of parts", positions[0]), axis).apply_once(as_tensor(x))
    )


def concatenate(tensors: Iterable[Any], axis: int = 0) -> Tensor:
    """Join Tensors or arrays along an axis, one after the other."""
    return Concatenate(axis).apply_once(*to_common_dtype(tensors, "concatenate"))


def stack(tensors: Iterable[Any], axis: int = 0) -> Tensor:
    """Join Tensors or arrays of one shape along a new axis."""
    return Stack(axis).apply_once(*to_common_dtype(tensors, "stack"))


def to_common_dtype(tensors: Iterable[Any], name: str) -> list[Any]:
    """Return the values in the dtype of the first Tensor or array of floats. TypeError for floats of another dtype."""
    values = list(tensors)
    if not values:
        raise ValueError(f"{name} got no Tensors")
    values = as_operands(values, name)
    dtype = next(x.dtype for x in values if not isinstance(x, float))
    return [as_real(x, dtype, name) if isinstance(x, float) else x for x in values]


add_methods(__getitem__=lambda self, index: Index(index).apply_once(self))
