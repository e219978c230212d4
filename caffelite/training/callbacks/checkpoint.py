"""Checkpoint: a callback that writes the training run to a file. `resume.py` says what the file has."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from caffelite.core.arrays import check_nonnegative, check_positive_integer
from caffelite.files.atomic import check_writable
from caffelite.files.safetensors import encode_arrays
from caffelite.files.state import make_texts, state_arrays
from caffelite.training.callbacks.base import Training, warn_on_write_error
from caffelite.training.callbacks.early_stopping import Monitor
from caffelite.training.history import History


class CheckpointMonitor(Monitor):
    _name = "Checkpoint"


class Checkpoint:
    """Writes the training run to a file. `fit(…, resume=path)` continues from it, to the same bits.

    `caffelite.load` reads the model from this file.

    Parameters
    ----------
    path : path
        One file for all epochs. A complete new file replaces an older one. For one file per epoch, use
        `lambda epoch, history: model.save(f"{epoch}.safetensors")`.
    monitor : str, optional
        A name in the history. Only an epoch better than all those before it is written. `Monitor` defines "better".
    every : int
        Write after this many epochs each time. With a `monitor`, write after each better epoch instead.
    seconds : float, optional
        Write each time this many seconds have passed, even in the middle of an epoch, instead of after `every` epochs.
    mode : "auto", "min" or "max"
        Whether a lower or a higher value of `monitor` is better.

    It writes after all other callbacks. If a later write fails, for example because the disk is full, caffelite gives a
    RuntimeWarning: training continues, the older checkpoint stays, and the next one is tried. Raise OSError before the
    first step if the folder does not exist. Raise ValueError if training does not measure `monitor`, if the model's
    names are too long for a file, for `every` below 1, for negative `seconds`, and for "{epoch" in the name.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        monitor: str | None = None,
        every: int = 1,
        seconds: float | None = None,
        mode: str = "auto",
    ) -> None:
        self.path = Path(path).absolute()
        if "{epoch" in self.path.name:
            hint = "callbacks=[lambda epoch, history: model.save(f'w-{epoch:02d}.safetensors')]"
            raise ValueError(
                f"Checkpoint writes one file and puts no epoch into {self.path.name!r}: to keep all epochs, give {hint}"
            )
        self.every = check_positive_integer("every", every)
        self.seconds = None if seconds is None else check_nonnegative("seconds", seconds)
        self._monitor = None if monitor is None else CheckpointMonitor(monitor, 1, mode=mode)
        if monitor is not None and seconds is not None:
            raise ValueError("Checkpoint takes a monitor, which compares epochs, or seconds, but not both")
        if monitor is None and mode != "auto":
            raise ValueError(f"Checkpoint: mode={mode!r} says which values of a monitor are better; give monitor=, too")

    def begin(self, training: Training) -> None:
        """Reset. Raise OSError if the file cannot be written, and ValueError if the model cannot be saved."""
        if training.is_main:
            check_writable(self.path)
            encode_arrays(self.path, state_arrays(training.model), make_texts(training.model))
        self._write: Any = training.write
        self._broadcast: Any = training.broadcast
        self._last_write = time.monotonic()
        if self._monitor is not None:
            self._monitor.begin(training)

    def __call__(self, epoch: int, history: History) -> None:
        if self._monitor is not None:
            is_due = self._monitor.update(epoch, history)
        else:
            is_due = self.seconds is None and (epoch + 1) % self.every == 0
        if is_due:
            self._write_now()

    def between_steps(self) -> None:
        """Write if `seconds` have passed since the last time."""
        if self.seconds is not None and self._broadcast(time.monotonic() - self._last_write >= self.seconds):
            self._write_now()

    def _write_now(self) -> None:
        with warn_on_write_error("no checkpoint was saved"):
            self._write(self.path)
        self._last_write = time.monotonic()

    def end(self) -> None:
        self._write = self._broadcast = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `Monitor`, or {} without a monitor."""
        return {} if self._monitor is None else self._monitor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a `state_dict`. Raise ValueError for an impossible one."""
        if self._monitor is not None:
            self._monitor.load_state_dict(state)
