"""Ctrl-C between steps, never inside one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np


class InterruptsBetweenSteps:
    """While it is entered, a Ctrl-C that arrives inside `held()` takes effect at its end.

    Signals reach the main thread only, so on any other thread this does nothing.
    """

    def __enter__(self) -> InterruptsBetweenSteps:
        self.holding = False
        self.pending = np.zeros(1, dtype=np.int32)  # in memory, where a replay can look at it too
        self.handler: Any = None
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self.handler = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.handler is not None:
            signal.signal(signal.SIGINT, self.handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A Ctrl-C that arrives inside takes effect at the end; where these are nested, at the end of the outermost."""
        outer, self.holding = self.holding, True
        try:
            yield
        finally:
            self.holding = outer
            if self.pending[0] and not outer:
                self.pending[0] = 0
                self.handler(signal.SIGINT, None)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self.holding:
            self.pending[0] = 1
        else:
            self.handler(number, frame)
