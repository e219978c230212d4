"""Metrics of classes: of predicted labels, of counts for each class, and of areas under curves.

Outputs are scores (n, …, C) with labels (n, …), one score per row with labels of 0 and 1, or scores (n, C) with several
labels per row, (n, C) of 0 and 1. Each class is counted or sorted by itself, so the outputs are the only array of
rows × classes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.warnings import warn
from caffelite.core.arrays import check_positive_integer
from caffelite.functions.losses.base import Penalized
from caffelite.training.metrics.base import FACTORIES, EpochMetric, register

PROBABILITIES_WARNING = (
    "metrics: all outputs are within 0 … 1, so they count as probabilities: class 1 is output > 0.5. If they are "
    "scores, use SigmoidLoss, or give your loss a method `link` that turns scores into probabilities"
)


class ClassificationMetric(EpochMetric):
    """A metric of outputs and labels. `multilabel` is whether a row may have several labels."""

    def __init__(
        self, function: Callable[..., float], mode: str = "max", name: str = "", multilabel: bool = True
    ) -> None:
        super().__init__(function, mode, name)
        self._multilabel = multilabel

    def check(self, name: str, outputs: tuple[int, ...], targets: tuple[int, ...], multilabel: bool = True) -> None:
        if self._multilabel and multilabel and is_multilabel(outputs, targets):
            return
        one_score = len(outputs) == 1 or outputs[1:] == (1,)
        has_row_labels = one_score and targets in (outputs[:1], (*outputs[:1], 1))
        if not has_row_labels and not (len(outputs) > 1 and targets == outputs[:-1]):
            is_matrix = len(outputs) == 2 == len(targets)
            hint = ": for rows that are one-hot or probabilities, use y.argmax(axis=1)" if is_matrix else ""
            raise ValueError(
                f"{name} got outputs of shape {outputs} and targets of shape {targets}; "
                f"expected scores (n, …, C) and labels (n, …), or one score per row{hint}"
            )

    def _compute(self, threshold: float | None, outputs: np.ndarray, targets: np.ndarray, link: Any) -> float:
        if outputs.ndim == targets.ndim + 1 > 2:  # one row for each label of (n, …)
            outputs = outputs.reshape(-1, outputs.shape[-1])
        return np.nan if has_nan(outputs) else self._score(threshold, outputs, targets, link)

    def _score(self, threshold: float | None, outputs: np.ndarray, targets: np.ndarray, link: Any) -> float:
        return self._function(outputs, targets)


class ThresholdMetric(ClassificationMetric):
    """A metric of predicted labels: a function of outputs, targets and the threshold of single scores."""

    def _score(self, threshold: float | None, outputs: np.ndarray, targets: np.ndarray, link: Any) -> float:
        if threshold is None and outputs.size == targets.size:
            threshold, matters = guess_threshold(outputs.reshape(-1))
            if matters:
                warn(PROBABILITIES_WARNING)
        return self._function(outputs, targets, threshold or 0.0)


class ProbabilityMetric(ClassificationMetric):
    """A metric of probabilities and targets."""

    def _score(self, threshold: float | None, outputs: np.ndarray, targets: np.ndarray, link: Any) -> float:
        p = to_probabilities(outputs, link, is_multilabel(outputs.shape, targets.shape))
        return np.nan if has_nan(p) else self._function(p, targets)


class TopKMetric(ClassificationMetric):
    """A metric of scores (n, …, C) and labels (n, …)."""

    def check(self, name: str, outputs: tuple[int, ...], targets: tuple[int, ...], multilabel: bool = True) -> None:
        if len(outputs) < 2 or targets != outputs[:-1]:
            raise ValueError(
                f"{name} got outputs of shape {outputs} and targets of shape {targets}; expected (n, …, C) and (n, …)"
            )


# ---- one score per row: where class 1 begins ------------------------------------------------------------------------


def find_threshold(loss: Any) -> tuple[Any, float | None]:
    """Return `(link, threshold)` of a loss: with one score per row, class 1 is link(score) > threshold.

    If the loss has a `threshold` of scores, the link is None here. Otherwise its `link` is above ½ for class 1. If a
    class overrides one of the two, it replaces the other one of its base class. Without both, the threshold is None.
    """
    while isinstance(loss, Penalized):
        loss = loss.loss
    for owner in () if loss is None else (loss, *type(loss).__mro__):
        if "threshold" in vars(owner):
            return None, loss.threshold
        if "link" in vars(owner):
            return loss.link, 0.5
    return None, None


def guess_threshold(scores: np.ndarray) -> tuple[float, bool]:
    """Guess the threshold of scores (n,), and return it with whether threshold 0 would give other predictions."""
    if len(scores) == 0 or not ((scores >= 0) & (scores <= 1)).all():
        return 0.0, False
    return 0.5, bool(((scores > 0) & (scores <= 0.5)).any())


# ---- predictions ----------------------------------------------------------------------------------------------------


def has_nan(array: np.ndarray) -> bool:
    """Return whether an element is NaN."""
    return array.dtype.kind == "f" and array.size > 0 and bool(np.isnan(array.max()))  # max gives NaN if any is NaN


def is_multilabel(outputs: tuple[int, ...], targets: tuple[int, ...]) -> bool:
    """Return whether targets of this shape are several labels per row, (n, C), for outputs of this shape."""
    return len(outputs) == 2 and outputs[1] > 1 and targets == outputs


def has_single_score(outputs: np.ndarray) -> bool:
    """Return whether outputs are one score per row, (n,) or (n, 1)."""
    return outputs.ndim == 1 or outputs.shape[1] == 1


def predict_classes(outputs: np.ndarray, threshold: float) -> np.ndarray:
    """Return the predicted class of each row, (n,)."""
    return (outputs.reshape(-1) > threshold).astype(np.int64) if has_single_score(outputs) else outputs.argmax(axis=1)


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


@register(ThresholdMetric)
def accuracy(outputs: np.ndarray, targets: np.ndarray, threshold: float) -> float:
    """Return the share of labels that have the largest output: outputs (n, …, C), targets (n, …) integers.

    With one score per row, (n,) or (n, 1), class 1 is score > 0, or > ½ if all scores are between 0 and 1. With several
    labels per row, (n, C) of 0 and 1, a row is right if all its labels are. Raise ValueError for other shapes.
    """
    if has_nan(targets):
        return np.nan
    if not is_multilabel(outputs.shape, targets.shape):
        return float((predict_classes(outputs, threshold) == targets.reshape(-1)).mean())
    is_right = np.ones(len(outputs), dtype=bool)
    for scores, labels in zip(outputs.T, targets.T, strict=True):
        is_right &= (scores > threshold) == labels
    return float(is_right.mean())


def top_k(k: int) -> TopKMetric:
    """Return the share of labels that are among the k highest scores: scores (n, …, C). By name: "top_k(3)".

    Among equal scores, a later class counts as higher, as in scikit-learn's `top_k_accuracy_score`.
    """
    return _top_k(check_positive_integer("metrics: the k of top_k", k))


@functools.cache  # the same object for the same k: its recorded Program is found again
def _top_k(k: int) -> TopKMetric:
    def share(outputs: np.ndarray, targets: np.ndarray) -> float:
        highest = np.argsort(outputs, axis=1, kind="stable")[:, ::-1][:, :k]
        return float((highest == to_labels(targets)[:, None]).any(axis=1).mean())

    share.__doc__ = top_k.__doc__
    return TopKMetric(share, name=f"top_k({k})")


FACTORIES["top_k"] = top_k


# ---- counts ---------------------------------------------------------------------------------------------------------


def class_counts(
    outputs: np.ndarray, targets: np.ndarray, threshold: float, all_classes: bool = False
) -> tuple[np.ndarray, ...]:
    """Return three counts for each class: rows predicted correctly, rows predicted, and rows of the class.

    The classes are those that occur in predictions or labels. If there are two, only class 1 counts, unless
    `all_classes`. With several labels per row, each label is a class.
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


