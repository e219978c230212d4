"""Data of several columns, and models and losses of several inputs."""

import numpy as np

import caffelite as cl

X, Y = cl.datasets.spiral(points_per_class=20, seed=0)
RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(30, 2)).astype(np.float32), RNG.normal(size=(30, 3)).astype(np.float32)
TARGETS = RNG.normal(size=(30, 3)).astype(np.float32)


class SquaredError(cl.Function):
    """The mean over rows of Σ (outputs − targets)²; of rows that weigh w, Σ w l / Σ w."""

    def forward(self, outputs, targets, weights=None):
        w = np.ones(len(outputs), outputs.dtype) if weights is None else weights
        self.share, self.difference = (w / w.sum())[:, None], outputs - targets
        return (self.share * self.difference**2).sum(dtype=outputs.dtype)

    def backward(self, dy):
        return dy * 2 * self.share * self.difference


def pairs(size, weights=None):
    """Yield an iterable of batches of the two inputs."""
    for i in range(0, 30, size):
        rows = slice(i, i + size)
        yield ((A[rows], B[rows]), TARGETS[rows], *([] if weights is None else [weights[rows]]))


class Epochs:
    """An iterable that is no DataGenerator, of the batches of one."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        yield from self.data


POINTS, ARMS = cl.datasets.spiral(points_per_class=20, seed=0)
LOSS = cl.SoftmaxLoss()
