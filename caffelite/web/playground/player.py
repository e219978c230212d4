"""Player: the callback that takes the steps as they are wanted, and shows frames."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

import numpy as np

from caffelite.training.callbacks.base import Training
from caffelite.training.history import History
from caffelite.web.playground.config import Setting
from caffelite.web.playground.kernels import NextStep
from caffelite.web.playground.requests import AS_FAST, Wishes
from caffelite.web.playground.view import View, curves
from caffelite.web.playground.weight_trace import followed

FRAME = 1 / 40  # seconds between two frames, at least
MOST_VALUES = 1000  # of a weight that is followed


class Player:
    """Takes steps as they are wished, and makes frames."""

    def __init__(self, wishes: Wishes, setting: Setting, names: dict[str, Any]) -> None:
        self.wishes, self.setting, self.view = wishes, setting, View(setting, names)
        self.model, self.x, self.y = names["model"], names["x"], names["y"]
        self._next_step: tuple[int, NextStep] | None = None  # with the number of steps before it
        self.values: deque[tuple[int, float]] = deque(maxlen=MOST_VALUES)  # of the weight that is followed
        self.history = History(loss=[])
        self.rate, self._next, self._shown = 0.0, 0.0, 0.0
        self._counted = (0.0, 0)  # when the rate was measured, and the steps then

    def begin(self, training: Training) -> None:
        self.training, self.history = training, training.history
        self.wishes.show("frame", self.frame())
        self._hold()

    def due(self, epochs: int) -> float:
        return math.inf

    def steps_until_due(self) -> float:
        wishes = self.wishes
        if wishes.speed < 4 / FRAME:
            return 1
        ahead = max(1, int(min(self.rate, wishes.speed) * FRAME / 4)) if self.rate else 1
        return ahead if wishes.until is None else max(1, min(ahead, wishes.until - wishes.steps))

    def steps_done(self, count: int) -> None:
        self.wishes.steps += count

    def between_steps(self) -> None:
        wishes = self.wishes
        wishes.check()
        now = time.perf_counter()
        began, before = self._counted
        if now - began > 0.25:
            self.rate, self._counted = (wishes.steps - before) / (now - began), (now, wishes.steps)
        if wishes.until is not None and wishes.steps >= wishes.until:
            wishes.playing, wishes.until = False, None
            self._show()
        elif now - self._shown >= FRAME or wishes.wants_frame():
            self._show()
        self._do_what_is_asked()
        if wishes.speed < AS_FAST:
            self._next = max(self._next + self.steps_until_due() / wishes.speed, now)
            while wishes.playing and (left := self._next - time.perf_counter()) > 0:
                wishes.wait(left)
        self._hold()

    def __call__(self, epoch: int, history: History) -> None:
        self.wishes.check()

    def end(self) -> None:
        """There is nothing to end."""

    def _hold(self) -> None:
        """Wait while it is paused."""
        waited = False
        while not self.wishes.playing:
            self._do_what_is_asked()
            if self.wishes.wants_frame():
                self._show()
            if not self.wishes.playing:
                self.wishes.wait_while_paused()
            waited = True
        if waited:
            self._next = time.perf_counter()
            self._counted = (time.perf_counter(), self.wishes.steps)

    def _show(self) -> None:
        self.wishes.show("frame", self.frame())
        self._shown = time.perf_counter()

    # ---- kernels ------------------------------------------------------------------------------------------------

    def _do_what_is_asked(self) -> None:
        while (asked := self.wishes.next_asked()) is not None:
            if asked == "run kernel":
                self.run_kernel()
            else:
                self.show_kernels()

    def next_step(self) -> NextStep:
        """The next step, some of whose kernels may have run."""
        if self._next_step is None or self._next_step[0] != self.wishes.steps:
            done = self.wishes.steps % self.setting.steps
            self._next_step = self.wishes.steps, NextStep(self.training, done)
        return self._next_step[1]

    def show_kernels(self) -> None:
        step = self.next_step()
        place = self.wishes.followed
        touching = None if place is None else step.touching(place)
        self.wishes.show("kernels", {**step.picture(), "touching": touching, "place": place})

    def run_kernel(self) -> None:
        wishes = self.wishes
        wishes.playing, wishes.until = False, None
        is_new = self._next_step is None or self._next_step[0] != wishes.steps
        step = self.next_step()
        if is_new:
            self.show_kernels()
        wishes.show("kernel", {"step": wishes.steps, **step.run_next()})
        if step.at == len(step.calls):
            wishes.take(1)

    # ---- frames -------------------------------------------------------------------------------------------------

    def frame(self) -> dict[str, Any]:
        """The current picture, in arrays that nobody changes."""
        wishes = self.wishes
        return {
            "playing": wishes.playing,
            "step": wishes.steps,
            "epoch": wishes.steps / self.setting.steps,
            "rate": self.rate if wishes.playing else 0.0,
            "problem": wishes.problem,
            "curves": curves(self.history),
            **self.view.now(),
            "followed": self._followed(),
        }

    def _followed(self) -> dict[str, Any] | None:
        """The weight that is followed, with its values at the last frames."""
        place = self.wishes.followed
        if place is None:
            self.values.clear()
            return None
        found = followed(self.model, self.setting, self.x, self.y, place)
        if self.values and self.values[-1][0] == self.wishes.steps:
            self.values.pop()
        self.values.append((self.wishes.steps, found["value"]))
        steps, values = np.array(self.values).T
        return {**found, "steps": steps, "values": values}
