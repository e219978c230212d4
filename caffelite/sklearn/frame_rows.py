"""Rows of a frame, for estimators whose model takes frames."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_array, check_consistent_length, column_or_1d
from sklearn.utils.validation import validate_data

from caffelite.data import frames
from caffelite.model.model import Model


def is_frame(X: Any) -> bool:
    """Return whether X is a library's frame. A dict does not count: scikit-learn does not know its columns."""
    return frames.is_frame(X) and not isinstance(X, dict)


def check_columns(estimator: Any, X: Any, y: Any, reset: bool) -> Any:
    """Return an open frame. ValueError for other columns than in `fit`."""
    X = frames.open_frame(X, "X")
    native = X.to_native() if hasattr(X, "to_native") else X  # not every scikit-learn knows frames of narwhals
    validate_data(estimator, native, y, reset=reset, skip_check_array=True)
    return X


class FrameRows:
    """The rows of a frame, indexed like the rows of an array."""

    dtype = np.dtype(np.float32)  # to compute in; Columns subtracts centers in float64 before

    def __init__(self, frame: Any) -> None:
        self.frame, self.shape = frame, tuple(frame.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray) -> FrameRows:
        return FrameRows(self.frame.iloc[rows] if hasattr(self.frame, "iloc") else self.frame[rows])

    def output_shape(self, model: Model) -> tuple[int | None, ...]:
        """Return the shape of a model's outputs for these rows. ValueError unless it begins with Columns."""
        columns = model.frame_reader
        if columns is None:
            raise ValueError(f"build: a model of a frame must begin with Columns, got {model!r}")
        return model.output_shape(*[(len(self), len(names)) for names in columns.names])


def input_features(X: Any) -> Any:
    """Return the size of a model's input: the number of features, the shape of a row with several axes, or a frame."""
    if isinstance(X, FrameRows):
        return X.frame
    return X.shape[1] if X.ndim == 2 else X.shape[1:]


def model_input(X: Any) -> Any:
    """Return rows as a model takes them."""
    return X.frame if isinstance(X, FrameRows) else X


def check_frame_targets(rows: FrameRows, y: Any, is_regression: bool) -> np.ndarray:
    """Return targets as an array; one column becomes a vector. ValueError unless there are as many targets as rows."""
    options = {"accept_sparse": "csr", "ensure_2d": False, "dtype": "numeric" if is_regression else None}
    y = check_array(y, input_name="y", **options)
    check_consistent_length(rows, y)
    return squeeze_column(y)


def squeeze_column(y: Any) -> Any:
    """Return targets of one column as a vector, with scikit-learn's warning; others as they are."""
    is_column = y.ndim == 2 and y.shape[1] == 1
    return column_or_1d(y.toarray() if issparse(y) else y, warn=True) if is_column else y


def check_known_targets(y: np.ndarray) -> None:
    """Raise ValueError that names the first row without a target."""
    frames.check_missing(np.array([*map(frames.is_missing, y)]) if y.dtype == object else y != y, "y")


def check_target_numbers(y: np.ndarray) -> np.ndarray:
    """Return targets as float64. ValueError, with the row, for a missing one, a word and an infinite number."""
    check_known_targets(y)
    try:
        for row, x in enumerate(y.tolist() if y.dtype.kind in "OUS" else ()):  # noqa: B007 (for the message)
            float(x)
    except (TypeError, ValueError) as error:
        raise ValueError(f"y is {x!r} in row {row}; expected numbers. TableClassifier takes classes") from error
    y = y.astype(np.float64)
    if np.isinf(y).any():  # in the words of scikit-learn
        row = int(np.isinf(y).argmax())
        raise ValueError(f"Input y contains infinity or a value too large for dtype('float64'): {y[row]} in row {row}")
    return y
