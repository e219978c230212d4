"""Listeners of the training loop: validation, progress, schedules and the user's callbacks."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

from caffelite._kernels import EpochHook
from caffelite._support.tracebacks import error_note
from caffelite.optimizers import Optimizer
from caffelite.training.callbacks.averaging import AverageWeights
from caffelite.training.callbacks.base import CallbackList, Training
from caffelite.training.callbacks.progress import Progress
from caffelite.training.epochs.evaluation import Evaluation
from caffelite.training.loop import Listener, Loop


class AveragingListener(Listener):
    """Gives the model its average weights after an epoch and at the end, and takes them back before further steps.

    It is the first listener, so validation and callbacks see the average.
    """

    def __init__(self, averages: list[AverageWeights]) -> None:
        self.averages = averages

    def due(self, done: int) -> float:
        return done + 1 if self.averages else math.inf

    def measure(self, loop: Loop, epochs: int) -> Sequence[Sequence[float]]:
        for average in self.averages:
            average.apply_average()
        return ()

    def between_steps(self) -> None:
        for average in self.averages:
            average.restore_weights()

    def end(self) -> None:
        for average in self.averages:
            average.apply_average()


class ValidationListener(Listener):
    """Evaluates the validation data after each epoch."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation

    def due(self, done: int) -> float:
        return done + 1

    def native_call(self, loop: Loop, earlier_calls: Sequence[EpochHook]) -> EpochHook | None:
        return self.evaluation.native_call()

    def measure(self, loop: Loop, epochs: int) -> Sequence[Sequence[float]]:
        return list(zip(*self.evaluation.results(epochs), strict=True))


class ProgressListener(Listener):
    """Shows the progress. With `every_epoch`, the loop calls it after each epoch."""

    def __init__(self, progress: Progress, every_epoch: bool) -> None:
        self.progress, self.every_epoch = progress, every_epoch

    def due(self, done: int) -> float:
        return done + 1 if self.every_epoch else math.inf

    def begin(self, loop: Loop) -> None:
        self.progress.__enter__()

    def steps_done(self, count: int, loop: Loop) -> None:
        self.progress.steps_done(count, loop.epochs.loss)

    def epochs_done(self, count: int, loop: Loop) -> bool:
        self.progress.epochs_done(count, {name: values[-1] for name, values in loop.history.items()})
        return False

    def exclude_time(self, seconds: float) -> None:
        self.progress.exclude_time(seconds)

    def end(self) -> None:
        self.progress.__exit__()


class SharedProgressListener(Listener):
    """Shows the progress of one of several trainings, which have a Progress and its lock in common.

    `progress.epochs` counts the epochs of all trainings. With `every_epoch`, the loop calls it after each epoch.
    """

    def __init__(self, progress: Progress, lock: threading.Lock, every_epoch: bool) -> None:
        self.progress, self.lock, self.every_epoch = progress, lock, every_epoch

    def due(self, done: int) -> float:
        return done + 1 if self.every_epoch else math.inf

    def begin(self, loop: Loop) -> None:
        self.loop = loop

    def steps_done(self, count: int, loop: Loop) -> None:
        with self.lock:
            self.progress.steps_done(count, lambda: math.nan)

    def epochs_done(self, count: int, loop: Loop) -> bool:
        with self.lock:
            self.progress.epochs_done(count, {name: values[-1] for name, values in loop.history.items()})
        return False

    def end(self) -> None:
        """Leave out the epochs that an early end has saved."""
        with self.lock:
            self.progress.epochs -= self.loop.max_epochs - self.loop.history.epochs


class ScheduleListener(Listener):
    """Warns if a schedule ends before the training, if the number of steps is not known."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.watch = optimizer._schedule_state.add_end_warning(None)

    def between_steps(self) -> None:
        if self.watch is not None:
            self.watch()


class CallbackListener(Listener):
    """Calls the callbacks of a training. When they have begun, `restore` may give them the state of a checkpoint."""

    def __init__(self, callbacks: CallbackList, training: Training, restore: Callable[[], None] | None = None) -> None:
        self.callbacks, self.training, self.restore = callbacks, training, restore
        self.call_between_steps = callbacks.between_steps

    def due(self, done: int) -> float:
        return self.callbacks.due(done)

    def native_call(self, loop: Loop, earlier_calls: Sequence[EpochHook]) -> EpochHook | None:
        return self.callbacks.native_call(loop.history.epochs, earlier_calls)

    def next_python_epoch(self, done: int) -> float:
        return self.callbacks.next_python_epoch(done)

    def steps_until_due(self) -> float:
        return self.callbacks.steps_until_due()

    def steps_done(self, count: int, loop: Loop) -> None:
        if count > 0:
            self.callbacks.steps_done(count)

    def begin(self, loop: Loop) -> None:
        self.callbacks.attach(self.training).__enter__()
        try:
            if self.restore is not None:
                self.restore()
        except BaseException:
            self.end()
            raise
        loop.should_stop = self.callbacks.should_stop

    def epochs_done(self, count: int, loop: Loop) -> bool:
        with error_note(lambda: f"in a callback after epoch {loop.history.epochs}, called by fit"):
            return self.callbacks(loop.history.epochs - 1, loop.history)

    def between_steps(self) -> bool:
        return self.call_between_steps is not None and self.call_between_steps()

    def end(self) -> None:
        self.callbacks.__exit__()
