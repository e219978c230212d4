"""Callbacks after each epoch: the estimator's own bookkeeping, and scikit-learn's callbacks."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np

from caffelite._support.terminal import echo
from caffelite.files.state import named_state
from caffelite.sklearn.frame_rows import model_input
from caffelite.training.callbacks.base import Training
from caffelite.training.history import History

MIN_RATE = 1e-6  # at which "adaptive" ends the training, and reduces the rate no more


class ValidationSet(NamedTuple):
    """Rows to be scored after each epoch, and how much they weigh."""

    inputs: Any
    targets: np.ndarray  # encoded
    labels: Any  # targets as they were given
    weights: np.ndarray | None = None

    def data(self) -> tuple:
        """Return the rows as `fit` takes them."""
        return (model_input(self.inputs), self.targets, *([] if self.weights is None else [self.weights]))


class FitMonitor:
    """Keeps an estimator's record of its training, and ends training if there is no improvement.

    scikit-learn's perceptrons do the same. An epoch is an improvement if it is better than the best one before by `tol`
    or more. The measure is the training loss or, with `early_stopping`, the score on validation rows. Training ends
    after more than `n_iter_no_change` epochs in a row without an improvement. But an "adaptive" learning rate is then
    divided by 5 instead, as long as it is above 10⁻⁶. With "invscaling", the rate falls after each epoch.
    """

    def __init__(self, estimator: Any, rows: int, validation: ValidationSet | None) -> None:
        self.estimator, self.rows, self.validation = estimator, rows, validation
        self.has_ended = False

    def begin(self, training: Training) -> None:
        """Begin the estimator's record of the epochs to come."""
        estimator = self.estimator
        self.model, self.optimizer = training.model, training.optimizer
        estimator.n_iter_ = 0
        if estimator._stops_early:
            estimator.best_loss_ = None
        elif estimator.best_loss_ is None:
            estimator.best_loss_ = np.inf
        if self.validation is not None and estimator.validation_scores_ is None:
            estimator.validation_scores_, estimator.best_validation_score_ = [], -np.inf
        self.best_state = self.model.state_dict() if estimator._stops_early else None
        self.parameters, self.buffers = named_state(self.model)
        self._update_rate()

    def due(self, epochs: int) -> float:
        """Return the next epoch after which training may end, or another action is due."""
        estimator = self.estimator
        if self.validation is not None or estimator.verbose or self._has_inverse_scaling():
            return epochs + 1
        return epochs + max(1, estimator.n_iter_no_change + 1 - estimator._no_improvement_count)

    def __call__(self, epoch: int, history: History) -> bool:
        """Note the epochs that are new in the history."""
        for loss in history["loss"][self.estimator.n_iter_ :]:
            self._record_epoch(loss)
        return self.has_ended

    def end(self) -> None:
        """With `early_stopping`, give the estimator the best model."""
        if self.best_state is not None:
            self.model.load_state_dict(self.best_state)

    def record_divergence(self) -> None:
        """Act if the current epoch has no loss and no score."""
        self.estimator.n_iter_ += 1
        self.estimator.loss_ = np.nan
        self.estimator.loss_curve_.append(np.nan)
        self.estimator.validation_scores_.append(np.nan)

    def _record_epoch(self, loss: float) -> None:
        estimator = self.estimator
        estimator.n_iter_ += 1
        estimator.t_ += self.rows
        estimator.loss_ = loss
        estimator.loss_curve_.append(loss)
        text = f"Iteration {estimator.n_iter_}, loss = {loss:.8f}"
        if self.validation is not None:
            score = estimator._validation_score(self.validation)
            text += f", validation score = {score:.6f}"
            self._record_score(score)
        if not estimator._stops_early:
            self._count_improvement(estimator.best_loss_ - loss)
            estimator.best_loss_ = min(estimator.best_loss_, loss)
        if estimator.verbose:
            echo(text, flush=True)
        if estimator.solver == "lbfgs":
            return
        self._update_rate()
        if estimator._no_improvement_count > estimator.n_iter_no_change:
            self._stop_or_reduce_rate()

    def _record_score(self, score: float) -> None:
        estimator = self.estimator
        estimator.validation_scores_.append(score)
        if estimator._stops_early:
            self._count_improvement(score - estimator.best_validation_score_)
        if score > estimator.best_validation_score_:
            estimator.best_validation_score_ = score
            if estimator._stops_early:
                self._save_best_state()

    def _save_best_state(self) -> None:
        """Keep the model as it is now as the best one."""
        assert self.best_state is not None
        for name, p in self.parameters.items():
            self.best_state[name][...] = p.data
        for name, array in self.buffers.items():
            self.best_state[name][...] = array

    def _count_improvement(self, better: float) -> None:
        """Count the epochs in a row without an improvement. The new one is better than the best by this much."""
        estimator = self.estimator
        estimator._no_improvement_count = 0 if better >= estimator.tol else estimator._no_improvement_count + 1

    def _has_inverse_scaling(self) -> bool:
        return self.estimator.solver == "sgd" and self.estimator.learning_rate == "invscaling"

    def _update_rate(self) -> None:
        if self._has_inverse_scaling():
            rate = self.estimator.learning_rate_init / (self.estimator.t_ + 1) ** self.estimator.power_t
            change_rate(self.optimizer, rate)

    def _stop_or_reduce_rate(self) -> None:
        adapts = self.estimator.solver == "sgd" and self.estimator.learning_rate == "adaptive"
        self.has_ended = not adapts or self.optimizer.lr <= MIN_RATE
        if not self.has_ended:
            change_rate(self.optimizer, self.optimizer.lr / 5)
            self.estimator._no_improvement_count = 0


def change_rate(optimizer: Any, rate: float) -> None:
    """Set the learning rate of SGD, and keep what its velocity v adds to the next step, μ lr v.

    scikit-learn's velocity has the rate in it, and is −lr v. A new rate does not change it.
    """
    old, optimizer.lr = optimizer.lr, rate
    if rate > 0:
        for velocity in optimizer.vectors().values():
            velocity *= old / rate


class CallbackTasks:
    """Tells scikit-learn's callbacks (since 1.9) when an epoch begins and ends. Each of them may end training.

    If a callback asks for `fitted_estimator`, it gets a copy of the estimator as it is then.
    """

    def __init__(self, estimator: Any, context: Any, arguments: dict[str, Any]) -> None:
        self.estimator, self.context, self.arguments = estimator, context, {"estimator": estimator, **arguments}
        self.task: Any = None  # the epoch under way

    def begin(self, training: Training) -> None:
        """Act when the first epoch begins."""
        self._begin_epoch()

    def __call__(self, epoch: int, history: History) -> bool:
        """Act when an epoch ends, and perhaps another one begins."""
        stop = self._end_epoch()
        if not stop and epoch + 1 < self.estimator.max_iter:
            self._begin_epoch()
        return stop

    def end(self) -> None:
        """End an epoch that has begun even though another callback or an exception has ended training."""
        if self.task is not None:
            self._end_epoch()

    def _begin_epoch(self) -> None:
        self.task = self.context.subcontext(task_name="epoch")
        self.task.call_on_fit_task_begin(**self.arguments, reconstruction_attributes=self._copy_attributes)

    def _end_epoch(self) -> bool:
        task, self.task = self.task, None
        return bool(task.call_on_fit_task_end(**self.arguments, reconstruction_attributes=self._copy_attributes))

    def _copy_attributes(self) -> dict[str, Any]:
        return copy.deepcopy({"model_": self.estimator.model_, "_optimizer": self.estimator._optimizer})
