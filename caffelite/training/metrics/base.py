"""Metrics by name, and how each is computed from the outputs and targets of an epoch."""

from __future__ import annotations

import contextlib
import functools
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.warnings import warn
from caffelite.core.arrays import check_positive_integer
from caffelite.functions.losses.function_loss import check_argument_order
from caffelite.training.metrics.classification import (
    class_counts,
    has_nan,
    has_single_score,
    is_multilabel,
    mean_log_loss,
    mean_over_classes,
    mean_ratio,
    precision_recall_area,
    roc_area,
    row_accuracy,
    to_labels,
    to_probabilities,
)

Metric = Callable[[np.ndarray, np.ndarray], float]


def accuracy(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the share of labels that have the largest output: outputs (n, …, C), targets (n, …) integers.

    With one score per row, (n,) or (n, 1), class 1 is score > 0, or > ½ if all scores are within 0 … 1. With several
    labels per row, (n, C) of 0 and 1, a row is right if all its labels are. Raise ValueError for other shapes.
    """
    return thresholded_accuracy(None, outputs, targets)


def thresholded_accuracy(threshold: float | None, outputs: Any, targets: Any) -> float:
    """`accuracy` with a threshold: with one score per row, class 1 is score > threshold. None: guess it from scores."""
    outputs, targets = np.asarray(outputs), np.asarray(targets)
    check_shapes(accuracy, outputs.shape, targets.shape)
    if has_nan(outputs) or has_nan(targets):
        return np.nan
    outputs = _flatten(outputs, targets)
    return row_accuracy(outputs, targets, _resolve_threshold(threshold, outputs, targets))


class EpochMetric:
    """A metric of all rows of an epoch. `check(name, outputs' shape, targets' shape)` raises ValueError."""

    def __init__(
        self, function: Callable[..., float], check: Callable[[str, tuple, tuple], None], name: str = ""
    ) -> None:
        functools.update_wrapper(self, function)
        self.__name__ = name or function.__name__
        self._function, self._check = function, check

    def __call__(self, outputs: Any, targets: Any) -> float:
        return self.compute(None, outputs, targets)

    def compute(self, threshold: float | None, outputs: Any, targets: Any, link: Any = None) -> float:
        """Return the metric with a threshold: with one score per row, class 1 is score > threshold. None: guess it.

        `link` makes probabilities of outputs, for a metric that needs them.
        """
        outputs, targets = np.asarray(outputs), np.asarray(targets)
        check_shapes(self, outputs.shape, targets.shape)
        outputs = _flatten(outputs, targets) if takes_labels(self) else outputs
        return float(self._compute(threshold, outputs, targets, link))

    def _compute(self, threshold: float | None, outputs: np.ndarray, targets: np.ndarray, link: Any) -> float:
        return self._function(outputs, targets)


class CountMetric(EpochMetric):
    """A metric of three counts for each class: rows predicted correctly, rows predicted, rows of the class.

    Of two classes only class 1 counts, unless `all_classes`.
    """

    all_classes = False

    def _compute(self, threshold: float | None, outputs: np.ndarray, targets: np.ndarray, link: Any) -> float:
        if has_nan(outputs):
            return np.nan
        return self._function(
            *class_counts(outputs, targets, _resolve_threshold(threshold, outputs, targets), self.all_classes)
        )


class AllClassesMetric(CountMetric):
    """A metric of the counts of all classes."""

    all_classes = True


class ProbabilityMetric(EpochMetric):
    """A metric of predictions and targets."""

    def _compute(self, threshold: float | None, outputs: np.ndarray, targets: np.ndarray, link: Any) -> float:
        if has_nan(outputs):
            return np.nan
        p = to_probabilities(outputs, link, is_multilabel(outputs.shape, targets.shape))
        return np.nan if has_nan(p) else self._function(p, targets)


class OutputMetric(NamedTuple):
    """A metric of one output of a model and its target: output number `output` of `outputs`."""

    metric: Metric
    output: int
    outputs: int


class NamedMetric:
    """A user's metric, with the name and the mode given to `metric`."""

    def __init__(self, function: Metric, name: str, mode: str | None) -> None:
        functools.update_wrapper(self, function, updated=())
        self.__name__, self.mode = name, mode
        self._function = function

    def __call__(self, outputs: Any, targets: Any) -> float:
        return self._function(outputs, targets)


def metric(f: Metric, name: str | None = None, mode: str | None = None) -> NamedMetric:
    """Give your own metric a name and a mode: "max" if higher values are better, "min" if lower ones are.

    `fit` calls `f(outputs, targets)` once per epoch with all rows. It returns a number. Callbacks that monitor the
    metric need its mode. Without `name` the metric has the name of f.

    Raise TypeError if f is not callable, and ValueError for other modes.
    """
    if not callable(f):
        raise TypeError(f"metric: expected a callable (outputs, targets) -> float, got {f!r}")
    if mode not in ("min", "max", None):
        raise ValueError(f'metric: expected mode="min" or mode="max", got {mode!r}')
    if not isinstance(name, str | None):
        raise TypeError(f"metric: expected a name, got {name!r}")
    return NamedMetric(f, _metric_name(f) if name is None else name, mode)


def to_number(name: str, value: Any) -> float:
    """Return the value of a user's metric as a float. Raise TypeError naming the metric if it is not a number."""
    with contextlib.suppress(TypeError, ValueError):
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "buif":
            return float(array.reshape(()))
        if not isinstance(value, str | bytes) and array.dtype == object and array.ndim == 0:
            return float(value)  # a Fraction, for example
    raise TypeError(f"the metric {name} returned {reprlib.repr(value)}; expected a number")


# ---- one score per row: where class 1 begins ------------------------------------------------------------------------


def find_threshold(loss: Any) -> float | None:
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


def find_link(loss: Any) -> Any:
    """Return `loss.link`, or None if the loss has none."""
    return loss.link if hasattr(getattr(loss, "loss", loss), "link") else None


def warn_of_probabilities() -> None:
    """Warn that a metric of classes has taken outputs for probabilities."""
    warn(
        "metrics: all outputs are within 0 … 1, so they count as probabilities: class 1 is output > 0.5. If they "
        "are scores, use SigmoidLoss, or give your loss a method `link` that makes probabilities of scores"
    )


def guess_threshold(scores: np.ndarray) -> tuple[float, bool]:
    """Guess the threshold of scores (n,), and return it with whether threshold 0 would give other predictions."""
    if len(scores) == 0 or not ((scores >= 0) & (scores <= 1)).all():
        return 0.0, False
    return 0.5, bool(((scores > 0) & (scores <= 0.5)).any())


def _resolve_threshold(threshold: float | None, outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the threshold. If it is None and matters, guess it from the scores, and warn of a guess."""
    if threshold is None and outputs.size == targets.size:
        threshold, matters = guess_threshold(outputs.reshape(-1))
        if matters:
            warn_of_probabilities()
    return threshold or 0.0


# ---- shapes ---------------------------------------------------------------------------------------------------------


def check_shapes(
    metric: Any, outputs: tuple[int, ...], targets: tuple[int, ...], name: str = "", multilabel: bool = True
) -> None:
    """Raise ValueError, with a metric's name, unless it can take outputs and targets of these shapes.

    `multilabel` is whether a row may have several labels: the loss decides about each output by itself.
    """
    check = _check_classes if metric is accuracy else metric._check
    check = _check_labels if check is _check_classes and not multilabel else check
    check(name or metric.__name__, outputs, targets)


def takes_labels(metric: Any) -> bool:
    """Whether a metric takes one label for each row of outputs."""
    return metric is accuracy or (isinstance(metric, EpochMetric) and metric._check is not _check_values)


def _check_classes(name: str, outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    if not is_multilabel(outputs, targets):
        _check_labels(name, outputs, targets)


def _check_labels(name: str, outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    one_score = len(outputs) == 1 or outputs[1:] == (1,)
    has_row_labels = one_score and targets in (outputs[:1], (*outputs[:1], 1))
    if not has_row_labels and not (len(outputs) > 1 and targets == outputs[:-1]):
        one_hot = ": of rows that are one-hot or probabilities, y.argmax(axis=1)" * (len(outputs) == 2 == len(targets))
        raise ValueError(
            f"{name} got outputs of shape {outputs} and targets of shape {targets}; "
            f"expected scores (n, …, C) and labels (n, …), or one score a row{one_hot}"
        )


def _check_values(name: str, outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    single = [shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape for shape in (outputs, targets)]
    if not outputs or single[0] != single[1] or len(targets) > max(len(outputs), 2):
        raise ValueError(f"{name} got outputs of shape {outputs} and targets of shape {targets}; expected the same")


def _epoch_metric(
    check: Callable[[str, tuple, tuple], None], metric_class: type[EpochMetric] = EpochMetric
) -> Callable[..., EpochMetric]:
    return lambda function: metric_class(function, check)


def _flatten(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return outputs (n, …, C) with labels (n, …) as one row (C,) per label. Return other outputs unchanged."""
    return outputs.reshape(-1, outputs.shape[-1]) if outputs.ndim == targets.ndim + 1 > 2 else outputs


# ---- classes: scores (n, …, C) or one per row, labels (n, …) ------------------------------------------------------


@_epoch_metric(_check_classes, CountMetric)
def precision(hits: np.ndarray, predicted: np.ndarray, support: np.ndarray) -> float:
    """Return the share of correct rows among the rows predicted as a class.

    With two classes it is the share of class 1. With more classes it is the mean over the classes that occur in
    predictions or labels. With several labels per row it is the mean over the labels. The prediction is the class with
    the largest score; with one score per row it is as in `accuracy`. The precision is 0 for a class that is never
    predicted. This is scikit-learn's `precision_score`.
    """
    return mean_ratio(hits, predicted)


@_epoch_metric(_check_classes, CountMetric)
def recall(hits: np.ndarray, predicted: np.ndarray, support: np.ndarray) -> float:
    """Return the share of a class's rows that are predicted as this class. See `precision` for classes and averages.

    The recall is 0 for a class without rows. This is scikit-learn's `recall_score`.
    """
    return mean_ratio(hits, support)


@_epoch_metric(_check_classes, CountMetric)
def f1(hits: np.ndarray, predicted: np.ndarray, support: np.ndarray) -> float:
    """Return the harmonic mean of a class's precision and recall, averaged as there: scikit-learn's `f1_score`."""
    return mean_ratio(2 * hits, predicted + support)


@_epoch_metric(_check_labels, AllClassesMetric)
def balanced_accuracy(hits: np.ndarray, predicted: np.ndarray, support: np.ndarray) -> float:
    """Return the mean over the classes that occur in the labels of their recall; see `precision` for predictions.

    This is scikit-learn's `balanced_accuracy_score`.
    """
    return mean_ratio(hits[support > 0], support[support > 0])


@_epoch_metric(_check_labels, AllClassesMetric)
def matthews(hits: np.ndarray, predicted: np.ndarray, support: np.ndarray) -> float:
    """Return the correlation of predictions and labels, −1 … 1; 0 if all predictions, or all labels, are one class.

    With c = Σ hits, n rows, and the counts p of predictions and t of labels for each class, it is
    (c n − Σ p t) / √((n² − Σ p²) (n² − Σ t²)). See `precision` for predictions. This is scikit-learn's
    `matthews_corrcoef`.

    B. Matthews, Biochimica et Biophysica Acta 405, 1975; J. Gorodkin, Computational Biology and Chemistry 28, 2004.
    """
    c, p, t = float(hits.sum()), predicted.astype(np.float64), support.astype(np.float64)
    n = t.sum()
    spread = (n * n - p @ p) * (n * n - t @ t)
    return float((c * n - p @ t) / np.sqrt(spread)) if spread > 0 else 0.0


@_epoch_metric(_check_classes, ProbabilityMetric)
def auc(p: np.ndarray, targets: np.ndarray) -> float:
    """Return the area under the ROC curve: how often a row of class 1 has a higher score than one of class 0. Ties
    count half.

    With two scores per row, it is of the probabilities of class 1. With more, it is the mean over the classes, each
    against the rest. The probabilities are `loss.link` of the outputs. Without a link, they are the softmax of the
    scores, unless all rows are probabilities already. With several labels per row it is the mean over the labels. The
    result is NaN if a class has no rows or a score is NaN. This is scikit-learn's `roc_auc_score` with
    `multi_class="ovr"`.
    """
    return mean_over_classes(roc_area, p, targets)


@_epoch_metric(_check_classes, ProbabilityMetric)
def average_precision(p: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean precision over the rows of class 1, each as the last one that is predicted as class 1.

    For probabilities, classes and several labels see `auc`. The result is 0 for a class without rows. This is
    scikit-learn's `average_precision_score`.
    """
    return mean_over_classes(precision_recall_area, p, targets)


@_epoch_metric(_check_labels, ProbabilityMetric)
def log_loss(p: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean of −log p, p the probability of a row's label, which counts as at least 2⁻⁵² and at most 1 −
    2⁻⁵².

    For probabilities see `auc`. With one score per row, scores that are not all within 0 … 1 become probabilities by
    the sigmoid. This is scikit-learn's `log_loss`.
    """
    if has_single_score(p) and not ((p >= 0) & (p <= 1)).all():
        p = kernels.sigmoid(p)
    return mean_log_loss(p, targets)


def top_k(k: int) -> EpochMetric:
    """Return the share of labels that are among the k highest scores: scores (n, …, C). By name: "top_k(3)".

    Among equal scores, a later class counts as higher, as in scikit-learn's `top_k_accuracy_score`.
    """
    return _top_k(check_positive_integer("metrics: the k of top_k", k))


@functools.cache  # the same object for the same k: its recorded Program is found again
def _top_k(k: int) -> EpochMetric:
    def share(outputs: np.ndarray, targets: np.ndarray) -> float:
        if has_nan(outputs):
            return np.nan
        highest = np.argsort(outputs, axis=1, kind="stable")[:, ::-1][:, :k]
        return float((highest == to_labels(targets)[:, None]).any(axis=1).mean())

    def check(name: str, outputs: tuple, targets: tuple) -> None:
        if len(outputs) < 2 or targets != outputs[:-1]:
            raise ValueError(
                f"{name} got outputs of shape {outputs} and targets of shape {targets}; expected (n, …, C) and (n, …)"
            )

    share.__doc__ = top_k.__doc__
    return EpochMetric(share, check, f"top_k({k})")


# ---- values: outputs and targets of one shape, (n, …) ------------------------------------------------------------


@_epoch_metric(_check_values)
def mse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean of (outputs − targets)². scikit-learn's `mean_squared_error`."""
    return float(np.mean(_differences(outputs, targets) ** 2))


@_epoch_metric(_check_values)
def mae(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean of |outputs − targets|. scikit-learn's `mean_absolute_error`."""
    return float(np.mean(np.abs(_differences(outputs, targets))))


@_epoch_metric(_check_values)
def mape(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean of |outputs − targets| / |targets|: 0.1 is ten percent. scikit-learn's
    `mean_absolute_percentage_error`.

    A target of 0 counts as 2⁻⁵², which makes the result very large.
    """
    sizes = np.abs(targets.reshape(len(targets), -1).astype(np.float64))
    return float(np.mean(np.abs(_differences(outputs, targets)) / np.maximum(sizes, np.finfo(np.float64).eps)))


@_epoch_metric(_check_values)
def rmse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean over columns of √ mean (outputs − targets)². scikit-learn's `root_mean_squared_error`."""
    return float(np.mean(np.sqrt(np.mean(_differences(outputs, targets) ** 2, axis=0))))


@_epoch_metric(_check_values)
def r2(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean over columns of 1 − Σ (outputs − targets)² / Σ (targets − their mean)².

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

CLASS_METRICS = (precision, recall, f1, balanced_accuracy, matthews, auc, average_precision, log_loss)
VALUE_METRICS = (mse, mae, mape, rmse, r2)

METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    **{metric.__name__: metric for metric in CLASS_METRICS + VALUE_METRICS},
}

MODES = {
    **dict.fromkeys([*METRICS, "top_k"], "max"),
    **dict.fromkeys(("loss", "log_loss", "mse", "mae", "mape", "rmse"), "min"),
}


def find_mode(name: str, metrics: Mapping[str, Metric | OutputMetric]) -> str | None:
    """Return "max" if higher values of this name in the history are better, "min" if lower ones are.

    Return None for a user's metric without a mode.
    """
    name = name.removeprefix("val_")
    metric = metrics.get(name)
    if isinstance(metric, OutputMetric):
        metric = metric.metric
        name = _metric_name(metric)
    elif metric is None and re.fullmatch(r"loss_\d+", name):
        name = "loss"
    return metric.mode if isinstance(metric, NamedMetric) else MODES.get(name.partition("(")[0])


def resolve_metrics(metrics: Iterable[Any]) -> dict[str, Metric | OutputMetric]:
    """Return metrics by their names in the history. With a list for each output, names are `accuracy_0`, `mae_1`, ….

    Raise ValueError for an unknown name and for a name that occurs twice. Raise TypeError for anything that is not a
    list of names and callables, or a list of such lists.
    """
    if isinstance(metrics, str) or callable(metrics) or not isinstance(metrics, Iterable):
        raise TypeError(f"metrics: expected a list such as ['accuracy'], got {metrics!r}")
    entries = list(metrics)
    if not any(isinstance(entry, list | tuple) for entry in entries):
        return dict(_resolve_list(entries))
    if not all(isinstance(entry, list | tuple) for entry in entries):
        raise TypeError(f"metrics: expected a list for each output, such as (['accuracy'], ['mae']), got {metrics!r}")
    by_output = [_resolve_list(entry) for entry in entries]
    return {
        f"{name}_{i}": OutputMetric(metric, i, len(entries))
        for i, entry in enumerate(by_output)
        for name, metric in entry.items()
    }


def _resolve_list(metrics: Iterable[str | Metric]) -> dict[str, Metric]:
    result: dict[str, Metric] = {}
    for entry in metrics:
        metric = _find_metric(entry) if isinstance(entry, str) else entry
        if not callable(metric):
            raise TypeError(f"metrics: expected a name such as 'accuracy' or a callable, got {metric!r}")
        check_argument_order("metrics", metric)
        name = _metric_name(metric)
        if name in result or name == "loss":
            raise ValueError(f"metrics: the name {name!r} is taken")
        result[name] = metric
    return result


def _metric_name(metric: Metric) -> str:
    return getattr(metric, "__name__", type(metric).__name__)


def _find_metric(name: str) -> Metric:
    if name in METRICS:
        return METRICS[name]
    k = re.fullmatch(r"top_k\((\d+)\)", name)
    if k is None:
        from caffelite._support.hints import did_you_mean  # only for errors

        hint = did_you_mean(name.lower(), METRICS) or "; pass a callable for any other"
        raise ValueError(f"metrics: there are {', '.join(METRICS)}, top_k(k), got {name!r}{hint}")
    return top_k(int(k[1]))
