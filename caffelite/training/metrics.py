"""Metrics: callables (outputs, targets) -> float.

Each metric is computed once per epoch, with NumPy, from all outputs and targets of the epoch. A kernel of the step
collects these rows. So the step calls no Python, and the result equals scikit-learn's function on the whole epoch. Only
`accuracy` needs no rows: a kernel of the step counts.

With one score per row, the loss defines class 1: `loss.link` gives more than ½. If the loss does not define it, and all
scores are within 0 … 1, they are taken for probabilities. Otherwise class 1 is score > 0.

A metric of NaN is NaN.
"""

from __future__ import annotations

import contextlib
import functools
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from caffelite.core.arrays import positive_integer
from caffelite.core.cautions import warn

Metric = Callable[[np.ndarray, np.ndarray], float]


def accuracy(outputs: np.ndarray, targets: np.ndarray) -> float:
    """The share of labels that have the largest output: outputs (n, …, C), targets (n, …) integers.

    With one score per row, (n,) or (n, 1), class 1 is score > 0, or > ½ if all scores are within 0 … 1. Raises
    ValueError for other shapes.
    """
    return accuracy_above(None, outputs, targets)


def accuracy_above(threshold: float | None, outputs: Any, targets: Any) -> float:
    """`accuracy` with a threshold: with one score per row, class 1 is score > threshold. None: guess it from scores."""
    outputs, targets = np.asarray(outputs), np.asarray(targets)
    check_shapes(accuracy, outputs.shape, targets.shape)
    if _has_nan(outputs) or _has_nan(targets):
        return np.nan
    return float((_predicted(_flat(outputs, targets), threshold) == targets.reshape(-1)).mean())


class OfEpoch:
    """A metric of all rows of an epoch. `check(name, outputs' shape, targets' shape)` raises ValueError."""

    def __init__(
        self, function: Callable[..., float], check: Callable[[str, tuple, tuple], None], name: str = ""
    ) -> None:
        functools.update_wrapper(self, function)
        self.__name__ = name or function.__name__
        self._function, self._check = function, check

    def __call__(self, outputs: Any, targets: Any) -> float:
        return self.above(None, outputs, targets)

    def above(self, threshold: float | None, outputs: Any, targets: Any) -> float:
        """The metric with a threshold: with one score per row, class 1 is score > threshold. None: guess it."""
        outputs, targets = np.asarray(outputs), np.asarray(targets)
        check_shapes(self, outputs.shape, targets.shape)
        return float(self._value(threshold, _flat(outputs, targets), targets))

    def _value(self, threshold: float | None, outputs: np.ndarray, targets: np.ndarray) -> float:
        return self._function(outputs, targets)


class OfPredictions(OfEpoch):
    """A metric of three counts for each class: rows predicted correctly, rows predicted, rows of the class."""

    def _value(self, threshold: float | None, outputs: np.ndarray, targets: np.ndarray) -> float:
        return np.nan if _has_nan(outputs) else self._function(*_counts(outputs, targets, threshold))


class Named:
    """A user's metric, with the name and the mode given to `metric`."""

    def __init__(self, function: Metric, name: str, mode: str | None) -> None:
        functools.update_wrapper(self, function, updated=())
        self.__name__, self.mode = name, mode
        self._function = function

    def __call__(self, outputs: Any, targets: Any) -> float:
        return self._function(outputs, targets)


def metric(f: Metric, name: str | None = None, mode: str | None = None) -> Named:
    """Give your own metric a name and a mode: "max" if higher values are better, "min" if lower ones are.

    `fit` calls `f(outputs, targets)` once per epoch with all rows. It returns a number. Callbacks that monitor the
    metric need its mode. Without `name` the metric has the name of f.

    Raises TypeError if f is not callable, and ValueError for other modes.
    """
    if not callable(f):
        raise TypeError(f"metric: expected a callable (outputs, targets) -> float, got {f!r}")
    if mode not in ("min", "max", None):
        raise ValueError(f'metric: expected mode="min" or mode="max", got {mode!r}')
    if not isinstance(name, str | None):
        raise TypeError(f"metric: expected a name, got {name!r}")
    return Named(f, _name_of(f) if name is None else name, mode)


def number(name: str, value: Any) -> float:
    """Return the value of a user's metric as a float. Raise TypeError naming the metric if it is not a number."""
    with contextlib.suppress(TypeError, ValueError):
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "buif":
            return float(array.reshape(()))
        if not isinstance(value, str | bytes) and array.dtype == object and array.ndim == 0:
            return float(value)  # a Fraction, for example
    raise TypeError(f"the metric {name} returned {reprlib.repr(value)}; expected a number")


# ---- one score per row: where class 1 begins ------------------------------------------------------------------------


def threshold_of(loss: Any) -> float | None:
    """Return the score above which `loss.link` gives more than ½, or None if the loss does not define it."""
    if not hasattr(loss, "link"):
        return None

    def probability(score: float) -> float:
        return float(np.asarray(loss.link(np.array([[score]]))).reshape(-1)[0])

    try:
        with np.errstate(all="ignore"):
            for score in (0.0, 0.5):
                if probability(score) == 0.5:
                    return score
            low, high = -1e4, 1e4
            if not probability(low) <= 0.5 < probability(high):
                return None
            while low < (middle := (low + high) / 2) < high:
                low, high = (middle, high) if probability(middle) <= 0.5 else (low, middle)
            return low
    except (AttributeError, TypeError, ValueError, IndexError):  # the link takes something other than single scores
        return None


