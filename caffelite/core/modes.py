"""Modes: settings that apply inside a `with` block, separately for each thread.

`no_grad` and `inference`, which are compiled, set whether a graph is recorded and whether Functions behave as in
training. `precision`, also compiled, sets how matrix products round their operands. The `Switch`es below are internal.
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
    "real_batches_only",
    "record_graph",
    "shape_inference",
]

mode = Mode()
UNCHANGED = precision(None)


@contextmanager
def record_graph() -> Iterator[None]:
    """Inside, Functions record a graph, even within `no_grad`."""
    before, mode.records_graph = mode.records_graph, True
    try:
        yield
    finally:
        mode.records_graph = before


def is_training() -> bool:
    """Return True if Functions should behave as in training: everywhere except inside `inference()`."""
    return mode.training


def model_precision(dtype: np.dtype, name: str | None) -> AbstractContextManager[None]:
    """Return the context in which a model of this dtype trains or predicts with `precision=name`.

    None keeps this thread's precision.

    Raise ValueError for an unknown name, and TypeError for "bfloat16" with a float64 model.
    """
    if name == "bfloat16" and dtype != np.float32:
        raise TypeError(f'precision="bfloat16" is for models of float32; this one has dtype {dtype}')
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

#: Inputs are placeholders that reveal shapes and operations. Integers and masks are 0 and stand for any values.
shape_inference = Switch("shape_inference")

#: Users' Python runs only on the user's own batches, so the output shape of a model that defines `call` is unknown.
real_batches_only = Switch("real_batches_only")


# ---- the source of initial values ------------------------------------------------------------------------------------
# While the `__init__` of a Model with a seed runs, the Functions that it creates draw from the model's `rng` at once.
# So `__init__` may read, scale or set their parameters, and the seed determines the result. Without a seed, the source
# is the operating system.


class _Scope:
    """The innermost `__init__` of a Model that runs in this thread."""

    def __init__(self, outer: _Scope | None) -> None:
        self.outer = outer
        self.source: Any = None if outer is None else outer.source  # the state of the model they draw from


_scope: ContextVar[_Scope | None] = ContextVar("caffelite.modes.init_scope", default=None)


@contextmanager
def init_scope() -> Iterator[None]:
    """Inside, the `__init__` of a Model runs. At first, new Functions draw as they do outside."""
    token = _scope.set(_Scope(_scope.get()))
    try:
        yield
    finally:
        _scope.reset(token)


def set_init_source(state: Any) -> None:
    """From now on, Functions that the running `__init__` creates draw from this model's `rng`."""
    scope = _scope.get()
    if scope is not None:
        scope.source = state


def init_source() -> Any:
    """Return the state of the model that new Functions draw from, or None."""
    scope = _scope.get()
    return None if scope is None else scope.source


def register_initialized(function: Any) -> None:
    """Note that `__init__` initialized a Function: the model keeps its values, but models around it do not."""
    scope, state = _scope.get(), init_source()
    while scope is not None and scope.source is not None:
        if scope.source is state:
            state.mark_registered([function])
        else:
            scope.source.unmark_registered(function)
        scope = scope.outer


def init_rng() -> Any:
    """Return the Generator that a new Function draws from; None means the operating system."""
    state = init_source()
    return None if state is None else state.rng


def init_dtype() -> np.dtype:
    """Return the dtype in which new Functions make their parameters."""
    state = init_source()
    return np.dtype(np.float32) if state is None else state.model().dtype
