"""The source of a new Function's first values: the operating system, or a model's seed.

While `__init__` of a Model with a seed runs, the Functions that it makes draw from the model's stream at once. So
`__init__` may read, scale or set their parameters, and the seed decides the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np


class _Scope:
    """The innermost `__init__` of a Model that runs in this thread."""

    def __init__(self, outer: _Scope | None) -> None:
        self.outer = outer
        self.source: Any = None if outer is None else outer.source  # the Own of the model that new Functions draw from


_scope: ContextVar[_Scope | None] = ContextVar("caffelite.drawing", default=None)


@contextmanager
def init_scope() -> Iterator[None]:
    """Inside, `__init__` of a Model runs. At first, new Functions draw as they do outside."""
    token = _scope.set(_Scope(_scope.get()))
    try:
        yield
    finally:
        _scope.reset(token)


def set_init_source(state: Any) -> None:
    """From now on, the `__init__` that runs makes Functions which draw from this model's stream."""
    scope = _scope.get()
    if scope is not None:
        scope.source = state


def init_source() -> Any:
    """Return the Own of the model that new Functions draw from, or None."""
    scope = _scope.get()
    return None if scope is None else scope.source


def register_initialized(function: Any) -> None:
    """Note that a Function was drawn while `__init__` runs: the model keeps its values, and models around it do not."""
    scope, state = _scope.get(), init_source()
    while scope is not None and scope.source is not None:
        if scope.source is state:
            state.mark_registered([function])
        else:
            scope.source.unmark_registered(function)
        scope = scope.outer


def init_rng() -> Any:
    """Return the stream that a new Function draws from; None for the operating system."""
    state = init_source()
    return None if state is None else state.rng


def init_dtype() -> np.dtype:
    """Return the dtype in which new Functions make their parameters."""
    state = init_source()
    return np.dtype(np.float32) if state is None else state.model().dtype
