"""A thread that makes the next result while the last one is in use."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator, Iterator
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import Any

Call = Callable[[], Any]


def prefetch(calls: Iterator[Call], depth: int, on_close: Callable[[], object] | None = None) -> Generator[Call]:
    """Yield the results of these calls, in order, made by a thread. Each is a call that returns it or raises its error.

    At most `depth` results are ready or in progress, not counting the last one that was taken. When the generator ends
    or is closed, it calls `on_close`, which may cut the current call short, and waits for the thread.
    """
    results, free, stopped, process = SimpleQueue[Call | None](), Semaphore(depth), Event(), os.getpid()
    thread = Thread(target=_run_calls, args=(calls, results, free, stopped), name="caffelite prefetch", daemon=True)
    thread.start()
    try:
        while True:
            if os.getpid() != process:
                raise RuntimeError(
                    "batches are read ahead by a thread, which a forked process does not have: begin again"
                )
            result = results.get()
            if result is None:
                return
            free.release()
            yield result
            del result
    finally:
        if os.getpid() == process:
            stopped.set()
            if on_close is not None:
                on_close()
            free.release()
            thread.join()


def _run_calls(calls: Iterator[Call], results: SimpleQueue[Call | None], free: Semaphore, stopped: Event) -> None:
    """Put the result of each call into the queue once there is a free place, and finally None."""
    while True:
        free.acquire()
        if stopped.is_set():
            break
        try:
            call = next(calls, None)
        except BaseException as error:
            call = functools.partial(raise_error, error)
        result = None if call is None else _run(call)
        results.put(result)
        if result is None:
            break
    if hasattr(calls, "close"):
        calls.close()


def _run(call: Call) -> Call:
    """Make the result of this call now. Return a call that returns it."""
    try:
        value = call()
        return lambda: value
    except BaseException as error:
        return functools.partial(raise_error, error)


def raise_error(error: BaseException) -> None:
    """Raise this exception."""
    raise error
