"""A thread makes the next result while the last one is in use."""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

Call = Callable[[], Any]


class _SharedState:
    """State that the thread that makes results shares with the thread that uses them."""

    def __init__(self, depth: int) -> None:
        self.results: deque[Call | None] = deque()  # None marks the end
        self.ready, self.free = threading.Semaphore(0), threading.Semaphore(depth)
        self.stopped = False


def prefetch(calls: Iterator[Call], depth: int, on_close: Callable[[], object] | None = None) -> Generator[Call]:
    """Yield the results of these calls, in order, made by a thread. Each is a call that returns it or raises its error.

    At most `depth` results are ready or in the making. The last result that was taken does not count. When the
    generator ends or is closed, it calls `on_close`, which may shorten the current call, and waits for the thread.
    """
    shared, process = _SharedState(depth), os.getpid()
    thread = threading.Thread(target=_run_calls, args=(calls, shared), name="caffelite prefetch", daemon=True)
    thread.start()
    try:
        while True:
            if os.getpid() != process:
                raise RuntimeError(
                    "batches are read ahead by a thread, which a forked process does not have: begin again"
                )
            shared.ready.acquire()
            result = shared.results.popleft()
            if result is None:
                return
            shared.free.release()
            yield result
            del result
    finally:
        if os.getpid() == process:
            shared.stopped = True
            if on_close is not None:
                on_close()
            shared.free.release()
            thread.join()


def _run_calls(calls: Iterator[Call], shared: _SharedState) -> None:
    while True:
        shared.free.acquire()
        if shared.stopped:
            break
        try:
            call = next(calls, None)
        except BaseException as error:
            call = functools.partial(raise_error, error)
        result = None if call is None else _run(call)
        shared.results.append(result)
        shared.ready.release()
        if result is None:
            break
    if hasattr(calls, "close"):
        calls.close()


def _run(call: Call) -> Call:
    """Make the result of this call now. Return a call that gives it."""
    try:
        value = call()
        return lambda: value
    except BaseException as error:
        return functools.partial(raise_error, error)


def raise_error(error: BaseException) -> None:
    """Raise this exception."""
    raise error
