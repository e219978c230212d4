"""EarlyStopping and ReduceLROnPlateau: callbacks that watch a quantity of the history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite._kernels import BestHook, EpochHook, EvaluationHook
from caffelite._support.interrupts import InterruptsBetweenSteps
from caffelite._support.moved_modules import rename_attributes
from caffelite._support.warnings import warn
from caffelite.core.arrays import NUMBERS, check_nonnegative, check_positive, check_positive_integer
from caffelite.core.tensor import Tensor
from caffelite.files.state import BaseModel, named_state
from caffelite.training.callbacks.base import Training
from caffelite.training.history import History
from caffelite.training.metrics.base import find_mode


class Monitor:
    """Base class of callbacks that watch a quantity of the history: its best value, and the epochs since.

    With `mode="max"`, a higher value is better; with "min", a lower one. "auto" knows the built-in names, with or
    without `val_`, and the modes given to `caffelite.metrics.metric`. For any other name, it raises ValueError before
    the first step.

    A value that is not finite is never better. Among equal values of a metric, the epoch with the lowest `val_loss` is
    the best, or with the lowest `loss` if there is no `val_loss`. Such an epoch becomes the best one, but it does not
    count as better for `patience`.
    """

    best: float | None  # the best value so far, None before the first
    best_epoch: int | None  # its epoch, counted from 0
    waited: int  # the number of epochs in a row that were not better by more than `min_delta`

    def __init__(self, monitor: str, patience: int, min_delta: float = 0.0, mode: str = "auto") -> None:
        if mode not in ("auto", "min", "max"):
            raise ValueError(f'{self._name}: mode is "auto", "min" or "max", got {mode!r}')
        self.monitor, self.mode = monitor, mode
        self.patience = check_positive_integer("patience", patience)
        self.min_delta = check_nonnegative("min_delta", min_delta)
        self._reset()

    @property
    def _name(self) -> str:
        """The callback's name in messages."""
        return type(self).__name__

    def _reset(self) -> None:
        self.best, self.best_epoch, self.waited = None, None, 0
        self._has_warned = False

    def begin(self, training: Training) -> None:
        """Reset. Raise ValueError if training does not measure `monitor`, or if its mode is not known."""
        if self.monitor not in training.history:
            name, measured = str(self.monitor), list(training.history)
            is_metric = name.removeprefix("val_") not in measured
            missing = "its metric in metrics" if is_metric else "validation_data or validation_split"
            raise ValueError(
                f"{self._name}: there is no {self.monitor!r} to monitor, only "
                f"{', '.join(measured)}; give {missing}, or monitor={measured[0]!r}"
            )
        self._mode = find_mode(self.monitor, training.metrics) if self.mode == "auto" else self.mode
        if self._mode is None:
            raise ValueError(
                f'{self._name}: is a higher {self.monitor} better, or a lower one? Give mode="max" or '
                'mode="min", here or in caffelite.metrics.metric(f, mode=…)'
            )
        self._reset()

    def update(self, epoch: int, history: History) -> bool:
        """Look at an epoch's value. Return whether it is the best one."""
        value = history[self.monitor][epoch]
        if math.isnan(value) and self.best is None and not self._has_warned:
            self._has_warned = True
            warn(
                f"{self._name}: {self.monitor} is NaN in epoch {epoch + 1}, and no epoch before it had a "
                "number: as long as this is so, no epoch is the best one"
            )
        gain = math.inf if self.best is None else value - self.best
        if self.best is not None and self._mode == "min":
            gain = -gain
        if not math.isfinite(value):
            gain = 0.0
        self.waited = 0 if gain > self.min_delta else self.waited + 1
        is_best = gain > 0 or (value == self.best and self._breaks_tie(epoch, history))
        if is_best:
            self.best, self.best_epoch = value, epoch
        return is_best

    def _breaks_tie(self, epoch: int, history: History) -> bool:
        """Return whether this epoch has a lower loss than the best one. Their metrics are equal."""
        if self.monitor in ("loss", "val_loss"):
            return False
        losses = history.get("val_loss", history["loss"])
        return self.best_epoch is not None and losses[epoch] < losses[self.best_epoch]

    def state_dict(self) -> dict[str, Any]:
        """Return `best`, `best_epoch` and `waited` by name."""
        return {"best": self.best, "best_epoch": self.best_epoch, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a `state_dict`. Raise ValueError for an impossible one before any change."""
        best, epoch, waited = (state.get(name) for name in ("best", "best_epoch", "waited"))
        has_best = isinstance(best, NUMBERS) and math.isfinite(best) and isinstance(epoch, int) and epoch >= 0
        if not (has_best or best is epoch is None) or not isinstance(waited, int) or waited < 0:
            raise ValueError(
                f"{self._name} has a state of best, best_epoch and waited, got {best!r}, {epoch!r}, {waited!r}"
            )
        self.best, self.best_epoch, self.waited = None if best is None else float(best), epoch, waited


@rename_attributes(_call="_epoch_hook", _named="_named_state")
class EarlyStopping(Monitor):
    """Ends training after `patience` epochs in a row that are not better than the best by more than `min_delta`.

    Parameters
    ----------
    monitor : str
        A name in the history.
    patience : int
        The number of epochs to wait.
    min_delta : float
        An epoch counts as better only if it beats the best one by more than this. Slow progress, by no more than this
        from one best epoch to the next, does not count.
    restore_best : bool
        Whether the model gets the parameters and buffers of the best epoch at the end. This happens however training
        ended: early, after all epochs, by Ctrl-C, TrainingDiverged or another exception. Before the first epoch is
        completed, there is no best one, and the model stays as it is. The optimizer keeps its state.
    mode : "auto", "min" or "max"
        Whether a lower or a higher value is better; see `Monitor`.

    Afterwards, `best` is the best value and `best_epoch` its epoch, counted from 0. Raise ValueError for a patience
    below 1, a negative min_delta or another mode. Raise ValueError before the first step if training does not measure
    `monitor`, or if its mode is not known.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 5,
        min_delta: float = 0.0,
        restore_best: bool = True,
        mode: str = "auto",
    ) -> None:
        super().__init__(monitor, patience, min_delta, mode)
        self.restore_best = bool(restore_best)

    def _reset(self) -> None:
        super()._reset()
        self._model: BaseModel | None = None
        self._named_state: tuple[dict[str, Tensor], dict[str, np.ndarray]] = {}, {}
        self._best_state: dict[str, np.ndarray] = {}
        # It may have looked at the last epochs without Python, and copied the state of the best of them.
        self._epoch_hook: BestHook | None = None
        self._copies: dict[str, np.ndarray] = {}

    def begin(self, training: Training) -> None:
        super().begin(training)
        self._model, self._named_state = training.model, named_state(training.model)

    def __call__(self, epoch: int, history: History) -> bool:
        calls = 0 if self._epoch_hook is None else self._epoch_hook.calls
        first_epoch = epoch + 1 - max(calls, 1)  # the first that `update` has not seen
        is_best = [self.update(i, history) for i in range(first_epoch, epoch + 1)]
        if any(is_best) and self.restore_best:
            self._best_state = self._copies if calls else {name: x.copy() for name, x in self._state().items()}
        self._epoch_hook = None
        return self.waited >= self.patience

    def make_epoch_hook(self, earlier_hooks: Sequence[EpochHook]) -> EpochHook | None:
        """Return a hook that does what `__call__` does after each epoch, or None if that needs Python."""
        evaluation = next((hook for hook in earlier_hooks if isinstance(hook, EvaluationHook)), None)
        if evaluation is None or not evaluation.has_loss_first or (self.monitor, self._mode) != ("val_loss", "min"):
            return None
        state = self._state() if self.restore_best else {}
        if not all(array.flags.c_contiguous for array in state.values()):
            return None
        self._copies = self._best_state or {name: np.empty_like(array) for name, array in state.items()}
        best = math.inf if self.best is None else self.best
        pairs = [(array, self._copies[name]) for name, array in state.items()]
        self._epoch_hook = BestHook(evaluation.replay, best, self.waited, self.patience, self.min_delta, pairs)
        return self._epoch_hook

    def _state(self) -> dict[str, np.ndarray]:
        """Return the arrays of the parameters and buffers by name."""
        parameters, buffers = self._named_state  # found once, because `state_dict` searches all names each time
        return {**{name: p.data for name, p in parameters.items()}, **buffers}

    def end(self) -> None:
        """Restore the best parameters and buffers: all of them, or none if Ctrl-C comes first."""
        model, state = self._model, self._best_state
        self._model, self._named_state, self._best_state = None, ({}, {}), {}
        self._epoch_hook, self._copies = None, {}
        if model is not None and state:
            with InterruptsBetweenSteps() as interrupts, interrupts.defer():
                model.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `Monitor`, and the best parameters and buffers: `model.0.weight` and so on."""
        return super().state_dict() | {f"model.{name}": array.copy() for name, array in self._best_state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a `state_dict`. Raise ValueError before any change if it is impossible, or is from another model."""
        best = {name.removeprefix("model."): array for name, array in state.items() if name.startswith("model.")}
        shapes = {name: np.shape(array) for name, array in best.items()}
        expected = {name: array.shape for name, array in self._state().items()}
        if not (self.restore_best and state.get("best") is not None):
            expected = {}
        if shapes != expected:
            raise ValueError(
                f"EarlyStopping: with restore_best={self.restore_best} expected {expected or 'no'} best parameters, "
                f"got {shapes or 'none'}"
            )
        super().load_state_dict(state)
        self._best_state = {name: np.array(array) for name, array in best.items()}


class ReduceLROnPlateau(Monitor):
    """Multiplies the learning rate by `factor` after `patience` epochs in a row that are not better than the best.

    Then it waits for `patience` epochs again. It multiplies the rates of all parameter groups. If there is a schedule,
    it multiplies the rates of all future steps. No rate falls below `min_lr`. `Monitor` defines "better". Raise
    ValueError unless 0 < factor < 1 and min_lr is 0 or more. Raise ValueError before the first step if training does
    not measure `monitor`, or if its mode is not known.
    """

    def __init__(
        self, monitor: str = "val_loss", factor: float = 0.1, patience: int = 5, mode: str = "auto", min_lr: float = 0.0
    ) -> None:
        super().__init__(monitor, patience, mode=mode)
        self.factor = check_positive("factor", factor, 1.0)
        self.min_lr = check_nonnegative("min_lr", min_lr)

    def begin(self, training: Training) -> None:
        super().begin(training)
        self._optimizer: Any = training.optimizer

    def __call__(self, epoch: int, history: History) -> None:
        self.update(epoch, history)
        if self.waited >= self.patience:
            self._optimizer.scale_lr(self.factor, self.min_lr)
            self.waited = 0

    def end(self) -> None:
        self._optimizer = None
