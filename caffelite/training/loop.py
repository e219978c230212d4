"""The training loop: take steps for a while, then call the listeners."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from caffelite._kernels import AfterEpoch
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
        """Called before the first step."""

    def steps_done(self, count: int, loop: Loop) -> None:
        """Called when `count` more steps are done."""

    def call(self, loop: Loop, others: Sequence[AfterEpoch]) -> AfterEpoch | None:
        """Return the work after each epoch as a call without Python, None if it needs Python now.

        `others` are the calls of the listeners before this one.
        """
        return None

    def due_besides(self, done: int) -> float:
        """Return the epoch after which it needs Python, if `call` does the work after each epoch."""
        return math.inf

    def measure(self, loop: Loop, epochs: int) -> Sequence[Sequence[float]]:
        """Return this listener's numbers for the history, after so many epochs: for each quantity one an epoch."""
        return ()

    def epochs_done(self, count: int, loop: Loop) -> bool:
        """Called when `count` more epochs are done and in the history. Return True to end the training."""
        return False

    def between_steps(self) -> bool | None:
        """Called between two steps, when all state of the training is complete and may be saved.

        Return True to end the training.
        """

    def waited(self, seconds: float) -> None:
        """Called after the training has waited for so many seconds. No step took this time."""

    def end(self) -> None:
        """Called when the training is over, also if an exception ended it."""


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
        until: int,
        listeners: Sequence[Listener],
        history: History,
        interrupts: Interrupts,
    ) -> None:
        self.until, self.listeners, self.history, self.interrupts = until, listeners, history, interrupts
        self.ended = False

    def run(self, make_epochs: Callable[[], Epochs]) -> None:
        """Train. When all listeners have begun, `make_epochs` prepares the data."""
        waiting = list(self.listeners)
        try:
            while waiting:
                waiting[-1].begin(self)
                waiting.pop()
            if not self.ended:
                self.epochs = make_epochs()
                while self.epochs.epoch < self.until and not self.ended:
                    self.advance()
        finally:
            try:
                self._leave()
            finally:  # users' callbacks end last: if one raises, all other listeners have ended
                for listener in self.listeners[len(waiting) :]:
                    listener.end()

    def _leave(self) -> None:
        """Close the data, and free its memory now instead of at the next garbage collection."""
        if hasattr(self, "epochs"):
            epochs = self.epochs
            del self.epochs
            epochs.close()

    def advance(self) -> None:
        """Take steps for a while, or until an epoch at which a listener is due. Then call all listeners."""
        epochs, done, steps, stopped = self.epochs, self.epochs.epoch, self.epochs.steps, None
        due = self.next_due(done)
        next_stop = min(self.until, max(due, done + 1), epochs.last(done))
        try:
            epochs.run_until(int(next_stop), self.steps_until_due())
        except (KeyboardInterrupt, TrainingDiverged) as error:
            stopped = error
        for listener in self.listeners:
            listener.steps_done(epochs.steps - steps, self)
        if epochs.epoch > done and (stopped is None or due > done + 1):  # whole epochs are done
            self.ended = self.tell(done)
        if stopped is not None:
            raise stopped
        if not self.ended:
            for listener in self.listeners:
                self.ended |= listener.between_steps() is True

    def next_due(self, done: int) -> float:
        """Return the earliest epoch after which a listener needs Python. The epochs make the calls of the others."""
        calls: list[AfterEpoch] = []
        later = math.inf
        for listener in self.listeners:
            due = listener.due(done)
            if due <= done + 1 and self.epochs.makes_calls and (call := listener.call(self, calls)) is not None:
                calls.append(call)
                due = listener.due_besides(done)
            later = min(later, due)
        if later <= done + 1 or self.epochs.is_told_each:  # each epoch comes back to Python
            calls, later = [], done + 1
        self.epochs.call_after_each(calls)
        return later

    def steps_until_due(self) -> float:
        """Return after how many more steps a listener must be called."""
        return min([listener.steps_until_due() for listener in self.listeners], default=math.inf)

    def tell(self, done: int) -> bool:
        """Add the results since epoch `done` to the history, and call all. Return whether the training ends."""
        results = self.epochs.results(done).T.tolist()
        for listener in self.listeners:
            results += listener.measure(self, len(results[0]))
        with self.interrupts.defer():
            for values, new in zip(self.history.values(), results, strict=True):
                values.extend(new)
        ends = False
        for listener in self.listeners:
            ends |= listener.epochs_done(self.epochs.epoch - done, self)
        return ends
