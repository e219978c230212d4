"""Losses for numbers: squared, absolute, and in between."""

from __future__ import annotations

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import check_positive
from caffelite.functions.losses.base import PointwiseLoss, use_kernels

__all__ = ["HuberLoss", "MAELoss", "MSELoss"]


class MSELoss(PointwiseLoss, recordable=True):
    """The mean squared error, y = mean (s − t)²:  ds = dy 2 (s − t) / (n k) for n rows of k elements.

    Scores s have any shape (n, …), targets t the same shape, or (n,) for scores (n, 1).
    """

    losses, gradient = use_kernels(kernels.mse_loss, kernels.mse_loss_grad)


class MAELoss(PointwiseLoss, recordable=True):
    """The mean absolute error, y = mean |s − t|:  ds = dy sign(s − t) / (n k) for n rows of k elements; 0 where s = t.

    Scores s have any shape (n, …), targets t the same shape, or (n,) for scores (n, 1).
    """

    losses, gradient = use_kernels(kernels.mae_loss, kernels.mae_loss_grad)


class HuberLoss(PointwiseLoss, recordable=True):
    """The Huber or smooth L1 loss: the mean of d²/2, d = s − t, or of delta (|d| − delta/2) if |d| > delta.

    ds = dy clip(d, −delta, delta) / (n k) for n rows of k elements. Scores s have any shape (n, …), targets t the same
    shape, or (n,) for scores (n, 1). delta is above 0.

    P. Huber, "Robust estimation of a location parameter", Annals of Mathematical Statistics 35, 1964.
    """

    def __init__(self, delta: float = 1.0) -> None:
        self.delta = check_positive("HuberLoss: delta", delta)

    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        self.scores, self.targets = scores, targets
        return kernels.huber_loss(scores, targets, self.delta)

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        return kernels.huber_loss_grad(self.scores, self.targets, dy, self.delta, self.row_weights)

    def __repr__(self) -> str:
        return f"HuberLoss({self.delta})"
