"""The training loop: run epochs without Python until a hook needs it, then call all hooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from caffelite._kernels import EpochHook
from caffelite._support.interrupts import Interrupts
from caffelite.optimizers import TrainingDiverged
from caffelite.training.callbacks.base import LoopHook
from caffelite.training.epochs.base import Epochs
from caffelite.training.history import History


class Loop:
    """Run epochs until all are done, or until a hook ends the training.

    Parameters
    ----------
    max_epochs : int
        The total number of epochs, including the epochs done before.
    hooks : sequence of LoopHook
        Called and ended in this order. They begin in reverse order.
    history : History
        Gets one number for each quantity and epoch.
    """

    epochs: Epochs

    def __init__(self, max_epochs: int, hooks: Sequence[LoopHook], history: History, interrupts: Interrupts) -> None:
        self.max_epochs, self.hooks, self.history, self.interrupts = max_epochs, hooks, history, interrupts
        self.should_stop = False

    def run(self, make_epochs: Callable[[], Epochs]) -> None:
        """Train. When all hooks have begun, `make_epochs` prepares the data."""
        pending = list(self.hooks)
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
                for hook in self.hooks[len(pending) :]:
                    hook.end()

    def _close_epochs(self) -> None:
        """Close the data, and free its memory now instead of at the next garbage collection."""
        if hasattr(self, "epochs"):
            epochs = self.epochs
            del self.epochs
            epochs.close()

    def advance(self) -> None:
        """Take steps for a while, or until a hook needs Python. Then call all hooks.

        If Ctrl-C or a loss that is not finite ends the steps, the finished epochs count, unless they need Python.
        """
        epochs, error = self.epochs, None
        done, steps_before = epochs.epoch, epochs.steps
        python_epoch = self.next_python_epoch(done)
        last_epoch = min(self.max_epochs, python_epoch, epochs.last_epoch(done))
        try:
            epochs.run_until(int(last_epoch), self.steps_until_due())
        except (KeyboardInterrupt, TrainingDiverged) as raised:
            error = raised
        for hook in self.hooks:
            hook.step(epochs.steps - steps_before, epochs.loss)
        if epochs.epoch > done and (error is None or python_epoch > done + 1):
            self.should_stop = self.end_epochs(done)
        if error is not None:
            raise error
        if not self.should_stop:
            for hook in self.hooks:
                self.should_stop |= hook.between_steps() is True

    def next_python_epoch(self, done: int) -> float:
        """Return the epoch after which a hook needs Python. Until then, the epochs call the compiled hooks."""
        epoch_hooks: list[EpochHook] | None = [] if self.epochs.takes_epoch_hooks else None
        epoch = min([hook.next_python_epoch(done, epoch_hooks) for hook in self.hooks], default=math.inf)
        if epoch <= done + 1 or self.epochs.returns_each_epoch:
            epoch, epoch_hooks = done + 1, None  # Python runs after the next epoch, and does all the work
        self.epochs.set_epoch_hooks(epoch_hooks or [])
        return epoch

    def steps_until_due(self) -> float:
        """Return after how many more steps a hook must be called."""
        return min([hook.steps_until_due() for hook in self.hooks], default=math.inf)

    def end_epochs(self, done: int) -> bool:
        """Add the results since epoch `done` to the history, and call all hooks. Return whether training ends."""
        results = self.epochs.results(done).T.tolist()
        for hook in self.hooks:
            results += hook.results(len(results[0]))
        with self.interrupts.defer():
            for values, new_values in zip(self.history.values(), results, strict=True):
                values.extend(new_values)
        should_stop = False
        for hook in self.hooks:
            should_stop |= hook.epoch(self.epochs.epoch - done, self.history) is True
        return should_stop
