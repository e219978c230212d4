"""Stop all ranks after the same step, for example for Ctrl-C."""

from __future__ import annotations

import time
from _signal import SIGINT
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from caffelite._support.interrupts import InterruptsBetweenSteps
from caffelite.training.process_group import ATTENTION


class Stop:
    """Ends a stretch of steps on all ranks, if any rank requests it.

    Rank 0 requests it after some time, and any rank requests it after Ctrl-C. Each rank sends its requests with the
    sums of every step. It reads the requests of all ranks.
    """

    def __init__(self, is_first: bool) -> None:
        self.flag = np.zeros(1, np.int32)  # a replay reads it; 1: take no further step
        self.is_first = is_first
        self.interrupts: InterruptsBetweenSteps | None = None  # they are held until `interrupt`
        self._interrupted = False
        self._since = 0.0

    def go_on(self) -> None:
        """Allow steps until a rank requests a stop."""
        self.flag[0], self._since = 0, time.monotonic()

    def requests(self) -> tuple[float, float]:
        """Return two requests of this rank: stop because time has passed, and stop because of Ctrl-C."""
        is_time = self.is_first and time.monotonic() - self._since >= ATTENTION
        return float(is_time), float(self.interrupts is not None and self.interrupts.pending[0] != 0)

    def read(self, for_time: float, for_interrupt: float) -> None:
        """Stop if any rank has requested it. Ctrl-C on one rank counts for all ranks."""
        if for_time or for_interrupt:
            self.flag[0] = 1
        self._interrupted |= bool(for_interrupt)

    @contextmanager
    def holding(self, interrupts: InterruptsBetweenSteps) -> Iterator[None]:
        """A context in which Ctrl-C takes effect on all ranks after the same step."""
        before, self.interrupts, self._interrupted = self.interrupts, interrupts, False
        try:
            with interrupts.defer():
                yield
        finally:
            self.interrupts = before

    def stretches(self, is_done: Callable[[], bool]) -> Iterator[float]:
        """Yield stretches of steps without a time limit, until any rank requests a stop."""
        self.go_on()
        while not is_done() and not self.flag[0]:
            yield np.inf
        self.interrupt()

    def interrupt(self) -> None:
        """Between two steps, let Ctrl-C take effect, if any rank has received it."""
        interrupts = self.interrupts
        if self._interrupted and interrupts is not None and interrupts.handler is not None:
            self._interrupted, interrupts.pending[0] = False, 0
            interrupts.handler(SIGINT, None)
