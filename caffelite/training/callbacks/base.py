"""The callbacks of a training, and what they get; EarlyStopping, ReduceLROnPlateau and Checkpoint."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from caffelite._kernels import BestHook, EpochHook, EvaluationHook
from caffelite._support.interrupts import InterruptsBetweenSteps
from caffelite._support.moved_modules import rename_attributes
from caffelite._support.warnings import warn
from caffelite.core.arrays import NUMBERS, check_nonnegative, check_positive, check_positive_integer
from caffelite.core.function import Function
from caffelite.core.tensor import Tensor
from caffelite.files.atomic import check_writable
from caffelite.files.safetensors import HeaderSizeError, encode_arrays
from caffelite.files.state import make_texts, named_state, state_arrays
from caffelite.training.callbacks.averaging import AverageWeights
from caffelite.training.history import History
from caffelite.training.metrics.base import Metric, OutputMetric, find_mode


class Training(NamedTuple):
    """The training, as a callback's `begin` gets it."""

    model: Any  #: The model to train.
    optimizer: Any  #: The optimizer that updates the model; None in `caffelite.minimize`.
    loss: Function  #: The loss to minimize.
    history: History  #: Loss and metrics, epoch by epoch.
    write: Any = None  #: Writes a checkpoint to a path: from `between_steps`, or after an epoch.
    processes: Any = None  #: The processes that share each batch. None: there is only one process.
    metrics: Mapping[str, Metric | OutputMetric] = {}  #: The metrics, by name.
    batches: Any = None  #: The training data: a DataGenerator, or another iterable of batches.
    epochs: int | None = None  #: The number of epochs, with those before. None: it is not known.
    validation: Any = None  #: The data for the evaluation after each epoch, or None.
    loss_so_far: Callable[[], float] | None = None  #: Returns the current epoch's mean loss, NaN before its first step.
    steps_per_epoch: int | None = None  #: None: it is not known.
    exclude_time: Callable[[float], None] | None = None  #: Call it after so many seconds of waiting: no step took them.
    averaged_weights: Callable[[], AbstractContextManager[None]] = (
        nullcontext  #: Inside, the model has averaged weights.
    )

    @property
    def is_main(self) -> bool:
        """Whether this process writes files. With several ranks, only rank 0 does."""
        return self.processes is None or self.processes.is_main

    def broadcast(self, value: bool) -> bool:
        """Return rank 0's value on all ranks, for decisions that depend on time, for example."""
        return value if self.processes is None else bool(self.processes.broadcast(value))


# The names of callback methods in other frameworks.
FOREIGN_METHODS = [
    f"on_{what}_{when}"
    for what in ("train", "fit", "epoch", "train_epoch", "batch", "train_batch")
    for when in ("begin", "start", "end")
]


