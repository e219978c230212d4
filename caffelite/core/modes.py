"""Modes: settings that hold inside a `with`, for each thread separately.

`no_grad` and `inference`, which are compiled, set whether a graph is recorded and whether Functions behave as in
training. `precision`, also compiled, sets what matrix products round their operands to. The `Switch`es below are for
caffelite itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from caffelite._kernels import current_precision, precision
from caffelite.core.autograd import Mode, inference, no_grad

__all__ = [
    "current_precision",
    "inference",
    "initializing",
    "is_training",
    "meta_init",
    "mode",
    "model_precision",
    "no_grad",
    "precision",
    "shape_inference",
]

mode = Mode()
UNCHANGED = precision(None)


def is_training() -> bool:
    """Return True if Functions should behave as in training: everywhere except inside `inference()`."""
    return mode.training


def model_precision(model: Any, name: str | None) -> AbstractContextManager[None]:
    """Return the context in which a model trains or predicts with `precision=name`. None keeps the precision of this
    thread.

    Raise ValueError for an unknown name, and TypeError for "bfloat16" with a float64 model.
    """
    if name == "bfloat16" and model.dtype != np.float32:
        raise TypeError(f'precision="bfloat16" is for models of float32; this one has dtype {model.dtype}')
    return UNCHANGED if name is None else precision(name)


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
meta_init = Switch("meta_init")

#: The values that parameters get are initial values: a model with a seed may draw them again.
initializing = Switch("initializing")

#: Inputs are placeholders, to find out shapes and operations. Integers and masks are 0, in place of any values.
shape_inference = Switch("shape_inference")
