"""The progress of `fit`: a bar, one line per epoch, or nothing."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

from caffelite._support.terminal import is_terminal, echo, make_writable

PATIENCE = 0.5  # seconds that "auto" waits before it shows anything, and between two of its lines
REFRESH = 0.05  # seconds between two looks at the bar
FORMAT = "{percentage:3.0f}%|{bar:6}| {desc}"  # tqdm's; a short bar leaves room for the numbers


class Progress:
    """Shows a training. `verbose` is 0 for nothing, 1 for a bar, 2 for one line per epoch, or "auto".

    "auto" shows a bar on a terminal, and elsewhere at most two lines a second and one for the last epoch. It shows
    nothing if the training takes less than half a second. A bar that goes to a file is drawn at most once per epoch.

    `steps` is the number of steps per epoch, or None if it is unknown. `begun` epochs were done before, and
    `begun_steps` steps of the next one. `of` is the word for an epoch. Raises ValueError for another `verbose`.

    It shows the results of the last epoch. In a bar, the loss is the current epoch's loss so far.
    """

    def __init__(
        self,
        verbose: int | str,
        epochs: int,
        steps: int | None,
        begun: int = 0,
        begun_steps: int = 0,
        of: str = "epoch",
    ) -> None:
        if verbose not in (0, 1, 2, "auto"):
            raise ValueError(f'verbose: expected 0, 1, 2 or "auto", got {verbose!r}')
        self.on_terminal = is_terminal(sys.stderr)
        self.bar_wanted = (verbose == 1 and sys.stderr is not None) or (verbose == "auto" and self.on_terminal)
        self.lines_wanted = verbose == 2 or (verbose == "auto" and not self.bar_wanted)
        self.epochs, self.steps, self.of = epochs, steps, of
        self.patience = PATIENCE if verbose == "auto" else 0.0
        self.bar: Any = None
        self.begun = self.epoch = begun
        self.begun_steps = begun_steps
        self.done = 0  # steps
        self.printed = 0  # the epoch in the last printed line
        self.results: dict[str, float] = {}

    def __enter__(self) -> Progress:
        self.started = self.looked = self.spoke = time.perf_counter()
        return self

    def __exit__(self, *exception: Any) -> None:
        now = time.perf_counter()
        if self.bar_wanted:
            self._draw_bar(now, self._time_taken(now))
        if self.bar is not None:
            self.bar.close()
        if 0 < self.printed < self.epoch:
            self._print_line(now, self._time_taken(now))

    def waited(self, seconds: float) -> None:
        """Leave these seconds out of the time that the steps have taken."""
        self.started += seconds

    def steps_done(self, count: int, loss: Callable[[], float]) -> None:
        """Note `count` more steps. `loss()` is the current epoch's mean loss, or NaN before its first step."""
        self.done += count
        if self.bar_wanted and self.on_terminal and self._bar_is_due(now := time.perf_counter()):
            so_far = loss()
            if not math.isnan(so_far):
                self.results = {**self.results, "loss": so_far}
            self._draw_bar(now, self._time_left(now))

    def epochs_done(self, count: int, results: dict[str, float]) -> None:
        """Note `count` more epochs, and the results of the last one."""
        self.epoch += count
        self.results = results
        now = time.perf_counter()
        if self.bar_wanted and not self.on_terminal and self._bar_is_due(now):
            self._draw_bar(now, self._time_left(now))
        if self.lines_wanted and now - self.spoke >= self.patience:
            self._print_line(now, self._time_left(now))

    def _bar_is_due(self, now: float) -> bool:
        is_due = now - self.looked >= REFRESH
        if is_due:
            self.looked = now
        return is_due

    def _print_line(self, now: float, duration: str) -> None:
        self.spoke, self.printed = now, self.epoch
        echo(f"{self._line(now)}  {duration}", flush=True)

    def _line(self, now: float) -> str:
        rate = self.done / max(now - self.started, 1e-9)
        results = "  ".join(f"{name} {value:.4g}" for name, value in self.results.items())
        return f"{self.of} {self.epoch}/{self.epochs}  {results}  {rate_text(rate)} steps/s"

    def _share(self) -> tuple[int, int]:
        """Return how much is done, and the total: steps, or epochs if the number of steps is unknown."""
        epochs = self.epochs - self.begun
        if self.steps is None:
            return self.epoch - self.begun, epochs
        return self.done, self.steps * epochs - self.begun_steps

    def _time_left(self, now: float) -> str:
        done, total = self._share()
        if done == total:
            return self._time_taken(now)
        return f"{_duration((now - self.started) * (total / done - 1))} left" if done else "? left"

    def _time_taken(self, now: float) -> str:
        return f"in {_duration(now - self.started)}"

    def _draw_bar(self, now: float, duration: str) -> None:
        done, total = self._share()
        if self.bar is None:
            if now - self.started < self.patience:
                return
            from tqdm import tqdm

            # With the delay, tqdm draws nothing before the first text is set.
            self.bar = tqdm(total=total, mininterval=REFRESH, dynamic_ncols=True, bar_format=FORMAT, delay=1e-9)
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