class CallbackList:
    """The callbacks of one training. The `with` block begins and ends them.

    If a callback's `begin` raises, the others that have begun are ended. Raise TypeError if one cannot be called.
    """

    def __init__(self, callbacks: Iterable[Callable[[int, History], Any]]) -> None:
        if callable(callbacks) or not isinstance(callbacks, Iterable):
            raise TypeError(f"callbacks: expected a list of callables (epoch, history), got {callbacks!r}")
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            not_called = [name for name in FOREIGN_METHODS if hasattr(type(callback), name)]
            if not callable(callback) or isinstance(callback, type):
                raise TypeError(
                    f"callbacks: expected callables (epoch, history), got {callback!r}, "
                    + ("a class: give an instance of it" if isinstance(callback, type) else "which has no __call__")
                    + (f" (caffelite does not call {', '.join(not_called)})" if not_called else "")
                )
            if not_called:
                warn(
                    f"caffelite does not call {', '.join(not_called)} of {type(callback).__name__}: a callback has "
                    "begin(training), __call__(epoch, history) after each epoch, and end()"
                )
        if len(self.averages) > 1:
            raise ValueError("callbacks: expected one AverageWeights, because a model can end with one average only")
        self._call_order = sorted(self.callbacks, key=lambda callback: isinstance(callback, Checkpoint))
        self._step_counters = [callback for callback in self.callbacks if hasattr(callback, "steps_done")]
        self._step_timers = [callback for callback in self.callbacks if hasattr(callback, "steps_until_due")]
        self._begun_callbacks: list[Any] = []
        self.should_stop = False  # whether one of them has ended the training

    def __len__(self) -> int:
        return len(self.callbacks)

    def attach(self, training: Training) -> CallbackList:
        """Set the training and return self, for a `with` block."""
        self._training: Training | None = training
        return self

    def __enter__(self) -> CallbackList:
        if not self.callbacks:
            return self
        with ExitStack() as stack:
            stack.callback(self._end)
            for callback in self.callbacks:
                if hasattr(callback, "begin"):
                    callback.begin(self._training)
                self._begun_callbacks.append(callback)
            stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.callbacks:
            self._end()

    def __call__(self, epoch: int, history: History) -> bool:
        """Call all callbacks, each `Checkpoint` last. Return whether one of them ends the training."""
        lengths = _lengths(history)
        for callback in self._call_order:
            stop = callback(epoch, history)
            if _lengths(history) != lengths:
                raise RuntimeError(
                    f"the callback {callback!r} changed the history from {lengths} to {_lengths(history)} numbers; "
                    "fit writes it, so callbacks may only change numbers that are there"
                )
            self.should_stop |= bool(isinstance(stop, bool | np.bool_) and stop)
        return self.should_stop

    def due(self, epochs: int) -> float:
        """Return the epoch after which a callback must be called next, when `epochs` are completed."""
        return min([due for _, due in self._due_epochs(epochs)], default=math.inf)

    def native_call(self, epochs: int, earlier_calls: Sequence[EpochHook]) -> EpochHook | None:
        """Return the work after the next epoch as a call without Python, None if there is no such call.

        There is one if only an EarlyStopping has work then.
        """
        due_callbacks = [callback for callback, due in self._due_epochs(epochs) if due <= epochs + 1]
        stopper = due_callbacks[0] if len(due_callbacks) == 1 else None
        return (
            stopper.native_call(earlier_calls)
            if isinstance(stopper, EarlyStopping) and type(stopper) is EarlyStopping
            else None
        )

    def next_python_epoch(self, epochs: int) -> float:
        """Return the epoch after which a callback is due next. Callbacks due after the next epoch don't count."""
        return min([due for _, due in self._due_epochs(epochs) if due > epochs + 1], default=math.inf)

    def _due_epochs(self, epochs: int) -> list[tuple[Any, float]]:
        return [(x, x.due(epochs) if hasattr(x, "due") else epochs + 1) for x in self.callbacks]

    def steps_until_due(self) -> float:
        """Return after how many more steps a callback must be called between two steps."""
        return min([callback.steps_until_due() for callback in self._step_timers], default=math.inf)

    def steps_done(self, count: int) -> None:
        """Tell the callbacks that `count` more steps are done."""
        for callback in self._step_counters:
            callback.steps_done(count)

    @property
    def between_steps(self) -> Callable[[], bool] | None:
        """A function to call now and then between two steps, or None. It calls callbacks that count steps first.

        It returns whether one of them ends the training.
        """
        non_counters = [callback for callback in self.callbacks if not hasattr(callback, "steps_done")]
        hooks = [x.between_steps for x in (*self._step_counters, *non_counters) if hasattr(x, "between_steps")]

        def call_all() -> bool:
            for call in hooks:
                self.should_stop |= call() is True
            return self.should_stop

        return call_all if hooks else None

    @property
    def averages(self) -> list[AverageWeights]:
        """The callbacks that average the weights."""
        return [callback for callback in self.callbacks if isinstance(callback, AverageWeights)]

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights that it would have if the training ended now."""
        return self.averages[0].averaged_weights() if self.averages else nullcontext()

    def stateful_callbacks(self) -> list[Any]:
        """Return the callbacks that have a state that is not empty."""
        return [callback for callback in self.callbacks if hasattr(callback, "state_dict") and callback.state_dict()]

    def states(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the class names and the states of the callbacks that have a state."""
        return [(type(callback).__name__, callback.state_dict()) for callback in self.stateful_callbacks()]

    def _end(self) -> None:
        self._training = None
        with ExitStack() as stack:  # it calls each, in reverse order, even if others raise
            for callback in reversed(self._begun_callbacks):
                if hasattr(callback, "end"):
                    stack.callback(callback.end)


def _lengths(history: History) -> dict[str, int]:
    return {name: len(values) for name, values in history.items()}


