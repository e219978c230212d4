"""Modes, each thread's own: whether a graph is recorded, and whether Functions behave as in training."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Mode(threading.local):
    records_graph = True
    training = True


mode = _Mode()


@contextmanager
def no_grad() -> Iterator[None]:
    """Record no graph inside, in this thread."""
    before, mode.records_graph = mode.records_graph, False
    try:
        yield
    finally:
        mode.records_graph = before


@contextmanager
def inference() -> Iterator[None]:
    """Record no graph inside, in this thread, and let Functions behave as in use instead of as in training."""
    before, mode.training = mode.training, False
    try:
        with no_grad():
            yield
    finally:
        mode.training = before


def is_training() -> bool:
    """Whether Functions should behave as in training: everywhere but inside `inference()`."""
    return mode.training
