"""Metrics: callables (outputs, targets) -> float.

`accuracy` and users' callables are means over rows: they are measured batch by batch, and the epoch's is the
row-weighted mean. What is no such mean (`OfEpoch`: precision, auc, …) is computed once, with NumPy, from the outputs
and targets of all rows of the epoch, which a kernel of the step has put one behind the other. So the step calls no
Python for it, and the result is that of scikit-learn's function on the whole epoch.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from caffelite.arrays import positive_integer

Metric = Callable[[np.ndarray, np.ndarray], float]


def accuracy(outputs: np.ndarray, targets: np.ndarray) -> float:
    """The share of labels at which the largest output is: outputs (n, …, C), targets (n, …) integers.

    With one score a row, (n,) or (n, 1), class 1 is score > 0, else 0. Raises ValueError for other shapes.
    """
    outputs, targets = np.asarray(outputs), np.asarray(targets)
    check_shapes(accuracy, outputs.shape, targets.shape)
    return float((_predicted(_flat(outputs, targets)) == targets.reshape(-1)).mean())


class OfEpoch:
    """A metric of all rows of an epoch together; `check(name, outputs' shape, targets' shape)` raises ValueError."""

    def __init__(self, function: Metric, check: Callable[[str, tuple, tuple], None], name: str = "") -> None:
        functools.update_wrapper(self, function)
        self.__name__ = name or function.__name__
        self._function, self._check = function, check

    def __call__(self, outputs: Any, targets: Any) -> float:
        outputs, targets = np.asarray(outputs), np.asarray(targets)
        check_shapes(self, outputs.shape, targets.shape)
        return float(self._function(_flat(outputs, targets), targets))


def check_shapes(metric: Any, outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    """Raise ValueError unless a metric of this module can take outputs and targets of these shapes."""
    check = _check_classes if metric is accuracy else metric._check
    check(metric.__name__, outputs, targets)


def _check_classes(name: str, outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    one_score = len(outputs) == 1 or outputs[1:] == (1,)
    of_rows = one_score and targets in (outputs[:1], (*outputs[:1], 1))
    if not of_rows and not (len(outputs) > 1 and targets == outputs[:-1]):
        one_hot = ": of rows that are one-hot or probabilities, y.argmax(axis=1)" * (len(outputs) == 2 == len(targets))
        raise ValueError(
            f"{name} got outputs of shape {outputs} and targets of shape {targets}; "
            f"expected scores (n, …, C) and labels (n, …), or one score a row{one_hot}"
        )


def _check_values(name: str, outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    single = [shape[:-1] if len(shape) == 2 and shape[1] == 1 else shape for shape in (outputs, targets)]
    if not outputs or single[0] != single[1]:
        raise ValueError(f"{name} got outputs of shape {outputs} and targets of shape {targets}; expected the same")


def _of(check: Callable[[str, tuple, tuple], None]) -> Callable[[Metric], OfEpoch]:
    return lambda function: OfEpoch(function, check)


def _flat(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Outputs (n, …, C) with labels (n, …) as one row (C,) for each label; others as they are."""
    return outputs.reshape(-1, outputs.shape[-1]) if outputs.ndim == targets.ndim + 1 > 2 else outputs


# ---- classes: scores (n, …, C) or one a row, labels (n, …) --------------------------------------------------------


