"""The methods of one-input Functions that kernels compute element by element."""

from collections.abc import Callable
from typing import Any

import numpy as np

Compute = Callable[..., np.ndarray]


def keep_input(kernel: Compute, gradient: Compute) -> tuple[Compute, Compute]:
    """Return `forward` and `backward`:  y = kernel(x),  dx = gradient(dy, x)."""

    def forward(self: Any, x: np.ndarray) -> np.ndarray:
        self.x = x
        return kernel(x)

    def backward(self: Any, dy: np.ndarray) -> np.ndarray:
        return gradient(dy, self.x)

    return forward, backward


def keep_output(kernel: Compute, gradient: Compute) -> tuple[Compute, Compute]:
    """Return `forward` and `backward`:  y = kernel(x),  dx = gradient(dy, y)."""

    def forward(self: Any, x: np.ndarray) -> np.ndarray:
        self.y = y = kernel(x)
        return y

    def backward(self: Any, dy: np.ndarray) -> np.ndarray:
        return gradient(dy, self.y)

    return forward, backward