class Monitor:
    """Base class of callbacks that watch a quantity of the history: its best value, and the epochs since.

    With `mode="max"` a higher value is better, with "min" a lower one. "auto" knows the built-in names, with or without
    `val_`, and the modes given to `caffelite.metrics.metric`. For all other names it raises ValueError before the first
    step.

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
        """Its name in messages."""
        return type(self).__name__

    def _reset(self) -> None:
        self.best, self.best_epoch, self.waited = None, None, 0
        self._has_warned = False

    def begin(self, training: Training) -> None:
        """Reset. Raise ValueError if the training does not measure `monitor`, or if its mode is not known."""
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
        """Whether this epoch has a lower loss than the best one. Their metrics are equal."""
        if self.monitor in ("loss", "val_loss"):
            return False
        losses = history.get("val_loss", history["loss"])
        return losses[epoch] < losses[self.best_epoch]

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


@rename_attributes(_named="_named_state")
class EarlyStopping(Monitor):
    """Ends the training after `patience` epochs in a row that are not better than the best by more than `min_delta`.

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
        Whether the model gets the parameters and buffers of the best epoch at the end. This happens however the
        training ended: early, after all its epochs, by Ctrl-C, TrainingDiverged or another exception. Before the first
        epoch is completed there is no best one, and the model stays as it is. The optimizer keeps its state.
    mode : "auto", "min" or "max"
        Whether a lower or a higher value is better; see `Monitor`.

    Afterwards `best` is the best value and `best_epoch` its epoch, counted from 0. Raise ValueError for a patience
    below 1, a negative min_delta or another mode. Raise ValueError before the first step if the training does not
    measure `monitor`, or if its mode is not known.
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
        self._model: Any = None
        self._named_state: tuple[dict[str, Tensor], dict[str, np.ndarray]] = {}, {}
        self._best_state: dict[str, np.ndarray] = {}
        self._call: BestHook | None = None  # which may have looked at the last epochs,
        self._copies: dict[str, np.ndarray] = {}  # and has copied the state of the best of them

    def begin(self, training: Training) -> None:
        super().begin(training)
        self._model, self._named_state = training.model, named_state(training.model)

    def __call__(self, epoch: int, history: History) -> bool:
        calls = 0 if self._call is None else self._call.calls
        is_best = [self.update(i, history) for i in range(epoch + 1 - max(calls, 1), epoch + 1)]
        if any(is_best) and self.restore_best:
            self._best_state = self._copies if calls else {name: x.copy() for name, x in self._state().items()}
        self._call = None
        return self.waited >= self.patience

    def native_call(self, earlier_calls: Sequence[EpochHook]) -> EpochHook | None:
        """Return what `__call__` does after each epoch as a call without Python, None if there is none."""
        evaluation = next((call for call in earlier_calls if isinstance(call, EvaluationHook)), None)
        if evaluation is None or not evaluation.has_loss_first or (self.monitor, self._mode) != ("val_loss", "min"):
            return None
        state = self._state() if self.restore_best else {}
        if not all(array.flags.c_contiguous for array in state.values()):
            return None
        self._copies = self._best_state or {name: np.empty_like(array) for name, array in state.items()}
        best = math.inf if self.best is None else self.best
        pairs = [(array, self._copies[name]) for name, array in state.items()]
        self._call = BestHook(evaluation.replay, best, self.waited, self.patience, self.min_delta, pairs)
        return self._call

    def _state(self) -> dict[str, np.ndarray]:
        """Return the arrays of the parameters and buffers by name."""
        parameters, buffers = self._named_state  # found once, because `state_dict` searches all names each time
        return {**{name: p.data for name, p in parameters.items()}, **buffers}

    def end(self) -> None:
        """Restore the best parameters and buffers: all of them, or none if Ctrl-C comes first."""
        model, state = self._model, self._best_state
        self._model, self._named_state, self._best_state = None, ({}, {}), {}
        self._call, self._copies = None, {}
        if state:
            with InterruptsBetweenSteps() as interrupts, interrupts.defer():
                model.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `Monitor`, and the best parameters and buffers: `model.0.weight` and so on."""
        return super().state_dict() | {f"model.{name}": array.copy() for name, array in self._best_state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a `state_dict`. Raise ValueError before any change if it is impossible, or not of this model."""
        best = {name.removeprefix("model."): array for name, array in state.items() if name.startswith("model.")}
        shapes = {name: np.shape(array) for name, array in best.items()}
        expected = {name: array.shape for name, array in self._model.state_dict().items()}
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

    Then it waits for `patience` epochs again. It multiplies the rates of all parameter groups, and of a schedule the
    rates of future steps. `Monitor` defines "better". Raise ValueError unless 0 < factor < 1. Raise ValueError before
    the first step if the training does not measure `monitor`, or if its mode is not known.
    """

    def __init__(self, monitor: str = "val_loss", factor: float = 0.1, patience: int = 5, mode: str = "auto") -> None:
        super().__init__(monitor, patience, mode=mode)
        self.factor = check_positive("factor", factor, 1.0)

    def begin(self, training: Training) -> None:
        super().begin(training)
        self._optimizer: Any = training.optimizer

    def __call__(self, epoch: int, history: History) -> None:
        self.update(epoch, history)
        if self.waited >= self.patience:
            self._optimizer.scale_lr(self.factor)
            self.waited = 0

    def end(self) -> None:
        self._optimizer = None


class _CheckpointMonitor(Monitor):
    _name = "Checkpoint"


class Checkpoint:
    """Writes the training to a file. `fit(…, resume=path)` continues from it, to the same bits.

    `caffelite.load` reads the model from this file.

    Parameters
    ----------
    path : path
        One file for all epochs. A complete new file replaces an older one. For one file per epoch, use
        `lambda epoch, history: model.save(f"{epoch}.safetensors")`.
    monitor : str, optional
        A name in the history. Only an epoch that is better than all before is written. `Monitor` defines "better".
    every : int
        Write after each `every` epochs. With a `monitor`, write after each better epoch instead.
    seconds : float, optional
        Write each time this many seconds have passed, also in the middle of an epoch, instead of after `every` epochs.
    mode : "auto", "min" or "max"
        Whether a lower or a higher value of `monitor` is better.

    All other callbacks are called before it writes. If a later write fails, for example on a full disk, caffelite gives
    a RuntimeWarning: the training goes on, the older checkpoint stays, and the next one is tried. Raise OSError before
    the first step if the folder does not exist. Raise ValueError if the training does not measure `monitor`, if the
    model's names are too long for a file, for `every` below 1 and for negative `seconds`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        monitor: str | None = None,
        every: int = 1,
        seconds: float | None = None,
        mode: str = "auto",
    ) -> None:
        self.path = Path(path).absolute()
        self.every = check_positive_integer("every", every)
        self.seconds = None if seconds is None else check_nonnegative("seconds", seconds)
        self._monitor = None if monitor is None else _CheckpointMonitor(monitor, 1, mode=mode)
        if monitor is not None and seconds is not None:
            raise ValueError("Checkpoint takes a monitor, which compares epochs, or seconds, but not both")
        if monitor is None and mode != "auto":
            raise ValueError(f"Checkpoint: mode={mode!r} says which values of a monitor are better; give monitor=, too")

    def begin(self, training: Training) -> None:
        """Reset. Raise OSError if the file cannot be written, and ValueError if the model cannot be saved."""
        if training.is_main:
            check_writable(self.path)
            encode_arrays(self.path, state_arrays(training.model), make_texts(training.model))
        self._write: Any = training.write
        self._broadcast: Any = training.broadcast
        self._last_write = time.monotonic()
        if self._monitor is not None:
            self._monitor.begin(training)

    def __call__(self, epoch: int, history: History) -> None:
        if self._monitor is not None:
            is_due = self._monitor.update(epoch, history)
        else:
            is_due = self.seconds is None and (epoch + 1) % self.every == 0
        if is_due:
            self._write_now()

    def between_steps(self) -> None:
        """Write if `seconds` have passed since the last time."""
        if self.seconds is not None and self._broadcast(time.monotonic() - self._last_write >= self.seconds):
            self._write_now()

    def _write_now(self) -> None:
        try:
            self._write(self.path)
        except (OSError, HeaderSizeError) as error:
            warnings.warn(f"no checkpoint was saved: {error}; the training continues", RuntimeWarning, stacklevel=2)
        self._last_write = time.monotonic()

    def end(self) -> None:
        self._write = self._broadcast = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `Monitor`, or {} without a monitor."""
        return {} if self._monitor is None else self._monitor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a `state_dict`. Raise ValueError for an impossible one."""
        if self._monitor is not None:
            self._monitor.load_state_dict(state)
