"""Checks of the targets and weights that a loss gets: labels, probabilities or numbers, and weights of rows.

`loss` is a name for messages. Errors name the first bad row. Kernels check the values, so a replayed step checks them
too, and raises the same error.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import INTEGERS, as_array, as_real, find_outside, flat_int64, reshape_array
from caffelite.core.autograd import matches_shape
from caffelite.core.function import Shape, format_shape

SUM_TOLERANCE = 1e-3  # how far the sum of a row's probabilities may be from 1


# ---- labels ---------------------------------------------------------------------------------------------------------


def as_labels(
    loss: str, targets: Any, scores_shape: Shape, ignore: int | None = None, allow_nd: bool = False
) -> np.ndarray:
    """Return integer labels (n,), or (n, …) if `allow_nd`, for scores (n, …, C), as int64 in one axis.

    Raise TypeError for other dtypes, and ValueError for other shapes and for a label that is neither one of the
    classes 0 … C − 1 nor `ignore`.
    """
    check_scores_shape(loss, scores_shape, allow_nd)
    labels, classes = _as_array(targets), scores_shape[-1]
    if labels.dtype.kind not in "iu":
        raise _label_type_error(loss, targets, labels, classes)
    check_labels_shape(loss, labels.shape, scores_shape)
    if labels.size == 0:
        raise ValueError(f"{loss} got no labels")
    flat = flat_int64(labels)
    if classes is not None:
        raise_error = functools.partial(_raise_bad_label, classes, ignore, labels.shape, labels.dtype)
        kernels.check_labels(flat, classes, raise_error, ignore)
    return flat


def check_scores_shape(loss: str, scores_shape: Shape, allow_nd: bool) -> None:
    """Raise ValueError unless scores are (n, C), or (n, …, C) if `allow_nd`."""
    if len(scores_shape) != 2 and not (allow_nd and len(scores_shape) > 2):
        expected = "(n, …, classes)" if allow_nd else "(n, classes)"
        raise ValueError(f"{loss} got scores of shape {scores_shape}; expected {expected}")


def check_labels_shape(loss: str, labels_shape: Shape, scores_shape: Shape) -> None:
    """Raise ValueError unless there is one label for each row of scores (n, …, C); None is any length."""
    rows = scores_shape[:-1]
    if matches_shape(labels_shape, rows):
        return
    expected = "one label a row" if len(rows) == 1 else f"a label for each place, {format_shape(rows)}"
    if len(labels_shape) == len(scores_shape):
        is_column = labels_shape[1:] == (1,)
        expected += ", (n,), not a column: np.ravel(y)" if is_column else ", not one-hot rows: y.argmax(axis=-1)"
    raise ValueError(
        f"{loss} got labels of shape {labels_shape} for scores of shape {scores_shape}: expected {expected}"
    )


def as_ignore_label(name: str, label: Any) -> int | None:
    """Return the label that does not count, as an int; TypeError unless it is an integer or None."""
    if label is None:
        return None
    if isinstance(label, bool) or not isinstance(label, INTEGERS):
        raise TypeError(f"{name} must be an integer, got {label!r}")
    return int(label)


def _label_type_error(loss: str, targets: Any, labels: np.ndarray, classes: int | None) -> TypeError:
    """Return the error for targets that are not integers. It names the first one, and an easy way to make labels."""
    row, first = find_outside(targets, 0, None if classes is None else classes - 1)
    allowed = "integer labels" if classes is None else f"integer labels in 0 … {classes - 1}"
    where = "" if row < 0 else f": {first!r} in row {row}"
    hint = ""
    if labels.dtype.kind == "b" and labels.ndim > 1 and labels.shape[-1] == classes:
        hint = "; y.argmax(axis=-1) makes labels from one-hot rows"
    elif isinstance(first, str):
        hint = "; classes, y = np.unique(y, return_inverse=True) numbers them"
    elif labels.dtype.kind in "fb" and (labels == np.trunc(labels)).all():
        hint = "; y.astype(int) makes integers of them"
    elif labels.dtype.kind == "f":
        hint = "; for numbers use cl.MSELoss()"
    return TypeError(f"{loss} takes {allowed}, got {labels.dtype}{where}{hint}")


def _raise_bad_label(
    classes: int, ignore: int | None, shape: tuple[Any, ...], dtype: np.dtype, labels: np.ndarray
) -> None:
    """Raise ValueError for the first bad one of these int64 labels, which originally had this shape and dtype."""
    bad = ((labels < 0) | (labels >= classes)) & (True if ignore is None else labels != ignore)
    place = np.unravel_index(int(bad.argmax()), shape)
    label, where = labels.astype(dtype).reshape(shape)[place], "" if len(shape) == 1 else f", at {(*map(int, place),)},"
    counted_labels = labels if ignore is None else labels[labels != ignore]
    first, last, hint = int(counted_labels.min()), int(counted_labels.max()), ""
    if (first, last) == (1, classes):
        hint = "; do they begin at 1? y - 1"
    elif first >= 0:
        hint = f"; for labels up to {last}, the model needs {last + 1} outputs, and it has {classes}"
        hint += " (for numbers use cl.MSELoss(), for yes or no cl.SigmoidLoss())" if classes == 1 else ""
    raise ValueError(f"label {label} in row {place[0]}{where} is not one of the classes 0 … {classes - 1}{hint}")


# ---- probabilities --------------------------------------------------------------------------------------------------


def are_probabilities(targets: Any, scores_shape: Shape) -> bool:
    """Return whether targets for scores (n, …, C) are floats with as many axes: probabilities, not labels."""
    array = _as_array(targets)
    return array.dtype.kind == "f" and array.ndim == len(scores_shape) >= 2


def as_probabilities(loss: str, targets: Any, scores_shape: Shape, dtype: Any = None) -> np.ndarray:
    """Return the probabilities of the classes, in the scores' shape (n, …, C) and dtype; each row sums to 1."""
    array = _as_real(loss, "targets", targets, dtype)
    if not matches_shape(array.shape, scores_shape) or not array.size:
        hint = "; labels are integers, (n,): np.ravel(y).astype(int)" if array.shape[1:] == (1,) else ""
        raise ValueError(f"{loss} got targets of shape {array.shape} for scores of shape {scores_shape}{hint}")
    rows = reshape_array(array, (-1, array.shape[-1]))
    kernels.check_probabilities(
        rows, math.inf, SUM_TOLERANCE, functools.partial(_raise_bad_row, math.inf, SUM_TOLERANCE)
    )
    return array


