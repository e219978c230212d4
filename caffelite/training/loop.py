"""The loop of a training: go on for a while, then tell those who listen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from caffelite.core.interrupts import InterruptsBetweenSteps
from caffelite.optimizers import TrainingDiverged
from caffelite.training.epochs import Epochs
from caffelite.training.history import History


class Listener:
    """What may happen beside the steps of a training. Each method does nothing unless it is overridden."""

    def due(self, done: int) -> float:
        """After how many epochs it has to be told next, so many being done."""
        return math.inf

    def begin(self, loop: Loop) -> None:
        """The first step comes next."""

    def steps_done(self, count: int, loop: Loop) -> None:
        """So many steps more are done."""

    def measure(self, loop: Loop) -> Sequence[float]:
        """Numbers of its own for the history of the epoch that is done."""
        return ()

    def epochs_done(self, count: int, loop: Loop) -> bool:
        """So many epochs more are done, and in the history. Return True to end the training."""
        return False

    def between_steps(self) -> None:
        """It is a good moment to look at the training as a whole."""

    def end(self) -> None:
        """The training is over, or an exception has ended it."""


class Loop:
    """Epochs of steps until all are done, or until a listener ends the training.

    Parameters
    ----------
    model, team
        What is trained, and who trains it.
    until : int
        The number of epochs, those included that were done before.
    listeners : sequence of Listener
        Told in this order, and ended in it. They begin in the reverse order.
    history : History
        Gets a number for each quantity and epoch.
    """

    epochs: Epochs

    def __init__(
        self,
        model: Any,
        team: Any,
        until: int,
        listeners: Sequence[Listener],
        history: History,
        interrupts: InterruptsBetweenSteps,
    ) -> None:
        self.model, self.team = model, team
        self.until, self.listeners, self.history, self.interrupts = until, listeners, history, interrupts
        self.ended = False

    def run(self, start: Callable[[], Epochs]) -> None:
        """Train. `start` makes the data ready, when all listeners have begun."""
        waiting = list(self.listeners)
        try:
            while waiting:
                waiting[-1].begin(self)
                waiting.pop()
            if not self.ended:
                self.epochs = start()
                while self.epochs.epoch < self.until and not self.ended:
                    self.advance()
        finally:
            try:
                self._leave()
            finally:  # users' callbacks come last: if one of them raises, nobody else is left out
                for listener in self.listeners[len(waiting) :]:
                    listener.end()

    def _leave(self) -> None:
        """Leave the data, and free their memory now, not when the garbage is collected."""
        if hasattr(self, "epochs"):
            epochs = self.epochs
            del self.epochs
            epochs.close()

    def advance(self) -> None:
        """Take steps for a while, or until a listener has to be told of an epoch. Then tell all listeners."""
        epochs, done, steps, stopped = self.epochs, self.epochs.epoch, self.epochs.steps, None
        due = done + 1 if epochs.is_told_each else self.due(done)
        try:
            epochs.run_until(int(min(self.until, max(due, done + 1), epochs.last(done))))
        except (KeyboardInterrupt, TrainingDiverged) as error:
            stopped = error
        for listener in self.listeners:
            listener.steps_done(epochs.steps - steps, self)
        if epochs.epoch > done and (stopped is None or due > done + 1):
            self.ended = self.tell(done)
        if stopped is not None:
            raise stopped
        if not self.ended:
            for listener in self.listeners:
                listener.between_steps()

    def due(self, done: int) -> float:
        """After how many epochs a listener has to be told next."""
        return min([listener.due(done) for listener in self.listeners], default=math.inf)

    def tell(self, done: int) -> bool:
        """Write the results since so many epochs into the history, and tell all. Return whether the training ends."""
        results = self.epochs.results(done).T.tolist()
        for listener in self.listeners:
            for value in listener.measure(self):
                results.append([value])
        with self.interrupts.held():
            for values, new in zip(self.history.values(), results, strict=True):
                values.extend(new)
        ends = False
        for listener in self.listeners:
            ends |= listener.epochs_done(self.epochs.epoch - done, self)
        return ends
