"""The progress of `fit`: a bar, one line per epoch, or nothing."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from caffelite._kernels import EpochHook
from caffelite._support.terminal import echo, is_terminal, make_writable
from caffelite.training.callbacks.base import LoopHook
from caffelite.training.history import History

QUIET_SECONDS = 0.5  # seconds that "auto" waits before it shows anything, and between two of its lines
REFRESH_INTERVAL = 0.05  # seconds between two looks at the bar
BAR_FORMAT = "{percentage:3.0f}%|{bar:6}| {desc}"  # tqdm's; a short bar leaves room for the numbers


class Progress(LoopHook):
    """Shows the progress of training. `verbose` is 0 for nothing, 1 for a bar, 2 for one line per epoch, or "auto".

    "auto" shows a bar on a terminal. Elsewhere it shows at most two lines a second, and one for the last epoch. It
    shows nothing if training takes less than half a second. A bar that goes to a file is drawn at most once per epoch.

    `steps` is the number of steps per epoch, or None if it is unknown. `epochs_before` epochs were done before, and
    `steps_before` steps of the next one. `unit` is the word for an epoch. Raise ValueError for any other `verbose`.

    It shows the results of the last epoch. In a bar, the loss is the current epoch's loss so far. At the end it names
    the best epoch of each EarlyStopping in `monitors`.
    """

    monitors: Iterable[Any] = ()

    def __init__(
        self,
        verbose: int | str,
        epochs: int,
        steps: int | None,
        epochs_before: int = 0,
        steps_before: int = 0,
        unit: str = "epoch",
    ) -> None:
        if verbose not in (0, 1, 2, "auto"):
            raise ValueError(f'verbose: expected 0, 1, 2 or "auto", got {verbose!r}')
        self.is_on_terminal = is_terminal(sys.stderr)
        self.has_bar = (verbose == 1 and sys.stderr is not None) or (verbose == "auto" and self.is_on_terminal)
        self.has_lines = verbose == 2 or (verbose == "auto" and not self.has_bar)
        self.needs_every_epoch = verbose == 2
        self.epochs, self.steps, self.unit = epochs, steps, unit
        self.min_interval = QUIET_SECONDS if verbose == "auto" else 0.0
        self.bar: Any = None
        self.epochs_before = self.epochs_done = epochs_before
        self.steps_before = steps_before
        self.steps_done = 0
        self.last_printed = 0  # the epoch in the last printed line
        self.last_results: dict[str, float] = {}

    def begin(self) -> None:
        self.start_time = self.last_refresh = self.last_line_time = time.perf_counter()

    def next_python_epoch(self, done: int, epoch_hooks: list[EpochHook] | None) -> float:
        return done + 1 if self.needs_every_epoch else math.inf

    def end(self) -> None:
        now = time.perf_counter()
        if self.has_bar:
            self._draw_bar(now, self._time_taken(now))
        if self.bar is not None:
            self.bar.close()
        if 0 < self.last_printed < self.epochs_done:
            self._print_line(now, self._time_taken(now))
        for monitor in self.monitors if self.bar is not None or self.last_printed > 0 else ():
            if monitor.best_epoch is not None:
                best = f"epoch {monitor.best_epoch + 1} is the best one, with {monitor.monitor} {monitor.best:.4g}"
                echo(f"EarlyStopping: {best}", flush=True)

    def exclude_time(self, seconds: float) -> None:
        """Leave these seconds out of the time that the steps have taken."""
        self.start_time += seconds

    def step(self, count: int, loss: Callable[[], float]) -> None:
        self.steps_done += count
        if self.has_bar and self.is_on_terminal and self._bar_is_due(now := time.perf_counter()):
            mean_loss = loss()
            if not math.isnan(mean_loss):
                self.last_results = {**self.last_results, "loss": mean_loss}
            self._draw_bar(now, self._time_left(now))

    def epoch(self, count: int, history: History) -> None:
        self.epochs_done += count
        self.last_results = {name: values[-1] for name, values in history.items()}
        now = time.perf_counter()
        if self.has_bar and not self.is_on_terminal and self._bar_is_due(now):
            self._draw_bar(now, self._time_left(now))
        if self.has_lines and now - self.last_line_time >= self.min_interval:
            self._print_line(now, self._time_left(now))

    def _bar_is_due(self, now: float) -> bool:
        is_due = now - self.last_refresh >= REFRESH_INTERVAL
        if is_due:
            self.last_refresh = now
        return is_due

    def _print_line(self, now: float, duration: str) -> None:
        self.last_line_time, self.last_printed = now, self.epochs_done
        echo(f"{self._line(now)}  {duration}", flush=True)

    def _line(self, now: float) -> str:
        rate = self.steps_done / max(now - self.start_time, 1e-9)
        results = "  ".join(f"{name} {value:.4g}" for name, value in self.last_results.items())
        return f"{self.unit} {self.epochs_done}/{self.epochs}  {results}  {rate_text(rate)} steps/s"

    def _counts(self) -> tuple[int, int]:
        """Return how much is done, and the total: steps, or epochs if the number of steps is unknown."""
        epochs = self.epochs - self.epochs_before
        if self.steps is None:
            return self.epochs_done - self.epochs_before, epochs
        return self.steps_done, self.steps * epochs - self.steps_before

    def _time_left(self, now: float) -> str:
        done, total = self._counts()
        if done == total:
            return self._time_taken(now)
        return f"{_duration((now - self.start_time) * (total / done - 1))} left" if done else "? left"

    def _time_taken(self, now: float) -> str:
        return f"in {_duration(now - self.start_time)}"

    def _draw_bar(self, now: float, duration: str) -> None:
        done, total = self._counts()
        if self.bar is None:
            if now - self.start_time < self.min_interval:
                return
            from tqdm import tqdm

            # With the delay, tqdm draws nothing before the first text is set.
            self.bar = tqdm(
                total=total, mininterval=REFRESH_INTERVAL, dynamic_ncols=True, bar_format=BAR_FORMAT, delay=1e-9
            )
        self.bar.n, self.bar.total = done, total
        text = f"{duration}  {self._line(now)}"  # the time comes first, because tqdm cuts a long text
        self.bar.set_description_str(make_writable(text, sys.stderr))


def rate_text(rate: float) -> str:
    """Return a rate as text: 1,234, 12, 1.2 or 0.12."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _duration(seconds: float) -> str:
    """Return a duration as text: 12 s, 1:23 or 4:56:07."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}" if minutes else f"{seconds} s"