@_of(_check_classes)
def precision(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Of the rows predicted to be of a class, the share that are: class 1 of two, the mean over classes of more.

    The prediction is the largest score's class; with one score a row class 1 is score > 0. Classes are those that occur
    in predictions or labels. 0 where nothing is predicted to be of the class. scikit-learn's `precision_score`.
    """
    hits, predicted, _ = _counts(outputs, targets)
    return _share(hits, predicted)


@_of(_check_classes)
def recall(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Of the rows of a class, the share that are predicted to be: classes and averages as in `precision`.

    0 where there is no row of the class. scikit-learn's `recall_score`.
    """
    hits, _, there = _counts(outputs, targets)
    return _share(hits, there)


@_of(_check_classes)
def f1(outputs: np.ndarray, targets: np.ndarray) -> float:
    """The harmonic mean of a class's precision and recall; classes and averages as there. scikit-learn's `f1_score`."""
    hits, predicted, there = _counts(outputs, targets)
    return _share(2 * hits, predicted + there)


@_of(_check_classes)
def auc(outputs: np.ndarray, targets: np.ndarray) -> float:
    """The area under the ROC curve: how often a row of class 1 has a higher score than one of class 0, ties half.

    Of two scores a row it is their difference that counts. Of more, the mean over the classes, each against the rest,
    by their probabilities: the softmax of the scores, unless all rows are probabilities already. NaN where a class has
    no rows or a score is NaN. scikit-learn's `roc_auc_score` with `multi_class="ovr"`.
    """
    scores, labels = outputs.astype(np.float64), _labels(targets)
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        return _area(scores.reshape(-1), labels == 1)
    if outputs.shape[1] == 2:
        return _area(scores[:, 1] - scores[:, 0], labels == 1)
    if not ((scores >= 0).all() and np.allclose(scores.sum(axis=1), 1)):
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    return float(np.mean([_area(scores[:, j], labels == j) for j in range(scores.shape[1])]))


def top_k(k: int) -> OfEpoch:
    """The share of labels that are among the k highest scores: scores (n, …, C). By name: "top_k(3)".

    Of equal scores, those of later classes are taken to be higher, as in scikit-learn's `top_k_accuracy_score`.
    """
    return _top_k(positive_integer("metrics: the k of top_k", k))


@functools.cache  # the same object for the same k, so that a Program recorded with it is found again
def _top_k(k: int) -> OfEpoch:
    def share(outputs: np.ndarray, targets: np.ndarray) -> float:
        highest = np.argsort(outputs, axis=1, kind="stable")[:, ::-1][:, :k]
        return float((highest == _labels(targets)[:, None]).any(axis=1).mean())

    def check(name: str, outputs: tuple, targets: tuple) -> None:
        if len(outputs) < 2 or targets != outputs[:-1]:
            raise ValueError(
                f"{name} got outputs of shape {outputs} and targets of shape {targets}; expected (n, …, C) and (n, …)"
            )

    share.__doc__ = top_k.__doc__
    return OfEpoch(share, check, f"top_k({k})")


def _predicted(outputs: np.ndarray) -> np.ndarray:
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        return (outputs.reshape(-1) > 0).astype(np.int64)
    return outputs.argmax(axis=1)


def _labels(targets: np.ndarray) -> np.ndarray:
    """Labels as int64; ValueError for floats that are no whole numbers."""
    labels = targets.reshape(-1)
    if labels.dtype.kind == "f" and not (labels == np.floor(labels)).all():
        row = int((labels != np.floor(labels)).argmax())
        raise ValueError(f"expected labels, got {labels[row]} in row {row}")
    return labels.astype(np.int64)


def _counts(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each class that is averaged over: rows predicted rightly, rows predicted, rows there."""
    labels, predicted = _labels(targets), _predicted(outputs)
    two = outputs.ndim == 1 or outputs.shape[1] <= 2
    classes = np.array([1]) if two else np.union1d(labels, predicted)
    hits = labels[labels == predicted]
    return tuple([(a[:, None] == classes).sum(axis=0) for a in (hits, predicted, labels)])


def _share(part: np.ndarray, whole: np.ndarray) -> float:
    return float(np.mean(np.where(whole > 0, part / np.maximum(whole, 1), 0)))


def _area(scores: np.ndarray, positive: np.ndarray) -> float:
    """From the ranks of the positive rows: H. Mann, D. Whitney, Annals of Mathematical Statistics 18(1), 1947."""
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if ones == 0 or zeros == 0 or np.isnan(scores).any():
        return np.nan
    _, which, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[which]  # of equal scores, the mean of theirs
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


# ---- values: outputs and targets of one shape, (n, …) ------------------------------------------------------------


@_of(_check_values)
def mse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """The mean of (outputs − targets)². scikit-learn's `mean_squared_error`."""
    return float(np.mean(_differences(outputs, targets) ** 2))


@_of(_check_values)
def mae(outputs: np.ndarray, targets: np.ndarray) -> float:
    """The mean of |outputs − targets|. scikit-learn's `mean_absolute_error`."""
    return float(np.mean(np.abs(_differences(outputs, targets))))


@_of(_check_values)
def rmse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """√ mean (outputs − targets)² of each column, and of these the mean. scikit-learn's `root_mean_squared_error`."""
    return float(np.mean(np.sqrt(np.mean(_differences(outputs, targets) ** 2, axis=0))))


@_of(_check_values)
def r2(outputs: np.ndarray, targets: np.ndarray) -> float:
    """1 − Σ (outputs − targets)² / Σ (targets − their mean)² of each column, and of these the mean.

    Of a column whose targets are all the same, 1 if the outputs are right, else 0; NaN for a single row. scikit-learn's
    `r2_score`.
    """
    if len(outputs) < 2:
        return np.nan
    columns = targets.reshape(len(targets), -1).astype(np.float64)
    residual = (_differences(outputs, targets) ** 2).sum(axis=0)
    total = ((columns - columns.sum(axis=0) / len(columns)) ** 2).sum(axis=0)
    unexplained = np.divide(residual, total, out=(residual != 0).astype(np.float64), where=total > 0)
    return float((1 - unexplained).sum() / len(unexplained))


def _differences(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """outputs − targets in float64, a row each."""
    rows = len(outputs)
    return outputs.reshape(rows, -1).astype(np.float64) - targets.reshape(rows, -1).astype(np.float64)


# ---- by name -----------------------------------------------------------------------------------------------------

NAMED: dict[str, Metric] = {
    "accuracy": accuracy,
    **{metric.__name__: metric for metric in (precision, recall, f1, auc, mse, mae, rmse, r2)},
}

HIGHER_IS_BETTER = {"accuracy", "top_k", "precision", "recall", "f1", "auc", "r2"}


def higher_is_better(name: str) -> bool:
    """Whether what the history has under this name is the better the higher it is; all else, the lower."""
    return name.removeprefix("val_").partition("(")[0] in HIGHER_IS_BETTER


def named(metrics: Iterable[str | Metric]) -> dict[str, Metric]:
    """Metrics by their names in the history; ValueError for an unknown name or one taken twice, TypeError otherwise."""
    if isinstance(metrics, str) or callable(metrics):
        raise TypeError(f"metrics: expected a list such as ['accuracy'], got {metrics!r}")
    result: dict[str, Metric] = {}
    for given in metrics:
        metric = _by_name(given) if isinstance(given, str) else given
        if not callable(metric):
            raise TypeError(f"metrics: expected a name such as 'accuracy' or a callable, got {metric!r}")
        name = getattr(metric, "__name__", type(metric).__name__)
        if name in result or name == "loss":
            raise ValueError(f"metrics: the name {name!r} is taken")
        result[name] = metric
    return result


def _by_name(name: str) -> Metric:
    if name in NAMED:
        return NAMED[name]
    k = re.fullmatch(r"top_k\((\d+)\)", name)
    if k is None:
        raise ValueError(
            f"metrics: there are {', '.join(NAMED)}, top_k(k), got {name!r}; pass a callable for any other"
        )
    return top_k(int(k[1]))
