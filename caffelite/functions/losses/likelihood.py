"""Losses of outputs that describe the targets' distribution: its quantiles, its rate, or its mean and deviation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from caffelite import _kernels as kernels
from caffelite.core.arrays import as_real, check_positive
from caffelite.core.function import Shape
from caffelite.functions.losses.base import Loss, PointwiseLoss, use_kernels
from caffelite.functions.losses.targets import as_numbers, check_counts, check_numbers_shape

__all__ = ["GaussianLoss", "PoissonLoss", "QuantileLoss"]


class QuantileLoss(Loss, recordable=True):
    """The quantile or pinball loss, of quantiles q:  y = mean (q d if d ≥ 0, else (q − 1) d),  d = t − s.

    Output sᵢⱼ learns the quantile qⱼ of the targets: a fraction qⱼ of them is below it. Outputs s are (n, k) for k
    quantiles, targets t are (n,) or (n, 1), and the mean is over rows and quantiles. A row may have several targets,
    such as the next h values of a series. Then t is (n, h) and s is (n, h, k).

    dsᵢⱼ = dy / (n k) times −qⱼ if d > 0, 1 − qⱼ if d < 0, and 0 if d = 0. Raise ValueError unless 0 < q < 1.

    R. Koenker and G. Bassett, "Regression quantiles", Econometrica 46, 1978.
    """

    def __init__(self, quantiles: Sequence[float] | np.ndarray) -> None:
        self.levels = np.array(as_real(quantiles, np.float64, "QuantileLoss: quantiles"))
        if self.levels.ndim != 1 or self.levels.size == 0:
            raise ValueError(f"QuantileLoss takes a list of quantiles, such as [0.1, 0.5, 0.9], got {quantiles!r}")
        self.quantiles = [check_positive("QuantileLoss: a quantile", q, 1.0) for q in self.levels.tolist()]

    def output_shape(self, *input_shapes: Shape) -> Shape:
        scores, targets = input_shapes[:2]
        check_numbers_shape("QuantileLoss", targets, scores, self._targets_shape(scores))
        return ()

    def convert_targets(self, targets: Any, scores_shape: Shape, dtype: Any = None) -> np.ndarray:
        return as_numbers("QuantileLoss", targets, scores_shape, dtype, self._targets_shape(scores_shape))

    def _targets_shape(self, scores: Shape) -> Shape:
        """Return the shape of the targets, (n, …, 1). Raise ValueError for scores of other shapes."""
        if len(scores) < 2 or scores[-1] not in (None, len(self.quantiles)) or 0 in scores:
            raise ValueError(
                f"QuantileLoss got scores of shape {scores}; expected (n, {len(self.quantiles)}), one for each "
                f"quantile, or (n, h, {len(self.quantiles)}) for h targets in a row"
            )
        return (*scores[:-1], 1)

    def losses(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        self.scores = scores
        self.targets = kernels.copy(targets, kernels.output(scores.shape, targets.dtype))
        row_shape = (math.prod(scores.shape[1:-1]), self.levels.size)  # targets in a row, and quantiles
        self.row_levels = kernels.copy(np.broadcast_to(self.levels, row_shape)).reshape(-1)
        return kernels.quantile_loss(scores, self.targets, self.row_levels)

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        return kernels.quantile_loss_grad(self.scores, self.targets, dy, self.row_levels, self.row_weights)

    def __repr__(self) -> str:
        return f"QuantileLoss({self.quantiles})"


class PoissonLoss(PointwiseLoss, recordable=True):
    """The Poisson loss of counts with expected values exp(s):  y = mean (exp(s) − t s),  ds = dy (exp(s) − t) / (n k).

    This is the negative log-likelihood of a Poisson distribution without log t!, which does not depend on s. Scores s
    are the logarithms of the expected counts. They have any shape (n, …) with k elements in a row. Targets t have the
    same shape; (n,) also for scores (n, 1). If a target is below 0, NaN or infinite, a ValueError names the first bad
    row.
    """

    threshold = math.log(0.5)
    losses, gradient = use_kernels(kernels.poisson_loss, kernels.poisson_loss_grad)

    def check_values(self, targets: np.ndarray) -> None:
        check_counts("PoissonLoss", targets)

    def link(self, scores: Any) -> np.ndarray:
        """Return the expected counts, exp(scores)."""
        return kernels.exp(super().link(scores))


class GaussianLoss(Loss, recordable=True):
    """The Gaussian loss of a mean μ and a log variance v for each target t:  y = mean (v + (t − μ)² exp(−v)) / 2.

    This is the negative log-likelihood of a normal distribution without the constant log(2π) / 2. Outputs are (n, 2 k):
    k means, and then k log variances. Targets t are (n, k); (n,) also for k = 1.
    dμ = dy (μ − t) exp(−v) / (n k),  dv = dy (1 − (t − μ)² exp(−v)) / (2 n k).

    D. Nix and A. Weigend, "Estimating the mean and variance of the target probability distribution", ICNN 1994.
    """

    threshold = None
    losses, gradient = use_kernels(kernels.gaussian_loss, kernels.gaussian_loss_grad)

    def output_shape(self, *input_shapes: Shape) -> Shape:
        scores, targets = input_shapes[:2]
        check_numbers_shape("GaussianLoss", targets, scores, _targets_shape(scores))
        return ()

    def convert_targets(self, targets: Any, scores_shape: Shape, dtype: Any = None) -> np.ndarray:
        return as_numbers("GaussianLoss", targets, scores_shape, dtype, _targets_shape(scores_shape))

    def link(self, scores: Any) -> np.ndarray:
        """Return the means and then the standard deviations exp(v / 2), (n, 2 k)."""
        scores = super().link(scores)
        _, k = _targets_shape(scores.shape)
        y = kernels.copy(scores)
        kernels.exp(kernels.multiply(scores[:, k:], 0.5), y[:, k:])
        return y


def _targets_shape(scores: Shape) -> Shape:
    """Return the shape (n, k) of the targets for scores (n, 2 k). Raise ValueError for scores of other shapes."""
    if len(scores) != 2 or (scores[1] is not None and (scores[1] == 0 or scores[1] % 2)) or scores[0] == 0:
        raise ValueError(
            f"GaussianLoss got scores of shape {scores}; expected (n, 2 k): k means, and then k log variances"
        )
    return (scores[0], None if scores[1] is None else scores[1] // 2)
