"""Many models at once, on several threads. A thread computes one model after the other, and takes whichever is next.

It runs the kernels of its model alone. `StopFlag` asks all threads to end.
"""

from __future__ import annotations

import contextvars
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite._support.interrupts import InterruptsBetweenSteps
from caffelite._support.warnings import thread_origin, user_line
from caffelite.core.modes import mode
from caffelite.model.many.shared_programs import SharedModel, Signature, share_model
from caffelite.model.model import Model

# Seconds of waiting after which this thread looks for a Ctrl-C: another thread may have got the signal.
POLL_INTERVAL = 0.05


class StopFlag:
    """Ends all training runs, each after its current step, as `InterruptsBetweenSteps` ends one."""

    def __init__(self) -> None:
        self.pending = np.zeros(1, np.int32)  # not 0: stop

    def defer(self) -> AbstractContextManager[None]:
        """Return a context that raises KeyboardInterrupt at its end if training has to stop."""
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, *exception: Any) -> None:
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if training has to stop."""
        if self.pending[0]:
            raise KeyboardInterrupt


@contextmanager
def lock_trainings(models: Iterable[Model]) -> Iterator[None]:
    """Inside, no other thread can train these models. Raise RuntimeError if one trains one of them now."""
    with ExitStack() as locks:
        for model in models:
            locks.enter_context(model._model_state.lock_training())
        yield


def run_jobs(signatures: Sequence[Signature], work: Callable[[int, SharedModel | None], None], stop: StopFlag) -> None:
    """Call `work(i, shared_model)` for the model of each Signature, on `get_num_threads()` threads.

    Models with the same key get their thread's SharedModel. A model that is like no other, or whose steps call Python,
    gets None and computes itself.
    """
    jobs, available = deque(enumerate(signatures)), kernels.available_threads()
    threads = min(available, len(signatures))
    counts = Counter(signature.key for signature in signatures)

    def take_jobs() -> Iterator[tuple[int, Signature]]:
        with suppress(IndexError):  # no job is left
            while True:
                yield jobs.popleft()  # no two threads get the same, as they might from one iterator

    def run_worker() -> None:
        shared_models: dict[tuple[Any, ...] | None, SharedModel | None] = {None: None}
        with kernels.thread_limit(1 if threads > 1 else available):  # a new thread has no limit of the caller's
            for i, signature in take_jobs():
                stop.check()
                if signature.key not in shared_models:  # a SharedModel for a single model gains nothing
                    shared_models[signature.key] = share_model(signature) if counts[signature.key] > threads else None
                work(i, shared_models[signature.key])

    _run_threads(threads, run_worker, stop)


def _run_threads(n: int, work: Callable[[], None], stop: StopFlag) -> None:
    """Run `work` on new threads, in the modes of this one, and wait for them.

    If one of them raises an exception, or a signal's handler does so here (a Ctrl-C), the others are asked to `stop`.
    The first exception is raised when all have ended.
    """
    errors: list[BaseException] = []
    modes, line = mode.state, user_line()

    def record_error(error: BaseException) -> None:
        errors.append(error)
        stop.pending[0] = 1  # after that, threads raise KeyboardInterrupt because of the first error

    def run(done: threading.Event) -> None:
        mode.state = modes
        thread_origin.set(line)
        try:
            work()
        except BaseException as error:
            record_error(error)
        finally:
            done.set()

    # If a Ctrl-C interrupts Thread.join, it takes the thread for ended (CPython issue 90882). So wait for events.
    done_events = [threading.Event() for _ in range(n)]
    threads = [threading.Thread(target=contextvars.copy_context().run, args=(run, done)) for done in done_events]
    try:
        with InterruptsBetweenSteps() as interrupts, interrupts.defer():
            for thread in threads:
                thread.start()
    except BaseException as error:
        record_error(error)
    while True:
        try:
            for thread, done in zip(threads, done_events, strict=True):
                while thread.ident is not None and not done.wait(POLL_INTERVAL):
                    pass
            break
        except BaseException as error:
            record_error(error)
    if errors:
        raise errors[0]
