"""The types of `running.pyx`, for type checkers."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.tensor import Tensor

class Precondition:
    def __init__(self, t: Tensor, had_gradient: bool | None, needed: bool) -> None: ...

class StateChange:
    def __init__(self, t: Tensor, has_gradient: bool | None, changed: bool) -> None: ...

class Runner:
    replay: kernels.Replay
    inputs: list[np.ndarray]
    lock: threading.RLock
    function: Callable[..., Any] | None
    runs_eagerly: bool
    is_recorded: bool
    def keep(
        self,
        replay: kernels.Replay,
        inputs: list[np.ndarray],
        result: Any,
        found: list[Precondition],
        attributes: list[kernels.Attributes],
        effects: list[StateChange],
    ) -> None: ...
    def _after_fork(self) -> None: ...
    def forget(self, result: Any) -> None: ...
    def __call__(self, *arrays: Any) -> Any: ...
    def run(self, function: Callable[..., Any], *arrays: Any) -> Any: ...
    def is_current(self) -> bool: ...
    def replayed(self) -> None: ...

class Locked:
    def __init__(self, array: np.ndarray, lock: threading.RLock) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...

def mapped(f: Callable[[Any], Any], result: Any) -> Any: ...
def plain(result: Any) -> Any: ...
