"""Modes, each thread's own: whether a graph is recorded, and whether Functions behave as in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from caffelite.autograd import Mode

mode = Mode()


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
