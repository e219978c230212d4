"""The door: converts and checks what a user gives to a model; and says what predictions lack."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from caffelite.core.arrays import as_indices, refuse_indices
from caffelite.core.cautions import warn
from caffelite.core.sparse import is_sparse
from caffelite.data import frames
from caffelite.data.inputs import as_inputs, same_length, way_to_several
from caffelite.data.sources import Source
from caffelite.functions import Columns


def model_inputs(model: Any, name: str, x: Any) -> tuple[np.ndarray, ...]:
    """x as arrays that the model takes, see `caffelite.data.as_inputs`; a frame by `Columns` if that is first.

    ValueError for a frame whose columns are not those of the one that the model was fitted on, and for rows without
    names where `Columns` has numbers and categories.
    """
    if type(x) is not np.ndarray:
        if isinstance(x, list) and (least := _fewest_inputs(model)) > 1:
            raise ValueError(f"{name}: the model takes {least} inputs, got 1{way_to_several(x)}")
        columns = columns_of(model)
        if columns is not None and frames.is_frame(x):
            x = columns.arrays(x, name)
        else:
            check_frames(model, name, x)
    takes = model.takes_indices
    if isinstance(takes, tuple) and not isinstance(x, tuple) and (columns := columns_of(model)) is not None:
        raise ValueError(f"{name}: expected {columns.expected}; got one {type(x).__name__}")
    return as_inputs(x, model.input_dtype, takes, name)


def _fewest_inputs(model: Any) -> int:
    """How many inputs the model takes at least."""
    if model.is_sequence():
        return 1
    inputs = inspect.signature(model.call).parameters.values()
    return sum(x.default is x.empty and x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD) for x in inputs)


def check_frames(model: Any, name: str, x: Any, expected: Any = None) -> None:
    """`check_columns` of the frames in x, but for one in which `Columns` finds its own."""
    if columns_of(model) is None or not frames.is_frame(x):
        check_columns(model, name, frames.names_of_inputs(x), expected)


def check_columns(model: Any, name: str, columns: Any, expected: Any = None) -> None:
    """ValueError unless frames with these columns, as arrays, are such as the model was, or will be, fitted on."""
    first = columns_of(model)
    expected = (model._own.column_names or expected) if first is None else first.names
    if expected is not None:
        frames.check_names(expected, columns, name)


def remember_columns(model: Any, names: list[list[Any] | None] | None) -> None:
    """From now on frames have to have these columns, unless there are some already; `Columns` finds its own."""
    if names is not None and model._own.column_names is None and columns_of(model) is None:
        model._own.column_names = names


def columns_of(model: Any) -> Columns | None:
    """The Columns that are first in a sequence."""
    first: Any = model
    while hasattr(first, "is_sequence") and first.is_sequence() and first.functions:
        first = first.functions[0]
    return first if Columns in type(first).__mro__ else None  # isinstance is slow here


def check_rows(model: Any, name: str, inputs: tuple[np.ndarray, ...]) -> int:
    """How many rows the inputs have; ValueError if it is none, or if they are not what the model takes."""
    rows = same_length(name, inputs)
    if model.is_sequence() and not model.functions:
        raise ValueError(f"{type(model).__name__} has no Functions: add some, or write what it computes in `call`")
    if is_sparse(inputs[0]) and model.is_sequence():
        model._first_input(inputs[0])
    model.shape_for(inputs)
    return rows


def check_indices(model: Any, name: str, inputs: tuple[np.ndarray, ...]) -> None:
    """IndexError naming the first row with an index that a Function in the model does not take.

    What an input is used for is seen on two rows of zeros: an index that goes somewhere by other ways than a view
    of the input is checked by the Function that gets it, and by no other.
    """
    takes = model.takes_indices
    if not (any(takes) if isinstance(takes, tuple) else takes):
        return
    names = [f"{name}[{i}]" for i in range(len(inputs))] if len(inputs) > 1 else [name]
    for x, of, most in zip(inputs, names, model.index_limits(inputs), strict=True):
        if most is not None and not isinstance(x, Source):  # which is checked when it has been read
            indices = as_indices(x, of)
            if (indices.view(np.uint64) > most).any():
                refuse_indices(of, most, x.shape, x.dtype, indices)


def trains_batch_norm(model: Any) -> bool:
    """Whether a training uses the moments of each batch, which takes more than one row."""
    model.all_functions()  # which looks for new ones
    return any(function.requires_grad for function in model._own.batch_norms)


def warn_of_overflow(model: Any) -> None:
    """Warn of a BatchNorm whose running variance its dtype cannot hold: `predict` then uses a smaller one."""
    for function in model._own.batch_norms:
        beyond = function.variance == np.finfo(function.variance.dtype).max
        if beyond.any():
            warn(
                f"{function!r}: the variance of feature {int(beyond.argmax())} is beyond {model.dtype}, and "
                "predictions differ from the training: divide that feature by a constant, or take "
                "Model(dtype=np.float64)"
            )
