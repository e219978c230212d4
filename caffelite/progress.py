"""What `fit` shows while it runs: a bar, a line an epoch, or nothing."""

from __future__ import annotations

import sys
import time
from typing import Any

PATIENCE = 0.5  # seconds that "auto" waits before it shows anything, and between two of its lines
REFRESH = 0.05  # seconds between two looks at the bar
FORMAT = "{percentage:3.0f}%|{bar:6}| {desc}"  # tqdm's; a short bar leaves room for the numbers


class Progress:
    """Shows a training run as `verbose` says: 0 nothing, 1 a bar, 2 a line an epoch, "auto" one of these.

    "auto" is a bar on a terminal and lines elsewhere, at most two a second and one for the last epoch; and nothing
    for a run that is over within half a second. `steps` is the number of steps an epoch, None where it is unknown.
    `begun` is the number of epochs that were done before.
    """

    def __init__(self, verbose: int | str, epochs: int, steps: int | None, begun: int = 0) -> None:
        if verbose not in (0, 1, 2, "auto"):
            raise ValueError(f'verbose: expected 0, 1, 2 or "auto", got {verbose!r}')
        self.bar_wanted = verbose == 1 or (verbose == "auto" and sys.stderr.isatty())
        self.lines_wanted = verbose == 2 or (verbose == "auto" and not self.bar_wanted)
        self.epochs, self.steps = epochs, steps
        self.started = self.looked = self.spoke = time.perf_counter()
        self.patience = PATIENCE if verbose == "auto" else 0.0
        self.bar: Any = None
        self.epoch, self.done = begun, 0  # what is completed: epochs, and steps of this run
        self.before = begun * (steps or 0)
        self.results: dict[str, float] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.bar_wanted:
            self._draw_bar(time.perf_counter())
        if self.bar is not None:
            self.bar.close()

    def steps_done(self, count: int) -> None:
        self.done += count
        if self.bar_wanted:
            now = time.perf_counter()
            if now - self.looked >= REFRESH:
                self.looked = now
                self._draw_bar(now)

    def epochs_done(self, count: int, results: dict[str, float]) -> None:
        """So many epochs more are done; these are the results of the last one."""
        self.epoch += count
        self.results = results
        now = time.perf_counter()
        if self.lines_wanted and self._line_is_due(now):
            self.spoke = now
            print(self._line(now), flush=True)

    def _line(self, now: float) -> str:
        rate = self.done / max(now - self.started, 1e-9)
        results = "  ".join(f"{name} {value:.4g}" for name, value in self.results.items())
        return f"epoch {self.epoch}/{self.epochs}  {results}  {rate:,.0f} steps/s"

    def _line_is_due(self, now: float) -> bool:
        begun = self.spoke > self.started
        return now - self.spoke >= self.patience or (begun and self.epoch == self.epochs)

    def _draw_bar(self, now: float) -> None:
        if self.bar is None:
            if now - self.started < self.patience:
                return
            from tqdm import tqdm

            total = None if self.steps is None else self.steps * self.epochs
            self.bar = tqdm(total=total, mininterval=REFRESH, dynamic_ncols=True, bar_format=FORMAT)
        self.bar.n = self.before + self.done
        self.bar.set_description_str(self._line(now))
