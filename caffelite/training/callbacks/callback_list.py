"""The callbacks that a user gives to a training, as one hook of the loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import numpy as np

from caffelite._kernels import EpochHook
from caffelite._support.tracebacks import error_note
from caffelite._support.warnings import warn
from caffelite.data.generator import is_replayed
from caffelite.training.callbacks.averaging import AverageWeights
from caffelite.training.callbacks.base import LoopHook, Training
from caffelite.training.callbacks.checkpoint import Checkpoint
from caffelite.training.callbacks.early_stopping import EarlyStopping
from caffelite.training.history import History

# The names of callback methods in other frameworks.
FOREIGN_METHODS = [
    f"on_{what}_{when}"
    for what in ("train", "fit", "epoch", "train_epoch", "batch", "train_batch")
    for when in ("begin", "start", "end")
]


class CallbackList(LoopHook):
    """The hook that calls a user's callbacks (epoch, history), and those methods that they have.

    Each that has begun is ended, in their order, even if another one raises. Raise TypeError if one cannot be called.
    """

    def __init__(self, callbacks: Iterable[Callable[[int, History], Any]]) -> None:
        if callable(callbacks) or not isinstance(callbacks, Iterable):
            raise TypeError(f"callbacks: expected a list of callables (epoch, history), got {callbacks!r}")
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            _check_callback(callback)
        averages = [callback for callback in self.callbacks if isinstance(callback, AverageWeights)]
        if len(averages) > 1:
            raise ValueError("callbacks: expected one AverageWeights, because a model can end with one average only")
        self.average = averages[0] if averages else None
        self._call_order = sorted(self.callbacks, key=lambda callback: isinstance(callback, Checkpoint))
        self._step_counters, self._step_timers = self._select("steps_done"), self._select("steps_until_due")
        self._between_steps = sorted(
            self._select("between_steps"), key=lambda callback: not hasattr(callback, "steps_done")
        )
        self._max_steps: float = math.inf  # between two calls of `between_steps`
        self._begun_callbacks: list[Any] = []
        self.should_stop = False  # whether one of them has ended the training

    def _select(self, method: str) -> list[Any]:
        """Return the callbacks that have this method."""
        return [callback for callback in self.callbacks if hasattr(callback, method)]

    def attach(self, training: Training, restore: Callable[[], None] | None = None) -> CallbackList:
        """Set the training, and what restores a checkpoint's states when the callbacks have begun. Return self."""
        self._training: Training | None = training
        self._restore = restore
        if not is_replayed(training.batches) and not all(hasattr(c, "steps_until_due") for c in self._between_steps):
            self._max_steps = 1  # they are called after each batch that Python makes
        return self

    def begin(self) -> bool:
        with ExitStack() as stack:
            stack.callback(self.end)
            for callback in self.callbacks:
                if hasattr(callback, "begin"):
                    callback.begin(self._training)
                self._begun_callbacks.append(callback)
            if self._restore is not None:
                self._restore()
            stack.pop_all()
        return self.should_stop

    def next_python_epoch(self, done: int, epoch_hooks: list[EpochHook] | None) -> float:
        """Return the epoch after which a callback needs Python. Only a single EarlyStopping has an epoch hook."""
        epochs = [callback.due(done) if hasattr(callback, "due") else done + 1 for callback in self.callbacks]
        due_now = [callback for callback, epoch in zip(self.callbacks, epochs, strict=True) if epoch <= done + 1]
        later = min([epoch for epoch in epochs if epoch > done + 1], default=math.inf)
        if not due_now:
            return later
        if epoch_hooks is not None and len(due_now) == 1 and type(due_now[0]) is EarlyStopping:
            epoch_hook = due_now[0].make_epoch_hook(epoch_hooks)
            if epoch_hook is not None:
                epoch_hooks.append(epoch_hook)
                return later
        return done + 1

    def steps_until_due(self) -> float:
        return min([self._max_steps, *[float(callback.steps_until_due()) for callback in self._step_timers]])

    def step(self, count: int, loss: Callable[[], float]) -> None:
        if count > 0:
            for callback in self._step_counters:
                callback.steps_done(count)

    def epoch(self, count: int, history: History) -> bool:
        with error_note(lambda: f"in a callback after epoch {history.epochs}, called by fit"):
            return self(history.epochs - 1, history)

    def __call__(self, epoch: int, history: History) -> bool:
        """Call all callbacks, each `Checkpoint` last. Return whether one of them ends the training."""
        lengths = _lengths(history)
        self._count_disturbance()
        for callback in self._call_order:
            stop = callback(epoch, history)
            if _lengths(history) != lengths:
                raise RuntimeError(
                    f"the callback {callback!r} changed the history from {lengths} to {_lengths(history)} numbers; "
                    "fit writes it, so callbacks may only change numbers that are there"
                )
            self.should_stop |= bool(isinstance(stop, bool | np.bool_) and stop)
        return self.should_stop

    def between_steps(self) -> bool:
        """Call all that have such a method; those that count steps come first."""
        if self._between_steps:
            self._count_disturbance()
        for callback in self._between_steps:
            self.should_stop |= callback.between_steps() is True
        return self.should_stop

    def _count_disturbance(self) -> None:
        """Note that callbacks run between steps, and with them perhaps a user's Python."""
        if self._training is not None and self.callbacks:
            self._training.model._model_state.programs.disturbances += 1

    def end(self) -> None:
        self._training = self._restore = None
        with ExitStack() as stack:  # it calls each, in reverse order, even if others raise
            for callback in reversed(self._begun_callbacks):
                if hasattr(callback, "end"):
                    stack.callback(callback.end)

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights that it would have if the training ended now."""
        return nullcontext() if self.average is None else self.average.averaged_weights()

    def states(self) -> list[tuple[Any, dict[str, Any]]]:
        """Return the callbacks that have a state that is not empty, and these states."""
        states = [(callback, callback.state_dict()) for callback in self._select("state_dict")]
        return [(callback, state) for callback, state in states if state]


def _check_callback(callback: Any) -> None:
    """Raise TypeError if it cannot be called. Warn of methods that another framework would call."""
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


def _lengths(history: History) -> dict[str, int]:
    return {name: len(values) for name, values in history.items()}
