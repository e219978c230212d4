"""The objectives that scikit-learn's perceptrons minimize."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.function import Function, Shape
from caffelite.core.modes import is_training
from caffelite.core.tensor import Tensor
from caffelite.functions.losses.base import Loss
from caffelite.functions.losses.likelihood import PoissonLoss


class PenalizedLoss(Function, recordable=True):
    """A loss and a penalty of weights:  y = factor · loss + alpha Σ W² / (2 Σ w),  dW = alpha W / Σ w.

    Σ w is the sum of the weights of the batch's rows, or their number. The penalty is used only in training: in
    inference, and when validation data are evaluated, y is without it. `outputs` is the number of scores of a row.
    """

    def __init__(self, loss: Loss, factor: float, weights: Iterable[Tensor], alpha: float, outputs: int) -> None:
        self.loss, self.factor, self.weights, self.alpha = loss, float(factor), list(weights), float(alpha)
        self.outputs = outputs

    def check_targets(self, targets: Any, scores_shape: Shape) -> None:
        if scores_shape[1:] != (self.outputs,):
            raise ValueError(
                f"build: expected a model of {self.outputs} outputs a row, (n, {self.outputs}), got one whose outputs "
                f"have shape {scores_shape}"
            )
        self.loss.check_targets(targets, scores_shape)

    def link(self, scores: Any) -> np.ndarray:
        """Turn scores into the loss's predictions."""
        return self.loss.link(scores)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        return self.loss.output_shape(*input_shapes)

    def forward(self, scores: np.ndarray, targets: Any, *weights: Any) -> np.ndarray:
        y = kernels.multiply(self.loss.forward(scores, targets, *weights), self.factor)
        weight = self.loss.weight
        self.weight_sum = float(len(scores)) if weight is None else kernels.convert(weight, scores.dtype)
        if self.alpha == 0 or not is_training():
            return y
        penalty = None
        for p in self.weights:
            parameter_penalty = kernels.penalty(p.data, 0.0, self.alpha)
            penalty = kernels.sum(parameter_penalty, out=penalty, accumulate=penalty is not None)
        return y if penalty is None else kernels.add(y, kernels.divide(penalty, self.weight_sum))

    def backward(self, dy: Any = 1.0) -> np.ndarray:
        if isinstance(dy, int | float | np.generic):
            assert self.loss.value is not None
            dy = kernels.full((), dy, self.loss.value.dtype)
        if self.alpha > 0:
            share = kernels.divide(dy, self.weight_sum)
            for p in self.weights:
                p.add_grad(kernels.penalty_grad(share, p.data, 0.0, self.alpha))
        return self.loss.backward(kernels.multiply(dy, self.factor))

    def __repr__(self) -> str:
        return f"PenalizedLoss({self.factor:g} · {self.loss!r}, {len(self.weights)} weights, alpha={self.alpha:g})"


class PoissonDeviance(PoissonLoss, recordable=True):
    """Half the deviance of Poisson counts t with the rate exp(s): y = mean exp(s) − t s + t log t − t.

    It is 0 if all rates are right. The gradient is PoissonLoss's, ds = dy (exp(s) − t) / (n k) for n rows of k
    elements. Scores s are (n, k), and targets t have the same shape, or (n,) for scores (n, 1). Targets below 0 raise
    ValueError naming the first bad row.
    """

    def check_values(self, targets: np.ndarray) -> None:
        if kernels.recorder() is not None:  # `fit` has had all of them checked
            return
        rows = targets.reshape(len(targets), -1)
        bad = ~(rows >= 0)
        if bad.any():
            row, column = np.unravel_index(int(bad.argmax()), bad.shape)
            raise ValueError(f"target {rows[row, column]!s} in row {row}: counts must be 0 or more")

    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        self.rate, self.targets = kernels.exp(scores), targets
        logarithm = kernels.log(kernels.clip(targets, np.finfo(targets.dtype).tiny, math.inf))  # times 0 where t is 0
        surplus = kernels.multiply(targets, kernels.subtract(logarithm, scores))
        losses = kernels.add(kernels.subtract(self.rate, targets), surplus)
        return kernels.sum(losses, 1, scale=1 / losses.shape[1])

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        rows, outputs = self.rate.shape
        difference = kernels.multiply(kernels.subtract(self.rate, self.targets), dy)
        if self.row_weights is None:
            return kernels.multiply(difference, 1 / (rows * outputs))
        return kernels.multiply(difference, kernels.multiply(self.row_weights.reshape(rows, 1), 1 / outputs))
