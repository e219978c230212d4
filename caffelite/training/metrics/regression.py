"""Metrics of numbers: outputs and targets of one shape, (n, …)."""

from __future__ import annotations

import numpy as np

from caffelite.training.metrics.base import EpochMetric, register


class RegressionMetric(EpochMetric):
    """A metric of outputs and targets of one shape; a last axis of 1 may be left out."""

    def check(self, name: str, outputs: tuple[int, ...], targets: tuple[int, ...], multilabel: bool = True) -> None:
        single = [shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape for shape in (outputs, targets)]
        if not outputs or single[0] != single[1] or len(targets) > max(len(outputs), 2):
            raise ValueError(f"{name} got outputs of shape {outputs} and targets of shape {targets}; expected the same")


@register(RegressionMetric, mode="min")
def mse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean of (outputs − targets)². scikit-learn's `mean_squared_error`."""
    return float(np.mean(_differences(outputs, targets) ** 2))


@register(RegressionMetric, mode="min")
def mae(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean of |outputs − targets|. scikit-learn's `mean_absolute_error`."""
    return float(np.mean(np.abs(_differences(outputs, targets))))


@register(RegressionMetric, mode="min")
def mape(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean of |outputs − targets| / |targets|: 0.1 is 10 %. scikit-learn's `mean_absolute_percentage_error`.

    A target of 0 counts as 2⁻⁵², which makes the result very large.
    """
    sizes = np.abs(targets.reshape(len(targets), -1).astype(np.float64))
    return float(np.mean(np.abs(_differences(outputs, targets)) / np.maximum(sizes, np.finfo(np.float64).eps)))


@register(RegressionMetric, mode="min")
def rmse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean over columns of √ mean (outputs − targets)². scikit-learn's `root_mean_squared_error`."""
    return float(np.mean(np.sqrt(np.mean(_differences(outputs, targets) ** 2, axis=0))))


@register(RegressionMetric)
def r2(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean over columns of 1 − Σ (outputs − targets)² / Σ (targets − their mean)².

    If all targets of a column are equal, the column counts as 1 if the outputs are right, and otherwise as 0. The
    result is NaN for a single row. This is scikit-learn's `r2_score`.
    """
    if len(outputs) < 2:
        return np.nan
    columns = targets.reshape(len(targets), -1).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        residual = (_differences(outputs, targets) ** 2).sum(axis=0)
        total = ((columns - columns.sum(axis=0) / len(columns)) ** 2).sum(axis=0)
        is_constant = (total == 0) & ~np.isnan(residual)
        unexplained = np.where(is_constant, residual != 0, residual / total)
    return float((1 - unexplained).sum() / len(unexplained))


def _differences(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return outputs − targets in float64, (n, columns)."""
    rows = len(outputs)
    return outputs.reshape(rows, -1).astype(np.float64) - targets.reshape(rows, -1).astype(np.float64)
