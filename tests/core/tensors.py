"""Tensors and a Function that several test files use."""

import numpy as np

import caffelite as cl


def leaf(values, **options):
    return cl.Tensor(values, requires_grad=True, **options)


class Swish(cl.Function):
    """Swish, y = x · sigmoid(x), as a user would write it: in NumPy, so recorded steps call it back."""

    def forward(self, x):
        self.x, self.s = x, 1 / (1 + np.exp(-x))
        return x * self.s

    def backward(self, dy):
        return dy * (self.s + self.x * self.s * (1 - self.s))
