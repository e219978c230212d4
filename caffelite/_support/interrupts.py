"""Ctrl-C between steps, never inside one."""

from __future__ import annotations

import threading
from _signal import SIGINT, getsignal, signal  # `signal` wraps these in enums, which is ten times slower
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, Protocol

import numpy as np


class Interrupts(Protocol):
    """A signal that ends a training between two steps: Ctrl-C, or the `StopFlag` of many trainings."""

    @property
    def pending(self) -> np.ndarray | None:
        """If its element is not 0, the training ends after the current step."""

    def defer(self) -> AbstractContextManager[None]:
        """Return a context. A signal that comes inside ends the training when the context ends."""


class NullInterrupts:
    """The signal of steps that nothing ends."""

    pending = None

    def defer(self) -> AbstractContextManager[None]:
        """Return a context without effect."""
        return nullcontext()


class InterruptsBetweenSteps:
    """Inside, a Ctrl-C that arrives during `defer()` takes effect at the end of `defer()`.

    Only the main thread gets signals, so on any other thread this does nothing.

    `pending` is not 0 while a Ctrl-C waits for the end of `defer()`. Python calls a signal's handler only when it
    executes Python code. So a Ctrl-C during a replay sets `pending` only when the replay returns, which it does 20
    times a second, or when it calls into Python between two kernels. Then the replay ends after the current batch.
    """

    def __enter__(self) -> InterruptsBetweenSteps:
        self.deferring = False
        self.pending = np.zeros(1, dtype=np.int32)  # an array, which a replay can read, too
        self.handler: Any = None
        if threading.current_thread() is threading.main_thread() and callable(handler := getsignal(SIGINT)):
            self.handler = handler
            signal(SIGINT, self._handle)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.handler is not None:
            signal(SIGINT, self.handler)

    def defer(self) -> DeferredInterrupt:
        """Delay a Ctrl-C that arrives inside until the end; if nested, until the end of the outermost."""
        return DeferredInterrupt(self)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.deferring:
            self.pending[0] = 1
        else:
            self.handler(number, frame)


class DeferredInterrupt:
    """The context manager that `InterruptsBetweenSteps.defer` returns."""

    def __init__(self, interrupts: InterruptsBetweenSteps) -> None:
        self.interrupts = interrupts

    def __enter__(self) -> None:
        self.outer, self.interrupts.deferring = self.interrupts.deferring, True

    def __exit__(self, *exception: Any) -> None:
        interrupts = self.interrupts
        interrupts.deferring = self.outer
        if interrupts.pending[0] and not self.outer:
            interrupts.pending[0] = 0
            interrupts.handler(SIGINT, None)
