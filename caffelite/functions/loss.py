"""Losses: Functions of scores and targets that return the mean over the rows, 0-d."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.function import Function, Shape
from caffelite.tensor import as_real

__all__ = ["SoftmaxLoss"]


class SoftmaxLoss(Function, recordable=True):
    """Softmax and the mean negative log-likelihood of the labels (cross-entropy), fused:

        p = softmax(scores),  y = −mean log p[i, label i],  dscores = dy (p − onehot) / n

    scores (n, C) unnormalised, targets (n,) integers in 0 … C − 1. `probabilities` (n, C) are the last forward's.
    Bad labels raise ValueError or TypeError, naming the first bad row and the allowed range.

    C. Bishop, "Pattern Recognition and Machine Learning", 2006, section 4.3.4.
    """

    probabilities: np.ndarray | None = None

    def check_targets(self, targets: Any, scores_shape: Shape) -> None:
        """Raise unless `targets` are one label of 0 … C − 1 for each row of scores of this shape, (n, C)."""
        if len(scores_shape) != 2:
            raise ValueError(f"SoftmaxLoss got scores of shape {scores_shape}; expected (n, classes)")
        rows, classes = scores_shape
        labels = np.asanyarray(targets)
        if labels.dtype.kind not in "iu":
            row, label = _first_that_is_no_label(targets, classes)
            allowed = "integer labels" if classes is None else f"integer labels in 0 … {classes - 1}"
            raise TypeError(
                f"SoftmaxLoss takes {allowed}, got {labels.dtype}" + ("" if row < 0 else f": {label!r} in row {row}")
            )
        if labels.ndim != 1 or labels.shape[0] != (labels.shape[0] if rows is None else rows):
            raise ValueError(
                f"SoftmaxLoss got labels of shape {labels.shape} for scores of shape {scores_shape}: "
                "expected one label a row" + (", not one-hot rows: y.argmax(axis=1)" if labels.ndim == 2 else "")
            )
        if labels.size == 0:
            raise ValueError("SoftmaxLoss got no labels")
        if classes is not None:
            kernels.check_labels(_labels(labels), classes, functools.partial(_refuse_label, classes, labels.dtype))

    def output_shape(self, *input_shapes: Shape) -> Shape:
        scores, targets = input_shapes
        if len(scores) != 2 or len(targets) != 1 or len({scores[0], targets[0]} - {None}) > 1:
            raise ValueError(f"SoftmaxLoss got shapes {scores} and {targets}; expected (n, classes) and (n,)")
        return ()

    def forward(self, scores: np.ndarray, targets: Any) -> np.ndarray:
        self.probabilities = None
        if isinstance(targets, np.ndarray) and kernels.recorder() is None:
            targets = targets.copy()  # what is checked is what is used, here and in backward
        self.check_targets(targets, scores.shape)
        self.labels = _labels(np.asanyarray(targets))
        loss, self.probabilities = kernels.softmax_loss(scores, self.labels)
        return loss

    def backward(self, dy: Any = 1.0) -> np.ndarray:
        if self.probabilities is None:
            raise RuntimeError("SoftmaxLoss.backward without a forward that succeeded")
        if isinstance(dy, int | float | np.generic):
            dy = kernels.full((), dy, self.probabilities.dtype)
        dy = as_real(dy, self.probabilities.dtype, f"{self!r}.backward")
        return kernels.softmax_loss_grad(self.probabilities, self.labels, dy)


def _first_that_is_no_label(targets: Any, classes: int | None) -> tuple[int, Any]:
    """The first row, and what stands there, that is no integer in 0 … classes − 1; (−1, None) if there are no rows."""
    values = np.asarray(targets, dtype=object).ravel()
    for row, value in enumerate(values):
        is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_integer or value < 0 or (classes is not None and value >= classes):
            return row, value
    return (0, values[0]) if values.size else (-1, None)


def _refuse_label(classes: int, dtype: np.dtype, labels: np.ndarray) -> None:
    """Raise ValueError for the first of these labels, int64 made of that dtype, that is no class."""
    row = int(((labels < 0) | (labels >= classes)).argmax())
    raise ValueError(f"label {labels.astype(dtype)[row]} in row {row} is not one of the classes 0 … {classes - 1}")


def _labels(targets: np.ndarray) -> np.ndarray:
    """Integer labels as int64."""
    if kernels.recorder() is not None:
        return targets if targets.dtype == np.int64 else kernels.convert(targets, np.int64)
    return np.ascontiguousarray(targets, dtype=np.int64)