@register(ThresholdMetric)
def precision(outputs: np.ndarray, targets: np.ndarray, threshold: float) -> float:
    """Return the share of correct rows among the rows predicted as a class.

    With two classes, it is the share for class 1. With more, it is the mean over the classes that occur in predictions
    or labels. With several labels per row, it is the mean over the labels. The prediction is the class with the largest
    score; with one score per row it is as in `accuracy`. The precision is 0 for a class that is never predicted. This
    is scikit-learn's `precision_score`.
    """
    hits, predicted, _ = class_counts(outputs, targets, threshold)
    return mean_ratio(hits, predicted)


@register(ThresholdMetric)
def recall(outputs: np.ndarray, targets: np.ndarray, threshold: float) -> float:
    """Return the share of a class's rows that are predicted as this class. See `precision` for classes and averages.

    The recall is 0 for a class without rows. This is scikit-learn's `recall_score`.
    """
    hits, _, support = class_counts(outputs, targets, threshold)
    return mean_ratio(hits, support)


@register(ThresholdMetric)
def f1(outputs: np.ndarray, targets: np.ndarray, threshold: float) -> float:
    """Return the harmonic mean of precision and recall of a class, averaged as they are: scikit-learn's `f1_score`."""
    hits, predicted, support = class_counts(outputs, targets, threshold)
    return mean_ratio(2 * hits, predicted + support)


