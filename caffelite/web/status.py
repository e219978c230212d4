"""Status: how far training has got, in numbers and curves."""

from __future__ import annotations

import math
import mmap
import time
from typing import Any

import numpy as np

from caffelite.web.curves import Curve
from caffelite.web.log import Log

PAGE_BYTES = mmap.PAGESIZE  # bytes of a page of memory
MAX_CHANGES = 50  # of the rate, that are marked


class Status:
    """The state of a training run, its numbers and curves. The training's thread calls all methods."""

    def __init__(self, name: str, title: str, note: str, training: Any) -> None:
        self.name, self.title, self.note, self.training = name, title, note, training
        self.settings = training.describe_settings()
        self.state, self.why = "running", ""
        self.unsupported: dict[str, str] = {}  # the requests that are impossible, and the reasons
        self.steps = 0
        self._start = self._now = time.monotonic()
        self._waited = 0.0  # seconds that no step took
        self._first_epoch = training.history.epochs
        # Epochs of the history that the curves have, and the step after them. If the steps of an epoch are not
        # known, the curves begin with this training.
        self._seen_epochs, self._epoch_start = (self._first_epoch if training.steps_per_epoch is None else 0), 0
        self._results = {name: Curve() for name in training.history}
        self._extra_curves = {name: Curve() for name in ("loss of the last steps", "learning rate", "steps per second")}
        self.log = Log()
        self.rate_changes: list[int] = []  # the steps at which a page has set the rate
        self._sizes: dict[str, tuple[Curve, Curve]] = {}  # of a parameter and of its gradient, by its label
        self._last_update = (0, 0.0, 0, math.nan)  # steps, seconds, epochs, loss so far
        self._steps_per_second = math.nan  # since the last update
        self._last_clocks, self._cores = (time.monotonic(), time.process_time()), math.nan

    def add_wait(self, seconds: float) -> None:
        """Leave this many seconds out of the training time."""
        self._waited += seconds
        if self.training.exclude_time is not None:
            self.training.exclude_time(seconds)

    @property
    def seconds(self) -> float:
        """The seconds spent on training so far."""
        return self._now - self._start - self._waited

    @property
    def rate(self) -> float:
        """Steps per second since the beginning, NaN before the first step."""
        return self.steps / self.seconds if self.steps and self.seconds > 0 else math.nan

    # ---- curves -------------------------------------------------------------------------------------------------

    def update(self, now: float) -> None:
        """Record the loss of the last steps, the learning rate and the speed."""
        self._now = now
        training, epochs = self.training, self.training.history.epochs
        steps, last_time, last_epochs, last_loss = self._last_update
        so_far = math.nan if training.loss_so_far is None else training.loss_so_far()
        passed = now - self._waited - last_time
        if last_time and self.steps > steps and passed > 0:
            self._steps_per_second = (self.steps - steps) / passed
        self._last_update = (self.steps, now - self._waited, epochs, so_far)
        if self.steps == steps:
            return
        place, steps_in_epoch, new_steps = self.place, self._steps_in_epoch(), self.steps - steps
        if not math.isnan(so_far) and steps_in_epoch > 0:
            if last_epochs == epochs and 0 < new_steps < steps_in_epoch and not math.isnan(last_loss):
                so_far += (so_far - last_loss) * (steps_in_epoch - new_steps) / new_steps  # of the new steps only
            self._extra_curves["loss of the last steps"].extend([place], [so_far])
        if training.optimizer is not None:
            self._extra_curves["learning rate"].extend([place], [training.optimizer.lr])
        if not math.isnan(self._steps_per_second):
            self._extra_curves["steps per second"].extend([place], [self._steps_per_second])

    def add_epochs(self) -> None:
        """Move the new epochs of the history into the curves, each at its last step."""
        history, seen = self.training.history, self._seen_epochs
        if history.epochs > seen:
            per_epoch = self.training.steps_per_epoch
            if per_epoch is None:  # Python makes the batches, and an epoch ends with the newest step
                last_steps = np.linspace(self._epoch_start, self.place, history.epochs - seen + 1)[1:]
            else:
                last_steps = np.arange(seen + 1, history.epochs + 1) * per_epoch
            for name, curve in self._results.items():
                curve.extend(last_steps.tolist(), history[name][seen : history.epochs])
            self._seen_epochs, self._epoch_start = history.epochs, int(last_steps[-1])

    def add_sizes(self, layers: dict[str, Any]) -> None:
        """Append the sizes that `snapshots.layers` has found, of the parameters that it has labels for."""
        for row in layers.get("rows", ()):
            if row["label"] is None:
                continue
            weights, gradients = self._sizes.setdefault(row["label"], (Curve(), Curve()))
            weights.extend([self.place], [row["size"]])
            gradients.extend([self.place], [row["gradient"]])

    @property
    def place(self) -> int:
        """The current step of training; steps before it was resumed count."""
        return self.training.steps_before + self.steps

    def _steps_per_epoch(self) -> float | None:
        epochs = self.training.history.epochs - self._first_epoch
        return self.training.steps_per_epoch or (self.steps / epochs if epochs else None)

    def _steps_in_epoch(self) -> int:
        """Return how many steps of the current epoch are done."""
        self.add_epochs()
        return self.place - self._epoch_start

    def _epochs_done(self) -> float:
        """Return how many epochs are done, with the part of the current one."""
        epochs, per_epoch = self.training.history.epochs, self._steps_per_epoch()
        return float(epochs) if per_epoch is None else epochs + min(1.0, max(0.0, self._steps_in_epoch() / per_epoch))

    def _num_cores(self) -> float:
        """Return how many processor cores the program has used, roughly over the last second."""
        clocks = time.monotonic(), time.process_time()
        passed, worked = (new - old for new, old in zip(clocks, self._last_clocks, strict=True))
        if passed >= 1.0:
            self._last_clocks, self._cores = clocks, worked / passed
        return self._cores

    # ---- messages -----------------------------------------------------------------------------------------------

    def curves(self) -> dict[str, Any]:
        """Return the curves for the page."""
        self.add_epochs()
        all_curves = self._results | self._extra_curves | self.log.curves
        curves = {name: curve.message() for name, curve in all_curves.items() if len(curve)}
        sizes = {name: {"weight": w.message(), "gradient": g.message()} for name, (w, g) in self._sizes.items()}
        return {
            "curves": curves,
            "sizes": sizes,
            "logged": [*self.log.curves],
            "rate_changes": self.rate_changes[-MAX_CHANGES:],
        }

    def add_value(self, name: str, value: Any) -> None:
        """Add a number or a picture of the user's own, at the current step."""
        self.log.add(name, value, self.place, self._results.keys() | self._extra_curves.keys())

    def numbers(self) -> dict[str, Any]:
        """Return the numbers for the page."""
        training, place, rate, per_epoch = self.training, self._epochs_done(), self.rate, self._steps_per_epoch()
        left = math.nan
        if training.epochs is not None and per_epoch is not None and rate > 0:
            left = max(0.0, (training.epochs - place) * per_epoch / rate)
        optimizer = training.optimizer
        return {
            "name": self.name,
            "title": self.title,
            "note": self.note,
            "settings": self.settings,
            "state": self.state,
            "why": self.why,
            "epoch": training.history.epochs,
            "epochs": training.epochs,
            "place": place,
            "step": self.place,
            "steps_per_second": self._steps_per_second,
            "seconds": self.seconds,
            "cores": self._num_cores(),
            "memory": _memory_bytes(),
            "left": left,
            "lr": None if optimizer is None else optimizer.lr,
            "scheduled": optimizer is not None and optimizer._schedule_state[0] is not None,
            "results": {name: values[-1] for name, values in training.history.items() if values},
            "parameters": sum(p.size for p in training.model.parameters()),
            "model": self.settings["model"],
            "optimizer": "L-BFGS" if optimizer is None else type(optimizer).__name__,
            "loss": self.settings["loss"],
            "cannot": self.unsupported,
        }


def _memory_bytes() -> int | None:
    """Return the bytes of memory that the program uses, or None if the system has no file for them, unlike Linux."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except OSError:
        return None
