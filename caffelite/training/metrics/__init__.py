"""Metrics: callables (outputs, targets) -> float.

Each metric is computed once per epoch, with NumPy, from all outputs and targets of the epoch. A kernel of the step
collects these rows. So the step calls no Python, and the result equals scikit-learn's function on the whole epoch. Only
`accuracy` needs no rows: a kernel of the step counts.

With one score per row, the loss defines class 1: `loss.link` gives more than ½. If the loss does not define it and all
scores are between 0 and 1, they count as probabilities. Otherwise class 1 is score > 0. Several labels per row are
targets (n, C) of 0 and 1; each is decided like one score. Areas and the log loss are of `loss.link` of the outputs.

A metric of NaN is NaN.
"""

from caffelite.training.metrics.base import metric
from caffelite.training.metrics.classification import (
    accuracy,
    auc,
    average_precision,
    balanced_accuracy,
    f1,
    log_loss,
    matthews,
    precision,
    recall,
    top_k,
)
from caffelite.training.metrics.regression import mae, mape, mse, r2, rmse

__all__ = [
    "accuracy",
    "auc",
    "average_precision",
    "balanced_accuracy",
    "f1",
    "log_loss",
    "mae",
    "mape",
    "matthews",
    "metric",
    "mse",
    "precision",
    "r2",
    "recall",
    "rmse",
    "top_k",
]
