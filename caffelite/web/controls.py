"""Controls: the requests of pages, and how training handles them."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np

from caffelite.files.safetensors import encode_arrays
from caffelite.files.state import make_texts, state_arrays
from caffelite.training.process_group import SINGLE_PROCESS, ProcessGroup
from caffelite.web import snapshots
from caffelite.web.server import Channel
from caffelite.web.status import Status
from caffelite.web.updates import SECONDS_PAUSED, Updates

KINDS = ("pause", "go", "step", "epoch", "stop", "rate", "save", "kernels")
MAX_BYTES = 2**29  # bytes of a model that the page may save
RESUME_AFTER = 5.0  # seconds after which a training that is paused goes on, if there is no page
POLL_INTERVAL = 0.25  # seconds after which a training that is paused looks for pages


class Controls:
    """The requests of pages. The server's thread queues them, and the training's thread handles them between two steps.

    Several ranks do the same after the same steps. Only rank 0 has pages, and it sends their requests to the others.
    """

    def __init__(self, training: Any, status: Status, updates: Updates) -> None:
        self.training, self.status, self.updates = training, status, updates
        self.processes: ProcessGroup = training.processes or SINGLE_PROCESS
        self.should_stop = False  # whether a page has ended the training
        self.is_paused = False
        self.steps, self.until_epoch = 0, 0  # steps to make, and the epoch up to which to train, while it is paused
        self._last_seen = 0.0  # when a page was open last, while it is paused
        self._requests: deque[tuple[Channel | None, str, float]] = deque(maxlen=64)  # page, kind, and the new rate
        status.unsupported = _unsupported_requests(training, updates.view)

    def add_request(self, channel: Channel | None, kind: Any, value: Any = None) -> None:
        """Queue a request of a page. Raise ValueError if it cannot be done. It runs on the server's thread."""
        if kind not in KINDS:
            raise ValueError(f"the page asked for {kind!r:.80}, which is unknown")
        if kind in self.status.unsupported:
            raise ValueError(self.status.unsupported[kind])
        self._requests.append((channel, kind, _check_rate(value) if kind == "rate" else 0.0))
        self.updates.wake_event.set()

    # ---- on the training's thread -------------------------------------------------------------------------------

    def steps_done(self, count: int) -> None:
        self.steps = max(0, self.steps - count)

    def handle_requests(self) -> bool:
        """Handle the requests of pages. Return whether there were any. All ranks call it after the same steps."""
        was_asked = False
        self.updates.wake_event.clear()
        while self.processes.broadcast(len(self._requests)):
            channel, kind, value = self._requests.popleft() if self.training.is_main else (None, KINDS[0], 0.0)
            kind, value = KINDS[int(self.processes.broadcast(KINDS.index(kind)))], self.processes.broadcast(value)
            try:
                self._handle(channel, kind, value)
            except Exception as error:  # the page gets the error, and the training goes on
                if channel is not None:
                    channel.send("refused", {"why": f"{error}" or type(error).__name__})
            was_asked = True
        state = "paused" if self.is_paused else "running"
        if state != self.status.state:
            self.status.state = state
            self.updates.make_status_due()
        return was_asked

    def _handle(self, channel: Channel | None, kind: str, value: float) -> None:
        if kind in ("pause", "go"):
            self.is_paused, self.steps, self.until_epoch = kind == "pause", 0, 0
        elif kind == "step":
            self.is_paused, self.steps = True, 1
        elif kind == "epoch":
            self.is_paused, self.until_epoch = True, self.training.history.epochs + 1
        elif kind == "stop":
            self.should_stop = True
        elif kind == "rate":
            self._set_rate(value)
        elif kind == "save" and channel is not None:
            with self.training.averaged_weights():  # as a checkpoint: it has the average that AverageWeights keeps
                channel.send("saved", self._pack_model())
        elif kind == "kernels" and self.training.is_main:
            self._time_kernels()

    def _set_rate(self, rate: float) -> None:
        optimizer = self.training.optimizer
        if len(optimizer.groups) > 1 or optimizer._schedule_state[0] is not None:
            if optimizer.lr == 0:
                raise ValueError("the rate is 0 now, so it cannot be multiplied")
            optimizer.scale_lr(rate / optimizer.lr)  # groups and schedules keep their form
        else:
            optimizer.lr = rate
        self.status.rate_changes.append(self.status.place)

    def _pack_model(self) -> dict[str, Any]:
        model = self.training.model
        arrays = state_arrays(model)
        if sum(array.nbytes for array in arrays.values()) > MAX_BYTES:
            raise ValueError("the model is too large for the page: use cl.callbacks.Checkpoint")
        name = f"model-{self.status.name}-epoch-{self.training.history.epochs}.safetensors"
        parts = [memoryview(part).cast("B") for part in encode_arrays(name, arrays, make_texts(model)) if len(part)]
        return {"name": name, "content": np.frombuffer(b"".join(parts), np.uint8)}

    def _time_kernels(self) -> None:
        begun = time.monotonic()
        self.updates.publish("kernels", snapshots.kernels(self.updates.view))
        self.updates.send()
        self.status.add_wait(time.monotonic() - begun)

    def wait(self) -> None:
        """Wait while training is paused: until pages want it to continue, or have all gone."""
        history, epochs = self.training.history, self.training.epochs
        is_done = epochs is not None and history.epochs >= epochs
        begun = self._last_seen = time.monotonic()
        while self.is_paused and not (self.should_stop or is_done or self.steps or self.until_epoch > history.epochs):
            is_woken = self.training.is_main and self._wait_for_page()  # other ranks wait in `handle_requests`
            self.handle_requests()
            now = time.monotonic()
            self.status.add_wait(now - begun)
            begun = now
            if is_woken:
                self.updates.make(now, SECONDS_PAUSED)

    def _wait_for_page(self) -> bool:
        """Wait for a page, but not for long. Without pages, or after Ctrl-C, ask training to continue."""
        is_woken = self.updates.wake_event.wait(POLL_INTERVAL)
        if self.updates.pages:
            self._last_seen = time.monotonic()
        elif time.monotonic() - self._last_seen > RESUME_AFTER:
            self._requests.append((None, "go", 0.0))
        if self.processes.is_interrupted():
            self._requests.append((None, "go", 0.0))
        return is_woken


def _unsupported_requests(training: Any, view: snapshots.TrainingView) -> dict[str, str]:
    """Return the requests that are impossible, and the reasons."""
    if training.optimizer is None:
        return {"rate": "L-BFGS chooses the length of each step", "kernels": "only steps of an optimizer can be timed"}
    if view.training_rows is None:
        return {"kernels": "kernels can be timed only if the rows are in memory"}
    return {}


def _check_rate(value: Any) -> float:
    """Return the learning rate that a page has sent. Raise ValueError if it is not a possible one."""
    if type(value) not in (int, float) or not 0 <= value < 1e9:
        raise ValueError(f"a learning rate is a number, 0 or more, got {value!r:.80}")
    return float(value)
