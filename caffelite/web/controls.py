"""Controls: what pages ask for, and how the training obeys."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import numpy as np

from caffelite.files import safetensors as files
from caffelite.files.state import arrays_of, texts_of
from caffelite.training.team import ONE_PROCESS
from caffelite.web import watch
from caffelite.web.server import Channel
from caffelite.web.status import Status
from caffelite.web.updates import Updates

KINDS = ("pause", "go", "step", "epoch", "stop", "rate", "save", "kernels")
LARGEST = 2**29  # bytes of a model that the page may save
ALONE = 5.0  # seconds after which a training that is paused goes on, if there is no page
LOOK = 0.25  # seconds after which a training that is paused looks for pages


class Controls:
    """What pages ask for. The server's thread notes it, and the training's thread does it between two steps."""

    def __init__(self, training: Any, status: Status, updates: Updates) -> None:
        self.training, self.status, self.updates = training, status, updates
        self.ends = False  # whether a page has ended the training
        self.is_paused = False
        self.steps, self.until_epoch = 0, 0  # steps to make, and the epoch up to which to train, while it is paused
        self.wakes = threading.Event()
        self._asked: deque[tuple[Channel | None, dict[str, Any]]] = deque(maxlen=64)

    def ask(self, channel: Channel | None, message: dict[str, Any]) -> None:
        """Note what a page asks for. Raises ValueError if it cannot be done. It runs on any thread."""
        kind = message.get("kind")
        if kind not in KINDS:
            raise ValueError(f"the page asked for {kind!r:.80}, which is unknown")
        if self.training.team not in (None, ONE_PROCESS) and kind != "save":
            raise ValueError("several processes make each step together: stop them with Ctrl-C")
        if kind == "rate":
            message = {"kind": kind, "value": _as_rate(message.get("value"))}
        self._asked.append((channel, message))
        self.wakes.set()

    # ---- on the training's thread -------------------------------------------------------------------------------

    @property
    def are_due(self) -> bool:
        """Whether there is something to do now."""
        return bool(self._asked) or self.is_paused

    def steps_done(self, count: int) -> None:
        self.steps = max(0, self.steps - count)

    def obey(self) -> None:
        """Do what pages have asked for."""
        while self._asked:
            channel, message = self._asked.popleft()
            try:
                self._do(channel, message)
            except Exception as error:  # the page is told so, and the training goes on
                if channel is not None:
                    channel.send("refused", {"why": f"{error}" or type(error).__name__})
        state = "paused" if self.is_paused else "running"
        if state != self.status.state:
            self.status.state = state
            self.updates.make_status_due()

    def _do(self, channel: Channel | None, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "pause":
            self.is_paused, self.steps, self.until_epoch = True, 0, 0
        elif kind == "go":
            self.is_paused, self.steps, self.until_epoch = False, 0, 0
        elif kind == "step":
            self.is_paused, self.steps = True, 1
        elif kind == "epoch":
            self.is_paused, self.until_epoch = True, self.training.history.epochs + 1
        elif kind == "stop":
            self.ends = True
        elif kind == "rate":
            self._set_rate(message["value"])
        elif kind == "save" and channel is not None:
            with self.training.as_at_the_end():  # as a checkpoint: it has the average that AverageWeights keeps
                channel.send("saved", self._saved())
        elif kind == "kernels":
            self._time_kernels()

    def _set_rate(self, rate: float) -> None:
        optimizer = self.training.optimizer
        if len(optimizer.groups) > 1 or optimizer._followed[0] is not None:
            if optimizer.lr == 0:
                raise ValueError("the rate is 0 now, so it cannot be multiplied")
            optimizer.scale_lr(rate / optimizer.lr)  # groups and schedules keep their form
        else:
            optimizer.lr = rate

    def _saved(self) -> dict[str, Any]:
        model = self.training.model
        arrays = arrays_of(model)
        if sum(array.nbytes for array in arrays.values()) > LARGEST:
            raise ValueError("the model is too large for the page: use cl.callbacks.Checkpoint")
        name = f"model-{self.status.name}-epoch-{self.training.history.epochs}.safetensors"
        parts = [memoryview(part).cast("B") for part in files.content(name, arrays, texts_of(model)) if len(part)]
        return {"name": name, "content": np.frombuffer(b"".join(parts), np.uint8)}

    def _time_kernels(self) -> None:
        begun = time.monotonic()
        self.updates.publish("kernels", watch.kernels(self.updates.watched))
        self.updates.send()
        self.status.note_wait(time.monotonic() - begun)

    def wait(self) -> None:
        """Wait while the training is paused: until pages want it to go on, or have all gone."""
        history, epochs, updates = self.training.history, self.training.epochs, self.updates
        is_done = epochs is not None and history.epochs >= epochs
        begun = seen = time.monotonic()
        told = len(updates.pages), 0
        try:
            while self.is_paused and not (self.ends or is_done or self.steps or self.until_epoch > history.epochs):
                self.wakes.wait(LOOK)
                self.wakes.clear()
                now = time.monotonic()
                if updates.pages:
                    seen = now
                elif now - seen > ALONE:
                    self._asked.append((None, {"kind": "go"}))
                now_told = len(updates.pages), len(self._asked)
                self.obey()
                if now_told != told:
                    self.status.note_wait(now - begun)
                    begun, told = now, now_told
                    updates.make(now, at_once=True)
        finally:
            self.status.note_wait(time.monotonic() - begun)


def _as_rate(value: Any) -> float:
    """The learning rate that a page has sent. Raises ValueError if it is not a possible one."""
    if type(value) not in (int, float) or not 0 <= value < 1e9:
        raise ValueError(f"a learning rate is a number, 0 or more, got {value!r:.80}")
    return float(value)
