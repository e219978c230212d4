"""Losses: Functions of scores and targets that return the mean over the rows, 0-d."""

from __future__ import annotations

from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.function import Function, Shape


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
        targets = np.asarray(targets)
        if targets.dtype.kind not in "iu":
            raise TypeError(
                f"SoftmaxLoss takes integer labels in 0 … {(classes or 1) - 1}, got {targets.dtype}"
                + (f"; row 0 is {targets.flat[0]!r}" if targets.size else "")
            )
        if targets.ndim != 1 or targets.shape[0] != (targets.shape[0] if rows is None else rows):
            raise ValueError(
                f"SoftmaxLoss got labels of shape {targets.shape} for scores of shape {scores_shape}: "
                "expected one label a row"
            )
        if targets.size == 0:
            raise ValueError("SoftmaxLoss got no labels")
        if classes is not None:
            row = kernels.check_labels(_labels(targets), classes)
            if row >= 0:
                raise ValueError(f"label {targets[row]} in row {row} is not one of the classes 0 … {classes - 1}")

    def forward(self, scores: np.ndarray, targets: Any) -> np.ndarray:
        self.probabilities = None
        self.check_targets(targets, scores.shape)
        self.labels = _labels(np.asarray(targets))
        loss, self.probabilities = kernels.softmax_loss(scores, self.labels)
        return loss

    def backward(self, dy: Any = 1.0) -> np.ndarray:
        if self.probabilities is None:
            raise RuntimeError("SoftmaxLoss.backward without a forward that succeeded")
        if not isinstance(dy, np.ndarray):
            dy = kernels.full((), dy, self.probabilities.dtype)
        return kernels.softmax_loss_grad(self.probabilities, self.labels, dy)


def _labels(targets: np.ndarray) -> np.ndarray:
    """Integer labels as int64. What does not fit (uint64 of 2⁶³ or more) becomes negative, which is no label either."""
    return np.ascontiguousarray(targets, dtype=np.int64)
