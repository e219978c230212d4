"""Conversion of users' data, anything with rows, to the arrays, sparse rows and Sources used internally."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from caffelite.core.arrays import as_array, as_indices, as_real, check_nonnegative
from caffelite.core.sparse import as_sparse, is_sparse
from caffelite.data import frames
from caffelite.data.frames import ColumnNames, read_frames
from caffelite.data.out_of_core import Source, open_source

INT64 = np.dtype(np.int64)


def read(data: Any, what: str) -> Any:
    """Return the numbers of a frame or a column as an array, and the rows of a source; everything else as it is.

    A source that is larger than a buffer becomes a Source, which is read later. Raise TypeError for a sparse matrix,
    because only inputs may be sparse. Raise the errors of `frames.as_array` and `Source.read`.
    """
    if type(data) is np.ndarray or isinstance(data, Source):
        return data
    if is_sparse(data):
        raise TypeError(f"{what}: expected an array, got a sparse matrix: give its .toarray()")
    is_named = frames.is_series(data) or frames.is_frame(data)
    return open_source(frames.as_array(data, what) if is_named else data, what)


def read_array(data: Any, what: str) -> Any:
    """Return anything with rows as an array; a Source, or a source that is larger than a buffer, as a Source."""
    rows = read(data, what)
    return rows if isinstance(rows, Source) else as_array(rows, what)


def as_inputs(
    x: Any,
    dtype: np.dtype,
    takes_indices: bool | tuple[bool, ...],
    name: str,
    frame_reader: Any = None,
    column_names: ColumnNames = None,
) -> tuple[tuple[Any, ...], ColumnNames]:
    """Return the inputs of a model of this dtype (x, or each element of a tuple x) and the column names of frames.

    Numbers become `dtype`. If the model takes indices, integers of any width become int64. If there are several inputs,
    a bool one stays bool, as a mask. `frame_reader` turns a frame into inputs, and its column names are then None.
    Without one, frames must have the `column_names`, unless these are None.

    Raise TypeError for anything else, ValueError if `takes_indices` has another number of inputs or column names
    differ, and IndexError for an index beyond int64.
    """
    if type(x) is np.ndarray and not takes_indices:  # the usual case, which needs nothing below
        return (as_real(x, dtype, name),), None
    x, names = read_frames(x, name, frame_reader, column_names)
    inputs = x if isinstance(x, tuple) else (x,)
    takes = takes_indices if isinstance(takes_indices, tuple) else (takes_indices,) * len(inputs)
    if not inputs or len(takes) != len(inputs):
        if frame_reader is not None and not isinstance(x, tuple):
            raise ValueError(f"{name}: expected {frame_reader.expected_inputs}; got one {type(x).__name__}")
        count = len(takes) or "one or more"
        raise ValueError(f"{name}: the model takes {count} inputs, got {len(inputs)}{tuple_hint(x)}")
    part_names = [f"{name}[{i}]" for i in range(len(inputs))] if isinstance(x, tuple) else [name]
    arrays: list[Any] = []
    for part, indices, part_name in zip(inputs, takes, part_names, strict=True):
        if is_sparse(part):
            arrays.append(as_sparse(part, dtype, part_name))
            continue
        data = read_array(part, part_name)
        array = data.empty if isinstance(data, Source) else data
        if len(inputs) == 1 or array.dtype != np.bool_:
            array = as_indices(array, part_name) if indices else as_real(array, dtype, part_name)
        arrays.append(data.astype(array.dtype) if isinstance(data, Source) else array)
    return tuple(arrays), names


def tuple_hint(x: Any, what: str = "inputs") -> str:
    """Return a hint for a list or a dict if several inputs or targets were expected, otherwise ""."""
    return f"; several {what} are a tuple, got a {type(x).__name__}" if isinstance(x, list | Mapping) else ""


def name_targets(y: Any, name: str = "targets") -> list[tuple[str, Any]]:
    """Return the targets in y with their names in messages: y[0], y[1] …, or `name` if there is only one."""
    if not is_multi_target(y):
        return [(name, y)]
    return [(f"y[{i}]" if len(y) > 1 else name, part) for i, part in enumerate(y)]


def as_targets(y: Any, dtype: np.dtype, name: str = "targets") -> Any:
    """Return a target for a model of this dtype: converted floats, or unchanged integers and bools; or TypeError."""
    array = read_array(y, name)
    if isinstance(array, Source):
        return array.astype(as_targets(array.empty, dtype, name).dtype)
    if array.dtype.kind in "iub":
        return to_native_integers(array)
    return as_real(array, dtype, name)


def is_multi_target(y: Any) -> bool:
    """Return whether y is a tuple of targets. A tuple of numbers is a single target."""
    return isinstance(y, tuple) and not all(
        isinstance(x, str | int | float) or getattr(x, "shape", None) == () for x in y
    )


def as_weights(weights: Any, rows: int, dtype: Any = None, name: str = "sample_weight") -> np.ndarray:
    """Return the weights of this many rows in this dtype, float32 or float64, or in their own.

    Raise ValueError for other shapes, and for weights that are negative or not finite, naming the first bad row. Raise
    TypeError for anything but numbers.
    """
    array = as_real(read_all(read(weights, name)), dtype, name)
    if array.shape != (rows,):
        raise ValueError(f"{name}: expected a weight for each of {rows} rows, ({rows},), got shape {array.shape}")
    bad = ~((array >= 0) & (array < np.inf))
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"{name}: expected weights that are finite and not negative, got {array[row]} in row {row}")
    return np.ascontiguousarray(array)


class ClassWeights:
    """Weights of rows by their labels y; see `compute_sample_weight` for arguments and errors.

    For "balanced", the label `ignore` does not count.
    """

    def __init__(self, class_weight: Any, y: Any, ignore: int | None = None) -> None:
        self.labels, counts = np.unique(_labels(y), return_counts=True)
        if isinstance(class_weight, str) and class_weight == "balanced":
            counts[self.labels == ignore] = 0
            self.weights = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
            return
        if not isinstance(class_weight, Mapping):
            raise TypeError(f'class_weight: expected {{label: weight}} or "balanced", got {class_weight!r}')
        self.weights = np.ones(len(self.labels))
        for label, weight in class_weight.items():
            is_label = self.labels == label
            if not is_label.any():
                raise ValueError(
                    f"class_weight: the label {label!r} does not occur; there are {reprlib.repr(self.labels.tolist())}"
                )
            self.weights[is_label] = check_nonnegative(f"class_weight: the weight of label {label}", weight)

    def multiply(self, sample_weight: Any, y: Any) -> np.ndarray:
        """Return the weights of rows with these labels, multiplied by `sample_weight` unless it is None."""
        weights = self.weights[np.searchsorted(self.labels, _labels(y))]
        return weights if sample_weight is None else weights * as_weights(sample_weight, len(weights), np.float64)


def compute_sample_weight(class_weight: Mapping[int, float] | str, y: Any) -> np.ndarray:
    """Return the weights (n,) of rows by their labels, like `fit(class_weight=…)`.

    In your own training loop, pass them to the loss: `loss(model(x), y, w)`. `DataGenerator(x, y, sample_weight=w)`
    puts them into its batches.

    Parameters
    ----------
    class_weight : {label: weight} or "balanced"
        The weight of each class; classes not named have weight 1. "balanced" means n / (number of classes · rows of the
        class), as in scikit-learn.
    y : (n,) or (n, 1) integers or bool
        The labels of all training rows.

    Raise ValueError for labels that do not occur in y, for weights that are negative or not finite, and for other
    shapes. Raise TypeError for targets that are not labels.
    """
    return ClassWeights(class_weight, y).multiply(None, y)


def _labels(y: Any) -> np.ndarray:
    labels = read_all(read_array(y, "y"))
    if labels.dtype.kind not in "iub":
        hint = "; y.argmax(axis=1) makes labels" if labels.ndim == 2 and labels.shape[1] > 1 else ""
        raise TypeError(f"class_weight needs labels: expected integers, got targets of {labels.dtype}{hint}")
    if labels.ndim == 0 or labels.size != len(labels):
        raise ValueError(f"class_weight needs one label a row, got targets of shape {labels.shape}")
    return labels.reshape(-1)


def to_native_integers(array: np.ndarray) -> np.ndarray:
    """Return integers or bools in native byte order, in the integer types that the kernels know."""
    if array.dtype is INT64:  # the usual case
        return array
    return np.asarray(array, dtype=np.dtype(f"{array.dtype.kind}{array.dtype.itemsize}"))


def count_rows(name: str, inputs: tuple[Any, ...]) -> int:
    """Return the number of rows of all inputs; ValueError if they have none, or if their numbers differ."""
    for x in inputs:
        if x.ndim == 0 or len(x) == 0:
            raise ValueError(f"{name} has no rows: shape {x.shape}")
        if len(x) != len(inputs[0]):
            raise ValueError(
                f"{name} has inputs of different lengths: shapes {', '.join(str(x.shape) for x in inputs)}"
            )
    if not inputs:
        raise ValueError(f"{name} is an empty tuple; expected one or more inputs")
    return len(inputs[0])


def read_all(data: Any) -> Any:
    """Return all rows of a Source; everything else as it is."""
    return data.rows(0, len(data)) if isinstance(data, Source) else data


def as_rows(name: str, data: Any) -> Any:
    """Return rows as an array, sparse rows or a Source. ValueError if there are none, TypeError for Python objects."""
    rows = as_sparse(data, name=name) if is_sparse(data) else read_array(data, name)
    if rows.ndim == 0 or len(rows) == 0:
        raise ValueError(f"{name} has no rows: shape {rows.shape}")
    if rows.dtype.hasobject:
        raise TypeError(f"{name} holds Python objects; expected numbers")
    return to_contiguous(rows)


def to_contiguous(rows: Any) -> Any:
    """Return an array with its rows one after the other in memory; sparse rows and Sources as they are."""
    return np.ascontiguousarray(rows) if isinstance(rows, np.ndarray) else rows
