"""Ctrl-C between steps, never inside one."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class InterruptsBetweenSteps:
    """While it is entered, a Ctrl-C that arrives between `begin` and `end` takes effect at `end`.

    Signals reach the main thread only, so on any other thread this does nothing.
    """

    def __enter__(self) -> InterruptsBetweenSteps:
        self.in_step = self.pending = False
        self.handler: Any = None
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self.handler = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.handler is not None:
            signal.signal(signal.SIGINT, self.handler)

    def begin(self) -> None:
        self.in_step = True

    def end(self) -> None:
        self.in_step = False
        if self.pending:
            self.pending = False
            self.handler(signal.SIGINT, None)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self.in_step:
            self.pending = True
        else:
            self.handler(number, frame)
