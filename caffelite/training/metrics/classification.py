"""The parts of metrics of classes: predictions, counts for each class, and areas under curves.

Outputs are scores (n, C) with labels (n,), one score per row with labels of 0 and 1, or scores (n, C) with several
labels per row, (n, C) of 0 and 1. Each class is counted or sorted by itself, so the outputs are the only array of
rows × classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

# ---- predictions ----------------------------------------------------------------------------------------------------


def has_nan(array: np.ndarray) -> bool:
    """Whether an element is NaN."""
    return array.dtype.kind == "f" and array.size > 0 and bool(np.isnan(array.max()))  # max gives NaN if any is NaN


def is_multilabel(outputs: tuple[int, ...], targets: tuple[int, ...]) -> bool:
    """Whether targets of this shape are several labels per row, (n, C), for outputs of this shape."""
    return len(outputs) == 2 and outputs[1] > 1 and targets == outputs


def has_single_score(outputs: np.ndarray) -> bool:
    """Whether outputs are one score per row, (n,) or (n, 1)."""
    return outputs.ndim == 1 or outputs.shape[1] == 1


def predict_classes(outputs: np.ndarray, threshold: float) -> np.ndarray:
    """Return the predicted class of each row, (n,)."""
    return (outputs.reshape(-1) > threshold).astype(np.int64) if has_single_score(outputs) else outputs.argmax(axis=1)


def row_accuracy(outputs: np.ndarray, targets: np.ndarray, threshold: float) -> float:
    """Return the share of rows all of whose labels are predicted."""
    if not is_multilabel(outputs.shape, targets.shape):
        return float((predict_classes(outputs, threshold) == targets.reshape(-1)).mean())
    is_right = np.ones(len(outputs), dtype=bool)
    for scores, labels in zip(outputs.T, targets.T, strict=True):
        is_right &= (scores > threshold) == labels
    return float(is_right.mean())


def to_labels(targets: np.ndarray) -> np.ndarray:
    """Return labels as int64, (n,). Raise ValueError for floats that are not whole numbers."""
    labels = targets.reshape(-1)
    if labels.dtype.kind == "f" and not (labels == np.floor(labels)).all():
        row = int((labels != np.floor(labels)).argmax())
        raise ValueError(f"expected labels, got {labels[row]} in row {row}")
    return labels.astype(np.int64)


def label_columns(outputs: np.ndarray, targets: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each of several labels per row, its scores (n,) and whether a row has it. ValueError unless it is 0 or 1."""
    for scores, labels in zip(outputs.T, targets.T, strict=True):
        is_one = labels == 1
        if not (is_one | (labels == 0)).all():
            row = int((~(is_one | (labels == 0))).argmax())
            raise ValueError(f"expected labels of 0 and 1, got {labels[row]} in row {row}")
        yield scores, is_one


# ---- counts ---------------------------------------------------------------------------------------------------------


def class_counts(
    outputs: np.ndarray, targets: np.ndarray, threshold: float, all_classes: bool
) -> tuple[np.ndarray, ...]:
    """Return three counts for each class: rows predicted correctly, rows predicted, and rows of the class.

    The classes are those that occur in predictions or labels. Of two classes only class 1, unless `all_classes`. With
    several labels per row, each label is a class.
    """
    if is_multilabel(outputs.shape, targets.shape):
        counts = [_label_counts(scores > threshold, is_one) for scores, is_one in label_columns(outputs, targets)]
        return tuple(np.array(counts).T)
    labels, predictions = to_labels(targets), predict_classes(outputs, threshold)
    n, is_hit = len(labels), labels == predictions
    if (outputs.ndim == 1 or outputs.shape[1] <= 2) and not all_classes:
        return tuple(np.array([_label_counts(predictions == 1, labels == 1)]).T)
    classes, indices = np.unique(np.concatenate([labels, predictions]), return_inverse=True)
    return tuple([np.bincount(a, minlength=len(classes)) for a in (indices[:n][is_hit], indices[n:], indices[:n])])


def _label_counts(is_predicted: np.ndarray, is_present: np.ndarray) -> list[int]:
    return [int(np.count_nonzero(a)) for a in (is_predicted & is_present, is_predicted, is_present)]


def mean_ratio(part: np.ndarray, whole: np.ndarray) -> float:
    """Return the mean over classes of part / whole, 0 for a class whose whole is 0."""
    return float(np.mean(np.where(whole > 0, part / np.maximum(whole, 1), 0)))


# ---- probabilities, and areas under curves --------------------------------------------------------------------------


def to_probabilities(outputs: np.ndarray, link: Any, multilabel: bool) -> np.ndarray:
    """Return the predictions that outputs stand for, in float64: `link` of the outputs if there is one.

    With several classes, each row has probabilities. If the rows are not probabilities, they count as scores, and the
    result is their softmax. It is NaN for infinite scores.
    """
    p = outputs.astype(np.float64)
    if link is not None:
        p = np.asarray(link(p), np.float64)
    if multilabel or has_single_score(p) or ((p >= 0).all() and np.allclose(p.sum(axis=1), 1)):
        return p
    with np.errstate(invalid="ignore"):
        p = np.exp(p - p.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def mean_over_classes(area: Any, p: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean of area(scores of a class, whether rows are in it) over the classes; of two, class 1's alone."""
    if is_multilabel(p.shape, targets.shape):
        return float(np.mean([area(scores, is_one) for scores, is_one in label_columns(p, targets)]))
    labels = to_labels(targets)
    if p.ndim == 1 or p.shape[1] <= 2:
        return area(p.reshape(len(labels), -1)[:, -1], labels == 1)
    return float(np.mean([area(p[:, j], labels == j) for j in range(p.shape[1])]))


def roc_area(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return the area from ranks: H. Mann, D. Whitney, Annals of Math. Statistics 18(1), 1947. NaN for one class."""
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if ones == 0 or zeros == 0:
        return np.nan
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # equal scores share their mean rank
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def precision_recall_area(scores: np.ndarray, positive: np.ndarray) -> float:
    """Σ precision · Δ recall over all thresholds, from the highest on. Equal scores are one step. 0 without positives.

    Not the trapezoids below the curve, which are too optimistic: J. Davis and M. Goadrich, ICML 2006.
    """
    ones = int(positive.sum())
    if ones == 0:
        return 0.0
    _, inverse, counts = np.unique(-scores, return_inverse=True, return_counts=True)
    hits = np.bincount(inverse[positive], minlength=len(counts))
    precision = np.cumsum(hits) / np.cumsum(counts)
    return float((precision * hits).sum() / ones)


def mean_log_loss(p: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean of −log of the probability of each label. ValueError, naming the row, for a label without one."""
    labels = to_labels(targets)
    classes = 2 if has_single_score(p) else p.shape[1]
    bad = (labels < 0) | (labels >= classes)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"label {labels[row]} in row {row} is not one of the classes 0 … {classes - 1}")
    if has_single_score(p):
        p = p.reshape(-1)
        label_probabilities = np.where(labels == 1, p, 1 - p)
    else:
        label_probabilities = p[np.arange(len(labels)), labels]
    tiny = np.finfo(np.float64).eps
    return float(-np.log(np.clip(label_probabilities, tiny, 1 - tiny)).mean())
