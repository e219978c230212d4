"""The objective of a training: the loss of a batch, and the metrics of batches and epochs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.warnings import warn
from caffelite.core.arrays import flat_int64, match_shape
from caffelite.core.function import Function
from caffelite.core.python_callback import call_python
from caffelite.core.tensor import Tensor
from caffelite.data.generator import Batch, unpack_single
from caffelite.functions.activation import Sigmoid, Softmax
from caffelite.functions.losses.base import FocalLoss, Loss, Penalized, SigmoidLoss, SoftmaxLoss
from caffelite.functions.losses.multi_output import Losses
from caffelite.functions.shape import reshape_array
from caffelite.optimizers import TrainingDiverged
from caffelite.training.metrics.base import (
    CountMetric,
    EpochMetric,
    Metric,
    OutputMetric,
    accuracy,
    check_shapes,
    find_link,
    find_threshold,
    guess_threshold,
    takes_labels,
    thresholded_accuracy,
    to_number,
    warn_of_probabilities,
)
from caffelite.training.metrics.classification import is_multilabel

PER_OUTPUT_HINT = ": give a list for each output, such as metrics=(['accuracy'], ['mae'])"


class Objective:
    """The loss of a batch as a function of the model's outputs, and the metrics.

    Kernels add up the losses and the accuracies, batch by batch. All other metrics are computed from the outputs and
    targets of a whole epoch.

    Parameters
    ----------
    loss : Function
        The terms of `Losses` are measured one by one.
    metrics : dict of Metric or OutputMetric
        By name.
    warned_reasons : set of str
        The warnings that this model has already given.
    """

    def __init__(self, loss: Any, metrics: dict[str, Any], warned_reasons: set[str]) -> None:
        self.loss, self.metrics, self.warned_reasons = loss, metrics, warned_reasons
        part_losses = loss.losses if isinstance(loss, Losses) else ()
        self.terms = [Term(part_loss, self.warn_once) for part_loss in part_losses or (loss,)]
        self.metric_groups = _group_metrics(metrics, [term.loss for term in self.terms], len(part_losses))
        losses = ("loss", *[f"loss_{i}" for i in range(len(part_losses))])
        if reserved := [name for name in losses if name in metrics]:
            raise ValueError(f"metrics: the name {reserved[0]!r} is taken")
        self.names = (*losses, *metrics)
        self.epoch_metrics = {
            name: metric for group in self.metric_groups for name, metric in group.epoch_metrics.items()
        }
        # A row of `means`: losses and accuracies. The sums: one for each loss, one or three for each accuracy.
        self.sum_names = (*losses, *[group.accuracy for group in self.metric_groups if group.accuracy])
        self.num_sums = len(self.terms) + sum(group.num_sums for group in self.metric_groups)
        # The objects that a recorded step depends on. It also depends on the names.
        self.dependencies = (
            loss,
            *part_losses,
            *[metric for group in self.metric_groups for metric in group.metrics.values()],
        )

    # ---- of a batch ---------------------------------------------------------------------------------------------

    def __call__(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the loss of a batch. Raise TrainingDiverged unless it is finite."""
        value = self.compute_loss(outputs, batch)
        check_finite(value.data)
        return value

    def compute_loss(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the loss of a batch, finite or not."""
        for group in self.metric_groups:
            group.check(outputs, batch)
        weights, targets = () if batch.weights is None else (batch.weights,), unpack_single(batch.targets)
        if not isinstance(self.loss, Losses):
            return self.terms[0].compute_loss(self.prepare_outputs(self.loss, outputs, batch), targets, *weights)
        for term, (loss, y, target) in zip(self.terms, self.loss.pair(outputs, targets), strict=True):
            term.compute_loss(self.prepare_outputs(loss, y, batch), target, *weights)
        return self.loss.total(*[term.value for term in self.terms])

    def prepare_outputs(self, loss: Any, outputs: Any, batch: Batch) -> Any:
        """Return outputs of the model as a loss gets them."""
        return outputs

    def mean(self) -> np.ndarray:
        """Return the last loss without penalties, as a 0-d array."""
        losses = [term.mean() for term in self.terms]
        return self.loss.total.copy().forward(*losses) if isinstance(self.loss, Losses) else losses[0]

    def measure(self, cursor: np.ndarray, outputs: Any, batch: Batch) -> None:
        """Add the losses and the metrics of the last batch to the sums that the cursor points to."""
        for slot, term in enumerate(self.terms):
            term.measure(cursor, slot, batch)
        for group in self.metric_groups:
            group.measure(cursor, outputs, batch)

    def warn_once(self, text: str) -> None:
        """Warn, unless this model has given the same warning before."""
        if text not in self.warned_reasons:
            self.warned_reasons.add(text)
            warn(text)

    # ---- of an epoch --------------------------------------------------------------------------------------------

    def means(self, sums: np.ndarray) -> np.ndarray:
        """Return mean losses, and accuracies if requested, as a row per epoch, from sums (epochs, sums, 2)."""
        mean_values = means(sums)
        if not isinstance(self.loss, Losses) and len(self.sum_names) == self.num_sums:  # the usual case
            return mean_values
        losses = [mean_values[:, i] for i in range(len(self.terms))] if isinstance(self.loss, Losses) else []
        return np.column_stack(
            [self._loss(mean_values), *losses, *[y for group in self.metric_groups for y in group.means(mean_values)]]
        )

    def mean_loss(self, sums: np.ndarray) -> float:
        """Return the mean loss of one epoch, so far, from its sums (1, sums, 2)."""
        return float(self._loss(means(sums))[0])

    def _loss(self, mean_values: np.ndarray) -> np.ndarray:
        """Return the loss of each epoch, given the means of its terms."""
        weights = self.loss.weights if isinstance(self.loss, Losses) else (1.0,)
        return functools.reduce(
            np.add, [mean_values[:, i] * w if w != 1 else mean_values[:, i] for i, w in enumerate(weights)]
        )

    def results(self, sums: np.ndarray, outputs: list[np.ndarray], targets: list[np.ndarray]) -> np.ndarray:
        """Return losses and metrics of one epoch as a row, from its sums and all its outputs and targets."""
        values = dict(zip(self.sum_names, self.means(sums)[0].tolist(), strict=True))
        for group in self.metric_groups:
            values |= group.results(outputs, targets)
        return np.array([[values[name] for name in self.names]])


class Term:
    """A loss, and its value for the last batch. `Losses` have several terms."""

    value: Tensor

    def __init__(self, loss: Any, warn_once: Callable[[str], None]) -> None:
        self.loss, self.warn_once = loss, warn_once

    def compute_loss(self, outputs: Any, targets: Any, *weights: np.ndarray) -> Tensor:
        """Return the loss of a batch."""
        self._warn_of_two_links(outputs)
        if isinstance(self.loss, Loss | Penalized):
            self.applied = self.loss.copy()  # a call would make this copy: it knows its mean and weight
            self.value = self.applied.apply_once(outputs, targets, *weights)
        else:
            self.applied = self.loss
            self.value = self._call_user_loss(outputs, targets, *weights)
        return self.value

    def _call_user_loss(self, outputs: Any, targets: np.ndarray, *weights: np.ndarray) -> Tensor:
        """Return the value of a user's loss. Raise TypeError or ValueError unless it is a Tensor with one element.

        The loss gets targets (n,) as (n, 1) if the outputs are (n, 1). This warns if NumPy would broadcast outputs
        and targets to a larger array.
        """
        if isinstance(outputs, Tensor) and not isinstance(targets, tuple):
            targets = match_shape(targets, outputs.shape)
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
        loss = getattr(self.loss, "loss", self.loss)
        for layer_class, loss_class in ((Softmax, SoftmaxLoss | FocalLoss), (Sigmoid, SigmoidLoss)):
            if isinstance(last, layer_class) and isinstance(loss, loss_class):
                self.warn_once(
                    f"{type(loss).__name__} takes scores: leave out {last!r} at the end; loss.link gives probabilities"
                )

    def weights(self, batch: Batch) -> np.ndarray | None:
        """Return weights whose sum is the divisor of the last batch's mean, or None if all rows count equally."""
        known = _has_own_mean(self.applied) and self.applied.weight is not None
        return self.applied.weight.reshape(1) if known else batch.weights  # type: ignore[attr-defined]

    def mean(self) -> np.ndarray:
        """Return the last loss without penalties, as a 0-d array."""
        return self.applied.value if _has_own_mean(self.applied) else self.value.data  # type: ignore[return-value]

    def measure(self, cursor: np.ndarray, slot: int, batch: Batch) -> None:
        """Add the loss of the last batch to the sum at a slot."""
        weights = self.weights(batch)
        if weights is None:
            kernels.add_mean(cursor, slot, self.mean(), batch.rows)
        else:
            kernels.add_weighted_mean(cursor, slot, self.mean(), weights)


class MetricGroup:
    """The metrics of one output and its target, or of all outputs and targets together.

    Parameters
    ----------
    metrics : dict of Metric
        By name.
    loss : Function or None
        The loss of this output. It may define what scores mean, and which labels count nowhere.
    selection : (output, number of outputs), or () for all outputs
    slot : int
        The first of the sums at which accuracy is added up.
    """

    def __init__(self, metrics: dict[str, Metric], loss: Any, selection: tuple[int, ...], slot: int) -> None:
        self.metrics, self.loss, self.selection, self.slot = metrics, loss, selection, slot
        self.accuracy = next((name for name, metric in metrics.items() if metric is accuracy), None)
        self.epoch_metrics = {name: metric for name, metric in metrics.items() if metric is not accuracy}
        # With one score per row, class 1 is a score above this. None: the loss does not define it.
        self.threshold: float | None = 0.0
        if self.accuracy or any(isinstance(metric, EpochMetric) for metric in metrics.values()):
            self.threshold = find_threshold(loss)
        self.link = find_link(loss)
        self.has_warned = False  # whether it has warned that it took scores for probabilities
        # If the threshold is not known, accuracy has three sums: with threshold 0, with ½, and how far scores are
        # outside 0 … 1.
        self.num_sums = 0 if self.accuracy is None else 1 if self.threshold is not None else 3

    def _select(self, arrays: Any) -> Sequence[Any]:
        """Return the outputs or targets that the metrics take."""
        return arrays[self.selection[0] :][:1] if self.selection else arrays

    def check(self, outputs: Any, batch: Batch) -> None:
        """Raise ValueError if a metric cannot be computed from these outputs and targets."""
        all_outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if self.selection and not (len(all_outputs) == len(batch.targets) == self.selection[1]):
            raise ValueError(
                f"metrics: expected a list for each output and its target, got {self.selection[1]} lists for "
                f"{len(all_outputs)} of outputs and {len(batch.targets)} of targets"
            )
        own_outputs, targets = self._select(all_outputs), self._select(batch.targets)
        for name, metric in self.metrics.items():
            if isinstance(metric, EpochMetric) or metric is accuracy:
                if len(own_outputs) > 1:
                    raise ValueError(
                        f"the metric {name} takes one output; the model returned {len(own_outputs)}{PER_OUTPUT_HINT}"
                    )
                if len(targets) > 1:
                    raise ValueError(f"the metric {name} takes one target; y has {len(targets)}")
                shape = targets[0].shape
                if takes_labels(metric) and self._are_probabilities(targets[0]):
                    shape = shape[:-1]
                check_shapes(metric, own_outputs[0].shape, shape, name, multilabel=self.threshold is not None)
            else:
                for y in own_outputs:
                    if y.shape[:1] != (batch.rows,):
                        raise ValueError(
                            f"the metric {name} needs an output for each row; the model returned outputs of shape "
                            f"{y.shape} for {batch.rows} rows"
                        )

    def _are_probabilities(self, targets: np.ndarray) -> bool:
        """Whether targets are probabilities of classes. Metrics that take labels get the most probable class."""
        is_softmax = isinstance(getattr(self.loss, "loss", self.loss), SoftmaxLoss)
        return is_softmax and targets.dtype.kind == "f" and targets.ndim > 1

    def measure(self, cursor: np.ndarray, outputs: Any, batch: Batch) -> None:
        """Add the accuracy of a batch to its sums."""
        if self.accuracy is None:
            return
        (scores,), (y,) = (
            self._select(outputs if isinstance(outputs, tuple) else (outputs,)),
            self._select(batch.targets),
        )
        scores, slot = scores.data, self.slot
        if self._are_probabilities(y):
            y = kernels.largest(y, -1)[1]
        if self.threshold is not None:
            self._add_correct(cursor, slot, scores, y, self.threshold)
        elif scores.size > y.size:  # scores of several classes
            self._add_correct(cursor, slot, scores, y, 0.0)
        else:
            self._add_correct(cursor, slot, scores, y, 0.0)
            self._add_correct(cursor, slot + 1, scores, y, 0.5)
            scores = reshape_array(scores, (y.size, 1))
            outside = kernels.mae_loss(scores, kernels.clip(scores, 0.0, 1.0))
            kernels.add_mean(cursor, slot + 2, kernels.sum(outside), batch.rows)

    def _add_correct(self, cursor: np.ndarray, slot: int, outputs: np.ndarray, y: np.ndarray, threshold: float) -> None:
        """Add the number of correct predictions in a batch to the sum at a slot."""
        if y.dtype.kind in "iu" and not is_multilabel(outputs.shape, y.shape):
            scores = reshape_array(outputs, (y.size, outputs.size // y.size))
            kernels.add_correct(cursor, slot, scores, flat_int64(y), getattr(self.loss, "ignore", None), threshold)
        else:
            share = call_python("accuracy", functools.partial(_batch_accuracy, threshold), outputs, y)
            kernels.add_mean(cursor, slot, np.asarray(share), len(y))

    def means(self, mean_values: np.ndarray) -> list[np.ndarray]:
        """Return the accuracies of epochs, if requested, given the means of all sums."""
        accuracies = [*mean_values.T[self.slot : self.slot + self.num_sums]]
        if len(accuracies) < 3:
            return accuracies
        above_0, above_half, outside = accuracies
        are_probabilities = outside == 0
        self._warn_of_probabilities(bool((are_probabilities & (above_0 != above_half)).any()))
        return [np.where(are_probabilities, above_half, above_0)]

    def results(self, outputs: list[np.ndarray], targets: list[np.ndarray]) -> dict[str, float]:
        """Return the metrics of all rows of an epoch, but not the accuracy. Without rows they are NaN."""
        if not targets or len(targets[0]) == 0:
            return dict.fromkeys(self.epoch_metrics, np.nan)
        own_outputs, y = self._select(outputs), self._select(targets)
        return {name: self._compute_metric(name, metric, own_outputs, y) for name, metric in self.epoch_metrics.items()}

    def _compute_metric(
        self, name: str, metric: Metric, outputs: Sequence[np.ndarray], y: Sequence[np.ndarray]
    ) -> float:
        """Return a metric of all rows. A user's metric gets copies, so it may change them."""
        if not isinstance(metric, EpochMetric):
            if len(outputs) == len(y) == 1:
                y = [match_shape(y[0], outputs[0].shape)]
            copies = [unpack_single(tuple([x.copy() for x in arrays])) for arrays in (outputs, y)]
            return to_number(name, metric(*copies))
        (scores,), (targets,), ignore, threshold = outputs, y, getattr(self.loss, "ignore", None), self.threshold
        if takes_labels(metric) and self._are_probabilities(targets):
            targets = targets.argmax(axis=-1)
        if ignore is not None and targets.shape == scores.shape[:-1]:
            scores, targets = scores[targets != ignore], targets[targets != ignore]
            if len(targets) == 0:
                return np.nan
        if threshold is None and isinstance(metric, CountMetric) and scores.size == targets.size:
            threshold, matters = guess_threshold(scores.reshape(-1))
            self._warn_of_probabilities(matters)
        return metric.compute(threshold, scores, targets, self.link)

    def _warn_of_probabilities(self, matters: bool) -> None:
        """Warn once that scores were taken for probabilities, if this matters."""
        if matters and not self.has_warned:
            self.has_warned = True
            warn_of_probabilities()


def _group_metrics(metrics: dict[str, Any], losses: list[Any], num_losses: int) -> list[MetricGroup]:
    """Return the metrics, grouped by output. `losses` are for `num_losses` outputs, or one for all of them (0)."""
    groups: dict[tuple[int, ...], dict[str, Metric]] = {}
    for name, entry in metrics.items():
        metric, *key = entry if isinstance(entry, OutputMetric) else (entry,)
        groups.setdefault(tuple(key), {})[name] = metric
    metric_groups: list[MetricGroup] = []
    slot = len(losses)
    for selection, own_metrics in groups.items():
        i, count = selection or (0, 1)
        if selection and num_losses and count != num_losses:
            raise ValueError(f"metrics: expected a list for each of {num_losses} losses, got {count} lists")
        loss = losses[i] if len(losses) == count else None
        metric_groups.append(MetricGroup(own_metrics, loss, selection, slot))
        slot += metric_groups[-1].num_sums
    return metric_groups


def check_finite(value: np.ndarray) -> None:
    """Raise TrainingDiverged unless all elements are finite. `value` is usually a loss."""

    def raise_diverged(value: np.ndarray) -> None:
        raise TrainingDiverged(f"the loss is {value.item()}")

    kernels.all_finite(value, raise_diverged)


def means(sums: np.ndarray) -> np.ndarray:
    """Return the means, one row per epoch, of sums (epochs, sums, 2). A mean without weights is NaN."""
    totals, weights = sums[:, :, 0], sums[:, :, 1]
    if np.count_nonzero(weights) == weights.size:
        return totals / weights
    return np.divide(totals, weights, out=np.full_like(totals, np.nan), where=weights > 0)


def check_takes_weights(loss: Any) -> None:
    """Raise TypeError unless the loss can be called with weights as a third input."""
    for part in loss.losses if isinstance(loss, Losses) else (loss,):
        function = part.python_code()
        try:
            inspect.signature(function).bind(None, None, None)
        except TypeError:
            name = getattr(function, "__name__", "it")
            raise TypeError(
                f"{part!r} takes no weights: its {name} has to be {name}(outputs, targets, weights)"
            ) from None


def _has_own_mean(loss: Function) -> TypeGuard[Loss | Penalized]:
    """Whether an applied loss knows its mean without penalties and its sum of weights."""
    return isinstance(loss, Loss | Penalized) and not loss.runs_in_python


def _would_grow(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether NumPy would broadcast arrays of these shapes to a shape larger than both."""
    try:
        both = np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return both not in (a, b)


def _batch_accuracy(threshold: float, outputs: np.ndarray, targets: np.ndarray) -> np.float64:
    return np.float64(thresholded_accuracy(threshold, outputs, targets))
