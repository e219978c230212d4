"""Modes, each thread's own: whether a graph is recorded, whether Functions behave as in training, whether those that
are made have values, and whether values that parameters are given are drawn ones."""

from __future__ import annotations

from contextvars import ContextVar, Token

from caffelite.autograd import Mode, inference, no_grad

__all__ = [
    "inference",
    "initializing",
    "is_blank",
    "is_initializing",
    "is_training",
    "mode",
    "no_grad",
    "without_values",
]

mode = Mode()
_blank: ContextVar[bool] = ContextVar("caffelite.modes.blank", default=False)
_initializing: ContextVar[bool] = ContextVar("caffelite.modes.initializing", default=False)


def is_training() -> bool:
    """Whether Functions should behave as in training: everywhere but inside `inference()`."""
    return mode.training


class without_values:
    """Inside, Functions are made blank: their parameters take no memory, and nothing is drawn, whatever their sizes."""

    def __enter__(self) -> None:
        self.token: Token = _blank.set(True)

    def __exit__(self, *error: object) -> None:
        _blank.reset(self.token)


def is_blank() -> bool:
    """Whether Functions are made without values, inside `without_values()`."""
    return _blank.get()


class initializing:
    """Inside, values that parameters are given are drawn ones: who has a seed may draw them again."""

    def __enter__(self) -> None:
        self.token: Token = _initializing.set(True)

    def __exit__(self, *error: object) -> None:
        _initializing.reset(self.token)


def is_initializing() -> bool:
    """Whether values are being drawn, inside `initializing()`."""
    return _initializing.get()
