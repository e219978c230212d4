"""Modes, each thread's own: whether a graph is recorded, whether Functions behave as in training, whether those that
are made have values, whether values that parameters are given are drawn ones, and whether inputs have values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from caffelite.core.autograd import Mode, inference, no_grad

__all__ = [
    "inference",
    "initializing",
    "is_blank",
    "is_initializing",
    "is_probing",
    "is_training",
    "mode",
    "no_grad",
    "probing",
    "without_values",
]

mode = Mode()
_blank: ContextVar[bool] = ContextVar("caffelite.modes.blank", default=False)
_initializing: ContextVar[bool] = ContextVar("caffelite.modes.initializing", default=False)
_probing: ContextVar[bool] = ContextVar("caffelite.modes.probing", default=False)


@contextmanager
def _true(flag: ContextVar[bool]) -> Iterator[None]:
    token = flag.set(True)
    try:
        yield
    finally:
        flag.reset(token)


def is_training() -> bool:
    """Whether Functions should behave as in training: everywhere but inside `inference()`."""
    return mode.training


def without_values() -> AbstractContextManager[None]:
    """Inside, Functions are made blank: their parameters take no memory, and nothing is drawn, whatever their sizes."""
    return _true(_blank)


def is_blank() -> bool:
    """Whether Functions are made without values, inside `without_values()`."""
    return _blank.get()


def initializing() -> AbstractContextManager[None]:
    """Inside, values that parameters are given are drawn ones: who has a seed may draw them again."""
    return _true(_initializing)


def is_initializing() -> bool:
    """Whether values are being drawn, inside `initializing()`."""
    return _initializing.get()


def probing() -> AbstractContextManager[None]:
    """Inside, Functions are applied for the sake of shapes: integers and masks are zeros that stand for any others."""
    return _true(_probing)


def is_probing() -> bool:
    """Whether inputs stand for others, of which only the shapes count, inside `probing()`."""
    return _probing.get()
