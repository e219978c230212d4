"""The objective of a training: the loss of a batch, and the metrics of batches and epochs."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.warnings import warn
from caffelite.core.arrays import flat_int64, reshape_array
from caffelite.core.python_callback import call_python
from caffelite.core.tensor import Tensor
from caffelite.data.generator import Batch, unpack_single
from caffelite.functions.activation import Sigmoid, Softmax
from caffelite.functions.arithmetic import BroadcastFunction
from caffelite.functions.losses.base import Loss, Penalized, unwrap_penalized
from caffelite.functions.losses.classification import FocalLoss, SigmoidLoss, SoftmaxLoss
from caffelite.functions.losses.multi_output import Losses
from caffelite.functions.losses.regression import HuberLoss, MAELoss, MSELoss
from caffelite.optimizers import TrainingDiverged
from caffelite.program.recording import Recording
from caffelite.training.metrics.base import EpochMetric, Metric, OutputMetric, to_number
from caffelite.training.metrics.classification import (
    PROBABILITIES_WARNING,
    ClassificationMetric,
    ThresholdMetric,
    accuracy,
    find_threshold,
    guess_threshold,
    is_multilabel,
)

PER_OUTPUT_HINT = ": give a list for each output, such as metrics=(['accuracy'], ['mae'])"
COLUMN_HINT = "For outputs o (n, 1) and targets y (n,), write o[:, 0] - y or o - y[:, None]"


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
        self.row_check: Any = None  # a RowCheck, which checks rows in memory when a batch shows the outputs
        self.parts = loss.losses if isinstance(loss, Losses) else ()
        self.terms = [Term(part, self.warn_once) for part in self.parts or (loss,)]
        self.metric_groups = groups = _group_metrics(
            metrics, [term.loss for term in self.terms], len(self.parts), self.warn_once
        )
        losses = ("loss", *[f"loss_{i}" for i in range(len(self.parts))])
        if reserved := [name for name in losses if name in metrics]:
            raise ValueError(f"metrics: the name {reserved[0]!r} is taken")
        self.names = (*losses, *metrics)
        self.epoch_metrics = [name for group in groups for name in group.epoch_metrics]
        # A row of `means`: losses and accuracies. The sums: one for each loss, one or three for each accuracy.
        self.mean_names = (*losses, *[group.accuracy for group in groups if group.accuracy])
        self.num_sums = len(self.terms) + sum(group.num_sums for group in groups)
        # The objects that a recorded step depends on. It also depends on the names.
        self.dependencies = (loss, *self.parts, *[metric for group in groups for metric in group.metrics.values()])

    # ---- of a batch ---------------------------------------------------------------------------------------------

    def __call__(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the loss of a batch. Raise TrainingDiverged unless it is finite."""
        value = self.compute_loss(outputs, batch)
        check_finite(value.data)
        return value

    def compute_loss(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the loss of a batch, finite or not."""
        if self.row_check is not None:
            self.row_check.check_batch(outputs, batch)
        for group in self.metric_groups:
            group.check(outputs, batch)
        weights, targets = () if batch.weights is None else (batch.weights,), unpack_single(batch.targets)
        pairs = self.loss.pair(outputs, targets) if self.parts else [(self.loss, outputs, targets)]
        values = [
            term.compute_loss(self.prepare_outputs(loss, y, batch), target, *weights)
            for term, (loss, y, target) in zip(self.terms, pairs, strict=True)
        ]
        return self.loss.total(*values) if self.parts else values[0]

    def prepare_outputs(self, loss: Any, outputs: Any, batch: Batch) -> Any:
        """Return outputs of the model as a loss gets them."""
        return outputs

    def last_loss(self) -> np.ndarray:
        """Return the last loss without penalties, as a 0-d array."""
        losses = [term.mean for term in self.terms]
        return self.loss.total.copy().forward(*losses) if self.parts else losses[0]

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
        mean_values = _divide_sums(sums)
        if not self.parts and len(self.mean_names) == self.num_sums:  # the usual case
            return mean_values
        columns = [self._combine_terms(mean_values), *mean_values.T[: len(self.parts)]]
        return np.column_stack(columns + [y for group in self.metric_groups for y in group.means(mean_values)])

    def mean_loss(self, sums: np.ndarray) -> float:
        """Return the mean loss of one epoch, so far, from its sums (1, sums, 2)."""
        return float(self._combine_terms(_divide_sums(sums))[0])

    def _combine_terms(self, mean_values: np.ndarray) -> np.ndarray:
        """Return the loss of each epoch, given the means of its terms."""
        weights = self.loss.weights if self.parts else (1.0,)
        return functools.reduce(np.add, [mean_values[:, i] * w for i, w in enumerate(weights)])

    def results(self, sums: np.ndarray, outputs: list[np.ndarray], targets: list[np.ndarray]) -> np.ndarray:
        """Return losses and metrics of one epoch as a row, from its sums and all its outputs and targets."""
        values = dict(zip(self.mean_names, self.means(sums)[0].tolist(), strict=True))
        for group in self.metric_groups:
            values |= group.results(outputs, targets)
        return np.array([[values[name] for name in self.names]])


class Term:
    """A loss, and its value for the last batch. `Losses` have several terms.

    `mean` is the value without penalties, a 0-d array. `weight` is the sum of weights by which the loss has divided, or
    None if that is not known.
    """

    value: Tensor
    mean: np.ndarray
    weight: np.ndarray | None

    def __init__(self, loss: Any, warn_once: Callable[[str], None]) -> None:
        self.loss, self.warn_once = loss, warn_once

    def compute_loss(self, outputs: Any, targets: Any, *weights: np.ndarray) -> Tensor:
        """Return the loss of a batch."""
        self._warn_of_two_links(outputs)
        if isinstance(self.loss, Loss | Penalized):
            applied: Any = self.loss.copy()  # a call would make this copy: it knows its mean and weight
            self.value = applied.apply_once(outputs, targets, *weights)
            if not applied.runs_in_python:
                self.mean, self.weight = applied.value, applied.weight
                return self.value
        else:
            self.value = self._call_user_loss(outputs, targets, *weights)
        self.mean, self.weight = self.value.data, None
        return self.value

    def _call_user_loss(self, outputs: Any, targets: np.ndarray, *weights: np.ndarray) -> Tensor:
        """Return the value of a user's loss. Raise TypeError or ValueError unless it is a Tensor with one element.

        Warn of an operation in it that broadcasts (n, 1) with (n,).
        """
        with self._watch_broadcasts():
            value = self.loss(outputs, targets, *weights)
        if not isinstance(value, Tensor):
            raise TypeError(
                f"the loss {self.loss!r} has to return a Tensor, computed from the outputs by caffelite's functions; "
                f"got {type(value).__name__}"
            )
        if value.size != 1:
            raise ValueError(f"the loss {self.loss!r} has to return a single element, got shape {value.shape}")
        return value

    @contextlib.contextmanager
    def _watch_broadcasts(self) -> Iterator[None]:
        """Warn of operations inside, in a step that is recorded, that broadcast (n, 1) with (n,)."""
        recording = kernels.recorder()
        if not isinstance(recording, Recording):
            yield
            return
        recording.observer = self._check_broadcast
        try:
            yield
        finally:
            recording.observer = None

    def _check_broadcast(self, function: Any, inputs: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
        if isinstance(function, BroadcastFunction) and are_column_and_vector(inputs):
            self.warn_once(
                f"the loss {self.loss!r} broadcasts (n, 1) with (n,), so each row meets the target of every row. "
                + COLUMN_HINT
            )

    def _warn_of_two_links(self, outputs: Any) -> None:
        """Warn if the model ends with the softmax or sigmoid that its loss applies too: it would learn little."""
        last = outputs.function if isinstance(outputs, Tensor) else None
        loss = unwrap_penalized(self.loss)
        for layer_class, loss_class in ((Softmax, SoftmaxLoss | FocalLoss), (Sigmoid, SigmoidLoss)):
            if isinstance(last, layer_class) and isinstance(loss, loss_class):
                self.warn_once(
                    f"{type(loss).__name__} takes scores: leave out {last!r} at the end; loss.link gives probabilities"
                )

    def weights(self, batch: Batch) -> np.ndarray | None:
        """Return weights whose sum is the divisor of the last batch's mean, or None if all rows count equally."""
        return batch.weights if self.weight is None else self.weight.reshape(1)

    def measure(self, cursor: np.ndarray, slot: int, batch: Batch) -> None:
        """Add the loss of the last batch to the sum at a slot."""
        weights = self.weights(batch)
        if weights is None:
            kernels.add_mean(cursor, slot, self.mean, batch.rows)
        else:
            kernels.add_weighted_mean(cursor, slot, self.mean, weights)


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

    def __init__(
        self,
        metrics: dict[str, Metric],
        loss: Any,
        selection: tuple[int, ...],
        slot: int,
        warn_once: Callable[[str], None],
    ) -> None:
        self.metrics, self.loss, self.slot = metrics, loss, slot
        self.num_outputs = selection[1] if selection else None
        self.selection = slice(selection[0], selection[0] + 1) if selection else slice(None)
        self.accuracy = next((name for name, metric in metrics.items() if metric is accuracy), None)
        self.epoch_metrics = {name: metric for name, metric in metrics.items() if metric is not accuracy}
        self.takes_numbers = type(unwrap_penalized(loss)) in (MSELoss, MAELoss, HuberLoss)
        self.link, self.threshold = find_threshold(loss)  # with one score per row, class 1 is link(score) > threshold
        self.warn_once = warn_once
        # If the threshold is not known, accuracy has three sums: with threshold 0, with ½, and how far scores are
        # outside 0 … 1.
        self.num_sums = 0 if self.accuracy is None else 1 if self.threshold is not None else 3

    def check(self, outputs: Any, batch: Batch) -> None:
        """Raise ValueError if a metric cannot be computed from these outputs and targets."""
        outputs = _as_tuple(outputs)
        if self.num_outputs is not None and not (len(outputs) == len(batch.targets) == self.num_outputs):
            raise ValueError(
                f"metrics: expected a list for each output and its target, got {self.num_outputs} lists for "
                f"{len(outputs)} of outputs and {len(batch.targets)} of targets"
            )
        outputs, targets = outputs[self.selection], batch.targets[self.selection]
        for name, metric in self.metrics.items():
            if isinstance(metric, EpochMetric):
                self._check_epoch_metric(name, metric, outputs, targets)
            elif wrong := [y.shape for y in outputs if y.shape[:1] != (batch.rows,)]:
                raise ValueError(
                    f"the metric {name} needs an output for each row; the model returned outputs of shape {wrong[0]} "
                    f"for {batch.rows} rows"
                )

    def _check_epoch_metric(
        self, name: str, metric: EpochMetric, outputs: Sequence[Any], targets: Sequence[Any]
    ) -> None:
        if len(outputs) > 1:
            raise ValueError(f"the metric {name} takes one output; the model returned {len(outputs)}{PER_OUTPUT_HINT}")
        if len(targets) > 1:
            raise ValueError(f"the metric {name} takes one target; y has {len(targets)}")
        shape = targets[0].shape
        if isinstance(metric, ClassificationMetric) and self._are_probabilities(targets[0]):
            shape = shape[:-1]
        metric.check(name, outputs[0].shape, shape, multilabel=self.threshold is not None)
        if metric is accuracy and self.takes_numbers:
            with kernels.pause_recording():
                numbers = targets[0][(targets[0] != 0) & (targets[0] != 1)]
            if len(numbers):
                message = f"{name} compares classes 0 and 1, and y has {numbers[0]:.4g}"
                raise ValueError(f"{message}: for numbers use mae, rmse or r2")

    def _are_probabilities(self, targets: np.ndarray) -> bool:
        """Return whether targets are probabilities of classes. Metrics that take labels get the most probable class."""
        is_softmax = isinstance(unwrap_penalized(self.loss), SoftmaxLoss)
        return is_softmax and targets.dtype.kind == "f" and targets.ndim > 1

    def measure(self, cursor: np.ndarray, outputs: Any, batch: Batch) -> None:
        """Add the accuracy of a batch to its sums."""
        if self.accuracy is None:
            return
        (outputs,), (y,) = _as_tuple(outputs)[self.selection], batch.targets[self.selection]
        y = kernels.largest(y, -1)[1] if self._are_probabilities(y) else y
        scores, has_single_scores = outputs.data, outputs.size == y.size
        if self.link is not None and has_single_scores:
            scores = call_python("link", self.link, scores)
        self._add_correct(cursor, self.slot, scores, y, self.threshold or 0.0)
        if self.threshold is None and has_single_scores:
            self._add_correct(cursor, self.slot + 1, scores, y, 0.5)
            scores = reshape_array(scores, (y.size, 1))
            outside = kernels.mae_loss(scores, kernels.clip(scores, 0.0, 1.0))
            kernels.add_mean(cursor, self.slot + 2, kernels.sum(outside), batch.rows)

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
        outputs, targets = outputs[self.selection], targets[self.selection]
        return {
            name: self._compute_epoch_metric(metric, outputs[0], targets[0])
            if isinstance(metric, EpochMetric)
            else _compute_user_metric(name, metric, outputs, targets)
            for name, metric in self.epoch_metrics.items()
        }

    def _compute_epoch_metric(self, metric: EpochMetric, scores: np.ndarray, targets: np.ndarray) -> float:
        """Return a metric of all rows."""
        ignore, threshold = getattr(self.loss, "ignore", None), self.threshold
        if isinstance(metric, ClassificationMetric) and self._are_probabilities(targets):
            targets = targets.argmax(axis=-1)
        if ignore is not None and targets.shape == scores.shape[:-1]:
            scores, targets = scores[targets != ignore], targets[targets != ignore]
            if len(targets) == 0:
                return np.nan
        if isinstance(metric, ThresholdMetric) and scores.size == targets.size:
            if self.link is not None:
                scores = np.asarray(self.link(scores))
            elif threshold is None:
                threshold, matters = guess_threshold(scores.reshape(-1))
                self._warn_of_probabilities(matters)
        return metric.compute(threshold, scores, targets, getattr(self.loss, "link", None))

    def _warn_of_probabilities(self, matters: bool) -> None:
        """Warn once that scores were taken for probabilities, if this matters."""
        if matters:
            self.warn_once(PROBABILITIES_WARNING)


def _group_metrics(
    metrics: dict[str, Any], losses: list[Any], num_losses: int, warn_once: Callable[[str], None]
) -> list[MetricGroup]:
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
        metric_groups.append(MetricGroup(own_metrics, loss, selection, slot, warn_once))
        slot += metric_groups[-1].num_sums
    return metric_groups


def _compute_user_metric(
    name: str, metric: Metric, outputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]
) -> float:
    """Return a user's metric of all rows. It gets copies, so it may change them."""
    outputs, targets = [[x.copy() for x in arrays] for arrays in (outputs, targets)]
    if len(targets) == 1 and are_column_and_vector((outputs[0], targets[0])):
        outputs = [outputs[0].view(OutputColumn)]
    return to_number(name, metric(unpack_single(tuple(outputs)), unpack_single(tuple(targets))))


