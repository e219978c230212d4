"""Modes, each thread's own: whether a graph is recorded, whether Functions behave as in training, whether those that
are made have values, and whether what they are applied to has."""

from __future__ import annotations

from contextvars import ContextVar, Token

from caffelite.autograd import Mode, inference, no_grad

__all__ = ["inference", "is_blank", "is_probing", "is_training", "mode", "no_grad", "probing", "without_values"]

mode = Mode()
_blank: ContextVar[bool] = ContextVar("caffelite.modes", default=False)
_probing: ContextVar[bool] = ContextVar("caffelite.modes.probing", default=False)


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


class probing:
    """Inside, Functions are applied for the sake of shapes: integers are zeros that stand for any others."""

    def __enter__(self) -> None:
        self.token: Token = _probing.set(True)

    def __exit__(self, *error: object) -> None:
        _probing.reset(self.token)


def is_probing() -> bool:
    """Whether what integers have to be is not to be asked, inside `probing()`."""
    return _probing.get()
