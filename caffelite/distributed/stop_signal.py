"""Stop all ranks after the same step, for example after Ctrl-C."""

from __future__ import annotations

import time
from _signal import SIGINT
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from caffelite._support.interrupts import InterruptsBetweenSteps
from caffelite.training.epochs.in_memory import REPLAY_SECONDS


class StopSignal:
    """Ends a stretch of steps on all ranks if any rank requests it.

    Rank 0 requests it after some time, and any rank after Ctrl-C. Each rank sends its requests along with the sums of
    every step, and reads those of all ranks.
    """

    def __init__(self, is_main: bool) -> None:
        self.flag = np.zeros(1, np.int32)  # a replay reads it; 1 means to take no further step
        self.is_main = is_main
        self.interrupts: InterruptsBetweenSteps | None = None  # they are held until `raise_interrupt`
        self._is_interrupted = False
        self._start_time = 0.0

    def reset(self) -> None:
        """Allow steps until a rank requests a stop."""
        self.flag[0], self._start_time = 0, time.monotonic()

    def requests(self) -> tuple[float, float]:
        """Return this rank's two requests: to stop because time is up, and to stop because of Ctrl-C."""
        is_time = self.is_main and time.monotonic() - self._start_time >= REPLAY_SECONDS
        return float(is_time), float(self.interrupts is not None and self.interrupts.pending[0] != 0)

    def read(self, time_request: float, interrupt_request: float) -> None:
        """Stop if any rank has requested it. Ctrl-C on one rank counts for all."""
        if time_request or interrupt_request:
            self.flag[0] = 1
        self._is_interrupted |= bool(interrupt_request)

    @contextmanager
    def defer_interrupts(self, interrupts: InterruptsBetweenSteps) -> Iterator[None]:
        """Return a context in which Ctrl-C takes effect on all ranks after the same step."""
        previous, self.interrupts, self._is_interrupted = self.interrupts, interrupts, False
        try:
            with interrupts.defer():
                yield
        finally:
            self.interrupts = previous

    def time_limits(self, is_done: Callable[[], bool]) -> Iterator[float]:
        """Yield the seconds of each stretch of steps: unlimited until any rank requests a stop."""
        self.reset()
        while not is_done() and not self.flag[0]:
            yield np.inf
        self.raise_interrupt()

    def raise_interrupt(self) -> None:
        """Between two steps, let Ctrl-C take effect if any rank has received it."""
        interrupts = self.interrupts
        if self._is_interrupted and interrupts is not None and interrupts.handler is not None:
            self._is_interrupted, interrupts.pending[0] = False, 0
            interrupts.handler(SIGINT, None)
