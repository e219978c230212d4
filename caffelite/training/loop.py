"""The training loop: take steps for a while, then call the listeners."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from caffelite._kernels import EpochHook
from caffelite._support.interrupts import Interrupts
from caffelite.optimizers import TrainingDiverged
from caffelite.training.epochs.base import Epochs
from caffelite.training.history import History


class Listener:
    """Base class for work beside the training steps. A method that is not overridden does nothing."""

    def due(self, done: int) -> float:
        """Return the epoch after which the loop must call it next. `done` epochs are done."""
        return math.inf

    def steps_until_due(self) -> float:
        """Return after how many more steps, at least 1, the loop must call `between_steps`."""
        return math.inf

    def begin(self, loop: Loop) -> None:
        """Act before the first step."""

    def steps_done(self, count: int, loop: Loop) -> None:
        """Act when `count` more steps are done."""

    def native_call(self, loop: Loop, earlier_calls: Sequence[EpochHook]) -> EpochHook | None:
        """Return the work after each epoch as a call without Python, None if it needs Python now.

        `earlier_calls` are the calls of the listeners before this one.
        """
        return None

    def next_python_epoch(self, done: int) -> float:
        """Return the epoch after which it needs Python, if `native_call` does the work after each epoch."""
        return math.inf

    def measure(self, loop: Loop, epochs: int) -> Sequence[Sequence[float]]:
        """Return this listener's numbers for the history, for each quantity one number per epoch."""
        return ()

    def epochs_done(self, count: int, loop: Loop) -> bool:
        """Act when `count` more epochs are done and in the history. Return True to end the training."""
        return False

    def between_steps(self) -> bool | None:
        """Act between two steps, when all state of the training is complete and may be saved.

        Return True to end the training.
        """

    def exclude_time(self, seconds: float) -> None:
        """Leave out these seconds, in which the training has waited and no step was taken."""

    def end(self) -> None:
        """Act when the training is over, also if an exception ended it."""


class Loop:
    """Run epochs until all are done, or until a listener ends the training.

    Parameters
    ----------
    until : int
        The total number of epochs, including the epochs done before.
    listeners : sequence of Listener
        Called in this order, and ended in this order. They begin in the reverse order.
    history : History
        Gets one number for each quantity and epoch.
    """

    epochs: Epochs

    def __init__(
        self,
        max_epochs: int,
        listeners: Sequence[Listener],
        history: History,
        interrupts: Interrupts,
    ) -> None:
        self.max_epochs, self.listeners, self.history, self.interrupts = max_epochs, listeners, history, interrupts
        self.should_stop = False

    def run(self, make_epochs: Callable[[], Epochs]) -> None:
        """Train. When all listeners have begun, `make_epochs` prepares the data."""
        pending = list(self.listeners)
        try:
            while pending:
                pending[-1].begin(self)
                pending.pop()
            if not self.should_stop:
                self.epochs = make_epochs()
                while self.epochs.epoch < self.max_epochs and not self.should_stop:
                    self.advance()
        finally:
            try:
                self._close_epochs()
            finally:  # users' callbacks end last: if one raises, all other listeners have ended
                for listener in self.listeners[len(pending) :]:
                    listener.end()

    def _close_epochs(self) -> None:
        """Close the data, and free its memory now instead of at the next garbage collection."""
        if hasattr(self, "epochs"):
            epochs = self.epochs
            del self.epochs
            epochs.close()

    def advance(self) -> None:
        """Take steps for a while, or until an epoch at which a listener is due. Then call all listeners."""
        epochs, done, steps, interruption = self.epochs, self.epochs.epoch, self.epochs.steps, None
        due = self.next_python_epoch(done)
        next_stop = min(self.max_epochs, max(due, done + 1), epochs.last_epoch(done))
        try:
            epochs.run_until(int(next_stop), self.steps_until_due())
        except (KeyboardInterrupt, TrainingDiverged) as error:
            interruption = error
        for listener in self.listeners:
            listener.steps_done(epochs.steps - steps, self)
        if epochs.epoch > done and (interruption is None or due > done + 1):  # whole epochs are done
            self.should_stop = self.end_epochs(done)
        if interruption is not None:
            raise interruption
        if not self.should_stop:
            for listener in self.listeners:
                self.should_stop |= listener.between_steps() is True

    def next_python_epoch(self, done: int) -> float:
        """Return the earliest epoch after which a listener needs Python. The epochs make all other calls."""
        calls: list[EpochHook] = []
        next_epoch = math.inf
        for listener in self.listeners:
            due = listener.due(done)
            if (
                due <= done + 1
                and self.epochs.has_native_calls
                and (call := listener.native_call(self, calls)) is not None
            ):
                calls.append(call)
                due = listener.next_python_epoch(done)
            next_epoch = min(next_epoch, due)
        if next_epoch <= done + 1 or self.epochs.returns_each_epoch:  # each epoch comes back to Python
            calls, next_epoch = [], done + 1
        self.epochs.set_native_calls(calls)
        return next_epoch

    def steps_until_due(self) -> float:
        """Return after how many more steps a listener must be called."""
        return min([listener.steps_until_due() for listener in self.listeners], default=math.inf)

    def end_epochs(self, done: int) -> bool:
        """Add the results since epoch `done` to the history, and call all. Return whether the training ends."""
        results = self.epochs.results(done).T.tolist()
        for listener in self.listeners:
            results += listener.measure(self, len(results[0]))
        with self.interrupts.defer():
            for values, new_values in zip(self.history.values(), results, strict=True):
                values.extend(new_values)
        should_stop = False
        for listener in self.listeners:
            should_stop |= listener.epochs_done(self.epochs.epoch - done, self)
        return should_stop
