"""The base of the metrics, metrics by name, and whether higher values of them are better."""

from __future__ import annotations

import contextlib
import functools
import re
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from caffelite.core.arrays import as_array
from caffelite.functions.losses.function_loss import check_argument_order

Metric = Callable[[np.ndarray, np.ndarray], float]

METRICS: dict[str, EpochMetric] = {}  # by name
FACTORIES: dict[str, Callable[[int], EpochMetric]] = {}  # by name: `top_k` makes the metric "top_k(3)"


class EpochMetric(ABC):
    """A metric of all rows of an epoch. `mode` is "max" if higher values are better, otherwise "min"."""

    def __init__(self, function: Callable[..., float], mode: str = "max", name: str = "") -> None:
        functools.update_wrapper(self, function)
        self.__name__ = name or function.__name__
        self._function, self.mode = function, mode

    def __call__(self, outputs: Any, targets: Any) -> float:
        return self.compute(None, outputs, targets)

    def __reduce__(self) -> str:
        return self.__name__

    def compute(self, threshold: float | None, outputs: Any, targets: Any, link: Any = None) -> float:
        """Return the metric with a threshold: with one score per row, class 1 is score > threshold. None: guess it.

        `link` makes probabilities of outputs, for a metric that needs them.
        """
        outputs, targets = as_array(outputs, "outputs"), as_array(targets, "targets")
        self.check(self.__name__, outputs.shape, targets.shape)
        return float(self._compute(threshold, outputs, targets, link))

    @abstractmethod
    def check(self, name: str, outputs: tuple[int, ...], targets: tuple[int, ...], multilabel: bool = True) -> None:
        """Raise ValueError, with this name, unless the metric can take outputs and targets of these shapes.

        `multilabel` is whether a row may have several labels; the loss decides this for each output.
        """

    def _compute(self, threshold: float | None, outputs: np.ndarray, targets: np.ndarray, link: Any) -> float:
        return self._function(outputs, targets)


def register(metric_class: Callable[..., EpochMetric], **options: Any) -> Callable[[Callable[..., float]], EpochMetric]:
    """Make a metric of a function, and add it to the metrics by name."""

    def decorate(function: Callable[..., float]) -> EpochMetric:
        metric = METRICS[function.__name__] = metric_class(function, **options)
        return metric

    return decorate


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

    `fit` calls `f(outputs, targets)` once per epoch with all rows; f returns a number. Callbacks that monitor the
    metric need its mode. Without `name`, the metric has the name of f.

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


# ---- by name --------------------------------------------------------------------------------------------------------


def find_mode(name: str, metrics: Mapping[str, Metric | OutputMetric]) -> str | None:
    """Return "max" if higher values of this name in the history are better, "min" if lower ones are.

    Return None for a user's metric without a mode.
    """
    name = name.removeprefix("val_")
    metric = metrics.get(name)
    if isinstance(metric, OutputMetric):
        metric = metric.metric
        name = _metric_name(metric)
    if name == "loss" or (metric is None and re.fullmatch(r"loss_\d+", name)):
        return "min"
    return getattr(metric if isinstance(metric, NamedMetric | EpochMetric) else _lookup(name), "mode", None)


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


def _metric_name(function: Metric) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _find_metric(name: str) -> Metric:
    metric = _lookup(name)
    if metric is None:
        from caffelite._support.hints import did_you_mean  # only for errors

        names = ", ".join([*METRICS, *[f"{factory}(k)" for factory in FACTORIES]])
        hint = did_you_mean(name.lower(), METRICS) or "; pass a callable for any other"
        raise ValueError(f"metrics: there are {names}, got {name!r}{hint}")
    return metric


def _lookup(name: str) -> EpochMetric | None:
    call = re.fullmatch(r"(\w+)\((\d+)\)", name)
    return FACTORIES[call[1]](int(call[2])) if call is not None and call[1] in FACTORIES else METRICS.get(name)