@register(ThresholdMetric, multilabel=False)
def balanced_accuracy(outputs: np.ndarray, targets: np.ndarray, threshold: float) -> float:
    """Return the mean recall of the classes that occur in the labels; see `precision` for predictions.

    This is scikit-learn's `balanced_accuracy_score`.
    """
    hits, _, support = class_counts(outputs, targets, threshold, all_classes=True)
    return mean_ratio(hits[support > 0], support[support > 0])


@register(ThresholdMetric, multilabel=False)
def matthews(outputs: np.ndarray, targets: np.ndarray, threshold: float) -> float:
    """Return the correlation of predictions and labels, −1 … 1; 0 if all predictions, or all labels, are one class.

    With c = Σ hits, n rows, and the counts p of predictions and t of labels for each class, it is
    (c n − Σ p t) / √((n² − Σ p²) (n² − Σ t²)). See `precision` for predictions. This is scikit-learn's
    `matthews_corrcoef`.

    B. Matthews, Biochimica et Biophysica Acta 405, 1975; J. Gorodkin, Computational Biology and Chemistry 28, 2004.
    """
    hits, predicted, support = class_counts(outputs, targets, threshold, all_classes=True)
    c, p, t = float(hits.sum()), predicted.astype(np.float64), support.astype(np.float64)
    n = t.sum()
    spread = (n * n - p @ p) * (n * n - t @ t)
    return float((c * n - p @ t) / np.sqrt(spread)) if spread > 0 else 0.0


# ---- probabilities, and areas under curves --------------------------------------------------------------------------


def to_probabilities(outputs: np.ndarray, link: Any, multilabel: bool) -> np.ndarray:
    """Return the predictions that outputs stand for, in float64: `link` of the outputs if there is a link.

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
    softmax: np.ndarray = p / p.sum(axis=1, keepdims=True)
    return softmax


def mean_over_classes(area: Callable[..., float], p: np.ndarray, targets: np.ndarray) -> float:
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
    """Return Σ precision · Δ recall over all thresholds, from the highest on; 0 without positives.

    Equal scores are one step. Not the trapezoids below the curve, which are too optimistic: J. Davis and M. Goadrich,
    ICML 2006.
    """
    ones = int(positive.sum())
    if ones == 0:
        return 0.0
    _, inverse, counts = np.unique(-scores, return_inverse=True, return_counts=True)
    hits = np.bincount(inverse[positive], minlength=len(counts))
    precision = np.cumsum(hits) / np.cumsum(counts)
    return float((precision * hits).sum() / ones)


@register(ProbabilityMetric)
def auc(p: np.ndarray, targets: np.ndarray) -> float:
    """Return the area under the ROC curve: how often a row of class 1 has a higher score than one of class 0. Ties
    count half.

    With two scores per row, it is computed from the probabilities of class 1. With more, it is the mean over the
    classes, each against the rest. The probabilities are `loss.link` of the outputs. Without a link, they are the
    softmax of the scores, unless all rows are probabilities already. With several labels per row it is the mean over
    the labels. The result is NaN if a class has no rows or a score is NaN. This is scikit-learn's `roc_auc_score` with
    `multi_class="ovr"`.
    """
    return mean_over_classes(roc_area, p, targets)


@register(ProbabilityMetric)
def average_precision(p: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean precision over the rows of class 1, each taken as the last one predicted as class 1.

    For probabilities, classes and several labels, see `auc`. The result is 0 for a class without rows. This is
    scikit-learn's `average_precision_score`.
    """
    return mean_over_classes(precision_recall_area, p, targets)


@register(ProbabilityMetric, mode="min", multilabel=False)
def log_loss(p: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean of −log p, where p is the probability of a row's label, clipped to 2⁻⁵² … 1 − 2⁻⁵².

    For probabilities, see `auc`. With one score per row, the sigmoid turns scores into probabilities unless all are
    between 0 and 1. This is scikit-learn's `log_loss`.
    """
    if has_single_score(p) and not ((p >= 0) & (p <= 1)).all():
        p = kernels.sigmoid(p)
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