def check_fractions(targets: np.ndarray) -> None:
    """Raise ValueError unless all targets (n, …) are in 0 … 1."""
    if targets.size:
        kernels.check_probabilities(_as_rows(targets), 1.0, math.inf, functools.partial(_raise_bad_row, 1.0, math.inf))


def _as_rows(targets: np.ndarray) -> np.ndarray:
    return reshape_array(targets, (len(targets) if targets.ndim else 1, -1))


def _raise_bad_row(largest: float, tolerance: float, targets: np.ndarray) -> None:
    """Raise ValueError for the first of these rows, (n, C), with a number out of range, or whose sum is not 1."""
    bad = ~((targets >= 0) & (targets <= largest))
    with np.errstate(invalid="ignore"):
        sums = targets.sum(axis=1, dtype=np.float64)
        rows = bad.any(axis=1) | ~(abs(sums - 1) <= tolerance)
    row = int(rows.argmax())
    hint = "; for numbers use cl.MSELoss()" if np.isfinite(targets).all() else ""
    if largest == 1 and hint and (targets == np.trunc(targets)).all():
        hint = "; for labels of classes use cl.SoftmaxLoss()"
    elif ((targets == 0) | (targets == 1)).all():
        hint = "; for yes or no in each output use cl.SigmoidLoss()"
    if bad[row].any():
        value = targets[row, bad[row].argmax()]
        raise ValueError(f"target {value!s} in row {row} is not one of the probabilities, 0 … 1{hint}")
    raise ValueError(
        f"the targets in row {row} sum up to {sums[row]:.6g}: probabilities of all classes sum up to 1{hint}"
    )


