"""Many models at once, on several threads. A thread computes one model after the other, and takes whichever is next.

It runs the kernels of its model alone. `Stop` asks all threads to end.
"""

from __future__ import annotations

import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.interrupts import InterruptsBetweenSteps
from caffelite._support.warnings import thread_origin, user_line
from caffelite.core.modes import mode
from caffelite.model.many.shared_programs import Form, StandIn, stand_in

WAKING = 0.05  # seconds of waiting after which this thread looks for a Ctrl-C: another thread may have got the signal


class Stop:
    """Ends all trainings, each after its current step, as `InterruptsBetweenSteps` ends one."""

    def __init__(self) -> None:
        self.pending = np.zeros(1, np.int32)  # not 0: stop

    def defer(self) -> AbstractContextManager[None]:
        """Return a context that raises KeyboardInterrupt at its end, if the training has to stop."""
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, *exception: Any) -> None:
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if the training has to stop."""
        if self.pending[0]:
            raise KeyboardInterrupt


def for_each(forms: Sequence[Form], work: Callable[[int, StandIn | None], None], stop: Stop) -> None:
    """Call `work(i, stand_in)` for the model of each Form, on `get_num_threads()` threads.

    Models that are made alike get their thread's stand-in. A model that is like no other, or whose steps call Python,
    gets None and computes itself.
    """
    left = iter(enumerate(forms))
    threads = min(kernels.team_size(), len(forms))
    alike = Counter(form.text for form in forms)

    def work_on_all() -> None:
        stand_ins: dict[tuple | None, StandIn | None] = {None: None}
        with kernels.Alone() if threads > 1 else nullcontext():
            for i, form in left:
                stop.check()
                if form.text not in stand_ins:  # a stand-in for a single model gains nothing
                    stand_ins[form.text] = stand_in(form) if alike[form.text] > threads else None
                work(i, stand_ins[form.text])

    _on_threads(threads, work_on_all, stop)


def _on_threads(number: int, work: Callable[[], None], stop: Stop) -> None:
    """Run `work` on new threads, in the modes of this one, and wait for them.

    If one of them raises an exception, or a signal's handler does so here (a Ctrl-C), the others are asked to `stop`.
    The first exception is raised when all have ended.
    """
    errors: list[BaseException] = []
    modes, line = mode.state, user_line()

    def note(error: BaseException) -> None:
        errors.append(error)
        stop.pending[0] = 1  # after that, threads raise KeyboardInterrupt because of the first error

    def run(ended: threading.Event) -> None:
        mode.state = modes
        thread_origin.set(line)
        try:
            work()
        except BaseException as error:
            note(error)
        finally:
            ended.set()

    # If a Ctrl-C interrupts Thread.join, it takes the thread for ended (CPython issue 90882). So wait for events.
    ends = [threading.Event() for _ in range(number)]
    threads = [threading.Thread(target=contextvars.copy_context().run, args=(run, end)) for end in ends]
    try:
        with InterruptsBetweenSteps() as interrupts, interrupts.defer():
            for thread in threads:
                thread.start()
    except BaseException as error:
        note(error)
    while True:
        try:
            for thread, end in zip(threads, ends, strict=True):
                while thread.ident is not None and not end.wait(WAKING):
                    pass
            break
        except BaseException as error:
            note(error)
    if errors:
        raise errors[0]
