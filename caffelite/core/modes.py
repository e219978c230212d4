"""Modes: settings that hold inside a `with`, for each thread separately.

`no_grad` and `inference`, which are compiled, set whether a graph is recorded and whether Functions behave as in
training. The `Switch`es below are for caffelite itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from caffelite.core.autograd import Mode, inference, no_grad

__all__ = ["inference", "initializing", "is_training", "mode", "no_grad", "placeholders", "without_values"]

mode = Mode()


def is_training() -> bool:
    """Whether Functions should behave as in training: True everywhere except inside `inference()`."""
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


#: Make Functions without values: their parameters take no memory, and no random numbers are drawn.
without_values = Switch("without_values")

#: The values that parameters get are initial values: a model with a seed may draw them again.
initializing = Switch("initializing")

#: Inputs are placeholders, to find out shapes and operations. Integers and masks are 0, in place of any values.
placeholders = Switch("placeholders")