# ---- numbers --------------------------------------------------------------------------------------------------------


def as_numbers(
    loss: str, targets: Any, scores_shape: Shape, dtype: Any = None, expected: Shape | None = None
) -> np.ndarray:
    """Return numbers in the scores' shape and dtype. A last axis of 1 may be left out. `expected` is another shape."""
    array = _as_real(loss, "targets", targets, dtype)
    if array.shape == (scores_shape if expected is None else expected):
        return array
    check_numbers_shape(loss, array.shape, scores_shape, expected)
    return array if array.ndim == len(expected or scores_shape) else array.reshape(*array.shape, 1)


def check_numbers_shape(loss: str, targets_shape: Shape, scores_shape: Shape, expected: Shape | None = None) -> None:
    """Raise ValueError unless targets have the scores' shape, with or without a last axis of 1; None is any length.

    `expected` is the targets' shape if it differs from the scores' shape.
    """
    shape = scores_shape if expected is None else expected
    is_column = len(shape) > 1 and shape[-1] in (1, None)
    if not matches_shape(targets_shape, shape) and not (is_column and matches_shape(targets_shape, shape[:-1])):
        without_last = f"{format_shape(shape[:-1])} or " if shape[-1:] == (1,) and len(shape) > 1 else ""
        is_vector = expected is None and targets_shape == scores_shape[:1]
        hint = "; for labels of classes use cl.SoftmaxLoss(), for one number a row a model with one output" * is_vector
        raise ValueError(
            f"{loss} got targets of shape {targets_shape} for scores of shape {scores_shape}; expected "
            f"{'the same shape' if expected is None else without_last + format_shape(shape)}{hint}"
        )


def check_counts(loss: str, targets: np.ndarray) -> None:
    """Raise ValueError unless all targets (n, …) are 0 or more, and finite."""
    if targets.size:
        rows, max_count = _as_rows(targets), sys.float_info.max
        kernels.check_probabilities(rows, max_count, math.inf, functools.partial(_raise_bad_count, loss))


def _raise_bad_count(loss: str, targets: np.ndarray) -> None:
    """Raise ValueError for the first of these rows, (n, C), with a number that is below 0 or not finite."""
    bad = ~((targets >= 0) & (targets < np.inf))
    row = int(bad.any(axis=1).argmax())
    raise ValueError(f"{loss} takes counts, 0 or more: got {targets[row, bad[row].argmax()]!s} in row {row}")


# ---- weights --------------------------------------------------------------------------------------------------------


def as_weights(loss: str, weights: Any, scores: np.ndarray) -> np.ndarray:
    """Return the weights of the rows, (n,), in the scores' dtype."""
    row_weights = _as_real(loss, "weights", weights, scores.dtype)
    if row_weights.shape != scores.shape[:1]:
        raise ValueError(f"{loss} got weights of shape {row_weights.shape} for scores of shape {scores.shape}")
    return row_weights


def raise_bad_weights(weights: np.ndarray) -> None:
    """Raise ValueError for the first bad weight, or because no row counts."""
    bad = ~((weights >= 0) & np.isfinite(weights))
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"weight {weights[row]!s} in row {row}: weights must be finite and not below 0")
    raise ValueError("the weights of the rows that count sum up to 0 or infinity: there is no mean")


def raise_all_ignored(ignore: int | None, labels: np.ndarray) -> None:
    """Raise ValueError because no label counts."""
    raise ValueError(f"all {labels.size} labels are {ignore}, the label to ignore: there is no mean")


# ---- arrays and shapes ----------------------------------------------------------------------------------------------


def _as_array(targets: Any) -> np.ndarray:
    """Return targets as an array. Arrays stay as they are, since those of a recorded step have their own type."""
    return targets if isinstance(targets, np.ndarray) else as_array(targets, "targets")


def _as_real(loss: str, what: str, data: Any, dtype: Any) -> np.ndarray:
    """Return data as an array of this dtype in native byte order; without one, float32 or float64."""
    return as_real(data, None if dtype is None else dtype.newbyteorder("="), f"{loss}: {what}")
