"""Modes, each thread's own: whether a graph is recorded, and whether Functions behave as in training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from caffelite.autograd import Mode

mode = Mode()


class no_grad:
    """`with no_grad():` record no graph inside, in this thread. `@no_grad()` does so inside a function."""

    def __enter__(self) -> None:
        self._before, mode.records_graph = mode.records_graph, False

    def __exit__(self, *exception: object) -> None:
        mode.records_graph = self._before

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inside(*arguments: Any, **options: Any) -> Any:
            with type(self)():
                return function(*arguments, **options)

        return inside


class inference(no_grad):
    """As `no_grad`; and Functions behave as in use instead of as in training."""

    def __enter__(self) -> None:
        super().__enter__()
        self._before_training, mode.training = mode.training, False

    def __exit__(self, *exception: object) -> None:
        mode.training = self._before_training
        super().__exit__()


def is_training() -> bool:
    """Whether Functions should behave as in training: everywhere but inside `inference()`."""
    return mode.training
