"""A thread makes the next result while the last one is in use."""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

Call = Callable[[], Any]


class _Shared:
    """State that the thread that makes results shares with the thread that uses them."""

    def __init__(self, depth: int) -> None:
        self.results: deque[Call | None] = deque()  # None marks the end
        self.ready, self.free = threading.Semaphore(0), threading.Semaphore(depth)
        self.stopped = False


def in_background(made: Iterator[Call], depth: int, left: Callable[[], object] | None = None) -> Generator[Call]:
    """Yield the results of these calls, in order, made by a thread. Each is a call that returns it or raises its error.

    At most `depth` results are ready or in the making. The last result that was taken does not count. When the
    generator ends or is closed, it calls `left`, which may shorten the current call, and waits for the thread.
    """
    shared, process = _Shared(depth), os.getpid()
    thread = threading.Thread(target=_make, args=(made, shared), name="caffelite prefetch", daemon=True)
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
            if left is not None:
                left()
            shared.free.release()
            thread.join()


def _make(made: Iterator[Call], shared: _Shared) -> None:
    while True:
        shared.free.acquire()
        if shared.stopped:
            break
        try:
            call = next(made, None)
        except BaseException as error:
            call = functools.partial(raise_, error)
        result = None if call is None else _result(call)
        shared.results.append(result)
        shared.ready.release()
        if result is None:
            break
    if hasattr(made, "close"):
        made.close()


def _result(call: Call) -> Call:
    """Make the result of this call now. Return a call that gives it."""
    try:
        value = call()
        return lambda: value
    except BaseException as error:
        return functools.partial(raise_, error)


def raise_(error: BaseException) -> None:
    """Raise this exception."""
    raise error
