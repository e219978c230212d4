"""Each: a callback that is called after every n steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from caffelite._support.moved_modules import rename_attributes
from caffelite.core.arrays import check_positive_integer
from caffelite.training.history import History


@rename_attributes(_done="_step")
class Each:
    """A callback for every n steps: `Each(100, lambda step, training: print(step))` prints 100, 200, 300 and so on.

    `step` is the number of steps so far. The count runs on from epoch to epoch, and after a checkpoint. `training` is a
    `Training`. After the last step of an epoch, `training.history` already has this epoch. There is one exception: if
    Python makes the batches one by one, `fit` does not know yet that this batch was the last.

    A batch that `fit` skips, because its weights are all 0, counts as a step. Many steps are still replayed in one
    go, up to the next call. Raise ValueError for `steps` below 1, and TypeError if f cannot be called.
    """

    def __init__(self, steps: int, f: Callable[[int, Any], Any]) -> None:
        self.steps = check_positive_integer("steps", steps)
        if not callable(f):
            raise TypeError(f"Each takes a callable (step, training), got {f!r}")
        self.f = f
        self._training: Any = None
        self._step, self._is_due = 0, False

    def begin(self, training: Any) -> None:
        self._training = training
        self._step, self._is_due = 0, False

    def steps_until_due(self) -> int:
        return self.steps - self._step % self.steps

    def steps_done(self, count: int) -> None:
        self._step += count
        self._is_due = self._step % self.steps == 0

    def due(self, epochs: int) -> float:
        return math.inf

    def between_steps(self) -> None:
        """Call f if this many steps are done."""
        if self._is_due:
            self._is_due = False
            self.f(self._step, self._training)

    def __call__(self, epoch: int, history: History) -> None:
        self.between_steps()

    def end(self) -> None:
        self._training = None

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps so far."""
        return {"steps_done": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a `state_dict`. Raise ValueError for an impossible one."""
        done = state.get("steps_done")
        if type(done) is not int or done < 0:
            raise ValueError(f"Each has a state of steps_done, a number of steps, got {done!r}")
        self._step = done