def warn_of_probabilities() -> None:
    """Warn that a metric of classes has taken outputs for probabilities."""
    warn(
        "metrics: all outputs are within 0 … 1, so they are taken for probabilities: class 1 is output > 0.5. If they "
        "are scores, use SigmoidLoss, or give your loss a method `link` that makes probabilities of scores"
    )


def assumed_threshold(scores: np.ndarray) -> tuple[float, bool]:
    """Guess the threshold of scores (n,), and return it with whether threshold 0 would give other predictions."""
    if len(scores) == 0 or not ((scores >= 0) & (scores <= 1)).all():
        return 0.0, False
    return 0.5, bool(((scores > 0) & (scores <= 0.5)).any())


def _has_nan(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and array.size > 0 and bool(np.isnan(array.max()))  # max gives NaN if any is NaN


# ---- shapes ---------------------------------------------------------------------------------------------------------


def check_shapes(metric: Any, outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    """Raise ValueError unless a metric of this module can take outputs and targets of these shapes."""
    check = _check_classes if metric is accuracy else metric._check
    check(metric.__name__, outputs, targets)


def takes_labels(metric: Any) -> bool:
    """Whether a metric takes one label for each row of outputs."""
    return metric is accuracy or (isinstance(metric, OfEpoch) and metric._check is not _check_values)


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


def _of(check: Callable[[str, tuple, tuple], None], kind: type[OfEpoch] = OfEpoch) -> Callable[..., OfEpoch]:
    return lambda function: kind(function, check)


def _flat(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return outputs (n, …, C) with labels (n, …) as one row (C,) per label. Return other outputs unchanged."""
    return outputs.reshape(-1, outputs.shape[-1]) if outputs.ndim == targets.ndim + 1 > 2 else outputs


# ---- classes: scores (n, …, C) or one per row, labels (n, …) ------------------------------------------------------


@_of(_check_classes, OfPredictions)
def precision(hits: np.ndarray, predicted: np.ndarray, there: np.ndarray) -> float:
    """The share of correct rows among the rows predicted as a class.

    With two classes it is class 1's share, with more the mean over classes that occur in predictions or labels. The
    prediction is the class with the largest score; with one score per row it is `accuracy`'s. The precision is 0 for a
    class that is never predicted. This is scikit-learn's `precision_score`.
    """
    return _share(hits, predicted)


@_of(_check_classes, OfPredictions)
def recall(hits: np.ndarray, predicted: np.ndarray, there: np.ndarray) -> float:
    """The share of a class's rows that are predicted as this class. See `precision` for classes and averages.

    The recall is 0 for a class without rows. This is scikit-learn's `recall_score`.
    """
    return _share(hits, there)


@_of(_check_classes, OfPredictions)
def f1(hits: np.ndarray, predicted: np.ndarray, there: np.ndarray) -> float:
    """The harmonic mean of a class's precision and recall, averaged as there. This is scikit-learn's `f1_score`."""
    return _share(2 * hits, predicted + there)


@_of(_check_classes)
def auc(outputs: np.ndarray, targets: np.ndarray) -> float:
    """The area under the ROC curve: how often a row of class 1 has a higher score than one of class 0. Ties count half.

    With two scores per row, their difference is the score. With more, it is the mean over the classes, each against the
    rest, by their probabilities: the softmax of the scores, unless all rows are probabilities already. The result is
    NaN if a class has no rows or a score is NaN. This is scikit-learn's `roc_auc_score` with `multi_class="ovr"`.
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

    Among equal scores, a later class counts as higher, as in scikit-learn's `top_k_accuracy_score`.
    """
    return _top_k(positive_integer("metrics: the k of top_k", k))


@functools.cache  # the same object for the same k, so that its recorded Program is found again
def _top_k(k: int) -> OfEpoch:
    def share(outputs: np.ndarray, targets: np.ndarray) -> float:
        if _has_nan(outputs):
            return np.nan
        highest = np.argsort(outputs, axis=1, kind="stable")[:, ::-1][:, :k]
        return float((highest == _labels(targets)[:, None]).any(axis=1).mean())

    def check(name: str, outputs: tuple, targets: tuple) -> None:
        if len(outputs) < 2 or targets != outputs[:-1]:
            raise ValueError(
                f"{name} got outputs of shape {outputs} and targets of shape {targets}; expected (n, …, C) and (n, …)"
            )

    share.__doc__ = top_k.__doc__
    return OfEpoch(share, check, f"top_k({k})")


def _predicted(outputs: np.ndarray, threshold: float | None) -> np.ndarray:
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        scores = outputs.reshape(-1)
        if threshold is None:
            threshold, matters = assumed_threshold(scores)
            if matters:
                warn_of_probabilities()
        return (scores > threshold).astype(np.int64)
    return outputs.argmax(axis=1)


def _labels(targets: np.ndarray) -> np.ndarray:
    """Return labels as int64. Raise ValueError for floats that are not whole numbers."""
    labels = targets.reshape(-1)
    if labels.dtype.kind == "f" and not (labels == np.floor(labels)).all():
        row = int((labels != np.floor(labels)).argmax())
        raise ValueError(f"expected labels, got {labels[row]} in row {row}")
    return labels.astype(np.int64)


def _counts(outputs: np.ndarray, targets: np.ndarray, threshold: float | None) -> tuple[np.ndarray, ...]:
    """Return three counts for each class in the average: rows predicted correctly, rows predicted, its rows."""
    labels, predicted = _labels(targets), _predicted(outputs, threshold)
    n, is_hit = len(labels), labels == predicted
    if outputs.ndim == 1 or outputs.shape[1] <= 2:
        return tuple([np.array([np.count_nonzero(a == 1)]) for a in (labels[is_hit], predicted, labels)])
    classes, places = np.unique(np.concatenate([labels, predicted]), return_inverse=True)
    return tuple([np.bincount(a, minlength=len(classes)) for a in (places[:n][is_hit], places[n:], places[:n])])


def _share(part: np.ndarray, whole: np.ndarray) -> float:
    return float(np.mean(np.where(whole > 0, part / np.maximum(whole, 1), 0)))


def _area(scores: np.ndarray, positive: np.ndarray) -> float:
    """Compute the area from ranks: H. Mann, D. Whitney, Annals of Mathematical Statistics 18(1), 1947."""
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if ones == 0 or zeros == 0 or np.isnan(scores).any():
        return np.nan
    _, which, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[which]  # equal scores share their mean rank
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
    """The mean over columns of √ mean (outputs − targets)². scikit-learn's `root_mean_squared_error`."""
    return float(np.mean(np.sqrt(np.mean(_differences(outputs, targets) ** 2, axis=0))))


@_of(_check_values)
def r2(outputs: np.ndarray, targets: np.ndarray) -> float:
    """The mean over columns of 1 − Σ (outputs − targets)² / Σ (targets − their mean)².

    If all targets of a column are equal, the column counts 1 if the outputs are right, else 0. The result is NaN for a
    single row. This is scikit-learn's `r2_score`.
    """
    if len(outputs) < 2:
        return np.nan
    columns = targets.reshape(len(targets), -1).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        residual = (_differences(outputs, targets) ** 2).sum(axis=0)
        total = ((columns - columns.sum(axis=0) / len(columns)) ** 2).sum(axis=0)
        is_constant = (total == 0) & ~np.isnan(residual)
        unexplained = np.where(is_constant, residual != 0, residual / total)
    return float((1 - unexplained).sum() / len(unexplained))


def _differences(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return outputs − targets in float64, (n, columns)."""
    rows = len(outputs)
    return outputs.reshape(rows, -1).astype(np.float64) - targets.reshape(rows, -1).astype(np.float64)


# ---- by name -----------------------------------------------------------------------------------------------------

NAMED: dict[str, Metric] = {
    "accuracy": accuracy,
    **{metric.__name__: metric for metric in (precision, recall, f1, auc, mse, mae, rmse, r2)},
}

MODES = {
    **dict.fromkeys(("accuracy", "top_k", "precision", "recall", "f1", "auc", "r2"), "max"),
    **dict.fromkeys(("loss", "mse", "mae", "rmse"), "min"),
}


def mode_of(name: str, metrics: Mapping[str, Metric]) -> str | None:
    """Return "max" if higher values of this name in the history are better, "min" if lower ones are.

    Return None for a user's metric without a mode.
    """
    name = name.removeprefix("val_")
    metric = metrics.get(name)
    return metric.mode if isinstance(metric, Named) else MODES.get(name.partition("(")[0])


def named(metrics: Iterable[str | Metric]) -> dict[str, Metric]:
    """Return metrics by their names in the history.

    Raise ValueError for an unknown name and for a name that occurs twice. Raise TypeError for anything that is not a
    list of names and callables.
    """
    if isinstance(metrics, str) or callable(metrics) or not isinstance(metrics, Iterable):
        raise TypeError(f"metrics: expected a list such as ['accuracy'], got {metrics!r}")
    result: dict[str, Metric] = {}
    for given in metrics:
        metric = _by_name(given) if isinstance(given, str) else given
        if not callable(metric):
            raise TypeError(f"metrics: expected a name such as 'accuracy' or a callable, got {metric!r}")
        name = _name_of(metric)
        if name in result or name == "loss":
            raise ValueError(f"metrics: the name {name!r} is taken")
        result[name] = metric
    return result


def _name_of(metric: Metric) -> str:
    return getattr(metric, "__name__", type(metric).__name__)


def _by_name(name: str) -> Metric:
    if name in NAMED:
        return NAMED[name]
    k = re.fullmatch(r"top_k\((\d+)\)", name)
    if k is None:
        raise ValueError(
            f"metrics: there are {', '.join(NAMED)}, top_k(k), got {name!r}; pass a callable for any other"
        )
    return top_k(int(k[1]))
