"""The objective of a training: the loss of a batch, and the metrics of batches and epochs."""

from __future__ import annotations

import functools
import inspect
from typing import Any, TypeGuard

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import flat_int64, in_shape_of
from caffelite.core.cautions import warn
from caffelite.core.function import Function
from caffelite.core.recording import call_python
from caffelite.core.tensor import Tensor
from caffelite.data.generator import Batch
from caffelite.functions.activation import Sigmoid, Softmax
from caffelite.functions.loss import Loss, Penalized, SigmoidLoss, SoftmaxLoss
from caffelite.functions.shape import reshaped
from caffelite.optimizers import TrainingDiverged
from caffelite.training.metrics import (
    Metric,
    OfEpoch,
    OfPredictions,
    accuracy,
    accuracy_above,
    assumed_threshold,
    check_shapes,
    number,
    takes_labels,
    threshold_of,
    warn_of_probabilities,
)


class Objective:
    """The loss of a batch as a function of the model's outputs, and the metrics.

    Kernels add up the loss and the accuracy, batch by batch. All other metrics are computed from the outputs and
    targets of a whole epoch.

    Parameters
    ----------
    loss : Function
    metrics : dict of Metric
        By name.
    warned_of : set of str
        The warnings that this model has already given.
    """

    def __init__(self, loss: Any, metrics: dict[str, Metric], warned_of: set[str]) -> None:
        self.loss, self.metrics, self.warned_of = loss, metrics, warned_of
        self.names = ["loss", *metrics]
        self.epoch_metrics = {name: metric for name, metric in metrics.items() if metric is not accuracy}
        self.counts_correct = len(self.epoch_metrics) < len(metrics)
        # With one score per row, class 1 is a score above this. None: the loss does not define it.
        self.threshold: float | None = 0.0
        if any(metric is accuracy or isinstance(metric, OfPredictions) for metric in metrics.values()):
            self.threshold = threshold_of(loss)
        self.has_warned = False  # whether it has warned that it took scores for probabilities
        # The sums: the loss, and the accuracy. If the threshold is not known, the accuracy has three: with threshold 0,
        # with ½, and how far scores are outside 0 … 1.
        self.quantities = 1 + self.counts_correct * (1 if self.threshold is not None else 3)

    # ---- of a batch ---------------------------------------------------------------------------------------------

    def __call__(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the loss of a batch. Raise TrainingDiverged unless it is finite."""
        value = self.of(outputs, batch)
        check_finite(value.data)
        return value

    def of(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the loss of a batch, finite or not."""
        self._warn_of_two_links(outputs)
        self._check(outputs, batch)
        weights = () if batch.weights is None else (batch.weights,)
        judged = self.judged(outputs, batch)
        if isinstance(self.loss, Loss | Penalized):
            self.applied = self.loss.copy()  # a call would make this copy: it knows its mean and weight
            self.value = self.applied.applied_to(judged, batch.targets, *weights)
        else:
            self.applied = self.loss
            self.value = self._of_own(judged, batch.targets, *weights)
        return self.value

    def judged(self, outputs: Any, batch: Batch) -> Any:
        """Return the model's outputs as the loss gets them."""
        return outputs

    def _check(self, outputs: Any, batch: Batch) -> None:
        """Raise ValueError if a metric cannot be computed from these outputs."""
        for name, metric in self.metrics.items():
            if isinstance(metric, OfEpoch) or metric is accuracy:
                if isinstance(outputs, tuple):
                    raise ValueError(f"the metric {name} takes one output; the model returned {len(outputs)}")
                shape = batch.targets.shape
                if takes_labels(metric) and self._are_probabilities(batch.targets):
                    shape = shape[:-1]
                check_shapes(metric, outputs.shape, shape)
            else:
                for shape in [x.shape for x in (outputs if isinstance(outputs, tuple) else (outputs,))]:
                    if shape[:1] != batch.targets.shape[:1]:
                        raise ValueError(
                            f"the metric {name} needs an output for each row; the model returned outputs of shape "
                            f"{shape} for {len(batch.targets)} rows"
                        )

    def _are_probabilities(self, targets: np.ndarray) -> bool:
        """Whether targets are probabilities of classes. Metrics that take labels get the most probable class."""
        is_softmax = isinstance(getattr(self.loss, "loss", self.loss), SoftmaxLoss)
        return is_softmax and targets.dtype.kind == "f" and targets.ndim > 1

    def _of_own(self, outputs: Any, targets: np.ndarray, *weights: np.ndarray) -> Tensor:
        """Return the value of a user's loss. Raise TypeError or ValueError unless it is a Tensor with one element.

        The loss gets targets (n,) as (n, 1) if the outputs are (n, 1). This warns if NumPy would broadcast outputs
        and targets to a larger array.
        """
        if isinstance(outputs, Tensor):
            targets = in_shape_of(targets, outputs.shape)
            if targets.dtype.kind == "f" and _would_grow(outputs.shape, targets.shape):
                self.warn_once(
                    f"the loss {self.loss!r} gets outputs of shape {outputs.shape} and targets of shape "
                    f"{targets.shape}: their difference is larger than either. Give the targets the outputs' shape"
                )
        value = self.loss(outputs, targets, *weights)
        if not isinstance(value, Tensor):
            raise TypeError(
                f"the loss {self.loss!r} has to return a Tensor, computed from the outputs by caffelite's functions; "
                f"got {type(value).__name__}"
            )
        if value.size != 1:
            raise ValueError(f"the loss {self.loss!r} has to return a single element, got shape {value.shape}")
        return value

    def _warn_of_two_links(self, outputs: Any) -> None:
        """Warn if the model ends with the softmax or sigmoid that its loss applies too: it would learn little."""
        last = outputs.function if isinstance(outputs, Tensor) else None
        for kind, of_loss in ((Softmax, SoftmaxLoss), (Sigmoid, SigmoidLoss)):
            if isinstance(last, kind) and isinstance(getattr(self.loss, "loss", self.loss), of_loss):
                self.warn_once(
                    f"{of_loss.__name__} takes scores: leave out {last!r} at the end; loss.link gives probabilities"
                )

    def warn_once(self, text: str) -> None:
        """Warn, unless this model has given the same warning before."""
        if text not in self.warned_of:
            self.warned_of.add(text)
            warn(text)

    def weights(self, batch: Batch) -> np.ndarray | None:
        """Return the weights by whose sum the last batch's mean was divided, or None if all rows counted equally."""
        known = _knows_what_counts(self.applied) and self.applied.weight is not None
        return self.applied.weight.reshape(1) if known else batch.weights  # type: ignore[attr-defined]

    def mean(self) -> np.ndarray:
        """Return the last loss without penalties, as a 0-d array."""
        return self.applied.value if _knows_what_counts(self.applied) else self.value.data  # type: ignore[return-value]

    def measure(self, cursor: np.ndarray, outputs: Any, batch: Batch) -> None:
        """Add the loss and the metrics of the last batch to the sums that the cursor points to."""
        y, rows, weights = batch.targets, len(batch.targets), self.weights(batch)
        if weights is None:
            kernels.add_mean(cursor, 0, self.mean(), rows)
        else:
            kernels.add_weighted_mean(cursor, 0, self.mean(), weights)
        if not self.counts_correct:
            return
        if self._are_probabilities(y):
            y = kernels.largest(y, -1)[1]
        if self.threshold is not None:
            self._add_correct(cursor, 1, outputs.data, y, self.threshold)
        elif outputs.size > y.size:  # scores of several classes
            self._add_correct(cursor, 1, outputs.data, y, 0.0)
        else:
            self._add_correct(cursor, 1, outputs.data, y, 0.0)
            self._add_correct(cursor, 2, outputs.data, y, 0.5)
            scores = reshaped(outputs.data, (y.size, 1))
            outside = kernels.mae_loss(scores, kernels.clip(scores, 0.0, 1.0))
            kernels.add_mean(cursor, 3, kernels.sum(outside), rows)

    def _add_correct(self, cursor: np.ndarray, slot: int, outputs: np.ndarray, y: np.ndarray, threshold: float) -> None:
        """Add the number of correct predictions in a batch to the sum at a slot."""
        if y.dtype.kind in "iu":
            scores = reshaped(outputs, (y.size, outputs.size // y.size))
            kernels.add_correct(cursor, slot, scores, flat_int64(y), getattr(self.loss, "ignore", None), threshold)
        else:
            share = call_python("accuracy", functools.partial(_accuracy_above, threshold), outputs, y)
            kernels.add_mean(cursor, slot, np.asarray(share), len(y))

    # ---- of an epoch --------------------------------------------------------------------------------------------

    def means(self, sums: np.ndarray) -> np.ndarray:
        """Return mean loss, and accuracy if requested, as one row per epoch, from sums (epochs, quantities, 2)."""
        found = means(sums)
        if found.shape[1] == 4:
            are_probabilities = found[:, 3] == 0
            self._warn_of_probabilities(bool((are_probabilities & (found[:, 1] != found[:, 2])).any()))
            found = np.column_stack([found[:, 0], np.where(are_probabilities, found[:, 2], found[:, 1])])
        return found

    def results(self, sums: np.ndarray, outputs: list[np.ndarray], targets: np.ndarray) -> np.ndarray:
        """Return loss and metrics of one epoch as a row, from its sums and all its outputs and targets."""
        values = dict(zip(["loss", "accuracy"], self.means(sums)[0].tolist(), strict=False))
        for name, metric in self.epoch_metrics.items():
            values[name] = self._of_rows(name, metric, outputs, targets) if len(targets) else np.nan
        return np.array([[values[name] for name in self.names]])

    def _of_rows(self, name: str, metric: Metric, outputs: list[np.ndarray], targets: np.ndarray) -> float:
        """Return a metric of all rows. A user's metric gets copies, so it may change them."""
        if not isinstance(metric, OfEpoch):
            given = [x.copy() for x in outputs]
            if len(given) > 1:
                return number(name, metric(tuple(given), targets.copy()))  # type: ignore[arg-type]
            return number(name, metric(given[0], in_shape_of(targets, given[0].shape).copy()))
        (scores,), ignore, threshold = outputs, getattr(self.loss, "ignore", None), self.threshold
        if takes_labels(metric) and self._are_probabilities(targets):
            targets = targets.argmax(axis=-1)
        if ignore is not None and targets.shape == scores.shape[:-1]:
            scores, targets = scores[targets != ignore], targets[targets != ignore]
            if len(targets) == 0:
                return np.nan
        if threshold is None and isinstance(metric, OfPredictions) and scores.size == targets.size:
            threshold, matters = assumed_threshold(scores.reshape(-1))
            self._warn_of_probabilities(matters)
        return metric.above(threshold, scores, targets)

    def _warn_of_probabilities(self, matters: bool) -> None:
        """Warn once that scores were taken for probabilities, if this matters."""
        if matters and not self.has_warned:
            self.has_warned = True
            warn_of_probabilities()


def check_finite(value: np.ndarray) -> None:
    """Raise TrainingDiverged unless all elements are finite. `value` is usually a loss."""

    def diverged(value: np.ndarray) -> None:
        raise TrainingDiverged(f"the loss is {value.item()}")

    kernels.all_finite(value, diverged)


def means(sums: np.ndarray) -> np.ndarray:
    """Return the means, one row per epoch, of sums (epochs, quantities, 2). A mean without weights is NaN."""
    totals, weights = sums[:, :, 0], sums[:, :, 1]
    if np.count_nonzero(weights) == weights.size:
        return totals / weights
    return np.divide(totals, weights, out=np.full_like(totals, np.nan), where=weights > 0)


def check_takes_weights(loss: Any) -> None:
    """Raise TypeError unless the loss can be called with weights as a third input."""
    called = loss.decider()
    try:
        inspect.signature(called).bind(None, None, None)
    except TypeError:
        name = getattr(called, "__name__", "it")
        raise TypeError(f"{loss!r} takes no weights: its {name} has to be {name}(outputs, targets, weights)") from None


def _knows_what_counts(loss: Function) -> TypeGuard[Loss | Penalized]:
    """Whether an applied loss knows its mean without penalties and its sum of weights."""
    return isinstance(loss, Loss | Penalized) and not loss.runs_in_python


def _would_grow(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether NumPy would broadcast arrays of these shapes to a shape larger than both."""
    try:
        both = np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return both not in (a, b)


def _accuracy_above(threshold: float, outputs: np.ndarray, targets: np.ndarray) -> np.float64:
    return np.float64(accuracy_above(threshold, outputs, targets))
