"""Batches that Python makes: with transforms, or from datasets whose items are rows, such as PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from caffelite.core.arrays import as_array
from caffelite.core.sparse import is_sparse
from caffelite.data.conversion import is_multi_target, name_targets

Transform = Callable[[Any, Any], tuple[Any, Any]]


def as_transforms(argument: Any) -> tuple[Transform, ...]:
    """Return a transform, or a list of them, or None, as a tuple. TypeError for anything that can't be called."""
    transforms = tuple(argument) if isinstance(argument, list | tuple) else () if argument is None else (argument,)
    for i, transform in enumerate(transforms):
        if not callable(transform):
            where = f"[{i}]" if isinstance(argument, list | tuple) else ""
            raise TypeError(f"transform{where}: expected a callable (x, y) -> (x, y), got {transform!r}")
    return transforms


def check_pair(result: Any, rows: int) -> tuple[Any, Any]:
    """Return the result of a transform as arrays.

    TypeError unless it is a pair (x, y), ValueError unless both have this number of rows.
    """
    if not isinstance(result, tuple | list) or len(result) != 2:
        what = f"{len(result)} parts" if isinstance(result, tuple | list) else type(result).__name__
        raise TypeError(f"transform: expected a pair (x, y) back, got {what}")
    x, y = result
    x = tuple([_check_array(a) for a in x]) if isinstance(x, tuple) else _check_array(x)
    targets = tuple([as_array(a, f"transform's {name}") for name, a in name_targets(y, "y")])
    y = targets if is_multi_target(y) else targets[0]
    arrays = (*(x if isinstance(x, tuple) else (x,)), *targets)
    if any(a.shape[:1] != (rows,) for a in arrays):
        shapes = ", ".join(str(a.shape) for a in arrays)
        raise ValueError(f"transform: expected x and y of {rows} rows, as it was given, got shapes {shapes}")
    return x, y


def _check_array(x: Any) -> Any:
    return x if is_sparse(x) else as_array(x, "transform's x")


def is_row_dataset(x: Any) -> bool:
    """Return whether x has a length, and x[0] is a row (x, y) or (x1, x2, y). Arrays and frames are not datasets."""
    is_indexed = hasattr(x, "__getitem__") and hasattr(x, "__len__")
    if not is_indexed or isinstance(x, Sequence | Mapping) or hasattr(x, "shape") or hasattr(x, "__array__"):
        return False
    return len(x) > 0 and isinstance(row := x[0], tuple) and len(row) > 1


def collate_rows(dataset: Any, indices: np.ndarray, _: Any) -> tuple[Any, Any]:
    """Return x and y of these rows of a dataset. The last array of a row is y. This is a transform."""
    *inputs, y = _stack([dataset[i] for i in indices.tolist()], "row", indices)
    return inputs[0] if len(inputs) == 1 else tuple(inputs), y


def _stack(values: list[Any], name: str, indices: np.ndarray) -> Any:
    """Return the values of these rows as one array, or as a tuple of arrays if they are tuples of values."""
    is_tuple = isinstance(values[0], tuple)
    parts = values if is_tuple else [as_array(value, f"the dataset's {name}") for value in values]
    shapes = [len(part) if is_tuple else part.shape for part in parts]
    for i, shape in zip(indices, shapes, strict=True):
        if shape != shapes[0]:
            what = "length" if is_tuple else "shape"
            raise ValueError(f"the dataset's {name} has {what} {shapes[0]} in row {indices[0]} and {shape} in row {i}")
    if not is_tuple:
        return np.stack(parts)
    return tuple([_stack(list(column), f"{name}[{k}]", indices) for k, column in enumerate(zip(*parts, strict=True))])
