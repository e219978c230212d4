"""Metrics: callables (outputs, targets) -> float.

A metric is computed once an epoch, with NumPy, from the outputs and targets of all its rows, which a kernel of the step
has put one behind the other. So the step calls no Python for it, and the result is that of scikit-learn's function on
the whole epoch. `accuracy` alone needs no rows: a kernel of the step counts.

If there is one score a row, the loss says which scores mean class 1: those where `loss.link` gives more than ½. If
nobody says, scores that are all within 0 … 1 are taken for probabilities, else class 1 is score > 0.

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
    """The share of labels at which the largest output is: outputs (n, …, C), targets (n, …) integers.

    With one score a row, (n,) or (n, 1), class 1 is score > 0, or > ½ if all are within 0 … 1. Raises ValueError for
    other shapes.
    """
    return accuracy_above(None, outputs, targets)


def accuracy_above(threshold: float | None, outputs: Any, targets: Any) -> float:
    """`accuracy` where, with one score a row, class 1 is score > threshold. None: as the scores look."""
    outputs, targets = np.asarray(outputs), np.asarray(targets)
    check_shapes(accuracy, outputs.shape, targets.shape)
    if _has_nan(outputs) or _has_nan(targets):
        return np.nan
    return float((_predicted(_flat(outputs, targets), threshold) == targets.reshape(-1)).mean())


class OfEpoch:
    """A metric of all rows of an epoch together; `check(name, outputs' shape, targets' shape)` raises ValueError."""

    def __init__(
        self, function: Callable[..., float], check: Callable[[str, tuple, tuple], None], name: str = ""
    ) -> None:
        functools.update_wrapper(self, function)
        self.__name__ = name or function.__name__
        self._function, self._check = function, check

    def __call__(self, outputs: Any, targets: Any) -> float:
        return self.above(None, outputs, targets)

    def above(self, threshold: float | None, outputs: Any, targets: Any) -> float:
        """The metric where, with one score a row, class 1 is score > threshold. None: as the scores look."""
        outputs, targets = np.asarray(outputs), np.asarray(targets)
        check_shapes(self, outputs.shape, targets.shape)
        return float(self._value(threshold, _flat(outputs, targets), targets))

    def _value(self, threshold: float | None, outputs: np.ndarray, targets: np.ndarray) -> float:
        return self._function(outputs, targets)


class OfPredictions(OfEpoch):
    """A metric of how many rows of each class are predicted rightly, are predicted, and are there."""

    def _value(self, threshold: float | None, outputs: np.ndarray, targets: np.ndarray) -> float:
        return np.nan if _has_nan(outputs) else self._function(*_counts(outputs, targets, threshold))


class Named:
    """A metric of a user's, with the name and the mode that `metric` was given."""

    def __init__(self, function: Metric, name: str, mode: str | None) -> None:
        functools.update_wrapper(self, function, updated=())
        self.__name__, self.mode = name, mode
        self._function = function

    def __call__(self, outputs: Any, targets: Any) -> float:
        return self._function(outputs, targets)


def metric(f: Metric, name: str | None = None, mode: str | None = None) -> Named:
    """A metric of your own with a name and a mode: "max" if higher values are better, "min" if lower ones are.

    `f(outputs, targets)` is called once an epoch with all rows and returns a number. Callbacks that monitor it ask for
    its mode. Without `name` it is called as f is.

    Raises TypeError if f is not callable, ValueError for other modes.
    """
    if not callable(f):
        raise TypeError(f"metric: expected a callable (outputs, targets) -> float, got {f!r}")
    if mode not in ("min", "max", None):
        raise ValueError(f'metric: expected mode="min" or mode="max", got {mode!r}')
    if not isinstance(name, str | None):
        raise TypeError(f"metric: expected a name, got {name!r}")
    return Named(f, _name_of(f) if name is None else name, mode)


def number(name: str, value: Any) -> float:
    """What a user's metric has returned, as a float; TypeError naming the metric unless it is a number."""
    with contextlib.suppress(TypeError, ValueError):
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "buif":
            return float(array.reshape(()))
        if not isinstance(value, str | bytes) and array.dtype == object and array.ndim == 0:
            return float(value)  # a Fraction, say
    raise TypeError(f"the metric {name} returned {reprlib.repr(value)}; expected a number")


# ---- what one score a row means -------------------------------------------------------------------------------------


def threshold_of(loss: Any) -> float | None:
    """The score above which `loss.link` gives more than ½; None if the loss does not say."""
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
    except (AttributeError, TypeError, ValueError, IndexError):  # a link of something else than single scores
        return None


