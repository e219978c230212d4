"""How all ranks stop after the same step, to attend to something."""

from __future__ import annotations

import time
from _signal import SIGINT
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from caffelite.core.interrupts import InterruptsBetweenSteps
from caffelite.training.team import ATTENTION


class Stop:
    """Ends a stretch of steps on all ranks, if any rank asks for it.

    Rank 0 asks when some time has passed, and any rank asks when it has got a Ctrl-C. Each rank sends its requests with
    the sums of every step, and reads those of all.
    """

    def __init__(self, is_first: bool) -> None:
        self.flag = np.zeros(1, np.int32)  # a replay looks here; 1: make no further step
        self.is_first = is_first
        self.interrupts: InterruptsBetweenSteps | None = None  # they are held until `interrupt`
        self._interrupted = False
        self._since = 0.0

    def go_on(self) -> None:
        """Allow steps from now on, until a rank asks to stop."""
        self.flag[0], self._since = 0, time.monotonic()

    def requests(self) -> tuple[float, float]:
        """Whether this rank asks to stop, because time has passed and because of a Ctrl-C."""
        is_time = self.is_first and time.monotonic() - self._since >= ATTENTION
        return float(is_time), float(self.interrupts is not None and self.interrupts.pending[0] != 0)

    def read(self, for_time: float, for_interrupt: float) -> None:
        """Stop if any rank has asked to. A Ctrl-C on one rank is one on all."""
        if for_time or for_interrupt:
            self.flag[0] = 1
        self._interrupted |= bool(for_interrupt)

    @contextmanager
    def holding(self, interrupts: InterruptsBetweenSteps) -> Iterator[None]:
        """Inside, a Ctrl-C takes effect on all ranks after the same step."""
        before, self.interrupts, self._interrupted = self.interrupts, interrupts, False
        try:
            with interrupts.held():
                yield
        finally:
            self.interrupts = before

    def stretches(self, is_done: Callable[[], bool]) -> Iterator[float]:
        """Stretches of steps without a time limit, until any rank asks to stop."""
        self.go_on()
        while not is_done() and not self.flag[0]:
            yield np.inf
        self.interrupt()

    def interrupt(self) -> None:
        """Between two steps: let the Ctrl-C that all ranks have read of take effect."""
        interrupts = self.interrupts
        if self._interrupted and interrupts is not None and interrupts.handler is not None:
            self._interrupted, interrupts.pending[0] = False, 0
            interrupts.handler(SIGINT, None)
