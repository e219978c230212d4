"""Player: the callback that takes steps on request, and shows frames."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

import numpy as np

from caffelite.functions import Linear
from caffelite.training.callbacks.base import Training
from caffelite.training.history import History
from caffelite.web.playground.config import Setting
from caffelite.web.playground.kernels import NextStep
from caffelite.web.playground.names_view import NamesView
from caffelite.web.playground.requests import FULL_SPEED, RequestQueue
from caffelite.web.playground.view import View, curves
from caffelite.web.playground.weight_trace import explain_weight

FRAME = 1 / 40  # seconds between two frames, at least
MAX_VALUES = 1000  # of a weight that is followed


class Player:
    """Takes steps as the pages request, and makes frames."""

    def __init__(self, requests: RequestQueue, setting: Setting, objects: dict[str, Any]) -> None:
        self.requests, self.setting = requests, setting
        self.view = NamesView(setting, objects) if setting.is_text else View(setting, objects)
        self.model, self.x, self.y = objects["model"], objects["x"], objects["y"]
        self._next_step: tuple[int, NextStep] | None = None  # with the number of steps before it
        self.values: deque[tuple[int, float]] = deque(maxlen=MAX_VALUES)  # of the weight that is followed
        self.history = History(loss=[])
        self.rate, self._next_time, self._last_frame = 0.0, 0.0, 0.0
        self._rate_start = (0.0, 0)  # when the rate was measured, and the steps then

    def begin(self, training: Training) -> None:
        self.training, self.history = training, training.history
        self.requests.show("frame", self.frame())
        self._pause()

    def due(self, epochs: int) -> float:
        return math.inf

    def steps_until_due(self) -> float:
        requests = self.requests
        if requests.speed < 4 / FRAME:
            return 1
        ahead = max(1, int(min(self.rate, requests.speed) * FRAME / 4)) if self.rate else 1
        return ahead if requests.stop_at is None else max(1, min(ahead, requests.stop_at - requests.steps))

    def steps_done(self, count: int) -> None:
        self.requests.steps += count

    def between_steps(self) -> None:
        requests = self.requests
        requests.check()
        now = time.perf_counter()
        rate_time, rate_steps = self._rate_start
        if now - rate_time > 0.25:
            self.rate, self._rate_start = (requests.steps - rate_steps) / (now - rate_time), (now, requests.steps)
        if requests.stop_at is not None and requests.steps >= requests.stop_at:
            requests.playing, requests.stop_at = False, None
            self._show()
        elif now - self._last_frame >= FRAME or requests.wants_frame():
            self._show()
        self._handle_requests()
        if requests.speed < FULL_SPEED:
            self._next_time = max(self._next_time + self.steps_until_due() / requests.speed, now)
            while requests.playing and (left := self._next_time - time.perf_counter()) > 0:
                requests.wait(left)
        self._pause()

    def __call__(self, epoch: int, history: History) -> None:
        self.requests.check()

    def end(self) -> None:
        """There is nothing to end."""

    def _pause(self) -> None:
        """Wait while it is paused."""
        has_waited = False
        while not self.requests.playing:
            self._handle_requests()
            if self.requests.wants_frame():
                self._show()
            if not self.requests.playing:
                self.requests.wait_while_paused()
            has_waited = True
        if has_waited:
            self._next_time = time.perf_counter()
            self._rate_start = (time.perf_counter(), self.requests.steps)

    def _show(self) -> None:
        self.requests.show("frame", self.frame())
        self._last_frame = time.perf_counter()

    # ---- kernels ------------------------------------------------------------------------------------------------

    def _handle_requests(self) -> None:
        while (request := self.requests.next_request()) is not None:
            if request == "run kernel":
                self.run_kernel()
            elif request == "set weight":
                self.set_weight()
            else:
                self.show_kernels()

    def next_step(self) -> NextStep:
        """Return the next step, some of whose kernels may have run."""
        if self._next_step is None or self._next_step[0] != self.requests.steps:
            done = self.requests.steps % self.setting.steps
            self._next_step = self.requests.steps, NextStep(self.training, done)
        return self._next_step[1]

    def show_kernels(self) -> None:
        step = self.next_step()
        place = self.requests.followed_weight
        weight_kernels = None if place is None else step.weight_kernels(place)
        self.requests.show("kernels", {**step.timeline(), "touching": weight_kernels, "place": place})

    def run_kernel(self) -> None:
        requests = self.requests
        requests.playing, requests.stop_at = False, None
        is_new = self._next_step is None or self._next_step[0] != requests.steps
        step = self.next_step()
        if is_new:
            self.show_kernels()
        requests.show("kernel", {"step": requests.steps, **step.run_next()})
        if step.at == len(step.calls):
            requests.take_steps(1)

    def set_weight(self) -> None:
        """Give a weight the value that a page has set."""
        (layer, source, target), value = self.requests.edits.popleft()
        linear = [f for f in self.model.functions if isinstance(f, Linear)][layer]
        linear.weight.data[source, target] = value
        self._next_step = None  # some of whose kernels may have read it

    # ---- frames -------------------------------------------------------------------------------------------------

    def frame(self) -> dict[str, Any]:
        """Return the current picture, in arrays that nobody changes."""
        requests, view = self.requests, self.view
        return {
            "playing": requests.playing,
            "step": requests.steps,
            "epoch": requests.steps / self.setting.steps,
            "rate": self.rate if requests.playing else 0.0,
            "problem": requests.problem,
            "curves": curves(self.history),
            **(view.snapshot(*requests.text) if isinstance(view, NamesView) else view.snapshot()),
            "followed": self._explain_weight(),
        }

    def _explain_weight(self) -> dict[str, Any] | None:
        """Return the weight that is followed, with its values at the last frames."""
        place = self.requests.followed_weight
        if place is None:
            self.values.clear()
            return None
        explanation = explain_weight(self.model, self.setting, self.x, self.y, place)
        if self.values and self.values[-1][0] == self.requests.steps:
            self.values.pop()
        self.values.append((self.requests.steps, explanation["value"]))
        steps, values = np.array(self.values).T
        return {**explanation, "steps": steps, "values": values}