def warn_of_probabilities() -> None:
    """Warn that a metric of classes has taken outputs for probabilities."""
    warn(
        "metrics: all outputs are within 0 … 1, so they are taken for probabilities: class 1 is output > 0.5. If they "
        "are scores, use SigmoidLoss, or give your loss a method `link` that makes probabilities of scores"
    )


def assumed_threshold(scores: np.ndarray) -> tuple[float, bool]:
    """The threshold of scores (n,) of which nobody has said what they mean, and whether 0 would have been another."""
    if len(scores) == 0 or not ((scores >= 0) & (scores <= 1)).all():
        return 0.0, False
    return 0.5, bool(((scores > 0) & (scores <= 0.5)).any())


def _has_nan(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and array.size > 0 and bool(np.isnan(array.max()))  # which is NaN if one is


# ---- shapes ---------------------------------------------------------------------------------------------------------


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


def _of(check: Callable[[str, tuple, tuple], None], kind: type[OfEpoch] = OfEpoch) -> Callable[..., OfEpoch]:
    return lambda function: kind(function, check)


def _flat(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Outputs (n, …, C) with labels (n, …) as one row (C,) for each label; others as they are."""
    return outputs.reshape(-1, outputs.shape[-1]) if outputs.ndim == targets.ndim + 1 > 2 else outputs


# ---- classes: scores (n, …, C) or one a row, labels (n, …) --------------------------------------------------------


@_of(_check_classes, OfPredictions)
def precision(hits: np.ndarray, predicted: np.ndarray, there: np.ndarray) -> float:
    """Of the rows predicted to be of a class, the share that are: class 1 of two, the mean over classes of more.

    The prediction is the largest score's class; one score a row is judged as by `accuracy`. Classes are those that
    occur in predictions or labels. 0 where nothing is predicted to be of the class. scikit-learn's `precision_score`.
    """
    return _share(hits, predicted)


@_of(_check_classes, OfPredictions)
def recall(hits: np.ndarray, predicted: np.ndarray, there: np.ndarray) -> float:
    """Of the rows of a class, the share that are predicted to be: classes and averages as in `precision`.

    0 where there is no row of the class. scikit-learn's `recall_score`.
    """
    return _share(hits, there)


@_of(_check_classes, OfPredictions)
def f1(hits: np.ndarray, predicted: np.ndarray, there: np.ndarray) -> float:
    """The harmonic mean of a class's precision and recall; classes and averages as there. scikit-learn's `f1_score`."""
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
    """Labels as int64; ValueError for floats that are no whole numbers."""
    labels = targets.reshape(-1)
    if labels.dtype.kind == "f" and not (labels == np.floor(labels)).all():
        row = int((labels != np.floor(labels)).argmax())
        raise ValueError(f"expected labels, got {labels[row]} in row {row}")
    return labels.astype(np.int64)


def _counts(outputs: np.ndarray, targets: np.ndarray, threshold: float | None) -> tuple[np.ndarray, ...]:
    """For each class that is averaged over: rows predicted rightly, rows predicted, rows there."""
    labels, predicted = _labels(targets), _predicted(outputs, threshold)
    n, is_hit = len(labels), labels == predicted
    if outputs.ndim == 1 or outputs.shape[1] <= 2:
        return tuple([np.array([np.count_nonzero(a == 1)]) for a in (labels[is_hit], predicted, labels)])
    classes, places = np.unique(np.concatenate([labels, predicted]), return_inverse=True)
    return tuple([np.bincount(a, minlength=len(classes)) for a in (places[:n][is_hit], places[n:], places[:n])])


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
    with np.errstate(divide="ignore", invalid="ignore"):
        residual = (_differences(outputs, targets) ** 2).sum(axis=0)
        total = ((columns - columns.sum(axis=0) / len(columns)) ** 2).sum(axis=0)
        is_constant = (total == 0) & ~np.isnan(residual)
        unexplained = np.where(is_constant, residual != 0, residual / total)
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

MODES = {
    **dict.fromkeys(("accuracy", "top_k", "precision", "recall", "f1", "auc", "r2"), "max"),
    **dict.fromkeys(("loss", "mse", "mae", "rmse"), "min"),
}


def mode_of(name: str, metrics: Mapping[str, Metric]) -> str | None:
    """ "max" if what the history has under this name is the better the higher it is, "min" if the lower.

    None for a metric of a user's that does not say.
    """
    name = name.removeprefix("val_")
    metric = metrics.get(name)
    return metric.mode if isinstance(metric, Named) else MODES.get(name.partition("(")[0])


def named(metrics: Iterable[str | Metric]) -> dict[str, Metric]:
    """Metrics by their names in the history; ValueError for an unknown name or one taken twice, TypeError otherwise."""
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
