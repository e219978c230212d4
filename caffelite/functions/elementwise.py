"""Functions of one input that kernels compute element by element."""

from collections.abc import Callable
from typing import Any

import numpy as np

from caffelite.core.function import Function


class ElementwiseFunction(Function, recordable=True, rowwise=True):
    """y = kernel(x), with dx = gradient(dy, y), or dx = gradient(dy, x) unless it `keeps_output`."""

    kernel: Any
    gradient: Any
    keeps_output = False

    def __init_subclass__(
        cls,
        kernel: Callable[..., np.ndarray] | None = None,
        gradient: Callable[..., np.ndarray] | None = None,
        keeps_output: bool = False,
        **options: Any,
    ) -> None:
        super().__init_subclass__(**options)
        if kernel is not None:
            cls.kernel, cls.gradient, cls.keeps_output = kernel, gradient, keeps_output

    def forward(self, x: np.ndarray) -> np.ndarray:
        y = self.kernel(x)
        self.kept = y if self.keeps_output else x
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return self.gradient(dy, self.kept)
