"""The training loop: run epochs without Python until a callback needs it, then call all callbacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from caffelite._kernels import EpochHook
from caffelite._support.interrupts import Interrupts
from caffelite.optimizers import TrainingDiverged
from caffelite.training.callbacks.base import Callback
from caffelite.training.epochs.base import Epochs
from caffelite.training.history import History


class Loop:
    """Run epochs until all are done, or until a callback ends the training.

    Parameters
    ----------
    max_epochs : int
        The total number of epochs, including the epochs done before.
    callbacks : sequence of Callback
        Called in this order, and ended in this order. They begin in the reverse order.
    history : History
        Gets one number for each quantity and epoch.
    """

    epochs: Epochs

    def __init__(
        self, max_epochs: int, callbacks: Sequence[Callback], history: History, interrupts: Interrupts
    ) -> None:
        self.max_epochs, self.callbacks, self.history, self.interrupts = max_epochs, callbacks, history, interrupts
        self.should_stop = False

    def run(self, make_epochs: Callable[[], Epochs]) -> None:
        """Train. When all callbacks have begun, `make_epochs` prepares the data."""
        pending = list(self.callbacks)
        try:
            while pending:
                self.should_stop |= pending[-1].begin() is True
                pending.pop()
            if not self.should_stop:
                self.epochs = make_epochs()
                while self.epochs.epoch < self.max_epochs and not self.should_stop:
                    self.advance()
        finally:
            try:
                self._close_epochs()
            finally:  # users' callbacks end last: if one raises, all others have ended
                for callback in self.callbacks[len(pending) :]:
                    callback.end()

    def _close_epochs(self) -> None:
        """Close the data, and free its memory now instead of at the next garbage collection."""
        if hasattr(self, "epochs"):
            epochs = self.epochs
            del self.epochs
            epochs.close()

    def advance(self) -> None:
        """Run epochs until a callback needs Python, or take steps for a while. Then call all callbacks."""
        epochs, error = self.epochs, None
        done, steps_before = epochs.epoch, epochs.steps
        next_python_epoch = self.next_python_epoch(done)
        last_epoch = min(self.max_epochs, next_python_epoch, epochs.last_epoch(done))
        try:
            epochs.run_until(int(last_epoch), self.steps_until_due())
        except (KeyboardInterrupt, TrainingDiverged) as raised:
            error = raised
        for callback in self.callbacks:
            callback.step(epochs.steps - steps_before, epochs.loss)
        if epochs.epoch > done and (error is None or next_python_epoch > done + 1):
            self.should_stop = self.end_epochs(done)
        if error is not None:
            raise error
        if not self.should_stop:
            for callback in self.callbacks:
                self.should_stop |= callback.between_steps() is True

    def next_python_epoch(self, done: int) -> float:
        """Return the epoch after which a callback needs Python. Until then, the epochs make the native calls."""
        native_calls: list[EpochHook] | None = [] if self.epochs.has_native_calls else None
        epochs = [callback.next_python_epoch(done, native_calls) for callback in self.callbacks]
        next_epoch = min(epochs, default=math.inf)
        if next_epoch <= done + 1 or self.epochs.returns_each_epoch:
            native_calls, next_epoch = [], done + 1
        self.epochs.set_native_calls(native_calls or [])
        return next_epoch

    def steps_until_due(self) -> float:
        """Return after how many more steps a callback must be called."""
        return min([callback.steps_until_due() for callback in self.callbacks], default=math.inf)

    def end_epochs(self, done: int) -> bool:
        """Add the results since epoch `done` to the history, and call all. Return whether the training ends."""
        results = self.epochs.results(done).T.tolist()
        for callback in self.callbacks:
            results += callback.measure(len(results[0]))
        with self.interrupts.defer():
            for values, new_values in zip(self.history.values(), results, strict=True):
                values.extend(new_values)
        should_stop = False
        for callback in self.callbacks:
            should_stop |= callback.epoch(self.epochs.epoch - done, self.history) is True
        return should_stop
