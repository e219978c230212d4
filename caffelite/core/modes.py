"""Modes: what is true inside a `with`, for each thread on its own.

`no_grad` and `inference`, which are compiled, say whether a graph is recorded and whether Functions behave as in
training. The `Switch`es below are caffelite's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from caffelite.core.autograd import Mode, inference, no_grad

__all__ = ["inference", "initializing", "is_training", "mode", "no_grad", "placeholders", "without_values"]

mode = Mode()


def is_training() -> bool:
    """Whether Functions should behave as in training: everywhere but inside `inference()`."""
    return mode.training


class Switch:
    """A mode that is on inside `with switch():` and off elsewhere."""

    def __init__(self, name: str) -> None:
        self._is_on: ContextVar[bool] = ContextVar(f"caffelite.modes.{name}", default=False)

    @property
    def is_on(self) -> bool:
        """Whether this thread is inside `with switch():`."""
        return self._is_on.get()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        token = self._is_on.set(True)
        try:
            yield
        finally:
            self._is_on.reset(token)


#: Functions are made without values: their parameters take no memory, and nothing is drawn, whatever their sizes.
without_values = Switch("without_values")

#: Values that parameters get are initial ones: whoever has a seed may draw them again.
initializing = Switch("initializing")

#: Inputs are placeholders, to find out shapes and operations: integers and masks are zeros that stand for any others.
placeholders = Switch("placeholders")