class OutputColumn(np.ndarray):
    """Outputs (n, 1) for a user's metric with targets (n,): warns if NumPy broadcasts both to (n, n)."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if are_column_and_vector(inputs):
            warn(f"a metric broadcasts (n, 1) with (n,), so each row meets the target of every row. {COLUMN_HINT}")
        arrays = [x.view(np.ndarray) if isinstance(x, OutputColumn) else x for x in inputs]
        out = tuple([x.view(np.ndarray) if isinstance(x, OutputColumn) else x for x in options.pop("out", ())])
        return getattr(ufunc, method)(*arrays, **options, **({"out": out} if out else {}))


def check_finite(value: np.ndarray) -> None:
    """Raise TrainingDiverged unless all elements are finite. `value` is usually a loss."""

    def raise_diverged(value: np.ndarray) -> None:
        raise TrainingDiverged(f"the loss is {value.item()}")

    kernels.all_finite(value, raise_diverged)


def _divide_sums(sums: np.ndarray) -> np.ndarray:
    """Return the means, one row per epoch, of sums (epochs, sums, 2). A mean without weights is NaN."""
    totals, weights = sums[:, :, 0], sums[:, :, 1]
    if np.count_nonzero(weights) == weights.size:
        means: np.ndarray = totals / weights
    else:
        means = np.divide(totals, weights, out=np.full_like(totals, np.nan), where=weights > 0)
    return means


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


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def are_column_and_vector(inputs: Sequence[Any]) -> bool:
    """Return whether these are two, of shapes (n, 1) and (n,) with n > 1, in any order."""
    shapes: list[Any] = sorted([getattr(x, "shape", ()) for x in inputs], key=len)
    return len(shapes) == 2 and len(shapes[0]) == 1 and shapes[0] != (1,) and shapes[1] == (*shapes[0], 1)


def _batch_accuracy(threshold: float, outputs: np.ndarray, targets: np.ndarray) -> np.float64:
    return np.float64(accuracy.compute(threshold, outputs, targets))
