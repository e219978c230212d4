"""Activations."""

import numpy as np

from caffelite import _kernels as kernels
from caffelite.function import Function
from caffelite.tensor import Tensor


class ReLU(Function, recordable=True):
    """The rectified linear unit, y = max(x, 0), elementwise; its gradient at 0 is 0.

    V. Nair and G. Hinton, "Rectified linear units improve restricted Boltzmann machines", ICML 2010.
    """

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.y = kernels.relu(x)
        return self.y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return kernels.relu_grad(dy, self.y)


def relu(x: Tensor) -> Tensor:
    """max(x, 0), elementwise."""
    return ReLU()(x)


Tensor.relu = relu
