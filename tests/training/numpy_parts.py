"""A user's own parts, in NumPy: a layer, an activation, losses and an optimizer; and what tests of `fit` share."""

import numpy as np
import pytest

import caffelite as cl

X, Y = cl.datasets.spiral(points_per_class=20, seed=0)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


class Scale(cl.Function):
    """y = w x, elementwise over the features."""

    def __init__(self, features):
        self.w = cl.Tensor(np.ones(features), requires_grad=True, name="w")

    def parameters(self):
        return [self.w]

    def forward(self, x):
        self.x = x
        return x * self.w.data

    def backward(self, dy):
        self.w.add_grad((dy * self.x).sum(axis=0))
        return dy * self.w.data


class SquaredError(cl.Function):
    """The mean of (outputs − targets)²."""

    def forward(self, outputs, targets):
        self.difference = outputs - targets
        return (self.difference**2).mean()

    def backward(self, dy):
        return dy * 2 * self.difference / self.difference.size


class Descent(cl.Optimizer):
    """w ← w − lr g."""

    def step(self):
        for p in self.parameters:
            if p.grad is not None:
                p.data = p.data - np.asarray(self.lr, p.dtype) * p.grad


class Through(cl.Function):
    """The identity, calling back at each forward and backward."""

    def __init__(self, forward=None, backward=None):
        self.on_forward, self.on_backward = forward, backward

    def forward(self, x):
        if self.on_forward:
            self.on_forward()
        return x

    def backward(self, dy):
        return dy if self.on_backward is None else self.on_backward(dy)


def by_hand(model, x, y, steps, loss=None, **options):
    """Return the textbook's loop over Functions, full batches."""
    loss, optimizer = loss or cl.SoftmaxLoss(), cl.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})
    for _ in range(steps):
        optimizer.zero_grad()
        h = x
        for function in model.functions:
            h = function.forward(h)
        loss.forward(h, y)
        d = loss.backward()
        for function in reversed(model.functions):
            d = function.backward(d)
        optimizer.step()
    return model
